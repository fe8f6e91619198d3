"""Winograd's F(4x4, 3x3) on CPUs: which convolutions it fits, its tiles, and its cost.

A pure function of call, target and tile, like the plan that it is a part of. Sizes here are what
aot/kernels/rules/products/winograd.py works with.

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
from aot.ops.winograd import CONV_WINOGRAD
from aot.target.model import Target

OUTPUTS, INPUTS = 4, 6  # along a side of a tile
POINTS = INPUTS * INPUTS
CHANNELS = 16  # that are transformed at a time
MOST_CHANNELS = 32  # the same where sums are continued by loads of two vectors

# a block has so many tiles and filters at most, fewer of both where their sums would take more than
# a share of the second level of cache: transforms of filters serve all of its tiles, and those of
# tiles all of its filters
MOST_TILES, MOST_FILTERS, LEAST_FILTERS = 36, 64, 16
# tiles that make transformed filters worth their way from the last level of cache, with all
# channels of these, and with a piece of them
LEAST_TILES, FEW_TILES = 8, 12
SHARE = 2 / 3
# what transforms cost, in vector operations: of a filter, of an input tile, and of an output tile
# with its epilogue; counted in the code that comes out, of filters by the time of small images,
# where it is most of all
FILTER, INPUT, OUTPUT = 220, 310, 300
# what a vector of filters that are stored transformed costs instead for each block of tiles: little
# where the block's products take as long as its way from the last level of cache, or from memory,
# which is so many of them for each lane; what is missing of that elsewhere
READ_COST, PRODUCTS_A_LANE = 0.5, 2.7
# workgroups that a convolution should have at least
LEAST_WORKGROUPS = 2
# sums that must be under way for an addition's latency not to show, in Winograd's products
LEAST_SUMS = 6
# what a load costs beside a multiply-add of a register tile, where the two overlap
LOAD_COST = 0.1
# what it costs more in Winograd's products, whose operands come from further away than the nearest
# cache: a scalar of a tile, and a vector of filters
SCALAR_COST, VECTOR_COST = 0.2, 0.3


def fits(call: Call, target: Target) -> bool:
    """Whether Winograd's algorithm can compute `call` on `target`: a 3x3 float convolution with
    stride 1 and contiguous channels in input and output, whose record allows a choice of
    algorithm."""
    return "algorithm" in call.attrs and _has_form(call, target)


def _has_form(call: Call, target: Target) -> bool:
    contraction = call.contraction
    if contraction is None or target.has_workgroups:
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
    """Whether `call` is marked for Winograd's algorithm and fits it."""
    if has_transformed_filters(call):
        return _has_form(call, target)
    return call.attrs.get("algorithm") == "winograd" and fits(call, target)


def has_transformed_filters(call: Call) -> bool:
    """Whether the filters of `call` are stored already transformed."""
    return call.record is CONV_WINOGRAD


