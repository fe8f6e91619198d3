"""ONNX's sequences and optionals: lists of tensors whose lengths and positions shapes decide.

A list is a name for values, and no value: what is left of it in the graph are its tensors. Knows
no data: a position or a length that only the model's run says is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from aot.frontends.onnx.blocks import GraphImporter
from aot.frontends.onnx.ops.tensor import parts_along
from aot.frontends.onnx.scopes import Held, Scope, TensorList
from aot.frontends.onnx.table import Node, UnsupportedNodeError
from aot.ir.dims import Dim
from aot.ir.graph import Value

ImportList = Callable[[GraphImporter, Node, onnx.NodeProto, Scope], Sequence["Held | None"]]


def _list(node: Node, index: int) -> TensorList:
    """An operand that must be a sequence, and be there."""
    found = node.lists.get(index)
    if found is None:
        raise node.error(f"operand {index} is a tensor, expected a sequence of tensors")
    if found.is_absent:
        raise node.error(f"operand {index} is an optional without an element")
    return found


def _position(node: Node, index: int, count: int, *, is_end_allowed: bool = False) -> int:
    """The operand that says a place in a list of `count`; negative ones count from its end."""
    position = node.whole(index, "position")
    last = count if is_end_allowed else count - 1
    if not -count <= position <= last:
        raise node.error(f"position {position} is outside of a sequence of {count} tensors")
    return position + count if position < 0 else position


def _construct(node: Node) -> TensorList:
    return TensorList(tuple(node.input(n) for n in range(len(node.inputs))))


def _empty(node: Node) -> TensorList:
    node.int_attr("dtype", onnx.TensorProto.FLOAT)
    return TensorList(())


def _at(node: Node) -> Value:
    values = _list(node, 0).values
    return values[_position(node, 1, len(values))]


def _insert(node: Node) -> TensorList:
    values = list(_list(node, 0).values)
    at = len(values)
    if node.optional(2) is not None:
        at = _position(node, 2, len(values), is_end_allowed=True)
    values.insert(at, node.input(1))
    return TensorList(tuple(values))


def _erase(node: Node) -> TensorList:
    values = list(_list(node, 0).values)
    if not values:
        raise node.error("an empty sequence has nothing to erase")
    del values[-1 if node.optional(1) is None else _position(node, 1, len(values))]
    return TensorList(tuple(values))


def _length(node: Node) -> Value:
    return node.constant(np.array(len(_list(node, 0).values), np.int64))


def _split(node: Node) -> TensorList:
    x = node.input(0)
    axis = node.axis_attr(x.type.rank, 0)
    keeps = bool(node.int_attr("keepdims", 1))
    extent = x.type.dims[axis]
    if node.optional(1) is not None and node.input(1).type.rank == 1:
        sizes: Sequence[Dim] = node.dims(1, "split")
        return TensorList(tuple(parts_along(node, axis, sizes)))
    each = 1 if node.optional(1) is None else node.whole(1, "split")
    if each < 1:
        raise node.error(f"split is {each}, expected a positive number")
    if not isinstance(extent, int):
        raise UnsupportedNodeError(
            f"dim {axis} of its operand is {extent}, which must be a number for its parts to be "
            "counted (--input-shape)"
        )
    sizes = [min(each, extent - start) for start in range(0, extent, each)]
    parts = parts_along(node, axis, sizes)
    if node.optional(1) is None and not keeps:
        shape = (*x.type.dims[:axis], *x.type.dims[axis + 1 :])
        parts = [node.reshape(part, shape) for part in parts]
    return TensorList(tuple(parts))


def _concat(node: Node) -> Value:
    values = _list(node, 0).values
    is_new = bool(node.int_attr("new_axis", 0))
    if not values:
        raise node.error("an empty sequence has no tensor to join")
    axis = node.axis_attr(values[0].type.rank + is_new)
    if is_new:
        wide = [(*v.type.dims[:axis], 1, *v.type.dims[axis:]) for v in values]
        values = tuple(node.reshape(v, shape) for v, shape in zip(values, wide, strict=True))
    return values[0] if len(values) == 1 else node.emit("concat", *values, axis=axis)


def _map(
    importer: GraphImporter, node: Node, proto: onnx.NodeProto, outer: Scope
) -> Sequence[Held | None]:
    """The body once for each element of the first sequence, in line."""
    body = node.attribute("body").g
    count = len(_list(node, 0).values)
    operands = [node.lists.get(n) or node.input(n) for n in range(len(node.inputs))]
    for number, operand in enumerate(operands):
        if isinstance(operand, TensorList) and len(operand.values) != count:
            raise node.error(
                f"operand {number} has {len(operand.values)} tensors, expected {count}"
            )
    if len(body.input) != len(operands):
        raise node.error(f"its body has {len(body.input)} inputs, expected {len(operands)}")
    made: list[list[Value]] = [[] for _ in body.output]
    for number in range(count):
        given = {
            info.name: operand.values[number] if isinstance(operand, TensorList) else operand
            for info, operand in zip(body.input, operands, strict=True)
        }
        found = importer.subgraph(body, given, outer, node.rewriter)
        values = [v for v in found.values if isinstance(v, Value)]
        if found.lacks or len(values) < len(found.values):
            first = next(name for name in proto.output if name)
            outer.unsupported.extend((first, why) for why in found.lacks)
            raise UnsupportedNodeError("")
        for row, value in zip(made, values, strict=True):
            row.append(value)
    return [TensorList(tuple(row)) for row in made]


def _optional(node: Node) -> Held:
    node.ignore("type")
    if node.lists:
        return node.lists[0]
    value = node.optional(0)
    return TensorList((), is_absent=True) if value is None else value


def _has_element(node: Node) -> Value:
    return node.constant(np.array(not node.lists[0].is_absent))


def _element(node: Node) -> Held:
    return _list(node, 0)


def _by_itself(build: Callable[[Node], Held]) -> ImportList:
    return lambda importer, node, proto, scope: [build(node)]


SEQUENCES: dict[str, ImportList] = {
    "ConcatFromSequence": _by_itself(_concat),
    "Optional": _by_itself(_optional),
    "SequenceAt": _by_itself(_at),
    "SequenceConstruct": _by_itself(_construct),
    "SequenceEmpty": _by_itself(_empty),
    "SequenceErase": _by_itself(_erase),
    "SequenceInsert": _by_itself(_insert),
    "SequenceLength": _by_itself(_length),
    "SequenceMap": _map,
    "SplitToSequence": _by_itself(_split),
}

# other ops that a list may be an operand of
TAKING_LISTS: dict[str, ImportList] = {
    "Identity": _by_itself(_element),
    "OptionalGetElement": _by_itself(_element),
    "OptionalHasElement": _by_itself(_has_element),
}
