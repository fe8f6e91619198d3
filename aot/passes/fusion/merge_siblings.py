"""merge-siblings: merges contractions of the same left operand into one, and slices its result.

Parallel 1x1 convolutions, the projections to queries, keys and values, the heads of a detector: the
operand is read once, and one dispatch does the work of several.
    conv(x, w1), conv(x, w2) -> y[:, :n], y[:, n:] with y = conv(x, w1 | w2); matmul alike
What follows each of them elementwise, in the same way, moves along.

Requires: constants are folded, scales and shifts stand in the weights.
Ensures: siblings with equal attributes, weights of equal dims but for the outputs, and equal
    elementwise ends are one contraction whose parts are slices.
Never: merges where an elementwise end would stay behind, or a part is a result of the function
    (either would cost the dispatch that was won), copies weights that something else uses, reads
    before a write what was read behind it, or changes a result but for the order of its sums.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field

import numpy as np

from aot.analysis.alias.database import AliasDb
from aot.analysis.alias.write_order import WriteOrder
from aot.analysis.control import control_blocks, control_ops
from aot.base.records import dataclass
from aot.ir.compare import attrs_key
from aot.ir.dims import Dim
from aot.ir.graph import Block, ConstantData, Function, Module, Op, Value
from aot.ir.record import Kind, contraction_of
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import Array
from aot.ops import movement
from aot.passes.base import Pass, PassContext
from aot.passes.simplify.rewriting import constant_of

MAX_OPS = 16  # of an elementwise end


@dataclass(eq=False)
class _Sibling:
    """A contraction with the elementwise ops that only it feeds.

    Attributes:
        axis: the result's dim that counts outputs.
        operand_axes: which dim counts them of each operand that is not shared, by its number.
        end: the ops, in order; operands are made by the contraction, by them, or constants.
        shape: equal for siblings whose ends are the same but for constants and outputs.
    """

    root: Op
    axis: int
    operand_axes: Mapping[int, int]
    end: list[Op] = field(default_factory=list)
    shape: Hashable = ()

    @property
    def outputs(self) -> Dim:
        return self.root.result.type.dims[self.axis]


def run(module: Module, context: PassContext) -> None:
    for function in module.entry_points if context.options.is_enabled("fusion") else ():
        context.count("merge-siblings", "merged", merge_siblings(function))


def merge_siblings(function: Function) -> int:
    """Merges sibling contractions where possible; returns how many fewer there are."""
    gone, writes = 0, _Writes(function)
    position = {op: n for n, op in enumerate(control_ops(function))}
    operands = [v for block in control_blocks(function) for v in block.args]
    operands += [v for op in position for v in op.results]
    for x in operands:
        groups: dict[Hashable, list[_Sibling]] = {}
        for op, number in x.uses:
            found = _sibling(op, number, position)
            if found is not None:
                groups.setdefault((op.parent, found.shape), []).append(found)
        for siblings in groups.values():
            siblings.sort(key=lambda s: position[s.root])
            siblings = [s for s in siblings if writes.may_join(s, siblings[0])]
            if len(siblings) > 1:
                _merge(function, siblings)
                gone += len(siblings) - 1
    return gone


class _Writes:
    """Positions of memory writes, by block."""

    def __init__(self, function: Function) -> None:
        self.db = AliasDb.where_written(function)
        self.orders: dict[Block, WriteOrder] = {}

    def may_join(self, sibling: _Sibling, first: _Sibling) -> bool:
        """Whether a sibling could be computed at the place of the first one, as part of a merged
        result.
        """
        if self.db is None:
            return True
        values = [sibling.root.result, *(op.result for op in sibling.end)]
        if any(self.db.has_writers(v) for v in values):
            return False
        block = sibling.root.parent
        assert block is not None
        if block not in self.orders:
            self.orders[block] = WriteOrder(self.db, block)
        return self.orders[block].may_rise(sibling.root, first.root)


def _sibling(op: Op, number: int, position: dict[Op, int]) -> _Sibling | None:
    """`op` as a sibling whose operand `number` is the shared one; None if it cannot be merged."""
    contraction = contraction_of(op)
    if contraction is None or op not in position or number != contraction.left.operand:
        return None
    right = contraction.right
    if contraction.groups != 1 or right.batch:
        return None
    axes = {right.operand: right.own[0]}
    if contraction.bias is not None:
        axes[contraction.bias] = 0
    given = {n: v for n, v in enumerate(op.operands) if v is not None and n != number}
    if any(n not in axes or constant_of(v) is None or len(v.uses) != 1 for n, v in given.items()):
        return None
    made = _Sibling(op, contraction.column, {n: axes[n] for n in given})
    end = _end(made, position)
    if end is None:
        return None
    others = tuple(d for n, d in enumerate(right.type.dims) if n not in right.own)
    made.shape = (op.name, attrs_key(op), others, right.dtype, tuple(given), end)
    return made


def _end(sibling: _Sibling, position: dict[Op, int]) -> Hashable | None:
    """Collects the sibling's elementwise end and returns a key of its form; None if an elementwise
    user would remain."""
    root = sibling.root.result
    known: dict[Value, int] = {root: 0}
    shape: list[Hashable] = []
    while True:
        users = {u for v in known for u in v.users if u not in sibling.end}
        if any(u.record.is_terminator for u in users):
            return None  # a result of the function would be a copy
        near = sorted((u for u in users if u.record.kind is Kind.ELEMENTWISE), key=position.get)  # type: ignore[arg-type]
        if not near:
            return tuple(shape)
        op = near[0]
        if any(u.parent is not sibling.root.parent for u in near):
            return None
        refs = [_reference(v, known, sibling) for v in op.operands]
        if None in refs or op.result.type.dims != root.type.dims or len(shape) == MAX_OPS:
            return None
        shape.append((op.name, attrs_key(op), op.result.type.dtype, tuple(refs)))
        sibling.end.append(op)
        known[op.result] = len(known)


def _reference(value: Value | None, known: dict[Value, int], sibling: _Sibling) -> Hashable | None:
    """A key for an end's operand that ignores what may differ between siblings; None if the operand
    cannot be merged."""
    if value is None:
        return "absent"
    if value in known:
        return known[value]
    if constant_of(value) is None:
        return None
    rank = sibling.root.result.type.rank
    first = rank - value.type.rank
    dims = value.type.dims
    if any(d != 1 and first + n != sibling.axis for n, d in enumerate(dims)):
        return None
    return "constant", value.type.dtype, value.type.rank


def _merge(function: Function, siblings: Sequence[_Sibling]) -> None:
    """Replaces siblings by one contraction at the first one's place, and slices of its result."""
    first = siblings[0]
    rewriter = Rewriter(function).at(first.root)
    operands = list(first.root.operands)
    for number, axis in first.operand_axes.items():
        parts = [s.root.operands[number] for s in siblings]
        operands[number] = _joined(rewriter, parts, axis)
    root = rewriter.create(first.root.record, operands, first.root.attrs, first.root.origin)
    fresh: list[Value] = [root.result]
    for number, op in enumerate(first.end):
        made = [
            _end_operand(rewriter, siblings, number, at, fresh) for at in range(len(op.operands))
        ]
        fresh.append(rewriter.create(op.record, made, op.attrs, op.origin).result)
    _slice(function, rewriter, siblings, fresh)
    for sibling in siblings:
        for op in (*reversed(sibling.end), sibling.root):
            rewriter.erase(op)


