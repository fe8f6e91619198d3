"""Every ONNX op that the importer knows against ONNX Runtime: with known and with unknown dims."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper

import aot
from aot.errors import UnsupportedError
from aot.frontends.onnx import import_onnx, supported_ops
from aot.frontends.onnx.table import TABLE
from aot.ir.data_dims import assumptions_by_last
from tests.support.onnx_cases import CASES, f, i
from tests.support.onnx_models import Case, assert_same, compare, our_run

by_name: Callable[[Case], str] = str


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_known_dims(case: Case) -> None:
    function = compare(case.model(), case.feeds())
    of_data = {a for found in assumptions_by_last(function).values() for a in found}
    assert function.assumptions.keys() <= of_data
    assert of_data or all(result.type.is_static for result in function.results)


@pytest.mark.parametrize("case", [c for c in CASES if c.is_symbolic and c.feeds()], ids=by_name)
def test_unknown_dims(case: Case) -> None:
    compare_symbolic(case)


def compare_symbolic(case: Case) -> None:
    """One import with unknown dims runs at the case's shapes, with what the bound one gives."""
    bound = import_onnx(case.model()).main
    unbound = import_onnx(case.model(symbolic=True)).main
    assert_same(our_run(unbound, case.feeds()), our_run(bound, case.feeds()))


# Constants stand in most other cases; the others are newer than ONNX Runtime, and ONNX's own node
# tests have them.
ELSEWHERE = {
    "Constant",
    "Swish",
    "CumProd",
    "BitCast",
    "TensorScatter",
    "DeformConv",
    "LinearAttention",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "ReduceLogSumExp",
}
# test_onnx_ml.py has the ops of the one, test_onnx_microsoft.py those of decoders of the other.
ELSEWHERE |= {op for domain, op in TABLE if domain in ("ai.onnx.ml", "com.microsoft")} - {
    case.op for case in CASES if case.domain
} | {"SimplifiedLayerNormalization", "StringNormalizer"}


def test_every_importer_has_a_case() -> None:
    tested = {(case.domain, case.op) for case in CASES}
    assert {key for key in set(TABLE) - tested if key[1] not in ELSEWHERE} == set()
    assert [(domain, op) for domain, op, _ in supported_ops()] == sorted(TABLE)


def test_every_version_of_an_importer_has_a_case() -> None:
    untested = []
    for (domain, op), entries in TABLE.items():
        for entry, newer in zip(entries, [None, *entries], strict=False):
            limit = newer.since if newer is not None else 1000
            if op not in ELSEWHERE and not any(
                (c.domain, c.op) == (domain, op) and entry.since <= c.opset < limit for c in CASES
            ):
                untested.append((op, entry.since))
    assert untested == []


REFUSED = [
    (
        Case(
            "LSTM",
            [f(3, 2, 5), f(1, 16, 5), f(1, 16, 4)],
            {"hidden_size": 4, "activations": ["Swish", "Tanh", "Tanh"]},
            outputs=3,
        ),
        "activation swish is not supported",
    ),
    (
        Case("Reshape", [f(1, 1), np.ones(65, np.int64)]),
        "operand 1 (shape) is not known at compile time",
    ),
    (
        Case("RoiAlign", [f(1, 2, 5, 5), f(3, 4), i(0, 0, 0)], {"sampling_ratio": 0}),
        "sampling_ratio 0 takes as many points as each box has pixels, which is known only when "
        "the model runs; a sampling_ratio above 0 is supported",
    ),
    (Case("Det", [f(65, 65)]), "a matrix of 65 rows; 64 are supported at most"),
    (Case("Cast", [f(3)], {"to": 8}), "element type string is not supported"),
    (
        Case("Pad", [f(3), i(1, 1), np.float32(1)], constant=[1]),
        "operand 2 (constant_value) is not known at compile time",
    ),
]


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_is_not_supported_is_said(case: Case, reason: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(case.model())
    assert caught.value.items == (f"{case.op} (node 'the node'): {reason}",)


@pytest.mark.parametrize("extent", [0, "n"])
def test_a_mean_of_nothing_is_not_a_number(extent: int | str) -> None:
    """ONNX leaves it open; numpy and PyTorch say NaN, and 0 is what integers have."""
    for dtype, expected in ((np.float32, np.nan), (np.int32, 0)):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        node = helper.make_node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=0)
        x = helper.make_tensor_value_info("x", kind, [extent, 3])
        y = helper.make_tensor_value_info("y", kind, None)
        opsets = [helper.make_opsetid("", 13)]
        graph = helper.make_graph([node], "g", [x], [y])
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        with aot.load(aot.compile(model, targets=["host"])) as program:
            found = program({"x": np.zeros((0, 3), dtype)})["y"]
        np.testing.assert_array_equal(found, np.full(3, expected, dtype))
