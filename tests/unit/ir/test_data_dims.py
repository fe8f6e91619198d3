"""Dims that values give: what limits them, where they may be used, what the interpreter says."""

from __future__ import annotations

import numpy as np
import pytest

from aot.errors import CompileError, InternalError
from aot.ir.data_dims import Largest, assumptions_by_last, extents_of, limit, limits_of
from aot.ir.dim_parser import parse
from aot.ir.dims import symbol
from aot.ir.graph import Assumption, Function
from aot.ir.interpreter.interpreter import run
from aot.ir.rewriter import Rewriter
from aot.ir.text.parser import parse_module
from aot.ir.text.printer import print_module
from aot.ir.verifier import verify
from aot.passes.simplify.dce import remove_dead

TEXT = """func @main(%x: f32[N], %k: i64[]) -> ("y") assume [
  min(N, n0) == n0 "k: its limit",
] {
  extent(%k) {dim = n0} @"k"
  %0 = slice(%x) {starts = [0], stops = [n0], steps = [1]} : f32[n0]
  return(%0)
}
"""


def main(text: str) -> Function:
    return parse_module(text).main


def test_text_round_trips() -> None:
    module = parse_module(TEXT)
    verify(module)
    assert print_module(module) == TEXT
    assert list(extents_of(module.main)) == ["n0"]
    assert list(assumptions_by_last(module.main)) == ["n0"]


@pytest.mark.parametrize(
    ("dim", "largest"),
    [
        ("N - 3", "N - 3"),
        ("n0", "H*W"),
        ("n1", "7"),
        ("2*n1 + N", "N + 14"),
        ("n0*n1", "7*H*W"),
        ("N - n1", "N"),
        ("n2", "min(7, N)"),
        ("(n1 + 3)//2", "5"),
        ("30//n1", "30"),
        ("max(n1, N)", "max(N, 7)"),
        ("min(n3, N)", "N"),
        ("max(n1 - 2, 0)", "5"),
        ("n3", None),
        ("n1*n3", None),
        ("n4", None),
    ],
)
def test_how_large_a_dim_can_be(dim: str, largest: str | None) -> None:
    limits = {"n0": "H*W", "n1": "7", "n2": "min(n1, N)", "n4": "n4 + 1"}
    names = ("n0", "n1", "n2", "n3", "n4")
    found = Largest(names, {n: parse(t) for n, t in limits.items()}).largest(parse(dim))
    assert found == (None if largest is None else parse(largest))


def test_limits_are_assumptions() -> None:
    n = symbol("n")
    assert limit(n, 5, "why") == Assumption(parse("min(n, 5)"), n, "why")
    assert limit(n, symbol("n") + 1, "why") is None
    assumed = [
        Assumption(parse(a), parse(b), "") for a, b in (("min(n, 9)", "n"), ("n", "min(n, M)"))
    ]
    assert limits_of({"n"}, assumed) == {"n": parse("min(9, M)")}
    assert limits_of({"m"}, assumed) == {}


def test_a_symbol_is_used_behind_what_gives_it() -> None:
    function = main(TEXT)
    extent, view, *_ = function.block
    Rewriter(function).move_before(view, extent)
    with pytest.raises(InternalError) as caught:
        verify(function)
    assert "symbol n0 is used where no value has given it" in str(caught.value)


def test_a_symbol_of_a_block_is_not_seen_outside() -> None:
    text = """func @main(%x: f32[9], %k: i64[], %c: bool[]) -> ("y") assume [
      min(n0, 9) == n0 "limit",
    ] {
      %0 = if(%c) : f32[] ^() {
        extent(%k) {dim = n0}
        %1 = slice(%x) {starts = [0], stops = [n0], steps = [1]} : f32[n0]
        %2 = reduce_sum(%1) {axes = [0], keepdims = false} : f32[]
        yield(%2)
      } ^() {
        %1 = slice(%x) {starts = [0], stops = [n0], steps = [1]} : f32[n0]
        %2 = reduce_sum(%1) {axes = [0], keepdims = false} : f32[]
        yield(%2)
      }
      return(%0)
    }"""
    with pytest.raises(CompileError) as caught:
        verify(main(text), error=CompileError)
    assert "symbol n0 is used where no value has given it" in str(caught.value)


def test_a_symbol_is_given_once() -> None:
    for other in ("n0", "N"):
        text = TEXT.replace('@"k"\n', f'@"k"\n  extent(%k) {{dim = {other}}}\n', 1)
        with pytest.raises(CompileError) as caught:
            verify(main(text), error=CompileError)
        assert f"symbol {other} is given a second time" in str(caught.value)


def test_what_is_no_extent() -> None:
    for text, message in (
        ("%k: i64[2]", "x has one element"),
        ("%k: f32[]", "operand 0 (x) is f32"),
    ):
        with pytest.raises(CompileError) as caught:
            parse_module(TEXT.replace("%k: i64[]", text))
        assert message in str(caught.value)
    with pytest.raises(CompileError) as caught:
        parse_module(TEXT.replace("dim = n0", "dim = 2*n0"))
    assert "dim is a symbol, or a number that is not negative" in str(caught.value)


def test_the_interpreter_gives_symbols() -> None:
    x = np.arange(5, dtype=np.float32)
    for k in (0, 3, 5):
        assert run(main(TEXT), [x, np.array(k)])[0].tolist() == x[:k].tolist()


def test_the_interpreter_checks_them() -> None:
    x = np.arange(5, dtype=np.float32)
    with pytest.raises(CompileError) as caught:
        run(main(TEXT), [x, np.array(-1)])
    assert str(caught.value) == "k: extent n0 is -1, which is negative"
    with pytest.raises(CompileError) as caught:
        run(main(TEXT), [x, np.array(6)])
    assert str(caught.value) == "k: its limit: min(N, n0) is 5, n0 is 6, they must be equal"


def test_a_number_is_checked() -> None:
    text = 'func @main(%k: i64[]) -> ("k") { extent(%k) {dim = 4} @"k" return(%k) }'
    assert run(main(text), [np.array(4)])[0] == 4
    with pytest.raises(CompileError) as caught:
        run(main(text), [np.array(5)])
    assert str(caught.value) == "k: an extent is 5, expected 4"


def test_what_nothing_names_is_dead() -> None:
    text = TEXT.replace("  return(%0)", "  %1 = neg(%x) : f32[N]\n  return(%1)")
    function = main(text)
    assert remove_dead(function) == 2
    assert not extents_of(function) and not function.assumptions
    assert remove_dead(main(TEXT)) == 0
