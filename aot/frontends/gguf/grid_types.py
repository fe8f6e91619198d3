"""Decoders of ggml's block types of one to three bits: IQ1, IQ2 and IQ3.

A code is the number of a group of four or eight values in a grid (aot/frontends/gguf/grids.py).
Bits beside it are their signs, or a shift. ggml multiplies scales by n + 1/2; here it is by 2n + 1,
and scales are half as large.
"""

from __future__ import annotations

import numpy as np

from aot.frontends.gguf import grids
from aot.frontends.gguf.block_fields import bits_of, f16, in_supers, split, twos
from aot.ir.types import Array
from aot.ops.blocked import Blocks, Codes

SUPER = 256  # elements of a block of ggml's, which has several scales
BYTE_ZERO = 128  # the zero point of codes of eight bits


def _signed(groups: Array, negative: Array) -> Array:
    """Values i8, negated where a bit is 1."""
    return np.asarray(np.where(negative, -groups, groups))


def _eight_signs(sevens: Array) -> Array:
    """Signs of groups of eight [..., 8] from seven bits each: an even number is negative, which
    gives the eighth."""
    bits = bits_of(sevens.astype(np.uint8)[..., None])
    bits[..., 7] = bits[..., :7].sum(-1) & 1
    return bits


def _sevens(words: Array) -> Array:
    """Numbers of 7 bits [..., 4] in words u32[...], the lowest first."""
    return np.asarray(words[..., None] >> np.arange(0, 28, 7, dtype=np.uint32) & np.uint32(127))


def _words(part: Array, dtype: str) -> Array:
    """The bytes at the end of [..., n] as whole numbers."""
    return np.ascontiguousarray(part).view(dtype)


def _pairs(part: Array) -> Array:
    """Bytes [..., n] as their halves [..., 2 n], the lower one of each byte before the other."""
    return np.stack([part & np.uint8(15), part >> np.uint8(4)], -1).reshape(*part.shape[:-1], -1)


