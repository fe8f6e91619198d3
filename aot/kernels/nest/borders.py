"""Decides where the guards of a tile's loads can be left out.

A tile that is inside needs no guard, which a few comparisons decide once for all of its taps; taps
that are outside for all of a tile are omitted. Owns how guards are decomposed; makes no loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Cast, Const, Dot, Expr, Load, Reduce, Var
from aot.kernels.ir.nodes import If, Stmt
from aot.kernels.nest.nest import identity

Values = Mapping[Var, Expr]
Corners = Mapping[Var, tuple[Expr, Expr]]
"""The least and the greatest value of a variable within a tile."""
Span = tuple[Dim, Dim | None]
"""The least and the greatest value of a variable, None where that isn't known."""


@dataclass(frozen=True)
class Borders:
    """The border conditions of a reduction: those that guard its loads.

    Attributes:
        skipped: those that are alike for all of a tile at a tap, and without which the tap adds
            nothing.
        asked: the others, which an element needs at a tap.
        is_neutral: whether what is read where a condition fails adds nothing to the reduction.
    """

    skipped: tuple[Expr, ...]
    asked: tuple[Expr, ...]
    is_neutral: bool = False

    @staticmethod
    def of(reduce: Reduce, varying: Sequence[Var]) -> Borders:
        """The border conditions of a reduction over tiles, in whose innermost loops the variables
        `varying` change."""
        guards = dict.fromkeys(x.guard for x in expr.loads(reduce.body) if x.guard is not None)
        conditions = list(dict.fromkeys(c for g in guards for c in expr.conditions_of(g)))
        if skipped_guard(reduce) is None:
            return Borders((), tuple(conditions))
        alike = tuple(c for c in conditions if not expr.free_vars(c) & set(varying))
        return Borders(alike, tuple(c for c in conditions if c not in alike), True)

    def inside(self, corners: Corners, place: Values) -> Expr | None:
        """A condition that implies that all guards hold in the whole tile; None if there are no
        guards.

        What compares linear positions holds between two points where it holds at both, so that the
        corners speak for all.
        """
        held: dict[Expr, None] = {}
        for condition in self.asked:
            for at in _hardest(condition, corners):
                held[expr.substitute(condition, {**place, **at})] = None
        return expr.all_of(held)

    def anywhere(self, corners: Corners, place: Values) -> Expr | None:
        """A condition that is false only if a tap adds nothing anywhere in the tile, as where a
        guard fails even at its most favourable corner; None where no such condition is known.
        """
        if not self.is_neutral:
            return None
        opposite = {var: (high, low) for var, (low, high) in corners.items()}
        held: dict[Expr, None] = {}
        for condition in self.asked:
            easiest = _hardest(condition, opposite)
            if len(easiest) == 1:
                held[expr.substitute(condition, {**place, **easiest[0]})] = None
        return expr.all_of(held)

    def asking(self, e: Expr) -> Expr:
        """`e` with its guard reduced to the conditions in `asked`, because those in `skipped` are
        checked outside; `e` itself if nothing is skipped.
        """
        if not self.skipped:
            return e
        guard = expr.all_of(self.asked)
        assert guard is not None
        return expr.transform(e, with_guard(guard))  # of the one load that is guarded

    def steps(self, row: Var, tap: Var) -> tuple[int, int] | None:
        """(step per row, step per tap) of the guarded position, where all conditions agree on them:
        taps and rows at the same position then share one check. None where they differ.
        """
        found: set[tuple[Dim, Dim]] = set()
        for condition in self.asked:
            by_row, by_tap = _difference(condition, row), _difference(condition, tap)
            if by_row is None or by_tap is None:
                return None
            sign = -1 if isinstance(by_row, int) and by_row < 0 else 1
            found.add((dims.multiply(by_row, sign), dims.multiply(by_tap, sign)))
        if len(found) != 1:
            return None
        ((by_row, by_tap),) = found
        if isinstance(by_row, int) and isinstance(by_tap, int) and by_row > 0 and by_tap > 0:
            return by_row, by_tap
        return None

    def choose(
        self,
        corners: Corners,
        place: Values,
        inside: Sequence[Stmt],
        asking: Sequence[Stmt],
        *,
        may_miss: bool,
    ) -> list[Stmt]:
        """Statements that run `inside` if the guards hold for the whole tile, else `asking`. If
        tiles `may_miss` a tap, neither runs where the tap adds nothing.
        """
        is_inside, is_anywhere = self.inside(corners, place), self.anywhere(corners, place)
        assert is_inside is not None
        if is_anywhere == is_inside:
            return [If(is_inside, tuple(inside))]
        if is_anywhere is not None and may_miss:
            asking = [If(is_anywhere, tuple(asking))]
        return [If(is_inside, tuple(inside), tuple(asking))]

    def unsure(self, row: Var, span: Span, place: Values) -> Expr | None:
        """The conjunction of conditions that may fail for some row of `span`; None if all surely
        hold.

        `place` gives the other variables that what is asked depends on.
        """
        return expr.all_of(c for c in self.asked if not _is_sure(c, row, span, place))

    def keep(self, body: Expr, row: Var) -> bool:
        """Whether rows past the last one stay in bounds, as each load that varies with `row` has a
        guard that ends at the last row.
        """
        reading = (x for x in expr.loads(body) if row in expr.free_vars(x.indices[0]))
        return all(
            x.guard is not None and any(_ends(c, row) for c in expr.conditions_of(x.guard))
            for x in reading
        )

    def are_linear_in(self, corners: Corners) -> bool:
        """Whether the guards are linear in all variables that change within a tile."""
        return all(_is_linear(c, var) for c in self.asked for var in corners)


