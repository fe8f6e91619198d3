"""A GraphBuilder at one position in a function: the base class of all importers' nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot.analysis.dim_values import DimValues
from aot.errors import CompileError
from aot.frontends.lib.broadcasts import spread_operands
from aot.frontends.lib.builder import Operand, UnsupportedNodeError, number_dtype
from aot.ir.bounds import most_of
from aot.ir.dims import Dim
from aot.ir.graph import BROADCAST, Assumption, Attr, ConstantData, Value
from aot.ir.record import Kind
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import Array, DType
from aot.ops import lookup
from aot.ops.contraction import MATMUL, OF_BF16
from aot.ops.elementwise import CAST

MAX_COMPUTED = 1 << 24  # elements of tables that are made for a node, such as Resize's weights


class Place:
    """Creates ops at a rewriter's insertion point; importers' nodes extend it.

    Attributes:
        label: what the node is called in messages, and the origin of its ops.
        values: what is known of integer values at compile time.
    """

    label: str
    rewriter: Rewriter
    values: DimValues

    def __call__(self, op: str, *operands: Operand, **attrs: Attr) -> Value:
        """The result of an op; the same as `emit`."""
        return self.emit(op, *operands, **attrs)

    def emit(self, op: str, *operands: Operand, **attrs: Attr) -> Value:
        """The only result of a new op."""
        (result,) = self.emit_all(op, *operands, **attrs)
        return result

    def emit_all(self, op: str, *operands: Operand, **attrs: Attr) -> list[Value]:
        """The results of a new op; numbers among the operands take the dtype of its values.

        Raises:
            UnsupportedNodeError: our op does not take an element type that the model's does, or a
                number is none of the values' type.
        """
        record = lookup(op)
        stored: DType | None = None
        taken: list[Value | None] = []
        for number, operand in enumerate(self._as_values(operands)):
            dtypes = record.operands[min(number, len(record.operands) - 1)].dtypes
            if operand is not None and operand.type.dtype not in dtypes:
                wide = operand.type.dtype.widens_to
                if not operand.type.dtype.is_storage_only or wide not in dtypes:
                    raise UnsupportedNodeError(f"{operand.type.dtype} is not supported here")
                stored, operand = operand.type.dtype, self._widened(operand, wide)
            taken.append(operand)
        if record.kind is Kind.ELEMENTWISE and len(taken) > 1:
            taken = spread_operands(self.rewriter, self._meeting(taken), self.label)
        elif record is MATMUL:
            taken = spread_operands(self.rewriter, taken, self.label, last=2)
        if stored is DType.BF16 and any(a.name == OF_BF16.name for a in record.attributes):
            attrs = {**attrs, OF_BF16.name: True}
        results = self.rewriter.create(record, taken, attrs, self.label).results
        if stored is None:
            return results
        return [self.cast(v, stored) if v.type.dtype is stored.widens_to else v for v in results]

    def _as_values(self, operands: Sequence[Operand]) -> list[Value | None]:
        dtype = number_dtype(operands)
        return [v if v is None or isinstance(v, Value) else self.scalar(v, dtype) for v in operands]

    def _meeting(self, operands: Sequence[Value | None]) -> list[Value | None]:
        """The operands reshaped so that they broadcast. A dynamic dim of at most one element, as of
        a slice of the last row, becomes 1 where it meets another dim; each run checks that it is.
        """
        shapes = [v.type.dims for v in operands if v is not None]
        result = list(operands)
        for number, operand in enumerate(operands):
            if operand is None or all(isinstance(dim, int) for dim in operand.type.dims):
                continue
            extents = list(operand.type.dims)
            for axis in range(-len(extents), 0):
                dim = extents[axis]
                others = {shape[axis] for shape in shapes if -axis <= len(shape)} - {1, dim}
                most = most_of(dim) if others and not isinstance(dim, int) else None
                if most is not None and most <= 1:
                    what = f"{self.label}: {BROADCAST}"
                    self.rewriter.function.assumptions[Assumption(dim, 1, what)] = None
                    extents[axis] = 1
            result[number] = self.reshape(operand, extents)
        return result

    def _widened(self, x: Value, dtype: DType) -> Value:
        """`x`, of a storage-only dtype, cast to `dtype`; the value from before this importer
        rounded it, as the model does not round there."""
        op = x.op
        source = op.operands[0] if op is not None and op.record is CAST else None
        if op is None or source is None or source.op is None or source.type.dtype is not dtype:
            return self.cast(x, dtype)
        return source if source.op.origin == op.origin else self.cast(x, dtype)

    def constant(self, array: Array) -> Value:
        """A constant with the elements of `array`."""
        return insert_constant(self.rewriter, ConstantData(np.asarray(array)), self.label)

    def scalar(self, value: float | int | bool, dtype: DType) -> Value:
        """A constant of rank 0; ops that compute in a wider dtype than `dtype` see the unrounded
        number.

        Raises:
            UnsupportedNodeError: the type has no such number.
        """
        if dtype.is_storage_only and dtype.widens_to is not None:
            return self.cast(self.scalar(value, dtype.widens_to), dtype)
        try:
            array = np.array(value, dtype.numpy)
        except OverflowError:
            raise UnsupportedNodeError(f"{value} is no number of {dtype}") from None
        return self.constant(array)

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        """`x` under other dims; itself where they are the same."""
        return x if x.type.dims == tuple(shape) else self.emit("reshape", x, shape=tuple(shape))

    def cast(self, x: Value, dtype: DType) -> Value:
        """`x` with elements of another type; itself where it is the same."""
        return x if x.type.dtype is dtype else self.emit("cast", x, to=dtype)

    def check_computed(self, elements: int, what: str) -> None:
        """Raises the node's error if a table of `elements` elements is too large to compute at
        import.
        """
        if elements > MAX_COMPUTED:
            raise self.error(
                f"{what} would have {elements} elements, expected at most {MAX_COMPUTED}"
            )

    def axis(self, axis: int, rank: int, allowed: int | None = None) -> int:
        """`axis` counted from the front; valid up to `allowed` - 1 (rank if None)."""
        limit = rank if allowed is None else allowed
        if not -rank <= axis < limit:
            raise self.error(f"axis {axis} is outside a tensor of rank {rank}")
        return axis + rank if axis < 0 else axis

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Distinct dims, sorted, counted from the front."""
        found = sorted(self.axis(a, rank) for a in axes)
        if len(set(found)) != len(found):
            raise self.error(f"axes {list(axes)} name a dim twice")
        return tuple(found)

    def error(self, message: str) -> CompileError:
        """An error in the user's model at this node."""
        raise NotImplementedError
