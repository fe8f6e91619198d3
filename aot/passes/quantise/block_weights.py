"""Float products with block-quantised weights, which keep their stored bits: finds and rewrites
them.

A `matmul` whose right side is a dequantised constant, moved perhaps, becomes `matmul_blocked`. The
block is found in the scales and zero points themselves: as many neighbours along K as share them
in all columns.
"""

from __future__ import annotations

import math

import numpy as np

from aot.ir.graph import Attr, Op, Value
from aot.ir.record import OpRecord, call_of
from aot.ir.rewriter import Rewriter
from aot.ir.types import Array
from aot.ops.blocked import (
    BITS,
    LEFT_SCALES,
    MATMUL_BLOCKED,
    Blocks,
    Codes,
    blocks_of,
    weights,
)
from aot.ops.contraction import MATMUL
from aot.ops.elementwise import ABS, CAST, DIV, MUL
from aot.ops.movement import PAD, RESHAPE, SLICE, TRANSPOSE
from aot.ops.quantization import DEQUANTIZE, QUANTIZE
from aot.ops.reduction import REDUCE_MAX
from aot.passes.quantise.factors import F32, I8, cast, constant, known

FEATURE = "blocked-weights"
LEAST_BLOCK = 4  # in smaller ones scales take as much as the weights
_MOVES = (RESHAPE, TRANSPOSE)


def as_blocked(op: Op, rewriter: Rewriter) -> Value | None:
    """Rewrites a float `matmul` with a dequantised constant to `matmul_blocked` on the stored
    codes; None if it does not apply."""
    left, right = op.operands
    if left is None or right is None or not left.type.dtype.is_float or known(left) is not None:
        return None
    codes = codes_of(right)
    if codes is None:
        return None
    made = product(op, rewriter, cast(op, rewriter, left, F32), codes)
    return cast(op, rewriter, made, op.result.type.dtype)


def in_floats(op: Op, rewriter: Rewriter) -> Value | None:
    """Rewrites an f32 `matmul_blocked` to a `matmul` with float weights."""
    left = op.operands[0]
    arrays = [None, *(known(operand) for operand in op.operands[1:])]
    if (
        left is None
        or left.type.dtype is not F32
        or any(
            a is None and v is not None for a, v in zip(arrays[1:], op.operands[1:], strict=True)
        )
    ):
        return None
    array = weights(call_of(op), arrays).astype(np.float32)
    return rewriter.create(MATMUL, [left, constant(op, rewriter, array)], {}, op.origin).result


def product(op: Op, rewriter: Rewriter, left: Value, codes: Codes, **attrs: Attr) -> Value:
    """Creates the f32 `matmul_blocked` of `left` and the weights `codes`."""
    constants = [None if a is None else constant(op, rewriter, a) for a in codes.operands()]
    attrs = {**codes.attrs(), **attrs}
    return rewriter.create(MATMUL_BLOCKED, [left, *constants], attrs, op.origin).result


def with_bytes(op: Op, rewriter: Rewriter) -> Value | None:
    """Quantises the left side of an f32 `matmul_blocked` to 8 bits. Each block of a row is scaled
    so that its largest magnitude becomes 127, and rounded to nearest."""
    left = op.operands[0]
    if left is None or left.type.dtype is not F32:
        return None
    blocks = blocks_of(call_of(op))
    *outer, depth = left.type.dims
    rank, more = len(outer) + 1, blocks.count * blocks.block - blocks.k

    def make(record: OpRecord, *operands: Value, **attrs: Attr) -> Value:
        return rewriter.create(record, operands, attrs, op.origin).result

    whole = left
    if more:
        whole = make(PAD, left, pads=(*[0] * rank, *[0] * (rank - 1), more))
    rows = make(RESHAPE, whole, shape=(*outer, blocks.count, blocks.block))
    largest = make(REDUCE_MAX, make(ABS, rows), axes=(rank,), keepdims=True)
    top = constant(op, rewriter, np.asarray(127, np.float32))
    # the quotient of zeros is no number, which becomes 0
    numbers = make(QUANTIZE, make(MUL, rows, make(DIV, top, largest)), to=I8)
    scales = make(MUL, largest, constant(op, rewriter, np.asarray(1 / 127, np.float32)))
    numbers = make(RESHAPE, numbers, shape=(*outer, blocks.count * blocks.block))
    if more:
        ends = {"starts": (0,) * rank, "stops": (*outer, depth), "steps": (1,) * rank}
        numbers = make(SLICE, numbers, **ends)
    scales = make(RESHAPE, scales, shape=(*outer, blocks.count))
    operands = [numbers, *op.operands[1:]]
    operands += [None] * (LEFT_SCALES + 1 - len(operands))
    operands[LEFT_SCALES] = scales
    return rewriter.create(MATMUL_BLOCKED, operands, op.attrs, op.origin).result


