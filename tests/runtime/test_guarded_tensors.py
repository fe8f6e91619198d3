"""What a caller gives for inputs and outputs is all that a run touches: with a page without access
behind the last byte of each tensor, or before the first, every op computes what it does elsewhere.
The arena and workers' scratch end at such pages too, but for what their alignment leaves.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.support.guarded import PAGE, Guarded, GuardedArray
from tests.support.runtime_api import CountingAllocator, opened
from tests.support.samples_module import NATIVE, compare, compiled, entries, expected, inputs_of

MOST = 24  # samples in an entry point


class GuardingAllocator(CountingAllocator):
    """Memory that ends at a page without access, as nearly as its alignment lets it."""

    def _allocate(self, user: int, size: int, alignment: int) -> int | None:
        room = -(-size // alignment) * alignment
        block = Guarded(b"\xa5" * (-(-room // PAGE) * PAGE))
        address = block.address + block.size - room
        self.live[address] = (size, alignment, block)
        return address


@pytest.mark.parametrize("side", ["before", "behind"])
@pytest.mark.parametrize("target", [n for n in NATIVE if n != "x86-64-v3-128"])
def test_samples_touch_their_tensors_alone(target: str, side: str) -> None:
    data = compiled(target, MOST)
    for entry, cases in entries(MOST).items():
        allocator = GuardingAllocator()
        wanted = {name: array for case in cases for name, array in expected(case).items()}
        with opened(data, allocator, entry=entry.encode()) as program:
            inputs = [
                GuardedArray(np.array(array, order="C"), at_end=side == "behind")
                for array in inputs_of(cases).values()
            ]
            outputs = [
                GuardedArray(np.zeros_like(array), at_end=side == "behind")
                for array in wanted.values()
            ]
            for number, given in enumerate(inputs):
                program.set_input(number, given.array)
            for number, made in enumerate(outputs):
                program.set_output(number, made.array)
            program.run()
            compare(cases, {name: m.array for name, m in zip(wanted, outputs, strict=True)})
        assert not allocator.errors
        assert not allocator.live


def test_pages_are_where_arrays_end() -> None:
    """What these tests rely on, by the addresses."""
    for like in (np.arange(5, dtype=np.float32), np.arange(3, dtype=np.int8)):
        behind, before = (GuardedArray(like, at_end=at_end) for at_end in (True, False))
        np.testing.assert_array_equal(behind.array, before.array)
        assert (behind.array.ctypes.data + like.nbytes) % PAGE == 0
        assert before.array.ctypes.data % PAGE == 0
        assert ctypes.string_at(before.array.ctypes.data, like.nbytes) == like.tobytes()