def block_of(tile: tuple[int, int], filters: Dim, cache_bytes: int) -> tuple[int, int]:
    """(tiles, register tiles along filters) of a block; the tiles are a multiple of a register
    tile's.

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


def piece_of(channels: Dim, target: Target) -> Dim:
    """The number of channels transformed and multiplied at a time, for filters stored
    untransformed: `CHANNELS`, or a divisor of a dynamic number of channels."""
    if not target.multiplies_by_lane or dims.modulo(channels, CHANNELS) != 0:
        return CHANNELS
    odd = dims.modulo(dims.floor_divide(channels, CHANNELS), 2)
    return dims.add(MOST_CHANNELS, dims.multiply(odd, -CHANNELS))


def stored_block_of(
    tile: tuple[int, int], channels: Dim, filters: Dim, cache_bytes: int
) -> tuple[int, int, int]:
    """(tiles, filters, channels) per block if filters are stored transformed. Tiles and filters are
    those of `block_of`. A block has all channels, so that no sums are kept between blocks, if the
    inputs of some tiles leave room for that; else as many as fit.
    """
    (rows, columns), room = tile, int(SHARE * cache_bytes) // (POINTS * DType.F32.bytes)
    tiles, across = block_of(tile, filters, cache_bytes)
    if not isinstance(channels, int):
        return tiles, across, CHANNELS
    whole = min(MOST_TILES, room // (channels + columns) - 1) // rows * rows
    if whole >= LEAST_TILES:
        return whole, across, channels
    tiles = min(tiles, max(1, FEW_TILES // rows) * rows)
    most = room // (tiles + 1) - across * columns
    fitting = (n for n in range(most // 4 * 4, CHANNELS, -4) if channels % n == 0)
    return tiles, across, next(fitting, CHANNELS)


def together(across: int, blocks: Dim, filters: Dim, columns: int) -> int:
    """The number of register tiles along filters per workgroup, when it transforms all input
    channels once: all of them, or fewer to keep a second thread busy.

    Args:
        across: what it has elsewhere.
        blocks: of tiles of outputs.
        filters: those of the convolution.
        columns: filters of a register tile.
    """
    if not isinstance(blocks, int) or not isinstance(filters, int):
        return across
    parts = max(1, LEAST_WORKGROUPS // blocks)
    return max(across, -(-filters // (columns * parts)))


def extents(call: Call) -> tuple[Dim, Dim, Dim]:
    """(output tiles, filters, channels) of a convolution."""
    contraction = call.contraction
    assert contraction is not None
    slid = {window.axis for window in contraction.windows}
    rows = ((d, contraction.result.dims[d]) for d in contraction.rows)
    tiles = [dims.ceil_divide(extent, OUTPUTS) if d in slid else extent for d, extent in rows]
    return dims.product(tiles), contraction.n, contraction.channels


def register_tiles(
    panel: int, lanes: int, registers: int, *, has_row_vectors: bool = False
) -> Iterator[tuple[int, int]]:
    """(rows, columns) of each register tile that fits: rows are output tiles, columns filters. With
    `has_row_vectors`, a vector of each row's scalars also stays in registers.
    """
    for columns in (panel // 2, panel, 2 * panel):
        vectors = columns // lanes
        if vectors and columns % lanes == 0:
            most = (registers - 2 - vectors) // (vectors + has_row_vectors)
            yield from ((rows, columns) for rows in range(1, min(most, 16) + 1))


def best_tile(call: Call, target: Target, lanes: int) -> tuple[int, int]:
    """The register tile with the lowest cost for `call`."""
    sizes = tuple(map(_number, extents(call)))
    found = register_tiles(
        target.panel, lanes, target.vector_registers, has_row_vectors=target.multiplies_by_lane
    )
    fitting = [tile for tile in found if tile[1] < sizes[1] + target.panel]
    if not fitting:
        return 1, max(lanes, target.panel)
    is_stored, cache_bytes = has_transformed_filters(call), target.l2_bytes

    def cost_of(tile: tuple[int, int]) -> float:
        return cost(sizes, lanes, tile, cache_bytes, is_stored=is_stored)

    return min(fitting, key=lambda tile: (cost_of(tile), tile))


def cost(
    sizes: tuple[int, ...],
    lanes: int,
    tile: tuple[int, int],
    cache_bytes: int,
    *,
    is_stored: bool = False,
) -> float:
    """The estimated number of vector operations of a Winograd convolution.

    Args:
        sizes: tiles, filters and channels, as `extents` has them.
        cache_bytes: of the second level.
        is_stored: whether filters are stored transformed.
    """
    (tiles, filters, channels), (rows, columns) = sizes, tile
    vectors = max(1, columns // lanes)
    block, wide = block_of(tile, filters, cache_bytes)
    piece = CHANNELS
    if is_stored:
        block, wide, piece = stored_block_of(tile, channels, filters, cache_bytes)
    pieces, across = -(-channels // piece), -(-filters // columns)
    blocks = -(-tiles // block)
    if pieces == 1:
        wide = together(wide, blocks, filters, columns)
    whole, rest = divmod(tiles, block)
    groups = whole * (block // rows) + -(-rest // rows)
    loads = SCALAR_COST * rows + VECTOR_COST * vectors
    products = piece * (product_cost(rows, vectors) + loads) + 3 * rows * vectors
    each_filter = float(FILTER * blocks)
    if is_stored:
        waits = max(0.0, PRODUCTS_A_LANE * lanes - min(tiles, block))
        each_filter = (READ_COST + waits) * POINTS * blocks
    return (
        pieces * piece * across * vectors * each_filter
        + pieces * max(1, piece // lanes) * tiles * -(-across // wide) * INPUT
        + pieces * POINTS * groups * across * products
        + tiles * across * vectors * OUTPUT
    )


def product_cost(rows: int, vectors: float, least: int = LEAST_SUMS) -> float:
    """The cost of one outer product in a register tile, in Winograd's algorithm or a plain
    contraction, where as many as `least` sums must be under way."""
    return max(rows * vectors, least) + LOAD_COST * (rows + vectors)


def _number(dim: Dim) -> int:
    known = dims.estimate(dim, IMAGE)
    return IMAGE if known is None else known
