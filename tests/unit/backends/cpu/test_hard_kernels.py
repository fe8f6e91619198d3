"""The hard kernels, written once for all backends, give numpy's results as machine code."""

from __future__ import annotations

import pytest

from tests.support.cpu_running import native_targets, run, target_of
from tests.support.hard_kernels import HARD_KERNELS, HardKernel, class_buffers, results_of


@pytest.mark.parametrize("target", native_targets())
@pytest.mark.parametrize("case", HARD_KERNELS, ids=lambda case: case.name)
def test_agrees_with_numpy(case: HardKernel, target: str) -> None:
    arrays, params, places = class_buffers(case)
    run(case.kernel, arrays, params, target_of(target))
    assert case.largest_error(results_of(case, arrays, places)) <= case.tolerance
