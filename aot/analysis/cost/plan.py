"""Plans how an op runs on a target: schedule class, tiles, packing, scratch, cost.

The one place that answers it: a pure function of op, dims and target. Passes ask it when they pack
and fuse; kernels obey its answer. Changes nothing and looks at no neighbours.
"""

from __future__ import annotations

from dataclasses import fields, replace

from aot.analysis.cost import winograd
from aot.analysis.cost.across import (
    tile_of_dense_rows,
    tile_of_far_planes,
)
from aot.analysis.cost.attention_tiles import KEYS_AT_ONCE, WIDE_LANES, attention_tile
from aot.analysis.cost.dots import (
    columns_of_tiles_across,
    most_rows,
    multiplies_matrices,
    sums_in_pairs,
    sums_words,
    unpacks_weights,
)
from aot.analysis.cost.few_columns import (
    SUMS,
    has_lanes_along_sum,
    innermost,
    rows_of_sums,
    sums_by_tap,
    sums_last,
    turned_tile,
    turns_rows,
)
from aot.analysis.cost.gpu_tiles import Extents, gpu_tile, staged_tile
from aot.analysis.cost.register_tiles import LANE_DOT_LOADS, RegisterTile, used_share
from aot.analysis.memory.views import memory_order
from aot.base.records import dataclass
from aot.ir.contraction import ContractionDims, Factor
from aot.ir.dims import Dim, modulo, product
from aot.ir.record import Call, Kind
from aot.ir.schedule import Schedule, StageSchedule, word_terms
from aot.ir.types import DType, Layout
from aot.ops.winograd_parts import TRANSFORMS
from aot.target.model import GpuGeometry, Target


