"""The kernel of non_max_suppression: each lane processes the boxes of one image and class.

Positions of scores above the least one become a heap, the best at its root, which costs a few
comparisons for each; what is taken from it costs the heap's depth, so that only as much is sorted
as is looked at. A box that is taken is compared with those chosen before, whose corners stand side
by side, so that a CPU compares a vector of them at a time, and stops at the first vector with one
that it overlaps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Load
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Scratch, Stmt, Store
from aot.kernels.match.work import Loops
from aot.kernels.nest.nest import Axis
from aot.kernels.nest.over_output import lanes_over_output
from aot.kernels.rules.lines.lines import Lines, let, when
from aot.kernels.rules.rule import OpWork
from aot.ops.suppression import (
    BOXES,
    CHOSEN,
    CORNERS,
    COUNTS,
    HEAP,
    HEAP_SCORES,
    KEPT,
    LEAST,
    MOST,
    OVERLAP,
    ROOM,
    SCORES,
)

F32, INDEX = DType.F32, DType.INDEX
# Iterations between two looks at whether a loop, whose end data decide, is over.
BLOCK = 64
# levels of a heap whose size is not known
_MOST_LEVELS = 31
_ZERO = expr.index(0)


def schedule_suppression(work: OpWork) -> Loops:
    """The loops of non-maximum suppression. Results are positions and counts; two more give memory
    for heaps and corners of chosen boxes."""
    lines = Lines(work)
    return _Suppression(lines).build()


class _Suppression:
    """Non-maximum suppression: a heap of candidates by score, from which boxes are taken.

    Attributes:
        left, taken: scratch of the number of candidates in the heap, and of chosen boxes.
        hole: scratch of an index in the heap; `at` has the index to continue from, beyond the heap
            if done.
        held: scratch of the candidate being inserted; `score` has its score.
    """

    def __init__(self, lines: Lines) -> None:
        self.lines, self.nest = lines, lines.nest
        boxes = lines.operand(BOXES).type
        self.extent, self.limit = boxes.dims[1], lines.op.dim("limit")
        builder = self.nest.builder
        self.left, self.taken, self.hole, self.at, self.held = (
            builder.scratch(name, INDEX, (1,)) for name in ("left", "taken", "hole", "at", "held")
        )
        self.score = builder.scratch("score", F32, (1,))
        self.width = 1 if self.nest.is_gpu else max(self.nest.lanes, 8)
        self.meets = builder.scratch("meets", DType.I32, (self.width,))
        self.is_out = builder.scratch("is_out", DType.I32, (1,))
        count = self.extent
        self.levels = count.bit_length() if isinstance(count, int) else _MOST_LEVELS

    def build(self) -> tuple[Stmt, ...]:
        images, classes, _ = self.lines.operand(SCORES).type.dims
        axes: list[Axis] = []
        at: list[Expr] = []
        for name, extent in (("image", images), ("class", classes)):
            if extent == 1:
                at.append(_ZERO)
            else:
                axes.append(Axis(self.nest.builder.var(name), extent))
                at.append(axes[-1].var)

        def row(values: dict[expr.Var, Expr], width: int, lane: Expr | None) -> list[Stmt]:
            return self.row([values.get(i, i) if isinstance(i, expr.Var) else i for i in at])

        return lanes_over_output(self.nest, axes, row, dims.multiply(self.extent, 4))

    def row(self, row: Sequence[Expr]) -> list[Stmt]:
        """Statements that choose the boxes of one image and class."""
        self.rowed = list(row)
        stmts: list[Stmt] = []
        most = expr.cast(self.lines.load(MOST, ()), INDEX)
        most = let(self.lines, expr.binary("min", most, expr.index(self.limit)), stmts, "most")
        half = expr.binary("floordiv", self.read(self.left), expr.index(2))
        return [
            *stmts,
            self.set(self.taken, _ZERO),
            *self.find_candidates(),
            *self.until(dims.floor_divide(self.extent, 2), half, self.settle),
            *self.nest.serial(
                dims.ceil_divide(self.extent, BLOCK), lambda _: self.take_block(most), "block"
            ),
            *self.given(COUNTS, row, self.position(self.read(self.taken))),
            *self.nest.serial(self.limit, self.clear, "i"),
            *self.nest.serial(
                dims.multiply(dims.ceil_divide(self.limit, ROOM), ROOM), self.clear_kept, "i"
            ),
            *(self.nest.serial if self.nest.is_gpu else self.nest.vectors)(
                self.extent, lambda i: self.put(i, _ZERO, expr.const(0.0, F32)), "i"
            ),
        ]

    # Small things.

    def read(self, scratch: Scratch) -> Expr:
        return Load(scratch, (_ZERO,), scratch.dtype)

    def set(self, scratch: Scratch, value: Expr) -> Store:
        return Store(scratch, (_ZERO,), value)

    def given(self, number: int, indices: Sequence[Expr], value: Expr) -> list[Store]:
        """The store of an element of a result; none where nothing reads that result."""
        if self.lines.results[number] is None:
            return []
        return [self.lines.store(number, indices, value)]

    def position(self, value: Expr) -> Expr:
        return expr.cast(value, self.lines.op.results[COUNTS].type.dtype)

    def candidate(self, place: Expr) -> Expr:
        """The box number of the candidate at a place of the heap."""
        return expr.cast(self.lines.read_back(HEAP, [*self.rowed, place]), INDEX)

    def score_at(self, place: Expr) -> Expr:
        """The score of the candidate box at a place of the heap."""
        return self.lines.read_back(HEAP_SCORES, [*self.rowed, place])

    def put(self, place: Expr, candidate: Expr, score: Expr) -> list[Stmt]:
        return [
            self.lines.store(HEAP, [*self.rowed, place], expr.cast(candidate, DType.I32)),
            self.lines.store(HEAP_SCORES, [*self.rowed, place], score),
        ]

    def until(self, extent: Dim, end: Expr, body: Callable[[Expr], Sequence[Stmt]]) -> list[Stmt]:
        """`body(i)` for each `i` below `end`, which is at most `extent` and known only here."""

        def block(number: Expr) -> list[Stmt]:
            begin = expr.mul(number, expr.index(BLOCK))
            inner = self.nest.serial(
                BLOCK,
                lambda i: [
                    If(expr.binary("lt", expr.add(begin, i), last), tuple(body(expr.add(begin, i))))
                ],
                "i",
            )
            return [If(expr.binary("lt", begin, last), tuple(inner))]

        stmts: list[Stmt] = []
        last = let(self.lines, end, stmts, "end")
        return stmts + self.nest.serial(dims.ceil_divide(extent, BLOCK), block, "block")

    # The heap.

    def find_candidates(self) -> list[Stmt]:
        """Statements that collect the positions of scores above the threshold, in order."""

        def step(i: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            score = let(self.lines, self.lines.load(SCORES, [*self.rowed, i]), stmts, "s")
            if not self.has_least:
                return [*stmts, *self.put(i, i, score)]
            count = let(self.lines, self.read(self.left), stmts, "count")
            is_above = expr.binary("lt", self.lines.load(LEAST, ()), score)
            more = expr.add(count, expr.select(is_above, expr.index(1), _ZERO))
            return [*stmts, *self.put(count, i, score), self.set(self.left, more)]

        start = _ZERO if self.has_least else expr.index(self.extent)
        return [self.set(self.left, start), *self.nest.serial(self.extent, step, "n")]

    @property
    def has_least(self) -> bool:
        return len(self.lines.op.operands) > LEAST and self.lines.op.operands[LEAST] is not None

    def settle(self, i: Expr) -> list[Stmt]:
        """Builds the heap: sifts down from the i-th place, counted back from the last one with
        children."""
        half = expr.binary("floordiv", self.read(self.left), expr.index(2))
        stmts: list[Stmt] = []
        place = let(self.lines, expr.sub(expr.sub(half, expr.index(1)), i), stmts, "place")
        return [*stmts, *self.hold(place), *self.sink(place)]

    def hold(self, place: Expr) -> list[Stmt]:
        return [
            self.set(self.held, self.candidate(place)),
            self.set(self.score, self.score_at(place)),
        ]

    def is_better(self, score: Expr, candidate: Expr, other: Expr, than: Expr) -> Expr:
        """Whether a candidate ranks before another: by the higher score, then by the lower box
        number.
        """
        is_first = expr.binary(
            "and", expr.binary("eq", score, other), expr.binary("lt", candidate, than)
        )
        return expr.binary("or", expr.binary("lt", other, score), is_first)

    def down(
        self, at: Expr, size: Expr, move: Callable[[Expr, Expr, Expr], Sequence[Stmt]]
    ) -> list[Stmt]:
        """Runs `move(place, candidate, score)` on the better child of a heap place, if there is
        one."""
        one = expr.index(1)
        stmts: list[Stmt] = []
        first = let(self.lines, expr.add(expr.mul(at, expr.index(2)), one), stmts, "first")
        inner: list[Stmt] = []
        second = expr.binary("min", expr.add(first, one), expr.sub(size, one))
        second = let(self.lines, second, inner, "second")
        a = let(self.lines, self.candidate(first), inner, "a")
        b = let(self.lines, self.candidate(second), inner, "b")
        x = let(self.lines, self.score_at(first), inner, "x")
        y = let(self.lines, self.score_at(second), inner, "y")
        is_second = let(self.lines, self.is_better(y, b, x, a), inner, "is_second")
        best = let(self.lines, expr.select(is_second, b, a), inner, "best")
        score = let(self.lines, expr.select(is_second, y, x), inner, "best_score")
        child = let(self.lines, expr.select(is_second, second, first), inner, "child")
        inner += move(child, best, score)
        return [*stmts, If(expr.binary("lt", first, size), tuple(inner))]

    def sink(self, start: Expr) -> list[Stmt]:
        """Sifts the candidate being inserted down the heap from `start`."""

        def level(_: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            size = let(self.lines, self.read(self.left), stmts, "size")
            hole = let(self.lines, self.read(self.at), stmts, "h")

            def move(child: Expr, best: Expr, score: Expr) -> list[Stmt]:
                sinks = self.is_better(score, best, self.read(self.score), self.read(self.held))
                moved = (
                    *self.put(hole, best, score),
                    self.set(self.hole, child),
                    self.set(self.at, child),
                )
                return [If(sinks, moved, (self.set(self.at, size),))]

            return [*stmts, *self.down(hole, size, move)]

        return [
            self.set(self.hole, start),
            self.set(self.at, start),
            *self.nest.serial(self.levels, level, "level"),
            *self.put(self.read(self.hole), self.read(self.held), self.read(self.score)),
        ]

    def replace_best(self) -> list[Stmt]:
        """Removes the heap's root: moves the better child up along one path to a leaf, then puts
        the last element there and sifts it up. As it was a leaf before, it seldom rises far.
        """

        def sinking(_: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            size = let(self.lines, self.read(self.left), stmts, "size")
            hole = let(self.lines, self.read(self.hole), stmts, "h")
            return stmts + self.down(
                hole,
                size,
                lambda child, best, score: [
                    *self.put(hole, best, score),
                    self.set(self.hole, child),
                ],
            )

        def rising(_: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            hole = let(self.lines, self.read(self.at), stmts, "h")
            inner: list[Stmt] = []
            above = expr.binary("floordiv", expr.sub(hole, expr.index(1)), expr.index(2))
            above = let(self.lines, above, inner, "above")
            a = let(self.lines, self.candidate(above), inner, "a")
            x = let(self.lines, self.score_at(above), inner, "x")
            rises = self.is_better(self.read(self.score), self.read(self.held), x, a)
            moved = (
                *self.put(hole, a, x),
                self.set(self.hole, above),
                self.set(self.at, above),
            )
            inner.append(If(rises, moved, (self.set(self.at, _ZERO),)))
            return [*stmts, If(expr.binary("lt", _ZERO, hole), tuple(inner))]

        return [
            self.set(self.hole, _ZERO),
            *self.nest.serial(self.levels, sinking, "level"),
            self.set(self.at, self.read(self.hole)),
            *self.nest.serial(self.levels, rising, "level"),
            *self.put(self.read(self.hole), self.read(self.held), self.read(self.score)),
        ]

    # The choice.

    def take_block(self, most: Expr) -> list[Stmt]:
        """Statements that take candidates from the heap as long as there are any and more boxes may
        be chosen.
        """

        def goes_on() -> Expr:
            return expr.binary(
                "and",
                expr.binary("lt", _ZERO, self.read(self.left)),
                expr.binary("lt", self.read(self.taken), most),
            )

        inner = self.nest.serial(BLOCK, lambda _: [If(goes_on(), tuple(self.take()))], "i")
        return [If(goes_on(), tuple(inner))]

    def take(self) -> list[Stmt]:
        """Removes the best candidate from the heap, and chooses it unless it overlaps a chosen
        box."""
        stmts: list[Stmt] = []
        best = let(self.lines, self.candidate(_ZERO), stmts, "best")
        left = let(self.lines, expr.sub(self.read(self.left), expr.index(1)), stmts, "rest")
        stmts.append(self.set(self.left, left))
        stmts += when([expr.binary("lt", _ZERO, left)], [*self.hold(left), *self.replace_best()])
        box = self.corners(best, stmts)
        stmts += self.compare(box)
        taken = let(self.lines, self.read(self.taken), stmts, "count")
        chosen: list[Stmt] = [
            *self.given(CHOSEN, [*self.rowed, taken], self.position(best)),
            *(
                self.lines.store(KEPT, [*self.rowed, expr.index(d), taken], side)
                for d, side in enumerate(box)
            ),
            self.set(self.taken, expr.add(taken, expr.index(1))),
        ]
        is_free = expr.binary("eq", self.read(self.is_out), expr.const(0, DType.I32))
        return [*stmts, If(is_free, tuple(chosen))]

    def corners(self, box: Expr, into: list[Stmt]) -> list[Expr]:
        """(least y, greatest y, least x, greatest x, area) of a box."""

        def named(value: Expr, name: str) -> Expr:
            return let(self.lines, value, into, name)

        part = [
            named(self.lines.load(BOXES, [self.rowed[0], box, expr.index(d)]), "box")
            for d in range(4)
        ]
        sides: list[Expr] = []
        if self.lines.op.attrs["centered"]:
            for centre, size in ((part[1], part[3]), (part[0], part[2])):
                half = named(expr.mul(size, expr.const(0.5, F32)), "half")
                sides += [expr.sub(centre, half), expr.add(centre, half)]
        else:
            for d in (0, 1):
                sides += [expr.binary(op, part[d], part[d + 2]) for op in ("min", "max")]
        sides = [named(side, "side") for side in sides]
        area = expr.mul(expr.sub(sides[1], sides[0]), expr.sub(sides[3], sides[2]))
        return [*sides, named(area, "area")]

    def compare(self, box: Sequence[Expr]) -> list[Stmt]:
        """Statements that find whether a box overlaps a chosen one, several vectors of those at a
        time.
        """
        none, width = expr.const(0, DType.I32), self.width
        stmts: list[Stmt] = [self.set(self.is_out, none)]
        count = let(self.lines, self.read(self.taken), stmts, "chosen")
        overlap = let(self.lines, self.lines.load(OVERLAP, ()), stmts, "overlap")

        def spread(body: Callable[[Expr], Stmt]) -> Stmt:
            if width == 1:
                return body(_ZERO)
            return self.nest.spread(width, lambda lane: [body(lane)])

        def vectors(number: Expr) -> list[Stmt]:
            begin = expr.mul(number, expr.index(ROOM))

            def met(v: Expr, lane: Expr) -> Stmt:
                k = expr.add(begin, expr.add(expr.mul(v, expr.index(width)), lane))
                before = Load(self.meets, (lane,), DType.I32)
                found = self.met(box, k, count, overlap)
                return Store(self.meets, (lane,), expr.binary("or", before, found))

            inner: list[Stmt] = [spread(lambda lane: Store(self.meets, (lane,), none))]
            inner += self.nest.serial(
                ROOM // width, lambda v: [spread(lambda lane: met(v, lane))], "v"
            )
            found: Expr = none
            for lane in range(width):
                found = expr.binary("or", found, Load(self.meets, (expr.index(lane),), DType.I32))
            inner.append(self.set(self.is_out, found))
            is_open = expr.binary("eq", self.read(self.is_out), none)
            return [If(expr.binary("and", expr.binary("lt", begin, count), is_open), tuple(inner))]

        return stmts + self.nest.serial(dims.ceil_divide(self.limit, ROOM), vectors, "block")

    def met(self, box: Sequence[Expr], k: Expr, count: Expr, overlap: Expr) -> Expr:
        """1 if chosen box `k` exists and overlaps `box` by more than the limit, else 0."""
        zero = expr.const(0.0, F32)
        other = [
            self.lines.read_back(KEPT, [*self.rowed, expr.index(d), k]) for d in range(CORNERS)
        ]
        sides = [
            expr.sub(
                expr.binary("min", box[d], other[d]), expr.binary("max", box[d - 1], other[d - 1])
            )
            for d in (1, 3)
        ]
        both = expr.mul(*sides)
        union = expr.sub(expr.add(box[4], other[4]), both)
        conditions = [expr.binary("lt", zero, v) for v in (*sides, both, box[4], other[4], union)]
        conditions.append(expr.binary("lt", overlap, expr.binary("div", both, union)))
        is_met = expr.all_of([expr.binary("lt", k, count), *conditions])
        assert is_met is not None
        return expr.select(is_met, expr.const(1, DType.I32), expr.const(0, DType.I32))

    def clear(self, i: Expr) -> list[Stmt]:
        """Statements that store 0 to place `i` of the chosen boxes if no box is there."""
        is_behind = expr.binary("le", self.read(self.taken), i)
        zero = expr.const(0, self.lines.op.results[CHOSEN].type.dtype)
        stores = self.given(CHOSEN, [*self.rowed, i], zero)
        return [If(is_behind, tuple(stores))] if stores else []

    def clear_kept(self, i: Expr) -> list[Stmt]:
        is_behind = expr.binary("le", self.read(self.taken), i)
        stores = [
            self.lines.store(KEPT, [*self.rowed, expr.index(d), i], expr.const(0.0, F32))
            for d in range(CORNERS)
        ]
        return [If(is_behind, tuple(stores))]
