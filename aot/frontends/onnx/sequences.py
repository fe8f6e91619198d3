"""ONNX's sequences and optionals: lists of tensors, or stacks of tensors where the length depends
on data.

A list whose length and positions shapes decide is a name for values, and no value: what is left of
it in the graph are its tensors. Else its tensors are stacked (aot/frontends/onnx/stacks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Union

import numpy as np
import onnx

from aot.frontends.lib.extents import (
    bound,
    check_equal,
    check_is,
    check_not_negative,
    dim_value,
    extent_of,
    widened,
)
from aot.frontends.onnx.blocks import GraphImporter
from aot.frontends.onnx.loop_forms import LoopForm
from aot.frontends.onnx.loops import loop_results
from aot.frontends.onnx.ops.tensor import parts_along
from aot.frontends.onnx.scopes import Held, Scope, StackedList, TensorList
from aot.frontends.onnx.stacks import (
    behind,
    concatenated,
    joined,
    length,
    only,
    part,
    stacked,
    type_of,
)
from aot.frontends.onnx.table import Node, UnsupportedNodeError
from aot.ir.dims import Dim, add, floor_divide, maximum, multiply
from aot.ir.graph import Value
from aot.ir.rewriter import Rewriter
from aot.ir.types import DType

I64 = DType.I64

ImportList = Callable[[GraphImporter, Node, onnx.NodeProto, Scope], Sequence["Held | None"]]


AnyList = Union[TensorList, StackedList]


def _list(node: Node, index: int) -> AnyList:
    """An operand that must be a present sequence."""
    found = node.lists.get(index)
    if found is None:
        raise node.error(f"operand {index} is a tensor, expected a sequence of tensors")
    if isinstance(found, TensorList) and found.is_absent:
        raise node.error(f"operand {index} is an optional without an element")
    return found


def _is_known(node: Node, index: int) -> bool:
    """Whether an operand is absent or known at compile time."""
    operand = node.optional(index)
    if operand is None:
        return True
    found = node.values.known(operand)
    return found is not None and found.dtype != object


def _position(node: Node, index: int, count: int, *, is_end_allowed: bool = False) -> int:
    """A position in a list of `count`, from an operand; negative ones count from the end."""
    position = node.whole(index, "position")
    last = count if is_end_allowed else count - 1
    if not -count <= position <= last:
        raise node.error(f"position {position} is outside of a sequence of {count} tensors")
    return position + count if position < 0 else position


def _place(node: Node, index: int, count: Dim, *, is_end_allowed: bool = False) -> Dim:
    """A data-dependent position in a sequence, counted from the front; a run fails if it is out of
    range.
    """
    position = node.cast(node.reshape(node.input(index), ()), I64)
    from_end = node.emit("add", position, dim_value(node, count))
    is_negative = node.emit("less", position, node.scalar(0, I64))
    at = node.emit("where", is_negative, from_end, position)
    most = count if is_end_allowed else add(count, -1)
    what = "position in a sequence"
    found = extent_of(node, at, most, what)
    check_not_negative(node, found, what)
    return found


def _as_stack(node: Node, held: AnyList, others: Sequence[Value] = ()) -> StackedList:
    """A list as a stack, so that tensors can be taken from or put at data-dependent positions."""
    types = [*type_of(held), *type_of(TensorList(tuple(others)))]
    if not types:
        raise node.error("an empty sequence has no tensor")
    return stacked(node, held, joined(node, types))


def _construct(node: Node) -> TensorList:
    return TensorList(tuple(node.input(n) for n in range(len(node.inputs))))


def _empty(node: Node) -> TensorList:
    node.int_attr("dtype", onnx.TensorProto.FLOAT)
    return TensorList(())


def _at(node: Node) -> Value:
    held = _list(node, 0)
    if isinstance(held, TensorList) and _is_known(node, 1):
        return held.values[_position(node, 1, len(held.values))]
    stack = _as_stack(node, held)
    at = _place(node, 1, length(stack))
    return only(node, part(node, stack, at, add(at, 1)))


def _insert(node: Node) -> AnyList:
    held, value = _list(node, 0), node.input(1)
    if isinstance(held, TensorList) and _is_known(node, 2):
        values = list(held.values)
        at = len(values)
        if node.optional(2) is not None:
            at = _position(node, 2, len(values), is_end_allowed=True)
        values.insert(at, value)
        return TensorList(tuple(values))
    stack = _as_stack(node, held, [value])
    (type,) = type_of(stack)
    one = stacked(node, TensorList((value,)), type)
    if node.optional(2) is None:
        return behind(node, [stack, one])
    count = length(stack)
    place = _place(node, 2, count, is_end_allowed=True)
    return behind(node, [part(node, stack, 0, place), one, part(node, stack, place, count)])


def _erase(node: Node) -> AnyList:
    held = _list(node, 0)
    if isinstance(held, TensorList) and not held.values:
        raise node.error("an empty sequence has nothing to erase")
    if isinstance(held, TensorList) and _is_known(node, 1):
        values = list(held.values)
        del values[-1 if node.optional(1) is None else _position(node, 1, len(values))]
        return TensorList(tuple(values))
    stack = _as_stack(node, held)
    count = length(stack)
    if node.optional(1) is None:
        check_not_negative(node, add(count, -1), "position in a sequence")
        return part(node, stack, 0, add(count, -1))
    at = _place(node, 1, count)
    return behind(node, [part(node, stack, 0, at), part(node, stack, add(at, 1), count)])


def _length(node: Node) -> Value:
    held = _list(node, 0)
    if isinstance(held, StackedList):
        return dim_value(node, length(held))
    return node.constant(np.array(len(held.values), np.int64))


def _split(node: Node) -> AnyList:
    x = node.input(0)
    axis = node.axis_attr(x.type.rank, 0)
    keeps = bool(node.int_attr("keepdims", 1))
    extent = x.type.dims[axis]
    if node.optional(1) is not None and node.input(1).type.rank == 1:
        if node.values.of(node.input(1)) is None:
            return _split_by_sizes(node, x, axis)
        sizes: Sequence[Dim] = node.dims(1, "split")
        return TensorList(tuple(parts_along(node, axis, sizes)))
    if not _is_known(node, 1):
        most = maximum(extent, 1)
        asked = node.cast(node.reshape(node.input(1), ()), I64)
        size = node.emit("minimum", asked, dim_value(node, most))
        return _split_evenly(node, x, axis, extent_of(node, size, most, "split"), keeps=True)
    each = 1 if node.optional(1) is None else node.whole(1, "split")
    if each < 1:
        raise node.error(f"split is {each}, expected a positive number")
    if not isinstance(extent, int):
        return _split_evenly(node, x, axis, each, keeps or node.optional(1) is not None)
    sizes = [min(each, extent - start) for start in range(0, extent, each)]
    parts = parts_along(node, axis, sizes)
    if node.optional(1) is None and not keeps:
        shape = (*x.type.dims[:axis], *x.type.dims[axis + 1 :])
        parts = [node.reshape(part, shape) for part in parts]
    return TensorList(tuple(parts))


def _split_evenly(node: Node, x: Value, axis: int, each: Dim, keeps: bool) -> StackedList:
    """The parts of x along an axis, with `each` elements each; the last may be smaller."""
    extent = x.type.dims[axis]
    count = floor_divide(add(extent, add(each, -1)), each)
    rest = (*x.type.dims[:axis], *x.type.dims[axis + 1 :])
    perm = (axis, *(d for d in range(x.type.rank) if d != axis))
    moved = node.emit("transpose", x, perm=perm) if axis else x
    wide = widened(node, moved, (multiply(count, each), *rest))
    values = node.reshape(wide, (count, each, *rest))
    if axis:
        back = [0, *range(2, x.type.rank + 1)]
        back.insert(1 + axis, 1)
        values = node.emit("transpose", values, perm=tuple(back))
    if each == 1:
        shape = values.type.dims[: 1 + axis] + values.type.dims[2 + axis :]
        return StackedList(values if keeps else node.reshape(values, shape))
    begins = node.emit("mul", node.emit("range", size=count), dim_value(node, each))
    left = node.emit("sub", dim_value(node, extent), begins)
    sizes = node.emit("minimum", left, dim_value(node, each))
    return StackedList(values, node.reshape(sizes, (count, 1)), (axis,))


def _split_by_sizes(node: Node, x: Value, axis: int) -> StackedList:
    """The parts of x along an axis, with data-dependent sizes that must add up to its extent."""
    sizes = node.cast(node.input(1), I64)
    (count,), extent = sizes.type.dims, x.type.dims[axis]
    check_is(node, node.emit("reduce_sum", sizes, axes=(0,), keepdims=False), extent)
    begins = node.reshape(node.emit("scan", sizes, axis=0, exclusive=True), (count, 1))
    inside = node.reshape(node.emit("range", size=extent), (1, extent))
    at = node.emit(
        "minimum", node.emit("add", begins, inside), dim_value(node, maximum(add(extent, -1), 0))
    )
    values = node.emit("gather", x, at, axis=axis)  # [..., count, extent, ...]
    if axis:
        perm = (axis, *(d for d in range(x.type.rank + 1) if d != axis))
        values = node.emit("transpose", values, perm=perm)
    return StackedList(values, node.reshape(sizes, (count, 1)), (axis,))


def _concat(node: Node) -> Value:
    held = _list(node, 0)
    is_new = bool(node.int_attr("new_axis", 0))
    if isinstance(held, StackedList):
        axis = node.axis_attr(held.values.type.rank - 1 + is_new)
        return concatenated(node, held, axis, is_new=is_new)
    values = held.values
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
    """SequenceMap: runs the body for each element of the first sequence, inline or in a loop."""
    body = node.attribute("body").g
    operands = [node.lists.get(n) or node.input(n) for n in range(len(node.inputs))]
    if any(isinstance(operand, StackedList) for operand in operands):
        return _map_in_loop(importer, node, outer, operands)
    first = _list(node, 0)
    assert isinstance(first, TensorList)
    count = len(first.values)
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


def _map_in_loop(
    importer: GraphImporter, node: Node, outer: Scope, operands: Sequence[Held]
) -> Sequence[Held | None]:
    body = node.attribute("body").g
    stacks = [v if isinstance(v, Value) else _as_stack(node, v) for v in operands]
    if not isinstance(stacks[0], StackedList):
        raise node.error("operand 0 is a tensor, expected a sequence of tensors")
    count = length(stacks[0])
    for number, stack in enumerate(stacks):
        if isinstance(stack, StackedList) and length(stack) != count:
            check_equal(node, length(stack), count, f"operand {number} has as many tensors")

    def arguments(rewriter: Rewriter, number: Value) -> Mapping[str, Held]:
        inside = replace(node, rewriter=rewriter)
        at = None
        found: dict[str, Held] = {}
        for info, stack in zip(body.input, stacks, strict=True):
            if isinstance(stack, StackedList):
                at = extent_of(inside, number, None, "its runs") if at is None else at
                bound(inside, at, add(count, -1), "its runs")
                found[info.name] = only(inside, part(inside, stack, at, add(at, 1)))
            else:
                found[info.name] = stack
        return found

    form = LoopForm(
        importer,
        node,
        outer,
        body,
        [],
        [],
        arguments,
        count,
        has_condition=False,
        wanted={n for n in range(len(node.outputs)) if node.wants(n)},
        keeps_rows=True,
    )
    return [StackedList(v) if isinstance(v, Value) else v for v in loop_results(form)]


def _optional(node: Node) -> Held:
    node.ignore("type")
    if node.lists:
        return node.lists[0]
    value = node.optional(0)
    return TensorList((), is_absent=True) if value is None else value


def _has_element(node: Node) -> Value:
    held = node.lists[0]
    return node.constant(np.array(not (isinstance(held, TensorList) and held.is_absent)))


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
