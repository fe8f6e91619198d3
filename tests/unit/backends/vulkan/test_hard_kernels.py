"""The hard kernels run on every software driver: the GPU's style, and the CPU's by one lane."""

from __future__ import annotations

import pytest

from tests.support import vulkan_device
from tests.support.hard_kernels import HARD_KERNELS, HardKernel
from tests.support.vulkan_checks import check_hard_kernel

pytestmark = pytest.mark.vulkan


@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
@pytest.mark.parametrize("case", HARD_KERNELS, ids=lambda case: case.name)
def test_hard_kernel(case: HardKernel, driver: str) -> None:
    check_hard_kernel(case, driver)
