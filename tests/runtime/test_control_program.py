"""`if` and `loop` in programs: the runtime against the interpreter, and where values are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from aot.errors import InternalError, RuntimeFailure
from aot.link.program import decode
from tests.support.control_lowering import check, compiled, program, twin
from tests.support.control_sources import FIBONACCI, KINDS, LOOP_IN_IF, NESTED, TRUE

F = np.float32
X = np.array([1, -2, 3], F)
YES, NO = np.array(True), np.array(False)


def count(source: str) -> np.ndarray[Any, Any]:
    return np.array(source, np.int64)


def instructions(source: str, *, ties: bool = True) -> Counter[str]:
    """How often each instruction stands in the execute part."""
    (variant,) = compiled(source, ties=ties).image.variants
    made = variant.entry_points[0].program
    begin = made.blocks[made.execute_block]
    return Counter(i.name for i in decode(made.code) if i.at >= begin)


def section(source: str) -> dict[str, Any]:
    """What the statistics say of the only variant."""
    found: dict[str, Any] = compiled(source).stats["variants"][0]
    return found


# if

BOTH = """
func @main(%c: bool[], %x: f32[3]) -> ("y", "z") {
  %y, %z = if(%c) : f32[3], f32[3] ^() {
    %a = neg(%x) : f32[3]
    %b = exp(%a) : f32[3]
    yield(%a, %b)
  } ^() {
    %a = abs(%x) : f32[3]
    yield(%x, %a)
  }
  %u = add(%y, %z) : f32[3]
  return(%u, %z)
}
"""


@pytest.mark.parametrize("condition", [YES, NO])
def test_a_branch_makes_the_results(condition: np.ndarray[Any, Any]) -> None:
    check(BOTH, condition, X)


def test_what_branches_make_is_made_where_the_result_is() -> None:
    """%z is an output in both branches, %y in the arena; only %x, from outside, is copied."""
    found = instructions(BOTH)
    assert found == {
        "LOAD": 1,
        "BRANCH": 1,
        "DISPATCH": 4,
        "COPY": 1,
        "JUMP": 2,
        "RETURN": 1,
    }
    assert section(BOTH)["dispatches"] == 5


@pytest.mark.parametrize("outer", [YES, NO])
@pytest.mark.parametrize("inner", [YES, NO])
def test_nested_branches(outer: np.ndarray[Any, Any], inner: np.ndarray[Any, Any]) -> None:
    check(NESTED, outer, inner, X)


def test_nested_results_are_made_in_the_output() -> None:
    """Copied are the constant and the input; the inner results are the outer one, the output."""
    found = instructions(NESTED)
    assert (found["COPY"], found["DISPATCH"], found["BRANCH"]) == (2, 4, 3)


SAME_TWICE = """
func @main(%c: bool[], %x: f32[3]) -> ("y", "z", "u") {
  %a = neg(%x) : f32[3]
  %y, %z = if(%c) : f32[3], f32[3] ^() {
    %e = exp(%a) : f32[3]
    yield(%e, %e)
  } ^() {
    yield(%a, %a)
  }
  return(%y, %z, %a)
}
"""


@pytest.mark.parametrize("condition", [YES, NO])
def test_one_value_is_several_results(condition: np.ndarray[Any, Any]) -> None:
    check(SAME_TWICE, condition, X)


COMPUTED = """
func @main(%n: i64[], %x: f32[3]) -> ("y") {
  %five = constant {value = i64[] <5>} : i64[]
  %c = less(%n, %five) : bool[]
  %a = neg(%x) : f32[3]
  %y = if(%c) : f32[3] ^() {
    %b = exp(%a) : f32[3]
    %d = add(%b, %a) : f32[3]
    yield(%d)
  } ^() {
    yield(%a)
  }
  %z = add(%y, %y) : f32[3]
  return(%z)
}
"""


def test_a_computed_condition() -> None:
    assert check(COMPUTED, count("4"), X)[0][1] != check(COMPUTED, count("5"), X)[0][1]


@pytest.mark.parametrize("value", [True, False])
def test_a_constant_condition_is_no_load(value: bool) -> None:
    text = BOTH.replace(
        "%y, %z = if(%c)",
        f"%k = constant {{value = bool[] <{str(value).lower()}>}} : bool[]\n  %y, %z = if(%k)",
    )
    check(text, NO, X)
    assert instructions(text)["LOAD"] == 0


SHORT = """
func @main(%c: bool[], %x: f32[1, 1, N]) -> ("y") {
  %y = if(%c) : f32[1, 1, 1] ^() {
    %a = max_pool(%x) {kernel = [4], strides = [1], dilations = [1], pads = [0, 0]}
      : f32[1, 1, N - 3] @"pool"
    %b = neg(%a) : f32[1, 1, N - 3]
    %s = reduce_sum(%b) {axes = [2], keepdims = true} : f32[1, 1, 1]
    yield(%s)
  } ^() {
    %k = constant {value = f32[1, 1, 1] <7.0>} : f32[1, 1, 1]
    yield(%k)
  }
  return(%y)
}
"""


def test_what_has_no_room_in_a_branch_is_refused_only_where_it_runs() -> None:
    with program(SHORT) as loaded:
        long, short = np.arange(5, dtype=F).reshape(1, 1, 5), np.zeros((1, 1, 2), F)
        assert loaded.run([YES, long])[0].tolist() == [[[-7]]]
        assert loaded.run([NO, long])[0].tolist() == [[[7]]]
        assert loaded.run([NO, short])[0].tolist() == [[[7]]]
        with pytest.raises(RuntimeFailure) as caught:
            loaded.run([YES, short])
        assert str(caught.value) == (
            'pool: there is nothing left of its input: N - 3 is -1; N is 2, axis 2 of input "x"'
        )
        assert loaded.run([YES, long])[0].tolist() == [[[-7]]]


# loop

COUNTED = f"""
func @main(%n: i64[], %x: f32[3]) -> ("y") {{
  %zero = constant {{value = f32[3] <splat 0.0>}} : f32[3]
  %y = loop(%n, _, %zero) : f32[3] ^(%i: i64[], %sum: f32[3]) {{
    %e = exp(%x) : f32[3]
    %next = add(%sum, %e) : f32[3]
    {TRUE}
    yield(%on, %next)
  }}
  return(%y)
}}
"""


@pytest.mark.parametrize("n", [0, 1, 2, 5, -3])
def test_a_loop_runs_as_often_as_it_is_told(n: int) -> None:
    check(COUNTED, np.array(n, np.int64), X)


def test_a_constant_count_is_no_load() -> None:
    text = COUNTED.replace(
        "%y = loop(%n", "%k = constant {value = i64[] <3>} : i64[]\n  %y = loop(%k"
    )
    check(text, count("0"), X)
    assert instructions(text)["LOAD"] == 0


def test_no_run_copies_what_it_makes() -> None:
    """The initial value is copied in and the result out: it may be in either of two places."""
    found = instructions(COUNTED)
    assert (found["COPY"] + found["FILL"], found["DISPATCH"]) == (2, 2)


WHILE = """
func @main(%go: bool[], %x: i64[], %limit: i64[]) -> ("y") {
  %y = loop(_, %go, %x) : i64[] ^(%i: i64[], %v: i64[]) {
    %twice = add(%v, %v) : i64[]
    %on = less(%twice, %limit) : bool[]
    yield(%on, %twice)
  }
  return(%y)
}
"""


@pytest.mark.parametrize("go", [YES, NO])
def test_a_condition_ends_a_loop(go: np.ndarray[Any, Any]) -> None:
    check(WHILE, go, count("3"), count("100"))
    check(WHILE, go, count("200"), count("100"))


def test_a_loop_without_end_uses_up_its_budget() -> None:
    """The runtime never hangs on a file that is not trusted."""
    from tests.support.runtime_api import opened

    data = compiled(WHILE).to_bytes()
    with opened(data, work_budget=1000) as opened_program:
        inputs = [YES, count("0"), count("1")]
        with pytest.raises(Exception, match="the work budget of 1000 is used up"):
            opened_program(*inputs)


SWAP = f"""
func @main(%n: i64[], %a: f32[3], %b: f32[3]) -> ("x", "y") {{
  %x, %y = loop(%n, _, %a, %b) : f32[3], f32[3] ^(%i: i64[], %p: f32[3], %q: f32[3]) {{
    {TRUE}
    yield(%on, %q, %p)
  }}
  return(%x, %y)
}}
"""


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_carried_values_change_places(n: int) -> None:
    check(SWAP, np.array(n, np.int64), X, X + 10)


@pytest.mark.parametrize("n", [0, 1, 5, 6, 9])
def test_fibonacci(n: int) -> None:
    a, b = np.array([1]), np.array([1])
    found = check(FIBONACCI, np.array(n, np.int64), a, b)
    assert found[1][:, 0].tolist() == [[1, 2, 3, 5, 8, 13][i] if i < n else 0 for i in range(6)]


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_carried_values_of_every_kind(n: int) -> None:
    """Inputs, constants and dispatches go in; what is made, unchanged, constant, of outside, or
    yielded twice comes out."""
    check(KINDS, np.array(n, np.int64), X)


LOOP_IN_LOOP = f"""
func @main(%n: i64[], %m: i64[], %x: f32[3]) -> ("y", "rows") {{
  %start = abs(%x) : f32[3]
  %y, %rows = loop(%n, _, %start) {{trips = 3}} : f32[3], f32[3, 2, 3]
      ^(%i: i64[], %sum: f32[3]) {{
    %scale = cast(%i) {{to = f32}} : f32[]
    %inner, %grid = loop(%i, _, %sum) {{trips = 2}} : f32[3], f32[2, 3]
        ^(%j: i64[], %part: f32[3]) {{
      %moved = add(%part, %x) : f32[3]
      %more = add(%moved, %scale) : f32[3]
      {TRUE}
      yield(%on, %more, %moved)
    }}
    {TRUE}
    yield(%on, %inner, %grid)
  }}
  return(%y, %rows)
}}
"""


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
def test_loops_in_loops(n: int) -> None:
    """The number of the outer run is the inner one's count, from a register, and is a kernel's
    operand, from memory; inner rows are made in the outer rows."""
    check(LOOP_IN_LOOP, np.array(n, np.int64), count("1"), X)
    found = instructions(LOOP_IN_LOOP)
    assert (found["STORE"], found["LOAD"]) == (1, 1)


IF_IN_LOOP = """
func @main(%n: i64[], %x: f32[3]) -> ("y", "seen") {
  %zero = constant {value = f32[3] <splat 0.0>} : f32[3]
  %y, %seen = loop(%n, _, %zero) {trips = 6} : f32[3], f32[6, 3] ^(%i: i64[], %sum: f32[3]) {
    %two = constant {value = i64[] <2>} : i64[]
    %half = div(%i, %two) : i64[]
    %back = mul(%half, %two) : i64[]
    %even = equal(%i, %back) : bool[]
    %next, %row = if(%even) : f32[3], f32[3] ^() {
      %a = add(%sum, %x) : f32[3]
      %b = neg(%a) : f32[3]
      yield(%a, %b)
    } ^() {
      yield(%sum, %x)
    }
    %four = constant {value = i64[] <4>} : i64[]
    %on = less(%i, %four) : bool[]
    yield(%on, %next, %row)
  }
  return(%y, %seen)
}
"""


@pytest.mark.parametrize("n", [0, 1, 2, 5, 6])
def test_branches_in_a_loop_that_ends_early(n: int) -> None:
    check(IF_IN_LOOP, np.array(n, np.int64), X)


@pytest.mark.parametrize("condition", [YES, NO])
@pytest.mark.parametrize("extent", [0, 1, 4])
def test_a_scan_in_a_branch(condition: np.ndarray[Any, Any], extent: int) -> None:
    x = np.arange(2 * extent, dtype=F).reshape(extent, 2)
    check(LOOP_IN_IF, condition, count("0"), x)


def test_every_row_is_made_by_a_scan() -> None:
    """So none is cleared before; and what is stacked is made in the output's rows."""
    text = f"""
    func @main(%x: f32[N, 2]) -> ("rows") {{
      %rows = loop(_, _) {{trips = N}} : f32[N, 2] ^(%i: i64[]) {{
        %row = gather(%x, %i) {{axis = 0}} : f32[2]
        %next = exp(%row) : f32[2]
        {TRUE}
        yield(%on, %next)
      }}
      return(%rows)
    }}
    """
    check(text, np.arange(6, dtype=F).reshape(3, 2))
    found = instructions(text)
    assert (found["FILL"], found["COPY"], found["DISPATCH"]) == (0, 0, 2)


