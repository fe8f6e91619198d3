"""Stages lines of a plane in scratch, split by the phases of the windows' steps, with padding
around them.

No tap then asks where it is, and all loads are of neighbours. Owns how lines are brought there, and
how many of them scratch holds.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.base.records import dataclass
from aot.ir import expr
from aot.ir.expr import Expr, Load
from aot.kernels.ir.nodes import Scratch, Stmt, Store
from aot.kernels.match.slides import Slide
from aot.kernels.nest.nest import Nest
from aot.kernels.nest.rows import row_of_vectors
from aot.kernels.stage.tails import even, where


@dataclass(frozen=True)
class Band:
    """Consecutive lines of a plane that are staged in scratch for the windows that read them.

    Attributes:
        load: the load of the plane.
        along, down: how windows slide along a line, and from line to line if they do.
        scratch: [line][phase of the step][place].
        lead: places before the first one that windows read, so that vectors are aligned to cache
            lines and padding is whole vectors; None: padding is stored place by place.
    """

    nest: Nest
    load: Load
    along: Slide
    down: Slide | None
    scratch: Scratch
    lead: int | None = None

    def fill(
        self,
        origin: Expr,
        start: Expr,
        reach: int,
        before: Callable[[Expr], list[Stmt]] = lambda _: [],
    ) -> list[Stmt]:
        """Statements that stage the plane's lines from `start`.

        Args:
            origin: the address of the first place of the first line, padding or not.
            reach: lines that windows read in all, padding or not.
            before: what is done before a line, given its address.
        """
        down = self.down

        def line(v: Expr) -> list[Stmt]:
            if down is None:
                return self._line(v, origin)
            place = expr.add(start, v)
            begin = expr.linear(origin, (place, down.stride))
            is_there = down.is_there(place, place, reach)
            stmts = before(begin) + self._line(v, begin)
            return where(is_there, stmts, lambda: self._blank(v))

        return self.nest.serial(self.scratch.shape[0], line, "v")

    def _line(self, v: Expr, origin: Expr) -> list[Stmt]:
        """Statements that stage one line of the plane, in all phases."""
        along, lead, lanes, pitch = self.along, self.lead, self.nest.lanes, self.scratch.shape[2]
        ranges = [along.inside(phase, pitch - (lead or 0)) for phase in range(along.step)]

        def copied(phase: int, j: Expr) -> Stmt:
            value = of_phase(self.load, origin, along, phase, j)
            return Store(self.scratch, (v, expr.index(phase), expr.linear(j, lead or 0)), value)

        stmts: list[Stmt] = []
        for phase, (begin, end) in enumerate(ranges):
            if lead is None:
                stmts += [self._pad(v, phase, n) for n in (*range(begin), *range(end, pitch))]
                stmts += row_of_vectors(
                    *(self.nest, expr.index(begin), end - begin, lanes),
                    lambda j, *_, phase=phase: [copied(phase, j)],
                )
            else:
                stmts += self._pads(v, phase, 0, -(-(lead + begin) // lanes) * lanes)
                stmts += self._pads(v, phase, (lead + end) // lanes * lanes, pitch)
        if lead is None:
            return stmts
        # what all phases have is loaded once for them
        first = max(begin for begin, _ in ranges)
        last = max(first, min(end for _, end in ranges))
        stmts += row_of_vectors(
            *(self.nest, expr.index(first), last - first, lanes),
            lambda j, *_: [copied(phase, j) for phase in range(along.step)],
            may_mask=True,
        )
        for phase, (begin, end) in enumerate(ranges):
            rest = [*range(begin, min(first, end)), *range(max(last, begin), end)]
            stmts += [copied(phase, expr.index(j)) for j in rest]
        return stmts

    def _blank(self, v: Expr) -> list[Stmt]:
        """Statements that fill a line with padding."""
        _, phases, pitch = self.scratch.shape
        if self.lead is not None:
            return [s for phase in range(phases) for s in self._pads(v, phase, 0, pitch)]

        def phase(f: Expr) -> list[Stmt]:
            return row_of_vectors(
                *(self.nest, expr.index(0), pitch, self.nest.lanes),
                lambda j, *_: [Store(self.scratch, (v, f, j), self._padding)],
            )

        return self.nest.serial(phases, phase, "f")

    @property
    def _padding(self) -> Expr:
        return padding_of(self.load)

    def _pad(self, v: Expr, phase: int, place: Expr | int) -> Stmt:
        return Store(self.scratch, (v, expr.index(phase), expr.index(place)), self._padding)

    def _pads(self, v: Expr, phase: int, begin: int, end: int) -> list[Stmt]:
        """Statements that store whole vectors of padding."""
        lanes = self.nest.lanes
        vectors = (end - begin) // lanes, lanes
        return blank_vectors(
            self.nest, vectors, expr.index(begin), lambda at: self._pad(v, phase, at), "p"
        )


def of_phase(load: Load, origin: Expr, along: Slide, phase: int, place: Expr) -> Load:
    """The load of a place of one phase, in the line that begins at `origin`; the place must be
    valid."""
    at = expr.add(origin, expr.linear((place, along.step), phase))
    return Load(load.source, (at,), load.dtype)


def padding_of(load: Load) -> Expr:
    """The value that a load gives for padding; 0 if it has no guard."""
    return expr.const(0, load.dtype) if load.other is None else load.other


def blank_vectors(
    nest: Nest, vectors: tuple[int, int], first: Expr, store: Callable[[Expr], Stmt], name: str
) -> list[Stmt]:
    """`store(place)` for all lanes of (count, lanes) vectors, from place `first`."""
    count, lanes = vectors

    def vector(n: Expr) -> list[Stmt]:
        begin = expr.linear(first, (n, lanes))
        return [nest.spread(lanes, lambda lane: [store(expr.add(begin, lane))])]

    return nest.serial(count, vector, name)


def rows_in_scratch(nest: Nest, least: int, row_bytes: int, near: int) -> int:
    """Rows that a workgroup stages in scratch: as many as fit `near` bytes; a larger share of the
    L2 cache if those are fewer than `least`, since rows would be staged repeatedly.
    """
    most, far = (
        min(nest.target.scratch_bytes, size) // row_bytes
        for size in (near, nest.target.l2_bytes // 4)
    )
    return most if most >= least else far


def even_lines(down: Slide, held: int, most: int) -> int:
    """Result rows of a workgroup, at most `most`, whose input rows fit into `held` rows of scratch,
    balanced over workgroups; 0 if none.
    """
    lines = down.results(held, min(down.at.count, most))
    return lines and even(down.at.count, lines)
