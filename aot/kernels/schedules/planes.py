"""Contractions whose rows are neighbours in memory, as those of planes are.

Register tiles as contraction.py has them, with the roles of both sides changed: lanes go along the
rows, and the weights are the scalars. What some rows have for all of the sum is first brought into
scratch, where it serves the tiles of several columns: in its own memory neighbours along the sum
may lie so far apart that a cache holds few of them. CPU only. Chooses no tile sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from aot.ir import dims, expr
from aot.ir.expr import Expr, Load, Var
from aot.ir.schedule import StageSchedule
from aot.kernels.ir.nodes import For, If, LoopKind, Scratch, Space, Stmt, Store
from aot.kernels.lower.nest import Axis, Nest, Output
from aot.kernels.lower.tiles import ReusedScratch, Shape
from aot.kernels.schedules.contraction import merged_axes
from aot.kernels.schedules.contraction_axes import ContractionAxes, Values
from aot.kernels.schedules.products import Placed, Tile
from aot.kernels.schedules.sum_order import by_weight_step

# columns that rows brought into scratch serve at least, so that this costs little beside them
SERVED = 128


def schedule_planes(
    nest: Nest, output: Output, plan: StageSchedule, panel: int
) -> tuple[Stmt, ...] | None:
    """Tiles of `plan.columns` neighbours by `plan.rows` of what the contraction calls columns; None
    where its rows are no neighbours, once the ops around it are inlined."""
    found = merged_axes(output)
    if found is None:
        return None
    output, roles = found
    swapped = _swapped(output, roles)
    return None if swapped is None else _Tiles(nest, output, swapped, plan, panel).build()


def _swapped(output: Output, roles: ContractionAxes) -> ContractionAxes | None:
    """The contraction with its sides exchanged, where lanes may go along its rows."""
    lane = roles.rows
    if lane is None or expr.coefficient(output.address, lane.var) is None:
        return None
    found: Load | None = None
    for load in expr.loads(roles.left):
        step = expr.coefficient(load.indices[0], lane.var)
        if load.guard is not None or step not in (0, 1):
            return None
        found = load if step == 1 else found
    if found is None:
        return None
    rows = roles.columns
    return ContractionAxes(roles.reduce, roles.right, roles.left, found, rows, lane, roles.outer)


class _Tiles:
    """The tiles of such a contraction and the loops around them."""

    def __init__(
        self, nest: Nest, output: Output, roles: ContractionAxes, plan: StageSchedule, panel: int
    ) -> None:
        assert roles.rows is not None
        self.nest = nest
        self.output = output
        self.roles = roles
        self.panel = panel
        self.scratch = ReusedScratch(nest)
        self.extent = roles.rows.extent
        self.rows = min(plan.rows, self.extent) if isinstance(self.extent, int) else plan.rows
        self.chunks = max(1, plan.columns // nest.lanes)
        self.tiles = dims.ceil_divide(self.extent, self.rows)
        several = -(-SERVED // self.rows)
        self.together = min(several, self.tiles) if isinstance(self.tiles, int) else several
        self.staged = _Staged.of(nest, roles, self.chunks) if self.together > 1 else None

    def build(self) -> tuple[Stmt, ...]:
        roles, nest = self.roles, self.nest
        size = self.chunks * nest.lanes
        columns = Axis(nest.builder.var("nt"), dims.ceil_divide(roles.columns.extent, size))
        group = nest.builder.var("mg")
        terms = dims.product([n for _, n in roles.reduce.axes])
        work = dims.multiply(terms, self.together * (self.rows * size // 16 + 1))

        def body(values: Values) -> list[Stmt]:
            start = expr.mul(values[columns.var], expr.index(self.chunks))
            return self._columns(values, start, expr.mul(group, expr.index(self.together)))

        inside = nest.grid([*roles.outer, columns], body, work, first=0)
        groups = dims.ceil_divide(self.tiles, self.together)
        return (For(group, groups, LoopKind.WORKGROUP, inside, axis=1),)

    def _columns(self, values: Values, start: Expr, tile: Expr) -> list[Stmt]:
        """The columns from `start` on, counted in vectors, in the rows of the tiles from `tile` on
        that one workgroup has."""
        staged, full = self.staged, self._tile(has_all=True)
        if staged is None:

            def plain(first: Expr) -> list[Stmt]:
                return self._either(
                    start, lambda has_all: self._tile(has_all).build(values, first, start)
                )

            return self._rows(tile, plain)

        def placed(has_all: bool, first: Expr) -> _StagedTile:
            return _StagedTile(full, staged, has_all, values, first, start)

        def one(first: Expr) -> list[Stmt]:
            stored = self._either(start, lambda has_all: placed(has_all, first).finish())
            return placed(True, first).sums() + stored

        filled = self._either(start, lambda has_all: placed(has_all, expr.index(0)).fill())
        return filled + self._rows(tile, one)

    def _tile(self, has_all: bool) -> Tile:
        has_all_rows = dims.modulo(self.extent, self.rows) == 0
        shape = Shape(self.rows, self.chunks, self.nest.lanes, has_all_rows, has_all)
        return Tile(self.nest, self.output, self.roles, self.panel, shape, self.scratch)

    def _either(self, start: Expr, build: Callable[[bool], list[Stmt]]) -> list[Stmt]:
        """What `build` makes of whether all columns from `start` on are there."""
        extent, lanes = self.roles.columns.extent, self.nest.lanes
        if dims.modulo(extent, self.chunks * lanes) == 0:
            return build(True)
        end = expr.mul(expr.add(start, expr.index(self.chunks)), expr.index(lanes))
        are_there = expr.binary("le", end, expr.index(extent))
        return [If(are_there, tuple(build(True)), tuple(build(False)))]

    def _rows(self, tile: Expr, build: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        """The tiles of rows from number `tile` on that one workgroup has."""

        def one(n: Expr) -> list[Stmt]:
            number = expr.add(tile, n)
            stmts = build(expr.mul(number, expr.index(self.rows)))
            if dims.modulo(self.tiles, self.together) == 0:
                return stmts
            return [If(expr.binary("lt", number, expr.index(self.tiles)), tuple(stmts))]

        return self.nest.serial(self.together, one, "mt")


class _Staged:
    """What a tile's columns have for all of the sum, in scratch."""

    def __init__(self, scratch: Scratch, axes: Sequence[Axis]) -> None:
        self.scratch = scratch
        self.axes = axes

    @staticmethod
    def of(nest: Nest, roles: ContractionAxes, chunks: int) -> _Staged | None:
        """The scratch of a contraction; None where it may not have as much."""
        axes = [Axis(v, n) for v, n in roles.reduce.axes if n != 1]
        count = dims.product([a.extent for a in axes])
        dtype = roles.reduce.dtype
        most = nest.target.scratch_bytes // (chunks * nest.lanes * dtype.bytes)
        if not isinstance(count, int) or count > most:
            return None
        shape = count, chunks, nest.lanes
        made = nest.builder.scratch("staged", dtype, shape, Space.WORKGROUP)
        return _Staged(made, by_weight_step(roles.left, axes))

    def place(self, values: Mapping[Var, Expr]) -> Expr:
        """Where in scratch the vectors of a term are."""
        at = expr.index(0)
        for axis in self.axes:
            at = expr.add(expr.mul(at, expr.index(axis.extent)), values[axis.var])
        return at


