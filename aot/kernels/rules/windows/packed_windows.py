"""Channels-last windows whose image rows are staged in scratch; lanes run along channels.

Neighbours that lie far apart in memory want the same few places of a cache, and windows of many
taps read each of them again and again. So a workgroup copies some channels of some lines, with
their padding, and its tiles ask no guard. CPU only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from aot.analysis.cost.plan import UNROLLED_TAPS
from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.expr import Expr, Load, Var
from aot.ir.schedule import StageSchedule
from aot.kernels.ir.nodes import Space, Stmt, Store
from aot.kernels.match.slides import Slide, slides_of
from aot.kernels.match.windows import Window
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.borders import skipped_guard
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.nest.tiles import Shape
from aot.kernels.rules.windows.windows import WindowTiles, pieces_of
from aot.kernels.stage.band import even_lines, padding_of
from aot.kernels.stage.tails import below, between, where, within
from aot.kernels.stage.vectors import unrolled_vectors

# rows of a tile at most
MOST_ROWS = 8
# lines that are copied for each line of the result at most
MOST_COPIES = 3.0
MOST_LINES = 1 << 16


@dataclass(frozen=True)
class Packed:
    """A window whose input is staged in scratch.

    Attributes:
        load: of the image.
        along, down: how windows slide along a line, and from line to line.
        asked: whether a line is one; None where padding does not leave the sum as it is.
    """

    load: Load
    along: Slide
    down: Slide
    asked: Expr | None


def find_packed(nest: Nest, window: Window, plan: StageSchedule) -> Packed | None:
    """The part of a window's input to stage in scratch; None where that does not pay."""
    if nest.is_gpu or nest.lanes == 1 or window.rows is None or not window.outer:
        return None
    moving = {window.rows.var, window.outer[-1].var}
    body = window.reduce.body
    found = [x for x in expr.loads(body) if moving & expr.free_vars(x)]
    if len(found) != 1:
        return None
    (load,) = found
    read = Var("read", load.dtype)
    if moving & expr.free_vars(expr.transform(body, lambda e: read if e is load else None)):
        return None
    if load.guard is not None and not isinstance(load.other, expr.Const):
        return None
    made = staged_window(window, load)
    if made is None or made[1]:
        return None
    return made[0] if _is_wanted(nest, made[0], columns_of_tiles(nest, window, plan)) else None


def staged_window(window: Window, load: Load) -> tuple[Packed, tuple[Axis, ...]] | None:
    """(staged window, other reduction axes) of a window; None where it does not slide along rows
    and lines."""
    assert window.rows is not None
    found = slides_of(load, window.reduce, (window.rows, window.outer[-1]))
    if found is None:
        return None
    is_neutral = load.guard is not None and skipped_guard(window.reduce) is not None
    along, down = found.along
    asked = expr.all_of(found.asked[-1]) if is_neutral else None
    return Packed(load, along, down, asked), found.rest


