"""Copies ops, blocks, functions and modules, with values mapped from old to new."""

from __future__ import annotations

from collections.abc import Callable

from aot.ir.graph import Attr, Block, Function, Module, Op, Value
from aot.ir.rewriter import Rewriter
from aot.ir.types import TensorType

TypeMap = Callable[[TensorType], TensorType]
AttrMap = Callable[[Attr], Attr]


def clone_op(
    op: Op,
    values: dict[Value, Value],
    into: Rewriter,
    map_type: TypeMap = lambda t: t,
    map_attr: AttrMap = lambda a: a,
) -> Op:
    """Copies `op` to the insertion point, with operands replaced by `values[old]` where present.

    `values` learns the results (and, for blocks in the op, their values).
    """
    operands = [None if v is None else values.get(v, v) for v in op.operands]
    blocks = [clone_block(b, values, into.function, map_type, map_attr) for b in op.blocks]
    attrs = {name: map_attr(value) for name, value in op.attrs.items()}
    made = Op(op.record, operands, attrs, [map_type(v.type) for v in op.results], blocks, op.origin)
    for old, fresh in zip(op.results, made.results, strict=True):
        fresh.name = old.name
        values[old] = fresh
    return into.insert(made)


def clone_block(
    block: Block,
    values: dict[Value, Value],
    function: Function,
    map_type: TypeMap = lambda t: t,
    map_attr: AttrMap = lambda a: a,
) -> Block:
    """Copies a block, and adds its arguments and results to `values`."""
    made = Block([map_type(a.type) for a in block.args], [a.name for a in block.args])
    values.update(zip(block.args, made.args, strict=True))
    into = Rewriter(function, made)
    for op in block:
        clone_op(op, values, into, map_type, map_attr)
    return made


def clone_function(function: Function) -> Function:
    """A copy of the function that shares nothing mutable; listeners are not copied."""
    made = Function(function.name, Block(), function.result_names, function.kind)
    made.block = clone_block(function.block, {}, made)
    made.block.owner = made
    made.updates = dict(function.updates)
    made.strings = function.strings
    made.dim_names = function.dim_names
    made.bindings = function.bindings
    made.schedule = function.schedule
    made.assumptions = dict(function.assumptions)
    return made


def clone_module(module: Module) -> Module:
    """A copy of every function."""
    made = Module(clone_function(f) for f in module.functions.values())
    made.vocabulary = module.vocabulary
    made.metadata = dict(module.metadata)
    return made
