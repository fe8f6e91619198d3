"""Register tiles whose products are summed several at a time, by dot products of packed words.

Weights of 8 bits lie in groups of `DOT_GROUP` along what is summed, one group a word, and weights
of bf16 in groups of half as many. What some
rows of the left side have for all of the sum is first brought into scratch side by side, padding
included, and serves several tiles of columns: as bytes where the target multiplies bytes, else as
pairs of 16 bits. All sums of integers are exact. Chooses no tile sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.contraction import has_narrow_products
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Bitcast, Cast, Const, Dot, Expr, Load, Reduce, Unpack, Var
from aot.ir.schedule import DOT_GROUP, word_terms
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Scratch, Space, Stmt, Store
from aot.kernels.match.products import ContractionAxes, at_splits
from aot.kernels.nest.borders import masked
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.nest.tiles import Shape
from aot.kernels.rules.products.ahead import ASKING, Ahead
from aot.kernels.rules.products.product import Place, Tile
from aot.kernels.rules.products.row_vectors import by_lanes, holds_row_vectors
from aot.kernels.rules.products.sum_order import by_weight_step
from aot.kernels.rules.products.tile_ends import PlacedTile

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
    """The axes, dtypes and places over which a sum of dot products runs.

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
        """Elements along the grouped axis, whole groups of them."""
        return -(-_number(self.grouped) // self.group) * self.group

    @property
    def size(self) -> int:
        """Elements of a row in scratch."""
        total = self.width
        for axis in self.taps:
            total *= _number(axis)
        return total

    @staticmethod
    def of(nest: Nest, roles: ContractionAxes, panel: int, max_weight: int) -> DotAxes | None:
        """The axes of a contraction as a sum of dot products; None where its weights do not lie in
        groups, the left side has no numbers that dot products take, or one of its rows does not fit
        in scratch.

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
        """Whether the groups of all taps follow each other in the weights."""
        step = dims.multiply(self.step, self.width // self.terms)
        for axis in reversed(self.taps):
            if expr.coefficient(weight.indices[0], axis.var) != step:
                return False
            step = dims.multiply(step, _number(axis))
        return True


def _number(axis: Axis) -> int:
    assert isinstance(axis.extent, int)
    return axis.extent


def is_grouped(roles: ContractionAxes, axis: Axis) -> bool:
    """Whether the weights lie in groups along an axis; one group alone needs no division."""
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
    """How far apart in memory the weights' groups are that follow each other along an axis, and
    then along taps; None where that is no constant.
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


class StagedRows:
    """Rows of the left side in scratch, for tiles of several columns.

    Bytes that are multiplied as 16 bits are split: scratch holds bytes 1 and 3 of all groups of a
    row, then bytes 0 and 2, because shifts widen them so, and weights likewise.
    """

    # whether a vector may begin at any place of a row
    may_overlap = True

    def __init__(self, nest: Nest, roles: ContractionAxes, axes: DotAxes, rows: int) -> None:
        self.nest = nest
        self.roles = roles
        self.axes = axes
        self.rows = rows
        scratch = nest.builder.scratch
        self.bytes: Scratch | None = None
        if axes.is_split:
            self.bytes = scratch("bytes", axes.narrow.dtype, (rows, axes.size), Space.WORKGROUP)
            words = rows, 2, axes.size // DOT_GROUP
            self.scratch: Scratch = scratch("staged", DType.U32, words, Space.WORKGROUP)
        else:
            whole = rows, axes.size
            self.scratch = scratch("staged", axes.staged, whole, Space.WORKGROUP)

    def fill(self, values: Values, first: Expr) -> list[Stmt]:
        """Brings the rows from `first` on into scratch; what is past the last one is that again."""
        stmts = self.nest.serial(self.rows, lambda r: self._row(values, first, r), "r")
        if self.bytes is None:
            return stmts
        # not each row at once: a core waits where it loads at once what it stored in pieces
        held = self.bytes
        return stmts + self.nest.serial(self.rows, lambda r: self._split(held, r), "r")

    def _row(self, values: Values, first: Expr, r: Expr) -> list[Stmt]:
        rows = self.roles.rows
        has_all = rows is None or dims.modulo(rows.extent, self.rows) == 0
        shape = Shape(self.rows, 1, 1, has_all, True)
        here = {**values, **shape.row_values(rows, first, r, is_clamped=True)}
        return self._taps(list(self.axes.taps), here, r, expr.index(0))

    def _split(self, held: Scratch, r: Expr) -> list[Stmt]:
        """The bytes of a row as pairs of 16 bits."""

        def word(g: Expr) -> list[Stmt]:
            at = expr.mul(g, expr.index(DOT_GROUP))
            four = Load(held, (r, at), WORDS[held.dtype])
            pairs = [Bitcast(Unpack(four, parts), DType.U32) for parts in _SPLIT]
            return [Store(self.scratch, (r, expr.index(n), g), p) for n, p in enumerate(pairs)]

        count = self.axes.size // DOT_GROUP
        return self._vectors(count, self.nest.target.vector_bytes // DType.U32.bytes, word)

    def _vectors(self, count: int, width: int, body: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        """`body` for each of `count` numbers, by ever narrower vectors."""
        nest, done = self.nest, 0
        stmts: list[Stmt] = []
        if nest.lanes == 1:
            return nest.serial(count, body, "o")

        def vectors(width: int, begin: int, count: int) -> list[Stmt]:
            def vector(n: Expr) -> list[Stmt]:
                base = expr.add(expr.mul(n, expr.index(width)), expr.index(begin))
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

    def word(self, row: Expr, group: Expr, part: int) -> Expr:
        """The load of a row's word that contains group `group`; if a group takes two words of 16
        bits, of half `part`.
        """
        if self.axes.is_split:
            words = Load(self.scratch, (row, expr.index(part), group), DType.U32)
            return Bitcast(words, DType.I16X2)
        dtype = self.scratch.dtype
        at = expr.add(expr.mul(group, expr.index(self.axes.terms)), expr.index(2 * part))
        return Load(self.scratch, (row, at), WORDS.get(dtype, DType.I16X2))

    def has_row_vectors(self, rows: int, columns: int) -> bool:
        """Whether a tile holds a vector of words of each row, because dot products take a lane."""
        is_by_lane = self.nest.target.multiplies_by_lane and self.axes.staged is not DType.I16
        return is_by_lane and holds_row_vectors(self.nest, rows, columns)

    def parts(self, part: int) -> tuple[int, int]:
        """The byte numbers, within a group, that a half of it holds."""
        return _SPLIT[part] if self.axes.is_split else (2 * part, 2 * part + 1)

    def _taps(self, taps: list[Axis], here: Values, r: Expr, at: Expr) -> list[Stmt]:
        """Statements that stage the row's elements for all of `taps`, from place `at` on, counted
        in taps.
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
        guard = self._narrow_load().guard
        if guard is None:
            return whole
        is_there = expr.all_of(expr.substitute(guard, {**here, axis.var: k}) for k in ends)
        assert is_there is not None
        return [If(is_there, tuple(whole), tuple(each))]

    def _start(self, tap: Expr) -> Expr:
        """The index at which a tap begins in a staged row."""
        return expr.mul(tap, expr.index(self.axes.width))

    def _narrow_load(self) -> Load:
        assert isinstance(self.axes.narrow, Load)
        return self.axes.narrow

    def _run_of(self, taps: Axis) -> Load | None:
        """The load, without its guard, of elements that lie side by side for all of `taps`, which
        continue the grouped axis; None where they don't, or where a tap may be outside though the
        first and the last one are not.
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
        """Neighbours along the grouped axis, and zeros behind them."""
        extent = _number(self.axes.grouped)
        stmts = self._copies(self.axes.narrow, extent, here, r, start)
        zeros = range(extent, self.axes.width)
        return stmts + [self._stored(r, expr.add(start, expr.index(k)), None) for k in zeros]

    def _copies(self, e: Expr, count: int, here: Values, r: Expr, start: Expr) -> list[Stmt]:
        """`count` neighbours of `e` along the grouped axis, by ever narrower vectors."""
        grouped = self.axes.grouped.var

        def copied(k: Expr) -> list[Stmt]:
            return [self._stored(r, expr.add(start, k), expr.substitute(e, {**here, grouped: k}))]

        return self._vectors(count, self.nest.target.vector_bytes // self._held.dtype.bytes, copied)

    @property
    def _held(self) -> Scratch:
        """The scratch into which elements are copied first."""
        return self.scratch if self.bytes is None else self.bytes

    def _stored(self, r: Expr, at: Expr, value: Expr | None) -> Stmt:
        """Element `at` of a row; 0 where there is no value."""
        dtype = self._held.dtype
        return Store(
            self._held, (r, at), Const(dtype, 0) if value is None else expr.cast(value, dtype)
        )


class DotTile(PlacedTile):
    """A register tile of dot products at its place.

    Attributes:
        staged: its rows.
        row: the first of them in scratch.
        ahead: the weights that it asks for, if any.
    """

    def __init__(
        self, tile: Tile, staged: StagedRows, row: Expr, place: Place, ahead: Ahead | None = None
    ) -> None:
        super().__init__(tile, place)
        self.staged, self.row, self.ahead = staged, row, ahead
        # what all elements read, by what it was named before the epilogue
        self.named: dict[Expr, Expr] = {}

    @property
    def _may_begin_with_bias(self) -> bool:
        return self.roles.reduce.dtype is DType.I32 and self.shape.has_all_columns

    def _finish(self) -> list[Stmt]:
        return self._named() + super()._finish()

    def _named(self) -> list[Stmt]:
        """Statements that load what all elements read once, ahead of the loops."""
        stmts: list[Stmt] = []
        self.named = name_constants(self.nest, self.output, self.roles.reduce, stmts)
        return stmts

    def _done(self, total: Expr) -> dict[Expr, Expr]:
        return {**self.named, **super()._done(total)}

    def _sum(self) -> list[Stmt]:
        """A loop over the groups of all taps."""
        nest, staged = self.nest, self.staged
        groups = staged.axes.size // staged.axes.terms
        if not staged.has_row_vectors(self.shape.rows, self.shape.columns):
            if self.ahead is not None and groups >= ASKING:
                return self._sum_asking(self.ahead, groups)
            return nest.serial(groups, self._group, "g")

        def step(g: Expr, of_row: Callable[[Expr], Expr]) -> list[Stmt]:
            stmts, word = self._words(g)
            return stmts + self._step(of_row, word)

        return by_lanes(
            nest,
            (self.shape.rows, groups),
            WORDS[staged.axes.staged],
            lambda r, g: staged.word(self._staged_row(r), g, 0),
            step,
        )

    def _sum_asking(self, ahead: Ahead, groups: int) -> list[Stmt]:
        """The sum's loop cut into pieces, before each of which some cache lines of weights are
        prefetched.
        """
        nest = self.nest
        zero, pieces = expr.index(0), groups // ASKING
        here = self._word(zero, zero, zero)
        piece_bytes = self.shape.columns * ASKING * DType.I32.bytes
        before = ahead.asking(nest, here, piece_bytes, pieces, self.values)

        def piece(n: Expr) -> list[Stmt]:
            begin = expr.mul(n, expr.index(ASKING))
            return before(n) + nest.serial(ASKING, lambda g: self._group(expr.add(begin, g)), "g")

        done = expr.index(pieces * ASKING)
        return nest.serial(pieces, piece, "p") + nest.serial(
            groups % ASKING, lambda g: self._group(expr.add(done, g)), "g"
        )

    def _group(self, g: Expr) -> list[Stmt]:
        """Statements that multiply group `g` of each row by the same group of all columns."""
        stmts, word = self._words(g)
        axes = self.staged.axes
        is_whole = axes.staged is not DType.I16
        if is_whole and axes.terms == DOT_GROUP and self.nest.target.multiplies_parts:
            return stmts + self._by_parts(g, word)
        if is_whole:
            return stmts + self._step(self._of_row(g, 0), word)
        if self.nest.lanes == 1:
            return stmts + self._scalar_step(g, word)
        for half in (0, 1):
            stmts += self._step(self._of_row(g, half), self._halves(word, self.staged.parts(half)))
        return stmts

    def _by_parts(self, g: Expr, word: Callable[[Expr, Expr], Expr]) -> list[Stmt]:
        """The products of each byte of group `g`: a column's is widened once for all rows."""
        nest, acc, staged = self.nest, self.acc, self.staged
        first, weight = expr.mul(g, expr.index(DOT_GROUP)), self.roles.weight.dtype
        stmts: list[Stmt] = []

        def products(part: int, held: Scratch) -> list[Stmt]:
            def store(u: Expr, lane: Expr) -> Stmt:
                return Store(held, (u, lane), _widened(word(u, lane), part, weight))

            def left(r: Expr) -> Expr:
                at = self._staged_row(r), expr.add(first, expr.index(part))
                return expr.cast(Load(staged.scratch, at, staged.axes.staged), acc.dtype)

            return self.each_chunk(store) + self.outer_product(
                left, lambda u, lane: Load(held, (u, lane), held.dtype)
            )

        for part in range(DOT_GROUP):
            stmts += products(part, nest.builder.scratch("parts", acc.dtype, acc.shape[1:]))
        return stmts

    def _of_row(self, g: Expr, half: int) -> Callable[[Expr], Expr]:
        """The word of a row that holds a group, or a half of it."""
        return lambda r: self.staged.word(self._staged_row(r), g, half)

    def _staged_row(self, r: Expr) -> Expr:
        """The index in scratch of row `r` of the tile."""
        return self._in_scratch(expr.add(self.row, r), self.staged.rows)

    def _in_scratch(self, place: Expr, count: int) -> Expr:
        """A row's index in scratch of `count` rows, clamped to the last one where the lower tiles
        of the tail may pass it."""
        rows, height = self.staged.rows, self.shape.rows
        if -(-(rows - 1) // height) * height <= rows:
            return place
        return expr.binary("min", place, expr.index(count - 1))

    @staticmethod
    def _halves(
        word: Callable[[Expr, Expr], Expr], parts: tuple[int, int]
    ) -> Callable[[Expr, Expr], Expr]:
        """A function to two bytes of each word that `word` gives, widened to 16 bits."""
        return lambda u, lane: Unpack(word(u, lane), parts)

    def _words(self, group: Expr) -> tuple[list[Stmt], Callable[[Expr, Expr], Expr]]:
        """The columns' words of a group by chunk and lane, and what comes before them."""
        if not self._is_masked:
            return [], lambda u, lane: self._word(group, u, lane)
        # a mask is dear where it takes branches: once for all rows
        dtype = WORDS[self.roles.weight.dtype]
        held = self.nest.builder.scratch("words", dtype, self.acc.shape[1:])
        extent = expr.index(self.roles.columns.extent)

        def store(u: Expr, lane: Expr) -> Stmt:
            is_there = expr.binary("lt", self._column(u, lane), extent)
            return Store(held, (u, lane), masked(self._word(group, u, lane), is_there))

        return self.each_chunk(store), lambda u, lane: Load(held, (u, lane), dtype)

    def _step(
        self, of_row: Callable[[Expr], Expr], word: Callable[[Expr, Expr], Expr]
    ) -> list[Stmt]:
        """The products of the word of each row with the columns'."""
        dtype, is_narrow = self.acc.dtype, self.staged.axes.is_narrow
        return self.outer_product(
            of_row, word, lambda total, a, b: Dot(a, b, total, dtype, is_narrow=is_narrow)
        )

    def _scalar_step(self, g: Expr, word: Callable[[Expr, Expr], Expr]) -> list[Stmt]:
        """The products of group `g` without vectors: a column's word is widened once for all rows,
        whose words are few enough for registers."""
        nest, acc, shape = self.nest, self.acc, self.shape
        stmts: list[Stmt] = []
        rows, halves = range(shape.rows), (0, 1)
        lefts = [
            [nest.let(self._of_row(g, half)(expr.index(r)), stmts, "a") for half in halves]
            for r in rows
        ]

        def column(u: Expr, lane: Expr) -> list[Stmt]:
            into: list[Stmt] = []
            whole = nest.let(word(u, lane), into, "w")
            rights = [nest.let(Unpack(whole, self.staged.parts(h)), into, "b") for h in halves]
            for r in rows:
                at = (expr.index(r), u, lane)
                total: Expr = Load(acc, at, acc.dtype)
                for left, right in zip(lefts[r], rights, strict=True):
                    total = Dot(left, right, total)
                into.append(Store(acc, at, total))
            return into

        return stmts + nest.unrolled(
            shape.chunks, lambda u: nest.unrolled(shape.width, lambda lane: column(u, lane), "l")
        )

    def _word(self, group: Expr, u: Expr, lane: Expr) -> Load:
        """The word of weights of a group, for lane `lane` of chunk `u`."""
        columns, weight, axes = self.roles.columns, self.roles.weight, self.staged.axes
        zero = expr.index(0)
        splits = {
            (columns.var, self.panel): self._panel(u, lane),
            (axes.grouped.var, axes.terms): (zero, zero),
        }
        start: Values = {a.var: zero for a in (axes.grouped, *axes.taps)}
        values = {**self.values, **start, columns.var: self._column(u, lane)}
        found = at_splits(weight, splits, values)
        assert isinstance(found, Load)
        ahead = expr.mul(group, expr.index(axes.step))
        (address,) = found.indices
        return Load(found.source, (expr.add(address, ahead),), WORDS[weight.dtype])


def name_constants(
    nest: Nest, output: Output, reduce: Reduce, into: list[Stmt]
) -> dict[Expr, Expr]:
    """Names the loads of an epilogue that are the same for all elements; returns the names."""
    named: dict[Expr, Expr] = {}
    inside = set(expr.nodes(reduce))
    for value in output.values:
        for load in expr.loads(value):
            if load not in inside and not expr.free_vars(load) and load not in named:
                named[load] = nest.let(load, into, "c")
    return named


def _widened(word: Expr, part: int, dtype: DType) -> Expr:
    """Byte `part` of a word, in i32."""
    wide = DType.I32 if dtype.is_signed else DType.U32
    bits = 8 * (DOT_GROUP - 1 - part)
    top: Expr = Bitcast(word, wide)
    top = expr.binary("shl", top, expr.const(bits, wide)) if bits else top
    found = expr.binary("shr", top, expr.const(8 * (DOT_GROUP - 1), wide))
    return found if dtype.is_signed else Bitcast(found, DType.I32)
