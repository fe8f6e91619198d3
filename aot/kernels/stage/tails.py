"""Helpers for extents divided into parts with a partial last one: bounds conditions and sizes.

A last part is guarded (`where` it is `within`), begins early enough to be whole (`shifted`), or has
code of its own (`whole_or_rest`). Masked and narrower vectors are `nest/rows.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr
from aot.kernels.ir.nodes import If, Stmt


def where(
    condition: Expr | None,
    then: Sequence[Stmt],
    otherwise: Sequence[Stmt] | Callable[[], Sequence[Stmt]] = (),
) -> list[Stmt]:
    """`then` where a condition holds, else `otherwise` (statements, or a function that makes them
    when needed). The condition None always holds."""
    if condition is None:
        return list(then)
    return [If(condition, tuple(then), tuple(otherwise() if callable(otherwise) else otherwise))]


def below(at: Expr, extent: Dim) -> Expr:
    """The condition that place `at` is below `extent`."""
    return expr.binary("lt", at, expr.index(extent))


def within(at: Expr, extent: Dim, size: Dim) -> Expr | None:
    """The condition that place `at` is below `extent`, for a place within parts of `size` (0: any
    size); None if these divide `extent`."""
    return None if size != 0 and dims.modulo(extent, size) == 0 else below(at, extent)


def between(at: Expr, begin: int, end: int) -> Expr:
    """The condition that place `at` is in [begin, end)."""
    return expr.binary("and", expr.binary("ge", at, expr.index(begin)), below(at, end))


def even(extent: int, most: int) -> int:
    """The size of the fewest equal parts of an extent with at most `most` places each."""
    return -(-extent // -(-extent // most))


def shifted(number: Expr, size: int, extent: int) -> Expr:
    """The first place of part `number` of `size` places; the last part is moved back to be
    whole."""
    first = expr.mul(number, expr.index(size))
    return first if extent % size == 0 else expr.binary("min", first, expr.index(extent - size))


def whole_or_rest(
    first: Expr, extent: int, size: int, body: Callable[[int], Sequence[Stmt]]
) -> list[Stmt]:
    """`body(places)` for the part that begins at `first`: `size` places, or the remainder."""
    rest = extent % size
    if rest == 0:
        return list(body(size))
    is_whole = expr.binary("le", expr.add(first, expr.index(size)), expr.index(extent))
    return where(is_whole, body(size), body(rest))


def widest(width: int, count: int) -> int:
    """The widest vector, up to `width`, that a row of `count` elements fills."""
    while width > 1 and width > count:
        width //= 2
    return width
