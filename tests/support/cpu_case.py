"""What a test of the CPU backend runs: a kernel, its arguments, and which targets it is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, BufferClass, Kernel, KernelBuilder
from aot.target.model import Target

Array = NDArray[Any]
F16, F32 = DType.F16, DType.F32


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


def dense(b: KernelBuilder, name: str, dtype: DType, binding: BufferClass, *shape: int) -> Buffer:
    strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    is_written = binding in (BufferClass.ARENA, BufferClass.OUTPUTS)
    return b.buffer(name, dtype, binding, shape, strides, is_written=is_written)


def numbers(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
