"""Reductions fused with their consumers, with lanes along the results or along the terms.

Of the result's axes, reductions depend on some and not on the free others, along which one value of
each reduction serves all elements. Loops over these stand after the reductions, inside of the loops
over the rest. Owns the fallback of all rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.assumed_extents import WORK_ON_GPU
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Load, Reduce, Var
from aot.kernels.ir.nodes import If, Scratch, Stmt, Store
from aot.kernels.match.reduced import Reduced
from aot.kernels.match.work import Build, Loops, Work, is_long_for_a_lane
from aot.kernels.nest.borders import Borders, Corners, without_guard
from aot.kernels.nest.data_places import vector_places
from aot.kernels.nest.lane_reductions import collapsed_axes, reduce_lanes
from aot.kernels.nest.nest import (
    Axis,
    Kept,
    Nest,
    Output,
    Values,
    collapse,
    combine,
    identity,
)
from aot.kernels.nest.over_output import lanes_over_output
from aot.kernels.nest.rows import SUMS, row_of_vectors
from aot.kernels.rules.elementwise.neighbours_gpu import Neighbours
from aot.kernels.rules.reductions.kept_rows import KeptRows
from aot.kernels.rules.reductions.row_blocks import schedule_row_blocks

# neighbours in a row of which a vector is picked out of whole ones, a vector of rows at a time
MOST_PICKED = 4
# workgroups that are worth a GPU's while
MIN_WORKGROUPS = 8


def schedule_long_terms(work: Work) -> Build | None:
    """Loops in which a GPU's lanes share the terms of reductions that have too many for
    one lane.
    """
    nest, found = work.nest, work.reduced
    if not is_long_for_a_lane(nest, found.output):
        return None
    return partial(_lanes_over_reduction, nest, *found.parts)


def schedule_few_results(work: Work) -> Build | None:
    """Loops in which a GPU's lanes share the terms of each reduction; None if one result per lane
    already fills the lanes.
    """
    if _fills_lanes(work.nest, *work.reduced.parts):
        return None
    return partial(_lanes_over_reduction, work.nest, *work.reduced.parts)


def schedule_results(work: Work) -> Build | None:
    """Loops in which each lane computes its own result, where reductions are short or loads are
    contiguous along the results; else None.
    """
    nest, (output, reduces, free) = work.nest, work.reduced.parts
    inner = output.axes[-1].var if output.axes else None
    depends = _depending(work.reduced)
    most = 4 * nest.lanes if depends else nest.lanes // 2  # more would keep a workgroup busy
    is_short = nest.is_gpu and all(_is_short(r, most) for r in depends or reduces)
    if is_short or (depends and _prefers_output_lanes(depends, inner)):
        return partial(_lanes_over_results, nest, output, reduces, free)
    return None


def schedule_blocks_of_rows(work: Work) -> Build | None:
    """Loops over blocks of rows, with a vector of rows at a time; None where rows are shorter than
    a vector and not contiguous.
    """
    if _has_narrow_rows(work) and not all(map(_is_row, _depending(work.reduced))):
        return None
    return schedule_row_blocks(work)


def schedule_narrow_rows(work: Work) -> Build | None:
    """Loops in which each lane computes its own result, where a CPU's rows are shorter than a
    vector; else None.
    """
    return (
        partial(_lanes_over_results, work.nest, *work.reduced.parts)
        if _has_narrow_rows(work)
        else None
    )


def schedule_terms(work: Work) -> Build:
    """Loops in which a GPU's lanes share the terms of any reduction."""
    return partial(_lanes_over_reduction, work.nest, *work.reduced.parts)


# the name of the loops that a kernel may have beside its usual ones
SHARED = "reductions/shared"


def schedule_shared_reduction(nest: Nest, output: Output) -> Loops:
    """The loops of reductions that a workgroup's lanes share, even if they are short."""
    return _lanes_over_reduction(replace(nest, is_long=True), *Reduced.of(output).parts)


def _depending(found: Reduced) -> list[Reduce]:
    """The reductions that differ along the result's innermost axis."""
    inner = found.output.axes[-1].var if found.output.axes else None
    return [r for r in found.reduces if inner is not None and inner in expr.free_vars(r)]


def _has_narrow_rows(work: Work) -> bool:
    """Whether a CPU's vector is longer than each reduction's rows."""
    depends = _depending(work.reduced)
    return (
        bool(depends)
        and not work.nest.is_gpu
        and _are_narrow(work.nest, work.reduced.output, depends)
    )


