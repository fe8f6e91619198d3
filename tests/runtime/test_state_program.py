"""State variables in programs: what is kept between runs, where, and what a failed run leaves."""

from __future__ import annotations

import numpy as np
import pytest

from aot.errors import CompileError, InternalError, RuntimeFailure
from tests.support.control_lowering import (
    assert_equal,
    compiled,
    instruction_names,
    program,
    program_of,
    twin,
)
from tests.support.control_sources import SUM, TOTAL
from tests.support.runtime_api import Failed, opened

F = np.float32


# fixed size


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("source", [SUM, TOTAL])
def test_a_fixed_state_is_kept_and_reset(source: str, ties: bool) -> None:
    with twin(source, ties=ties) as run:
        for n in (2, 1, 3, 2, 0, 5):
            run(np.full((n, 3), n, F))
        run.reset()
        run(np.ones((1, 3), F))
        run(np.ones((1, 3), F))


def test_what_is_assigned_is_made_where_the_next_run_finds_it() -> None:
    """Two halves of 64 bytes; which one is read is a scalar; nothing is copied."""
    made = program_of(SUM)
    assert (made.state_bytes, made.state_count, made.state_key_count) == (128, 1, 0)
    found = instruction_names(SUM)
    assert "COPY" not in found
    assert (found.count("STATE"), found.count("SET_STATE")) == (1, 1)


MIXED = """
func @main(%x: f32[3], %c: bool[]) -> ("a", "b") {
  %p = state {variable = "p", dtype = f32, shape = [3]} : f32[3]
  %q = state {variable = "q", dtype = f32, shape = [3]} : f32[3]
  %r = state {variable = "r", dtype = f32, shape = [3]} : f32[3]
  %s = state {variable = "s", dtype = f32, shape = [3]} : f32[3]
  %t = state {variable = "t", dtype = f32, shape = [3]} : f32[3]
  %k = constant {value = f32[3] <1.0, 2.0, 3.0>} : f32[3]
  %made = add(%p, %x) : f32[3]
  %u = sub(%q, %r) : f32[3]
  %v = add(%s, %t) : f32[3]
  %b = sub(%u, %v) : f32[3]
  %chosen = if(%c) : f32[3] ^() {
    %one = neg(%made) : f32[3]
    yield(%one)
  } ^() {
    yield(%x)
  }
  %1 = assign(%p, %made) : f32[3]
  %2 = assign(%q, %r) : f32[3]
  %3 = assign(%r, %q) : f32[3]
  %4 = assign(%s, %made) : f32[3]
  %5 = assign(%t, %chosen) : f32[3]
  return(%made, %b)
}
"""


def test_whatever_is_assigned_is_what_the_next_run_sees() -> None:
    """An output, another variable, the same value twice, a branch's result. `assign` writes memory:
    %q is what %r was, and %r what %q is then."""
    with twin(MIXED) as run:
        for n in range(5):
            run(np.array([n, 2 * n, 1], F), np.array(n % 2 == 0))
        run.reset()
        run(np.array([1, 2, 3], F), np.array(True))


def test_all_is_read_before_any_is_written() -> None:
    """%q gets what %p was, %p what both were."""
    text = """
    func @main(%x: f32[3]) -> ("y") {
      %p = state {variable = "p", dtype = f32, shape = [3]} : f32[3]
      %q = state {variable = "q", dtype = f32, shape = [3]} : f32[3]
      %y = sub(%p, %q) : f32[3]
      %sum = add(%y, %x) : f32[3]
      %1 = assign(%q, %p) : f32[3]
      %2 = assign(%p, %sum) : f32[3]
      return(%y)
    }
    """
    with twin(text) as run:
        for n in range(6):
            run(np.array([n, 2, 3], F))


def test_what_runs_behind_an_assign_may_not_read_it() -> None:
    text = SUM.replace("%y = sub(%present, %past) : f32[3]\n", "").replace(
        "return(%y)", "%y = sub(%present, %past) : f32[3]\n  return(%y)"
    )
    with pytest.raises(InternalError, match="reads a state variable behind its assign"):
        compiled(text)


COPIED = """
func @main(%n: i64[], %x: f32[3]) -> ("y", "past", "same") {
  %past = state {variable = "h", dtype = f32, shape = [3]} : f32[3]
  %last = state {variable = "last", dtype = f32, shape = [3]} : f32[3]
  %fixed = state {variable = "fixed", dtype = f32, shape = [3]} : f32[3]
  %shown = neg(%last) : f32[3]
  %y = loop(%n, _, %past) : f32[3] ^(%i: i64[], %v: f32[3]) {
    %next = add(%v, %x) : f32[3]
    %on = constant {value = bool[] <true>} : bool[]
    yield(%on, %next)
  }
  %1 = assign(%past, %y) : f32[3]
  %2 = assign(%last, %x) : f32[3]
  %3 = assign(%fixed, %fixed) : f32[3]
  return(%y, %shown, %fixed)
}
"""


def test_what_is_made_elsewhere_is_copied() -> None:
    """A loop's result, which may be in two places, and an input."""
    with twin(COPIED) as run:
        for n in (2, 0, 1, 3):
            run(np.array(n, np.int64), np.array([n, 1, 2], F))


