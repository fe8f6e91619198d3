"""Matrix products of 8-bit activations with low-bit weights, both quantised in blocks of the sum.

The products of a block are summed as integers, by dot products of packed words, and join the result
once, times both scales; what zero points add is taken off by the sum of the row's block. Rows are
brought into scratch first, as bytes where the target multiplies them, else as pairs of 16 bits, and
weights are decoded in registers. All sums of a block are exact. Chooses no tile sizes.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Bitcast, Cast, Dot, Expr, Fma, Load, Unpack, Var
from aot.ir.schedule import DOT_GROUP, StageSchedule
from aot.ir.types import DType
from aot.kernels.ir.nodes import Scratch, Space, Stmt, Store
from aot.kernels.match.products import ContractionAxes, at_splits
from aot.kernels.nest.nest import Axis, Nest, Values
from aot.kernels.nest.tiles import Shape
from aot.kernels.rules.products.blocked_weights import BlockedTiles, PlacedBlocks
from aot.kernels.rules.products.dots import DotAxes, StagedRows
from aot.kernels.rules.products.product import (
    Place,
    Product,
    Tile,
    divided,
    each_part,
    where_whole,
)
from aot.kernels.rules.products.stored_weights import HeldWord, StoredWeights
from aot.kernels.stage.tails import where, within
from aot.ops.blocked import LOW_BITS, PANEL, Blocks
from aot.target.model import Target

F32, I8, I16, I32, U32 = DType.F32, DType.I8, DType.I16, DType.I32, DType.U32
I8X4, U7X4, U8X4, I16X2 = DType.I8X4, DType.U7X4, DType.U8X4, DType.I16X2
MANY_ROWS, STRIPS = 32, 4  # of so many rows, a workgroup does the columns of so many
UNROLLED_WORDS = 4  # words of a block whose products are written out; of one instruction, 8
_ONES = {I8: (0x01010101, U7X4), I16: (0x00010001, I16X2)}  # one beside each part of a word


@dataclass(frozen=True)
class WordForm:
    """The word formats in which quantised weights and rows are multiplied.

    Attributes:
        staged: the dtype of rows in scratch.
        word: of four codes.
        offset: what is taken off each code, so that it fits the word's parts.
    """

    staged: DType
    word: DType
    offset: int = 0

    @staticmethod
    def of(bits: int, target: Target) -> WordForm:
        """The form of words for codes of `bits` bits."""
        if bits < 8 and target.sums_codes:
            return WordForm(I8, U7X4)
        if bits == 8 and target.sums_bytes(I8, DType.U8):
            return WordForm(I8, U8X4)
        if bits == 8 and target.sums_bytes(I8, I8):
            return WordForm(I8, I8X4, 128)
        return WordForm(I16, U8X4)

    def codes(self, held: HeldWord, part: int, blocks: Blocks) -> Expr:
        """Four codes of a word: part `part` of the stored one."""
        word = _four(held.low, part, blocks.low_bits)
        if held.high is not None:
            high = _four(held.high, part, blocks.high_bits)
            word = expr.binary("or", word, expr.binary("shl", high, expr.const(LOW_BITS, U32)))
        if self.offset:
            word = expr.binary("xor", word, expr.const(0x80808080, U32))
        return Bitcast(word, self.word)


def _four(word: Expr, part: int, bits: int) -> Expr:
    """Four of the packed `bits`-bit codes of a word, part `part`, as bytes of a word."""
    if bits == 8:
        return word
    if part:
        word = expr.binary("shr", word, expr.const(bits * part, U32))
    return expr.binary("and", word, expr.const(((1 << bits) - 1) * 0x01010101, U32))


@dataclass(frozen=True)
class QuantisedRows:
    """A left factor of 8-bit numbers with a scale per block.

    Attributes:
        numbers, scales: loads of them, as the op's `compute` has them.
        term: the variable of the sum.
    """

    numbers: Load
    scales: Load
    term: Var

    @staticmethod
    def of(roles: ContractionAxes) -> QuantisedRows | None:
        """The quantised rows that are the left factor; None for other left factors."""
        left, ((term, _),) = roles.left, roles.reduce.axes
        if not isinstance(left, Binary) or left.op != "mul" or not isinstance(left.a, Cast):
            return None
        numbers, scales = left.a.a, left.b
        if not isinstance(numbers, Load) or not isinstance(scales, Load):
            return None
        fits = numbers.dtype is I8 and scales.dtype is F32
        return QuantisedRows(numbers, scales, term) if fits else None

    def scale(self, at: Values, block: Expr, blocks: Blocks) -> Expr:
        """The scale of a row's block."""
        splits = {(self.term, blocks.block): (block, expr.index(0))}
        return at_splits(self.scales, splits, {**at, self.term: expr.index(0)})


