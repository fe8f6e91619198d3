"""choose-algorithms: says of each convolution how it is computed, where there are several ways.

Requires: layouts are assigned and no shape change is pending; weights aren't packed yet.
Ensures: a 3x3 convolution that Winograd's way costs less, by the plan, has `algorithm = winograd`.
Never: chooses a way that the target has no schedule for, or one whose weights would be stored
    otherwise.
"""

from __future__ import annotations

from dataclasses import replace

from aot.analysis.cost import winograd
from aot.analysis.cost.tile_costs import call_cost
from aot.ir.graph import Function, Module
from aot.ir.record import call_of
from aot.ir.rewriter import Rewriter
from aot.passes.base import Pass, PassContext
from aot.target.model import Target

# the direct convolution must cost this much more: it needs no scratch and rounds less
MARGIN = 1.15


def run(module: Module, context: PassContext) -> None:
    if context.target is not None and context.options.winograd:
        for function in module.entry_points:
            chosen = choose(function, context.target)
            context.count("choose-algorithms", "winograd", chosen)


def choose(function: Function, target: Target) -> int:
    """Marks the convolutions of `function`; gives how many."""
    chosen = 0
    for op in function.walk():
        if op.attrs.get("algorithm") != "direct":
            continue
        direct = call_of(op)
        if not winograd.fits(direct, target):
            continue
        other = replace(direct, attrs={**direct.attrs, "algorithm": "winograd"})
        if call_cost(direct, target) > MARGIN * call_cost(other, target):
            Rewriter(function).set_attr(op, "algorithm", "winograd")
            chosen += 1
    return chosen


CHOOSE_ALGORITHMS = Pass("choose-algorithms", run, __doc__)
