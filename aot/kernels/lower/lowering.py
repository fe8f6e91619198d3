"""From an executable to its kernel: buffers and parameters, then the schedule that the plan chose.

Requires an executable of ops with `compute` (or one recurrence) whose function says which buffer
class each operand and result has. Never looks at the rest of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace

from aot.analysis.cost.candidates import WINOGRAD
from aot.analysis.memory.views import memory_order
from aot.analysis.stages import DIRECT, Stage, heaviest, loops_of, planned, schedule_of, stages_of
from aot.errors import CompileError, InternalError
from aot.ir import expr
from aot.ir.expr import Expr, Var
from aot.ir.graph import Function, Op, Value
from aot.ir.record import STORED_ONLY, Kind, call_of, contraction_of
from aot.ir.schedule import Schedule, StageSchedule
from aot.kernels.ir.nodes import (
    Buffer,
    BufferClass,
    For,
    Kernel,
    KernelBuilder,
    Stmt,
    holds_matrices,
)
from aot.kernels.lower.index_math import simplifier
from aot.kernels.lower.inline import Inliner, flat_index, stored
from aot.kernels.lower.nest import Axis, Nest, Output
from aot.kernels.lower.stages import schedule_stages
from aot.kernels.lower.stored_bits import as_bits
from aot.kernels.lower.two_ways import two_ways
from aot.kernels.schedules.byte_groups import schedule_byte_groups
from aot.kernels.schedules.contraction import schedule_contraction, sum_of_products
from aot.kernels.schedules.elementwise import schedule_elementwise
from aot.kernels.schedules.general import (
    is_long_for_a_lane,
    schedule_reduction,
    schedule_shared_reduction,
)
from aot.kernels.schedules.grouped_planes import schedule_grouped_planes
from aot.kernels.schedules.grouped_windows import schedule_grouped
from aot.kernels.schedules.inner import schedule_inner
from aot.kernels.schedules.lines import Lines, schedule_scan
from aot.kernels.schedules.planes import schedule_planes
from aot.kernels.schedules.scatter import schedule_scatter
from aot.kernels.schedules.sort import schedule_sort
from aot.kernels.schedules.suppression import schedule_suppression
from aot.kernels.schedules.tap_sums import schedule_tap_sums
from aot.kernels.schedules.transforms import schedule_transform
from aot.kernels.schedules.turned_columns import schedule_turned
from aot.kernels.schedules.winograd import schedule_winograd
from aot.ops.blocked import MATMUL_BLOCKED, STORED, Blocks, blocks_of
from aot.ops.integer_contraction import MAX_WEIGHT
from aot.ops.pooling import AVERAGE_POOL, MAX_POOL
from aot.ops.spatial import RESAMPLE
from aot.ops.suppression import NON_MAX_SUPPRESSION
from aot.target.model import CACHE_LINE, Target

Unrolled = Callable[[Kernel], Container[For]]
"""The loops that a backend writes out."""

# bytes of a result that no cache holds until it is read
STREAMED_BYTES = 32 << 20
_STORED_ONCE = {Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.VIEW, Kind.SHAPE, Kind.STRUCTURE}
_POOLS = (MAX_POOL, AVERAGE_POOL)
# ways to tile a contraction
_TILES = (Schedule.CONTRACTION, Schedule.PLANES, Schedule.INNER)
_LINES = {Kind.SCAN: schedule_scan, Kind.SCATTER: schedule_scatter, Kind.SORT: schedule_sort}


def root_of(function: Function) -> Op:
    """The op that decides the schedule: the heaviest kind, the first of it."""
    ops = [op for op in function.block if not op.record.is_terminator]
    if not ops:
        raise InternalError(f"executable {function.name} computes nothing")
    return heaviest(ops)


def lower(
    function: Function,
    target: Target,
    alignments: Sequence[int] = (),
    *,
    unrolled: Unrolled | None = None,
) -> Kernel:
    """The kernel of an executable for a target.

    The parameter block is: a byte offset for each operand, then each result, then the values of
    `function.dim_names`. `alignments` are what the offsets of operands, and then results, are
    multiples of, where that is known (aot/analysis/memory/alignment.py).

    With `unrolled` extents that only the device knows may be more than a GPU's lane goes through:
    of a sum that lanes can share there are two ways then, and the extents choose.
    """
    kernel = _lower(function, target, alignments, unrolled)
    values = (v for op in function.walk() for v in (*op.operands, *op.results) if v is not None)
    return as_bits(kernel) if any(v.type.dtype in STORED_ONLY for v in values) else kernel


def _lower(
    function: Function,
    target: Target,
    alignments: Sequence[int] = (),
    unrolled: Unrolled | None = None,
) -> Kernel:
    builder = KernelBuilder(function.name)
    buffers: dict[Value, Buffer] = {}
    for name in function.dim_names:
        builder.dim_param(name)
    classes = function.bindings
    count = len(function.inputs)
    known = (*alignments, *(1,) * (len(classes) - len(alignments)))
    placed = zip(classes, known, strict=True)
    for value, (binding, alignment) in zip(function.inputs, placed, strict=False):
        buffers[value] = _buffer(builder, "in", value, binding, alignment=alignment)
    results = [
        _buffer(
            *(builder, "out", value, binding),
            is_written=True,
            alignment=alignment,
            is_streamed=_is_streamed(function, value, target),
        )
        for value, binding, alignment in zip(
            function.results, classes[count:], known[count:], strict=True
        )
    ]
    root = root_of(function)
    stages = stages_of(function.block, function.results)
    schedule = _checked(function, stages, schedule_of(function, target), target)
    by_stage = zip(schedule, stages, strict=True)
    made = next((s for s, stage in by_stage if root in stage.ops), schedule[0])
    nest = Nest(builder, target, made.lanes)
    if made.schedule is Schedule.RECURRENCE:
        return builder.build(_recurrence(nest, function, buffers, results, target))
    if made.schedule is Schedule.LINES:
        return builder.build(_lines(nest, function, buffers, results))
    if len(results) != 1:
        return builder.build(_stages(nest, function, buffers, results, target, schedule))
    if made.schedule is Schedule.ATTENTION:
        from aot.kernels.schedules.attention import schedule_attention

        return builder.build(schedule_attention(nest, function, root, buffers, results[0], made))
    output = _output([(function.results[0], results[0])], function, buffers)
    blocks = _blocks(stages[0].ops)
    body = _schedule(nest, output, made, target, stages[0].ops, is_alone=True)
    kernel = builder.build(body)
    if unrolled is None or target.gpu is None or blocks is not None or holds_matrices(kernel):
        return kernel
    most, shared = target.gpu.max_lane_iterations, schedule_shared_reduction(nest, output)
    both = two_ways(builder, body, shared, most, unrolled(kernel))
    return _lower(function, target, alignments) if both is None else builder.build(both)


def _is_streamed(function: Function, value: Value, target: Target) -> bool:
    """Whether a result is more than caches hold until it is read, and its kernel only stores it:
    one that moves, resizes or pools. What is pooled is stored by lines where these follow each
    other, or else they are asked for. One that only computes element by element often stores where
    it has just loaded."""
    records = [op.record for op in function.block]
    has_pools = any(record is pool for record in records for pool in _POOLS)
    windows = (*_POOLS, RESAMPLE)
    kinds = {r.kind for r in records if not any(r is window for window in windows)}
    has_windows = any(record is window for record in records for window in windows)
    if len(function.results) != 1 or not kinds <= _STORED_ONCE or not target.streams_lines:
        return False
    if not has_windows and Kind.MOVEMENT not in kinds:
        return False
    size, span = value.type.dtype.bytes, value.type.span
    line = value.type.dims[memory_order(value.type)[-1]] if has_pools else CACHE_LINE
    is_in_lines = isinstance(line, int) and line * size % CACHE_LINE == 0
    return isinstance(span, int) and span * size >= STREAMED_BYTES and is_in_lines


def _checked(
    function: Function,
    stages: Sequence[Stage],
    schedule: Sequence[StageSchedule],
    target: Target,
) -> Sequence[StageSchedule]:
    """The schedule, which a person may have written or a plan for another target made.

    Raises:
        CompileError: a stage can't run by its class, or with so many lanes.
    """
    for number, (stage, made) in enumerate(zip(stages, schedule, strict=True)):
        ways: list[str] = []
        for algorithm in ("", DIRECT, WINOGRAD):
            own = planned(function, target, algorithm)[number]
            ways.append(str(replace(own, rows=1, columns=1)))
            if _is_alike(own.schedule, made.schedule) and own.lanes == made.lanes:
                break
        else:
            raise CompileError(
                f"executable {function.name}: {heaviest(stage.ops).name} can't run by the schedule "
                f"[{made}] on {target.name}, expected {' or '.join(dict.fromkeys(ways))}"
            )
    return schedule


def _is_alike(a: Schedule, b: Schedule) -> bool:
    """Whether what runs by one class may run by the other: a contraction may go any of these ways,
    and where extents became parameters the plan no longer knows which is best."""
    ways = (*_TILES, Schedule.REDUCTION)
    return a is b or (a in ways and b in ways)


def _stages(
    nest: Nest,
    function: Function,
    buffers: dict[Value, Buffer],
    results: list[Buffer],
    target: Target,
    schedule: Sequence[StageSchedule],
) -> tuple[Stmt, ...]:
    """A stage for each result; those of other loop nests are loaded."""
    own = dict(zip(function.results, results, strict=True))
    stages = stages_of(function.block, function.results)
    by_result = dict(zip((s.result for s in stages), schedule, strict=True))

    def body(group: Sequence[Stage], shared: Sequence[Expr]) -> tuple[Stmt, ...]:
        made = by_result[group[0].result]
        output = _output([(s.result, own[s.result]) for s in group], function, buffers, shared)
        buffers.update((s.result, own[s.result]) for s in group)
        ops = [op for stage in group for op in stage.ops]
        nest_of_stage = replace(nest, lanes=made.lanes)
        return _schedule(nest_of_stage, output, made, target, ops)

    return schedule_stages(nest, loops_of(stages), body)


def _blocks(ops: Iterable[Op]) -> Blocks | None:
    """How the weights of a stage's product are stored, where they are operands in blocks."""
    found = next((op for op in ops if op.record is MATMUL_BLOCKED), None)
    stored = [] if found is None else [v for n, v in enumerate(found.operands) if n in STORED]
    if found is None or any(v and (v.op is not None or v.type.layout is not None) for v in stored):
        return None
    return blocks_of(call_of(found))


