"""fuse: groups ops into dispatch regions.

Requires: constants folded, weights packed.
Ensures: every op that computes stands in a `region`; views, constants and the return don't.
Never: recomputes a value in two regions, or makes a region that the schedules can't lower.

A region grows from a root in two steps. Epilogues: elementwise users with the root's dims are
taken as long as the region can end in a single value. Producers: regions that only rename or
cheaply compute elements, and that only this region uses, move into its loads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aot.analysis.renaming import permutation_of
from aot.analysis.views import is_view
from aot.ir import expr
from aot.ir.clone import clone_op
from aot.ir.core import Block, Function, Module, Op, Rewriter, Value
from aot.ir.types import DType
from aot.ops.elementwise import CAST
from aot.ops.record import Compute, Kind, call_of
from aot.ops.structure import CONSTANT, REGION, YIELD
from aot.passes.base import Pass, PassContext

MAX_OPS = 48
MAX_OPERANDS = 14
# A value of more uses has users that no group can take all: elementwise ops have three operands.
MAX_USES = 3 * MAX_OPS


@dataclass(eq=False)
class Group:
    """A region in the making: its ops, and the value it ends in (None for several results)."""

    ops: list[Op]
    result: Value | None
    root: Op
    is_gone: bool = False
    inputs: dict[Value, None] = field(default_factory=dict)


def run(module: Module, context: PassContext) -> None:
    for function in module.entry_points:
        fuse(function, shares=context.options.fusion)


def fuse(function: Function, *, shares: bool = True) -> None:
    """Forms the regions of a function's block; each op's own unless it `shares` regions."""
    position = {op: n for n, op in enumerate(function.block)}
    groups: dict[Op, Group] = {}
    ordered: list[Group] = []
    for op in function.block:
        if op in groups or not (_computes(op) or _shows_counter(op, groups)):
            continue
        group = Group([op], op.result if len(op.results) == 1 else None, op)
        if shares:
            _take_epilogue(group, groups, position)
        for member in group.ops:
            groups[member] = group
        ordered.append(group)
    for group in ordered:
        if shares and not group.is_gone:
            _take_producers(group, groups, position)
    for group in ordered:
        if not group.is_gone:
            group.ops.sort(key=position.__getitem__)
            _build(function, group)


def _computes(op: Op) -> bool:
    return (op.record.compute is not None and not is_view(op)) or op.record.kind.has_own_kernel


def _shows_counter(op: Op, groups: dict[Op, Group]) -> bool:
    """Whether the op is a view of what is computed from places and dims alone: such values have no
    memory to be a view of, as each user computes its own."""
    if op.record.compute is None or len(op.operands) != 1 or op.operands[0] is None:
        return False
    source = groups.get(op.operands[0].op) if op.operands[0].op is not None else None
    return source is not None and len(op.operands[0].uses) == 1 and _counts(source)


def _counts(group: Group) -> bool:
    """Whether the group's elements follow from their places, dims and single constants, at next to
    no cost."""
    return (
        len(group.ops[-1].results) == 1
        and all(op.record.is_cheap or op.record.kind in _PLACES for op in group.ops)
        and all(
            v.op is not None and v.op.record is CONSTANT and v.type.element_count == 1
            for v in _inputs(group.ops)
        )
    )


def _inputs(ops: list[Op]) -> dict[Value, None]:
    inside = set(ops)
    return {v: None for op in ops for v in op.operands if v is not None and v.op not in inside}


def _take_epilogue(group: Group, groups: dict[Op, Group], position: dict[Op, int]) -> None:
    """Extends the group by elementwise users up to the last point where one value leaves it."""
    if group.result is None or group.root.record.kind.is_alone:
        return
    dims = group.result.type.dims
    taken: dict[Op, None] = {}
    best = 0
    open_values = {group.result: None}
    while len(group.ops) + len(taken) < MAX_OPS:
        if any(len(v.uses) > MAX_USES for v in open_values):
            break
        users = {u for v in open_values for u in v.users if u not in taken}
        if not users:
            break
        user = min(users, key=lambda u: position.get(u, 1 << 60))
        if (
            user.record.kind is not Kind.ELEMENTWISE
            or user in groups
            or not _computes(user)
            or user not in position
            or user.result.type.dims != dims
        ):
            break
        taken[user] = None
        open_values[user.result] = None
        open_values = {
            v: None for v in open_values if not v.uses or any(u not in taken for u in v.users)
        }
        if len(_inputs([*group.ops, *taken])) > MAX_OPERANDS:
            break
        if len(open_values) == 1:
            best = len(taken)
            group.result = next(iter(open_values))
    group.ops += list(taken)[:best]
    if group.root.record.kind is Kind.ATTENTION:
        _take_transpose(group, groups, position)


def _take_transpose(group: Group, groups: dict[Op, Group], position: dict[Op, int]) -> None:
    """Extends the group by its only user, if that just stores rows in another order."""
    if group.result is None or len(group.result.uses) != 1:
        return
    (user,) = group.result.users
    order = permutation_of(user)
    if user in groups or user not in position or order is None or order[-1] != len(order) - 1:
        return
    group.ops.append(user)
    group.result = user.result


def _take_producers(group: Group, groups: dict[Op, Group], position: dict[Op, int]) -> None:
    """Moves producer groups into this one, as long as any fits."""
    changed = True
    while changed:
        changed = False
        inputs = list(_inputs(group.ops))
        if len(inputs) - 1 > MAX_OPERANDS:
            return  # a producer takes away one operand, its result
        for value in inputs:
            producer = groups.get(value.op) if value.op is not None else None
            if producer is None or producer.is_gone or producer is group:
                continue
            if not _may_join(producer, value, group):
                continue
            merged = [*producer.ops, *group.ops]
            if len(merged) > MAX_OPS or len(_inputs(merged)) > MAX_OPERANDS:
                continue
            group.ops = merged
            producer.is_gone = True
            for op in producer.ops:
                groups[op] = group
            changed = True


_PLACES = (Kind.MOVEMENT, Kind.VIEW, Kind.SHAPE)
_LIGHT = (Kind.ELEMENTWISE, *_PLACES)


def _may_join(producer: Group, value: Value, group: Group) -> bool:
    """Whether computing the producer's elements where the group loads them costs nothing."""
    if value is not producer.result or any(u not in group.ops for u, _ in value.uses):
        return False
    if any(op.record.kind not in _LIGHT for op in producer.ops):
        return False
    if group.root.record.kind.is_alone:
        # their kernels widen what they load, and take in nothing else
        return all(op.record is CAST and _is_renaming(op) for op in producer.ops)
    is_renaming = all(_is_renaming(op) for op in producer.ops)
    is_cheap = _counts(producer) or all(
        op.record.is_cheap or _is_renaming(op) for op in producer.ops
    )
    for user in value.users:
        for number, operand in enumerate(user.operands):
            if operand is value and not _fits_use(user, number, producer, is_renaming, is_cheap):
                return False
    return True


