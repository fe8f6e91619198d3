"""Grouped convolutions over planes, and strided 1x1 convolutions: lanes run along a line's places.

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
from aot.kernels.ir.nodes import Buffer, Scratch, Space, Stmt, Store
from aot.kernels.match.slides import Taps, first_window
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.nest import Axis, Nest, Output, Values, combined
from aot.kernels.nest.rows import row_of_vectors
from aot.kernels.rules.windows.groups import Groups, groups_over_planes
from aot.kernels.stage.ahead import cache_lines, least_bytes, of_line, prefetch
from aot.kernels.stage.band import blank_vectors, of_phase
from aot.kernels.stage.tails import below, where, within
from aot.kernels.stage.vectors import unrolled_vectors
from aot.target.model import Target

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
    """The loops of a grouped convolution over planes; None for any other output."""
    nest = work.nest
    is_scalar = nest.is_gpu or nest.lanes == 1
    found = None if is_scalar or work.blocks is not None else groups_over_planes(work.output)
    if found is None or not _is_better(nest.target, found[1]):
        return None
    band = _best_band(nest, found[1])
    return None if band is None else _GroupedPlanes(nest, *found, band).build


def _is_better(target: Target, groups: Groups) -> bool:
    """Whether lanes along places beat lanes along columns, which suffice for the narrow vectors of
    some targets, and beat other tiles for 1x1 convolutions with many columns."""
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
        elements: of scratch.
    """

    columns: int
    chunks: int
    lines: int
    width: int
    pitch: int
    tiles: int
    places: int
    elements: int

    @staticmethod
    def of(nest: Nest, groups: Groups, lines: int, width: int, columns: int, chunks: int) -> _Band:
        along, down, lanes = groups.along, groups.down, nest.lanes
        pitch = width + along.apart * (along.taps - 1) // along.step
        tiles = -(-((lines - 1) * pitch + width) // (lanes * chunks))
        results = tiles * chunks * lanes
        last = down.apart * (down.taps - 1) // down.step * pitch
        last += along.apart * (along.taps - 1) // along.step
        held = max(results + last, -(-down.places(lines) // down.step) * pitch)
        # zeros behind a line's end are whole vectors
        places = (-(-held // lanes) + 1) * lanes
        elements = groups.inner * groups.phases * places + columns * results
        return _Band(columns, chunks, lines, width, pitch, tiles, places, elements)


def _best_band(nest: Nest, groups: Groups) -> _Band | None:
    """The band of image rows that computes all results fastest and fits scratch."""
    width, height, lanes = groups.along.at.count, groups.down.at.count, nest.lanes
    most = nest.target.scratch_bytes // groups.left.dtype.bytes
    taps, members = groups.along.taps * groups.down.taps, groups.member.count
    best, least = None, 0.0
    for columns, chunks, cost in _tiles(members, nest.target.vector_registers - OTHERS):
        for strips in range(1, min(width // lanes, MOST_STRIPS) + 2):
            part = -(-width // strips)
            lines = min(height, most // ((groups.inner * groups.phases + columns) * part))
            while lines and _Band.of(nest, groups, lines, part, columns, chunks).elements > most:
                lines -= 1
            if lines == 0:
                continue
            bands = -(-height // lines)
            band = _Band.of(nest, groups, -(-height // bands), part, columns, chunks)
            products = band.tiles * chunks * taps * cost
            brought = BROUGHT * band.places * groups.phases // lanes
            time = bands * -(-width // part) * (products + brought)
            if best is None or time < least:
                best, least = band, time
    if taps == 1 and least > MOST_LOST * (width * height / lanes) * members:
        return None  # lines are few, so that most places are between them
    return best


class _GroupedPlanes:
    """The loops over bands of the result; each band is a workgroup's share of one group.

    Attributes:
        columns, chunks: of the band's tiles.
        bands, strips: how many there are down the planes, and along them.
        is_large: whether planes come from beyond the second level of cache.
        held: [channel][phase down, along][place]
        sums: [column of a tile][place]
    """

    def __init__(self, nest: Nest, output: Output, groups: Groups, band: _Band) -> None:
        self.nest, self.output, self.groups, self.band = nest, output, groups, band
        self.width, self.height = groups.along.at.count, groups.down.at.count
        self.columns, self.chunks = band.columns, band.chunks
        self.bands = -(-self.height // band.lines)
        self.strips = -(-self.width // band.width)
        source, scratch = groups.left.source, nest.builder.scratch
        self.is_large = least_bytes(source) > nest.target.l2_bytes // 2
        shape = groups.inner, groups.phases, band.places
        self.held: Scratch = scratch("held", groups.left.dtype, shape, Space.WORKGROUP)
        sums = self.columns, band.tiles * self.chunks * nest.lanes
        self.sums: Scratch = scratch("sums", groups.reduce.dtype, sums, Space.WORKGROUP)

    def build(self) -> tuple[Stmt, ...]:
        nest, groups, down, band = self.nest, self.groups, self.groups.down, self.band
        band_axis = Axis(nest.builder.var("band"), self.bands)
        strip = Axis(nest.builder.var("strip"), self.strips)
        inside = groups.along.at, down.at, groups.member
        outer = [a for a in self.output.axes if a not in inside]

        def body(values: Values) -> list[Stmt]:
            stmts: list[Stmt] = []
            first = expr.mul(values[band_axis.var], expr.index(band.lines))
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
        return nest.grid([*outer, band_axis, strip], body, work)

    def _by_strip(
        self, strip: Expr, facts: Sequence[Fact], body: Callable[[Fact], list[Stmt]]
    ) -> list[Stmt]:
        """Statements that select `body(fact)` by the strip's number; neighbouring strips with equal
        facts share code.
        """
        ends = [n + 1 for n in range(len(facts)) if facts[n + 1 : n + 2] != [facts[n]]]
        stmts = body(facts[-1])
        for end in reversed(ends[:-1]):
            stmts = where(below(strip, end), body(facts[end - 1]), stmts)
        return stmts

    def _ranges(self, strip: int) -> list[tuple[int, int]]:
        """[begin, end) of the places without padding in a staged line, for each phase."""
        along, band = self.groups.along, self.band
        return [along.inside(f, band.pitch, strip * band.width) for f in along.phases]

    # What is brought into scratch

    def _fill(
        self, values: Values, place: tuple[Expr, Expr], ranges: Sequence[tuple[int, int]]
    ) -> list[Stmt]:
        """Statements that stage the lines that a band reads, for all channels of the group."""
        nest, band, along, down = self.nest, self.band, self.groups.along, self.groups.down
        first, start = place
        origin = self._origin(values)
        last = down.places(self.bands * band.lines)
        phases = list(enumerate(along.phases))

        def line(c: Expr, j: Expr, row: tuple[int, int]) -> list[Stmt]:
            n, phase = row
            v = expr.linear((j, down.step), phase)
            place = expr.linear((first, down.step), v)
            begin = expr.linear(origin(c), (place, down.stride), (start, along.step))
            at = expr.mul(j, expr.index(band.pitch))
            to = [(c, n * len(phases) + k, at) for k, _ in phases]
            stmts = [s for k, f in phases for s in self._line(to[k], f, begin, ranges[k])]
            is_there = down.is_there(place, place, last)
            return where(
                is_there, stmts, lambda: [s for t in to for s in self._zeros(t, band.pitch)]
            )

        def channel(c: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            for n, phase in enumerate(down.phases):
                count = -(-(down.places(band.lines) - phase) // down.step)
                stmts += nest.serial(count, partial(line, c, row=(n, phase)), "j")
                for k, _ in phases:
                    # places behind the last line have numbers, too
                    behind = c, n * len(phases) + k, expr.index(count * band.pitch)
                    left = band.places - nest.lanes - count * band.pitch
                    stmts += self._zeros(behind, left)
            return stmts

        return nest.serial(self.groups.inner, channel, "c")

    def _origin(self, values: Values) -> Callable[[Expr], Expr]:
        """A function from a channel to the address of its first line's first place, padding or
        not."""
        groups = self.groups
        zeros = first_window(groups.reduce, groups.along, groups.down)

        def of(c: Expr) -> Expr:
            here = {**values, **zeros}
            if groups.channel is not None:
                here[groups.channel.var] = c
            return expr.substitute(groups.left.indices[0], here)

        return of

    def _ask(
        self, values: Values, place: tuple[Expr, Expr], strip: Expr, begin: Expr, n: Expr
    ) -> list[Stmt]:
        """Prefetches, in tile `n` of a workgroup's columns, a share of the memory that the tiles
        will store to, and a share of the next workgroup's input: the strip beside this one, or the
        rows below.
        """
        groups, band, down, along = self.groups, self.band, self.groups.down, self.groups.along
        source = groups.left.source
        if not self.is_large or not isinstance(source, Buffer):
            return []
        nest, has_strips = self.nest, self.strips > 1
        first, start = place
        stmts: list[Stmt] = []

        def stored(m: Expr, line: Expr, ahead: Expr) -> list[Stmt]:
            here = {**values, down.at.var: expr.add(first, line)}
            here |= {along.at.var: expr.add(place[1], ahead), groups.member.var: expr.add(begin, m)}
            return prefetch(self.output.buffer, expr.substitute(self.output.address, here))

        pieces = cache_lines(self.output.buffer, band.width, is_part=has_strips)
        stmts += self._ask_lines(n, band.tiles, (self.columns, band.lines, pieces), stored)

        # the lines of a strip beside this one are all new
        rows = down.places(band.lines) if has_strips else band.lines * down.step
        under = expr.linear(first, band.lines)
        is_end = expr.binary("ge", under, expr.index(self.height))
        row = expr.linear((under, down.step), 0 if has_strips else down.places(band.lines) - rows)
        if has_strips:
            is_last = expr.binary("ge", strip, expr.index(self.strips - 1))
            is_end = expr.binary("and", is_last, is_end)
            row = expr.select(is_last, row, expr.mul(first, expr.index(down.step)))
            start = expr.select(is_last, expr.index(0), expr.linear(start, band.width))
        row = expr.select(is_end, expr.index(0), row)
        group = expr.select(is_end, self._next_group(), expr.index(0))
        begins = expr.linear((row, down.stride), (start, along.step), group)
        begins = nest.let(begins, stmts, "ahead")
        origin = self._origin(values)

        def brought(c: Expr, line: Expr, ahead: Expr) -> list[Stmt]:
            at = expr.linear((line, down.stride), ahead)
            return prefetch(source, expr.add(origin(c), expr.add(begins, at)))

        width = (band.pitch if has_strips else band.width) * along.step
        pieces = cache_lines(source, width, is_part=has_strips)
        # each pass over the tiles asks for others
        passes = -(-groups.member.count // self.columns)
        number = expr.binary("floordiv", begin, expr.index(self.columns))
        tile = expr.linear((number, band.tiles), n)
        counts = groups.inner, rows, pieces
        return stmts + self._ask_lines(tile, passes * band.tiles, counts, brought)

    def _next_group(self) -> Expr:
        """The distance in memory from a group's planes to those of the next group or image."""
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
        ask: Callable[[Expr, Expr, Expr], list[Stmt]],
    ) -> list[Stmt]:
        """Tile `n`'s share of the prefetches `ask(channel, line, place)`, out of `tiles` tiles;
        `counts` says how many channels, lines and pieces of lines there are.
        """
        nest = self.nest
        channels, lines, pieces = counts
        stmts: list[Stmt] = []
        places: list[tuple[Expr, Expr]] = []
        each = -(-lines * pieces // tiles)
        for u in range(each):
            number = expr.linear((n, each), u)
            line = expr.binary("floordiv", number, expr.index(pieces))
            piece = expr.binary("floormod", number, expr.index(pieces))
            ahead = expr.mul(piece, expr.index(of_line(self.held)))
            places.append((nest.let(line, stmts, "line"), nest.let(ahead, stmts, "piece")))

        def channel(c: Expr) -> list[Stmt]:
            return [s for line, ahead in places for s in ask(c, line, ahead)]

        return stmts + nest.serial(channels, channel, "c")

    def _line(
        self, to: tuple[Expr, int, Expr], phase: int, origin: Expr, inside: tuple[int, int]
    ) -> list[Stmt]:
        """Statements that stage one phase of a line: the places `inside` it, with padding around
        them."""
        along, load, band, held = self.groups.along, self.groups.left, self.band, self.held
        c, phase_pair, at = to
        begin, end = inside

        def copied(j: Expr, *_: object) -> list[Stmt]:
            place = c, expr.index(phase_pair), expr.add(at, j)
            return [Store(held, place, of_phase(load, origin, along, phase, j))]

        copy = row_of_vectors(
            self.nest, expr.index(begin), end - begin, self.nest.lanes, copied, may_mask=True
        )
        behind = c, phase_pair, expr.linear(at, end)
        return self._zeros(to, begin) + copy + self._zeros(behind, band.pitch - end)

    def _zeros(self, to: tuple[Expr, int, Expr], count: int) -> list[Stmt]:
        """Statements that store at least `count` zeros, in whole vectors: what they overwrite is
        stored later."""
        (c, phase_pair, at), held = to, self.held
        zero, vectors = expr.const(0, held.dtype), -(-max(count, 0) // self.nest.lanes)

        def store(place: Expr) -> Stmt:
            return Store(held, (c, expr.index(phase_pair), place), zero)

        return blank_vectors(self.nest, (vectors, self.nest.lanes), at, store, "z")

    # What is computed of it

    def _tile(self, values: Values, begin: Expr, columns: int, n: Expr) -> list[Stmt]:
        """Statements that sum `columns` columns from `begin` at the places of tile `n`."""
        nest, groups = self.nest, self.groups
        along, down, lanes = groups.along, groups.down, nest.lanes
        dtype = groups.reduce.dtype
        acc = nest.builder.scratch("acc", dtype, (columns, self.chunks, lanes))
        zero = expr.const(0, dtype)

        def each(body: Callable[[Expr, Expr, Expr], list[Stmt]]) -> list[Stmt]:
            return unrolled_vectors(nest, (columns, self.chunks), lanes, body, "m")

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
            at = expr.linear(place, (u, lanes), lane)
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
        along, down = groups.along, groups.down
        columns = acc.shape[0]
        here: Values = {**values, **{v: expr.index(0) for v, n in groups.reduce.axes if n == 1}}
        offset = place
        for slide, (taps, k), far in ((down, vertical, band.pitch), (along, horizontal, 1)):
            if slide.tap is not None:
                here[slide.tap.var] = expr.linear((k, slide.step), taps.first)
            offset = expr.linear(offset, (expr.linear((k, slide.apart), taps.ahead), far))
        phase_pair = down.phases.index(vertical[0].phase) * len(along.phases)
        phase_pair += along.phases.index(horizontal[0].phase)

        def channel(c: Expr) -> list[Stmt]:
            at = dict(here)
            if groups.channel is not None:
                at[groups.channel.var] = c

            def column(m: Expr, u: Expr, lane: Expr) -> list[Stmt]:
                total = Load(acc, (m, u, lane), acc.dtype)
                at_place = expr.add(offset, expr.linear((u, lanes), lane))
                image = Load(self.held, (c, expr.index(phase_pair), at_place), self.held.dtype)
                weight = expr.substitute(
                    groups.right, {**at, groups.member.var: expr.add(begin, m)}
                )
                body = groups.reduce.body
                known = {e: weight if e is groups.right else image for e in expr.loads(body)}
                term = combined("sum", total, expr.transform(body, known.get))  # type: ignore[arg-type]
                return [Store(acc, total.indices, term)]

            return unrolled_vectors(nest, (columns, self.chunks), lanes, column, "m")

        return nest.serial(groups.inner, channel, "c")

    def _finish(
        self, values: Values, place: tuple[Expr, Expr], begin: Expr, columns: int, width: int
    ) -> list[Stmt]:
        """Statements that finish a band's sums line by line and store the results."""
        nest, groups, band, sums = self.nest, self.groups, self.band, self.sums
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
            return where(within(at, self.height, band.lines), stmts)

        return nest.serial(
            columns, lambda m: nest.serial(band.lines, lambda y: line(m, y), "y"), "m"
        )


def _tiles(members: int, registers: int) -> list[tuple[int, int, float]]:
    """Candidate register tiles as (columns, vectors of places, time), fastest first: the best one,
    and nearly as good ones that may leave a shorter tail. The time is for one vector of all members
    of a group.
    """

    def tile(columns: int) -> tuple[int, int, float]:
        chunks = registers // (columns + 1)
        # places at odd ends are loaded in two parts
        time = max(columns * chunks, columns + 2 * chunks)
        return columns, chunks, -(-members // columns) * time / chunks

    most = min(members, MOST_COLUMNS, registers - 1)
    found = sorted(map(tile, range(1, most + 1)), key=lambda t: (t[2], -t[0]))
    return [t for t in found[:MOST_TILES] if t[2] <= ALMOST * found[0][2]]