def _is_wanted(nest: Nest, packed: Packed, columns: int) -> bool:
    """Whether staging pays: a row's taps form a loop, in which neighbours share neither loads nor
    guards, and scratch holds the input of some result rows of `columns` columns.
    """
    along, down = packed.along, packed.down
    if along.taps <= UNROLLED_TAPS:
        return False
    # a tile has no more rows than are done at once anywhere
    place = (along.count + along.step * MOST_ROWS) * packed.load.dtype.bytes
    if 4 * down.taps * place * nest.lanes > 5 * nest.target.l1_bytes:
        return False  # a tile's lines come from the next cache, there or here
    lines = even_lines(down, nest.target.scratch_bytes // (place * columns), MOST_LINES)
    return lines > 0 and down.places(lines) <= MOST_COPIES * lines


def schedule_packed_window(work: Work) -> Build | None:
    """The loops of a window whose input is staged in scratch; None for others."""
    window = work.window
    packed = None if window is None else find_packed(work.nest, window, work.plan)
    if window is None or packed is None:
        return None
    return PackedTiles(work.nest, work.reduced.output, window, work.plan, packed).build


class HeldTiles(WindowTiles):
    """Tiles of a window over staged lines; a workgroup does some lines of the result.

    Attributes:
        held: [line][place][channel]: what the windows of these lines read, with their padding.
        tiles: of rows, along a part of a line, whose places are in scratch together.
        parts: of a line.
        line: the variable that stands for a line of the result among those of a workgroup.
        part: for the first row of a part; not used where it is the only one.
    """

    is_clamped = False

    def __init__(
        self,
        nest: Nest,
        output: Output,
        window: Window,
        plan: StageSchedule,
        packed: Packed,
        channels: int,
        most: int,
        tiles: int = 0,
    ) -> None:
        """Stages `channels` channels for at most `most` result rows, with `tiles` tiles of a row at
        a time; 0 means the whole row.
        """
        super().__init__(nest, output, window, plan)
        along, down = packed.along, packed.down
        self.packed = packed
        self.in_line = -(-along.at.count // self.rows)
        self.tiles = tiles or self.in_line
        self.parts = -(-self.in_line // self.tiles)
        self.places = along.places(self.tiles * self.rows)
        row_bytes = self.places * channels * packed.load.dtype.bytes
        self.lines = even_lines(down, nest.target.scratch_bytes // row_bytes, most)
        self.strips = -(-down.at.count // self.lines)
        shape = down.places(self.lines), self.places, channels
        self.held = nest.builder.scratch("held", packed.load.dtype, shape, Space.WORKGROUP)
        self.line = Var("line")
        self.part = Var("part")

    def load(self, channel: Expr, guard: Expr | None = None) -> Load:
        """The load, from scratch, of a channel's element at a tap."""

        def place(slide: Slide, at: Expr) -> Expr:
            assert slide.tap is not None
            return expr.linear((at, slide.step), (slide.tap.var, slide.apart))

        along, down = self.packed.along, self.packed.down
        row: Expr = along.at.var if self.parts == 1 else expr.sub(along.at.var, self.part)
        indices = place(down, self.line), place(along, row), channel
        other = None if guard is None else self.packed.load.other
        return Load(self.held, indices, self.held.dtype, guard=guard, other=other)

    def over_lines(
        self, values: Values, first: Expr, body: Callable[[Values, Expr], list[Stmt]]
    ) -> list[Stmt]:
        """`body(values, first row)` for each tile of rows in each result line."""
        nest, down = self.nest, self.packed.down
        begin = values.get(self.part, expr.index(0))

        def line(t: Expr) -> list[Stmt]:
            at = expr.add(first, t)
            here = {**values, down.at.var: at, self.line: t}
            stmts = nest.serial(
                self.tiles, lambda m: body(here, expr.linear(begin, (m, self.rows))), "mt"
            )
            return where(within(at, down.at.extent, self.lines), stmts)

        return nest.serial(self.lines, line, "line")

    def fill(
        self, values: Values, first: Expr, copy: Callable[[Expr, Expr, Load | None], list[Stmt]]
    ) -> list[Stmt]:
        """Statements that stage the lines that a workgroup reads, padding included: `copy(line,
        place, value)` copies all channels of a place, where `value` is the image's load, or None
        for padding."""
        nest, packed = self.nest, self.packed
        along, down, load = packed.along, packed.down, packed.load
        start = expr.mul(first, expr.index(down.step))
        zeros = {a.var: expr.index(0) for a in (along.at, down.at, along.tap, down.tap) if a}
        origin = expr.substitute(load.indices[0], {**values, **zeros})
        part = expr.mul(values.get(self.part, expr.index(0)), expr.index(along.step))

        def line(v: Expr) -> list[Stmt]:
            at = expr.add(start, v)

            def there(place: Expr) -> list[Stmt]:
                of_line = expr.add(place, part)
                index = expr.linear(origin, (at, down.stride), (of_line, along.stride))
                return copy(v, place, replace(load, indices=(index,), guard=None, other=None))

            def of_part(place: Expr) -> list[Stmt]:
                of_line = expr.add(place, part)
                is_inside = between(of_line, along.begin, along.end)
                return where(is_inside, there(place), copy(v, place, None))

            def places(begin: int, end: int, body: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
                return nest.serial(end - begin, lambda q: body(expr.linear(q, begin)), "q")

            def padding(place: Expr) -> list[Stmt]:
                return copy(v, place, None)

            if self.parts > 1:
                stmts = places(0, self.places, of_part)
            else:
                stmts = places(0, along.begin, padding)
                stmts += places(along.begin, along.end, there)
                stmts += places(along.end, self.places, padding)
            is_there = down.is_there(at, at, down.places(self.strips * self.lines))
            # where padding changes nothing, no tap asks for it
            missing = self.places if packed.asked is None else 0
            return where(is_there, stmts, lambda: places(0, missing, padding))

        return nest.serial(down.places(self.lines), line, "v")

    def reading(self, window: Window, body: Expr) -> Window:
        """The window with another reduction body, also in its output."""
        reduce = replace(window.reduce, body=body)
        known: dict[Expr, Expr] = {window.reduce: reduce}
        self.output = self.output.rewritten(lambda e: expr.transform(e, known.get))
        return replace(window, reduce=reduce)


class PackedTiles(HeldTiles):
    """The tiles of a depthwise window over staged lines: a workgroup has one tile of columns."""

    def __init__(
        self, nest: Nest, output: Output, window: Window, plan: StageSchedule, packed: Packed
    ) -> None:
        columns = columns_of_tiles(nest, window, plan)
        super().__init__(nest, output, window, plan, packed, columns, MOST_LINES)
        self.column = Var("column")
        held = self.load(expr.sub(window.lane.var, self.column), packed.asked)
        body = window.reduce.body
        body = expr.transform(body, lambda e: held if e is packed.load else None)
        self.window = self.reading(window, body)

    def build(self) -> tuple[Stmt, ...]:
        nest, window = self.nest, self.window
        strip = Axis(nest.builder.var("strip"), self.strips)
        column_tile = Axis(nest.builder.var("nt"), self.column_tiles)

        def body(values: Values) -> list[Stmt]:
            first = expr.mul(values[strip.var], expr.index(self.lines))
            return self._columns(
                self.pieces, {**values, strip.var: first}, first, values[column_tile.var]
            )

        taps = dims.product([a.extent for a in window.axes])
        axes = [*window.outer[:-1], column_tile, strip]
        work = dims.multiply(
            taps, self.lines * self.tiles * self.rows * self.pieces[0].columns // 4
        )
        return nest.grid(axes, body, work)

    def _rows(self, values: Values, first: Expr, start: Expr, shape: Shape) -> list[Stmt]:
        """Statements for all lines of a workgroup, from line `first`."""
        stmts: list[Stmt] = []
        column = self.nest.let(start, stmts, "column")
        zeros = {a.var: expr.index(0) for a in self.window.axes}
        stmts += self.fill({**values, **zeros}, first, partial(self._copy, column, shape))
        tile = super()._rows
        return stmts + self.over_lines(
            {**values, self.column: column}, first, lambda here, row: tile(here, row, column, shape)
        )

    def _copy(
        self, column: Expr, shape: Shape, line: Expr, place: Expr, value: Load | None
    ) -> list[Stmt]:
        nest, lane, given = self.nest, self.window.lane, self.packed.load
        nothing = padding_of(given)
        if value is not None and not shape.has_all_columns:
            value = replace(
                value, guard=below(lane.var, lane.extent), other=expr.const(0, given.dtype)
            )

        def one(u: Expr, at: Expr) -> list[Stmt]:
            channel = expr.linear((u, shape.width), at)
            found: Expr = nothing
            if value is not None:
                found = expr.substitute(value, {lane.var: expr.add(column, channel)})
            return [Store(self.held, (line, place, channel), found)]

        return unrolled_vectors(nest, (shape.chunks,), shape.width, one)


def columns_of_tiles(nest: Nest, window: Window, plan: StageSchedule) -> int:
    return pieces_of(window.lane.extent, plan.columns, nest.lanes)[0].columns