def _fits_use(user: Op, number: int, producer: Group, is_renaming: bool, is_cheap: bool) -> bool:
    kind = user.record.kind
    if kind is Kind.CONTRACTION:
        if number == 0:
            return is_renaming or all(_picks_along(op, _summed(user)) for op in producer.ops)
        # the right side is read in lanes: its innermost dim must stay in place
        return is_renaming and all(map(_keeps_innermost, producer.ops))
    if kind is Kind.ATTENTION:
        # keys and values are read again for each block of queries
        return is_renaming or (is_cheap and user.operands[number] not in user.operands[1:3])
    computes = _computes_of(user)
    if kind is Kind.REDUCTION:
        return is_cheap and not any(_overlaps(c, number) for c in computes)
    if _counts(producer) or (is_renaming and all(map(_only_repeats, producer.ops))):
        return True
    return all(_reads_once(c, number) for c in computes)


def _computes_of(op: Op) -> list[Compute]:
    assert op.record.compute is not None
    return list(op.record.compute(call_of(op)))


def _loads(compute: Compute, operand: int) -> list[expr.Load]:
    return [load for load in expr.loads(compute.value) if load.source == operand]


def _is_renaming(op: Op) -> bool:
    """Whether the op's elements are operand elements at indices linear in the result's."""
    if (op.record.kind is not Kind.MOVEMENT and op.record is not CAST) or len(op.operands) != 1:
        return False
    load = _element(op)
    if load is None or load.guard is not None:
        return False
    (compute,) = _computes_of(op)
    return all(expr.coefficient(i, v) is not None for i in load.indices for v in compute.indices)


