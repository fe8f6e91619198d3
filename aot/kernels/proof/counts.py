"""Ranges of the values in scratch that a kernel fills with a constant and then uses as counters.

Owns what follows for all elements of a scratch at once: where each is changed at most `times`, by
`least` to `most`, elements from `low` to `high` are then from `low + times * least` to
`high + times * most`. Lanes of a vector count apart and are added up in halves, which doubles the
range each time. Reads statements as they stand and knows no facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from aot.base.records import dataclass
from aot.ir.expr import Binary, Cast, Const, Expr, Load, Select, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import For, If, Kernel, Scratch, Stmt, Store, walk
from aot.kernels.proof.conditions import range_of

Range = tuple[int, int]


@dataclass(frozen=True)
class _Stored:
    """A store, the loops around it, and whether it is conditional."""

    store: Store
    loops: tuple[For, ...]
    is_conditional: bool


def counted_in(kernel: Kernel) -> frozenset[Scratch]:
    """One-dimensional integer scratch that a kernel both fills with a constant and adds constants
    to."""
    filled: set[Scratch] = set()
    added: set[Scratch] = set()
    for stmt in walk(kernel.body):
        target = stmt.target if isinstance(stmt, Store) else None
        if not isinstance(target, Scratch) or not target.dtype.is_integer or len(target.shape) > 1:
            continue
        assert isinstance(stmt, Store)
        if isinstance(stmt.value, Const):
            filled.add(target)
        elif _term_of(stmt) is not None:
            added.add(target)
    return frozenset(filled & added)


def ranges_after(
    stmt: Stmt, counted: frozenset[Scratch], known: Mapping[Scratch, Range]
) -> dict[Scratch, Range]:
    """Ranges of scratch elements after a statement, for each scratch that it stores to.

    Args:
        counted: scratch that is looked at; no lane stores to that of another one.
        known: what elements are between before the statement.
    """
    stores: dict[Scratch, list[_Stored]] = {}
    for found in _stores(stmt, (), is_conditional=False):
        if found.store.target in counted:
            assert isinstance(found.store.target, Scratch)
            stores.setdefault(found.store.target, []).append(found)
    after: dict[Scratch, Range] = {}
    for scratch, several in stores.items():
        made = _filled(scratch, several)
        if made is None and scratch in known:
            made = _counted(known[scratch], several) or _halved(known[scratch], several)
        if made is not None and _is_held(made, scratch.dtype):
            after[scratch] = made
    return after


def _is_held(ends: Range, dtype: DType) -> bool:
    least, most = range_of(dtype)
    return least is not None and most is not None and least <= ends[0] and ends[1] <= most


def _stores(stmt: Stmt, loops: tuple[For, ...], *, is_conditional: bool) -> Iterator[_Stored]:
    match stmt:
        case Store():
            yield _Stored(stmt, loops, is_conditional or stmt.guard is not None)
        case For():
            for inner in stmt.body:
                yield from _stores(inner, (*loops, stmt), is_conditional=is_conditional)
        case If():
            for inner in (*stmt.then, *stmt.otherwise):
                yield from _stores(inner, loops, is_conditional=True)


def _filled(scratch: Scratch, stores: list[_Stored]) -> Range | None:
    """The range of a memory's elements after one store that fills it with a constant; None for
    other stores."""
    (first, *others) = stores
    value, (index,) = first.store.value, first.store.indices
    if others or first.is_conditional or not isinstance(value, Const):
        return None
    if any(loop.extent == 0 or not isinstance(loop.extent, int) for loop in first.loops):
        return None
    extents = {loop.var: loop.extent for loop in first.loops}
    is_whole = (extents.get(index) if isinstance(index, Var) else 1) == scratch.shape[0]
    return (int(value.value), int(value.value)) if is_whole else None


def _counted(before: Range, stores: list[_Stored]) -> Range | None:
    """The range of a memory's elements after stores that add constants to them, each at most as
    often as its loops run; None for other stores."""
    low, high = before
    for stored in stores:
        ends, times = _ends(_term_of(stored.store)), _times(stored)
        if ends is None or times is None:
            return None
        low, high = low + times * min(ends[0], 0), high + times * max(ends[1], 0)
    return low, high


def _halved(before: Range, stores: list[_Stored]) -> Range | None:
    """The range of a memory's elements after stores that each add one element to another that they
    leave unchanged: at most twice the range before. None for other stores.
    """
    (stored, *others) = stores
    term = _term_of(stored.store)
    is_other = isinstance(term, Load) and term.source is stored.store.target and term.guard is None
    if others or not is_other or len(stored.loops) > 1 or _times(stored) != 1:
        return None
    assert isinstance(term, Load)
    here, there = _linear(stored.store.indices[0]), _linear(term.indices[0])
    so_many = stored.loops[0].extent if stored.loops else 1
    if here is None or there is None or here[0] != there[0] or not isinstance(so_many, int):
        return None
    if not set(here[0].values()) <= {1} or abs(there[1] - here[1]) < so_many:
        return None
    return min(before[0], 2 * before[0]), max(before[1], 2 * before[1])


def _term_of(store: Store) -> Expr | None:
    """The term that a store adds to the element it overwrites; None if it does anything else."""
    value = store.value
    if isinstance(value, Binary) and value.op == "add":
        for old, term in ((value.a, value.b), (value.b, value.a)):
            if not isinstance(old, Load) or old.source is not store.target or old.guard is not None:
                continue
            here = _linear(store.indices[0])
            if here is not None and here == _linear(old.indices[0]):
                return term
    return None


def _ends(term: Expr | None) -> Range | None:
    """(least, greatest) value of a term, from its form alone; None if unknown."""
    match term:
        case Const() if term.dtype.is_integer:
            return int(term.value), int(term.value)
        case Cast() if term.a.dtype is DType.BOOL:
            return 0, 1
        case Select():
            a, b = _ends(term.a), _ends(term.b)
            return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
    return None


def _times(stored: _Stored) -> int | None:
    """An upper bound on how often a store changes the same element; None if unknown."""
    extents = {loop.var: loop.extent for loop in stored.loops}
    if not all(isinstance(extent, int) for extent in extents.values()):
        return None
    found = _linear(stored.store.indices[0])
    if found is not None:
        of_loops = [var for var in found[0] if var in extents]
        if len(of_loops) == 1 == len(found[0]):  # another element each time
            extents.pop(of_loops[0])
    return prod(extent for extent in extents.values() if isinstance(extent, int))


def _linear(index: Expr) -> tuple[dict[Var, int], int] | None:
    """(coefficient of each variable, constant) of a linear index; None if it is not linear."""
    match index:
        case Var():
            return {index: 1}, 0
        case Const():
            return {}, int(index.value)
        case Binary(op="add"):
            a, b = _linear(index.a), _linear(index.b)
            if a is None or b is None:
                return None
            factors = {v: a[0].get(v, 0) + b[0].get(v, 0) for v in (*a[0], *b[0])}
            return {v: n for v, n in factors.items() if n}, a[1] + b[1]
    return None