def test_rows_of_runs_that_do_not_happen_are_zero_again() -> None:
    with twin(IF_IN_LOOP) as run:
        run(count("6"), X)
        run(count("1"), X)
        run(count("0"), X)


def test_loops_of_symbolic_shapes() -> None:
    """Places come from the runtime's plan; they change with the shapes, and registers follow."""
    text = f"""
    func @main(%n: i64[], %x: f32[N, W]) -> ("y", "rows") {{
      %e = exp(%x) : f32[N, W]
      %y, %rows = loop(%n, _, %e) {{trips = W}} : f32[N, W], f32[W, N, W]
          ^(%i: i64[], %v: f32[N, W]) {{
        %a = add(%v, %x) : f32[N, W]
        %part = slice(%a) {{starts = [1, 0], stops = [N, W], steps = [1, 1]}}
          : f32[max(N - 1, 0), W]
        %s = reduce_sum(%part) {{axes = [0], keepdims = true}} : f32[1, W]
        %next = add(%a, %s) : f32[N, W]
        {TRUE}
        yield(%on, %next, %a)
      }}
      %z = neg(%y) : f32[N, W]
      return(%z, %rows)
    }}
    """
    with twin(text) as tied, twin(text, ties=False) as plain:
        for n, w, times in ((2, 3, 2), (5, 1, 1), (2, 3, 9), (4, 2, 0)):
            x = np.linspace(0, 1, n * w, dtype=F).reshape(n, w)
            tied(np.array(times, np.int64), x)
            plain(np.array(times, np.int64), x)
        assert tied.loaded.prepare_count == 3


