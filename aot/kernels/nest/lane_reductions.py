"""Builds reductions to a single value, with their terms distributed over a vector's or workgroup's
lanes.

Owns how terms are dealt out and what lanes have is combined; which reductions are done like that is
a schedule's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from aot.analysis.cost.recompute import operation_cost
from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.expr import Binary, Expr, Fma, Load, Reduce, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import COMBINE_OPS, Barrier, Combine, If, Scratch, Space, Stmt, Store
from aot.kernels.nest.nest import COMBINE, Axis, Kept, Nest, collapse, combine, identity
from aot.kernels.nest.rows import SUMS, row_of_vectors

# reductions whose terms may be taken again
IDEMPOTENT = frozenset({"max", "min", "greatest", "least", "and", "or"})
# operations of a term beside which the latency of adding it to a sum is seen
QUICK = 8


def over_lanes(nest: Nest, width: int, body: Callable[[Expr], Sequence[Stmt]]) -> list[Stmt]:
    """A loop over `width` lanes; on a CPU a single lane needs no loop."""
    if width == 1 and not nest.is_gpu:
        return list(body(expr.index(0)))
    return [nest.spread(width, body)]


def reduce_lanes(
    nest: Nest, reduce: Reduce, body: Expr, values: dict[Var, Expr], kept: Sequence[Kept] = ()
) -> tuple[list[Stmt], Expr]:
    """Statements and value of a reduction whose innermost axis is distributed over lanes.

    Args:
        kept: what is stored on the way, on a CPU.
    """
    if nest.is_gpu:
        axes, gone = collapsed_axes([Axis(v, n) for v, n in reduce.axes], body)
        return _reduce_workgroup(nest, reduce, body, {**gone, **values}, axes)
    stmts, acc, width = terms_in_lanes(nest, reduce, body, values, kept)
    stmts += halved(nest, reduce.op, acc, width, 1)
    return stmts, nest.let(Load(acc, (expr.index(0),), reduce.dtype), stmts, "r")


@dataclass(frozen=True)
class _Terms:
    """The terms of a row, which the vector lanes of a CPU read.

    Attributes:
        inner: the axis that runs along the lanes.
        acc: an accumulator for each lane.
        sums: accumulators to which all terms are added too, if any.
    """

    nest: Nest
    reduce: Reduce
    body: Expr
    values: dict[Var, Expr]
    kept: Sequence[Kept]
    inner: Axis
    acc: Scratch
    sums: Scratch | None

    def _term(self, lane: Expr, indices: dict[Var, Expr]) -> tuple[list[Stmt], Expr]:
        stmts, value = self.nest.keep(self.kept, self.body, {**self.values, **indices})
        if self.sums is not None:
            value = self.nest.let(value, stmts, "term")
            total = Load(self.sums, (lane,), self.sums.dtype)
            stmts.append(Store(self.sums, (lane,), expr.add(total, value)))
        return stmts, value

    def first(self, lane: Expr) -> list[Stmt]:
        """Statements that store a lane's first term."""
        stmts, value = self._term(lane, {self.inner.var: lane})
        return [*stmts, Store(self.acc, (lane,), value)]

    def more(self, lane: Expr, indices: dict[Var, Expr]) -> list[Stmt]:
        """Statements that add the term at `indices` to a lane's accumulator."""
        stmts, value = self._term(lane, indices)
        total = added(self.reduce.op, Load(self.acc, (lane,), self.reduce.dtype), value)
        return [*stmts, Store(self.acc, (lane,), total)]

    def along_inner(self, outer: dict[Var, Expr]) -> list[Stmt]:
        """Loops over the inner axis, at the indices `outer` of the others."""
        zero = expr.index(0)
        return row_of_vectors(
            self.nest,
            zero,
            self.inner.extent,
            self.acc.shape[0],
            lambda at, _, lane: self.more(lane or zero, {**outer, self.inner.var: at}),
        )