def _max_weight(ops: Iterable[Op]) -> int:
    """How far from 0 the weights of a stage's integer products are at most."""
    found = (contraction_of(op) for op in ops)
    known = (dims.max_weight for dims in found if dims is not None)
    return max((n for n in known if n is not None), default=MAX_WEIGHT.default)


def _has_windows(ops: Iterable[Op]) -> bool:
    """Whether a stage is a convolution, be it one at single points."""
    return any(dims is not None and dims.windows for dims in map(contraction_of, ops))


def _schedule(
    nest: Nest,
    output: Output,
    made: StageSchedule,
    target: Target,
    ops: Sequence[Op],
    *,
    is_alone: bool = False,
) -> tuple[Stmt, ...]:
    blocks = _blocks(ops)
    if made.schedule is Schedule.WINOGRAD:
        return schedule_winograd(nest, output, made, target.panel)
    if made.schedule is Schedule.TRANSFORM:
        body = schedule_transform(nest, output, call_of(heaviest(ops)))
        if body is not None:
            return body
    if made.schedule in _TILES and blocks is None:
        body = schedule_grouped_planes(nest, output)
        if body is not None:
            return body
    if made.schedule is Schedule.PLANES:
        body = schedule_planes(nest, output, made, target.panel)
        if body is None:
            body = schedule_tap_sums(nest, output, made, target.panel)
        if body is not None:
            return body
    if made.schedule is Schedule.INNER:
        body = schedule_inner(nest, output, made)
        if body is not None:
            return body
    if made.schedule is Schedule.CONTRACTION and blocks is None:
        products = sum_of_products(output)
        body = None if products is None else schedule_grouped(nest, output, products[0], made)
        if body is not None:
            return body
        body = schedule_turned(nest, output, made, target.panel)
        if body is not None:
            return body
    if made.schedule in _TILES and not is_long_for_a_lane(nest, output):
        grouped = schedule_byte_groups(nest, output) if blocks is None else None
        if grouped is not None:
            return grouped
        facts = blocks, _max_weight(ops), _has_windows(ops), is_alone
        body = schedule_contraction(nest, output, made, target.panel, *facts)
        if body is not None:
            return body
    if made.schedule is Schedule.ELEMENTWISE:
        return schedule_elementwise(nest, output)
    return schedule_reduction(nest, output, made)


