"""pack: converts constant weights to the layouts that their ops' plans require.

Requires: dtypes are legal for the target; constants are folded.
Ensures: every constant operand that a plan wants packed comes through a `pack` op, which folds; so
does one that is computed from a constant element by element, which stays behind the `pack`; a
constant table that rows are gathered from, and whose transpose a contraction has packed (the
embedding of a language model that is its head too), lies as that does, so that it is stored once.
Never: packs a constant twice, or a value that is computed at run time but for the right side of a
product of bytes that has rows enough for that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aot.analysis.cost.dots import sums_words
from aot.analysis.cost.plan import weight_layouts
from aot.ir.builtin import CONSTANT
from aot.ir.graph import Attr, Function, Module, Op, Value
from aot.ir.large_arrays import forget
from aot.ir.record import Kind, call_of
from aot.ir.rewriter import Rewriter
from aot.ir.types import Layout
from aot.ops import pack as pack_op
from aot.ops.integer_contraction import MATMUL_INTEGER
from aot.ops.selection import GATHER
from aot.passes.base import Pass, PassContext
from aot.passes.simplify.rewriting import constant_of, relaid
from aot.target.model import Target

COMPARED_ELEMENTS = 1 << 22  # of two constants at a time
_WANTS_WEIGHTS = (Kind.CONTRACTION, Kind.RECURRENCE)


def run(module: Module, context: PassContext) -> None:
    if context.target is not None:
        for function in module.entry_points:
            pack(function, context.target)


def pack(function: Function, target: Target) -> None:
    """Inserts `pack` ops after the constant weights of `function`."""
    packed: dict[tuple[Value, Layout], Value] = {}
    for op in list(function.walk()):
        if op.record.kind in _WANTS_WEIGHTS:
            _pack_operands(function, op, target, packed)
    _share_tables(function)


def _share_tables(function: Function) -> None:
    """Packs gather tables like packed transposes of the same constants, so that the file stores
    both once.
    """
    packs = [op for op in function.walk() if op.record is pack_op.PACK]
    for op in list(function.walk()) if packs else ():
        if op.record is not GATHER or constant_of(op.operands[0]) is None:
            continue
        table = op.operands[0]
        pack = next((pack for pack in packs if _has_transpose(pack, table)), None)
        layout = None if pack is None else pack.attrs["layout"]
        if table is not None and isinstance(layout, Layout):
            rewriter = Rewriter(function).at(op)
            attrs: dict[str, Attr] = {"layout": _transposed(layout)}
            packed = rewriter.create(pack_op.PACK, [table], attrs, op.origin).result
            operands = [packed, *op.operands[1:]]
            rewriter.replace_op(op, relaid(op, rewriter, operands))


def _transposed(layout: Layout) -> Layout:
    """The layout in which a matrix's transpose has the bytes of the matrix in `layout`."""
    splits = tuple((1 - dim, factor) for dim, factor in layout.splits)
    order = layout.order or tuple(range(2 + len(splits)))
    return Layout(splits, tuple(1 - place if place < 2 else place for place in order))


def _has_transpose(pack: Op, table: Value | None) -> bool:
    """Whether the packed constant is, bit by bit, the transpose of a table."""
    one, other = constant_of(table), constant_of(pack.operands[0])
    if one is None or other is None or one.type.rank != 2 or one.type.layout is not None:
        return False
    if one.type.dtype is not other.type.dtype or one.type.dims != other.type.dims[::-1]:
        return False
    bits = np.dtype(f"u{one.array.itemsize}")
    rows, columns = one.array.view(bits), other.array.view(bits).T
    step = max(1, COMPARED_ELEMENTS // max(1, rows.shape[1]))
    for start in range(0, rows.shape[0], step):
        if not np.array_equal(rows[start : start + step], columns[start : start + step]):
            return False
        forget(one.array)
        forget(other.array)
    return True


def _pack_operands(
    function: Function, op: Op, target: Target, packed: dict[tuple[Value, Layout], Value]
) -> None:
    call = call_of(op)
    operands = list(op.operands)
    for number, layout in weight_layouts(call, target).items():
        weight = operands[number]
        if weight is not None and _is_packed_at_run_time(op, weight, target):
            rewriter = Rewriter(function).at(op)
            attrs: dict[str, Attr] = {"layout": layout}
            made = rewriter.create(pack_op.PACK, [weight], attrs, op.origin)
            operands[number] = made.result
            continue
        if weight is None or not _is_stored(weight):
            continue
        if (weight, layout) not in packed:
            assert weight.op is not None
            # beside what it stands for, so that every user comes after it
            place = weight.op.next or op
            packed[weight, layout] = _packed(Rewriter(function).at(place), weight, layout, op)
        operands[number] = packed[weight, layout]
    if operands != op.operands:
        rewriter = Rewriter(function).at(op)
        rewriter.replace_op(op, relaid(op, rewriter, operands))


def _is_packed_at_run_time(op: Op, weight: Value, target: Target) -> bool:
    """Whether a computed right side is packed at run time: dot products of packed words compute it,
    and it is small beside the product."""
    if op.record is not MATMUL_INTEGER or target.has_workgroups or constant_of(weight) is not None:
        return False
    contraction = call_of(op).contraction
    return contraction is not None and sums_words(contraction)


def _is_stored(value: Value) -> bool:
    """Whether a value is a constant, or computed from one by elementwise ops such as casts and
    scales."""
    if value.op is None:
        return False
    if value.op.record is CONSTANT:
        return value.type.layout is None
    source = _source(value)
    return source is not None and _is_stored(source)


def _source(value: Value) -> Value | None:
    """An elementwise op's only full-size operand, if all others are smaller constants; else
    None."""
    op = value.op
    assert op is not None
    if op.record.kind is not Kind.ELEMENTWISE or len(op.results) != 1:
        return None
    alike = [v for v in op.operands if v is not None and v.type.dims == value.type.dims]
    others = [v for v in op.operands if v is not None and v not in alike]
    if len(alike) != 1 or not all(v.op is not None and v.op.record is CONSTANT for v in others):
        return None
    return alike[0]


def _packed(rewriter: Rewriter, value: Value, layout: Layout, user: Op) -> Value:
    """A stored value in the layout that `user` wants: packs its constant and recomputes the
    elementwise ops after it."""
    op = value.op
    assert op is not None
    if op.record is CONSTANT:
        return rewriter.create(pack_op.PACK, [value], {"layout": layout}, user.origin).result
    source = _source(value)
    assert source is not None
    packed = _packed(rewriter, source, layout, user)
    operands = [packed if v is source else v for v in op.operands]
    type = replace(value.type, layout=layout)
    return rewriter.insert(Op(op.record, operands, op.attrs, [type], (), op.origin)).result


PACK = Pass("pack", run, __doc__)
