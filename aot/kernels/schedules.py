"""Schedules for elementwise and reducing executables: how per-element expressions become loops.

One function a schedule class; the plan chose which. Contractions and recurrences have files of
their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Load, Reduce, Var
from aot.kernels.inline import reduces_of
from aot.kernels.ir import For, If, LoopKind, Stmt, Store
from aot.kernels.nest import GRAIN, Axis, Nest, Output, collapse, loads_of


def schedule_elementwise(nest: Nest, output: Output) -> tuple[Stmt, ...]:
    """Lanes along the innermost collapsed dim; no Reduce in the value."""
    axes, gone = collapse(output.axes, output.address, [output.value])

    def store(values: dict[Var, Expr]) -> list[Stmt]:
        address, value = output.substitute({**gone, **values})
        return [Store(output.buffer, (address,), value)]

    return lanes_over_output(nest, axes, lambda values, width, lane: store(values))


def lanes_over_output(nest: Nest, axes: Sequence[Axis], body: object) -> tuple[Stmt, ...]:
    """Loops over all `axes` with lanes along the last.

    `body(values, width, lane_var)` gives the statements of one element; with a width above 1 on a
    CPU they stand inside a VECTOR loop. On a GPU one invocation does one element.
    """
    assert callable(body)
    if nest.is_gpu:
        return _one_invocation_each(nest, axes, body)
    if not axes:
        return tuple(body({}, 1, None))
    inner, outer = axes[-1], axes[:-1]
    width = nest.lanes
    if isinstance(inner.extent, int):
        while width > 1 and width > inner.extent:
            width //= 2
    if width == 1:
        return nest.grid(axes, lambda values: body(values, 1, None), 1)
    chunk = _chunk(inner.extent, width)
    pieces = dims.ceil_divide(inner.extent, chunk)

    def vectors(values: dict[Var, Expr], start: Expr) -> list[Stmt]:
        def one(o: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            base = nest.let(expr.add(start, expr.mul(o, expr.index(width))), stmts, "base")
            full = [nest.spread(width, lambda lane: body(
                {**values, inner.var: expr.add(base, lane)}, width, lane))]
            if dims.modulo(inner.extent, width) == 0 and dims.modulo(inner.extent, chunk) == 0:
                return stmts + full
            end = expr.index(inner.extent)
            last = nest.serial(width, lambda t: [If(
                expr.binary("lt", expr.add(base, t), end),
                tuple(body({**values, inner.var: expr.add(base, t)}, 1, None)))], "t")
            fits = expr.binary("le", expr.add(base, expr.index(width)), end)
            return [*stmts, If(fits, tuple(full), tuple(last))]

        return nest.serial(dims.ceil_divide(min(chunk, inner.extent) if isinstance(
            inner.extent, int) else chunk, width), one, "o")

    if pieces == 1:
        return nest.grid(outer, lambda values: vectors(values, expr.index(0)), inner.extent)
    piece = nest.builder.var("piece")
    start = expr.mul(piece, expr.index(chunk))
    rows = nest.grid(outer, lambda values: vectors(values, start), GRAIN, first=1)
    return (For(piece, pieces, LoopKind.WORKGROUP, rows, axis=0),)


def _chunk(extent: Dim, width: int) -> int:
    """Elements of the innermost dim that one workgroup does: a multiple of the width."""
    if isinstance(extent, int) and extent <= 2 * GRAIN:
        return -(-extent // width) * width
    return GRAIN


def _one_invocation_each(nest: Nest, axes: Sequence[Axis], body: object) -> tuple[Stmt, ...]:
    assert callable(body)
    total = dims.product([a.extent for a in axes])
    group = nest.builder.var("g")
    size = expr.index(nest.lanes)

    def one(lane: Expr) -> list[Stmt]:
        inside: list[Stmt] = []
        whole = nest.let(expr.add(expr.mul(group, size), lane), inside, "n")
        values: dict[Var, Expr] = {}
        if axes:
            nest.decode(whole, axes, values, inside)
        inside += body(values, 1, lane)
        if dims.modulo(total, nest.lanes) == 0:
            return inside
        first = inside[0]
        return [first, If(expr.binary("lt", whole, expr.index(total)), tuple(inside[1:]))]

    return (For(group, dims.ceil_divide(total, nest.lanes), LoopKind.WORKGROUP,
                (nest.spread(nest.lanes, one),), axis=0),)


def schedule_reduction(nest: Nest, output: Output) -> tuple[Stmt, ...]:
    """Reductions where their inputs are known, lanes along what is contiguous."""
    reduces = reduces_of(output.value)
    inner = output.axes[-1].var if output.axes else None
    depends = [r for r in reduces if inner is not None and inner in expr.free_vars(r)]
    if depends and not (nest.is_gpu and False) and _prefers_output_lanes(depends, inner):
        return _lanes_over_results(nest, output, reduces)
    return _lanes_over_reduction(nest, output, reduces, is_row=bool(inner) and not depends)


def _prefers_output_lanes(reduces: list[Reduce], inner: Var | None) -> bool:
    """Whether more loads are contiguous along the result than along the reduction."""
    assert inner is not None
    along_result = along_reduction = 0
    for reduce in reduces:
        axes = [v for v, n in reduce.axes if n != 1]
        last = axes[-1] if axes else None
        for load in loads_of(reduce.body):
            along_result += expr.coefficient(load.indices[0], inner) == 1
            along_reduction += last is not None and expr.coefficient(load.indices[0], last) == 1
            if load.guard is not None and inner in expr.free_vars(load.guard):
                along_result += 1  # windows slide along the result: keep them whole
    return along_result >= along_reduction


def _lanes_over_results(nest: Nest, output: Output, reduces: list[Reduce]) -> tuple[Stmt, ...]:
    """Each lane reduces its own result element."""
    axes, gone = collapse(output.axes, output.address, [output.value])

    def body(values: dict[Var, Expr], width: int, lane: Expr | None) -> list[Stmt]:
        values = {**gone, **values}
        stmts: list[Stmt] = []
        done: dict[Expr, Expr] = {}
        for reduce in reduces:
            loops, value = _reduce_here(nest, reduce, done, values, lane)
            stmts += loops
            done[reduce] = value
        value = expr.transform(output.value, done.get)
        stmts.append(Store(output.buffer, (expr.substitute(output.address, values),),
                           expr.substitute(value, values)))
        return stmts

    return lanes_over_output(nest, axes, body)


def _reduce_here(nest: Nest, reduce: Reduce, done: dict[Expr, Expr], values: dict[Var, Expr],
                 lane: Expr | None) -> tuple[list[Stmt], Expr]:
    """A reduction inside a lane: one accumulator per lane, serial loops."""
    from aot.kernels.nest import combine, identity

    width = nest.lanes
    slot = expr.index(0) if lane is None else lane
    acc = nest.builder.scratch("acc", reduce.dtype, (1 if lane is None else width,))
    body = expr.rebuild(reduce.body, lambda c: expr.transform(c, done.get))
    body = done.get(body, body)
    stmts: list[Stmt] = [Store(acc, (slot,), identity(reduce.op, reduce.dtype))]

    def loops(axes: Sequence[tuple[Var, Dim]], indices: dict[Var, Expr]) -> list[Stmt]:
        if not axes:
            term = expr.substitute(body, {**values, **indices})
            return [Store(acc, (slot,), combine(
                reduce.op, Load(acc, (slot,), reduce.dtype), term))]
        (var, extent), rest = axes[0], axes[1:]
        return nest.serial(extent, lambda i: loops(rest, {**indices, var: i}), var.name)

    stmts += loops(reduce.axes, {})
    return stmts, Load(acc, (slot,), reduce.dtype)


def _lanes_over_reduction(nest: Nest, output: Output, reduces: list[Reduce],
                          is_row: bool) -> tuple[Stmt, ...]:
    """Lanes along the reduced dim; with `is_row` the innermost result dim is a loop after it."""
    outer = output.axes[:-1] if is_row else output.axes
    work: Dim = dims.product([n for r in reduces[:1] for _, n in r.axes])

    def row(values: dict[Var, Expr]) -> list[Stmt]:
        stmts: list[Stmt] = []
        done: dict[Expr, Expr] = {}
        for reduce in reduces:
            body = expr.transform(reduce.body, done.get)
            loops, value = nest.reduce_lanes(reduce, body, values)
            stmts += loops
            done[reduce] = value
        value = expr.transform(output.value, done.get)

        def store(more: dict[Var, Expr]) -> list[Stmt]:
            both = {**values, **more}
            return [Store(output.buffer, (expr.substitute(output.address, both),),
                          expr.substitute(value, both))]

        if is_row:
            return stmts + _row_of_stores(nest, output.axes[-1], store)
        if nest.is_gpu:
            return [*stmts, nest.spread(nest.lanes, lambda lane: [
                If(expr.binary("eq", lane, expr.index(0)), tuple(store({})))])]
        return stmts + store({})

    return nest.grid(outer, row, work)


def _row_of_stores(nest: Nest, axis: Axis, store: object) -> list[Stmt]:
    """The elements of one row, spread over lanes."""
    assert callable(store)
    width = nest.lanes
    if nest.is_gpu:
        def strided(o: Expr, lane: Expr) -> list[Stmt]:
            at = expr.add(expr.mul(o, expr.index(width)), lane)
            stmts = store({axis.var: at})
            if dims.modulo(axis.extent, width) == 0:
                return list(stmts)
            return [If(expr.binary("lt", at, expr.index(axis.extent)), tuple(stmts))]

        return nest.serial(dims.ceil_divide(axis.extent, width), lambda o: [
            nest.spread(width, lambda lane: strided(o, lane))], "o")
    if isinstance(axis.extent, int):
        while width > 1 and width > axis.extent:
            width //= 2
    full = dims.floor_divide(axis.extent, width)
    out: list[Stmt] = []
    if width > 1:
        out += nest.serial(full, lambda o: [nest.spread(width, lambda lane: store(
            {axis.var: expr.add(expr.mul(o, expr.index(width)), lane)}))], "o")
    else:
        full = 0
    start = expr.index(dims.multiply(full, width))
    tail = dims.add(axis.extent, dims.multiply(dims.multiply(full, width), -1))
    return out + nest.serial(tail, lambda t: store({axis.var: expr.add(start, t)}), "t")
