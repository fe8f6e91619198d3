"""One register tile of a contraction: its sums, the loops over what is summed, and its epilogue.

Owns what happens inside a tile, given where it starts; which tiles there are is contraction.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from aot.ir import dims, expr
from aot.ir.expr import Binary, Cast, Expr, Load, Reduce, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Scratch, Stmt, Store
from aot.kernels.lower.borders import Borders, masked, without_guard
from aot.kernels.lower.nest import Axis, Nest, Output
from aot.kernels.lower.tiles import ReusedScratch, Shape, is_long, packs_bytes
from aot.kernels.schedules.row_vectors import (
    Slide,
    are_in_line,
    are_neighbours,
    by_lanes,
    by_rows,
    by_slide,
    holds_row_vectors,
    slide_of,
)
from aot.kernels.schedules.sum_order import (
    HALF_TERMS,
    asks_by_tap,
    axes_of_a_piece,
    by_weight_step,
    has_far_terms,
    is_piece,
    plus_product,
)

# how much of a reduction is converted at a time; a tile's rows of it stay in the nearest cache
STAGED = 256
# vectors of a single row whose epilogue is written out, so that its sums stay in registers
MOST_UNROLLED = 4
# rows below which an element is stored after the other where they are neighbours in the result
LEAST_TRANSPOSED = 4

Values = dict[Var, Expr]
Body = Callable[[Expr], list[Stmt]]


@dataclass(frozen=True)
class ContractionAxes:
    """What each axis of a kernel's contraction does, once the ops around it are inlined.

    Attributes:
        weight: the load in `right`, which is it or a conversion of it.
        rows: the innermost axis that only `left` varies along, or None.
        columns: the axis that only `right` varies along, in lanes.
        outer: the other axes, outermost first.
    """

    reduce: Reduce
    left: Expr
    right: Expr
    weight: Load
    rows: Axis | None
    columns: Axis
    outer: tuple[Axis, ...]

    @property
    def is_packed(self) -> bool:
        """Whether the weights lie in panels of columns."""
        return expr.coefficient(self.weight.indices[0], self.columns.var) is None

    @property
    def has_factors(self) -> bool:
        """Whether the right side also reads what has an element for each column, as scales."""
        loads = (e for e in expr.loads(self.right) if e is not self.weight)
        return any(expr.coefficient(e.indices[0], self.columns.var) not in (0, None) for e in loads)

    def weight_at(self, panel: int, number: Expr, within: Expr, values: Values) -> Expr:
        """The right side at place `within` of panel `number`, with other variables' values."""
        return at_splits(self.right, {(self.columns.var, panel): (number, within)}, values)


def at_splits(e: Expr, splits: Mapping[tuple[Var, int], tuple[Expr, Expr]], values: Values) -> Expr:
    """`e`, where a variable divided by a size becomes the number of the part that it is in, and the
    rest its place there, as `splits` says of both; other variables have `values`."""

    def rewrite(x: Expr) -> Expr | None:
        if isinstance(x, Binary) and isinstance(x.a, Var):
            size = expr.dim_of(x.b)
            split = splits.get((x.a, size)) if isinstance(size, int) else None
            if split is not None and x.op in ("floordiv", "floormod"):
                return split[x.op == "floormod"]
        return values.get(x) if isinstance(x, Var) else None

    return expr.transform(e, rewrite)


def loaded(e: Expr) -> Load | None:
    """The load that `e` is, or is a conversion of."""
    while isinstance(e, Cast):
        e = e.a
    return e if isinstance(e, Load) else None


