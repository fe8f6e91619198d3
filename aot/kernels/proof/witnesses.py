"""Finds candidate iterations in which a store writes a given element; callers verify them.

Owns the solution of linear equations in the numbers of loops: digits of a mixed radix, quotients
and remainders taken apart, each argument of a minimum. Whatever it finds has to be checked by
putting it in: nothing depends on it being right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import field

from aot.base.records import dataclass
from aot.kernels.proof.accesses import Comparisons
from aot.kernels.proof.facts import Choice
from aot.kernels.proof.polynomials import (
    ONE,
    Polynomial,
    combined,
    constant,
    divided,
    known_value,
    less,
    long_division,
    product,
    scaled,
    substituted,
    variables_of,
)
from aot.kernels.proof.strides import Division

MOST_TAKEN_APART = 12  # variables of one system


def longest_first(strides: Iterable[Polynomial]) -> list[Polynomial]:
    """The non-zero strides, largest first."""
    return sorted((s for s in strides if s), key=_size, reverse=True)


def chain_of(strides: Iterable[Polynomial]) -> Iterator[Polynomial]:
    """A chain of strides, longest first, each of which divides its predecessor."""
    above: Polynomial | None = None
    for stride in longest_first(strides):
        if above is None or divided(above, stride) is not None:
            yield stride
            above = stride


Solution = dict[int, Polynomial]


def plain(space: Comparisons, p: Polynomial) -> Polynomial:
    """`p` with remainders expanded to `a - n * (a // n)`, so that an index that was split and
    recombined cancels.
    """
    for division in space.divisions():
        ((remainder,),) = division.remainder
        if remainder in variables_of(p):
            whole = product(division.divisor, division.quotient)
            p = substituted(p, remainder, combined(division.numerator, whole, -1))
    return p


@dataclass
class Unknowns:
    """The unknown loop variables of a store in a search for a witness, and the choices to try.

    Attributes:
        extents: of each loop's variable that is looked for.
        is_last: whether those that no equation says are the last iteration's, else the first's.
        is_clamped: whether quotients are held below their loops' extents.
        is_offset: whether dims are offsets inside the first digit.
        is_whole: whether a leading digit is what is a multiple of its stride as it is written.
    """

    space: Comparisons
    extents: Mapping[int, Polynomial]
    is_last: bool = False
    is_clamped: bool = False
    is_whole: bool = True
    is_offset: bool = True
    _is_first: bool = True
    _divisions: dict[int, Division] = field(default_factory=dict)
    _depends: dict[int, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for division in self.space.divisions():
            for part in (division.quotient, division.remainder):
                ((number,),) = part
                self._divisions[number] = division

    def depends(self, number: int) -> bool:
        """Whether a variable depends on unknowns."""
        if number not in self._depends:
            self._depends[number] = False
            made_of: set[int] = set()
            variable = self.space.variables[number]
            if number in self._divisions:
                made_of |= variables_of(self._divisions[number].numerator)
                made_of |= variables_of(self._divisions[number].divisor)
            if variable.choice is not None:
                made_of = made_of.union(*(variables_of(p) for p, _ in variable.choice.ways))
            if variable.unwrapped is not None:
                made_of |= variables_of(variable.unwrapped)
            if number in self.space.sums:
                made_of |= variables_of(self.space.sums[number])
            self._depends[number] = number in self.extents or any(map(self.depends, made_of))
        return self._depends[number]

    def solutions(self, equations: list[Polynomial]) -> Iterator[Solution]:
        """Candidate values of all loop variables that may solve the equations (polynomials equal to
        0)."""
        pseudo: dict[int, Polynomial | None] = {}
        yield from self._taken_apart(equations, pseudo, 0)

    def _taken_apart(
        self, equations: list[Polynomial], pseudo: dict[int, Polynomial | None], count: int
    ) -> Iterator[Solution]:
        """Makes quotients and remainders unknowns of their own; `pseudo` has their extents."""
        while count <= MOST_TAKEN_APART:
            count += 1
            made = {
                n
                for p in equations
                for n in variables_of(p)
                if n not in self.extents and n not in pseudo and self.depends(n)
            }
            if not made:
                yield from self._solved(equations, pseudo)
                return
            number = max(made)
            variable = self.space.variables[number]
            if number in self._divisions:
                division = self._divisions[number]
                if any(map(self.depends, variables_of(division.divisor))):
                    return
                ((quotient,),), ((remainder,),) = division.quotient, division.remainder
                pseudo = {**pseudo, quotient: None, remainder: division.divisor}
                whole = combined(product(division.divisor, division.quotient), division.remainder)
                equations = [*equations, combined(division.numerator, whole, -1)]
            elif variable.choice is not None:
                yield from self._chosen(equations, pseudo, count, number, variable.choice)
                return
            elif variable.unwrapped is not None:
                equations = [substituted(p, number, variable.unwrapped) for p in equations]
            elif number in self.space.sums:
                equations = [substituted(p, number, self.space.sums[number]) for p in equations]
            else:
                return

    def _chosen(
        self,
        equations: list[Polynomial],
        pseudo: dict[int, Polynomial | None],
        count: int,
        number: int,
        choice: Choice,
    ) -> Iterator[Solution]:
        for value, _ in choice.ways:
            chosen = [substituted(p, number, value) for p in equations]
            yield from self._taken_apart(chosen, dict(pseudo), count)

    def _solved(
        self, equations: list[Polynomial], pseudo: Mapping[int, Polynomial | None]
    ) -> Iterator[Solution]:
        unknown: dict[int, Polynomial | None] = {**self.extents, **pseudo}
        found: Solution = {}
        left = [p for p in equations if not variables_of(p).isdisjoint(unknown)]
        for _ in range(2 * len(unknown) + 1):
            left = [p for p in left if not variables_of(p).isdisjoint(unknown.keys() - found)]
            if not left:
                break
            least = min(left, key=lambda p: self._difficulty(p, unknown.keys() - found))
            self._is_first = not found
            step = self._step(least, unknown, pseudo)
            if step is None:
                return
            number, value = step
            found[number] = value
            left = [substituted(p, number, value) for p in left]
        solution: Solution = {}
        for number, extent in self.extents.items():
            rest = combined(extent, constant(-1)) if self.is_last else {}
            solution[number] = found.get(number, rest)
        yield solution

    @staticmethod
    def _difficulty(p: Polynomial, unknown: Set[int]) -> tuple[bool, int]:
        """The sort key of equations: one unknown first, definitions of quotients last."""
        count = len(variables_of(p) & unknown)
        signs = {c > 0 for m, c in p.items() if not unknown.isdisjoint(m)}
        return count > 1 and len(signs) > 1, count

    def _step(
        self,
        equation: Polynomial,
        unknown: Mapping[int, Polynomial | None],
        pseudo: Mapping[int, Polynomial | None],
    ) -> tuple[int, Polynomial] | None:
        """Solves an equation for one unknown, of several for the leading digit: (unknown,
        value)."""
        factors: dict[int, Polynomial] = {}
        rest: Polynomial = {}
        for monomial, coefficient in equation.items():
            own = [n for n in monomial if n in unknown]
            if len(own) > 1:
                return None
            if own:
                factor = factors.setdefault(own[0], {})
                factor[less(monomial, own[0])] = coefficient
            else:
                rest[monomial] = coefficient
        signs = {number: _sign(factor) for number, factor in factors.items()}
        # where two count alike, the one of a longer loop leads
        number = max(factors, key=lambda n: (_size(factors[n]), self._length(unknown[n]), -n))
        rest = scaled(rest, -signs[number])
        factors = {n: scaled(factor, signs[number]) for n, factor in factors.items()}
        if len(set(signs.values())) > 1:
            value = self._multiple(rest, factors[number])
            if value is None:
                return self._of_mixed_signs(signs, unknown, pseudo)
            return number, value
        value = None
        if known_value(factors[number]) != 1:
            value = self._by_next(rest, factors, number)
            if value is None:
                value = self._multiple(rest, factors[number])
        if value is None:
            found = self.space.quotient(rest, factors[number])
            if found is None:
                return None
            value = found[0]
        extent = unknown[number]
        if self.is_clamped and number in self.extents and extent is not None:
            value = self.space.extremum([value, combined(extent, constant(-1))], is_max=False)
        return number, value

    def _by_next(
        self, p: Polynomial, factors: Mapping[int, Polynomial], number: int
    ) -> Polynomial | None:
        """The value of the leading digit: the multiple of the next digit's stride in the terms of
        `p`; None where that stride is 1 or does not divide the leading one."""
        lead = factors[number]
        others = [f for n, f in factors.items() if n != number and f != lead]
        following = max(others, key=_size, default=constant(1))
        if following == constant(1) or divided(lead, following) is None:
            return None
        times = self._multiple(p, following)
        found = None if times is None else self.space.quotient(product(times, following), lead)
        return None if found is None else found[0]

    def _multiple(self, p: Polynomial, stride: Polynomial) -> Polynomial | None:
        """The quotient of the terms of `p` that a stride divides; None where it divides none."""
        if not self.is_whole:
            return None
        by = known_value(stride)
        is_offset = by is not None and self.is_offset and self._is_first
        terms = {m: c for m, c in p.items() if m and not (is_offset and self.space.is_of_dims(m))}
        times, _ = long_division(terms, stride)
        if by is not None:
            times = combined(times, constant(int(p.get(ONE, 0) / by)))
        return times or None

    def _of_mixed_signs(
        self,
        signs: Mapping[int, int],
        unknown: Mapping[int, Polynomial | None],
        pseudo: Mapping[int, Polynomial | None],
    ) -> tuple[int, Polynomial] | None:
        """Fixes an unknown whose value the others can compensate: a remainder, or a loop index."""
        for number in sorted(signs, key=lambda n: (n not in pseudo, n)):
            extent = unknown[number]
            if extent is not None and (number in pseudo or signs[number] < 0):
                return number, combined(extent, constant(-1)) if self.is_last else {}
        return None

    def _length(self, extent: Polynomial | None) -> int:
        number = None if extent is None else known_value(extent)
        return 1 << 40 if number is None else number


def _sign(factor: Polynomial) -> int:
    """The sign of a factor, by its coefficients; extents are all of one sign."""
    return 1 if sum(factor.values()) > 0 else -1


def _size(factor: Polynomial) -> tuple[int, int]:
    """The sort key of strides: products of more extents are larger."""
    return max(map(len, factor)), max(
        (abs(c) for m, c in factor.items() if m != ONE), default=0
    ) or abs(factor.get(ONE, 0))
