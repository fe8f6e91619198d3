"""Groups of any number of columns on targets that multiply by lanes, and channels that a shuffle
has apart: runs of them are loaded as vectors."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aot.backends.cpu.compile import emit_assembly
from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run
from aot.ir.text.parser import parse_module
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.lowering import run_executable, to_memory
from tests.support.lowering_checks import on_interpreter

TARGET = "aarch64-generic"


def shuffled(share: int, columns: int, groups: int, size: int, *, residual: bool) -> Function:
    """A product by groups of what a shuffle of `groups` made: `share` channels in each."""
    whole, made = share * groups, columns * groups
    result = f"f32[1, {made}, {size}, {size}]{{order=0:2:3:1}}"
    more = f", %r: {result}" if residual else ""
    add = f"%5 = add(%4, %r) : {result}\n" if residual else ""
    text = f"""
    executable @e0(
      %x: f32[1, {share}, {groups}, {size}, {size}]{{order=0:3:4:2:1}},
      %w: f32[{made}, {share}, 1, 1]{{order=2:3:1:0}}, %b: f32[{made}]{more}
    ) -> ("r0") bindings [2, 0, 0{", 2" if residual else ""}, 3] {{
      %1 = reshape(%x) {{shape = [1, {whole}, {size}, {size}]}} :
        f32[1, {whole}, {size}, {size}]{{order=0:2:3:1}}
      %4 = conv(%1, %w, %b) {{
        strides = [1, 1], dilations = [1, 1], pads = [0, 0, 0, 0], group = {groups}
      }} : {result}
      {add}%6 = relu({"%5" if residual else "%4"}) : {result}
      return(%6)
    }}
    """
    (function,) = parse_module(text).executables
    return function


def check(function: Function) -> None:
    rng = np.random.default_rng(5)
    arrays = [
        rng.integers(-3, 4, value.type.dims).astype(np.float32)  # type: ignore[arg-type]
        for value in function.inputs
    ]
    (wanted,) = run(function, arrays)
    memory = [to_memory(a, v.type, {}) for a, v in zip(arrays, function.inputs, strict=True)]
    (got,) = run_executable(function, targets.load(TARGET), memory, [], on_interpreter)
    np.testing.assert_array_equal(got, wanted)


# shares that the shuffle's groups divide, and that leave some; runs of whole vectors, and more
@pytest.mark.parametrize("share", [4, 15, 17, 18, 32, 34, 47])
@pytest.mark.parametrize("groups", [2, 4])
def test_runs(share: int, groups: int) -> None:
    check(shuffled(share, 8, groups, 3, residual=False))


# whole tiles, tiles that begin earlier, and fewer columns than a vector; one row more than tiles
@pytest.mark.parametrize("columns", [2, 8, 11, 12, 13, 20, 24, 27, 28, 34, 36, 45, 68])
@pytest.mark.parametrize("residual", [False, True])
def test_columns(columns: int, residual: bool) -> None:
    check(shuffled(16, columns, 2, 4, residual=residual))


def inner_loop(function: Function) -> list[str]:
    """The instructions of the loop with most products."""
    target = targets.load(TARGET)
    blocks = re.split(r"\n\.LBB\S+\n", emit_assembly(lower(function, target), target))
    most = max(blocks, key=lambda block: block.count("fmla"))
    return most.partition("\tb.ne")[0].splitlines()


def test_loads_of_runs_are_few() -> None:
    """Beside the products of four steps there are loads of four scalars a row."""
    loop = inner_loop(shuffled(68, 68, 4, 14, residual=True))
    products = sum("fmla" in line for line in loop)
    assert products >= 64
    assert len(loop) <= 1.32 * products
