"""Schedules for elementwise and reducing executables: how per-element expressions become loops.

One function a schedule class; the plan chose which. Contractions and recurrences have files of
their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from aot.ir import dims, expr
from aot.ir.assumed_extents import GRAIN_WORK, WORK_ON_GPU
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Load, Reduce, Var
from aot.ir.schedule import StageSchedule
from aot.kernels.ir.nodes import For, If, LoopKind, Stmt, Store
from aot.kernels.lower.borders import Borders, Corners, without_guard
from aot.kernels.lower.data_places import vector_places
from aot.kernels.lower.inline import reduces_of
from aot.kernels.lower.lane_reductions import collapsed_axes, reduce_lanes
from aot.kernels.lower.nest import (
    GRAIN,
    Axis,
    Kept,
    Nest,
    Output,
    collapse,
    combine,
    identity,
)
from aot.kernels.lower.rows import SUMS, row_of_vectors
from aot.kernels.schedules.byte_depthwise import schedule_byte_depthwise
from aot.kernels.schedules.columns import are_columns, schedule_columns
from aot.kernels.schedules.group_norms import schedule_group_norm
from aot.kernels.schedules.kept_rows import KeptRows
from aot.kernels.schedules.named_rows import schedule_named_rows
from aot.kernels.schedules.neighbours_gpu import Neighbours
from aot.kernels.schedules.packed_windows import PackedTiles, find_packed
from aot.kernels.schedules.padded import find_padded, schedule_padded
from aot.kernels.schedules.plane_pools import find_plane_pool, schedule_plane_pool
from aot.kernels.schedules.plane_windows import schedule_plane_window
from aot.kernels.schedules.pools import find_pool, schedule_pool
from aot.kernels.schedules.positions import find_position, schedule_position
from aot.kernels.schedules.resized import schedule_resized
from aot.kernels.schedules.resized_pairs import nested, written_out
from aot.kernels.schedules.row_blocks import schedule_row_blocks
from aot.kernels.schedules.tables import schedule_tables
from aot.kernels.schedules.windows import find_window, members_apart, schedule_window

# bytes between neighbouring results beyond which planes that share their lines miss the cache, as
# these are in few of its sets
FAR_RESULTS = 768
# neighbours in a row of which a vector is picked out of whole ones, a vector of rows at a time
MOST_PICKED = 4
# workgroups that are worth a GPU's while
MIN_WORKGROUPS = 8

Values = dict[Var, Expr]
ElementBody = Callable[[Values, int, Expr | None], Sequence[Stmt]]
"""Statements of one element: index values, lanes of the loop it stands in, the lane's variable."""


def lanes_over_output(
    nest: Nest,
    axes: Sequence[Axis],
    body: ElementBody,
    work: Dim = 1,
    vectors: int = 1,
    *,
    may_mask: bool = False,
) -> tuple[Stmt, ...]:
    """Loops over all `axes` with lanes along the last.

    `body(values, width, lane_var)` gives the statements of one element; with a width above 1 on a
    CPU they stand inside a VECTOR loop. On a GPU one invocation does one element.

    Args:
        work: what an element is as work: the terms of its reductions.
        vectors: how many of them a CPU does side by side: neighbours of a term lie in one line of a
            cache, and sums of their own hide an addition's latency.
        may_mask: whether lanes of a CPU's vector may be off for what is left of a row.
    """
    if nest.is_gpu:
        return _one_invocation_each(nest, axes, body)
    if not axes:
        return tuple(body({}, 1, None))
    inner, outer = axes[-1], axes[:-1]
    width = nest.lanes * vectors
    grain = GRAIN if work == 1 else _pieces_of(work, width)
    if isinstance(inner.extent, int):
        while width > 1 and width > inner.extent:
            width //= 2
    if width == 1:
        return nest.grid(axes, lambda values: body(values, 1, None), work)

    def row(values: Values, start: Expr, count: Dim) -> list[Stmt]:
        return row_of_vectors(
            *(nest, start, count, width),
            lambda at, *lane: body({**values, inner.var: at}, *lane),
            may_mask=may_mask,
            is_long=work != 1,
        )

    if _is_one_piece(inner.extent, outer, grain):
        whole = dims.multiply(inner.extent, work)
        return nest.grid(outer, lambda values: row(values, expr.index(0), inner.extent), whole)
    piece = nest.builder.var("piece")
    start = expr.mul(piece, expr.index(grain))
    end = expr.index(inner.extent)
    is_full = expr.binary("le", expr.add(start, expr.index(grain)), end)

    def rows(values: Values) -> list[Stmt]:
        whole = row(values, start, grain)
        rest = dims.modulo(inner.extent, grain)
        if rest == 0:
            return whole
        return [If(is_full, tuple(whole), tuple(row(values, start, rest)))]

    inside = nest.grid(outer, rows, dims.multiply(grain, work), first=1)
    pieces = dims.ceil_divide(inner.extent, grain)
    return (For(piece, pieces, LoopKind.WORKGROUP, inside, axis=0),)


