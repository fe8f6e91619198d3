"""Resizes along two axes that run as one pass over planes, and the scratch they need.

Pure functions of ops and target, for fusion, which makes one region of such ops, and for the
schedule of it. Chooses no loops.
"""

from __future__ import annotations

from aot.ir.dims import Dim
from aot.ir.graph import Function, Op, Value
from aot.ir.types import DType
from aot.ops.spatial import RESAMPLE
from aot.target.model import Target

# columns of a vector, and elements of a pair of vectors that their terms are picked out of
LANES, PAIR = 16, 32
# terms along an axis that are written out
MOST_TERMS = 8
# columns of a workgroup, and elements of a line that 16 bits tell apart
MOST_COLUMNS, MOST_ELEMENTS = 2048, 1 << 15
# first caches that a plane fills, with what is made of it along one axis and along both: below
# that, what the first axis makes is nearby anyway, and two stages ask less of each row
LEAST_CACHES = 1
# bytes of what tables say of rows
ROWS_BYTES = 4 << 10
# rows of a workgroup's share of a plane are a multiple of these, which lines are made together for
GROUP = 16


def groups_of_rows(count: int) -> int:
    """`count` rows, rounded up to whole groups."""
    return -(-count // GROUP) * GROUP


def columns_together(width: int) -> int:
    """The number of result columns per workgroup: all `width`, or whole vectors."""
    tiles = -(-width // MOST_COLUMNS)
    return width if tiles == 1 else -(-width // (tiles * LANES)) * LANES


def may_be_tiled(width: int) -> bool:
    """Whether the last part of `width` columns fills at least one vector."""
    part = columns_together(width)
    return width % part == 0 or width % part >= LANES


def are_near(read: int, width: int, taps: int) -> bool:
    """Whether the source elements for a vector of columns are always within one pair of vectors,
    for a resize of `read` elements to `width` by `taps` terms each.
    """
    span = -(-(LANES - 1) * read // width) + taps
    return read <= PAIR or (span < PAIR and read <= MOST_ELEMENTS)


def ring_of(width: int, taps: int, row_taps: int, target: Target) -> tuple[int, int] | None:
    """(resampled rows made together, rows that scratch holds, a power of two). None where these
    rows, with the tables of `width` columns of `taps` terms, exceed the target's scratch.
    """
    line = _line_bytes(width)
    for together in (4, 2, 1):
        lines = 1 << (row_taps + together - 2).bit_length()
        if lines * line + _said_bytes(width, taps) <= target.scratch_bytes - ROWS_BYTES:
            return together, lines
    return None


def lines_together(read: int, width: int, taps: int, target: Target) -> int:
    """The number of lines, of `read` columns, that are computed before their columns; 0 where
    scratch cannot hold one beside the tables for `width` columns of `taps` terms."""
    left = target.scratch_bytes - _said_bytes(width, taps)
    line = _line_bytes(max(read, PAIR))
    return next((n for n in (4, 2, 1) if n * line <= left), 0)


def _said_bytes(width: int, taps: int) -> int:
    """Bytes of the column tables: 16 bits per term, and a start for each vector."""
    return -(-width // LANES) * (LANES * 2 * taps + 4) + 64


def _line_bytes(columns: int) -> int:
    return -(-columns // LANES) * LANES * 4


def is_resized_twice(first: Op, last: Op, target: Target | None) -> bool:
    """Whether both ops resample planes, one along rows and one along columns, and a kernel of both
    reads each element once and keeps what the first one makes in scratch."""
    if first.record is not RESAMPLE or last.record is not RESAMPLE:
        return False
    if target is None or target.has_workgroups or not target.picks_lanes(4):
        return False
    x, made = first.operands[0], first.result
    if x is None or last.operands[0] is not made:
        return False
    types = [x.type, made.type, last.result.type]
    if any(t.dtype is not DType.F32 or t.rank < 2 or t.layout is not None for t in types):
        return False
    rank = x.type.rank
    axes = [op.attrs["axis"] for op in (first, last)]
    is_columns_first = axes == [rank - 1, rank - 2]
    if not is_columns_first and axes != [rank - 2, rank - 1]:
        return False
    taps = [_taps(op.operands[1]) for op in (first, last)]
    own, other = taps if is_columns_first else reversed(taps)
    known = [
        n
        for n in (*x.type.dims[-2:], *last.result.type.dims[-2:], own, other)
        if isinstance(n, int)
    ]
    if len(known) != 6 or 0 in known:
        return False
    rows, columns, height, width, taps_along, taps_down = known
    between = rows * width if is_columns_first else height * columns
    if 4 * (rows * columns + between + height * width) <= LEAST_CACHES * target.l1_bytes:
        return False
    if max(taps_along, taps_down) > MOST_TERMS or columns > MOST_ELEMENTS:
        return False
    if not are_near(columns, width, taps_along):
        return False
    if is_columns_first:
        ring = ring_of(columns_together(width), taps_along, taps_down, target)
        # lines are made of all rows
        return may_be_tiled(width) and ring is not None and rows <= height * taps_down
    return lines_together(columns, width, taps_along, target) > 0


def _taps(positions: Value | None) -> Dim:
    return 0 if positions is None else positions.type.dims[0]


def resizes_planes(function: Function) -> bool:
    """Whether an executable contains both resamplings, which only kernels with known extents
    support."""
    found = {op.result for op in function.block if op.record is RESAMPLE}
    results = set(function.results)
    return any(op.record is RESAMPLE and op.operands[0] in found - results for op in function.block)
