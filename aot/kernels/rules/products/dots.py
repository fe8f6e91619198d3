"""Sums of products as dot products of packed words: the rows that they multiply.

Weights of 8 bits lie in groups of `DOT_GROUP` along what is summed, one group a word, and weights
of bf16 in groups of half as many. What some rows of the left side have for all of the sum is first
brought into scratch side by side, padding included, and serves several tiles of columns: as bytes
where the target multiplies bytes, else as pairs of 16 bits. All sums of integers are exact. Chooses
no tile sizes; dot_tiles.py has the tiles.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.contraction import has_narrow_products
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Bitcast, Cast, Const, Expr, Load, Unpack, Var
from aot.ir.schedule import DOT_GROUP, word_terms
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Scratch, Space, Stmt, Store
from aot.kernels.match.products import ContractionAxes, at_splits
from aot.kernels.nest.nest import Axis, Nest, Values
from aot.kernels.nest.tiles import Shape
from aot.kernels.rules.products.row_vectors import holds_row_vectors
from aot.kernels.rules.products.sum_order import by_weight_step

# tiles, and columns, that rows brought into scratch serve, so that this costs little beside them
TILES_TOGETHER, COLUMNS_TOGETHER = 4, 64
NARROWEST = 4  # lanes of the narrowest vectors that bring a row into scratch
# the words of what is multiplied as it is, and the dtypes of their sums
WORDS = {DType.I8: DType.I8X4, DType.U8: DType.U8X4, DType.BF16: DType.BF16X2}
SUMS = {DType.I8: DType.I32, DType.U8: DType.I32, DType.BF16: DType.F32}
# the ones that take a shift less first: LLVM adds what is computed in fewer steps first
_SPLIT = (1, 3), (0, 2)
# comparisons that hold between two numbers if they hold at both
_BOUNDS = ("lt", "le", "gt", "ge")


@dataclass(frozen=True)
class DotAxes:
    """The axes, dtypes and layout of a sum computed by dot products of words.

    Attributes:
        taps: the axes of the sum but the last one, outermost first.
        grouped: the axis along which the weights lie in groups.
        narrow: the left side before it is widened to the sum's dtype.
        staged: the dtype in which it is brought into scratch.
        step: how far apart the weights' groups lie that follow each other.
        group: of how many elements along the grouped axis there are zeros behind the last, too.
        terms: of a word of weights.
        is_split: whether bytes are brought into scratch as pairs of 16 bits, every other byte of a
            group in each.
        is_narrow: whether any two products fit 16 bits together.
    """

    taps: tuple[Axis, ...]
    grouped: Axis
    narrow: Expr
    staged: DType
    step: Dim
    group: int = DOT_GROUP
    terms: int = DOT_GROUP
    is_split: bool = False
    is_narrow: bool = False

    @property
    def width(self) -> int:
        """The extent of the grouped axis, rounded up to whole groups."""
        return -(-_number(self.grouped) // self.group) * self.group

    @property
    def size(self) -> int:
        """Elements of a staged row."""
        total = self.width
        for axis in self.taps:
            total *= _number(axis)
        return total

    @staticmethod
    def of(nest: Nest, roles: ContractionAxes, panel: int, max_weight: int) -> DotAxes | None:
        """The axes of a contraction as a sum of dot products; None if its weights are not grouped,
        the dtypes have no dot product, or a row does not fit scratch.

        Args:
            max_weight: how far from 0 weights of 8 bits are at most.
        """
        weight, left, right = roles.weight, roles.left, roles.right
        is_sum = SUMS.get(weight.dtype) is roles.reduce.dtype
        has_words = nest.lanes > 1 or nest.target.sums_scalar_pairs
        if nest.is_gpu or not has_words or not is_sum:
            return None
        narrow = left.a if isinstance(left, Cast) else left
        is_float = weight.dtype is DType.BF16
        if narrow.dtype not in (*WORDS, DType.I16) or is_float != (narrow.dtype is DType.BF16):
            return None
        if not isinstance(right, Cast) or right.a is not weight:
            return None
        axes = [Axis(v, n) for v, n in roles.reduce.axes]
        grouped = next((a for a in axes if is_grouped(roles, a)), None)
        if grouped is None or not all(isinstance(a.extent, int) for a in axes):
            return None
        taps = by_weight_step(roles.weight, [a for a in axes if a is not grouped])
        is_narrow = weight.dtype is DType.I8 and has_narrow_products(narrow.dtype, max_weight)
        staged = nest.target.dot_dtype(narrow.dtype, weight.dtype, is_narrow=is_narrow)
        step = _step_of_groups(roles, grouped, taps, panel)
        if step is None:
            return None
        is_narrow = is_narrow and nest.target.sums_narrow_bytes(staged, weight.dtype)
        terms = word_terms(weight.dtype)
        found = DotAxes(
            tuple(taps), grouped, narrow, staged, step, terms, terms, is_narrow=is_narrow
        )
        # a short row would be split word by word, which costs more than its products save
        is_split = staged is DType.I16 and narrow.dtype in WORDS and not is_float
        if is_split and found.size >= nest.target.vector_bytes:
            found = replace(found, is_split=True)
        row_bytes = found.size * (found.staged.bytes + (1 if found.is_split else 0))
        fits = row_bytes <= nest.target.scratch_bytes
        return found if fits and found._is_in_order(weight) else None

    def _is_in_order(self, weight: Load) -> bool:
        """Whether the groups of all taps follow each other in the weights' memory."""
        step = dims.multiply(self.step, self.width // self.terms)
        for axis in reversed(self.taps):
            if expr.coefficient(weight.indices[0], axis.var) != step:
                return False
            step = dims.multiply(step, _number(axis))
        return True


def _number(axis: Axis) -> int:
    return axis.count


def is_grouped(roles: ContractionAxes, axis: Axis) -> bool:
    """Whether weights are stored in groups along an axis; a single group shows in its strides."""
    address, terms = roles.weight.indices[0], word_terms(roles.weight.dtype)
    if isinstance(axis.extent, int) and axis.extent <= terms:
        has_words = roles.is_packed or expr.coefficient(address, roles.columns.var) == terms
        return has_words and expr.coefficient(address, axis.var) == 1
    return any(
        isinstance(e, Binary)
        and e.op == "floormod"
        and e.a is axis.var
        and expr.dim_of(e.b) == terms
        for e in expr.nodes(address)
    )


def _step_of_groups(
    roles: ContractionAxes, grouped: Axis, taps: Sequence[Axis], panel: int
) -> Dim | None:
    """The stride between consecutive groups of weights along an axis, then along taps; None where
    it is no constant.
    """
    terms = word_terms(roles.weight.dtype)
    if roles.is_packed:
        return panel * terms
    if _number(grouped) <= terms:
        return expr.coefficient(roles.weight.indices[0], taps[-1].var) if taps else 0
    number, zero = Var("g"), expr.index(0)
    split = at_splits(roles.weight, {(grouped.var, terms): (number, zero)}, {})
    assert isinstance(split, Load)
    return expr.coefficient(split.indices[0], number)


class DotRows(ABC):
    """Rows of the left factor in the form in which dot product tiles read them.

    Attributes:
        rows: how many there are at a time.
    """

    def __init__(self, nest: Nest, roles: ContractionAxes, axes: DotAxes, rows: int) -> None:
        self.nest, self.roles, self.axes, self.rows = nest, roles, axes, rows

    @abstractmethod
    def fill(self, values: Values, first: Expr) -> list[Stmt]:
        """Statements that provide the rows from `first` to tiles; rows past the end repeat the last
        one."""

    def narrow_load(self) -> Load:
        assert isinstance(self.axes.narrow, Load)
        return self.axes.narrow

    def has_row_vectors(self, rows: int, columns: int) -> bool:
        """Whether a tile keeps a vector of words of each row in registers, for dot products by
        lane."""
        is_by_lane = self.nest.target.multiplies_by_lane and self.axes.staged is not DType.I16
        return is_by_lane and holds_row_vectors(self.nest, rows, columns)

    def parts(self, part: int) -> tuple[int, int]:
        """The byte numbers, within a group, that a half of it holds."""
        return _SPLIT[part] if self.axes.is_split else (2 * part, 2 * part + 1)


class WordRows(DotRows):
    """Rows that tiles read one word at a time."""

    @abstractmethod
    def word_of(self, at: Values, row: Expr, group: Expr, part: int) -> Expr:
        """The load of a group's word in the row at indices `at`, number `row` of the tile. A group
        of 16-bit elements has two words; `part` selects one."""


class CopiedRows(DotRows):
    """Rows that are copied into scratch.

    Attributes:
        held: where their elements are first: [row, element].
        may_overlap: whether a vector may begin at any place of a row.
    """

    held: Scratch
    may_overlap = True

    def _row(self, values: Values, first: Expr, r: Expr) -> list[Stmt]:
        rows = self.roles.rows
        has_all = rows is None or dims.modulo(rows.extent, self.rows) == 0
        shape = Shape(self.rows, 1, 1, has_all, True)
        here = {**values, **shape.row_values(rows, first, r, is_clamped=True)}
        return self._taps(list(self.axes.taps), here, r, expr.index(0))

    def _taps(self, taps: list[Axis], here: Values, r: Expr, at: Expr) -> list[Stmt]:
        """Statements that stage a row's elements for all of `taps`, from place `at`, counted in
        taps.
        """
        if not taps:
            return self._channels(here, r, self._start(at))
        axis, *others = taps
        begin = expr.mul(at, expr.index(axis.extent))

        def tap(k: Expr) -> list[Stmt]:
            return self._taps(others, {**here, axis.var: k}, r, expr.add(begin, k))

        each = self.nest.serial(axis.extent, tap, "k")
        run = None if others else self._run_of(axis)
        if run is None:
            return each
        count = _number(axis) * _number(self.axes.grouped)
        origin = {**here, axis.var: expr.index(0)}
        whole = self._copies(run, count, origin, r, self._start(begin))
        ends = [expr.index(0), expr.index(_number(axis) - 1)]
        guard = self.narrow_load().guard
        if guard is None:
            return whole
        is_there = expr.all_of(expr.substitute(guard, {**here, axis.var: k}) for k in ends)
        assert is_there is not None
        return [If(is_there, tuple(whole), tuple(each))]

    def _start(self, tap: Expr) -> Expr:
        """The index in a staged row at which a tap starts."""
        return expr.mul(tap, expr.index(self.axes.width))

    def _run_of(self, taps: Axis) -> Load | None:
        """The load, without its guard, of a run of elements: consecutive `taps` continue along the
        grouped axis. None where they are not adjacent, or a tap may be out of bounds while the
        first and last are in bounds.
        """
        narrow, grouped = self.axes.narrow, self.axes.grouped
        if not isinstance(narrow, Load) or _number(grouped) != self.axes.width:
            return None
        (address,) = narrow.indices
        steps = [expr.coefficient(address, axis.var) for axis in (taps, grouped)]
        if _number(taps) < 2 or steps != [_number(grouped), 1]:
            return None
        for condition in [] if narrow.guard is None else expr.conditions_of(narrow.guard):
            is_bound = isinstance(condition, Binary) and condition.op in _BOUNDS
            if not is_bound or grouped.var in expr.free_vars(condition):
                return None
            if any(expr.coefficient(e, taps.var) is None for e in expr.children(condition)):
                return None
        return replace(narrow, guard=None, other=None)

    def _channels(self, here: Values, r: Expr, start: Expr) -> list[Stmt]:
        """Statements that copy the elements along the grouped axis, then zeros as padding."""
        extent = _number(self.axes.grouped)
        stmts = self._copies(self.axes.narrow, extent, here, r, start)
        zeros = range(extent, self.axes.width)
        return stmts + [self._stored(r, expr.add(start, expr.index(k)), None) for k in zeros]

    def _copies(self, e: Expr, count: int, here: Values, r: Expr, start: Expr) -> list[Stmt]:
        """Statements that copy `count` elements of `e` along the grouped axis, in progressively
        narrower vectors."""
        grouped = self.axes.grouped.var

        def copied(k: Expr) -> list[Stmt]:
            return [self._stored(r, expr.add(start, k), expr.substitute(e, {**here, grouped: k}))]

        return self._vectors(count, self.nest.target.vector_bytes // self.held.dtype.bytes, copied)

    def _vectors(self, count: int, width: int, body: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        """`body` for each of `count` indices, in progressively narrower vectors."""
        nest, done = self.nest, 0
        stmts: list[Stmt] = []
        if nest.lanes == 1:
            return nest.serial(count, body, "o")

        def vectors(width: int, begin: int, count: int) -> list[Stmt]:
            def vector(n: Expr) -> list[Stmt]:
                base = expr.linear((n, width), expr.index(begin))
                return [nest.spread(width, lambda lane: body(expr.add(base, lane)))]

            return nest.serial(count, vector, "o")

        while width >= NARROWEST:
            whole = (count - done) // width
            if whole:
                stmts += vectors(width, done, whole)
            done += whole * width
            left = count - done
            if self.may_overlap and width // 2 < left < width <= count:
                # some of it again is less than the rest in narrower vectors
                stmts += vectors(width, count - width, 1)
                done = count
            width //= 2
        for k in range(done, count):
            stmts += body(expr.index(k))
        return stmts

    def _stored(self, r: Expr, at: Expr, value: Expr | None) -> Stmt:
        """The store of element `at` of row `r`; of 0 without a value."""
        dtype = self.held.dtype
        return Store(
            self.held, (r, at), Const(dtype, 0) if value is None else expr.cast(value, dtype)
        )


class StagedRows(CopiedRows, WordRows):
    """Rows of the left factor staged in scratch, for several column tiles.

    Bytes that are multiplied as 16 bits are split: scratch holds bytes 1 and 3 of all groups of a
    row, then bytes 0 and 2, because shifts widen them so, and weights likewise.
    """

    def __init__(self, nest: Nest, roles: ContractionAxes, axes: DotAxes, rows: int) -> None:
        super().__init__(nest, roles, axes, rows)
        scratch, whole = nest.builder.scratch, (rows, axes.size)
        if axes.is_split:
            self.held = scratch("bytes", axes.narrow.dtype, whole, Space.WORKGROUP)
            words = rows, 2, axes.size // DOT_GROUP
            self.scratch: Scratch = scratch("staged", DType.U32, words, Space.WORKGROUP)
        else:
            self.held = self.scratch = scratch("staged", axes.staged, whole, Space.WORKGROUP)

    def fill(self, values: Values, first: Expr) -> list[Stmt]:
        stmts = self.nest.serial(self.rows, lambda r: self._row(values, first, r), "r")
        if not self.axes.is_split:
            return stmts
        # not each row at once: a core waits where it loads at once what it stored in pieces
        return stmts + self.nest.serial(self.rows, self._split, "r")

    def _split(self, r: Expr) -> list[Stmt]:
        """Statements that split the bytes of a staged row into pairs of 16-bit numbers."""

        def word(g: Expr) -> list[Stmt]:
            at = expr.mul(g, expr.index(DOT_GROUP))
            four = Load(self.held, (r, at), WORDS[self.held.dtype])
            pairs = [Bitcast(Unpack(four, parts), DType.U32) for parts in _SPLIT]
            return [Store(self.scratch, (r, expr.index(n), g), p) for n, p in enumerate(pairs)]

        count = self.axes.size // DOT_GROUP
        return self._vectors(count, self.nest.target.vector_bytes // DType.U32.bytes, word)

    def word_of(self, at: Values, row: Expr, group: Expr, part: int) -> Expr:
        if self.axes.is_split:
            words = Load(self.scratch, (row, expr.index(part), group), DType.U32)
            return Bitcast(words, DType.I16X2)
        dtype = self.scratch.dtype
        place = expr.linear((group, self.axes.terms), expr.index(2 * part))
        return Load(self.scratch, (row, place), WORDS.get(dtype, DType.I16X2))
