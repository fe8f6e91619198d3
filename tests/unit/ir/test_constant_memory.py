"""The bytes of a constant: those that its array lies in, where they are in order."""

from __future__ import annotations

import numpy as np

from aot.ir.graph import ConstantData


def test_bytes_that_an_array_lies_in_are_not_copied() -> None:
    held = bytes(range(48))
    array = np.frombuffer(held, "<u4")
    for some, first in ((array.reshape(3, 4), 0), (array[4:], 16)):
        made = ConstantData(some).bytes
        assert made == held[first:]
        assert np.shares_memory(np.frombuffer(made, np.uint8), array)


def test_another_order_of_bytes_is_copied() -> None:
    held = bytes(range(48))
    array = np.frombuffer(held, "<u4")
    turned = ConstantData(array.reshape(3, 4).T)
    assert turned.bytes == np.ascontiguousarray(array.reshape(3, 4).T).tobytes()
    swapped = ConstantData(np.frombuffer(held, ">u4"))
    assert swapped.bytes == array.byteswap().tobytes()
