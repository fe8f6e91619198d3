"""despecialise: merges executables that differ only in extents, and makes these extents parameters.

Each extent, stride or position in an executable's types and attributes is a slot. Executables whose
bodies are equal but for slots are a family; what differs within a part of it that becomes one are
dim parameters, equal slots one parameter, products of others those products, and multiples of a
power of two stay so, because kernels need no masks there. What is equal in all stays a number.

Requires: executables are outlined.
Ensures: executables have schedules; those that merged have the common tiles that cost them least,
    and all mergers together cost no more than the bound of `--optimize`, in the estimate of
    analysis/cost/tile_costs.py. On CPUs no merger makes code larger, in that of code_size.py.
Never: makes a parameter of 0, of 1 or of a small number in an attribute or a convolution's kernel
    (kernels, strides, pads), which change loops; or of what kernels written by hand must know
    (slots.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import combinations, pairwise

from aot.analysis.cost.code_bytes import Fit
from aot.analysis.cost.code_size import (
    CodeEstimate,
    CodeModel,
    StageCode,
    Steps,
    executable_bytes,
    fit_of,
    is_sure,
)
from aot.analysis.cost.plan import Plan
from aot.analysis.cost.tile_costs import (
    DynamicLoops,
    KernelModel,
    Loops,
    Tile,
    cost,
    loops_of,
    shared_tiles,
)
from aot.analysis.dispatches import dispatches_of
from aot.analysis.stages import heaviest, plans_of, stages_of
from aot.base.records import dataclass
from aot.ir.dims import Dim, DimExpr, substitute
from aot.ir.graph import Function, FunctionRef, Module, Op
from aot.ir.record import Call, Kind, call_of, contraction_of
from aot.ir.schedule import Schedule
from aot.kernels.lowering import lower, rules_of
from aot.kernels.price.cycles import cycles_of
from aot.passes.base import Pass, PassContext
from aot.passes.fusion.outline import record_schedule
from aot.passes.specialise.slots import (
    SMALL,
    Groups,
    Slot,
    assume_queries,
    family_of,
    groups_of,
    have_common_groups,
    parameters,
    rebuilt,
    shared_bindings,
)
from aot.target.model import Target

__all__ = ["BOUNDS", "DESPECIALISE", "SMALL", "despecialise"]

# how much more all dispatches may cost together, in the estimate, by `--optimize`; what is promised
# of `balanced` is 0.05
BOUNDS = {"speed": 0.0, "balanced": 0.045, "size": 10.0}
# from this bound on code is to be small, whichever rule builds it
LARGE_BOUND = 1.0
# what a kernel by other rules costs more at least, as prices are right within a factor of 2 only:
# transposes that are copied lane by lane took 1.8 times as long at the same price
OTHER_RULE = 0.5
_BY_EXTENTS = (Schedule.REDUCTION, Schedule.PLANES, Schedule.INNER)
# how many parts of a family are tried each with each; of more, neighbours in the order of their
# extents are
FEW = 24
# what an executable costs beside its code, on a CPU: its entry in the module, and padding
EXECUTABLE_BYTES = 64.0
# how much more an entry point's dispatches may cost, and its code take, beside others than alone;
# what is promised of the first is 0.03
ACROSS, ACROSS_CODE = 0.02, 0.02

Tiles = tuple[Tile, ...]
How = tuple[Tiles, tuple[DynamicLoops, ...]]  # a kernel's tiles and what it doesn't know


def run(module: Module, context: PassContext) -> None:
    options, target = context.options, context.target
    if target is None:
        return
    met = len(module.executables)
    estimate = despecialise(module, target, BOUNDS[options.optimize])
    context.code_estimate = None if target.has_workgroups else estimate
    context.count("despecialise", "met", met)
    context.count("despecialise", "kept", len(module.executables))


def despecialise(
    module: Module, target: Target, bound: float, each: float = EXECUTABLE_BYTES
) -> CodeEstimate:
    """Merges families of a module's executables, at a total cost of at most `bound` of their
    estimated time.

    What costs least comes first: two parts of a family at a time. On a CPU parts whose kernels are
    smaller than the one for both are then told apart again.

    Args:
        each: bytes that an executable costs there beside its code.

    Returns:
        The bytes of all executables, before and after, in the estimate that this went by.
    """
    is_cpu = not target.has_workgroups
    members = _members(module, target)
    rules = _Rules(target) if bound < LARGE_BOUND else None
    entries = list(dict.fromkeys(m.entry for m in members))
    parts: list[_Part] = []
    for entry in entries:
        own = [m for m in members if m.entry == entry]
        alone = _Parts(_leaves(own), each, rules)
        alone.merge({entry: bound * sum(m.cost(m.tiles, m.dynamic) for m in own)})
        parts += alone.final(is_cpu=is_cpu)
    if len(entries) > 1:
        parts = _across(parts, each, rules, is_cpu=is_cpu)
    expected = {m.function.name: m.bytes for m in members}
    kept = dict(expected)
    for number, part in enumerate(parts):
        if len(part.members) > 1:
            name = f"shared{number}"
            _merge(module, part, name, target)
            kept[name] = part.bytes
    names = _renumber(module)
    return CodeEstimate(
        expected, {fresh: kept[name] for name, fresh in names.items()}, is_sure(target)
    )


def _members(module: Module, target: Target) -> list[_Member]:
    """The executables as members, one for each entry point that dispatches them."""
    calls: dict[tuple[str, int], list[Op]] = {}
    for entry, function in enumerate(module.entry_points):
        for op, name in dispatches_of(module, function):
            calls.setdefault((name, entry), []).append(op)
    users: dict[str, list[int]] = {}
    for name, entry in calls:
        users.setdefault(name, []).append(entry)
    members: list[_Member] = []
    for function in module.executables:
        record_schedule(function, target)
        for entry in users.get(function.name, [0]):
            ops = calls.get((function.name, entry), [])
            members.append(_Member.of(len(members), entry, function, ops, target))
    return members


def _leaves(members: Iterable[_Member]) -> list[list[_Part]]:
    """The initial parts of each family: one per member."""
    families: dict[Hashable, list[_Member]] = {}
    for member in members:
        families.setdefault(member.family, []).append(member)
    return [[_Part.of(m) for m in sorted(f, key=_Member.order)] for f in families.values()]


def _across(
    parts: Sequence[_Part], each: float, rules: _Rules | None, *, is_cpu: bool
) -> list[_Part]:
    """Merges parts across entry points, if no entry point becomes slower or larger than compiled
    alone, beyond a tolerance."""
    families: dict[Hashable, list[_Part]] = {}
    costs: Counter[int] = Counter()
    code: Counter[int] = Counter()
    for part in parts:
        part.halves = ()  # what became one in an entry point stays so
        families.setdefault(part.members[0].family, []).append(part)
        costs.update(part.costs(part.tiles, part.dynamic))
        code.update(dict.fromkeys(part.entries, part.bytes))
    together = _Parts(families.values(), each, rules)
    together.merge(
        {entry: ACROSS * cost for entry, cost in costs.items()},
        {entry: ACROSS_CODE * bytes for entry, bytes in code.items()} if is_cpu else None,
    )
    return list(together.final(is_cpu=is_cpu))


@dataclass(frozen=True)
class _Stage:
    """A stage of an executable: its kernel and code size, and each dispatch's loops with their
    counts."""

    kernel: KernelModel
    loops: tuple[tuple[Loops, int], ...]
    code: StageCode
    steps: Steps


@dataclass(frozen=True, eq=False)
class _Member:
    """An executable as a candidate for merging, with the dispatches of one entry point.

    Attributes:
        number: its place among all.
        entry: the number of the entry point.
        family: equal for executables that differ in slots only.
        tiles: rows and columns that its own dims want, by stage.
        dynamic: what its own kernel doesn't know, by stage.
        fit: the bytes of the parts of its code.
        groups: of its contractions.
        has_known_extents: whether rules that want extents known may build it.
    """

    number: int
    entry: int
    function: Function
    calls: list[Op]
    slots: list[Slot]
    family: Hashable
    tiles: Tiles
    dynamic: tuple[DynamicLoops, ...]
    stages: tuple[_Stage, ...]
    fit: Fit
    groups: tuple[Groups, ...] = ()
    has_known_extents: bool = False

    @staticmethod
    def of(number: int, entry: int, function: Function, calls: list[Op], target: Target) -> _Member:
        plans = plans_of(function, target)
        family, slots = family_of(function, plans, has_classes=target.has_workgroups)
        # a CPU's kernels are the same whoever owns their buffers, and whatever is reused
        ties = frozenset(op.attrs.get("ties", ()) for op in calls if target.has_workgroups)
        stages, dynamic = _stages(function, calls, plans, target)
        return _Member(
            number,
            entry,
            function,
            calls,
            slots,
            (family, ties),
            tuple((p.rows, p.columns) for p in plans),
            dynamic,
            stages,
            fit_of(target),
            groups_of(function),
            _has_known_extents(function, plans),
        )

    @staticmethod
    def order(member: _Member) -> tuple[object, ...]:
        """A sort key by which members that lose little together are neighbours: by tiles, then by
        loops.
        """
        loops = [s.loops[0][0] for s in member.stages]
        return member.tiles, [(n.rows, n.columns, n.terms) for n in loops], member.number

    @property
    def bytes(self) -> float:
        """Estimated bytes of code of the member's own kernel."""
        return _bytes(self, [s.steps for s in self.stages], self.tiles, self.dynamic)

    def cost(self, tiles: Tiles, dynamic: Sequence[DynamicLoops]) -> float:
        """The estimated cost of the member's dispatches with `tiles`, where `dynamic` loops are
        parameters.
        """
        total = 0.0
        for stage, tile, what in zip(self.stages, tiles, dynamic, strict=True):
            for loops, count in stage.loops:
                total += count * cost(stage.kernel, loops, tile, what)
        return total


