"""Control flow, state, tuples and writes in place: types, text, and what the interpreter runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.errors import CompileError, InternalError
from aot.frontends.text import import_text
from aot.ir.body import Body
from aot.ir.clone import clone_module
from aot.ir.compare import modules_equal
from aot.ir.interpreter.interpreter import run
from aot.ir.interpreter.memory import States
from aot.ir.record import Kind, Operand, OpRecord, effects_problem
from aot.ir.text.parser import parse_module
from aot.ir.text.printer import print_module
from aot.ir.verifier import verify

F = np.float32

IF = """
func @main(%c: bool[], %x: f32[3]) -> ("y") {
  %y = if(%c) : f32[3] ^() {
    %a = neg(%x) : f32[3]
    yield(%a)
  } ^() {
    yield(%x)
  }
  return(%y)
}
"""

# y = x + x + ... (n times); seen = the partial sums
LOOP = """
func @main(%n: i64[], %x: f32[2]) -> ("y", "seen") {
  %zero = constant {value = f32[2] <splat 0.0>} : f32[2]
  %y, %seen = loop(%n, _, %zero) {trips = 4} : f32[2], f32[4, 2] ^(%i: i64[], %sum: f32[2]) {
    %next = add(%sum, %x) : f32[2]
    %on = constant {value = bool[] <true>} : bool[]
    yield(%on, %next, %next)
  }
  return(%y, %seen)
}
"""

CACHE = """
func @main(%new: f32[1, 2], %at: i64[2]) -> ("first", "all") {
  %memory = state {variable = "past", dtype = f32, shape = [4, 2]} : f32[4, 2]
  %zero = constant {value = i64[] <0>} : i64[]
  %first = get(%memory, %zero) : f32[2]
  %all = write_slice(%memory, %new, %at) : f32[4, 2]
  return(%first, %all)
}
"""


def ran(text: str, *inputs: Any, states: States | None = None) -> list[Any]:
    module = import_text(text)
    return [a.tolist() for a in run(module.main, list(inputs), module=module, states=states)]


@pytest.mark.parametrize("text", [IF, LOOP, CACHE])
def test_text_and_clones_are_the_same_program(text: str) -> None:
    module = import_text(text)
    printed = print_module(module)
    again = parse_module(printed)
    assert modules_equal(module, again)
    assert print_module(again) == printed
    copy = clone_module(module)
    verify(copy)
    assert modules_equal(module, copy)


def test_if_runs_one_of_its_blocks() -> None:
    x = np.array([1, 2, 3], F)
    assert ran(IF, np.array(True), x) == [[-1, -2, -3]]
    assert ran(IF, np.array(False), x) == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("count", "total", "seen"),
    [
        (0, [0, 0], [[0, 0], [0, 0], [0, 0], [0, 0]]),
        (2, [2, 4], [[1, 2], [2, 4], [0, 0], [0, 0]]),
        (9, [4, 8], [[1, 2], [2, 4], [3, 6], [4, 8]]),  # `trips` bounds it
    ],
)
def test_loop_counts_carries_and_stacks(count: int, total: Any, seen: Any) -> None:
    assert ran(LOOP, np.array(count, np.int64), np.array([1, 2], F)) == [total, seen]


def test_loop_ends_when_its_condition_does() -> None:
    text = """
    func @main(%go: bool[], %x: i64[]) -> ("y") {
      %y = loop(_, %go, %x) : i64[] ^(%i: i64[], %v: i64[]) {
        %twice = add(%v, %v) : i64[]
        %limit = constant {value = i64[] <100>} : i64[]
        %on = less(%twice, %limit) : bool[]
        yield(%on, %twice)
      }
      return(%y)
    }
    """
    assert ran(text, np.array(True), np.array(3)) == [192]
    assert ran(text, np.array(False), np.array(3)) == [3]


def test_loop_over_rows_is_a_scan() -> None:
    """What ONNX calls Scan: rows are views that the number of the run chooses."""
    text = """
    func @main(%x: f32[N, 2]) -> ("y", "rows") {
      %zero = constant {value = f32[2] <splat 0.0>} : f32[2]
      %y, %rows = loop(_, _, %zero) {trips = N} : f32[2], f32[N, 2] ^(%i: i64[], %sum: f32[2]) {
        %row = get(%x, %i) : f32[2]
        %next = add(%sum, %row) : f32[2]
        %on = constant {value = bool[] <true>} : bool[]
        yield(%on, %next, %next)
      }
      return(%y, %rows)
    }
    """
    x = np.arange(6, dtype=F).reshape(3, 2)
    assert ran(text, x) == [x.sum(0).tolist(), x.cumsum(0).tolist()]
    assert ran(text, x[:0]) == [[0, 0], []]


def test_state_is_kept_between_calls() -> None:
    states: States = {}
    row = np.array([[5, 6]], F)
    first = ran(CACHE, row, np.array([0, 0]), states=states)
    # the view shows what was written after it was made
    assert first == [[5, 6], [[5, 6], [0, 0], [0, 0], [0, 0]]]
    second = ran(CACHE, row + 2, np.array([1, 0]), states=states)
    assert second == [[5, 6], [[5, 6], [7, 8], [0, 0], [0, 0]]]
    assert ran(CACHE, row, np.array([3, 0])) == [[0, 0], [[0, 0], [0, 0], [0, 0], [5, 6]]]


def test_a_growing_state_keeps_its_strides() -> None:
    """Two views of one variable: what is there, and one row more; strides hold the capacity."""
    text = """
    func @main(%mask: f32[P + 1], %new: f32[2, 1]) -> ("before", "after") {
      %old = state {variable = "k", dtype = f32, shape = [2, P], layout = {strides=4:1}}
        : f32[2, P]{strides=4:1}
      %copy = neg(%old) : f32[2, P]{strides=4:1}
      %more = state {variable = "k", dtype = f32, shape = [2, P + 1], layout = {strides=4:1}}
        : f32[2, P + 1]{strides=4:1}
      %length = shape_of(%old) : i64[2]
      %zero = constant {value = i64[2] <0, 1>} : i64[2]
      %at = mul(%length, %zero) : i64[2]
      %all = write_slice(%more, %new, %at) : f32[2, P + 1]{strides=4:1}
      return(%copy, %all)
    }
    """
    states: States = {}
    rows = []
    for step in range(3):
        new = np.array([[step + 1], [-step - 1]], F)
        rows.append(ran(text, np.zeros(step + 1, F), new, states=states))
    assert rows[0] == [[[], []], [[1], [-1]]]
    assert rows[2] == [[[-1, -2], [1, 2]], [[1, 2, 3], [-1, -2, -3]]]


def test_writes_show_in_views_and_in_the_callers_array() -> None:
    text = """
    func @main(%x: f32[2, 2], %u: f32[4]) -> ("sum", "all") {
      %flat = reshape(%x) {shape = [4]} : f32[4]
      %sum = add(%x, %x) : f32[2, 2]
      %all = assign(%flat, %u) : f32[4]
      return(%sum, %x)
    }
    """
    x, u = np.ones((2, 2), F), np.arange(4, dtype=F)
    assert ran(text, x, u) == [[[2, 2], [2, 2]], [[0, 1], [2, 3]]]
    assert x.tolist() == [[0, 1], [2, 3]]


def test_starts_move_until_the_update_fits() -> None:
    text = """
    func @main(%x: f32[3], %u: f32[2], %at: i64[1]) -> ("y") {
      %y = write_slice(%x, %u, %at) : f32[3]
      return(%y)
    }
    """
    for start, wanted in ((-4, [7, 8, 0]), (1, [0, 7, 8]), (9, [0, 7, 8])):
        assert ran(text, np.zeros(3, F), np.array([7, 8], F), np.array([start])) == [wanted]


def test_a_tuple_is_its_elements() -> None:
    text = """
    func @main(%x: f32[2], %y: f32[2], %i: i64[]) -> ("y", "both") {
      %t = tuple(%x, %y) : f32[2, 2]
      %e = get(%t, %i) : f32[2]
      %n = neg(%y) : f32[2]
      %w = assign(%e, %n) : f32[2]
      return(%y, %t)
    }
    """
    x, y = np.array([1, 2], F), np.array([3, 4], F)
    assert ran(text, x.copy(), y.copy(), np.array(1)) == [[-3, -4], [[1, 2], [-3, -4]]]
    assert ran(text, x.copy(), y.copy(), np.array(0)) == [[3, 4], [[-3, -4], [3, 4]]]


def test_calls_share_memory() -> None:
    text = """
    func @main(%x: f32[2]) -> ("x", "same") {
      %same = call(%x) {function = @double} : f32[2]
      return(%x, %same)
    }
    func @double(%a: f32[2]) -> ("a") {
      %sum = add(%a, %a) : f32[2]
      %w = assign(%a, %sum) : f32[2]
      return(%a)
    }
    """
    assert ran(text, np.array([1, 2], F)) == [[2, 4], [2, 4]]


def test_built_by_hand() -> None:
    b = Builder()
    c, x = b.input("c", "bool[]"), b.input("x", "f32[3]")
    then = b.block([], lambda: b.op("relu", x))
    other = b.block([], lambda: x)
    y = b.op("if", c, blocks=[then, other])
    body = b.block(
        ["i64[]", x.type],
        lambda i, v: [b.constant(True), b.op("neg", v), b.op("cast", i, to="f32")],
    )
    z, seen = b.op("loop", None, None, y, blocks=[body], trips=5)
    b.output("z", z)
    b.output("seen", seen)
    module = b.module()
    verify(module)
    assert [str(v.type) for v in module.main.results] == ["f32[3]", "f32[5]"]
    results = run(module.main, [np.array(True), np.array([-1, 0, 2], F)])
    assert [r.tolist() for r in results] == [[0, 0, -2], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (IF.replace("yield(%a)", "yield(%a, %a)"), "expected 1 of yielded value, found 2"),
        (
            IF.replace("} ^() {\n    yield(%x)\n  }", "}"),
            "expected 2 blocks, found 1",
        ),
        (IF.replace("^() {\n    %a", "^(%b: f32[3]) {\n    %a"), "expected 0 of block argument"),
        (
            IF.replace("yield(%x)", "yield(%c)"),
            "yielded value 0 has type bool[], the op has f32[3]",
        ),
        (IF.replace("%c: bool[]", "%c: bool[1]"), "operand 0 must be a scalar"),
        (
            LOOP.replace("yield(%on, ", "yield("),
            "the block must yield bool[] first, it yields f32[2]",
        ),
        (
            LOOP.replace("yield(%on, %next, %next)", "yield(%on)"),
            "the block must yield 1 carried values, it yields 0",
        ),
        (LOOP.replace(" {trips = 4}", ""), "values are stacked, which needs attribute trips"),
        (
            LOOP.replace("f32[4, 2] ^", "f32[5, 2] ^"),
            "yielded value 1 has type f32[4, 2], the op has f32[5, 2]",
        ),
        (
            CACHE.replace(
                "%zero = constant",
                '%k = state {variable = "past", dtype = i64, shape = []} : i64[]\n%zero = constant',
            ),
            "state variable 'past' is i64 here and f32 before",
        ),
        (
            CACHE.replace("f32[1, 2], %at", "f32[1, 3], %at"),
            "update has destination's rank and fits into it",
        ),
        (
            CACHE.replace(
                '%memory = state {variable = "past", dtype = f32, shape = [4, 2]}',
                "%memory = constant {value = f32[4, 2] <splat 1.0>}",
            ),
            "operand 0 is written, and is a constant",
        ),
    ],
)
def test_what_does_not_fit_is_refused(text: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        import_text(text)
    assert message in str(caught.value)


def record(**settings: Any) -> OpRecord:
    return OpRecord(
        "test",
        "an op.",
        (Operand("x"), Operand("y")),
        lambda call: [call.operand(0)],
        Kind.STRUCTURE,
        **settings,
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        # conservative, from what the record says, and pure: each by itself is fine
        ({"has_unknown_effects": True, "has_side_effects": True}, ""),
        ({"view_of": 1, "writes": (1,)}, ""),
        ({}, ""),
        ({"view_of": 2}, "its effects name an operand that it has not"),
        ({"writes": (-1,)}, "its effects name an operand that it has not"),
        (
            {"has_unknown_effects": True, "has_side_effects": True, "view_of": 0},
            "its effects are unknown, and it says which operands it writes or shows",
        ),
        (
            {"has_unknown_effects": True},
            "its effects are unknown, so that it must count as having side effects",
        ),
        (
            {"writes": (0,), "compute": lambda call: []},
            "it writes operands, so that its results are not all that it does",
        ),
        (
            {"writes": (0,), "is_cheap": True},
            "it writes operands: it can't be recomputed, nor its operands be swapped",
        ),
        ({"container": "opens"}, "it opens a container and does not say which operand that is"),
        ({"container": "box"}, "a container 'box' is not known"),
        ({"body": Body("once")}, "results come from blocks where there is a body, and only there"),
        ({"is_state": True}, "it is a state variable's memory and has no attribute variable"),
    ],
)
def test_effects_of_a_record_must_fit_together(settings: dict[str, Any], problem: str) -> None:
    assert effects_problem(record(**settings)) == problem


def test_a_record_with_wrong_effects_is_not_registered() -> None:
    from aot.ir.record import REGISTRY, register

    with pytest.raises(InternalError, match="^op 'test': its effects name an operand"):
        register(record(view_of=7))
    assert "test" not in REGISTRY


def test_compiling_names_all_that_is_missing() -> None:
    import aot
    from aot.errors import UnsupportedError

    with pytest.raises(UnsupportedError) as caught:
        aot.compile(CACHE.encode(), targets=["x86-64-v3"])
    assert caught.value.items == (
        "get: rows that are chosen at run time, as views; gather copies them",
        "write_slice: it writes memory that is chosen at run time (a result of a branch or a loop, "
        "a row of a tuple), or whose old contents are read later; use the new value instead",
    )
