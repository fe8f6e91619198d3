"""Dims as instructions: what registers hold is what the dims are, in few instructions."""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence
from itertools import accumulate

from aot.ir import dims
from aot.ir.dims import Dim, Symbol, symbol
from aot.link.emitter import LONG_SUM, Emitter
from aot.link.program import constant_value, decode

_COMPUTED = {"ADD": operator.add, "MUL": operator.mul, "FLOORDIV": operator.floordiv}


def emitted(wanted: Sequence[Dim], values: dict[str, int]) -> tuple[list[int], int]:
    """What the registers of dims hold after their instructions, and how many these are."""
    emitter = Emitter()
    registers: dict[int, int] = {}
    for name, value in values.items():
        emitter.known[Symbol(name)] = emitter.register()
        registers[emitter.known[Symbol(name)]] = value
    places = [emitter.dim(dim) for dim in wanted]
    count = 0
    for step in decode(emitter.words):
        count += 1
        made, *rest = step.operands
        if step.name == "CONST":
            registers[made] = constant_value(*rest)
        else:
            registers[made] = _COMPUTED[step.name](*(registers[r] for r in rest))
    return [registers[place] for place in places], count


def test_the_places_of_many_parts_are_linear_work() -> None:
    values = {f"n{n}": 3 * n + 1 for n in range(400)}
    parts = [symbol(name) for name in values]
    sums = list(accumulate(parts, dims.add))
    found, count = emitted(sums, values)
    assert found == list(accumulate(values.values()))
    assert count < 2 * len(parts) + LONG_SUM**2


def test_any_sums_one_after_another() -> None:
    """That are near each other, or not at all."""
    rng = random.Random(5)
    values = {f"n{n}": rng.randrange(1, 99) for n in range(60)}
    wanted: list[Dim] = []
    for _ in range(80):
        names = rng.sample(list(values), rng.choice((3, 17, 18, 40, 59, 60)))
        total: Dim = rng.randrange(-2, 3)
        for name in names:
            term = dims.multiply(symbol(name), rng.choice((1, 1, 1, 2)))
            total = dims.add(total, term)
        wanted += [total, dims.floor_divide(total, 4), dims.add(total, symbol("n7"))]
        rest = dims.add(total, dims.multiply(symbol(names[0]), -1))
        wanted.append(dims.add(rest, rng.randrange(5)))
    found, _ = emitted(wanted, values)
    assert found == [dims.evaluate(dim, values) for dim in wanted]
