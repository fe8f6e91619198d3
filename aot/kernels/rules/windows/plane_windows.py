"""Weighted windows over padded planes, each of one channel: lanes along the lines of a plane.

Several lines of the result have their sums in registers together, so that a load of the plane
serves all taps of a column of a window, whose weights are in registers meanwhile. CPU only.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from aot.ir import dims, expr
from aot.ir.expr import Expr, Load, Reduce
from aot.kernels.ir.nodes import Buffer, If, Prefetch, Scratch, Space, Stmt, Store
from aot.kernels.match.work import Build, Work
from aot.kernels.nest import segments
from aot.kernels.nest.nest import Axis, Nest, Output, Values, combined, identity
from aot.kernels.nest.rows import masked_lanes, row_of_vectors, vectors_of
from aot.kernels.nest.tiles import is_long
from aot.kernels.rules.windows.padded import (
    PaddedWindow,
    Slide,
    Taps,
    find_padded,
    rows_in_scratch,
)
from aot.target.model import CACHE_LINE, Target

# lines whose sums are in registers together, and vectors of their places: on a target of many
# registers, on one whose vectors are groups of them, on one that multiplies by a vector's lane, and
# on others of few
TILE, GROUPED_TILE, LANES_TILE, SMALL_TILE = (8, 1), (4, 4), (4, 2), (6, 1)
# taps of a column whose weights are in registers beside sums
MANY_REGISTERS, MOST_WEIGHTS = 32, {True: 8, False: 7}
LEAST_LINES = 2
# registers beside those of sums and weights
OTHERS = 2
# products of a vector of places that are too many for those of the next one to begin meanwhile
MANY_PRODUCTS = 256
# taps, for each place of the plane that a window moves on by, from which on there is time to ask
# for lines from beyond the second level of cache while those before multiply
MANY_TAPS = 16
# bytes that are far enough apart to have one place of a cache
WAY = 4096


def schedule_plane_window(work: Work) -> Build | None:
    """The loops of a window that sums up products by a weight for each tap; None for another."""
    found = work.reduced
    return None if found.free else plane_window(work.nest, found.output, found.reduces)


def plane_window(nest: Nest, output: Output, reduces: Sequence[Reduce]) -> Build | None:
    """The same of an output, by the order of its axes."""
    window = find_padded(nest, output, reduces, needs_padding=False)
    if window is None or not _is_weighted(output, window):
        return None
    made = _Planes(nest, output, window)
    return made.build if made.rows else None


def _is_weighted(output: Output, window: PaddedWindow) -> bool:
    along, down, reduce = window.along, window.down, window.reduce
    if down is None or down.tap is None or along.tap is None or window.planes:
        return False
    if reduce.op != "sum" or min(down.at.count, along.at.count) < LEAST_LINES:
        return False
    at = {along.at.var, down.at.var}
    weights = [x for x in expr.loads(reduce.body) if x is not window.load]
    if len(weights) != 1 or at & expr.free_vars(weights[0]):
        return False
    ends = list(segments.ends(output.values, along.at.var, along.at.count))
    return len(ends) == 1


class _Asks(Enum):
    """When rows of the plane are prefetched."""

    NOT = auto()
    IN_FILL = auto()
    IN_TILES = auto()


def _tile(target: Target) -> tuple[int, int]:
    """Lines, and vectors of their places, whose sums are in registers together."""
    if target.multiplies_parts:
        return GROUPED_TILE
    if target.vector_registers >= MANY_REGISTERS:
        return TILE
    return LANES_TILE if target.arch == "arm" else SMALL_TILE


class _Planes:
    """A workgroup's rows of a convolved plane, computed from image rows in scratch.

    Attributes:
        together: lines of the result that are in registers at a time.
        asks: when the next lines of the plane are asked for.
        rows: lines of a workgroup, a multiple of these; 0 where scratch doesn't hold what they
            read.
        begin: the place in scratch of the first one that is not padding.
        scratch: [line][phase of the step][place]
        sums: [line][place]: of lines that are together, where what is done with them is so long
            that it is written out once for all.
    """

    def __init__(self, nest: Nest, output: Output, window: PaddedWindow) -> None:
        self.nest, self.output, self.window = nest, output, window
        along, down = window.along, window.down
        assert down is not None
        self.down: Slide = down
        height, width, lanes = down.at.count, along.at.count, nest.lanes
        is_wide = nest.target.vector_registers >= MANY_REGISTERS
        most, self.vectors = _tile(nest.target)
        # fewer sums take as long where a window's products are too many to overlap the next one's
        is_loop = most * along.taps * down.taps > MANY_PRODUCTS
        self.together = min(
            range(min(max(most // 2 + 1, 1), height), min(most, height) + 1),
            key=lambda n: (-(-height // n) * (most if is_loop else n), n if is_loop else -n),
        )
        self.weights = MOST_WEIGHTS[is_wide]
        # else weights that don't change would be kept elsewhere
        taps = along.taps * down.taps
        held = taps + self.together * self.vectors + OTHERS
        self.is_unrolled = held <= nest.target.vector_registers
        # vectors begin where those of a cache do, for the window's first places in the image
        self.begin = -(-along.begin // (along.step * lanes)) * lanes
        self.lead = self.begin - -(-along.begin // along.step)
        ahead = (along.apart * (along.taps - 1)) // along.step
        last = width if masked_lanes(nest, width) == 0 else -(-width // lanes) * lanes
        pitch = -(-(self.lead + last + ahead) // lanes) * lanes
        dtype = window.load.dtype
        if pitch * along.step * dtype.bytes % WAY == 0:
            pitch += lanes
        self.rows = self._rows_of_band(pitch * along.step * dtype.bytes)
        buffers = {window.load.source, output.buffer}
        moved = sum(b.dtype.bytes * b.least_elements for b in buffers if isinstance(b, Buffer))
        taps = along.taps * down.taps
        self.asks = _Asks.NOT
        if moved > nest.target.l2_bytes:
            has_time = taps >= MANY_TAPS * along.step * down.step
            self.asks = _Asks.IN_TILES if has_time else _Asks.IN_FILL
        shape = down.places(max(self.rows, 1)), along.step, pitch
        self.scratch: Scratch = nest.builder.scratch("rows", dtype, shape, Space.WORKGROUP)
        self.sums: Scratch | None = None
        if is_long(output.values, window.reduce):
            sums = self.together, -(-width // lanes) * lanes
            self.sums = nest.builder.scratch("sums", window.reduce.dtype, sums, Space.WORKGROUP)

    def _rows_of_band(self, row: int) -> int:
        down, count = self.down, self.together
        most = rows_in_scratch(
            self.nest, down.places(count), row, self.nest.target.l1_bytes * 3 // 4
        )
        groups = -(-down.at.count // count)
        fitting = 0
        while fitting < groups and down.places((fitting + 1) * count) <= most:
            fitting += 1
        if fitting == 0:
            return 0
        return count * -(-groups // -(-groups // fitting))

    def build(self) -> tuple[Stmt, ...]:
        nest, along, down = self.nest, self.window.along, self.down
        height = down.at.count
        bands = Axis(nest.builder.var("mt"), -(-height // self.rows))
        outer = [bands if a is down.at else a for a in self.output.axes if a is not along.at]

        def body(values: Values) -> list[Stmt]:
            first = expr.mul(values[bands.var], expr.index(self.rows))

            def group(n: Expr) -> list[Stmt]:
                begin = expr.mul(n, expr.index(self.together))
                stmts: list[Stmt] = []
                at = nest.let(expr.add(first, begin), stmts, "at")
                lines = self._lines(values, at, expr.mul(begin, expr.index(down.step)))
                lines += self._finish(values, at)
                if -(-height // self.together) * self.together % self.rows == 0:
                    return stmts + lines
                is_there = expr.binary("lt", at, expr.index(height))
                return [*stmts, If(is_there, tuple(lines))]

            start = expr.mul(first, expr.index(down.step))
            return self._fill(values, start) + nest.serial(self.rows // self.together, group, "g")

        taps = dims.product([n for _, n in self.window.reduce.axes])
        return nest.grid(outer, body, dims.multiply(taps, self.rows * along.at.count))

    # What is brought into scratch

    def _fill(self, values: Values, start: Expr) -> list[Stmt]:
        """The lines of the plane from `start` on, between their padding."""
        down, along = self.down, self.window.along
        origin = self._origin(values)

        def line(v: Expr) -> list[Stmt]:
            place = expr.add(start, v)
            begin = expr.add(origin, expr.mul(place, expr.index(down.stride)))
            stmts = self._asked_line(begin) + self._fill_line(v, begin)
            reach = down.places(-(-down.at.count // self.rows) * self.rows)
            is_there = down.is_there(place, place, reach)
            if is_there is None:
                return stmts
            pitch = self.scratch.shape[2]
            blank = [s for f in range(along.step) for s in self._pad(v, f, 0, pitch)]
            return [If(is_there, tuple(stmts), tuple(blank))]

        return self.nest.serial(self.scratch.shape[0], line, "v")

    def _asked_line(self, origin: Expr) -> list[Stmt]:
        """Prefetches the row that the next workgroup stages in place of this one."""
        along, down, source = self.window.along, self.down, self.window.load.source
        if self.asks is not _Asks.IN_FILL or not isinstance(source, Buffer):
            return []
        ahead = expr.add(origin, expr.index(self.scratch.shape[0] * down.stride + along.begin))
        step = CACHE_LINE // source.dtype.bytes

        def piece(n: Expr) -> list[Stmt]:
            return [Prefetch(source, expr.add(ahead, expr.mul(n, expr.index(step))))]

        return self.nest.serial(-(-(along.end - along.begin) // step), piece, "n")

    def _fill_line(self, v: Expr, origin: Expr) -> list[Stmt]:
        """A line of the plane, in phases between their padding."""
        along, load, lanes = self.window.along, self.window.load, self.nest.lanes
        pitch = self.scratch.shape[2]
        ranges: list[tuple[int, int]] = []
        stmts: list[Stmt] = []
        for phase in range(along.step):
            begin = max(0, -(-(along.begin - phase) // along.step))
            end = max(begin, -(-(along.end - phase) // along.step))
            ranges.append((begin, min(end, pitch - self.lead)))
            stmts += self._pad(v, phase, 0, -(-(self.lead + begin) // lanes) * lanes)
            after = (self.lead + ranges[-1][1]) // lanes * lanes
            stmts += self._pad(v, phase, after, pitch)

        def copied(phase: int, j: Expr) -> Stmt:
            place = expr.add(expr.mul(j, expr.index(along.step)), expr.index(phase))
            value = Load(load.source, (expr.add(origin, place),), load.dtype)
            at = expr.add(j, expr.index(self.lead))
            return Store(self.scratch, (v, expr.index(phase), at), value)

        def all_phases(j: Expr, width: int, lane: Expr | None) -> list[Stmt]:
            return [copied(phase, j) for phase in range(along.step)]

        # what all phases have is loaded once for them
        first, last = max(begin for begin, _ in ranges), min(end for _, end in ranges)
        last = max(first, last)
        stmts += row_of_vectors(
            *(self.nest, expr.index(first), last - first, lanes, all_phases), may_mask=True
        )
        for phase, (begin, end) in enumerate(ranges):
            rest = [*range(begin, min(first, end)), *range(max(last, begin), end)]
            stmts += [copied(phase, expr.index(j)) for j in rest]
        return stmts

    def _pad(self, v: Expr, phase: int, begin: int, end: int) -> list[Stmt]:
        """Statements that store whole vectors of padding."""
        given, lanes = self.window.load, self.nest.lanes
        other = expr.const(0, given.dtype) if given.other is None else given.other

        def vector(n: Expr) -> list[Stmt]:
            start = expr.add(expr.index(begin), expr.mul(n, expr.index(lanes)))
            return [
                self.nest.spread(
                    lanes,
                    lambda lane: [
                        Store(self.scratch, (v, expr.index(phase), expr.add(start, lane)), other)
                    ],
                )
            ]

        return self.nest.serial((end - begin) // lanes, vector, "p")

    # What is computed of it

    def _lines(self, values: Values, at: Expr, begin: Expr) -> list[Stmt]:
        """Lines of the result from `at` on, whose windows begin at line `begin` of scratch."""
        nest, count = self.nest, self.window.along.at.count
        masked = masked_lanes(nest, count)
        stmts: list[Stmt] = []
        most = self.vectors * nest.lanes
        for first, width, vectors in vectors_of(most, nest.lanes, count - masked):
            assert isinstance(first, int) and isinstance(vectors, int)

            def vector(o: Expr, first: int = first, width: int = width) -> list[Stmt]:
                x = expr.add(expr.mul(o, expr.index(width)), expr.index(first))
                if width == 1:
                    return self._sums(values, at, begin, x, 1, None, None)
                made = nest.spread(
                    width,
                    lambda lane: self._sums(
                        values, at, begin, expr.add(x, lane), width, lane, None
                    ),
                )
                return [*self._asked(values, at, begin, x), made]

            stmts += nest.serial(vectors, vector, "o")
        if masked:
            start = expr.index(count - masked)

            def some(lane: Expr) -> list[Stmt]:
                is_there = expr.binary("lt", lane, expr.index(masked))
                x = expr.add(start, lane)
                return self._sums(values, at, begin, x, nest.lanes, lane, is_there)

            stmts += [*self._asked(values, at, begin, start), nest.spread(nest.lanes, some)]
        return stmts

    def _asked(self, values: Values, at: Expr, begin: Expr, x: Expr) -> list[Stmt]:
        """Prefetches the image rows of the next workgroup, at place `x` of a result, if tiles leave
        time for it.
        """
        if self.asks is not _Asks.IN_TILES:
            return []
        down, along = self.down, self.window.along
        stmts: list[Stmt] = []
        source = self.window.load.source
        assert isinstance(source, Buffer)
        line = expr.mul(at, expr.index(down.step))
        line = expr.add(line, expr.index(self.scratch.shape[0]))
        place = expr.mul(x, expr.index(along.step))
        for v in range(self.together * down.step):
            first = expr.mul(expr.add(line, expr.index(v)), expr.index(down.stride))
            first = expr.add(expr.add(self._origin(values), first), place)
            stmts += [
                Prefetch(source, expr.add(first, expr.index(f * self.nest.lanes)))
                for f in range(along.step)
            ]
        return stmts

    def _origin(self, values: Values) -> Expr:
        """The address of the first place of the first line of a plane, padding or not."""
        zero, window = expr.index(0), self.window
        zeros: Values = {var: zero for var, _ in window.reduce.axes}
        zeros |= {window.along.at.var: zero, self.down.at.var: zero}
        return expr.substitute(window.load.indices[0], {**values, **zeros})

    def _sums(
        self,
        values: Values,
        at: Expr,
        begin: Expr,
        x: Expr,
        width: int,
        lane: Expr | None,
        is_there: Expr | None,
    ) -> list[Stmt]:
        """Statements that sum the windows of the lines at place `x`, and store the results that
        exist.
        """
        nest, window, down = self.nest, self.window, self.down
        reduce, height = window.reduce, down.at.count
        nothing = identity(reduce.op, reduce.dtype)
        acc = nest.builder.scratch("acc", reduce.dtype, (self.together, width))
        slot = expr.index(0) if lane is None else lane
        totals = [Load(acc, (expr.index(r), slot), acc.dtype) for r in range(self.together)]
        stmts: list[Stmt] = [Store(acc, t.indices, nothing) for t in totals]
        blocks, rest = divmod(down.taps, self.weights)
        if rest:
            blocks += 1
        size = -(-down.taps // blocks)  # taps of a column at a time
        for first in range(0, down.taps, size):
            taps = min(size, down.taps - first)
            for column in self.window.along.by_phase():

                def one(
                    n: Expr, column: Taps = column, first: int = first, taps: int = taps
                ) -> list[Stmt]:
                    return self._column(values, begin, x, totals, column, n, first, taps)

                if self.is_unrolled:
                    for n in range(column.count):
                        stmts += one(expr.index(n))
                else:
                    stmts += nest.serial(column.count, one, "k")
        if self.sums is not None:
            return stmts + [Store(self.sums, (t.indices[0], x), t) for t in totals]
        for r, total in enumerate(totals):
            asked = [] if is_there is None else [is_there]
            line = expr.add(at, expr.index(r))
            if r > (height - 1) % self.together:
                asked.insert(0, expr.binary("lt", line, expr.index(height)))
            stored = self._results(values, line, x, total)
            for condition in reversed(asked):
                stored = [If(condition, tuple(stored))]
            stmts += stored
        return stmts

    def _results(self, values: Values, line: Expr, x: Expr, total: Load) -> list[Stmt]:
        here = {**values, self.window.along.at.var: x, self.down.at.var: line}
        done: dict[Expr, Expr] = {self.window.reduce: total}
        return list(self.output.stores(self.nest, here, done.get))

    def _finish(self, values: Values, at: Expr) -> list[Stmt]:
        """The results of sums in scratch, a line after the other."""
        nest, sums, height = self.nest, self.sums, self.down.at.count
        if sums is None:
            return []

        def line(r: Expr) -> list[Stmt]:
            place = expr.add(at, r)

            def element(x: Expr, width: int, lane: Expr | None) -> list[Stmt]:
                return self._results(values, place, x, Load(sums, (r, x), sums.dtype))

            count = self.window.along.at.count
            stmts = row_of_vectors(nest, expr.index(0), count, nest.lanes, element, may_mask=True)
            if height % self.together == 0:
                return stmts
            return [If(expr.binary("lt", place, expr.index(height)), tuple(stmts))]

        return nest.serial(self.together, line, "r")

    def _column(
        self,
        values: Values,
        begin: Expr,
        x: Expr,
        totals: list[Load],
        column: Taps,
        n: Expr,
        first: int,
        taps: int,
    ) -> list[Stmt]:
        """Taps from `first` on of the `n`th of some columns, for all lines."""
        nest, window, down, along = self.nest, self.window, self.down, self.window.along
        assert along.tap is not None and down.tap is not None
        reduce = window.reduce
        ones: Values = {var: expr.index(0) for var, extent in reduce.axes if extent == 1}
        stmts: list[Stmt] = []
        tap = expr.add(expr.mul(n, expr.index(along.step)), expr.index(column.first))
        place = expr.add(expr.mul(n, expr.index(along.apart)), expr.index(column.ahead))
        place = expr.add(place, expr.add(x, expr.index(self.lead)))
        (weight,) = (load for load in expr.loads(reduce.body) if load is not window.load)
        here: Values = {**values, **ones, along.tap.var: tap}
        weights = []
        for k in range(taps):
            at = {**here, down.tap.var: expr.index(first + k)}
            weights.append(nest.let(expr.substitute(weight, at), stmts, "w"))
        for v in range(down.step * (self.together - 1) + down.apart * (taps - 1) + 1):
            terms = []
            for r, total in enumerate(totals):
                k, left = divmod(v - down.step * r, down.apart)
                if not left and 0 <= k < taps:
                    terms.append((total, weights[k]))
            if not terms:
                continue
            line = expr.add(begin, expr.index(v + down.apart * first))
            staged = Load(self.scratch, (line, expr.index(column.phase), place), self.scratch.dtype)
            a = nest.let(staged, stmts, "a")
            for total, w in terms:
                body = expr.transform(reduce.body, {window.load: a, weight: w}.get)  # type: ignore[arg-type]
                term = combined(reduce.op, total, body)
                stmts.append(Store(total.source, total.indices, term))
        return stmts
