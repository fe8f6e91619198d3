"""tabulate: a table gives what the ops that it stands for give, for each of the 256 numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.ir.builder import Builder
from aot.ir.graph import Function, Module
from aot.ir.interpreter.interpreter import run
from aot.ir.types import DType, Layout, TensorType
from aot.ir.verifier import verify
from aot.passes.base import PassContext
from aot.passes.quantise.tabulate import TABULATE
from aot.target import selection as targets

U8, I8 = DType.U8, DType.I8


class Quantised:
    """A builder of chains between numbers of 8 bits."""

    def __init__(self, dtype: DType = U8, dims: str = "2, 130", layout: Layout | None = None):
        self.b = Builder()
        shape = tuple(map(int, dims.split(",")))
        self.dtype = dtype
        self.x = self.b.input("x", TensorType(dtype, shape, layout))

    def number(self, value: float, dtype: Any = np.float32) -> Any:
        return self.b.constant(np.asarray(value, dtype))

    def floats(self, x: Any, scale: float = 0.05, zero: int = 3) -> Any:
        zero_point = self.number(zero, x.type.dtype.numpy)
        return self.b.op("dequantize", x, self.number(scale), zero_point)

    def bytes(self, x: Any, scale: float = 0.03, zero: int = 7, to: DType = U8) -> Any:
        zero_point = self.number(zero, to.numpy)
        return self.b.op("quantize", x, self.number(scale), zero_point, to=to)

    def silu(self, x: Any) -> Any:
        wide = self.floats(x)
        gate = self.floats(self.bytes(self.b.op("sigmoid", wide), 1 / 256, 0), 1 / 256, 0)
        return self.b.op("mul", wide, gate)

    def done(self, *results: Any) -> Module:
        for number, result in enumerate(results):
            self.b.output(f"y{number}", result)
        return self.b.module()


def tabulated(module: Module, target: str = "x86-64-v3") -> Function:
    TABULATE.run(module, PassContext(target=targets.load(target)))
    verify(module)
    (function,) = module.entry_points
    return function


def names(function: Function) -> list[str]:
    return [op.name for op in function.walk() if op.name not in ("constant", "return")]


def check(build: Any, expected: list[str], target: str = "x86-64-v3") -> None:
    plain, made = build(), tabulated(build(), target)
    assert names(made) == expected
    (function,) = plain.entry_points
    type_ = function.inputs[0].type
    numbers = np.resize(np.arange(256, dtype=np.uint8), type_.shape).view(type_.dtype.numpy)
    for got, wanted in zip(run(made, [numbers]), run(function, [numbers]), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", [U8, I8])
@pytest.mark.parametrize("to", [U8, I8])
def test_a_chain_is_one_table(dtype: DType, to: DType) -> None:
    def build() -> Module:
        q = Quantised(dtype)
        return q.done(q.bytes(q.b.op("erf", q.floats(q.x)), to=to))

    check(build, ["table_lookup"])


def test_what_branches_and_meets_again_is_one_table() -> None:
    def build() -> Module:
        q = Quantised()
        return q.done(q.bytes(q.silu(q.x)))

    check(build, ["table_lookup"])


def test_what_others_read_besides_is_a_table_too() -> None:
    def build() -> Module:
        q = Quantised()
        first = q.bytes(q.silu(q.x))
        return q.done(first, q.bytes(q.b.op("tanh", q.floats(first))))

    check(build, ["table_lookup", "table_lookup"])


def test_what_is_cheap_is_computed() -> None:
    def build() -> Module:
        q = Quantised()
        return q.done(q.bytes(q.floats(q.x)))

    check(build, ["dequantize", "quantize"])


def test_another_scale_is_a_table_where_instructions_look_vectors_up() -> None:
    def build() -> Module:
        q = Quantised()
        return q.done(q.bytes(q.floats(q.x)))

    check(build, ["table_lookup"], "x86-64-v4-vnni")


def test_cheap_ops_are_a_table_where_instructions_look_vectors_up() -> None:
    def build() -> Module:
        q = Quantised()
        wide = q.floats(q.x)
        gate = q.b.op("minimum", q.b.op("relu", q.b.op("add", wide, 3.0)), 6.0)
        return q.done(q.bytes(q.b.op("mul", q.b.op("mul", wide, gate), 1 / 6)))

    plain = [*names(build().entry_points[0])]
    check(build, plain)
    check(build, ["table_lookup"], "x86-64-v4-vnni")


def test_two_variables_are_no_table() -> None:
    def build() -> Module:
        q = Quantised()
        other = q.b.input("z", TensorType(U8, (2, 130)))
        wide = q.b.op("add", q.floats(q.x), q.floats(other))
        return q.done(q.bytes(q.b.op("sigmoid", wide)))

    assert "table_lookup" not in names(tabulated(build()))


def test_a_factor_for_each_column_is_no_table() -> None:
    def build() -> Module:
        q = Quantised()
        scales = q.b.constant(np.linspace(0.1, 2, 130, dtype=np.float32))
        return q.done(q.bytes(q.b.op("sigmoid", q.b.op("mul", q.floats(q.x), scales))))

    assert "table_lookup" not in names(tabulated(build()))


def test_a_gpu_has_none() -> None:
    def build() -> Module:
        q = Quantised()
        return q.done(q.bytes(q.silu(q.x)))

    assert "table_lookup" not in names(tabulated(build(), "vulkan-1.1"))
