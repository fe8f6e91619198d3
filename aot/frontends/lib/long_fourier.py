"""Fourier transforms whose matrix would be too large, by factoring the length.

A transform of a * b numbers is a transform over a, a rotation, and a transform over b (Cooley and
Tukey); of a prime number of them, a convolution, which is three transforms of a power of two
(Bluestein). Numbers are complex: pairs in the last dim.

https://doi.org/10.1090/S0025-5718-1965-0178586-1, https://doi.org/10.1109/TAU.1970.1162132
"""

from __future__ import annotations

import math

import numpy as np

from aot.frontends.lib.builder import static_extents
from aot.frontends.lib.place import Place
from aot.ir.graph import Value
from aot.ir.types import Array

_MOST_DIRECT = 512  # of a transform that is one product


def transformed(b: Place, x: Value, *, is_inverse: bool) -> Value:
    """The Fourier transform of x [..., n, 2] over its second-last dim, of known extent; an inverse
    is not divided by n."""
    *lead, last, _ = x.type.dims
    (n,) = static_extents((last,), "a transform's length")
    if n <= _MOST_DIRECT:
        matrix = _constant(b, x, _matrix(n, is_inverse))
        made = b.emit("matmul", b.reshape(x, (*lead, 2 * n)), matrix)
        return b.reshape(made, (*lead, n, 2))
    first = max(a for a in range(1, math.isqrt(n) + 1) if n % a == 0)
    if first == 1:
        return _of_prime(b, x, n, is_inverse)
    second = n // first
    rank = len(lead)
    # [..., a, b, 2] to [..., b, a, 2]
    swap = (*range(rank), rank + 1, rank, rank + 2)
    apart = b.emit("transpose", b.reshape(x, (*lead, first, second, 2)), perm=swap)
    made = transformed(b, apart, is_inverse=is_inverse)
    places = np.outer(np.arange(second), np.arange(first))
    made = _rotated(b, made, _unit(places, n, is_inverse))
    made = transformed(b, b.emit("transpose", made, perm=swap), is_inverse=is_inverse)
    return b.reshape(b.emit("transpose", made, perm=swap), (*lead, n, 2))


def _of_prime(b: Place, x: Value, n: int, is_inverse: bool) -> Value:
    """The Fourier transform of prime length n by Bluestein's algorithm: k j = (k^2 + j^2 - (k -
    j)^2) / 2, so that the sum over j is a convolution with a chirp.
    """
    *lead, _, _ = x.type.dims
    rank, whole = x.type.rank, 1 << (2 * n - 2).bit_length()
    squares = [j * j % (2 * n) for j in range(n)]
    chirp = _unit(np.array(squares), 2 * n, is_inverse)
    kernel = np.zeros(whole, complex)
    kernel[:n] = np.conj(chirp)
    kernel[whole - n + 1 :] = np.conj(chirp[:0:-1])
    pads = [0] * (2 * rank)
    pads[-2] = whole - n
    wide = b.emit("pad", _rotated(b, x, chirp), pads=tuple(pads), mode="constant", value=0.0)
    made = transformed(b, wide, is_inverse=False)
    made = _rotated(b, made, np.fft.fft(kernel) / whole)
    made = transformed(b, made, is_inverse=True)
    stops = (*lead, n, 2)
    made = b.emit("slice", made, starts=(0,) * rank, stops=stops, steps=(1,) * rank)
    return _rotated(b, made, chirp)


def _unit(turns: Array, count: int, is_inverse: bool) -> Array:
    """Complex numbers on the unit circle at `turns / count` of a turn; clockwise unless
    `is_inverse`."""
    angles = turns % count * (2 * math.pi / count)
    return np.asarray(np.cos(angles) + (1j if is_inverse else -1j) * np.sin(angles))


def _matrix(n: int, is_inverse: bool) -> Array:
    """The matrix [n * 2, n * 2] of a Fourier transform, by (a + b i)(c + s i) = (a c - b s) + (a s
    + b c) i."""
    unit = _unit(np.outer(np.arange(n), np.arange(n)), n, is_inverse)
    cos, sin = unit.real, unit.imag
    both = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], 1)
    return np.asarray(both.reshape(2 * n, 2 * n))


def _rotated(b: Place, x: Value, factors: Array) -> Value:
    """Complex numbers multiplied by complex `factors` of the last dims' shape."""
    cos, sin = (_constant(b, x, part[..., None]) for part in (factors.real, factors.imag))
    rank = x.type.rank
    real, imaginary = (
        b.emit(
            "slice",
            x,
            starts=(*[0] * (rank - 1), part),
            stops=(*x.type.dims[:-1], part + 1),
            steps=(1,) * rank,
        )
        for part in range(2)
    )
    first = b.emit("sub", b.emit("mul", real, cos), b.emit("mul", imaginary, sin))
    second = b.emit("add", b.emit("mul", real, sin), b.emit("mul", imaginary, cos))
    return b.emit("concat", first, second, axis=rank - 1)


def _constant(b: Place, x: Value, array: Array) -> Value:
    return b.constant(array.astype(x.type.dtype.numpy))
