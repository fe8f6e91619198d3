"""When Winograd's F(4x4, 3x3) does a convolution, with which tiles, and what it costs.

A pure function of call, target and tile, like the plan that it is a part of. Sizes here are what
aot/kernels/schedules/winograd.py works with.

Costs are in vector operations, as those of other tiles are (tile_costs.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from aot.analysis.memory.views import memory_order
from aot.ir import dims
from aot.ir.assumed_extents import IMAGE
from aot.ir.dims import Dim
from aot.ir.record import Call
from aot.ir.types import DType
from aot.target.model import Target

OUTPUTS, INPUTS = 4, 6  # along a side of a tile
POINTS = INPUTS * INPUTS
CHANNELS = 16  # that are transformed at a time

# a block has so many tiles and filters at most, fewer of both where their sums would take more than
# a share of the second level of cache: transforms of filters serve all of its tiles, and those of
# tiles all of its filters
MOST_TILES, MOST_FILTERS, LEAST_FILTERS = 36, 64, 16
SHARE = 2 / 3
# what transforms cost, in vector operations: of a filter, of an input tile, and of an output tile
# with its epilogue; counted in the code that comes out, of filters by the time of small images,
# where it is most of all
FILTER, INPUT, OUTPUT = 220, 310, 300
# sums that must be under way for an addition's latency not to show
LEAST_SUMS = 6
# what a load costs beside a multiply-add of a register tile, where the two overlap
LOAD_COST = 0.1
# what it costs more in Winograd's products, whose operands come from further away than the nearest
# cache: a scalar of a tile, and a vector of filters
SCALAR_COST, VECTOR_COST = 0.2, 0.3


def fits(call: Call, target: Target) -> bool:
    """Whether it can do `call` on `target` at all: a 3x3 convolution of floats, stride 1, that
    reads and stores channels side by side, and whose record leaves the choice."""
    contraction = call.contraction
    if contraction is None or "algorithm" not in call.attrs or target.has_workgroups:
        return False
    left, right, result = contraction.left, contraction.right, contraction.result
    return (
        left.dtype is right.dtype is contraction.accumulator is DType.F32
        and contraction.groups == 1
        and len(contraction.windows) == 2
        and all((w.kernel, w.stride, w.dilation) == (3, 1, 1) for w in contraction.windows)
        and memory_order(left.type)[-1] == left.summed
        and memory_order(result)[-1] == contraction.column
        and all(result.dims[w.axis] != 1 for w in contraction.windows)
    )


def is_wanted(call: Call, target: Target) -> bool:
    """Whether `call` is to be done so, and can be."""
    return call.attrs.get("algorithm") == "winograd" and fits(call, target)


def block_of(tile: tuple[int, int], filters: Dim, cache_bytes: int) -> tuple[int, int]:
    """How many tiles of outputs a block has, a multiple of a register tile's, and how many register
    tiles it has along the filters.

    Args:
        tile: rows (tiles of outputs) and columns (filters) of a register tile.
        filters: those of the convolution.
        cache_bytes: of the second level.
    """
    (rows, columns), room = tile, int(SHARE * cache_bytes)
    bytes_each = POINTS * DType.F32.bytes  # of a tile's sums with a filter
    most = MOST_FILTERS
    while most > LEAST_FILTERS and bytes_each * MOST_TILES * most > room:
        most //= 2
    tiles = min(MOST_TILES, room // (bytes_each * most))
    across = max(1, most // columns)
    if isinstance(filters, int):
        across = min(across, -(-filters // columns))
    return rows * max(1, tiles // rows), across


def extents(call: Call) -> tuple[Dim, Dim, Dim]:
    """Tiles of outputs, filters and channels of a convolution."""
    contraction = call.contraction
    assert contraction is not None
    slid = {window.axis for window in contraction.windows}
    rows = ((d, contraction.result.dims[d]) for d in contraction.rows)
    tiles = [dims.ceil_divide(extent, OUTPUTS) if d in slid else extent for d, extent in rows]
    return dims.product(tiles), contraction.n, contraction.channels


def register_tiles(
    panel: int, lanes: int, registers: int, *, has_row_vectors: bool = False
) -> Iterator[tuple[int, int]]:
    """Rows (tiles of outputs) and columns (filters) that registers hold beside what they need,
    and beside a vector of each row's scalars where it `has_row_vectors`."""
    for columns in (panel // 2, panel, 2 * panel):
        vectors = columns // lanes
        if vectors and columns % lanes == 0:
            most = (registers - 2 - vectors) // (vectors + has_row_vectors)
            yield from ((rows, columns) for rows in range(1, min(most, 16) + 1))


def best_tile(call: Call, target: Target, lanes: int) -> tuple[int, int]:
    """The register tile that costs `call` least."""
    sizes = tuple(map(_number, extents(call)))
    found = register_tiles(
        target.panel, lanes, target.vector_registers, has_row_vectors=target.multiplies_by_lane
    )
    fitting = [tile for tile in found if tile[1] < sizes[1] + target.panel]
    if not fitting:
        return 1, max(lanes, target.panel)
    return min(fitting, key=lambda tile: (cost(sizes, lanes, tile, target.l2_bytes), tile))


def cost(sizes: tuple[int, ...], lanes: int, tile: tuple[int, int], cache_bytes: int) -> float:
    """Vector operations of a run.

    Args:
        sizes: tiles, filters and channels, as `extents` has them.
        cache_bytes: of the second level.
    """
    (tiles, filters, channels), (rows, columns) = sizes, tile
    vectors = max(1, columns // lanes)
    block, wide = block_of(tile, filters, cache_bytes)
    pieces, across = -(-channels // CHANNELS), -(-filters // columns)
    whole, rest = divmod(tiles, block)
    groups = whole * (block // rows) + -(-rest // rows)
    loads = SCALAR_COST * rows + VECTOR_COST * vectors
    products = CHANNELS * (product_cost(rows, vectors) + loads) + 3 * rows * vectors
    return (
        pieces * CHANNELS * across * vectors * -(-tiles // block) * FILTER
        + pieces * max(1, CHANNELS // lanes) * tiles * -(-across // wide) * INPUT
        + pieces * POINTS * groups * across * products
        + tiles * across * vectors * OUTPUT
    )


def product_cost(rows: int, vectors: float) -> float:
    """Of one outer product of a register tile, Winograd's or a contraction's."""
    return max(rows * vectors, LEAST_SUMS) + LOAD_COST * (rows + vectors)


def _number(dim: Dim) -> int:
    known = dims.estimate(dim, IMAGE)
    return IMAGE if known is None else known
