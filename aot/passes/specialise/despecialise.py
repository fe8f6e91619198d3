"""despecialise: executables that differ only in extents become one, with the extents as parameters.

Each extent, stride or position in an executable's types and attributes is a slot. Executables whose
bodies are equal but for slots are a family; what differs within a part of it that becomes one are
dim parameters, equal slots one parameter, products of others those products, and multiples of a
power of two stay so, because kernels need no masks there. What is equal in all stays a number.

Requires: executables are outlined.
Ensures: executables have schedules; those that merged have the common tiles that cost them least,
    and all mergers together cost no more than the bound of `--optimize`, in the estimate of
    analysis/cost/tile_costs.py. On CPUs no merger makes code larger, in that of code_size.py.
Never: makes a parameter of 0, of 1 or of a small number in an attribute or a convolution's kernel
    (kernels, strides, pads), which change loops, or merges ops whose kernels are written by hand.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import combinations, pairwise

from aot.analysis.cost.code_size import (
    FITTED,
    CodeEstimate,
    CodeModel,
    StageCode,
    Steps,
    executable_bytes,
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
from aot.ir.dims import Dim, DimExpr, substitute
from aot.ir.graph import Function, FunctionRef, Module, Op
from aot.ir.record import Call, call_of
from aot.passes.base import Pass, PassContext
from aot.passes.fusion.outline import record_schedule
from aot.passes.specialise.slots import (
    SMALL,
    Groups,
    Slot,
    family_of,
    groups_of,
    have_common_groups,
    parameters,
    rebuilt,
)
from aot.target.model import Target

__all__ = ["BOUNDS", "DESPECIALISE", "SMALL", "despecialise"]

# how much more all dispatches may cost together, in the estimate, by `--optimize`; what is promised
# of `balanced` is 0.05
BOUNDS = {"speed": 0.0, "balanced": 0.045, "size": 10.0}
# how many parts of a family are tried each with each; of more, neighbours in the order of their
# extents are
FEW = 24
# what an executable costs beside its code, on a CPU: its entry in the module, and padding
EXECUTABLE_BYTES = 64.0

Tiles = tuple[Tile, ...]


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
    """Merges families of a module's executables, for up to `bound` of what all cost together.

    What costs least comes first: two parts of a family at a time. On a CPU parts whose kernels are
    smaller than the one for both are then told apart again.

    Args:
        each: bytes that an executable costs there beside its code.

    Returns:
        The bytes of all executables, before and after, in the estimate that this went by.
    """
    calls: dict[str, list[Op]] = {}
    for op, name in dispatches_of(module):
        calls.setdefault(name, []).append(op)
    families: dict[Hashable, list[_Member]] = {}
    for number, function in enumerate(module.executables):
        record_schedule(function, target)
        member = _Member.of(number, function, calls.get(function.name, []), target)
        families.setdefault(member.family, []).append(member)
    members = [m for family in families.values() for m in family]
    left = bound * sum(m.cost(m.tiles, m.dynamic) for m in members)
    parts = _Parts(families.values(), each)
    parts.merge(left)
    own = {m.function.name: m.bytes for m in members}
    kept = dict(own)
    for part in parts.final(is_cpu=not target.has_workgroups):
        if len(part.members) > 1:
            _merge(module, part)
            kept[part.members[0].function.name] = part.bytes
    names = _renumber(module)
    return CodeEstimate(
        own, {fresh: kept[name] for name, fresh in names.items()}, target.arch == FITTED
    )


@dataclass(frozen=True)
class _Stage:
    """A stage of an executable: its kernel and code, and the loops that each of its dispatches
    runs, with how many do."""

    kernel: KernelModel
    loops: tuple[tuple[Loops, int], ...]
    code: StageCode
    steps: Steps


@dataclass(frozen=True, eq=False)
class _Member:
    """An executable of a family.

    Attributes:
        number: its place among all.
        family: equal for executables that differ in slots only.
        tiles: rows and columns that its own dims want, by stage.
        dynamic: what its own kernel doesn't know, by stage.
        groups: of its contractions.
    """

    number: int
    function: Function
    calls: list[Op]
    slots: list[Slot]
    family: Hashable
    tiles: Tiles
    dynamic: tuple[DynamicLoops, ...]
    stages: tuple[_Stage, ...]
    groups: tuple[Groups, ...] = ()

    @staticmethod
    def of(number: int, function: Function, calls: list[Op], target: Target) -> _Member:
        if any(op.record.kind.has_handwritten_kernel for op in function.block):
            return _Member(number, function, calls, [], function.name, (), (), ())
        plans = plans_of(function, target)
        family, slots = family_of(function, plans)
        ties = frozenset(op.attrs.get("ties", ()) for op in calls)
        stages, dynamic = _stages(function, calls, plans, target)
        return _Member(
            number,
            function,
            calls,
            slots,
            (family, ties),
            tuple((p.rows, p.columns) for p in plans),
            dynamic,
            stages,
            groups_of(function),
        )

    @staticmethod
    def order(member: _Member) -> tuple[object, ...]:
        """Brings those together that lose little as one: of like tiles, then of like loops."""
        loops = [s.loops[0][0] for s in member.stages]
        return member.tiles, [(n.rows, n.columns, n.terms) for n in loops], member.number

    @property
    def bytes(self) -> float:
        """Of its own kernel's code, in the estimate."""
        return _bytes(self, [s.steps for s in self.stages], self.tiles, self.dynamic)

    def cost(self, tiles: Tiles, dynamic: Sequence[DynamicLoops]) -> float:
        """What its dispatches cost with `tiles`, where what is `dynamic` is a parameter."""
        total = 0.0
        for stage, tile, what in zip(self.stages, tiles, dynamic, strict=True):
            for loops, count in stage.loops:
                total += count * cost(stage.kernel, loops, tile, what)
        return total


