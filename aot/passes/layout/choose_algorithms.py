"""choose-algorithms: marks each convolution with the algorithm that computes it.

Requires: layouts are assigned and no shape change is pending; weights aren't packed yet.
Ensures: a 3x3 convolution that Winograd's way costs less, by the plan, has `algorithm = winograd`;
    with `--optimize speed` it is a `conv_winograd` of transformed filters where that costs still
    less and constants keep their 32 bits, as long as there are bytes left of what a model may grow.
    On a GPU the parts of the algorithm are ops in its place then (split_convolutions.py).
Never: chooses a way that the target has no schedule for; stores filters both ways, as those that
    several convolutions have would be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from aot.analysis.cost import winograd
from aot.analysis.cost.tile_costs import call_cost
from aot.base.records import dataclass
from aot.ir.graph import Attr, ConstantData, Function, Module, Op, Value
from aot.ir.record import Call, call_of
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import TensorType
from aot.ops.winograd import CONV_WINOGRAD, POINTS, transformed
from aot.passes.base import Pass, PassContext
from aot.passes.layout.split_convolutions import split
from aot.passes.simplify.rewriting import constant_of
from aot.target.model import Target

# the direct convolution must cost this much more: it needs no scratch and rounds less
MARGIN = 1.15
# the same of transforming filters at every run, beside storing them transformed
STORED_MARGIN = 1.03
# bytes by which a model may grow for filters that are stored transformed: so many stay in the
# last level of cache, from which they are read at every run
GROWTH_BYTES = {"speed": 16 << 20}


def run(module: Module, context: PassContext) -> None:
    if context.target is not None and context.options.winograd:
        growth = GROWTH_BYTES.get(context.options.optimize, 0)
        target, stores_half = context.target, context.options.stores_half
        for function in module.entry_points:
            chosen = choose(function, target)
            if target.has_workgroups:
                stored, more = split(function, target, growth, stores_half=stores_half)
                chosen += stored
            else:
                # of 16 bits transformed filters would be rounded, which errors grow with
                most = 0 if stores_half else growth
                stored, more = store_filters(function, target, most)
            context.count("choose-algorithms", "convolutions", chosen)
            context.count("choose-algorithms", "transformed", stored)
            context.count("choose-algorithms", "more_bytes", more)


def choose(function: Function, target: Target) -> int:
    """Marks a function's convolutions with algorithms; returns how many it marked."""
    chosen = 0
    for op in function.walk():
        if op.attrs.get("algorithm") != "direct":
            continue
        direct = call_of(op)
        if not winograd.fits(direct, target):
            continue
        other = replace(direct, attrs={**direct.attrs, "algorithm": "winograd"})
        if call_cost(direct, target) > MARGIN * call_cost(other, target):
            Rewriter(function).set_attr(op, "algorithm", "winograd")
            chosen += 1
    return chosen


@dataclass(frozen=True)
class _Filters:
    """Constant filters that only Winograd convolutions use.

    Attributes:
        gain: what all of these cost less with transformed filters, in vector operations.
        more_bytes: of the transformed filters than of these.
    """

    value: Value
    ops: tuple[Op, ...]
    gain: float
    more_bytes: int


def store_filters(function: Function, target: Target, growth: int) -> tuple[int, int]:
    """Stores Winograd filters already transformed where that pays, for up to `growth` more bytes.
    Returns (convolutions changed, bytes added)."""
    if growth == 0:
        return 0, 0
    count, total = 0, 0
    found = list(_filters(function, target))
    for filters in sorted(found, key=lambda f: -f.gain / f.more_bytes):
        if total + filters.more_bytes <= growth:
            _store(function, filters)
            total += filters.more_bytes
            count += len(filters.ops)
    return count, total


def _filters(function: Function, target: Target) -> Iterator[_Filters]:
    by_value: dict[Value, list[Op]] = {}
    for op in function.walk():
        if winograd.is_wanted(call_of(op), target):
            weight = op.operands[1]
            if weight is not None and constant_of(weight) is not None:
                by_value.setdefault(weight, []).append(op)
    for value, ops in by_value.items():
        if any(user not in ops for user in value.users):
            continue
        calls = [call_of(op) for op in ops]
        now = sum(call_cost(call, target) for call in calls)
        then = sum(call_cost(_with_stored(call), target) for call in calls)
        elements = value.type.element_count
        if now > STORED_MARGIN * then and isinstance(elements, int):
            more = elements // 9 * winograd.POINTS - elements
            yield _Filters(value, tuple(ops), now - then, more * value.type.dtype.bytes)


def _with_stored(call: Call) -> Call:
    """A convolution call with transformed filters."""
    weight = call.operand(1)
    filters = TensorType(weight.dtype, (*weight.dims[:2], POINTS, POINTS))
    operands = [call.operands[0], filters, *call.operands[2:]]
    made = CONV_WINOGRAD.call(operands, {"pads": call.attrs["pads"]}, call.origin)
    return replace(made, result_types=call.result_types)


def _store(function: Function, filters: _Filters) -> None:
    value = filters.value
    assert value.op is not None
    place = value.op.next
    assert place is not None
    found = constant_of(value)
    assert found is not None
    data = ConstantData(transformed(found.array))
    fresh = insert_constant(Rewriter(function).at(place), data, value.op.origin)
    for op in filters.ops:
        operands = [op.operands[0], fresh, *op.operands[2:]]
        attrs: dict[str, Attr] = {"pads": op.attrs["pads"]}
        types = [result.type for result in op.results]
        at = Rewriter(function).at(op)
        made = at.insert(Op(CONV_WINOGRAD, operands, attrs, types, (), op.origin))
        at.replace_op(op, made.results)


CHOOSE_ALGORITHMS = Pass("choose-algorithms", run, __doc__)
