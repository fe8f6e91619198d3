"""Reductions along rows that are short, several rows at a time, for CPUs.

The terms of a row are summed in the lanes of a vector, as they lie. What lanes have is combined for
all rows of a block at once, one row in each lane, and so is what is computed from the sums alone:
one division or root serves a block. Owns these loops, and how results are stored that lie across.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Load, Reduce, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Scratch, Space, Stmt, Store
from aot.kernels.lower.lane_reductions import over_lanes, reduce_lanes, terms_in_lanes
from aot.kernels.lower.nest import Axis, Kept, Nest, Output, collapse, combine, identity
from aot.kernels.lower.rows import row_of_vectors
from aot.kernels.schedules.kept_rows import KeptRows

# rows of a block where as many as a vector has lanes are too large for a cache; fewer are no block,
# and rows of fewer elements have less to share than blocks cost
FEWEST = 4
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
    size = block_size(nest, axes[-1].extent, reduces)
    if size < FEWEST:
        return None
    return _RowBlocks(nest, output, reduces, free, axes, gone, size).build()


def block_size(nest: Nest, rows: Dim, reduces: Sequence[Reduce]) -> int:
    """How many rows a block has; 0 where there are none."""
    extents = [n for r in reduces for _, n in r.axes]
    if not all(isinstance(n, int) for n in extents) or min(map(_number, reduces)) < FEWEST:
        return 0  # open rows may be long
    longest = max(
        _number(r) * sum(load.dtype.bytes for load in expr.loads(r.body)) for r in reduces
    )
    size = nest.lanes
    while size >= FEWEST:
        fits = size * longest * SHARE <= nest.target.l1_bytes
        if fits and not (isinstance(rows, int) and rows < size):
            return size
        size //= 2 if size > FEWEST and size // 2 >= FEWEST else size
    return 0


def _number(reduce: Reduce) -> int:
    count = dims.product([n for _, n in reduce.axes])
    return count if isinstance(count, int) else 0


class _RowBlocks:
    """Attributes:
    row: stands for the number of a row in its block.
    known: what is computed once a row, where it is then.
    """

    def __init__(
        self,
        nest: Nest,
        output: Output,
        reduces: Sequence[Reduce],
        free: Sequence[Axis],
        axes: Sequence[Axis],
        gone: Values,
        size: int,
    ) -> None:
        self.nest, self.output, self.reduces, self.free = nest, output, reduces, free
        *outer, self.rows = axes
        self.outer: Sequence[Axis] = outer
        self.size = size
        self.inside, more = collapse(free, output.address, output.values)
        self.gone = {**gone, **more}
        self.row = nest.builder.var("row")
        self.along = {v for r in reduces for v, _ in r.axes} | {axis.var for axis in free}

    def build(self) -> tuple[Stmt, ...]:
        nest, extent = self.nest, self.rows.extent
        self.kept = KeptRows(nest, self.output, self.reduces, self.free, self.size, are_apart=True)
        work = dims.product([n for r in self.reduces[:1] for _, n in r.axes])
        rest = dims.modulo(extent, self.size)
        blocks = Axis(nest.builder.var("rb"), dims.ceil_divide(extent, self.size))

        def block(values: Values) -> list[Stmt]:
            start = expr.mul(values[blocks.var], expr.index(self.size))
            whole = self._rows(values, start, self.size)
            if rest == 0:
                return whole
            end = expr.add(start, expr.index(self.size))
            is_whole = expr.binary("le", end, expr.index(extent))
            return [If(is_whole, tuple(whole), tuple(self._rest(values, start, rest)))]

        return nest.grid([*self.outer, blocks], block, dims.multiply(work, self.size))

    def _rest(self, values: Values, start: Expr, count: Dim) -> list[Stmt]:
        """Fewer rows than a block has: fours, and then one by one."""
        stmts: list[Stmt] = []
        done: Dim = 0
        for size in (FEWEST, 1):
            if size >= self.size:
                continue
            times = dims.floor_divide(dims.add(count, dims.multiply(done, -1)), size)
            first = expr.add(start, expr.index(done))
            stmts += self.nest.serial(
                times,
                lambda n, first=first, size=size: self._rows(  # type: ignore[misc]
                    values, expr.add(first, expr.mul(n, expr.index(size))), size
                ),
                "few",
            )
            done = dims.add(done, dims.multiply(times, size))
        return stmts

    def _rows(self, values: Values, start: Expr, size: int) -> list[Stmt]:
        """The results of `size` rows from `start` on."""
        stmts: list[Stmt] = []
        known: dict[Expr, Expr] = {}

        def at(row: Expr) -> Values:
            place = {self.rows.var: expr.add(start, row), self.row: row}
            return {**self.gone, **values, **place}

        for reduce in self.reduces:
            if size > 1:
                self._once_a_row(reduce.body, known, at, size, stmts)
            body, kept = self.kept.body(reduce, known, self.row)
            if size == 1:
                loops, known[reduce] = reduce_lanes(
                    self.nest, reduce, body, at(expr.index(0)), kept
                )
                stmts += loops
                continue
            terms = self.nest.builder.scratch(
                "terms", reduce.dtype, (size * self.nest.lanes,), Space.WORKGROUP
            )
            counts = set[int]()

            def row(
                r: Expr,
                reduce: Reduce = reduce,
                term: tuple[Expr, Sequence[Kept]] = (body, kept),
                terms: Scratch = terms,
                counts: set[int] = counts,
            ) -> list[Stmt]:
                loops, acc, count = terms_in_lanes(self.nest, reduce, term[0], at(r), term[1])
                counts.add(count)
                first = expr.mul(r, expr.index(count))

                def store(lane: Expr) -> list[Stmt]:
                    value = Load(acc, (lane,), reduce.dtype)
                    return [Store(terms, (expr.add(first, lane),), value)]

                return [*loops, *over_lanes(self.nest, count, store)]

            stmts += self.nest.serial(size, row, "r")
            (count,) = counts
            known[reduce] = self._combined(reduce, terms, count, size, stmts)
        for value in self.output.values if self.free and size > 1 else ():
            self._once_a_row(value, known, at, size, stmts)
        done = {**known, **self.kept.loaded(None, self.row)}

        def store(r: Expr, more: Values) -> list[Stmt]:
            return self.output.stores(self.nest, {**at(r), **more}, done.get)

        if not self.free:
            return stmts + over_lanes(self.nest, size, lambda lane: store(lane, {}))
        if size > 1 and self.output.axes[-1] not in self.free:
            return stmts + self._across(size, store)
        return stmts + self.nest.serial(size, lambda r: self._along(r, store), "r")

    def _combined(
        self, reduce: Reduce, terms: Scratch, count: int, size: int, into: list[Stmt]
    ) -> Expr:
        """A reduction of each row of a block from the `count` terms that are left of it."""
        nest, dtype = self.nest, reduce.dtype
        acc = nest.builder.scratch("acc", dtype, (size,))
        found = nest.builder.scratch("found", dtype, (size,), Space.WORKGROUP)

        def add(k: Expr, lane: Expr) -> Stmt:
            term = Load(terms, (expr.add(expr.mul(lane, expr.index(count)), k),), dtype)
            return Store(acc, (lane,), combine(reduce.op, Load(acc, (lane,), dtype), term))

        into += over_lanes(nest, size, lambda n: [Store(acc, (n,), identity(reduce.op, dtype))])
        into += nest.unrolled(count, lambda k: over_lanes(nest, size, lambda n: [add(k, n)]), "k")
        into += over_lanes(nest, size, lambda n: [Store(found, (n,), Load(acc, (n,), dtype))])
        return Load(found, (self.row,), dtype)

    def _once_a_row(
        self,
        value: Expr,
        known: dict[Expr, Expr],
        at: Callable[[Expr], Values],
        size: int,
        into: list[Stmt],
    ) -> None:
        """Computes what `value` has of each row's reductions that is the same along the row, for
        all rows of a block at once, and adds it to what is `known`."""
        for e in self._same_along_rows(value, known):
            held = self.nest.builder.scratch("same", e.dtype, (size,), Space.WORKGROUP)
            made = expr.transform(e, known.get)
            into += over_lanes(
                self.nest,
                size,
                lambda n, held=held, made=made: [  # type: ignore[misc]
                    Store(held, (n,), expr.substitute(made, at(n)))
                ],
            )
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

    def _across(self, size: int, store: Callable[[Expr, Values], list[Stmt]]) -> list[Stmt]:
        """Results that lie side by side where rows do: blocks of as many elements of each row as a
        vector has, which are transposed in registers, and what is left one by one."""
        nest, lanes = self.nest, self.nest.lanes
        last = self._nearest()
        whole = dims.floor_divide(last.extent, lanes)
        done = expr.index(dims.multiply(whole, lanes))

        def element(more: Values, at: Expr) -> list[Stmt]:
            return over_lanes(nest, size, lambda n: store(n, {**more, last.var: at}))

        def line(more: Values) -> list[Stmt]:
            return nest.serial(
                whole,
                lambda n: nest.unrolled(
                    lanes,
                    lambda u: element(more, expr.add(expr.mul(n, expr.index(lanes)), u)),
                    "u",
                ),
                "c",
            ) + nest.serial(
                dims.modulo(last.extent, lanes), lambda t: element(more, expr.add(done, t)), "t"
            )

        return nest.inside([axis for axis in self.inside if axis is not last], {}, line)

    def _nearest(self) -> Axis:
        """The axis of a row along which operands have their neighbours."""
        loads = [load for value in self.output.values for load in expr.loads(value)]
        for axis in reversed(self.inside):
            if any(expr.coefficient(load.indices[0], axis.var) == 1 for load in loads):
                return axis
        return self.inside[-1]
