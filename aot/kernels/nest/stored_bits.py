"""Replaces element types that backends do not support by integers with the same bits.

A bfloat16 is the upper half of a float32: what is loaded of it is a u16 that moves up by 16 bits,
and what is stored is rounded to nearest, halves to even. Kernels go through here last, so that no
schedule and no backend has code for such a type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from aot.ir import expr
from aot.ir.expr import Bitcast, Cast, Const, Expr, Load, Select, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    Buffer,
    Combine,
    For,
    If,
    Kernel,
    Let,
    Matrix,
    MatrixDot,
    MatrixProduct,
    MatrixStmt,
    MatrixStore,
    MatrixZero,
    Prefetch,
    Scratch,
    Stmt,
    Store,
)

F32, U16, U32 = DType.F32, DType.U16, DType.U32
Memory = Buffer | Scratch

_SHIFT, _SIGN, _QUIET_NAN = 16, 0x80000000, 0x7FC00000


def as_bits(kernel: Kernel) -> Kernel:
    """The kernel with all buffers and scratch in dtypes that backends support."""
    buffers = [replace(b, dtype=b.dtype.bits_as) for b in kernel.buffers]
    scratch = [replace(s, dtype=s.dtype.bits_as) for s in kernel.scratch]
    memory: dict[Memory, Memory] = {
        **dict(zip(kernel.buffers, buffers, strict=True)),
        **dict(zip(kernel.scratch, scratch, strict=True)),
    }
    body = _Rewriter(memory).body(kernel.body)
    return replace(kernel, buffers=tuple(buffers), scratch=tuple(scratch), body=body)


class _Rewriter:
    def __init__(self, memory: Mapping[Memory, Memory]) -> None:
        self.memory = memory
        self.vars: dict[Var, Var] = {}
        self.done: dict[Expr, Expr] = {}

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(map(self.stmt, body))

    def stmt(self, stmt: Stmt) -> Stmt:
        match stmt:
            case For():
                return replace(stmt, body=self.body(stmt.body))
            case If():
                then, otherwise = self.body(stmt.then), self.body(stmt.otherwise)
                return If(self.value(stmt.condition), then, otherwise)
            case Let():
                value = self.value(stmt.value)
                if stmt.var.dtype is not value.dtype:
                    self.vars[stmt.var] = Var(stmt.var.name, value.dtype)
                return Let(self.vars.get(stmt.var, stmt.var), value)
            case Store():
                guard = None if stmt.guard is None else self.value(stmt.guard)
                indices = tuple(map(self.value, stmt.indices))
                return Store(self.memory[stmt.target], indices, self.value(stmt.value), guard)
            case Combine():
                shared = self.memory[stmt.shared]
                assert isinstance(shared, Scratch)
                return replace(stmt, value=self.value(stmt.value), shared=shared)
            case Prefetch():
                source = self.memory[stmt.source]
                assert isinstance(source, Buffer)
                return Prefetch(source, self.value(stmt.index))
            case MatrixDot():
                sums = self.memory[stmt.sums]
                assert isinstance(sums, Scratch)
                rows, *columns = (self._load(e) for e in (stmt.rows, *stmt.columns))
                line = tuple(map(self.value, stmt.line))
                return MatrixDot(sums, line, rows, (columns[0], columns[1]))
            case MatrixZero() | MatrixProduct() | MatrixStore():
                return self.matrix_stmt(stmt)
            case _:
                return stmt

    def matrix_stmt(self, stmt: MatrixStmt) -> MatrixStmt:
        sums = self.memory[stmt.sums]
        assert isinstance(sums, Scratch)
        place = tuple(map(self.value, stmt.place))
        match stmt:
            case MatrixProduct():
                left, right = self._matrix(stmt.left), self._matrix(stmt.right)
                return MatrixProduct(sums, place, stmt.terms, left, right)
            case MatrixStore():
                return MatrixStore(sums, place, self._matrix(stmt.target))
        return MatrixZero(sums, place)

    def _matrix(self, matrix: Matrix) -> Matrix:
        indices = tuple(map(self.value, matrix.indices))
        return replace(matrix, source=self.memory[matrix.source], indices=indices)

    def _load(self, e: Load) -> Load:
        found = self.value(e)
        assert isinstance(found, Load)
        return found

    def value(self, e: Expr) -> Expr:
        return expr.transform(e, self._rewritten, self.done)

    def _rewritten(self, e: Expr) -> Expr | None:
        """The replacement of an expression that has, or loads, a dtype without backend support;
        None for others.
        """
        match e:
            case Var():
                return self.vars.get(e)
            case Load():
                indices = tuple(map(self.value, e.indices))
                guard = None if e.guard is None else self.value(e.guard)
                other = None if e.other is None else self.value(e.other)
                source = self.memory[e.source]
                dtype = e.dtype if e.dtype.is_packed else source.dtype
                return Load(source, indices, dtype, guard, other)
            case Const() if e.dtype.bits_as is not e.dtype:
                bits = np.asarray(e.value, e.dtype.numpy).view(e.dtype.bits_as.numpy)
                return Const(e.dtype.bits_as, int(bits))
            case Select() if e.dtype.bits_as is not e.dtype:
                condition, a, b = map(self.value, (e.condition, e.a, e.b))
                return Select(condition, a, b, e.dtype.bits_as)
            case Cast() if DType.BF16 in (e.dtype, e.a.dtype):
                return self._cast(e)
            case _:
                return None

    def _cast(self, e: Cast) -> Expr:
        value = self.value(e.a)
        if e.dtype is e.a.dtype:
            return value
        if e.a.dtype is DType.BF16:
            return expr.cast(_widened(value), e.dtype)
        return _narrowed(_as_f32(value))


def _u32(number: int) -> Expr:
    return Const(U32, number)


def _as_f32(value: Expr) -> Expr:
    """A number converted to f32 with rounding to odd, so that a second rounding to a narrower type
    gives the correctly rounded result."""
    if value.dtype is DType.F64:
        return _odd_of_f64(value)
    if value.dtype.is_integer and value.dtype.bits > 24:
        return expr.cast(_cut(value), F32)
    return expr.cast(value, F32)


def _odd_of_f64(value: Expr) -> Expr:
    near = expr.cast(value, F32)
    back = expr.cast(near, DType.F64)
    sizes = (expr.unary("abs", e) for e in (back, value))
    is_above, is_other = expr.binary("gt", *sizes), expr.binary("ne", back, value)
    bits = expr.binary("sub", Bitcast(near, U32), Cast(is_above, U32))
    return Bitcast(expr.binary("or", bits, Cast(is_other, U32)), F32)


def _cut(value: Expr) -> Expr:
    """An integer rounded to odd at 24 significant bits: the last one is set if lower bits were."""
    dtype = value.dtype
    unsigned = DType(f"u{dtype.bits}")
    size = value if dtype is unsigned else Cast(expr.unary("abs", value), unsigned)
    below = expr.binary("shr", size, Const(unsigned, 24))
    for step in (1, 2, 4, 8, 16, 32):  # all bits below the first 24 of the number
        if step < dtype.bits - 24:
            below = expr.binary("or", below, expr.binary("shr", below, Const(unsigned, step)))
    mask = below if dtype is unsigned else Cast(below, dtype)
    rest = expr.binary("and", value, mask)
    odd = expr.binary(
        "or", expr.binary("sub", value, rest), expr.binary("add", mask, Const(dtype, 1))
    )
    return expr.select(expr.binary("ne", rest, Const(dtype, 0)), odd, value)


def _widened(bits: Expr) -> Expr:
    """The float32 whose upper half the bits are."""
    return Bitcast(expr.binary("shl", Cast(bits, U32), _u32(_SHIFT)), F32)


def _narrowed(value: Expr) -> Expr:
    """The upper half of a float32, rounded; a NaN stays one, without its payload."""
    bits = Bitcast(value, U32)
    odd = expr.binary("and", expr.binary("shr", bits, _u32(_SHIFT)), _u32(1))
    rounded = expr.binary("add", bits, expr.binary("add", odd, _u32((1 << _SHIFT - 1) - 1)))
    nan = expr.binary("or", expr.binary("and", bits, _u32(_SIGN)), _u32(_QUIET_NAN))
    # magnitudes beyond infinity's bits, without their sign, are NaN
    size = expr.binary("and", bits, _u32(_SIGN - 1))
    is_nan = expr.binary("gt", size, _u32(0x7F800000))
    upper = expr.binary("shr", expr.select(is_nan, nan, rounded), _u32(_SHIFT))
    return Cast(upper, U16)
