"""Windowed reductions whose lanes run along a dim in which every load has stride 1, such as
channels.

Depthwise convolution, pooling and sums over planes, as register tiles of `plan.rows` neighbours by
`plan.columns` channels, so that taps are loaded once a tile and guards are asked at borders only.
CPU only: on a GPU an invocation an element does as well. Chooses no tile sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import gcd

from aot.analysis.cost.plan import FEW_VECTORS, UNROLLED_TAPS
from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.assumed_extents import IMAGE
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Expr, Load, Var
from aot.ir.schedule import StageSchedule
from aot.ir.types import DType
from aot.kernels.ir.nodes import Scratch, Stmt, Store
from aot.kernels.match.reduced import Reduced
from aot.kernels.match.windows import Window, find_window, members_apart
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.borders import Borders, masked, with_guard, without_guard
from aot.kernels.nest.nest import (
    Axis,
    Nest,
    Output,
    Values,
    collapse,
    combined,
    identity,
)
from aot.kernels.nest.tiles import ReusedScratch, Shape, is_long, over_rows
from aot.kernels.stage.ahead import least_bytes, prefetch
from aot.kernels.stage.tails import below, where, within
from aot.kernels.stage.vectors import unrolled_vectors
from aot.target.model import WAY_BYTES

# bytes of neighbouring columns that all lines are read for before the next ones
BLOCK_BYTES = 128
# places that a window moves on by at most where lines of a large image are asked for before they
# are read
MOST_ASKED = 4


def schedule_window(work: Work) -> Build | None:
    """The loops of a window with lanes along the last axis; None if the output is no such
    window."""
    if work.window is None:
        return None
    return WindowTiles(work.nest, work.reduced.output, work.window, work.plan).build


def schedule_members(work: Work) -> Build | None:
    """The loops of grouped windows with several members per group, with lanes along groups; None
    for others.
    """
    nest, found = work.nest, work.reduced
    apart = None if found.free or nest.is_gpu else members_apart(found.output)
    if apart is None:
        return None
    output, size = apart
    window = find_window(nest, output, Reduced.of(output).reduces, step=size)
    return None if window is None else WindowTiles(nest, output, window, work.plan).build


class WindowTiles:
    """The tiles of a window and the loops around them.

    Attributes:
        is_clamped: whether rows past the last one read that one again.
    """

    is_clamped = True

    def __init__(self, nest: Nest, output: Output, window: Window, plan: StageSchedule) -> None:
        self.nest = nest
        self.output = output
        self.window = window
        self.plan = plan
        self.scratch = ReusedScratch(nest)
        # where a vector of a tile begins, and a lane within it
        self.chunk, self.in_vector = Var("chunk"), Var("lane")
        rows, extent = window.rows, window.lane.extent
        self.rows = plan.rows if rows is not None else 1
        if rows is not None and isinstance(rows.extent, int):
            self.rows = max(1, min(self.rows, rows.extent))
        self.pieces = pieces_of(extent, plan.columns, nest.lanes)

    @property
    def column_tiles(self) -> Dim:
        """The number of tiles along the lanes."""
        tiles: Dim = 0
        for piece in self.pieces:
            tiles = dims.add(tiles, piece.tiles)
        return tiles

    def build(self) -> tuple[Stmt, ...]:
        nest, window = self.nest, self.window
        axes = list(window.outer)
        row_tile = Axis(nest.builder.var("mt"), 1)
        if window.rows is not None:
            row_tile = Axis(row_tile.var, dims.ceil_divide(window.rows.extent, self.rows))
            axes.append(row_tile)
        tiles = self.column_tiles
        together = self._together(tiles)
        column_tile = Axis(nest.builder.var("nt"), tiles if together is None else together)
        axes.append(column_tile)
        block = Axis(nest.builder.var("nb"), 1)
        if together is not None:
            block = Axis(block.var, dims.ceil_divide(tiles, together))
            axes.insert(0, block)
        taps = dims.product([a.extent for a in window.axes])

        def body(values: Values) -> list[Stmt]:
            first = expr.index(0)
            if window.rows is not None:
                first = expr.mul(values[row_tile.var], expr.index(self.rows))
            number = values[column_tile.var]
            if together is None:
                return self._columns(self.pieces, values, first, number)
            number = expr.linear((values[block.var], together), number)
            found = self._columns(self.pieces, values, first, number)
            return where(within(number, tiles, together), found)

        return nest.grid(axes, body, dims.multiply(taps, self.rows * self.pieces[0].columns // 4))

    def _together(self, tiles: Dim) -> int | None:
        """How many column tiles to run through all rows before the next ones, so that windows of
        neighbouring lines share data in the L1 cache. None for all at once, which is as fast for
        data that streams from memory."""
        window, target = self.window, self.nest.target
        extent, rows = window.lane.extent, window.rows
        taps = [a for a in window.axes if a.extent != 1]
        if not taps or rows is None or not isinstance(extent, int) or not isinstance(tiles, int):
            return None
        loads = [x for x in expr.loads(window.reduce.body) if rows.var in expr.free_vars(x)]
        lines = dims.product([a.extent for a in taps[:-1]])
        positions = dims.estimate(rows.extent, IMAGE)
        if len(loads) != 1 or positions is None or not isinstance(lines, int):
            return None
        index, size = loads[0].indices[0], loads[0].dtype.bytes
        step, apart = (expr.coefficient(index, v) for v in (taps[-1].var, rows.var))
        if isinstance(step, int) and isinstance(apart, int) and 0 < step < apart:
            positions *= apart // step
        line = positions * extent * size
        if lines * line <= target.l1_bytes // 2:
            return None
        images = dims.estimate(dims.product([a.extent for a in window.outer[-1:]]), IMAGE)
        if (images or 1) * line > target.l2_bytes and lines * line <= target.l2_bytes // 2:
            return None
        block = BLOCK_BYTES
        if isinstance(step, int):
            block = max(block, gcd(step * size, WAY_BYTES) // 4)
        if target.multiplies_by_lane:
            # what a line takes beside its tiles shows where these are short
            block = max(block, target.l1_bytes // 2 // (lines * positions))
        together = max(1, block // (self.pieces[0].columns * size))
        return together if together < tiles else None

    def _columns(
        self, pieces: Sequence[_Piece], values: Values, first: Expr, number: Expr
    ) -> list[Stmt]:
        """Statements for tile `number` of those along the lanes, as listed in `pieces`."""
        piece, later = pieces[0], pieces[1:]
        start = expr.linear((number, piece.columns), piece.begin)
        shape = Shape(self.rows, piece.chunks, piece.width, True, not piece.is_masked)
        whole = self._rows(values, first, start, shape)
        if not later:
            return whole
        left = expr.sub(number, expr.index(piece.tiles))
        return where(below(number, piece.tiles), whole, self._columns(later, values, first, left))

    def _rows(self, values: Values, first: Expr, start: Expr, shape: Shape) -> list[Stmt]:
        extent: Dim = 1 if self.window.rows is None else self.window.rows.extent

        # what is left where only the device knows how much is little: one copy of its loops does
        is_open = not isinstance(self.window.lane.extent, int)
        is_rest = is_open and shape.columns < self.pieces[0].columns

        def build(shape: Shape, first: Expr) -> list[Stmt]:
            tile = _Tile(self, shape, values, first, start)
            return tile.build(is_common=not is_rest and shape.rows == self.rows)

        height = 0 if is_rest else self.rows // 2
        asked = self._asked(values, first, start, shape)
        return asked + over_rows(self.nest, extent, first, shape, height, build)

    def _asked(self, values: Values, first: Expr, start: Expr, shape: Shape) -> list[Stmt]:
        """Prefetches image data from beyond the L2 cache that the windows below this tile's read
        and its own do not."""
        window, target = self.window, self.nest.target
        if window.rows is None or not window.outer or not target.has("avx512f"):
            return []
        body, below = window.reduce.body, window.outer[-1]
        found = [x for x in expr.loads(body) if window.rows.var in expr.free_vars(x)]
        taps = [a for a in window.axes if a.extent != 1]
        if not isinstance(body, Binary) or body.op != "mul" or len(found) != 1 or len(taps) != 2:
            return []
        (load,) = found
        source, index = load.source, load.indices[0]
        if least_bytes(source) <= target.l2_bytes:
            return []
        down, along = taps
        steps = [expr.coefficient(index, a.var) for a in (below, down, window.rows, along)]
        if not all(isinstance(n, int) and n > 0 for n in steps):
            return []
        by_line, by_down, by_row, by_along = (n for n in steps if isinstance(n, int))
        lines, places = by_line // by_down, by_row // by_along
        if by_line % by_down or by_row % by_along or not 0 < lines * places <= MOST_ASKED:
            return []
        zeros = {a.var: expr.index(0) for a in window.axes}
        stmts: list[Stmt] = []
        here: Values = {**values, **zeros, window.rows.var: first, window.lane.var: start}
        begin = expr.linear(expr.substitute(index, here), by_line)
        begin = self.nest.let(begin, stmts, "ahead")
        for line in range(max(0, down.count - lines), down.count):
            for place in range(places * shape.rows):
                for u in range(shape.chunks):
                    at = line * by_down + place * by_along + u * shape.width
                    stmts += prefetch(source, expr.linear(begin, at))
        return stmts


@dataclass(frozen=True)
class _Piece:
    """Consecutive columns covered by tiles of one width.

    Attributes:
        begin: the first of them.
        tiles: how many tiles take them.
        is_masked: whether the last tile's end may not be there.
    """

    begin: Dim
    chunks: int
    width: int
    tiles: Dim
    is_masked: bool

    @property
    def columns(self) -> int:
        return self.chunks * self.width


def pieces_of(extent: Dim, columns: int, lanes: int) -> list[_Piece]:
    """Tiles that cover `extent` columns, widest first. For a symbolic extent: whole tiles, then
    tail vectors of a width that divides it, or masked ones if those would be many.
    """
    width = min(lanes, max(columns, 1))
    chunks = max(1, columns // width)
    if isinstance(extent, int):
        return _known_pieces(extent, chunks, width)
    if dims.modulo(extent, chunks * width) == 0:
        return [_Piece(0, chunks, width, dims.floor_divide(extent, chunks * width), False)]
    tiles = dims.floor_divide(extent, chunks * width)
    done = dims.multiply(tiles, chunks * width)
    rest = dims.add(extent, dims.multiply(done, -1))
    small = width
    while dims.modulo(extent, small) != 0:
        small //= 2
    if width // small > FEW_VECTORS:
        small = width
    is_masked = dims.modulo(extent, small) != 0
    last = _Piece(done, 1, small, dims.ceil_divide(rest, small), is_masked)
    return [_Piece(0, chunks, width, tiles, False), last]


def _known_pieces(extent: int, chunks: int, width: int) -> list[_Piece]:
    found: list[_Piece] = []
    begin = 0
    while begin < extent or not found:
        left = extent - begin
        while width > 1 and width // 2 >= left:
            width //= 2
        chunks = max(1, min(chunks, left // width))
        tiles = left // (chunks * width)
        if tiles == 0:  # a last vector that isn't full
            found.append(_Piece(begin, 1, width, 1, True))
            break
        found.append(_Piece(begin, chunks, width, tiles, False))
        begin += tiles * chunks * width
    return found


class _Tile:
    """A placed register tile of a window, at row `first` and column `start`."""

    def __init__(
        self, tiles: WindowTiles, shape: Shape, values: Values, first: Expr, start: Expr
    ) -> None:
        self.tiles = tiles
        self.nest = tiles.nest
        self.output = tiles.output
        self.window = tiles.window
        self.scratch = tiles.scratch
        self.shape = shape
        self.values = values
        self.first = first
        self.start = start
        self.number = Var("r")  # of a row within the tile
        # whether rows past the last one read that one again; else guards keep them from reading
        self.is_clamped = tiles.is_clamped
        self.acc: Scratch = self.nest.builder.scratch(
            "acc", self.window.reduce.dtype, (shape.rows, shape.chunks, shape.width)
        )

    def build(self, *, is_common: bool) -> list[Stmt]:
        """The tile's statements; if it `is_common`, a version without guards too."""
        reduce = self.window.reduce
        nothing = identity(reduce.op, reduce.dtype)
        stmts = self._each(lambda r, u, lane: [Store(self.acc, (r, u, lane), nothing)])
        return stmts + self._sum(is_common=is_common) + self._finish()

    def _each(self, body: Callable[[Expr, Expr, Expr], Sequence[Stmt]]) -> list[Stmt]:
        """`body(row, chunk, lane)` for all of the tile, in registers."""
        shape = self.shape
        return unrolled_vectors(self.nest, (shape.rows, shape.chunks), shape.width, body, "r")

    # The reduction

    def _sum(self, *, is_common: bool) -> list[Stmt]:
        """Statements that sum all taps. Inside the borders no guard is checked; taps outside for
        the whole tile are left out.
        """
        window = self.window
        reduce = window.reduce
        indices: Values = {a.var: expr.index(0) for a in window.axes if a.extent == 1}
        axes = [a for a in window.axes if a.extent != 1]
        if not any(load.guard is not None for load in expr.loads(reduce.body)):
            merged, gone = collapse(axes, expr.index(0), [reduce.body])
            return self._loops(list(merged), {**indices, **gone}, reduce.body, ())
        rows = [window.rows] if window.rows is not None else []
        borders = Borders.of(reduce, [a.var for a in (*axes[-1:], *rows)])
        if window.rows is not None and borders.keep(reduce.body, window.rows.var):
            self.is_clamped = False
        free = expr.transform(reduce.body, without_guard)
        corners = {a.var: (expr.index(0), expr.index(dims.add(a.extent, -1))) for a in axes}
        if window.rows is not None:
            low, high = (self._at(expr.index(r)) for r in (0, self.shape.rows - 1))
            corners[window.rows.var] = low[window.rows.var], high[window.rows.var]
        skipped = borders.skipped
        if not borders.asked:
            return self._loops(axes, indices, free, skipped)
        asking = borders.asking(reduce.body)
        if not borders.are_linear_in(corners):
            return self._loops(axes, indices, asking, skipped)
        place = {**self.values, **indices}
        ask: list[Stmt] = []
        held = self._asked_once(borders, axes[-1:], place)
        if held is not None:
            ask, guard = held
            asking = expr.transform(reduce.body, with_guard(guard))
        slow = ask + self._loops(axes, indices, asking, skipped)
        inside = borders.inside(corners, place)
        if inside is None or not is_common:
            return slow
        return where(inside, self._loops(axes, indices, free, skipped), slow)

    def _asked_once(
        self, borders: Borders, inner: Sequence[Axis], place: Values
    ) -> tuple[list[Stmt], Expr] | None:
        """(statements, guard) that evaluate guards once before all taps, for each position that
        neighbouring rows share along the innermost axis, and look them up. None where rows share no
        positions."""
        rows, shape = self.window.rows, self.shape
        if rows is None or not borders.asked or not inner or not borders.skipped:
            return None
        (axis,) = inner
        is_short = isinstance(axis.extent, int) and axis.extent <= UNROLLED_TAPS
        steps = borders.steps(rows.var, axis.var)
        used = {v for c in borders.asked for v in expr.free_vars(c)}
        others = used - {*place, rows.var, axis.var}
        is_moved = self.is_clamped and not shape.has_all_rows
        if not is_short or is_moved or steps is None or others:
            return None
        by_row, by_tap = steps
        found: dict[int, Stmt] = {}
        count = by_row * (shape.rows - 1) + by_tap * (axis.count - 1) + 1
        held = self.nest.builder.scratch("held", DType.BOOL, (count,))
        for r, k in product(range(shape.rows), range(axis.count)):
            at = by_row * r + by_tap * k
            if at in found:
                continue
            tap = {axis.var: expr.index(k)}
            unsure = borders.unsure(rows.var, shape.span_of(r, rows.extent), tap)
            asked = expr.const(True, DType.BOOL) if unsure is None else unsure
            here = {**place, **self._at(expr.index(r)), **tap}
            found[at] = Store(held, (expr.index(at),), expr.substitute(asked, here))
        position = expr.linear((self.number, by_row), (axis.var, by_tap))
        return list(found.values()), Load(held, (position,), DType.BOOL)

    def _loops(
        self, axes: Sequence[Axis], indices: Values, body: Expr, skipped: Sequence[Expr]
    ) -> list[Stmt]:
        """Loops over `axes` around `body`; a condition in `skipped` is checked in the outermost
        loop that has all its variables.
        """
        known = [c for c in skipped if not expr.free_vars(c) & {a.var for a in axes}]
        if known:
            left = [c for c in skipped if c not in known]
            held = expr.all_of(expr.substitute(c, {**self.values, **indices}) for c in known)
            return where(held, self._loops(axes, indices, body, left))
        if not axes:
            return self._tap(indices, body)
        axis = axes[0]

        def inside(k: Expr) -> list[Stmt]:
            return self._loops(axes[1:], {**indices, axis.var: k}, body, skipped)

        is_short = isinstance(axis.extent, int) and axis.extent <= UNROLLED_TAPS
        if len(axes) > 1 or not is_short or not isinstance(axis.extent, int):
            return self.nest.serial(axis.extent, inside, "k")
        nest, taps = self.nest, axis.extent
        # a vector of neighbours after the other: what taps share of one is in registers only then
        return nest.unrolled(
            self.shape.chunks,
            lambda u: nest.unrolled(
                taps, lambda k: self._tap({**indices, axis.var: k}, body, u), "k"
            ),
        )

    def _tap(self, indices: Values, body: Expr, chunk: Expr | None = None) -> list[Stmt]:
        """Statements for one tap, for every element of the tile or of one chunk."""
        nest, shape = self.nest, self.shape
        acc, reduce = self.acc, self.window.reduce
        body = self._masked(body)

        def one(r: Expr, u: Expr, lane: Expr) -> list[Stmt]:
            place = {**indices, **self._at(r), self.number: r}
            place[self.window.lane.var] = self._column(u, lane)
            place[self.tiles.chunk] = self._column(u, expr.index(0))
            place[self.tiles.in_vector] = lane
            term = expr.substitute(body, place)
            old = Load(acc, (r, u, lane), acc.dtype)
            return [Store(acc, (r, u, lane), combined(reduce.op, old, term))]

        if chunk is None:
            return self._each(one)
        return unrolled_vectors(
            nest, (shape.rows,), shape.width, lambda r, lane: one(r, chunk, lane), "r"
        )

    def _masked(self, e: Expr) -> Expr:
        """`e` with its loads along the lanes masked at the end."""
        axis = self.window.lane
        if self.shape.has_all_columns:
            return e
        return masked(e, below(axis.var, axis.extent), axis.var)

    # Where things are

    def _at(self, r: Expr, *, is_clamped: bool = True) -> Values:
        """Index values outside the reduction, for row `r` of the tile."""
        is_clamped = is_clamped and self.is_clamped
        at = self.shape.row_values(self.window.rows, self.first, r, is_clamped=is_clamped)
        return {**self.values, **at}

    def _column(self, u: Expr, lane: Expr) -> Expr:
        return expr.linear(self.start, (u, self.shape.width), lane)

    # What becomes of the sums

    def _finish(self) -> list[Stmt]:
        """Statements that finish and store the results; a long epilogue is a loop over sums in
        memory instead of unrolled code.
        """
        nest, acc, shape = self.nest, self.acc, self.shape
        if shape.rows * shape.chunks == 1 or not is_long(self.output.values, self.window.reduce):
            return nest.unrolled(shape.rows, lambda r: self._finish_row(r, acc, nest.unrolled), "r")
        tile = self.scratch.get("tile", acc.dtype, acc.shape)
        stored = self._each(
            lambda r, u, lane: [Store(tile, (r, u, lane), Load(acc, (r, u, lane), acc.dtype))]
        )
        return stored + nest.serial(
            shape.rows, lambda r: self._finish_row(r, tile, nest.serial), "r"
        )

    def _finish_row(self, r: Expr, source: Scratch, loop: Callable[..., list[Stmt]]) -> list[Stmt]:
        nest, window, output, shape = self.nest, self.window, self.output, self.shape
        here = self._at(r, is_clamped=False)

        def lanes(u: Expr, lane: Expr) -> list[Stmt]:
            at = self._column(u, lane)
            place = {**here, window.lane.var: at}
            total = Load(source, (r, u, lane), source.dtype)
            done: dict[Expr, Expr] = {window.reduce: total}
            is_there = None if shape.has_all_columns else below(at, window.lane.extent)
            return where(is_there, output.stores(nest, place, done.get))

        stmts = loop(
            shape.chunks, lambda u: [nest.spread(shape.width, lambda lane: lanes(u, lane))]
        )
        rows = window.rows
        if rows is None or shape.has_all_rows:
            return stmts
        return where(below(expr.add(self.first, r), rows.extent), stmts)
