"""Matches contractions in a nest's expressions: the sum, its two factors, and the role of each
axis.

Owns how a contraction is recognised once the ops around it are inlined. Owns no loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Cast, Expr, Load, Reduce, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer
from aot.kernels.nest.inline import reduces_of
from aot.kernels.nest.nest import Axis, Output, Values, collapse, split_axis


@dataclass(frozen=True)
class ContractionAxes:
    """The role of each axis in a kernel's contraction, once the ops around it are inlined.

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
    def summed(self) -> list[Axis]:
        """Reduction axes with an extent other than 1."""
        return [Axis(v, n) for v, n in self.reduce.axes if n != 1]

    @property
    def origins(self) -> Values:
        """Reduction axes of extent 1, with their only index, 0."""
        return {v: expr.index(0) for v, n in self.reduce.axes if n == 1}

    @property
    def terms(self) -> Dim:
        """The number of terms that each element's reduction adds up."""
        return dims.product([n for _, n in self.reduce.axes])

    @property
    def row_count(self) -> Dim:
        """Extent of the row axis; 1 if there is none."""
        return 1 if self.rows is None else self.rows.extent

    @property
    def is_packed(self) -> bool:
        """Whether the weights are stored in panels of columns."""
        return self.in_panels or expr.coefficient(self.weight.indices[0], self.columns.var) is None

    def is_in_panel(self, panel: int) -> bool:
        """Whether all columns lie in the first panel, so that a column's place in it is its number,
        as without panels.
        """
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
        """Whether the right factor also loads a value per column besides the weight, such as a
        scale."""
        loads = (e for e in expr.loads(self.right) if e is not self.weight)
        return any(expr.coefficient(e.indices[0], self.columns.var) not in (0, None) for e in loads)

    def weight_at(self, panel: int, number: Expr, within: Expr, values: Values) -> Expr:
        """The right factor at place `within` of panel `number`, with `values` for the other
        variables."""
        return at_splits(self.right, {(self.columns.var, panel): (number, within)}, values)


def at_splits(e: Expr, splits: Mapping[tuple[Var, int], tuple[Expr, Expr]], values: Values) -> Expr:
    """Substitutes variables in `e`: `splits` gives (quotient, remainder) for a variable divided by
    a size, and `values` gives all other variables."""

    def rewrite(x: Expr) -> Expr | None:
        if isinstance(x, Binary) and isinstance(x.a, Var):
            size = expr.dim_of(x.b)
            split = splits.get((x.a, size)) if isinstance(size, int) else None
            if split is not None and x.op in ("floordiv", "floormod"):
                return split[x.op == "floormod"]
        return values.get(x) if isinstance(x, Var) else None

    return expr.transform(e, rewrite)


def sum_of_products(output: Output) -> tuple[Reduce, Expr, Expr] | None:
    """(reduction, left factor, right factor) of an output whose only reduction is a sum of
    products; None for any other."""
    reduces = reduces_of(output.value)
    if len(reduces) != 1 or reduces[0].op != "sum":
        return None
    (reduce,) = reduces
    body = reduce.body
    if not isinstance(body, Binary) or body.op != "mul":
        return None
    return reduce, body.a, body.b


def find_axes(output: Output) -> ContractionAxes | None:
    """The contraction in an output's value, or None where it has not that form."""
    found = sum_of_products(output)
    if found is None:
        return None
    reduce, left, right = found
    weight = loaded(right)
    if weight is None:
        weight = weight_of(right)
    if weight is None or weight.guard is not None:
        return None
    in_left, in_right = expr.free_vars(left), expr.free_vars(right)
    only_left = [a for a in output.axes if a.var in in_left and a.var not in in_right]
    only_right = [a for a in output.axes if a.var in in_right and a.var not in in_left]
    if not only_right:
        return None
    columns = min(only_right, key=lambda a: _step(weight, a.var))
    rows = _row_axis(left, only_left)
    outer = tuple(a for a in output.axes if a is not rows and a is not columns)
    return ContractionAxes(reduce, left, right, weight, rows, columns, outer)


def _row_axis(left: Expr, axes: Sequence[Axis]) -> Axis | None:
    """The axis along which the rows of a tile run, as `ContractionDims.row_axis`: the one with the
    smallest stride in the left operand, whatever the result's order."""
    several = [a for a in axes if a.extent != 1] or axes
    loads = [e for e in expr.nodes(left) if isinstance(e, Load)]
    if not several or not loads:
        return several[-1] if several else None
    # the last of equal ones is the innermost of the result
    return min(reversed(several), key=lambda a: max(_step(load, a.var) for load in loads))


def without_groups(output: Output) -> Output:
    """Splits an output axis i that the left factor uses as `i // n` into two, groups and their `n`
    members, so that only the right factor varies along members."""
    for reduce in reduces_of(output.value):
        if not isinstance(reduce.body, Binary):
            continue
        for e in expr.nodes(reduce.body.a):
            if not isinstance(e, Binary) or e.op != "floordiv":
                continue
            for number, axis in enumerate(output.axes):
                size = expr.dim_of(e.b)
                if e.a is axis.var and size is not None and dims.modulo(axis.extent, size) == 0:
                    return split_axis(output, number, size)
    return output


def _step(load: Load, var: Var) -> int:
    """The stride of `var` in a load's address; 0 where the address is packed."""
    step = expr.coefficient(load.indices[0], var)
    if step is None:
        return 0
    return step if isinstance(step, int) else 1 << 30


def merged_axes(output: Output) -> tuple[Output, ContractionAxes] | None:
    """The output with neighbouring axes merged, and its contraction; None where it has none."""
    output = without_groups(output)
    roles = find_axes(output)
    if roles is None:
        return None
    others = [a for a in output.axes if a is not roles.columns]
    merged, gone = collapse(others, output.address, output.values)
    if gone:
        memo: dict[Expr, Expr] = {}
        keep = [*merged, roles.columns]
        output = output.rewritten(lambda e: expr.substitute(e, gone, memo), keep)
        roles = find_axes(output)
        assert roles is not None
    return output, roles


def loaded(e: Expr) -> Load | None:
    """The load that `e` is or converts; None if it is neither."""
    e = uncast(e)
    return e if isinstance(e, Load) else None


def uncast(e: Expr) -> Expr:
    """The expression inside any number of casts."""
    while isinstance(e, Cast):
        e = e.a
    return e


def word_of(code: Expr) -> Load | None:
    """The load of the word from which a quantised code is unpacked; None if `code` is no unpacked
    code."""
    code = uncast(code)
    if isinstance(code, Binary) and code.op == "or":
        code = uncast(code.a)  # its lowest bits
    if not isinstance(code, Binary) or code.op != "and" or not isinstance(code.a, Binary):
        return None
    word = code.a.a
    return word if isinstance(word, Load) and word.dtype is DType.U32 else None


def weight_of(right: Expr) -> Load | None:
    """The load of the packed words in a right factor with block-quantised weights; None for other
    factors."""
    if isinstance(right, Binary) and right.op == "add":
        right = right.a
    if not isinstance(right, Binary) or right.op != "mul":
        return None
    centred = uncast(right.a)
    return word_of(centred.a) if isinstance(centred, Binary) else None
