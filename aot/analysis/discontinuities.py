"""Finds values that reach a discontinuity, such as a comparison or rounding, where a change of a
last bit matters.

A discontinuity is an op whose result may change by far more than an operand did: floor, ceil, round
and trunc, remainders, and whatever makes integers or booleans of floats (casts, comparisons, signs,
positions of extrema, sorted positions, quantisation); an edge is the last number before an infinity
or a NaN (divisors, roots, logarithms, powers). Outputs are none, and what is written to memory is
one, as it may be read there. Changes nothing and decides nothing: `aot/passes/simplify/bounds.py`
says which rules ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aot.ir.builtin import CONSTANT
from aot.ir.graph import Block, ConstantData, Function, Op, Value
from aot.ir.record import Kind
from aot.ops.elementwise import (
    ABS,
    CAST,
    DIV,
    EXP,
    LESS,
    LESS_EQUAL,
    MUL,
    NEG,
    RELU,
    ROUND,
    SUB,
    WHERE,
)
from aot.ops.quantization import QUANTIZE

_MOST_STEPS = 6  # between a comparison and what it chooses


class Discontinuities:
    """The discontinuities of a function, computed on first use.

    A value made later counts as the one it stands for, see `inherit`.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._near: set[Value] | None = None
        self._anywhere: set[Value] | None = None

    def are_near(self, value: Value) -> bool:
        """Whether `value` reaches a discontinuity, or the edge of an op's domain, through ops whose
        results are determined to the last bit. `quantize` and the computation of its parameters do
        not count."""
        self._find()
        assert self._near is not None
        return value in self._near

    def are_behind(self, value: Value) -> bool:
        """Whether a discontinuity depends on `value` through any ops, or the edge of an op's domain
        as in `are_near`."""
        self._find()
        assert self._anywhere is not None
        return value in self._anywhere

    def inherit(self, fresh: Value, old: Value) -> None:
        """Gives `fresh`, which replaces `old`, the same answers."""
        for found in (self._near, self._anywhere):
            if found is not None and old in found:
                found.add(fresh)

    def _find(self) -> None:
        if self._anywhere is not None:
            return
        near: list[Value] = []
        anywhere: list[Value] = []
        ops = list(self._function.walk())
        quantising, scales = _quantising(ops)
        for op in ops:
            jumps = list(_jumps(op))
            anywhere += jumps
            near += [] if op in quantising else jumps
            edges = (op.operands[n] for n in op.record.edges)
            near += (v for v in edges if v is not None and v not in scales)
        self._near = _spread(near, is_stopping=True)
        self._anywhere = _spread(anywhere, is_stopping=False) | self._near


def _quantising(ops: Iterable[Op]) -> tuple[set[Op], set[Value]]:
    """(ops that quantise or round a zero point, scales of the former)."""
    found: set[Op] = set()
    scales: set[Value] = set()
    for op in ops:
        if op.record is not QUANTIZE:
            continue
        found.add(op)
        _, scale, zero = (*op.operands, None, None)[:3]
        if scale is not None:
            scales.add(scale)
        while zero is not None and zero.op is not None and zero.op.record in (CAST, ROUND):
            found.add(zero.op)
            zero = zero.op.operands[0]
    return found, scales


def _jumps(op: Op) -> Iterator[Value]:
    """The operands for which `op` is discontinuous, or whose further use is unknown."""
    record = op.record
    if record.kind is Kind.SHAPE or record.is_terminator or op.blocks:
        return
    is_wild = record.has_unknown_effects or bool(record.writes)
    if record in (LESS, LESS_EQUAL) and _is_kink(op):
        return
    if is_wild or any(not v.type.dtype.is_float for v in op.results):
        yield from (v for v in op.operands if v is not None)
        return
    yield from (v for n in record.jumps if (v := op.operands[n]) is not None)


def _is_kink(op: Op) -> bool:
    """Whether a comparison with 0 only selects between values that are both 0 there, as in a leaky
    ReLU or an ELU."""
    x = next((v for v in op.operands if v is not None and not _is_number(v, 0)), None)
    if x is None or not any(v is not None and _is_number(v, 0) for v in op.operands):
        return False
    return all(
        user.record is WHERE
        and user.operands[0] is op.result
        and all(_vanishes(v, x) for v in user.operands[1:])
        for user in op.result.users
    )


def _vanishes(value: Value | None, x: Value, depth: int = _MOST_STEPS) -> bool:
    """Whether `value` is 0 where `x` is 0, and near 0 where x is."""
    if value is None or depth == 0:
        return False
    if value is x or _is_number(value, 0):
        return True
    op = value.op
    if op is None:
        return False
    if op.record is MUL:
        return any(_vanishes(v, x, depth - 1) for v in op.operands)
    if op.record in (DIV, NEG, ABS, RELU, CAST):
        return _vanishes(op.operands[0], x, depth - 1)
    power, one = op.operands if op.record is SUB else (None, None)
    if power is None or one is None or power.op is None or power.op.record is not EXP:
        return False
    return _is_number(one, 1) and _vanishes(power.op.operands[0], x, depth - 1)


def _is_number(value: Value, number: float) -> bool:
    data = value.op.attrs["value"] if value.op is not None and value.op.record is CONSTANT else None
    return isinstance(data, ConstantData) and bool((data.array == number).all())


def _spread(values: Iterable[Value], *, is_stopping: bool) -> set[Value]:
    """The floats from which `values` are computed, themselves included; with `is_stopping`, only
    through ops whose results are determined to the last bit."""
    found: set[Value] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if value in found or not value.type.dtype.is_float:
            continue
        found.add(value)
        if not (is_stopping and value.op is not None and value.op.record.rounds_freely):
            stack += _sources(value)
    return found


def _sources(value: Value) -> Iterator[Value]:
    """The values from which `value` may be computed: operands, or what blocks yield and receive."""
    if isinstance(value.owner, Block):
        op = value.owner.owner if isinstance(value.owner.owner, Op) else None
    else:
        op = value.owner
    if op is None:
        return
    yield from (v for v in op.operands if v is not None)
    for block in op.blocks:
        yield from (v for v in block.terminator.operands if v is not None)
