"""PyTorch's factorisations of small matrices, and the ops built on them.

A factorisation is a loop over the columns, whose run does what LAPACK does for one, on all matrices
of a batch at once. Where torch raises an error, of a singular matrix for example, zeros, infinities
or NaN are what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aot.frontends.torch.control import repeated
from aot.frontends.torch.table import Node, UnsupportedNodeError, torch_op
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import ConstantData, Value
from aot.ir.types import DType

I32, I64 = DType.I32, DType.I64


def _rows(n: Node, count: Dim) -> Value:
    """The numbers 0 to count - 1 as a column [count, 1]."""
    return n.reshape(n.emit("range", size=count), (count, 1))


def _column(n: Node, x: Value) -> Value:
    """x with an additional last dim of 1, which makes vectors columns."""
    return n.reshape(x, (*x.type.dims, 1))


def _row(n: Node, x: Value) -> Value:
    return n.reshape(x, (*x.type.dims[:-1], 1, x.type.dims[-1]))


def _at(n: Node, x: Value, place: Value, axis: int) -> Value:
    """The elements of x at index `place` along `axis`, which is negative, without that dim."""
    return n.emit("gather", x, place, axis=x.type.rank + axis)


def _turned(n: Node, x: Value) -> Value:
    rank = x.type.rank
    return n.emit("transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))


def _filled(n: Node, shape: Sequence[Dim], value: float, dtype: DType) -> Value:
    return n.emit("fill", shape=tuple(shape), value=ConstantData(np.array(value, dtype.numpy)))


def _identity(n: Node, lead: Sequence[Dim], count: Dim, dtype: DType) -> Value:
    one = n.cast(n("equal", _rows(n, count), n.emit("range", size=count)), dtype)
    return n.broadcast(one, (*lead, count, count))


def _triangle(n: Node, x: Value, *, is_upper: bool, unit: bool = False) -> Value:
    """The upper or lower triangle of matrices, zeros elsewhere; with ones on the diagonal if
    `unit`."""
    row, column = _rows(n, x.type.dims[-2]), n.emit("range", size=x.type.dims[-1])
    ends = (row, column) if is_upper else (column, row)
    made = n("where", n.emit("less_equal", *ends), x, 0.0)
    return n("where", n.emit("equal", row, column), 1.0, made) if unit else made


def _diagonal(n: Node, x: Value) -> Value:
    """The diagonals of square matrices."""
    count = x.type.dims[-1]
    is_on = n("equal", _rows(n, count), n.emit("range", size=count))
    kept = n("where", is_on, x, 0.0)
    return n.emit("reduce_sum", kept, axes=(x.type.rank - 1,), keepdims=False)


def _step_by_step(
    n: Node,
    count: Dim,
    starts: Sequence[Value],
    step: Callable[[Node, Value, Sequence[Value]], list[Value]],
) -> list[Value]:
    """The final carried values of a loop of `count` iterations; the initial ones if there are
    none."""
    if count == 0 or any(v.type.element_count == 0 for v in starts):
        return list(starts)
    return repeated(n, starts, step, trips=n.value(count, I64))


# LU


def _factored(n: Node, x: Value) -> tuple[Value, Value, Value]:
    """LU factorisation: (both factors in one matrix, the row of x in each of its rows, the row
    exchanged at each step)."""
    *lead, height, width = x.type.dims
    steps = dims.minimum(height, width)
    order = n.broadcast(n.emit("range", size=height), (*lead, height))

    def step(inside: Node, k: Value, carried: Sequence[Value]) -> list[Value]:
        matrix, rows, exchanged = carried
        row, column = inside.emit("range", size=height), inside.emit("range", size=width)
        size = inside(
            "where", inside("less", row, k), -1.0, inside("abs", _at(inside, matrix, k, -1))
        )
        best = inside.emit("arg_max", size, axis=size.type.rank - 1, keepdims=True)
        is_own, is_best = inside("equal", row, k), inside("equal", row, best)
        source = inside("where", is_own, best, inside("where", is_best, k, row))
        places = inside.broadcast(_column(inside, source), matrix.type.dims)
        matrix = inside.emit("gather_elements", matrix, places, axis=matrix.type.rank - 2)
        rows = inside.emit("gather_elements", rows, source, axis=rows.type.rank - 1)
        exchanged = inside("where", is_own, best, exchanged)
        pivots = _at(inside, matrix, k, -2)
        pivot = _column(inside, _at(inside, pivots, k, -1))
        is_left = inside("and", inside("less", k, row), inside("not", inside("equal", pivot, 0.0)))
        factor = inside("where", is_left, inside("div", _at(inside, matrix, k, -1), pivot), 0.0)
        less = inside("mul", _column(inside, factor), _row(inside, pivots))
        matrix = inside("sub", matrix, inside("where", inside("less", k, column), less, 0.0))
        is_below = inside(
            "and", inside("less", k, _rows(inside, height)), inside("equal", k, column)
        )
        return [
            inside("where", is_below, _column(inside, factor), matrix),
            rows,
            exchanged,
        ]

    starts = (x, order, order)
    made, rows, exchanged = _step_by_step(n, steps, starts, step)
    rank = exchanged.type.rank
    whole = {"starts": (0,) * rank, "stops": (*lead, steps), "steps": (1,) * rank}
    return made, rows, n.emit("slice", exchanged, **whole)


def _in_order(n: Node, x: Value, rows: Value) -> Value:
    """The rows of matrices in the order `rows`."""
    places = n.broadcast(_column(n, rows), (*x.type.dims[:-2], rows.type.dims[-1], x.type.dims[-1]))
    return n.emit("gather_elements", x, places, axis=x.type.rank - 2)


def _pivots(n: Node, exchanged: Value) -> Value:
    """Pivot indices counted from 1, as LAPACK has them."""
    return n.cast(n("add", exchanged, 1), I32)


def _sign(n: Node, exchanged: Value, dtype: DType) -> Value:
    """The sign, 1 or -1, of the permutation given by row exchanges."""
    own = n.emit("range", size=exchanged.type.dims[-1])
    moved = n.cast(n("not", n("equal", exchanged, own)), I64)
    count = n.emit("reduce_sum", moved, axes=(moved.type.rank - 1,), keepdims=False)
    odd = n("sub", count, n("mul", n("div", count, 2), 2))
    return n("sub", n.scalar(1.0, dtype), n("mul", n.cast(odd, dtype), 2.0))


def _determinant(n: Node, x: Value) -> tuple[Value, Value, Value]:
    factors, _, exchanged = _factored(n, x)
    diagonal = _diagonal(n, factors)
    product = n.emit("reduce_prod", diagonal, axes=(diagonal.type.rank - 1,), keepdims=False)
    return n("mul", product, _sign(n, exchanged, x.type.dtype)), factors, exchanged


@torch_op("aten.linalg_det.default", "aten.det.default")
def determinant(n: Node, x: Value) -> Value:
    return _determinant(n, x)[0]


@torch_op("aten._linalg_det.default")
def determinant_and_factors(n: Node, x: Value) -> list[Value]:
    found, factors, exchanged = _determinant(n, x)
    return [found, factors, _pivots(n, exchanged)]


def _log_determinant(n: Node, x: Value) -> tuple[Value, Value, Value, Value]:
    factors, _, exchanged = _factored(n, x)
    diagonal = _diagonal(n, factors)
    axes = (diagonal.type.rank - 1,)
    is_negative = n.cast(n("less", diagonal, 0.0), x.type.dtype)
    signs = n("sub", n.scalar(1.0, x.type.dtype), n("mul", is_negative, 2.0))
    signs = n("where", n("equal", diagonal, 0.0), 0.0, signs)
    sign = n.emit("reduce_prod", signs, axes=axes, keepdims=False)
    size = n.emit("reduce_sum", n("log", n("abs", diagonal)), axes=axes, keepdims=False)
    return n("mul", sign, _sign(n, exchanged, x.type.dtype)), size, factors, exchanged


@torch_op("aten.linalg_slogdet.default", "aten.slogdet.default")
def log_determinant(n: Node, x: Value) -> list[Value]:
    return list(_log_determinant(n, x)[:2])


@torch_op("aten._linalg_slogdet.default")
def log_determinant_and_factors(n: Node, x: Value) -> list[Value]:
    *found, exchanged = _log_determinant(n, x)
    return [*found, _pivots(n, exchanged)]


@torch_op("aten.logdet.default")
def logarithm_of_determinant(n: Node, x: Value) -> Value:
    sign, size, _, _ = _log_determinant(n, x)
    nan = n.scalar(float("nan"), x.type.dtype)
    return n("where", n("less", sign, 0.0), nan, size)


def _no_error(n: Node, number: int) -> Value:
    """The error number of LAPACK, for results that have one: always 0."""
    type = n.types[number]
    return _filled(n, type.dims if type is not None else (), 0, I32)


@torch_op("aten.linalg_lu_factor.default", "aten.linalg_lu_factor_ex.default")
def factors(n: Node, x: Value, pivot: bool = True, checks: bool = False) -> list[Value]:
    if not pivot:
        raise UnsupportedNodeError("factors without exchanges of rows are not supported")
    made, _, exchanged = _factored(n, x)
    found = [made, _pivots(n, exchanged)]
    return [*found, _no_error(n, 2)] if len(n.types) > 2 else found


def _unpacked(n: Node, made: Value, rows: Value) -> list[Value]:
    """(permutation, lower factor, upper factor) of an LU factorisation."""
    *lead, height, width = made.type.dims
    steps = dims.minimum(height, width)
    rank = made.type.rank
    here = {"starts": (0,) * rank, "steps": (1,) * rank}
    lower = n.emit("slice", made, stops=(*lead, height, steps), **here)
    upper = n.emit("slice", made, stops=(*lead, steps, width), **here)
    is_there = n("equal", _rows(n, height), _row(n, rows))
    return [
        n.cast(is_there, made.type.dtype),
        _triangle(n, lower, is_upper=False, unit=True),
        _triangle(n, upper, is_upper=True),
    ]


@torch_op("aten.linalg_lu.default")
def lower_and_upper(n: Node, x: Value, pivot: bool = True) -> list[Value]:
    if not pivot:
        raise UnsupportedNodeError("factors without exchanges of rows are not supported")
    made, rows, _ = _factored(n, x)
    return _unpacked(n, made, rows)


def _rows_of(n: Node, pivots: Value, height: Dim) -> Value:
    """The row order that results from LAPACK's exchanges, which count from 1."""
    *lead, steps = pivots.type.dims
    order = n.broadcast(n.emit("range", size=height), (*lead, height))
    exchanged = n("sub", n.cast(pivots, I64), 1)

    def step(inside: Node, k: Value, carried: Sequence[Value]) -> list[Value]:
        row = inside.emit("range", size=height)
        best = _column(inside, _at(inside, exchanged, k, -1))
        is_own, is_best = inside("equal", row, k), inside("equal", row, best)
        source = inside("where", is_own, best, inside("where", is_best, k, row))
        rows = carried[0]
        return [inside.emit("gather_elements", rows, source, axis=rows.type.rank - 1)]

    return _step_by_step(n, steps, (order,), step)[0]


