"""fuse: groups ops into dispatch regions.

Requires: constants folded, weights packed.
Ensures: every op that computes stands in a `region`; views, constants and the return don't.
Never: recomputes a value in two regions, makes a region that the schedules can't lower, reads
    memory behind a write that came after the read, or lets what only a host can run share a region
    with what the target can.

A region grows from a root in two steps. Epilogues: elementwise users with the root's dims are
taken as long as the region can end in a single value; a last one that only widens is left to a
single region that reads it. Producers: regions that only rename or
cheaply compute elements, and that only this region uses, move into its loads. What a reduction's
passes would each compute moves there where that costs less than storing it
(aot/analysis/cost/recompute.py); so does resampling along one axis of planes into that along the
other (aot/analysis/resized.py).
"""

from __future__ import annotations

from dataclasses import field

from aot.analysis.accesses import Accesses, Read, accesses_of
from aot.analysis.alias.database import AliasDb
from aot.analysis.alias.write_order import WriteOrder
from aot.analysis.control import control_blocks
from aot.analysis.cost.gpu_tiles import gpu_lanes
from aot.analysis.cost.layout_costs import innermost
from aot.analysis.cost.plan import plan
from aot.analysis.cost.recompute import Prices, recompute_prices
from aot.analysis.cpu_fallback import why_on_cpu
from aot.analysis.memory.views import is_view
from aot.analysis.renaming import permutation_of
from aot.analysis.resized import is_resized_twice
from aot.base.records import dataclass
from aot.errors import advice
from aot.ir.builtin import CONSTANT, YIELD
from aot.ir.clone import clone_op
from aot.ir.dims import Dim, ceil_divide
from aot.ir.graph import Block, Function, Module, Op, Value
from aot.ir.record import Kind, call_of, contraction_of
from aot.ir.rewriter import Rewriter
from aot.ir.types import TensorType
from aot.ops.elementwise import CAST, DIV, MUL
from aot.ops.quantization import DEQUANTIZE
from aot.ops.selection import GATHER
from aot.ops.spatial import RESAMPLE
from aot.ops.structure import REGION
from aot.passes.base import Pass, PassContext
from aot.passes.fusion.remarks import FusionRemarks
from aot.target.model import Target

MAX_OPS = 48
MAX_OPERANDS = 14
# A value of more uses has users that no group can take all: elementwise ops have three operands.
MAX_USES = 3 * MAX_OPS


@dataclass(eq=False)
class Group:
    """A region under construction: its ops, and the value it ends in (None for several results).

    It runs where its last op stands, before place `until`, at which what it reads may be written.
    `ended` says why it took no more users, `why_on_cpu` why the target can't run it, `weighed` what
    it costs to compute what it took in, where it does so in several passes.
    """

    ops: list[Op]
    result: Value | None
    root: Op
    until: int
    why_on_cpu: str = ""
    ended: str = ""
    is_removed: bool = False
    inputs: dict[Value, None] = field(default_factory=dict)
    weighed: list[str] = field(default_factory=list)


def run(module: Module, context: PassContext) -> None:
    for function in module.entry_points:
        fuse(
            function,
            shares=context.options.is_enabled("fusion"),
            remarks=context.remarks,
            target=context.target,
        )


def fuse(
    function: Function,
    *,
    shares: bool = True,
    remarks: FusionRemarks | None = None,
    target: Target | None = None,
) -> None:
    """Groups the ops of a function's control blocks into regions; without `shares`, each op gets
    its own.

    None crosses the border of a block: a branch may not run, and a loop's body runs often.
    """
    for block in control_blocks(function):
        _fuse_block(function, block, shares=shares, remarks=remarks, target=target)


