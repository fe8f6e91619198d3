"""Finds the position of an extremum in one pass: each lane tracks its best element and its
position.

Rows that a first cache holds several of are gone through twice, as row_blocks.py has them: for the
extremum, and for where it is. Else an element takes the place of the one before if it is greater,
which NaN never is. Where elements, added up, are NaN, another pass asks each of them. CPU only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Cast, Expr, Load, Reduce, Select, Unary, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Scratch, Space, Stmt, Store
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.lane_reductions import halved, over_lanes, reduce_lanes
from aot.kernels.nest.nest import Axis, Nest, Output, Values, collapse, identity
from aot.kernels.nest.rows import SUMS, row_of_vectors, vectors_of
from aot.kernels.rules.reductions.row_blocks import RowBlocks
from aot.kernels.rules.reductions.rows import Rows

# results side by side of a workgroup
MOST_COLUMNS = 512
# vectors of a row that lanes of one go through, and not of several, which must be combined
FEW = 8


@dataclass(frozen=True)
class Position:
    """The search for an extremum's position, as expressions of a loop nest.

    Attributes:
        extremum, found: what is greatest or least, and the first or last place where it is.
        element: what is compared, at `var`.
        number: the place, as it is found.
        never: what no place is.
    """

    extremum: Reduce
    found: Reduce
    element: Expr
    var: Var
    extent: Dim
    number: Expr
    never: Expr

    @property
    def is_max(self) -> bool:
        return self.extremum.op == "max"

    @property
    def is_last(self) -> bool:
        return self.found.op == "max"


def find_position(output: Output, reduces: Sequence[Reduce]) -> Position | None:
    """The extremum's position that `output` computes; None for other outputs."""
    if len(reduces) != 2:
        return None
    extremum, found = reduces
    if extremum.op not in ("max", "min") or found.op not in ("max", "min"):
        return None
    chosen = found.body
    if not isinstance(chosen, Select) or len(found.axes) != 1 or len(extremum.axes) != 1:
        return None
    ((var, extent),), ((other, same),) = found.axes, extremum.axes
    element = expr.substitute(extremum.body, {other: var})
    if extent != same or not _asks_for(chosen.condition, element, extremum):
        return None
    number, never = chosen.a, chosen.b
    if not isinstance(number, Cast) or number.a is not var or expr.free_vars(never):
        return None
    if any(load.guard is not None for load in expr.loads(element)) or not expr.loads(element):
        return None
    return Position(extremum, found, element, var, extent, number, never)


def _are_same(a: Expr, b: Expr) -> bool:
    """Whether two expressions have the same form."""
    if a is b:
        return True
    known = [
        [getattr(e, name, None) for name in ("op", "dtype", "value", "source")] for e in (a, b)
    ]
    inner = expr.children(a), expr.children(b)
    if type(a) is not type(b) or known[0] != known[1] or len(inner[0]) != len(inner[1]):
        return False
    if isinstance(a, Var | expr.Param | expr.Size | Reduce):
        return False  # those that are one
    return all(map(_are_same, *inner))


def _asks_for(condition: Expr, element: Expr, extremum: Reduce) -> bool:
    """Whether a condition tests that an element equals the extremum, or is NaN."""
    sides = [condition]
    if isinstance(condition, Binary) and condition.op == "or":
        sides = [condition.a, condition.b]
        nan = sides.pop()
        if not isinstance(nan, Unary) or nan.op != "isnan" or not _are_same(nan.a, element):
            return False
    (same,) = sides
    is_it = isinstance(same, Binary) and same.op == "eq" and same.b is extremum
    return is_it and _are_same(same.a, element)  # type: ignore[union-attr]


def schedule_position(work: Work) -> Build | None:
    """The loops that find an extremum's position; None where neither terms nor results are
    contiguous.
    """
    nest, found = work.nest, work.reduced
    output = found.output
    position = None if found.free or nest.is_gpu else find_position(output, found.reduces)
    if position is None:
        return None
    made = _Positions(nest, output, position)
    loads = expr.loads(position.element)
    inner = output.axes[-1] if output.axes else None
    if inner is not None and all(expr.coefficient(x.indices[0], inner.var) == 1 for x in loads):
        return made.across
    if any(expr.coefficient(x.indices[0], position.var) == 1 for x in loads):
        return made.along
    return None


