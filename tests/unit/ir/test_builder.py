"""The public builder: what it accepts, what it makes, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder, parse_type
from aot.errors import CompileError
from aot.frontends.text import load_text
from aot.ir.dims import symbol
from aot.ir.graph import Value
from aot.ir.text.printer import print_module
from aot.ir.types import DType, TensorType
from aot.ir.verifier import verify


def test_it_is_public() -> None:
    assert aot.builder.Builder is Builder


def test_operands_of_every_kind() -> None:
    b = Builder()
    x = b.input("x", "i32[N]")
    y = b.op("add", b.op("mul", x, 3), np.array([1, 2], np.int32))
    b.output("y", b.op("minimum", y, np.int32(7)))
    assert print_module(b.module()) == (
        'func @main(%x: i32[N]) -> ("y") assume [\n  N == 2 "add: operands broadcast",\n] {\n'
        "  %0 = constant {value = i32[] <3>} : i32[]\n"
        "  %1 = mul(%x, %0) : i32[N]\n"
        "  %2 = constant {value = i32[2] <1, 2>} : i32[2]\n"
        "  %3 = add(%1, %2) : i32[2]\n"
        "  %4 = constant {value = i32[] <7>} : i32[]\n"
        "  %5 = minimum(%3, %4) : i32[2]\n"
        "  return(%5)\n}\n"
    )


def test_attributes_as_people_write_them() -> None:
    b = Builder()
    x = b.input("x", "f32[N, 6]")
    b.output("a", b.op("cast", x, to="i32"))
    b.output("b", b.op("reshape", x, shape=["N", 2, np.int64(3)]))
    b.output("c", b.op("transpose", x, perm=np.array([1, 0])))
    b.output("d", b.op("fill", shape=(2, "N + 1"), value=np.float32(2.5)))
    module = b.module()
    verify(module)
    assert [str(v.type) for v in module.main.results] == [
        "i32[N, 6]",
        "f32[N, 2, 3]",
        "f32[6, N]",
        "f32[2, N + 1]",
    ]


def test_constants() -> None:
    b = Builder()
    assert str(b.constant(1.5).type) == "f32[]"
    assert str(b.constant(2).type) == "i64[]"
    assert str(b.constant([True]).type) == "bool[1]"
    assert str(b.constant(np.zeros(3)).type) == "f64[3]"
    assert str(b.constant([1, 2], "u8").type) == "u8[2]"
    array = np.zeros(2, np.float32)
    value = b.constant(array, name="w")
    array[0] = 1
    assert value.name == "w"
    assert value.op is not None and value.op.attrs["value"].array[0] == 0  # type: ignore[union-attr]


def test_several_results_and_blocks() -> None:
    b = Builder()
    x = b.input("x", "f32[3]")

    def body(a: Value, c: Value) -> list[Value]:
        return [b.op("add", a, c), b.op("sub", a, c)]

    total, difference = b.op(
        "region",
        x,
        x,
        blocks=[b.block(["f32[3]"] * 2, body, ["a", "c"])],
        hint=["total", "difference"],
    )
    b.output("t", total)
    b.output("d", difference)
    module = b.module()
    verify(module)
    assert "%total, %difference = region(%x, %x) : f32[3], f32[3] ^(%a: f32[3], %c: f32[3]) {" in (
        print_module(module)
    )


def test_types() -> None:
    assert parse_type("f32[N, 2*W + 1]{order=1:0}").layout is not None
    assert parse_type("bool[]") == TensorType(DType.BOOL, ())
    assert parse_type("i64[N]").dims == (symbol("N"),)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b, x: b.input("x", "f32[]"), "there are two inputs named 'x'"),
        (lambda b, x: [b.output("y", x), b.output("y", x)], "there are two outputs named 'y'"),
        (
            lambda b, x: b.input("z", "f32[N"),
            "line 1, column 6: expected ',', found the end of the text",
        ),
        (
            lambda b, x: b.input("z", "f32[N] f"),
            "line 1, column 8: expected the end of the type, found 'f'",
        ),
        (lambda b, x: b.op("relux", x), "there is no op 'relux'; docs/internals/ops.md lists them"),
        (
            lambda b, x: b.op("relu", x, origin="n", slope=1.0),
            "relu (node 'n'): unknown attribute 'slope', expected one of []",
        ),
        (
            lambda b, x: b.op("add", x, np.zeros(2, np.float32)),
            "add: operands do not broadcast: shapes (3) and (2), dim -1 is 3 and 2",
        ),
        (
            lambda b, x: b.op("add", x, 2.0, np.float32(1)),
            "add: has 3 operands, expected at most 2",
        ),
        (lambda b, x: [b.module(), b.op("relu", x)], "function 'main' is finished"),
    ],
)
def test_refuses(build: Callable[[Builder, Value], Any], message: str) -> None:
    b = Builder()
    with pytest.raises(CompileError) as caught:
        build(b, b.input("x", "f32[3]"))
    assert str(caught.value) == message


def test_text_files(tmp_path: Path) -> None:
    b = Builder()
    b.output("y", b.op("relu", b.input("x", "f32[N]")))
    path = tmp_path / "model.ir"
    path.write_text(print_module(b.module()), encoding="utf-8")
    assert print_module(load_text(path)) == print_module(b.module())
    path.write_bytes(b"func @\xff")
    with pytest.raises(CompileError) as caught:
        load_text(path)
    assert str(caught.value) == f"{path}: not UTF-8 text: byte 6 is 0xff"
    path.write_text("func", encoding="utf-8")
    with pytest.raises(CompileError) as caught:
        load_text(path)
    assert str(caught.value) == f"{path}: line 1, column 5: expected '@', found the end of the text"
    with pytest.raises(CompileError, match=r"missing.ir: No such file or directory$"):
        load_text(tmp_path / "missing.ir")
