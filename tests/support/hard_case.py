"""What a hand-written kernel comes with: data, expected results, and a dispatch's memory layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aot.ir.expr import Expr
from aot.kernels.ir.nodes import BufferClass, Kernel
from tests.support.kernel_terms import ix, load, op

Array = np.ndarray[Any, Any]
CONSTANTS, ARENA = BufferClass.CONSTANTS, BufferClass.ARENA
INPUTS, OUTPUTS = BufferClass.INPUTS, BufferClass.OUTPUTS
INFINITY = float("inf")


@dataclass
class HardKernel:
    """A kernel with data.

    Attributes:
        name: `kernel-style`, unique.
        style: "cpu" or "gpu".
        make: builds the kernel afresh.
        buffers: contents before the run, by kernel buffer; results are filled with NaN or -1.
        params: dims and scalars; offsets are the harness's.
        expected: contents after the run of the buffers that are written.
        tolerance: largest difference allowed, relative to the largest magnitude expected.
    """

    name: str
    style: str
    make: Callable[[], Kernel]
    buffers: dict[str, Array]
    params: dict[str, int | float]
    expected: dict[str, Array]
    tolerance: float = 2e-6
    _kernel: Kernel | None = field(default=None, repr=False)

    @property
    def kernel(self) -> Kernel:
        if self._kernel is None:
            self._kernel = self.make()
        return self._kernel

    def largest_error(self, results: dict[str, Array]) -> float:
        """Relative to the largest magnitude expected; infinity where a NaN is not expected."""
        worst = 0.0
        for name, expected in self.expected.items():
            got = np.asarray(results[name]).reshape(expected.shape)
            if not np.array_equal(np.isnan(got), np.isnan(expected)):
                return INFINITY
            difference = np.abs(got.astype(np.float64) - expected.astype(np.float64))
            scale = max(float(np.nanmax(np.abs(expected))), 1e-30)
            worst = max(worst, float(np.nanmax(difference)) / scale)
        return worst


def class_buffers(
    case: HardKernel, *, gap: int = 64
) -> tuple[dict[str, Array], dict[str, int | float], dict[str, tuple[str, int, int]]]:
    """The four class buffers (uint8), the whole parameter block, and where each buffer lies.

    Buffers stand `gap` or more poisoned bytes apart, at multiples of their elements' size that are
    not multiples of anything larger, as the ABI allows.
    """
    images: dict[str, bytearray] = {c.name.lower(): bytearray() for c in BufferClass}
    params = dict(case.params)
    places: dict[str, tuple[str, int, int]] = {}
    for buffer in case.kernel.buffers:
        image = images[buffer.binding.name.lower()]
        size = buffer.dtype.bytes
        image.extend(b"\xa5" * (gap - len(image) % gap + size))
        data = np.ascontiguousarray(case.buffers[buffer.name]).tobytes()
        params[buffer.offset.name] = len(image)
        places[buffer.name] = (buffer.binding.name.lower(), len(image), len(data))
        image.extend(data)
        image.extend(b"\xa5" * gap)
    arrays = {name: np.frombuffer(image, np.uint8).copy() for name, image in images.items()}
    return arrays, params, places


def results_of(
    case: HardKernel, arrays: dict[str, Array], places: dict[str, tuple[str, int, int]]
) -> dict[str, Array]:
    """What the written buffers hold after a run on `class_buffers`' arrays."""
    results: dict[str, Array] = {}
    for name, expected in case.expected.items():
        binding, start, size = places[name]
        results[name] = (
            arrays[binding][start : start + size].view(expected.dtype).reshape(expected.shape)
        )
    return results


def total_of(source: Any, count: int, operation: str, *before: Expr) -> Expr:
    """The elements of one-dimensional scratch after indices `before`, combined as a tree."""
    terms: list[Expr] = [load(source, *before, ix(i)) for i in range(count)]
    while len(terms) > 1:
        pairs = [op(operation, a, b) for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(pairs) * 2 :]
    return terms[0]
