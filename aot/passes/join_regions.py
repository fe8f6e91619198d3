"""join-regions: small dispatches that follow each other become stages of one.

A mean and the two tiny convolutions of a squeeze-and-excite block, the reductions of a decomposed
normalisation or softmax: each is over before another thread could have helped, so one workgroup
does them in order. Where all of them walk the same leading dims (rows of a batch), each index of
those is a workgroup of its own.

Requires: regions are formed, and nothing is tied yet.
Ensures: no region is left that could be joined with one that feeds it, or with the one before it
    that has nothing to do with it, for less than the limit of elements a lane and workgroup.
Never: computes anything twice, moves a region over one that it depends on, or joins ops whose
    kernels are written by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.analysis.plan import lanes_of
from aot.analysis.stages import estimate, shared_dims, stages_of, work_of
from aot.analysis.views import is_view
from aot.ir.clone import clone_op
from aot.ir.core import Block, Function, Module, Op, Rewriter, Value
from aot.ir.dims import product
from aot.ops.record import Kind
from aot.ops.structure import REGION, YIELD
from aot.passes.base import Pass, PassContext
from aot.target import Target

# elements that a lane may go through where a workgroup is alone: a few microseconds
MAX_SERIAL_CPU = 1 << 15
MAX_SERIAL_GPU = 1 << 10
MAX_OPS = 64
MAX_BUFFERS = 20
MAX_BETWEEN = 64  # ops between two regions that are joined


def run(module: Module, context: PassContext) -> None:
    if context.target is not None and context.options.fusion:
        for function in module.entry_points:
            context.count("join-regions", "joined", join_regions(function, context.target))


def join_regions(function: Function, target: Target) -> int:
    """Joins what can be joined; gives how many regions went away."""
    joined = 0
    for op in function.block:
        current: Op | None = op if op.record is REGION else None
        while current is not None:
            current = _join_a_producer(function, current, target) or _join_neighbour(
                function, current, target
            )
            joined += current is not None
    return joined


def _join_a_producer(function: Function, consumer: Op, target: Target) -> Op | None:
    """The region that `consumer` and one of its producers became, if one could be joined."""
    if not _has_stages(consumer):
        return None
    for value in consumer.operands:
        producer = None if value is None else _behind_views(value).op
        if producer is None or producer.record is not REGION or not _has_stages(producer):
            continue
        between = _between(producer, consumer)
        if between is None:
            continue
        block, outside = _joined_block(function, producer, consumer)
        if _is_cheap(block, target):
            return _put(function, producer, consumer, block, outside, between)
    return None


def _join_neighbour(function: Function, second: Op, target: Target) -> Op | None:
    """The region that `second` and the one before it became, where both together are short work."""
    if not _has_stages(second):
        return None
    first = second.prev
    for _ in range(MAX_BETWEEN):
        if first is None or first.record is REGION:
            break
        first = first.prev
    if first is None or first.record is not REGION or not _has_stages(first):
        return None
    between = _between(first, second)
    if between is None or _work((*first.blocks[0], *second.blocks[0])) > _most(target):
        return None
    block, outside = _joined_block(function, first, second)
    if len(block.args) + len(block.terminator.operands) > MAX_BUFFERS:
        return None
    return _put(function, first, second, block, outside, between)


def _has_stages(region: Op) -> bool:
    """Whether the kernel of a region is made of loops over expressions."""
    (block,) = region.blocks
    return all(
        op.record.is_terminator or (op.record.compute and not op.record.kind.has_own_kernel)
        for op in block
    )


def _behind_views(value: Value) -> Value:
    """The value that `value` is a view of."""
    while value.op is not None and is_view(value.op) and value.op.operands[0] is not None:
        value = value.op.operands[0]
    return value


def _between(producer: Op, consumer: Op) -> list[Op] | None:
    """Views of the producer's results that stand before the consumer, in order; None where
    anything else there needs the producer."""
    made = set(producer.results)
    views: list[Op] = []
    op = producer.next
    for _ in range(MAX_BETWEEN):
        if op is None or op is consumer:
            return views if op is consumer else None
        if any(v in made for v in op.operands):
            if not is_view(op):
                return None
            views.append(op)
            made.update(op.results)
        op = op.next
    return None


def _joined_block(function: Function, producer: Op, consumer: Op) -> tuple[Block, list[Value]]:
    """Both bodies as one that yields what both yield, and the values outside that it is given."""
    (first,), (second,) = producer.blocks, consumer.blocks
    outside: dict[Value, None] = dict.fromkeys(v for v in producer.operands if v is not None)
    chains: dict[Value, list[Op]] = {}
    for value in consumer.operands:
        assert value is not None
        if _behind_views(value).op is producer:
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
    yielded += [inner[v] for v in second.terminator.operands if v is not None]
    into.insert(Op(YIELD, yielded, {}, []))
    return block, list(outside)


def _chain(value: Value) -> list[Op]:
    """The views that lead to `value`, first one first."""
    found: list[Op] = []
    while value.op is not None and is_view(value.op) and value.op.operands[0] is not None:
        found.insert(0, value.op)
        value = value.op.operands[0]
    return found


def _is_cheap(block: Block, target: Target) -> bool:
    """Whether no workgroup is long at it: what others could have done meanwhile is little."""
    ops = [op for op in block if not op.record.is_terminator]
    results = [v for v in block.terminator.operands if v is not None]
    if len(ops) > MAX_OPS or len(block.args) + len(results) > MAX_BUFFERS:
        return False
    work, most = _work(ops), _most(target)
    if work <= most:
        return True
    stages = stages_of(block, results)
    shared = stages[0].result.type.dims[: shared_dims(stages)]
    contractions = [op for op in ops if op.record.kind is Kind.CONTRACTION]
    if contractions:
        # their tiles want rows of their own; but an open batch before those is often one
        if len(shared) > 1 or any(op.result.type.rank < 3 for op in contractions):
            return False
        shared = tuple(d for d in shared if not isinstance(d, int))
    return work // max(estimate(product(shared)), 1) <= most


def _work(ops: Sequence[Op]) -> int:
    return sum(work_of(op) for op in ops if not op.record.is_terminator)


def _most(target: Target) -> int:
    """Elements that a workgroup may go through alone."""
    each = MAX_SERIAL_CPU if target.is_cpu else MAX_SERIAL_GPU
    return each * lanes_of(target, 4)


def _put(
    function: Function,
    producer: Op,
    consumer: Op,
    block: Block,
    outside: Sequence[Value],
    between: Sequence[Op],
) -> Op:
    """The joined region in the consumer's place; views of what the producer made come after it."""
    types = [v.type for v in block.terminator.operands if v is not None]
    made = Op(REGION, outside, {}, types, [block], consumer.origin)
    rewriter = Rewriter(function).at(consumer)
    rewriter.insert(made)
    for old, fresh in zip([*producer.results, *consumer.results], made.results, strict=True):
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
