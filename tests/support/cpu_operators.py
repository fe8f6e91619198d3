"""Kernels that apply every operator to every dtype's corner values, one by one and in vectors.

Owns those values. The interpreter says what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.ir.expr import Bitcast, Const, Expr, cast, select
from aot.ir.types import DType
from aot.kernels.ir.nodes import BufferClass, Kernel, KernelBuilder, Stmt
from aot.target.model import Target
from tests.support.cpu_case import Case
from tests.support.kernel_terms import add, call, fma, load, mul, op, parallel, store, vector

Array = NDArray[Any]
F16, F32, F64, I32, I64, U8, BOOL = (
    DType.F16,
    DType.F32,
    DType.F64,
    DType.I32,
    DType.I64,
    DType.U8,
    DType.BOOL,
)
INDEX = DType.INDEX
INPUTS, OUTPUTS, CONSTANTS, ARENA = (
    BufferClass.INPUTS,
    BufferClass.OUTPUTS,
    BufferClass.CONSTANTS,
    BufferClass.ARENA,
)
ELEMENTS = tuple(d for d in DType if d.is_stored and not d.is_storage_only)
FLOATS = (F16, F32, F64)


def values_of(dtype: DType) -> Array:
    """Corner values of a dtype and a few plain ones."""
    rng = np.random.default_rng(7)
    if dtype is BOOL:
        return np.array([False, True])
    if dtype.is_float:
        info = np.finfo(dtype.numpy)
        with np.errstate(all="ignore"):
            return np.array(
                [
                    0.0,
                    -0.0,
                    1,
                    -1,
                    0.5,
                    -0.5,
                    1.5,
                    2.5,
                    -2.5,
                    3.5,
                    np.nan,
                    np.inf,
                    -np.inf,
                    info.smallest_subnormal,
                    -info.smallest_subnormal,
                    info.smallest_normal / 2,
                    info.smallest_normal,
                    info.max,
                    -info.max,
                    0.1,
                    127.9,
                    128,
                    -128.5,
                    -128.9,
                    255.5,
                    256,
                    32768,
                    65504,
                    65519,
                    65520,
                    2.0**-24,
                    2.0**-25,
                    2.0**-25 * 1.001,
                    3 * 2.0**-26,
                    2.0**-14,
                    1 + 2.0**-11,
                    1 + 3 * 2.0**-11,
                    8388607.5,
                    -8388609,
                    2.0**31,
                    -(2.0**31),
                    2.0**31 - 128,
                    2.0**32,
                    2.0**63,
                    -(2.0**63),
                    2.0**64,
                    1e20,
                    -1e20,
                    *(rng.standard_normal(6) * 100),
                ]
            ).astype(dtype.numpy)
    low, high = int(np.iinfo(dtype.numpy).min), int(np.iinfo(dtype.numpy).max)
    few = {
        low,
        low + 1,
        high,
        high - 1,
        high // 2,
        0,
        1,
        2,
        3,
        5,
        7,
        10,
        16,
        31,
        100,
        -1,
        -2,
        -3,
        -7,
        -16,
        -100,
        2**24 + 1,
        2**25 + 3,
        2**31 - 1,
        2**53 + 1,
        -(2**53) - 1,
    }
    return np.array(sorted(v for v in few if low <= v <= high), dtype.numpy)


def rows(
    b: KernelBuilder, style: str, count: int, body: Callable[[Expr, Expr | None], list[Stmt]]
) -> tuple[Stmt, ...]:
    """`body(i, guard)` for i below `count`: one by one, or in vectors with a guarded tail."""
    if style == "scalar":
        i = b.var("i")
        return (parallel(i, count, body(i, None)),)
    outer, inner = b.var("outer"), b.var("inner")
    i = add(mul(outer, 16), inner)
    return (parallel(outer, -(-count // 16), [vector(inner, 16, body(i, op("lt", i, count)))]),)


def suite(
    name: str,
    style: str,
    arguments: dict[str, Array],
    results: list[tuple[str, DType, Callable[[list[Expr]], Expr]]],
    computes: Iterable[DType],
    *,
    is_exact: bool = True,
) -> Case:
    """A kernel that stores every result for every row of the arguments."""
    count = len(next(iter(arguments.values())))

    def make() -> Kernel:
        b = KernelBuilder(name.replace("-", "_"))
        sources = [b.buffer(n, DType.of(a), INPUTS, (count,), (1,)) for n, a in arguments.items()]
        targets = [b.buffer(n, d, OUTPUTS, (count,), (1,), is_written=True) for n, d, _ in results]

        def body(i: Expr, guard: Expr | None) -> list[Stmt]:
            loaded = [load(s, i) if guard is None else load(s, i, guard=guard) for s in sources]
            return [
                store(t, i, value=fn(list(loaded)), guard=guard)
                for t, (_, _, fn) in zip(targets, results, strict=True)
            ]

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
        results = [
            (f"r_{o}", BOOL if o == "isnan" else dtype, lambda args, o=o: call(o, args[0]))
            for o in ops
        ]
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
            cases.append(
                suite(f"{label}-{dtype}", style, pairs, results, [dtype], is_exact=is_exact)
            )
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
    return (
        ["add", "sub", "mul", "div", "floordiv", "floormod", "and", "or", "xor"],
        ["min", "max"],
    )


def constant_suites(style: str) -> list[Case]:
    """Divisors, factors and bounds that are literals take other paths."""
    cases = []
    for dtype in (I32, DType.U32, I64, DType.I8, DType.U8):
        divisors = [1, 2, 3, 7, 16, *([-1, -2, -5] if dtype.is_signed else [])]
        results = [
            (f"r_{o}_{k}", dtype, lambda args, o=o, d=d: op(o, args[0], Const(args[0].dtype, d)))
            for k, d in enumerate(divisors)
            for o in ("div", "floordiv", "floormod")
        ]
        cases.append(suite(f"constant-{dtype}", style, {"a": values_of(dtype)}, results, [dtype]))
    for dtype in FLOATS:
        results = [
            (f"r_{o}_{k}", dtype, lambda args, o=o, c=c: op(o, args[0], Const(args[0].dtype, c)))
            for k, c in enumerate((0.0, 6.0, -1.5))
            for o in ("min", "max", "mul")
        ]
        swapped = [
            (f"r_{o}_swapped", dtype, lambda args, o=o: op(o, Const(args[0].dtype, 0.0), args[0]))
            for o in ("min", "max")
        ]
        cases.append(
            suite(
                f"constant-{dtype}",
                style,
                {"a": values_of(dtype)},
                results + swapped,
                [dtype],
                is_exact=False,
            )
        )
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
        cases.append(
            suite(
                f"mixed-{dtype}",
                style,
                arrays,
                [
                    ("r_fma", dtype, lambda a: fma(*a)),
                    ("r_select", dtype, lambda a: select(op("lt", a[0], a[1]), a[1], a[2])),
                    ("r_bits", bits, lambda a, t=bits: Bitcast(a[0], t)),
                    (
                        "r_back",
                        dtype,
                        lambda a, t=bits, d=dtype: Bitcast(
                            op("xor", Bitcast(a[0], t), Const(t, 1)), d
                        ),
                    ),
                ],
                [dtype, bits],
                is_exact=False,
            )
        )
    return cases


def operator_cases(target: Target, styles: Iterable[str] = ("scalar", "vector")) -> list[Case]:
    """All of the above that run on `target`."""
    cases = [
        case
        for style in styles
        for case in (
            *unary_suites(style),
            *binary_suites(style),
            *constant_suites(style),
            *mixed_suites(style),
            *cast_suites(style, target),
        )
    ]
    return [case for case in cases if case.runs_on(target)]
