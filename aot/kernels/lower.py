"""From an executable to its kernel: buffers and parameters, then the schedule that the plan chose.

Requires an executable of ops with `compute` (or one recurrence) whose function says which buffer
class each operand and result has. Never looks at the rest of the program.
"""

from __future__ import annotations

from aot.analysis.plan import Plan, Schedule, plan
from aot.errors import InternalError
from aot.ir import expr
from aot.ir.core import Function, Op, Value
from aot.ir.dims import floor_divide
from aot.ir.expr import Expr, Var
from aot.kernels.contraction import schedule_contraction
from aot.kernels.inline import Inliner, flat_index
from aot.kernels.ir import Buffer, BufferClass, Kernel, KernelBuilder, Stmt
from aot.kernels.lines import Lines, schedule_scan
from aot.kernels.nest import Axis, Nest, Output
from aot.kernels.recurrence import schedule_recurrence
from aot.kernels.scatter import schedule_scatter
from aot.kernels.schedules import schedule_elementwise, schedule_reduction
from aot.kernels.sort import schedule_sort
from aot.ops.record import Kind, call_of
from aot.target import Target

_LINES = {Kind.SCAN: schedule_scan, Kind.SCATTER: schedule_scatter, Kind.SORT: schedule_sort}
_WORK = (Kind.RECURRENCE, Kind.SCAN, Kind.SCATTER, Kind.SORT, Kind.CONTRACTION, Kind.REDUCTION)


def root_of(function: Function) -> Op:
    """The op that decides the schedule: the heaviest kind, the first of it."""
    ops = [op for op in function.block if not op.record.is_terminator]
    for kind in _WORK:
        for op in ops:
            if op.record.kind is kind:
                return op
    if not ops:
        raise InternalError(f"executable {function.name} computes nothing")
    return ops[-1]


def plan_of(function: Function, target: Target) -> Plan:
    """The plan of an executable."""
    return plan(call_of(root_of(function)), target)


def lower(function: Function, target: Target) -> Kernel:
    """The kernel of an executable for a target.

    The parameter block is: a byte offset for each operand, then each result, then the values of
    `function.dim_names`.
    """
    builder = KernelBuilder(function.name)
    buffers: dict[Value, Buffer] = {}
    classes = [BufferClass(c) for c in function.bindings]
    count = len(function.inputs)
    for value, binding in zip(function.inputs, classes[:count], strict=True):
        buffers[value] = _buffer(builder, "in", value, binding, is_written=False)
    results = [
        _buffer(builder, "out", value, binding, is_written=True)
        for value, binding in zip(function.results, classes[count:], strict=True)
    ]
    for name in function.dim_names:
        builder.dim_param(name)
    made = plan_of(function, target)
    nest = Nest(builder, target, made.lanes)
    if made.schedule is Schedule.RECURRENCE:
        return builder.build(_recurrence(nest, function, buffers, results, target))
    if made.schedule is Schedule.LINES:
        return builder.build(_lines(nest, function, buffers, results))
    if len(results) != 1:
        raise InternalError(
            f"executable {function.name} has {len(results)} results, "
            f"schedule {made.schedule.value} writes one"
        )
    output = _output(function.results[0], results[0], Inliner(function, buffers))
    return builder.build(_schedule(nest, output, made, target))


def _schedule(nest: Nest, output: Output, made: Plan, target: Target) -> tuple[Stmt, ...]:
    if made.schedule is Schedule.CONTRACTION:
        body = schedule_contraction(nest, output, made, target.panel)
        if body is not None:
            return body
    if made.schedule is Schedule.ELEMENTWISE:
        return schedule_elementwise(nest, output)
    return schedule_reduction(nest, output)


def _buffer(
    builder: KernelBuilder, name: str, value: Value, binding: BufferClass, *, is_written: bool
) -> Buffer:
    """A flat buffer: lowerings compute element numbers themselves."""
    elements = floor_divide(value.type.bytes, value.type.dtype.bytes)
    return builder.buffer(name, value.type.dtype, binding, (elements,), (1,), is_written=is_written)


def _output(value: Value, buffer: Buffer, inliner: Inliner) -> Output:
    axes: list[Axis] = []
    indices: list[Expr] = []
    for number, extent in enumerate(value.type.dims):
        if extent == 1:
            indices.append(expr.index(0))
            continue
        var = Var(f"i{number}")
        axes.append(Axis(var, extent))
        indices.append(var)
    return Output(
        buffer, flat_index(value.type, indices), inliner.element(value, indices), tuple(axes)
    )


def _recurrence(
    nest: Nest,
    function: Function,
    buffers: dict[Value, Buffer],
    results: list[Buffer],
    target: Target,
) -> tuple[Stmt, ...]:
    op = root_of(function)
    by_value = dict(zip(function.results, results, strict=True))
    wanted = [by_value.get(v) for v in op.results]
    return schedule_recurrence(nest, op, buffers, wanted, target.panel)


def _lines(
    nest: Nest, function: Function, buffers: dict[Value, Buffer], results: list[Buffer]
) -> tuple[Stmt, ...]:
    op = root_of(function)
    by_value = dict(zip(function.results, results, strict=True))
    lines = Lines(nest, op, buffers, [by_value.get(v) for v in op.results])
    return _LINES[op.record.kind](lines)