class _StagedTile(Placed):
    """A tile whose columns are in scratch."""

    def __init__(
        self, tile: Tile, staged: _Staged, has_all: bool, values: Values, first: Expr, start: Expr
    ) -> None:
        super().__init__(tile, values, first, start)
        self.shape = replace(tile.shape, has_all_columns=has_all)
        self.staged = staged

    def fill(self) -> list[Stmt]:
        """Brings the columns into scratch."""
        scratch = self.staged.scratch

        def terms(axes: Sequence[Axis], indices: Values) -> list[Stmt]:
            if not axes:
                here = {**indices, **self.values}
                place, loaded = self.staged.place(indices), super(_StagedTile, self)._right
                return self._each_chunk(
                    lambda u, lane: Store(scratch, (place, u, lane), loaded(here, u, lane))
                )
            axis, *others = axes
            return self.nest.serial(
                axis.extent, lambda k: terms(others, {**indices, axis.var: k}), "k"
            )

        known = {v: expr.index(0) for v, n in self.roles.reduce.axes if n == 1}
        return terms(self.staged.axes, known)

    def sums(self) -> list[Stmt]:
        """All of the sum, in registers."""
        return self._zeros() + self._sum()

    def finish(self) -> list[Stmt]:
        """What becomes of it."""
        return self._finish()

    def _right(self, values: Values, u: Expr, lane: Expr) -> Expr:
        scratch = self.staged.scratch
        return Load(scratch, (self.staged.place(values), u, lane), scratch.dtype)

    def _staged_sides(self, inner: Axis, left: Expr) -> tuple[bool, bool]:
        return False, False