TIED = f"""
func @main(%n: i64[], %x: f32[64]) -> ("y") {{
  %a = neg(%x) : f32[64]
  %y = loop(%n, _, %a) : f32[64] ^(%i: i64[], %v: f32[64]) {{
    %next = add(%x, %v) : f32[64]
    {TRUE}
    yield(%on, %next)
  }}
  return(%y)
}}
"""


def test_a_tied_value_is_carried_on_in_place() -> None:
    """One buffer for all: the operand's, which dies in the loop. Without ties it takes two."""
    for n in (0, 1, 4):
        check(TIED, np.array(n, np.int64), np.arange(64, dtype=F))
    tied = compiled(TIED).image.variants[0].entry_points[0].program
    plain = compiled(TIED, ties=False).image.variants[0].entry_points[0].program
    assert (tied.arena_bytes, plain.arena_bytes) == (256, 512)
    assert section(TIED)["arena_lower_bound_bytes"] == 256


def test_what_is_read_later_is_not_carried_in_place() -> None:
    text = TIED.replace(
        "%next = add(%x, %v) : f32[64]",
        "%made = add(%x, %v) : f32[64]\n    %next = sub(%made, %v) : f32[64]",
    )
    for n in (0, 1, 4):
        check(text, np.array(n, np.int64), np.arange(64, dtype=F))
    kept = TIED.replace("return(%y)", "%z = add(%y, %a) : f32[64]\n  return(%z)")
    for n in (0, 1, 4):
        check(kept, np.array(n, np.int64), np.arange(64, dtype=F))


