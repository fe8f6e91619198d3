"""Reductions whose lanes run along a dim that every load walks in step: channels-last windows.

Depthwise convolution, pooling and sums over planes, as register tiles of `plan.rows` neighbours by
`plan.columns` channels, so that taps are loaded once a tile and guards are asked once a row of
taps. CPU only: on a GPU an invocation an element does as well. Chooses no tile sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from aot.analysis.plan import Plan
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Cast, Const, Expr, Fma, Load, Reduce, Var
from aot.kernels.ir import If, Scratch, Space, Stmt, Store
from aot.kernels.nest import Axis, Nest, Output, collapse, combine, identity

Values = dict[Var, Expr]

# taps along the innermost axis that are written out, so that neighbours share what they load
UNROLLED_TAPS = 7


@dataclass(frozen=True)
class Window:
    """A result that reduces over taps.

    Attributes:
        axes: what the reduction runs over, outermost first.
        guards: conditions of its loads; none depends on `lane`.
        outer: loops around the tile.
        rows: neighbours that a tile takes together, or None.
        lane: the axis that lanes run along, contiguous in the result.
    """

    reduce: Reduce
    axes: tuple[Axis, ...]
    guards: tuple[Expr, ...]
    outer: tuple[Axis, ...]
    rows: Axis | None
    lane: Axis


def find_window(nest: Nest, output: Output, reduces: Sequence[Reduce]) -> Window | None:
    """The window that `output` is, or None where lanes along its last axis would gather."""
    if nest.is_gpu or len(reduces) != 1 or not output.axes:
        return None
    (reduce,) = reduces
    lane = output.axes[-1]
    loads = expr.loads(reduce.body)
    steps = [expr.coefficient(load.indices[0], lane.var) for load in loads]
    if expr.coefficient(output.address, lane.var) != 1 or 1 not in steps:
        return None
    if not all(step in (0, 1) for step in steps):
        return None
    guards = tuple(dict.fromkeys(x.guard for x in loads if x.guard is not None))
    if any(lane.var in expr.free_vars(guard) for guard in guards):
        return None
    axes = tuple(Axis(v, n) for v, n in reduce.axes)
    rows = output.axes[-2] if len(output.axes) > 1 else None
    return Window(reduce, axes, guards, output.axes[:-2], rows, lane)


def schedule_window(nest: Nest, output: Output, window: Window, plan: Plan) -> tuple[Stmt, ...]:
    """The loops of a window."""
    return _Tile(nest, output, window, plan).build()


class _Tile:
    """One register tile and the loops around it.

    Attributes:
        begin: the first column that tiles of this width do.
        tail: the narrower tile that does the columns which don't fill one of this width.
        is_even: whether all columns of every tile are there.
    """

    def __init__(
        self, nest: Nest, output: Output, window: Window, plan: Plan, begin: int = 0
    ) -> None:
        self.nest = nest
        self.output = output
        self.window = window
        self.begin = begin
        rows, extent = window.rows, window.lane.extent
        self.rows = plan.rows if rows is not None else 1
        if rows is not None and isinstance(rows.extent, int):
            self.rows = max(1, min(self.rows, rows.extent))
        self.width = min(nest.lanes, max(plan.columns, 1))
        if isinstance(extent, int):
            while self.width > 1 and self.width // 2 >= extent - begin:
                self.width //= 2
        self.chunks = max(1, plan.columns // self.width)
        if isinstance(extent, int):
            self.chunks = max(1, min(self.chunks, (extent - begin) // self.width))
        self.columns = self.chunks * self.width
        rest = dims.modulo(dims.add(extent, -begin), self.columns)
        self.tail: _Tile | None = None
        if isinstance(extent, int) and isinstance(rest, int) and 0 < rest < extent - begin:
            self.tail = _Tile(nest, output, window, plan, extent - rest)
        self.is_even = rest == 0 or self.tail is not None
        dtype = window.reduce.dtype
        self.acc: Scratch = nest.builder.scratch("acc", dtype, (self.rows, self.chunks, self.width))

    def build(self) -> tuple[Stmt, ...]:
        nest, window = self.nest, self.window
        axes = list(window.outer)
        row_tile = Axis(nest.builder.var("mt"), 1)
        if window.rows is not None:
            row_tile = Axis(row_tile.var, dims.ceil_divide(window.rows.extent, self.rows))
            axes.append(row_tile)
        column_tile = Axis(nest.builder.var("nt"), self._tiles())
        axes.append(column_tile)
        taps = dims.product([a.extent for a in window.axes])

        def body(values: Values) -> list[Stmt]:
            first = expr.index(0)
            if window.rows is not None:
                first = expr.mul(values[row_tile.var], expr.index(self.rows))
            return self._columns(values, first, values[column_tile.var])

        return nest.grid(axes, body, dims.multiply(taps, self.rows * self.columns))

    def _tiles(self) -> Dim:
        """How many tiles there are along the lanes, narrower ones included."""
        extent = self.window.lane.extent if self.tail is None else self.tail.begin
        own = dims.ceil_divide(dims.add(extent, -self.begin), self.columns)
        return own if self.tail is None else dims.add(own, self.tail._tiles())

    def _columns(self, values: Values, first: Expr, number: Expr) -> list[Stmt]:
        """Tile `number` along the lanes."""
        start = expr.mul(number, expr.index(self.columns))
        whole = self._tile(values, first, expr.add(start, expr.index(self.begin)))
        if self.tail is None:
            return whole
        own = expr.index((self.tail.begin - self.begin) // self.columns)
        rest = self.tail._columns(values, first, expr.sub(number, own))
        return [If(expr.binary("lt", number, own), tuple(whole), tuple(rest))]

    def _tile(self, values: Values, first: Expr, start: Expr) -> list[Stmt]:
        reduce = self.window.reduce
        nothing = identity(reduce.op, reduce.dtype)
        stmts = self._each(lambda r, u, lane: [Store(self.acc, (r, u, lane), nothing)])
        indices: Values = {a.var: expr.index(0) for a in self.window.axes if a.extent == 1}
        axes = [a for a in self.window.axes if a.extent != 1]
        if not self.window.guards:
            merged, gone = collapse(axes, expr.index(0), [reduce.body])
            axes = list(merged)
            indices.update(gone)
        stmts += self._loops(axes, indices, values, first, start)
        return stmts + self._finish(values, first, start)

    def _each(self, body: Callable[[Expr, Expr, Expr], Sequence[Stmt]]) -> list[Stmt]:
        """`body(row, chunk, lane)` for all of the tile, in registers."""
        nest = self.nest
        return nest.unrolled(
            self.rows,
            lambda r: nest.unrolled(
                self.chunks, lambda u: [nest.spread(self.width, lambda lane: body(r, u, lane))]
            ),
            "r",
        )

    def _loops(
        self, axes: Sequence[Axis], indices: Values, values: Values, first: Expr, start: Expr
    ) -> list[Stmt]:
        if len(axes) > 1:
            axis = axes[0]
            return self.nest.serial(
                axis.extent,
                lambda k: self._loops(axes[1:], {**indices, axis.var: k}, values, first, start),
                "k",
            )
        inner = axes[0] if axes else None
        extent = 1 if inner is None else inner.extent

        def taps(is_free: bool) -> list[Stmt]:
            if inner is None:
                return self._tap(indices, values, first, start, is_free=is_free)

            def tap(k: Expr) -> list[Stmt]:
                here = {**indices, inner.var: k}
                return self._tap(here, values, first, start, is_free=is_free)

            if isinstance(extent, int) and extent <= UNROLLED_TAPS:
                return self.nest.unrolled(extent, tap, "k")
            return self.nest.serial(extent, tap, "k")

        corners = [expr.index(0)]
        if isinstance(extent, int) and extent > 1:
            corners.append(expr.index(extent - 1))
        elif inner is not None and not isinstance(extent, int):
            corners.append(expr.index(dims.add(extent, -1)))
        all_hold = self._all_hold(inner, corners, indices, values, first)
        if all_hold is None:
            return taps(is_free=False)
        return [If(all_hold, tuple(taps(is_free=True)), tuple(taps(is_free=False)))]

    def _all_hold(
        self,
        inner: Axis | None,
        corners: Sequence[Expr],
        indices: Values,
        values: Values,
        first: Expr,
    ) -> Expr | None:
        """Whether every guard holds for all rows and all taps of the innermost axis.

        A guard that compares linear positions holds between two points where it holds at both, so
        that the first and the last row and tap speak for all.
        """
        guards = list(dict.fromkeys(x for g in self.window.guards for x in _conditions(g)))
        rows = self.window.rows
        moving = [v.var for v in (inner, rows) if v is not None]
        if not guards or not all(_is_linear(g, var) for g in guards for var in moving):
            return None
        held: dict[tuple[object, ...], Expr] = {}
        for guard in guards:
            used = expr.free_vars(guard)
            takes_rows = rows is not None and rows.var in used
            for r in sorted({0, self.rows - 1}) if takes_rows else (0,):
                here = {**indices, **self._row(first, expr.index(r), values, is_clamped=True)}
                for n, tap in enumerate(corners if inner and inner.var in used else corners[:1]):
                    place = {**here, inner.var: tap} if inner is not None else here
                    held[guard, r, n] = expr.substitute(guard, place)
        return expr.all_of(held.values())

    def _row(self, first: Expr, r: Expr, values: Values, *, is_clamped: bool) -> Values:
        rows = self.window.rows
        if rows is None:
            return values
        at = expr.add(first, r)
        if is_clamped and dims.modulo(rows.extent, self.rows) != 0:
            at = expr.binary("min", at, expr.index(dims.add(rows.extent, -1)))
        return {**values, rows.var: at}

    def _at(self, start: Expr, u: Expr, lane: Expr) -> Expr:
        return expr.add(expr.add(start, expr.mul(u, expr.index(self.width))), lane)

    def _tap(
        self, indices: Values, values: Values, first: Expr, start: Expr, *, is_free: bool
    ) -> list[Stmt]:
        """One tap for every element of the tile; rows outside are left out where that is the same,
        as masked loads of what isn't there are slow."""
        nest, acc, reduce = self.nest, self.acc, self.window.reduce
        guard = None if is_free or self.is_even else self._skipped
        body = reduce.body
        if is_free or guard is not None:
            body = expr.transform(body, _without_guard)
        body = self._masked(body)

        def row(r: Expr) -> list[Stmt]:
            place = {**indices, **self._row(first, r, values, is_clamped=True)}

            def one(u: Expr, lane: Expr) -> list[Stmt]:
                at = self._at(start, u, lane)
                term = expr.substitute(body, {**place, self.window.lane.var: at})
                old = Load(acc, (r, u, lane), acc.dtype)
                return [Store(acc, (r, u, lane), _combined(reduce.op, old, term))]

            stmts = nest.unrolled(
                self.chunks, lambda u: [nest.spread(self.width, lambda lane: one(u, lane))]
            )
            return stmts if guard is None else [If(expr.substitute(guard, place), tuple(stmts))]

        return nest.unrolled(self.rows, row, "r")

    @property
    def _skipped(self) -> Expr | None:
        """The guard without which a tap adds nothing to the reduction."""
        reduce, guards = self.window.reduce, self.window.guards
        guarded = [load for load in expr.loads(reduce.body) if load.guard is not None]
        if len(guards) != 1 or len(guarded) != 1:
            return None
        (load,) = guarded
        nothing = identity(reduce.op, load.dtype)
        if not isinstance(load.other, Const) or load.other.value != nothing.value:
            return None
        return guards[0] if _is_neutral(reduce, load) else None

    def _masked(self, e: Expr) -> Expr:
        """`e`, whose loads along the lanes read nothing past the end."""
        axis = self.window.lane
        if self.is_even:
            return e
        inside = expr.binary("lt", axis.var, expr.index(axis.extent))

        def mask(x: Expr) -> Expr | None:
            if not isinstance(x, Load) or axis.var not in expr.free_vars(x.indices[0]):
                return None
            other = x.other if x.other is not None else expr.const(0, x.dtype)
            guard = inside if x.guard is None else expr.binary("and", x.guard, inside)
            return replace(x, guard=guard, other=other)

        return expr.transform(e, mask)

    def _finish(self, values: Values, first: Expr, start: Expr) -> list[Stmt]:
        """Epilogue and stores; a long epilogue stands once, after the registers went to memory."""
        nest, acc = self.nest, self.acc
        if self.rows * self.chunks == 1 or not _is_long(self.output.value):
            return nest.unrolled(
                self.rows, lambda r: self._finish_row(values, first, r, start, acc), "r"
            )
        tile = nest.builder.scratch("tile", acc.dtype, acc.shape, Space.WORKGROUP)
        spill = self._each(
            lambda r, u, lane: [Store(tile, (r, u, lane), Load(acc, (r, u, lane), acc.dtype))]
        )
        return spill + nest.serial(
            self.rows, lambda r: self._finish_row(values, first, r, start, tile), "r"
        )

    def _finish_row(
        self, values: Values, first: Expr, r: Expr, start: Expr, source: Scratch
    ) -> list[Stmt]:
        nest, window, output = self.nest, self.window, self.output
        here = self._row(first, r, values, is_clamped=False)

        def lanes(u: Expr, lane: Expr) -> list[Stmt]:
            at = self._at(start, u, lane)
            place = {**here, window.lane.var: at}
            total = Load(source, (r, u, lane), source.dtype)
            value = expr.transform(output.value, lambda e: total if e is window.reduce else None)
            store = Store(
                output.buffer,
                (expr.substitute(output.address, place),),
                expr.substitute(value, place),
            )
            if self.is_even:
                return [store]
            return [If(expr.binary("lt", at, expr.index(window.lane.extent)), (store,))]

        loop: Callable[..., list[Stmt]] = nest.unrolled if source is self.acc else nest.serial
        stmts = loop(self.chunks, lambda u: [nest.spread(self.width, lambda lane: lanes(u, lane))])
        rows = window.rows
        if rows is None or dims.modulo(rows.extent, self.rows) == 0:
            return stmts
        is_there = expr.binary("lt", expr.add(first, r), expr.index(rows.extent))
        return [If(is_there, tuple(stmts))]


