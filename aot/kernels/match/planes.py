"""Matches windowed reductions over planes, such as pooling, whose vector lanes run along the
innermost axis, in which the window slides.

Owns how one is recognised, with padding or without. Owns no loops.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.base.records import dataclass
from aot.ir import expr
from aot.ir.expr import Cast, Expr, Load, Reduce, Var
from aot.kernels.match.slides import Slide, is_empty, padded_slide, slide_along
from aot.kernels.nest.nest import Axis, Nest, Output, identity

# taps along a row of a window that are written out
MOST_TAPS = 32


@dataclass(frozen=True)
class PaddedWindow:
    """A reduction over the taps of a window.

    Attributes:
        load: of the plane.
        along: how windows slide along the innermost axis.
        down: and along the one before it, if they do.
        planes: what is summed over beside taps, a plane after the other.
        is_there: whether a plane is one, rather than padding that changes nothing; None if all are.
    """

    reduce: Reduce
    load: Load
    along: Slide
    down: Slide | None
    planes: tuple[Axis, ...] = ()
    is_there: Expr | None = None

    @property
    def slides(self) -> tuple[Slide, ...]:
        return (self.along,) if self.down is None else (self.along, self.down)

    @property
    def is_separable(self) -> bool:
        """Whether the 2-D window may be reduced along rows first, then along columns."""
        along, down = self.along, self.down
        if down is None or down.tap is None or min(along.taps, down.taps) == 1:
            return False
        return is_plain(self.reduce, self.load, (along, down))


def is_plain(reduce: Reduce, load: Load, slides: Sequence[Slide]) -> bool:
    """Whether no term of the window depends on the tap's index or on the window's position."""
    staged = Var("staged", load.dtype)
    term = expr.transform(reduce.body, {load: staged}.get)  # type: ignore[arg-type]
    known = {slide.at.var for slide in slides} | {v for v, _ in reduce.axes}
    return not expr.free_vars(term) & known


def find_padded(
    nest: Nest, output: Output, reduces: Sequence[Reduce], *, needs_padding: bool = True
) -> PaddedWindow | None:
    """The window over planes that `output` is, if it is one; by default only one with padding."""
    if nest.is_gpu or nest.lanes == 1 or len(reduces) != 1 or not output.axes:
        return None
    (reduce,) = reduces
    load = _plane(reduce, output.axes[-1], needs_padding=needs_padding)
    if load is None or is_empty(reduce):
        return None
    taps = [Axis(v, n) for v, n in reduce.axes if n != 1]
    conditions = [] if load.guard is None else list(expr.conditions_of(load.guard))
    slides: list[Slide] = []
    for at in reversed(output.axes[-2:]):
        asked = [c for c in conditions if at.var in expr.free_vars(c)]
        slide = padded_slide(load, at, taps, asked)
        may_be_inside = not needs_padding or (bool(slides) and len(taps) == 1)
        if slide is None and not asked and may_be_inside:
            slide = slide_along(load, at, taps, asked)
        if slide is None and not slides:
            return None
        if slide is not None:
            slides.append(slide)
            conditions = [c for c in conditions if c not in asked]
            taps = [tap for tap in taps if tap is not slide.tap]
    along, down = slides[0], slides[1] if len(slides) > 1 else None
    moving = {axis.var for slide in slides for axis in (slide.at, slide.tap) if axis is not None}
    if any(moving & expr.free_vars(c) for c in conditions):
        return None
    if conditions and not (taps and _changes_nothing(load, reduce)):
        return None
    if along.step < 1 or along.taps > MOST_TAPS or along.stride != 1 or along.tap is None:
        return None
    return PaddedWindow(reduce, load, along, down, tuple(taps), expr.all_of(conditions))


def _plane(reduce: Reduce, inner: Axis, *, needs_padding: bool) -> Load | None:
    """The only load that varies along the innermost axis, if no other load has a guard; None if
    there are several such loads, or the padding is not a constant."""
    found = [x for x in expr.loads(reduce.body) if inner.var in expr.free_vars(x)]
    if len(found) != 1:
        return None
    (load,) = found
    if needs_padding if load.guard is None else not isinstance(load.other, expr.Const):
        return None
    is_alone = all(x.guard is None for x in expr.loads(reduce.body) if x is not load)
    return load if is_alone else None


def _changes_nothing(load: Load, reduce: Reduce) -> bool:
    """Whether the padding is the neutral element of the reduction."""
    term = reduce.body.a if isinstance(reduce.body, Cast) else reduce.body
    nothing = identity(reduce.op, load.dtype)
    return term is load and isinstance(load.other, expr.Const) and load.other.value == nothing.value
