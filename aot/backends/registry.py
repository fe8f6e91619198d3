"""The backend protocol, and the registry that finds the backend of a target.

The one place that goes from a target's `device` to a backend. Imports a backend when it is first
asked for, because LLVM's takes long to load.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from aot.backends.code import Code, WhyTooLong, never_too_long
from aot.backends.cpu.object_cache import ObjectCache
from aot.kernels.ir.nodes import BufferClass, For, Kernel
from aot.link.class_sizes import ClassSize
from aot.link.image import Device
from aot.options import CompileOptions, Progress
from aot.target.model import Target


class Backend(Protocol):
    """The protocol of a backend, which compiles kernels for targets of one device; a context
    manager, for one compile.

    What a schedule must know of a device (tiles, lanes, workgroups) is in the target and no affair
    of a backend.

    Attributes:
        device: what a variant of it runs on.
        scratch_in_arena: whether kernels' scratch beyond registers is memory of the program, which
            executables say the size of; elsewhere it is the device's own.
        overlaps_dispatches: whether dispatches run at the same time unless a barrier parts them.
    """

    device: Device
    scratch_in_arena: bool
    overlaps_dispatches: bool

    def expect(self, source: Any) -> None:
        """Announces a model that will be compiled, before it is read."""

    def unrolled(self, kernel: Kernel) -> Container[For]:
        """The loops of a kernel that its code unrolls, which do not count towards iteration
        limits."""

    def begin(self, kernel: Kernel, target: Target) -> None:
        """Announces a kernel that `compile` will receive, so that its compilation may start
        early."""

    def compile(
        self,
        kernels: Sequence[Kernel],
        target: Target,
        progress: Progress,
        why_too_long: WhyTooLong = never_too_long,
        windowed: frozenset[BufferClass] = frozenset(),
    ) -> Code:
        """Compiles kernels, whose names must differ, with bindings of their own for operands in
        the classes `windowed`.

        What breaks a limit of the target, or is too long for a lane of it, is in the code's
        `refused`, not an error.

        Raises:
            InternalError: a kernel can't be compiled.
        """
        ...

    def limits_of_buffers(self, largest: int) -> tuple[tuple[str, int], ...]:
        """The device limits that a buffer of `largest` bytes requires, as (name, value); empty
        where all devices have it."""
        ...

    def windowed(self, sizes: Mapping[int, ClassSize]) -> frozenset[BufferClass]:
        """The buffer classes too large to be bound as one buffer, whose operands are not."""
        ...

    def __enter__(self) -> Backend: ...

    def __exit__(self, *error: object) -> None: ...


def _cpu(options: CompileOptions, cache: ObjectCache) -> Backend:
    from aot.backends.cpu.backend import CpuBackend

    return CpuBackend(options, cache)


def _vulkan(options: CompileOptions, cache: ObjectCache) -> Backend:
    from aot.backends.vulkan.backend import VulkanBackend

    return VulkanBackend()


BACKENDS: dict[str, Callable[[CompileOptions, ObjectCache], Backend]] = {
    "cpu": _cpu,
    "vulkan": _vulkan,
}


class Backends:
    """The backends of one compile, created on first use; a context manager.

    Attributes:
        cache: where what they make is kept.
    """

    def __init__(self, options: CompileOptions) -> None:
        self.cache = ObjectCache.at(options.cache_dir) if options.cache else ObjectCache(None)
        self._options = options
        self._made: dict[str, Backend] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Backends:
        self._stack.callback(self.cache.close)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)  # type: ignore[arg-type]

    def of(self, target: Target) -> Backend:
        """The backend that compiles for a target."""
        made = self._made.get(target.device)
        if made is None:
            made = self._stack.enter_context(BACKENDS[target.device](self._options, self.cache))
            self._made[target.device] = made
        return made
