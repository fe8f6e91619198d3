"""join-regions: joins small consecutive dispatches into one, as stages of a single kernel.

A mean and the two tiny convolutions of a squeeze-and-excite block, the reductions of a decomposed
normalisation or softmax: each is over before another thread could have helped, so one workgroup
does them in order. Where all of them walk the same leading dims (rows of a batch), each index of
those is a workgroup of its own.

Regions of any size become one where all their results have the same elements, found without those
of other places: one nest of loops then stores them all, and what only the nest reads stays in
registers.

Requires: regions are formed, and nothing is tied yet.
Ensures: no region is left that could be joined with one that feeds it, or with the one before it
    that has nothing to do with it, for less than the limit of elements a lane and workgroup.
Never: computes anything twice, moves a region over one that it depends on or over a write to what
    it reads, or joins ops whose kernels are written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from aot.analysis.alias.database import AliasDb
from aot.analysis.control import control_blocks, nested_operands
from aot.analysis.cost.plan import lanes_of
from aot.analysis.cpu_fallback import why_on_cpu
from aot.analysis.memory.views import is_view
from aot.analysis.stages import (
    Stage,
    estimate,
    grid_dims,
    loops_of,
    stages_of,
    unknown_work,
    work_of,
)
from aot.base.records import dataclass
from aot.ir.builtin import YIELD
from aot.ir.clone import clone_op
from aot.ir.dims import Dim, product
from aot.ir.graph import Block, Function, Module, Op, Value
from aot.ir.record import Kind
from aot.ir.rewriter import Rewriter
from aot.ir.types import TensorType
from aot.ops.structure import REGION
from aot.passes.base import Pass, PassContext
from aot.passes.fusion.remarks import FusionRemarks
from aot.target.model import Target

# elements that a lane may go through where a workgroup is alone: a few microseconds
MAX_SERIAL_CPU = 1 << 15
MAX_SERIAL_GPU = 1 << 10
MAX_OPS = 64
MAX_BUFFERS = 20
MAX_BETWEEN = 64  # ops between two regions that are joined


def run(module: Module, context: PassContext) -> None:
    if context.target is not None and context.options.is_enabled("fusion"):
        for function in module.entry_points:
            joined = join_regions(function, context.target, context.remarks)
            context.count("join-regions", "joined", joined)


def join_regions(function: Function, target: Target, remarks: FusionRemarks | None = None) -> int:
    """Joins regions where possible; returns how many fewer there are."""
    joiner = _Joiner(function, target, AliasDb.where_written(function), remarks=remarks)
    joined = 0
    for block in control_blocks(function):
        for op in block:
            current: Op | None = op if op.record is REGION else None
            while current is not None:
                current = joiner.join_a_producer(current) or joiner.join_neighbour(current)
                joined += current is not None
    return joined


def explainer(function: Function, target: Target) -> Callable[[Op, Op], str]:
    """A function that says why a region was not joined with another one that reads its results."""
    return _Joiner(function, target, AliasDb.where_written(function)).why_apart


@dataclass(frozen=True)
class _Facts:
    """The properties of a region that decide whether it can be joined.

    Attributes:
        has_stages: its kernel is made of loops over expressions.
        ops, buffers: how many it has.
        work: elements that its ops go through.
        contractions: the types of their results.
        why_on_cpu: why the target can't run one of its ops; "" where it can run all.
    """

    has_stages: bool
    ops: int
    buffers: int
    work: int
    contractions: tuple[TensorType, ...]
    why_on_cpu: str = ""

    @staticmethod
    def of(region: Op, unknown: int, target: Target) -> _Facts:
        ops = [op for op in region.blocks[0] if not op.record.is_terminator]
        return _Facts(
            all(op.record.compute and not op.record.kind.has_handwritten_kernel for op in ops),
            len(ops),
            len(region.operands) + len(region.results),
            sum(work_of(op, unknown=unknown) for op in ops),
            tuple(op.result.type for op in ops if op.record.kind is Kind.CONTRACTION),
            next(filter(None, (why_on_cpu(op, target) for op in ops)), ""),
        )

    def with_(self, other: _Facts) -> _Facts:
        """The facts about two regions if they were joined; `buffers` is an upper bound."""
        return _Facts(
            self.has_stages and other.has_stages,
            self.ops + other.ops,
            self.buffers + other.buffers,
            self.work + other.work,
            self.contractions + other.contractions,
            self.why_on_cpu or other.why_on_cpu,
        )


@dataclass
class _Joiner:
    function: Function
    target: Target
    db: AliasDb | None
    known: dict[Op, _Facts] = field(default_factory=dict)
    remarks: FusionRemarks | None = None

    def facts(self, region: Op) -> _Facts:
        if region not in self.known:
            self.known[region] = _Facts.of(region, self.unknown, self.target)
        return self.known[region]

    def join_a_producer(self, consumer: Op) -> Op | None:
        """The region made by joining `consumer` with one of its producers; None if none could be
        joined."""
        if not self.facts(consumer).has_stages:
            return None
        for value in consumer.operands:
            producer = None if value is None else _root(value).op
            if producer is None or producer.record is not REGION:
                continue
            made = self.join(producer, consumer, is_fed=True)
            if made is not None:
                return made
        return None

    def join_neighbour(self, second: Op) -> Op | None:
        """The region made by joining `second` with the region before it, if both are little work;
        else None."""
        first = second.prev
        for _ in range(MAX_BETWEEN):
            if first is None or first.record is REGION:
                break
            first = first.prev
        if first is None or first.record is not REGION:
            return None
        return self.join(first, second, is_fed=False)

    def join(self, first: Op, second: Op, *, is_fed: bool) -> Op | None:
        """Joins two regions and returns the result; None if an op between them, or too much serial
        work, prevents it.
        """
        facts = self.facts(first).with_(self.facts(second))
        if self.obstacle(facts, first, second, is_fed=is_fed) is not None:
            return None
        between = _between(first, second)
        assert between is not None
        block, outside = _joined_block(self.function, first, second)
        if self.block_obstacle(facts, block) is not None:
            return None
        kept = list(first.results)
        if len(_loops(block)) == 1:  # what nothing else reads stays in registers
            kept = [v for v in kept if any(user is not second for user in v.users)]
            block, outside = _joined_block(self.function, first, second, kept)
        made = _put(self.function, first, second, block, outside, between, kept)
        self.known[made] = facts
        if self.remarks is not None:
            self.remarks.joined(made, first, second)
        return made

    def obstacle(self, facts: _Facts, first: Op, second: Op, *, is_fed: bool) -> str | None:
        """Why two regions cannot be joined, judged without their joined body; None if nothing
        speaks against it."""
        if not facts.has_stages:
            return "kernels that are written by hand have no stages"
        if bool(self.facts(first).why_on_cpu) != bool(self.facts(second).why_on_cpu):
            return f"only one of them is {facts.why_on_cpu}"
        if facts.ops > MAX_OPS:
            return f"together they would have more than {MAX_OPS} ops"
        if facts.buffers > 2 * MAX_BUFFERS:
            return f"together they would have more than {MAX_BUFFERS} buffers"
        is_short = facts.work <= self.most or _may_be_one_nest(facts, first, second)
        if not is_short and not (is_fed and self.may_be_short(facts, first, second)):
            return self.too_long(facts)
        if _between(first, second) is None:
            return "something between them needs the first one"
        if not self.may_sink(first, second):
            return "what the first one reads is written in between"
        return None

    def block_obstacle(self, facts: _Facts, block: Block) -> str | None:
        """Why two regions cannot be joined, given their joined body; None if they can."""
        if len(block.args) + len(block.terminator.operands) > MAX_BUFFERS:
            return f"together they would have more than {MAX_BUFFERS} buffers"
        if facts.work <= self.most:
            return None
        loops = _loops(block)
        if len(loops) == 1 or self.is_short_each(facts, loops):
            return None
        return self.too_long(facts)

    def too_long(self, facts: _Facts) -> str:
        return (
            f"one workgroup would process {facts.work:,} elements, the most for one is "
            f"{self.most:,}"
        )

    def why_apart(self, first: Op, second: Op) -> str:
        """Why the region `second` was not joined with `first`, whose results it reads."""
        facts = self.facts(first).with_(self.facts(second))
        reason = self.obstacle(facts, first, second, is_fed=True)
        if reason is None:
            block, _ = _joined_block(self.function, first, second)
            reason = self.block_obstacle(facts, block)
        return reason or "they were not tried"

    def may_sink(self, first: Op, second: Op) -> bool:
        """Whether `first` reads the same memory contents at the place of `second`."""
        if self.db is None:
            return True
        written = [v for v in first.operands if v is not None and self.db.has_writers(v)]
        op = first.next if written else None
        while op is not None and op is not second:
            if self.db.writes_to_alias(op, written):
                return False
            op = op.next
        return True

    @property
    def unknown(self) -> int:
        return unknown_work(self.target)

    @property
    def most(self) -> int:
        """The largest number of elements for one workgroup to process serially, as more would lose
        parallelism."""
        each = MAX_SERIAL_GPU if self.target.has_workgroups else MAX_SERIAL_CPU
        return each * lanes_of(self.target, 4)

    def may_be_short(self, facts: _Facts, first: Op, second: Op) -> bool:
        """Whether a joined region could have little work per workgroup, with workgroups over the
        leading dims that all results share."""
        shared = _common([v.type for v in (*first.results, *second.results)])
        return self.is_short_over(facts, shared)

    def is_short_each(self, facts: _Facts, loops: Sequence[Sequence[Stage]]) -> bool:
        shared = loops[0][0].result.type.dims[: grid_dims(loops, self.target)]
        return self.is_short_over(facts, shared)

    def is_short_over(self, facts: _Facts, shared: Sequence[Dim]) -> bool:
        """Whether a workgroup's work is short if workgroups run over the dims `shared`."""
        if facts.contractions:
            # their tiles want rows of their own; but an open batch before those is often one
            if any(type.rank < 3 for type in facts.contractions):
                return False
            shared = [d for d in shared[:1] if not isinstance(d, int)]
        each = facts.work // max(estimate(product(tuple(shared)), self.unknown), 1)
        return each <= self.most


