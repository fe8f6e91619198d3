"""Programs with calls and tuples run, and compute what the interpreter says that they mean."""

from __future__ import annotations

import numpy as np
import pytest

import aot
from aot.errors import CompileError
from aot.frontends.text import import_text
from aot.ir.interpreter.interpreter import run

PROGRAMS = {
    "a call of a call": """
func @main(%x: f32[4]) -> ("y") {
  %p = call(%x) {function = @twice} : f32[4]
  %y = add(%p, %x) : f32[4]
  return(%y)
}
func @twice(%v: f32[4]) -> ("r") {
  %p = call(%v) {function = @once} : f32[4]
  %r = call(%p) {function = @once} : f32[4]
  return(%r)
}
func @once(%v: f32[4]) -> ("r") {
  %r = tanh(%v) : f32[4]
  return(%r)
}
""",
    "a call that writes what it is given": """
func @main(%x: f32[4]) -> ("y") {
  %m = neg(%x) : f32[4]
  %r = call(%m, %x) {function = @add_to} : f32[4]
  %y = mul(%m, %r) : f32[4]
  return(%y)
}
func @add_to(%v: f32[4], %w: f32[4]) -> ("r") {
  %s = sub(%v, %w) : f32[4]
  %n = assign(%v, %s) : f32[4]
  %r = exp(%n) : f32[4]
  return(%r)
}
""",
    "a list of known positions": """
func @main(%x: f32[4]) -> ("y") {
  %a = neg(%x) : f32[4]
  %b = exp(%x) : f32[4]
  %t = tuple(%a, %b) : f32[2, 4]
  %one = constant {value = i64[] <1>} : i64[]
  %row = get(%t, %one) : f32[4]
  %w = assign(%row, %a) : f32[4]
  %y = add(%w, %b) : f32[4]
  return(%y)
}
""",
    "all of a tuple": """
func @main(%x: f32[4]) -> ("y") {
  %a = neg(%x) : f32[4]
  %t = tuple(%a, %x, %a) : f32[3, 4]
  %y = exp(%t) : f32[3, 4]
  return(%y)
}
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run(name: str) -> None:
    x = np.array([0.25, -1.5, 2.0, 0.0], np.float32)
    module = import_text(PROGRAMS[name])
    (expected,) = run(module.main, {"x": x.copy()}, module=module)
    with aot.load(aot.compile(PROGRAMS[name].encode())) as program:
        np.testing.assert_allclose(program({"x": x})["y"], expected, rtol=2e-6)


def test_calls_without_an_end_are_refused() -> None:
    text = """
func @main(%x: f32[4]) -> ("y") {
  %y = call(%x) {function = @f} : f32[4] @"Start"
  return(%y)
}
func @f(%v: f32[4]) -> ("r") {
  %r = call(%v) {function = @f} : f32[4] @"Again"
  return(%r)
}
"""
    with pytest.raises(CompileError) as caught:
        aot.compile(text.encode())
    assert str(caught.value) == (
        "call (node 'Again'): @main calls @f calls @f, without an end; a loop can be compiled"
    )


ROWS = """
func @main(%x: f32[4], %n: i64[]) -> ("all", "one") {
  %a = neg(%x) : f32[4]
  %w = assign(%x, %a) : f32[4]
  %t = tuple(%a, %x, %w) : f32[3, 4]
  %row = get(%t, %n) : f32[4]
  %one = exp(%row) : f32[4]
  %all = exp(%t) : f32[3, 4]
  %again = assign(%x, %one) : f32[4]
  return(%all, %one)
}
"""


@pytest.mark.parametrize("number", [-1, 0, 2, 7])
def test_a_row_that_a_run_chooses_is_a_copy(number: int) -> None:
    """Its memory is written before the tuple is made, and after its last use."""
    module, n = import_text(ROWS), np.array(number)
    ours, theirs = (np.arange(4, dtype=np.float32) / 4 for _ in "ab")
    wanted = run(module.main, [theirs, n], module=module)
    with aot.load(aot.compile(import_text(ROWS), targets=["host"])) as program:
        found = program(x=ours, n=n)
    for array, name in zip((*wanted, theirs), ("all", "one", "x.next"), strict=True):
        np.testing.assert_allclose(found[name], array, rtol=1e-5)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
