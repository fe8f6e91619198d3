"""Every function of one number that formats of models have, as importers build it, and exactly.

    FUNCTIONS["acosh"].build(b, x)        a value, of a builder and a value
    FUNCTIONS["acosh"].exact(array)       the same of float64, good to many more digits than f32 has
    FUNCTIONS["acosh"].mpmath(mpf)        the same of mpmath, which `exact` is compared with

Owns the points at which functions are tried, and how results are judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import numpy as np

from aot.frontends.lib import activations, functions
from aot.ir.dims import Dim
from aot.ir.graph import Value
from tests.support.plain_builder import Plain, plain
from tests.support.ulp import ulp_errors

Array = np.ndarray[Any, Any]
BOUND = 4.0
"""Units in the last place."""
FLUSHED = 2.0**-122

ALPHA, GAMMA = (float(np.float32(v)) for v in (1.6732632, 1.0507010))  # of selu
_TANH = 2 * math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class Function:
    build: Callable[[Plain, Value], Value]
    exact: Callable[[Array], Any]
    mpmath: Callable[[Any], Any]


def _op(name: str) -> Callable[[Plain, Value], Value]:
    return lambda b, x: b.emit(name, x)


def _with_number(op: str, number: float, is_first: bool) -> Callable[[Plain, Value], Value]:
    def build(b: Plain, x: Value) -> Value:
        scalar = b.scalar(number, x.type.dtype)
        return b.emit(op, scalar, x) if is_first else b.emit(op, x, scalar)

    return build


def _selu(b: Plain, x: Value) -> Value:
    inner = activations.elu(b, x, ALPHA)
    return b.emit("mul", inner, b.scalar(GAMMA, x.type.dtype))


def _rsqrt(b: Plain, x: Value) -> Value:
    return b.emit("div", b.scalar(1.0, x.type.dtype), b.emit("sqrt", x))


def _log_in(base: float) -> Callable[[Plain, Value], Value]:
    return lambda b, x: b.emit("mul", b.emit("log", x), b.scalar(1 / math.log(base), x.type.dtype))


def _erfc(x: Array) -> Array:
    return np.fromiter(map(math.erfc, x.ravel()), np.float64, x.size).reshape(x.shape)


def _sigmoid(x: Array) -> Any:
    z = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, z) / (1 + z)


def _gated(gate: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """x times `gate`, which is 0 at -infinity: NaN there."""
    return lambda x: x * gate(x)


def _tail(x: Any) -> Any:
    """log(1 + exp(-|x|))"""
    return mp.log1p(mp.exp(-abs(x)))


def _mp_sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def _mp_elu(x: Any, alpha: float = 1, width: float = 1) -> Any:
    return alpha * mp.expm1(x / width) if x < 0 else x


def _mp_sixths(x: Any) -> Any:
    return min(max(x + 3, mp.mpf(0)), mp.mpf(6)) / 6


FUNCTIONS: dict[str, Function] = {
    "acos": Function(functions.acos, np.arccos, mp.acos),
    "acosh": Function(functions.acosh, np.arccosh, mp.acosh),
    "asin": Function(functions.asin, np.arcsin, mp.asin),
    "asinh": Function(functions.asinh, np.arcsinh, mp.asinh),
    "atan": Function(functions.atan, np.arctan, mp.atan),
    "atanh": Function(functions.atanh, np.arctanh, mp.atanh),
    "celu": Function(
        lambda b, x: activations.celu(b, x, 0.75),
        lambda x: np.where(x < 0, 0.75 * np.expm1(np.minimum(x, 0) / 0.75), x),
        lambda x: _mp_elu(x, 0.75, 0.75),
    ),
    "cos": Function(_op("cos"), np.cos, mp.cos),
    "cosh": Function(functions.cosh, np.cosh, mp.cosh),
    "elu": Function(
        lambda b, x: activations.elu(b, x, 1.0),
        lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x),
        _mp_elu,
    ),
    "erf": Function(_op("erf"), np.vectorize(math.erf), mp.erf),
    "erfc": Function(_op("erfc"), _erfc, mp.erfc),
    "exp": Function(_op("exp"), np.exp, mp.exp),
    "exp2": Function(functions.exp2, np.exp2, lambda x: mp.mpf(2) ** x),
    "expm1": Function(_op("expm1"), np.expm1, mp.expm1),
    "gelu": Function(
        _op("gelu"),
        _gated(lambda x: _erfc(x * -math.sqrt(0.5)) / 2),
        lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2,
    ),
    "gelu_tanh": Function(
        activations.tanh_gelu,
        _gated(
            lambda x: _sigmoid(_TANH * (np.clip(x, -99, 99) + 0.044715 * np.clip(x, -99, 99) ** 3))
        ),
        lambda x: x * _mp_sigmoid(2 * mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3)),
    ),
    "hard_sigmoid": Function(activations.sixths, lambda x: np.clip(x + 3, 0, 6) / 6, _mp_sixths),
    "hard_swish": Function(
        _op("hard_swish"),
        lambda x: x * (np.clip(x + 3, 0, 6) / 6),
        lambda x: x * _mp_sixths(x),
    ),
    "log": Function(_op("log"), np.log, mp.log),
    "log10": Function(_log_in(10), np.log10, mp.log10),
    "log1p": Function(_op("log1p"), np.log1p, mp.log1p),
    "log2": Function(_log_in(2), np.log2, lambda x: mp.log(x, 2)),
    "log_sigmoid": Function(
        activations.log_sigmoid,
        lambda x: -(np.maximum(-x, 0) + np.log1p(np.exp(-np.abs(x)))),
        lambda x: min(x, mp.mpf(0)) - _tail(x),
    ),
    "mish": Function(
        _op("mish"),
        _gated(lambda x: np.tanh(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))),
        lambda x: x * mp.tanh(max(x, mp.mpf(0)) + _tail(x)),
    ),
    "reciprocal": Function(_with_number("div", 1.0, True), np.reciprocal, lambda x: 1 / x),
    "rsqrt": Function(_rsqrt, lambda x: 1 / np.sqrt(x), lambda x: 1 / mp.sqrt(x)),
    "selu": Function(
        _selu,
        lambda x: GAMMA * np.where(x < 0, ALPHA * np.expm1(np.minimum(x, 0)), x),
        lambda x: GAMMA * _mp_elu(x, ALPHA),
    ),
    "sigmoid": Function(_op("sigmoid"), _sigmoid, _mp_sigmoid),
    "silu": Function(activations.swish, _gated(_sigmoid), lambda x: x * _mp_sigmoid(x)),
    "sin": Function(_op("sin"), np.sin, mp.sin),
    "sinh": Function(functions.sinh, np.sinh, mp.sinh),
    "softplus": Function(
        activations.softplus,
        lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
        lambda x: max(x, mp.mpf(0)) + _tail(x),
    ),
    "softsign": Function(
        activations.softsign, lambda x: x / (1 + np.abs(x)), lambda x: x / (1 + abs(x))
    ),
    "sqrt": Function(_op("sqrt"), np.sqrt, mp.sqrt),
    "tan": Function(functions.tan, np.tan, mp.tan),
    "tanh": Function(_op("tanh"), np.tanh, mp.tanh),
}


def module(extent: Dim | str = "N") -> Any:
    """Every function of one vector."""
    b = plain()
    x = b.b.input("x", f"f32[{extent}]")
    for name, function in FUNCTIONS.items():
        b.b.output(name, function.build(b, x))
    return b.b.module()


def from_bits(bits: Any) -> Array:
    return np.asarray(bits).astype(np.uint32).view(np.float32)


# Where formulas change, results leave the normal numbers or overflow, or functions have zeros.
_EDGES = (
    *(2.0**k for k in (-126, -64, -26, -24, -13, -2, -1, 0, 1, 24, 60, 64, 100, 127)),
    *(0.35, 0.414, 0.875, 1.0625, 1.5, 2.414, 3.0, 4.0, 6.0, 7.2, 9.2, 10.06, 10.3, 10.9),
    *(13.0, 14.0, 14.75, 16.6, 17.33, 18.0, 37.0, 40.0, 70.0, 80.0, 87.33, 88.0, 88.376, 88.7228),
    *(89.0, 89.416, 91.0, 100.0, 103.28, 103.972, 104.0, 107.0, 111.0, 112.0, 126.0, 127.0, 128.0),
    *(149.0, 150.0, 1e9, 5.67e37, 3.4028235e38, math.pi, math.pi / 2, math.pi / 4, 0.2498),
)
SPECIAL = np.array(
    [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.1754942e-38, 3e-39], np.float32
)


def points(count: int) -> Array:
    """About `count` numbers: edges with their neighbours, all sizes, and where functions bend."""
    edges = np.array(_EDGES, np.float32).view(np.uint32).astype(np.int64)
    near = from_bits((edges[:, None] + np.arange(-3, 4)).ravel())
    rest = count - 2 * near.size - SPECIAL.size
    bits = from_bits(np.linspace(0, (1 << 32) - 1, rest // 2).astype(np.int64))
    bends = [np.linspace(-low, low, rest // 8) for low in (1.2, 4, 16, 112)]
    return np.concatenate([SPECIAL, near, -near, bits, *(b.astype(np.float32) for b in bends)])


def exact(name: str, x: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(FUNCTIONS[name].exact(x.astype(np.float64)), np.float64)


def check(name: str, x: Array, got: Array, *, flushes: bool = False) -> None:
    """Judges results. Where units flush subnormal numbers, as parts of results too, those below
    `FLUSHED` count as 0, and so do their signs."""
    wanted = exact(name, x)
    with np.errstate(invalid="ignore"):
        errors = ulp_errors(got, wanted)
        if flushes:
            is_tiny = (x != 0) & (np.abs(x) < FLUSHED)
            is_none = (np.abs(wanted) < FLUSHED) & (np.abs(got) < FLUSHED)
            errors = np.where(is_tiny | is_none, 0, errors)
    at = int(np.argmax(errors))
    where = f"{name}({x[at]!r}) gave {got[at]!r}, is {wanted[at]!r}: {errors[at]} ulp"
    assert errors[at] <= BOUND, where
