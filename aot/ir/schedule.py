"""The schedule of an executable's stages: the plan's decisions, recorded with the executable.

Facts only: `aot/analysis/cost/plan.py` decides them, `aot/kernels/nest` obeys them.
"""

from __future__ import annotations

from enum import Enum

from aot.base.records import dataclass
from aot.ir.types import DType

# How many neighbours along what is summed lie in one word of packed weights of 8 bits; the same for
# all targets, so that the variants of a module share their weights.
DOT_GROUP = 4
# How many neighbours a lane of a GPU loads or stores together.
QUAD = 4


def word_terms(dtype: DType) -> int:
    """The number of elements of a dtype in one word of a dot product."""
    return DOT_GROUP // dtype.bytes


class Schedule(Enum):
    """Schedule classes, one lowering each in aot/kernels.

    ELEMENTWISE: lanes along the innermost result dim.
    REDUCTION: reductions hoisted to where their inputs are known; lanes along the reduced dim or
        the innermost result dim, whichever is contiguous.
    CONTRACTION: register tiles of outer products, lanes along the weights' outputs.
    PLANES: such tiles with lanes along the rows, where these are neighbours in memory, or columns
        are few.
    INNER: such tiles with lanes along the sum, for fewer columns than lanes.
    WINOGRAD: such tiles over transformed inputs and filters.
    TRANSFORM: one of Winograd's transforms by itself; each lane does a tile of a channel.
    RECURRENCE: a loop over steps, lanes along the gates.
    LINES: each lane goes along a line of elements in order.
    ATTENTION: a loop over tiles of keys, lanes along queries.
    """

    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    PLANES = "planes"
    INNER = "inner"
    WINOGRAD = "winograd"
    TRANSFORM = "transform"
    RECURRENCE = "recurrence"
    LINES = "lines"
    ATTENTION = "attention"


@dataclass(frozen=True)
class StageSchedule:
    """How one stage runs; its class determines the algorithm.

    Attributes:
        schedule: the class, which has a lowering of its own.
        lanes: elements that run side by side: SIMD lanes on a CPU, invocations of a workgroup on a
            GPU.
        rows, columns: the register tile of a contraction or window (columns are lanes times
            vectors; rows of WINOGRAD are tiles of outputs), the workgroup's tile on a GPU; the
            queries of an attention's workgroup, and the keys of its register tile; 1 where the
            class has no tiles.
        shares: lanes of a GPU that each have a share of the terms of a sum, of a contraction; a
            tile is then that of as many fewer lanes.
        staged: terms of a contraction's sums that a workgroup of a GPU brings into shared memory at
            a time, for all of its tile, whose rows are then those of all windows; 0 where each lane
            loads what it multiplies.
        rule: that of aot/kernels/rules/table.py that builds it; "" for the first that can.
    """

    schedule: Schedule
    lanes: int
    rows: int = 1
    columns: int = 1
    shares: int = 1
    staged: int = 0
    rule: str = ""

    def __str__(self) -> str:
        tile = "" if (self.rows, self.columns) == (1, 1) else f" tile={self.rows}:{self.columns}"
        shares = "" if self.shares == 1 else f" shares={self.shares}"
        staged = f" staged={self.staged}" if self.staged else ""
        rule = f' by "{self.rule}"' if self.rule else ""
        return f"{self.schedule.value} lanes={self.lanes}{tile}{shares}{staged}{rule}"
