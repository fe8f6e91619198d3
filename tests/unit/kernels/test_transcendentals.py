"""Our own transcendentals keep their stated bounds, fused and unfused, over all of float32.

The default tests take a dense sample and every place where a formula changes; `-m sweep` takes all
2^32 values.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.errors import UnsupportedError
from aot.ir.expr import (
    WIDE_TRANSCENDENTAL_OPS,
    Binary,
    Bitcast,
    Cast,
    Const,
    Expr,
    Fma,
    Select,
    Unary,
    Var,
    binary,
    select,
    unary,
)
from aot.ir.types import DType
from aot.kernels.ir.scalar import evaluate, schedule
from aot.kernels.transcendentals.expansion import (
    F16_ULP_BOUND,
    F64_ULP_BOUNDS,
    ULP_BOUNDS,
    expand,
)
from aot.kernels.transcendentals.remainder import FORMATS, Format
from tests.support.ulp import ulp_errors
from tests.support.unary_functions import FUNCTIONS, points

Array = np.ndarray[Any, Any]
F16, F32, F64 = DType.F16, DType.F32, DType.F64
# exp_nonpositive and functions of two operands have tests of their own
UNARY = [name for name in ULP_BOUNDS if name not in ("pow", "fmod", "exp_nonpositive")]
X, Y = Var("x", F32), Var("y", F32)
EXPANDED = {name: expand(unary(name, X)) for name in UNARY}
POW = expand(binary("pow", X, Y))
FUSED = pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])


def from_bits(bits: Any) -> Array:
    return np.asarray(bits).astype(np.uint32).view(np.float32)


def exact(name: str, x: Array) -> Array:
    """The function in double precision, of a float32."""
    with np.errstate(all="ignore"):
        return np.asarray(_DOUBLE[name](x.astype(np.float64)))


_DOUBLE: dict[str, Any] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "erf": lambda x: np.fromiter(map(math.erf, x), np.float64, len(x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    **{
        name: FUNCTIONS[name].exact
        for name in ("expm1", "log1p", "erfc", "silu", "mish", "gelu", "gelu_tanh")
    },
}


def around(values: Any, steps: int = 3) -> Array:
    """float32 values with their neighbours, of both signs."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.int64).reshape(-1, 1)
    near = (bits + np.arange(-steps, steps + 1)).reshape(-1)
    near = near[(near >= 0) & (near < 1 << 31)]
    return from_bits(np.concatenate([near, near | 1 << 31]))


def turning_points() -> Array:
    """Where formulas change: exponents, denormals, ends of ranges, halves of reductions."""
    exponents = from_bits(np.arange(0, 256) << 23)
    denormals = from_bits(np.arange(1, 3000))
    natural = np.log(2) * np.arange(-150, 130, 0.5)
    octants = np.pi / 4 * np.concatenate([np.arange(1, 2000), 2 ** np.arange(11, 20)])
    # Among all of float32 these come nearest to a multiple of pi/2 for their size.
    hardest = np.array([16367173.0 * 2.0**72, 1.4020653e22, 1.2020553e24, 6.1e7, 710.0])
    middles = np.sqrt(0.5) * 2.0 ** np.arange(-126, 128)
    ends = np.array(
        [
            1.0,
            0.875,
            9.2,
            9.011,
            1.0625,
            4.0,
            3.92,
            88.72283,
            88.72284,
            87.33654,
            103.97208,
            104.0,
            89.0,
            np.inf,
            12582912.0,
            0.0,
        ]
    )
    # Errors are largest just inside the ends of a polynomial's range.
    beside = [end * np.linspace(0.97, 1.03, 20_001) for end in (0.875, 1.0625, 0.3466, 1.4142)]
    # The largest errors that a run of the sweep found.
    worst_known = from_bits(
        [
            0x426D0F20,
            0xC2A2D5FD,
            0x3FB35101,
            0x3F61A1F0,
            0x3F651C5C,
            0x3F81BC0E,
            0x3F864C57,
            0xC085088D,
            0x6D846116,
            0x5C5833ED,
            0x4501D605,
        ]
    )
    return np.concatenate(
        [
            worst_known,
            np.concatenate(beside).astype(np.float32),
            around(exponents),
            denormals,
            -denormals,
            around(np.abs(natural)),
            around(octants),
            around(hardest),
            around(middles),
            around(ends),
            points(2000),
            from_bits([0x7FC00000, 0xFFC00001]),
            from_bits([0x7F800001]),
        ]
    )


