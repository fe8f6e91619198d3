"""Imports subgraphs of nodes into blocks of ops; an import can be tried, kept, inlined or
discarded.

Owns how an import is undone and how two types are brought to one spelling. Knows no ONNX op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import onnx

from aot.analysis.dim_values import DimValues
from aot.base.records import dataclass
from aot.errors import CompileError
from aot.frontends.onnx.choices import Choices
from aot.frontends.onnx.scopes import Held, Scope
from aot.frontends.onnx.table import Node
from aot.ir.builtin import YIELD
from aot.ir.equalities import DimEqualities
from aot.ir.graph import Assumption, Attr, Block, Op, Value
from aot.ir.record import OpRecord
from aot.ir.rewriter import Rewriter
from aot.ir.types import TensorType
from aot.ops import lookup


@dataclass(frozen=True)
class Subgraph:
    """The result of importing a subgraph.

    Attributes:
        values: of its outputs; None for one that is not supported.
        lacks: why some are not.
    """

    values: list[Held | None]
    lacks: list[str]


class GraphImporter(Protocol):
    """The part of the importer that control flow uses.

    Attributes:
        branching: conditions of the Ifs whose branches are being imported, and what each is there.
    """

    values: DimValues
    choices: Choices
    branching: dict[Value, bool]

    def subgraph(
        self, graph: onnx.GraphProto, given: Mapping[str, Held], outer: Scope, rewriter: Rewriter
    ) -> Subgraph:
        """Imports a graph's nodes at `rewriter`; `given` maps the names of its inputs.

        Raises:
            CompileError: the model is wrong.
        """


@dataclass
class Tried:
    """A graph imported tentatively into a block of its own.

    Attributes:
        error: the model's fault that ended it.
        assumed: what the function assumes because of it.
        chosen: choices that were made in it.
    """

    block: Block
    values: list[Held | None]
    lacks: list[str]
    error: CompileError | None
    assumed: dict[Assumption, None]
    chosen: list[str]

    @property
    def is_whole(self) -> bool:
        return self.error is None and not self.lacks and None not in self.values

    @property
    def present(self) -> list[Value]:
        """The tensors among the graph's values."""
        return [v for v in self.values if isinstance(v, Value)]


def try_block(
    importer: GraphImporter,
    node: Node,
    graph: onnx.GraphProto,
    outer: Scope,
    block: Block,
    given: Mapping[str, Held] | None = None,
    flatten: Callable[[Sequence[Held | None]], Sequence[Held | None]] | None = None,
) -> Tried:
    """Imports a graph into `block`, and withdraws the assumptions it made until the block is kept.

    Args:
        flatten: makes other outputs of what the graph gives, such as tensors of sequences.
    """
    function = node.rewriter.function
    before = dict(function.assumptions)
    chosen = len(importer.choices.made)
    made = Subgraph([], [])
    error: CompileError | None = None
    try:
        made = importer.subgraph(graph, given or {}, outer, Rewriter(function, block))
    except CompileError as raised:
        error = raised
    values = list(made.values)
    if flatten is not None and error is None:
        try:
            values = list(flatten(values))
        except CompileError as raised:
            error = raised
    assumed = {a: None for a in function.assumptions if a not in before}
    function.assumptions = before
    fresh = list(importer.choices.made)[chosen:]
    return Tried(block, values, made.lacks, error, assumed, fresh)


def discard(importer: GraphImporter, node: Node, tried: Tried) -> None:
    """Discards a tentative block; remaining uses of its values are in blocks discarded before."""
    importer.choices.forget(tried.chosen)
    rewriter = Rewriter(node.rewriter.function, tried.block)
    for op in reversed(tried.block):
        for value in op.results:
            for user, index in list(value.uses):
                rewriter.rewire(user, index, None)
        rewriter.erase(op)


def finish(node: Node, tried: Tried, results: Sequence[Value]) -> None:
    """Completes a block that becomes part of an op, and keeps its assumptions."""
    Rewriter(node.rewriter.function, tried.block).create(YIELD, results, {}, node.label)
    node.rewriter.function.assumptions.update(tried.assumed)


def insert_op(
    node: Node,
    name: str,
    operands: Sequence[Value | None],
    blocks: Sequence[Block],
    attrs: Mapping[str, Attr] | None = None,
) -> Op:
    """An op with blocks at the node's place; its results have the types that the first block
    yields."""
    record: OpRecord = lookup(name)
    types = [None if v is None else v.type for v in operands]
    call = record.check(types, attrs or {}, node.label)
    assert record.body is not None
    yielded = [v.type for v in blocks[0].terminator.operands if v is not None]
    results = record.body.result_types(call, yielded)
    return node.rewriter.insert(Op(record, operands, call.attrs, results, blocks, node.label))


def as_type(node: Node, value: Value, wanted: TensorType, block: Block) -> Value | None:
    """`value`, at the end of a block, reshaped to the dims of `wanted`; None unless the function's
    assumptions make them equal."""
    if value.type == wanted:
        return value
    found = value.type
    if found.dtype is not wanted.dtype or found.rank != wanted.rank:
        return None
    known = DimEqualities(node.rewriter.function.assumptions)
    if not all(known.are_equal(a, b) for a, b in zip(found.dims, wanted.dims, strict=True)):
        return None
    rewriter = Rewriter(node.rewriter.function, block)
    return rewriter.create(lookup("reshape"), [value], {"shape": wanted.dims}, node.label).result