def _end_operand(
    rewriter: Rewriter, siblings: Sequence[_Sibling], number: int, at: int, fresh: list[Value]
) -> Value | None:
    """Operand `at` of op number `number` in the merged elementwise end."""
    first = siblings[0]
    value = first.end[number].operands[at]
    known = [first.root.result, *(op.result for op in first.end)]
    if value is None or value in known:
        return None if value is None else fresh[known.index(value)]
    values = [s.end[number].operands[at] for s in siblings]
    contents = {data.digest for v in values if (data := constant_of(v)) is not None}
    if len(contents) == 1 and value.type.element_count == 1:
        return _constant(rewriter, _data(value).logical)
    axis = first.axis - (first.root.result.type.rank - value.type.rank)
    arrays = []
    for sibling, v in zip(siblings, values, strict=True):
        assert v is not None
        outputs = int(sibling.outputs)
        shape = (*(1,) * axis, outputs, *(1,) * (v.type.rank - axis - 1))
        arrays.append(np.broadcast_to(_data(v).logical, shape))
    return _constant(rewriter, np.concatenate(arrays, axis=axis))


def _joined(rewriter: Rewriter, parts: Sequence[Value | None], axis: int) -> Value:
    return _constant(rewriter, np.concatenate([_data(v).logical for v in parts], axis=axis))


def _data(value: Value | None) -> ConstantData:
    data = constant_of(value)
    assert data is not None
    return data


def _constant(rewriter: Rewriter, array: Array) -> Value:
    return insert_constant(rewriter, ConstantData(array))


def _slice(
    function: Function, rewriter: Rewriter, siblings: Sequence[_Sibling], fresh: list[Value]
) -> None:
    """Gives users outside slices of the merged values."""
    begin: Dim = 0
    for sibling in siblings:
        inside = set(sibling.end)
        end = begin + sibling.outputs
        values = [sibling.root.result, *(op.result for op in sibling.end)]
        for old, whole in zip(values, fresh, strict=True):
            if all(user in inside for user in old.users):
                continue
            dims, axis = whole.type.dims, sibling.axis
            attrs = {
                "starts": tuple(begin if n == axis else 0 for n in range(len(dims))),
                "stops": tuple(end if n == axis else d for n, d in enumerate(dims)),
                "steps": (1,) * len(dims),
            }
            part = rewriter.create(movement.SLICE, [whole], attrs, sibling.root.origin)
            for user, number in list(old.uses):
                if user not in inside:
                    Rewriter(function).set_operand(user, number, part.result)
        begin = end


MERGE_SIBLINGS = Pass("merge-siblings", run, __doc__)