@torch_op("aten.lu_unpack.default")
def unpacked(
    n: Node, made: Value, pivots: Value, unpacks_data: bool = True, unpacks_pivots: bool = True
) -> list[Value]:
    return _unpacked(n, made, _rows_of(n, pivots, made.type.dims[-2]))


@torch_op("aten.linalg_lu_solve.default")
def solution_of_factors(
    n: Node, made: Value, pivots: Value, right: Value, left: bool = True, adjoint: bool = False
) -> Value:
    if not left or adjoint:
        raise UnsupportedNodeError("only A X = B of factors of A is supported")
    return _back(n, made, _rows_of(n, pivots, made.type.dims[-2]), right)


# solutions


def _back(n: Node, made: Value, rows: Value, right: Value) -> Value:
    """A^-1 B, from the LU factors of A and its row order."""
    lead = _lead(n, made, right)
    right = n.broadcast(right, (*lead, *right.type.dims[-2:]))
    ordered = _in_order(n, right, n.broadcast(rows, (*lead, rows.type.dims[-1])))
    below = _solved(n, made, ordered, is_upper=False, unit=True)
    return _solved(n, made, below, is_upper=True)


def _solved(n: Node, triangle: Value, right: Value, *, is_upper: bool, unit: bool = False) -> Value:
    """The solution X of T X = B for a triangular T, row by row."""
    count = triangle.type.dims[-1]
    lead = _lead(n, triangle, right)
    triangle = n.broadcast(triangle, (*lead, *triangle.type.dims[-2:]))
    right = n.broadcast(right, (*lead, *right.type.dims[-2:]))

    def step(inside: Node, number: Value, carried: Sequence[Value]) -> list[Value]:
        k = number
        if is_upper:
            k = inside("sub", inside.value(dims.add(count, -1), I64), number)
        rest, row = carried[0], _rows(inside, count)
        found = _at(inside, rest, k, -2)
        factor = _at(inside, triangle, k, -1)
        if not unit:
            found = inside("div", found, _column(inside, _at(inside, factor, k, -1)))
        is_later = inside("less", row, k) if is_upper else inside("less", k, row)
        less = inside("mul", _column(inside, factor), _row(inside, found))
        rest = inside("sub", rest, inside("where", is_later, less, 0.0))
        return [inside("where", inside("equal", row, k), _row(inside, found), rest)]

    return _step_by_step(n, count, (right,), step)[0]


