"""Elementwise executables, movement among them: lanes along the innermost dim of the result.

On a CPU what a condition on an index alone decides is decided once for each segment of its axis.
Owns that; transposes.py has the loops of operands whose neighbours lie along another axis, words.py
those of a few neighbours that stay together, and general.py those of all else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from aot.ir import expr
from aot.ir.expr import Expr, Reduce
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Stmt
from aot.kernels.lower import segments
from aot.kernels.lower.data_places import vector_places
from aot.kernels.lower.narrow import in_kept_bits
from aot.kernels.lower.nest import GRAIN, Axis, Nest, Output, collapse, without_division
from aot.kernels.lower.rows import row_of_vectors
from aot.kernels.schedules.general import Values, lanes_over_output
from aot.kernels.schedules.neighbours_gpu import Neighbours
from aot.kernels.schedules.resized import schedule_picked
from aot.kernels.schedules.tables import schedule_tables
from aot.kernels.schedules.transposes import schedule_blocks
from aot.kernels.schedules.words import in_order, schedule_groups, schedule_words

# copies of a kernel's loops that segments may make
MOST_SEGMENTS = 48
# extents of an innermost axis whose elements vectors of the axis before it store side by side, and
# the narrowest of these vectors
REPEATS, LEAST_VECTOR = (2, 3, 4, 5, 6, 7, 8, 10, 12), 4


def schedule_elementwise(nest: Nest, output: Output) -> tuple[Stmt, ...]:
    """Lanes along the innermost collapsed dim; no Reduce in the value."""
    output = without_division(output)
    axes, gone = collapse(output.axes, output.address, output.values)
    output = output.rewritten(lambda e: expr.substitute(e, gone), axes)
    if not nest.is_gpu and nest.lanes > 1 and axes:
        cut = schedule_groups(nest, output, lambda part: schedule_elementwise(nest, part))
        if cut is not None:
            return cut
        packed = in_order(output)
        if packed is not None:
            axes, gone = collapse(packed.axes, packed.address, packed.values)
            output = packed.rewritten(lambda e: expr.substitute(e, gone), axes)
        output = output.rewritten(in_kept_bits)
        wide = _of_narrow_lanes(nest, output)
        made = (
            _segmented(wide, output)
            or schedule_words(nest, output)
            or schedule_blocks(nest, wide, output)
            or _picked(nest, output)
            or _gathered(nest, output)
        )
        if made is not None:
            return made
        nest = wide
        places = vector_places(nest, axes[-1].var)
        output = output if places is None else output.rewritten(places)
    together = Neighbours.of(nest, output, axes)
    if together is not None:
        return lanes_over_output(nest, together.axes, lambda at, width, lane: together.stores(at))
    return lanes_over_output(
        nest, axes, lambda values, width, lane: output.stores(nest, values), may_mask=True
    )


def _of_narrow_lanes(nest: Nest, output: Output) -> Nest:
    """With as many lanes as a vector has of the widest elements, where all are narrower than those
    that lanes are counted for."""
    places = [i for value in output.values for x in expr.loads(value) for i in x.indices]
    if any(map(expr.loads, places)) and not nest.target.looks_up_bytes:
        return nest  # each lane loads for itself
    stored = [output.buffer.dtype, *(buffer.dtype for buffer, _ in output.others)]
    nodes = {node for value in output.values for node in expr.nodes(value)}
    # what is the same in all lanes is a scalar
    varied = (node for node in nodes if node.dtype is not DType.INDEX and expr.free_vars(node))
    used = [node.dtype for node in varied]
    widest = max(dtype.bytes for dtype in (*stored, *used))
    return replace(nest, lanes=max(nest.lanes, nest.target.vector_bytes // widest))


def _segmented(nest: Nest, output: Output) -> tuple[Stmt, ...] | None:
    """Loops for each segment of the axes whose indices conditions are about; None where there are
    none, or too many."""
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
        conditions = () if load.guard is None else expr.conditions_of(load.guard)
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


def _picked(nest: Nest, output: Output) -> tuple[Stmt, ...] | None:
    """Loops of planes of which tables pick rows and columns."""
    return schedule_picked(nest, output) if len(output.axes) > 1 else None


def _gathered(nest: Nest, output: Output) -> tuple[Stmt, ...] | None:
    """Loops of what a table names along the innermost axis, the same in all rows, as a reduction of
    one term; None where that is not all."""
    if len(output.axes) < 2 or output.others:
        return None
    inner, rows = output.axes[-1].var, output.axes[-2].var
    chosen = [
        load
        for load in expr.loads(output.value)
        if any(inner in expr.free_vars(place) for place in expr.loads(load.indices[0]))
    ]
    if len(chosen) != 1 or chosen[0].guard is not None:
        return None
    (load,) = chosen
    places = [expr.free_vars(place) for place in expr.loads(load.indices[0])]
    if any({rows, inner} <= known for known in places):
        return None
    one = Reduce("sum", ((nest.builder.var("t"), 1),), load, load.dtype)
    reduced = output.rewritten(lambda e: expr.transform(e, {load: one}.get))  # type: ignore[arg-type]
    return schedule_tables(nest, reduced, [one])