def _bytes(
    member: _Member, steps: Sequence[Steps], tiles: Tiles, dynamic: Sequence[DynamicLoops]
) -> float:
    """The code of a kernel for `member` and others, of whose stages rows and columns are multiples
    of `steps`."""
    told = zip(member.stages, steps, tiles, dynamic, strict=True)
    return executable_bytes([s.code.bytes(step, tile, what) for s, step, tile, what in told])


def _stages(
    function: Function, calls: Sequence[Op], plans: Sequence[Plan], target: Target
) -> tuple[tuple[_Stage, ...], tuple[DynamicLoops, ...]]:
    """By stage: its plan and loops, and what of them is dynamic.

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


def _given(function: Function, call: Op) -> dict[str, Dim]:
    """The dim parameters of an executable, as one of its dispatches gives them."""
    given = call.attrs.get("dims", ())
    assert isinstance(given, tuple)
    pairs = zip(function.dim_names, given, strict=True)
    return {name: dim for name, dim in pairs if isinstance(dim, (int, DimExpr))}


@dataclass(eq=False)
class _Part:
    """Members of a family that are one executable.

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

    number: int
    members: list[_Member]
    dynamic: tuple[DynamicLoops, ...]
    tiles: Tiles
    steps: tuple[Steps, ...]
    halves: tuple[_Part, ...] = ()
    own_bytes: float = 0.0
    least_bytes: float = 0.0
    totals: dict[tuple[Tiles, tuple[DynamicLoops, ...]], float] = field(default_factory=dict)
    is_alive: bool = True
    neighbours: list[_Part | None] = field(default_factory=lambda: [None, None])

    def cost(self, tiles: Tiles, dynamic: tuple[DynamicLoops, ...]) -> float:
        key = tiles, dynamic
        if key not in self.totals:
            self.totals[key] = sum(m.cost(tiles, dynamic) for m in self.members)
        return self.totals[key]

    @property
    def bytes(self) -> float:
        """Of its kernel's code, in the estimate."""
        return _bytes(self.members[0], self.steps, self.tiles, self.dynamic)

    def smallest(self) -> Iterator[_Part]:
        """The parts of it that take the fewest bytes together: itself, or some it was made of."""
        waiting = [self]
        while waiting:
            part = waiting.pop()
            if part.halves and part.least_bytes < part.own_bytes:
                waiting.extend(part.halves)
            else:
                yield part

    @property
    def loops(self) -> list[Loops]:
        """One dispatch's loops, by stage: what is not dynamic is the same in all."""
        return [stage.loops[0][0] for stage in self.members[0].stages]


@dataclass(order=True)
class _Merger:
    """Two parts that may become one.

    Attributes:
        lost: what that costs more; infinite where no kernel could serve both.
    """

    lost: float
    order: tuple[int, int]
    parts: tuple[_Part, _Part] = field(compare=False)
    dynamic: tuple[DynamicLoops, ...] = field(compare=False)
    tiles: Tiles = field(compare=False)

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


