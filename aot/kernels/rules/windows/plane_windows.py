"""Depthwise convolutions over padded planes: lanes run along the lines of a plane.

Several lines of the result have their sums in registers together, so that a load of the plane
serves all taps of a column of a window, whose weights are in registers meanwhile. CPU only.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from aot.ir import dims, expr
from aot.ir.expr import Expr, Load, Reduce
from aot.kernels.ir.nodes import Buffer, Scratch, Space, Stmt, Store
from aot.kernels.match.planes import PaddedWindow, find_padded
from aot.kernels.match.slides import Slide, Taps, first_window
from aot.kernels.match.work import Build, Work
from aot.kernels.nest import segments
from aot.kernels.nest.nest import Axis, Nest, Output, Values, combined, identity
from aot.kernels.nest.rows import masked_lanes, row_of_vectors, vectors_of
from aot.kernels.nest.tiles import is_long
from aot.kernels.stage.ahead import cache_lines, least_bytes, of_line, prefetch
from aot.kernels.stage.band import Band, rows_in_scratch
from aot.kernels.stage.tails import below, even, where, within
from aot.target.model import Target

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
    """The loops of a window with one weight per tap; None for other outputs."""
    found = work.reduced
    return None if found.free else plane_window(work.nest, found.output, found.reduces)


def plane_window(nest: Nest, output: Output, reduces: Sequence[Reduce]) -> Build | None:
    """The loops of a weighted window that `output` computes, in the order of its axes; else
    None."""
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
    """When the plane's next rows are prefetched: never, while lines are staged, or in tiles."""

    NOT = auto()
    IN_FILL = auto()
    IN_TILES = auto()


