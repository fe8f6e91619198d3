"""Operands of GPU matrix products: which contractions suit them, and how lanes stage their elements
in shared memory.

Owns a side's lines in scratch, and which of them a lane brings. What is done with them is
matrices_gpu.py's.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Cast, Expr, Load, Select
from aot.ir.schedule import DOT_GROUP, QUAD
from aot.ir.types import DType
from aot.kernels.ir.nodes import For, LoopKind, Matrix, Scratch, Space, Stmt, Store
from aot.kernels.match.products import ContractionAxes, at_splits, loaded
from aot.kernels.nest.borders import masked
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.rules.products.dots import is_grouped
from aot.kernels.rules.products.product import divided, panel_of
from aot.kernels.rules.products.sum_order import by_weight_step
from aot.kernels.stage.tails import below, where
from aot.target.model import MatrixShape

# bytes behind a line in shared memory, so that lines begin at different banks of it; a matrix's
# rows begin at multiples of so many
PADDING_BYTES = 16


@dataclass(frozen=True)
class MatrixOperands:
    """A contraction in the form of a matrix product: roles of its axes, and its left factor in the
    matrix dtype.

    Attributes:
        left: its left side in the type of the matrices; the right side is in `roles`.
        rows: the axes along which only the left side varies.
        outer: those along which both do.
        points: axes of the sum of one element.
        taps, inner: other axes of the sum, and the innermost.
        panel: columns of weights that lie together.
    """

    shape: MatrixShape
    roles: ContractionAxes
    left: Expr
    rows: tuple[Axis, ...]
    outer: tuple[Axis, ...]
    points: tuple[Axis, ...]
    taps: tuple[Axis, ...]
    inner: Axis
    panel: int

    @property
    def row_count(self) -> Dim:
        return dims.product([a.extent for a in self.rows])

    @property
    def others(self) -> Dim:
        return dims.product([a.extent for a in self.outer])

    @staticmethod
    def of(nest: Nest, output: Output, roles: ContractionAxes, panel: int) -> MatrixOperands | None:
        """The operands of a contraction as matrices; None where the target has no suitable
        matrices."""
        gpu = nest.target.gpu
        if gpu is None or not gpu.matrices or output.others or roles.rows is None:
            return None
        if loaded(roles.right) is not roles.weight or panel % QUAD:
            return None
        for shape in gpu.matrices:
            if roles.reduce.dtype is not shape.sums:
                continue
            left, right = narrowed(roles.left, shape.left), narrowed(roles.right, shape.right)
            if left is None or right is None:
                continue
            found = MatrixOperands._with(roles, shape, left, panel)
            if found is not None:
                return found
        return None

    @staticmethod
    def _with(
        roles: ContractionAxes, shape: MatrixShape, left: Expr, panel: int
    ) -> MatrixOperands | None:
        axes = [Axis(v, n) for v, n in roles.reduce.axes]
        several = by_weight_step(roles.right, [a for a in axes if a.extent != 1])
        if not several or roles.rows is None:
            return None
        *taps, inner = sorted(several, key=lambda a: is_grouped(roles, a))
        if dims.modulo(inner.extent, shape.terms) != 0:
            return None
        if not _has_columns(roles, inner) and not _has_lines(roles):
            return None
        in_right = expr.free_vars(roles.right)
        around = (*roles.outer, roles.rows)
        rows = tuple(a for a in around if a.var not in in_right)
        outer = tuple(a for a in around if a.var in in_right)
        points = tuple(a for a in axes if a.extent == 1)
        return MatrixOperands(*(shape, roles, left, rows, outer, points, tuple(taps), inner, panel))

    def row_at(self, nest: Nest, number: Expr, stmts: list[Stmt]) -> Values:
        """The values of the axes of rows at row `number`."""
        found: Values = {}
        nest.decode(nest.let(number, stmts, "m"), self.rows, found, stmts)
        return found


def _has_columns(roles: ContractionAxes, inner: Axis) -> bool:
    """Whether the terms of a weight column are contiguous, all of them or in groups of four."""
    step = expr.coefficient(roles.weight.indices[0], inner.var)
    return step == 1 or (DOT_GROUP == QUAD and is_grouped(roles, inner))


def _has_lines(roles: ContractionAxes) -> bool:
    """Whether columns of the right side are contiguous and their count is a multiple of a vec4."""
    step = expr.coefficient(roles.weight.indices[0], roles.columns.var)
    return roles.is_packed or (step == 1 and dims.modulo(roles.columns.extent, QUAD) == 0)


def narrowed(e: Expr, dtype: DType) -> Expr | None:
    """`e` in a narrower dtype that holds all its values; None where it may not."""
    if e.dtype is dtype:
        return e
    if isinstance(e, Cast) and e.a.dtype is dtype:
        return e.a
    if isinstance(e, Select):
        a, b = narrowed(e.a, dtype), narrowed(e.b, dtype)
        return None if a is None or b is None else expr.select(e.condition, a, b)
    return None


class Lanes:
    """The lanes of a workgroup, arranged by subgroup."""

    def __init__(self, nest: Nest, groups: int) -> None:
        self.nest, self.count = nest, groups

    def groups(self, body: Callable[[Expr], list[Stmt]]) -> Stmt:
        """A loop over the subgroups of a workgroup, with `body(number)`."""
        group = self.nest.builder.var("group")
        return For(group, self.count, LoopKind.LANE, tuple(body(group)), axis=1)

    def each(self, body: Callable[[Expr], list[Stmt]]) -> Stmt:
        """A loop over all lanes of a workgroup, with `body(number)`."""
        size = self.nest.lanes // self.count
        lane = self.nest.builder.var("lane")

        def of_group(group: Expr) -> list[Stmt]:
            number = expr.linear((group, size), lane)
            return [For(lane, size, LoopKind.LANE, tuple(body(number)))]

        return self.groups(of_group)

    def shared(
        self,
        count: int,
        lane: Expr,
        body: Callable[[Expr], list[Stmt]],
        loop: Callable[..., list[Stmt]],
    ) -> list[Stmt]:
        """One lane's share of `count` items that lanes take in turn."""
        used = min(count, self.nest.lanes)
        stmts = loop(count // used, lambda n: body(expr.linear((n, used), lane)), "n")
        return where(None if used == self.nest.lanes else below(lane, used), stmts)


class Side:
    """One operand of a matrix product, as lines of elements, of which lanes stage blocks in shared
    memory.

    Attributes:
        lines, length: of a block.
        has_lines: whether neighbours along a line are neighbours in memory.
        is_transposed: whether lines are columns of matrices.
    """

    def __init__(
        self,
        lanes: Lanes,
        name: str,
        dtype: DType,
        size: tuple[int, int],
        element: Callable[[Values, Expr, Expr, Expr, list[Stmt]], Callable[[Expr], Expr]],
        *,
        has_lines: bool,
        is_transposed: bool = False,
    ) -> None:
        """`element(values, start, line, place, stmts)` returns a function from k to the k-th
        element after a place of a line, where the block begins at `start`."""
        self.lanes, self.nest = lanes, lanes.nest
        self.lines, self.length = size
        self.element, self.has_lines = element, has_lines
        self.is_transposed = is_transposed
        self.together = QUAD if has_lines else 1
        self.parts = self.length // self.together  # of a line
        builder = self.nest.builder
        step = self.length + PADDING_BYTES // dtype.bytes
        self.shared: Scratch = builder.scratch(name, dtype, (self.lines, step), Space.WORKGROUP)
        own = -(-self.lines * self.parts // self.nest.lanes), self.together
        self.held: Scratch = builder.scratch(f"{name}_held", dtype, own)

    def matrix(self, row: Expr, column: Expr) -> Matrix:
        """The matrix in shared memory whose first element is at (row, column)."""
        at = (column, row) if self.is_transposed else (row, column)
        return Matrix(self.shared, at, self.shared.shape[-1], self.is_transposed)

    def _places(self, number: Expr, stmts: list[Stmt]) -> tuple[Expr, Expr]:
        """(line, place) of the part with a number, arranged so that neighbouring lanes read
        neighbouring memory."""
        outer, inner = divided(number, self.parts if self.has_lines else self.lines)
        line, part = (outer, inner) if self.has_lines else (inner, outer)
        line = self.nest.let(line, stmts, "line")
        return line, self.nest.let(expr.linear((part, self.together)), stmts, "part")

    def _shares(self, lane: Expr, body: Callable[[Expr, Expr, Expr], list[Stmt]]) -> list[Stmt]:
        """`body(n, line, place)` for the n-th part that a lane stages, all of them unrolled."""
        used = min(self.lines * self.parts, self.nest.lanes)

        def one(n: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            line, place = self._places(expr.linear((n, used), lane), stmts)
            return stmts + body(n, line, place)

        stmts = self.nest.unrolled(self.held.shape[0], one, "n")
        return where(None if used == self.nest.lanes else below(lane, used), stmts)

    def take(self, values: Values, start: Expr, lane: Expr) -> list[Stmt]:
        """Statements that load a lane's elements of a block into its registers."""

        def part(n: Expr, line: Expr, place: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            element = self.element(values, start, line, place, stmts)
            return stmts + self.nest.unrolled(
                self.together, lambda u: [Store(self.held, (n, u), element(u))]
            )

        return self._shares(lane, part)

    def put(self, lane: Expr) -> list[Stmt]:
        """Statements that store the elements that `take` loaded to shared memory."""

        shared, held = self.shared, self.held

        def part(n: Expr, line: Expr, place: Expr) -> list[Stmt]:
            def one(u: Expr) -> list[Stmt]:
                at = line, expr.add(place, u)
                return [Store(shared, at, Load(held, (n, u), held.dtype))]

            return self.nest.unrolled(self.together, one)

        return self._shares(lane, part)


def left_side(lanes: Lanes, product: MatrixOperands, rows: int, terms: int) -> Side:
    """The rows of the left factor as staged lines; rows past the end repeat the last one."""
    nest, inner = lanes.nest, product.inner.var

    def element(
        values: Values, first: Expr, row: Expr, term: Expr, stmts: list[Stmt]
    ) -> Callable[[Expr], Expr]:
        number = expr.add(first, row)
        if dims.modulo(product.row_count, rows) != 0:
            last = expr.index(dims.add(product.row_count, -1))
            number = expr.binary("min", number, last)
        here = {**values, **product.row_at(nest, number, stmts)}
        start = expr.add(values[inner], term)
        return lambda u: expr.substitute(product.left, {**here, inner: expr.add(start, u)})

    read = list(expr.loads(product.left))
    has_lines = any(expr.coefficient(e.indices[0], inner) == 1 for e in read)
    dtype = product.shape.left
    return Side(lanes, "left", dtype, (rows, terms), element, has_lines=has_lines)


def right_side(lanes: Lanes, product: MatrixOperands, terms: int, columns: int) -> Side:
    """The weights as staged lines along columns, or along terms if these are contiguous. Columns
    past the last panel repeat that panel; without panels they are zeros.
    """
    roles, panel, inner = product.roles, product.panel, product.inner.var
    extent = roles.columns.extent
    padded = dims.multiply(dims.ceil_divide(extent, panel), panel)
    covers = dims.modulo(padded if roles.is_packed else extent, columns) == 0
    is_transposed = _has_columns(roles, product.inner)

    def element(
        values: Values, first: Expr, line: Expr, place: Expr, stmts: list[Stmt]
    ) -> Callable[[Expr], Expr]:
        term, column = (place, line) if is_transposed else (line, place)
        term, column = expr.add(values[inner], term), expr.add(first, column)
        number, lane = panel_of(roles, panel, column, is_there=covers or not roles.is_packed)
        is_there = None if covers or roles.is_packed else below(column, extent)

        def one(u: Expr) -> Expr:
            zero = expr.index(0)
            along, down = (zero, u) if is_transposed else (u, zero)
            # four terms from a multiple of four on are those of a group
            group = expr.binary("floordiv", term, expr.index(QUAD))
            splits = {
                (roles.columns.var, panel): (number, expr.add(lane, along)),
                (inner, QUAD): (group, down),
            }
            here = {
                **values,
                inner: expr.add(term, down),
                roles.columns.var: expr.add(column, along),
            }
            found = at_splits(roles.right, splits, here)
            found = found if is_there is None else masked(found, is_there)
            weight = narrowed(found, product.shape.right)
            assert weight is not None
            return weight

        return one

    size = (columns, terms) if is_transposed else (terms, columns)
    dtype = product.shape.right
    return Side(
        *(lanes, "right", dtype, size, element), has_lines=True, is_transposed=is_transposed
    )
