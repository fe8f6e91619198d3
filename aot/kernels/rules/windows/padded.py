"""Windows over padded planes: lanes run along the innermost dim, in which windows slide.

The rows of the plane that some rows of the result read are first brought into scratch with their
padding, and by the phase of the windows' steps: no tap then asks where it is, and all loads are of
neighbours. CPU only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.ir import dims, expr
from aot.ir.expr import Expr, Load, Reduce
from aot.kernels.ir.nodes import Scratch, Space, Stmt, Store
from aot.kernels.match.planes import PaddedWindow, find_padded
from aot.kernels.match.slides import first_window
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.nest import Axis, Nest, Output, Values, combine, combined, identity
from aot.kernels.nest.rows import SUMS, row_of_vectors
from aot.kernels.stage.band import Band, even_lines, rows_in_scratch
from aot.kernels.stage.epilogue import Epilogue
from aot.kernels.stage.tails import where, widest, within

# rows of the result that share what is brought into scratch, for each row of a window
ROWS_A_TAP = 4
# what it costs to store a row's combined taps, in taps
LINE = 1

Element = Callable[[Expr, int, Expr | None], list[Stmt]]
"""The statements of a place, given it, and the vector's width and lane."""


def schedule_padded(work: Work) -> Build | None:
    """The loops of a padded window; None where scratch cannot hold the rows of one result."""
    found = work.reduced
    return None if found.free else padded(work.nest, found.output, found.reduces)


def padded(nest: Nest, output: Output, reduces: Sequence[Reduce]) -> Build | None:
    """The loops of a padded window computed by `output`, in the order of its axes; else None."""
    window = find_padded(nest, output, reduces)
    rows = 0 if window is None else _rows_together(nest, window)
    return None if window is None or rows == 0 else _Rows(nest, output, window, rows).build