def _lead(n: Node, a: Value, b: Value) -> tuple[Dim, ...]:
    """The broadcast batch dims."""
    left, right = a.type.dims[:-2], b.type.dims[:-2]
    rank = max(len(left), len(right))
    padded = [(*[1] * (rank - len(d)), *d) for d in (left, right)]
    return tuple(y if x == 1 else x for x, y in zip(*padded, strict=True))


def _solution(n: Node, x: Value, right: Value) -> tuple[Value, Value, Value]:
    """(A^-1 B, factors of A, row exchanges)."""
    made, rows, exchanged = _factored(n, x)
    return _back(n, made, rows, right), made, exchanged


@torch_op("aten.linalg_inv.default", "aten.inverse.default", "aten.linalg_inv_ex.default")
def inverse(n: Node, x: Value, checks: bool = False) -> Any:
    *lead, count, _ = x.type.dims
    made = _solution(n, x, _identity(n, lead, count, x.type.dtype))[0]
    return [made, _no_error(n, 1)] if len(n.types) > 1 else made


@torch_op("aten.linalg_tensorinv.default")
def inverse_of_tensor(n: Node, x: Value, count: int = 2) -> Value:
    """The inverse of x as a matrix, whose rows are indexed by its first `count` dims."""
    height, width = (dims.product(part) for part in (x.type.dims[:count], x.type.dims[count:]))
    flat = n.reshape(x, (height, width))
    return n.reshape(_solution(n, flat, _identity(n, (), height, x.type.dtype))[0], n.dims)