def _conditions(guard: Expr) -> Iterator[Expr]:
    """The conditions that `guard` is the conjunction of."""
    if isinstance(guard, Binary) and guard.op == "and":
        yield from _conditions(guard.a)
        yield from _conditions(guard.b)
    else:
        yield guard


def _is_linear(condition: Expr, var: Var) -> bool:
    """Whether a condition is an inequality of positions linear in `var`."""
    return (
        isinstance(condition, Binary)
        and condition.op in ("lt", "le", "gt", "ge")
        and all(expr.coefficient(x, var) is not None for x in (condition.a, condition.b))
    )


def _is_neutral(reduce: Reduce, load: Load) -> bool:
    """Whether a term is what `load` is, or zero where that is zero and terms are added."""
    body = reduce.body
    while isinstance(body, Cast):
        body = body.a
    if body is load:
        return True
    if reduce.op != "sum" or not isinstance(body, Binary) or body.op != "mul":
        return False
    return any(_is_neutral(replace(reduce, body=side), load) for side in (body.a, body.b))


def _without_guard(e: Expr) -> Expr | None:
    if isinstance(e, Load) and e.guard is not None:
        return replace(e, guard=None, other=None)
    return None


def _is_long(value: Expr) -> bool:
    """Whether a copy of `value` a row would be most of a kernel's code."""
    return any(
        isinstance(e, (expr.Unary, Binary)) and e.op in expr.TRANSCENDENTAL_OPS
        for e in expr.nodes(value)
    )


def _combined(op: str, total: Expr, term: Expr) -> Expr:
    """`total op term`, a sum of products as one fused step."""
    if op == "sum" and isinstance(term, Binary) and term.op == "mul" and term.dtype.is_float:
        return Fma(term.a, term.b, total, term.dtype)
    return combine(op, total, term)
