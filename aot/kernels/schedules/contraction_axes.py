"""What the axes of a contraction's kernel do, and its right side by panels.

Shared by tiles and by what becomes of their sums. Owns no loops.
"""

from __future__ import annotations

from collections.abc import Mapping

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.expr import Binary, Cast, Expr, Load, Reduce, Var
from aot.kernels.ir.nodes import Buffer
from aot.kernels.lower.nest import Axis

Values = dict[Var, Expr]


@dataclass(frozen=True)
class ContractionAxes:
    """What each axis of a kernel's contraction does, once the ops around it are inlined.

    Attributes:
        weight: the load in `right`, which is it or a conversion of it.
        rows: the innermost axis that only `left` varies along, or None.
        columns: the axis that only `right` varies along, in lanes.
        outer: the other axes, outermost first.
        in_panels: the weights surely lie in panels of columns, as those that are stored in blocks
            do; else their address says it, unless panels hold so little that it is simplified.
    """

    reduce: Reduce
    left: Expr
    right: Expr
    weight: Load
    rows: Axis | None
    columns: Axis
    outer: tuple[Axis, ...]
    in_panels: bool = False

    @property
    def is_packed(self) -> bool:
        """Whether the weights lie in panels of columns."""
        return self.in_panels or expr.coefficient(self.weight.indices[0], self.columns.var) is None

    def is_in_panel(self, panel: int) -> bool:
        """Whether all columns are in one panel, behind the last of which lie lanes of none: their
        place is then the column, as it would be without panels."""
        index, extent, source = self.weight.indices[0], self.columns.extent, self.weight.source
        if not isinstance(extent, int) or extent > panel or not isinstance(source, Buffer):
            return False
        size = dims.product(source.shape)
        others = expr.free_vars(index) - {self.columns.var}
        steps = [expr.coefficient(index, v) for v in others]
        first = expr.substitute(index, {v: expr.index(0) for v in expr.free_vars(index)})
        return (
            isinstance(first, expr.Const)
            and first.value == 0
            and expr.coefficient(index, self.columns.var) == 1
            and all(isinstance(n, int) and n % panel == 0 for n in (*steps, size))
        )

    @property
    def has_factors(self) -> bool:
        """Whether the right side also reads what has an element for each column, as scales."""
        loads = (e for e in expr.loads(self.right) if e is not self.weight)
        return any(expr.coefficient(e.indices[0], self.columns.var) not in (0, None) for e in loads)

    def weight_at(self, panel: int, number: Expr, within: Expr, values: Values) -> Expr:
        """The right side at place `within` of panel `number`, with other variables' values."""
        return at_splits(self.right, {(self.columns.var, panel): (number, within)}, values)


def at_splits(e: Expr, splits: Mapping[tuple[Var, int], tuple[Expr, Expr]], values: Values) -> Expr:
    """`e`, where a variable divided by a size becomes the number of the part that it is in, and the
    rest its place there, as `splits` says of both; other variables have `values`."""

    def rewrite(x: Expr) -> Expr | None:
        if isinstance(x, Binary) and isinstance(x.a, Var):
            size = expr.dim_of(x.b)
            split = splits.get((x.a, size)) if isinstance(size, int) else None
            if split is not None and x.op in ("floordiv", "floormod"):
                return split[x.op == "floormod"]
        return values.get(x) if isinstance(x, Var) else None

    return expr.transform(e, rewrite)


def loaded(e: Expr) -> Load | None:
    """The load that `e` is, or is a conversion of."""
    while isinstance(e, Cast):
        e = e.a
    return e if isinstance(e, Load) else None
