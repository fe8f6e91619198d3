"""Rules of algebra that recognise activations in the forms in which exporters write them.

A product is looked at as a whole, in whatever order its factors and numbers stand. `silu` is no op:
x * sigmoid(x) is as short.
"""

from __future__ import annotations

import math

from aot.ir.graph import Op, Value
from aot.ir.rewriter import Rewriter
from aot.ops import elementwise
from aot.passes.simplify.algebra_terms import (
    Line,
    emit,
    is_number,
    line_of,
    number_of,
    product_of,
    scalar,
    sole,
)
from aot.passes.simplify.bounds import replaces, rounds
from aot.passes.simplify.rewriting import Rule, is_all, make


def _cube(op: Op, rewriter: Rewriter) -> Value | None:
    x, exponent = op.operands
    if not is_all(exponent, 3):
        return None
    return make(op, rewriter, elementwise.MUL, emit(op, rewriter, elementwise.MUL, x, x), x)


def _gelu(op: Op, rewriter: Rewriter) -> Value | None:
    product = product_of(op)
    if len(product.factors) != 2:
        return None
    for x, sum in (product.factors, product.factors[::-1]):
        line = line_of(sum)
        erf = sole(line.value, elementwise.ERF) if line is not None else None
        inner = line_of(erf.operands[0]) if erf is not None else None
        if line is None or inner is None or inner.value is not x or inner.start != 0:
            continue
        numbers = (line.slope * product.number, line.start * product.number)
        dtype = x.type.dtype
        if not is_number(inner.slope, math.sqrt(0.5), dtype):
            continue
        if all(is_number(n, 0.5, dtype) for n in numbers):
            return make(op, rewriter, elementwise.GELU, x)
    return None


def _doubled(op: Op, rewriter: Rewriter, value: Value | None) -> Value:
    """2 * value, merged into a constant factor of it."""
    line = line_of(value)
    assert line is not None and value is not None
    if line.start != 0:
        line = Line(value, 1.0, 0.0)
    number = scalar(op, rewriter, 2 * line.slope, value.type.dtype)
    return emit(op, rewriter, elementwise.MUL, line.value, number)


def _sigmoid_of_tanh(op: Op, rewriter: Rewriter) -> Value | None:
    """Rewrites (1 + tanh(u)) / 2 to a sigmoid, which keeps the digits of small results."""
    product = product_of(op)
    if len(product.factors) > 2:
        return None  # products in another order may overflow, or no longer
    for number, sum in enumerate(product.factors):
        line = line_of(sum)
        tanh = sole(line.value, elementwise.TANH) if line is not None else None
        if line is None or tanh is None:
            continue
        numbers = (line.slope * product.number, line.start * product.number)
        if not all(is_number(n, 0.5, op.result.type.dtype) for n in numbers):
            continue
        twice = _doubled(op, rewriter, tanh.operands[0])
        result = emit(op, rewriter, elementwise.SIGMOID, twice)
        others = [f for n, f in enumerate(product.factors) if n != number]
        if not others:
            return result if result.type == op.result.type else None
        return make(op, rewriter, elementwise.MUL, others[0], result)
    return None


def _clip_of(value: Value) -> tuple[Value | None, float, float] | None:
    """(x, low, high) of a value that clamps x to [low, high] for this use alone; else None."""
    upper = sole(value, elementwise.MINIMUM)
    if upper is not None:
        high, inner = number_of(upper.operands[1]), upper.operands[0]
        relu, lower = sole(inner, elementwise.RELU), sole(inner, elementwise.MAXIMUM)
        if relu is not None and high is not None:
            return relu.operands[0], 0.0, high
        low = number_of(lower.operands[1]) if lower is not None else None
        if lower is not None and low is not None and high is not None:
            return lower.operands[0], low, high
        return None
    lower = sole(value, elementwise.MAXIMUM)
    upper = sole(lower.operands[0], elementwise.MINIMUM) if lower is not None else None
    if lower is None or upper is None:
        return None
    low, high = number_of(lower.operands[1]), number_of(upper.operands[1])
    return None if low is None or high is None else (upper.operands[0], low, high)


def _hard_swish(op: Op, rewriter: Rewriter) -> Value | None:
    product = product_of(op)
    if len(product.factors) != 2:
        return None
    for x, gate in (product.factors, product.factors[::-1]):
        clip = _clip_of(gate)
        line = line_of(clip[0]) if clip is not None else None
        if clip is None or line is None or line.value is not x or clip[1] != 0:
            continue
        numbers = tuple(product.number * n for n in (line.slope, line.start, clip[2]))
        wanted = (1 / 6, 1 / 2, 1)
        if all(is_number(n, w, x.type.dtype) for n, w in zip(numbers, wanted, strict=True)):
            return make(op, rewriter, elementwise.HARD_SWISH, x)
    return None


RULES: tuple[Rule, ...] = (
    Rule(elementwise.POW, "pow(x, 3) -> x * x * x", _cube, replaces(2)),
    Rule(elementwise.MUL, "x / 2 * (1 + erf(x / sqrt(2))) -> gelu(x)", _gelu, replaces(4)),
    Rule(
        elementwise.MUL,
        "y / 2 * (1 + tanh(u)) -> y * sigmoid(2 * u)",
        _sigmoid_of_tanh,
        replaces(4),
    ),
    Rule(elementwise.MUL, "x * clip(x + 3, 0, 6) / 6 -> hard_swish(x)", _hard_swish, rounds(4)),
)
