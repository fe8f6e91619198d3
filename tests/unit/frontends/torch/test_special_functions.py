"""Special functions of single precision beside mpmath: within 4 units of the last place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import aot
from tests.support.torch_modules import check, imported, interpreted, module_of

MOST_ULP = 4.0
Exact = Callable[[Any], Any]


def _erfcx(x: Any) -> Any:
    return mpmath.exp(x * x) * mpmath.erfc(x)


def _log_ndtr(x: Any) -> Any:
    return mpmath.log(mpmath.erfc(-x / mpmath.sqrt(2)) / 2)


def _ndtri(p: Any) -> Any:
    return mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(p) - 1)


def _log_gamma(x: Any) -> Any:
    return mpmath.log(abs(mpmath.gamma(x)))


def _scaled(order: int) -> Exact:
    return lambda x: mpmath.besseli(order, x) * mpmath.exp(-abs(x))


# torch's function, the exact one, what it is asked of
CASES: dict[str, tuple[Callable[[Any, Any], Any], Exact, tuple[float, float]]] = {
    "lgamma": (lambda t, x: t.lgamma(x), _log_gamma, (-30, 60)),
    "lgamma of large": (lambda t, x: t.lgamma(x), _log_gamma, (60, 1e4)),
    "digamma": (lambda t, x: t.digamma(x), mpmath.digamma, (-20, 60)),
    "trigamma": (lambda t, x: t.polygamma(1, x), lambda x: mpmath.polygamma(1, x), (-6, 40)),
    "polygamma 2": (lambda t, x: t.polygamma(2, x), lambda x: mpmath.polygamma(2, x), (-3, 40)),
    "polygamma 4": (lambda t, x: t.polygamma(4, x), lambda x: mpmath.polygamma(4, x), (0.1, 40)),
    "erfinv": (lambda t, x: t.erfinv(x), mpmath.erfinv, (-1, 1)),
    "ndtri": (lambda t, x: t.special.ndtri(x), _ndtri, (0, 1)),
    "erfcx": (lambda t, x: t.special.erfcx(x), _erfcx, (-9, 60)),
    "log_ndtr": (lambda t, x: t.special.log_ndtr(x), _log_ndtr, (-30, 9)),
    "i0": (lambda t, x: t.i0(x), lambda x: mpmath.besseli(0, x), (-40, 40)),
    "i0e": (lambda t, x: t.special.i0e(x), _scaled(0), (-60, 60)),
    "i1": (lambda t, x: t.special.i1(x), lambda x: mpmath.besseli(1, x), (-40, 40)),
    "i1e": (lambda t, x: t.special.i1e(x), _scaled(1), (-60, 60)),
}


def points(low: float, high: float) -> Any:
    """Numbers of a range, the neighbours of where functions are 0 or turn, and small ones."""
    rng = np.random.default_rng(4)
    drawn = rng.uniform(low, high, 300)
    near = [
        c + s * 2.0**-e for c in (1, 2, 1.4616321, 0.5, 10, 16) for s in (-1, 1) for e in (9, 20)
    ]
    small = [s * 10.0**-e for e in range(1, 9) for s in (-1, 1)]
    found = np.concatenate([drawn, near, small]).astype(np.float32)
    return found[(found > low) & (found < high) & (found != np.round(found))]


def most_ulp(found: Any, x: Any, exact: Exact) -> float:
    """The largest error in units of the last place of what is exact."""
    worst = 0.0
    with mpmath.workdps(40):
        for got, at in zip(found, x, strict=True):
            wanted = exact(mpmath.mpf(float(at)))
            unit = float(np.spacing(np.abs(np.float32(float(wanted)))))
            worst = max(worst, float(abs(mpmath.mpf(float(got)) - wanted)) / unit)
    return worst


@pytest.mark.parametrize("name", CASES)
def test_functions_are_exact_to_their_last_bits(t: Any, name: str) -> None:
    call, exact, (low, high) = CASES[name]
    x = points(low, high)
    given = t.from_numpy(x)
    module = module_of({"y": lambda x: call(t, x)}, 1)
    (found,) = interpreted(imported(module, [given]), [given]).values()
    assert found.dtype == np.float32
    assert most_ulp(found, x, exact) <= MOST_ULP


def test_functions_are_compiled(t: Any) -> None:
    x = points(-9, 9)
    given = t.from_numpy(x)
    calls = {name: call for name, (call, _, _) in CASES.items() if "of" not in name}
    module = module_of({name: lambda x, c=call: c(t, x) for name, call in calls.items()}, 1)
    with aot.load(aot.compile(t.export.export(module, (given,)))) as program:
        for name, found in program(given).items():
            _, exact, (low, high) = CASES[name]
            inside = (x > low) & (x < high)
            assert most_ulp(np.asarray(found)[inside], x[inside], exact) <= MOST_ULP, name


def test_functions_at_their_ends(t: Any) -> None:
    """Poles, infinities and NaN, as torch has them."""
    inf, nan = t.inf, t.nan
    x = t.tensor([0.0, 1, 2, inf, nan, -1, -2])
    p = t.tensor([0.0, 1, 0.5, nan, -0.1, 1.5, -1])
    functions = {
        "lgamma": lambda x, p: t.lgamma(x),
        "digamma": lambda x, p: (t.digamma(x), t.digamma(-t.zeros(1))),
        "trigamma": lambda x, p: t.polygamma(1, x[1:5]),
        "erfinv": lambda x, p: t.erfinv(p),
        "ndtri": lambda x, p: t.special.ndtri(p),
        "erfcx": lambda x, p: (t.special.erfcx(x), t.special.erfcx(-x)),
        "log_ndtr": lambda x, p: (t.special.log_ndtr(x), t.special.log_ndtr(-x)),
        # at infinity torch says NaN of some of these
        "bessel": lambda x, p: (t.i0(p), t.special.i0e(p), t.special.i1(-p), t.special.i1e(p)),
        "integers": lambda x, p: (t.lgamma(t.arange(1, 5)), t.i0(t.tensor([True, False]))),
    }
    module = module_of(functions, 2)
    found = interpreted(imported(module, [x, p]), [x, p]).values()
    wanted = [
        v for part in module(x, p).values() for v in (part if type(part) is tuple else [part])
    ]
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)


def test_orthogonal_polynomials(t: Any) -> None:
    """Of degrees that are elements, or one number."""
    x = t.tensor([-1.0, -0.7, 0, 0.3, 1, 1.5, 2])[:, None]
    degrees = t.tensor([-1, 0, 1, 2, 5, 9, 12])
    names = [
        *(f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"),
        *("hermite_polynomial_h", "hermite_polynomial_he"),
        *("laguerre_polynomial_l", "legendre_polynomial_p"),
    ]
    calls = {name: getattr(t.special, name) for name in names}
    functions = {
        name: lambda x, n, call=call: (call(x, n), call(x, 3), call(0.25, n))
        for name, call in calls.items()
    }
    check(functions, [x, degrees], tolerance=1e-5)
