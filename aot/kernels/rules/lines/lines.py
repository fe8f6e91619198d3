"""Kernels in which one lane processes a whole line of elements in order, such as scans.

Owns how lines are spread over lanes and the grid. Lines never touch each other's elements, so that
any number of them may run side by side, on a CPU's vector lanes and a GPU's invocations alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.errors import InternalError
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Load, Var
from aot.ir.graph import Value
from aot.kernels.ir.nodes import Buffer, If, Let, Stmt, Store
from aot.kernels.match.work import Loops
from aot.kernels.nest.inline import flat_index, stored
from aot.kernels.nest.nest import Axis, collapse, combine, identity
from aot.kernels.nest.over_output import lanes_over_output
from aot.kernels.rules.rule import OpWork
from aot.ops.elementwise import narrowed

# vectors of lines that lie side by side, which are walked together: as far as memory goes, a step
# reads whole lines of a cache, and several sums hide an addition's latency
ABREAST = 8
# lanes, and elements of a line, that are transposed in registers
LEAST_LINES = 4

Each = Callable[[Sequence[Expr], int, "Expr | None"], Sequence[Stmt]]
At = Callable[[Sequence[Expr]], tuple[Expr, Expr]]


class Lines:
    """The operands, results and lanes of an op that processes lines of elements.

    Attributes:
        results: the buffer of each of the op's results; None where nothing reads it.
    """

    def __init__(self, work: OpWork) -> None:
        self.nest, self.op = work.nest, work.op
        self.buffers, self.results = work.buffers, work.results

    def operand(self, number: int) -> Value:
        value = self.op.operands[number]
        assert value is not None
        return value

    def load(self, number: int, indices: Sequence[Expr], guard: Expr | None = None) -> Expr:
        """An element of an operand; 0 where `guard` is false."""
        value = stored(self.operand(number))
        dtype = value.type.dtype
        other = None if guard is None else expr.const(0, dtype)
        address = flat_index(value.type, indices)
        loaded = Load(self.buffers[value], (address,), dtype, guard, other)
        return expr.cast(loaded, self.operand(number).type.dtype)

    def result(self, number: int) -> Buffer:
        buffer = self.results[number]
        assert buffer is not None
        return buffer

    def address(self, number: int, indices: Sequence[Expr]) -> Expr:
        """The index of a result's element in its buffer."""
        return flat_index(self.op.results[number].type, indices)

    def store(self, number: int, indices: Sequence[Expr], value: Expr) -> Store:
        buffer = self.result(number)
        return Store(buffer, (self.address(number, indices),), narrowed(value, buffer.dtype))

    def read_back(
        self,
        number: int,
        indices: Sequence[Expr],
        guard: Expr | None = None,
        other: Expr | None = None,
    ) -> Expr:
        """The load of a result element that the same lane has stored before."""
        buffer, dtype = self.result(number), self.op.results[number].type.dtype
        if buffer.dtype is not dtype:
            raise InternalError(f"{self.op} reads result {number} back, which is rounded")
        return Load(buffer, (self.address(number, indices),), dtype, guard, other)

    def each(
        self, extents: Sequence[Dim], body: Each, terms: Dim = 1, at_once: At | None = None
    ) -> tuple[Stmt, ...]:
        """`body(indices, width, lane)` for every line; `extents` are the dims other than the
        lines'.

        Args:
            terms: elements of a line, as work.
            at_once: the address and the load of an element of a line, given the indices across
                lines: dims that both walk as one become one, and lines that lie side by side are
                walked several vectors at a time.
        """
        axes: list[Axis] = []
        at: list[Expr] = []
        for d, extent in enumerate(extents):
            if extent == 1:
                at.append(expr.index(0))
                continue
            axes.append(Axis(self.nest.builder.var(f"i{d}"), extent))
            at.append(axes[-1].var)
        gone: dict[Var, Expr] = {}
        vectors = 1
        if at_once is not None and axes:
            address, load = at_once(at)
            merged, gone = collapse(axes, address, [load])
            axes = list(merged)
            is_near = expr.coefficient(address, axes[-1].var) == 1
            vectors = ABREAST if is_near and not self.nest.is_gpu else 1

        def line(values: dict[Var, Expr], width: int, lane: Expr | None) -> list[Stmt]:
            values = {**gone, **values}
            indices = [values.get(i, i) if isinstance(i, Var) else i for i in at]
            return list(body(indices, width, lane))

        return lanes_over_output(self.nest, axes, line, terms, vectors)

    def serial(
        self, extents: Sequence[Dim], body: Callable[[list[Expr]], Sequence[Stmt]], name: str = "k"
    ) -> list[Stmt]:
        """Loops in order over `extents`, the last one innermost."""

        def inside(number: int, indices: list[Expr]) -> Sequence[Stmt]:
            if number == len(extents):
                return body(indices)
            return self.nest.serial(
                extents[number], lambda i: inside(number + 1, [*indices, i]), name
            )

        return list(inside(0, []))


def let(lines: Lines, value: Expr, into: list[Stmt], name: str) -> Expr:
    """Binds a value to a variable, which fixes where its load happens."""
    var = lines.nest.builder.var(name, value.dtype)
    into.append(Let(var, value))
    return var


def when(conditions: Sequence[Expr], body: Sequence[Stmt]) -> list[Stmt]:
    """`body`, under the condition that all of `conditions` hold."""
    condition = expr.all_of(conditions)
    return list(body) if condition is None else [If(condition, tuple(body))]


def schedule_scan(work: OpWork) -> Loops:
    """The loops of a cumulative sum or product: one accumulator per lane."""
    lines = Lines(work)
    return _scan_in_blocks(lines) or _scan(lines)


