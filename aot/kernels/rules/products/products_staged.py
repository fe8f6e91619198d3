"""Contractions on a GPU whose operands are staged in shared memory.

A workgroup brings some terms of its tile's rows and columns there, and each lane multiplies them
from there, so that memory is read once for a tile and not for every lane. While it does, the next
terms are on their way to registers. Rows are those of all windows, whatever axes they lie along.
Owns what is brought, in which order, and where it lies; products_gpu.py has the lanes' tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.analysis.cost.gpu_tiles import row_stride, staged_bytes
from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.expr import Expr, Load, Var
from aot.ir.schedule import QUAD, StageSchedule
from aot.ir.types import DType
from aot.kernels.ir.nodes import Barrier, For, LoopKind, Space, Stmt, Store
from aot.kernels.match.products import ContractionAxes
from aot.kernels.nest.borders import masked
from aot.kernels.nest.index_math import simplifier
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.nest.tiles import Shape
from aot.kernels.rules.products.product import (
    Place,
    Product,
    divided,
    panel_of,
)
from aot.kernels.rules.products.products_gpu import GpuTile, PlacedOnGpu
from aot.kernels.rules.products.sum_order import by_weight_step
from aot.kernels.stage.tails import where, within

# how much of the terms that are brought may be none, as a share of those that are there
MOST_IDLE = 0.25


def rows_as_one(nest: Nest, output: Output, roles: ContractionAxes) -> Output:
    """The output with all axes along which only the left factor varies merged into one."""
    left, right = expr.free_vars(roles.left), expr.free_vars(roles.right)
    others = (*roles.outer, *(() if roles.rows is None else (roles.rows,)))
    rows = [a for a in output.axes if a in others and a.var in left and a.var not in right]
    if len(rows) < 2:
        return output
    merged = Axis(nest.builder.var("m"), dims.product([a.extent for a in rows]))
    place = _taken_apart(merged.var, rows)
    axes = [a for a in output.axes if a not in rows]
    axes.insert(len(axes) - 1, merged)
    simple = simplifier([*output.values, output.address], {a.var: a.extent for a in axes})
    memo: dict[Expr, Expr] = {}
    return output.rewritten(lambda e: simple(expr.substitute(e, place, memo)), axes)


def _taken_apart(whole: Expr, axes: Sequence[Axis]) -> Values:
    """The indices of `axes` for a flat index, the last axis fastest."""
    place: Values = {}
    for axis in reversed(axes[1:]):
        whole, place[axis.var] = divided(whole, axis.extent)
    return {**place, axes[0].var: whole}


@dataclass(frozen=True)
class _Terms:
    """The terms of the sum, divided into steps of `count`.

    Attributes:
        axes: of the sum, outermost first, each of several terms.
        is_flat: whether steps go over all axes as over one, and terms are taken apart; else over
            the last one, tap by tap.
    """

    axes: Sequence[Axis]
    count: int
    is_flat: bool

    @staticmethod
    def of(axes: Sequence[Axis], count: int) -> _Terms:
        inner = axes[-1].extent
        is_idle = isinstance(inner, int) and -inner % count > MOST_IDLE * inner
        return _Terms(axes, count, len(axes) > 1 and is_idle)

    @property
    def inner(self) -> dims.Dim:
        """The number of terms along the axes that steps divide: all of them if flat, else those of
        the last axis."""
        return dims.product([a.extent for a in self.axes]) if self.is_flat else self.axes[-1].extent

    @property
    def steps(self) -> dims.Dim:
        taps = () if self.is_flat else [a.extent for a in self.axes[:-1]]
        return dims.multiply(dims.product(taps), dims.ceil_divide(self.inner, self.count))

    @property
    def line(self) -> Var | None:
        """The axis along which the terms of a step are contiguous; None if steps run over all
        axes."""
        return None if self.is_flat else self.axes[-1].var

    def at(self, nest: Nest, step: Expr, into: list[Stmt]) -> Callable[[Expr], tuple[Values, Expr]]:
        """A function from a term's number in a step to (axis values, number of terms before it)."""
        size, place = expr.index(self.count), dict[Var, Expr]()
        if self.is_flat:
            first = expr.mul(step, size)
            return lambda k: (_taken_apart(expr.add(first, k), self.axes), expr.add(first, k))
        *outer, inner = self.axes
        taps, block = divided(step, dims.ceil_divide(inner.extent, self.count))
        taps = nest.let(taps, into, "tap")
        first = nest.let(expr.mul(block if outer else step, size), into, "k")
        if outer:
            place = _taken_apart(taps, outer)
        return lambda k: ({**place, inner.var: expr.add(first, k)}, expr.add(first, k))