def _fills_lanes(
    nest: Nest, output: Output, reduces: Sequence[Reduce], free: Sequence[Axis]
) -> bool:
    """Whether one GPU lane may compute an element's reductions and all elements that share them: it
    is not too much work, and enough other lanes are busy."""
    if not nest.is_gpu or not free:
        return True
    if nest.is_too_long(*([n for _, n in r.axes] for r in reduces), [a.extent for a in free]):
        return False
    lanes = dims.product([a.extent for a in output.axes if a not in free])
    return (dims.estimate(lanes, WORK_ON_GPU) or 0) >= nest.lanes * MIN_WORKGROUPS or all(
        _is_short(r, 4 * nest.lanes) for r in reduces
    )


def _is_short(reduce: Reduce, most: int) -> bool:
    """Whether a reduction has a known number of terms, at most `most`."""
    count = dims.product([n for _, n in reduce.axes])
    return isinstance(count, int) and count <= most


def _are_narrow(nest: Nest, output: Output, reduces: Sequence[Reduce]) -> bool:
    """Whether vectors are longer than the innermost axis of each reduction, and the result is wide
    enough to fill one."""
    for reduce in reduces:
        extents = [n for _, n in reduce.axes if n != 1]
        if extents and not (isinstance(extents[-1], int) and extents[-1] < nest.lanes):
            return False
    extent = output.axes[-1].extent if output.axes else 1
    return not isinstance(extent, int) or extent >= nest.lanes


def _is_row(reduce: Reduce) -> bool:
    """Whether a reduction's terms are contiguous in memory, and too many to be shuffled out of
    loaded vectors.
    """
    axes, _ = collapsed_axes([Axis(v, n) for v, n in reduce.axes], reduce.body)
    loads = list(expr.loads(reduce.body))
    if len(axes) != 1 or any(load.guard is not None for load in loads):
        return False
    steps = {expr.coefficient(load.indices[0], axes[0].var) for load in loads}
    return not _is_short(reduce, MOST_PICKED) and 1 in steps <= {0, 1}


def _prefers_output_lanes(reduces: Sequence[Reduce], inner: Var | None) -> bool:
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
    nest: Nest, output: Output, reduces: Sequence[Reduce], free: Sequence[Axis]
) -> tuple[Stmt, ...]:
    """Loops in which each lane reduces for its own element, or for all elements along the `free`
    axes."""
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


@dataclass(frozen=True)
class _Accumulators:
    """The accumulators in scratch of a reduction whose terms one lane reads.

    Attributes:
        kept: the loads of a term whose values are stored too.
        values: of the variables around the reduction.
        acc: `sums * width` accumulators.
        slot: this lane's place among the `width` that a vector has.
    """

    nest: Nest
    reduce: Reduce
    kept: Sequence[Kept]
    values: Values
    acc: Scratch
    slot: Expr
    width: int

    def at(self, n: int) -> Expr:
        """The index of a lane's `n`th accumulator."""
        return expr.add(expr.index(n * self.width), self.slot)

    def loaded(self, n: int) -> Load:
        return Load(self.acc, (self.at(n),), self.reduce.dtype)

    def add(self, body: Expr, indices: Values, n: int = 0) -> list[Stmt]:
        """Statements that add a term, `body` at `indices`, to the `n`th accumulator."""
        stored, value = self.nest.keep(self.kept, body, {**self.values, **indices})
        total = combine(self.reduce.op, self.loaded(n), value)
        return [*stored, Store(self.acc, (self.at(n),), total)]

    def in_rotation(self, sums: int) -> tuple[list[Stmt], Expr]:
        """Loops over all terms, of which neighbours along the innermost axis go to different ones
        of `sums` accumulators, and their total."""
        nest, (var, extent) = self.nest, self.reduce.axes[-1]
        whole = dims.floor_divide(extent, sums)
        done = expr.index(dims.multiply(whole, sums))

        def several(outer: Values) -> list[Stmt]:
            def term(start: Expr, n: int) -> list[Stmt]:
                at = expr.add(start, expr.index(n))
                return self.add(self.reduce.body, {**outer, var: at}, n)

            def round_of_terms(i: Expr) -> list[Stmt]:
                each = (term(expr.mul(i, expr.index(sums)), n) for n in range(sums))
                return [stmt for stmts in each for stmt in stmts]

            rounds = nest.serial(whole, round_of_terms, var.name)
            left = dims.modulo(extent, sums)
            return rounds + nest.serial(left, lambda i: term(expr.add(done, i), 0), var.name)

        stmts = nest.inside([Axis(v, n) for v, n in self.reduce.axes[:-1]], {}, several)
        total = Load(self.acc, (self.slot,), self.reduce.dtype)
        for n in range(1, sums):
            both = combine(self.reduce.op, total, self.loaded(n))
            stmts.append(Store(self.acc, (self.slot,), both))
        return stmts, total

    def loops(self, skipped: Sequence[Expr], term: Callable[[Values], list[Stmt]]) -> list[Stmt]:
        """Serial loops over all terms; each of the `skipped` conditions is asked as soon as its
        indices are known."""

        def over(
            axes: Sequence[tuple[Var, Dim]], indices: Values, left: Sequence[Expr]
        ) -> list[Stmt]:
            known = [c for c in left if not expr.free_vars(c) & {v for v, _ in axes}]
            if known:
                others = [c for c in left if c not in known]
                found = {**self.values, **indices}
                held = expr.all_of(expr.substitute(c, found) for c in known)
                assert held is not None
                return [If(held, tuple(over(axes, indices, others)))]
            if not axes:
                return term(indices)
            (var, extent), rest = axes[0], axes[1:]
            return self.nest.serial(
                extent, lambda i: over(rest, {**indices, var: i}, left), var.name
            )

        return over(self.reduce.axes, {}, skipped)


