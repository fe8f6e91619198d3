"""The result of a backend: a variant's code, linked within itself.

Facts only; what programs call and where buffers lie is the linker's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from aot.base.records import dataclass
from aot.ir.dims import Dim
from aot.link.code_image import CodeImage, ImageParts
from aot.link.image import ExecutableImage
from aot.target.model import Target

WhyTooLong = Callable[[str, Dim], str]
"""Why a kernel, whose lanes make so many iterations, is not for its target; "" where it is."""


def never_too_long(kernel: str, iterations: Dim) -> str:
    """A `WhyTooLong` of devices whose loops end."""
    return ""


_NO_OBJECTS: dict[str, Any] = {"cache": {"hits": 0, "misses": 0}, "llvm_calls": 0}


@dataclass(frozen=True)
class Emitted:
    """Sizes of the code of a variant's executables.

    Attributes:
        sizes: bytes of each executable's code, shared or not.
        kept: different pieces of code.
        bytes_met, bytes_kept: of code and its constants.
    """

    sizes: tuple[int, ...]
    kept: int
    bytes_met: int
    bytes_kept: int

    @staticmethod
    def of_image(image: CodeImage) -> Emitted:
        lengths = {part.offset: part.length for part in image.parts.functions}
        return Emitted(
            tuple(lengths[offset] for offset in image.offsets),
            image.functions_kept,
            image.function_bytes_met + image.constant_bytes_met,
            image.function_bytes_kept + image.constant_bytes_kept,
        )

    @staticmethod
    def of_shaders(shaders: Sequence[bytes]) -> Emitted:
        sizes = tuple(map(len, shaders))
        kept = set(shaders)
        return Emitted(sizes, len(kept), sum(sizes), sum(map(len, kept)))

    def with_(self, other: Emitted, sizes: tuple[int, ...]) -> Emitted:
        """The figures for the kernels of both; `sizes` are those of all executables, in order."""
        return Emitted(
            sizes,
            self.kept + other.kept,
            self.bytes_met + other.bytes_met,
            self.bytes_kept + other.bytes_kept,
        )


@dataclass(frozen=True)
class Code:
    """The code that a backend made of some kernels.

    Attributes:
        image: machine code; empty where executables hold their own.
        executables: one for each kernel that is not refused, in order.
        emitted: how much code they had, and what of it is kept.
        parts: what the machine code is made of; None where there is none.
        objects: what the cache had and LLVM compiled, by the keys of the statistics.
        limits: what a device must have at least.
        features: what it must have beside the target's.
        refused: why a kernel breaks one of the target's limits, by the kernel's name.
        host: the CPU that the machine code is for, where a GPU runs the others.
        iterations: that a lane of a shader makes at most, by the kernel's name.
    """

    image: bytes
    executables: tuple[ExecutableImage, ...]
    emitted: Emitted
    parts: ImageParts | None = None
    objects: dict[str, Any] = field(default_factory=lambda: dict(_NO_OBJECTS))
    limits: tuple[tuple[str, int], ...] = ()
    features: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    host: Target | None = None
    iterations: Mapping[str, Dim] = field(default_factory=dict)
