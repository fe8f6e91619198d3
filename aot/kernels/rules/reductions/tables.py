"""Reductions of few terms at positions from tables, as in resizing along a line. Positions for a
vector of results are computed once for many rows.

Lanes gather terms along the result's innermost axis, and where they are does not depend on the row.
Owns these loops, for CPUs; near_terms.py has those of targets that pick lanes out of vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Const, Expr, Load, Reduce, Unary, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, If, Let, Space, Stmt, Store
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.data_places import vector_places
from aot.kernels.nest.nest import GRAIN, Axis, Nest, Output, collapse, combined
from aot.kernels.nest.rows import row_of_vectors
from aot.kernels.rules.windows.near_terms import near_columns

# rows of a workgroup, and terms that are written out
MOST_ROWS, MOST_TERMS = 64, 8
# elements of the lines of several planes up to which one workgroup has them
MOST_ELEMENTS = 4 * GRAIN
# terms that may ask, each element by itself, whether they are there
MOST_GUARDED = 4
# rows whose elements are copied one by one, each at the place that a table says for all of them
COPIED_ROWS = 8


def written_out(
    nest: Nest, output: Output, reduces: Sequence[Reduce], least: int = 1
) -> Reduce | None:
    """The output's only reduction, if its terms can be unrolled on a CPU with vectors and number at
    least `least`; else None."""
    if nest.is_gpu or nest.lanes == 1 or len(reduces) != 1 or not output.axes:
        return None
    (reduce,) = reduces
    terms = [n for _, n in reduce.axes]
    is_known = all(isinstance(n, int) for n in terms)
    return reduce if is_known and least <= dims.product(terms) <= MOST_TERMS else None


def schedule_tables(work: Work) -> Build | None:
    """The loops of a reduction with indices from tables; None for other outputs."""
    found = work.reduced
    return None if found.free else _tables(work.nest, found.output, found.reduces)


def schedule_gathered(work: Work) -> Build | None:
    """The loops of a gather along the innermost axis with the same table for all rows, as a
    reduction of one term; None for other outputs."""
    if not work.elements.has_vectors:
        return None
    nest, output = work.nest, work.elements.in_vectors
    if len(output.axes) < 2 or output.others:
        return None
    inner, rows = output.axes[-1].var, output.axes[-2].var
    chosen = [
        load
        for load in expr.loads(output.value)
        if any(inner in expr.free_vars(place) for place in expr.loads(load.indices[0]))
    ]
    if len(chosen) != 1 or chosen[0].guard is not None:
        return None
    (load,) = chosen
    places = [expr.free_vars(place) for place in expr.loads(load.indices[0])]
    if any({rows, inner} <= known for known in places):
        return None
    one = Reduce("sum", ((Var("t"), 1),), load, load.dtype)
    reduced = output.rewritten(lambda e: expr.transform(e, {load: one}.get))  # type: ignore[arg-type]
    return _tables(nest, reduced, [one])


def _tables(nest: Nest, output: Output, reduces: Sequence[Reduce]) -> Build | None:
    reduce = written_out(nest, output, reduces)
    if reduce is None:
        return None
    axes, gone = collapse(output.axes, output.address, output.values)
    if len(axes) < 2 or not _is_gathered(reduce, axes[-1]):
        return None
    return Tables(nest, output, reduce, axes, gone).build


def _is_gathered(reduce: Reduce, inner: Axis) -> bool:
    """Whether a load's index along `inner` comes from another operand, as in a gather."""
    terms = dims.product([n for _, n in reduce.axes])
    loads = [load for load in expr.loads(reduce.body) if load.guard is not None]
    is_small = isinstance(terms, int) and terms * len(loads) <= MOST_GUARDED
    return any(
        isinstance(load.source, Buffer)
        and (load.guard is None or (is_small and any(map(_is_computed, load.indices))))
        and expr.coefficient(load.indices[0], inner.var) is None
        and any(expr.loads(index) for index in load.indices)
        for load in expr.loads(reduce.body)
    )


def _is_computed(e: Expr) -> bool:
    """Whether an index is computed from loaded data in floating point, and not just loaded and
    added."""
    return bool(expr.loads(e)) and any(
        isinstance(node, Unary) and node.dtype.is_float for node in expr.nodes(e)
    )


