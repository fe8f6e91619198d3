"""MatMulNBits and GatherBlockQuantized of ONNX Runtime: constant weights of 2, 4 or 8 bits.

The weights of a column are blocks along K, each with a scale and perhaps a zero point; numbers of
less than a byte stand in bytes, the first one in the lowest bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot.base.records import dataclass
from aot.frontends.onnx.microsoft import MICROSOFT
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir import dims
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
    stored = blocks.count, -(-blocks.block * blocks.bits // 8)
    raw = _contents(node, 1, "B")
    raw = _shaped(node, raw, (columns, *stored), "B")
    codes = _numbers(raw, blocks.bits)[..., : blocks.block].reshape(columns, -1)[:, : blocks.k]
    scales = _contents(node, 2, "scales")
    scales = _shaped(node, scales, (columns, blocks.count), "scales")
    if not bool(np.isfinite(scales).all()):
        raise node.error("scales has NaN or infinite elements")
    zeros = _zero_points(node, blocks, columns)
    order = _order(node, blocks)
    if order is not None:
        a = node.emit("gather", a, node.constant(order), axis=a.type.rank - 1)
        codes = codes[:, order]
    may_quantize = node.int_attr("accuracy_level", 0) >= INT8_ACTIVATIONS
    made = Codes(codes, scales, zeros, blocks)
    if isinstance(zeros, np.ndarray) and zeros.dtype.kind == "f":
        minimums = -zeros * scales.astype(np.float32)
        made = Codes(codes, scales, 0, blocks, minimums)
    product = _in_blocks(node, a, made, may_quantize)
    bias = node.optional(5)
    return product if bias is None else node.emit("add", product, bias)


def _blocks(node: Node) -> Blocks:
    """The block format of the weights, from the node's attributes.

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


def _contents(node: Node, number: int, what: str) -> Array:
    """The elements of a constant operand, of any number."""
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
    """The array reshaped to `shape`; an error if the number of elements differs."""
    if array.size != int(np.prod(shape)):
        raise node.error(
            f"{what} has shape {list(array.shape)}, expected {list(shape)} by the node's attributes"
        )
    return array.reshape(shape)


def _numbers(raw: Array, bits: int) -> Array:
    """The numbers packed in bytes [..., n], as u8[..., 8 / bits * n]."""
    mask = np.uint8((1 << bits) - 1)
    parts = [(raw >> np.uint8(shift)) & mask for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*raw.shape[:-1], -1)


def _order(node: Node, blocks: Blocks) -> Array | None:
    """The permutation of K after which blocks are consecutive; None if they already are.

    Raises:
        UnsupportedNodeError: a block has more or fewer elements than the others.
    """
    if node.optional(4) is None:
        return None
    given = _contents(node, 4, "g_idx").reshape(-1)[: blocks.k]
    block_of = _shaped(node, given, (blocks.k,), "g_idx")
    wanted = np.arange(blocks.k) // blocks.block
    if np.array_equal(block_of, wanted):
        return None
    order = np.argsort(block_of, kind="stable")
    if not np.array_equal(block_of[order], wanted):
        raise UnsupportedNodeError("blocks of different sizes (g_idx) are not supported")
    return order


def _zero_points(node: Node, blocks: Blocks, columns: int) -> Array | int:
    """The zero points, one per block, in the codes' dtype or as floats; or one for all."""
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
    """The product with the weights in their stored format."""
    left = node.reshape(a, (1, *a.type.dims)) if a.type.rank == 1 else a
    constants = [None if a is None else node.constant(a) for a in codes.operands()]
    attrs = {**codes.attrs(), "may_quantize": may_quantize}
    product = node.emit("matmul_blocked", node.cast(left, F32), *constants, **attrs)
    product = node.cast(product, a.type.dtype)
    return node.reshape(product, product.type.dims[1:]) if a.type.rank == 1 else product


