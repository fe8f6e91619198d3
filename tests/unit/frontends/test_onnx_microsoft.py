"""ONNX Runtime's own ops of decoders and of its optimiser mean what ONNX Runtime computes."""

from __future__ import annotations

import pytest
from onnx import helper

import aot
from aot.errors import UnsupportedError
from aot.frontends.onnx import import_onnx
from aot.ir.graph import Module
from tests.support import onnx_microsoft_cases
from tests.support.onnx_models import Case, assert_same, compare, graph_model, ort_run, tensor_info


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


def test_a_model_for_one_machine_is_refused() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="c", domain="com.microsoft.nchwc")
    inputs = [tensor_info("x", [1, 8, 4, 4]), tensor_info("w", [8, 8, 1, 1])]
    with pytest.raises(UnsupportedError) as error:
        import_onnx(graph_model([node], inputs, ["y"]))
    assert list(error.value.items) == [
        "com.microsoft.nchwc.Conv (node 'c'): this ONNX file was written by ONNX Runtime's "
        "optimiser for one machine; give the model that it was made from"
    ]


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
