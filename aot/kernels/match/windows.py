"""Matches windowed reductions, such as depthwise convolutions and pools: a reduction over taps,
next to axes along which the window slides.

Owns how one is recognised whose lanes go along the result's last axis. Owns no loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.expr import Binary, Expr, Load, Reduce
from aot.kernels.match.products import sum_of_products
from aot.kernels.nest.nest import Axis, Nest, Output, split_axis


@dataclass(frozen=True)
class Window:
    """An output that is a reduction over the taps of a sliding window, with the role of each axis.

    Attributes:
        axes: what the reduction runs over, outermost first.
        outer: loops around the tile.
        rows: neighbours that a tile takes together, or None.
        lane: the axis that lanes run along, contiguous in the result; no guard depends on it.
    """

    reduce: Reduce
    axes: tuple[Axis, ...]
    outer: tuple[Axis, ...]
    rows: Axis | None
    lane: Axis


def find_window(
    nest: Nest, output: Output, reduces: Sequence[Reduce], *, step: int = 1
) -> Window | None:
    """The window that `output` computes; None where lanes along its last axis would have to gather.

    Args:
        step: how far apart results of neighbouring lanes are.
    """
    if nest.is_gpu or len(reduces) != 1 or not output.axes:
        return None
    (reduce,) = reduces
    lane = output.axes[-1]
    loads = expr.loads(reduce.body)
    steps = [expr.coefficient(load.indices[0], lane.var) for load in loads]
    if expr.coefficient(output.address, lane.var) != step or 1 not in steps:
        return None
    if not all(step in (0, 1) for step in steps):
        return None
    guards = [x.guard for x in loads if x.guard is not None]
    if any(lane.var in expr.free_vars(guard) for guard in guards):
        return None
    axes = tuple(Axis(v, n) for v, n in reduce.axes)
    rows = output.axes[-2] if len(output.axes) > 1 else None
    return Window(reduce, axes, output.axes[:-2], rows, lane)


def members_apart(output: Output) -> tuple[Output, int] | None:
    """(output, members per group) of a grouped window with one input channel per group. The
    result's last axis is split: lanes run along groups, and members get a loop around the rows.
    None where the last axis has no such groups.
    """
    if len(output.axes) < 2:
        return None
    last = output.axes[-1]
    size = next(filter(None, group_sizes(output.values, last)), None)
    if size is None:
        return None
    parted = split_axis(output, len(output.axes) - 1, size)
    *outer, row, group, member = parted.axes
    return replace(parted, axes=(*outer, member, row, group)), size


def group_sizes(values: Iterable[Expr], axis: Axis) -> Iterator[int]:
    """Sizes of the groups into which expressions divide an axis; 0 where a size does not divide its
    extent."""
    for e in (node for value in values for node in expr.nodes(value)):
        if isinstance(e, Binary) and e.op == "floordiv" and e.a is axis.var:
            size = expr.dim_of(e.b)
            known = size if isinstance(size, int) and size > 0 else 0
            yield known if known and dims.modulo(axis.extent, known) == 0 else 0


def products_of_loads(output: Output) -> tuple[Reduce, Load, Load] | None:
    """(reduction, image load, weight load) of an output that is a sum of products; None if a factor
    is no load, or the padding is not 0."""
    found = sum_of_products(output)
    if found is None:
        return None
    reduce, left, right = found
    if not isinstance(left, Load) or not isinstance(right, Load) or right.guard is not None:
        return None
    is_zero = left.guard is None or (isinstance(left.other, expr.Const) and left.other.value == 0)
    return (reduce, left, right) if is_zero else None