def test_what_a_loop_uses_from_outside_lives_until_it_ends() -> None:
    """%a is read in each run: nothing that a run makes may take its place."""
    text = f"""
    func @main(%n: i64[], %x: f32[64]) -> ("y") {{
      %a = neg(%x) : f32[64]
      %b = exp(%x) : f32[64]
      %y = loop(%n, _, %b) : f32[64] ^(%i: i64[], %v: f32[64]) {{
        %p = add(%v, %a) : f32[64]
        %q = abs(%p) : f32[64]
        %next = sub(%q, %v) : f32[64]
        {TRUE}
        yield(%on, %next)
      }}
      return(%y)
    }}
    """
    for n in (0, 1, 2, 5):
        check(text, np.array(n, np.int64), np.linspace(-1, 1, 64, dtype=F))


def test_no_allocation_at_known_shapes() -> None:
    from tests.support.runtime_api import CountingAllocator, opened

    allocator = CountingAllocator()
    with opened(compiled(IF_IN_LOOP).to_bytes(), allocator) as loaded:
        loaded(count("3"), X)
        calls = allocator.calls
        for n in range(8):
            loaded(np.array(n, np.int64), X)
        assert allocator.calls == calls
    assert not allocator.errors


def test_a_loop_cannot_carry_what_has_gaps() -> None:
    text = f"""
    func @main(%n: i64[], %x: f32[4, 4]) -> ("y") {{
      %e = exp(%x) : f32[4, 4]
      %s = slice(%e) {{starts = [0, 0], stops = [4, 2], steps = [1, 1]}} : f32[4, 2]{{strides=4:1}}
      %y = loop(%n, _, %s) : f32[4, 2]{{strides=4:1}}
          ^(%i: i64[], %v: f32[4, 2]{{strides=4:1}}) {{
        %next = neg(%v) : f32[4, 2]{{strides=4:1}}
        {TRUE}
        yield(%on, %next)
      }}
      %z = abs(%y) : f32[4, 2]
      return(%z)
    }}
    """
    with pytest.raises(InternalError, match="what has gaps must be copied by a dispatch"):
        compiled(text)


