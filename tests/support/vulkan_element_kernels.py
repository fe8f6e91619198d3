"""Kernels written by hand for the Vulkan backend: element types in memory, casts and integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aot.ir.expr import (
    Bitcast,
    Expr,
    add,
    binary,
    cast,
    const,
    mul,
    sub,
    unary,
)
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    KernelBuilder,
    Stmt,
    Store,
)
from tests.support.vulkan_case import (
    BOOL,
    F32,
    I32,
    INPUTS,
    OUTPUTS,
    U32,
    Array,
    Case,
    f32,
    load,
    spread,
    tensor,
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
