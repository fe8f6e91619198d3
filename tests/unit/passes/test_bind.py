"""Inputs that the user gives shapes and values: what they cannot be, in one line."""

from __future__ import annotations

from typing import Any

import pytest

from aot.builder import Builder
from aot.errors import CompileError
from aot.options import CompileOptions
from aot.passes import bind
from aot.passes.base import PassContext


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"input_values": {"x": 1j}},
            "value of input 'x': element type complex128 is not supported",
        ),
        ({"input_values": {"x": [[1], [1, 2]]}}, "value of input 'x': setting an array element"),
        (
            {"input_shapes": {"x": ("a b", 3)}},
            "shape of input 'x': expected the end, found 'b' in dim 'a b'",
        ),
        (
            {"input_shapes": {"x": (1 << 46, 3)}},
            "input 'x': with N = 70368744177664 its type f32[N, 3] becomes "
            "f32[70368744177664, 3]: that is more than fits into memory",
        ),
        (
            {"input_shapes": {"x": (1 << 43, 3)}},
            "broadcast_to (node 'wide'): with N = 8796093022208 its type f32[N, 999] becomes "
            "f32[8796093022208, 999]: that is more than fits into memory",
        ),
        (
            {"input_shapes": {"x": (4,)}},
            "input 'x' has 2 dims (N, 3), 1 are given (4)",
        ),
    ],
)
def test_what_an_input_cannot_be(options: dict[str, Any], message: str) -> None:
    b = Builder()
    x = b.input("x", "f32[N, 3]")
    row = b.op("reduce_sum", x, axes=(1,), keepdims=True)
    shape = (x.type.dims[0], 999)
    b.output("y", b.op("broadcast_to", row, shape=shape, origin="wide"))
    with pytest.raises(CompileError) as caught:
        bind.run(b.module(), PassContext(CompileOptions(**options)))
    assert str(caught.value).startswith(message)