def test_an_output_shows_a_state_as_the_run_leaves_it() -> None:
    text = """
    func @main(%x: f32[3]) -> ("kept", "sum") {
      %past = state {variable = "h", dtype = f32, shape = [3]} : f32[3]
      %sum = add(%past, %x) : f32[3]
      %done = assign(%past, %sum) : f32[3]
      return(%past, %sum)
    }
    """
    with twin(text) as run:
        for n in range(3):
            run(np.full(3, n + 1, F))


def test_a_fixed_state_stays_when_shapes_change_and_the_arena_grows() -> None:
    text = SUM.replace("%s = reduce_sum(%x)", "%e = abs(%x) : f32[N, 3]\n  %s = reduce_sum(%e)")
    with twin(text) as run:
        sizes = []
        for n in (1, 50, 2, 1000, 1):
            run((np.arange(3 * n) % 8 - 4).astype(F).reshape(n, 3))
            sizes.append(run.loaded.arena_bytes)
        assert sizes[0] < sizes[1] == sizes[2] < sizes[3] == sizes[4]


def test_a_window_that_slides_copies_what_stays() -> None:
    """What is kept begins inside what a dispatch joins: it is copied to the other half."""
    text = """
    func @main(%x: f32[1, 2]) -> ("y") {
      %past = state {variable = "w", dtype = f32, shape = [3, 2]} : f32[3, 2]
      %all = concat(%past, %x) {axis = 0} : f32[4, 2]
      %y = reduce_sum(%all) {axes = [0], keepdims = false} : f32[2]
      %present = slice(%all) {starts = [1, 0], stops = [4, 2], steps = [1, 1]} : f32[3, 2]
      %done = assign(%past, %present) : f32[3, 2]
      return(%y)
    }
    """
    with twin(text) as run:
        for n in range(7):
            run(np.array([[n, 1]], F))
    assert instruction_names(text).count("COPY") == 1


def test_a_part_of_a_variable_becomes_the_variable() -> None:
    """It is read at one place and written at another, of one memory for the model."""
    text = """
    func @main(%x: f32[2]) -> ("y") assume [min(P + 2, 9) == P + 2 "room"] {
      %past = state {variable = "b", dtype = f32, shape = [P], layout = {strides=1},
        capacity = 9, axis = 0, length = P} : f32[P]{strides=1}
      %all = concat(%past, %x) {axis = 0} : f32[P + 2]
      %y = neg(%all) : f32[P + 2]
      %present = slice(%all) {starts = [1], stops = [P + 2], steps = [1]} : f32[P + 1]
      %kept = state {variable = "b", dtype = f32, shape = [P + 1], layout = {strides=1},
        capacity = 9, axis = 0, length = P} : f32[P + 1]{strides=1}
      %done = assign(%kept, %present) : f32[P + 1]{strides=1}
      return(%y)
    }
    """
    with twin(text) as run:
        for n in range(6):
            run(np.array([n, 10 + n], F))
    shifted = """
    func @main(%x: f32[4]) -> ("y") {
      %past = state {variable = "s", dtype = f32, shape = [2, 2]} : f32[2, 2]
      %other = state {variable = "o", dtype = f32, shape = [2]} : f32[2]
      %flat = reshape(%past) {shape = [4]} : f32[4]
      %sum = add(%flat, %x) : f32[4]
      %square = reshape(%sum) {shape = [2, 2]} : f32[2, 2]
      %row = slice(%past) {starts = [1, 0], stops = [2, 2], steps = [1, 1]} : f32[1, 2]
      %line = reshape(%row) {shape = [2]} : f32[2]
      %y = neg(%other) : f32[2]
      %1 = assign(%other, %line) : f32[2]
      %2 = assign(%past, %square) : f32[2, 2]
      return(%y)
    }
    """
    with twin(shifted) as run:
        for n in range(5):
            run(np.arange(4, dtype=F) * n)


LONG = """
func @main(%n: i64[], %x: f32[1, 2]) -> ("y", "all") assume [min(P + 1, 9) == P + 1 "the cache"] {
  %past = state {variable = "h", dtype = f32, shape = [1, 2]} : f32[1, 2]
  %cache = state {variable = "cache", dtype = f32, shape = [P, 2], layout = {strides=2:1},
    capacity = 9, axis = 0, length = P} : f32[P, 2]{strides=2:1}
  %last = state {variable = "last", dtype = f32, shape = [1, 2]} : f32[1, 2]
  %row = add(%past, %x) : f32[1, 2]{strides=2:1}
  %present = concat_alias(%cache, %row) {axis = 0} : f32[P + 1, 2]{strides=2:1}
  %sum = loop(%n, _, %past) : f32[1, 2] ^(%i: i64[], %v: f32[1, 2]) {
    %next = add(%v, %x) : f32[1, 2]
    %on = constant {value = bool[] <true>} : bool[]
    yield(%on, %next)
  }
  %h = add(%sum, %x) : f32[1, 2]
  %all = neg(%present) : f32[P + 1, 2]
  %y = add(%h, %last) : f32[1, 2]
  %kept = state {variable = "cache", dtype = f32, shape = [P + 1, 2], layout = {strides=2:1},
    capacity = 9, axis = 0, length = P} : f32[P + 1, 2]{strides=2:1}
  %1 = assign(%past, %h) : f32[1, 2]
  %2 = assign(%kept, %present) : f32[P + 1, 2]{strides=2:1}
  %3 = assign(%last, %sum) : f32[1, 2]
  return(%y, %all)
}
"""


