"""The meaning of scalar expressions: dtypes, rounding, wrapping, saturation, NaN."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.errors import InternalError
from aot.ir.expr import Binary, Bitcast, Cast, Const, Expr, Fma, Reduce, Select, Var, unary
from aot.ir.types import DType
from aot.kernels.ir.scalar import evaluate, fma, schedule

F16, F32, F64 = DType.F16, DType.F32, DType.F64
I8, I32, I64, U8, U32, U64 = (DType.I8, DType.I32, DType.I64, DType.U8, DType.U32, DType.U64)
INF, NAN = math.inf, math.nan


def number(e: Expr, **options: Any) -> Any:
    """The value of an expression without leaves."""

    def leaf(node: Expr) -> Any:
        raise AssertionError(f"{node} is no constant")

    return evaluate(e, leaf, **options)


def binary(op: str, a: float, b: float, dtype: DType) -> Any:
    result = DType.BOOL if op in ("eq", "ne", "lt", "le", "gt", "ge") else dtype
    value = number(Binary(op, Const(dtype, a), Const(dtype, b), result))
    assert value.dtype == result.numpy
    return value.item()


@pytest.mark.parametrize(
    ("op", "a", "b", "expected"),
    [
        ("div", 7, 2, 3),
        ("div", -7, 2, -3),
        ("div", 7, -2, -3),
        ("div", -7, -2, 3),
        ("div", -6, 2, -3),
        ("div", 7, 0, 0),
        ("div", -7, 0, 0),
        ("div", -(2**31), -1, -(2**31)),
        ("floordiv", -7, 2, -4),
        ("floordiv", 7, -2, -4),
        ("floordiv", -7, -2, 3),
        ("floormod", -7, 3, 2),
        ("floormod", 7, -3, -2),
        ("floormod", -6, 3, 0),
        ("add", 2**31 - 1, 1, -(2**31)),
        ("sub", -(2**31), 1, 2**31 - 1),
        ("mul", 2**30, 4, 0),
        ("shr", -8, 1, -4),
        ("shl", 1, 31, -(2**31)),
        ("and", 12, 10, 8),
        ("or", 12, 10, 14),
        ("xor", 12, 10, 6),
        ("min", -1, 1, -1),
        ("max", -1, 1, 1),
        ("lt", -1, 1, True),
        ("ge", 1, 1, True),
        ("ne", 1, 1, False),
    ],
)
def test_i32(op: str, a: int, b: int, expected: int) -> None:
    assert binary(op, a, b, I32) == expected


@pytest.mark.parametrize(
    ("op", "a", "b", "expected"),
    [
        ("div", 250, 7, 35),
        ("shr", 0x80, 7, 1),
        ("add", 255, 1, 0),
        ("sub", 0, 1, 255),
        ("mul", 16, 17, 16),
        ("div", 5, 0, 0),
    ],
)
def test_u8(op: str, a: int, b: int, expected: int) -> None:
    assert binary(op, a, b, U8) == expected


@pytest.mark.parametrize("amount", [-1, 32])
def test_shift_amounts(amount: int) -> None:
    with pytest.raises(InternalError, match=r"^shl of i32 by an amount outside 0\.\.31$"):
        binary("shl", 1, amount, I32)


@pytest.mark.parametrize("dtype", [F16, F32, F64])
def test_nan_rules(dtype: DType) -> None:
    for op in ("min", "max"):
        assert math.isnan(binary(op, NAN, 1, dtype))
        assert math.isnan(binary(op, 1, NAN, dtype))
    assert binary("ne", NAN, NAN, dtype) is True
    for op in ("eq", "lt", "le", "gt", "ge"):
        assert binary(op, NAN, NAN, dtype) is False
    assert number(unary("isnan", Const(dtype, NAN))).item() is True


@pytest.mark.parametrize(
    ("op", "a", "expected"),
    [
        ("round", 2.5, 2.0),
        ("round", 3.5, 4.0),
        ("round", -0.5, -0.0),
        ("trunc", -1.7, -1.0),
        ("floor", -1.2, -2.0),
        ("ceil", -1.7, -1.0),
        ("neg", 0.0, -0.0),
        ("abs", -0.0, 0.0),
        ("sqrt", 2.0, float(np.sqrt(np.float32(2)))),
        ("exp", 1.0, float(np.float32(math.e))),
        ("erf", 0.5, float(np.float32(math.erf(0.5)))),
        ("sigmoid", 0.0, 0.5),
        ("sigmoid", -200.0, 0.0),
        ("log", 0.0, -INF),
    ],
)
def test_unary(op: str, a: float, expected: float) -> None:
    value = number(unary(op, Const(F32, a)))
    assert value.dtype == np.float32
    assert repr(value.item()) == repr(expected)


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        (3.9, F32, I32, 3),
        (-3.9, F32, I32, -3),
        (NAN, F32, I32, 0),
        (INF, F32, I32, 2**31 - 1),
        (-INF, F32, I32, -(2**31)),
        (3e9, F32, I32, 2**31 - 1),
        (-1.5, F32, U8, 0),
        (300.0, F32, U8, 255),
        (-0.9, F32, U8, 0),
        (1e19, F32, I64, 2**63 - 1),
        (2.0**63, F64, U64, 2**63),
        (1e20, F64, U64, 2**64 - 1),
        (65504.0, F16, I8, 127),
        (127.9, F32, I8, 127),
        (300, I32, U8, 44),
        (-1, I32, U32, 2**32 - 1),
        (2**31, U32, I32, -(2**31)),
        (-1, I8, I64, -1),
        (2, I32, DType.BOOL, True),
        (NAN, F32, DType.BOOL, True),
        (-0.0, F32, DType.BOOL, False),
        (True, DType.BOOL, F32, 1.0),
        (16777217, I32, F32, 16777216.0),
        (16777219, I32, F32, 16777220.0),
        (2049, I32, F16, 2048.0),
        (2051, I64, F16, 2052.0),
        (-(2**40), I64, F16, -INF),
        (1 + 2.0**-24 + 2.0**-40, F64, F32, 1 + 2.0**-23),
    ],
)
def test_casts(value: float, source: DType, target: DType, expected: float) -> None:
    result = number(Cast(Const(source, value), target))
    assert result.dtype == target.numpy
    assert result.item() == expected


def test_bitcasts_and_selects() -> None:
    assert number(Bitcast(Const(F32, 1.0), U32)).item() == 0x3F800000
    assert number(Bitcast(Const(I32, -1), U32)).item() == 2**32 - 1
    assert number(Bitcast(Const(DType.U16, 0x3C00), F16)).item() == 1.0
    chosen = Select(Const(DType.BOOL, False), Const(F32, 1), Const(F32, 2), F32)
    assert number(chosen).item() == 2.0


def test_fma_rounds_once_or_twice() -> None:
    a, c = Const(F32, 1 + 2.0**-12), Const(F32, -1 - 2.0**-11)
    e = Fma(a, a, c, F32)
    assert number(e).item() == 2.0**-24
    assert number(e, fused=False).item() == 0.0


def exact_fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c in rationals, rounded to nearest even in the dtype; finite operands."""
    dtype = a.dtype.type
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    infinity = dtype(INF if exact > 0 else -INF)
    with np.errstate(all="ignore"):
        guess = dtype(float(exact)) if abs(exact) < Fraction(2) ** 1023 else infinity
        near = [guess, np.nextafter(guess, dtype(-INF)), np.nextafter(guess, dtype(INF))]
    top = Fraction(float(np.finfo(dtype).max))
    beyond = top + (top - Fraction(float(np.nextafter(np.finfo(dtype).max, dtype(0))))) / 2
    if abs(exact) >= beyond:
        return infinity
    bits = np.dtype(f"u{a.dtype.itemsize}")
    finite = [n for n in near if np.isfinite(n)]
    return min(finite, key=lambda n: (abs(Fraction(float(n)) - exact), int(n.view(bits)) & 1))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_fma_is_exact(dtype: Any, data: st.DataObject) -> None:
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    integers = st.integers(0, int(np.iinfo(bits).max))
    a, b = (np.array(data.draw(integers), bits).view(dtype) for _ in range(2))
    with np.errstate(all="ignore"):
        product = np.array(-a * b, dtype)
    # Near the product's negative, where cancellation shows what a second rounding would lose.
    count = int(np.iinfo(bits).max) + 1
    shifted = (int(product.view(bits)) + data.draw(st.integers(-4, 4))) % count
    c = data.draw(
        st.sampled_from(
            [np.array(shifted, bits).view(dtype), np.array(data.draw(integers), bits).view(dtype)]
        )
    )
    if not (np.isfinite(a) and np.isfinite(b) and np.isfinite(c)):
        return
    assert fma(a, b, c) == exact_fma(a, b, c)


