"""PyTorch's control flow, torch.cond and torch.while_loop, as ops with blocks.

torch has made functions of what branches and bodies read from around them: they have arguments for
all of it, and their results have the same types whichever branch runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from aot.frontends.torch.table import Node, UnsupportedNodeError
from aot.ir.builtin import YIELD
from aot.ir.graph import Block, Op, Value
from aot.ir.rewriter import Rewriter
from aot.ir.types import DType, TensorType
from aot.ops import lookup


class GraphImporter(Protocol):
    """The part of the importer that control flow uses."""

    def subgraph(self, graph: Any, given: Sequence[Any], rewriter: Rewriter) -> list[Value]:
        """The results of a graph for the given arguments, imported at `rewriter`.

        Raises:
            NotImportedError: something in it is not supported, which the importer has noted.
        """


class NotImportedError(Exception):
    """A graph in a node can't be imported; the importer has recorded the reasons."""


def _with_blocks(
    n: Node, name: str, operands: Sequence[Value | None], block: Block, *others: Block
) -> list[Value]:
    """The results of an op with blocks, with the types that the first block yields."""
    record = lookup(name)
    call = record.check([None if v is None else v.type for v in operands], {}, n.label)
    assert record.body is not None
    yielded = [v.type for v in block.terminator.operands if v is not None]
    types = record.body.result_types(call, yielded)
    op = Op(record, operands, call.attrs, types, [block, *others], n.label)
    return n.rewriter.insert(op).results


def _truth(n: Node, value: Any) -> Value:
    """A condition as a scalar."""
    found = n.value(value)
    if found.type.dtype is not DType.BOOL:
        raise UnsupportedNodeError(f"its condition is {found.type}, expected a truth")
    return n.reshape(found, ())


def import_cond(
    importer: GraphImporter, n: Node, condition: Any, then: Any, other: Any, given: Sequence[Any]
) -> list[Value]:
    """torch.cond: both branches as blocks, of which one runs."""
    blocks = []
    for graph in (then, other):
        block = Block()
        inside = Rewriter(n.rewriter.function, block)
        results = importer.subgraph(graph, given, inside)
        inside.create(YIELD, results, {}, n.label)
        blocks.append(block)
    return _with_blocks(n, "if", [_truth(n, condition)], *blocks)


def import_while(
    importer: GraphImporter,
    n: Node,
    condition: Any,
    body: Any,
    carried: Sequence[Any],
    more: Sequence[Any],
) -> list[Value]:
    """torch.while_loop: a loop whose condition is computed once before it, and then at the end of
    each iteration."""
    starts = [n.value(v) for v in carried]
    (first,) = importer.subgraph(condition, [*starts, *more], n.rewriter)
    types = [TensorType(DType.I64, ()), *(v.type for v in starts)]
    block = Block(types)
    inside = Rewriter(n.rewriter.function, block)
    values = importer.subgraph(body, [*block.args[1:], *more], inside)
    for number, (value, start) in enumerate(zip(values, starts, strict=True)):
        if value.type != start.type:
            raise UnsupportedNodeError(
                f"value {number} that it carries is {start.type} at first and {value.type} later"
            )
    (again,) = importer.subgraph(condition, [*values, *more], inside)
    inside.create(YIELD, [again, *values], {}, n.label)
    return _with_blocks(n, "loop", [None, _truth(n, first), *starts], block)


def repeated(
    n: Node,
    starts: Sequence[Value],
    step: Callable[[Node, Value, Sequence[Value]], list[Value]],
    *,
    trips: Value | None = None,
    first: Value | None = None,
) -> list[Value]:
    """The final carried values of a loop op.

    Args:
        step: given a node inside, the number of the run and the carried values, the next ones;
            before them whether it goes on, unless trips say how often it runs.
        first: whether it runs at all.
    """
    block = Block([TensorType(DType.I64, ()), *(v.type for v in starts)])
    inside = replace(n, rewriter=Rewriter(n.rewriter.function, block))
    made = step(inside, block.args[0], block.args[1:])
    going = [] if trips is None else [inside.scalar(True, DType.BOOL)]
    inside.rewriter.create(YIELD, [*going, *made], {}, n.label)
    return _with_blocks(n, "loop", [trips, first, *starts], block)


CONTROL: Mapping[str, Callable[..., list[Value]]] = {
    "cond": import_cond,
    "while_loop": import_while,
}
