"""Which products are summed by dot products of packed words on a target, and in which dtype.

Owns how many rows and columns their register tiles may have. Chooses no tiles.
"""

from __future__ import annotations

from aot.analysis.cost.across import ROWS, columns_across
from aot.ir.contraction import ContractionDims
from aot.ir.schedule import DOT_GROUP
from aot.ir.types import DType
from aot.target.model import Target

# rows of a register tile beyond which there are none
MOST_ROWS = 14
# the same of f16 that are multiplied by lanes: only half of the registers have such lanes
MOST_HALF_ROWS = 12


def sums_words(contraction: ContractionDims) -> bool:
    """Whether a product with packed weights sums several terms per machine word."""
    channels = contraction.channels
    if contraction.right.dtype is DType.BF16 is contraction.left.dtype:
        return isinstance(channels, int) and channels > 1
    return (
        contraction.accumulator is DType.I32
        and contraction.right.dtype is DType.I8
        and contraction.left.dtype in (DType.U8, DType.I8, DType.I16)
        and isinstance(channels, int)
        and channels >= DOT_GROUP - 1
    )


def unpacks_weights(contraction: ContractionDims, target: Target) -> bool:
    """Whether 8-bit weights are widened to 16 bits for the multiplication."""
    if target.has_workgroups or not sums_words(contraction):
        return False
    return dot_dtype(contraction, target) is DType.I16


def sums_in_pairs(contraction: ContractionDims, target: Target) -> bool:
    """Whether products of bytes are first summed in pairs in 16 bits, by widening instructions."""
    is_bytes = dot_dtype(contraction, target) is DType.I8
    return is_bytes and target.has("neon") and not target.has("dotprod")


def multiplies_matrices(contraction: ContractionDims, target: Target) -> bool:
    """Whether matrix instructions multiply two rows by two columns of packed words."""
    left, right = contraction.left.dtype, contraction.right.dtype
    return contraction.tile_extents[0] != 1 and target.multiplies_matrices(left, right)


def dot_dtype(contraction: ContractionDims, target: Target) -> DType:
    left, right = contraction.left.dtype, contraction.right.dtype
    return target.dot_dtype(left, right, is_narrow=contraction.has_narrow_products)


def columns_of_tiles_across(
    contraction: ContractionDims, target: Target, lanes: int, *, is_dotted: bool
) -> int:
    """The largest number of columns in a tile whose rows are contiguous in the result's memory; 0
    for other products, for those by pairs or matrices, and where scratch holds few rows."""
    if lanes == 1:
        return 0
    if is_dotted:
        is_plain = target.sums_bytes(contraction.left.dtype, contraction.right.dtype)
        if not is_plain or multiplies_matrices(contraction, target):
            return 0
        if rows_in_scratch(contraction, target, ROWS) < ROWS // 2:
            return 0
    return columns_across(contraction)


def most_rows(contraction: ContractionDims, target: Target, *, is_dotted: bool, across: int) -> int:
    """The largest number of rows in a register tile, apart from the limit by registers."""
    if is_dotted:
        return rows_in_scratch(contraction, target, ROWS if across else MOST_ROWS)
    is_half = contraction.accumulator is DType.F16 and target.multiplies_by_lane
    most = MOST_HALF_ROWS if is_half else MOST_ROWS
    return max(most, ROWS) if across else most


def rows_in_scratch(contraction: ContractionDims, target: Target, most: int) -> int:
    """The number of staged rows of words that a worker's scratch holds, from 1 to `most`."""
    if not isinstance(contraction.k, int):
        return most
    dtype = dot_dtype(contraction, target)
    row = contraction.k + DOT_GROUP
    # as they are read, too, where they are widened
    row *= dtype.bytes + (1 if dtype is DType.I16 else 0)
    return max(1, min(most, target.scratch_bytes // row))
