"""The kernel of top_k with large k on 32-bit elements, without unpredictable branches.

Elements are compared as integers in the same order. The k-th of them is found bit by bit, each by
counting those that are not before it; then those that are among the best are copied in their
order, and the rank of each is how many of these come before it. CPU only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.ir import expr
from aot.ir.expr import Bitcast, Expr, Load
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Scratch, Space, Stmt, Store
from aot.kernels.nest.lane_reductions import halved, over_lanes
from aot.kernels.nest.rows import SUMS, row_of_vectors
from aot.kernels.rules.lines.lines import Lines, let

# elements of a line all of whose places are counted, rather than those of the best
FEW = 96
# how many of the best: beyond it a heap does as well
MOST = 2048
# lanes at least
LEAST_LANES = 4
_SIGN, _LEAST, _GREATEST = 31, -(1 << 31), (1 << 31) - 1


class ManyBest:
    """`top_k` with a large k: selects candidates of a line by vector operations, then ranks them.

    Attributes:
        keys: the line's elements as integers that compare in the result's order, greatest first,
            padded by a vector of least ones.
        best, places: the keys of the candidates, and their positions in the line.
    """

    def __init__(self, lines: Lines, axis: int, count: int, wanted: Sequence[int]) -> None:
        self.lines, self.nest = lines, lines.nest
        self.axis, self.count, self.wanted = axis, count, wanted
        self.x = lines.operand(0).type
        self.lanes = lines.nest.target.lanes(DType.I32)
        extent = self.x.dims[axis]
        self.extent = extent if isinstance(extent, int) else 0

    def fits(self) -> bool:
        """Whether dtype, vector width and k suit this kernel, and a line fits scratch."""
        if self.x.dtype not in (DType.F32, DType.I32) or self.lanes < LEAST_LANES:
            return False
        room = self.nest.target.scratch_bytes // 4
        return self.count <= MOST and self.extent + 3 * self.count + 5 * self.lanes <= room

    def line(self, at: Sequence[Expr]) -> list[Stmt]:
        """Statements for the results of one line; `at` are the indices of the other dims."""
        stmts = self._keys(at)
        if self.extent <= FEW:
            everything = self.keys, self.extent
            return stmts + self._placed(at, *everything, lambda n: expr.cast(n, DType.I32))
        scratch, size = self.nest.builder.scratch, self.count + self.lanes
        self.best = scratch("best", DType.I32, (size,), Space.WORKGROUP)
        self.places = scratch("places", DType.I32, (size,), Space.WORKGROUP)
        stmts += self._bound() + self._chosen()
        return stmts + self._placed(
            at, self.best, self.count, lambda n: Load(self.places, (n,), DType.I32)
        )

    # Keys

    def _keys(self, at: Sequence[Expr]) -> list[Stmt]:
        size = self.extent + self.lanes
        self.keys: Scratch = self.nest.builder.scratch("keys", DType.I32, (size,), Space.WORKGROUP)

        def element(i: Expr, width: int, lane: Expr | None) -> list[Stmt]:
            value = self.lines.load(0, self._place(at, i))
            return [Store(self.keys, (i,), self._key(value))]

        return row_of_vectors(
            *(self.nest, expr.index(0), self.extent, self.lanes * SUMS), element
        ) + self._least(self.keys, self.extent)

    def _least(self, scratch: Scratch, first: int) -> list[Stmt]:
        """Statements that store a vector of the least key, which ranks behind all elements."""
        begin = expr.index(first)
        return over_lanes(
            self.nest,
            self.lanes,
            lambda n: [Store(scratch, (expr.add(begin, n),), _number(_LEAST))],
        )

    def _key(self, value: Expr) -> Expr:
        if self.x.dtype is DType.F32:
            # zeros are equal
            bits = Bitcast(expr.add(value, expr.const(0.0, DType.F32)), DType.I32)
            sign = expr.binary("shr", bits, _number(_SIGN))
            key = expr.binary("xor", bits, expr.binary("and", sign, _number(_GREATEST)))
            # all NaNs are equal, and above infinity
            value = expr.select(expr.unary("isnan", value), _number(_GREATEST), key)
        if self.lines.op.attrs["largest"]:
            return value
        return expr.binary("xor", value, _number(-1))

    def _place(self, at: Sequence[Expr], i: Expr) -> list[Expr]:
        return [*at[: self.axis], i, *at[self.axis :]]

    # The least of the best

    def _counted(self, is_there: Callable[[Expr], Expr], into: list[Stmt]) -> Expr:
        """The number of keys for which `is_there` holds."""
        nest, width = self.nest, self.lanes * SUMS
        while width > self.extent:
            width //= 2
        counts = nest.builder.scratch("counts", DType.I32, (width,))
        into += over_lanes(nest, width, lambda n: [Store(counts, (n,), _number(0))])

        def element(i: Expr, wide: int, lane: Expr | None) -> list[Stmt]:
            slot = expr.index(0) if lane is None else lane
            one = expr.select(is_there(Load(self.keys, (i,), DType.I32)), _number(1), _number(0))
            return [Store(counts, (slot,), expr.add(Load(counts, (slot,), DType.I32), one))]

        into += row_of_vectors(nest, expr.index(0), self.extent, width, element)
        into += halved(nest, "sum", counts, width, 1)
        return nest.let(Load(counts, (expr.index(0),), DType.I32), into, "count")

    def _bound(self) -> list[Stmt]:
        """Statements that find the k-th largest key, bit by bit, and count the keys above it."""
        nest, scratch, zero = self.nest, self.nest.builder.scratch, expr.index(0)
        self.bound = scratch("bound", DType.I32, (1,))
        self.greater = scratch("greater", DType.I32, (1,))
        bound = Load(self.bound, (zero,), DType.I32)

        def bit(n: Expr) -> list[Stmt]:
            """Decides one bit of the k-th key, from the highest; the first is the sign bit,
            inverted."""
            stmts: list[Stmt] = []
            at = expr.sub(_number(_SIGN), expr.cast(n, DType.I32))
            mask = expr.binary("shl", _number(1), at)
            tried = nest.let(expr.binary("xor", bound, mask), stmts, "tried")
            count = self._counted(lambda key: expr.binary("ge", key, tried), stmts)
            is_enough = expr.binary("ge", count, _number(self.count))
            stmts.append(Store(self.bound, (zero,), expr.select(is_enough, tried, bound)))
            return stmts

        stmts: list[Stmt] = [Store(self.bound, (zero,), _number(_LEAST))]
        stmts += nest.serial(_SIGN + 1, bit, "bit")
        known = nest.let(bound, stmts, "known")
        count = self._counted(lambda key: expr.binary("gt", key, known), stmts)
        return [*stmts, Store(self.greater, (zero,), count)]

    # The best, in their order

    def _chosen(self) -> list[Stmt]:
        """Statements that collect the keys and places of the best: all above the bound, then the
        first of those that equal it.
        """
        nest, scratch, zero = self.nest, self.nest.builder.scratch, expr.index(0)
        taken = scratch("taken", DType.I32, (1,))
        equal = scratch("equal", DType.I32, (1,))
        bound = Load(self.bound, (zero,), DType.I32)
        so_many = Load(taken, (zero,), DType.I32)
        alike = Load(equal, (zero,), DType.I32)
        # those behind the last of the best are not looked at
        is_sought = expr.binary("lt", so_many, _number(self.count))

        def one(i: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            key = nest.let(Load(self.keys, (i,), DType.I32), stmts, "key")
            to = nest.let(so_many, stmts, "to")
            here = (expr.cast(to, DType.INDEX),)
            before = nest.let(alike, stmts, "before")
            is_equal = nest.let(expr.binary("eq", key, bound), stmts, "e")
            left = expr.sub(_number(self.count), Load(self.greater, (zero,), DType.I32))
            is_among = expr.binary("and", is_equal, expr.binary("lt", before, left))
            is_best = expr.binary("or", expr.binary("gt", key, bound), is_among)
            return [
                *stmts,
                # beyond the last there is room for those of a group that are none
                Store(self.best, here, key),
                Store(self.places, here, expr.cast(i, DType.I32)),
                Store(taken, (zero,), expr.add(to, expr.cast(is_best, DType.I32))),
                Store(equal, (zero,), expr.add(before, expr.cast(is_equal, DType.I32))),
            ]

        def group(first: Expr, size: int) -> list[Stmt]:
            stmts: list[Stmt] = []
            some = scratch("some", DType.I32, (size,))

            def ask(n: Expr) -> list[Stmt]:
                key = Load(self.keys, (expr.add(first, n),), DType.I32)
                is_there = expr.binary("ge", key, bound)
                return [Store(some, (n,), expr.select(is_there, _number(1), _number(0)))]

            stmts += over_lanes(nest, size, ask)
            stmts += halved(nest, "sum", some, size, 1)
            is_any = expr.binary("gt", Load(some, (zero,), DType.I32), _number(0))
            ones = nest.serial(size, lambda n: one(expr.add(first, n)), "n")
            return [*stmts, If(expr.binary("and", is_any, is_sought), tuple(ones))]

        size = self.lanes
        whole, rest = divmod(self.extent, size)
        done = expr.index(whole * size)
        last = nest.serial(rest, lambda n: one(expr.add(done, n)), "n")
        return [
            Store(taken, (zero,), _number(0)),
            Store(equal, (zero,), _number(0)),
            *nest.serial(whole, lambda g: group(expr.mul(g, expr.index(size)), size), "g"),
            *([If(is_sought, tuple(last))] if last else []),
            *self._least(self.best, self.count),
        ]

    # Their places

    def _placed(
        self, at: Sequence[Expr], keys: Scratch, count: int, origin: Callable[[Expr], Expr]
    ) -> list[Stmt]:
        """Statements that rank `count` keys by counting those that come before each, and store them
        there.
        """
        nest, lanes = self.nest, self.lanes
        scratch = nest.builder.scratch
        whole = -(-count // lanes)
        # by rank, where elements were; as many as a vector's lanes can count
        size = (whole + 1) * lanes
        order = scratch("order", DType.I32, (size,), Space.WORKGROUP)

        def cleared(o: Expr) -> list[Stmt]:
            first = expr.mul(o, expr.index(lanes))
            return over_lanes(
                nest, lanes, lambda n: [Store(order, (expr.add(first, n),), _number(0))]
            )

        def one(j: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            key = nest.let(Load(keys, (j,), DType.I32), stmts, "key")
            number = nest.let(expr.cast(j, DType.I32), stmts, "j")
            before = scratch("before", DType.I32, (lanes,))
            stmts += over_lanes(nest, lanes, lambda n: [Store(before, (n,), _number(0))])

            def vector(o: Expr) -> list[Stmt]:
                def lane(n: Expr) -> list[Stmt]:
                    i = expr.add(expr.mul(o, expr.index(lanes)), n)
                    other = Load(keys, (i,), DType.I32)
                    is_first = expr.binary("lt", expr.cast(i, DType.I32), number)
                    is_equal = expr.binary("and", expr.binary("eq", other, key), is_first)
                    is_before = expr.binary("or", expr.binary("gt", other, key), is_equal)
                    one = expr.select(is_before, _number(1), _number(0))
                    return [Store(before, (n,), expr.add(Load(before, (n,), DType.I32), one))]

                return over_lanes(nest, lanes, lane)

            stmts += nest.serial(whole, vector, "o")
            stmts += halved(nest, "sum", before, lanes, 1)
            rank = expr.cast(Load(before, (expr.index(0),), DType.I32), DType.INDEX)
            return [*stmts, Store(order, (rank,), origin(j))]

        return [
            *nest.serial(whole + 1, cleared, "o"),
            *nest.serial(count, one, "j"),
            *nest.serial(
                self.count, lambda n: self._stores(at, n, Load(order, (n,), DType.I32)), "n"
            ),
        ]

    def _stores(self, at: Sequence[Expr], rank: Expr, origin: Expr) -> list[Stmt]:
        stmts: list[Stmt] = []
        place = let(self.lines, expr.cast(origin, DType.INDEX), stmts, "origin")
        value = self.lines.load(0, self._place(at, place))
        position = expr.cast(place, self.lines.op.results[1].type.dtype)
        for number, stored in enumerate((value, position)):
            if number in self.wanted:
                stmts.append(self.lines.store(number, self._place(at, rank), stored))
        return stmts


def _number(value: int) -> Expr:
    return expr.const(value, DType.I32)
