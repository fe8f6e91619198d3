"""Tiles of products whose result is stored transposed: rows contiguous, columns in planes. Limits
the columns of a tile where their cache lines conflict."""

from __future__ import annotations

from aot.analysis.memory.views import memory_order
from aot.ir.contraction import ContractionDims
from aot.ir.dims import multiply
from aot.target.model import WAY_BYTES, Target

# columns of a tile, a line of the cache each
COLUMNS = 32
# terms of sums beside which it takes little to bring lines again that others displaced; and rows of
# a tile, which are a line of a cache
LONG_TERMS, ROWS = 192, 16
# vectors of a plane that are stored together, terms of sums beside which that counts, lanes below
# which it doesn't, and elements of a vector of so few planes that caches have places for all
LONG_PIECE, SHORT_TERMS, LEAST_LANES, FEW_PLANES = 8, 64, 8, 128
# the most vectors of rows of a tile that has all of few columns
MOST_DENSE = 4


def is_across(contraction: ContractionDims) -> bool:
    """Whether the result's memory is contiguous along rows and not along columns."""
    order = [d for d in memory_order(contraction.result) if contraction.result.dims[d] != 1]
    return bool(order) and order[-1] == contraction.row_axis != contraction.column


def columns_across(contraction: ContractionDims) -> int:
    """The largest number of columns in a tile of a product whose lanes run along rows: limited by
    the cache's associativity where all columns map to the same set and sums are short. 0 for other
    products.
    """
    rows = contraction.tile_extents[0]
    if not is_across(contraction) or (isinstance(rows, int) and rows < 4):
        return 0
    is_long = isinstance(contraction.k, int) and contraction.k >= LONG_TERMS
    is_long = is_long and contraction.groups == 1  # groups have few columns
    return COLUMNS // 2 if _are_far(contraction) and not is_long else COLUMNS


def _are_far(contraction: ContractionDims) -> bool:
    """Whether corresponding cache lines of the result's columns map to the same cache set."""
    step = multiply(contraction.result.strides[contraction.column], 4)
    return isinstance(step, int) and step % WAY_BYTES == 0


def tile_of_far_planes(
    contraction: ContractionDims, target: Target, lanes: int
) -> tuple[int, int] | None:
    """The tile (columns, rows) of a product whose lanes run along rows: few columns and long runs
    of rows, for results whose planes all map to the same cache sets and whose sums are so short
    that stores dominate. None where that does not apply.
    """
    terms, vectors = contraction.k, LONG_PIECE
    while 3 * vectors + 1 > target.vector_registers:
        vectors //= 2
    rows, columns = contraction.tile_extents
    if not is_across(contraction) or not _are_far(contraction) or lanes < LEAST_LANES:
        return None
    if not isinstance(columns, int) or columns <= FEW_PLANES // lanes:
        return None
    if not isinstance(terms, int) or terms > SHORT_TERMS:
        return None
    if isinstance(rows, int):
        vectors = min(vectors, max(1, rows // lanes))
    return 2, vectors * lanes


def tile_of_dense_rows(
    contraction: ContractionDims, target: Target, lanes: int
) -> tuple[int, int] | None:
    """The tile (columns, rows) of a product whose lanes run along rows and which covers all
    columns, where these are few and contiguous in the result's memory, so that stores interleave
    them. None where that does not apply.
    """
    columns, rows = contraction.n, contraction.tile_extents[0]
    if not isinstance(columns, int) or not 1 < columns < lanes or is_across(contraction):
        return None
    if not target.interleaves:
        return None
    vectors = min((target.vector_registers - 1) // (columns + 1), MOST_DENSE)
    if isinstance(rows, int):
        vectors = min(vectors, rows // lanes)
    return (columns, vectors * lanes) if vectors else None
