"""The contract of rewrite rules: how far a kind of rule may change a value, and where it applies.

Owns the kinds, and what they ask. docs/internals/algebra.md is the contract in words; its table of
rules is generated from the bounds that rules carry.
"""

from __future__ import annotations

from enum import Enum

from aot.analysis.discontinuities import Discontinuities
from aot.base.records import dataclass
from aot.ir.graph import Value


class Change(Enum):
    """How far a rule may change a value.

    EXACT: nothing: the bits are the same, but for which NaN a NaN is.
    REORDERS: adds the terms of a sum in another order, which the model doesn't say.
    SCALES: rounds the terms of a sum otherwise: not where a discontinuity is near.
    REPLACES: computes a function by another formula: not where a discontinuity is near.
    ROUNDS: rounds otherwise what the model determines to the last bit: not where a discontinuity
        is behind, however far.
    """

    EXACT = "exact"
    REORDERS = "reorders a sum"
    SCALES = "scales a sum"
    REPLACES = "replaces a formula"
    ROUNDS = "rounds"


@dataclass(frozen=True)
class Bound:
    """A rule's promise: the kind of change, and its size in roundings.

    Attributes:
        roundings: how many roundings to the nearest the result may be off, of the largest
            intermediate value (of the sum of all terms' sizes, where terms are added up).
    """

    change: Change
    roundings: int = 0

    def holds(self, value: Value, found: Discontinuities) -> bool:
        """Whether a rule with this bound may change `value`."""
        match self.change:
            case Change.SCALES | Change.REPLACES:
                return not found.are_near(value)
            case Change.ROUNDS:
                return not found.are_behind(value)
        return True


EXACT, REORDERS = Bound(Change.EXACT), Bound(Change.REORDERS)


def scales(roundings: int) -> Bound:
    return Bound(Change.SCALES, roundings)


def replaces(roundings: int) -> Bound:
    return Bound(Change.REPLACES, roundings)


def rounds(roundings: int) -> Bound:
    return Bound(Change.ROUNDS, roundings)
