"""How far apart two engines may be that compute a model rightly, where the model itself rounds.

A quantised number is one step off where its quotient is so near a tie that the last bits of a float
decide, and later layers amplify that. So the model is run again with such roundings disturbed: what
it then gives is as right as what it gave. Owns the size of these disturbances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.ir.graph import Module, Op
from aot.ir.record import Kind
from aot.ir.types import Array, DType
from aot.ops.blocked import MATMUL_BLOCKED
from aot.ops.quantization import QUANTIZE

NEAR_TIE = 1e-3  # of a step: as far as sums of floats in another order move a quotient
RUNS = 3
ALLOWANCE = 3.0  # times what these runs differ at most: they are a sample
_EPSILONS = {DType.F16: 2.0**-10, DType.BF16: 2.0**-7}  # of the next number above 1
_COMPUTES = frozenset(Kind) - {Kind.STRUCTURE, Kind.VIEW, Kind.MOVEMENT, Kind.SHAPE}


def rounds(module: Module) -> bool:
    """Whether a model quantises, or computes in floats of 16 bits."""
    return any(_rounds(op) for function in module.functions.values() for op in function.walk())


class OtherRoundings:
    """Runs a model as an engine would that rounds otherwise: a `Disturbance` of the interpreter."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def before(self, op: Op, operands: Sequence[Array | None]) -> Sequence[Array | None]:
        """Moves the quotients of `quantize` by up to NEAR_TIE of a step; quantises activations to 8
        bits that may be."""
        if op.record is QUANTIZE:
            x, scale = (*operands, None)[:2]
            assert x is not None
            return [self._moved(x, scale), *operands[1:]]
        if _may_quantize(op):
            a, block = operands[0], op.attrs["block"]
            assert a is not None and isinstance(block, int)
            return [self._quantised(a, block), *operands[1:]]
        return operands

    def after(self, op: Op, results: list[Array]) -> list[Array]:
        """Moves floats of 16 bits that were computed by up to half a unit in the last place."""
        if op.record.kind not in _COMPUTES:
            return results
        return [self._nudged(r) if DType.of(r) in _EPSILONS else r for r in results]

    def _noise(self, shape: tuple[int, ...], most: float) -> NDArray[np.float32]:
        return self._random.uniform(-most, most, shape).astype(np.float32)

    def _moved(self, x: Array, scale: Array | None) -> Array:
        noise = self._noise(x.shape, NEAR_TIE)
        wide = x.astype(np.float32)
        return wide + (noise if scale is None else noise * scale.astype(np.float32))

    def _quantised(self, a: Array, block: int) -> Array:
        """f32[..., K], each block of K rounded to 8 bits by its largest element."""
        depth = a.shape[-1]
        padded = np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, -depth % block)])
        blocks = padded.reshape(*a.shape[:-1], -1, block)
        scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
        scale = np.where(scale > 0, scale, np.float32(1))
        found = np.rint(blocks / scale + self._noise(blocks.shape, NEAR_TIE)) * scale
        return np.ascontiguousarray(found.reshape(padded.shape)[..., :depth], np.float32)

    def _nudged(self, result: Array) -> Array:
        wide: NDArray[Any] = result.astype(np.float32)
        half = _EPSILONS[DType.of(result)] / 2
        return np.asarray(wide + wide * self._noise(wide.shape, half)).astype(result.dtype)


def _rounds(op: Op) -> bool:
    if op.record is QUANTIZE or _may_quantize(op):
        return True
    return op.record.kind in _COMPUTES and any(v.type.dtype in _EPSILONS for v in op.results)


def _may_quantize(op: Op) -> bool:
    return op.record is MATMUL_BLOCKED and bool(op.attrs["may_quantize"])
