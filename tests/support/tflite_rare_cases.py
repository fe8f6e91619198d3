"""Models of what few TFLite files have: forms of an operator, element types; see `tflite_cases`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.support.tflite_cases import ACTIVATIONS, Making, case
from tests.support.tflite_models import NUMBERS
from tests.support.tflite_movement_cases import ints

I32 = np.int32

for _dtype in (np.float32, I32):

    @case(f"ADD_N-{np.dtype(_dtype).name}")
    def _(m: Making, dtype: Any = _dtype) -> int:
        y = m.tensor((2, 3), dtype)
        m.op("ADD_N", [m.input((2, 3), dtype, -9, 9) for _ in range(3)], [y], "AddNOptions")
        return y

    @case(f"TILE-once-{np.dtype(_dtype).name}")
    def _(m: Making, dtype: Any = _dtype) -> int:
        y = m.tensor((2, 3), dtype)
        m.op("TILE", [m.input((2, 3), dtype), ints(m, 1, 1)], [y], "TileOptions")
        return y


@case("POW-int32")
def _(m: Making) -> int:
    x, e, y = m.input((4, 3), I32, -3, 3), m.input((3,), I32, 0, 5), m.tensor((4, 3), I32)
    m.op("POW", [x, e], [y], "PowOptions")
    return y


for _pair in ((np.float32, I32), (I32, np.float32), (np.int16, np.uint16)):

    @case(f"BITCAST-{np.dtype(_pair[0]).name}-{np.dtype(_pair[1]).name}")
    def _(m: Making, pair: Any = _pair) -> int:
        x, y = m.input((2, 3), pair[0], 1, 9), m.tensor((2, 3), pair[1])
        m.op("BITCAST", [x], [y], "BitcastOptions")
        return y


@case("RESHAPE-scalar")
def _(m: Making) -> int:
    x, y, z = m.input((1, 1)), m.tensor(()), m.tensor(())
    m.op("RESHAPE", [x], [y], "ReshapeOptions", new_shape=[0])
    m.op("NEG", [y], [z], "NegOptions")
    return z


@case("MIRROR_PAD-one-dim")
def _(m: Making) -> int:
    x, y = m.input((3, 4)), m.tensor((3, 7))
    m.op(
        "MIRROR_PAD",
        [x, m.constant(np.array([[0, 0], [2, 1]], I32))],
        [y],
        "MirrorPadOptions",
        mode=1,
    )
    return y


@case("STRIDED_SLICE-sizes")
def _(m: Making) -> int:
    """Ends that count from where the slices begin."""
    x, y = m.input((4, 5, 6)), m.tensor((2, 3, 2))
    own = [ints(m, *v) for v in ((1, 2, 0), (2, 3, 5), (1, 1, 3))]
    m.op("STRIDED_SLICE", [x, *own], [y], "StridedSliceOptions", offset=True)
    return y


@case("RANGE-of-an-extent")
def _(m: Making) -> int:
    x, shape, size = m.input((4, 2), signature=(-1, 2)), m.tensor((2,), I32), m.tensor((), I32)
    m.op("SHAPE", [x], [shape], "ShapeOptions", out_type=2)
    own = [ints(m, 0), ints(m, 1), ints(m, 1)]
    m.op("STRIDED_SLICE", [shape, *own], [size], "StridedSliceOptions", shrink_axis_mask=1)
    y = m.tensor((4,), I32, signature=(-1,))
    m.op("RANGE", [m.constant(I32(0)), size, m.constant(I32(1))], [y], "RangeOptions")
    return y


for _rank, _where in ((0, 2), (1, [2, 0])):

    @case(f"SPARSE_TO_DENSE-{_rank}")
    def _(m: Making, where: Any = _where) -> int:
        values, y = m.input(np.shape(where)), m.tensor((4,))
        own = [m.constant(np.array(where, I32)), ints(m, 4)]
        rest = m.constant(np.float32(0.5))
        m.op("SPARSE_TO_DENSE", [*own, values, rest], [y], "SparseToDenseOptions")
        return y


for _name in ("MAX", "MIN"):

    @case(f"UNSORTED_SEGMENT_{_name}-int32")
    def _(m: Making, name: str = _name) -> int:
        x, y = m.input((5, 3), I32, -9, 9), m.tensor((4, 3), I32)
        own = [ints(m, 2, 0, 2, 3, 0), m.constant(np.array(4, I32))]
        options = f"UnsortedSegment{name.title()}Options"
        m.op(f"UNSORTED_SEGMENT_{name}", [x, *own], [y], options)
        return y


for _axes in ([0], [0, 1]):

    @case(f"MEAN-int32-{len(_axes)}")
    def _(m: Making, axes: Any = _axes) -> int:
        """Rounded towards zero."""
        x, y = m.input((3, 5), I32, -20, 20), m.tensor((5,) if len(axes) == 1 else (), I32)
        m.op("MEAN", [x, ints(m, *axes)], [y], "ReducerOptions")
        return y


@case("MEAN-int32-large")
def _(m: Making) -> int:
    """Summed in 64 bits."""
    x, y = m.input((3,), I32, data=np.array([2**31 - 1, 2**31 - 1, -5], I32)), m.tensor((), I32)
    m.op("MEAN", [x, ints(m, 0)], [y], "ReducerOptions")
    return y


@case("SIGN-special")
def _(m: Making) -> int:
    x = m.input((5,), data=np.array([np.nan, -0.0, np.inf, -3.5, 1e-40]))
    y = m.tensor((5,), np.float32)
    m.op("SIGN", [x], [y], "SignOptions")
    return y


for _name in ("MEAN", "REDUCE_MAX"):

    @case(f"{_name}-no-axes")
    def _(m: Making, name: str = _name) -> int:
        x, y = m.input((3, 5)), m.tensor((3, 5))
        m.op(name, [x, ints(m)], [y], "ReducerOptions")
        return y


@case("REDUCE_ANY-no-axes")
def _(m: Making) -> int:
    x, y = m.input((3, 5), np.bool_), m.tensor((3, 5), np.bool_)
    m.op("REDUCE_ANY", [x, ints(m)], [y], "ReducerOptions")
    return y


@case("QUANTIZE-int16-int32")
def _(m: Making) -> int:
    x, y = m.input((3, 50), np.int16, scale=0.02), m.tensor((3, 50), I32, scale=0.0007)
    m.op("QUANTIZE", [x], [y], "QuantizeOptions")
    return y


def nibbles(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Signed numbers of four bits as bytes, the first in the low half."""
    flat = np.resize(array.reshape(-1) & 15, array.size + array.size % 2).astype(np.uint8)
    return flat[::2] | flat[1::2] << 4


