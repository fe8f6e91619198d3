"""Ops on numbers, on no elements and with fractions where integers are wanted, against torch."""

from __future__ import annotations

from typing import Any

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
    check({"selected": lambda x, mask: t.masked_select(x, mask)}, [x, mask])
    module = module_of({"selected": lambda x, mask: t.masked_select(x, mask)}, 2)
    ran = aot.load(aot.compile(module, (x, mask), targets=["host"]), device="cpu")
    found = ran(x, mask)["selected"]
    assert t.equal(t.as_tensor(found), t.masked_select(x, mask))
