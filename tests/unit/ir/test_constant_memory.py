"""The bytes of a constant: those that its array lies in, where these are all of it."""

from __future__ import annotations

import numpy as np

from aot.ir.graph import ConstantData


def test_bytes_that_an_array_lies_in_are_not_copied() -> None:
    held = bytes(range(48))
    data = ConstantData(np.frombuffer(held, "<u4").reshape(3, 4))
    assert data.bytes is held


def test_a_part_or_another_order_of_bytes_is_copied() -> None:
    held = bytes(range(48))
    array = np.frombuffer(held, "<u4")
    assert ConstantData(array[4:]).bytes == held[16:]
    turned = ConstantData(array.reshape(3, 4).T)
    assert turned.bytes == np.ascontiguousarray(array.reshape(3, 4).T).tobytes()
    swapped = ConstantData(np.frombuffer(held, ">u4"))
    assert swapped.bytes == array.byteswap().tobytes()
