"""Each rule of canonicalize has a case where it applies; what docs show of passes holds."""

from __future__ import annotations

import dataclasses
import re

import pytest

from aot.frontends.text import import_text
from aot.ir.graph import Op, Value
from aot.ir.rewriter import Rewriter
from aot.ir.text.printer import print_module
from aot.passes.base import Pass, PassContext, run_passes
from aot.passes.quantise import moves
from aot.passes.simplify import algebra, canonicalize
from aot.passes.simplify.dce import DCE
from aot.passes.simplify.rewriting import Rule, RuleSet
from tests.support.golden import Case, cases
from tests.support.paths import ROOT

RULE_SETS = {
    "canonicalize": canonicalize.RULES,
    "algebra": algebra.RULES,
    "quantise-contractions": moves.RULES,
}


@pytest.mark.parametrize("name", RULE_SETS)
def test_every_rule_applies_somewhere(name: str) -> None:
    applied: set[str] = set()

    def watched(rule: Rule) -> Rule:
        def rewrite(op: Op, rewriter: Rewriter) -> Value | None:
            fresh = rule.rewrite(op, rewriter)
            if fresh is not None:
                applied.add(rule.equation)
            return fresh

        return dataclasses.replace(rule, rewrite=rewrite)

    rules = RuleSet(name, [watched(rule) for rule in RULE_SETS[name]])
    for path in cases(f"passes/{name}"):
        module = import_text(Case.read(path).before)
        if name == "algebra":
            run_passes(module, [canonicalize.CANONICALIZE], PassContext())
        for function in module.functions.values():
            rules.apply(function)
    assert [rule.equation for rule in RULE_SETS[name] if rule.equation not in applied] == []


@pytest.mark.parametrize("name", RULE_SETS)
def test_equations_are_distinct(name: str) -> None:
    equations = [rule.equation for rule in RULE_SETS[name]]
    assert len(set(equations)) == len(equations)


def test_documented_example_does_what_it_says() -> None:
    """docs/internals/add-a-pass.md's pass turns its case's upper half into the lower one."""
    text = (ROOT / "docs" / "internals" / "add-a-pass.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    before, _, after = re.findall(r"```\n(# A third neg.*?)```", text, re.DOTALL)[0].partition(
        "# ----\n"
    )
    names: dict[str, object] = {"__doc__": code.split('"""')[1]}
    exec(compile(code, "add-a-pass.md", "exec", dont_inherit=True), names)
    step = names["DOUBLE_NEG"]
    assert isinstance(step, Pass)
    module = import_text(before)
    run_passes(module, [step, DCE], PassContext())
    assert print_module(module) == after


def test_documented_text_form_reads_back() -> None:
    """The example of docs/internals/text-ir.md is a module, printed as the printer prints it."""
    text = (ROOT / "docs" / "internals" / "text-ir.md").read_text(encoding="utf-8")
    example = re.findall(r"```\n(func .*?)```", text, re.DOTALL)[0]
    assert print_module(import_text(example)) == example
