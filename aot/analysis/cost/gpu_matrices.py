"""Tiles of contractions by cooperative matrices: matrices per subgroup, and subgroups per
workgroup.

Owns that choice. Knows nothing of kernels; matrices_gpu.py obeys.
"""

from __future__ import annotations

from collections.abc import Iterator

from aot.base.records import dataclass
from aot.ir.dims import Dim, modulo
from aot.target.model import GpuGeometry, MatrixShape

# matrices of a subgroup down and across, largest first: more of them serve what is loaded better,
# fewer give more workgroups; and those where extents are not known and results many
MATRICES = ((2, 4), (2, 2), (1, 2), (1, 1))
USUAL = (2, 2)
# subgroups that share the terms of a sum where tiles are few, and the matrices of each then
SHARES, SHARED = 4, ((1, 2), (1, 1))
# the share of a tile's columns that may be none
MOST_IDLE = 0.25


@dataclass(frozen=True)
class MatrixTile:
    """A workgroup's tile of cooperative matrices.

    Attributes:
        shape: of a matrix.
        along, across: subgroups down and across.
        shares: subgroups of the same place, each with a share of the terms.
        matrices_down, matrices_across: of each subgroup.
    """

    shape: MatrixShape
    along: int
    across: int
    shares: int
    matrices_down: int
    matrices_across: int

    @property
    def subgroups(self) -> int:
        return self.along * self.across * self.shares

    @property
    def rows(self) -> int:
        return self.along * self.matrices_down * self.shape.rows

    @property
    def columns(self) -> int:
        return self.across * self.matrices_across * self.shape.columns


@dataclass(frozen=True)
class MatrixExtents:
    """The extents that determine a matrix tile.

    Attributes:
        rows, columns: of the result.
        others: how many such planes it has.
        channels: terms that lie side by side.
        are_few: whether results are known to be few, be their extents known or not.
    """

    rows: Dim
    columns: Dim
    others: Dim
    channels: Dim
    are_few: bool = False


def matrix_tile(
    shape: MatrixShape, gpu: GpuGeometry, lanes: int, extents: MatrixExtents
) -> MatrixTile | None:
    """The tile of a contraction: the largest that leaves enough lanes busy and few columns idle;
    None if there is none.

    None where it would be idle for the most part, or the least leaves too few lanes: a block of
    terms takes as long whatever multiplies it, and other tiles go through them in less.
    """
    rows, columns, others = extents.rows, extents.columns, extents.others
    subgroups = lanes // gpu.subgroup_lanes
    tiles = list(_tiles(shape, subgroups, extents.channels))
    if not (isinstance(rows, int) and isinstance(columns, int) and isinstance(others, int)):
        return tiles[-1] if extents.are_few else _tile(shape, subgroups, 1, USUAL)
    if rows <= shape.rows // 2 or columns <= shape.columns // 2:
        return None

    def is_busy(tile: MatrixTile) -> bool:
        count = -(-rows // tile.rows) * -(-columns // tile.columns) * others
        return count * lanes >= gpu.busy_lanes

    tiles = [tile for tile in tiles if is_busy(tile)]
    full = (t for t in tiles if -columns % t.columns <= MOST_IDLE * t.columns)
    return next(full, tiles[-1] if tiles else None)


def _tiles(shape: MatrixShape, subgroups: int, channels: Dim) -> Iterator[MatrixTile]:
    for each in MATRICES:
        yield _tile(shape, subgroups, 1, each)
    shares = min(SHARES, subgroups)
    if shares > 1 and modulo(channels, shares * shape.terms) == 0:
        for each in SHARED:
            yield _tile(shape, subgroups, shares, each)


def _tile(shape: MatrixShape, subgroups: int, shares: int, each: tuple[int, int]) -> MatrixTile:
    places = subgroups // shares
    along = 1 << ((places.bit_length() - 1) // 2)
    return MatrixTile(shape, along, places // along, shares, *each)
