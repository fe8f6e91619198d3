"""Ops on numbers, on no elements and with fractions where integers are wanted, against torch."""

from __future__ import annotations

from typing import Any

import pytest

import aot
from tests.support.torch_modules import Functions, check, module_of


def test_gathers_of_other_ranks(t: Any) -> None:
    x, one = t.randn(5), t.tensor(1.5)
    functions: Functions = {
        "one position": lambda x, one: t.gather(x, 0, t.tensor(3)),
        "of a number": lambda x, one: t.gather(one, 0, t.tensor([0])),
        "number of a number": lambda x, one: t.gather(one, 0, t.tensor(0)),
        "no positions": lambda x, one: t.gather(x, 0, t.zeros(2, 0, dtype=t.int64)),
        "bytes": lambda x, one: t.gather(x.reshape(1, 5), 1, t.zeros(0, dtype=t.uint8)),
    }
    check(functions, [x, one])


def test_scatters_into_numbers(t: Any) -> None:
    one, two, x = t.tensor(1.5), t.tensor(2.5), t.randn(5)
    zero, three = t.tensor(0), t.tensor(3)
    functions: Functions = {
        "number": lambda one, two, x: t.scatter(one, 0, zero, two),
        "vector": lambda one, two, x: t.scatter(one, 0, t.tensor([0]), t.ones(1)),
        "added": lambda one, two, x: t.scatter_add(one, 0, zero, two),
        "one position": lambda one, two, x: t.scatter(x, 0, three, two),
        "constant": lambda one, two, x: t.scatter(x, 0, three, 4.0),
        "copied": lambda one, two, x: t.index_copy(one, 0, zero, two),
        "index added": lambda one, two, x: t.index_add(one, 0, t.tensor([0]), two, alpha=2),
        "filled": lambda one, two, x: t.index_fill(one, 0, zero, 7.0),
        "row copied": lambda one, two, x: t.index_copy(x, 0, three, two),
        "row filled": lambda one, two, x: t.index_fill(x, 0, three, two),
    }
    check(functions, [one, two, x])


def test_windows_of_a_number(t: Any) -> None:
    functions: Functions = {
        "one": lambda x: x.unfold(0, 1, 1),
        "none": lambda x: x.unfold(0, 0, 1),
    }
    check(functions, [t.tensor(2.5)])


def test_integer_ranges_of_fractions_count_in_integers(t: Any) -> None:
    functions: Functions = {
        "down": lambda x: x + t.arange(0.1, -7.9, -4.0, dtype=t.int64),
        "up": lambda x: x + t.arange(-0.9, 4.0, 2.7, dtype=t.int32),
        "floats": lambda x: x + t.arange(0.1, -7.9, -4.0),
    }
    check(functions, [t.tensor(1)])


def test_masked_select_bounds_what_the_mask_broadcasts(t: Any) -> None:
    x, mask = t.randn(4, 3), t.rand(5, 4, 3) > 0.2
    check({"selected": t.masked_select}, [x, mask])
    module = module_of({"selected": t.masked_select}, 2)
    ran = aot.load(aot.compile(module, (x, mask), targets=["host"]), device="cpu")
    found = ran(x, mask)["selected"]
    assert t.equal(t.as_tensor(found), t.masked_select(x, mask))


@pytest.mark.parametrize("value", [3.0, 0.0])
def test_places_of_a_number(t: Any, value: float) -> None:
    check({"places": t.nonzero, "chosen": lambda x: t.masked_select(x, x > 1)}, [t.tensor(value)])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
def test_places_where_there_is_no_element(t: Any, shape: tuple[int, ...]) -> None:
    functions: Functions = {
        "places": t.nonzero,
        "chosen": lambda x: x[x > 0],
        "selected": lambda x: t.masked_select(x, x > 0),
    }
    x = t.zeros(shape)
    check(functions, [x])
    ran = aot.load(aot.compile(module_of(functions, 1), (x,), targets=["host"]), device="cpu")
    assert {k: v.shape for k, v in ran(x).items()} == {k: f(x).shape for k, f in functions.items()}
