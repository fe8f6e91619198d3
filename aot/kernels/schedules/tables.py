"""Reductions of few terms that tables name, as resizing along a line does: what the tables say of a
vector of results is found once for many rows.

Lanes gather terms along the result's innermost axis, and where they are does not depend on the row.
Owns these loops, for CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Cast, Const, Expr, Load, Reduce, Select, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, If, Let, Scratch, Space, Stmt, Store
from aot.kernels.lower.lane_reductions import halved
from aot.kernels.lower.nest import Axis, Nest, Output, collapse
from aot.kernels.lower.rows import row_of_vectors
from aot.kernels.schedules.windows import combined

# rows of a workgroup, and terms that are written out
MOST_ROWS, MOST_TERMS = 64, 8


def schedule_tables(
    nest: Nest, output: Output, reduces: Sequence[Reduce]
) -> tuple[Stmt, ...] | None:
    """The loops of such a reduction; None where `output` is none."""
    if nest.is_gpu or nest.lanes == 1 or len(reduces) != 1 or not output.axes:
        return None
    (reduce,) = reduces
    terms = [n for _, n in reduce.axes]
    if not all(isinstance(n, int) for n in terms) or not 1 <= dims.product(terms) <= MOST_TERMS:
        return None
    axes, gone = collapse(output.axes, output.address, output.values)
    if len(axes) < 2 or not _is_gathered(reduce, axes[-1]):
        return None
    return _Tables(nest, output, reduce, axes, gone).build()


def _is_gathered(reduce: Reduce, inner: Axis) -> bool:
    """Whether neighbours along `inner` read what another operand says."""
    return any(
        isinstance(load.source, Buffer)
        and load.guard is None
        and expr.coefficient(load.indices[0], inner.var) is None
        and any(expr.loads(index) for index in load.indices)
        for load in expr.loads(reduce.body)
    )


def in_vectors(index: Expr) -> Expr:
    """An index as an integer of 64 bits, which vectors compute with as far as it is made of numbers
    that are loaded."""
    match index:
        case Cast():
            return expr.cast(index.a, DType.I64)
        case Const():
            return expr.const(index.value, DType.I64)
        case Binary() if index.op in ("add", "sub", "min", "max"):
            return expr.binary(index.op, in_vectors(index.a), in_vectors(index.b))
        case Select(condition=Binary() as asked) if asked.op == "lt":
            condition = expr.binary("lt", in_vectors(asked.a), in_vectors(asked.b))
            return expr.select(condition, in_vectors(index.a), in_vectors(index.b))
        case _:
            return expr.cast(index, DType.I64)


class _Tables:
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

    def build(self) -> tuple[Stmt, ...]:
        nest, extent = self.nest, self.rows.extent
        size = MOST_ROWS
        if isinstance(extent, int):
            size = max(1, -(-extent // max(1, -(-extent // MOST_ROWS))))
        blocks = Axis(nest.builder.var("rb"), dims.ceil_divide(extent, size))
        rest = dims.modulo(extent, size)

        def block(values: dict[Var, Expr]) -> list[Stmt]:
            start = expr.mul(values[blocks.var], expr.index(size))
            whole = self._columns(values, start, size)
            if rest == 0:
                return whole
            end = expr.add(start, expr.index(size))
            is_whole = expr.binary("le", end, expr.index(extent))
            return [If(is_whole, tuple(whole), tuple(self._columns(values, start, rest)))]

        work = dims.multiply(self.inner.extent, 2 * size)
        return nest.grid([*self.outer, blocks], block, work)

    def _columns(self, values: dict[Var, Expr], start: Expr, count: Dim) -> list[Stmt]:
        """The elements of `count` rows from `start` on."""
        nest, inner = self.nest, self.inner
        near = self._near(values, start, count)
        if near is not None:
            return near

        def vector(at: Expr, width: int, lane: Expr | None) -> list[Stmt]:
            return self._rows_of_lane({**self.gone, **values, inner.var: at}, start, count)

        return row_of_vectors(nest, expr.index(0), inner.extent, nest.lanes, vector)

    def _rows_of_lane(self, place: dict[Var, Expr], start: Expr, count: Dim) -> list[Stmt]:
        """The elements of a lane in all rows."""
        nest, stmts = self.nest, list[Stmt]()
        terms = self._terms(place, stmts)

        def row(n: Expr) -> list[Stmt]:
            number = {self.rows.var: expr.add(start, n)}
            total: Expr | None = None
            for term in terms:
                here = expr.substitute(term, number)
                total = here if total is None else combined(self.reduce.op, total, here)
            inside: list[Stmt] = []
            assert total is not None
            made = nest.let(total, inside, "sum")
            stores = self.output.stores(
                nest, {**place, **number}, lambda e: made if e is self.reduce else None
            )
            return [*inside, *stores]

        return stmts + nest.serial(count, row, "r")

    def _terms(self, place: dict[Var, Expr], into: list[Stmt]) -> list[Expr]:
        """The terms of an element; what is the same in all rows has names."""
        terms, named = self._named_terms(place)
        into += [Let(var, e) for e, var in named.items()]
        return terms

    def _named_terms(self, place: dict[Var, Expr]) -> tuple[list[Expr], dict[Expr, Var]]:
        """The terms of an element, and the names in them of what is the same in all rows."""
        variables = [v for v, _ in self.reduce.axes]
        extents = [range(n) for _, n in self.reduce.axes if isinstance(n, int)]
        named: dict[Expr, Var] = {}

        def name(e: Expr) -> Expr | None:
            if isinstance(e, (Var, Const)) or self.rows.var in expr.free_vars(e):
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

    # Terms that lie near each other

    def _near(self, values: dict[Var, Expr], start: Expr, count: Dim) -> list[Stmt] | None:
        """As `_columns`, for targets that pick lanes out of two vectors: where all terms of a
        vector of results lie in so many neighbours, these are loaded and the terms picked. None for
        other targets and elements."""
        nest, extent, lanes = self.nest, self.inner.extent, self.nest.lanes
        if not nest.target.has("avx512f") or 4 * lanes != nest.target.vector_bytes:
            return None
        if not isinstance(extent, int) or extent < lanes or self.reduce.dtype is not DType.F32:
            return None
        lane = nest.builder.var("l")
        place = {**self.gone, **values, self.inner.var: expr.add(Var("first"), lane)}
        terms, named = self._named_terms(place)
        reads = [read for read in (self._place_of(term, named) for term in terms) if read]
        if len(reads) != len(terms):
            return None

        def piece(n: Expr) -> list[Stmt]:
            first = expr.mul(n, expr.index(lanes))
            if extent % lanes:  # some once more, with what is left
                first = expr.binary("min", first, expr.index(extent - lanes))
            return self._near_vector(values, start, count, first)

        return nest.serial(-(-extent // lanes), piece, "o")

    def _place_of(self, term: Expr, named: dict[Expr, Var]) -> tuple[Load, Var] | None:
        """The only load of a term that is not the same in all rows, and the name in its address of
        what tables say; None where there is no such load of elements of 32 bits."""
        loads = expr.loads(term)
        if len(loads) != 1 or loads[0].guard is not None or loads[0].dtype is not DType.F32:
            return None
        (load,) = loads
        if not isinstance(load.source, Buffer) or load.source.dtype is not DType.F32:
            return None
        found = [v for v in named.values() if expr.coefficient(load.indices[0], v) == 1]
        return (load, found[0]) if len(found) == 1 and found[0].dtype is DType.INDEX else None

    def _near_vector(
        self, values: dict[Var, Expr], start: Expr, count: Dim, first: Expr
    ) -> list[Stmt]:
        """The results in all rows of the columns from `first` on, as many as a vector has."""
        nest, inner, lanes = self.nest, self.inner, self.nest.lanes
        of_first = {**self.gone, **values, inner.var: first}
        begun, defined = self._named_terms(of_first)
        read = self._place_of(begun[0], defined)
        assert read is not None
        base = nest.builder.var("base")
        stmts: list[Stmt] = [Let(base, next(e for e, v in defined.items() if v is read[1]))]
        ahead = nest.builder.scratch("ahead", DType.I32, (len(begun), lanes))
        far = nest.builder.scratch("far", DType.U32, (lanes,))

        def at(lane: Expr) -> dict[Var, Expr]:
            return {**self.gone, **values, inner.var: expr.add(first, lane)}

        def distances(lane: Expr) -> list[Stmt]:
            """How far each term lies from the first lane's first."""
            terms, named = self._named_terms(at(lane))
            made: list[Stmt] = []
            most: Expr | None = None
            for k, term in enumerate(terms):
                found = self._place_of(term, named)
                assert found is not None
                position = next(e for e, v in named.items() if v is found[1])
                here = expr.binary("sub", in_vectors(position), expr.cast(base, DType.I64))
                distance = nest.let(expr.cast(here, DType.I32), made, "d")
                made.append(Store(ahead, (expr.index(k), lane), distance))
                wide = expr.cast(distance, DType.U32)
                most = wide if most is None else expr.binary("max", most, wide)
            assert most is not None
            return [*made, Store(far, (lane,), most)]

        stmts.append(nest.spread(lanes, distances))
        stmts += halved(nest, "max", far, lanes, 1)
        is_near = expr.binary(
            "lt", Load(far, (expr.index(0),), DType.U32), expr.const(2 * lanes, DType.U32)
        )
        picked = nest.serial(
            count, lambda n: self._picked_row(values, expr.add(start, n), first, base, ahead), "r"
        )
        plain = [nest.spread(lanes, lambda lane: self._rows_of_lane(at(lane), start, count))]
        return [*stmts, If(is_near, tuple(picked), tuple(plain))]

    def _picked_row(
        self, values: dict[Var, Expr], row: Expr, first: Expr, base: Var, ahead: Scratch
    ) -> list[Stmt]:
        """A vector of results, whose terms are picked out of the two vectors from `base` on."""
        nest, lanes = self.nest, self.nest.lanes
        window = nest.builder.scratch("window", DType.F32, (2 * lanes,), Space.WORKGROUP)
        number = {self.rows.var: row}
        begun, defined = self._named_terms({**self.gone, **values, self.inner.var: first})
        read = self._place_of(begun[0], defined)
        assert read is not None
        source = read[0].source
        assert isinstance(source, Buffer)
        stmts: list[Stmt] = []
        begin = nest.let(
            expr.substitute(read[0].indices[0], {read[1]: base, **number}), stmts, "begin"
        )
        end = expr.index(source.shape[0])

        def brought(is_inside: bool) -> tuple[Stmt, ...]:
            def one(half: int, lane: Expr) -> list[Stmt]:
                place = expr.add(expr.index(half * lanes), lane)
                where = expr.add(begin, place)
                guard = None if is_inside else expr.binary("lt", where, end)
                other = None if is_inside else expr.const(0.0, DType.F32)
                return [Store(window, (place,), Load(source, (where,), DType.F32, guard, other))]

            return tuple(nest.spread(lanes, lambda lane, n=n: one(n, lane)) for n in (0, 1))  # type: ignore[misc]

        is_inside = expr.binary("le", expr.add(begin, expr.index(2 * lanes)), end)
        stmts.append(If(is_inside, brought(True), brought(False)))

        def element(lane: Expr) -> list[Stmt]:
            place = {**self.gone, **values, self.inner.var: expr.add(first, lane)}
            terms, named = self._named_terms(place)
            meant = {var: e for e, var in named.items()}
            total: Expr | None = None
            for k, term in enumerate(terms):
                found = self._place_of(term, named)
                assert found is not None
                where = expr.cast(Load(ahead, (expr.index(k), lane), DType.I32), DType.INDEX)
                chosen = {found[0]: Load(window, (where,), DType.F32)}
                here = expr.substitute(expr.transform(term, chosen.get), {**meant, **number})  # type: ignore[arg-type]
                total = here if total is None else combined(self.reduce.op, total, here)
            inside: list[Stmt] = []
            assert total is not None
            made = nest.let(total, inside, "sum")
            return inside + self.output.stores(
                nest, {**place, **number}, lambda e: made if e is self.reduce else None
            )

        return [*stmts, nest.spread(lanes, element)]