def _loops(block: Block) -> list[tuple[Stage, ...]]:
    """The loop nests of a region with this body, each as its stages."""
    return loops_of(stages_of(block, [v for v in block.terminator.operands if v is not None]))


def _may_be_one_nest(facts: _Facts, first: Op, second: Op) -> bool:
    """Whether two regions could share one loop nest, in which values that one makes, or both read,
    are loaded once."""
    types = [v.type for v in (*first.results, *second.results)]
    if any(type.dims != types[0].dims for type in types):
        return False
    if facts.contractions:
        # what a contraction makes is stored as it is, too, beside what elementwise ops make of it
        kinds = {op.record.kind for op in second.blocks[0] if not op.record.is_terminator}
        return kinds == {Kind.ELEMENTWISE} and not set(first.results).isdisjoint(second.operands)
    shared = {*first.operands, *first.results} & set(second.operands)
    return any(v is not None and v.type.dims == types[0].dims for v in shared)


def _common(types: Sequence[TensorType]) -> list[Dim]:
    """The leading dims that all types share."""
    found: list[Dim] = []
    for extents in zip(*(type.dims for type in types), strict=False):
        if any(extent != extents[0] for extent in extents):
            break
        found.append(extents[0])
    return found


def _between(producer: Op, consumer: Op) -> list[Op] | None:
    """Views of the producer's results between it and the consumer, in order; None if any other op
    in between uses the producer.
    """
    made = set(producer.results)
    views: list[Op] = []
    op = producer.next
    for _ in range(MAX_BETWEEN):
        if op is None or op is consumer:
            return views if op is consumer else None
        if any(v in made for v in (nested_operands(op) if op.blocks else op.operands)):
            if op.blocks or op.record.writes or not is_view(op):
                return None
            views.append(op)
            made.update(op.results)
        op = op.next
    return None


