"""Kernels for every shape of access: strides, guards, tails, branches, tiles, lanes, indices.

Owns one case for each thing that code generation must get right; the interpreter says what is
right. Small, so that all of them run on every target, emulated ones too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot.ir.dims import ceil_divide, symbol
from aot.ir.expr import Cast, Const, Expr, Load, Select, cast, select
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    For,
    Kernel,
    KernelBuilder,
    LoopKind,
    Space,
    Stmt,
    Store,
)
from tests.support.cpu_case import Case, dense, numbers
from tests.support.cpu_operators import (
    ARENA,
    BOOL,
    CONSTANTS,
    F16,
    F32,
    F64,
    I32,
    I64,
    INDEX,
    INPUTS,
    OUTPUTS,
    U8,
    Array,
)
from tests.support.cpu_tiles import chain, lanes_carried, tile
from tests.support.kernel_terms import (
    add,
    f32,
    fma,
    ix,
    let,
    load,
    mul,
    op,
    parallel,
    serial,
    store,
    sub,
    unrolled,
    vector,
    when,
)
from tests.support.quantising_cases import QUANTISING
from tests.support.table_cases import byte_table


def strided(extent: int, step: int, dtype: DType) -> Case:
    """Every lane step: broadcast, unit, gather, backwards; and scatter on the way out."""
    rng = np.random.default_rng(5)
    if dtype is BOOL:
        data = rng.integers(0, 2, 400).astype(bool)
    else:
        data = (rng.standard_normal(400) * 100).astype(dtype.numpy)

    def make() -> Kernel:
        b = KernelBuilder("strided")
        x = dense(b, "x", dtype, INPUTS, 400)
        y = dense(b, "y", dtype, OUTPUTS, 400)
        z = dense(b, "z", dtype, OUTPUTS, 3, extent)
        row, v = b.var("row"), b.var("v")
        first = add(mul(row, 7), 130)
        value = load(x, add(first, mul(v, step)))
        body = [store(z, row, v, value=value)]
        if step:
            body.append(
                store(y, add(mul(row, 40 if step > 0 else 50), mul(v, step), 100), value=value)
            )
        return b.build((serial(row, 3, [vector(v, extent, body)]),))

    return Case(
        f"strided-{extent}-{step}-{dtype}",
        make,
        {"x": data, "y": np.zeros(400, dtype.numpy), "z": np.zeros((3, extent), dtype.numpy)},
        computes=(),
    )


def tail(lanes: int, count: int, dtype: DType) -> Case:
    """A symbolic extent in vectors of any width, guarded on both sides."""

    def make() -> Kernel:
        b = KernelBuilder("tail")
        b.dim_param("n")
        n = symbol("n")
        x = b.buffer("x", dtype, INPUTS, (n,), (1,))
        y = b.buffer("y", dtype, OUTPUTS, (n,), (1,), is_written=True)
        group, v = b.var("group"), b.var("v")
        i = add(mul(group, lanes), v)
        inside = op("lt", i, ix(n))
        body = [
            store(
                y,
                i,
                value=op("add", load(x, i, guard=inside, other=3), Const(dtype, 1)),
                guard=inside,
            )
        ]
        grid = For(group, ceil_divide(n, lanes), LoopKind.WORKGROUP, (vector(v, lanes, body),))
        return b.build((grid,))

    data = (numbers(count) * 20).astype(dtype.numpy)
    return Case(
        f"tail-{lanes}-{count}-{dtype}",
        make,
        {"x": data, "y": np.zeros_like(data)},
        {"n": count},
        (dtype,),
    )


def spread_tail(count: int) -> Case:
    """The same with an accumulator in registers, so that masks can't be peeled off."""

    def make() -> Kernel:
        b = KernelBuilder("spread_tail")
        b.dim_param("n")
        n = symbol("n")
        x = b.buffer("x", F32, ARENA, (5, n), (n, 1))
        y = b.buffer("y", F32, OUTPUTS, (n,), (1,), is_written=True)
        total = b.scratch("total", F32, (16,))
        group, k = b.var("group"), b.var("k")

        def lanes(body: Callable[[Expr, Expr], Stmt]) -> For:
            v = b.var("v")
            return vector(v, 16, [body(v, add(mul(group, 16), v))])

        def inside(i: Expr) -> Expr:
            return op("lt", i, ix(n))

        body = (
            lanes(lambda v, i: store(total, v, value=f32(0))),
            serial(
                k,
                5,
                [
                    lanes(
                        lambda v, i: store(
                            total,
                            v,
                            value=add(load(total, v), load(x, k, i, guard=inside(i), other=2)),
                        )
                    )
                ],
            ),
            lanes(lambda v, i: store(y, i, value=load(total, v), guard=inside(i))),
        )
        return b.build((For(group, ceil_divide(n, 16), LoopKind.WORKGROUP, body),))

    return Case(
        f"spread-tail-{count}",
        make,
        {"x": numbers(5, count), "y": np.zeros(count, np.float32)},
        {"n": count},
    )


