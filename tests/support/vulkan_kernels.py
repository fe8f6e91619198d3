"""Kernels written by hand for the Vulkan backend, each with its arguments and numpy's answer.

Owns one case for every thing that the backend must get right: guards, tiles in shared memory,
barriers, carried values, symbolic dims; vulkan_element_kernels.py has those of element types.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot.ir.dims import ceil_divide, symbol
from aot.ir.expr import (
    Expr,
    Fma,
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
    For,
    If,
    KernelBuilder,
    Let,
    LoopKind,
    Space,
    Stmt,
    Store,
)
from tests.support.vulkan_case import (
    ARENA,
    BOOL,
    CONSTANTS,
    F32,
    I32,
    INPUTS,
    OUTPUTS,
    Case,
    f32,
    load,
    normal,
    spread,
    tensor,
)
from tests.support.vulkan_element_kernels import boundary_types, casts, integers


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
