"""The table of TFLite operators, and `Node`, an entry's view of an operator.

An operator more is one entry more: a function from a Node to values. An entry gives results either
as numbers, in floats, or as the integers that the file stores; `Node.stored` makes of the former
what the output tensor holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, TypeVar

import numpy as np
from flatbuffers import flexbuffers

from aot.analysis.dim_values import DimValues
from aot.base.records import dataclass
from aot.errors import CompileError
from aot.frontends.lib.builder import (
    UnsupportedNodeError as UnsupportedNodeError,  # noqa: PLC0414 - entries import it from here
)
from aot.frontends.lib.extents import dim_value, given_dims
from aot.frontends.lib.place import Place
from aot.frontends.tflite.model import NONE, Graph, Operator, Quantization, Tensor
from aot.frontends.tflite.schema import ENUMS
from aot.ir import dims
from aot.ir.builtin import YIELD
from aot.ir.dims import Dim
from aot.ir.graph import Attr, Block, Op, Value
from aot.ir.rewriter import Rewriter
from aot.ir.types import Array, DType, TensorType
from aot.ops import lookup
from aot.ops.elementwise import CAST
from aot.ops.quantization import DEQUANTIZE

F32, I32, I64 = DType.F32, DType.I32, DType.I64
Results = Value | Sequence[Value | None]
Build = Callable[["Node"], Results]

TABLE: dict[str, Build] = {}
CUSTOM: dict[str, Build] = {}

_B = TypeVar("_B", bound=Build)


def tflite_op(*names: str) -> Callable[[_B], _B]:
    """Registers the entry of builtin operators, by their names in the format's enum."""
    return _registering(TABLE, names)


def custom_op(*names: str) -> Callable[[_B], _B]:
    """Registers the entry of custom operators."""
    return _registering(CUSTOM, names)


def _registering(table: dict[str, Build], names: Sequence[str]) -> Callable[[_B], _B]:
    def register(build: _B) -> _B:
        for name in names:
            if name in table or (table is TABLE and name not in ENUMS["BuiltinOperator"].values()):
                raise ValueError(f"{name} is no operator, or has an entry already")
            table[name] = build
        return build

    return register


