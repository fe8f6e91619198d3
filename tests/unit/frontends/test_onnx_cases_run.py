"""Single ONNX nodes imported with unknown dims, compiled, and run by the C runtime.

What the node suite runs has known dims only; here the program computes them from its inputs.
"""

from __future__ import annotations

import numpy as np
import pytest

import aot
from tests.support import onnx_indexing_cases, onnx_rare_cases, onnx_spatial_cases
from tests.support.onnx_models import Case, ort_run

CASES = [
    case
    for case in (
        *onnx_indexing_cases.CASES,
        *onnx_spatial_cases.CASES,
        *onnx_rare_cases.CASES,
    )
    if case.is_symbolic and case.feeds()
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_unknown_dims_natively(case: Case) -> None:
    data = aot.compile(case.model(symbolic=True), targets=["host"]).to_bytes()
    with aot.load(data) as program:
        results = list(program(case.feeds()).values())
    for found, wanted in zip(results, ort_run(case.model(), case.feeds()), strict=True):
        assert found.shape == wanted.shape
        assert found.dtype == wanted.dtype
        scale = float(np.abs(wanted).max(initial=0)) if wanted.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * scale)
