"""Bounds of dims: their text form, how a function stores them, and what they imply for symbols.

A bound is an assumption such as `min(H, 960) == H`, so that it prints, parses and is kept like any
other, and so that a model's own clipping counts too. Never changes a function.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator
from typing import Union

from aot.base.records import dataclass
from aot.ir.dim_parser import parse
from aot.ir.dims import (
    Dim,
    DimExpr,
    Extremum,
    FloorDiv,
    Interval,
    Symbol,
    add,
    bounds,
    maximum,
    minimum,
    modulo,
    multiply,
)
from aot.ir.graph import Assumption

KEEP = "?"
SYNTAX = "a number, a name, an expression such as 32*h, or '?', with bounds as in H:32..960"
# H:32..960 is 32<=H<=960 for shells, to which < and > mean files; either number may be left out
_RANGE = re.compile(r"([^:]*):\s*([0-9]*)\s*\.\.\s*([0-9]*)\s*")


@dataclass(frozen=True)
class WantedDim:
    """A user's request for a dim of an input.

    Attributes:
        dim: its extent; None keeps what the model says.
        low, high: inclusive bounds.
    """

    dim: Dim | None
    low: int = 0
    high: int | None = None

    def __str__(self) -> str:
        text = KEEP if self.dim is None else str(self.dim)
        low = f"{self.low}<=" if self.low else ""
        return f"{low}{text}" + ("" if self.high is None else f"<={self.high}")


Wanted = Union[Dim, str, None]


def parse_wanted(item: Wanted) -> WantedDim:
    """Parses a requested dim such as `224`, `H`, `32*h`, `?`, `H<=960` or `H:32..960`.

    Raises:
        ValueError: `item` is none of these, or its bounds leave nothing.
    """
    if item is None or isinstance(item, DimExpr):
        return WantedDim(item)
    if not isinstance(item, str):
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise ValueError(f"{item!r} is no dim, expected {SYNTAX}")
        return WantedDim(operator.index(item))
    bare, low, high = _parts(item)
    if high is not None and low > high:
        raise ValueError(f"no dim satisfies {item!r}")
    return WantedDim(None if bare == KEEP else parse(bare), low, high)


def _parts(item: str) -> tuple[str, int, int | None]:
    """(text of the dim, lower bound, upper bound) of a bounded dim's text."""
    unclear = ValueError(f"{item!r} is no dim, expected {SYNTAX}")
    found = _RANGE.fullmatch(item)
    if found is not None:
        bare, low, high = (part.strip() for part in found.groups())
        if not low and not high:
            raise unclear
        return bare, int(low or 0), int(high) if high else None
    if ":" in item:
        raise unclear
    parts = [part.strip() for part in re.split("([<>]=)", item)]
    operands, signs = parts[::2], parts[1::2]
    if len(set(signs)) > 1 or len(signs) > 2:
        raise unclear
    if signs[:1] == [">="]:
        operands.reverse()
    at = 1 if len(signs) == 2 or (signs and operands[0].isdecimal()) else 0
    if not all(number.isdecimal() for number in [*operands[:at], *operands[at + 1 :]]):
        raise unclear
    least = int(operands[0]) if at else 0
    return operands[at], least, int(operands[-1]) if at + 1 < len(operands) else None


def parse_shape(text: str) -> tuple[int | str | None, ...]:
    """Splits a shape's text, `1x3xHx224`, or with commas where a name has an x, into items for
    `parse_wanted`; None is `?`.

    Raises:
        ValueError: an item is no dim.
    """
    parts = text.split("," if "," in text else "x") if text.strip() else []
    return tuple(_item(part.strip()) for part in parts)


def _item(text: str) -> int | str | None:
    if text.isdecimal():
        return int(text)
    wanted = parse_wanted(text)
    if isinstance(wanted.dim, int):
        raise ValueError(f"{text!r}")
    return None if text == KEEP else text


def assumptions_of(dim: Dim, wanted: WantedDim, what: str) -> Iterator[Assumption]:
    """The assumptions that `dim` is within `wanted`; `what` names the dim in their messages.

    Raises:
        ValueError: no value of its symbols satisfies them.
    """
    low, high = bounds(dim, {})
    above = wanted.high
    if (high is not None and high < wanted.low) or (
        low is not None and above is not None and low > above
    ):
        raise ValueError(f"{what} is {dim}, the bounds given for it are {wanted}")
    if maximum(dim, wanted.low) != dim:
        yield Assumption(maximum(dim, wanted.low), dim, f"{what} must be at least {wanted.low}")
    if above is not None and minimum(dim, above) != dim:
        yield Assumption(minimum(dim, above), dim, f"{what} must be at most {above}")


def bound_of(left: Dim, right: Dim) -> tuple[Dim, Interval] | None:
    """(dim, bounds), if `left == right` expresses only a bound of the dim; else None."""
    for extreme, dim in ((left, right), (right, left)):
        atom = _single_extremum(extreme)
        if atom is None or dim not in atom.args:
            continue
        numbers = [arg for arg in atom.args if isinstance(arg, int)]
        if len(atom.args) == 2 and numbers:
            return dim, (numbers[0], None) if atom.is_max else (None, numbers[0])
    return None


