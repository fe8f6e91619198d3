"""Tiles of products with too few columns to fill vectors of columns.

Lanes run along the terms of the sums where these are long, or along rows, which are then transposed
in registers. Pure functions of a contraction and a target's vectors; the caller has checked that
the sums are of floats.
"""

from __future__ import annotations

from aot.analysis.memory.views import memory_order
from aot.ir.contraction import ContractionDims, Factor
from aot.ir.dims import product
from aot.ir.types import DType, Layout, TensorType
from aot.target.model import Target

# rows below which sums are not added up side by side; and sums at a time, which hide an addition's
# latency
LEAST_SUMS, SUMS = 4, 8
# vectors of terms from which on a sum's lanes are added up at the end rather than rows turned, by
# the most columns, on targets of so many registers too; and those beside which a part of a vector
# that terms fill is little
MANY_REGISTERS = 32
LEAST_VECTORS = ((2, 4), (3, 6), (4, 16), (6, 32), (8, 48))
LEAST_VECTORS_OF_MANY = ((2, 4), (3, 6), (4, 8), (5, 12), (6, 16), (8, 32))
VECTORS_A_PART = 4
# the same where rows cannot be turned: terms, and the most columns of sums so long
MOST_SUMMED, MOST_LONG_SUMMED = 4, ((768, 8), (128, 6))
# lanes below which turning rows takes longer than idle lanes of columns
LEAST_TURNED_LANES = 8
# columns beyond a vector, as a share of it, that are better turned than in a vector of their own
TURNED_BEYOND = {8: 4, 16: 4}
# terms that a row has at least
LEAST_TERMS = 4
# the most vectors of rows; columns from which on two are enough; and terms beyond which a tile of
# many columns has one, so that the nearest cache holds its rows, which lie far apart
MOST_VECTORS, NARROW, LONG_TERMS = 3, 4, 128
# channels below which adding up the sums of taps takes long beside these; and lines of a band,
# which reads some that its neighbours read, too
LEAST_CHANNELS, LEAST_BAND, MOST_BAND = 12, 6, 32


def turns_rows(contraction: ContractionDims, target: Target, lanes: int) -> bool:
    """Whether a CPU loads rows of the left side as vectors of terms and transposes them in
    registers, so that lanes run along rows: useful where a vector of columns, or the last one,
    would be mostly idle. Targets with multiply-by-lane do not need it.
    """
    if target.has_workgroups or target.multiplies_by_lane or lanes < LEAST_TURNED_LANES:
        return False
    left, right = contraction.left, contraction.right
    if not (contraction.accumulator is left.dtype is right.dtype is DType.F32):
        return False
    if contraction.groups != 1 or contraction.is_padded or right.batch:
        return False
    columns, rows = contraction.n, contraction.tile_extents[0]
    if not contraction.is_pointwise or not isinstance(columns, int) or columns < 2:
        return False
    beyond = columns - lanes
    if columns > lanes * 3 // 4 and not 0 < beyond <= TURNED_BEYOND.get(lanes, 0):
        return False
    if not isinstance(rows, int) or rows < lanes or not _has_terms_last(contraction):
        return False
    channels = contraction.channels
    if not isinstance(channels, int) or channels < LEAST_TERMS:
        return False
    is_long = _is_long(contraction, target, lanes)
    return not (is_long and has_lanes_along_sum(contraction, target, lanes))


def _is_long(contraction: ContractionDims, target: Target, lanes: int) -> bool:
    """Whether sums are so long that adding up lanes costs less than transposing rows."""
    columns, channels = int(contraction.n), int(contraction.channels)
    vectors, rest = divmod(channels, lanes)
    parts = 1 if target.has_masks else rest.bit_count()  # that terms of no whole vector take
    if rest and vectors < parts * VECTORS_A_PART:
        return False
    least = LEAST_VECTORS_OF_MANY if target.vector_registers >= MANY_REGISTERS else LEAST_VECTORS
    return vectors >= next((n for most, n in least if columns <= most), vectors + 1)


