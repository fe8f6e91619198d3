"""Proves that each access of a kernel is inside its buffer or scratch, whatever its extents are.

Owns which walks over a kernel are made: one for each stand of its switches, and again with bounds
of what it stores. Takes for granted that what is loaded out of memory that the kernel writes was
stored there by it, and that index arithmetic does not wrap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import gcd

from aot.ir import dims, expr
from aot.ir.dims import Dim, Interval
from aot.ir.expr import Binary, Expr
from aot.ir.types import DType
from aot.kernels.ir.nodes import For, Kernel, LoopKind, Store, expressions_of, walk
from aot.kernels.proof.switches import switches_of
from aot.kernels.proof.values import Memory
from aot.kernels.proof.walk import (
    Bounds,
    Effort,
    Ended,
    Premises,
    Region,
    Verdict,
    Walk,
    outside_loops,
    stored_in,
)

MOST_EXTENTS = 3  # that are tried as bounds of what memories hold
MOST_NUMBERS = 8  # with others that are


def check_bounds(
    kernel: Kernel,
    known: Mapping[str, Interval] | None = None,
    dims: Mapping[str, Dim] | None = None,
    equal: Iterable[tuple[Dim, Dim]] = (),
    index_bits: int = 64,
    *,
    extents: Collection[str] = (),
    natural: Iterable[Dim] = (),
    is_brief: bool = False,
    is_rough: bool = False,
) -> Verdict:
    """Proves that the accesses of a kernel are in bounds, as far as it can; the verdict lists the
    others.

    Args:
        known: bounds of symbols; others are not negative.
        dims: what the kernel's dim parameters are, in terms of other symbols.
        equal: dims of these symbols that are equal.
        index_bits: how wide an index is on the target.
        extents: those of these parameters that are not negative.
        natural: dims of these parameters that are not negative.
        is_brief: ends at the first access that is not proved quickly.
        is_rough: knows long sums among `dims` by their range alone, which is quicker.
    """
    given = Premises(
        *(known or {}, dims or {}, extents, tuple(natural), tuple(equal), index_bits),
        is_rough=is_rough,
    )
    effort = Effort.BRIEF if is_brief else Effort.FULL
    verdict = Verdict()
    for case in _cases(kernel, given):
        found = _check(kernel, case, effort)
        verdict.proved += found.proved
        verdict.unproved += found.unproved
        verdict.steps += found.steps
        if found.unproved:
            break
    return verdict


def _cases(kernel: Kernel, given: Premises) -> Iterator[Premises]:
    """The premises `given`, once for each combination of values that the kernel's switches may
    have."""
    switches = switches_of(kernel)
    pending = [given]
    while pending:
        case = pending.pop()
        start = Walk(kernel, case, {}, set(), Effort.NONE) if switches else None
        for switch in switches:
            numbers = [] if start is None or switch in case.switches else start.numbers_of(switch)
            if numbers:
                known = ({**case.switches, switch: n} for n in numbers)
                pending += [replace(case, switches=stand) for stand in known]
                break
        else:
            yield case


def _check(kernel: Kernel, given: Premises, effort: Effort) -> Verdict:
    made = Walk(kernel, given, {}, set(), effort)
    with suppress(Ended):
        made.run()
        if made.needed:
            bounds, no_counters = _stored_bounds(kernel, given, made)
            made = Walk(kernel, given, bounds, no_counters, effort)
            made.run()
    made.verdict.steps = made.space.steps
    return made.verdict


def _stored_bounds(kernel: Kernel, given: Premises, first: Walk) -> tuple[Bounds, set[Region]]:
    """(bounds of the values that a kernel stores, by region; regions whose memory is no counter).

    Candidates are 0, the extents that most indices were not shown to be below and their factors,
    the greatest numbers that the kernel stores, and others that it stores and compares with, for
    the memories that these indices depend on. All are taken to hold; those that a store breaks are
    dropped, until the rest holds for what is stored from what is loaded by the same bounds: by
    induction over a run.
    """
    needed = _needed(first)
    extents = Counter(_bare(unproved.extent) for unproved in first.verdict.unproved)
    often = [extent for extent, _ in extents.most_common(MOST_EXTENTS)]
    factors = [dims.symbol(name) for extent in often for name in sorted(_factors(extent))]
    greatest = [first.greatest[memory] for memory in needed if memory in first.greatest]
    likely = dict.fromkeys([*often, *factors, *greatest, *_numbers(kernel, needed)])
    numbers = list(likely)[:MOST_NUMBERS]
    tried = [(False, 0), *((True, dims.add(n, -by)) for n in numbers for by in (0, 1))]
    loops = [s for s in walk(kernel.body) if isinstance(s, For) and s.kind is LoopKind.SERIAL]
    bounds: Bounds = {(None, memory): list(tried) for memory in needed}
    for loop in loops:
        for memory in stored_in(loop.body):
            if (None, memory) in bounds:
                bounds[loop.var, memory] = list(tried)
    no_counters: set[Region] = set()
    while True:
        tracked = Walk(kernel, given, bounds, no_counters, Effort.NONE)
        tracked.run()
        kept = {r: [b for b in bs if (r, b) not in tracked.broken] for r, bs in bounds.items()}
        if kept == bounds and tracked.no_counters == no_counters:
            return bounds, no_counters
        bounds, no_counters = kept, set(tracked.no_counters)


def _numbers(kernel: Kernel, needed: Collection[Memory]) -> Iterator[Dim]:
    """Candidate bounds: numbers stored to some memories, trip counts of loops that store there, and
    numbers that indices are compared with.
    """
    for stmt in walk(kernel.body):
        if isinstance(stmt, Store) and stmt.target in needed:
            yield from _dims(stmt.value)
        if isinstance(stmt, For):
            stores = (s for s in outside_loops(stmt.body) if isinstance(s, Store))
            if any(s.target in needed for s in stores):
                yield stmt.extent
    for stmt in walk(kernel.body):
        for root in expressions_of(stmt):
            for e in expr.nodes(root):
                if isinstance(e, Binary) and e.a.dtype is DType.INDEX and e.op in expr.COMPARE_OPS:
                    yield from _dims(e.a, e.b)


def _dims(*numbers: Expr) -> Iterator[Dim]:
    yield from (dim for dim in map(expr.dim_of, numbers) if dim is not None and dim != 0)


def _bare(dim: Dim) -> Dim:
    """A dynamic extent divided by the common factor of its terms; a number unchanged."""
    if isinstance(dim, int):
        return dim
    common = gcd(dim.constant, *(factor for _, factor in dim.terms))
    return dims.floor_divide(dim, common)


def _factors(dim: Dim) -> set[str]:
    """The symbols of an extent that is a product, as row indices within it are below one of them;
    empty for other extents."""
    is_product = not isinstance(dim, int) and any(len(monomial) > 1 for monomial, _ in dim.terms)
    return dims.symbols(dim) if is_product else set()


def _needed(first: Walk) -> dict[Memory, None]:
    """The memories whose stored values matter to the accesses that the first walk could not
    prove."""
    found: dict[Memory, None] = {}
    pending = list(first.needed)
    while pending:
        memory = pending.pop()
        if memory not in found:
            found[memory] = None
            pending.extend(first.made_of.get(memory, ()))
    return found