class Tables:
    """The loops of a reduction whose indices come from tables.

    Attributes:
        outer, planes, rows, inner: the axes of the result in their order; a workgroup has a block
            of rows, or the rows of several planes, for which tables say the same.
    """

    def __init__(
        self,
        nest: Nest,
        output: Output,
        reduce: Reduce,
        axes: Sequence[Axis],
        gone: dict[Var, Expr],
    ) -> None:
        self.nest, self.output, self.reduce, self.gone = nest, output, reduce, gone
        *outer, self.rows, self.inner = axes
        self.outer: Sequence[Axis] = outer
        self.planes: Axis | None = None

    def build(self) -> tuple[Stmt, ...]:
        nest, extent = self.nest, self.rows.extent
        # columns of more rows would be stored to lines that share the sets of a cache
        is_computed = any(_is_computed(index) for load in self._data() for index in load.indices)
        size = most = COPIED_ROWS if is_computed else MOST_ROWS
        if isinstance(extent, int):
            size = max(1, -(-extent // max(1, -(-extent // most))))
        outer, planes = list(self.outer), self._planes(size)
        if planes > 1:
            of_planes = outer.pop()
            self.planes = Axis(of_planes.var, planes)
            outer.append(Axis(nest.builder.var("pb"), of_planes.count // planes))
        blocks = Axis(nest.builder.var("rb"), dims.ceil_divide(extent, size))
        rest = dims.modulo(extent, size)

        def block(values: dict[Var, Expr]) -> list[Stmt]:
            start = expr.mul(values[blocks.var], expr.index(size))
            if self.planes is not None:
                first = expr.mul(values[outer[-1].var], expr.index(planes))
                values = {**values, self.planes.var: first}
            whole = self._columns(values, start, size)
            if rest == 0:
                return whole
            end = expr.add(start, expr.index(size))
            is_whole = expr.binary("le", end, expr.index(extent))
            return [If(is_whole, tuple(whole), tuple(self._columns(values, start, rest)))]

        work = dims.multiply(self.inner.extent, 2 * size * planes)
        return nest.grid([*outer, blocks], block, work)

    def _planes(self, size: int) -> int:
        """The number of planes whose rows a workgroup does together."""
        extents = self.inner.extent, self.rows.extent
        if not self.outer or not all(isinstance(n, int) for n in extents) or size != extents[1]:
            return 1
        var, extent = self.outer[-1].var, self.outer[-1].extent
        inner = [load for e in self._data() for index in e.indices for load in expr.loads(index)]
        tables = {*expr.loads(self.reduce.body)} - {*self._data()} | {*inner}
        if not isinstance(extent, int) or any(var in expr.free_vars(table) for table in tables):
            return 1
        most = MOST_ELEMENTS // max(1, dims.product(extents))
        return max((n for n in range(1, extent + 1) if extent % n == 0 and n <= most), default=1)

    def _data(self) -> list[Load]:
        """The loads of the reduction whose indices come from tables."""
        return [x for x in expr.loads(self.reduce.body) if any(expr.loads(i) for i in x.indices)]

    def each_row(
        self,
        values: dict[Var, Expr],
        start: Expr,
        count: Dim,
        body: Callable[[dict[Var, Expr]], list[Stmt]],
    ) -> list[Stmt]:
        """`body(indices)` for `count` rows from `start`, of all planes."""
        nest, planes = self.nest, self.planes

        def rows(place: dict[Var, Expr]) -> list[Stmt]:
            return nest.serial(
                count, lambda n: body({**place, self.rows.var: expr.add(start, n)}), "r"
            )

        if planes is None:
            return rows({})
        first = values[planes.var]
        return nest.serial(
            planes.extent, lambda p: rows({planes.var: expr.add(first, p)}), planes.var.name
        )

    def _columns(self, values: dict[Var, Expr], start: Expr, count: Dim) -> list[Stmt]:
        """Statements for the elements of `count` rows from `start`."""
        nest, inner = self.nest, self.inner
        near = near_columns(self, values, start, count)
        if near is not None:
            return near
        computed = self._computed(values, start, count)
        if computed is not None:
            return computed

        def vector(at: Expr, width: int, lane: Expr | None) -> list[Stmt]:
            return self.rows_of_lane({**self.gone, **values, inner.var: at}, start, count)

        if self.output.value is self.reduce and isinstance(count, int) and count >= COPIED_ROWS:
            return self._copied(values, start, count)
        return row_of_vectors(nest, expr.index(0), inner.extent, nest.lanes, vector)

    def _computed(self, values: dict[Var, Expr], start: Expr, count: Dim) -> list[Stmt] | None:
        """Statements for `count` rows from `start`, column by column, if positions are computed
        from data such as a sampling grid: vectors of positions come first, for all rows. None for
        other positions.
        """
        nest, inner, lanes = self.nest, self.inner, self.nest.lanes
        extent, lane = inner.extent, nest.builder.var("l")
        if not isinstance(extent, int) or not isinstance(count, int) or extent < lanes:
            return None
        place = {**self.gone, **values, inner.var: lane}
        found = [*self.named_terms(place)[1]]
        if not any(map(_is_computed, found)):
            return None
        places = vector_places(nest, lane)
        if places is None:
            return None
        numbers = {e: places.number(e) for e in found if e.dtype is DType.INDEX}
        if None in numbers.values():
            return None
        kept = [
            nest.builder.scratch(
                "kept", DType.I32 if e in numbers else e.dtype, (lanes,), Space.WORKGROUP
            )
            for e in found
        ]

        def block(first: Expr) -> list[Stmt]:
            def keep(at: Expr) -> list[Stmt]:
                meant = {lane: expr.add(first, at)}
                stmts: list[Stmt] = []
                for e, scratch in zip(found, kept, strict=True):
                    value = numbers.get(e) or places(e)
                    stmts.append(Store(scratch, (at,), expr.substitute(value, meant)))
                return stmts

            def column(n: Expr) -> list[Stmt]:
                known = [
                    expr.cast(Load(s, (n,), s.dtype), e.dtype)
                    for e, s in zip(found, kept, strict=True)
                ]
                at = {**self.gone, **values, inner.var: expr.add(first, n)}
                return self.rows_of_lane(
                    at, start, count, is_written_out=count <= COPIED_ROWS, known=known
                )

            return [nest.spread(lanes, keep), *nest.serial(lanes, column, "c")]

        whole, rest = divmod(extent, lanes)
        stmts = nest.serial(whole, lambda n: block(expr.mul(n, expr.index(lanes))), "o")

        def last(n: Expr) -> list[Stmt]:
            at = {inner.var: expr.add(expr.index(whole * lanes), n)}
            return self.rows_of_lane({**self.gone, **values, **at}, start, count)

        return stmts + nest.serial(rest, last, "t")

    def _copied(self, values: dict[Var, Expr], start: Expr, count: int) -> list[Stmt]:
        """Statements for all columns as in `_columns`, but element by element, with several rows at
        a time.
        """
        nest, inner = self.nest, self.inner

        def rows(first: Expr, several: int) -> list[Stmt]:
            def column(at: Expr) -> list[Stmt]:
                place = {**self.gone, **values, inner.var: at}
                return self.rows_of_lane(place, first, several, is_written_out=True)

            return nest.serial(inner.extent, column, "c")

        whole, rest = divmod(count, COPIED_ROWS)
        size = expr.index(COPIED_ROWS)
        stmts = nest.serial(
            whole, lambda n: rows(expr.add(start, expr.mul(n, size)), COPIED_ROWS), "rs"
        )
        if rest:
            stmts += rows(expr.add(start, expr.index(whole * COPIED_ROWS)), rest)
        return stmts

    def rows_of_lane(
        self,
        place: dict[Var, Expr],
        start: Expr,
        count: Dim,
        *,
        is_written_out: bool = False,
        known: Sequence[Expr] | None = None,
    ) -> list[Stmt]:
        """Statements for a lane's elements in all rows; `known` has the values common to all rows,
        in the order in which they are bound."""
        stmts = list[Stmt]()
        terms, named = self.named_terms(place)
        stmts += [Let(v, e) for v, e in zip(named.values(), known or named, strict=True)]

        def row(number: dict[Var, Expr]) -> list[Stmt]:
            total: Expr | None = None
            for term in terms:
                here = expr.substitute(term, number)
                total = here if total is None else combined(self.reduce.op, total, here)
            assert total is not None
            return self.stores(total, {**place, **number})

        if is_written_out and isinstance(count, int) and self.planes is None:
            one = self.rows.var
            return stmts + self.nest.unrolled(count, lambda n: row({one: expr.add(start, n)}), "r")
        return stmts + self.each_row(place, start, count, row)

    def stores(self, total: Expr, place: dict[Var, Expr]) -> list[Stmt]:
        """The stores of an element whose terms sum to `total`."""
        stmts: list[Stmt] = []
        made = self.nest.let(total, stmts, "sum")
        return stmts + self.output.stores(
            self.nest, place, lambda e: made if e is self.reduce else None
        )

    def named_terms(self, place: dict[Var, Expr]) -> tuple[list[Expr], dict[Expr, Var]]:
        """(terms of an element, variables for the values in them that all rows share)."""
        variables = [v for v, _ in self.reduce.axes]
        extents = [range(n) for _, n in self.reduce.axes if isinstance(n, int)]
        open_vars = {self.rows.var} | ({self.planes.var} if self.planes else set())
        place = {v: e for v, e in place.items() if v not in open_vars}
        named: dict[Expr, Var] = {}

        def name(e: Expr) -> Expr | None:
            if isinstance(e, (Var, Const)) or open_vars & expr.free_vars(e):
                return None
            if not expr.loads(e):
                return None
            if e not in named:
                named[e] = self.nest.builder.var("t", e.dtype)
            return named[e]

        terms = []
        for tap in product(*extents):
            at = {**place, **{v: expr.index(k) for v, k in zip(variables, tap, strict=True)}}
            terms.append(expr.transform(expr.substitute(self.reduce.body, at), name))
        return terms, named