def turned_tile(contraction: ContractionDims, target: Target, lanes: int) -> tuple[int, int]:
    """(columns, rows) of a tile whose rows are transposed in registers; rows are whole vectors."""
    columns, channels = int(contraction.n), int(contraction.channels)
    most = max(1, (target.vector_registers - 1) // (columns + 1))
    if columns > NARROW:
        most = min(most, 1 if channels > LONG_TERMS else 2)
    return columns, lanes * min(most, MOST_VECTORS)


def has_lanes_along_sum(contraction: ContractionDims, target: Target, lanes: int) -> bool:
    """Whether a CPU's lanes run along the terms of a sum: where terms are contiguous in the left
    side's memory and a vector of columns would be mostly idle.
    """
    if target.has_workgroups or lanes == 1:
        return False
    columns, channels = contraction.n, contraction.channels
    if contraction.groups != 1 or not isinstance(columns, int) or columns > lanes // 2:
        return False
    if not isinstance(channels, int) or channels < lanes or contraction.right.batch:
        return False
    if columns > next((n for least, n in MOST_LONG_SUMMED if channels >= least), MOST_SUMMED):
        return False
    rows = contraction.tile_extents[0]
    is_several = not isinstance(rows, int) or rows >= LEAST_SUMS or columns > 1
    return is_several and _has_terms_last(contraction)


def rows_of_sums(target: Target, contraction: ContractionDims) -> int:
    """Rows of a tile that has all columns: a power of two, such that the sums fill most
    registers."""
    columns, rows = int(contraction.n), contraction.tile_extents[0]
    most = max(1, (target.vector_registers - columns - 1) // max(columns, 1))
    if isinstance(rows, int):
        most = min(most, rows)
    return min(1 << (most.bit_length() - 1), SUMS)


def sums_last(right: Factor) -> Layout:
    """The layout with the reduced dim innermost: [O, C, taps...] -> [O][taps...][C]."""
    return Layout(order=(*right.own, *right.taps, right.summed))


def _has_terms_last(contraction: ContractionDims) -> bool:
    return innermost(contraction.left.type) == contraction.left.summed


def innermost(type: TensorType) -> int:
    """The innermost dim in memory whose extent is not 1; -1 if there is none."""
    wide = [d for d in memory_order(type) if type.dims[d] != 1]
    return wide[-1] if wide else -1


def sums_by_tap(contraction: ContractionDims, target: Target, lanes: int) -> tuple[int, int] | None:
    """The tile of a convolution with few columns that sums each tap for each place of an image row
    as a separate column, and then adds the shifted sums. None where that does not apply.
    """
    if target.has_workgroups or target.multiplies_by_lane or lanes < LEAST_TURNED_LANES:
        return None
    left, right, windows = contraction.left, contraction.right, contraction.windows
    if not (contraction.accumulator is left.dtype is right.dtype is DType.F32):
        return None
    if contraction.groups != 1 or len(windows) != 2 or contraction.pad_value != 0:
        return None
    if not all(window.is_padded and window.stride == 1 for window in windows):
        return None
    columns, channels = contraction.n, contraction.channels
    down, along = windows
    lines, results = (contraction.result.dims[window.axis] for window in windows)
    places = left.type.dims[along.axis]
    taps = product([columns, down.kernel, along.kernel])
    found = (columns, channels, lines, results, places, taps, along.begin, along.end)
    numbers = [n for n in found if isinstance(n, int)]
    if len(numbers) != len(found):
        return None
    columns, channels, lines, results, places, taps, begin, end = numbers
    if taps > target.vector_registers - 3 or places < lanes or channels < LEAST_CHANNELS:
        return None
    if innermost(left.type) not in (left.summed, along.axis):
        return None
    if not lines_of_band(
        4 * taps * (begin + places + end), 4 * columns * results, lines, target.scratch_bytes
    ):
        return None
    fits = 2 * taps + 3 <= target.vector_registers and places >= 2 * lanes
    return taps, lanes * (2 if fits else 1)


def lines_of_band(sums_bytes: int, line_bytes: int, lines: int, scratch_bytes: int) -> int:
    """The number of result lines per workgroup, balanced over workgroups; 0 where scratch cannot
    hold the tap sums and a few lines."""
    most = min(MOST_BAND, lines, (scratch_bytes - sums_bytes) * 3 // 4 // line_bytes)
    if most < min(LEAST_BAND, lines):
        return 0
    return -(-lines // -(-lines // most))
