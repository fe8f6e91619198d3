"""Each graph pass on tiny inputs: exact text, valid IR, and the same results as before."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.analysis.cost.candidates import Choice, Run
from aot.analysis.tuning import Tuning
from aot.errors import CompileError, UnsupportedError
from aot.frontends.text import import_text
from aot.ir.graph import Function, Module
from aot.ir.text.printer import print_module
from aot.ir.types import DType
from aot.ir.verifier import verify
from aot.options import CompileOptions
from aot.passes.base import Pass, PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.records import dataclass
from aot.switches import Switches
from aot.target import selection as target
from aot.target.model import Target
from tests.support.golden import Case, case_id, cases, check_case
from tests.support.graphs import assert_same_results
from tests.support.state_steps import check_steps

PASSES: dict[str, Pass] = {p.name: p for p in (*MODEL_PASSES, *TARGET_PASSES)}
GROUPS = tuple(PASSES)


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
    check_results(before, module, context, float(case.one("tolerance", "0")))
    return print_module(module, elide_blobs=True)


def check_results(before: Module, after: Module, context: PassContext, tolerance: float) -> None:
    if context.options.states:
        check_steps(before, after, context.options.states)
        return
    types = {v.name: v.type for v in before.main.inputs}
    fixed: dict[str, Any] = {}
    for name, value in context.options.input_values.items():
        array = np.asarray(value, types[name].dtype.numpy)
        fixed[name] = np.full(types[name].shape, array) if array.ndim == 0 else array
    assert_same_results(before, after, fixed=fixed, tolerance=tolerance)


@pytest.mark.parametrize("path", [p for g in GROUPS for p in cases(f"passes/{g}")], ids=case_id)
def test_golden(path: Path, bless: bool) -> None:
    check_case(path, run_case, bless=bless)


@pytest.mark.parametrize("group", GROUPS)
def test_every_pass_has_cases(group: str) -> None:
    assert cases(f"passes/{group}")
