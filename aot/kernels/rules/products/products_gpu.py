"""A contraction's register tile on a GPU: a workgroup's lanes in a grid over rows and columns.

Each lane has a small outer product of its own: a few rows, and neighbouring columns, so that what
it reads of packed weights is contiguous. Several lanes may share one, each with a part of the
terms, and put their sums together through shared memory. Owns the lanes' geometry; what is summed
is products.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aot.analysis.cost.gpu_tiles import gpu_columns, gpu_lanes
from aot.ir import dims, expr
from aot.ir.expr import Expr, Load
from aot.ir.schedule import QUAD
from aot.kernels.ir.nodes import Barrier, Buffer, If, Scratch, Space, Stmt, Store
from aot.kernels.match.products import loaded
from aot.kernels.nest.nest import Axis, Values
from aot.kernels.nest.tiles import Shape, is_long
from aot.kernels.rules.products.product import (
    Body,
    Place,
    Product,
    Tile,
    divided,
    flat,
    panel_of,
)
from aot.kernels.rules.products.products import SummedTile, Terms
from aot.kernels.stage.tails import where, within

MOST_LOADS = 24  # one by one, of the rows of some steps


class GpuTile(Tile):
    """A workgroup's tile on a GPU; each sum is shared by `shares` lanes."""

    def __init__(self, product: Product, shape: Shape, shares: int = 1) -> None:
        nest = self.nest = product.nest
        self.shares = shares
        self.along_rows, self.along_columns = gpu_lanes(
            nest.target, nest.lanes // shares, shape.rows, shape.width
        )
        own = gpu_columns(nest.target)
        columns = own if product.panel % own == 0 else 1
        if shape.width != self.along_columns * columns:  # one each
            self.along_columns, columns = shape.width, 1
        part = replace(
            shape, rows=shape.rows // self.along_rows, chunks=columns, width=self.along_columns
        )
        super().__init__(product, part, nest.lanes)  # all loops over lanes of a kernel are as long

    @property
    def places(self) -> int:
        """The number of lanes of a workgroup that have different rows or columns."""
        return self.along_rows * self.along_columns

    def build(self, place: Place) -> list[Stmt]:
        """Statements that compute and store the tile at a place."""
        return self.finished(place, lambda placed: placed.begin() + placed._sum())

    def part(self, place: Place, body: Callable[[PlacedOnGpu], list[Stmt]]) -> Stmt:
        """A loop over lanes, with `body` for each lane's part of the tile at a place."""
        return self.nest.spread(self.nest.lanes, lambda lane: self.of_lane(place, lane, body))

    def of_lane(
        self, place: Place, lane: Expr, body: Callable[[PlacedOnGpu], list[Stmt]]
    ) -> list[Stmt]:
        """`body` for one lane's part of the tile, skipped by lanes without a part."""
        stmts: list[Stmt] = []
        stmts += body(PlacedOnGpu(self, place, lane, stmts))
        used = self.places * self.shares
        return stmts if used == self.nest.lanes else where(within(lane, used, 0), stmts)

    def finished(self, place: Place, before: Callable[[PlacedOnGpu], list[Stmt]]) -> list[Stmt]:
        """Statements in which each lane runs `before`, then the epilogue; lanes that share a sum
        first add up their shares."""
        if self.shares == 1:
            return [self.part(place, lambda placed: before(placed) + placed.finish())]
        parts = self.parts()
        return [
            self.part(place, lambda placed: before(placed) + placed.hand_over(parts)),
            Barrier(),
            self.part(place, lambda placed: placed.finish_shared(parts)),
        ]

    def parts(self) -> Scratch:
        """Shared memory for the partial sums of all lanes, indexed by `place_of`."""
        count = self.shares * self.shape.rows * self.shape.chunks * self.places
        return self.product.scratch.get("parts", self.acc.dtype, (count,))

    def place_of(self, share: Expr, r: Expr, u: Expr, place: Expr) -> Expr:
        """The index of a share of a lane's sum of row `r` and column `u`."""
        shape = self.shape
        return flat([(share, 1), (r, shape.rows), (u, shape.chunks), (place, self.places)])


