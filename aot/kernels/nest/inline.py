"""Inlines an executable's ops into one scalar expression per result element, over its operands'
buffers.

Owns the composition of op records' `compute`: producers, epilogues and index maps all become one
expression a result. Chooses no loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from aot.errors import InternalError
from aot.ir import expr
from aot.ir.expr import Cast, Const, Expr, Load, Reduce, Size, Var
from aot.ir.graph import Function, Op, Value
from aot.ir.record import Compute, call_of
from aot.ir.types import TensorType
from aot.kernels.ir import scalar
from aot.kernels.ir.nodes import Buffer
from aot.ops.elementwise import CAST


class Inliner:
    """Builds scalar expressions of an executable's values, in which equal subexpressions are
    shared.

    Args:
        function: an executable; every op in it has `compute`.
        buffers: the buffer of each block argument, and of other values that are not to be
            composed any further. Buffers are flat: one dim, stride 1.
    """

    def __init__(self, function: Function, buffers: Mapping[Value, Buffer]) -> None:
        self.function = function
        self.buffers = buffers
        self._computes: dict[Op, Sequence[Compute]] = {}
        self._memo: dict[tuple[object, ...], Expr] = {}
        self._stored: dict[tuple[Value, tuple[object, ...]], Expr] = {}

    def element(self, value: Value, indices: Sequence[Expr], guard: Expr | None = None) -> Expr:
        """The expression of element `indices` of `value`. Where `guard` is false it reads no
        buffer, unless the nest itself stores the element."""
        at = tuple(_key(i) for i in indices)
        if (value, at) in self._stored:
            return self._stored[value, at]
        key = (value, at, guard)
        if key not in self._memo:
            self._memo[key] = self._element(value, indices, guard)
        return self._memo[key]

    def result(self, value: Value, indices: Sequence[Expr]) -> Expr:
        """The expression of element `indices` of `value`, which the nest computes at all its
        indices and stores, so that later uses under a guard need no guard of their own."""
        made = self.element(value, indices)
        self._stored[value, tuple(_key(i) for i in indices)] = made
        return made

    def _element(self, value: Value, indices: Sequence[Expr], guard: Expr | None) -> Expr:
        op, buffer = value.op, self.buffers.get(value)
        if op is None or buffer is not None:
            buffer = self.buffers[value]
            other = expr.const(0, value.type.dtype) if guard is not None else None
            address = flat_index(value.type, indices)
            return Load(buffer, (address,), value.type.dtype, guard, other)
        if op not in self._computes:
            self._computes[op] = _compute(op)
        compute = self._computes[op][value.index]
        values = dict(zip(compute.indices, indices, strict=True))
        memo: dict[Expr, Expr] = {}

        def rewrite(e: Expr) -> Expr | None:
            if isinstance(e, Var):
                return values.get(e)
            if isinstance(e, Load):
                return self._operand(op, e, guard, lambda x: expr.transform(x, rewrite, memo))
            return None

        return expr.transform(compute.value, rewrite, memo)

    def _operand(
        self, op: Op, load: Load, guard: Expr | None, rewrite: Callable[[Expr], Expr]
    ) -> Expr:
        operand = op.operands[load.source]
        if operand is None:
            raise InternalError(f"{op}: compute loads the absent operand {load.source}")
        indices = [rewrite(i) for i in load.indices]
        own = None if load.guard is None else rewrite(load.guard)
        both = own if guard is None else guard if own is None else expr.binary("and", guard, own)
        inner = self.element(operand, indices, both)
        if own is None:
            return inner
        other = rewrite(load.other) if load.other is not None else expr.const(0, load.dtype)
        if guard is None:
            chosen = _with_other(inner, both, other)
            if chosen is not None:
                return chosen
        return expr.select(own, inner, other)


def stored(value: Value) -> Value:
    """The argument whose elements `value` has, directly or through conversions; None if it is
    computed."""
    while value.op is not None and value.op.record is CAST:
        source = value.op.operands[0]
        assert source is not None
        value = source
    return value


def _with_other(e: Expr, guard: Expr | None, other: Expr) -> Expr | None:
    """`e`, a load under `guard` or a conversion of one, changed to give `other` where the guard
    fails; None if `other` has no exact value in the load's dtype."""
    if isinstance(e, Load) and e.guard is guard:
        return replace(e, other=other)
    if isinstance(e, Cast) and isinstance(other, Const):
        with np.errstate(all="ignore"):
            wanted = scalar.literal(other)
            kept = scalar.convert(wanted, other.dtype, e.a.dtype)
            if scalar.convert(kept, e.a.dtype, other.dtype) != wanted:
                return None
        inner = _with_other(e.a, guard, expr.const(kept.item(), e.a.dtype))
        return None if inner is None else replace(e, a=inner)
    return None


def _compute(op: Op) -> Sequence[Compute]:
    record = op.record
    if record.compute is None:
        raise InternalError(f"{op} has no compute: it can't be part of a fused executable")
    return record.compute(call_of(op))


def _key(e: Expr) -> object:
    if isinstance(e, (Const, Size)) and expr.dim_of(e) is not None:
        return ("dim", expr.dim_of(e))
    return e


def flat_index(type: TensorType, indices: Sequence[Expr]) -> Expr:
    """The position in memory of logical element `indices` of a tensor of `type`."""
    physical: list[Expr] = list(indices)
    for dim, factor in type.layout.splits if type.layout is not None else ():
        whole = physical[dim]
        physical[dim] = expr.binary("floordiv", whole, expr.index(factor))
        physical.append(expr.binary("floormod", whole, expr.index(factor)))
    address: Expr = expr.index(0)
    for i, stride in zip(physical, type.physical_strides, strict=True):
        address = expr.add(address, expr.mul(i, expr.index(stride)))
    return address


def reduces_of(e: Expr) -> list[Reduce]:
    """Every Reduce in `e`, once each, inner ones first."""
    found: dict[Reduce, None] = {}
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(e, False)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            if isinstance(node, Reduce):
                found[node] = None
            continue
        if node in seen:
            continue
        seen.add(node)
        stack.append((node, True))
        stack.extend((c, False) for c in expr.children(node))
    return list(found)
