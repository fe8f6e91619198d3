"""Five hard kernels written down by hand in kernel IR, with inputs and expected results.

Both styles of each: "cpu" vectorises with VECTOR loops, "gpu" spreads LANE loops over a workgroup.
Backends run all of HARD_KERNELS; `class_buffers` lays a case out as a dispatch does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from kernel_terms import (
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

from aot.ir import expr as ex
from aot.ir.dims import ceil_divide, symbol
from aot.ir.expr import Expr
from aot.ir.types import DType
from aot.kernels.ir import Barrier, BufferClass, Kernel, KernelBuilder, Space, Stmt

Array = np.ndarray[Any, Any]
CONSTANTS, ARENA = BufferClass.CONSTANTS, BufferClass.ARENA
INPUTS, OUTPUTS = BufferClass.INPUTS, BufferClass.OUTPUTS
INFINITY = float("inf")


@dataclass
class HardKernel:
    """A kernel with data.

    Attributes:
        name: `kernel-style`, unique.
        style: "cpu" or "gpu".
        make: builds the kernel afresh.
        buffers: contents before the run, by kernel buffer; results are filled with NaN or -1.
        params: dims and scalars; offsets are the harness's.
        expected: contents after the run of the buffers that are written.
        tolerance: largest difference allowed, relative to the largest magnitude expected.
    """

    name: str
    style: str
    make: Callable[[], Kernel]
    buffers: dict[str, Array]
    params: dict[str, int | float]
    expected: dict[str, Array]
    tolerance: float = 2e-6
    _kernel: Kernel | None = field(default=None, repr=False)

    @property
    def kernel(self) -> Kernel:
        if self._kernel is None:
            self._kernel = self.make()
        return self._kernel

    def largest_error(self, results: dict[str, Array]) -> float:
        """Relative to the largest magnitude expected; infinity where a NaN is not expected."""
        worst = 0.0
        for name, expected in self.expected.items():
            got = np.asarray(results[name]).reshape(expected.shape)
            if not np.array_equal(np.isnan(got), np.isnan(expected)):
                return INFINITY
            difference = np.abs(got.astype(np.float64) - expected.astype(np.float64))
            scale = max(float(np.nanmax(np.abs(expected))), 1e-30)
            worst = max(worst, float(np.nanmax(difference)) / scale)
        return worst


def class_buffers(case: HardKernel, *, gap: int = 64) -> tuple[
        dict[str, Array], dict[str, int | float], dict[str, tuple[str, int, int]]]:
    """The four class buffers (uint8), the whole parameter block, and where each buffer lies.

    Buffers stand `gap` or more poisoned bytes apart, at multiples of their elements' size that are
    not multiples of anything larger, as the ABI allows.
    """
    images: dict[str, bytearray] = {c.name.lower(): bytearray() for c in BufferClass}
    params = dict(case.params)
    places: dict[str, tuple[str, int, int]] = {}
    for buffer in case.kernel.buffers:
        image = images[buffer.binding.name.lower()]
        size = buffer.dtype.bytes
        image.extend(b"\xa5" * (gap - len(image) % gap + size))
        data = np.ascontiguousarray(case.buffers[buffer.name]).tobytes()
        params[buffer.offset.name] = len(image)
        places[buffer.name] = (buffer.binding.name.lower(), len(image), len(data))
        image.extend(data)
        image.extend(b"\xa5" * gap)
    arrays = {name: np.frombuffer(image, np.uint8).copy() for name, image in images.items()}
    return arrays, params, places


def results_of(case: HardKernel, arrays: dict[str, Array],
               places: dict[str, tuple[str, int, int]]) -> dict[str, Array]:
    """What the written buffers hold after a run on `class_buffers`' arrays."""
    results: dict[str, Array] = {}
    for name, expected in case.expected.items():
        binding, start, size = places[name]
        results[name] = arrays[binding][start : start + size].view(expected.dtype).reshape(
            expected.shape)
    return results


def _total(source: Any, count: int, operation: str, *before: Expr) -> Expr:
    """The elements of one-dimensional scratch after indices `before`, combined as a tree."""
    terms: list[Expr] = [load(source, *before, ix(i)) for i in range(count)]
    while len(terms) > 1:
        pairs = [op(operation, a, b) for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(pairs) * 2 :]
    return terms[0]


# Attention with online softmax: out[h, s] = softmax(scale * q[h, s] . k[h]) @ v[h]