def _solution_of(n: Node, x: Value, right: Value, left: bool) -> tuple[Value, Value, Value]:
    """(solution, factors, exchanges) for a vector or matrix `right`: of A X = B, or of X A = B if
    not `left`."""
    is_vector = right.type.rank == 1 or (
        right.type.rank == x.type.rank - 1 and right.type.dims == x.type.dims[:-1]
    )
    if is_vector:
        right = _column(n, right)
    if left:
        made, held, exchanged = _solution(n, x, right)
    else:
        made, held, exchanged = _solution(n, _turned(n, x), _turned(n, right))
        made = _turned(n, made)
    return n.reshape(made, made.type.dims[:-1]) if is_vector else made, held, exchanged


@torch_op("aten.linalg_solve.default")
def solution(n: Node, x: Value, right: Value, left: bool = True) -> Value:
    return _solution_of(n, x, right, left)[0]


@torch_op("aten._linalg_solve_ex.default", "aten.linalg_solve_ex.default")
def solution_and_factors(
    n: Node, x: Value, right: Value, left: bool = True, checks: bool = False
) -> list[Value]:
    made, held, exchanged = _solution_of(n, x, right, left)
    if len(n.types) == 2:
        return [made, _no_error(n, 1)]
    if n.wants(1) and not left:
        raise UnsupportedNodeError("factors of a transposed matrix are not supported")
    return [made, held, _pivots(n, exchanged), _no_error(n, 3)]


