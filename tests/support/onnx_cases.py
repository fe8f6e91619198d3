"""Cases of ONNX's ops, one node each with what it is fed."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support import (
    onnx_attention_cases,
    onnx_indexing_cases,
    onnx_normalization_cases,
    onnx_quantized_cases,
    onnx_rare_cases,
    onnx_recurrent_cases,
    onnx_spatial_cases,
)
from tests.support.onnx_models import Case

_RNG = np.random.default_rng(7)
Array = np.ndarray[Any, Any]


def f(*shape: int, low: float = -2.0, high: float = 2.0) -> Array:
    return np.asarray(_RNG.uniform(low, high, shape), np.float32)


def i(*values: int) -> Array:
    return np.array(values, np.int64)


def ints(*shape: int, low: int = -5, high: int = 5, dtype: type = np.int64) -> Array:
    return np.asarray(_RNG.integers(low, high, shape), dtype)


def b(*shape: int) -> Array:
    return np.asarray(_RNG.integers(0, 2, shape), bool)


SPECIAL = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 1e-30], np.float32)

UNARY = [
    Case(op, [f(2, 3, 5)])
    for op in (
        "Abs",
        "Neg",
        "Exp",
        "Tanh",
        "Erf",
        "Sigmoid",
        "Sin",
        "Cos",
        "Tan",
        "Floor",
        "Ceil",
        "Round",
        "Relu",
        "Sign",
        "Softplus",
        "Softsign",
        "HardSwish",
        "Identity",
    )
]
UNARY += [
    Case("Sqrt", [f(3, 4, low=0.0)]),
    Case("Log", [f(3, 4, low=0.01)]),
    Case("Reciprocal", [f(3, 4, low=0.5)]),
    Case("Not", [b(3, 4)]),
    Case("IsNaN", [SPECIAL]),
    Case("IsInf", [SPECIAL]),
    Case("IsInf", [SPECIAL], {"detect_negative": 0}, name="positive"),
    Case("IsInf", [SPECIAL], {"detect_positive": 0}, name="negative"),
    Case("IsInf", [SPECIAL], {"detect_positive": 0, "detect_negative": 0}, name="none"),
    Case("Relu", [SPECIAL], name="special"),
    Case("Sign", [ints(5)], name="ints"),
    Case("Sign", [SPECIAL], name="special"),
    Case("Sign", [SPECIAL.astype(np.float64)], name="special doubles"),
    Case("Abs", [ints(5, dtype=np.int32)], name="ints"),
    Case("LeakyRelu", [f(3, 5)]),
    Case("LeakyRelu", [f(3, 5)], {"alpha": 0.3}, name="alpha"),
    Case("Elu", [f(3, 5)], {"alpha": 1.5}),
    Case("Selu", [f(3, 5)]),
    Case("Celu", [f(3, 5)]),
    Case("Celu", [f(3, 5)], {"alpha": 2.0}, name="alpha"),
    Case("ThresholdedRelu", [f(3, 5)], {"alpha": 0.5}),
    Case("HardSigmoid", [f(4, 9, high=6.0)]),
    Case("HardSigmoid", [f(4, 9)], {"alpha": 0.3, "beta": 0.4}, name="attributes"),
    Case("PRelu", [f(2, 3, 4), f(3, 1)]),
    Case("Mish", [f(3, 5)], opset=18),
    Case("Gelu", [f(3, 5)], opset=20),
    Case("Gelu", [f(3, 5)], {"approximate": "tanh"}, opset=20, name="tanh"),
    Case("Dropout", [f(3, 5)]),
    Case("Dropout", [f(3, 5)], {"ratio": 0.3}, opset=10),
    Case("Softplus", [np.array([-200, -3, 0, 3, 200], np.float32)], name="large"),
]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def large(dtype: str) -> tuple[Any, Any]:
    """All pairs of integers near the ends of a type, near halves of them and near 0, but of the
    least one and -1, whose quotient no type holds, and of divisors that are 0."""
    info = np.iinfo(dtype)
    near = (info.min, info.min // 2, info.min // 3, 0, info.max // 3, info.max // 2, info.max)
    numbers = sorted(
        {c + s for c in near for s in (-2, -1, 0, 1, 2) if info.min <= c + s <= info.max}
    )
    pairs = [(a, b) for a in numbers for b in numbers if b and (a, b) != (info.min, -1)]
    a, b = np.array(pairs, dtype).T.copy()
    return a, b


def parted(dtype: str) -> tuple[Any, Any]:
    """Pairs of floats of which a rounded quotient gives another remainder, and of numbers whose
    exponents are far apart."""
    x = [1, 5.5, 6, 0.84, 1e4, -1, -5.5, 3e-5, -0.0, 7, 60000, 41, 2.5]
    y = [0.1, 1.1, 0.2, 0.02, 3, 0.1, -1.1, 1e-6, 3, np.inf, 6e-8, 41, -0.0123]
    return np.array(x, dtype), np.array(y, dtype)


BINARY = [
    Case(op, [f(2, 3, 5), f(3, 1, low=0.5)])
    for op in (
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Less",
        "LessOrEqual",
        "Greater",
        "GreaterOrEqual",
        "Equal",
        "Max",
        "Min",
        "Sum",
        "Mean",
    )
]
BINARY += [Case(op, [b(2, 3), b(3)]) for op in ("And", "Or", "Xor")]
BINARY += [
    Case("Add", [f(3), f(2, 3)], opset=7),
    Case("Greater", [SPECIAL, SPECIAL[::-1].copy()]),
    Case("Max", [f(2, 3), f(3), f(2, 1), f(1, 1)], name="four"),
    Case("Max", [f(3)], name="one"),
    Case("Mean", [f(2, 3), f(3), f(2, 1)], name="three"),
    Case("Sum", [f(2, 3), f(2, 3), f(2, 3)], opset=6, name="three"),
    Case("Div", [ints(40, low=-20, high=20), np.resize(i(3, -3, 7, -7, 2), 40)], name="ints"),
    Case("Mod", [ints(40, low=-20, high=20), np.resize(i(3, -3, 7, -7, 2), 40)]),
    Case("Mod", [ints(40, low=-20, high=20), np.resize(i(3, -3, 7), 40)], {"fmod": 1}, name="fmod"),
    *(Case("Mod", [*large(dtype)], name=f"large {dtype}") for dtype in INTEGERS),
    *(Case("Mod", [*large(dtype)], {"fmod": 1}, name=f"fmod {dtype}") for dtype in INTEGERS),
    *(
        Case("Mod", [*parted(dtype)], {"fmod": 1}, name=f"fmod {dtype}")
        for dtype in ("float16", "float32", "float64")
    ),
    *(Case("Div", [*large(dtype)], name=f"large {dtype}") for dtype in INTEGERS),
    Case(
        "Mod",
        [ints(9, low=0, high=20, dtype=np.uint8), ints(9, low=1, high=9, dtype=np.uint8)],
        name="unsigned",
    ),
    Case("Pow", [f(3, 4, low=0.2), f(4)]),
    Case("Pow", [f(3, 4), np.array(2.0, np.float32)], constant=[1], name="square"),
    Case("Pow", [f(3, 4), i(3)], name="int exponent"),
    Case("Pow", [ints(6), i(3)], name="ints"),
    Case("Equal", [b(2, 3), b(3)], name="bool"),
    Case("Equal", [ints(2, 3, low=0, high=2), ints(3, low=0, high=2)], name="ints"),
    Case("Where", [b(3, 1), f(3, 4), f(4)]),
    Case("Where", [b(4), ints(3, 4), ints(1)], opset=9),
    Case("Clip", [f(3, 4), np.float32(-0.5), np.float32(0.7)], constant=[1, 2]),
    Case("Clip", [f(3, 4), None, np.float32(0.7)], constant=[2], name="high"),
    Case("Clip", [f(3, 4), np.array(-0.5, np.float32)], name="low, dynamic"),
    Case("Clip", [f(3, 4)], {"min": -0.5, "max": 0.7}, opset=10),
    Case("Clip", [f(3, 4)], {"min": 0.0}, opset=6),
    Case("Clip", [ints(3, 4), np.int64(-2), np.int64(3)], constant=[1, 2], name="ints"),
]

CASTS = [
    Case("Cast", [a], {"to": to}, name=f"{a.dtype} to {to}")
    for a, to in (
        (np.array([1.7, -1.7, 0.2, 100.5], np.float32), 7),
        (f(3), 11),
        (ints(5), 1),
        (b(4), 1),
        (np.array([0.0, -0.0, 0.3, -2], np.float32), 9),
        (ints(5, low=-500, high=500), 3),
        (ints(4), 9),
        (b(4), 7),
        (f(4), 10),
    )
]
CASTS += [Case("Cast", [f(3)], {"to": 6}, opset=9), Case("CastLike", [f(3), ints(1)])]

CONTRACTIONS = [
    Case("Conv", [f(1, 3, 9, 7), f(5, 3, 3, 3)]),
    Case(
        "Conv",
        [f(1, 3, 9, 7), f(5, 3, 3, 3), f(5)],
        {"pads": [1, 2, 0, 1], "strides": [2, 1]},
        constant=[1, 2],
        name="pads",
    ),
    Case(
        "Conv",
        [f(2, 6, 9, 7), f(6, 1, 3, 2)],
        {"group": 6, "dilations": [2, 1]},
        constant=[1],
        name="depthwise",
    ),
    Case("Conv", [f(2, 6, 9, 7), f(4, 3, 3, 2)], {"group": 2}, constant=[1], name="group"),
    Case(
        "Conv", [f(2, 3, 13), f(4, 3, 5)], {"strides": [3], "pads": [2, 1]}, constant=[1], name="1d"
    ),
    Case(
        "Conv",
        [f(1, 2, 4, 5, 3), f(3, 2, 2, 3, 1)],
        {"kernel_shape": [2, 3, 1]},
        constant=[1],
        name="3d",
    ),
    *(
        Case(
            "Conv",
            [f(1, 2, 10, 7), f(3, 2, k, 2)],
            {"auto_pad": mode, "strides": [3, 2]},
            constant=[1],
            name=f"{mode} {k}",
        )
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for k in (2, 3)
    ),
    Case("MatMul", [f(3, 4), f(4, 5)]),
    Case("MatMul", [f(4), f(4)], name="vectors"),
    Case("MatMul", [f(2, 3, 4), f(4)], name="by vector"),
    Case("MatMul", [f(4), f(2, 4, 5)], name="vector by"),
    Case("MatMul", [f(2, 1, 3, 4), f(5, 4, 2)], name="batches"),
    Case("MatMul", [ints(3, 4, dtype=np.int32), ints(4, 2, dtype=np.int32)], name="ints"),
    Case("Gemm", [f(3, 4), f(4, 5), f(5)]),
    Case("Gemm", [f(3, 4), f(4, 5)], name="two"),
    Case(
        "Gemm",
        [f(4, 3), f(5, 4), f(3, 1)],
        {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0},
        name="attributes",
    ),
    Case("Gemm", [f(4, 3), f(3, 5), f(1)], opset=7, constant=[1, 2]),
]

_POOL = {"kernel_shape": [3, 2], "strides": [2, 3]}
POOLS = [
    *(
        Case(op, [f(1, 2, 9, 7)], {**_POOL, **more}, opset=opset, name=name)
        for op in ("MaxPool", "AveragePool")
        for opset, more, name in (
            (12, {}, ""),
            (12, {"pads": [1, 0, 2, 1]}, "pads"),
            (12, {"ceil_mode": 1}, "ceil"),
            (12, {"ceil_mode": 1, "pads": [1, 1, 1, 1]}, "ceil, pads"),
            (12, {"auto_pad": "SAME_UPPER"}, "same"),
            (7, {}, ""),
        )
    ),
    Case("MaxPool", [f(1, 2, 11, 9)], {**_POOL, "dilations": [2, 3]}, name="dilations"),
    Case("MaxPool", [f(2, 3, 7)], {"kernel_shape": [2]}, name="1d"),
    Case("AveragePool", [f(2, 3, 7)], {"kernel_shape": [3], "pads": [1, 1]}, name="1d"),
    Case(
        "AveragePool",
        [f(1, 2, 9, 7)],
        {**_POOL, "pads": [1, 1, 1, 1], "count_include_pad": 1},
        name="counting",
    ),
    Case(
        "AveragePool",
        [f(1, 2, 9, 8)],
        {**_POOL, "pads": [1, 1, 0, 1], "count_include_pad": 1, "ceil_mode": 1},
        opset=19,
        name="counting, ceil",
    ),
    Case(
        "AveragePool", [f(1, 2, 11, 9)], {**_POOL, "dilations": [2, 3]}, opset=19, name="dilations"
    ),
    Case("GlobalAveragePool", [f(2, 3, 5, 4)]),
    Case("GlobalMaxPool", [f(2, 3, 5, 4)]),
    Case("GlobalAveragePool", [f(2, 3, 5)], name="1d"),
    Case(
        "BatchNormalization",
        [f(2, 3, 5, 4), f(3), f(3), f(3), f(3, low=0.2)],
        constant=[1, 2, 3, 4],
    ),
    Case(
        "BatchNormalization",
        [f(2, 3), f(3), f(3), f(3), f(3, low=0.2)],
        {"epsilon": 1e-2, "momentum": 0.5},
        opset=9,
        name="matrix",
    ),
    Case("InstanceNormalization", [f(2, 3, 5, 4), f(3), f(3)]),
    Case("DepthToSpace", [f(2, 8, 3, 4)], {"blocksize": 2}, is_symbolic=False),
    Case(
        "DepthToSpace",
        [f(2, 8, 3, 4)],
        {"blocksize": 2, "mode": "CRD"},
        is_symbolic=False,
        name="CRD",
    ),
    Case("SpaceToDepth", [f(2, 3, 4, 6)], {"blocksize": 2}),
]

REDUCTIONS = [
    *(
        Case(
            "ReduceMean",
            [ints(4, 3, low=-9, high=9, dtype=dtype)],
            {"axes": axes},
            opset=13,
            name=name,
        )
        for dtype, kind in ((np.int32, "i32"), (np.int64, "i64"))
        for axes, name in (([0], f"{kind} rows"), ([0, 1], f"{kind} all"))
    ),
    Case("ReduceMean", [np.array([2**31 - 1, 2**31 - 1, -5], np.int32)], name="large integers"),
    *(
        Case(op, [f(2, 3, 4, low=0.1)], attrs, opset=opset, name=name)
        for op in (
            "ReduceSum",
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceProd",
            "ReduceL1",
            "ReduceL2",
            "ReduceSumSquare",
            "ReduceLogSum",
        )
        for opset, attrs, name in (
            (11, {"axes": [1]}, ""),
            (11, {"axes": [-1, 0]}, "two"),
            (11, {"keepdims": 0}, "all"),
        )
    ),
    *(
        Case(op, [f(2, 3, 4), i(-1, 1)], {"keepdims": 0}, opset=18, constant=[1])
        for op in (
            "ReduceSum",
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceProd",
            "ReduceL1",
            "ReduceL2",
            "ReduceSumSquare",
        )
    ),
    Case("ReduceLogSum", [f(2, 3, 4, low=0.1), i(1)], opset=18, constant=[1]),
    Case("ReduceSum", [f(2, 3, 4)], opset=13, name="all"),
    Case(
        "ReduceSum",
        [f(2, 3, 4), i()],
        {"noop_with_empty_axes": 1},
        opset=13,
        constant=[1],
        name="none",
    ),
    Case("ReduceSum", [ints(2, 3), i(0)], opset=13, constant=[1], name="ints"),
    Case("Softmax", [f(2, 3, 4)]),
    Case("Softmax", [f(2, 3, 4)], {"axis": 1}, name="axis"),
    Case("Softmax", [f(2, 3, 4)], opset=11),
    Case("Softmax", [f(2, 5)], opset=11, name="matrix"),
    Case("Softmax", [f(2, 3, 4, 5)], {"axis": -2}, opset=9, name="axis"),
    Case("LogSoftmax", [f(2, 3, 4)], {"axis": 0}),
    Case("LogSoftmax", [f(2, 3, 4)], opset=9),
    Case("LayerNormalization", [f(2, 3, 8), f(8), f(8)], constant=[1, 2]),
    Case("LayerNormalization", [f(2, 3, 8), f(3, 8)], {"axis": 1, "epsilon": 1e-2}, constant=[1]),
    Case(
        "LayerNormalization",
        [f(2, 3, 8), f(1), f(8)],
        constant=[1, 2],
        name="broadcast scale",
        is_symbolic=False,
    ),
]

TENSORS = [
    Case("Reshape", [f(2, 3, 4), i(4, 6)], constant=[1]),
    Case("Reshape", [f(2, 3, 4), i(0, -1)], constant=[1], name="0 and -1"),
    Case("Reshape", [f(2, 3, 4), i(-1)], opset=5, constant=[1]),
    Case("Reshape", [f(2, 0, 4), i(0, 2, 2)], {"allowzero": 1}, constant=[0, 1], name="allowzero"),
    *(Case("Flatten", [f(2, 3, 4)], {"axis": axis}, name=str(axis)) for axis in (0, 1, -1, 3)),
    Case("Squeeze", [f(2, 1, 4, 1)]),
    Case("Squeeze", [f(2, 1, 4, 1), i(-3)], constant=[1], name="axes"),
    Case("Squeeze", [f(2, 1, 4, 1)], {"axes": [1, 3]}, opset=11),
    Case("Unsqueeze", [f(2, 3), i(-1, 1)], constant=[1]),
    Case("Unsqueeze", [f(2, 3)], {"axes": [0, 3]}, opset=11),
    Case("Transpose", [f(2, 3, 4)]),
    Case("Transpose", [f(2, 3, 4)], {"perm": [1, 2, 0]}),
    Case("Expand", [f(3, 1), i(2, 1, 4)], constant=[1]),
    Case("Expand", [f(2, 3), i(1)], constant=[1], name="no change"),
    Case("Tile", [f(2, 3), i(2, 3)], constant=[1]),
    *(
        Case(
            "Slice",
            [f(6, 9), i(s), i(e), i(a), i(step)],
            constant=[1, 2, 3, 4],
            name=f"{s}:{e}:{step} of {a}",
        )
        for s, e, a, step in (
            (1, 4, 0, 1),
            (-3, 100, 1, 1),
            (0, -1, 1, 2),
            (4, 1, 0, -1),
            (100, -100, 1, -2),
            (5, 5, 0, 1),
            (-1, -7, 0, -1),
            (7, 2, 1, 1),
            (2, 2**63 - 1, 1, 3),
            (-1, -(2**63), 0, -1),
            (100, 200, 0, 1),
        )
    ),
    Case("Slice", [f(6, 9), i(1, 2), i(5, -1)], constant=[1, 2], name="no axes"),
    Case("Slice", [f(6, 9)], {"starts": [1], "ends": [-1], "axes": [1]}, opset=9),
    Case("Slice", [f(6, 9)], {"starts": [1, 0], "ends": [3, 1000]}, opset=1, name="no axes"),
    Case("Split", [f(6, 9), i(2, 4, 3)], {"axis": 1}, constant=[1], outputs=3),
    Case("Split", [f(6, 9)], {"axis": -1}, outputs=3, opset=13, name="equal"),
    Case(
        "Split",
        [f(6, 8)],
        {"axis": 1, "num_outputs": 3},
        outputs=3,
        opset=18,
        name="uneven",
        is_symbolic=False,
    ),
    Case("Split", [f(6, 9)], {"split": [1, 5]}, outputs=2, opset=11),
    Case("Split", [f(6, 9)], outputs=2, opset=2, name="equal"),
    Case("Concat", [f(2, 3), f(2, 1), f(2, 4)], {"axis": 1}),
    Case("Concat", [f(2, 3), f(1, 3)], {"axis": -2}, name="axis"),
    *(
        Case("Pad", [f(3, 4), i(1, 0, 2, 1)], {"mode": mode}, constant=[1], name=mode)
        for mode in ("constant", "reflect", "edge")
    ),
    Case("Pad", [f(3, 4), i(1, 2, 0, 3)], {"mode": "wrap"}, opset=19, constant=[1], name="wrap"),
    *(
        Case(
            "Pad",
            [f(3, n), i(7, n, 10, 9 * n)],
            {"mode": "wrap"},
            opset=19,
            constant=[1],
            name=name,
        )
        for n, name in ((4, "wrap of periods"), (1, "wrap of one"))
    ),
    Case("Pad", [f(3, 4), i(1, -1, -1, 2), np.float32(1.5)], constant=[1, 2], name="negative"),
    Case(
        "Pad", [f(3, 4), i(1, 2), np.float32(0.5), i(-1)], opset=18, constant=[1, 2, 3], name="axes"
    ),
    Case("Pad", [f(3, 4)], {"pads": [0, 1, 2, 0], "value": 2.0}, opset=2),
    Case("Pad", [ints(3, 4), i(1, 0, 2, 1), np.int64(7)], constant=[1, 2], name="ints"),
    Case("Gather", [f(5, 4), ints(2, 3)]),
    Case("Gather", [f(5, 4, 3), ints(2, low=-4, high=4)], {"axis": 1}, name="axis"),
    Case("Gather", [f(5, 4), np.array(1, np.int32)], {"axis": -1}, constant=[1], name="scalar"),
    Case("Shape", [f(2, 3, 4)]),
    Case("Shape", [f(2, 3, 4)], {"start": 1}, name="start"),
    Case("Shape", [f(2, 3, 4)], {"start": -2, "end": -1}, name="end"),
    Case("Shape", [f(2, 3, 4)], {"start": 2, "end": 1}, name="empty"),
    Case("Size", [f(2, 3, 4)]),
    Case("ConstantOfShape", [i(2, 3)], constant=[0]),
    Case("ConstantOfShape", [i()], constant=[0], name="scalar"),
    *(
        Case(
            "Range",
            [np.array(v, dtype) for v in (s, e, d)],
            constant=[0, 1, 2],
            name=f"{s}:{e}:{d}",
        )
        for s, e, d, dtype in (
            (0, 5, 1, np.int64),
            (9, -2, -3, np.int64),
            (3, 3, 1, np.int32),
            (5, 2, 1, np.int64),
            (0.5, 3.0, 0.25, np.float32),
            (1, 30, 7, np.int16),
        )
    ),
]


CASES = [
    *UNARY,
    *BINARY,
    *CASTS,
    *CONTRACTIONS,
    *POOLS,
    *REDUCTIONS,
    *TENSORS,
    *onnx_attention_cases.CASES,
    *onnx_normalization_cases.CASES,
    *onnx_quantized_cases.CASES,
    *onnx_recurrent_cases.CASES,
    *onnx_indexing_cases.CASES,
    *onnx_spatial_cases.CASES,
    *onnx_rare_cases.CASES,
]
