"""Transposes of short contiguous runs ("words"): elements that stay together when the axes around
them are exchanged.

What is packed in groups of four along a sum when it runs is such, as the operands of products of
bytes are, and so are pixels of a few bytes. Owns the blocks of two axes whose words registers
transpose, how a packed result is seen as axes of its own, and its last group that is not whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.ir import dims, expr
from aot.ir.expr import Expr, Var
from aot.kernels.ir.nodes import If, Stmt
from aot.kernels.match.elements import groups_of
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.nest import Axis, Nest, Output, Values, group_of_axis
from aot.kernels.nest.stages import as_one_workgroup

# elements and bytes of a word
COUNTS, MOST_BYTES = (2, 4, 8), 8
# words of the narrowest block's rows and columns
LEAST = 4


def _cut(output: Output) -> tuple[int, int] | None:
    """(axis number, group size) of an axis that the address divides into groups, with a partial
    last one; None if there is none."""
    return next(((n, size) for n, size, left in groups_of(output) if left), None)


def schedule_groups(work: Work) -> Build | None:
    """Loops around the groups of an axis, with separate loops for a partial last group; None where
    the address divides no axis in this way.
    """
    nest, output = work.nest, work.elements.output
    found = _cut(output) if work.elements.has_vectors else None
    if found is None:
        return None
    number, size = found
    axis, extent = output.axes[number], output.axes[number].count
    whole, left = divmod(extent, size)
    count = min(n for n, *_ in groups_of(output))
    outer = output.axes[:count]
    groups = Axis(Var(f"{axis.var.name}g"), whole + 1)
    others = [a for a in output.axes[count:] if a is not axis]

    def part(values: Values, group: Expr, members: int) -> list[Stmt]:
        member = Axis(Var(f"{axis.var.name}m"), members)
        at = [member if a is axis else a for a in output.axes[count:]]
        given = group_of_axis(output, number, size, group, member)
        places = {a.var: values[a.var] for a in outer}
        memo: dict[Expr, Expr] = {}
        given = given.rewritten(lambda e: expr.substitute(e, places, memo), at)
        return list(as_one_workgroup(work.part(given)))

    def body(values: Values) -> list[Stmt]:
        group = values[groups.var]
        if not whole:
            return part(values, expr.index(0), left)
        is_whole = expr.binary("lt", group, expr.index(whole))
        last = part(values, expr.index(whole), left)
        return [If(is_whole, tuple(part(values, group, size)), tuple(last))]

    cost = dims.product([size, *(a.extent for a in others)])
    return lambda: nest.grid([*outer, groups], body, cost)


def schedule_words(work: Work) -> Build | None:
    """Loops over blocks of words that are transposed in registers; None where no operand's words
    are contiguous along another axis than the result's."""
    if not work.elements.has_vectors:
        return None
    nest, output = work.nest, work.elements.in_vectors
    if output.others or len(output.axes) < 3 or nest.target.arch == "riscv64":
        return None
    *outer, columns, word = output.axes
    count, size = word.extent, output.buffer.dtype.bytes
    if count not in COUNTS or count * size > MOST_BYTES or not isinstance(columns.extent, int):
        return None
    steps = [expr.coefficient(output.address, axis.var) for axis in (columns, word)]
    rows = _rows(output, count)
    if steps != [count, 1] or rows is None or not isinstance(rows.extent, int):
        return None
    width = nest.target.vector_bytes // (count * size)
    if width < LEAST or min(columns.extent, rows.extent) < LEAST:
        return None
    around = [axis for axis in outer if axis is not rows]
    return lambda: _Words(nest, output, rows, width).build(around)


def _rows(output: Output, count: int) -> Axis | None:
    """The axis along which an operand's words are contiguous, if all operands are read by whole
    words or by one element per word; else None."""
    *outer, columns, word = output.axes
    found: Axis | None = None
    for load in (load for value in output.values for load in expr.loads(value)):
        (index, *others) = load.indices
        if load.guard is not None or others or expr.loads(index):
            return None
        if expr.coefficient(index, columns.var) is None:
            return None
        if expr.coefficient(index, word.var) == 0:
            continue
        if expr.coefficient(index, word.var) != 1 or load.dtype.bytes != output.buffer.dtype.bytes:
            return None
        for axis in outer:
            if expr.coefficient(index, axis.var) == count:
                found = axis
    return found


class _Words:
    """A transpose whose innermost elements form words: blocks of words are transposed in registers.

    Attributes:
        rows, columns, word: the axes of a block, and that of the elements of a word.
        width: words per vector, which is also the number of a block's rows and columns.
    """

    def __init__(self, nest: Nest, output: Output, rows: Axis, width: int) -> None:
        self.nest, self.output, self.rows, self.width = nest, output, rows, width
        *_, self.columns, self.word = output.axes
        self.count = self.word.count

    def build(self, outer: Sequence[Axis]) -> tuple[Stmt, ...]:
        nest, extent = self.nest, self.rows.count
        tiles = Axis(nest.builder.var("mt"), -(-extent // self.width))
        whole, left = divmod(extent, self.width)

        def body(values: Values) -> list[Stmt]:
            first = expr.mul(values[tiles.var], expr.index(self.width))
            if not left:
                return self.some_rows(values, first, self.width)
            if not whole:
                return self.some_rows(values, first, left)
            is_whole = expr.binary("lt", values[tiles.var], expr.index(whole))
            several, rest = (self.some_rows(values, first, n) for n in (self.width, left))
            return [If(is_whole, tuple(several), tuple(rest))]

        return nest.grid([*outer, tiles], body, self.columns.count * self.count * self.width)

    def some_rows(self, values: Values, first: Expr, count: int) -> list[Stmt]:
        """Statements for all columns of `count` rows, at most a block's height."""

        def columns(column: Expr, wide: int) -> list[Stmt]:
            return self._pieces(
                count,
                first,
                self.width,
                lambda row, high: self.block(values, row, high, column, wide),
            )

        return self._pieces(self.columns.count, expr.index(0), self.width, columns)

    def block(self, values: Values, row: Expr, high: int, column: Expr, wide: int) -> list[Stmt]:
        """A block of `high` rows by `wide` words, with lanes along words."""
        nest, size = self.nest, expr.index(self.count)

        def one(n: Expr) -> list[Stmt]:
            def element(lane: Expr) -> list[Stmt]:
                word = expr.binary("floordiv", lane, size) if wide > 1 else expr.index(0)
                part = expr.binary("floormod", lane, size) if wide > 1 else lane
                place = {
                    **values,
                    self.rows.var: expr.add(row, n),
                    self.columns.var: expr.add(column, word),
                    self.word.var: part,
                }
                return self.output.stores(nest, place)

            return [nest.spread(wide * self.count, element)]

        return nest.unrolled(high, one, "r")

    def _pieces(
        self, extent: int, start: Expr, size: int, body: Callable[[Expr, int], list[Stmt]]
    ) -> list[Stmt]:
        """`body(first, count)` for pieces of an extent from `start`: as many as fit of `size`, then
        of halved sizes, then single ones."""
        stmts: list[Stmt] = []
        done = 0
        while done < extent:
            begin, wide = expr.add(start, expr.index(done)), size
            stmts += self.nest.serial(
                (extent - done) // wide,
                lambda n, begin=begin, wide=wide: body(  # type: ignore[misc]
                    expr.add(begin, expr.mul(n, expr.index(wide))), wide
                ),
                "b",
            )
            done += (extent - done) // wide * wide
            size = size // 2 if size > LEAST else 1
        return stmts