def _rows_together(nest: Nest, window: PaddedWindow) -> int:
    """The number of result rows that share staged input; 0 if scratch cannot hold the input of
    one."""
    along, down = window.along, window.down
    row_bytes = -(-along.count // along.step) * along.step * window.load.dtype.bytes
    if window.is_separable:
        row_bytes += along.at.count * window.reduce.dtype.bytes
    near = nest.target.l1_bytes // 2
    if down is None:
        return min(1, rows_in_scratch(nest, 0, row_bytes, near))
    rows = min(down.at.count, ROWS_A_TAP * down.taps)
    most = rows_in_scratch(nest, down.places(min(rows, down.taps)), row_bytes, near)
    return even_lines(down, most, rows)


class _Rows:
    """A workgroup's rows of a pooled or convolved plane, computed from padded image rows in
    scratch.

    Attributes:
        rows: how many the result's rows share what is in scratch.
        lines: [row][place of the result]: the taps along each row, where they are combined before
            those down the plane.
        sums: [row of the result][place]: of the planes so far, where there are several.
    """

    def __init__(self, nest: Nest, output: Output, window: PaddedWindow, rows: int) -> None:
        self.nest = nest
        self.output = output
        self.window = window
        self.rows = rows
        along, down, scratch = window.along, window.down, nest.builder.scratch
        height = 1 if down is None else down.places(rows)
        shape = (height, along.step, -(-along.count // along.step))
        held = scratch("rows", window.load.dtype, shape, Space.WORKGROUP)
        self.band = Band(nest, window.load, along, down, held)
        self.lines: Scratch | None = None
        if window.is_separable and _is_cheaper_apart(window, rows):
            lines = height, along.at.count
            self.lines = scratch("lines", window.reduce.dtype, lines, Space.WORKGROUP)
        self.sums: Scratch | None = None
        if window.planes:
            sums = rows, along.at.count
            self.sums = scratch("sums", window.reduce.dtype, sums, Space.WORKGROUP)

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

            def row(r: Expr) -> list[Stmt]:
                if down is None:
                    return self._row(values, r)
                at = expr.add(first, r)
                stmts = self._row({**values, down.at.var: at}, r)
                return where(within(at, down.at.extent, self.rows), stmts)

            rows = nest.serial(self.rows, row, "r")
            if self.sums is None:
                return self._fill(values, first) + self._combine_lines(values) + rows
            nothing = identity(window.reduce.op, window.reduce.dtype)
            cleared = self._each_sum(lambda r, x, width, lane: ([], nothing))

            def plane(indices: Values) -> list[Stmt]:
                here = {**values, **indices}
                more = self._each_sum(lambda *place: self._sum(here, *place))
                stmts = self._fill(here, first) + self._combine_lines(here) + more
                asked = window.is_there
                return where(None if asked is None else expr.substitute(asked, here), stmts)

            return cleared + nest.inside(window.planes, {}, plane) + rows

        taps = dims.product([n for _, n in window.reduce.axes])
        return nest.grid(outer, body, dims.multiply(taps, self.rows * along.at.count))

    def _fill(self, values: Values, first: Expr) -> list[Stmt]:
        """Statements that stage the plane's rows that the result's rows from `first` read."""
        window, down = self.window, self.window.down
        zeros = first_window(window.reduce, *window.slides)
        zeros = {v: e for v, e in zeros.items() if v not in {a.var for a in window.planes}}
        origin = expr.substitute(window.load.indices[0], {**values, **zeros})
        if down is None:
            return self.band.fill(origin, first, 1)
        reach = down.places(-(-down.at.count // self.rows) * self.rows)
        return self.band.fill(origin, expr.mul(first, expr.index(down.step)), reach)

    def _combine_lines(self, values: Values) -> list[Stmt]:
        """Statements that combine the taps along each staged row, for every place of the result."""
        lines = self.lines
        if lines is None:
            return []

        def row(v: Expr) -> list[Stmt]:
            def element(x: Expr, width: int, lane: Expr | None) -> list[Stmt]:
                nothing = identity(self.window.reduce.op, lines.dtype)
                start, total = self._start(width, lane, nothing)
                return [*start, *self._taps(values, v, x, total), Store(lines, (v, x), total)]

            return self._vectors(0, lines.shape[1], element)

        return self.nest.serial(lines.shape[0], row, "v")

    def _each_sum(
        self, value: Callable[[Expr, Expr, int, Expr | None], tuple[list[Stmt], Expr]]
    ) -> list[Stmt]:
        """Statements that store `value(row, place, width, lane)` as each sum."""
        sums = self.sums
        assert sums is not None

        def row(r: Expr) -> list[Stmt]:
            def element(x: Expr, width: int, lane: Expr | None) -> list[Stmt]:
                stmts, made = value(r, x, width, lane)
                return [*stmts, Store(sums, (r, x), made)]

            return self._vectors(0, sums.shape[1], element)

        return self.nest.serial(sums.shape[0], row, "r")

    def _vectors(self, first: int, count: int, element: Element) -> list[Stmt]:
        """A loop over `count` elements of a row from `first`, in adjacent vectors."""
        width = widest(self.nest.lanes * SUMS, count)
        return row_of_vectors(self.nest, expr.index(first), count, width, element)

    def _row(self, values: Values, r: Expr) -> list[Stmt]:
        """Row `r` of the rows that share scratch, in segments within which the epilogue's
        conditions are constant.
        """
        at = self.window.along.at
        epilogue = Epilogue.of(self.output, self.window.reduce)
        stmts: list[Stmt] = []
        for part, first, end in epilogue.segments(at):

            def element(x: Expr, width: int, lane: Expr | None, part: Output = part) -> list[Stmt]:
                kept = self._kept(r, x)
                loops, value = ([], kept) if kept else self._sum(values, r, x, width, lane)
                done: dict[Expr, Expr] = {epilogue.total: value}
                return loops + part.stores(self.nest, {**values, at.var: x}, done.get)

            stmts += self._vectors(first, end - first, element)
        return stmts

    def _kept(self, r: Expr, x: Expr) -> Load | None:
        """The partial sum over the planes so far, if sums are kept in scratch; else None."""
        return None if self.sums is None else Load(self.sums, (r, x), self.sums.dtype)

    def _sum(
        self, values: Values, r: Expr, x: Expr, width: int, lane: Expr | None
    ) -> tuple[list[Stmt], Expr]:
        """(statements, value) of the reduction at place `x` of row `r`."""
        down, reduce, lines = self.window.down, self.window.reduce, self.lines
        nothing = self._kept(r, x) or identity(reduce.op, reduce.dtype)
        start, total = self._start(width, lane, nothing)
        first = expr.index(0) if down is None else expr.mul(r, expr.index(down.step))
        if down is None or down.tap is None:
            return start + self._taps(values, first, x, total), total
        vertical, apart = down.tap, down.apart

        def line(k: Expr) -> list[Stmt]:
            v = expr.linear(first, (k, apart))
            if lines is None:
                return self._taps({**values, vertical.var: k}, v, x, total)
            term = Load(lines, (v, x), lines.dtype)
            return [Store(total.source, total.indices, combine(reduce.op, total, term))]

        return start + self.nest.serial(vertical.extent, line, "k"), total

    def _start(self, width: int, lane: Expr | None, nothing: Expr) -> tuple[list[Stmt], Load]:
        """(statements, load) of a lane's accumulator, initialised with `nothing`."""
        dtype = self.window.reduce.dtype
        acc = self.nest.builder.scratch("acc", dtype, (1 if lane is None else width,))
        slot = expr.index(0) if lane is None else lane
        return [Store(acc, (slot,), nothing)], Load(acc, (slot,), dtype)

    def _taps(self, values: Values, v: Expr, x: Expr, total: Load) -> list[Stmt]:
        """Statements that combine the taps along staged row `v` for place `x` of the result into
        `total`."""
        window, along, reduce = self.window, self.window.along, self.window.reduce
        held, tap = self.band.scratch, along.tap
        assert tap is not None
        ones: Values = {var: expr.index(0) for var, n in reduce.axes if n == 1}
        stmts: list[Stmt] = []
        for k in range(along.taps):
            ahead, phase = divmod(along.apart * k, along.step)
            staged = Load(held, (v, expr.index(phase), expr.linear(x, ahead)), held.dtype)
            body = expr.transform(reduce.body, {window.load: staged}.get)  # type: ignore[arg-type]
            here = {**values, **ones, along.at.var: x, tap.var: expr.index(k)}
            term = combined(reduce.op, total, expr.substitute(body, here))
            stmts.append(Store(total.source, total.indices, term))
        return stmts


def _is_cheaper_apart(window: PaddedWindow, rows: int) -> bool:
    """Whether combining taps along rows first, and then down the plane, takes fewer operations than
    combining all taps of `rows` result rows directly.
    """
    along, down = window.along, window.down
    assert down is not None
    apart = down.places(rows) * (along.taps + LINE) + rows * down.taps
    return apart < rows * along.taps * down.taps
