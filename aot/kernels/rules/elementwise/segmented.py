"""Element-wise loops on a CPU, split where conditions on indices change, as with padding and
concatenation.

What a condition on an index alone decides is decided once for each segment of its axis. Owns where
segments end, and results whose innermost axis is shorter than a vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from aot.ir import expr
from aot.ir.expr import Expr
from aot.kernels.ir.nodes import If, Stmt
from aot.kernels.match.work import Build, Work
from aot.kernels.nest import segments
from aot.kernels.nest.nest import GRAIN, Axis, Nest, Output, Values
from aot.kernels.nest.rows import row_of_vectors

# copies of a kernel's loops that segments may make
MOST_SEGMENTS = 48
# extents of an innermost axis whose elements vectors of the axis before it store side by side, and
# the narrowest of these vectors
REPEATS, LEAST_VECTOR = (2, 3, 4, 5, 6, 7, 8, 10, 12), 4


def schedule_segments(work: Work) -> Build | None:
    """Loops over segments of the axes on whose indices conditions depend; None if there are no
    segments, or too many."""
    if not work.elements.has_vectors:
        return None
    nest, output = work.elements.wide, work.elements.in_vectors
    is_repeated = _is_repeated(nest, output)
    *outer, inner = output.axes[:-1] if is_repeated else output.axes
    if not isinstance(inner.extent, int) or (inner.extent > 2 * GRAIN and not is_repeated):
        return None
    found = {
        axis: segments.ends(output.values, axis.var, axis.extent, MOST_SEGMENTS)
        for axis in (*outer, inner)
        if isinstance(axis.extent, int)
    }
    found = {axis: ends for axis, ends in found.items() if len(ends) > 1 or axis is inner}
    copies = math.prod(len(ends) for ends in found.values())
    if not 1 < copies + is_repeated <= MOST_SEGMENTS:
        return None

    def row(values: Values, output: Output) -> list[Stmt]:
        stmts: list[Stmt] = []
        first = 0
        for end in found[inner]:
            part = segments.output_within(output, inner.var, first, end)
            if is_repeated:
                stmts += _side_by_side(nest, part, values, first, end)
                first = end
                continue
            stmts += row_of_vectors(
                nest,
                expr.index(first),
                end - first,
                _width(nest, end - first),
                lambda at, width, lane, part=part: part.stores(nest, {**values, inner.var: at}),  # type: ignore[misc]
                may_mask=True,
            )
            first = end
        return stmts

    asked = {axis: found[axis] for axis in outer if axis in found}

    def rows(values: Values) -> list[Stmt]:
        return in_segments(output, values, asked, lambda part: row(values, part))

    return lambda: nest.grid(outer, rows, inner.extent)


def in_segments(
    output: Output,
    values: Values,
    ends: Mapping[Axis, Sequence[int]],
    body: Callable[[Output], list[Stmt]],
) -> list[Stmt]:
    """Selects by index the segment of each axis, and runs `body` on the output simplified for these
    segments.

    Args:
        values: the indices.
        ends: where each of the axes' segments end.
    """
    if not ends:
        return body(output)
    (axis, last), *others = ends.items()

    def between(first: int, final: int) -> list[Stmt]:
        if first == final:
            begin = last[first - 1] if first else 0
            part = segments.output_within(output, axis.var, begin, last[first])
            return in_segments(part, values, dict(others), body)
        middle = (first + final) // 2
        is_before = expr.binary("lt", values[axis.var], expr.index(last[middle]))
        return [If(is_before, tuple(between(first, middle)), tuple(between(middle + 1, final)))]

    return between(0, len(last) - 1)


def _width(nest: Nest, count: int) -> int:
    width = nest.lanes
    while width > 1 and width > count:
        width //= 2
    return width


def _is_repeated(nest: Nest, output: Output) -> bool:
    """Whether the innermost axis is shorter than a vector and contiguous with the one before it, as
    after nearest-neighbour upsampling or depth-to-space. Vectors then run along the axis before,
    and their results are interleaved.
    """
    if len(output.axes) < 2:
        return False
    rows, inner = output.axes[-2:]
    if inner.extent not in REPEATS or not isinstance(rows.extent, int):
        return False
    steps = [expr.coefficient(output.address, axis.var) for axis in (rows, inner)]
    if steps != [inner.extent, 1] or _width(nest, rows.extent) < LEAST_VECTOR:
        return False
    for load in (load for value in output.values for load in expr.loads(value)):
        # what is asked of the row is known in a segment, and of the innermost index in the code
        conditions = () if load.guard is None else expr.conditions_of(load.guard)
        if any(expr.loads(c) or len(expr.free_vars(c)) != 1 for c in conditions):
            return False
        if expr.coefficient(load.indices[0], rows.var) not in (0, 1):
            return False
    return True


def _side_by_side(nest: Nest, output: Output, values: Values, begin: int, end: int) -> list[Stmt]:
    """Statements for rows from `begin` to `end` whose results interleave: vectors of rows, then
    narrower ones for the tail.
    """
    rows, inner = output.axes[-2:]
    times = inner.count

    def vector(first: Expr, width: int) -> list[Stmt]:
        def store(r: Expr, at: Expr) -> list[Stmt]:
            return output.stores(nest, {**values, rows.var: at, inner.var: r})

        if width == 1:
            return nest.unrolled(times, lambda r: store(r, first), "r")
        return nest.unrolled(
            times,
            lambda r: [nest.spread(width, lambda lane: store(r, expr.add(first, lane)))],
            "r",
        )

    stmts: list[Stmt] = []
    done, width = begin, _width(nest, end - begin)
    while done < end:
        count = (end - done) // width
        size, start = expr.index(width), expr.index(done)
        stmts += nest.serial(
            count,
            lambda n, size=size, start=start, width=width: vector(  # type: ignore[misc]
                expr.add(start, expr.mul(n, size)), width
            ),
            "n",
        )
        done += count * width
        width = width // 2 if width > LEAST_VECTOR else 1
    return stmts
