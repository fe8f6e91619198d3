"""Kernels that look bytes up in a table of 256, in vectors of any width, whole and not."""

from __future__ import annotations

import numpy as np

from aot.ir.dims import ceil_divide, symbol
from aot.ir.expr import cast
from aot.ir.types import DType
from aot.kernels.ir.nodes import BufferClass, For, Kernel, KernelBuilder, LoopKind
from tests.support.cpu_case import Case
from tests.support.kernel_terms import add, ix, load, mul, op, store, vector


def byte_table(lanes: int, count: int) -> Case:
    """Entries of a table that the bits of numbers say, guarded where there is no number."""

    def make() -> Kernel:
        b = KernelBuilder("byte_table")
        b.dim_param("n")
        n = symbol("n")
        table = b.buffer("table", DType.U8, BufferClass.CONSTANTS, (256,), (1,))
        x = b.buffer("x", DType.I8, BufferClass.INPUTS, (n,), (1,))
        y = b.buffer("y", DType.U8, BufferClass.OUTPUTS, (n,), (1,), is_written=True)
        group, v = b.var("group"), b.var("v")
        i = add(mul(group, lanes), v)
        inside = op("lt", i, ix(n))
        number = cast(cast(load(x, i, guard=inside), DType.U8), DType.INDEX)
        body = vector(v, lanes, [store(y, i, value=load(table, number), guard=inside)])
        return b.build((For(group, ceil_divide(n, lanes), LoopKind.WORKGROUP, (body,)),))

    random = np.random.default_rng(3)
    return Case(
        f"byte-table-{lanes}-{count}",
        make,
        {
            "table": random.permutation(256).astype(np.uint8),
            "x": np.resize(random.permutation(256).astype(np.uint8), count).view(np.int8),
            "y": np.zeros(count, np.uint8),
        },
        {"n": count},
        computes=(),
    )
