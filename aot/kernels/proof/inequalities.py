"""Proves integer inequalities between polynomials: by intervals, facts, certificates and case
splits.

Owns the ways and their order, how much work each may take, and the division into cases: of a
variable that is one of several values, and of facts of which one holds. Knows nothing of kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aot.ir.dims import monomial_quotient
from aot.kernels.proof.certificates import has_certificate
from aot.kernels.proof.definitions import Definitions
from aot.kernels.proof.elimination import FEW, ROUNDINGS
from aot.kernels.proof.facts import Choice
from aot.kernels.proof.polynomials import (
    ONE,
    Monomial,
    Polynomial,
    combined,
    constant,
    product,
    scaled,
    substituted,
    variables_of,
)
from aot.kernels.proof.strides import Index, indices_of, unfolded

STEPS = 1000  # of a search for one proof
AS_STEPS = 25  # what a certificate counts
MOST_STEPS = 20_000  # of all proofs of a kernel
FEW_STEPS = 60  # of a search that is not dear
SOME_STEPS = 300  # of one for all cases
MANY = 100  # steps of a last search
SPLITS = 5  # of a proof by cases, one inside another
REACHES = 1, 2, 3  # facts of facts, for a certificate
COLUMNS = 300  # facts that a certificate is made of, at most


class Inequalities(Definitions):
    """The variables and facts of a proof, with procedures that prove inequalities from them.

    Attributes:
        allowance: how many times the usual steps all proofs together may take.
    """

    allowance = 1

    @property
    def is_exhausted(self) -> bool:
        """Whether the budget of search steps is spent."""
        return self.steps >= MOST_STEPS * self.allowance

    def proves(self, goal: Polynomial, *, is_thorough: bool = True) -> str | None:
        """The method that proves `goal >= 0`: "intervals", "facts", a "certificate" or "cases";
        None where no proof was found. Expensive methods come last, and only if `is_thorough`."""
        low = self.low(goal)
        if low is not None and low >= 0:
            return "intervals"
        if self.is_exhausted:
            return None
        self._left = FEW_STEPS
        goal = self._without_wraps(goal)
        ways = [
            ("facts", self._by_few_facts, FEW_STEPS, False),
            ("cases", self._by_cases, SOME_STEPS, False),
            ("certificate", self._by_certificate, STEPS, True),
            ("cases", self._by_cases, STEPS, True),
            ("facts", self._by_many_facts, STEPS, True),
        ]
        if self._disjunctions:  # which a certificate does not know
            ways[2], ways[3] = ways[3], ways[2]
        for how, way, steps, is_dear in ways:
            if is_dear and not is_thorough:
                return None
            self._is_thorough = is_dear
            self._left = steps
            is_proved = way(goal)
            self.steps += steps - self._left
            if is_proved:
                return how
        return None

    def proves_inside(self, address: Polynomial, size: Polynomial, count: int) -> bool:
        """Whether `count` elements from an address are proved to lie in a memory of `size`
        elements, by recovering the indices of a row-major layout."""
        if self.is_exhausted or not variables_of(size):
            return False
        count -= size.get(ONE, 0)
        size = {monomial: c for monomial, c in size.items() if monomial}
        return any(
            self._are_inside(indices, count)
            for written in unfolded(address, size, self.divisions())
            for indices in indices_of(written, size)
        )

    def proves_range(self, address: Polynomial, size: Polynomial, count: int) -> bool:
        """Whether `count` elements from `address` certainly lie within `size` elements, by cheap
        means only.
        """
        room = combined(combined(size, constant(-count)), address, -1)
        return self._is_quick(address) and self._is_quick(room)

    def as_written(self, address: Polynomial) -> Polynomial:
        """An address as if index arithmetic never wrapped.

        The two differ by a multiple of what an index counts, and no memory has as many elements:
        where the one is proved to be inside a memory, at both ends, it is the other.
        """
        for number in sorted(variables_of(address), reverse=True):
            variable = self.variables[number]
            if variable.is_index and variable.unwrapped is not None:
                value = self.as_written(variable.unwrapped)
                address = substituted(address, number, value)
        return address

    def _are_inside(self, indices: Sequence[Index], count: int) -> bool:
        """Whether each index is below its extent, and the last one leaves room for `count`
        elements."""
        counts = [1] * (len(indices) - 1) + [count]
        strides = [self.low(index.stride) for index in indices]
        return all(low is not None and low >= 0 for low in strides) and all(
            self._is_quick(index.value)
            and self._is_quick(combined(combined(index.extent, index.value, -1), constant(-n)))
            for index, n in zip(indices, counts, strict=True)
        )

    def _is_quick(self, goal: Polynomial) -> bool:
        """Whether cheap methods prove a goal."""
        return self.proves(goal, is_thorough=False) is not None

    def needed_by(self, goal: Polynomial) -> set[int]:
        """The variables that a proof of `goal` may depend on."""
        found: set[int] = set()
        pending = self._reachable(variables_of(goal))
        while pending:
            found |= pending
            made_of = set().union(*map(self._made_of, pending))
            pending = self._reachable(made_of) - found
        return found

    def _made_of(self, number: int) -> set[int]:
        """The variables in a variable's alternative and unwrapped values."""
        variable = self.variables[number]
        ways = variable.choice.ways if variable.choice is not None else ()
        values = [variable.unwrapped or {}, *(p for value, facts in ways for p in (value, *facts))]
        return set().union(*map(variables_of, values))

    def _by_few_facts(self, goal: Polynomial) -> bool:
        return self._search(goal, FEW)

    def _by_many_facts(self, goal: Polynomial) -> bool:
        return self._search(goal, MANY)

    # Certificates

    def _by_certificate(self, goal: Polynomial) -> bool:
        return any(self._has_certificate(goal, reach) for reach in REACHES)

    def _has_certificate(self, goal: Polynomial, reach: int) -> bool:
        if self._left <= 0:
            return False
        self._left -= AS_STEPS
        return has_certificate(goal, self._around(goal, reach))

    def _around(self, goal: Polynomial, reach: int) -> list[Polynomial]:
        """The facts that a certificate of `goal` may need, up to `reach` steps from its variables.
        They are multiplied by monomials so that their terms match the goal's.
        """
        found: dict[frozenset[tuple[Monomial, int]], Polynomial] = {}
        met: dict[Monomial, None] = {}
        fresh = [m for m in goal if m]
        for _ in range(reach):
            met.update(dict.fromkeys(fresh))
            added: dict[Monomial, None] = {}
            for number in sorted({n for m in fresh for n in m}, reverse=True):
                for fact in self._bounds_of(number):
                    for by in self._multipliers(fact, number, fresh):
                        for made in self._multiples(fact, by):
                            key = frozenset(made.items())
                            if key not in found and len(found) < COLUMNS:
                                found[key] = made
                                added.update(dict.fromkeys(m for m in made if m and m not in met))
            fresh = list(added)
        return list(found.values())

    def _multiples(self, fact: Polynomial, by: Monomial) -> list[Polynomial]:
        """A fact times a monomial. For a variable v with v >= n, the products with v - n and with
        1, which together imply more."""
        found = [fact]
        for number in by:
            low, _ = self._ends(number)
            above = [
                product(f, {(number,): 1, ONE: -low} if low else {(number,): 1}) for f in found
            ]
            found = [*found, *above] if low else above
        return found

    def _multipliers(
        self, fact: Polynomial, number: int, monomials: Sequence[Monomial]
    ) -> dict[Monomial, None]:
        """Non-negative monomials whose product with a fact, in a term with variable `number`, is
        one of `monomials`.
        """
        found: dict[Monomial, None] = {ONE: None}
        for term in fact:
            if number in term:
                quotients = (monomial_quotient(monomial, term) for monomial in monomials)
                found.update(dict.fromkeys(by for by in quotients if by is not None))
        return {by: None for by in found if all(map(self._is_natural, by))}

    def _is_natural(self, number: int) -> bool:
        low, _ = self._ends(number)
        return low is not None and low >= 0

    def _bounds_of(self, number: int) -> Iterator[Polynomial]:
        """All facts of a variable, including the ends of its interval."""
        low, high = self._ends(number)
        if low is not None:
            yield {(number,): 1, ONE: -low} if low else {(number,): 1}
        if high is not None:
            yield {(number,): -1, ONE: high} if high else {(number,): -1}
        yield from self._facts_of(number, 1, ROUNDINGS)
        if number in self._divisions:
            yield from self._rounded(number, -1, ROUNDINGS - 1)

    # Cases

    def _by_cases(self, goal: Polynomial) -> bool:
        is_one_enough = bool(self._disjunctions) and not self._is_thorough
        if is_one_enough and self._any_by_cases([goal], 1):
            return True
        return self._any_by_cases([goal], SPLITS)

    def _any_by_cases(self, goals: Sequence[Polynomial], splits: int) -> bool:
        """Proves one of `goals` in every case of one variable's alternatives or of a
        disjunction."""
        if self._left <= 0:
            return False
        goals = [self._without_wraps(goal) for goal in goals]
        if any(self._search(goal, FEW) for goal in goals):
            return True
        own = set().union(*map(variables_of, goals))
        is_whole = not any(self._needs_cases(goals[0], n) for n in variables_of(goals[0]))
        reaches = REACHES[:2] if self._is_thorough and splits < SPLITS and is_whole else ()
        if any(self._has_certificate(goals[0], reach) for reach in reaches):
            return True
        if not splits:
            return False
        for number in sorted(own, key=lambda n: (not self._needs_cases(goals[0], n), -n)):
            choice = self.variables[number].choice
            if choice is not None and self._holds_for(number, choice, goals, splits):
                return True
        for at, ways in enumerate(self._disjunctions):
            others = self._disjunctions
            self._disjunctions = others[:at] + others[at + 1 :]
            held = all(self._holds_under(goals, facts, splits) for facts in ways)
            self._disjunctions = others
            if held:
                return True
        is_last_try = self._is_thorough and splits == SPLITS
        for number in sorted(self._reachable(own) - own, reverse=True) if is_last_try else ():
            choice = self.variables[number].choice
            if choice is not None and self._holds_where(number, choice, goals, splits):
                return True
        return False

    def _needs_cases(self, goal: Polynomial, number: int) -> bool:
        """Whether the facts do not bound a variable in the direction that matters to `goal`, so
        that only a case split helps."""
        choice = self.variables[number].choice
        signs = {c > 0 for m, c in goal.items() if number in m}
        return choice is not None and (not choice.sign or signs != {choice.sign > 0})

    def _without_wraps(self, p: Polynomial) -> Polynomial:
        """`p` with each variable replaced by its unwrapped value, where it is proved not to
        wrap."""
        for number in sorted(variables_of(p), reverse=True):
            variable = self.variables[number]
            if variable.unwrapped is None or variable.low is None or variable.high is None:
                continue
            value = self._without_wraps(variable.unwrapped)
            above = combined(value, constant(-variable.low))
            below = combined(constant(variable.high), value, -1)
            limits = self.limits if variable.is_index else ()
            ends = (below, *(combined(limit, value, -1) for limit in limits))
            if self._search(above, FEW) and any(self._search(end, FEW) for end in ends):
                p = substituted(p, number, value)
        return p

    def _reachable(self, numbers: set[int]) -> set[int]:
        """The variables connected to `numbers` through facts, directly or indirectly."""
        found: set[int] = set()
        pending = set(numbers)
        while pending:
            number = pending.pop()
            if number not in found:
                found.add(number)
                for fact in (*self.variables[number].facts, *self._scoped[number]):
                    pending |= variables_of(fact)
        return found

    def _holds_for(
        self, number: int, choice: Choice, goals: Sequence[Polynomial], splits: int
    ) -> bool:
        """Proves one of `goals` for each alternative value of a variable, substituted in the
        goals."""
        own = [*self._scoped[number], *self.variables[number].facts]
        for value, facts in choice.ways:
            left = [substituted(goal, number, value) for goal in goals]
            also = [substituted(fact, number, value) for fact in own]
            if not self._holds_under(left, facts, splits, also):
                return False
        return True

    def _holds_where(
        self, number: int, choice: Choice, goals: Sequence[Polynomial], splits: int
    ) -> bool:
        """Proves one of `goals` for each alternative value of a variable that occurs in facts
        only."""
        variable = self.variables[number]
        variable.choice = None
        try:
            for value, facts in choice.ways:
                same = combined({(number,): 1}, value, -1)
                if not self._holds_under(goals, facts, splits, (same, scaled(same, -1))):
                    return False
        finally:
            variable.choice = choice
        return True

    def _holds_under(
        self,
        goals: Sequence[Polynomial],
        facts: Sequence[Polynomial],
        splits: int,
        also: Sequence[Polynomial] = (),
    ) -> bool:
        """Proves one of `goals` in one case: under the case's facts, and `also` others that they
        imply."""
        mark = self.mark()
        self.assume(*facts, *also)
        if self.is_absurd(facts):
            self.leave(mark)
            return True
        # or the case is not there
        absurd = [combined(constant(-1), fact, -1) for fact in facts]
        proved = self._any_by_cases([*goals, *absurd], splits - 1)
        self.leave(mark)
        return proved
