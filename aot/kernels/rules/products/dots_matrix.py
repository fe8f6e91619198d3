"""Dot product tiles by CPU matrix instructions, which multiply two rows by two columns.

Rows are brought into scratch in pairs, 8 bytes of one beside 8 of the other: as many numbers of 8
bits, or 4 of bf16. Weights lie as they do for other dot products, and two columns of them are
brought side by side in registers. Sums are in blocks of two by two until all products are added.
All sums of integers are exact. Chooses no tile sizes.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.ir import expr
from aot.ir.expr import Const, Expr, Load
from aot.kernels.ir.nodes import MatrixDot, Scratch, Space, Stmt, Store
from aot.kernels.match.products import ContractionAxes
from aot.kernels.nest.nest import Nest, Values
from aot.kernels.rules.products.dot_tiles import WordTile
from aot.kernels.rules.products.dots import WORDS, CopiedRows, DotAxes
from aot.kernels.rules.products.product import Body, Place, Tile, divided

PAIR = 2  # rows of a matrix, and words of each of them
TOGETHER = 4  # parts of matrices that are brought into scratch at a time, and written out
COLUMNS = 4  # of a line of sums, and of a vector of words
LINE = PAIR * COLUMNS


def has_matrices(nest: Nest, roles: ContractionAxes, axes: DotAxes, rows: int, width: int) -> bool:
    """Whether the target's matrix instructions serve a tile of `rows` rows and vectors of `width`
    columns.
    """
    is_whole = rows >= PAIR and width % COLUMNS == 0
    step = expr.coefficient(roles.weight.indices[0], roles.columns.var)
    is_there = nest.target.multiplies_matrices(axes.staged, roles.weight.dtype)
    has_words = roles.is_packed or step == axes.terms
    # once as it is read and once in order
    row_bytes = 2 * _padded(axes.size, axes) * axes.staged.bytes
    fits = PAIR * row_bytes <= nest.target.scratch_bytes
    return is_there and is_whole and has_words and fits


def even(rows: int) -> int:
    """`rows` rounded up to a multiple of two."""
    return -(-rows // PAIR) * PAIR


def _terms(axes: DotAxes) -> int:
    """The number of terms of the sum in one matrix."""
    return PAIR * axes.terms


def _padded(terms: int, axes: DotAxes) -> int:
    """`terms` rounded up to whole matrices."""
    return -(-terms // _terms(axes)) * _terms(axes)


class StagedPairs(CopiedRows):
    """Staged pairs of rows, as matrices of 8 bytes of each row. A matrix of the next pair follows,
    so that two are loaded at once; then come the next matrices of all pairs.

    Attributes:
        terms: of a row of a matrix.
        count: matrices of a pair of rows.
    """

    may_overlap = False

    def __init__(self, nest: Nest, roles: ContractionAxes, axes: DotAxes, rows: int) -> None:
        super().__init__(nest, roles, axes, rows)
        self.terms = _terms(axes)
        self.count = _padded(axes.size, axes) // self.terms
        shape = self.count, rows // PAIR, PAIR * self.terms
        self.scratch: Scratch = nest.builder.scratch("staged", axes.staged, shape, Space.WORKGROUP)

    @staticmethod
    def of(nest: Nest, roles: ContractionAxes, axes: DotAxes, rows: int) -> StagedPairs:
        """Staged pairs that are interleaved while they are read, or afterwards if taps end within a
        matrix."""
        is_late = axes.taps and axes.width % _terms(axes)
        return (_PairsOfRows if is_late else _PairsAtOnce)(nest, roles, axes, rows)

    def _matrix_by_matrix(self, count: int, body: Body) -> list[Stmt]:
        """`body(number)` for `count` matrices, several of them unrolled."""
        nest = self.nest

        def together(o: Expr) -> list[Stmt]:
            first = expr.linear((o, TOGETHER))
            return nest.unrolled(TOGETHER, lambda n: body(expr.add(first, n)), "n")

        stmts = nest.serial(count // TOGETHER, together, "o")
        for n in range(count // TOGETHER * TOGETHER, count):
            stmts += body(expr.index(n))
        return stmts

    def _place(self, r: Expr, matrix: Expr, term: Expr) -> tuple[Expr, Expr, Expr]:
        """The scratch indices of a term of row `r` in its matrix."""
        pair, i = divided(r, PAIR)
        return matrix, pair, expr.linear((i, self.terms), term)

    def matrix(self, pair: Expr, number: Expr) -> Load:
        """The first word of a matrix of a pair of rows."""
        return Load(self.scratch, (number, pair, expr.index(0)), WORDS[self.scratch.dtype])


class _PairsOfRows(StagedPairs):
    """Staged pairs of rows that are first copied row by row, then interleaved."""

    def __init__(self, nest: Nest, roles: ContractionAxes, axes: DotAxes, rows: int) -> None:
        whole = rows, _padded(axes.size, axes)
        self.held = nest.builder.scratch("bytes", axes.staged, whole, Space.WORKGROUP)
        super().__init__(nest, roles, axes, rows)

    def fill(self, values: Values, first: Expr) -> list[Stmt]:
        zeros = range(self.axes.size, self.count * self.terms)

        def row(r: Expr) -> list[Stmt]:
            behind = [self._stored(r, expr.index(k), None) for k in zeros]
            return self._row(values, first, r) + behind

        rows = self.nest.serial(self.rows, row, "r")
        return rows + self.nest.serial(self.rows // PAIR, self._in_pairs, "p")

    def _in_pairs(self, p: Expr) -> list[Stmt]:
        """Statements that interleave the bytes of two rows in scratch."""
        nest, held = self.nest, self.held

        def eight(k: Expr, i: Expr, lane: Expr) -> Stmt:
            r = expr.linear((p, PAIR), i)
            term = expr.linear((k, self.terms), lane)
            return Store(self.scratch, self._place(r, k, lane), Load(held, (r, term), held.dtype))

        def both(k: Expr) -> list[Stmt]:
            return nest.unrolled(
                PAIR, lambda i: [nest.spread(self.terms, lambda lane: [eight(k, i, lane)])], "i"
            )

        return self._matrix_by_matrix(self.count, both)


class _PairsAtOnce(StagedPairs):
    """Staged pairs of rows that are copied directly into matrices; places of a row count
    matrices."""

    def fill(self, values: Values, first: Expr) -> list[Stmt]:
        return self.nest.serial(self.rows, lambda r: self._row(values, first, r), "r")

    def _start(self, tap: Expr) -> Expr:
        return expr.mul(tap, expr.index(_padded(self.axes.width, self.axes) // self.terms))

    def _channels(self, here: Values, r: Expr, start: Expr) -> list[Stmt]:
        extent = self.axes.grouped.count
        stmts = self._copies(self.axes.narrow, extent, here, r, start)
        zero = Const(self.scratch.dtype, 0)
        for k in range(extent, _padded(self.axes.width, self.axes)):
            whole, term = divmod(k, self.terms)
            matrix = expr.add(start, expr.index(whole))
            stmts.append(Store(self.scratch, self._place(r, matrix, expr.index(term)), zero))
        return stmts

    def _copies(self, e: Expr, count: int, here: Values, r: Expr, start: Expr) -> list[Stmt]:
        nest, grouped = self.nest, self.axes.grouped.var

        def some(n: Expr, done: int, width: int) -> list[Stmt]:
            """Statements that copy `width` terms of matrix `n`, from term `done`."""

            def one(lane: Expr) -> list[Stmt]:
                term = expr.add(expr.index(done), lane)
                at = expr.linear((n, self.terms), term)
                value = expr.cast(expr.substitute(e, {**here, grouped: at}), self.scratch.dtype)
                return [Store(self.scratch, self._place(r, expr.add(start, n), term), value)]

            return [nest.spread(width, one)] if width > 1 else one(expr.index(0))

        whole, rest = divmod(count, self.terms)
        stmts = self._matrix_by_matrix(whole, lambda n: some(n, 0, self.terms))
        word = self.axes.terms
        done = word if rest >= word else 0
        if done:
            stmts += some(expr.index(whole), 0, word)
        for k in range(done, rest):
            stmts += some(expr.index(whole), k, 1)
        return stmts


class MatrixTile(WordTile):
    """A placed register tile of products by matrix instructions."""

    def __init__(self, tile: Tile, staged: StagedPairs, row: Expr, place: Place) -> None:
        super().__init__(tile, staged, row, place)
        self.pairs = staged
        shape = self.shape.rows // PAIR, self.shape.columns // COLUMNS, LINE
        self.sums = self.nest.builder.scratch("sums", self.acc.dtype, shape)

    def _zeros(self) -> list[Stmt]:
        return self._each_line(self._zero_line)

    def _each_line(self, body: Callable[[Expr, Expr], list[Stmt]]) -> list[Stmt]:
        """`body(pair, vector)` for all pairs of rows and vectors of columns."""
        pairs, vectors, _ = self.sums.shape
        return self.nest.unrolled(
            pairs, lambda p: self.nest.unrolled(vectors, lambda v: body(p, v), "v"), "p"
        )

    def _zero_line(self, p: Expr, v: Expr) -> list[Stmt]:
        zero = expr.const(0, self.sums.dtype)
        return [self.nest.spread(LINE, lambda lane: [Store(self.sums, (p, v, lane), zero)])]

    def _sum(self) -> list[Stmt]:
        """The loop over the matrices of all taps, then the reordering of each row's sums."""
        groups = self.staged.axes.size // self.staged.axes.terms
        whole, is_uneven = divmod(groups, 2)

        def step(n: Expr, second: int = 1) -> list[Stmt]:
            low = expr.mul(n, expr.index(2))
            return self._matrices(n, (low, expr.add(low, expr.index(second))))

        stmts = self.nest.serial(whole, step, "g")
        if is_uneven:
            # zeros are multiplied by what is there
            stmts += step(expr.index(whole), 0)
        return stmts + self.nest.unrolled(self.shape.rows, self._row_of_sums, "r")

    def _matrices(self, number: Expr, groups: tuple[Expr, Expr]) -> list[Stmt]:
        """Statements that multiply matrix `number` of each pair of rows by the words of two
        groups."""
        first = expr.binary("floordiv", self.row, expr.index(PAIR))
        stmts: list[Stmt] = []
        words: list[Callable[[Expr, Expr], Expr]] = []
        for group in groups:
            before, word = self._words(group)
            stmts += before
            words.append(word)

        def line(p: Expr, v: Expr) -> list[Stmt]:
            at = expr.mul(v, expr.index(COLUMNS))
            u, lane = divided(at, self.shape.width)
            low, high = (word(u, lane) for word in words)
            assert isinstance(low, Load) and isinstance(high, Load)
            pair = self._in_scratch(expr.add(first, p), self.pairs.rows // PAIR)
            rows = self.pairs.matrix(pair, number)
            return [MatrixDot(self.sums, (p, v), rows, (low, high))]

        return stmts + self._each_line(line)

    def _row_of_sums(self, r: Expr) -> list[Stmt]:
        """Statements that reorder the sums of a row to the order of its columns."""
        nest, acc, vectors = self.nest, self.acc, self.shape.width // COLUMNS
        pair, i = divided(r, PAIR)

        def four(u: Expr, v: Expr, lane: Expr) -> list[Stmt]:
            p, j = divided(lane, PAIR)
            number = expr.add(expr.add(expr.linear((p, COLUMNS)), expr.linear((i, PAIR))), j)
            line = pair, expr.linear((u, vectors), v), number
            return [
                Store(
                    acc, (r, u, expr.linear((v, COLUMNS), lane)), Load(self.sums, line, acc.dtype)
                )
            ]

        return nest.unrolled(
            self.shape.chunks,
            lambda u: nest.unrolled(
                vectors, lambda v: [nest.spread(COLUMNS, lambda lane: four(u, v, lane))], "v"
            ),
        )
