"""One register tile of a contraction: its sums, the loops over what is summed, and its epilogue.

Owns what happens inside a tile, given where it starts; which tiles there are is contraction.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from aot.ir import dims, expr
from aot.ir.expr import Expr, Load
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Stmt, Store
from aot.kernels.match.products import loaded
from aot.kernels.nest.borders import Borders, masked, may_miss_taps, without_guard
from aot.kernels.nest.nest import Axis, Values
from aot.kernels.rules.products.product import Body, Place, Tile
from aot.kernels.rules.products.row_vectors import (
    Runs,
    Slide,
    are_in_line,
    are_neighbours,
    by_lanes,
    by_rows,
    by_runs,
    by_slide,
    holds_row_vectors,
    row_vectors_at_a_time,
    runs_of,
    slide_of,
)
from aot.kernels.rules.products.sum_order import (
    HALF_TERMS,
    asks_by_tap,
    axes_of_a_piece,
    by_weight_step,
    has_far_terms,
)
from aot.kernels.rules.products.tile_ends import PlacedTile

# how much of a reduction is converted at a time; a tile's rows of it stay in the nearest cache
STAGED = 256
# vectors of it from which on rows at borders are brought into scratch
LEAST_ASKING = 4


class Terms(NamedTuple):
    """Consecutive terms of a sum along one axis.

    Attributes:
        inner: the axis along which they are, with how many; None of a single one.
        indices: of all other axes of the sum.
        left: what a row has of them.
        start: the first.
    """

    inner: Axis | None
    indices: Values
    left: Expr
    start: Expr = expr.index(0)


class SummedTile(PlacedTile):
    """A placed tile that adds up products in loops over the sum's axes."""

    def __init__(self, tile: Tile, place: Place) -> None:
        super().__init__(tile, place)
        # how many of the innermost axes are summed before a piece's sums join others
        self.piece_axes = 0
        # the contraction that the tile's is a piece of, or is
        self.whole = self.roles

    def _add_piece(self) -> list[Stmt]:
        """Statements that add a piece's sums to the totals, and reset them for the next piece."""
        acc, sums = self.acc, self.pieces
        if sums is None:
            return []

        def add(r: Expr, u: Expr, lane: Expr) -> Stmt:
            more = expr.cast(Load(acc, (r, u, lane), acc.dtype), sums.dtype)
            old = Load(sums, (r, u, lane), sums.dtype)
            return Store(sums, (r, u, lane), expr.add(old, more))

        return self.each_row(add, "u") + self.zeroed(acc, "u")

    # The reduction

    def _sum(self) -> list[Stmt]:
        """The reduction's loops: taps outside, the axis along which packed weights are contiguous
        inside.

        Inside the borders no guard is asked; taps that are outside for all rows are left out.
        """
        roles = self.roles
        indices = roles.origins
        axes = by_weight_step(roles.right, roles.summed)
        if not self.nest.is_gpu and has_far_terms(roles.left, axes):
            # each cache line is read for all taps before others want its place
            axes = [axes[-1], *axes[:-1]]
        self.piece_axes = axes_of_a_piece(axes)
        inner = axes[-1:]
        rows = [roles.rows] if roles.rows is not None else []
        borders = Borders.of(roles.reduce, [a.var for a in (*inner, *rows)])
        self.is_clamped = roles.rows is None or not borders.keep(roles.left, roles.rows.var)
        free = expr.transform(roles.left, without_guard)
        corners = {a.var: (expr.index(0), expr.index(dims.add(a.extent, -1))) for a in axes}
        if roles.rows is not None:
            ends = (self._at(expr.index(r))[roles.rows.var] for r in (0, self.shape.rows - 1))
            corners[roles.rows.var] = (next(ends), next(ends))
        skipped = list(borders.skipped)
        slide = None
        if rows and self.pieces is None:
            slide = slide_of(self.nest, free, rows[0].var, axes, self.acc.dtype)
        others = axes
        body: Callable[[Values], list[Stmt]] | None = None
        if slide is not None:
            # in the same order whether all rows are there and inside, or not
            others = [a for a in axes if a.var != slide.tap]
            axes = [*others, *(a for a in axes if a.var == slide.tap)]
            if self.shape.has_all_rows:
                body = partial(self._slid, slide, free)
            else:
                others = axes
        fast = self._loops(others, indices, free, skipped, body)
        if not borders.asked:
            return fast
        # on a GPU neighbouring lanes would go both ways, and the shader would be twice as long
        if self.nest.is_gpu or not borders.are_linear_in(corners):
            return self._loops(axes, indices, borders.asking(roles.left), skipped)
        may_miss = bool(rows) and may_miss_taps(self.whole.reduce, rows[0].var, self.shape.rows)
        choose = partial(borders.choose, may_miss=may_miss)
        asking = borders.asking(roles.left)
        if asks_by_tap(borders, axes):
            # a tap is outside for some rows only at a tile's ends
            ends_of_rows = {a.var: corners[a.var] for a in rows}

            def either(at: Values) -> list[Stmt]:
                fast, slow = (self._inner(axes[-1:], at, e) for e in (free, asking))
                return choose(ends_of_rows, {**self.values, **at}, fast, slow)

            return self._loops(axes[:-1], indices, free, skipped, either)
        slow = self._loops(axes, indices, asking, skipped)
        return choose(corners, {**self.values, **indices}, fast, slow)

    def _slid(self, slide: Slide, left: Expr, here: Values) -> list[Stmt]:
        """Statements that add the products of all taps of a sliding window."""
        here = {**here, **self._at(expr.index(0))}
        return by_slide(
            *(self.nest, self.shape.rows, slide),
            lambda tap: expr.substitute(left, {**here, slide.tap: tap}),
            lambda tap, of_row: self._product(
                of_row, partial(self._right, {**here, slide.tap: tap, **self.values})
            ),
        )

    def _loops(
        self,
        axes: Sequence[Axis],
        indices: Values,
        left: Expr,
        skipped: Sequence[Expr],
        body: Callable[[Values], list[Stmt]] | None = None,
    ) -> list[Stmt]:
        """Loops over `axes` around `body`, or around products along the last axis. A condition of
        `skipped` is placed in the outermost loop that has all its variables.
        """
        waiting = {a.var for a in axes}
        known = [c for c in skipped if not expr.free_vars(c) & waiting]
        if known:
            left_out = [c for c in skipped if c not in known]
            held = expr.all_of(expr.substitute(c, {**self.values, **indices}) for c in known)
            assert held is not None
            return [If(held, tuple(self._loops(axes, indices, left, left_out, body)))]
        inside = 0 if body is None else 1
        is_whole = self.pieces is not None and len(axes) + inside == self.piece_axes
        ends = self._add_piece() if is_whole else []
        if len(axes) > 1 - inside:
            axis = axes[0]
            loop = self.nest.serial(
                axis.extent,
                lambda k: self._loops(axes[1:], {**indices, axis.var: k}, left, skipped, body),
                "k",
            )
            return loop + ends
        return (self._inner(axes, indices, left) if body is None else body(indices)) + ends

    def _inner(self, axes: Sequence[Axis], indices: Values, left: Expr) -> list[Stmt]:
        """Statements that add the products along the only axis in `axes`, or of a single step
        without one."""
        is_long = self.pieces is not None and self.piece_axes == 0
        ends = self._add_piece() if is_long else []
        return self._terms(Terms(axes[0] if axes else None, indices, left), ends)

    def _terms(self, terms: Terms, ends: Sequence[Stmt]) -> list[Stmt]:
        """Statements that add the products of all terms along an axis; with `ends`, in pieces that
        each end with them."""
        inner = terms.inner
        if inner is None or not ends:
            return self._steps(terms)

        def piece(start: Expr, count: dims.Dim) -> list[Stmt]:
            return [*self._steps(terms._replace(inner=Axis(inner.var, count), start=start)), *ends]

        return self._pieces(inner.extent, HALF_TERMS, piece)

    def _pieces(
        self, extent: dims.Dim, size: int, piece: Callable[[Expr, dims.Dim], list[Stmt]]
    ) -> list[Stmt]:
        """`piece(start, count)` for pieces of `size`, then for the tail of an extent."""
        whole, rest = dims.floor_divide(extent, size), dims.modulo(extent, size)
        stmts = self.nest.serial(whole, lambda n: piece(expr.mul(n, expr.index(size)), size), "kb")
        if rest != 0:
            stmts += piece(expr.index(dims.multiply(whole, size)), rest)
        return stmts

    def _steps(self, terms: Terms) -> list[Stmt]:
        """Statements that add the products of these terms to the tile's sums."""
        inner, indices, left, start = terms

        def scalar(r: Expr, here: Values) -> Expr:
            return expr.substitute(left, {**here, **self._at(r)})

        def step(here: Values, of_row: Callable[[Expr], Expr] | None = None) -> list[Stmt]:
            return self._product(
                of_row or (lambda r: scalar(r, here)),
                lambda u, lane: self._right({**here, **self.values}, u, lane),
            )

        def together(here: Values) -> list[Stmt]:
            if not self._has_rows_together(left):
                return step(here)
            rows, dtype = self.shape.rows, self.acc.dtype
            return by_rows(
                self.nest, rows, dtype, lambda r: scalar(r, here), lambda of_row: step(here, of_row)
            )

        if inner is None:
            return together(indices)

        def at(k: Expr) -> Values:
            return {**indices, inner.var: expr.add(start, k)}

        if self._has_row_vectors(inner, left):
            shape = self.shape
            return by_lanes(
                self.nest,
                (shape.rows, inner.extent),
                self.acc.dtype,
                lambda r, k: scalar(r, at(k)),
                lambda k, of_row: step(at(k), of_row),
                row_vectors_at_a_time(self.nest, shape.rows, shape.columns, inner.extent),
            )
        if (runs := self._runs(inner, left)) is not None:
            return by_runs(
                *(self.nest, runs, (self.shape.rows, inner.extent), self.acc.dtype),
                lambda r, place: expr.substitute(runs.left, {**indices, **place, **self._at(r)}),
                lambda k, of_row: step(at(k), of_row),
            )
        steps = self._steps_together(inner)
        if self._has_rows_together(left) and dims.modulo(inner.extent, 2) == 0:
            steps = 2  # what a loop costs beside its products is a sixth
        return self._in_order(inner.extent, steps, lambda k: together(at(k)))

    def _in_order(self, extent: dims.Dim, steps: int, body: Body) -> list[Stmt]:
        """A loop over `extent` steps of `body(k)`, with `steps` unrolled per iteration."""
        number = dims.floor_divide(extent, steps)
        return self.nest.serial(number, lambda k: self._together(k, steps, body), "k")

    def _together(self, number: Expr, steps: int, body: Body) -> list[Stmt]:
        """`steps` steps of a loop, unrolled as its iteration `number`."""
        first = expr.mul(number, expr.index(steps))
        return self.nest.unrolled(steps, lambda j: body(expr.add(first, j)), "j")

    def _has_rows_together(self, left: Expr) -> bool:
        """Whether the scalars of neighbouring rows are loaded a vector at a time, as all rows
        exist.
        """
        rows, shape = self.roles.rows, self.shape
        if rows is None or not shape.has_all_rows or shape.rows % self.nest.lanes != 0:
            return False
        return are_neighbours(self.nest, left, rows.var, self.acc.dtype)

    def _has_row_vectors(self, inner: Axis, left: Expr) -> bool:
        """Whether a row's scalars lie side by side along `inner`, and registers are left for a
        vector of each row beside the sums.
        """
        if not are_in_line(self.nest, left, inner, self.acc.dtype):
            return False
        return holds_row_vectors(self.nest, self.shape.rows, self.shape.columns)

    def _runs(self, inner: Axis, left: Expr) -> Runs | None:
        """The runs of contiguous row scalars along `inner`, if registers can hold them; else
        None."""
        if self.nest.is_gpu or self.pieces is not None:
            return None
        if not holds_row_vectors(self.nest, self.shape.rows, self.shape.columns):
            return None
        return runs_of(self.nest, left, inner, self.acc.dtype)

    def _steps_together(self, inner: Axis) -> int:
        """The unroll factor of the innermost loop: a divisor of its extent."""
        return 1

    def _product(
        self, left: Callable[[Expr], Expr], right: Callable[[Expr, Expr], Expr]
    ) -> list[Stmt]:
        """Statements that add one outer product: each row's scalar `left(row)` times the columns'
        vectors `right(chunk, lane)`."""
        nest, acc = self.nest, self.acc
        if not self._is_masked or nest.is_gpu or self.shape.rows == 1:
            return self.outer_product(left, right)
        # under a mask, which is dear where it takes branches: once for all rows
        held = nest.builder.scratch("weights", acc.dtype, acc.shape[1:])
        before = self.each_chunk(lambda u, lane: Store(held, (u, lane), right(u, lane)))
        return before + self.outer_product(left, lambda u, lane: Load(held, (u, lane), held.dtype))

    def _right(self, values: Values, u: Expr, lane: Expr) -> Expr:
        """The weight in lane `lane` of chunk `u`, found by panel if weights are packed; 0 where
        masked."""
        columns = self.roles.columns
        number, within = self._panel(u, lane)
        at = self._column(u, lane)
        right = self.roles.weight_at(self.panel, number, within, {**values, columns.var: at})
        if not self._is_masked:
            return right
        return masked(right, expr.binary("lt", at, expr.index(columns.extent)))


