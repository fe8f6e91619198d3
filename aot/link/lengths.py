"""Decides when a program reads the lengths of growing state variables, and computes their bounds.

A length is a scalar that `execute` reads when a run begins, so that a state which has grown needs
no plan of its own: memory is set aside for the longest state. Where that can't be, all lengths are
keys of a plan, which `prepare` reads. Owns that choice. Emits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from aot.analysis.control import control_ops
from aot.base.records import dataclass
from aot.ir import dims
from aot.ir.data_dims import Largest, extents_of, limit_of, limits_of
from aot.ir.dims import Dim, DimExpr, Symbol
from aot.ir.graph import Function
from aot.link.states import States


@dataclass(frozen=True)
class Lengths:
    """The lengths of growing states that a program reads during a run, and bounds of data-dependent
    dims.

    Attributes:
        of_a_run: symbols of lengths that `execute` reads; none where they are keys of a plan.
        largest: of dims in which a run has a part, by these or by what values give.
    """

    of_a_run: frozenset[str]
    largest: Largest


def lengths_of(function: Function, states: States) -> Lengths:
    """Decides where the lengths of a function's states are read."""
    given = extents_of(function)
    names = frozenset(str(length.symbol) for length in states.lengths)
    limits = limits_of(given, function.assumptions)
    found = Largest({*given, *names}, {**limits, **_limits(function, states, names | given.keys())})
    if names and _is_known_without(function, names) and _is_bounded(function, found):
        return Lengths(names, found)
    return Lengths(frozenset(), Largest(given, limits))


def _limits(function: Function, states: States, unknown: Set[str]) -> dict[str, Dim]:
    """Upper bounds of state lengths at the start of a run: the capacity, and other bounds minus
    what the run appends.
    """
    found: dict[str, Dim] = {}
    bounded = [limit_of(a.left, a.right) for a in function.assumptions]
    most = [limited for limited in bounded if limited is not None]
    for kept in states.kept:
        variable = kept.variable
        if variable.length is None or variable.next_length is None:
            continue
        pairs = [(variable.length, variable.capacity), (variable.next_length, variable.capacity)]
        for dim, limit in [*pairs, *most]:
            solved = _less(dim, limit, str(variable.length), unknown)
            if solved is not None:
                name = str(variable.length)
                found[name] = dims.minimum(found.get(name, solved), solved)
    return found


def _less(dim: Dim, limit: Dim, name: str, unknown: Set[str]) -> Dim | None:
    """An upper bound of symbol `name`, given that `dim` is at most `limit`; None if no bound can be
    computed before a run.
    """
    rest = dims.add(dim, dims.multiply(dims.symbol(name), -1))
    low, _ = dims.bounds(rest, {})
    is_known = (dims.symbols(rest) | dims.symbols(limit)).isdisjoint(unknown)
    if name not in dims.symbols(dim) or not is_known or low is None or low < 0:
        return None
    return dims.add(limit, dims.multiply(rest, -1))


def solution(dim: DimExpr, known: Iterable[str]) -> tuple[str, int, Dim] | None:
    """(symbol, a, rest) of a dim `a * symbol + rest` with one unknown symbol; None if the dim has
    another form."""
    unknown = dims.symbols(dim) - set(known)
    if len(unknown) != 1:
        return None
    (name,) = unknown
    factor = dict(dim.terms).get((Symbol(name),), 0)
    rest = dims.add(dim, dims.multiply(dims.symbol(name), -factor))
    return None if factor < 1 or name in dims.symbols(rest) else (name, factor, rest)


def _is_known_without(function: Function, names: frozenset[str]) -> bool:
    """Whether the extents of inputs that contain no length determine all other symbols."""
    extents = [d for v in function.inputs for d in v.type.dims if isinstance(d, DimExpr)]
    known: set[str] = set()
    pending = [d for d in extents if names.isdisjoint(dims.symbols(d))]
    while pending:
        for dim in pending:
            found = solution(dim, known)
            known |= set() if found is None else {found[0]}
        left = [d for d in pending if not dims.symbols(d) <= known]
        if len(left) == len(pending):
            break
        pending = left
    return all(dims.symbols(d) <= known | names for d in extents)


def _is_bounded(function: Function, largest: Largest) -> bool:
    """Whether each value's size and each output's dims have upper bounds."""
    values = [v for op in control_ops(function) for v in op.results]
    sizes = [v.type.bytes for v in values]
    return all(
        largest.largest(dim) is not None
        for dim in (*sizes, *(d for v in function.results for d in v.type.dims))
    )
