"""Contractions with vector lanes along the rows instead of the columns.

Register tiles as contraction.py has them, with the roles of both sides changed: the weights are the
scalars. Rows are neighbours in memory, as those of planes are: what some of them have for all of
the sum is first brought into scratch, where it serves the tiles of several columns, as in its own
memory neighbours along the sum may lie so far apart that a cache holds few of them. Or rows lie
apart, the terms of each side by side, for so few columns that a vector of these would have idle
lanes: then they are turned in registers, some terms at a time. CPU only. Chooses no tile sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from aot.ir import dims, expr
from aot.ir.assumed_extents import IMAGE
from aot.ir.expr import Expr, Load, Var
from aot.ir.schedule import StageSchedule
from aot.kernels.ir.nodes import For, LoopKind, Prefetch, Scratch, Space, Stmt, Store
from aot.kernels.match.products import ContractionAxes, loaded
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.nest.tiles import Shape
from aot.kernels.rules.products.product import (
    Place,
    Product,
    Tile,
    along,
    flat,
    numbered,
    where_whole,
)
from aot.kernels.rules.products.products import Placed, SummedTile, Terms
from aot.kernels.rules.products.sum_order import by_weight_step
from aot.kernels.rules.products.tile_ends import PlacedTile
from aot.kernels.stage.ahead import prefetch
from aot.target.model import CACHE_LINE

# columns that rows brought into scratch serve at least, so that this costs little beside them
SERVED = 128
# terms of the squares that are turned in registers
SQUARES = 16, 8, 4
# terms that are turned before they are multiplied
TURNED = 128
# tiles until that whose columns are asked for; and planes that machines foresee themselves
TILES_AHEAD, FOLLOWED = 2, 8


def schedule_planes(work: Work) -> Build | None:
    """Tiles of `plan.columns` contiguous rows by `plan.rows` columns of the contraction; None where
    its rows are not contiguous once the ops around it are inlined."""
    if work.product is None:
        return None
    output, roles = work.product
    swapped = _swapped(output, roles)
    if swapped is None:
        return None
    product = Product.of(work.nest, (output, swapped), work.nest.target.panel)
    are_neighbours = expr.coefficient(swapped.weight.indices[0], swapped.columns.var) == 1
    return (_StagedTiles if are_neighbours else _TurnedTiles)(product, work.plan).build


def _swapped(output: Output, roles: ContractionAxes) -> ContractionAxes | None:
    """The contraction with its factors exchanged, if lanes can run along its rows; else None."""
    lane = roles.rows
    if lane is None or expr.coefficient(output.address, lane.var) is None:
        return None
    found: Load | None = None
    loads = list(expr.loads(roles.left))
    for load in loads:
        step = expr.coefficient(load.indices[0], lane.var)
        if load.guard is not None or step not in (0, 1):
            found = _apart(roles) if len(loads) == 1 else None
            break
        found = load if step == 1 else found
    if found is None:
        return None
    rows = roles.columns
    return ContractionAxes(roles.reduce, roles.right, roles.left, found, rows, lane, roles.outer)


def _apart(roles: ContractionAxes) -> Load | None:
    """The load of the left factor if its rows are strided and its terms contiguous; else None."""
    (load,) = expr.loads(roles.left)
    assert roles.rows is not None
    rows, steps = roles.rows, [expr.coefficient(load.indices[0], v) for v, _ in roles.reduce.axes]
    apart = expr.coefficient(load.indices[0], rows.var)
    if load.guard is not None or 1 not in steps or not isinstance(apart, int) or apart < 2:
        return None
    return load


class _Tiles(ABC):
    """The tiles of a contraction with lanes along rows, and the loops around them."""

    def __init__(self, product: Product, plan: StageSchedule) -> None:
        nest, _, roles, _, _ = self.product = product
        assert roles.rows is not None
        self.nest, self.roles = nest, roles
        self.extent = roles.rows.extent
        self.rows = min(plan.rows, self.extent) if isinstance(self.extent, int) else plan.rows
        self.chunks = max(1, plan.columns // nest.lanes)
        self.tiles = dims.ceil_divide(self.extent, self.rows)
        several = -(-SERVED // self.rows)
        self.together = min(several, self.tiles) if isinstance(self.tiles, int) else several

    def build(self) -> tuple[Stmt, ...]:
        roles, nest = self.roles, self.nest
        size = self.chunks * nest.lanes
        columns = Axis(nest.builder.var("nt"), dims.ceil_divide(roles.columns.extent, size))
        group = nest.builder.var("mg")
        work = dims.multiply(roles.terms, self.together * (self.rows * size // 16 + 1))

        def body(values: Values) -> list[Stmt]:
            start = expr.linear((values[columns.var], self.chunks))
            return self._columns(
                Place(values, expr.index(0), start), expr.linear((group, self.together))
            )

        inside = nest.grid([*roles.outer, columns], body, work, first=0)
        groups = dims.ceil_divide(self.tiles, self.together)
        return (For(group, groups, LoopKind.WORKGROUP, inside, axis=1),)

    @abstractmethod
    def _columns(self, place: Place, tile: Expr) -> list[Stmt]:
        """Statements for the columns at a place, with a workgroup's row tiles from number
        `tile`."""

    def _plain(
        self, place: Place, tile: Expr, make: Callable[[Tile, Place], PlacedTile]
    ) -> list[Stmt]:
        """The statements of `_columns`, with tiles that `make` creates."""

        def one(first: Expr) -> list[Stmt]:
            at = place._replace(first=first)
            return self._either(place, lambda has_all: make(self._tile(has_all), at).build())

        return self._rows(tile, one)

    def _tile(self, has_all: bool) -> Tile:
        """A tile of the plan's size; `has_all` says whether all its columns exist."""
        has_all_rows = dims.modulo(self.extent, self.rows) == 0
        shape = Shape(self.rows, self.chunks, self.nest.lanes, has_all_rows, has_all)
        return Tile(self.product, shape)

    def _either(self, place: Place, build: Callable[[bool], list[Stmt]]) -> list[Stmt]:
        """`build(True)` if all columns from a place on exist, by a check at run time where needed,
        else `build(False)`."""
        extent, lanes = self.roles.columns.extent, self.nest.lanes
        if dims.modulo(extent, self.chunks * lanes) == 0:
            return build(True)
        end = expr.linear((expr.add(place.start, expr.index(self.chunks)), lanes))
        return where_whole(end, extent, build(True), build(False))

    def _rows(self, tile: Expr, build: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        """A workgroup's row tiles from number `tile`, each built by `build` from its first row."""
        return numbered(
            *(self.nest, tile, self.together, self.tiles),
            lambda number: build(expr.linear((number, self.rows))),
            "mt",
        )


class _StagedTiles(_Tiles):
    """Tiles with contiguous columns, which are staged in scratch if they fit and several row tiles
    read them."""

    def __init__(self, product: Product, plan: StageSchedule) -> None:
        super().__init__(product, plan)
        nest, roles = self.nest, self.roles
        self.staged = _Staged.of(nest, roles, self.chunks) if self.together > 1 else None
        is_followed = isinstance(roles.terms, int) and roles.terms <= FOLLOWED
        count = dims.estimate(dims.multiply(roles.terms, roles.columns.extent), IMAGE)
        size = None if count is None else count * roles.weight.dtype.bytes
        l2_bytes = nest.target.l2_bytes
        self.is_far = not is_followed and l2_bytes > 0 and (size is None or size > l2_bytes)

    def _columns(self, place: Place, tile: Expr) -> list[Stmt]:
        staged, full = self.staged, self._tile(has_all=True)
        if staged is None:
            return self._plain(place, tile, _AskingTile if self.is_far else Placed)

        def placed(has_all: bool, first: Expr) -> _StagedTile:
            return _StagedTile(full, staged, has_all, place._replace(first=first))

        def one(first: Expr) -> list[Stmt]:
            stored = self._either(place, lambda has_all: placed(has_all, first).finish())
            return placed(True, first).sums() + stored

        filled = self._either(place, lambda has_all: placed(has_all, expr.index(0)).fill())
        return filled + self._rows(tile, one)


class _AskingTile(Placed):
    """A tile that prefetches the columns of a later tile while it multiplies: with so many planes,
    hardware prefetchers don't follow them.
    """

    def _product(
        self, left: Callable[[Expr], Expr], right: Callable[[Expr, Expr], Expr]
    ) -> list[Stmt]:
        return self._asked(right) + super()._product(left, right)

    def _asked(self, right: Callable[[Expr, Expr], Expr]) -> list[Stmt]:
        first, width = loaded(right(expr.index(0), expr.index(0))), self.shape.columns
        if first is None:
            return []
        line, ahead = CACHE_LINE // first.source.dtype.bytes, TILES_AHEAD * width
        return [
            Prefetch(first.source, expr.add(first.indices[0], expr.index(n)))
            for n in range(ahead, ahead + width, line)
        ]


class _Staged:
    """A tile's columns, staged in scratch for all terms of the sum."""

    def __init__(self, scratch: Scratch, axes: Sequence[Axis]) -> None:
        self.scratch = scratch
        self.axes = axes

    @staticmethod
    def of(nest: Nest, roles: ContractionAxes, chunks: int) -> _Staged | None:
        """The scratch for the staged columns of a contraction; None where they are too large."""
        count, dtype = roles.terms, roles.reduce.dtype
        most = nest.target.scratch_bytes // (chunks * nest.lanes * dtype.bytes)
        if not isinstance(count, int) or count > most:
            return None
        shape = count, chunks, nest.lanes
        made = nest.builder.scratch("staged", dtype, shape, Space.WORKGROUP)
        return _Staged(made, by_weight_step(roles.left, roles.summed))

    def place(self, values: Mapping[Var, Expr]) -> Expr:
        """The scratch index of a term's vectors."""
        return flat([(values[axis.var], axis.extent) for axis in self.axes])


class _StagedTile(SummedTile):
    """A tile whose columns are in scratch."""

    def __init__(self, tile: Tile, staged: _Staged, has_all: bool, place: Place) -> None:
        super().__init__(tile, place)
        self.shape = replace(tile.shape, has_all_columns=has_all)
        self.staged = staged

    def fill(self) -> list[Stmt]:
        """Statements that stage the tile's columns in scratch."""
        scratch, loaded = self.staged.scratch, super()._right

        def term(indices: Values, place: Expr) -> list[Stmt]:
            here = {**indices, **self.values}
            return self.each_chunk(
                lambda u, lane: Store(scratch, (place, u, lane), loaded(here, u, lane))
            )

        return along(self.nest, self.staged.axes, self.roles.origins, term)

    def sums(self) -> list[Stmt]:
        """Statements that compute the tile's sums in registers."""
        return self._zeros() + self._sum()

    def finish(self) -> list[Stmt]:
        """Statements that finish the tile's sums and store the results."""
        return self._finish()

    def _right(self, values: Values, u: Expr, lane: Expr) -> Expr:
        scratch = self.staged.scratch
        return Load(scratch, (self.staged.place(values), u, lane), scratch.dtype)


class _TurnedTiles(_Tiles):
    """Tiles whose strided columns are transposed in registers, in squares of columns and terms."""

    def __init__(self, product: Product, plan: StageSchedule) -> None:
        nest, _, roles, _, _ = product
        extent, terms = roles.columns.extent, roles.terms
        if isinstance(extent, int):
            most = max(1, extent // nest.lanes) * nest.lanes
            plan = replace(plan, columns=min(plan.columns, most))
        super().__init__(product, plan)
        held = min(TURNED, terms) if isinstance(terms, int) else TURNED
        self.turned = nest.builder.scratch(
            "turned", roles.reduce.dtype, (held, self.chunks, nest.lanes), Space.WORKGROUP
        )

    def _columns(self, place: Place, tile: Expr) -> list[Stmt]:
        return self._plain(place, tile, lambda made, at: TurnedTile(made, self.turned, at))


class TurnedTile(SummedTile):
    """A tile whose strided columns are transposed in registers."""

    def __init__(self, tile: Tile, turned: Scratch, place: Place) -> None:
        super().__init__(tile, place)
        self.turned = turned

    def _steps(self, terms: Terms) -> list[Stmt]:
        inner, indices, left, start = terms
        assert inner is not None

        def piece(begin: Expr, count: dims.Dim) -> list[Stmt]:
            begin = expr.add(start, begin)
            return self._turn(inner.var, indices, begin, count) + self._products(
                inner, indices, left, begin, count
            )

        return self._pieces(inner.extent, TURNED, piece)

    def _turn(self, inner: Var, indices: Values, begin: Expr, count: dims.Dim) -> list[Stmt]:
        """Stages `count` terms of all columns in scratch: squares that the backend transposes in
        registers, then tail terms one by one.
        """
        nest, turned = self.nest, self.turned

        def squares(u: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            done: dims.Dim = 0
            for side in (*(n for n in SQUARES if n <= nest.lanes), 1):
                number = dims.floor_divide(dims.add(count, dims.multiply(done, -1)), side)

                def square(c: Expr, side: int = side, done: dims.Dim = done) -> list[Stmt]:
                    first = expr.add(expr.index(done), expr.linear((c, side)))
                    return nest.unrolled(side, lambda d: term(expr.add(first, d), u), "d")

                stmts += nest.serial(number, square, "c")
                done = dims.add(done, dims.multiply(number, side))
            return stmts

        def term(k: Expr, u: Expr) -> list[Stmt]:
            here = {**indices, **self.values, inner: expr.add(begin, k)}
            return self.each_lane(
                lambda lane: [Store(turned, (k, u, lane), self._right(here, u, lane))]
            )

        return nest.serial(self.shape.chunks, squares, "u")

    def _products(
        self, inner: Axis, indices: Values, left: Expr, begin: Expr, count: dims.Dim
    ) -> list[Stmt]:
        """Statements that add the products of terms in scratch, while the next tile's columns are
        prefetched.
        """
        turned, right = self.turned, self.roles.weight
        width = self.shape.columns
        is_dense = expr.coefficient(right.indices[0], self.roles.columns.var) == inner.extent

        def step(k: Expr) -> list[Stmt]:
            term = expr.add(begin, k)
            here = {**indices, inner.var: term}
            stmts: list[Stmt] = []
            zero = expr.index(0)
            first = loaded(self._right({**here, inner.var: zero, **self.values}, zero, zero))
            if is_dense and first is not None:
                ahead = expr.mul(expr.add(term, expr.index(inner.extent)), expr.index(width))
                at = expr.add(first.indices[0], ahead)
                stmts += prefetch(first.source, at, width)
            return stmts + self._product(
                lambda r: expr.substitute(left, {**here, **self._at(r)}),
                lambda u, lane: Load(turned, (k, u, lane), turned.dtype),
            )

        return self.nest.serial(count, step, "k")
