"""Outer products of a register tile whose row scalars are taken from vector lanes.

For targets that multiply by a lane: the scalars of a row, those of neighbouring rows, or what lies
under the windows of these in one line, are loaded a vector at a time. Owns no tile and no sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.analysis.cost.plan import UNROLLED_TAPS
from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.expr import Binary, Expr, Load, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import Scratch, Stmt, Store
from aot.kernels.nest.index_math import simplify
from aot.kernels.nest.nest import Axis, Nest, Values
from aot.kernels.rules.products.product import divided


def holds_row_vectors(nest: Nest, rows: int, columns: int) -> bool:
    """Whether registers suffice for a vector of scalars per row, besides the tile's sums and
    weights."""
    return (rows + 1) * (-(-columns // nest.lanes) + 1) <= nest.target.vector_registers


def row_vectors_at_a_time(nest: Nest, rows: int, columns: int, steps: dims.Dim) -> int:
    """How many vectors of a row's scalars are loaded at a time: two, by one instruction, where
    registers hold them and they divide the steps."""
    vectors = -(-columns // nest.lanes)
    needed = rows * vectors + 2 * rows + min(vectors, 4)
    is_even = dims.modulo(steps, 2 * nest.lanes) == 0
    return 2 if is_even and needed <= nest.target.vector_registers - 2 else 1


def are_in_line(nest: Nest, left: Expr, inner: Axis, dtype: DType) -> bool:
    """Whether a row's scalars are contiguous along `inner`, for at least one vector."""
    is_short = isinstance(inner.extent, int) and inner.extent < nest.lanes
    return not is_short and are_neighbours(nest, left, inner.var, dtype)


def are_neighbours(nest: Nest, left: Expr, rows: Var, dtype: DType) -> bool:
    """Whether the scalars of neighbouring rows are contiguous, unguarded by the row, unconverted,
    and multiplied by vector lanes.
    """
    if not nest.target.multiplies_by_lane or not isinstance(left, Load):
        return False
    if left.guard is not None and rows in expr.free_vars(left.guard):
        return False
    is_alike = left.dtype is dtype in (DType.F32, DType.F16)
    return is_alike and expr.coefficient(left.indices[0], rows) == 1