TURNING = turning_points()
SAMPLE = np.concatenate([TURNING, from_bits(np.arange(0, 1 << 32, 16411))])
SPARSE = np.concatenate([TURNING, from_bits(np.arange(0, 1 << 32, 32771))])


def worst(e: Expr, name: str, x: Array, fused: bool) -> tuple[float, str]:
    got = evaluate(e, lambda _: x, fused=fused)
    assert got.dtype == np.float32
    reference = exact(name, x)
    errors = ulp_errors(got, reference)
    at = int(np.argmax(errors))
    return float(errors[at]), f"{name}({x[at].item().hex()}) gave {got[at]}, is {reference[at]}"


@FUSED
@pytest.mark.parametrize("name", UNARY)
def test_bound(name: str, fused: bool) -> None:
    error, where = worst(EXPANDED[name], name, SPARSE if fused else SAMPLE, fused)
    assert error <= ULP_BOUNDS[name], where


@pytest.mark.sweep
@FUSED
@pytest.mark.parametrize("name", UNARY)
def test_bound_everywhere(name: str, fused: bool) -> None:
    for start in range(0, 1 << 32, 1 << 20):
        x = from_bits(np.arange(start, start + (1 << 20)))
        error, where = worst(EXPANDED[name], name, x, fused)
        assert error <= ULP_BOUNDS[name], where


INF, NAN = math.inf, math.nan
EXACT: list[tuple[str, float, float]] = [
    ("exp", 0.0, 1.0),
    ("exp", -0.0, 1.0),
    ("exp", INF, INF),
    ("exp", -INF, 0.0),
    ("exp", 88.73, INF),
    ("exp", -103.97, 2.0**-149),
    ("exp", -104.0, 0.0),
    ("exp", 1e30, INF),
    ("exp", -1e30, 0.0),
    ("exp", 1e-40, 1.0),
    ("exp", NAN, NAN),
    ("log", 1.0, 0.0),
    ("log", 0.0, -INF),
    ("log", -0.0, -INF),
    ("log", INF, INF),
    ("log", -1.0, NAN),
    ("log", -INF, NAN),
    ("log", -1e-40, NAN),
    ("log", NAN, NAN),
    ("tanh", 0.0, 0.0),
    ("tanh", -0.0, -0.0),
    ("tanh", INF, 1.0),
    ("tanh", -INF, -1.0),
    ("tanh", 2.0**-149, 2.0**-149),
    ("tanh", -20.0, -1.0),
    ("tanh", NAN, NAN),
    ("erf", 0.0, 0.0),
    ("erf", -0.0, -0.0),
    ("erf", INF, 1.0),
    ("erf", -INF, -1.0),
    ("erf", 4.0, 1.0),
    ("erf", 2.0**-149, 2.0**-149),
    ("erf", NAN, NAN),
    ("sigmoid", 0.0, 0.5),
    ("sigmoid", INF, 1.0),
    ("sigmoid", -INF, 0.0),
    ("sigmoid", -103.97, 2.0**-149),
    ("sigmoid", -200.0, 0.0),
    ("sigmoid", 40.0, 1.0),
    ("sigmoid", NAN, NAN),
    ("expm1", -0.0, -0.0),
    ("expm1", 2.0**-149, 2.0**-149),
    ("expm1", -INF, -1.0),
    ("expm1", INF, INF),
    ("expm1", 88.73, INF),
    ("expm1", NAN, NAN),
    ("log1p", -0.0, -0.0),
    ("log1p", -(2.0**-149), -(2.0**-149)),
    ("log1p", -1.0, -INF),
    ("log1p", -1.5, NAN),
    ("log1p", -INF, NAN),
    ("log1p", INF, INF),
    ("log1p", NAN, NAN),
    ("erfc", 0.0, 1.0),
    ("erfc", INF, 0.0),
    ("erfc", -INF, 2.0),
    ("erfc", 1e-45, 1.0),
    ("erfc", NAN, NAN),
    *[
        (name, x, value)
        for name in ("silu", "mish", "gelu", "gelu_tanh")
        for x, value in (
            (0.0, 0.0),
            (-0.0, -0.0),
            (30.0, 30.0),
            (2.0**127, 2.0**127),
            (INF, INF),
            (-300.0, -0.0),
            (-3e38, -0.0),
            (-INF, NAN),
            (NAN, NAN),
        )
    ],
    ("sin", 0.0, 0.0),
    ("sin", -0.0, -0.0),
    ("sin", 2.0**-149, 2.0**-149),
    ("sin", INF, NAN),
    ("sin", -INF, NAN),
    ("sin", NAN, NAN),
    ("cos", 0.0, 1.0),
    ("cos", -0.0, 1.0),
    ("cos", 2.0**-149, 1.0),
    ("cos", INF, NAN),
    ("cos", -INF, NAN),
    ("cos", NAN, NAN),
]