class DotBlockTiles(BlockedTiles):
    """CPU loops of a product with block-quantised weights that uses integer dot products of
    words."""

    def __init__(
        self, product: Product, plan: StageSchedule, weights: StoredWeights, left: QuantisedRows
    ) -> None:
        super().__init__(product, plan, weights)
        target, blocks = self.nest.target, weights.blocks
        self.left = left
        self.form = WordForm.of(blocks.bits, target)
        most = target.scratch_bytes // max(1, _row_bytes(blocks, self.form))
        self.group = self.rows = max(1, min(self.rows, most))
        staged = Axis(left.term, blocks.k)
        self.axes = DotAxes((), staged, left.numbers, self.form.staged, 0, blocks.per_word)

    @staticmethod
    def fits(nest: Nest, blocks: Blocks) -> bool:
        """Whether each word's terms belong to one block, and a row fits scratch."""
        is_whole = blocks.count == 1 or blocks.block % blocks.per_word == 0
        row_bytes = _row_bytes(blocks, WordForm.of(blocks.bits, nest.target))
        return is_whole and nest.lanes > 1 and row_bytes <= nest.target.scratch_bytes

    def _rows(self, at: Place) -> list[Stmt]:
        """Statements for the rows of a tile; a partial tile is done row by row."""
        extent, first = self.extent, at.first
        if self.rows == 1:
            return self._tile(at, self.rows)
        if isinstance(extent, int):
            return self._whole(at)

        def single(r: Expr) -> list[Stmt]:
            return self._tile(at._replace(first=expr.add(first, r)), 1)

        singles = self.nest.serial(dims.modulo(extent, self.rows), single, "mr")
        end = expr.add(first, expr.index(self.rows))
        return where_whole(end, extent, self._whole(at), singles)

    def _whole(self, at: Place) -> list[Stmt]:
        """Statements for a tile of full height. With many rows, a workgroup also does the columns
        of its neighbours, so that rows are staged less often.
        """
        is_many = dims.minimum(dims.floor_divide(self.extent, MANY_ROWS), 1)
        strips = dims.add(dims.multiply(is_many, STRIPS - 1), 1)
        tile = self._tile(at, self.rows, strips)
        return tile if strips == 1 else where(within(divided(at.start, strips)[1], 1, 0), tile)

    def _tile(self, at: Place, rows: int, strips: Dim = 1) -> list[Stmt]:
        nest = self.nest
        staged = StagedRows(nest, self.roles, self.axes, rows)
        stmts = staged.fill(at.values, at.first)
        chunks = PANEL // self.width if rows == 1 else self.chunks
        sums = None
        if self.weights.zeros != self.form.offset or self.weights.minimums is not None:
            shape = (rows, self.weights.blocks.count)
            sums = nest.builder.scratch("block_sums", F32, shape, Space.WORKGROUP)
            stmts += self._block_sums(at, staged, sums)

        def build(shape: Shape, place: Place) -> list[Stmt]:
            return DotBlocks(
                self, Tile(self.product, shape, in_parts=True), staged, sums, place
            ).build()

        return stmts + self._strip(at, chunks, build, rows=rows, strips=strips)

    @property
    def sum_factor(self) -> int:
        """A factor applied once to the sums of blocks: the negated zero point, if all blocks share
        it and nothing else needs these sums.
        """
        zeros = self.weights.zeros
        if self.weights.minimums is not None:
            return 1
        return self.form.offset - zeros if isinstance(zeros, int) else -1

    def _block_sums(self, at: Place, staged: StagedRows, sums: Scratch) -> list[Stmt]:
        """Statements that compute the sum of each block of the staged rows, as a float scaled by
        the row's scale."""
        nest, blocks = self.nest, self.weights.blocks
        factor = expr.const(float(self.sum_factor), F32)
        tile = Shape(staged.rows, 1, 1, False, True)

        def row(r: Expr) -> list[Stmt]:
            def block(b: Expr, terms: int) -> list[Stmt]:
                stmts, found = self._total(staged, r, expr.linear((b, blocks.block)), terms)
                here = tile.row_values(self.roles.rows, at.first, r, is_clamped=True)
                scale = self.left.scale({**at.values, **here}, b, blocks)
                made = expr.mul(expr.cast(found, F32), expr.mul(scale, factor))
                return [*stmts, Store(sums, (r, b), made)]

            return each_part(nest, blocks.k, blocks.block, block, "b")

        return nest.serial(staged.rows, row, "r")

    def _total(
        self, staged: StagedRows, r: Expr, begin: Expr, terms: int
    ) -> tuple[list[Stmt], Expr]:
        """(statements, value) of the sum of `terms` numbers of row r from `begin`."""
        nest = self.nest
        ones, dtype = _ONES[self.form.staged]
        word_of_ones = Bitcast(expr.const(ones, U32), dtype)
        word = I8X4 if self.form.staged is I8 else I16X2
        words, lanes = -(-terms // dtype.parts), nest.lanes
        while words % lanes:
            lanes //= 2
        held = nest.builder.scratch("part", I32, (lanes,))
        stmts: list[Stmt] = [
            nest.spread(lanes, lambda lane: [Store(held, (lane,), expr.const(0, I32))])
        ]

        def some(n: Expr) -> list[Stmt]:
            def one(lane: Expr) -> list[Stmt]:
                at = expr.add(begin, expr.linear((expr.linear((n, lanes), lane), dtype.parts)))
                left, old = Load(staged.scratch, (r, at), word), Load(held, (lane,), I32)
                return [Store(held, (lane,), Dot(word_of_ones, left, old))]

            return [nest.spread(lanes, one)]

        stmts += nest.serial(words // lanes, some, "o")
        found: list[Expr] = [Load(held, (expr.index(n),), I32) for n in range(lanes)]
        while len(found) > 1:
            half = len(found) // 2
            found = [expr.add(a, b) for a, b in zip(found[:half], found[half:], strict=True)]
        return stmts, found[0]


def _words_in_pairs(blocks: Blocks) -> int:
    """The largest number of words whose sums of product pairs fit 16 bits; at least 1."""
    largest = 2 * 128 * ((1 << blocks.bits) - 1) * (blocks.per_word // DOT_GROUP)
    return max(1, ((1 << 15) - 1) // largest)


def _row_bytes(blocks: Blocks, form: WordForm) -> int:
    """Bytes of a staged row, including the sums of its blocks."""
    return -(-blocks.k // blocks.per_word) * blocks.per_word * form.staged.bytes + 4 * blocks.count


class DotBlocks(PlacedBlocks):
    """A placed register tile of integer dot products with block-quantised weights."""

    def __init__(
        self,
        tiles: DotBlockTiles,
        tile: Tile,
        staged: StagedRows,
        sums: Scratch | None,
        place: Place,
    ) -> None:
        super().__init__(tile, tiles.weights, place)
        self.left, self.form, self.staged, self.block_sums = tiles.left, tiles.form, staged, sums
        builder, vectors = self.nest.builder, self.acc.shape[1:]
        self.sums = builder.scratch("dots", I32, self.acc.shape)
        self.codes = builder.scratch("codes", self.form.word, vectors)
        self.pairs = None
        if self.form.word is U7X4 and self.nest.target.sums_pairs_of_codes:
            self.pairs = builder.scratch("pairs", I16X2, self.acc.shape)
        self.scales = builder.scratch("scales", F32, vectors)
        self.zeros = builder.scratch("zeros", F32, vectors)
        self.minimums = builder.scratch("minimums", F32, vectors)

    def _block(self, block: Expr, terms: int) -> list[Stmt]:
        """Statements that add the products of a block with `terms` terms."""
        nest, blocks = self.nest, self.weights.blocks
        stmts: list[Stmt] = []
        if self.shape.rows == 1:
            panel, _ = self._panel(expr.index(0), expr.index(0))
            stmts = self.weights.ahead(panel, block)
        stmts += self.zeroed(self.sums)
        words = -(-terms // blocks.per_word)
        word = expr.linear((block, blocks.words_per_block))
        if self.pairs is None:
            is_short = self.form.staged is I8 and blocks.per_word == DOT_GROUP
            most = UNROLLED_WORDS * (2 if is_short else 1)
            loop = nest.unrolled if words <= most else nest.serial
            stmts += loop(words, lambda w: self._word(expr.add(word, w)), "w")
            return stmts + self._join(block)
        together = min(UNROLLED_WORDS, _words_in_pairs(blocks))

        def some(n: Expr, count: int) -> list[Stmt]:
            return self._in_pairs(expr.add(word, expr.linear((n, together))), count)

        return stmts + each_part(nest, words, together, some, "w") + self._join(block)

    def _in_pairs(self, word: Expr, count: int) -> list[Stmt]:
        """Statements that multiply `count` words from `word`, accumulating first in 16 bits."""
        pairs, sums = self.pairs, self.sums
        assert pairs is not None
        none = Bitcast(expr.const(0, U32), I16X2)
        ones = Bitcast(expr.const(_ONES[I16][0], U32), I16X2)

        def joined(r: Expr, u: Expr, lane: Expr) -> Stmt:
            found = Load(pairs, (r, u, lane), I16X2)
            return Store(sums, (r, u, lane), Dot(ones, found, Load(sums, (r, u, lane), I32)))

        stmts = self.each_row(lambda r, u, lane: Store(pairs, (r, u, lane), none))
        stmts += self.nest.serial(count, lambda w: self._word(expr.add(word, w)), "w")
        return stmts + self.each_row(joined)

    def _word(self, word: Expr) -> list[Stmt]:
        """Statements that add the products of a word of each column; `word` is numbered over all
        blocks.
        """
        weights, codes = self.weights, self.codes
        per = weights.blocks.per_word
        begin = expr.linear((word, per))
        stmts: list[Stmt] = []
        for part in range(per // DOT_GROUP):

            def decoded(u: Expr, lane: Expr, part: int = part) -> Stmt:
                panel, within = self._panel(u, lane)
                held = weights.held(panel, word, within)
                return Store(codes, (u, lane), self.form.codes(held, part, weights.blocks))

            stmts += self.each_chunk(decoded)
            at = expr.add(begin, expr.index(DOT_GROUP * part))
            if self.form.staged is I8:
                stmts += self._products(at, I8X4, lambda held: held)
            else:
                stmts += self._products(at, I16X2, lambda held: Unpack(held, (0, 1)))
                after = expr.add(at, expr.index(2))
                stmts += self._products(after, I16X2, lambda held: Unpack(held, (2, 3)))
        return stmts

    def _products(self, at: Expr, dtype: DType, part: Callable[[Expr], Expr]) -> list[Stmt]:
        """Statements that multiply each row's word at `at` by a part of the columns' codes."""
        codes, rows = self.codes, self.staged.scratch
        sums = self.sums if self.pairs is None else self.pairs
        return self.outer_product(
            lambda r: Load(rows, (r, at), dtype),
            lambda u, lane: part(Load(codes, (u, lane), codes.dtype)),
            lambda total, a, b: Dot(a, b, total, sums.dtype),
            sums,
        )

    def _join(self, block: Expr) -> list[Stmt]:
        """Statements that add a block's integer sums, times its scales, to the result's sums."""
        nest, weights = self.nest, self.weights

        def parameters(u: Expr, lane: Expr) -> list[Stmt]:
            panel, within = self._panel(u, lane)
            scale = weights.scale_at(panel, block, within)
            stmts: list[Stmt] = [Store(self.scales, (u, lane), scale)]
            if self._has_zeros:
                zero = weights.zero_at(panel, block, within)
                zero = expr.sub(zero, expr.const(self.form.offset, I32))
                stmts.append(Store(self.zeros, (u, lane), expr.cast(zero, F32)))
            minimum = weights.minimum_at(panel, block, within)
            if minimum is not None:
                stmts.append(Store(self.minimums, (u, lane), minimum))
            return stmts

        def row(r: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            scale = nest.let(self._row_scale(r, block), stmts, "scale")
            total = self._block_total(r, block, stmts)
            less = self._less(total, stmts)

            def one(u: Expr, lane: Expr) -> Stmt:
                place = r, u, lane
                value = expr.cast(Load(self.sums, place, I32), F32)
                own = Load(self.scales, (u, lane), F32)
                if less is None:
                    made: Expr = expr.mul(value, scale)
                elif self._has_zeros:
                    zero = Load(self.zeros, (u, lane), F32)
                    made = Fma(zero, less, expr.mul(value, scale), F32)
                else:
                    made = Fma(value, scale, less, F32)
                old: Expr = Load(self.acc, place, F32)
                if weights.minimums is not None and total is not None:
                    old = Fma(Load(self.minimums, (u, lane), F32), total, old, F32)
                return Store(self.acc, place, Fma(made, own, old, F32))

            return stmts + self.each_chunk(one)

        return self.each_vector(parameters) + nest.unrolled(self.shape.rows, row, "r")

    @property
    def _has_zeros(self) -> bool:
        """Whether each block has its own zero point."""
        return not isinstance(self.weights.zeros, int)

    def _block_total(self, r: Expr, block: Expr, into: list[Stmt]) -> Expr | None:
        """The sum of row r's numbers in a block; None where nothing needs it."""
        if self.block_sums is None:
            return None
        return self.nest.let(Load(self.block_sums, (r, block), F32), into, "total")

    def _less(self, total: Expr | None, into: list[Stmt]) -> Expr | None:
        """A block's sum times the negated zero point; the plain sum where `sum_factor` applies that
        factor later, and None where there is nothing to add.
        """
        zeros = self.weights.zeros
        if total is None or self.weights.minimums is None:
            return total
        by = self.form.offset - zeros if isinstance(zeros, int) else -1
        if by == 0:
            return None
        return self.nest.let(expr.mul(total, expr.const(float(by), F32)), into, "less")

    def _row_scale(self, r: Expr, block: Expr) -> Expr:
        """The scale of a block of row r in the left factor."""
        return self.left.scale(self._at(r), block, self.weights.blocks)