def attention_cpu(depth: int = 24, lanes: int = 8, tile: int = 4) -> Kernel:
    """A workgroup per query; running maximum, sum and accumulator in REGISTER scratch."""
    b = KernelBuilder("attention_cpu")
    heads, queries, keys = symbol("H"), symbol("S"), symbol("T")
    q = b.buffer("q", F32, INPUTS, (heads, queries, depth), (queries * depth, depth, 1))
    k = b.buffer("k", F32, INPUTS, (heads, keys, depth), (keys * depth, depth, 1))
    v = b.buffer("v", F32, ARENA, (heads, keys, depth), (keys * depth, depth, 1))
    out = b.buffer("out", F32, OUTPUTS, (heads, queries, depth), (queries * depth, depth, 1),
                   is_written=True)
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
        accumulate = each_depth(lambda c, x, d: [store(part, j, x, value=fma(
            load(q, h, s, d), load(k, h, key, d, guard=op("lt", key, keys_size)),
            load(part, j, x)))])
        scaled = mul(_total(part, lanes, "add", j), scale)
        return [clear, accumulate, store(score, j, value=ex.select(
            op("lt", key, keys_size), scaled, f32(-INFINITY)))]

    keys_size = ix(keys)
    new_max, correction = b.var("new_max", F32), b.var("correction", F32)
    weights = each_key(lambda j, key: [store(score, j, value=call(
        "exp", sub(load(score, j), new_max)))])
    rescale = each_depth(lambda c, x, d: [store(acc, c, x, value=mul(
        load(acc, c, x), correction))])
    accumulate = each_key(lambda j, key: [each_depth(lambda c, x, d: [store(
        acc, c, x, value=fma(load(score, j),
                             load(v, h, key, d, guard=op("lt", key, keys_size)),
                             load(acc, c, x)))])])
    step = [
        each_key(dot),
        let(new_max, op("max", load(running_max), _total(score, tile, "max"))),
        let(correction, call("exp", sub(load(running_max), new_max))),
        weights,
        store(running_sum, value=fma(load(running_sum), correction, _total(score, tile, "add"))),
        rescale,
        accumulate,
        store(running_max, value=new_max),
    ]
    body = [
        store(running_max, value=f32(-INFINITY)),
        store(running_sum, value=f32(0)),
        each_depth(lambda c, x, d: [store(acc, c, x, value=f32(0))]),
        serial(t, ceil_divide(keys, tile), step),
        each_depth(lambda c, x, d: [store(out, h, s, d, value=op(
            "div", load(acc, c, x), load(running_sum)))]),
    ]
    return b.build(grid([(h, heads, 1), (s, queries, 0)], body))


