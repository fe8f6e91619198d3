"""Derives facts from comparisons of integers, and from the ranges of their types.

Owns facts that hold together, and of which one of several holds. Knows nothing of expressions.
"""

from __future__ import annotations

from aot.base.records import dataclass
from aot.ir.dims import Interval
from aot.ir.types import DType
from aot.kernels.proof.polynomials import Polynomial, combined, constant, scaled

Facts = tuple[Polynomial, ...]
NEGATED = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}


@dataclass(frozen=True)
class Consequences:
    """The facts that follow from a condition.

    Attributes:
        facts: polynomials that are not negative.
        disjunctions: of each, the facts of one of its ways hold.
    """

    facts: Facts = ()
    disjunctions: tuple[tuple[Facts, ...], ...] = ()

    def __and__(self, other: Consequences) -> Consequences:
        if other is NOTHING:
            return self
        disjunctions = (*self.disjunctions, *other.disjunctions)
        return Consequences((*self.facts, *other.facts), disjunctions)


NOTHING = Consequences()


def compared(op: str, apart: Polynomial) -> Consequences:
    """The facts that follow from the comparison `apart op 0`."""
    back, one = scaled(apart, -1), constant(-1)
    match op:
        case "ge":
            return Consequences((apart,))
        case "gt":
            return Consequences((combined(apart, one),))
        case "le":
            return Consequences((back,))
        case "lt":
            return Consequences((combined(back, one),))
        case "eq":
            return Consequences((apart, back))
        case "ne":
            return Consequences((), (((combined(apart, one),), (combined(back, one),)),))
    return NOTHING


def range_of(dtype: DType) -> Interval:
    """(least, greatest) number of a dtype; None for an unbounded one."""
    if dtype is DType.BOOL:
        return 0, 1
    if not dtype.is_integer or dtype is DType.INDEX:
        return None, None
    bits = dtype.bits
    if dtype.is_signed:
        return -(1 << bits - 1), (1 << bits - 1) - 1
    return 0, (1 << bits) - 1