for _width in (8, 7):  # an even and an odd number of elements

    @case(f"FULLY_CONNECTED-int4-{_width}")
    def _(m: Making, width: int = _width) -> int:
        x, y = m.input((2, width), np.int8, scale=0.04, zero=3), m.tensor((2, 5), np.int8, scale=1)
        codes = m.random.randint(-7, 8, (5, width)).astype(np.int8)
        w = m.constant(nibbles(codes), scale=0.1)
        m.tensors[w] |= {"shape": [5, width], "type": NUMBERS["TensorType"]["INT4"]}
        bias = m.constant(np.arange(5, dtype=I32), scale=0.004)
        m.op("FULLY_CONNECTED", [x, w, bias], [y], "FullyConnectedOptions")
        return y


def _one_step(norms: int, kind: int) -> None:
    @case(f"LSTM-{'full' if kind == 0 else 'basic'}-{norms}", tolerance=1e-5, calls=2)
    def _(m: Making) -> int | Sequence[int]:
        batch, inputs, cells, tanh = 2, 5, 6, ACTIVATIONS["TANH"]

        def weight(*shape: int) -> int:
            return m.constant(m.numbers(shape, low=-0.7, high=0.7))

        x, y = m.input((batch, inputs)), m.tensor((batch, cells))
        how = {"fused_activation_function": tanh, "kernel_type": kind}
        if kind == 1:
            h, c = m.input((batch, cells)), m.input((batch, cells))
            operands = [x, h, weight(4 * cells, inputs + cells), weight(4 * cells), c]
            widths = (cells, inputs + cells, 4 * cells)
            results = [y, *(m.tensor((batch, n)) for n in widths)]
            m.op("LSTM", operands, results, "LSTMOptions", **how)
            return results[:2]
        operands = [x, *(weight(cells, inputs) for _ in range(4))]
        operands += [*(weight(cells, cells) for _ in range(4)), -1, -1, -1]
        operands += [*(weight(cells) for _ in range(4)), -1, -1]
        operands += [m.tensor((batch, cells), is_variable=True) for _ in range(2)]
        operands += [weight(cells) for _ in range(norms)]
        m.op("LSTM", operands, [y], "LSTMOptions", **how)
        return y


for _norms, _kind in ((0, 0), (4, 0), (0, 1)):
    _one_step(_norms, _kind)


# Fourier transforms; LiteRT has those of powers of two

for _shape, _lengths in (
    ((2, 1, 16), (1, 16)),
    ((3, 8), (4, 8)),
    ((2, 3, 5), (4, 8)),
    ((1, 9, 20), (8, 16)),
):
    for _after in ("REAL", "IMAG", "COMPLEX_ABS"):

        @case(f"RFFT2D-{'x'.join(map(str, _shape))}-{_after}", tolerance=4e-6)
        def _(m: Making, shape: Any = _shape, lengths: Any = _lengths, after: str = _after) -> int:
            made = (*shape[:-2], lengths[0], lengths[1] // 2 + 1)
            bins, y = m.tensor(made, np.complex64), m.tensor(made)
            m.op("RFFT2D", [m.input(shape), ints(m, *lengths)], [bins], "Rfft2dOptions")
            m.op(after, [bins], [y])
            return y


@case("RFFT2D-moved", tolerance=4e-6)
def _(m: Making) -> int:
    """As tf.signal.stft becomes: frames of one row, which is dropped behind the transform."""
    bins, rows, more, y = (
        m.tensor(shape, np.complex64) for shape in ((6, 1, 9), (6, 9), (2, 3, 9), (2, 3, 1, 9))
    )
    z = m.tensor((2, 3, 1, 9))
    m.op("RFFT2D", [m.input((6, 1, 16)), ints(m, 1, 16)], [bins], "Rfft2dOptions")
    m.op("SQUEEZE", [bins], [rows], "SqueezeOptions", squeeze_dims=[1])
    m.op("RESHAPE", [rows, ints(m, 2, 3, 9)], [more], "ReshapeOptions", new_shape=[2, 3, 9])
    m.op("EXPAND_DIMS", [more, ints(m, 2)], [y], "ExpandDimsOptions")
    m.op("COMPLEX_ABS", [y], [z])
    return z
