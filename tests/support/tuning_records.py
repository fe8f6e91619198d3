"""Records as tuning writes them to its cache."""

from __future__ import annotations

from aot.analysis.cost.candidates import Choice
from aot.tuning.cache import TuningRecord

BASE, OTHER = Choice(((6, 16),)), Choice(((4, 16),))


def learnt(number: int, compiler: str = "c") -> TuningRecord:
    key = f"{number:040x}"
    return TuningRecord(key, "x", f"op {number}", compiler, BASE, OTHER, {OTHER: 0.5}, {OTHER: 0.6})
