"""Common parts of resizes of planes: reading the column tables, and vectors of columns.

Columns are picked out of two vectors of neighbours by lanes, where all terms of each vector of
results are found there; tables are asked that when the kernel runs. Owns the grid, and what both
orders of the axes have in common; resized.py has these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aot.analysis.resized import LANES, PAIR, columns_together, groups_of_rows
from aot.ir import dims, expr
from aot.ir.expr import Const, Expr, Load, Reduce, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import Scratch, Space, Stmt, Store
from aot.kernels.match.resized import Resized
from aot.kernels.nest.lane_reductions import halved
from aot.kernels.nest.nest import GRAIN, Axis, Nest, Output, Values, combined
from aot.kernels.nest.rows import row_of_vectors
from aot.kernels.rules.windows.near_terms import in_vectors, picked_by
from aot.kernels.stage.ahead import of_line, prefetch
from aot.kernels.stage.tails import below, where, whole_or_rest, within

# elements of planes up to which one workgroup has several, for which tables say the same
MOST_ELEMENTS = 4 * GRAIN
# workgroups that are enough for any number of threads, where work for more is there
WORKGROUPS = 16


class ResizedPlanes:
    """The common parts of a resize of planes, for either order of its axes.

    Attributes:
        outer, row, column: the axes of the result; tables say the same for all of `outer`.
        plane: the indices of the plane that is made now.
        begin, end: the rows of it that are made, the last one not among them.
        numbers, bases, far: which of a pair of vectors' elements each term of a vector of columns
            is, where the pair begins, and how far from there a lane's terms are.
    """

    def __init__(
        self,
        nest: Nest,
        output: Output,
        found: Resized,
        axes: Sequence[Axis],
        gone: Values,
    ) -> None:
        self.nest, self.output, self.found, self.gone = nest, output, found, gone
        *outer, self.row, self.column = axes
        self.outer: Sequence[Axis] = outer
        self.count, self.width = self.row.count, self.column.count
        self.height, self.read = found.extents
        self.taps = terms_of(found.columns)
        self.row_taps = terms_of(found.rows)
        self.tile = columns_together(self.width) if found.is_columns_first else self.width
        self.vectors = -(-self.tile // LANES)
        self.start: Expr = expr.index(0)
        build = nest.builder
        shape = (self.taps, self.vectors * LANES)
        self.numbers = build.scratch("numbers", DType.I16, shape, Space.WORKGROUP)
        self.bases = build.scratch("bases", DType.I32, (self.vectors,), Space.WORKGROUP)
        self.far = build.scratch("far", DType.U32, (LANES,), Space.WORKGROUP)
        self.plane: Values = {}
        self.begin = self.end = self.start

    def fits(self) -> bool:
        raise NotImplementedError

    def rows(self, start: Expr, count: int) -> list[Stmt]:
        """Statements for `count` rows of a plane from `start`, skipping those past the end."""
        raise NotImplementedError

    def build(self) -> tuple[Stmt, ...]:
        nest, outer = self.nest, list(self.outer)
        total = dims.product([axis.extent for axis in outer])
        blocks = 1
        if isinstance(total, int):
            most = self.count * self.width // MOST_ELEMENTS
            blocks = max(1, min(-(-WORKGROUPS // max(total, 1)), most))
        size = groups_of_rows(-(-self.count // blocks))
        blocks = -(-self.count // size)
        planes = self._planes() if blocks == 1 else 1
        of_planes = outer[-1] if planes > 1 else None
        if of_planes is not None:
            outer[-1] = Axis(nest.builder.var("pb"), dims.floor_divide(of_planes.extent, planes))
        block = Axis(nest.builder.var("rb"), blocks)
        tile = Axis(nest.builder.var("cb"), -(-self.width // self.tile))

        def body(values: Values) -> list[Stmt]:
            start = expr.mul(values[block.var], expr.index(size))
            self.start = expr.mul(values[tile.var], expr.index(self.tile))

            def plane(number: Expr) -> list[Stmt]:
                here = {**self.gone, **values}
                if of_planes is not None:
                    first = expr.mul(values[outer[-1].var], expr.index(planes))
                    here[of_planes.var] = expr.add(first, number)
                self.plane = here
                self.begin = start
                last = expr.linear(start, size)
                self.end = expr.binary("min", last, expr.index(self.count))
                return self.rows(start, size)

            return [*self._asked(), *nest.serial(planes, plane, "p")]

        work = size * self.tile * (self.taps + self.row_taps) // 2 * planes
        return nest.grid([*outer, block, tile], body, work)

    def _planes(self) -> int:
        """The number of planes that a workgroup computes."""
        if not self.outer or not isinstance(self.outer[-1].extent, int):
            return 1
        extent, var = self.outer[-1].extent, self.outer[-1].var
        pair = (self.found.first, self.found.last)
        tables = {load for r in pair for load in expr.loads(r.body)} - {self.found.data}
        if any(var in expr.free_vars(table) for table in tables):
            return 1
        most = MOST_ELEMENTS // max(1, self.count * self.width)
        return max((n for n in range(1, extent + 1) if extent % n == 0 and n <= most), default=1)

    # Columns

    def first_column(self, vector: Expr) -> Expr:
        """The first column of vector `vector`; the last vector is moved back so that all its
        columns exist.
        """
        first = expr.linear(self.start, (vector, LANES))
        are_whole = self.tile % LANES == 0 and self.width % self.tile == 0
        if are_whole or self.width < LANES:
            return first
        return expr.binary("min", first, expr.index(self.width - LANES))

    def column_of(self, vector: Expr, lane: Expr) -> Expr:
        return expr.add(self.first_column(vector), lane)

    def _position(self, term: int, column: Expr) -> Expr:
        (var, _) = self.found.columns.axes[0]
        here = {var: expr.index(term), self.column.var: column}
        return expr.substitute(self.found.column, here)

    def _asked(self) -> list[Stmt]:
        """Statements that read the column tables, once for all rows."""
        nest, last = self.nest, min(LANES, self.width) - 1
        zero = expr.index(0)

        def none(lane: Expr) -> list[Stmt]:
            return [Store(self.far, (lane,), expr.const(0, DType.U32))]

        def vector(o: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            first = nest.let(self.first_column(o), stmts, "first")
            ends = [self._position(0, expr.linear(first, n)) for n in (0, last)]
            least = expr.binary("min", expr.binary("min", *ends), expr.index(self.read - PAIR))
            least = expr.binary("max", least, zero)
            if self.read % LANES == 0 and self._span() + LANES <= PAIR:
                # lines begin where vectors do, and no vector stands in two of them
                least = expr.mul(
                    expr.binary("floordiv", least, expr.index(LANES)), expr.index(LANES)
                )
            base = nest.let(least, stmts, "base")
            stmts.append(Store(self.bases, (o,), expr.cast(base, DType.I32)))

            def numbers(lane: Expr) -> list[Stmt]:
                made: list[Stmt] = []
                most: Expr = Load(self.far, (lane,), DType.U32)
                at = expr.linear((o, LANES), lane)
                for k in range(self.taps):
                    position = in_vectors(self._position(k, expr.add(first, lane)))
                    ahead = expr.binary("sub", position, expr.cast(base, DType.I64))
                    number = nest.let(expr.cast(ahead, DType.I32), made, "d")
                    made.append(
                        Store(self.numbers, (expr.index(k), at), expr.cast(number, DType.I16))
                    )
                    most = expr.binary("max", most, expr.cast(number, DType.U32))
                return [*made, Store(self.far, (lane,), most)]

            return [*stmts, nest.spread(LANES, lambda lane: self.on_columns(lane, numbers(lane)))]

        stmts = [nest.spread(LANES, none), *nest.serial(self.vectors, vector, "o")]
        return [*stmts, *halved(nest, "max", self.far, LANES, 1)]

    def _span(self) -> int:
        """The number of source elements between the first and the last that a vector of columns
        reads in a resize."""
        return -(-(LANES - 1) * self.read // self.width) + self.taps

    def on_columns(self, lane: Expr, stmts: list[Stmt]) -> list[Stmt]:
        """`stmts` of a lane, guarded if a vector has more lanes than there are columns."""
        return where(None if self.width >= LANES else below(lane, self.width), stmts)

    def is_near(self) -> Expr:
        far = Load(self.far, (expr.index(0),), DType.U32)
        return expr.binary("lt", far, expr.const(PAIR, DType.U32))

    def picked(
        self,
        vector: Expr,
        elements: Sequence[Callable[[Expr], Expr]],
        made: Callable[[int, Expr, Expr], list[Stmt]],
        is_on: Callable[[Expr, list[Stmt]], list[Stmt]],
    ) -> list[Stmt]:
        """Statements for a vector of columns of several lines, selected from vectors: `elements`
        read each line, and `made(line, lane, sum)` consumes the results."""
        nest, build = self.nest, self.nest.builder
        windows = [build.scratch("window", DType.F32, (PAIR,), Space.PRIVATE) for _ in elements]
        stmts: list[Stmt] = []
        begin, first = self._begins(vector, stmts)

        def brought(half: int, lane: Expr) -> list[Stmt]:
            place = expr.add(expr.index(half * LANES), lane)
            found: list[Stmt] = []
            for window, element in zip(windows, elements, strict=True):
                value = element(expr.add(begin, place))
                if self.read < PAIR:
                    there = below(place, self.read)
                    value = expr.transform(value, lambda e, there=there: _where(there, e))  # type: ignore[misc]
                if half * LANES >= self.read:
                    value = expr.const(0.0, DType.F32)
                found.append(Store(window, (place,), value))
            return found

        def result(lane: Expr) -> list[Stmt]:
            found: list[Stmt] = []
            places = [
                picked_by(nest.let(self._number(vector, lane, k), found, "d"), PAIR)
                for k in range(self.taps)
            ]
            column = expr.add(first, lane)
            sums = self._summed(
                column,
                [[Load(w, (place,), DType.F32) for place in places] for w in windows],
                found,
            )
            for n, total in enumerate(sums):
                found += made(n, lane, total)
            return is_on(lane, found)

        stmts += [nest.spread(LANES, lambda lane, h=h: brought(h, lane)) for h in (0, 1)]  # type: ignore[misc]
        return [*stmts, nest.spread(LANES, result)]

    def _number(self, vector: Expr, lane: Expr, term: int) -> Expr:
        """The distance of a lane's term from its vector's base."""
        at = expr.linear((vector, LANES), lane)
        return expr.cast(Load(self.numbers, (expr.index(term), at), DType.I16), DType.I32)

    def plain(
        self,
        vector: Expr,
        element: Callable[[Expr], Expr],
        made: Callable[[Expr, Expr], list[Stmt]],
        is_on: Callable[[Expr, list[Stmt]], list[Stmt]],
    ) -> list[Stmt]:
        """The same statements as `picked`, for one line whose elements are loaded one by one."""
        stmts: list[Stmt] = []
        begin, first = self._begins(vector, stmts)

        def result(lane: Expr) -> list[Stmt]:
            found: list[Stmt] = []
            places = [self._inside(begin, self._number(vector, lane, k)) for k in range(self.taps)]
            column = expr.add(first, lane)
            (total,) = self._summed(column, [[element(place) for place in places]], found)
            return is_on(lane, [*found, *made(lane, total)])

        return [*stmts, self.nest.spread(LANES, result)]

    def _begins(self, vector: Expr, into: list[Stmt]) -> tuple[Expr, Expr]:
        """(base of a vector's source elements, its first column)."""
        begin = self.nest.let(index_in(self.bases, vector), into, "begin")
        return begin, self.nest.let(self.first_column(vector), into, "first")

    def _inside(self, begin: Expr, number: Expr) -> Expr:
        """The source column of a term, clamped: the values come from a stored table, so that no
        proof bounds them."""
        at = expr.add(begin, expr.cast(number, DType.INDEX))
        last = expr.index(self.read - 1)
        return expr.binary("min", expr.binary("max", at, expr.index(0)), last)

    def _summed(
        self, column: Expr, lines: Sequence[Sequence[Expr]], into: list[Stmt]
    ) -> list[Expr]:
        """The sum along columns of each line's terms, with common subexpressions bound once."""
        reduce = self.found.columns
        held, bodies = self._terms(reduce, self.taps, {self.column.var: column}, into)
        terms = (
            [expr.substitute(b, {held: e}) for b, e in zip(bodies, line, strict=True)]
            for line in lines
        )
        return [total_of(reduce, each) for each in terms]

    def _terms(
        self, reduce: Reduce, count: int, place: Values, into: list[Stmt]
    ) -> tuple[Var, list[Expr]]:
        """(variable for the summed element, terms) of a sum at a place, with values from tables
        bound to variables."""
        (var, _) = reduce.axes[0]
        inside = self.found.inside(reduce)
        held = Var("held", inside.dtype)
        terms: list[Expr] = []
        for k in range(count):
            body = expr.transform(reduce.body, {inside: held}.get)
            body = expr.substitute(body, {**self.plane, var: expr.index(k), **place})
            terms.append(self._named(body, held, into))
        return held, terms

    def _named(self, body: Expr, held: Var, into: list[Stmt]) -> Expr:
        """`body` with its loads that do not depend on `held` bound to variables."""

        def name(e: Expr) -> Expr | None:
            if isinstance(e, (Var, Const)) or held in expr.free_vars(e) or not expr.loads(e):
                return None
            return self.nest.let(e, into, "w")

        return expr.transform(body, name)

    # Rows

    def named_rows(
        self, reduce: Reduce, row: Expr, element: Callable[[int, Expr], Expr], into: list[Stmt]
    ) -> list[Callable[[Expr], Expr]]:
        """The terms of a sum along rows, as functions of the column, with values from the row's
        table bound to variables. `element(k, column)` is the element that term k multiplies."""
        held, bodies = self._terms(reduce, self.row_taps, {self.row.var: row}, into)
        return [
            lambda column, body=body, k=k: expr.substitute(body, {held: element(k, column)})  # type: ignore[misc]
            for k, body in enumerate(bodies)
        ]

    def row_position(self, term: Expr, row: Expr) -> Expr:
        """The source row that a term of a result row reads."""
        (var, _) = self.found.rows.axes[0]
        return expr.substitute(self.found.row, {var: term, self.row.var: row})

    def loaded(self, row: Expr, column: Expr) -> Expr:
        """The source's element at a row and column."""
        return self.found.at(self.found.leaf, row, column, self.plane)

    def asked_ahead(self, row: Expr, count: int, part: Expr, parts: int) -> list[Stmt]:
        """Prefetches part `part` of `parts` of the `count` rows from `row`, as loads on demand
        would wait behind stores."""
        data = self.found.data
        size, bytes = data.source.shape[0], data.dtype.bytes
        is_small = isinstance(size, int) and size * bytes <= self.nest.target.l2_bytes // 2
        if is_small or self.found.row_step != self.read:
            return []
        each = -(-count * self.read // (of_line(data.source) * parts)) * of_line(data.source)
        stmts: list[Stmt] = []
        own = expr.mul(part, expr.index(each))
        first = self.found.at(data.indices[0], row, own, self.plane)
        return stmts + prefetch(data.source, self.nest.let(first, stmts, "ahead"), each)

    def stores(self, row: Expr, column: Expr, total: Expr) -> list[Stmt]:
        """The stores of one element of the result."""
        stmts: list[Stmt] = []
        made = self.nest.let(total, stmts, "sum")
        place = {**self.plane, self.row.var: row, self.column.var: column}
        last = self.found.last
        return stmts + self.output.stores(self.nest, place, lambda e: made if e is last else None)

    def all_columns(self, row: Expr, total: Callable[[Expr, int], Expr]) -> list[Stmt]:
        """Statements for all columns of a result row in the tile; `total(n, moved)` is the sum of
        column n, whose vector was moved back by `moved` columns."""
        nest = self.nest
        if self._has_lines():
            return _AlignedRow(self, row, total).build()

        def columns(count: int) -> list[Stmt]:
            lines, left = divmod(count, LANES)
            moved = LANES - left if lines else 0

            def element(at: Expr, moved: int = 0) -> list[Stmt]:
                return self.stores(row, expr.add(self.start, at), total(at, moved))

            def last(lane: Expr) -> list[Stmt]:
                return where(below(lane, left), element(expr.linear(lines * LANES, lane), moved))

            stmts = row_of_vectors(
                nest, expr.index(0), lines * LANES, LANES, lambda at, *_: element(at)
            )
            return [*stmts, nest.spread(LANES, last)] if left else stmts

        return whole_or_rest(self.start, self.width, self.tile, columns)

    def _has_lines(self) -> bool:
        """Whether rows are stored past the caches and start at any alignment."""
        if not self.output.buffer.is_streamed or self.width % LANES == 0:
            return False
        # an element next to a row's own is one of the row before, as far as it is asked
        last = self.found.last
        held = Var("s", last.dtype)
        values = [
            expr.transform(v, lambda e: held if e is last else None) for v in self.output.values
        ]
        is_alone = not any(expr.loads(v) or expr.free_vars(v) - {held} for v in values)
        steps = (expr.coefficient(self.output.address, a.var) for a in (self.row, self.column))
        is_dense = tuple(steps) == (self.width, 1)
        return is_alone and is_dense and self.tile == self.width >= 2 * LANES

    def there(self, row: Expr, size: int, stmts: list[Stmt]) -> list[Stmt]:
        """`stmts` of a row, guarded if blocks of `size` rows may pass the last row."""
        return where(within(row, self.count, size), stmts)


class _AlignedRow:
    """A row stored past the caches, in vectors aligned to cache lines.

    Sums are made in vectors that begin with the row, and lines picked out of two of them: loads of
    what lies in two lines wait for what is stored. What is left of a row is stored with what the
    next one begins with.

    Attributes:
        total: as `all_columns` has it.
        before: elements in front of the row in its first cache line.
        ahead: how far behind the first one of `sums` a line of it begins.
        sums: two vectors.
        tail: what is left of a row.
    """

    def __init__(
        self, planes: ResizedPlanes, row: Expr, total: Callable[[Expr, int], Expr]
    ) -> None:
        self.planes, self.row, self.total = planes, row, total
        nest, scratch = planes.nest, planes.nest.builder.scratch
        self.stmts: list[Stmt] = []
        self.zero = expr.index(0)
        place = {**planes.plane, planes.row.var: row, planes.column.var: self.zero}
        address = expr.substitute(planes.output.address, place)
        before = expr.binary("floormod", address, expr.index(LANES))
        self.before = nest.let(before, self.stmts, "before")
        lanes = expr.const(LANES, DType.I32)
        ahead = expr.binary("sub", lanes, expr.cast(self.before, DType.I32))
        self.ahead = nest.let(ahead, self.stmts, "ahead")
        self.sums = scratch("sums", DType.F32, (PAIR,), Space.PRIVATE)
        self.tail = scratch("tail", DType.F32, (LANES,), Space.WORKGROUP)

    def _each(self, body: Callable[[Expr], list[Stmt]]) -> Stmt:
        return self.planes.nest.spread(LANES, body)

    def _second(self, lane: Expr) -> Expr:
        """The index of a lane in the second vector of sums."""
        return expr.add(expr.index(LANES), lane)

    def _made(self, line: Expr) -> Stmt:
        """The store of a vector of columns' sums, as the second vector."""

        def one(lane: Expr) -> list[Stmt]:
            value = self.total(expr.linear((line, LANES), lane), 0)
            return [Store(self.sums, (self._second(lane),), value)]

        return self._each(one)

    def _kept(self, lane: Expr) -> list[Stmt]:
        """Statements that move the second vector to the first."""
        return [Store(self.sums, (lane,), Load(self.sums, (self._second(lane),), DType.F32))]

    def _picked(self, lane: Expr) -> Expr:
        number = expr.binary("add", self.ahead, expr.cast(lane, DType.I32))
        return Load(self.sums, (expr.cast(number, DType.INDEX),), DType.F32)

    def _column(self, line: Expr, lane: Expr) -> Expr:
        return expr.sub(expr.linear((line, LANES), lane), self.before)

    def _stored(self, line: Expr, value: Callable[[Expr], Expr]) -> Callable[[Expr], list[Stmt]]:
        return lambda lane: self.planes.stores(self.row, self._column(line, lane), value(lane))

    def _held(self, lane: Expr) -> list[Stmt]:
        return [Store(self.tail, (lane,), self._picked(lane))]

    def _line(self, line: Expr) -> list[Stmt]:
        return [self._each(self._stored(line, self._picked)), self._each(self._kept)]

    def _first(self) -> list[Stmt]:
        """Statements that store the cache line in which the row begins, with the tail of the row
        before."""

        def own(lane: Expr) -> list[Stmt]:
            store = self._stored(self.zero, self._picked)(lane)
            return where(expr.binary("le", self.before, lane), store)

        def joined(lane: Expr) -> Expr:
            other = Load(self.tail, (lane,), DType.F32)
            return expr.select(expr.binary("lt", lane, self.before), other, self._picked(lane))

        is_first = expr.binary("eq", self.row, self.planes.begin)
        stored = self._stored(self.zero, joined)
        return where(is_first, [self._each(own)], lambda: [self._each(stored)])

    def build(self) -> list[Stmt]:
        nest, width, stmts = self.planes.nest, self.planes.width, self.stmts
        lines, left = divmod(width, LANES)

        def sums_left(lane: Expr) -> list[Stmt]:
            # a whole vector is stored, which the next load has before memory does
            there = below(lane, left)
            value = self.total(expr.linear(lines * LANES, lane), LANES - left)
            value = expr.transform(value, lambda e: _where(there, e))
            return [Store(self.sums, (self._second(lane),), value)]

        def whole(n: Expr) -> list[Stmt]:
            line = expr.linear(n, 1)
            return [self._made(line), *self._line(line)]

        nothing = expr.const(0.0, DType.F32)
        stmts += [
            self._each(lambda lane: [Store(self.sums, (lane,), nothing)]),
            self._made(self.zero),
            *self._first(),
            self._each(self._kept),
            *nest.serial(lines - 1, whole, "o"),
            self._each(sums_left),
        ]
        behind = expr.linear(self.before, width)
        is_full = expr.binary("le", expr.index((lines + 1) * LANES), behind)
        is_full = nest.let(is_full, stmts, "full")
        full = [*self._line(expr.index(lines)), self._each(self._held)]
        stmts += where(is_full, full, lambda: [self._each(self._held)])
        line = expr.select(is_full, expr.index(lines + 1), expr.index(lines))

        def rest(lane: Expr) -> list[Stmt]:
            at = self._column(line, lane)
            store = self.planes.stores(self.row, at, Load(self.tail, (lane,), DType.F32))
            return where(below(at, width), store)

        is_last = expr.binary("le", self.planes.end, expr.linear(self.row, 1))
        return stmts + where(is_last, [self._each(rest)])


def _where(guard: Expr, e: Expr) -> Expr | None:
    """`e`, if it is a load, with a guard and 0 where that fails; else None."""
    if not isinstance(e, Load):
        return None
    zero = expr.const(e.dtype.numpy.type(0).item(), e.dtype)
    return replace(e, guard=guard, other=zero)


def total_of(reduce: Reduce, terms: Sequence[Expr]) -> Expr:
    """The sum of a reduction's terms."""
    total: Expr | None = None
    for term in terms:
        total = term if total is None else combined(reduce.op, total, term)
    assert total is not None
    return total


def terms_of(reduce: Reduce) -> int:
    """The number of terms of a reduction with one axis."""
    ((_, count),) = reduce.axes
    return int(count)


def index_in(scratch: Scratch, *place: Expr) -> Expr:
    """An index loaded from 32-bit scratch."""
    return expr.cast(Load(scratch, place, DType.I32), DType.INDEX)
