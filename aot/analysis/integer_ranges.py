"""Which ops on 64-bit integers compute the same in 32 bits, from bounds of values and from what of
them is used.

An op may be narrow where its operands and results fit 32 bits, or where sums, products and
movements alone lead from it to what needs no more: indices, which are within a tensor, and casts to
32 bits or less. What enters or leaves control flow or a state is taken to fit. A pure function of
the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import product

import numpy as np

from aot.analysis.control import control_ops
from aot.analysis.dim_values import DimValues
from aot.ir.graph import ConstantData, Function, Op, Value
from aot.ir.record import Kind
from aot.ir.types import DType

Interval = tuple[int, int]

_MOST = (1 << 31) - 1  # no extent, position or count of elements is larger
WORD: Interval = (-(1 << 31), _MOST)
_MOVES = (Kind.MOVEMENT, Kind.VIEW)
# Of results, the low 32 bits follow from those of operands.
_LOW = frozenset(
    {"add", "sub", "mul", "neg", "bit_and", "bit_or", "bit_xor", "bit_not", "where", "reduce_sum"}
)
_INDICES = frozenset({"indices", "starts", "index"})


def _sum(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _negated(a: Interval) -> Interval:
    return -a[1], -a[0]


def _product(a: Interval, b: Interval) -> Interval:
    ends = [x * y for x, y in product(a, b)]
    return min(ends), max(ends)


def _quotient(a: Interval, b: Interval) -> Interval:
    """Truncated; by 0 it is 0."""
    size = max(abs(a[0]), abs(a[1]))
    if b[0] > 0:
        return -size if a[0] < 0 else 0, size if a[1] > 0 else 0
    return -size, size


def _magnitude(a: Interval) -> Interval:
    return max(a[0], -a[1], 0), max(-a[0], a[1])


_ARITHMETIC: Mapping[str, Callable[..., Interval]] = {
    "add": _sum,
    "sub": lambda a, b: _sum(a, _negated(b)),
    "mul": _product,
    "neg": _negated,
    "abs": _magnitude,
    "div": _quotient,
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "relu": lambda a: (max(a[0], 0), max(a[1], 0)),
    "where": lambda condition, a, b: _union((a, b)),
    "reduce_max": lambda a: a,
    "reduce_min": lambda a: a,
    "cast": lambda a: a,
}


def _union(all: Iterable[Interval]) -> Interval:
    lows, highs = zip(*all, strict=True)
    return min(lows), max(highs)


def type_range(dtype: DType) -> Interval:
    if dtype is DType.BOOL:
        return 0, 1
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def _within(a: Interval, b: Interval) -> bool:
    return b[0] <= a[0] and a[1] <= b[1]


class WideOps:
    """What of a function is to be computed in as many bits as it has.

    Attributes:
        ops: those that may not be narrow, and the constants that they read and nothing else holds.
    """

    def __init__(self, function: Function, wide: Collection[DType]) -> None:
        """`wide` are the integers that the target lacks."""
        self.wide = frozenset(wide)
        self.known = DimValues(function)
        self._order = list(control_ops(function))
        self._inputs = set(function.inputs)
        self._ranges: dict[Value, Interval] = {}
        self._totals: dict[Value, int] = {}
        self._is_exact: dict[Value, bool] = {}
        for op in self._order:
            for value in op.results:
                if value.type.dtype.is_integer or value.type.dtype is DType.BOOL:
                    self._ranges[value] = self._range_of(op, value)
        for op in reversed(self._order):
            self._demand(op)
        self.ops: set[Op] = set()
        strict: set[Value] = set()  # constants that readers do not clamp alone
        while True:
            found = {op for op in self._order if not self._may_be_narrow(op, strict)}
            constants = {
                value
                for op in found
                for value in op.operands
                if value is not None and self._is_large_constant(value)
            }
            if constants <= strict:
                break
            strict |= constants
        self.ops = found | {value.op for value in strict if value.op is not None}

    # bounds

    def range(self, value: Value) -> Interval:
        """Bounds of an integer's or a bool's elements."""
        if value in self._ranges:
            return self._ranges[value]
        limits = type_range(value.type.dtype)
        if value.op is None and value not in self._inputs and value.type.dtype in self.wide:
            return self._word(value)  # given to a block
        return limits

    def _word(self, value: Value) -> Interval:
        return WORD if value.type.dtype.is_signed else (0, (1 << 32) - 1)

    def fits(self, value: Value) -> bool:
        return value.type.dtype not in self.wide or _within(self.range(value), self._word(value))

    def _range_of(self, op: Op, value: Value) -> Interval:
        limits = type_range(value.type.dtype)
        found = self._computed(op, value)
        # beyond its type it has wrapped
        return found if found is not None and _within(found, limits) else limits

    def _computed(self, op: Op, value: Value) -> Interval | None:
        data = op.attrs.get("value")
        if isinstance(data, ConstantData):
            array = data.array
            return (int(array.min()), int(array.max())) if array.size else (0, 0)
        if value.type.dtype not in self.wide:
            return None
        known = self.known.of(value)
        if known is not None:
            whole = [int(v) for v in known.flat if isinstance(v, int | np.integer)]
            if len(whole) == known.size:
                return (min(whole), max(whole)) if whole else (0, 0)
            return WORD
        if op.record.kind is Kind.STRUCTURE:
            return self._word(value)
        if op.name == "range":
            return self._range_of_positions(op)
        if op.name == "fill":
            filled = op.attrs["value"]
            assert isinstance(filled, int | float)
            return int(filled), int(filled)
        operands = [v for v in op.operands if v is not None]
        if op.record.kind in _MOVES:
            moved = [self.range(v) for v in operands if v.type.dtype is value.type.dtype]
            beside = op.attrs.get("value", 0)
            more = int(beside) if isinstance(beside, int | float) else 0
            return _union([*moved, (0, 0), (more, more)]) if moved else None
        if op.name == "bitcast" or (op.name == "cast" and operands[0].type.dtype.is_float):
            return None
        if op.name in _ARITHMETIC:
            return _ARITHMETIC[op.name](*map(self.range, operands))
        if op.name in ("reduce_sum", "scan") and op.attrs.get("combine", "sum") == "sum":
            total = self.total(operands[0])
            low, high = self.range(operands[0])
            return (-total if low < 0 else 0), (total if high > 0 else 0)
        if op.name == "scan" and op.attrs["combine"] in ("max", "min"):
            return _union([(0, 0), self.range(operands[0])])
        if op.record.kind is Kind.SCATTER:
            return self._scattered(op, value, operands[0], operands[-1])
        if op.name == "bit_and":
            tops = [high for low, high in map(self.range, operands) if low >= 0]
            return (0, min(tops)) if tops else None
        is_computed = any(
            v is not None and v.type.dtype in self.wide and not clamps(op, number)
            for number, v in enumerate(op.operands)
        )
        is_place = op.name in ("arg_max", "arg_min") or (op.name == "top_k" and value.index == 1)
        return None if is_computed and not is_place else (0, _MOST)  # a position, or a count

    def _scattered(self, op: Op, value: Value, data: Value, updates: Value) -> Interval | None:
        (low, high), (least, most) = self.range(data), self.range(updates)
        if op.attrs["reduction"] == "none":
            return _union([(0, 0), (low, high), (least, most)])
        if op.attrs["reduction"] != "add":
            return None
        added = self.total(updates)
        self._totals[value] = self.total(data) + added
        return low - (added if least < 0 else 0), high + (added if most > 0 else 0)

    def total(self, value: Value) -> int:
        """A bound of the sum of the magnitudes of all elements."""
        if value in self._totals:
            return self._totals[value]
        op = value.op
        if op is not None and (op.record.kind is Kind.VIEW or op.name in ("slice", "transpose")):
            data = op.operands[0]
            if data is not None and data in self._totals:
                return self._totals[data]
        low, high = self.range(value)
        known = [d for d in value.type.dims if isinstance(d, int)]
        count = math.prod(known) if len(known) == value.type.rank else _MOST
        return max(abs(low), abs(high)) * count

    def _range_of_positions(self, op: Op) -> Interval:
        size, start, step = (op.attrs[name] for name in ("size", "start", "step"))
        if not (isinstance(start, int) and isinstance(step, int)):
            return WORD
        last = size - 1 if isinstance(size, int) else _MOST - abs(start)
        return _union([(start, start), (start + step * last, start + step * last)])

    # uses

    def _demand(self, op: Op) -> None:
        """Notes of which operands more than the low 32 bits count."""
        of_results = any(self._is_exact.get(v, False) for v in op.results)
        for number, value in enumerate(op.operands):
            if value is not None and value.type.dtype in self.wide:
                exact = self._uses_all(op, number, of_results)
                self._is_exact[value] = self._is_exact.get(value, False) or exact

    def _uses_all(self, op: Op, number: int, of_results: bool) -> bool:
        if self._is_index(op, number):
            return False
        if op.record.kind in _MOVES or op.name in _LOW:
            return of_results
        if op.name == "cast":
            to = op.result.type.dtype
            return of_results if to in self.wide else not to.is_integer
        if op.name == "scan":
            return of_results or op.attrs["combine"] != "sum"
        if op.record.kind is Kind.STRUCTURE:
            # of control flow and states it is taken to fit; a function's results have all bits
            return (
                op.parent is not None
                and isinstance(op.parent.owner, Function)
                and (op.record.is_terminator)
            )
        return True

    def _is_index(self, op: Op, number: int) -> bool:
        names = [o.name for o in op.record.operands]
        return names[min(number, len(names) - 1)] in _INDICES if names else False

    # decisions

    def _may_be_narrow(self, op: Op, strict: Collection[Value]) -> bool:
        operands = [v for v in op.operands if v is not None and v.type.dtype in self.wide]
        results = [v for v in op.results if v.type.dtype in self.wide]
        if not (operands or results) or op.record.kind in (Kind.STRUCTURE, Kind.SHAPE):
            return True
        has_low = op.record.kind in _MOVES or op.name in _LOW
        has_low = has_low or (op.name == "scan" and op.attrs["combine"] == "sum")
        if op.name == "cast" and operands:
            to = op.result.type.dtype
            has_low = to.is_integer
        if has_low and not any(map(self._is_large_constant, operands)):
            return all(self.fits(v) or not self._is_exact.get(v, False) for v in results)
        given = [
            (number, v)
            for number, v in enumerate(op.operands)
            if v is not None and v.type.dtype in self.wide and not self._is_index(op, number)
        ]
        return all(map(self.fits, results)) and all(
            self.fits(v)
            or self.is_clamped(op, number)
            or (self._is_large_constant(v) and v not in strict and clamps(op, number))
            for number, v in given
        )

    def is_clamped(self, op: Op, number: int) -> bool:
        """Whether an operand, a limit, is brought to what 32 bits hold where the op is narrow."""
        value = op.operands[number]
        if value is None or value.type.dtype not in self.wide or not clamps(op, number):
            return False
        if op.record.kind is Kind.ELEMENTWISE or self._is_index(op, number) or op in self.ops:
            return False
        return not self.fits(value) and not self._is_large_constant(value)

    def _is_large_constant(self, value: Value) -> bool:
        is_constant = value.op is not None and isinstance(value.op.attrs.get("value"), ConstantData)
        return is_constant and not self.fits(value)


def clamps(op: Op, number: int) -> bool:
    """Whether a number too large for the dtype means to `op` what the largest one means."""
    return op.record.operands[min(number, len(op.record.operands) - 1)].clamps
