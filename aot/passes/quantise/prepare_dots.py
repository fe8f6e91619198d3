"""prepare-dots: adapts the operands of integer contractions to the target's dot products.

Requires: dtypes are legal for the target; layouts are not assigned and weights not packed yet.
Ensures: where an instruction multiplies bytes of the other sign by the weights' than the left side
    has, that is moved by 128 into the other dtype, and what this adds to each sum is taken off
    again by a constant; a convolution of few channels has whole groups of them, with weights of 0
    for those behind its own, and an image that has its padding; what the target's kernel relies on
    of the weights is known. On a GPU whose subgroups multiply matrices of signed bytes, the left
    sides of contractions that are such are moved as well.
Never: changes a result, or weights that are not known.
"""

from __future__ import annotations

import numpy as np

from aot.analysis.control import control_ops
from aot.analysis.cost.gpu_matrices import MatrixExtents, matrix_tile
from aot.analysis.cost.plan import lanes_of
from aot.ir.contraction import MOST_NARROW, has_narrow_products
from aot.ir.dims import modulo
from aot.ir.graph import Attr, Function, Module, Op, Value
from aot.ir.record import contraction_of
from aot.ir.rewriter import Rewriter
from aot.ir.schedule import DOT_GROUP
from aot.ir.types import Array, DType
from aot.ops.blocked import MATMUL_BLOCKED
from aot.ops.elementwise import ADD, MUL, SUB
from aot.ops.integer_contraction import CONV_INTEGER, MATMUL_INTEGER, MAX_WEIGHT
from aot.ops.movement import PAD
from aot.passes.base import Pass, PassContext
from aot.passes.quantise.block_weights import with_bytes
from aot.passes.quantise.computed_columns import summed
from aot.passes.quantise.factors import add_number, cast, constant
from aot.passes.simplify.rewriting import constant_of
from aot.target.model import Target

NAME = "prepare-dots"
# channels from which on others up to a whole group are few beside them
FEW_CHANNELS = 16
_OTHER_SIGN = {DType.U8: (DType.I8, 128), DType.I8: (DType.U8, -128)}


def run(module: Module, context: PassContext) -> None:
    if context.target is None:
        return
    if context.target.has_workgroups:
        _prepare_matrices(module, context.target)
        return
    has_vectors = lanes_of(context.target, DType.F32.bytes) > 1
    for function in module.functions.values():
        for op in list(control_ops(function)):
            if op.record is MATMUL_BLOCKED and op.attrs["may_quantize"] and has_vectors:
                rewriter = Rewriter(function).at(op)
                made = with_bytes(op, rewriter)
                if made is not None:
                    rewriter.replace_op(op, [made])
            if op.record in (CONV_INTEGER, MATMUL_INTEGER):
                prepare(function, op, context.target)


def prepare(function: Function, op: Op, target: Target) -> None:
    """Adapts the operands of one contraction to the target's dot products."""
    dims = contraction_of(op)
    data = constant_of(op.operands[1])
    if dims is None or dims.is_depthwise or dims.right.dtype is not DType.I8:
        return
    if data is None:
        _prepare_computed(Rewriter(function).at(op), op, target)
        return
    rewriter = Rewriter(function).at(op)
    x, weights = op.operands[0], data.logical
    assert x is not None
    channels = dims.channels
    is_whole = op.record is CONV_INTEGER and dims.groups == 1
    attrs = dict(op.attrs)
    if is_whole and isinstance(channels, int) and channels < FEW_CHANNELS and channels % DOT_GROUP:
        x, weights = _in_groups(op, rewriter, x, weights, attrs)
    distance = 0
    max_weight = max(abs(int(weights.min(initial=0))), int(weights.max(initial=0)))
    wanted = _wanted(x.type.dtype, max_weight, target)
    if wanted is not x.type.dtype:
        _, distance = _OTHER_SIGN[x.type.dtype]
        x = _moved(op, rewriter, x, wanted, distance)
    attrs["max_weight"] = _relied_on(wanted, max_weight, target)
    if x is op.operands[0]:
        if attrs != dict(op.attrs):
            rewriter.replace_op(
                op, rewriter.create(op.record, op.operands, attrs, op.origin).results
            )
        return
    _replace(op, rewriter, x, weights, distance, attrs)


def _prepare_matrices(module: Module, target: Target) -> None:
    """Converts unsigned left sides to signed where a GPU's matrix instructions multiply signed
    bytes."""
    for function in module.functions.values():
        for op in list(control_ops(function)):
            data = constant_of(op.operands[1]) if len(op.operands) > 1 else None
            x = op.operands[0] if op.record in (CONV_INTEGER, MATMUL_INTEGER) else None
            if x is None or data is None or x.type.dtype is not DType.U8:
                continue
            if _is_of_matrices(op, target):
                rewriter, (wanted, distance) = Rewriter(function).at(op), _OTHER_SIGN[DType.U8]
                moved = _moved(op, rewriter, x, wanted, distance)
                _replace(op, rewriter, moved, data.logical, distance, dict(op.attrs))


