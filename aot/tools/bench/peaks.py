"""The most arithmetic that one core can do for a CPU variant, by element type.

`aot-run --machine` measures multiply-adds of floats and sums of products of bytes by vector width;
which of these a variant's code can reach follows from its target's features. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aot.link.image import VariantImage

_FLOATS, _HALVES = "fma_gflops", "half_gflops"
_BYTES, _DOTS = "byte_gops", "byte_dot_gops"
# Features whose targets' kernels sum products of bytes by one instruction, and add halves natively.
_DOT_FEATURES = frozenset({"avxvnni", "avx512vnni", "dotprod"})
_HALF_FEATURES = frozenset({"fullfp16"})


def peaks_of(machine: Mapping[str, Mapping[str, float]], variant: VariantImage) -> dict[str, float]:
    """Element type -> operations in 1e9 a second that one core does at most, by the code of
    `variant`.

    A multiply-add is two operations. "i8" is the rate of products of bytes added in 32 bits. A type
    that is not among the keys was not measured.

    Args:
        machine: what `measure_machine` returns.
    """
    width = vector_bytes(variant)
    features = set(variant.features)
    kinds = {"f32": _FLOATS, "i8": _DOTS if features & _DOT_FEATURES else _BYTES}
    if features & _HALF_FEATURES:
        kinds["f16"] = _HALVES
    found = {dtype: _at_width(machine.get(key, {}), width) for dtype, key in kinds.items()}
    return {dtype: peak for dtype, peak in found.items() if peak is not None}


def vector_bytes(variant: VariantImage) -> int:
    """The vector width in bytes of a CPU variant: that of its target if the target is known here,
    else the widest that its features have."""
    from aot.target import files
    from aot.target import selection as targets

    if variant.target in files.names():
        return targets.load(variant.target).vector_bytes
    widths = {"avx512f": 64, "avx": 32, "sse": 16, "neon": 16, "v": 16}
    return max((widths.get(feature, 4) for feature in variant.features), default=4)


def memory_gbs(machine: Mapping[str, Any]) -> float:
    """The rate at which one core reads the largest memory that was measured, in 1e9 bytes a
    second."""
    read = machine["read_gbs"]
    return float(read[max(read, key=int)])


def _at_width(rates: Mapping[str, float], width: int) -> float | None:
    """The rate for vectors of `width` bytes: that of the widest measured vectors up to it, or of
    the narrowest if all are wider; None if none was measured.
    """
    fitting = {int(size): rate for size, rate in rates.items() if int(size) <= width}
    if fitting:
        return max(fitting.values())
    return rates[min(rates, key=int)] if rates else None
