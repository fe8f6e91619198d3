"""The hard kernels run on every software driver: the GPU's style, and the CPU's by one lane."""

from __future__ import annotations

import pytest

from aot.ir.dims import evaluate
from aot.ir.types import DType
from aot.kernels.ir.nodes import BufferClass
from aot.target.model import Target
from tests.support import vulkan_device, vulkan_running
from tests.support.hard_kernels import HARD_KERNELS, HardKernel, class_buffers, results_of

pytestmark = pytest.mark.vulkan


def check_hard_kernel(case: HardKernel, driver: str, target: Target | None = None) -> None:
    """Runs it, compiled for `target`, vulkan-1.1 unless told, and compares its results."""
    kernel = case.kernel
    shader = vulkan_running.build(kernel, target)
    arrays, params, places = class_buffers(case)
    dims = {p.name: int(params[p.name]) for p in kernel.params if p.dtype is DType.INDEX}
    x, y, z = (evaluate(extent, dims) for extent in kernel.grid)
    buffers = {binding: arrays[binding.name.lower()].tobytes() for binding in BufferClass}
    after = vulkan_device.device(driver).run(
        shader, buffers, vulkan_device.pack_params(kernel, params), (x, y, z)
    )
    for binding, data in after.items():
        arrays[binding.name.lower()][:] = list(data)
    assert case.largest_error(results_of(case, arrays, places)) <= case.tolerance


@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
@pytest.mark.parametrize("case", HARD_KERNELS, ids=lambda case: case.name)
def test_hard_kernel(case: HardKernel, driver: str) -> None:
    check_hard_kernel(case, driver)
