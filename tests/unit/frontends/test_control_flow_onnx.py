"""If, Loop and Scan of ONNX: what they are imported as, what is refused, and what they compute.

ONNX Runtime is the judge; the interpreter and the compiled file get the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import aot
from aot.errors import CompileError, RuntimeFailure, UnsupportedError
from aot.frontends.onnx import import_onnx
from aot.ir.graph import Function
from aot.ir.verifier import verify
from tests.support.control_models import (
    BOOL,
    CONTROLLED,
    I64,
    Body,
    always,
    growing_list,
    loop_inputs,
    scanned_rnn,
)
from tests.support.generated_models import Graph
from tests.support.onnx_models import assert_same, ort_run, our_run, tensor_info
from tests.support.random_control import SHAPE, evaluate, random_control


@cache
def model(name: str) -> onnx.ModelProto:
    return CONTROLLED[name].model()


def imported(name: str) -> Function:
    module = import_onnx(model(name), input_shapes=CONTROLLED[name].input_shapes)
    verify(module)
    return module.main


@pytest.mark.parametrize("name", CONTROLLED)
def test_interpreter_agrees_with_onnxruntime(name: str) -> None:
    function = imported(name)
    ops = {op.name for op in function.walk()}
    wanted = CONTROLLED[name].op
    assert wanted in ops if wanted else not ops & {"if", "loop"}
    for feeds in CONTROLLED[name].runs:
        assert_same(our_run(function, feeds), ort_run(model(name), feeds))


@pytest.mark.parametrize("name", CONTROLLED)
def test_one_file_agrees_with_onnxruntime(name: str) -> None:
    module = aot.compile(model(name), input_shapes=CONTROLLED[name].input_shapes)
    with aot.load(module) as program:
        for feeds in CONTROLLED[name].runs:
            assert_same(list(program(feeds).values()), ort_run(model(name), feeds))


def random_feeds(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.RandomState(seed)
    return {name: random.uniform(-1, 1, SHAPE).astype(np.float32) for name in "xy"}


def check_random(results: Sequence[np.ndarray[Any, Any]], graph: onnx.GraphProto, run: int) -> None:
    for found, wanted in zip(results, evaluate(graph, random_feeds(run)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(40))
def test_random_nests_on_the_interpreter(seed: int) -> None:
    made = random_control(seed)
    module = import_onnx(made)
    verify(module)
    for run in (1, 2):
        check_random(our_run(module.main, random_feeds(run)), made.graph, run)


@pytest.mark.parametrize("seed", range(100, 112))
def test_random_nests_compiled(seed: int) -> None:
    made = random_control(seed)
    with aot.load(aot.compile(made)) as program:
        for run in (1, 2, 1):
            check_random(list(program(random_feeds(run)).values()), made.graph, run)


# an If that shapes decide


def squeezing(
    after: Callable[[Graph, str], str], compares: str = "Equal", rank: int | None = None
) -> onnx.ModelProto:
    """x f32[N, 3] -> If(N compared with 1) Squeeze(x, 0) else Identity(x), and what follows."""
    g = Graph(np.random.RandomState(30))
    extent = g.op("Gather", g.op("Shape", "x"), g.constant(0), axis=0)
    condition = g.op(compares, extent, g.constant(1))
    then, other = Body("t_"), Body("e_")
    found = g.op(
        "If",
        condition,
        then_branch=then.graph([], [then.op("Squeeze", "x", then.constant([0]))]),
        else_branch=other.graph([], [other.op("Identity", "x")]),
    )
    g.named(after(g, found), "y")
    model = g.model([tensor_info("x", ["N", 3])], ["y"])
    if rank is not None:
        del model.graph.output[:]
        model.graph.output.append(tensor_info("y", [None] * rank))
    return model


def pool(rank: int) -> Callable[[Graph, str], str]:
    """A transposition, which takes one rank only."""
    return lambda g, x: g.op("Transpose", x, perm=list(range(rank))[::-1])


IF_NODE = "If (node 'if_3_0')"


@pytest.mark.parametrize("compares", ["Equal", "LessOrEqual"])
def test_the_branch_that_goes_with_what_follows_is_compiled(compares: str) -> None:
    function = import_onnx(squeezing(pool(1), compares)).main
    assert [op.name for op in function.walk() if op.blocks] == []
    x = np.ones((1, 3), np.float32)
    assert_same(our_run(function, {"x": x}), ort_run(squeezing(pool(1), compares), {"x": x}))
    with pytest.raises(CompileError) as caught:
        our_run(function, {"x": np.ones((2, 3), np.float32)})
    assert str(caught.value).startswith(f"{IF_NODE}: only its then_branch is compiled: ")


@pytest.mark.parametrize(("compares", "n"), [("Equal", 2), ("Greater", 1), ("Less", 1)])
def test_a_condition_that_must_be_false(compares: str, n: int) -> None:
    """N != 1 is taken as N > 1: a tensor with no rows is refused, too."""
    model = squeezing(pool(2), compares)
    function = import_onnx(model).main
    x = np.ones((n, 3), np.float32)
    assert_same(our_run(function, {"x": x}), ort_run(model, {"x": x}))
    with pytest.raises(CompileError, match="only its else_branch is compiled"):
        our_run(function, {"x": np.ones((3 - n if compares != "Less" else 0, 3), np.float32)})


@pytest.mark.parametrize("rank", [1, 2])
def test_the_declared_rank_of_an_output_tells_the_branch(rank: int) -> None:
    function = import_onnx(squeezing(lambda g, x: g.op("Relu", x), rank=rank)).main
    assert function.results[0].type.rank == rank


def test_where_either_branch_will_do_the_user_must_say() -> None:
    model = squeezing(lambda g, x: g.op("Relu", x))
    with pytest.raises(CompileError) as caught:
        import_onnx(model)
    assert str(caught.value) == (
        f"model: {IF_NODE}: shapes decide when the model runs which branch is taken, the branches' "
        "results differ in type, and the model could go on with either: give the dims of inputs "
        "that the condition depends on (--input-shape)"
    )
    bound = import_onnx(model, input_shapes={"x": ("N>=2", 3)}).main
    assert bound.results[0].type.rank == 2


def test_where_no_branch_will_do_both_reasons_are_said() -> None:
    with pytest.raises(CompileError) as caught:
        import_onnx(squeezing(pool(3)))
    text = str(caught.value)
    assert text.startswith(f"model: {IF_NODE}: shapes decide when the model runs")
    assert "with its then_branch: " in text
    assert "with its else_branch: " in text


def test_two_ifs_on_one_extent_agree() -> None:
    """The second is decided by what the first assumes."""

    def again(g: Graph, x: str) -> str:
        extent = g.op("Gather", g.op("Shape", "x"), g.constant(0), axis=0)
        then, other = Body("u_"), Body("v_")
        return str(
            g.op(
                "If",
                g.op("Equal", extent, g.constant(1)),
                then_branch=then.graph([], [then.op("Transpose", x, perm=[0])]),
                else_branch=other.graph([], [other.op("Transpose", x, perm=[1, 0])]),
            )
        )

    with pytest.raises(CompileError, match="could go on with either"):
        import_onnx(squeezing(again))
    function = import_onnx(squeezing(again, rank=1)).main
    assert len(function.assumptions) <= 2


def test_what_the_other_branch_lacks_does_not_matter_where_shapes_decide() -> None:
    g = Graph(np.random.RandomState(32))
    extent = g.op("Gather", g.op("Shape", "x"), g.constant(0), axis=0)
    then, other = Body("t_"), Body("e_")
    found = g.op(
        "If",
        g.op("Equal", extent, g.constant(0)),
        then_branch=then.graph([], [then.op("RegexFullMatch", "x")]),
        else_branch=other.graph([], [other.op("Neg", "x")]),
    )
    g.named(found, "y")
    function = import_onnx(g.model([tensor_info("x", ["N", 3])], ["y"])).main
    with pytest.raises(CompileError, match="only its else_branch is compiled"):
        our_run(function, {"x": np.ones((0, 3), np.float32)})


# what is refused


def refused(model: onnx.ModelProto) -> str:
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(model)
    (line,) = caught.value.items
    return line


KEEP_SIZE = (
    "carry a buffer of a fixed capacity and write into it (ScatterND, ScatterElements, Where), or "
    "keep it between calls (--state)"
)


def test_a_loop_that_doubles_what_it_carries_is_refused() -> None:
    """How large it becomes does not follow from the number of its runs."""
    g = Graph(np.random.RandomState(35))
    b = Body("b_")
    body = b.graph(
        loop_inputs(tensor_info("v", [None])), [always(b), b.op("Concat", "v", "v", axis=0)]
    )
    g.named(g.op("Loop", "n", "", "x", body=body), "y")
    model = g.model([tensor_info("n", [], I64), tensor_info("x", [2])], ["y"])
    assert refused(model) == (
        "Loop (node 'loop_0_0'): carried value 'v' is f32[n1] before an iteration and f32[2*n1] "
        "after it, and it runs n0 times, which must be a number for its runs to be compiled one "
        f"by one (--input-shape); {KEEP_SIZE}"
    )


def test_a_loop_that_grows_for_too_long_is_refused() -> None:
    assert refused(growing_list(100_000)).startswith(
        "Loop (node 'loop_0_0'): a carried value changes its shape from iteration to iteration"
    )


# what data decide


def test_a_loop_that_grows_what_it_carries() -> None:
    model = growing_list("n")
    function = import_onnx(model).main
    verify(function)
    name = "loop_0_0"
    with aot.load(aot.compile(model, max_extents={name: 5})) as program:
        feed = {v.name: np.ones(v.type.shape, v.type.dtype.numpy) for v in function.inputs}
        for count in (0, 1, 3, 5):
            feed["n"] = np.array(count, np.int64)
            wanted = ort_run(model, feed)
            assert_same(list(program(feed).values()), wanted)
            assert_same(our_run(function, feed), wanted)
        feed["n"] = np.array(6, np.int64)
        with pytest.raises(RuntimeFailure) as caught:
            program(feed)
        assert str(caught.value) == (
            f"an extent that node '{name}' computes: n0 is 6, expected at most 5; n0 is 6, "
            f"computed by node '{name}'"
        )
    with pytest.raises(UnsupportedError) as unbounded:
        aot.compile(model, max_default=0)
    assert unbounded.value.items == (
        f"{name}: it computes an extent that nothing limits; bound it with "
        f"--max '{name}'=N (max_extents)",
    )


def test_a_list_that_grows_by_what_data_choose() -> None:
    g = Graph(np.random.RandomState(36))
    b = Body("b_")
    mean = b.op("ReduceMean", "list", keepdims=0)
    more = b.op("Compress", "x", b.op("Greater", "x", mean), axis=0)
    longer = b.op("Concat", "list", more, axis=0)
    goes_on = b.op("Less", b.op("Size", longer), b.constant(9))
    body = b.graph(loop_inputs(tensor_info("list", [None])), [goes_on, longer, mean])
    found = g.op("Loop", "n", "", "start", outputs=2, body=body)
    g.named(g.op("Neg", found[0]), "y")
    g.named(found[1], "means")
    infos = [tensor_info("n", [], I64), tensor_info("x", [5]), tensor_info("start", [1])]
    model = g.model(infos, ["y", "means"])
    function = import_onnx(model).main
    name = "loop_0_0"
    with aot.load(aot.compile(model, max_extents={name: 7})) as program:
        for seed in range(6):
            x = np.random.RandomState(seed).standard_normal(5).astype(np.float32)
            feed = {"n": np.array(seed + 1), "x": x, "start": np.zeros(1, np.float32)}
            wanted = ort_run(model, feed)
            assert_same(list(program(feed).values()), wanted)
            assert_same(our_run(function, feed), wanted)


def test_rows_of_a_loop_that_data_end() -> None:
    g = Graph(np.random.RandomState(33))
    b = Body("b_")
    twice = b.op("Add", "v", "v")
    goes_on = b.op("Less", b.op("ReduceMax", twice, keepdims=0), b.constant(9, np.float32))
    body = b.graph(loop_inputs(tensor_info("v", [2])), [goes_on, twice, twice])
    found = g.op("Loop", g.constant(7), "", "x", outputs=2, body=body)
    g.named(found[1], "rows")
    g.named(found[0], "last")
    model = g.model([tensor_info("x", [2])], ["last", "rows"])
    function = import_onnx(model).main
    with aot.load(aot.compile(model)) as program:
        for scale in (0.001, 0.5, 1, 20):
            feed = {"x": np.array([1, 0.5], np.float32) * np.float32(scale)}
            wanted = ort_run(model, feed)
            assert_same(list(program(feed).values()), wanted)
            assert_same(our_run(function, feed), wanted)
    del model.graph.output[1]  # nobody asks for the rows any more
    function = import_onnx(model).main
    assert not function.assumptions
    x = np.array([1, 0.5], np.float32)
    assert_same(our_run(function, {"x": x}), ort_run(model, {"x": x}))


def test_an_if_on_data_with_results_of_two_shapes() -> None:
    """Of each result as much as the branch that was taken gives, whichever extents differ."""
    g = Graph(np.random.RandomState(34))
    then, other = Body("t_"), Body("e_")
    found = g.op(
        "If",
        "c",
        outputs=2,
        then_branch=then.graph([], [then.op("Concat", "x", "x", axis=0), then.op("Neg", "x")]),
        else_branch=other.graph(
            [], [other.op("Concat", "x", "x", "x", axis=1), other.op("Exp", "x")]
        ),
    )
    g.named(g.op("Relu", found[0]), "y")
    g.named(found[1], "z")
    model = g.model([tensor_info("c", [], BOOL), tensor_info("x", ["N", 2])], ["y", "z"])
    with aot.load(aot.compile(model)) as program:
        for rows in (3, 0, 1):
            x = np.random.RandomState(rows).standard_normal((rows, 2)).astype(np.float32)
            for c in (True, False):
                feed = {"c": np.array(c), "x": x}
                wanted = ort_run(model, feed)
                assert_same(list(program(feed).values()), wanted)
                assert_same(our_run(import_onnx(model).main, feed), wanted)


def test_an_if_on_data_with_results_of_two_ranks_is_refused() -> None:
    g = Graph(np.random.RandomState(34))
    then, other = Body("t_"), Body("e_")
    found = g.op(
        "If",
        "c",
        then_branch=then.graph([], [then.op("Concat", "x", "x", axis=0)]),
        else_branch=other.graph([], [other.op("Flatten", "x")]),
    )
    g.named(found, "y")
    model = g.model([tensor_info("c", [], BOOL), tensor_info("x", [2])], ["y"])
    assert refused(model) == (
        "If (node 'if_0_0'): its condition is known only when the model runs, and its branches' "
        "results differ in type: f32[4] and f32[2, 1]; give the inputs that it depends on a value "
        "(input_values, --input-value), or let both branches give results of one element type and "
        "rank"
    )


def adding_if(*rows: int) -> onnx.ModelProto:
    """c -> a branch that adds a weight of each number of rows to x f32[N, 6]."""
    g = Graph(np.random.RandomState(41))
    graphs = []
    for prefix, count in zip(("t_", "e_"), rows, strict=True):
        b = Body(prefix)
        flat = b.op("ReduceSum", b.op("Add", "x", b.weight(count, 6)), keepdims=0)
        graphs.append(b.graph([], [flat]))
    g.named(g.op("If", "c", then_branch=graphs[0], else_branch=graphs[1]), "y")
    return g.model([tensor_info("c", [], BOOL), tensor_info("x", ["N", 6])], ["y"])


def test_what_one_branch_assumes_of_inputs_is_checked_where_it_runs() -> None:
    model = adding_if(2, 3)
    function = import_onnx(model).main
    verify(function)
    with aot.load(aot.compile(model)) as program:
        for condition, rows in ((True, 2), (False, 3)):
            given = {"c": np.array(condition), "x": np.ones((rows, 6), np.float32)}
            wanted = ort_run(model, given)
            assert_same(our_run(function, given), wanted)
            assert_same(list(program(given).values()), wanted)
        for condition, rows in ((True, 3), (False, 2)):
            given = {"c": np.array(condition), "x": np.ones((rows, 6), np.float32)}
            with pytest.raises(RuntimeFailure, match=rf"operands broadcast: n\d is {rows}"):
                program(given)


def test_branches_that_the_shapes_given_do_not_suit_are_refused() -> None:
    value = "give the inputs that it depends on a value (input_values, --input-value)"
    with pytest.raises(CompileError) as caught:
        import_onnx(adding_if(2, 3), input_shapes={"x": (2, 6)})
    assert str(caught.value).endswith(
        "; that is in the else_branch of If (node 'if_0_0'), whose condition is known only when "
        f"the model runs: if that branch is not meant to run, {value}"
    )
    function = import_onnx(adding_if(2, 2)).main
    for condition in (True, False):
        given = {"c": np.array(condition), "x": np.ones((2, 6), np.float32)}
        assert_same(our_run(function, given), ort_run(adding_if(2, 2), given))
    text = r"operands broadcast \(in the then_branch of If 'if_0_0', which data choose\): N is 3"
    with pytest.raises(CompileError, match=text):
        our_run(function, {"c": np.array(True), "x": np.ones((3, 6), np.float32)})


def test_what_a_body_lacks_is_said_of_its_node() -> None:
    g = Graph(np.random.RandomState(35))
    b = Body("b_")
    body = b.graph(loop_inputs(tensor_info("v", [2])), [always(b), b.op("MaxRoiPool", "v")])
    g.named(g.op("Loop", "n", "", "x", body=body), "y")
    model = g.model([tensor_info("n", [], I64), tensor_info("x", [2])], ["y"])
    assert refused(model) == (
        "MaxRoiPool (node 'b_MaxRoiPool1_0'): there is no importer for this op"
    )


def test_a_scan_before_opset_9_is_refused() -> None:
    g = Graph(np.random.RandomState(36))
    b = Body("b_")
    body = b.graph([tensor_info("h", [2]), tensor_info("row", [2])], [b.op("Add", "h", "row")])
    g.named(g.op("Scan", "", "h0", "x", body=body, num_scan_inputs=1), "y")
    infos = [tensor_info("h0", [1, 2]), tensor_info("x", [1, 5, 2])]
    assert "export the model with opset 9 or later" in refused(g.model(infos, ["y"], opset=8))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_scan_inputs": 4}, "num_scan_inputs is 4, expected 1 to 3, its operands"),
        ({"num_scan_inputs": 0}, "num_scan_inputs is 0, expected 1 to 3, its operands"),
        ({"scan_input_axes": [0]}, "scan_input_axes has 1 items, expected 2"),
        ({"scan_input_axes": [0, 7]}, "axis 7 is outside a tensor of rank 3"),
        ({"scan_input_directions": [0, 2]}, "scan_input_directions are [0, 2], expected 0 or 1"),
    ],
)
def test_a_wrong_scan(change: dict[str, Any], text: str) -> None:
    model = scanned_rnn()
    (scan,) = (n for n in model.graph.node if n.op_type == "Scan")
    for name, value in change.items():
        for attribute in [a for a in scan.attribute if a.name == name]:
            scan.attribute.remove(attribute)
        scan.attribute.append(helper.make_attribute(name, value))
    with pytest.raises(CompileError) as caught:
        import_onnx(model)
    assert text in str(caught.value)


# spelling


def test_a_loop_by_its_condition_alone_that_is_known_runs_one_by_one() -> None:
    """The number of runs follows from the body: i < 3, and shapes depend on i."""
    g = Graph(np.random.RandomState(37))
    b = Body("b_")
    rows = b.op("Concat", "rows", b.op("Unsqueeze", "i", b.constant([0])), axis=0)
    body = b.graph(
        loop_inputs(tensor_info("rows", ["R"], I64)),
        [b.op("Less", "i", b.constant(3)), rows],
    )
    g.named(g.op("Loop", "", g.constant(True, np.bool_), "x", body=body), "y")
    model = g.model([tensor_info("x", [1], I64)], ["y"])
    x = {"x": np.array([7])}
    function = import_onnx(model).main
    assert function.results[0].type.shape == (5,)
    assert_same(our_run(function, x), ort_run(model, x))


def test_the_largest_trip_count_is_none() -> None:
    (loop,) = (op for op in imported("doubled_until").walk() if op.name == "loop")
    assert loop.attrs["trips"] == -1
    assert loop.operands[:2] == [None, None]


@pytest.mark.parametrize(("count", "starts"), [(0, True), (4, False), (-3, True)])
def test_a_loop_that_never_runs_is_what_it_is_given(count: int, starts: bool) -> None:
    g = Graph(np.random.RandomState(38))
    b = Body("b_")
    twice = b.op("Add", "v", "v")
    body = b.graph(loop_inputs(tensor_info("v", [2])), [always(b), twice, twice])
    condition = g.constant(starts, np.bool_)
    found = g.op("Loop", g.constant(count), condition, "x", outputs=2, body=body)
    g.named(found[0], "y")
    g.named(found[1], "rows")
    function = import_onnx(g.model([tensor_info("x", [2])], ["y", "rows"])).main
    assert not any(op.blocks for op in function.walk())
    y, rows = our_run(function, {"x": np.array([1, -1], np.float32)})
    assert y.tolist() == [1, -1]
    assert rows.shape == (0, 2)


def test_a_trip_count_of_shapes_bounds_the_rows() -> None:
    """Rows of a loop that runs as often as x has rows are as many."""
    (loop,) = (op for op in imported("sums_of_rows").walk() if op.name == "loop")
    assert str(loop.attrs["trips"]) == "N"
    assert loop.operands[:2] == [None, None]


def nested_ifs(depth: int) -> onnx.ModelProto:
    """Ifs in both branches of each other, 2 ** depth - 1 of them, on one condition."""
    x = tensor_info("x", [4])

    def graph(level: int, number: int) -> onnx.GraphProto:
        name = f"y{level}_{number}"
        if level == 0:
            node = helper.make_node("Add" if number % 2 else "Mul", ["x", "x"], [name])
        else:
            node = helper.make_node(
                "If",
                ["c"],
                [name],
                then_branch=graph(level - 1, 2 * number),
                else_branch=graph(level - 1, 2 * number + 1),
            )
        return helper.make_graph([node], name, [], [tensor_info(name, [4])])

    whole = graph(depth, 0)
    whole.input.extend([x, tensor_info("c", [], BOOL)])
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_an_if_on_the_condition_of_one_around_it_is_known() -> None:
    model = nested_ifs(8)
    function = import_onnx(model).main
    ops = [op.name for op in function.walk()]
    assert ops.count("if") == 1 and ops.count("add") == 1
    for c in (True, False):
        feeds = {"x": np.arange(4, dtype=np.float32), "c": np.array(c)}
        assert_same(our_run(function, feeds), ort_run(model, feeds))
