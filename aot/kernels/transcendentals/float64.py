"""The double-precision formulas behind `aot.kernels.transcendentals.expansion`.

Owns one function each. Coefficients are Taylor's where the interval is small, else those of msun
(FreeBSD, Sun Microsystems, 1993) and of Cephes (Moshier, 1989), as the comments say.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from aot.ir.expr import Bitcast, Cast, Const, Expr, unary
from aot.ir.types import DType
from aot.kernels.transcendentals.values import V, at_least, at_most, polynomial

F64, I64 = DType.F64, DType.I64
_ONE = 0x3FF0000000000000
_MAGIC = 6755399441055744.0  # 1.5 * 2^52: what is added to it leaves its nearest integer
_LOG2E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # 33 bits: times an integer below 2^20 it is exact
_LN2_LOW = 1.90821492927058770002e-10


def _float(bits: V) -> V:
    return V(Bitcast(bits.e, F64))


def _number(value: float) -> V:
    return V(Const(F64, value))


def _with_sign(magnitude: V, x: V) -> V:
    sign = (x.bits(I64) >> 63) << 63
    return _float(magnitude.bits(I64) | sign)


# (exp(r) - 1 - r) / r^2 on |r| <= ln(2) / 2, by Taylor's series to r^14: 2^-60
_EXP = tuple(1 / math.factorial(n) for n in range(2, 15))


def _exp_clamped(x: V) -> V:
    """exp for x that is NaN or in [-746, 710]; see float32."""
    t = x.fma(_LOG2E, _MAGIC)
    n = t - _MAGIC
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = (polynomial(r, _EXP) * r).fma(r, r) + 1.0
    bits = t.bits(I64)
    first = (bits >> 1) << 52
    second = (bits << 52) - first
    return p * _float(first + _ONE) * _float(second + _ONE)


def exp(a: Expr) -> Expr:
    """exp(x), at most 1.1 ulp."""
    return _exp_clamped(at_most(at_least(V(a), -746.0), 710.0)).e


def expm1(a: Expr) -> Expr:
    """exp(x) - 1, at most 2 ulp; see float32."""
    given = V(a)
    x = at_most(at_least(given, -38.0), 710.0)
    t = x.fma(_LOG2E, _MAGIC)
    n = t - _MAGIC
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    power = (polynomial(r, _EXP) * r).fma(r, r)
    half = _float((t.bits(I64) << 52) + (_ONE - (1 << 52)))
    result = half.fma(power, half - 0.5) * 2.0
    return (given.abs() < 2.0**-54).choose(given, result).e


def sigmoid(a: Expr) -> Expr:
    """1 / (1 + exp(-x)), at most 2.5 ulp."""
    x = V(a)
    z = _exp_clamped(at_least(V(unary("neg", x.abs().e)), -746.0))
    return ((x < 0.0).choose(z, 1.0) / (z + 1.0)).e


def silu(a: Expr) -> Expr:
    """x / (1 + exp(-x)), at most 3.5 ulp where the result divided by x is normal."""
    return (V(a) * V(sigmoid(a))).e


def mish(a: Expr) -> Expr:
    """x tanh(log(1 + exp(x))), at most 5 ulp where the result divided by x is normal.

    It is x n / (n + 2) with n = exp(x) (exp(x) + 2).
    """
    x = V(a)
    power = _exp_clamped(at_most(at_least(x, -746.0), 40.0))
    n = power * (power + 2.0)
    return (x * (n / (n + 2.0))).e


# log(1 + f) - f + f^2 / 2 in s = f / (2 + f); msun's e_log.c
_LOG = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD


def log(a: Expr) -> Expr:
    """log(x), at most 1 ulp; -inf at zeros, NaN for negative x."""
    x = V(a)
    is_small = x < 2.0**-1022
    bits = is_small.choose(x * 2.0**54, x).bits(I64)
    exponent = (bits - _SQRT_HALF_BITS) >> 52
    f = _float(bits - (exponent << 52)) - 1.0
    k = V(Cast(exponent.e, F64)) + is_small.choose(_number(-54.0), 0.0)
    s = f / (f + 2.0)
    z = s * s
    rest = polynomial(z, _LOG) * z
    half = f * f * 0.5
    result = k * _LN2_HIGH - (half - (s * (half + rest) + k * _LN2_LOW) - f)
    positive = (x < math.inf).choose(result, x)
    return (x > 0.0).choose(positive, x.equals(0.0).choose(_number(-math.inf), math.nan)).e


def log1p(a: Expr) -> Expr:
    """log(1 + x), at most 2.5 ulp; see float32."""
    x = V(a)
    u = x + 1.0
    rest = u - 1.0
    ratio = rest.equals(x).choose(1.0, x / rest)
    return rest.equals(0.0).choose(x, V(log(u.e)) * ratio).e


# tanh(x) = x + x z P(z) / Q(z) in z = x^2 on |x| < 0.625; Cephes' tanh.c
_TANH_P = (-1.61468768441708447952e3, -9.92877231001918586564e1, -9.64399179425052238628e-1)
_TANH_Q = (4.84406305325125486048e3, 2.23548839060100448583e3, 1.12811678491632931402e2, 1.0)


def tanh(a: Expr) -> Expr:
    """tanh(x), at most 2.5 ulp, never beyond 1."""
    x = V(a)
    size = at_most(x.abs(), 22.0)
    z = size * size
    small = size + size * z * (polynomial(z, _TANH_P) / polynomial(z, _TANH_Q))
    power = _exp_clamped(size + size)
    large = _number(1.0) - _number(2.0) / (power + 1.0)
    return _with_sign((size < 0.625).choose(small, large), x).e


# sin(r) = r + r^3 p(r^2), cos(r) = 1 - r^2 / 2 + r^4 p(r^2) on |r| <= pi / 4; msun's k_sin.c and
# k_cos.c
_SIN = (
    -1.66666666666666324348e-01,
    8.33333333332248946124e-03,
    -1.98412698298579493134e-04,
    2.75573137070700676789e-06,
    -2.50507602534068634195e-08,
    1.58969099521155010221e-10,
)
_COS = (
    4.16666666666666019037e-02,
    -1.38888888888741095749e-03,
    2.48015872894767294178e-05,
    -2.75573143513906633035e-07,
    2.08757232129817482790e-09,
    -1.13596475577881948265e-11,
)
# pi / 2 in parts of 33 bits, and what is left; msun's e_rem_pio2.c
_HALF_PI = (
    1.57079632673412561417e00,
    6.07710050630396597660e-11,
    2.02226624871116645580e-21,
    8.47842766036889956997e-32,
)


def _sin_or_cos(a: Expr, is_cos: bool) -> Expr:
    x = V(a)
    t = x.fma(2 / math.pi, _MAGIC)
    n = t - _MAGIC
    r = x - n * _HALF_PI[0]
    # the sum of what follows is kept in two parts: near a multiple of pi / 2 the first cancels
    second = n * _HALF_PI[1]
    high = r - second
    lost = r - high - second
    third = n * _HALF_PI[2]
    r = high - third
    lost = lost + (high - r - third) - n * _HALF_PI[3]
    r = r + lost
    quadrant = t.bits(I64)
    if is_cos:
        quadrant = quadrant + 1
    u = r * r
    sine = (polynomial(u, _SIN) * u).fma(r, r)
    half = u * 0.5
    whole = _number(1.0) - half
    # 1 - half loses what it rounds off, which is put back
    cosine = whole + (_number(1.0) - whole - half + u * u * polynomial(u, _COS))
    magnitude = (quadrant & 1).equals(0).choose(sine, cosine)
    sign = (quadrant & 2) << 62
    result = _float(magnitude.bits(I64) ^ sign)
    if not is_cos:
        result = (x.abs() < 2.0**-27).choose(x, result)  # the sign of zero
    return (x.abs() < math.inf).choose(result, math.nan).e


def sin(a: Expr) -> Expr:
    """sin(x), at most 1.5 ulp for |x| up to 2^20; NaN at infinities."""
    return _sin_or_cos(a, is_cos=False)


def cos(a: Expr) -> Expr:
    """cos(x), at most 1.5 ulp for |x| up to 2^20; NaN at infinities."""
    return _sin_or_cos(a, is_cos=True)


FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "exp": exp,
    "exp_nonpositive": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "silu": silu,
    "mish": mish,
    "sin": sin,
    "cos": cos,
}
