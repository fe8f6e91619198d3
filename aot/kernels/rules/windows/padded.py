"""Windows over padded planes: lanes along the innermost dim, along which windows slide.

The rows of the plane that some rows of the result read are first brought into scratch with their
padding, and by the phase of the windows' steps: no tap then asks where it is, and all loads are of
neighbours. CPU only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.expr import Binary, Cast, Expr, Load, Reduce, Var
from aot.kernels.ir.nodes import If, Scratch, Space, Stmt, Store
from aot.kernels.match.work import Build, Work
from aot.kernels.nest import segments
from aot.kernels.nest.nest import Axis, Nest, Output, Values, combine, combined, identity
from aot.kernels.nest.rows import SUMS, row_of_vectors

# taps along a row of a window that are written out
MOST_TAPS = 32
# rows of the result that share what is brought into scratch, for each row of a window
ROWS_A_TAP = 4
# what it costs to store a row's combined taps, in taps
LINE = 1


@dataclass(frozen=True)
class Taps:
    """Taps along an axis that one loop comes to, as many apart as a window's steps are places.

    Attributes:
        first, count: the taps.
        phase, ahead: of the first one's place: where it is between steps, and how many are before.
    """

    first: int
    count: int
    phase: int
    ahead: int


@dataclass(frozen=True)
class Slide:
    """How windows slide along one axis of a plane: tap `tap` of the result's index `at` is place
    `step * at + apart * tap`, counted from the first tap of the first window.

    Attributes:
        at, tap: loops over the result and over the taps; a window of one tap has none of the
            latter.
        stride: how far apart the neighbours lie in memory.
        begin, end: the places that are not padding.
    """

    at: Axis
    tap: Axis | None
    step: int
    apart: int
    stride: int
    begin: int
    end: int

    @property
    def count(self) -> int:
        """The number of places that the windows read."""
        return self.places(self.at.count)

    @property
    def taps(self) -> int:
        return 1 if self.tap is None else self.tap.count

    def places(self, results: int) -> int:
        """The number of places that `results` neighbouring windows read."""
        return self.step * (results - 1) + self.apart * (self.taps - 1) + 1

    def by_phase(self) -> list[Taps]:
        """All taps, by the phase of their places."""
        found: list[Taps] = []
        for first in range(min(self.step, self.taps)):
            ahead, phase = divmod(self.apart * first, self.step)
            found.append(Taps(first, -(-(self.taps - first) // self.step), phase, ahead))
        return found

    def is_there(self, first: Expr, last: Expr, reach: int) -> Expr | None:
        """Whether the first and the last of some places, below `reach`, are no padding; None where
        all are not."""
        asked: list[Expr] = []
        if self.begin > 0:
            asked.append(expr.binary("ge", first, expr.index(self.begin)))
        if self.end < reach:
            asked.append(expr.binary("lt", last, expr.index(self.end)))
        return expr.all_of(asked)


@dataclass(frozen=True)
class PaddedWindow:
    """A reduction over the taps of a window.

    Attributes:
        load: of the plane.
        along: how windows slide along the innermost axis.
        down: and along the one before it, if they do.
        planes: what is summed over beside taps, a plane after the other.
        is_there: whether a plane is one, rather than padding that changes nothing; None if all are.
    """

    reduce: Reduce
    load: Load
    along: Slide
    down: Slide | None
    planes: tuple[Axis, ...] = ()
    is_there: Expr | None = None

    @property
    def is_separable(self) -> bool:
        """Whether taps along a row may be combined before those down the plane: no term depends on
        its tap, or on whose window it is in.
        """
        along, down = self.along, self.down
        if down is None or down.tap is None or min(along.taps, down.taps) == 1:
            return False
        staged = Var("staged", self.load.dtype)
        term = expr.transform(self.reduce.body, {self.load: staged}.get)  # type: ignore[arg-type]
        known = {slide.at.var for slide in (along, down)}
        return not expr.free_vars(term) & {*known, *(v for v, _ in self.reduce.axes)}


def find_padded(
    nest: Nest, output: Output, reduces: Sequence[Reduce], *, needs_padding: bool = True
) -> PaddedWindow | None:
    """The window over planes that `output` is, if it is one; by default only one with padding."""
    if nest.is_gpu or nest.lanes == 1 or len(reduces) != 1 or not output.axes:
        return None
    (reduce,) = reduces
    inner = output.axes[-1]
    found = [x for x in expr.loads(reduce.body) if inner.var in expr.free_vars(x)]
    if len(found) != 1:
        return None
    (load,) = found
    if needs_padding if load.guard is None else not _is_filler(load):
        return None
    if any(x.guard is not None for x in expr.loads(reduce.body) if x is not load):
        return None
    taps = [Axis(v, n) for v, n in reduce.axes if n != 1]
    conditions = [] if load.guard is None else list(expr.conditions_of(load.guard))
    slides: list[Slide] = []
    for at in (inner, *output.axes[-2:-1]):
        asked = [c for c in conditions if at.var in expr.free_vars(c)]
        slide = _slide(load, at, taps, asked)
        if slide is None and at is inner and needs_padding:
            return None
        if slide is None and not asked and (len(taps) == 1 or not needs_padding):
            slide = slide_along(load, at, taps, asked)
        if slide is None and at is inner:
            return None
        if slide is not None:
            slides.append(slide)
            conditions = [c for c in conditions if c not in asked]
            taps = [tap for tap in taps if tap is not slide.tap]
    moving = {axis.var for slide in slides for axis in (slide.at, slide.tap) if axis is not None}
    if any(moving & expr.free_vars(c) for c in conditions):
        return None
    if conditions and not (taps and _changes_nothing(load, reduce)):
        return None
    if not slides[0].step >= 1 or slides[0].taps > MOST_TAPS:
        return None
    if slides[0].stride != 1 or slides[0].tap is None:
        return None
    down = slides[1] if len(slides) > 1 else None
    is_there = expr.all_of(conditions)
    return PaddedWindow(reduce, load, slides[0], down, tuple(taps), is_there)


def _is_filler(load: Load) -> bool:
    return isinstance(load.other, expr.Const)


def _changes_nothing(load: Load, reduce: Reduce) -> bool:
    """Whether a reduction's padding is what its operation leaves others unchanged with."""
    term = reduce.body.a if isinstance(reduce.body, Cast) else reduce.body
    nothing = identity(reduce.op, load.dtype)
    return term is load and isinstance(load.other, expr.Const) and load.other.value == nothing.value


