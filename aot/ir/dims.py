"""Dimensions: an int, or a canonical symbolic expression over named non-negative symbols.

Owns the algebra (a polynomial over symbols, floor divisions, minima and maxima, always in one
canonical form, so that equality is structural) and its text, which `dim_parser` reads. Knows
nothing of tensors.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, total_ordering
from types import MappingProxyType
from typing import TypeVar, Union

from aot.base.records import dataclass
from aot.ir.dim_limits import (
    MOST_ARGUMENTS,
    MOST_DEPTH,
    MOST_FACTORS,
    OversizedDimError,
    check_length,
    check_numbers,
)

Dim = Union[int, "DimExpr"]
_Factor = TypeVar("_Factor")
Interval = tuple[int | None, int | None]
NO_BOUNDS: Mapping[str, Interval] = MappingProxyType({})
FEW_TERMS = 4
MOST_DOUBLINGS = 16  # of a guess that is too short for an extent


@dataclass(frozen=True)
class Symbol:
    """A named non-negative integer, such as the dynamic extent of an input."""

    name: str

    def key(self) -> tuple[object, ...]:
        return (0, self.name)

    def __str__(self) -> str:
        return self.name


class _Written:
    """A base class of dims with a canonical text, cached, which also gives order and hash."""

    _text: str

    def _write(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        text: str | None = self.__dict__.get("_text")
        if text is None:
            text = self.__dict__["_text"] = self._write()
        return text

    def __hash__(self) -> int:
        try:
            return hash(self._text)
        except AttributeError:
            return hash(str(self))


@dataclass(frozen=True)
class FloorDiv(_Written):
    """`numerator // denominator`, rounding towards minus infinity."""

    numerator: Dim
    denominator: Dim

    def key(self) -> tuple[object, ...]:
        return (1, str(self))

    __hash__ = _Written.__hash__

    def _write(self) -> str:
        return f"{_parens(self.numerator)}//{_parens(self.denominator)}"


@dataclass(frozen=True)
class Extremum(_Written):
    """`max(args)` or `min(args)`; the arguments are distinct and sorted."""

    is_max: bool
    args: tuple[Dim, ...]

    def key(self) -> tuple[object, ...]:
        return (2, str(self))

    __hash__ = _Written.__hash__

    def _write(self) -> str:
        return f"{'max' if self.is_max else 'min'}({', '.join(map(str, self.args))})"


Atom = Union[Symbol, FloorDiv, Extremum]
Monomial = tuple[Atom, ...]  # sorted, with repetition


def _parens(dim: Dim) -> str:
    text = str(dim)
    return text if isinstance(dim, int) or _is_single_atom(dim) else f"({text})"


def _is_single_atom(dim: DimExpr) -> bool:
    if len(dim.terms) != 1 or dim.constant:
        return False
    monomial, coefficient = dim.terms[0]
    return coefficient == 1 and len(monomial) == 1 and not isinstance(monomial[0], FloorDiv)


@total_ordering
@dataclass(frozen=True, eq=True)
class DimExpr(_Written):
    """`constant + sum(coefficient * product(atoms))`; never a plain number.

    Build one with `symbol` and Python's operators; results that are constant come back as int.
    """

    terms: tuple[tuple[Monomial, int], ...]
    constant: int

    def __add__(self, other: Dim) -> Dim:
        return add(self, other)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return multiply(self, -1)

    def __sub__(self, other: Dim) -> Dim:
        return add(self, multiply(other, -1))

    def __rsub__(self, other: Dim) -> Dim:
        return add(other, multiply(self, -1))

    def __mul__(self, other: Dim) -> Dim:
        return multiply(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floor_divide(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floor_divide(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return modulo(self, other)

    def __lt__(self, other: object) -> bool:
        return str(self) < str(other)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of symbolic dim {self} is not known")

    def __int__(self) -> int:
        raise TypeError(f"dim {self} is symbolic")

    __hash__ = _Written.__hash__

    def _write(self) -> str:
        parts: list[str] = []
        for monomial, coefficient in self.terms:
            factors = [str(a) for a in monomial]
            # -(a//b) is not -a//b, which reads as (-a)//b
            if len(monomial) > 1 or coefficient != 1:
                factors = [
                    f"({f})" if isinstance(a, FloorDiv) else f
                    for f, a in zip(factors, monomial, strict=True)
                ]
            if abs(coefficient) != 1:
                factors.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+"
            parts.append(
                f" {sign} {'*'.join(factors)}"
                if parts
                else f"{'-' if coefficient < 0 else ''}{'*'.join(factors)}"
            )
        if self.constant:
            parts.append(f" {'-' if self.constant < 0 else '+'} {abs(self.constant)}")
        return "".join(parts)

    def __repr__(self) -> str:
        return f"DimExpr({self})"


def is_symbol_name(text: str) -> bool:
    """Whether `text` can name a symbol: ASCII letters, digits and _, not a digit first."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) is not None


