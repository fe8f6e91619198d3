"""What shape arithmetic in a graph comes to, as dims."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aot.analysis.dim_values import DimValues
from aot.builder import Builder
from aot.ir import dim_semantics as ds
from aot.ir.dim_parser import parse
from aot.ir.dim_semantics import UndecidedError
from aot.ir.dims import Dim
from aot.ir.graph import Function, Value


def values_of(builder: Builder, value: Value) -> list[object] | None:
    builder.output("y", value)
    found = DimValues(_main(builder)).of(value)
    return None if found is None else [v if isinstance(v, bool) else str(v) for v in found.flat]


def _main(builder: Builder) -> Function:
    return builder.module().main


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_what_reshape_and_expand_are_given_by_exporters() -> None:
    b = Builder()
    x = b.input("x", "f32[N, 3, H]")
    shape = b.op("shape_of", x)
    first = b.op("gather", shape, ints(0), axis=0)
    last = b.op("gather", shape, ints(-1), axis=0)
    both = b.op("concat", first, b.op("mul", last, ints(2)), ints(-1), axis=0)
    assert values_of(b, both) == ["N", "2*H", "-1"]


def test_every_op_that_takes_dims() -> None:
    b = Builder()
    s = b.op("shape_of", b.input("x", "f32[N, 4, 2*H]"))
    summed = b.op("reduce_sum", s, axes=(0,), keepdims=True)
    product = b.op(
        "reduce_prod",
        b.op("slice", s, starts=(2,), stops=(-1,), steps=(-1,)),
        axes=(0,),
        keepdims=True,
    )
    largest = b.op("reduce_max", s, axes=(0,), keepdims=True)
    half = b.op("div", b.op("sub", s, ints(0)), ints(2))
    padded = b.op("pad", b.op("cast", b.op("cast", s, to="i32"), to="i64"), pads=(1, 0), value=7)
    spread = b.op("broadcast_to", b.op("reshape", b.op("neg", summed), shape=(1, 1)), shape=(2, 1))
    flat = b.op("reshape", b.op("transpose", spread, perm=(1, 0)), shape=(2,))
    small = b.op("minimum", s, ints(5))
    large = b.op("maximum", s, ints(5))
    every = b.op("concat", summed, product, largest, half, padded, flat, small, large, axis=0)
    assert values_of(b, every) == [
        "2*H + N + 4",
        "8*H*N",
        "max(2*H, N, 4)",
        "N//2",
        "2",
        "H",
        "7",
        "N",
        "4",
        "2*H",
        "-2*H - N - 4",
        "-2*H - N - 4",
        "min(N, 5)",
        "4",
        "min(2*H, 5)",
        "max(N, 5)",
        "5",
        "max(2*H, 5)",
    ]


def test_comparisons_that_hold_for_all_symbols() -> None:
    b = Builder()
    s = b.op("shape_of", b.input("x", "f32[N, N + 2]"))
    chosen = b.op("where", b.op("equal", s, ints(-1)), ints(1, 1), s)
    assert values_of(b, chosen) == ["N", "N + 2"]
    b = Builder()
    s = b.op("shape_of", b.input("x", "f32[N, N + 2]"))
    assert values_of(
        b,
        b.op(
            "less",
            b.op("slice", s, starts=(0,), stops=(1,), steps=(1,)),
            b.op("slice", s, starts=(1,), stops=(2,), steps=(1,)),
        ),
    ) == [True]


def test_what_depends_on_symbols_or_data_is_not_known() -> None:
    b = Builder()
    x = b.input("x", "f32[N, 4]")
    k = b.input("k", "i64[2]")
    s = b.op("shape_of", x)
    unknown = [
        b.op("equal", s, ints(3)),
        k,
        b.op("add", k, s),
        b.op("where", b.op("less", s, ints(9)), s, s),
        b.op("gather", s, b.op("gather", s, ints(0), axis=0), axis=0),
        b.op("cast", b.op("cast", s, to="f16"), to="i64"),
        b.op("cast", b.op("sqrt", b.op("cast", s, to="f32")), to="i64"),
        b.op("relu", s),
        x,
    ]
    for number, value in enumerate(unknown):
        b.output(f"y{number}", value)
    found = DimValues(_main(b))
    assert [found.of(value) for value in unknown] == [None] * len(unknown)


def test_numbers_are_exact_in_their_dtype() -> None:
    b = Builder()
    a = b.constant(np.array([250, 7], np.uint8))
    assert values_of(b, b.op("add", a, np.array([10, 1], np.uint8))) == ["4", "8"]
    b = Builder()
    s = b.op("shape_of", b.input("x", "f32[5, 7]"))
    scaled = b.op("mul", b.op("cast", s, to="f32"), np.array([0.5], np.float32))
    assert values_of(b, b.op("cast", b.op("floor", scaled), to="i64")) == ["2", "3"]


def test_range_and_fill() -> None:
    b = Builder()
    counted = b.op("range", size=3, start=parse("N"), step=2)
    assert values_of(b, counted) == ["N", "N + 2", "N + 4"]
    b = Builder()
    assert values_of(b, b.op("range", size=parse("N"))) is None


def test_large_tensors_are_data() -> None:
    b = Builder()
    large = b.op("range", size=DimValues.MAX_ELEMENTS + 1)
    assert values_of(b, b.op("slice", large, starts=(0,), stops=(1,), steps=(1,))) is None


def test_long_chains_and_diamonds_are_found_once() -> None:
    b = Builder()
    s = b.op("shape_of", b.input("x", "f32[N]"))
    for _ in range(5000):
        s = b.op("minimum", s, s)
    assert values_of(b, s) == ["N"]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (7, 2, 3),
        (-7, 2, -3),
        (7, -2, -3),
        (-7, -2, 3),
        (7, 0, 0),
        ("2*N + 4", 2, "N + 2"),
        ("N", 3, "N//3"),
        ("N", "M + 1", "N//(M + 1)"),
        ("N - 5", 3, None),
        ("N", "M", None),
        ("N", -3, None),
    ],
)
def test_division_truncates_as_integers_do(
    a: int | str, b: int | str, expected: int | str | None
) -> None:
    left, right = (parse(v) if isinstance(v, str) else v for v in (a, b))
    if expected is None:
        with pytest.raises(UndecidedError):
            ds.divide(left, right)
    else:
        assert str(ds.divide(left, right)) == str(expected)


@pytest.mark.parametrize(
    ("compare", "a", "b", "expected"),
    [
        (ds.is_equal, "N", "N", True),
        (ds.is_equal, "N + 1", "N", False),
        (ds.is_equal, "N", "0", None),
        (ds.is_equal, "N", "-1", False),
        (ds.is_equal, "N", "M", None),
        (ds.is_less, "N", "N + 1", True),
        (ds.is_less, "N", "N", False),
        (ds.is_less, "N", "0", False),
        (ds.is_less, "0", "N", None),
        (ds.is_less_equal, "0", "N", True),
        (ds.is_less_equal, "N", "0", None),
        (ds.is_less_equal, "N + 1", "N", False),
    ],
)
def test_comparisons_are_decided_only_where_they_hold_for_all(
    compare: Callable[[Dim, Dim], bool], a: str, b: str, expected: bool | None
) -> None:
    if expected is None:
        with pytest.raises(UndecidedError):
            compare(parse(a), parse(b))
    else:
        assert compare(parse(a), parse(b)) is expected
