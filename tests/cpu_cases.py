"""Kernels for the CPU backend with data: every operator on every dtype, every shape of access.

Owns one case for each thing that code generation must get right; the interpreter says what is
right. Small, so that all of them run on every target, emulated ones too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from kernel_terms import (
    add,
    call,
    f32,
    fma,
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
from numpy.typing import NDArray

from aot.ir.dims import ceil_divide, symbol
from aot.ir.expr import Bitcast, Cast, Const, Expr, Load, Select, cast, select
from aot.ir.types import DType
from aot.kernels.ir import (
    Barrier,
    Buffer,
    BufferClass,
    For,
    Kernel,
    KernelBuilder,
    LoopKind,
    Space,
    Stmt,
    Store,
)
from aot.target import Target

Array = NDArray[Any]
F16, F32, F64, I32, I64, U8, BOOL = (DType.F16, DType.F32, DType.F64, DType.I32, DType.I64,
                                     DType.U8, DType.BOOL)
INDEX = DType.INDEX
INPUTS, OUTPUTS, CONSTANTS, ARENA = (BufferClass.INPUTS, BufferClass.OUTPUTS,
                                     BufferClass.CONSTANTS, BufferClass.ARENA)
ELEMENTS = tuple(d for d in DType if d is not INDEX)
FLOATS = (F16, F32, F64)
INTEGERS = tuple(d for d in ELEMENTS if d.is_integer)


@dataclass
class Case:
    """A kernel and its arguments.

    Attributes:
        computes: dtypes of arithmetic in it; a target without one of them does not run it.
        is_exact: results are compared bit by bit; otherwise zeros' signs and a rounding may differ.
    """

    name: str
    make: Callable[[], Kernel]
    buffers: dict[str, Array]
    params: dict[str, float | int] = field(default_factory=dict)
    computes: tuple[DType, ...] = (F32,)
    is_exact: bool = True

    def runs_on(self, target: Target) -> bool:
        # f16 is computed by way of f32 where it is foreign.
        return all(d is F16 or target.computes(d) for d in self.computes)


# Operators ----------------------------------------------------------------------------------------

def values_of(dtype: DType) -> Array:
    """Corner values of a dtype and a few plain ones."""
    rng = np.random.default_rng(7)
    if dtype is BOOL:
        return np.array([False, True])
    if dtype.is_float:
        info = np.finfo(dtype.numpy)
        with np.errstate(all="ignore"):
            return np.array([
                0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3.5, np.nan, np.inf, -np.inf,
                info.smallest_subnormal, -info.smallest_subnormal, info.smallest_normal / 2,
                info.smallest_normal, info.max, -info.max, 0.1, 127.9, 128, -128.5, -128.9, 255.5,
                256, 32768, 65504, 65519, 65520, 2.0**-24, 2.0**-25, 2.0**-25 * 1.001, 3 * 2.0**-26,
                2.0**-14, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 8388607.5, -8388609, 2.0**31, -(2.0**31),
                2.0**31 - 128, 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 1e20, -1e20,
                *(rng.standard_normal(6) * 100)]).astype(dtype.numpy)
    low, high = int(np.iinfo(dtype.numpy).min), int(np.iinfo(dtype.numpy).max)
    few = {low, low + 1, high, high - 1, high // 2, 0, 1, 2, 3, 5, 7, 10, 16, 31, 100, -1, -2, -3,
           -7, -16, -100, 2**24 + 1, 2**25 + 3, 2**31 - 1, 2**53 + 1, -(2**53) - 1}
    return np.array(sorted(v for v in few if low <= v <= high), dtype.numpy)


def rows(b: KernelBuilder, style: str, count: int,
         body: Callable[[Expr, Expr | None], list[Stmt]]) -> tuple[Stmt, ...]:
    """`body(i, guard)` for i below `count`: one by one, or in vectors with a guarded tail."""
    if style == "scalar":
        i = b.var("i")
        return (parallel(i, count, body(i, None)),)
    outer, inner = b.var("outer"), b.var("inner")
    i = add(mul(outer, 16), inner)
    return (parallel(outer, -(-count // 16), [vector(inner, 16, body(i, op("lt", i, count)))]),)


def suite(name: str, style: str, arguments: dict[str, Array],
          results: list[tuple[str, DType, Callable[[list[Expr]], Expr]]],
          computes: Iterable[DType], *, is_exact: bool = True) -> Case:
    """A kernel that stores every result for every row of the arguments."""
    count = len(next(iter(arguments.values())))

    def make() -> Kernel:
        b = KernelBuilder(name.replace("-", "_"))
        sources = [b.buffer(n, DType.of(a), INPUTS, (count,), (1,)) for n, a in arguments.items()]
        targets = [b.buffer(n, d, OUTPUTS, (count,), (1,), is_written=True) for n, d, _ in results]

        def body(i: Expr, guard: Expr | None) -> list[Stmt]:
            loaded = [load(s, i) if guard is None else load(s, i, guard=guard) for s in sources]
            return [store(t, i, value=fn(list(loaded)), guard=guard)
                    for t, (_, _, fn) in zip(targets, results, strict=True)]

        return b.build(rows(b, style, count, body))

    outputs = {n: np.zeros(count, d.numpy) for n, d, _ in results}
    return Case(f"{name}-{style}", make, {**arguments, **outputs}, {}, tuple(computes), is_exact)


def unary_suites(style: str) -> list[Case]:
    cases = []
    for dtype in ELEMENTS:
        if dtype is BOOL:
            ops = ["not"]
        elif dtype.is_float:
            ops = ["neg", "abs", "sqrt", "floor", "ceil", "trunc", "round", "isnan"]
        else:
            ops = ["neg", "abs", "bitnot"]
        results = [(f"r_{o}", BOOL if o == "isnan" else dtype,
                    lambda args, o=o: call(o, args[0])) for o in ops]
        cases.append(suite(f"unary-{dtype}", style, {"a": values_of(dtype)}, results, [dtype]))
    return cases


def binary_suites(style: str) -> list[Case]:
    cases = []
    for dtype in ELEMENTS:
        values = values_of(dtype)
        pairs = {"a": np.repeat(values, len(values)), "b": np.tile(values, len(values))}
        exact, loose = _binary_ops(dtype)
        compares = ["eq", "ne"] if dtype is BOOL else ["eq", "ne", "lt", "le", "gt", "ge"]
        for label, ops, is_exact in (("binary", exact, True), ("extrema", loose, False)):
            if not ops:
                continue
            results = [(f"r_{o}", dtype, lambda args, o=o: op(o, *args)) for o in ops]
            if label == "binary":
                results += [(f"r_{o}", BOOL, lambda args, o=o: op(o, *args)) for o in compares]
            cases.append(suite(f"{label}-{dtype}", style, pairs, results, [dtype],
                               is_exact=is_exact))
        if dtype.is_integer:
            amounts = np.tile(np.arange(dtype.bytes * 8), len(values)).astype(dtype.numpy)
            shifts = {"a": np.repeat(values, dtype.bytes * 8), "b": amounts}
            results = [(f"r_{o}", dtype, lambda args, o=o: op(o, *args)) for o in ("shl", "shr")]
            cases.append(suite(f"shift-{dtype}", style, shifts, results, [dtype]))
    return cases


def _binary_ops(dtype: DType) -> tuple[list[str], list[str]]:
    if dtype is BOOL:
        return ["and", "or", "xor"], []
    if dtype.is_float:
        return ["add", "sub", "mul", "div"], ["min", "max"]
    return (["add", "sub", "mul", "div", "floordiv", "floormod", "and", "or", "xor"],
            ["min", "max"])


def constant_suites(style: str) -> list[Case]:
    """Divisors, factors and bounds that are literals take other paths."""
    cases = []
    for dtype in (I32, DType.U32, I64, DType.I8, DType.U8):
        divisors = [1, 2, 3, 7, 16, *([-1, -2, -5] if dtype.is_signed else [])]
        results = [(f"r_{o}_{k}", dtype,
                    lambda args, o=o, d=d: op(o, args[0], Const(args[0].dtype, d)))
                   for k, d in enumerate(divisors) for o in ("div", "floordiv", "floormod")]
        cases.append(suite(f"constant-{dtype}", style, {"a": values_of(dtype)}, results, [dtype]))
    for dtype in FLOATS:
        results = [(f"r_{o}_{k}", dtype,
                    lambda args, o=o, c=c: op(o, args[0], Const(args[0].dtype, c)))
                   for k, c in enumerate((0.0, 6.0, -1.5)) for o in ("min", "max", "mul")]
        swapped = [(f"r_{o}_swapped", dtype,
                    lambda args, o=o: op(o, Const(args[0].dtype, 0.0), args[0]))
                   for o in ("min", "max")]
        cases.append(suite(f"constant-{dtype}", style, {"a": values_of(dtype)},
                           results + swapped, [dtype], is_exact=False))
    return cases


def cast_suites(style: str, target: Target) -> list[Case]:
    """Every cast that a target has: between what it computes, and sizes of integers."""
    cases = []
    for source in ELEMENTS:
        reached = [d for d in ELEMENTS if d is not source and can_cast(source, d, target)]
        results = [(f"r_{d}", d, lambda args, d=d: cast(args[0], d)) for d in reached]
        cases.append(suite(f"cast-{source}", style, {"a": values_of(source)}, results, []))
    return cases


def can_cast(source: DType, to: DType, target: Target) -> bool:
    """Casts with floats need both sides computed; integers and bool always convert."""
    if not source.is_float and not to.is_float:
        return True
    if to is BOOL:
        return source is not F64 or target.computes(F64)
    return all(d is F16 or d is BOOL or target.computes(d) for d in (source, to))


def mixed_suites(style: str) -> list[Case]:
    """Select, Fma and Bitcast."""
    rng = np.random.default_rng(3)
    cases = []
    for dtype in FLOATS:
        arrays = {n: rng.standard_normal(50).astype(dtype.numpy) for n in "abc"}
        arrays["a"][3:6] = [np.nan, np.inf, -0.0]
        bits = {F16: DType.I16, F32: DType.U32, F64: I64}[dtype]
        cases.append(suite(
            f"mixed-{dtype}", style, arrays,
            [("r_fma", dtype, lambda a: fma(*a)),
             ("r_select", dtype, lambda a: select(op("lt", a[0], a[1]), a[1], a[2])),
             ("r_bits", bits, lambda a, t=bits: Bitcast(a[0], t)),
             ("r_back", dtype, lambda a, t=bits, d=dtype: Bitcast(
                 op("xor", Bitcast(a[0], t), Const(t, 1)), d))],
            [dtype, bits], is_exact=False))
    return cases


def operator_cases(target: Target, styles: Iterable[str] = ("scalar", "vector")) -> list[Case]:
    """All of the above that run on `target`."""
    cases = [case for style in styles for case in (
        *unary_suites(style), *binary_suites(style), *constant_suites(style),
        *mixed_suites(style), *cast_suites(style, target))]
    return [case for case in cases if case.runs_on(target)]


# Shapes of access ---------------------------------------------------------------------------------

def dense(b: KernelBuilder, name: str, dtype: DType, binding: BufferClass, *shape: int) -> Buffer:
    strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    return b.buffer(name, dtype, binding, shape, strides, is_written=binding in (ARENA, OUTPUTS))


def numbers(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


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
            body.append(store(y, add(mul(row, 40 if step > 0 else 50), mul(v, step), 100),
                              value=value))
        return b.build((serial(row, 3, [vector(v, extent, body)]),))

    return Case(f"strided-{extent}-{step}-{dtype}", make,
                {"x": data, "y": np.zeros(400, dtype.numpy),
                 "z": np.zeros((3, extent), dtype.numpy)}, computes=())


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
        body = [store(y, i, value=op("add", load(x, i, guard=inside, other=3),
                                     Const(dtype, 1)), guard=inside)]
        grid = For(group, ceil_divide(n, lanes), LoopKind.WORKGROUP,
                   (vector(v, lanes, body),))
        return b.build((grid,))

    data = (numbers(count) * 20).astype(dtype.numpy)
    return Case(f"tail-{lanes}-{count}-{dtype}", make, {"x": data, "y": np.zeros_like(data)},
                {"n": count}, (dtype,))


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
            serial(k, 5, [lanes(lambda v, i: store(total, v, value=add(
                load(total, v), load(x, k, i, guard=inside(i), other=2))))]),
            lanes(lambda v, i: store(y, i, value=load(total, v), guard=inside(i))))
        return b.build((For(group, ceil_divide(n, 16), LoopKind.WORKGROUP, body),))

    return Case(f"spread-tail-{count}", make, {"x": numbers(5, count), "y": np.zeros(
        count, np.float32)}, {"n": count})


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
        inside = op("and", op("and", op("ge", at_y, 0), op("lt", at_y, 5)),
                    op("and", op("ge", at_x, 0), op("lt", at_x, 20)))
        value = load(x, at_y, at_x, guard=inside, other=0.25)
        step = store(total, column, value=fma(value, load(w, add(mul(dy, 3), dx)),
                                              load(total, column)))
        v0, v2 = b.var("v0"), b.var("v2")
        body = [
            vector(v0, lanes, [store(total, add(mul(block, lanes), v0), value=f32(0))]),
            serial(dy, 3, [unrolled(dx, 3, [vector(v, lanes, [step])])]),
            vector(v2, lanes, [store(y, row, add(mul(block, lanes), v2),
                                     value=load(total, add(mul(block, lanes), v2)))])]
        return b.build((parallel(row, 5, [unrolled(block, 32 // lanes, body)]),))

    return Case(f"borders-{lanes}", make, {"x": numbers(5, 20), "w": numbers(9, seed=2),
                                           "y": np.zeros((5, 32), np.float32)})


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
            when(op("lt", t, 0.0), [
                store(y, i, value=mul(t, -2.0)),
                when(op("lt", i, 11), [store(z, i, value=add(t, 100.0))],
                     [store(z, i, value=load(x, sub(i, 11)))]),
            ], [
                serial(k, 3, [store(y, add(i, mul(k, 0)), value=add(t, cast(k, F32)))]),
                store(z, i, value=f32(7)),
            ])]
        return b.build((serial(outer, 5, [vector(v, 8, body)]),))

    return Case("conditions", make, {"x": numbers(40), "y": np.zeros(40, np.float32),
                                     "z": np.zeros(40, np.float32)})


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
            store(u, v, value=op("eq", op("floormod", v, 3), 1))]
        return b.build((vector(v, 32, body),))

    rng = np.random.default_rng(4)
    return Case(f"indices-{dtype}", make, {
        "picks": rng.integers(-50 if dtype.is_signed else 0, 60, 32).astype(dtype.numpy),
        "x": numbers(6, 7), "y": np.zeros(32, np.float32), "z": np.zeros(32, np.int32),
        "w": np.zeros(32, np.float32), "u": np.zeros(32, bool)}, computes=())


def sizes() -> Case:
    """Dims of every form, as extents, strides and values."""

    def make() -> Kernel:
        from aot.ir.dims import maximum, minimum

        b = KernelBuilder("sizes")
        n, m = symbol("n"), symbol("m")
        b.dim_param("n"), b.dim_param("m")
        forms = [n + m, n * m * 2 - 7, n // 3, (n * 5 + m) // 4, n // m, (m - n) // 2,
                 maximum(n, m, 4), minimum(n, m * 2) * 3, n % m, (n + 1) // (m + 1) * 4]
        y = b.buffer("y", I32, OUTPUTS, (len(forms),), (1,), is_written=True)
        z = b.buffer("z", F32, ARENA, (n, m), (m + 2, 1), is_written=True)
        i, j = b.var("i"), b.var("j")
        fill = serial(i, n, [parallel(j, m, [store(
            z, i, j, value=add(load(z, i, j), cast(add(mul(i, ix(m)), j), F32)))])])
        return b.build((*(store(y, k, value=cast(ix(form), I32)) for k, form in enumerate(forms)),
                        fill))

    return Case("sizes", make, {"y": np.zeros(10, np.int32), "z": numbers(5, 9)},
                {"n": 5, "m": 7})


def tile(height: int, width: int, depth: int, vectors: int) -> Case:
    """The register-tiled contraction on packed weights."""

    def make() -> Kernel:
        return matmul_tile(height, width, vectors)

    panels = 2
    return Case(f"tile-{height}x{width}-{vectors}", make, {
        "a": numbers(height, depth), "b": numbers(panels, width // 16, depth, 16, seed=2),
        "c": np.zeros((height, panels * width), np.float32)},
        {"m": height, "n": panels * width, "k": depth}, is_exact=False)


def matmul_tile(height: int, width: int, vectors: int) -> Kernel:
    """c[m, n] = a[m, k] @ b in panels [n / width][width / 16][k][16], one tile a workgroup."""
    b = KernelBuilder("tile")
    m, n, k = symbol("m"), symbol("n"), symbol("k")
    for name in ("m", "n", "k"):
        b.dim_param(name)
    left = b.buffer("a", F32, ARENA, (m, k), (k, 1))
    right = b.buffer("b", F32, CONSTANTS, (n // width, width // 16, k, 16),
                     (k * width, k * 16, 16, 1))
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
        return unrolled(r, height, [unrolled(c, width // vectors, [
            vector(v, vectors, [body(r, column, panel, place)])])])

    def row(r: Expr) -> Expr:
        return add(mul(i, height), r)

    body = (
        each(lambda r, c, p, v: store(total, r, c, value=f32(0))),
        serial(t, k, [each(lambda r, c, p, v: store(total, r, c, value=fma(
            load(left, row(r), t), load(right, j, p, t, v), load(total, r, c))))]),
        each(lambda r, c, p, v: store(out, row(r), add(mul(j, width), c),
                                      value=load(total, r, c))))
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
            serial(k, 4, [
                lanes(lambda lx, ly, p: [store(shared, p, value=mul(load(x, k, p),
                                                                    load(own, 0)))]),
                Barrier(),
                lanes(lambda lx, ly, p: [
                    store(own, 0, value=add(load(own, 0), load(shared, following(p)))),
                    store(own, 1, value=add(load(own, 1), load(own, 0)))]),
                Barrier()]),
            lanes(lambda lx, ly, p: [store(y, lx, ly, value=load(own, 1))]))
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
        return b.build((serial(group, ceil_divide(n, lanes), [
            vector(v, lanes, [store(y, i, value=value, guard=inside)])]),))

    return Case(f"chain-{lanes}", make, {"x": numbers(37), "y": np.zeros(37, np.float32)},
                {"n": 37}, is_exact=False)


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
        return b.build((
            serial(i, 5, [store(y, i, value=value, guard=op("ne", i, 1))]),
            store(y, 5, value=Select(flag, scale, f32(0), F32)),
            store(z, 0, value=op("sub", shift, cast(small, I32))),
            store(z, 1, value=cast(op("gt", shift, 0), I32), guard=flag)))

    return Case("scalars", make, {"x": numbers(3), "y": np.zeros(6, np.float32),
                                  "z": np.zeros(2, np.int32)},
                {"scale": 1.5, "shift": -7, "flag": True, "small": 200}, computes=(F32, I32))


def in_place() -> Case:
    """Arena memory read and written by the same iteration, at every alignment."""

    def make() -> Kernel:
        b = KernelBuilder("in_place")
        x = dense(b, "x", F32, ARENA, 3, 33)
        row, v = b.var("row"), b.var("v")
        last = b.var("last")
        update = lambda c: store(x, row, c, value=fma(  # noqa: E731
            load(x, row, c), load(x, row, c), f32(1)))
        return b.build((serial(row, 3, [
            vector(v, 32, [update(v)]), serial(last, 1, [update(add(last, 32))])]),))

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
        return b.build((
            vector(v0, 48, [store(total, v0, value=Const(I32, 0))]),
            serial(k, 6, [vector(v1, 48, [store(total, v1, value=add(
                load(total, v1), cast(load(x, k, v1), I32)))])]),
            vector(v2, 48, [
                store(y, v2, value=Cast(mul(cast(load(total, v2), F32), 0.37), dtype)),
                store(z, v2, value=cast(load(total, v2), F32))])))

    data = np.random.default_rng(2).integers(
        np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max, (6, 48), endpoint=True)
    return Case(f"narrow-{dtype}", make, {
        "x": data.astype(dtype.numpy), "y": np.zeros(48, dtype.numpy),
        "z": np.zeros(48, np.float32)}, computes=(F32, I32))


def single(source: DType, to: DType) -> Case:
    """One element through a whole vector's code, truncated: its neighbours are not touched."""

    def make() -> Kernel:
        b = KernelBuilder("single")
        x = dense(b, "x", source, INPUTS, 1)
        y = dense(b, "y", to, OUTPUTS, 1)
        outer, v = b.var("outer"), b.var("v")
        i = add(mul(outer, 16), v)
        inside = op("lt", i, 1)
        return b.build((serial(outer, 1, [vector(v, 16, [
            store(y, i, value=cast(load(x, i, guard=inside), to), guard=inside)])]),))

    return Case(f"single-{source}-{to}", make, {
        "x": np.array([np.iinfo(source.numpy).min + 1]).astype(source.numpy),
        "y": np.zeros(1, to.numpy)}, computes=())


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


