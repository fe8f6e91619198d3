"""Estimates how much two correct engines may differ on a model because they round differently.

Sums of floats in another order differ in their last bits, which later layers amplify; a quantised
number is one step off where its quotient is so near a tie that such bits decide; and a compile may
be asked to round more. So the model is run again in the reference interpreter with its roundings
disturbed: what it then gives is as right as what it gave. Owns the size of these disturbances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.ir.graph import Op
from aot.ir.record import Kind
from aot.ir.types import Array, DType
from aot.ops.blocked import MATMUL_BLOCKED
from aot.ops.quantization import QUANTIZE
from aot.options import CompileOptions

NEAR_TIE = 1e-3  # of a step: as far as sums of floats in another order move a quotient
RUNS = 3
ALLOWANCE = 3.0  # times what these runs differ at most: they are a sample
_EPSILONS = {DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}  # next above 1, less 1
# The type of as many bits, and the last bits, which are 0 in numbers of few digits.
_LAST_BITS: Mapping[DType, tuple[Any, int]] = {
    DType.F32: (np.uint32, 0xFF),
    DType.F16: (np.uint16, 0x7),
    DType.BF16: (np.uint16, 0x3),
}
_NAMES = {"fp32": DType.F32, "fp16": DType.F16, "bf16": DType.BF16}
_COMPUTES = frozenset(Kind) - {Kind.STRUCTURE, Kind.VIEW, Kind.MOVEMENT, Kind.SHAPE}


class OtherRoundings:
    """A disturbance of the reference interpreter that rounds like another correct engine."""

    def __init__(self, seed: int, options: CompileOptions | None = None) -> None:
        """Seeds the random roundings.

        Args:
            options: those of a compile, whose storage, arithmetic and activations round too.
        """
        self._random = np.random.default_rng(seed)
        self._options = options or CompileOptions()

    def before(self, op: Op, operands: Sequence[Array | None]) -> Sequence[Array | None]:
        """Disturbs the operands of an op: quotients of `quantize` by up to NEAR_TIE of a step, and
        floats by up to half a unit in the last place of the type they are stored or multiplied in.
        Quantises activations to 8 bits where the options allow it."""
        if op.record is QUANTIZE:
            x, scale = (*operands, None)[:2]
            assert x is not None
            return [self._moved(x, scale), *operands[1:]]
        if self._is_quantised(op):
            a, block = operands[0], op.attrs["block"]
            assert a is not None and isinstance(block, int)
            return [self._quantised(a, block), *operands[1:]]
        if op.record.kind in _COMPUTES:
            return [x if x is None else self._as_read(op, x) for x in operands]
        return operands

    def after(self, op: Op, results: list[Array]) -> list[Array]:
        """Disturbs float results by up to half a unit in the last place."""
        if op.record.kind not in _COMPUTES:
            return results
        return [self._nudged(r, DType.of(r)) if DType.of(r) in _EPSILONS else r for r in results]

    def _is_quantised(self, op: Op) -> bool:
        if op.record is not MATMUL_BLOCKED or self._options.activations == "f32":
            return False
        return bool(op.attrs["may_quantize"]) or self._options.activations == "int8"

    def _as_read(self, op: Op, x: Array) -> Array:
        """An operand with the rounding that the storage and arithmetic options add."""
        if DType.of(x) is not DType.F32:
            return x
        if self._options.storage != "fp32":
            x = self._nudged(x, _NAMES[self._options.storage])
        if self._options.arithmetic != "fp32" and op.record.kind is Kind.CONTRACTION:
            x = self._nudged(x, _NAMES[self._options.arithmetic])
        return x

    def _noise(self, shape: tuple[int, ...], most: float) -> NDArray[np.float32]:
        return self._random.uniform(-most, most, shape).astype(np.float32)

    def _moved(self, x: Array, scale: Array | None) -> Array:
        noise = self._noise(x.shape, NEAR_TIE)
        wide = x.astype(np.float32)
        return wide + (noise if scale is None else noise * scale.astype(np.float32))

    def _quantised(self, a: Array, block: int) -> Array:
        """Rounds f32[..., K] to 8 bits, with the scale of each block of K given by its largest
        element."""
        depth = a.shape[-1]
        padded = np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, -depth % block)])
        blocks = padded.reshape(*a.shape[:-1], -1, block)
        scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
        scale = np.where(scale > 0, scale, np.float32(1))
        found = np.rint(blocks / scale + self._noise(blocks.shape, NEAR_TIE)) * scale
        return np.ascontiguousarray(found.reshape(padded.shape)[..., :depth], np.float32)

    def _nudged(self, x: Array, type: DType) -> Array:
        """Moves each number by up to half a unit in the last place of `type`. Numbers that are
        likely exact do not move: those of a narrower float, or with few digits, as in masks and
        counts. None becomes infinite.
        """
        if DType.of(x) is type:
            bits, zeros = _LAST_BITS[type]
            is_exact = x.view(bits) & bits(zeros) == 0
        else:
            with np.errstate(over="ignore"):
                narrow = x.astype(type.numpy).astype(x.dtype)
            is_exact = (narrow == x) | ~np.isfinite(narrow)
        wide: NDArray[Any] = x.astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            moved = wide + wide * self._noise(wide.shape, _EPSILONS[type] / 2)
            found = moved.astype(x.dtype)
        return np.where(np.isfinite(found) & ~is_exact, found, x)
