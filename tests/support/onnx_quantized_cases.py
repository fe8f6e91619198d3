"""Cases for the quantised ops: results are integers, or exact, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.onnx_models import Array, Case

_RNG = np.random.default_rng(13)


def _f(*shape: int, scale: float = 40.0) -> Array:
    return np.asarray(_RNG.uniform(-scale, scale, shape), np.float32)


def _q(dtype: Any, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return np.asarray(_RNG.integers(info.min, info.max, shape, endpoint=True), dtype)


def _weights(*shape: int) -> Array:
    """Signed bytes of which two products with unsigned ones fit 16 bits: engines saturate the sum
    of two there, on CPUs that have no instruction for four."""
    return _q(I8, *shape) // 2


def _one(value: float, dtype: Any) -> Array:
    return np.array(value, dtype)


def _s(*shape: int) -> Array:
    return np.asarray(_RNG.uniform(0.01, 0.2, shape), np.float32)


U8, I8, U16, I16, I32, F16, F32 = (
    np.uint8,
    np.int8,
    np.uint16,
    np.int16,
    np.int32,
    np.float16,
    np.float32,
)
HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 127.5, 1e9, -1e9], np.float32)

QUANTIZE = [
    Case("QuantizeLinear", [HALVES, _one(1, F32), _one(0, I8)], opset=13, name="halves"),
    Case("QuantizeLinear", [HALVES, _one(1, F32), _one(3, U8)], opset=10, name="unsigned"),
    Case("QuantizeLinear", [HALVES, _one(0.5, F32)], opset=13, name="no zero point"),
    Case("QuantizeLinear", [_f(2, 3, 4), _s(3), _q(I8, 3)], opset=13, name="channels"),
    Case("QuantizeLinear", [_f(2, 3, 4), _s(4), _q(U8, 4)], {"axis": -1}, opset=13, name="last"),
    Case("QuantizeLinear", [_f(9), _s(), _one(7, U16)], opset=21, name="u16"),
    Case(
        "QuantizeLinear",
        [_f(9).astype(np.float16), _one(0.5, F16), _one(7, I8)],
        opset=21,
        name="f16",
    ),
    Case(
        "QuantizeLinear",
        [_f(3, 4), _s(3, 2), _q(I8, 3, 2)],
        {"axis": 1, "block_size": 2},
        opset=21,
        is_symbolic=False,
        name="blocks",
    ),
]
DEQUANTIZE = [
    Case("DequantizeLinear", [_q(U8, 3, 4), _one(0.3, F32), _one(7, U8)], opset=10),
    Case("DequantizeLinear", [_q(I8, 3, 4), _one(0.3, F32)], opset=13, name="no zero point"),
    Case("DequantizeLinear", [_q(I8, 2, 3, 4), _s(3), _q(I8, 3)], opset=13, name="channels"),
    Case(
        "DequantizeLinear", [_q(I8, 2, 3, 4), _s(2), _q(I8, 2)], {"axis": 0}, opset=13, name="first"
    ),
    Case("DequantizeLinear", [np.array([5, -70000], I32), _one(0.5, F32)], opset=13, name="i32"),
    Case("DequantizeLinear", [_q(I16, 9), _one(0.3, F32), _one(-5, I16)], opset=21, name="i16"),
    Case(
        "DequantizeLinear",
        [_q(I8, 3, 4), _s(3, 2), _q(I8, 3, 2)],
        {"axis": 1, "block_size": 2},
        opset=21,
        is_symbolic=False,
        name="blocks",
    ),
    Case(
        "DequantizeLinear",
        [_q(I8, 3, 5), _s(3, 2).astype(np.float16)],
        {"axis": 1, "block_size": 3},
        opset=21,
        is_symbolic=False,
        name="f16, a short block",
    ),
    Case("DynamicQuantizeLinear", [_f(3, 4)], outputs=3, opset=11),
    Case("DynamicQuantizeLinear", [np.abs(_f(9)) + 1], outputs=3, opset=11, name="positive"),
    Case("DynamicQuantizeLinear", [0 * _f(9)], outputs=3, opset=11, name="zeros"),
]
INTEGER = [
    Case("MatMulInteger", [_q(U8, 3, 40), _q(U8, 40, 5)], opset=10, name="plain"),
    Case(
        "MatMulInteger",
        [_q(U8, 2, 3, 4), _weights(4, 5), _one(9, U8), _one(-3, I8)],
        opset=10,
        constant=[1, 3],
        name="zero points",
    ),
    Case(
        "MatMulInteger",
        [_q(U8, 3, 4), _weights(4, 5), _one(9, U8), _q(I8, 5)],
        opset=10,
        name="columns",
    ),
    Case("MatMulInteger", [_q(U8, 4), _q(U8, 4, 5)], opset=10, name="vector"),
    Case(
        "ConvInteger",
        [_q(U8, 1, 3, 6, 5), _q(U8, 4, 3, 3, 3)],
        {"pads": [1, 1, 1, 1]},
        opset=10,
        constant=[1],
        name="plain",
    ),
    Case(
        "ConvInteger",
        [_q(U8, 1, 4, 6, 5), _q(U8, 4, 2, 3, 3), _one(100, U8), _one(3, U8)],
        {"pads": [1, 0, 1, 1], "group": 2, "strides": [2, 1]},
        opset=10,
        name="zero points",
    ),
]
QLINEAR = [
    Case(
        "QLinearMatMul",
        [
            _q(U8, 2, 40),
            _s(),
            _one(113, U8),
            _q(U8, 40, 3),
            _s(),
            _one(114, U8),
            _one(2.0, F32),
            _one(118, U8),
        ],
        opset=10,
        constant=[3],
        name="2d",
    ),
    Case(
        "QLinearMatMul",
        [
            _q(I8, 2, 3, 8),
            _s(),
            _one(11, I8),
            _q(I8, 2, 8, 5),
            _s(),
            _one(-14, I8),
            _one(0.9, F32),
            _one(1, I8),
        ],
        opset=10,
        name="3d",
    ),
    Case(
        "QLinearMatMul",
        [
            _q(U8, 2, 8),
            _s(),
            _one(113, U8),
            _weights(8, 3),
            _s(3),
            _q(I8, 3),
            _one(0.5, F32),
            _one(118, U8),
        ],
        opset=10,
        name="columns",
    ),
    Case(
        "QLinearConv",
        [
            _q(U8, 1, 3, 7, 6),
            _s(),
            _one(90, U8),
            _q(U8, 4, 3, 3, 3),
            _s(),
            _one(120, U8),
            _one(1.5, F32),
            _one(123, U8),
        ],
        {"pads": [1, 1, 0, 2]},
        opset=10,
        constant=[3],
        name="plain",
    ),
    Case(
        "QLinearConv",
        [
            _q(U8, 1, 4, 7, 6),
            _s(),
            _one(90, U8),
            _weights(4, 2, 3, 3),
            _s(4),
            np.zeros(4, I8),
            _one(1.5, F32),
            _one(123, U8),
            _q(I16, 4).astype(I32),
        ],
        {"group": 2, "strides": [2, 2]},
        opset=10,
        constant=[3],
        name="channels, bias",
    ),
]


def _ms(op: str, inputs: list[Any], attrs: dict[str, Any] | None = None, **more: Any) -> Case:
    return Case(op, inputs, attrs or {}, domain="com.microsoft", **more)


def _scaled(scale: float, zero: int, dtype: Any = U8) -> list[Array]:
    return [_one(scale, F32), _one(zero, dtype)]


_X = _q(U8, 2, 4, 5, 6)
MICROSOFT = [
    _ms("QuantizeLinear", [_f(2, 3, 4), _s(3), _q(U16, 3)], {"axis": 1}, name="u16"),
    _ms("DequantizeLinear", [_q(I16, 9), _one(0.3, F32), _one(-5, I16)], name="i16"),
    _ms("DequantizeLinear", [_q(I8, 2, 3), _s(3), _q(I8, 3)], {"axis": -1}, name="channels"),
    *(
        _ms(op, [_X, *_scaled(0.1, 90), _q(U8, *shape), *_scaled(0.2, 110), *_scaled(y, 128)])
        for op, y, shape in (("QLinearAdd", 0.25, _X.shape), ("QLinearMul", 1.73, (4, 1, 1)))
    ),
    _ms(
        "QLinearAdd",
        [_q(I8, 9), *_scaled(0.1, -9, I8), _q(I8, 9), *_scaled(0.2, 5, I8), _one(0.3, F32)],
        name="no zero point",
    ),
    _ms("QLinearSigmoid", [_X, *_scaled(0.05, 128), *_scaled(1 / 256, 0)]),
    _ms("QLinearLeakyRelu", [_X, *_scaled(0.05, 128), *_scaled(0.0413, 90)], {"alpha": 0.1}),
    _ms("QLinearSoftmax", [_X, *_scaled(0.05, 128), *_scaled(1 / 256, 0)], {"opset": 13}),
    _ms(
        "QLinearSoftmax",
        [_X, *_scaled(0.05, 128), *_scaled(1 / 256, 0)],
        {"opset": 12, "axis": 2},
        name="many dims",
    ),
    _ms("QLinearGlobalAveragePool", [_X, *_scaled(0.05, 128), *_scaled(0.0103, 100)]),
    _ms(
        "QLinearGlobalAveragePool",
        [_X, *_scaled(0.05, 128), *_scaled(0.0103, 100)],
        {"channels_last": 1},
        name="channels last",
    ),
    _ms(
        "QLinearAveragePool",
        [_X, *_scaled(0.05, 128), *_scaled(0.0413, 100)],
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 2]},
    ),
    _ms(
        "QLinearConcat",
        [
            *_scaled(0.1, 120),
            _q(U8, 2, 3, 4),
            *_scaled(0.1, 120),
            _q(U8, 2, 1, 4),
            *_scaled(0.07, 90),
        ],
        {"axis": 1},
    ),
    _ms(
        "QGemm",
        [
            _q(U8, 5, 40),
            *_scaled(0.02, 120),
            _weights(7, 40),
            _s(7),
            np.zeros(7, I8),
            _q(I16, 7).astype(I32),
            *_scaled(4.0, 100),
        ],
        {"transB": 1, "alpha": 0.5},
        constant=[3, 5, 6],
    ),
    _ms(
        "QGemm",
        [_q(U8, 5, 40), *_scaled(0.02, 120), _q(U8, 40, 7), *_scaled(0.03, 115)],
        name="to floats",
    ),
    _ms(
        "MatMulIntegerToFloat",
        [
            _q(U8, 5, 40),
            _weights(40, 7),
            _one(0.02, F32),
            _s(7),
            _one(120, U8),
            np.zeros(7, I8),
            _f(7),
        ],
        constant=[1, 5],
    ),
    _ms("DynamicQuantizeMatMul", [_f(5, 40), _weights(40, 7), _s(7), _q(I8, 7) // 8, _f(7)]),
    _ms(
        "MatMulNBits",
        [_f(5, 70), _q(U8, 7, 3, 16), _s(7, 3), _q(U8, 7, 2), None, _f(7)],
        {"K": 70, "N": 7, "bits": 4, "block_size": 32},
        constant=[1, 2, 3, 5],
    ),
]

CASES = [*QUANTIZE, *DEQUANTIZE, *INTEGER, *QLINEAR, *MICROSOFT]
