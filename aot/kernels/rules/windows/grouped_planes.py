"""Convolutions in groups over planes, and at points some places apart: lanes along places, line
after line.

A group's channels of some lines are in scratch with their padding, each line behind the one before,
so that vectors of places go over the ends of lines, and few lanes of them are between lines. A
tile has some of a group's columns, whose weights are scalars. CPU only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.expr import Expr, Load
from aot.kernels.ir.nodes import Buffer, If, Prefetch, Scratch, Space, Stmt, Store
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.nest import Axis, Nest, Output, Values, combined
from aot.kernels.nest.rows import row_of_vectors
from aot.kernels.rules.windows.groups import Groups, groups_over_planes, phases_of
from aot.kernels.rules.windows.padded import Taps
from aot.target.model import CACHE_LINE, Target

Fact = TypeVar("Fact")

# columns of a tile at most, and registers beside those of sums and places
MOST_COLUMNS, OTHERS = 12, 2
# what it takes to bring a vector of places, in products of vectors
BROUGHT = 5
# of points, which other tiles have as well: the most time for each product
MOST_LOST = 1.35
# tiles that are tried, what those take at most of what the best one does, and strips of a line
MOST_TILES, ALMOST, MOST_STRIPS = 6, 1.1, 16
NARROW = 16  # bytes of a vector that a group may fill
MANY_REGISTERS = 32


def schedule_grouped_planes(work: Work) -> Build | None:
    """The loops of a convolution in groups over planes; None for any other."""
    nest = work.nest
    is_scalar = nest.is_gpu or nest.lanes == 1
    found = None if is_scalar or work.blocks is not None else groups_over_planes(work.output)
    if found is None:
        return None
    if not _is_better(nest.target, found[1]):
        return None
    made = _GroupedPlanes(nest, *found)
    return made.build if made.band is not None else None


def _is_better(target: Target, groups: Groups) -> bool:
    """Whether lanes along places are better than along so many columns, which may fill the narrow
    vectors of some targets, or than other tiles of points, whose columns are many."""
    members, has_many = groups.member.count, target.vector_registers >= MANY_REGISTERS
    if groups.along.tap is None and groups.down.tap is None:
        return target.vector_bytes > NARROW and has_many
    if target.vector_bytes > NARROW:
        return True
    if not has_many:
        return members < 2 * NARROW // 4
    return members % target.panel != 0 and members < 2 * target.panel


@dataclass(frozen=True)
class _Band:
    """The share of a group's results that a workgroup computes.

    Attributes:
        columns, chunks: of a tile: columns of the group by vectors of places.
        lines, width: of the results: so many lines of so many neighbours.
        pitch: places from a line to the next one in scratch.
        tiles: that have all places of a band, with those between lines.
        places: of a channel and phase in scratch.
        size: elements of scratch.
    """

    columns: int
    chunks: int
    lines: int
    width: int
    pitch: int
    tiles: int
    places: int
    size: int


class _GroupedPlanes:
    """The loops over bands of the result, each a workgroup's of one group.

    Attributes:
        columns, chunks: of the band's tiles.
        inner: channels of a group.
        phases: that planes are in, in scratch.
        band: None where scratch holds none.
        bands, strips: how many there are down the planes, and along them.
        is_large: whether planes come from beyond the second level of cache.
        held: [channel][phase down, along][place]
        sums: [column of a tile][place]
    """

    def __init__(self, nest: Nest, output: Output, groups: Groups) -> None:
        self.nest, self.output, self.groups = nest, output, groups
        along, down = groups.along, groups.down
        lanes = nest.lanes
        self.width, self.height = along.at.count, down.at.count
        self.inner = 1 if groups.channel is None else groups.channel.count
        self.phases = len(phases_of(down)) * len(phases_of(along))
        self.band = self._best_band()
        if self.band is None:
            return
        self.columns, self.chunks = self.band.columns, self.band.chunks
        self.bands = -(-self.height // self.band.lines)
        self.strips = -(-self.width // self.band.width)
        source = groups.left.source
        size = source.least_elements if isinstance(source, Buffer) else 0
        self.is_large = size * source.dtype.bytes > nest.target.l2_bytes // 2
        scratch = nest.builder.scratch
        shape = self.inner, self.phases, self.band.places
        self.held: Scratch = scratch("held", groups.left.dtype, shape, Space.WORKGROUP)
        sums = self.columns, self.band.tiles * self.chunks * lanes
        self.sums: Scratch = scratch("sums", groups.reduce.dtype, sums, Space.WORKGROUP)

    def _best_band(self) -> _Band | None:
        """The band of image rows that computes all results fastest and fits scratch."""
        groups, target = self.groups, self.nest.target
        most = target.scratch_bytes // groups.left.dtype.bytes
        taps = groups.along.taps * groups.down.taps
        members = groups.member.count
        best, least = None, 0.0
        for columns, chunks, cost in _tiles(members, target.vector_registers - OTHERS):
            for strips in range(1, min(self.width // self.nest.lanes, MOST_STRIPS) + 2):
                width = -(-self.width // strips)
                lines = min(self.height, most // ((self.inner * self.phases + columns) * width))
                while lines and self._band_of(lines, width, columns, chunks).size > most:
                    lines -= 1
                if lines == 0:
                    continue
                bands = -(-self.height // lines)
                band = self._band_of(-(-self.height // bands), width, columns, chunks)
                products = band.tiles * chunks * taps * cost
                brought = BROUGHT * band.places * self.phases // self.nest.lanes
                time = bands * -(-self.width // width) * (products + brought)
                if best is None or time < least:
                    best, least = band, time
        places = self.width * self.height / self.nest.lanes
        if taps == 1 and least > MOST_LOST * places * members:
            return None  # lines are few, so that most places are between them
        return best

    def _band_of(self, lines: int, width: int, columns: int, chunks: int) -> _Band:
        along, down, lanes = self.groups.along, self.groups.down, self.nest.lanes
        pitch = width + along.apart * (along.taps - 1) // along.step
        tiles = -(-((lines - 1) * pitch + width) // (lanes * chunks))
        results = tiles * chunks * lanes
        last = down.apart * (down.taps - 1) // down.step * pitch
        last += along.apart * (along.taps - 1) // along.step
        held = max(results + last, -(-down.places(lines) // down.step) * pitch)
        # zeros behind a line's end are whole vectors
        places = (-(-held // lanes) + 1) * lanes
        size = self.inner * self.phases * places + columns * results
        return _Band(columns, chunks, lines, width, pitch, tiles, places, size)

    def build(self) -> tuple[Stmt, ...]:
        nest, groups, down, band = self.nest, self.groups, self.groups.down, self.band
        assert band is not None
        number = Axis(nest.builder.var("band"), self.bands)
        strip = Axis(nest.builder.var("strip"), self.strips)
        inside = groups.along.at, down.at, groups.member
        outer = [a for a in self.output.axes if a not in inside]

        def body(values: Values) -> list[Stmt]:
            stmts: list[Stmt] = []
            first = expr.mul(values[number.var], expr.index(band.lines))
            first = nest.let(first, stmts, "first")
            start = expr.mul(values[strip.var], expr.index(band.width))
            start = nest.let(start, stmts, "start")
            place = first, start
            stmts += self._by_strip(
                values[strip.var],
                [self._ranges(n) for n in range(self.strips)],
                lambda ranges: self._fill(values, place, ranges),
            )
            whole, rest = divmod(groups.member.count, self.columns)

            def tile(m: Expr, columns: int) -> list[Stmt]:
                begin = expr.mul(m, expr.index(self.columns))
                inside: list[Stmt] = []
                begin = nest.let(begin, inside, "begin")
                inside += nest.serial(
                    band.tiles,
                    lambda n: [
                        *self._ask(values, place, values[strip.var], begin, n),
                        *self._tile(values, begin, columns, n),
                    ],
                    "t",
                )
                widths = [min(band.width, self.width - n * band.width) for n in range(self.strips)]
                return inside + self._by_strip(
                    values[strip.var],
                    widths,
                    lambda width: self._finish(values, place, begin, columns, width),
                )

            stmts += nest.serial(whole, lambda m: tile(m, self.columns), "m")
            if rest:
                stmts += tile(expr.index(whole), rest)
            return stmts

        terms = dims.product([n for _, n in groups.reduce.axes])
        work = dims.multiply(terms, band.lines * band.width * groups.member.count)
        return nest.grid([*outer, number, strip], body, work)

    def _by_strip(
        self, strip: Expr, facts: Sequence[Fact], body: Callable[[Fact], list[Stmt]]
    ) -> list[Stmt]:
        """`body(fact)` selected by the strip's number; neighbouring strips with equal facts share
        code.
        """
        ends = [n + 1 for n in range(len(facts)) if facts[n + 1 : n + 2] != [facts[n]]]
        stmts = body(facts[-1])
        for end in reversed(ends[:-1]):
            is_before = expr.binary("lt", strip, expr.index(end))
            stmts = [If(is_before, tuple(body(facts[end - 1])), tuple(stmts))]
        return stmts

    def _ranges(self, strip: int) -> list[tuple[int, int]]:
        """Which places of a line in scratch are not padding, by phase."""
        along, band = self.groups.along, self.band
        assert band is not None
        found = []
        for phase in phases_of(along):
            first = strip * band.width
            begin, end = (-(-(n - phase) // along.step) - first for n in (along.begin, along.end))
            begin = min(max(begin, 0), band.pitch)
            found.append((begin, min(max(end, begin), band.pitch)))
        return found

    # What is brought into scratch

    def _fill(
        self, values: Values, place: tuple[Expr, Expr], ranges: Sequence[tuple[int, int]]
    ) -> list[Stmt]:
        """The lines that a band reads, of all channels of the group."""
        nest, groups, band = self.nest, self.groups, self.band
        assert band is not None
        along, down = groups.along, groups.down
        first, start = place
        origin = self._origin(values)
        last = down.places(self.bands * band.lines)
        phases = list(enumerate(phases_of(along)))

        def line(c: Expr, j: Expr, row: tuple[int, int]) -> list[Stmt]:
            n, phase = row
            v = expr.add(expr.mul(j, expr.index(down.step)), expr.index(phase))
            place = expr.add(expr.mul(first, expr.index(down.step)), v)
            begin = expr.add(origin(c), expr.mul(place, expr.index(down.stride)))
            begin = expr.add(begin, expr.mul(start, expr.index(along.step)))
            at = expr.mul(j, expr.index(band.pitch))
            stmts = [
                s
                for k, f in phases
                for s in self._line((c, n * len(phases) + k, at), f, begin, ranges[k])
            ]
            is_there = down.is_there(place, place, last)
            if is_there is None:
                return stmts
            blank = [
                s for k, _ in phases for s in self._zeros((c, n * len(phases) + k, at), band.pitch)
            ]
            return [If(is_there, tuple(stmts), tuple(blank))]

        def channel(c: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            for n, phase in enumerate(phases_of(down)):
                count = -(-(down.places(band.lines) - phase) // down.step)
                stmts += nest.serial(count, partial(line, c, row=(n, phase)), "j")
                for k, _ in phases:
                    # places behind the last line have numbers, too
                    behind = c, n * len(phases) + k, expr.index(count * band.pitch)
                    left = band.places - nest.lanes - count * band.pitch
                    stmts += self._zeros(behind, left)
            return stmts

        return nest.serial(self.inner, channel, "c")

    def _origin(self, values: Values) -> Callable[[Expr], Expr]:
        """The address of the first place of a channel's first line, padding or not."""
        groups = self.groups
        zero = expr.index(0)
        zeros: Values = {v: zero for v, _ in groups.reduce.axes}
        zeros |= {groups.along.at.var: zero, groups.down.at.var: zero}

        def of(c: Expr) -> Expr:
            here = {**values, **zeros}
            if groups.channel is not None:
                here[groups.channel.var] = c
            return expr.substitute(groups.left.indices[0], here)

        return of

    def _ask(
        self, values: Values, place: tuple[Expr, Expr], strip: Expr, begin: Expr, n: Expr
    ) -> list[Stmt]:
        """Prefetches, in tile `n` of these columns, a share of the memory that tiles will store to.
        Also a share of the next workgroup's input: the strip beside this one, or the rows below.
        """
        groups, band, down, along = self.groups, self.band, self.groups.down, self.groups.along
        assert band is not None
        source = groups.left.source
        if not self.is_large or not isinstance(source, Buffer):
            return []
        nest, has_strips = self.nest, self.strips > 1
        first, start = place
        stmts: list[Stmt] = []

        def stored(m: Expr, line: Expr, ahead: Expr) -> Prefetch:
            here = {**values, down.at.var: expr.add(first, line)}
            here |= {along.at.var: expr.add(place[1], ahead), groups.member.var: expr.add(begin, m)}
            return Prefetch(self.output.buffer, expr.substitute(self.output.address, here))

        pieces = _pieces(band.width, self.output.buffer, is_part=has_strips)
        stmts += self._ask_lines(n, band.tiles, (self.columns, band.lines, pieces), stored)

        # the lines of a strip beside this one are all new
        rows = down.places(band.lines) if has_strips else band.lines * down.step
        below = expr.add(first, expr.index(band.lines))
        is_end = expr.binary("ge", below, expr.index(self.height))
        held = 0 if has_strips else down.places(band.lines) - rows
        row = expr.add(expr.mul(below, expr.index(down.step)), expr.index(held))
        if has_strips:
            is_last = expr.binary("ge", strip, expr.index(self.strips - 1))
            is_end = expr.binary("and", is_last, is_end)
            row = expr.select(is_last, row, expr.mul(first, expr.index(down.step)))
            beside = expr.add(start, expr.index(band.width))
            start = expr.select(is_last, expr.index(0), beside)
        begins = expr.mul(expr.select(is_end, expr.index(0), row), expr.index(down.stride))
        begins = expr.add(begins, expr.mul(start, expr.index(along.step)))
        begins = expr.add(begins, expr.select(is_end, self._next_group(), expr.index(0)))
        begins = nest.let(begins, stmts, "ahead")
        origin = self._origin(values)

        def brought(c: Expr, line: Expr, ahead: Expr) -> Prefetch:
            at = expr.add(expr.mul(line, expr.index(down.stride)), ahead)
            return Prefetch(source, expr.add(origin(c), expr.add(begins, at)))

        width = (band.pitch if has_strips else band.width) * along.step
        pieces = _pieces(width, source, is_part=has_strips)
        # each pass over the tiles asks for others
        passes = -(-groups.member.count // self.columns)
        number = expr.binary("floordiv", begin, expr.index(self.columns))
        number = expr.add(expr.mul(number, expr.index(band.tiles)), n)
        counts = self.inner, rows, pieces
        return stmts + self._ask_lines(number, passes * band.tiles, counts, brought)

    def _next_group(self) -> Expr:
        """The distance in memory from the planes of a group to those of the next group,
        or image.
        """
        groups = self.groups
        inside = groups.along.at, groups.down.at, groups.member
        for axis in reversed(self.output.axes):
            step = expr.coefficient(groups.left.indices[0], axis.var)
            if axis not in inside and axis.extent != 1 and isinstance(step, int):
                return expr.index(step)
        return expr.index(0)

    def _ask_lines(
        self,
        n: Expr,
        tiles: int,
        counts: tuple[int, int, int],
        ask: Callable[[Expr, Expr, Expr], Prefetch],
    ) -> list[Stmt]:
        """The share of tile `n` of `tiles` in all prefetches `ask(channel, line, place)`, for as
        many channels, lines and pieces of lines as `counts` has.
        """
        nest = self.nest
        channels, lines, pieces = counts
        stmts: list[Stmt] = []
        places: list[tuple[Expr, Expr]] = []
        each = -(-lines * pieces // tiles)
        for u in range(each):
            number = expr.add(expr.mul(n, expr.index(each)), expr.index(u))
            line = expr.binary("floordiv", number, expr.index(pieces))
            piece = expr.binary("floormod", number, expr.index(pieces))
            ahead = expr.mul(piece, expr.index(CACHE_LINE // self.held.dtype.bytes))
            places.append((nest.let(line, stmts, "line"), nest.let(ahead, stmts, "piece")))

        def channel(c: Expr) -> list[Stmt]:
            return [ask(c, line, ahead) for line, ahead in places]

        return stmts + nest.serial(channels, channel, "c")

    def _line(
        self, to: tuple[Expr, int, Expr], phase: int, origin: Expr, inside: tuple[int, int]
    ) -> list[Stmt]:
        """A line's places of a phase: what is `inside` of it between its padding."""
        along, load, band = self.groups.along, self.groups.left, self.band
        assert band is not None
        c, number, at = to
        begin, end = inside

        def copied(j: Expr, width: int, lane: Expr | None) -> list[Stmt]:
            place = expr.add(expr.mul(j, expr.index(along.step)), expr.index(phase))
            value = Load(load.source, (expr.add(origin, place),), load.dtype)
            return [Store(self.held, (c, expr.index(number), expr.add(at, j)), value)]

        copy = row_of_vectors(
            self.nest, expr.index(begin), end - begin, self.nest.lanes, copied, may_mask=True
        )
        behind = c, number, expr.add(at, expr.index(end))
        return self._zeros(to, begin) + copy + self._zeros(behind, band.pitch - end)

    def _zeros(self, to: tuple[Expr, int, Expr], count: int) -> list[Stmt]:
        """So many zeros at least, in whole vectors: what is behind them is not stored yet."""
        nest, lanes = self.nest, self.nest.lanes
        c, number, at = to
        zero = expr.const(0, self.held.dtype)

        def vector(n: Expr) -> list[Stmt]:
            begin = expr.add(at, expr.mul(n, expr.index(lanes)))

            def one(lane: Expr) -> list[Stmt]:
                return [Store(self.held, (c, expr.index(number), expr.add(begin, lane)), zero)]

            return [nest.spread(lanes, one)]

        return nest.serial(-(-max(count, 0) // lanes), vector, "z")

    # What is computed of it

    def _tile(self, values: Values, begin: Expr, columns: int, n: Expr) -> list[Stmt]:
        """The sums of some columns at the places of tile `n`."""
        nest, groups = self.nest, self.groups
        along, down, lanes = groups.along, groups.down, nest.lanes
        dtype = groups.reduce.dtype
        acc = nest.builder.scratch("acc", dtype, (columns, self.chunks, lanes))
        zero = expr.const(0, dtype)

        def each(body: Callable[[Expr, Expr, Expr], list[Stmt]]) -> list[Stmt]:
            return nest.unrolled(
                columns,
                lambda m: nest.unrolled(
                    self.chunks, lambda u: [nest.spread(lanes, lambda lane: body(m, u, lane))]
                ),
                "m",
            )

        stmts = each(lambda m, u, lane: [Store(acc, (m, u, lane), zero)])
        place = expr.mul(n, expr.index(self.chunks * lanes))
        for vertical in down.by_phase():
            for horizontal in along.by_phase():

                def tap(
                    ky: Expr,
                    kx: Expr,
                    vertical: Taps = vertical,
                    horizontal: Taps = horizontal,
                ) -> list[Stmt]:
                    return self._terms(values, begin, acc, place, (vertical, ky), (horizontal, kx))

                stmts += nest.serial(
                    vertical.count,
                    lambda ky, count=horizontal.count, tap=tap: nest.serial(  # type: ignore[misc]
                        count, lambda kx: tap(ky, kx), "kx"
                    ),
                    "ky",
                )

        def store(m: Expr, u: Expr, lane: Expr) -> list[Stmt]:
            at = expr.add(expr.add(place, expr.mul(u, expr.index(lanes))), lane)
            return [Store(self.sums, (m, at), Load(acc, (m, u, lane), dtype))]

        return stmts + each(store)

    def _terms(
        self,
        values: Values,
        begin: Expr,
        acc: Scratch,
        place: Expr,
        vertical: tuple[Taps, Expr],
        horizontal: tuple[Taps, Expr],
    ) -> list[Stmt]:
        """Statements that add the products of all channels at one tap."""
        nest, groups, band, lanes = self.nest, self.groups, self.band, self.nest.lanes
        assert band is not None
        along, down = groups.along, groups.down
        columns = acc.shape[0]
        here: Values = {**values, **{v: expr.index(0) for v, n in groups.reduce.axes if n == 1}}
        offset = place
        for slide, (taps, k), far in ((down, vertical, band.pitch), (along, horizontal, 1)):
            step = expr.mul(k, expr.index(slide.step))
            if slide.tap is not None:
                here[slide.tap.var] = expr.add(step, expr.index(taps.first))
            ahead = expr.add(expr.mul(k, expr.index(slide.apart)), expr.index(taps.ahead))
            offset = expr.add(offset, expr.mul(ahead, expr.index(far)))
        number = phases_of(down).index(vertical[0].phase) * len(phases_of(along))
        number += phases_of(along).index(horizontal[0].phase)

        def channel(c: Expr) -> list[Stmt]:
            at = dict(here)
            if groups.channel is not None:
                at[groups.channel.var] = c

            def column(m: Expr, u: Expr, lane: Expr) -> list[Stmt]:
                total = Load(acc, (m, u, lane), acc.dtype)
                in_vector = expr.add(expr.mul(u, expr.index(lanes)), lane)
                image = Load(
                    self.held, (c, expr.index(number), expr.add(offset, in_vector)), self.held.dtype
                )
                weight = expr.substitute(
                    groups.right, {**at, groups.member.var: expr.add(begin, m)}
                )
                body = groups.reduce.body
                known: dict[Expr, Expr] = {}
                for e in expr.loads(body):
                    known[e] = weight if e is groups.right else image
                term = combined("sum", total, expr.transform(body, known.get))
                return [Store(acc, total.indices, term)]

            return nest.unrolled(
                columns,
                lambda m: nest.unrolled(
                    self.chunks, lambda u: [nest.spread(lanes, lambda lane: column(m, u, lane))]
                ),
                "m",
            )

        return nest.serial(self.inner, channel, "c")

    def _finish(
        self, values: Values, place: tuple[Expr, Expr], begin: Expr, columns: int, width: int
    ) -> list[Stmt]:
        """The results of all sums of a band, line by line."""
        nest, groups, band, sums = self.nest, self.groups, self.band, self.sums
        assert band is not None
        first, start = place

        def line(m: Expr, y: Expr) -> list[Stmt]:
            at = expr.add(first, y)
            here = {**values, groups.down.at.var: at, groups.member.var: expr.add(begin, m)}
            begins = expr.mul(y, expr.index(band.pitch))

            def element(x: Expr, width: int, lane: Expr | None) -> list[Stmt]:
                total = Load(sums, (m, expr.add(begins, x)), sums.dtype)
                done: dict[Expr, Expr] = {groups.reduce: total}
                to = {**here, groups.along.at.var: expr.add(start, x)}
                return list(self.output.stores(nest, to, done.get))

            stmts = row_of_vectors(nest, expr.index(0), width, nest.lanes, element, may_mask=True)
            if self.height % band.lines == 0:
                return stmts
            return [If(expr.binary("lt", at, expr.index(self.height)), tuple(stmts))]

        return nest.serial(
            columns, lambda m: nest.serial(band.lines, lambda y: line(m, y), "y"), "m"
        )


def _pieces(width: int, buffer: Buffer, *, is_part: bool) -> int:
    """The number of cache lines that `width` neighbours are in; those of a part of a row may begin
    within one.
    """
    step = CACHE_LINE // buffer.dtype.bytes
    return -(-width // step) + int(is_part)


def _tiles(members: int, registers: int) -> list[tuple[int, int, float]]:
    """Register tiles that fit, as (columns, vectors of places, time), fastest first: the best, and
    some nearly as good ones in case these leave a shorter tail. The time is that of one vector of
    all members of a group.
    """

    def tile(columns: int) -> tuple[int, int, float]:
        chunks = registers // (columns + 1)
        # places at odd ends are loaded in two parts
        time = max(columns * chunks, columns + 2 * chunks)
        return columns, chunks, -(-members // columns) * time / chunks

    most = min(members, MOST_COLUMNS, registers - 1)
    found = sorted(map(tile, range(1, most + 1)), key=lambda t: (t[2], -t[0]))
    return [t for t in found[:MOST_TILES] if t[2] <= ALMOST * found[0][2]]
