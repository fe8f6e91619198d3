"""Kernels of scatters: each lane copies its line of data, then applies the updates to it in order.

A line is what an update can reach: along the axis for scatter_elements, all places that rows of
positions name for scatter_nd. A GPU's lane has a piece of a line, of a long one, and applies those
updates that are for it. No two lanes write one element, so the order of updates is kept. A CPU,
whose lanes would each go elsewhere, copies lines in vectors and applies updates one by one, unless
they are rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Stmt
from aot.kernels.match.work import Loops
from aot.kernels.nest.nest import Axis
from aot.kernels.nest.rows import row_of_vectors
from aot.kernels.rules.lines.lines import Lines, let, when
from aot.kernels.rules.rule import OpWork
from aot.ops.contraction import inside

_COMBINE = {"add": "add", "mul": "mul", "max": "max", "min": "min"}
# Elements of a piece. Every lane reads all positions of its line: short pieces copy more of the
# line at a time, long ones read less. lavapipe's lanes are a CPU's: there pieces of 256 take 8 ms
# for 20,000 updates of 40,000 elements, these 3, and one lane for all 1.3.
PIECE = 1024
# columns of lines that a CPU's workgroup has
COLUMNS = 256


def schedule_scatter(work: OpWork) -> Loops:
    """The loops of a scatter, whose operands are data, positions and updates."""
    lines = Lines(work)
    if "axis" in lines.op.attrs:
        return _along_axis(lines) if lines.nest.is_gpu else _along_axis_one_by_one(lines)
    return _by_rows(lines)


def _position(lines: Lines, at: Sequence[Expr], extent: Dim, into: list[Stmt]) -> Expr:
    """A scatter position with negative values resolved; positions out of range match no element."""
    found = let(lines, expr.cast(lines.load(1, at), DType.INDEX), into, "p")
    wrapped = expr.add(found, expr.index(extent))
    return let(
        lines, expr.select(expr.binary("lt", found, expr.index(0)), wrapped, found), into, "p"
    )


def _update(lines: Lines, where: Sequence[Expr], update: Expr) -> Stmt:
    reduction = str(lines.op.attrs["reduction"])
    if reduction != "none":
        update = expr.binary(_COMBINE[reduction], lines.read_back(0, where), update)
    return lines.store(0, where, update)


@dataclass(frozen=True)
class _Piece:
    """The part of a line that one lane processes: the whole line, or PIECE elements from `start`.

    Attributes:
        extents: of the dims that a line goes through, the last one fastest.
    """

    lines: Lines
    extents: tuple[Dim, ...]
    start: Expr | None = None

    def copy(self, one: Callable[[list[Expr]], Stmt]) -> list[Stmt]:
        """`one(indices)` for each element of the piece."""
        if self.start is None:
            return self.lines.serial(self.extents, lambda i: [one(i)], "i")
        total = dims.product(self.extents)
        start, end = self.start, expr.index(total)
        axes = [Axis(Var(f"a{d}"), extent) for d, extent in enumerate(self.extents)]

        def step(n: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            whole = let(self.lines, expr.add(start, n), stmts, "n")
            values: dict[Var, Expr] = {}
            inner: list[Stmt] = []
            self.lines.nest.decode(whole, axes, values, inner)
            inner.append(one([values[axis.var] for axis in axes]))
            return stmts + when([expr.binary("lt", whole, end)], inner)

        return self.lines.nest.serial(dims.minimum(PIECE, total), step, "i")

    def holds(self, place: Sequence[Expr]) -> list[Expr]:
        """Conditions that an element at `place` lies in this piece."""
        conditions: list[Expr] = []
        for position, extent in zip(place, self.extents, strict=True):
            conditions += inside(position, extent)
        if self.start is None:
            return conditions
        whole = expr.index(0)
        for position, extent in zip(place, self.extents, strict=True):
            whole = expr.add(expr.mul(whole, expr.index(extent)), position)
        end = expr.add(self.start, expr.index(PIECE))
        return [*conditions, expr.binary("le", self.start, whole), expr.binary("lt", whole, end)]


def _each_piece(
    lines: Lines,
    across: Sequence[Dim],
    extents: Sequence[Dim],
    updates: Sequence[Dim],
    body: Callable[[Sequence[Expr], _Piece], Sequence[Stmt]],
) -> tuple[Stmt, ...]:
    """`body(indices of the other dims, piece)` for every piece of every line.

    Args:
        across: the dims across lines.
        extents, updates: the dims that a line, and its updates, go through.
    """
    whole = _Piece(lines, tuple(extents))
    total, count = dims.product(list(extents)), dims.product(list(across))
    is_short = isinstance(total, int) and total <= 2 * PIECE
    has_lanes = not isinstance(count, int) or count >= 4 * lines.nest.lanes
    if (
        not lines.nest.is_gpu
        or is_short
        or (has_lanes and not lines.nest.is_too_long(extents, updates))
    ):
        return lines.each(across, lambda at, width, lane: body(at, whole))

    def piece(at: Sequence[Expr], width: int, lane: Expr | None) -> Sequence[Stmt]:
        start = expr.mul(at[0], expr.index(PIECE))
        return body(at[1:], replace(whole, start=start))

    return lines.each([dims.ceil_divide(total, PIECE), *across], piece)


def _along_axis(lines: Lines) -> tuple[Stmt, ...]:
    axis = lines.op.int("axis")
    data, chosen = lines.operand(0).type, lines.operand(1).type
    others = [d for d in range(data.rank) if d != axis]

    def line(at: Sequence[Expr], piece: _Piece) -> list[Stmt]:
        def place(i: Expr) -> list[Expr]:
            return [*at[:axis], i, *at[axis:]]

        def apply(k: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            position = _position(lines, place(k), data.dims[axis], stmts)
            return stmts + when(
                piece.holds([position]),
                [_update(lines, place(position), lines.load(2, place(k)))],
            )

        # lines beyond the positions' dims are copied only
        reached = [
            expr.binary("lt", i, expr.index(chosen.dims[d]))
            for i, d in zip(at, others, strict=True)
            if chosen.dims[d] != data.dims[d]
        ]
        copy = piece.copy(lambda i: lines.store(0, place(*i), lines.load(0, place(*i))))
        return copy + when(reached, lines.nest.serial(chosen.dims[axis], apply, "k"))

    across = [data.dims[d] for d in others]
    return _each_piece(lines, across, [data.dims[axis]], [chosen.dims[axis]], line)


def _along_axis_one_by_one(lines: Lines) -> tuple[Stmt, ...]:
    """The loops of a scatter along an axis that applies updates one by one; each workgroup has some
    neighbouring columns.
    """
    data, chosen = lines.operand(0).type, lines.operand(1).type
    axis, last = lines.op.int("axis"), data.rank - 1
    columns, updated = (1, 1) if axis == last else (data.dims[last], chosen.dims[last])
    outer = [Axis(Var(f"i{d}"), data.dims[d]) for d in range(last) if d != axis]
    is_open = not isinstance(columns, int)
    size = columns if is_open else min(columns, COLUMNS)
    blocks = Axis(lines.nest.builder.var("cb"), 1 if is_open else dims.ceil_divide(columns, size))
    fixed = {axis.var: expr.index(0) for axis in (*outer, blocks) if axis.extent == 1}

    def block(values: dict[Var, Expr]) -> list[Stmt]:
        values = {**fixed, **values}
        start = expr.mul(values[blocks.var], expr.index(size))
        some = _Columns(lines, axis, [values[a.var] for a in outer], start, columns, updated)
        rest = dims.modulo(columns, size)
        if rest == 0 or blocks.extent == 1:
            return some.scattered(size)
        end = expr.add(start, expr.index(size))
        is_whole = expr.binary("le", end, expr.index(columns))
        return [If(is_whole, tuple(some.scattered(size)), tuple(some.scattered(rest)))]

    grid = [a for a in (*outer, blocks) if a.extent != 1]
    work = dims.multiply(size, dims.add(data.dims[axis], chosen.dims[axis]))
    return lines.nest.grid(grid, block, work)


@dataclass(frozen=True)
class _Columns:
    """Neighbouring columns of a scatter along an axis, from `start`.

    Attributes:
        outer: indices of the dims but the scattered and the last one.
        columns: how many there are in all: 1 where the last dim is the scattered one.
        updated: how many of these have updates.
    """

    lines: Lines
    axis: int
    outer: Sequence[Expr]
    start: Expr
    columns: Dim
    updated: Dim

    @property
    def _is_last(self) -> bool:
        return self.axis == self.lines.operand(0).type.rank - 1

    def _place(self, i: Expr, column: Expr) -> list[Expr]:
        others = iter([*self.outer, column])
        rank = self.lines.operand(0).type.rank
        return [i if d == self.axis else next(others) for d in range(rank)]

    def scattered(self, count: Dim) -> list[Stmt]:
        """Statements that copy `count` columns and apply their updates."""
        lines, nest = self.lines, self.lines.nest
        data, chosen = lines.operand(0).type.dims, lines.operand(1).type.dims
        if self._is_last:
            copy = self._copied(self.start, data[self.axis])
        else:
            copy = nest.serial(data[self.axis], lambda i: self._copied(i, count), "i")
        others = [d for d in range(len(data) - 1) if d != self.axis]
        reached = [
            expr.binary("lt", at, expr.index(chosen[d]))
            for at, d in zip(self.outer, others, strict=True)
            if chosen[d] != data[d]
        ]

        # of a workgroup that has all columns, those that are updated
        is_all = count == self.columns
        asked = self.updated if is_all else count

        def column(k: Expr, n: Expr) -> list[Stmt]:
            at = expr.add(self.start, n)
            is_known = is_all or self.updated == self.columns
            is_reached = [] if is_known else [expr.binary("lt", at, expr.index(self.updated))]
            return when(is_reached, self._applied(k, at))

        def row(k: Expr) -> list[Stmt]:
            return nest.serial(asked, lambda n: column(k, n), "n")

        return copy + when(reached, nest.serial(chosen[self.axis], row, "k"))

    def _copied(self, i: Expr, count: Dim) -> list[Stmt]:
        lines, nest = self.lines, self.lines.nest

        def one(at: Expr, *_: object) -> list[Stmt]:
            where = self._place(at, at) if self._is_last else self._place(i, at)
            return [lines.store(0, where, lines.load(0, where))]

        return row_of_vectors(nest, self.start, count, nest.lanes, one, may_mask=True)

    def _applied(self, k: Expr, column: Expr) -> list[Stmt]:
        """Statements that apply update `k` of a column, if its index names an element."""
        lines = self.lines
        # most are not counted from the end: those are asked again
        extent = lines.operand(0).type.dims[self.axis]
        stmts: list[Stmt] = []
        given = expr.cast(lines.load(1, self._place(k, column)), DType.INDEX)
        found = let(lines, given, stmts, "f")

        def update(position: Expr) -> Stmt:
            taken = lines.load(2, self._place(k, column))
            return _update(lines, self._place(position, column), taken)

        others: list[Stmt] = []
        from_end = let(lines, expr.add(found, expr.index(extent)), others, "p")
        others += when([_is_inside(lines, from_end, extent)], [update(from_end)])
        is_plain = _is_inside(lines, found, extent)
        return [*stmts, If(is_plain, (update(found),), tuple(others))]


def _is_inside(lines: Lines, position: Expr, extent: Dim) -> Expr:
    """Whether a position is in [0, extent), as one comparison."""
    dtype = DType.U64 if lines.nest.target.word_bytes == 8 else DType.U32
    return expr.binary("lt", expr.cast(position, dtype), expr.cast(expr.index(extent), dtype))


def _by_rows(lines: Lines) -> tuple[Stmt, ...]:
    data, chosen = lines.operand(0).type, lines.operand(1).type
    depth = lines.op.int("depth")

    def copied(i: list[Expr]) -> list[Stmt]:
        def one(at: Expr, *_: object) -> list[Stmt]:
            return [lines.store(0, [*i, at], lines.load(0, [*i, at]))]

        nest = lines.nest
        return row_of_vectors(nest, expr.index(0), data.dims[-1], nest.lanes, one, may_mask=True)

    def line(at: Sequence[Expr], piece: _Piece) -> list[Stmt]:
        def apply(k: list[Expr]) -> list[Stmt]:
            stmts: list[Stmt] = []
            where = [
                _position(lines, [*k, expr.index(number)], extent, stmts)
                for number, extent in enumerate(data.dims[:depth])
            ]
            return stmts + when(
                piece.holds(where), [_update(lines, [*where, *at], lines.load(2, [*k, *at]))]
            )

        copy = piece.copy(lambda i: lines.store(0, [*i, *at], lines.load(0, [*i, *at])))
        if not lines.nest.is_gpu and depth == data.rank:
            copy = lines.serial(data.dims[:-1], copied, "i")
        return copy + lines.serial(chosen.dims[:-1], apply)

    return _each_piece(lines, data.dims[depth:], data.dims[:depth], chosen.dims[:-1], line)
