"""Transposes of padded operands on a CPU, in blocks within segments whose guards are constant.

An image that is padded on its way from planes to channels side by side is such.

Owns how the axis along which operands have their neighbours is cut where its segments end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from aot.base.records import dataclass
from aot.ir import expr
from aot.ir.expr import Expr
from aot.kernels.ir.nodes import If, Stmt
from aot.kernels.match.work import Build, Loops, Work
from aot.kernels.nest import segments
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.nest.rows import row_of_vectors
from aot.kernels.rules.elementwise.segmented import MOST_SEGMENTS, in_segments
from aot.kernels.rules.elementwise.transposes import Blocks, blocks_of


def schedule_padded_transpose(work: Work) -> Build | None:
    """Loops over the segments of a padded result, in which guards are constant, as transposed
    blocks or rows of vectors; None unless guards divide an axis other than the innermost into
    segments.
    """
    if not work.elements.has_vectors:
        return None
    output = work.elements.in_vectors
    if not all(isinstance(axis.extent, int) for axis in output.axes):
        return None
    ends = {
        axis: segments.ends(output.values, axis.var, axis.count, MOST_SEGMENTS)
        for axis in output.axes
    }
    copies = math.prod(len(found) for found in ends.values())
    if not 1 < copies <= MOST_SEGMENTS or len(ends[output.axes[-1]]) > 1:
        return None
    inside = output
    for axis, found in ends.items():
        first, end = max(_segments(found), key=lambda segment: segment[1] - segment[0])
        inside = segments.output_within(inside, axis.var, first, end)
    blocks = blocks_of(work, inside)
    if blocks is None:
        return None
    return _Padded(work.nest, replace(blocks, output=output), ends).build


def _segments(ends: Sequence[int]) -> list[tuple[int, int]]:
    """(begin, end) of each segment, from the segments' ends."""
    return list(zip([0, *ends], ends, strict=False))


@dataclass(frozen=True)
class _Padded:
    """A transpose of a padded operand, divided into segments within which guards are constant.

    Attributes:
        blocks: of the whole result, as in the largest segment.
        ends: where the segments of each axis end.
    """

    nest: Nest
    blocks: Blocks
    ends: dict[Axis, list[int]]

    def build(self) -> Loops:
        nest, rows, output = self.nest, self.blocks.rows, self.blocks.output
        size = self.blocks.rows_together
        # (first row, rows, of how many pieces) of those that follow each other in a segment
        runs = [
            (at, high, count)
            for first, end in _segments(self.ends[rows])
            for at, high, count in _runs(first, end, size)
        ]
        pieces = Axis(nest.builder.var("mt"), sum(count for _, _, count in runs))
        outer = [pieces if axis is rows else axis for axis in output.axes[:-1]]
        asked = {
            axis: found for axis, found in self.ends.items() if axis is not rows and len(found) > 1
        }

        def body(values: Values) -> list[Stmt]:
            def of_run(first: int, high: int, begin: int) -> list[Stmt]:
                number = expr.sub(values[pieces.var], expr.index(begin))
                at = expr.add(expr.mul(number, expr.index(high)), expr.index(first))
                part = segments.output_within(output, rows.var, *self._segment(first))
                return in_segments(
                    part, values, asked, lambda found: self._piece(found, values, at, high)
                )

            return _by_number(values[pieces.var], runs, of_run)

        return nest.grid(outer, body, self.blocks.inner.count * size)

    def _segment(self, row: int) -> tuple[int, int]:
        """(first, end) of the segment of rows that contains a row."""
        found = _segments(self.ends[self.blocks.rows])
        return next((first, end) for first, end in found if first <= row < end)

    def _piece(self, part: Output, values: Values, first: Expr, high: int) -> list[Stmt]:
        """Statements for `high` rows of a segment, from row `first`."""
        nest, (rows, inner) = self.nest, (self.blocks.rows, self.blocks.inner)
        if any(_is_far(load, rows) for value in part.values for load in expr.loads(value)):
            return replace(self.blocks, output=part).blocks(values, first, high)

        def row(r: Expr) -> list[Stmt]:
            place = {**values, rows.var: expr.add(first, r)}
            return row_of_vectors(
                nest,
                expr.index(0),
                inner.extent,
                nest.lanes,
                lambda at, *_: part.stores(nest, {**place, inner.var: at}),
            )

        return nest.serial(high, row, "r")


def _is_far(load: expr.Load, rows: Axis) -> bool:
    """Whether a load is contiguous along the rows, so that it needs a transpose."""
    return expr.coefficient(load.indices[0], rows.var) == 1


def _runs(first: int, end: int, size: int) -> list[tuple[int, int, int]]:
    """(first row, rows per piece, number of pieces) for each run of equal pieces in a segment."""
    count, left = divmod(end - first, size)
    whole = [(first, size, count)] if count else []
    return whole + ([(first + count * size, left, 1)] if left else [])


def _by_number(
    number: Expr,
    runs: Sequence[tuple[int, int, int]],
    body: Callable[[int, int, int], list[Stmt]],
) -> list[Stmt]:
    """Statements that find the run in which piece `number` is, and build its `body` with (first
    row, rows of a piece, number of the first piece).
    """

    def between(runs: Sequence[tuple[int, int, int]], begin: int) -> list[Stmt]:
        if len(runs) == 1:
            return body(runs[0][0], runs[0][1], begin)
        half = len(runs) // 2
        behind = begin + sum(count for _, _, count in runs[:half])
        is_before = expr.binary("lt", number, expr.index(behind))
        return [
            If(
                is_before,
                tuple(between(runs[:half], begin)),
                tuple(between(runs[half:], behind)),
            )
        ]

    return between(runs, 0)
