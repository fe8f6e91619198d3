"""Pending shape changes: the rules that they follow, one by one.

What passes make of them is in tests/golden/passes; here are the counts, the refusals, and what
must not happen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.errors import InternalError
from aot.ir.builtin import PENDING
from aot.ir.graph import Listener, Module, Op, Value
from aot.ir.index_map import Broadcast, IndexMap, Reshape, Slice, Transpose, transposed
from aot.ir.interpreter.interpreter import run
from aot.ir.record import count_shape_rules
from aot.ir.rewriter import Rewriter
from aot.ir.text.printer import print_module
from aot.ir.types import DType, TensorType
from aot.ir.verifier import verify
from aot.ops.elementwise import CAST
from aot.ops.movement import TRANSPOSE
from aot.passes.layout.resolve_shapes import resolve
from tests.support.pending_changes import (
    DIAMOND,
    flatten,
    graph,
    names,
    narrow,
    relay,
    resolved,
    turn,
    value_of,
)

F32, F16 = DType.F32, DType.F16


# rule 1: a placeholder that says which element is which


def test_a_pending_change_says_which_elements_not_just_which_shape() -> None:
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    for map, expected in ((IndexMap(), x), (transposed((1, 0)), x.T)):
        b = Builder()
        value = b.input("x", "f32[4, 4]")
        b.output(
            "y", b.op("relu", b.op("pending_shape_change", value, map=map.to_attr(), dtype=F32))
        )
        module = b.module()
        resolved(module)
        np.testing.assert_array_equal(run(module.main, {"x": x})[0], expected)


def test_a_pending_change_left_over_is_found() -> None:
    b = Builder()
    x = b.input("x", "f32[4]")
    b.output("y", b.op("pending_shape_change", x, map=(), dtype=F32))
    module = b.module()
    verify(module)
    with pytest.raises(InternalError, match="a shape change is pending\n.*pending_shape_change"):
        verify(module, is_resolved=True)


# rule 2: insertion


CHAIN = """
func @main(%x: f32[2, 3]) -> ("y") {
  %0 = relu(%x) : f32[2, 3]
  %1 = neg(%0) : f32[2, 3]
  %2 = abs(%0) : f32[2, 3]
  %3 = add(%1, %2) : f32[2, 3]
  return(%3)
}
"""


def test_a_silent_replace_of_unequal_types_is_refused() -> None:
    module = graph(CHAIN)
    rewriter, value = Rewriter(module.main), value_of(module, "relu")
    fresh = rewriter.at(value.op).create(CAST, [module.main.inputs[0]], {"to": F16}).result
    with pytest.raises(InternalError, match="replace_lazily takes the index map"):
        rewriter.replace(value, fresh)


def test_a_map_that_leads_elsewhere_is_refused() -> None:
    module = graph(CHAIN)
    value = value_of(module, "relu")
    made = Rewriter(module.main).at(value.op.next).create(TRANSPOSE, [value], {"perm": (1, 0)})
    before = print_module(module)
    with pytest.raises(InternalError, match=r"no IndexMap\(steps=\(\)\) leads from f32\[3, 2\]"):
        Rewriter(module.main).replace_lazily(value, made.result)
    assert print_module(module) == before


def test_replacing_lazily_asks_no_shape_rule_and_tells_each_use_once() -> None:
    class Uses(Listener):
        changed = 0

        def operand_changed(self, op: Op, index: int, old: Value | None) -> None:
            self.changed += 1

    module = graph(CHAIN)
    value = value_of(module, "relu")
    made = Rewriter(module.main).at(value.op.next).create(TRANSPOSE, [value], {"perm": (1, 0)})
    listener = Uses()
    module.main.listeners.append(listener)
    with count_shape_rules() as rules:
        Rewriter(module.main).replace_lazily(value, made.result, transposed((1, 0)))
    assert (rules.calls, listener.changed) == (0, 2)


def test_equal_types_are_replaced_plainly() -> None:
    module = graph(CHAIN)
    value = value_of(module, "neg")
    seen = Rewriter(module.main).replace_lazily(value, value_of(module, "abs"))
    assert seen is value_of(module, "abs") and PENDING.name not in names(module)


# rule 3: composition


def test_a_chain_is_one_change() -> None:
    module = graph("""
