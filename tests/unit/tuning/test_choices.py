"""Choices that are measured: all of them give different kernels."""

from __future__ import annotations

import pytest

import aot.ops  # noqa: F401
from aot.analysis.cost.candidates import Choice, candidates, runs_of, schedule_with
from aot.ir.clone import clone_function
from aot.ir.graph import Function
from aot.ir.record import REGISTRY
from aot.ir.text.parser import parse_module
from aot.kernels.ir.fingerprint import fingerprint
from aot.kernels.lowering import lower
from aot.target import selection as targets
from aot.target.model import Target
from aot.tuning.tuner import MOST, different
from tests.support.random_kernels import module_of

TARGETS = ("x86-64-v3", "x86-64-v4", "aarch64-generic", "armv7-neon", "wasm32", "vulkan-1.1")
OPS = ("conv", "matmul", "conv_integer", "matmul_integer", "max_pool", "average_pool")
CONV = """
executable @e0(%x: f32[1,64,28,28], %w: f32[64,CHANNELS,3,3]) -> ("y")
  bindings [2, 0, 3] {
  %1 = conv(%x, %w) { strides=[1,1], dilations=[1,1], pads=[1,1,1,1], group=GROUPS }
    : f32[1,64,28,28]
  return(%1)
}
func @main(%x: f32[1,64,28,28], %w: f32[64,CHANNELS,3,3]) -> ("y") {
  %1 = dispatch(%x, %w) { executable=@e0, dims=[], ties=[] } : f32[1,64,28,28]
  return(%1)
}
"""


def kernel(function: Function, choice: Choice, target: Target) -> bytes:
    made = clone_function(function)
    made.schedule = schedule_with(function, choice, target)
    return fingerprint(lower(made, target))


@pytest.mark.parametrize("target", TARGETS)
def test_choices_of_samples_give_different_kernels(target: str) -> None:
    machine, several = targets.load(target), 0
    for record in (REGISTRY[op] for op in OPS):
        for sample in record.samples:
            module = module_of(record, sample)
            runs = {} if module is None else runs_of(module)
            for function in () if module is None else module.executables:
                own = runs[function.name]
                given = candidates(function, own, machine, has_winograd=True)
                kept = different(function, given, machine, MOST)
                assert kept[0] == given[0], "the plan's own comes first"
                assert len({kernel(function, c, machine) for c in kept}) == len(kept)
                several += len(kept) > 1
    assert several


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64-generic"])
def test_a_rule_with_tiles_of_its_own_has_no_choice(target: str) -> None:
    """Depthwise convolutions over planes go by lines, whatever tile the plan has."""
    (function,) = parse_module(CONV.replace("CHANNELS", "1").replace("GROUPS", "64")).executables
    machine = targets.load(target)
    module = parse_module(CONV.replace("CHANNELS", "1").replace("GROUPS", "64"))
    given = candidates(function, runs_of(module)["e0"], machine, has_winograd=False)
    assert len(given) > 5
    assert different(function, given, machine, MOST) == given[:1]
