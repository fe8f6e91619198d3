"""The table of rules: each builds what its sample says, and computes what the graph means."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import aot.ops  # noqa: F401
from aot.errors import CompileError
from aot.ir.graph import Function, Module
from aot.ir.record import REGISTRY
from aot.ir.text.parser import parse_module
from aot.ir.text.printer import print_module
from aot.kernels import lowering
from aot.kernels.ir.fingerprint import fingerprint
from aot.kernels.match.work import Build, Work
from aot.kernels.rules import table
from aot.kernels.rules.rule import Rule
from aot.target import selection as targets
from tests.support.executables import NATIVE, STRONGEST
from tests.support.kernel_backends import on_cpu, on_driver, on_qemu
from tests.support.lowering_checks import Engine, on_interpreter
from tests.support.random_kernels import kernels_of
from tests.support.rule_samples import SAMPLES, RuleSample
from tests.support.vulkan_device import DRIVERS

ARM = "aarch64-generic"
CASES = [
    pytest.param(sample, target, id=f"{sample}-{target}")
    for sample in SAMPLES
    for target in sample.targets
]


def check(sample: RuleSample, target: str, engine: Engine) -> None:
    sample.check(target, engine, alignment=sample.alignment, rules=(sample.rule,))


@pytest.mark.parametrize(("sample", "target"), CASES)
def test_the_rule_of_a_sample_builds_it(sample: RuleSample, target: str) -> None:
    """It is verified, computes what the graph means, and is right on the interpreter."""
    check(sample, target, on_interpreter)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_natively(sample: RuleSample) -> None:
    for target in set(STRONGEST) | set(NATIVE):
        if target in sample.targets:
            check(sample, target, on_cpu(target))


@pytest.mark.qemu
@pytest.mark.parametrize("sample", [s for s in SAMPLES if ARM in s.targets], ids=str)
def test_on_arms(sample: RuleSample) -> None:
    """Under QEMU."""
    check(sample, ARM, on_qemu(ARM))


@pytest.mark.parametrize("driver", sorted(DRIVERS))
def test_on_drivers(driver: str) -> None:
    engine = on_driver(driver)
    for sample in SAMPLES:
        if "vulkan-1.1" in sample.targets:
            check(sample, "vulkan-1.1", engine)


def test_every_rule_has_a_sample() -> None:
    """Of its own, or of the op that it is for."""
    own = {sample.rule for sample in SAMPLES}
    names = {rule.name for rule in table.RULES}
    assert names <= own
    of_ops = {rule.name: rule for rule in table.OP_RULES}
    for name in of_ops.keys() - own:
        rule = of_ops[name]
        records = [r for r in REGISTRY.values() if rule.kind is r.kind and rule.record in (None, r)]
        kernels = kernels_of(records[0], records[0].samples[0], targets.load("x86-64-v3"))
        assert name in {built for made in kernels for built in made.kernel.rules}


def test_names_say_where_rules_stand() -> None:
    names = [rule.name for rule in (*table.RULES, *table.OP_RULES)]
    assert len(set(names)) == len(names)
    built: dict[str, Any] = {rule.name: rule.match for rule in table.RULES}
    built |= {rule.name: rule.build for rule in table.OP_RULES}
    for name, function in built.items():
        folder = name.split("/")[0]
        assert function.__module__.startswith(f"aot.kernels.rules.{folder}."), name


def test_each_line_of_the_table_says_why_it_stands_there() -> None:
    text = Path(table.__file__).read_text(encoding="utf-8")
    lines = text[text.index("RULES: tuple") : text.index("OP_RULES: tuple")].splitlines()
    why = 0
    for line in lines[1:]:
        why = 2 if line.strip().startswith("#") else why - line.strip().startswith("Rule(")
        assert why >= -1, line  # a comment may be of three rules of one kind


def test_a_rule_that_does_not_match_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are the same whether a rule is recorded, or others were asked before it."""
    failed = []

    def watched(rule: Rule) -> Rule:
        def match(work: Work) -> Build | None:
            builder = work.nest.builder
            before = len(builder.scratches), dict(builder._names)
            found = rule.match(work)
            if found is None and before != (len(builder.scratches), builder._names):
                failed.append(rule.name)
            return found

        return replace(rule, match=match)

    monkeypatch.setattr(lowering, "RULES", tuple(map(watched, table.RULES)))
    for sample in SAMPLES:
        for target in sample.targets:
            lowering.lower(sample.function(), targets.load(target))
    samples = [(record, s) for record in REGISTRY.values() for s in record.samples]
    for target in ("x86-64-v3", "vulkan-1.1"):
        made = (kernels_of(record, s, targets.load(target)) for record, s in samples)
        assert sum(1 for _ in chain.from_iterable(made)) > 300
    assert failed == []


@pytest.mark.parametrize(("sample", "target"), CASES)
def test_a_recorded_rule_is_printed_and_obeyed(sample: RuleSample, target: str) -> None:
    function, machine = sample.function(), targets.load(target)
    known = [sample.alignment] * len(function.bindings)
    function.schedule = lowering.schedule_of(function, machine)
    kernel = lowering.lower(function, machine, known)
    function.schedule = lowering.recorded(function, kernel)
    text = print_module(Module([function]))
    assert f'by "{sample.rule}"' in text
    (again,) = parse_module(text).executables
    assert again.schedule == function.schedule
    assert fingerprint(lowering.lower(again, machine, known)) == fingerprint(kernel)


def _with_rule(rule: str) -> Function:
    (function,) = parse_module(
        f'''executable @e0(%0: f32[7, 5]) -> ("y") bindings [2, 3]
        schedule [elementwise lanes=8 by "{rule}"] {{
          %r = abs(%0) : f32[7, 5]
          return(%r)
        }}'''
    ).executables
    return function


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("elementwise/lane", "there is no rule elementwise/lane, did you mean elementwise/lanes"),
        ("products/tiles", "the recorded rule products/tiles builds no such kernel for x86-64-v3"),
        ("elementwise/words", "the recorded rule elementwise/words builds no such kernel"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused_by_name(rule: str, message: str) -> None:
    with pytest.raises(CompileError, match=f"executable e0, abs .*{message}"):
        lowering.lower(_with_rule(rule), targets.load("x86-64-v3"))


def test_a_rule_of_another_op_is_refused_by_name() -> None:
    (function,) = parse_module(
        """executable @e0(%0: f32[5, 40]) -> ("y") bindings [2, 3]
        schedule [lines lanes=8 by "lines/sort"] {
          %r = scan(%0) { axis = 1, combine = "sum" } : f32[5, 40]
          return(%r)
        }"""
    ).executables
    message = "e0, scan: the recorded rule lines/sort builds no such kernel, only lines/scan does"
    with pytest.raises(CompileError, match=message):
        lowering.lower(function, targets.load("x86-64-v3"))