def _tile(target: Target) -> tuple[int, int]:
    """(lines, vectors along a line) whose sums are in registers together."""
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
        band: the lines of the plane that those read.
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
        taps = along.taps * down.taps
        # fewer sums take as long where a window's products are too many to overlap the next one's
        is_loop = most * taps > MANY_PRODUCTS
        self.together = min(
            range(min(max(most // 2 + 1, 1), height), min(most, height) + 1),
            key=lambda n: (-(-height // n) * (most if is_loop else n), n if is_loop else -n),
        )
        self.weights = MOST_WEIGHTS[is_wide]
        # else weights that don't change would be kept elsewhere
        registers = taps + self.together * self.vectors + OTHERS
        self.is_unrolled = registers <= nest.target.vector_registers
        # vectors begin where those of a cache do, for the window's first places in the image
        self.lead = -(-along.begin // (along.step * lanes)) * lanes
        self.lead -= -(-along.begin // along.step)
        ahead = (along.apart * (along.taps - 1)) // along.step
        last = width if masked_lanes(nest, width) == 0 else -(-width // lanes) * lanes
        pitch = -(-(self.lead + last + ahead) // lanes) * lanes
        dtype, scratch = window.load.dtype, nest.builder.scratch
        if pitch * along.step * dtype.bytes % WAY == 0:
            pitch += lanes
        self.rows = self._rows_of_band(pitch * along.step * dtype.bytes)
        moved = least_bytes(window.load.source, output.buffer)
        self.asks = _Asks.NOT
        if isinstance(window.load.source, Buffer) and moved > nest.target.l2_bytes:
            has_time = taps >= MANY_TAPS * along.step * down.step
            self.asks = _Asks.IN_TILES if has_time else _Asks.IN_FILL
        shape = down.places(max(self.rows, 1)), along.step, pitch
        held = scratch("rows", dtype, shape, Space.WORKGROUP)
        self.band = Band(nest, window.load, along, down, held, self.lead)
        self.sums: Scratch | None = None
        if is_long(output.values, window.reduce):
            sums = self.together, -(-width // lanes) * lanes
            self.sums = scratch("sums", window.reduce.dtype, sums, Space.WORKGROUP)

    def _rows_of_band(self, row_bytes: int) -> int:
        """Result lines per workgroup, as many as scratch can hold the input of; 0 for none."""
        down, count, near = self.down, self.together, self.nest.target.l1_bytes * 3 // 4
        most = rows_in_scratch(self.nest, down.places(count), row_bytes, near)
        groups = -(-down.at.count // count)
        fitting = min(groups, down.results(most, groups * count) // count)
        return count * even(groups, fitting) if fitting else 0

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
                are_whole = -(-height // self.together) * self.together % self.rows == 0
                return stmts + where(None if are_whole else below(at, height), lines)

            start = expr.mul(first, expr.index(down.step))
            return self._fill(values, start) + nest.serial(self.rows // self.together, group, "g")

        taps = dims.product([n for _, n in self.window.reduce.axes])
        return nest.grid(outer, body, dims.multiply(taps, self.rows * along.at.count))

    # What is brought into scratch

    def _fill(self, values: Values, start: Expr) -> list[Stmt]:
        """Statements that stage the plane's lines from `start`."""
        down, along, height = self.down, self.window.along, self.band.scratch.shape[0]
        source = self.window.load.source
        each = cache_lines(source, along.end - along.begin)

        def asked(origin: Expr) -> list[Stmt]:
            """Prefetches the line that the next workgroup will stage in the place of this one."""
            if self.asks is not _Asks.IN_FILL:
                return []
            ahead = expr.linear(origin, height * down.stride + along.begin)
            return self.nest.serial(
                each, lambda n: prefetch(source, expr.linear(ahead, (n, of_line(source)))), "n"
            )

        reach = down.places(-(-down.at.count // self.rows) * self.rows)
        return self.band.fill(self._origin(values), start, reach, asked)

    # What is computed of it

    def _lines(self, values: Values, at: Expr, begin: Expr) -> list[Stmt]:
        """Statements for the result's lines from `at`, whose windows begin at line `begin` of
        scratch."""
        nest, count = self.nest, self.window.along.at.count
        masked = masked_lanes(nest, count)
        stmts: list[Stmt] = []
        most = self.vectors * nest.lanes
        for first, width, vectors in vectors_of(most, nest.lanes, count - masked):
            assert isinstance(first, int) and isinstance(vectors, int)

            def vector(o: Expr, first: int = first, width: int = width) -> list[Stmt]:
                x = expr.linear((o, width), first)
                if width == 1:
                    return self._sums(values, at, begin, x, 1, None, None)
                made = nest.spread(
                    width,
                    lambda lane: self._sums(
                        values, at, begin, expr.add(x, lane), width, lane, None
                    ),
                )
                return [*self._asked(values, at, x), made]

            stmts += nest.serial(vectors, vector, "o")
        if masked:
            start = expr.index(count - masked)

            def some(lane: Expr) -> list[Stmt]:
                is_there, x = below(lane, masked), expr.add(start, lane)
                return self._sums(values, at, begin, x, nest.lanes, lane, is_there)

            stmts += [*self._asked(values, at, start), nest.spread(nest.lanes, some)]
        return stmts

    def _asked(self, values: Values, at: Expr, x: Expr) -> list[Stmt]:
        """Prefetches the image rows of the next workgroup, at place `x` of a result, if tiles leave
        time for it.
        """
        if self.asks is not _Asks.IN_TILES:
            return []
        down, along, source = self.down, self.window.along, self.window.load.source
        line = expr.linear((at, down.step), self.band.scratch.shape[0])
        place = expr.mul(x, expr.index(along.step))
        stmts: list[Stmt] = []
        for v in range(self.together * down.step):
            ahead = expr.linear(self._origin(values), (expr.linear(line, v), down.stride))
            for phase in range(along.step):
                stmts += prefetch(source, expr.linear(ahead, place, phase * self.nest.lanes))
        return stmts

    def _origin(self, values: Values) -> Expr:
        """The address of the first place of the first line of a plane, padding or not."""
        window = self.window
        zeros = first_window(window.reduce, *window.slides)
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
        size = even(down.taps, self.weights)  # taps of a column at a time
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
            line = expr.linear(at, r)
            is_line = below(line, height) if r > (height - 1) % self.together else None
            stmts += where(is_line, where(is_there, self._results(values, line, x, total)))
        return stmts

    def _results(self, values: Values, line: Expr, x: Expr, total: Load) -> list[Stmt]:
        here = {**values, self.window.along.at.var: x, self.down.at.var: line}
        done: dict[Expr, Expr] = {self.window.reduce: total}
        return list(self.output.stores(self.nest, here, done.get))

    def _finish(self, values: Values, at: Expr) -> list[Stmt]:
        """Statements that finish the sums in scratch line by line, and store the results."""
        nest, sums, height = self.nest, self.sums, self.down.at.count
        if sums is None:
            return []

        def line(r: Expr) -> list[Stmt]:
            place = expr.add(at, r)

            def element(x: Expr, width: int, lane: Expr | None) -> list[Stmt]:
                return self._results(values, place, x, Load(sums, (r, x), sums.dtype))

            count = self.window.along.at.count
            stmts = row_of_vectors(nest, expr.index(0), count, nest.lanes, element, may_mask=True)
            return where(within(place, height, self.together), stmts)

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
        """Statements that add taps from `first` of the `n`th column of taps, for all lines."""
        nest, window, down, along = self.nest, self.window, self.down, self.window.along
        assert along.tap is not None and down.tap is not None
        reduce, held = window.reduce, self.band.scratch
        ones: Values = {var: expr.index(0) for var, extent in reduce.axes if extent == 1}
        stmts: list[Stmt] = []
        tap = expr.linear((n, along.step), column.first)
        place = expr.linear((n, along.apart), column.ahead, expr.linear(x, self.lead))
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
            line = expr.linear(begin, v + down.apart * first)
            staged = Load(held, (line, expr.index(column.phase), place), held.dtype)
            a = nest.let(staged, stmts, "a")
            for total, w in terms:
                body = expr.transform(reduce.body, {window.load: a, weight: w}.get)  # type: ignore[arg-type]
                term = combined(reduce.op, total, body)
                stmts.append(Store(total.source, total.indices, term))
        return stmts
