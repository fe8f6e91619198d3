"""Groups of four contiguous result elements per GPU lane, loaded and stored together.

Owns when elementwise and reducing kernels do so, and their loops: where the innermost elements of
result and operands lie side by side. A lane's share of addresses, guards and loops serves four.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aot.ir import dims, expr
from aot.ir.expr import Expr, Load, Reduce, Var
from aot.kernels.ir.nodes import Stmt, Store
from aot.kernels.nest.nest import Axis, Nest, Output, Values, combine, identity

COUNT = 4
# elements of a result below which lanes would have too little to do
LEAST_ELEMENTS = 1 << 13
# nodes of an expression beyond which four copies of it are most of a shader
MOST_NODES = 100


class Neighbours:
    """Loops whose last axis is divided into groups of COUNT contiguous elements per lane."""

    def __init__(self, nest: Nest, output: Output, axes: Sequence[Axis]) -> None:
        self.nest, self.output = nest, output
        *outer, self.inner = axes
        group = nest.builder.var("q")
        self.axes = (*outer, Axis(group, dims.floor_divide(self.inner.extent, COUNT)))

    @staticmethod
    def of(nest: Nest, output: Output, axes: Sequence[Axis]) -> Neighbours | None:
        """The grouped loops of an output; None where results or loads are not contiguous or not
        aligned, or there are few elements."""
        if not nest.is_gpu or not axes or output.others or output.buffer.dtype.bytes != 4:
            return None
        inner, total = axes[-1], dims.product([axis.extent for axis in axes])
        if dims.modulo(inner.extent, COUNT) != 0 or output.buffer.alignment % (4 * COUNT) != 0:
            return None
        if isinstance(total, int) and total < LEAST_ELEMENTS:
            return None
        if expr.coefficient(output.address, inner.var) != 1:
            return None
        nodes = expr.nodes(output.value)
        if len(nodes) > MOST_NODES or not _are_side_by_side(expr.loads(output.value), inner.var):
            return None
        return Neighbours(nest, output, axes)

    def _at(self, values: Values, u: Expr) -> Values:
        first = expr.mul(values[self.axes[-1].var], expr.index(COUNT))
        return {**values, self.inner.var: expr.add(first, u)}

    def _each(self, body: Callable[[Expr], Sequence[Stmt]]) -> list[Stmt]:
        return self.nest.unrolled(COUNT, body)

    def stores(
        self, values: Values, done: Callable[[Expr], dict[Expr, Expr]] = lambda _: {}
    ) -> list[Stmt]:
        """The stores of a group's elements; `done` gives the values of each element's
        reductions."""
        return self._each(lambda u: self.output.stores(self.nest, self._at(values, u), done(u).get))

    def reduced(self, values: Values, reduce: Reduce, lane: Expr) -> list[Stmt]:
        """Statements that reduce for each element of a group, then store the group."""
        nest = self.nest
        acc = nest.builder.scratch("acc", reduce.dtype, (COUNT, nest.lanes))

        def add(u: Expr, taps: Values) -> list[Stmt]:
            term = expr.substitute(reduce.body, {**self._at(values, u), **taps})
            total = combine(reduce.op, Load(acc, (u, lane), acc.dtype), term)
            return [Store(acc, (u, lane), total)]

        def loops(axes: Sequence[tuple[Var, dims.Dim]], taps: Values) -> list[Stmt]:
            if not axes:
                return self._each(lambda u: add(u, taps))
            (var, extent), *rest = axes
            return nest.serial(extent, lambda i: loops(rest, {**taps, var: i}), var.name)

        nothing = identity(reduce.op, reduce.dtype)
        stmts = self._each(lambda u: [Store(acc, (u, lane), nothing)])
        stmts += loops(reduce.axes, {})
        return stmts + self.stores(values, lambda u: {reduce: Load(acc, (u, lane), acc.dtype)})


def _are_side_by_side(loads: Iterable[Load], var: Var) -> bool:
    """Whether loads are contiguous or constant along `var`, without guards that depend on it."""
    for load in loads:
        if any(expr.coefficient(index, var) not in (0, 1) for index in load.indices):
            return False
        if load.guard is not None and var in expr.free_vars(load.guard):
            return False
    return True
