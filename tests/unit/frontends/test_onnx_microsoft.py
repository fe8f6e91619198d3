"""ONNX Runtime's own ops of decoders and of its optimiser mean what ONNX Runtime computes."""

from __future__ import annotations

import pytest
from onnx import helper

import aot
from aot.frontends.onnx import import_onnx
from aot.ir.graph import Module
from tests.support import onnx_microsoft_cases
from tests.support.onnx_models import Case, assert_same, compare, graph_model, ort_run


@pytest.mark.parametrize("case", onnx_microsoft_cases.CASES, ids=str)
def test_against_onnxruntime(case: Case) -> None:
    compare(case.model(), case.feeds())


@pytest.mark.parametrize(
    "case",
    [case for case in onnx_microsoft_cases.NORMS if case.op.startswith("Skip")],
    ids=str,
)
def test_the_sum_of_a_skip_is_an_output(case: Case) -> None:
    model = case.model()
    node = model.graph.node[0]
    outputs = ["y", "", "", "sum"]
    node = helper.make_node(case.op, list(node.input), outputs, domain=case.domain)
    compare(graph_model([node], model.graph.input, ["y", "sum"]), case.feeds())


def test_compiled() -> None:
    """All cases as entry points of one module."""
    module = Module()
    for number, case in enumerate(onnx_microsoft_cases.CASES):
        function = import_onnx(case.model()).main
        function.name = f"f{number}"
        module.add(function)
    data = aot.compile(module, targets=["host"]).to_bytes()
    for number, case in enumerate(onnx_microsoft_cases.CASES):
        with aot.load(data, entry=f"f{number}") as program:
            found = list(program(case.feeds()).values())
        assert_same(found, ort_run(case.model(), case.feeds()))
