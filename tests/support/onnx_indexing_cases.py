"""Cases of positions, scans, scatters, sorting, bits, functions, against ONNX Runtime."""

from __future__ import annotations

import numpy as np

from tests.support.onnx_models import Array, Case

_RNG = np.random.default_rng(23)


def _f(*shape: int, low: float = -2.0, high: float = 2.0) -> Array:
    return np.asarray(_RNG.uniform(low, high, shape), np.float32)


def _i(*values: int) -> Array:
    return np.array(values, np.int64)


def _ints(*shape: int, low: int = -5, high: int = 5, dtype: type = np.int64) -> Array:
    return np.asarray(_RNG.integers(low, high, shape), dtype)


GATHERS = [
    Case("GatherElements", [_f(3, 5), _ints(3, 4)], {"axis": 1}),
    Case("GatherElements", [_f(4, 3, 6), _ints(7, 2, 5, low=-4, high=4)], name="fewer"),
    Case("GatherND", [_f(3, 4, 5), _ints(6, 2, low=-3, high=3)], is_symbolic=False),
    Case(
        "GatherND",
        [_f(2, 3, 7), _ints(2, 5, 1, low=-3, high=3)],
        {"batch_dims": 1},
        is_symbolic=False,
        name="batch",
    ),
    Case("GatherND", [_f(4, 3), _ints(2, 1, 2, low=0, high=3)], constant=[1], opset=11),
    Case("Compress", [_f(4, 5), np.array([True, False, True])], {"axis": 1}, constant=[1]),
    Case("Compress", [_f(2, 3), np.array([False, True, True, False])], constant=[1], name="flat"),
    Case("NonZero", [_ints(3, 4, low=0, high=2)], constant=[0]),
    Case("Compress", [_f(4, 5), np.array([True, False, True])], {"axis": 1}, name="computed"),
    Case("Compress", [_f(2, 3), np.array([False, True, True, False])], name="flat, computed"),
    Case("NonZero", [_ints(3, 4, low=0, high=2)], name="computed"),
    Case("NonZero", [_ints(7, low=0, high=2, dtype=np.float32)], name="vector"),
    Case("NonZero", [_ints(2, 3, 5, low=0, high=2) > 0], name="bools"),
    Case("NonZero", [np.zeros((2, 3), np.int32)], name="none"),
    Case("NonZero", [np.ones((2, 3), np.uint8)], name="all"),
    *(
        Case(
            "Unique",
            [_ints(*shape, low=0, high=high, dtype=np.float32)],
            {"sorted": is_sorted},
            outputs=4,
            name=f"{shape}, {high}, {is_sorted}",
        )
        for shape in ((12,), (3, 5))
        for high in (1, 6)
        for is_sorted in (0, 1)
    ),
    Case("Unique", [_ints(9, low=0, high=4)], {"axis": 0}, name="axis"),
    Case("Trilu", [_f(5, 7)]),
    Case("Trilu", [_f(2, 6, 4), _i(-1).reshape(())], {"upper": 0}, constant=[1], name="lower"),
    Case("Trilu", [_f(6, 5), _i(2).reshape(())], name="run-time k", is_symbolic=False),
    Case("OneHot", [_ints(2, 3, low=-4, high=4), _i(4), _f(2)], constant=[1]),
    Case(
        "OneHot",
        [_ints(3, low=0, high=4), _i(4).reshape(()), _f(2)],
        {"axis": 0},
        constant=[1],
        opset=9,
    ),
    *(
        Case(
            "OneHot",
            [_ints(2, 90, low=-3 * depth // 2, high=2 * depth), _i(depth), values],
            {"axis": axis},
            constant=[1],
            name=f"{depth} of {values.dtype} along {axis}",
        )
        for depth in (40, 127, 128, 300)
        for values in (_f(2), np.array([3, 4], np.int64))
        for axis in (-1, 0)
    ),
    Case("EyeLike", [_f(4, 5)]),
    Case("EyeLike", [_f(4, 5)], {"k": 2, "dtype": 7}, name="k"),
    Case("ReverseSequence", [_f(5, 3, 2), _i(4, 5, 1)]),
    Case(
        "ReverseSequence",
        [_f(3, 5), _i(2, 5, 3)],
        {"time_axis": 1, "batch_axis": 0},
        name="batch first",
    ),
]

SCATTERS = [
    Case("Scatter", [_f(3, 5), _ints(3, 1), _f(3, 1)], {"axis": 1}, opset=9),
    Case("Scatter", [_f(3, 5), _ints(2, 4, low=0, high=3), _f(2, 4)], opset=9, name="fewer"),
    Case(
        "ScatterElements", [_f(3, 5), np.array([[0, 3], [-1, 2], [4, -5]]), _f(3, 2)], {"axis": 1}
    ),
    *(
        Case(
            "ScatterElements",
            [_f(6, 4), _ints(8, 3, low=-6, high=6), _f(8, 3)],
            {"reduction": reduction},
            opset=18,
            name=reduction,
        )
        for reduction in ("add", "mul", "max", "min")
    ),
    Case("ScatterND", [_f(5, 7), np.array([[1], [-1], [3]]), _f(3, 7)], is_symbolic=False),
    Case(
        "ScatterND",
        [_f(5, 7, 2), np.array([[1, 2], [4, 0], [1, 6]]), _f(3, 2)],
        constant=[1],
        opset=11,
    ),
    *(
        Case(
            "ScatterND",
            [_f(4, 3), _ints(6, 2, low=0, high=3), _f(6)],
            {"reduction": reduction},
            opset=18,
            constant=[1],
            name=reduction,
        )
        for reduction in ("add", "mul", "max", "min")
    ),
]

LINES = [
    *(
        Case(
            "CumSum",
            [_f(3, 5, 4), np.array(axis)],
            {"exclusive": exclusive, "reverse": reverse},
            constant=[1],
            name=f"{axis} {exclusive} {reverse}",
        )
        for axis, exclusive, reverse in ((0, 0, 0), (1, 1, 0), (-1, 0, 1), (2, 1, 1))
    ),
    Case("CumSum", [_ints(4, 5), np.array([1])], constant=[1], opset=14, name="ints"),
    *(
        Case(op, [_f(3, 7, 2)], attrs, name=name)
        for op in ("ArgMax", "ArgMin")
        for attrs, name in (
            ({}, ""),
            ({"axis": -1, "keepdims": 0}, "last"),
            ({"axis": 1}, "middle"),
        )
    ),
    Case(
        "ArgMax",
        [_ints(4, 9, low=0, high=3, dtype=np.int32)],
        {"axis": 1, "select_last_index": 1},
        name="select last",
    ),
    Case(
        "ArgMin", [_ints(4, 9, low=0, high=3, dtype=np.int32)], {"axis": 1}, opset=11, name="ties"
    ),
    Case("TopK", [_f(3, 20), _i(4)], {"axis": 1}, constant=[1], outputs=2),
    Case(
        "TopK",
        [_f(5, 3, 2), _i(5)],
        {"axis": 0, "largest": 0},
        constant=[1],
        outputs=2,
        name="smallest",
    ),
    Case(
        "TopK", [_ints(3, 12, low=0, high=4), _i(6)], constant=[1], outputs=2, opset=11, name="ties"
    ),
    Case("TopK", [_f(3, 9), _i(2)], constant=[1], outputs=2, opset=10),
    Case("TopK", [_f(3, 9)], {"k": 3, "axis": 1}, outputs=2, opset=9),
    Case("Hardmax", [_f(3, 4, 5)]),
    Case("Hardmax", [_f(3, 4, 5)], {"axis": 1}, name="middle"),
    Case("Hardmax", [_f(3, 4, 5)], {"axis": 1}, opset=11),
]

MATH = [
    *(
        Case(op, [_f(3, 40, low=low, high=high)])
        for op, low, high in (
            ("Sinh", -3, 3),
            ("Cosh", -3, 3),
            ("Asin", -1, 1),
            ("Acos", -1, 1),
            ("Atan", -20, 20),
            ("Asinh", -9, 9),
            ("Acosh", 1, 9),
            ("Atanh", -0.99, 0.99),
        )
    ),
    Case("Acos", [np.array([-1, 1, 0, 0.5], np.float32)], name="ends"),
    Case("Sinh", [np.array([1e-4, -1e-4, 80, -80, 0], np.float32)], name="ends"),
    *(
        Case(op, [_ints(3, 4, dtype=np.int32), _ints(4, dtype=np.int32)], opset=18)
        for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    ),
    Case("BitwiseNot", [_ints(7, dtype=np.uint8, low=0, high=200)], opset=18),
    *(
        Case(
            "BitShift",
            [_ints(9, low=0, high=99, dtype=np.uint32), _ints(9, low=0, high=20, dtype=np.uint32)],
            {"direction": direction},
            name=direction,
        )
        for direction in ("LEFT", "RIGHT")
    ),
    Case(
        "Mod",
        [_f(40, low=-20, high=20), np.resize(np.float32([3, -3, 7.5, 2]), 40)],
        {"fmod": 1},
        name="floats",
    ),
    Case("Pow", [_ints(6, low=-4, high=4), _ints(6, low=0, high=9)], name="int powers"),
]

EINSUMS = [
    Case("Einsum", arrays, {"equation": equation}, name=equation, is_symbolic=is_symbolic)
    for equation, arrays, is_symbolic in (
        ("ij,jk->ik", [_f(3, 4), _f(4, 5)], False),
        ("bij,bjk->bik", [_f(2, 3, 4), _f(2, 4, 5)], False),
        ("bhid,bhjd->bhij", [_f(2, 3, 4, 5), _f(2, 3, 6, 5)], False),
        ("ii->i", [_f(4, 4)], False),
        ("ii", [_f(4, 4)], False),
        ("ij->ji", [_f(3, 4)], True),
        ("ij->", [_f(3, 4)], True),
        ("i,j->ij", [_f(3), _f(4)], True),
        ("i,i", [_f(5), _f(5)], False),
        ("...ij,...jk->...ik", [_f(2, 3, 4), _f(2, 4, 5)], False),
        ("ij,jk,kl->il", [_f(2, 3), _f(3, 4), _f(4, 5)], False),
        ("bi,oij,bj->bo", [_f(2, 3), _f(5, 3, 4), _f(2, 4)], False),
        ("a...a->...", [_f(3, 4, 3)], False),
        ("bhwc,hkc->bhwk", [_f(2, 3, 4, 5), _f(3, 6, 5)], False),
    )
]

SIGNALS = [
    Case("DFT", [_f(2, 7, 3, 1)]),
    Case("DFT", [_f(2, 7, 3, 1).astype(np.float64)], {"axis": -2}, name="doubles"),
    Case("DFT", [_f(2, 8, 2)], {"axis": 1, "inverse": 1}, is_symbolic=False, name="inverse"),
    Case("DFT", [_f(2, 9, 1)], {"axis": 1, "onesided": 1}, name="one side"),
    Case("DFT", [_f(2, 9, 1), np.array(6)], {"onesided": 1}, constant=[1], name="cut"),
    Case("DFT", [_f(6, 4, 1), np.array(9), np.array(0)], opset=20, constant=[1, 2], name="first"),
    Case(
        "DFT",
        [_f(2, 3, 5, 2), np.array(8), np.array(1)],
        opset=20,
        constant=[1, 2],
        is_symbolic=False,
        name="longer",
    ),
    Case("STFT", [_f(2, 30, 1), np.array(4), _f(10)], constant=[1, 2]),
    Case("STFT", [_f(2, 31), np.array(5), _f(9)], constant=[1, 2], name="no parts"),
    Case("STFT", [_f(2, 30), np.array(3), _f(8)], constant=[1], name="window of an input"),
    Case(
        "STFT",
        [_f(2, 25).astype(np.float64), np.array(3), None, np.array(7)],
        {"onesided": 0},
        constant=[1, 3],
        name="doubles",
    ),
    Case(
        "STFT",
        [_f(1, 24, 2), np.array(3), None, np.array(8)],
        {"onesided": 0},
        constant=[1, 3],
        is_symbolic=False,
        name="complex",
    ),
    Case(
        "MelWeightMatrix",
        [np.array(8), np.array(16), np.array(8192), np.float32(0), np.float32(4096)],
        constant=[0, 1, 2, 3, 4],
    ),
]

CASES = [*GATHERS, *SCATTERS, *LINES, *MATH, *EINSUMS, *SIGNALS]