def may_miss_taps(reduce: Reduce, row: Var, height: int) -> bool:
    """Whether a tap may be out of bounds for all of `height` neighbouring rows, while other taps
    are in bounds.
    """
    borders = Borders.of(reduce, [row])
    steps = (borders.steps(row, tap) for tap, extent in reduce.axes if extent != 1)
    return any(s is not None and s[1] > s[0] * (height - 1) for s in steps)


def skipped_guard(reduce: Reduce) -> Expr | None:
    """The guard whose failure means that a tap adds nothing to the reduction; None if there is
    none."""
    guarded = [load for load in expr.loads(reduce.body) if load.guard is not None]
    if len(guarded) != 1:
        return None
    (load,) = guarded
    nothing = identity(reduce.op, load.dtype)
    if not isinstance(load.other, Const) or load.other.value != nothing.value:
        return None
    return load.guard if _is_neutral(reduce, load) else None


def with_guard(guard: Expr) -> Callable[[Expr], Expr | None]:
    """A rewrite for `expr.transform` that replaces the guard of guarded loads."""

    def rewrite(e: Expr) -> Expr | None:
        return replace(e, guard=guard) if isinstance(e, Load) and e.guard is not None else None

    return rewrite


def masked(e: Expr, condition: Expr, along: Var | None = None) -> Expr:
    """`e` with `condition` added to the guard of each of its loads; with `along`, only of the loads
    that vary along that variable.
    """

    def mask(x: Expr) -> Expr | None:
        if not isinstance(x, Load):
            return None
        if along is not None and along not in expr.free_vars(x.indices[0]):
            return None
        guard = condition if x.guard is None else expr.binary("and", x.guard, condition)
        other = x.other if x.other is not None else expr.const(0, x.dtype)
        return replace(x, guard=guard, other=other)

    return expr.transform(e, mask)


def without_guard(e: Expr) -> Expr | None:
    """A rewrite for `expr.transform` that removes the guard of a load."""
    if isinstance(e, Load) and e.guard is not None:
        return replace(e, guard=None, other=None)
    return None


def _is_neutral(reduce: Reduce, load: Load) -> bool:
    """Whether a reduction's term is neutral where `load` fails its guard: the term is the load
    itself, or a product with it that is added."""
    body = reduce.body
    while isinstance(body, Cast):
        body = body.a
    if body is load:
        return True
    is_product = isinstance(body, Dot) or (isinstance(body, Binary) and body.op == "mul")
    if reduce.op != "sum" or not is_product:
        return False
    assert isinstance(body, (Binary, Dot))
    return any(_is_neutral(replace(reduce, body=side), load) for side in (body.a, body.b))


def _is_linear(condition: Expr, var: Var) -> bool:
    """Whether a condition is a comparison that is linear in `var`, or does not depend on it."""
    if var not in expr.free_vars(condition):
        return True
    return (
        isinstance(condition, Binary)
        and condition.op in ("lt", "le", "gt", "ge")
        and all(expr.coefficient(x, var) is not None for x in (condition.a, condition.b))
    )


def _is_sure(condition: Expr, row: Var, span: Span, place: Values) -> bool:
    """Whether a linear condition holds wherever `row` is within `span`."""
    by = _difference(condition, row)
    if not isinstance(condition, Binary) or by is None:
        return False
    at = {**place, row: expr.index(0)}
    a, b = (expr.dim_of(expr.substitute(x, at)) for x in (condition.a, condition.b))
    if a is None or b is None:
        return False
    slope = _slope(condition, row)
    end = span[1] if slope > 0 else span[0] if slope < 0 else None
    if end is None:
        return False
    apart = dims.add(dims.add(a, dims.multiply(b, -1)), dims.multiply(by, end))
    return dims.decided(condition.op, dims.bounds(apart, {})) is True


def _hardest(condition: Expr, corners: Corners) -> list[dict[Var, Expr]]:
    """The corners of a tile that decide a linear condition: if it fails anywhere, it fails at one
    of them."""
    found: list[dict[Var, Expr]] = [{}]
    used = expr.free_vars(condition)
    for var, (low, high) in corners.items():
        if var not in used:
            continue
        slope = _slope(condition, var)
        ends = [high] if slope > 0 else [low] if slope < 0 else [low, high]
        found = [{**at, var: end} for at in found for end in dict.fromkeys(ends)]
    return found


def _slope(condition: Expr, var: Var) -> int:
    """1 if a condition is harder to meet for a greater `var`, -1 if for a smaller one; 0 if
    unknown."""
    by = _difference(condition, var)
    if by is None or not isinstance(condition, Binary):
        return 0
    low, high = dims.bounds(by, {})
    sign = 1 if low is not None and low >= 0 else -1 if high is not None and high <= 0 else 0
    return sign if condition.op in ("lt", "le") else -sign


def _ends(condition: Expr, var: Var) -> bool:
    """Whether a condition bounds `var` from above."""
    return var in expr.free_vars(condition) and _slope(condition, var) > 0


def _difference(condition: Expr, var: Var) -> Dim | None:
    """The slope in `var` of a comparison's left side minus its right; None if it is not linear."""
    if not isinstance(condition, Binary):
        return None
    a, b = expr.coefficient(condition.a, var), expr.coefficient(condition.b, var)
    return None if a is None or b is None else dims.add(a, dims.multiply(b, -1))
