"""A contraction on a GPU whose subgroups multiply matrices.

A workgroup has a tile of rows, all axes of them as one, and of columns. Step by step of the sum its
lanes bring the rows' elements into shared memory, whatever these are computed from, and each of its
subgroups multiplies them by weights that it loads as matrices from where they lie in panels. The
sums go through shared memory to the lanes, which have the epilogue. Owns the tile's geometry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aot.analysis.cost.gpu_matrices import TERMS_TOGETHER, MatrixTile, matrix_tile
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Cast, Expr, Load, Select
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    Barrier,
    Buffer,
    BufferClass,
    For,
    If,
    LoopKind,
    Matrix,
    MatrixProduct,
    MatrixStore,
    MatrixZero,
    Space,
    Stmt,
    Store,
)
from aot.kernels.lower.nest import Axis, Nest, Output
from aot.kernels.schedules.contraction_axes import ContractionAxes, Values, loaded
from aot.kernels.schedules.sum_order import by_weight_step
from aot.records import dataclass
from aot.target.model import GpuGeometry, MatrixShape

QUAD = 4  # elements that a lane loads or stores together
# what rows of matrices begin at multiples of
MATRIX_BYTES = 16
# bytes behind a row in shared memory, so that rows begin at different banks of it
PADDING_BYTES = MATRIX_BYTES


def schedule_matrices(
    nest: Nest, output: Output, roles: ContractionAxes, panel: int, *, is_open: bool
) -> tuple[Stmt, ...] | None:
    """The kernel; None where the target has no such matrices, or the contraction is not one of
    them.

    Args:
        is_open: whether rows that only the device knows may be a single one.
    """
    product = _Product.of(nest, output, roles, panel)
    if product is None:
        return None
    if is_open and not isinstance(product.row_count, int):
        return None
    gpu = nest.target.gpu
    assert gpu is not None
    extents = product.row_count, roles.columns.extent, product.others
    tile = matrix_tile(product.shape, gpu, nest.lanes, *extents)
    if tile is None:
        return None
    return _Tiles(nest, output, product, tile, panel).build()


@dataclass(frozen=True)
class _Product:
    """A contraction as a product of matrices.

    Attributes:
        left: its left side in the type of the matrices.
        step: elements from one term's weights to the next one's.
        rows: the axes along which only the left side varies.
        outer: those along which both do.
        taps, inner: the axes of the sum, and the innermost.
    """

    shape: MatrixShape
    roles: ContractionAxes
    left: Expr
    step: int
    rows: tuple[Axis, ...]
    outer: tuple[Axis, ...]
    taps: tuple[Axis, ...]
    inner: Axis

    @property
    def row_count(self) -> Dim:
        return dims.product([a.extent for a in self.rows])

    @property
    def others(self) -> Dim:
        return dims.product([a.extent for a in self.outer])

    @staticmethod
    def of(nest: Nest, output: Output, roles: ContractionAxes, panel: int) -> _Product | None:
        gpu = nest.target.gpu
        if gpu is None or not gpu.matrices or output.others or not roles.is_packed:
            return None
        weight = roles.weight
        if loaded(roles.right) is not weight or roles.rows is None:
            return None
        for shape in gpu.matrices:
            types = shape.right, shape.sums
            if (weight.dtype, roles.reduce.dtype) != types or panel % shape.columns:
                continue
            left = narrowed(roles.left, shape.left)
            if left is None or not _lies_in_matrices(gpu, weight):
                continue
            found = _Product._with(roles, shape, left)
            if found is not None:
                return found
        return None

    @staticmethod
    def _with(roles: ContractionAxes, shape: MatrixShape, left: Expr) -> _Product | None:
        axes = [Axis(v, n) for v, n in roles.reduce.axes if n != 1]
        axes = by_weight_step(roles.right, axes)
        if not axes or roles.rows is None:
            return None
        *taps, inner = axes
        step = expr.coefficient(roles.weight.indices[0], inner.var)
        if not isinstance(step, int) or dims.modulo(inner.extent, shape.terms) != 0:
            return None
        in_right = expr.free_vars(roles.right)
        around = (*roles.outer, roles.rows)
        rows = tuple(a for a in around if a.var not in in_right)
        outer = tuple(a for a in around if a.var in in_right)
        return _Product(shape, roles, left, step, rows, outer, tuple(taps), inner)


def _lies_in_matrices(gpu: GpuGeometry, weight: Load) -> bool:
    """Whether subgroups may load matrices of weights from where these lie."""
    source = weight.source
    if not isinstance(source, Buffer) or source.dtype.bits not in (*gpu.storage_bits, 32):
        return False
    is_constant = source.binding is BufferClass.CONSTANTS
    return is_constant or (not source.is_written and source.alignment % MATRIX_BYTES == 0)


def narrowed(e: Expr, dtype: DType) -> Expr | None:
    """`e` in a narrower type, of which all its values are; None where they may be others."""
    if e.dtype is dtype:
        return e
    if isinstance(e, Cast) and e.a.dtype is dtype:
        return e.a
    if isinstance(e, Select):
        a, b = narrowed(e.a, dtype), narrowed(e.b, dtype)
        return None if a is None or b is None else expr.select(e.condition, a, b)
    return None


class _Tiles:
    """The workgroups of such a product."""

    def __init__(
        self, nest: Nest, output: Output, product: _Product, tile: MatrixTile, panel: int
    ) -> None:
        self.nest, self.output, self.product, self.tile = nest, output, product, tile
        self.roles, self.panel = product.roles, panel
        shape, builder = product.shape, nest.builder
        extent = product.inner.extent
        self.steps = next(
            n for n in (*TERMS_TOGETHER, 1) if dims.modulo(extent, n * shape.terms) == 0
        )
        self.terms = self.steps * shape.terms
        self.subgroups = tile.along * tile.across
        size = tile.matrices_down, tile.matrices_across, shape.rows, shape.columns
        self.sums = builder.scratch("sums", shape.sums, size, Space.MATRIX)
        line = self.terms + PADDING_BYTES // shape.left.bytes
        self.rows = builder.scratch("rows", shape.left, (tile.rows, line), Space.WORKGROUP)
        self.stored = builder.scratch(
            "stored", shape.sums, (tile.rows, tile.columns), Space.WORKGROUP
        )

    def build(self) -> tuple[Stmt, ...]:
        nest, product, tile = self.nest, self.product, self.tile
        row_tile = Axis(nest.builder.var("mt"), dims.ceil_divide(product.row_count, tile.rows))
        along = nest.builder.var("nt")
        columns = expr.mul(along, expr.index(tile.columns))

        def body(values: Values) -> list[Stmt]:
            first = expr.mul(values[row_tile.var], expr.index(tile.rows))
            return self._tile(values, first, columns)

        stmts = nest.grid((*product.outer, row_tile), body, tile.rows * tile.columns)
        count = dims.ceil_divide(self.roles.columns.extent, tile.columns)
        return (For(along, count, LoopKind.WORKGROUP, stmts, axis=1),)

    def _tile(self, values: Values, first: Expr, columns: Expr) -> list[Stmt]:
        zero = self._subgroups(
            lambda _: self._each_matrix(lambda i, j: [MatrixZero(self.sums, (i, j))])
        )
        points = {v: expr.index(0) for v, n in self.roles.reduce.axes if n == 1}
        taps = self.product.taps
        terms = self._along(taps, points, lambda at: self._blocks(values, at, first, columns))
        return [zero, *terms, *self._finish(values, first, columns)]

    # Lanes

    def _lanes(self, body: Callable[[Expr], list[Stmt]]) -> Stmt:
        """`body` for each lane of the workgroup, by its number."""
        each = self.nest.lanes // self.subgroups
        lane = self.nest.builder.var("lane")

        def of_subgroup(group: Expr) -> list[Stmt]:
            number = expr.add(expr.mul(group, expr.index(each)), lane)
            return [For(lane, each, LoopKind.LANE, tuple(body(number)))]

        return self._subgroups(of_subgroup)

    def _subgroups(self, body: Callable[[Expr], list[Stmt]]) -> Stmt:
        group = self.nest.builder.var("group")
        return For(group, self.subgroups, LoopKind.LANE, tuple(body(group)), axis=1)

    def _each_matrix(self, body: Callable[[Expr, Expr], list[Stmt]]) -> list[Stmt]:
        """`body` for the matrices of a subgroup."""
        nest, tile = self.nest, self.tile
        return nest.unrolled(
            tile.matrices_down,
            lambda i: nest.unrolled(tile.matrices_across, lambda j: body(i, j), "j"),
            "i",
        )

    def _place(self, group: Expr) -> tuple[Expr, Expr]:
        """The first row and the first column of a subgroup in the tile."""
        tile, shape = self.tile, self.product.shape
        across = expr.index(tile.across)
        row = expr.mul(
            expr.binary("floordiv", group, across), expr.index(tile.matrices_down * shape.rows)
        )
        column = expr.mul(
            expr.binary("floormod", group, across),
            expr.index(tile.matrices_across * shape.columns),
        )
        return row, column

    # The sum

    def _along(
        self, axes: tuple[Axis, ...], at: Values, body: Callable[[Values], list[Stmt]]
    ) -> list[Stmt]:
        if not axes:
            return body(at)
        axis, *rest = axes
        return self.nest.serial(
            axis.extent, lambda k: self._along(tuple(rest), {**at, axis.var: k}, body), "k"
        )

    def _blocks(self, values: Values, at: Values, first: Expr, columns: Expr) -> list[Stmt]:
        """All terms along the innermost axis, some at a time."""
        inner = self.product.inner

        def block(k: Expr) -> list[Stmt]:
            start = expr.mul(k, expr.index(self.terms))
            # others may still multiply by what was brought before
            return [
                Barrier(),
                self._lanes(lambda lane: self._bring(values, at, first, start, lane)),
                Barrier(),
                self._subgroups(lambda group: self._multiply(values, at, columns, start, group)),
            ]

        return self.nest.serial(dims.floor_divide(inner.extent, self.terms), block, "k")

    def _bring(
        self, values: Values, at: Values, first: Expr, start: Expr, lane: Expr
    ) -> list[Stmt]:
        """A lane's share of the rows' elements."""
        nest, product, rows = self.nest, self.product, self.tile.rows
        read = list(expr.loads(product.left))
        has_lines = any(expr.coefficient(e.indices[0], product.inner.var) == 1 for e in read)
        together = QUAD if has_lines else 1
        across = self.terms // together
        count = rows * across
        used = min(count, nest.lanes)

        def some(n: Expr) -> list[Stmt]:
            number = expr.add(expr.mul(n, expr.index(used)), lane)
            # neighbouring lanes read neighbours
            size = expr.index(across if has_lines else rows)
            outer = expr.binary("floordiv", number, size)
            inner = expr.binary("floormod", number, size)
            row, part = (outer, inner) if has_lines else (inner, outer)
            stmts: list[Stmt] = []
            part = nest.let(expr.mul(part, expr.index(together)), stmts, "part")
            here = {**values, **at, **self._row(first, row, stmts, is_clamped=True)}

            def one(u: Expr) -> list[Stmt]:
                term = expr.add(part, u)
                place = {**here, product.inner.var: expr.add(start, term)}
                return [Store(self.rows, (row, term), expr.substitute(product.left, place))]

            return stmts + nest.unrolled(together, one)

        stmts = nest.unrolled(count // used, some, "n")
        if used == nest.lanes:
            return stmts
        return [If(expr.binary("lt", lane, expr.index(used)), tuple(stmts))]

    def _row(
        self, first: Expr, row: Expr, stmts: list[Stmt], *, is_clamped: bool = False
    ) -> Values:
        """What the axes of rows are at a row of the tile; of those past the last one this."""
        found: Values = {}
        whole = expr.add(first, row)
        if is_clamped and dims.modulo(self.product.row_count, self.tile.rows) != 0:
            last = expr.index(dims.add(self.product.row_count, -1))
            whole = expr.binary("min", whole, last)
        whole = self.nest.let(whole, stmts, "m")
        self.nest.decode(whole, self.product.rows, found, stmts)
        return found

    def _multiply(
        self, values: Values, at: Values, columns: Expr, start: Expr, group: Expr
    ) -> list[Stmt]:
        """The products of a subgroup with the terms that are in shared memory."""
        nest, shape = self.nest, self.product.shape
        stmts: list[Stmt] = []
        row, column = (nest.let(e, stmts, "at") for e in self._place(group))

        def step(s: Expr) -> list[Stmt]:
            term = expr.mul(s, expr.index(shape.terms))

            def product(i: Expr, j: Expr) -> list[Stmt]:
                down = expr.add(row, expr.mul(i, expr.index(shape.rows)))
                right = expr.add(column, expr.mul(j, expr.index(shape.columns)))
                weights = self._weights(
                    {**values, **at}, expr.add(start, term), expr.add(columns, right)
                )
                left = Matrix(self.rows, (down, term), self.rows.shape[-1])
                return [MatrixProduct(self.sums, (i, j), shape.terms, left, weights)]

            return self._each_matrix(product)

        return stmts + nest.unrolled(self.steps, step, "s")

    def _weights(self, values: Values, term: Expr, column: Expr) -> Matrix:
        """The matrix of weights that begins at a term and a column; past the last panel that one
        again."""
        roles, panel = self.roles, expr.index(self.panel)
        number = expr.binary("floordiv", column, panel)
        within = expr.binary("floormod", column, panel)
        padded = dims.multiply(dims.ceil_divide(roles.columns.extent, self.panel), self.panel)
        if dims.modulo(padded, self.tile.columns) != 0:
            last = expr.index(dims.add(roles.columns.extent, -1))
            number = expr.binary("min", number, expr.binary("floordiv", last, panel))
        here = {**values, self.product.inner.var: term, roles.columns.var: column}
        found = loaded(roles.weight_at(self.panel, number, within, here))
        assert found is not None
        return Matrix(found.source, found.indices, self.product.step)

    # What becomes of the sums

    def _finish(self, values: Values, first: Expr, columns: Expr) -> list[Stmt]:
        shape, sums, stored = self.product.shape, self.sums, self.stored

        def keep(group: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            row, column = (self.nest.let(e, stmts, "at") for e in self._place(group))

            def one(i: Expr, j: Expr) -> list[Stmt]:
                at = (
                    expr.add(row, expr.mul(i, expr.index(shape.rows))),
                    expr.add(column, expr.mul(j, expr.index(shape.columns))),
                )
                return [MatrixStore(sums, (i, j), Matrix(stored, at, stored.shape[-1]))]

            return stmts + self._each_matrix(one)

        return [
            self._subgroups(keep),
            Barrier(),
            self._lanes(lambda lane: self._epilogue(values, first, columns, lane)),
        ]

    def _epilogue(self, values: Values, first: Expr, columns: Expr, lane: Expr) -> list[Stmt]:
        """A lane's share of the results: neighbours of a row where these are neighbours in memory,
        else of a column."""
        nest, roles, tile = self.nest, self.roles, self.tile
        extent = roles.columns.extent
        has_lines = expr.coefficient(self.output.address, roles.columns.var) == 1
        together = QUAD if has_lines and dims.modulo(extent, QUAD) == 0 else 1
        across = tile.columns // together
        size = expr.index(across if has_lines else tile.rows)

        def some(n: Expr) -> list[Stmt]:
            number = expr.add(expr.mul(n, expr.index(nest.lanes)), lane)
            outer = expr.binary("floordiv", number, size)
            inner = expr.binary("floormod", number, size)
            row, part = (outer, inner) if has_lines else (inner, outer)
            stmts: list[Stmt] = []
            part = nest.let(expr.mul(part, expr.index(together)), stmts, "part")
            column = nest.let(expr.add(columns, part), stmts, "column")
            inside: list[Stmt] = []
            here = {**values, **self._row(first, row, inside)}

            def one(u: Expr) -> list[Stmt]:
                total = Load(self.stored, (row, expr.add(part, u)), self.stored.dtype)
                done: dict[Expr, Expr] = {roles.reduce: total}
                place = {**here, roles.columns.var: expr.add(column, u)}
                return self.output.stores(nest, place, done.get)

            inside += nest.unrolled(together, one)
            conditions = list(self._conditions(first, row, column))
            if conditions:
                return [*stmts, If(_all(conditions), tuple(inside))]
            return stmts + inside

        return nest.serial(tile.rows * across // nest.lanes, some, "n")

    def _conditions(self, first: Expr, row: Expr, column: Expr) -> Iterator[Expr]:
        """Whether a row and a column of the tile are there, where that is not sure."""
        pairs = (
            (self.product.row_count, self.tile.rows, expr.add(first, row)),
            (self.roles.columns.extent, self.tile.columns, column),
        )
        for extent, size, at in pairs:
            if dims.modulo(extent, size) != 0:
                yield expr.binary("lt", at, expr.index(extent))


def _all(conditions: list[Expr]) -> Expr:
    found = expr.all_of(conditions)
    assert found is not None
    return found
