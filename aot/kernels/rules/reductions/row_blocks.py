"""Reductions along short rows, several rows at a time, for CPUs.

The terms of a row are summed in the lanes of a vector, as they lie. What lanes have is combined for
all rows of a block at once, one row in each lane, and so is what is computed from the sums alone:
one division or root serves a block. Owns these loops, and how results are stored that lie across.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Expr, Load, Reduce, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Scratch, Space, Stmt, Store
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.index_math import simplify
from aot.kernels.nest.lane_reductions import over_lanes, terms_in_lanes
from aot.kernels.nest.nest import (
    Axis,
    Kept,
    Nest,
    Output,
    Values,
    collapse,
    combine,
    identity,
)
from aot.kernels.nest.rows import row_of_vectors
from aot.kernels.rules.reductions.kept_rows import KeptRows
from aot.kernels.rules.reductions.row_lines import RowLines
from aot.kernels.rules.reductions.rows import (
    FEWEST,
    Rows,
)

# bytes between lines of which a cache has places for few; a multiple of it
FAR = 1024
# lanes that a row's terms are left in
LEFT = 4
_DTYPES = (DType.F32, DType.I32, DType.I64)


def schedule_row_blocks(work: Work) -> Build | None:
    """The loops of reductions of blocks of rows; None where rows are long or few, or there are
    none.
    """
    nest, output, reduces, free = work.nest, *work.reduced.parts
    if nest.is_gpu or nest.lanes < FEWEST or not reduces:
        return None
    axes, gone = collapse(
        [axis for axis in output.axes if axis not in free], output.address, output.values
    )
    if not axes or any(axes[-1].var not in expr.free_vars(r) for r in reduces):
        return None
    if any(r.dtype not in _DTYPES for r in reduces):
        return None
    rows = Rows.of(nest, output, reduces, free, axes)
    if rows is None:
        return None
    return RowBlocks(nest, output, reduces, free, rows, gone).build


def _is_integer_division(e: Expr) -> bool:
    is_division = isinstance(e, Binary) and e.op in ("div", "floordiv", "floormod")
    return is_division and not e.dtype.is_float and e.dtype is not DType.INDEX


class RowBlocks:
    """The loops of reductions over blocks of short rows.

    Attributes:
        rows: how rows are divided; all scratch of a block is for `rows.capacity` rows.
        row: stands for the number of a row in its block.
        seen: as terms_in_lanes has it, of the first reduction.
    """

    seen: Callable[[int], Scratch] | None = None

    def __init__(
        self,
        nest: Nest,
        output: Output,
        reduces: Sequence[Reduce],
        free: Sequence[Axis],
        rows: Rows,
        gone: Values,
    ) -> None:
        self.nest, self.output, self.reduces, self.free = nest, output, reduces, free
        self.rows, self.group = rows, rows.group
        self.extents: dict[Var, Dim] = {}
        self.inside, more = collapse(free, output.address, output.values)
        self.gone = {**gone, **more}
        self.row = nest.builder.var("row")
        self.along = {v for r in reduces for v, _ in r.axes} | {axis.var for axis in free}
        self.kept = KeptRows(nest, output, reduces, free, rows.capacity, are_apart=True)

    def build(self) -> tuple[Stmt, ...]:
        nest, rows = self.nest, self.rows
        extent, indices = rows.counted.extent, rows.indices
        rest = dims.modulo(extent, indices)
        blocks = Axis(nest.builder.var("rb"), dims.ceil_divide(extent, indices))

        def some(values: Values, start: Expr, count: Dim) -> list[Stmt]:
            return self.block(values, start, dims.multiply(count, rows.per_index))

        def either(values: Values) -> list[Stmt]:
            if extent == indices:
                return some(values, expr.index(0), indices)
            start = expr.mul(values[blocks.var], expr.index(indices))
            whole = some(values, start, indices)
            if rest == 0:
                return whole
            end = expr.add(start, expr.index(indices))
            is_whole = expr.binary("le", end, expr.index(extent))
            return [If(is_whole, tuple(whole), tuple(some(values, start, rest)))]

        terms = dims.product([n for r in self.reduces[:1] for _, n in r.axes])
        return nest.grid([*rows.outer, blocks], either, dims.multiply(terms, rows.per_block))

    def at(self, values: Values, start: Expr, row: Expr) -> Values:
        """The variables' values for row `row` of the block whose first counted index is `start`."""
        rows = self.rows
        place = {**self.gone, **values, self.row: row}
        if rows.each is None:
            return {**place, rows.counted.var: expr.add(start, row)}
        number = expr.index(rows.per_index)
        counted, one = (
            simplify(expr.binary(op, row, number), self.extents) for op in ("floordiv", "floormod")
        )
        return {**place, rows.counted.var: expr.add(start, counted), rows.each.var: one}

    def by_rows(self, count: Dim, body: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        """A loop that runs `body` on each of `count` rows."""
        nest, number = self.nest, self.rows.per_index

        def counted(n: Expr) -> list[Stmt]:
            def one(r: Expr) -> list[Stmt]:
                for e, extent in ((n, self.rows.indices), (r, number)):
                    if isinstance(e, Var):
                        self.extents[e] = extent
                return body(expr.add(expr.mul(n, expr.index(number)), r))

            return nest.serial(number, one, "r")

        if self.rows.each is None:
            return nest.serial(count, body, "r")
        return nest.serial(dims.floor_divide(count, number), counted, "rc")

    def block(self, values: Values, start: Expr, count: Dim) -> list[Stmt]:
        """Statements that compute the results of `count` rows from `start`."""
        stmts: list[Stmt] = []
        known: dict[Expr, Expr] = {}

        def at(row: Expr) -> Values:
            return self.at(values, start, row)

        for reduce in self.reduces:
            self._once_a_row(reduce.body, known, at, count, stmts)
            term = self.kept.body(reduce, known, self.row)
            known[reduce] = self._reduced(reduce, term, at, count, stmts)
        for value in self.output.values if self.free else ():
            self._once_a_row(value, known, at, count, stmts)
        done = {**known, **self.kept.loaded(None, self.row)}

        def store(r: Expr, more: Values) -> list[Stmt]:
            return self.output.stores(self.nest, {**at(r), **more}, done.get)

        if not self.free and self.rows.each is not None:
            return stmts + self.by_rows(count, lambda r: store(r, {}))
        if not self.free:
            return stmts + self._in_groups(count, lambda r: store(r, {}))
        if self.output.axes[-1] not in self.free:
            return stmts + self._across(count, store)
        return stmts + self._lines(count, store)

    def _pieces(self, count: Dim) -> list[tuple[Dim, int, Dim]]:
        """(first row, group size, number of groups): groups of the full size, then of four rows,
        then single rows.
        """
        found: list[tuple[Dim, int, Dim]] = []
        done: Dim = 0
        for size in dict.fromkeys((self.group, FEWEST, 1)):
            times = dims.floor_divide(dims.add(count, dims.multiply(done, -1)), size)
            if times != 0:
                found.append((done, size, times))
            done = dims.add(done, dims.multiply(times, size))
        return found

    def _in_groups(self, count: Dim, body: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        """The statements of `body` for each of `count` rows, one in each lane."""
        return self._by_pieces(
            count,
            lambda begin, size: over_lanes(self.nest, size, lambda n: body(expr.add(begin, n))),
        )

    def _by_pieces(self, count: Dim, body: Callable[[Expr, int], list[Stmt]]) -> list[Stmt]:
        """`body(first row, size)` for each piece of the rows."""
        stmts = list[Stmt]()
        for first, size, times in self._pieces(count):

            def piece(n: Expr, first: Dim = first, size: int = size) -> list[Stmt]:
                return body(expr.add(expr.index(first), expr.mul(n, expr.index(size))), size)

            stmts += self.nest.serial(times, piece, "rg")
        return stmts

    def _whole_groups(self, count: Dim, body: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        """`body(first row)` for each group of rows; the last group may be partial."""
        group = self.group
        return self.nest.serial(
            dims.ceil_divide(count, group), lambda n: body(expr.mul(n, expr.index(group))), "rg"
        )

    def _reduced(
        self,
        reduce: Reduce,
        term: tuple[Expr, Sequence[Kept]],
        at: Callable[[Expr], Values],
        count: Dim,
        into: list[Stmt],
    ) -> Expr:
        """A function from a row's number in the block to its reduction's value."""
        nest, dtype = self.nest, reduce.dtype
        terms = nest.builder.scratch("terms", dtype, (self.rows.capacity * LEFT,), Space.WORKGROUP)
        found = nest.builder.scratch("found", dtype, (self.rows.capacity,), Space.WORKGROUP)
        widths = set[int]()

        def row(r: Expr) -> list[Stmt]:
            seen = self.seen if reduce is self.reduces[0] else None
            loops, acc, left = terms_in_lanes(nest, reduce, term[0], at(r), term[1], LEFT, seen)
            widths.add(left)
            first = expr.mul(r, expr.index(left))

            def store(n: Expr) -> list[Stmt]:
                return [Store(terms, (expr.add(first, n),), Load(acc, (n,), dtype))]

            return [*loops, *over_lanes(nest, left, store)]

        rows = self.by_rows(count, row)
        (left,) = widths
        if dims.modulo(count, self.group) != 0:
            into += self._terms_of_no_row(terms, reduce, count, left)
        into += rows
        into += self._whole_groups(count, partial(self._group_totals, reduce, terms, found, left))
        return Load(found, (self.row,), dtype)

    def _terms_of_no_row(self, terms: Scratch, reduce: Reduce, count: Dim, left: int) -> list[Stmt]:
        """Statements that give the rows which a last group lacks `left` terms each too."""
        first = dims.multiply(dims.floor_divide(count, self.group), self.group * left)
        nothing = identity(reduce.op, reduce.dtype)

        def store(k: Expr, n: Expr) -> list[Stmt]:
            return [Store(terms, (self._in_group(expr.index(first), k, n),), nothing)]

        return self.nest.unrolled(
            left, lambda k: over_lanes(self.nest, self.group, lambda n: store(k, n)), "k"
        )

    def _group_totals(
        self, reduce: Reduce, terms: Scratch, found: Scratch, left: int, begin: Expr
    ) -> list[Stmt]:
        """Statements that reduce the `left` terms of each row of a group from row `begin`."""
        nest, size, dtype = self.nest, self.group, reduce.dtype
        acc = nest.builder.scratch("acc", dtype, (size,))

        def add(k: Expr, n: Expr) -> list[Stmt]:
            place = expr.mul(expr.add(begin, n), expr.index(left))
            more = Load(terms, (expr.add(place, k),), dtype)
            return [Store(acc, (n,), combine(reduce.op, Load(acc, (n,), dtype), more))]

        def start(n: Expr) -> list[Stmt]:
            return [Store(acc, (n,), identity(reduce.op, dtype))]

        def store(n: Expr) -> list[Stmt]:
            return [Store(found, (expr.add(begin, n),), Load(acc, (n,), dtype))]

        return [
            *over_lanes(nest, size, start),
            *nest.unrolled(left, lambda k: over_lanes(nest, size, lambda n: add(k, n)), "k"),
            *over_lanes(nest, size, store),
        ]

    def _in_group(self, first: Expr, number: Expr, n: Expr) -> Expr:
        """The index of element `n` of group `number`, with groups counted from element `first`."""
        return expr.add(first, expr.add(expr.mul(number, expr.index(self.group)), n))

    def _once_a_row(
        self,
        value: Expr,
        known: dict[Expr, Expr],
        at: Callable[[Expr], Values],
        count: Dim,
        into: list[Stmt],
    ) -> None:
        """Computes the parts of `value` that are constant along a row, for groups of rows at once,
        and adds them to `known`.
        """
        for e in self._same_along_rows(value, known):
            held = self.nest.builder.scratch(
                *("same", e.dtype, (self.rows.capacity,), Space.WORKGROUP)
            )
            made = expr.transform(e, known.get)

            def store(row: Expr, held: Scratch = held, made: Expr = made) -> list[Stmt]:
                return [Store(held, (row,), expr.substitute(made, at(row)))]

            def group(begin: Expr, store: Callable[[Expr], list[Stmt]] = store) -> list[Stmt]:
                return over_lanes(self.nest, self.group, lambda n: store(expr.add(begin, n)))

            # nothing is in memory behind the last row, and nothing there may be divided by
            is_whole = all(isinstance(load.source, Scratch) for load in expr.loads(made))
            if is_whole and not any(map(_is_integer_division, expr.nodes(made))):
                into += self._whole_groups(count, group)
            else:
                into += self._in_groups(count, store)
            known[e] = Load(held, (self.row,), e.dtype)

    def _same_along_rows(self, value: Expr, known: Mapping[Expr, Expr]) -> list[Expr]:
        """The largest expressions of reductions in `value` that vary along no row."""
        varies: dict[Expr, bool] = {}
        has_known: dict[Expr, bool] = {}

        def look(e: Expr) -> None:
            if e in varies:
                return
            if e in known:
                varies[e], has_known[e] = False, True
                return
            inner = expr.children(e)
            for child in inner:
                look(child)
            varies[e] = e in self.along or any(varies[c] for c in inner)
            has_known[e] = any(has_known[c] for c in inner)

        look(value)
        found: dict[Expr, None] = {}
        stack, seen = [value], set[Expr]()
        while stack:
            e = stack.pop()
            if e in seen or e in known or not has_known[e]:
                continue
            seen.add(e)
            if not varies[e] and e.dtype in _DTYPES:
                found[e] = None
            else:
                stack.extend(expr.children(e))
        return list(found)

    def _lines(self, count: Dim, store: Callable[[Expr, Values], list[Stmt]]) -> list[Stmt]:
        """Statements that store results which are contiguous along rows or from row to row."""
        together = None
        if self.rows.each is None and len(self.inside) == 1:
            (last,) = self.inside
            together = RowLines.of(
                self.nest, last.extent, count, lambda row, at: store(row, {last.var: at})
            )
        if together is None:
            return self.by_rows(count, lambda r: self._along(r, store))
        rest = dims.modulo(count, together.rows)
        first = expr.index(dims.add(count, dims.multiply(rest, -1)))
        return together.build(count) + self.nest.serial(
            rest, lambda r: self._along(expr.add(first, r), store), "r"
        )

    def _along(self, r: Expr, store: Callable[[Expr, Values], list[Stmt]]) -> list[Stmt]:
        """Statements that store one row's results, which are contiguous."""
        *outer, last = self.inside
        return self.nest.inside(
            outer,
            {},
            lambda more: row_of_vectors(
                self.nest,
                expr.index(0),
                last.extent,
                self.nest.lanes,
                lambda at, *_: store(r, {**more, last.var: at}),
            ),
        )

    def _across(self, count: Dim, store: Callable[[Expr, Values], list[Stmt]]) -> list[Stmt]:
        """Stores results that are contiguous across rows: vector-sized blocks are transposed in
        registers, and tail elements stored one by one.
        """
        nest, lanes = self.nest, self.nest.lanes
        last = self._nearest()
        whole = dims.floor_divide(last.extent, lanes)
        done = expr.index(dims.multiply(whole, lanes))

        is_staged = self._shares_sets(last)

        def elements(more: Values, at: Expr, number: int) -> list[Stmt]:
            """Statements that store `number` elements of all rows, from element `at`."""

            def made(row: Expr, u: Expr) -> list[Stmt]:
                return store(row, {**more, last.var: expr.add(at, u)})

            if not is_staged:
                return self._squares(count, number, made)
            run = nest.builder.scratch(
                *("run", self.output.buffer.dtype, (number, self.rows.capacity), Space.WORKGROUP)
            )

            def into_run(row: Expr, u: Expr) -> list[Stmt]:
                (own,) = made(row, u)
                assert isinstance(own, Store)
                return [Store(run, (u, row), own.value)]

            def copied(u: Expr) -> list[Stmt]:
                def one(row: Expr, *_: object) -> list[Stmt]:
                    (own,) = made(row, u)
                    assert isinstance(own, Store)
                    return [replace(own, value=Load(run, (u, row), run.dtype))]

                return row_of_vectors(nest, expr.index(0), count, nest.lanes, one)

            return self._squares(count, number, into_run) + nest.serial(number, copied, "u")

        def line(more: Values) -> list[Stmt]:
            return nest.serial(
                whole, lambda n: elements(more, expr.mul(n, expr.index(lanes)), lanes), "c"
            ) + nest.serial(
                dims.modulo(last.extent, lanes), lambda t: elements(more, expr.add(done, t), 1), "t"
            )

        return nest.inside([axis for axis in self.inside if axis is not last], {}, line)

    def _squares(
        self, count: Dim, number: int, body: Callable[[Expr, Expr], list[Stmt]]
    ) -> list[Stmt]:
        """`body(row, element)` for `count` rows, in lanes, and `number` elements of each."""
        nest = self.nest

        def piece(begin: Expr, size: int) -> list[Stmt]:
            return nest.unrolled(
                number,
                lambda u: over_lanes(nest, size, lambda n: body(expr.add(begin, n), u)),
                "u",
            )

        return self._by_pieces(count, piece)

    def _shares_sets(self, last: Axis) -> bool:
        """Whether elements along an axis are stored so far apart that they share few cache sets;
        stores then go in contiguous runs."""
        step = expr.coefficient(self.output.address, last.var)
        is_far = isinstance(step, int) and step * self.output.buffer.dtype.bytes % FAR == 0
        return is_far and not self.output.others and self.rows.capacity > self.group

    def _nearest(self) -> Axis:
        """The axis within a row along which an operand is contiguous."""
        loads = [load for value in self.output.values for load in expr.loads(value)]
        for axis in reversed(self.inside):
            if any(expr.coefficient(load.indices[0], axis.var) == 1 for load in loads):
                return axis
        return self.inside[-1]