class Tile:
    """The statements of one register tile."""

    def __init__(
        self,
        nest: Nest,
        output: Output,
        roles: ContractionAxes,
        panel: int,
        shape: Shape,
        scratch: ReusedScratch,
    ) -> None:
        self.nest = nest
        self.output = output
        self.roles = roles
        self.panel = panel
        self.shape = shape
        self.scratch = scratch
        self.acc: Scratch = nest.builder.scratch(
            "acc", roles.reduce.dtype, (shape.rows, shape.chunks, self.lanes)
        )
        # the sums of pieces, where `acc` has no more than a piece's
        self.pieces: Scratch | None = None
        if roles.reduce.dtype is DType.F16 and not is_piece([n for _, n in roles.reduce.axes]):
            self.pieces = scratch.get("pieces", DType.F32, self.acc.shape)

    @property
    def lanes(self) -> int:
        """What runs side by side."""
        return self.shape.width

    def build(self, values: Values, first: Expr, start: Expr) -> list[Stmt]:
        """The tile whose first row is `first` and whose first column `start` times the width."""
        return Placed(self, values, first, start).build()


class Placed:
    """A tile at its place."""

    def __init__(self, tile: Tile, values: Values, first: Expr, start: Expr) -> None:
        self.nest, self.output, self.roles = tile.nest, tile.output, tile.roles
        self.panel, self.shape, self.scratch = tile.panel, tile.shape, tile.scratch
        self.acc, self.pieces = tile.acc, tile.pieces
        self.values = values
        self.first = first
        self.start = start
        # whether rows past the last one read that one again; else guards keep them from reading
        self.is_clamped = True
        # how many of the innermost axes are summed before a piece's sums join others
        self.piece_axes = 0

    def build(self) -> list[Stmt]:
        return self._zeros() + self._sum() + self._finish()

    def _zeros(self) -> list[Stmt]:
        """Sums of nothing."""
        stmts: list[Stmt] = []
        for scratch in (self.acc, self.pieces):
            if scratch is not None:
                stmts += self._each_row(partial(store_zero, scratch), "u")
        return stmts

    def _add_piece(self) -> list[Stmt]:
        """Adds the sums of a piece to those of others, and begins the next one."""
        acc, sums = self.acc, self.pieces
        if sums is None:
            return []

        def add(r: Expr, u: Expr, lane: Expr) -> Stmt:
            more = expr.cast(Load(acc, (r, u, lane), acc.dtype), sums.dtype)
            old = Load(sums, (r, u, lane), sums.dtype)
            return Store(sums, (r, u, lane), expr.add(old, more))

        return self._each_row(add, "u") + self._each_row(partial(store_zero, acc), "u")

    def _each_row(self, body: Callable[[Expr, Expr, Expr], Stmt], name: str = "r") -> list[Stmt]:
        """`body(row, chunk, lane)` for all of the tile, in registers."""
        return self.nest.unrolled(
            self.shape.rows, lambda r: self._each_chunk(lambda u, lane: body(r, u, lane)), name
        )

    def _each_chunk(self, body: Callable[[Expr, Expr], Stmt]) -> list[Stmt]:
        """`body(chunk, lane)` for the vectors of the columns."""
        nest, shape = self.nest, self.shape
        return nest.unrolled(shape.chunks, lambda u: self._each_lane(lambda lane: [body(u, lane)]))

    def _each_lane(self, body: Body) -> list[Stmt]:
        """`body(lane)` for the lanes of a vector."""
        return [self.nest.spread(self.shape.width, body)]

    # The reduction

    def _sum(self) -> list[Stmt]:
        """The reduction: taps outside, the axis that packed weights run along inside.

        Inside the borders no guard is asked; taps that are outside for all rows are left out.
        """
        roles = self.roles
        axes = [Axis(v, n) for v, n in roles.reduce.axes]
        indices: Values = {a.var: expr.index(0) for a in axes if a.extent == 1}
        axes = [a for a in axes if a.extent != 1]
        axes = by_weight_step(roles.right, axes)
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
        if rows and self.shape.has_all_rows and self.pieces is None:
            slide = slide_of(self.nest, free, rows[0].var, axes, self.acc.dtype)
        body = None if slide is None else partial(self._slid, slide, free)
        others = [a for a in axes if slide is None or a.var != slide.tap]
        fast = self._loops(others, indices, free, skipped, body)
        if not borders.asked:
            return fast
        # on a GPU neighbouring lanes would go both ways, and the shader would be twice as long
        if self.nest.is_gpu or not borders.are_linear_in(corners):
            return self._loops(axes, indices, borders.asking(roles.left), skipped)
        asking = borders.asking(roles.left)
        if asks_by_tap(borders, axes):
            # a tap is outside for some rows only at a tile's ends
            ends_of_rows = {a.var: corners[a.var] for a in rows}

            def either(at: Values) -> list[Stmt]:
                is_inside = borders.inside(ends_of_rows, {**self.values, **at})
                assert is_inside is not None
                fast, slow = (tuple(self._inner(axes[-1:], at, e)) for e in (free, asking))
                return [If(is_inside, fast, slow)]

            return self._loops(axes[:-1], indices, free, skipped, either)
        inside = borders.inside(corners, {**self.values, **indices})
        assert inside is not None
        slow = self._loops(axes, indices, asking, skipped)
        return [If(inside, tuple(fast), tuple(slow))]

    def _slid(self, slide: Slide, left: Expr, here: Values) -> list[Stmt]:
        """The products of all taps along which rows slide."""
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
        """Loops over `axes`; each condition of `skipped` stands where what it asks of is known.
        With a `body` that is inside of all of them, else products along the last one are."""
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
        """The products along the only one of `axes`, or of one step where there is none."""
        is_long = self.pieces is not None and self.piece_axes == 0
        ends = self._add_piece() if is_long else []
        if axes and any(sides := self._staged_sides(axes[0], left)):
            return self._staged(axes[0], sides, indices, left, ends)
        if not axes or not is_long:
            return self._steps(axes[0] if axes else None, indices, left)
        return self._pieces(
            axes[0].extent,
            HALF_TERMS,
            lambda start, count: self._steps(Axis(axes[0].var, count), indices, left, start) + ends,
        )

    def _pieces(
        self, extent: dims.Dim, size: int, piece: Callable[[Expr, dims.Dim], list[Stmt]]
    ) -> list[Stmt]:
        """`piece(start, count)` for pieces of `size` and for what is left of an extent."""
        whole, rest = dims.floor_divide(extent, size), dims.modulo(extent, size)
        stmts = self.nest.serial(whole, lambda n: piece(expr.mul(n, expr.index(size)), size), "kb")
        if rest != 0:
            stmts += piece(expr.index(dims.multiply(whole, size)), rest)
        return stmts

    def _steps(
        self,
        inner: Axis | None,
        indices: Values,
        left: Expr,
        start: Expr = expr.index(0),  # noqa: B008
    ) -> list[Stmt]:
        """The products of so many terms of the innermost axis as `inner` has, from `start` on."""

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
            return by_lanes(
                self.nest,
                (self.shape.rows, inner.extent),
                self.acc.dtype,
                lambda r, k: scalar(r, at(k)),
                lambda k, of_row: step(at(k), of_row),
            )
        steps = self._steps_together(inner)
        if self._has_rows_together(left) and dims.modulo(inner.extent, 2) == 0:
            steps = 2  # what a loop costs beside its products is a sixth
        return self._in_order(inner.extent, steps, lambda k: together(at(k)))

    def _in_order(self, extent: dims.Dim, steps: int, body: Body) -> list[Stmt]:
        """`body(k)` for each step, as many written out in a loop as `steps` says."""
        number = dims.floor_divide(extent, steps)
        return self.nest.serial(number, lambda k: self._together(k, steps, body), "k")

    def _together(self, number: Expr, steps: int, body: Body) -> list[Stmt]:
        """Some steps, as the loop's iteration `number`."""
        first = expr.mul(number, expr.index(steps))
        return self.nest.unrolled(steps, lambda j: body(expr.add(first, j)), "j")

    def _has_rows_together(self, left: Expr) -> bool:
        """Whether the scalars of neighbouring rows are loaded a vector at a time: all are there."""
        rows, shape = self.roles.rows, self.shape
        if rows is None or not shape.has_all_rows or shape.rows % self.nest.lanes != 0:
            return False
        return are_neighbours(self.nest, left, rows.var, self.acc.dtype)

    def _has_row_vectors(self, inner: Axis, left: Expr) -> bool:
        """Whether the scalars of a row lie side by side along `inner`, and registers hold a vector
        of each row beside the sums."""
        if not are_in_line(self.nest, left, inner, self.acc.dtype):
            return False
        return holds_row_vectors(self.nest, self.shape.rows, self.shape.columns)

    def _steps_together(self, inner: Axis) -> int:
        """Steps of the innermost loop that are written out: a divisor of its extent."""
        return 1

    def _product(
        self, left: Callable[[Expr], Expr], right: Callable[[Expr, Expr], Expr]
    ) -> list[Stmt]:
        """One outer product: each row's scalar `left(row)` times the columns' vectors, of
        `right(chunk, lane)`."""
        nest, acc, shape = self.nest, self.acc, self.shape
        before: list[Stmt] = []
        columns = right
        if self._is_masked and not nest.is_gpu and shape.rows != 1:
            # under a mask, which is dear where it takes branches: once for all rows
            held = nest.builder.scratch("weights", acc.dtype, acc.shape[1:])

            def columns(u: Expr, lane: Expr) -> Expr:
                return Load(held, (u, lane), held.dtype)

            before = self._each_chunk(lambda u, lane: Store(held, (u, lane), right(u, lane)))

        def one_row(r: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            scalar = nest.let(left(r), stmts, "a")

            def one(u: Expr, lane: Expr) -> Stmt:
                old = Load(acc, (r, u, lane), acc.dtype)
                return Store(acc, (r, u, lane), plus_product(old, scalar, columns(u, lane)))

            return stmts + self._each_chunk(one)

        return before + nest.unrolled(shape.rows, one_row, "r")

    def _staged_sides(self, inner: Axis, left: Expr) -> tuple[bool, bool]:
        """Which sides to convert into scratch before they are multiplied: a left one that is in
        order, because a scalar at a time is slow; a right one where conversions are no instructions
        and would leave the tile no registers."""
        lanes, right = self.nest.lanes, self.roles.weight
        is_short = isinstance(inner.extent, int) and inner.extent < lanes
        if self.nest.is_gpu or lanes == 1 or is_short:
            return False, False
        read = loaded(left)
        return (
            read is not None
            and read.dtype is not self.acc.dtype
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
        """The reduction in pieces, each converted into scratch before its outer products; `ends`
        follow each."""
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
                    lambda k: self._each_chunk(
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

    # Where things are

    def _at(self, r: Expr, *, is_clamped: bool = True) -> Values:
        """The indices around the reduction, for row `r` of the tile."""
        is_clamped = is_clamped and self.is_clamped
        at = self.shape.row_values(self.roles.rows, self.first, r, is_clamped=is_clamped)
        return {**self.values, **at}

    @property
    def _moves_back(self) -> bool:
        """Whether a tile that would end past the last column begins earlier, so that no weight is
        masked, and stores what the tile before it does not."""
        shape, extent = self.shape, self.roles.columns.extent
        if self.nest.is_gpu or self.roles.is_packed or shape.has_all_columns:
            return False
        least, _ = dims.bounds(extent, dims.NO_BOUNDS)
        return least is not None and least >= shape.columns

    @property
    def _is_masked(self) -> bool:
        """Whether lanes may stand where there are no weights, or no factors of them."""
        if self.shape.has_all_columns or self._moves_back:
            return False
        return not self.roles.is_packed or self.roles.has_factors

    def _own_column(self, u: Expr, lane: Expr) -> Expr:
        """As `_column`, of a tile that stands where it would if there were columns enough."""
        return expr.add(expr.mul(expr.add(self.start, u), expr.index(self.shape.width)), lane)

    def _column(self, u: Expr, lane: Expr) -> Expr:
        """The column of lane `lane` of chunk `u`."""
        if not self._moves_back:
            return self._own_column(u, lane)
        zero, shape = expr.index(0), self.shape
        last = expr.index(dims.add(self.roles.columns.extent, -shape.columns))
        first = expr.binary("min", self._own_column(zero, zero), last)
        return expr.add(first, expr.add(expr.mul(u, expr.index(shape.width)), lane))

    def _is_stored(self, u: Expr, lane: Expr) -> Expr:
        """Whether a lane's column is there, and this tile stores it."""
        at = self._column(u, lane)
        if self._moves_back:
            return expr.binary("ge", at, self._own_column(expr.index(0), expr.index(0)))
        return expr.binary("lt", at, expr.index(self.roles.columns.extent))

    def _panel(self, u: Expr, lane: Expr) -> tuple[Expr, Expr]:
        """The panel of that column, and where it is in the panel."""
        width, panel = self.shape.width, expr.index(self.panel)
        if width == self.panel:
            number, within = expr.add(self.start, u), lane
        elif self.nest.is_gpu:
            whole = self._column(u, lane)
            number = expr.binary("floordiv", whole, panel)
            within = expr.binary("floormod", whole, panel)
        else:  # a vector never straddles a panel
            start = self._column(u, expr.index(0))
            number = expr.binary("floordiv", start, panel)
            within = expr.add(expr.binary("floormod", start, panel), lane)
        if self._covers():
            return number, within
        # a tile past the last panel reads that one again; its lanes aren't stored
        last = expr.index(dims.add(self.roles.columns.extent, -1))
        return expr.binary("min", number, expr.binary("floordiv", last, panel)), within

    def _covers(self) -> bool:
        """Whether all panels of a tile are there."""
        shape, extent = self.shape, self.roles.columns.extent
        padded = dims.multiply(dims.ceil_divide(extent, self.panel), self.panel)
        return (
            shape.has_all_columns
            or dims.modulo(padded, shape.columns) == 0
            or (shape.chunks == 1 and self.panel % shape.width == 0)
        )

    def _right(self, values: Values, u: Expr, lane: Expr) -> Expr:
        """The weight of lane `lane` of chunk `u`, panel by panel where it is packed."""
        columns = self.roles.columns
        number, within = self._panel(u, lane)
        at = self._column(u, lane)
        right = self.roles.weight_at(self.panel, number, within, {**values, columns.var: at})
        if not self._is_masked:
            return right
        return masked(right, expr.binary("lt", at, expr.index(columns.extent)))

    # What becomes of the sums

    def _finish(self) -> list[Stmt]:
        """Epilogue and stores of the tile.

        On a CPU the registers go through memory, so that one copy of the epilogue serves all
        rows: unrolled it would be most of a kernel's code.
        """
        nest, acc, shape = self.nest, self.acc, self.shape
        tile, stored = self.pieces, list[Stmt]()
        if tile is None:
            if nest.is_gpu or (shape.rows == 1 and shape.chunks <= MOST_UNROLLED):
                return nest.unrolled(
                    shape.rows, lambda r: self._finish_row(r, acc, nest.unrolled), "r"
                )
            vectors = (1, shape.columns) if self._packs_bytes else acc.shape[1:]
            tile = memory = self.scratch.get("tile", acc.dtype, (shape.rows, *vectors))

            def store(r: Expr, u: Expr, lane: Expr) -> Stmt:
                total = Load(acc, (r, u, lane), acc.dtype)
                if self._packs_bytes:
                    u, lane = expr.index(0), expr.add(expr.mul(u, expr.index(shape.width)), lane)
                return Store(memory, (r, u, lane), total)

            stored = self._each_row(store)
        loop = nest.serial if is_long(self.output.values, self.roles.reduce) else nest.unrolled
        by_row = nest.serial(shape.rows, lambda r: self._finish_row(r, tile, loop), "r")
        if loop is nest.serial or not self._has_rows_side_by_side():
            return stored + by_row
        return stored + self._finish_blocks(tile, by_row)

    @property
    def _packs_bytes(self) -> bool:
        """Whether all vectors of a row are finished as one, whose bytes are packed together."""
        return self.pieces is None and packs_bytes(self.nest, self.output, self.roles.columns.var)

    def _has_rows_side_by_side(self) -> bool:
        """Whether rows are neighbours in the result's memory, and columns are not."""
        roles, address = self.roles, self.output.address
        if roles.rows is None or self.shape.rows < LEAST_TRANSPOSED or self.nest.lanes == 1:
            return False
        extent = roles.columns.extent
        if isinstance(extent, int) and extent < self.shape.columns:
            return False
        across = expr.coefficient(address, roles.columns.var)
        return expr.coefficient(address, roles.rows.var) == 1 and across not in (0, 1, None)

    def _finish_blocks(self, source: Scratch, by_row: list[Stmt]) -> list[Stmt]:
        """Epilogue and stores of some rows at a time, which the backend transposes; `by_row` where
        not all rows and columns are there."""
        nest, roles, shape = self.nest, self.roles, self.shape
        stmts: list[Stmt] = []
        done, count = 0, shape.width
        while count >= LEAST_TRANSPOSED:
            while done + count <= shape.rows:
                stmts += self._finish_block(done, count, source)
                done += count
            count //= 2
        for r in range(done, shape.rows):
            stmts += self._finish_row(expr.index(r), source, nest.unrolled, is_there=True)
        held: list[Expr] = []
        if not shape.has_all_rows and roles.rows is not None:
            end = expr.add(self.first, expr.index(shape.rows))
            held.append(expr.binary("le", end, expr.index(roles.rows.extent)))
        if not shape.has_all_columns:
            end = self._own_column(expr.index(shape.chunks), expr.index(0))
            held.append(expr.binary("le", end, expr.index(roles.columns.extent)))
        are_there = expr.all_of(held)
        return stmts if are_there is None else [If(are_there, tuple(stmts), tuple(by_row))]

    def _finish_block(self, begin: int, count: int, source: Scratch) -> list[Stmt]:
        """Epilogue and stores of `count` rows, vector by vector of their columns."""
        nest, shape = self.nest, self.shape

        def row(r: Expr, u: Expr) -> list[Stmt]:
            r = expr.add(r, expr.index(begin))
            here = self._at(r, is_clamped=False)
            return [nest.spread(shape.width, lambda lane: self._stores(here, source, r, u, lane))]

        return nest.unrolled(shape.chunks, lambda u: nest.unrolled(count, lambda r: row(r, u), "r"))

    def _stores(self, here: Values, source: Scratch, r: Expr, u: Expr, lane: Expr) -> list[Stmt]:
        """Epilogue and stores of one element, whose row is at `here`."""
        place = {**here, self.roles.columns.var: self._column(u, lane)}
        done = self._done(Load(source, (r, u, lane), source.dtype))
        return self.output.stores(self.nest, place, done.get)

    def _done(self, total: Expr) -> dict[Expr, Expr]:
        """What stands for parts of the values: `total` for the reduction."""
        return {self.roles.reduce: expr.cast(total, self.roles.reduce.dtype)}

    def _finish_row(
        self,
        r: Expr,
        source: Scratch,
        loop: Callable[..., list[Stmt]],
        *,
        is_there: bool = False,
    ) -> list[Stmt]:
        """Epilogue and store of one row, where the row is there; or all is, as `is_there` says."""
        roles, shape, nest = self.roles, self.shape, self.nest
        here = self._at(r, is_clamped=False)
        is_whole = self._packs_bytes and source is not self.acc

        def chunk(u: Expr) -> list[Stmt]:
            def lanes(lane: Expr) -> list[Stmt]:
                stores = self._stores(here, source, r, u, lane)
                if shape.has_all_columns or is_there:
                    return stores
                return [If(self._is_stored(u, lane), tuple(stores))]

            return [nest.spread(shape.columns, lanes)] if is_whole else self._each_lane(lanes)

        stmts = loop(1 if is_whole else shape.chunks, chunk)
        rows = roles.rows
        if rows is None or shape.has_all_rows or is_there:
            return stmts
        exists = expr.binary("lt", expr.add(self.first, r), expr.index(rows.extent))
        return [If(exists, tuple(stmts))]


def store_zero(scratch: Scratch, r: Expr, u: Expr, lane: Expr) -> Stmt:
    """A sum of nothing."""
    return Store(scratch, (r, u, lane), expr.const(0, scratch.dtype))
