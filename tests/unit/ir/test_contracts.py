"""What the IR's own functions refuse: the errors that their docstrings promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.errors import AotError, CompileError, InternalError
from aot.ir import expr as e
from aot.ir.builtin import CONSTANT
from aot.ir.compare import attr_key, modules_equal
from aot.ir.dim_parser import parse
from aot.ir.dims import symbol
from aot.ir.equalities import solve
from aot.ir.graph import Block, ConstantData, Function, Module, Op
from aot.ir.interpreter.interpreter import run
from aot.ir.record import count_shape_rules, register
from aot.ir.rewriter import Rewriter
from aot.ir.text.parser import parse_module
from aot.ir.types import DType, Layout, TensorType, to_physical
from aot.ops import elementwise

N = symbol("N")
F32 = DType.F32


def chain() -> tuple[Function, Op, Op]:
    """x -> neg -> relu -> y"""
    b = Builder()
    y = b.op("relu", b.op("neg", b.input("x", "f32[3]")))
    b.output("y", y)
    main = b.module().main
    neg, relu = list(main.block)[:2]
    return main, neg, relu


def of_type(text: str) -> TensorType:
    return parse_module(f"func @f(%x: {text}) {{ return }}").functions["f"].inputs[0].type


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: DType.of(np.dtype(np.complex64)), "element type complex64 is not supported"),
        (lambda: Layout.parse("order=0"), "layout 'order=0' does not stand in braces"),
        (lambda: Layout.parse("{order=x}"), "layout field order=x is not a list of numbers"),
        (lambda: Layout.parse("{splits=1}"), "layout field splits=1 is not a list of dim/factor"),
        (lambda: TensorType(F32, (N,)).shape, "type f32[N] is not static"),
        (
            lambda: of_type("f32[4, 8]{splits=1/8}").strides,
            "type f32[4, 8]{splits=1/8} splits a dim: it has no logical strides",
        ),
        (
            lambda: to_physical(np.zeros(4), of_type("f32[4]{strides=2}")),
            "type f32[4]{strides=2} has strides: it has no dense physical array",
        ),
        (lambda: e.unary("turn", e.index(1)), "unknown unary op 'turn'"),
        (lambda: e.binary("turn", e.index(1), e.index(1)), "unknown binary op 'turn'"),
        (
            lambda: e.binary("add", e.index(1), e.Const(F32, 1.0)),
            "add of index and f32",
        ),
        (
            lambda: e.select(e.Const(DType.BOOL, True), e.index(1), e.Const(F32, 1.0)),
            "select of index and f32",
        ),
        (
            lambda: parse(f"max({', '.join(f'a{n}' for n in range(200))})"),
            "dim 'max(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, "
            "a16, a' is "
            "too large",
        ),
    ],
)
def test_values_that_are_none(action: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        action()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("type", "problem"),
    [
        (TensorType(F32, (1 << 20, 1 << 28)), "that is more than fits into memory"),
        (TensorType(F32, (4,), Layout(splits=((1, 2),))), "a split names no dim or has no factor"),
        (TensorType(F32, (4,), Layout(strides=(1, 1))), "there are 2 strides for 1 physical dims"),
        (TensorType(F32, (-1,)), "an extent is negative"),
    ],
)
def test_types_say_what_is_wrong(type: TensorType, problem: str) -> None:
    assert type.problem == problem


def test_a_span_without_elements_is_empty() -> None:
    assert TensorType(F32, (3, 0), Layout(strides=(4, 1))).span == 0


def _in_no_block() -> None:
    main, neg, _ = chain()
    Rewriter(main).at(Op(elementwise.NEG, neg.operands, {}, [neg.result.type]))


def _rewired() -> None:
    main, _, relu = chain()
    other = Rewriter(main).at(relu).create(CONSTANT, [], {"value": ConstantData(np.zeros(4))})
    Rewriter(main).set_operand(relu, 0, other.result)


def _replaced() -> None:
    main, neg, _ = chain()
    Rewriter(main).replace_op(neg, [])


def _erased() -> None:
    main, neg, _ = chain()
    Rewriter(main).erase(neg)


def _input_in_use() -> None:
    main, _, _ = chain()
    Rewriter(main).erase_input(main.inputs[0])


def _moved() -> None:
    main, neg, _ = chain()
    loose = Op(elementwise.NEG, neg.operands, {}, [neg.result.type])
    Rewriter(main).move_before(loose, neg)


def _two_functions() -> None:
    module = Module()
    for _ in range(2):
        module.add(Function("f", Block()))


def _no_end() -> None:
    function, *_ = chain()
    Rewriter(function).erase(function.block.terminator)
    run(function, [np.zeros(3, np.float32)])


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (_in_no_block, "<op neg> is in no block"),
        (_rewired, "operand 0 of <op relu> has type f32[3], the new value has f64[4]"),
        (_replaced, "<op neg> has 1 results, got 0"),
        (_erased, "<op neg> is erased but its result 0 is used"),
        (_moved, "moving an op that is in no block"),
        (_two_functions, "module has two functions named 'f'"),
        (lambda: Block().terminator, "block is empty: it has no terminator"),
        (
            lambda: ConstantData(np.zeros(3), TensorType(F32, (4,))),
            "constant of type f32[4] with an array of (3,)",
        ),
        (lambda: attr_key(object), "<class 'object'> of type type is no attribute"),
        (lambda: register(elementwise.NEG), "op 'neg' is defined twice"),
        (_no_end, "a block of function 'main' has no terminator"),
    ],
)
def test_bugs_of_passes_are_internal_errors(action: Callable[[], Any], message: str) -> None:
    with pytest.raises(InternalError) as caught:
        action()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "attrs", "operands", "message"),
    [
        ("cast", {"to": 3}, 1, "cast: attribute to is 3, expected dtype"),
        ("pack", {"layout": 3}, 1, "pack: attribute layout is 3, expected layout"),
        ("transpose", {"perm": 1}, 1, "transpose: attribute perm is 1, expected ints"),
        ("broadcast_to", {"shape": 1}, 1, "broadcast_to: attribute shape is 1, expected dims"),
    ],
)
def test_attributes_of_another_type(
    name: str, attrs: dict[str, Any], operands: int, message: str
) -> None:
    b = Builder()
    x = b.input("x", "f32[3]")
    with pytest.raises(AotError) as caught:
        b.op(name, *[x] * operands, **attrs)
    assert str(caught.value) == message


def test_counters_of_shape_rules_add_up() -> None:
    with count_shape_rules() as outer:
        with count_shape_rules() as inner:
            chain()
        with count_shape_rules(is_hidden=True) as hidden:
            chain()
    assert inner.calls == hidden.calls == outer.calls > 0


def test_modules_that_differ_inside_a_block_are_not_equal() -> None:
    text = "func @f(%x: f32[3]) {{ %y = region(%x) : f32[3] ^(%z: f32[3]) {{ {} }} return }}"
    first = parse_module(text.format("%a = neg(%z) : f32[3] yield(%a)"))
    for other in (
        "%a = relu(%z) : f32[3] yield(%a)",
        "%a = neg(%z) : f32[3] yield(%z)",
        "%a = neg(%z) : f32[3] %b = neg(%a) : f32[3] yield(%b)",
    ):
        assert not modules_equal(first, parse_module(text.format(other)))


@pytest.mark.parametrize("inputs", ["%x: f32[N], %y: f32[6//N]", "%y: f32[6//N], %x: f32[N]"])
def test_a_dim_that_divides_by_zero(inputs: str) -> None:
    module = parse_module(f'func @f({inputs}) -> ("y") {{ return(%y) }}')
    with pytest.raises(CompileError) as caught:
        run(module.functions["f"], {"x": np.zeros(0, np.float32), "y": np.zeros(1, np.float32)})
    assert str(caught.value) == "dim 6//N divides by zero"


def test_memory_that_is_not_dense_is_copied() -> None:
    array = np.arange(6, dtype=np.float32)[::2]
    data = ConstantData.borrowed(array)
    array[0] = 9
    assert data.array.tolist() == [0, 2, 4]


def test_no_symbol_of_a_number() -> None:
    assert solve(4) is None
