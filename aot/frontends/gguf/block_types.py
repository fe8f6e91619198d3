"""The block types of GGUF: how many elements and bytes a block has, and what its bytes mean.

Owns the decoding of blocks to codes with their scales, or to floats. The layouts are those of
ggml's ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from aot.base.records import dataclass
from aot.ir.types import Array
from aot.ops.blocked import Blocks, Codes

Decode = Callable[[Array], Codes]


@dataclass(frozen=True)
class BlockType:
    """A block type of GGUF: the size of a block and how its bytes are decoded.

    Attributes:
        elements, bytes: of a block.
        floats: the dtype of elements that are floats by themselves.
        codes: decodes u8[rows, bytes of a row] of a type whose elements are codes.
    """

    name: str
    elements: int
    bytes: int
    floats: np.dtype[Any] | None = None
    codes: Decode | None = None

    @property
    def is_unknown(self) -> bool:
        """Whether its elements cannot be read."""
        return self.floats is None and self.codes is None


def type_name(number: int) -> str:
    """ggml's name of a block type."""
    if number in BLOCK_TYPES:
        return BLOCK_TYPES[number].name
    return _OTHERS.get(number, f"block type {number}")


def _blocks(data: Array, size: int) -> Array:
    """Rows of bytes as [rows, blocks, bytes of a block]."""
    return data.reshape(data.shape[0], -1, size)


def _f16(part: Array) -> Array:
    """Two bytes at the end of [..., 2] as f16[...]."""
    return np.ascontiguousarray(part).view("<f2")[..., 0]


def _nibbles(part: Array) -> Array:
    """Bytes [..., n] as [..., 2 n]: all low halves, then all high ones."""
    return np.concatenate([part & np.uint8(15), part >> np.uint8(4)], axis=-1)


def _bits(part: Array) -> Array:
    """Bytes [..., n] as their bits [..., 8 n], the lowest first."""
    return np.unpackbits(part, axis=-1, bitorder="little")


def _made(
    codes: Array, scales: Array, zeros: int, bits: int, minimums: Array | None = None
) -> Codes:
    """Codes [rows, blocks, block] and their parameters [rows, blocks]."""
    rows, count, block = codes.shape
    return Codes(
        codes.reshape(rows, -1), scales, zeros, Blocks(count * block, block, bits), minimums
    )


def _q8_0(data: Array) -> Codes:
    blocks = _blocks(data, 34)
    return _made(blocks[..., 2:] ^ np.uint8(128), _f16(blocks[..., :2]), 128, 8)


def _q4_0(data: Array) -> Codes:
    blocks = _blocks(data, 18)
    return _made(_nibbles(blocks[..., 2:]), _f16(blocks[..., :2]), 8, 4)


def _q4_1(data: Array) -> Codes:
    blocks = _blocks(data, 20)
    return _made(_nibbles(blocks[..., 4:]), _f16(blocks[..., :2]), 0, 4, _f16(blocks[..., 2:4]))


def _q5_0(data: Array) -> Codes:
    blocks = _blocks(data, 22)
    codes = _nibbles(blocks[..., 6:]) | _bits(blocks[..., 2:6]) << np.uint8(4)
    return _made(codes, _f16(blocks[..., :2]), 16, 5)


def _q5_1(data: Array) -> Codes:
    blocks = _blocks(data, 24)
    codes = _nibbles(blocks[..., 8:]) | _bits(blocks[..., 4:8]) << np.uint8(4)
    return _made(codes, _f16(blocks[..., :2]), 0, 5, _f16(blocks[..., 2:4]))


def _six_bits(part: Array) -> tuple[Array, Array]:
    """Twelve bytes [..., 12] as the factors of scales and of minimums, each [..., 8]."""
    low, middle, high = part[..., :4], part[..., 4:8], part[..., 8:]
    mask = np.uint8(63)
    top = (high & np.uint8(15)) | (low >> np.uint8(6) << np.uint8(4))
    least = (high >> np.uint8(4)) | (middle >> np.uint8(6) << np.uint8(4))
    return (
        np.concatenate([low & mask, top], axis=-1),
        np.concatenate([middle & mask, least], axis=-1),
    )


def _with_factors(codes: Array, head: Array, bits: int) -> Codes:
    """Codes of eight blocks a super-block, whose head is two f16 and twelve bytes of factors."""
    factors, least = _six_bits(head[..., 4:16])
    rows = codes.shape[0]
    return _in_supers(
        codes.reshape(rows, -1, 32),
        factors.reshape(rows, -1).view(np.int8),
        _f16(head[..., :2]),
        Blocks(0, 32, bits, 8),
        minimums=least.reshape(rows, -1).view(np.int8),
        super_minimums=-_f16(head[..., 2:4]),
    )


def _in_supers(
    codes: Array, factors: Array, supers: Array, blocks: Blocks, zero: int = 0, **minimums: Array
) -> Codes:
    """Codes [rows, blocks, block] with factors i8[rows, blocks] of floats [rows, super-blocks]."""
    whole = codes.reshape(codes.shape[0], -1)
    made = replace(blocks, k=whole.shape[1])
    return Codes(whole, factors, zero, made, supers=supers, **minimums)


def _pairs_of_32(part: Array) -> Array:
    """Bytes [rows, blocks, 128] as the nibbles [rows, blocks, 4, 64] of groups of 32 bytes."""
    return _nibbles(part.reshape(*part.shape[:-1], 4, 32))


def _q4_k(data: Array) -> Codes:
    blocks = _blocks(data, 144)
    return _with_factors(_pairs_of_32(blocks[..., 16:]), blocks[..., :16], 4)


def _q5_k(data: Array) -> Codes:
    blocks = _blocks(data, 176)
    codes = _pairs_of_32(blocks[..., 48:]).reshape(*blocks.shape[:-1], 8, 32)
    # bit j of byte l is the highest of element l of block j
    high = (blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    return _with_factors(codes | high << np.uint8(4), blocks[..., :16], 5)


def _q6_k(data: Array) -> Codes:
    blocks = _blocks(data, 210)
    rows, count = blocks.shape[:2]
    low = _nibbles(blocks[..., :128].reshape(rows, count, 2, 64)).reshape(rows, count, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = (blocks[..., 128:192].reshape(rows, count, 2, 1, 32) >> shifts) & np.uint8(3)
    codes = (low | high << np.uint8(4)).reshape(rows, -1, 16)
    factors = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).reshape(rows, -1)
    return _in_supers(codes, factors, _f16(blocks[..., 208:210]), Blocks(0, 16, 6, 16), 32)


BLOCK_TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4, floats=np.dtype("<f4")),
    1: BlockType("F16", 1, 2, floats=np.dtype("<f2")),
    2: BlockType("Q4_0", 32, 18, codes=_q4_0),
    3: BlockType("Q4_1", 32, 20, codes=_q4_1),
    6: BlockType("Q5_0", 32, 22, codes=_q5_0),
    7: BlockType("Q5_1", 32, 24, codes=_q5_1),
    8: BlockType("Q8_0", 32, 34, codes=_q8_0),
    12: BlockType("Q4_K", 256, 144, codes=_q4_k),
    13: BlockType("Q5_K", 256, 176, codes=_q5_k),
    14: BlockType("Q6_K", 256, 210, codes=_q6_k),
    30: BlockType("BF16", 1, 2, floats=np.dtype(ml_dtypes.bfloat16)),
}
"""By ggml's number."""

_OTHERS = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