def bounds_of(assumptions: Iterable[Assumption]) -> dict[str, Interval]:
    """Bounds of symbols that follow from assumptions on dims linear in one symbol."""
    known: dict[str, Interval] = {}
    for assumption in assumptions:
        add_bound(known, assumption.left, assumption.right)
    return known


def add_bound(known: dict[str, Interval], left: Dim, right: Dim) -> None:
    """Adds the bound that `left == right` expresses, if any, to the known bounds of symbols."""
    found = bound_of(left, right)
    symbol = None if found is None else linear(found[0])
    if found is None or symbol is None:
        return
    name, factor, rest = symbol
    low, high = known.get(name, (0, None))
    below, above = found[1]
    if below is not None:
        low = max(low or 0, -((rest - below) // factor))
    if above is not None:
        above = (above - rest) // factor
        high = above if high is None else min(high, above)
    known[name] = low, high


def add_not_negative(known: dict[str, Interval], dim: Dim) -> None:
    """Adds to the bounds of symbols that a dim is at least 0, if it is linear in one symbol, or a
    quotient of such a dim by a number."""
    while isinstance(dim, DimExpr) and len(dim.terms) == 1:
        (((atom, *others), factor),) = dim.terms
        if others or factor < 1 or not isinstance(atom, FloorDiv):
            break
        if not isinstance(atom.denominator, int) or atom.denominator < 1:
            break
        least = -(dim.constant // factor)  # of the quotient
        dim = add(atom.numerator, -least * atom.denominator)
    add_bound(known, maximum(dim, 0), dim)


def linear(dim: Dim) -> tuple[str, int, int] | None:
    """(symbol, a, b) of a dim that is `a * symbol + b` with a positive `a`."""
    if not isinstance(dim, DimExpr) or len(dim.terms) != 1:
        return None
    monomial, factor = dim.terms[0]
    if len(monomial) != 1 or not isinstance(monomial[0], Symbol) or factor < 1:
        return None
    return monomial[0].name, factor, dim.constant


def most_of(dim: Dim, depth: int = 4) -> int | None:
    """An upper bound of a dim that takes correlated parts into account: n - max(n - 1, 0) is at
    most 1. None if none is found within `depth` nested extrema."""
    high = bounds(dim, {})[1]
    if high is not None or not isinstance(dim, DimExpr) or not depth:
        return high
    best: int | None = None
    for monomial, factor in dim.terms:
        if len(monomial) != 1 or factor not in (1, -1) or not isinstance(monomial[0], Extremum):
            continue
        rest = dim - DimExpr(((monomial, factor),), 0)
        found = [most_of(rest + factor * arg, depth - 1) for arg in monomial[0].args]
        known = [most for most in found if most is not None]
        if monomial[0].is_max == (factor == 1):
            known = [max(known)] if len(known) == len(found) else []
        best = min([*known, *([] if best is None else [best])], default=None)
    return best


def not_one(dim: Dim, reason: str) -> Assumption:
    """The assumption that a non-negative dim is not 1."""
    return Assumption(modulo(minimum(dim, 2), 2), 0, reason)


def never_one(left: Dim, right: Dim) -> Dim | None:
    """The dim of which the assumption `left == right` says that it is not 1, as `not_one` writes
    it; None for other assumptions."""
    if not isinstance(left, DimExpr) or right != 0:
        return None
    for monomial, coefficient in left.terms:
        atom = monomial[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(atom, Extremum):
            found = next((arg for arg in atom.args if arg != 2), None)
            if found is not None and not_one(found, "").left == left:
                return found
    return None


def one_or(dim: Dim, other: Dim, reason: str) -> Assumption:
    """The assumption that a dim is 1 or equals another, as dims do that broadcast in a run."""
    factor = add(minimum(dim, 2), -1)  # 0 where the dim is 1
    return Assumption(multiply(factor, add(dim, multiply(other, -1))), 0, reason)


def one_or_which(left: Dim, right: Dim) -> tuple[Dim, Dim] | None:
    """(dim, other) of an assumption `left == right` that `one_or` wrote; None for others."""
    if not isinstance(left, DimExpr) or right != 0:
        return None
    factors = {atom: None for monomial, _ in left.terms for atom in monomial}
    for atom in factors:
        if not isinstance(atom, Extremum) or atom.is_max or 2 not in atom.args:
            continue
        dim = minimum(*(arg for arg in atom.args if arg != 2))
        whole = [(m, c) for m, c in left.terms if atom not in m]
        other = add(dim, DimExpr(tuple(whole), left.constant) if whole else left.constant)
        if one_or(dim, other, "").left == left:
            return dim, other
    return None


def _single_extremum(dim: Dim) -> Extremum | None:
    if not isinstance(dim, DimExpr) or dim.constant or len(dim.terms) != 1:
        return None
    monomial, coefficient = dim.terms[0]
    is_single = coefficient == 1 and len(monomial) == 1
    return monomial[0] if is_single and isinstance(monomial[0], Extremum) else None
