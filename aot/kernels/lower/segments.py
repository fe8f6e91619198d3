"""Segments of an axis: where conditions on its index alone are the same for all of a segment.

A concatenation asks of each element which part it is of, a padding whether it is inside; in a
segment that is known. Owns where segments end and what is left of an expression in one; makes no
loops.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from aot.ir import expr
from aot.ir.expr import Binary, Const, Expr, Load, Select, Var
from aot.ir.types import DType

_ORDER = ("lt", "le", "gt", "ge")


def ends(values: Iterable[Expr], var: Var, extent: int) -> list[int]:
    """Where segments of an axis end, in order; its extent is the last of them."""
    found = {extent}
    for value in values:
        for node in expr.nodes(value):
            turn = _turn(node, var)
            if turn is not None and 0 < turn < extent:
                found.add(turn)
    return sorted(found)


def within(e: Expr, var: Var, first: int) -> Expr:
    """What `e` is in the segment that begins at `first`."""
    memo: dict[Expr, Expr] = {}

    def go(x: Expr) -> Expr:
        if x not in memo:
            turn = _turn(x, var)
            memo[x] = _folded(expr.rebuild(x, go)) if turn is None else _decided(x, turn, first)
        return memo[x]

    return go(e)


def _turn(e: Expr, var: Var) -> int | None:
    """The index from which on a condition is another than before; None where it is no inequality
    of this index alone."""
    if not isinstance(e, Binary) or e.op not in _ORDER or e.a.dtype is not DType.INDEX:
        return None
    if expr.free_vars(e) != {var} or expr.loads(e):
        return None
    by = [expr.coefficient(side, var) for side in (e.a, e.b)]
    at_0 = [expr.dim_of(expr.substitute(side, {var: expr.index(0)})) for side in (e.a, e.b)]
    if not all(isinstance(n, int) for n in (*by, *at_0)):
        return None
    slope, start = by[0] - by[1], at_0[0] - at_0[1]  # type: ignore[operator]
    if not isinstance(slope, int) or not isinstance(start, int) or slope == 0:
        return None
    # slope * index + start is compared with 0: the first index at which it is 0 or beyond, and, of
    # a comparison that holds at 0, or doesn't, as what is before, beyond
    is_beyond_at_0 = (e.op in ("lt", "ge")) == (slope > 0)
    root = -start if slope > 0 else start
    return -(-root // abs(slope)) if is_beyond_at_0 else root // abs(slope) + 1


def _decided(e: Expr, turn: int, index: int) -> Expr:
    """A condition that turns at `turn`, at an index."""
    assert isinstance(e, Binary)
    slope = expr.coefficient(e.a, _var_of(e)), expr.coefficient(e.b, _var_of(e))
    is_rising = slope[0] > slope[1]  # type: ignore[operator]
    is_less = e.op in ("lt", "le")
    return expr.const((index < turn) == (is_less == is_rising), DType.BOOL)


def _var_of(e: Expr) -> Var:
    (var,) = expr.free_vars(e)
    return var


def _folded(e: Expr) -> Expr:
    """`e` without conditions that are constants."""
    if isinstance(e, Select) and isinstance(e.condition, Const):
        return e.a if e.condition.value else e.b
    if isinstance(e, Load) and isinstance(e.guard, Const):
        if e.guard.value:
            return replace(e, guard=None, other=None)
        assert e.other is not None
        return e.other
    if isinstance(e, Binary) and e.op in ("and", "or") and e.dtype is DType.BOOL:
        for known, other in ((e.a, e.b), (e.b, e.a)):
            if isinstance(known, Const):
                return other if bool(known.value) == (e.op == "and") else known
    return e