@dataclass
class Node(Place):
    """One operator of a graph as its entry sees it; a GraphBuilder of `aot.frontends.lib` at its
    place.

    Attributes:
        items: operands; None of those that are left out, or that are variables of the model.
        assigned: what variable tensors become, by the operands' numbers.
    """

    operator: Operator
    graph: Graph
    items: Sequence[Value | None]
    label: str
    rewriter: Rewriter
    values: DimValues
    assigned: dict[int, Value] = field(default_factory=dict)

    @property
    def op(self) -> str:
        return self.operator.name

    # operands

    def tensor(self, number: int) -> Tensor:
        """The file's record of an operand.

        Raises:
            CompileError: there is none.
        """
        if number >= len(self.operator.inputs):
            raise self.error(f"operand {number} is missing")
        return self.graph.tensors[self.operator.inputs[number]]

    def output(self, number: int = 0) -> Tensor:
        """The file's record of a result.

        Raises:
            CompileError: there is none.
        """
        if number >= len(self.operator.outputs):
            raise self.error(f"result {number} is missing")
        return self.graph.tensors[self.operator.outputs[number]]

    @property
    def count(self) -> int:
        """The number of operands."""
        return len(self.operator.inputs)

    def has(self, number: int) -> bool:
        """Whether an operand is present."""
        return number < self.count and self.operator.inputs[number] != NONE

    def input(self, number: int) -> Value:
        """An operand in its stored dtype.

        Raises:
            CompileError: it is left out.
        """
        value = self.items[number] if self.has(number) else None
        if value is None:
            raise self.error(f"operand {number} is missing")
        return value

    def real(self, number: int) -> Value:
        """An operand as real numbers: dequantised if it is quantised, f16 and bf16 as f32."""
        x = self.input(number)
        if x.type.dtype in (DType.F16, DType.BF16):
            return self.cast(x, F32)
        quantization = self.tensor(number).quantization
        if quantization is None or x.type.dtype.is_float:
            return x
        return self.dequantized(x, quantization)

    def dequantized(self, x: Value, q: Quantization) -> Value:
        """Stored integers dequantised: (x - zero) * scale."""
        scale = self.parameter(q.scale, q, x)
        if x.type.dtype is I64:  # sums of 16-bit models
            return self.emit("mul", self.cast(x, F32), scale)
        zero = None
        if q.zero.any():
            zero = self.parameter(self._fitting(q.zero, x.type.dtype), q, x)
        return self.emit("dequantize", x, scale, zero)

    def _fitting(self, zero: Array, dtype: DType) -> Array:
        found = zero.astype(dtype.numpy)
        if not np.array_equal(found, zero):
            raise self.error(f"a zero point is no {dtype}")
        return np.asarray(found)

    def parameter(self, array: Array, q: Quantization, x: Value) -> Value:
        """A scale or zero point, shaped to broadcast to x."""
        if q.is_per_tensor:
            return self.constant(array.reshape(()))
        return self.constant(array.reshape((-1, *[1] * (x.type.rank - 1 - q.axis))))

    def stored_like_output(self, number: int) -> Value:
        """An operand in the output's quantisation, for operators that only move elements; real
        numbers if the quantisations differ."""
        x = self.input(number)
        own, wanted = self.tensor(number).quantization, self.output().quantization
        if x.type.dtype.is_float or wanted is None or wanted.equals(own):
            return x
        return self.real(number) if own is not None else x

    @property
    def is_quantised(self) -> bool:
        """Whether the first result is quantised."""
        return self.output().quantization is not None and not self.output().dtype.is_float

    def ints(self, number: int) -> list[int]:
        """The elements of an integer operand that must be known.

        Raises:
            UnsupportedNodeError: they are computed, or depend on the input's shape.
        """
        found = self.dims_of(number)
        if not all(isinstance(n, int) for n in found):
            raise UnsupportedNodeError(
                f"operand {number} ({self.tensor(number).label}) depends on the input's shape"
            )
        return [n for n in found if isinstance(n, int)]

    def dims_of(self, number: int) -> list[Dim]:
        """The elements of an integer operand as dims; data-dependent ones become symbols.

        Raises:
            UnsupportedNodeError: it is too large to be a shape.
        """
        found = given_dims(self, self.input(number))
        if found is None:
            raise UnsupportedNodeError(
                f"operand {number} ({self.tensor(number).label}) is computed when the model runs"
            )
        return [int(n) if isinstance(n, (int, np.integer)) else n for n in found.reshape(-1)]

    def value_of(self, extents: Sequence[Dim], dtype: DType) -> Value:
        """The product of extents, as a scalar."""
        return self.cast(dim_value(self, dims.product(tuple(extents))), dtype)

    def known(self, number: int) -> Array | None:
        """The elements of an operand, if known; else None."""
        found = self.values.known(self.input(number))
        return None if found is None or found.dtype == object else found

    # options

    def option(self, name: str, default: Any = None) -> Any:
        """A field of the operator's options; `default` if it is absent."""
        options = self.operator.options
        return getattr(options, name) if options is not None and options.has(name) else default

    def enum(self, enum: str, name: str) -> str:
        """The name, in `enum`, of an option's value."""
        value = int(self.option(name, 0))
        members = ENUMS[enum]
        if value not in members:
            raise UnsupportedNodeError(f"{name} {value} is not known")
        return members[value]

    def flexible_options(self) -> dict[str, Any]:
        """The options of a custom operator that are a flexbuffer map.

        Raises:
            CompileError: they are none.
        """
        try:
            found = flexbuffers.Loads(self.operator.custom_options)
        except Exception as error:  # it reads wherever the bytes say
            raise self.error("its options are damaged") from error
        if not isinstance(found, dict):
            raise self.error("its options are no map")
        return found

    # results

    def assign(self, number: int, value: Value) -> None:
        """Assigns a value to the variable tensor that is operand `number`."""
        tensor = self.tensor(number)
        quantization = tensor.quantization
        if quantization is not None and not tensor.dtype.is_float and value.type.dtype.is_float:
            value = self.quantized(value, quantization, tensor.dtype)
        self.assigned[number] = value

    def repeated(
        self,
        count: Dim,
        carried: Sequence[Value],
        body: Callable[[Node, Value, Sequence[Value]], list[Value]],
    ) -> list[Value]:
        """A loop: returns the final carried values, then further values of each iteration, stacked.

        Args:
            body: given a node inside, the number of the run as i64 and the carried values, the
                next ones and the others.
        """
        block = Block([TensorType(I64, ()), *(v.type for v in carried)])
        inside = replace(self, rewriter=Rewriter(self.rewriter.function, block))
        made = body(inside, block.args[0], block.args[1:])
        going = inside.scalar(True, DType.BOOL)
        inside.rewriter.create(YIELD, [going, *made], {}, self.label)
        trips = dim_value(self, count)
        return with_blocks(self, "loop", [trips, None, *carried], block, trips=count)

    def activated(self, x: Value) -> Value:
        """x with the activation that the operator's options fuse."""
        name = self.enum("ActivationFunctionType", "fused_activation_function")
        if name not in ACTIVATIONS:
            raise UnsupportedNodeError(f"a fused activation {name} is not supported")
        return ACTIVATIONS[name](self, x)

    def stored(self, value: Value, number: int = 0) -> Value:
        """A result in the output tensor's dtype, quantised if that is."""
        tensor = self.output(number)
        if tensor.is_complex != (self.op in MAKING_COMPLEX):
            raise self.error(f"{tensor.label} has elements of {tensor.kind}")
        if tensor.is_complex:
            return value
        dtype = tensor.dtype
        quantization = tensor.quantization
        if value.type.dtype.is_float and not dtype.is_float and quantization is not None:
            return self.quantized(value, quantization, dtype)
        if value.type.dtype is dtype or dtype in (DType.F16, DType.BF16):
            return value
        return self.cast(value, dtype)

    def quantized(self, value: Value, q: Quantization, dtype: DType) -> Value:
        """Numbers quantised to integers: round(value / scale) + zero, saturated."""
        if dtype.bits > 16:  # `quantize` makes none of these
            info = np.iinfo(dtype.numpy)
            steps = self("round", self("div", value, self.parameter(q.scale, q, value)))
            zero = self.parameter(q.zero.astype(np.float32), q, value)
            steps = self("add", steps, zero)
            return self.cast(self("maximum", steps, float(info.min)), dtype)
        zero = self.parameter(self._fitting(q.zero, dtype), q, value)
        scale = self.parameter(np.maximum(q.scale, np.finfo(np.float32).tiny), q, value)
        return self.emit("quantize", value, scale, zero, to=dtype)

    def transposed(self, x: Value, perm: Sequence[int]) -> Value:
        """x with its dims permuted. Where x is a cast or dequantised constant, the constant is
        transposed before the conversion, so that folding computes the transpose once.
        """
        if tuple(perm) == tuple(range(x.type.rank)):
            return x
        op = x.op
        source = op.operands[0] if op is not None and op.record in (CAST, DEQUANTIZE) else None
        if op is None or source is None or source.op is None or source.op.name != "constant":
            return self.emit("transpose", x, perm=tuple(perm))
        moved = self.emit("transpose", source, perm=tuple(perm))
        if op.record is CAST:
            return self.cast(moved, x.type.dtype)
        parameters = [v and self._parameter_transposed(v, x, perm) for v in op.operands[1:]]
        return self.emit("dequantize", moved, *parameters)

    def _parameter_transposed(self, v: Value, x: Value, perm: Sequence[int]) -> Value:
        if v.type.rank == 0:
            return v
        whole = (*[1] * (x.type.rank - v.type.rank), *v.type.dims)
        return self.reshape(v, tuple(whole[d] for d in perm))

    def error(self, message: str) -> CompileError:
        """An error in the user's model at this operator."""
        return CompileError(f"{self.described}: {message}")

    @property
    def described(self) -> str:
        return f"{self.op} (operator {self.operator.number}, {self.label!r})"


def with_blocks(
    n: Node,
    name: str,
    operands: Sequence[Value | None],
    block: Block,
    *others: Block,
    **attrs: Attr,
) -> list[Value]:
    """The results of an op with blocks, with the types that the first block yields."""
    record = lookup(name)
    call = record.check([None if v is None else v.type for v in operands], attrs, n.label)
    assert record.body is not None
    yielded = [v.type for v in block.terminator.operands if v is not None]
    types = record.body.result_types(call, yielded)
    op = Op(record, operands, call.attrs, types, [block, *others], n.label)
    return n.rewriter.insert(op).results


def _clamped(low: float, high: float) -> Callable[[Node, Value], Value]:
    return lambda n, x: n("minimum", n("maximum", x, low), high)


# operators of floats that give complex numbers
MAKING_COMPLEX = ("RFFT2D",)
ACTIVATIONS: dict[str, Callable[[Node, Value], Value]] = {
    "NONE": lambda n, x: x,
    "RELU": lambda n, x: n("relu", x),
    "RELU_N1_TO_1": _clamped(-1, 1),
    "RELU6": _clamped(0, 6),
    "TANH": lambda n, x: n("tanh", x),
}
