"""Products whose results have neighbouring rows side by side in memory, and columns in planes: how
many columns a tile has then, whose lines are stored in parts."""

from __future__ import annotations

from aot.analysis.memory.views import memory_order
from aot.ir.contraction import ContractionDims
from aot.ir.dims import multiply

# columns of a tile, a line of the cache each; and how far apart lines are that want the same place
COLUMNS, WAY_BYTES = 32, 4096
# terms of sums beside which it takes little to bring lines again that others displaced; and rows of
# a tile, which are a line of a cache
LONG_TERMS, ROWS = 192, 16


def is_across(contraction: ContractionDims) -> bool:
    """Whether neighbouring rows of the result are neighbours in its memory, and columns are not."""
    order = [d for d in memory_order(contraction.result) if contraction.result.dims[d] != 1]
    return bool(order) and order[-1] == contraction.row_axis != contraction.column


def columns_across(contraction: ContractionDims) -> int:
    """The most columns of such a product's tile: no more than the nearest cache has lines for where
    all of these want the same place and sums are short; 0 where the product is none."""
    rows = contraction.tile_extents[0]
    if not is_across(contraction) or (isinstance(rows, int) and rows < 4):
        return 0
    step = multiply(contraction.result.strides[contraction.column], 4)
    is_far = isinstance(step, int) and step % WAY_BYTES == 0
    is_long = isinstance(contraction.k, int) and contraction.k >= LONG_TERMS
    return COLUMNS // 2 if is_far and not is_long else COLUMNS
