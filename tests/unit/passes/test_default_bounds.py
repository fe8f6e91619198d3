"""Extents that a model computes and nothing limits: by the names of nodes, and by the rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aot
from aot.errors import BoundWarning, CompileError, RuntimeFailure, UnsupportedError
from tests.support.onnx_models import graph_model, ort_run, tensor_info

make = helper.make_node


def durations() -> onnx.ModelProto:
    """How voices expand phonemes: rows of as many frames as the longest sum of d [B, P], later
    reshaped by extents that are computed from the count's own."""
    constants = {"ax0": [0], "ax1": [1], "zero": 0, "one": 1}
    nodes = [
        make("ReduceSum", ["d", "ax1"], ["len"], keepdims=0),
        make("Cast", ["len"], ["whole"], to=TensorProto.INT64),
        make("ReduceMax", ["whole"], ["n"], keepdims=0),
        make("Range", ["zero", "n", "one"], ["r"], name="frames"),
        make("Unsqueeze", ["r", "ax0"], ["r0"]),
        make("Unsqueeze", ["whole", "ax1"], ["l1"]),
        make("Less", ["r0", "l1"], ["mask"]),
        make("Shape", ["mask"], ["shape"]),
        make("Gather", ["shape", "one"], ["frames_of"]),
        make("Range", ["zero", "frames_of", "one"], ["q"], name="again"),
        make("Unsqueeze", ["q", "ax0"], ["q0"]),
        make("Cast", ["q0"], ["qf"], to=TensorProto.FLOAT),
        make("Shape", ["d"], ["of"]),
        make("Gather", ["of", "zero"], ["b"]),
        make("Gather", ["of", "one"], ["p"]),
        make("Mul", ["b", "p"], ["bp"]),
        make("Unsqueeze", ["bp", "ax0"], ["bp1"]),
        make("Reshape", ["d", "bp1"], ["flat"]),
        make("Unsqueeze", ["flat", "ax1"], ["column"]),
        make("Less", ["qf", "column"], ["path"]),
        make("Cast", ["path"], ["steps"], to=TensorProto.FLOAT),
        *(make("Unsqueeze", [v, "ax0"], [f"{v}_1"]) for v in ("b", "p", "frames_of")),
        make("Concat", ["b_1", "p_1", "frames_of_1"], ["wanted"], axis=0),
        make("Reshape", ["steps", "wanted"], ["y"], name="reshape"),
    ]
    init = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in constants.items()]
    return graph_model(nodes, [tensor_info("d", ["B", "P"])], ["y"], init)


def given(batch: int, count: int, most: int) -> dict[str, Any]:
    drawn = np.random.default_rng(most).integers(0, most, (batch, count))
    return {"d": drawn.astype(np.float32)}


def test_a_voice_compiles_without_an_option() -> None:
    model = durations()
    with pytest.warns(BoundWarning) as told:
        compiled = aot.compile(model)
    assert [str(w.message) for w in told if w.category is BoundWarning] == [
        "frames: nothing in the model limits the extent that it computes: the limit is "
        "64*max(B, P, 1) (--max-default); --max 'frames'=N sets another"
    ]
    with aot.load(compiled) as program:
        for batch, count, most in ((1, 3, 5), (2, 5, 4), (2, 5, 40), (1, 1, 60)):
            feeds = given(batch, count, most)
            (found,), (expected,) = program(feeds).values(), ort_run(model, feeds)
            assert found.shape == expected.shape
            np.testing.assert_array_equal(found, expected)
        with pytest.raises(RuntimeFailure) as caught:
            program({"d": np.full((1, 2), 65, np.float32)})
        assert str(caught.value).startswith(
            "frames: nothing in the model limits the extent that it computes, and --max "
            "'frames'=N is another limit: n0 is 130, expected at most 64*max(B, P, 1) = 128; "
        )
        program(given(1, 3, 5))  # the next run is as before


def test_the_rule_follows_inputs_of_known_extents() -> None:
    model = durations()
    options = {"input_shapes": {"d": (1, 6)}, "max_default": 3}
    with pytest.warns(BoundWarning, match="the limit is 18 "):
        compiled = aot.compile(model, **options)
    with aot.load(compiled) as program:
        assert program({"d": np.full((1, 6), 3, np.float32)})["y"].shape == (1, 6, 18)
        with pytest.raises(RuntimeFailure, match="n0 is 24, expected at most 18"):
            program({"d": np.full((1, 6), 4, np.float32)})


