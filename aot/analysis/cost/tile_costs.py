"""Estimates the cost of an op on one core with a given tile, for known or dynamic extents.

Costs are in vector operations, about a cycle each: an estimate, to compare tiles and to say what
one kernel for several layers loses. Changes nothing; plan.py chooses tiles, kernels obey it.

The constants were fitted to what 300 executables of the reference models took on a Zen 4 core at
3.6 GHz, with kernels of their own and with those they share. Nine tenths of the contractions took
0.89 to 1.19 times the estimate. What a shared kernel takes over an own one was estimated at 0.98 to
1.22 times what it was: too much rather than too little, because other cores have less to spare.
`python benchmarks/despecialise.py --executables MODEL` prints such times beside these estimates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from aot.analysis.cost import winograd
from aot.analysis.cost.across import is_across
from aot.analysis.cost.dots import unpacks_weights
from aot.analysis.cost.few_columns import SUMS
from aot.analysis.cost.plan import (
    FAR_ROWS,
    Plan,
    are_far,
    plan,
    rest_chunks,
    tail_rows,
    wide_extents,
)
from aot.analysis.cost.register_tiles import UNPACK_COST, UNPACK_REGISTERS
from aot.ir import dims
from aot.ir.assumed_extents import TILE
from aot.ir.contraction import ContractionDims
from aot.ir.dims import Dim, DimExpr, product
from aot.ir.record import Call, Kind
from aot.ir.schedule import Schedule
from aot.ir.types import DType
from aot.target.model import CACHE_WAYS, WAY_BYTES, Target

# what a tile costs beside its sums: its start, its epilogue by vector, and what is more where
# bounds and addresses are computed from parameters
TILE_COST, STORE_COST, DYNAMIC_TILE_COST = 14.0, 3.0, 40.0
# weights that lie in rows: vectors of them straddle lines, and the last one of a row isn't full
DYNAMIC_PLAIN_COST = 0.06
# the same where rows' scalars are lanes: their loads and those under masks are most of such a sum
DYNAMIC_PLAIN_LANE_COST = 1.0
# rows whose addresses a CPU's registers hold, and what each one more costs where the distance of
# rows is a parameter
FREE_ROWS, ROW_COST = 6, 0.012
# what a step costs more where registers do not hold its sums and operands: sums go through memory,
# which took 1.6 to 2.2 times as long (3 or 4 rows of 32 columns, x86-64-v3)
SPILL_COST = 1.0
# registers that what is the same for all of a kernel holds beside windows and Winograd's products,
# as a share of all
HELD_SHARE = 0.18
# what a tile at a border takes more, because each row of it is asked for at every step; where sums
# are long, at those taps only that may be outside
BORDER_COST, TAP_BORDER_COST, LONG_SUM = 1.0, 0.4, 48
# where rows' scalars are lanes, one row in four steps is asked for; what loading them takes more is
# counted, because such kernels are measured in instructions
LANE_BORDER_COST, LANE_LOAD_COST = 0.1, 0.2
# the same of a window's tile, and an address of its row of taps, by tap
DYNAMIC_WINDOW_COST = 30.0
DYNAMIC_TAP_COST = 0.2
# Winograd's loops go over scratch of known extents, whatever those of the operands
DYNAMIC_WINOGRAD_COST = 0.04
WEIGHT_BYTES = 4  # of floats, whose place in the caches counts
# steps of windows whose channels lie pages apart, in a kernel that does not know it: 1.75 times as
# long as in its own (32 channels of 64x48, x86-64-v3)
FAR_TERMS_COST = 0.75
# a vector of memory that is read in order; what loops over it cost more where their extents
# are parameters
STREAM_COST, DYNAMIC_STREAM_COST = 5.0, 0.01
# attentions of few queries have tiles for them where they are known; a sort's steps cost so many of
# a stream's
DYNAMIC_ATTENTION_COST, DYNAMIC_FEW_QUERIES_COST, FEW_QUERIES = 0.01, 1.0, 64
DYNAMIC_SORT_COST, SORT_STEPS = 0.04, 16
# the same on a GPU, where scatters go in pieces
GPU_DYNAMIC_COSTS = {"attention": 0.04, "recurrence": 0.1, "scatter": 0.15, "sort": 0.0}


Tile = tuple[int, int]
"""Rows and columns."""


class Loops(NamedTuple):
    """The extents of an op's loops, dynamic ones estimated.

    Attributes:
        rows, columns: what tiles go along.
        terms: what each element of the result is a sum of.
        outer: trips of the loops around the tiles: how often the rows are traversed.
    """

    rows: int
    columns: int
    terms: int
    outer: int


class DynamicLoops(NamedTuple):
    """Which extents of an op's loops are dynamic, that is known only at run time."""

    rows: bool = False
    columns: bool = False
    terms: bool = False
    outer: bool = False

    def with_(self, other: DynamicLoops) -> DynamicLoops:
        """The loops that are dynamic in at least one of both kernels."""
        return DynamicLoops(*(a or b for a, b in zip(self, other, strict=True)))

    @staticmethod
    def between(a: Loops, b: Loops) -> DynamicLoops:
        """The loops that are dynamic in a kernel that serves both, since their extents differ."""
        return DynamicLoops(*(x != y for x, y in zip(a, b, strict=True)))


