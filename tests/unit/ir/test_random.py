"""Random graphs: text round-trips, copies are equal, passes keep results."""

from __future__ import annotations

from hypothesis import given, settings

from aot.ir.clone import clone_module
from aot.ir.compare import modules_equal
from aot.ir.graph import Module
from aot.ir.text.parser import parse_module
from aot.ir.text.printer import print_module
from aot.ir.verifier import verify
from aot.passes.base import Pass, PassContext, run_passes
from aot.passes.simplify.canonicalize import CANONICALIZE
from aot.passes.simplify.cse import CSE
from aot.passes.simplify.dce import DCE
from aot.passes.simplify.fold_constants import FOLD_CONSTANTS
from aot.switches import Switches
from tests.support.graphs import assert_same_results, modules

FEW = settings(max_examples=40)
ALL = (CANONICALIZE, FOLD_CONSTANTS, CSE, DCE)


def optimised(module: Module, *passes: Pass) -> Module:
    copy = clone_module(module)
    run_passes(copy, passes, PassContext(switches=Switches(is_verifying_each=True)))
    return copy


@FEW
@given(modules())
def test_text_round_trips(module: Module) -> None:
    verify(module)
    text = print_module(module)
    again = parse_module(text)
    verify(again)
    assert modules_equal(module, again)
    assert print_module(again) == text


@FEW
@given(modules())
def test_clone_is_equal_and_apart(module: Module) -> None:
    copy = clone_module(module)
    verify(copy)
    assert modules_equal(module, copy)
    assert print_module(copy) == print_module(module)
    mine = {v for op in module.main.walk() for v in op.results}
    assert not any(v in mine for op in copy.main.walk() for v in op.results)


@FEW
@given(modules())
def test_passes_keep_results(module: Module) -> None:
    for step in ALL:
        assert_same_results(module, optimised(module, step))
    assert_same_results(module, optimised(module, *ALL))


@FEW
@given(modules())
def test_passes_leave_nothing_for_a_second_run(module: Module) -> None:
    for step in (CSE, DCE, CANONICALIZE):
        once = optimised(module, step)
        assert modules_equal(once, optimised(once, step))


@FEW
@given(modules())
def test_passes_are_deterministic(module: Module) -> None:
    again = parse_module(print_module(module))
    assert modules_equal(optimised(module, *ALL), optimised(again, *ALL))
