"""Lists of ONNX nodes: producers of names, needed nodes, and topological order.

Knows names only, and nothing of what ops do. A list is a graph, a branch, or a function's body.
"""

from __future__ import annotations

import heapq
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx

from aot.errors import CompileError


def label_of(node: onnx.NodeProto) -> str:
    """A node's name in messages and as the origin of ops."""
    first = next((name for name in node.output if name), "")
    return node.name or f"{node.op_type}:{first}"


def domain_of(node: onnx.NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else str(node.domain)


def producers_of(
    graph: Any,
    inputs: Iterable[str],
    nodes: Sequence[onnx.NodeProto],
    is_outside: Callable[[str], bool],
) -> dict[str, int]:
    """The index of the node that produces each name; -1 for inputs and initializers.

    Args:
        graph: a GraphProto, for its initializers and outputs.
        is_outside: whether a name is known around the graph.

    Raises:
        CompileError: a name is made twice, or read or promised and never made.
    """
    producers: dict[str, int] = {}

    def add(name: str, number: int, what: str) -> None:
        if name in producers:
            raise CompileError(
                f"{what} {name!r}: another input, initializer or node has that name already"
            )
        producers[name] = number

    for number, name in enumerate(inputs):
        if not name:
            raise CompileError(f"input {number} has no name")
        add(name, -1, "input")
    for tensor in graph.initializer:
        add(tensor.name, -1, "initializer")
    for sparse in graph.sparse_initializer:
        add(sparse.values.name, -1, "sparse initializer")
    for number, node in enumerate(nodes):
        for name in node.output:
            if name:
                add(name, number, f"{node.op_type} (node {label_of(node)!r}): output")
    for node in nodes:
        for name in node.input:
            if name and name not in producers and not is_outside(name):
                raise CompileError(
                    f"{node.op_type} (node {label_of(node)!r}): operand {name!r} "
                    "is no input, initializer or other node's output"
                )
    for output in graph.output:
        if output.name not in producers and not is_outside(output.name):
            raise CompileError(f"output {output.name!r} is made by no node")
    return producers


def needed(ordered: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes on which an output depends, in order."""
    wanted = set(outputs)
    kept: list[onnx.NodeProto] = []
    for node in reversed(ordered):
        if any(name in wanted for name in node.output if name):
            kept.append(node)
            wanted.update(node.input)
            wanted.update(captured(node))
    return kept[::-1]


def read_by(nodes: Iterable[onnx.NodeProto], outputs: Iterable[str]) -> set[str]:
    """Every name that a node, a branch inside one, or an output reads."""
    found = set(outputs)
    for node in nodes:
        found.update(node.input)
        found.update(captured(node))
    return found


def captured(node: onnx.NodeProto) -> set[str]:
    """Names that the node's subgraphs may read from outside."""
    return captured_by(*subgraphs(node))


def captured_by(*subgraph: onnx.GraphProto) -> set[str]:
    """Names that graphs, and graphs nested in them, read without defining them."""
    found: set[str] = set()
    stack: list[tuple[onnx.GraphProto, ChainMap[str, None]]] = [(g, ChainMap()) for g in subgraph]
    while stack:
        graph, around = stack.pop()
        made = around.new_child(dict.fromkeys(_made_in(graph)))
        read = [output.name for output in graph.output]
        for inner in graph.node:
            read.extend(inner.input)
            stack.extend((g, made) for g in subgraphs(inner))
        found.update(name for name in read if name not in made)
    return found


def _made_in(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (i.name for i in graph.input)
    yield from (t.name for t in graph.initializer)
    yield from (t.values.name for t in graph.sparse_initializer)
    for node in graph.node:
        yield from node.output


def ranks_of(graph: onnx.GraphProto) -> dict[str, int]:
    """The ranks that a graph declares for its values, by name."""
    return {
        info.name: len(info.type.tensor_type.shape.dim)
        for info in (*graph.value_info, *graph.output)
        if info.type.tensor_type.HasField("shape")
    }


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [g for a in node.attribute for g in [*([a.g] if a.HasField("g") else []), *a.graphs]]


def in_order(nodes: Sequence[onnx.NodeProto], producers: Mapping[str, int]) -> list[onnx.NodeProto]:
    """The nodes with producers before consumers, otherwise in the model's order.

    Raises:
        CompileError: nodes depend on each other in a circle.
    """
    waiting = [0] * len(nodes)
    readers: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        names = {*node.input, *captured(node)}
        sources = {producers.get(name, -1) for name in names} - {-1}
        waiting[number] = len(sources)
        for source in sources:
            readers.setdefault(source, []).append(number)
    ready = [number for number, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[onnx.NodeProto] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(nodes[number])
        for reader in readers.get(number, []):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = [repr(label_of(n)) for number, n in enumerate(nodes) if waiting[number]]
        raise CompileError(
            f"nodes depend on each other in a circle: {', '.join(stuck[:5])}"
            + (", ..." if len(stuck) > 5 else "")
        )
    return order
