"""ONNX sequences and loops whose lengths data decide: compiled, and run as ONNX Runtime does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import aot
from aot.errors import CompileError, RuntimeFailure, UnsupportedError
from aot.frontends.onnx import import_onnx
from aot.ir.verifier import verify
from tests.support import decoder_models
from tests.support.control_models import BOOL, I64, Body, always, loop_inputs
from tests.support.generated_models import Graph
from tests.support.onnx_models import Array, ort_run, tensor_info
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

X = tensor_info("x", [5, 4])
N, C = tensor_info("n", [], I64), tensor_info("c", [], BOOL)


def feed(n: int, c: bool = True) -> dict[str, Array]:
    x = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)
    return {"x": x, "n": np.array(n), "c": np.array(c)}


def of_one_size(g: Graph) -> str:
    """Rows of x, as many as n says, in a list."""
    most = g.op("Reshape", "n", g.constant([1]))
    rows = g.op("Slice", "x", g.constant([0]), most, g.constant([0]))
    found: str = g.op("SplitToSequence", rows, axis=0)
    return found


def of_two_sizes(g: Graph) -> str:
    """Parts of n rows of x, of which the last may be smaller."""
    found: str = g.op("SplitToSequence", "x", "n", axis=0)
    return found


def by_sizes(g: Graph) -> str:
    sizes = g.op("Concat", *(g.op("Reshape", v, g.constant([1])) for v in ("n", "rest")), axis=0)
    found: str = g.op("SplitToSequence", "x", sizes, axis=0)
    return found


def joined(g: Graph, values: str, axis: int = 0, **attrs: int) -> str:
    found: str = g.op("ConcatFromSequence", values, axis=axis, **attrs)
    return found


def mapped(g: Graph, values: str) -> str:
    """Of each tensor twice as many rows, the later ones other ones."""
    b = Body("m_")
    whole = b.op("ReduceSum", "whole", b.constant([0]), keepdims=1)
    made = b.op("Concat", "part", b.op("Sub", "part", whole), axis=0)
    body = b.graph([tensor_info("part", ["R", 4]), tensor_info("whole", [5, 4])], [made])
    body.output[0].CopyFrom(tensor_info(made, ["S", 4]))
    found: str = g.op("SequenceMap", values, "x", body=body)
    return found


def chosen(g: Graph) -> str:
    then, other = Body("t_"), Body("e_")
    found: str = g.op(
        "If",
        "c",
        then_branch=then.graph([], [then.op("SequenceConstruct", "x", "x")]),
        else_branch=other.graph([], [other.op("SplitToSequence", "x", axis=0)]),
    )
    return found


def three(g: Graph) -> str:
    found: str = g.op("SequenceConstruct", "x", g.op("Neg", "x"), g.op("Abs", "x"))
    return found


# what is made of x, n and c; for which n; and the most extents that nodes compute
MODELS: dict[str, tuple[Callable[[Graph], list[str]], list[int]]] = {
    "rows": (
        lambda g: [
            joined(g, of_one_size(g)),
            joined(g, of_one_size(g), axis=1),
            joined(g, of_one_size(g), axis=1, new_axis=1),
            g.op("SequenceLength", of_one_size(g)),
            g.op("SequenceAt", of_one_size(g), g.constant(-1)),
        ],
        [1, 3, 5],
    ),
    "parts of two sizes": (
        lambda g: [
            joined(g, of_two_sizes(g)),
            g.op("SequenceAt", of_two_sizes(g), g.constant(0)),
            g.op("SequenceAt", of_two_sizes(g), g.constant(-1)),
            g.op("SequenceLength", of_two_sizes(g)),
        ],
        [1, 2, 3, 5, 9],
    ),
    "a position": (
        lambda g: [
            g.op("SequenceAt", three(g), "n"),
            joined(g, g.op("SequenceInsert", three(g), g.op("Exp", "x"), "n")),
            joined(g, g.op("SequenceErase", three(g), "n")),
        ],
        [0, 1, 2, -1, -3],
    ),
    "put in and taken out": (
        lambda g: [
            joined(g, g.op("SequenceInsert", of_two_sizes(g), g.op("Neg", "x"))),
            joined(g, g.op("SequenceInsert", of_two_sizes(g), g.op("Neg", "x"), g.constant(0))),
            joined(g, g.op("SequenceErase", g.op("SequenceInsert", of_two_sizes(g), "x"))),
            joined(g, g.op("SequenceErase", of_two_sizes(g), g.constant(0))),
        ],
        [1, 2, 4],
    ),
    "a map": (lambda g: [joined(g, mapped(g, of_two_sizes(g)))], [1, 2, 5]),
    "chosen by data": (
        lambda g: [joined(g, chosen(g)), g.op("SequenceLength", chosen(g))],
        [0, 1],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_sequences(name: str) -> None:
    make, numbers = MODELS[name]
    g = Graph(np.random.RandomState(50))
    outputs = make(g)
    for number, made in enumerate(outputs):
        g.named(made, f"y{number}")
    model = g.model([X, N, C], [f"y{n}" for n in range(len(outputs))])
    verify(import_onnx(model).main)
    used = {i.name for i in model.graph.input}
    with aot.load(aot.compile(model)) as program:
        for n in numbers:
            given = {k: v for k, v in feed(n, n > 0).items() if k in used}
            for a, b in zip(program(given).values(), ort_run(model, given), strict=True):
                assert a.shape == b.shape, n
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_parts_of_computed_sizes() -> None:
    g = Graph(np.random.RandomState(51))
    g.named(g.op("SequenceAt", by_sizes(g), g.constant(1)), "y")
    g.named(joined(g, by_sizes(g)), "z")
    model = g.model([X, N, tensor_info("rest", [], I64)], ["y", "z"])
    with aot.load(aot.compile(model)) as program:
        for n in (0, 2, 5):
            given = {"x": feed(n)["x"], "n": np.array(n), "rest": np.array(5 - n)}
            for a, b in zip(program(given).values(), ort_run(model, given), strict=True):
                np.testing.assert_array_equal(a, b)
        with pytest.raises(RuntimeFailure) as caught:
            program({**given, "rest": np.array(1)})
        assert str(caught.value) == (
            "splittosequence_3_0: an extent that it computes is 6, expected 5"
        )


def one_output(make: Callable[[Graph], str], *inputs: Any) -> onnx.ModelProto:
    g = Graph(np.random.RandomState(52))
    g.named(make(g), "y")
    return g.model([X, *inputs], ["y"])


@pytest.mark.parametrize(
    ("n", "message"),
    [
        (
            3,
            "sequenceat_3_0: position in a sequence: n0 is 3, expected at most 2; n0 is 3, "
            "computed by node 'sequenceat_3_0'",
        ),
        (-4, "sequenceat_3_0: an extent that it computes is -1, expected 0 or more"),
    ],
)
def test_a_position_outside(n: int, message: str) -> None:
    model = one_output(lambda g: g.op("SequenceAt", three(g), "n"), N)
    with aot.load(aot.compile(model)) as program:
        with pytest.raises(RuntimeFailure) as caught:
            program({"x": feed(0)["x"], "n": np.array(n)})
        assert str(caught.value) == message


def test_the_last_of_an_empty_sequence() -> None:
    model = one_output(lambda g: g.op("SequenceAt", of_one_size(g), g.constant(-1)), N)
    with aot.load(aot.compile(model)) as program:
        with pytest.raises(RuntimeFailure) as caught:
            program({"x": feed(0)["x"], "n": np.array(0)})
        assert "position in a sequence" in str(caught.value)
        program({"x": feed(0)["x"], "n": np.array(1)})


def appended(g: Graph) -> str:
    """A list to which a loop of n runs appends."""
    b = Body("b_")
    row = b.op("Mul", "x", b.op("Cast", "i", to=TensorProto.FLOAT))
    body = b.graph(
        loop_inputs(onnx.ValueInfoProto(name="rows")),
        [always(b), b.op("SequenceInsert", "rows", row)],
    )
    return joined(g, g.op("Loop", "n", "", g.op("SequenceEmpty"), body=body), new_axis=1)


def test_a_loop_that_appends() -> None:
    model = one_output(appended, N)
    with pytest.raises(UnsupportedError) as refused:
        aot.compile(model, max_default=0)
    assert refused.value.items[0] == (
        "loop_1_0: it computes an extent that nothing limits; bound it with "
        "--max 'loop_1_0'=N (max_extents)"
    )
    with aot.load(aot.compile(model, max_extents={"loop_1_0": 4})) as program:
        for n in (1, 4, 2):
            given = {"x": feed(n)["x"], "n": np.array(n)}
            np.testing.assert_array_equal(program(given)["y"], ort_run(model, given)[0])
        with pytest.raises(RuntimeFailure) as caught:
            program({"x": given["x"], "n": np.array(5)})
        assert str(caught.value) == (
            "an extent that node 'loop_1_0' computes: n0 is 5, expected at most 4; n0 is 5, "
            "computed by node 'loop_1_0'"
        )


def test_one_branch_that_gives_a_sequence() -> None:
    def mixed(g: Graph) -> str:
        then, other = Body("t_"), Body("e_")
        branches = {
            "then_branch": then.graph([], [then.op("SequenceConstruct", "x", "x")]),
            "else_branch": other.graph([], [other.op("Neg", "x")]),
        }
        return joined(g, g.op("If", "c", **branches))

    with pytest.raises((UnsupportedError, CompileError)) as caught:
        import_onnx(one_output(mixed, C))
    assert "one branch gives a sequence, the other one a tensor" in str(caught.value)


def test_rows_of_a_shape_that_data_decide() -> None:
    """All rows of a run have one shape; a run in which they differ fails."""
    g = Graph(np.random.RandomState(37))
    b = Body("b_")
    row = b.op("NonZero", "v")
    body = b.graph(loop_inputs(tensor_info("v", [3])), [always(b), b.op("Mul", "v", "m"), row])
    g.named(g.op("Loop", "n", "", "v0", outputs=2, body=body)[1], "rows")
    infos = [N, tensor_info("v0", [3]), tensor_info("m", [3])]
    model = g.model(infos, ["rows"])
    with aot.load(aot.compile(model, max_extents={"loop_0_0": 4})) as program:
        for n, v in ((1, [0, 1, 2]), (4, [0, 0, 3]), (2, [0, 0, 0])):
            given = {"n": np.array(n), "v0": np.float32(v), "m": np.ones(3, np.float32)}
            np.testing.assert_array_equal(program(given)["rows"], ort_run(model, given)[0])
        given["v0"], given["m"] = np.float32([1, 1, 0]), np.float32([0, 1, 1])
        with pytest.raises(RuntimeFailure) as caught:
            program(given)
        assert str(caught.value).startswith("loop_0_0: ")


def halved(g: Graph) -> list[str]:
    """Halves of v until they are small, in rows and in a tensor that grows; no trip count."""
    b = Body("b_")
    v = b.op("Mul", "v", b.constant(0.5, np.float32))
    grown = b.op("Concat", "grown", b.op("Unsqueeze", "i", b.constant([0])), axis=0)
    goes_on = b.op("Greater", b.op("ReduceMax", v, keepdims=0), b.constant(0.01, np.float32))
    body = b.graph(
        loop_inputs(tensor_info("v", [3]), onnx.ValueInfoProto(name="grown")),
        [goes_on, v, grown, b.op("Neg", v)],
    )
    empty = g.constant(np.zeros(0, np.int64))
    made: list[str] = g.op("Loop", "", "", "v0", empty, outputs=3, body=body)
    return made


def test_a_loop_without_a_trip_count() -> None:
    g = Graph(np.random.RandomState(38))
    for name, made in zip(("last", "grown_out", "rows"), halved(g), strict=True):
        g.named(made, name)
    model = g.model([tensor_info("v0", [3])], ["last", "grown_out", "rows"])
    with pytest.raises(UnsupportedError) as refused:
        aot.compile(model, max_default=0)
    assert refused.value.items == (
        "loop_0_0: its result grows with each iteration, and nothing bounds the number of "
        "iterations; bound it with --max 'loop_0_0'=N (max_extents)",
    )
    with aot.load(aot.compile(model, max_extents={"loop_0_0": 8})) as program:
        for largest in (0.001, 0.02, 1, 2):
            given = {"v0": np.float32([largest, 0, largest / 3])}
            for a, b in zip(program(given).values(), ort_run(model, given), strict=True):
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, rtol=1e-6)
        before = program(given)
        with pytest.raises(RuntimeFailure) as caught:
            program({"v0": np.float32([8, 0, 0])})
        assert str(caught.value).startswith("loop_0_0: its runs: n")
        assert "is 9, expected at most 8" in str(caught.value)
        for a, b in zip(program(given).values(), before.values(), strict=True):
            np.testing.assert_array_equal(a, b)


def check_decoder(name: str, runs: int, device: str = "cpu") -> None:
    make, most = decoder_models.MODELS[name]
    model = make()
    targets = ("host",) if device == "cpu" else ("vulkan-1.1", "host")
    lengths = set()
    with aot.load(aot.compile(model, max_extents=most, targets=targets), device=device) as program:
        for seed in range(runs):
            given = decoder_models.feeds(model, seed)
            wanted = ort_run(model, given)
            lengths.add(wanted[0].shape[-1])
            for a, b in zip(program(given).values(), wanted, strict=True):
                assert a.shape == b.shape, seed
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4, err_msg=str(seed))
    assert len(lengths) > 1


@pytest.mark.parametrize("name", decoder_models.MODELS)
def test_decoders(name: str) -> None:
    check_decoder(name, 12)


@pytest.mark.sweep
@pytest.mark.parametrize("name", decoder_models.MODELS)
def test_decoders_on_many_inputs(name: str) -> None:
    check_decoder(name, 50)


@pytest.mark.sweep
@pytest.mark.vulkan
@pytest.mark.parametrize("name", decoder_models.MODELS)
@pytest.mark.parametrize("driver", DRIVERS)
def test_decoders_on_a_gpu(driver: str, name: str, tmp_path: Path) -> None:
    with running_on(driver, tmp_path):
        check_decoder(name, 50, "vulkan")
