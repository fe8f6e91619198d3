"""Kernels written by hand for the Vulkan backend, each with its arguments and numpy's answer.

Owns one case for every thing that the backend must get right: guards, tiles in shared memory,
barriers, carried values, narrow and 64-bit elements, casts, symbolic dims.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.ir.dims import ceil_divide, symbol
from aot.ir.expr import (
    Bitcast,
    Expr,
    Fma,
    Load,
    Select,
    Var,
    add,
    binary,
    cast,
    const,
    index,
    mul,
    sub,
    unary,
)
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    Barrier,
    Buffer,
    BufferClass,
    For,
    If,
    Kernel,
    KernelBuilder,
    Let,
    LoopKind,
    Scratch,
    Space,
    Stmt,
    Store,
)

Array = NDArray[Any]
F32, I32, U32, BOOL = DType.F32, DType.I32, DType.U32, DType.BOOL
INPUTS, OUTPUTS = BufferClass.INPUTS, BufferClass.OUTPUTS
CONSTANTS, ARENA = BufferClass.CONSTANTS, BufferClass.ARENA


@dataclass
class Case:
    """A kernel, what it is run with, and what it must give (relative to the largest magnitude)."""

    kernel: Kernel
    arrays: dict[str, Array]
    expected: dict[str, Array]
    params: dict[str, float] = field(default_factory=dict)
    tolerance: float = 1e-6


def f32(value: float) -> Expr:
    return const(value, F32)


def load(
    source: Buffer | Scratch,
    *indices: Expr | int,
    guard: Expr | None = None,
    other: Expr | None = None,
) -> Load:
    return Load(source, tuple(index(i) for i in indices), source.dtype, guard, other)


def dense(*shape: int) -> tuple[int, ...]:
    """Row-major strides."""
    return tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))


def tensor(b: KernelBuilder, name: str, dtype: DType, binding: BufferClass, *shape: int) -> Buffer:
    return b.buffer(
        name, dtype, binding, shape, dense(*shape), is_written=binding in (ARENA, OUTPUTS)
    )


def spread(
    b: KernelBuilder, count: int, lanes: int, body: Callable[[Expr, Expr], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """`body(i, i < count)` for a lane of its own each."""
    group, lane = b.var("group"), b.var("lane")
    i = add(mul(group, index(lanes)), lane)
    inner = For(lane, lanes, LoopKind.LANE, body(i, binary("lt", i, index(count))))
    return (For(group, -(-count // lanes), LoopKind.WORKGROUP, (inner,)),)


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def elementwise(count: int = 1000) -> Case:
    """A chain with NaN-propagating extrema, over a symbolic extent and a strided operand."""
    b = KernelBuilder("elementwise")
    n = symbol("n")
    b.dim_param("n")
    x = b.buffer("x", F32, INPUTS, (n,), (1,))
    w = b.buffer("w", F32, CONSTANTS, (n,), (2,))
    y = b.buffer("y", F32, OUTPUTS, (n,), (1,), is_written=True)
    scale = b.scalar_param("scale", F32)
    group, lane = b.var("group"), b.var("lane")
    i = add(mul(group, index(64)), lane)
    inside = binary("lt", i, index(n))
    product = Fma(
        load(x, i, guard=inside, other=f32(0)), scale, load(w, i, guard=inside, other=f32(0)), F32
    )
    value = binary("min", binary("max", product, f32(-1)), load(w, i, guard=inside, other=f32(0)))
    body = (
        For(
            group,
            ceil_divide(n, 64),
            LoopKind.WORKGROUP,
            (For(lane, 64, LoopKind.LANE, (Store(y, (i,), value, inside),)),),
        ),
    )
    xs, ws = normal(1, count), normal(2, 2 * count - 1)
    xs[3], ws[10], xs[7] = np.nan, np.nan, np.inf
    expected = np.minimum(np.maximum(xs * np.float32(1.5) + ws[::2], -1), ws[::2])
    return Case(b.build(body), {"x": xs, "w": ws}, {"y": expected}, {"n": count, "scale": 1.5})


def matmul(m: int = 33, k: int = 37, n: int = 29, tile: int = 8) -> Case:
    """Tiles of both operands in shared memory, a barrier on each side, a register tile a lane."""
    b = KernelBuilder("matmul")
    x, w = tensor(b, "x", F32, INPUTS, m, k), tensor(b, "w", F32, CONSTANTS, k, n)
    y = tensor(b, "y", F32, OUTPUTS, m, n)
    rows = 2  # outputs of a lane
    a_tile = b.scratch("a_tile", F32, (rows * tile, tile), Space.WORKGROUP)
    b_tile = b.scratch("b_tile", F32, (tile, tile), Space.WORKGROUP)
    total = b.scratch("total", F32, (tile, tile, rows))
    gx, gy, step = b.var("gx"), b.var("gy"), b.var("step")

    def lanes(body: Callable[[Var, Var], tuple[Stmt, ...]]) -> Stmt:
        ly, lx = b.var("ly"), b.var("lx")
        return For(ly, tile, LoopKind.LANE, (For(lx, tile, LoopKind.LANE, body(ly, lx)),), axis=1)

    def each_row(body: Callable[[Var], tuple[Stmt, ...]]) -> Stmt:
        r = b.var("r")
        return For(r, rows, LoopKind.UNROLLED, body(r))

    def row(ly: Var, r: Var) -> Expr:
        return add(mul(gy, index(rows * tile)), add(mul(r, index(tile)), ly))

    def column(lx: Var) -> Expr:
        return add(mul(gx, index(tile)), lx)

    def fill(ly: Var, lx: Var) -> tuple[Stmt, ...]:
        depth = add(mul(step, index(tile)), lx)
        depth_b = add(mul(step, index(tile)), ly)
        inside_b = binary(
            "and", binary("lt", depth_b, index(k)), binary("lt", column(lx), index(n))
        )

        def one(r: Var) -> tuple[Stmt, ...]:
            inside = binary(
                "and", binary("lt", row(ly, r), index(m)), binary("lt", depth, index(k))
            )
            return (
                Store(
                    a_tile,
                    (add(mul(r, index(tile)), ly), lx),
                    load(x, row(ly, r), depth, guard=inside, other=f32(0)),
                ),
            )

        return (
            each_row(one),
            Store(b_tile, (ly, lx), load(w, depth_b, column(lx), guard=inside_b, other=f32(0))),
        )

    def multiply(ly: Var, lx: Var) -> tuple[Stmt, ...]:
        i = b.var("i")
        right = b.var("right", F32)
        return (
            For(
                i,
                tile,
                LoopKind.SERIAL,
                (
                    Let(right, load(b_tile, i, lx)),
                    each_row(
                        lambda r: (
                            Store(
                                total,
                                (ly, lx, r),
                                Fma(
                                    load(a_tile, add(mul(r, index(tile)), ly), i),
                                    right,
                                    load(total, ly, lx, r),
                                    F32,
                                ),
                            ),
                        )
                    ),
                ),
            ),
        )

    body = (
        lanes(lambda ly, lx: (each_row(lambda r: (Store(total, (ly, lx, r), f32(0)),)),)),
        For(
            step,
            -(-k // tile),
            LoopKind.SERIAL,
            (lanes(fill), Barrier(), lanes(multiply), Barrier()),
        ),
        lanes(
            lambda ly, lx: (
                each_row(
                    lambda r: (
                        Store(
                            y,
                            (row(ly, r), column(lx)),
                            load(total, ly, lx, r),
                            binary(
                                "and",
                                binary("lt", row(ly, r), index(m)),
                                binary("lt", column(lx), index(n)),
                            ),
                        ),
                    )
                ),
            )
        ),
    )
    grid = For(
        gy,
        -(-m // (rows * tile)),
        LoopKind.WORKGROUP,
        (For(gx, -(-n // tile), LoopKind.WORKGROUP, body),),
        axis=1,
    )
    xs, ws = normal(3, m, k), normal(4, k, n)
    expected = (xs.astype(np.float64) @ ws).astype(np.float32)
    return Case(b.build((grid,)), {"x": xs, "w": ws}, {"y": expected})


def softmax(rows: int = 5, columns: int = 77, lanes: int = 32) -> Case:
    """A workgroup a row: lanes' partial results, then a tree over shared memory."""
    b = KernelBuilder("softmax")
    x, y = tensor(b, "x", F32, INPUTS, rows, columns), tensor(b, "y", F32, OUTPUTS, rows, columns)
    partial = b.scratch("partial", F32, (lanes,), Space.WORKGROUP)
    mine = b.scratch("mine", F32, (lanes,))
    row = b.var("row")

    def each_lane(body: Callable[[Var], tuple[Stmt, ...]]) -> Stmt:
        lane = b.var("lane")
        return For(lane, lanes, LoopKind.LANE, body(lane))

    def over_columns(lane: Var, body: Callable[[Expr, Expr], tuple[Stmt, ...]]) -> Stmt:
        step = b.var("step")
        column = add(mul(step, index(lanes)), lane)
        return For(
            step,
            -(-columns // lanes),
            LoopKind.SERIAL,
            body(column, binary("lt", column, index(columns))),
        )

    def tree(op: str) -> tuple[Stmt, ...]:
        statements: list[Stmt] = [Barrier()]
        half = lanes // 2
        while half:

            def fold(lane: Var, half: int = half) -> tuple[Stmt, ...]:
                return (
                    Store(
                        partial,
                        (lane,),
                        binary(op, load(partial, lane), load(partial, add(lane, index(half)))),
                        binary("lt", lane, index(half)),
                    ),
                )

            statements += [each_lane(fold), Barrier()]
            half //= 2
        return tuple(statements)

    def reduce(op: str, start: float, value: Callable[[Expr, Expr], Expr]) -> tuple[Stmt, ...]:
        return (
            each_lane(
                lambda lane: (
                    Store(mine, (lane,), f32(start)),
                    over_columns(
                        lane,
                        lambda column, inside: (
                            Store(
                                mine, (lane,), binary(op, load(mine, lane), value(column, inside))
                            ),
                        ),
                    ),
                    Store(partial, (lane,), load(mine, lane)),
                )
            ),
            *tree(op),
        )

    largest, total = b.var("largest", F32), b.var("total", F32)
    body: tuple[Stmt, ...] = (
        *reduce(
            "max",
            -np.inf,
            lambda column, inside: load(x, row, column, guard=inside, other=f32(-np.inf)),
        ),
        Let(largest, load(partial, 0)),
        Barrier(),
        *reduce(
            "add",
            0.0,
            lambda column, inside: unary(
                "exp", sub(load(x, row, column, guard=inside, other=f32(-np.inf)), largest)
            ),
        ),
        Let(total, load(partial, 0)),
        each_lane(
            lambda lane: (
                over_columns(
                    lane,
                    lambda column, inside: (
                        Store(
                            y,
                            (row, column),
                            binary(
                                "div",
                                unary(
                                    "exp",
                                    sub(load(x, row, column, guard=inside, other=f32(0)), largest),
                                ),
                                total,
                            ),
                            inside,
                        ),
                    ),
                ),
            )
        ),
    )
    xs = normal(5, rows, columns) * 4
    exps = np.exp(xs.astype(np.float64) - xs.max(1, keepdims=True))
    return Case(
        b.build((For(row, rows, LoopKind.WORKGROUP, body),)),
        {"x": xs},
        {"y": (exps / exps.sum(1, keepdims=True)).astype(np.float32)},
    )


def pooling(height: int = 9, width: int = 11, window: int = 3) -> Case:
    """Maximum over windows of stride 2 with a border, by guards and division of the index."""
    b = KernelBuilder("pooling")
    channels, out_h, out_w = 3, (height + 1) // 2, (width + 1) // 2
    x = tensor(b, "x", F32, ARENA, channels, height, width)
    x = b.buffers[-1] = Buffer("x", F32, ARENA, x.offset, x.shape, x.strides)
    y = tensor(b, "y", F32, OUTPUTS, channels, out_h, out_w)
    best = b.scratch("best", F32, ())

    def one(i: Expr, inside: Expr) -> tuple[Stmt, ...]:
        column = binary("floormod", i, index(out_w))
        row = binary("floormod", binary("floordiv", i, index(out_w)), index(out_h))
        channel = binary("floordiv", i, index(out_h * out_w))
        dy, dx = b.var("dy"), b.var("dx")
        r = sub(add(mul(row, index(2)), dy), index(1))
        c = sub(add(mul(column, index(2)), dx), index(1))
        guard = inside
        for coordinate, extent in ((r, height), (c, width)):
            guard = binary(
                "and",
                guard,
                binary(
                    "and",
                    binary("ge", coordinate, index(0)),
                    binary("lt", coordinate, index(extent)),
                ),
            )
        tap = load(x, channel, r, c, guard=guard, other=f32(-np.inf))
        return (
            Store(best, (), f32(-np.inf)),
            For(
                dy,
                window,
                LoopKind.SERIAL,
                (
                    For(
                        dx,
                        window,
                        LoopKind.UNROLLED,
                        (Store(best, (), binary("max", load(best), tap)),),
                    ),
                ),
            ),
            Store(y, (channel, row, column), load(best), inside),
        )

    xs = normal(6, channels, height, width)
    padded = np.pad(xs, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    taps = [
        padded[:, i : i + 2 * out_h : 2, j : j + 2 * out_w : 2][:, :out_h, :out_w]
        for i in range(window)
        for j in range(window)
    ]
    return Case(
        b.build(spread(b, channels * out_h * out_w, 32, one)),
        {"x": xs},
        {"y": np.max(taps, axis=0)},
        tolerance=0,
    )


def mean_and_count(rows: int = 40, columns: int = 23) -> Case:
    """Reductions by a serial loop a lane, with vector partial sums and a branch that carries."""
    b = KernelBuilder("mean_and_count")
    x = tensor(b, "x", F32, INPUTS, rows, columns * 4)
    mean = tensor(b, "mean", F32, OUTPUTS, rows)
    positive = tensor(b, "positive", I32, OUTPUTS, rows)
    partial, count = b.scratch("partial", F32, (4,)), b.scratch("count", I32, (1,))

    def one(i: Expr, inside: Expr) -> tuple[Stmt, ...]:
        zero, step, v, last = b.var("zero"), b.var("step"), b.var("v"), b.var("last")
        value = b.var("value", F32)
        more = Store(count, (index(0),), add(load(count, 0), const(1, I32)))
        less = Store(count, (index(0),), sub(load(count, 0), const(1, I32)))
        total = add(
            add(load(partial, 0), load(partial, 1)), add(load(partial, 2), load(partial, 3))
        )
        return (
            If(
                inside,
                (
                    For(zero, 4, LoopKind.VECTOR, (Store(partial, (zero,), f32(0)),)),
                    Store(count, (index(0),), const(0, I32)),
                    For(
                        step,
                        columns,
                        LoopKind.SERIAL,
                        (
                            For(
                                v,
                                4,
                                LoopKind.VECTOR,
                                (
                                    Store(
                                        partial,
                                        (v,),
                                        add(
                                            load(partial, v),
                                            load(x, i, add(mul(step, index(4)), v)),
                                        ),
                                    ),
                                ),
                            ),
                            Let(value, load(x, i, mul(step, index(4)))),
                            If(
                                binary("gt", value, f32(0.5)),
                                (more,),
                                (If(binary("lt", value, f32(-0.5)), (less,)),),
                            ),
                        ),
                    ),
                    For(
                        last,
                        1,
                        LoopKind.VECTOR,
                        (Store(mean, (i,), binary("div", total, f32(columns * 4))),),
                    ),
                    Store(positive, (i,), load(count, 0)),
                ),
            ),
        )

    xs = normal(7, rows, columns * 4)
    firsts = xs[:, ::4]
    counts = (firsts > 0.5).sum(1) - (firsts < -0.5).sum(1)
    return Case(
        b.build(spread(b, rows, 16, one)),
        {"x": xs},
        {
            "mean": xs.astype(np.float64).mean(1).astype(np.float32),
            "positive": counts.astype(np.int32),
        },
    )


def gather(entries: int = 17, width: int = 12, picks: int = 21) -> Case:
    """Rows picked by int64 indices, negative ones counted from the end."""
    b = KernelBuilder("gather")
    table = tensor(b, "table", F32, CONSTANTS, entries, width)
    chosen = tensor(b, "chosen", DType.I64, INPUTS, picks)
    y = tensor(b, "y", F32, OUTPUTS, picks, width)

    def one(i: Expr, inside: Expr) -> tuple[Stmt, ...]:
        pick, column = binary("floordiv", i, index(width)), binary("floormod", i, index(width))
        wanted = load(chosen, pick, guard=inside, other=const(0, DType.I64))
        row = b.var("row")
        number = cast(wanted, DType.INDEX)
        wrapped = Select(
            binary("lt", number, index(0)), add(number, index(entries)), number, DType.INDEX
        )
        return (
            Let(row, binary("max", binary("min", wrapped, index(entries - 1)), index(0))),
            Store(y, (pick, column), load(table, row, column), inside),
        )

    rows = np.random.default_rng(8).integers(-entries, entries, picks)
    tables = normal(9, entries, width)
    return Case(
        b.build(spread(b, picks * width, 64, one)),
        {"table": tables, "chosen": rows},
        {"y": tables[rows]},
        tolerance=0,
    )


def boundary_types(count: int = 70) -> Case:
    """bool, f16, i8, u8, i16 and int64 elements beside each other, stored by neighbouring lanes."""
    b = KernelBuilder("boundary_types")
    types = {
        "flags": BOOL,
        "halves": DType.F16,
        "bytes": DType.I8,
        "pixels": DType.U8,
        "shorts": DType.I16,
        "longs": DType.I64,
    }
    inputs = {n: tensor(b, n, t, INPUTS, count) for n, t in types.items()}
    outputs = {n: tensor(b, f"new_{n}", t, OUTPUTS, count) for n, t in types.items()}

    def one(i: Expr, inside: Expr) -> tuple[Stmt, ...]:
        def old(name: str) -> Expr:
            zero = const(False if types[name] is BOOL else 0, types[name])
            return load(inputs[name], i, guard=inside, other=zero)

        flags = unary("not", old("flags"))
        halves = cast(mul(cast(old("halves"), F32), f32(1.0009765625)), DType.F16)
        small = cast(add(cast(old("bytes"), I32), const(100, I32)), DType.I8)
        pixels = cast(binary("max", f32(-9.0), mul(cast(old("pixels"), F32), f32(1.5))), DType.U8)
        shorts = cast(mul(cast(old("shorts"), I32), const(-3, I32)), DType.I16)
        longs = cast(sub(cast(old("longs"), I32), const(7, I32)), DType.I64)
        values = (flags, halves, small, pixels, shorts, longs)
        return tuple(Store(outputs[n], (i,), v, inside) for n, v in zip(types, values, strict=True))

    rng = np.random.default_rng(10)
    arrays: dict[str, Array] = {
        "flags": rng.integers(0, 2, count).astype(np.bool_),
        "halves": (rng.standard_normal(count) * 100).astype(np.float16),
        "bytes": rng.integers(-128, 128, count).astype(np.int8),
        "pixels": rng.integers(0, 256, count).astype(np.uint8),
        "shorts": rng.integers(-32768, 32768, count).astype(np.int16),
        "longs": rng.integers(-(2**31) + 7, 2**31, count),
    }
    arrays["halves"][:4] = [np.inf, -np.inf, 6.1e-5, 65504]
    halves = arrays["halves"].astype(np.float32) * np.float32(1.0009765625)
    with np.errstate(over="ignore"):
        expected = {
            "flags": ~arrays["flags"],
            "halves": halves.astype(np.float16),
            "bytes": (arrays["bytes"].astype(np.int32) + 100).astype(np.int8),
            "pixels": np.minimum(arrays["pixels"] * np.float32(1.5), 255).astype(np.uint8),
            "shorts": (arrays["shorts"].astype(np.int32) * -3).astype(np.int16),
            "longs": arrays["longs"] - 7,
        }
    return Case(
        b.build(spread(b, count, 32, one)),
        arrays,
        {f"new_{n}": v for n, v in expected.items()},
        tolerance=0,
    )


def casts() -> Case:
    """Float to integer with NaN, infinities and values beyond the range; integers to float."""
    special = np.array(
        [
            0,
            -0.0,
            0.5,
            -0.5,
            1.5,
            -1.5,
            126.9,
            127.5,
            -128.9,
            255.4,
            256,
            2**31,
            -(2.0**31),
            2.0**31 - 128,
            2.0**32,
            2.0**32 - 256,
            3e9,
            -3e9,
            1e20,
            -1e20,
            np.inf,
            -np.inf,
            np.nan,
            1e-40,
        ],
        np.float32,
    )
    count = len(special)
    b = KernelBuilder("casts")
    x = tensor(b, "x", F32, INPUTS, count)
    whole = tensor(b, "whole", I32, INPUTS, count)
    results: dict[str, tuple[DType, Callable[[Expr, Expr], Expr]]] = {
        "to_i32": (I32, lambda v, w: cast(v, I32)),
        "to_u32": (U32, lambda v, w: cast(v, U32)),
        "to_i8": (I32, lambda v, w: cast(cast(v, DType.I8), I32)),
        "to_u8": (I32, lambda v, w: cast(cast(v, DType.U8), I32)),
        "to_bool": (I32, lambda v, w: cast(cast(v, BOOL), I32)),
        "is_nan": (I32, lambda v, w: cast(unary("isnan", v), I32)),
        "signed": (F32, lambda v, w: cast(w, F32)),
        "unsigned": (F32, lambda v, w: cast(cast(w, U32), F32)),
        "bits": (I32, lambda v, w: Bitcast(v, I32)),
        "rounded": (F32, lambda v, w: unary("round", v)),
    }
    buffers = {n: tensor(b, n, t, OUTPUTS, count) for n, (t, _) in results.items()}

    def one(i: Expr, inside: Expr) -> tuple[Stmt, ...]:
        value = load(x, i, guard=inside, other=f32(0))
        number = load(whole, i, guard=inside, other=const(0, I32))
        return tuple(
            Store(buffers[n], (i,), make(value, number), inside) for n, (_, make) in results.items()
        )

    def saturate(dtype: type[np.integer[Any]]) -> Array:
        info = np.iinfo(dtype)
        exact = np.nan_to_num(
            np.trunc(special.astype(np.float64)), nan=0, posinf=1e30, neginf=-1e30
        )
        whole = np.clip(exact, info.min, info.max).astype(np.int64)
        return np.asarray(whole.astype(dtype))

    wholes = np.random.default_rng(11).integers(-(2**31), 2**31, count).astype(np.int32)
    wholes[:4] = [16777217, 16777219, -16777217, -(2**31)]
    expected: dict[str, Array] = {
        "to_i32": saturate(np.int32),
        "to_u32": saturate(np.uint32),
        "to_i8": saturate(np.int8).astype(np.int32),
        "to_u8": saturate(np.uint8).astype(np.int32),
        "to_bool": (special != 0).astype(np.int32),
        "is_nan": np.isnan(special).astype(np.int32),
        "signed": wholes.astype(np.float32),
        "unsigned": wholes.view(np.uint32).astype(np.float32),
        "bits": special.view(np.int32),
        "rounded": np.rint(special),
    }
    return Case(
        b.build(spread(b, count, 8, one)), {"x": special, "whole": wholes}, expected, tolerance=0
    )


def integers() -> Case:
    """Division and remainder of every sign, shifts and extrema."""
    lefts = np.array([7, -7, 8, -8, 0, 1, -1, 2**31 - 1, -(2**31), 100, -100, 99], np.int32)
    rights = np.array([2, 2, -3, -3, 5, -5, 3, -7, 7, 100, 33, -100], np.int32)
    count = len(lefts)
    b = KernelBuilder("integers")
    a, c = tensor(b, "a", I32, INPUTS, count), tensor(b, "c", I32, INPUTS, count)
    ops = ("div", "floordiv", "floormod", "min", "max", "xor")
    buffers = {op: tensor(b, f"by_{op}", I32, OUTPUTS, count) for op in ops}
    shifted = tensor(b, "shifted", I32, OUTPUTS, count)
    unsigned = tensor(b, "unsigned", U32, OUTPUTS, count)

    def one(i: Expr, inside: Expr) -> tuple[Stmt, ...]:
        x = load(a, i, guard=inside, other=const(1, I32))
        y = load(c, i, guard=inside, other=const(1, I32))
        return (
            *(Store(buffers[op], (i,), binary(op, x, y), inside) for op in ops),
            Store(shifted, (i,), binary("shr", x, const(3, I32)), inside),
            Store(unsigned, (i,), binary("shr", cast(x, U32), const(3, U32)), inside),
        )

    exact_l, exact_r = lefts.astype(np.int64), rights.astype(np.int64)
    expected = {
        "by_div": np.trunc(exact_l / exact_r),
        "by_floordiv": exact_l // exact_r,
        "by_floormod": exact_l % exact_r,
        "by_min": np.minimum(lefts, rights),
        "by_max": np.maximum(lefts, rights),
        "by_xor": lefts ^ rights,
        "shifted": lefts >> 3,
        "unsigned": lefts.view(np.uint32) >> 3,
    }
    return Case(
        b.build(spread(b, count, 4, one)),
        {"a": lefts, "c": rights},
        {n: v.astype(np.uint32 if n == "unsigned" else np.int32) for n, v in expected.items()},
        tolerance=0,
    )


def many_params(count: int = 50) -> Case:
    """More parameters than fit in push constants: the block comes in a uniform buffer."""
    b = KernelBuilder("many_params")
    x, y = tensor(b, "x", F32, INPUTS, count), tensor(b, "y", F32, OUTPUTS, count)
    factors = [b.scalar_param(f"factor{i}", F32) for i in range(40)]

    def one(i: Expr, inside: Expr) -> tuple[Stmt, ...]:
        value: Expr = load(x, i, guard=inside, other=f32(0))
        for factor in factors:
            value = add(mul(value, f32(0.5)), factor)
        return (Store(y, (i,), value, inside),)

    xs = normal(12, count)
    values = {f"factor{i}": float(i) / 8 for i in range(40)}
    expected = xs
    for factor in values.values():
        expected = expected * np.float32(0.5) + np.float32(factor)
    return Case(
        b.build(spread(b, count, 16, one)), {"x": xs}, {"y": expected}, dict(values), tolerance=0
    )


def in_place(count: int = 300) -> Case:
    """An operand and the result in the same bytes of the arena; a lane has four elements."""
    b = KernelBuilder("in_place")
    x = b.buffer("x", F32, ARENA, (count,), (1,), is_written=True)

    def one(i: Expr, inside: Expr) -> tuple[Stmt, ...]:
        v = b.var("v")
        at = add(mul(i, index(4)), v)
        return (
            For(
                v,
                4,
                LoopKind.VECTOR,
                (
                    Store(
                        x,
                        (at,),
                        mul(
                            load(x, at, guard=binary("lt", at, index(count)), other=f32(0)), f32(3)
                        ),
                        binary("lt", at, index(count)),
                    ),
                ),
            ),
        )

    xs = normal(13, count)
    return Case(
        b.build(spread(b, -(-count // 4), 32, one)),
        {"x": xs},
        {"x": xs * np.float32(3)},
        tolerance=0,
    )


def large_registers(count: int = 24, size: int = 200) -> Case:
    """VECTOR loops too large to write out: REGISTER scratch is memory, not SSA values."""
    b = KernelBuilder("large_registers")
    x, y = tensor(b, "x", F32, INPUTS, count, size), tensor(b, "y", F32, OUTPUTS, count, size)
    kept = b.scratch("kept", F32, (size,))
    seen = b.scratch("seen", BOOL, (size,))

    def one(i: Expr, inside: Expr) -> tuple[Stmt, ...]:
        j, k = b.var("j"), b.var("k")
        value = load(x, i, j, guard=inside, other=f32(0))
        back = sub(index(size - 1), k)
        return (
            For(
                j,
                size,
                LoopKind.VECTOR,
                (Store(kept, (j,), value), Store(seen, (j,), binary("gt", value, f32(0)))),
            ),
            For(
                k,
                size,
                LoopKind.VECTOR,
                (
                    Store(
                        y, (i, k), Select(load(seen, back), load(kept, back), f32(0), F32), inside
                    ),
                ),
            ),
        )

    xs = normal(14, count, size)
    return Case(
        b.build(spread(b, count, 8, one)), {"x": xs}, {"y": np.maximum(xs, 0)[:, ::-1]}, tolerance=0
    )


def long_grid(count: int = 140_001) -> Case:
    """More workgroups along x than a driver takes: they come in rows along z."""
    b = KernelBuilder("long_grid")
    n = symbol("n")
    b.dim_param("n")
    y = b.buffer("y", I32, OUTPUTS, (n,), (1,), is_written=True)
    group = b.var("group")
    return Case(
        b.build((For(group, n, LoopKind.WORKGROUP, (Store(y, (group,), cast(group, I32)),)),)),
        {},
        {"y": np.arange(count, dtype=np.int32)},
        {"n": count},
        tolerance=0,
    )


CASES: dict[str, Callable[[], Case]] = {
    f.__name__: f
    for f in (
        elementwise,
        matmul,
        softmax,
        pooling,
        mean_and_count,
        gather,
        boundary_types,
        casts,
        integers,
        many_params,
        in_place,
        large_registers,
        long_grid,
    )
}