def symbol(name: str) -> DimExpr:
    """The dim that is the symbol `name`.

    Raises:
        ValueError: `name` is not an ASCII identifier, so that text could not hold it.
    """
    if not is_symbol_name(name):
        raise ValueError(
            f"{name!r} cannot name a dim: use letters, digits and _, not a digit first"
        )
    return DimExpr((((Symbol(name),), 1),), 0)


def _make(terms: Mapping[Monomial, int], constant: int) -> Dim:
    kept = [(m, c) for m, c in terms.items() if c]
    if not kept:
        return constant
    if len(kept) > 1:
        kept.sort(key=_order)
    return DimExpr(tuple(kept), constant)


def _order(term: tuple[Monomial, int]) -> tuple[int, list[tuple[object, ...]]]:
    """The sort key of a sum's term."""
    return -len(term[0]), [atom.key() for atom in term[0]]


def _split(dim: Dim) -> tuple[dict[Monomial, int], int]:
    if isinstance(dim, DimExpr):
        return dict(dim.terms), dim.constant
    return {}, int(dim)


def _atom(atom: Atom) -> DimExpr:
    return DimExpr((((atom,), 1),), 0)


def _bounded(atom: FloorDiv | Extremum) -> DimExpr:
    """The dim that consists of a division or an extremum, checked against the limits.

    Raises:
        OversizedDimError: it is longer or deeper than an expression may be.
    """
    check_length(len(str(atom)))
    if _depth(atom) > MOST_DEPTH:
        raise OversizedDimError(f"of more than {MOST_DEPTH} divisions in one another")
    return _atom(atom)


def _depth(atom: Atom) -> int:
    """The nesting depth of divisions and extrema, this atom included; cached."""
    if isinstance(atom, Symbol):
        return 0
    found: int | None = atom.__dict__.get("_nesting")
    if found is None:
        inner = (a for d in _parts(atom) if isinstance(d, DimExpr) for m, _ in d.terms for a in m)
        found = atom.__dict__["_nesting"] = 1 + max(map(_depth, inner), default=0)
    return found


