"""State variables that grow: written behind what is there, up to a capacity, at every length."""

from __future__ import annotations

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
from tests.support.control_sources import CACHE
from tests.support.runtime_api import CountingAllocator, Failed, opened

F = np.float32


def rows(*values: float) -> np.ndarray[Any, Any]:
    """f32[1, n, 2]: each value in a row, and its negative beside it."""
    return np.array([[[v, -v] for v in values]], F).reshape(1, len(values), 2)


# The heads' rows lie a capacity apart.
HEADS = """
func @main(%new: f32[2, 1, 3]) -> ("all", "prior") assume [
  min(P + 1, 5) == P + 1 "the cache",
] {
  %past = state {variable = "k", dtype = f32, shape = [2, P, 3], layout = {strides=15:3:1},
    capacity = 5, axis = 1, length = P} : f32[2, P, 3]{strides=15:3:1}
  %other = state {variable = "v", dtype = f32, shape = [2, P, 3], layout = {strides=15:3:1},
    capacity = 5, axis = 1, length = P} : f32[2, P, 3]{strides=15:3:1}
  %made = exp(%new) : f32[2, 1, 3]{strides=15:3:1}
  %minus = neg(%new) : f32[2, 1, 3]{strides=15:3:1}
  %present = concat_alias(%past, %made) {axis = 1} : f32[2, P + 1, 3]{strides=15:3:1}
  %values = concat_alias(%other, %minus) {axis = 1} : f32[2, P + 1, 3]{strides=15:3:1}
  %all = sub(%present, %values) : f32[2, P + 1, 3]
  %prior = reduce_sum(%other) {axes = [1], keepdims = false} : f32[2, 3]
  %1 = state {variable = "k", dtype = f32, shape = [2, P + 1, 3], layout = {strides=15:3:1},
    capacity = 5, axis = 1, length = P} : f32[2, P + 1, 3]{strides=15:3:1}
  %2 = assign(%1, %present) : f32[2, P + 1, 3]{strides=15:3:1}
  %3 = state {variable = "v", dtype = f32, shape = [2, P + 1, 3], layout = {strides=15:3:1},
    capacity = 5, axis = 1, length = P} : f32[2, P + 1, 3]{strides=15:3:1}
  %4 = assign(%3, %values) : f32[2, P + 1, 3]{strides=15:3:1}
  return(%all, %prior)
}
"""

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
    """Each part is made in its place; the length is a scalar that prepare reads."""
    made = program_of(CACHE)
    assert (made.state_bytes, made.state_count, made.state_key_count) == (64, 1, 1)
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


def test_plans_are_for_lengths_too() -> None:
    """Four plans are kept: lengths that come back need no prepare. A run that leaves the length as
    it is goes on with its plan."""
    with program(CACHE) as loaded:
        for _ in range(3):
            for n in (1, 1, 1):
                loaded.run([rows(*range(n)), W])
            loaded.reset()
        assert loaded.prepare_count == 3
        loaded.run([rows(), W])
        loaded.run([rows(), W])
        assert loaded.prepare_count == 4


DEEP = HEADS.replace("capacity = 5", "capacity = 50").replace("=15:3:1", "=150:3:1")
DEEP = DEEP.replace("min(P + 1, 5)", "min(P + 1, 50)").replace(
    "%all = sub(%present, %values)",
    "%e = exp(%present) : f32[2, P + 1, 3]\n  %all = sub(%e, %values)",
)


def test_an_arena_that_grows_keeps_the_state() -> None:
    sizes: list[int] = []
    with twin(DEEP) as run:
        for n in range(50):
            run(np.full((2, 1, 3), n / 50, F))
            sizes.append(run.loaded.arena_bytes)
        assert sizes[0] < sizes[20] < sizes[49] == run.loaded.arena_bound_bytes
        assert len(set(sizes)) < 12  # half as much again at a time


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
    assert failures > 6
    assert not allocator.errors


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
    assert (made.state_bytes, made.state_count, made.state_key_count) == (128, 2, 1)
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
