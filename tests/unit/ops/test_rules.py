"""Shape rules on unknown dims, and the exact message of each constraint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.builder import parse_type
from aot.errors import CompileError
from aot.ir.graph import ConstantData
from aot.ir.record import Call
from aot.ir.types import DType, Layout
from aot.ops import REGISTRY, lookup

WINDOW = {"strides": (2, 2), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
POOL = {**WINDOW, "kernel": (3, 3)}
DATA = ConstantData(np.zeros(2, np.float32))


def call(op: str, *types: str | None, **attrs: Any) -> Call:
    return lookup(op).call([None if t is None else parse_type(t) for t in types], attrs, "node")


RULES = [
    (call("conv", "f32[N, 3, H, 7]", "f32[8, 3, 3, 3]", **WINDOW), "f32[N, 8, (H + 1)//2, 4]"),
    (
        call(
            "conv",
            "f32[N, 3, H, W]",
            "f32[8, 3, 2, 2]",
            strides=(2, 2),
            dilations=(1, 1),
            pads=(0, 0, 0, 0),
        ),
        "f32[N, 8, H//2, W//2]",
    ),
    (call("matmul", "f32[B, 1, M, K]", "f32[H, K, 4]"), "f32[B, H, M, 4]"),
    (call("max_pool", "f32[N, 3, H, W]", **POOL), "f32[N, 3, (H + 1)//2, (W + 1)//2]"),
    (
        call(
            "max_pool",
            "f32[1, 3, H, 8]",
            kernel=(2, 2),
            strides=(2, 2),
            dilations=(1, 1),
            pads=(0, 0, 0, 0),
            ceil_mode=True,
        ),
        "f32[1, 3, (H + 1)//2, 4]",
    ),
    (call("reduce_sum", "f32[N, H, W]", axes=(1, 2), keepdims=False), "f32[N]"),
    (call("softmax", "f32[N, H]", axis=1), "f32[N, H]"),
    (call("layer_norm", "f32[N, T, 8]", "f32[8]", "f32[8]", axis=2), "f32[N, T, 8]"),
    (call("reshape", "f32[N, 4, H]", shape=parse_type("f32[2*N, 2*H]").dims), "f32[2*N, 2*H]"),
    (call("transpose", "f32[N, 4, H]", perm=(2, 0, 1)), "f32[H, N, 4]"),
    (call("broadcast_to", "f32[1, H]", shape=parse_type("f32[N, 3, H]").dims), "f32[N, 3, H]"),
    (call("spread", "f32[1, H]", shape=parse_type("f32[3, N, H]").dims), "f32[3, N, H]"),
    (
        call(
            "slice",
            "f32[N, H]",
            starts=parse_type("f32[0, min(H, 2)]").dims,
            stops=parse_type("f32[N, H]").dims,
            steps=(1, 2),
        ),
        "f32[N, (max(H - 2, 0) + 1)//2]",
    ),
    (call("slice", "f32[9]", starts=(7,), stops=(-1,), steps=(-3,)), "f32[3]"),
    (call("concat", "f32[N, 3]", "f32[4, 3]", "f32[N, 3]", axis=0), "f32[2*N + 4, 3]"),
    (call("pad", "f32[N, H]", pads=parse_type("f32[1, 0, 0, N]").dims), "f32[N + 1, H + N]"),
    (call("gather", "f32[V, 8]", "i64[N, T]", axis=0), "f32[N, T, 8]"),
    (call("shape_of", "f32[N, H]"), "i64[2]"),
    (call("range", size=parse_type("f32[N + 1]").dims[0], dtype=DType.I32), "i32[N + 1]"),
    (call("pack", "f32[N, 5]", layout=Layout(splits=((1, 4),))), "f32[N, 5]{splits=1/4}"),
    (
        call("lstm", "f32[T, N, 5]", "f32[1, 16, 5]", "f32[1, 16, 4]", hidden_size=4),
        "f32[T, 1, N, 4] f32[1, N, 4] f32[1, N, 4]",
    ),
    (
        call(
            "gru",
            "f32[T, N, 5]",
            "f32[2, 12, 5]",
            "f32[2, 12, 4]",
            hidden_size=4,
            direction="bidirectional",
        ),
        "f32[T, 2, N, 4] f32[2, N, 4]",
    ),
    (
        call(
            "rnn",
            "f16[T, N, 5]",
            "f16[1, 4, 5]",
            "f16[1, 4, 4]",
            hidden_size=4,
            activations="affine(2.0, 0.5)",
        ),
        "f16[T, 1, N, 4] f16[1, N, 4]",
    ),
]


@pytest.mark.parametrize(("made", "expected"), RULES, ids=lambda v: getattr(v, "record", v))
def test_shape_rule(made: Call, expected: str) -> None:
    assert " ".join(map(str, made.result_types)) == expected
    assert not made.assumptions


def test_dims_that_may_differ_are_assumed_equal() -> None:
    made = call("matmul", "f32[A, K]", "f32[5, B]")
    assert [(str(a.left), str(a.right), a.reason) for a in made.assumptions] == [
        ("K", "5", "matmul: columns of a are rows of b")
    ]
    made = call("concat", "f32[N, 3]", "f32[7, M]", axis=0)
    assert [str(t) for t in made.result_types] == ["f32[N + 7, 3]"]
    assert [(str(a.left), str(a.right)) for a in made.assumptions] == [("3", "M")]


MESSAGES = [
    (
        "conv",
        ["f32[1, 3, 5]", "f32[2, 3, 3, 3]"],
        WINDOW,
        "constraint 1: x and w have one rank, 3, 4 or 5",
    ),
    (
        "conv",
        ["f32[1, 3, 5, 5]", "f32[2, 3, 3, 3]"],
        {**WINDOW, "strides": (0, 1)},
        "constraint 2: strides and dilations have one positive number a spatial dim, pads two that "
        "are not negative, all begins before all ends",
    ),
    (
        "conv",
        ["f32[1, 4, 5, 5]", "f32[3, 2, 3, 3]"],
        {**WINDOW, "group": 2},
        "constraint 3: group is positive and divides the number of filters",
    ),
    (
        "conv",
        ["f32[1, 3, 5, 5]", "f32[2, 4, 3, 3]"],
        WINDOW,
        "constraint 4: x has group times as many channels as w",
    ),
    (
        "conv",
        ["f32[1, 3, 5, 5]", "f32[2, 3, 3, 3]", "f32[3]"],
        WINDOW,
        "constraint 5: bias is one number a filter",
    ),
    ("matmul", ["f32[3]", "f32[3, 4]"], {}, "constraint 1: a and b have at least two dims"),
    ("matmul", ["f32[3, 4]", "f32[3, 4]"], {}, "constraint 2: a has as many columns as b has rows"),
    ("max_pool", ["f32[1, 3]"], POOL, "constraint 1: x has rank 3, 4 or 5"),
    (
        "max_pool",
        ["f32[1, 3, 5, 5]"],
        {**POOL, "kernel": (3,)},
        "constraint 2: kernel has one positive number a spatial dim",
    ),
    (
        "average_pool",
        ["f32[1, 3, 5, 5]"],
        {**POOL, "pads": (3, 0, 0, 0)},
        "constraint 4: pads are smaller than the kernel's span",
    ),
    (
        "reduce_sum",
        ["f32[2, 3]"],
        {"axes": (1, 0)},
        "constraint 1: axes are sorted, distinct dims of x",
    ),
    ("softmax", ["f32[2, 3]"], {"axis": -1}, "constraint 1: axis is a dim of x, not negative"),
    (
        "layer_norm",
        ["f32[2, 3]", "f32[2]"],
        {"axis": 1},
        "constraint 2: scale has the dims of x from axis on",
    ),
    ("reshape", ["f32[2, 3]"], {"shape": (4,)}, "constraint 1: shape has as many elements as x"),
    (
        "transpose",
        ["f32[2, 3]"],
        {"perm": (0, 0)},
        "constraint 1: perm is a permutation of x's dims",
    ),
    (
        "broadcast_to",
        ["f32[2, 3]"],
        {"shape": (2, 4)},
        "constraint 1: x broadcasts to shape as in numpy",
    ),
    ("spread", ["f32[2]"], {"shape": (4,)}, "constraint 1: dims of x are 1 or those of shape"),
    (
        "slice",
        ["f32[5]"],
        {"starts": (0, 0), "stops": (5,), "steps": (1,)},
        "constraint 1: starts, stops and steps have one item a dim of x, and no step is 0",
    ),
    (
        "slice",
        ["f32[5]"],
        {"starts": (-2,), "stops": (5,), "steps": (1,)},
        "constraint 2: starts and stops are positions in x, not counted from the end",
    ),
    (
        "slice",
        ["f32[5]"],
        {"starts": (0,), "stops": (6,), "steps": (1,)},
        "constraint 2: starts and stops are positions in x, not counted from the end",
    ),
    (
        "pad",
        ["f32[5]"],
        {"pads": (-1, 0)},
        "constraint 1: pads has two counts a dim of x, none negative",
    ),
    (
        "pad",
        ["f32[5]"],
        {"pads": (5, 0), "mode": "reflect"},
        "constraint 2: mode is constant, reflect, edge or wrap, and reflect and wrap have the "
        "elements they repeat",
    ),
    (
        "concat",
        ["f32[5, 2]", "f32[5, 3]"],
        {"axis": 0},
        "constraint 2: operands have one rank, and equal dims except along axis",
    ),
    ("gather", ["f32[0, 2]", "i64[3]"], {"axis": 0}, "constraint 2: data has elements along axis"),
    ("range", [], {"size": 3, "dtype": DType.F32}, "constraint 1: dtype is i32 or i64"),
    ("fill", [], {"shape": (2,), "value": DATA}, "constraint 1: value is a scalar"),
    (
        "pack",
        ["f32[4, 4]"],
        {"layout": Layout(order=(0, 0))},
        "constraint 1: layout splits each dim of x at most once, by a positive factor, orders all "
        "physical dims, and has no strides",
    ),
    (
        "gather_elements",
        ["f32[3, 2]", "i64[4, 1]"],
        {"axis": 1},
        "constraint 2: indices has data's rank, and no more elements along any dim but axis",
    ),
    (
        "gather_elements",
        ["f32[3, 0]", "i64[3, 1]"],
        {"axis": 1},
        "constraint 3: data has elements along axis",
    ),
    (
        "gather_nd",
        ["f32[3, 2]", "i64[4, 3]"],
        {"depth": 3},
        "constraint 1: the last dim of indices is depth, and data has depth dims after batch_dims",
    ),
    (
        "gather_nd",
        ["f32[3, 2]", "i64[4, 1]"],
        {"depth": 1, "batch_dims": 1},
        "constraint 2: data and indices agree in the first batch_dims dims",
    ),
    ("trilu", ["f32[3]"], {}, "constraint 1: x has at least two dims"),
    ("arg_max", ["f32[3]"], {"axis": 0, "dtype": DType.F32}, "constraint 2: dtype is i64 or i32"),
    ("arg_min", ["f32[3, 0]"], {"axis": 1}, "constraint 3: x has elements along axis"),
    (
        "col2im",
        ["f32[1, 2, 3, 4]"],
        {"image": (6, 6), "strides": (1,), "dilations": (1,), "begins": (0,)},
        "constraint 2: image, strides, dilations and begins have one item a spatial dim; strides "
        "and dilations are positive, begins not negative",
    ),
    (
        "resample",
        ["f32[3, 4]", "i64[2, 5]", "f32[2, 6]"],
        {"axis": 1},
        "constraint 2: positions and weights are [taps, result's extent]",
    ),
    (
        "grid_sample",
        ["f32[1, 2, 4, 4]", "f32[1, 3, 3, 3]"],
        {},
        "constraint 1: x is [N, C, 1 to 3 spatial dims] and grid [N, out..., one number a spatial "
        "dim]",
    ),
    (
        "grid_sample",
        ["f32[1, 2, 4, 4]", "f32[1, 3, 3, 2]"],
        {"mode": "area"},
        "constraint 2: mode is nearest, linear or cubic",
    ),
    ("scan", ["f32[3]"], {"axis": 0, "combine": "max"}, "constraint 2: combine is sum or prod"),
    (
        "scatter_elements",
        ["bool[3]", "i64[2]", "bool[2]"],
        {"axis": 0, "reduction": "add"},
        "constraint 2: reduction is none, or add, mul, max or min of numbers",
    ),
    (
        "scatter_elements",
        ["f32[3]", "i64[2]", "f32[1]"],
        {"axis": 0},
        "constraint 4: updates has the dims of indices",
    ),
    (
        "scatter_nd",
        ["f32[3, 4]", "i64[2, 1]", "f32[2]"],
        {"depth": 1},
        "constraint 3: updates has the dims of indices but the last, then data's after depth",
    ),
    (
        "top_k",
        ["f32[3]"],
        {"axis": 0, "k": 4},
        "constraint 3: k is not negative and at most x's extent along axis",
    ),
    ("bitcast", ["f32[3]"], {"to": DType.I64}, "constraint 1: to is a number type as wide as x's"),
    (
        "lstm",
        ["f32[3, 2, 5]", "f32[1, 16, 4]", "f32[1, 16, 4]"],
        {"hidden_size": 4},
        "constraint 4: w is [directions, 4 * hidden_size, features]",
    ),
    (
        "gru",
        ["f32[3, 2, 5]", None, "f32[1, 12, 4]"],
        {"hidden_size": 4},
        "constraint 11: without w, x is [steps, batch, directions * 3 * hidden_size]",
    ),
    (
        "rnn",
        ["f32[3, 2, 5]", "f32[1, 4, 5]", "f32[1, 4, 4]"],
        {"hidden_size": 4, "activations": "tanh; tanh"},
        "constraint 9: activations are 1 known ones with their numbers",
    ),
    (
        "rnn",
        ["f32[3, 2, 5]", "f32[1, 4, 5]", "f32[1, 4, 4]"],
        {"hidden_size": 4, "activations": "swish"},
        "constraint 9: activations are 1 known ones with their numbers",
    ),
    (
        "rnn",
        ["f32[3, 2, 5]", "f32[1, 4, 5]", "f32[1, 4, 4]"],
        {"hidden_size": 4, "activations": "affine(1.0)"},
        "constraint 9: activations are 1 known ones with their numbers",
    ),
    (
        "rnn",
        ["f32[3, 2, 5]", "f32[1, 4, 5]", "f32[1, 4, 4]"],
        {"hidden_size": 4, "activations": "affine(a, b)"},
        "constraint 9: activations are 1 known ones with their numbers",
    ),
    (
        "rnn",
        ["f32[3, 2, 5]", "f32[1, 4, 5]", "f32[1, 4, 4]"],
        {"hidden_size": 4, "activations": "tanh)"},
        "constraint 9: activations are 1 known ones with their numbers",
    ),
]


@pytest.mark.parametrize(("op", "types", "attrs", "text"), MESSAGES)
def test_constraint(op: str, types: list[str | None], attrs: dict[str, Any], text: str) -> None:
    with pytest.raises(CompileError) as caught:
        call(op, *types, **attrs)
    found = ", ".join(t or "none" for t in types)
    assert str(caught.value) == f"{op} (node 'node'): {text}; found operands ({found})"


def test_kernel_larger_than_its_input() -> None:
    with pytest.raises(
        CompileError,
        match="the kernel of 3 does not fit into spatial dim 0, "
        r"which is 1 with padding 0 \+ 1",
    ):
        call("conv", "f32[1, 3, 1, 5]", "f32[2, 3, 3, 3]", **{**WINDOW, "pads": (0, 1, 1, 1)})


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_constraint_reads_as_a_sentence(name: str) -> None:
    for constraint in REGISTRY[name].constraints:
        assert constraint.text == constraint.text.strip()
        assert constraint.text[0].islower()
        assert not constraint.text.endswith(".")


def test_extrema_of_nothing_are_what_any_element_beats() -> None:
    for name, dtype, wanted in (
        ("reduce_max", "f32", -np.inf),
        ("reduce_min", "f32", np.inf),
        ("reduce_max", "i32", -(2**31)),
        ("reduce_min", "u8", 255),
    ):
        made = call(name, f"{dtype}[2, 0]", axes=(1,), keepdims=False)
        assert made.record.reference is not None
        empty = np.zeros((2, 0), made.operand(0).dtype.numpy)
        (result,) = made.record.reference(made, [empty])
        assert result.tolist() == [wanted, wanted]


def test_references_with_nothing_to_reduce() -> None:
    made = call("reduce_sum", "f32[2, 0]", axes=(1,), keepdims=False)
    assert made.record.reference is not None
    (result,) = made.record.reference(made, [np.zeros((2, 0), np.float32)])
    np.testing.assert_array_equal(result, np.zeros(2, np.float32))


def test_gather_clamps_what_is_outside() -> None:
    made = call("gather", "f32[3]", "i64[6]", axis=0)
    assert made.record.reference is not None
    data = np.array([10, 11, 12], np.float32)
    (result,) = made.record.reference(made, [data, np.array([-9, -3, -1, 0, 2, 9])])
    np.testing.assert_array_equal(result, np.array([10, 10, 12, 10, 12, 12], np.float32))


def test_exact_sums_do_not_depend_on_memory_order() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((257, 31)).astype(np.float32) * 1e4
    made = call("reduce_sum", "f32[257, 31]", axes=(0,), keepdims=False)
    made.is_exact = True
    assert made.record.reference is not None
    (first,) = made.record.reference(made, [x])
    (second,) = made.record.reference(made, [np.asfortranarray(x)])
    total = np.zeros(31)
    for row in x.astype(np.float64):
        total = total + row
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, total.astype(np.float32))
