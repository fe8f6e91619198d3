"""Finds the reductions of a loop nest, and its free axes, on which no reduction depends.

Owns the order of their axes. Owns no loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.assumed_extents import GRAIN_WORK
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Reduce, Var
from aot.kernels.nest.inline import reduces_of
from aot.kernels.nest.nest import Axis, Output


@dataclass(frozen=True)
class Reduced:
    """A loop nest's output with its reductions and free axes.

    Attributes:
        reduces: the reductions of its value, inner ones first.
        free: its axes on which no reduction depends, so that one value of each reduction serves all
            elements along them: a softmax's own axis, a normalisation's axes.
    """

    output: Output
    reduces: tuple[Reduce, ...]
    free: tuple[Axis, ...]

    @property
    def parts(self) -> tuple[Output, tuple[Reduce, ...], tuple[Axis, ...]]:
        """The fields as a tuple: output, reductions, free axes."""
        return self.output, self.reduces, self.free

    @staticmethod
    def of(output: Output) -> Reduced:
        """Finds the reductions and the free axes of an output."""
        reduces = reduces_of(output.value)
        known = {v for r in reduces for v in expr.free_vars(r)}
        free = tuple(axis for axis in output.axes if axis.var not in known)
        return Reduced(output, tuple(reduces), free)


def as_memory_lies(output: Output, reduces: Sequence[Reduce]) -> Output:
    """Reorders the reductions' axes to memory order, so that vector lanes run along cache lines: an
    image's channels may be its innermost dim."""
    orders: dict[Expr, tuple[tuple[Var, Dim], ...]] = {}
    for reduce in reduces:
        steps: dict[Var, int] = {}
        for load in expr.loads(reduce.body):
            for var, _ in reduce.axes:
                step = expr.coefficient(load.indices[0], var)
                known = None if step is None else dims.estimate(step, GRAIN_WORK)
                if known is None:
                    return output
                steps[var] = max(steps.get(var, 0), abs(known))
        axes = tuple(sorted(reduce.axes, key=lambda axis: -steps.get(axis[0], 0)))
        if axes != reduce.axes:
            orders[reduce] = axes
    memo: dict[Expr, Expr] = {}

    def go(e: Expr) -> Expr:
        if e not in memo:
            fresh = expr.rebuild(e, go)
            if isinstance(fresh, Reduce) and e in orders:
                fresh = replace(fresh, axes=orders[e])
            memo[e] = fresh
        return memo[e]

    return output.rewritten(go) if orders else output
