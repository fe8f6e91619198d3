"""Rows that fill vectors together: the values of their results, and how these are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.ir.graph import Function
from aot.kernels.ir.nodes import Buffer, For, Kernel, LoopKind, Stmt, Store, walk
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import check, on_interpreter

# rows that fill vectors of 16, 8 or 4 together, and some of no such length
LENGTHS = (4, 5, 6, 7, 10, 12, 14, 20, 24, 28, 40, 50, 56)


def norms(rows: int | str, length: int, *, among: int = 0) -> Function:
    """Norms of rows, scaled by something of each row and of each column.

    Args:
        among: elements that are between rows.
    """
    b = Builder()
    x = b.input("x", f"f32[{rows}, {length + among}]")
    if among:
        x = b.op("slice", x, starts=(0, 0), stops=(rows, length), steps=(1, 1))
    scale = b.constant(np.linspace(0.5, 2, length, dtype=np.float32))
    shift = b.constant(np.linspace(-3, 2, length, dtype=np.float32))
    y = b.op("layer_norm", x, scale, shift, axis=1, epsilon=1e-5)
    y = b.op("mul", y, b.input("each", f"f32[{rows}, 1]"))
    b.output("y", b.op("add", y, b.op("mul", x, b.constant(np.float32(0.25)))))
    return b.module().main


def data(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).uniform(-2, 2, shape).astype(np.float32)


@pytest.mark.parametrize("target", native_targets())
@pytest.mark.parametrize("length", LENGTHS)
def test_values_of_machine_code(length: int, target: str) -> None:
    """Of whole blocks, of what is left of rows behind them, and of rows that lie apart."""
    engine = on_cpu(target)
    for count in (64, 131, 300):
        check(norms(count, length), [data(count, length), data(count, 1)], target, 1, engine=engine)
    given = [data(131, length), data(131, 1)]
    check(norms("A", length), given, target, 1, engine=engine)
    given = [data(131, length + 3), data(131, 1)]
    check(norms(131, length, among=3), given, target, 1, engine=engine)


@pytest.mark.parametrize("target", native_targets())
def test_numbers_and_others_of_machine_code(target: str) -> None:
    """A row of NaN or infinities leaves those beside it as they are."""
    for length in (6, 12, 20, 24):
        x, each = data(130, length), data(130, 1)
        x[5::9, 1], x[7::9, 0], each[4::11] = np.nan, np.inf, np.nan
        b = Builder()
        y = b.op("softmax", b.input("x", f"f32[130, {length}]"), axis=1)
        y = b.op("mul", y, b.input("each", "f32[130, 1]"))
        b.output("y", b.op("where", b.op("is_nan", y), b.constant(np.float32(-9)), y))
        check(b.module().main, [x, each], target, 1, engine=on_cpu(target))


@pytest.mark.parametrize("target", native_targets())
def test_bytes_of_machine_code(target: str) -> None:
    """Results of another type than what they are computed from."""
    for length in (12, 20, 24):
        b = Builder()
        y = b.op("softmax", b.input("x", f"f32[130, {length}]"), axis=1)
        y = b.op("mul", y, b.constant(np.float32(200)))
        b.output("y", b.op("cast", y, to="i32"))
        check(b.module().main, [data(130, length)], target, 1, 1e-2, engine=on_cpu(target))


@pytest.mark.parametrize(
    ("target", "length", "lanes"),
    [("x86-64-v4", 20, 16), ("x86-64-v3", 20, 8), ("aarch64-generic", 14, 4)],
)
def test_vectors_are_full(target: str, length: int, lanes: int) -> None:
    kernels: list[Kernel] = []

    def engine(kernel: Kernel, buffers: Any, params: Any) -> None:
        kernels.append(kernel)
        on_interpreter(kernel, buffers, params)

    check(norms(128, length), [data(128, length), data(128, 1)], target, 1, engine=engine)
    (kernel,) = kernels

    def stores(body: tuple[Stmt, ...]) -> int:
        """Of results."""
        found = (stmt for stmt in walk(body) if isinstance(stmt, Store))
        return sum(isinstance(s.target, Buffer) for s in found)

    vectors = [
        stmt.extent
        for stmt in walk(kernel.body)
        if isinstance(stmt, For) and stmt.kind is LoopKind.VECTOR and stores(stmt.body)
    ]
    assert vectors == [lanes] * stores(kernel.body) != []
