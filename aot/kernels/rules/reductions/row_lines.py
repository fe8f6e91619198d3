"""Stores rows that are shorter or longer than whole vectors, but contiguous with each other, as one
line.

A vector at the end of a row has elements of the next one. What is one value in a row is chosen for
each lane; what is the same in all rows is read from a copy as long as the rows are together. Owns
these vectors, not what is known of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import gcd

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Load, Var
from aot.kernels.ir.nodes import Scratch, Space, Stmt, Store
from aot.kernels.nest.lane_reductions import over_lanes
from aot.kernels.nest.nest import Nest
from aot.kernels.nest.rows import row_of_vectors

# rows that fill vectors together, and how many of these, at most: each one has code of its own
ROWS, VECTORS = 4, 8


@dataclass(frozen=True)
class RowLines:
    """Contiguous rows of `length` elements that are stored together in whole vectors.

    Attributes:
        rows: how many fill vectors.
        store: of element `at` of row `row`.
    """

    nest: Nest
    rows: int
    length: int
    row: Var
    at: Var
    store: Store

    @staticmethod
    def of(
        nest: Nest, length: Dim, count: Dim, store: Callable[[Var, Var], Sequence[Stmt]]
    ) -> RowLines | None:
        """The line that rows form; None where rows are long or whole vectors, too few, or not
        contiguous."""
        if not isinstance(length, int) or length % nest.lanes == 0:
            return None
        rows = nest.lanes // gcd(length, nest.lanes)
        if rows > ROWS or rows * length > VECTORS * nest.lanes:
            return None
        if isinstance(count, int) and count < 2 * rows * VECTORS:
            return None
        row, at = nest.builder.var("row"), nest.builder.var("at")
        stmts = store(row, at)
        if len(stmts) != 1 or not isinstance(stmts[0], Store) or stmts[0].guard is not None:
            return None
        made = RowLines(nest, rows, length, row, at, stmts[0])
        is_known = made._only_loads_vary(stmts[0].value) and all(
            made._steps(load) in ((0, 0), (1, 0), (0, 1), (length, 1))
            for load in expr.loads(stmts[0].value)
        )
        return made if is_known and made._steps(stmts[0]) == (length, 1) else None

    def _steps(self, access: Load | Store) -> tuple[Dim | None, Dim | None] | None:
        """(stride from row to row, stride from element to element) of an access; None if it has
        several indices.
        """
        if len(access.indices) != 1:
            return None
        (index,) = access.indices
        return expr.coefficient(index, self.row), expr.coefficient(index, self.at)

    def _only_loads_vary(self, e: Expr) -> bool:
        """Whether rows and elements differ only in the addresses of loads."""
        if isinstance(e, Load):
            return e.guard is None and e.other is None
        is_place = e is self.row or e is self.at
        return not is_place and all(map(self._only_loads_vary, expr.children(e)))

    def build(self, count: Dim) -> list[Stmt]:
        """Statements that store the rows, of `count`, that fill whole vectors."""
        nest, stmts = self.nest, list[Stmt]()
        copies: dict[Expr, Expr] = {}
        for load in expr.loads(self.store.value):
            if self._steps(load) == (0, 1) and load not in copies:
                size = (self.rows * self.length,)
                line = nest.builder.scratch("line", load.dtype, size, Space.WORKGROUP)
                stmts += nest.serial(self.rows, partial(self._copied, load, line), "r")
                copies[load] = Load(line, (self._place(self.row, self.at),), load.dtype)

        def some(o: Expr) -> list[Stmt]:
            first = expr.mul(o, expr.index(self.rows))
            made: list[Stmt] = []
            for number in range(self.rows * self.length // nest.lanes):
                made += over_lanes(nest, nest.lanes, partial(self._lane, copies, first, number))
            return made

        return stmts + nest.serial(dims.floor_divide(count, self.rows), some, "r")

    def _place(self, row: Expr, at: Expr) -> Expr:
        return expr.add(expr.mul(row, expr.index(self.length)), at)

    def _copied(self, load: Load, line: Scratch, row: Expr) -> list[Stmt]:
        """Statements that repeat the elements common to all rows once per row of a line."""

        def one(at: Expr, *_: object) -> list[Stmt]:
            return [Store(line, (self._place(row, at),), expr.substitute(load, {self.at: at}))]

        return row_of_vectors(self.nest, expr.index(0), self.length, self.nest.lanes, one)

    def _lane(self, copies: dict[Expr, Expr], first: Expr, number: int, n: Expr) -> list[Stmt]:
        """The stores of lane `n` in vector `number` of the rows from `first`."""
        begin = number * self.nest.lanes
        inside = range(begin // self.length, (begin + self.nest.lanes - 1) // self.length + 1)
        # the place as one behind the beginning of the vector's first row
        at = expr.add(n, expr.index(begin - inside[0] * self.length))
        own = {self.row: expr.index(inside[0]), self.at: at}
        here = {**own, self.row: expr.add(first, own[self.row])}

        def chosen(e: Expr) -> Expr | None:
            if not isinstance(e, Load):
                return None
            if e in copies:
                return expr.substitute(copies[e], own)
            found: Expr = expr.substitute(e, here)
            for r in inside[1:] if self._steps(e) == (1, 0) else ():
                is_before = expr.binary("lt", n, expr.index(r * self.length - begin))
                other = expr.substitute(e, {self.row: expr.add(first, expr.index(r))})
                found = expr.select(is_before, found, other)
            return found

        value = expr.transform(self.store.value, chosen)
        place = tuple(expr.substitute(i, here) for i in self.store.indices)
        return [replace(self.store, indices=place, value=value)]
