"""Symbolic evaluation of small integer tensors as dims: shape arithmetic at compile time.

Owns the walk over definitions; what an op does to elements is its record's reference. Never
changes a function, and its answers hold only as long as nobody else does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from aot.errors import InternalError
from aot.ir import dim_semantics as ds
from aot.ir.bounds import bounds_of
from aot.ir.dim_ratios import numbers
from aot.ir.dims import Dim, DimExpr, symbols
from aot.ir.graph import Function, Op, Value
from aot.ir.record import Kind, call_of
from aot.ir.types import Array, DType, TensorType

_KINDS = frozenset({Kind.VIEW, Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.REDUCTION, Kind.SHAPE})


class DimValues:
    """The known elements of a function's tensors, computed on demand and cached.

    Attributes:
        MAX_ELEMENTS: larger tensors are data, not shapes, and are never known.
        given: the symbols that elements of values were made.
        taken: dims that answers took to be at least so much, and the node that needed it.
        undecided: what the elements of a value depend on, where that is what hides them.
        origins: the nodes that compute them, as far as they have names.
    """

    MAX_ELEMENTS = 1 << 14

    def __init__(self, function: Function, *, declared: Collection[str] = ()) -> None:
        """`declared` are the symbols for which quotients may assume positive extents."""
        self.function = function
        self.declared = frozenset(declared)
        self.taken: dict[Dim, tuple[int, str]] = {}
        self._needs: dict[Value, dict[Dim, tuple[int, str]]] = {}
        self.undecided: dict[Value, str] = {}
        self._bounds = bounds_of(function.assumptions)
        self._known: dict[Value, Array | None] = {}
        self._names = {
            name for v in function.inputs for dim in v.type.dims for name in symbols(dim)
        }
        self.given: set[str] = set()
        self.origins: dict[str, str] = {}

    def of(self, value: Value) -> Array | None:
        """The elements of an integer or bool tensor as an object array of dims (or bools).

        None if they are not the same function of the symbols in every run, as far as can be seen.
        """
        if value.type.dtype.is_float:
            return None
        found = self.known(value)
        return None if found is None else found.astype(object)

    def why_unknown(self, value: Value) -> str | None:
        """The condition on extents because of which a value's elements are unknown; None if the
        reason is another."""
        stack, seen = [value], {value}
        while stack:
            found = stack.pop()
            if found in self.undecided:
                return self.undecided[found]
            if found.op is None or (found in self._known and self._known[found] is not None):
                continue
            for operand in _read_operands(found.op):
                if operand not in seen:
                    seen.add(operand)
                    stack.append(operand)
        return None

    def fresh_symbol(self, origin: str = "") -> str:
        """An unused name for a dim that a value defines."""
        number = len(self.given)
        while (name := f"n{number}") in self._names or name in self.given:
            number += 1
        self.given.add(name)
        self.origins[name] = origin
        return name

    def define(self, value: Value, elements: Array) -> None:
        """Sets the elements of a value as dims; values computed from it may then be known too."""
        self._known = {v: known for v, known in self._known.items() if known is not None}
        self._known[value] = elements

    def known(self, value: Value) -> Array | None:
        """The elements of a value, floats included, in the value's dtype if none is symbolic; None
        if unknown.
        """
        found = self._find(value)
        if found is not None:
            self.taken.update(self._needs.get(value, {}))
        return found

    def _find(self, wanted: Value) -> Array | None:
        stack = [wanted]
        while stack:
            value = stack[-1]
            if value in self._known:
                stack.pop()
                continue
            op = value.op
            if op is None or not _may_be_known(op):
                self._known[value] = None
                continue
            missing = [operand for operand in _read_operands(op) if operand not in self._known]
            if missing:
                stack.extend(missing)
                continue
            for result, elements in zip(op.results, self._evaluate(op), strict=True):
                self._known[result] = elements
        return self._known[wanted]

    def _evaluate(self, op: Op) -> list[Array | None]:
        inputs: list[Any] = [None] * len(op.operands)
        for number, operand in enumerate(op.operands):
            if operand is None or op.record.kind is Kind.SHAPE:
                continue
            inputs[number] = self._known[operand]
            if inputs[number] is None:
                return [None] * len(op.results)
        is_symbolic = any(a is not None and a.dtype == object for a in inputs) or any(
            _has_symbol(attr) for attr in op.attrs.values()
        )
        if is_symbolic and not op.record.takes_dims:
            return [None] * len(op.results)
        call = call_of(op, is_exact=True)
        assert op.record.reference is not None
        taken = ds.Taken(self.declared) if self.declared else None
        try:
            with ds.assuming(self._bounds, taken):
                results = op.record.reference(call, inputs)
        except ds.UndecidedError as error:
            self.undecided.update((result, str(error)) for result in op.results)
            return [None] * len(op.results)
        needs = {
            dim: need for v in _read_operands(op) for dim, need in self._needs.get(v, {}).items()
        }
        needs.update({d: (n, op.origin) for d, n in taken.least.items()} if taken else {})
        if needs:
            self._needs.update(dict.fromkeys(op.results, needs))
        return [
            _canonical(np.asarray(elements), result.type)
            for elements, result in zip(results, op.results, strict=True)
        ]


def _read_operands(op: Op) -> list[Value]:
    if op.record.kind is Kind.SHAPE:
        return []
    return [operand for operand in op.operands if operand is not None]


def _may_be_known(op: Op) -> bool:
    record = op.record
    is_constant = record.kind is Kind.STRUCTURE and not op.operands
    return (
        (is_constant or record.kind in _KINDS)
        and record.reference is not None
        and not record.writes
        and not record.has_side_effects
        and not op.blocks
        and all(_is_small(result.type) for result in op.results)
        and all(_is_small(operand.type) for operand in _read_operands(op))
    )


def _is_small(type: TensorType) -> bool:
    count = type.element_count
    return type.is_static and isinstance(count, int) and count <= DimValues.MAX_ELEMENTS


def _has_symbol(attr: object) -> bool:
    if isinstance(attr, tuple):
        return any(_has_symbol(item) for item in attr)
    return isinstance(attr, DimExpr)


def _canonical(elements: Array, type: TensorType) -> Array:
    """`elements` in canonical form: an object array only if an element is symbolic, else an array
    of the type's dtype."""
    if elements.shape != type.shape:
        raise InternalError(f"elements of shape {elements.shape} for a value of type {type}")
    if elements.dtype != object:
        return elements
    if type.dtype.is_float:
        found = numbers(elements)
        return elements if found is None else found.astype(type.dtype.numpy)
    if any(isinstance(item, DimExpr) for item in elements.flat):
        return elements if type.dtype is not DType.BOOL else elements.astype(bool)
    return elements.astype(type.dtype.numpy)
