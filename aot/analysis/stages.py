"""Stages of a dispatch: how a region with several results runs as one kernel.

Each result is a stage: its elements are computed and stored before the next stage, which may load
them. What all stages walk alike (leading dims) is the grid; within one of its workgroups stages run
in order. Owns who belongs to which stage and what the stages share; chooses no loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from aot.analysis.accesses import accesses_of
from aot.analysis.cost.plan import Plan, plan
from aot.analysis.memory.views import memory_order
from aot.ir import dims
from aot.ir.assumed_extents import WORK
from aot.ir.dims import Dim
from aot.ir.graph import Block, Function, Op, Value
from aot.ir.record import Kind, call_of
from aot.ir.schedule import StageSchedule
from aot.ir.types import TensorType
from aot.target.model import Target

ALGORITHM, DIRECT = "algorithm", "direct"  # a convolution's attribute, and its default
NO_VALUES: Mapping[str, Dim] = MappingProxyType({})

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
    """Attributes:
    result: what the stage stores.
    ops: what it computes for that, in order; results of earlier stages are loaded.
    """

    result: Value
    ops: tuple[Op, ...]


def heaviest(ops: Sequence[Op]) -> Op:
    """The op that decides the schedule of a stage: the heaviest kind, the first of it."""
    for kind in _WORK:
        for op in ops:
            if op.record.kind is kind:
                return op
    return ops[-1]


def stages_of(block: Block, results: Sequence[Value]) -> list[Stage]:
    """The stages of a block that ends in `results`, in the order of their definition."""
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
    """The plan of each stage of an executable, as `stages` or else its own schedule has it; where
    none is recorded, as its dims want."""
    found = stages_of(function.block, function.results)
    plans = [plan(call_of(heaviest(stage.ops)), target) for stage in found]
    recorded = stages or function.schedule
    if not recorded:
        return plans
    return [
        replace(p, schedule=s.schedule, lanes=s.lanes, rows=s.rows, columns=s.columns)
        for p, s in zip(plans, recorded, strict=True)
    ]


def planned(function: Function, target: Target, algorithm: str = "") -> tuple[StageSchedule, ...]:
    """The schedule that the dims of an executable want, stage by stage; with an `algorithm`, that
    of a convolution which is computed so."""
    found: list[StageSchedule] = []
    for stage in stages_of(function.block, function.results):
        call = call_of(heaviest(stage.ops))
        if algorithm and ALGORITHM in call.attrs:
            call = replace(call, attrs={**call.attrs, ALGORITHM: algorithm})
        found.append(plan(call, target).stage)
    return tuple(found)


def schedule_of(function: Function, target: Target) -> tuple[StageSchedule, ...]:
    """How each stage of an executable runs: as is recorded, else as its dims want."""
    return function.schedule or planned(function, target)


def shared_dims(stages: Sequence[Stage]) -> int:
    """How many leading dims all results have in common, walk alike, and have outermost in memory.

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
    """Whether the dims up to `last` are the outermost ones in memory, in order."""
    wide = [d for d in memory_order(type) if type.dims[d] != 1]
    leading = [d for d in range(last + 1) if type.dims[d] != 1]
    return wide[: len(leading)] == leading


def _aligned(op: Op, result: int, aligned: dict[Value, int], most: int) -> int:
    """Leading dims along which a result element needs only elements with its own indices."""
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
    """Elements that an op computes, and terms of its reductions, each as often as it is needed.

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


def estimate(dim: Dim, unknown: int = WORK) -> int:
    """A dim as a number, open ones as `unknown`."""
    known = dims.estimate(dim, unknown)
    return 1 << 40 if known is None else known