def _pieces_of(work: Dim, width: int) -> int:
    """Elements of a workgroup, whole vectors of `width`, where each is `work`."""
    each = dims.estimate(work, GRAIN_WORK)
    return width * max(1, GRAIN // (width * max(each or 1, 1)))


def _is_one_piece(extent: Dim, outer: Sequence[Axis], grain: int) -> bool:
    """Whether a workgroup takes the innermost dim whole: it is short, or there are other dims to
    make workgroups of."""
    return extent <= 2 * grain if isinstance(extent, int) else bool(outer)


def _one_invocation_each(nest: Nest, axes: Sequence[Axis], body: ElementBody) -> tuple[Stmt, ...]:
    total = dims.product([a.extent for a in axes])
    group = nest.builder.var("g")
    size = expr.index(nest.lanes)

    def one(lane: Expr) -> list[Stmt]:
        inside: list[Stmt] = []
        whole = nest.let(expr.add(expr.mul(group, size), lane), inside, "n")
        values: Values = {}
        if axes:
            nest.decode(whole, axes, values, inside)
        inside += body(values, 1, lane)
        if dims.modulo(total, nest.lanes) == 0:
            return inside
        first = inside[0]
        return [first, If(expr.binary("lt", whole, expr.index(total)), tuple(inside[1:]))]

    return (
        For(
            group,
            dims.ceil_divide(total, nest.lanes),
            LoopKind.WORKGROUP,
            (nest.spread(nest.lanes, one),),
            axis=0,
        ),
    )


def schedule_reduction(nest: Nest, output: Output, plan: StageSchedule) -> tuple[Stmt, ...]:
    """Reductions where their inputs are known, lanes along what is contiguous.

    Of the result's axes, reductions depend on some and not on the `free` others, along which one
    value of each reduction serves all elements: a softmax's own axis, a normalisation's axes. Loops
    over these stand after the reductions, inside of the loops over the rest.
    """
    pair = nested(output)
    if pair is not None:
        resized = schedule_resized(nest, output)
        return resized or schedule_reduction(nest, written_out(output, pair[0]), plan)
    reduces, free = _reduced(output)
    if is_long_for_a_lane(nest, output):
        return _lanes_over_reduction(nest, output, reduces, free)
    if free and not nest.is_gpu:
        output = _as_memory_lies(output, reduces)
        reduces, free = _reduced(output)
        groups = schedule_group_norm(nest, output, reduces, free)
        if groups is not None:
            return groups
    position = None if free or nest.is_gpu else find_position(output, reduces)
    found = None if position is None else schedule_position(nest, output, position)
    if found is not None:
        return found
    if not free and are_columns(nest, output, reduces):
        return schedule_columns(nest, output, reduces[0])
    bytes_ = None if free else schedule_byte_depthwise(nest, output, reduces)
    if bytes_ is not None:
        return bytes_
    planes = None if free else find_plane_pool(nest, output, reduces)
    pooled = None if planes is None else schedule_plane_pool(nest, output, planes)
    if pooled is not None:
        return pooled
    named = None if free else schedule_named_rows(nest, output, reduces)
    if named is not None:
        return named
    windows = None if free else schedule_plane_window(nest, output, reduces)
    if windows is not None:
        return windows
    window = None if free else find_window(nest, output, reduces)
    if window is not None:
        pool = find_pool(nest, window)
        pooled = None if pool is None else schedule_pool(nest, output, pool)
        if pooled is not None:
            return pooled
        packed = find_packed(nest, window, plan)
        if packed is not None:
            return PackedTiles(nest, output, window, plan, packed).build()
        return schedule_window(nest, output, window, plan)
    tables = None if free else schedule_tables(nest, output, reduces)
    if tables is not None:
        return tables
    apart = None if free or nest.is_gpu else members_apart(output)
    if apart is not None:
        window = find_window(nest, apart[0], _reduced(apart[0])[0], step=apart[1])
        if window is not None:
            return schedule_window(nest, apart[0], window, plan)
    for flat in () if free else (output, *_by_planes(nest, output)):
        padded = find_padded(nest, flat, reduces)
        made = schedule_plane_window(nest, flat, reduces) if flat is not output else None
        if made is None and padded is not None:
            made = schedule_padded(nest, flat, padded)
        if made is not None:
            return made
    inner = output.axes[-1].var if output.axes else None
    depends = [r for r in reduces if inner is not None and inner in expr.free_vars(r)]
    if not _fills_lanes(nest, output, reduces, free):
        return _lanes_over_reduction(nest, output, reduces, free)
    most = 4 * nest.lanes if depends else nest.lanes // 2  # more would keep a workgroup busy
    is_short = nest.is_gpu and all(_is_short(r, most) for r in depends or reduces)
    is_narrow = bool(depends) and not nest.is_gpu and _are_narrow(nest, output, depends)
    if is_short or (depends and _prefers_output_lanes(depends, inner)):
        return _lanes_over_results(nest, output, reduces, free)
    if not is_narrow or all(map(_is_row, depends)):
        blocks = schedule_row_blocks(nest, output, reduces, free)
        if blocks is not None:
            return blocks
    lanes = _lanes_over_results if is_narrow else _lanes_over_reduction
    return lanes(nest, output, reduces, free)


def _as_memory_lies(output: Output, reduces: Sequence[Reduce]) -> Output:
    """The output with its reductions' axes in the order in which memory has them, so that lanes and
    lines of a cache are one: an image's channels may be its innermost dim."""
    orders: dict[Expr, tuple[tuple[Var, Dim], ...]] = {}
    for reduce in reduces:
        steps: dict[Var, int] = {}
        for load in expr.loads(reduce.body):
            for var, _ in reduce.axes:
                step = expr.coefficient(load.indices[0], var)
                known = None if step is None else dims.estimate(step, GRAIN_WORK)
                if known is None:
                    return output
                steps[var] = max(steps.get(var, 0), abs(known))
        axes = tuple(sorted(reduce.axes, key=lambda axis: -steps.get(axis[0], 0)))
        if axes != reduce.axes:
            orders[reduce] = axes
    memo: dict[Expr, Expr] = {}

    def go(e: Expr) -> Expr:
        if e not in memo:
            fresh = expr.rebuild(e, go)
            if isinstance(fresh, Reduce) and e in orders:
                fresh = replace(fresh, axes=orders[e])
            memo[e] = fresh
        return memo[e]

    return output.rewritten(go) if orders else output


def _by_planes(nest: Nest, output: Output) -> tuple[Output, ...]:
    """The output with its last axis around the two before it, for windows that slide over planes
    and whose results are stored channels last; nothing where a line of a plane fills no vector, or
    where a cache has lost the lines that planes share before the next plane."""
    if len(output.axes) < 3:
        return ()
    *outer, down, along, last = output.axes
    if not isinstance(along.extent, int) or along.extent < nest.lanes:
        return ()
    step = expr.coefficient(output.address, along.var)
    if not isinstance(step, int) or not isinstance(down.extent, int):
        return ()
    step *= output.values[0].dtype.bytes
    if step > FAR_RESULTS or step * along.extent * down.extent > nest.target.l2_bytes:
        return ()
    return (replace(output, axes=(*outer, last, down, along)),)


def schedule_shared_reduction(nest: Nest, output: Output) -> tuple[Stmt, ...]:
    """Reductions that a workgroup's lanes share, however short they are."""
    return _lanes_over_reduction(replace(nest, is_long=True), output, *_reduced(output))


def _reduced(output: Output) -> tuple[list[Reduce], list[Axis]]:
    """The reductions, and the result's axes on which none of them depends."""
    reduces = reduces_of(output.value)
    known = {v for r in reduces for v in expr.free_vars(r)}
    return reduces, [axis for axis in output.axes if axis.var not in known]


def _fills_lanes(
    nest: Nest, output: Output, reduces: Sequence[Reduce], free: Sequence[Axis]
) -> bool:
    """Whether a GPU's lane may do all of an element's reductions, and of the elements that they
    serve: it is not too long at it, and other lanes have as much to do."""
    if not nest.is_gpu or not free:
        return True
    if nest.is_too_long(*([n for _, n in r.axes] for r in reduces), [a.extent for a in free]):
        return False
    lanes = dims.product([a.extent for a in output.axes if a not in free])
    return (dims.estimate(lanes, WORK_ON_GPU) or 0) >= nest.lanes * MIN_WORKGROUPS or all(
        _is_short(r, 4 * nest.lanes) for r in reduces
    )


def is_long_for_a_lane(nest: Nest, output: Output) -> bool:
    """Whether the reductions of an element are more than a GPU's lane may go through."""
    return nest.is_too_long(*([n for _, n in r.axes] for r in reduces_of(output.value)))


def _is_short(reduce: Reduce, most: int) -> bool:
    """Whether a reduction surely has at most so many terms."""
    count = dims.product([n for _, n in reduce.axes])
    return isinstance(count, int) and count <= most


def _are_narrow(nest: Nest, output: Output, reduces: Sequence[Reduce]) -> bool:
    """Whether a vector has room for more taps than a reduction has along its innermost axis, and
    the result has elements to fill it."""
    for reduce in reduces:
        extents = [n for _, n in reduce.axes if n != 1]
        if extents and not (isinstance(extents[-1], int) and extents[-1] < nest.lanes):
            return False
    extent = output.axes[-1].extent if output.axes else 1
    return not isinstance(extent, int) or extent >= nest.lanes


def _is_row(reduce: Reduce) -> bool:
    """Whether a reduction's terms lie side by side, more of them than are picked out of vectors."""
    axes, _ = collapsed_axes([Axis(v, n) for v, n in reduce.axes], reduce.body)
    loads = list(expr.loads(reduce.body))
    if len(axes) != 1 or any(load.guard is not None for load in loads):
        return False
    steps = {expr.coefficient(load.indices[0], axes[0].var) for load in loads}
    return not _is_short(reduce, MOST_PICKED) and 1 in steps <= {0, 1}


def _prefers_output_lanes(reduces: list[Reduce], inner: Var | None) -> bool:
    """Whether more loads are contiguous along the result than along the reduction."""
    assert inner is not None
    along_result = along_reduction = 0
    for reduce in reduces:
        axes = [v for v, n in reduce.axes if n != 1]
        last = axes[-1] if axes else None
        for load in expr.loads(reduce.body):
            along_result += expr.coefficient(load.indices[0], inner) == 1
            along_reduction += last is not None and expr.coefficient(load.indices[0], last) == 1
            if load.guard is not None and inner in expr.free_vars(load.guard):
                along_result += 1  # windows slide along the result: keep them whole
    return along_result >= along_reduction


def _lanes_over_results(
    nest: Nest, output: Output, reduces: list[Reduce], free: Sequence[Axis]
) -> tuple[Stmt, ...]:
    """Each lane reduces for an element of its own, or for all elements along the `free` axes."""
    whole = [axis for axis in output.axes if axis not in free]
    together = None if free or len(reduces) != 1 else Neighbours.of(nest, output, whole)
    if together is not None:

        def four(values: Values, width: int, lane: Expr | None) -> list[Stmt]:
            assert lane is not None
            return together.reduced(values, reduces[0], lane)

        return lanes_over_output(nest, together.axes, four)
    axes, gone = collapse(whole, output.address, output.values)
    inside, more = collapse(free, output.address, output.values)
    gone = {**gone, **more}
    terms = dims.product([n for r in reduces[:1] for _, n in r.axes])
    is_plain = all(load.guard is None for r in reduces for load in expr.loads(r.body))
    vectors = SUMS if is_plain and not nest.is_gpu else 1
    side_by_side = nest.lanes * vectors
    if axes and isinstance(axes[-1].extent, int):
        side_by_side = min(side_by_side, axes[-1].extent)
    kept = KeptRows(nest, output, reduces, free, side_by_side)

    def body(values: Values, width: int, lane: Expr | None) -> list[Stmt]:
        values = {**gone, **values}
        stmts: list[Stmt] = []
        done: dict[Expr, Expr] = {}
        for reduce in reduces:
            along = axes[-1].var if axes else None
            lanes = None if lane is None else (along, lane, width)
            term = kept.body(reduce, done, lane)
            places = None if along is None else vector_places(nest, along)
            if places is not None and lane is not None and not term[1]:
                term = places(term[0]), []
            loops, value = _reduce_here(nest, reduce, term, values, lanes)
            stmts += loops
            done[reduce] = value
        done |= kept.loaded(None, lane)

        def store(more: Values) -> list[Stmt]:
            return output.stores(nest, {**values, **more}, done.get)

        return stmts + nest.inside(inside, {}, store)

    return lanes_over_output(nest, axes, body, terms, vectors)


def _reduce_here(
    nest: Nest,
    reduce: Reduce,
    term: tuple[Expr, Sequence[Kept]],
    values: Values,
    lanes: tuple[Var | None, Expr, int] | None,
) -> tuple[list[Stmt], Expr]:
    """A reduction inside a lane: one accumulator per lane, serial loops.

    `term` is what is reduced, and what is kept of it; `lanes` are the index that runs along them,
    the lane and how many there are. Where none of a vector's guards fails none is asked.
    """
    body, kept = term
    width = nest.lanes if nest.is_gpu or lanes is None else lanes[2]
    slot = expr.index(0) if lanes is None else lanes[1]
    # what is kept is found in the body as it is
    asked = None if kept else lanes
    borders, corners = _borders(nest, replace(reduce, body=body), values, asked)
    sums = 1 if lanes is None or corners is not None else _sums_apart(nest, reduce, width)
    acc = nest.builder.scratch("acc", reduce.dtype, (1 if lanes is None else sums * width,))

    def at(n: int) -> Expr:
        """The place of a lane's `n`th sum."""
        return expr.add(expr.index(n * width), slot)

    first = identity(reduce.op, reduce.dtype)
    stmts: list[Stmt] = [Store(acc, (at(n),), first) for n in range(sums)]

    def add(body: Expr, indices: Values, n: int = 0) -> list[Stmt]:
        stored, value = nest.keep(kept, body, {**values, **indices})
        total = combine(reduce.op, Load(acc, (at(n),), reduce.dtype), value)
        return [*stored, Store(acc, (at(n),), total)]

    def several(outer: Values) -> list[Stmt]:
        """The terms along the innermost axis, which the sums have in turn."""
        var, extent = reduce.axes[-1]

        def term(start: Expr, n: int) -> list[Stmt]:
            return add(body, {**outer, var: expr.add(start, expr.index(n))}, n)

        whole = dims.floor_divide(extent, sums)
        done = expr.index(dims.multiply(whole, sums))
        return nest.serial(
            whole,
            lambda i: [
                stmt for n in range(sums) for stmt in term(expr.mul(i, expr.index(sums)), n)
            ],
            var.name,
        ) + nest.serial(dims.modulo(extent, sums), lambda i: term(expr.add(done, i), 0), var.name)

    def loops(
        axes: Sequence[tuple[Var, Dim]],
        indices: Values,
        left: Sequence[Expr],
        term: Callable[[Values], list[Stmt]],
    ) -> list[Stmt]:
        known = [c for c in left if not expr.free_vars(c) & {v for v, _ in axes}]
        if known:
            others = [c for c in left if c not in known]
            held = expr.all_of(expr.substitute(c, {**values, **indices}) for c in known)
            assert held is not None
            return [If(held, tuple(loops(axes, indices, others, term)))]
        if not axes:
            return term(indices)
        (var, extent), rest = axes[0], axes[1:]
        return nest.serial(extent, lambda i: loops(rest, {**indices, var: i}, left, term), var.name)

    total = Load(acc, (slot,), reduce.dtype)
    if sums > 1:
        stmts += nest.inside([Axis(v, n) for v, n in reduce.axes[:-1]], {}, several)
        for n in range(1, sums):
            other = Load(acc, (at(n),), reduce.dtype)
            stmts.append(Store(acc, (slot,), combine(reduce.op, total, other)))
        return stmts, total
    inside = None if corners is None else borders.inside(corners, values)
    if corners is None or inside is None:
        return [*stmts, *loops(reduce.axes, {}, (), partial(add, body))], total
    free, asking = expr.transform(body, without_guard), borders.asking(body)
    taps = {v for v, _ in reduce.axes}
    ends = {v: corner for v, corner in corners.items() if v not in taps}

    def either(indices: Values) -> list[Stmt]:
        """A tap of a vector at the border, which is outside for some lanes at some taps only."""
        here = borders.inside(ends, {**values, **indices})
        assert here is not None
        return [If(here, tuple(add(free, indices)), tuple(add(asking, indices)))]

    fast = loops(reduce.axes, {}, borders.skipped, partial(add, free))
    slow = loops(reduce.axes, {}, borders.skipped, either)
    return [*stmts, If(inside, tuple(fast), tuple(slow))], total


def _sums_apart(nest: Nest, reduce: Reduce, width: int) -> int:
    """How many sums a lane has, of vectors so wide: few of them alone would wait for each other,
    if there are terms enough along the innermost axis and none is left out."""
    extent = reduce.axes[-1][1]
    is_plain = all(load.guard is None for load in expr.loads(reduce.body))
    if nest.is_gpu or not is_plain or not isinstance(extent, int):
        return 1
    sums = max(1, SUMS * nest.lanes // max(width, nest.lanes))
    return sums if extent >= 2 * sums else 1


def _borders(
    nest: Nest, reduce: Reduce, values: Values, lanes: tuple[Var | None, Expr, int] | None
) -> tuple[Borders, Corners | None]:
    """The conditions of a reduction's guards, and the corners of a whole vector's taps, which those
    that are not alike in it are asked of; None where that can't be asked."""
    along, lane, width = lanes or (None, None, 0)
    if along is None or nest.is_gpu or not isinstance(lane, Var):
        return Borders((), ()), None
    axes = [v for v, n in reduce.axes if n != 1]
    borders = Borders.of(reduce, [along, *axes[-1:]])
    ends = (expr.index(0), expr.index(width - 1))
    low, high = (expr.substitute(values[along], {lane: end}) for end in ends)
    corners = {along: (low, high)}
    for v, n in reduce.axes:
        corners[v] = expr.index(0), expr.index(dims.add(n, -1))
    if not borders.asked or not borders.are_linear_in(corners):
        return borders, None
    return borders, corners


def _lanes_over_reduction(
    nest: Nest, output: Output, reduces: list[Reduce], free: Sequence[Axis]
) -> tuple[Stmt, ...]:
    """Lanes along the reduced dim; the result dims `free`, of which no reduction knows, are a loop
    after it."""
    outer = [axis for axis in output.axes if axis not in free]
    work: Dim = dims.product([n for r in reduces[:1] for _, n in r.axes])
    rows, gone = collapse(free, output.address, output.values)
    kept = KeptRows(nest, output, reduces, free)

    def row(values: Values) -> list[Stmt]:
        stmts: list[Stmt] = []
        done: dict[Expr, Expr] = {}
        for reduce in reduces:
            body, stored = kept.body(reduce, done)
            loops, value = reduce_lanes(nest, reduce, body, values, stored)
            stmts += loops
            done[reduce] = value
        done |= kept.loaded(None)

        def store(more: Values) -> list[Stmt]:
            return output.stores(nest, {**gone, **values, **more}, done.get)

        if rows:
            return stmts + _rows_of_stores(nest, rows, store)
        if nest.is_gpu:
            return [
                *stmts,
                nest.spread(
                    nest.lanes,
                    lambda lane: [If(expr.binary("eq", lane, expr.index(0)), tuple(store({})))],
                ),
            ]
        return stmts + store({})

    return nest.grid(outer, row, work)


def _rows_of_stores(
    nest: Nest, axes: Sequence[Axis], store: Callable[[Values], Sequence[Stmt]]
) -> list[Stmt]:
    """The elements along `axes`: the innermost in vectors, or all of them spread over a GPU's
    lanes."""
    if len(axes) == 1:
        return _row_of_stores(nest, axes[0], store)
    if not nest.is_gpu:
        inner = axes[-1]

        def row(outer: Values) -> list[Stmt]:
            return _row_of_stores(nest, inner, lambda more: store({**outer, **more}))

        return nest.inside(axes[:-1], {}, row)
    whole = Axis(nest.builder.var("row"), dims.product([axis.extent for axis in axes]))

    def decoded(values: Values) -> list[Stmt]:
        inside: list[Stmt] = []
        apart: Values = {}
        nest.decode(values[whole.var], axes, apart, inside)
        return [*inside, *store(apart)]

    return _row_of_stores(nest, whole, decoded)


def _row_of_stores(nest: Nest, axis: Axis, store: Callable[[Values], Sequence[Stmt]]) -> list[Stmt]:
    """The elements of one row, spread over lanes."""
    width = nest.lanes
    if nest.is_gpu:

        def strided(o: Expr, lane: Expr) -> list[Stmt]:
            at = expr.add(expr.mul(o, expr.index(width)), lane)
            stmts = store({axis.var: at})
            if dims.modulo(axis.extent, width) == 0:
                return list(stmts)
            return [If(expr.binary("lt", at, expr.index(axis.extent)), tuple(stmts))]

        return nest.serial(
            dims.ceil_divide(axis.extent, width),
            lambda o: [nest.spread(width, lambda lane: strided(o, lane))],
            "o",
        )
    return row_of_vectors(
        nest, expr.index(0), axis.extent, width, lambda at, *_: store({axis.var: at})
    )
