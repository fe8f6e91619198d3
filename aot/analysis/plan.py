"""How an op would run on a target: schedule class, tiles, packing, scratch, cost.

The one place that answers it: a pure function of op, dims and target. Passes ask it when they pack
and fuse; kernels obey its answer. Changes nothing and looks at no neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aot.ir.dims import Dim
from aot.ir.types import Layout, TensorType
from aot.ops.record import Call, Kind
from aot.target import Target


class Schedule(Enum):
    """Schedule classes, one lowering each in aot/kernels.

    ELEMENTWISE: lanes along the innermost result dim.
    REDUCTION: reductions hoisted to where their inputs are known; lanes along the reduced dim or
        the innermost result dim, whichever is contiguous.
    CONTRACTION: register tiles of outer products, lanes along the weights' outputs.
    RECURRENCE: a loop over steps, lanes along the gates.
    LINES: each lane goes along a line of elements in order.
    """

    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    RECURRENCE = "recurrence"
    LINES = "lines"


@dataclass(frozen=True)
class Plan:
    """Attributes:
    lanes: elements that run side by side: SIMD lanes on a CPU, invocations on a GPU.
    rows, columns: register tile of a contraction (columns are lanes times vectors).
    weight: operand that wants `weight_layout`, or -1.
    flops: arithmetic operations of one run where dims are known, else 0.
    """

    schedule: Schedule
    lanes: int
    rows: int = 1
    columns: int = 1
    weight: int = -1
    weight_layout: Layout | None = None
    flops: int = 0


def lanes_of(target: Target, element_bytes: int) -> int:
    """Lanes of one loop: a vector register's elements, or a GPU workgroup's invocations."""
    if target.vulkan is not None:
        return target.vulkan.lanes
    return max(1, target.vector_bytes // element_bytes)


def plan(call: Call, target: Target) -> Plan:
    """The plan for one op; for a fused region, of its root op."""
    kind = call.record.kind
    if kind is Kind.CONTRACTION:
        return _plan_contraction(call, target)
    lanes = lanes_of(
        target, min((t.dtype.bytes for t in call.result_types if t.dtype.bytes >= 4), default=4)
    )
    if kind is Kind.RECURRENCE:
        return Plan(Schedule.RECURRENCE, lanes)
    if kind in (Kind.SCAN, Kind.SCATTER):
        return Plan(Schedule.LINES, lanes)
    if kind is Kind.SORT:
        # lines that take different branches gain nothing from a CPU's vectors
        return Plan(Schedule.LINES, lanes if target.vulkan is not None else 1)
    if kind is Kind.REDUCTION:
        return Plan(Schedule.REDUCTION, lanes)
    return Plan(Schedule.ELEMENTWISE, lanes)


def weight_layouts(call: Call, target: Target) -> dict[int, Layout]:
    """The layout that each constant operand should be packed to: panels `[n/P][k][P]`."""
    made = plan(call, target)
    if made.schedule is Schedule.RECURRENCE:
        return _gate_layouts(call, target)
    if made.weight_layout is None:
        return {}
    return {made.weight: made.weight_layout}


def _plan_contraction(call: Call, target: Target) -> Plan:
    lanes = lanes_of(target, call.operand(0).dtype.bytes)
    is_conv = "group" in call.attrs
    weight = call.operand(1)
    output = call.result_types[0]
    if is_conv:
        group = call.int("group")
        columns_total: Dim = weight.dims[0]
        per_group = columns_total // group if isinstance(columns_total, int) else columns_total
        if group != 1:
            # a panel must not straddle groups, and a depthwise one has a single column
            return Plan(Schedule.REDUCTION, lanes, flops=_flops(call))
        layout = _panel_layout(weight, 0, target.panel)
        rows_total: Dim = output.dims[-1]
        if all(k == 1 for k in weight.dims[2:]):
            for extent in output.dims[2:-1]:
                rows_total = rows_total * extent
        columns_total = per_group
    else:
        layout = _panel_layout(weight, weight.rank - 1, target.panel)
        columns_total = weight.dims[-1]
        rows_total = output.dims[-2]
        if weight.rank == 2:
            for extent in output.dims[:-2]:
                rows_total = rows_total * extent
    rows, columns = _tile(target, lanes, rows_total, columns_total)
    return Plan(Schedule.CONTRACTION, lanes, rows, columns, 1, layout, _flops(call))


def _flops(call: Call) -> int:
    weight, output = call.operand(1), call.result_types[0]
    if not (weight.is_static and output.is_static):
        return 0
    total = 2
    for extent in output.shape:
        total *= extent
    if "group" in call.attrs:
        for extent in weight.shape[1:]:
            total *= extent
    else:
        total *= weight.shape[-2]
    return total


def _panel_layout(weight: TensorType, dim: int, panel: int) -> Layout:
    """Panels of `panel` columns outermost, then the reduced dims (taps before channels)."""
    if dim == 0:  # conv: [O, C, taps...] -> [O/P][taps...][C][P]
        return Layout(((0, panel),), (0, *range(2, weight.rank), 1, weight.rank))
    # matmul: [batch..., K, N] -> [batch...][N/P][K][P]
    return Layout(((dim, panel),), (*range(dim - 1), dim, dim - 1, weight.rank))


def _gate_layouts(call: Call, target: Target) -> dict[int, Layout]:
    """W [D, 4H, I] and R [D, 4H, H] -> [D][4H/P][I][P]."""
    layout = Layout(((1, target.panel),))
    return {1: layout, 2: layout}


def _tile(target: Target, lanes: int, rows_total: Dim, columns_total: Dim) -> tuple[int, int]:
    """Rows and columns of the register tile with the most arithmetic per load.

    With r rows and v vectors of columns, a step of k loads r scalars and v vectors for r*v
    multiply-adds, and needs r*v + v + 1 registers.
    """
    if target.vulkan is not None:
        return min(4, rows_total) if isinstance(rows_total, int) else 4, target.vulkan.lanes
    best, best_score = (1, max(lanes, target.panel)), 0.0
    for columns in (target.panel // 2, target.panel, 2 * target.panel):
        vectors = columns // lanes
        if vectors == 0 or columns % lanes:
            continue
        if isinstance(columns_total, int) and columns > max(columns_total, lanes):
            continue
        for rows in range(1, 15):
            if rows * vectors + vectors + 1 > target.vector_registers:
                break
            if isinstance(rows_total, int) and rows > rows_total:
                break
            score = rows * vectors / (rows + vectors)
            if isinstance(rows_total, int):  # rows past the end are wasted
                tiles = -(-rows_total // rows)
                score *= rows_total / (tiles * rows)
            if isinstance(columns_total, int):
                tiles = -(-columns_total // columns)
                score *= columns_total / (tiles * columns)
            if score > best_score:
                best, best_score = (rows, columns), score
    return best
