"""Checks of what kernels gave on a Vulkan driver."""

from __future__ import annotations

import numpy as np

from aot.ir.dims import evaluate
from aot.ir.types import DType
from aot.kernels.ir.nodes import BufferClass
from aot.target.model import Target
from tests.support import vulkan_running
from tests.support.hard_kernels import HardKernel, class_buffers, results_of
from tests.support.vulkan_case import Array
from tests.support.vulkan_dispatch import dispatched


def check_hard_kernel(case: HardKernel, driver: str, target: Target | None = None) -> None:
    """Runs it, compiled for `target`, vulkan-1.1 unless told, and compares its results."""
    kernel = case.kernel
    shader = vulkan_running.build(kernel, target)
    arrays, params, places = class_buffers(case)
    dims = {p.name: int(params[p.name]) for p in kernel.params if p.dtype is DType.INDEX}
    grid = [evaluate(extent, dims) for extent in kernel.grid]
    buffers = {binding: arrays[binding.name.lower()].tobytes() for binding in BufferClass}
    after = dispatched(driver, kernel, shader, buffers, params, grid)
    for binding, data in after.items():
        arrays[binding.name.lower()][:] = list(data)
    assert case.largest_error(results_of(case, arrays, places)) <= case.tolerance


def assert_close(actual: Array, expected: Array, tolerance: float) -> None:
    """Within `tolerance` of the largest magnitude; NaN and infinity in the same places."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if tolerance == 0 or expected.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected)
        return
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite], expected[~finite])
    largest = float(np.abs(expected[finite]).max(initial=0))
    np.testing.assert_allclose(actual[finite], expected[finite], rtol=0, atol=tolerance * largest)