def test_a_failed_run_changes_no_state() -> None:
    """It runs out of work behind each of its instructions, those that copy at its end included."""
    data = compiled(LONG).to_bytes()
    short, long = np.array(1, np.int64), np.array(9, np.int64)
    x = np.array([[1, 2]], F)
    with opened(data) as loaded:
        expected = [loaded(short, x) for _ in range(4)]
    failures = 0
    for budget in range(1, 400):
        with opened(data, work_budget=budget) as loaded:
            try:
                found = [loaded(short, x), loaded(short, x)]
            except Failed:
                continue  # too little for a short run
            try:
                loaded(long, x)
            except Failed as error:
                assert error.status == "budget"
                failures += 1
            else:
                break
            found += [loaded(short, x), loaded(short, x)]
            for a, b in zip(found, expected, strict=True):
                assert_equal(a, b)
    else:
        pytest.fail("no budget was enough")
    assert failures >= 64  # the instructions of eight more runs of the loop


def test_an_early_end_leaves_what_was_there() -> None:
    """A CHECK in a branch fails after what is assigned was made."""
    text = """
    func @main(%c: bool[], %x: f32[1, 1, N]) -> ("y") {
      %past = state {variable = "h", dtype = f32, shape = [1, 1, 1]} : f32[1, 1, 1]
      %sum = reduce_sum(%x) {axes = [2], keepdims = true} : f32[1, 1, 1]
      %present = add(%past, %sum) : f32[1, 1, 1]
      %y = if(%c) : f32[1, 1, 1] ^() {
        %a = max_pool(%x) {kernel = [4], strides = [1], dilations = [1], pads = [0, 0]}
          : f32[1, 1, N - 3]
        %s = reduce_sum(%a) {axes = [2], keepdims = true} : f32[1, 1, 1]
        yield(%s)
      } ^() {
        yield(%present)
      }
      %done = assign(%past, %present) : f32[1, 1, 1]
      return(%y)
    }
    """
    yes, no, x = np.array(True), np.array(False), np.ones((1, 1, 2), F)
    with program(text) as loaded:
        assert loaded.run([no, x])[0].tolist() == [[[2]]]
        with pytest.raises(RuntimeFailure, match="there is nothing left of its input"):
            loaded.run([yes, x])
        assert loaded.run([no, x])[0].tolist() == [[[4]]]


# what a module says of it


def test_a_program_without_state_can_be_reset() -> None:
    text = 'func @main(%x: f32[3]) -> ("y") { %y = neg(%x) : f32[3] return(%y) }'
    with program(text) as loaded:
        assert loaded.states == ()
        loaded.reset()
        assert loaded.run([np.ones(3, F)])[0].tolist() == [-1, -1, -1]
        loaded.close()
        with pytest.raises(RuntimeFailure, match="the program is closed"):
            loaded.reset()


def test_programs_of_one_module_have_states_of_their_own() -> None:
    data = compiled(TOTAL).to_bytes()
    x = np.ones((1, 3), F)
    with opened(data) as one, opened(data) as other:
        assert one(x)[0].tolist() == [2, 2, 2]
        assert one(x)[0].tolist() == [4, 4, 4]
        assert other(x)[0].tolist() == [2, 2, 2]


# what is refused


def test_a_state_of_symbolic_size_is_refused() -> None:
    text = """
    func @main(%x: f32[N]) -> ("y") {
      %past = state {variable = "h", dtype = f32, shape = [N]} : f32[N]
      %y = add(%past, %x) : f32[N]
      %done = assign(%past, %y) : f32[N]
      return(%y)
    }
    """
    with pytest.raises(CompileError, match="only the dim that grows can be symbolic"):
        compiled(text)


def test_a_variable_is_assigned_once_at_the_end() -> None:
    twice = SUM.replace("return(%y)", "%more = assign(%kept, %y) : f32[3]\n  return(%y)")
    with pytest.raises(InternalError, match="assigns state 'sum' in a block of its own, or again"):
        compiled(twice)


def test_what_lies_otherwise_is_refused() -> None:
    text = """
    func @main(%x: f32[3, 3]) -> ("y") {
      %past = state {variable = "s", dtype = f32, shape = [3, 3]} : f32[3, 3]
      %y = add(%past, %x) : f32[3, 3]
      %turned = transpose(%past) {perm = [1, 0]} : f32[3, 3]{order=1:0}
      %done = assign(%past, %turned) : f32[3, 3]
      return(%y)
    }
    """
    with pytest.raises(InternalError, match="another layout must be copied by a dispatch"):
        compiled(text)
