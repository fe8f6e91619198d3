"""Short names for writing kernel IR by hand in tests."""

from __future__ import annotations

from collections.abc import Iterable

from aot.ir import expr as ex
from aot.ir.dims import Dim
from aot.ir.expr import Const, Expr, Fma, Load, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, For, If, Let, LoopKind, Scratch, Stmt, Store

F32, I32, INDEX, BOOL = DType.F32, DType.I32, DType.INDEX, DType.BOOL
Term = Expr | int | float


def term(value: Term, dtype: DType) -> Expr:
    """`value` as an expression; numbers and dims take `dtype`."""
    if isinstance(value, int | float):
        return Const(dtype, bool(value) if dtype is BOOL else value)
    return ex.index(value) if dtype is INDEX else value


def f32(value: float) -> Expr:
    return Const(F32, value)


def ix(value: Dim | Expr) -> Expr:
    return ex.index(value)


def _both(op: str, a: Term, b: Term, default: DType) -> Expr:
    dtype = next((x.dtype for x in (a, b) if hasattr(x, "dtype")), default)
    return ex.binary(op, term(a, dtype), term(b, dtype))


def add(a: Term, *rest: Term) -> Expr:
    result: Term = a
    for b in rest:
        result = _both("add", result, b, INDEX)
    return term(result, INDEX)


def sub(a: Term, b: Term) -> Expr:
    return _both("sub", a, b, INDEX)


def mul(a: Term, b: Term) -> Expr:
    return _both("mul", a, b, INDEX)


def op(name: str, a: Term, b: Term) -> Expr:
    """A binary operation or comparison; a bare number takes the other's dtype."""
    return _both(name, a, b, INDEX)


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    return Fma(a, b, c, a.dtype)


def call(name: str, a: Expr) -> Expr:
    return ex.unary(name, a)


def load(
    source: Buffer | Scratch,
    *indices: Dim | Expr,
    guard: Expr | None = None,
    other: float | int = 0,
) -> Expr:
    otherwise = None if guard is None else term(other, source.dtype)
    return Load(source, tuple(map(ix, indices)), source.dtype, guard, otherwise)


def store(
    target: Buffer | Scratch, *indices: Dim | Expr, value: Expr, guard: Expr | None = None
) -> Store:
    return Store(target, tuple(map(ix, indices)), value, guard)


def loop(kind: LoopKind, var: Var, extent: Dim, body: Iterable[Stmt], axis: int = 0) -> For:
    return For(var, extent, kind, tuple(body), axis)


def serial(var: Var, extent: Dim, body: Iterable[Stmt]) -> For:
    return loop(LoopKind.SERIAL, var, extent, body)


def unrolled(var: Var, extent: int, body: Iterable[Stmt]) -> For:
    return loop(LoopKind.UNROLLED, var, extent, body)


def vector(var: Var, extent: int, body: Iterable[Stmt]) -> For:
    return loop(LoopKind.VECTOR, var, extent, body)


def lane(var: Var, extent: int, body: Iterable[Stmt], axis: int = 0) -> For:
    return loop(LoopKind.LANE, var, extent, body, axis)


def parallel(var: Var, extent: Dim, body: Iterable[Stmt]) -> For:
    return loop(LoopKind.PARALLEL, var, extent, body)


def grid(axes: Iterable[tuple[Var, Dim, int]], body: Iterable[Stmt]) -> tuple[Stmt, ...]:
    """WORKGROUP loops, outermost first, as (variable, extent, axis)."""
    result = tuple(body)
    for var, extent, axis in reversed(list(axes)):
        result = (For(var, extent, LoopKind.WORKGROUP, result, axis),)
    return result


def when(condition: Expr, then: Iterable[Stmt], otherwise: Iterable[Stmt] = ()) -> If:
    return If(condition, tuple(then), tuple(otherwise))


def let(var: Var, value: Expr) -> Let:
    return Let(var, value)
