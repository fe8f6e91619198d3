"""assign-layouts: chooses the layouts of values with three or more dims, over the whole graph.

Each value keeps its layout or takes a proposed one (channels last, or the order in which its users
read it), so that the sum of all costs is least: for each op, the planned cost of reading its
operands and writing its results in these layouts. A choice between two layouts with costs of pairs
is a minimum cut, which is exact; each further proposal is compared with the best choice so far.
Producers are rebuilt, and their users get pending changes.

Requires: dtypes are legal for the target; weights are not packed yet; nothing is pending.
Ensures: every change of a layout is pending for the users of the value.
Never: changes inputs, results, constants, values that blocks or calls capture or pass on, memory
    that is written in place, or what an op computes.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Hashable, Mapping

from aot.analysis.accesses import accesses_of
from aot.analysis.alias.database import AliasDb
from aot.analysis.control import block_of, control_ops
from aot.analysis.cost.layout_costs import LayoutCosts, copy_cost
from aot.analysis.cost.min_cut import Labelling
from aot.analysis.memory.views import canonical, map_of, memory_order, view_type
from aot.ir.builtin import CONSTANT, PENDING
from aot.ir.compare import attrs_key
from aot.ir.graph import Function, Module, Op, Value
from aot.ir.record import Kind, call_of, contraction_of
from aot.ir.rewriter import Rewriter
from aot.ir.types import Layout, TensorType
from aot.ops.selection import CONCAT
from aot.passes.base import Pass, PassContext
from aot.target.model import Target

Types = dict[Value, TensorType]
Proposal = Callable[[Function, Types], Types]
"""Types that values would have, of those that differ from what they have or were given so far."""

UNIT = 16  # costs are whole numbers of this part of one


def run(module: Module, context: PassContext) -> None:
    if context.target is None:
        return
    for function in module.entry_points:
        context.count("assign-layouts", "changed", assign_layouts(function, context.target))


def assign_layouts(function: Function, target: Target) -> int:
    """Assigns layouts to a function's values; returns how many changed."""
    chosen: Types = {}
    costs = _Costs(target)
    for propose in PROPOSALS:
        chosen.update(_improved(function, costs, chosen, propose(function, chosen)))
    chosen = {value: type for value, type in chosen.items() if type != value.type}
    changed = len(chosen)
    _carry_out(function, chosen)
    return changed


def _may_choose(op: Op) -> bool:
    """Whether the op's results may have any memory order of dims."""
    record = op.record
    return (
        record.compute is not None
        and not record.kind.has_handwritten_kernel
        and record.results_from == "rule"
        and not record.is_terminator
    )


def channels_last(function: Function, now: Types) -> Types:
    """The types of results with dim 1 innermost (channels last).

    A transpose or reshape of a value in that order keeps the memory order, and so does a value
    that is computed from it by element.
    """
    found: Types = {}
    db = AliasDb.where_written(function)
    for op in control_ops(function):
        if not _may_choose(op):
            continue
        for value in op.results:
            if value.type.layout is not None or _is_memory(value, db):
                continue
            type = _seen_type(op, found) or _followed_type(op, found) or _last(op, value)
            if type == value.type and _sums_channels(value):
                type = _last(op, value)
            if type is not None:
                _propose(found, value, type, now)
    return found


def _sums_channels(value: Value) -> bool:
    """Whether a convolution sums over dim 1 (channels) of a value."""
    users = ((user, contraction_of(user)) for user in value.users)
    return any(
        found is not None and found.windows and user.operands[found.left.operand] is value
        for user, found in users
    )


def _is_normalisation(op: Op) -> bool:
    """Whether the op has reductions over dims that its result keeps, such as a normalisation: the
    operand's layout then decides the result's."""
    operand = op.operands[0] if op.operands else None
    if op.record.kind is not Kind.REDUCTION or operand is None or len(op.results) != 1:
        return False
    rank = op.result.type.rank
    return operand.type.dims == op.result.type.dims and any(
        len(r.dims) < rank for accesses in accesses_of(op) for r in accesses.reductions
    )


