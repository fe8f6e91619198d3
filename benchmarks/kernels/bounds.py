"""The least time that a dispatch can take: what its time is compared with.

A bound is the largest of: arithmetic at the machine's peak, bytes at the speed of the cache level
that holds them, what cannot overlap, and a launch. It knows nothing of schedules.

- *Operations* are those of a vector unit for elements of four bytes: a multiply-add is one, as is
  any other operation on numbers, but divisions and square roots, which are slower. Narrower
  elements count less, wider ones more. Transcendentals count as the polynomials that compute them.
  Index arithmetic, comparisons, choices and casts are free, but conversions between integers and
  floats, which are instructions of floats on all machines (cvtdq2ps, scvtf); what is rounded is
  converted by that. A zero point is added to numbers as narrow as the result's, which saturate.
  A convolution counts all taps, those in
  the padding too, and as the direct algorithm has them: Winograd's may do better than its bound.
  Products of bytes are as fast as the target's instructions for them, which are measured too.
- *Bytes* are read or written once, both at the speed of reading, all operands together in the
  smallest level that holds them. What only copies stores as much as it loads: about 2 is good.
- A *recurrence* reads its recurrent weights again in every step, because the next one's input is
  not known before. So its bound has them once a step, at the speed of the level that holds them.
- A *scan* adds one element after the other: a line takes an addition's latency an element, however
  many lines go on side by side.
- A *scatter* does one scalar operation for each update, as positions may be equal; whole rows of
  neighbours are copied, or reduced in vectors.
- A *sort* of lines of n takes n log2 n comparisons for each line, and picking the k first
  n + k log2 k, each of them a scalar operation. Suppression of boxes makes a heap of n at least.
- *Elements that data place*, each elsewhere, are loaded one by one, each a scalar operation: what
  gathers vectors does that inside, on all x86 and Arm cores (uops.info, VGATHERDPS).
- *Attention* takes both products, and for each score a polynomial of exp and four operations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from aot.analysis.launches import count_operations
from aot.errors import UnsupportedError
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.graph import Function, Op
from aot.ir.record import Call, Kind, call_of
from aot.ir.types import DType
from aot.kernels.transcendentals.expansion import expand
from aot.ops.suppression import NON_MAX_SUPPRESSION
from benchmarks.kernels.machine import Peaks

_DIVISIONS = frozenset({"div", "sqrt"})
_BYTES = frozenset({DType.I8, DType.U8})
# of each element data say where it lies
_PLACED = frozenset({"gather_elements", "gather_nd", "grid_sample"})
_NO_WORK = (Kind.STRUCTURE, Kind.VIEW, Kind.SHAPE)


@dataclass(frozen=True)
class Work:
    """What a dispatch must do.

    Attributes:
        operations, divisions: on elements of four bytes, of a vector unit.
        scalars: operations that no vector unit can do side by side.
        chain: additions of which each needs the one before.
        bytes: read or written once.
        products: multiply-adds of bytes.
        again, held: bytes that are read again and again in all, and those of one time.
    """

    operations: float = 0.0
    divisions: float = 0.0
    scalars: float = 0.0
    chain: int = 0
    bytes: int = 0
    again: int = 0
    held: int = 0
    products: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.operations + other.operations,
            self.divisions + other.divisions,
            self.scalars + other.scalars,
            self.chain + other.chain,
            self.bytes + other.bytes,
            self.again + other.again,
            max(self.held, other.held),
            self.products + other.products,
        )


def bound_seconds(work: Work, peaks: Peaks, lanes: int) -> float:
    """The least time of a dispatch, where a vector has `lanes` elements of four bytes."""
    return max(
        work.operations / peaks.operations
        + work.divisions / peaks.divisions
        + work.scalars * lanes / peaks.operations
        + work.products / (peaks.products or peaks.operations),
        work.bytes / peaks.read_speed(work.bytes),
        work.again / peaks.read_speed(work.held),
        work.chain * peaks.latency,
        peaks.launch,
    )


def work_of(function: Function, values: Mapping[str, int], size: int) -> Work:
    """What an executable does at some extents; `size` is what it reads and writes, in bytes."""
    total = Work(bytes=size)
    for op in function.block:
        total += work_of_op(op, values)
    return total


def work_of_op(op: Op, values: Mapping[str, int]) -> Work:
    """The arithmetic of one op, and its share of what is read again."""
    if op.record.kind in _NO_WORK or op.record.is_terminator:
        return Work()
    call = call_of(op)
    own = _OF_KIND.get(op.record.kind)
    if own is not None:
        return own(call, values)
    return _computed(call, values)


def _number(dim: Dim, values: Mapping[str, int]) -> int:
    return dims.evaluate(dim, values)


def _weight(dtype: DType) -> float:
    return max(dtype.bits, 8) / 32


def _contraction(call: Call, values: Mapping[str, int]) -> Work:
    made = call.contraction
    assert made is not None
    terms = _number(made.result.element_count, values) * _number(made.k, values)
    if made.accumulator is DType.I32 and {made.left.dtype, made.right.dtype} <= _BYTES:
        return Work(products=terms)
    return Work(operations=terms * _weight(made.accumulator))


def _computed(call: Call, values: Mapping[str, int]) -> Work:
    """Of an op that says what an element is."""
    if call.record.compute is None:
        return Work()
    found = Work()
    if call.record.name in _PLACED:
        placed = _placed_in_rows if call.record.name == "gather_nd" else _placed
        for compute, type in zip(call.record.compute(call), call.result_types, strict=True):
            extents = dict(zip(compute.indices, type.dims, strict=True))
            loads = _number(count_operations(compute.value, extents, placed), values)
            found += Work(scalars=loads)
    if call.record.kind is Kind.MOVEMENT:
        return found
    for compute, type in zip(call.record.compute(call), call.result_types, strict=True):
        value = _expanded(compute.value)
        extents = dict(zip(compute.indices, type.dims, strict=True))
        narrowed = _narrowed(value)

        def bits(
            e: expr.Expr, narrowed: expr.Expr | None = narrowed, to: DType = value.dtype
        ) -> int:
            return _operations(e) * max((to if e is narrowed else e.dtype).bits, 8)

        def divisions(e: expr.Expr) -> int:
            return _divisions(e) * max(e.dtype.bits, 8)

        counts = (_number(count_operations(value, extents, w), values) for w in (bits, divisions))
        found += Work(*(count / 32 for count in counts))
    return found


def _narrowed(value: expr.Expr) -> expr.Expr | None:
    """What is added to a rounded number before a cast that saturates, if that is all of it."""
    is_narrow = isinstance(value, expr.Cast) and value.dtype.is_integer and value.dtype.bits <= 16
    if not is_narrow or not isinstance(value.a, expr.Binary) or value.a.op != "add":
        return None
    return value.a if _is_rounded(value.a.a) else None


def _is_rounded(e: expr.Expr) -> bool:
    return isinstance(e, expr.Unary) and e.op == "round"


def _placed(e: expr.Expr) -> int:
    return int(isinstance(e, expr.Load) and any(expr.loads(index) for index in e.indices))


def _placed_in_rows(e: expr.Expr) -> int:
    """Not whole rows of neighbours."""
    return int(isinstance(e, expr.Load) and bool(e.indices) and bool(expr.loads(e.indices[-1])))


def _expanded(value: expr.Expr) -> expr.Expr:
    try:
        return expand(value)
    except UnsupportedError:  # of an element type that has no polynomial
        return value


def _operations(e: expr.Expr) -> int:
    if isinstance(e, expr.Reduce):
        # the sum of products is multiply-adds
        return 0 if isinstance(e.body, expr.Binary) and e.body.op == "mul" else 1
    if isinstance(e, expr.Cast):
        return int(_converts(e))
    if isinstance(e, expr.Unary | expr.Binary):
        return int(e.op not in _DIVISIONS and e.op not in expr.COMPARE_OPS)
    return int(isinstance(e, expr.Fma))


def _converts(cast: expr.Cast) -> bool:
    """Whether a cast makes floats of integers, or integers of floats that are not rounded yet."""
    a, b = cast.a.dtype, cast.dtype
    if a.is_float == b.is_float or DType.INDEX in (a, b) or DType.BOOL in (a, b):
        return False
    rounded = cast.a.a if _narrowed(cast) is not None else cast.a  # type: ignore[attr-defined]
    # a scalar, as a zero point is, is converted once
    return bool(expr.free_vars(cast)) and not _is_rounded(rounded)


def _divisions(e: expr.Expr) -> int:
    return int(isinstance(e, expr.Unary | expr.Binary) and e.op in _DIVISIONS)


def cost_of(function: str) -> Work:
    """Of one value of a transcendental in f32."""
    value = _expanded(expr.Unary(function, expr.Load(0, (), DType.F32), DType.F32))
    counts = (
        _number(count_operations(value, {}, weigh), {}) for weigh in (_operations, _divisions)
    )
    return Work(*counts)


def _times(work: Work, count: float) -> Work:
    return replace(work, operations=work.operations * count, divisions=work.divisions * count)


def _attention(call: Call, values: Mapping[str, int]) -> Work:
    q, v = call.operand(0), call.operand(2)
    scores = _number(dims.product([*q.dims[:-1], v.dims[-2]]), values)
    depths = _number(q.dims[-1], values) + _number(v.dims[-1], values)
    return Work(operations=scores * (depths + 4)) + _times(cost_of("exp"), scores)


def _recurrence(call: Call, values: Mapping[str, int]) -> Work:
    """Products with both weights; each gate of each step a sigmoid; recurrent weights a step."""
    steps, batch, _ = (_number(d, values) for d in call.operand(0).dims)
    recurrent = call.operand(2)
    given = call.operand(1).element_count if call.has(1) else 0  # else x is what it would give
    weights = _number(dims.add(given, recurrent.element_count), values)
    held = _number(recurrent.element_count, values) * recurrent.dtype.bytes
    gates = _number(recurrent.dims[0], values) * _number(recurrent.dims[1], values)
    products = Work(operations=steps * batch * weights, again=steps * held, held=held)
    return products + _times(cost_of("sigmoid"), steps * batch * gates)


def _scan(call: Call, values: Mapping[str, int]) -> Work:
    type = call.result_types[0]
    count = _number(type.element_count, values)
    return Work(operations=count * _weight(type.dtype), chain=_axis(call, values))


def _scatter(call: Call, values: Mapping[str, int]) -> Work:
    updates = call.operand(len(call.operands) - 1)
    count = _number(updates.element_count, values)
    if call.record.name == "scatter_nd" and call.int("depth") < call.operand(0).rank:
        is_reduced = call.attrs["reduction"] != "none"
        return Work(operations=is_reduced * count * _weight(updates.dtype))
    return Work(scalars=count)


def _sort(call: Call, values: Mapping[str, int]) -> Work:
    if call.record is NON_MAX_SUPPRESSION:
        # a heap of each line of scores, at least: data decide how many boxes are compared
        return Work(scalars=_number(call.operand(1).element_count, values))
    n = _axis(call, values)
    lines = _number(call.operand(0).element_count, values) / max(n, 1)
    k = min(n, _number(call.dim("k"), values)) if "k" in call.attrs else n
    each = n * math.log2(max(n, 2)) if k == n else n + k * math.log2(max(k, 2))
    return Work(scalars=lines * each)


def _axis(call: Call, values: Mapping[str, int]) -> int:
    return _number(call.operand(0).dims[call.int("axis")], values)


_OF_KIND = {
    Kind.CONTRACTION: _contraction,
    Kind.ATTENTION: _attention,
    Kind.RECURRENCE: _recurrence,
    Kind.SCAN: _scan,
    Kind.SCATTER: _scatter,
    Kind.SORT: _sort,
}
