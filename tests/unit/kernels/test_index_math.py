"""Divisions of indices that ranges decide, against their values at every index."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.ir import expr
from aot.ir.dims import Dim, symbol
from aot.ir.expr import Binary, Expr, Load, Var
from aot.ir.types import DType
from aot.kernels.nest.index_math import simplify
from aot.ops.contraction import inside

ROW, COLUMN, DEPTH = Var("i"), Var("j"), Var("k")
MEMORY = 0


def value(e: Expr, at: dict[Var, int]) -> int:
    """An index expression's value."""
    known = expr.dim_of(expr.substitute(e, {v: expr.index(n) for v, n in at.items()}))
    if known is not None:
        assert isinstance(known, int)
        return known
    assert isinstance(e, Binary)
    a, b = value(e.a, at), value(e.b, at)
    return {"add": a + b, "sub": a - b, "mul": a * b, "floordiv": a // b, "floormod": a % b}[e.op]


def linear(i: int, j: int, k: int, constant: int) -> Expr:
    total = expr.index(constant)
    for var, factor in ((ROW, i), (COLUMN, j), (DEPTH, k)):
        total = expr.add(total, expr.mul(var, expr.index(factor)))
    return total


@st.composite
def divisions(draw: st.DrawFn) -> tuple[Expr, dict[Var, int]]:
    extents = {v: draw(st.integers(1, 5)) for v in (ROW, COLUMN, DEPTH)}
    factors = [draw(st.sampled_from([0, 1, 2, 3, 4, 6, 12, -2])) for _ in range(3)]
    e = linear(factors[0], factors[1], factors[2], draw(st.integers(-5, 9)))
    for _ in range(draw(st.integers(1, 3))):
        op = draw(st.sampled_from(["floordiv", "floormod"]))
        e = expr.binary(op, e, expr.index(draw(st.integers(1, 6))))
        e = expr.add(expr.mul(e, expr.index(draw(st.integers(1, 4)))), COLUMN)
    return e, extents


@given(divisions())
def test_values_stay(case: tuple[Expr, dict[Var, int]]) -> None:
    e, extents = case
    made = simplify(e, dict(extents))
    for at in product(*(range(n) for n in extents.values())):
        where = dict(zip(extents, at, strict=True))
        assert value(made, where) == value(e, where)


@given(divisions(), st.integers(1, 7), st.integers(-3, 3), st.integers(-9, 9))
def test_quotients_and_remainders_join(
    case: tuple[Expr, dict[Var, int]], size: int, factor: int, constant: int
) -> None:
    inner, extents = case
    n = expr.index(size)
    whole = expr.mul(expr.binary("floordiv", inner, n), expr.index(size * factor))
    part = expr.mul(expr.binary("floormod", inner, n), expr.index(factor))
    e = expr.add(expr.add(whole, expr.index(constant)), expr.add(part, DEPTH))
    made = simplify(e, dict(extents))
    for at in product(*(range(n) for n in extents.values())):
        where = dict(zip(extents, at, strict=True))
        assert value(made, where) == value(e, where)


def test_what_is_taken_apart_and_put_together_is_whole() -> None:
    """By a size that only the device knows, too."""
    for size in (7, symbol("d0")):
        n = expr.index(size)
        x = linear(64, 8, 1, 3)
        parts = [expr.binary(op, x, n) for op in ("floordiv", "floormod")]
        e = expr.add(expr.mul(parts[0], n), parts[1])
        assert not has_division(simplify(e, {}))


def has_division(e: Expr) -> bool:
    return any(isinstance(n, Binary) and n.op in ("floordiv", "floormod") for n in expr.nodes(e))


N = symbol("n")


@pytest.mark.parametrize(
    ("extents", "divisor"),
    [({ROW: 7, COLUMN: 2}, 2), ({ROW: 7, COLUMN: N}, N), ({ROW: N, COLUMN: 6}, 6)],
)
def test_what_was_put_together_is_taken_apart(extents: dict[Var, Dim], divisor: Dim) -> None:
    whole = expr.add(expr.mul(ROW, expr.index(divisor)), COLUMN)
    assert simplify(expr.binary("floordiv", whole, expr.index(divisor)), extents) is ROW
    assert simplify(expr.binary("floormod", whole, expr.index(divisor)), extents) is COLUMN


@pytest.mark.parametrize(("extent", "divisor"), [(3, 2), (N, 2), (1, N)])
def test_what_may_carry_stays(extent: Dim, divisor: Dim) -> None:
    """An index below 1 is below n only if n isn't 0, which nothing says."""
    whole = expr.add(expr.mul(ROW, expr.index(divisor)), COLUMN)
    made = simplify(expr.binary("floormod", whole, expr.index(divisor)), {ROW: 4, COLUMN: extent})
    assert has_division(made)


def test_a_whole_part_comes_out() -> None:
    whole = expr.add(expr.mul(ROW, expr.index(6)), COLUMN)
    made = simplify(expr.binary("floormod", whole, expr.index(3)), {ROW: 4, COLUMN: 5})
    assert isinstance(made, Binary)
    assert made.op == "floormod"
    assert made.a is COLUMN


@given(divisions(), st.integers(-9, 9), st.integers(-9, 9))
def test_guards_that_always_hold_are_gone(
    case: tuple[Expr, dict[Var, int]], low: int, high: int
) -> None:
    """A guard is left where it fails anywhere, and as it was."""
    e, extents = case
    conditions = [expr.binary("ge", e, expr.index(low)), expr.binary("lt", e, expr.index(high))]
    guard, zero = expr.all_of(conditions), expr.const(0, DType.F32)
    made = simplify(Load(MEMORY, (COLUMN,), DType.F32, guard, zero), dict(extents))
    assert isinstance(made, Load)
    values = [
        value(e, dict(zip(extents, at, strict=True)))
        for at in product(*(range(n) for n in extents.values()))
    ]
    if made.guard is None:
        assert all(low <= v < high for v in values)
        assert made.other is None
    else:
        assert len(list(expr.conditions_of(made.guard))) == 2


def test_a_guard_of_quotients_is_gone() -> None:
    """What a transposed convolution asks of its phases: (i + 1) // 2 of 7 is below 4."""
    half = expr.binary("floordiv", expr.add(ROW, expr.index(1)), expr.index(2))

    def guard_of(size: int) -> Expr | None:
        asked = expr.all_of(inside(half, size))
        made = simplify(Load(MEMORY, (half,), DType.F32, asked, expr.const(0, DType.F32)), {ROW: 7})
        assert isinstance(made, Load)
        return made.guard

    assert guard_of(4) is None
    assert guard_of(3) is not None
