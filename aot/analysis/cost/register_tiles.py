"""The register tiles of contractions on a CPU, and which of them keeps the multipliers busiest.

Owns what a tile's registers and instructions are. Asks no contraction: `plan.py` says what a tile
is of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from aot.analysis.cost.dots import MOST_ROWS
from aot.analysis.cost.few_columns import SUMS
from aot.base.records import dataclass
from aot.ir.dims import Dim
from aot.target.model import Target

# what a vector of bytes takes to be unpacked to 16 bits, as a share of a row's products with it,
# and registers that this needs beside a step's: what orders the bytes, twice, and a product
UNPACK_COST, UNPACK_REGISTERS = 0.25, 3
# the same of the weights of groups, which have few columns and short sums, and lie in rows
GROUPED_UNPACK_COST = 1.0
# instructions that multiply and add a word of each column of a vector by products of bytes in 16
# bits, and those that bring a row's word and a vector of columns in order for that; registers for
# these, beside two halves of each vector of columns
PAIR_PRODUCTS, PAIR_ROW_COST, PAIR_COLUMNS_COST, PAIR_REGISTERS = 3.0, 3.25, 2.5, 3
# instructions beside products of matrices: those that bring a vector of columns' words in order, a
# load, as a share of a product, and a turn of the loop; registers beside sums and columns
MATRIX_COLUMN_COST, MATRIX_LOAD_COST, MATRIX_TURN_COST, MATRIX_REGISTERS = 2.0, 0.6, 2.0, 3
# dot products by lane that a core does while it loads a vector: in-order ones load one in two
LANE_DOT_LOADS = 2.0
# vectors of columns of a tile of groups whose weights lie in rows, and are multiplied by lanes
FITTED_VECTORS = range(2, 7)


@dataclass(frozen=True)
class RegisterTile:
    """What the register tile of a contraction must fit.

    With r rows and v vectors of columns, a step of k loads r scalars and v vectors for r*v
    multiply-adds, and needs r*v + v + 1 registers. A core loads about as often as it multiplies.
    Where it multiplies by a lane of a vector, scalars are loaded a vector a row, which is kept.

    Attributes:
        rows, columns: of the whole contraction.
        row_bytes: how far apart the rows' scalars lie; 0 where that isn't known.
        grouped: whether weights are those of groups, which lie in rows.
        by_lane: whether rows' scalars are lanes of vectors.
        together: whether those of neighbouring rows are loaded as one.
        slide: how far apart neighbouring rows' scalars are, and at how many taps, where what lies
            under the windows of all rows is loaded as one.
        unpacked: whether vectors of columns are unpacked to 16 bits at each step.
        in_pairs: whether products of bytes are summed in 16 bits first.
        in_matrices: whether two rows and two columns are multiplied at once.
        hides: whether a sum waits for the one before it, so that few leave multipliers idle.
        loads: products that a core does in the time of a load.
        most: rows beyond which there are none.
        across: the most columns of a result whose rows are neighbours in memory, 0 of others.
    """

    target: Target
    lanes: int
    rows: Dim
    columns: Dim
    row_bytes: int = 0
    grouped: bool = False
    by_lane: bool = False
    together: bool = False
    slide: tuple[int, int] | None = None
    unpacked: bool = False
    in_pairs: bool = False
    in_matrices: bool = False
    hides: bool = False
    loads: float = 1.0
    most: int = MOST_ROWS
    across: int = 0

    def best(self) -> tuple[int, int]:
        """(rows, columns) of the tile that keeps the multipliers busiest."""
        most = self.most
        if self.row_bytes:
            most = min(most, _rows_in_cache(self.target, self.row_bytes))
        best, best_score = (1, max(self.lanes, self.target.panel)), (0.0, 0.0)
        for columns in self._widths():
            vectors = columns // self.lanes
            for rows in self._heights(vectors, most):
                used = used_share(self.rows, rows) * used_share(self.columns, columns)
                reuse = rows * vectors / (self._row_vectors(rows)[1] + vectors)
                busy = self._busy(rows, vectors, reuse)
                # within a twentieth what is loaded less often wins
                score = (round(20 * busy * used), reuse * used)
                if score > best_score:
                    best, best_score = (rows, columns), score
        return best

    @property
    def _is_fitted(self) -> bool:
        return self.grouped and self.by_lane and self.hides

    def _widths(self) -> Iterator[int]:
        """Numbers of columns, whole vectors, that tiles may have."""
        lanes, panel, total = self.lanes, self.target.panel, self.columns
        widths = [panel // 2, *(n * panel for n in (1, 2, 3, 4))]
        if self._is_fitted:
            widths = [n * lanes for n in FITTED_VECTORS]
        is_special = self.grouped or self.unpacked or self.in_pairs or self.in_matrices
        is_plain = self.hides and lanes > 1 and not (is_special or self.across)
        if isinstance(total, int) and total <= lanes < panel // 2 and is_plain:
            widths = [lanes]  # a tile of fewer columns than those of others have
        for columns in widths:
            if columns < lanes or columns % lanes:
                continue
            if isinstance(total, int) and columns >= total + lanes:
                continue
            if self.across and columns > max(self.across, panel // 2, lanes):
                return
            yield columns

    def _heights(self, vectors: int, most: int) -> Iterator[int]:
        """Possible heights of a tile with `vectors` vectors of columns."""
        has_lanes = not isinstance(self.rows, int) or self.rows >= self.lanes
        for rows in range(1, most + 1):
            if self.across and rows != 4 and rows % 8:
                continue
            if self.together and rows % self.lanes and has_lanes:
                continue
            if self._registers(rows, vectors) > self.target.vector_registers:
                return
            if isinstance(self.rows, int) and rows > self.rows + self.in_matrices:
                return
            if self.in_matrices and rows % 2:
                continue
            yield rows

    def _registers(self, rows: int, vectors: int) -> int:
        """The registers that a tile needs for its sums, operands and what is done to these."""
        held = vectors + self._row_vectors(rows)[0] + (UNPACK_REGISTERS if self.unpacked else 0)
        if self.in_matrices:
            held = 2 * vectors + MATRIX_REGISTERS - 1
        if self.in_pairs:
            held += vectors + PAIR_REGISTERS + (0 if self.by_lane else 2)
        # in 32 bits rows' scalars are copied to all lanes ahead of their products
        is_short = (self.grouped and not self._is_fitted) or self.target.arch == "arm"
        return rows * vectors + held + (3 if is_short else 1)

    def _row_vectors(self, rows: int) -> tuple[int, float]:
        """(vectors that hold the row scalars, loads per step)."""
        if self.slide is not None:
            step, taps = self.slide
            held = -(-((rows - 1) * step + taps) // self.lanes)
            return held, held / taps
        held = -(-rows // self.lanes) if self.together else rows if self.by_lane else 0
        return held, rows / self.lanes if held else rows

    def _busy(self, rows: int, vectors: int, reuse: float) -> float:
        """The share of the time in which multipliers work; `reuse` is products for each load."""
        busy = min(1.0, reuse / self.loads)
        if self.hides:
            busy = min(busy, rows * vectors / SUMS)
        if self.in_pairs:
            products = PAIR_PRODUCTS * rows * vectors
            busy = products / (products + PAIR_ROW_COST * rows + PAIR_COLUMNS_COST * vectors)
        if self.in_matrices:
            loaded = MATRIX_LOAD_COST * (2 * vectors + rows / 2)
            around = MATRIX_COLUMN_COST * vectors + loaded + MATRIX_TURN_COST
            busy = rows * vectors / (rows * vectors + around)
        if self.unpacked and self.grouped:
            return rows / (rows + GROUPED_UNPACK_COST)
        return busy * (rows / (rows + UNPACK_COST)) if self.unpacked else busy


def used_share(total: Dim, size: int) -> float:
    """The useful fraction of an extent of `total`, rounded up to tiles of `size`."""
    return total / (-(-total // size) * size) if isinstance(total, int) and total else 1.0


def _rows_in_cache(target: Target, row_bytes: int) -> int:
    """The number of rows, `row_bytes` apart, that the L1 cache holds beside streaming data.

    A cache of 8 ways keeps 8 lines at one place of a way; rows a multiple of a way apart all want
    the same place. One of them is left to what streams.
    """
    way = max(target.l1_bytes // 8, 64)
    return 7 * (way // math.gcd(way, row_bytes))
