"""The variables of a proof, and the facts known about them.

Owns both: a variable has an interval and facts that hold wherever it is in scope; more facts come
and go as a kernel's guards do, and narrow intervals while they hold. A fact is a polynomial that is
not negative. Proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from math import gcd

from aot.base.records import dataclass
from aot.ir.dims import Interval, interval_product
from aot.kernels.proof.polynomials import (
    Monomial,
    Polynomial,
    combined,
    constant,
    known_value,
    less,
    product,
    scaled,
    substituted,
    variables_of,
)

Terms = frozenset[tuple[Monomial, int]]
"""A polynomial as a key."""
DivisionKey = tuple[Terms, Terms | int]
"""What is divided, and by what."""
Step = tuple[Polynomial, int, int]
"""What is left of a polynomial, and how much of that there is in one of it, as a fraction."""

NARROWED = 50  # facts that narrow intervals, from one that is new


@dataclass(frozen=True)
class Choice:
    """The alternative definitions of a variable: the value in each case, and the facts that hold in
    it.

    Attributes:
        sign: 1 for a maximum, -1 for a minimum, of which facts say one end without cases; else 0.
    """

    ways: tuple[tuple[Polynomial, tuple[Polynomial, ...]], ...]
    sign: int = 0


@dataclass(eq=False)
class Variable:
    """A variable of a proof.

    Attributes:
        low, high: its interval, wherever it is in scope.
        facts: polynomials that are not negative, wherever it is in scope.
        choice: where it is one of several.
        unwrapped: what it is wherever that is within its interval.
        is_index: whether it is as wide as an index, so that no memory's size is more.
    """

    name: str
    low: int | None = None
    high: int | None = None
    facts: list[Polynomial] = field(default_factory=list)
    choice: Choice | None = None
    unwrapped: Polynomial | None = None
    is_index: bool = False


class Facts:
    """The variables of a proof, with the facts that hold at the current point."""

    def __init__(self) -> None:
        self.variables: list[Variable] = []
        self.limits: list[Polynomial] = []  # how many elements memories have, which indices count
        self.sums: dict[int, Polynomial] = {}  # what the variables of `sum_of` are
        self.steps = 0  # of all searches
        self.epoch = 0  # changes whenever bounds that held are forgotten
        self.local_uses = 0  # of bounds that hold here alone, by what was made of them
        self._is_last: list[bool] = []  # of each variable, whether it is made of dims alone
        self._data: list[tuple[bool, bool]] = []
        self._lows: list[int | None] = []  # of each variable, here
        self._highs: list[int | None] = []
        self._uses: list[list[Polynomial]] = []  # of each variable, facts that define others
        self._scoped: list[list[Polynomial]] = []  # of each variable, the facts that hold here
        self._trail: list[Polynomial] = []
        self._registered: set[frozenset[tuple[Monomial, int]]] = (
            set()
        )  # as the trail, for looking up
        self._narrowed: list[tuple[int, int | None, int | None, int]] = []
        # of quotients that are ones here alone: since how many facts, and their keys
        self._local: list[tuple[int, DivisionKey]] = []
        self._disjunctions: list[tuple[tuple[Polynomial, ...], ...]] = []
        self._quotients: dict[DivisionKey, tuple[Polynomial, Polynomial]] = {}
        self._extrema: dict[object, Polynomial] = {}
        # of each quotient, numerators and divisors that it is one of; with no quotient inside last
        self._divisions: dict[int, list[tuple[Polynomial, Polynomial]]] = {}
        self._roundings: dict[tuple[int, int], list[Polynomial]] = {}  # of quotients, here
        self.is_hasty = False  # whether searches leave out what is dear
        self._left = 0
        self._is_thorough = True

    def variable(
        self,
        name: str,
        low: int | None = None,
        high: int | None = None,
        choice: Choice | None = None,
        of: Sequence[Polynomial] | None = None,
        data: tuple[bool, bool] = (False, False),
    ) -> Polynomial:
        """A new variable, as a polynomial.

        Args:
            of: what it is defined by; nothing for a dim's symbol. Variables that are defined by
                symbols alone are removed from goals last.
            data: whether its lower and its upper end come from data, which no dim bounds.
        """
        self.variables.append(Variable(name, low, high, [], choice))
        self._scoped.append([])
        self._uses.append([])
        self._lows.append(low)
        self._highs.append(high)
        is_last = of is not None and all(self._is_last[n] for p in of for n in variables_of(p))
        self._is_last.append(is_last)
        self._data.append(data)
        return {(len(self.variables) - 1,): 1}

    def of(self, p: Polynomial) -> Variable:
        """The Variable whose polynomial, from `variable`, is `p`."""
        (((number,), _),) = p.items()
        return self.variables[number]

    def sum_of(self, p: Polynomial, name: str) -> Polynomial:
        """A variable defined as the sum `p`, so that products with it have few terms. Searches
        expand it."""
        made = self.variable(name, *self.interval(p), of=[p])
        (monomial,) = made
        apart = combined(made, p, -1)
        self.define(made, apart, scaled(apart, -1))
        self.sums[monomial[0]] = p
        return made

    def expanded(self, p: Polynomial) -> Polynomial:
        """`p` with each variable of `sum_of` replaced by its sum."""
        if self.sums:
            for number in self.sums.keys() & variables_of(p):
                p = substituted(p, number, self.sums[number])
        return p

    def define(self, p: Polynomial, *facts: Polynomial) -> None:
        """Adds facts that hold wherever the variable `p` is in scope."""
        self.of(p).facts.extend(facts)
        ((own,),) = p
        for fact in facts:
            for number in variables_of(fact) - {own}:
                self._uses[number].append(fact)

    def bound(self, p: Polynomial, fact: Polynomial) -> None:
        """Adds a fact about the variable of `p`, unless it is known, and narrows the variable's
        interval.
        """
        variable = self.of(p)
        if fact in variable.facts:
            return
        variable.facts.append(fact)
        ((monomial, _),) = p.items()
        (number,) = monomial
        is_above, is_below = self.data({m: -c for m, c in fact.items() if m != monomial})
        low_data, high_data = self._data[number]
        if fact[monomial] > 0:
            low_data = low_data and (is_above or is_below)
        else:
            high_data = high_data and (is_above or is_below)
        self._data[number] = low_data, high_data
        _, rest = self.interval({m: c for m, c in fact.items() if m != monomial})
        if fact[monomial] == 1 and rest is not None:
            variable.low = -rest if variable.low is None else max(variable.low, -rest)
        elif fact[monomial] == -1 and rest is not None:
            variable.high = rest if variable.high is None else min(variable.high, rest)
        self._lows[monomial[0]], self._highs[monomial[0]] = variable.low, variable.high

    def interval(self, p: Polynomial) -> Interval:
        """Bounds of `p` that hold wherever its variables are in scope."""
        low: int | None = 0
        high: int | None = 0
        for monomial, coefficient in p.items():
            a, b = self._interval(monomial)
            if coefficient < 0:
                a, b = b, a
            low = None if low is None or a is None else low + coefficient * a
            high = None if high is None or b is None else high + coefficient * b
        return low, high

    def data(self, p: Polynomial) -> tuple[bool, bool]:
        """(lower, upper): whether these ends of `p` depend on data."""
        low = high = False
        for monomial, coefficient in p.items():
            ends = [self._data[number] for number in monomial]
            if len(ends) == 1:
                below, above = ends[0] if coefficient > 0 else ends[0][::-1]
            else:
                below = above = any(map(any, ends))
            low, high = low or below, high or above
        return low, high

    def _interval(self, monomial: Monomial) -> Interval:
        if len(monomial) == 1:
            variable = self.variables[monomial[0]]
            return variable.low, variable.high
        found: Interval = 1, 1
        for number in monomial:
            variable = self.variables[number]
            found = interval_product(found, (variable.low, variable.high))
        return found

    def low(self, p: Polynomial) -> int | None:
        """A lower bound of `p` from its variables' current bounds; None if there is none."""
        total = 0
        lows, highs = self._lows, self._highs
        for monomial, coefficient in p.items():
            if len(monomial) == 1:
                end = (lows if coefficient > 0 else highs)[monomial[0]]
            elif monomial:
                found: Interval = 1, 1
                for number in monomial:
                    found = interval_product(found, (lows[number], highs[number]))
                end = found[coefficient < 0]
            else:
                end = 1
            if end is None:
                return None
            total += coefficient * end
        return total

    def _is_nonnegative(self, p: Polynomial) -> bool:
        """Whether `p` is non-negative by bounds that hold wherever its variables are in scope."""
        low, _ = self.interval(p)
        return low is not None and low >= 0

    # What holds here

    def mark(self) -> tuple[int, int, int]:
        """A marker of the current facts, for `leave`."""
        return len(self._trail), len(self._disjunctions), len(self._narrowed)

    def assume(self, *facts: Polynomial) -> None:
        """Assumes facts until `leave`."""
        pending: list[Polynomial] = []
        for fact in (*facts, *(self.expanded(f) for f in facts if self.sums)):
            fact, _, _ = tightened(fact, 1)
            self._register(fact)
            pending.append(fact)
            for number in variables_of(fact):
                # a bound of a quotient is one of what is divided
                for own in self.variables[number].facts:
                    self._register(own)
        left = NARROWED
        while pending and left:
            left -= 1
            fact = pending.pop()
            more = (
                *self._positive_factors(fact),
                *self._undivided(fact),
                *self._of_common_factor(fact),
            )
            for made in more:
                self._register(made)
                pending.append(made)
            for number in self._narrow(fact):
                pending.extend(self.variables[number].facts)
                if self._lows[number] == self._highs[number]:
                    pending.extend(self._with_number(number))
                if (self._lows[number] or 0) > 0:
                    pending.extend(self._without_factor(number))
                pending.extend(self._only_choice(number))

    def assume_all(
        self,
        facts: Sequence[Polynomial],
        disjunctions: Sequence[tuple[tuple[Polynomial, ...], ...]],
    ) -> bool:
        """Assumes facts, and one alternative of each disjunction; False where that is a
        contradiction."""
        if self.is_contradictory(facts):
            return False
        self.assume(*facts)
        for ways in disjunctions:
            left = [way for way in ways if not self.is_contradictory(way)]
            if not left:
                return False
            if len(left) == 1:
                self.assume(*left[0])
            else:
                self.assume_one_of(tuple(left))
        return True

    def assume_one_of(self, ways: tuple[tuple[Polynomial, ...], ...]) -> None:
        """Assumes a disjunction until `leave`: all the facts of one of `ways` hold."""
        self._disjunctions.append(ways)

    def leave(self, mark: tuple[int, int, int]) -> None:
        """Drops the facts assumed since `mark`."""
        length, disjunctions, narrowed = mark
        self._roundings.clear()
        while len(self._trail) > length:
            fact = self._trail.pop()
            self._registered.remove(frozenset(fact.items()))
            for number in variables_of(fact):
                self._scoped[number].pop()
        del self._disjunctions[disjunctions:]
        if len(self._narrowed) > narrowed:
            while len(self._narrowed) > narrowed:
                number, low, high, _ = self._narrowed.pop()
                self._lows[number], self._highs[number] = low, high
            self.epoch += 1
        if self._local and self._local[-1][0] > length:
            for since, key in self._local:
                if since > length:
                    del self._quotients[key]
            self._local = [item for item in self._local if item[0] <= length]
            self.epoch += 1

    def is_absurd(self, facts: Sequence[Polynomial]) -> bool:
        """Whether the current interval of a variable in `facts` is empty."""
        ends = [(self._lows[n], self._highs[n]) for fact in facts for n in variables_of(fact)]
        return any(low is not None and high is not None and low > high for low, high in ends)

    def is_contradictory(self, facts: Sequence[Polynomial]) -> bool:
        """Whether intervals refute one of `facts`."""
        lows = (self.low(scaled(fact, -1)) for fact in facts)
        return any(low is not None and low > 0 for low in lows)

    def _register(self, fact: Polynomial) -> None:
        key = frozenset(fact.items())
        if key in self._registered:
            return
        self._registered.add(key)
        self._roundings.clear()
        for number in variables_of(fact):
            self._scoped[number].append(fact)
        self._trail.append(fact)

    def _narrow(self, fact: Polynomial) -> Iterator[int]:
        """Narrows the intervals of a fact's variables, and yields the variables whose interval
        changed.
        """
        for monomial, coefficient in fact.items():
            if not monomial:
                continue
            rest = self.low({m: -c for m, c in fact.items() if m != monomial})
            if rest is None:
                continue
            # coefficient * monomial >= rest
            if len(monomial) == 1:
                (number,) = monomial
                low, high = self._lows[number], self._highs[number]
                if coefficient > 0:
                    least = -(-rest // coefficient)
                    low = least if low is None or low < least else low
                else:
                    most = rest // coefficient
                    high = most if high is None or high > most else high
                if (low, high) != (self._lows[number], self._highs[number]):
                    yield self._set(number, low, high)
            elif coefficient > 0 and rest > 0:
                lows = [self._lows[number] for number in monomial]
                if all(low is not None and low >= 0 for low in lows):
                    for number in {n for n, low in zip(monomial, lows, strict=True) if low == 0}:
                        yield self._set(number, 1, self._highs[number])

    def _set(self, number: int, low: int | None, high: int | None) -> int:
        here = len(self._trail)
        self._narrowed.append((number, self._lows[number], self._highs[number], here))
        self._lows[number], self._highs[number] = low, high
        return number

    def _positive_factors(self, fact: Polynomial) -> list[Polynomial]:
        """Each factor of a product that a fact says is positive, minus 1."""
        candidates = {n for monomial in fact if len(monomial) > 1 for n in monomial}
        for number in sorted(candidates):
            low = self._lows[number]
            shared = {less(m, number): c for m, c in fact.items() if number in m}
            if low is None or low < 0 or len(shared) < 2:
                continue
            least = self.low({m: -c for m, c in fact.items() if number not in m})
            if least is not None and least >= 1:
                factors: list[Polynomial] = [shared, {(number,): 1}]
                return [combined(factor, constant(-1)) for factor in factors]
        return []

    def _undivided(self, fact: Polynomial) -> list[Polynomial]:
        """The bound `p >= divisor * r` implied by a fact `q - r >= 0` where q is `p // divisor`.
        Only for products, and where p and r share a variable, as the relation would be lost
        otherwise.
        """
        found: list[Polynomial] = []
        quotients = [m[0] for m, c in fact.items() if len(m) == 1 and c == 1]
        for number in quotients if len(fact) > 2 else ():
            for p, divisor in self._divisions.get(number, ())[:1]:
                rest = combined({(number,): 1}, fact, -1)
                is_shared = not variables_of(p).isdisjoint(variables_of(rest))
                is_number = known_value(divisor) is not None
                if is_number and (is_shared or any(len(m) > 1 for m in p)):
                    found.append(combined(p, product(rest, divisor), -1))
        return found

    def _of_common_factor(self, fact: Polynomial) -> list[Polynomial]:
        """Facts implied by terms with a common factor: `8*x <= 8*n - 1 - y` implies x < n, where y
        >= 0. Only for a fact with a single variable outside the common factor.
        """
        alone = [m for m, c in fact.items() if m and abs(c) == 1]
        if len(alone) != 1 or len(alone[0]) != 1 or len(fact) < 3:
            return []
        (monomial,) = alone
        common = gcd(*(c for m, c in fact.items() if m and m != monomial))
        low, high = self._lows[monomial[0]], self._highs[monomial[0]]
        end = high if fact[monomial] > 0 else low
        if common < 2 or end is None:
            return []
        rest = {m: c for m, c in fact.items() if m != monomial}
        return [tightened(combined(rest, constant(fact[monomial] * end)), 1)[0]]

    def _only_choice(self, number: int) -> list[Polynomial]:
        """Facts that equate a variable with its only possible alternative, if just one remains."""
        choice = self.variables[number].choice
        low, high = self._lows[number], self._highs[number]
        left = []
        for value, _ in choice.ways if choice is not None else ():
            least, most = self.low(value), self.low(scaled(value, -1))
            is_below = most is not None and low is not None and -most < low
            is_above = least is not None and high is not None and least > high
            if not is_below and not is_above:
                left.append(value)
        if choice is None or len(left) != 1 or len(left) == len(choice.ways):
            return []
        same = combined({(number,): 1}, left[0], -1)
        made = [same, scaled(same, -1)]
        for fact in made:
            self._register(fact)
        return made

    def _with_number(self, number: int) -> list[Polynomial]:
        """Facts with a variable in a product, after substituting the variable's known value."""
        value = constant(self._lows[number] or 0)
        found = [f for f in self._scoped[number] if any(number in m and len(m) > 1 for m in f)]
        made = [substituted(fact, number, value) for fact in found]
        for fact in made:
            self._register(fact)
        return made

    def _without_factor(self, number: int) -> list[Polynomial]:
        """Facts divided by a variable that is positive here and a factor of every term: `n*h == h`
        gives n = 1."""
        found = [f for f in self._scoped[number] if all(number in m for m in f)]
        made = [{less(m, number): c for m, c in fact.items()} for fact in found]
        made = [fact for fact in made if variables_of(fact)]
        for fact in made:
            self._register(fact)
        return made

    # Text

    def text(self, p: Polynomial) -> str:
        """`p` as text for error messages and reports."""
        parts = []
        for monomial, coefficient in sorted(p.items(), key=lambda item: (-len(item[0]), item[0])):
            factors = [self.variables[n].name for n in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+"
            parts.append(f"{sign} {'*'.join(factors)}")
        return " ".join(parts).removeprefix("+ ") or "0"


def tightened(p: Polynomial, scale: int) -> Step:
    """For an integer x with `scale * x >= p`: a polynomial q with smaller coefficients such that `q
    >= 0` implies `x >= 0`, and the ratio of x to q."""
    if scale > 1:
        p = combined(p, constant(scale - 1))
    common = gcd(*(c for m, c in p.items() if m))
    if common > 1:
        p = {m: c // common for m, c in p.items() if c // common}
    return p, common or 1, scale
