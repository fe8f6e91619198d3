"""Fourier transforms as products with matrices, and mel filters.

Complex numbers are pairs in the last dim, real numbers one element there. The matrix of a known
length is a constant; that of another is computed when the model runs. Either way a transform of n
numbers takes n^2 multiplications, but for those of known lengths that are long (long_fourier.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aot.frontends.lib.builder import GraphBuilder, UnsupportedNodeError
from aot.frontends.lib.extents import dim_value
from aot.frontends.lib.long_fourier import transformed
from aot.frontends.lib.place import Place
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import Array, DType

# a transform of a larger matrix is one by the factors of its length
_MOST_ELEMENTS = 1 << 24


def known_extent(extent: Dim, what: str) -> int:
    """An extent as an int; an error if it is symbolic.

    Raises:
        UnsupportedNodeError: it is not known at compile time.
    """
    if not isinstance(extent, int):
        raise UnsupportedNodeError(f"{what} depends on the input's shape")
    return extent


def _angles(rows: int, columns: int, length: int) -> Array:
    """2 pi j k / length; the product of j and k is reduced first, so that no digits are lost."""
    turns = np.outer(np.arange(rows, dtype=np.int64), np.arange(columns, dtype=np.int64)) % length
    return np.asarray(turns * (2 * math.pi / length))


def _matrix(count: int, parts: int, length: int, *, is_inverse: bool, is_onesided: bool) -> Array:
    """The matrix [count * parts, outputs * output parts] of a Fourier transform of `count` numbers
    with `parts` parts (real, imaginary), padded or cut to `length`."""
    if is_inverse and is_onesided:
        angles = _angles(count, length, length)
        bins = np.arange(count)
        # a bin that has no mirror image counts once
        weight = np.where((bins == 0) | (2 * bins == length), 1, 2)[:, None] / length
        both = np.stack([np.cos(angles) * weight, -np.sin(angles) * weight], 1)[:, :parts]
        return np.asarray(both.reshape(count * parts, length))
    outputs = length // 2 + 1 if is_onesided else length
    angles = _angles(count, outputs, length)
    cos, sin = np.cos(angles), np.sin(angles) * (-1 if is_inverse else 1)
    if is_inverse:
        cos, sin = cos / length, sin / length
    # (a + bi)(cos - i sin) = (a cos + b sin) + i (b cos - a sin)
    both = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], 1)[:, :parts]
    return np.asarray(both.reshape(count * parts, outputs * 2))


def _computed_matrix(
    b: Place,
    count: Dim,
    parts: int,
    length: Dim,
    dtype: DType,
    *,
    is_inverse: bool,
    is_onesided: bool,
) -> Value:
    """The matrix of a Fourier transform (see `_matrix`) whose extents are known only at
    run time.
    """
    gives_reals = is_inverse and is_onesided
    bins = dims.add(dims.floor_divide(length, 2), 1)
    outputs = bins if is_onesided and not is_inverse else length
    rows = b.reshape(b.emit("range", size=count), (count, 1))
    turns = b.emit("mul", rows, b.emit("range", size=outputs))
    whole = dim_value(b, length)
    turns = b.emit("sub", turns, b.emit("mul", b.emit("div", turns, whole), whole))
    share = b.emit("div", b.cast(turns, dtype), b.cast(whole, dtype))
    angles = b.emit("mul", share, 2 * math.pi)
    cos, sin = b.emit("cos", angles), b.emit("sin", angles)
    if is_inverse:
        weight = b.emit("div", b.scalar(1, dtype), b.cast(whole, dtype))
        if gives_reals:
            twice = b.emit("mul", rows, 2)
            is_first = b.emit("equal", rows, 0)
            is_single = b.emit("or", is_first, b.emit("equal", twice, whole))
            both = b.emit("mul", weight, 2)
            weight = b.emit("where", is_single, weight, both)
        cos, sin = b.emit("mul", cos, weight), b.emit("mul", sin, weight)
        sin = sin if gives_reals else b.emit("neg", sin)
    minus = b.emit("neg", sin)
    columns = [(cos,), (minus,)] if gives_reals else [(cos, minus), (sin, cos)]
    left = len(columns[0])
    made = [b.reshape(v, (count, 1, outputs, 1)) for row in columns[:parts] for v in row]
    pairs = [_joined(b, made[part * left : (part + 1) * left], 3) for part in range(parts)]
    flat = dims.multiply(count, parts), dims.multiply(outputs, left)
    return b.reshape(_joined(b, pairs, 1), flat)


def _joined(b: Place, parts: Sequence[Value], axis: int) -> Value:
    return parts[0] if len(parts) == 1 else b.emit("concat", *parts, axis=axis)


def dft(
    b: Place, x: Value, axis: int, length: Dim, *, is_inverse: bool, is_onesided: bool
) -> Value:
    """The Fourier transform of x over `axis`, padded or cut to `length` elements.

    One-sided are the first length // 2 + 1 outputs; of an inverse, so many inputs, and outputs are
    real.
    """
    dtype, rank = x.type.dtype, x.type.rank
    parts = known_extent(x.type.dims[-1], "the last dim")
    given = x.type.dims[axis]
    bins = dims.add(dims.floor_divide(length, 2), 1)
    count = dims.minimum(given, bins if is_inverse and is_onesided else length)
    rest = [d for d in range(rank - 1) if d != axis]
    moved = b.emit("transpose", x, perm=(*rest, axis, rank - 1))
    lead = moved.type.dims[:-2]
    if count != given:  # what is longer is cut, what is shorter has zeros behind it
        moved = b.emit(
            "slice", moved, starts=(0,) * rank, stops=(*lead, count, parts), steps=(1,) * rank
        )
    kind = {"is_inverse": is_inverse, "is_onesided": is_onesided}
    perm = [0] * rank
    for position, d in enumerate((*rest, axis, rank - 1)):
        perm[d] = position
    if isinstance(count, int) and isinstance(length, int):
        if 4 * count * length > _MOST_ELEMENTS:
            made = _long(b, moved, count, length, **kind)
            return b.emit("transpose", made, perm=tuple(perm))
        array = _matrix(count, parts, length, **kind)
        matrix = b.constant(array.astype(dtype.numpy))
    else:
        matrix = _computed_matrix(b, count, parts, length, dtype, **kind)
    flat = b.reshape(moved, (*lead, dims.multiply(count, parts)))
    if not lead:
        flat = b.reshape(flat, (1, dims.multiply(count, parts)))
    made = b.emit("matmul", flat, matrix)
    left = 1 if is_inverse and is_onesided else 2
    outputs = bins if is_onesided and not is_inverse else length
    back = b.reshape(made, (*lead, outputs, left))
    return b.emit("transpose", back, perm=tuple(perm))


def _long(
    b: Place, x: Value, count: int, length: int, *, is_inverse: bool, is_onesided: bool
) -> Value:
    """The Fourier transform of x [..., count, 1 or 2] over its second-last dim, as in `dft`, for
    large lengths."""
    dtype, rank = x.type.dtype, x.type.rank
    lead, parts = x.type.dims[:-2], known_extent(x.type.dims[-1], "the last dim")
    b.check_computed(16 * length, "the tables of the transform")
    if is_inverse:
        weight = np.full((count, 1), 1 / length)
        if (
            is_onesided
        ):  # the real part of a transform in which bins with a mirror image count twice
            bins = np.arange(count)[:, None]
            weight *= np.where((bins == 0) | (2 * bins == length), 1, 2)
        x = b.emit("mul", x, b.constant(weight.astype(dtype.numpy)))
    pads = [0] * (2 * rank)
    pads[-2:] = length - count, 2 - parts
    if any(pads):
        x = b.emit("pad", x, pads=tuple(pads), mode="constant", value=0.0)
    made = transformed(b, x, is_inverse=is_inverse)
    stops = (*lead, length, 1) if is_inverse else (*lead, length // 2 + 1, 2)
    if is_onesided:
        made = b.emit("slice", made, starts=(0,) * rank, stops=stops, steps=(1,) * rank)
    return made


def stft(
    b: Place, x: Value, window: Value | None, step: int, length: Dim, *, is_onesided: bool
) -> Value:
    """The short-time Fourier transform: transforms of frames of x [batch, length, 1 or 2], `step`
    apart, times `window`."""
    parts = known_extent(x.type.dims[2], "the last dim")
    if not isinstance(length, int) or 4 * length * length > _MOST_ELEMENTS:
        frames = _frames(b, x, step, length)
        if window is not None:
            frames = b.emit("mul", frames, b.reshape(window, (length, 1)))
        return dft(b, frames, 2, length, is_inverse=False, is_onesided=is_onesided)
    matrix = _matrix(length, parts, length, is_inverse=False, is_onesided=is_onesided)
    # [length, parts, outputs] to a convolution's [outputs, parts, length]
    weights = b.constant(
        np.ascontiguousarray(matrix.reshape(length, parts, -1).transpose(2, 1, 0)).astype(
            x.type.dtype.numpy
        )
    )
    if window is not None:
        weights = b.emit("mul", weights, window)
    frames = b.emit(
        "conv",
        b.emit("transpose", x, perm=(0, 2, 1)),
        weights,
        None,
        strides=(step,),
        dilations=(1,),
        pads=(0, 0),
        group=1,
    )
    rows = b.emit("transpose", frames, perm=(0, 2, 1))
    return b.reshape(rows, (*rows.type.dims[:2], matrix.shape[1] // 2, 2))


def _frames(b: Place, x: Value, step: int, length: Dim) -> Value:
    """The frames of x [batch, all, parts] that are `step` apart: [batch, frames, length, parts]."""
    batch, extent, parts = x.type.dims
    if extent == length:
        return b.reshape(x, (batch, 1, length, parts))
    count = dims.add(dims.floor_divide(dims.add(extent, dims.multiply(length, -1)), step), 1)
    first = b.emit("mul", b.emit("range", size=count), b.scalar(step, DType.I64))
    at = b.emit("add", b.reshape(first, (count, 1)), b.emit("range", size=length))
    return b.emit("gather", x, at, axis=1)


def mel_filters(
    b: GraphBuilder, count: int, length: int, rate: float, edges: tuple[float, float]
) -> Array:
    """[length // 2 + 1, count]: triangles of equal width on the mel scale, 2595 log10(1 + f / 700).

    Args:
        length: of the transform.
        rate: samples a second.
        edges: the lowest and the highest frequency in Hz.
    """
    low, high = edges
    b.check_computed(count * (length // 2 + 1), "the matrix")
    mels = [2595 * math.log10(1 + f / 700) for f in edges]
    steps = np.arange(count + 2) * ((mels[1] - mels[0]) / (count + 2)) + mels[0]
    hertz = 700 * (10 ** (steps / 2595) - 1)
    bins = ((length + 1) * hertz // rate).astype(np.int64)
    matrix = np.zeros((length // 2 + 1, count))
    if bins.min() < 0 or bins.max() > matrix.shape[0]:
        raise b.error(f"edges {low} and {high} Hz are outside the spectrum")
    for i, (left, centre, right) in enumerate(zip(bins, bins[1:], bins[2:], strict=False)):
        if left == centre:
            matrix[centre, i] = 1
        else:
            matrix[left : centre + 1, i] = np.arange(centre + 1 - left) / (centre - left)
        if right > centre:
            matrix[centre:right, i] = (right - np.arange(centre, right)) / (right - centre)
    return matrix