@onnx_op("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(node: Node) -> Value:
    """GatherBlockQuantized: rows of a table quantised in blocks of its last dim; they are unpacked
    when read."""
    data, indices = _known_codes(node), node.input(1)
    bits = 8 if data.bits == 8 else 4
    rank = data.stored.ndim
    gather = node.axis_attr(rank, 0, "gather_axis")
    quantized = node.axis_attr(rank, 1, "quantize_axis")
    size = node.int_attr("block_size", 128)
    if quantized != rank - 1 or gather == quantized:
        raise UnsupportedNodeError(
            f"blocks along axis {quantized} and rows along axis {gather} of a tensor of rank "
            f"{rank}; blocks along the last one are supported"
        )
    if size < 16 or size & (size - 1):
        raise node.error(f"attribute 'block_size' is {size}, expected a power of two of 16 or more")
    scales = node.input(2)
    width = data.stored.shape[-1] * (8 // bits)
    count = -(-width // size)
    if scales.type.dims[-1] != count:
        raise node.error(f"scales has {scales.type.dims[-1]} blocks a row, expected {count}")

    def rows(x: Value) -> Value:
        return node.emit("gather", x, indices, axis=gather)

    codes = node.cast(_unpacked(node, rows(node.constant(data.stored)), bits), DType.I32)
    zeros = _zeros_of_rows(node, data, bits, count)
    if isinstance(zeros, Value):
        found = node.cast(_unpacked(node, rows(zeros), bits), DType.I32)
        offset = _spread(node, _first_columns(node, found, count), size, width)
    else:
        offset = node.scalar(zeros, DType.I32)
    dtype = scales.type.dtype
    difference = node.cast(node.emit("sub", codes, offset), dtype)
    return node.emit("mul", difference, _spread(node, rows(scales), size, width))


@dataclass(frozen=True)
class _Table:
    """A stored table of numbers with few bits.

    Attributes:
        stored: u8[..., bytes].
        bits: of a number.
        is_signed: numbers count from -8, and are stored 8 higher.
    """

    stored: Array
    bits: int
    is_signed: bool


def _packed(codes: Array) -> Array:
    """4-bit numbers packed in bytes, the first in the lowest bits; the last byte of a row may be
    half used."""
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], axis=-1)
    return np.asarray(codes[..., ::2] | (codes[..., 1::2] << 4), np.uint8)


def _known_codes(node: Node) -> _Table:
    found = _contents(node, 0, "data")
    narrow = node.element_type(0)
    if narrow is None:  # bytes, as they are stored
        bits = node.int_attr("bits", 4)
        if bits not in (4, 8):
            raise UnsupportedNodeError(f"attribute 'bits' is {bits}, expected 4 or 8")
        return _Table(found, bits, False)
    node.ignore("bits")
    is_signed = found.dtype.kind == "i"
    codes = (found.astype(np.int16) + (8 if is_signed else 0)).astype(np.uint8)
    if codes.shape[-1] % 2:
        raise UnsupportedNodeError("rows of an odd number of elements of 4 bits")
    return _Table(_packed(codes), 4, is_signed)


def _zeros_of_rows(node: Node, data: _Table, bits: int, count: int) -> Value | int:
    """The zero points of a table's rows, packed like the codes; or one number for all."""
    usual = 8 if data.is_signed or bits == 4 else 128
    if node.optional(3) is None:
        narrow = node.element_type(0)
        return usual if narrow is None or data.is_signed else 0
    found = _contents(node, 3, "zero_points")
    if node.element_type(3) is None:
        return node.constant(found)
    shifted = (found.astype(np.int16) + (8 if data.is_signed else 0)).astype(np.uint8)
    return node.constant(_packed(shifted))


def _unpacked(node: Node, rows: Value, bits: int) -> Value:
    """The numbers packed in bytes [..., n], as u8[..., 8 / bits * n]."""
    if bits == 8:
        return rows
    *outer, count = rows.type.dims
    low = node.emit("bit_and", rows, node.scalar(15, DType.U8))
    high = node.emit("shift_right", rows, node.scalar(4, DType.U8))
    columns = [node.reshape(x, (*outer, count, 1)) for x in (low, high)]
    both = node.emit("concat", *columns, axis=rows.type.rank)
    return node.reshape(both, (*outer, dims.multiply(count, 2)))


def _first_columns(node: Node, x: Value, count: int) -> Value:
    if x.type.dims[-1] == count:
        return x
    *outer, _ = x.type.dims
    zeros, ones = (0,) * x.type.rank, (1,) * x.type.rank
    return node.emit("slice", x, starts=zeros, stops=(*outer, count), steps=ones)


def _spread(node: Node, x: Value, size: int, width: int) -> Value:
    """Each element of the last dim repeated `size` times, cut to `width` elements in total."""
    *outer, count = x.type.dims
    x = node.reshape(x, (*outer, count, 1))
    x = node.emit("broadcast_to", x, shape=(*outer, count, size))
    return _first_columns(node, node.reshape(x, (*outer, dims.multiply(count, size))), width)