class Placed(SummedTile):
    """A CPU tile that reads its factors from memory, or stages them in scratch where that saves
    converting and guarding single scalars."""

    def _terms(self, terms: Terms, ends: Sequence[Stmt]) -> list[Stmt]:
        inner, indices, left, _ = terms
        if inner is not None and any(sides := self._staged_sides(inner, left)):
            return self._staged(inner, sides, indices, left, ends)
        return super()._terms(terms, ends)

    def _staged_sides(self, inner: Axis, left: Expr) -> tuple[bool, bool]:
        """(left, right): which factors to stage in scratch. The left one, if it is read in order
        and converted or guarded, which is slow for single scalars; the right one, if its conversion
        takes several instructions and would leave the tile too few registers.
        """
        lanes, right = self.nest.lanes, self.roles.weight
        vectors = inner.extent // lanes if isinstance(inner.extent, int) else LEAST_ASKING
        if lanes == 1 or vectors == 0:
            return False, False
        read = loaded(left)
        asks = read is not None and read.guard is not None and vectors >= LEAST_ASKING
        # rows whose scalars are lanes are asked for once in a vector of steps
        asks = asks and not self._has_row_vectors(inner, left)
        return (
            read is not None
            and (read.dtype is not self.acc.dtype or asks)
            and expr.coefficient(read.indices[0], inner.var) == 1,
            right.dtype is DType.F16 and not self.nest.target.converts_half,
        )

    def _staged(
        self,
        inner: Axis,
        sides: tuple[bool, bool],
        indices: Values,
        left: Expr,
        ends: Sequence[Stmt],
    ) -> list[Stmt]:
        """The reduction in pieces: each piece is converted into scratch, multiplied, and followed
        by `ends`."""
        nest, shape = self.nest, self.shape
        size = min(STAGED, inner.extent) if isinstance(inner.extent, int) else STAGED
        shapes = {"left": (shape.rows, size), "right": (size, shape.chunks, shape.width)}
        lefts, rights = (
            self.scratch.get(name, self.acc.dtype, shapes[name]) if is_wanted else None
            for name, is_wanted in zip(shapes, sides, strict=True)
        )

        def piece(start: Expr, count: dims.Dim) -> list[Stmt]:
            def at(k: Expr) -> Values:
                return {**indices, inner.var: expr.add(start, k)}

            def left_of(r: Expr, k: Expr) -> Expr:
                return expr.substitute(left, {**at(k), **self._at(r)})

            def right_of(k: Expr) -> Callable[[Expr, Expr], Expr]:
                return lambda u, lane: self._right({**at(k), **self.values}, u, lane)

            stmts: list[Stmt] = []
            if lefts is not None:
                stmts += nest.serial(
                    shape.rows,
                    lambda r: nest.vectors(count, lambda k: [Store(lefts, (r, k), left_of(r, k))]),
                    "r",
                )
            if rights is not None:
                stmts += nest.serial(
                    count,
                    lambda k: self.each_chunk(
                        lambda u, lane: Store(rights, (k, u, lane), right_of(k)(u, lane))
                    ),
                    "k",
                )

            def step(k: Expr) -> list[Stmt]:
                return self._product(
                    lambda r: left_of(r, k) if lefts is None else Load(lefts, (r, k), lefts.dtype),
                    right_of(k)
                    if rights is None
                    else lambda u, lane: Load(rights, (k, u, lane), rights.dtype),
                )

            return [*stmts, *nest.serial(count, step, "k"), *ends]

        return self._pieces(inner.extent, size, piece)