def _bytes(
    member: _Member, steps: Sequence[Steps], tiles: Tiles, dynamic: Sequence[DynamicLoops]
) -> float:
    """Estimated code bytes of one kernel for `member` and others, where the rows and columns of its
    stages are multiples of `steps`.
    """
    costs = zip(member.stages, steps, tiles, dynamic, strict=True)
    fit = member.fit
    return executable_bytes(
        fit, [s.code.bytes(fit, step, tile, what) for s, step, tile, what in costs]
    )


def _stages(
    function: Function, calls: Sequence[Op], plans: Sequence[Plan], target: Target
) -> tuple[tuple[_Stage, ...], tuple[DynamicLoops, ...]]:
    """(stages, dynamic loops) of an executable's dispatches.

    Loops have the extents of the caller's dims: a parameter alone does not say that a layer is a
    deep, small one.
    """
    values = [_given(function, op) for op in calls] or [{}]
    repeated = 1 if function.dim_names else len(values)
    values = values[: len(values) // repeated]
    stages: list[_Stage] = []
    dynamic: list[DynamicLoops] = []
    for stage, made in zip(stages_of(function.block, function.results), plans, strict=True):
        call: Call = call_of(heaviest(stage.ops))
        found = [loops_of(call, made, given) for given in values]
        counts = Counter(loops for loops, _ in found)
        runs = tuple((loops, count * repeated) for loops, count in counts.items())
        kernel = KernelModel.of(made, target, call)
        code = StageCode(CodeModel.of(stage.ops, call), kernel, found[0][0])
        stages.append(_Stage(kernel, runs, code, Steps.of(call, made)))
        dynamic.append(found[0][1])
    return tuple(stages), tuple(dynamic)


def _has_known_extents(function: Function, plans: Sequence[Plan]) -> bool:
    """Whether a rule that needs known extents may build the executable: one for reductions,
    windows, groups or moved elements. Rules for elementwise loops and plain products have tail
    loops for any extent.
    """
    for stage, made in zip(stages_of(function.block, function.results), plans, strict=True):
        contraction = contraction_of(heaviest(stage.ops))
        if made.schedule is Schedule.ELEMENTWISE:
            return any(op.record.kind is Kind.MOVEMENT for op in stage.ops)
        if made.schedule in _BY_EXTENTS:
            return True
        if made.schedule is Schedule.CONTRACTION and contraction is not None:
            is_plain = contraction.groups == 1 and contraction.accumulator.is_float
            if not is_plain:
                return True
    return False


def _given(function: Function, call: Op) -> dict[str, Dim]:
    """The dim arguments that one dispatch passes to an executable, by parameter."""
    given = call.attrs.get("dims", ())
    assert isinstance(given, tuple)
    pairs = zip(function.dim_names, given, strict=True)
    return {name: dim for name, dim in pairs if isinstance(dim, (int, DimExpr))}


@dataclass(eq=False)
class _Part:
    """Members of a family that share one executable.

    Attributes:
        number: its place among the parts of all families, which decides between equals.
        dynamic: what its kernel doesn't know, by stage.
        tiles: those that cost its members least together.
        steps: what the rows and columns of all members are multiples of, by stage.
        halves: the two parts that it was made of.
        own_bytes: what it costs as one executable.
        least_bytes: what its members cost at least: as one, or as its halves do.
        neighbours: the parts before and after it, where only those are tried.
    """

    members: list[_Member]
    dynamic: tuple[DynamicLoops, ...]
    tiles: Tiles
    steps: tuple[Steps, ...]
    halves: tuple[_Part, ...] = ()
    number: int = -1
    own_bytes: float = 0.0
    least_bytes: float = 0.0
    totals: dict[How, dict[int, float]] = field(default_factory=dict)
    is_alive: bool = True
    neighbours: list[_Part | None] = field(default_factory=lambda: [None, None])

    @staticmethod
    def of(member: _Member) -> _Part:
        """The part that consists of one member."""
        steps = tuple(stage.steps for stage in member.stages)
        return _Part([member], member.dynamic, member.tiles, steps)

    @cached_property
    def entries(self) -> tuple[int, ...]:
        """The entry points that dispatch the executable."""
        return tuple(dict.fromkeys(m.entry for m in self.members))

    def costs(self, tiles: Tiles, dynamic: tuple[DynamicLoops, ...]) -> dict[int, float]:
        """The estimated cost of the part's members with `tiles`, by entry point."""
        key = tiles, dynamic
        if key not in self.totals:
            found = dict.fromkeys(self.entries, 0.0)
            for member in self.members:
                found[member.entry] += member.cost(tiles, dynamic)
            self.totals[key] = found
        return self.totals[key]

    def cost(self, tiles: Tiles, dynamic: tuple[DynamicLoops, ...]) -> float:
        return sum(self.costs(tiles, dynamic).values())

    @property
    def bytes(self) -> float:
        """Estimated code bytes of the part's kernel."""
        return _bytes(self.members[0], self.steps, self.tiles, self.dynamic)

    def smallest(self) -> Iterator[_Part]:
        """The division of the part with the fewest bytes: itself, or parts it was made of."""
        waiting = [self]
        while waiting:
            part = waiting.pop()
            if part.halves and part.least_bytes < part.own_bytes:
                waiting.extend(part.halves)
            else:
                yield part

    @property
    def loops(self) -> list[Loops]:
        """One dispatch's loops, by stage; loops that are not dynamic are the same in all
        members."""
        return [stage.loops[0][0] for stage in self.members[0].stages]


@dataclass(order=True)
class _Merger:
    """A candidate merge of two parts, and its price.

    Attributes:
        lost: what that costs more; infinite where no kernel could serve both.
        share: what the one kernel costs more beside its estimate, as a share of it.
        is_priced: whether it is known which rule builds the one kernel.
    """

    lost: float
    order: tuple[int, int]
    parts: tuple[_Part, _Part] = field(compare=False)
    dynamic: tuple[DynamicLoops, ...] = field(compare=False)
    tiles: Tiles = field(compare=False)
    share: float = field(default=0.0, compare=False)
    is_priced: bool = field(default=False, compare=False)

    @staticmethod
    def of(a: _Part, b: _Part) -> _Merger:
        dynamic = tuple(
            x.with_(y).with_(DynamicLoops.between(p, q))
            for x, y, p, q in zip(a.dynamic, b.dynamic, a.loops, b.loops, strict=True)
        )
        stages = a.members[0].stages
        tried = [a.tiles, b.tiles]
        if len(stages) == 1:
            own = [tiles[0] for tiles in tried]
            tried += [(tile,) for tile in shared_tiles(stages[0].kernel, own)]
        costs = {
            tiles: a.cost(tiles, dynamic) + b.cost(tiles, dynamic) for tiles in dict.fromkeys(tried)
        }
        tiles = min(costs, key=costs.__getitem__)
        now = a.cost(a.tiles, a.dynamic) + b.cost(b.tiles, b.dynamic)
        if not have_common_groups(m.groups for m in (*a.members, *b.members)):
            now = -math.inf
        return _Merger(costs[tiles] - now, (a.number, b.number), (a, b), dynamic, tiles)

    def made(self) -> _Part:
        """The part that the two parts become."""
        a, b = self.parts
        steps = tuple(x.with_(y) for x, y in zip(a.steps, b.steps, strict=True))
        made = _Part([*a.members, *b.members], self.dynamic, self.tiles, steps, (a, b))
        known: Counter[int] = Counter()
        for part in self.parts:
            known.update(part.costs(self.tiles, self.dynamic))
        made.totals[self.tiles, self.dynamic] = dict(known)
        return made

    def lost_by(self, entry: int) -> float:
        """The additional cost of the merge for one entry point."""
        users = [part for part in self.parts if entry in part.entries]
        if all(part.entries == (entry,) for part in self.parts):
            return self.lost
        now = sum(part.costs(part.tiles, part.dynamic)[entry] for part in users)
        fresh = sum(part.costs(self.tiles, self.dynamic)[entry] for part in users)
        return (1 + self.share) * fresh - now


class _Rules:
    """Finds the lowering rules that build executables, separately and merged.

    The estimate knows an executable by its plan: it does not see that a kernel whose extents are
    parameters is none of the rule's that builds each of its members.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[Function, tuple[str, ...]] = {}

    def lost(self, part: _Part) -> float:
        """The additional relative cost of a part's shared kernel if other rules build it than its
        members', by comparing estimated cycles.
        """
        members = [m for m in part.members if m.has_known_extents]
        made, values = _shared(part, self._target)
        if not members or {self._of(m.function) for m in members} == {rules_of(made, self._target)}:
            return 0.0
        kernel, most = lower(made, self._target), OTHER_RULE
        for number, member in enumerate(part.members):
            if member.has_known_extents:
                given = {name: column[number] for name, column in values.items()}
                extents = {name: dim for name, dim in given.items() if isinstance(dim, int)}
                own = cycles_of(lower(member.function, self._target), self._target)
                most = max(most, cycles_of(kernel, self._target, extents) / max(own, 1.0) - 1)
        return most

    def _of(self, function: Function) -> tuple[str, ...]:
        if function not in self._known:
            self._known[function] = rules_of(function, self._target)
        return self._known[function]


class _Parts:
    """The parts of all families, with a queue of candidate merges, cheapest first."""

    def __init__(
        self, families: Iterable[Sequence[_Part]], each: float, rules: _Rules | None
    ) -> None:
        self.each = each  # bytes that an executable costs beside its code
        self.rules = rules  # that a change of is priced by; None where it is free
        self.alive: dict[int, list[_Part]] = {}  # by family
        self.family: dict[_Part, int] = {}
        self.heap: list[_Merger] = []
        self.count = 0
        for number, given in enumerate(families):
            parts = [self._add(number, part) for part in given]
            self.alive[number] = parts
            if len(parts) > FEW:
                for one, other in pairwise(parts):
                    one.neighbours[1], other.neighbours[0] = other, one
            tried = pairwise(parts) if len(parts) > FEW else combinations(parts, 2)
            self.heap += [_Merger.of(a, b) for a, b in tried if a.members[0].slots]
        heapify(self.heap)

    def _add(self, family: int, part: _Part) -> _Part:
        part.own_bytes = part.least_bytes = part.bytes + self.each
        if part.halves:
            part.least_bytes = min(part.own_bytes, sum(half.least_bytes for half in part.halves))
        part.number = self.count
        self.count += 1
        self.family[part] = family
        return part

    def merge(self, left: dict[int, float], room: dict[int, float] | None = None) -> None:
        """Merges parts, at a total cost of at most `left` per entry point; merges that seem to gain
        are free.

        Args:
            room: how many bytes more the code of each entry point may take; None for any.
        """
        while self.heap and math.isfinite(self.heap[0].lost):
            step = heappop(self.heap)
            if not all(part.is_alive for part in step.parts):
                continue
            entries = dict.fromkeys(entry for part in step.parts for entry in part.entries)
            lost = {entry: max(0.0, step.lost_by(entry)) for entry in entries}
            if any(lost[entry] > left[entry] for entry in entries):
                continue
            made = step.made()
            if self.rules is not None and not step.is_priced:
                step.is_priced = True
                step.share = self.rules.lost(made)
                if step.share:
                    step.lost += step.share * made.cost(made.tiles, made.dynamic)
                    heappush(self.heap, step)  # others cost less now
                    continue
            if room is not None:
                grown = {entry: self._growth(made, entry) for entry in entries}
                if any(grown[entry] > room[entry] for entry in entries):
                    continue
                for entry in entries:
                    room[entry] -= grown[entry]
            for entry in entries:
                left[entry] -= lost[entry]
            self._join(made)

    @staticmethod
    def _growth(made: _Part, entry: int) -> float:
        """The additional code bytes of an entry point for a merged part, compared with its
        halves."""
        return made.bytes - sum(half.bytes for half in made.halves if entry in half.entries)

    def _join(self, made: _Part) -> None:
        a, b = made.halves
        family = self.family[a]
        self._add(family, made)
        a.is_alive = b.is_alive = False
        if any((*a.neighbours, *b.neighbours)):
            others = self._relink(a, b, made)
        else:
            self.alive[family] = others = [p for p in self.alive[family] if p.is_alive]
        for other in others:
            heappush(self.heap, _Merger.of(other, made))
        self.alive[family].append(made)

    @staticmethod
    def _relink(a: _Part, b: _Part, made: _Part) -> list[_Part]:
        """Replaces two neighbouring parts by one; returns its neighbours."""
        first, last = (a, b) if a.neighbours[1] is b else (b, a)
        made.neighbours = [first.neighbours[0], last.neighbours[1]]
        before, after = made.neighbours
        if before is not None:
            before.neighbours[1] = made
        if after is not None:
            after.neighbours[0] = made
        return [part for part in made.neighbours if part is not None]

    def final(self, *, is_cpu: bool) -> Iterator[_Part]:
        """The remaining parts, in the order of their members. On a GPU merges are kept even if they
        take more bytes, as fewer kernels save the driver more."""
        for parts in self.alive.values():
            for part in parts:
                if part.is_alive:
                    for kept in part.smallest() if is_cpu else [part]:
                        kept.members.sort(key=lambda m: m.number)
                        yield kept


def _shared(part: _Part, target: Target) -> tuple[Function, dict[str, list[Dim]]]:
    """(merged executable of a part, each parameter's value by member)."""
    members = part.members
    first = members[0]
    fresh, values = parameters([m.slots for m in members])
    made = rebuilt(first.function, fresh)
    made.bindings = shared_bindings([m.function for m in members], values)
    made.dim_names = tuple(values)
    made.schedule = tuple(
        replace(stage, rows=rows, columns=columns)
        for stage, (rows, columns) in zip(first.function.schedule, part.tiles, strict=True)
    )
    if target.has_workgroups:
        assume_queries(made, [m.function for m in members], part.tiles[0][0])
    return made, values


def _merge(module: Module, part: _Part, name: str, target: Target) -> None:
    """Replaces a part's executables by the merged one; dispatches pass its parameters."""
    made, values = _shared(part, target)
    made.name = name
    for number, member in enumerate(part.members):
        for op in member.calls:
            own = _given(member.function, op)
            op.attrs["executable"] = FunctionRef(made.name)
            op.attrs["dims"] = tuple(substitute(c[number], own) for c in values.values())
    module.add(made)


def _renumber(module: Module) -> dict[str, str]:
    """Renames executables to e0, e1, ... in order of first dispatch, and removes unused ones;
    returns new names by old ones.
    """
    names: dict[str, str] = {}
    for op, name in dispatches_of(module):
        op.attrs["executable"] = FunctionRef(names.setdefault(name, f"e{len(names)}"))
    old = {f.name: f for f in module.executables}
    for name in old:
        del module.functions[name]
    for name, fresh in names.items():
        old[name].name = fresh
        module.add(old[name])
    return names


DESPECIALISE = Pass("despecialise", run, __doc__)