def by_rows(
    nest: Nest,
    rows: int,
    dtype: DType,
    left: Callable[[Expr], Expr],
    step: Callable[[Callable[[Expr], Expr]], list[Stmt]],
) -> list[Stmt]:
    """Statements for an outer product whose row scalars are loaded a vector at a time.

    Args:
        rows: a multiple of the lanes.
        left: the scalar of a row; side by side along the rows.
        step: the product, given the scalar of each row.
    """
    held = nest.builder.scratch("rows_together", dtype, (rows // nest.lanes, nest.lanes))
    return _loaded(nest, held, rows, left) + step(lambda r: _lane_of(held, r))


def _loaded(nest: Nest, held: Scratch, count: int, scalar: Callable[[Expr], Expr]) -> list[Stmt]:
    """Statements that load `count` contiguous scalars as vectors."""
    lanes = nest.lanes

    def load(g: Expr, width: int) -> list[Stmt]:
        first = expr.linear((g, lanes))
        return [
            nest.spread(width, lambda lane: [Store(held, (g, lane), scalar(expr.add(first, lane)))])
        ]

    whole, rest = divmod(count, lanes)
    stmts = nest.unrolled(whole, lambda g: load(g, lanes), "g") if whole else []
    return stmts + (load(expr.index(whole), rest) if rest else [])


def _lane_of(held: Scratch, number: Expr) -> Load:
    """The load of scalar `number` from vectors in registers."""
    return Load(held, divided(number, held.shape[-1]), held.dtype)


@dataclass(frozen=True)
class Slide:
    """A window's taps for neighbouring rows, as one run of contiguous scalars that windows share.

    Attributes:
        tap: the axis of the taps.
        taps: how many.
        step: how far apart the scalars of neighbouring rows are.
    """

    tap: Var
    taps: int
    step: int


def slide_of(nest: Nest, left: Expr, rows: Var, axes: Sequence[Axis], dtype: DType) -> Slide | None:
    """The slide of row scalars along one of a sum's axes; None where they do not slide, or are
    contiguous across rows.
    """
    if not nest.target.multiplies_by_lane or not isinstance(left, Load) or left.guard is not None:
        return None
    (index,) = left.indices
    steps = {a.var: expr.coefficient(index, a.var) for a in axes}
    along = [a for a in axes if steps[a.var] == 1]
    step = expr.coefficient(index, rows)
    if len(along) != 1 or not isinstance(step, int) or not (left.dtype is dtype is DType.F32):
        return None
    (tap,) = along
    if not isinstance(tap.extent, int) or not 2 <= tap.extent <= UNROLLED_TAPS:
        return None
    return Slide(tap.var, tap.extent, step) if 2 <= step <= tap.extent + 1 else None


def by_slide(
    nest: Nest,
    rows: int,
    slide: Slide,
    left: Callable[[Expr], Expr],
    step: Callable[[Expr, Callable[[Expr], Expr]], list[Stmt]],
) -> list[Stmt]:
    """The outer products of all taps of a strided window: the image row's piece with the scalars of
    all rows is loaded in vectors, and scalars are taken from it.

    Args:
        left: the scalar of the first row at a tap, or at what would be one further along.
        step: the product of a tap, given the scalar of each row.
    """
    lanes, dtype = nest.lanes, DType.F32
    count = (rows - 1) * slide.step + slide.taps
    held = nest.builder.scratch("piece", dtype, (-(-count // lanes), lanes))

    def product(tap: Expr) -> list[Stmt]:
        return step(tap, lambda r: _lane_of(held, expr.linear((r, slide.step), tap)))

    return _loaded(nest, held, count, left) + nest.unrolled(slide.taps, product, "k")


def by_lanes(
    nest: Nest,
    sizes: tuple[int, dims.Dim],
    dtype: DType,
    left: Callable[[Expr, Expr], Expr],
    step: Callable[[Expr, Callable[[Expr], Expr]], list[Stmt]],
    vectors: int = 1,
    of_lane: Callable[[Expr, Expr, Expr], Expr] | None = None,
) -> list[Stmt]:
    """Statements for outer products in order, whose row scalars are loaded a vector at a time.

    Args:
        sizes: rows, and steps.
        vectors: how many of a row are loaded at a time.
        of_lane: the scalar of a row by vector and lane; `left` where vectors follow each other.
        left: the scalar of a row at a step; side by side along the steps.
        step: the product of a step, given the scalar of each row.
    """
    rows, extent = sizes
    lanes, steps = nest.lanes, nest.lanes * vectors
    held = nest.builder.scratch("row_vectors", dtype, (rows, vectors, lanes))

    def group(n: Expr) -> list[Stmt]:
        first = expr.mul(n, expr.index(steps))

        def load(r: Expr) -> list[Stmt]:
            def vector(v: Expr) -> list[Stmt]:
                at, number = expr.linear(first, (v, lanes)), expr.linear((n, vectors), v)

                def one(lane: Expr) -> list[Stmt]:
                    if of_lane is None:
                        return [Store(held, (r, v, lane), left(r, expr.add(at, lane)))]
                    return [Store(held, (r, v, lane), of_lane(r, number, lane))]

                return [nest.spread(lanes, one)]

            return nest.unrolled(vectors, vector, "v")

        def product(k: Expr) -> list[Stmt]:
            at = divided(k, lanes)
            return step(expr.add(first, k), lambda r: Load(held, (r, *at), dtype))

        return nest.unrolled(rows, load, "r") + nest.unrolled(steps, product, "k")

    whole = dims.floor_divide(extent, steps)
    done = expr.index(dims.multiply(whole, steps))

    def single(n: Expr) -> list[Stmt]:
        k = expr.add(done, n)
        return step(k, lambda r: left(r, k))

    return nest.serial(whole, group, "k") + nest.serial(dims.modulo(extent, steps), single, "k")


@dataclass(frozen=True)
class Runs:
    """Interleaved runs along an axis of a sum: every `size`-th scalar of a row is contiguous in
    memory, as after a channel shuffle.

    Attributes:
        size: how many steps neighbours are apart, and how many runs there are.
        left: the scalar of a row, by `number` of the run and `place` in it.
    """

    size: int
    left: Load
    number: Var
    place: Var


def runs_of(nest: Nest, left: Expr, inner: Axis, dtype: DType) -> Runs | None:
    """The interleaved runs along `inner`, each at least a vector long; None where scalars have no
    such layout."""
    if not nest.target.multiplies_by_lane or not isinstance(left, Load):
        return None
    if not isinstance(inner.extent, int):
        return None
    for e in expr.nodes(left.indices[0]):
        if not isinstance(e, Binary) or e.op != "floordiv":
            continue
        size = expr.dim_of(e.b)
        if isinstance(size, int) and size > 1 and expr.coefficient(e.a, inner.var) == 1:
            number, place = Var("number"), Var("place")
            step = expr.linear((place, size), number)
            found = simplify(expr.substitute(left, {inner.var: step}), {})
            run = Axis(place, dims.floor_divide(inner.extent, size))
            if isinstance(found, Load) and are_in_line(nest, found, run, dtype):
                return Runs(size, found, number, place)
    return None


def by_runs(
    nest: Nest,
    runs: Runs,
    sizes: tuple[int, dims.Dim],
    dtype: DType,
    left: Callable[[Expr, Values], Expr],
    step: Callable[[Expr, Callable[[Expr], Expr]], list[Stmt]],
) -> list[Stmt]:
    """Statements for outer products run by run, each as in `by_lanes`, then for the remaining
    steps.

    Args:
        sizes: rows, and steps.
        left: the scalar of a row, given what `runs` has as variables.
        step: the product of a step, given the scalar of each row.
    """
    rows, extent = sizes
    whole = dims.floor_divide(extent, runs.size)

    def run(number: Expr) -> list[Stmt]:
        return by_lanes(
            *(nest, (rows, whole), dtype),
            lambda r, k: left(r, {runs.number: number, runs.place: k}),
            lambda k, of_row: step(expr.linear((k, runs.size), number), of_row),
        )

    def single(number: Expr) -> list[Stmt]:
        end = expr.index(whole)
        here = {runs.number: number, runs.place: end}
        return step(expr.linear((end, runs.size), number), lambda r: left(r, here))

    return nest.serial(runs.size, run, "n") + nest.serial(
        dims.modulo(extent, runs.size), single, "n"
    )
