"""The transforms of Winograd's F(2x2, 3x3) and F(4x4, 3x3) convolutions in kernel IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aot.ir import expr as ex
from aot.ir.dims import ceil_divide, symbol
from aot.ir.expr import Expr
from aot.kernels.ir.nodes import Kernel, KernelBuilder, Stmt
from tests.support.hard_case import ARENA, INPUTS, OUTPUTS, Array, HardKernel
from tests.support.kernel_terms import (
    F32,
    add,
    f32,
    fma,
    grid,
    ix,
    lane,
    let,
    load,
    mul,
    op,
    parallel,
    serial,
    store,
    vector,
    when,
)

# Winograd's transforms, channels last: Lavin and Gray, "Fast Algorithms for Convolutional Neural
# Networks", 2015. Keys are the outputs of a tile along one side.

_BT = {
    2: [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
    4: [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
}
_AT = {
    2: [[1, 1, 1, 0], [0, 1, -1, -1]],
    4: [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
}


def _combine(row: list[int], terms: list[Expr]) -> Expr:
    """sum(row[i] * terms[i]) without multiplications by 0, 1 and -1."""
    result: Expr | None = None
    for c, e in sorted(zip(row, terms, strict=True), key=lambda item: item[0] < 0):
        if c == 0:
            continue
        if result is None:
            result = e if c == 1 else mul(f32(c), e)
        elif abs(c) == 1:
            result = op("add" if c > 0 else "sub", result, e)
        else:
            result = fma(f32(c), e, result)
    assert result is not None
    return result


def _transformed(
    b: KernelBuilder, matrix: list[list[int]], tile: list[list[Expr]]
) -> tuple[list[Stmt], list[list[Expr]]]:
    """`matrix @ tile @ matrix.T`, the half-way values named by Lets."""
    lets: list[Stmt] = []
    half: list[list[Expr]] = []
    for row in matrix:
        names: list[Expr] = []
        for column in range(len(tile[0])):
            name = b.var("half", F32)
            lets.append(let(name, _combine(row, [line[column] for line in tile])))
            names.append(name)
        half.append(names)
    return lets, [[_combine(row, line) for row in matrix] for line in half]


def _channel_loop(
    b: KernelBuilder, style: str, channels: Any, lanes: int, body: Callable[[Expr], list[Stmt]]
) -> Stmt:
    """Chunks of `lanes` channels, which must divide them."""
    chunk, x = b.var("chunk"), b.var("x")
    inner = (vector if style == "cpu" else lane)(x, lanes, body(add(mul(chunk, lanes), x)))
    return (parallel if style == "cpu" else serial)(chunk, channels // lanes, [inner])


def winograd_input(style: str, m: int, lanes: int = 8) -> Kernel:
    """[H][W][C] with a border of one zero to [(m+2)^2][tiles][C]; a workgroup per tile."""
    b = KernelBuilder(f"winograd_input_{m}x{m}_{style}")
    height, width, chunks = symbol("H"), symbol("W"), symbol("G")
    side, channels = m + 2, chunks * lanes
    rows, columns = ceil_divide(height, m), ceil_divide(width, m)
    x = b.buffer("x", F32, INPUTS, (height, width, channels), (width * channels, channels, 1))
    out = b.buffer(
        "out",
        F32,
        ARENA,
        (side * side, rows, columns, channels),
        (rows * columns * channels, columns * channels, channels, 1),
        is_written=True,
    )
    for name in "HWG":
        b.dim_param(name)
    i, j = b.var("i"), b.var("j")

    def body(c: Expr) -> list[Stmt]:
        lets: list[Stmt] = []
        tile: list[list[Expr]] = []
        for dy in range(side):
            line: list[Expr] = []
            for dx in range(side):
                y, z = add(mul(i, m), dy - 1), add(mul(j, m), dx - 1)
                inside = ex.all_of(
                    [
                        op("ge", y, 0),
                        op("lt", y, ix(height)),
                        op("ge", z, 0),
                        op("lt", z, ix(width)),
                    ]
                )
                name = b.var("d", F32)
                lets.append(let(name, load(x, y, z, c, guard=inside)))
                line.append(name)
            tile.append(line)
        more, result = _transformed(b, _BT[m], tile)
        stores = [
            store(out, ix(side * p + q), i, j, c, value=result[p][q])
            for p in range(side)
            for q in range(side)
        ]
        return [*lets, *more, *stores]

    return b.build(
        grid([(i, rows, 1), (j, columns, 0)], [_channel_loop(b, style, channels, lanes, body)])
    )


def winograd_output(style: str, m: int, lanes: int = 8) -> Kernel:
    """[(m+2)^2][tiles][C] to [H][W][C]; tiles at the far edges are cut."""
    b = KernelBuilder(f"winograd_output_{m}x{m}_{style}")
    height, width, chunks = symbol("H"), symbol("W"), symbol("G")
    side, channels = m + 2, chunks * lanes
    rows, columns = ceil_divide(height, m), ceil_divide(width, m)
    x = b.buffer(
        "x",
        F32,
        ARENA,
        (side * side, rows, columns, channels),
        (rows * columns * channels, columns * channels, channels, 1),
    )
    out = b.buffer(
        "out",
        F32,
        OUTPUTS,
        (height, width, channels),
        (width * channels, channels, 1),
        is_written=True,
    )
    for name in "HWG":
        b.dim_param(name)
    i, j = b.var("i"), b.var("j")

    def body(c: Expr) -> list[Stmt]:
        tile = [[load(x, ix(side * p + q), i, j, c) for q in range(side)] for p in range(side)]
        lets, result = _transformed(b, _AT[m], tile)
        stores: list[Stmt] = []
        for dy in range(m):
            kept: list[Stmt] = []
            for dx in range(m):
                y, z = add(mul(i, m), dy), add(mul(j, m), dx)
                kept.append(store(out, y, z, c, value=result[dy][dx], guard=op("lt", z, ix(width))))
            stores.append(when(op("lt", add(mul(i, m), dy), ix(height)), kept))
        return [*lets, *stores]

    return b.build(
        grid([(i, rows, 1), (j, columns, 0)], [_channel_loop(b, style, channels, lanes, body)])
    )


def winograd_cases(
    style: str, m: int, height: int, width: int, chunks: int, lanes: int = 8
) -> list[HardKernel]:
    rng = np.random.RandomState(3)
    side, channels = m + 2, chunks * lanes
    rows, columns = -(-height // m), -(-width // m)
    bt, at = np.array(_BT[m], np.float64), np.array(_AT[m], np.float64)
    x = rng.standard_normal((height, width, channels)).astype(np.float32)
    padded = np.zeros((rows * m + 2, columns * m + 2, channels))
    padded[1 : height + 1, 1 : width + 1] = x
    tiles = np.stack(
        [
            np.stack([padded[i * m : i * m + side, j * m : j * m + side] for j in range(columns)])
            for i in range(rows)
        ]
    )
    transformed = np.einsum("py,ijyzc,qz->pqijc", bt, tiles, bt).reshape(
        side * side, rows, columns, channels
    )
    y = rng.standard_normal(transformed.shape).astype(np.float32)
    back = np.einsum("ay,yzijc,bz->iajbc", at, y.reshape(side, side, *y.shape[1:]), at)
    result = back.reshape(rows * m, columns * m, channels)[:height, :width]
    params = {"H": height, "W": width, "G": chunks}

    def case(
        way: str, make: Callable[[str, int, int], Kernel], source: Array, expected: Array
    ) -> HardKernel:
        expected = np.ascontiguousarray(expected, np.float32)
        return HardKernel(
            f"winograd_{way}_{m}x{m}-{style}",
            style,
            lambda: make(style, m, lanes),
            {"x": source, "out": np.full(expected.shape, np.nan, np.float32)},
            dict(params),
            {"out": expected},
        )

    return [
        case("input", winograd_input, x, transformed),
        case("output", winograd_output, y, result),
    ]
