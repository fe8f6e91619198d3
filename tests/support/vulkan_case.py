"""What a kernel written by hand for the Vulkan backend is run with, and what such kernels share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.ir.expr import (
    Expr,
    Load,
    add,
    binary,
    const,
    index,
    mul,
)
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    Buffer,
    BufferClass,
    For,
    Kernel,
    KernelBuilder,
    LoopKind,
    Scratch,
    Stmt,
)

Array = NDArray[Any]
F32, I32, U32, BOOL = DType.F32, DType.I32, DType.U32, DType.BOOL
INPUTS, OUTPUTS = BufferClass.INPUTS, BufferClass.OUTPUTS
CONSTANTS, ARENA = BufferClass.CONSTANTS, BufferClass.ARENA


@dataclass
class Case:
    """A kernel, what it is run with, and what it must give (relative to the largest magnitude)."""

    kernel: Kernel
    arrays: dict[str, Array]
    expected: dict[str, Array]
    params: dict[str, float] = field(default_factory=dict)
    tolerance: float = 1e-6


def f32(value: float) -> Expr:
    return const(value, F32)


def load(
    source: Buffer | Scratch,
    *indices: Expr | int,
    guard: Expr | None = None,
    other: Expr | None = None,
) -> Load:
    return Load(source, tuple(index(i) for i in indices), source.dtype, guard, other)


def dense(*shape: int) -> tuple[int, ...]:
    """Row-major strides."""
    return tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))


def tensor(b: KernelBuilder, name: str, dtype: DType, binding: BufferClass, *shape: int) -> Buffer:
    return b.buffer(
        name, dtype, binding, shape, dense(*shape), is_written=binding in (ARENA, OUTPUTS)
    )


def spread(
    b: KernelBuilder, count: int, lanes: int, body: Callable[[Expr, Expr], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """`body(i, i < count)` for a lane of its own each."""
    group, lane = b.var("group"), b.var("lane")
    i = add(mul(group, index(lanes)), lane)
    inner = For(lane, lanes, LoopKind.LANE, body(i, binary("lt", i, index(count))))
    return (For(group, -(-count // lanes), LoopKind.WORKGROUP, (inner,)),)


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
