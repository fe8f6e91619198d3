"""The verifier finds every broken invariant and shows the op; it accepts what the rules accept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.errors import CompileError, InternalError
from aot.frontends.text import import_text
from aot.ir.builtin import CONSTANT, RETURN, YIELD
from aot.ir.dims import symbol
from aot.ir.graph import Block, ConstantData, Function, Module, Op, Value
from aot.ir.rewriter import Rewriter
from aot.ir.text.parser import parse_module
from aot.ir.types import DType, Layout, TensorType
from aot.ir.verifier import verify
from aot.ops.arg import ARG_MAX
from aot.ops.elementwise import ADD, CAST
from aot.ops.movement import BROADCAST_TO


def module() -> Module:
    """x -> neg -> relu -> region(neg) -> y"""
    b = Builder()
    x = b.input("x", "f32[N, 3]")
    y = b.op("relu", b.op("neg", x, origin="first"))
    inner = b.block([y.type], lambda v: b.op("neg", v))
    b.output("y", b.op("region", y, blocks=[inner]))
    return b.module()


def ops(m: Module) -> list[Op]:
    return list(m.main.walk())


def unlink_order(m: Module) -> None:
    neg, relu = ops(m)[:2]
    Rewriter(m.main).move_before(relu, neg)


def forget_use(m: Module) -> None:
    relu = ops(m)[1]
    operand = relu.operands[0]
    assert operand is not None
    operand.uses.clear()


def extra_use(m: Module) -> None:
    m.main.inputs[0].uses[(ops(m)[1], 0)] = None


def no_terminator(m: Module) -> None:
    Rewriter(m.main).erase(m.main.block.terminator)


def wrong_terminator(m: Module) -> None:
    block = m.main.block
    value = block.terminator.operands[0]
    Rewriter(m.main).erase(block.terminator)
    Rewriter(m.main).create(YIELD, [value])


def early_terminator(m: Module) -> None:
    Rewriter(m.main).at(ops(m)[0]).create(RETURN, [m.main.inputs[0]])


def wrong_type(m: Module) -> None:
    Rewriter(m.main).set_type(ops(m)[1].result, TensorType(DType.F32, (symbol("N"), 4)))


def wrong_dtype(m: Module) -> None:
    Rewriter(m.main).set_type(ops(m)[0].result, TensorType(DType.I32, (symbol("N"), 3)))


def unknown_symbol(m: Module) -> None:
    m.main.inputs[0].type = TensorType(DType.F32, (symbol("M"), 3))


def bad_layout(m: Module) -> None:
    Rewriter(m.main).set_type(
        ops(m)[0].result, TensorType(DType.F32, (symbol("N"), 3), Layout(order=(0, 0)))
    )


def missing_attribute(m: Module) -> None:
    op = Op(CAST, [m.main.inputs[0]], {}, [TensorType(DType.I32, m.main.inputs[0].type.dims)])
    Rewriter(m.main).at(m.main.block.terminator).insert(op)


def capture(m: Module) -> None:
    inner_neg = ops(m)[3]
    inner_neg.operands[0] = None
    value = ops(m)[0].result
    Rewriter(m.main).set_operand(inner_neg, 0, value)


def region_result_type(m: Module) -> None:
    Rewriter(m.main).set_type(ops(m)[2].result, TensorType(DType.F32, (3, 3)))


def region_argument(m: Module) -> None:
    region = ops(m)[2]
    block = region.blocks[0]
    block.args.append(Value(TensorType(DType.F32, ()), block, 1))


def unassumed(m: Module) -> None:
    function = m.main
    y = Value(TensorType(DType.F32, (symbol("M"), 3)), function.block, 1, "z")
    function.block.args.append(y)
    Rewriter(function).at(function.block.terminator).create(ADD, [function.inputs[0], y])
    function.assumptions.clear()


def lost_place(m: Module) -> None:
    ops(m)[0].result.index = 5


def names_twice(m: Module) -> None:
    m.main.result_names.append("z")


def name_clash(m: Module) -> None:
    function = m.main
    function.block.args.append(Value(TensorType(DType.F32, ()), function.block, 1, "x"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            unlink_order,
            "operand 0 is not defined before the op, in its block or one around it\n"
            "  %0 = relu(%1) : f32[N, 3]",
        ),
        (forget_use, "operand 0 does not list the op among its uses\n  %1 = relu(%0) : f32[N, 3]"),
        (extra_use, "value 'x' lists a use that is not there"),
        (
            no_terminator,
            "a block does not end with a terminator\n  %2 = region(%1) : f32[N, 3] "
            "^(%3: f32[N, 3]) {\n    %4 = neg(%3) : f32[N, 3]\n    yield(%4)\n  }",
        ),
        (wrong_terminator, "a block of a function ends with yield, expected return\n  yield(%2)"),
        (early_terminator, "a terminator stands inside its block\n  return(%x)"),
        (
            wrong_type,
            "result 0 has type f32[N, 4], the shape rule gives f32[N, 3]\n"
            "  %1 = relu(%0) : f32[N, 4]",
        ),
        (
            wrong_dtype,
            "result 0 has type i32[N, 3], the shape rule gives f32[N, 3]\n"
            '  %0 = neg(%x) : i32[N, 3] @"first"',
        ),
        (
            unknown_symbol,
            "result 0 has type f32[N, 3], the shape rule gives f32[M, 3]\n"
            '  %0 = neg(%x) : f32[N, 3] @"first"',
        ),
        (
            bad_layout,
            "type f32[N, 3]{order=0:0} is wrong: order is not a permutation of 2 physical "
            'dims\n  %0 = neg(%x) : f32[N, 3]{order=0:0} @"first"',
        ),
        (missing_attribute, "cast: attribute 'to' is missing\n  %5 = cast(%x) : i32[N, 3]"),
        (
            capture,
            "operand 0 is not defined before the op, in its block or one around it\n"
            "  %4 = neg(%0) : f32[N, 3]",
        ),
        (
            region_result_type,
            "yielded value 0 has type f32[N, 3], the op has f32[3, 3]\n"
            "  %2 = region(%1) : f32[3, 3] ^(%3: f32[N, 3]) {\n"
            "    %4 = neg(%3) : f32[N, 3]\n    yield(%4)\n  }",
        ),
        (
            region_argument,
            "expected 1 of block argument, found 2\n"
            "  %2 = region(%1) : f32[N, 3] ^(%3: f32[N, 3], %4: f32[]) {\n"
            "    %5 = neg(%3) : f32[N, 3]\n    yield(%5)\n  }",
        ),
        (
            unassumed,
            "the op relies on N == M, which the function does not assume\n"
            "  %5 = add(%x, %z) : f32[N, 3]",
        ),
        (lost_place, 'result 0 does not know its place\n  %0 = neg(%x) : f32[N, 3] @"first"'),
        (names_twice, "has 1 results and 2 names for them\n  return(%2)"),
        (name_clash, "two inputs are named 'x'"),
    ],
)
def test_finds(damage: Callable[[Module], None], message: str) -> None:
    m = module()
    verify(m)
    damage(m)
    with pytest.raises(InternalError) as caught:
        verify(m)
    assert str(caught.value) == f"function 'main': {message}"


def _header(**fields: Any) -> Callable[[Module], None]:
    """Other attributes of the function."""

    def damage(m: Module) -> None:
        for name, value in fields.items():
            setattr(m.main, name, value)

    return damage


def renamed(m: Module) -> None:
    m.functions["main"].name = "other"


def disowned_block(m: Module) -> None:
    ops(m)[2].blocks[0].owner = m.main


def lost_argument(m: Module) -> None:
    m.main.inputs[0].index = 3


def too_many_results(m: Module) -> None:
    neg = ops(m)[0]
    neg.results = [*neg.results, Value(neg.result.type, neg, 1)]


def absent_result(m: Module) -> None:
    Rewriter(m.main).set_operand(m.main.block.terminator, 0, None)


def incomplete(m: Module) -> None:
    """An attribute that has a default value, which shape rules read all the same."""
    region = ops(m)[2]
    made = Rewriter(m.main).at(region).create(ARG_MAX, [ops(m)[0].result], {"axis": 0})
    del made.attrs["dtype"]


def state_of_a_result(**updates: str) -> Callable[[Module], None]:
    def damage(m: Module) -> None:
        m.main.updates.update(updates)

    return damage


def other_type(m: Module) -> None:
    value = m.main.inputs[0]
    z = Value(TensorType(DType.F32, (4,)), value.owner, 1, "z")  # type: ignore[arg-type]
    m.main.block.args.append(z)
    m.main.updates["y"] = "z"


def strange_symbol(m: Module) -> None:
    shape = {"shape": (symbol("Q"),)}
    Rewriter(m.main).at(m.main.block.terminator).create(BROADCAST_TO, [_scalar(m)], shape)


def _scalar(m: Module) -> Value:
    data = ConstantData(np.zeros((), np.float32))
    return Rewriter(m.main).at(ops(m)[0]).create(CONSTANT, [], {"value": data}).result


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_header(kind="thing"), "kind is 'thing', expected one of function, executable"),
        (disowned_block, "a block does not know its owner"),
        (lost_argument, "block argument 0 does not know its place"),
        (too_many_results, "the shape rule gives 1 results"),
        (absent_result, "a result is absent"),
        (incomplete, "attributes are not complete: dtype is missing"),
        (state_of_a_result(y="x", z="x"), "two results update one input"),
        (state_of_a_result(y="w"), "result 'y' updates input 'w': there are no such two"),
        (other_type, "result 'y' is f32[N, 3], the input that it updates f32[4]"),
        (_header(bindings=(1,)), "has 1 bindings for 1 inputs and 1 results"),
        (_header(bindings=("K", 0)), "the buffer class K is none of its dim parameters"),
        (_header(schedule=(None, None)), "has schedules of 2 stages for 1 results"),
        (strange_symbol, "type f32[Q] has symbol Q, which no input has"),
    ],
)
def test_finds_what_is_wrong_with_a_function(
    damage: Callable[[Module], None], message: str
) -> None:
    m = module()
    damage(m)
    with pytest.raises(InternalError) as caught:
        verify(m)
    assert str(caught.value).partition("\n")[0] == f"function 'main': {message}"


def test_a_function_has_the_name_that_its_module_knows() -> None:
    m = module()
    renamed(m)
    with pytest.raises(InternalError, match="^function 'other' is in its module as 'main'$"):
        verify(m)


def test_broken_links() -> None:
    m = module()
    ops(m)[1].prev = None
    with pytest.raises(InternalError, match="the linked list of a block is broken"):
        verify(m)
    m = module()
    m.main.block._count = 9
    with pytest.raises(InternalError, match="a block says it has 9 ops, 4 are linked"):
        verify(m)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'func @f(%x: f32[N]) -> ("a") assume [ N == K "why" ] { return(%x) }',
            "function 'f': assumption N == K has symbol K, which no input has",
        ),
        (
            'func @f(%x: f32[N]) -> ("a") assume [ N + 1 == N "why" ] { return(%x) }',
            "function 'f': its assumptions contradict each other",
        ),
        (
            'func @f(%x: f32[3]) -> ("a") '
            "{ %y = dispatch(%x) {executable = @g} : f32[3] return(%y) }",
            "function 'f': the module has no function of that name\n"
            "  %y = dispatch(%x) {executable = @g} : f32[3]",
        ),
        (
            "executable @g[N](%x: f32[N]) { return(%x) }\n"
            'func @f(%x: f32[3]) -> ("a") '
            "{ %y = dispatch(%x) {executable = @g} : f32[3] return(%y) }",
            "function 'f': function 'g' has 1 dim parameters, 0 are given\n"
            "  %y = dispatch(%x) {executable = @g} : f32[3]",
        ),
        (
            'executable @g[N](%x: f32[N]) { return(%x) }\nfunc @f(%x: f32[3]) -> ("a") '
            "{ %y = dispatch(%x) {executable = @g, dims = [4]} : f32[3] return(%y) }",
            "function 'f': input of 'g' 0 has type f32[4], the op has f32[3]\n"
            "  %y = dispatch(%x) {executable = @g, dims = [4]} : f32[3]",
        ),
        (
            'func @f(%x: f32[3]) -> ("a", "a") { return(%x, %x) }',
            "function 'f': two results are named 'a'",
        ),
        (
            'func @f(%x: f32[3]) -> ("a") { %y = region(%x) : f32[3] return(%y) }',
            "function 'f': expected one block, found 0\n  %y = region(%x) : f32[3]",
        ),
    ],
)
def test_users_text_gives_compile_errors(text: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        import_text(text)
    assert str(caught.value) == message


def test_text_without_functions() -> None:
    with pytest.raises(CompileError, match="^a.ir: there is no function$"):
        import_text("# nothing", "a.ir")


def test_executables_take_renamed_dims() -> None:
    text = (
        "executable @g[A, B](%x: f32[A, 3], %y: f32[B, 3]) {{\n"
        "  %z = add(%x, %y) : f32[{}]\n  return(%z)\n}}"
    )
    verify(parse_module(text.format("A, 3")))
    verify(parse_module(text.format("B, 3")))
    with pytest.raises(
        CompileError,
        match=r"expected type f32\[A, 3\] for result of add, "
        r"found f32\[A, 4\]",
    ):
        parse_module(text.format("A, 4"))


def test_equal_under_assumptions() -> None:
    text = (
        'func @f(%x: f32[N], %y: f32[2*M]) -> ("z") assume [\n  N == 2*M "why",\n] {{\n'
        "  %z = add(%x, %y) : f32[{}]\n  return(%z)\n}}"
    )
    for dim in ("N", "2*M"):
        verify(parse_module(text.format(dim)))
    with pytest.raises(CompileError, match=r"found f32\[M\]"):
        parse_module(text.format("M"))


def test_one_function_can_be_checked_alone() -> None:
    function = Function("f", Block())
    with pytest.raises(InternalError, match="^during a test: function 'f': a block does not end"):
        verify(function, during="during a test")
    Rewriter(function).create(RETURN, [])
    verify(function)
