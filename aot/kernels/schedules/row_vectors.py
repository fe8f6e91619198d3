"""Outer products of a register tile whose rows' scalars are lanes of vectors.

For targets that multiply by a lane: the scalars of a row are loaded a vector at a time. Owns no
tile and no sums.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.ir import dims, expr
from aot.ir.expr import Expr, Load
from aot.ir.types import DType
from aot.kernels.ir.nodes import Stmt, Store
from aot.kernels.lower.nest import Nest


def holds_row_vectors(nest: Nest, rows: int, columns: int) -> bool:
    """Whether registers hold a vector of scalars a row beside a tile's sums and weights."""
    return (rows + 1) * (-(-columns // nest.lanes) + 1) <= nest.target.vector_registers


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