@dataclass(frozen=True)
class Plan:
    """The plan for running an op on a target.

    Attributes:
        schedule, lanes, rows, columns, shares, staged: what is recorded of it, see `StageSchedule`.
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
    shares: int = 1
    staged: int = 0

    @property
    def stage(self) -> StageSchedule:
        """The part of the plan that is recorded in an executable, and that its kernel obeys."""
        tile = self.rows, self.columns, self.shares, self.staged
        return StageSchedule(self.schedule, self.lanes, *tile)

    def as_recorded(self, stage: StageSchedule) -> Plan:
        """The plan with the choices recorded in `stage`."""
        kept = {f.name for f in fields(self)} & {f.name for f in fields(stage)}
        return replace(self, **{name: getattr(stage, name) for name in kept})


# heights of the tiles that do what is left of a number of rows that isn't known: low ones waste few
# rows, high ones keep as many sums under way as hide an addition's latency
TAIL_ROWS = 2, 4
# vectors of a tile of a pool whose windows skip neighbours
POOLED_VECTORS = 4
# taps along a window's innermost axis that are written out, so that neighbours share what they load
UNROLLED_TAPS = 7
# vectors that do what is left of a window's lanes without masks
FEW_VECTORS = 4
# registers for masks, a row's word and a product, beside words and codes of each vector of columns,
# where weights are stored in blocks
BLOCKED_REGISTERS = 4
# where so many rows and vectors of columns have their sums in registers twice, as integers of a
# block and as floats of all blocks, none of them goes through memory from block to block
BLOCKED_ROWS, BLOCKED_VECTORS = 4, 2
# the share of the second level of cache that weights of a tile's columns may take to stay there
# beside rows; and rows that multiply them as fast as they come from beyond it
CACHED_SHARE, FAR_ROWS = 0.5, 8


def lanes_of(target: Target, element_bytes: int) -> int:
    """Lanes of one loop: a vector register's elements, or a GPU workgroup's invocations."""
    if target.gpu is not None:
        return target.gpu.lanes
    return max(1, target.vector_bytes // element_bytes)


def plan(call: Call, target: Target) -> Plan:
    """The plan for one op; for a fused region, of its root op."""
    kind = call.record.kind
    contraction = call.contraction
    if contraction is not None:
        return _plan_contraction(call, contraction, target)
    lanes = lanes_of(
        target, min((t.dtype.bytes for t in call.result_types if t.dtype.bytes >= 4), default=4)
    )
    if kind is Kind.RECURRENCE:
        return Plan(Schedule.RECURRENCE, lanes)
    if kind is Kind.ATTENTION:
        return _plan_attention(call, target, lanes)
    if kind in (Kind.SCAN, Kind.SCATTER):
        return Plan(Schedule.LINES, lanes)
    if kind is Kind.SORT:
        # lines that take different branches gain nothing from a CPU's vectors
        return Plan(Schedule.LINES, lanes if target.has_workgroups else 1)
    if target.has_workgroups and call.record in TRANSFORMS:
        return Plan(Schedule.TRANSFORM, lanes)
    if kind is Kind.REDUCTION:
        return Plan(Schedule.REDUCTION, lanes, *_window_tile(call, target, lanes))
    return Plan(Schedule.ELEMENTWISE, lanes)


def weight_layouts(call: Call, target: Target) -> dict[int, Layout]:
    """The packed layout of each constant operand: panels `[n/P][k][P]`."""
    made = plan(call, target)
    if made.schedule is Schedule.RECURRENCE:
        return _gate_layouts(call, target)
    if made.weight_layout is None:
        return {}
    return {made.weight: made.weight_layout}


def _plan_contraction(call: Call, contraction: ContractionDims, target: Target) -> Plan:
    lanes = lanes_of(target, contraction.accumulator.bytes)
    right, flops = contraction.right, _flops(contraction)
    if right.scales is not None:
        return _plan_blocked(contraction, target, lanes, flops)
    if contraction.is_depthwise:
        return _plan_depthwise(call, contraction, target, lanes)
    layout = _panel_layout(right, target.panel)
    is_dotted = sums_words(contraction)
    if winograd.is_wanted(call, target):
        tile = winograd.best_tile(call, target, lanes)
        return Plan(Schedule.WINOGRAD, lanes, *tile, right.operand, layout, flops)
    is_in_rows = contraction.groups != 1 and (
        target.has_workgroups or is_dotted or modulo(contraction.n, target.panel) != 0
    )
    if is_in_rows:
        # a panel must not straddle groups: columns lie side by side instead
        layout = _columns_last(right)
    if is_dotted:
        layout = _in_words(right, layout)
    if _is_line(contraction, target):
        return Plan(Schedule.CONTRACTION, lanes, 1, lanes, right.operand, None, flops)
    if has_lanes_along_rows(contraction, target):
        along, across = contraction.tile_extents
        far = tile_of_far_planes(contraction, target, lanes)
        dense = tile_of_dense_rows(contraction, target, lanes)
        tile = far or dense or RegisterTile(target, lanes, across, along, hides=True).best()
        return Plan(Schedule.PLANES, lanes, *tile, right.operand, layout, flops)
    if (by_tap := sums_by_tap(contraction, target, lanes)) is not None:
        return Plan(Schedule.PLANES, lanes, *by_tap, right.operand, sums_last(right), flops)
    if _is_window_of_planes(contraction, target):
        rows, columns = _window_tile(call, target, lanes)
        return Plan(Schedule.REDUCTION, lanes, rows, columns, right.operand, None, flops)
    if _sums_floats(contraction) and turns_rows(contraction, target, lanes):
        tile = turned_tile(contraction, target, lanes)
        return Plan(Schedule.PLANES, lanes, *tile, right.operand, layout, flops)
    if _sums_floats(contraction) and has_lanes_along_sum(contraction, target, lanes):
        tile = rows_of_sums(target, contraction), lanes // 2
        return Plan(Schedule.INNER, lanes, *tile, right.operand, sums_last(right), flops)
    if target.has_workgroups:
        staged = None if is_dotted else staged_tile(contraction, target, lanes)
        usual = staged or (*gpu_tile(Extents.of(contraction), target, lanes), 0)
        rows, columns, shares, terms = usual
        placed = (rows, columns, right.operand, layout, flops, shares, terms)
        return Plan(Schedule.CONTRACTION, lanes, *placed)
    rows, columns = _tile_of_columns(contraction, target, lanes, is_in_rows=is_in_rows).best()
    return Plan(Schedule.CONTRACTION, lanes, rows, columns, right.operand, layout, flops)


def _tile_of_columns(
    contraction: ContractionDims, target: Target, lanes: int, *, is_in_rows: bool
) -> RegisterTile:
    """The register tile of a contraction on a CPU, with lanes along columns.

    Args:
        is_in_rows: weights are those of groups, with columns side by side.
    """
    is_dotted = sums_words(contraction)
    is_unpacked = unpacks_weights(contraction, target)
    strides = {window.axis: window.stride for window in contraction.windows}
    row_bytes = strides.get(contraction.row_axis, 1) * _row_bytes(contraction.left)
    across = columns_of_tiles_across(contraction, target, lanes, is_dotted=is_dotted)
    return RegisterTile(
        target,
        lanes,
        *contraction.tile_extents,
        row_bytes=0 if is_dotted else row_bytes,
        by_lane=target.multiplies_by_lane and not is_unpacked,
        together=not is_dotted and _has_rows_together(contraction, target),
        slide=None if is_dotted else _slide_of_rows(contraction, target),
        unpacked=is_unpacked,
        in_pairs=is_dotted and sums_in_pairs(contraction, target),
        in_matrices=is_dotted and multiplies_matrices(contraction, target),
        grouped=is_in_rows,
        hides=not is_dotted or contraction.accumulator.is_float,
        loads=LANE_DOT_LOADS if is_dotted and target.multiplies_by_lane else 1.0,
        most=most_rows(contraction, target, is_dotted=is_dotted, across=across),
        across=across,
    )


def _is_line(contraction: ContractionDims, target: Target) -> bool:
    """Whether the right side is a single integer column, which is not packed, as packing would add
    columns.
    """
    is_one = contraction.n == 1 and contraction.groups == 1 and not contraction.windows
    return is_one and not contraction.accumulator.is_float and not target.has_workgroups


def _has_rows_together(contraction: ContractionDims, target: Target) -> bool:
    """Whether the scalars of neighbouring rows are contiguous in the left side's memory, for a
    target that multiplies a vector by a lane of another.
    """
    if not target.multiplies_by_lane or not contraction.accumulator.is_float:
        return False
    strides = {window.axis: window.stride for window in contraction.windows}
    along = contraction.row_axis
    is_alike = contraction.left.dtype is contraction.accumulator
    return is_alike and strides.get(along, 1) == 1 and innermost(contraction.left.type) == along


def _sums_floats(contraction: ContractionDims) -> bool:
    """Whether the product multiplies floats one by one, without words of several terms."""
    return contraction.accumulator.is_float and not sums_words(contraction)


def has_lanes_along_rows(contraction: ContractionDims, target: Target) -> bool:
    """Whether a CPU's vectors hold rows instead of columns: where rows are contiguous in the left
    side's memory, and also in the result's, or columns are few. With taps this does not hold, as
    their neighbours are elsewhere."""
    lanes = lanes_of(target, contraction.accumulator.bytes)
    if target.has_workgroups or lanes == 1 or not _sums_floats(contraction):
        return False
    windows = contraction.windows
    if not windows or contraction.groups != 1 or contraction.is_padded:
        return False
    if not contraction.is_pointwise or any(window.stride != 1 for window in windows):
        return False
    rows = contraction.tile_extents[0]
    if isinstance(rows, int) and rows < lanes:
        return False
    along, columns = contraction.row_axis, contraction.n
    is_narrow = isinstance(columns, int) and columns <= lanes // 2
    if isinstance(columns, int) and lanes // 2 < columns < lanes and target.interleaves:
        channels, most = contraction.channels, (target.vector_registers - 1) // (columns + 1)
        is_narrow = isinstance(channels, int) and channels >= lanes // 2 and most > 1
    is_stored = is_narrow or innermost(contraction.result) == along
    return is_stored and innermost(contraction.left.type) == along


def _slide_of_rows(contraction: ContractionDims, target: Target) -> tuple[int, int] | None:
    """(stride, taps) of strided windows over planes, on targets that multiply by a lane, if the row
    scalars load as one contiguous piece of an image row for all rows of the tile; None for other
    windows.
    """
    if not target.multiplies_by_lane or contraction.accumulator is not DType.F32:
        return None
    found = [w for w in contraction.windows if w.axis == contraction.row_axis]
    if contraction.left.dtype is not DType.F32 or not found or contraction.groups != 1:
        return None
    (window,) = found
    taps = window.kernel
    if innermost(contraction.left.type) != window.axis or window.dilation != 1:
        return None
    if not isinstance(taps, int) or not 2 <= taps <= UNROLLED_TAPS:
        return None
    return (window.stride, taps) if 2 <= window.stride <= taps + 1 else None


def _is_window_of_planes(contraction: ContractionDims, target: Target) -> bool:
    """Whether a convolution with few columns slides over planes as pooling does, one output channel
    at a time, because a vector of columns would be mostly idle.
    """
    lanes = lanes_of(target, contraction.accumulator.bytes)
    if target.has_workgroups or lanes == 1 or not _sums_floats(contraction):
        return False
    columns, windows = contraction.n, contraction.windows
    if contraction.groups != 1 or not isinstance(columns, int) or columns > lanes // 2:
        return False
    if contraction.is_pointwise or not windows or not windows[-1].is_padded:
        return False
    along = contraction.row_axis
    is_plane = innermost(contraction.left.type) == along == windows[-1].axis
    return is_plane and innermost(contraction.result) == along


def _plan_blocked(contraction: ContractionDims, target: Target, lanes: int, flops: int) -> Plan:
    """The plan of a product with block-quantised weights, which have panels of their own."""
    if target.has_workgroups:
        usual = staged_tile(contraction, target, lanes) or (
            *gpu_tile(Extents.of(contraction), target, lanes, least=target.panel),
            0,
        )
        rows, columns, shares, staged = usual
        tile = rows, columns, -1, None, flops, shares, staged
        return Plan(Schedule.CONTRACTION, lanes, *tile)
    rows, columns = RegisterTile(target, lanes, *contraction.tile_extents).best()
    columns = max(columns, target.panel)
    if contraction.left.dtype is DType.I8:
        rows, columns = _tile_of_sums(target, lanes, rows, columns)
    return Plan(Schedule.CONTRACTION, lanes, rows, columns, flops=flops)


def _tile_of_sums(target: Target, lanes: int, rows: int, columns: int) -> tuple[int, int]:
    """(rows, columns) of the register tile for bytes times blocked weights: at most `rows` by
    `columns`, narrower where registers must hold a block's sums beside the totals.
    """

    def most(vectors: int, sums: int) -> int:
        """The largest number of rows, for `vectors` vectors of columns with `sums` sums each, for
        which registers suffice beside words and codes.
        """
        free = target.vector_registers - 2 * vectors - BLOCKED_REGISTERS
        return free // (sums * vectors)

    narrow = max(BLOCKED_VECTORS, target.panel // lanes)
    vectors = max(1, columns // lanes)
    if narrow <= vectors and most(narrow, 2) >= BLOCKED_ROWS:
        return most(narrow, 2), narrow * lanes
    return max(1, min(rows, most(vectors, 1))), columns


def rest_chunks(chunks: int) -> tuple[int, ...]:
    """Widths, in vectors, of the narrower tiles for remaining columns, given the main tile's
    width."""
    return (2, 1) if chunks > 2 else (1,)


def tail_rows(rows: int, columns: int, lanes: int) -> int:
    """The height of the tiles for the rows that tiles of `rows` leave over; 0 where the main tile
    is low enough to serve them.
    """
    low, high = TAIL_ROWS
    height = max(low, min(high, SUMS * lanes // columns))
    return height if rows > height else 0


def wide_extents(call: Call) -> list[Dim]:
    """The result's extents other than 1, outermost in memory first."""
    result = call.result_types[0]
    return [result.dims[d] for d in memory_order(result) if result.dims[d] != 1]


