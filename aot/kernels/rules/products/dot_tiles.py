"""Register tiles of dot products: words of rows by words of weights.

Owns the sums, given rows that dots.py has brought where they are read. Chooses no tile sizes.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.ir import expr
from aot.ir.expr import Bitcast, Dot, Expr, Load, Reduce, Unpack
from aot.ir.schedule import DOT_GROUP
from aot.ir.types import DType
from aot.kernels.ir.nodes import Scratch, Stmt, Store
from aot.kernels.match.products import at_splits
from aot.kernels.nest.borders import masked
from aot.kernels.nest.nest import Nest, Output, Values
from aot.kernels.rules.products.ahead import ASKING, Ahead
from aot.kernels.rules.products.dots import WORDS, DotRows, StagedRows, WordRows
from aot.kernels.rules.products.product import Place, Tile
from aot.kernels.rules.products.row_vectors import by_lanes
from aot.kernels.rules.products.tile_ends import PlacedTile


class WordTile(PlacedTile):
    """A placed register tile whose weight columns are packed words.

    Attributes:
        staged: its rows.
        row: the first of them in scratch.
    """

    def __init__(self, tile: Tile, staged: DotRows, row: Expr, place: Place) -> None:
        super().__init__(tile, place)
        self.staged, self.row = staged, row
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

    def staged_row(self, r: Expr) -> Expr:
        """The index in scratch of row `r` of the tile."""
        return self._in_scratch(expr.add(self.row, r), self.staged.rows)

    def _in_scratch(self, place: Expr, count: int) -> Expr:
        """A row's index in scratch of `count` rows, clamped to the last one where the remainder's
        smaller tiles may pass it."""
        rows, height = self.staged.rows, self.shape.rows
        if -(-(rows - 1) // height) * height <= rows:
            return place
        return expr.binary("min", place, expr.index(count - 1))

    def _words(self, group: Expr) -> tuple[list[Stmt], Callable[[Expr, Expr], Expr]]:
        """(statements, function from chunk and lane to a weight word) for a group of weights."""
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


class DotTile(WordTile):
    """A placed register tile of integer dot products.

    Attributes:
        words: its rows, by words.
        ahead: the weights that it asks for, if any.
    """

    def __init__(
        self, tile: Tile, staged: WordRows, row: Expr, place: Place, ahead: Ahead | None = None
    ) -> None:
        super().__init__(tile, staged, row, place)
        self.words, self.ahead = staged, ahead

    def _sum(self) -> list[Stmt]:
        """The loop over the groups of all taps."""
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
            lambda r, g: self._left(r, g, 0),
            step,
        )

    def _sum_asking(self, ahead: Ahead, groups: int) -> list[Stmt]:
        """The loop over groups, divided into pieces, with prefetches of weights before each."""
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
        """Statements that multiply group `g` byte by byte; each column's byte is widened once for
        all rows."""
        nest, acc, staged = self.nest, self.acc, self.staged
        assert isinstance(staged, StagedRows)
        first, weight = expr.mul(g, expr.index(DOT_GROUP)), self.roles.weight.dtype
        stmts: list[Stmt] = []

        def products(part: int, held: Scratch) -> list[Stmt]:
            def store(u: Expr, lane: Expr) -> Stmt:
                return Store(held, (u, lane), _widened(word(u, lane), part, weight))

            def left(r: Expr) -> Expr:
                at = self.staged_row(r), expr.add(first, expr.index(part))
                return expr.cast(Load(staged.scratch, at, staged.axes.staged), acc.dtype)

            return self.each_chunk(store) + self.outer_product(
                left, lambda u, lane: Load(held, (u, lane), held.dtype)
            )

        for part in range(DOT_GROUP):
            stmts += products(part, nest.builder.scratch("parts", acc.dtype, acc.shape[1:]))
        return stmts

    def _left(self, r: Expr, g: Expr, half: int) -> Expr:
        """The word of row `r` that holds group `g`, or half of it."""
        return self.words.word_of(self._at(r), self.staged_row(r), g, half)

    def _of_row(self, g: Expr, half: int) -> Callable[[Expr], Expr]:
        """A function from a row to the word that holds group `g`, or half of it."""
        return lambda r: self._left(r, g, half)

    @staticmethod
    def _halves(
        word: Callable[[Expr, Expr], Expr], parts: tuple[int, int]
    ) -> Callable[[Expr, Expr], Expr]:
        """A function that widens two bytes of each word of `word` to 16 bits."""
        return lambda u, lane: Unpack(word(u, lane), parts)

    def _step(
        self, of_row: Callable[[Expr], Expr], word: Callable[[Expr, Expr], Expr]
    ) -> list[Stmt]:
        """Statements that multiply each row's word by the columns' words."""
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
    """Byte `part` of a word, as i32."""
    wide = DType.I32 if dtype.is_signed else DType.U32
    bits = 8 * (DOT_GROUP - 1 - part)
    top: Expr = Bitcast(word, wide)
    top = expr.binary("shl", top, expr.const(bits, wide)) if bits else top
    found = expr.binary("shr", top, expr.const(8 * (DOT_GROUP - 1), wide))
    return found if dtype.is_signed else Bitcast(found, DType.I32)
