"""Convolutions with few output columns: sums each tap over channels for every place of an image
row, then adds up each window's taps, shifted.

A line's places and their channels are read once, in order, whatever the taps: what windows share is
read for all of their taps together, as many columns of a contraction at single points. Lanes go
along the line. CPU only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aot.analysis.cost.few_columns import lines_of_band
from aot.base.records import dataclass
from aot.ir import expr
from aot.ir.expr import Binary, Expr, Load, Reduce, Var
from aot.ir.schedule import StageSchedule
from aot.kernels.ir.nodes import Scratch, Space, Stmt, Store
from aot.kernels.match.products import ContractionAxes
from aot.kernels.match.slides import Slide, slides_of
from aot.kernels.match.windows import products_of_loads
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.nest.rows import SUMS, row_of_vectors
from aot.kernels.nest.tiles import ReusedScratch, Shape
from aot.kernels.rules.products.planes import TURNED, TurnedTile
from aot.kernels.rules.products.product import Place, Product, Tile
from aot.kernels.rules.products.products import SummedTile, Terms
from aot.kernels.stage.ahead import of_line, prefetch
from aot.kernels.stage.tails import between, where, within

AHEAD = 4  # tiles from the one whose places are multiplied to those that are asked for


def schedule_tap_sums(work: Work) -> Build | None:
    """The loops of a convolution that is summed tap by tap; None for any other output."""
    nest = work.nest
    found = None if nest.is_gpu else _found(work.output)
    if found is None:
        return None
    made = _TapSums(nest, work.output, found, work.plan, nest.target.panel)
    return made.build if made.lines else None


@dataclass(frozen=True)
class _Windows:
    """The sums of products over windows that an output computes.

    Attributes:
        left, right: the factors; the left side without its guard.
        along, down: how windows slide along a line, and from line to line.
        channel: the other axis of the sum.
        column: the axis of the result along which only the right side varies; None if there is one
            column.
        outer: the other axes.
    """

    reduce: Reduce
    left: Load
    right: Load
    along: Slide
    down: Slide
    channel: Axis
    column: Axis | None
    outer: tuple[Axis, ...]

    @property
    def outputs(self) -> int:
        return 1 if self.column is None else self.column.count


def _found(output: Output) -> _Windows | None:
    """The window of an output that slides by 1 along two padded axes; None for others."""
    products = products_of_loads(output)
    if products is None:
        return None
    reduce, left, right = products
    if left.guard is None:
        return None
    moving = [a for a in output.axes if a.var in expr.free_vars(left.guard)]
    columns = [a for a in output.axes if a.var in expr.free_vars(right)]
    if len(moving) != 2 or len(columns) > 1 or columns[:1] in ([moving[0]], [moving[1]]):
        return None
    found = slides_of(left, reduce, moving)
    if found is None or len(found.rest) != 1 or any(s.step != 1 for s in found.along):
        return None
    (down, along), taps = found.along, found.rest
    if not all(isinstance(a.extent, int) for a in (*moving, *columns, *taps)):
        return None
    (channel,) = taps
    if 1 not in (expr.coefficient(left.indices[0], v) for v in (channel.var, along.at.var)):
        return None
    outer = tuple(a for a in output.axes if a not in (*moving, *columns))
    plain = replace(left, guard=None, other=None)
    column = columns[0] if columns else None
    return _Windows(reduce, plain, right, along, down, channel, column, outer)


class _TapSums:
    """The loops over bands of result lines, one per workgroup.

    Attributes:
        lines: of a band; 0 where scratch holds none.
        sums: [tap of a column][place of a line], with the line's padding: sums over channels.
        totals: [column][line of the band][result].
    """

    def __init__(
        self, nest: Nest, output: Output, windows: _Windows, plan: StageSchedule, panel: int
    ) -> None:
        self.nest, self.output, self.windows, self.panel = nest, output, windows, panel
        along, down = windows.along, windows.down
        self.results, self.height = along.at.count, down.at.count
        self.width = along.end - along.begin
        self.taps = windows.outputs * along.taps * down.taps
        self.chunks = max(1, min(plan.columns, self.width) // nest.lanes)
        size = windows.reduce.dtype.bytes
        self.lines = lines_of_band(
            self.taps * along.count * size,
            windows.outputs * self.results * size,
            self.height,
            nest.target.scratch_bytes,
        )
        if self.width < nest.lanes or not self.lines:
            self.lines = 0
            return
        scratch, dtype = nest.builder.scratch, windows.reduce.dtype
        self.reused = ReusedScratch(nest)
        self.sums = scratch("sums", dtype, (self.taps, along.count), Space.WORKGROUP)
        shape = windows.outputs, self.lines, self.results
        self.totals = scratch("totals", dtype, shape, Space.WORKGROUP)
        self.line, self.roles = self._contraction()
        step = expr.coefficient(self.roles.weight.indices[0], self.roles.columns.var)
        self.turned: Scratch | None = None
        if step != 1:
            terms = min(TURNED, windows.channel.count)
            shape = terms, self.chunks, nest.lanes
            self.turned = scratch("turned", dtype, shape, Space.WORKGROUP)

    def _contraction(self) -> tuple[Var, ContractionAxes]:
        """(variable of a place in a line, contraction of a line's places by all taps)."""
        windows, along, down = self.windows, self.windows.along, self.windows.down
        assert along.tap is not None and down.tap is not None
        line, tap, place = Var("line"), Var("tap"), Var("place")
        wide, high = expr.index(along.taps), expr.index(down.taps)
        number = expr.binary("floordiv", tap, wide)
        of_tap: Values = {
            along.tap.var: expr.binary("floormod", tap, wide),
            down.tap.var: expr.binary("floormod", number, high),
        }
        if windows.column is not None:
            of_tap[windows.column.var] = expr.binary("floordiv", number, high)
        zero = expr.index(0)
        of_place: Values = {
            along.at.var: expr.linear(place, along.begin),
            along.tap.var: zero,
            down.at.var: line,
            down.tap.var: zero,
        }
        ones: Values = {v: zero for v, n in windows.reduce.axes if n == 1}
        weights = expr.substitute(windows.right, {**ones, **of_tap})
        image = expr.substitute(windows.left, {**ones, **of_place})
        assert isinstance(image, Load)
        channel = windows.channel
        body = Binary("mul", weights, image, windows.reduce.dtype)
        reduce = replace(windows.reduce, axes=((channel.var, channel.extent),), body=body)
        rows, columns = Axis(tap, self.taps), Axis(place, self.width)
        return line, ContractionAxes(reduce, weights, image, image, rows, columns, ())

    def build(self) -> tuple[Stmt, ...]:
        nest, windows = self.nest, self.windows
        band = Axis(nest.builder.var("nb"), -(-self.height // self.lines))

        def body(values: Values) -> list[Stmt]:
            stmts: list[Stmt] = []
            first = expr.mul(values[band.var], expr.index(self.lines))
            first = nest.let(first, stmts, "first")
            stmts += self._zeros()
            stmts += nest.serial(
                windows.down.places(self.lines), lambda n: self._line(values, first, n), "n"
            )
            return stmts + nest.serial(self.lines, lambda y: self._finish(values, first, y), "y")

        return nest.grid([*windows.outer, band], body, 1 << 30)

    def _zeros(self) -> list[Stmt]:
        """Statements that zero the totals, and the sums at padding places."""
        nest, along, zero = self.nest, self.windows.along, expr.const(0, self.sums.dtype)

        def empty(o: Expr, y: Expr) -> list[Stmt]:
            return self._vectors(nest.lanes, lambda x, *_: [Store(self.totals, (o, y, x), zero)])

        stmts = nest.serial(
            self.windows.outputs, lambda o: nest.serial(self.lines, lambda y: empty(o, y), "y"), "o"
        )
        padding = [*range(along.begin), *range(along.end, along.count)]

        def tap(r: Expr) -> list[Stmt]:
            return [Store(self.sums, (r, expr.index(n)), zero) for n in padding]

        return stmts + nest.serial(self.taps, tap, "r")

    def _vectors(
        self, width: int, element: Callable[[Expr, int, Expr | None], list[Stmt]]
    ) -> list[Stmt]:
        """A loop over all results of a line, in vectors."""
        return row_of_vectors(self.nest, expr.index(0), self.results, width, element, may_mask=True)

    def _line(self, values: Values, first: Expr, n: Expr) -> list[Stmt]:
        """Statements that add line `n` of those a band reads to the band's totals."""
        nest, along, down = self.nest, self.windows.along, self.windows.down
        stmts: list[Stmt] = []
        line = nest.let(expr.add(first, n), stmts, "line")
        size = self.chunks * nest.lanes
        here = {**values, self.line: line}

        whole, rest = divmod(self.width, size)
        inside = nest.serial(
            whole,
            lambda t: self._tile(here, expr.mul(t, expr.index(self.chunks)), self.chunks, True),
            "t",
        )
        if rest:
            # the last places, with some before them
            chunks = min(self.chunks, -(-rest // nest.lanes))
            inside += self._tile(here, expr.index(whole * self.chunks), chunks, False)
        for tap in range(down.taps):
            y = expr.sub(n, expr.index(tap * down.apart))
            added: list[Stmt] = []
            for o in range(self.windows.outputs):
                taps = [(o * down.taps + tap) * along.taps + k for k in range(along.taps)]
                added += self._add(expr.index(o), y, taps)
            inside += where(between(y, 0, self.lines), added)
        return stmts + where(between(line, down.begin, down.end), inside)

    def _tile(self, values: Values, start: Expr, chunks: int, has_all: bool) -> list[Stmt]:
        """Statements that sum all taps at the places of a tile of `chunks` vectors."""
        nest, roles = self.nest, self.roles
        shape = Shape(self.taps, chunks, nest.lanes, True, has_all)
        output = Output(self.output.buffer, expr.index(0), roles.reduce, ())
        tile = Tile(Product(nest, output, roles, self.panel, self.reused), shape)
        place, begin = Place(values, expr.index(0), start), self.windows.along.begin
        if self.turned is None:
            return _PlaneTile(tile, place).into(self.sums, begin)
        return _LastTile(tile, self.turned, place).into(self.sums, begin)

    def _add(self, o: Expr, y: Expr, taps: Sequence[int]) -> list[Stmt]:
        """Adds shifted tap sums of an image row to the totals of row `y` of a band."""
        sums, totals, apart = self.sums, self.totals, self.windows.along.apart

        def element(x: Expr, width: int, lane: Expr | None) -> list[Stmt]:
            total: Expr = Load(totals, (o, y, x), totals.dtype)
            for k, tap in enumerate(taps):
                place = expr.linear(x, k * apart)
                total = expr.add(total, Load(sums, (expr.index(tap), place), sums.dtype))
            return [Store(totals, (o, y, x), total)]

        return self._vectors(SUMS * self.nest.lanes, element)

    def _finish(self, values: Values, first: Expr, y: Expr) -> list[Stmt]:
        """Epilogue and stores of row `y` of the band that begins at `first`, if it is in bounds."""
        nest, windows, stmts = self.nest, self.windows, list[Stmt]()
        for number in range(windows.outputs):
            o = expr.index(number)

            def element(x: Expr, width: int, lane: Expr | None, o: Expr = o) -> list[Stmt]:
                place = {**values, windows.down.at.var: expr.add(first, y)}
                place[windows.along.at.var] = x
                if windows.column is not None:
                    place[windows.column.var] = o
                total = Load(self.totals, (o, y, x), self.totals.dtype)
                done: dict[Expr, Expr] = {windows.reduce: total}
                return self.output.stores(nest, place, done.get)

            stmts += self._vectors(nest.lanes, element)
        return where(within(expr.add(first, y), self.height, self.lines), stmts)


class _Kept(SummedTile):
    """A tile whose sums are stored in scratch for later use."""

    def into(self, sums: Scratch, begin: int) -> list[Stmt]:
        """Statements that store all sums by row and column, from column `begin`."""
        acc = self.acc

        def store(r: Expr, u: Expr, lane: Expr) -> Stmt:
            at = expr.linear(self._column(u, lane), begin)
            return Store(sums, (r, at), Load(acc, (r, u, lane), acc.dtype))

        return self._zeros() + self._sum() + self.each_row(store)


class _LastTile(_Kept, TurnedTile):
    """A tile of places with contiguous channels."""


class _PlaneTile(_Kept):
    """A tile of contiguous places of planes, which prefetches later places."""

    def _steps(self, terms: Terms) -> list[Stmt]:
        inner, indices, left, start = terms
        assert inner is not None
        width, line = self.shape.columns, of_line(self.acc)

        def step(k: Expr) -> list[Stmt]:
            here = {**indices, inner.var: expr.add(start, k), **self.values}
            first = self._right(here, expr.index(0), expr.index(0))
            assert isinstance(first, Load)
            asked: list[Stmt] = []
            for n in range(0, width, line):
                asked += prefetch(first.source, expr.linear(first.indices[0], AHEAD * width + n))
            return asked + self._product(
                lambda r: expr.substitute(left, {**here, **self._at(r)}),
                lambda u, lane: self._right(here, u, lane),
            )

        return self.nest.serial(inner.extent, step, "k")