class _Positions:
    def __init__(self, nest: Nest, output: Output, position: Position) -> None:
        # what is stored may be wider than what is compared
        dtypes = position.extremum.dtype, position.found.dtype
        self.nest = nest = replace(nest, lanes=min(map(nest.target.lanes, dtypes)))
        self.output = output
        self.position = position
        self.is_asked = position.extremum.dtype.is_float

    # What is kept of elements

    def _kept(self, count: int) -> tuple[Scratch, Scratch]:
        """Scratch for `count` lanes: the extremum each has found, and its position."""
        extremum, found = self.position.extremum, self.position.found
        builder = self.nest.builder
        best = builder.scratch("best", extremum.dtype, (count,))
        return best, builder.scratch("place", found.dtype, (count,))

    def _start(self, best: Scratch, place: Scratch, slot: Expr, number: Expr) -> list[Stmt]:
        """Statements that initialise a lane's best element and position; `number` is the first
        element's position."""
        position = self.position
        first = position.never if position.is_last else expr.cast(number, place.dtype)
        return [
            Store(best, (slot,), identity(position.extremum.op, best.dtype)),
            Store(place, (slot,), first),
        ]

    def _element(
        self,
        kept: tuple[Scratch, Scratch],
        slot: Expr,
        values: Values,
        seen: Scratch | None,
        *,
        is_quick: bool,
    ) -> list[Stmt]:
        """Statements that compare an element with the best so far, and keep the better one."""
        position, (best, place) = self.position, kept
        stmts: list[Stmt] = []
        element = self.nest.let(expr.substitute(position.element, values), stmts, "element")
        old = self.nest.let(Load(best, (slot,), best.dtype), stmts, "old")
        op = (
            ("ge" if position.is_max else "le")
            if position.is_last
            else ("gt" if position.is_max else "lt")
        )
        takes = expr.binary(op, element, old)
        if not is_quick:
            asked: Expr = expr.unary("isnan", element)
            if not position.is_last:
                asked = expr.binary("and", asked, expr.binary("eq", old, old))
            takes = expr.binary("or", takes, asked)
        takes = self.nest.let(takes, stmts, "takes")
        number = expr.substitute(position.number, values)
        more = expr.binary("gt" if position.is_max else "lt", element, old)
        stmts += [
            Store(best, (slot,), expr.select(more if is_quick else takes, element, old)),
            Store(place, (slot,), expr.select(takes, number, Load(place, (slot,), place.dtype))),
        ]
        if seen is not None:
            total = Load(seen, (slot,), seen.dtype)
            stmts.append(Store(seen, (slot,), expr.add(total, element)))
        return stmts

    def _chosen(self, best: Expr, place: Expr, extremum: Expr) -> Expr:
        """A lane's position if its element is the extremum of all lanes, else a position that is
        never chosen."""
        is_it = expr.binary("eq", best, extremum)
        if self.is_asked:
            is_it = expr.binary("or", is_it, expr.unary("isnan", best))
        return expr.select(is_it, place, self.position.never)

    def _stores(self, values: Values, extremum: Expr, found: Expr) -> list[Stmt]:
        made = {self.position.extremum: extremum, self.position.found: found}
        return self.output.stores(self.nest, values, made.get)  # type: ignore[arg-type]

    def _either(self, width: int, make: Callable[[Scratch | None, bool], list[Stmt]]) -> list[Stmt]:
        """Statements that scan the elements without NaN checks first, and again with them if there
        was a NaN.

        Args:
            width: lanes in which they are added up.
            make: given where elements are added, and whether that is quick.
        """
        nest = self.nest
        if not self.is_asked:
            return make(None, True)
        seen = nest.builder.scratch("seen", self.position.extremum.dtype, (width,))
        zero = expr.const(0, seen.dtype)
        stmts = over_lanes(nest, width, lambda n: [Store(seen, (n,), zero)])
        stmts += make(seen, True)
        stmts += halved(nest, "sum", seen, width, 1)
        total = nest.let(Load(seen, (expr.index(0),), seen.dtype), stmts, "total")
        is_nan = expr.binary("ne", total, total)
        return [*stmts, If(is_nan, tuple(make(None, False)))]

    # Results side by side

    def across(self) -> tuple[Stmt, ...]:
        """The loops with lanes along results."""
        nest, position = self.nest, self.position
        axes, gone = collapse(self.output.axes, self.output.address, self._values())
        *outer, inner = axes
        pieces = Axis(nest.builder.var("piece"), dims.ceil_divide(inner.extent, MOST_COLUMNS))
        rest = dims.modulo(inner.extent, MOST_COLUMNS)

        def columns(values: Values, start: Expr, count: Dim) -> list[Stmt]:
            stmts: list[Stmt] = []
            for begin, width, times in vectors_of(nest.lanes * SUMS, nest.lanes, count):

                def block(o: Expr, begin: Dim = begin, width: int = width) -> list[Stmt]:
                    ahead = expr.add(expr.index(begin), expr.mul(o, expr.index(width)))
                    first = expr.add(start, ahead)
                    return self._columns({**gone, **values}, inner.var, first, width)

                stmts += nest.serial(times, block, "o")
            return stmts

        def piece(values: Values) -> list[Stmt]:
            start = expr.mul(values[pieces.var], expr.index(MOST_COLUMNS))
            if rest == 0:
                return columns(values, start, MOST_COLUMNS)
            if pieces.extent == 1:
                return columns(values, expr.index(0), inner.extent)
            end = expr.add(start, expr.index(MOST_COLUMNS))
            is_whole = expr.binary("le", end, expr.index(inner.extent))
            whole = columns(values, start, MOST_COLUMNS)
            return [If(is_whole, tuple(whole), tuple(columns(values, start, rest)))]

        size = inner.extent if pieces.extent == 1 else MOST_COLUMNS
        return nest.grid([*outer, pieces], piece, dims.multiply(size, position.extent))

    def _values(self) -> list[Expr]:
        """The values to store, and the element that is compared."""
        return [*self.output.values, self.position.element]

    def _columns(self, values: Values, inner: Var, first: Expr, width: int) -> list[Stmt]:
        """Statements for `width` results from `first` on, one in each lane."""
        nest, position = self.nest, self.position
        kept = self._kept(width)

        def make(seen: Scratch | None, is_quick: bool) -> list[Stmt]:
            def term(at: Expr) -> list[Stmt]:
                def lane(n: Expr) -> list[Stmt]:
                    here = {**values, inner: expr.add(first, n), position.var: at}
                    return self._element(kept, n, here, seen, is_quick=is_quick)

                return over_lanes(nest, width, lane)

            zero = expr.index(0)
            start = over_lanes(nest, width, lambda n: self._start(*kept, n, zero))
            return start + nest.serial(position.extent, term, "a")

        def store(n: Expr) -> list[Stmt]:
            best, place = (Load(x, (n,), x.dtype) for x in kept)
            return self._stores({**values, inner: expr.add(first, n)}, best, place)

        return self._either(width, make) + over_lanes(nest, width, store)

    # Terms side by side

    def along(self) -> tuple[Stmt, ...]:
        """The loops with lanes along terms."""
        nest, position = self.nest, self.position
        axes, gone = collapse(self.output.axes, self.output.address, self._values())
        short = _short_rows(nest, self.output, position, axes, gone)
        if short is not None:
            return short
        return nest.grid(axes, lambda values: self._row({**gone, **values}), position.extent)

    def _row(self, values: Values) -> list[Stmt]:
        """Statements that compute one result."""
        nest, extent = self.nest, self.position.extent
        width = nest.lanes * SUMS
        if isinstance(extent, int):
            width = nest.lanes if extent <= FEW * nest.lanes else width
            while width > extent:
                width //= 2
        dtypes = self.position.extremum.dtype, self.position.found.dtype
        top, number = (
            nest.builder.scratch(name, dtype, (1,), Space.WORKGROUP)
            for name, dtype in zip(("top", "number"), dtypes, strict=True)
        )
        stmts = self._either(
            width, lambda seen, is_quick: self._found(values, width, seen, (top, number), is_quick)
        )
        made = (Load(x, (expr.index(0),), x.dtype) for x in (top, number))
        return stmts + self._stores(values, *made)

    def _found(
        self,
        values: Values,
        width: int,
        seen: Scratch | None,
        into: tuple[Scratch, Scratch],
        is_quick: bool,
    ) -> list[Stmt]:
        """Statements that search a row with `width` lanes and combine what they find."""
        nest, position, zero = self.nest, self.position, expr.index(0)
        kept = best, place = self._kept(width)

        def element(at: Expr, wide: int, lane: Expr | None) -> list[Stmt]:
            here = {**values, position.var: at}
            return self._element(kept, lane or zero, here, seen, is_quick=is_quick)

        stmts = over_lanes(nest, width, lambda n: self._start(best, place, n, n))
        stmts += row_of_vectors(nest, zero, position.extent, width, element)
        top = nest.builder.scratch("top", best.dtype, (width,))
        chosen = nest.builder.scratch("chosen", place.dtype, (width,))
        stmts += over_lanes(nest, width, lambda n: [Store(top, (n,), Load(best, (n,), best.dtype))])
        stmts += halved(nest, position.extremum.op, top, width, 1)
        greatest = Load(top, (zero,), top.dtype)

        def choose(n: Expr) -> list[Stmt]:
            known, number = (Load(x, (n,), x.dtype) for x in (best, place))
            return [Store(chosen, (n,), self._chosen(known, number, greatest))]

        stmts += over_lanes(nest, width, choose)
        stmts += halved(nest, position.found.op, chosen, width, 1)
        made = greatest, Load(chosen, (zero,), chosen.dtype)
        return [*stmts, *(Store(x, (zero,), value) for x, value in zip(into, made, strict=True))]


