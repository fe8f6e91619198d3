"""Reductions along rows that are short, several rows at a time, for CPUs.

The terms of a row are summed in the lanes of a vector, as they lie. What lanes have is combined for
all rows of a block at once, one row in each lane, and so is what is computed from the sums alone:
one division or root serves a block. Owns these loops, and how results are stored that lie across.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Expr, Load, Reduce, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Scratch, Space, Stmt, Store
from aot.kernels.lower.index_math import simplify
from aot.kernels.lower.lane_reductions import over_lanes, terms_in_lanes
from aot.kernels.lower.nest import GRAIN, Axis, Kept, Nest, Output, collapse, combine, identity
from aot.kernels.lower.rows import row_of_vectors
from aot.kernels.schedules.kept_rows import KeptRows
from aot.kernels.schedules.row_lines import RowLines
from aot.records import dataclass

# rows of a block where as many as a vector has lanes are too large for a cache; fewer are no block,
# and rows of fewer elements have less to share than blocks cost
FEWEST = 4
# lanes that a row's terms are left in, and groups of rows that a block has at most
LEFT, GROUPS = 4, 4
ELEMENT_BYTES = 4
# elements of a row beside which what is done once a row is little, and blocks only code
LONGEST = 512
# bytes between lines of which a cache has places for few; a multiple of it
FAR = 1024
# the part of a first cache that the rows of a block may fill
SHARE = 2
_DTYPES = (DType.F32, DType.I32, DType.I64)

Values = dict[Var, Expr]


def schedule_row_blocks(
    nest: Nest, output: Output, reduces: Sequence[Reduce], free: Sequence[Axis]
) -> tuple[Stmt, ...] | None:
    """The loops of such reductions; None where rows are long or few, or `output` has none.

    Args:
        reduces: the reductions, in their order.
        free: the result's axes along the row.
    """
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
    return RowBlocks(nest, output, reduces, free, rows, gone).build()


@dataclass(frozen=True)
class Rows:
    """The rows of a result.

    Attributes:
        outer: the axes around them.
        counted: the axis of which blocks have some indices.
        each: the axis of the rows at each of these, if they are few.
        group: how many rows are combined at once.
    """

    outer: Sequence[Axis]
    counted: Axis
    each: Axis | None
    group: int

    @staticmethod
    def of(
        nest: Nest,
        output: Output,
        reduces: Sequence[Reduce],
        free: Sequence[Axis],
        axes: Sequence[Axis],
    ) -> Rows | None:
        """None where too few rows of such a length are worth a block."""
        *outer, counted = axes
        each: Axis | None = None
        few = counted.extent
        is_along = not free or output.axes[-1] in free
        are_few = outer and isinstance(few, int) and few < GROUPS * nest.lanes
        if is_along and are_few and all(outer[-1].var in expr.free_vars(r) for r in reduces):
            each, counted = counted, outer.pop()
        several = Rows(outer, counted, each, 0)
        group = _group(nest, several.extent, reduces)
        return replace(several, group=group) if group >= FEWEST else None

    @property
    def number(self) -> int:
        """Of rows at each index that is counted."""
        extent = 1 if self.each is None else self.each.extent
        assert isinstance(extent, int)
        return extent

    @property
    def extent(self) -> Dim:
        return dims.multiply(self.counted.extent, self.number)


def _group(nest: Nest, rows: Dim, reduces: Sequence[Reduce]) -> int:
    """How many rows are combined at once; 0 where there are none."""
    extents = [n for r in reduces for _, n in r.axes]
    if not all(isinstance(n, int) for n in extents) or min(map(_number, reduces)) < FEWEST:
        return 0  # open rows may be long
    if max(map(_number, reduces)) > LONGEST:
        return 0
    longest = _longest(reduces)
    size = nest.lanes
    while size >= FEWEST:
        fits = size * longest * SHARE <= nest.target.l1_bytes
        if fits and not (isinstance(rows, int) and rows < size):
            return size
        size //= 2 if size > FEWEST and size // 2 >= FEWEST else size
    return 0


def _groups_of(nest: Nest, several: Rows, reduces: Sequence[Reduce]) -> int:
    """How many groups of rows a block has: a pass over all of them hides what they wait for."""
    group, rows = several.group, several.extent
    if group < nest.lanes:
        return 1
    number = max(map(_number, reduces))
    bytes_ = group * max(_longest(reduces), number * ELEMENT_BYTES)
    held = min(nest.target.l1_bytes, nest.target.scratch_bytes) // SHARE
    most = max(1, min(2 * GROUPS, held // bytes_, GRAIN // (group * number)))
    if not isinstance(rows, int):
        return min(GROUPS, most)
    groups = -(-rows // group)
    if groups <= most or several.each is not None:
        return min(groups, most)
    # blocks without a rest are one loop
    whole = [n for n in range(most, 1, -1) if rows % (n * group) == 0]
    return whole[0] if whole else -(-groups // -(-groups // most))


def _longest(reduces: Sequence[Reduce]) -> int:
    """The bytes of a row that a reduction reads at most."""
    found = 0
    for reduce in reduces:
        own = expr.transform(
            reduce.body, lambda e: expr.const(0, e.dtype) if isinstance(e, Reduce) else None
        )
        found = max(found, _number(reduce) * sum(x.dtype.bytes for x in set(expr.loads(own))))
    return found


def _number(reduce: Reduce) -> int:
    count = dims.product([n for _, n in reduce.axes])
    return count if isinstance(count, int) else 0


def _is_integer_division(e: Expr) -> bool:
    is_division = isinstance(e, Binary) and e.op in ("div", "floordiv", "floormod")
    return is_division and not e.dtype.is_float and e.dtype is not DType.INDEX


class RowBlocks:
    """Attributes:
    group: rows that are combined at once.
    size: rows of a block, some groups.
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
        self.size = rows.group * _groups_of(nest, rows, reduces)
        self.extents: dict[Var, Dim] = {}
        self.inside, more = collapse(free, output.address, output.values)
        self.gone = {**gone, **more}
        self.row = nest.builder.var("row")
        self.along = {v for r in reduces for v, _ in r.axes} | {axis.var for axis in free}
        self.kept = KeptRows(nest, output, reduces, free, self.size, are_apart=True)

    def build(self) -> tuple[Stmt, ...]:
        nest, rows = self.nest, self.rows
        extent, count = rows.counted.extent, max(1, self.size // rows.number)
        if isinstance(extent, int) and rows.number > 1:
            count = next((n for n in range(count, count // 2, -1) if extent % n == 0), count)
        work = dims.product([n for r in self.reduces[:1] for _, n in r.axes])
        rest = dims.modulo(extent, count)
        blocks = Axis(nest.builder.var("rb"), dims.ceil_divide(extent, count))

        def some(values: Values, start: Expr, count: Dim) -> list[Stmt]:
            return self.block(values, start, dims.multiply(count, rows.number))

        def either(values: Values) -> list[Stmt]:
            start = expr.mul(values[blocks.var], expr.index(count))
            if isinstance(extent, int) and extent < count:
                return some(values, expr.index(0), extent)
            whole = some(values, start, count)
            if rest == 0:
                return whole
            end = expr.add(start, expr.index(count))
            is_whole = expr.binary("le", end, expr.index(extent))
            return [If(is_whole, tuple(whole), tuple(some(values, start, rest)))]

        work = dims.multiply(work, count * rows.number)
        return nest.grid([*rows.outer, blocks], either, work)

    def at(self, values: Values, start: Expr, row: Expr) -> Values:
        """Indices of a row of the block that begins with index `start` of those counted."""
        rows = self.rows
        place = {**self.gone, **values, self.row: row}
        if rows.each is None:
            return {**place, rows.counted.var: expr.add(start, row)}
        number = expr.index(rows.number)
        counted, one = (
            simplify(expr.binary(op, row, number), self.extents) for op in ("floordiv", "floormod")
        )
        return {**place, rows.counted.var: expr.add(start, counted), rows.each.var: one}

    def by_rows(self, count: Dim, body: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        """Something of each of `count` rows, one after the other."""
        nest, number = self.nest, self.rows.number

        def counted(n: Expr) -> list[Stmt]:
            def one(r: Expr) -> list[Stmt]:
                for e, extent in ((n, self.size), (r, number)):
                    if isinstance(e, Var):
                        self.extents[e] = extent
                return body(expr.add(expr.mul(n, expr.index(number)), r))

            return nest.serial(number, one, "r")

        if self.rows.each is None:
            return nest.serial(count, body, "r")
        return nest.serial(dims.floor_divide(count, number), counted, "rc")

    def block(self, values: Values, start: Expr, count: Dim) -> list[Stmt]:
        """The results of `count` rows from `start` on."""
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
        """Groups of rows, fours for what is left and then single ones: where those of one size
        begin, their size, and how many they are."""
        found: list[tuple[Dim, int, Dim]] = []
        done: Dim = 0
        for size in dict.fromkeys((self.group, FEWEST, 1)):
            times = dims.floor_divide(dims.add(count, dims.multiply(done, -1)), size)
            if times != 0:
                found.append((done, size, times))
            done = dims.add(done, dims.multiply(times, size))
        return found

    def _in_groups(self, count: Dim, body: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        """Something of each row, in lanes."""
        return self._by_pieces(
            count,
            lambda begin, size: over_lanes(self.nest, size, lambda n: body(expr.add(begin, n))),
        )

    def _by_pieces(self, count: Dim, body: Callable[[Expr, int], list[Stmt]]) -> list[Stmt]:
        """Something of each piece, given its first row and its size."""
        stmts = list[Stmt]()
        for first, size, times in self._pieces(count):

            def piece(n: Expr, first: Dim = first, size: int = size) -> list[Stmt]:
                return body(expr.add(expr.index(first), expr.mul(n, expr.index(size))), size)

            stmts += self.nest.serial(times, piece, "rg")
        return stmts

    def _whole_groups(self, count: Dim, body: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        """Something of each group, given its first row; the last one may have too few rows."""
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
        """A reduction of each row of a block, by its number in the block."""
        nest, dtype = self.nest, reduce.dtype
        terms = nest.builder.scratch("terms", dtype, (self.size * LEFT,), Space.WORKGROUP)
        found = nest.builder.scratch("found", dtype, (self.size,), Space.WORKGROUP)
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
            # rows that a last group lacks have terms too
            first = dims.multiply(dims.floor_divide(count, self.group), self.group * left)
            into += nest.unrolled(
                left,
                lambda k: over_lanes(
                    nest,
                    self.group,
                    lambda n: [
                        Store(
                            terms,
                            (self._in_group(expr.index(first), k, n),),
                            identity(reduce.op, dtype),
                        )
                    ],
                ),
                "k",
            )
        into += rows

        def group(begin: Expr) -> list[Stmt]:
            acc = nest.builder.scratch("acc", dtype, (self.group,))

            def add(k: Expr, n: Expr) -> list[Stmt]:
                place = expr.mul(expr.add(begin, n), expr.index(left))
                more = Load(terms, (expr.add(place, k),), dtype)
                return [Store(acc, (n,), combine(reduce.op, Load(acc, (n,), dtype), more))]

            def start(n: Expr) -> list[Stmt]:
                return [Store(acc, (n,), identity(reduce.op, dtype))]

            def store(n: Expr) -> list[Stmt]:
                return [Store(found, (expr.add(begin, n),), Load(acc, (n,), dtype))]

            size = self.group
            return [
                *over_lanes(nest, size, start),
                *nest.unrolled(left, lambda k: over_lanes(nest, size, lambda n: add(k, n)), "k"),
                *over_lanes(nest, size, store),
            ]

        into += self._whole_groups(count, group)
        return Load(found, (self.row,), dtype)

    def _in_group(self, first: Expr, number: Expr, n: Expr) -> Expr:
        """Element `n` of a group, the number of groups from the first element on."""
        return expr.add(first, expr.add(expr.mul(number, expr.index(self.group)), n))

    def _once_a_row(
        self,
        value: Expr,
        known: dict[Expr, Expr],
        at: Callable[[Expr], Values],
        count: Dim,
        into: list[Stmt],
    ) -> None:
        """Computes what `value` has of each row's reductions that is the same along the row, for
        groups of rows at once, and adds it to what is `known`."""
        for e in self._same_along_rows(value, known):
            held = self.nest.builder.scratch("same", e.dtype, (self.size,), Space.WORKGROUP)
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
        """Results whose neighbours lie side by side, along rows or from one to the next."""
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
        """The results of a row whose neighbours lie side by side."""
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
        """Results that lie side by side where rows do: blocks of as many elements of each row as a
        vector has, which are transposed in registers, and what is left one by one."""
        nest, lanes = self.nest, self.nest.lanes
        last = self._nearest()
        whole = dims.floor_divide(last.extent, lanes)
        done = expr.index(dims.multiply(whole, lanes))

        is_staged = self._shares_sets(last)

        def elements(more: Values, at: Expr, number: int) -> list[Stmt]:
            """`number` elements of all rows."""

            def made(row: Expr, u: Expr) -> list[Stmt]:
                return store(row, {**more, last.var: expr.add(at, u)})

            if not is_staged:
                return self._squares(count, number, made)
            run = nest.builder.scratch(
                *("run", self.output.buffer.dtype, (number, self.size), Space.WORKGROUP)
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
        """`body` of each of `count` rows, which lanes have, and each of `number` elements."""
        nest = self.nest

        def piece(begin: Expr, size: int) -> list[Stmt]:
            return nest.unrolled(
                number,
                lambda u: over_lanes(nest, size, lambda n: body(expr.add(begin, n), u)),
                "u",
            )

        return self._by_pieces(count, piece)

    def _shares_sets(self, last: Axis) -> bool:
        """Whether neighbours along an axis are stored so far apart that a cache has few places for
        them, and so in runs that follow each other."""
        step = expr.coefficient(self.output.address, last.var)
        is_far = isinstance(step, int) and step * self.output.buffer.dtype.bytes % FAR == 0
        return is_far and not self.output.others and self.size > self.group

    def _nearest(self) -> Axis:
        """The axis of a row along which operands have their neighbours."""
        loads = [load for value in self.output.values for load in expr.loads(value)]
        for axis in reversed(self.inside):
            if any(expr.coefficient(load.indices[0], axis.var) == 1 for load in loads):
                return axis
        return self.inside[-1]
