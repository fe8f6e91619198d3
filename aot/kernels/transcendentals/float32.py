"""The single-precision formulas behind `aot.kernels.transcendentals.expansion`.

Owns one function each; coefficients are minimax (Remez in 40 digits, then rounded to f32), with
the interval and the error of the exact polynomial beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from aot.ir.expr import Cast, Const, Expr, binary, unary
from aot.ir.types import DType
from aot.kernels.transcendentals.angles32 import cos, sin
from aot.kernels.transcendentals.values import (
    SIGN,
    V,
    any_of,
    at_least,
    at_most,
    head12,
    polynomial,
    with_sign,
)

F32, I32, U32 = DType.F32, DType.I32, DType.U32


# exp(r) = 1 + r + r^2 p(r) on |r| <= 1.003 ln(2)/2, relative error 2^-28.2.
_EXP = (
    0.499999933333404782,
    0.166665189382590815,
    0.0416684079989498955,
    0.00836892182546909977,
    0.00138141730791947443,
)
_LOG2E = 1.4426950408889634
# 355/512 has 9 bits, so that n * _LN2_HIGH is exact for |n| < 2^15.
_LN2_HIGH = 355 / 512
_LN2_LOW = -0.00021219444005469058
# Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
_MAGIC = 12582912.0


def _scale(p: V, magic_sum: V) -> V:
    """`p * 2^n`, rounded once, where `magic_sum` is n + _MAGIC and |n| < 200.

    2^n is split in two factors, both normal, so that only the second product can leave the range
    of normal numbers. The magic number's own bits leave at the top of both shifts.
    """
    bits = magic_sum.bits()
    first = (bits >> 1) << 23
    second = (bits << 23) - first
    one = 0x3F800000
    return p * (first + one).float_bits() * (second + one).float_bits()


def _exp_parts(x: V) -> tuple[V, V]:
    """(p, n + _MAGIC) with exp(x) == p * 2^n, for x that is NaN or has |n| < 2^15.

    Cody and Waite, "Software Manual for the Elementary Functions", 1980, chapter 6: x = n ln 2 + r.
    """
    t = x.fma(_LOG2E, _MAGIC)
    n = t - _MAGIC
    r = n.fma(-_LN2_LOW, n.fma(-_LN2_HIGH, x))
    return (polynomial(r, _EXP) * r).fma(r, r) + 1.0, t


def _exp_clamped(x: V) -> V:
    """exp for x that is NaN or in [-104, 89]."""
    return _scale(*_exp_parts(x))


def exp(a: Expr) -> Expr:
    """exp(x), at most 1.1 ulp. Beyond the clamp the result overflows or is below half a
    denormal."""
    return _exp_clamped(at_most(at_least(V(a), -104.0), 89.0)).e


def exp_nonpositive(a: Expr) -> Expr:
    """exp(x) for x <= 0, at most 1.1 ulp of normal results; below 2^-126 it may be 0.

    2^n is one factor, whose bits are those of 0 at the clamp, where n is -127.
    """
    p, t = _exp_parts(at_least(V(a), -88.0))
    return (p * ((t.bits() << 23) + 0x3F800000).float_bits()).e


def expm1(a: Expr) -> Expr:
    """exp(x) - 1, at most 2 ulp.

    With x = n ln 2 + r it is 2^n (exp(r) - 1) + (2^n - 1), of which the second part is exact; both
    are halved, so that 2^128 is none of them.
    """
    given = V(a)
    x = at_most(at_least(given, -18.0), 89.0)
    t = x.fma(_LOG2E, _MAGIC)
    n = t - _MAGIC
    r = n.fma(-_LN2_LOW, n.fma(-_LN2_HIGH, x))
    power = (polynomial(r, _EXP) * r).fma(r, r)
    half = ((t.bits() << 23) + 0x3F000000).float_bits()
    result = half.fma(power, half - 0.5) * 2.0
    return (given.abs() < 2.0**-26).choose(given, result).e


# What sigmoid is scaled by, so that exp(-x) is normal as far as it counts: it is 2^-24 at 1, and
# 2^126 where the quotient is half of the least denormal number.
_SIGMOID_SCALE = 24


def sigmoid(a: Expr) -> Expr:
    """1 / (1 + exp(-x)), at most 2.5 ulp.

    It is s / (s + s exp(-x)) with s = 2^-24. The magic number has the bias of 2^n's exponent less
    24 in its low bits, so that a shift makes s * 2^n of the sum; with exp(-r) = 1 - (r + r^2 p(r))
    no sign changes, and the polynomial is in two halves, of which only the first ones add to a
    constant.
    """
    x = at_most(at_least(V(a), -104.0), 70.0)
    magic = _MAGIC + 127 - _SIGMOID_SCALE
    t = x.fma(-_LOG2E, magic)
    n = t - magic
    r = n.fma(_LN2_LOW, n.fma(_LN2_HIGH, x))
    square = r * r
    low, high = r.fma(_EXP[1], -_EXP[0]), r.fma(_EXP[3], -_EXP[2])
    high = square.fma(-_EXP[4], high)
    part = square.fma(square.fma(high, low), r)
    z = (V(Const(F32, 1.0)) - part) * (t.bits() << 23).float_bits()
    scale = 2.0**-_SIGMOID_SCALE
    return (V(Const(F32, scale)) / (z + scale)).e


# What exp(-x) is scaled by where a product with x follows: normal from where that product is half
# of the least denormal number to where it no longer counts beside 1.
_GATE_SCALE = 2.0**-36
_GATE_BIAS = 127 - 36


def _gated(x: V, denominator: V) -> V:
    """`x * _GATE_SCALE / denominator`, for x / (1 + exp(-x)) and similar functions.

    Where the result is no number but 0 the denominator is infinite, so that it is a product with
    0: -0, or NaN of -infinity. Above that the quotient is normal, so that a small result is rounded
    to a denormal number once; what overflows on the way is x itself.
    """
    quotient = V(Const(F32, 1.0)) / denominator
    return (x > 2.0**60).choose(x, x * quotient * _GATE_SCALE)


def _scaled_reciprocal_exp(x: V) -> V:
    """exp(-x) * _GATE_SCALE for any x, with x clamped to 40.

    What is below -113.4 counts as -114, whose power of two has the exponent of infinity.
    """
    x = at_most(at_least(x, -114.0), 40.0)
    magic = _MAGIC + _GATE_BIAS
    t = x.fma(-_LOG2E, magic)
    n = t - magic
    r = n.fma(_LN2_LOW, n.fma(_LN2_HIGH, x))
    signed = tuple(c * (-1) ** k for k, c in enumerate(_EXP))
    power = polynomial(r, (1.0, -1.0, *signed))
    return power * (t.bits() << 23).float_bits()


def silu(a: Expr) -> Expr:
    """x / (1 + exp(-x)), at most 3 ulp."""
    x = V(a)
    return _gated(x, _scaled_reciprocal_exp(x) + _GATE_SCALE).e


def mish(a: Expr) -> Expr:
    """x tanh(log(1 + exp(x))), at most 4 ulp.

    With w = exp(-x) it is x / (1 + w g) of g = 2 w / (1 + 2 w).
    """
    x = V(a)
    w = _scaled_reciprocal_exp(x)
    twice = at_most(w + w, 2.0**126)  # a quotient of infinities is none
    return _gated(x, w * (twice / (twice + _GATE_SCALE)) + _GATE_SCALE).e


# log(1 + f) = f - f^2/2 + f^3 p(f) on sqrt(1/2) <= 1 + f <= sqrt(2), relative error 2^-27.3.
_LOG = (
    0.333333317079741642,
    -0.250008210098687069,
    0.200012270300410447,
    -0.166233579543574843,
    0.142017531432324473,
    -0.131601732395109732,
    0.127616125496812677,
    -0.0763456395104199821,
)
_SQRT_HALF_BITS = 0x3F3504F3
_SMALLEST_NORMAL = 2.0**-126


def _split_exponent(x: V) -> tuple[V, V]:
    """(k, m) with x == m * 2^k and sqrt(1/2) <= m < sqrt(2), for positive finite x; k in f32."""
    is_small = x < _SMALLEST_NORMAL
    bits = is_small.choose(x * 2.0**24, x).bits()
    exponent = (bits - _SQRT_HALF_BITS) >> 23
    mantissa = (bits - (exponent << 23)).float_bits()
    k = V(Cast(exponent.e, F32)) + is_small.choose(V(Const(F32, -24.0)), 0.0)
    return k, mantissa


def log(a: Expr) -> Expr:
    """log(x), at most 1 ulp; -inf at zeros, NaN for negative x.

    Cody and Waite, chapter 5, with the polynomial in f = m - 1 instead of a quotient.
    """
    x = V(a)
    k, mantissa = _split_exponent(x)
    f = mantissa - 1.0
    square = f * f
    tail = k.fma(_LN2_LOW, polynomial(f, _LOG) * f * square)
    result = k.fma(_LN2_HIGH, f + square.fma(-0.5, tail))
    positive = (x < math.inf).choose(result, x)
    return (x > 0.0).choose(positive, x.equals(0.0).choose(V(Const(F32, -math.inf)), math.nan)).e


def log1p(a: Expr) -> Expr:
    """log(1 + x), at most 2.5 ulp; -inf at -1, NaN below.

    log(u) x / (u - 1) of u = 1 + x as it is rounded: what the sum lost of x, the quotient gives
    back (Hewlett-Packard, "HP-15C Advanced Functions Handbook", 1982, appendix).
    """
    x = V(a)
    u = x + 1.0
    rest = u - 1.0
    ratio = rest.equals(x).choose(1.0, x / rest)
    return rest.equals(0.0).choose(x, V(log(u.e)) * ratio).e


# tanh(x) = x + x^3 p(x^2) on |x| <= 0.875, relative error 2^-26.4.
_TANH_SMALL = (
    -0.333332423935008499,
    0.133309749182401542,
    -0.0537616019338447857,
    0.0210171039152208037,
    -0.00700324979739173741,
    0.00137098913667519212,
)
_TANH_SMALL_END = 0.875
# tanh(x / 2) = (x + x^3 P(x^2)) / (2 Q(x^2)) on |x| <= 9.2; the tanh(x) that follows has relative
# error 2^-26.9.
_TANH_P = (0.029769382740322542, 0.0001141570763831671)
_TANH_Q = (1.0, 0.113102680224039346, 0.0012060846160062302, 1.22692934291379174e-06)


def tanh(a: Expr) -> Expr:
    """tanh(x), at most 2.5 ulp, never beyond 1.

    From t = tanh(x / 2) = n / (2 d) follows tanh(x) = 1 - (1 - t)^2 / (1 + t^2), with one division:
    1 - (d - n / 2)^2 / (d^2 + n^2 / 4). The closer that is to 1, the less errors in t count.
    """
    x = V(a)
    size = at_most(x.abs(), 9.2)
    u = size * size
    cube = size * u
    n, d = cube.fma(polynomial(u, _TANH_P), size), polynomial(u, _TANH_Q)
    rest = n.fma(-0.5, d)
    large = V(Const(F32, 1.0)) - rest * rest / (n * 0.25).fma(n, d * d)
    small = cube.fma(polynomial(u, _TANH_SMALL), size)
    return with_sign((size < _TANH_SMALL_END).choose(small, large), x).e


# erf(x) = x + x p(x^2) on |x| <= 1.0625, relative error 2^-28.4.
_ERF_SMALL = (
    0.128379164017281372,
    -0.376126129222125384,
    0.112834287197626812,
    -0.0268469293322916741,
    0.0051747301301996895,
    -0.00078870648994447364,
    7.43770419865011961e-05,
)
_ERF_SMALL_END = 1.0625
# erf(x) = p(x - 2.541015625) on 1.0625 <= x <= 4, error 2^-26.6 with rounded coefficients: about
# its middle the polynomial's first term is nearly all of it, so that rounding in the others does
# not show, and this middle is one where the first term is nearly a float32.
_ERF_LARGE = (
    0.999673781206616371,
    0.00177134240828589146,
    -0.00450109534924797439,
    0.00703582184425462107,
    -0.00743790962009278237,
    0.00544240099532819905,
    -0.00262909953952336296,
    0.000627825901069890567,
    0.000169482294174543238,
    -0.000234578829903104321,
    8.4303075559884829e-05,
    9.59368485663571083e-06,
    -1.42402120269280875e-05,
    1.08445036891671888e-06,
    7.42963280278518777e-07,
)
_ERF_LARGE_CENTRE = 2.541015625


def erf(a: Expr) -> Expr:
    """erf(x), at most 1.75 ulp, never beyond 1: two polynomials, no division."""
    x = V(a)
    size = at_most(x.abs(), 4.0)
    u = size * size
    small = size.fma(polynomial(u, _ERF_SMALL), size)
    large = polynomial(size - _ERF_LARGE_CENTRE, _ERF_LARGE)
    return with_sign((size < _ERF_SMALL_END).choose(small, large), x).e


# exp(t^2 / 2) erfc(t / sqrt(2)) / 2 = p / (sqrt(2 pi) t p + q) on 0 <= t <= 14.8, relative error
# 2^-25 with rounded coefficients; exp(t^2) erfc(t) = p / (sqrt(pi) t p + q) up to 10.4, 2^-25.3.
# Far from 0 nearly all of the quotient is the reciprocal of its first part, of which the errors of
# p are no part.
_GELU_P = (0.75, 0.686648965, 0.296845466, 0.0684598535, 0.00731377024)
_GELU_Q = (1.5, 0.69015491, 0.173164546, 0.0182526484, 1.74706122e-06)
_ERFC_P = (1.0, 1.29494512, 0.791790247, 0.25827536, 0.0390277468)
_ERFC_Q = (1.0, 0.650871754, 0.230966821, 0.0344367661, 4.5788297e-06)


def _square(x: V) -> tuple[V, V]:
    """x^2 as an unevaluated sum of two numbers, the first of them exact."""
    head = head12(x)
    return head * head, (x - head) * (x + head)


def _exp_of_pair(high: V, low: V) -> tuple[V, V]:
    """(p, n + _MAGIC) with exp(high + low) == (1 + p) * 2^n, where rounding high + low would lose
    accuracy.

    The part that `high` has in common with n ln 2 cancels exactly where it has no bits below 2^-17.
    """
    t = (high + low).fma(_LOG2E, _MAGIC)
    n = t - _MAGIC
    r = n.fma(-_LN2_LOW, n.fma(-_LN2_HIGH, high)) + low
    return (polynomial(r, _EXP) * r).fma(r, r), t


def erfc(a: Expr) -> Expr:
    """1 - erf(x), at most 4 ulp."""
    x = V(a)
    size = at_most(x.abs(), 10.3)
    high, low = _square(size)
    power, t = _exp_of_pair(high * -1.0, low * -1.0)
    p = polynomial(size, _ERFC_P)
    share = p / (size * p).fma(math.sqrt(math.pi), polynomial(size, _ERFC_Q))
    tail = _scale(share.fma(power, share), t)
    return (x < 0.0).choose(V(Const(F32, 2.0)) - tail, tail).e


def gelu(a: Expr) -> Expr:
    """x/2 (1 + erf(x / sqrt(2))), at most 4 ulp.

    It is max(x, 0) less |x| times the normal distribution's tail, which does not cancel.
    NaN of -infinity is made by bits, as compilers of GPUs take x * 0 for 0.
    """
    x = V(a)
    size = at_most(x.abs(), 14.75)
    high, low = _square(size)
    power, t = _exp_of_pair(high * -0.5, low * -0.5)
    p = size * polynomial(size, _GELU_P)
    share = p / p.fma(math.sqrt(2 * math.pi), polynomial(size, _GELU_Q))
    tail = _scale(share.fma(power, share), t)
    is_infinite = x < -float(np.finfo(np.float32).max)
    nan = is_infinite.choose(V(Const(U32, 0xFFFFFFFF)), V(Const(U32, 0)))
    start = (x < 0.0).choose(V(Const(F32, -0.0)), x).bits(U32) | nan
    return (start.float_bits() - tail).e


# gelu's approximation is x sigmoid(x (_GELU + _GELU_CUBE x^2)); parts of 12 bits and the rest
_GELU = 2 * math.sqrt(2 / math.pi)
_GELU_HIGH = 1.595703125
_GELU_CUBE = 0.044715 * _GELU
_GELU_CUBE_HIGH = 0.07135009765625


def gelu_tanh(a: Expr) -> Expr:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), at most 3 ulp.

    The argument of exp is a pair: half an ulp of it, where it is 100, would be 60 of the result. Of
    -11.045 the power of two has the exponent of infinity.
    """
    given = V(a)
    x = at_most(at_least(given, -11.045), 7.2)
    high, low = _square(x)
    head = head12(high + low)
    product = head * -_GELU_CUBE_HIGH
    rest = head * (_GELU_CUBE_HIGH - _GELU_CUBE) + (high - head + low) * -_GELU_CUBE
    slope = head12(product - _GELU_HIGH)
    slope_tail = product - (slope + _GELU_HIGH) + (rest + (_GELU_HIGH - _GELU))
    x_head = head12(x)
    power, t = _exp_of_pair(x_head * slope, (x - x_head) * slope + x * slope_tail)
    scaled = (power + 1.0) * ((t.bits() << 23) + (_GATE_BIAS << 23)).float_bits()
    return _gated(given, scaled + _GATE_SCALE).e


