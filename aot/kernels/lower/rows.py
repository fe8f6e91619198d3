"""Rows of neighbours in vectors, ever narrower ones for what is left. Chooses no axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr
from aot.kernels.ir.nodes import Stmt
from aot.kernels.lower.nest import Nest

# vectors of results side by side, whose sums hide an operation's latency
SUMS = 4


def row_of_vectors(
    nest: Nest,
    start: Expr,
    count: Dim,
    width: int,
    body: Callable[[Expr, int, Expr | None], Sequence[Stmt]],
) -> list[Stmt]:
    """`count` elements from `start`: vectors of `width`, then narrower ones for what is left.

    `body(index, width, lane)` gives the statements of an element.
    """

    def element(at: Expr, wide: int, lane: Expr | None) -> list[Stmt]:
        return list(body(expr.add(start, at), wide, lane))

    out: list[Stmt] = []
    done: Dim = 0
    for wide in _widths(width, nest.lanes, count):
        size = expr.index(wide)
        begin = expr.index(done)
        full = dims.floor_divide(dims.add(count, dims.multiply(done, -1)), wide)

        def vector(o: Expr, wide: int = wide, size: Expr = size, begin: Expr = begin) -> Stmt:
            first = expr.add(begin, expr.mul(o, size))
            return nest.spread(wide, lambda lane: element(expr.add(first, lane), wide, lane))

        out += nest.serial(full, lambda o, vector=vector: [vector(o)], "o")  # type: ignore[misc]
        done = dims.add(done, dims.multiply(full, wide))
    rest = dims.add(count, dims.multiply(done, -1))
    end = expr.index(done)
    return out + nest.serial(rest, lambda t: element(expr.add(end, t), 1, None), "t")


def _widths(width: int, lanes: int, count: Dim) -> list[int]:
    """Widths of the vectors that `count` elements are taken in, ever narrower; of `lanes` at least
    where only the device knows how many there are."""
    if not isinstance(count, int):
        return [width] if width <= lanes else [width, lanes]
    widths: list[int] = []
    while width > 1 and count:
        if count >= width:
            widths.append(width)
            count %= width
        width //= 2
    return widths
