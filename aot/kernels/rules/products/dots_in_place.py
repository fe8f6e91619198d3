"""Dot product tiles that read their rows in place, without staging.

For rows that are whole words of the dtype that the target multiplies, which nothing guards: those
of pointwise convolutions, of matrix products and of windows that stay inside. Chooses no sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.ir import dims, expr
from aot.ir.expr import Expr, Load
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, Stmt
from aot.kernels.match.products import ContractionAxes
from aot.kernels.nest.nest import Axis, Nest, Values
from aot.kernels.rules.products.dot_tiles import DotTile
from aot.kernels.rules.products.dots import WORDS, DotAxes, WordRows
from aot.kernels.rules.products.product import along

BYTES = (DType.U8, DType.I8)
# bytes of a row beyond which it is nearer in scratch: what is read in a stride is in no near cache
LONGEST = 512


def are_in_place(nest: Nest, axes: DotAxes) -> bool:
    """Whether dot products can read the rows' words in place."""
    narrow, grouped, target = axes.narrow, axes.grouped, nest.target
    if axes.size > LONGEST or nest.lanes == 1:
        return False
    if target.multiplies_by_lane or target.multiplies_parts:
        return False
    if not isinstance(narrow, Load):
        return False
    if narrow.guard is not None or narrow.dtype is not axes.staged or narrow.dtype not in BYTES:
        return False
    if not isinstance(narrow.source, Buffer) or _streams(nest, axes, narrow.source):
        return False
    (address,) = narrow.indices
    steps = [expr.coefficient(address, tap.var) for tap in axes.taps]
    return (
        not axes.is_split
        and grouped.extent == axes.width
        and expr.coefficient(address, grouped.var) == 1
        and None not in steps
    )


def _streams(nest: Nest, axes: DotAxes, source: Buffer) -> bool:
    """Whether rows stream from beyond the L2 cache and only one tile reads them. Staging is then
    better: it reads row after row, which hardware prefetchers recognise.
    """
    size = dims.product(source.shape)
    is_large = isinstance(size, int) and size > nest.target.l2_bytes
    return is_large and all(tap.extent == 1 for tap in axes.taps)


class RowsInPlace(WordRows):
    """Rows that are read in place, without staging.

    Attributes:
        outer: the taps whose words don't lie behind those of the tap before, outermost first.
        run: how many words lie behind each other for the others.
    """

    def __init__(self, nest: Nest, roles: ContractionAxes, axes: DotAxes, rows: int) -> None:
        super().__init__(nest, roles, axes, rows)
        load = self.narrow_load()
        outer, size = [tap for tap in axes.taps if tap.extent != 1], axes.width
        while outer and expr.coefficient(load.indices[0], outer[-1].var) == size:
            extent = outer.pop().count
            size *= extent
        self.outer: tuple[Axis, ...] = tuple(outer)
        self.run = size // axes.terms

    def fill(self, values: Values, first: Expr) -> list[Stmt]:
        return []

    def word_of(self, at: Values, row: Expr, group: Expr, part: int) -> Expr:
        return self.word_at(at, [], group)

    def word_at(self, values: Values, taps: Sequence[Expr], group: Expr) -> Expr:
        """The load of word `group` of a run at outer taps `taps`, for the row at `values`."""
        load, zero = self.narrow_load(), expr.index(0)
        start: Values = {a.var: zero for a in (*self.axes.taps, self.axes.grouped)}
        start |= {axis.var: tap for axis, tap in zip(self.outer, taps, strict=True)}
        address = expr.substitute(load.indices[0], {**values, **start})
        at = expr.linear(address, (group, self.axes.terms))
        return Load(load.source, (at,), WORDS[load.dtype])


class TileInPlace(DotTile):
    """A placed register tile of dot products that reads its rows in place."""

    words: RowsInPlace

    def _sum(self) -> list[Stmt]:
        nest, rows = self.nest, self.words
        if not rows.outer:
            return super()._sum()

        def run(values: Values, number: Expr) -> list[Stmt]:
            taps = [values[axis.var] for axis in rows.outer]
            begin = expr.linear((number, rows.run))

            def word_of_run(g: Expr) -> list[Stmt]:
                stmts, word = self._words(expr.add(begin, g))
                return stmts + self._step(lambda r: rows.word_at(self._at(r), taps, g), word)

            return nest.serial(rows.run, word_of_run, "g")

        return along(nest, rows.outer, {}, run)
