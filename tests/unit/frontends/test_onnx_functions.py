"""Ops that are imported by ONNX's own definition of them, and If with a known condition.

Other Ifs are in test_control_flow_onnx.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aot.errors import CompileError, UnsupportedError
from aot.frontends.onnx import import_onnx
from aot.frontends.onnx.table import TABLE, find_entry
from tests.support.onnx_models import (
    Array,
    Case,
    assert_same,
    compare,
    graph_model,
    our_run,
    tensor_info,
)

_RNG = np.random.default_rng(19)


def f(*shape: int) -> Array:
    return np.asarray(_RNG.uniform(-2, 2, shape), np.float32)


def i(*values: int) -> Array:
    return np.array(values, np.int64)


# ops without an entry of their own; f32 is what ONNX Runtime has kernels for
BODIES = [
    Case("MeanVarianceNormalization", [f(2, 3, 4, 5)], opset=13),
    Case("MeanVarianceNormalization", [f(2, 3, 4, 5)], {"axes": [1, 3]}, opset=13, name="axes"),
    Case("Shrink", [f(3, 5)], {"lambd": 0.7, "bias": 0.3}, opset=9),
    Case("AffineGrid", [f(2, 2, 3), i(2, 3, 5, 6)], constant=[1], opset=20, is_symbolic=False),
    Case(
        "AffineGrid",
        [f(2, 3, 4), i(2, 3, 4, 5, 6)],
        {"align_corners": 1},
        constant=[1],
        opset=20,
        is_symbolic=False,
        name="3d",
    ),
    Case("CenterCropPad", [f(20, 8, 3), i(10, 10, 9)], constant=[1], opset=18, is_symbolic=False),
    Case(
        "CenterCropPad",
        [f(20, 8, 3), i(10, 9)],
        {"axes": [-3, 1]},
        constant=[1],
        opset=18,
        is_symbolic=False,
        name="axes",
    ),
    Case("RMSNormalization", [f(2, 3, 4), f(4)], opset=23),
    Case(
        "RotaryEmbedding",
        [f(2, 3, 4, 8), f(50, 4), f(50, 4), _RNG.integers(0, 50, (2, 4))],
        opset=23,
        is_symbolic=False,
    ),
    # they have entries, which do not give these outputs, or know no cap on scores
    Case(
        "Attention",
        [f(2, 3, 4, 8), f(2, 3, 6, 8), f(2, 3, 6, 8)],
        {"softcap": 0.5},
        opset=23,
        is_symbolic=False,
    ),
    Case(
        "Attention",
        [f(2, 4, 24), f(2, 6, 24), f(2, 6, 24), f(4, 6)],
        {"q_num_heads": 3, "kv_num_heads": 3, "is_causal": 0, "scale": 0.3, "softcap": 2.0},
        opset=23,
        is_symbolic=False,
        name="rank 3, mask",
    ),
    Case("LayerNormalization", [f(2, 3, 4), f(4), f(4)], opset=17, outputs=3),
    Case(
        "LayerNormalization", [f(2, 3, 4), f(3, 4)], {"axis": 1}, opset=17, outputs=2, name="axis"
    ),
]


@pytest.mark.parametrize("case", BODIES, ids=str)
def test_definition_of_an_op(case: Case) -> None:
    function = compare(case.model(), case.feeds())
    assert {op.origin for op in function.walk() if op.origin.startswith("the")} <= {"the node"}
    if case.is_symbolic:
        unbound = import_onnx(case.model(symbolic=True)).main
        assert_same(our_run(unbound, case.feeds()), our_run(function, case.feeds()))


def test_the_cases_need_definitions() -> None:
    found = {c.op for c in BODIES if find_entry("", c.op, c.opset)}
    assert found == {"Attention", "LayerNormalization"}


def test_names_in_a_definition_are_its_own() -> None:
    """Two nodes of one op, and a model whose names are those of the definition."""
    nodes = [
        helper.make_node("MeanVarianceNormalization", ["X"], ["X_mean"], name="one"),
        helper.make_node("MeanVarianceNormalization", ["X_mean"], ["Y"], name="two", axes=[1, 2]),
    ]
    compare(
        graph_model(nodes, [tensor_info("X", [2, 3, 4, 5])], ["Y", "X_mean"]), {"X": f(2, 3, 4, 5)}
    )


def test_what_a_definition_needs_and_we_lack_is_said_of_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(TABLE, ("", "RandomUniformLike"))
    node = helper.make_node("Bernoulli", ["x"], ["y"], name="the node")
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(graph_model([node], [tensor_info("x", ["n"])], ["y"]))
    assert caught.value.items == (
        "Bernoulli (node 'the node'): its definition uses RandomUniformLike (node 'the node'): "
        "there is no importer for this op",
    )


# If


def branch(
    nodes: list[onnx.NodeProto],
    outputs: list[str],
    initializers: list[onnx.TensorProto] | None = None,
) -> onnx.GraphProto:
    return helper.make_graph(
        nodes, "branch", [], [onnx.ValueInfoProto(name=o) for o in outputs], initializers or []
    )


def node(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, name=f"{op} {outputs[0]}", **attrs)


def choice(
    then: onnx.GraphProto,
    otherwise: onnx.GraphProto,
    before: list[onnx.NodeProto],
    outputs: int = 1,
) -> onnx.ModelProto:
    """x f32[2, 3] and s i64[]; y = If(cond), where `before` makes cond."""
    names = [f"y{n}" for n in range(outputs)]
    nodes = [*before, node("If", ["cond"], names, then_branch=then, else_branch=otherwise)]
    return graph_model(
        nodes,
        [tensor_info("x", [2, 3]), tensor_info("s", [], TensorProto.INT64)],
        names,
        [numpy_helper.from_array(np.array(4, np.int64), "four")],
    )


def is_four() -> list[onnx.NodeProto]:
    return [node("Equal", ["s", "four"], ["cond"])]


@pytest.mark.parametrize("s", [4, 5])
def test_the_taken_branch_is_inlined(s: int) -> None:
    """Branches read outer names and have weights; a name may stand in both."""
    weight = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")
    model = choice(
        branch(
            [
                node("Relu", ["e"], ["t"]),
                node("Mul", ["t", "w"], ["z"]),
                node("Identity", ["x"], ["same"]),
            ],
            ["z", "same"],
            [weight],
        ),
        branch([node("Sub", ["e", "x"], ["z"]), node("Identity", ["e"], ["same"])], ["z", "same"]),
        [*is_four(), node("Exp", ["x"], ["e"])],
        outputs=2,
    )
    x, value = f(2, 3), np.array(s, np.int64)
    function = compare_bound(model, x, value)
    assert [v.name for v in function.inputs] == ["x"]
    assert ("relu" in {op.name for op in function.walk()}) == (s == 4)


def compare_bound(model: onnx.ModelProto, x: Array, s: Array) -> Any:
    from tests.support.onnx_models import ort_run

    function = import_onnx(model, input_values={"s": s}).main
    assert_same(our_run(function, {"x": x}), ort_run(model, {"x": x, "s": s}))
    return function


def test_an_if_inside_a_branch() -> None:
    inner = node(
        "If",
        ["cond"],
        ["i"],
        then_branch=branch([node("Neg", ["h"], ["n"])], ["n"]),
        else_branch=branch([node("Abs", ["x"], ["n"])], ["n"]),
    )
    model = choice(
        branch([node("Add", ["x", "x"], ["h"]), inner], ["i"]),
        branch([node("Relu", ["x"], ["r"])], ["r"]),
        is_four(),
    )
    compare_bound(model, f(2, 3), np.array(4, np.int64))


def nested_ifs(depth: int, *, is_known: bool = True) -> onnx.ModelProto:
    """An If in a branch of an If ..., each of whose branches calls its result what the If does;
    on one known condition, or each on an input of its own.

    Copied piece by piece: onnx's helpers go through bytes, whose nesting protobuf limits.
    """
    inner = branch([node("Relu", ["x"], ["o"])], ["o"])
    other = branch([node("Exp", ["x"], ["o"])], ["o"])
    conditions = ["c"] * depth if is_known else [f"c{level}" for level in range(depth)]
    for condition in conditions:
        choice_ = node("If", [condition], ["o"])
        for name, graph in (("then_branch", inner), ("else_branch", other)):
            attribute = choice_.attribute.add(name=name, type=onnx.AttributeProto.GRAPH)
            attribute.g.CopyFrom(graph)
        inner = branch([], ["o"])
        inner.node.add().CopyFrom(choice_)
    infos, weights = [tensor_info("x", [2])], [numpy_helper.from_array(np.array(True), "c")]
    if not is_known:
        infos, weights = [*infos, *(tensor_info(c, [], TensorProto.BOOL) for c in conditions)], []
    model = graph_model([], infos, ["o"], weights)
    model.graph.node.add().CopyFrom(inner.node[0])
    return model


def test_a_branch_may_call_its_result_what_the_if_calls_it() -> None:
    assert [op.name for op in import_onnx(nested_ifs(64)).main.walk()] == [
        "constant",
        "relu",
        "return",
    ]


def test_ifs_in_ifs_are_imported_once_each() -> None:
    """Where no condition is known: time is not exponential in the depth."""
    function = import_onnx(nested_ifs(60, is_known=False)).main
    assert [op.name for op in function.walk()].count("if") == 60


def test_branches_nested_too_deep_are_refused() -> None:
    with pytest.raises(CompileError, match="subgraphs are nested deeper than 64"):
        import_onnx(nested_ifs(65))


def test_a_condition_on_shapes_is_known() -> None:
    before = [
        node("Shape", ["x"], ["shape"]),
        node("ReduceProd", ["shape"], ["n"], keepdims=0),
        node("Cast", ["n"], ["cond"], to=TensorProto.BOOL),
    ]
    model = choice(
        branch([node("Relu", ["x"], ["r"])], ["r"]),
        branch([node("Neg", ["x"], ["r"])], ["r"]),
        before,
    )
    assert "relu" in {op.name for op in import_onnx(model).main.walk()}


def test_the_other_branch_is_not_looked_at() -> None:
    strange = branch([node("MaxRoiPool", ["x"], ["r"])], ["r"])
    model = choice(strange, branch([node("Neg", ["x"], ["r"])], ["r"]), is_four())
    import_onnx(model, input_values={"s": np.array(5, np.int64)})
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(model, input_values={"s": np.array(4, np.int64)})
    assert caught.value.items == (
        "MaxRoiPool (node 'MaxRoiPool r'): there is no importer for this op",
    )


def test_what_only_the_other_branch_reads_may_be_unsupported() -> None:
    before = [*is_four(), node("Multinomial", ["x"], ["odd"]), node("Neg", ["odd"], ["n"])]
    model = choice(
        branch([node("Add", ["n", "x"], ["r"])], ["r"]),
        branch([node("Neg", ["x"], ["r"])], ["r"]),
        before,
    )
    import_onnx(model, input_values={"s": np.array(5, np.int64)})
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(model, input_values={"s": np.array(4, np.int64)})
    assert caught.value.items == (
        "Multinomial (node 'Multinomial odd'): there is no importer for this op",
    )


@pytest.mark.parametrize(
    ("then", "text"),
    [
        (
            branch([node("Relu", ["nowhere"], ["r"])], ["r"]),
            "model: Relu (node 'Relu r'): operand 'nowhere' is no input, initializer or other "
            "node's output",
        ),
        (branch([], []), "model: If (node 'If y0'): has 1 outputs, but its branch gives 0"),
        (
            branch([node("Relu", ["b"], ["a"]), node("Relu", ["a"], ["b"])], ["a"]),
            "model: nodes depend on each other in a circle: 'Relu a', 'Relu b'",
        ),
    ],
)
def test_a_wrong_branch(then: onnx.GraphProto, text: str) -> None:
    model = choice(then, branch([node("Neg", ["x"], ["r"])], ["r"]), is_four())
    with pytest.raises(CompileError) as caught:
        import_onnx(model, input_values={"s": np.array(4, np.int64)})
    assert str(caught.value) == text
