"""Variables for non-polynomial operations: quotients, remainders, minima and maxima.

Owns their definitions, as facts, and makes equal ones one variable. A quotient by what may be 0
somewhere is one only while facts say that it isn't.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

from aot.ir.dims import monomial_quotient
from aot.kernels.proof.elimination import FEW, Elimination
from aot.kernels.proof.facts import Choice
from aot.kernels.proof.polynomials import (
    ONE,
    Polynomial,
    combined,
    constant,
    known_value,
    product,
    scaled,
    variables_of,
)
from aot.kernels.proof.strides import Division


class Definitions(Elimination):
    """Facts with variables defined as quotients, remainders and extrema of other polynomials."""

    def __init__(self) -> None:
        super().__init__()
        # of quotients by numbers: what is divided, by what, and what is left of it
        self._rests: list[tuple[Polynomial, int, Polynomial]] = []

    def quotient(self, p: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial] | None:
        """(`p // divisor`, `p % divisor`), rounded down; None where `divisor` may be below 1."""
        number = known_value(divisor)
        if number is None:
            least, _ = self.interval(divisor)
            since = 0
            if least is None or least < 1:
                found = self._positive_since(divisor)
                if found is None:
                    return None
                since = found
                self.local_uses += 1
            return self._by_polynomial(p, divisor, since)
        if number < 1:
            return None
        if number == 1:
            return p, {}
        whole = {m: c // number for m, c in p.items() if c // number}
        rest = {m: c % number for m, c in p.items() if c % number}
        low, high = self.interval(rest)
        if low is not None and high is not None and low // number == high // number:
            by = low // number
            return combined(whole, constant(by)), combined(rest, constant(-by * number))
        quotient, remainder = self._by_number(rest, number)
        return combined(whole, quotient), remainder

    def _by_number(self, p: Polynomial, divisor: int) -> tuple[Polynomial, Polynomial]:
        """(quotient, remainder) of `p` by a number, as `quotient` gives them, where p's
        coefficients are from 0 to below `divisor`.
        """
        if divisor == 1:
            return p, {}
        common = gcd(divisor, *(c for m, c in p.items() if m))
        if common > 1:
            inner = {m: c // common for m, c in p.items() if c // common}
            quotient, remainder = self._by_number(inner, divisor // common)
            return quotient, combined(constant(p.get(ONE, 0) % common), remainder, common)
        low, high = self.interval(p)
        if low is not None and high is not None and low // divisor == high // divisor:
            by = low // divisor
            return constant(by), combined(p, constant(-by * divisor))
        key = (frozenset(p.items()), divisor)
        if key not in self._quotients:
            least, most = (None if end is None else end // divisor for end in (low, high))
            text = f"({self.text(p)}) // {divisor}"
            q = self.variable(text, least, most, of=[p], data=self.data(p))
            # p in divisor*q .. divisor*q + divisor - 1
            above = combined(p, q, -divisor)
            r = self.variable(f"({self.text(p)}) % {divisor}", 0, divisor - 1, of=[p])
            self._divide(q, p, constant(divisor))
            self.define(r, combined(r, above, -1), combined(above, r, -1))
            for fact in self._rounded_alike(p, divisor, above):
                self.define(q, fact)
            self._quotients[key] = q, r
            self._rests.append((p, divisor, above))
        return self._quotients[key]

    def _rounded_alike(
        self, p: Polynomial, divisor: int, above: Polynomial
    ) -> Iterator[Polynomial]:
        """Facts that relate the remainder `above` of `p` to known remainders: where n divides m and
        a ≡ b modulo n, `a % m - b % n` is a multiple of n in 0 .. m - n, which the sum of their
        bounds does not say.
        """
        for other, number, rest in self._rests:
            large, small = (divisor, above), (number, rest)
            if number > divisor:
                large, small = small, large
            is_multiple = large[0] % small[0] == 0
            apart = combined(p, other, -1)
            if is_multiple and all(c % small[0] == 0 for c in apart.values()):
                between = combined(large[1], small[1], -1)
                yield between
                yield combined(constant(large[0] - small[0]), between, -1)

    def _by_polynomial(
        self, p: Polynomial, divisor: Polynomial, since: int
    ) -> tuple[Polynomial, Polynomial]:
        whole: Polynomial = {}
        rest = p
        if len(divisor) == 1:  # multiples of one monomial leave
            ((monomial, factor),) = divisor.items()
            for other, coefficient in p.items():
                left = monomial_quotient(other, monomial)
                if left is not None and coefficient % factor == 0:
                    whole[left] = coefficient // factor
            rest = combined(p, product(whole, divisor), -1)
        room = combined(combined(divisor, constant(-1)), rest, -1)
        if not rest or (self._is_nonnegative(rest) and self._is_nonnegative(room)):
            return whole, rest
        key = (frozenset(rest.items()), frozenset(divisor.items()))
        if key not in self._quotients:
            low, high = self.interval(rest)
            least = max(self.interval(divisor)[0] or 1, 1)
            is_positive = low is not None and low >= 0
            most = high // least if is_positive and high is not None else None
            made_of = rest, divisor
            text = f"({self.text(rest)}) // ({self.text(divisor)})"
            ends = self.data(rest)
            q = self.variable(text, 0 if is_positive else None, most, of=made_of, data=ends)
            above = combined(rest, product(q, divisor), -1)
            text = f"({self.text(rest)}) % ({self.text(divisor)})"
            ends = False, any(self.data(divisor))
            r = self.variable(text, 0, of=made_of, data=ends)
            self._divide(q, rest, divisor)
            last = combined(combined(divisor, constant(-1)), r, -1)
            self.define(r, last, combined(r, above, -1), combined(above, r, -1))
            self._quotients[key] = q, r
            if since:
                self._local.append((since, key))
                self._local.sort(key=lambda item: item[0])
        q, r = self._quotients[key]
        return combined(whole, q), r

    def _divide(self, q: Polynomial, p: Polynomial, divisor: Polynomial) -> None:
        """Adds facts about `q`, the quotient of `p` by a positive divisor. A quotient within p is
        merged: (a + b//m) // n is (m*a + b) // (m*n)."""
        ((number,),) = q
        self._divisions[number] = []
        while True:
            above = combined(p, product(q, divisor), -1)
            below = combined(combined(divisor, constant(-1)), above, -1)
            self.define(q, above, below)
            self._divisions[number].append((p, divisor))
            inner = [m for m, c in p.items() if c == 1 and len(m) == 1 and m[0] in self._divisions]
            if not inner:
                return
            b, m = self._divisions[inner[0][0]][-1]
            rest = {k: c for k, c in p.items() if k != inner[0]}
            p, divisor = combined(product(rest, m), b), product(m, divisor)

    def _positive_since(self, p: Polynomial) -> int | None:
        """The number of facts from which `p` is known to be positive; None where it is not known to
        be."""
        low = self.low(p)
        if low is not None and low >= 1:
            numbers = variables_of(p)
            return max((at for n, _, _, at in self._narrowed if n in numbers), default=0)
        less_one = combined(p, constant(-1))
        is_known = frozenset(less_one.items()) in self._registered
        if not is_known and low is not None:
            left, self._left = self._left, FEW
            is_known = self._search(less_one, FEW)
            self._left = left
        return len(self._trail) if is_known else None

    def divisions(self) -> Iterator[Division]:
        """The quotients and remainders defined here, latest first."""
        for (numerator, divisor), (quotient, remainder) in reversed(self._quotients.items()):
            by = constant(divisor) if isinstance(divisor, int) else dict(divisor)
            yield Division(dict(numerator), by, quotient, remainder)

    def extremum(self, args: Sequence[Polynomial], *, is_max: bool) -> Polynomial:
        """A variable for the largest or the smallest of `args`."""
        sign = 1 if is_max else -1
        kept: list[Polynomial] = []
        for p in args:
            if any(self._is_nonnegative(scaled(combined(k, p, -1), sign)) for k in kept):
                continue
            kept = [k for k in kept if not self._is_nonnegative(scaled(combined(p, k, -1), sign))]
            kept.append(p)
        if len(kept) == 1:
            return kept[0]
        key = (is_max, frozenset(frozenset(p.items()) for p in kept))
        if key not in self._extrema:
            spans = [self.interval(p) for p in kept]
            lows, highs = [low for low, _ in spans], [high for _, high in spans]
            low, high = _extreme(lows, is_max, is_max), _extreme(highs, not is_max, is_max)
            text = f"{'max' if is_max else 'min'}({', '.join(map(self.text, kept))})"
            ends = [self.data(p) for p in kept]
            is_data = (
                (all if is_max else any)(e[0] for e in ends),
                (any if is_max else all)(e[1] for e in ends),
            )
            ways = Choice(tuple((p, ()) for p in kept), sign)
            m = self.variable(text, low, high, ways, kept, is_data)
            self.define(m, *(scaled(combined(m, p, -1), sign) for p in kept))
            self._extrema[key] = m
        return self._extrema[key]


def _extreme(ends: Sequence[int | None], is_any: bool, is_max: bool) -> int | None:
    known = [end for end in ends if end is not None]
    if not known or (not is_any and len(known) < len(ends)):
        return None
    return max(known) if is_max else min(known)
