"""Splits Winograd convolutions into their parts, each a dispatch, on targets with workgroups.

Owns which convolutions those are, and the ops that take their place. Inputs are transformed, the
products of them and of filters that are stored transformed are summed at each point, and the sums
are transformed to outputs: on a GPU a workgroup's memory holds too little for all of that in one
kernel (aot/kernels/rules/products/winograd.py has it on a CPU).
"""

from __future__ import annotations

from collections.abc import Iterator

from aot.analysis.cost.winograd_parts import Parts, direct_ns, fits, ways
from aot.base.records import dataclass
from aot.ir.graph import ConstantData, Function, Op, Value
from aot.ir.record import call_of
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ops.contraction import MATMUL
from aot.ops.winograd_parts import WINOGRAD_INPUTS, WINOGRAD_OUTPUTS, filters_at_points
from aot.passes.simplify.rewriting import constant_of
from aot.target.model import Target

# what a way must take of the next one that takes more bytes: the figures of target files are rough,
# and parts take memory too
MARGIN = 1.2


@dataclass(frozen=True)
class _Filters:
    """Constant filters that only convolutions use.

    Attributes:
        ns: what all of these take by their direct sums.
        ways: in which parts they may be done, and what all take so.
    """

    value: Value
    ops: tuple[Op, ...]
    ns: float
    ways: tuple[Parts, ...]


def split(function: Function, target: Target, growth: int, *, stores_half: bool) -> tuple[int, int]:
    """Splits convolutions where that pays, for up to `growth` more bytes of filters. Returns
    (convolutions split, bytes added)."""
    found = list(_filters(function, target, stores_half=stores_half)) if growth else []
    chosen: dict[Value, Parts] = {}
    left = growth
    while True:
        better = [step for f in found for step in _steps(f, chosen.get(f.value), left)]
        if not better:
            break
        _, filters, parts = max(better, key=lambda step: step[0])
        left -= parts.more_bytes - _bytes_of(chosen.get(filters.value))
        chosen[filters.value] = parts
    count = 0
    for filters in found:
        if filters.value in chosen:
            _split(function, filters, chosen[filters.value].outputs)
            count += len(filters.ops)
    return count, growth - left


def _bytes_of(parts: Parts | None) -> int:
    return 0 if parts is None else parts.more_bytes


def _steps(
    filters: _Filters, now: Parts | None, left: int
) -> Iterator[tuple[float, _Filters, Parts]]:
    """(gain per additional byte, filters, parts) of each alternative to `now` that costs at most
    `left` bytes more.
    """
    for parts in filters.ways:
        more = parts.more_bytes - _bytes_of(now)
        before = filters.ns if now is None else now.ns
        if 0 < more <= left and before > MARGIN * parts.ns:
            yield (before - parts.ns) / more, filters, parts


def _filters(function: Function, target: Target, *, stores_half: bool) -> Iterator[_Filters]:
    by_value: dict[Value, list[Op]] = {}
    for op in function.walk():
        weight = op.operands[1] if len(op.operands) > 1 else None
        if weight is not None and fits(call_of(op), target) and constant_of(weight) is not None:
            by_value.setdefault(weight, []).append(op)
    for value, ops in by_value.items():
        if any(user not in ops for user in value.users):
            continue  # they would be stored both ways
        calls = [call_of(op) for op in ops]
        of_each = [ways(call, target, stores_half=stores_half) for call in calls]
        alike = set.intersection(*({parts.outputs for parts in one} for one in of_each))
        summed = [
            Parts(
                outputs,
                sum(p.ns for one in of_each for p in one if p.outputs == outputs),
                next(p.more_bytes for p in of_each[0] if p.outputs == outputs),
            )
            for outputs in sorted(alike)
        ]
        ns = sum(direct_ns(call, target) for call in calls)
        yield _Filters(value, tuple(ops), ns, tuple(summed))


def _split(function: Function, filters: _Filters, outputs: int) -> None:
    value = filters.value
    assert value.op is not None
    place, found = value.op.next, constant_of(value)
    assert place is not None and found is not None
    data = ConstantData(filters_at_points(found.array, outputs))
    points = insert_constant(Rewriter(function).at(place), data, value.op.origin)
    for op in filters.ops:
        _split_one(function, op, points, outputs)


def _split_one(function: Function, op: Op, filters: Value, outputs: int) -> None:
    rewriter, (x, _, *rest) = Rewriter(function).at(op), op.operands
    assert x is not None
    attrs = {"pads": op.attrs["pads"], "outputs": outputs}
    points = rewriter.create(WINOGRAD_INPUTS, [x], attrs, op.origin).result
    sums = rewriter.create(MATMUL, [points, filters], {}, op.origin).result
    images, _, height, width = op.result.type.dims
    extents = {"images": images, "height": height, "width": width, "outputs": outputs}
    types = [result.type for result in op.results]
    made = Op(WINOGRAD_OUTPUTS, [sums, *rest], extents, types, (), op.origin)
    rewriter.replace_op(op, rewriter.insert(made).results)