def _reduce_here(
    nest: Nest,
    reduce: Reduce,
    term: tuple[Expr, Sequence[Kept]],
    values: Values,
    lanes: tuple[Var | None, Expr, int] | None,
) -> tuple[list[Stmt], Expr]:
    """(statements, result) of a reduction within one lane: serial loops, with an accumulator per
    lane.

    `term` is what is reduced, and what is kept of it; `lanes` are the index that runs along them,
    the lane and how many there are. Where none of a vector's guards fails none is asked.
    """
    body, kept = term
    width = nest.lanes if nest.is_gpu or lanes is None else lanes[2]
    slot = expr.index(0) if lanes is None else lanes[1]
    # what is kept is found in the body as it is
    asked = None if kept else lanes
    here = replace(reduce, body=body)
    borders, corners = _borders(nest, here, values, asked)
    sums = 1 if lanes is None or corners is not None else _sums_apart(nest, reduce, width)
    acc = nest.builder.scratch("acc", reduce.dtype, (1 if lanes is None else sums * width,))
    to = _Accumulators(nest, here, kept, values, acc, slot, width)
    first = identity(reduce.op, reduce.dtype)
    stmts: list[Stmt] = [Store(acc, (to.at(n),), first) for n in range(sums)]
    if sums > 1:
        loops, total = to.in_rotation(sums)
        return [*stmts, *loops], total
    total = Load(acc, (slot,), reduce.dtype)
    if corners is None or (inside := borders.inside(corners, values)) is None:
        return [*stmts, *to.loops((), partial(to.add, body))], total
    return [*stmts, _by_borders(to, borders, corners, inside)], total


def _by_borders(to: _Accumulators, borders: Borders, corners: Corners, inside: Expr) -> Stmt:
    """The loops of a vector of windows: without guards if all windows are `inside`; else taps with
    a corner outside are guarded."""
    body = to.reduce.body
    free, asking = expr.transform(body, without_guard), borders.asking(body)
    taps = {v for v, _ in to.reduce.axes}
    ends = {v: corner for v, corner in corners.items() if v not in taps}

    def either(indices: Values) -> list[Stmt]:
        here = borders.inside(ends, {**to.values, **indices})
        assert here is not None
        return [If(here, tuple(to.add(free, indices)), tuple(to.add(asking, indices)))]

    fast = to.loops(borders.skipped, partial(to.add, free))
    return If(inside, tuple(fast), tuple(to.loops(borders.skipped, either)))


def _sums_apart(nest: Nest, reduce: Reduce, width: int) -> int:
    """The number of accumulators per lane for vectors of `width`, which hides the latency of
    additions; 1 if terms are few or guarded."""
    extent = reduce.axes[-1][1]
    is_plain = all(load.guard is None for load in expr.loads(reduce.body))
    if nest.is_gpu or not is_plain or not isinstance(extent, int):
        return 1
    sums = max(1, SUMS * nest.lanes // max(width, nest.lanes))
    return sums if extent >= 2 * sums else 1


def _borders(
    nest: Nest, reduce: Reduce, values: Values, lanes: tuple[Var | None, Expr, int] | None
) -> tuple[Borders, Corners | None]:
    """(border conditions of a reduction's guards, corners of a whole vector's taps at which to
    check them); the corners are None where one check per vector is not possible.
    """
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
    nest: Nest, output: Output, reduces: Sequence[Reduce], free: Sequence[Axis]
) -> tuple[Stmt, ...]:
    """Loops with lanes along the reduced dims; the `free` dims, on which no reduction depends, get
    a loop afterwards."""
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
    """Stores of all elements along `axes`: the innermost in vectors on a CPU, all spread over a
    GPU's lanes."""
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
