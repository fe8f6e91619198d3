"""Pools over planes with lanes along lines: combines taps down the plane first, then along lines.

What taps down the plane make is stored in scratch between its padding, so that no tap along a line
asks where it is. CPU only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.ir import expr
from aot.ir.expr import Expr, Load, Reduce, Var
from aot.kernels.ir.nodes import Scratch, Space, Stmt, Store
from aot.kernels.match.windows import Window
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.nest import Axis, Nest, Output, Values, identity
from aot.kernels.nest.rows import SUMS, row_of_vectors
from aot.kernels.rules.windows.pools import (
    Pool,
    PoolTiles,
    rows_together,
    separable,
)
from aot.kernels.stage.epilogue import Epilogue
from aot.kernels.stage.tails import where, widest, within

# elements of the lines of a tile: so many that a line is in the cache, and no longer on its way to
# it, when it is read at places between those of the vectors that were stored
TILE = 1024


def find_plane_pool(nest: Nest, output: Output, reduces: Sequence[Reduce]) -> Pool | None:
    """The separable window over planes that `output` computes, if its lines are in memory order;
    else None.
    """
    if len(reduces) != 1 or len(output.axes) < 2:
        return None
    (reduce,) = reduces
    *outer, along = output.axes
    if expr.coefficient(output.address, along.var) != 1:
        return None
    taps = tuple(Axis(v, n) for v, n in reduce.axes)
    window = Window(reduce, taps, tuple(outer), along, Axis(Var("plane"), 1))
    pool = separable(nest, window)
    if pool is None or pool.along.stride != 1 or pool.along.apart >= along.count:
        return None  # the last: channels, each tap of which lies beyond all of them
    return pool


def schedule_plane_pool(work: Work) -> Build | None:
    """The loops of a separable window over planes; None for other outputs, or if scratch cannot
    hold its lines."""
    nest, output = work.nest, work.reduced.output
    pool = None if work.reduced.free else find_plane_pool(nest, output, work.reduced.reduces)
    if pool is None:
        return None
    places = pool.along.count
    rows = rows_together(pool)
    most = min(nest.target.scratch_bytes, nest.target.l1_bytes // 2)
    if rows * places * pool.reduce.dtype.bytes > most:
        return None
    groups = -(-pool.down.at.count // rows)
    tiles = -(-groups // max(1, TILE // (rows * places)))
    shape = -(-groups // tiles) * rows, places
    lines = nest.builder.scratch("lines", pool.reduce.dtype, shape, Space.WORKGROUP)
    return _Tiles(nest, output, pool, (rows, pool.along.at.count), lines).build


class _Tiles(PoolTiles):
    """The loops of a pool over planes, by tiles of whole rows."""

    def build(self) -> tuple[Stmt, ...]:
        nest, down = self.nest, self.pool.down
        tile = Axis(nest.builder.var("mt"), -(-down.at.count // self.height))
        outer = [tile if axis is down.at else axis for axis in self.output.axes[:-1]]

        def body(values: Values) -> list[Stmt]:
            first = expr.mul(values[tile.var], expr.index(self.height))
            return self._blank() + self.combined(
                max(nest.lanes, self._width(self.pool.along.count)),
                lambda seen: self._down(values, first, seen),
                lambda is_quick: self._along(values, first, is_quick),
            )

        taps = (down.taps + self.pool.along.taps) // 2
        return nest.grid(outer, body, max(1, self.height * self.row_results * taps // 2))

    def _width(self, count: int) -> int:
        """The widest vector width for `count` places."""
        return widest(self.nest.lanes * self.vectors, count)

    def _blank(self) -> list[Stmt]:
        """Statements that fill the ends of the rows in scratch with padding."""
        nest, along = self.nest, self.pool.along
        nothing = identity(self.pool.reduce.op, self.lines.dtype)

        def line(row: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            for first, end in ((0, along.begin), (along.end, along.count)):
                stmts += row_of_vectors(
                    *(nest, expr.index(first), end - first, nest.lanes),
                    lambda x, width, lane: [Store(self.lines, (row, x), nothing)],
                )
            return stmts

        if along.begin == 0 and along.end == along.count:
            return []
        return nest.serial(self.height, line, "row")

    def _row(
        self,
        first: int,
        end: int,
        width: int,
        element: Callable[[Expr, int, Expr | None], list[Stmt]],
        before: Callable[[Expr, int], list[Stmt]] | None,
        *,
        may_repeat: bool,
    ) -> list[Stmt]:
        """Statements for the places of a line from `first` to `end`; if they `may_repeat`, some are
        done twice, so that all vectors are full."""
        nest, count = self.nest, end - first
        lanes, begin = nest.lanes, expr.index(first)
        if not may_repeat or count < lanes or count % lanes == 0:
            return row_of_vectors(nest, begin, count, width, element, may_mask=True, before=before)
        last = expr.index(end - lanes)
        return [
            *row_of_vectors(nest, begin, count - count % lanes, width, element, before=before),
            nest.spread(lanes, lambda lane: element(expr.add(last, lane), lanes, lane)),
        ]

    def _down(self, values: Values, first: Expr, seen: Scratch | None) -> list[Stmt]:
        """Statements that combine the taps down the plane at each place of the lines; with `seen`,
        they also add all elements to it, to detect NaN."""
        nest, down, along = self.nest, self.pool.down, self.pool.along
        is_rare = self.is_asked and seen is None

        def group(g: Expr) -> list[Stmt]:
            line = expr.mul(g, expr.index(self.rows))

            def row(offsets: Sequence[Expr], guards: Sequence[Expr | None]) -> list[Stmt]:
                def element(x: Expr, width: int, lane: Expr | None) -> list[Stmt]:
                    found: list[Stmt] = []
                    terms = self.terms(values, offsets, x, guards, found)
                    return [*found, *self.column(terms, line, (x,), lane, seen)]

                def before(x: Expr, width: int) -> list[Stmt]:
                    return self.lines_ahead(values, offsets, x, width)

                width = self._width(along.end - along.begin)
                may_ask = not is_rare and all(guard is None for guard in guards)
                return self._row(
                    *(along.begin, along.end, min(width, nest.lanes) if is_rare else width),
                    *(element, before if may_ask else None),
                    may_repeat=True,
                )

            stmts = self.lines_from(expr.mul(expr.add(first, line), expr.index(down.step)), row)
            at = expr.linear(first, (g, self.rows))
            return where(within(at, down.at.extent, self.height), stmts)

        return nest.serial(self.height // self.rows, group, "g")

    def _along(self, values: Values, first: Expr, is_quick: bool) -> list[Stmt]:
        """Statements that combine the taps along each line in scratch, and finish the results."""
        nest, down, along = self.nest, self.pool.down, self.pool.along
        epilogue = Epilogue.of(self.output, self.pool.reduce)
        # what is loaded may lie where results are stored
        may_repeat = not any(expr.loads(value) for value in epilogue.output.values)
        parts = epilogue.segments(along.at)

        def line(row: Expr) -> list[Stmt]:
            at = expr.add(first, row)
            stmts: list[Stmt] = []

            def place_of(x: Expr) -> Values:
                return {down.at.var: at, along.at.var: x}

            for part, begin, end in parts:

                def element(
                    x: Expr, width: int, lane: Expr | None, part: Output = part
                ) -> list[Stmt]:
                    place = expr.mul(x, expr.index(along.step))
                    places = [expr.linear(place, along.apart * k) for k in range(along.taps)]
                    taps = [Load(self.lines, (row, at), self.lines.dtype) for at in places]
                    made = self.folded(taps, is_quick=is_quick)
                    done: dict[Expr, Expr] = {epilogue.total: made}
                    return part.stores(nest, {**values, **place_of(x)}, done.get)

                def before(x: Expr, width: int) -> list[Stmt]:
                    return self.results_ahead({**values, **place_of(x)}, width)

                is_rare = self.is_asked and not is_quick
                width = widest(nest.lanes * (1 if is_rare else SUMS), end - begin)
                stmts += self._row(
                    *(begin, end, width, element, None if is_rare else before),
                    may_repeat=may_repeat,
                )
            return where(within(at, down.at.extent, self.height), stmts)

        return nest.serial(self.height, line, "row")