def terms_in_lanes(
    nest: Nest,
    reduce: Reduce,
    body: Expr,
    values: dict[Var, Expr],
    kept: Sequence[Kept] = (),
    most: int | None = None,
    seen: Callable[[int], Scratch] | None = None,
) -> tuple[list[Stmt], Scratch, int]:
    """(statements, scratch of partial results, their number): reduces a row in a CPU's vector lanes
    down to `most` partial results.

    Args:
        seen: given how many lanes there are, to which sums of theirs all terms are added too.
    """
    axes, gone = collapsed_axes([Axis(v, n) for v, n in reduce.axes], body)
    values = {**gone, **values}
    inner = axes[-1]
    width = nest.lanes * (SUMS if _is_quick(body, [a.var for a in axes]) else 1)
    if isinstance(inner.extent, int):
        while width > 1 and width > inner.extent:
            width //= 2
    elif len(axes) > 1:
        width = nest.lanes  # of rows that may be short
    acc = nest.builder.scratch("acc", reduce.dtype, (width,))
    left = min(width, nest.lanes if most is None else most)
    sums = None if seen is None else seen(width)
    parts = _rows_together(axes, nest.lanes * SUMS // width) if not kept and most is None else 1
    if parts > 1:
        return _rows_apart(nest, reduce, body, values, axes, (width, parts))
    terms = _Terms(nest, reduce, body, values, kept, inner, acc, sums)
    if len(axes) > 1 or not isinstance(inner.extent, int) or inner.extent == 0:
        nothing = identity(reduce.op, reduce.dtype)
        stmts = over_lanes(nest, width, lambda lane: [Store(acc, (lane,), nothing)])
        stmts += nest.inside(axes[:-1], {}, terms.along_inner)
        return stmts + halved(nest, reduce.op, acc, width, left), acc, left
    stmts = over_lanes(nest, width, terms.first)
    stmts += _by_vectors(nest, reduce, acc, left, inner, terms.more)
    return stmts, acc, left


def _by_vectors(
    nest: Nest,
    reduce: Reduce,
    acc: Scratch,
    left: int,
    inner: Axis,
    more: Callable[[Expr, dict[Var, Expr]], list[Stmt]],
) -> list[Stmt]:
    """Adds the terms after a row's first vector, which is in `acc`: whole vectors first, then
    narrower ones after `acc` is combined to their width."""
    stmts: list[Stmt] = []
    (width,), extent = acc.shape, inner.count
    at = width
    while at < extent:
        rest = extent - at
        wide = min(width, _power_below(rest))
        if reduce.op in IDEMPOTENT and rest < width and (wide < rest or wide < left):
            # one vector of the last elements, some of which have been seen
            wide = max(left, wide if wide == rest else 2 * wide)
            at = extent - wide
        count = (extent - at) // wide

        def vector(o: Expr, begin: int = at, wide: int = wide) -> list[Stmt]:
            start = expr.add(expr.index(begin), expr.mul(o, expr.index(wide)))
            return over_lanes(nest, wide, lambda n: more(n, {inner.var: expr.add(start, n)}))

        narrow = max(wide, left)
        if narrow < width:
            stmts += halved(nest, reduce.op, acc, width, narrow)
            width = narrow
        stmts += nest.serial(count, vector, "o")
        at += count * wide
    return stmts + halved(nest, reduce.op, acc, width, left)


def _rows_together(axes: Sequence[Axis], most: int) -> int:
    """The number of short rows with separate accumulators, which avoid a chain of dependent
    additions: a power of two that divides the number of rows.
    """
    count = axes[-2].extent if len(axes) > 1 else 1
    parts = 1
    while 2 * parts <= most and isinstance(count, int) and count and count % (2 * parts) == 0:
        parts *= 2
    return parts


def _rows_apart(
    nest: Nest,
    reduce: Reduce,
    body: Expr,
    values: dict[Var, Expr],
    axes: Sequence[Axis],
    shape: tuple[int, int],
) -> tuple[list[Stmt], Scratch, int]:
    """`terms_in_lanes` for short rows: consecutive rows use different accumulators in rotation.

    Args:
        shape: the lanes of a row, and how many rows have sums.
    """
    (width, parts), (*outer, across, inner) = shape, axes
    acc = nest.builder.scratch("acc", reduce.dtype, (parts * width,))
    nothing = identity(reduce.op, reduce.dtype)

    def row(indices: dict[Var, Expr], part: int) -> list[Stmt]:
        at = expr.mul(indices[across.var], expr.index(parts))
        indices = {**indices, across.var: expr.add(at, expr.index(part))}

        def one(place: Expr, _: int, lane: Expr | None) -> list[Stmt]:
            slot = expr.add(expr.index(part * width), lane or expr.index(0))
            term = expr.substitute(body, {**values, **indices, inner.var: place})
            total = added(reduce.op, Load(acc, (slot,), reduce.dtype), term)
            return [Store(acc, (slot,), total)]

        return row_of_vectors(nest, expr.index(0), inner.extent, width, one)

    def rows(indices: dict[Var, Expr]) -> list[Stmt]:
        return [stmt for part in range(parts) for stmt in row(indices, part)]

    turns = Axis(across.var, dims.floor_divide(across.extent, parts))
    stmts = over_lanes(nest, parts * width, lambda lane: [Store(acc, (lane,), nothing)])
    stmts += nest.inside([*outer, turns], {}, rows)
    left = min(parts * width, nest.lanes)
    return stmts + halved(nest, reduce.op, acc, parts * width, left), acc, left


def _power_below(n: int) -> int:
    """The largest power of two that is at most `n`."""
    return 1 << (n.bit_length() - 1)


def added(op: str, total: Expr, term: Expr) -> Expr:
    """A reduction's accumulator combined with one more term; products are added by a fused
    multiply-add.
    """
    if op == "sum" and isinstance(term, Binary) and term.op == "mul" and total.dtype.is_float:
        return Fma(term.a, term.b, total, total.dtype)
    return combine(op, total, term)


def halved(nest: Nest, op: str, acc: Scratch, width: int, left: int) -> list[Stmt]:
    """Combines the upper half of `width` accumulator lanes into the lower, until `left` lanes
    remain."""
    stmts: list[Stmt] = []
    half = width // 2
    while half >= left:
        offset = expr.index(half)
        stmts += over_lanes(
            nest,
            half,
            lambda lane, offset=offset: [  # type: ignore[misc]
                Store(
                    acc,
                    (lane,),
                    combine(
                        op,
                        Load(acc, (lane,), acc.dtype),
                        Load(acc, (expr.add(lane, offset),), acc.dtype),
                    ),
                )
            ],
        )
        half //= 2
    return stmts


def collapsed_axes(axes: list[Axis], body: Expr) -> tuple[list[Axis], dict[Var, Expr]]:
    """(loops, substitutions): a reduction's loops after merging those that every access walks as
    one, and expressions for the variables merged away.
    """
    kept = [a for a in axes if a.extent != 1] or axes[-1:]
    gone: dict[Var, Expr] = {a.var: expr.index(0) for a in axes if a not in kept}
    merged, more = collapse(kept, expr.index(0), [body])
    # an address without any of the variables agrees with every merge
    return list(merged), {**gone, **more}


def _has_subgroups(nest: Nest, dtype: DType) -> bool:
    """Whether the target combines values of `dtype` across the lanes of a subgroup."""
    gpu = nest.target.gpu
    return (
        gpu is not None
        and "arithmetic" in gpu.subgroup_operations
        and dtype in (DType.F32, DType.I32, DType.U32)
    )


def _reduce_workgroup(
    nest: Nest, reduce: Reduce, body: Expr, values: dict[Var, Expr], axes: list[Axis]
) -> tuple[list[Stmt], Expr]:
    """A workgroup's reduction: lanes stride over the innermost axis, then subgroup operations or a
    tree in shared memory combine their partial results."""
    inner, width = axes[-1], nest.lanes
    outer = axes[:-1]
    apart: Sequence[Axis] = ()
    rounds = dims.ceil_divide(inner.extent, width)
    if nest.is_too_long([*(axis.extent for axis in outer), rounds]):
        apart, outer = axes, []
        whole = dims.product([a.extent for a in axes])
        inner = Axis(nest.builder.var("whole"), whole)
    acc = nest.builder.scratch("acc", reduce.dtype, (width,))
    op = COMBINE[reduce.op]
    uses_subgroups = op in COMBINE_OPS and _has_subgroups(nest, reduce.dtype)
    # a float's extremum is one of integers in the same order
    is_ordered = uses_subgroups and reduce.dtype.is_float and op in ("max", "min")
    dtype = DType.U32 if is_ordered else reduce.dtype
    shared = nest.builder.scratch("shared", dtype, (width,), Space.WORKGROUP)
    stmts: list[Stmt] = [
        nest.spread(width, lambda lane: [Store(acc, (lane,), identity(reduce.op, reduce.dtype))])
    ]

    def rows(indices: dict[Var, Expr]) -> list[Stmt]:
        def one(o: Expr, lane: Expr) -> list[Stmt]:
            at = expr.add(expr.mul(o, expr.index(width)), lane)
            here, update = {**values, **indices, inner.var: at}, list[Stmt]()
            if apart:
                nest.decode(at, apart, here, update)
            term = combine(reduce.op, Load(acc, (lane,), reduce.dtype), expr.substitute(body, here))
            update.append(Store(acc, (lane,), term))
            if dims.modulo(inner.extent, width) == 0:
                return update
            return [If(expr.binary("lt", at, expr.index(inner.extent)), tuple(update))]

        return nest.serial(
            dims.ceil_divide(inner.extent, width),
            lambda o: [nest.spread(width, lambda lane: one(o, lane))],
            "o",
        )

    stmts += nest.inside(outer, {}, rows)
    if uses_subgroups:
        lane, made = nest.builder.var("l"), nest.builder.var("r", reduce.dtype)
        value = Load(acc, (lane,), reduce.dtype)
        return [*stmts, Combine(made, op, lane, width, value, shared)], made
    stmts += _by_a_tree(nest, reduce, acc, shared)
    return stmts, nest.let(Load(shared, (expr.index(0),), reduce.dtype), stmts, "r")


def _by_a_tree(nest: Nest, reduce: Reduce, acc: Scratch, shared: Scratch) -> list[Stmt]:
    """Statements that combine the lanes' values in `acc` by a tree, into the first element of
    shared memory.
    """
    width = nest.lanes

    def copied(lane: Expr) -> list[Stmt]:
        return [Store(shared, (lane,), Load(acc, (lane,), reduce.dtype))]

    def halved_at(lane: Expr, offset: Expr) -> list[Stmt]:
        a = Load(shared, (lane,), reduce.dtype)
        b = Load(shared, (expr.add(lane, offset),), reduce.dtype)
        store = Store(shared, (lane,), combine(reduce.op, a, b))
        return [If(expr.binary("lt", lane, offset), (store,))]

    stmts: list[Stmt] = [nest.spread(width, copied), Barrier()]
    half = width // 2
    while half >= 1:
        stmts += [nest.spread(width, partial(halved_at, offset=expr.index(half))), Barrier()]
        half //= 2
    return stmts


def _is_quick(body: Expr, along: Sequence[Var]) -> bool:
    """Whether terms are cheap enough that separate accumulators pay. Subexpressions that do not
    vary along `along` are not counted, as they are hoisted."""
    varying, cost = set(along), 0
    for e in expr.nodes(body):
        if e.dtype is not DType.INDEX and varying & expr.free_vars(e):
            cost += operation_cost(e)
    return cost <= QUICK
