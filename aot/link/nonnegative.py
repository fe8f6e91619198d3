"""Proves that dims are never negative, given what a program has checked.

Bounds of symbols decide most; else facts are subtracted, each a dim that is known to be at least 0,
until bounds decide what is left. Incomplete: "no" means that no such proof of a few steps exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import gcd

from aot.ir import dims
from aot.ir.dims import Atom, Dim, DimExpr, Extremum, FloorDiv, Interval, Symbol

ROUNDS = 4  # of facts about symbols that other facts bound
MOST_STEPS = 4
MOST_TRIES = 400  # dims looked at in one proof


def bounds_from(facts: Sequence[Dim], known: Mapping[str, Interval]) -> dict[str, Interval]:
    """Bounds of symbols, narrowed by facts (dims that are at least 0) that have a symbol as a
    term."""
    found = dict(known)
    terms = [
        (monomial[0].name, factor, DimExpr(((monomial, factor),), 0), fact)
        for fact in facts
        if isinstance(fact, DimExpr)
        for monomial, factor in fact.terms
        if len(monomial) == 1 and isinstance(monomial[0], Symbol)
    ]
    for _ in range(ROUNDS):
        before = dict(found)
        for name, factor, term, fact in terms:
            # factor * name + rest >= 0
            _, rest = dims.bounds(dims.add(fact, dims.multiply(term, -1)), found)
            if rest is None:
                continue
            low, high = found.get(name, (0, None))
            if factor > 0:
                least = -(rest // factor)
                low = least if low is None else max(low, least)
            else:
                most = rest // -factor
                high = most if high is None else min(high, most)
            found[name] = low, high
        if found == before:
            break
    return found


class Assumptions:
    """The premises of proofs: dims that are at least 0, and bounds of symbols.

    Args:
        facts: dims, each at least 0.
        bounds: of symbols, by name; of one without an entry nothing is known.
    """

    def __init__(self, facts: Iterable[Dim], bounds: Mapping[str, Interval]) -> None:
        self.facts = [f for f in facts if isinstance(f, DimExpr)]
        self.facts += [f for fact in self.facts for f in (*_only_cases(fact), *_weaker(fact))]
        self.bounds = bounds

    def with_facts(self, more: Sequence[Dim]) -> Assumptions:
        """These assumptions with more dims that are at least 0, which proofs try first."""
        if not more:
            return self
        both = Assumptions(more, bounds_from(more, self.bounds))
        both.facts += self.facts
        return both


def is_nonnegative(dim: Dim, assumptions: Assumptions) -> bool:
    """Whether `dim >= 0` follows from the assumptions."""
    if isinstance(dim, int):
        return dim >= 0
    return any(_Proof(assumptions).holds(dim, steps) for steps in range(MOST_STEPS + 1))


class _Proof:
    def __init__(self, assumptions: Assumptions) -> None:
        self.facts, self.known = assumptions.facts, assumptions.bounds
        self.tried: dict[Dim, int] = {}  # with how many steps
        self.proved: set[Dim] = set()

    def holds(self, dim: Dim, steps: int) -> bool:
        low, _ = dims.bounds(dim, self.known)
        if (low is not None and low >= 0) or dim in self.proved:
            return True
        if isinstance(dim, int) or self.tried.get(dim, -1) >= steps:
            return False
        self.tried[dim] = steps
        if steps == 0 or len(self.tried) > MOST_TRIES:
            return False
        is_proved = any(self.holds(part, steps - 1) for part in self._less(dim)) or any(
            all(self.holds(case, steps - 1) for case in cases) for cases in _cases(dim)
        )
        if is_proved:
            self.proved.add(dim)
        return is_proved

    def _less(self, dim: DimExpr) -> Iterator[Dim]:
        """Dims whose non-negativity implies that of `dim`: `dim` minus a fact times a factor of at
        least 0."""
        needed = [(m, -c) for m, c in dim.terms if c < 0]
        needed += [((), -dim.constant)] if dim.constant < 0 else []
        facts = [*self.facts, *self._facts_of_atoms(dim)]
        for monomial, missing in needed:
            for fact in facts:
                terms = [(m, -c) for m, c in fact.terms if c < 0]
                terms += [((), -fact.constant)] if fact.constant < 0 else []
                for inner, taken in terms:
                    rest = dims.monomial_quotient(monomial, inner)
                    if rest is None:
                        continue
                    factor = DimExpr(((rest, 1),), 0) if rest else 1
                    low, _ = dims.bounds(factor, self.known)
                    if low is not None and low >= 0:
                        common = gcd(missing, taken)
                        part = dims.multiply(dims.multiply(fact, factor), -(missing // common))
                        yield dims.add(dims.multiply(dim, taken // common), part)

    def _facts_of_atoms(self, dim: DimExpr) -> Iterator[DimExpr]:
        found = dict.fromkeys(a for m, _ in dim.terms for a in m if not isinstance(a, Symbol))
        for atom in found:
            value = DimExpr((((atom,), 1),), 0)
            if isinstance(atom, Extremum):
                sign = 1 if atom.is_max else -1
                made = [dims.multiply(dims.add(value, -1 * arg), sign) for arg in atom.args]
            else:
                made = list(self._facts_of_quotient(atom, value, found))
            yield from (fact for fact in made if isinstance(fact, DimExpr))

    def _facts_of_quotient(
        self, atom: FloorDiv, value: DimExpr, others: Iterable[Atom]
    ) -> Iterator[Dim]:
        below, _ = dims.bounds(atom.denominator, self.known)
        if below is None or below < 1:
            return
        product = dims.multiply(value, atom.denominator)
        rest = dims.add(atom.numerator, dims.multiply(product, -1))
        yield rest
        yield dims.add(dims.add(atom.denominator, -1), dims.multiply(rest, -1))
        for other in others:
            if isinstance(other, FloorDiv) and other.denominator == atom.denominator != 0:
                distance = dims.add(other.numerator, dims.multiply(atom.numerator, -1))
                if other != atom and self.holds(distance, 1):
                    yield dims.add(DimExpr((((other,), 1),), 0), dims.multiply(value, -1))


def _only_cases(fact: DimExpr) -> Iterator[DimExpr]:
    """For each extremum of which one argument alone is possible, the fact with that argument:
    `max(a, 0) >= 1` implies that a is at least 1."""
    for cases in _cases(fact):
        left = [case for case in cases if not isinstance(case, int) or case >= 0]
        if len(left) == 1 and isinstance(left[0], DimExpr):
            yield left[0]


def _weaker(fact: DimExpr) -> Iterator[DimExpr]:
    """For each extremum that bounds a fact from one side, the fact with each argument in its place:
    `min(a, b) >= n` implies that a is at least n."""
    for monomial, coefficient in fact.terms:
        atom = monomial[0]
        if len(monomial) == 1 and isinstance(atom, Extremum) and atom.is_max == (coefficient < 0):
            for arg in atom.args:
                made = replaced(fact, atom, arg)
                if isinstance(made, DimExpr):
                    yield made


def _cases(dim: DimExpr) -> Iterator[list[Dim]]:
    """For each extremum, the dims with one of its arguments in its place; one of them equals
    `dim`."""
    for atom in dict.fromkeys(a for m, _ in dim.terms for a in m if isinstance(a, Extremum)):
        yield [replaced(dim, atom, arg) for arg in atom.args]


def replaced(dim: Dim, wanted: Atom, by: Dim) -> Dim:
    """The dim with `by` in place of the atom `wanted`, except inside other atoms."""
    if isinstance(dim, int):
        return dim
    total: Dim = dim.constant
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for atom in monomial:
            term = dims.multiply(term, by if atom == wanted else DimExpr((((atom,), 1),), 0))
        total = dims.add(total, term)
    return total