def _fuse_block(
    function: Function,
    block: Block,
    *,
    shares: bool,
    remarks: FusionRemarks | None,
    target: Target | None,
) -> None:
    order = WriteOrder(AliasDb.where_written(function), block)
    position = order.position
    groups: dict[Op, Group] = {}
    ordered: list[Group] = []
    for op in block:
        if op in groups or not (_computes(op) or _is_view_of_index_only(op, groups)):
            continue
        result = op.result if len(op.results) == 1 else None
        group = Group([op], result, op, order.sinks_until(op), why_on_cpu(op, target))
        if shares:
            _take_epilogue(group, groups, order, target)
        for member in group.ops:
            groups[member] = group
        ordered.append(group)
    if shares:
        ordered += [
            part for group in ordered for part in _widening(group, groups, position, target)
        ]
    for group in ordered:
        if shares and not group.is_removed:
            _take_producers(group, groups, position, target)
    left = [group for group in ordered if not group.is_removed]
    numbers: dict[Group, int] = {}
    if remarks is not None:
        with advice("why regions end"):
            numbers = _add_remarks(left, groups, position, remarks, target)
    for group in left:
        group.ops.sort(key=position.__getitem__)
        region = _build(function, group)
        if remarks is not None and group in numbers:
            remarks.formed(region, numbers[group], group.weighed)


def _add_remarks(
    left: list[Group],
    groups: dict[Op, Group],
    position: dict[Op, int],
    remarks: FusionRemarks,
    target: Target | None,
) -> dict[Group, int]:
    """Records remarks on why groups that read each other's values stay apart; returns the number of
    each group.
    """
    numbers = {group: len(remarks.roots) + n for n, group in enumerate(left)}
    remarks.roots += [(group.root.name, group.root.origin) for group in left]
    for group in left:
        end = max(map(position.__getitem__, group.ops))
        for value in _inputs(group.ops):
            producer = groups.get(value.op) if value.op is not None else None
            if producer is not None and producer is not group:
                found = (producer.ended, _obstacle(producer, value, group, end, target))
                cut = numbers[producer], numbers[group]
                remarks.cuts[cut] = tuple(reason for reason in found if reason)
    return numbers


def _computes(op: Op) -> bool:
    return (
        op.record.compute is not None and not is_view(op)
    ) or op.record.kind.has_handwritten_kernel


def _is_view_of_index_only(op: Op, groups: dict[Op, Group]) -> bool:
    """Whether the op is a view of values that depend only on indices and dims: these have no
    memory, since each user computes them itself.
    """
    if op.record.compute is None or len(op.operands) != 1 or op.operands[0] is None:
        return False
    source = groups.get(op.operands[0].op) if op.operands[0].op is not None else None
    return source is not None and len(op.operands[0].uses) == 1 and _is_index_only(source)


def _is_index_only(group: Group) -> bool:
    """Whether the group's elements are cheap functions of indices, dims and scalar constants
    only."""
    return (
        len(group.ops[-1].results) == 1
        and all(op.record.is_cheap or op.record.kind in _PLACES for op in group.ops)
        and not any(op.record is DIV and op.result.type.dtype.is_integer for op in group.ops)
        and all(
            v.op is not None and v.op.record is CONSTANT and v.type.element_count == 1
            for v in _inputs(group.ops)
        )
    )


def _inputs(ops: list[Op]) -> dict[Value, None]:
    inside = set(ops)
    return {v: None for op in ops for v in op.operands if v is not None and v.op not in inside}