def _buffer(
    builder: KernelBuilder,
    name: str,
    value: Value,
    place: int | str,
    *,
    is_written: bool = False,
    alignment: int = 1,
    is_streamed: bool = False,
) -> Buffer:
    """A flat buffer: lowerings compute element numbers themselves. Its `place` is its class, or
    the dim parameter that says which."""
    return builder.buffer(
        *(name, value.type.dtype),
        BufferClass.ARENA if isinstance(place, str) else BufferClass(place),
        *((value.type.span,), (1,)),
        is_written=is_written,
        alignment=alignment,
        class_param=builder.dim_param(place) if isinstance(place, str) else None,
        is_streamed=is_streamed,
    )


def _output(
    results: Sequence[tuple[Value, Buffer]],
    function: Function,
    buffers: dict[Value, Buffer],
    shared: Sequence[Expr] = (),
) -> Output:
    """What one loop nest stores: results of the same dims and layout.

    Axes stand in the order of their memory, so that lanes run along what is contiguous there; the
    leading ones in `shared` have their indices already.
    """
    inliner = Inliner(function, buffers)
    value, buffer = results[0]
    axes: list[Axis] = []
    indices: list[Expr] = [expr.index(0)] * value.type.rank
    indices[: len(shared)] = shared
    for number in memory_order(value.type):
        if number < len(shared):
            continue
        extent = value.type.dims[number]
        if extent == 1:
            continue
        var = Var(f"i{number}")
        axes.append(Axis(var, extent))
        indices[number] = var
    elements = [inliner.result(v, indices) for v, _ in results]
    simple = simplifier(elements, {axis.var: axis.extent for axis in axes})
    others = [(b, simple(e)) for (_, b), e in zip(results[1:], elements[1:], strict=True)]
    address = flat_index(value.type, indices)
    return Output(buffer, address, simple(elements[0]), tuple(axes), tuple(others))


def _recurrence(
    nest: Nest,
    function: Function,
    buffers: dict[Value, Buffer],
    results: list[Buffer],
    target: Target,
) -> tuple[Stmt, ...]:
    from aot.kernels.schedules.recurrence import schedule_recurrence

    op = root_of(function)
    return schedule_recurrence(
        nest, op, buffers, _result_buffers(function, op, results), target.panel
    )


def _lines(
    nest: Nest, function: Function, buffers: dict[Value, Buffer], results: list[Buffer]
) -> tuple[Stmt, ...]:
    op = root_of(function)
    lines = Lines(nest, op, buffers, _result_buffers(function, op, results))
    if op.record is NON_MAX_SUPPRESSION:
        return schedule_suppression(lines)
    return _LINES[op.record.kind](lines)


def _result_buffers(function: Function, op: Op, results: list[Buffer]) -> list[Buffer | None]:
    """Where each result of `op` goes, converted perhaps; None where nothing reads it."""
    by_value = {stored(v): buffer for v, buffer in zip(function.results, results, strict=True)}
    return [by_value.get(v) for v in op.results]