func @main(%x: f32[2, 3, 4]) -> ("y", "z") {
  %0 = relu(%x) : f32[2, 3, 4]
  %1 = transpose(%0) {perm = [1, 2, 0]} : f32[3, 4, 2]
  %2 = neg(%1) : f32[3, 4, 2]
  %3 = abs(%0) : f32[2, 3, 4]
  return(%2, %3)
}
""")
    old = value_of(module, "transpose")
    seen = turn(module, value_of(module, "relu"), (1, 2, 0))
    made = seen.op.operands[0]
    again = Rewriter(module.main).replace_lazily(old, seen, transposed((1, 2, 0)))
    assert again is made  # turned there and back: the identity is no change
    other = Rewriter(module.main).replace_lazily(value_of(module, "abs"), seen)
    assert other.op.operands[0] is made  # no change of a change


def test_a_dtype_between_that_rounds_is_kept() -> None:
    b = Builder()
    x = b.input("x", "f32[3]")
    y = b.op("neg", x)
    b.output("y", b.op("relu", y))
    module = b.module()
    rewriter = Rewriter(module.main)
    rounded = rewriter.pending(x, TensorType(F16, (3,)), IndexMap())
    rewriter.replace_lazily(y, rounded)  # y becomes x rounded to f16 and back: a pass decided so
    resolved(module)
    assert names(module).count("cast") == 2


@pytest.mark.parametrize(
    "steps",
    [
        (Transpose((1, 2, 0)), Transpose((2, 0, 1))),
        (Reshape((6, 4)), Reshape((2, 3, 4))),
        (Slice((0, 1, 0), (2, 3, 4), (1, 1, 2)), Reshape((2, 4)), Broadcast((5, 2, 4))),
        (Transpose((2, 0, 1)), Reshape((8, 3)), Reshape((4, 2, 3)), Transpose((1, 2, 0))),
    ],
)
def test_maps_compose_and_invert(steps: tuple[Any, ...]) -> None:
    x = np.arange(24).reshape(2, 3, 4)
    whole = IndexMap()
    expected = x
    for step in steps:
        whole = whole.then(IndexMap((step,)), x.shape)
        expected = IndexMap((step,)).apply(expected)
    np.testing.assert_array_equal(whole.apply(x), expected)
    assert whole.result_dims(x.shape) == expected.shape
    assert IndexMap.of_attr(whole.to_attr()) == whole
    back = whole.inverse(x.shape)
    if back is None:
        assert any(isinstance(s, (Slice, Broadcast)) for s in steps)
    else:
        np.testing.assert_array_equal(back.apply(expected), x)
        assert whole.then(back, x.shape).is_identity


# rules 4, 5, 7: folding, pushing, materialising


def test_a_diamond_is_crossed_once_by_each_op() -> None:
    module = graph(DIAMOND)
    turn(module, value_of(module, "relu"), (1, 0))
    counts, calls = resolved(module)
    assert counts == {"folded": 1, "pushed": 3, "materialised": 0}
    assert calls == 3  # sin, abs, add; the transpose at the end is gone
    assert names(module) == ["relu", "transpose", "sin", "abs", "add"]


def test_the_deepest_operand_comes_first() -> None:
    """add2(reduce, add1(abs, sin)): what MIGraphX's breadth-first order got wrong."""
    module = graph("""
func @main(%x: f32[2, 3]) -> ("y") {
  %0 = relu(%x) : f32[2, 3]
  %1 = reduce_max(%0) {axes = [0], keepdims = true} : f32[1, 3]
  %2 = abs(%0) : f32[2, 3]
  %3 = sin(%0) : f32[2, 3]
  %4 = add(%2, %3) : f32[2, 3]
  %5 = add(%1, %4) : f32[2, 3]
  %6 = transpose(%5) {perm = [1, 0]} : f32[3, 2]
  return(%6)
}
""")
    turn(module, value_of(module, "relu"), (1, 0))
    counts, calls = resolved(module)
    assert (counts["pushed"], counts["materialised"], calls) == (5, 0, 5)
    assert "axes = [1]" in print_module(module)


