"""Random kernels agree with the interpreter: expressions of every dtype under guards and branches,
in vectors of any width, on this machine's targets."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aot.ir.expr import Const, Expr, Var, cast, select
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, BufferClass, For, If, Kernel, KernelBuilder, Let, Stmt
from tests.support.cpu_case import Case
from tests.support.cpu_checking import check, expected_of
from tests.support.cpu_running import native_targets, run, target_of
from tests.support.kernel_terms import add, call, fma, load, mul, op, serial, store, vector, when

F32, I32, U8, BOOL, INDEX = DType.F32, DType.I32, DType.U8, DType.BOOL, DType.INDEX
COUNT = 40
DTYPES = (F32, I32, U8, BOOL, INDEX)
# Zeros' signs may differ after min and max, so nothing here tells them apart.
BINARY = {
    F32: ["add", "sub", "mul", "min", "max"],
    I32: ["add", "sub", "mul", "min", "max", "div", "floordiv", "floormod", "and", "xor"],
    U8: ["add", "sub", "mul", "min", "max", "div", "floormod", "or"],
    BOOL: ["and", "or", "xor"],
    INDEX: ["add", "sub", "mul", "min", "max", "div", "floordiv", "floormod"],
}
UNARY = {
    F32: ["neg", "abs", "floor", "round", "trunc"],
    I32: ["neg", "abs", "bitnot"],
    U8: ["bitnot"],
    BOOL: ["not"],
    INDEX: ["neg"],
}
CONSTANTS = {
    F32: [0.0, 1.5, -2.0, 1e30],
    I32: [0, 1, -3, 8, 2**31 - 1],
    U8: [0, 1, 7, 255],
    BOOL: [False, True],
    INDEX: [0, 1, -5, 4, 13],
}


class Writer:
    """Draws the parts of one kernel."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.b = KernelBuilder("drawn")
        self.sources = {
            d: self.b.buffer(f"in_{d}", d, BufferClass.INPUTS, (COUNT,), (1,))
            for d in DTYPES
            if d is not INDEX
        }
        self.results: list[Buffer] = []
        self.lets: list[Var] = []
        self.position: Expr

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    def one_of(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def expression(self, dtype: DType, depth: int) -> Expr:
        if depth == 0 or self.draw(st.integers(0, 9)) == 0:
            return self.leaf(dtype)
        kind = self.one_of(["unary", "binary", "binary", "select", "cast", "special"])
        if kind == "unary":
            return call(self.one_of(UNARY[dtype]), self.expression(dtype, depth - 1))
        if kind == "binary":
            a, b = (self.expression(dtype, depth - 1) for _ in range(2))
            return op(self.one_of(BINARY[dtype]), a, b)
        if kind == "select":
            a, b = (self.expression(dtype, depth - 1) for _ in range(2))
            return select(self.expression(BOOL, depth - 1), a, b)
        if kind == "cast":
            return cast(self.expression(self.one_of(DTYPES), depth - 1), dtype)
        return self.special(dtype, depth - 1)

    def special(self, dtype: DType, depth: int) -> Expr:
        if dtype is BOOL:
            of = self.one_of([F32, I32, U8, INDEX])
            a, b = (self.expression(of, depth) for _ in range(2))
            return op(self.one_of(["eq", "ne", "lt", "le", "gt", "ge"]), a, b)
        if dtype is F32:
            return fma(*(self.expression(F32, depth) for _ in range(3)))
        if dtype is INDEX:
            return self.leaf(INDEX)
        # A load at a computed place, wrapped into the buffer.
        place = op("floormod", self.expression(INDEX, depth), COUNT)
        return load(self.sources[dtype], place)

    def leaf(self, dtype: DType) -> Expr:
        named = [v for v in self.lets if v.dtype is dtype]
        if named and self.draw(st.booleans()):
            return self.one_of(named)
        if self.draw(st.integers(0, 3)) == 0:
            return Const(dtype, self.one_of(CONSTANTS[dtype]))
        if dtype is INDEX:
            return self.position
        if self.draw(st.booleans()):
            return load(self.sources[dtype], self.position)
        guard = op(self.one_of(["lt", "ge"]), self.position, self.draw(st.integers(0, COUNT)))
        return load(
            self.sources[dtype], self.position, guard=guard, other=self.one_of(CONSTANTS[dtype])
        )

    def body(self, depth: int) -> list[Stmt]:
        known = len(self.lets)
        stmts: list[Stmt] = []
        for _ in range(self.draw(st.integers(1, 3))):
            kind = self.one_of(["store", "store", "let", "if"])
            if kind == "let":
                dtype = self.one_of(DTYPES)
                var = self.b.var("t", dtype)
                stmts.append(Let(var, self.expression(dtype, 2)))
                self.lets.append(var)
            elif kind == "if" and depth:
                condition = self.expression(BOOL, 2)
                stmts.append(
                    when(
                        condition,
                        self.body(depth - 1),
                        self.body(depth - 1) if self.draw(st.booleans()) else (),
                    )
                )
            else:
                stmts.append(self.store())
        del self.lets[known:]
        return stmts

    def store(self) -> Stmt:
        dtype = self.one_of([F32, I32, U8, BOOL])
        target = self.b.buffer("out", dtype, BufferClass.OUTPUTS, (COUNT,), (1,), is_written=True)
        self.results.append(target)
        guard = self.expression(BOOL, 1) if self.draw(st.booleans()) else None
        return store(target, self.position, value=self.expression(dtype, 3), guard=guard)

    def kernel(self) -> Kernel:
        lanes = self.one_of([4, 5, 8, 20, 40])
        outer, v = self.b.var("outer"), self.b.var("v")
        self.position = add(mul(outer, lanes), v)
        loop: For = serial(outer, COUNT // lanes, [vector(v, lanes, self.body(2))])
        return self.b.build((loop,))


def arrays_for(kernel: Kernel) -> dict[str, Any]:
    rng = np.random.default_rng(11)
    values = (rng.standard_normal(COUNT) * 50).astype(np.float32)
    values[:6] = [np.nan, np.inf, -np.inf, 0.0, 3e38, 0.49999997]
    data = {
        "in_f32": values,
        "in_i32": rng.integers(-60, 60, COUNT).astype(np.int32),
        "in_u8": rng.integers(0, 256, COUNT).astype(np.uint8),
        "in_bool": rng.integers(0, 2, COUNT).astype(bool),
    }
    data["in_i32"][:4] = [0, -(2**31), 2**31 - 1, -1]
    for buffer in kernel.buffers:
        if buffer.is_written:
            data[buffer.name] = np.zeros(COUNT, buffer.dtype.numpy)
    return data


@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
)
@given(st.data())
def test_random_kernels(data: st.DataObject) -> None:
    kernel = Writer(data).kernel()
    assert isinstance(kernel.body[0], For | If)
    case = Case("drawn", lambda: kernel, arrays_for(kernel), is_exact=False)
    for name in native_targets():
        target = target_of(name)
        expected = expected_of(case, kernel, target)
        got = {n: a.copy() for n, a in case.buffers.items()}
        run(kernel, got, {}, target)
        check(case, expected, got, target)
