"""Random quantised graphs, and what their definition gives in exact arithmetic.

Every quantised tensor of a graph is one of its results. The definition of a result is computed in
float64 from what was found of the results before it, so that one step of difference at a tie is not
counted again behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aot.builder import Builder
from aot.ir.builtin import CONSTANT
from aot.ir.graph import ConstantData, Function, Module, Value
from aot.ir.record import call_of
from aot.ops.quantization import DEQUANTIZE, QUANTIZE

Array = np.ndarray[Any, Any]
# how near to a tie a number may be that is rounded to the other side
NEAR_TIE = 1e-4


class QuantisedGraph:
    """A graph of `size` quantised tensors, each made of those before it as `seed` has it.

    Attributes:
        module: the graph; its inputs and results are u8 or i8.
    """

    def __init__(self, seed: int, size: int = 5) -> None:
        self.random = np.random.default_rng(seed)
        self.b = Builder()
        self.tensors: list[tuple[Value, float, int]] = []
        for number in range(2):
            dtype = self.choice("u8", "i8")
            channels = int(self.random.integers(1, 5))
            x = self.b.input(f"x{number}", f"{dtype}[1, {channels}, 6, 5]")
            self.tensors.append((x, *self.parameters(dtype)))
        for number in range(size):
            made = self.step()
            dtype = self.choice("u8", "i8")
            scale, zero = self.scale_for(made, dtype)
            y = self.b.op("quantize", made, self.f32(scale), self.b.constant(zero, dtype), to=dtype)
            self.tensors.append((y, scale, zero))
            self.b.output(f"y{number}", y)
        self.module: Module = self.b.module()

    def choice(self, *items: Any) -> Any:
        return items[int(self.random.integers(len(items)))]

    def f32(self, value: Any) -> Value:
        return self.b.constant(np.asarray(value, np.float32))

    def parameters(self, dtype: str) -> tuple[float, int]:
        low, high = (0, 255) if dtype == "u8" else (-128, 127)
        zero = self.choice(low, high, int(self.random.integers(low, high + 1)), (low + high) // 2)
        return float(np.float32(self.random.uniform(0.002, 0.1))), zero

    def scale_for(self, value: Value, dtype: str) -> tuple[float, int]:
        """Parameters of a result, some of which are those of a tensor that is there already."""
        same = [(s, z) for x, s, z in self.tensors if str(x.type.dtype) == dtype]
        if same and self.random.random() < 0.4:
            return self.choice(*same)
        return self.parameters(dtype)

    def floats(self) -> Value:
        """A tensor, dequantised."""
        x, scale, zero = self.tensors[int(self.random.integers(len(self.tensors)))]
        return self.b.op("dequantize", x, self.f32(scale), self.b.constant(zero, str(x.type.dtype)))

    def step(self) -> Value:
        kinds = ("conv", "conv", "matmul", "product", "add", "concat", "pool", "move", "same")
        x = getattr(self, self.choice(*kinds))(self.floats())
        after = self.choice("", "", "relu", "clip", "move", "scale")
        if after == "relu":
            return self.b.op("relu", x)
        if after == "clip":
            return self.b.op("minimum", self.b.op("maximum", x, self.f32(-0.7)), self.f32(1.1))
        if after == "scale":
            return self.b.op("mul", x, self.f32(self.random.uniform(0.5, 2)))
        return self.move(x) if after == "move" else x

    def weights(self, shape: tuple[int, ...], axis: int) -> tuple[Value, Array]:
        """Constant weights, dequantised, and their scales."""
        dtype, is_by_column = self.choice("i8", "i8", "u8"), self.random.random() < 0.6
        low, high = (0, 255) if dtype == "u8" else (-128, 127)
        count = shape[axis] if is_by_column else 1
        scales = self.random.uniform(0.001, 0.02, count).astype(np.float32)
        zeros = self.random.integers(low, high + 1, count) if dtype == "u8" else np.zeros(count)
        dims = [count if d == axis else 1 for d in range(len(shape))] if is_by_column else []
        stored = self.random.integers(low, high + 1, shape)
        value = self.b.op(
            "dequantize",
            self.b.constant(stored, dtype),
            self.f32(scales.reshape(dims)),
            self.b.constant(zeros.reshape(dims), dtype),
        )
        return value, scales

    def bias(self, x: Value, scales: Array, count: int) -> Value:
        """A bias: in i32 with the scale of the sums, or in floats."""
        stored = self.random.integers(-3000, 3000, count)
        op = x.op
        source = op.operands[1].op if op is not None and op.record is DEQUANTIZE else None
        if source is None or self.random.random() < 0.3:
            return self.f32(stored * 1e-3)
        scale = source.attrs["value"].array.reshape(()) * scales
        scale = np.broadcast_to(scale, (count,)) if scale.size == 1 else scale
        return self.b.op("dequantize", self.b.constant(stored, "i32"), self.f32(scale))

    def conv(self, x: Value) -> Value:
        channels = int(x.type.dims[1])
        group = self.choice(1, 1, channels)
        filters = group * int(self.random.integers(1, 4))
        size = self.choice(1, 2, 3)
        pads = tuple(int(p) for p in self.random.integers(0, size, 4))
        w, scales = self.weights((filters, channels // group, size, size), 0)
        bias = self.bias(x, scales, filters) if self.random.random() < 0.6 else None
        stride = self.choice(1, 1, 2)
        if min(int(d) for d in x.type.dims[2:]) < size:
            return x
        return self.b.op(
            "conv",
            x,
            w,
            bias,
            strides=(stride, stride),
            dilations=(1, 1),
            pads=pads,
            group=group,
        )

    def matmul(self, x: Value) -> Value:
        inner, columns = int(x.type.dims[-1]), int(self.random.integers(1, 8))
        w, scales = self.weights((inner, columns), 1)
        y = self.b.op("matmul", x, w)
        if self.random.random() < 0.6:
            y = self.b.op("add", y, self.bias(x, scales, columns))
        return y

    def product(self, x: Value) -> Value:
        """A product of two computed operands, or of constant weights from the left, of rows enough
        that it is one of integers."""
        count, height = int(self.random.integers(22, 40)), int(x.type.dims[-2])
        if self.random.random() < 0.3:
            w, _ = self.weights((count, height), 0)
            return self.b.op("matmul", w, x)
        other = self.b.op("transpose", self.alike(x), perm=(0, 1, 3, 2))
        rows = self.b.constant(np.arange(count) % height)
        product = self.b.op("matmul", self.b.op("gather", x, rows, axis=2), other)
        dims = product.type.dims
        return self.b.op(
            "slice", product, starts=(0,) * 4, stops=(*dims[:2], 9, dims[3]), steps=(1,) * 4
        )

    def alike(self, x: Value) -> Value:
        """A tensor, dequantised, of the same dims as `x`, which may be that itself."""
        others = [t for t in self.tensors if t[0].type.dims == x.type.dims]
        if not others:
            return x
        y, scale, zero = self.choice(*others)
        return self.b.op("dequantize", y, self.f32(scale), self.b.constant(zero, str(y.type.dtype)))

    def add(self, x: Value) -> Value:
        return self.b.op("add", x, self.alike(x))

    def concat(self, x: Value) -> Value:
        other = self.floats()
        if other.type.dims[:1] + other.type.dims[2:] != x.type.dims[:1] + x.type.dims[2:]:
            other = x
        return self.b.op("concat", x, other, axis=1)

    def pool(self, x: Value) -> Value:
        if min(int(d) for d in x.type.dims[2:]) < 2:
            return x
        return self.b.op(
            "max_pool", x, kernel=(2, 2), strides=(1, 2), dilations=(1, 1), pads=(1, 0, 0, 1)
        )

    def move(self, x: Value) -> Value:
        kind = self.choice("transpose", "slice", "pad", "gather", "reshape")
        if kind == "transpose":
            return self.b.op("transpose", x, perm=(0, 1, 3, 2))
        dims = [int(d) for d in x.type.dims]
        if kind == "slice":
            return self.b.op(
                "slice", x, starts=(0,) * 4, stops=(*dims[:3], -(-dims[3] // 2)), steps=(1,) * 4
            )
        if kind == "pad":
            value = self.choice(0.0, 0.25)
            return self.b.op("pad", x, pads=(0, 0, 1, 0, 0, 0, 0, 1), mode="constant", value=value)
        if kind == "gather":
            at = np.repeat(np.arange(dims[2]), 2)[:7]
            return self.b.op("gather", x, self.b.constant(at.astype(np.int64)), axis=2)
        return self.b.op("reshape", x, shape=(1, dims[1], dims[3], dims[2]))

    def same(self, x: Value) -> Value:
        return x

    def inputs(self) -> dict[str, Array]:
        found = {}
        for value in self.module.main.inputs:
            info = np.iinfo(value.type.dtype.numpy)
            found[value.name] = self.random.integers(
                info.min, info.max, value.type.shape, value.type.dtype.numpy, endpoint=True
            )
        return found


def differences(
    function: Function, inputs: Mapping[str, Array], found: Sequence[Array]
) -> tuple[str, int]:
    """What of `found` is not the definition's, "" if nothing; and how many elements, all near a
    tie, are one step off."""
    results = dict(zip(function.results, found, strict=True))
    values: dict[Value, Array] = {v: inputs[v.name] for v in function.inputs}
    near = 0
    for op in function.block:
        if op.record.is_terminator:
            break
        operands = [None if v is None else values[v] for v in op.operands]
        if op.record is CONSTANT:
            data = op.attrs["value"]
            assert isinstance(data, ConstantData)
            values[op.result] = data.array
        elif op.record is DEQUANTIZE:
            x, scale, *zero = operands
            centred = x.astype(np.float64) - sum(
                z.astype(np.float64) for z in zero if z is not None
            )
            values[op.result] = centred * scale.astype(np.float64)
        elif op.record is QUANTIZE:
            problem, ties = _compare(op.result, operands, results[op.result])
            if problem:
                return f"{op.result.name or op.result}: {problem}", near
            near += ties
            values[op.result] = results[op.result]
        else:
            wide = [
                a.astype(np.float64) if a is not None and a.dtype.kind == "f" else a
                for a in operands
            ]
            assert op.record.reference is not None
            (values[op.result],) = op.record.reference(call_of(op), wide)
    return "", near


def _compare(result: Value, operands: Sequence[Any], found: Array) -> tuple[str, int]:
    """As `differences`, of one `quantize`."""
    y, scale, zero = operands
    info = np.iinfo(found.dtype)
    exact = y / scale.astype(np.float64)
    expected = np.clip(np.rint(exact) + zero.astype(np.float64), info.min, info.max)
    off = np.abs(found.astype(np.float64) - expected)
    distance = np.abs(np.abs(exact - np.floor(exact)) - 0.5)
    wrong = (off > 1) | ((off > 0) & (distance > NEAR_TIE))
    if found.shape != expected.shape or wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else ()
        return f"at {at} {found[at]}, expected {expected[at]}, which was {exact[at]}", 0
    return "", int((off > 0).sum())