def codes_of(right: Value) -> Codes | None:
    """The integer codes, scales and zero points of a matrix [k, columns] that is a (possibly
    transposed or reshaped) `dequantize` of constants; None for others, or where keeping the codes
    saves nothing.
    """
    found = dequantized(right) if right.type.rank == 2 else None
    if found is None:
        return None
    x, scale, zero = found
    block = math.gcd(*(_block(a) for a in (scale, zero) if a is not None))
    if block < min(LEAST_BLOCK, x.shape[0]):
        return None
    return _shifted(x, scale[::block].T, None if zero is None else zero[::block].T, block)


def dequantized(value: Value) -> tuple[Array, Array, Array | None] | None:
    """(8-bit numbers, scales, zero points), each in the value's shape, of a possibly moved
    `dequantize` of constants; None for others."""
    whole, moves = value, []
    while value.op is not None and (
        value.op.record in _MOVES or (value.op.record is CAST and value.type.dtype.is_float)
    ):
        moves.append(value.op)
        (inner,) = value.op.operands
        assert inner is not None
        value = inner
    maker = value.op
    if maker is None or maker.record is not DEQUANTIZE or not whole.type.is_static:
        return None
    arrays = [known(operand) for operand in maker.operands]
    if any(a is None and v is not None for a, v in zip(arrays, maker.operands, strict=True)):
        return None
    x, scale, zero = [_moved(a, value, moves) for a in (*arrays, None)[:3]]
    assert x is not None and scale is not None
    return None if x.dtype.itemsize != 1 or 0 in x.shape else (x, scale, zero)


def _moved(array: Array | None, value: Value, moves: list[Op]) -> Array | None:
    """The array `value`, or a parameter of its shape, after the movements `moves`."""
    if array is None:
        return None
    moved = np.broadcast_to(array, value.type.shape)
    for op in reversed(moves):
        if op.record in _MOVES:
            assert op.record.reference is not None
            (moved,) = op.record.reference(call_of(op, is_exact=True), [moved])
    return np.asarray(moved)


def _block(array: Array) -> int:
    """The largest block size along dim 0 for which all elements of a block are equal in every
    column."""
    extent = array.shape[0]
    if array.strides[0] == 0 or extent == 1:
        return int(extent)
    changes = np.flatnonzero((array[1:] != array[:-1]).any(axis=1)) + 1
    return math.gcd(*(int(n) for n in changes)) if changes.size else int(extent)


def _shifted(x: Array, scales: Array, zeros: Array | None, block: int) -> Codes | None:
    """8-bit numbers [k, columns] as codes with as few bits as hold them and their zero points; None
    if that saves nothing."""
    start = 0 if zeros is None else int(zeros.flat[0])
    is_one = zeros is None or bool((zeros == start).all())
    found = [x] if is_one or zeros is None else [x, zeros]
    low, high = min(int(a.min()) for a in found), max(int(a.max()) for a in found)
    for bits in BITS:
        for base in (0, -(1 << (bits - 1))):
            if base <= low and high < base + (1 << bits):
                blocks = Blocks(x.shape[0], block, bits)
                moved = start - base if is_one or zeros is None else _less(zeros, base)
                return Codes(_less(x.T, base), np.asarray(scales), moved, blocks)
    return None


def _less(array: Array, base: int) -> Array:
    """`array - base` in u8, where the difference must fit."""
    return np.subtract(array, base, dtype=np.int16).astype(np.uint8)
