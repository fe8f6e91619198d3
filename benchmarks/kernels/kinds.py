"""Which kind of kernel a dispatch has: the lines of the table.

A dispatch is of the kind of the op that is most work in it; what is fused with that is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from aot.analysis.memory.views import memory_order
from aot.analysis.stages import heaviest, stages_of
from aot.ir import dims
from aot.ir.contraction import ContractionDims
from aot.ir.dims import Dim
from aot.ir.expr import TRANSCENDENTAL_OPS, Binary, Reduce, Unary, nodes
from aot.ir.graph import Function, Op
from aot.ir.record import Kind, call_of
from aot.ir.types import DType
from benchmarks.kernels.bounds import work_of_op

# columns or channels that fill less than a vector, on any target
FEW = 8
# how many times as long as wide a matrix is tall
TALL = 4
# taps along an axis of usual depthwise windows, and of windows of sequences
SMALL, LONG = 5, 16
_POOLS = ("max_pool", "average_pool", "max_pool_indices")


def root_of(function: Function, values: Mapping[str, int]) -> Op:
    """The op at the heart of a dispatch: of the heaviest op of each stage, the one that is most
    work."""
    found = [heaviest(stage.ops) for stage in stages_of(function.block, function.results)]
    ranks = {kind: n for n, kind in enumerate(_RANKED)}

    def weight(op: Op) -> tuple[int, float]:
        work = work_of_op(op, values)
        return -ranks.get(op.record.kind, len(ranks)), work.operations + work.scalars

    return max(found, key=weight)


_RANKED = (
    Kind.RECURRENCE,
    Kind.ATTENTION,
    Kind.CONTRACTION,
    Kind.SORT,
    Kind.SCATTER,
    Kind.SCAN,
    Kind.REDUCTION,
)


def dtype_of(op: Op) -> DType:
    """The element type that a kernel is told apart by: the first operand's."""
    return next((v.type.dtype for v in op.operands if v is not None), op.results[0].type.dtype)


def kind_of(function: Function, values: Mapping[str, int]) -> str:
    """The line of the table that an executable at some extents stands in."""
    op = root_of(function, values)
    call = call_of(op)
    made = call.contraction
    if made is not None:
        return _window_kind(made, values) if made.windows else _product_kind(made, values)
    kind = op.record.kind
    if op.name in _POOLS:
        return f"pool {op.name.split('_')[0]}"
    if kind is Kind.REDUCTION:
        return _reduction_kind(op)
    if kind is Kind.ELEMENTWISE:
        is_long = any(map(_is_transcendental, function.block))
        return "elementwise with transcendentals" if is_long else "elementwise"
    if kind is Kind.MOVEMENT:
        return f"movement {op.name}"
    return str(kind.value)


def _number(dim: Dim, values: Mapping[str, int]) -> int:
    return dims.evaluate(dim, values)


def _window_kind(made: ContractionDims, values: Mapping[str, int]) -> str:
    kernel = [_number(w.kernel, values) for w in made.windows]
    columns, channels = _number(made.n, values), _number(made.channels, values)
    if made.is_depthwise:
        return "convolution depthwise" + (" large" if max(kernel) > SMALL else "")
    if _number(made.groups, values) != 1:
        return "convolution grouped"
    if math.prod(kernel) == 1:
        strided = any(w.stride != 1 for w in made.windows)
        few = columns < FEW
        return f"convolution 1x1{' few outputs' if few else ' strided' if strided else ''}"
    if columns < FEW:
        return "convolution few outputs"
    if sum(k > 1 for k in kernel) == 1 and len(kernel) != 3:
        return "convolution 1-D" if max(kernel) < LONG else "convolution 1-D long"
    if channels < FEW:
        return "convolution few channels"
    if any(w.stride != 1 for w in made.windows):
        return "convolution kxk strided"
    return "convolution kxk"


def _product_kind(made: ContractionDims, values: Mapping[str, int]) -> str:
    m, n = _number(made.m, values), _number(made.n, values)
    batched = " batched" if _number(made.batch, values) > 1 else ""
    if m == 1:
        return f"product one row{batched}"
    if m >= TALL * n:
        return f"product tall{batched}"
    if n >= TALL * m:
        return f"product flat{batched}"
    return f"product square{batched}"


def _reduction_kind(op: Op) -> str:
    operand = next(v.type for v in op.operands if v is not None)
    wide = [d for d in memory_order(operand) if operand.dims[d] != 1]
    axes = op.attrs.get("axes", op.attrs.get("axis"))
    reduced = {axes} if isinstance(axes, int) else set(axes) if isinstance(axes, tuple) else set()
    is_last = bool(wide) and wide[-1] in reduced
    where = "innermost axis" if is_last else "outer axis"
    return f"reduction {where}, rank {operand.rank}"


def _is_transcendental(op: Op) -> bool:
    record = op.record
    if record.compute is None:
        return False
    return any(
        isinstance(node, Unary | Binary) and node.op in TRANSCENDENTAL_OPS
        for compute in record.compute(call_of(op))
        for node in nodes(compute.value)
        if not isinstance(node, Reduce)
    )