def _take_epilogue(
    group: Group, groups: dict[Op, Group], order: WriteOrder, target: Target | None
) -> None:
    """Adds elementwise users to the group, up to the last point at which a single value leaves
    it."""
    if group.result is None:
        group.ended = f"{group.root.name} has several results"
        return
    if group.root.record.kind.blocks_fusion:
        group.ended = f"kernels of {group.root.name} are written by hand and store what they make"
        return
    position, dims = order.position, group.result.type.dims
    taken: dict[Op, None] = {}
    best, until = 0, group.until
    open_values = {group.result: None}
    while True:
        if len(group.ops) + len(taken) >= MAX_OPS:
            group.ended = f"a region has at most {MAX_OPS} ops"
            break
        if any(len(v.uses) > MAX_USES for v in open_values):
            group.ended = f"its value has more than {MAX_USES} uses"
            break
        users = {u for v in open_values for u in v.users if u not in taken}
        if not users:
            break
        user = min(users, key=lambda u: position.get(u, 1 << 60))
        reason = _no_epilogue(user, groups, position, dims, until)
        reason = reason or _elsewhere(group.why_on_cpu, why_on_cpu(user, target))
        if reason is not None:
            group.ended = reason
            break
        until = min(until, order.sinks_until(user))
        taken[user] = None
        open_values[user.result] = None
        open_values = {
            v: None for v in open_values if not v.uses or any(u not in taken for u in v.users)
        }
        if len(_inputs([*group.ops, *taken])) > MAX_OPERANDS:
            del taken[user]
            group.ended = f"with {user.name} it would read more than {MAX_OPERANDS} values"
            break
        if len(open_values) == 1:
            best, group.until = len(taken), until
            group.result = next(iter(open_values))
    group.ops += list(taken)[:best]
    if best < len(taken):
        group.ended = f"several values would leave it; {group.ended}"
    if group.root.record.kind is Kind.ATTENTION:
        _take_transpose(group, groups, order)


def _no_epilogue(
    user: Op, groups: dict[Op, Group], position: dict[Op, int], dims: tuple[Dim, ...], until: int
) -> str | None:
    """Why `user` cannot be the epilogue of a region with result dims `dims`; None if it can."""
    if user not in position:
        return f"{user.name} is in another block of control flow"
    if user in groups:
        return f"{user.name} is in a region already"
    if user.record.kind is not Kind.ELEMENTWISE:
        return f"{user.name} is not elementwise"
    if not _computes(user):
        return f"{user.name} only shows its memory"
    if user.result.type.dims != dims:
        return f"{user.name} has other dims"
    if position[user] >= until:
        return f"its operand is written before {user.name}"
    return None


def _elsewhere(why: str, other: str) -> str | None:
    """Why two regions cannot be one dispatch: only one of them runs on the target. None if both or
    neither do.
    """
    return None if bool(why) == bool(other) else f"only one of them is {why or other}"


def _take_transpose(group: Group, groups: dict[Op, Group], order: WriteOrder) -> None:
    """Adds the group's only user, if it is a transpose that keeps rows contiguous."""
    if group.result is None or len(group.result.uses) != 1:
        return
    (user,) = group.result.users
    perm, place = permutation_of(user), order.position.get(user, group.until)
    if user in groups or perm is None or perm[-1] != len(perm) - 1 or place >= group.until:
        return
    group.ops.append(user)
    group.result = user.result
    group.until = min(group.until, order.sinks_until(user))


def _widening(
    group: Group, groups: dict[Op, Group], position: dict[Op, int], target: Target | None
) -> list[Group]:
    """Splits off a final widening (cast or dequantisation), if a single other group reads it: that
    group then loads fewer bytes and takes the widening in. Returns the split-off group, if any."""
    if group.result is None or len(group.ops) == 1:
        return []
    last = group.result.op
    narrow = None if last is None else last.operands[0]
    if last is None or last.record not in (DEQUANTIZE, CAST) or narrow is None:
        return []
    is_narrower = narrow.type.dtype.bytes < last.result.type.dtype.bytes
    if not is_narrower or narrow.op not in group.ops or len(narrow.uses) != 1:
        return []
    users = {groups.get(user) for user in last.result.users}
    (user, *others) = users or {None}
    if user is None or others or user is group:
        return []
    part = Group([last], last.result, last, group.until, group.why_on_cpu)
    end = max(map(position.__getitem__, user.ops))
    if _obstacle(part, last.result, user, end, target) is not None:
        return []
    group.ops.remove(last)
    group.result = narrow
    groups[last] = part
    return [part]


