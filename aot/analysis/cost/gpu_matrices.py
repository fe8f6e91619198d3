"""The tile of a contraction on a GPU whose subgroups multiply matrices: how subgroups stand in it,
and how many matrices each has.

Owns that choice. Knows nothing of kernels; matrices_gpu.py obeys.
"""

from __future__ import annotations

from aot.ir.dims import Dim
from aot.records import dataclass
from aot.target.model import GpuGeometry, MatrixShape

# steps of a sum whose rows are brought into shared memory together, most first
TERMS_TOGETHER = (2,)
# matrices of a subgroup down and across, largest first: more of them serve what is loaded better,
# fewer give more workgroups; and those where extents are not known
MATRICES = ((2, 4), (2, 2), (1, 2), (1, 1))
USUAL = (2, 2)
# the share of a tile's columns that may be none
MOST_IDLE = 0.25


@dataclass(frozen=True)
class MatrixTile:
    """A workgroup's tile.

    Attributes:
        shape: of a matrix.
        along, across: subgroups down and across.
        matrices_down, matrices_across: of each subgroup.
    """

    shape: MatrixShape
    along: int
    across: int
    matrices_down: int
    matrices_across: int

    @property
    def rows(self) -> int:
        return self.along * self.matrices_down * self.shape.rows

    @property
    def columns(self) -> int:
        return self.across * self.matrices_across * self.shape.columns


def matrix_tile(
    shape: MatrixShape, gpu: GpuGeometry, lanes: int, rows: Dim, columns: Dim, others: Dim
) -> MatrixTile | None:
    """The tile of a contraction of so many rows and columns; None where it would be idle for the
    most part.

    It is the largest that leaves lanes enough, and few of its columns idle.
    """
    subgroups = lanes // gpu.subgroup_lanes
    along = 1 << ((subgroups.bit_length() - 1) // 2)
    tiles = [MatrixTile(shape, along, subgroups // along, *each) for each in MATRICES]
    if not (isinstance(rows, int) and isinstance(columns, int) and isinstance(others, int)):
        return MatrixTile(shape, along, subgroups // along, *USUAL)
    *larger, least = tiles
    if rows <= shape.rows // 2 or columns <= shape.columns // 2:
        return None
    for tile in larger:
        count = -(-rows // tile.rows) * -(-columns // tile.columns) * others
        idle = -columns % tile.columns / tile.columns
        if idle <= MOST_IDLE and count * lanes >= gpu.busy_lanes:
            return tile
    return least