class KernelModel(NamedTuple):
    """The features of a kernel that determine its cost, except its tile and extents.

    Attributes:
        form: "products", "winograd", "window", "attention", "recurrence", "sort", "scatter" or
            "stream".
        is_packed: whether its weights lie in panels.
        registers: vector registers of a CPU, 0 on a GPU.
        is_padded: whether the ends of a line of rows are at a border.
        is_unpacked: whether each step unpacks weights to 16 bits.
        is_blocked: whether weights are stored in blocks, whose kernels keep their own tiles.
        cache_bytes: the second level of cache, which Winograd's blocks fit, and which holds weights
            of floats from tile to tile; 0 where that doesn't count.
        is_across: whether rows are neighbours in memory, and tiles only those that layers want.
        is_stored: whether filters are stored as Winograd's algorithm transforms them.
        is_by_lane: whether vectors are multiplied by lanes of those of rows.
        has_far_terms: whether a cache keeps few of a row's channels, as they lie pages apart.
    """

    form: str
    lanes: int
    panel: int
    is_packed: bool
    registers: int
    is_padded: bool = False
    is_unpacked: bool = False
    is_blocked: bool = False
    cache_bytes: int = 0
    is_across: bool = False
    is_stored: bool = False
    is_by_lane: bool = False
    has_far_terms: bool = False

    @property
    def free_registers(self) -> int:
        """Registers that are left by what is the same for all of a kernel."""
        return self.registers - round(self.registers * HELD_SHARE)

    @property
    def row_registers(self) -> int:
        """Vector registers that a row's scalars take."""
        return 1 if self.is_by_lane else 0

    @property
    def unpacking(self) -> int:
        """The number of registers that unpacking weights takes."""
        return UNPACK_REGISTERS if self.is_unpacked else 0

    @staticmethod
    def of(made: Plan, target: Target, call: Call | None = None) -> KernelModel:
        """The kernel model of a plan; with `call`, the cost of borders is included."""
        contraction = None if call is None else call.contraction
        forms = {
            Schedule.CONTRACTION: "products",
            Schedule.PLANES: "products",
            Schedule.WINOGRAD: "winograd",
            Schedule.ATTENTION: "attention",
            Schedule.RECURRENCE: "recurrence",
        }
        if call is not None and call.record.kind in (Kind.SORT, Kind.SCATTER):
            forms[Schedule.LINES] = call.record.kind.value
        is_packed = made.weight_layout is not None and bool(made.weight_layout.splits)
        return KernelModel(
            forms.get(made.schedule) or ("window" if is_window(made) else "stream"),
            made.lanes,
            target.panel,
            is_packed,
            0 if target.has_workgroups else target.vector_registers,
            contraction is not None and contraction.is_padded,
            contraction is not None and unpacks_weights(contraction, target),
            is_blocked=contraction is not None and contraction.right.scales is not None,
            cache_bytes=target.l2_bytes if _is_cached(made, contraction) else 0,
            is_across=contraction is not None and is_across(contraction),
            is_stored=call is not None and winograd.has_transformed_filters(call),
            is_by_lane=target.multiplies_by_lane,
            has_far_terms=contraction is not None and _has_far_terms(contraction),
        )