def test_a_part_from_outside_lives_in_what_a_run_assembles() -> None:
    """%a is made once, before the loop, in the memory that every run completes."""
    text = f"""
    func @main(%n: i64[], %x: f32[16]) -> ("y") {{
      %a = neg(%x) : f32[16]
      %b = abs(%x) : f32[16]
      %y = loop(%n, _, %b) : f32[16] ^(%i: i64[], %v: f32[16]) {{
        %p = tanh(%v) : f32[16]
        %q = sub(%p, %x) : f32[16]
        %r = exp(%q) : f32[16]
        %whole = concat_alias(%a, %r) {{axis = 0}} : f32[32]
        %m = slice(%whole) {{starts = [8], stops = [24], steps = [1]}} : f32[16]
        %s = abs(%m) : f32[16]
        %u = exp(%q) : f32[16]
        %w = sub(%s, %u) : f32[16]
        %t = sub(%w, %q) : f32[16]
        {TRUE}
        yield(%on, %t)
      }}
      return(%y)
    }}
    """
    for n in (0, 1, 3):
        check(text, np.array(n, np.int64), np.linspace(-1, 1, 16, dtype=F))


def test_the_number_of_a_run_is_a_value_like_others() -> None:
    """It is stacked, carried, yielded by a branch, an inner loop's operand and its count, and the
    conditions are carried as well."""
    text = """
    func @main(%n: i64[], %go: bool[]) -> ("last", "all", "chosen", "inner", "on") {
      %minus = constant {value = i64[] <-1>} : i64[]
      %last, %flag, %all, %chosen, %inner = loop(%n, %go, %minus, %go) {trips = 5}
        : i64[], bool[], i64[5], i64[5], i64[5, 2] ^(%i: i64[], %before: i64[], %on: bool[]) {
        %three = constant {value = i64[] <3>} : i64[]
        %less = less(%i, %three) : bool[]
        %pick = if(%on) : i64[] ^() {
          yield(%i)
        } ^() {
          yield(%before)
        }
        %same, %row = loop(%i, %on, %i) {trips = 2} : i64[], i64[2] ^(%j: i64[], %k: i64[]) {
          %sum = add(%i, %j) : i64[]
          yield(%less, %sum, %k)
        }
        yield(%less, %i, %less, %i, %pick, %row)
      }
      return(%last, %all, %chosen, %inner, %flag)
    }
    """
    for n in (0, 1, 2, 5, 7):
        for go in (YES, NO):
            check(text, np.array(n, np.int64), go)
