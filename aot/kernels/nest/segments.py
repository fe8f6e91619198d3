"""Splits an axis into segments within which all conditions on its index are constant.

A concatenation asks of each element which part it is of, a padding whether it is inside, an average
how many elements are; in a segment that is known. Owns where segments end and what is left of an
expression in one; makes no loops.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace

from aot.ir import expr
from aot.ir.expr import Binary, Const, Expr, Load, Select, Unary, Var
from aot.ir.types import DType
from aot.kernels.nest.nest import Output

_COMPARE = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
_CHOICES = ("min", "max")
# times that an index may go through what it is the remainder of, each a segment
MOST_TIMES = 4


def ends(values: Iterable[Expr], var: Var, extent: int, most: int | None = None) -> list[int]:
    """Ends of an axis's segments, ascending, the last one its extent. Once there are `most` of
    them, segments are split no further, as finding each end walks all values.
    """
    found: list[int] = []

    def split(values: Sequence[Expr], first: int, end: int) -> None:
        # what is known in all of it leaves others linear, which may turn then
        values = [within(value, var, first, end) for value in values]
        nodes = {node for value in values for node in expr.nodes(value)}
        turns = {turn for node in nodes for turn in _turns(node, var, first, end)}
        inside = sorted(turn for turn in turns if first < turn < end)
        if not inside:
            found.append(end)
            return
        if most is not None and len(found) + len(inside) >= most:
            found.extend((*inside, end))
            return
        for last in (*inside, end):
            split(values, first, last)
            first = last

    split(list(values), 0, extent)
    return found


def within(e: Expr, var: Var, first: int, end: int) -> Expr:
    """`e` simplified for the indices of one segment, from `first` to below `end`."""
    memo: dict[Expr, Expr] = {}

    def go(x: Expr) -> Expr:
        if x not in memo:
            made = _folded(expr.rebuild(x, go))
            turn = _turn(made, var)
            if turn is not None:
                is_known = not first < turn < end
                made = _decided(made, first, end - 1) if is_known else made
            else:
                made = _unfolded(made, var, first, end - 1)
            memo[x] = made
        return memo[x]

    return go(e)


def output_within(output: Output, var: Var, first: int, end: int) -> Output:
    """The output with all its expressions simplified for a segment, by `within`."""
    return output.rewritten(lambda e: within(e, var, first, end))


def _turns(e: Expr, var: Var, first: int, end: int) -> list[int]:
    """The indices in a segment at which an expression changes its form: where a condition flips, a
    mirrored index turns, or a remainder wraps."""
    turn = _turn(e, var)
    if turn is not None:
        return [turn]
    line = _line(e.a, var) if isinstance(e, Unary | Binary) else None
    if line is None:
        return []
    slope, start = line
    if _is_mirrored(e):
        return [start // -slope + 1 if slope < 0 else -(start // slope)]
    size = _size(e)
    if size is None or slope != 1:
        return []
    least, most = (start + first) // size, (start + end - 1) // size
    if most - least >= MOST_TIMES:
        return []
    return [size * n - start for n in range(least + 1, most + 1)]


def _is_mirrored(e: Expr) -> bool:
    return isinstance(e, Unary) and e.op == "abs"


def _size(e: Expr) -> int | None:
    """The constant divisor of a remainder; None for other expressions."""
    if not isinstance(e, Binary) or e.op != "floormod":
        return None
    size = expr.dim_of(e.b)
    return size if isinstance(size, int) and size > 0 else None


def _line(e: Expr, var: Var) -> tuple[int, int] | None:
    """(slope, start) of an index that is linear in one variable alone; None for others."""
    if e.dtype is not DType.INDEX or expr.free_vars(e) != {var} or expr.loads(e):
        return None
    slope = expr.coefficient(e, var)
    start = expr.dim_of(expr.substitute(e, {var: expr.index(0)}))
    if not isinstance(slope, int) or not isinstance(start, int) or slope == 0:
        return None
    return slope, start


def _unfolded(e: Expr, var: Var, first: int, last: int) -> Expr:
    """`e` without its absolute value or remainder, if no index from `first` to `last` crosses a
    turning point.
    """
    line = _line(e.a, var) if isinstance(e, Unary | Binary) else None
    if line is None or not isinstance(e, Unary | Binary):
        return e
    ends_of = [line[0] * index + line[1] for index in (first, last)]
    if _is_mirrored(e):
        signs = {end < 0 for end in ends_of}
        if len(signs) > 1:
            return e
        return expr.sub(expr.index(0), e.a) if signs.pop() else e.a
    size = _size(e)
    times = {end // size for end in ends_of} if size is not None else set[int]()
    return expr.sub(e.a, expr.index((size or 0) * times.pop())) if len(times) == 1 else e


def _turn(e: Expr, var: Var) -> int | None:
    """The index at which a comparison flips, or a minimum or maximum switches operands; None if `e`
    does not depend on this index alone."""
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
    """A comparison, minimum or maximum that is constant from index `first` to `last`, replaced by
    its outcome there."""
    assert isinstance(e, Binary)
    if e.op not in _CHOICES:
        return expr.const(_COMPARE[e.op](*_sides(e, first)), DType.BOOL)
    a, b = _sides(e, first)
    if a == b:  # where they turn
        a, b = _sides(e, last)
    return e.a if (a <= b) == (e.op == "min") else e.b


def _sides(e: Binary, index: int) -> tuple[int, int]:
    """The values of both operands of a comparison at an index."""
    (var,) = expr.free_vars(e)
    a, b = (expr.dim_of(expr.substitute(side, {var: expr.index(index)})) for side in (e.a, e.b))
    assert isinstance(a, int) and isinstance(b, int)
    return a, b


def _folded(e: Expr) -> Expr:
    """`e` with conditions that are constants folded away."""
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
