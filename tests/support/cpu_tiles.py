"""Kernels of register tiles, of lanes that work together, and of a chain of elementwise ops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot.ir.dims import ceil_divide, symbol
from aot.ir.expr import Expr, cast
from aot.kernels.ir.nodes import (
    Barrier,
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
    CONSTANTS,
    F32,
    INPUTS,
    OUTPUTS,
)
from tests.support.kernel_terms import (
    add,
    call,
    f32,
    fma,
    ix,
    lane,
    load,
    mul,
    op,
    serial,
    store,
    unrolled,
    vector,
)


def tile(height: int, width: int, depth: int, vectors: int) -> Case:
    """The register-tiled contraction on packed weights."""

    def make() -> Kernel:
        return matmul_tile(height, width, vectors)

    panels = 2
    return Case(
        f"tile-{height}x{width}-{vectors}",
        make,
        {
            "a": numbers(height, depth),
            "b": numbers(panels, width // 16, depth, 16, seed=2),
            "c": np.zeros((height, panels * width), np.float32),
        },
        {"m": height, "n": panels * width, "k": depth},
        is_exact=False,
    )


def matmul_tile(height: int, width: int, vectors: int) -> Kernel:
    """c[m, n] = a[m, k] @ b in panels [n / width][width / 16][k][16], one tile a workgroup."""
    b = KernelBuilder("tile")
    m, n, k = symbol("m"), symbol("n"), symbol("k")
    for name in ("m", "n", "k"):
        b.dim_param(name)
    left = b.buffer("a", F32, ARENA, (m, k), (k, 1))
    right = b.buffer(
        "b", F32, CONSTANTS, (n // width, width // 16, k, 16), (k * width, k * 16, 16, 1)
    )
    out = b.buffer("c", F32, OUTPUTS, (m, n), (n, 1), is_written=True)
    total = b.scratch("total", F32, (height, width))
    i, j, t = b.var("i"), b.var("j"), b.var("t")

    def each(body: Callable[[Expr, Expr, Expr, Expr], Store]) -> For:
        r, c, v = b.var("r"), b.var("c"), b.var("v")
        column = add(mul(c, vectors), v)
        if vectors == 16:
            panel, place = c, v
        else:
            panel, place = op("floordiv", column, 16), op("floormod", column, 16)
        return unrolled(
            r,
            height,
            [unrolled(c, width // vectors, [vector(v, vectors, [body(r, column, panel, place)])])],
        )

    def row(r: Expr) -> Expr:
        return add(mul(i, height), r)

    body = (
        each(lambda r, c, p, v: store(total, r, c, value=f32(0))),
        serial(
            t,
            k,
            [
                each(
                    lambda r, c, p, v: store(
                        total,
                        r,
                        c,
                        value=fma(
                            load(left, row(r), t), load(right, j, p, t, v), load(total, r, c)
                        ),
                    )
                )
            ],
        ),
        each(lambda r, c, p, v: store(out, row(r), add(mul(j, width), c), value=load(total, r, c))),
    )
    columns = For(j, n // width, LoopKind.WORKGROUP, body, 0)
    return b.build((For(i, m // height, LoopKind.WORKGROUP, (columns,), 1),))


def lanes_carried() -> Case:
    """Registers of each lane live across LANE loops and barriers; shared scratch between them."""

    def make() -> Kernel:
        b = KernelBuilder("lanes_carried")
        x = dense(b, "x", F32, INPUTS, 4, 12)
        y = dense(b, "y", F32, OUTPUTS, 4, 3)
        own = b.scratch("own", F32, (2,))
        shared = b.scratch("shared", F32, (12,), Space.WORKGROUP)
        k = b.var("k")

        def lanes(body: Callable[[Expr, Expr, Expr], list[Stmt]]) -> For:
            lx, ly = b.var("lx"), b.var("ly")
            return lane(ly, 3, [lane(lx, 4, body(lx, ly, add(mul(ly, 4), lx)))], axis=1)

        following = lambda p: op("floormod", add(p, 5), 12)  # noqa: E731
        body = (
            store(own, 1, value=f32(10)),
            lanes(lambda lx, ly, p: [store(own, 0, value=cast(p, F32))]),
            serial(
                k,
                4,
                [
                    lanes(
                        lambda lx, ly, p: [store(shared, p, value=mul(load(x, k, p), load(own, 0)))]
                    ),
                    Barrier(),
                    lanes(
                        lambda lx, ly, p: [
                            store(own, 0, value=add(load(own, 0), load(shared, following(p)))),
                            store(own, 1, value=add(load(own, 1), load(own, 0))),
                        ]
                    ),
                    Barrier(),
                ],
            ),
            lanes(lambda lx, ly, p: [store(y, lx, ly, value=load(own, 1))]),
        )
        return b.build(body)

    return Case("lanes-carried", make, {"x": numbers(4, 12), "y": np.zeros((4, 3), np.float32)})


def chain(lanes: int) -> Case:
    """A fused chain with every transcendental, on whole vectors and a tail."""

    def make() -> Kernel:
        b = KernelBuilder("chain")
        b.dim_param("n")
        n = symbol("n")
        x = b.buffer("x", F32, INPUTS, (n,), (1,))
        y = b.buffer("y", F32, OUTPUTS, (n,), (1,), is_written=True)
        group, v = b.var("group"), b.var("v")
        i = add(mul(group, lanes), v)
        inside = op("lt", i, ix(n))
        value: Expr = load(x, i, guard=inside)
        for name in ("tanh", "exp", "sigmoid", "erf", "sin", "log", "cos"):
            value = call(name, value)
        value = op("pow", call("abs", value), f32(1.3))
        return b.build(
            (
                serial(
                    group,
                    ceil_divide(n, lanes),
                    [vector(v, lanes, [store(y, i, value=value, guard=inside)])],
                ),
            )
        )

    return Case(
        f"chain-{lanes}",
        make,
        {"x": numbers(37), "y": np.zeros(37, np.float32)},
        {"n": 37},
        is_exact=False,
    )
