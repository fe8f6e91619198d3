"""despecialise: executables that differ in extents only become one, which is told them.

Each extent, stride or position in an executable's types and attributes is a slot. Executables whose
bodies are equal but for slots are a family; what differs within it becomes dim parameters, equal
slots one parameter, products of others those products, and multiples of a power of two stay so,
because kernels need no masks there. What is equal in all members stays a number.

Requires: executables are outlined.
Ensures: those of a family are one executable whose common tiles cost them little more than their
    own would, in the plan's estimate: `BOUNDS` by `--optimize`.
Never: makes a parameter of 0, of 1 or of a small number in an attribute or a weight (kernels,
    strides, pads), which change loops, or merges ops whose kernels are written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from aot.analysis.plan import Plan, Schedule, efficiency
from aot.analysis.stages import heaviest, plans_of, stages_of, work_of
from aot.analysis.storage import CONSTANTS
from aot.ir.clone import clone_op
from aot.ir.compare import body_key
from aot.ir.core import Attr, Block, Function, FunctionRef, Module, Op, Rewriter, Value
from aot.ir.dims import Dim, DimExpr, multiply, substitute, symbol
from aot.ir.types import Layout, TensorType
from aot.ops.record import Call, call_of
from aot.passes.base import Pass, PassContext
from aot.target import Target

# numbers below it in attributes and extents below it of constants are kernels, strides, pads
SMALL = 8
# how much more all dispatches may cost together, in the plan's estimate, by `--optimize`
BOUNDS = {"speed": 0.0, "balanced": 0.05, "size": 10.0}
# what a group may lose to tiles that are not its members' own, before one is left out
MAX_TILE_LOSS = 0.1
# what loops over extents that are parameters cost more; windows have guards that known ones lack
OPEN_COST, OPEN_WINDOW_COST = 0.02, 0.3
# rows whose addresses a CPU's registers hold, and what each one more costs
FREE_ROWS, ROW_COST = 6, 0.02
MAX_FACTOR = 64  # of what a parameter is known to be a multiple


def run(module: Module, context: PassContext) -> None:
    options, target = context.options, context.target
    if target is None or not options.despecialise:
        return
    met = len(module.executables)
    despecialise(module, target, BOUNDS[options.optimize])
    context.count("despecialise", "met", met)
    context.count("despecialise", "kept", len(module.executables))


def despecialise(module: Module, target: Target, bound: float) -> None:
    """Merges families of a module's executables, for up to `bound` of what all cost together.

    What saves most executables for what it costs comes first.
    """
    calls: dict[str, list[Op]] = {}
    for op, name in _dispatches(module):
        calls.setdefault(name, []).append(op)
    families: dict[Hashable, list[_Member]] = {}
    for function in module.executables:
        member = _Member.of(function, calls.get(function.name, []), target)
        families.setdefault(member.shape, []).append(member)
    left = bound * sum(m.cost(m.tiles, target) for members in families.values() for m in members)
    groups: list[tuple[float, list[_Member], Tiles]] = []
    for members in families.values():
        if len(members) > 1:
            for group, tiles in _groups(members, target, max(bound, MAX_TILE_LOSS)):
                if len(group) > 1:
                    groups.append((_lost(group, tiles, target), group, tiles))
    for lost, group, tiles in sorted(groups, key=lambda g: g[0] / (len(g[1]) - 1)):
        if lost <= left:
            left -= lost
            _merge(module, group, tiles)
    _renumber(module)


def _dispatches(module: Module) -> Iterator[tuple[Op, str]]:
    """Every dispatch, in order, and the name of its executable."""
    for function in module.entry_points:
        for op in function.walk():
            callee = op.attrs.get("executable")
            if isinstance(callee, FunctionRef):
                yield op, callee.name


def _lost(group: Sequence[_Member], tiles: Tiles, target: Target) -> float:
    """What a group costs more as one executable with `tiles`."""
    return sum(m.cost(tiles, target, is_shared=True) - m.cost(m.tiles, target) for m in group)


class _Slots:
    """Walks the slots of a function in one order, and gives each a new dim."""

    def __init__(self, fresh: Sequence[Dim] | None = None) -> None:
        self.fresh = fresh
        self.found: list[Dim] = []

    def dim(self, dim: Dim, least: int = 2) -> Dim:
        if isinstance(dim, int) and dim < least:
            return dim
        self.found.append(dim)
        return _PLACE if self.fresh is None else self.fresh[len(self.found) - 1]

    def type(self, type: TensorType, least: int = 2) -> TensorType:
        dims = tuple(self.dim(d, least) for d in type.dims)
        layout = type.layout
        if layout is not None and (layout.strides or layout.splits):
            splits = tuple((dim, self.dim(factor)) for dim, factor in layout.splits)
            # inner ones first, as outer ones are products of them
            strides = [self.dim(s) for s in reversed(layout.strides)]
            layout = Layout(splits, layout.order, tuple(reversed(strides)))
        return TensorType(type.dtype, dims, layout)

    def attrs(self, op: Op) -> dict[str, Attr]:
        """Attributes with the dims in those that the record declares as dims replaced."""
        kinds = {a.name: a.type for a in op.record.attributes}
        return {
            name: self.attr(value) if kinds.get(name) in ("dim", "dims") else value
            for name, value in op.attrs.items()
        }

    def attr(self, value: Attr) -> Attr:
        if isinstance(value, tuple):
            return tuple(map(self.attr, value))
        is_dim = isinstance(value, DimExpr) or (
            isinstance(value, int) and not isinstance(value, bool)
        )
        return self.dim(value, SMALL) if is_dim else value  # type: ignore[arg-type]


_PLACE = symbol("_")
Tiles = tuple[tuple[int, int], ...]


def _rebuilt(function: Function, slots: _Slots) -> Function:
    """A copy of an executable with its slots replaced."""
    bindings = function.bindings[: len(function.inputs)]
    inputs = zip(function.inputs, bindings, strict=True)
    body = Block([slots.type(a.type, SMALL if b == CONSTANTS else 2) for a, b in inputs])
    made = Function(function.name, body, function.result_names, "executable")
    values: dict[Value, Value] = dict(zip(function.inputs, body.args, strict=True))
    into = Rewriter(made, body)
    for op in function.block:
        attrs = slots.attrs(op)
        fresh = clone_op(op, values, into, slots.type)
        fresh.attrs = attrs
    made.bindings = function.bindings
    return made


@dataclass(frozen=True)
class _Member:
    """An executable of a family.

    Attributes:
        slots: its dims, in the order of `_Slots`.
        shape: equal for executables that differ in slots only.
        tiles: rows and columns that its own dims want, by stage.
        stages: each stage's heaviest op, its plan, and the work of all dispatches.
    """

    function: Function
    calls: list[Op]
    slots: tuple[Dim, ...]
    shape: Hashable
    tiles: Tiles
    stages: tuple[tuple[Call, Plan, int], ...]

    @staticmethod
    def of(function: Function, calls: list[Op], target: Target) -> _Member:
        if any(op.record.kind.has_own_kernel for op in function.block):
            return _Member(function, calls, (), function.name, (), ())
        slots = _Slots()
        blank = _rebuilt(function, slots)
        ties = {op.attrs.get("ties", ()) for op in calls}
        plans = plans_of(function, target)
        return _Member(
            function,
            calls,
            tuple(slots.found),
            (body_key(blank), frozenset(ties), tuple(p.schedule for p in plans)),
            tuple((p.rows, p.columns) for p in plans),
            tuple(_stages(function, calls, plans)),
        )

    def cost(self, tiles: Tiles, target: Target, *, is_shared: bool = False) -> float:
        """What its dispatches cost with `tiles`, in elements of work.

        In a shared kernel rows are a parameter apart: each has an address of its own.
        """
        total = 0.0
        for (call, own, work), (rows, columns) in zip(self.stages, tiles, strict=True):
            extra = 0.0
            if is_shared and target.is_cpu:
                extra = ROW_COST * max(0, rows - FREE_ROWS)
                if not self.function.dim_names:
                    is_window = own.schedule is Schedule.REDUCTION and rows > 1
                    extra += OPEN_WINDOW_COST if is_window else OPEN_COST
            made = replace(own, rows=rows, columns=columns)
            total += work * (1 + extra) / max(efficiency(call, made), 1e-3)
        return total


def _stages(
    function: Function, calls: Sequence[Op], plans: Sequence[Plan]
) -> Iterator[tuple[Call, Plan, int]]:
    """By stage: its heaviest op, its plan, and the elements that all dispatches go through.

    They are counted in the caller's dims: a parameter alone does not say that a layer is a deep,
    small one.
    """
    values = [_given(function, op) for op in calls]
    for stage, made in zip(stages_of(function.block, function.results), plans, strict=True):
        work = sum(work_of(op, given) for given in values for op in stage.ops)
        yield call_of(heaviest(stage.ops)), made, work


def _given(function: Function, call: Op) -> dict[str, Dim]:
    """The dim parameters of an executable, as one of its dispatches gives them."""
    given = call.attrs.get("dims", ())
    assert isinstance(given, tuple)
    pairs = zip(function.dim_names, given, strict=True)
    return {name: dim for name, dim in pairs if isinstance(dim, (int, DimExpr))}


def _groups(
    members: Sequence[_Member], target: Target, bound: float
) -> list[tuple[list[_Member], Tiles]]:
    """Members that become one, and the tiles that cost them least together.

    Costs are estimates: work over the efficiency of a tile. While the best common tiles cost more
    than `bound` over each member's own, the member that loses most is left out.
    """
    made: list[tuple[list[_Member], Tiles]] = []
    left = list(members)
    while left:
        group, out = list(left), list[_Member]()
        while True:
            best = min(
                dict.fromkeys(m.tiles for m in group),
                key=lambda tiles: sum(m.cost(tiles, target, is_shared=True) for m in group),
            )
            own = sum(m.cost(m.tiles, target) for m in group)
            if len(group) == 1 or _lost(group, best, target) <= own * bound:
                break
            worst = max(
                group,
                key=lambda m: m.cost(best, target, is_shared=True) / m.cost(m.tiles, target),
            )
            group.remove(worst)
            out.append(worst)
        made.append((group, best))
        left = [m for m in left if m in out]
    return made


def _parameters(slots: Sequence[Sequence[Dim]]) -> tuple[list[Dim], dict[str, list[Dim]]]:
    """The dim of each slot of the one executable, and what each parameter is in each member."""
    columns = list(zip(*slots, strict=True))
    fresh: list[Dim] = []
    known: dict[tuple[Dim, ...], Dim] = {}
    values: dict[str, list[Dim]] = {}
    for column in columns:
        if column not in known:
            known[column] = _parameter(column, known, values)
        fresh.append(known[column])
    return fresh, values


def _parameter(
    column: tuple[Dim, ...],
    known: Mapping[tuple[Dim, ...], Dim],
    values: dict[str, list[Dim]],
) -> Dim:
    """One slot's dim: a number, a product of dims that have parameters, or a new parameter."""
    first = column[0]
    if isinstance(first, int) and all(value == first for value in column):
        return first
    made = _product_of(column, known)
    if made is not None:
        return made
    factor = 1
    if all(isinstance(value, int) for value in column):
        common = math.gcd(*(int(v) for v in column))
        factor = min(common & -common, MAX_FACTOR)
    name = f"d{len(values)}"
    values[name] = [v // factor for v in column]
    return multiply(symbol(name), factor)


def _product_of(column: tuple[Dim, ...], known: Mapping[tuple[Dim, ...], Dim]) -> Dim | None:
    """The column as a product of two others, in every member."""
    varying = [(c, d) for c, d in known.items() if isinstance(d, DimExpr)]
    for a, dim_a in varying:
        for b, dim_b in varying:
            if all(multiply(x, y) == z for x, y, z in zip(a, b, column, strict=True)):
                return multiply(dim_a, dim_b)
    return None


def _merge(module: Module, members: Sequence[_Member], tiles: Tiles) -> None:
    """One executable in the place of all; dispatches say what its parameters are."""
    first = members[0]
    fresh, values = _parameters([m.slots for m in members])
    made = _rebuilt(first.function, _Slots(fresh))
    made.dim_names = tuple(values)
    made.tiles = tiles
    for number, member in enumerate(members):
        for op in member.calls:
            own = _given(member.function, op)
            op.attrs["executable"] = FunctionRef(made.name)
            op.attrs["dims"] = tuple(substitute(c[number], own) for c in values.values())
    for member in members:
        del module.functions[member.function.name]
    module.functions[made.name] = made


def _renumber(module: Module) -> None:
    """Executables are e0, e1, ... in the order of their first dispatch."""
    names: dict[str, str] = {}
    for op, name in _dispatches(module):
        op.attrs["executable"] = FunctionRef(names.setdefault(name, f"e{len(names)}"))
    old = {f.name: f for f in module.executables}
    for name in old:
        del module.functions[name]
    for name, fresh in names.items():
        old[name].name = fresh
        module.add(old[name])


DESPECIALISE = Pass("despecialise", run, __doc__)