def access_cases() -> list[Case]:
    """All shapes of access."""
    return [
        *(strided(extent, step, dtype) for extent, step, dtype in (
            (16, 1, F32), (16, 2, F32), (16, 0, F32), (16, -1, F32), (7, 3, F32), (64, 1, F32),
            (16, 1, U8), (16, 2, U8), (24, 1, BOOL), (8, 3, BOOL), (16, 1, F16), (4, 2, F64),
            (16, 1, F64), (16, 1, I64), (2, 1, F32), (1, 1, F32))),
        *(tail(lanes, count, dtype) for lanes, count, dtype in (
            (16, 37, F32), (16, 32, F32), (16, 3, F32), (4, 5, F32), (32, 70, F32), (64, 65, F32),
            (8, 19, F64), (16, 21, I32), (16, 50, U8), (16, 23, DType.I16), (5, 12, F32),
            (16, 19, F16))),
        *(spread_tail(count) for count in (16, 5, 37)),
        *(borders(lanes) for lanes in (8, 16, 32)), conditions(),
        *(indices(d) for d in (I32, I64, U8)), sizes(),
        tile(3, 32, 19, 16), tile(2, 16, 5, 4), tile(4, 16, 6, 8), lanes_carried(),
        chain(16), chain(4), scalars(), in_place(), narrow(DType.I8), narrow(U8), shared_nodes(),
        single(I64, I32), single(I32, U8), single(DType.I16, DType.I8),
    ]