@FUSED
@pytest.mark.parametrize(("name", "x", "expected"), EXACT)
def test_exact_results(name: str, x: float, expected: float, fused: bool) -> None:
    value = evaluate(EXPANDED[name], lambda _: np.array([x], np.float32), fused=fused)[0].item()
    assert repr(value) == repr(expected)


@FUSED
@pytest.mark.parametrize("name", ["tanh", "erf", "sigmoid", "sin", "cos"])
def test_results_stay_in_range(name: str, fused: bool) -> None:
    got = evaluate(EXPANDED[name], lambda _: SPARSE, fused=fused)
    assert np.nanmax(np.abs(got)) == 1.0


@pytest.mark.parametrize("name", ["tanh", "erf", "sin"])
def test_odd(name: str) -> None:
    got = evaluate(EXPANDED[name], lambda _: SPARSE)
    mirrored = evaluate(EXPANDED[name], lambda _: -SPARSE)
    assert np.array_equal(got, -mirrored, equal_nan=True)


@FUSED
def test_exp_of_what_is_not_positive(fused: bool) -> None:
    x = SPARSE[~(SPARSE > 0)]
    got = evaluate(expand(unary("exp_nonpositive", X)), lambda _: x, fused=fused)
    reference = exact("exp", x)
    is_normal = ~(reference < 2.0**-126)
    errors = ulp_errors(got[is_normal], reference[is_normal])
    assert errors.max() <= ULP_BOUNDS["exp_nonpositive"]
    small = got[~is_normal]
    assert small.min() == 0 and small.max() <= 2.0**-126
    assert not small[x[~is_normal] < -88].any()


# pow


def pow_errors(x: Array, y: Array, fused: bool) -> Array:
    got = evaluate(POW, lambda v: x if v is X else y, fused=fused)
    assert got.dtype == np.float32
    with np.errstate(all="ignore"):
        # long double where there is one: the double's own error would be seen near overflow.
        reference = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
        return ulp_errors(got, reference.astype(np.float64))


SPECIAL = np.array(
    [
        0,
        1,
        2,
        3,
        0.5,
        INF,
        NAN,
        1e-45,
        1e-38,
        3.4e38,
        1.0000001,
        0.99999994,
        2**24,
        2**24 - 1,
        2**23 + 1,
        8388607.5,
        2**31,
        2**32,
        1e10,
        1.5,
        33,
        1 / 3,
        127,
        128,
        149,
        150,
    ],
    np.float32,
)
SPECIAL = np.concatenate([SPECIAL, -SPECIAL])