def test_of_two_paths_only_the_one_that_needs_it_gets_a_transpose() -> None:
    module = graph("""
func @main(%a: f32[4, 5], %b: f32[5, 3], %w: f32[2, 3]) -> ("left", "right") {
  %0 = matmul(%a, %b) : f32[4, 3]
  %1 = transpose(%0) {perm = [1, 0]} : f32[3, 4]
  %2 = matmul(%w, %1) : f32[2, 4]
  %3 = matmul(%2, %0) : f32[2, 3]
  return(%2, %3)
}
""")
    turn(module, value_of(module, "matmul"), (1, 0))
    counts, _ = resolved(module)
    assert counts == {"folded": 1, "pushed": 0, "materialised": 1}
    text = print_module(module)
    assert text.count("transpose(") == 2  # the producer's own, and the one that the last needs
    assert "%2 = matmul(%w, %1)" in text


def test_a_cast_back_is_gone_with_the_change() -> None:
    module = graph("""
func @main(%x: f32[2, 3]) -> ("y") {
  %0 = relu(%x) : f32[2, 3]
  %1 = cast(%0) {to = f16} : f16[2, 3]
  %2 = neg(%1) : f16[2, 3]
  return(%2)
}
""")
    narrow(module, value_of(module, "relu"))
    counts, calls = resolved(module)
    assert (counts, calls) == ({"folded": 1, "pushed": 0, "materialised": 0}, 0)
    assert names(module) == ["relu", "cast", "neg"]


def test_users_behind_an_unchanged_result_are_not_asked() -> None:
    """Early stop: the sum over both dims is what it was, whatever the order."""
    module = graph("""
func @main(%x: f32[2, 3]) -> ("y") {
  %0 = relu(%x) : f32[2, 3]
  %1 = reduce_sum(%0) {axes = [0, 1], keepdims = false} : f32[]
  %2 = neg(%1) : f32[]
  %3 = exp(%2) : f32[]
  %4 = add(%3, %2) : f32[]
  return(%4)
}
""")
    later = [value_of(module, name).op for name in ("neg", "exp", "add")]
    turn(module, value_of(module, "relu"), (1, 0))
    _, calls = resolved(module)
    assert calls == 1
    assert [value_of(module, name).op for name in ("neg", "exp", "add")] == later


def test_two_users_share_what_is_made() -> None:
    module = graph("""
func @main(%x: f32[3, 3], %w: f32[3, 3]) -> ("y", "z") {
  %0 = relu(%x) : f32[3, 3]
  %1 = matmul(%0, %w) : f32[3, 3]
  %2 = matmul(%w, %0) : f32[3, 3]
  return(%1, %2)
}
""")
    turn(module, value_of(module, "relu"), (1, 0))
    counts, _ = resolved(module)
    assert counts["materialised"] == 1


@pytest.mark.parametrize(
    ("change", "made"),
    [
        (lambda m, v: turn(m, v, (1, 0)), ["transpose"]),
        (narrow, ["cast"]),
        (flatten, ["reshape"]),
        (relay, ["copy"]),
    ],
)
def test_each_kind_of_change_is_made_by_its_op(
    change: Callable[[Module, Value], Value], made: list[str]
) -> None:
    """A result is what it was: the boundary of the return."""
    module = graph("""
func @main(%x: f32[2, 3]) -> ("y") {
  %0 = relu(%x) : f32[2, 3]
  return(%0)
}
""")
    change(module, value_of(module, "relu"))
    counts, calls = resolved(module)
    assert (counts["materialised"], calls) == (1, 0)
    assert names(module)[-1:] == made
    assert str(module.main.results[0].type) == "f32[2, 3]"


def test_layouts_go_on_without_a_single_shape_rule() -> None:
    module = graph(
        DIAMOND.replace(
            "transpose(%3) {perm = [1, 0]} : f32[3, 2]", "reduce_sum(%3) {axes = [0]} : f32[1, 3]"
        )
    )
    relay(module, value_of(module, "relu"))
    counts, calls = resolved(module)
    assert (counts["materialised"], calls) == (0, 0)
    assert str(value_of(module, "add").type) == "f32[2, 3]{order=1:0}"


