"""narrow-arithmetic: computes f32 products in f16, under `--arithmetic fp16`.

A target that has vectors of f16 multiplies twice as many numbers at a time as in f32.

Requires: layouts are assigned, algorithms chosen, no shape change is pending; weights aren't packed
    and no region is formed yet. The target computes in f16.
Ensures: with arithmetic fp16, a `conv` or `matmul` of floats has operands and a result of f16 and
    `half_sums`, but for those listed below; so do ops between two of them have f16, if they move or
    compare elements, add or multiply, or are means, whose sums are in f32. Counts the multiply-adds
    in f16 and the others.
Never: changes what is computed by other functions (roots, exponentials, norms, softmax), which stay
    f32, nor elementwise arithmetic whose result no such product reads: what ends in an
    output keeps its bits there. Nor convolutions for which Winograd's algorithm in f32 costs less;
    products whose constants f16 can't hold, or that are squared, as in power spectra; and those of
    fewer columns than a vector has, which would gain nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aot.analysis.control import control_ops
from aot.analysis.cost.plan import lanes_of
from aot.analysis.cost.tile_costs import call_cost
from aot.analysis.half import f16_range_issue
from aot.ir.builtin import CONSTANT
from aot.ir.contraction import ContractionDims
from aot.ir.graph import Attr, ConstantData, Function, Module, Op, Value
from aot.ir.record import Kind, call_of, contraction_of
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import DType, TensorType
from aot.ops import elementwise as ew
from aot.ops.contraction import CONV, MATMUL
from aot.ops.layout_rules import estimated
from aot.ops.pooling import AVERAGE_POOL, MAX_POOL
from aot.ops.reduction import REDUCE_MAX, REDUCE_MEAN
from aot.passes.base import Pass, PassContext
from aot.passes.quantise.narrow_storage import is_kept
from aot.target.model import Target

NAME = "narrow-arithmetic"
F32, F16 = DType.F32, DType.F16
# what has no larger error in f16 than rounding its operands and its result; means are summed in f32
_EXACT_ENOUGH = (
    *(ew.NEG, ew.ABS, ew.RELU, ew.HARD_SWISH, ew.ADD, ew.SUB, ew.MUL),
    *(ew.MINIMUM, ew.MAXIMUM, ew.WHERE, MAX_POOL, AVERAGE_POOL),
    *(REDUCE_MEAN, REDUCE_MAX),
)


def run(module: Module, context: PassContext) -> None:
    target = context.target
    if context.options.arithmetic != "fp16" or target is None:
        return
    for function in module.entry_points:
        for key, amount in _Narrowing(function, target).run().items():
            context.count(NAME, key, amount)


class _Narrowing:
    """Rewrites the ops of one function to f16.

    Attributes:
        halves: what stands for a value in f16, where there is something; None where it is wanted.
    """

    def __init__(self, function: Function, target: Target) -> None:
        self.function = function
        self.target = target
        self.products = [op for op in control_ops(function) if self._is_product(op)]
        self.halves: dict[Value, Value] = {}
        self.around = self._between()

    def run(self) -> dict[str, int]:
        """Narrows ops where allowed; returns the counts of multiply-adds in f16 and in total."""
        total = narrowed = 0
        chosen = dict.fromkeys(self.products)
        for op in list(control_ops(self.function)):
            dims = contraction_of(op)
            if dims is not None:
                total += _multiply_adds(dims)
                narrowed += _multiply_adds(dims) if op in chosen else 0
            if op in chosen or op in self.around:
                self._narrow(op, half_sums=op in chosen)
        return {"multiply_adds": total, "multiply_adds_in_f16": narrowed}

    def _is_product(self, op: Op) -> bool:
        dims = contraction_of(op)
        if dims is None or op.record not in (CONV, MATMUL):
            return False
        if op.result.type.dtype not in (F32, F16) or _is_squared(op.result):
            return False
        columns, lanes = dims.n, lanes_of(self.target, F16.bytes)
        if not dims.is_depthwise and isinstance(columns, int) and columns < lanes:
            return False
        operands = [v for v in op.operands if v is not None]
        return all(map(_fits, operands)) and not self._prefers_winograd(op)

    def _prefers_winograd(self, op: Op) -> bool:
        if op.attrs.get("algorithm") != "winograd":
            return False
        call = call_of(op)
        half = tuple(None if t is None else t.with_dtype(F16) for t in call.operands)
        results = tuple(t.with_dtype(F16) for t in call.result_types)
        direct = replace(call, operands=half, result_types=results, attrs=_in_half(op))
        return call_cost(call, self.target) < call_cost(direct, self.target)

    def _between(self) -> dict[Op, None]:
        """The ops between products that should be f16: some operand is f16, and some product reads
        the result."""
        made = {op.result for op in self.products}
        able: list[Op] = []
        for op in control_ops(self.function):
            if len(op.results) == 1 and _may_narrow(op) and self._reads(op, made):
                made.add(op.result)
                able.append(op)
        wanted = {v for op in self.products for v in op.operands}
        found: dict[Op, None] = {}
        for op in reversed(able):
            if op.result in wanted:
                found[op] = None
                wanted.update(op.operands)
        return found

    @staticmethod
    def _reads(op: Op, made: set[Value]) -> bool:
        floats = [v for v in op.operands if v is not None and v.type.dtype is F32]
        return any(v in made for v in floats) and all(map(_fits, floats))

    def _narrow(self, op: Op, *, half_sums: bool) -> None:
        """Recreates `op` in f16; users see its result in f32."""
        rewriter = Rewriter(self.function).at(op)
        operands = [None if v is None else self._half(v, rewriter) for v in op.operands]
        attrs = _in_half(op) if half_sums else op.attrs
        old = op.result
        type = old.type.with_dtype(F16)
        fresh = rewriter.insert(Op(op.record, operands, attrs, [type], (), op.origin)).result
        fresh.name, old.name = old.name, ""
        wide = fresh if old.type == type else _cast(rewriter, fresh, F32)
        self.halves[wide] = fresh
        rewriter.replace_op(op, [wide])

    def _half(self, value: Value, rewriter: Rewriter) -> Value:
        """`value` cast to f16, if it is a float."""
        if value.type.dtype is not F32:
            return value
        if value in self.halves:
            return self.halves[value]
        op = value.op
        if op is None or op.record is not CONSTANT:
            return _cast(rewriter, value, F16)
        data = op.attrs["value"]
        assert isinstance(data, ConstantData)
        with np.errstate(all="ignore"):  # what is below f16 becomes 0
            array = data.array.astype(np.float16)
        return insert_constant(rewriter, ConstantData(array, data.type.with_dtype(F16)), op.origin)


def _in_half(op: Op) -> dict[str, Attr]:
    attrs: dict[str, Attr] = {**op.attrs, "half_sums": True}
    return {**attrs, "algorithm": "direct"} if "algorithm" in attrs else attrs


def _cast(rewriter: Rewriter, value: Value, to: DType) -> Value:
    type: TensorType = value.type.with_dtype(to)
    attrs: dict[str, Attr] = {"to": to, "clamps": to is F16}
    return rewriter.insert(Op(ew.CAST, [value], attrs, [type])).result


def _may_narrow(op: Op) -> bool:
    """Whether an f32 op is as accurate in f16, given f16 operands."""
    if op.result.type.dtype is not F32 or op.record.writes or op.blocks:
        return False
    if op.record is ew.MUL and op.operands[0] is op.operands[1]:
        return False
    moves = op.record.kind in (Kind.MOVEMENT, Kind.VIEW)
    takes = all(F16 in o.dtypes for o in op.record.operands if F32 in o.dtypes)
    return (moves or op.record in _EXACT_ENOUGH) and takes and all(map(is_kept, op.attrs.values()))


def _is_constant(value: Value) -> bool:
    return value.op is not None and value.op.record is CONSTANT


def _fits(value: Value) -> bool:
    """Whether f16 holds a value's range, as far as known."""
    if not _is_constant(value) or value.type.dtype is not F32:
        return True
    assert value.op is not None
    data = value.op.attrs["value"]
    assert isinstance(data, ConstantData)
    return not f16_range_issue(data.array)


def _is_squared(value: Value) -> bool:
    """Whether some user squares the value, which may then exceed f16's range at either end."""
    for op, _ in value.uses:
        if op.record is ew.POW or (op.record is ew.MUL and op.operands[0] is op.operands[1]):
            return True
        is_moved = op.record.kind in (Kind.MOVEMENT, Kind.VIEW) and len(op.results) == 1
        if is_moved and not op.record.writes and _is_squared(op.result):
            return True
    return False


def _multiply_adds(dims: ContractionDims) -> int:
    amount = 1
    for extent in (*dims.result.dims, dims.k):
        amount *= max(1, estimated(extent))
    return amount


NARROW_ARITHMETIC = Pass(NAME, run, __doc__)
