"""Matrix products with constant block-quantised weights: few bits, and a scale for each block of K.

Owns the way such weights are stored. A *code* is an unsigned number of 2 to 8 bits; a weight is
`(code - zero_point) * scale`, plus a minimum where blocks have them. Columns stand in panels of 16,
as other packed weights do, and a word of 32 bits has neighbours along K of one column: code t of a
word is in byte `t % 4`, above the `t // 4` codes before it there, so that one mask gives four
neighbours as bytes. A block begins in a word of its own. Every target loads weights by such words.

Codes of 5 and 6 bits are their 4 lowest bits, in words as above, and the others, in a word that
stands behind as many such words as it serves and has its parts of codes in the same order. Blocks
may have their scales, and minimums, as signed factors of 8 bits, in words like codes of 8 bits; a
super-block of several blocks then has the float that is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.base.records import dataclass
from aot.ir import expr as e
from aot.ir.contraction import ContractionDims, Factor, Scales
from aot.ir.dims import Dim, ceil_divide
from aot.ir.graph import Attr
from aot.ir.record import (
    Attribute,
    Call,
    Compute,
    Constraint,
    Kind,
    Operand,
    OpRecord,
    Sample,
    register,
)
from aot.ir.types import Array, DType, TensorType
from aot.ops import layout_rules
from aot.ops.elementwise import result_indices

F16, F32, I8, I32, U32 = DType.F16, DType.F32, DType.I8, DType.I32, DType.U32
PANEL = 16  # columns side by side, whatever the target
BITS = (2, 4, 8)
SPLIT_BITS = (5, 6)  # codes whose highest bits stand in words of their own
LOW_BITS = 4  # the others of such a code
_BYTES = 4  # of a word
WORDS, SCALES, ZERO_POINTS, LEFT_SCALES = 1, 2, 3, 4  # operands
SUPER_SCALES, SUPER_MINIMUMS = 5, 6
STORED = (WORDS, SCALES, ZERO_POINTS, SUPER_SCALES, SUPER_MINIMUMS)
FACTORS = 4  # of a word
FLOATS = frozenset({F16, F32})
_CHUNK = 1 << 22  # weights that are packed at a time


@dataclass(frozen=True)
class Blocks:
    """The storage format of block-quantised weights.

    Attributes:
        k: terms of a sum.
        block: terms that share a scale; the last block may have fewer.
        bits: of a code.
        together: blocks of a super-block; 0 where scales are floats.
    """

    k: int
    block: int
    bits: int
    together: int = 0

    @property
    def low_bits(self) -> int:
        """The number of a code's bits in its own word."""
        return LOW_BITS if self.bits in SPLIT_BITS else self.bits

    @property
    def high_bits(self) -> int:
        """The number of a code's bits in a separate word of high bits; 0 if it is not split."""
        return self.bits - self.low_bits

    @property
    def group(self) -> int:
        """The number of words of codes per word of their high bits; 0 if codes are not split."""
        return self.low_bits // self.high_bits if self.high_bits else 0

    @property
    def per_word(self) -> int:
        """The number of codes per word."""
        return 32 // self.low_bits

    @property
    def count(self) -> int:
        """The number of blocks per column."""
        return -(-self.k // self.block)

    @property
    def words_per_block(self) -> int:
        return -(-self.block // self.per_word)

    @property
    def words(self) -> int:
        """The number of stored words per column, including those of high bits."""
        last = self.k - (self.count - 1) * self.block if self.count else 0
        words = max(self.count - 1, 0) * self.words_per_block + -(-last // self.per_word)
        return self.stored(words)

    def stored(self, words: int) -> int:
        """Words stored for `words` words of codes, with a word of high bits for each
        whole group.
        """
        return words + words // self.group if self.group else words

    @property
    def factor_words(self) -> int:
        """The number of words of a column's scale factors."""
        return -(-self.count // FACTORS)

    @property
    def supers(self) -> int:
        """The number of super-blocks per column."""
        return -(-self.count // self.together) if self.together else 0

    @property
    def zero_words(self) -> int:
        """The number of words of a column's zero points."""
        return -(-self.count // self.per_word)


def blocks_of(call: Call) -> Blocks:
    """The storage format of a `matmul_blocked`'s weights."""
    return Blocks(call.int("depth"), call.int("block"), call.int("bits"), call.int("together"))


def _packed_words(codes: Array, bits: int) -> Array:
    """Packs codes [..., n * 32 / bits] into words [..., n]."""
    parts = 8 // bits
    grouped = codes.reshape(*codes.shape[:-1], -1, parts, _BYTES)
    bytes_ = np.zeros((*grouped.shape[:-2], _BYTES), np.uint8)
    for part in range(parts):
        bytes_ |= grouped[..., part, :] << np.uint8(bits * part)
    return np.asarray(bytes_).view("<u4")[..., 0].astype(np.uint32, copy=False)


def _unpacked_words(words: Array, bits: int) -> Array:
    """Unpacks words into codes; the inverse of `_packed_words`."""
    parts = 8 // bits
    bytes_ = np.ascontiguousarray(words, "<u4")[..., None].view(np.uint8)
    mask = np.uint8((1 << bits) - 1)
    grouped = np.stack([(bytes_ >> np.uint8(bits * p)) & mask for p in range(parts)], axis=-2)
    return grouped.reshape(*words.shape[:-1], -1)


def _in_panels(array: Array, columns: int) -> Array:
    """Rearranges [columns, n] into panels [columns / 16, n, 16], with zeros after the last
    column."""
    count = -(-columns // PANEL) * PANEL
    padded = np.pad(array, ((0, count - columns), (0, 0)))
    return np.ascontiguousarray(padded.reshape(-1, PANEL, array.shape[1]).transpose(0, 2, 1))


def _by_column(panels: Array, columns: int) -> Array:
    """Rearranges panels into columns; the inverse of `_in_panels`."""
    return panels.transpose(0, 2, 1).reshape(-1, panels.shape[1])[:columns]


def pack_codes(codes: Array, blocks: Blocks) -> Array:
    """Packs codes u8[columns, k] into words u32[columns / 16, words, 16]."""
    columns, k = codes.shape
    step = max(1, _CHUNK // max(1, k) // PANEL) * PANEL
    parts = [_pack_some(codes[n : n + step], blocks) for n in range(0, columns, step)]
    return np.concatenate(parts) if parts else np.zeros((0, blocks.words, PANEL), np.uint32)


def _pack_some(codes: Array, blocks: Blocks) -> Array:
    columns, k = codes.shape
    whole = np.pad(codes, ((0, 0), (0, blocks.count * blocks.block - k)))
    more = blocks.words_per_block * blocks.per_word - blocks.block
    split = whole.reshape(columns, blocks.count, blocks.block)
    filled = np.pad(split, ((0, 0), (0, 0), (0, more))).reshape(columns, -1)
    if not blocks.group:
        return _in_panels(_packed_words(filled, blocks.bits)[:, : blocks.words], columns)
    low = _packed_words(filled & np.uint8((1 << LOW_BITS) - 1), LOW_BITS)
    high = _packed_words(filled >> np.uint8(LOW_BITS), blocks.high_bits)
    low = low.reshape(columns, -1, blocks.group)
    words = np.concatenate([low, high[:, :, None]], axis=-1).reshape(columns, -1)
    return _in_panels(words, columns)


def unpack_codes(words: Array, blocks: Blocks, columns: int) -> Array:
    """Unpacks words into codes [columns, k]; the inverse of `pack_codes`."""
    stored = _by_column(words, columns)
    if blocks.group:
        grouped = stored.reshape(columns, -1, blocks.group + 1)
        found = _unpacked_words(grouped[..., :-1].reshape(columns, -1), LOW_BITS)
        high = _unpacked_words(grouped[..., -1], blocks.high_bits)
        found = found | high << np.uint8(LOW_BITS)
    else:
        found = _unpacked_words(stored, blocks.bits)
    more = blocks.count * blocks.words_per_block * blocks.per_word - found.shape[1]
    filled = np.pad(found, ((0, 0), (0, more)))
    filled = filled.reshape(columns, blocks.count, blocks.words_per_block * blocks.per_word)
    return filled[:, :, : blocks.block].reshape(columns, -1)[:, : blocks.k]


def pack_scales(scales: Array) -> Array:
    """Packs scales [columns, blocks] into panels [columns / 16, blocks, 16]."""
    return _in_panels(scales, scales.shape[0])


def pack_zero_points(zeros: Array, blocks: Blocks) -> Array:
    """Packs zero points u8[columns, blocks] into words u32[columns / 16, zero_words, 16]."""
    filled = np.pad(zeros, ((0, 0), (0, blocks.zero_words * blocks.per_word - zeros.shape[1])))
    return _in_panels(_packed_words(filled, blocks.bits), zeros.shape[0])


def pack_factors(factors: Array) -> Array:
    """Packs factors i8[columns, blocks] into words u32[columns / 16, blocks / 4, 16]."""
    filled = np.pad(factors, ((0, 0), (0, -factors.shape[1] % FACTORS)))
    return _in_panels(_packed_words(filled.view(np.uint8), 8), factors.shape[0])


def _unpacked_factors(words: Array, columns: int) -> Array:
    """Unpacks factors; the inverse of `pack_factors`, with factors of 0 after the last."""
    return _unpacked_words(_by_column(words, columns), 8).view(np.int8)


@dataclass(frozen=True)
class Codes:
    """Block-quantised weights before they are packed.

    Attributes:
        codes: u8[columns, k].
        scales: floats [columns, blocks], or factors i8 of `supers`.
        zeros: zero points u8[columns, blocks], or one number for all.
        minimums: floats [columns, blocks], with one zero point for all, or factors i8 of
            `super_minimums`.
        supers, super_minimums: floats [columns, super-blocks].
    """

    codes: Array
    scales: Array
    zeros: Array | int
    blocks: Blocks
    minimums: Array | None = None
    supers: Array | None = None
    super_minimums: Array | None = None

    def operands(self) -> list[Array | None]:
        """The constant operands of a `matmul_blocked` after its left side, up to the last one
        present."""
        zeros = self.zeros
        if self.supers is not None:
            least, top = self.minimums, self.super_minimums
            found = [
                pack_codes(self.codes, self.blocks),
                pack_factors(self.scales),
                None if least is None else pack_factors(least),
                None,
                pack_scales(self.supers),
            ]
            return found if top is None else [*found, pack_scales(top)]
        if self.minimums is not None:
            minimums = pack_scales(self.minimums)
            return [pack_codes(self.codes, self.blocks), pack_scales(self.scales), minimums]
        return [
            pack_codes(self.codes, self.blocks),
            pack_scales(self.scales),
            *([] if isinstance(zeros, int) else [pack_zero_points(zeros, self.blocks)]),
        ]

    def attrs(self) -> dict[str, Attr]:
        """The attributes of the op that multiplies by this matrix."""
        return {
            "columns": self.codes.shape[0],
            "depth": self.blocks.k,
            "block": self.blocks.block,
            "bits": self.blocks.bits,
            "together": self.blocks.together,
            "zero_point": self.zeros if isinstance(self.zeros, int) else 0,
        }


def weights(call: Call, inputs: Sequence[Any]) -> Array:
    """The weights [k, columns] of a call in f64, from its operands."""
    inputs = [*inputs, *[None] * (SUPER_MINIMUMS + 1 - len(inputs))]
    blocks, columns = blocks_of(call), call.int("columns")
    codes = unpack_codes(inputs[WORDS], blocks, columns).astype(np.int64)
    spread = np.arange(blocks.k) // blocks.block

    def parameter(stored: Array, tops: Array | None) -> Array:
        if tops is None:
            return _by_column(stored, columns).astype(np.float64)[:, spread]
        wide = _by_column(tops, columns).astype(np.float64)[:, spread // blocks.together]
        return np.asarray(_unpacked_factors(stored, columns)[:, spread] * wide)

    scale = parameter(inputs[SCALES], inputs[SUPER_SCALES])
    zero: Any = call.int("zero_point")
    minimum: Any = 0.0
    if has_minimums(call):
        minimum = parameter(inputs[ZERO_POINTS], inputs[SUPER_MINIMUMS])
    elif inputs[ZERO_POINTS] is not None:
        zero = _unpacked_words(_by_column(inputs[ZERO_POINTS], columns), blocks.bits)
        zero = zero.astype(np.int64)[:, spread]
    return np.asarray(((codes - zero) * scale + minimum).T)


def has_minimums(call: Call) -> bool:
    """Whether blocks have minimums instead of zero points."""
    if call.has(SUPER_MINIMUMS):
        return True
    return call.has(ZERO_POINTS) and call.operand(ZERO_POINTS).dtype.is_float


def _type(call: Call) -> Sequence[TensorType]:
    return [TensorType(F32, (*call.operand(0).dims[:-1], call.dim("columns")))]


def _reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    left_scales = inputs[LEFT_SCALES] if len(inputs) > LEFT_SCALES else None
    blocks = blocks_of(call)
    left = inputs[0].astype(np.float64)
    if left_scales is not None:
        spread = np.arange(blocks.k) // blocks.block
        left = left * left_scales.astype(np.float64)[..., spread]
    with np.errstate(all="ignore"):
        return [np.asarray((left @ weights(call, inputs)).astype(np.float32))]


def _compute(call: Call) -> Sequence[Compute]:
    """`sum over k of left[k] * ((code - zero_point) * scale + minimum)`."""
    blocks = blocks_of(call)
    indices = result_indices(call.result_types[0].rank)
    k = e.Var("k")
    panel = e.binary("floordiv", indices[-1], e.index(PANEL))
    lane = e.binary("floormod", indices[-1], e.index(PANEL))
    a = call.operand(0)
    left = e.cast(e.Load(0, (*indices[:-1], k), a.dtype), F32)
    if call.has(LEFT_SCALES):
        left = e.mul(left, e.Load(LEFT_SCALES, (*indices[:-1], _block(blocks, k)), F32))
    weight = weight_at(call, panel, lane, k)
    return [Compute(indices, e.Reduce("sum", ((k, blocks.k),), e.mul(left, weight), F32))]


def _block(blocks: Blocks, k: e.Expr) -> e.Expr:
    """The number of the block that contains term k."""
    return e.binary("floordiv", k, e.index(blocks.block)) if blocks.count > 1 else e.index(0)


def weight_at(call: Call, panel: e.Expr, lane: e.Expr, k: e.Expr) -> e.Expr:
    """Term k of the column `lane` of a panel, in f32, from operands 1 to 3."""
    blocks = blocks_of(call)
    block = _block(blocks, k)
    word, place = _place(blocks, k, block)
    code = _code(WORDS, (panel, stored_word(blocks, word), place, lane), blocks.low_bits)
    if blocks.group:
        behind, part = word_behind(blocks, word, place)
        high = _code(WORDS, (panel, behind, part, lane), blocks.high_bits)
        code = e.binary("or", code, e.binary("shl", high, e.const(LOW_BITS, I32)))
    zero: e.Expr = e.const(call.int("zero_point"), I32)
    if call.has(ZERO_POINTS) and not has_minimums(call):
        per = e.index(blocks.per_word)
        at = e.binary("floordiv", block, per), e.binary("floormod", block, per)
        zero = _code(ZERO_POINTS, (panel, *at, lane), blocks.bits)

    def parameter(operand: int, tops: int) -> e.Expr:
        if not blocks.together:
            return e.cast(e.Load(operand, (panel, block, lane), call.operand(operand).dtype), F32)
        four, above = e.index(FACTORS), e.index(blocks.together)
        at = panel, e.binary("floordiv", block, four), lane
        place = e.binary("floormod", block, four)
        top = panel, e.binary("floordiv", block, above), lane
        found = factor(e.Load(operand, at, U32), place)
        return e.mul(found, e.cast(e.Load(tops, top, call.operand(tops).dtype), F32))

    weight = e.mul(e.cast(e.sub(code, zero), F32), parameter(SCALES, SUPER_SCALES))
    if has_minimums(call):
        weight = e.add(weight, parameter(ZERO_POINTS, SUPER_MINIMUMS))
    return weight


def factor(word: e.Expr, place: e.Expr) -> e.Expr:
    """A factor in f32, given its word and its position in the word."""
    left = e.mul(e.sub(e.index(FACTORS - 1), place), e.index(8))
    raised = e.binary("shl", word, e.cast(left, U32))
    return e.cast(e.binary("shr", e.Bitcast(raised, I32), e.const(24, I32)), F32)


def stored_word(blocks: Blocks, word: e.Expr) -> e.Expr:
    """The index of word `word` among the stored words, which include words of high bits."""
    if not blocks.group:
        return word
    return e.add(word, e.binary("floordiv", word, e.index(blocks.group)))


def word_behind(blocks: Blocks, word: e.Expr, place: e.Expr) -> tuple[e.Expr, e.Expr]:
    """(index of the word with the high bits of code number `place` of a word, position there)."""
    group = e.index(blocks.group)
    number, within = e.binary("floordiv", word, group), e.binary("floormod", word, group)
    behind = e.add(e.mul(number, e.index(blocks.group + 1)), group)
    return behind, e.add(e.mul(within, e.index(blocks.per_word)), place)


def _place(blocks: Blocks, k: e.Expr, block: e.Expr) -> tuple[e.Expr, e.Expr]:
    """(index of the word that contains term k, position there)."""
    per = e.index(blocks.per_word)
    if blocks.count == 1 or blocks.block % blocks.per_word == 0:
        return e.binary("floordiv", k, per), e.binary("floormod", k, per)
    within = e.binary("floormod", k, e.index(blocks.block))
    first = e.mul(block, e.index(blocks.words_per_block))
    word = e.add(first, e.binary("floordiv", within, per))
    return word, e.binary("floormod", within, per)


def _code(operand: int, at: tuple[e.Expr, e.Expr, e.Expr, e.Expr], bits: int) -> e.Expr:
    """A code in i32, given the index [panel, word, lane] of its word and its position there."""
    panel, word, place, lane = at
    four = e.index(_BYTES)
    byte = e.mul(e.binary("floormod", place, four), e.index(8))
    part = e.mul(e.binary("floordiv", place, four), e.index(bits))
    shift = e.cast(e.add(byte, part), U32)
    shifted = e.binary("shr", e.Load(operand, (panel, word, lane), U32), shift)
    return e.cast(e.binary("and", shifted, e.const((1 << bits) - 1, U32)), I32)


def _contraction(call: Call) -> ContractionDims:
    a, (result,) = call.operand(0), call.result_types
    blocks, outer = blocks_of(call), tuple(range(a.rank - 1))
    zeros = ZERO_POINTS if call.has(ZERO_POINTS) else None
    return ContractionDims(
        left=Factor(0, a, batch=(), own=outer, summed=a.rank - 1),
        # as the weights are meant, not as they are stored
        right=Factor(
            WORDS,
            TensorType(U32, (blocks.k, call.dim("columns"))),
            batch=(),
            own=(1,),
            summed=0,
            scales=Scales(SCALES, zeros, blocks.block),
        ),
        result=result,
        rows=outer,
        column=a.rank - 1,
        accumulator=F32,
    )


def _has_depth(call: Call) -> bool:
    a = call.operand(0)
    return a.rank >= 2 and call.equal(
        a.dims[-1], call.int("depth"), "matmul_blocked: columns of a are terms of a sum"
    )


def has_parameters(call: Call) -> bool:
    blocks = blocks_of(call)
    if min(blocks.block, blocks.k) < 1 or blocks.together < 0:
        return False
    chunk = blocks.group * blocks.per_word
    return blocks.bits in BITS or (
        blocks.bits in SPLIT_BITS and blocks.block % chunk == 0 and blocks.k % chunk == 0
    )


def _fits(call: Call, operand: int, extent: int) -> bool:
    type = call.operand(operand)
    panels: Dim = ceil_divide(call.dim("columns"), PANEL)
    return type.rank == 3 and all(
        call.equal(found, wanted, "matmul_blocked: panels of columns")
        for found, wanted in zip(type.dims, (panels, extent, PANEL), strict=True)
    )


def weights_fit(call: Call) -> bool:
    blocks = blocks_of(call)
    is_wide = blocks.together > 0
    each = blocks.factor_words if is_wide else blocks.count
    zeros = each if has_minimums(call) else blocks.zero_words
    has_tops = call.has(SUPER_SCALES), call.has(SUPER_MINIMUMS)
    return (
        _fits(call, WORDS, blocks.words)
        and _fits(call, SCALES, each)
        and (not call.has(ZERO_POINTS) or _fits(call, ZERO_POINTS, zeros))
        and call.operand(SCALES).dtype.is_float != is_wide
        and has_tops == (is_wide, is_wide and call.has(ZERO_POINTS))
        and all(
            _fits(call, operand, blocks.supers)
            for operand, has in zip((SUPER_SCALES, SUPER_MINIMUMS), has_tops, strict=True)
            if has
        )
    )


def _left_fits(call: Call) -> bool:
    a = call.operand(0)
    if not call.has(LEFT_SCALES):
        return a.dtype is F32
    scales = call.operand(LEFT_SCALES)
    return (
        a.dtype is I8
        and scales.rank == a.rank
        and all(
            call.equal(m, n, "matmul_blocked: scales of the left side's rows")
            for m, n in zip(scales.dims, (*a.dims[:-1], blocks_of(call).count), strict=True)
        )
    )


def _sample(
    rows: tuple[int, ...],
    k: int,
    columns: int,
    block: int,
    bits: int,
    *,
    scale: DType = F32,
    zeros: bool = False,
    minimums: DType | None = None,
    left_scales: bool = False,
    together: int = 0,
) -> Sample:
    blocks, panels = Blocks(k, block, bits, together), -(-columns // PANEL)
    each = (panels, blocks.factor_words if together else blocks.count, PANEL)
    tops = TensorType(F16, (panels, blocks.supers, PANEL)) if together else None
    types: list[TensorType | None] = [
        TensorType(I8 if left_scales else F32, (*rows, k)),
        TensorType(U32, (panels, blocks.words, PANEL)),
        TensorType(U32 if together else scale, each),
        TensorType(U32 if together else minimums, each)
        if minimums
        else TensorType(U32, (panels, blocks.zero_words, PANEL))
        if zeros
        else None,
        TensorType(F32, (*rows, blocks.count)) if left_scales else None,
        tops,
        tops if minimums else None,
    ]
    attrs = {"columns": columns, "depth": k, "block": block, "bits": bits, "together": together}
    attrs["zero_point"] = 1 << (bits - 1)
    stored = tuple(n for n in STORED if types[n] is not None)
    return Sample(tuple(types), attrs, constant_operands=stored)


# What each op says of weights in few bits that reads them.
CODE_ATTRIBUTES = (
    Attribute("bits", "int", doc="of a code: 2, 4, 5, 6 or 8"),
    Attribute("zero_point", "int", 0, "of all codes, without operand zero_points"),
    Attribute("together", "int", 0, "blocks of a super-block, 0 where scales are floats"),
)
HAS_PARAMETERS = Constraint(
    "bits is 2, 4 or 8, block and depth are positive; or bits is 5 or 6, and these are "
    "multiples of 32 or 16",
    has_parameters,
)

MATMUL_BLOCKED = register(
    OpRecord(
        name="matmul_blocked",
        summary="Matrix product of a [..., M, K] with weights that are stored in few bits, by "
        "blocks of K: (code - zero_point) * scale, plus a minimum where there is one.",
        operands=(
            Operand("a", frozenset({F32, I8})),
            Operand("words", frozenset({U32})),
            Operand("scales", FLOATS | {U32}),
            Operand("zero_points", FLOATS | {U32}, "optional"),
            Operand("a_scales", frozenset({F32}), "optional"),
            Operand("super_scales", FLOATS, "optional"),
            Operand("super_minimums", FLOATS, "optional"),
        ),
        attributes=(
            Attribute("columns", "dim", doc="of the weights and the result"),
            Attribute("depth", "int", doc="terms of a sum"),
            Attribute("block", "int", doc="how many terms of a sum share a scale"),
            *CODE_ATTRIBUTES,
            Attribute(
                "may_quantize", "bool", False, "whether a may be rounded to 8 bits by blocks of K"
            ),
        ),
        constraints=(
            HAS_PARAMETERS,
            Constraint("a has rank 2 or more and depth columns", _has_depth),
            Constraint("words, scales and zero points are those of a's last dim", weights_fit),
            Constraint("a is f32; or i8, with a scale for each block", _left_fits),
        ),
        infer=_type,
        reference=_reference,
        compute=_compute,
        contraction=_contraction,
        kind=Kind.CONTRACTION,
        propagate=layout_rules.matmul_of_rows,
        samples=(
            _sample((1,), 64, 40, 32, 4),
            _sample((5,), 70, 19, 32, 4, zeros=True),
            _sample((2, 3), 48, 16, 16, 8, scale=F16),
            _sample((7,), 35, 33, 35, 8),
            _sample((3,), 33, 17, 5, 2, zeros=True),
            _sample((2, 9), 96, 48, 32, 4, left_scales=True),
            _sample((3,), 70, 33, 32, 4, minimums=F16),
            _sample((1,), 64, 18, 16, 8, minimums=F32, left_scales=True),
            _sample((2,), 64, 17, 32, 5, scale=F16, minimums=F16),
            _sample((1,), 64, 18, 16, 6, together=2),
            _sample((2,), 96, 17, 16, 4, minimums=F16, together=3),
            _sample((1,), 64, 17, 16, 6, together=4, left_scales=True),
            _sample((2,), 64, 16, 32, 5, minimums=F16, together=2, left_scales=True),
        ),
    )
)
