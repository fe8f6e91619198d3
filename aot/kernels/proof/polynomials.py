"""Polynomials with integer coefficients over numbered variables.

Owns their arithmetic. Knows nothing of what the variables mean.
"""

from __future__ import annotations

from aot.ir.dims import monomial_quotient

Monomial = tuple[int, ...]
"""The numbers of the variables that are multiplied, sorted, with repetition; () is 1."""
Polynomial = dict[Monomial, int]
"""The coefficient of each monomial; none is 0."""

ONE: Monomial = ()


def constant(value: int) -> Polynomial:
    return {ONE: value} if value else {}


def combined(p: Polynomial, q: Polynomial, factor: int = 1) -> Polynomial:
    """`p + factor * q`."""
    out = dict(p)
    for monomial, coefficient in q.items():
        total = out.get(monomial, 0) + factor * coefficient
        if total:
            out[monomial] = total
        else:
            out.pop(monomial, None)
    return out


def scaled(p: Polynomial, factor: int) -> Polynomial:
    if factor == 1:
        return p
    return {m: c * factor for m, c in p.items()} if factor else {}


def product(p: Polynomial, q: Polynomial) -> Polynomial:
    """The product of two polynomials."""
    if len(p) > len(q):
        p, q = q, p
    if not p:
        return {}
    if len(p) == 1:
        ((monomial, factor),) = p.items()
        if monomial == ONE:
            return scaled(q, factor)
    out: Polynomial = {}
    for a, x in p.items():
        for b, y in q.items():
            monomial = tuple(sorted(a + b))
            out[monomial] = out.get(monomial, 0) + x * y
    return {m: c for m, c in out.items() if c}


def substituted(p: Polynomial, number: int, value: Polynomial) -> Polynomial:
    """`p` with a variable replaced."""
    out: Polynomial = {}
    for monomial, coefficient in p.items():
        term: Polynomial = {tuple(n for n in monomial if n != number): coefficient}
        for n in monomial:
            if n == number:
                term = product(term, value)
        out = combined(out, term)
    return out


def known_value(p: Polynomial) -> int | None:
    """The constant that `p` is; None if it has variables."""
    if len(p) > 1:
        return None
    return p.get(ONE, 0) if not p or ONE in p else None


def variables_of(p: Polynomial) -> set[int]:
    """The numbers of the variables in `p`."""
    return {number for monomial in p for number in monomial}


def less(monomial: Monomial, number: int) -> Monomial:
    at = monomial.index(number)
    return monomial[:at] + monomial[at + 1 :]


def divided(p: Polynomial, by: Polynomial) -> Polynomial | None:
    """`p / by`, where that is a polynomial."""
    quotient, rest = long_division(p, by)
    return None if rest else quotient


def long_division(p: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    """(q, r) with `p == divisor * q + r`: division by the divisor's longest monomial, as far as it
    divides terms of p."""
    lead = max(divisor, key=lambda m: (len(m), m))
    factor = divisor[lead]
    quotient: Polynomial = {}
    for _ in range(len(p)):
        for monomial, coefficient in p.items():
            left = monomial_quotient(monomial, lead)
            if left is not None and coefficient % factor == 0:
                break
        else:
            break
        term = {left: coefficient // factor}
        quotient = combined(quotient, term)
        p = combined(p, product(term, divisor), -1)
    return quotient, p