def test_a_limit_by_a_node_is_applied(recwarn: pytest.WarningsRecorder) -> None:
    compiled = aot.compile(durations(), max_extents={"frames": 20})
    assert not [w for w in recwarn if w.category is BoundWarning]
    with aot.load(compiled) as program:
        assert program({"d": np.full((2, 5), 4, np.float32)})["y"].shape == (2, 5, 20)
        with pytest.raises(RuntimeFailure) as caught:
            program({"d": np.full((2, 7), 3, np.float32)})
        assert "an extent that node 'frames' computes: n0 is 21" in str(caught.value)


def test_without_the_rule_it_is_refused_by_what_helps() -> None:
    """By the node that computes the count, not by those whose extents follow from it."""
    with pytest.raises(UnsupportedError) as refused:
        aot.compile(durations(), max_default=0)
    assert refused.value.items == (
        "frames: it computes an extent that nothing limits; bound it with "
        "--max 'frames'=N (max_extents)",
    )


def test_a_limit_that_nothing_has_is_an_error() -> None:
    for name in ("again", "reshape", "/frames"):
        with pytest.raises(CompileError) as wrong:
            aot.compile(durations(), max_extents={"frames": 20, name: 5})
        assert str(wrong.value) == (
            f"no node {name!r} computes an extent, those that do are 'frames'"
        )


def test_a_node_whose_extent_is_limited_takes_a_limit_too() -> None:
    node = make("NonZero", ["x"], ["y"], name="found")
    model = graph_model([node], [tensor_info("x", [100])], ["y"])
    ones = np.ones(100, np.float32)
    with aot.load(aot.compile(model, max_extents={"found": 7})) as program:
        assert program({"x": ones * (np.arange(100) < 7)})["y"].shape == (1, 7)
        with pytest.raises(RuntimeFailure) as caught:
            program({"x": ones})
        assert "an extent that node 'found' computes: n0 is 100, expected at most 7" in str(
            caught.value
        )


def halving(most: int | None) -> onnx.ModelProto:
    """Rows of a loop that its condition ends, and a trip count if there is one: x is halved until
    it is below 1."""
    limit = helper.make_tensor("limit_value", TensorProto.FLOAT, [], [1.0])
    half = helper.make_tensor("half_value", TensorProto.FLOAT, [], [0.5])
    body = helper.make_graph(
        [
            make("Constant", [], ["half"], value=half),
            make("Constant", [], ["limit"], value=limit),
            make("Mul", ["v", "half"], ["next"]),
            make("ReduceMax", ["next"], ["most"], keepdims=0),
            make("Less", ["limit", "most"], ["goes_on"]),
            make("Identity", ["next"], ["row"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            tensor_info("v", ["N"]),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            tensor_info("next", ["N"]),
            tensor_info("row", ["N"]),
        ],
    )
    trips = "" if most is None else "trips"
    node = make("Loop", [trips, "", "x"], ["last", "rows"], name="halve", body=body)
    init = [] if most is None else [numpy_helper.from_array(np.array(most), "trips")]
    return graph_model([node], [tensor_info("x", ["N"])], ["last", "rows"], init)


def test_runs_of_a_loop_follow_the_rule() -> None:
    model = halving(None)
    with pytest.warns(BoundWarning, match=r"halve: .* the limit is 4\*max\(N, 1\) "):
        compiled = aot.compile(model, max_default=4)
    with aot.load(compiled) as program:
        for largest in (0.5, 3, 100):
            feeds = {"x": np.array([largest, 1], np.float32)}
            for found, expected in zip(program(feeds).values(), ort_run(model, feeds), strict=True):
                np.testing.assert_array_equal(found, expected)
        with pytest.raises(RuntimeFailure, match="halve"):
            program({"x": np.array([1e9, 1], np.float32)})


def test_a_limit_of_a_loop_that_has_one_is_an_error() -> None:
    with pytest.raises(CompileError) as wrong:
        aot.compile(halving(9), max_extents={"halve": 5})
    assert str(wrong.value) == (
        "--max 'halve' (max_extents) has no effect: the model itself limits the extents that the "
        "node computes, and its runs"
    )
