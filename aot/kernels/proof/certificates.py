"""Finds linear certificates of inequalities: `goal == c + sum(k_i * fact_i)` with non-negative c
and k_i.

Owns the search for the numbers, in floating point, and their check, in exact arithmetic: what is
found is a proof by Farkas' lemma, whatever rounding did. Monomials are columns of a linear system,
which knows nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from aot.ir.types import Array
from aot.kernels.proof.polynomials import ONE, Polynomial

PIVOTS = 1000  # of the simplex algorithm
STALLED = 30  # pivots that gain nothing, before it keeps to Bland's rule
SLACK = 0.999  # an integer above -1 is not negative
CLOSE = 1e-9


def has_certificate(goal: Polynomial, facts: Sequence[Polynomial]) -> bool:
    """Whether a non-negative combination of `facts`, each non-negative, proves the integer `goal`
    non-negative."""
    rows = {m: n for n, m in enumerate(dict.fromkeys(m for p in (*facts, goal) for m in p))}
    rows.setdefault(ONE, len(rows))
    matrix = np.zeros((len(rows), len(facts) + 1))
    for column, fact in enumerate(facts):
        for monomial, coefficient in fact.items():
            matrix[rows[monomial], column] = coefficient
    matrix[rows[ONE], len(facts)] = 1.0
    wanted = np.zeros(len(rows))
    for monomial, coefficient in goal.items():
        wanted[rows[monomial]] = coefficient
    matrix /= np.maximum(np.abs(matrix).max(axis=0), 1.0)
    for slack in (0.0, SLACK):
        wanted[rows[ONE]] = goal.get(ONE, 0) + slack
        used = _nonnegative_solution(matrix, wanted / np.abs(wanted).max())
        if used is not None and _is_exact(goal, [facts[n] for n in used if n < len(facts)]):
            return True
    return False


def _nonnegative_solution(matrix: Array, wanted: Array) -> list[int] | None:
    """The columns of `matrix` that a non-negative combination uses to form `wanted`; None if none
    was found.

    The first phase of the simplex algorithm: a variable for each row is what is missing there, and
    their sum becomes 0. Where steps gain nothing, R. G. Bland's rule (1977) keeps them from going
    in circles.
    """
    height, width = matrix.shape
    sign = np.where(wanted < 0, -1.0, 1.0)
    table = np.empty((height + 1, width + 1))
    table[:height, :width] = matrix * sign[:, None]
    table[:height, width] = wanted * sign
    table[height] = -table[:height].sum(axis=0)
    basis = np.full(height, width)  # what is missing comes last
    stalled = 0
    for _ in range(PIVOTS):
        costs, missing = table[height, :width], -table[height, width]
        if missing <= CLOSE:
            found = sorted(zip(-table[:height, width], basis, strict=True))
            return [int(n) for x, n in found if n < width and x < -CLOSE]
        gains = np.flatnonzero(costs < -CLOSE)
        if not len(gains):
            return None
        enters = int(gains[0] if stalled > STALLED else np.argmin(costs))
        column = table[:height, enters]
        ratios = np.full(height, np.inf)
        can_leave = column > CLOSE
        ratios[can_leave] = table[:height, width][can_leave] / column[can_leave]
        least = float(ratios.min())
        if least == np.inf:
            return None
        tied = np.flatnonzero(ratios <= least + CLOSE)
        by_rule = (
            basis[tied] if stalled > STALLED else -column[tied] - width * (basis[tied] == width)
        )
        leaves = int(tied[np.argmin(by_rule)])
        stalled = stalled + 1 if least <= CLOSE else 0
        table[leaves] /= table[leaves, enters]
        factors = table[:, enters].copy()
        factors[leaves] = 0.0
        changed = np.flatnonzero(factors)
        table[changed] -= np.outer(factors[changed], table[leaves])
        basis[leaves] = enters
    return None


def _is_exact(goal: Polynomial, facts: Sequence[Polynomial]) -> bool:
    """Whether exact arithmetic confirms that non-negative multiples of `facts` sum to `goal` up to
    a constant above -1: Gaussian elimination over all monomials but the constant."""
    rows = sorted({m for p in (*facts, goal) for m in p if m != ONE})
    system = [[Fraction(f.get(m, 0)) for f in facts] + [Fraction(goal.get(m, 0))] for m in rows]
    pivots: list[int] = []
    for column in range(len(facts)):
        at = len(pivots)
        found = next((r for r in range(at, len(system)) if system[r][column]), None)
        if found is None:
            continue
        system[at], system[found] = system[found], system[at]
        factor = system[at][column]
        system[at] = [x / factor for x in system[at]]
        for r, row in enumerate(system):
            if r != at and row[column]:
                by = row[column]
                system[r] = [x - by * y for x, y in zip(row, system[at], strict=True)]
        pivots.append(column)
    if any(row[-1] for row in system[len(pivots) :]):
        return False
    numbers = {column: system[r][-1] for r, column in enumerate(pivots)}
    if any(number < 0 for number in numbers.values()):
        return False
    left = goal.get(ONE, 0) - sum(k * facts[n].get(ONE, 0) for n, k in numbers.items())
    return left > -1
