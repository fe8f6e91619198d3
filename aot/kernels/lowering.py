"""Lowers an executable to its kernel: makes buffers and parameters, then applies the rule of each
loop nest.

Requires an executable of ops with `compute` (or one recurrence) whose function says which buffer
class each operand and result has. Never looks at the rest of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property

from aot.analysis.cost.candidates import WINOGRAD
from aot.analysis.memory.views import memory_order
from aot.analysis.stages import DIRECT, Stage, heaviest, loops_of, planned, schedule_of, stages_of
from aot.base.records import dataclass
from aot.errors import CompileError, InternalError
from aot.ir import expr
from aot.ir.expr import Expr, Var
from aot.ir.graph import Function, Op, Value
from aot.ir.record import STORED_ONLY, Kind
from aot.ir.schedule import Schedule, StageSchedule
from aot.kernels.ir.nodes import (
    Buffer,
    BufferClass,
    For,
    Kernel,
    KernelBuilder,
    holds_matrices,
)
from aot.kernels.match.work import Build, Loops, Work
from aot.kernels.nest.equal_twin import equal_twin
from aot.kernels.nest.index_math import simplifier
from aot.kernels.nest.inline import Inliner, flat_index
from aot.kernels.nest.nest import Axis, Nest, Output
from aot.kernels.nest.stages import schedule_stages
from aot.kernels.nest.stored_bits import as_bits
from aot.kernels.nest.two_ways import two_ways, up_to
from aot.kernels.rules.reductions.lanes import SHARED, schedule_shared_reduction
from aot.kernels.rules.rule import OpRule, OpWork
from aot.kernels.rules.table import BY_NAME, OP_RULES, RULES
from aot.ops.pooling import AVERAGE_POOL, MAX_POOL
from aot.ops.spatial import RESAMPLE
from aot.target.model import CACHE_LINE, Target

Unrolled = Callable[[Kernel], Container[For]]
"""The loops that a backend writes out."""

# bytes of a result that no cache holds until it is read
STREAMED_BYTES = 32 << 20
_STORED_ONCE = {Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.VIEW, Kind.SHAPE, Kind.STRUCTURE}
_POOLS = (MAX_POOL, AVERAGE_POOL)
# ways to tile a contraction
_TILES = (Schedule.CONTRACTION, Schedule.PLANES, Schedule.INNER)
# classes of executables around one op
_OF_AN_OP = (Schedule.RECURRENCE, Schedule.LINES)


def root_of(function: Function) -> Op:
    """The op that decides an executable's schedule: the first op of the heaviest kind."""
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


def rules_of(function: Function, target: Target) -> tuple[str, ...]:
    """Names of the rules that build an executable's loop nests, found without building the
    kernel."""
    start = _Start.of(function, target)
    if start.is_of_op:
        return (_rule_of(start.of_op()).name,)
    names: list[str] = []

    def note(work: Work) -> Loops:
        names.append(chosen(work)[0])
        return ()

    start.nests(note)
    return tuple(names)


def matching_rules(
    function: Function, target: Target, alignments: Sequence[int] = ()
) -> tuple[tuple[str, ...], ...]:
    """The names of all rules that can build each loop nest of an executable, in rule table order;
    empty if a single op is lowered as a whole."""
    start = _Start.of(function, target, alignments)
    found: list[tuple[str, ...]] = []

    def note(work: Work) -> Loops:
        rules = (rule for rule in RULES if work.plan.schedule in rule.classes)
        found.append(tuple(rule.name for rule in rules if rule.match(work) is not None))
        return ()

    if not start.is_of_op:
        start.nests(note)
    return tuple(found)