def attention_gpu(depth: int = 24, lanes: int = 8, tile: int = 4) -> Kernel:
    """A lane per query; tiles of keys and values are staged in WORKGROUP scratch."""
    b = KernelBuilder("attention_gpu")
    heads, queries, keys = symbol("H"), symbol("S"), symbol("T")
    q = b.buffer("q", F32, INPUTS, (heads, queries, depth), (queries * depth, depth, 1))
    k = b.buffer("k", F32, INPUTS, (heads, keys, depth), (keys * depth, depth, 1))
    v = b.buffer("v", F32, ARENA, (heads, keys, depth), (keys * depth, depth, 1))
    out = b.buffer("out", F32, OUTPUTS, (heads, queries, depth), (queries * depth, depth, 1),
                   is_written=True)
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
            return [store(staged_k, j, d, value=load(k, h, key, d, guard=is_key)),
                    store(staged_v, j, d, value=load(v, h, key, d, guard=is_key))]
        return [each(tile * depth // lanes, one)]

    def begin(x: Expr, row: Expr) -> list[Stmt]:
        is_row = op("lt", row, queries_size)
        return [store(running_max, value=f32(-INFINITY)), store(running_sum, value=f32(0)),
                each(depth, lambda d: [
                    store(acc, d, value=f32(0)),
                    store(query, d, value=load(q, h, row, d, guard=is_row))])]

    def update(x: Expr, row: Expr) -> list[Stmt]:
        new_max, correction = b.var("new_max", F32), b.var("correction", F32)
        dot = each(tile, lambda j: [
            store(score, j, value=f32(0)),
            each(depth, lambda d: [store(score, j, value=fma(
                load(query, d), load(staged_k, j, d), load(score, j)))]),
            store(score, j, value=ex.select(op("lt", add(mul(t, tile), j), keys_size),
                                            mul(load(score, j), scale), f32(-INFINITY)))])
        return [
            dot,
            let(new_max, op("max", load(running_max), _total(score, tile, "max"))),
            let(correction, call("exp", sub(load(running_max), new_max))),
            each(tile, lambda j: [store(score, j, value=call(
                "exp", sub(load(score, j), new_max)))]),
            store(running_sum,
                  value=fma(load(running_sum), correction, _total(score, tile, "add"))),
            each(depth, lambda d: [store(acc, d, value=mul(load(acc, d), correction))]),
            each(tile, lambda j: [each(depth, lambda d: [store(acc, d, value=fma(
                load(score, j), load(staged_v, j, d), load(acc, d)))])]),
            store(running_max, value=new_max),
        ]

    def finish(x: Expr, row: Expr) -> list[Stmt]:
        return [each(depth, lambda d: [store(
            out, h, row, d, value=op("div", load(acc, d), load(running_sum)),
            guard=op("lt", row, queries_size))])]

    steps = serial(t, ceil_divide(keys, tile), [
        lanes_do(stage), Barrier(), lanes_do(update), Barrier()])
    body = [lanes_do(begin), steps, lanes_do(finish)]
    return b.build(grid([(h, heads, 1), (g, ceil_divide(queries, lanes), 0)], body))


def _attention_case(style: str, heads: int, queries: int, keys: int, depth: int) -> HardKernel:
    rng = np.random.RandomState(1)
    q, k, v = (rng.standard_normal((heads, n, depth)).astype(np.float32)
               for n in (queries, keys, keys))
    scale = float(np.float32(depth**-0.5 * 3))
    scores = np.einsum("hsd,htd->hst", q.astype(np.float64), k) * scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("hst,htd->hsd", weights / weights.sum(-1, keepdims=True), v)
    make = attention_cpu if style == "cpu" else attention_gpu
    return HardKernel(
        f"attention-{style}", style, lambda: make(depth),
        {"q": q, "k": k, "v": v, "out": np.full(q.shape, np.nan, np.float32)},
        {"H": heads, "S": queries, "T": keys, "scale": scale},
        {"out": expected.astype(np.float32)})


# One LSTM step; weights in panels [units/P][inputs][4][P], gates in ONNX order i, o, f, c


def lstm_step(style: str, lanes: int = 8) -> Kernel:
    """A workgroup per panel of hidden units and batch row; the cell state is updated in place."""
    b = KernelBuilder(f"lstm_step_{style}")
    batch, inputs, panels = symbol("N"), symbol("I"), symbol("P")
    units = panels * lanes
    x = b.buffer("x", F32, INPUTS, (batch, inputs), (inputs, 1))
    hidden = b.buffer("hidden", F32, INPUTS, (batch, units), (units, 1))
    w = b.buffer("w", F32, CONSTANTS, (panels, inputs, 4, lanes),
                 (inputs * 4 * lanes, 4 * lanes, lanes, 1))
    r = b.buffer("r", F32, CONSTANTS, (panels, units, 4, lanes),
                 (units * 4 * lanes, 4 * lanes, lanes, 1))
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
        accumulate = each_gate(lambda g: [each_unit(lambda u: [store(gates, *at(g, u), value=fma(
            load(source, n, k), load(weights, p, k, g, u), load(gates, *at(g, u))))])])
        return serial(k, extent, [accumulate])

    def finish(u: Expr) -> list[Stmt]:
        unit = add(mul(p, lanes), u)
        i, o, f = (call("sigmoid", load(gates, *at(ix(g), u))) for g in range(3))
        candidate = call("tanh", load(gates, *at(ix(3), u)))
        state = b.var("state", F32)
        return [let(state, fma(f, load(cell, n, unit), mul(i, candidate))),
                store(cell, n, unit, value=state),
                store(out, n, unit, value=mul(o, call("tanh", state)))]

    body = [
        each_gate(lambda g: [each_unit(lambda u: [
            store(gates, *at(g, u), value=load(bias, p, g, u))])]),
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
    gates = (np.einsum("bi,gui->gbu", x.astype(np.float64), w)
             + np.einsum("bi,gui->gbu", hidden.astype(np.float64), r) + bias[:, None])
    i, o, f = (1 / (1 + np.exp(-gates[g])) for g in range(3))
    state = f * cell + i * np.tanh(gates[3])

    def packed(a: Array) -> Array:
        return np.ascontiguousarray(
            a.reshape(4, panels, lanes, a.shape[2]).transpose(1, 3, 0, 2))

    return HardKernel(
        f"lstm_step-{style}", style, lambda: lstm_step(style, lanes),
        {"x": x, "hidden": hidden, "w": packed(w), "r": packed(r),
         "bias": np.ascontiguousarray(bias.reshape(4, panels, lanes).transpose(1, 0, 2)),
         "cell": cell, "out": np.full(cell.shape, np.nan, np.float32)},
        {"N": batch, "I": inputs, "P": panels},
        {"cell": state.astype(np.float32), "out": (o * np.tanh(state)).astype(np.float32)})


# Winograd's transforms, channels last: Lavin and Gray, "Fast Algorithms for Convolutional Neural
# Networks", 2015. Keys are the outputs of a tile along one side.

_BT = {
    2: [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
    4: [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]],
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


def _transformed(b: KernelBuilder, matrix: list[list[int]],
                 tile: list[list[Expr]]) -> tuple[list[Stmt], list[list[Expr]]]:
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


def _channel_loop(b: KernelBuilder, style: str, channels: Any, lanes: int,
                  body: Callable[[Expr], list[Stmt]]) -> Stmt:
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
    out = b.buffer("out", F32, ARENA, (side * side, rows, columns, channels),
                   (rows * columns * channels, columns * channels, channels, 1), is_written=True)
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
                inside = ex.all_of([op("ge", y, 0), op("lt", y, ix(height)),
                                    op("ge", z, 0), op("lt", z, ix(width))])
                name = b.var("d", F32)
                lets.append(let(name, load(x, y, z, c, guard=inside)))
                line.append(name)
            tile.append(line)
        more, result = _transformed(b, _BT[m], tile)
        stores = [store(out, ix(side * p + q), i, j, c, value=result[p][q])
                  for p in range(side) for q in range(side)]
        return [*lets, *more, *stores]

    return b.build(grid([(i, rows, 1), (j, columns, 0)],
                        [_channel_loop(b, style, channels, lanes, body)]))


def winograd_output(style: str, m: int, lanes: int = 8) -> Kernel:
    """[(m+2)^2][tiles][C] to [H][W][C]; tiles at the far edges are cut."""
    b = KernelBuilder(f"winograd_output_{m}x{m}_{style}")
    height, width, chunks = symbol("H"), symbol("W"), symbol("G")
    side, channels = m + 2, chunks * lanes
    rows, columns = ceil_divide(height, m), ceil_divide(width, m)
    x = b.buffer("x", F32, ARENA, (side * side, rows, columns, channels),
                 (rows * columns * channels, columns * channels, channels, 1))
    out = b.buffer("out", F32, OUTPUTS, (height, width, channels), (width * channels, channels, 1),
                   is_written=True)
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
                kept.append(store(out, y, z, c, value=result[dy][dx],
                                  guard=op("lt", z, ix(width))))
            stores.append(when(op("lt", add(mul(i, m), dy), ix(height)), kept))
        return [*lets, *stores]

    return b.build(grid([(i, rows, 1), (j, columns, 0)],
                        [_channel_loop(b, style, channels, lanes, body)]))


def _winograd_cases(style: str, m: int, height: int, width: int, chunks: int,
                    lanes: int = 8) -> list[HardKernel]:
    rng = np.random.RandomState(3)
    side, channels = m + 2, chunks * lanes
    rows, columns = -(-height // m), -(-width // m)
    bt, at = np.array(_BT[m], np.float64), np.array(_AT[m], np.float64)
    x = rng.standard_normal((height, width, channels)).astype(np.float32)
    padded = np.zeros((rows * m + 2, columns * m + 2, channels))
    padded[1 : height + 1, 1 : width + 1] = x
    tiles = np.stack([np.stack([padded[i * m : i * m + side, j * m : j * m + side]
                                for j in range(columns)]) for i in range(rows)])
    transformed = np.einsum("py,ijyzc,qz->pqijc", bt, tiles, bt).reshape(
        side * side, rows, columns, channels)
    y = rng.standard_normal(transformed.shape).astype(np.float32)
    back = np.einsum("ay,yzijc,bz->iajbc", at, y.reshape(side, side, *y.shape[1:]), at)
    result = back.reshape(rows * m, columns * m, channels)[:height, :width]
    params = {"H": height, "W": width, "G": chunks}

    def case(way: str, make: Callable[[str, int, int], Kernel], source: Array,
             expected: Array) -> HardKernel:
        expected = np.ascontiguousarray(expected, np.float32)
        return HardKernel(f"winograd_{way}_{m}x{m}-{style}", style,
                          lambda: make(style, m, lanes),
                          {"x": source, "out": np.full(expected.shape, np.nan, np.float32)},
                          dict(params), {"out": expected})

    return [case("input", winograd_input, x, transformed),
            case("output", winograd_output, y, result)]


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
        k, chunk, x, r = b.var("k"), b.var("chunk"), b.var("x"), b.var("r")
        d = add(mul(chunk, lanes), x)
        inside = op("lt", d, ix(depth))
        copy = vector(x, lanes, [store(out, k, d, value=load(data, r, d, guard=inside),
                                       guard=inside)])
        body = [let(r, row(k)), parallel(chunk, ceil_divide(depth, lanes), [copy])]
        return b.build(grid([(k, count, 0)], body))
    g, x = b.var("g"), b.var("x")
    flat = add(mul(g, lanes), x)
    inside = op("lt", flat, ix(count * depth))
    k, d = op("floordiv", flat, ix(depth)), op("floormod", flat, ix(depth))
    copy = lane(x, lanes, [store(out, k, d, value=load(data, row(k, inside), d, guard=inside),
                                 guard=inside)])
    return b.build(grid([(g, ceil_divide(count * depth, lanes), 0)], [copy]))


def _gather_case(style: str, rows: int, depth: int, index_dtype: DType, suffix: str) -> HardKernel:
    rng = np.random.RandomState(4)
    data = rng.standard_normal((rows, depth)).astype(np.float32)
    numbers = np.array([0, rows - 1, -1, -rows, 3, 99, -99, 2, 2], index_dtype.numpy)
    wrapped = np.where(numbers < 0, numbers + rows, numbers)
    expected = data[np.clip(wrapped, 0, rows - 1)]
    return HardKernel(
        f"gather{suffix}-{style}", style, lambda: gather(style, index_dtype=index_dtype),
        {"data": data, "numbers": numbers, "out": np.full(expected.shape, np.nan, np.float32)},
        {"N": rows, "D": depth, "K": len(numbers)}, {"out": expected}, tolerance=0.0)


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

    def each_column(kind: Any, body: Callable[[Expr, Expr, Expr], list[Stmt]]) -> Stmt:
        c, v = b.var("c"), b.var("v")
        column = add(mul(c, lanes), v)
        return kind(c, ceil_divide(width, lanes),
                    [vector(v, lanes, body(v, column, op("lt", column, ix(width))))])

    row_most, row_total = b.var("row_most", F32), b.var("row_total", F32)

    def weight(column: Expr, inside: Expr) -> Expr:
        value = load(x, r, column, guard=inside, other=-INFINITY)
        return call("exp", sub(value, row_most))

    body = [
        fill(most, -INFINITY),
        fill(total, 0),
        each_column(serial, lambda v, column, inside: [store(most, v, value=op(
            "max", load(most, v), load(x, r, column, guard=inside, other=-INFINITY)))]),
        let(row_most, _total(most, lanes, "max")),
        each_column(serial, lambda v, column, inside: [store(total, v, value=add(
            load(total, v), weight(column, inside)))]),
        let(row_total, _total(total, lanes, "add")),
        each_column(parallel, lambda v, column, inside: [store(
            out, r, column, value=op("div", weight(column, inside), row_total), guard=inside)]),
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
        own = lane(v, lanes, [
            store(partial, value=f32(start)),
            serial(c, ceil_divide(width, lanes), [store(partial, value=op(
                operation, load(partial), term(column, inside)))]),
            store(shared, v, value=load(partial))])
        stmts: list[Stmt] = [own, Barrier()]
        step = lanes // 2
        while step:
            w = b.var("w")
            stmts.append(lane(w, lanes, [when(op("lt", w, step), [store(shared, w, value=op(
                operation, load(shared, w), load(shared, add(w, step))))])]))
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
        lane(v, lanes, [serial(c, ceil_divide(width, lanes), [store(
            out, r, column, value=op("div", weight(column, inside), row_total), guard=inside)])]),
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
        f"softmax-{style}", style, softmax_cpu if style == "cpu" else softmax_gpu,
        {"x": x, "out": np.full(x.shape, np.nan, np.float32)}, {"R": rows, "N": width},
        {"out": expected})


HARD_KERNELS: list[HardKernel] = [
    case
    for style in ("cpu", "gpu")
    for case in (
        _attention_case(style, heads=2, queries=5, keys=11, depth=24),
        _lstm_case(style, batch=3, inputs=10, panels=2),
        *_winograd_cases(style, 2, height=5, width=7, chunks=2),
        *_winograd_cases(style, 4, height=9, width=6, chunks=2),
        _gather_case(style, rows=6, depth=13, index_dtype=I32, suffix=""),
        _softmax_case(style, rows=4, width=27),
    )
] + [_gather_case("cpu", rows=6, depth=13, index_dtype=DType.I64, suffix="_i64")]
