"""Range analysis of 64-bit integers: which ops give the same results in 32 bits, for targets
without wider integers.

Two facts decide, both found by a walk over the function until nothing changes:

- `IntegerRanges`, forward: an interval that holds all elements of a value. Loops begin with what
  enters them and widen until what they yield is inside. Memory that is written in place or kept
  between calls holds anything.
- *Exact* values, backward: those of which a reader needs all 64 bits. Addition, multiplication and
  movement compute the low 32 bits of a result from the low 32 bits of their operands, and an index
  or a cast to 32 bits reads no others. Everything else that is read is exact: operands of
  comparisons and quotients, what a float is made of, memory, and the function's results.

An op may be narrow where its operands and results fit 32 bits, or where it needs the low bits alone
and none of its results is exact. A value that `if` or `loop` hands on is narrow on the same terms,
and wide in all of its places otherwise. Pure functions of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count, product
from typing import Any

import numpy as np

from aot.analysis.control import control_ops
from aot.analysis.dim_values import DimValues
from aot.ir.body import Body
from aot.ir.bounds import bounds_of
from aot.ir.dims import DimExpr, bounds, symbols
from aot.ir.graph import Block, ConstantData, Function, Op, Value
from aot.ir.loops import most_runs
from aot.ir.record import Kind
from aot.ir.types import DType

Interval = tuple[int, int]

_MOST = (1 << 31) - 1  # no extent, position or count of elements is larger
WORD: Interval = (-(1 << 31), _MOST)
_TURNS = 3  # of a loop, after which whatever may still widen becomes what its type holds
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
    """The range of quotients of two ranges, rounded towards 0; division by 0 gives 0."""
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


def _is_integer(value: Value) -> bool:
    return value.type.dtype.is_integer or value.type.dtype is DType.BOOL


def word(value: Value) -> Interval:
    """The range of 32-bit integers with the signedness of `value`."""
    return WORD if value.type.dtype.is_signed else (0, (1 << 32) - 1)


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


class IntegerRanges:
    """An interval that contains all elements, for each integer or bool value of a function."""

    def __init__(
        self, function: Function, wide: Collection[DType], memory: Collection[Value]
    ) -> None:
        """Starts without known ranges.

        Args:
            wide: the integer types that the target lacks; others are ignored.
            memory: values that are states, or that something writes in place.
        """
        self.wide = frozenset(wide)
        self.known = DimValues(function)
        self._bounds = bounds_of(function.assumptions)
        values = [*function.inputs, *(v for op in control_ops(function) for v in op.results)]
        self._extents = {dim for value in values for dim in value.type.dims}
        self._memory = frozenset(memory)
        self._ranges: dict[Value, Interval] = {}
        self._totals: dict[Value, int] = {}
        self._walk(function.block)

    def range(self, value: Value) -> Interval:
        return self._ranges.get(value, type_range(value.type.dtype))

    def fits(self, value: Value) -> bool:
        """Whether all elements fit 32 bits."""
        return value.type.dtype not in self.wide or _within(self.range(value), word(value))

    # control flow

    def _walk(self, block: Block) -> None:
        for op in block:
            body = op.record.body
            if body is not None and op.blocks and not op.record.is_isolated:
                (self._loop if body.is_loop else self._choice)(op, body)
                continue
            for value in op.results:
                if _is_integer(value):
                    self._set(value, self._range_of(op, value))

    def _set(self, value: Value, found: Interval) -> None:
        if _is_integer(value):
            is_open = value in self._memory and value.type.dtype in self.wide
            self._ranges[value] = type_range(value.type.dtype) if is_open else found

    def _choice(self, op: Op, body: Body) -> None:
        for block in op.blocks:
            for number, value in enumerate(block.args):
                self._meet(value, body.entering(op, number))
            self._walk(block)
        for value in op.results:
            self._meet(value, body.leaving(op, value.index))

    def _meet(self, value: Value, sources: Sequence[Value] | None) -> None:
        if _is_integer(value) and sources:
            self._set(value, _union(map(self.range, sources)))

    def _loop(self, op: Op, body: Body) -> None:
        """Analyses a loop's block repeatedly, widening the intervals of carried values until they
        are stable.

        An interval that it leaves widens, to what 32 bits hold and then to what its type holds.
        """
        (block,) = op.blocks
        for value in block.args[: len(body.given)]:
            self._set(value, (0, _MOST))
        carried = [v for v in block.args[len(body.given) :] if _is_integer(v)]
        yielded = {v: _yielded(op, body, v.index - len(body.given)) for v in carried}
        found = {v: self._entering(op, body, v) for v in carried}
        counters = {v: c for v in carried if (c := self._counter(op, body, v)) is not None}
        found.update(counters)
        for turn in count(1):
            for value in carried:
                self._set(value, found[value])
            self._walk(block)
            left = [
                v
                for v in carried
                if v not in counters and not _within(self.range(yielded[v]), found[v])
            ]
            if not left:
                break
            for value in left if turn < _TURNS else set(carried) - set(counters):
                wider = _union([found[value], word(value)])
                is_last = turn >= _TURNS or found[value] == wider or not self.fits(value)
                found[value] = type_range(value.type.dtype) if is_last else wider
        for value, interval in counters.items():
            self._set(yielded[value], interval)
        self._leave(op, body, found)

    def _leave(self, op: Op, body: Body, found: Mapping[Value, Interval]) -> None:
        """Sets the intervals of a loop's results, given those of its carried values."""
        carried = op.blocks[0].args[len(body.given) :]
        for value in filter(_is_integer, op.results):
            if value.index < len(carried):
                self._set(value, found[carried[value.index]])
            else:
                row = self.range(_yielded(op, body, value.index))
                self._set(value, _union([row, (0, 0)]))  # rows of runs that did not happen

    def _entering(self, op: Op, body: Body, argument: Value) -> Interval:
        value = op.operands[body.first + argument.index - len(body.given)]
        assert value is not None
        return self.range(value)

    def _counter(self, op: Op, body: Body, argument: Value) -> Interval | None:
        """The interval of a carried value to which each iteration adds a loop-invariant number;
        None for other values, and where its type may overflow."""
        made = _yielded(op, body, argument.index - len(body.given)).op
        if made is None or made.name not in ("add", "sub") or argument.type.dtype not in self.wide:
            return None
        first, second = made.operands
        assert first is not None and second is not None
        if first is not argument and (second is not argument or made.name == "sub"):
            return None
        step = second if first is argument else first
        if step.op is not None and isinstance(step.op.attrs.get("value"), ConstantData):
            added = self._range_of(step.op, step)
        elif step not in self._ranges or step in _values_of(op):
            return None
        else:
            added = self.range(step)
        low, high = _negated(added) if made.name == "sub" else added
        runs = op.attrs["trips"]
        if not isinstance(runs, int) or runs < 0:
            runs = (most_runs(op) if op.operands[0] is None else None) or _MOST
        start = self._entering(op, body, argument)
        found = (start[0] + runs * min(low, 0), start[1] + runs * max(high, 0))
        return found if _within(found, type_range(argument.type.dtype)) else None

    # ops

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
            return _union([(0, 0)] if not known.size else map(self._range_of_dim, known.flat))
        if op.record.container:
            return _union(
                self.range(v)
                for v in op.operands
                if v is not None and v.type.dtype is value.type.dtype
            )
        if op.record.kind is Kind.STRUCTURE:
            return None
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

    def _range_of_dim(self, dim: Any) -> Interval:
        """The interval of a dim; tensor extents fit 32 bits."""
        if not isinstance(dim, DimExpr):
            return int(dim), int(dim)
        if dim in self._extents:
            return 0, _MOST
        limits: dict[str, tuple[int | None, int | None]] = {}
        for name in symbols(dim):
            low, high = self._bounds.get(name, (0, None))
            limits[name] = low or 0, _MOST if high is None else min(high, _MOST)
        low, high = bounds(dim, limits)
        widest = type_range(DType.I64)
        return widest[0] - 1 if low is None else low, widest[1] + 1 if high is None else high

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
        """An upper bound of the sum of the magnitudes of all elements."""
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
        first, steps = self._range_of_dim(start), self._range_of_dim(step)
        last = max(self._range_of_dim(size)[1] - 1, 0)
        return _union([first, _sum(first, _product(steps, (0, last)))])


