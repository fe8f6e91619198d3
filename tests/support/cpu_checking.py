"""Compares what a CPU target's code leaves in memory with the interpreter.

Owns the rules of equality: bit by bit, but any NaN is a NaN, and where a case allows it signs of
zeros and a rounding may differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.backends.cpu.traits import Traits
from aot.kernels.ir import interpreter
from aot.kernels.ir.nodes import Kernel
from aot.kernels.ir.verifier import verify
from aot.target.model import Target
from tests.support.cpu_case import Case

Array = NDArray[Any]


def inputs_for(case: Case, target: Target) -> dict[str, Array]:
    """The case's arguments; without denormals where vectors flush them, as Armv7 NEON does."""
    return {
        name: _flushed(array) if flushes(target) else array.copy()
        for name, array in case.buffers.items()
    }


def flushes(target: Target) -> bool:
    return target.arch == "arm"


def _flushed(array: Array) -> Array:
    if array.dtype != np.float32:
        return array.copy()
    return np.where(
        np.abs(array) < np.finfo(np.float32).smallest_normal,
        np.copysign(np.float32(0), array),
        array,
    )


def expected_of(case: Case, kernel: Kernel, target: Target) -> dict[str, Array]:
    """What the written buffers hold after the interpreter ran."""
    verify(kernel)
    buffers = inputs_for(case, target)
    interpreter.run(kernel, buffers, case.params, fused=Traits.of(target).has_fma)
    return {b.name: buffers[b.name] for b in kernel.buffers if b.is_written}


def check(case: Case, expected: dict[str, Array], got: dict[str, Array], target: Target) -> None:
    """Fails with the first elements that differ and the arguments they came from."""
    for name, right in expected.items():
        wrong = ~_equal(right, np.asarray(got[name]).reshape(right.shape), case, target)
        if not wrong.any():
            continue
        places = np.flatnonzero(wrong.reshape(-1))
        lines = []
        for place in places[:5]:
            inputs = {
                n: a.reshape(-1)[place]
                for n, a in case.buffers.items()
                if a.shape == right.shape and n not in expected
            }
            lines.append(
                f"  [{place}] expected {right.reshape(-1)[place]!r}, got "
                f"{got[name].reshape(-1)[place]!r} from {inputs}"
            )
        raise AssertionError(
            f"{case.name} on {target.name}: {name} differs in {len(places)} of "
            f"{right.size}\n" + "\n".join(lines)
        )


def _equal(right: Array, got: Array, case: Case, target: Target) -> Array:
    if right.dtype.kind != "f":
        return np.asarray(right == got)
    with np.errstate(all="ignore"):
        if flushes(target):
            right, got = _flushed(right), _flushed(got)
        both_nan = np.isnan(right) & np.isnan(got)
        if case.is_exact:
            bits = np.dtype(f"u{right.dtype.itemsize}")
            return np.asarray(both_nan | (right.view(bits) == got.view(bits)))
        return np.asarray(
            both_nan
            | (right == got)
            | np.isclose(
                right.astype(np.float64),
                got.astype(np.float64),
                rtol=4e-6 if (right.dtype != np.float16) else 2e-3,
                atol=1e-6 * (right.dtype == np.float32),
            )
        )