def _has_far_terms(contraction: ContractionDims) -> bool:
    """Whether a window's channels are a multiple of a page apart and outnumber the cache's ways: a
    kernel for such strides reads each cache line for all taps at once."""
    left, channels = contraction.left, contraction.channels
    step = dims.multiply(left.type.strides[left.summed], left.dtype.bytes)
    if contraction.is_pointwise or not isinstance(step, int) or step % WAY_BYTES != 0:
        return False
    return not isinstance(channels, int) or channels > CACHE_WAYS


def _is_cached(made: Plan, contraction: ContractionDims | None) -> bool:
    """Whether the contents of the L2 cache matter to the cost of a plan's kernel."""
    if made.schedule is Schedule.WINOGRAD or contraction is None:
        return made.schedule is Schedule.WINOGRAD
    is_float = contraction.right.dtype is DType.F32 and contraction.groups == 1
    return made.schedule is Schedule.CONTRACTION and is_float


def loops_of(call: Call, made: Plan, values: Mapping[str, Dim]) -> tuple[Loops, DynamicLoops]:
    """(loops, dynamic loops) of an op for a dispatch that passes `values` as its dims."""
    result = call.result_types[0]
    rows, columns, terms = extents_of(call, made)
    types = [t for t in (*call.operands, result) if t is not None]
    extents = [dims.substitute(d, values) for t in types for d in t.dims if isinstance(d, DimExpr)]
    unknown = dims.guess(extents, TILE)
    along, across, summed = (_number(d, values, unknown) for d in (rows, columns, terms))
    elements = _number(result.element_count, values, unknown)
    outer = max(1, elements // max(1, along * across))
    dynamic = [isinstance(d, DimExpr) for d in (rows, columns, terms, result.element_count)]
    return Loops(along, across, summed, outer), DynamicLoops(*dynamic)


def call_cost(call: Call, target: Target) -> float:
    """The estimated cost of an op in its own kernel, in vector operations."""
    made = plan(call, target)
    loops, dynamic = loops_of(call, made, {})
    kernel = KernelModel.of(made, target)
    kernel = kernel._replace(is_stored=winograd.has_transformed_filters(call))
    return cost(kernel, loops, (made.rows, made.columns), dynamic)


def extents_of(call: Call, made: Plan) -> tuple[Dim, Dim, Dim]:
    """(rows, columns, terms of a sum) that an op's tiles run along."""
    if made.schedule is Schedule.WINOGRAD:
        return winograd.extents(call)
    if made.schedule is Schedule.CONTRACTION and call.contraction is not None:
        if made.staged:
            return call.contraction.m, call.contraction.n, _terms(call)
        return (*call.contraction.tile_extents, _terms(call))
    if made.schedule is Schedule.PLANES and call.contraction is not None:
        rows, columns = call.contraction.tile_extents
        return columns, rows, _terms(call)
    if is_window(made):
        wide = wide_extents(call)
        rows = wide[-2] if len(wide) > 1 else 1
        return rows, wide[-1] if wide else 1, _terms(call)
    if made.schedule is Schedule.ATTENTION:
        queries, width = call.result_types[0].dims[-2:]
        return queries, width, call.operand(1).dims[-2]
    return 1, call.result_types[0].element_count, _terms(call)


def is_window(made: Plan) -> bool:
    """Whether a reduction runs as tiles of several positions by channels."""
    return made.schedule is Schedule.REDUCTION and made.rows > 1


def _terms(call: Call) -> Dim:
    if call.contraction is not None:
        return call.contraction.k
    if "kernel" in call.attrs:
        return product(call.dims("kernel"))
    if call.record.kind is Kind.REDUCTION and call.operands:
        elements, results = call.operand(0).element_count, call.result_types[0].element_count
        return dims.ceil_divide(elements, results) if results != 0 else 1
    return 1


def _number(dim: Dim, values: Mapping[str, Dim], unknown: int) -> int:
    known = dims.estimate(dims.substitute(dim, values) if values else dim, unknown)
    return 1 << 40 if known is None else known


@lru_cache(maxsize=1 << 16)
def cost(kernel: KernelModel, loops: Loops, tile: Tile, dynamic: DynamicLoops) -> float:
    """The cost of one run of a kernel, in vector operations."""
    if kernel.form == "products":
        return _products(kernel, loops, tile, dynamic)
    if kernel.form == "winograd":
        extra = DYNAMIC_WINOGRAD_COST if any(dynamic) else 0.0
        sizes = loops.rows, loops.columns, loops.terms
        made = winograd.cost(
            sizes, kernel.lanes, tile, kernel.cache_bytes, is_stored=kernel.is_stored
        )
        return made * (1 + extra)
    if kernel.form == "window":
        return _window(kernel, loops, tile, dynamic)
    elements = loops.rows * loops.columns * loops.outer * max(1, loops.terms)
    if kernel.form == "sort":
        elements *= SORT_STEPS
    extra = _dynamic_extra(kernel, loops) if any(dynamic[:3]) else 0.0
    return elements / kernel.lanes * STREAM_COST * (1 + extra)


def _dynamic_extra(kernel: KernelModel, loops: Loops) -> float:
    if not kernel.registers:
        return GPU_DYNAMIC_COSTS.get(kernel.form, DYNAMIC_STREAM_COST)
    if kernel.form == "attention":
        return DYNAMIC_ATTENTION_COST if loops.rows >= FEW_QUERIES else DYNAMIC_FEW_QUERIES_COST
    return DYNAMIC_SORT_COST if kernel.form == "sort" else DYNAMIC_STREAM_COST


def _products(kernel: KernelModel, loops: Loops, tile: Tile, dynamic: DynamicLoops) -> float:
    is_cpu = kernel.registers > 0
    is_dynamic = is_cpu and (dynamic.rows or dynamic.columns or dynamic.terms)
    chunk = min(tile[1], kernel.panel) if is_cpu and dynamic.columns else tile[1]
    at_borders = 2 if is_cpu and kernel.is_padded else 0
    border = BORDER_COST if loops.terms < LONG_SUM else TAP_BORDER_COST
    if kernel.is_by_lane and loops.terms >= LONG_SUM:
        border = LANE_BORDER_COST
    total = 0.0
    passing = -(-loops.rows // tile[0]) * loops.outer
    for columns, across in _wide_tiles(loops.columns, tile[1], chunk):
        lower = tail_rows(tile[0], columns, kernel.lanes) if is_cpu and dynamic.rows else 0
        vectors = max(1.0, columns / kernel.lanes)
        left = at_borders
        weights = loops.terms * columns * WEIGHT_BYTES
        # kernels that know all extents take such sums piece by piece
        is_far = any(dynamic) and passing > 1 and are_far(weights, kernel.cache_bytes)
        for rows, along in _tiles(loops.rows, tile[0], lower):
            sums = rows * vectors
            step = winograd.product_cost(rows, vectors, SUMS)
            if kernel.is_by_lane:
                step += LANE_LOAD_COST * (rows + vectors)
            if is_far:
                step = max(step, FAR_ROWS * vectors)
            if is_dynamic and kernel.has_far_terms:
                step *= 1 + FAR_TERMS_COST
            if kernel.is_unpacked:
                step += UNPACK_COST * vectors
            rest = STORE_COST * sums + TILE_COST
            if is_dynamic:
                rest += DYNAMIC_TILE_COST
                if dynamic.terms:
                    step *= 1 + ROW_COST * max(0, rows - FREE_ROWS)
                held = vectors + 1 + kernel.unpacking + rows * kernel.row_registers
                if sums + held > kernel.registers:
                    step *= 1 + SPILL_COST
                if not kernel.is_packed:
                    is_slow = kernel.is_by_lane and dynamic.columns and loops.outer > 1
                    step *= 1 + (DYNAMIC_PLAIN_LANE_COST if is_slow else DYNAMIC_PLAIN_COST)
            guarded = min(left, along)
            left -= guarded
            steps = loops.terms * (along + border * guarded)
            total += across * (steps * step + along * rest)
    return total * loops.outer


def _window(kernel: KernelModel, loops: Loops, tile: Tile, dynamic: DynamicLoops) -> float:
    is_dynamic = dynamic.rows or dynamic.columns or dynamic.terms
    total = 0.0
    for columns, across in _tiles(loops.columns, max(tile[1], 1), kernel.lanes):
        vectors = max(1.0, columns / kernel.lanes)
        for rows, along in _tiles(loops.rows, tile[0], tile[0] // 2 if dynamic.rows else 0):
            made = (loops.terms + 1) * rows * vectors + TILE_COST
            if is_dynamic:
                made += DYNAMIC_WINDOW_COST
            if dynamic.columns:  # how far apart rows are is a parameter as well
                made += DYNAMIC_TAP_COST * loops.terms * (rows + 2)
            total += across * along * made
    return total * loops.outer


def shared_tiles(kernel: KernelModel, own: Iterable[Tile]) -> list[Tile]:
    """Candidate tiles for a kernel that several layers share, in addition to the layers' `own`
    tiles.
    """
    found: list[Tile] = []
    if kernel.form == "window":  # two vectors of sums, and one of each tap and each neighbour
        fits = [tile for tile in own if 3 * tile[0] + 5 <= kernel.free_registers]
        return [(rows, 2 * columns) for rows, columns in fits if columns == kernel.lanes]
    if kernel.form == "winograd":
        all_tiles = winograd.register_tiles(kernel.panel, kernel.lanes, kernel.free_registers)
        return [tile for tile in all_tiles if tile[0] % 2 == 0]
    if kernel.form != "products" or not kernel.registers or kernel.is_blocked or kernel.is_across:
        return found
    free = kernel.free_registers - kernel.unpacking - 1
    for columns in (kernel.panel // 2, *(n * kernel.panel for n in (1, 2, 3, 4))):
        vectors = columns // kernel.lanes
        rows = (free - vectors) // (vectors + kernel.row_registers) if vectors else 0
        if rows > 1 and columns % kernel.lanes == 0:
            found.append((min(rows, FREE_ROWS + 2), columns))
    return found


def _wide_tiles(total: int, size: int, chunk: int) -> Iterator[tuple[int, int]]:
    """(columns per tile, number of tiles): first tiles of `size` over `total` columns, then
    narrower ones of few chunks for the tail. Where a chunk is a whole tile, the last tile is not
    narrowed.
    """
    if chunk == size:
        yield size, -(-total // size)
        return
    whole, left = divmod(total, size)
    left = -(-left // chunk)
    if whole:
        yield size, whole
    for chunks in rest_chunks(size // chunk):
        count, left = divmod(left, chunks)
        if count:
            yield chunks * chunk, count


def _tiles(total: int, size: int, rest: int) -> Iterator[tuple[int, int]]:
    """(rows per tile, number of tiles) covering `total`: tiles of `size`, then tiles of `rest` for
    the tail; with `rest` 0 the last tile of `size` overhangs.
    """
    if not rest or rest >= size:
        yield size, -(-total // size)
        return
    whole, left = divmod(total, size)
    if whole:
        yield size, whole
    if left:
        yield rest, -(-left // rest)
