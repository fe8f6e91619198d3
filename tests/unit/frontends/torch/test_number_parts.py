"""Signs, exponents and neighbours of numbers beside torch, and what few models reduce or write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aot
from tests.support.torch_modules import Functions, check, imported, interpreted, module_of

SPECIAL = [0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38, 0.1, -1.0]


def bits(x: Any) -> Any:
    """A tensor's bits, which tell zeros apart."""
    return x.view({4: np.int32, 8: np.int64}[x.dtype.itemsize])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parts_of_all_pairs(t: Any, dtype: str) -> None:
    """Bit by bit, but for NaN."""
    numbers = t.tensor(SPECIAL, dtype=getattr(t, dtype))
    x, y = (v.reshape(-1) for v in t.meshgrid(numbers, numbers, indexing="ij"))
    functions: Functions = {
        "signbit": lambda x, y: t.signbit(x),
        "copysign": t.copysign,
        "of a number": lambda x, y: (t.copysign(x, -0.0), t.copysign(x, 2)),
        "frexp": lambda x, y: t.frexp(x),
        "nextafter": t.nextafter,
        "angle": lambda x, y: t.angle(x),
    }
    module = module_of(functions, 2)
    found = list(interpreted(imported(module, [x, y]), [x, y]).values())
    wanted = [
        v.numpy()
        for part in module(x, y).values()
        for v in (part if isinstance(part, tuple) else (part,))
    ]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        if theirs.dtype.kind != "f":
            np.testing.assert_array_equal(ours, theirs)
            continue
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
        rest = ~np.isnan(theirs)
        np.testing.assert_array_equal(bits(ours[rest]), bits(theirs[rest]))


def test_parts_are_compiled(t: Any) -> None:
    x, y = t.tensor(SPECIAL), t.tensor(SPECIAL[::-1])

    class Parts(t.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return t.copysign(x, y), *t.frexp(x), t.nextafter(x, y), t.signbit(y)

    with aot.load(aot.compile(t.export.export(Parts(), (x, y)))) as program:
        for ours, theirs in zip(program(x, y), Parts()(x, y), strict=True):
            np.testing.assert_array_equal(np.asarray(ours), theirs.numpy())


def test_parts_of_integers_and_truths(t: Any) -> None:
    i, b, x = t.tensor([3, -4, 0]), t.tensor([True, False, True]), t.tensor([1.5, -2.0, 0.25])
    functions: Functions = {
        "signbit": lambda i, b, x: (t.signbit(i), t.signbit(b)),
        "copysign": lambda i, b, x: (t.copysign(i, x), t.copysign(x, i), t.copysign(b, x)),
        "ldexp": lambda i, b, x: (t.ldexp(x, i), t.ldexp(i, i), t.ldexp(x, x)),
        "angle": lambda i, b, x: (t.angle(i), t.angle(b)),
        "square": lambda i, b, x: (t.square(b), t.square(i)),
        "clamp": lambda i, b, x: (t.clamp_min(b, b[0]), t.clamp_max(b, b[1])),
        "outer": lambda i, b, x: t.outer(b, b),
    }
    check(functions, [i, b, x])


def test_distances_and_products(t: Any) -> None:
    t.manual_seed(5)
    x, y = t.randn(2, 4, 3), t.randn(2, 3, 5)
    functions: Functions = {
        "dist": lambda x, y: (t.dist(x, x[:1]), t.dist(x, x + 1, 3), t.dist(x, -x, 0)),
        "pdist": lambda x, y: (t.pdist(x[0]), t.pdist(x[1], 1.5)),
        "addbmm": lambda x, y: (
            t.addbmm(t.ones(4, 5), x, y),
            t.addbmm(t.ones(4, 5), x, y, beta=0.5, alpha=2),
        ),
        "bilinear": lambda x, y: t.nn.functional.bilinear(x, x + 1, t.ones(4, 3, 3), t.ones(4)),
        "layer norm": lambda x, y: t.native_layer_norm(x, (4, 3), None, None, 1e-5),
        "group norm": lambda x, y: t.native_group_norm(x, None, None, 2, 4, 3, 2, 1e-5),
        "copies": lambda x, y: (
            *(t.narrow_copy(x, 1, 1, 2), t.permute_copy(x, (2, 0, 1))),
            *t.unbind_copy(x, 0),
            x.clone().resize_(3, 5),
        ),
    }
    check(functions, [x, y], tolerance=4e-6)


def test_numbers_of_tensors_that_are_results(t: Any) -> None:
    """Below 0 they are no sizes."""
    check({"item": lambda i: i.sum().item()}, [t.tensor([3, -11])])


def test_divisors_and_multiples(t: Any) -> None:
    numbers = t.tensor([0, 1, -1, 2, 12, -18, 35, 64, 97, 1000, 6765, 4181, -(2**31), 2**40])
    a, b = (v.reshape(-1) for v in t.meshgrid(numbers, numbers, indexing="ij"))
    functions: Functions = {
        "gcd": lambda a, b: (t.gcd(a, b), t.gcd(a[:5, None], b[:14]), t.gcd(a[3], b[4])),
        "lcm": lambda a, b: t.lcm(a[:90], b[:90]),
        "bytes": lambda a, b: t.gcd(a[:90].to(t.int8), b[:90].to(t.int32)),
    }
    others = [[a * 0, b * 0], [a, b * 0]]
    check(functions, [a, b], others=others)


def test_divisors_are_compiled(t: Any) -> None:
    a, b = t.randint(-999, 999, (40,)), t.randint(-999, 999, (40,))

    class Divisors(t.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return t.gcd(a, b), t.lcm(a, b)

    with aot.load(aot.compile(t.export.export(Divisors(), (a, b)))) as program:
        for ours, theirs in zip(program(a, b), Divisors()(a, b), strict=True):
            np.testing.assert_array_equal(np.asarray(ours), theirs.numpy())