@torch_op("aten.linalg_solve_triangular.default")
def triangular_solution(
    n: Node, x: Value, right: Value, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    if left:
        return _solved(n, x, right, is_upper=upper, unit=unitriangular)
    turned = _solved(n, _turned(n, x), _turned(n, right), is_upper=not upper, unit=unitriangular)
    return _turned(n, turned)


@torch_op("aten.triangular_solve.default")
def old_triangular_solution(
    n: Node,
    right: Value,
    x: Value,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> list[Value]:
    whole = _turned(n, x) if transpose else x
    is_upper = upper != transpose
    made = _solved(n, whole, right, is_upper=is_upper, unit=unitriangular)
    return [made, n.broadcast(x, (*made.type.dims[:-2], *x.type.dims[-2:]))]


# Cholesky


def _root(n: Node, x: Value) -> Value:
    """The lower Cholesky factor of positive definite matrices, of which the lower triangle is
    read."""
    count = x.type.dims[-1]

    def step(inside: Node, k: Value, carried: Sequence[Value]) -> list[Value]:
        rest, made = carried
        row, column = inside.emit("range", size=count), inside.emit("range", size=count)
        own = _at(inside, rest, k, -1)
        root = inside.emit("sqrt", _column(inside, _at(inside, own, k, -1)))
        below = inside("where", inside("less", k, row), inside("div", own, root), 0.0)
        rest = inside("sub", rest, inside("mul", _column(inside, below), _row(inside, below)))
        whole = inside("where", inside("equal", row, k), root, below)
        made = inside("where", inside("equal", column, k), _column(inside, whole), made)
        return [rest, made]

    zeros = _filled(n, x.type.dims, 0, x.type.dtype)
    return _step_by_step(n, count, (x, zeros), step)[1]


@torch_op(
    "aten.linalg_cholesky.default", "aten.cholesky.default", "aten.linalg_cholesky_ex.default"
)
def cholesky(n: Node, x: Value, upper: bool = False, checks: bool = False) -> Any:
    made = _turned(n, _root(n, _turned(n, x))) if upper else _root(n, x)
    return [made, _no_error(n, 1)] if len(n.types) > 1 else made


@torch_op("aten.cholesky_solve.default")
def cholesky_solution(n: Node, right: Value, root: Value, upper: bool = False) -> Value:
    lower = _turned(n, root) if upper else root
    below = _solved(n, lower, right, is_upper=False)
    return _solved(n, _turned(n, lower), below, is_upper=True)


@torch_op("aten.cholesky_inverse.default")
def cholesky_inverse(n: Node, root: Value, upper: bool = False) -> Value:
    *lead, count, _ = root.type.dims
    return cholesky_solution(n, _identity(n, lead, count, root.type.dtype), root, upper)


# QR


@torch_op("aten.linalg_qr.default", "aten.qr.default")
def orthogonal_and_upper(n: Node, x: Value, mode: Any = "reduced") -> list[Value]:
    """(Q, R) of a QR factorisation by reflections, with LAPACK's signs."""
    if isinstance(mode, bool):  # torch.qr says whether it is not complete
        mode = "reduced" if mode else "complete"
    *lead, height, width = x.type.dims
    steps = dims.minimum(height, width)

    def step(inside: Node, k: Value, carried: Sequence[Value]) -> list[Value]:
        upper, turned = carried
        row = inside.emit("range", size=height)
        own = inside("where", inside("less", row, k), 0.0, _at(inside, upper, k, -1))
        first = _column(inside, _at(inside, own, k, -1))
        axis = own.type.rank - 1
        is_tail = inside("less", k, row)
        tail = inside("where", is_tail, inside("mul", own, own), 0.0)
        rest = inside.emit("reduce_sum", tail, axes=(axis,), keepdims=True)
        size = inside("sqrt", inside("add", rest, inside("mul", first, first)))
        end = inside("where", inside("less", first, 0.0), size, inside("neg", size))
        mirror = inside("where", inside("equal", row, k), inside("sub", first, end), own)
        length = inside.emit(
            "reduce_sum", inside("mul", mirror, mirror), axes=(axis,), keepdims=True
        )
        is_done = inside("equal", rest, 0.0)  # of a column that is zero below, nothing is done
        scale = inside(
            "where", is_done, 0.0, inside("div", inside.scalar(2.0, x.type.dtype), length)
        )
        mirror_row, scaled = _row(inside, mirror), _column(inside, inside("mul", mirror, scale))
        upper = inside(
            "sub", upper, inside("mul", scaled, inside.emit("matmul", mirror_row, upper))
        )
        turned = inside(
            "sub", turned, inside("mul", scaled, inside.emit("matmul", mirror_row, turned))
        )
        return [upper, turned]

    starts = x, _identity(n, lead, height, x.type.dtype)  # of Q its transpose
    upper, turned = _step_by_step(n, steps, starts, step)
    upper = _triangle(n, upper, is_upper=True)
    if mode != "complete":
        rank = x.type.rank
        here = {"starts": (0,) * rank, "steps": (1,) * rank}
        upper = n.emit("slice", upper, stops=(*lead, steps, width), **here)
        turned = n.emit("slice", turned, stops=(*lead, steps, height), **here)
    if mode == "r":
        return [_filled(n, (0,), 0, x.type.dtype), upper]
    return [_turned(n, turned), upper]