def test_a_layout_that_was_given_on_purpose_stays() -> None:
    module = graph("""
func @main(%x: f32[2, 3, 4]) -> ("y") {
  %0 = relu(%x) : f32[2, 3, 4]
  %1 = sin(%0) : f32[2, 3, 4]
  %2 = abs(%1) : f32[2, 3, 4]
  %3 = reduce_sum(%2) {axes = [0, 1, 2], keepdims = false} : f32[]
  return(%3)
}
""")
    relay(module, value_of(module, "relu"), (2, 1, 0))
    relay(module, value_of(module, "sin"), (1, 0, 2))
    counts, _ = resolved(module)
    assert counts["materialised"] == 0
    kept = [str(value_of(module, name).type.layout) for name in ("relu", "sin", "abs")]
    assert kept == ["{order=2:1:0}", "{order=1:0:2}", "{order=1:0:2}"]


def test_what_is_made_anyway_costs_no_second_time() -> None:
    """The sum could follow the change and be turned itself; the turned operand is there."""
    module = graph("""
func @main(%x: f32[4, 5, 6], %w: f32[6, 2]) -> ("product", "sum") {
  %0 = relu(%x) : f32[4, 5, 6]
  %1 = matmul(%0, %w) : f32[4, 5, 2]
  %2 = reduce_sum(%0) {axes = [0], keepdims = false} : f32[5, 6]
  return(%1, %2)
}
""")
    turn(module, value_of(module, "relu"), (2, 1, 0))
    counts, _ = resolved(module)
    assert counts["materialised"] == 1
    assert value_of(module, "reduce_sum").op.attrs["axes"] == (0,)


def test_what_is_written_is_memory_of_its_own_even_where_nothing_changes() -> None:
    module = graph("""
func @main(%x: f32[2, 3], %u: f32[2, 3]) -> ("x", "y") {
  %0 = relu(%x) : f32[2, 3]
  %1 = pending_shape_change(%0) {dtype = f32} : f32[2, 3]
  %2 = assign(%1, %u) : f32[2, 3]
  return(%0, %1)
}
""")
    counts, _ = resolved(module)
    assert counts["materialised"] == 1
    assert value_of(module, "assign").op.operands[0].op.name == "copy"


def test_an_operand_is_turned_where_that_lets_the_change_meet_its_end() -> None:
    module = graph("""
func @main(%x: f32[2, 3], %y: f32[2, 3]) -> ("y") {
  %0 = relu(%x) : f32[2, 3]
  %1 = add(%0, %y) : f32[2, 3]
  %2 = transpose(%1) {perm = [1, 0]} : f32[3, 2]
  return(%2)
}
""")
    turn(module, value_of(module, "relu"), (1, 0))
    counts, _ = resolved(module)
    assert counts == {"folded": 1, "pushed": 1, "materialised": 1}
    operand = value_of(module, "add").op.operands[1]
    assert operand.op.record is TRANSPOSE and operand.op.operands[0] is module.main.inputs[1]


# rule 6: boundaries


def test_captured_and_written_values_are_what_they_were() -> None:
    """The submodule that MIGraphX left stale, and the write that must not hit a placeholder; the
    exact programs are golden (captured.ir, written.ir)."""
    module = graph("""
func @main(%c: bool[], %x: f32[2, 3], %u: f32[2, 3]) -> ("y", "z") {
  %0 = relu(%x) : f32[2, 3]
  %1 = if(%c) : f32[2, 3] ^() {
    %2 = neg(%0) : f32[2, 3]
    yield(%2)
  } ^() {
    yield(%0)
  }
  %3 = sin(%x) : f32[2, 3]
  %4 = assign(%3, %u) : f32[2, 3]
  %5 = abs(%3) : f32[2, 3]
  return(%1, %5)
}
""")
    turn(module, value_of(module, "relu"), (1, 0))
    turn(module, value_of(module, "sin"), (1, 0))
    counts, _ = resolved(module)
    assert counts == {"folded": 0, "pushed": 0, "materialised": 2}
    operand = value_of(module, "neg").op.operands[0]
    assert operand is not None and operand.op is not None and operand.op.record is TRANSPOSE
    assert value_of(module, "assign").op.operands[0] is value_of(module, "abs").op.operands[0]


