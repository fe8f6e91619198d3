"""Finds values of an f32 program that f16 cannot hold: constants out of its range, and squares.

f16 has 11 bits of precision, finite numbers up to 65504 and normal ones from 2^-14. Changes nothing
and decides nothing: what is to be f16 is the pass's.
"""

from __future__ import annotations

import numpy as np

from aot.analysis.control import control_ops
from aot.analysis.memory.views import is_view
from aot.ir import expr
from aot.ir.builtin import CONSTANT
from aot.ir.graph import Function, Op, Value
from aot.ir.record import Kind, call_of
from aot.ir.types import Array
from aot.ops.elementwise import MUL, POW
from aot.ops.structure import REGION

LARGEST = float(np.finfo(np.float16).max)
SMALLEST_NORMAL = float(np.finfo(np.float16).smallest_normal)

# functions whose results are within f16's range though their operand is a square
_LINEAR = {"fmod", "gelu", "gelu_tanh", "mish", "silu"}
_RANGE_COMPRESSING = expr.TRANSCENDENTAL_OPS - _LINEAR | {"sqrt"}
_SAME_ELEMENTS = (Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.VIEW)


def f16_range_issue(array: Array) -> str:
    """Why f16 can't hold a constant: "too_large", "too_small" (no element would be a normal number)
    or "whole" (it would change integers, such as positions); empty where it can."""
    finite = array[np.isfinite(array)]
    if finite.size == 0:
        return ""
    largest = float(np.abs(finite).max())
    if largest > LARGEST:
        return "too_large"
    if (finite.astype(np.float16).astype(array.dtype) == finite).all():
        return ""
    if largest < SMALLEST_NORMAL:
        return "too_small"
    return "whole" if bool((np.trunc(finite) == finite).all()) else ""


def squares(function: Function) -> set[Value]:
    """Values outside regions that are elementwise squares, or that are squared.

    A square has twice the exponent: the power spectrum of what f16 holds well is beyond it at both
    ends. Sums of squares (variances) count as well, but not what they sum over; a root, a logarithm
    or the like brings all back.
    """
    found: dict[Value, None] = {}
    powers: set[Value] = set()
    for op in control_ops(function):
        if op.record is REGION:
            _look_into(op, powers, found)
        elif is_view(op) and op.operands[op.record.view_of or 0] in powers:
            powers.update(op.results)
    return set(found) | powers


def _look_into(region: Op, powers: set[Value], found: dict[Value, None]) -> None:
    """Adds a region's results that are squares to `powers`, and the values that it squares to
    `found`.
    """
    (block,) = region.blocks
    outer: dict[Value, Value] = {
        a: v for a, v in zip(block.args, region.operands, strict=True) if v is not None
    }
    # the arguments whose elements a value is made of, and those squared in it (None: no square)
    parts: dict[Value, frozenset[Value]] = {a: frozenset([a]) for a in block.args}
    squared: dict[Value, frozenset[Value] | None] = {
        arg: frozenset() if value in powers else None for arg, value in outer.items()
    }
    # a region's results are stored, and later stages of it read them
    outer.update(
        (v, r)
        for v, r in zip(block.terminator.operands, region.results, strict=True)
        if v is not None
    )
    for op in block:
        operands = [v for v in op.operands if v is not None]
        own = frozenset[Value]()
        if op.record.kind in _SAME_ELEMENTS:
            own = own.union(*(parts[v] for v in operands))
        inside = [squared[v] for v in operands]
        now: frozenset[Value] | None = None
        if any(s is not None for s in inside) and not _compresses_range(op):
            now = frozenset().union(*(s for s in inside if s is not None))
        if now and op.record.kind not in _SAME_ELEMENTS:
            now = frozenset()
        if _squares(op, outer):
            now = own | (now or frozenset())
        for value in op.results:
            is_stored = value in outer
            parts[value] = own | {value} if is_stored else own
            squared[value] = now
    for made, result in zip(block.terminator.operands, region.results, strict=True):
        assert made is not None
        of = squared[made]
        if of is not None:
            powers.add(result)
            found.update((outer[arg], None) for arg in of)


def _squares(op: Op, outer: dict[Value, Value]) -> bool:
    """Whether the op's result is its operand to the power of 2 or more."""
    if op.record is MUL:
        return op.operands[0] is op.operands[1]
    if op.record is not POW or op.operands[1] is None:
        return False
    exponent = outer.get(op.operands[1])
    if exponent is None or exponent.op is None or exponent.op.record is not CONSTANT:
        return False
    data = exponent.op.attrs["value"]
    return bool((np.asarray(data.array) >= 2).all())  # type: ignore[union-attr]


def _compresses_range(op: Op) -> bool:
    """Whether the op's results stay in f16's range even for a squared operand."""
    if op.record.compute is None:
        return True
    return any(
        isinstance(node, (expr.Unary, expr.Binary)) and node.op in _RANGE_COMPRESSING
        for compute in op.record.compute(call_of(op))
        for node in expr.nodes(compute.value)
    )
