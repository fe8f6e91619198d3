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

# a block has about so many tiles times filters: transforms of filters serve all of its tiles
BLOCK = 400
MOST_TILES = 24
# what transforms cost, in vector operations: of a filter, of an input tile, and of an output tile
# with its epilogue; counted in the code that comes out
FILTER, INPUT, OUTPUT = 120, 310, 300
# sums that must be under way for an addition's latency not to show
LEAST_SUMS = 6
# what a load costs beside a multiply-add of a register tile, where the two overlap
LOAD_COST = 0.1


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


def tiles_of(rows: int, columns: int) -> int:
    """Tiles of a block whose register tile is `rows` by `columns`: a multiple of `rows`."""
    return rows * max(1, min(round(BLOCK / (rows * columns)), MOST_TILES // rows))


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
    return min(fitting, key=lambda tile: (cost(sizes, lanes, tile), tile))


def cost(sizes: tuple[int, ...], lanes: int, tile: tuple[int, int]) -> float:
    """Vector operations of a run.

    Args:
        sizes: tiles, filters and channels, as `extents` has them.
    """
    (tiles, filters, channels), (rows, columns) = sizes, tile
    vectors, block = max(1, columns // lanes), tiles_of(rows, columns)
    sums = block * vectors
    step = product_cost(rows, vectors)
    piece = (
        CHANNELS * vectors * FILTER
        + block * max(1, CHANNELS // lanes) * INPUT
        + POINTS * (CHANNELS * block / rows * step + 3 * sums)
    )
    blocks = -(-tiles // block) * -(-filters // columns)
    return blocks * (-(-channels // CHANNELS) * piece + sums * OUTPUT)


def product_cost(rows: int, vectors: float) -> float:
    """Of one outer product of a register tile, Winograd's or a contraction's."""
    return max(rows * vectors, LEAST_SUMS) + LOAD_COST * (rows + vectors)


def _number(dim: Dim) -> int:
    known = dims.estimate(dim, IMAGE)
    return IMAGE if known is None else known
