"""Stages of a dispatch: a region with several results as one kernel of several loop nests.

Each result is a stage: its elements are computed and stored before the next stage, which may load
them. What all stages walk alike (leading dims) is the grid; within one of its workgroups stages run
in order. Owns who belongs to which stage and what the stages share; chooses no loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from aot.analysis.accesses import Read, accesses_of
from aot.analysis.cost.plan import Plan, lanes_of, plan
from aot.analysis.memory.views import memory_order
from aot.base.records import dataclass
from aot.ir import dims
from aot.ir.assumed_extents import WORK, WORK_ON_GPU
from aot.ir.contraction import ContractionDims
from aot.ir.dims import Dim
from aot.ir.graph import Block, Function, Op, Value
from aot.ir.record import Kind, call_of, contraction_of
from aot.ir.schedule import StageSchedule
from aot.ir.types import TensorType
from aot.target.model import Target

ALGORITHM, DIRECT = "algorithm", "direct"  # a convolution's attribute, and its default
NO_VALUES: Mapping[str, Dim] = MappingProxyType({})

# A workgroup is worth its while when one lane of so many has something to do.
MOST_IDLE, MOST_IDLE_ON_GPU = 2, 16

_WORK = (
    Kind.RECURRENCE,
    Kind.SCAN,
    Kind.SCATTER,
    Kind.SORT,
    Kind.ATTENTION,
    Kind.CONTRACTION,
    Kind.REDUCTION,
)


@dataclass(frozen=True)
class Stage:
    """The part of a region that computes and stores one result.

    Attributes:
        result: what the stage stores.
        ops: what it computes for that, in order; results of earlier stages are loaded.
    """

    result: Value
    ops: tuple[Op, ...]


def heaviest(ops: Sequence[Op]) -> Op:
    """The op that decides a stage's schedule: the first op of the heaviest kind."""
    for kind in _WORK:
        for op in ops:
            if op.record.kind is kind:
                return op
    return ops[-1]


def stages_of(block: Block, results: Sequence[Value]) -> list[Stage]:
    """The stages of a block that yields `results`, in definition order."""
    position = {op: n for n, op in enumerate(block)}
    ordered = sorted(dict.fromkeys(results), key=lambda v: position[v.op])  # type: ignore[index]
    stored: set[Value] = set()
    found: list[Stage] = []
    for result in ordered:
        ops: dict[Op, None] = {}
        stack = [result]
        while stack:
            value = stack.pop()
            if value.op is None or value in stored or value.op in ops:
                continue
            ops[value.op] = None
            stack.extend(v for v in value.op.operands if v is not None)
        stored.add(result)
        found.append(Stage(result, tuple(sorted(ops, key=position.__getitem__))))
    return found


def plans_of(
    function: Function, target: Target, stages: Sequence[StageSchedule] = ()
) -> list[Plan]:
    """The plan of each stage of an executable, from `stages`, else from its recorded schedule, else
    from its dims."""
    found = stages_of(function.block, function.results)
    plans = [plan(call_of(heaviest(stage.ops)), target) for stage in found]
    recorded = stages or function.schedule
    if not recorded:
        return plans
    return [p.as_recorded(s) for p, s in zip(plans, recorded, strict=True)]


def planned(function: Function, target: Target, algorithm: str = "") -> tuple[StageSchedule, ...]:
    """The schedule planned for an executable's dims, stage by stage; with `algorithm`, for a
    convolution by that algorithm."""
    found: list[StageSchedule] = []
    for stage in stages_of(function.block, function.results):
        call = call_of(heaviest(stage.ops))
        if algorithm and ALGORITHM in call.attrs:
            call = replace(call, attrs={**call.attrs, ALGORITHM: algorithm})
        found.append(plan(call, target).stage)
    return tuple(found)


def schedule_of(function: Function, target: Target) -> tuple[StageSchedule, ...]:
    """The schedule of each stage of an executable: the recorded one, else the planned one."""
    return function.schedule or planned(function, target)


def loops_of(stages: Sequence[Stage]) -> list[tuple[Stage, ...]]:
    """The stages grouped into loop nests, in order: a nest's results need no elements of each
    other.

    A stage without reductions goes into the nest of those before it where its result has their
    dims and layout, and where it loads of their results only the elements at its own indices, and
    one that does elementwise ops of the same contraction as they. Each element is then stored from
    the register that it was computed in, and never loaded again.
    """
    found: list[tuple[Stage, ...]] = []
    for stage in stages:
        if found and _continues(found[-1], stage):
            found[-1] = (*found[-1], stage)
        else:
            found.append((stage,))
    return found


