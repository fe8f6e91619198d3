"""Which loops of a kernel are written out, and which ones a driver is asked to keep."""

from __future__ import annotations

import pytest

from aot.backends.vulkan.placement import place
from aot.ir.builder import Builder
from aot.kernels.lowering import lower
from aot.passes.base import PassContext, run_passes
from aot.passes.fusion.fuse import FUSE
from aot.passes.fusion.outline import OUTLINE
from aot.passes.fusion.tie_operands import TIE_OPERANDS
from aot.target import selection as targets


@pytest.mark.parametrize(
    ("op", "attrs", "kept"),
    [
        ("top_k", {"axis": 1, "k": 20}, True),
        ("reduce_sum", {"axes": [1]}, False),
        ("scan", {"axis": 1}, False),
    ],
)
def test_levels_of_a_heap_stay_a_loop(op: str, attrs: dict[str, object], kept: bool) -> None:
    """A driver that writes them out takes eight times as long to compile the shader, which then
    runs half as fast on lavapipe."""
    machine, b = targets.load("vulkan-1.1"), Builder()
    made = b.op(op, b.input("x", "f32[8, 100]"), **attrs)
    b.output("y", made[0] if isinstance(made, tuple | list) else made)
    module = b.module()
    run_passes(module, (FUSE, TIE_OPERANDS, OUTLINE), PassContext(target=machine))
    (function,) = (f for f in module.executables if any(o.name == op for o in f.block))
    assert machine.gpu is not None
    loops = place(lower(function, machine), machine.gpu).kept_loops
    assert any(loop.var.name.startswith("level") for loop in loops) == kept
    assert bool(loops) == kept
