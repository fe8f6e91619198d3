"""Tiles of contractions on a GPU: a workgroup's rows and columns, and the arrangement of its lanes.

Owns the rule by which lanes share sums: a dispatch of few results and long sums would keep few of a
GPU's lanes busy; and which tiles have what they multiply in shared memory. Knows nothing of
kernels; products_gpu.py and products_staged.py obey.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from aot.base.records import dataclass
from aot.ir.contraction import ContractionDims
from aot.ir.dims import Dim
from aot.ir.schedule import QUAD
from aot.ir.types import DType
from aot.target.model import Target

# How many columns of a contraction a lane of a GPU has, which lie together: fewer where it has few
# sums, so that a load of them serves more rows.
GPU_COLUMNS, FEW_GPU_COLUMNS = 8, 4
MANY_GPU_SUMS = 64
# how many lanes may share a sum: few numbers, as kernels of others are not merged
SHARES = (4, 16)
# lanes along columns at least, where there are as many: they read a line of memory together
LEAST_ACROSS = 4
# terms of a lane's share at least, as what its sums take to be put together is as much as a few;
# and those of them that lie side by side
LEAST_TERMS, LEAST_CHANNELS = 32, 8
# rows and columns below which what is brought into shared memory is read by too few lanes
LEAST_STAGED_ROWS, LEAST_STAGED_COLUMNS = 16, 16


@dataclass(frozen=True)
class Extents:
    """The extents that determine a contraction's tile on a GPU.

    Attributes:
        rows, columns: that tiles go along.
        others: how many such planes of rows and columns the result has.
        terms: of a sum.
        channels: those of them that lie side by side.
        is_in_pieces: whether sums are added up in pieces.
    """

    rows: Dim
    columns: Dim
    others: Dim
    terms: Dim
    channels: Dim
    is_in_pieces: bool = False

    @staticmethod
    def of(contraction: ContractionDims) -> Extents:
        rows, columns = contraction.tile_extents
        elements, others = contraction.result.element_count, 1
        if isinstance(rows, int) and isinstance(columns, int) and isinstance(elements, int):
            others = elements // max(1, rows * columns)
        sums = contraction.k, contraction.channels, contraction.accumulator is DType.F16
        return Extents(rows, columns, others, *sums)

    @property
    def most_shares(self) -> int:
        """The largest number of lanes that share a sum; 1 where extents are unknown or sums are
        computed in pieces."""
        known = all(isinstance(n, int) for n in (self.rows, self.columns, self.others))
        if self.is_in_pieces or not known:
            return 1
        if not isinstance(self.terms, int) or not isinstance(self.channels, int):
            return 1
        return min(self.terms // LEAST_TERMS, self.channels // LEAST_CHANNELS)


def gpu_tile(extents: Extents, target: Target, lanes: int, least: int = 1) -> tuple[int, int, int]:
    """(rows, columns, lanes per sum) of a workgroup's tile; the tile has at least `least` columns.

    The tile is as near to a square as the extents let it be, up to as many elements a lane as there
    are sums. While the lanes of all workgroups are at most half of those that keep the target busy,
    more of them share a sum, and the tile is that of fewer.
    """
    grid = _whole_grid(extents, target, lanes)
    shares, most = 1, extents.most_shares
    for more in SHARES:
        if more > most or grid.is_busy(target, shares):
            break
        smaller = grid.within(lanes // more)
        if smaller is None:
            break
        grid, shares = smaller, more
    return grid.along * grid.rows, max(least, grid.across * grid.columns), shares


def staged_tile(
    contraction: ContractionDims, target: Target, lanes: int
) -> tuple[int, int, int, int] | None:
    """(rows of all windows, columns, lanes per sum, terms per stage) of a workgroup that stages its
    operands in shared memory. None where such a tile would use too few lanes, or the target does
    not stage.
    """
    gpu = target.gpu
    if gpu is None or not gpu.staged_terms or contraction.accumulator is not DType.F32:
        return None
    base, sums = gpu.staged_terms, (contraction.m, contraction.n, contraction.k)
    least = LEAST_STAGED_ROWS, LEAST_STAGED_COLUMNS, 2 * base
    if any(isinstance(n, int) and n < few for n, few in zip(sums, least, strict=True)):
        return None
    rows, columns, terms = sums
    elements, others = contraction.result.element_count, 1
    if isinstance(rows, int) and isinstance(columns, int) and isinstance(elements, int):
        others = elements // max(1, rows * columns)
    extents = Extents(rows, columns, others, terms, terms)
    grid = _whole_grid(extents, target, lanes)
    found, shares = None, 1
    for more in (1, *SHARES):
        if more > 1:
            if more > extents.most_shares or grid.is_busy(target, shares):
                break
            smaller = grid.within(lanes // more, is_balanced=True)
            if smaller is None:
                break
            grid, shares = smaller, more
        tile = grid.along * grid.rows, grid.across * grid.columns, shares, base * isqrt(shares)
        if staged_bytes(*tile, lanes, gpu_sums(target)) > gpu.max_shared_bytes:
            break
        found = tile
    return found


def staged_bytes(
    rows: int, columns: int, shares: int, terms: int, lanes: int = 0, sums: int = 0
) -> int:
    """Bytes of shared memory of a tile that stages `terms` terms per row and column; lanes that
    share sums also need room for these."""
    kept = terms * (row_stride(rows, terms) + columns)
    return 4 * (kept + (lanes * sums if shares > 1 else 0))


def row_stride(rows: int, terms: int) -> int:
    """Stride, in vec4s, between consecutive vec4s of a row in shared memory: padded so that eight
    neighbouring lanes store to eight different banks.
    """
    step = 8 // min(8, terms // QUAD)
    return rows + (step - rows) % 8


def _whole_grid(extents: Extents, target: Target, lanes: int) -> _Grid:
    """The arrangement of lanes for a tile without shared sums."""
    rows_total, columns_total = extents.rows, extents.columns
    own = gpu_columns(target)

    def wanted(total: Dim, each: int) -> int:
        return _power_above(-(-total // each)) if isinstance(total, int) else lanes

    each = max(1, gpu_sums(target) // own)
    rows, columns = wanted(rows_total, each), wanted(columns_total, own)
    across = min(columns, max(1, lanes // 8))
    along = min(rows, lanes // across)
    across = min(columns, lanes // along)
    if isinstance(rows_total, int) and rows_total:
        # as many rows in each tile, so that few are too many
        tiles = -(-rows_total // (along * each))
        each = -(-rows_total // (along * tiles))
    return _Grid(extents, along, each, across, own)


@dataclass(frozen=True)
class _Grid:
    """The arrangement of a tile's lanes, `along` rows and `across` columns, with the rows and
    columns of each lane."""

    extents: Extents
    along: int
    rows: int
    across: int
    columns: int

    @property
    def lanes(self) -> int:
        return self.along * self.across

    @property
    def tiles(self) -> int:
        """The number of tiles that cover the result; all extents must be known."""
        along = -(-int(self.extents.rows) // (self.along * self.rows))
        across = -(-int(self.extents.columns) // (self.across * self.columns))
        return along * across * int(self.extents.others)

    def is_busy(self, target: Target, shares: int) -> bool:
        """Whether the tiles, with `shares` lanes per sum, occupy more than half of the lanes that
        keep the GPU busy.
        """
        busy_lanes = 0 if target.gpu is None else target.gpu.busy_lanes
        return 2 * self.tiles * self.lanes * shares > busy_lanes

    def within(self, lanes: int, *, is_balanced: bool = False) -> _Grid | None:
        """The grid halved until it has at most `lanes` lanes; None where it would become too
        narrow. If `is_balanced`, the longer side is halved, else the rows.
        """
        grid = self
        while grid.lanes > lanes:
            is_high = grid.along * grid.rows >= grid.across * grid.columns
            is_kept = is_balanced and not is_high and grid.across > LEAST_ACROSS
            if grid.along > 1 and not is_kept:
                grid = replace(grid, along=grid.along // 2)
            elif grid.across > LEAST_ACROSS:
                grid = replace(grid, across=grid.across // 2)
            else:
                return None
        return grid


def _power_above(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def gpu_sums(target: Target) -> int:
    """The largest number of sums that a lane of a GPU keeps."""
    return target.vector_registers // 2


def gpu_columns(target: Target) -> int:
    """The number of columns that a lane of a GPU sums."""
    return GPU_COLUMNS if gpu_sums(target) >= MANY_GPU_SUMS else FEW_GPU_COLUMNS


def gpu_lanes(target: Target, lanes: int, rows: int, columns: int) -> tuple[int, int]:
    """(lanes along rows, lanes along columns) of a workgroup's tile, given the lanes with sums of
    their own.
    """
    across = max(1, columns // gpu_columns(target))
    along = max(1, min(lanes // across, rows))
    while rows % along:
        along -= 1
    return along, across
