"""Decodes block-quantised weights of a product.

Owns where their words, scales and minimums lie. Owns no loops.
"""

from __future__ import annotations

from aot.base.records import dataclass
from aot.ir import expr
from aot.ir.expr import Binary, Expr, Fma, Load
from aot.ir.types import DType
from aot.kernels.ir.nodes import Prefetch, Stmt
from aot.kernels.match.products import uncast, word_of
from aot.kernels.nest.nest import Nest
from aot.ops.blocked import (
    FACTORS,
    LOW_BITS,
    PANEL,
    Blocks,
    factor,
    stored_word,
    word_behind,
)

F32, I32, U32 = DType.F32, DType.I32, DType.U32
AHEAD = 8192  # bytes of words, before they are read, that they are asked for
LINE, MOST_AHEAD = 64, 2048  # bytes of a cache's line, and of those asked for at a time


@dataclass(frozen=True)
class StoredWeights:
    """The right factor of a contraction as block-quantised weights: loads of codes, scales and zero
    points.

    Attributes:
        words, scales: loads of them, as the op's `compute` has them.
        zeros: a load of a word of zero points, or one number.
        minimums: a load of them, where blocks have them.
        tops, low_tops: loads of the floats of super-blocks, of which scales and minimums are
            factors.
    """

    blocks: Blocks
    words: Load
    scales: Load
    zeros: Load | int
    minimums: Load | None = None
    tops: Load | None = None
    low_tops: Load | None = None

    @staticmethod
    def of(right: Expr, blocks: Blocks) -> StoredWeights | None:
        """The parts of `right`, if it is `(code - zero_point) * scale`, perhaps with a minimum
        added; else None.
        """
        minimums = low_tops = None
        if isinstance(right, Binary) and right.op == "add":
            minimums, low_tops = _parameter(right.b)
            if minimums is None:
                return None
            right = right.a
        if not isinstance(right, Binary) or right.op != "mul":
            return None
        centred = uncast(right.a)
        scales, tops = _parameter(right.b)
        if not isinstance(centred, Binary) or scales is None:
            return None
        words, zeros = word_of(centred.a), word_of(centred.b)
        if words is None:
            return None
        parts = minimums, tops, low_tops
        if zeros is None:
            zero = uncast(centred.b)
            if not isinstance(zero, expr.Const):
                return None
            return StoredWeights(blocks, words, scales, int(zero.value), *parts)
        return StoredWeights(blocks, words, scales, zeros, *parts)

    def decoded(self, word: HeldWord, place: int, zero: Expr) -> Expr:
        """Code `place` of a word minus the zero point, as f32."""
        return expr.cast(expr.sub(self.code(word, place), zero), F32)

    def scaled(
        self, word: HeldWord, place: int, zero: Expr, scale: Expr, minimum: Expr | None
    ) -> Expr:
        """The weight of code `place` of a word, f32, rounded as every kernel rounds it that has
        weights as floats."""
        code = self.decoded(word, place, zero)
        return expr.mul(code, scale) if minimum is None else Fma(code, scale, minimum, F32)

    def code(self, held: HeldWord, place: int) -> Expr:
        """Code `place` of a word, as i32."""
        word, bits = held.low, self.blocks.low_bits
        shift = 8 * (place % 4) + bits * (place // 4)
        if shift:
            word = expr.binary("shr", word, expr.const(shift, U32))
        if shift + bits < U32.bits:
            word = expr.binary("and", word, expr.const((1 << bits) - 1, U32))
        if held.high is not None:
            high_bits = self.blocks.high_bits
            shift = 8 * (place % 4) + high_bits * (place // 4)
            high = expr.binary("shr", held.high, expr.const(shift, U32))
            high = expr.binary("and", high, expr.const((1 << high_bits) - 1, U32))
            word = expr.binary("or", word, expr.binary("shl", high, expr.const(LOW_BITS, U32)))
        return expr.cast(word, I32)

    def held(self, panel: Expr, word: Expr, lane: Expr) -> HeldWord:
        """Word `word` of a column's codes, joined with their high bits."""
        blocks = self.blocks
        low = self.word_at(panel, stored_word(blocks, word), lane)
        if not blocks.group:
            return HeldWord(low)
        behind, place = word_behind(blocks, word, expr.index(0))
        # parts of the codes of each of the words before it are above each other in its bytes
        part = expr.binary("floordiv", place, expr.index(4))
        shift = expr.cast(expr.mul(part, expr.index(blocks.high_bits)), U32)
        return HeldWord(low, expr.binary("shr", self.word_at(panel, behind, lane), shift))

    @staticmethod
    def let(nest: Nest, held: HeldWord, into: list[Stmt]) -> HeldWord:
        """Binds a word and its high bits to variables, so that each is loaded once."""
        high = held.high
        if high is not None:
            high = nest.let(high, into, "high")
        return HeldWord(nest.let(held.low, into, "word"), high)

    def word_at(self, panel: Expr, word: Expr, lane: Expr) -> Load:
        return self._at(self.words, self.blocks.words, panel, word, lane)

    def scale_at(self, panel: Expr, block: Expr, lane: Expr) -> Expr:
        return self._parameter_at(self.scales, self.tops, panel, block, lane)

    def minimum_at(self, panel: Expr, block: Expr, lane: Expr) -> Expr | None:
        """The minimum of a block in f32."""
        if self.minimums is None:
            return None
        return self._parameter_at(self.minimums, self.low_tops, panel, block, lane)

    def _parameter_at(
        self, stored: Load, tops: Load | None, panel: Expr, block: Expr, lane: Expr
    ) -> Expr:
        blocks = self.blocks
        if tops is None:
            return expr.cast(self._at(stored, blocks.count, panel, block, lane), F32)
        four = expr.index(FACTORS)
        at = expr.binary("floordiv", block, four)
        word = self._at(stored, blocks.factor_words, panel, at, lane)
        above = expr.binary("floordiv", block, expr.index(blocks.together))
        top = self._at(tops, blocks.supers, panel, above, lane)
        return expr.mul(factor(word, expr.binary("floormod", block, four)), expr.cast(top, F32))

    def zero_at(self, panel: Expr, block: Expr, lane: Expr) -> Expr:
        """The zero point of a block in i32."""
        if isinstance(self.zeros, int):
            return expr.const(self.zeros, I32)
        per = expr.index(self.blocks.per_word)
        at = expr.binary("floordiv", block, per)
        word = self._at(self.zeros, self.blocks.zero_words, panel, at, lane)
        place = expr.binary("floormod", block, per)
        byte = expr.mul(expr.binary("floormod", place, expr.index(4)), expr.index(8))
        part = expr.binary("floordiv", place, expr.index(4))
        part = expr.mul(part, expr.index(self.blocks.bits))
        shifted = expr.binary("shr", word, expr.cast(expr.add(byte, part), U32))
        mask = expr.const((1 << self.blocks.bits) - 1, U32)
        return expr.cast(expr.binary("and", shifted, mask), I32)

    def ahead(self, panel: Expr, block: Expr) -> list[Stmt]:
        """Prefetches the weights of a later block. Only for a single row, whose blocks take less
        time than loads from memory.
        """
        blocks, zero = self.blocks, expr.index(0)
        count = blocks.stored(blocks.words_per_block)
        size = count * PANEL * U32.bytes
        if size > MOST_AHEAD:
            return []
        found: list[Stmt] = []
        asked = [(self.word_at(panel, expr.mul(block, expr.index(count)), zero), count)]
        if self.tops is None:
            asked.append((self._at(self.scales, blocks.count, panel, block, zero), 1))
        for load, count in asked:
            step = count * PANEL
            for place in range(0, step, LINE // load.dtype.bytes):
                at = expr.add(load.indices[0], expr.index(AHEAD // size * step + place))
                found.append(Prefetch(load.source, at))
        return found

    @staticmethod
    def _at(load: Load, count: int, panel: Expr, number: Expr, lane: Expr) -> Load:
        row = expr.linear((panel, count), number)
        return Load(load.source, (expr.linear((row, PANEL), lane),), load.dtype)


@dataclass(frozen=True)
class HeldWord:
    """A word of codes; `high` has, in its low bits, the codes' high bits, if these are stored
    apart."""

    low: Expr
    high: Expr | None = None


def _parameter(e: Expr) -> tuple[Load | None, Load | None]:
    """(load of a block's scale or minimum, load of the float that it is multiplied by); None for
    each that is missing.
    """
    loaded = uncast(e)
    if isinstance(loaded, Load):
        return loaded, None
    if not isinstance(loaded, Binary) or loaded.op != "mul":
        return None, None
    top = uncast(loaded.b)
    words = [n for n in expr.nodes(loaded.a) if isinstance(n, Load) and n.dtype is U32]
    return (words[0], top) if len(words) == 1 and isinstance(top, Load) else (None, None)