def _slide(load: Load, at: Axis, taps: Sequence[Axis], asked: Sequence[Expr]) -> Slide | None:
    """The slide of windows along `at` according to the guards; None where these have
    another form.
    """
    used = {v for c in asked for v in expr.free_vars(c)} - {at.var}
    own = [tap for tap in taps if tap.var in used]
    if len(own) > 1 or len(used) != len(own) or not asked:
        return None
    tap = own[0] if own else None
    if not isinstance(at.extent, int) or not all(isinstance(t.extent, int) for t in own):
        return None
    by_at = expr.coefficient(load.indices[0], at.var)
    by_tap = 0 if tap is None else expr.coefficient(load.indices[0], tap.var)
    begin, end = 0, None
    steps: set[tuple[int, int]] = set()
    for condition in asked:
        if not isinstance(condition, Binary) or condition.op not in ("ge", "lt"):
            return None
        step, apart, start = _linear(condition, at, tap)
        if step is None or apart is None or start is None or step <= 0:
            return None
        steps.add((step, apart))
        if condition.op == "ge":
            begin = max(begin, -start)
        else:
            end = -start if end is None else min(end, -start)
    if len(steps) != 1 or not isinstance(by_at, int) or not isinstance(by_tap, int):
        return None
    ((step, apart),) = steps
    stride, left = divmod(by_at, step)
    if left or stride <= 0 or by_tap != apart * stride:
        return None
    made = Slide(at, tap, step, apart, stride, begin, 0)
    last = made.count if end is None else min(end, made.count)
    return replace(made, begin=min(begin, last), end=last)


