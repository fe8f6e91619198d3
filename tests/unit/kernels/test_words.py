"""Movement of words, results that are packed when they run, and integers in as many bits as memory
keeps: against the interpreter, on this machine as every target that it is."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from aot.backends.cpu.compile import emit_assembly
from aot.ir import expr
from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run
from aot.ir.text.parser import parse_module
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, BufferClass
from aot.kernels.lowering import lower
from aot.kernels.nest.narrow import in_kept_bits
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.executables import graph_of, type_of
from tests.support.kernel_backends import on_cpu
from tests.support.lowering import run_executable, to_memory
from tests.support.lowering_checks import check

Array = np.ndarray[Any, Any]
NATIVE = native_targets()


def numbers(dtype: str, *shape: int) -> Array:
    return np.random.default_rng(1).integers(-90, 90, shape).astype(DType(dtype).numpy)


@pytest.mark.parametrize("dtype", ["u8", "f16", "f32", "i64"])
@pytest.mark.parametrize("word", [2, 3, 4, 8])
def test_words_that_are_transposed(word: int, dtype: str) -> None:
    for rows, columns in ((4, 16), (35, 21), (64, 3)):
        data = numbers(dtype, 2, rows, columns, word)
        for target in NATIVE:
            function = graph_of([type_of(data)], ("transpose", {"perm": [0, 2, 1, 3]}))
            check(function, [data], target, 1, 0.0, on_cpu(target))


def packed(rows: int, sums: int, order: str, layout: str, *, is_shifted: bool) -> Function:
    type_ = f"i8[2, 3, {rows}, {sums}]"
    source = "u8" if is_shifted else "i8"
    value = "%0"
    shift = ""
    if is_shifted:
        i32 = type_.replace("i8", "i32") + order
        shift = f"""
          %2 = cast(%0) {{to = i32}} : {i32}
          %3 = sub(%2, %1) : {i32}
          %4 = cast(%3) {{to = i8}} : {type_}{order}"""
        value = "%4"
    text = f"""
        executable @e(%0: {type_.replace("i8", source)}{order}, %1: i32[]) -> ("r0")
        bindings [1, 0, 1] {{{shift}
          %5 = pack({value}) {{layout = {layout}}} : {type_}{layout}
          return(%5)
        }}
        """
    (function,) = parse_module(text).executables
    return function


@pytest.mark.parametrize("is_shifted", [False, True])
@pytest.mark.parametrize("order", ["", "{order=0:2:1:3}", "{order=0:3:1:2}", "{order=3:2:1:0}"])
@pytest.mark.parametrize(
    "layout",
    [
        "{splits=3/16:2/4 order=0:1:3:2:4:5}",
        "{splits=2/16:3/4 order=0:1:2:3:4:5}",
        "{splits=3/8:2/2 order=0:1:3:2:4:5}",
    ],
)
def test_packed_when_it_runs(layout: str, order: str, *, is_shifted: bool) -> None:
    for rows, sums in (
        (16, 16),
        (64, 48),
        (32, 80),
        (33, 64),
        (7, 32),
        (48, 97),
        (31, 18),
        (255, 20),
    ):
        function = packed(rows, sums, order, layout, is_shifted=is_shifted)
        data = numbers("u8" if is_shifted else "i8", 2, 3, rows, sums)
        given = [data, np.array([77], np.int32)]
        (wanted,) = run(function, [data, np.array(77, np.int32)])
        laid = [to_memory(a, v.type, {}) for a, v in zip(given, function.inputs, strict=True)]
        for target in NATIVE:
            engine = on_cpu(target)
            (got,) = run_executable(function, targets.load(target), laid, [], engine)
            np.testing.assert_array_equal(got, wanted)


def test_words_go_through_registers() -> None:
    """A block of 16 words of each of 16 rows is 16 loads, 16 stores and shuffles."""
    function = packed(
        64, 400, "{order=0:3:1:2}", "{splits=3/16:2/4 order=0:1:3:2:4:5}", is_shifted=False
    )
    target = targets.load("x86-64-v4")
    lines = emit_assembly(lower(function, target), target).splitlines()
    assert not any("vpextr" in line or "vpinsr" in line for line in lines)
    assert sum("%zmm" in line for line in lines) < 140


def test_narrow_arithmetic_keeps_the_lowest_bits() -> None:
    i32, i8 = DType.I32, DType.I8
    buffer = Buffer("x", DType.U8, (8,), (1,), BufferClass.INPUTS, expr.Var("o"))
    number = expr.cast(expr.Load(buffer, (expr.Var("i"),), DType.U8), i32)
    for op, constant in itertools.product(("add", "sub", "and", "or", "xor"), (-300, -1, 77, 200)):
        value = expr.cast(expr.binary(op, number, expr.const(constant, i32)), i8)
        found = in_kept_bits(value)
        assert all(e.dtype is not i32 for e in expr.nodes(found))
    for op in ("mul", "max", "min", "floordiv"):
        value = expr.cast(expr.binary(op, number, expr.const(3, i32)), i8)
        assert in_kept_bits(value) is value