def add(a: Dim, b: Dim) -> Dim:
    """The canonical form of `a + b`."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if isinstance(b, int):
        return DimExpr(a.terms, a.constant + b) if b else a  # type: ignore[union-attr]
    if isinstance(a, int):
        return DimExpr(b.terms, b.constant + a) if a else b
    if max(len(a.terms), len(b.terms)) > FEW_TERMS >= min(len(a.terms), len(b.terms)):
        return _add_few(a, b) if len(a.terms) > len(b.terms) else _add_few(b, a)
    if len(a.terms) < len(b.terms):
        a, b = b, a
    terms = dict(a.terms)
    for monomial, coefficient in b.terms:
        terms[monomial] = terms.get(monomial, 0) + coefficient
    constant = a.constant + b.constant
    if len(terms) > len(a.terms):
        return _make(terms, constant)
    kept = tuple((m, c) for m, c in terms.items() if c)  # in order, as they were
    return DimExpr(kept, constant) if kept else constant


def _add_few(long: DimExpr, short: DimExpr) -> Dim:
    """The sum of a long and a short list of terms, by insertion: a sum of many symbols is built
    term by term, and resorting it each time would take cubic time."""
    terms = list(long.terms)
    for term in short.terms:
        order = _order(term)
        place = bisect_left(terms, order, key=_order)
        while place < len(terms) and terms[place][0] != term[0] and _order(terms[place]) == order:
            place += 1
        if place == len(terms) or terms[place][0] != term[0]:
            terms.insert(place, term)
        elif coefficient := terms[place][1] + term[1]:
            terms[place] = term[0], coefficient
        else:
            del terms[place]
    constant = long.constant + short.constant
    return DimExpr(tuple(terms), constant) if terms else constant


def _sorted(monomial: Monomial) -> Monomial:
    return tuple(sorted(monomial, key=lambda atom: atom.key()))


def _scale(dim: DimExpr, factor: int) -> Dim:
    """`dim * factor`; the order of terms does not depend on coefficients."""
    if factor in (0, 1):
        return dim if factor else 0
    terms, constant = tuple((m, c * factor) for m, c in dim.terms), dim.constant * factor
    check_numbers(constant, *(c for _, c in terms))
    return DimExpr(terms, constant)


def multiply(a: Dim, b: Dim) -> Dim:
    """The canonical, expanded form of `a * b`.

    Raises:
        OversizedDimError: it is longer than an expression may be.
    """
    if isinstance(a, int) and isinstance(b, int):
        check_numbers(a * b)
        return a * b
    if isinstance(a, int):
        a, b = b, a
    if isinstance(b, int):
        return _scale(a, b)  # type: ignore[arg-type]
    return _product(a, b)


@lru_cache(maxsize=1 << 14)  # strides ask for few products, again and again
def _product(a: DimExpr, b: DimExpr) -> Dim:
    check_length(len(str(a)) * len(b.terms) + len(str(b)) * len(a.terms))
    if len(a.terms[0][0]) + len(b.terms[0][0]) > MOST_FACTORS:  # the longest terms are first
        raise OversizedDimError(f"of more than {MOST_FACTORS} factors")
    terms_a, constant_a = _split(a)
    terms_b, constant_b = _split(b)
    out: dict[Monomial, int] = {}
    for ma, ca in [*terms_a.items(), ((), constant_a)]:
        for mb, cb in [*terms_b.items(), ((), constant_b)]:
            if ca and cb:
                monomial = _sorted(ma + mb) if ma and mb else ma or mb
                out[monomial] = out.get(monomial, 0) + ca * cb
    check_numbers(*out.values())
    constant = out.pop((), 0)
    return _make(out, constant)


def floor_divide(a: Dim, b: Dim) -> Dim:
    """`a // b`, rounding down; exact multiples of an int divisor are pulled out of the floor."""
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError(f"dim {a} divided by zero")
        if isinstance(a, int):
            return a // b
        if b < 0:
            return floor_divide(multiply(a, -1), -b)
        return _divide_by_int(a, b)
    if a == 0:
        return 0
    if a == b:
        return 1
    quotient = _divide_exactly(a, b)
    return quotient if quotient is not None else _bounded(FloorDiv(a, b))


def _divide_by_int(a: DimExpr, b: int) -> Dim:
    if b == 1:
        return a
    whole = {m: c // b for m, c in a.terms}
    rest = _make({m: c % b for m, c in a.terms}, a.constant % b)
    outside = _make(whole, a.constant // b)
    if isinstance(rest, int):
        return add(outside, rest // b)
    # (x//p + c)//b == (x + c*p)//(p*b) for ints p, b > 0
    if len(rest.terms) == 1:
        monomial, coefficient = rest.terms[0]
        inner = monomial[0]
        if (
            coefficient == 1
            and len(monomial) == 1
            and isinstance(inner, FloorDiv)
            and isinstance(inner.denominator, int)
        ):
            numerator = add(inner.numerator, rest.constant * inner.denominator)
            return add(outside, floor_divide(numerator, inner.denominator * b))
    return add(outside, _bounded(FloorDiv(rest, b)))


def monomial_quotient(
    monomial: tuple[_Factor, ...], by: tuple[_Factor, ...]
) -> tuple[_Factor, ...] | None:
    """`monomial / by`, both as products of factors; None where `by` does not divide it."""
    left = list(monomial)
    for factor in by:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def _divide_exactly(a: Dim, b: DimExpr) -> Dim | None:
    """`a / b` where b is one monomial that divides every term of a, else None."""
    if len(b.terms) != 1 or b.constant:
        return None
    divisor, scale = b.terms[0]
    terms, constant = _split(a)
    if constant:
        return None
    out: dict[Monomial, int] = {}
    for monomial, coefficient in terms.items():
        left = monomial_quotient(monomial, divisor)
        if left is None or coefficient % scale:
            return None
        out[left] = coefficient // scale
    constant = out.pop((), 0)
    return _make(out, constant)


def ceil_divide(a: Dim, b: Dim) -> Dim:
    """`ceil(a / b)`; a symbolic `b` must be positive."""
    if isinstance(b, int) and b < 0:
        return ceil_divide(multiply(a, -1), -b)
    whole = floor_divide(a, b)
    if multiply(whole, b) == a:
        return whole
    return (
        multiply(floor_divide(multiply(a, -1), b), -1)
        if isinstance(a, int)
        else floor_divide(add(a, add(b, -1)), b)
    )


def modulo(a: Dim, b: Dim) -> Dim:
    """`a - (a // b) * b`."""
    return add(a, multiply(multiply(floor_divide(a, b), b), -1))


def maximum(*dims: Dim) -> Dim:
    """The largest of `dims`, in canonical form; arguments that are provably not the largest are
    dropped."""
    return _extremum(True, dims)


def minimum(*dims: Dim) -> Dim:
    """The smallest of `dims`, in canonical form."""
    return _extremum(False, dims)


def _extremum(
    is_max: bool, dims: tuple[Dim, ...], known: Mapping[str, Interval] = NO_BOUNDS
) -> Dim:
    numbers = [dim for dim in dims if isinstance(dim, int)]
    if len(numbers) == len(dims):
        return max(numbers) if is_max else min(numbers)
    flat: list[Dim] = []
    for dim in dims:
        single = dim.terms[0][0][0] if isinstance(dim, DimExpr) and _is_single_atom(dim) else None
        if isinstance(single, Extremum) and single.is_max == is_max:
            flat.extend(single.args)
        else:
            flat.append(dim)
    if len(flat) > MOST_ARGUMENTS:
        raise OversizedDimError(f"with an extremum of more than {MOST_ARGUMENTS} others")
    kept: list[Dim] = []
    for dim in flat:
        kept = [k for k in kept if not _dominates(dim, k, is_max, known)]
        if not any(_dominates(k, dim, is_max, known) for k in kept):
            kept.append(dim)
    if len(kept) == 1:
        return kept[0]
    kept.sort(key=lambda dim: (isinstance(dim, int), str(dim)))
    return _bounded(Extremum(is_max, tuple(kept)))


def _dominates(a: Dim, b: Dim, is_max: bool, known: Mapping[str, Interval]) -> bool:
    difference = add(a, multiply(b, -1)) if is_max else add(b, multiply(a, -1))
    low, _ = bounds(difference, known)
    return low is not None and low >= 0


def bounds(dim: Dim, known: Mapping[str, Interval]) -> Interval:
    """Inclusive bounds (low, high) of `dim`; None is unbounded. A symbol that is not in `known` is
    at least 0."""
    return _bounds(dim, known, {})


def _bounds(dim: Dim, known: Mapping[str, Interval], found: dict[Atom, Interval]) -> Interval:
    """`bounds` of a dim; intervals of shared atoms are cached in `found`."""
    if isinstance(dim, int):
        return dim, dim
    low: int | None = dim.constant
    high: int | None = dim.constant
    for monomial, coefficient in dim.terms:
        lo, hi = 1, 1
        product: Interval = (lo, hi)
        for atom in monomial:
            if isinstance(atom, Symbol):
                factor = known.get(atom.name, (0, None))
            else:
                if atom not in found:
                    found[atom] = _atom_bounds(atom, known, found)
                factor = found[atom]
            product = interval_product(product, factor)
        a, b = product
        if coefficient < 0:
            a, b = b, a
        low = None if low is None or a is None else low + coefficient * a
        high = None if high is None or b is None else high + coefficient * b
    return low, high


def decided(op: str, difference: Interval) -> bool | None:
    """The truth of `a op b`, given an interval of `a - b`; None if undecided, and for other ops."""
    low, high = difference
    match op:
        case "lt":
            return _decided(high is not None and high < 0, low is not None and low >= 0)
        case "le":
            return _decided(high is not None and high <= 0, low is not None and low > 0)
        case "gt" | "ge":
            opposite = decided("le" if op == "gt" else "lt", difference)
            return None if opposite is None else not opposite
    return None


def _decided(is_always: bool, is_never: bool) -> bool | None:
    return True if is_always else False if is_never else None


def interval_product(a: Interval, b: Interval) -> Interval:
    """The interval of all products of a number in `a` and one in `b`."""
    if a[0] is None or b[0] is None or a[0] < 0 or b[0] < 0:
        if None in a or None in b:
            return None, None
        corners = [x * y for x in a for y in b if x is not None and y is not None]
        return min(corners), max(corners)
    high = None if a[1] is None or b[1] is None else a[1] * b[1]
    return a[0] * b[0], high


def _atom_bounds(
    atom: FloorDiv | Extremum, known: Mapping[str, Interval], found: dict[Atom, Interval]
) -> Interval:
    if isinstance(atom, FloorDiv):
        low, high = _bounds(atom.numerator, known, found)
        if isinstance(atom.denominator, int):
            return (
                None if low is None else low // atom.denominator,
                None if high is None else high // atom.denominator,
            )
        below, _ = _bounds(atom.denominator, known, found)
        if low is not None and low >= 0 and below is not None and below >= 1:
            return 0, None if high is None else high // below
        return None, None
    parts = [_bounds(a, known, found) for a in atom.args]
    lows, highs = [p[0] for p in parts], [p[1] for p in parts]
    pick = max if atom.is_max else min
    known_lows = [x for x in lows if x is not None]
    known_highs = [x for x in highs if x is not None]
    if atom.is_max:
        return (
            max(known_lows) if known_lows else None,
            pick(known_highs) if len(known_highs) == len(highs) else None,
        )
    return (
        pick(known_lows) if len(known_lows) == len(lows) else None,
        min(known_highs) if known_highs else None,
    )


def _map_atoms(dim: Dim, atom_value: Callable[[Atom], Dim]) -> Dim:
    if isinstance(dim, int):
        return dim
    total: Dim = dim.constant
    for monomial, coefficient in dim.terms:
        product: Dim = coefficient
        for atom in monomial:
            product = multiply(product, atom_value(atom))
        total = add(total, product)
    return total


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """`dim` with symbols replaced by `values`, in canonical form."""
    known: dict[Atom, Dim] = {}  # dims that follow from one another share most atoms

    def of(dim: Dim) -> Dim:
        return _map_atoms(dim, value)

    def value(atom: Atom) -> Dim:
        if isinstance(atom, Symbol):
            return values.get(atom.name, _atom(atom))
        if atom not in known:
            if isinstance(atom, FloorDiv):
                known[atom] = floor_divide(of(atom.numerator), of(atom.denominator))
            else:
                known[atom] = _extremum(atom.is_max, tuple(of(a) for a in atom.args))
        return known[atom]

    return of(dim)


def narrow(dim: Dim, known: Mapping[str, Interval]) -> Dim:
    """`dim` simplified by its symbols' bounds, which may decide the minimum in `min(H, 960)`."""
    if isinstance(dim, int):
        return dim
    low, high = bounds(dim, known)
    if low is not None and low == high:
        return low

    def value(atom: Atom) -> Dim:
        if isinstance(atom, Symbol):
            return _atom(atom)
        if isinstance(atom, FloorDiv):
            return floor_divide(narrow(atom.numerator, known), narrow(atom.denominator, known))
        return _extremum(atom.is_max, tuple(narrow(a, known) for a in atom.args), known)

    return _map_atoms(dim, value)


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The value of `dim` for the given `values` of its symbols.

    Raises:
        KeyError: a symbol of `dim` has no value.
    """
    result = substitute(dim, values)
    if isinstance(result, DimExpr):
        raise KeyError(", ".join(sorted(symbols(result))))
    return result


def estimate(dim: Dim, unknown: int) -> int | None:
    """The value of `dim` with `unknown` for each symbol; None where that divides by zero."""
    if isinstance(dim, int):
        return dim
    estimates: dict[int, int | None] = dim.__dict__.setdefault("_estimates", {})
    if unknown not in estimates:
        try:
            estimates[unknown] = evaluate(dim, dict.fromkeys(symbols(dim), unknown))
        except ZeroDivisionError:
            estimates[unknown] = None
    return estimates[unknown]


def guess(extents: Iterable[Dim], unknown: int) -> int:
    """A value for symbols in estimates: `unknown`, doubled until all `extents` are at least 1, as a
    length shorter than a window has no frames.
    """
    found = unknown
    for extent in extents:
        while not isinstance(extent, int) and found < unknown << MOST_DOUBLINGS:
            value = estimate(extent, found)
            if value is not None and value >= 1:
                break
            found *= 2
    return found


def symbols(dim: Dim) -> set[str]:
    """Names of the symbols in `dim`."""
    return set() if isinstance(dim, int) else set(_symbols(dim))


def _symbols(dim: DimExpr) -> frozenset[str]:
    """The symbols of an expression, computed once."""
    found: frozenset[str] | None = dim.__dict__.get("_symbols")
    if found is None:
        names: set[str] = set()
        for monomial, _ in dim.terms:
            for atom in monomial:
                if isinstance(atom, Symbol):
                    names.add(atom.name)
                else:
                    for part in _parts(atom):
                        names.update(() if isinstance(part, int) else _symbols(part))
        found = dim.__dict__["_symbols"] = frozenset(names)
    return found


def _parts(atom: FloorDiv | Extremum) -> tuple[Dim, ...]:
    """The dims that an atom consists of."""
    return (atom.numerator, atom.denominator) if isinstance(atom, FloorDiv) else atom.args


def atoms(dim: Dim) -> Iterator[Atom]:
    """Every atom in `dim`, innermost first."""
    if isinstance(dim, int):
        return
    for monomial, _ in dim.terms:
        for atom in monomial:
            if not isinstance(atom, Symbol):
                for part in _parts(atom):
                    yield from atoms(part)
            yield atom


def product(dims: tuple[Dim, ...] | list[Dim]) -> Dim:
    """The product of `dims`; 1 for none."""
    return math.prod(dims)  # by `multiply` where a dim is symbolic
