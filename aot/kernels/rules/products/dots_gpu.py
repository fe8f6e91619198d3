"""Byte contractions on a GPU, as sums of dot products of packed words.

Rewrites a contraction whose weights lie in groups, so that both sides are loaded a word at a time
and the axis that the groups lie along counts words. All sums are exact. Makes no loops: the tile of
products_gpu.py serves both forms.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from aot.ir import dims, expr
from aot.ir.expr import Binary, Cast, Const, Dot, Expr, Load, Reduce
from aot.ir.schedule import DOT_GROUP
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, BufferClass
from aot.kernels.match.products import ContractionAxes, at_splits
from aot.kernels.nest.nest import Axis, Nest, Output
from aot.kernels.rules.products.dots import WORDS, is_grouped


def sum_words(
    nest: Nest, output: Output, roles: ContractionAxes
) -> tuple[Output, ContractionAxes] | None:
    """(output, contraction axes) rewritten to multiply words of four bytes; None where plain bytes
    serve as well, or a left word may be unaligned.
    """
    if roles.reduce.dtype is not DType.I32:
        return None
    left, right = _bytes_of(roles.left), _bytes_of(roles.right)
    if left is None or right is None or right is not roles.weight:
        return None
    axes = (Axis(v, n) for v, n in roles.reduce.axes)
    axis = next((a for a in axes if is_grouped(roles, a)), None)
    if axis is None or not _has_words(left, axis):
        return None
    group = Axis(nest.builder.var("g"), dims.floor_divide(axis.extent, DOT_GROUP))
    words = _left_words(left, axis, group), _right_words(right, axis, group)
    grouped = tuple(
        (group.var, group.extent) if v is axis.var else (v, n) for v, n in roles.reduce.axes
    )
    body = Dot(*words, Const(DType.I32, 0))
    reduce = Reduce("sum", grouped, body, DType.I32)
    made = replace(roles, reduce=reduce, left=words[0], right=words[1], weight=words[1])
    memo: dict[Expr, Expr] = {roles.reduce: reduce}
    return output.rewritten(lambda e: expr.transform(e, memo.get)), made


def _bytes_of(e: Expr) -> Load | None:
    """The load of bytes in a buffer that `e` widens."""
    if not isinstance(e, Cast) or not isinstance(e.a, Load) or e.a.dtype not in WORDS:
        return None
    source = e.a.source
    return e.a if isinstance(source, Buffer) and source.strides == (1,) else None


def _has_words(left: Load, axis: Axis) -> bool:
    """Whether each group along an axis is one word of the left factor, loaded as a whole or not at
    all."""
    (address,), source = left.indices, left.source
    assert isinstance(source, Buffer)
    if dims.modulo(axis.extent, DOT_GROUP) != 0 or expr.coefficient(address, axis.var) != 1:
        return False
    if source.binding is not BufferClass.CONSTANTS and source.alignment % DOT_GROUP:
        return False
    if left.guard is not None and axis.var in expr.free_vars(left.guard):
        return False
    if left.other is not None and not isinstance(left.other, Const):
        return False
    start = expr.substitute(address, {axis.var: expr.index(0)})
    return _multiple_of(start) % DOT_GROUP == 0


def _multiple_of(e: Expr) -> int:
    """A constant that divides an index whatever its variables are; 0 for the constant 0."""
    number = expr.dim_of(e)
    if isinstance(number, int):
        return abs(number)
    if isinstance(e, Binary) and e.op in ("add", "sub", "min", "max", "floormod"):
        return gcd(_multiple_of(e.a), _multiple_of(e.b))
    if isinstance(e, Binary) and e.op == "mul":
        return _multiple_of(e.a) * _multiple_of(e.b)
    if number is not None and dims.modulo(number, DOT_GROUP) == 0:
        return DOT_GROUP
    return 1


def _left_words(load: Load, axis: Axis, group: Axis) -> Load:
    first = expr.mul(group.var, expr.index(DOT_GROUP))
    (address,) = load.indices
    at = expr.substitute(address, {axis.var: first})
    other = None if load.other is None else _repeated(load.other, load.dtype)
    return Load(load.source, (at,), WORDS[load.dtype], load.guard, other)


def _repeated(byte: Expr, dtype: DType) -> Const:
    """The word with all bytes equal to `byte`."""
    assert isinstance(byte, Const)
    return Const(WORDS[dtype], (int(byte.value) & 0xFF) * 0x01010101)


def _right_words(load: Load, axis: Axis, group: Axis) -> Load:
    zero = expr.index(0)
    if axis.extent == DOT_GROUP:
        found = expr.substitute(load, {axis.var: zero})
    else:
        found = at_splits(load, {(axis.var, DOT_GROUP): (group.var, zero)}, {})
    assert isinstance(found, Load)
    return replace(found, dtype=WORDS[load.dtype])
