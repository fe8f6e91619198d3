"""Imports ONNX's Fourier transforms, as products with matrices, and the mel filters.

A transform of n numbers is a matrix product, n^2 multiplications, unless n is large; transforms
over frames are a convolution with the window in its weights. Real and imaginary parts interleave,
as in ONNX.
"""

from __future__ import annotations

import math

import numpy as np

from aot.frontends.lib import fourier
from aot.frontends.lib.fourier import known_extent
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.frontends.onnx.tensors import UnsupportedTypeError, dtype_of
from aot.ir import dims
from aot.ir.graph import Value
from aot.ir.types import DType


def _transformed(node: Node, axis: int) -> Value:
    x = node.input(0)
    parts = known_extent(x.type.dims[-1], "the last dim")
    if axis == x.type.rank - 1 or parts not in (1, 2):
        raise node.error(
            f"axis is {axis}, and the last dim, of real and imaginary parts, is {parts}"
        )
    is_inverse, is_onesided = bool(node.int_attr("inverse", 0)), bool(node.int_attr("onesided", 0))
    length = x.type.dims[axis]
    if is_inverse and is_onesided:
        length = dims.multiply(dims.add(length, -1), 2)
    if node.optional(1) is not None:
        length = node.extent(1, "dft_length", None)
    if isinstance(length, int) and length < 1:
        raise node.error(f"dft_length is {length}")
    if is_onesided and parts != (2 if is_inverse else 1):
        raise node.error(
            f"onesided takes {'complex numbers of an inverse' if is_inverse else 'real numbers'}, "
            f"and the last dim, of real and imaginary parts, is {parts}"
        )
    return fourier.dft(node, x, axis, length, is_inverse=is_inverse, is_onesided=is_onesided)


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
    if x.type.rank == 2:  # as torch.stft is exported
        x = node.reshape(x, (*x.type.dims, 1))
    if x.type.rank != 3 or x.type.dims[2] not in (1, 2):
        raise node.error(
            f"the signal has dims ({', '.join(map(str, x.type.dims))}), expected "
            "[batch, length] or [batch, length, 1 or 2]"
        )
    if window is not None and window.type.rank != 1:
        raise node.error(f"the window has rank {window.type.rank}, expected 1")
    step = node.whole(1, "frame_step")
    length = x.type.dims[1] if window is None else window.type.dims[0]
    if node.optional(3) is not None:
        length = node.extent(3, "frame_length", x.type.dims[1])
        if window is not None and isinstance(length, int) and window.type.dims != (length,):
            raise node.error(
                f"frame_length is {length}, and the window has {window.type.dims[0]} elements"
            )
    if step < 1 or (isinstance(length, int) and length < 1):
        raise node.error(f"frame_step is {step} and frame_length {length}, expected at least 1")
    is_onesided = bool(node.int_attr("onesided", 1))
    return fourier.stft(node, x, window, step, length, is_onesided=is_onesided)


@onnx_op("MelWeightMatrix", since=17)
def mel_weight_matrix(node: Node) -> Value:
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
    matrix = fourier.mel_filters(node, count, int(length), rate, (low, high))
    return node.cast(
        node.constant(matrix.astype(np.float64 if dtype is DType.F64 else np.float32)), dtype
    )
