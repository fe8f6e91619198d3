"""1x1 convolutions of 8-bit planes that are contiguous along image rows.

What four planes have at a place becomes a word in scratch, for many places at a time. A result of
channels last has tiles of dot products that read rows there; one of few planes has lanes along
places, each of which multiplies its own words by a column's. For CPUs with an instruction that sums
the products of words of bytes in long vectors. Chooses no tile sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial

from aot.ir import dims, expr
from aot.ir.expr import Dot, Expr, Load
from aot.ir.schedule import DOT_GROUP
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Scratch, Space, Stmt, Store
from aot.kernels.match.products import ContractionAxes, at_splits
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.nest import Axis, Nest, Values
from aot.kernels.nest.tiles import Shape
from aot.kernels.rules.products.dot_tiles import DotTile, name_constants
from aot.kernels.rules.products.dots import DotAxes, DotRows, WordRows
from aot.kernels.rules.products.product import (
    Place,
    Product,
    Tile,
    where_whole,
)
from aot.kernels.rules.products.tile_ends import sum_with_bias
from aot.kernels.stage.tails import where, within

# places whose words are in scratch, whose bytes fill a vector; a workgroup has several times these
PLACES, LEAST_PLACES = 64, 512
VECTOR_BYTES = 64
# planes that are few enough to be brought together, and columns whose lanes may go along places
MOST_PLANES, MOST_COLUMNS = 32, 16
# sums of a tile in registers
SUMS = 16


def schedule_byte_planes(work: Work) -> Build | None:
    """The loops of a 1x1 convolution over 8-bit planes; None for any other output, or without a dot
    product instruction on the target.
    """
    if work.is_long or work.product is None:
        return None
    (output, roles), nest, panel = work.product, work.nest, work.panel
    target = nest.target
    has_words = target.arch == "x86_64" and target.vector_bytes == VECTOR_BYTES
    if nest.is_gpu or not has_words or not target.sums_bytes(DType.U8, DType.I8):
        return None
    axes, rows = DotAxes.of(nest, roles, panel, work.max_weight), roles.rows
    if axes is None or rows is None or not isinstance(rows.extent, int):
        return None
    load, size = axes.narrow, axes.grouped.extent
    if not isinstance(load, Load) or load.dtype is not DType.U8 or load.guard is not None:
        return None
    if axes.staged is not DType.U8 or any(tap.extent != 1 for tap in axes.taps):
        return None
    if not isinstance(size, int) or size % DOT_GROUP or size > MOST_PLANES:
        return None
    if expr.coefficient(load.indices[0], rows.var) != 1 or rows.extent < PLACES:
        return None
    columns = roles.columns.extent
    in_weight = expr.free_vars(roles.weight)
    if not isinstance(columns, int) or any(a.var in in_weight for a in roles.outer):
        return None
    if expr.coefficient(output.address, rows.var) == 1 and columns <= MOST_COLUMNS:
        return _AlongPlaces(Product.of(nest, work.product, panel), axes).build
    if expr.coefficient(output.address, roles.columns.var) == 1 and columns % nest.lanes == 0:
        return _AlongColumns(Product.of(nest, work.product, panel), axes).build
    return None


class _Planes(DotRows):
    """Words in scratch that interleave, place by place, the bytes of four planes."""

    scratch: Scratch

    @abstractmethod
    def _place(self, r: Expr, g: Expr, t: Expr) -> tuple[Expr, Expr]:
        """The scratch index of byte `t` of plane group `g` at place `r`."""

    def fill(self, values: Values, first: Expr) -> list[Stmt]:
        """Statements that stage a tile's places in scratch, from `first`; all of them exist."""
        nest = self.nest

        def group(g: Expr) -> list[Stmt]:
            def plane(t: Expr) -> list[Stmt]:
                def byte(lane: Expr) -> list[Stmt]:
                    return [self._byte(values, expr.add(first, lane), (lane, g, t))]

                return [nest.spread(PLACES, byte)]

            return nest.unrolled(DOT_GROUP, plane, "t")

        return nest.serial(self.axes.width // DOT_GROUP, group, "g")

    def fill_some(self, values: Values, first: Expr, count: int) -> list[Stmt]:
        """Fills `count` places one by one; places past the last are copies of it."""
        nest, rows = self.nest, self.roles.rows
        assert rows is not None
        last = expr.index(dims.add(rows.extent, -1))

        def place(r: Expr) -> list[Stmt]:
            at = expr.binary("min", expr.add(first, r), last)

            def group(g: Expr) -> list[Stmt]:
                return nest.serial(DOT_GROUP, lambda t: [self._byte(values, at, (r, g, t))], "t")

            return nest.serial(self.axes.width // DOT_GROUP, group, "g")

        return nest.serial(count, place, "r")

    def _byte(self, values: Values, row: Expr, at: tuple[Expr, Expr, Expr]) -> Stmt:
        """The copy of one plane's byte to its place in scratch."""
        rows, load = self.roles.rows, self.narrow_load()
        assert rows is not None
        _, g, t = at
        plane = expr.linear((g, DOT_GROUP), t)
        place: Values = {v: expr.index(0) for v, _ in self.roles.reduce.axes}
        place |= {**values, rows.var: row, self.axes.grouped.var: plane}
        return Store(self.scratch, self._place(*at), expr.substitute(load, place))


class _Rows(_Planes, WordRows):
    """Staged words in the layout `[place][plane]`, as rows of a matrix."""

    def __init__(self, nest: Nest, roles: ContractionAxes, axes: DotAxes, rows: int) -> None:
        super().__init__(nest, roles, axes, rows)
        shape = rows, axes.size
        self.scratch = nest.builder.scratch("staged", DType.U8, shape, Space.WORKGROUP)

    def _place(self, r: Expr, g: Expr, t: Expr) -> tuple[Expr, Expr]:
        return r, expr.linear((g, DOT_GROUP), t)

    def word_of(self, at: Values, row: Expr, group: Expr, part: int) -> Expr:
        return Load(self.scratch, (row, expr.linear((group, DOT_GROUP))), DType.U8X4)


class _Words(_Planes):
    """Staged words in the layout `[group of planes][place]`."""

    def __init__(self, nest: Nest, roles: ContractionAxes, axes: DotAxes, rows: int) -> None:
        super().__init__(nest, roles, axes, rows)
        shape = axes.width // DOT_GROUP, rows * DOT_GROUP
        self.scratch = nest.builder.scratch("words", DType.U8, shape, Space.WORKGROUP)

    def _place(self, r: Expr, g: Expr, t: Expr) -> tuple[Expr, Expr]:
        return g, expr.linear((r, DOT_GROUP), t)


class _Loops(ABC):
    """Loops over blocks of image places, staged in scratch; subclasses multiply them."""

    planes: _Planes

    def __init__(self, product: Product, axes: DotAxes) -> None:
        self.product, self.axes = product, axes
        self.nest, self.output, self.roles, _, _ = product

    def build(self) -> tuple[Stmt, ...]:
        nest, extent = self.nest, int(self.roles.row_count)
        several = LEAST_PLACES // PLACES
        blocks = -(-extent // PLACES)
        several = -(-blocks // -(-blocks // several))
        groups = Axis(nest.builder.var("mt"), -(-blocks // several))

        def body(values: Values) -> list[Stmt]:
            first = expr.linear((values[groups.var], several * PLACES))

            def block(n: Expr) -> list[Stmt]:
                at = expr.add(first, expr.linear((n, PLACES)))
                whole = self.planes.fill(values, at) + self.results(values, at)
                if extent % (several * PLACES) == 0:
                    return whole
                last: list[Stmt] = []
                if extent % PLACES:
                    last = where(within(at, extent, 0), self.rest(values, at, extent % PLACES))
                return where_whole(expr.add(at, expr.index(PLACES)), extent, whole, last)

            return nest.serial(several, block, "b")

        return nest.grid([*self.roles.outer, groups], body, LEAST_PLACES * PLACES)

    @abstractmethod
    def results(self, values: Values, first: Expr) -> list[Stmt]:
        """Statements for the results of a block of staged places, from `first`."""

    @abstractmethod
    def rest(self, values: Values, first: Expr, count: int) -> list[Stmt]:
        """Statements that stage and compute the last, partial block of places from `first`."""


class _AlongColumns(_Loops):
    """Loops for results with contiguous columns: tiles of dot products."""

    def __init__(self, product: Product, axes: DotAxes) -> None:
        super().__init__(product, axes)
        self.planes = self.rows = _Rows(self.nest, self.roles, axes, PLACES)
        width, columns = min(self.nest.lanes, product.panel), self.roles.columns.count
        self.chunks = next(n for n in (4, 2, 1) if columns % (n * width) == 0)
        self.shape = Shape(SUMS // self.chunks, self.chunks, width, True, True)

    def results(self, values: Values, first: Expr) -> list[Stmt]:
        return self._tiles(values, first, self.shape, PLACES)

    def rest(self, values: Values, first: Expr, count: int) -> list[Stmt]:
        rows = -(-count // self.shape.rows) * self.shape.rows
        shape = replace(self.shape, has_all_rows=rows == count)
        filled = self.planes.fill_some(values, first, rows)
        return filled + self._tiles(values, first, shape, rows)

    def _tiles(self, values: Values, first: Expr, shape: Shape, rows: int) -> list[Stmt]:
        """Statements for the tiles of `rows` rows."""
        nest, columns = self.nest, self.roles.columns.count

        def tile(row: Expr, start: Expr) -> list[Stmt]:
            at = Place(values, expr.add(first, row), start)
            return DotTile(Tile(self.product, shape), self.rows, row, at).build()

        def several(n: Expr) -> list[Stmt]:
            start = expr.linear((n, shape.chunks))
            return nest.serial(
                rows // shape.rows, lambda t: tile(expr.linear((t, shape.rows)), start), "t"
            )

        return nest.serial(columns // shape.columns, several, "nt")


class _AlongPlaces(_Loops):
    """Loops for results stored as planes: lanes run along places."""

    def __init__(self, product: Product, axes: DotAxes) -> None:
        super().__init__(product, axes)
        self.planes = self.words = _Words(self.nest, self.roles, axes, PLACES)
        builder, roles = self.nest.builder, self.roles
        bias = sum_with_bias(self.output, roles.reduce)
        is_own = bias is not None and expr.free_vars(bias[1]) == {roles.columns.var}
        self.bias = bias if is_own else None
        self.sums: Scratch = builder.scratch("sums", DType.I32, (PLACES,), Space.WORKGROUP)

    def results(self, values: Values, first: Expr) -> list[Stmt]:
        return self._columns(values, first, None)

    def rest(self, values: Values, first: Expr, count: int) -> list[Stmt]:
        rows = self.roles.rows
        assert rows is not None
        # some of the places before them again, which are not stored
        begin = expr.index(dims.add(rows.extent, -PLACES))
        return self.planes.fill(values, begin) + self._columns(values, begin, first)

    def _columns(self, values: Values, first: Expr, stored: Expr | None) -> list[Stmt]:
        """Statements for all columns of the places from `first`; only places from `stored` on are
        stored."""
        stmts: list[Stmt] = []
        named = name_constants(self.nest, self.output, self.roles.reduce, stmts)
        column = partial(self._column, values, first, named, stored)
        return stmts + self.nest.serial(self.roles.columns.extent, column, "c")

    def _column(
        self,
        values: Values,
        first: Expr,
        named: dict[Expr, Expr],
        stored: Expr | None,
        c: Expr,
    ) -> list[Stmt]:
        nest, roles, lanes = self.nest, self.roles, self.nest.lanes
        rows = roles.rows
        assert rows is not None
        acc = nest.builder.scratch("acc", DType.I32, (PLACES // lanes, lanes))
        begin: Expr = expr.const(0, DType.I32)
        if self.bias is not None:
            begin = expr.substitute(self.bias[1], {roles.columns.var: c})

        def each(body: object) -> list[Stmt]:
            return nest.unrolled(
                PLACES // lanes,
                lambda u: [nest.spread(lanes, lambda lane: [body(u, lane)])],  # type: ignore[operator]
            )

        def at(u: Expr, lane: Expr) -> Expr:
            return expr.linear((u, lanes), lane)

        def group(g: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            weight = nest.let(self._weight(c, g), stmts, "w")

            def product(u: Expr, lane: Expr) -> Stmt:
                place = expr.mul(at(u, lane), expr.index(DOT_GROUP))
                left = Load(self.words.scratch, (g, place), DType.U8X4)
                old = Load(acc, (u, lane), DType.I32)
                return Store(acc, (u, lane), Dot(left, weight, old))

            return stmts + each(product)

        def result(lane: Expr) -> list[Stmt]:
            x = expr.add(first, lane)
            place = {**values, rows.var: x, roles.columns.var: c}
            total = Load(self.sums, (lane,), DType.I32)
            summed = roles.reduce if self.bias is None else self.bias[0]
            done: dict[Expr, Expr] = {**named, summed: total}
            stores = self.output.stores(nest, place, done.get)
            if stored is None:
                return stores
            return [If(expr.binary("ge", x, stored), tuple(stores))]

        stmts: list[Stmt] = []
        start = nest.let(begin, stmts, "s")
        stmts += each(lambda u, lane: Store(acc, (u, lane), start))
        stmts += nest.serial(self.axes.width // DOT_GROUP, group, "g")
        stmts += each(
            lambda u, lane: Store(self.sums, (at(u, lane),), Load(acc, (u, lane), DType.I32))
        )
        return [*stmts, nest.spread(PLACES, result)]

    def _weight(self, column: Expr, g: Expr) -> Expr:
        """The word of a column's weights for a group of planes."""
        weight, axes, zero = self.roles.weight, self.axes, expr.index(0)
        splits = {(axes.grouped.var, DOT_GROUP): (g, zero)}
        place: Values = {v: zero for v, _ in self.roles.reduce.axes}
        place |= {self.roles.columns.var: column}
        found = at_splits(weight, splits, place)
        assert isinstance(found, Load)
        return Load(found.source, found.indices, DType.I8X4)
