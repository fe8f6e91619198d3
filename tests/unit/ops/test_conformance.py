"""Every record against itself: shape rule, reference and compute tell one story on all samples."""

from __future__ import annotations

import numpy as np
import pytest

from aot.ir.dims import evaluate, symbol
from aot.ir.record import Kind, Sample
from aot.ir.types import DType, TensorType
from aot.ops import REGISTRY, OpRecord
from aot.ops.winograd import CONV_WINOGRAD
from tests.support.op_samples import draw_all, each_sample, evaluate_compute

CASES = [
    pytest.param(record, sample, id=f"{record.name}-{number}")
    for record in REGISTRY.values()
    for number, sample in enumerate(record.samples)
]
COMPUTED = [case for case in CASES if case.values[0].compute is not None]


def _assert_close(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    assert found.shape == expected.shape, what
    assert found.dtype == expected.dtype, what
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected, what)
        return
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6 * scale, err_msg=what)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_record_has_samples_unless_it_is_structure(name: str) -> None:
    """Nor has one whose operand means nothing but as the transform of another, which samples can't
    say: tests/unit/kernels/test_winograd.py runs that."""
    record = REGISTRY[name]
    assert record.summary
    if record.kind is not Kind.STRUCTURE and record is not CONV_WINOGRAD:
        assert record.samples, "a record without samples is not tested anywhere"
        assert record.reference is not None
        assert record.compute is not None or record.kind.has_handwritten_kernel


@each_sample(CASES)
def test_reference_has_the_types_of_the_shape_rule(record: OpRecord, sample: Sample) -> None:
    for is_exact in (False, True):
        call = record.call(sample.operands, sample.attrs)
        call.is_exact = is_exact
        assert not call.assumptions
        assert record.reference is not None
        results = record.reference(call, draw_all(sample))
        assert len(results) == len(call.result_types)
        for type, array in zip(call.result_types, results, strict=True):
            assert array.shape == type.shape
            assert DType.of(array) is type.dtype


@each_sample(COMPUTED)
def test_compute_agrees_with_the_reference(record: OpRecord, sample: Sample) -> None:
    call = record.call(sample.operands, sample.attrs)
    inputs = draw_all(sample, seed=1)
    assert record.reference is not None
    for found, expected in zip(
        evaluate_compute(call, inputs), record.reference(call, inputs), strict=True
    ):
        _assert_close(found, expected, record.name)


@each_sample(CASES)
def test_exact_reference_agrees_with_the_fast_one(record: OpRecord, sample: Sample) -> None:
    call = record.call(sample.operands, sample.attrs)
    inputs = draw_all(sample, seed=2)
    assert record.reference is not None
    fast = record.reference(call, inputs)
    call.is_exact = True
    for found, expected in zip(record.reference(call, inputs), fast, strict=True):
        _assert_close(found, expected, record.name)


def _unknown(type: TensorType | None) -> TensorType | None:
    """The type with a symbol of its own for each extent but 0 and 1, equal ones alike."""
    if type is None:
        return None
    return TensorType(
        type.dtype, tuple(symbol(f"n{d}") if d > 1 else d for d in type.shape), type.layout
    )


@each_sample(CASES)
def test_unknown_dims_give_what_known_ones_do(record: OpRecord, sample: Sample) -> None:
    known = record.call(sample.operands, sample.attrs)
    unknown = record.call([_unknown(t) for t in sample.operands], sample.attrs)
    symbols = {f"n{d}": d for t in sample.operands if t is not None for d in t.shape}
    for assumption in unknown.assumptions:
        assert evaluate(assumption.left, symbols) == evaluate(assumption.right, symbols)
    assert len(known.result_types) == len(unknown.result_types)
    for ours, theirs in zip(unknown.result_types, known.result_types, strict=True):
        assert tuple(evaluate(d, symbols) for d in ours.dims) == theirs.shape
        assert (ours.dtype, ours.layout) == (theirs.dtype, theirs.layout)
    if record.compute is None:
        return
    assert record.reference is not None
    inputs = draw_all(sample, seed=3)
    for found, expected in zip(
        evaluate_compute(unknown, inputs, symbols), record.reference(known, inputs), strict=True
    ):
        _assert_close(found, expected, record.name)