def _short_rows(
    nest: Nest, output: Output, position: Position, axes: Sequence[Axis], gone: Values
) -> tuple[Stmt, ...] | None:
    """The loops for short rows: a second pass compares all elements with the extremum. None where
    rows do not form blocks."""
    reduces = [position.extremum, position.found]
    rows = Rows.of(nest, output, reduces, (), axes) if axes else None
    if rows is None:
        return None
    if not position.extremum.dtype.is_float:
        return RowBlocks(nest, output, reduces, (), rows, gone).build()
    return _NumberBlocks(nest, output, position, rows, gone).build()


class _NumberBlocks(RowBlocks):
    """Blocks of rows that are searched without NaN checks; a block with a NaN is searched again
    with them."""

    def __init__(
        self,
        nest: Nest,
        output: Output,
        position: Position,
        rows: Rows,
        gone: Values,
    ) -> None:
        self.position, self.exact = position, output
        extremum, found = position.extremum, position.found
        # halves are compared as what they are computed as
        self.dtype = DType.F32 if extremum.dtype.bits < DType.F32.bits else extremum.dtype
        op = "greatest" if position.is_max else "least"
        best = Reduce(op, extremum.axes, expr.cast(extremum.body, self.dtype), self.dtype)
        is_it = expr.binary("eq", expr.cast(position.element, self.dtype), best)
        number = expr.select(is_it, position.number, position.never)
        place = Reduce(found.op, found.axes, number, found.dtype)
        made = {extremum: expr.cast(best, extremum.dtype), found: place}
        memo: dict[Expr, Expr] = {}
        quick = output.rewritten(
            lambda e: expr.transform(e, made.get, memo)  # type: ignore[arg-type]
        )
        super().__init__(nest, quick, [best, place], (), rows, gone)

    def block(self, values: Values, start: Expr, count: Dim) -> list[Stmt]:
        nest, dtype = self.nest, self.dtype
        sums: list[tuple[Scratch, int]] = []

        def seen(width: int) -> Scratch:
            sums.append((nest.builder.scratch("seen", dtype, (width,)), width))
            return sums[0][0]

        self.seen = seen
        quick = super().block(values, start, count)
        ((acc, width),) = sums
        zero = expr.const(0, dtype)
        stmts = over_lanes(nest, width, lambda n: [Store(acc, (n,), zero)])
        stmts += quick
        stmts += halved(nest, "sum", acc, width, 1)
        total = nest.let(Load(acc, (expr.index(0),), dtype), stmts, "total")
        again = self.by_rows(count, lambda r: self._exact_row(values, start, r))
        return [*stmts, If(expr.binary("ne", total, total), tuple(again))]

    def _exact_row(self, values: Values, start: Expr, row: Expr) -> list[Stmt]:
        nest, place = self.nest, self.at(values, start, row)
        stmts: list[Stmt] = []
        done: dict[Expr, Expr] = {}
        for reduce in (self.position.extremum, self.position.found):
            body = expr.transform(reduce.body, done.get)
            loops, done[reduce] = reduce_lanes(nest, reduce, body, place)
            stmts += loops
        return stmts + self.exact.stores(nest, place, done.get)
