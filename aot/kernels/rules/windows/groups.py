"""Matches grouped convolutions over planes: the loads, slides and axes of a group.

Owns how one is recognised. Owns no loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aot.base.records import dataclass
from aot.ir import expr
from aot.ir.expr import Expr, Load, Reduce
from aot.kernels.match.products import without_groups
from aot.kernels.match.slides import Slide, slide_along, slides_of
from aot.kernels.match.windows import products_of_loads
from aot.kernels.nest.nest import Axis, Output


@dataclass(frozen=True)
class Groups:
    """The grouped convolution that a reduction computes.

    Attributes:
        left, right: the factors; the left side without its guard.
        along, down: how windows slide along a line, and from line to line.
        channel: the axis of a group's channels, which is summed over; None if a group has one.
        member: the axis of a group's columns.
    """

    reduce: Reduce
    left: Load
    right: Load
    along: Slide
    down: Slide
    channel: Axis | None
    member: Axis

    @property
    def inner(self) -> int:
        """The number of input channels per group."""
        return 1 if self.channel is None else self.channel.count

    @property
    def phases(self) -> int:
        """The number of phases that staged planes are split into: those down times those along."""
        return len(self.down.phases) * len(self.along.phases)


def groups_over_planes(output: Output) -> tuple[Output, Groups] | None:
    parted = without_groups(output)
    products = products_of_loads(parted)
    if products is None or len(parted.axes) < 3:
        return None
    reduce, left, right = products
    *outer, down_at, along_at = parted.axes
    if {down_at.var, along_at.var} & expr.free_vars(right):
        return None
    if expr.coefficient(parted.address, along_at.var) != 1:
        return None

    def find(
        at: Axis, taps: Sequence[Axis], asked: Sequence[Expr], before: Sequence[Slide]
    ) -> Slide | None:
        slide = slide_along(left, at, taps, asked) if len(taps) > 1 or asked else None
        return slide or _of_points(left, at, asked, before)

    found = slides_of(left, reduce, (along_at, down_at), find)
    if found is None:
        return None
    (along, down), taps = found.along, found.rest
    are_points = along.tap is None and down.tap is None
    if are_points if parted is not output else not are_points or along.step == 1:
        return None
    in_left, in_right = expr.free_vars(left), expr.free_vars(right)
    members = [a for a in outer if a.var in in_right and a.var not in in_left and a.extent != 1]
    if along.stride != 1 or len(taps) > 1 or len(members) != 1:
        return None
    (member,) = members
    if not all(isinstance(a.extent, int) for a in (*taps, member)):
        return None
    plain = replace(left, guard=None, other=None)
    channel = taps[0] if taps else None
    return parted, Groups(reduce, plain, right, along, down, channel, member)


def _of_points(
    load: Load, at: Axis, asked: Sequence[Expr], before: Sequence[Slide]
) -> Slide | None:
    """The slide of windows with a single tap along an axis, without padding; None for others."""
    by_at = expr.coefficient(load.indices[0], at.var)
    if asked or not isinstance(by_at, int) or by_at <= 0 or not isinstance(at.extent, int):
        return None
    step, stride = (1, by_at) if before else (by_at, 1)
    return Slide(at, None, step, 1, stride, 0, step * (at.extent - 1) + 1)
