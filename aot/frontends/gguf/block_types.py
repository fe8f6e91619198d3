"""The block types of GGUF: how many elements and bytes a block has, and what its bytes mean.

Owns the decoding of blocks to codes with their scales, or to floats; that of types whose codes are
of groups of values is in aot/frontends/gguf/grid_types.py. The layouts are those of ggml's
ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from aot.base.records import dataclass
from aot.frontends.gguf import grid_types
from aot.frontends.gguf.block_fields import (
    bits_of,
    f16,
    in_supers,
    made,
    nibbles,
    split,
    twos,
)
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


def _q8_0(data: Array) -> Codes:
    blocks = split(data, 34)
    return made(blocks[..., 2:] ^ np.uint8(128), f16(blocks[..., :2]), 128, 8)


def _q4_0(data: Array) -> Codes:
    blocks = split(data, 18)
    return made(nibbles(blocks[..., 2:]), f16(blocks[..., :2]), 8, 4)


def _q4_1(data: Array) -> Codes:
    blocks = split(data, 20)
    return made(nibbles(blocks[..., 4:]), f16(blocks[..., :2]), 0, 4, f16(blocks[..., 2:4]))


def _q5_0(data: Array) -> Codes:
    blocks = split(data, 22)
    codes = nibbles(blocks[..., 6:]) | bits_of(blocks[..., 2:6]) << np.uint8(4)
    return made(codes, f16(blocks[..., :2]), 16, 5)


def _q5_1(data: Array) -> Codes:
    blocks = split(data, 24)
    codes = nibbles(blocks[..., 8:]) | bits_of(blocks[..., 4:8]) << np.uint8(4)
    return made(codes, f16(blocks[..., :2]), 0, 5, f16(blocks[..., 2:4]))


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
    return in_supers(
        codes.reshape(rows, -1, 32),
        factors.reshape(rows, -1).view(np.int8),
        f16(head[..., :2]),
        Blocks(0, 32, bits, 8),
        minimums=least.reshape(rows, -1).view(np.int8),
        super_minimums=-f16(head[..., 2:4]),
    )


def _pairs_of_32(part: Array) -> Array:
    """Bytes [rows, blocks, 128] as the nibbles [rows, blocks, 4, 64] of groups of 32 bytes."""
    return nibbles(part.reshape(*part.shape[:-1], 4, 32))


def _q4_k(data: Array) -> Codes:
    blocks = split(data, 144)
    return _with_factors(_pairs_of_32(blocks[..., 16:]), blocks[..., :16], 4)


def _q5_k(data: Array) -> Codes:
    blocks = split(data, 176)
    codes = _pairs_of_32(blocks[..., 48:]).reshape(*blocks.shape[:-1], 8, 32)
    # bit j of byte l is the highest of element l of block j
    high = (blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    return _with_factors(codes | high << np.uint8(4), blocks[..., :16], 5)


def _q6_k(data: Array) -> Codes:
    blocks = split(data, 210)
    rows, count = blocks.shape[:2]
    low = nibbles(blocks[..., :128].reshape(rows, count, 2, 64)).reshape(rows, count, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = (blocks[..., 128:192].reshape(rows, count, 2, 1, 32) >> shifts) & np.uint8(3)
    codes = (low | high << np.uint8(4)).reshape(rows, -1, 16)
    factors = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).reshape(rows, -1)
    return in_supers(codes, factors, f16(blocks[..., 208:210]), Blocks(0, 16, 6, 16), 32)


def _q2_k(data: Array) -> Codes:
    blocks = split(data, 84)
    rows, count = blocks.shape[:2]
    codes = twos(blocks[..., 16:80].reshape(rows, count, 2, 32))
    factors, least = blocks[..., :16] & np.uint8(15), blocks[..., :16] >> np.uint8(4)
    return in_supers(
        codes.reshape(rows, -1, 16),
        factors.reshape(rows, -1).view(np.int8),
        f16(blocks[..., 80:82]),
        Blocks(0, 16, 2, 16),
        minimums=least.reshape(rows, -1).view(np.int8),
        super_minimums=-f16(blocks[..., 82:84]),
    )


def _q3_k(data: Array) -> Codes:
    """Codes of three bits, kept in four; their factors are six bits, less 32."""
    blocks = split(data, 110)
    rows, count = blocks.shape[:2]
    low = twos(blocks[..., 32:96].reshape(rows, count, 2, 32)).reshape(rows, -1, 8, 32)
    # bit j of byte l is the highest of element l of the group j
    high = (blocks[..., None, :32] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    codes = low | high << np.uint8(2)
    part = blocks[..., 96:108]
    top = twos(part[..., 8:]).reshape(rows, count, 16) << np.uint8(4)
    factors = (nibbles(part[..., :8]) | top).astype(np.int8) - np.int8(32)
    return in_supers(
        codes.reshape(rows, -1, 16),
        factors.reshape(rows, -1),
        f16(blocks[..., 108:110]),
        Blocks(0, 16, 4, 16),
        zero=4,
    )


# What the codes of four bits mean: ggml's kvalues_iq4nl, and the values of e2m1 twice.
_UNEVEN = np.asarray(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8
)
_E2M1 = np.asarray((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.int8)
_LARGEST_E2M1 = 12


def _uneven(codes: Array) -> Array:
    """Codes of kvalues_iq4nl as codes of eight bits whose zero point is 128."""
    return np.asarray(_UNEVEN.view(np.uint8)[codes] ^ np.uint8(128))


def _e2m1(codes: Array) -> Array:
    """Codes of e2m1 as codes up to 24 whose zero point is 12."""
    return np.asarray((_E2M1[codes] + np.int8(_LARGEST_E2M1)).view(np.uint8))


def _iq4_nl(data: Array) -> Codes:
    blocks = split(data, 18)
    return made(_uneven(nibbles(blocks[..., 2:])), f16(blocks[..., :2]), 128, 8)


def _iq4_xs(data: Array) -> Codes:
    blocks = split(data, 136)
    rows, count = blocks.shape[:2]
    codes = _uneven(nibbles(blocks[..., 8:].reshape(rows, count, 8, 16)))
    low = np.stack([blocks[..., 4:8] & np.uint8(15), blocks[..., 4:8] >> np.uint8(4)], axis=-1)
    high = twos(blocks[..., 2:4]).swapaxes(-1, -2)  # the lowest bits of a byte are the first
    factors = low.reshape(rows, -1) | high.reshape(rows, -1) << np.uint8(4)
    return in_supers(
        codes.reshape(rows, -1, 32),
        factors.astype(np.int8) - np.int8(32),
        f16(blocks[..., :2]),
        Blocks(0, 32, 8, 8),
        zero=128,
    )


def _mxfp4(data: Array) -> Codes:
    """Scales are powers of two, 2 ** (byte - 128) for values of e2m1 twice: in f16 where it has all
    of them. Codes need five bits; in eight they are read faster."""
    blocks = split(data, 17)
    scales = np.ldexp(np.float32(1), blocks[..., 0].astype(np.int32) - 128)
    with np.errstate(over="ignore"):
        halves = scales.astype(np.float16)
    has_all = bool((halves == scales).all())
    codes = _E2M1.view(np.uint8)[nibbles(blocks[..., 1:])] ^ np.uint8(128)
    return made(codes, halves if has_all else scales, 128, 8)


def _nvfp4(data: Array) -> Codes:
    """The codes of NVFP4 blocks. The four scales of a block are floats with four exponent bits and
    three mantissa bits. As in ggml, their signs are not read, and NaN is 0. Codes need five bits
    and are stored in six, for which blocks may have 16 elements."""
    blocks = split(data, 36)
    rows, count = blocks.shape[:2]
    codes = _e2m1(nibbles(blocks[..., 4:].reshape(rows, count, 4, 8)))
    stored = blocks[..., :4] & np.uint8(127)
    floats = np.ascontiguousarray(stored).view(ml_dtypes.float8_e4m3fn).astype(np.float16)
    scales = np.where(stored == 127, np.float16(0), floats / np.float16(2))
    return made(codes.reshape(rows, -1, 16), scales.reshape(rows, -1), _LARGEST_E2M1, 6)


def _thirds(part: Array, digits: int) -> Array:
    """Bytes [..., n], fractions of 256, as [..., digits, n] of their first digits to base 3."""
    powers = np.asarray([3**n for n in range(digits)], np.uint8)[:, None]
    left = (part[..., None, :] * powers).astype(np.uint16)  # of a byte, what is beyond it is lost
    return (left * np.uint16(3) >> np.uint16(8)).astype(np.uint8)


def _tq1_0(data: Array) -> Codes:
    blocks = split(data, 54)
    lead = blocks.shape[:2]
    parts = (blocks[..., :32], 5), (blocks[..., 32:48], 5), (blocks[..., 48:52], 4)
    codes = np.concatenate([_thirds(part, n).reshape(*lead, -1) for part, n in parts], axis=-1)
    return made(codes, f16(blocks[..., 52:54]), 1, 2)


def _tq2_0(data: Array) -> Codes:
    blocks = split(data, 66)
    codes = twos(blocks[..., :64].reshape(*blocks.shape[:2], 2, 32))
    return made(codes.reshape(*blocks.shape[:2], 256), f16(blocks[..., 64:66]), 1, 2)


BLOCK_TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4, floats=np.dtype("<f4")),
    1: BlockType("F16", 1, 2, floats=np.dtype("<f2")),
    2: BlockType("Q4_0", 32, 18, codes=_q4_0),
    3: BlockType("Q4_1", 32, 20, codes=_q4_1),
    6: BlockType("Q5_0", 32, 22, codes=_q5_0),
    7: BlockType("Q5_1", 32, 24, codes=_q5_1),
    8: BlockType("Q8_0", 32, 34, codes=_q8_0),
    10: BlockType("Q2_K", 256, 84, codes=_q2_k),
    11: BlockType("Q3_K", 256, 110, codes=_q3_k),
    12: BlockType("Q4_K", 256, 144, codes=_q4_k),
    13: BlockType("Q5_K", 256, 176, codes=_q5_k),
    14: BlockType("Q6_K", 256, 210, codes=_q6_k),
    16: BlockType("IQ2_XXS", 256, 66, codes=grid_types.iq2_xxs),
    17: BlockType("IQ2_XS", 256, 74, codes=grid_types.iq2_xs),
    18: BlockType("IQ3_XXS", 256, 98, codes=grid_types.iq3_xxs),
    19: BlockType("IQ1_S", 256, 50, codes=grid_types.iq1_s),
    20: BlockType("IQ4_NL", 32, 18, codes=_iq4_nl),
    21: BlockType("IQ3_S", 256, 110, codes=grid_types.iq3_s),
    22: BlockType("IQ2_S", 256, 82, codes=grid_types.iq2_s),
    23: BlockType("IQ4_XS", 256, 136, codes=_iq4_xs),
    29: BlockType("IQ1_M", 256, 56, codes=grid_types.iq1_m),
    30: BlockType("BF16", 1, 2, floats=np.dtype(ml_dtypes.bfloat16)),
    34: BlockType("TQ1_0", 256, 54, codes=_tq1_0),
    35: BlockType("TQ2_0", 256, 66, codes=_tq2_0),
    39: BlockType("MXFP4", 32, 17, codes=_mxfp4),
    40: BlockType("NVFP4", 64, 36, codes=_nvfp4),
}
"""By ggml's number."""

_OTHERS = {
    9: "Q8_1",
    15: "Q8_K",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    41: "Q1_0",
}
