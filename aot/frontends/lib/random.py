"""Random tensors of models, determined by a seed and the node's name, so that every run gives the
same numbers.

A program computes the same results from the same inputs, so nodes differ from one another and no
run differs from another. Where the shape is known, the numbers are a constant; else they are
computed from the numbers of the elements, by the finaliser of MurmurHash3 (Austin Appleby).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from aot.frontends.lib.place import Place
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import DType

F32, U32 = DType.F32, DType.U32
_GOLDEN = 0x9E3779B1  # spreads neighbours
_MIX = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
_LAST_SHIFT, _FRACTION_BITS = 16, 24  # of a float32


def uniform(b: Place, shape: Sequence[Dim], seed: str) -> Value:
    """Uniformly distributed f32 numbers in [0, 1)."""
    return _drawn(b, shape, seed, is_normal=False)


def normal(b: Place, shape: Sequence[Dim], seed: str) -> Value:
    """Normally distributed f32 numbers with mean 0 and standard deviation 1."""
    return _drawn(b, shape, seed, is_normal=True)


def _drawn(b: Place, shape: Sequence[Dim], seed: str, *, is_normal: bool) -> Value:
    digest = hashlib.sha256(seed.encode()).digest()
    extents = [n for n in shape if isinstance(n, int)]
    if len(extents) == len(shape):
        b.check_computed(math.prod(extents), "the random tensor")
        generator = np.random.Generator(np.random.Philox(int.from_bytes(digest[:8], "little")))
        found = generator.standard_normal(extents) if is_normal else generator.random(extents)
        return b.constant(_below_one(found.astype(np.float32), is_normal=is_normal))
    keys = [int.from_bytes(digest[n : n + 4], "little") for n in (0, 4)]
    u = _hashed(b, shape, keys[0])
    if not is_normal:
        return u
    # Box and Muller's transform; 1 - u is not 0
    radius = b.emit("log", b.emit("sub", b.scalar(1, F32), u))
    radius = b.emit("sqrt", b.emit("mul", radius, b.scalar(-2, F32)))
    angle = b.emit("mul", _hashed(b, shape, keys[1]), b.scalar(2 * math.pi, F32))
    return b.emit("mul", radius, b.emit("cos", angle))


def _below_one(found: np.ndarray, *, is_normal: bool) -> np.ndarray:
    """Uniform numbers below 1, as float32 may have rounded some up to 1; normal ones are
    unchanged."""
    return found if is_normal else np.minimum(found, np.nextafter(np.float32(1), np.float32(0)))


def _hashed(b: Place, shape: Sequence[Dim], key: int) -> Value:
    """A pseudo-random number in [0, 1) for each element, from its index and a key."""

    def number(value: int) -> Value:
        return b.scalar(value, U32)

    counted = b.emit("range", size=dims.product(tuple(shape)))
    h = b.emit("mul", b.cast(counted, U32), number(_GOLDEN))
    h = b.emit("add", h, number(key))
    for shift, factor in _MIX:
        h = b.emit("bit_xor", h, b.emit("shift_right", h, number(shift)))
        h = b.emit("mul", h, number(factor))
    h = b.emit("bit_xor", h, b.emit("shift_right", h, number(_LAST_SHIFT)))
    h = b.cast(b.emit("shift_right", h, number(32 - _FRACTION_BITS)), F32)
    return b.reshape(b.emit("mul", h, b.scalar(2.0**-_FRACTION_BITS, F32)), tuple(shape))