# atanh(s) * 3 / s = 3 + s^2 + s^4 p(s^2) on |s| <= (sqrt(2) - 1) / (sqrt(2) + 1), relative error
# 2^-36.7; log2(m) = _POW_SCALE * s * that for s = (m - 1) / (m + 1).
_POW_LOG = (0.600002282647376997, 0.428207004838258289, 0.351278635637386786)
_POW_SCALE = 0.96179669392597560491  # 2 / (3 ln 2)
_POW_SCALE_HIGH = 0.961669921875  # its first 12 bits
# 2^z = 1 + z p(z) on |z| <= 0.502, relative error 2^-28.4.
_EXP2 = (
    0.693147216021335998,
    0.240226528467395042,
    0.0555030851461931741,
    0.00961768410877397265,
    0.00134073810419713111,
    0.000155966166224565153,
)


def _log2_pair(x: V) -> tuple[V, V]:
    """log2 of a positive finite number as an unevaluated sum: a head of 12 bits, and a tail.

    Relative error below 2^-33. The scheme is that of FreeBSD's e_powf.c (Sun Microsystems, 1993)
    on one interval: every product that must be exact is one of heads, so nothing rests on Fma.
    """
    k, m = _split_exponent(x)
    difference, total = m - 1.0, m + 1.0
    inverse = V(Const(F32, 1.0)) / total
    s = difference * inverse
    s_head, total_head = head12(s), head12(total)
    total_tail = m - (total_head - 1.0)
    s_tail = inverse * (difference - s_head * total_head - s_head * total_tail)
    square = s * s
    r = square * square * polynomial(square, _POW_LOG) + s_tail * (s_head + s)
    head_square = s_head * s_head
    t_head = head12(head_square + 3.0 + r)
    t_tail = r - (t_head - 3.0 - head_square)
    # (s_head + s_tail) * (t_head + t_tail), then times _POW_SCALE, then plus k.
    main, rest = s_head * t_head, s_tail * t_head + t_tail * s
    p_head = head12(main + rest)
    p_tail = rest - (p_head - main)
    z_head = p_head * _POW_SCALE_HIGH
    z_tail = p_head * (_POW_SCALE - _POW_SCALE_HIGH) + p_tail * _POW_SCALE
    head = head12(z_head + z_tail + k)
    return head, z_tail - (head - k - z_head)


