"""The hard kernels hold on the interpreter: right, race-free, verified, and printed stably."""

from __future__ import annotations

import numpy as np
import pytest

from aot.kernels.ir.interpreter import run
from aot.kernels.ir.verifier import verify
from tests.support.hard_kernels import HARD_KERNELS, HardKernel, class_buffers, results_of

CASES = pytest.mark.parametrize("case", HARD_KERNELS, ids=lambda case: case.name)


@CASES
def test_verifies(case: HardKernel) -> None:
    verify(case.kernel)


@CASES
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_agrees_with_numpy_and_races_nowhere(case: HardKernel, fused: bool) -> None:
    arrays, params, places = class_buffers(case)
    before = {name: array.copy() for name, array in arrays.items()}
    run(case.kernel, arrays, params, check_races=True, fused=fused)
    assert case.largest_error(results_of(case, arrays, places)) <= case.tolerance
    for name, array in arrays.items():
        is_result = np.zeros(len(array), bool)
        for result in case.expected:
            binding, start, size = places[result]
            if binding == name:
                is_result[start : start + size] = True
        assert np.array_equal(array[~is_result], before[name][~is_result]), name


@CASES
def test_result_does_not_depend_on_batches(case: HardKernel) -> None:
    whole, params, _ = class_buffers(case)
    pieces = {name: array.copy() for name, array in whole.items()}
    run(case.kernel, whole, params)
    run(case.kernel, pieces, params, batch_limit=2)
    for name in whole:
        assert np.array_equal(whole[name], pieces[name])