def _take_producers(
    group: Group, groups: dict[Op, Group], position: dict[Op, int], target: Target | None
) -> None:
    """Merges producer groups into this one, as long as one fits."""
    changed, end = True, max(map(position.__getitem__, group.ops))
    while changed:
        changed = False
        inputs = list(_inputs(group.ops))
        if len(inputs) - 1 > MAX_OPERANDS:
            return  # a producer takes away one operand, its result
        for value in inputs:
            producer = groups.get(value.op) if value.op is not None else None
            if producer is None or producer.is_removed or producer is group:
                continue
            if _obstacle(producer, value, group, end, target) is not None:
                continue
            for user, number in value.uses:
                prices = _prices(user, number, producer, target)
                if prices is not None and prices.passes > 1:
                    group.weighed.append(f"{_named(producer.root)}: {prices}")
            group.ops = [*producer.ops, *group.ops]
            group.until = min(group.until, producer.until)
            producer.is_removed = True
            for op in producer.ops:
                groups[op] = group
            changed = True


_PLACES = (Kind.MOVEMENT, Kind.VIEW, Kind.SHAPE)
_LIGHT = (Kind.ELEMENTWISE, *_PLACES)


def _obstacle(
    producer: Group, value: Value, group: Group, end: int, target: Target | None
) -> str | None:
    """Why a producer cannot be merged into a group that ends at position `end`; None if it can."""
    if producer.until <= end:
        return "its operand is written in between"
    apart = _elsewhere(producer.why_on_cpu, group.why_on_cpu)
    if apart is not None:
        return apart
    reason = _price(producer, value, group, target)
    if reason is not None:
        return reason
    merged = [*producer.ops, *group.ops]
    if len(merged) > MAX_OPS:
        return f"together they would have more than {MAX_OPS} ops"
    if len(_inputs(merged)) > MAX_OPERANDS:
        return f"together they would read more than {MAX_OPERANDS} values"
    return None


def _price(producer: Group, value: Value, group: Group, target: Target | None) -> str | None:
    """Why recomputing a producer's elements at the group's loads would cost something; None if it
    is free."""
    if value is not producer.result:
        return "it ends in another value, or in several"
    other = next((u for u, _ in value.uses if u not in group.ops), None)
    if other is not None and other.record.is_terminator:
        return "it is a result too, and nothing is computed twice"
    if other is not None:
        return f"{_named(other)} uses it too, and nothing is computed twice"
    heavy = next((op for op in producer.ops if op.record.kind not in _LIGHT), None)
    if heavy is not None and _resizes_planes(producer, group, target):
        return None
    if heavy is not None:
        return f"{heavy.name} has loops of its own, which no load can hold"
    if group.root.record.kind.blocks_fusion:
        # their kernels widen what they load, and take in nothing else
        if all(op.record is CAST and _is_renaming(op) for op in producer.ops):
            return None
        return f"kernels of {group.root.name} are written by hand and load what is in memory"
    is_renaming = all(_is_renaming(op) for op in producer.ops)
    is_cheap = _is_index_only(producer) or all(
        op.record.is_cheap or _is_renaming(op) for op in producer.ops
    )
    for user in value.users:
        for number, operand in enumerate(user.operands):
            fits = operand is not value or _fits_use(
                *(user, number, producer, is_renaming, is_cheap, target)
            )
            if not fits:
                return _why_not_fit(user, number, is_cheap)
            prices = _prices(user, number, producer, target) if operand is value else None
            if prices is not None and prices.inline > prices.apart:
                return str(prices)
            if operand is value and _widens_often(user, number, producer, target):
                return f"{user.name} would widen it for each tile of rows"
    return None


def _resizes_planes(producer: Group, group: Group, target: Target | None) -> bool:
    """Whether producer and group together resample a plane along both axes, which one kernel does
    in a single pass."""
    if not is_resized_twice(producer.root, group.root, target) or len(producer.ops) != 1:
        return False
    return not any(op.record is RESAMPLE for op in group.ops if op is not group.root)


