"""Pools whose lanes go along channels: combines taps down the plane before those along a row.

For the rows of results of a tile the taps down the plane are combined for each place of a line,
into scratch; then those along the line. An extremum is taken as one instruction has it, whatever
it makes of NaN, where the elements, added up, are a number. CPU only. Chooses no lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.assumed_extents import IMAGE
from aot.ir.expr import Expr, Load, Reduce, Var
from aot.kernels.ir.nodes import Buffer, If, Prefetch, Scratch, Space, Stmt, Store
from aot.kernels.match.windows import Window
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.borders import skipped_guard
from aot.kernels.nest.lane_reductions import halved, over_lanes
from aot.kernels.nest.nest import Axis, Nest, Output, Values, combine, identity
from aot.kernels.nest.rows import row_of_vectors
from aot.kernels.nest.tiles import is_long
from aot.kernels.rules.windows.packed_windows import slides_of
from aot.kernels.rules.windows.padded import Slide
from aot.target.model import CACHE_LINE

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
# taps along either axis that are written out
MOST_TAPS = 32


@dataclass(frozen=True)
class Pool:
    """A reduction over the taps of a window, down a plane of channels and along its lines.

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
    """The separable window that `window` is, if it is one and channels fill a vector."""
    extent = window.lane.extent
    return separable(nest, window) if isinstance(extent, int) and extent >= nest.lanes else None


def separable(nest: Nest, window: Window) -> Pool | None:
    """The separable window that `window` is, if it is one."""
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
    made = slides_of(window, load)
    if made is None or made[1]:
        return None
    slides = made[0].along, made[0].down
    if not all(2 <= slide.taps <= MOST_TAPS for slide in slides):
        return None
    if not _is_plain(reduce, load, slides):
        return None
    if reduce.op != "sum" and not all(map(_is_clamped, slides)):
        return None
    return Pool(reduce, load, window.outer[:-1], made[0].down, made[0].along, window.lane)


def _is_plain(reduce: Reduce, load: Load, slides: Sequence[Slide]) -> bool:
    """Whether no term knows its tap, nor whose window it is of."""
    staged = Var("staged", load.dtype)
    term = expr.transform(reduce.body, {load: staged}.get)  # type: ignore[arg-type]
    known = {slide.at.var for slide in slides} | {v for v, _ in reduce.axes}
    return not expr.free_vars(term) & known


def _is_clamped(slide: Slide) -> bool:
    """Whether the nearest existing place belongs to each window that has places past the border."""
    if slide.begin <= 0 and slide.end >= slide.count:
        return True
    last = slide.step * (slide.at.count - 1)
    return slide.apart == 1 and slide.begin < slide.taps and last < slide.end


def rows_together(pool: Pool) -> int:
    """Result rows whose vertical taps are combined together, since they share most loads."""
    down = pool.down
    return 1 if down.taps <= down.step else min(ROWS, down.at.count)


def schedule_pool(work: Work) -> Build | None:
    """The loops of a separable window; None where it is none, or scratch doesn't hold a line of a
    few results."""
    pool = None if work.window is None else find_pool(work.nest, work.window)
    made = None if pool is None else _Tiles.of(work.nest, work.reduced.output, pool)
    return None if made is None else made.build


