"""Matches separable resizes: a resampling along rows and columns appears as nested sums of one
expression.

Owns which such expressions are resizes, and what becomes of others; chooses no loops.
"""

from __future__ import annotations

from aot.base.records import dataclass
from aot.ir import expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Cast, Const, Expr, Load, Reduce, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer
from aot.kernels.nest.inline import reduces_of
from aot.kernels.nest.nest import Output, Values, combined


@dataclass(frozen=True, eq=False)
class Resized:
    """A separable resize: a sum over one axis's table of sums over the other axis's table.

    Attributes:
        first, last: the sum that is made first, and the one around it.
        columns: the one of both whose table says of each column of the result what it reads.
        data: the load of what both name, and around it the conversion to what is added up.
        leaf: that conversion, or the load itself.
        row, column: the positions that tables name, as they stand in the address of `data`.
        extents: of rows and columns that are read.
        row_step: how far apart rows lie in memory; columns are neighbours.
    """

    first: Reduce
    last: Reduce
    columns: Reduce
    data: Load
    leaf: Expr
    row: Expr
    column: Expr
    extents: tuple[int, int]
    row_step: Dim

    @property
    def is_columns_first(self) -> bool:
        return self.columns is self.first

    @property
    def rows(self) -> Reduce:
        """The reduction along the table of rows."""
        return self.last if self.is_columns_first else self.first

    def inside(self, reduce: Reduce) -> Expr:
        """The body of one of the two reductions: the inner reduction for the outer one, else the
        load."""
        return self.leaf if reduce is self.first else self.first

    def at(self, e: Expr, row: Expr, column: Expr, values: Values) -> Expr:
        """The expression `e` for a given row and column of the source, and `values` for indices of
        the result."""
        r, c = Var("r", DType.INDEX), Var("c", DType.INDEX)
        placed = expr.transform(e, {self.row: r, self.column: c}.get)
        return expr.substitute(placed, {**values, r: row, c: column})


def nested(output: Output) -> tuple[Reduce, Reduce] | None:
    """(inner, outer) for a reduction whose body contains another one that depends on its variables;
    None if there is none.
    """
    for last in dict.fromkeys(r for value in output.values for r in reduces_of(value)):
        own = {var for var, _ in last.axes}
        for first in reduces_of(last.body):
            if first is not last and own & expr.free_vars(first):
                return first, last
    return None


def written_out(output: Output, first: Reduce) -> Output:
    """The output with an inner reduction of constant extent unrolled into its terms."""
    total: Expr | None = None
    ((var, count),) = first.axes
    for k in range(int(count)):
        term = expr.substitute(first.body, {var: expr.index(k)})
        total = term if total is None else combined(first.op, total, term)
    memo: dict[Expr, Expr] = {}
    return output.rewritten(
        lambda e: expr.transform(e, lambda x: total if x is first else None, memo)
    )


def found_pair(first: Reduce, last: Reduce, row: Var, column: Var) -> Resized | None:
    """The separable resize that two nested sums compute along axes `row` and `column`; None if they
    compute none.
    """
    if first.op != "sum" or last.op != "sum" or len(first.axes) != 1 or len(last.axes) != 1:
        return None
    (t1, count), (t2, other) = first.axes[0], last.axes[0]
    if not isinstance(count, int) or not isinstance(other, int):
        return None
    places = [e for e in expr.nodes(first.body) if clamped_extent(e) is not None and expr.loads(e)]
    own = [e for e in places if t1 in expr.free_vars(e)]
    outer = [e for e in places if t2 in expr.free_vars(e)]
    if len(own) != 1 or len(outer) != 1 or own == outer:
        return None
    data = [
        load
        for load in expr.loads(first.body)
        if all(any(e is p for e in expr.nodes(load.indices[0])) for p in (*own, *outer))
    ]
    if len(data) != 1 or data[0].guard is not None or not isinstance(data[0].source, Buffer):
        return None
    free = {e: expr.free_vars(e) for e in (*own, *outer)}
    if free[own[0]] == {t1, column} and free[outer[0]] == {t2, row}:
        is_columns_first = True
    elif free[own[0]] == {t1, row} and free[outer[0]] == {t2, column}:
        is_columns_first = False
    else:
        return None
    rows, columns = (outer[0], own[0]) if is_columns_first else (own[0], outer[0])
    row_step = _row_step(data[0], rows, columns)
    height, width = clamped_extent(rows), clamped_extent(columns)
    if row_step is None or height is None or width is None:
        return None
    held, total = Var("d", data[0].dtype), Var("s", first.dtype)
    # all else of the inner sum is of its own axis, and in the outer one of that one's
    rest = expr.transform(first.body, lambda e: held if e is data[0] else None)
    if expr.free_vars(rest) & {t2, row if is_columns_first else column}:
        return None
    around = expr.transform(last.body, lambda e: total if e is first else None)
    if expr.free_vars(around) & {t1, column if is_columns_first else row}:
        return None
    leaf: Expr = data[0]
    if leaf.dtype is not DType.F32:
        casts = [e for e in expr.nodes(first.body) if isinstance(e, Cast) and e.a is data[0]]
        if len(casts) != 1 or casts[0].dtype is not DType.F32:
            return None
        leaf = casts[0]
    if first.dtype is not DType.F32:
        return None
    chosen = first if is_columns_first else last
    extents = height, width
    return Resized(first, last, chosen, data[0], leaf, rows, columns, extents, row_step)


def picked_pair(output: Output, row: Var, column: Var) -> tuple[Resized, Output] | None:
    """(resize, output) for a nearest-neighbour resize by tables along both axes, rewritten as sums
    of one term; None if the output is none.
    """
    loads = dict.fromkeys(x for value in output.values for x in expr.loads(value))
    found: list[tuple[Load, Expr, Expr]] = []
    for data in loads:
        nodes = expr.nodes(data.indices[0])
        places = [e for e in nodes if clamped_extent(e) is not None and expr.loads(e)]
        rows = [e for e in places if expr.free_vars(e) == {row}]
        columns = [e for e in places if expr.free_vars(e) == {column}]
        if len(rows) == len(columns) == 1 and len(places) == 2:
            found.append((data, rows[0], columns[0]))
    if len(found) != 1:
        return None
    ((data, place, other),) = found
    if data.guard is not None or not isinstance(data.source, Buffer) or data.dtype is not DType.F32:
        return None
    height, width = clamped_extent(place), clamped_extent(other)
    row_step = _row_step(data, place, other)
    if row_step is None or height is None or width is None:
        return None
    first = Reduce("sum", ((Var("t"), 1),), data, data.dtype)
    last = Reduce("sum", ((Var("t"), 1),), first, data.dtype)
    made = output.rewritten(lambda e: expr.transform(e, lambda x: last if x is data else None))
    extents = height, width
    return Resized(first, last, first, data, data, place, other, extents, row_step), made


def _row_step(data: Load, row: Expr, column: Expr) -> Dim | None:
    """The row stride of a load whose columns are contiguous; None for other loads."""
    r, c = Var("r", DType.INDEX), Var("c", DType.INDEX)
    address = expr.transform(data.indices[0], {row: r, column: c}.get)
    return expr.coefficient(address, r) if expr.coefficient(address, c) == 1 else None


def clamped_extent(position: Expr) -> int | None:
    """The extent to which an expression clamps a position; None if it clamps none."""
    match position:
        case Binary(op="max", a=Binary(op="min", b=Const(value=last)), b=Const(value=0)):
            return int(last) + 1
        case _:
            return None