def slide_along(load: Load, at: Axis, taps: Sequence[Axis], asked: Sequence[Expr]) -> Slide | None:
    """How windows slide along `at`, with padding or without any; None where that isn't plain."""
    if asked:
        return _slide(load, at, taps, asked)
    found = (_slide_inside(load, at, tap) for tap in reversed(taps))
    return next((slide for slide in found if slide is not None), None)


def _slide_inside(load: Load, at: Axis, tap: Axis) -> Slide | None:
    """How windows slide along an axis without padding, if they do."""
    by_at, by_tap = (expr.coefficient(load.indices[0], axis.var) for axis in (at, tap))
    if not isinstance(at.extent, int) or not isinstance(tap.extent, int):
        return None
    if not isinstance(by_at, int) or not isinstance(by_tap, int) or min(by_at, by_tap) <= 0:
        return None
    stride = math.gcd(by_at, by_tap)
    made = Slide(at, tap, by_at // stride, by_tap // stride, stride, 0, 0)
    return replace(made, end=made.count)


def _linear(
    condition: Binary, at: Axis, tap: Axis | None
) -> tuple[int | None, int | None, int | None]:
    """How the left side of a comparison minus the right one grows with `at` and `tap`, and what it
    is at 0 of both."""
    variables = [at.var] + ([] if tap is None else [tap.var])
    found: list[int | None] = []
    for var in variables:
        a, b = expr.coefficient(condition.a, var), expr.coefficient(condition.b, var)
        found.append(a - b if isinstance(a, int) and isinstance(b, int) else None)
    zero = {var: expr.index(0) for var in variables}
    a, b = (expr.dim_of(expr.substitute(side, zero)) for side in (condition.a, condition.b))
    start = a - b if isinstance(a, int) and isinstance(b, int) else None
    return found[0], found[1] if tap is not None else 0, start


def schedule_padded(work: Work) -> Build | None:
    """The loops of a padded window; None where scratch doesn't hold the rows of one result."""
    found = work.reduced
    return None if found.free else padded(work.nest, found.output, found.reduces)


def padded(nest: Nest, output: Output, reduces: Sequence[Reduce]) -> Build | None:
    """The same of an output, by the order of its axes."""
    window = find_padded(nest, output, reduces)
    made = None if window is None else _Rows.of(nest, output, window)
    return None if made is None else made.build


class _Rows:
    """A workgroup's rows of a pooled or convolved plane, computed from padded image rows in
    scratch.

    Attributes:
        rows: how many the result's rows share what is in scratch.
        scratch: [row][phase of the step][place]
        lines: [row][place of the result]: the taps along each row, where they are combined before
            those down the plane.
    """

    def __init__(self, nest: Nest, output: Output, window: PaddedWindow, rows: int) -> None:
        self.nest = nest
        self.output = output
        self.window = window
        self.rows = rows
        along, down = window.along, window.down
        height = 1 if down is None else down.places(rows)
        shape = (height, along.step, -(-along.count // along.step))
        dtype = window.load.dtype
        self.scratch: Scratch = nest.builder.scratch("rows", dtype, shape, Space.WORKGROUP)
        self.lines: Scratch | None = None
        if window.is_separable and _is_cheaper_apart(window, rows):
            lines = height, along.at.count
            self.lines = nest.builder.scratch("lines", window.reduce.dtype, lines, Space.WORKGROUP)
        self.sums: Scratch | None = None
        if window.planes:
            sums = rows, along.at.count
            self.sums = nest.builder.scratch("sums", window.reduce.dtype, sums, Space.WORKGROUP)

    @staticmethod
    def of(nest: Nest, output: Output, window: PaddedWindow) -> _Rows | None:
        along, down = window.along, window.down
        row = -(-along.count // along.step) * along.step * window.load.dtype.bytes
        if window.is_separable:
            row += along.at.count * window.reduce.dtype.bytes
        if down is None:
            most = min(nest.target.scratch_bytes, nest.target.l1_bytes // 2) // row
            return _Rows(nest, output, window, 1) if most else None
        rows = min(down.at.count, ROWS_A_TAP * down.taps)
        most = rows_in_scratch(
            nest, down.places(min(rows, down.taps)), row, nest.target.l1_bytes // 2
        )
        while rows > 1 and down.places(rows) > most:
            rows -= 1
        if down.places(rows) > most:
            return None
        even = -(-down.at.count // rows)
        return _Rows(nest, output, window, -(-down.at.count // even))

    def build(self) -> tuple[Stmt, ...]:
        nest, window, along, down = self.nest, self.window, self.window.along, self.window.down
        tiles = Axis(nest.builder.var("mt"), 1)
        outer = [a for a in self.output.axes if a is not along.at]
        if down is not None:
            tiles = Axis(tiles.var, -(-down.at.count // self.rows))
            outer = [tiles if a is down.at else a for a in outer]

        def body(values: Values) -> list[Stmt]:
            first = expr.index(0)
            if down is not None:
                first = expr.mul(values[tiles.var], expr.index(self.rows))
            start = first if down is None else expr.mul(first, expr.index(down.step))

            def row(r: Expr) -> list[Stmt]:
                if down is None:
                    return self._row(values, r)
                at = expr.add(first, r)
                stmts = self._row({**values, down.at.var: at}, r)
                if down.at.count % self.rows == 0:
                    return stmts
                return [If(expr.binary("lt", at, expr.index(down.at.extent)), tuple(stmts))]

            rows = nest.serial(self.rows, row, "r")
            if self.sums is None:
                return self._fill(values, start) + self._combine_lines(values) + rows
            nothing = identity(window.reduce.op, window.reduce.dtype)
            cleared = self._each_sum(lambda r, x, width, lane: ([], nothing))

            def plane(indices: Values) -> list[Stmt]:
                here = {**values, **indices}
                more = self._each_sum(lambda *place: self._sum(here, *place))
                stmts = self._fill(here, start) + self._combine_lines(here) + more
                if window.is_there is None:
                    return stmts
                return [If(expr.substitute(window.is_there, here), tuple(stmts))]

            return cleared + nest.inside(window.planes, {}, plane) + rows

        taps = dims.product([n for _, n in window.reduce.axes])
        return nest.grid(outer, body, dims.multiply(taps, self.rows * along.at.count))

    # What is brought into scratch

    def _fill(self, values: Values, start: Expr) -> list[Stmt]:
        """Rows of the plane, `start` being the first of them."""
        down = self.window.down

        def row(v: Expr) -> list[Stmt]:
            if down is None:
                return self._fill_row(values, v, expr.index(0))
            place = expr.add(start, v)
            stmts = self._fill_row(values, v, expr.mul(place, expr.index(down.stride)))
            reach = down.places(-(-down.at.count // self.rows) * self.rows)
            is_there = down.is_there(place, place, reach)
            if is_there is None:
                return stmts
            return [If(is_there, tuple(stmts), tuple(self._blank(v)))]

        return self.nest.serial(self.scratch.shape[0], row, "v")

    def _fill_row(self, values: Values, v: Expr, ahead: Expr) -> list[Stmt]:
        """A row that begins `ahead` elements behind the first place of all, between its padding."""
        along, load, width = self.window.along, self.window.load, self.scratch.shape[2]
        down = self.window.down
        zero = {along.at.var: expr.index(0)}
        for slide in (along, *([] if down is None else [down])):
            zero[slide.at.var] = expr.index(0)
            if slide.tap is not None:
                zero[slide.tap.var] = expr.index(0)
        ones: Values = {var: expr.index(0) for var, n in self.window.reduce.axes if n == 1}
        origin = expr.add(expr.substitute(load.indices[0], {**ones, **values, **zero}), ahead)

        def phase(f: int) -> list[Stmt]:
            begin = max(0, -(-(along.begin - f) // along.step))
            end = max(begin, min(width, -(-(along.end - f) // along.step)))

            def copied(j: Expr) -> list[Stmt]:
                place = expr.add(expr.mul(j, expr.index(along.step)), expr.index(f))
                value = Load(load.source, (expr.add(origin, place),), load.dtype)
                return [Store(self.scratch, (v, expr.index(f), j), value)]

            copy = row_of_vectors(
                self.nest,
                expr.index(begin),
                end - begin,
                self.nest.lanes,
                lambda j, width, lane: copied(j),
            )
            padding = [*range(begin), *range(end, width)]
            return [self._pad(v, f, j) for j in padding] + copy

        return [stmt for f in range(along.step) for stmt in phase(f)]

    def _pad(self, v: Expr, phase: int, j: int) -> Stmt:
        other = self.window.load.other
        assert other is not None
        return Store(self.scratch, (v, expr.index(phase), expr.index(j)), other)

    def _blank(self, v: Expr) -> list[Stmt]:
        """Statements that fill a row in scratch with padding."""
        other = self.window.load.other
        assert other is not None
        _, phases, width = self.scratch.shape
        return self.nest.serial(
            phases,
            lambda f: row_of_vectors(
                self.nest,
                expr.index(0),
                width,
                self.nest.lanes,
                lambda j, width, lane: [Store(self.scratch, (v, f, j), other)],
            ),
            "f",
        )

    # What is computed of it

    def _combine_lines(self, values: Values) -> list[Stmt]:
        """The taps along each row in scratch, for every place of the result."""
        nest, lines = self.nest, self.lines
        if lines is None:
            return []
        height, count = lines.shape

        def row(v: Expr) -> list[Stmt]:
            def element(x: Expr, width: int, lane: Expr | None) -> list[Stmt]:
                nothing = identity(self.window.reduce.op, lines.dtype)
                start, total = self._start(width, lane, nothing)
                return [*start, *self._taps(values, v, x, total), Store(lines, (v, x), total)]

            return row_of_vectors(nest, expr.index(0), count, self._width(count), element)

        return nest.serial(height, row, "v")

    def _each_sum(
        self, value: Callable[[Expr, Expr, int, Expr | None], tuple[list[Stmt], Expr]]
    ) -> list[Stmt]:
        """Stores `value(row, place, width, lane)`, after its statements, for all sums."""
        nest, sums = self.nest, self.sums
        assert sums is not None
        rows, count = sums.shape

        def row(r: Expr) -> list[Stmt]:
            def element(x: Expr, width: int, lane: Expr | None) -> list[Stmt]:
                stmts, made = value(r, x, width, lane)
                return [*stmts, Store(sums, (r, x), made)]

            return row_of_vectors(nest, expr.index(0), count, self._width(count), element)

        return nest.serial(rows, row, "r")

    def _width(self, count: int) -> int:
        """The widest vector width for a row of `count` elements."""
        width = self.nest.lanes * SUMS
        while width > 1 and width > count:
            width //= 2
        return width

    def _row(self, values: Values, r: Expr) -> list[Stmt]:
        """Row `r` of the rows that share scratch, in segments within which the epilogue's
        conditions are constant.
        """
        nest, at, reduce = self.nest, self.window.along.at, self.window.reduce
        total = Var("total", reduce.dtype)
        around = self.output.rewritten(
            lambda e: expr.transform(e, lambda x: total if x is reduce else None)
        )
        stmts: list[Stmt] = []
        first = 0
        for end in segments.ends(around.values, at.var, at.count):
            part = segments.output_within(around, at.var, first, end)

            def element(x: Expr, width: int, lane: Expr | None, part: Output = part) -> list[Stmt]:
                if self.sums is None:
                    loops, value = self._sum(values, r, x, width, lane)
                else:
                    loops, value = [], Load(self.sums, (r, x), self.sums.dtype)
                place = {**values, at.var: x}
                return loops + part.stores(nest, place, {total: value}.get)  # type: ignore[arg-type]

            count = end - first
            stmts += row_of_vectors(nest, expr.index(first), count, self._width(count), element)
            first = end
        return stmts

    def _sum(
        self, values: Values, r: Expr, x: Expr, width: int, lane: Expr | None
    ) -> tuple[list[Stmt], Expr]:
        """The reduction at place `x` of row `r`."""
        nest, down, reduce, lines = self.nest, self.window.down, self.window.reduce, self.lines
        nothing: Expr = identity(reduce.op, reduce.dtype)
        if self.sums is not None:
            nothing = Load(self.sums, (r, x), reduce.dtype)
        start, total = self._start(width, lane, nothing)
        if down is None:
            return start + self._taps(values, expr.index(0), x, total), total
        first = expr.mul(r, expr.index(down.step))
        vertical = down.tap
        if vertical is None:
            return start + self._taps(values, first, x, total), total

        def line(k: Expr) -> list[Stmt]:
            v = expr.add(first, expr.mul(k, expr.index(down.apart)))
            if lines is None:
                return self._taps({**values, vertical.var: k}, v, x, total)
            term = Load(lines, (v, x), lines.dtype)
            return [Store(total.source, total.indices, combine(reduce.op, total, term))]

        return start + nest.serial(vertical.extent, line, "k"), total

    def _start(self, width: int, lane: Expr | None, nothing: Expr) -> tuple[list[Stmt], Load]:
        """An accumulator of a lane, which begins with `nothing`."""
        dtype = self.window.reduce.dtype
        acc = self.nest.builder.scratch("acc", dtype, (1 if lane is None else width,))
        slot = expr.index(0) if lane is None else lane
        return [Store(acc, (slot,), nothing)], Load(acc, (slot,), dtype)

    def _taps(self, values: Values, v: Expr, x: Expr, total: Load) -> list[Stmt]:
        """The taps along row `v` of scratch for place `x` of the result, into `total`."""
        window, along, reduce = self.window, self.window.along, self.window.reduce
        ones: Values = {var: expr.index(0) for var, n in reduce.axes if n == 1}
        stmts: list[Stmt] = []
        for k in range(along.taps):
            phase, ahead = (along.apart * k) % along.step, (along.apart * k) // along.step
            place = (v, expr.index(phase), expr.add(x, expr.index(ahead)))
            staged = Load(self.scratch, place, self.scratch.dtype)
            body = expr.transform(reduce.body, {window.load: staged}.get)  # type: ignore[arg-type]
            here = {**values, **ones, along.at.var: x}
            if along.tap is not None:
                here[along.tap.var] = expr.index(k)
            term = combined(reduce.op, total, expr.substitute(body, here))
            stmts.append(Store(total.source, total.indices, term))
        return stmts


def rows_in_scratch(nest: Nest, least: int, row: int, near: int) -> int:
    """Rows of `row` bytes that a workgroup stages in scratch: as many as fit `near` bytes; a larger
    share of the L2 cache if those are fewer than `least`, since rows would be staged repeatedly.
    """
    most, far = (
        min(nest.target.scratch_bytes, size) // row for size in (near, nest.target.l2_bytes // 4)
    )
    return most if most >= least else far


def _is_cheaper_apart(window: PaddedWindow, rows: int) -> bool:
    """Whether it takes fewer taps to combine those along each row, store the results in scratch and
    combine them down the plane, than to combine the taps of `rows` rows directly.
    """
    along, down = window.along, window.down
    assert down is not None
    apart = down.places(rows) * (along.taps + LINE) + rows * down.taps
    return apart < rows * along.taps * down.taps