@FUSED
def test_pow_special_cases(fused: bool) -> None:
    x, y = (a.reshape(-1) for a in np.meshgrid(SPECIAL, SPECIAL))
    errors = pow_errors(x, y, fused)
    at = int(np.argmax(errors))
    assert errors[at] <= ULP_BOUNDS["pow"], (x[at], y[at])


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (NAN, 0.0, 1.0),
        (1.0, NAN, 1.0),
        (NAN, 1.0, NAN),
        (2.0, NAN, NAN),
        (-2.0, 3.0, -8.0),
        (-2.0, 0.5, NAN),
        (-0.0, 3.0, -0.0),
        (-0.0, 2.0, 0.0),
        (-0.0, -3.0, -INF),
        (-0.0, 0.5, 0.0),
        (0.0, -2.0, INF),
        (-INF, 3.0, -INF),
        (-INF, -3.0, -0.0),
        (-INF, 0.5, INF),
        (INF, -1.0, 0.0),
        (-1.0, INF, 1.0),
        (0.5, INF, 0.0),
        (0.5, -INF, INF),
        (2.0, -INF, 0.0),
        (-2.0, INF, INF),
        (-1.0, 2.0**24 - 1, -1.0),
        (-1.0, 2.0**24, 1.0),
        (2.0, -149.0, 2.0**-149),
        (2.0, 127.0, 2.0**127),
        (2.0, 128.0, INF),
        (10.0, 2.0, 100.0),
        (3.0, 1.0, 3.0),
        (2.0**-149, 1.0, 2.0**-149),
        (7.0, 3.0, 343.0),
    ],
)
def test_pow_exact_results(x: float, y: float, expected: float) -> None:
    values: dict[Expr, Array] = {X: np.array([x], np.float32), Y: np.array([y], np.float32)}
    assert repr(evaluate(POW, lambda v: values[v])[0].item()) == repr(expected)


@FUSED
@pytest.mark.parametrize("grid", ["all", "near one", "common", "bits"])
def test_pow_bound(grid: str, fused: bool) -> None:
    rng = np.random.RandomState(6)
    count = 60_000
    x: Array
    y: Array
    if grid == "common":
        x, y = rng.uniform(0, 10, count), rng.uniform(-6, 6, count)
    elif grid == "bits":
        x, y = (from_bits(rng.randint(0, 1 << 32, count)) for _ in range(2))
    else:
        # Exponents that spread results evenly from the smallest denormal to overflow.
        x = (
            from_bits(rng.randint(1, 0x7F800000, count))
            if grid == "all"
            else 1 + rng.uniform(-0.3, 0.42, count).astype(np.float32)
        )
        logarithm = np.log2(x.astype(np.float64))
        y = rng.uniform(-151, 129, count) / np.where(logarithm == 0, 1, logarithm)
    with np.errstate(over="ignore"):
        x, y = x.astype(np.float32), y.astype(np.float32)
    errors = pow_errors(x, y, fused)
    at = int(np.argmax(errors))
    assert errors[at] <= ULP_BOUNDS["pow"], (x[at], y[at])


@settings(max_examples=500, deadline=None)
@given(st.floats(width=32), st.floats(width=32), st.booleans())
def test_pow_anywhere(x: float, y: float, fused: bool) -> None:
    errors = pow_errors(np.array([x], np.float32), np.array([y], np.float32), fused)
    assert errors[0] <= ULP_BOUNDS["pow"]


# Half precision, and what comes out of expand


@pytest.mark.parametrize("name", UNARY)
def test_half_precision_everywhere(name: str) -> None:
    x = np.arange(1 << 16).astype(np.uint16).view(np.float16)
    got = evaluate(expand(unary(name, Var("h", F16))), lambda _: x, fused=False)
    assert got.dtype == np.float16
    assert ulp_errors(got, exact(name, x)).max() <= F16_ULP_BOUND


def test_double_precision_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="erf of f64"):
        expand(unary("erf", Var("d", F64)))