def _yielded(op: Op, body: Body, number: int) -> Value:
    """The value that a loop's block yields as carried or stacked value `number`."""
    end = op.blocks[0].last
    assert end is not None
    value = end.operands[len(body.steering) + number]
    assert value is not None
    return value


def _values_of(op: Op) -> set[Value]:
    """All values that are defined inside the blocks of `op`."""
    found: set[Value] = set()
    for block in op.blocks:
        found.update(block.args)
        for inner in block:
            found.update(inner.results, _values_of(inner))
    return found


def handed_on(op: Op, number: int) -> list[Value] | None:
    """The result and block arguments that receive an operand of control flow, or of a terminator
    inside it; None where none does.
    """
    outer = op.parent.owner if op.record.is_terminator and op.parent is not None else op
    if not isinstance(outer, Op) or outer.record.body is None:
        return None
    body = outer.record.body
    place = number - (body.first if outer is op else len(body.steering))
    if place < 0 or place >= len(outer.results):
        return None
    at = place + len(body.given)
    return [outer.results[place], *(v for block in outer.blocks for v in block.args[at : at + 1])]


class WideOps:
    """The ops and values of a function that must keep the full width of their types.

    Attributes:
        ops: those that may not be narrow, and the constants that they read and nothing else holds.
        borders: arguments and results of control flow that may not be.
    """

    def __init__(
        self, function: Function, wide: Collection[DType], memory: Collection[Value] = ()
    ) -> None:
        """Finds the values that are exact in 32 bits.

        Args:
            wide: the integer types that the target lacks.
            memory: values that are states, or that something writes in place.
        """
        self.wide = frozenset(wide)
        self._found = IntegerRanges(function, wide, memory)
        self._order = list(control_ops(function))
        self._exact: set[Value] = set()
        is_new = True
        while is_new:
            is_new = False
            for op in reversed(self._order):
                is_new |= self._demand(op)
        self.borders = {v for op in self._order for v in self._wide_borders(op)}
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

    def fits(self, value: Value) -> bool:
        """Whether all elements fit 32 bits."""
        return self._found.fits(value)

    # uses

    def _demand(self, op: Op) -> bool:
        """Marks operands that must be exact; returns whether one is newly marked."""
        of_results = not self._exact.isdisjoint(op.results)
        found = {
            value
            for number, value in enumerate(op.operands)
            if value is not None
            and value.type.dtype in self.wide
            and self._uses_all(op, number, of_results)
        }
        is_new = not found <= self._exact
        self._exact |= found
        return is_new

    def _uses_all(self, op: Op, number: int, of_results: bool) -> bool:
        if self._is_index(op, number):
            return False
        if op.record.kind in _MOVES or op.name in _LOW or op.record.container:
            return of_results
        if op.name == "cast":
            to = op.result.type.dtype
            return of_results if to in self.wide else not to.is_integer
        if op.name == "scan":
            return of_results or op.attrs["combine"] != "sum"
        becomes = handed_on(op, number)
        return becomes is None or not self._exact.isdisjoint(becomes)

    def _is_index(self, op: Op, number: int) -> bool:
        names = [o.name for o in op.record.operands]
        return names[min(number, len(names) - 1)] in _INDICES if names else False

    def _wide_borders(self, op: Op) -> list[Value]:
        """The results of an `if` or `loop` that must stay wide, with the block arguments that carry
        them: they must be exact and may not fit 32 bits."""
        body = op.record.body
        if body is None or not op.blocks or op.record.is_isolated:
            return []
        found: list[Value] = []
        for result in op.results:
            at = result.index + len(body.given)
            group = [result, *(v for block in op.blocks for v in block.args[at : at + 1])]
            if not all(map(self.fits, group)) and not self._exact.isdisjoint(group):
                found += group
        return found

    # decisions

    def _may_be_narrow(self, op: Op, strict: Collection[Value]) -> bool:
        operands = [v for v in op.operands if v is not None and v.type.dtype in self.wide]
        results = [v for v in op.results if v.type.dtype in self.wide]
        if not (operands or results) or op.record.kind is Kind.STRUCTURE:
            return True
        if op.record.kind is Kind.SHAPE:
            return op.name != "dim_values" or self.fits(op.result) or op.result not in self._exact
        has_low = op.record.kind in _MOVES or op.name in _LOW
        has_low = has_low or (op.name == "scan" and op.attrs["combine"] == "sum")
        if op.name == "cast" and operands:
            to = op.result.type.dtype
            has_low = to.is_integer
        if has_low and not any(map(self._is_large_constant, operands)):
            return all(self.fits(v) or v not in self._exact for v in results)
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
        """Whether a narrow op must saturate this operand to 32 bits, as it is a limit."""
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
    """Whether `op` treats a number beyond the narrow type like that type's largest number."""
    return op.record.operands[min(number, len(op.record.operands) - 1)].clamps
