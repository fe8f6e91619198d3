"""Loads nearby terms, or short lines, as vectors from which lanes then select.

Owns the loops of what `tables.py` sums on targets with such instructions. A line of so few elements
that vectors hold all of it is loaded whole; of another one, as much as a pair of vectors holds,
where all terms of a vector of results are found there when it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from aot.base.records import dataclass
from aot.ir import expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Cast, Const, Expr, Load, Reduce, Select, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, Scratch, Space, Stmt, Store
from aot.kernels.match.resized import clamped_extent
from aot.kernels.nest.lane_reductions import halved
from aot.kernels.nest.nest import Axis, Nest, Output, combined
from aot.kernels.stage.tails import below, where

REGISTER = 64  # its bytes
# numbers of lanes of a pair, by bytes of an element
_NUMBERS = {1: DType.I8, 2: DType.I16, 4: DType.I32}


class Lines(Protocol):
    """The rows of a table-driven reduction, as `tables.Tables` describes them."""

    nest: Nest
    output: Output
    reduce: Reduce
    gone: dict[Var, Expr]
    rows: Axis
    inner: Axis

    def named_terms(self, place: dict[Var, Expr]) -> tuple[list[Expr], dict[Expr, Var]]: ...

    def rows_of_lane(self, place: dict[Var, Expr], start: Expr, count: Dim) -> list[Stmt]: ...

    def each_row(
        self,
        values: dict[Var, Expr],
        start: Expr,
        count: Dim,
        body: Callable[[dict[Var, Expr]], list[Stmt]],
    ) -> list[Stmt]: ...

    def stores(self, total: Expr, place: dict[Var, Expr]) -> list[Stmt]: ...


@dataclass(frozen=True)
class _Term:
    """One term whose position comes from a table: its load, the position, and the variable that
    stands for the position in the load's index.
    """

    load: Load
    position: Expr
    name: Var


def near_columns(
    lines: Lines, values: dict[Var, Expr], start: Expr, count: Dim
) -> list[Stmt] | None:
    """Statements for `count` rows from `start`, with elements selected from loaded vectors; None
    for other targets and elements."""
    lane = lines.nest.builder.var("l")
    found = _terms(lines, {**lines.gone, **values, lines.inner.var: lane})
    if found is None or not isinstance(lines.inner.extent, int):
        return None
    if any(lane in expr.free_vars(term.load.indices[0]) for term in found):
        return None
    source = found[0].load.source
    is_sum = len(found) > 1 or not isinstance(lines.reduce.body, Load)
    if not isinstance(source, Buffer) or (is_sum and source.dtype is not DType.F32):
        return None
    if not lines.nest.target.picks_lanes(source.dtype.bytes):
        return None
    own = {source, *(x.source for x in expr.loads(lines.reduce.body))}
    # where the result has the memory of an operand that it reads elsewhere, none is made twice
    is_alone = all(x.source in own for x in expr.loads(lines.output.value))
    return _Near(lines, source, values, start, count).build(
        clamped_extent(found[0].position), may_repeat=is_alone
    )


def _terms(lines: Lines, place: dict[Var, Expr]) -> list[_Term] | None:
    """The terms of an element; None if a term has no load or several."""
    terms, named = lines.named_terms(place)
    found = [_found(term, named) for term in terms]
    known = [term for term in found if term is not None]
    return known if len(known) == len(found) else None


def _found(term: Expr, named: dict[Expr, Var]) -> _Term | None:
    loads = expr.loads(term)
    found: list[_Term] = []
    for load in loads:
        for position, name in named.items():
            if name.dtype is DType.INDEX and expr.coefficient(load.indices[0], name) == 1:
                found.append(_Term(load, position, name))
    if len(found) != 1:
        return None
    load = found[0].load
    others = {load, *(x for i in load.indices for x in expr.loads(i))}
    if load.guard is not None or load.dtype is not load.source.dtype or {*loads} != others:
        return None
    return found[0]


def in_vectors(index: Expr) -> Expr:
    """An index expression in 64-bit integers, so that its loaded parts are computed as vectors."""
    match index:
        case Cast():
            return expr.cast(index.a, DType.I64)
        case Const():
            return expr.const(index.value, DType.I64)
        case Binary() if index.op in ("add", "sub", "mul", "min", "max"):
            return expr.binary(index.op, in_vectors(index.a), in_vectors(index.b))
        case Select(condition=Binary() as asked) if asked.op == "lt":
            condition = expr.binary("lt", in_vectors(asked.a), in_vectors(asked.b))
            return expr.select(condition, in_vectors(index.a), in_vectors(index.b))
        case _:
            return expr.cast(index, DType.I64)


def picked_by(number: Expr, pair: int) -> Expr:
    """The index of an element within two vectors, which hold `pair` elements together.

    The instruction that picks looks only at the low bits of `number`, as the mask here says."""
    mask = expr.const(pair - 1, number.dtype)
    return expr.cast(expr.binary("and", number, mask), DType.INDEX)


def _where(guard: Expr, e: Expr) -> Expr:
    """`e` with its loads guarded: they give 0 where `guard` fails."""
    if isinstance(e, Load) and e.guard is None:
        indices = tuple(_where(guard, index) for index in e.indices)
        other = expr.const(e.dtype.numpy.type(0).item(), e.dtype)
        return replace(e, indices=indices, guard=guard, other=other)
    return expr.rebuild(e, lambda x: _where(guard, x))


class _Near:
    """Columns of a line computed from nearby source elements, which are selected from two vectors.

    Attributes:
        lanes: lanes of a vector; a pair of vectors has twice as many elements.
        on: the number of lanes with results in the current piece; None for all.
    """

    def __init__(
        self, lines: Lines, source: Buffer, values: dict[Var, Expr], start: Expr, count: Dim
    ) -> None:
        self.lines, self.source, self.nest = lines, source, lines.nest
        self.values, self.start, self.count = values, start, count
        self.lanes = REGISTER // source.dtype.bytes
        extent = lines.inner.count
        self.extent = extent
        self.on: int | None = None

    def build(self, line: int | None, *, may_repeat: bool) -> list[Stmt]:
        """Statements for all columns, given the length of a `line`; some columns are computed twice
        if `may_repeat`."""
        whole, rest = divmod(self.extent, self.lanes)
        may_repeat = may_repeat and whole > 0 and rest > 0

        def piece(n: Expr) -> list[Stmt]:
            first = expr.mul(n, expr.index(self.lanes))
            if may_repeat:  # some once more, with what is left
                first = expr.binary("min", first, expr.index(self.extent - self.lanes))
            return self.vector(first, line)

        stmts = self.nest.serial(whole + may_repeat, piece, "o")
        if rest and not may_repeat:
            self.on = rest
            stmts += self.vector(expr.index(whole * self.lanes), line)
        return stmts

    def vector(self, first: Expr, line: int | None) -> list[Stmt]:
        """Statements that compute a vector of results in all rows, from column `first`."""
        nest, pair = self.nest, 2 * self.lanes
        pairs = None if line is None else -(-line // pair)
        if line is not None and pairs == 1:
            return self.whole(first, line, 1)
        stmts: list[Stmt] = []
        ends = [expr.index(0), expr.index((self.on or self.lanes) - 1)]
        firsts = [self.terms(expr.add(first, end))[0].position for end in ends]
        base = nest.let(expr.binary("min", *firsts), stmts, "base")
        far = nest.builder.scratch("far", DType.U32, (self.lanes,))
        made, numbers = self.numbers(first, base, 1, far)
        stmts += [*made, *halved(nest, "max", far, self.lanes, 1)]
        limit = expr.const(pair, DType.U32)
        is_near = expr.binary("lt", Load(far, (expr.index(0),), DType.U32), limit)
        near = self.rows(first, base, numbers, pair)
        if line is not None and pairs is not None and pairs <= self.most_pairs:
            other = self.whole(first, line, pairs)
        else:
            other = [nest.spread(self.lanes, lambda lane: self.plain(first, lane))]
        return stmts + where(is_near, near, other)

    @property
    def most_pairs(self) -> int:
        """The largest number of register pairs for a line: with more, separate loads are faster
        than selecting."""
        return self.lanes // 4

    def whole(self, first: Expr, line: int, pairs: int) -> list[Stmt]:
        """The same statements as `vector`, but with elements selected from whole lines."""
        made, numbers = self.numbers(first, expr.index(0), pairs)
        return [*made, *self.rows(first, expr.index(0), numbers, line)]

    def plain(self, first: Expr, lane: Expr) -> list[Stmt]:
        place = {**self.lines.gone, **self.values, self.lines.inner.var: expr.add(first, lane)}
        return where(self.is_on(lane), self.lines.rows_of_lane(place, self.start, self.count))

    def is_on(self, lane: Expr) -> Expr | None:
        """The condition that a lane has a result; None if all lanes have one."""
        return None if self.on is None else below(lane, self.on)

    def terms(self, column: Expr) -> list[_Term]:
        found = _terms(self.lines, {**self.lines.gone, **self.values, self.lines.inner.var: column})
        assert found is not None
        return found

    def numbers(
        self, first: Expr, base: Expr, pairs: int, far: Scratch | None = None
    ) -> tuple[list[Stmt], tuple[Scratch, Scratch | None]]:
        """(statements, (lanes, pairs)): scratch with each term's lane within a pair of vectors, and
        with the pair's number if there are several. `far` maps a term to its distance from `base`.
        """
        nest, dtype = self.nest, _NUMBERS[self.source.dtype.bytes]
        count = len(self.terms(first))
        lane_of = nest.builder.scratch("ahead", dtype, (count, self.lanes))
        pair_of = nest.builder.scratch("pair", dtype, (count, self.lanes)) if pairs > 1 else None

        def distances(lane: Expr) -> list[Stmt]:
            made: list[Stmt] = []
            most: Expr | None = None
            guard = self.is_on(lane)
            for k, term in enumerate(self.terms(expr.add(first, lane))):
                at = term.position if guard is None else _where(guard, term.position)
                position = in_vectors(at)
                here = expr.binary("sub", position, expr.cast(base, DType.I64))
                if guard is not None:
                    here = expr.select(guard, here, expr.const(0, DType.I64))
                distance = nest.let(expr.cast(here, DType.I32), made, "d")
                number = distance
                if pair_of is not None:
                    size = (2 * self.lanes).bit_length() - 1
                    which = expr.binary("shr", distance, expr.const(size, DType.I32))
                    made.append(Store(pair_of, (expr.index(k), lane), expr.cast(which, dtype)))
                    mask = expr.const(2 * self.lanes - 1, DType.I32)
                    number = expr.binary("and", distance, mask)
                made.append(Store(lane_of, (expr.index(k), lane), expr.cast(number, dtype)))
                wide = expr.cast(distance, DType.U32)
                most = wide if most is None else expr.binary("max", most, wide)
            if far is not None and most is not None:
                made.append(Store(far, (lane,), most))
            return made

        return [nest.spread(self.lanes, distances)], (lane_of, pair_of)

    def rows(
        self, first: Expr, base: Expr, numbers: tuple[Scratch, Scratch | None], line: int
    ) -> list[Stmt]:
        """Statements for a vector of results in all rows, selected from the `line` elements from
        `base`."""
        return self.lines.each_row(
            self.values,
            self.start,
            self.count,
            lambda number: self.row(first, base, numbers, line, number),
        )

    def row(
        self,
        first: Expr,
        base: Expr,
        numbers: tuple[Scratch, Scratch | None],
        line: int,
        number: dict[Var, Expr],
    ) -> list[Stmt]:
        nest, lines, lanes, source = self.nest, self.lines, self.lanes, self.source
        dtype, pair = source.dtype, 2 * self.lanes
        windows = [
            nest.builder.scratch("window", dtype, (pair,), Space.PRIVATE)
            for _ in range(-(-line // pair))
        ]
        stmts: list[Stmt] = []
        term = self.terms(first)[0]
        at = expr.substitute(term.load.indices[0], {term.name: base, **number})
        begin = nest.let(at, stmts, "begin")
        end = expr.index(source.shape[0])
        used = -(-line // lanes)
        zero = expr.const(dtype.numpy.type(0).item(), dtype)

        def one(number: int, lane: Expr, is_inside: bool) -> list[Stmt]:
            window, half = divmod(number, 2)
            at = expr.add(begin, expr.add(expr.index(number * lanes), lane))
            guard = None if is_inside else expr.binary("lt", at, end)
            value: Expr = Load(source, (at,), dtype, guard, None if is_inside else zero)
            if number >= used:
                value = zero
            place = expr.add(expr.index(half * lanes), lane)
            return [Store(windows[window], (place,), value)]

        def brought(is_inside: bool) -> list[Stmt]:
            return [
                nest.spread(lanes, lambda lane, n=n: one(n, lane, is_inside))  # type: ignore[misc]
                for n in range(2 * len(windows))
            ]

        behind = expr.linear(begin, used * lanes)
        stmts += where(expr.binary("le", behind, end), brought(True), lambda: brought(False))

        def element(lane: Expr) -> list[Stmt]:
            place = {**lines.gone, **self.values, lines.inner.var: expr.add(first, lane)}
            terms, named = lines.named_terms(place)
            meant = {var: e for e, var in named.items()}
            total: Expr | None = None
            for k, term in enumerate(terms):
                found = _found(term, named)
                assert found is not None
                chosen = {found.load: self.chosen(windows, numbers, k, lane)}
                here = expr.substitute(expr.transform(term, chosen.get), {**meant, **number})  # type: ignore[arg-type]
                total = here if total is None else combined(lines.reduce.op, total, here)
            assert total is not None
            return where(self.is_on(lane), lines.stores(total, {**place, **number}))

        return [*stmts, nest.spread(lanes, element)]

    def chosen(
        self,
        windows: list[Scratch],
        numbers: tuple[Scratch, Scratch | None],
        term: int,
        lane: Expr,
    ) -> Expr:
        """Term `term` of a lane, selected from loaded vectors."""
        lane_of, pair_of = numbers
        place = (expr.index(term), lane)
        number = picked_by(Load(lane_of, place, lane_of.dtype), 2 * self.lanes)
        loaded: list[Expr] = [Load(w, (number,), w.dtype) for w in windows]
        result = loaded[0]
        for count, other in enumerate(loaded[1:], 1):
            assert pair_of is not None
            pair = Load(pair_of, place, pair_of.dtype)
            is_it = expr.binary("eq", pair, expr.const(count, pair_of.dtype))
            result = expr.select(is_it, other, result)
        return result
