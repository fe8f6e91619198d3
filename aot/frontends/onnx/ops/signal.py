"""ONNX's Fourier transforms as products with constant matrices, and the mel filters.

A transform of n numbers is a matrix product, n^2 multiplications; transforms over frames are a
convolution with the window in its weights. Real and imaginary parts interleave, as in ONNX.
"""

from __future__ import annotations

import math

import numpy as np

from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.frontends.onnx.tensors import UnsupportedTypeError, dtype_of
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.record import Array
from aot.ir.types import DType

# beyond this the matrix would be larger than most models
_MAX_ELEMENTS = 1 << 24


def _extent(extent: Dim, what: str) -> int:
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


def _transformed(node: Node, axis: int) -> Value:
    x = node.input(0)
    dtype, rank = x.type.dtype, x.type.rank
    parts = _extent(x.type.dims[-1], "the last dim")
    if axis == rank - 1 or parts not in (1, 2):
        raise node.error(
            f"axis is {axis}, and the last dim, of real and imaginary parts, is {parts}"
        )
    is_inverse, is_onesided = bool(node.int_attr("inverse", 0)), bool(node.int_attr("onesided", 0))
    given = _extent(x.type.dims[axis], "the number of elements")
    default = 2 * (given - 1) if is_inverse and is_onesided else given
    length = default if node.optional(1) is None else node.whole(1, "dft_length")
    if length < 1:
        raise node.error(f"dft_length is {length}")
    count = min(given, length // 2 + 1 if is_inverse and is_onesided else length)
    rest = [d for d in range(rank - 1) if d != axis]
    moved = node.emit("transpose", x, perm=(*rest, axis, rank - 1))
    lead = moved.type.dims[:-2]
    if count < given:  # what is longer is cut, what is shorter has zeros behind it
        moved = node.emit(
            "slice", moved, starts=(0,) * rank, stops=(*lead, count, parts), steps=(1,) * rank
        )
    node.check_computed(4 * count * length, "the matrix of the transform")
    matrix = _matrix(count, parts, length, is_inverse=is_inverse, is_onesided=is_onesided)
    flat = node.reshape(moved, (*lead, count * parts))
    if not lead:
        flat = node.reshape(flat, (1, count * parts))
    made = node.emit("matmul", flat, node.constant(matrix.astype(dtype.numpy)))
    left = 1 if is_inverse and is_onesided else 2
    back = node.reshape(made, (*lead, matrix.shape[1] // left, left))
    perm = [0] * rank
    for position, d in enumerate((*rest, axis, rank - 1)):
        perm[d] = position
    return node.emit("transpose", back, perm=tuple(perm))


@onnx_op("DFT", since=17)
def dft_by_attribute(node: Node) -> Value:
    return _transformed(node, node.axis_attr(node.input(0).type.rank, 1))


@onnx_op("DFT", since=20)
def dft(node: Node) -> Value:
    axis = -2 if node.optional(2) is None else node.whole(2, "axis")
    return _transformed(node, node.axis(axis, node.input(0).type.rank))


@onnx_op("STFT", since=17)
def stft(node: Node) -> Value:
    x, window = node.input(0), node.optional(2)
    dtype = x.type.dtype
    if x.type.rank != 3 or x.type.dims[2] not in (1, 2):
        raise node.error(
            f"the signal has dims ({', '.join(map(str, x.type.dims))}), expected "
            "[batch, length, 1 or 2]"
        )
    if window is not None and window.type.rank != 1:
        raise node.error(f"the window has rank {window.type.rank}, expected 1")
    parts = _extent(x.type.dims[2], "the last dim")
    step = node.whole(1, "frame_step")
    if node.optional(3) is not None:
        length = node.whole(3, "frame_length")
    else:
        length = _extent(
            (x if window is None else window).type.dims[1 if window is None else 0], "frame_length"
        )
    if step < 1 or length < 1:
        raise node.error(f"frame_step is {step} and frame_length {length}, expected at least 1")
    node.check_computed(4 * length * length, "the matrix of the transform")
    matrix = _matrix(
        length, parts, length, is_inverse=False, is_onesided=bool(node.int_attr("onesided", 1))
    )
    # [length, parts, outputs] to a convolution's [outputs, parts, length]
    weights = node.constant(
        np.ascontiguousarray(matrix.reshape(length, parts, -1).transpose(2, 1, 0)).astype(
            dtype.numpy
        )
    )
    if window is not None:
        weights = node.emit("mul", weights, window)
    frames = node.emit(
        "conv",
        node.emit("transpose", x, perm=(0, 2, 1)),
        weights,
        None,
        strides=(step,),
        dilations=(1,),
        pads=(0, 0),
        group=1,
    )
    rows = node.emit("transpose", frames, perm=(0, 2, 1))
    return node.reshape(rows, (*rows.type.dims[:2], matrix.shape[1] // 2, 2))


@onnx_op("MelWeightMatrix", since=17)
def mel_weight_matrix(node: Node) -> Value:
    """Triangles of equal width on the mel scale, 2595 log10(1 + f / 700)."""
    try:
        dtype = dtype_of(node.int_attr("output_datatype", 1))
    except UnsupportedTypeError as error:
        raise UnsupportedNodeError(str(error)) from None
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    mels, length, rate, low, high = (node.number(i, name) for i, name in enumerate(names))
    count = int(mels)
    if count < 1 or length < 1 or rate < 1:
        raise node.error(f"num_mel_bins is {mels}, dft_length {length} and sample_rate {rate}")
    if not -700 < low <= high < math.inf:
        raise node.error(f"edges are {low} and {high} Hz")
    node.check_computed(count * (int(length) // 2 + 1), "the matrix")
    edges = [2595 * math.log10(1 + f / 700) for f in (low, high)]
    steps = np.arange(count + 2) * ((edges[1] - edges[0]) / (count + 2)) + edges[0]
    hertz = 700 * (10 ** (steps / 2595) - 1)
    bins = ((length + 1) * hertz // rate).astype(np.int64)
    matrix = np.zeros((int(length) // 2 + 1, count))
    if bins.min() < 0 or bins.max() > matrix.shape[0]:
        raise node.error(f"edges {low} and {high} Hz are outside the spectrum")
    for i, (left, centre, right) in enumerate(zip(bins, bins[1:], bins[2:], strict=False)):
        if left == centre:
            matrix[centre, i] = 1
        else:
            matrix[left : centre + 1, i] = np.arange(centre + 1 - left) / (centre - left)
        if right > centre:
            matrix[centre:right, i] = (right - np.arange(centre, right)) / (right - centre)
    return node.cast(
        node.constant(matrix.astype(np.float64 if dtype is DType.F64 else np.float32)), dtype
    )