def _last(op: Op, value: Value) -> TensorType | None:
    """The type of a result with dim 1 innermost; None for products, whose channels are their
    columns."""
    type, contraction = value.type, contraction_of(op)
    if type.rank <= 2 or (contraction is not None and not contraction.windows):
        return None
    return TensorType(type.dtype, type.dims, Layout(order=(0, *range(2, type.rank), 1)))


def as_seen(function: Function, now: Types) -> Types:
    """Candidate types by reader: a transpose's operand takes the memory order of the transpose's
    result."""
    found: Types = {}
    merged = ChainMap(found, now)
    db = AliasDb.where_written(function)
    for op in reversed(list(control_ops(function))):
        if not _may_choose(op):
            continue
        for value in op.results:
            if _is_memory(value, db):
                continue
            beside = [user for user in value.users if user.parent is op.parent]
            wanted = (_wanted_type(user, value, merged) for user in beside)
            type = next((t for t in wanted if t is not None), None)
            if type is not None:
                _propose(found, value, type, now)
    return found


PROPOSALS: tuple[Proposal, ...] = (channels_last, as_seen)


def _is_memory(value: Value, db: AliasDb | None) -> bool:
    """Whether a value's layout is fixed, as its memory is written in place or is the source of such
    a write."""
    return db is not None and (
        db.has_writers(value) or any(user.record.writes for user in value.users)
    )


def _propose(found: Types, value: Value, type: TensorType, now: Types) -> None:
    type = canonical(type)
    if type != now.get(value, value.type):
        found[value] = type


def _seen_type(op: Op, types: Types) -> TensorType | None:
    """The type of a view of the op's operand. For a view with gaps, only its order, as passes that
    place memory deal with gaps."""
    map, source = map_of(op), op.operands[0] if op.operands else None
    if map is None or source is None:
        return None
    seen = view_type(map, types.get(source, source.type))
    if seen is None or seen.layout is None or not seen.layout.strides:
        return seen
    return TensorType(seen.dtype, seen.dims, Layout(order=memory_order(seen)))


def _followed_type(op: Op, types: Types) -> TensorType | None:
    """The type of an elementwise or normalised result, with the layout of the first operand with
    its dims."""
    if op.record.kind is not Kind.ELEMENTWISE and not _is_normalisation(op):
        return None
    for value in _full_operands(op):
        type = types.get(value, value.type)
        return TensorType(op.result.type.dtype, op.result.type.dims, type.layout)
    return None


def _wanted_type(user: Op, value: Value, types: Mapping[Value, TensorType]) -> TensorType | None:
    """The type of `value` with which `user` would move no data; None if there is none."""
    if len(user.results) != 1 or not _may_choose(user):
        return None
    result = types.get(user.result, user.result.type)
    map = map_of(user)
    if map is not None:
        back = map.inverse(value.type.dims)
        return None if back is None else view_type(back, result)
    is_alike = user.record.kind is Kind.ELEMENTWISE and value.type.dims == result.dims
    if result.layout is None or result.layout.strides or not (is_alike or user.record is CONCAT):
        return None
    return TensorType(value.type.dtype, value.type.dims, result.layout)


def _full_operands(op: Op) -> list[Value]:
    """Operands with the result's dims, without constants."""
    return [
        v
        for v in op.operands
        if v is not None
        and v.type.dims == op.result.type.dims
        and not (v.op is not None and v.op.record is CONSTANT)
    ]


