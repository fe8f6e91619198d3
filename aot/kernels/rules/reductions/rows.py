"""Divides the rows of a result into blocks that are reduced together, on a CPU.

Owns how many rows a block and a group have, by the caches that hold them. Owns no loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Reduce
from aot.kernels.nest.nest import (
    GRAIN,
    Axis,
    Nest,
    Output,
)

# rows of a block where as many as a vector has lanes are too large for a cache; fewer are no block,
# and rows of fewer elements have less to share than blocks cost
FEWEST = 4
# groups of rows that a block has at most
GROUPS = 4
ELEMENT_BYTES = 4
# elements of a row beside which what is done once a row is little, and blocks only code
LONGEST = 512
# the part of a first cache that the rows of a block may fill
SHARE = 2


@dataclass(frozen=True)
class Rows:
    """The division of a result's rows into blocks.

    Rows of a block are reduced one after another, then combined a group at a time, a lane each.
    What a block keeps for its rows is allocated for `capacity` of them, and the loops over a block
    have at most `per_block`: both follow from `indices`, so that no block outgrows its scratch.

    Attributes:
        outer: the axes around blocks.
        counted: the axis that blocks divide: each has some of its indices, and all rows at these.
        each: the axis of the rows at one index; None where that is one row.
        group: rows that are combined at once.
        indices: indices of `counted` in a block; the last block may have fewer.
    """

    outer: Sequence[Axis]
    counted: Axis
    each: Axis | None
    group: int
    indices: int

    @staticmethod
    def of(
        nest: Nest,
        output: Output,
        reduces: Sequence[Reduce],
        free: Sequence[Axis],
        axes: Sequence[Axis],
    ) -> Rows | None:
        """The blocks of these reductions' rows; None where rows are too few to pay."""
        *outer, last = axes
        few = last.extent
        is_along = not free or output.axes[-1] in free
        are_few = outer and isinstance(few, int) and few < GROUPS * nest.lanes
        if is_along and are_few and all(outer[-1].var in expr.free_vars(r) for r in reduces):
            rows = Rows._divided(nest, reduces, outer[:-1], outer[-1], last)
            if rows is not None:
                return rows
        return Rows._divided(nest, reduces, outer, last, None)

    @staticmethod
    def _divided(
        nest: Nest,
        reduces: Sequence[Reduce],
        outer: Sequence[Axis],
        counted: Axis,
        each: Axis | None,
    ) -> Rows | None:
        """The blocks of `counted`'s indices; None where caches hold too few rows for a group, or
        not all rows of one index."""
        one = Rows(outer, counted, each, group=1, indices=1)
        rows = dims.multiply(counted.extent, one.per_index)
        group = _group(nest, rows, reduces)
        if group < FEWEST:
            return None
        most = group * _groups_of(nest, group, rows, reduces, are_even=each is None)
        indices = most // one.per_index
        if indices == 0:
            return None
        if isinstance(counted.extent, int):
            indices = min(indices, counted.extent)
            if each is not None:  # blocks without a rest are one loop
                whole = (n for n in range(indices, indices // 2, -1) if counted.extent % n == 0)
                indices = next(whole, indices)
        return replace(one, group=group, indices=indices)

    @property
    def per_index(self) -> int:
        """The number of rows at each index of `counted`."""
        return 1 if self.each is None else self.each.count

    @property
    def per_block(self) -> int:
        """The number of rows of a whole block."""
        return self.indices * self.per_index

    @property
    def capacity(self) -> int:
        """The number of rows that a block's scratch holds: whole groups."""
        return -(-self.per_block // self.group) * self.group


def _group(nest: Nest, rows: Dim, reduces: Sequence[Reduce]) -> int:
    """Rows per group, which are combined together: one per vector lane, or fewer to fit the L1
    cache or `rows`; 0 where no group of `FEWEST` fits."""
    extents = [n for r in reduces for _, n in r.axes]
    if not all(isinstance(n, int) for n in extents) or min(map(terms_of, reduces)) < FEWEST:
        return 0  # open rows may be long
    if max(map(terms_of, reduces)) > LONGEST:
        return 0
    longest = _longest(reduces)
    size = nest.lanes
    while size >= FEWEST:
        fits = size * longest * SHARE <= nest.target.l1_bytes
        if fits and not (isinstance(rows, int) and rows < size):
            return size
        size //= 2 if size > FEWEST and size // 2 >= FEWEST else size
    return 0


def _groups_of(
    nest: Nest, group: int, rows: Dim, reduces: Sequence[Reduce], *, are_even: bool
) -> int:
    """The largest number of groups in a block of `rows`. Several groups overlap the latencies of
    their reductions.

    Args:
        are_even: whether blocks may end after any group, so that all can be equally large.
    """
    if group < nest.lanes:
        return 1
    number = max(map(terms_of, reduces))
    bytes_ = group * max(_longest(reduces), number * ELEMENT_BYTES)
    held = min(nest.target.l1_bytes, nest.target.scratch_bytes) // SHARE
    most = max(1, min(2 * GROUPS, held // bytes_, GRAIN // (group * number)))
    if not isinstance(rows, int):
        return min(GROUPS, most)
    groups = -(-rows // group)
    if groups <= most or not are_even:
        return min(groups, most)
    # blocks without a rest are one loop
    whole = [n for n in range(most, 1, -1) if rows % (n * group) == 0]
    return whole[0] if whole else -(-groups // -(-groups // most))


def _longest(reduces: Sequence[Reduce]) -> int:
    """The largest number of bytes of a row that one reduction reads."""
    found = 0
    for reduce in reduces:
        own = expr.transform(
            reduce.body, lambda e: expr.const(0, e.dtype) if isinstance(e, Reduce) else None
        )
        found = max(found, terms_of(reduce) * sum(x.dtype.bytes for x in set(expr.loads(own))))
    return found


def terms_of(reduce: Reduce) -> int:
    """The number of terms of a reduction; 0 if it is not known at compile time."""
    count = dims.product([n for _, n in reduce.axes])
    return count if isinstance(count, int) else 0
