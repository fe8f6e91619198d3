"""Pools with lanes along channels: combines taps down the plane first, then along rows.

For the rows of results of a tile the taps down the plane are combined for each place of a line,
into scratch; then those along the line. An extremum is taken as one instruction has it, whatever
it makes of NaN, where the elements, added up, are a number. CPU only. Chooses no lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.assumed_extents import IMAGE
from aot.ir.expr import Expr, Load, Reduce
from aot.kernels.ir.nodes import Scratch, Space, Stmt, Store
from aot.kernels.match.planes import MOST_TAPS, is_plain
from aot.kernels.match.slides import Slide, first_window
from aot.kernels.match.windows import Window
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.borders import skipped_guard
from aot.kernels.nest.lane_reductions import halved, over_lanes
from aot.kernels.nest.nest import Axis, Nest, Output, Values, combine, identity
from aot.kernels.nest.rows import row_of_vectors
from aot.kernels.nest.tiles import is_long
from aot.kernels.rules.windows.packed_windows import staged_window
from aot.kernels.stage.ahead import prefetch
from aot.kernels.stage.tails import where, whole_or_rest, widest, within

# rows of results whose taps down the plane are combined together, where their windows overlap by
# most of them
ROWS = 2
# vectors of a place that are combined together, and results side by side along a line, where
# registers hold them
VECTORS, RESULTS = 4, 8
# results side by side that share no place
APART = 2
# results of a tile along a line: as few as are stored while the next tile's terms are loaded, and
# as many as are worth all channels at a time, for each place that only neighbours share
COUNT, WIDE = 32, 8
# registers beside those of terms
BESIDE = 4


@dataclass(frozen=True)
class Pool:
    """A separable windowed reduction: taps down a plane and along its lines are combined
    separately.

    Attributes:
        load: of the plane.
        outer: axes of the result around its planes.
        lane: the axis of channels.
    """

    reduce: Reduce
    load: Load
    outer: tuple[Axis, ...]
    down: Slide
    along: Slide
    lane: Axis


def find_pool(nest: Nest, window: Window) -> Pool | None:
    """The separable window that `window` is, if channels fill a vector; else None."""
    extent = window.lane.extent
    return separable(nest, window) if isinstance(extent, int) and extent >= nest.lanes else None


def separable(nest: Nest, window: Window) -> Pool | None:
    """The separable window that `window` is; None for other windows."""
    reduce, rows = window.reduce, window.rows
    if nest.is_gpu or nest.lanes == 1 or rows is None or not window.outer:
        return None
    if reduce.op not in ("max", "min", "sum"):
        return None
    moving = [x for x in expr.loads(reduce.body) if rows.var in expr.free_vars(x)]
    if len(moving) != 1 or len([x for x in expr.loads(reduce.body) if x.guard is not None]) > 1:
        return None
    (load,) = moving
    if load.guard is not None and skipped_guard(reduce) != load.guard:
        return None
    made = staged_window(window, load)
    if made is None or made[1]:
        return None
    slides = made[0].along, made[0].down
    if not all(2 <= slide.taps <= MOST_TAPS for slide in slides):
        return None
    if not is_plain(reduce, load, slides):
        return None
    if reduce.op != "sum" and not all(map(_is_clamped, slides)):
        return None
    return Pool(reduce, load, window.outer[:-1], made[0].down, made[0].along, window.lane)


def _is_clamped(slide: Slide) -> bool:
    """Whether clamping an index at the border always yields an element of the same window."""
    if slide.begin <= 0 and slide.end >= slide.count:
        return True
    last = slide.step * (slide.at.count - 1)
    return slide.apart == 1 and slide.begin < slide.taps and last < slide.end


def rows_together(pool: Pool) -> int:
    """Result rows whose vertical taps are combined together, since they share most loads."""
    down = pool.down
    return 1 if down.taps <= down.step else min(ROWS, down.at.count)


def schedule_pool(work: Work) -> Build | None:
    """The loops of a separable window; None for other outputs, or if scratch cannot hold a line of
    a few results."""
    pool = None if work.window is None else find_pool(work.nest, work.window)
    made = None if pool is None else _Tiles.of(work.nest, work.reduced.output, pool)
    return None if made is None else made.build


class PoolTiles:
    """Tiles of a separable window: lines of results, with `row_results` neighbouring results each.

    Attributes:
        rows: of which taps down the plane are combined together.
        height: rows of a tile.
        vectors: side by side, whose taps down the plane are combined together.
        lines: what taps down the plane make: [line of results][place of a line], and the channel
            where channels lie side by side.
        is_asked: whether an extremum is quicker where no element is NaN.
    """

    def __init__(
        self, nest: Nest, output: Output, pool: Pool, sizes: tuple[int, int], lines: Scratch
    ) -> None:
        self.nest = nest
        self.output = output
        self.pool = pool
        self.rows, self.row_results = sizes
        self.lines = lines
        self.height: int = lines.shape[0]
        terms, registers = pool.down.places(self.rows), nest.target.vector_registers - BESIDE
        self.vectors = max(n for n in (1, 2, VECTORS) if n == 1 or n * terms <= registers)
        self.is_asked = (
            pool.reduce.op in ("max", "min")
            and lines.dtype.is_float
            and not nest.target.has_nan_extrema
        )
        elements = dims.estimate(dims.product([axis.extent for axis in output.axes]), IMAGE)
        both = None if elements is None else 2 * elements * pool.load.dtype.bytes
        self.is_far = nest.target.l2_bytes > 0 and (both is None or both > nest.target.l2_bytes)

    def lines_ahead(
        self, values: Values, offsets: Sequence[Expr], beside: Expr, width: int
    ) -> list[Stmt]:
        """Prefetches input far in memory that only the next result rows load: `width` elements, at
        `beside` from each of `offsets`.
        """
        if not self.is_far:
            return []
        down, load = self.pool.down, self.pool.load
        new = min(down.step * self.rows, down.places(self.rows))
        ahead = expr.index(down.step * self.rows * down.stride)
        places = (self.place(values, expr.linear(o, beside, ahead)) for o in offsets[-new:])
        return [s for place in places for s in prefetch(load.source, place, width)]

    def results_ahead(self, values: Values, width: int) -> list[Stmt]:
        """Prefetches the memory of the next result rows after `values`, `width` elements each,
        unless results bypass the cache.
        """
        buffer, down = self.output.buffer, self.pool.down.at.var
        if not self.is_far or buffer.is_streamed:
            return []
        later = {**values, down: expr.linear(values[down], self.height)}
        return prefetch(buffer, expr.substitute(self.output.address, later), width)

    def combined(
        self,
        width: int,
        down: Callable[[Scratch | None], list[Stmt]],
        along: Callable[[bool], list[Stmt]],
    ) -> list[Stmt]:
        """Statements that combine taps down the plane, then along the lines. They check for NaN
        once, and repeat the work with exact comparisons if there is one.

        Args:
            width: of the vectors whose elements are added up.
            down: given what they are added to; None where NaN is asked for.
            along: given whether it is not.
        """
        nest = self.nest
        exactly = down(None) + along(False)
        if not self.is_asked:
            return exactly
        seen = nest.builder.scratch("seen", self.lines.dtype, (width,))
        zero = expr.const(0, seen.dtype)
        stmts = over_lanes(nest, width, lambda n: [Store(seen, (n,), zero)])
        stmts += down(seen)
        stmts += halved(nest, "sum", seen, width, 1)
        total = nest.let(Load(seen, (expr.index(0),), seen.dtype), stmts, "total")
        is_number = expr.binary("eq", total, total)
        return stmts + where(is_number, along(True), exactly)

    def _reach(self, slide: Slide) -> int:
        """The number of places that all tiles read along an axis, including padding."""
        size = self.height if slide is self.pool.down else self.row_results
        return slide.places(-(-slide.at.count // size) * size)

    def offset(self, slide: Slide, place: Expr, into: list[Stmt]) -> Expr:
        """The offset, in elements, of a place from the first one; for an extremum, that of the
        nearest valid place.
        """
        if self.pool.reduce.op != "sum":
            if slide.begin > 0:
                place = expr.binary("max", place, expr.index(slide.begin))
            if slide.end < self._reach(slide):
                place = expr.binary("min", place, expr.index(slide.end - 1))
        return self.nest.let(expr.mul(place, expr.index(slide.stride)), into, "ahead")

    def guard(self, slide: Slide, places: tuple[Expr, Expr]) -> Expr | None:
        """The condition that the first and the last of some places are valid, if a sum needs it;
        else None.
        """
        if self.pool.reduce.op != "sum":
            return None
        return slide.is_there(*places, self._reach(slide))

    def terms(
        self,
        values: Values,
        offsets: Sequence[Expr],
        beside: Expr,
        guards: Sequence[Expr | None],
        into: list[Stmt],
    ) -> list[Expr]:
        """The window's elements at `beside` from each of `offsets`, bound to variables."""
        places = [expr.add(offset, beside) for offset in offsets]
        found = (self._term(values, *each) for each in zip(places, guards, strict=True))
        return [self.nest.let(term, into, "term") for term in found]

    def _term(self, values: Values, ahead: Expr, guard: Expr | None) -> Expr:
        pool = self.pool
        other = None if guard is None else expr.const(0, pool.load.dtype)
        at = (self.place(values, ahead),)
        load = Load(pool.load.source, at, pool.load.dtype, guard, other)
        body = expr.transform(pool.reduce.body, {pool.load: load}.get)  # type: ignore[arg-type]
        return expr.substitute(body, {**self._nowhere, **values})

    @property
    def _nowhere(self) -> Values:
        return first_window(self.pool.reduce, self.pool.down, self.pool.along)

    def place(self, values: Values, ahead: Expr) -> Expr:
        """The memory index of a place that is `ahead` elements after the first one."""
        index = expr.substitute(self.pool.load.indices[0], {**values, **self._nowhere})
        return expr.add(index, ahead)

    def lines_from(
        self, top: Expr, body: Callable[[Sequence[Expr], Sequence[Expr | None]], list[Stmt]]
    ) -> list[Stmt]:
        """`body(offsets, guards)` for the plane's lines from `top` whose taps are combined
        together; without guards where all lines are valid."""
        down, stmts = self.pool.down, list[Stmt]()
        lines = [expr.linear(top, n) for n in range(down.places(self.rows))]
        offsets = [self.offset(down, line, stmts) for line in lines]
        guards = [self.guard(down, (line, line)) for line in lines]
        are_inside = self.guard(down, (lines[0], lines[-1]))
        free = body(offsets, [None] * len(lines))
        return stmts + where(are_inside, free, lambda: body(offsets, guards))

    def column(
        self,
        terms: Sequence[Expr],
        line: Expr,
        place: tuple[Expr, ...],
        lane: Expr | None,
        seen: Scratch | None,
    ) -> list[Stmt]:
        """Statements that combine the elements `terms` of one column down the plane, and store one
        value per result line from `line`."""
        down = self.pool.down
        stmts: list[Stmt] = []
        for row in range(self.rows):
            taps = [terms[down.step * row + down.apart * k] for k in range(down.taps)]
            made = self.folded(taps, is_quick=seen is not None)
            stmts.append(Store(self.lines, (expr.linear(line, row), *place), made))
        if seen is not None:
            slot = expr.index(0) if lane is None else lane
            total: Expr = Load(seen, (slot,), seen.dtype)
            stmts.append(Store(seen, (slot,), expr.add(total, _sum(terms))))
        return stmts

    def folded(self, terms: Sequence[Expr], *, is_quick: bool) -> Expr:
        """All `terms` combined, without NaN checks if `is_quick`."""
        op = self.pool.reduce.op
        total, *others = terms
        for term in others:
            if is_quick and op != "sum":
                ask = expr.binary("gt" if op == "max" else "lt", term, total)
                total = expr.select(ask, term, total)
            else:
                total = combine(op, total, term)
        return total