@settings(max_examples=200, deadline=None)
@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_fma_of_doubles_is_exact(a: float, b: float, c: float) -> None:
    got = float(fma(np.array(a), np.array(b), np.array(c)))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        assert got == float(exact)
    except OverflowError:
        assert got == (INF if exact > 0 else -INF)


def test_schedule_has_operands_first_and_nodes_once() -> None:
    x = Var("x", F32)
    e: Expr = x
    for _ in range(3000):
        e = Binary("add", e, e, F32)
    order = schedule([e, e])
    assert len(order) == 3001
    assert order[0] is x
    assert order[-1] is e


def test_reduce_has_no_value() -> None:
    e = Reduce("sum", (), Const(F32, 1), F32)
    assert evaluate(e, lambda node: np.array(5.0)) == 5.0  # left to the caller, as leaves are


def test_fma_of_many_doubles_is_exact() -> None:
    """Far apart, cancelling, near the ends of the range and beyond, of either sign."""
    rng = np.random.default_rng(3)

    def numbers(lowest: int, highest: int) -> Any:
        signs = rng.choice([-1.0, 1.0], 400)
        return signs * rng.uniform(1, 2, 400) * 2.0 ** rng.integers(lowest, highest, 400)

    for lowest, highest in ((-3, 3), (-60, 60), (-540, -440), (440, 508)):
        a, b = numbers(lowest, highest), numbers(lowest, highest)
        with np.errstate(all="ignore"):
            near = np.nextafter(-(a * b), rng.choice([-INF, INF], 400))
        for c in (near, numbers(2 * lowest, 2 * highest), numbers(lowest, highest), 0 * a):
            found = fma(a, b, c)
            for x, y, z, got in zip(a, b, c, found, strict=True):
                if np.isfinite(z):
                    assert got == exact_fma(x, y, z)
