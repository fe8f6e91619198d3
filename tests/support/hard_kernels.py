"""Five hard kernels written down by hand in kernel IR, with inputs and expected results.

Both styles of each: "cpu" vectorises with VECTOR loops, "gpu" spreads LANE loops over a workgroup.
Backends run all of HARD_KERNELS; `class_buffers` lays a case out as a dispatch does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aot.ir import expr as ex
from aot.ir.dims import Dim, ceil_divide, symbol
from aot.ir.expr import Expr, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import Barrier, Kernel, KernelBuilder, Space, Stmt
from tests.support.hard_attention import attention_case
from tests.support.hard_case import (
    ARENA,
    CONSTANTS,
    INFINITY,
    INPUTS,
    OUTPUTS,
    Array,
    HardKernel,
    class_buffers,
    results_of,
    total_of,
)
from tests.support.hard_winograd import winograd_cases
from tests.support.kernel_terms import (
    F32,
    I32,
    INDEX,
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
    parallel,
    serial,
    store,
    sub,
    unrolled,
    vector,
    when,
)

__all__ = ["HARD_KERNELS", "HardKernel", "class_buffers", "results_of"]


# One LSTM step; weights in panels [units/P][inputs][4][P], gates in ONNX order i, o, f, c


def lstm_step(style: str, lanes: int = 8) -> Kernel:
    """A workgroup per panel of hidden units and batch row; the cell state is updated in place."""
    b = KernelBuilder(f"lstm_step_{style}")
    batch, inputs, panels = symbol("N"), symbol("I"), symbol("P")
    units = panels * lanes
    x = b.buffer("x", F32, INPUTS, (batch, inputs), (inputs, 1))
    hidden = b.buffer("hidden", F32, INPUTS, (batch, units), (units, 1))
    w = b.buffer(
        "w", F32, CONSTANTS, (panels, inputs, 4, lanes), (inputs * 4 * lanes, 4 * lanes, lanes, 1)
    )
    r = b.buffer(
        "r", F32, CONSTANTS, (panels, units, 4, lanes), (units * 4 * lanes, 4 * lanes, lanes, 1)
    )
    bias = b.buffer("bias", F32, CONSTANTS, (panels, 4, lanes), (4 * lanes, lanes, 1))
    cell = b.buffer("cell", F32, ARENA, (batch, units), (units, 1), is_written=True)
    out = b.buffer("out", F32, OUTPUTS, (batch, units), (units, 1), is_written=True)
    for name in "NIP":
        b.dim_param(name)
    # A lane keeps its own gates; VECTOR iterations share an invocation, so theirs are per lane.
    is_cpu = style == "cpu"
    gates = b.scratch("gates", F32, (4, lanes) if is_cpu else (4,))
    n, p = b.var("n"), b.var("p")

    def each_unit(body: Callable[[Expr], list[Stmt]]) -> Stmt:
        u = b.var("u")
        return (vector if is_cpu else lane)(u, lanes, body(u))

    def each_gate(body: Callable[[Expr], list[Stmt]]) -> Stmt:
        g = b.var("g")
        return unrolled(g, 4, body(g))

    def at(g: Expr, u: Expr) -> tuple[Expr, ...]:
        return (g, u) if is_cpu else (g,)

    def contraction(source: Any, weights: Any, extent: Any) -> Stmt:
        k = b.var("k")
        accumulate = each_gate(
            lambda g: [
                each_unit(
                    lambda u: [
                        store(
                            gates,
                            *at(g, u),
                            value=fma(
                                load(source, n, k),
                                load(weights, p, k, g, u),
                                load(gates, *at(g, u)),
                            ),
                        )
                    ]
                )
            ]
        )
        return serial(k, extent, [accumulate])

    def finish(u: Expr) -> list[Stmt]:
        unit = add(mul(p, lanes), u)
        i, o, f = (call("sigmoid", load(gates, *at(ix(g), u))) for g in range(3))
        candidate = call("tanh", load(gates, *at(ix(3), u)))
        state = b.var("state", F32)
        return [
            let(state, fma(f, load(cell, n, unit), mul(i, candidate))),
            store(cell, n, unit, value=state),
            store(out, n, unit, value=mul(o, call("tanh", state))),
        ]

    body = [
        each_gate(
            lambda g: [each_unit(lambda u: [store(gates, *at(g, u), value=load(bias, p, g, u))])]
        ),
        contraction(x, w, inputs),
        contraction(hidden, r, units),
        each_unit(finish),
    ]
    return b.build(grid([(n, batch, 1), (p, panels, 0)], body))


def _lstm_case(style: str, batch: int, inputs: int, panels: int, lanes: int = 8) -> HardKernel:
    rng = np.random.RandomState(2)
    units = panels * lanes

    def draw(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    x, hidden, cell = draw(batch, inputs), draw(batch, units), draw(batch, units)
    w, r = draw(4, units, inputs) * np.float32(0.4), draw(4, units, units) * np.float32(0.3)
    bias = draw(4, units)
    gates = (
        np.einsum("bi,gui->gbu", x.astype(np.float64), w)
        + np.einsum("bi,gui->gbu", hidden.astype(np.float64), r)
        + bias[:, None]
    )
    i, o, f = (1 / (1 + np.exp(-gates[g])) for g in range(3))
    state = f * cell + i * np.tanh(gates[3])

    def packed(a: Array) -> Array:
        return np.ascontiguousarray(a.reshape(4, panels, lanes, a.shape[2]).transpose(1, 3, 0, 2))

    return HardKernel(
        f"lstm_step-{style}",
        style,
        lambda: lstm_step(style, lanes),
        {
            "x": x,
            "hidden": hidden,
            "w": packed(w),
            "r": packed(r),
            "bias": np.ascontiguousarray(bias.reshape(4, panels, lanes).transpose(1, 0, 2)),
            "cell": cell,
            "out": np.full(cell.shape, np.nan, np.float32),
        },
        {"N": batch, "I": inputs, "P": panels},
        {"cell": state.astype(np.float32), "out": (o * np.tanh(state)).astype(np.float32)},
    )


# Gather: out[k] = data[clamp(index[k] < 0 ? index[k] + N : index[k])]


def gather(style: str, lanes: int = 8, index_dtype: DType = I32) -> Kernel:
    """Rows by number, negative ones from the end, all clamped into the data."""
    b = KernelBuilder(f"gather_{style}")
    rows, depth, count = symbol("N"), symbol("D"), symbol("K")
    data = b.buffer("data", F32, CONSTANTS, (rows, depth), (depth, 1))
    numbers = b.buffer("numbers", index_dtype, INPUTS, (count,), (1,))
    out = b.buffer("out", F32, OUTPUTS, (count, depth), (depth, 1), is_written=True)
    for name in "NDK":
        b.dim_param(name)

    def row(k: Expr, guard: Expr | None = None) -> Expr:
        number = ex.cast(load(numbers, k, guard=guard), INDEX)
        wrapped = ex.select(op("lt", number, 0), add(number, ix(rows)), number)
        return op("min", op("max", wrapped, 0), sub(ix(rows), 1))

    if style == "cpu":
        at, chunk, x, r = b.var("k"), b.var("chunk"), b.var("x"), b.var("r")
        d = add(mul(chunk, lanes), x)
        inside = op("lt", d, ix(depth))
        copy = vector(
            x, lanes, [store(out, at, d, value=load(data, r, d, guard=inside), guard=inside)]
        )
        body: list[Stmt] = [let(r, row(at)), parallel(chunk, ceil_divide(depth, lanes), [copy])]
        return b.build(grid([(at, count, 0)], body))
    g, x = b.var("g"), b.var("x")
    flat = add(mul(g, lanes), x)
    inside = op("lt", flat, ix(count * depth))
    k, d = op("floordiv", flat, ix(depth)), op("floormod", flat, ix(depth))
    copy = lane(
        x,
        lanes,
        [store(out, k, d, value=load(data, row(k, inside), d, guard=inside), guard=inside)],
    )
    return b.build(grid([(g, ceil_divide(count * depth, lanes), 0)], [copy]))


def _gather_case(style: str, rows: int, depth: int, index_dtype: DType, suffix: str) -> HardKernel:
    rng = np.random.RandomState(4)
    data = rng.standard_normal((rows, depth)).astype(np.float32)
    numbers = np.array([0, rows - 1, -1, -rows, 3, 99, -99, 2, 2], index_dtype.numpy)
    wrapped = np.where(numbers < 0, numbers + rows, numbers)
    expected = data[np.clip(wrapped, 0, rows - 1)]
    return HardKernel(
        f"gather{suffix}-{style}",
        style,
        lambda: gather(style, index_dtype=index_dtype),
        {"data": data, "numbers": numbers, "out": np.full(expected.shape, np.nan, np.float32)},
        {"N": rows, "D": depth, "K": len(numbers)},
        {"out": expected},
        tolerance=0.0,
    )


# Row softmax


def softmax_cpu(lanes: int = 8) -> Kernel:
    """A workgroup per row; partial maxima and sums per VECTOR lane, guards at the tail."""
    b = KernelBuilder("softmax_cpu")
    rows, width = symbol("R"), symbol("N")
    x = b.buffer("x", F32, INPUTS, (rows, width), (width, 1))
    out = b.buffer("out", F32, OUTPUTS, (rows, width), (width, 1), is_written=True)
    b.dim_param("R")
    b.dim_param("N")
    most = b.scratch("most", F32, (lanes,))
    total = b.scratch("total", F32, (lanes,))
    r = b.var("r")

    def fill(target: Any, value: float) -> Stmt:
        v = b.var("v")
        return vector(v, lanes, [store(target, v, value=f32(value))])

    def each_column(
        kind: Callable[[Var, Dim, list[Stmt]], Stmt], body: Callable[[Expr, Expr, Expr], list[Stmt]]
    ) -> Stmt:
        c, v = b.var("c"), b.var("v")
        column = add(mul(c, lanes), v)
        return kind(
            c,
            ceil_divide(width, lanes),
            [vector(v, lanes, body(v, column, op("lt", column, ix(width))))],
        )

    row_most, row_total = b.var("row_most", F32), b.var("row_total", F32)

    def weight(column: Expr, inside: Expr) -> Expr:
        value = load(x, r, column, guard=inside, other=-INFINITY)
        return call("exp", sub(value, row_most))

    body = [
        fill(most, -INFINITY),
        fill(total, 0),
        each_column(
            serial,
            lambda v, column, inside: [
                store(
                    most,
                    v,
                    value=op(
                        "max", load(most, v), load(x, r, column, guard=inside, other=-INFINITY)
                    ),
                )
            ],
        ),
        let(row_most, total_of(most, lanes, "max")),
        each_column(
            serial,
            lambda v, column, inside: [
                store(total, v, value=add(load(total, v), weight(column, inside)))
            ],
        ),
        let(row_total, total_of(total, lanes, "add")),
        each_column(
            parallel,
            lambda v, column, inside: [
                store(
                    out, r, column, value=op("div", weight(column, inside), row_total), guard=inside
                )
            ],
        ),
    ]
    return b.build(grid([(r, rows, 0)], body))


def softmax_gpu(lanes: int = 8) -> Kernel:
    """A workgroup per row; lanes stride over columns and reduce in WORKGROUP scratch."""
    b = KernelBuilder("softmax_gpu")
    rows, width = symbol("R"), symbol("N")
    x = b.buffer("x", F32, INPUTS, (rows, width), (width, 1))
    out = b.buffer("out", F32, OUTPUTS, (rows, width), (width, 1), is_written=True)
    b.dim_param("R")
    b.dim_param("N")
    partial = b.scratch("partial", F32, (), Space.REGISTER)
    shared = b.scratch("shared", F32, (lanes,), Space.WORKGROUP)
    r = b.var("r")

    def reduce(operation: str, start: float, term: Callable[[Expr, Expr], Expr]) -> list[Stmt]:
        """Leaves the row's reduction in shared[0], seen by all lanes."""
        v, c = b.var("v"), b.var("c")
        column = add(mul(c, lanes), v)
        inside = op("lt", column, ix(width))
        own = lane(
            v,
            lanes,
            [
                store(partial, value=f32(start)),
                serial(
                    c,
                    ceil_divide(width, lanes),
                    [store(partial, value=op(operation, load(partial), term(column, inside)))],
                ),
                store(shared, v, value=load(partial)),
            ],
        )
        stmts: list[Stmt] = [own, Barrier()]
        step = lanes // 2
        while step:
            w = b.var("w")
            stmts.append(
                lane(
                    w,
                    lanes,
                    [
                        when(
                            op("lt", w, step),
                            [
                                store(
                                    shared,
                                    w,
                                    value=op(
                                        operation, load(shared, w), load(shared, add(w, step))
                                    ),
                                )
                            ],
                        )
                    ],
                )
            )
            stmts.append(Barrier())
            step //= 2
        return stmts

    row_most, row_total = b.var("row_most", F32), b.var("row_total", F32)

    def value(column: Expr, inside: Expr) -> Expr:
        return load(x, r, column, guard=inside, other=-INFINITY)

    def weight(column: Expr, inside: Expr) -> Expr:
        return call("exp", sub(value(column, inside), row_most))

    v, c = b.var("v"), b.var("c")
    column = add(mul(c, lanes), v)
    inside = op("lt", column, ix(width))
    body = [
        *reduce("max", -INFINITY, value),
        let(row_most, load(shared, ix(0))),
        Barrier(),
        *reduce("add", 0, weight),
        let(row_total, load(shared, ix(0))),
        lane(
            v,
            lanes,
            [
                serial(
                    c,
                    ceil_divide(width, lanes),
                    [
                        store(
                            out,
                            r,
                            column,
                            value=op("div", weight(column, inside), row_total),
                            guard=inside,
                        )
                    ],
                )
            ],
        ),
    ]
    return b.build(grid([(r, rows, 0)], body))


def _softmax_case(style: str, rows: int, width: int) -> HardKernel:
    rng = np.random.RandomState(5)
    x = (rng.standard_normal((rows, width)) * 4).astype(np.float32)
    x[0, :] = 80.0
    x[1, 0] = 300.0
    weights = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    expected = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    return HardKernel(
        f"softmax-{style}",
        style,
        softmax_cpu if style == "cpu" else softmax_gpu,
        {"x": x, "out": np.full(x.shape, np.nan, np.float32)},
        {"R": rows, "N": width},
        {"out": expected},
    )


HARD_KERNELS: list[HardKernel] = [
    case
    for style in ("cpu", "gpu")
    for case in (
        attention_case(style, heads=2, queries=5, keys=11, depth=24),
        _lstm_case(style, batch=3, inputs=10, panels=2),
        *winograd_cases(style, 2, height=5, width=7, chunks=2),
        *winograd_cases(style, 4, height=9, width=6, chunks=2),
        _gather_case(style, rows=6, depth=13, index_dtype=I32, suffix=""),
        _softmax_case(style, rows=4, width=27),
    )
] + [_gather_case("cpu", rows=6, depth=13, index_dtype=DType.I64, suffix="_i64")]
