"""State variables that grow: written behind what is there, up to a capacity, at every length."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.errors import InternalError, RuntimeFailure
from aot.tools.inspection import format_inspection, inspect
from tests.support.control_lowering import (
    Twin,
    assert_equal,
    compiled,
    instruction_names,
    program,
    program_of,
    twin,
)
from tests.support.control_sources import CACHE, HEADS
from tests.support.runtime_api import CountingAllocator, Failed, opened

F = np.float32


def rows(*values: float) -> np.ndarray[Any, Any]:
    """f32[1, n, 2]: each value in a row, and its negative beside it."""
    return np.array([[[v, -v] for v in values]], F).reshape(1, len(values), 2)


W = np.array([2, 3], F)


def grow(run: Twin, counts: tuple[int, ...]) -> None:
    for n in counts:
        run(rows(*range(1, n + 1)), W)


def test_a_growing_state_up_to_its_capacity_and_one_beyond() -> None:
    with twin(CACHE) as run:
        grow(run, (1, 2, 0, 2, 1))
        for _ in range(2):
            with pytest.raises(RuntimeFailure) as caught:
                run.loaded.run([rows(7), W])
            assert str(caught.value) == (
                'state "cache" holds at most 6 of 7 along dim 1; reset the program'
            )
            assert caught.value.status == "check"
        grow(run, (0,))  # what was there is unharmed
        run.reset()
        grow(run, (6,))
        run.reset()
        grow(run, (1, 1, 4))


def test_nothing_of_a_growing_state_is_copied() -> None:
    """Each part is made in its place; the length is a scalar that a run reads."""
    made = program_of(CACHE)
    assert (made.state_bytes, made.state_count, made.state_key_count) == (64, 1, 0)
    found = instruction_names(CACHE)
    assert "COPY" not in found
    assert (found.count("STATE"), found.count("SET_STATE")) == (1, 1)


def test_heads_lie_a_capacity_apart_and_variables_share_a_length() -> None:
    made = program_of(HEADS)
    assert (made.state_bytes, made.state_count) == (2 * 128, 1)
    assert "COPY" not in instruction_names(HEADS)
    with twin(HEADS) as run:
        for n in range(5):
            run(np.full((2, 1, 3), n / 4, F))
        with pytest.raises(RuntimeFailure, match=r'state "k" holds at most 5 of 6 along dim 1'):
            run.loaded.run([np.zeros((2, 1, 3), F)])


def test_a_state_that_grows_needs_no_plan() -> None:
    """A length is read when a run begins: plans are for the shapes of inputs alone."""
    with program(CACHE) as loaded:
        for _ in range(3):
            for _ in range(5):
                loaded.run([rows(1), W])
            loaded.reset()
        assert loaded.prepare_count == 1
        loaded.run([rows(), W])
        loaded.run([rows(1), W])
        assert loaded.prepare_count == 2
    with program(DEEP) as loaded:
        for _ in range(50):
            loaded.run([np.ones((2, 1, 3), F)])
        assert loaded.prepare_count == 1


def test_a_run_that_adds_more_than_a_state_holds_is_refused_before_memory_is_set_aside() -> None:
    with program(CACHE) as loaded:
        with pytest.raises(RuntimeFailure) as caught:
            loaded.run([rows(*range(7)), W])
        assert str(caught.value) == (
            'state "cache" holds at most 6 along dim 1, and one run adds 7'
        )
        assert loaded.run([rows(1), W])[0].shape == (1, 1, 2)


# Only the mask says how many rows are added: what it leaves depends on the state's length.
MASKED = CACHE.replace("%new: f32[1, n, 2], %w", "%mask: f32[P + n], %w").replace(
    "%made = mul(%new, %w)",
    "%row = reshape(%mask) {shape = [1, P + n, 1]} : f32[1, P + n, 1]\n"
    "  %tail = slice(%row) {starts = [0, P, 0], stops = [1, P + n, 1], steps = [1, 1, 1]}"
    " : f32[1, n, 1]\n"
    "  %made = mul(%tail, %w)",
)


def test_a_length_that_says_how_many_rows_are_added_is_a_key_of_plans() -> None:
    made = program_of(MASKED)
    assert (made.state_count, made.state_key_count) == (1, 1)
    with twin(MASKED) as run:
        for length in (1, 3, 3, 4):
            run(np.arange(length, dtype=F), W)
        assert run.loaded.prepare_count == 4


DEEP = HEADS.replace("capacity = 5", "capacity = 50").replace("=15:3:1", "=150:3:1")
DEEP = DEEP.replace("min(P + 1, 5)", "min(P + 1, 50)").replace(
    "%all = sub(%present, %values)",
    "%e = exp(%present) : f32[2, P + 1, 3]\n  %all = sub(%e, %values)",
)


def test_memory_is_for_the_capacity_at_once() -> None:
    sizes: list[int] = []
    with twin(DEEP) as run:
        for n in range(50):
            run(np.full((2, 1, 3), n / 50, F))
            sizes.append(run.loaded.arena_bytes)
        assert set(sizes) == {run.loaded.arena_bound_bytes}


def test_no_allocation_at_known_shapes() -> None:
    """The second time that the cache fills up allocates nothing: plans are made in their slots."""
    allocator = CountingAllocator()
    outputs = [np.empty((2, 50, 3), F), np.empty((2, 3), F)]
    with opened(compiled(DEEP).to_bytes(), allocator, caller_outputs=True) as loaded:
        for number, output in enumerate(outputs):
            loaded.set_output(number, output)
        loaded.set_input(0, np.ones((2, 1, 3), F))
        for _ in range(50):
            loaded.run()
        calls = allocator.calls
        for _ in range(2):
            loaded.reset()
            for _ in range(50):
                loaded.run()
        assert allocator.calls == calls
    assert not allocator.errors


def test_an_arena_that_cannot_grow_leaves_the_state() -> None:
    """Each allocation fails once; the run that needed it is done again, and the state is there."""
    data = compiled(DEEP).to_bytes()
    inputs = [np.full((2, 1, 3), n / 20, F) for n in range(20)]
    with opened(data) as loaded:
        expected = [loaded(x) for x in inputs]
    is_done, failures = False, 0
    while not is_done:
        allocator = CountingAllocator()
        with opened(data, allocator) as loaded:
            allocator.fail_at = allocator.calls + failures
            for x, wanted in zip(inputs, expected, strict=True):
                try:
                    found = loaded(x)
                except Failed as error:
                    assert error.status == "memory"
                    found = loaded(x)
                assert_equal(found, wanted)
            is_done = allocator.calls <= allocator.fail_at
        failures += 1
    assert failures > 4
    assert not allocator.errors


# 64 MiB of state, of which a run of one row touches eight rows, far from each other.
LONG = HEADS.replace("capacity = 5", "capacity = 65536").replace("strides=15:3:1", "strides=S")
LONG = LONG.replace("strides=S", "strides=1048576:16:1").replace(
    "min(P + 1, 5)", "min(P + 1, 65536)"
)
LONG = LONG.replace("[2, 1, 3]", "[8, 1, 16]").replace("[2, P, 3]", "[8, P, 16]")
LONG = LONG.replace("[2, P + 1, 3]", "[8, P + 1, 16]").replace("[2, 3]", "[8, 16]")
LONG = LONG.replace(
    "%all = sub(%present, %values) : f32[8, P + 1, 16]",
    """
  %both = sub(%present, %values) : f32[8, P + 1, 16]
  %all = reduce_sum(%both) {axes = [1], keepdims = false} : f32[8, 16]""",
)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="says what memory is in use")
def test_memory_for_the_capacity_is_not_touched_before_it_is_used(tmp_path: Path) -> None:
    def used() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    x = np.ones((8, 1, 16), F)
    with program(LONG) as loaded:
        begin = used()
        for _ in range(2):
            for _ in range(3):
                loaded.run([x])
            loaded.save_state(tmp_path / "s")
            loaded.reset()
            loaded.load_state(tmp_path / "s")
            loaded.reset()
        assert loaded.arena_bytes > 64 << 20
        assert used() - begin < 4 << 20


SHRINKING = """
func @main(%x: f32[n]) -> ("y") assume [min(P + n, 8) == P + n "the buffer"] {
  %past = state {variable = "b", dtype = f32, shape = [P], layout = {strides=1},
    capacity = 8, axis = 0, length = P} : f32[P]{strides=1}
  %present = concat(%x, %past) {axis = 0} : f32[P + n]
  %y = neg(%present) : f32[P + n]
  %kept = state {variable = "b", dtype = f32, shape = [P + n], layout = {strides=1},
    capacity = 8, axis = 0, length = P} : f32[P + n]{strides=1}
  %done = assign(%kept, %present) : f32[P + n]{strides=1}
  return(%y)
}
"""


def test_what_is_put_before_the_rest_is_made_in_the_other_half() -> None:
    made = program_of(SHRINKING)
    assert (made.state_bytes, made.state_count, made.state_key_count) == (128, 2, 0)
    with twin(SHRINKING) as run:
        for n in (2, 1, 0, 3, 2):
            run(np.arange(n, dtype=F) + n)
        with pytest.raises(RuntimeFailure, match="holds at most 8 of 9 along dim 0"):
            run.loaded.run([np.zeros(1, F)])
        run(np.zeros(0, F))


def test_a_length_that_an_input_shows_must_be_the_states() -> None:
    text = CACHE.replace("%w: f32[2])", "%w: f32[2], %mask: f32[P])").replace(
        '("all", "mean")', '("all", "mean", "m")'
    )
    end = "return(%all, %mean)"
    text = text.replace(end, "%m = neg(%mask) : f32[P]\n  return(%all, %mean, %m)")
    with program(text) as loaded:
        loaded.run([rows(1, 2), W, np.zeros(0, F)])
        loaded.run([rows(1), W, np.zeros(2, F)])
        with pytest.raises(RuntimeFailure) as caught:
            loaded.run([rows(1), W, np.zeros(2, F)])
        assert str(caught.value) == (
            'input "mask": axis 0 is 2, expected P; P is 3, the length of state "cache"'
        )
        loaded.run([rows(1), W, np.zeros(3, F)])


def test_variables_of_one_length_that_grow_unlike_are_refused() -> None:
    """The second one keeps its length, the first grows: they part after the first run."""
    text = CACHE.replace(
        "%made = mul",
        '%still = state {variable = "still", dtype = f32, shape = [P], layout = {strides=1},\n'
        "    capacity = 6, axis = 0, length = P} : f32[P]{strides=1}\n  %made = mul",
    ).replace('("all", "mean")', '("all", "mean", "s")')
    end = "return(%all, %mean)"
    text = text.replace(end, "%s = neg(%still) : f32[P]\n  return(%all, %mean, %s)")
    with program(text) as loaded:
        loaded.run([rows(1), W])
        with pytest.raises(RuntimeFailure) as caught:
            loaded.run([rows(1), W])
        assert str(caught.value) == (
            'state "still" has length 0, expected P = 1, the length of state "cache"; '
            "reset the program"
        )


def test_states_are_listed() -> None:
    with program(CACHE) as loaded:
        (state,) = loaded.states
        assert str(state) == "cache: f32[1, P, 2]"
        assert state.bounds == ((1, 1), (0, 6), (2, 2))
    facts = inspect(compiled(CACHE).to_bytes(), program=True)
    entry = facts["variants"][0]["entry_points"][0]
    assert entry["states"] == [
        {"name": "cache", "dtype": "f32", "dims": [1, {"text": "P", "min": 0, "max": 6}, 2]}
    ]
    assert entry["state_bytes"] == 64
    text = format_inspection(facts)
    assert "state  cache: f32[1, P<=6, 2]" in text
    assert "64 bytes that are kept" in text or "64 of them kept" in text
    assert "= STATE s0" in text
    assert "SET_STATE s0 r" in text


def test_what_lies_otherwise_is_refused() -> None:
    text = HEADS.replace(
        "%made = exp(%new) : f32[2, 1, 3]{strides=15:3:1}", "%made = exp(%new) : f32[2, 1, 3]"
    ).replace(
        "%present = concat_alias(%past, %made) {axis = 1} : f32[2, P + 1, 3]{strides=15:3:1}",
        "%present = concat(%past, %made) {axis = 1} : f32[2, P + 1, 3]",
    )
    with pytest.raises(InternalError, match="another layout must be copied by a dispatch"):
        compiled(text)


# Two blocks of 204 rows, of which 4, 64 to rewind and up to 127 others stay.
WINDOW = (
    HEADS.replace("[2, 1, 3]", "[2, n, 3]")
    .replace("P + 1", "P + n")
    .replace("capacity = 5", "capacity = 204")
    .replace("length = P}", "length = P, window = 4}")
    .replace("strides=15", "strides=612")
    .replace("min(P + n, 5)", "min(P + n, 204)")
)


def test_rows_of_a_window_move_to_the_start() -> None:
    found = instruction_names(WINDOW)
    assert found.count("COPY") == 2 * 2  # a block each, where rows leave
    assert program_of(WINDOW).state_count == 1
    with twin(WINDOW) as run:
        lengths = []
        for number, n in enumerate((9, 100, 86, 1, 0, 8, 119, 7, 130, 6)):
            run(np.random.default_rng(number).uniform(0, 1, (2, n, 3)).astype(F))
            lengths.append(run.loaded.state_length)
        assert lengths == [9, 109, 195, 68, 68, 76, 195, 74, 76, 82]
        with pytest.raises(RuntimeFailure, match='state "k" holds at most 204 of 205'):
            run.loaded.run([np.zeros((2, 123, 3), F)])
        run(np.ones((2, 1, 3), F))
        assert run.loaded.state_length == 83
        run.reset()
        run(np.ones((2, 1, 3), F))
