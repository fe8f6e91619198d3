"""Describes how windows slide along the axes of a result: steps, dilations and padding.

Owns how a slide is recognised in the address and the guard of a load. Owns no loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from aot.base.records import dataclass
from aot.ir import expr
from aot.ir.expr import Binary, Expr, Load, Reduce
from aot.kernels.nest.nest import Axis, Values


@dataclass(frozen=True)
class Taps:
    """The taps of a window that have the same phase, as one loop visits them: their distance is the
    window's step.

    Attributes:
        first, count: the taps.
        phase, ahead: of the first one's place: where it is between steps, and how many are before.
    """

    first: int
    count: int
    phase: int
    ahead: int


@dataclass(frozen=True)
class Slide:
    """How a window slides along one axis of a plane: tap `tap` of result index `at` reads place
    `step * at + apart * tap`, counted from the first tap of the first window.

    Attributes:
        at, tap: loops over the result and over the taps; a window of one tap has none of the
            latter.
        stride: how far apart the neighbours lie in memory.
        begin, end: the places that are not padding.
    """

    at: Axis
    tap: Axis | None
    step: int
    apart: int
    stride: int
    begin: int
    end: int

    @property
    def count(self) -> int:
        """The number of places that all windows along the axis read."""
        return self.places(self.at.count)

    @property
    def taps(self) -> int:
        return 1 if self.tap is None else self.tap.count

    def places(self, results: int) -> int:
        """The number of places that `results` neighbouring windows read."""
        return self.step * (results - 1) + self.apart * (self.taps - 1) + 1

    def results(self, places: int, most: int) -> int:
        """The largest number of neighbouring results, up to `most`, whose windows read at most
        `places`; 0 if one window reads more."""
        return max(0, min(most, (places - self.places(1)) // self.step + 1))

    def by_phase(self) -> list[Taps]:
        """The window's taps, grouped by the phase of the places they read."""
        found: list[Taps] = []
        for first in range(min(self.step, self.taps)):
            ahead, phase = divmod(self.apart * first, self.step)
            found.append(Taps(first, -(-(self.taps - first) // self.step), phase, ahead))
        return found

    @property
    def phases(self) -> list[int]:
        """The phases (position modulo step) that a window's taps read, sorted."""
        return sorted({taps.phase for taps in self.by_phase()})

    def inside(self, phase: int, end: int, first: int = 0) -> tuple[int, int]:
        """[begin, end) of the places without padding, among the first `end` places of a phase,
        counted from its place number `first`."""
        begin, last = (-(-(n - phase) // self.step) - first for n in (self.begin, self.end))
        begin = min(max(begin, 0), end)
        return begin, max(begin, min(last, end))

    def is_there(self, first: Expr, last: Expr, reach: int) -> Expr | None:
        """A condition that the places `first` to `last`, below `reach`, are not padding; None where
        none can be padding."""
        return expr.all_of(self.conditions(first, last, reach))

    def conditions(self, first: Expr, last: Expr, reach: int) -> list[Expr]:
        """The single conditions that `is_there` joins."""
        asked: list[Expr] = []
        if self.begin > 0:
            asked.append(expr.binary("ge", first, expr.index(self.begin)))
        if self.end < reach:
            asked.append(expr.binary("lt", last, expr.index(self.end)))
        return asked


def first_window(reduce: Reduce, *slides: Slide) -> Values:
    """Index values of the first place of the first window, padding or not."""
    variables = [v for v, _ in reduce.axes] + [slide.at.var for slide in slides]
    return {v: expr.index(0) for v in variables}


def is_empty(reduce: Reduce) -> bool:
    """Whether a reduction has no terms, as a window without taps: tiles of taps divide by them."""
    return any(extent == 0 for _, extent in reduce.axes)


@dataclass(frozen=True)
class Slides:
    """How the windows of a load slide along some axes.

    Attributes:
        along: a slide for each of the axes, in their order.
        rest: what else is summed over.
        asked: of each of the axes, by the load's guard.
    """

    along: tuple[Slide, ...]
    rest: tuple[Axis, ...]
    asked: tuple[tuple[Expr, ...], ...]


Find = Callable[[Axis, Sequence[Axis], Sequence[Expr], Sequence[Slide]], Slide | None]
"""How windows slide along an axis, given the taps left, what the guard asks of the axis, and the
slides along the axes before; None where that isn't plain."""


def slides_of(
    load: Load, reduce: Reduce, axes: Sequence[Axis], find: Find | None = None
) -> Slides | None:
    """How the windows of a load slide along `axes`, each with taps unless `find` says otherwise;
    None if they slide along none of them, the guard has other conditions, or a window is empty."""

    def with_taps(
        at: Axis, taps: Sequence[Axis], asked: Sequence[Expr], before: Sequence[Slide]
    ) -> Slide | None:
        slide = slide_along(load, at, taps, asked)
        return None if slide is None or slide.tap is None else slide

    if is_empty(reduce):
        return None
    taps = [Axis(v, n) for v, n in reduce.axes if n != 1]
    conditions = [] if load.guard is None else list(expr.conditions_of(load.guard))
    slides: list[Slide] = []
    asked: list[tuple[Expr, ...]] = []
    for at in axes:
        asked.append(tuple(c for c in conditions if at.var in expr.free_vars(c)))
        slide = (find or with_taps)(at, taps, asked[-1], slides)
        if slide is None:
            return None
        slides.append(slide)
        conditions = [c for c in conditions if c not in asked[-1]]
        taps = [tap for tap in taps if tap is not slide.tap]
    return None if conditions else Slides(tuple(slides), tuple(taps), tuple(asked))


def slide_along(load: Load, at: Axis, taps: Sequence[Axis], asked: Sequence[Expr]) -> Slide | None:
    """How windows slide along axis `at`, with or without padding; None where the address or guard
    is not of that form."""
    if asked:
        return padded_slide(load, at, taps, asked)
    found = (_slide_inside(load, at, tap) for tap in reversed(taps))
    return next((slide for slide in found if slide is not None), None)


def padded_slide(load: Load, at: Axis, taps: Sequence[Axis], asked: Sequence[Expr]) -> Slide | None:
    """The slide of windows along `at` according to the guards; None where these have
    another form.
    """
    used = {v for c in asked for v in expr.free_vars(c)} - {at.var}
    own = [tap for tap in taps if tap.var in used]
    if len(own) > 1 or len(used) != len(own) or not asked:
        return None
    tap = own[0] if own else None
    if not all(isinstance(axis.extent, int) for axis in (at, *own)):
        return None
    by_at = expr.coefficient(load.indices[0], at.var)
    by_tap = 0 if tap is None else expr.coefficient(load.indices[0], tap.var)
    begins, ends = [0], list[int]()
    steps: set[tuple[int, int]] = set()
    for condition in asked:
        found = _linear(condition, at, tap)
        if found is None:
            return None
        step, apart, start = found
        steps.add((step, apart))
        assert isinstance(condition, Binary)
        (begins if condition.op == "ge" else ends).append(-start)
    if len(steps) != 1 or not isinstance(by_at, int) or not isinstance(by_tap, int):
        return None
    ((step, apart),) = steps
    stride, left = divmod(by_at, step)
    if left or stride <= 0 or by_tap != apart * stride:
        return None
    made = Slide(at, tap, step, apart, stride, 0, 0)
    last = min([*ends, made.count])
    return replace(made, begin=min(max(begins), last), end=last)


def _slide_inside(load: Load, at: Axis, tap: Axis) -> Slide | None:
    """How windows slide along an axis without padding; None if they do not."""
    by_at, by_tap = (expr.coefficient(load.indices[0], axis.var) for axis in (at, tap))
    if not isinstance(at.extent, int) or not isinstance(tap.extent, int):
        return None
    if not isinstance(by_at, int) or not isinstance(by_tap, int) or min(by_at, by_tap) <= 0:
        return None
    stride = math.gcd(by_at, by_tap)
    made = Slide(at, tap, by_at // stride, by_tap // stride, stride, 0, 0)
    return replace(made, end=made.count)


def _linear(condition: Expr, at: Axis, tap: Axis | None) -> tuple[int, int, int] | None:
    """(slope in `at`, slope in `tap`, constant) of a comparison's left side minus its right; None
    if it is no linear comparison, or does not grow with `at`."""
    if not isinstance(condition, Binary) or condition.op not in ("ge", "lt"):
        return None
    variables = [at.var] + ([] if tap is None else [tap.var])
    zero = {var: expr.index(0) for var in variables}
    sides = condition.a, condition.b
    ends = [[expr.coefficient(side, var) for side in sides] for var in variables]
    ends.append([expr.dim_of(expr.substitute(side, zero)) for side in sides])
    found = [a - b for a, b in ends if isinstance(a, int) and isinstance(b, int)]
    if len(found) != len(ends) or found[0] <= 0:
        return None
    return found[0], 0 if tap is None else found[1], found[-1]