def _lower(
    function: Function,
    target: Target,
    alignments: Sequence[int] = (),
    unrolled: Unrolled | None = None,
) -> Kernel:
    start = _Start.of(function, target, alignments)
    builder, rules = start.nest.builder, list[str]()
    if start.is_of_op:
        work = start.of_op()
        rule = _rule_of(work)
        return builder.build(rule.build(work), [rule.name])

    def build(work: Work) -> Loops:
        name, built = chosen(work)
        rules.append(name)
        return built()

    body = start.nests(build)
    twin = equal_twin(function)
    if twin is not None:
        body = up_to(builder, twin[1], 0, start.of_twin(twin[0]).nests(build), body)
        del rules[len(rules) // 2 :]  # the twin's are alike
    kernel = builder.build(body, rules)
    is_open = unrolled is not None and target.gpu is not None and start.is_alone
    if not is_open or start.work.blocks is not None or holds_matrices(kernel):
        return kernel
    assert unrolled is not None and target.gpu is not None
    shared = schedule_shared_reduction(start.nest, start.output)
    both = two_ways(builder, body, shared, target.gpu.max_lane_iterations, unrolled(kernel))
    if both is None:
        return _lower(function, target, alignments)
    return builder.build(both, [*rules, SHARED])


@dataclass(frozen=True)
class _Start:
    """An executable with its buffers and schedule, before any loops are built.

    Attributes:
        buffers: of its operands, and of the results that other nests load.
        results: the buffers of its results.
        root: the op that decides its schedule.
        schedule: of its stages.
        made: of the stage of `root`.
    """

    function: Function
    nest: Nest
    buffers: dict[Value, Buffer]
    results: list[Buffer]
    root: Op
    stages: list[Stage]
    schedule: Sequence[StageSchedule]
    made: StageSchedule

    @staticmethod
    def of(function: Function, target: Target, alignments: Sequence[int] = ()) -> _Start:
        """Creates an executable's buffers and reads its schedule, as recorded or as planned."""
        builder = KernelBuilder(function.name)
        for name in function.dim_names:
            builder.dim_param(name)
        buffers, results = _buffers(builder, function, target, alignments)
        root = root_of(function)
        stages = stages_of(function.block, function.results)
        schedule = _checked(function, stages, schedule_of(function, target), target)
        by_stage = zip(schedule, stages, strict=True)
        made = next((s for s, stage in by_stage if root in stage.ops), schedule[0])
        nest = Nest(builder, target, made.lanes)
        return _Start(function, nest, buffers, results, root, stages, schedule, made)

    def of_twin(self, twin: Function) -> _Start:
        """The start of an executable with the same operands and results in other dims."""
        buffers = dict(zip(twin.inputs, map(self.buffers.__getitem__, self.function.inputs)))
        stages = stages_of(twin.block, twin.results)
        return replace(self, function=twin, buffers=buffers, root=root_of(twin), stages=stages)

    @property
    def is_alone(self) -> bool:
        """Whether the executable has a single result, and thus a single loop nest."""
        return len(self.results) == 1

    @property
    def is_of_op(self) -> bool:
        """Whether the executable consists of an op that is lowered as a whole, such as attention or
        a recurrence, as no scalar expression of its operands' elements computes it."""
        is_attention = self.made.schedule is Schedule.ATTENTION and self.is_alone
        return self.made.schedule in _OF_AN_OP or is_attention

    def of_op(self) -> OpWork:
        """The executable's single op, as rules for whole ops take it."""
        given = self.nest, self.function, self.root, self.buffers, self.results
        return OpWork(*given, self.made)

    @cached_property
    def output(self) -> Output:
        """The output of a region that has a single result."""
        return _output([(self.function.results[0], self.results[0])], self.function, self.buffers)

    @cached_property
    def work(self) -> Work:
        """The loop nest of an executable that has only one."""
        ops = self.stages[0].ops
        return Work(self.nest, self.output, self.made, ops, is_alone=True, build_part=_part)

    def nests(self, build: Callable[[Work], Loops]) -> Loops:
        """Builds all loop nests of the executable with `build`. Later nests load what earlier ones
        store."""
        if self.is_alone:
            return build(self.work)
        own = dict(zip(self.function.results, self.results, strict=True))
        by_result = dict(zip((s.result for s in self.stages), self.schedule, strict=True))
        buffers = self.buffers

        def body(group: Sequence[Stage], shared: Sequence[Expr]) -> Loops:
            made = by_result[group[0].result]
            results = [(s.result, own[s.result]) for s in group]
            output = _output(results, self.function, buffers, shared)
            buffers.update(results)
            ops = tuple(op for stage in group for op in stage.ops)
            nest = replace(self.nest, lanes=made.lanes)
            return build(Work(nest, output, made, ops, is_alone=False, build_part=_part))

        return schedule_stages(self.nest, loops_of(self.stages), body)


def _buffers(
    builder: KernelBuilder, function: Function, target: Target, alignments: Sequence[int]
) -> tuple[dict[Value, Buffer], list[Buffer]]:
    """The buffers of a region's operands, by value, and those of its results."""
    classes, count = function.bindings, len(function.inputs)
    known = (*alignments, *(1,) * (len(classes) - len(alignments)))
    placed = list(zip(classes, known, strict=True))
    buffers = {
        value: _buffer(builder, "in", value, binding, alignment=alignment)
        for value, (binding, alignment) in zip(function.inputs, placed[:count], strict=True)
    }
    results = [
        _buffer(
            *(builder, "out", value, binding),
            is_written=True,
            alignment=alignment,
            is_streamed=_is_streamed(function, value, target),
        )
        for value, (binding, alignment) in zip(function.results, placed[count:], strict=True)
    ]
    return buffers, results


def _is_streamed(function: Function, value: Value, target: Target) -> bool:
    """Whether to store a result with non-temporal stores: it is larger than the caches, and its
    kernel moves, resizes or pools, so that it does not load what it stores. Pools must store rows
    of whole cache lines, as otherwise they prefetch the memory they store to.
    """
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
    """The executable's schedule, after a check: a person may have written it, or a plan for another
    target made it.

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
    """Whether an executable planned with one schedule class may be built with the other.
    Contraction classes are interchangeable: where extents became parameters, the plan does not know
    the best one.
    """
    ways = (*_TILES, Schedule.REDUCTION)
    return a is b or (a in ways and b in ways)


def _part(work: Work) -> Loops:
    """Builds part of a loop nest by the first rule that can."""
    return chosen(work)[1]()


def chosen(work: Work) -> tuple[str, Build]:
    """The rule that builds a nest, by name: the recorded one, else the first that can.

    Raises:
        CompileError: there is no such rule, or the nest is none of its own.
        InternalError: no rule can build it, not even the last.
    """
    name, tried = work.plan.rule, RULES
    if name:
        if name not in BY_NAME:
            near = get_close_matches(name, BY_NAME, 1)
            raise CompileError(
                f"{_what(work)}: there is no rule {name}"
                + (f", did you mean {near[0]}?" if near else f": {', '.join(BY_NAME)}")
            )
        tried = (BY_NAME[name],)
    for rule in tried:
        build = rule.match(work) if work.plan.schedule in rule.classes else None
        if build is not None:
            return rule.name, build
    if name:
        raise CompileError(
            f"{_what(work)}: the recorded rule {name} builds no such kernel for "
            f"{work.nest.target.name}: take it out of the schedule, and one that does is chosen"
        )
    raise InternalError(f"{_what(work)}: no rule builds it")


def _what(work: Work) -> str:
    return f"executable {work.nest.builder.name}, {heaviest(work.ops).name} [{work.plan}]"


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
    """A flat buffer, as lowerings compute element numbers themselves. `place` is its buffer class,
    or the dim parameter that selects the buffer at run time."""
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
    """The output that one loop nest computes and stores: results of the same dims and layout.

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


def _rule_of(work: OpWork) -> OpRule:
    """The lowering rule of an op, registered for the op itself or for its kind.

    Raises:
        CompileError: another rule is recorded.
    """
    record, recorded = work.op.record, work.plan.rule
    of_kind = (rule for rule in OP_RULES if rule.kind is record.kind)
    rule = next((rule for rule in of_kind if rule.record in (None, record)), None)
    if rule is None:
        raise InternalError(f"no rule builds {work.op}")
    if recorded not in ("", rule.name):
        raise CompileError(
            f"executable {work.function.name}, {work.op.name}: the recorded rule {recorded} builds "
            f"no such kernel, only {rule.name} does"
        )
    return rule


def recorded(function: Function, kernel: Kernel) -> tuple[StageSchedule, ...]:
    """An executable's schedule with the rules that built its kernel; empty if it has no
    schedule."""
    nests = len(loops_of(stages_of(function.block, function.results)))
    # a kernel of one op has one rule, and one of two ways has both by their first
    names = kernel.rules if nests == len(kernel.rules) else kernel.rules[:1] * nests
    return with_rules(function, names)


def with_rules(function: Function, rules: Sequence[str]) -> tuple[StageSchedule, ...]:
    """An executable's schedule, with `rules` as those of its loop nests; empty if it has no
    schedule."""
    if not function.schedule:
        return ()
    stages = stages_of(function.block, function.results)
    pairs = zip(loops_of(stages), rules, strict=True)
    by_result = {stage.result: name for group, name in pairs for stage in group}
    return tuple(
        replace(made, rule=by_result[stage.result])
        for made, stage in zip(function.schedule, stages, strict=True)
    )