class StagedTiles:
    """The tiles of a contraction whose rows are one axis, and the loops around them."""

    def __init__(self, product: Product, plan: StageSchedule, terms: _Terms) -> None:
        self.nest, _, self.roles, self.panel, _ = product
        assert self.roles.rows is not None
        self.terms, self.along = terms, self.roles.rows
        self.rows, self.columns = plan.rows, plan.columns
        has_rows = dims.modulo(self.along.extent, self.rows) == 0
        has_columns = dims.modulo(self.roles.columns.extent, self.columns) == 0
        shape = Shape(self.rows, 1, self.columns, has_rows, has_columns)
        self.tile = GpuTile(product, shape, plan.shares)
        self.has_all_rows, self.has_all_columns = has_rows, has_columns

    @staticmethod
    def of(product: Product, plan: StageSchedule) -> StagedTiles | None:
        """The staged tiles of a product; None where the plan does not stage, or the kernel does not
        suit it."""
        nest, roles = product.nest, product.roles
        sides, gpu = (roles.reduce, roles.left, roles.right), nest.target.gpu
        if not plan.staged or gpu is None or roles.rows is None:
            return None
        if any(side.dtype is not DType.F32 for side in sides) or roles.weight.dtype.is_packed:
            return None
        axes = roles.summed
        tile = plan.rows, plan.columns, plan.shares, plan.staged
        needed = staged_bytes(*tile, nest.lanes, plan.rows * plan.columns // nest.lanes + 1)
        if not axes or needed > gpu.max_shared_bytes or plan.staged < QUAD * plan.shares:
            return None
        terms = _Terms.of(by_weight_step(roles.right, axes), plan.staged)
        made = StagedTiles(product, plan, terms)
        return made if made.tile.shape.chunks % QUAD == 0 else None

    def build(self) -> tuple[Stmt, ...]:
        nest, roles = self.nest, self.roles
        tile_of_rows = Axis(nest.builder.var("mt"), dims.ceil_divide(self.along.extent, self.rows))
        across = nest.builder.var("nt")

        def body(values: Values) -> list[Stmt]:
            first = expr.mul(values[tile_of_rows.var], expr.index(self.rows))
            return self._tile(values, first, across)

        # rows go along x, the one axis that may be long
        stmts = nest.grid([*roles.outer, tile_of_rows], body, 1)
        tiles = dims.ceil_divide(roles.columns.extent, self.columns)
        return (For(across, tiles, LoopKind.WORKGROUP, stmts, axis=1),)

    def _tile(self, values: Values, first: Expr, start: Expr) -> list[Stmt]:
        nest, tile = self.nest, self.tile
        place = Place(values, first, start)
        staged = _Staged(self, place._replace(values={**values, **self.roles.origins}))

        def step(n: Expr) -> list[Stmt]:
            last = expr.index(dims.add(self.terms.steps, -1))
            following = expr.binary("min", expr.add(n, expr.index(1)), last)

            def multiply(lane: Expr) -> list[Stmt]:
                fetched = [] if self.terms.steps == 1 else staged.fetch(following, lane)
                return fetched + tile.of_lane(place, lane, staged.products)

            return [
                nest.spread(nest.lanes, staged.put),
                Barrier(),
                nest.spread(nest.lanes, multiply),
                Barrier(),
            ]

        return [
            nest.spread(nest.lanes, lambda lane: staged.fetch(expr.index(0), lane)),
            tile.part(place, lambda placed: placed.begin()),
            *nest.serial(self.terms.steps, step, "k"),
            *tile.finished(place, lambda _: []),
        ]


class _Staged:
    """Stages a tile's rows and columns in shared memory, in vec4s.

    Attributes:
        rows: fours of terms, rows, four terms.
        columns: terms, fours of a lane's columns, lanes, four columns: so that lanes that stand
            next to each other load what lies so.
    """

    def __init__(self, tiles: StagedTiles, place: Place) -> None:
        nest, tile = tiles.nest, tiles.tile
        self.tiles, self.nest, self.roles = tiles, nest, tiles.roles
        self.values, self.first, start = place
        self.start = expr.linear((start, tiles.columns))
        self.terms, self.count = tiles.terms, tiles.terms.count
        self.own = tile.shape.chunks
        fours, scratch = self.count // QUAD, tile.product.scratch
        stride = row_stride(tiles.rows, self.count)
        self.rows = scratch.get("rows", DType.F32, (fours, stride, QUAD))
        shape = (self.count, self.own // QUAD, tile.along_columns, QUAD)
        self.columns = scratch.get("columns", DType.F32, shape)
        quads = [fours * tiles.rows, self.count * tiles.columns // QUAD]
        self.loads = _Loads(nest, "row", quads[0]), _Loads(nest, "weight", quads[1])
        line = self.terms.line
        self.has_lines = line is not None and _is_next(roles_load(self.roles.left), line)
        self.has_columns = self.roles.is_packed or _is_next(
            self.roles.weight, self.roles.columns.var
        )
        self.has_own_lines = (
            not self.has_columns and line is not None and _is_next(self.roles.weight, line)
        )

    def fetch(self, step: Expr, lane: Expr) -> list[Stmt]:
        """Statements that load a lane's share of a step's terms into its registers."""
        stmts: list[Stmt] = []
        at = self.terms.at(self.nest, step, stmts)
        rows, weights = self.loads
        stmts += rows.fetch(lane, lambda q, into: self._row_at(q, at, into))
        return stmts + weights.fetch(lane, lambda q, into: self._weight_at(q, at, into))

    def put(self, lane: Expr) -> list[Stmt]:
        """Statements that store a lane's loaded vec4s to shared memory."""
        rows, weights = self.loads
        return rows.put(lane, self._row_place) + weights.put(lane, self._weight_place)

    def products(self, placed: PlacedOnGpu) -> list[Stmt]:
        """The products of a lane's share of a step's terms."""
        row = expr.linear((placed.place_of_row, placed.shape.rows))

        def some(n: Expr) -> list[Stmt]:
            number = expr.linear((n, placed.shares), placed.number)
            return self.nest.unrolled(QUAD, lambda j: one(number, j), "j")

        def one(number: Expr, j: Expr) -> list[Stmt]:
            k = expr.linear((number, QUAD), j)

            def left(r: Expr) -> Expr:
                return Load(self.rows, (number, expr.add(row, r), j), DType.F32)

            def right(u: Expr, _: Expr) -> Expr:
                half, v = divided(u, QUAD)
                return Load(self.columns, (k, half, placed.place_of_column, v), DType.F32)

            return placed.outer_product(left, right)

        return self.nest.serial(self.count // QUAD // placed.shares, some, "k")

    # Rows

    def _row_of(self, q: Expr, into: list[Stmt]) -> tuple[Expr, Expr]:
        """(vec4 of terms, row) of load number `q` of the left side."""
        fours, rows = self.count // QUAD, self.tiles.rows
        return self._split(q, fours, into) if self.has_lines else self._turned(q, rows, into)

    def _row_place(self, q: Expr, into: list[Stmt]) -> Callable[[Expr], Store]:
        four, row = self._row_of(q, into)
        return lambda v: Store(self.rows, (four, row, v), expr.const(0, DType.F32))

    def _row_at(self, q: Expr, at: At, into: list[Stmt]) -> Callable[[Expr], Expr]:
        four, row = self._row_of(q, into)
        along, nest = self.tiles.along, self.nest
        number = expr.add(self.first, row)
        if not self.tiles.has_all_rows:
            number = expr.binary("min", number, expr.index(dims.add(along.extent, -1)))
        place = {**self.values, along.var: nest.let(number, into, "m")}
        begin = nest.let(expr.mul(four, expr.index(QUAD)), into, "k")

        def value(v: Expr) -> Expr:
            return self._there(self.roles.left, expr.add(begin, v), at, place)

        return value

    def _there(self, side: Expr, k: Expr, at: At, place: Values) -> Expr:
        """A factor at a term of the step; 0 past the last term."""
        terms, before = at(k)
        found = expr.substitute(side, {**place, **terms})
        return self._masked(found, before)

    def _masked(self, e: Expr, before: Expr) -> Expr:
        if dims.modulo(self.terms.inner, self.count) == 0:
            return e
        is_there = expr.binary("lt", before, expr.index(self.terms.inner))
        return expr.select(is_there, masked(e, is_there), expr.const(0, e.dtype))

    # Columns

    def _weight_of(self, q: Expr, into: list[Stmt]) -> tuple[Expr, Expr]:
        """(term, vec4 of columns) of load number `q` of the right side; (vec4 of terms, column)
        where terms are contiguous.
        """
        if self.has_own_lines:
            return self._split(q, self.count // QUAD, into)
        fours = self.tiles.columns // QUAD
        four, k = self._split(q, fours, into)
        return k, four

    def _weight_place(self, q: Expr, into: list[Stmt]) -> Callable[[Expr], Store]:
        k, column = self._weight_of(q, into)
        four, zero = expr.index(QUAD), expr.const(0, DType.F32)

        def place(column: Expr, k: Expr, v: Expr) -> Store:
            lane, within = divided(column, self.own)
            return Store(self.columns, (k, expr.binary("floordiv", within, four), lane, v), zero)

        if self.has_own_lines:
            v_of = expr.binary("floormod", column, four)
            return lambda v: place(column, expr.add(expr.mul(k, four), v), v_of)
        return lambda v: place(expr.mul(column, four), k, v)

    def _weight_at(self, q: Expr, at: At, into: list[Stmt]) -> Callable[[Expr], Expr]:
        k, column = self._weight_of(q, into)
        nest, four = self.nest, expr.index(QUAD)
        if self.has_own_lines:
            begin = nest.let(expr.mul(k, four), into, "k")
            column = nest.let(expr.add(self.start, column), into, "n")
            return lambda v: self._weight(expr.add(begin, v), column, expr.index(0), at)
        column = nest.let(expr.add(self.start, expr.mul(column, four)), into, "n")
        return lambda v: self._weight(k, column, v, at)

    def _weight(self, k: Expr, column: Expr, v: Expr, at: At) -> Expr:
        """The right factor at a term, `v` columns after the first of a vec4."""
        roles, panel, has_all = self.roles, self.tiles.panel, self.tiles.has_all_columns
        terms, before = at(k)
        number, within = panel_of(roles, panel, column, is_there=has_all)
        whole = expr.add(column, v)
        values = {**self.values, **terms, roles.columns.var: whole}
        found = roles.weight_at(panel, number, expr.add(within, v), values)
        if not has_all and (not roles.is_packed or roles.has_factors):
            found = masked(found, expr.binary("lt", whole, expr.index(roles.columns.extent)))
        return self._masked(found, before)

    def _split(self, q: Expr, size: int, into: list[Stmt]) -> tuple[Expr, Expr]:
        """(index within a part of `size`, part) of a number."""
        part, within = divided(q, size)
        return self.nest.let(within, into, "w"), self.nest.let(part, into, "p")

    def _turned(self, q: Expr, size: int, into: list[Stmt]) -> tuple[Expr, Expr]:
        within, part = self._split(q, size, into)
        return part, within


At = Callable[[Expr], tuple[Values, Expr]]
Target = Callable[[Expr, list[Stmt]], Callable[[Expr], Store]]
Value = Callable[[Expr, list[Stmt]], Callable[[Expr], Expr]]


class _Loads:
    """The vec4s that each lane of a workgroup loads on their way to shared memory, in registers."""

    def __init__(self, nest: Nest, name: str, total: int) -> None:
        self.nest, self.total = nest, total
        self.each = -(-total // nest.lanes)
        shape = (self.each, QUAD, nest.lanes)
        self.held = nest.builder.scratch(name, DType.F32, shape, Space.REGISTER)

    def fetch(self, lane: Expr, value: Value) -> list[Stmt]:
        """Loads a lane's vec4s, element by element of `value(number)`."""

        def four(n: Expr, q: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            of = value(q, stmts)
            return stmts + self.nest.unrolled(
                QUAD, lambda v: [Store(self.held, (n, v, lane), of(v))], "v"
            )

        return self._each(lane, four)

    def put(self, lane: Expr, place: Target) -> list[Stmt]:
        """Statements that store the loaded elements in shared memory, each where `place(number)`
        says.
        """

        def four(n: Expr, q: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            at = place(q, stmts)

            def one(v: Expr) -> list[Stmt]:
                into = at(v)
                return [Store(into.target, into.indices, Load(self.held, (n, v, lane), DType.F32))]

            return stmts + self.nest.unrolled(QUAD, one, "v")

        return self._each(lane, four)

    def _each(self, lane: Expr, four: Callable[[Expr, Expr], list[Stmt]]) -> list[Stmt]:
        def numbered(n: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            q = self.nest.let(expr.linear((n, self.nest.lanes), lane), stmts, "q")
            return stmts + where(within(q, self.total, self.nest.lanes), four(n, q))

        return self.nest.unrolled(self.each, numbered, "n")


def roles_load(e: Expr) -> Load | None:
    """The one load that an expression makes; None where there are several or none."""
    found = list(expr.loads(e))
    return found[0] if len(found) == 1 else None


def _is_next(load: Load | None, var: Var) -> bool:
    """Whether a load is contiguous along `var`."""
    return load is not None and expr.coefficient(load.indices[0], var) == 1
