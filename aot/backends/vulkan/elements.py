"""How an element of each type is a value of a shader, and what it is in memory.

Owns representations and the conversions between them; declares the capability of each narrow type
where it is used, so that a shader needs no feature but those. A value of a narrow type that the
target computes in has that type. Of the others an f16 is an f32 and an integer 32 bits, extended.
Knows nothing of expressions, addresses or buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.backends.vulkan.spirv import Capability, Glsl, Op
from aot.backends.vulkan.values import Values
from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir.types import DType
from aot.target.model import GpuGeometry

WIDE = frozenset(d for d in DType if d.bits > 32 and d is not DType.INDEX)
_ARITHMETIC = {8: Capability.INT8, 16: Capability.INT16}
_STORAGE = {8: Capability.STORAGE_BUFFER_8BIT_ACCESS, 16: Capability.STORAGE_BUFFER_16BIT_ACCESS}


@dataclass(frozen=True)
class Natives:
    """The types that a target computes in or stores, besides those of 32 bits.

    Attributes:
        computed: narrow types with arithmetic of their own.
        stored_bits: widths besides 32 in which storage buffers are read and written.
    """

    computed: frozenset[DType]
    stored_bits: frozenset[int]

    @staticmethod
    def of(gpu: GpuGeometry, dtypes: Sequence[DType]) -> Natives:
        """The native types of a target with such workgroups that computes in `dtypes`."""
        narrow = (d for d in dtypes if d.bits < 32 and d is not DType.BOOL)
        return Natives(frozenset(narrow), frozenset(gpu.storage_bits))

    @property
    def without_computed(self) -> Natives:
        return Natives(frozenset(), self.stored_bits)


def arithmetic_of(dtype: DType) -> Capability:
    """The capability behind arithmetic in a narrow type."""
    return Capability.FLOAT16 if dtype is DType.F16 else _ARITHMETIC[dtype.bits]


class Elements:
    """Converts values; all of them are pure."""

    def __init__(self, values: Values, natives: Natives) -> None:
        self.values = values
        self.asm = values.asm
        self._natives = natives
        self._wide = self if not natives.computed else Elements(values, natives.without_computed)
        # of an f32 that was rounded to f16: the word with that f16
        self._packed: dict[int, int] = {}

    @property
    def wide(self) -> Elements:
        """For values that are in 32 bits whatever is native: what is loaded to be converted."""
        return self._wide

    # Values

    def is_native(self, dtype: DType) -> bool:
        """Whether values of a narrow type have that type."""
        return dtype in self._natives.computed

    def value_type(self, dtype: DType) -> int:
        """The type that values of `dtype` have, to compute in; not for 64 bits."""
        if dtype in WIDE:
            raise InternalError(f"a value is {dtype}, which legalisation should have removed")
        if dtype is DType.BOOL:
            return self.asm.boolean
        if not self.is_native(dtype):
            return self.asm.f32 if dtype.is_float else self.asm.u32
        self.asm.capability(arithmetic_of(dtype))
        return self._narrow_type(dtype)

    def _narrow_type(self, dtype: DType) -> int:
        return self.asm.f16 if dtype is DType.F16 else self.asm.integer(dtype.bits)

    def _converted_type(self, dtype: DType) -> int:
        """The type of a native value that is only converted, loaded and stored so far: where
        storage has it no arithmetic is needed for that."""
        found = self.stored_type(dtype)
        return self.value_type(dtype) if found is None else found

    def widened(self, value: int, dtype: DType) -> int:
        """A value in 32 bits: an f16 as an f32, an integer extended."""
        if not self.is_native(dtype):
            return value
        if dtype is DType.F16:
            return self.values.pure(Op.F_CONVERT, self.asm.f32, value)
        op = Op.S_CONVERT if dtype.is_signed else Op.U_CONVERT
        return self.values.pure(op, self.asm.u32, value)

    def narrowed(self, value: int, dtype: DType) -> int:
        """A 32-bit value converted to `dtype`: an f32 is rounded, an integer wraps."""
        if dtype.bits >= 32:
            return value
        if dtype is DType.F16:
            if self.is_native(dtype):
                return self.values.pure(Op.F_CONVERT, self._converted_type(dtype), value)
            packed = self.pack_half(value)
            rounded = self.unpack_half(packed)
            self._packed[rounded] = packed
            return rounded
        return self.from_bits(value, dtype)

    def is_literal_number(self, value: int, dtype: DType) -> bool:
        """Whether a float is a literal, and not NaN."""
        bits = self.values.bits(value)
        if bits is None:
            return False
        is_half = self.is_native(dtype)
        return bits & 0x7FFF <= 0x7C00 if is_half else bits & 0x7FFFFFFF <= 0x7F800000

    def magnitude(self, value: int, dtype: DType) -> tuple[int, int]:
        """(bits of a float without its sign as u32, bits of infinity)."""
        is_half = self.is_native(dtype)
        bits = self.to_bits(value, dtype) if is_half else self.as_u32(value)
        mask, infinity = (0x7FFF, 0x7C00) if is_half else (0x7FFFFFFF, 0x7F800000)
        word = self.values.pure(Op.BITWISE_AND, self.asm.u32, bits, self.values.u32(mask))
        return word, infinity

    # Words

    def from_bits(self, word: int, dtype: DType, shift: int | None = None) -> int:
        """The element that starts at bit `shift` of a word, whatever the other bits are."""
        u32, pure = self.asm.u32, self.values.pure
        if dtype is DType.F16 or self.is_native(dtype):
            moved = word if shift is None else pure(Op.SHIFT_RIGHT_LOGICAL, u32, word, shift)
            if not self.is_native(dtype):
                return self.unpack_half(moved)
            if dtype is not DType.F16:
                return pure(Op.U_CONVERT, self._converted_type(dtype), moved)
            return self.half_of(moved, 0)
        start = self.values.u32(0) if shift is None else shift
        op = Op.BIT_FIELD_S_EXTRACT if dtype.is_signed else Op.BIT_FIELD_U_EXTRACT
        bits = pure(op, u32, word, start, self.values.u32(dtype.bits))
        if dtype is DType.BOOL:
            return pure(Op.I_NOT_EQUAL, self.asm.boolean, bits, self.values.u32(0))
        return bits

    def to_bits(self, value: int, dtype: DType) -> int:
        """A word whose low bits are the element; an integer may be extended."""
        if dtype is DType.BOOL:
            return self.values.select(self.asm.u32, value, self.values.u32(1), self.values.u32(0))
        if dtype is not DType.F16:
            return self.widened(value, dtype)
        if not self.is_native(dtype):
            return self.pack_half(value)
        half = self.value_type(dtype)
        both = self.values.pure(
            Op.COMPOSITE_CONSTRUCT, self.asm.vector(half, 2), value, self.asm.constant(half, 0)
        )
        return self.as_u32(both)

    def half_of(self, word: int, number: int) -> int:
        """One of the two f16 in a word."""
        if self.is_native(DType.F16):
            half = self.value_type(DType.F16)
            both = self.values.pure(Op.BITCAST, self.asm.vector(half, 2), word)
            return self.values.pure(Op.COMPOSITE_EXTRACT, half, both, literals=(number,))
        both = self.unpack_halves(word)
        return self.values.pure(Op.COMPOSITE_EXTRACT, self.asm.f32, both, literals=(number,))

    # Storage

    def stored_type(self, dtype: DType) -> int | None:
        """The SPIR-V type of a narrow element in a storage buffer of its own width; None where the
        target has none, and elements are parts of words.
        """
        bits = dtype.bits
        if bits not in self._natives.stored_bits:
            return None
        self.asm.capability(_STORAGE[bits])
        return self._narrow_type(dtype)

    def from_stored(self, element: int, dtype: DType) -> int:
        """An element that was loaded as `stored_type` as a value."""
        if self.is_native(dtype):
            return element
        if dtype is DType.F16:
            return self.values.pure(Op.F_CONVERT, self.asm.f32, element)
        op = Op.S_CONVERT if dtype.is_signed else Op.U_CONVERT
        word = self.values.pure(op, self.asm.u32, element)
        if dtype is DType.BOOL:
            return self.values.pure(Op.I_NOT_EQUAL, self.asm.boolean, word, self.values.u32(0))
        return word

    def to_stored(self, value: int, dtype: DType) -> int:
        """A value converted to its `stored_type`."""
        if self.is_native(dtype):
            return value
        stored = self.stored_type(dtype)
        assert stored is not None
        if dtype is DType.F16:
            return self.values.pure(Op.F_CONVERT, stored, value)  # exact: it was rounded before
        return self.values.pure(Op.U_CONVERT, stored, self.to_bits(value, dtype))

    # Halves without a type of their own

    def unpack_halves(self, word: int) -> int:
        """The two f16 in a u32, as a vector of f32; exact."""
        return self.values.glsl(Glsl.UNPACK_HALF_2X16, self.asm.vector(self.asm.f32, 2), word)

    def unpack_half(self, bits: int) -> int:
        """The f16 in the low half of a u32, as f32; exact."""
        both = self.unpack_halves(bits)
        return self.values.pure(Op.COMPOSITE_EXTRACT, self.asm.f32, both, literals=(0,))

    def pack_half(self, value: int) -> int:
        """An f32 as an f16 in the low half of a u32, rounded to nearest even.

        By integers, after F. Giesen's float_to_half_fast3_rtne: PackHalf2x16 may round as it
        likes, and SwiftShader's makes NaN of infinity.
        """
        if value in self._packed:
            return self._packed[value]
        u32, boolean, pure, word = self.asm.u32, self.asm.boolean, self.values.pure, self.values.u32
        bits = self.as_u32(value)
        sign = pure(Op.BITWISE_AND, u32, bits, word(0x80000000))
        magnitude = pure(Op.BITWISE_XOR, u32, bits, sign)
        is_nan = pure(Op.U_GREATER_THAN, boolean, magnitude, word(0x7F800000))
        special = self.values.select(u32, is_nan, word(0x7E00), word(0x7C00))
        # Normal: rebias the exponent by 15 - 127, add just under half a unit, plus one if odd.
        odd = pure(
            Op.BITWISE_AND, u32, pure(Op.SHIFT_RIGHT_LOGICAL, u32, magnitude, word(13)), word(1)
        )
        biased = pure(Op.I_ADD, u32, magnitude, word(((15 - 127) << 23) + 0xFFF))
        normal = pure(Op.SHIFT_RIGHT_LOGICAL, u32, pure(Op.I_ADD, u32, biased, odd), word(13))
        # Denormal: adding 0.5 leaves the f16's bits in the low bits of the sum.
        half = 126 << 23
        lifted = pure(
            Op.F_ADD,
            self.asm.f32,
            pure(Op.BITCAST, self.asm.f32, magnitude),
            self.values.f32_bits(half),
        )
        denormal = pure(Op.I_SUB, u32, self.as_u32(lifted), word(half))
        is_large = pure(Op.U_GREATER_THAN, boolean, magnitude, word(0x477FFFFF))
        is_tiny = pure(Op.U_LESS_THAN, boolean, magnitude, word(113 << 23))
        finite = self.values.select(u32, is_tiny, denormal, normal)
        rounded = self.values.select(u32, is_large, special, finite)
        return pure(Op.BITWISE_OR, u32, rounded, pure(Op.SHIFT_RIGHT_LOGICAL, u32, sign, word(16)))

    def as_u32(self, value: int) -> int:
        return self.values.pure(Op.BITCAST, self.asm.u32, value)
