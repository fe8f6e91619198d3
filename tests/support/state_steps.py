"""Modules with kept state against those with the same values as inputs and outputs, run by run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from aot.ir.dims import evaluate, symbols
from aot.ir.graph import Function, Module
from aot.ir.interpreter.interpreter import run
from aot.ir.interpreter.memory import States
from aot.ir.states import state_variables
from tests.support.graphs import random_array

Array = np.ndarray[Any, Any]
Ties = Mapping[str, tuple[str, int]]


def first_past(function: Function, name: str) -> Array:
    """Zeros of an input's type; nothing along a dim that is open."""
    type = next(v.type for v in function.inputs if v.name == name)
    return np.zeros([d if isinstance(d, int) else 0 for d in type.dims], type.dtype.numpy)


def _extents(function: Function, lengths: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Small extents of the inputs' symbols that satisfy what the function assumes."""
    names = {n for v in function.inputs for d in v.type.dims for n in symbols(d)}
    open_names = sorted(names - lengths.keys())
    for numbers in product(range(1, 7), repeat=len(open_names)):
        values = {**lengths, **dict(zip(open_names, numbers, strict=True))}
        if all(evaluate(a.left, values) == evaluate(a.right, values) for a in function.assumptions):
            yield values


def check_steps(before: Module, after: Module, ties: Ties, steps: int = 3) -> None:
    """Whether `after`, which keeps states, gives what `before` gives that is handed them."""
    function, states = after.main, States()
    past = {name: first_past(before.main, name) for name in ties}
    for step in range(steps):
        lengths = {
            str(v.length): states[v.name].length if v.name in states else 0
            for v in state_variables(function)
            if v.length is not None
        }
        values = next(_extents(function, lengths))
        rng = np.random.default_rng(step)
        given = {v.name: random_array(v.type, values, rng) for v in function.inputs}
        wanted = run(before.main, {**given, **past}, module=before)
        found = run(function, given, module=after, states=states)
        expected = dict(zip(before.main.result_names, wanted, strict=True))
        for name, array in zip(function.result_names, found, strict=True):
            np.testing.assert_array_equal(array, expected[name], err_msg=f"{name}, step {step}")
        past = {name: expected[output] for name, (output, _) in ties.items()}
