"""Prices of kernels: counted by hand where loops are small, and compared where they are not."""

from __future__ import annotations

import pytest

from aot.analysis.stages import planned
from aot.ir.graph import Function
from aot.ir.text.parser import parse_module
from aot.kernels.alternatives import alternatives
from aot.kernels.lowering import lower, rules_of
from aot.kernels.price.cycles import cycles_of
from aot.kernels.rules.table import RULES
from aot.target.selection import load
from tests.support.rule_samples import SAMPLES, RuleSample

X86 = load("x86-64-v3")
CASES = [(sample, target) for sample in SAMPLES for target in sample.targets]


def executable(inputs: str, op: str, bindings: str = "[2, 3]") -> Function:
    text = f'executable @e0({inputs}) -> ("y") bindings {bindings} {{ %r = {op}\nreturn(%r) }}'
    (function,) = parse_module(text).executables
    return function


def price(inputs: str, op: str, bindings: str = "[2, 3]") -> float:
    return cycles_of(lower(executable(inputs, op, bindings), X86), X86)


def test_what_is_counted() -> None:
    """A vector of eight: a load, a subtraction and a store, none of which is in a loop."""
    assert price("%0: f32[8]", "neg(%0) : f32[8]") == 1.0
    # 128 of them: a store a turn is what takes longest, beside the loop's own start
    assert price("%0: f32[1024]", "neg(%0) : f32[1024]") == pytest.approx(128 * 1.25 + 6, rel=0.01)


def test_what_is_dear() -> None:
    plain = price("%0: f32[4096]", "neg(%0) : f32[4096]")
    assert price("%0: f32[4096]", "tanh(%0) : f32[4096]") > 4 * plain
    # columns of a plane that is larger than a cache, where lines are far apart
    rows = price("%0: f32[512, 512]", "reduce_sum(%0) {axes = [1]} : f32[512, 1]")
    turned = "transpose(%0) {perm = [1, 0]} : f32[512, 512]"
    assert price("%0: f32[512, 512]", turned) > rows


@pytest.mark.parametrize("op", ["exp(%0)", "add(%0, %0)"])
def test_twice_as_much_takes_twice_as_long(op: str) -> None:
    few, many = (price(f"%0: f32[{n}, 40]", f"{op} : f32[{n}, 40]") for n in (32, 64))
    assert 1.9 < many / few < 2.1


def test_open_extents_are_as_given() -> None:
    function = executable("%0: f32[N]", "exp(%0) : f32[N]")
    function.dim_names = ("N",)
    kernel = lower(function, X86)
    few, many = (cycles_of(kernel, X86, {"N": n}) for n in (1 << 14, 1 << 15))
    assert 1.9 < many / few < 2.1


@pytest.mark.parametrize(
    ("sample", "target"), CASES, ids=[f"{s.rule}-{target}" for s, target in CASES]
)
def test_alternatives_of_rules(sample: RuleSample, target: str) -> None:
    """They are other kernels by other rules, each with a price; the fallback is no bargain."""
    machine = load(target)
    function = sample.function()
    function.schedule = planned(function, machine)
    aligned = (sample.alignment,) * (len(function.inputs) + 1)
    found = alternatives(function, machine, None, aligned)
    own = cycles_of(lower(function, machine, aligned), machine)
    assert own > 0 and all(a.cycles > 0 for a in found)
    assert len({a.rule for a in found}) == len(found)
    names = [rule.name for rule in RULES]
    for other in found:
        assert names.index(other.rule) > names.index(sample.rule)
        assert rules_of(other.function, machine)[other.nest] == other.rule
    last = [a.cycles for a in found if a.rule == names[-1]]
    assert all(own < 4 * cycles for cycles in last)