class _Costs:
    """A cache of layout costs for ops with equal kinds and types."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._known: dict[Hashable, LayoutCosts] = {}

    def of(self, op: Op) -> LayoutCosts:
        key = (op.name, attrs_key(op), op.operand_types, tuple(v.type for v in op.results))
        if key not in self._known:
            self._known[key] = LayoutCosts(call_of(op), self.target)
        return self._known[key]


def _improved(function: Function, costs: _Costs, now: Types, other: Types) -> Types:
    """The values that should take their alternative type, by a minimum cut over all costs."""
    numbers = {value: number for number, value in enumerate(other)}
    labelling = Labelling(len(numbers))

    def types(value: Value) -> list[TensorType]:
        mine = now.get(value, value.type)
        return [mine, other[value]] if value in numbers else [mine]

    for op in control_ops(function):
        if any(v in numbers for v in (*op.operands, *op.results)):
            _add_costs(labelling, op, numbers, types, costs)
    labels = labelling.solve()
    return {value: type for value, type in other.items() if labels[numbers[value]]}


def _add_costs(
    labelling: Labelling,
    op: Op,
    numbers: dict[Value, int],
    types: Callable[[Value], list[TensorType]],
    costs: _Costs,
) -> None:
    """Adds the op's cost, for each combination of its values' types, to the labelling problem."""
    for value in op.operands:
        if value is None or value not in numbers:
            continue
        # what is handed on, and what a block sees of those around it, is brought into its old order
        if not (_may_choose(op) and _is_beside(value, op)):
            a, b = (0.0 if t.layout is None else copy_cost(t, costs.target) for t in types(value))
            labelling.add(numbers[value], (_whole(a), _whole(b)))
    if not _may_choose(op):
        return
    asked = costs.of(op)
    for value in op.results:
        if value in numbers:
            a, b = (_whole(asked.result(value.index, t)) for t in types(value))
            labelling.add(numbers[value], (a, b))
    result = op.results[0]
    for number, value in enumerate(op.operands):
        if value is None or not (value in numbers or result in numbers):
            continue
        if value.op is not None and value.op.record is CONSTANT:
            continue  # a constant is brought into any order while compiling
        is_beside = _is_beside(value, op)
        table = [
            [_whole(asked.operand(number, mine, its)) for its in types(result)]
            for mine in (types(value) if is_beside else [value.type])
        ]
        if value not in numbers or not is_beside:
            if result not in numbers:
                continue
            labelling.add(numbers[result], (table[0][0], table[0][1]))
        elif result not in numbers:
            labelling.add(numbers[value], (table[0][0], table[1][0]))
        else:
            (a, b), (c, d) = table
            labelling.add_pair(numbers[value], numbers[result], ((a, b), (c, d)))


def _is_beside(value: Value, op: Op) -> bool:
    """Whether a value is defined in the block of an op that reads it."""
    return block_of(value) is op.parent


def _whole(cost: float) -> int:
    return round(cost * UNIT)


def _carry_out(function: Function, chosen: Types) -> None:
    """Recreates producers whose result types do not follow from their operands."""
    for op in list(control_ops(function)):
        if not any(v in chosen for v in op.results) or _follows(op, chosen):
            continue
        types = [chosen.get(v, v.type) for v in op.results]
        rewriter = Rewriter(function).at(op)
        fresh = rewriter.insert(Op(op.record, op.operands, op.attrs, types, (), op.origin))
        for old, made in zip(op.results, fresh.results, strict=True):
            rewriter.replace_lazily(old, made)
            if old in chosen:
                made.name, chosen[made] = old.name, chosen[old]
        rewriter.erase(op)


def _follows(op: Op, chosen: Types) -> bool:
    """Whether resolve-shapes derives the op's chosen result type from its operands' types."""
    wanted = chosen[op.result] if len(op.results) == 1 else None
    if wanted is None:
        return False
    if op.record.kind is Kind.ELEMENTWISE:
        layouts = {canonical(_type_after(v, op, chosen)).layout for v in _full_operands(op)}
        return layouts == {wanted.layout}
    map, source = map_of(op), op.operands[0] if op.operands else None
    if map is None or source is None or _type_after(source, op, chosen) == source.type:
        return False
    return view_type(map, _type_after(source, op, chosen)) == wanted


def _type_after(value: Value, user: Op, chosen: Types) -> TensorType:
    """The type that `user` sees for a value: the chosen one, or that of a pending change's
    source."""
    if not _is_beside(value, user):
        return value.type
    if value in chosen:
        return chosen[value]
    if value.op is not None and value.op.record is PENDING:
        source = value.op.operands[0]
        assert source is not None
        return source.type
    return value.type


ASSIGN_LAYOUTS = Pass("assign-layouts", run, __doc__)
