"""What a reduction's passes would compute again is computed there or stored, whichever costs less,
and both prices are told."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.tools.explain_fusion import explain_fusion, format_fusion
from tests.support.random_graphs import difference

PRICES = re.compile(
    r"in (\d+) passes over a row an element costs (\d+) computed there, (\d+) stored and loaded"
)
SHORT, LONG = 500, 40_000  # a row that scratch holds, and one that it doesn't


def graph(ops: int, columns: int | str, op: str = "softmax") -> Module:
    b = Builder()
    x = b.input("x", f"f32[3, {columns}]")
    for n in range(ops):
        x = b.op(("neg", "relu", "abs")[n % 3], x)
    if op == "softmax":
        y = b.op("softmax", x, axis=1)
    else:
        y = b.op("reduce_sum", x, axes=(1,), keepdims=True)
    b.output("y", y)
    return b.module()


def regions(module: Module, target: str = "x86-64-v3") -> list[dict[str, Any]]:
    found = explain_fusion(module, targets=(target,), disable=("join-regions",))
    return found["variants"][0]["entry_points"][0]["regions"]


@pytest.mark.parametrize("columns", [SHORT, LONG, "M"])
@pytest.mark.parametrize("ops", [1, 2, 3, 12])
def test_the_lower_price_is_paid(ops: int, columns: int | str) -> None:
    found = regions(graph(ops, columns))
    last = found[-1]
    text = [*last["weighed"], *(why for read in last["reads"] for why in read["why"])]
    ((passes, inline, apart),) = [m.groups() for m in map(PRICES.search, text) if m]
    assert int(passes) == 3
    assert len(found) == (1 if int(inline) <= int(apart) else 2)
    assert int(apart) == 1 + ops + 2 + 3
    kept, redone = 1 + ops + 1 + 2, 3 * (1 + ops)
    assert int(inline) == (min(kept, redone) if columns == SHORT else redone)


def test_a_single_pass_computes_nothing_twice() -> None:
    (found,) = regions(graph(12, LONG, "reduce_sum"))
    assert found["weighed"] == []


def test_both_prices_are_printed() -> None:
    text = format_fusion(explain_fusion(graph(3, SHORT), targets=("x86-64-v3",)))
    assert text.splitlines()[-1] == (
        "   takes in neg: in 3 passes over a row an element costs 7 computed there, 9 stored and "
        "loaded"
    )


@pytest.mark.parametrize(("ops", "columns"), [(1, 40_000), (3, 40_000), (12, 300)])
def test_values(ops: int, columns: int) -> None:
    module = graph(ops, columns)
    x: Any = np.random.default_rng(0).standard_normal((3, columns)).astype(np.float32)
    expected = run(module.main, {"x": x})
    with aot.load(aot.compile(module, targets=["host"])) as program:
        found = list(program({"x": x}).values())
    assert not difference(module.main, {"x": x}, expected, found)
