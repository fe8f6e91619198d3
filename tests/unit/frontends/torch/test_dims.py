"""torch's symbolic sizes as dims: each function of sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from aot.frontends.lib.builder import UnsupportedNodeError
from aot.frontends.torch.dims import Sizes
from aot.ir.dims import evaluate


@pytest.fixture(scope="module")
def terms(t: Any) -> Iterator[dict[str, tuple[Any, Callable[[int, int], int]]]]:
    """Sizes of symbols `a` and `b`, and what they are."""
    import sympy
    from torch.utils._sympy import functions as f

    a, b = (sympy.Symbol(name, integer=True, positive=True) for name in "ab")
    half = sympy.Rational(1, 2)
    yield {
        "sum": (a + 2 * b + 3, lambda a, b: a + 2 * b + 3),
        "difference": (3 * a - b, lambda a, b: 3 * a - b),
        "power": (a**3, lambda a, b: a**3),
        "half of an even one": (half * (2 * a + 4 * b), lambda a, b: a + 2 * b),
        "quarter of a square": ((2 * a) ** 2 / 4, lambda a, b: a * a),
        "a float": (sympy.Float(2.0) * a, lambda a, b: 2 * a),
        "floor of a share": (f.FloorDiv(a, 3), lambda a, b: a // 3),
        "floor of sizes": (f.FloorDiv(a * 7, b), lambda a, b: 7 * a // b),
        "clean": (f.CleanDiv(6 * a, 3), lambda a, b: 2 * a),
        "ceiling": (f.CeilDiv(a + 1, 4), lambda a, b: -(-(a + 1) // 4)),
        "remainder": (f.Mod(a, 4), lambda a, b: a % 4),
        "remainder of a python": (f.PythonMod(a + 5, b), lambda a, b: (a + 5) % b),
        "modular": (f.ModularIndexing(a * 5, 2, 3), lambda a, b: 5 * a // 2 % 3),
        "floor of a true share": (f.FloorToInt(f.IntTrueDiv(a + 1, 2)), lambda a, b: (a + 1) // 2),
        "ceiling of a true share": (f.CeilToInt(f.IntTrueDiv(a + 1, 2)), lambda a, b: (a + 2) // 2),
        "rounded towards 0": (f.TruncToInt(f.FloatTrueDiv(f.ToFloat(a), 2)), lambda a, b: a // 2),
        "a third in floats": (
            f.TruncToInt(sympy.Float(1 / 3) * f.ToFloat(a)),
            lambda a, b: math.trunc(1 / 3 * float(a)),
        ),
        "a decimal in floats": (
            f.FloorToInt(sympy.Float(0.7) * f.ToFloat(a * b)),
            lambda a, b: math.trunc(0.7 * float(a * b)),
        ),
        "floor of sympy": (sympy.floor(a / 3 + half), lambda a, b: (2 * a + 3) // 6),
        "ceiling of sympy": (sympy.ceiling(a * half), lambda a, b: (a + 1) // 2),
        "divided by a part": (f.IntTrueDiv(6 * a, sympy.Rational(3, 2)), lambda a, b: 4 * a),
        "divided by a size": (f.IntTrueDiv(a * b, b), lambda a, b: a),
        "larger": (f.Max(a, b + 1), lambda a, b: max(a, b + 1)),
        "smaller": (f.Min(a, 2 * b, 5), lambda a, b: min(a, 2 * b, 5)),
        "larger of a share": (
            f.FloorToInt(f.Max(a * half, sympy.Integer(2))),
            lambda a, b: max(a // 2, 2),
        ),
        "reciprocal of a number": (
            sympy.Pow(sympy.Integer(2), -1, evaluate=False) * 4 * a,
            lambda a, b: 2 * a,
        ),
    }


def sizes() -> Sizes:
    return Sizes({"a": "A", "b": "B"})


def test_every_function_of_sizes(
    terms: dict[str, tuple[Any, Callable[[int, int], int]]],
) -> None:
    for (name, (term, wanted)), (a, b) in product(
        terms.items(), [(1, 1), (3, 2), (4, 5), (12, 7), (900, 1)]
    ):
        found = evaluate(sizes().of(term), {"A": a, "B": b})
        assert found == wanted(a, b), f"{name}, {term}, of {a} and {b}"


def test_what_is_no_size_is_refused(t: Any) -> None:
    import sympy
    from torch.utils._sympy import functions as f

    a, b = (sympy.Symbol(name, integer=True, positive=True) for name in "ab")
    u = sympy.Symbol("u0", integer=True, positive=True)
    wrong = {
        a / 2: "size a/2 is no whole number",
        f.FloorDiv(a / 2, b): f"size {f.FloorDiv(a / 2, b)} is not supported",
        sympy.Integer(2) ** a: "size 2**a is not supported",
        sympy.Pow(a, -1): "size 1/a is not supported",
        f.IntTrueDiv(a, b): f"size {f.IntTrueDiv(a, b)} is not supported",
        sympy.Float(1 / 3) * a: f"size {sympy.Float(1 / 3)} is not supported",
        sympy.sin(a): "size sin(a) is not supported",
        u + 1: "size u0 depends on the elements of a tensor in a way that is not supported",
    }
    for term, message in wrong.items():
        with pytest.raises(UnsupportedNodeError) as caught:
            sizes().of(term)
        assert str(caught.value) == message, term


def test_a_size_that_data_decide_is_given_once(t: Any) -> None:
    import sympy

    class Size:
        """A torch.SymInt: what is read of it."""

        def __init__(self, expr: Any) -> None:
            self.node = type("Node", (), {"expr": expr})()

    known, counted = sizes(), Size(sympy.Symbol("u0"))
    assert known.give(7, 7) is None
    assert known.give(Size(sympy.Symbol("a")), 3) is None
    assert known.give(Size(sympy.Symbol("u0") + 1), 3) is None
    assert known.give(counted, 5) == "u0"
    assert known.give(counted, 6) is None
    assert known.dim(Size(sympy.Symbol("u0") + 1)) == 6