def _is_of_matrices(op: Op, target: Target) -> bool:
    """Whether subgroup matrix instructions compute a contraction, given a left side of signed
    bytes."""
    dims, gpu = contraction_of(op), target.gpu
    if dims is None or gpu is None or dims.groups != 1 or dims.right.dtype is not DType.I8:
        return False
    bytes_by_bytes = (m for m in gpu.matrices if m.left is m.right is DType.I8)
    shape = next((m for m in bytes_by_bytes if modulo(dims.channels, m.terms) == 0), None)
    if shape is None:
        return False
    extents = MatrixExtents(dims.m, dims.n, 1, dims.channels)
    return matrix_tile(shape, gpu, gpu.lanes, extents) is not None


def _prepare_computed(rewriter: Rewriter, op: Op, target: Target) -> None:
    """Converts the left side of a product whose right side is computed to the dtype that the
    target's instructions take."""
    x, right = op.operands[:2]
    assert x is not None and right is not None
    wanted = _wanted(x.type.dtype, int(MAX_WEIGHT.default), target)
    if op.record is not MATMUL_INTEGER or wanted is x.type.dtype:
        return
    _, distance = _OTHER_SIGN[x.type.dtype]
    left = _moved(op, rewriter, x, wanted, distance)
    made = rewriter.create(op.record, [left, right], op.attrs, op.origin).result
    sums = summed(op, rewriter, right, right.type.rank - 2)
    away = constant(op, rewriter, np.asarray(distance, np.int32))
    term = rewriter.create(MUL, [sums, away], {}, op.origin).result
    rewriter.replace_op(op, rewriter.create(ADD, [made, term], {}, op.origin).results)


def _wanted(dtype: DType, max_weight: int, target: Target) -> DType:
    """The dtype in which the target's instructions take the left side; its own if they take
    that."""
    found = [dtype, *(other for other, _ in [_OTHER_SIGN[dtype]])] if dtype in _OTHER_SIGN else []
    for one in found:
        if target.sums_bytes(one, DType.I8):
            return one
    for one in found:
        if target.sums_narrow_bytes(one, DType.I8) and has_narrow_products(one, max_weight):
            return one
    return dtype


def _relied_on(dtype: DType, max_weight: int, target: Target) -> int:
    """The bound on weights that a target's kernel relies on, in few steps, so that executables
    differ less.
    """
    is_asked = target.sums_narrow_bytes(dtype, DType.I8) and has_narrow_products(dtype, max_weight)
    return MOST_NARROW[dtype] if is_asked else int(MAX_WEIGHT.default)


def _in_groups(
    op: Op, rewriter: Rewriter, x: Value, weights: Array, attrs: dict[str, Attr]
) -> tuple[Value, Array]:
    """Pads both sides with zero-weight channels to whole groups, and the image with its spatial
    padding, which moves out of `attrs`, so that windows need no guards."""
    dims = contraction_of(op)
    assert dims is not None
    rank = x.type.rank
    more = -weights.shape[1] % DOT_GROUP
    pads = op.attrs["pads"]
    assert isinstance(pads, tuple)
    half = len(pads) // 2
    around = (0, 0, *pads[:half], 0, more, *pads[half:])
    attrs["pads"] = (0,) * len(pads)
    given: dict[str, Attr] = {"pads": around, "value": float(dims.pad_value)}
    padded = rewriter.create(PAD, [x], given, op.origin).result
    ends = [(0, more if d == 1 else 0) for d in range(rank)]
    return padded, np.pad(weights, ends)


def _moved(op: Op, rewriter: Rewriter, x: Value, wanted: DType, distance: int) -> Value:
    """`x - distance` in the wanted dtype, which holds it."""
    wide = cast(op, rewriter, x, DType.I32)
    away = constant(op, rewriter, np.asarray(distance, np.int32))
    return cast(op, rewriter, rewriter.create(SUB, [wide, away], {}, op.origin).result, wanted)


def _replace(
    op: Op, rewriter: Rewriter, x: Value, weights: Array, distance: int, attrs: dict[str, Attr]
) -> None:
    """Replaces a contraction by one of `x`, shifted down by `distance`, and corrects the sums."""
    dims = contraction_of(op)
    assert dims is not None
    column = dims.right.own[0]
    others = tuple(d for d in range(weights.ndim) if d != column)
    sums = weights.astype(np.int64).sum(axis=others if dims.windows else dims.right.summed)
    added = (distance * sums).astype(np.int32)
    operands: list[Value | None] = [x, constant(op, rewriter, weights)]
    if op.record is CONV_INTEGER:
        bias = op.operands[2] if len(op.operands) > 2 else None
        operands.append(add_number(op, rewriter, bias, added) if distance else bias)
        attrs["pad_value"] = int(dims.pad_value) - distance
    made = rewriter.create(op.record, operands, attrs, op.origin).result
    if op.record is MATMUL_INTEGER and distance:
        made = add_number(op, rewriter, made, added[..., None, :])
    rewriter.replace_op(op, [made])


PREPARE_DOTS = Pass(NAME, run, __doc__)