def _row_bytes(left: Factor) -> int:
    """Bytes between consecutive rows of a left side whose reduced dim is contiguous; else 0."""
    type = left.type
    *_, row, summed = memory_order(type)
    extent = type.dims[summed]
    is_plain = type.layout is None or not (type.layout.strides or type.layout.splits)
    if not is_plain or summed != left.summed:
        return 0
    if row != (type.rank - 1 if summed == 1 else type.rank - 2):
        return 0
    return extent * type.dtype.bytes if isinstance(extent, int) else 0


def _plan_depthwise(call: Call, contraction: ContractionDims, target: Target, lanes: int) -> Plan:
    """The plan of a depthwise convolution: windows like those of pooling, with weights."""
    rows, columns = _window_tile(call, target, lanes)
    right = contraction.right
    has_columns_last = memory_order(contraction.result)[-1] == contraction.column
    layout = _columns_last(right) if has_columns_last else None
    members = contraction.n
    if layout is not None and isinstance(members, int) and members > 1:
        # lanes go along groups, whose members have a loop
        (column,) = right.own
        order = (*right.batch, *right.taps, right.summed, right.type.rank, column)
        layout = Layout(((column, members),), order)
    flops = _flops(contraction)
    return Plan(Schedule.REDUCTION, lanes, rows, columns, right.operand, layout, flops)


