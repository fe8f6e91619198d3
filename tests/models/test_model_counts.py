"""Dispatches and executables of every reference model, pinned: what a change costs or saves shows.

Counts come from the passes alone, at the shapes of each model's first run, and the arena from the
program, which needs kernels and no code. `pytest --bless` rewrites tests/golden/model-counts.txt.
"""

from __future__ import annotations

import pytest

from aot.analysis.alias.database import count_alias
from aot.backends.cpu.scratch import scratch_bytes
from aot.driver.pipeline import read_model
from aot.ir.graph import Module
from aot.kernels.lowering import lower
from aot.link.emit_program import Entry, emit_program
from aot.link.rodata import RodataPool
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target import selection as targets
from aot.target.model import Target
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


def counts(name: str, module: Module, context: PassContext) -> str:
    dispatches = sum(op.name == "dispatch" for op in module.main.walk())
    structural = context.statistics["outline"]["kept"]
    return f"{name}: {dispatches} dispatches, {structural} equal, {len(module.executables)} kept"


def arena(module: Module, target: Target) -> tuple[int, int]:
    """Bytes of the arena, and of what lives at once beside the scratch of a worker."""
    kernels = {f.name: (f, lower(f, target)) for f in module.executables}
    entries = {
        name: Entry(number, k.grid, f.dim_names, scratch_bytes(k, target))
        for number, (name, (f, k)) in enumerate(kernels.items())
    }
    program = emit_program(module.main, entries, RodataPool())
    scratch = max((entry.scratch_bytes for entry in entries.values()), default=0)
    return program.arena_bytes, program.lower_bound_bytes + scratch


@pytest.mark.parametrize("name", MODELS)
def test_counts(name: str, bless: bool) -> None:
    """And the arena is near what lives at once: alignment and gaps add a tenth at most."""
    module, context = passed(name)
    found = counts(name, module, context)
    assert context.target is not None
    arena_bytes, lower_bound_bytes = arena(module, context.target)
    assert arena_bytes <= 1.1 * lower_bound_bytes
    lines = GOLDEN.read_text().splitlines() if GOLDEN.exists() else []
    known = {line.partition(":")[0]: line for line in lines}
    if bless:
        known[name] = found
        GOLDEN.write_text("".join(f"{known[n]}\n" for n in MODELS if n in known))
        return
    assert found == known[name]
