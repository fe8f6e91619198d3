"""Each graph pass on tiny inputs: exact text, valid IR, and the same results as before."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.analysis.cost.candidates import Choice, Run
from aot.analysis.tuning import Tuning
from aot.base.records import dataclass
from aot.builder import Builder
from aot.errors import CompileError, UnsupportedError
from aot.frontends.text import import_text
from aot.ir.graph import Function, Module, Value
from aot.ir.text.printer import print_module
from aot.ir.types import DType
from aot.ir.verifier import verify
from aot.options import CompileOptions
from aot.passes.base import Pass, PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.passes.quantise import narrow_storage
from aot.switches import Switches
from aot.target import selection as target
from aot.target.model import Target
from tests.support.golden import Case, case_id, cases, check_case
from tests.support.graphs import (
    HALVES,
    SPECIAL,
    assert_same_results,
    random_inputs,
    special_inputs,
)
from tests.support.state_steps import check_steps

PASSES: dict[str, Pass] = {p.name: p for p in (*MODEL_PASSES, *TARGET_PASSES)}
GROUPS = tuple(PASSES)
SEEDS = 3


def make_context(case: Case) -> PassContext:
    shapes: dict[str, tuple[int | str | None, ...]] = {}
    for item in case.settings.get("input-shape", []):
        name, _, dims = item.partition("=")
        shapes[name] = tuple(int(d) if d.lstrip("-").isdecimal() else d for d in dims.split("x"))
    values = {
        item.partition("=")[0]: json.loads(item.partition("=")[2])
        for item in case.settings.get("input-value", [])
    }
    states: dict[str, tuple[str, int]] = {}
    for item in case.settings.get("state", []):
        name, _, output = item.partition("=")
        output, _, capacity = output.partition(":max=")
        states[name] = (output, int(capacity or 0))
    options = CompileOptions(
        input_shapes=shapes,
        input_values=values,
        states=states,
        optimize=case.one("optimize", "balanced"),
        storage=case.one("storage", "fp32"),
        arithmetic=case.one("arithmetic", "fp32"),
    )
    lacks = {DType(name) for name in case.one("lacks").split()}
    everything = tuple(d for d in DType if d.is_stored and d not in lacks)
    base = target.load(case.one("target", "x86-64-v2"))
    features = (*base.features, *case.one("features").split())
    device = dataclasses.replace(base, name="test", dtypes=everything, features=features)
    told = dict(item.split("=") for item in case.settings.get("tune", []))
    return PassContext(
        options,
        device,
        Switches(is_verifying_each=True),
        tuning=Told("", dict.fromkeys(told, Choice(())), told),
    )


@dataclass(frozen=True)
class Told(Tuning):
    """Choices of executables by name: "4x16", "winograd 8x8"."""

    told: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def find(self, function: Function, runs: Sequence[Run], target: Target) -> Choice | None:
        text = self.told.get(function.name)
        if text is None:
            return None
        tiles = [word.split("x") for word in text.split() if word[0].isdigit()]
        way = "".join(word for word in text.split() if not word[0].isdigit())
        return Choice(tuple((int(rows), int(columns)) for rows, columns in tiles), way)


def run_case(case: Case) -> str:
    before, module = (import_text(case.before) for _ in range(2))
    steps = [PASSES[name.strip()] for name in case.one("passes").split(",")]
    context = make_context(case)
    try:
        run_passes(module, steps, context)
    except (CompileError, UnsupportedError) as error:
        return "".join(f"# error: {line}\n" for line in str(error).splitlines())
    verify(module)
    tolerance = float(case.one("tolerance", "0"))
    check_results(before, module, context, tolerance, is_special="finite" not in case.settings)
    return print_module(module, elide_blobs=True)


def check_results(
    before: Module, after: Module, context: PassContext, tolerance: float, *, is_special: bool
) -> None:
    """Compares what a module computes before and after passes, on numbers by chance, on halves and
    zeros of both signs, and on NaN and infinities if `is_special`."""
    if context.options.states:
        check_steps(before, after, context.options.states)
        return
    types = {v.name: v.type for v in before.main.inputs}
    fixed: dict[str, Any] = {}
    for name, value in context.options.input_values.items():
        array = np.asarray(value, types[name].dtype.numpy)
        fixed[name] = np.full(types[name].shape, array) if array.ndim == 0 else array
    function = after.main
    tried = [random_inputs(function, seed) for seed in range(SEEDS)]
    for numbers in (HALVES, *([SPECIAL] if is_special else [])):
        tried += [special_inputs(function, numbers, seed) for seed in range(SEEDS)]
    for inputs in tried:
        assert_same_results(before, after, inputs, fixed=fixed, tolerance=tolerance)


@pytest.mark.parametrize("path", [p for g in GROUPS for p in cases(f"passes/{g}")], ids=case_id)
def test_golden(path: Path, bless: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow_storage, "LEAST_SAVED", 0)  # cases are small
    check_case(path, run_case, bless=bless)


@pytest.mark.parametrize("group", GROUPS)
def test_every_pass_has_cases(group: str) -> None:
    assert cases(f"passes/{group}")


def _through(names: str) -> Callable[[Builder, Value], Value]:
    def made(b: Builder, x: Value) -> Value:
        for name in names.split():
            found = b.op(name, x)
            assert isinstance(found, Value)
            x = found
        return x

    return made


def _module(made: Callable[[Builder, Value], Value]) -> Module:
    b = Builder()
    b.output("y", made(b, b.input("x", "f32[N, M]")))
    return b.module()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (_through("floor sqrt ceil"), _through("floor")),  # on numbers below 2
        (_through("round"), lambda b, x: b.op("floor", b.op("add", x, 0.5))),  # but for halves
        (_through("abs"), _through("relu")),  # where nothing is negative
        (lambda b, x: b.op("sub", x, x), _through("abs neg relu")),  # but for infinities
        (_through("neg neg"), lambda b, x: b.op("add", x, 0.0)),  # but for -0
        (_through("tanh"), lambda b, x: b.op("minimum", b.op("tanh", x), 0.9999)),  # up to 4
        (
            lambda b, x: b.op("reshape", x, shape=x.type.dims[::-1]),
            lambda b, x: b.op("transpose", x, perm=(1, 0)),  # of a row
        ),
    ],
)
def test_a_pass_that_computes_something_else_is_found(
    right: Callable[[Builder, Value], Value], wrong: Callable[[Builder, Value], Value]
) -> None:
    context = PassContext(CompileOptions(), target.load("x86-64-v2"))
    check_results(_module(right), _module(right), context, 0.0, is_special=True)
    with pytest.raises(AssertionError, match="result 0"):
        check_results(_module(right), _module(wrong), context, 0.0, is_special=True)