def _plan_attention(call: Call, target: Target, lanes: int) -> Plan:
    """The plan of attention on a CPU: queries in lanes, with as many vectors of queries and keys as
    registers allow.

    Without vectors a block has fewer queries where the target's scratch would not hold it, one that
    is alone beside it, and a tile's scores.
    """
    queries, depth = call.operand(0).dims[-2:]
    width = call.operand(2).dims[-1]
    if target.gpu is not None:
        return _plan_attention_on_gpu(depth, width, lanes, target.gpu)
    registers = target.vector_registers
    vectors = 4 if lanes <= 4 and registers >= 32 else 2
    while vectors > 1 and isinstance(queries, int) and queries <= lanes * vectors // 2:
        vectors //= 2
    row = 4 * (_number_or_0(depth) + _number_or_0(width) + KEYS_AT_ONCE)
    while lanes == 1 and vectors > 1 and (vectors + 1) * row > target.scratch_bytes:
        vectors //= 2
    keys = call.operand(1).dims[-2]
    if lanes >= WIDE_LANES and isinstance(queries, int) and isinstance(keys, int):
        vectors, columns = attention_tile(queries, keys, _number_or_0(depth), registers, lanes)
    else:
        columns = next((n for n in (8, 4, 2) if (n + 1) * vectors + 1 <= registers), 1)
    return Plan(Schedule.ATTENTION, lanes, lanes * vectors, columns)