def _coded(values: Array, steps: Array, tops: Array, block: int, bits: int, zero: int) -> Codes:
    """Values i8 as codes.

    Args:
        values: [rows, blocks of ggml's, ...].
        steps: n of the factors 2n + 1, [rows, blocks of ggml's, factors].
        tops: what factors are of, [rows, blocks of ggml's].
        block: values of a factor.
        bits, zero: of a code.
    """
    rows = values.shape[0]
    codes = (values.astype(np.int16) + np.int16(zero)).astype(np.uint8)
    return in_supers(
        codes.reshape(rows, -1, block),
        _factors(steps),
        tops,
        Blocks(0, block, bits, SUPER // block),
        zero=zero,
    )


def _factors(steps: Array) -> Array:
    return (2 * steps + 1).astype(np.int8).reshape(steps.shape[0], -1)


def iq2_xxs(data: Array) -> Codes:
    """IQ2_XXS: four groups of eight by a byte each, then a word with their signs and scale."""
    blocks = split(data, 66)
    parts = blocks[..., 2:].reshape(*blocks.shape[:2], 8, 8)
    words = _words(parts[..., 4:], "<u4")[..., 0]
    values = _signed(grids.IQ2_XXS[parts[..., :4]], _eight_signs(_sevens(words)))
    tops = f16(blocks[..., :2]).astype(np.float32) / np.float32(8)
    return _coded(values, words >> np.uint32(28), tops, 32, 8, BYTE_ZERO)


def iq2_xs(data: Array) -> Codes:
    """IQ2_XS: groups of eight by nine bits each, with seven bits of signs above them."""
    blocks = split(data, 74)
    numbers = _words(blocks[..., 2:66], "<u2")
    groups = grids.IQ2_XS[numbers & np.uint16(511)]
    values = _signed(groups, _eight_signs(numbers >> np.uint16(9)))
    tops = f16(blocks[..., :2]).astype(np.float32) / np.float32(8)
    return _coded(values, _pairs(blocks[..., 66:]), tops, 16, 8, BYTE_ZERO)


def iq2_s(data: Array) -> Codes:
    """IQ2_S: groups of eight by ten bits, two of them apart, and a byte of signs each."""
    blocks = split(data, 82)
    high = twos(blocks[..., 66:74]).swapaxes(-1, -2).reshape(*blocks.shape[:2], 32)
    numbers = blocks[..., 2:34] | high.astype(np.uint16) << np.uint16(8)
    values = _signed(grids.IQ2_S[numbers], bits_of(blocks[..., 34:66, None]))
    tops = f16(blocks[..., :2]).astype(np.float32) / np.float32(8)
    return _coded(values, _pairs(blocks[..., 74:]), tops, 16, 8, BYTE_ZERO)


def iq3_xxs(data: Array) -> Codes:
    """IQ3_XXS: groups of four by a byte each; a word has eight groups' signs and scale."""
    blocks = split(data, 98)
    lead = blocks.shape[:2]
    words = _words(blocks[..., 66:], "<u4")
    signs = _eight_signs(_sevens(words)).reshape(*lead, 64, 4)
    values = _signed(grids.IQ3_XXS[blocks[..., 2:66]], signs)
    tops = f16(blocks[..., :2]).astype(np.float32) / np.float32(2)
    return _coded(values, words >> np.uint32(28), tops, 32, 6, 31)


def iq3_s(data: Array) -> Codes:
    """IQ3_S: groups of four by nine bits, one of them apart, and four bits of signs each.

    All values are odd, -15 to 15, so that codes need four bits and a minimum.
    """
    blocks = split(data, 110)
    rows, count = blocks.shape[:2]
    high = bits_of(blocks[..., 66:74])
    numbers = blocks[..., 2:66] | high.astype(np.uint16) << np.uint16(8)
    signs = bits_of(blocks[..., 74:106]).reshape(rows, count, 64, 4)
    values = _signed(grids.IQ3_S[numbers], signs)
    factors, tops = _factors(_pairs(blocks[..., 106:])), f16(blocks[..., :2]).astype(np.float32)
    return in_supers(
        ((values + np.int8(15)) // np.int8(2)).astype(np.uint8).reshape(rows, -1, 32),
        factors,
        tops * np.float32(2),
        Blocks(0, 32, 4, 8),
        minimums=factors,
        super_minimums=tops * np.float32(-15),
    )


def iq1_s(data: Array) -> Codes:
    """IQ1_S: groups of eight values -1, 0 and 1, by eleven bits each.

    Four groups share a factor, and a bit says whether 1/8 is added to or subtracted from their
    values. Where it is subtracted, values and factor are stored negated.
    """
    blocks = split(data, 50)
    rows, count = blocks.shape[:2]
    words = _words(blocks[..., 34:], "<u2")
    high = words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & np.uint16(7)
    numbers = blocks[..., 2:34] | high.reshape(rows, count, 32) << np.uint16(8)
    is_less = words >> np.uint16(15)
    values = grids.IQ1[numbers].reshape(rows, count, 8, 32)
    values = _signed(values, is_less[..., None])
    factors = _factors(words >> np.uint16(12) & np.uint16(7))
    factors = _signed(factors, is_less.reshape(rows, -1))
    tops = f16(blocks[..., :2]).astype(np.float32)
    return in_supers(
        (values + np.int8(1)).view(np.uint8).reshape(rows, -1, 32),
        factors,
        tops,
        Blocks(0, 32, 2, 8),
        minimums=factors * np.int8(-7),
        super_minimums=tops / np.float32(8),
    )


def iq1_m(data: Array) -> Codes:
    """IQ1_M: as IQ1_S, with a bit for each group and a factor for two.

    In eighths all values are odd, -9 to 9: codes of four bits and a minimum.
    """
    blocks = split(data, 56)
    rows, count = blocks.shape[:2]
    words = _words(blocks[..., 48:], "<u2")
    parts = (words >> np.uint16(12)) << np.arange(0, 16, 4, dtype=np.uint16)
    tops = parts.sum(-1, dtype=np.uint16).view("<f2").astype(np.float32)
    steps = words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & np.uint16(7)
    high = _pairs(blocks[..., 32:48])
    numbers = blocks[..., :32] | (high & np.uint8(7)).astype(np.uint16) << np.uint16(8)
    eighths = grids.IQ1[numbers] * np.int8(8) + np.int8(1)
    eighths -= np.int8(2) * (high >> np.uint8(3)).view(np.int8)[..., None]
    factors = _factors(steps.reshape(rows, count, 16))
    return in_supers(
        ((eighths + np.int8(9)) // np.int8(2)).view(np.uint8).reshape(rows, -1, 16),
        factors,
        tops / np.float32(4),
        Blocks(0, 16, 4, 16),
        minimums=factors,
        super_minimums=tops * np.float32(-9 / 8),
    )
