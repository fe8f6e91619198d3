"""A GraphBuilder over the public builder, with nothing of a format of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot.analysis.dim_values import DimValues
from aot.builder import Builder
from aot.errors import CompileError
from aot.frontends.lib.builder import Operand, number_dtype
from aot.ir.dims import Dim
from aot.ir.graph import Attr, Value
from aot.ir.types import Array, DType


@dataclass
class Plain:
    """The builder, and what is known of values: of this one's own, nothing."""

    b: Builder
    values: DimValues

    def emit(self, op: str, *operands: Operand, **attrs: Attr) -> Value:
        (made,) = self.emit_all(op, *operands, **attrs)
        return made

    def emit_all(self, op: str, *operands: Operand, **attrs: Attr) -> list[Value]:
        dtype = number_dtype(operands)
        taken = (
            v if v is None or isinstance(v, Value) else self.scalar(v, dtype) for v in operands
        )
        made: Any = self.b.op(op, *taken, **attrs)
        return list(made) if isinstance(made, Sequence) else [made]

    def constant(self, array: Array) -> Value:
        return self.b.constant(np.asarray(array))

    def scalar(self, value: float | int | bool, dtype: DType) -> Value:
        return self.constant(np.array(value, dtype.numpy))

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        return x if x.type.dims == tuple(shape) else self.emit("reshape", x, shape=tuple(shape))

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype is dtype else self.emit("cast", x, to=dtype)

    def check_computed(self, elements: int, what: str) -> None:
        if elements > 1 << 12:
            raise self.error(f"{what} would have {elements} elements")

    def error(self, message: str) -> CompileError:
        return CompileError(f"here: {message}")


def plain() -> Plain:
    """An empty graph."""
    empty = Builder()
    empty.output("y", empty.input("x", "f32[1]"))
    return Plain(Builder(), DimValues(empty.module().main))