class _LinesInLanes:
    """Scans of lines, dense along the innermost dim, each in a vector lane."""

    def __init__(self, lines: Lines, extent: int) -> None:
        self.lines, self.nest, self.extent = lines, lines.nest, extent
        self.reduce = str(lines.op.attrs["combine"])
        self.wide = lines.operand(0).type.dtype.accumulator
        self.acc = self.nest.builder.scratch("acc", self.wide, (self.nest.lanes,))

    def _step(self, line: Expr, i: Expr, slot: Expr) -> list[Stmt]:
        """Statements for element `i` of a line, whose accumulator is number `slot`."""
        attrs, x, out = self.lines.op.attrs, self.lines.operand(0), self.lines.result(0)
        if attrs["reverse"]:
            i = expr.sub(expr.index(self.extent - 1), i)
        at = expr.add(expr.mul(line, expr.index(self.extent)), i)
        now = Load(self.acc, (slot,), self.wide)
        term = expr.cast(Load(self.lines.buffers[x], (at,), x.type.dtype), self.wide)
        more = Store(self.acc, (slot,), combine(self.reduce, now, term))
        done = Store(out, (at,), narrowed(expr.cast(now, x.type.dtype), out.dtype))
        return [done, more] if attrs["exclusive"] else [more, done]

    def scanned(self, first: Expr, width: int) -> list[Stmt]:
        """Statements that scan `width` lines from `first`, one in each lane: by square blocks of
        elements, and by smaller blocks at the lines' ends."""
        nest = self.nest

        def spread(body: Callable[[Expr], Sequence[Stmt]]) -> list[Stmt]:
            return [nest.spread(width, body)] if width > 1 else list(body(expr.index(0)))

        stmts = spread(lambda lane: [Store(self.acc, (lane,), identity(self.reduce, self.wide))])
        begin, size = 0, nest.lanes
        while begin < self.extent:
            blocks = (self.extent - begin) // size

            def block(n: Expr, begin: int = begin, size: int = size) -> list[Stmt]:
                start = expr.add(expr.index(begin), expr.mul(n, expr.index(size)))
                return nest.unrolled(
                    size,
                    lambda u: spread(
                        lambda lane: self._step(expr.add(first, lane), expr.add(start, u), lane)
                    ),
                )

            stmts += nest.serial(blocks, block, "b")
            begin += blocks * size
            size = size // 2 if size > LEAST_LINES else 1
        return stmts


def _scan_in_blocks(lines: Lines) -> tuple[Stmt, ...] | None:
    """The loops of a scan along the innermost dim, for a CPU and known extents: each lane has a
    line, and blocks of elements are transposed in registers. None for other scans."""
    op, nest, x = lines.op, lines.nest, lines.operand(0)
    extents, lanes = x.type.dims, nest.lanes
    if nest.is_gpu or lanes < LEAST_LINES or not all(isinstance(n, int) for n in extents):
        return None
    if op.attrs["axis"] != x.type.rank - 1 or x.type.layout or op.results[0].type.layout:
        return None
    extent, count = int(extents[-1]), int(dims.product(list(extents[:-1])))
    if extent < LEAST_LINES or count < lanes or stored(x) is not x:
        return None
    of_lines = _LinesInLanes(lines, extent)
    group = Axis(nest.builder.var("lb"), count // lanes)
    rest = count % lanes

    def body(values: dict[Var, Expr]) -> list[Stmt]:
        return of_lines.scanned(expr.mul(values[group.var], expr.index(lanes)), lanes)

    if not rest:
        return nest.grid([group], body, extent * lanes)
    whole = Axis(group.var, group.extent + 1)

    def some(values: dict[Var, Expr]) -> list[Stmt]:
        is_whole = expr.binary("lt", values[group.var], expr.index(group.extent))
        first = expr.index(count - rest)
        last = nest.serial(rest, lambda n: of_lines.scanned(expr.add(first, n), 1), "n")
        return [If(is_whole, tuple(body(values)), tuple(last))]

    return nest.grid([whole], some, extent * lanes)


def _scan(lines: Lines) -> tuple[Stmt, ...]:
    """The loops of a scan (cumulative sum or product) along any dim."""
    op = lines.op
    x = lines.operand(0)
    axis, reduce = op.int("axis"), str(op.attrs["combine"])
    extent = x.type.dims[axis]
    wide = x.type.dtype.accumulator

    def line(at: Sequence[Expr], width: int, lane: Expr | None) -> list[Stmt]:
        slot = expr.index(0) if lane is None or width == 1 else lane
        acc = lines.nest.builder.scratch("acc", wide, (width,))
        now = Load(acc, (slot,), wide)

        def step(i: Expr) -> list[Stmt]:
            if op.attrs["reverse"]:
                i = expr.sub(expr.index(dims.add(extent, -1)), i)
            where = [*at[:axis], i, *at[axis:]]
            more = Store(acc, (slot,), combine(reduce, now, expr.cast(lines.load(0, where), wide)))
            out = lines.store(0, where, expr.cast(now, x.type.dtype))
            return [out, more] if op.attrs["exclusive"] else [more, out]

        return [Store(acc, (slot,), identity(reduce, wide)), *lines.nest.serial(extent, step, "i")]

    along = lines.nest.builder.var("i")

    def at_once(at: Sequence[Expr]) -> tuple[Expr, Expr]:
        where = [*at[:axis], along, *at[axis:]]
        return lines.address(0, where), lines.load(0, where)

    across = [n for d, n in enumerate(x.type.dims) if d != axis]
    return lines.each(across, line, extent, at_once)
