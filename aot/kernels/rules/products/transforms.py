"""Winograd transforms on a GPU, each a separate dispatch: one lane transforms one tile.

Owns the loops of `winograd_inputs` and `winograd_outputs`: a lane loads a tile of one channel,
transforms its columns and then its rows, and stores all that comes of it. Lanes go along what lies
side by side, as a rule the channels. The arithmetic of a line is winograd_lines.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.analysis.stages import heaviest
from aot.ir import dims, expr
from aot.ir.expr import Binary, Expr, Load, Reduce
from aot.ir.record import call_of
from aot.kernels.ir.nodes import For, If, LoopKind, Space, Stmt, Store
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.inline import reduces_of
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.nest.tiles import is_long
from aot.kernels.rules.products.winograd_lines import (
    INPUT_LINES,
    OUTPUT_LINES,
    Line,
    transformed,
)
from aot.kernels.stage.tails import where, within
from aot.ops.winograd_parts import WINOGRAD_INPUTS, matrices_of, tiles_along


def schedule_transform(work: Work) -> Build | None:
    """The loops of a Winograd transform of inputs or of sums; None for any other output."""
    nest, output, call = work.nest, work.output, call_of(heaviest(work.ops))
    found = _summed(output)
    own = {axis.var.name for axis in output.axes}
    is_of_inputs = call.record is WINOGRAD_INPUTS
    (result,), whole = call.result_types, (0,) if is_of_inputs else (2, 3)
    if found is None or any(result.dims[d] != 1 and f"i{d}" not in own for d in whole):
        return None
    side, outputs = matrices_of(call).side, call.int("outputs")
    if is_of_inputs:
        return _ToPoints(nest, output, found, side, INPUT_LINES[outputs]).build
    return _ToOutputs(nest, output, found, side, OUTPUT_LINES[outputs], outputs).build


def _summed(output: Output) -> tuple[Reduce, Expr] | None:
    """(reduction, factor that loads data) of a sum of products; None if the output has none."""
    reduces = {reduce for value in output.values for reduce in reduces_of(value)}
    if len(reduces) == 1:
        (reduce,) = reduces
        if isinstance(reduce.body, Binary) and reduce.body.op == "mul" and len(reduce.axes) == 2:
            for side in (reduce.body.a, reduce.body.b):
                if expr.loads(side):
                    return reduce, side
    return None


class _Transform:
    """The common parts of Winograd's input and output transforms.

    Attributes:
        reduce, source: the sum, and the element of a tile in it.
        taps: how many elements a line of a tile has.
        line: what becomes of a line.
    """

    def __init__(
        self, nest: Nest, output: Output, found: tuple[Reduce, Expr], taps: int, line: Line
    ) -> None:
        self.nest, self.output, self.taps, self.line = nest, output, taps, line
        self.reduce, self.source = found
        (self.first, _), (self.second, _) = self.reduce.axes
        self.named = {axis.var.name: axis for axis in output.axes}

    def _spread(
        self, axes: Sequence[Axis], tile: Callable[[Values, Expr], list[Stmt]]
    ) -> tuple[Stmt, ...]:
        """A loop over all `axes` with `tile(indices, lane)`, one per lane."""
        nest, lanes = self.nest, self.nest.lanes
        total = dims.product([axis.extent for axis in axes])
        group = nest.builder.var("g")

        def one(lane: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            whole = nest.let(expr.linear((group, lanes), lane), stmts, "n")
            values: Values = {}
            inside: list[Stmt] = []
            if axes:
                nest.decode(whole, axes, values, inside)
            return stmts + where(within(whole, total, lanes), inside + tile(values, lane))

        body = (nest.spread(lanes, one),)
        return (For(group, dims.ceil_divide(total, lanes), LoopKind.WORKGROUP, body, axis=0),)

    def _transformed(self, values: Values, into: list[Stmt]) -> list[list[Expr]]:
        """The transformed elements of the tile at `values`, row by row."""
        nest, numbers = self.nest, [expr.index(n) for n in range(self.taps)]

        def element(i: int, j: int) -> Expr:
            at = {**values, self.first: numbers[i], self.second: numbers[j]}
            return nest.let(expr.substitute(self.source, at), into, "d")

        return list(transformed(self.line, lambda e: nest.let(e, into, "h"), self.taps, element))


class _ToPoints(_Transform):
    """Transforms an input tile into its points, the result's first dim."""

    def build(self) -> tuple[Stmt, ...]:
        point = self.named["i0"]
        others = [axis for axis in self.output.axes if axis is not point]

        def tile(values: Values, lane: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            rows = self._transformed(values, stmts)
            for number, value in enumerate(value for row in rows for value in row):
                place = {**values, point.var: expr.index(number)}
                done: dict[Expr, Expr] = {self.reduce: value}
                stmts += self.output.stores(self.nest, place, done.get)
            return stmts

        return self._spread(others, tile)


class _ToOutputs(_Transform):
    """Transforms the sums at all points into an output tile, and runs the epilogue."""

    def __init__(
        self,
        nest: Nest,
        output: Output,
        found: tuple[Reduce, Expr],
        taps: int,
        line: Line,
        outputs: int,
    ) -> None:
        super().__init__(nest, output, found, taps, line)
        self.outputs = outputs

    def build(self) -> tuple[Stmt, ...]:
        # an extent of 1 has no axis: its only output is the first of its tile
        along = [axis for d in (2, 3) if (axis := self.named.get(f"i{d}")) is not None]
        tiles = {axis: Axis(axis.var, tiles_along(axis.extent, self.outputs)) for axis in along}
        axes = [tiles.get(axis, axis) for axis in self.output.axes]

        def tile(values: Values, lane: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            size = expr.index(self.outputs)
            starts = {
                axis.var: self.nest.let(expr.mul(values[axis.var], size), stmts, "start")
                for axis in along
            }
            at = {**values, **starts}
            made = self._transformed(at, stmts)
            return stmts + self._stores(made, at, lane)

        return self._spread(axes, tile)

    def _stores(self, made: list[list[Expr]], at: Values, lane: Expr) -> list[Stmt]:
        nest = self.nest
        rows, columns = self.named.get("i2"), self.named.get("i3")
        height, width = (1 if axis is None else self.outputs for axis in (rows, columns))

        def store(y: Expr, x: Expr, value: Expr) -> list[Stmt]:
            place, conditions = dict(at), list[Expr]()
            for axis, number in ((rows, y), (columns, x)):
                if axis is not None:
                    place[axis.var] = expr.add(at[axis.var], number)
                    if dims.modulo(axis.extent, self.outputs) != 0:
                        end = expr.index(axis.extent)
                        conditions.append(expr.binary("lt", place[axis.var], end))
            done: dict[Expr, Expr] = {self.reduce: value}
            stores = self.output.stores(nest, place, done.get)
            is_there = expr.all_of(conditions)
            return stores if is_there is None else [If(is_there, tuple(stores))]

        places = [(y, x) for y in range(height) for x in range(width)]
        if not is_long(self.output.values, self.reduce):
            return [
                stmt for y, x in places for stmt in store(expr.index(y), expr.index(x), made[y][x])
            ]
        # what follows once for all outputs: written out for each it would be most of a shader
        shape = (height, width, nest.lanes)
        held = nest.builder.scratch("tile", self.reduce.dtype, shape, Space.PRIVATE)
        stmts: list[Stmt] = [
            Store(held, (expr.index(y), expr.index(x), lane), made[y][x]) for y, x in places
        ]

        def one(y: Expr, x: Expr) -> list[Stmt]:
            return store(y, x, Load(held, (y, x, lane), held.dtype))

        return stmts + nest.serial(
            height, lambda y: nest.serial(width, lambda x: one(y, x), "x"), "y"
        )
