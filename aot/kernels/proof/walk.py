"""Walks a kernel for bounds proofs: tracks the facts at each access, and proves that it is in
bounds.

Owns the order in which a kernel's statements are met, the facts of its loops, guards and stores,
and the verdict. What memories hold is said by bounds from outside, which it takes to hold and holds
each store to. Judges a kernel by itself and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from enum import Enum
from math import prod

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.dims import Dim, Extremum, Interval, symbol
from aot.ir.expr import Cast, Expr, Load, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    Buffer,
    Combine,
    For,
    If,
    Kernel,
    Let,
    LoopKind,
    MatrixDot,
    MatrixProduct,
    MatrixStore,
    MatrixZero,
    Prefetch,
    Scratch,
    Space,
    Stmt,
    Store,
    walk,
)
from aot.kernels.proof.conditions import range_of
from aot.kernels.proof.counts import counted_in, ranges_after
from aot.kernels.proof.extents import Extents
from aot.kernels.proof.inequalities import MOST_STEPS, Inequalities
from aot.kernels.proof.polynomials import Polynomial, combined, constant, scaled, variables_of
from aot.kernels.proof.switches import chosen_by
from aot.kernels.proof.values import Memory, Values

FOR_BOUNDS = 5  # times the steps of a kernel that bounds of stored values may take


@dataclass(frozen=True)
class Unproved:
    """A bound of an access, lower or upper, that was not proved.

    Attributes:
        memory: the buffer's or the scratch's name.
        what: "load" or "store".
        dim: along which the access may be outside.
        extent: of the memory, along that dim.
        end: "before its start" or "past its end".
        goal: the number that could not be shown not to be negative.
    """

    memory: str
    what: str
    dim: int
    extent: Dim
    end: str
    goal: str

    def __str__(self) -> str:
        return (
            f"{self.what} of {self.memory} may be {self.end} along dim {self.dim}: "
            f"not known to be >= 0: {self.goal}"
        )


@dataclass
class Verdict:
    """The outcome of the bounds proofs of a kernel's accesses.

    Attributes:
        proved: how many ends of accesses were proved, by how.
        unproved: those that were not.
        steps: of all searches together.
    """

    proved: Counter[str] = field(default_factory=Counter)
    unproved: list[Unproved] = field(default_factory=list)
    steps: int = 0


class Effort(Enum):
    """What a walk proves about accesses: nothing; cheap bounds, until the first failure; or
    everything that it can."""

    NONE = "none"
    BRIEF = "brief"
    FULL = "full"


class Ended(Exception):
    """Raised to end a brief walk at the first bound that it cannot prove."""


@dataclass(frozen=True)
class Premises:
    """The assumptions under which a kernel is proved.

    Attributes:
        known: bounds of symbols; others are not negative.
        dims: what the kernel's dim parameters are, in terms of other symbols.
        extents: those of these parameters that are not negative.
        natural: dims of these parameters that are not negative.
        equal: dims of these symbols that are equal.
        index_bits: how wide an index is on the target.
        switches: those of the kernel that are known.
        is_rough: whether long sums among `dims` are known by their range alone, which is quicker.
    """

    known: Mapping[str, Interval]
    dims: Mapping[str, Dim]
    extents: Collection[str]
    natural: tuple[Dim, ...]
    equal: tuple[tuple[Dim, Dim], ...]
    index_bits: int
    switches: Mapping[Extremum, int] = field(default_factory=dict)
    is_rough: bool = False


Region = tuple[Var | None, Memory]
"""A memory while the loop of a variable runs; of None, always."""
Bound = tuple[bool, Dim]
"""What every value is at least (False), or at most (True)."""
Bounds = dict[Region, list[Bound]]


def stored_in(body: tuple[Stmt, ...]) -> Counter[Memory]:
    """The number of statements that store to each memory."""
    return Counter(memory for s in walk(body) for memory in targets_of(s))


def targets_of(stmt: Stmt) -> tuple[Memory, ...]:
    """The memories that a single statement stores to."""
    match stmt:
        case Store():
            return (stmt.target,)
        case MatrixDot() | MatrixZero() | MatrixProduct():
            return (stmt.sums,)
        case MatrixStore():
            return (stmt.target.source,)
        case Combine():
            return (stmt.shared,)
    return ()


class Walk:
    """One walk over a kernel, which proves accesses or checks candidate bounds of stored values.

    Attributes:
        loads_what_is_written: the memories that values were loaded from which the kernel stores.
        sources: the memory that each variable was loaded from.
        needed: the memories whose values a proof that was not found depends on.
        made_of: the memories whose values those that are stored depend on.
        greatest: the greatest number stored to memories, of those that depend on no memory.
        broken: the bounds of memories that some store does not keep.
        no_counters: memories that a loop does not count in.
    """

    def __init__(
        self,
        kernel: Kernel,
        given: Premises,
        bounds: Bounds,
        no_counters: set[Region],
        effort: Effort,
    ) -> None:
        self.kernel = kernel
        self.space = Inequalities()
        if bounds:  # which all stores are held to
            self.space.allowance = FOR_BOUNDS
        self.extents = Extents(self.space, given.known, given.dims, given.is_rough)
        self.values = Values(kernel, self.space, self.extents, given.index_bits, self.loaded)
        self.verdict = Verdict()
        self.bounds = bounds
        self.broken: set[tuple[Region, Bound]] = set()
        self.loads_what_is_written = {memory: None for _, memory in bounds}
        self.no_counters = set(no_counters)
        self.counts: dict[Memory, tuple[Var, Polynomial]] = {}
        self.loops: list[For] = []
        self.stores = stored_in(kernel.body)
        self.effort = effort
        self._stored: dict[int, dict[Memory, None]] = {}  # by bodies
        self._bodies: list[tuple[Stmt, ...]] = []  # which live as long as they are known here
        self.sources: dict[int, Memory] = {}
        self.needed: dict[Memory, None] = {}
        self.made_of: dict[Memory, dict[Memory, None]] = {}
        self.greatest: dict[Memory, int] = {}
        self.has_lanes = max(kernel.workgroup_size) > 1
        self.counted = frozenset() if self.has_lanes else counted_in(kernel)
        self.space.is_hasty = effort is Effort.NONE
        self.space.limits = [self.values.dim(dims.product(b.shape)) for b in kernel.buffers]
        for name in given.extents:
            self.space.assume(self.values.dim(symbol(name)))
        for dim in given.natural:
            self.space.assume(self.values.dim(dim))
        for left, right in given.equal:
            apart = combined(self.values.dim(left), self.values.dim(right), -1)
            self.space.assume(apart, scaled(apart, -1))
        for switch, number in given.switches.items():
            x = self.values.dim(chosen_by(switch))
            self.space.assume(combined(x, constant(-1)) if number else scaled(x, -1))
            self.extents.switches[switch] = number

    def numbers_of(self, switch: Extremum) -> list[int]:
        """The values, among 0 and 1, that a switch may have; empty where it may be negative."""
        x = self.values.dim(chosen_by(switch))
        if self.space.proves(x) is None:
            return []
        if self.space.proves(scaled(x, -1), is_thorough=False) is not None:
            return [0]
        is_one = self.space.proves(combined(x, constant(-1)), is_thorough=False) is not None
        return [1] if is_one else [0, 1]

    def run(self) -> None:
        self.body(self.kernel.body)

    # Statements

    def body(self, body: tuple[Stmt, ...]) -> None:
        forwarded: list[Scratch] = []
        tables = self.tables(body)
        for at, stmt in enumerate(body):
            ranges = ranges_after(stmt, self.counted, self.values.ranges) if self.counted else {}
            match stmt:
                case For():
                    self.loop(stmt)
                    forwarded += self.forward(stmt)
                case Let():
                    self.loads(stmt.value)
                    self.values.let(stmt.var, stmt.value)
                case Store():
                    self.store(stmt)
                    if at in tables:
                        self.values.tabulate(*tables[at])
                        forwarded.append(tables[at][0])
                case If():
                    self.branch(stmt)
                case Combine():
                    self.combine(stmt)
                case Prefetch():
                    self.loads(stmt.index)
                case MatrixDot():
                    self.body(stmt.meaning())
                case MatrixZero() | MatrixProduct() | MatrixStore():
                    self.body((stmt.meaning(),))
            self.values.ranges |= ranges
        for scratch in forwarded:
            self.values.forward_no_more(scratch)

    def branch(self, stmt: If) -> None:
        self.loads(stmt.condition)
        for sign, part in ((True, stmt.then), (False, stmt.otherwise)):
            mark = self.space.mark()
            if part and self.hold(stmt.condition, sign):
                self.body(part)
            self.space.leave(mark)
            self.rewritten(part)

    def loop(self, loop: For) -> None:
        extent = self.values.dim(loop.extent)
        last = combined(extent, constant(-1))
        if self.space.is_contradictory([last]):
            return
        mark = self.space.mark()
        var = self.values.bind(loop.var, extent)
        if len(extent) > 1 or () not in extent:
            self.space.assume(combined(last, var, -1), last)
        counted = self.counters(loop, var)
        self.enter(loop)
        self.rewritten(loop.body)
        outside = self.counts
        self.counts = {**outside, **{m: (loop.var, most) for m, most in counted.items()}}
        self.loops.append(loop)
        self.body(loop.body)
        self.loops.pop()
        self.counts = outside
        self.space.leave(mark)
        self.rewritten(loop.body)
        for memory, most in counted.items():
            if (loop.var, memory) not in self.no_counters:
                times = self.space.extremum([extent, {}], is_max=True)
                self.values.at_most(memory, combined(combined(most, var, -1), times))

    def rewritten(self, body: tuple[Stmt, ...]) -> None:
        """Records that the memories which the statements store to may have changed."""
        for memory in self.stored_by(body):
            self.values.written(memory)

    def stored_by(self, body: tuple[Stmt, ...]) -> dict[Memory, None]:
        """The memories that a body stores to, cached by body."""
        found = self._stored.get(id(body))
        if found is None:
            found = {}
            for stmt in body:
                match stmt:
                    case For():
                        found |= self.stored_by(stmt.body)
                    case If():
                        found |= self.stored_by(stmt.then) | self.stored_by(stmt.otherwise)
                    case _:
                        found |= dict.fromkeys(targets_of(stmt))
            self._stored[id(body)] = found
            self._bodies.append(body)
        return found

    def combine(self, stmt: Combine) -> None:
        extent = constant(stmt.extent)
        mark = self.space.mark()
        self.values.bind(stmt.lane, extent)
        self.loads(stmt.value)
        self.access("store", stmt.shared, (stmt.lane,), 1)
        self.space.leave(mark)
        self.values.written(stmt.shared)
        self.values.name(stmt.result)

    def store(self, stmt: Store) -> None:
        self.loads(*stmt.indices, stmt.value)
        mark = self.space.mark()
        if stmt.guard is not None:
            self.loads(stmt.guard)
        if stmt.guard is None or self.hold(stmt.guard):
            self.access("store", stmt.target, stmt.indices, 1)
            self.stored(stmt)
        self.space.leave(mark)

    def stored(self, stmt: Store) -> None:
        """Checks a stored value against the bounds assumed of its memory, and updates what is known
        of it."""
        memory = stmt.target
        value = None
        is_index = isinstance(stmt.value, Cast) and stmt.value.a.dtype is DType.INDEX
        if not self.bounds and memory.dtype.is_integer and (self.sources or is_index):
            stored = self.values.form(stmt.value)
            found = self.memories_of(stored)
            self.made_of[memory] = self.made_of.get(memory, {}) | found
            _, greatest = self.space.interval(stored)
            if greatest is not None and not found:
                self.greatest[memory] = max(self.greatest.get(memory, greatest), greatest)
        if memory.dtype.is_integer and memory in self.loads_what_is_written:
            value = self.values.form(stmt.value)
            for region in self.regions(memory) if self.effort is Effort.NONE else ():
                self.keeps(region, value)
        if memory in self.counts:
            var, most = self.counts[memory]
            counted = self.values.form(stmt.value)
            more = combined(most, constant(1))
            if self.space.proves(combined(more, counted, -1)) is None:
                self.no_counters.add((var, memory))
            self.counts[memory] = var, more  # for the rest of the iteration
        kept = value if value is not None and stmt.guard is None else None
        places = self.values.places(stmt.indices)
        self.values.written(memory)
        if kept is not None and self.is_own(memory):
            self.values.holds(memory, places, kept)

    def is_own(self, memory: Memory) -> bool:
        """Whether no other lane can store to an element that this lane has just stored."""
        is_private = isinstance(memory, Scratch) and memory.space in (Space.REGISTER, Space.PRIVATE)
        return is_private or not self.has_lanes

    def hold(self, e: Expr, sign: bool = True) -> bool:
        """Assumes a condition; False where it certainly never holds."""
        found = self.values.condition(e, sign)
        return self.space.assume_all(found.facts, found.disjunctions)

    # What memories hold

    def loaded(self, memory: Memory, value: Polynomial) -> None:
        """Adds the assumed bounds of a memory to a value loaded from it."""
        self.loads_what_is_written[memory] = None
        self.sources |= dict.fromkeys(variables_of(value), memory)
        for region in self.regions(memory):
            for bound in self.bounds[region]:
                if not self.is_implied(bound, region):
                    self.space.bound(value, self.kept(bound, value))
        if memory in self.counts:
            var, most = self.counts[memory]
            if (var, memory) not in self.no_counters:
                self.space.bound(value, combined(most, value, -1))

    def regions(self, memory: Memory) -> Iterator[Region]:
        """The regions of a memory whose assumed bounds apply here."""
        if (None, memory) in self.bounds:
            yield None, memory
        for loop in self.loops:
            if (loop.var, memory) in self.bounds and memory in self.stored_by(loop.body):
                yield loop.var, memory

    def is_implied(self, bound: Bound, region: Region) -> bool:
        """Whether the region also assumes the bound that is tighter by one."""
        is_most, dim = bound
        return is_most and (True, dims.add(dim, -1)) in self.bounds[region]

    def kept(self, bound: Bound, value: Polynomial) -> Polynomial:
        """The polynomial that is non-negative if and only if `value` satisfies the bound."""
        is_most, dim = bound
        return scaled(combined(value, self.values.dim(dim), -1), -1 if is_most else 1)

    def keeps(self, region: Region, value: Polynomial) -> None:
        """Checks a value, stored or already in memory, against the bounds of a region; records
        those it breaks."""
        for bound in self.bounds[region]:
            is_known_broken = (region, bound) in self.broken
            if not is_known_broken and not self.space.proves(
                self.kept(bound, value), is_thorough=False
            ):
                self.broken.add((region, bound))

    def enter(self, loop: For) -> None:
        """Checks that values stored before a loop satisfy the bounds assumed inside it."""
        is_asked = self.effort is Effort.NONE and self.bounds
        for memory in self.stored_by(loop.body) if is_asked else ():
            if (loop.var, memory) in self.bounds:
                value = self.values.held(memory)
                if value is None or not isinstance(memory, Scratch) or prod(memory.shape) > 1:
                    value = self.space.variable("value", *range_of(memory.dtype))
                    self.loaded(memory, value)
                self.keeps((loop.var, memory), value)

    def counters(self, loop: For, var: Polynomial) -> dict[Memory, Polynomial]:
        """Counters in a loop, with the maximum of each before its store: memories stored to at most
        once per iteration and, as far as is known, incremented by one."""
        found: dict[Memory, Polynomial] = {}
        if loop.kind is not LoopKind.SERIAL or not self.bounds:
            return found
        stores = stored_in(loop.body)
        once = {s.target for s in outside_loops(loop.body) if isinstance(s, Store)}
        for memory in dict.fromkeys(memory for _, memory in self.bounds):
            is_single = isinstance(memory, Scratch) and prod(memory.shape) == 1
            is_once = is_single and stores[memory] == 1 and memory in once
            if is_once and (loop.var, memory) not in self.no_counters:
                assert isinstance(memory, Scratch)
                zero = (expr.index(0),) * len(memory.shape)
                found[memory] = combined(self.values.form(Load(memory, zero, memory.dtype)), var)
        return found

    def forward(self, loop: For) -> Iterator[Scratch]:
        """Scratch whose loads can be forwarded: a loop has just stored each element, by one
        statement, from values that do not change. Only integers that may become indices, and
        conditions."""
        variables: list[Var] = []
        inner = loop
        stored = self.stored_by(loop.body)
        if not all(isinstance(memory, Scratch) for memory in stored):
            return
        if all(memory.dtype.is_float for memory in stored):
            return
        while True:
            if not isinstance(inner.extent, int):
                return
            variables.append(inner.var)
            statements = [s for s in inner.body if not isinstance(s, Let)]
            if len(statements) != 1 or not isinstance(statements[0], For):
                break
            inner = statements[0]
        for store in statements:
            if not isinstance(store, Store) or store.guard is not None:
                continue
            scratch = store.target
            is_once = isinstance(scratch, Scratch) and self.stores[scratch] == 1
            if not is_once or scratch.dtype.is_float:
                continue
            assert isinstance(scratch, Scratch)
            if store.indices != tuple(variables):
                continue
            inside = list(walk(loop.body))
            named = {s.var for s in inside if isinstance(s, Let)}
            named |= {s.result for s in inside if isinstance(s, Combine)}
            is_whole = scratch.shape == tuple(self._extent(loop, v) for v in variables)
            if is_whole and self.values.forward(scratch, tuple(variables), store.value, named):
                yield scratch

    def tables(
        self, body: tuple[Stmt, ...]
    ) -> dict[int, tuple[Scratch, tuple[tuple[int, Expr], ...]]]:
        """The tables of conditions in a body, by the position of their last store: the scratch, and
        its elements by constant index. In a table, all elements are stored once each, at constant
        indices.
        """
        places: dict[Scratch, dict[int, Expr]] = {}
        last: dict[Scratch, int] = {}
        for at, stmt in enumerate(body):
            target = stmt.target if isinstance(stmt, Store) else None
            if isinstance(target, Scratch) and len(target.shape) == 1 and self.is_own(target):
                assert isinstance(stmt, Store)
                number = expr.dim_of(stmt.indices[0])
                if isinstance(number, int) and target.dtype is DType.BOOL and stmt.guard is None:
                    places.setdefault(target, {})[number] = stmt.value
                    last[target] = at
        if not places:
            return {}
        stores = stored_in(body)
        return {
            last[scratch]: (scratch, tuple(found.items()))
            for scratch, found in places.items()
            if stores[scratch] == len(found)
            and (scratch.shape == (len(found),) or self.stores[scratch] == len(found))
        }

    @staticmethod
    def _extent(loop: For, var: Var) -> Dim:
        loops = (s for s in walk((loop,)) if isinstance(s, For) and s.var is var)
        return next(loops).extent

    # Accesses

    def loads(self, *roots: Expr) -> None:
        seen: set[Expr] = set()
        stack = list(roots)
        while stack:
            e = stack.pop()
            if e in seen:
                continue
            seen.add(e)
            stack.extend(expr.children(e))
            if isinstance(e, Load):
                mark = self.space.mark()
                parts = max(1, e.dtype.parts // e.source.dtype.parts)
                if e.guard is None or self.hold(e.guard):
                    self.access("load", e.source, e.indices, parts)
                self.space.leave(mark)

    def access(
        self, what: str, memory: Buffer | Scratch, indices: tuple[Expr, ...], parts: int
    ) -> None:
        if self.effort is Effort.NONE:
            return
        for dim, (index, extent) in enumerate(zip(indices, memory.shape, strict=True)):
            count = parts if dim == len(indices) - 1 else 1
            first = self.values.form(index)
            size = self.values.dim(extent)
            room = combined(combined(size, constant(-count)), first, -1)
            written = self.space.as_written(first)  # which may wrap where it is outside
            if (len(written) > 1 and self.space.proves_inside(written, size, count)) or (
                written != first and self.space.proves_range(written, size, count)
            ):
                self.verdict.proved["strides"] += 2
                continue
            for end, goal in (("before its start", first), ("past its end", room)):
                low = self.space.low(goal)
                if low is not None and low >= 0:
                    self.verdict.proved["intervals"] += 1
                    continue
                is_early = self.is_early(goal)
                is_thorough = self.effort is Effort.FULL and not is_early
                steps = self.space.steps
                how = self.space.proves(goal, is_thorough=is_thorough)
                if how is not None:
                    self.verdict.proved[how] += 1
                    continue
                if is_early:
                    self.space.steps = steps
                if self.space.is_exhausted:
                    end = f"{end}: the proofs of this kernel take more than {MOST_STEPS:,} steps"
                text = self.space.text(goal)
                self.needed |= self.memories_of(goal)
                self.verdict.unproved.append(Unproved(memory.name, what, dim, extent, end, text))
                is_last_word = self.effort is Effort.BRIEF and not is_early
                if is_last_word or self.space.is_exhausted:
                    raise Ended

    def is_early(self, goal: Polynomial) -> bool:
        """Whether a goal needs bounds of stored values that a later walk will know, so that a long
        search now is wasted."""
        return not self.bounds and bool(self.memories_of(goal))

    def memories_of(self, p: Polynomial) -> dict[Memory, None]:
        """The memories whose values a proof about `p` may depend on."""
        if not self.sources:
            return {}
        numbers = self.space.needed_by(p) & self.sources.keys()
        return dict.fromkeys(self.sources[number] for number in sorted(numbers))


def outside_loops(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """The statements that run at most once each time `body` runs."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, If):
            yield from outside_loops(stmt.then)
            yield from outside_loops(stmt.otherwise)
