"""Parts of an extent, of which the last may not be whole, and who asks whether a place is there.

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
    """`then` where a condition holds, else `otherwise`, which may be what makes the statements if
    they are needed: None is a condition that always holds."""
    if condition is None:
        return list(then)
    return [If(condition, tuple(then), tuple(otherwise() if callable(otherwise) else otherwise))]


def below(at: Expr, extent: Dim) -> Expr:
    """Whether place `at` is one of `extent`."""
    return expr.binary("lt", at, expr.index(extent))


def within(at: Expr, extent: Dim, size: Dim) -> Expr | None:
    """The same of a place of a part of `size` places, 0 standing for any size; None where such
    parts divide `extent`."""
    return None if size != 0 and dims.modulo(extent, size) == 0 else below(at, extent)


def between(at: Expr, begin: int, end: int) -> Expr:
    """Whether place `at` is `begin` or behind it, and before `end`."""
    return expr.binary("and", expr.binary("ge", at, expr.index(begin)), below(at, end))


def even(extent: int, most: int) -> int:
    """The size of equal parts of an extent, as few as have at most `most` places each."""
    return -(-extent // -(-extent // most))


def shifted(number: Expr, size: int, extent: int) -> Expr:
    """The place at which part `number` of `size` places begins; the last one is early enough to be
    whole."""
    first = expr.mul(number, expr.index(size))
    return first if extent % size == 0 else expr.binary("min", first, expr.index(extent - size))


def whole_or_rest(
    first: Expr, extent: int, size: int, body: Callable[[int], Sequence[Stmt]]
) -> list[Stmt]:
    """`body(places)` of the part that begins at `first`: of `size` places, or of what is left."""
    rest = extent % size
    if rest == 0:
        return list(body(size))
    is_whole = expr.binary("le", expr.add(first, expr.index(size)), expr.index(extent))
    return where(is_whole, body(size), body(rest))


def widest(width: int, count: int) -> int:
    """The widest vector, of `width` at most, that a row of `count` elements fills."""
    while width > 1 and width > count:
        width //= 2
    return width