# Operations, without leaves and bitcasts: a formula that grows is a formula that slows down.
COST = {
    "exp": 23,
    "expm1": 22,
    "log": 31,
    "log1p": 39,
    "tanh": 27,
    "erf": 30,
    "erfc": 45,
    "sigmoid": 22,
    "silu": 22,
    "mish": 28,
    "gelu": 48,
    "gelu_tanh": 54,
    "sin": 108,
    "cos": 107,
}
ALLOWED_BINARY = frozenset(
    {"add", "sub", "mul", "div", "and", "or", "xor", "shl", "shr", "eq", "ne", "lt", "gt", "ge"}
)


@pytest.mark.parametrize("name", [*UNARY, "pow"])
def test_only_basic_operations(name: str) -> None:
    order = schedule([POW if name == "pow" else EXPANDED[name]])
    for node in order:
        assert node.dtype in (F32, DType.I32, DType.U32, DType.BOOL)
        match node:
            case Unary():
                assert node.op in ("abs", "neg", "floor", "not")
            case Binary():
                assert node.op in ALLOWED_BINARY
            case _:
                assert isinstance(node, Const | Var | Fma | Select | Cast | Bitcast)
    cost = sum(not isinstance(node, Const | Var | Bitcast) for node in order)
    assert cost <= COST.get(name, 130)


def test_sharing_is_kept() -> None:
    inner = unary("exp", X)
    both = Binary("add", unary("log", inner), inner, F32)
    alone = len(schedule([expand(inner)]))
    assert len(schedule([expand(both)])) < 2 * alone + len(schedule([expand(unary("log", X))]))
    memo: dict[Expr, Expr] = {}
    assert expand(inner, memo) is expand(inner, memo)
    outer = expand(both, memo)
    assert expand(inner, memo) in schedule([outer])


def test_what_has_no_transcendental_is_left_alone() -> None:
    e = select(binary("lt", X, Y), X, Fma(X, Y, X, F32))
    assert expand(e) is e


def test_a_deep_expression_needs_no_recursion() -> None:
    e: Expr = X
    for _ in range(400):
        e = unary("tanh", e)
    got = evaluate(expand(e), lambda _: np.array([0.5], np.float32))
    assert 0.05 < got[0] < 0.07  # about sqrt(3 / (2 * 400))


# double precision, against the x87's 64 bits of mantissa where numpy has them

