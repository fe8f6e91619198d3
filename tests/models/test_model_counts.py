"""Dispatches and executables of every reference model, pinned: what a change costs or saves shows.

Counts come from the passes alone, at the shapes of each model's first run. `pytest --bless`
rewrites tests/golden/model-counts.txt.
"""

from __future__ import annotations

import pytest

import aot
from aot.analysis.alias.database import count_alias
from aot.driver.pipeline import read_model
from aot.ir.graph import Module
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target import selection as targets
from tests.support.models import MODELS, feeds, model_path
from tests.support.paths import GOLDEN as GOLDEN_FOLDER

pytestmark = [pytest.mark.models, pytest.mark.slow]

GOLDEN = GOLDEN_FOLDER / "model-counts.txt"
TARGET = "x86-64-v4"


def passed(name: str) -> tuple[Module, PassContext]:
    """The model after all passes."""
    shapes = {k: a.shape for k, a in feeds(name).items()}
    options = CompileOptions(targets=(TARGET,), input_shapes=shapes)
    module = read_model(str(model_path(name)), options)  # binds what it is told to
    options = CompileOptions(targets=(TARGET,))
    context = PassContext(options, targets.load(TARGET))
    with count_alias() as alias:
        run_passes(module, MODEL_PASSES, PassContext(options))
        run_passes(module, TARGET_PASSES, context)
    assert (alias.builds, alias.solves) == (len(module.entry_points), 0)
    return module, context


def counts(name: str) -> str:
    module, context = passed(name)
    dispatches = sum(op.name == "dispatch" for op in module.main.walk())
    structural = context.statistics["outline"]["kept"]
    return f"{name}: {dispatches} dispatches, {structural} equal, {len(module.executables)} kept"


@pytest.mark.parametrize("name", MODELS)
def test_counts(name: str, bless: bool) -> None:
    found = counts(name)
    lines = GOLDEN.read_text().splitlines() if GOLDEN.exists() else []
    known = {line.partition(":")[0]: line for line in lines}
    if bless:
        known[name] = found
        GOLDEN.write_text("".join(f"{known[n]}\n" for n in MODELS if n in known))
        return
    assert found == known[name]


@pytest.mark.parametrize("name", MODELS)
def test_the_arena_is_near_what_lives_at_once(name: str) -> None:
    """Scratch, alignment and gaps add a tenth at most."""
    shapes = {k: a.shape for k, a in feeds(name).items()}
    module = aot.compile(model_path(name), targets=[TARGET], input_shapes=shapes)
    (section,) = module.stats["variants"]
    assert section["arena_bytes"] <= 1.1 * section["arena_lower_bound_bytes"]
