"""The control blocks of a function, which a program executes step by step: its own block, and those
of `if` and `loop`.

What stands in them is constants, views, dispatches (regions, before they are outlined) and control
flow; ops inside regions and executables are none of them. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from aot.ir.graph import Block, Function, Op, Value


def control_blocks(function: Function) -> Iterator[Block]:
    """The control blocks of a function, outer before inner, in order.

    A block may be changed while it is the one that was just given, but for its control flow.
    """
    yield from _blocks(function.block)


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in block:
        if op.blocks and not op.record.is_isolated:
            for inner in op.blocks:
                yield from _blocks(inner)


def control_ops(function: Function) -> Iterator[Op]:
    """The ops of all control blocks, in program order; the op last yielded may be erased."""
    yield from ops_of(function.block)


def ops_of(block: Block) -> Iterator[Op]:
    """The ops of a control block and of blocks nested in it, in program order."""
    for op in block:
        yield op
        if op.blocks and not op.record.is_isolated:
            for inner in op.blocks:
                yield from ops_of(inner)


def block_of(value: Value) -> Block | None:
    """The block that a value is defined in."""
    return value.owner if isinstance(value.owner, Block) else value.owner.parent


def ancestor_in(op: Op, block: Block) -> Op | None:
    """The op of `block` that is `op` or contains it; None if there is none."""
    at: Op | None = op
    while at is not None and at.parent is not block:
        outer = at.parent.owner if at.parent is not None else None
        at = outer if isinstance(outer, Op) else None
    return at


def nested_operands(op: Op) -> Iterator[Value]:
    """All operands of an op and of ops nested in it, including values defined inside."""
    for value in op.operands:
        if value is not None:
            yield value
    if op.blocks and not op.record.is_isolated:
        for block in op.blocks:
            for inner in block:
                yield from nested_operands(inner)
