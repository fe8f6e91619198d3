"""Segments of an axis: where conditions on its index alone are the same for all of a segment.

A concatenation asks of each element which part it is of, a padding whether it is inside, an average
how many elements are; in a segment that is known. Owns where segments end and what is left of an
expression in one; makes no loops.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace

from aot.ir import expr
from aot.ir.expr import Binary, Const, Expr, Load, Select, Var
from aot.ir.types import DType
from aot.kernels.lower.nest import Output

_COMPARE = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
_CHOICES = ("min", "max")


def ends(values: Iterable[Expr], var: Var, extent: int) -> list[int]:
    """Where segments of an axis end, in order; its extent is the last of them."""
    found: list[int] = []

    def split(values: Sequence[Expr], first: int, end: int) -> None:
        nodes = {node for value in values for node in expr.nodes(value)}
        turns = {turn for node in nodes if (turn := _turn(node, var)) is not None}
        inside = sorted(turn for turn in turns if first < turn < end)
        if not inside:
            found.append(end)
            return
        for last in (*inside, end):
            split([within(value, var, first, last) for value in values], first, last)
            first = last

    split(list(values), 0, extent)
    return found


def within(e: Expr, var: Var, first: int, end: int) -> Expr:
    """What `e` is in the segment from `first` to `end`, exclusive."""
    memo: dict[Expr, Expr] = {}

    def go(x: Expr) -> Expr:
        if x not in memo:
            made = _folded(expr.rebuild(x, go))
            turn = _turn(made, var)
            is_known = turn is not None and not first < turn < end
            memo[x] = _decided(made, first, end - 1) if is_known else made
        return memo[x]

    return go(e)


def output_within(output: Output, var: Var, first: int, end: int) -> Output:
    """The output with all its expressions so."""
    return output.rewritten(lambda e: within(e, var, first, end))


def _turn(e: Expr, var: Var) -> int | None:
    """The index from which on a condition is another than before, or the other side the lesser;
    None where it is no inequality of this index alone."""
    if (
        not isinstance(e, Binary)
        or e.op not in (*_COMPARE, *_CHOICES)
        or e.a.dtype is not DType.INDEX
    ):
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
    is_beyond_at_0 = (e.op not in ("le", "gt")) == (slope > 0)
    root = -start if slope > 0 else start
    return -(-root // abs(slope)) if is_beyond_at_0 else root // abs(slope) + 1


def _decided(e: Expr, first: int, last: int) -> Expr:
    """A condition, or a choice of the lesser or the greater, as it is from one index to another."""
    assert isinstance(e, Binary)
    if e.op not in _CHOICES:
        return expr.const(_COMPARE[e.op](*_sides(e, first)), DType.BOOL)
    a, b = _sides(e, first)
    if a == b:  # where they turn
        a, b = _sides(e, last)
    return e.a if (a <= b) == (e.op == "min") else e.b


def _sides(e: Binary, index: int) -> tuple[int, int]:
    """Both sides of a comparison at an index."""
    (var,) = expr.free_vars(e)
    a, b = (expr.dim_of(expr.substitute(side, {var: expr.index(index)})) for side in (e.a, e.b))
    assert isinstance(a, int) and isinstance(b, int)
    return a, b


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
