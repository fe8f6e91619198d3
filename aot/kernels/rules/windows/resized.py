"""Resizes of planes along both axes in one pass, with the first axis's results kept in scratch.

Where columns are first, a ring of lines holds resampled rows, each made once and read by all rows
of the result that want it; some are made at once, so that what tables say of a vector of columns is
loaded once for them. Where rows are first, some lines of a result are made, and then their columns.
CPU only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from aot.analysis.resized import (
    GROUP,
    LANES,
    PAIR,
    are_near,
    lines_together,
    may_be_tiled,
    ring_of,
)
from aot.ir import expr
from aot.ir.expr import Expr, Load, Reduce
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Scratch, Space, Stmt, Store
from aot.kernels.match.resized import found_pair, nested, picked_pair, written_out
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.inline import reduces_of
from aot.kernels.nest.nest import Nest, Output, collapse
from aot.kernels.nest.rows import row_of_vectors
from aot.kernels.rules.windows.near_terms import in_vectors
from aot.kernels.rules.windows.resized_planes import ResizedPlanes, index_in, total_of
from aot.kernels.stage.tails import below, where

# rows that are picked together
PICKED_ROWS = 4
# rows that tables are asked together
ROWS_ASKED = 64

Elements = Callable[[Expr], Expr]
"""The element that a row of the result is made of at a column of what is read."""


def schedule_resized(work: Work) -> Build | None:
    """The loops of a resize along two axes; None where the output does not fit them."""
    output = work.output
    while (pair := nested(output)) is not None:
        made = _of_pair(work.nest, output, pair)
        if made is not None:
            return made
        output = written_out(output, pair[0])
    return None


def _of_pair(nest: Nest, output: Output, pair: tuple[Reduce, Reduce]) -> Build | None:
    if nest.is_gpu or nest.lanes != LANES or not nest.target.picks_lanes(4):
        return None
    axes, gone = collapse(output.axes, output.address, output.values)
    if len(axes) < 2 or not all(isinstance(axis.extent, int) for axis in axes[-2:]):
        return None
    found = found_pair(*pair, axes[-2].var, axes[-1].var)
    if found is None or any(set(reduces_of(v)) - set(pair) for v in output.values):
        return None
    made = (_ColumnsFirst if found.is_columns_first else _RowsFirst)(
        nest, output, found, axes, gone
    )
    return made.build if made.fits() else None


def schedule_picked(work: Work) -> Build | None:
    """The loops of a nearest-neighbour resize by tables of rows and columns; None where it does not
    fit, or most of the rows it would make are unused."""
    if not work.elements.has_vectors or len(work.elements.in_vectors.axes) < 2:
        return None
    nest, output = work.nest, work.elements.in_vectors
    *_, rows, columns = output.axes
    if nest.is_gpu or not nest.target.picks_lanes(4) or output.others:
        return None
    count, width = rows.extent, columns.extent
    if not isinstance(count, int) or not isinstance(width, int) or count < GROUP:
        return None
    found = picked_pair(output, rows.var, columns.var)
    if found is None:
        return None
    pair, output = found
    height, read = pair.extents
    if height > 2 * count or not are_near(read, width, 1) or not may_be_tiled(width):
        return None
    if height > count and read <= 4 * LANES:
        return None  # a line in few registers
    order = _Picked if height > count else _ColumnsFirst
    made = order(replace(nest, lanes=LANES), output, pair, output.axes, {})
    return made.build if made.fits() else None


class _ColumnsFirst(ResizedPlanes):
    """Resizes along columns first; resampled rows are kept in a ring.

    Attributes:
        ring: row r is line `r % lines` of it, where it is there.
        together: lines that are made together.
        held: the first row that is there, and the one behind the last.
        slots, wanted: what tables say of rows.
    """

    def fits(self) -> bool:
        ring = ring_of(self.tile, self.taps, self.row_taps, self.nest.target)
        if ring is None:
            return False
        self.together, self.lines = ring
        build = self.nest.builder
        shape = (self.lines, self.vectors * LANES)
        self.ring = build.scratch("ring", DType.F32, shape, Space.WORKGROUP)
        self.held = build.scratch("held", DType.I32, (2,), Space.WORKGROUP)
        asked = -(-min(ROWS_ASKED, self.count) // GROUP) * GROUP
        self.slots = build.scratch(*("slots", DType.I32, (self.row_taps, asked), Space.WORKGROUP))
        self.wanted = build.scratch("wanted", DType.I32, (2, asked), Space.WORKGROUP)
        return True

    def rows(self, start: Expr, count: int) -> list[Stmt]:
        nest, zero = self.nest, expr.const(0, DType.I32)
        nothing = [Store(self.held, (expr.index(n),), zero) for n in range(2)]
        most = min(ROWS_ASKED, count)
        some = most if count == most or count >= self.count else _divisor(count, most)
        are_there = self.count % count == 0 and count % some == 0 and count <= self.count

        def block(b: Expr) -> list[Stmt]:
            first = expr.linear(start, (b, some))

            def row(n: Expr) -> list[Stmt]:
                at = expr.add(first, n)
                return where(None if are_there else below(at, self.count), self._row(at, n))

            asked = self._rows_asked(first, some, are_there=are_there and some % LANES == 0)
            return [*asked, *nest.serial(some, row, "y")]

        return [*nothing, *nest.serial(-(-count // some), block, "yb")]

    def _rows_asked(self, first: Expr, count: int, *, are_there: bool) -> list[Stmt]:
        """Reads the row tables of `count` result rows: for each, the slots of its terms' resampled
        rows, and the first and last source row. Rows further apart than the ring get one slot per
        term, and -1 as first. Unless `are_there`, indices past the end are clamped to the last row.
        """
        nest, last_row = self.nest, expr.index(self.count - 1)
        span = expr.const(self.lines - self.together, DType.I32)

        def vector(o: Expr) -> list[Stmt]:
            def asked(lane: Expr) -> list[Stmt]:
                made: list[Stmt] = []
                at = expr.linear((o, LANES), lane)
                row = expr.add(first, at)
                row = row if are_there else expr.binary("min", row, last_row)
                positions = (self.row_position(expr.index(k), row) for k in range(self.row_taps))
                found = (expr.cast(in_vectors(at), DType.I32) for at in positions)
                places = [nest.let(place, made, "at") for place in found]
                least, most = places[0], places[0]
                for place in places[1:]:
                    least = expr.binary("min", least, place)
                    most = expr.binary("max", most, place)
                least, most = nest.let(least, made, "least"), nest.let(most, made, "most")
                is_close = expr.binary("le", expr.binary("sub", most, least), span)
                mask = expr.const(self.lines - 1, DType.I32)
                for k, place in enumerate(places):
                    slot = expr.binary("and", place, mask)
                    slot = expr.select(is_close, slot, expr.const(k, DType.I32))
                    made.append(Store(self.slots, (expr.index(k), at), slot))
                none = expr.const(-1, DType.I32)
                end = expr.select(is_close, most, expr.const(self.row_taps - 1, DType.I32))
                ends = expr.select(is_close, least, none), end
                stores = [Store(self.wanted, (expr.index(n), at), e) for n, e in enumerate(ends)]
                return made + stores

            return [nest.spread(LANES, asked)]

        return nest.serial(-(-count // LANES), vector, "o")

    def _row(self, row: Expr, number: Expr) -> list[Stmt]:
        """Statements for result row `row`, number `number` of those looked up together: resamples
        the source rows that are still missing, then combines them.
        """
        stmts = self._made(row, number)

        def named(scratch: Scratch, k: int, name: str) -> Expr:
            return self.nest.let(index_in(scratch, expr.index(k), number), stmts, name)

        slots = [named(self.slots, k, "slot") for k in range(self.row_taps)]
        terms = self.named_rows(
            self.found.last,
            row,
            lambda k, place: Load(self.ring, (slots[k], place), DType.F32),
            stmts,
        )

        def total(at: Expr, moved: int) -> Expr:
            place = expr.linear(at, moved)
            return total_of(self.found.last, [term(place) for term in terms])

        return stmts + self._ahead(number) + self.all_columns(row, total)

    def _ahead(self, number: Expr) -> list[Stmt]:
        """Prefetches a part of the next source rows, while a row is stored."""
        rows = max(1, self.together * self.count // self.height)
        end = index_in(self.held, expr.index(1))
        part = expr.binary("floormod", number, expr.index(rows))
        return self.asked_ahead(end, self.together, part, rows)

    def _made(self, row: Expr, number: Expr) -> list[Stmt]:
        """Statements that resample the source rows that a result row needs and the ring lacks."""
        nest, size, zero = self.nest, expr.index(self.lines), expr.index(0)
        together = expr.index(self.together)
        stmts: list[Stmt] = []
        wanted = (index_in(self.wanted, expr.index(n), number) for n in range(2))
        least, last = (nest.let(place, stmts, "wanted") for place in wanted)
        first, end = (index_in(self.held, expr.index(n)) for n in range(2))
        is_close = expr.binary("le", zero, least)

        def held(first: Expr, end: Expr) -> list[Stmt]:
            pair = (expr.cast(first, DType.I32), expr.cast(end, DType.I32))
            return [Store(self.held, (expr.index(n),), e) for n, e in enumerate(pair)]

        # what comes next goes on where the last line ended, if none that is wanted is gone
        is_next = expr.binary("and", expr.binary("le", first, least), expr.binary("le", least, end))
        begin = expr.binary("max", least, zero)
        restart = If(is_next, (), tuple(held(begin, begin)))

        def batch(_: Expr) -> list[Stmt]:
            made: list[Stmt] = []
            start = nest.let(end, made, "start")

            def line(n: Expr, into: list[Stmt]) -> tuple[Expr, Expr]:
                """(source row, slot in the ring) of line number n."""
                number = expr.add(start, n)
                tap = expr.binary("min", number, expr.index(self.row_taps - 1))
                own = self.row_position(tap, row)
                near = expr.binary("min", number, expr.index(self.height - 1))
                made = nest.let(expr.select(is_close, near, own), into, "row")
                return made, nest.let(expr.binary("floormod", number, size), into, "slot")

            made += self._lines(line)
            behind = nest.let(expr.add(start, together), made, "behind")
            made += held(expr.binary("max", first, expr.sub(behind, size)), behind)
            return where(expr.binary("le", end, last), made)

        more = nest.serial(-(-(self.lines - self.together + 1) // self.together), batch, "b")
        # what stands there for one row alone serves no other
        more += where(is_close, [], held(zero, zero))
        is_there = expr.binary("and", is_next, expr.binary("lt", last, end))
        return stmts + where(is_there, [], [restart, *more])

    def _lines(self, line: Callable[[Expr, list[Stmt]], tuple[Expr, Expr]]) -> list[Stmt]:
        """Statements that resample the rows of a batch."""
        nest = self.nest

        def element(row: Expr) -> Callable[[Expr], Expr]:
            return lambda at: self.loaded(row, at)

        # each vector where vectors begin, be its columns partly those of the one before: what is
        # loaded of two that were just stored waits until memory has them
        def stored(slot: Expr, o: Expr, lane: Expr, total: Expr) -> list[Stmt]:
            place = expr.linear((o, LANES), lane)
            return [Store(self.ring, (slot, place), total)]

        near: list[Stmt] = []
        lines = [line(expr.index(n), near) for n in range(self.together)]

        def picked(o: Expr) -> list[Stmt]:
            return self.picked(
                o,
                [element(row) for row, _ in lines],
                lambda n, lane, total: stored(lines[n][1], o, lane, total),
                self.on_columns,
            )

        def plainly(n: Expr) -> list[Stmt]:
            far: list[Stmt] = []
            row, slot = line(n, far)

            def vector(o: Expr) -> list[Stmt]:
                return self.plain(
                    o, element(row), lambda lane, e: stored(slot, o, lane, e), self.on_columns
                )

            return far + nest.serial(self.vectors, vector, "o")

        near += nest.serial(self.vectors, picked, "o")
        far = nest.serial(self.together, plainly, "n")
        return where(self.is_near(), near, far)


class _RowsFirst(ResizedPlanes):
    """Resizes along rows first: some result rows into scratch, then their columns.

    Attributes:
        lines: of the rows that are made together.
    """

    def fits(self) -> bool:
        self.together = lines_together(self.read, self.tile, self.taps, self.nest.target)
        if not self.together:
            return False
        shape = (self.together, max(PAIR, -(-self.read // LANES) * LANES))
        self.lines = self.nest.builder.scratch("lines", DType.F32, shape, Space.WORKGROUP)
        self.may_repeat = self._may_repeat()
        return True

    def _may_repeat(self) -> bool:
        """Whether columns may be computed twice: not where the result shares memory with an operand
        that it also reads elsewhere."""
        own = {load.source for load in expr.loads(self.found.last)}
        return all(load.source in own for v in self.output.values for load in expr.loads(v))

    def rows(self, start: Expr, count: int) -> list[Stmt]:
        def group(g: Expr) -> list[Stmt]:
            return self._group(expr.linear(start, (g, self.together)), count)

        return self.nest.serial(-(-count // self.together), group, "y")

    def on_own(self, vector: Expr) -> Callable[[Expr, list[Stmt]], list[Stmt]]:
        """A guard for lanes: their columns belong to no earlier vector, unless columns may be
        computed twice."""

        def guarded(lane: Expr, stmts: list[Stmt]) -> list[Stmt]:
            if self.may_repeat or self.width % LANES == 0 or self.width < LANES:
                return self.on_columns(lane, stmts)
            own = expr.linear(self.start, (vector, LANES))
            is_first = expr.binary("le", own, expr.add(self.first_column(vector), lane))
            return where(is_first, stmts)

        return guarded

    def _group(self, first: Expr, count: int) -> list[Stmt]:
        """Statements for `count` rows from `first` on."""
        behind = expr.linear(first, self.together)
        whole = self._several(first, expr.index(0), self.together)
        if self.count % max(count, self.together) == 0:
            return whole

        def alone(n: Expr) -> list[Stmt]:
            stmts = self._several(expr.add(first, n), n, 1)
            return self.there(expr.add(first, n), 0, stmts)

        rest = 0 if self.count % self.together == 0 else self.together
        is_whole = expr.binary("le", behind, expr.index(self.count))
        return where(is_whole, whole, self.nest.serial(rest, alone, "n"))

    def _several(self, first: Expr, line: Expr, count: int) -> list[Stmt]:
        """Statements that combine `count` rows from `first`, into lines of scratch from `line`."""
        nest, zero = self.nest, expr.index(0)
        ahead: list[Stmt] = []

        def made(n: Expr) -> list[Stmt]:
            row = expr.add(first, n)
            stmts: list[Stmt] = []
            places = [
                nest.let(self.row_position(expr.index(k), row), stmts, "at")
                for k in range(self.row_taps)
            ]
            terms = self.named_rows(
                self.found.first, row, lambda k, at: self.loaded(places[k], at), stmts
            )

            def element(at: Expr, *_: object) -> list[Stmt]:
                total = total_of(self.found.first, [term(at) for term in terms])
                return [Store(self.lines, (expr.add(line, n), at), total)]

            return stmts + row_of_vectors(nest, zero, self.read, nest.lanes, element, may_mask=True)

        def elements(own: Expr) -> Elements:
            return lambda at: Load(self.lines, (own, at), DType.F32)

        last = self.row_position(expr.index(self.row_taps - 1), expr.linear(first, count - 1))
        behind = nest.let(expr.linear(last, 1), ahead, "behind")

        def columns(o: Expr) -> list[Stmt]:
            more = -(-count * self.height // self.count)
            asked = self.asked_ahead(behind, more, o, self.vectors) if count > 1 else []
            numbers = range(count)
            rows = [(expr.linear(first, n), elements(expr.linear(line, n))) for n in numbers]
            return asked + self._picked_of(o, rows)

        def plainly(n: Expr) -> list[Stmt]:
            row, made_of = expr.add(first, n), elements(expr.add(line, n))
            return nest.serial(self.vectors, lambda o: self._plain_of(o, row, made_of), "o")

        stmts = nest.serial(count, made, "n")
        near = nest.serial(self.vectors, columns, "o")
        far = nest.serial(count, plainly, "n")
        return stmts + ahead + where(self.is_near(), near, far)

    def _picked_of(self, o: Expr, rows: Sequence[tuple[Expr, Elements]]) -> list[Stmt]:
        """Statements that select and store a vector of columns for several rows."""
        return self.picked(
            o,
            [elements for _, elements in rows],
            lambda n, lane, total: self.stores(rows[n][0], self.column_of(o, lane), total),
            self.on_own(o),
        )

    def _plain_of(self, o: Expr, row: Expr, elements: Elements) -> list[Stmt]:
        """Statements that store a vector of columns for one row, loading elements one by one."""
        return self.plain(
            *(o, elements),
            lambda lane, total: self.stores(row, self.column_of(o, lane), total),
            self.on_own(o),
        )


class _Picked(_RowsFirst):
    """Resizes columns by selecting elements from the source rows that the row table gives."""

    def fits(self) -> bool:
        self.together = PICKED_ROWS
        self.may_repeat = self._may_repeat()
        return ring_of(self.tile, self.taps, 1, self.nest.target) is not None

    def _several(self, first: Expr, line: Expr, count: int) -> list[Stmt]:
        nest, stmts = self.nest, list[Stmt]()
        rows = [expr.linear(first, n) for n in range(count)]

        def place(row: Expr) -> Expr:
            return nest.let(self.row_position(expr.index(0), row), stmts, "at")

        places = [place(row) for row in rows]
        last = expr.index(self.count - 1)
        later = [expr.binary("min", expr.linear(r, count), last) for r in rows]
        later = [place(row) for row in later] if count > 1 else []

        made_of = [(row, partial(self.loaded, at)) for row, at in zip(rows, places, strict=True)]

        def columns(o: Expr) -> list[Stmt]:
            asked = [s for at in later for s in self.asked_ahead(at, 1, o, self.vectors)]
            return asked + self._picked_of(o, made_of)

        def plainly(o: Expr) -> list[Stmt]:
            return [s for each in made_of for s in self._plain_of(o, *each)]

        near = nest.serial(self.vectors, columns, "o")
        far = nest.serial(self.vectors, plainly, "o")
        return stmts + where(self.is_near(), near, far)


def _divisor(count: int, most: int) -> int:
    """The largest divisor of `count` that is at most `most`."""
    return max(n for n in range(1, most + 1) if count % n == 0)