def borders(lanes: int) -> Case:
    """A row of a padded convolution: guards on both ends, uniform rows, another value outside."""

    def make() -> Kernel:
        b = KernelBuilder("borders")
        x = dense(b, "x", F32, INPUTS, 5, 20)
        w = dense(b, "w", F32, CONSTANTS, 9)
        y = dense(b, "y", F32, OUTPUTS, 5, 32)
        row, block, v, dy, dx = (b.var(n) for n in ("row", "block", "v", "dy", "dx"))
        total = b.scratch("total", F32, (32,))
        column = add(mul(block, lanes), v)
        at_y, at_x = sub(add(row, dy), 1), sub(add(column, dx), 1)
        inside = op(
            "and",
            op("and", op("ge", at_y, 0), op("lt", at_y, 5)),
            op("and", op("ge", at_x, 0), op("lt", at_x, 20)),
        )
        value = load(x, at_y, at_x, guard=inside, other=0.25)
        step = store(
            total, column, value=fma(value, load(w, add(mul(dy, 3), dx)), load(total, column))
        )
        v0, v2 = b.var("v0"), b.var("v2")
        body = [
            vector(v0, lanes, [store(total, add(mul(block, lanes), v0), value=f32(0))]),
            serial(dy, 3, [unrolled(dx, 3, [vector(v, lanes, [step])])]),
            vector(
                v2,
                lanes,
                [
                    store(
                        y,
                        row,
                        add(mul(block, lanes), v2),
                        value=load(total, add(mul(block, lanes), v2)),
                    )
                ],
            ),
        ]
        return b.build((parallel(row, 5, [unrolled(block, 32 // lanes, body)]),))

    return Case(
        f"borders-{lanes}",
        make,
        {"x": numbers(5, 20), "w": numbers(9, seed=2), "y": np.zeros((5, 32), np.float32)},
    )


def conditions() -> Case:
    """Branches that differ by lane, nested, with loops and stores inside."""

    def make() -> Kernel:
        b = KernelBuilder("conditions")
        x = dense(b, "x", F32, INPUTS, 40)
        y = dense(b, "y", F32, OUTPUTS, 40)
        z = dense(b, "z", F32, OUTPUTS, 40)
        v, k, t = b.var("v"), b.var("k"), b.var("t", F32)
        outer = b.var("outer")
        i = add(mul(outer, 8), v)
        body = [
            let(t, load(x, i)),
            when(
                op("lt", t, 0.0),
                [
                    store(y, i, value=mul(t, -2.0)),
                    when(
                        op("lt", i, 11),
                        [store(z, i, value=add(t, 100.0))],
                        [store(z, i, value=load(x, sub(i, 11)))],
                    ),
                ],
                [
                    serial(k, 3, [store(y, add(i, mul(k, 0)), value=add(t, cast(k, F32)))]),
                    store(z, i, value=f32(7)),
                ],
            ),
        ]
        return b.build((serial(outer, 5, [vector(v, 8, body)]),))

    return Case(
        "conditions",
        make,
        {"x": numbers(40), "y": np.zeros(40, np.float32), "z": np.zeros(40, np.float32)},
    )


def indices(dtype: DType) -> Case:
    """Loaded, clamped, divided and wrapped indices; indices as data."""

    def make() -> Kernel:
        b = KernelBuilder("indices")
        picks = dense(b, "picks", dtype, INPUTS, 32)
        x = dense(b, "x", F32, INPUTS, 6, 7)
        y = dense(b, "y", F32, OUTPUTS, 32)
        z = dense(b, "z", I32, OUTPUTS, 32)
        w = dense(b, "w", F32, OUTPUTS, 32)
        u = dense(b, "u", BOOL, OUTPUTS, 32)
        v = b.var("v")
        raw = cast(load(picks, v), INDEX)
        wrapped = select(op("lt", raw, 0), add(raw, 42), raw)
        clamped = op("min", op("max", wrapped, 0), 41)
        body = [
            store(y, v, value=load(x, op("floordiv", clamped, 7), op("floormod", clamped, 7))),
            store(z, v, value=cast(op("floormod", sub(mul(v, 5), 40), 9), I32)),
            store(w, v, value=cast(sub(mul(v, 3), 20), F32)),
            store(u, v, value=op("eq", op("floormod", v, 3), 1)),
        ]
        return b.build((vector(v, 32, body),))

    rng = np.random.default_rng(4)
    return Case(
        f"indices-{dtype}",
        make,
        {
            "picks": rng.integers(-50 if dtype.is_signed else 0, 60, 32).astype(dtype.numpy),
            "x": numbers(6, 7),
            "y": np.zeros(32, np.float32),
            "z": np.zeros(32, np.int32),
            "w": np.zeros(32, np.float32),
            "u": np.zeros(32, bool),
        },
        computes=(),
    )


def sizes() -> Case:
    """Dims of every form, as extents, strides and values."""

    def make() -> Kernel:
        from aot.ir.dims import maximum, minimum

        b = KernelBuilder("sizes")
        n, m = symbol("n"), symbol("m")
        b.dim_param("n"), b.dim_param("m")
        forms = [
            n + m,
            n * m * 2 - 7,
            n // 3,
            (n * 5 + m) // 4,
            n // m,
            (m - n) // 2,
            maximum(n, m, 4),
            minimum(n, m * 2) * 3,
            n % m,
            (n + 1) // (m + 1) * 4,
        ]
        y = b.buffer("y", I32, OUTPUTS, (len(forms),), (1,), is_written=True)
        z = b.buffer("z", F32, ARENA, (n, m), (m + 2, 1), is_written=True)
        i, j = b.var("i"), b.var("j")
        fill = serial(
            i,
            n,
            [
                parallel(
                    j,
                    m,
                    [store(z, i, j, value=add(load(z, i, j), cast(add(mul(i, ix(m)), j), F32)))],
                )
            ],
        )
        return b.build(
            (*(store(y, k, value=cast(ix(form), I32)) for k, form in enumerate(forms)), fill)
        )

    return Case("sizes", make, {"y": np.zeros(10, np.int32), "z": numbers(5, 9)}, {"n": 5, "m": 7})


def scalars() -> Case:
    """Parameters of several types, and guarded scalars."""

    def make() -> Kernel:
        b = KernelBuilder("scalars")
        x = dense(b, "x", F32, INPUTS, 3)
        y = dense(b, "y", F32, OUTPUTS, 6)
        z = dense(b, "z", I32, OUTPUTS, 2)
        scale = b.scalar_param("scale", F32)
        shift = b.scalar_param("shift", I32)
        flag = b.scalar_param("flag", BOOL)
        small = b.scalar_param("small", DType.U8)
        i = b.var("i")
        inside = op("lt", i, 3)
        value = mul(load(x, i, guard=inside, other=4.0), scale)
        return b.build(
            (
                serial(i, 5, [store(y, i, value=value, guard=op("ne", i, 1))]),
                store(y, 5, value=Select(flag, scale, f32(0), F32)),
                store(z, 0, value=op("sub", shift, cast(small, I32))),
                store(z, 1, value=cast(op("gt", shift, 0), I32), guard=flag),
            )
        )

    return Case(
        "scalars",
        make,
        {"x": numbers(3), "y": np.zeros(6, np.float32), "z": np.zeros(2, np.int32)},
        {"scale": 1.5, "shift": -7, "flag": True, "small": 200},
        computes=(F32, I32),
    )


def in_place() -> Case:
    """Arena memory read and written by the same iteration, at every alignment."""

    def make() -> Kernel:
        b = KernelBuilder("in_place")
        x = dense(b, "x", F32, ARENA, 3, 33)
        row, v = b.var("row"), b.var("v")
        last = b.var("last")

        def update(c: Expr) -> Store:
            return store(x, row, c, value=fma(load(x, row, c), load(x, row, c), f32(1)))

        return b.build(
            (
                serial(
                    row, 3, [vector(v, 32, [update(v)]), serial(last, 1, [update(add(last, 32))])]
                ),
            )
        )

    return Case("in-place", make, {"x": numbers(3, 33)}, is_exact=False)


def narrow(dtype: DType) -> Case:
    """Quantised arithmetic: narrow loads, wide sums, narrow stores."""

    def make() -> Kernel:
        b = KernelBuilder("narrow")
        x = dense(b, "x", dtype, INPUTS, 6, 48)
        y = dense(b, "y", dtype, OUTPUTS, 48)
        z = dense(b, "z", F32, OUTPUTS, 48)
        total = b.scratch("total", I32, (48,))
        v0, v1, v2, k = (b.var(n) for n in ("v0", "v1", "v2", "k"))
        return b.build(
            (
                vector(v0, 48, [store(total, v0, value=Const(I32, 0))]),
                serial(
                    k,
                    6,
                    [
                        vector(
                            v1,
                            48,
                            [
                                store(
                                    total, v1, value=add(load(total, v1), cast(load(x, k, v1), I32))
                                )
                            ],
                        )
                    ],
                ),
                vector(
                    v2,
                    48,
                    [
                        store(y, v2, value=Cast(mul(cast(load(total, v2), F32), 0.37), dtype)),
                        store(z, v2, value=cast(load(total, v2), F32)),
                    ],
                ),
            )
        )

    data = np.random.default_rng(2).integers(
        np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max, (6, 48), endpoint=True
    )
    return Case(
        f"narrow-{dtype}",
        make,
        {
            "x": data.astype(dtype.numpy),
            "y": np.zeros(48, dtype.numpy),
            "z": np.zeros(48, np.float32),
        },
        computes=(F32, I32),
    )


def single(source: DType, to: DType) -> Case:
    """One element through a whole vector's code, truncated: its neighbours are not touched."""

    def make() -> Kernel:
        b = KernelBuilder("single")
        x = dense(b, "x", source, INPUTS, 1)
        y = dense(b, "y", to, OUTPUTS, 1)
        outer, v = b.var("outer"), b.var("v")
        i = add(mul(outer, 16), v)
        inside = op("lt", i, 1)
        return b.build(
            (
                serial(
                    outer,
                    1,
                    [
                        vector(
                            v,
                            16,
                            [store(y, i, value=cast(load(x, i, guard=inside), to), guard=inside)],
                        )
                    ],
                ),
            )
        )

    return Case(
        f"single-{source}-{to}",
        make,
        {
            "x": np.array([np.iinfo(source.numpy).min + 1]).astype(source.numpy),
            "y": np.zeros(1, to.numpy),
        },
        computes=(),
    )


def shared_nodes() -> Case:
    """One Load object in two statements with a store between them reads memory twice."""

    def make() -> Kernel:
        b = KernelBuilder("shared_nodes")
        x = dense(b, "x", F32, ARENA, 16)
        y = dense(b, "y", F32, OUTPUTS, 16)
        v = b.var("v")
        node = Load(x, (v,), F32)
        doubled = add(node, node)
        return b.build((vector(v, 16, [store(x, v, value=doubled), store(y, v, value=doubled)]),))

    return Case("shared-nodes", make, {"x": numbers(16), "y": np.zeros(16, np.float32)})


def transposed(count: int, extent: int, dtype: DType, other: DType | None = None) -> Case:
    """An unrolled loop along what is contiguous, around lanes that lie apart: loaded, computed with
    what the lanes have side by side, and stored like that; and both at the same time."""
    to = other or dtype
    rng = np.random.default_rng(7)

    def random(*shape: int) -> Array:
        return rng.integers(0, 2 if dtype is BOOL else 100, shape).astype(dtype.numpy)

    def make() -> Kernel:
        b = KernelBuilder("transposed")
        x = dense(b, "x", dtype, INPUTS, 3, extent + 1, count)
        across = dense(b, "across", to, INPUTS, extent)
        y = dense(b, "y", to, OUTPUTS, 3, count, extent)
        z = dense(b, "z", dtype, OUTPUTS, 3, extent, count + 2)
        both = dense(b, "both", to, OUTPUTS, 3, extent, count)
        kept = b.scratch("kept", dtype, (extent, count), Space.WORKGROUP)
        i, v, r, v2, r2 = (b.var(n) for n in ("i", "v", "r", "v2", "r2"))
        value = load(x, i, add(v, 1), r)
        wide = value if to is BOOL else op("add", cast(value, to), load(across, v))
        t = b.var("t", to)
        body = [
            let(t, wide),
            store(y, i, r, v, value=t),
            store(z, i, v, add(r, 1), value=value),
            store(both, i, v, r, value=t),
            store(kept, v, r, value=value),
        ]
        again = [store(z, i, v2, 0, value=load(kept, v2, r2))]
        nests = [unrolled(r, count, [vector(v, extent, body)])]
        nests.append(unrolled(r2, count, [vector(v2, extent, again)]))
        return b.build((serial(i, 3, nests),))

    return Case(
        f"transposed-{count}x{extent}-{dtype}-{to}",
        make,
        {
            "x": random(3, extent + 1, count),
            "across": rng.integers(0, 2 if to is BOOL else 100, extent).astype(to.numpy),
            "y": np.zeros((3, count, extent), to.numpy),
            "z": np.zeros((3, extent, count + 2), dtype.numpy),
            "both": np.zeros((3, extent, count), to.numpy),
        },
        computes=(dtype, to),
    )


def access_cases() -> list[Case]:
    """All shapes of access."""
    return [
        *(
            strided(extent, step, dtype)
            for extent, step, dtype in (
                (16, 1, F32),
                (16, 2, F32),
                (16, 0, F32),
                (16, -1, F32),
                (16, 7, F32),
                (32, -3, F16),
                (32, -2, U8),
                (23, 5, U8),
                (7, 3, F32),
                (64, 1, F32),
                (16, 1, U8),
                (16, 2, U8),
                (24, 1, BOOL),
                (8, 3, BOOL),
                (16, 1, F16),
                (4, 2, F64),
                (16, 1, F64),
                (16, 1, I64),
                (2, 1, F32),
                (1, 1, F32),
            )
        ),
        *(
            tail(lanes, count, dtype)
            for lanes, count, dtype in (
                (16, 37, F32),
                (16, 32, F32),
                (16, 3, F32),
                (4, 5, F32),
                (32, 70, F32),
                (64, 65, F32),
                (8, 19, F64),
                (16, 21, I32),
                (16, 50, U8),
                (16, 23, DType.I16),
                (5, 12, F32),
                (16, 19, F16),
            )
        ),
        *(byte_table(*e) for e in ((16, 300), (64, 256), (128, 300), (32, 40), (6, 17))),
        *QUANTISING,
        *(spread_tail(count) for count in (16, 5, 37)),
        *(borders(lanes) for lanes in (8, 16, 32)),
        conditions(),
        *(indices(d) for d in (I32, I64, U8)),
        sizes(),
        tile(3, 32, 19, 16),
        tile(2, 16, 5, 4),
        tile(4, 16, 6, 8),
        lanes_carried(),
        chain(16),
        chain(4),
        scalars(),
        in_place(),
        narrow(DType.I8),
        narrow(U8),
        shared_nodes(),
        *(
            transposed(count, extent, dtype, *other)
            for count, extent, dtype, *other in (
                (8, 8, F32),
                (4, 16, F32),
                (16, 8, F32),
                (8, 12, F32),
                (5, 8, F32),
                (8, 16, I64),
                (4, 4, F64),
                (16, 16, U8, F32),
                (8, 16, DType.I16),
                (8, 8, BOOL),
                (8, 8, F16),
            )
        ),
        single(I64, I32),
        single(I32, U8),
        single(DType.I16, DType.I8),
    ]