class _Parts:
    """The parts of all families, of which those merge that lose least."""

    def __init__(self, families: Iterable[Sequence[_Member]], each: float) -> None:
        self.each = each  # bytes that an executable costs beside its code
        self.alive: dict[int, list[_Part]] = {}  # by family
        self.family: dict[_Part, int] = {}
        self.heap: list[_Merger] = []
        self.count = 0
        for number, family in enumerate(families):
            ordered = sorted(family, key=_Member.order)
            parts = [self._leaf(number, m) for m in ordered]
            self.alive[number] = parts
            if len(parts) > FEW:
                for one, other in pairwise(parts):
                    one.neighbours[1], other.neighbours[0] = other, one
            tried = pairwise(parts) if len(parts) > FEW else combinations(parts, 2)
            self.heap += [_Merger.of(a, b) for a, b in tried if a.members[0].slots]
        heapify(self.heap)

    def _leaf(self, family: int, member: _Member) -> _Part:
        steps = tuple(stage.steps for stage in member.stages)
        return self._add(family, [member], member.dynamic, member.tiles, steps)

    def _add(
        self,
        family: int,
        members: list[_Member],
        dynamic: tuple[DynamicLoops, ...],
        tiles: Tiles,
        steps: tuple[Steps, ...],
        halves: tuple[_Part, ...] = (),
    ) -> _Part:
        made = _Part(self.count, members, dynamic, tiles, steps, halves)
        made.own_bytes = made.least_bytes = made.bytes + self.each
        if halves:
            made.least_bytes = min(made.least_bytes, sum(half.least_bytes for half in halves))
        self.count += 1
        self.family[made] = family
        return made

    def merge(self, left: float) -> None:
        """Merges for up to `left` in all; what seems to gain is free."""
        while self.heap and self.heap[0].lost <= left:
            step = heappop(self.heap)
            if not all(part.is_alive for part in step.parts):
                continue
            left -= max(0.0, step.lost)
            self._join(step)

    def _join(self, step: _Merger) -> None:
        a, b = step.parts
        family = self.family[a]
        steps = tuple(x.with_(y) for x, y in zip(a.steps, b.steps, strict=True))
        members = [*a.members, *b.members]
        made = self._add(family, members, step.dynamic, step.tiles, steps, (a, b))
        known = a.totals[step.tiles, step.dynamic] + b.totals[step.tiles, step.dynamic]
        made.totals[step.tiles, step.dynamic] = known
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
        """Puts a part in the place of two neighbours; those it has now."""
        first, last = (a, b) if a.neighbours[1] is b else (b, a)
        made.neighbours = [first.neighbours[0], last.neighbours[1]]
        before, after = made.neighbours
        if before is not None:
            before.neighbours[1] = made
        if after is not None:
            after.neighbours[0] = made
        return [part for part in made.neighbours if part is not None]

    def final(self, *, is_cpu: bool) -> Iterator[_Part]:
        """The parts that are left, in the order of their members. A kernel less saves a GPU's
        driver more than its code takes."""
        for parts in self.alive.values():
            for part in parts:
                if part.is_alive:
                    for kept in part.smallest() if is_cpu else [part]:
                        kept.members.sort(key=lambda m: m.number)
                        yield kept


def _merge(module: Module, part: _Part) -> None:
    """One executable in the place of all; dispatches say what its parameters are."""
    members = part.members
    first = members[0]
    fresh, values = parameters([m.slots for m in members])
    made = rebuilt(first.function, fresh)
    made.dim_names = tuple(values)
    made.schedule = tuple(
        replace(stage, rows=rows, columns=columns)
        for stage, (rows, columns) in zip(first.function.schedule, part.tiles, strict=True)
    )
    for number, member in enumerate(members):
        for op in member.calls:
            own = _given(member.function, op)
            op.attrs["executable"] = FunctionRef(made.name)
            op.attrs["dims"] = tuple(substitute(c[number], own) for c in values.values())
    for member in members:
        del module.functions[member.function.name]
    module.functions[made.name] = made


def _renumber(module: Module) -> dict[str, str]:
    """Executables are e0, e1, ... in the order of their first dispatch; the names by the old."""
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
