"""Memory of a shader: class buffers and scratch.

Owns addresses and how an element of each type lies in 32-bit words. Values of narrow types come
out extended to 32 bits, f16 as f32, bool as bool, 64-bit integers as a pair of words.
"""

from __future__ import annotations

from math import prod

from aot.backends.vulkan.parameters import Parameters
from aot.backends.vulkan.placement import QUAD, Placement, ScratchPlace
from aot.backends.vulkan.spirv import Glsl, MemorySemantics, Op, Scope, StorageClass
from aot.backends.vulkan.values import Linear
from aot.errors import InternalError
from aot.ir.types import DType
from aot.kernels.ir import Barrier, Buffer, BufferClass, Kernel, Scratch, Space, walk

WIDE_INTEGERS = frozenset((DType.I64, DType.U64))
_READ_ONLY = (BufferClass.CONSTANTS, BufferClass.INPUTS)

# A pair is the low and the high word of a 64-bit integer.
Pair = tuple[int, int]
Stored = int | Pair


class Memory:
    """Loads and stores; keeps track of what may have changed since a load."""

    def __init__(self, kernel: Kernel, placement: Placement, params: Parameters) -> None:
        self.kernel = kernel
        self.values = params.values
        self.asm = params.values.asm
        self.params = params
        self.places = placement.scratch
        self._in_quads = placement.in_quads
        self._vectors = placement.vectors
        self._quads: dict[BufferClass, int] = {}
        self.bindings: set[BufferClass] = set()
        self._buffers: dict[BufferClass, int] = {}
        self._scratch: dict[Scratch, int] = {}
        self._version = 0
        # whether lanes read what others stored before a barrier
        self._is_shared = any(
            isinstance(s, Barrier) and s.orders_buffers for s in walk(kernel.body)
        )
        # The SSA values of promoted scratch, by scratch and element.
        self.registers: dict[tuple[Scratch, int], int] = {}

    def changed(self) -> None:
        """Forgets loaded values: control flow or a barrier may have changed what they read."""
        self._version += 1

    # Buffers

    def load_buffer(self, buffer: Buffer, indices: list[Linear], guard: int | None) -> Stored:
        """An element; where `guard` is false some word that exists is read instead."""
        size = buffer.dtype.bytes
        if size >= 4:
            first = self._word(buffer, indices)
            if buffer in self._in_quads:
                found = self._load_from_quad(buffer, first, guard)
                if found is not None:
                    return self._from_word(found, buffer)
            low = self._load_word(buffer, self._safe(first, guard))
            if buffer.dtype not in WIDE_INTEGERS:
                return self._from_word(low, buffer)
            return low, self._load_word(buffer, self._safe(first + Linear((), 1), guard))
        byte = self._byte(buffer, indices)
        shift = self._bit_shift(byte)
        two = self.values.u32(2)
        word = self.values.atom(self.values.pure(Op.SHIFT_RIGHT_LOGICAL, self.asm.u32, byte, two))
        loaded = self._load_word(buffer, self._safe(word, guard))
        return self._narrow(loaded, shift, buffer.dtype)

    def store_buffer(self, buffer: Buffer, indices: list[Linear], value: Stored) -> None:
        if buffer.binding in _READ_ONLY:
            raise InternalError(
                f"kernel {self.kernel.name}: store to {buffer.name}, which is "
                f"{buffer.binding.name.lower()}"
            )
        if isinstance(value, tuple):
            first = self._word(buffer, indices)
            for n, word in enumerate(value):
                self._store_word(buffer, first + Linear((), n), word)
        elif buffer.dtype.bytes == 4:
            is_u32 = self._word_type(buffer.binding) == self.asm.u32
            bits = self._as_u32(value) if buffer.dtype is DType.F32 and is_u32 else value
            self._store_word(buffer, self._word(buffer, indices), bits)
        else:
            self._store_narrow(buffer, indices, value)
        self.changed()

    def _variable(self, binding: BufferClass) -> int:
        if binding not in self._buffers:
            is_written = any(b.is_written for b in self.kernel.buffers if b.binding is binding)
            words = self.asm.runtime_array(self._word_type(binding), stride=4)
            self._buffers[binding] = self.asm.resource(
                StorageClass.STORAGE_BUFFER,
                self.asm.block(
                    words, is_written=is_written, is_coherent=is_written and self._is_shared
                ),
                binding.value,
            )
            self.bindings.add(binding)
        return self._buffers[binding]

    def _word_type(self, binding: BufferClass) -> int:
        """f32 where a class holds nothing else, which saves a conversion for each element."""
        dtypes = {b.dtype for b in self.kernel.buffers if b.binding is binding}
        return self.asm.f32 if dtypes == {DType.F32} else self.asm.u32

    def _elements(self, buffer: Buffer, indices: list[Linear], size: int) -> Linear:
        """The element's position times `size`."""
        if len(indices) != len(buffer.strides):
            raise InternalError(
                f"kernel {self.kernel.name}: {len(indices)} indices for "
                f"{buffer.name} of rank {len(buffer.strides)}"
            )
        total = Linear(())
        for index, stride in zip(indices, buffer.strides, strict=True):
            total = total + self.values.multiply(index, self.params.dim(stride))
        return total.scaled(size)

    def _word(self, buffer: Buffer, indices: list[Linear]) -> Linear:
        """The first word of an element of four or eight bytes."""
        offset = self.values.pure(
            Op.SHIFT_RIGHT_LOGICAL,
            self.asm.u32,
            self.params.word(buffer.offset.name),
            self.values.u32(2),
        )
        if buffer.binding is BufferClass.CONSTANTS or buffer.alignment % (4 * QUAD) == 0:
            self.values.remember_multiple(offset, QUAD)
        return self.values.atom(offset) + self._elements(buffer, indices, buffer.dtype.bytes // 4)

    def _byte(self, buffer: Buffer, indices: list[Linear]) -> int:
        offset = self.values.atom(self.params.word(buffer.offset.name))
        return self.values.id_of(offset + self._elements(buffer, indices, buffer.dtype.bytes))

    def _safe(self, word: Linear, guard: int | None) -> int:
        index = self.values.id_of(word)
        if guard is None:
            return index
        return self.values.select(self.asm.u32, guard, index, self.values.u32(0))

    def _pointer(self, buffer: Buffer, word: int) -> int:
        return self.values.pure(
            Op.ACCESS_CHAIN,
            self.asm.pointer(StorageClass.STORAGE_BUFFER, self._word_type(buffer.binding)),
            self._variable(buffer.binding),
            self.values.u32(0),
            word,
        )

    def _load_word(self, buffer: Buffer, word: int) -> int:
        version = -1 if buffer.binding in _READ_ONLY else self._version
        pointer = self._pointer(buffer, word)
        return self.values.cached(
            (Op.LOAD, version, pointer),
            lambda: self.values.body.result(Op.LOAD, self._word_type(buffer.binding), pointer),
        )

    def _load_from_quad(self, buffer: Buffer, word: Linear, guard: int | None) -> int | None:
        """A word out of the four that it lies among, loaded together; None where it isn't known
        which of them it is. Where `guard` is false, of four that exist."""
        place = word.constant % QUAD
        whole = self._quad(buffer, word - Linear((), place), guard)
        if whole is None:
            return None
        type_id = self._word_type(buffer.binding)
        return self.values.pure(Op.COMPOSITE_EXTRACT, type_id, whole, literals=(place,))

    def load_quad(self, buffer: Buffer, indices: list[Linear]) -> int | None:
        """Four neighbouring f32, the first at `indices`; None where they are not loaded at once."""
        if buffer not in self._in_quads or self._word_type(buffer.binding) != self.asm.f32:
            return None
        return self._quad(buffer, self._word(buffer, indices))

    def _quad(self, buffer: Buffer, start: Linear, guard: int | None = None) -> int | None:
        if self.values.multiple_of(start) % QUAD:
            return None
        values, asm = self.values, self.asm
        type_id = self._word_type(buffer.binding)
        quad = asm.vector(type_id, QUAD)
        if buffer.binding not in self._quads:
            block = asm.block(asm.runtime_array(quad, stride=4 * QUAD), is_written=False)
            self._quads[buffer.binding] = asm.resource(
                StorageClass.STORAGE_BUFFER, block, buffer.binding.value
            )
            self.bindings.add(buffer.binding)
        number = values.pure(
            Op.SHIFT_RIGHT_LOGICAL, asm.u32, values.id_of(start), values.u32(QUAD.bit_length() - 1)
        )
        if guard is not None:
            number = values.select(asm.u32, guard, number, values.u32(0))
        pointer = values.pure(
            Op.ACCESS_CHAIN,
            asm.pointer(StorageClass.STORAGE_BUFFER, quad),
            self._quads[buffer.binding],
            values.u32(0),
            number,
        )
        return values.cached(
            (Op.LOAD, -1, pointer), lambda: values.body.result(Op.LOAD, quad, pointer)
        )

    def _store_word(self, buffer: Buffer, word: Linear, value: int) -> None:
        self.values.body.emit(Op.STORE, self._pointer(buffer, self.values.id_of(word)), value)

    def _bit_shift(self, byte: int) -> int:
        """The bit at which the element of byte address `byte` starts in its word."""
        lane = self.values.pure(Op.BITWISE_AND, self.asm.u32, byte, self.values.u32(3))
        return self.values.pure(Op.SHIFT_LEFT_LOGICAL, self.asm.u32, lane, self.values.u32(3))

    def _store_narrow(self, buffer: Buffer, indices: list[Linear], value: int) -> None:
        """Flips the element's bits that change, atomically.

        Neighbours in the word belong to other lanes, which may store them at the same time: each
        looks at and flips no bits but its own, so that their order does not matter.
        """
        byte = self._byte(buffer, indices)
        shift = self._bit_shift(byte)
        u32, pure = self.asm.u32, self.values.pure
        word = pure(Op.SHIFT_RIGHT_LOGICAL, u32, byte, self.values.u32(2))
        pointer = self._pointer(buffer, word)
        mask = self.values.u32((1 << 8 * buffer.dtype.bytes) - 1)
        bits = self._narrow_bits(value, buffer.dtype)
        scope, relaxed = self.values.u32(Scope.DEVICE), self.values.u32(MemorySemantics.RELAXED)
        load = self.values.body.result(Op.ATOMIC_LOAD, u32, pointer, scope, relaxed)
        old = self.values.define(load)
        before = pure(Op.SHIFT_RIGHT_LOGICAL, u32, old, shift)
        changed = pure(Op.BITWISE_AND, u32, pure(Op.BITWISE_XOR, u32, before, bits), mask)
        flips = pure(Op.SHIFT_LEFT_LOGICAL, u32, changed, shift)
        self.values.body.result(Op.ATOMIC_XOR, u32, pointer, scope, relaxed, flips)

    # Elements in words

    def _from_word(self, word: int, buffer: Buffer) -> int:
        if buffer.dtype is DType.F32 and self._word_type(buffer.binding) == self.asm.u32:
            return self.values.pure(Op.BITCAST, self.asm.f32, word)
        return word

    def _as_u32(self, value: int) -> int:
        return self.values.pure(Op.BITCAST, self.asm.u32, value)

    def _narrow(self, word: int, shift: int, dtype: DType) -> int:
        """The element that starts at bit `shift` of `word`."""
        if dtype is DType.F16:
            moved = self.values.pure(Op.SHIFT_RIGHT_LOGICAL, self.asm.u32, word, shift)
            return self.unpack_half(moved)
        width = self.values.u32(8 * dtype.bytes)
        op = Op.BIT_FIELD_S_EXTRACT if dtype.is_signed else Op.BIT_FIELD_U_EXTRACT
        bits = self.values.pure(op, self.asm.u32, word, shift, width)
        if dtype is DType.BOOL:
            return self.values.pure(Op.I_NOT_EQUAL, self.asm.boolean, bits, self.values.u32(0))
        return bits

    def _narrow_bits(self, value: int, dtype: DType) -> int:
        if dtype is DType.BOOL:
            return self.values.select(self.asm.u32, value, self.values.u32(1), self.values.u32(0))
        return self.pack_half(value) if dtype is DType.F16 else value

    def unpack_half(self, bits: int) -> int:
        """The f16 in the low half of a u32, as f32; exact."""
        pair = self.asm.vector(self.asm.f32, 2)
        both = self.values.glsl(Glsl.UNPACK_HALF_2X16, pair, bits)
        return self.values.pure(Op.COMPOSITE_EXTRACT, self.asm.f32, both, literals=(0,))

    def pack_half(self, value: int) -> int:
        """An f32 as an f16 in the low half of a u32, rounded to nearest even.

        By integers, after F. Giesen's float_to_half_fast3_rtne: PackHalf2x16 may round as it
        likes, and SwiftShader's makes NaN of infinity.
        """
        u32, boolean, pure, word = self.asm.u32, self.asm.boolean, self.values.pure, self.values.u32
        bits = self._as_u32(value)
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
        denormal = pure(Op.I_SUB, u32, self._as_u32(lifted), word(half))
        is_large = pure(Op.U_GREATER_THAN, boolean, magnitude, word(0x477FFFFF))
        is_tiny = pure(Op.U_LESS_THAN, boolean, magnitude, word(113 << 23))
        finite = self.values.select(u32, is_tiny, denormal, normal)
        rounded = self.values.select(u32, is_large, special, finite)
        return pure(Op.BITWISE_OR, u32, rounded, pure(Op.SHIFT_RIGHT_LOGICAL, u32, sign, word(16)))

    # Scratch

    def load_scratch(self, scratch: Scratch, indices: list[Linear], guard: int | None) -> int:
        place = self.places[scratch]
        if place.is_promoted:
            element = self._element(scratch, place, indices)
            if element is None:
                return self.zero(scratch)  # out of bounds under a guard that fails
            if scratch not in self._vectors:
                return self.registers.get((scratch, element), self.zero(scratch))
            whole = self._register(scratch, element)
            lane = (element % QUAD,)
            return self.values.pure(Op.COMPOSITE_EXTRACT, self.asm.f32, whole, literals=lane)
        position = self._safe(self._position(scratch, place, indices), guard)
        pointer = self._scratch_pointer(scratch, place, position)
        loaded = self.values.cached(
            (Op.LOAD, self._version, pointer),
            lambda: self.values.body.result(Op.LOAD, self._slot(scratch), pointer),
        )
        if scratch.dtype is DType.BOOL:
            return self.values.pure(Op.I_NOT_EQUAL, self.asm.boolean, loaded, self.values.u32(0))
        return loaded

    def store_scratch(self, scratch: Scratch, indices: list[Linear], value: int) -> None:
        place = self.places[scratch]
        if place.is_promoted:
            element = self._element(scratch, place, indices)
            if element is None:
                raise InternalError(f"kernel {self.kernel.name}: a store outside {scratch.name}")
            if scratch in self._vectors:
                whole, lane = self._register(scratch, element), (element % QUAD,)
                vector = self.register_type(scratch)
                value = self.values.pure(Op.COMPOSITE_INSERT, vector, value, whole, literals=lane)
                element //= QUAD
            self.registers[scratch, element] = value
            return
        if scratch.dtype is DType.BOOL:
            value = self._narrow_bits(value, DType.BOOL)
        position = self.values.id_of(self._position(scratch, place, indices))
        self.values.body.emit(Op.STORE, self._scratch_pointer(scratch, place, position), value)
        self.changed()

    def _register(self, scratch: Scratch, element: int) -> int:
        """The vector that an element of promoted scratch is in."""
        return self.registers.get((scratch, element // QUAD), self.zero(scratch))

    def load_vector(self, scratch: Scratch, indices: list[Linear]) -> int | None:
        """Four neighbours of promoted scratch, the first at `indices`."""
        element = self._first_of_vector(scratch, indices)
        return None if element is None else self._register(scratch, element)

    def store_vector(self, scratch: Scratch, indices: list[Linear], value: int) -> None:
        element = self._first_of_vector(scratch, indices)
        if element is None:
            raise InternalError(f"kernel {self.kernel.name}: a vector outside {scratch.name}")
        self.registers[scratch, element // QUAD] = value

    def _first_of_vector(self, scratch: Scratch, indices: list[Linear]) -> int | None:
        if scratch not in self._vectors:
            return None
        element = self._element(scratch, self.places[scratch], indices)
        return None if element is None or element % QUAD else element

    def register_type(self, scratch: Scratch) -> int:
        """The type of a promoted element's value, or of the vector that it is in."""
        if scratch in self._vectors:
            return self.asm.vector(self.asm.f32, QUAD)
        return self.asm.boolean if scratch.dtype is DType.BOOL else self._slot(scratch)

    def _slot(self, scratch: Scratch) -> int:
        """The type of an element in memory; a bool is kept as a word."""
        if scratch.dtype in WIDE_INTEGERS or scratch.dtype is DType.F64:
            raise InternalError(
                f"kernel {self.kernel.name}: scratch {scratch.name} is "
                f"{scratch.dtype}, which legalisation should have removed"
            )
        return self.asm.f32 if scratch.dtype.is_float else self.asm.u32

    def zero(self, scratch: Scratch) -> int:
        """What an element holds that was never stored."""
        if scratch in self._vectors:
            return self.asm.null(self.register_type(scratch))
        return self.asm.constant(self.register_type(scratch), 0)

    def _position(self, scratch: Scratch, place: ScratchPlace, indices: list[Linear]) -> Linear:
        total = Linear(())
        for dim in place.kept:
            total = total.scaled(scratch.shape[dim]) + indices[dim]
        return total

    def _element(self, scratch: Scratch, place: ScratchPlace, indices: list[Linear]) -> int | None:
        """The number of a promoted element; None outside the scratch."""
        for dim in place.kept:
            number = indices[dim].number
            if number is None:
                raise InternalError(
                    f"kernel {self.kernel.name}: an index of {scratch.name} is not a constant"
                )
            if not 0 <= number < scratch.shape[dim]:
                return None
        return self._position(scratch, place, indices).number

    def _scratch_pointer(self, scratch: Scratch, place: ScratchPlace, position: int) -> int:
        is_shared = scratch.space is Space.WORKGROUP
        storage = StorageClass.WORKGROUP if is_shared else StorageClass.FUNCTION
        slot = self._slot(scratch)
        if scratch not in self._scratch:
            words = self.asm.array(slot, max(1, prod(place.shape(scratch))))
            self._scratch[scratch] = (
                self.asm.variable(storage, words) if is_shared else self.values.body.variable(words)
            )
        return self.values.pure(
            Op.ACCESS_CHAIN, self.asm.pointer(storage, slot), self._scratch[scratch], position
        )