def _continues(nest: Sequence[Stage], stage: Stage) -> bool:
    """Whether a loop nest can also store the result of `stage`."""
    first, type = nest[0].result.type, stage.result.type
    if (first.dims, first.layout) != (type.dims, type.layout):
        return False
    if not _is_elementwise(stage):
        return _has_same_root(nest[0], stage)
    if any(op.record.kind.blocks_fusion for op in nest[0].ops):
        return False
    aligned = {s.result: type.rank for s in nest}
    for op in stage.ops:
        for value in op.results:
            aligned[value] = _aligned(op, value.index, aligned, value.type.rank)
    made = {v for s in (*nest, stage) for op in s.ops for v in op.results}
    reads = [v for op in stage.ops for v in op.operands if v is not None and v in made]
    return all(aligned.get(v, 0) == v.type.rank for v in (*reads, stage.result))


def _has_same_root(first: Stage, stage: Stage) -> bool:
    """Whether two stages apply only elementwise ops to the same contraction."""
    roots = {op for op in (*first.ops, *stage.ops) if op.record.kind is Kind.CONTRACTION}
    if len(roots) != 1 or not all(root in s.ops for root in roots for s in (first, stage)):
        return False
    (root,) = roots
    extents = stage.result.type.dims
    made = set(root.results)
    if root.results[0].type.dims != extents:
        return False
    for s in (first, stage):
        for op in s.ops:
            own = [v for v in op.operands if v in made]
            if op is root or not own:
                continue
            is_alike = all(v is not None and v.type.dims == extents for v in (*own, *op.results))
            if op.record.kind is not Kind.ELEMENTWISE or not is_alike:
                return False
            made.update(op.results)
    before = [op for s in (first, stage) for op in s.ops if op is not root]
    return all(op.record.kind not in _WORK and op.record.compute is not None for op in before)


def _is_elementwise(stage: Stage) -> bool:
    """Whether the stage's elements need no loops of their own."""
    return all(op.record.compute is not None and op.record.kind not in _WORK for op in stage.ops)


def grid_dims(loops: Sequence[Sequence[Stage]], target: Target) -> int:
    """The number of leading result dims that form a dispatch's grid: one workgroup for each index,
    which runs all loop nests in order.

    As many as all results share, but those along which a reduction would be done anew, and those
    that leave so few elements of an index that most of a vector, or of a GPU's lanes, is idle.
    """
    unknown, lanes = unknown_work(target), lanes_of(target, 4)
    stages = [stage for nest in loops for stage in nest]
    work = [sum(work_of(op, unknown=unknown) for s in n for op in s.ops) for n in loops]
    most = sum(work) * (MOST_IDLE_ON_GPU if target.has_workgroups else MOST_IDLE)
    count = min(shared_dims(stages), *map(_reduced_once, stages))
    if not target.has_workgroups:
        count = min(count, *map(_gathered_by_line, stages))
    shared = stages[0].result.type.dims

    def steps() -> int:
        """The serial work per lane, in full vectors."""
        pairs = zip(work, loops, strict=True)
        return sum(
            own * lanes // min(_side_by_side(n[0], count, unknown), lanes) for own, n in pairs
        )

    while count and (shared[count - 1] == 1 or steps() > most):
        count -= 1
    return count


def _reduced_once(stage: Stage) -> int:
    """The number of leading dims of a stage's result on which all its reductions depend. No
    reduction is shared across such dims; in a contraction they are the batch dims, as tiles want
    several rows and columns.
    """
    count = stage.result.type.rank
    for op in stage.ops:
        if op.record.compute is None:
            continue
        contraction = contraction_of(op)
        if contraction is not None and not contraction.is_depthwise:
            count = min(count, _batch_dims(contraction))
        type = op.results[0].type
        for reduction in (r for a in accesses_of(op) for r in a.reductions):
            own = 0
            while own < type.rank and (own in reduction.dims or type.dims[own] == 1):
                own += 1
            count = min(count, own)
    return count


def _gathered_by_line(stage: Stage) -> int:
    """The number of leading dims of a stage's result that leave at least two inner dims, where
    elements are gathered along the innermost dim by a table: the table is then decoded once for all
    rows.
    """
    type = stage.result.type
    order = memory_order(type)
    for op in stage.ops:
        for accesses in accesses_of(op) if op.record.compute is not None and order else ():
            for read in accesses.reads:
                value = op.operands[read.operand]
                inner = memory_order(value.type)[-1:] if value is not None else ()
                if accesses.rank == type.rank and any(
                    read.subscripts[d].has_data and read.subscripts[d].steps[order[-1]] is None
                    for d in inner
                    if accesses.reductions or accesses.element is not None
                ):
                    return max(type.rank - 2, 0)
    return type.rank


