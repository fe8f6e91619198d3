"""3x3 convolutions with stride 1 by Winograd's F(4x4, 3x3), which needs 36 products instead of 144.

Owns the loops on a CPU. A workgroup does some tiles of 4 by 4 outputs and some columns: piece by
piece of the channels it transforms inputs and filters into scratch and adds up 36 products of
matrices, then transforms the sums and stores them. Filters are transformed where they are used, so
that they are stored once, as they are for other convolutions, or are stored transformed (op
`conv_winograd`); what is transformed of inputs serves all of a workgroup's columns, register tile
by register tile of them. Where all channels are one piece, no sums are kept between pieces.

Products of a piece of the channels are summed before they are added to those of others, so that
errors hardly grow with the channels. Results are as near the exact ones as those of direct sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aot.analysis.cost.winograd import INPUTS, OUTPUTS, POINTS
from aot.errors import InternalError
from aot.ir import dims, expr
from aot.ir.expr import Expr, Load, Var
from aot.ir.schedule import StageSchedule
from aot.kernels.ir.nodes import For, If, LoopKind, Scratch, Space, Stmt, Store
from aot.kernels.match.products import find_axes
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.borders import Borders, masked, without_guard
from aot.kernels.nest.nest import Axis, Values
from aot.kernels.nest.tiles import Shape
from aot.kernels.rules.products.product import Product, Sums, divided
from aot.kernels.rules.products.row_vectors import (
    by_lanes,
    holds_row_vectors,
    row_vectors_at_a_time,
)
from aot.kernels.rules.products.winograd_blocks import Blocks, OutputTile
from aot.kernels.rules.products.winograd_lines import (
    filter_line,
    input_line,
    line_stmts,
    transformed,
)
from aot.kernels.rules.products.winograd_outputs import TileOutputs
from aot.kernels.stage.tails import where, within


def schedule_winograd(work: Work) -> Build:
    """Loops over blocks of Winograd tiles by `plan.columns` filters, with `plan.rows` tiles at a
    time in registers.

    Raises:
        InternalError: the output is no convolution that `aot.analysis.cost.winograd.fits`.
    """
    nest, output = work.nest, work.output
    roles = find_axes(output)
    if roles is None or len(roles.reduce.axes) != 3:
        raise InternalError(f"{output.buffer.name} is no sum over channels and 3x3 taps")
    return _Winograd(Product.of(nest, (output, roles), nest.target.panel), work.plan).build


class _Winograd(Blocks):
    """The loops of a Winograd convolution."""

    def __init__(self, product: Product, plan: StageSchedule) -> None:
        super().__init__(product, plan)
        nest, columns = self.nest, self.columns
        self.has_row_vectors = nest.target.multiplies_by_lane and holds_row_vectors(
            nest, self.rows, columns
        )
        self.vectors = row_vectors_at_a_time(nest, self.rows, columns, self.piece)
        # whether vectors of channels of the rows of a register tile are side by side, so that an
        # instruction loads two where it doesn't load two of a row
        self.is_by_vectors = self.has_row_vectors and self.vectors == 1
        padded = -(-self.most // self.across_channels) * self.across_channels
        self.across_vectors = padded // self.across_channels
        # one more than there are: points would be powers of two apart, in the same sets of a cache
        shape = [self.tiles + 1, padded]
        if self.is_by_vectors:
            shape = [(self.tiles + 1) * self.across_vectors, self.across_channels]
        self.inputs = self._scratch("inputs", POINTS, *shape)
        self.filters: Scratch | None = None
        if not self.is_stored:
            self.filters = self._scratch("filters", POINTS, self.most + 1, self.chunks, self.width)
        kept = 1 if self.is_whole else self.wide
        self.sums = self._scratch("sums", kept, POINTS, self.tiles + 1, self.chunks, self.width)
        self.half = self._scratch("half", INPUTS, INPUTS, nest.lanes)
        self.outputs = TileOutputs(self, self.half)
        vectors = self.chunks, self.width
        acc = nest.builder.scratch("acc", self.dtype, (self.rows, *vectors))
        self.tile = Sums(nest, Shape(self.rows, *vectors, True, True), acc)

    def _scratch(self, name: str, *shape: int) -> Scratch:
        return self.nest.builder.scratch(name, self.dtype, shape, Space.WORKGROUP)

    def build(self) -> tuple[Stmt, ...]:
        nest = self.nest
        block = self.columns * self.wide
        column_blocks = dims.ceil_divide(self.roles.columns.extent, block)
        nt, mt = nest.builder.var("nt"), nest.builder.var("mt")
        body: list[Stmt] = []
        first = nest.let(expr.mul(mt, expr.index(self.tiles)), body, "first")
        column = nest.let(expr.mul(nt, expr.index(block)), body, "column")
        zero = expr.index(0)

        def finish(w: Expr, kept: Expr) -> list[Stmt]:
            return nest.serial(self.tiles, lambda r: self._finish(r, w, kept, first, column), "r")

        if self.is_whole:
            body += self._transform(zero, first)
            body += self._each_column_tile(
                column, lambda w: self._multiply(w, zero, zero, first, column) + finish(w, zero)
            )
        else:
            body += [] if self.is_continued else self._zero()
            body += nest.serial(
                dims.ceil_divide(self.channels, self.piece),
                lambda n: self._piece(expr.mul(n, expr.index(self.piece)), first, column),
                "c",
            )
            body += self._each_column_tile(column, lambda w: finish(w, w))
        rows = For(mt, self.blocks, LoopKind.WORKGROUP, tuple(body), axis=0)
        return (For(nt, column_blocks, LoopKind.WORKGROUP, (rows,), axis=1),)

    def _zero(self) -> list[Stmt]:
        """Statements that zero the sums at all points."""
        nest, zero = self.nest, expr.const(0, self.dtype)
        axes = [Axis(Var("z"), n) for n in (self.wide, POINTS, self.tiles)]

        def vectors(values: Values) -> list[Stmt]:
            at = [values[axis.var] for axis in axes]
            return self.tile.each_chunk(lambda u, lane: Store(self.sums, (*at, u, lane), zero))

        return nest.inside(axes, {}, vectors)

    def _piece(self, start: Expr, first: Expr, column: Expr) -> list[Stmt]:
        """Statements that add the products of a piece of channels, from channel `start`."""
        return self._transform(start, first) + self._each_column_tile(
            column, lambda w: self._multiply(w, w, start, first, column)
        )

    def _transform(self, start: Expr, first: Expr) -> list[Stmt]:
        """Statements that transform a piece of channels of all input tiles."""
        nest = self.nest
        return self._each_group(
            first,
            lambda begin: nest.serial(
                self.rows, lambda r: self._transform_inputs(begin, r, first, start), "r"
            ),
        )

    def _multiply(self, w: Expr, kept: Expr, start: Expr, first: Expr, column: Expr) -> list[Stmt]:
        """Statements that add a piece's products with column tile `w` to the sums at `kept`."""
        nest, stmts = self.nest, []
        if not self.is_stored:
            stmts += self._transform_filters(w, start, column)

        def point(p: Expr) -> list[Stmt]:
            body: list[Stmt] = []
            weight = self._weights(p, w, start, column, body)
            return body + self._each_group(
                first, lambda begin: self._add_products(p, kept, (begin, start), weight)
            )

        return stmts + nest.serial(POINTS, point, "p")

    def _weights(
        self, p: Expr, w: Expr, start: Expr, column: Expr, into: list[Stmt]
    ) -> Callable[[Expr, Expr, Expr], Expr]:
        """A function from (channel of a piece, chunk, lane) to a transformed filter's element at
        point p."""
        if self.filters is not None:
            filters = self.filters
            return lambda k, u, lane: Load(filters, (p, k, u, lane), self.dtype)
        a, b = divided(p, INPUTS)
        a, b = self.nest.let(a, into, "a"), self.nest.let(b, into, "b")

        def weight(k: Expr, u: Expr, lane: Expr) -> Expr:
            begin = self._column_of(column, w, u)
            return self._filter(begin, lane, expr.add(start, k), a, b)

        return weight

    # inputs

    def _place_of(self, begin: Expr, r: Expr, q: Expr, lane: Expr) -> tuple[Expr, Expr]:
        """(row, column) in scratch for a lane of channel vector `q` in row `r` of the register tile
        at `begin`.
        """
        if not self.is_by_vectors:
            return expr.add(begin, r), expr.linear((q, self.across_channels), lane)
        return expr.linear((begin, self.across_vectors), expr.linear((q, self.rows), r)), lane

    def _transform_inputs(self, group: Expr, r: Expr, first: Expr, start: Expr) -> list[Stmt]:
        nest, lanes = self.nest, self.across_channels
        stmts: list[Stmt] = []
        tile = self._tile_of(expr.add(group, r), first, stmts)
        inside = self._is_inside(tile)

        def channels(q: Expr) -> list[Stmt]:
            begin = expr.mul(q, expr.index(lanes))

            def column(b: Expr, left: Expr, is_inside: bool) -> list[Stmt]:
                def one(lane: Expr) -> list[Stmt]:
                    channel = expr.add(start, expr.add(begin, lane))
                    return line_stmts(
                        *(nest, input_line, "d", INPUTS),
                        lambda a: self._input(left, tile, (expr.index(a), b), channel, is_inside),
                        lambda a, value: Store(self.half, (expr.index(a), b, lane), value),
                    )

                return [nest.spread(lanes, one)]

            def row(a: Expr) -> list[Stmt]:
                def one(lane: Expr) -> list[Stmt]:
                    point, place = expr.linear((a, INPUTS)), self._place_of(group, r, q, lane)

                    def at(b: int) -> tuple[Expr, ...]:
                        return expr.add(point, expr.index(b)), *place

                    return line_stmts(
                        *(nest, input_line, "d", INPUTS),
                        lambda b: Load(self.half, (a, expr.index(b), lane), self.dtype),
                        lambda b, value: Store(self.inputs, at(b), value),
                    )

                return [nest.spread(lanes, one)]

            columns = nest.serial(INPUTS, lambda b: column(b, self.left, False), "b")
            if inside is not None:
                # two conditions: an `otherwise` would be code that is rare
                free = expr.transform(self.left, without_guard)
                fast = nest.serial(INPUTS, lambda b: column(b, free, True), "b")
                columns = [If(inside, tuple(fast)), If(expr.unary("not", inside), tuple(columns))]
            return columns + nest.serial(INPUTS, row, "a")

        return stmts + nest.serial(dims.floor_divide(self.padded, lanes), channels, "q")

    def _is_inside(self, tile: OutputTile) -> Expr | None:
        """The condition that a whole tile's inputs are in bounds, on targets where one check per
        tile pays; None on others, where each load has its guard.
        """
        guards = [load.guard for load in expr.loads(self.left) if load.guard is not None]
        borders = Borders(
            (), tuple(dict.fromkeys(c for g in guards for c in expr.conditions_of(g)))
        )
        seen = {v for c in borders.asked for v in expr.free_vars(c)}
        axes = (self.rows_axis, tile.y), (self.columns_axis, tile.x)
        last = expr.index(INPUTS - 1)
        corners = {axis.var: (at, expr.add(at, last)) for axis, at in axes}
        is_asked = guards and self.channel not in seen and borders.are_linear_in(corners)
        if not self.nest.target.multiplies_by_lane or not is_asked:
            return None
        zero = expr.index(0)
        inside = borders.inside(corners, {**tile.values, **{v: zero for v, _ in self.taps}})
        return expr.all_of(c for c in (inside, self.outputs.is_whole(tile)) if c is not None)

    def _input(
        self, left: Expr, tile: OutputTile, place: tuple[Expr, Expr], channel: Expr, is_inside: bool
    ) -> Expr:
        """The left factor's element for tap 0 of the output at `place` in a tile."""
        y, x = expr.add(tile.y, place[0]), expr.add(tile.x, place[1])
        if not is_inside:
            y = self._inside(y, self.rows_axis.extent)
            x = self._inside(x, self.columns_axis.extent)
        zero = expr.index(0)
        values = {
            **tile.values,
            self.rows_axis.var: y,
            self.columns_axis.var: x,
            self.channel: channel,
            **{v: zero for v, _ in self.taps},
        }
        # vectors of a piece that has no whole ones go past its end, wherever the channels end
        is_whole = not isinstance(self.padded, int) or self.padded == self.piece
        return self._only(expr.substitute(left, values), channel, is_whole=is_whole)

    def _inside(self, at: Expr, extent: dims.Dim) -> Expr:
        """`at`, clamped to the last element that the last output reads."""
        if dims.modulo(extent, OUTPUTS) == 0:
            return at
        return expr.binary("min", at, expr.index(dims.add(extent, INPUTS - OUTPUTS - 1)))

    def _only(self, e: Expr, channel: Expr, *, is_whole: bool = True) -> Expr:
        """`e`, masked to 0 past the last channel, unless no piece reads past it.

        Args:
            is_whole: whether what is read of a piece ends where the piece does.
        """
        # a piece of an open extent divides it
        is_even = not isinstance(self.piece, int) or dims.modulo(self.channels, self.piece) == 0
        if is_whole and is_even:
            return e
        return masked(e, expr.binary("lt", channel, expr.index(self.channels)))

    # filters

    def _transform_filters(self, w: Expr, start: Expr, column: Expr) -> list[Stmt]:
        nest, filters = self.nest, self.filters
        assert filters is not None
        line = partial(filter_line, is_added=nest.target.multiplies_by_lane)

        def transform(c: Expr, u: Expr, v: Expr) -> list[Stmt]:
            begin = expr.add(self._column_of(column, w, u), v)

            def one(lane: Expr) -> list[Stmt]:
                body: list[Stmt] = []
                channel = expr.add(start, c)

                def name(e: Expr) -> Expr:
                    return nest.let(e, body, "g")

                taps = [expr.index(i) for i in range(3)]
                g = [[name(self._filter(begin, lane, channel, i, j)) for j in taps] for i in taps]
                place = c, u, expr.add(v, lane)
                made = transformed(line, name, 3, lambda i, j: g[i][j])
                for a, row in enumerate(made):
                    body += [
                        Store(filters, (expr.index(INPUTS * a + b), *place), value)
                        for b, value in enumerate(row)
                    ]
                return body

            return [self.nest.spread(self.vector, one)]

        if not nest.target.multiplies_by_lane:
            return nest.serial(
                self.piece, lambda c: self._each_vector(lambda u, v: transform(c, u, v)), "k"
            )
        # inside, an address is a step from the last one, which takes as long as a load there
        return self._each_vector(
            lambda u, v: nest.serial(self.piece, lambda c: transform(c, u, v), "k")
        )

    def _filter(self, begin: Expr, lane: Expr, channel: Expr, i: Expr, j: Expr) -> Expr:
        """The stored element of filter `begin + lane` at (i, j), a tap or a point; past the last
        filter, 0 or the padding of the last panel.
        """
        columns, panel = self.roles.columns, expr.index(self.panel)
        at = expr.add(begin, lane)
        values = {
            self.channel: channel,
            self.taps[0][0]: i,
            self.taps[1][0]: j,
            columns.var: at,
        }
        last = expr.index(dims.floor_divide(dims.add(columns.extent, -1), self.panel))

        number = expr.binary("min", expr.binary("floordiv", begin, panel), last)
        within = expr.add(expr.binary("floormod", begin, panel), lane)
        found = self.roles.weight_at(self.panel, number, within, values)
        if not self.roles.is_packed and dims.modulo(columns.extent, self.columns) != 0:
            found = masked(found, expr.binary("lt", at, expr.index(columns.extent)))
        return self._only(found, channel)

    # products

    def _add_products(
        self,
        p: Expr,
        kept: Expr,
        begins: tuple[Expr, Expr],
        weight: Callable[[Expr, Expr, Expr], Expr],
    ) -> list[Stmt]:
        """Statements that add point p's products of a register tile, given its first tile and a
        piece's first channel."""
        nest, tile, acc, dtype = self.nest, self.tile, self.tile.acc, self.dtype
        first, start = begins

        def sums_at(r: Expr, u: Expr, lane: Expr) -> tuple[Expr, ...]:
            return (kept, p, expr.add(first, r), u, lane)

        def of_lane(r: Expr, q: Expr, lane: Expr) -> Expr:
            return Load(self.inputs, (p, *self._place_of(first, r, q, lane)), dtype)

        def left(r: Expr, k: Expr) -> Expr:
            if not self.is_by_vectors:
                return Load(self.inputs, (p, expr.add(first, r), k), dtype)
            return of_lane(r, *divided(k, self.across_channels))

        def step(k: Expr, of_row: Callable[[Expr], Expr] | None = None) -> list[Stmt]:
            return tile.outer_product(
                of_row or (lambda r: left(r, k)), lambda u, lane: weight(k, u, lane)
            )

        def total(*at: Expr) -> Expr:
            more = Load(acc, at, dtype)
            if self.is_whole or self.is_continued:
                return more
            return expr.add(Load(self.sums, sums_at(*at), dtype), more)

        stmts = tile.zeroed(acc)
        if self.is_continued:
            before = tile.each_row(lambda *at: Store(acc, at, Load(self.sums, sums_at(*at), dtype)))
            stmts = [If(expr.binary("gt", start, expr.index(0)), tuple(before), tuple(stmts))]
        if self.has_row_vectors:
            sizes = self.rows, self.piece
            stmts += by_lanes(nest, sizes, dtype, left, step, self.vectors, of_lane)
        else:
            stmts += nest.serial(self.piece, step, "k")
        return stmts + tile.each_row(lambda *at: Store(self.sums, sums_at(*at), total(*at)))

    # outputs

    def _finish(self, r: Expr, w: Expr, kept: Expr, first: Expr, column: Expr) -> list[Stmt]:
        stmts: list[Stmt] = []
        tile = self._tile_of(r, first, stmts)

        def vector(u: Expr, v: Expr) -> list[Stmt]:
            def total(p: Expr, lane: Expr) -> Expr:
                return Load(self.sums, (kept, p, r, u, expr.add(v, lane)), self.dtype)

            return self.outputs.finished(tile, expr.add(self._column_of(column, w, u), v), total)

        stmts += self._each_vector(vector)
        return where(within(expr.add(first, r), self.count, self.tiles), stmts)
