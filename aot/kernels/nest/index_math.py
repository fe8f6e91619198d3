"""Simplifies index arithmetic using the ranges of loop variables.

What a reshape puts together and the next one takes apart is gone: `(i*n + j) // n` is i, and
`(i*n + j) % n` is j, where j is below n; so is what one takes apart and the next puts together:
`i // n * n + i % n` is i. A guard that always holds is gone. Owns no loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Expr, Load, Reduce, Var
from aot.ir.types import DType

Terms = dict[Expr, Dim]


def simplify(e: Expr, extents: Mapping[Var, Dim]) -> Expr:
    """Simplifies `e`: removes divisions and guards that the ranges of loop variables decide.

    Args:
        extents: of loop variables, which run from 0; those of reductions in `e` are seen there.
    """
    return simplifier([e], extents)(e)


def simplifier(roots: Iterable[Expr], extents: Mapping[Var, Dim]) -> Callable[[Expr], Expr]:
    """A `simplify` for several expressions that keeps subexpressions of `roots` shared."""
    ranges = dict(extents)
    for root in roots:
        for node in expr.nodes(root):
            if isinstance(node, Reduce):
                ranges.update(node.axes)
    return _Simplifier(ranges).go


class _Simplifier:
    def __init__(self, extents: Mapping[Var, Dim]) -> None:
        self.extents = extents
        self.memo: dict[Expr, Expr] = {}

    def go(self, e: Expr) -> Expr:
        if e not in self.memo:
            fresh = expr.rebuild(e, self.go)
            if isinstance(fresh, Load) and fresh.guard is not None:
                self.memo[e] = self._asked(fresh, fresh.guard)
            else:
                self.memo[e] = _joined(self._division(fresh))
        return self.memo[e]

    def _asked(self, load: Load, guard: Expr) -> Load:
        """Drops a load's guard if all its conditions always hold. A partly decided guard stays
        whole, as schedules recognise windows by pairs of conditions."""
        is_sure = all(self._is_sure(c) for c in expr.conditions_of(guard))
        return replace(load, guard=None, other=None) if is_sure else load

    def _is_sure(self, condition: Expr) -> bool:
        """Whether a comparison of indices holds for all values of the loop variables."""
        if not isinstance(condition, Binary) or condition.a.dtype is not DType.INDEX:
            return False
        if condition.op == "ge":
            low, _ = self._span(expr.sub(condition.a, condition.b))
            return low is not None and low >= 0
        if condition.op == "lt":
            _, high = self._span(expr.sub(condition.a, condition.b))
            return high is not None and high < 0
        return False

    def _span(self, e: Expr) -> tuple[int | None, int | None]:
        """The least and the greatest value of an index; None where a bound is unknown."""
        terms: Terms = {}
        low: int | None
        high: int | None
        low, high = _known_span(add_terms(e, 1, terms))
        for atom, factor in terms.items():
            least, most = self._span_of_atom(atom)
            if not isinstance(factor, int):
                return None, None
            if factor < 0:
                least, most = most, least
            low = None if low is None or least is None else low + factor * least
            high = None if high is None or most is None else high + factor * most
        return low, high

    def _span_of_atom(self, atom: Expr) -> tuple[int | None, int | None]:
        if isinstance(atom, Var):
            if atom not in self.extents:
                return None, None
            _, most = _known_span(self.extents[atom])
            return 0, None if most is None else max(0, most - 1)
        if not isinstance(atom, Binary):
            return None, None
        size = expr.dim_of(atom.b)
        if not isinstance(size, int) or size <= 0:
            return None, None
        if atom.op == "floormod":
            return 0, size - 1
        if atom.op == "floordiv":
            low, high = self._span(atom.a)
            return None if low is None else low // size, None if high is None else high // size
        return None, None

    def _division(self, e: Expr) -> Expr:
        if not isinstance(e, Binary) or e.dtype is not DType.INDEX:
            return e
        divisor = expr.dim_of(e.b)
        if e.op not in ("floordiv", "floormod") or divisor is None or divisor == 0:
            return e
        terms: Terms = {}
        constant = add_terms(e.a, 1, terms)
        whole: Terms = {}
        rest: Terms = {}
        for atom, factor in terms.items():
            by = dims.floor_divide(factor, divisor)
            if dims.multiply(by, divisor) == factor:
                whole[atom] = by
            else:
                rest[atom] = factor
        is_known = isinstance(constant, int) and isinstance(divisor, int)
        outside = dims.floor_divide(constant, divisor) if is_known else 0
        inside = dims.add(constant, dims.multiply(outside, dims.multiply(divisor, -1)))
        is_below = self._is_below(rest, inside, divisor)
        if not whole and outside == 0 and not is_below:
            return e
        left = _sum(rest, inside)
        if is_below:
            return _sum(whole, outside) if e.op == "floordiv" else left
        if e.op == "floormod":
            return expr.binary("floormod", left, e.b)
        return expr.add(_sum(whole, outside), expr.binary("floordiv", left, e.b))

    def _is_below(self, terms: Terms, constant: Dim, limit: Dim) -> bool:
        """Whether a sum is surely in [0, limit)."""
        if not isinstance(constant, int) or constant < 0:
            return False
        largest: Dim = constant
        for atom, factor in terms.items():
            top = self._largest(atom)
            if top is None or not _is_positive(factor):
                return False
            largest = dims.add(largest, dims.multiply(factor, top))
        spare = dims.add(dims.add(limit, -1), dims.multiply(largest, -1))
        low, _ = dims.bounds(spare, {}) if not isinstance(spare, int) else (spare, spare)
        return low is not None and low >= 0

    def _largest(self, atom: Expr) -> Dim | None:
        """The largest value of a non-negative index, where it is known."""
        if isinstance(atom, Var):
            return dims.add(self.extents[atom], -1) if atom in self.extents else None
        if isinstance(atom, Binary) and atom.op == "floormod":
            size = expr.dim_of(atom.b)
            return None if size is None else dims.add(size, -1)
        return None


def _known_span(dim: Dim) -> tuple[int | None, int | None]:
    return (dim, dim) if isinstance(dim, int) else dims.bounds(dim, {})


def _joined(e: Expr) -> Expr:
    """The sum of indices `e`, with matching terms `n * (a // n) + a % n` replaced by `a`."""
    if not isinstance(e, Binary) or e.dtype is not DType.INDEX or e.op not in ("add", "sub"):
        return e
    terms: Terms = {}
    constant = add_terms(e, 1, terms)
    parts = [atom for atom in terms if isinstance(atom, Binary) and atom.op == "floormod"]
    is_changed = False
    for part in parts:
        quotient = _quotient_of(part, terms)
        if quotient is not None:
            is_changed = True
            factor = terms.pop(part)
            del terms[quotient]
            constant = dims.add(constant, add_terms(part.a, factor, terms))
    return _sum(terms, constant) if is_changed else e


def _quotient_of(part: Binary, terms: Terms) -> Expr | None:
    """The term `n * (a // n)` that matches the remainder `part` = `a % n`; None if there is
    none."""
    divisor = expr.dim_of(part.b)
    if divisor is None:
        return None
    for atom, factor in terms.items():
        if not isinstance(atom, Binary) or atom.op != "floordiv" or expr.dim_of(atom.b) != divisor:
            continue
        if factor == dims.multiply(terms[part], divisor) and _are_equal(atom.a, part.a):
            return atom
    return None


def _are_equal(a: Expr, b: Expr) -> bool:
    """Whether two index expressions are equal as sums of the same terms."""
    found: Terms = {}
    other: Terms = {}
    return a is b or (add_terms(a, 1, found) == add_terms(b, 1, other) and found == other)


def _is_positive(factor: Dim) -> bool:
    low, _ = dims.bounds(factor, {}) if not isinstance(factor, int) else (factor, factor)
    return low is not None and low >= 0


def add_terms(e: Expr, scale: Dim, terms: Terms) -> Dim:
    """Adds the terms of `scale * e` to `terms`, and returns its part without variables."""
    known = expr.dim_of(e)
    if known is not None:
        return dims.multiply(scale, known)
    if isinstance(e, Binary) and e.op in ("add", "sub"):
        other = scale if e.op == "add" else dims.multiply(scale, -1)
        return dims.add(add_terms(e.a, scale, terms), add_terms(e.b, other, terms))
    if isinstance(e, Binary) and e.op == "mul":
        for a, b in ((e.a, e.b), (e.b, e.a)):
            factor = expr.dim_of(b)
            if factor is not None:
                return add_terms(a, dims.multiply(scale, factor), terms)
    terms[e] = dims.add(terms.get(e, 0), scale)
    if terms[e] == 0:
        del terms[e]
    return 0


def _sum(terms: Terms, constant: Dim) -> Expr:
    total = expr.index(constant)
    for number, (atom, factor) in enumerate(terms.items()):
        product = expr.mul(atom, expr.index(factor))
        total = product if number == 0 and constant == 0 else expr.add(total, product)
    return total
