"""Builds loops over contiguous elements: full vectors, then a tail of narrower vectors or masked
lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr
from aot.kernels.ir.nodes import If, Stmt
from aot.kernels.nest.nest import Nest

# vectors of results side by side, whose sums hide an operation's latency
SUMS = 4
# lanes of a vector of what is left, where only the device knows how much that is
FEW = 4
# lanes of vectors in which some are turned off
_LEAST_MASKED = 8


def row_of_vectors(
    nest: Nest,
    start: Expr,
    count: Dim,
    width: int,
    body: Callable[[Expr, int, Expr | None], Sequence[Stmt]],
    *,
    may_mask: bool = False,
    is_long: bool = False,
    before: Callable[[Expr, int], Sequence[Stmt]] | None = None,
) -> list[Stmt]:
    """A loop over `count` elements from `start`: vectors of `width`, then narrower ones for the
    tail.

    Args:
        body: `body(index, width, lane)` gives the statements of an element.
        may_mask: the tail may be a vector with some lanes masked off.
        is_long: an element is so much code that one more vector width is better than single
            elements.
        before: `before(index, width)` gives statements in front of a vector.
    """

    def element(at: Expr, wide: int, lane: Expr | None) -> list[Stmt]:
        return list(body(expr.add(start, at), wide, lane))

    out: list[Stmt] = []
    done: Dim = 0
    masked = masked_lanes(nest, count) if may_mask else 0
    for wide in _widths(width, nest.lanes, dims.add(count, -masked), is_long=is_long):
        size = expr.index(wide)
        begin = expr.index(done)
        full = dims.floor_divide(dims.add(count, dims.multiply(done, -1)), wide)

        def vector(o: Expr, wide: int = wide, size: Expr = size, begin: Expr = begin) -> list[Stmt]:
            first = expr.add(begin, expr.mul(o, size))
            asked = [] if before is None else list(before(expr.add(start, first), wide))
            return [
                *asked,
                nest.spread(wide, lambda lane: element(expr.add(first, lane), wide, lane)),
            ]

        out += nest.serial(full, vector, "o")
        done = dims.add(done, dims.multiply(full, wide))
    rest = dims.add(count, dims.multiply(done, -1))
    end = expr.index(done)
    if masked:
        # of narrow elements no more than a vector of wide ones has, if that is enough: stores that
        # cross no line of a cache are faster, be most of their lanes off
        wide = max(1 << (masked - 1).bit_length(), nest.target.vector_bytes // 4)
        wide = min(wide, nest.lanes)

        def some(lane: Expr) -> list[Stmt]:
            is_there = expr.binary("lt", lane, expr.index(masked))
            return [If(is_there, tuple(element(expr.add(end, lane), wide, lane)))]

        return [*out, nest.spread(wide, some)]
    return out + nest.serial(rest, lambda t: element(expr.add(end, t), 1, None), "t")


def vectors_of(width: int, lanes: int, count: Dim) -> list[tuple[Dim, int, Dim]]:
    """(first element, width, number of vectors) for each width of vectors, at most `width`, that
    together cover `count` elements.
    """
    found: list[tuple[Dim, int, Dim]] = []
    done: Dim = 0
    for wide in (*_widths(width, lanes, count, is_long=True), 1):
        full = dims.floor_divide(dims.add(count, dims.multiply(done, -1)), wide)
        if full != 0:
            found.append((done, wide, full))
        done = dims.add(done, dims.multiply(full, wide))
    return found


def masked_lanes(nest: Nest, count: Dim) -> int:
    """The number of active lanes in a masked tail vector; 0 on targets without masks, or where one
    narrower vector covers the tail.
    """
    if nest.is_gpu or nest.lanes < _LEAST_MASKED or not nest.target.has("avx512bw"):
        return 0
    rest = count % nest.lanes if isinstance(count, int) else 0
    return rest if rest.bit_count() > 1 else 0


def _widths(width: int, lanes: int, count: Dim, *, is_long: bool = False) -> list[int]:
    """Widths of the vectors that cover `count` elements, widest first. For a symbolic count: no
    tail narrower than a power of two that divides the count, or than a small one if elements are
    long.
    """
    if not isinstance(count, int):
        widths = [width] if width <= lanes else [width, lanes]
        part = min(width, lanes) // 2
        while part > 1 and dims.modulo(count, part) != 0:
            part //= 2
        if is_long:
            part = max(part, min(FEW, widths[-1] // 2))
        return widths if part <= 1 or dims.modulo(count, widths[-1]) == 0 else [*widths, part]
    widths = []
    while width > 1 and count:
        if count >= width:
            widths.append(width)
            count %= width
        width //= 2
    return widths
