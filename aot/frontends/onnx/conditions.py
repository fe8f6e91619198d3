"""Conditions that compare extents, and the assumptions under which they hold.

Owns the reading of a bool value as a comparison of two dims. Takes no branch.
"""

from __future__ import annotations

from aot.analysis.dim_values import DimValues
from aot.base.records import dataclass
from aot.ir.dims import Dim, add, bounds, maximum, minimum
from aot.ir.equalities import DimEqualities, difference
from aot.ir.graph import Assumption, Function, Value
from aot.ir.types import DType

_COMPARISONS = ("equal", "less", "less_equal")
_SIGNS = {
    ("equal", False): "==",
    ("equal", True): "!=",
    ("less", False): "<",
    ("less", True): ">=",
    ("less_equal", False): "<=",
    ("less_equal", True): ">",
}


@dataclass(frozen=True)
class Comparison:
    """A comparison of dims, `left` with `right`, decided by shapes at run time.

    Attributes:
        kind: "equal", "less" or "less_equal".
    """

    kind: str
    left: Dim
    right: Dim
    is_negated: bool = False

    def __str__(self) -> str:
        return f"{self.left} {_SIGNS[self.kind, self.is_negated]} {self.right}"

    def negated(self) -> Comparison:
        return Comparison(self.kind, self.left, self.right, not self.is_negated)

    def decided(self, function: Function) -> bool | None:
        """Whether the comparison holds, if the function's assumptions decide it; else None."""
        known = DimEqualities(function.assumptions)
        low, high = bounds(known.canonical(difference(self.right, self.left)), known.known)
        least = 1 if self.kind == "less" else 0  # of right - left, for an order that holds
        found: bool | None = None
        if self.kind == "equal":
            if known.are_equal(self.left, self.right):
                found = True
            elif (low is not None and low > 0) or (high is not None and high < 0):
                found = False
        elif low is not None and low >= least:
            found = True
        elif high is not None and high < least:
            found = False
        return None if found is None else found != self.is_negated

    def assumption(self, reason: str) -> Assumption | None:
        """The assumption under which the comparison holds; None if it can't be written as one.

        That a dim is not a number is written as if it were larger, which it is where the number is
        the least that it can be, as 1 is for extents that broadcast.
        """
        zero = difference(self.left, self.right)
        if self.kind == "equal":
            if not self.is_negated:
                return Assumption(self.left, self.right, reason)
            low, high = bounds(zero, {})
            if high is not None and high <= 0:
                zero = difference(self.right, self.left)
            elif (low is None or low < 0) and not _is_small(self.left, self.right):
                return None
            return Assumption(maximum(zero, 1), zero, reason)
        least = 1 if (self.kind == "less") != self.is_negated else 0
        small, large = self.left, self.right
        if self.is_negated:
            small, large = large, small
        if isinstance(small, int):
            return Assumption(maximum(large, small + least), large, reason)
        if isinstance(large, int):
            return Assumption(minimum(small, large - least), small, reason)
        gap = difference(large, small)
        return Assumption(maximum(gap, least), gap, reason)


def _is_small(left: Dim, right: Dim) -> bool:
    """Whether one is 0 or 1 and the other a non-negative dim."""
    for number, dim in ((left, right), (right, left)):
        low, _ = bounds(dim, {})
        if isinstance(number, int) and number in (0, 1):
            return low is not None and low >= 0
    return False


def comparison_of(values: DimValues, condition: Value) -> Comparison | None:
    """The comparison of dims that a bool with one element represents; None for others."""
    value, is_negated = condition, False
    while value.op is not None:
        op, name = value.op, value.op.name
        if name in _COMPARISONS:
            found = _compared(values, op.operands)
            return None if found is None else Comparison(name, *found, is_negated)
        source = op.operands[0] if op.operands else None
        if source is None or source.type.element_count != 1:
            return None
        if name == "cast" and source.type.dtype is not DType.BOOL:
            dim = _dim(values, source)
            if value.type.dtype is DType.BOOL and dim is not None:
                return Comparison("equal", dim, 0, not is_negated)
        elif name == "not":
            is_negated = not is_negated
        elif name not in ("cast", "reshape"):
            return None
        value = source
    return None


def _compared(values: DimValues, operands: list[Value | None]) -> tuple[Dim, Dim] | None:
    left, right = (None if v is None else _dim(values, v) for v in operands)
    return None if left is None or right is None else (left, right)


def _dim(values: DimValues, value: Value) -> Dim | None:
    found = values.of(value)
    if found is None or found.size != 1 or value.type.dtype is DType.BOOL:
        return None
    return add(found.reshape(-1)[0], 0)
