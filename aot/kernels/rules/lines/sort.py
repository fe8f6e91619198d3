"""The kernel of top_k: each lane keeps the best k so far, as a heap in the result's memory, or for
small k on a CPU as a sorted list in registers.

The worst of them is the heap's root, so that an element that is not better costs one comparison.
At the end the heap is taken apart, worst first, into its own memory: O(n log k) in all. Of equal
elements the one in front is the better, which makes the order total, and the result stable. NaN
is greater than any number, and equal to NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Load, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Scratch, Stmt, Store
from aot.kernels.match.work import Loops
from aot.kernels.nest.nest import Axis
from aot.kernels.rules.lines.best_many import ManyBest
from aot.kernels.rules.lines.lines import Lines, let
from aot.kernels.rules.rule import OpWork

VALUES, POSITIONS = 0, 1
# how many a CPU keeps in registers: an element that is among them moves the others without branches
MOST_IN_REGISTERS = 8
# lanes that lines of their own are worth
LEAST_LANES = 4
# powers of four whose sum is above any extent
_POWERS = 16


def schedule_sort(work: OpWork) -> Loops:
    """The loops of top_k; results (values, positions) that nobody reads are not stored."""
    lines = Lines(work)
    count = lines.op.attrs["k"]
    is_few = isinstance(count, int) and 0 < count <= MOST_IN_REGISTERS
    if is_few and not lines.nest.is_gpu:
        across = _FewAcross(lines)
        return across.blocks() if across.fits() else _FewBest(lines).build()
    many = _many(lines)
    if many is not None:
        return many
    return _TopK(lines).build()


def _many(lines: Lines) -> tuple[Stmt, ...] | None:
    """The loops of `ManyBest`; None where extents are unknown or it does not fit."""
    top = _TopK(lines)
    if lines.nest.is_gpu or not isinstance(top.count, int) or top.count == 0:
        return None
    many = ManyBest(lines, top.axis, top.count, top.wanted)
    if not isinstance(top.extent, int) or top.extent < top.count or not many.fits():
        return None
    across = [n for d, n in enumerate(top.x.dims) if d != top.axis]
    return lines.each(across, lambda at, width, lane: many.line(at), top.extent)


class _TopK:
    """`top_k` by a heap, one lane per line.

    Attributes:
        held: for each result the scratch of the element that is being inserted; None where the
            result is not read.
        hole: the scratch of the index at which it may be inserted.
    """

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.x = lines.operand(0).type
        self.axis, self.count = lines.op.int("axis"), lines.op.dim("k")
        self.extent = self.x.dims[self.axis]
        self.is_largest = bool(lines.op.attrs["largest"])
        self.position_dtype = lines.op.results[POSITIONS].type.dtype
        self.wanted = [n for n in (VALUES, POSITIONS) if lines.results[n] is not None]
        builder = lines.nest.builder
        self.held = {
            VALUES: builder.scratch("value", self.x.dtype, (1,)),
            POSITIONS: builder.scratch("position", self.position_dtype, (1,)),
        }
        self.hole = builder.scratch("hole", DType.INDEX, (1,))
        self.levels = _levels(self.count)

    def build(self) -> tuple[Stmt, ...]:
        return self.lines.each(
            [n for d, n in enumerate(self.x.dims) if d != self.axis],
            lambda at, width, lane: self.line(at),
        )

    def line(self, at: Sequence[Expr]) -> list[Stmt]:
        serial, k = self.lines.nest.serial, self.count
        half = dims.floor_divide(k, 2)
        offers = serial(
            self.at_least_0(dims.add(self.extent, dims.multiply(k, -1))),
            lambda i: self.offer(at, expr.add(i, expr.index(k))),
            "i",
        )
        if not isinstance(k, int):  # none is kept: nothing is compared with the worst of them
            offers = [If(expr.binary("lt", expr.index(0), expr.index(k)), tuple(offers))]
        return [
            *serial(k, lambda i: self.fill(at, i), "i"),
            *serial(
                half, lambda j: self.settle(at, expr.sub(expr.index(dims.add(half, -1)), j)), "j"
            ),
            *offers,
            *serial(
                self.at_least_0(dims.add(k, -1)),
                lambda j: self.take_worst(at, expr.sub(expr.index(dims.add(k, -1)), j)),
                "j",
            ),
        ]

    def at_least_0(self, extent: Dim) -> Dim:
        return max(extent, 0) if isinstance(extent, int) else dims.maximum(0, extent)

    # the four phases

    def fill(self, at: Sequence[Expr], i: Expr) -> list[Stmt]:
        """Statements that store element `i` of the first k as element `i` of the heap."""
        is_known = isinstance(self.count, int) and isinstance(self.extent, int)
        guard = None if is_known else expr.binary("lt", i, expr.index(self.extent))
        return self.store(at, i, self.lines.load(0, self.place(at, i), guard), i)

    def settle(self, at: Sequence[Expr], p: Expr) -> list[Stmt]:
        """Sifts down from place p, whose children are heaps already."""
        return [*self.hold(at, p), *self.sink(at, p, expr.index(self.count))]

    def offer(self, at: Sequence[Expr], i: Expr) -> list[Stmt]:
        """Statements that replace the heap's root, the worst element, by element `i` if that is
        better. Equal elements do not replace it, as they come later."""
        stmts: list[Stmt] = []
        zero = expr.index(0)
        value = let(self.lines, self.lines.load(0, self.place(at, i)), stmts, "v")
        held = [
            Store(self.held[VALUES], (zero,), value),
            Store(self.held[POSITIONS], (zero,), expr.cast(i, self.position_dtype)),
        ]
        is_better = self.is_better(value, self.value(at, zero))
        return [*stmts, If(is_better, (*held, *self.sink(at, zero, expr.index(self.count))))]

    def take_worst(self, at: Sequence[Expr], end: Expr) -> list[Stmt]:
        """Statements that move the heap's root behind the heap, and sink its last element from the
        root.
        """
        zero = expr.index(0)
        return [*self.hold(at, end), *self.move(at, end, zero), *self.sink(at, zero, end)]

    # elements of the heap

    def place(self, at: Sequence[Expr], i: Expr) -> list[Expr]:
        return [*at[: self.axis], i, *at[self.axis :]]

    def value(self, at: Sequence[Expr], p: Expr) -> Expr:
        """The value in place p."""
        if VALUES in self.wanted:
            return self.lines.read_back(VALUES, self.place(at, p))
        position = expr.cast(self.position(at, p), DType.INDEX)
        return self.lines.load(0, self.place(at, position))

    def position(self, at: Sequence[Expr], p: Expr) -> Expr:
        """The position in x of the element at place p; 0 where positions aren't kept."""
        if POSITIONS in self.wanted:
            return self.lines.read_back(POSITIONS, self.place(at, p))
        return expr.const(0, self.position_dtype)

    def store(self, at: Sequence[Expr], p: Expr, value: Expr, position: Expr) -> list[Stmt]:
        stored = {VALUES: value, POSITIONS: expr.cast(position, self.position_dtype)}
        return [self.lines.store(n, self.place(at, p), stored[n]) for n in self.wanted]

    def move(self, at: Sequence[Expr], to: Expr, source: Expr) -> list[Stmt]:
        return [
            self.lines.store(n, self.place(at, to), self.lines.read_back(n, self.place(at, source)))
            for n in self.wanted
        ]

    def hold(self, at: Sequence[Expr], p: Expr) -> list[Stmt]:
        zero = expr.index(0)
        return [
            Store(self.held[VALUES], (zero,), self.value(at, p)),
            Store(self.held[POSITIONS], (zero,), self.position(at, p)),
        ]

    def is_better(self, value: Expr, other: Expr) -> Expr:
        """Whether an element's value ranks before another's, positions aside."""
        greater, less = (value, other) if self.is_largest else (other, value)
        if not value.dtype.is_float:
            return expr.binary("gt", greater, less)
        is_number = expr.unary("not", expr.unary("isnan", less))
        if self.lines.nest.is_gpu:  # a driver may assume that comparisons never meet NaN
            is_nan = expr.unary("isnan", greater)
            is_above = expr.binary("or", is_nan, expr.binary("gt", greater, less))
        else:
            is_above = expr.unary("not", expr.binary("le", greater, less))
        return expr.binary("and", is_number, is_above)

    def is_worse(self, value: Expr, position: Expr, other: Expr, than: Expr) -> Expr:
        """Whether an element ranks behind another in the result."""
        is_worse = self.is_better(other, value)
        if POSITIONS not in self.wanted:
            return is_worse  # equal values do not differ
        is_equal = expr.binary("eq", value, other)
        if value.dtype.is_float:  # or both are NaN
            is_equal = expr.unary("not", self.is_better(value, other))
        is_later = expr.binary("and", is_equal, expr.binary("gt", position, than))
        return expr.binary("or", is_worse, is_later)

    def sink(self, at: Sequence[Expr], start: Expr, size: Expr) -> list[Stmt]:
        """Sifts the element being inserted down the heap from `start`."""
        zero, one = expr.index(0), expr.index(1)
        hole = Load(self.hole, (zero,), DType.INDEX)
        value, position = self.read(self.held[VALUES]), self.read(self.held[POSITIONS])

        def level(_: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            left = let(self.lines, expr.add(expr.mul(hole, expr.index(2)), one), stmts, "left")
            right = expr.binary("min", expr.add(left, one), expr.sub(size, one))
            inner: list[Stmt] = []
            right = let(self.lines, right, inner, "right")
            is_right = self.is_worse(
                self.value(at, right),
                self.position(at, right),
                self.value(at, left),
                self.position(at, left),
            )
            child = let(self.lines, expr.select(is_right, right, left), inner, "child")
            sinks = self.is_worse(self.value(at, child), self.position(at, child), value, position)
            inner.append(If(sinks, (*self.move(at, hole, child), Store(self.hole, (zero,), child))))
            return [*stmts, If(expr.binary("lt", left, size), tuple(inner))]

        return [
            Store(self.hole, (zero,), start),
            *self.lines.nest.serial(self.levels, level, "level"),
            *self.store(at, hole, value, position),
        ]

    def read(self, scratch: Scratch) -> Expr:
        return Load(scratch, (expr.index(0),), scratch.dtype)


def _levels(count: Dim) -> Dim:
    """Levels of a heap of `count` elements; if that is symbolic, possibly one more."""
    if isinstance(count, int):
        return count.bit_length()
    reached = (dims.minimum(1, dims.floor_divide(count, 4**n)) for n in range(_POWERS))
    return dims.multiply(reduce(dims.add, reached), 2)


class _FewBest(_TopK):
    """`top_k` with a small k: a sorted list of the best elements in registers.

    Attributes:
        best: for each result the scratch of what is kept, best first.
    """

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self.kept = int(self.count)
        scratch = lines.nest.builder.scratch
        self.best = {
            VALUES: scratch("best", self.x.dtype, (self.kept,)),
            POSITIONS: scratch("places", self.position_dtype, (self.kept,)),
        }

    def line(self, at: Sequence[Expr]) -> list[Stmt]:
        is_known = isinstance(self.extent, int)
        stmts: list[Stmt] = []
        for i in range(self.kept):
            index = expr.index(i)
            guard = None if is_known else expr.binary("lt", index, expr.index(self.extent))
            value = let(self.lines, self.lines.load(0, self.place(at, index), guard), stmts, "v")
            stmts += self.insert(value, index, i)
        rest = self.at_least_0(dims.add(self.extent, -self.kept))
        stmts += self.lines.nest.serial(
            rest, lambda i: self.offer(at, expr.add(i, expr.index(self.kept))), "i"
        )
        for i in range(self.kept):
            place = self.place(at, expr.index(i))
            stmts += [self.lines.store(n, place, self.of_rank(n, i)) for n in self.wanted]
        return stmts

    def offer(self, at: Sequence[Expr], i: Expr) -> list[Stmt]:
        """Statements that insert element `i` if it ranks before the last of the list; an equal one
        does not."""
        stmts: list[Stmt] = []
        last = self.kept - 1
        value = let(self.lines, self.lines.load(0, self.place(at, i)), stmts, "v")
        is_better = self.is_better(value, self.of_rank(VALUES, last))
        return [*stmts, If(is_better, tuple(self.insert(value, i, last)))]

    def of_rank(self, number: int, rank: int, lane: Expr | None = None) -> Load:
        """The load of rank `rank` of a result, for the lane's line if lanes have lines of their
        own.
        """
        best = self.best[number]
        return Load(best, (self.slot(rank, lane),), best.dtype)

    def slot(self, rank: int, lane: Expr | None) -> Expr:
        """The scratch index of a rank, for the lane's line if lanes have lines of their own."""
        return expr.index(rank)

    def insert(
        self,
        value: Expr,
        i: Expr,
        last: int,
        lane: Expr | None = None,
        is_here: Expr | None = None,
    ) -> list[Stmt]:
        """Statements that insert element `i` in the sorted list at or before rank `last`, and drop
        the element at that rank.

        Args:
            is_here: whether it does; None where that is known.
        """
        stmts: list[Stmt] = []
        place = let(self.lines, expr.cast(i, self.best[POSITIONS].dtype), stmts, "p")
        coming = {VALUES: value, POSITIONS: place}
        numbers = [VALUES, *(n for n in self.wanted if n == POSITIONS)]
        for rank in range(last, -1, -1):
            # whether it comes before what has the rank ahead; is_here: behind
            is_before = None
            if rank:
                ahead = self.of_rank(VALUES, rank - 1, lane)
                is_before = let(self.lines, self.is_better(value, ahead), stmts, "c")
            for n in numbers:
                now = coming[n]
                if is_here is not None:
                    now = expr.select(is_here, now, self.of_rank(n, rank, lane))
                if is_before is not None:
                    now = expr.select(is_before, self.of_rank(n, rank - 1, lane), now)
                stmts.append(Store(self.best[n], (self.slot(rank, lane),), now))
            is_here = is_before
        return stmts


class _FewAcross(_FewBest):
    """`top_k` of several lines at once, one per vector lane, without branches, which would often be
    mispredicted.
    """

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self.width = lines.nest.target.lanes(self.x.dtype)
        scratch = lines.nest.builder.scratch
        self.own, is_wide = self.best, self.position_dtype.bits > self.x.dtype.bits
        positions = DType.I32 if is_wide else self.position_dtype
        self.among = {
            VALUES: scratch("best", self.x.dtype, (self.kept * self.width,)),
            POSITIONS: scratch("places", positions, (self.kept * self.width,)),
        }

    def fits(self) -> bool:
        """Whether there are enough neighbouring lines for the lanes, and 32-bit positions
        suffice."""
        extent, rows = self.extent, self._outer()[-1:]
        if self.width < LEAST_LANES or self.x.dtype.bits != 32 or not isinstance(extent, int):
            return False
        if not rows or not self.kept <= extent < 1 << 31:
            return False
        return isinstance(rows[0].extent, int) and rows[0].extent >= self.width

    def _outer(self) -> list[Axis]:
        """The axes of the operand other than the sorted one, with more than one element."""
        return [
            Axis(Var(f"i{d}"), n) for d, n in enumerate(self.x.dims) if d != self.axis and n != 1
        ]

    def blocks(self) -> tuple[Stmt, ...]:
        nest, axes, width = self.lines.nest, self._outer(), self.width
        known = {axis.var.name: axis.var for axis in axes}
        *outer, rows = axes
        blocks = Axis(nest.builder.var("rb"), dims.ceil_divide(rows.extent, width))
        rest = dims.modulo(rows.extent, width)

        def body(values: dict[Var, Expr]) -> list[Stmt]:
            start = expr.mul(values[blocks.var], expr.index(width))

            def at(row: Expr) -> list[Expr]:
                here = {**values, rows.var: expr.add(start, row)}
                return [
                    here[known[f"i{d}"]] if f"i{d}" in known else expr.index(0)
                    for d in range(len(self.x.dims))
                    if d != self.axis
                ]

            whole = self.across(at)
            if rest == 0:
                return whole
            one = nest.serial(rest, lambda n: self.line(at(n)), "row")
            end = expr.add(start, expr.index(width))
            is_whole = expr.binary("le", end, expr.index(rows.extent))
            return [If(is_whole, tuple(whole), tuple(one))]

        work = dims.multiply(self.extent, width * self.kept)
        return nest.grid([*outer, blocks], body, work)

    def line(self, at: Sequence[Expr]) -> list[Stmt]:
        self.best = self.own
        return super().line(at)

    def slot(self, rank: int, lane: Expr | None) -> Expr:
        return expr.index(rank) if lane is None else expr.add(expr.index(rank * self.width), lane)

    def across(self, at: Callable[[Expr], list[Expr]]) -> list[Stmt]:
        """Statements that process one line in each lane; `at(lane)` gives a lane's indices."""
        nest, width, last = self.lines.nest, self.width, self.kept - 1
        self.best = self.among

        def element(i: Expr, rank: int, *, is_asked: bool) -> list[Stmt]:
            def of_line(lane: Expr) -> list[Stmt]:
                stmts: list[Stmt] = []
                value = let(self.lines, self.lines.load(0, self.place(at(lane), i)), stmts, "v")
                is_better = None
                if is_asked:
                    found = self.is_better(value, self.of_rank(VALUES, last, lane))
                    is_better = let(self.lines, found, stmts, "b")
                return [*stmts, *self.insert(value, i, rank, lane, is_better)]

            return [nest.spread(width, of_line)]

        stmts = [
            stmt for i in range(self.kept) for stmt in element(expr.index(i), i, is_asked=False)
        ]
        whole, rest = divmod(int(self.extent) - self.kept, width)

        def several(o: Expr) -> list[Stmt]:
            first = expr.add(expr.mul(o, expr.index(width)), expr.index(self.kept))
            return nest.unrolled(
                width, lambda u: element(expr.add(first, u), last, is_asked=True), "u"
            )

        done = expr.index(self.kept + whole * width)
        stmts += nest.serial(whole, several, "o")
        stmts += nest.serial(rest, lambda t: element(expr.add(done, t), last, is_asked=True), "t")

        def store(rank: int, lane: Expr) -> list[Stmt]:
            place = self.place(at(lane), expr.index(rank))
            return [
                self.lines.store(n, place, expr.cast(self.of_rank(n, rank, lane), dtype))
                for n, dtype in ((VALUES, self.x.dtype), (POSITIONS, self.position_dtype))
                if n in self.wanted
            ]

        for rank in range(self.kept):
            stmts.append(nest.spread(width, lambda lane, rank=rank: store(rank, lane)))  # type: ignore[misc]
        return stmts