def test_a_block_does_not_take_in_what_it_captures() -> None:
    """Not even where it could: in a loop it would be moved in every iteration."""
    module = graph("""
func @main(%c: bool[], %x: f32[2, 3]) -> ("y") {
  %0 = relu(%x) : f32[2, 3]
  %1 = if(%c) : f32[3] ^() {
    %2 = reduce_sum(%0) {axes = [0], keepdims = false} : f32[3]
    yield(%2)
  } ^() {
    %3 = reduce_max(%0) {axes = [0], keepdims = false} : f32[3]
    yield(%3)
  }
  return(%1)
}
""")
    turn(module, value_of(module, "relu"), (1, 0))
    counts, calls = resolved(module)
    assert (counts["materialised"], calls) == (1, 0)
    assert value_of(module, "reduce_sum").op.attrs["axes"] == (0,)


def test_each_block_makes_its_own() -> None:
    """Two branches see one value through the same map; neither sees what the other makes."""
    module = graph("""
func @main(%c: bool[], %x: f32[2, 3]) -> ("y", "z") {
  %0 = if(%c) : f32[3, 2] ^() {
    %1 = pending_shape_change(%x) {map = [["transpose", [1, 0]]], dtype = f32} : f32[3, 2]
    %2 = softmax(%1) {axis = 0} : f32[3, 2]
    yield(%2)
  } ^() {
    %3 = pending_shape_change(%x) {map = [["transpose", [1, 0]]], dtype = f32} : f32[3, 2]
    yield(%3)
  }
  %4 = pending_shape_change(%x) {map = [["transpose", [1, 0]]], dtype = f32} : f32[3, 2]
  return(%0, %4)
}
""")
    counts, _ = resolved(module)
    assert counts["materialised"] == 3


def test_a_change_that_nobody_sees_is_gone() -> None:
    module = graph("""
func @main(%x: f32[2, 3]) -> ("y") {
  %0 = pending_shape_change(%x) {map = [["transpose", [1, 0]]], dtype = f32} : f32[3, 2]
  %1 = relu(%x) : f32[2, 3]
  return(%1)
}
""")
    assert resolved(module) == ({"folded": 0, "pushed": 0, "materialised": 0}, 0)
    assert names(module) == ["relu"]


# rule 8: looking through


def test_a_bulk_change_looks_through_what_is_pending() -> None:
    """All floats to f16, op by op: the changes between them die, one at each border is left."""
    b = Builder()
    value = b.input("x", "f32[8]")
    for _ in range(20):
        value = b.op("relu", b.op("neg", value))
    b.output("y", value)
    module = b.module()
    rewriter = Rewriter(module.main)
    for op in list(module.main.block):
        if op.record.is_terminator:
            continue
        source = op.operands[0]
        if source.op is not None and source.op.record is PENDING:
            source = source.op.operands[0]
        else:
            source = rewriter.at(op).create(CAST, [source], {"to": F16}).result
        fresh = rewriter.at(op).create(op.record, [source], op.attrs).result
        rewriter.replace_lazily(op.result, fresh)
        rewriter.erase(op)
    with count_shape_rules() as rules:
        counts = resolve(module.main)
    assert (counts["materialised"], rules.calls) == (1, 0)
    assert names(module).count("cast") == 2
    verify(module, is_resolved=True)


# rule 9: types too


def test_movements_move_the_narrow_elements_and_arithmetic_gets_its_cast() -> None:
    module = graph("""
func @main(%x: f32[2, 3], %y: f32[3]) -> ("y") {
  %0 = relu(%x) : f32[2, 3]
  %1 = transpose(%0) {perm = [1, 0]} : f32[3, 2]
  %2 = concat(%1, %1) {axis = 1} : f32[3, 4]
  %3 = reduce_sum(%2) {axes = [1], keepdims = false} : f32[3]
  %4 = add(%3, %y) : f32[3]
  return(%4)
}
""")
    narrow(module, value_of(module, "relu"))
    counts, calls = resolved(module)
    assert (counts["pushed"], counts["materialised"], calls) == (2, 1, 0)
    assert str(value_of(module, "concat").type) == "f16[3, 4]"
    assert str(value_of(module, "reduce_sum").op.operands[0].type) == "f32[3, 4]"


def test_a_pad_that_f16_may_not_hold_is_done_in_f32() -> None:
    module = graph("""
func @main(%x: f32[2]) -> ("y") {
  %0 = relu(%x) : f32[2]
  %1 = pad(%0) {pads = [0, 1], value = 0.1} : f32[3]
  return(%1)
}
""")
    narrow(module, value_of(module, "relu"))
    resolved(module)
    assert names(module) == ["relu", "cast", "cast", "pad"]
