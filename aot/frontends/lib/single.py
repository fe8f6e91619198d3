"""Squeeze without axes: the dims to drop. A dynamic dim may turn out to be 1 in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aot.frontends.lib.builder import UnsupportedNodeError
from aot.frontends.lib.place import Place
from aot.ir import dims
from aot.ir.bounds import bounds_of, not_one
from aot.ir.dims import Dim, Interval
from aot.ir.graph import Assumption


def single(place: Place, shape: Sequence[Dim], declared: int | None) -> list[int]:
    """The dims of `shape` with extent 1. The result's declared rank determines how many dynamic
    dims are among them; without it none is. A run checks them.

    Raises:
        UnsupportedNodeError: the rank leaves it open which are.
    """
    gone = [d for d, extent in enumerate(shape) if extent == 1]
    assumptions = place.rewriter.function.assumptions
    known = bounds_of(assumptions)
    unsure = [d for d, extent in enumerate(shape) if extent != 1 and _may_be_one(extent, known)]
    more = 0 if declared is None else len(shape) - declared - len(gone)
    if not 0 < more <= len(unsure):
        for d in unsure:
            reason = (
                f"{place.label}: Squeeze without axes drops axis {d} of x where it is 1; give the "
                "node axes, or compile for that extent (--input-shape)"
            )
            assumptions[not_one(shape[d], reason)] = None
        return gone
    if more < len(unsure):
        raise UnsupportedNodeError(
            f"without axes it would drop {more} of the open dims "
            f"{', '.join(str(shape[d]) for d in unsure)}, as the model says that the result has "
            f"rank {declared}, and only a run says which; give the node axes, or give these dims "
            "or bounds of them (--input-shape)"
        )
    for d in unsure:
        reason = (
            f"{place.label}: axis {d} of x is dropped by Squeeze without axes, as the model says "
            f"that the result has rank {declared}"
        )
        assumptions[Assumption(shape[d], 1, reason)] = None
    return sorted([*gone, *unsure])


def _may_be_one(extent: Dim, known: Mapping[str, Interval]) -> bool:
    low, high = dims.bounds(extent, known)
    return (low is None or low <= 1) and (high is None or high >= 1)
