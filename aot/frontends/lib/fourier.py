"""Fourier transforms as products with constant matrices, and mel filters.

Complex numbers are pairs in the last dim, real numbers one element there.
"""

from __future__ import annotations

import math

import numpy as np

from aot.frontends.lib.builder import GraphBuilder, UnsupportedNodeError
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import Array

# beyond this the matrix would be larger than most models
_MAX_ELEMENTS = 1 << 24


def known_extent(extent: Dim, what: str) -> int:
    """`extent` as a number.

    Raises:
        UnsupportedNodeError: it is not known at compile time.
    """
    if not isinstance(extent, int):
        raise UnsupportedNodeError(f"{what} depends on the input's shape")
    return extent


def _angles(rows: int, columns: int, length: int) -> Array:
    """2 pi j k / length; the product of j and k is reduced first, so that no digits are lost."""
    if rows * columns > _MAX_ELEMENTS:
        raise UnsupportedNodeError(f"a transform of {rows} to {columns} numbers is too long")
    turns = np.outer(np.arange(rows, dtype=np.int64), np.arange(columns, dtype=np.int64)) % length
    return np.asarray(turns * (2 * math.pi / length))


def _matrix(count: int, parts: int, length: int, *, is_inverse: bool, is_onesided: bool) -> Array:
    """[count * parts, outputs * parts of them]: `count` numbers of `parts` parts, as if of length
    `length`, to what the transform gives."""
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


def dft(
    b: GraphBuilder, x: Value, axis: int, length: int, *, is_inverse: bool, is_onesided: bool
) -> Value:
    """The transform of x over `axis`, as if x had `length` elements there.

    One-sided are the first length // 2 + 1 outputs; of an inverse, so many inputs, and outputs are
    real.
    """
    dtype, rank = x.type.dtype, x.type.rank
    parts = known_extent(x.type.dims[-1], "the last dim")
    given = known_extent(x.type.dims[axis], "the number of elements")
    count = min(given, length // 2 + 1 if is_inverse and is_onesided else length)
    rest = [d for d in range(rank - 1) if d != axis]
    moved = b.emit("transpose", x, perm=(*rest, axis, rank - 1))
    lead = moved.type.dims[:-2]
    if count < given:  # what is longer is cut, what is shorter has zeros behind it
        moved = b.emit(
            "slice", moved, starts=(0,) * rank, stops=(*lead, count, parts), steps=(1,) * rank
        )
    b.check_computed(4 * count * length, "the matrix of the transform")
    matrix = _matrix(count, parts, length, is_inverse=is_inverse, is_onesided=is_onesided)
    flat = b.reshape(moved, (*lead, count * parts))
    if not lead:
        flat = b.reshape(flat, (1, count * parts))
    made = b.emit("matmul", flat, b.constant(matrix.astype(dtype.numpy)))
    left = 1 if is_inverse and is_onesided else 2
    back = b.reshape(made, (*lead, matrix.shape[1] // left, left))
    perm = [0] * rank
    for position, d in enumerate((*rest, axis, rank - 1)):
        perm[d] = position
    return b.emit("transpose", back, perm=tuple(perm))


def stft(
    b: GraphBuilder, x: Value, window: Value | None, step: int, length: int, *, is_onesided: bool
) -> Value:
    """The transforms of frames of x [batch, length, 1 or 2], `step` apart, each times `window`."""
    parts = known_extent(x.type.dims[2], "the last dim")
    b.check_computed(4 * length * length, "the matrix of the transform")
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
