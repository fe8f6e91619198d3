"""What layout assignment leaves of real models: which movements are left, and where."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aot.analysis.cost.layout_costs import innermost
from aot.analysis.memory.views import is_view
from aot.driver.pipeline import read_model
from aot.ir.graph import Function, Op
from aot.ops.contraction import CONV
from aot.ops.structure import REGION
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target import selection as targets
from tests.support import golden, models

pytestmark = pytest.mark.models

NAMES = ("resnet50_rw", "yolov8n_320", "ppocr_det")
# they only bring elements into another order
MOVES = ("copy", "pack", "transpose", "reshape")


def compiled(name: str, target: str) -> Function:
    """The model's function, in regions."""
    options = CompileOptions()
    module = read_model(str(models.model_path(name)), options)
    context = PassContext(options, targets.load(target))
    names = [step.name for step in TARGET_PASSES]
    run_passes(module, (*MODEL_PASSES, *TARGET_PASSES[: names.index("outline")]), context)
    return module.main


def moves(function: Function) -> Iterator[str]:
    """A line for each movement that is no view."""
    for op in function.block:
        ops = list(op.blocks[0]) if op.record is REGION else [op]
        work = [o for o in ops if not o.record.is_terminator]
        for inner in work:
            if inner.name in MOVES and not is_view(inner):
                source = inner.operands[0]
                assert source is not None
                others = ", ".join(o.name for o in work if o is not inner)
                place = f"with {others}" if others else "alone"
                yield f"  {inner.name}: {source.type} -> {inner.result.type}, {place}"


def convolutions(function: Function) -> list[Op]:
    return [op for op in function.walk() if op.record is CONV]


def summary(function: Function) -> str:
    """How many convolutions store channels side by side, and what moves without computing."""
    made = convolutions(function)
    last = sum(1 for op in made if innermost(op.result.type) == 1)
    found = "".join(f"{line}\n" for line in moves(function)) or "  none\n"
    return f"convolutions: {len(made)}, with channels last: {last}\nmovements left:\n{found}"


@pytest.mark.parametrize("target", ["x86-64-v3", "vulkan-1.1"])
@pytest.mark.parametrize("name", NAMES)
def test_no_copy_changes_a_layout(name: str, target: str, bless: bool) -> None:
    found = summary(compiled(name, target))
    golden.check(f"layouts/{name}-{target}.txt", found, bless=bless)
