"""Models that no input fits are refused, with what asks for what."""

from __future__ import annotations

import numpy as np
import pytest

import aot
from aot.builder import Builder


def test_a_dim_that_would_have_to_be_two_numbers() -> None:
    b = Builder()
    x, y = b.input("x", "f32[N, 4]"), b.input("y", "f32[N, M]")
    three, four = np.zeros(3, np.float32), np.zeros(4, np.float32)
    b.output("y", b.op("add", b.op("add", x, y), four))
    with pytest.raises(aot.CompileError, match=r"M would have to be \d .*and \d "):
        b.output("z", b.op("add", y, three))
        aot.compile(b.module())


@pytest.mark.parametrize("says", ["2*N == 5", "N + 3 == 1"])
def test_a_dim_that_no_number_satisfies(says: str) -> None:
    text = f"""func @main(%x: f32[N]) -> ("y") assume [
  {says} "they are as long as another",
] {{
  %y = relu(%x) : f32[N]
  return(%y)
}}
"""
    with pytest.raises(aot.CompileError, match="they are as long as another: "):
        aot.compile(text.encode())


def test_what_fits_some_input_is_compiled() -> None:
    text = """func @main(%x: f32[N]) -> ("y") assume [
  2*N == 6 "one",
  N + 1 == 4 "another",
] {
  %y = relu(%x) : f32[N]
  return(%y)
}
"""
    with aot.load(aot.compile(text.encode())) as program:
        assert program(x=np.ones(3, np.float32))["y"].shape == (3,)
