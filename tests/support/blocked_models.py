"""ONNX models whose products have weights of few bits, by blocks: MatMulNBits, DequantizeLinear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
_OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]


def _model(
    nodes: list[onnx.NodeProto],
    shape: tuple[int | str, ...],
    init: list[onnx.TensorProto],
    dtype: Any,
) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("a", kind, list(shape))],
        [onnx.ValueInfoProto(name="y")],
        init,
    )
    return helper.make_model(graph, ir_version=10, opset_imports=_OPSETS)


@dataclass(frozen=True)
class NBits:
    """A MatMulNBits node, "the node".

    Attributes:
        zeros: "" for none, "packed" for numbers of as many bits, "whole" and "float" for floats.
        attrs: attributes that are otherwise than the fields say.
        arrays: operands that are, by name.
    """

    rows: int | str
    k: int
    columns: int
    block: int = 32
    bits: int = 4
    zeros: str = ""
    dtype: Any = np.float32
    has_bias: bool = False
    order: Array | None = None
    batch: tuple[int, ...] = ()
    attrs: Mapping[str, int] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def operands(self) -> dict[str, Array]:
        rng = np.random.default_rng(self.k + self.columns)
        blocks = -(-self.k // self.block)
        size = self.block * self.bits // 8
        found: dict[str, Array] = {
            "B": rng.integers(0, 256, (self.columns, blocks, size)).astype(np.uint8),
            "scales": rng.uniform(0.01, 0.1, (self.columns, blocks)).astype(self.dtype),
        }
        if self.zeros == "packed":
            row = -(-blocks * self.bits // 8)
            found["zero_points"] = rng.integers(0, 256, (self.columns, row)).astype(np.uint8)
        elif self.zeros:
            zeros = rng.uniform(0, (1 << self.bits) - 1, (self.columns, blocks))
            zeros = np.rint(zeros) if self.zeros == "whole" else zeros
            found["zero_points"] = zeros.astype(self.dtype)
        if self.order is not None:
            found["g_idx"] = self.order.astype(np.int32)
        if self.has_bias:
            found["bias"] = rng.standard_normal(self.columns).astype(self.dtype)
        return {**found, **self.arrays}

    def model(self) -> onnx.ModelProto:
        arrays = self.operands()
        names = ["a"]
        for name in ("B", "scales", "zero_points", "g_idx", "bias"):
            names.append(name if name in arrays else "")
        while not names[-1]:
            names.pop()
        attrs = {"K": self.k, "N": self.columns, "bits": self.bits, "block_size": self.block}
        node = helper.make_node(
            "MatMulNBits",
            names,
            ["y"],
            name="the node",
            domain="com.microsoft",
            **{**attrs, **self.attrs},
        )
        init = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        return _model([node], (*self.batch, self.rows, self.k), init, self.dtype)

    def weights(self) -> Array:
        """[k, columns] in f64, of a node without zero points, with packed ones or with floats."""
        arrays, mask = self.operands(), (1 << self.bits) - 1
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)

        def numbers(raw: Array) -> Array:
            return ((raw[..., None] >> shifts) & mask).reshape(*raw.shape[:-1], -1).astype(int)

        zeros: Array | int = (mask + 1) // 2
        blocks = arrays["scales"].shape[1]
        if self.zeros == "float":
            zeros = arrays["zero_points"].astype(float)[..., None]
        elif "zero_points" in arrays:
            zeros = numbers(arrays["zero_points"])[:, :blocks, None]
        centred = numbers(arrays["B"])[..., : self.block] - zeros
        scaled = centred * arrays["scales"].astype(float)[..., None]
        return scaled.reshape(self.columns, -1)[:, : self.k].T

    def left(self, rows: int = 0) -> Array:
        rng = np.random.default_rng(1)
        extent = rows or self.rows
        assert isinstance(extent, int)
        return rng.standard_normal((*self.batch, extent, self.k)).astype(self.dtype)


@dataclass(frozen=True)
class Dequantized:
    """A product with the result of a DequantizeLinear by blocks.

    Attributes:
        kind: of the numbers: "uint4", "int4", "uint8", "int8".
        block: 0 is one scale for each column.
        is_turned: whether the numbers are [columns, k], and then transposed; by Gemm's attribute
            with `op` "Gemm".
    """

    rows: int
    k: int
    columns: int
    block: int
    kind: str = "int4"
    op: str = "MatMul"
    is_turned: bool = False
    has_zeros: bool = False
    dtype: Any = np.float32

    def model(self) -> onnx.ModelProto:
        rng = np.random.default_rng(self.k + self.columns)
        bits = int(self.kind[-1])
        low, high = (0, 1 << bits) if self.kind[0] == "u" else (-(1 << bits - 1), 1 << bits - 1)
        shape = (self.columns, self.k) if self.is_turned else (self.k, self.columns)
        axis = 1 if self.is_turned else 0
        blocks = list(shape)
        blocks[axis] = -(-self.k // self.block) if self.block else 1
        if not self.block:
            blocks = [self.columns]
        scales = rng.uniform(0.01, 0.1, blocks).astype(self.dtype)
        init = [
            self._numbers("q", rng.integers(low, high, shape)),
            numpy_helper.from_array(scales, "s"),
        ]
        names = ["q", "s"]
        if self.has_zeros:
            init.append(self._numbers("z", rng.integers(low, high, blocks)))
            names.append("z")
        attrs = {"axis": axis, "block_size": self.block} if self.block else {"axis": 1 - axis}
        nodes = [helper.make_node("DequantizeLinear", names, ["w"], name="the node", **attrs)]
        if self.op == "Gemm":
            nodes.append(helper.make_node("Gemm", ["a", "w"], ["y"], transB=int(self.is_turned)))
        else:
            if self.is_turned:
                nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
            nodes.append(helper.make_node("MatMul", ["a", "t" if self.is_turned else "w"], ["y"]))
        return _model(nodes, (self.rows, self.k), init, self.dtype)

    def _numbers(self, name: str, numbers: Array) -> onnx.TensorProto:
        kind = getattr(TensorProto, self.kind.upper())
        return helper.make_tensor(name, kind, numbers.shape, numbers.reshape(-1).tolist())

    def left(self) -> Array:
        rng = np.random.default_rng(1)
        return rng.standard_normal((self.rows, self.k)).astype(self.dtype)
