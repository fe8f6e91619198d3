"""bf16-products: computes products in bf16 where the target has such instructions, accumulating in
f32.

Requires: dtypes are legal for the target; layouts are not assigned and weights not packed yet.
Ensures: on a target with the instruction, a `conv` or `matmul` of f32 is one of bf16 if the
    model's own operands are (`of_bf16`) and its weights are bf16 exactly, or if `--arithmetic bf16`
    asks for it and its weights are known; its left side is rounded to bf16, its result is f32.
    Under the option, counts the multiply-adds in bf16 and the others.
Never: rounds anything of a model in f32 without the option, nor more than the operands of products;
    nor depthwise convolutions, products of fewer columns than half a vector, sums of a single
    term a tap, and convolutions that Winograd's algorithm computes in f32 for less.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aot.analysis.control import control_ops
from aot.analysis.cost import winograd
from aot.analysis.cost.plan import lanes_of
from aot.analysis.cost.tile_costs import call_cost
from aot.ir.contraction import ContractionDims
from aot.ir.graph import Attr, ConstantData, Function, Module, Op, Value
from aot.ir.record import call_of, contraction_of
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import Array, DType
from aot.ops.bf16_contraction import CONV_BF16, MATMUL_BF16
from aot.ops.contraction import CONV, MATMUL
from aot.ops.elementwise import CAST
from aot.ops.layout_rules import estimated
from aot.passes.base import Pass, PassContext
from aot.passes.quantise.factors import cast
from aot.passes.simplify.rewriting import constant_of, definer
from aot.target.model import Target

NAME = "bf16-products"
F32, BF16 = DType.F32, DType.BF16
_RECORDS = {CONV.name: CONV_BF16, MATMUL.name: MATMUL_BF16}
# what a product takes of one in f32
_SHARE = 0.5
_WINDOW = ("strides", "dilations", "pads", "group")


def run(module: Module, context: PassContext) -> None:
    target, is_asked = context.target, context.options.arithmetic == "bf16"
    if target is None or not target.sums_bf16:
        return
    for function in module.functions.values():
        total = rounded = 0
        for op in list(control_ops(function)):
            dims = contraction_of(op)
            if dims is None:
                continue
            amount = _multiply_adds(dims)
            total += amount
            if _as_bf16(function, op, dims, target, context, is_asked=is_asked):
                rounded += amount
        if is_asked:
            context.count(NAME, "multiply_adds", total)
            context.count(NAME, "multiply_adds_in_bf16", rounded)


def _as_bf16(
    function: Function,
    op: Op,
    dims: ContractionDims,
    target: Target,
    context: PassContext,
    *,
    is_asked: bool,
) -> bool:
    """Rewrites one contraction to bf16; returns False if it stays."""
    if op.name not in _RECORDS or op.result.type.dtype is not F32:
        return False
    if not (is_asked or op.attrs["of_bf16"]) or not _gains(dims, target):
        return False
    if context.options.winograd and _prefers_winograd(op, target):
        return False
    rewriter = Rewriter(function).at(op)
    right = _weights(op, op.operands[1], rewriter, may_round=is_asked)
    left = op.operands[0]
    if right is None or left is None:
        return False
    inner = definer(left, CAST)
    source = None if inner is None else inner.operands[0]
    if source is None or source.type.dtype is not BF16:
        source = cast(op, rewriter, left, BF16)
    others = op.operands[2:]
    attrs: dict[str, Attr] = {k: v for k, v in op.attrs.items() if k in _WINDOW}
    made = rewriter.create(_RECORDS[op.name], [source, right, *others], attrs, op.origin)
    made.result.name, op.result.name = op.result.name, ""
    rewriter.replace_op(op, [made.result])
    return True


def _gains(dims: ContractionDims, target: Target) -> bool:
    columns, channels = dims.n, dims.channels
    if dims.is_depthwise or not isinstance(channels, int) or channels < 2 or dims.right.batch:
        return False
    return not isinstance(columns, int) or columns >= lanes_of(target, F32.bytes) // 2


def _prefers_winograd(op: Op, target: Target) -> bool:
    if op.record is not CONV:
        return False
    direct = call_of(op)
    other = replace(direct, attrs={**direct.attrs, "algorithm": "winograd"})
    if not winograd.fits(other, target):
        return False
    return _SHARE * call_cost(direct, target) > call_cost(other, target)


def _weights(op: Op, value: Value | None, rewriter: Rewriter, *, may_round: bool) -> Value | None:
    """Constant weights in bf16; None if they are unknown, or not exact in bf16 and `may_round` is
    false."""
    inner = definer(value, CAST)
    source = None if inner is None else inner.operands[0]
    if source is not None and source.type.dtype is BF16 and constant_of(source) is not None:
        return source
    data = constant_of(value)
    if data is None:
        return None
    with np.errstate(all="ignore"):
        array: Array = data.array.astype(BF16.numpy)
    if not may_round and not np.array_equal(array.astype(np.float32), data.array, equal_nan=True):
        return None
    return insert_constant(rewriter, ConstantData(array, data.type.with_dtype(BF16)), op.origin)


def _multiply_adds(dims: ContractionDims) -> int:
    amount = 1
    for extent in (*dims.result.dims, dims.k):
        amount *= max(1, estimated(extent))
    return amount


BF16_PRODUCTS = Pass(NAME, run, __doc__)