def _prices(user: Op, number: int, producer: Group, target: Target | None) -> Prices | None:
    """The costs of recomputing a reduction's operand in its loads, and of storing it; None where
    nothing is recomputed, or on a GPU, whose arithmetic waits for memory.
    """
    operand = user.operands[number]
    if user.record.kind is not Kind.REDUCTION or operand is None:
        return None
    if target is None or target.has_workgroups or all(map(_is_renaming, producer.ops)):
        return None
    inputs = sum(v.type.dims == operand.type.dims for v in _inputs(producer.ops))
    return recompute_prices(producer.ops, inputs, user, number, target)


def _why_not_fit(user: Op, number: int, is_cheap: bool) -> str:
    """A remark on why `_fits_use` refused an operand."""
    kind = user.record.kind
    if kind is Kind.CONTRACTION and not _is_left(user, number):
        return f"{user.name} reads it in lanes along its innermost dim, which must stay in place"
    if kind in (Kind.CONTRACTION, Kind.ATTENTION):
        allowed = "renaming, or rows of it scaled" if kind is Kind.ATTENTION else "renaming"
        return f"{user.name} loads each element many times, so it must be a mere {allowed}"
    if kind is Kind.REDUCTION and is_cheap:
        return f"windows of {user.name} overlap, so it would be computed more than once"
    if kind is Kind.REDUCTION:
        return f"it is not cheap enough to be computed in the loads of {user.name}"
    return f"{user.name} loads an element more than once, or under a condition"


