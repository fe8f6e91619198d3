"""MatMulNBits of ONNX Runtime: matrix products with constant weights of 2, 4 or 8 bits.

The weights of a column are blocks along K, each with a scale and perhaps a zero point; numbers of
less than a byte stand in bytes, the first one in the lowest bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot.frontends.onnx.microsoft import MICROSOFT
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir.builtin import CONSTANT
from aot.ir.graph import ConstantData, Value
from aot.ir.types import Array, DType
from aot.ops.blocked import BITS, Blocks, Codes

F32 = DType.F32
INT8_ACTIVATIONS = 4  # accuracy_level from which activations may be rounded to 8 bits a block


@onnx_op("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(node: Node) -> Value:
    blocks, columns = _blocks(node), node.int_attr("N")
    if node.int_attr("weight_prepacked", 0):
        raise UnsupportedNodeError("weights that ONNX Runtime has packed are not supported")
    a = node.input(0)
    depth = a.type.dims[-1] if a.type.rank else 0
    if depth != blocks.k and isinstance(depth, int):
        raise node.error(f"A has rows of {depth} elements, but attribute 'K' is {blocks.k}")
    _check_order(node, blocks)
    stored = blocks.count, -(-blocks.block * blocks.bits // 8)
    raw = _known(node, 1, "B", np.uint8)
    raw = _shaped(node, raw, (columns, *stored), "B")
    codes = _numbers(raw, blocks.bits)[..., : blocks.block].reshape(columns, -1)[:, : blocks.k]
    scales = _known(node, 2, "scales", a.type.dtype.numpy)
    scales = _shaped(node, scales, (columns, blocks.count), "scales")
    if not bool(np.isfinite(scales).all()):
        raise node.error("scales has NaN or infinite elements")
    zeros = _zero_points(node, blocks, columns)
    may_quantize = node.int_attr("accuracy_level", 0) >= INT8_ACTIVATIONS
    made = Codes(codes, scales, zeros, blocks)
    if isinstance(zeros, np.ndarray) and zeros.dtype.kind == "f":
        minimums = -zeros * scales.astype(np.float32)
        made = Codes(codes, scales, 0, blocks, minimums)
    product = _in_blocks(node, a, made, may_quantize)
    bias = node.optional(5)
    return product if bias is None else node.emit("add", product, bias)


def _blocks(node: Node) -> Blocks:
    """How the weights are stored.

    Raises:
        CompileError: attributes are out of range.
    """
    bits, block, depth = (
        node.int_attr("bits", 4),
        node.int_attr("block_size", 0),
        node.int_attr("K"),
    )
    if bits not in BITS:
        raise node.error(f"attribute 'bits' is {bits}, expected 2, 4 or 8")
    if block < 16 or block & (block - 1):
        raise node.error(
            f"attribute 'block_size' is {block}, expected a power of two of 16 or more"
        )
    for name in ("K", "N"):
        if node.int_attr(name) < 1:
            raise node.error(f"attribute {name!r} is {node.int_attr(name)}, expected 1 or more")
    return Blocks(depth, block, bits)


def _known(node: Node, number: int, what: str, dtype: object) -> Array:
    """A constant operand.

    Raises:
        CompileError: it has not the dtype.
    """
    found = _contents(node, number, what)
    if found.dtype != dtype:
        raise node.error(f"{what} is {found.dtype}, expected {np.dtype(dtype)}")  # type: ignore[call-overload]
    return found


def _contents(node: Node, number: int, what: str) -> Array:
    """The elements of a constant operand, however many."""
    value = node.input(number)
    if value.op is not None and value.op.record is CONSTANT:
        data = value.op.attrs["value"]
        assert isinstance(data, ConstantData)
        return data.logical
    found = node.values.known(value)
    if found is None or found.dtype == object:
        raise UnsupportedNodeError(f"operand {number} ({what}) is not known at compile time")
    return found


def _shaped(node: Node, array: Array, shape: Sequence[int], what: str) -> Array:
    """The array in a shape, of which it has the elements."""
    if array.size != int(np.prod(shape)):
        raise node.error(
            f"{what} has shape {list(array.shape)}, expected {list(shape)} by the node's attributes"
        )
    return array.reshape(shape)


def _numbers(raw: Array, bits: int) -> Array:
    """The numbers of bytes [..., n], as u8[..., 8 / bits * n]."""
    mask = np.uint8((1 << bits) - 1)
    parts = [(raw >> np.uint8(shift)) & mask for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*raw.shape[:-1], -1)


def _check_order(node: Node, blocks: Blocks) -> None:
    """Refuses an order of K other than that of the blocks."""
    if node.optional(4) is None:
        return
    order = _shaped(node, _known(node, 4, "g_idx", np.int32)[: blocks.k], (blocks.k,), "g_idx")
    if not np.array_equal(order, np.arange(blocks.k) // blocks.block):
        raise UnsupportedNodeError(
            "blocks in another order than that of K (g_idx) are not supported"
        )


def _zero_points(node: Node, blocks: Blocks, columns: int) -> Array | int:
    """One number a block, of the codes' dtype or a float; or one for all."""
    if node.optional(3) is None:
        return 1 << (blocks.bits - 1)
    found = _contents(node, 3, "zero_points")
    if found.dtype.kind == "f":
        zeros = _shaped(node, found, (columns, blocks.count), "zero_points")
        whole = zeros.astype(np.float32)
        top = (1 << blocks.bits) - 1
        if bool((whole == np.rint(whole)).all()) and whole.min() >= 0 and whole.max() <= top:
            zeros = whole.astype(np.uint8)
        else:
            return whole
    elif found.dtype == np.uint8:
        row = -(-blocks.count * blocks.bits // 8)
        packed = _shaped(node, found, (columns, row), "zero_points")
        zeros = _numbers(packed, blocks.bits)[:, : blocks.count]
    else:
        raise UnsupportedNodeError(f"zero points of {found.dtype} are not supported")
    first = int(zeros[0, 0])
    return first if bool((zeros == first).all()) else zeros


def _in_blocks(node: Node, a: Value, codes: Codes, may_quantize: bool) -> Value:
    """The product on the weights as they are stored."""
    left = node.reshape(a, (1, *a.type.dims)) if a.type.rank == 1 else a
    constants: list[Value | None] = [node.constant(array) for array in codes.operands()]
    attrs = {**codes.attrs(), "may_quantize": may_quantize}
    product = node.emit("matmul_blocked", node.cast(left, F32), *constants, **attrs)
    product = node.cast(product, a.type.dtype)
    return node.reshape(product, product.type.dims[1:]) if a.type.rank == 1 else product
