"""Fields of GGUF's blocks: bytes taken apart into codes, bits and floats, and codes put together.

Owns what decoders of several block types use.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aot.ir.types import Array
from aot.ops.blocked import Blocks, Codes


def split(data: Array, size: int) -> Array:
    """Rows of bytes as [rows, blocks, bytes of a block]."""
    return data.reshape(data.shape[0], -1, size)


def f16(part: Array) -> Array:
    """Two bytes at the end of [..., 2] as f16[...]."""
    return np.ascontiguousarray(part).view("<f2")[..., 0]


def nibbles(part: Array) -> Array:
    """Bytes [..., n] as [..., 2 n]: all low halves, then all high ones."""
    return np.concatenate([part & np.uint8(15), part >> np.uint8(4)], axis=-1)


def bits_of(part: Array) -> Array:
    """Bytes [..., n] as their bits [..., 8 n], the lowest first."""
    return np.unpackbits(part, axis=-1, bitorder="little")


def twos(part: Array) -> Array:
    """Bytes [..., n] as [..., 4, n]: their lowest two bits, then the next ones."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return np.asarray((part[..., None, :] >> shifts) & np.uint8(3))


def made(
    codes: Array, scales: Array, zeros: int, bits: int, minimums: Array | None = None
) -> Codes:
    """Codes [rows, blocks, block] and their parameters [rows, blocks]."""
    rows, count, block = codes.shape
    return Codes(
        codes.reshape(rows, -1), scales, zeros, Blocks(count * block, block, bits), minimums
    )


def in_supers(
    codes: Array, factors: Array, supers: Array, blocks: Blocks, zero: int = 0, **minimums: Array
) -> Codes:
    """Codes [rows, blocks, block] with factors i8[rows, blocks] of floats [rows, super-blocks]."""
    whole = codes.reshape(codes.shape[0], -1)
    return Codes(whole, factors, zero, replace(blocks, k=whole.shape[1]), supers=supers, **minimums)