_WIDE: dict[str, Any] = {
    **_DOUBLE,
    "exp_nonpositive": np.exp,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
_RANGES = {
    "exp": (-744.0, 709.0),
    "exp_nonpositive": (-744.0, 0.0),
    "expm1": (-40.0, 709.0),
    "log": (1e-300, 1e300),
    "log1p": (-0.999, 1e300),
    "tanh": (-20.0, 20.0),
    "sigmoid": (-700.0, 40.0),
    "silu": (-700.0, 40.0),
    "mish": (-700.0, 40.0),
    "sin": (-(2.0**20), 2.0**20),
    "cos": (-(2.0**20), 2.0**20),
}
HAS_LONG_DOUBLE = np.finfo(np.longdouble).nmant > 60


@pytest.mark.parametrize("name", ["silu", "mish"])
def test_gates_in_double_precision(name: str) -> None:
    x = np.array([-INF, -1e300, -800.0, INF, NAN])
    got = evaluate(expand(unary(name, Var("d", F64))), lambda _: x, fused=False)
    np.testing.assert_array_equal(got, [NAN, -0.0, -0.0, INF, NAN])
    assert np.signbit(got[1:3]).all()


@FUSED
@pytest.mark.skipif(not HAS_LONG_DOUBLE, reason="there is no wider float here to compare with")
@pytest.mark.parametrize("name", [name for name in F64_ULP_BOUNDS if name != "fmod"])
def test_bounds_in_double_precision(name: str, fused: bool) -> None:
    rng = np.random.default_rng(7)
    low, high = _RANGES[name]
    far = rng.uniform(low, high, 20_000)
    near = rng.uniform(max(low, 0.01), 4.0, 20_000) * (
        1 if low > 0 else rng.choice([-1, 1], 20_000)
    )
    tiny = 2.0 ** rng.uniform(-1020, 0, 2_000)
    x = np.concatenate([far, np.clip(near, low, high), tiny])
    got = evaluate(expand(unary(name, Var("d", F64))), lambda _: x, fused=fused)
    with np.errstate(all="ignore"):
        expected = _WIDE[name](x.astype(np.longdouble))
        step = np.spacing(np.abs(expected.astype(np.float64)))
        errors = np.abs(got.astype(np.longdouble) - expected) / step
    assert float(errors.max()) <= F64_ULP_BOUNDS[name]


@pytest.mark.parametrize(("name", "x", "expected"), EXACT)
def test_exact_results_in_double_precision(name: str, x: float, expected: float) -> None:
    if name not in F64_ULP_BOUNDS or (math.isfinite(x) and abs(x) not in (0.0, 1.0, 0.5)):
        return
    value = evaluate(expand(unary(name, Var("d", F64))), lambda _: np.array([x]))[0].item()
    assert repr(value) == repr(expected)


def operands(dtype: DType, count: int, seed: int) -> tuple[Array, Array]:
    """Pairs of any two bit patterns; of multiples and their neighbours; of subnormal numbers; and
    all pairs of special ones."""
    rng = np.random.default_rng(seed)
    info = np.finfo(dtype.numpy)
    word = np.dtype(f"u{dtype.bytes}")

    def any_number(bits: int = dtype.bits) -> Array:
        return rng.integers(0, (1 << bits) - 1, count, word, endpoint=True).view(dtype.numpy)

    x, y, least = any_number(), any_number(), any_number(info.nmant)
    with np.errstate(all="ignore"):
        multiple = (y * rng.integers(1, 5000, count)).astype(dtype.numpy)
        beside = np.nextafter(multiple, rng.choice(np.array([-np.inf, np.inf], dtype.numpy), count))
    tiny, first = info.smallest_subnormal, info.tiny
    special = [0.0, INF, NAN, 0.1, 1.0, 1.1, 5.5, info.max, first, first - tiny, tiny, 3 * tiny]
    signed = np.array([*special, *(-v for v in special)], dtype.numpy)
    pairs = np.meshgrid(signed, signed)
    xs = [x, x, x, multiple, beside, least, pairs[0].ravel()]
    ys = [y, least, any_number(4), y, y, any_number(4), pairs[1].ravel()]
    return np.concatenate(xs), np.concatenate(ys)


def check_remainders(dtype: DType, count: int, seed: int, fused: bool) -> None:
    a, b = Var("a", dtype), Var("b", dtype)
    x, y = operands(dtype, count, seed)
    got = evaluate(expand(binary("fmod", a, b)), lambda v: x if v is a else y, fused=fused)
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)  # C's own
    assert got.dtype == expected.dtype
    word = f"u{dtype.bytes}"
    is_same = (got.view(word) == expected.view(word)) | (np.isnan(got) & np.isnan(expected))
    at = int(np.argmin(is_same))
    assert is_same.all(), f"fmod({x[at]!r}, {y[at]!r}) gave {got[at]!r}, is {expected[at]!r}"


@FUSED
@pytest.mark.parametrize("dtype", [F16, F32, F64])
def test_remainders_are_those_of_c_bit_for_bit(dtype: DType, fused: bool) -> None:
    check_remainders(dtype, 500 if dtype is F64 else 10_000, 1, fused)


@pytest.mark.sweep
@FUSED
@pytest.mark.parametrize("dtype", [F16, F32, F64])
def test_remainders_of_many_numbers(dtype: DType, fused: bool) -> None:
    for seed in range(20):
        check_remainders(dtype, 200_000, seed, fused)


@pytest.mark.parametrize("format", FORMATS.values())
def test_steps_of_a_remainder_are_counted_exactly(format: Format) -> None:
    f = format
    for difference in range(f.spread + 1):
        assert difference * f.multiplier >> f.shift == difference // f.step


def test_the_formulas_are_those_that_passes_count_on() -> None:
    assert set(F64_ULP_BOUNDS) == WIDE_TRANSCENDENTAL_OPS