class PlacedOnGpu(SummedTile):
    """One lane's part of a workgroup's tile."""

    def __init__(self, tile: GpuTile, place: Place, lane: Expr, stmts: list[Stmt]) -> None:
        let, shape, zero = tile.nest.let, tile.shape, expr.index(0)
        # lanes of one share are neighbours, those of one row within them
        self.tile, self.shares = tile, tile.shares
        self.number, own = expr.index(0), lane
        if self.shares > 1:
            share, own = divided(lane, tile.places)
            self.number = let(share, stmts, "share")
            own = let(own, stmts, "place")
        self.lane, self.place_of_lane = lane, own
        row, column = divided(own, tile.along_columns) if tile.along_rows > 1 else (zero, own)
        self.place_of_row, self.place_of_column = row, column
        first = let(expr.add(place.first, expr.linear((row, shape.rows))), stmts, "first")
        super().__init__(tile, place._replace(first=first))
        # the first of its columns, a multiple of how many it has
        begin = expr.linear((place.start, shape.columns), expr.linear((column, shape.chunks)))
        self.column = let(begin, stmts, "column")
        panel, within = panel_of(self.roles, self.panel, self.column, is_there=self._covers())
        self.place = let(panel, stmts, "panel"), let(within, stmts, "within")

    # Sums that lanes share

    def begin(self) -> list[Stmt]:
        """Statements that initialise the lane's sums."""
        return self._zeros()

    def finish(self) -> list[Stmt]:
        """Statements that run the epilogue and store, for sums that no other lane shares."""
        return self._finish()

    def hand_over(self, parts: Scratch) -> list[Stmt]:
        """Statements that store this lane's share of the sums in shared memory, for the lanes that
        finish them.
        """
        acc, place = self.acc, self.place_of_lane

        def store(r: Expr, u: Expr, lane: Expr) -> Stmt:
            at = self.tile.place_of(self.number, r, u, place)
            return Store(parts, (at,), Load(acc, (r, u, lane), acc.dtype))

        return self.each_row(store)

    def finish_shared(self, parts: Scratch) -> list[Stmt]:
        """Runs the epilogue on this lane's share of the tile's rows and stores them, after the
        lanes' partial sums are added.
        """
        nest, rows, zero = self.nest, self.shape.rows, expr.index(0)
        space = Space.REGISTER if self._has_all_or_none else Space.PRIVATE
        total = nest.builder.scratch(
            "total", parts.dtype, (1, self.shape.chunks, nest.lanes), space
        )

        def turn(n: Expr) -> list[Stmt]:
            r = expr.linear((n, self.shares), self.number)

            def add(part: Expr, u: Expr, lane: Expr) -> Stmt:
                at = self.tile.place_of(part, r, u, self.place_of_lane)
                more = Load(parts, (at,), parts.dtype)
                old = Load(total, (zero, u, lane), total.dtype)
                return Store(total, (zero, u, lane), expr.add(old, more))

            nothing = expr.const(0, total.dtype)
            stmts = self.each_chunk(lambda u, lane: Store(total, (zero, u, lane), nothing))
            stmts += nest.serial(
                self.shares, lambda p: self.each_chunk(lambda u, lane: add(p, u, lane)), "p"
            )
            return where(within(r, rows, self.shares), stmts + self._finish_of(r, total))

        return nest.serial(-(-rows // self.shares), turn, "r")

    def _steps(self, terms: Terms) -> list[Stmt]:
        stmts = super()._steps(terms)
        if terms.inner is not None or self.shares == 1:
            return stmts
        return [If(expr.binary("eq", self.number, expr.index(0)), tuple(stmts))]

    def _in_order(self, extent: dims.Dim, steps: int, body: Body) -> list[Stmt]:
        """The loop over terms, as on a CPU; of lanes that share a sum, each runs every `shares`-th
        iteration.
        """
        if self.shares == 1:
            return super()._in_order(extent, steps, body)
        turns = dims.floor_divide(extent, steps)

        def own(k: Expr) -> list[Stmt]:
            number = expr.linear((k, self.shares), self.number)
            return where(within(number, turns, self.shares), self._together(number, steps, body))

        return self.nest.serial(dims.ceil_divide(turns, self.shares), own, "k")

    def each_lane(self, body: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        return body(self.lane)

    def _loops(
        self,
        axes: Sequence[Axis],
        indices: Values,
        left: Expr,
        skipped: Sequence[Expr],
        body: Callable[[Values], list[Stmt]] | None = None,
    ) -> list[Stmt]:
        """The loops over the sum's axes, as on a CPU, but with one loop for both axes of taps: each
        loop makes all sums of a lane loop-carried.
        """
        if len(axes) < 3 or self.pieces is not None:
            return super()._loops(axes, indices, left, skipped, body)
        down, along, *rest = axes

        def tap(k: Expr) -> list[Stmt]:
            both = dict(zip((down.var, along.var), divided(k, along.extent), strict=True))
            return self._loops(rest, {**indices, **both}, left, skipped, body)

        return self.nest.serial(dims.multiply(down.extent, along.extent), tap, "k")

    def _steps_together(self, inner: Axis) -> int:
        """The number of terms that one iteration of the loop multiplies: as many as one load of a
        row has, where elements lie side by side and aligned; else a few, as a loop of one step is
        mostly overhead. One where sums are no vectors, as the loop would be most of a shader.
        """
        rows = loaded(self.roles.left)
        has_vectors = self.shape.chunks % QUAD == 0 and (
            self.roles.is_packed or self.shape.has_all_columns
        )
        if not has_vectors or rows is None or not isinstance(rows.source, Buffer):
            return 1
        gpu = self.nest.target.gpu
        if rows.dtype.is_packed and not (gpu is not None and gpu.integer_dot_product):
            return 1  # part by part, one step is as long as four of others
        is_row = expr.coefficient(rows.indices[0], inner.var) == rows.dtype.parts
        is_aligned = rows.source.alignment % (QUAD * rows.dtype.bytes) == 0
        if is_row and is_aligned and dims.modulo(inner.extent, QUAD) == 0:
            return QUAD
        few = range(min(QUAD, MOST_LOADS // self.shape.rows), 1, -1)
        return next((n for n in few if dims.modulo(inner.extent, n) == 0), 1)

    def _column(self, u: Expr, lane: Expr) -> Expr:
        return expr.add(self.column, u)

    def _panel(self, u: Expr, lane: Expr) -> tuple[Expr, Expr]:
        number, within = self.place
        return number, expr.add(within, u)

    def _finish(self) -> list[Stmt]:
        """Statements of the epilogue, unrolled by row, or as one loop over all elements where it is
        long."""
        nest, acc, rows = self.nest, self.acc, self.shape.rows
        if rows * self.shape.chunks == 1:
            return super()._finish()
        if self._has_all_or_none and not is_long(self.output.values, self.roles.reduce):
            return nest.unrolled(rows, lambda r: self._finish_of(r, acc), "r")
        tile = nest.builder.scratch("tile", acc.dtype, acc.shape, Space.PRIVATE)
        stored = self.copied(tile, acc)
        return stored + nest.serial(rows, lambda r: self._finish_of(r, tile), "r")

    def _finish_of(self, r: Expr, source: Scratch) -> list[Stmt]:
        """Statements that run the epilogue of row `r` and store it."""
        finish = self._finish_together if self._has_all_or_none else self._finish_one_by_one
        return finish(r, source)

    def _stores(self, here: Values, source: Scratch, r: Expr, u: Expr, lane: Expr) -> list[Stmt]:
        is_one = source.shape[0] == 1
        return super()._stores(here, source, expr.index(0) if is_one else r, u, lane)

    @property
    def _has_all_or_none(self) -> bool:
        """Whether a lane's columns either all exist or none does, so that one vector store serves
        them."""
        columns = self.roles.columns.extent
        return not self.output.others and dims.modulo(columns, self.shape.chunks) == 0

    def _finish_one_by_one(self, r: Expr, source: Scratch) -> list[Stmt]:
        return self._finish_row(r, source, self.nest.serial)

    def _finish_together(self, r: Expr, source: Scratch) -> list[Stmt]:
        """Statements that finish a row as `_finish_row` does, with the lane's columns as elements
        of one vector store.
        """
        nest, roles, shape = self.nest, self.roles, self.shape
        here, conditions = self._at(r, is_clamped=False), list[Expr]()
        if roles.rows is not None and not shape.has_all_rows:
            row = expr.add(self.first, r)
            conditions.append(expr.binary("lt", row, expr.index(roles.rows.extent)))
        if not shape.has_all_columns:
            conditions.append(expr.binary("lt", self.column, expr.index(roles.columns.extent)))
        stmts = nest.unrolled(
            shape.chunks, lambda u: self._stores(here, source, r, u, self.lane), "u"
        )
        are_there = expr.all_of(conditions)
        return stmts if are_there is None else [If(are_there, tuple(stmts))]
