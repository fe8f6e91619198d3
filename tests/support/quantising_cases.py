"""Kernels that quantise numbers, and take the zero point off: ties, bounds, infinities, NaN."""

from __future__ import annotations

import numpy as np

from aot.ir.expr import cast, sub, unary
from aot.ir.types import DType
from aot.kernels.ir.nodes import BufferClass, Kernel, KernelBuilder
from tests.support.cpu_case import Case
from tests.support.kernel_terms import add, ix, load, mul, serial, store, vector

F32, I32 = DType.F32, DType.I32


def quantising(dtype: DType, zero: int, lanes: int, *, is_centred: bool = True) -> Case:
    """round(x) + zero as `dtype`, and that minus `zero` as f32 where it `is_centred` too."""
    info = np.iinfo(dtype.numpy)
    near = np.array([info.min, info.max, 0], np.float32) - np.float32(zero)
    steps = np.array([-1.5, -1.0, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1.0, 1.5], np.float32)
    ends = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 1e30, -0.0], np.float32)
    numbers = np.concatenate([(near[:, None] + steps).ravel(), ends]).astype(np.float32)
    numbers = np.resize(numbers, 2 * lanes * -(-len(numbers) // (2 * lanes)))

    def make() -> Kernel:
        b = KernelBuilder("quantising")
        count = (len(numbers),)
        x = b.buffer("x", F32, BufferClass.INPUTS, count, (1,))
        taken = b.buffer("zero", dtype, BufferClass.CONSTANTS, (1,), (1,))
        y = b.buffer("y", dtype, BufferClass.OUTPUTS, count, (1,), is_written=True)
        group, v = b.var("group"), b.var("v")
        i = add(mul(group, lanes), v)
        rounded = add(unary("round", load(x, i)), cast(load(taken, ix(0)), F32))
        made = cast(rounded, dtype)
        body = [store(y, i, value=made)]
        if is_centred:
            z = b.buffer("z", F32, BufferClass.OUTPUTS, count, (1,), is_written=True)
            centred = sub(cast(made, I32), cast(load(taken, ix(0)), I32))
            body.append(store(z, i, value=cast(centred, F32)))
        return b.build((serial(group, len(numbers) // lanes, [vector(v, lanes, body)]),))

    memory = {
        "x": numbers,
        "zero": np.array([zero], dtype.numpy),
        "y": np.zeros(len(numbers), dtype.numpy),
    }
    name = f"quantising-{dtype}-{zero}-{lanes}"
    if is_centred:
        memory["z"] = np.ones(len(numbers), np.float32)
    else:
        name += "-bytes"
    return Case(name, make, memory, computes=(F32,))


QUANTISING = tuple(
    quantising(dtype, zero, lanes)
    for dtype, zero, lanes in (
        (DType.U8, 0, 16),
        (DType.U8, 117, 16),
        (DType.I8, -5, 16),
        (DType.I8, 127, 8),
        (DType.U16, 40000, 4),
        (DType.I16, -32768, 16),
    )
) + tuple(
    # registers that are packed together, of 64, 32 and 16 bytes, and what is left of them
    quantising(dtype, zero, lanes, is_centred=False)
    for dtype, zero, lanes in (
        (DType.U8, 0, 64),
        (DType.U8, 117, 64),
        (DType.I8, -5, 64),
        (DType.I8, 127, 32),
        (DType.U8, 255, 48),
    )
)
