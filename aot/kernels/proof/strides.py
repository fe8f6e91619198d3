"""Delinearisation: recovers the indices of a row-major layout from an address polynomial.

Owns how an address is divided by the strides that occur in it, after T. Grosser et al., "Optimistic
Delinearization of Parametrically Sized Arrays" (ICS 2015). It is inside its memory where each index
is inside its extent: goals of fewer variables and fewer products. Knows nothing of how these are
proved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import gcd

from aot.base.records import dataclass
from aot.kernels.proof.polynomials import (
    ONE,
    Monomial,
    Polynomial,
    combined,
    constant,
    divided,
    known_value,
    long_division,
    product,
    variables_of,
)

UNFOLDED = 4  # quotients that an address is written with


@dataclass(frozen=True)
class Division:
    """A division with remainder: `numerator == divisor * quotient + remainder`."""

    numerator: Polynomial
    divisor: Polynomial
    quotient: Polynomial
    remainder: Polynomial


@dataclass(frozen=True)
class Index:
    """One recovered index, with the extent that it must stay below and its `stride` in elements."""

    value: Polynomial
    extent: Polynomial
    stride: Polynomial


def indices_of(address: Polynomial, size: Polynomial) -> Iterator[list[Index]]:
    """Candidate indices, outermost first, of the element at `address` in row-major layouts of
    `size` elements, with strides that occur in the address: products of extents, and also a
    constant.

    The sum of all values times strides is the address. Each extent times its stride is the stride
    before it, the first one's the size; the last stride is 1.
    """
    found = _by_extents(address, size)
    if not found:
        return
    yield found
    *outer, last = found
    step = gcd(*last.extent.values())
    whole = {m: c // step for m, c in last.value.items() if c % step == 0}
    rest = {m: c for m, c in last.value.items() if c % step}
    if step > 1 and whole and rest:
        extent = {m: c // step for m, c in last.extent.items()}
        inner = Index(rest, constant(step), constant(1))
        yield [*outer, Index(whole, extent, constant(step)), inner]


def _by_extents(address: Polynomial, size: Polynomial) -> list[Index]:
    """The indices of the element at `address`, if its strides are products of extents; empty if
    there is no such layout.
    """
    own = variables_of(size)
    parts: dict[Monomial, Polynomial] = {ONE: {}}
    for monomial, coefficient in address.items():
        outside = tuple(n for n in monomial if n in own)
        inside = tuple(n for n in monomial if n not in own)
        parts.setdefault(outside, {})[inside] = coefficient
    found: list[Index] = []
    above = size
    for monomial in sorted(parts, key=len, reverse=True):
        part = parts[monomial]
        factor = gcd(*part.values(), *above.values()) if monomial != ONE else 1
        stride = {monomial: factor}
        extent = divided(above, stride)
        if extent is None:
            return []
        found.append(Index({m: c // factor for m, c in part.items()}, extent, stride))
        above = stride
    return found


def unfolded(
    address: Polynomial, size: Polynomial, divisions: Iterable[Division]
) -> Iterator[Polynomial]:
    """`address` itself, then with one numerator after another replaced by its quotient and
    remainder, which splits an index over several dims. Only divisors made of the layout's extents,
    or that divide the constant in its size, are used."""
    yield address
    own, number = variables_of(size), gcd(*size.values())
    left = [d for d in divisions if variables_of(d.numerator) and variables_of(d.divisor) <= own]
    for _ in range(UNFOLDED):
        for division in left:
            times, rest = long_division(address, division.numerator)
            stride = known_value(product(times, division.divisor))
            if times and (stride is None or number % stride == 0):
                break
        else:
            return
        left.remove(division)
        whole = combined(product(division.divisor, division.quotient), division.remainder)
        address = combined(product(times, whole), rest)
        yield address
