"""Elementwise executables, movement among them: lanes along the innermost dim of the result.

On a CPU what a condition on an index alone decides is decided once for each segment of its axis,
and operands whose neighbours lie along another axis are read in blocks of both. Owns these two;
general.py has the loops of all else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from aot.ir import dims, expr
from aot.ir.expr import Expr, Reduce
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Stmt
from aot.kernels.lower import segments
from aot.kernels.lower.borders import conditions_of
from aot.kernels.lower.nest import GRAIN, Axis, Nest, Output, collapse, without_division
from aot.kernels.lower.rows import row_of_vectors
from aot.kernels.schedules.general import Values, lanes_over_output
from aot.kernels.schedules.neighbours_gpu import Neighbours
from aot.kernels.schedules.tables import schedule_tables

# copies of a kernel's loops that segments may make
MOST_SEGMENTS = 48
# rows and columns of a block, in vectors: a line of a cache each
BLOCK = 2
# extents of an innermost axis whose elements vectors of the axis before it store side by side, and
# the narrowest of these vectors
REPEATS, LEAST_VECTOR = (2, 4), 4


def schedule_elementwise(nest: Nest, output: Output) -> tuple[Stmt, ...]:
    """Lanes along the innermost collapsed dim; no Reduce in the value."""
    output = without_division(output)
    axes, gone = collapse(output.axes, output.address, output.values)
    output = output.rewritten(lambda e: expr.substitute(e, gone), axes)
    if not nest.is_gpu and nest.lanes > 1 and axes:
        made = _segmented(nest, output) or _in_blocks(nest, output) or _gathered(nest, output)
        if made is not None:
            return made
    together = Neighbours.of(nest, output, axes)
    if together is not None:
        return lanes_over_output(nest, together.axes, lambda at, width, lane: together.stores(at))
    return lanes_over_output(
        nest, axes, lambda values, width, lane: output.stores(nest, values), may_mask=True
    )


def _segmented(nest: Nest, output: Output) -> tuple[Stmt, ...] | None:
    """Loops for each segment of the axes whose indices conditions are about; None where there are
    none, or too many."""
    is_repeated = _is_repeated(nest, output)
    *outer, inner = output.axes[:-1] if is_repeated else output.axes
    if not isinstance(inner.extent, int) or (inner.extent > 2 * GRAIN and not is_repeated):
        return None
    found = {
        axis: segments.ends(output.values, axis.var, axis.extent)
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

    def rows(values: Values, output: Output, waiting: Sequence[Axis]) -> list[Stmt]:
        if not waiting:
            return row(values, output)
        axis, *others = waiting
        ends = found[axis]

        def between(first: int, last: int) -> list[Stmt]:
            if first == last:
                begin = ends[first - 1] if first else 0
                return rows(
                    values, segments.output_within(output, axis.var, begin, ends[first]), others
                )
            middle = (first + last) // 2
            is_before = expr.binary("lt", values[axis.var], expr.index(ends[middle]))
            return [If(is_before, tuple(between(first, middle)), tuple(between(middle + 1, last)))]

        return between(0, len(ends) - 1)

    asked = [axis for axis in outer if axis in found]
    return nest.grid(outer, lambda values: rows(values, output, asked), inner.extent)


def _width(nest: Nest, count: int) -> int:
    width = nest.lanes
    while width > 1 and width > count:
        width //= 2
    return width


def _is_repeated(nest: Nest, output: Output) -> bool:
    """Whether the innermost axis is shorter than a vector, and the one before it goes on where it
    ends: vectors along that one, of whose elements each index stores its own, side by side.
    Upsampling to the nearest element is such, and so are planes that become pixels."""
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
        conditions = () if load.guard is None else conditions_of(load.guard)
        if any(expr.loads(c) or len(expr.free_vars(c)) != 1 for c in conditions):
            return False
        if expr.coefficient(load.indices[0], rows.var) not in (0, 1):
            return False
    return True


def _side_by_side(nest: Nest, output: Output, values: Values, begin: int, end: int) -> list[Stmt]:
    """Some of the rows of such a result: vectors of them, then narrower ones for what is left."""
    rows, inner = output.axes[-2:]
    assert isinstance(inner.extent, int)
    times = inner.extent

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


def _in_blocks(nest: Nest, output: Output) -> tuple[Stmt, ...] | None:
    """Loops over blocks of the innermost axis and of one along which operands have their
    neighbours; None where there is no such axis."""
    inner = output.axes[-1]
    rows = _far_axis(nest, output)
    if rows is None or not isinstance(inner.extent, int) or not isinstance(rows.extent, int):
        return None
    lanes = nest.lanes
    size = BLOCK * lanes
    if min(inner.extent, rows.extent) < lanes:
        return None
    tiles = Axis(nest.builder.var("mt"), -(-rows.extent // size))
    outer = [tiles if axis is rows else axis for axis in output.axes[:-1]]

    def store(values: Values, row: Expr, column: Expr) -> list[Stmt]:
        return output.stores(nest, {**values, rows.var: row, inner.var: column})

    def block(values: Values, row: Expr, column: Expr) -> list[Stmt]:
        """A vector of columns, of as many rows."""
        return nest.unrolled(
            lanes,
            lambda r: [
                nest.spread(
                    lanes, lambda lane: store(values, expr.add(row, r), expr.add(column, lane))
                )
            ],
            "r",
        )

    def several(count: int, start: Expr, body: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        """`body` of the first of each `lanes` indices from `start` on."""
        return nest.serial(
            count, lambda n: body(expr.add(start, expr.mul(n, expr.index(lanes)))), "b"
        )

    def blocks(values: Values, row: Expr, height: int) -> list[Stmt]:
        """`height` rows: blocks of whole vectors, and what is left of each side one by one."""
        assert isinstance(inner.extent, int)
        whole, left = divmod(height, lanes)
        done = inner.extent // lanes * lanes

        def columns(start: Expr, count: int) -> list[Stmt]:
            return several(
                count, start, lambda c: several(whole, row, lambda r: block(values, r, c))
            )

        stmts: list[Stmt] = []
        if whole:
            pairs = inner.extent // size
            stmts += nest.serial(
                pairs, lambda n: columns(expr.mul(n, expr.index(size)), BLOCK), "nt"
            )
            stmts += columns(expr.index(pairs * size), done // lanes - pairs * BLOCK)
            stmts += nest.serial(
                inner.extent - done,
                lambda t: row_of_vectors(
                    nest,
                    row,
                    whole * lanes,
                    lanes,
                    lambda at, *_: store(values, at, expr.add(expr.index(done), t)),
                ),
                "t",
            )
        return stmts + nest.serial(
            left,
            lambda t: row_of_vectors(
                nest,
                expr.index(0),
                inner.extent,
                lanes,
                lambda at, *_: store(
                    values, expr.add(expr.add(row, expr.index(whole * lanes)), t), at
                ),
            ),
            "t",
        )

    def body(values: Values) -> list[Stmt]:
        row = expr.mul(values[tiles.var], expr.index(size))
        assert isinstance(rows.extent, int)
        whole, left = divmod(rows.extent, size)
        if not left:
            return blocks(values, row, size)
        if not whole:
            return blocks(values, row, left)
        is_whole = expr.binary("lt", values[tiles.var], expr.index(whole))
        return [If(is_whole, tuple(blocks(values, row, size)), tuple(blocks(values, row, left)))]

    return nest.grid(outer, body, dims.multiply(inner.extent, size))


def _gathered(nest: Nest, output: Output) -> tuple[Stmt, ...] | None:
    """Loops of what a table names along the innermost axis, the same in all rows, as a reduction of
    one term; None where that is not all, or lanes are not picked out of vectors."""
    if not nest.target.has("avx512f") or len(output.axes) < 2 or output.others:
        return None
    inner, rows = output.axes[-1].var, output.axes[-2].var
    chosen = [
        load
        for load in expr.loads(output.value)
        if any(inner in expr.free_vars(place) for place in expr.loads(load.indices[0]))
    ]
    if len(chosen) != 1 or chosen[0].guard is not None or chosen[0].dtype is not DType.F32:
        return None
    (load,) = chosen
    places = [expr.free_vars(place) for place in expr.loads(load.indices[0])]
    if any({rows, inner} <= known for known in places):
        return None
    one = Reduce("sum", ((nest.builder.var("t"), 1),), load, load.dtype)
    reduced = output.rewritten(lambda e: expr.transform(e, {load: one}.get))  # type: ignore[arg-type]
    return schedule_tables(nest, reduced, [one])


def _far_axis(nest: Nest, output: Output) -> Axis | None:
    """The axis along which an operand has its neighbours that has them not along the innermost."""
    inner = output.axes[-1]
    for value in output.values:
        for load in expr.loads(value):
            across = expr.coefficient(load.indices[0], inner.var)
            if load.guard is not None or across in (0, 1, None):
                continue
            for axis in output.axes[:-1]:
                if expr.coefficient(load.indices[0], axis.var) == 1:
                    return axis
    return None
