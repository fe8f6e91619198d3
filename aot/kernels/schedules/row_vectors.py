"""Outer products of a register tile whose rows' scalars are lanes of vectors.

For targets that multiply by a lane: the scalars of a row, or those of neighbouring rows, are loaded
a vector at a time. Owns no tile and no sums.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.ir import dims, expr
from aot.ir.expr import Expr, Load, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import Stmt, Store
from aot.kernels.lower.nest import Nest


def holds_row_vectors(nest: Nest, rows: int, columns: int) -> bool:
    """Whether registers hold a vector of scalars a row beside a tile's sums and weights."""
    return (rows + 1) * (-(-columns // nest.lanes) + 1) <= nest.target.vector_registers


def are_neighbours(nest: Nest, left: Expr, rows: Var, dtype: DType) -> bool:
    """Whether the scalars of rows lie side by side, without a guard that asks which row it is, and
    are multiplied as they are by lanes of vectors."""
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
    """An outer product for which the scalars of neighbouring rows are loaded a vector at a time.

    Args:
        rows: a multiple of the lanes.
        left: the scalar of a row; side by side along the rows.
        step: the product, given the scalar of each row.
    """
    lanes = nest.lanes
    size = expr.index(lanes)
    held = nest.builder.scratch("rows_together", dtype, (rows // lanes, lanes))

    def load(g: Expr) -> list[Stmt]:
        first = expr.mul(g, size)
        return [
            nest.spread(lanes, lambda lane: [Store(held, (g, lane), left(expr.add(first, lane)))])
        ]

    def of_row(r: Expr) -> Expr:
        at = expr.binary("floordiv", r, size), expr.binary("floormod", r, size)
        return Load(held, at, dtype)

    return nest.unrolled(rows // lanes, load, "g") + step(of_row)


def by_lanes(
    nest: Nest,
    sizes: tuple[int, dims.Dim],
    dtype: DType,
    left: Callable[[Expr, Expr], Expr],
    step: Callable[[Expr, Callable[[Expr], Expr]], list[Stmt]],
) -> list[Stmt]:
    """Outer products in order, for which a row's scalars are loaded a vector at a time.

    Args:
        sizes: rows, and steps.
        left: the scalar of a row at a step; side by side along the steps.
        step: the product of a step, given the scalar of each row.
    """
    rows, extent = sizes
    lanes = nest.lanes
    held = nest.builder.scratch("row_vectors", dtype, (rows, lanes))

    def group(n: Expr) -> list[Stmt]:
        first = expr.mul(n, expr.index(lanes))

        def load(r: Expr) -> list[Stmt]:
            return [
                nest.spread(
                    lanes, lambda lane: [Store(held, (r, lane), left(r, expr.add(first, lane)))]
                )
            ]

        return nest.unrolled(rows, load, "r") + nest.unrolled(
            lanes, lambda k: step(expr.add(first, k), lambda r: Load(held, (r, k), dtype)), "k"
        )

    whole = dims.floor_divide(extent, lanes)
    done = expr.index(dims.multiply(whole, lanes))

    def single(n: Expr) -> list[Stmt]:
        k = expr.add(done, n)
        return step(k, lambda r: left(r, k))

    return nest.serial(whole, group, "k") + nest.serial(dims.modulo(extent, lanes), single, "k")
