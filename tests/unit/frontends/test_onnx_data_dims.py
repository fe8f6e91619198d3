"""ONNX nodes whose results' shapes data decide, compiled and run against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import aot
from aot.errors import RuntimeFailure, UnsupportedError
from aot.frontends.onnx import import_onnx
from aot.ir.interpreter.interpreter import run
from aot.ir.verifier import verify
from tests.support.control_models import Body
from tests.support.onnx_models import Array, graph_model, ort_run, tensor_info

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
NODE = "the node"
X = np.random.default_rng(5).standard_normal((6, 5)).astype(np.float32)
make = helper.make_node


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


def scalars(dtype: type, *values: float) -> dict[str, Array]:
    return {name: np.array(v, dtype) for name, v in zip("abc", values, strict=True)}


def of_x(name: str, rows: Sequence[Sequence[int]]) -> list[dict[str, Array]]:
    return [{"x": X, name: i64(*row)} for row in rows]


Feeds = Sequence[Mapping[str, Array]]
RANGES = [(0, 5, 1), (5, 0, -2), (0, 0, 1), (3, -1, 1), (1, 10, 4), (1, 9, 4)]

RESIZED = [("nearest", 0, 0), ("linear", 1, 0), ("cubic", 1, 0), ("cubic", 0, 1), ("cubic", 1, 1)]
SCALES = [(1, 1), (2, 2), (0.5, 1.5), (1.3, 0.4)]

# node, how many outputs, constants, what it is fed, and the most extents that it computes
CASES: dict[str, tuple[Any, Mapping[str, Array], Feeds, int | None]] = {
    "TopK": (
        make("TopK", ["x", "k"], ["y", "z"], NODE, axis=0),
        {},
        of_x("k", [[0], [1], [3], [6]]),
        None,
    ),
    "Range": (
        make("Range", ["a", "b", "c"], ["y"], NODE),
        {},
        [scalars(np.int64, *row) for row in RANGES],
        16,
    ),
    "Range of floats": (
        make("Range", ["a", "b", "c"], ["y"], NODE),
        {},
        [scalars(np.float32, *row) for row in [*RANGES, (1, 3, 0.25)]],
        16,
    ),
    "Expand": (
        make("Expand", ["x", "s"], ["y"], NODE),
        {},
        [{"x": X[:1], "s": i64(n, m)} for n, m in ((0, 5), (1, 1), (4, 5), (3, 1))],
        8,
    ),
    "Tile": (make("Tile", ["x", "s"], ["y"], NODE), {}, of_x("s", [[0, 1], [1, 1], [3, 2]]), 3),
    "ConstantOfShape": (
        make("ConstantOfShape", ["s"], ["y"], NODE),
        {},
        [{"s": i64(*row)} for row in [(0, 1), (1, 1), (3, 2)]],
        3,
    ),
    "Reshape": (
        make("Reshape", ["x", "s"], ["y"], NODE),
        {},
        of_x("s", [[6, 5], [30, 1], [3, 10], [-1, 10], [15, -1], [0, 5], [0, -1], [-1, 0]]),
        None,
    ),
    "Reshape that keeps a dim": (
        make("Reshape", ["x", "s"], ["y"], NODE),
        {},
        of_x("s", [[3, 2, 5], [0, -1, 1], [1, 0, 6], [-1, 5, 2]]),
        None,
    ),
    "Reshape of any extents, 0 among them": (
        make("Reshape", ["x", "s"], ["y"], NODE, allowzero=1),
        {},
        [{"x": X[:0], "s": i64(*row)} for row in [(0, 5), (0, 1), (-1, 3)]],
        None,
    ),
    "Slice": (
        make("Slice", ["x", "a", "b", "axes"], ["y"], NODE),
        {"axes": i64(0)},
        [{"x": X, "a": i64(a), "b": i64(b)} for a in (0, 2, -2, 9) for b in (0, 3, -1, 100, 2**62)],
        None,
    ),
    "Slice by steps": (
        make("Slice", ["x", "a", "b", "axes", "steps"], ["y"], NODE),
        {"axes": i64(1, 0), "steps": i64(1, 3)},
        [{"x": X, "a": i64(a, 0), "b": i64(b, 4)} for a in (0, 2, -2) for b in (0, 3, -1, 100)],
        None,
    ),
    "Slice backwards": (
        make("Slice", ["x", "a", "b", "axes", "steps"], ["y"], NODE),
        {"axes": i64(1, 0), "steps": i64(-1, -2)},
        [
            {"x": X, "a": i64(a, 9), "b": i64(b, -7)}
            for a in (0, 2, -2, 9)
            for b in (0, 3, -1, -9, 100, -(2**62))
        ],
        None,
    ),
    "Unique of rows": (
        make("Unique", ["x"], ["y", "at", "inverse", "counts"], NODE, axis=0),
        {},
        [{"x": np.float32(rows)} for rows in ([[2, 1], [0, 3], [2, 1], [0, 2]], np.ones((4, 2)))],
        None,
    ),
    "Unique of columns, in order": (
        make("Unique", ["x"], ["y", "at", "inverse", "counts"], NODE, axis=-1, sorted=0),
        {},
        [{"x": np.random.default_rng(seed).integers(0, 2, (2, 2, 7))} for seed in range(4)],
        None,
    ),
    "Pad": (
        make("Pad", ["x", "p"], ["y"], NODE),
        {},
        of_x("p", [[0] * 4, [1, 2, 3, 4], [-1, 0, 0, 2], [4, -2, -3, -3], [-3, -3, -3, 1]]),
        4,
    ),
    "Pad of an axis": (
        make("Pad", ["x", "p", "", "axes"], ["y"], NODE, mode="edge"),
        {"axes": i64(-1)},
        of_x("p", [[0, 1], [-1, 2], [2, -4]]),
        4,
    ),
    "OneHot": (
        make("OneHot", ["x", "d", "v"], ["y"], NODE),
        {"v": np.array([0, 1], np.float32)},
        [{"x": i64(0, 1, 2, -1), "d": i64(n)} for n in (3, 5)],
        8,
    ),
    "Split": (
        make("Split", ["x", "s"], ["y", "z"], NODE),
        {},
        of_x("s", [[n, 6 - n] for n in (0, 2, 6)]),
        None,
    ),
    "Resize": (
        make("Resize", ["x", "", "", "s"], ["y"], NODE, mode="nearest"),
        {},
        [{"x": X[None, None], "s": i64(1, 1, *row)} for row in [(6, 5), (12, 10), (3, 7)]],
        16,
    ),
    **{
        f"Resize, {policy}, {mode}{', antialiased' * antialias}{', inside' * inside}": (
            make(
                "Resize",
                ["x", "", "", "s"],
                ["y"],
                NODE,
                mode=mode,
                antialias=antialias,
                exclude_outside=inside,
                keep_aspect_ratio_policy=policy,
                axes=[2, 3],
            ),
            {},
            [{"x": X[None, None], "s": i64(*row)} for row in [(6, 5), (12, 9), (3, 7), (1, 2)]],
            20,
        )
        for policy in ("stretch", "not_larger", "not_smaller")
        for mode, antialias, inside in RESIZED
        if (policy, mode, antialias, inside) != ("stretch", "nearest", 0, 0)
    },
    **{
        f"Resize by scales, {mode}, {coordinates}{', antialiased' * antialias}": (
            make(
                "Resize",
                ["x", "", "s"],
                ["y"],
                NODE,
                mode=mode,
                antialias=antialias,
                coordinate_transformation_mode=coordinates,
                axes=[3, 2],
            ),
            {},
            [{"x": X[None, None], "s": np.float32(row)} for row in SCALES],
            20,
        )
        for mode, coordinates, antialias in (
            ("nearest", "asymmetric", 0),
            ("linear", "half_pixel", 0),
            ("linear", "half_pixel", 1),
            ("cubic", "pytorch_half_pixel", 0),
        )
    },
}


def model_of(node: Any, constants: Mapping[str, Array], feeds: Mapping[str, Array]) -> Any:
    infos = [
        tensor_info(name, list(a.shape), helper.np_dtype_to_tensor_dtype(a.dtype))
        for name, a in feeds.items()
    ]
    model = graph_model([node], infos, list(node.output), opset=18)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items())
    return model


@pytest.mark.parametrize("name", CASES)
def test_operands_that_the_model_computes(name: str) -> None:
    node, constants, feeds, most = CASES[name]
    model = model_of(node, constants, feeds[0])
    function = import_onnx(model).main
    verify(function)
    bounds = {} if most is None else {NODE: most}
    with aot.load(aot.compile(model, max_extents=bounds)) as program:
        for feed in feeds:
            wanted = ort_run(model, feed)
            for results in (run(function, feed), list(program(feed).values())):
                for found, expected in zip(results, wanted, strict=True):
                    assert found.shape == expected.shape, feed
                    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[3] is not None])
def test_what_nothing_bounds_is_refused_by_name(name: str) -> None:
    node, constants, feeds, _ = CASES[name]
    with pytest.raises(UnsupportedError) as caught:
        aot.compile(model_of(node, constants, feeds[0]), max_default=0)
    for item in caught.value.items:
        assert item == (
            f"{NODE}: it computes an extent that nothing limits; bound it with "
            f"--max '{NODE}'=N (max_extents)"
        )


def program_of(name: str, most: int | None = None) -> Any:
    node, constants, feeds, _ = CASES[name]
    bounds = {} if most is None else {NODE: most}
    return aot.load(aot.compile(model_of(node, constants, feeds[0]), max_extents=bounds))


@pytest.mark.parametrize(
    ("name", "feed", "message"),
    [
        (
            "TopK",
            {"x": X, "k": i64(7)},
            f"{NODE}: operand 1 (k): n0 is 7, expected at most 6; n0 is 7, computed by node "
            f"'{NODE}'",
        ),
        (
            "TopK",
            {"x": X, "k": i64(-1)},
            f"{NODE}: an extent that it computes is -1, expected 0 or more",
        ),
        (
            "Range",
            scalars(np.int64, 0, 17, 1),
            f"an extent that node '{NODE}' computes: n0 is 17, expected at most 16; n0 is 17, "
            f"computed by node '{NODE}'",
        ),
        (
            "Range",
            scalars(np.int64, 0, 1, 0),
            f"{NODE}: an extent that it computes is -1, expected 0 or more",
        ),
        (
            "Expand",
            {"x": X[:1], "s": i64(2, 3)},
            f"{NODE}: an extent that it computes is 3, expected 5",
        ),
        (
            "Reshape",
            {"x": X, "s": i64(-1, -1)},
            f"{NODE}: an extent that it computes is -1, expected 0 or more",
        ),
        (
            "Reshape",
            {"x": X, "s": i64(-2, 15)},
            f"{NODE}: an extent that it computes is -2, expected 0 or more",
        ),
        (
            "Pad",
            {"x": X, "p": i64(-4, 0, -3, 0)},
            f"{NODE}: pads take no more from dim 0 than it has: -n1 - n5 + 6 is -1, expected at "
            f"least 0; n1 is 4, computed by node '{NODE}', n5 is 3, computed by node '{NODE}'",
        ),
        (
            "Pad",
            {"x": X, "p": i64(-7, 0, 8, 0)},
            f"{NODE}: operand 1 (pads): n1 is 7, expected at most 6; n1 is 7, computed by node "
            f"'{NODE}'",
        ),
        (
            "Split",
            {"x": X, "s": i64(3, 4)},
            f"{NODE}: the sizes of parts add up to the whole: n0 + n1 is 7, expected 6; n0 is 3, "
            f"computed by node '{NODE}', n1 is 4, computed by node '{NODE}'",
        ),
    ],
)
def test_bad_extents(name: str, feed: dict[str, Array], message: str) -> None:
    with program_of(name, CASES[name][3]) as program:
        good = CASES[name][2][0]
        before = program(good)
        with pytest.raises(RuntimeFailure) as caught:
            program(feed)
        assert str(caught.value) == message
        for a, b in zip(program(good).values(), before.values(), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_step_of_0() -> None:
    node = make("Slice", ["x", "a", "b", "axes", "steps"], ["y"], NODE)
    constants = {"axes": i64(0), "steps": i64(0)}
    with pytest.raises(aot.CompileError) as caught:
        import_onnx(model_of(node, constants, {"x": X, "a": i64(0), "b": i64(3)}))
    assert str(caught.value) == f"model: Slice (node '{NODE}'): the step of axis 0 is 0"


def test_an_extent_is_not_made_another_one() -> None:
    node = make("Expand", ["x", "s"], ["y"], NODE)
    with pytest.raises(aot.CompileError) as caught:
        import_onnx(model_of(node, {"s": i64(6, 3)}, {"x": X}))
    assert str(caught.value) == (
        f"model: Expand (node '{NODE}'): operand 1 (shape): 3 for a dim of 5"
    )


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("is_sorted", [0, 1])
def test_unique_of_no_elements_of_which_shapes_say_so(axis: int | None, is_sorted: int) -> None:
    which = {} if axis is None else {"axis": axis}
    nodes = [
        make("Sub", ["k", "k"], ["none"]),
        make("TopK", ["x", "none"], ["best", "at"], axis=axis or 0),
        make("Unique", ["best"], ["y", "first", "inverse", "counts"], sorted=is_sorted, **which),
    ]
    infos = [tensor_info("x", [6, 5]), tensor_info("k", [1], I64)]
    model = graph_model(nodes, infos, ["y", "first", "inverse", "counts"], opset=18)
    with aot.load(aot.compile(model)) as program:
        found = list(program({"x": X, "k": i64(2)}).values())
    empty = {None: (0,), 0: (0, 5), 1: (6, 0)}[axis]
    assert [a.shape for a in found] == [empty, (0,), (0,), (0,)]


def test_a_chain_of_nodes() -> None:
    """Rows above a threshold, the best of them by a score, and what is said of their number."""
    nodes = [
        make("Greater", ["s", "least"], ["c"]),
        make("NonZero", ["c"], ["at"], "chosen"),
        make("Transpose", ["at"], ["rows"], perm=[1, 0]),
        make("GatherND", ["x", "rows"], ["boxes"]),
        make("GatherND", ["s", "rows"], ["scores"]),
        make("Shape", ["scores"], ["count"]),
        make("Min", ["count", "three"], ["k"]),
        make("TopK", ["scores", "k"], ["best", "which"]),
        make("Gather", ["boxes", "which"], ["y"]),
        make("Softmax", ["y"], ["p"], axis=-1),
        make("MatMul", ["p", "w"], ["z"]),
    ]
    rng = np.random.default_rng(1)
    constants = {
        "least": np.array(0.5, np.float32),
        "three": i64(3),
        "w": rng.standard_normal((5, 4)).astype(np.float32),
    }
    infos = [tensor_info("x", [6, 5]), tensor_info("s", [6])]
    model = graph_model(nodes, infos, ["z", "best", "count"], opset=18)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items())
    with aot.load(aot.compile(model)) as program:
        for share in (0, 0.2, 0.5, 1):
            scores = rng.permutation(np.linspace(share - 0.5, share + 0.49, 6)).astype(np.float32)
            feed = {"x": X, "s": scores}
            for found, wanted in zip(program(feed).values(), ort_run(model, feed), strict=True):
                assert found.shape == wanted.shape
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [4, 6])
def test_what_a_branch_assumes_is_checked_where_it_runs(rows: int) -> None:
    """Of what is chosen: the first four as two rows where there are more than three, else none."""
    then, other = Body("t_"), Body("e_")
    first = then.op("Slice", "chosen", then.constant([0]), then.constant([rows]))
    pairs = then.op("Reshape", first, then.constant([2, rows // 2]))
    branches = {
        "then_branch": then.graph([], [pairs]),
        "else_branch": other.graph([], [other.op("ConstantOfShape", other.constant([0, 2]))]),
    }
    nodes = [
        make("NonZero", ["x"], ["at"], NODE),
        make("Squeeze", ["at", "axis"], ["row"]),
        make("Gather", ["x", "row"], ["chosen"]),
        make("Size", ["chosen"], ["count"]),
        make("Less", ["three", "count"], ["many"]),
        make("If", ["many"], ["y"], "the choice", **branches),
    ]
    model = graph_model(nodes, [tensor_info("x", [7])], ["y"], opset=18)
    for name, value in (("axis", i64(0)), ("three", np.array(3))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    function = import_onnx(model).main
    verify(function)
    with aot.load(aot.compile(model)) as program:
        for count in (0, 3, 6, 7, 1):
            feed = {"x": np.float32(np.arange(7) > 6 - count)}
            wanted = ort_run(model, feed)[0]
            for found in (run(function, feed)[0], program(feed)["y"]):
                np.testing.assert_array_equal(found, wanted)
        if rows > 4:
            with pytest.raises(RuntimeFailure) as caught:
                program({"x": np.float32([1, 1, 1, 1, 0, 0, 0])})
            assert str(caught.value) == (
                "reshape: the number of elements stays: n1 is 4, expected at least 6; n1 is 4, "
                "computed by node 'the choice'"
            )


def test_rows_of_nothing() -> None:
    """That data choose, where shapes say that there is nothing."""
    nodes = [
        make("Slice", ["x", "zeros", "zeros"], ["none"]),
        make("Range", ["zero", "m", "one"], ["numbers"], "numbers"),
        make("Gather", ["none", "numbers"], ["y"], "rows", axis=0),
    ]
    infos = [tensor_info("x", [6, 5]), tensor_info("m", [], I64)]
    model = graph_model(nodes, infos, ["y"], opset=18)
    for name, value in (("zeros", i64(0)), ("zero", np.array(0)), ("one", np.array(1))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    with aot.load(aot.compile(model, max_extents={"numbers": 4})) as program:
        assert program({"x": X, "m": np.array(0)})["y"].shape == (0, 5)
        with pytest.raises(RuntimeFailure) as caught:
            program({"x": X, "m": np.array(2)})
        assert str(caught.value) == (
            "rows: nothing is taken where there is nothing: n0 is 2, expected 0; n0 is 2, computed "
            "by node 'numbers'"
        )
