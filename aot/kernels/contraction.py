"""Contractions: register tiles of outer products, lanes along the weights' outputs.

Obeys the plan's rows and columns. The same nest serves matmul and convolution, packed and plain
weights, CPU (VECTOR lanes) and GPU (LANE lanes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from aot.analysis.plan import Plan
from aot.ir import dims, expr
from aot.ir.expr import Binary, Cast, Expr, Fma, Load, Reduce, Var
from aot.ir.types import DType
from aot.kernels.inline import reduces_of
from aot.kernels.ir import For, If, LoopKind, Scratch, Space, Stmt, Store
from aot.kernels.nest import Axis, Nest, Output, collapse, split_axis

# how much of a reduction is converted at a time; a tile's rows of it stay in the nearest cache
STAGED = 256
# heights of the tiles that do what is left of a number of rows that isn't known: low ones waste few
# rows, high ones keep as many sums under way as hide an addition's latency
TAIL_ROWS, SUMS = (2, 4), 8


@dataclass(frozen=True)
class Roles:
    """What each axis of a contraction does.

    Attributes:
        weight: the load in `right`, which is it or a conversion of it.
        rows: the innermost axis that only `left` varies along, or None.
        columns: the axis that only `right` varies along, in lanes.
        outer: the other axes, outermost first.
    """

    reduce: Reduce
    left: Expr
    right: Expr
    weight: Load
    rows: Axis | None
    columns: Axis
    outer: tuple[Axis, ...]


def find_roles(output: Output) -> Roles | None:
    """The contraction in an output's value, or None where it has not that form."""
    reduces = reduces_of(output.value)
    if len(reduces) != 1 or reduces[0].op != "sum":
        return None
    (reduce,) = reduces
    body = reduce.body
    if not isinstance(body, Binary) or body.op != "mul":
        return None
    left, right = body.a, body.b
    weight = _loaded(right)
    if weight is None or weight.guard is not None:
        return None
    in_left, in_right = expr.free_vars(left), expr.free_vars(right)
    only_left = [a for a in output.axes if a.var in in_left and a.var not in in_right]
    only_right = [a for a in output.axes if a.var in in_right and a.var not in in_left]
    if not only_right:
        return None
    columns = min(only_right, key=lambda a: _step(weight, a.var))
    rows = only_left[-1] if only_left else None
    outer = tuple(a for a in output.axes if a is not rows and a is not columns)
    return Roles(reduce, left, right, weight, rows, columns, outer)


def _without_groups(output: Output) -> Output:
    """The output with an axis i that the left side of a product sees as `i // n` as two, groups
    and their `n` members, so that only the right side varies along the members."""
    for reduce in reduces_of(output.value):
        if not isinstance(reduce.body, Binary):
            continue
        for e in expr.nodes(reduce.body.a):
            if not isinstance(e, Binary) or e.op != "floordiv":
                continue
            for number, axis in enumerate(output.axes):
                size = expr.dim_of(e.b)
                if e.a is axis.var and size is not None and dims.modulo(axis.extent, size) == 0:
                    return split_axis(output, number, size)
    return output


def _loaded(e: Expr) -> Load | None:
    """The load that `e` is, or is a conversion of."""
    while isinstance(e, Cast):
        e = e.a
    return e if isinstance(e, Load) else None


def _step(load: Load, var: Var) -> int:
    """How far apart neighbours along `var` lie: 0 where the address is packed, else its stride."""
    step = expr.coefficient(load.indices[0], var)
    if step is None:
        return 0
    return step if isinstance(step, int) else 1 << 30


def schedule_contraction(
    nest: Nest, output: Output, plan: Plan, panel: int
) -> tuple[Stmt, ...] | None:
    """Tiles of `plan.rows` by `plan.columns`; None where the output isn't a contraction."""
    output = _without_groups(output)
    roles = find_roles(output)
    if roles is None:
        return None
    others = [a for a in output.axes if a is not roles.columns]
    merged, gone = collapse(others, output.address, [output.value])
    if gone:
        address, value = output.substitute(gone)
        keep = [*merged, roles.columns]
        roles = find_roles(replace(output, address=address, value=value, axes=tuple(keep)))
        assert roles is not None
        output = Output(output.buffer, address, value, tuple(keep))
    return _Tile(nest, output, roles, plan, panel).build()


