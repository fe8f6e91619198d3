"""PyTorch's special functions: gamma functions, inverse error functions, Bessel functions.

Computed in double precision and rounded once, so that single precision has its last bits: series
with terms of one sign or small sums near 0, asymptotic expansions or continued fractions far away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache

from aot.frontends.torch.table import Node, torch_op
from aot.ir.graph import Value
from aot.ir.types import DType

F64 = DType.F64
_SHIFT = 10  # from which on expansions have double precision
_EXPANDED = 9  # terms of them
# statistics.NormalDist.inv_cdf of Python: Wichura's AS 241, numerators and denominators
_CENTRE = (
    (
        *(2.50908_09287_30122_6727e3, 3.34305_75583_58812_8105e4, 6.72657_70927_00870_0853e4),
        *(4.59219_53931_54987_1457e4, 1.37316_93765_50946_1125e4, 1.97159_09503_06551_4427e3),
        *(1.33141_66789_17843_7745e2, 3.38713_28727_96366_6080e0),
    ),
    (
        *(5.22649_52788_52854_5610e3, 2.87290_85735_72194_2674e4, 3.93078_95800_09271_0610e4),
        *(2.12137_94301_58659_5867e4, 5.39419_60214_24751_1077e3, 6.87187_00749_20579_0830e2),
        *(4.23133_30701_60091_1252e1, 1.0),
    ),
)
_TAIL = (
    (
        *(7.74545_01427_83414_07640e-4, 2.27238_44989_26918_45833e-2, 2.41780_72517_74506_11770e-1),
        *(1.27045_82524_52368_38258e0, 3.64784_83247_63204_60504e0, 5.76949_72214_60691_40550e0),
        *(4.63033_78461_56545_29590e0, 1.42343_71107_49683_57734e0),
    ),
    (
        *(1.05075_00716_44416_84324e-9, 5.47593_80849_95344_94600e-4, 1.51986_66563_61645_71966e-2),
        *(1.48103_97642_74800_74590e-1, 6.89767_33498_51000_04550e-1, 1.67638_48301_83803_84940e0),
        *(2.05319_16266_37758_82187e0, 1.0),
    ),
)
_FAR_TAIL = (
    (
        *(2.01033_43992_92288_13265e-7, 2.71155_55687_43487_57815e-5, 1.24266_09473_88078_43860e-3),
        *(2.65321_89526_57612_30930e-2, 2.96560_57182_85048_91230e-1, 1.78482_65399_17291_33580e0),
        *(5.46378_49111_64114_36990e0, 6.65790_46435_01103_77720e0),
    ),
    (
        *(2.04426_31033_89939_78564e-15, 1.42151_17583_16445_88870e-7),
        *(1.84631_83175_10054_68180e-5, 7.86869_13114_56132_59100e-4, 1.48753_61290_85061_48525e-2),
        *(1.36929_88092_27358_05310e-1, 5.99832_20655_58879_37690e-1, 1.0),
    ),
)


def _polynomial(n: Node, x: Value, coefficients: Sequence[float]) -> Value:
    """The value of a polynomial at x, with coefficients from the highest power down."""
    made = n.broadcast(n.scalar(coefficients[0], F64), x.type.dims)
    for coefficient in coefficients[1:]:
        made = n("add", n.emit("mul", made, x), coefficient)
    return made


def _function(compute: Callable[[Node, Value], Value]) -> Callable[[Node, Value], Value]:
    """An entry for a unary function that is computed in double precision."""
    return lambda n, x: n.cast(compute(n, n.cast(x, F64)), n.dtype)


def _is_infinite(n: Node, x: Value) -> Value:
    return n("equal", n("abs", x), math.inf)


# gamma


@cache
def _bernoulli(count: int) -> tuple[Fraction, ...]:
    """The first `count` Bernoulli numbers B2, B4, ..."""
    found = [Fraction(1)]
    for m in range(1, 2 * count + 1):
        total = sum((math.comb(m + 1, k) * b for k, b in enumerate(found)), Fraction(0))
        found.append(-total / (m + 1))
    return tuple(found[2::2])


def _turned(n: Node, x: Value) -> tuple[Value, Value, Value, Value]:
    """(y, is_low, sin(pi x), cos(pi x)) for a reflection formula: y is 1 - x where x < 1/2
    (`is_low`), else x; sine and cosine reduce the angle modulo whole turns.
    """
    is_low = n("less", x, 0.5)
    y = n("where", is_low, n("sub", n.scalar(1.0, F64), x), x)
    angle = n("mul", n("sub", x, n("round", x)), math.pi)
    return y, is_low, n.emit("sin", angle), n.emit("cos", angle)


def _log_gamma(n: Node, x: Value) -> Value:
    """log gamma: Stirling's series, at x + 10 for small x, minus the logarithm of the skipped
    factors."""
    y, is_low, sine, _ = _turned(n, x)
    is_small = n("less", y, float(_SHIFT))
    product = y
    for k in range(1, _SHIFT):
        product = n("mul", product, n("add", y, float(k)))
    z = n("where", is_small, n("add", y, float(_SHIFT)), y)
    inverse = n("div", n.scalar(1.0, F64), z)
    terms = [float(b / (2 * k * (2 * k - 1))) for k, b in enumerate(_bernoulli(_EXPANDED), 1)]
    series = n("mul", _polynomial(n, n("mul", inverse, inverse), terms[::-1]), inverse)
    made = n("sub", n("mul", n("sub", z, 0.5), n.emit("log", z)), z)
    made = n("add", n("add", made, 0.5 * math.log(2 * math.pi)), series)
    less = n("where", is_small, n.emit("log", n("where", is_small, product, 1.0)), 0.0)
    made = n("sub", made, less)
    mirrored = n("sub", n.emit("log", n("div", n.scalar(math.pi, F64), n("abs", sine))), made)
    made = n("where", is_low, mirrored, made)
    is_root = n.emit("or", n("equal", x, 1.0), n("equal", x, 2.0))
    made = n("where", is_root, 0.0, made)
    return n("where", _is_infinite(n, x), math.inf, made)


def _digamma(n: Node, x: Value) -> Value:
    y, is_low, sine, cosine = _turned(n, x)
    is_small = n("less", y, float(_SHIFT))
    total = n("div", n.scalar(1.0, F64), y)
    for k in range(1, _SHIFT):
        total = n("add", total, n("div", n.scalar(1.0, F64), n("add", y, float(k))))
    z = n("where", is_small, n("add", y, float(_SHIFT)), y)
    inverse = n("div", n.scalar(1.0, F64), z)
    square = n("mul", inverse, inverse)
    terms = [float(b / (2 * k)) for k, b in enumerate(_bernoulli(_EXPANDED), 1)]
    series = n("mul", _polynomial(n, square, terms[::-1]), square)
    made = n("sub", n("sub", n.emit("log", z), n("mul", inverse, 0.5)), series)
    made = n("sub", made, n("where", is_small, total, 0.0))
    made = n("where", is_low, n("sub", made, n("div", n("mul", cosine, math.pi), sine)), made)
    is_pole = n("and", n("less", x, 0.0), n("equal", sine, 0.0))
    made = n("where", is_pole, n.scalar(math.nan, F64), made)
    at_zero = n("div", n.scalar(-1.0, F64), x)  # of either sign
    made = n("where", n("equal", x, 0.0), at_zero, made)
    return n("where", n("equal", x, math.inf), x, made)


torch_op("aten.lgamma.default")(_function(_log_gamma))
torch_op("aten.digamma.default")(_function(_digamma))


def _power(n: Node, x: Value, exponent: int) -> Value:
    made = x
    for _ in range(exponent - 1):
        made = n("mul", made, x)
    return made


def _hurwitz(n: Node, s: int, q: Value) -> Value:
    """The Hurwitz zeta function, the sum of (q + k)^-s over k >= 0, for positive q and s >= 2: ten
    terms, and the rest by the Euler-Maclaurin formula."""
    one = n.scalar(1.0, F64)
    total = n("div", one, _power(n, q, s))
    for k in range(1, _SHIFT):
        total = n("add", total, n("div", one, _power(n, n("add", q, float(k)), s)))
    inverse = n("div", one, n("add", q, float(_SHIFT)))
    square = n("mul", inverse, inverse)
    terms = []
    for k, b in enumerate(_bernoulli(_EXPANDED), 1):
        rising = math.prod(range(s, s + 2 * k - 1))
        terms.append(float(b * rising / math.factorial(2 * k)))
    series = n("mul", _polynomial(n, square, terms[::-1]), square)
    # times (q + 10)^(2 - s): all of these
    rest = n("add", n("div", inverse, float(s - 1)), n("mul", square, 0.5))
    tail = n("add", rest, n("mul", series, inverse))
    return n("add", total, n("mul", tail, _power(n, inverse, s - 2)) if s > 2 else tail)


@cache
def _cotangents(order: int) -> tuple[float, ...]:
    """Coefficients of a derivative of cot(pi x) as a polynomial in cot(pi x), the highest power
    first."""
    found = [0.0, 1.0]  # the lowest first
    for _ in range(order):
        slope = [k * c for k, c in enumerate(found)][1:]
        longer = [0.0] * (len(slope) + 2)
        for k, c in enumerate(slope):
            longer[k] -= math.pi * c
            longer[k + 2] -= math.pi * c
        found = longer
    return tuple(found[::-1])


@torch_op("aten.polygamma.default")
def polygamma(n: Node, order: int, x: Value) -> Value:
    wide = n.cast(x, F64)
    if order == 0:
        return n.cast(_digamma(n, wide), n.dtype)
    y, is_low, sine, cosine = _turned(n, wide)
    sign = 1 if order % 2 else -1
    made = n("mul", _hurwitz(n, order + 1, y), float(sign * math.factorial(order)))
    slope = n("mul", _polynomial(n, n("div", cosine, sine), _cotangents(order)), math.pi)
    mirrored = n("sub", n("mul", made, float(-sign)), slope)
    made = n("where", is_low, mirrored, made)
    # at infinity nothing is left
    made = n("where", n("equal", wide, math.inf), 0.0, made)
    return n.cast(made, n.dtype)


# error functions


def _scaled_complement(n: Node, x: Value) -> Value:
    """exp(x^2) erfc(x) for x >= 0: by the series of erf up to 2, then by a continued fraction."""
    square = n("mul", x, x)
    near = n("minimum", square, 4.0)
    terms = [2.0**k / math.prod(range(1, 2 * k + 2, 2)) for k in range(40)]
    erf = n("mul", n("mul", _polynomial(n, near, terms[::-1]), n("minimum", x, 2.0)), _TWO_ROOT)
    close = n("sub", n.emit("exp", near), erf)
    far = n("maximum", x, 2.0)
    below = far
    for k in range(60, 0, -1):
        below = n("add", far, n("div", n.scalar(k / 2, F64), below))
    fraction = n("div", n.scalar(_TWO_ROOT / 2, F64), below)
    return n("where", n("less", x, 2.0), close, fraction)


_TWO_ROOT = 2 / math.sqrt(math.pi)


def _erfcx(n: Node, x: Value) -> Value:
    size = n("abs", x)
    made = _scaled_complement(n, size)
    whole = n("mul", n.emit("exp", n("mul", x, x)), 2.0)
    made = n("where", n("less", x, 0.0), n("sub", whole, made), made)
    end = n("where", n("less", x, 0.0), size, 0.0)
    return n("where", _is_infinite(n, x), end, made)


def _log_ndtr(n: Node, x: Value) -> Value:
    """The log of the normal distribution function: log((1 + erf(x / sqrt(2))) / 2)."""
    half = n("mul", n("abs", x), math.sqrt(0.5))
    scaled = n("mul", _scaled_complement(n, half), 0.5)
    square = n("mul", n("mul", x, x), 0.5)
    low = n("sub", n.emit("log", scaled), square)
    missing = n("mul", scaled, n.emit("exp", n("neg", square)))
    small = n("neg", n("add", missing, n("mul", n("mul", missing, missing), 0.5)))
    high = n.emit("log", n("sub", n.scalar(1.0, F64), missing))
    high = n("where", n("less", missing, 1e-6), small, high)
    made = n("where", n("less", x, 0.0), low, high)
    end = n("where", n("less", x, 0.0), x, 0.0)
    return n("where", _is_infinite(n, x), end, made)


def _normal_quantile(n: Node, q: Value, tail: Value) -> Value:
    """The quantile of the normal distribution for probability q + 1/2; `tail` is the probability
    beyond it on its side."""
    r = n("sub", n.scalar(0.180625, F64), n("mul", q, q))
    above, below = (_polynomial(n, r, part) for part in _CENTRE)
    centre = n("mul", n("div", above, below), q)
    root = n.emit("sqrt", n("neg", n.emit("log", tail)))
    made = []
    for table, start in ((_TAIL, 1.6), (_FAR_TAIL, 5.0)):
        t = n("sub", root, start)
        above, below = (_polynomial(n, t, part) for part in table)
        made.append(n("div", above, below))
    size = n("where", n("less_equal", root, 5.0), *made)
    size = n("where", n("equal", tail, 0.0), math.inf, size)
    far = n("where", n("less", q, 0.0), n("neg", size), size)
    made_of_all = n("where", n("less_equal", n("abs", q), 0.425), centre, far)
    return n("where", n("less", tail, 0.0), n.scalar(math.nan, F64), made_of_all)


def _inverse_error_function(n: Node, x: Value) -> Value:
    tail = n("mul", n("sub", n.scalar(1.0, F64), n("abs", x)), 0.5)
    return n("mul", _normal_quantile(n, n("mul", x, 0.5), tail), math.sqrt(0.5))


def _ndtri(n: Node, p: Value) -> Value:
    tail = n("minimum", p, n("sub", n.scalar(1.0, F64), p))
    return _normal_quantile(n, n("sub", p, 0.5), tail)


torch_op("aten.erfinv.default")(_function(_inverse_error_function))
torch_op("aten.special_ndtri.default")(_function(_ndtri))
torch_op("aten.special_erfcx.default")(_function(_erfcx))
torch_op("aten.special_log_ndtr.default")(_function(_log_ndtr))


# Bessel functions

_NEAR = 16.0  # up to where their series are summed
_NEAR_TERMS, _FAR_TERMS = 44, 24


def _bessel(order: int, is_scaled: bool) -> Callable[[Node, Value], Value]:
    """An entry for the modified Bessel function of the first kind, times exp(-|x|) if scaled."""
    series = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(_NEAR_TERMS)]
    expansion = [1.0]
    for k in range(1, _FAR_TERMS):
        expansion.append(expansion[-1] * ((2 * k - 1) ** 2 - 4 * order**2) / (8 * k))

    def build(n: Node, x: Value) -> Value:
        size = n("abs", x)
        near = n("minimum", size, _NEAR)
        quarter = n("mul", n("mul", near, near), 0.25)
        close = _polynomial(n, quarter, series[::-1])
        if order == 1:
            close = n("mul", close, n("mul", near, 0.5))
        distant = n("maximum", size, _NEAR)
        inverse = n("div", n.scalar(1.0, F64), distant)
        root = n("sqrt", n("mul", inverse, 1 / (2 * math.pi)))
        far = n("mul", _polynomial(n, inverse, expansion[::-1]), root)
        if is_scaled:
            close = n("mul", close, n.emit("exp", n("neg", near)))
        else:
            far = n("mul", far, n.emit("exp", n("minimum", distant, 700.0)))
        made = n("where", n("less_equal", size, _NEAR), close, far)
        if not is_scaled:
            made = n("where", n("less", n.scalar(700.0, F64), size), math.inf, made)
        return made if order == 0 else n("where", n("less", x, 0.0), n("neg", made), made)

    return build


for _name, _order, _is_scaled in (
    *(("i0", 0, False), ("special_i0e", 0, True)),
    *(("special_i1", 1, False), ("special_i1e", 1, True)),
):
    torch_op(f"aten.{_name}.default")(_function(_bessel(_order, _is_scaled)))
