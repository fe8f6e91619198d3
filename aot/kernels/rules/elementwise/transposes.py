"""Transposes on a CPU: moves data in blocks of two axes, which are transposed in registers.

Owns the sizes of blocks and their order. What stores short runs far apart, so that lines of a cache
that are written in part would be lost before the rest of them is, goes through scratch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.expr import Expr, Load
from aot.kernels.ir.nodes import If, Scratch, Space, Stmt, Store
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.nest.rows import row_of_vectors

# rows and columns of blocks that follow each other, in blocks: a line of a cache each
BLOCK = 2
# lanes of the narrowest block
LEAST = 4
# bytes of a line of a cache, and of a part of a register within which elements are exchanged
LINE, PART = 64, 16
# bytes after which lines share a set of the nearest cache, and lines that a set surely holds
SET_BYTES, SET_LINES = 4096, 8
# bytes of a result's row that are stored at once where its rows are far apart
RUN_BYTES = 512


def schedule_transpose(work: Work) -> Build | None:
    """Loops over blocks of the innermost axis and of an axis along which an operand is contiguous;
    None where there is no such axis.
    """
    if not work.elements.has_vectors:
        return None
    found = blocks_of(work, work.elements.in_vectors)
    return None if found is None else found.build


def blocks_of(work: Work, output: Output) -> Blocks | None:
    """The transposed blocks of an output, sized by the vectors; None where operands are contiguous
    along its innermost axis, or extents are small or unknown."""
    nest, wide = work.nest, work.elements.wide
    inner, rows = output.axes[-1], _far_axis(output)
    if rows is None or not isinstance(inner.extent, int) or not isinstance(rows.extent, int):
        return None
    if min(inner.extent, rows.extent) < min(LEAST, nest.lanes):
        return None
    height = width = nest.lanes
    if wide.lanes > nest.lanes:
        # squares within the parts of registers, side by side in a register: of what is stored,
        # or of what is loaded
        width = wide.lanes
        height = max(1, width * PART // nest.target.vector_bytes)
        if inner.extent < width:
            height, width = width, height
    return Blocks(nest, output, rows, inner, height, width)


def _far_axis(output: Output) -> Axis | None:
    """The axis along which an operand is contiguous that is strided along the innermost axis; None
    if there is none."""
    inner = output.axes[-1]
    for value in output.values:
        for load in expr.loads(value):
            across = expr.coefficient(load.indices[0], inner.var)
            is_named = across is None and any(expr.loads(index) for index in load.indices)
            if load.guard is not None or across in (0, 1) or (across is None and not is_named):
                continue
            for axis in output.axes[:-1]:
                if expr.coefficient(load.indices[0], axis.var) == 1:
                    return axis
    return None


def _pieces(extent: int, size: int) -> list[tuple[int, int, int]]:
    """(first, count, size) of the pieces of an extent: as many as fit of `size`, then of halved
    sizes down to LEAST, then single elements."""
    pieces, first = list[tuple[int, int, int]](), 0
    while first < extent:
        count = (extent - first) // size
        if count:
            pieces.append((first, count, size))
        first += count * size
        size = size // 2 if size > LEAST else 1
    return pieces


@dataclass(frozen=True)
class Blocks:
    """Loops over blocks of a result that is transposed in registers.

    Attributes:
        rows, inner: the axes of a block.
        height, width: elements of a block along them.
    """

    nest: Nest
    output: Output
    rows: Axis
    inner: Axis
    height: int
    width: int

    def build(self) -> tuple[Stmt, ...]:
        nest, rows = self.nest, self.rows.count
        size = self.rows_together
        tiles = Axis(nest.builder.var("mt"), -(-rows // size))
        run = self._run(size)
        outer = [tiles if axis is self.rows else axis for axis in self.output.axes[:-1]]
        if run > 1:
            between = self.output.axes[-2]
            outer[-1] = Axis(nest.builder.var("bt"), between.count // run)

        def body(values: Values) -> list[Stmt]:
            row = expr.mul(values[tiles.var], expr.index(size))
            whole, left = divmod(rows, size)

            def some(height: int) -> list[Stmt]:
                if run == 1:
                    return self.blocks(values, row, height)
                first = expr.mul(values[outer[-1].var], expr.index(run))
                return self.runs(values, row, height, first, run)

            if not left:
                return some(size)
            if not whole:
                return some(left)
            is_whole = expr.binary("lt", values[tiles.var], expr.index(whole))
            return [If(is_whole, tuple(some(size)), tuple(some(left)))]

        return nest.grid(outer, body, dims.multiply(self.inner.count, size * run))

    @property
    def rows_together(self) -> int:
        """The number of rows whose blocks are done one after another."""
        return self.height * (1 if self._shares_sets(BLOCK * self.height) else BLOCK)

    def _shares_sets(self, rows: int) -> bool:
        """Whether `rows` rows map to so few cache sets that these cannot hold them."""
        step = self._row_bytes()
        if step is None or step % LINE:
            return False
        sets = SET_BYTES // math.gcd(step, SET_BYTES)
        return rows > sets * SET_LINES

    def _row_bytes(self) -> int | None:
        step = expr.coefficient(self.output.address, self.rows.var)
        return step * self.output.buffer.dtype.bytes if isinstance(step, int) else None

    def _run(self, rows: int) -> int:
        """How many indices of the second-innermost axis a block covers, as their elements are
        contiguous; 1 where cache lines stay cached until they are fully written."""
        if self.output.others or len(self.output.axes) < 3:
            return 1
        between = self.output.axes[-2]
        step = expr.coefficient(self.output.address, between.var)
        bytes_ = self.inner.count * self.output.buffer.dtype.bytes
        is_row = between is not self.rows and step == self.inner.count
        if not is_row or not isinstance(between.extent, int) or bytes_ % LINE == 0:
            return 1
        least = -(-RUN_BYTES // bytes_)
        if least < 2 or not self._shares_sets(rows):
            return 1
        fitting = [n for n in range(least, 4 * least) if between.extent % n == 0]
        return min(fitting, default=1)

    def runs(self, values: Values, row: Expr, height: int, first: Expr, count: int) -> list[Stmt]:
        """Statements that make `height` rows of `count` indices of the second-innermost axis, from
        `first`, in scratch and copy them to the result."""
        nest, output, between = self.nest, self.output, self.output.axes[-2]
        length = count * self.inner.count
        run = nest.builder.scratch("run", output.buffer.dtype, (height, length), Space.WORKGROUP)

        def made(n: Expr) -> list[Stmt]:
            place = {**values, between.var: expr.add(first, n)}
            start = expr.mul(n, expr.index(self.inner.count))
            return self.blocks(place, row, height, (run, start))

        def copied(r: Expr) -> list[Stmt]:
            place = {
                **values,
                between.var: first,
                self.rows.var: expr.add(row, r),
                self.inner.var: expr.index(0),
            }
            address = expr.substitute(output.address, place)
            return row_of_vectors(
                nest,
                expr.index(0),
                length,
                self.nest.lanes,
                lambda at, *_: [
                    Store(output.buffer, (expr.add(address, at),), Load(run, (r, at), run.dtype))
                ],
            )

        return [*nest.serial(count, made, "n"), *nest.serial(height, copied, "r")]

    def blocks(
        self, values: Values, row: Expr, height: int, run: tuple[Scratch, Expr] | None = None
    ) -> list[Stmt]:
        """Statements for `height` rows: whole blocks, narrower blocks for the tails of both sides,
        then single rows or columns. They store to `run`, a row of scratch, if it is given.
        """
        nest, output = self.nest, self.output

        def store(r: Expr, column: Expr) -> list[Stmt]:
            place = {**values, self.rows.var: expr.add(row, r), self.inner.var: column}
            if run is None:
                return output.stores(nest, place)
            value = expr.substitute(output.value, place)
            return [Store(run[0], (r, expr.add(run[1], column)), value)]

        def block(r: Expr, column: Expr, high: int, wide: int) -> list[Stmt]:
            """A block of `high` rows by `wide` columns, with lanes along columns."""
            if high == wide == 1:
                return store(r, column)
            if high == 1:
                return [nest.spread(wide, lambda lane: store(r, expr.add(column, lane)))]
            if wide == 1:
                return [nest.spread(high, lambda lane: store(expr.add(r, lane), column))]
            return nest.unrolled(
                high,
                lambda n: [
                    nest.spread(wide, lambda lane: store(expr.add(r, n), expr.add(column, lane)))
                ],
                "r",
            )

        def columns(first: Expr, count: int, wide: int) -> list[Stmt]:
            """Statements for `count` blocks of columns from `first`, in all rows."""
            return self._several(
                first,
                count,
                wide,
                lambda column: [
                    stmt
                    for start, number, high in _pieces(height, self.height)
                    for stmt in self._several(
                        expr.index(start),
                        number,
                        high,
                        lambda r, high=high: block(r, column, high, wide),  # type: ignore[misc]
                    )
                ],
            )

        return [
            stmt
            for start, count, wide in _pieces(self.inner.count, self.width)
            for stmt in columns(expr.index(start), count, wide)
        ]

    def _several(
        self, first: Expr, count: int, size: int, body: Callable[[Expr], Sequence[Stmt]]
    ) -> list[Stmt]:
        """A loop that runs `body` on the first of each `size` indices, `count` times from
        `first`."""
        return self.nest.serial(
            count, lambda n: body(expr.add(first, expr.mul(n, expr.index(size)))), "b"
        )