class _Tile:
    """One register tile and the loops around it.

    Attributes:
        tail: where only the device knows how many rows there are, the lower tile that does those
            which don't fill one of this height. All rows of this tile are there then.
    """

    def __init__(self, nest: Nest, output: Output, roles: Roles, plan: Plan, panel: int) -> None:
        self.nest = nest
        self.output = output
        self.roles = roles
        self.panel = panel
        rows = plan.rows if roles.rows is not None else 1
        if roles.rows is not None and isinstance(roles.rows.extent, int):
            rows = min(rows, roles.rows.extent)
        self.rows = rows
        self.columns = plan.columns
        # a vector never straddles a panel
        self.width = self.columns if nest.is_gpu else min(self.columns, panel)
        self.chunks = self.columns // self.width
        dtype = roles.reduce.dtype
        self.acc: Scratch = nest.builder.scratch("acc", dtype, (self.rows, self.chunks, self.width))
        self._stages: dict[str, Scratch] = {}
        self.tail: _Tile | None = None
        is_unknown = roles.rows is not None and not isinstance(roles.rows.extent, int)
        low, high = TAIL_ROWS
        height = max(low, min(high, SUMS * nest.lanes // self.columns))
        if is_unknown and not nest.is_gpu and rows > height and not self._is_whole():
            self.tail = _Tile(nest, output, roles, replace(plan, rows=height), panel)

    def build(self) -> tuple[Stmt, ...]:
        roles, nest = self.roles, self.nest
        tiles = dims.ceil_divide(roles.columns.extent, self.columns)
        column_tile = nest.builder.var("nt")
        axes = list(roles.outer)
        row_tile = Axis(nest.builder.var("mt"), 1)
        if roles.rows is not None:
            row_tile = Axis(row_tile.var, dims.ceil_divide(roles.rows.extent, self.rows))
            axes.append(row_tile)
        work = dims.multiply(
            dims.product([n for _, n in roles.reduce.axes]), self.rows * self.columns // 16 + 1
        )

        def body(values: dict[Var, Expr]) -> list[Stmt]:
            first = expr.index(0)
            if roles.rows is not None:
                first = expr.mul(values[row_tile.var], expr.index(self.rows))
            whole = self._tile(values, first, column_tile)
            if self.tail is None or roles.rows is None:
                return whole
            end = expr.add(first, expr.index(self.rows))
            is_there = expr.binary("le", end, expr.index(roles.rows.extent))
            return [If(is_there, tuple(whole), tuple(self._rest(values, first, column_tile)))]

        # on a GPU the many tiles go along x, the one axis that may be long; on a CPU x runs
        # fastest, and neighbours there share the rows
        along_columns, along_rows = (1, 0) if nest.is_gpu else (0, 1)
        rows = nest.grid(axes, body, work, first=along_rows)
        return (For(column_tile, tiles, LoopKind.WORKGROUP, rows, axis=along_columns),)

    def _rest(self, values: dict[Var, Expr], first: Expr, column_tile: Expr) -> list[Stmt]:
        """The rows from `first` on, which are fewer than the tile has."""
        rows, tail = self.roles.rows, self.tail
        assert rows is not None and tail is not None
        count = dims.ceil_divide(dims.modulo(rows.extent, self.rows), tail.rows)

        def one(n: Expr) -> list[Stmt]:
            start = expr.add(first, expr.mul(n, expr.index(tail.rows)))
            return tail._tile(values, start, column_tile)

        return self.nest.serial(count, one, "mr")

    def _is_whole(self) -> bool:
        """Whether all rows of a tile are there."""
        rows = self.roles.rows
        is_divided = rows is None or dims.modulo(rows.extent, self.rows) == 0
        return is_divided or self.tail is not None

    def _tile(self, values: dict[Var, Expr], first: Expr, column_tile: Expr) -> list[Stmt]:
        nest = self.nest
        zero = expr.const(0, self.acc.dtype)
        stmts: list[Stmt] = nest.unrolled(
            self.rows,
            lambda r: nest.unrolled(
                self.chunks,
                lambda u: [
                    nest.spread(self.width, lambda lane: [Store(self.acc, (r, u, lane), zero)])
                ],
            ),
        )
        stmts += self._loops(values, first, column_tile)
        return stmts + self._finish(values, first, column_tile)

    def _finish(self, values: dict[Var, Expr], first: Expr, column_tile: Expr) -> list[Stmt]:
        """Epilogue and stores of the tile.

        On a CPU the registers go through memory, so that one copy of the epilogue serves all
        rows: unrolled it would be most of a kernel's code.
        """
        nest, acc = self.nest, self.acc
        if nest.is_gpu or self.rows * self.chunks == 1:
            return nest.unrolled(
                self.rows,
                lambda r: self._finish_row(values, first, r, column_tile, acc, nest.unrolled),
                "r",
            )
        tile = nest.builder.scratch("tile", acc.dtype, acc.shape, Space.WORKGROUP)
        spill = nest.unrolled(
            self.rows,
            lambda r: nest.unrolled(
                self.chunks,
                lambda u: [
                    nest.spread(
                        self.width,
                        lambda lane: [
                            Store(tile, (r, u, lane), Load(acc, (r, u, lane), acc.dtype))
                        ],
                    )
                ],
            ),
            "r",
        )
        return spill + nest.serial(
            self.rows,
            lambda r: self._finish_row(values, first, r, column_tile, tile, nest.serial),
            "r",
        )

    def _row(
        self, first: Expr, r: Expr, values: dict[Var, Expr], *, is_clamped: bool
    ) -> dict[Var, Expr]:
        rows = self.roles.rows
        if rows is None:
            return values
        at = expr.add(first, r)
        if is_clamped and not self._is_whole():
            at = expr.binary("min", at, expr.index(dims.add(rows.extent, -1)))
        return {**values, rows.var: at}

    def _loops(self, values: dict[Var, Expr], first: Expr, column_tile: Expr) -> list[Stmt]:
        """The reduction: taps outside, the axis that packed weights run along inside."""
        axes = [Axis(v, n) for v, n in self.roles.reduce.axes]
        indices: dict[Var, Expr] = {a.var: expr.index(0) for a in axes if a.extent == 1}
        axes = [a for a in axes if a.extent != 1]
        axes.sort(key=lambda a: -_step_or_large(self.roles.right, a.var))
        return self._reduce_loops(axes, indices, values, first, column_tile)

    def _reduce_loops(
        self,
        axes: Sequence[Axis],
        indices: dict[Var, Expr],
        values: dict[Var, Expr],
        first: Expr,
        column_tile: Expr,
    ) -> list[Stmt]:
        if len(axes) > 1:
            axis = axes[0]
            return self.nest.serial(
                axis.extent,
                lambda k: self._reduce_loops(
                    axes[1:], {**indices, axis.var: k}, values, first, column_tile
                ),
                "k",
            )
        inner = axes[0] if axes else None
        if inner is not None and any(sides := self._staged_sides(inner)):
            return self._staged(inner, sides, indices, values, first, column_tile)
        guards = self._guards(inner)
        if guards is None:
            return self._steps(inner, indices, values, first, column_tile, self.roles.left)
        stmts: list[Stmt] = []
        held: list[Expr] = []
        for row in range(self.rows):
            here = {**indices, **self._row(first, expr.index(row), values, is_clamped=True)}
            held.append(expr.substitute(guards, here))
        all_hold = expr.all_of(held)
        assert all_hold is not None
        free = expr.transform(self.roles.left, _without_guard)
        fast = self._steps(inner, indices, values, first, column_tile, free)
        slow = self._steps(inner, indices, values, first, column_tile, self.roles.left)
        stmts.append(If(all_hold, tuple(fast), tuple(slow)))
        return stmts

    def _guards(self, inner: Axis | None) -> Expr | None:
        """The one guard of the left side, where it doesn't change along the innermost loop."""
        left = _loaded(self.roles.left)
        if left is None or left.guard is None or left.other is None:
            return None
        if inner is not None and inner.var in expr.free_vars(left.guard):
            return None
        return left.guard

    def _staged_sides(self, inner: Axis) -> tuple[bool, bool]:
        """Which sides to convert into scratch before they are multiplied: a left one that lies in
        order, because a scalar at a time is slow; a right one where conversions are no instructions
        and would leave the tile no registers."""
        lanes, right = self.nest.lanes, self.roles.weight
        is_short = isinstance(inner.extent, int) and inner.extent < lanes
        if self.nest.is_gpu or lanes == 1 or is_short:
            return False, False
        left = _loaded(self.roles.left)
        return (
            left is not None
            and left.dtype is not self.acc.dtype
            and expr.coefficient(left.indices[0], inner.var) == 1,
            right.dtype is DType.F16 and not self.nest.target.converts_half,
        )

    def _staged(
        self,
        inner: Axis,
        sides: tuple[bool, bool],
        indices: dict[Var, Expr],
        values: dict[Var, Expr],
        first: Expr,
        column_tile: Expr,
    ) -> list[Stmt]:
        """The reduction in pieces, each converted into scratch before its outer products."""
        nest = self.nest
        size = min(STAGED, inner.extent) if isinstance(inner.extent, int) else STAGED
        shapes = {"left": (self.rows, size), "right": (size, self.chunks, self.width)}
        for name, is_wanted in zip(shapes, sides, strict=True):
            if is_wanted and name not in self._stages:
                made = nest.builder.scratch(name, self.acc.dtype, shapes[name], Space.WORKGROUP)
                self._stages[name] = made
        left, right = (
            self._stages[name] if is_wanted else None
            for name, is_wanted in zip(shapes, sides, strict=True)
        )

        def piece(start: Expr, count: dims.Dim) -> list[Stmt]:
            def at(k: Expr) -> dict[Var, Expr]:
                return {**indices, inner.var: expr.add(start, k)}

            def left_of(r: Expr, k: Expr) -> Expr:
                place = {**at(k), **self._row(first, r, values, is_clamped=True)}
                return expr.substitute(self.roles.left, place)

            def right_of(k: Expr) -> Callable[[Expr, Expr], Expr]:
                return lambda u, lane: self._right({**at(k), **values}, column_tile, u, lane)

            stmts: list[Stmt] = []
            if left is not None:
                stmts += nest.serial(
                    self.rows,
                    lambda r: nest.vectors(count, lambda k: [Store(left, (r, k), left_of(r, k))]),
                    "r",
                )
            if right is not None:
                stmts += nest.serial(
                    count,
                    lambda k: self._each_chunk(
                        lambda u, lane: Store(right, (k, u, lane), right_of(k)(u, lane))
                    ),
                    "k",
                )

            def step(k: Expr) -> list[Stmt]:
                return self._product(
                    lambda r: left_of(r, k) if left is None else Load(left, (r, k), left.dtype),
                    right_of(k)
                    if right is None
                    else lambda u, lane: Load(right, (k, u, lane), right.dtype),
                )

            return stmts + nest.serial(count, step, "k")

        whole, rest = dims.floor_divide(inner.extent, size), dims.modulo(inner.extent, size)
        stmts = nest.serial(whole, lambda n: piece(expr.mul(n, expr.index(size)), size), "kb")
        if rest != 0:
            stmts += piece(expr.index(dims.multiply(whole, size)), rest)
        return stmts

    def _steps(
        self,
        inner: Axis | None,
        indices: dict[Var, Expr],
        values: dict[Var, Expr],
        first: Expr,
        column_tile: Expr,
        left: Expr,
    ) -> list[Stmt]:
        def step(here: dict[Var, Expr]) -> list[Stmt]:
            def scalar(r: Expr) -> Expr:
                place = {**here, **self._row(first, r, values, is_clamped=True)}
                return expr.substitute(left, place)

            return self._product(
                scalar,
                lambda u, lane: self._right({**here, **values}, column_tile, u, lane),
            )

        if inner is None:
            return step(indices)
        return self.nest.serial(inner.extent, lambda k: step({**indices, inner.var: k}), "k")

    def _product(
        self, left: Callable[[Expr], Expr], right: Callable[[Expr, Expr], Expr]
    ) -> list[Stmt]:
        """One outer product: each row's scalar `left(row)` times the columns' vectors, of
        `right(chunk, lane)`."""
        nest, acc = self.nest, self.acc

        def one_row(r: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            scalar = nest.let(left(r), stmts, "a")

            def one(u: Expr, lane: Expr) -> Stmt:
                old = Load(acc, (r, u, lane), acc.dtype)
                return Store(acc, (r, u, lane), _plus_product(old, scalar, right(u, lane)))

            return stmts + self._each_chunk(one)

        return nest.unrolled(self.rows, one_row, "r")

    def _each_chunk(self, body: Callable[[Expr, Expr], Stmt]) -> list[Stmt]:
        """`body(chunk, lane)` for the vectors of the columns."""
        nest = self.nest
        return nest.unrolled(
            self.chunks, lambda u: [nest.spread(self.width, lambda lane: [body(u, lane)])]
        )

    def _right(self, values: dict[Var, Expr], column_tile: Expr, u: Expr, lane: Expr) -> Expr:
        """The weight of lane `lane` of chunk `u`, panel by panel where it is packed."""
        columns, width = self.roles.columns, self.width
        base = expr.add(
            expr.mul(column_tile, expr.index(self.columns)), expr.mul(u, expr.index(width))
        )
        last = expr.index(dims.add(columns.extent, -1))
        panel = expr.index(self.panel)
        is_gpu = self.nest.is_gpu

        def rewrite(e: Expr) -> Expr | None:
            if isinstance(e, Binary) and e.a is columns.var and expr.dim_of(e.b) == self.panel:
                if e.op == "floordiv":
                    # a tile past the last panel reads that one again; its lanes aren't stored
                    end = expr.binary("floordiv", last, panel)
                    start = expr.add(base, lane) if is_gpu else base
                    found = expr.binary("floordiv", start, panel)
                    if self._covers():
                        return found
                    return expr.binary("min", found, end)
                if e.op == "floormod":
                    if is_gpu:
                        return expr.binary("floormod", expr.add(base, lane), panel)
                    return expr.add(expr.binary("floormod", base, panel), lane)
            if e is columns.var:
                return expr.add(base, lane)
            return values.get(e) if isinstance(e, Var) else None

        right = expr.transform(self.roles.right, rewrite)
        if self._is_packed() or dims.modulo(columns.extent, self.columns) == 0:
            return right
        inside = expr.binary("lt", expr.add(base, lane), expr.index(columns.extent))

        def guard(e: Expr) -> Expr | None:
            if not isinstance(e, Load):
                return None
            return replace(e, guard=inside, other=expr.const(0, e.dtype))

        return expr.transform(right, guard)

    def _is_packed(self) -> bool:
        return expr.coefficient(self.roles.weight.indices[0], self.roles.columns.var) is None

    def _covers(self) -> bool:
        """Whether the tiles end exactly at the last panel's end."""
        padded = dims.multiply(dims.ceil_divide(self.roles.columns.extent, self.panel), self.panel)
        return dims.modulo(padded, self.columns) == 0

    def _finish_row(
        self,
        values: dict[Var, Expr],
        first: Expr,
        r: Expr,
        column_tile: Expr,
        source: Scratch,
        loop: Callable[..., list[Stmt]],
    ) -> list[Stmt]:
        """Epilogue and store of one row, where the row is there."""
        nest, roles = self.nest, self.roles
        here = self._row(first, r, values, is_clamped=False)

        def chunk(u: Expr) -> list[Stmt]:
            def lanes(lane: Expr) -> list[Stmt]:
                at = expr.add(
                    expr.add(
                        expr.mul(column_tile, expr.index(self.columns)),
                        expr.mul(u, expr.index(self.width)),
                    ),
                    lane,
                )
                total = Load(source, (r, u, lane), source.dtype)
                value = expr.transform(
                    self.output.value, lambda e: total if e is roles.reduce else None
                )
                place = {**here, roles.columns.var: at}
                store = Store(
                    self.output.buffer,
                    (expr.substitute(self.output.address, place),),
                    expr.substitute(value, place),
                )
                if dims.modulo(roles.columns.extent, self.columns) == 0:
                    return [store]
                return [If(expr.binary("lt", at, expr.index(roles.columns.extent)), (store,))]

            return [nest.spread(self.width, lanes)]

        stmts = loop(self.chunks, chunk)
        rows = roles.rows
        if rows is None or self._is_whole():
            return stmts
        is_there = expr.binary("lt", expr.add(first, r), expr.index(rows.extent))
        return [If(is_there, tuple(stmts))]


def _plus_product(total: Expr, a: Expr, b: Expr) -> Expr:
    """`total + a * b`; integers have no fused form."""
    if total.dtype.is_float:
        return Fma(a, b, total, total.dtype)
    return expr.add(total, expr.mul(a, b))


def _without_guard(e: Expr) -> Expr | None:
    if isinstance(e, Load) and e.guard is not None:
        return replace(e, guard=None, other=None)
    return None


def _step_or_large(load: Expr, var: Var) -> int:
    """Stride of the weights along a reduced axis; the smallest goes innermost."""
    found = [expr.coefficient(x.indices[0], var) for x in expr.loads(load)]
    steps = [s for s in found if isinstance(s, int)]
    return min(steps) if steps else 1 << 30
