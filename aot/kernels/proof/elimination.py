"""Proves one inequality by elimination: replaces variables by their bounding facts, one after
another.

A goal `p >= 0` is proved by intervals, or else by subtracting from p multiples of facts until
intervals do. Each step removes one variable, as Fourier-Motzkin elimination does, but of the goal
alone. What is found is a proof by Farkas' lemma, `p = c + sum(k_i * f_i)` with c, all k_i and all
f_i not negative, but for roundings: what is a multiple of a number and above another one is above
the next multiple. Nothing that is found is wrong, but not all that holds is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from itertools import count
from math import ceil, floor, gcd

from aot.ir.dims import Interval, interval_product
from aot.kernels.proof.facts import Facts, Step, tightened
from aot.kernels.proof.polynomials import (
    ONE,
    Monomial,
    Polynomial,
    combined,
    constant,
    divided,
    known_value,
    less,
    long_division,
    product,
    scaled,
    variables_of,
)

FEW = 16  # steps of a search for a part of a proof
DEPTH = 24  # variables that a proof removes
ROUNDINGS = 3  # of quotients of quotients
REPLACED = 2  # terms that keep a bound from being rounded
NESTED = 4  # definitions that intervals are looked up in


class Elimination(Facts):
    """Facts, with searches that eliminate variables by them."""

    def _search(self, goal: Polynomial, steps: int, depth: int = DEPTH) -> bool:
        """Whether intervals prove `goal` after at most `steps` eliminations."""
        low = self.low(goal)
        if low is not None and low >= 0:
            return True
        return self._best_low(goal, steps, depth, is_sign=True) is not None

    def _best_low(
        self, goal: Polynomial, steps: int, depth: int, *, is_sign: bool = False
    ) -> Fraction | None:
        """A lower bound of `goal`, by best-first search of at most `steps` steps. As steps round,
        only the bound's sign is exact. With `is_sign` the search ends at the first non-negative
        bound.
        """
        goal = self.expanded(goal)
        low = self.low(goal)
        best = None if low is None else Fraction(low)
        met = {frozenset(goal.items())}
        order = count()
        waiting = [((0, 0.0), next(order), 1, 1, goal, frozenset[int]())]
        while waiting and self._left > 0 and steps > 0:
            self._left -= 1
            steps -= 1
            _, _, over, under, p, removed = heappop(waiting)
            number = max(variables_of(p), key=self._order, default=None)
            if number is None or len(removed) == depth:
                continue
            removed |= {number}
            for q, times, by in self._steps(p, number, depth):
                q = self.expanded(q)
                low, above, below = self.low(q), over * times, under * by
                if low is not None:
                    if is_sign and low >= 0:
                        return Fraction(0)
                    if not is_sign and (best is None or low * above > best * below):
                        best = Fraction(low * above, below)
                key = frozenset(q.items())
                if key not in met and removed.isdisjoint(variables_of(q)):
                    met.add(key)
                    missing = self._missing(q)
                    if low is not None and not (is_sign and missing[0]):
                        missing = 0, -low * above / below
                    if is_sign:
                        missing = missing[0] + len(removed), missing[1]
                    heappush(waiting, (missing, next(order), above, below, q, removed))
        return None if is_sign else best

    def _order(self, number: int) -> tuple[bool, int]:
        return not self._is_last[number], number

    def _missing(self, p: Polynomial) -> tuple[int, float]:
        """The search's distance from `p` to one that intervals prove: (terms without a bound,
        terms). Only bounds that hold everywhere count, as facts assumed here give tighter ones."""
        terms = ({monomial: coefficient} for monomial, coefficient in p.items())
        return sum(self.interval(term)[0] is None for term in terms), len(p)

    def _steps(self, p: Polynomial, number: int, depth: int) -> Iterator[Step]:
        """Eliminations of variable `number` from `p`: each result is negative wherever `p` is. It
        subtracts from `p` a multiple of a fact, or of the variable's distance to an end of its
        interval."""
        factor: Polynomial = {}  # p = factor * variable + rest
        for monomial, coefficient in p.items():
            if number in monomial:
                factor[less(monomial, number)] = coefficient
        sign = self._sign(factor, depth)
        if sign == 0:
            return
        alone = (number,)
        for fact in self._facts_of(number, sign, ROUNDINGS):
            by = fact.get(alone)
            if by is None or (by > 0) == (sign > 0) or self._is_shared(fact, number):
                yield from self._by_fact(p, factor, sign, number, fact, depth)
        if depth == DEPTH and number in self._divisions and not self.is_hasty:
            for fact in self._rounded_bounds(number, sign):
                yield from self._by_fact(p, factor, sign, number, fact, depth)
        end = self._ends(number)[sign < 0]
        if end is not None:
            # p - factor * (variable - end)
            fact = {(number,): 1, ONE: -end} if end else {(number,): 1}
            yield tightened(combined(p, product(factor, fact), -1), 1)

    @staticmethod
    def _is_shared(fact: Polynomial, number: int) -> bool:
        """Whether a variable occurs in more than one term of `fact`."""
        return sum(number in monomial for monomial in fact) > 1

    def _by_fact(
        self,
        p: Polynomial,
        factor: Polynomial,
        sign: int,
        number: int,
        fact: Polynomial,
        depth: int,
    ) -> Iterator[Step]:
        own: Polynomial = {}
        for monomial, coefficient in fact.items():
            if number in monomial:
                own[less(monomial, number)] = coefficient
        k, by = known_value(factor), known_value(own)
        if by is not None:
            if (by > 0) != (sign > 0):
                return
            if k is not None:
                common = gcd(k, by)
                scale = abs(by) // common
                made = combined(scaled(p, scale), fact, -(abs(k) // common))
                yield tightened(made, scale)
            else:
                multiple = product(factor, constant(1 if by > 0 else -1))
                scale = abs(by)
                yield tightened(combined(scaled(p, scale), product(multiple, fact), -1), scale)
            return
        whole = divided(factor, own)
        if whole is not None and self._sign(whole, depth) > 0:
            yield tightened(combined(p, product(whole, fact), -1), 1)
            return
        # p >= 0 where p * own >= 0 and own >= 1
        wanted = own if sign > 0 else scaled(own, -1)
        least = self.low(wanted)
        if least is not None and least >= 1:
            multiple = factor if sign > 0 else scaled(factor, -1)
            yield combined(product(p, wanted), product(multiple, fact), -1), 1, 1

    def _sign(self, p: Polynomial, depth: int) -> int:
        """1 where `p` is certainly >= 0, -1 where it is certainly <= 0, 0 where neither is
        certain."""
        number = known_value(p)
        if number is not None:
            return 1 if number >= 0 else -1
        low = self.low(p)
        if low is not None and low >= 0:
            return 1
        low = self.low(scaled(p, -1))
        if low is not None and low >= 0:
            return -1
        if depth > 2:
            if self._search(p, FEW, 2):
                return 1
            if self._search(scaled(p, -1), FEW, 2):
                return -1
        return 0

    # Facts of a variable

    def _facts_of(self, number: int, sign: int, roundings: int) -> Iterator[Polynomial]:
        """The facts of a variable. For a quotient, also bounds derived from its numerator, lower
        ones for `sign` > 0, else upper ones."""
        if number in self._divisions and roundings:
            key = number, sign
            if key not in self._roundings:
                self._roundings[key] = list(self._rounded(number, sign, roundings - 1))
            yield from self._roundings[key]
        yield from reversed(self._scoped[number])
        yield from self.variables[number].facts

    def _rounded(self, number: int, sign: int, roundings: int) -> Iterator[Polynomial]:
        """Bounds of a quotient, derived by rounding facts about its numerator."""
        own = (number,)
        for numerator, divisor in self._divisions[number]:
            above = combined(numerator, product({own: 1}, divisor), -1)
            fact = above if sign < 0 else combined(combined(divisor, constant(-1)), above, -1)
            for monomial, factor in fact.items():
                if not monomial or number in monomial:
                    continue
                for other in self._facts_of(monomial[0], -1 if factor > 0 else 1, roundings):
                    made = _without_term(fact, monomial, other)
                    if made is None or own in other:
                        continue
                    for multiple in self._as_multiples(made, divisor):
                        rounded = self._rounded_down(multiple, divisor)
                        if rounded is not None and own in rounded:
                            yield rounded

    def _as_multiples(
        self, p: Polynomial, divisor: Polynomial, replaced: int = REPLACED
    ) -> Iterator[Polynomial]:
        """Variants of `p` in which at most one term is no multiple of `divisor`, made by
        substituting facts; `p` itself if no fact helps."""
        by = known_value(divisor)
        rest = [] if by is None else [m for m, c in p.items() if m and c % by]
        is_any = False
        if by is not None and len(rest) == 1 and replaced:
            (term,) = rest
            for fact, most in self._replacements(term[0]):
                made = _without_term(p, term, fact)
                if made is None or sum(c % by != 0 for m, c in made.items() if m) > most:
                    continue
                is_any = True
                yield from self._as_multiples(made, divisor, replaced - 1)
                if not most:
                    break
        if not is_any:
            yield p

    def _replacements(self, number: int) -> Iterator[tuple[Polynomial, int]]:
        """Facts that may replace a variable, each with the number of non-multiples it may leave: 0
        for a dim, as many quotients are made of dims."""
        for fact in self._uses[number]:
            yield fact, 0 if self._is_last[number] else 1
        for fact in self._scoped[number]:
            if not all(self._is_last[n] for n in variables_of(fact)):
                yield fact, 1

    def _rounded_down(self, p: Polynomial, divisor: Polynomial) -> Polynomial | None:
        """A smaller polynomial q such that p >= 0 implies q >= 0, by division by a divisor >= 1
        with rounding; None where that gains nothing."""
        by = known_value(divisor)
        if by is not None:
            whole = {m: c // by for m, c in p.items() if m and c % by == 0}
            rest = {m: c for m, c in p.items() if m and c % by}
            low = self.low(scaled(rest, -1))
            if low is None:
                rounded, _, _ = tightened(p, 1)
                return None if rounded is p else rounded
            return combined(whole, constant((p.get(ONE, 0) - low) // by))
        quotient, rest = long_division(p, divisor)
        low = self.low(scaled(rest, -1))
        if low is None or not quotient:
            return None
        # divisor * quotient >= low
        if low >= 1:
            return combined(quotient, constant(-1))
        room = self.low(divisor)
        return quotient if room is not None and low > -room else None

    def _rounded_bounds(self, number: int, sign: int) -> Iterator[Polynomial]:
        """Bounds of a quotient, derived from the best constant bound of its numerator, as
        `_rounded` gives them.
        """
        for numerator, divisor in self._divisions[number]:
            by = known_value(divisor)
            upwards = scaled(numerator, sign)
            guess = None if by is None else self._best_low(upwards, FEW, DEPTH - 1)
            if guess is None or by is None:
                continue
            end = floor(guess / by) if sign > 0 else ceil(guess / by)
            # sign * quotient >= end
            least = end * by if sign > 0 else end * by - (by - 1)
            if self._search(combined(upwards, constant(-least)), FEW, DEPTH - 1):
                yield {(number,): sign, ONE: -end} if end else {(number,): sign}

    # Intervals by definitions

    def _ends(self, number: int, depth: int = NESTED) -> Interval:
        """The interval of a variable under the current assumptions, computed from its
        definition."""
        low, high = self._lows[number], self._highs[number]
        choice = self.variables[number].choice
        if not depth:
            return low, high
        if choice is not None:
            spans = [self._span(value, depth - 1) for value, _ in choice.ways]
            return (
                _least([low], [least for least, _ in spans], 1),
                _least([high], [most for _, most in spans], -1),
            )
        if number in self._divisions:
            numerator, divisor = self._divisions[number][0]
            least, most = self._span(numerator, depth - 1)
            by, room = known_value(divisor), self.low(divisor)
            if by is not None:
                least, most = (None if end is None else end // by for end in (least, most))
            else:
                is_natural = least is not None and least >= 0
                least = 0 if is_natural else None
                most = most // max(room or 1, 1) if is_natural and most is not None else None
            low = least if low is None or (least is not None and least > low) else low
            high = most if high is None or (most is not None and most < high) else high
        return low, high

    def _span(self, p: Polynomial, depth: int) -> Interval:
        low: int | None = 0
        high: int | None = 0
        for monomial, coefficient in p.items():
            ends: Interval = 1, 1
            for number in monomial:
                ends = interval_product(ends, self._ends(number, depth))
            least, most = ends
            if coefficient < 0:
                least, most = most, least
            low = None if low is None or least is None else low + coefficient * least
            high = None if high is None or most is None else high + coefficient * most
        return low, high


def _without_term(p: Polynomial, term: Monomial, fact: Polynomial) -> Polynomial | None:
    """Eliminates the monomial `term` from `p` with a multiple of `fact`: the result is non-negative
    wherever both are. None where the term has the same sign in both.
    """
    factor, by = p[term], fact.get(term)
    if by is None or (by > 0) == (factor > 0):
        return None
    common = gcd(by, factor)
    return combined(scaled(p, abs(by) // common), fact, abs(factor) // common)


def _least(known: Sequence[int | None], ends: Sequence[int | None], sign: int) -> int | None:
    """The tightest lower end (upper end for `sign` < 0), given bounds `known` to hold and
    alternative `ends`, one of which holds."""
    if all(end is not None for end in ends):
        worst = min((end * sign for end in ends if end is not None), default=None)
        known = [*known, None if worst is None else worst * sign]
    found = [end * sign for end in known if end is not None]
    return max(found) * sign if found else None