def _batch_dims(contraction: ContractionDims) -> int:
    """The number of leading dims of a contraction's result outside its tiles."""
    rows = (contraction.row_axis,) if contraction.windows else contraction.rows
    return min(*rows, contraction.row_axis, contraction.column)


def _side_by_side(stage: Stage, count: int, unknown: int) -> int:
    """The number of elements that lanes can compute together at one index of the first `count`
    dims: result elements, or contiguous terms of a reduction.
    """
    most = estimate(dims.product(stage.result.type.dims[count:]), unknown)
    for op in stage.ops:
        for accesses in accesses_of(op) if op.record.compute is not None else ():
            for reduction in accesses.reductions:
                if any(_runs_along(op, read, reduction.axes[-1]) for read in accesses.reads):
                    terms = dims.product([accesses.extents[v] for v in reduction.axes])
                    most = max(most, estimate(terms, unknown))
    return max(most, 1)


def _runs_along(op: Op, read: Read, variable: int) -> bool:
    """Whether a read is contiguous along a variable."""
    value = op.operands[read.operand]
    if value is None or not read.subscripts or not value.type.rank:
        return False
    inner = next((d for d in reversed(memory_order(value.type)) if value.type.dims[d] != 1), None)
    return (
        inner is not None
        and inner < len(read.subscripts)
        and (read.subscripts[inner].steps[variable] == 1)
    )


def shared_dims(stages: Sequence[Stage]) -> int:
    """The number of leading dims that all stages' results share, with equal extents and outermost
    in memory.

    Along those, every element that a stage loads of an earlier one has the indices of the element
    that it computes.
    """
    first = stages[0].result.type.dims
    count = 0
    while all(
        count < s.result.type.rank
        and s.result.type.dims[count] == first[count]
        and _leads(s.result.type, count)
        for s in stages
    ):
        count += 1
    aligned: dict[Value, int] = {}
    for stage in stages:
        for op in stage.ops:
            for value in op.results:
                aligned[value] = _aligned(op, value.index, aligned, count)
        count = min(count, aligned[stage.result])
        aligned[stage.result] = count
    return count


def _leads(type: TensorType, last: int) -> bool:
    """Whether dims up to `last` are the outermost ones in memory, in order."""
    wide = [d for d in memory_order(type) if type.dims[d] != 1]
    leading = [d for d in range(last + 1) if type.dims[d] != 1]
    return wide[: len(leading)] == leading


def _aligned(op: Op, result: int, aligned: dict[Value, int], most: int) -> int:
    """The number of leading dims along which a result element needs only operand elements with the
    same indices."""
    record = op.record
    if all(v not in aligned for v in op.operands if v is not None):
        return most
    if record.compute is None:
        return 0
    found = most
    for read in accesses_of(op)[result].reads:
        value = op.operands[read.operand]
        if value is None or value not in aligned:
            continue
        same = 0
        while same < min(op.results[result].type.rank, len(read.subscripts)) and (
            read.subscripts[same].variable == same
            or value.type.dims[same] == op.results[result].type.dims[same] == 1
        ):
            same += 1
        found = min(found, same, aligned[value])
    return found


def work_of(op: Op, values: Mapping[str, Dim] = NO_VALUES, unknown: int = WORK) -> int:
    """The work of an op: its elements, and the terms of its reductions, each counted as often as it
    is computed.

    `values` are the dim parameters of an executable, as one of its dispatches gives them; `unknown`
    is what others count as.
    """

    def size(dim: Dim) -> int:
        return estimate(dims.substitute(dim, values) if values else dim, unknown)

    record = op.record
    work = max((size(v.type.element_count) for v in op.results), default=0)
    if record.compute is None:
        return work
    for accesses in accesses_of(op):
        for reduction in accesses.reductions:
            own = [accesses.extents[v] for v in (*reduction.dims, *reduction.axes)]
            work += size(dims.product(own))
    return work


def unknown_work(target: Target) -> int:
    """The value assumed for an extent known only at run time, to estimate a dispatch's work."""
    return WORK_ON_GPU if target.has_workgroups else WORK


def estimate(dim: Dim, unknown: int = WORK) -> int:
    """A dim as a number, with `unknown` for dynamic extents."""
    known = dims.estimate(dim, unknown)
    return 1 << 40 if known is None else known