def _pow_finite(size: V, y: V) -> V:
    """size^y for positive finite size and any y except infinities."""
    log_head, log_tail = _log2_pair(size)
    # Beyond 2^32 every power but that of 1 has overflowed or underflowed.
    y = at_most(at_least(y, -(2.0**32)), 2.0**32)
    y_head = head12(y)
    high = y_head * log_head
    low = (y - y_head) * log_head + y * log_tail
    t = at_most(at_least(high + low, -152.0), 130.0) + _MAGIC
    z = at_most(at_least(high - (t - _MAGIC) + low, -1.0), 1.0)
    return _scale(polynomial(z, _EXP2).fma(z, 1.0), t)


def pow(a: Expr, b: Expr) -> Expr:
    """C's powf with its special cases (C17, F.10.4.4), at most 2 ulp."""
    x, y = V(a), V(b)
    size = x.abs()
    nan = V(Const(F32, math.nan))
    # Where size is 0 or infinite, or y infinite, only the direction counts.
    is_limit = any_of(size.equals(0.0), size.equals(math.inf), y.abs().equals(math.inf))
    is_vanishing = V(binary("ne", (size < 1.0).e, (y < 0.0).e))
    result = is_limit.choose(
        is_vanishing.choose(V(Const(F32, 0.0)), math.inf), _pow_finite(size, y)
    )
    result = size.equals(1.0).choose(1.0, result)
    half = y * 0.5
    is_integer = V(unary("floor", y.e)).equals(y)
    is_odd = is_integer & V(unary("floor", half.e)).differs(half)
    sign = x.bits(U32) & is_odd.choose(V(Const(U32, SIGN)), 0)
    result = (result.bits(U32) | sign).float_bits()
    is_undefined = any_of(
        (x < 0.0) & (x > -math.inf) & V(unary("not", is_integer.e)), x.differs(x), y.differs(y)
    )
    result = is_undefined.choose(nan, result)
    return any_of(x.equals(1.0), y.equals(0.0)).choose(1.0, result).e


FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "exp": exp,
    "exp_nonpositive": exp_nonpositive,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "erf": erf,
    "erfc": erfc,
    "sigmoid": sigmoid,
    "silu": silu,
    "mish": mish,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "sin": sin,
    "cos": cos,
    "pow": pow,
}