class PoolTiles:
    """Tiles of a separable window: lines of results, `count` neighbours of each.

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
        self.rows, self.count = sizes
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
        """Prefetches the input that only the next result rows load, where it is far in memory:
        `width` elements, `beside` behind the starts `offsets`.
        """
        if not self.is_far:
            return []
        down, load = self.pool.down, self.pool.load
        new = min(down.step * self.rows, down.places(self.rows))
        ahead = expr.index(down.step * self.rows * down.stride)
        asked: list[Stmt] = []
        for offset in offsets[-new:]:
            at = self.place(values, expr.add(expr.add(offset, beside), ahead))
            asked += _lines(load.source, at, width)
        return asked

    def results_ahead(self, values: Values, width: int) -> list[Stmt]:
        """Prefetches the memory of the next rows of results after `values`, `width` neighbours of
        each, unless they are stored past the caches.
        """
        if not self.is_far or self.output.buffer.is_streamed:
            return []
        down = self.pool.down.at.var
        later = {**values, down: expr.add(values[down], expr.index(self.height))}
        return _lines(self.output.buffer, expr.substitute(self.output.address, later), width)

    def combined(
        self,
        width: int,
        down: Callable[[Scratch | None], list[Stmt]],
        along: Callable[[bool], list[Stmt]],
    ) -> list[Stmt]:
        """Statements that combine taps down the plane, then along the lines: by a quick way unless
        an element is NaN, else by an exact one, which is rare and little code.

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
        return [*stmts, If(is_number, tuple(along(True)), tuple(exactly))]

    def _reach(self, slide: Slide) -> int:
        """The places that all tiles read along an axis, be they there or not."""
        size = self.height if slide is self.pool.down else self.count
        return slide.places(-(-slide.at.count // size) * size)

    def offset(self, slide: Slide, place: Expr, into: list[Stmt]) -> Expr:
        """How far, in elements, a place lies behind the first one; for an extremum that of the
        nearest place that exists.
        """
        if self.pool.reduce.op != "sum":
            if slide.begin > 0:
                place = expr.binary("max", place, expr.index(slide.begin))
            if slide.end < self._reach(slide):
                place = expr.binary("min", place, expr.index(slide.end - 1))
        return self.nest.let(expr.mul(place, expr.index(slide.stride)), into, "ahead")

    def guard(self, slide: Slide, places: tuple[Expr, Expr]) -> Expr | None:
        """The condition that the first and the last of some places exist, if a sum needs it; else
        None.
        """
        if self.pool.reduce.op != "sum":
            return None
        return slide.is_there(*places, self._reach(slide))

    def term(self, values: Values, ahead: Expr, guard: Expr | None) -> Expr:
        """The term of a place that lies `ahead` elements behind the first one."""
        pool = self.pool
        other = None if guard is None else expr.const(0, pool.load.dtype)
        at = (self.place(values, ahead),)
        load = Load(pool.load.source, at, pool.load.dtype, guard, other)
        body = expr.transform(pool.reduce.body, {pool.load: load}.get)  # type: ignore[arg-type]
        return expr.substitute(body, {**self._nowhere, **values})

    @property
    def _nowhere(self) -> Values:
        """The first place of the first window."""
        pool = self.pool
        zero: Values = {v: expr.index(0) for v, _ in pool.reduce.axes}
        return {**zero, pool.down.at.var: expr.index(0), pool.along.at.var: expr.index(0)}

    def place(self, values: Values, ahead: Expr) -> Expr:
        """The index in memory of a place that lies `ahead` elements behind the first one."""
        index = expr.substitute(self.pool.load.indices[0], {**values, **self._nowhere})
        return expr.add(index, ahead)

    def column(
        self,
        terms: Sequence[Expr],
        line: Expr,
        place: tuple[Expr, ...],
        lane: Expr | None,
        seen: Scratch | None,
    ) -> list[Stmt]:
        """Stores what the `terms` of a place's lines make for each line of results from `line`."""
        down = self.pool.down
        stmts: list[Stmt] = []
        for row in range(self.rows):
            taps = [terms[down.step * row + down.apart * k] for k in range(down.taps)]
            made = self.folded(taps, is_quick=seen is not None)
            stmts.append(Store(self.lines, (expr.add(line, expr.index(row)), *place), made))
        if seen is not None:
            slot = expr.index(0) if lane is None else lane
            total: Expr = Load(seen, (slot,), seen.dtype)
            stmts.append(Store(seen, (slot,), expr.add(total, _sum(terms))))
        return stmts

    def folded(self, terms: Sequence[Expr], *, is_quick: bool) -> Expr:
        """All `terms` combined; with `is_quick` without a check for NaN."""
        op = self.pool.reduce.op
        total, *others = terms
        for term in others:
            if is_quick and op != "sum":
                ask = expr.binary("gt" if op == "max" else "lt", term, total)
                total = expr.select(ask, term, total)
            else:
                total = combine(op, total, term)
        return total


def _lines(buffer: Buffer | Scratch, at: Expr, width: int) -> list[Stmt]:
    """Asks for `width` elements that follow each other."""
    assert isinstance(buffer, Buffer)
    step = max(1, CACHE_LINE // buffer.dtype.bytes)
    return [Prefetch(buffer, expr.add(at, expr.index(n))) for n in range(0, width, step)]


def _sum(terms: Sequence[Expr]) -> Expr:
    """The sum of all terms as a balanced tree, so that additions overlap."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return expr.add(_sum(terms[:half]), _sum(terms[half:]))


class _Tiles(PoolTiles):
    """Tiles whose lanes are `channels` of each place.

    Attributes:
        results: side by side along a line.
    """

    def __init__(
        self, nest: Nest, output: Output, pool: Pool, rows: int, count: int, channels: int
    ) -> None:
        shape = rows, pool.along.places(count), channels
        lines = nest.builder.scratch("lines", pool.reduce.dtype, shape, Space.WORKGROUP)
        super().__init__(nest, output, pool, (rows, count), lines)
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

        def count() -> int:
            return (most // channels - shared) // along.step

        while count() < min(WIDE * shared, along.at.count) and channels > nest.lanes * VECTORS:
            channels = -(-channels // 2 // nest.lanes) * nest.lanes
        if count() < 1:
            return None
        tiles = -(-along.at.count // min(count(), COUNT))
        return _Tiles(nest, output, pool, rows, -(-along.at.count // tiles), channels)

    def build(self) -> tuple[Stmt, ...]:
        nest, pool = self.nest, self.pool
        down, along, lane = pool.down.at, pool.along.at, pool.lane
        sizes = (self.rows, self.count, self.channels)
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
        work = self.rows * self.count * self.channels * taps // 2
        return nest.grid(axes, body, max(1, work))

    def _by_channels(self, values: Values, first: Sequence[Expr]) -> list[Stmt]:
        """Statements for a tile at its place, with all of its channels, or those that the last tile
        has.
        """
        whole, rest = self.channels, self.pool.lane.count % self.channels
        if rest == 0:
            return self._tile(values, first, whole)
        end = expr.add(first[2], expr.index(whole))
        is_whole = expr.binary("le", end, expr.index(self.pool.lane.extent))
        return [
            If(
                is_whole,
                tuple(self._tile(values, first, whole)),
                tuple(self._tile(values, first, rest)),
            )
        ]

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
        """The taps down the plane for each place of a line, into scratch; all that is combined is
        added to what is `seen`."""
        nest, down, along = self.nest, self.pool.down, self.pool.along
        top = expr.mul(first[0], expr.index(down.step))
        left = expr.mul(first[1], expr.index(along.step))
        lines = [expr.add(top, expr.index(n)) for n in range(down.places(self.rows))]
        is_rare = self.is_asked and seen is None
        stmts: list[Stmt] = []
        offsets = [self.offset(down, line, stmts) for line in lines]
        guards = [self.guard(down, (line, line)) for line in lines]

        def places(asked: Sequence[Expr | None]) -> list[Stmt]:
            def place(x: Expr) -> list[Stmt]:
                at = expr.add(left, x)
                inside: list[Stmt] = []
                beside = self.offset(along, at, inside)

                def element(c: Expr, width: int, lane: Expr | None) -> list[Stmt]:
                    here = {**values, self.pool.lane.var: expr.add(first[2], c)}
                    found: list[Stmt] = []
                    terms = [
                        nest.let(self.term(here, expr.add(offset, beside), guard), found, "term")
                        for offset, guard in zip(offsets, asked, strict=True)
                    ]
                    return [*found, *self.column(terms, expr.index(0), (x, c), lane, seen)]

                def before(c: Expr, width: int) -> list[Stmt]:
                    here = {**values, self.pool.lane.var: expr.add(first[2], c)}
                    return self.lines_ahead(here, offsets, beside, width)

                width = self._narrow(channels) if is_rare else self._width(channels)
                may_ask = not is_rare and all(guard is None for guard in asked)
                inside += row_of_vectors(
                    *(nest, expr.index(0), channels, width, element),
                    before=before if may_ask else None,
                )
                guard = self.guard(along, (at, at))
                if guard is None:
                    return inside
                return [If(guard, tuple(inside), tuple(self._blank(x, channels)))]

            return nest.serial(along.places(self.count), place, "x")

        inside = self.guard(down, (lines[0], lines[-1]))
        free = places([None] * len(lines))
        return stmts + (
            free if inside is None else [If(inside, tuple(free), tuple(places(guards)))]
        )

    def _width(self, channels: int) -> int:
        """The widest vector width for `channels` channels."""
        width = self.nest.lanes * self.vectors
        while width > 1 and width > channels:
            width //= 2
        return width

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
        """The taps along each line in scratch, and what becomes of them."""
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
                    at = [expr.add(first[1], expr.add(start, expr.index(r))) for r in range(size)]
                    places = [{**there, along.var: place} for place in at]
                    return [s for place in places for s in self.results_ahead(place, width)]

                return row_of_vectors(
                    *(nest, expr.index(0), channels, self._narrow(channels), element),
                    before=before if is_quick or not self.is_asked else None,
                )

            size = min(1 if self.is_asked and not is_quick else self.results, count)
            whole = count // size
            stmts = nest.serial(whole, lambda g: group(expr.mul(g, expr.index(size)), size), "g")
            if count % size:
                stmts += group(expr.index(whole * size), count % size)
            if down.count % self.rows == 0:
                return stmts
            return [If(expr.binary("lt", at, expr.index(down.extent)), tuple(stmts))]

        def lines(count: int) -> list[Stmt]:
            return nest.serial(self.rows, lambda row: line(row, count), "row")

        rest = along.count % self.count
        if rest == 0:
            return lines(self.count)
        end = expr.add(first[1], expr.index(self.count))
        is_whole = expr.binary("le", end, expr.index(along.extent))
        return [If(is_whole, tuple(lines(self.count)), tuple(lines(rest)))]

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
        """Statements for `size` neighbouring results of a row and channel."""
        nest, along, (row, start, c) = self.nest, self.pool.along, begin
        left = expr.mul(start, expr.index(along.step))
        stmts: list[Stmt] = []
        columns = [
            nest.let(
                Load(self.lines, (row, expr.add(left, expr.index(n)), c), self.lines.dtype),
                stmts,
                "column",
            )
            for n in range(along.places(size))
        ]
        for r in range(size):
            taps = [columns[along.step * r + along.apart * k] for k in range(along.taps)]
            made = {self.pool.reduce: self.folded(taps, is_quick=is_quick)}
            at = expr.add(first, expr.add(start, expr.index(r)))
            stmts += self.output.stores(nest, {**values, along.at.var: at}, made.get)  # type: ignore[arg-type]
        return stmts
