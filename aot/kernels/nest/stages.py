"""Builds a kernel of several loop nests, which run one after the other in one workgroup for each
index of the dims that all nests loop over.

Owns the grid over those dims and the order of the nests; what a nest does is its schedule's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aot.analysis.stages import Stage, grid_dims
from aot.ir import dims, expr
from aot.ir.expr import Expr, Var
from aot.kernels.ir.nodes import Barrier, For, Let, LoopKind, Stmt, walk
from aot.kernels.nest.nest import Axis, Nest

Body = Callable[[Sequence[Stage], Sequence[Expr]], tuple[Stmt, ...]]
"""The statements of the stages of a nest, with these index expressions for the shared dims."""


def schedule_stages(nest: Nest, loops: Sequence[Sequence[Stage]], body: Body) -> tuple[Stmt, ...]:
    """Builds all stages' nests in order. Later stages of a workgroup read what its earlier stages
    stored.

    A single nest has a grid of its own.
    """
    if len(loops) == 1:
        return body(loops[0], ())
    shared = loops[0][0].result.type.dims[: grid_dims(loops, nest.target)]
    axes = [Axis(nest.builder.var("s"), n) for n in shared]
    indices = [expr.index(0) if a.extent == 1 else a.var for a in axes]
    stmts: list[Stmt] = []
    for number, stages in enumerate(loops):
        if number and nest.is_gpu:
            stmts.append(Barrier(orders_buffers=True))
        stmts += as_one_workgroup(body(stages, indices))
    return _over(nest, [a for a in axes if a.extent != 1], stmts)


def as_one_workgroup(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The statements with serial loops in place of workgroup loops, for a single workgroup."""
    return tuple(
        replace(s, kind=LoopKind.SERIAL, body=_turn(s), axis=0)
        if isinstance(s, For) and s.kind is LoopKind.WORKGROUP
        else s
        for s in body
    )


def _turn(loop: For) -> tuple[Stmt, ...]:
    """The body of a workgroup loop that becomes serial, with a barrier at its end if it has
    barriers at all: the next iteration overwrites shared memory that other lanes may still read."""
    body = as_one_workgroup(loop.body)
    has_barriers = any(isinstance(s, Barrier) for s in walk(body))
    return (*body, Barrier()) if has_barriers and not _ends_together(body) else body


def _ends_together(body: Sequence[Stmt]) -> bool:
    """Whether a body ends with a barrier, directly or as one serial loop whose body does. After
    other statements a loop does not suffice, as its extent may be 0."""
    last = body[-1]
    if len(body) == 1 and isinstance(last, For) and last.kind is LoopKind.SERIAL:
        return _ends_together(last.body)
    return isinstance(last, Barrier)


def _over(nest: Nest, axes: Sequence[Axis], body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """A loop over workgroups, one for each index of `axes`."""
    if not axes:
        return tuple(body)
    if len(axes) == 1:
        return (For(axes[0].var, axes[0].extent, LoopKind.WORKGROUP, tuple(body)),)
    whole = nest.builder.var("g")
    stmts: list[Stmt] = []
    values: dict[Var, Expr] = {}
    nest.decode(whole, axes, values, stmts)
    stmts += [Let(a.var, values[a.var]) for a in axes]
    total = dims.product([a.extent for a in axes])
    return (For(whole, total, LoopKind.WORKGROUP, (*stmts, *body)),)