def _joined_block(
    function: Function, producer: Op, consumer: Op, kept: Sequence[Value] | None = None
) -> tuple[Block, list[Value]]:
    """(joined block, captured values): both bodies in one block that yields the results of both.

    Args:
        kept: the results of the producer that are results of both; None for all.
    """
    (first,), (second,) = producer.blocks, consumer.blocks
    outside: dict[Value, None] = dict.fromkeys(v for v in producer.operands if v is not None)
    chains: dict[Value, list[Op]] = {}
    for value in consumer.operands:
        assert value is not None
        if _root(value).op is producer:
            chains[value] = _chain(value)
        else:
            outside[value] = None
    block = Block([v.type for v in outside])
    into = Rewriter(function, block)
    seen: dict[Value, Value] = dict(zip(outside, block.args, strict=True))
    inner = {a: seen[v] for a, v in zip(first.args, producer.operands, strict=True) if v}
    for op in first:
        if not op.record.is_terminator:
            clone_op(op, inner, into)
    yielded = [inner[v] for v in first.terminator.operands if v is not None]
    seen.update(zip(producer.results, yielded, strict=True))
    for chain in chains.values():
        for op in chain:
            if op.result not in seen:
                clone_op(op, seen, into)
    inner = {a: seen[v] for a, v in zip(second.args, consumer.operands, strict=True) if v}
    for op in second:
        if not op.record.is_terminator:
            clone_op(op, inner, into)
    if kept is not None:
        yielded = [v for r, v in zip(producer.results, yielded, strict=True) if r in kept]
    yielded += [inner[v] for v in second.terminator.operands if v is not None]
    into.insert(Op(YIELD, yielded, {}, []))
    return block, list(outside)


def _root(value: Value) -> Value:
    """The value at the root of a chain of views; writes in place end the chain."""
    while value.op is not None and is_view(value.op) and not value.op.record.writes:
        source = value.op.operands[value.op.record.view_of or 0]
        assert source is not None
        value = source
    return value


def _chain(value: Value) -> list[Op]:
    """The chain of views that leads to `value`, from its root."""
    found: list[Op] = []
    while value.op is not None and is_view(value.op) and value.op.operands[0] is not None:
        found.insert(0, value.op)
        value = value.op.operands[0]
    return found


def _put(
    function: Function,
    producer: Op,
    consumer: Op,
    block: Block,
    outside: Sequence[Value],
    between: Sequence[Op],
    kept: Sequence[Value],
) -> Op:
    """Inserts the joined region at the consumer's place, followed by views of the producer's
    results."""
    types = [v.type for v in block.terminator.operands if v is not None]
    made = Op(REGION, outside, {}, types, [block], consumer.origin)
    rewriter = Rewriter(function).at(consumer)
    rewriter.insert(made)
    for old, fresh in zip([*kept, *consumer.results], made.results, strict=True):
        fresh.name = old.name
        rewriter.replace(old, fresh)
    for view in between:
        rewriter.move_before(view, consumer)
    rewriter.erase(consumer)
    rewriter.erase(producer)
    for view in reversed(between):
        if not view.result.uses:
            rewriter.erase(view)
    return made


JOIN_REGIONS = Pass("join-regions", run, __doc__)
