"""Scopes of ONNX graphs: the names visible to a list of nodes, and their values.

Knows names and values only. A list is a graph, a block of a control-flow op, or a function's body.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Union

import onnx

from aot.base.records import dataclass
from aot.frontends.onnx.graphs import captured
from aot.ir.graph import Value
from aot.ir.rewriter import Rewriter


@dataclass(frozen=True)
class TensorList:
    """A sequence of tensors with known length, or an optional without an element.

    Attributes:
        values: its tensors, in order.
        is_absent: whether it is such an optional.
    """

    values: tuple[Value, ...]
    is_absent: bool = False


@dataclass(frozen=True)
class StackedList:
    """A sequence with data-dependent length (aot/frontends/onnx/stacks.py).

    Attributes:
        values: its n tensors: [n, ...], as large as each of them may be.
        extents: those of each tensor along `axes`, i64[n, len(axes)]; None where there are none.
        axes: those of a tensor along which it may be smaller than others, ascending.
    """

    values: Value
    extents: Value | None = None
    axes: tuple[int, ...] = ()


Held = Union[Value, TensorList, StackedList]
"""What a name may stand for."""


@dataclass
class Scope:
    """The names visible to a list of nodes, and the nodes that are unsupported in it.

    Attributes:
        rewriter: where its ops go.
        unsupported: (name that can't be had, why).
        known: values by name; None for a name whose value is not supported.
        read: names that something reads.
        captured: names that the blocks of an op that are imported read, by the op's first output.
        ranks: ranks that the model declares, by name.
        outer: the scope around a block, whose names are seen too.
        origin: the node whose definition the list is; "" where nodes speak for themselves.
        depth: blocks around the list.
    """

    opsets: Mapping[str, int]
    rewriter: Rewriter
    unsupported: list[tuple[str, str]] = field(default_factory=list)
    known: dict[str, Held | None] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    captured: dict[str, set[str]] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    outer: Scope | None = None
    origin: str = ""
    depth: int = 0

    def find(self, name: str) -> Held | None:
        scope = self._scope_of(name)
        return None if scope is None else scope.known[name]

    def has(self, name: str) -> bool:
        return self._scope_of(name) is not None

    def lacks(self, nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[str]:
        """Why some outputs could not be imported. Unsupported nodes in branches not taken do not
        count."""
        wanted = set(outputs)
        for node in reversed(nodes):
            names = [name for name in node.output if name]
            if wanted.isdisjoint(names):
                continue
            inner = self.captured.get(names[0])
            wanted.update(names, node.input, captured(node) if inner is None else inner)
        return [why for name, why in self.unsupported if name in wanted]

    def _scope_of(self, name: str) -> Scope | None:
        scope: Scope | None = self
        while scope is not None and name not in scope.known:
            scope = scope.outer
        return scope
