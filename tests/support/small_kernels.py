"""Kernels written by hand, with little to write."""

from __future__ import annotations

from collections.abc import Sequence

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Load, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    Buffer,
    BufferClass,
    For,
    Kernel,
    KernelBuilder,
    LoopKind,
    Scratch,
    Space,
    Stmt,
    Store,
)

Index = Dim | Expr


class Kernels:
    """Builds one kernel."""

    def __init__(self, name: str = "kernel") -> None:
        self.builder = KernelBuilder(name)

    def buffer(
        self, dtype: DType, *shape: Dim, written: bool = False, in_arena: bool = False
    ) -> Buffer:
        """A dense one: an operand, or a result that is `written`."""
        strides: list[Dim] = []
        step: Dim = 1
        for extent in reversed(shape):
            strides.insert(0, step)
            step = dims.multiply(step, extent)
        for extent in shape:
            for name in sorted(dims.symbols(extent)):
                self.builder.dim_param(name)
        kind = BufferClass.OUTPUTS if written else BufferClass.INPUTS
        kind = BufferClass.ARENA if in_arena else kind
        return self.builder.buffer(
            "out" if written else "in", dtype, kind, shape, tuple(strides), is_written=written
        )

    def scratch(self, dtype: DType, *shape: int, space: Space = Space.PRIVATE) -> Scratch:
        return self.builder.scratch("kept", dtype, shape, space)

    def var(self, name: str = "i", dtype: DType = DType.INDEX) -> Var:
        return self.builder.var(name, dtype)

    def kernel(self, *body: Stmt) -> Kernel:
        return self.builder.build(body)


def loop(var: Var, extent: Dim, *body: Stmt, kind: LoopKind = LoopKind.SERIAL) -> For:
    return For(var, extent, kind, body)


def load(source: Buffer | Scratch, *indices: Index, guard: Expr | None = None) -> Load:
    other = None if guard is None else expr.const(0, source.dtype)
    return Load(source, _indices(indices), source.dtype, guard, other)


def store(
    target: Buffer | Scratch,
    index: Index | Sequence[Index],
    value: Expr | float = 1,
    guard: Expr | None = None,
) -> Store:
    indices = index if isinstance(index, Sequence) else (index,)
    number = value if not isinstance(value, (int, float)) else expr.const(value, target.dtype)
    return Store(target, _indices(indices), number, guard)


def op(name: str, a: Index, b: Index) -> Expr:
    """Arithmetic or a comparison of indices."""
    return expr.binary(name, expr.index(a), expr.index(b))


def as_index(e: Expr) -> Expr:
    return expr.cast(e, DType.INDEX)


def both(*conditions: Expr) -> Expr:
    found = expr.all_of(conditions)
    assert found is not None
    return found


def _indices(given: Sequence[Index]) -> tuple[Expr, ...]:
    return tuple(expr.index(i) for i in given)