def _number_or_0(dim: Dim) -> int:
    return dim if isinstance(dim, int) else 0


def _plan_attention_on_gpu(depth: Dim, width: Dim, lanes: int, gpu: GpuGeometry) -> Plan:
    """The plan of attention on a GPU: as many lanes per query as leave each at most 8 elements of a
    value, and 2 keys a lane.

    Workgroups are twice as large as others, so that a key or value that is read serves as many
    queries as one of fewer lanes for each would.
    """
    lanes = min(2 * lanes, gpu.max_workgroup_invocations)
    if not isinstance(depth, int) or not isinstance(width, int):
        return Plan(Schedule.ATTENTION, lanes, lanes, 1)
    peers = min(4, lanes)
    while peers < lanes:
        # a query, its mix, the weights of a tile, and what each lane has of them
        row = depth + width + 4 * peers + 2 * peers + peers + 1 + peers
        fits = 4 * row * (lanes // peers) <= gpu.max_shared_bytes
        if fits and (width <= 8 * peers or peers >= 32):
            break
        peers *= 2
    return Plan(Schedule.ATTENTION, lanes, lanes // peers, 2 * peers)


def _columns_last(right: Factor) -> Layout:
    """The layout with columns innermost: [O, C, taps...] -> [taps...][C][O]."""
    return Layout(order=(*right.batch, *right.taps, right.summed, *right.own))


def _window_tile(call: Call, target: Target, lanes: int) -> tuple[int, int]:
    """(rows, columns) of a window's tile, whose lanes run along the result's innermost dim.

    Eight sums side by side hide an addition's latency; rows past the end are wasted. Where nothing
    but neighbours is read, which lie apart, a tile has several lines of each: these come from
    memory in order.
    """
    extents = wide_extents(call)
    if len(extents) < 2:
        return 1, 4 * lanes
    rows, columns = extents[-2:]
    if not isinstance(rows, int) or rows == 0:
        return 4, lanes
    is_apart = "strides" in call.attrs and call.dims("strides")[-1] != 1
    is_pool = call.contraction is None and is_apart and not target.has_workgroups
    if is_pool and isinstance(columns, int) and columns >= POOLED_VECTORS * lanes and rows > 1:
        return 2, POOLED_VECTORS * lanes
    most = min(8, target.vector_registers // 2) if not target.has_workgroups else 4
    best = max(range(min(4, rows), min(most, rows) + 1), key=lambda r: (used_share(rows, r), r))
    return best, lanes * max(1, 4 // best)


def _flops(contraction: ContractionDims) -> int:
    """The floating-point operations of a contraction: a multiplication and an addition per term."""
    terms = product([contraction.result.element_count, contraction.k])
    return 2 * terms if isinstance(terms, int) else 0


def _panel_layout(right: Factor, panel: int) -> Layout:
    """Panels of `panel` columns outermost, then the reduced dims (taps before channels):
    [O, C, taps...] -> [O/P][taps...][C][P], [batch..., K, N] -> [batch...][N/P][K][P]."""
    (column,) = right.own
    order = (*right.batch, column, *right.taps, right.summed, right.type.rank)
    return Layout(((column, panel),), order)


def _in_words(right: Factor, layout: Layout) -> Layout:
    """A layout with columns innermost, changed so that groups of reduced elements form a machine
    word within each column: [O/P][taps...][C][P] -> [O/P][taps...][C/4][P][4], [taps...][C][O] ->
    [taps...][C/4][O][4] for bytes; groups of 2 for bf16.
    """
    word = right.type.rank + len(layout.splits)
    return Layout((*layout.splits, (right.summed, word_terms(right.dtype))), (*layout.order, word))


def _gate_layouts(call: Call, target: Target) -> dict[int, Layout]:
    """Packed layouts of recurrent weights, with gates in panels: W [D, 4H, I] and R [D, 4H, H] ->
    [D][4H/P][I][P]."""
    layout = Layout(((1, target.panel),))
    return {1: layout, 2: layout}


def are_far(weight_bytes: int, cache_bytes: int) -> bool:
    """Whether a tile's weights come from beyond the L2 cache each time rows pass them; never if
    `cache_bytes` is 0."""
    return 0 < cache_bytes * CACHED_SHARE < weight_bytes