def _summed(user: Op) -> int | None:
    """The dim of a contraction's left side that it sums over, where it reads that side a scalar at
    a time: each serves all columns, so that finding it may take some arithmetic."""
    if "group" not in user.attrs:
        return -1
    weight = user.operands[1]
    assert weight is not None
    # of a depthwise convolution, lanes go along the channels
    is_depthwise = weight.type.dims[1] == 1 or user.attrs["group"] == weight.type.dims[0]
    return 1 if user.attrs["group"] == 1 or not is_depthwise else None


def _picks_along(op: Op, dim: int | None) -> bool:
    """Whether the op's elements are operand elements, whose indices are linear in the result's but
    for that of dim number `dim`."""
    if dim is None or op.record.kind not in _PLACES or len(op.operands) != 1:
        return False
    load = _element(op)
    if load is None or load.guard is not None:
        return False
    (compute,) = _computes_of(op)
    free = compute.indices[dim]
    return all(
        expr.coefficient(i, v) is not None
        for i in load.indices
        for v in compute.indices
        if v is not free
    )


def _element(op: Op) -> expr.Load | None:
    """What each of the op's elements is a load of; widening f16 is part of loading it."""
    (compute,) = _computes_of(op)
    value = compute.value
    if isinstance(value, expr.Cast) and (value.a.dtype, value.dtype) == (DType.F16, DType.F32):
        value = value.a
    return value if isinstance(value, expr.Load) else None


def _only_repeats(op: Op) -> bool:
    """Whether the op repeats elements of its operand and leaves them in order."""
    (compute,) = _computes_of(op)
    load = _element(op)
    assert load is not None
    places = [i for i in load.indices if not isinstance(i, expr.Const)]
    order = [compute.indices.index(i) for i in places if i in compute.indices]
    return len(order) == len(places) and order == sorted(order)


def _keeps_innermost(op: Op) -> bool:
    (compute,) = _computes_of(op)
    load = _element(op)
    assert load is not None
    last = compute.indices[-1]
    return expr.coefficient(load.indices[-1], last) == 1 and all(
        expr.coefficient(i, last) == 0 for i in load.indices[:-1]
    )


def _reads_once(compute: Compute, operand: int) -> bool:
    """Whether no element of the operand is read for two result elements, or under a choice."""
    loads = _loads(compute, operand)
    if len(loads) != 1 or loads[0].guard is not None:
        return False
    for var in compute.indices:
        steps = [expr.coefficient(i, var) for i in loads[0].indices]
        if None in steps or all(s == 0 for s in steps):
            return False
    return True


def _overlaps(compute: Compute, operand: int) -> bool:
    """Whether windows over the operand overlap: an index with two variables, or a guard."""
    return any(
        load.guard is not None
        or any(not isinstance(i, (expr.Var, expr.Const, expr.Size)) for i in load.indices)
        for load in _loads(compute, operand)
    )


def _build(function: Function, group: Group) -> None:
    """Makes the `region` op in place of the group's last op."""
    inside = set(group.ops)
    inputs = list(_inputs(group.ops))
    results = [v for op in group.ops for v in op.results if any(u not in inside for u in v.users)]
    block = Block([v.type for v in inputs])
    values: dict[Value, Value] = dict(zip(inputs, block.args, strict=True))
    into = Rewriter(function, block)
    for op in group.ops:
        clone_op(op, values, into)
    into.insert(Op(YIELD, [values[v] for v in results], {}, []))
    region = Op(REGION, inputs, {}, [v.type for v in results], [block], group.root.origin)
    Rewriter(function).at(group.ops[-1]).insert(region)
    outer = Rewriter(function)
    for old, fresh in zip(results, region.results, strict=True):
        fresh.name = old.name
        outer.replace(old, fresh)
    for op in reversed(group.ops):
        outer.erase(op)


FUSE = Pass("fuse", run, __doc__)
