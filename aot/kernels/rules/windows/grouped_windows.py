"""Grouped convolutions with groups too small for a vector: lanes run along the columns of several
groups.

All channels of some lines, or of a part of them, are in scratch with their padding. A vector of
columns multiplies a scalar of each of its groups, a run of lanes each. CPU only.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import gcd, lcm

from aot.ir import expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Expr, Load, Var
from aot.ir.schedule import StageSchedule
from aot.kernels.ir.nodes import Stmt, Store
from aot.kernels.match.windows import Window, group_sizes, products_of_loads
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.nest.rows import vectors_of
from aot.kernels.nest.tiles import Shape
from aot.kernels.rules.windows.packed_windows import HeldTiles, Packed, staged_window
from aot.kernels.stage.band import padding_of
from aot.kernels.stage.tails import shifted

# lanes of a run below which loads of its scalars take longer than products of shorter vectors
LEAST_RUN = 4
# rows of a tile
MOST_ROWS, LEAST_ROWS = 8, 4
# workgroups that the lines of a result are shared by
LEAST_STRIPS = 4
# tiles of a part of a line at least, and lines of the result that it has
LEAST_TILES, LINES_OF_PARTS = 4, 2
# columns that a workgroup has at most, where they are whole groups and vectors
MOST_COLUMNS = 64


def schedule_grouped(work: Work) -> Build | None:
    """The loops of a grouped convolution; None for any other output."""
    nest, output, plan = work.nest, work.output, work.plan
    found = None if work.blocks is not None else products_of_loads(output)
    if found is None or nest.is_gpu or len(output.axes) < 3:
        return None
    reduce, left, right = found
    lane, rows = output.axes[-1], output.axes[-2]
    members = set(group_sizes(left.indices, lane))
    extents = lane.extent, rows.extent, output.axes[-3].extent
    if len(members) != 1 or 0 in members or not all(isinstance(n, int) for n in extents):
        return None
    (groups,) = members
    if any(expr.coefficient(x, lane.var) != 1 for x in (right.indices[0], output.address)):
        return None
    run = gcd(groups, nest.lanes)
    if run == nest.lanes or run < LEAST_RUN or lane.count < nest.lanes:
        return None
    if left.guard is not None and lane.var in expr.free_vars(left.guard):
        return None
    window = Window(reduce, tuple(Axis(v, n) for v, n in reduce.axes), output.axes[:-2], rows, lane)
    made = staged_window(window, left)
    if made is None or len(made[1]) != 1:
        return None
    packed, (channel,) = made
    if expr.coefficient(left.indices[0], channel.var) != 1 or not isinstance(channel.extent, int):
        return None
    if packed.along.step != 1:
        return None  # neighbours share no scalars
    count = rows.count
    # a tile takes as long as one more row, for its weights
    high = min(
        range(min(LEAST_ROWS, count), min(MOST_ROWS, count) + 1),
        key=lambda n: (-(-count // n) * (n + 1), n),
    )
    plan = replace(plan, rows=high, columns=nest.lanes)
    place = channel.extent * left.dtype.bytes

    def fitting(tiles: int, lines: int) -> int:
        """Columns of a workgroup whose inputs, for `lines` result rows of `tiles` tiles, fit
        scratch.
        """
        each = packed.down.places(lines) * packed.along.places(tiles * high) * place
        held = nest.target.scratch_bytes // each * groups
        return _together(lane.count, lcm(groups, nest.lanes), held)

    tiles = -(-count // high)
    together = fitting(tiles, 1)
    if together == 0:  # long lines in parts
        parts = range(2, tiles // LEAST_TILES + 1)
        sizes = (-(-tiles // n) for n in parts)
        tiles = next((n for n in sizes if fitting(n, LINES_OF_PARTS)), 0)
        together = fitting(tiles, LINES_OF_PARTS) if tiles else 0
    if together == 0:
        return None
    packed = replace(packed, asked=None)
    made_of = channel, groups, together, tiles
    return GroupedTiles(nest, output, window, plan, packed, *made_of).build


def _together(columns: int, whole: int, held: int) -> int:
    """The number of columns of a workgroup, at most `held`, for which scratch has rows: whole
    groups and vectors if they make up all columns; 0 if none fit.
    """
    if columns % whole:
        return columns if columns <= held else 0
    most = max(1, min(MOST_COLUMNS, held // 2) // whole)
    together = whole * max(n for n in range(1, most + 1) if columns // whole % n == 0)
    return together if together <= held else 0


class GroupedTiles(HeldTiles):
    """Tiles of rows by a vector of columns, with the input staged: a workgroup does all columns of
    some lines."""

    def __init__(
        self,
        nest: Nest,
        output: Output,
        window: Window,
        plan: StageSchedule,
        packed: Packed,
        channel: Axis,
        members: int,
        together: int,
        tiles: int,
    ) -> None:
        """Stages the inputs of groups with `members` columns each; a workgroup does `together`
        columns, and `tiles` tiles of a row at a time.
        """
        channels = together // members * channel.count
        most = -(-packed.down.at.count // LEAST_STRIPS)
        super().__init__(nest, output, window, plan, packed, channels, most, tiles)
        self.channel = channel
        self.run = gcd(members, nest.lanes)
        self.inner = channel.count
        self.members, self.together = members, together
        self.base = Var("base")  # the first channel of a workgroup
        body = window.reduce.body
        assert isinstance(body, Binary)
        # one reduction stands for all: the bodies of narrower vectors have fewer runs
        left = self._left(nest.lanes)
        self.window = self.reading(window, replace(body, a=left))
        self.whole = self.window

    def _left(self, width: int) -> Expr:
        """The left factor of a vector of columns: one scalar per run of lanes that belong to the
        same group.
        """

        def scalar(number: int) -> Load:
            column = expr.linear(self.chunk, number * self.run)
            group = expr.binary("floordiv", column, expr.index(self.members))
            channel = expr.linear((group, self.inner), self.channel.var)
            return self.load(expr.sub(channel, self.base))

        runs = max(1, width // self.run)
        found: Expr = scalar(runs - 1)
        for number in range(runs - 2, -1, -1):
            is_in = expr.binary("lt", self.in_vector, expr.index((number + 1) * self.run))
            found = expr.select(is_in, scalar(number), found)
        return found

    def build(self) -> tuple[Stmt, ...]:
        nest, lane = self.nest, self.window.lane
        strip = Axis(nest.builder.var("strip"), self.strips)
        block = Axis(nest.builder.var("block"), lane.count // self.together)
        tiles = sum(piece.tiles for piece in self.pieces if isinstance(piece.tiles, int))
        tiles //= lane.count // self.together

        def body(values: Values) -> list[Stmt]:
            stmts: list[Stmt] = []
            first = expr.mul(values[strip.var], expr.index(self.lines))
            base = expr.mul(values[block.var], expr.index(self.held.shape[-1]))
            base = nest.let(base, stmts, "base")
            here = {**values, strip.var: first, self.base: base}
            zeros = {a.var: expr.index(0) for a in self.window.axes}
            zeros[lane.var] = expr.index(0)
            begin = expr.mul(values[block.var], expr.index(tiles))

            def row(here: Values, at: Expr) -> list[Stmt]:
                return nest.serial(
                    tiles,
                    lambda n: self._columns(self.pieces, here, at, expr.add(begin, n)),
                    "nt",
                )

            def part(n: Expr) -> list[Stmt]:
                # the last one begins early enough to be whole
                tile, stmts = shifted(n, self.tiles, self.in_line), list[Stmt]()
                row_ = nest.let(expr.mul(tile, expr.index(self.rows)), stmts, "part")
                there = {**here, self.part: row_}
                stmts += self.fill({**there, **zeros}, first, partial(self._copy, base))
                return stmts + self.over_lines(there, first, row)

            return stmts + nest.serial(self.parts, part, "p")

        return nest.grid([*self.window.outer[:-1], block, strip], body, 1 << 30)

    def _copy(self, base: Expr, line: Expr, place: Expr, value: Load | None) -> list[Stmt]:
        """Statements that copy a place's channels to scratch, in progressively narrower vectors."""
        nest, given = self.nest, self.packed.load
        nothing = padding_of(given)
        channels = self.held.shape[-1]

        def one(c: Expr) -> list[Stmt]:
            found: Expr = nothing
            if value is not None:
                found = replace(value, indices=(expr.linear(value.indices[0], base, c),))
            return [Store(self.held, (line, place, c), found)]

        def vector(width: int, begin: Dim, n: Expr) -> list[Stmt]:
            start = expr.linear((n, width), begin)
            return [nest.spread(width, lambda at: one(expr.add(start, at)))]

        stmts: list[Stmt] = []
        for begin, wide, count in vectors_of(nest.lanes, nest.lanes, channels):
            stmts += nest.serial(count, partial(vector, wide, begin), "c")
        return stmts

    def _rows(self, values: Values, first: Expr, start: Expr, shape: Shape) -> list[Stmt]:
        if shape.width < self.nest.lanes:
            body = self.whole.reduce.body
            assert isinstance(body, Binary)
            output = self.output
            self.window = self.reading(self.whole, replace(body, a=self._left(shape.width)))
            stmts = super()._rows(values, first, start, shape)
            self.window, self.output = self.whole, output
            return stmts
        return super()._rows(values, first, start, shape)
