"""Attention with online softmax in kernel IR: a lane per query, or a workgroup per query."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot.ir import expr as ex
from aot.ir.dims import ceil_divide, symbol
from aot.ir.expr import Expr
from aot.kernels.ir.nodes import Barrier, Kernel, KernelBuilder, Space, Stmt
from tests.support.hard_case import ARENA, INFINITY, INPUTS, OUTPUTS, HardKernel, total_of
from tests.support.kernel_terms import (
    F32,
    add,
    call,
    f32,
    fma,
    grid,
    ix,
    lane,
    let,
    load,
    mul,
    op,
    serial,
    store,
    sub,
    unrolled,
    vector,
)

# Attention with online softmax: out[h, s] = softmax(scale * q[h, s] . k[h]) @ v[h]


def attention_cpu(depth: int = 24, lanes: int = 8, tile: int = 4) -> Kernel:
    """A workgroup per query; running maximum, sum and accumulator in REGISTER scratch."""
    b = KernelBuilder("attention_cpu")
    heads, queries, keys = symbol("H"), symbol("S"), symbol("T")
    q = b.buffer("q", F32, INPUTS, (heads, queries, depth), (queries * depth, depth, 1))
    k = b.buffer("k", F32, INPUTS, (heads, keys, depth), (keys * depth, depth, 1))
    v = b.buffer("v", F32, ARENA, (heads, keys, depth), (keys * depth, depth, 1))
    out = b.buffer(
        "out", F32, OUTPUTS, (heads, queries, depth), (queries * depth, depth, 1), is_written=True
    )
    for name in "HST":
        b.dim_param(name)
    scale = b.scalar_param("scale", F32)
    chunks = depth // lanes
    running_max, running_sum = b.scratch("running_max", F32, ()), b.scratch("running_sum", F32, ())
    acc = b.scratch("acc", F32, (chunks, lanes))
    part = b.scratch("part", F32, (tile, lanes))
    score = b.scratch("score", F32, (tile,))
    h, s, t = b.var("h"), b.var("s"), b.var("t")

    def each_depth(body: Callable[[Expr, Expr, Expr], list[Stmt]]) -> Stmt:
        c, x = b.var("c"), b.var("x")
        return unrolled(c, chunks, [vector(x, lanes, body(c, x, add(mul(c, lanes), x)))])

    def each_key(body: Callable[[Expr, Expr], list[Stmt]]) -> Stmt:
        j = b.var("j")
        return unrolled(j, tile, body(j, add(mul(t, tile), j)))

    def dot(j: Expr, key: Expr) -> list[Stmt]:
        x0 = b.var("x")
        clear = vector(x0, lanes, [store(part, j, x0, value=f32(0))])
        accumulate = each_depth(
            lambda c, x, d: [
                store(
                    part,
                    j,
                    x,
                    value=fma(
                        load(q, h, s, d),
                        load(k, h, key, d, guard=op("lt", key, keys_size)),
                        load(part, j, x),
                    ),
                )
            ]
        )
        scaled = mul(total_of(part, lanes, "add", j), scale)
        return [
            clear,
            accumulate,
            store(score, j, value=ex.select(op("lt", key, keys_size), scaled, f32(-INFINITY))),
        ]

    keys_size = ix(keys)
    new_max, correction = b.var("new_max", F32), b.var("correction", F32)
    weights = each_key(
        lambda j, key: [store(score, j, value=call("exp", sub(load(score, j), new_max)))]
    )
    rescale = each_depth(lambda c, x, d: [store(acc, c, x, value=mul(load(acc, c, x), correction))])
    accumulate = each_key(
        lambda j, key: [
            each_depth(
                lambda c, x, d: [
                    store(
                        acc,
                        c,
                        x,
                        value=fma(
                            load(score, j),
                            load(v, h, key, d, guard=op("lt", key, keys_size)),
                            load(acc, c, x),
                        ),
                    )
                ]
            )
        ]
    )
    step = [
        each_key(dot),
        let(new_max, op("max", load(running_max), total_of(score, tile, "max"))),
        let(correction, call("exp", sub(load(running_max), new_max))),
        weights,
        store(running_sum, value=fma(load(running_sum), correction, total_of(score, tile, "add"))),
        rescale,
        accumulate,
        store(running_max, value=new_max),
    ]
    body = [
        store(running_max, value=f32(-INFINITY)),
        store(running_sum, value=f32(0)),
        each_depth(lambda c, x, d: [store(acc, c, x, value=f32(0))]),
        serial(t, ceil_divide(keys, tile), step),
        each_depth(
            lambda c, x, d: [
                store(out, h, s, d, value=op("div", load(acc, c, x), load(running_sum)))
            ]
        ),
    ]
    return b.build(grid([(h, heads, 1), (s, queries, 0)], body))


def attention_gpu(depth: int = 24, lanes: int = 8, tile: int = 4) -> Kernel:
    """A lane per query; tiles of keys and values are staged in WORKGROUP scratch."""
    b = KernelBuilder("attention_gpu")
    heads, queries, keys = symbol("H"), symbol("S"), symbol("T")
    q = b.buffer("q", F32, INPUTS, (heads, queries, depth), (queries * depth, depth, 1))
    k = b.buffer("k", F32, INPUTS, (heads, keys, depth), (keys * depth, depth, 1))
    v = b.buffer("v", F32, ARENA, (heads, keys, depth), (keys * depth, depth, 1))
    out = b.buffer(
        "out", F32, OUTPUTS, (heads, queries, depth), (queries * depth, depth, 1), is_written=True
    )
    for name in "HST":
        b.dim_param(name)
    scale = b.scalar_param("scale", F32)
    staged_k = b.scratch("staged_k", F32, (tile, depth), Space.WORKGROUP)
    staged_v = b.scratch("staged_v", F32, (tile, depth), Space.WORKGROUP)
    running_max, running_sum = b.scratch("running_max", F32, ()), b.scratch("running_sum", F32, ())
    acc = b.scratch("acc", F32, (depth,))
    query = b.scratch("query", F32, (depth,))
    score = b.scratch("score", F32, (tile,))
    h, g, t = b.var("h"), b.var("g"), b.var("t")
    keys_size, queries_size = ix(keys), ix(queries)

    def each(extent: int, body: Callable[[Expr], list[Stmt]]) -> Stmt:
        i = b.var("i")
        return unrolled(i, extent, body(i))

    def lanes_do(body: Callable[[Expr, Expr], list[Stmt]]) -> Stmt:
        x = b.var("lane")
        return lane(x, lanes, body(x, add(mul(g, lanes), x)))

    def stage(x: Expr, row: Expr) -> list[Stmt]:
        def one(i: Expr) -> list[Stmt]:
            flat = add(mul(i, lanes), x)
            j, d = op("floordiv", flat, depth), op("floormod", flat, depth)
            key = add(mul(t, tile), j)
            is_key = op("lt", key, keys_size)
            return [
                store(staged_k, j, d, value=load(k, h, key, d, guard=is_key)),
                store(staged_v, j, d, value=load(v, h, key, d, guard=is_key)),
            ]

        return [each(tile * depth // lanes, one)]

    def begin(x: Expr, row: Expr) -> list[Stmt]:
        is_row = op("lt", row, queries_size)
        return [
            store(running_max, value=f32(-INFINITY)),
            store(running_sum, value=f32(0)),
            each(
                depth,
                lambda d: [
                    store(acc, d, value=f32(0)),
                    store(query, d, value=load(q, h, row, d, guard=is_row)),
                ],
            ),
        ]

    def update(x: Expr, row: Expr) -> list[Stmt]:
        new_max, correction = b.var("new_max", F32), b.var("correction", F32)
        dot = each(
            tile,
            lambda j: [
                store(score, j, value=f32(0)),
                each(
                    depth,
                    lambda d: [
                        store(
                            score,
                            j,
                            value=fma(load(query, d), load(staged_k, j, d), load(score, j)),
                        )
                    ],
                ),
                store(
                    score,
                    j,
                    value=ex.select(
                        op("lt", add(mul(t, tile), j), keys_size),
                        mul(load(score, j), scale),
                        f32(-INFINITY),
                    ),
                ),
            ],
        )
        return [
            dot,
            let(new_max, op("max", load(running_max), total_of(score, tile, "max"))),
            let(correction, call("exp", sub(load(running_max), new_max))),
            each(
                tile, lambda j: [store(score, j, value=call("exp", sub(load(score, j), new_max)))]
            ),
            store(
                running_sum, value=fma(load(running_sum), correction, total_of(score, tile, "add"))
            ),
            each(depth, lambda d: [store(acc, d, value=mul(load(acc, d), correction))]),
            each(
                tile,
                lambda j: [
                    each(
                        depth,
                        lambda d: [
                            store(
                                acc,
                                d,
                                value=fma(load(score, j), load(staged_v, j, d), load(acc, d)),
                            )
                        ],
                    )
                ],
            ),
            store(running_max, value=new_max),
        ]

    def finish(x: Expr, row: Expr) -> list[Stmt]:
        return [
            each(
                depth,
                lambda d: [
                    store(
                        out,
                        h,
                        row,
                        d,
                        value=op("div", load(acc, d), load(running_sum)),
                        guard=op("lt", row, queries_size),
                    )
                ],
            )
        ]

    steps = serial(
        t, ceil_divide(keys, tile), [lanes_do(stage), Barrier(), lanes_do(update), Barrier()]
    )
    body = [lanes_do(begin), steps, lanes_do(finish)]
    return b.build(grid([(h, heads, 1), (g, ceil_divide(queries, lanes), 0)], body))


def attention_case(style: str, heads: int, queries: int, keys: int, depth: int) -> HardKernel:
    rng = np.random.RandomState(1)
    q, k, v = (
        rng.standard_normal((heads, n, depth)).astype(np.float32) for n in (queries, keys, keys)
    )
    scale = float(np.float32(depth**-0.5 * 3))
    scores = np.einsum("hsd,htd->hst", q.astype(np.float64), k) * scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("hst,htd->hsd", weights / weights.sum(-1, keepdims=True), v)
    make = attention_cpu if style == "cpu" else attention_gpu
    return HardKernel(
        f"attention-{style}",
        style,
        lambda: make(depth),
        {"q": q, "k": k, "v": v, "out": np.full(q.shape, np.nan, np.float32)},
        {"H": heads, "S": queries, "T": keys, "scale": scale},
        {"out": expected.astype(np.float32)},
    )
