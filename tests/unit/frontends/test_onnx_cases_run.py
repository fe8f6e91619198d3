"""Single ONNX nodes imported with unknown dims, compiled, and run by the C runtime.

What the node suite runs has known dims only; here the program computes them from its inputs.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import aot
from aot.errors import ProofWarning
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


# where all extents are open: docs/internals/proofs.md
WITHOUT_PROOF = {"ScatterND", "NonMaxSuppression"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_unknown_dims_natively(case: Case) -> None:
    if case.op in WITHOUT_PROOF:
        warnings.simplefilter("ignore", ProofWarning)
    data = aot.compile(case.model(symbolic=True), targets=["host"]).to_bytes()
    with aot.load(data) as program:
        results = list(program(case.feeds()).values())
    for found, wanted in zip(results, ort_run(case.model(), case.feeds()), strict=True):
        assert found.shape == wanted.shape
        assert found.dtype == wanted.dtype
        scale = float(np.abs(wanted).max(initial=0)) if wanted.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.int32])
@pytest.mark.parametrize("depth", [40, 127, 128, 40_000])
def test_one_hot_of_narrow_values(depth: int, dtype: type) -> None:
    """ONNX Runtime has none of these; what is neither within the depth nor within it from the end
    is hot nowhere, be it ever so far away."""
    values = np.array([7, 200], dtype)
    far = [2**31, 2**32 + 5, -(2**32) + 5, 2**62, depth, -depth - 1]
    wanted = np.array([0, 5, depth - 1, -1, -depth, 255, 256 + 5, 2**16 + 5, *far], np.int64)
    case = Case("OneHot", [wanted, np.array(depth, np.int64), values], constant=[1])
    with aot.load(aot.compile(case.model(), targets=["host"]).to_bytes()) as program:
        (found,) = program(case.feeds()).values()
    places = np.where(wanted < 0, wanted + depth, wanted)
    hot = places[:, None] == np.arange(depth)
    np.testing.assert_array_equal(found, np.where(hot, values[1], values[0]))
