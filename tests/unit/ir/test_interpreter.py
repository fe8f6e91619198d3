"""The reference interpreter: results, symbols from shapes, and every message about inputs."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.errors import CompileError, InternalError
from aot.ir.graph import Function, Module
from aot.ir.interpreter.interpreter import run
from aot.ir.text.parser import parse_module
from aot.ops.elementwise import NEG

F = np.float32


def function(text: str) -> Function:
    return parse_module(text).functions["f"]


ADD = function(
    'func @f(%x: f32[N, 3], %y: f32[M, 3]) -> ("sum", "shape") '
    'assume [ N == M "rows differ" ] { %s = add(%x, %y) : f32[N, 3] '
    "%d = shape_of(%s) : i64[2] return(%s, %d) }"
)


def test_by_position_and_by_name() -> None:
    x, y = np.ones((2, 3), F), np.full((2, 3), 2, F)
    total, shape = run(ADD, [x, y])
    np.testing.assert_array_equal(total, np.full((2, 3), 3, F), strict=True)
    np.testing.assert_array_equal(shape, np.array([2, 3]), strict=True)
    assert run(ADD, {"y": y, "x": x})[0].tolist() == total.tolist()


def test_symbols_in_types_and_attributes() -> None:
    f = function(
        'func @f(%x: f32[2*N + 1]) -> ("y") { %y = fill {shape = [N, max(N, 3)], '
        "value = f32[] <1.5>} : f32[N, max(N, 3)] return(%y) }"
    )
    assert run(f, [np.zeros(9, F)])[0].shape == (4, 4)
    assert run(f, [np.zeros(3, F)])[0].shape == (1, 3)


def test_a_later_input_may_solve_an_earlier_dim() -> None:
    f = function('func @f(%x: f32[N*M], %y: f32[N], %z: f32[N + M]) -> ("x") { return(%x) }')
    assert run(f, [np.zeros(6, F), np.zeros(2, F), np.zeros(5, F)])[0].shape == (6,)
    with pytest.raises(CompileError) as caught:
        run(f, [np.zeros(7, F), np.zeros(2, F), np.zeros(5, F)])
    assert str(caught.value) == "input 'x' has shape (7), expected (M*N): dim 0 is 7, not 6 (M*N)"


def test_symbols_can_be_given() -> None:
    f = function('func @f(%x: f32[N//2]) -> ("x") { return(%x) }')
    with pytest.raises(CompileError) as caught:
        run(f, [np.zeros(3, F)])
    assert str(caught.value) == "symbol N has no value: no input's shape determines it"
    assert run(f, [np.zeros(3, F)], symbols={"N": 7})[0].shape == (3,)
    with pytest.raises(CompileError) as caught:
        run(f, [np.zeros(3, F)], symbols={"N": 8})
    assert str(caught.value) == "input 'x' has shape (3), expected (N//2): dim 0 is 3, not 4 (N//2)"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([np.ones((2, 3), F)], "function 'f' has 2 inputs, 1 are given"),
        ({"x": 0, "z": 0}, "there is no input 'z', expected 'x', 'y'"),
        ({"x": 0}, "input 'y' is missing, expected 'x', 'y'"),
        ([np.ones((2, 3), F), np.ones((2, 3))], "input 'y' is f64, expected f32"),
        (
            [np.ones((2, 3), F), np.ones(3, F)],
            "input 'y' has shape (3), expected (M, 3): it has 1 dims, not 2",
        ),
        (
            [np.ones((2, 3), F), np.ones((2, 4), F)],
            "input 'y' has shape (2, 4), expected (M, 3): dim 1 is 4, not 3",
        ),
        (
            [np.ones((2, 3), F), np.ones((4, 3), F)],
            "rows differ: N is 2, M is 4, they must be equal",
        ),
    ],
)
def test_wrong_inputs(inputs: Any, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        run(ADD, inputs)
    assert str(caught.value) == message


def test_no_whole_number_fits() -> None:
    f = function('func @f(%x: f32[2*N + 1]) -> ("x") { return(%x) }')
    for extent in (4, 0):
        with pytest.raises(
            CompileError,
            match=rf"^input 'x' has shape \({extent}\), expected "
            rf"\(2\*N \+ 1\): no N makes dim 0 \(2\*N \+ 1\) "
            rf"{extent}$",
        ):
            run(f, [np.zeros(extent, F)])


def test_regions_and_dispatches() -> None:
    module = parse_module(
        "executable @twice[A, B](%x: f32[A, B]) { %y = add(%x, %x) : f32[A, B] return(%y) }\n"
        'func @main(%x: f32[N, 3]) -> ("y") {\n'
        "  %1 = region(%x) : f32[N, 3] ^(%a: f32[N, 3]) { %b = neg(%a) : f32[N, 3] yield(%b) }\n"
        "  %2 = dispatch(%1) {executable = @twice, dims = [N, 3]} : f32[N, 3]\n"
        "  return(%2)\n}"
    )
    (y,) = run(module.main, [np.ones((2, 3), F)], module=module)
    np.testing.assert_array_equal(y, np.full((2, 3), -2, F))
    with pytest.raises(InternalError, match="^no module is given to find the function in\n  %1 = "):
        run(Function("f", module.main.block), [np.ones((2, 3), F)])


def test_layouts_do_not_change_what_is_computed() -> None:
    f = function(
        'func @f(%x: f32[3, 2]) -> ("y") {\n'
        "  %1 = constant {value = f32[3, 2]{splits=0/4 order=0:1:2} "
        "<1.0, 3.0, 5.0, 0.0, 2.0, 4.0, 6.0, 0.0>} : f32[3, 2]{splits=0/4 order=0:1:2}\n"
        "  %2 = add(%x, %1) : f32[3, 2]\n  return(%2)\n}"
    )
    np.testing.assert_array_equal(
        run(f, [np.zeros((3, 2), F)])[0], np.array([[1, 2], [3, 4], [5, 6]], F)
    )


def broken(reference: Any) -> Module:
    b = Builder()
    b.output("y", b.op("neg", b.input("x", "f32[3]")))
    module = b.module()
    op = module.main.block.first
    assert op is not None
    op.record = dataclasses.replace(NEG, reference=reference)
    return module


def test_references_are_checked() -> None:
    for reference, message in (
        (
            lambda call, inputs: [inputs[0][:2]],
            "result 0 of neg is float32 of shape (2,), its type says f32[3]",
        ),
        (
            lambda call, inputs: [inputs[0].astype(int)],
            "result 0 of neg is int64 of shape (3,), its type says f32[3]",
        ),
        (
            lambda call, inputs: 1 // 0,
            "the reference of neg failed: integer division or modulo by zero",
        ),
        (None, "op neg has no reference semantics"),
    ):
        with pytest.raises(InternalError) as caught:
            run(broken(reference).main, [np.zeros(3, F)])
        assert str(caught.value) == f"{message}\n  %0 = neg(%x) : f32[3]"


def test_is_exact_reaches_the_references() -> None:
    seen: list[bool] = []

    def reference(call: Any, inputs: Any) -> Any:
        seen.append(call.is_exact)
        return inputs

    for flag in (False, True):
        run(broken(reference).main, [np.zeros(3, F)], is_exact=flag)
    assert seen == [False, True]


def test_dead_values_are_freed() -> None:
    """At most two of a chain's arrays are alive at once."""
    alive: list[weakref.ref[Any]] = []
    most = 0

    def reference(call: Any, inputs: Any) -> Any:
        nonlocal most
        gc.collect()
        most = max(most, sum(ref() is not None for ref in alive))
        result = np.zeros(3, F)
        alive.append(weakref.ref(result))
        return [result]

    b = Builder()
    value = b.input("x", "f32[3]")
    for _ in range(10):
        value = b.op("neg", value)
    b.output("y", value)
    function = b.function()
    record = dataclasses.replace(NEG, reference=reference)
    for op in function.walk():
        if op.name == "neg":
            op.record = record
    run(function, [np.zeros(3, F)])
    assert len(alive) == 10 and most <= 2