def _sum(terms: Sequence[Expr]) -> Expr:
    """The sum of all terms as a balanced tree, so that additions overlap."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return expr.add(_sum(terms[:half]), _sum(terms[half:]))


class _Tiles(PoolTiles):
    """Tiles whose lanes run along the `channels` of each place.

    Attributes:
        results: side by side along a line.
    """

    def __init__(
        self, nest: Nest, output: Output, pool: Pool, rows: int, row_results: int, channels: int
    ) -> None:
        shape = rows, pool.along.places(row_results), channels
        lines = nest.builder.scratch("lines", pool.reduce.dtype, shape, Space.WORKGROUP)
        super().__init__(nest, output, pool, (rows, row_results), lines)
        self.channels = channels
        registers = nest.target.vector_registers - BESIDE
        most = RESULTS if pool.along.step < pool.along.taps else APART
        fitting = [n for n in range(1, most + 1) if pool.along.places(n) <= registers]
        self.results = 1 if is_long(output.values, pool.reduce) else max(fitting, default=1)

    @staticmethod
    def of(nest: Nest, output: Output, pool: Pool) -> _Tiles | None:
        along = pool.along
        rows = rows_together(pool)
        most = min(nest.target.scratch_bytes, nest.target.l1_bytes // 2)
        most //= pool.reduce.dtype.bytes * rows
        shared = along.places(1) - along.step
        channels = pool.lane.count

        def fitting() -> int:
            return (most // channels - shared) // along.step

        while fitting() < min(WIDE * shared, along.at.count) and channels > nest.lanes * VECTORS:
            channels = -(-channels // 2 // nest.lanes) * nest.lanes
        if fitting() < 1:
            return None
        tiles = -(-along.at.count // min(fitting(), COUNT))
        return _Tiles(nest, output, pool, rows, -(-along.at.count // tiles), channels)

    def build(self) -> tuple[Stmt, ...]:
        nest, pool = self.nest, self.pool
        down, along, lane = pool.down.at, pool.along.at, pool.lane
        sizes = (self.rows, self.row_results, self.channels)
        tiles = [
            Axis(nest.builder.var(name), -(-axis.count // size))
            for name, axis, size in zip(("mt", "at", "ct"), (down, along, lane), sizes, strict=True)
        ]
        # down the plane last, so that lines that several rows of results read are still near
        axes = [*pool.outer, tiles[2], tiles[1], tiles[0]]

        def body(values: Values) -> list[Stmt]:
            first = [
                expr.mul(values[tile.var], expr.index(size))
                for tile, size in zip(tiles, sizes, strict=True)
            ]
            return self._by_channels(values, first)

        taps = (pool.down.taps + pool.along.taps) // 2
        work = self.rows * self.row_results * self.channels * taps // 2
        return nest.grid(axes, body, max(1, work))

    def _by_channels(self, values: Values, first: Sequence[Expr]) -> list[Stmt]:
        """Statements for a tile at its place, with all channels or the last tile's remainder."""
        return whole_or_rest(
            *(first[2], self.pool.lane.count, self.channels),
            lambda channels: self._tile(values, first, channels),
        )

    def _tile(self, values: Values, first: Sequence[Expr], channels: int) -> list[Stmt]:
        return self.combined(
            self._width(channels),
            lambda seen: self._down(values, first, channels, seen),
            lambda is_quick: self._along(values, first, channels, is_quick=is_quick),
        )

    # Down the plane

    def _down(
        self, values: Values, first: Sequence[Expr], channels: int, seen: Scratch | None
    ) -> list[Stmt]:
        """Statements that combine the taps down the plane for each place of a line, into scratch;
        with `seen`, they also add all elements to it, to detect NaN."""
        nest, along, lane_axis = self.nest, self.pool.along, self.pool.lane.var
        top = expr.mul(first[0], expr.index(self.pool.down.step))
        left = expr.mul(first[1], expr.index(along.step))
        is_rare = self.is_asked and seen is None

        def places(offsets: Sequence[Expr], guards: Sequence[Expr | None]) -> list[Stmt]:
            def place(x: Expr) -> list[Stmt]:
                at = expr.add(left, x)
                stmts: list[Stmt] = []
                beside = self.offset(along, at, stmts)

                def element(c: Expr, width: int, lane: Expr | None) -> list[Stmt]:
                    here = {**values, lane_axis: expr.add(first[2], c)}
                    found: list[Stmt] = []
                    terms = self.terms(here, offsets, beside, guards, found)
                    return [*found, *self.column(terms, expr.index(0), (x, c), lane, seen)]

                def before(c: Expr, width: int) -> list[Stmt]:
                    here = {**values, lane_axis: expr.add(first[2], c)}
                    return self.lines_ahead(here, offsets, beside, width)

                width = self._narrow(channels) if is_rare else self._width(channels)
                may_ask = not is_rare and all(guard is None for guard in guards)
                stmts += row_of_vectors(
                    *(nest, expr.index(0), channels, width, element),
                    before=before if may_ask else None,
                )
                is_there = self.guard(along, (at, at))
                return where(is_there, stmts, lambda: self._blank(x, channels))

            return nest.serial(along.places(self.row_results), place, "x")

        return self.lines_from(top, places)

    def _width(self, channels: int) -> int:
        """The widest vector width for `channels` channels."""
        return widest(self.nest.lanes * self.vectors, channels)

    def _blank(self, x: Expr, channels: int) -> list[Stmt]:
        """Statements that fill a place in scratch with padding."""
        nothing = identity(self.pool.reduce.op, self.lines.dtype)
        return [
            stmt
            for row in range(self.rows)
            for stmt in row_of_vectors(
                *(self.nest, expr.index(0), channels, self._width(channels)),
                lambda c, width, lane, row=row: [  # type: ignore[misc]
                    Store(self.lines, (expr.index(row), x, c), nothing)
                ],
            )
        ]

    # Along the lines

    def _along(
        self, values: Values, first: Sequence[Expr], channels: int, *, is_quick: bool
    ) -> list[Stmt]:
        """Statements that combine the taps along each line in scratch, and finish the results."""
        nest, pool = self.nest, self.pool
        down, along = pool.down.at, pool.along.at

        def line(row: Expr, count: int) -> list[Stmt]:
            at = expr.add(first[0], row)
            here = {**values, down.var: at}

            def group(start: Expr, size: int) -> list[Stmt]:
                def element(c: Expr, width: int, lane: Expr | None) -> list[Stmt]:
                    there = {**here, pool.lane.var: expr.add(first[2], c)}
                    return self._results(there, first[1], (row, start, c), size, is_quick)

                def before(c: Expr, width: int) -> list[Stmt]:
                    there = {**here, pool.lane.var: expr.add(first[2], c)}
                    at = [expr.add(first[1], expr.linear(start, r)) for r in range(size)]
                    places = [{**there, along.var: place} for place in at]
                    return [s for place in places for s in self.results_ahead(place, width)]

                return row_of_vectors(
                    *(nest, expr.index(0), channels, self._narrow(channels), element),
                    before=before if is_quick or not self.is_asked else None,
                )

            size = min(1 if self.is_asked and not is_quick else self.results, count)
            whole, rest = divmod(count, size)
            stmts = nest.serial(whole, lambda g: group(expr.mul(g, expr.index(size)), size), "g")
            if rest:
                stmts += group(expr.index(whole * size), rest)
            return where(within(at, down.extent, self.rows), stmts)

        def lines(count: int) -> list[Stmt]:
            return nest.serial(self.rows, lambda row: line(row, count), "row")

        return whole_or_rest(first[1], along.count, self.row_results, lines)

    def _narrow(self, channels: int) -> int:
        return min(self._width(channels), self.nest.lanes)

    def _results(
        self,
        values: Values,
        first: Expr,
        begin: tuple[Expr, Expr, Expr],
        size: int,
        is_quick: bool,
    ) -> list[Stmt]:
        """Statements for `size` neighbouring results of a row, for one channel vector."""
        nest, along, (row, start, c) = self.nest, self.pool.along, begin
        left = expr.mul(start, expr.index(along.step))
        stmts: list[Stmt] = []
        places = [(row, expr.linear(left, n), c) for n in range(along.places(size))]
        loads = [Load(self.lines, place, self.lines.dtype) for place in places]
        columns = [nest.let(load, stmts, "column") for load in loads]
        for r in range(size):
            taps = [columns[along.step * r + along.apart * k] for k in range(along.taps)]
            made = {self.pool.reduce: self.folded(taps, is_quick=is_quick)}
            at = expr.add(first, expr.linear(start, r))
            stmts += self.output.stores(nest, {**values, along.at.var: at}, made.get)  # type: ignore[arg-type]
        return stmts
