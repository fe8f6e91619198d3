"""Transactions: several edits that are checked and become true together, or not at all."""

from __future__ import annotations

import pytest

from aot.errors import InternalError
from aot.ir.builtin import PENDING
from aot.ir.clone import clone_module
from aot.ir.compare import modules_equal
from aot.ir.index_map import IndexMap, Slice, transposed
from aot.ir.record import count_shape_rules
from aot.ir.rewriter import Rewriter
from aot.ir.verifier import verify
from tests.support.pending_changes import graph, names, resolved, value_of

ADD = """
func @main(%a: f32[3, 4], %b: f32[3, 4], %u: f32[5, 4], %v: f32[5, 4]) -> ("y") {
  %0 = add(%a, %b) : f32[3, 4]
  %1 = neg(%0) : f32[3, 4]
  return(%1)
}
"""
CUT = IndexMap((Slice((0, 0), (3, 4), (1, 1)),))


def test_operands_that_only_fit_together_are_replaced_together() -> None:
    """MIGraphX #251: one after the other passes through add(f32[5, 4], f32[3, 4])."""
    module = graph(ADD)
    add, (_, _, u, v) = value_of(module, "add").op, module.main.inputs
    with count_shape_rules() as rules, Rewriter(module.main).transaction() as edit:
        edit.set_operand(add, 0, u)
        edit.set_operand(add, 1, v)
        edit.see_through(add.result, CUT)
    assert rules.calls == 1
    assert str(add.result.type) == "f32[5, 4]"
    verify(module)
    resolved(module)
    assert names(module) == ["add", "slice", "neg"]


def test_a_refused_transaction_changes_nothing_and_names_the_op() -> None:
    module = graph(ADD)
    add, neg = value_of(module, "add").op, value_of(module, "neg").op
    before = clone_module(module)
    u = module.main.inputs[2]
    with (
        pytest.raises(
            InternalError,
            match=r"the transaction is undone: <op add>: add: operands do not broadcast: "
            r"shapes \(5, 4\) and \(3, 4\)",
        ),
        Rewriter(module.main).transaction() as edit,
    ):
        edit.set_operand(neg, 0, module.main.inputs[0])
        edit.set_operand(add, 0, u)
    assert modules_equal(module, before)
    verify(module)


def test_a_result_that_users_would_not_know_is_refused() -> None:
    module = graph(ADD)
    add, (_, _, u, v) = value_of(module, "add").op, module.main.inputs
    before = clone_module(module)
    with (
        pytest.raises(
            InternalError,
            match=r"result 0 would be f32\[5, 4\], which users do not see as f32\[3, 4\]",
        ),
        Rewriter(module.main).transaction() as edit,
    ):
        edit.set_operand(add, 0, u)
        edit.set_operand(add, 1, v)
    assert modules_equal(module, before)


def test_a_map_that_leads_elsewhere_undoes_the_other_edits_too() -> None:
    module = graph(ADD)
    before = clone_module(module)
    a, b, u, _ = module.main.inputs
    with (
        pytest.raises(InternalError, match=r"undone: no IndexMap\(steps=\(\)\) leads from f32\[5"),
        Rewriter(module.main).transaction() as edit,
    ):
        edit.set_operand(value_of(module, "add").op, 1, a)
        edit.replace(b, u)
    assert modules_equal(module, before)


def test_an_error_inside_the_block_commits_nothing() -> None:
    module = graph(ADD)
    before = clone_module(module)
    with pytest.raises(KeyError), Rewriter(module.main).transaction() as edit:
        edit.set_operand(value_of(module, "add").op, 0, module.main.inputs[1])
        raise KeyError("elsewhere")
    assert modules_equal(module, before)


def test_an_attribute_and_the_operand_that_it_fits_commit_together() -> None:
    module = graph("""
func @main(%x: f32[2, 3], %y: f32[3, 2]) -> ("sum", "neg") {
  %0 = reduce_sum(%x) {axes = [1], keepdims = false} : f32[2]
  %1 = neg(%0) : f32[2]
  return(%0, %1)
}
""")
    total = value_of(module, "reduce_sum").op
    with count_shape_rules() as rules, Rewriter(module.main).transaction() as edit:
        edit.set_attr(total, "axes", (0,))
        edit.set_operand(total, 0, module.main.inputs[1])
    assert rules.calls == 1
    assert PENDING.name not in names(module)  # the type is what it was: users are not told
    verify(module)


def test_values_replaced_in_a_transaction_are_seen_lazily_but_where_operands_are_set() -> None:
    module = graph("""
func @main(%x: f32[2, 3], %y: f32[3, 2]) -> ("a", "b") {
  %0 = relu(%x) : f32[2, 3]
  %1 = neg(%0) : f32[2, 3]
  %2 = transpose(%0) {perm = [1, 0]} : f32[3, 2]
  return(%1, %2)
}
""")
    relu, last = value_of(module, "relu"), module.main.block.terminator
    fresh = Rewriter(module.main).at(relu.op.next).create(relu.op.record, [module.main.inputs[1]])
    turned = value_of(module, "transpose")
    rewriter = Rewriter(module.main)
    with count_shape_rules() as rules, rewriter.transaction() as edit:
        edit.replace(relu, fresh.result, transposed((1, 0)))
        edit.replace(turned, fresh.result)
    assert rules.calls == 0
    assert last.operands[1] is fresh.result
    verify(module)
    assert value_of(module, "neg").op.operands[0].op.record is PENDING
