"""Decides the order and the pieces in which a sum over several axes is accumulated.

Owns no loop: products.py has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.ir import dims, expr
from aot.ir.assumed_extents import WEIGHT_STRIDE
from aot.ir.expr import Dot, Expr, Fma, Var
from aot.kernels.nest.borders import Borders
from aot.kernels.nest.nest import Axis
from aot.target.model import CACHE_WAYS, WAY_BYTES

# terms that are added up in f16; the sums of more are added up in f32
HALF_TERMS = 256
# steps along the last axis of a sum that asking about borders before them costs little beside
STEPS_A_TAP = 16


def is_piece(extents: list[dims.Dim]) -> bool:
    """Whether a sum over axes of `extents` has few enough terms to accumulate in f16."""
    terms = dims.product(extents)
    return isinstance(terms, int) and terms <= HALF_TERMS


def axes_of_a_piece(axes: Sequence[Axis]) -> int:
    """How many of the innermost axes together have few enough terms to accumulate in f16."""
    count = 0
    while count < len(axes) and is_piece([a.extent for a in axes[-count - 1 :]]):
        count += 1
    return count


def asks_by_tap(borders: Borders, axes: Sequence[Axis]) -> bool:
    """Whether guards are checked tap by tap before the last axis of a sum, as that is long, rather
    than once per tile.
    """
    if len(axes) < 2 or any(axes[-1].var in expr.free_vars(c) for c in borders.asked):
        return False
    extent = axes[-1].extent
    return not isinstance(extent, int) or extent >= STEPS_A_TAP


def has_far_terms(left: Expr, axes: Sequence[Axis]) -> bool:
    """Whether terms along the last axis of a sum are multiples of a page apart, and so conflict in
    few cache sets.
    """
    if len(axes) < 2 or (isinstance(axes[-1].extent, int) and axes[-1].extent <= CACHE_WAYS):
        return False
    for load in expr.loads(left):
        step = expr.coefficient(load.indices[0], axes[-1].var)
        if isinstance(step, int) and step and step * load.dtype.bytes % WAY_BYTES == 0:
            return True
    return False


def by_weight_step(weight: Expr, axes: Sequence[Axis]) -> list[Axis]:
    """The axes of a sum, outermost first, in the order of the weights in memory."""
    return sorted(axes, key=lambda a: -_step_or_large(weight, a.var))


def _step_or_large(load: Expr, var: Var) -> int:
    """The stride of a load along a reduced axis; a large number if it is unknown."""
    found = [expr.coefficient(x.indices[0], var) for x in expr.loads(load)]
    steps = [dims.estimate(s, WEIGHT_STRIDE) for s in found if s is not None]
    return min((s for s in steps if s is not None), default=1 << 30)


def plus_product(total: Expr, a: Expr, b: Expr) -> Expr:
    """`total + a * b` with a fused multiply-add; for packed words, a dot product; for integers,
    multiply and add."""
    if a.dtype.is_packed:
        return Dot(a, b, total)
    if total.dtype.is_float:
        return Fma(a, b, total, total.dtype)
    return expr.add(total, expr.mul(a, b))