def _widens_often(user: Op, number: int, producer: Group, target: Target | None) -> bool:
    """Whether fusing a widening into a contraction's right side would repeat it for each element,
    on a target without an instruction that widens for free."""
    call = call_of(user)
    contraction = call.contraction
    if contraction is None or number == contraction.left.operand:
        return False
    if target is None or (not target.has_workgroups and target.converts_half):
        return False
    if not any(accesses.is_widened for op in producer.ops for accesses in accesses_of(op)):
        return False
    made = plan(call, target)
    along = 1
    if target.has_workgroups:
        along, _ = gpu_lanes(target, made.lanes // made.shares, made.rows, made.columns)
    return ceil_divide(contraction.tile_extents[0], made.rows // along) != 1


def _named(op: Op) -> str:
    return f"{op.name} ({op.origin})" if op.origin else op.name


def _fits_use(
    user: Op,
    number: int,
    producer: Group,
    is_renaming: bool,
    is_cheap: bool,
    target: Target | None,
) -> bool:
    kind = user.record.kind
    if kind is Kind.CONTRACTION:
        if _is_left(user, number):
            return is_renaming or _picks_along(producer.ops, _summed(user))
        # the right side is read in lanes: its innermost dim must stay in place
        return is_renaming and all(map(_keeps_innermost, producer.ops))
    if kind is Kind.ATTENTION:
        # keys and values are read again for each block of queries
        if user.operands[number] in user.operands[1:3]:
            return is_renaming or all(map(_is_of_scaled_rows, producer.ops))
        return is_renaming or is_cheap
    found = accesses_of(user)
    if kind is Kind.REDUCTION:
        return is_cheap and not any(_overlaps(a, number) for a in found)
    if _is_index_only(producer) or (is_renaming and all(map(_only_repeats, producer.ops))):
        return True
    if user.record is GATHER and all(op.record is GATHER for op in producer.ops):
        # an element of a table more, which rows or columns share; but where lanes load one by one,
        # columns are gathered once for all rows that are alike
        return target is None or target.has_workgroups or target.picks_lanes(4)
    results = zip(found, user.results, strict=True)
    return all(_reads_once(a, number, result.type.dims) for a, result in results)


def _element(op: Op) -> Read | None:
    """The single read, possibly widened from f16, that each element of the op is; None if it is
    conditional.
    """
    (found,) = accesses_of(op)
    return found.element if found.element is not None and not found.element.conditions else None


def _is_renaming(op: Op) -> bool:
    """Whether each result element is an operand element at an affine index."""
    if (op.record.kind is not Kind.MOVEMENT and op.record is not CAST) or len(op.operands) != 1:
        return False
    element = _element(op)
    return element is not None and element.is_affine


def _is_of_scaled_rows(op: Op) -> bool:
    """Whether the op only renames or converts elements, or scales each row by a number."""
    if op.record is MUL:
        return any(t is not None and t.rank and t.dims[-1] == 1 for t in op.operand_types)
    return op.record is CAST or _is_renaming(op)


def _is_left(user: Op, number: int) -> bool:
    """Whether operand `number` is a contraction's left side, of which kernels read one scalar at a
    time."""
    contraction = contraction_of(user)
    return contraction is not None and number == contraction.left.operand


def _summed(user: Op) -> int | None:
    """The reduced dim of the contraction `user`'s left side, if it loads that side one scalar at a
    time: a scalar serves all columns, so that its address may cost some arithmetic. None for
    depthwise convolutions and other ops.
    """
    contraction = contraction_of(user)
    # of a depthwise convolution, lanes go along the channels
    if contraction is None or contraction.is_depthwise:
        return None
    return contraction.left.summed


def _picks_along(ops: list[Op], dim: int | None) -> bool:
    """Whether a chain of ops only picks operand elements, at indices linear in all result indices
    except dim `dim`."""
    if dim is None:
        return False
    free = {dim % ops[-1].result.type.rank}
    for op in reversed(ops):
        if op.record.kind not in _PLACES or len(op.operands) != 1:
            return False
        element, linear = _element(op), set(range(op.result.type.rank)) - free
        if element is None or not all(map(element.is_linear_in, linear)):
            return False
        free = {
            number
            for number, s in enumerate(element.subscripts)
            if not any(map(s.depends_on, linear))
        }
    return True


def _only_repeats(op: Op) -> bool:
    """Whether the op repeats operand elements and keeps their order."""
    element = _element(op)
    if element is None:
        return False
    order = [s.variable for s in element.subscripts if not s.is_constant]
    places = [d for d in order if d is not None]
    return len(places) == len(order) and places == sorted(places)


def _keeps_innermost(op: Op) -> bool:
    """Whether elements contiguous in the result are contiguous in the operand."""
    element, (operand,) = _element(op), op.operand_types
    made = op.result.type
    if element is None or operand is None or _splits(operand) != _splits(made):
        return False
    if not operand.rank or not made.rank:
        return made.element_count == 1  # a scalar that is repeated is in no lane
    along = innermost(made)
    if made.dims[along] == 1:
        return made.element_count == 1
    steps = [s.steps[along] for s in element.subscripts]
    return steps.pop(innermost(operand)) == 1 and not any(steps)


def _splits(type: TensorType) -> tuple[tuple[int, Dim], ...]:
    return () if type.layout is None else type.layout.splits


def _reads_once(accesses: Accesses, operand: int, dims: tuple[Dim, ...]) -> bool:
    """Whether each operand element is read for at most one element of a result of `dims`, and
    unconditionally."""
    reads = list(accesses.of(operand))
    if len(reads) != 1 or reads[0].conditions:
        return False
    return all(
        reads[0].is_linear_in(d) and any(s.steps[d] != 0 for s in reads[0].subscripts)
        for d, extent in enumerate(dims)
        if extent != 1
    )


def _overlaps(accesses: Accesses, operand: int) -> bool:
    """Whether the operand is read through overlapping windows: an index with two variables, or a
    condition."""
    return any(
        read.conditions or any(not s.is_constant and s.variable is None for s in read.subscripts)
        for read in accesses.of(operand)
    )


def _build(function: Function, group: Group) -> Op:
    """Replaces the group's last op by a `region` op that contains the group."""
    inside = set(group.ops)
    inputs = list(_inputs(group.ops))
    results = [
        v
        for op in group.ops
        for v in op.results
        if v.index in op.record.room or any(u not in inside for u in v.users)
    ]
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
    return region


FUSE = Pass("fuse", run, __doc__)
