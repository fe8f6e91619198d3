"""Memory of a shader: class buffers, beside the scratch of scratch_memory.py.

Owns addresses, and of how many elements a load is. What an element is as a value is `Elements`'
business; 64-bit integers come out as a pair of words.
"""

from __future__ import annotations

from math import gcd

from aot.backends.vulkan.elements import WIDE, Elements
from aot.backends.vulkan.parameters import Parameters
from aot.backends.vulkan.placement import Placement
from aot.backends.vulkan.scratch_memory import ScratchMemory
from aot.backends.vulkan.shader import FIRST_WINDOW_BINDING
from aot.backends.vulkan.spirv import (
    Decoration,
    MemorySemantics,
    Op,
    Scope,
    StorageClass,
)
from aot.backends.vulkan.texels import Texels
from aot.backends.vulkan.values import Linear
from aot.errors import InternalError
from aot.ir.dims import modulo
from aot.ir.schedule import QUAD
from aot.ir.types import DType
from aot.kernels.ir.nodes import Barrier, Buffer, BufferClass, Kernel, Scratch, walk

WIDE_INTEGERS = frozenset(d for d in WIDE if d.is_integer)
_READ_ONLY = (BufferClass.CONSTANTS, BufferClass.INPUTS)

# A pair is the low and the high word of a 64-bit integer.
Pair = tuple[int, int]
Stored = int | Pair
# What a variable of the shader is bound to: all of a class, or a window of it around an operand.
Home = BufferClass | Buffer


class Memory(ScratchMemory):
    """Loads and stores of all memory."""

    def __init__(
        self,
        kernel: Kernel,
        placement: Placement,
        params: Parameters,
        elements: Elements,
        texels: Texels | None,
        *,
        windowed: frozenset[BufferClass] = frozenset(),
        has_matrices: bool = False,
    ) -> None:
        super().__init__(kernel, placement, params.values, elements, has_matrices=has_matrices)
        self.params = params
        self._in_quads = placement.in_quads
        self._quads: dict[Home, int] = {}
        self.texels = texels
        self.bindings: set[BufferClass] = set()
        self._windowed = windowed
        self.windows: list[Buffer] = []  # in the order of their bindings
        if any(buffer.class_param is not None for buffer in kernel.buffers):
            raise InternalError(f"kernel {kernel.name}: the bindings of a shader must be known")
        self._buffers: dict[tuple[Home, int], int] = {}
        self._aliased: set[int] = set()
        # whether lanes read what others stored before a barrier
        self._is_shared = any(
            isinstance(s, Barrier) and s.orders_buffers for s in walk(kernel.body)
        )
        if has_matrices and self._is_shared:
            raise InternalError(f"kernel {kernel.name}: matrices beside buffers that lanes share")

    # Buffers

    def load_buffer(
        self,
        buffer: Buffer,
        indices: list[Linear],
        guard: int | None,
        *,
        is_wide: bool = False,
    ) -> Stored:
        """An element; where `guard` is false some word that exists is read instead. With `is_wide`
        it comes out in 32 bits, whatever is native."""
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
        elements = self.elements.wide if is_wide else self.elements
        return self._load_narrow(buffer, indices, guard, elements)

    def load_word(self, buffer: Buffer, indices: list[Linear], guard: int | None) -> int:
        """Loads four neighbouring bytes as one word: alone, or as one of four words that are loaded
        together. Where the address is not known to be aligned, the word is put together from bytes.
        """
        values, place = self.values, self._place(buffer, indices)
        if values.multiple_of(place) % QUAD or buffer.is_written:
            parts = (self._byte_at(buffer, place + Linear((), n), guard) for n in range(QUAD))
            return self._joined(list(parts))
        number = place.constant % (QUAD * QUAD) // QUAD
        start = place - Linear((), QUAD * number)
        if values.multiple_of(start) % (QUAD * QUAD) or not _has_words(buffer):
            return self._word_of_class(buffer, self._safe_quotient(place, QUAD, guard), 1)
        four = self._word_of_class(buffer, self._safe_quotient(start, QUAD * QUAD, guard), QUAD)
        return values.pure(Op.COMPOSITE_EXTRACT, self.asm.u32, four, literals=(number,))

    def _safe_quotient(self, place: Linear, divisor: int, guard: int | None) -> int:
        """Which group of `divisor` elements begins at `place`; one that exists where `guard` is
        false."""
        shift = self.values.u32(divisor.bit_length() - 1)
        u32 = self.asm.u32
        number = self.values.pure(Op.SHIFT_RIGHT_LOGICAL, u32, self.values.id_of(place), shift)
        return (
            number if guard is None else self.values.select(u32, guard, number, self.values.u32(0))
        )

    def _word_of_class(self, buffer: Buffer, number: int, words: int) -> int:
        """One word, or four, of what no lane writes, as u32."""
        asm = self.asm
        type = asm.u32 if words == 1 else asm.vector(asm.u32, words)
        if self.texels is not None and self._is_texel(buffer):
            return self.texels.load(buffer.binding, words, type, number)
        return self._load_four(self._variable(buffer, type, 4 * words), type, number)

    def _byte_at(self, buffer: Buffer, place: Linear, guard: int | None) -> int:
        """A byte in the lowest bits of a word, whatever the others are."""
        two, u32 = self.values.u32(2), self.asm.u32
        byte = self.values.id_of(place)
        word = self.values.atom(self.values.pure(Op.SHIFT_RIGHT_LOGICAL, u32, byte, two))
        loaded = self._load_word(buffer, self._safe(word, guard))
        return self.values.pure(Op.SHIFT_RIGHT_LOGICAL, u32, loaded, self._bit_shift(byte))

    def _joined(self, parts: list[int]) -> int:
        """A word of the lowest eight bits of each."""
        u32, pure = self.asm.u32, self.values.pure
        total = self.values.u32(0)
        for number, part in enumerate(parts):
            low = pure(Op.BITWISE_AND, u32, part, self.values.u32(0xFF))
            moved = pure(Op.SHIFT_LEFT_LOGICAL, u32, low, self.values.u32(8 * number))
            total = pure(Op.BITWISE_OR, u32, total, moved)
        return total

    def _load_narrow(
        self, buffer: Buffer, indices: list[Linear], guard: int | None, elements: Elements
    ) -> int:
        """Loads an element narrower than a word, in one of three ways: from a group of four loaded
        together, by a load of its own width where storage allows that, or by extracting it from its
        word.
        """
        if buffer in self._in_quads:
            place = self._place(buffer, indices)
            found = self._load_from_narrow_quad(buffer, place, guard, elements)
            if found is not None:
                return found
        stored = elements.stored_type(buffer.dtype)
        if stored is not None:
            number = self._safe(self._place(buffer, indices), guard)
            element = self._load_word(buffer, number, stored)
            return elements.from_stored(element, buffer.dtype)
        byte = self._byte(buffer, indices)
        shift = self._bit_shift(byte)
        two = self.values.u32(2)
        word = self.values.atom(self.values.pure(Op.SHIFT_RIGHT_LOGICAL, self.asm.u32, byte, two))
        loaded = self._load_word(buffer, self._safe(word, guard))
        return elements.from_bits(loaded, buffer.dtype, shift)

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
            is_u32 = self._word_type(buffer) == self.asm.u32
            bits = self.as_u32(value) if buffer.dtype is DType.F32 and is_u32 else value
            self._store_word(buffer, self._word(buffer, indices), bits)
        else:
            self._store_narrow(buffer, indices, value)
        self.changed()

    def _home(self, buffer: Buffer) -> Home:
        return buffer if buffer.binding in self._windowed else buffer.binding

    def _binding(self, home: Home) -> int:
        """The number of a binding, which is declared from now on."""
        if isinstance(home, BufferClass):
            self.bindings.add(home)
            return home.value
        if home not in self.windows:
            self.windows.append(home)
        return FIRST_WINDOW_BINDING + self.windows.index(home)

    def _variable(self, buffer: Buffer, type: int, stride: int) -> int:
        """The variable of a buffer's class, or window, as an array of elements of `type`, `stride`
        bytes each."""
        home, binding = self._home(buffer), buffer.binding
        if (home, type) not in self._buffers:
            is_written = any(b.is_written for b in self.kernel.buffers if b.binding is binding)
            words = self.asm.runtime_array(type, stride)
            made = self.asm.resource(
                StorageClass.STORAGE_BUFFER,
                self.asm.block(
                    words, is_written=is_written, is_coherent=is_written and self._is_shared
                ),
                self._binding(home),
            )
            self._buffers[home, type] = made
            if is_written:
                self._note_alias(binding)
        return self._buffers[home, type]

    def _note_alias(self, binding: BufferClass) -> None:
        """Decorates the variables of a buffer class that is written as aliases of each other."""
        alike = [
            variable
            for (home, _), variable in self._buffers.items()
            if (home.binding if isinstance(home, Buffer) else home) is binding
        ]
        for variable in alike if len(alike) > 1 else ():
            if variable not in self._aliased:
                self.asm.decorate(variable, Decoration.ALIASED)
                self._aliased.add(variable)

    def _word_type(self, buffer: Buffer) -> int:
        """f32 where a class, or window, holds nothing else, which saves a conversion for each
        element."""
        home = self._home(buffer)
        dtypes = {b.dtype for b in self.kernel.buffers if home in (b, b.binding)}
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

    def _place(self, buffer: Buffer, indices: list[Linear]) -> Linear:
        """Which element of its class an element of less than a word is."""
        size = buffer.dtype.bytes
        offset = self.values.pure(
            Op.SHIFT_RIGHT_LOGICAL,
            self.asm.u32,
            self.params.word(buffer.offset.name),
            self.values.u32(size.bit_length() - 1),
        )
        is_constant = buffer.binding is BufferClass.CONSTANTS
        known = 4 * QUAD if is_constant else gcd(buffer.alignment, 4 * QUAD)
        if known // size >= QUAD:
            self.values.remember_multiple(offset, known // size)
        return self.values.atom(offset) + self._elements(buffer, indices, 1)

    def _byte(self, buffer: Buffer, indices: list[Linear]) -> int:
        offset = self.values.atom(self.params.word(buffer.offset.name))
        return self.values.id_of(offset + self._elements(buffer, indices, buffer.dtype.bytes))

    def _pointer(self, buffer: Buffer, word: int, stored: int | None = None) -> int:
        """To a word, or to an element of the buffer where `stored` is what it is in memory."""
        type = stored or self._word_type(buffer)
        stride = buffer.dtype.bytes if stored else 4
        return self.values.pure(
            Op.ACCESS_CHAIN,
            self.asm.pointer(StorageClass.STORAGE_BUFFER, type),
            self._variable(buffer, type, stride),
            self.values.u32(0),
            word,
        )

    def _load_word(self, buffer: Buffer, word: int, stored: int | None = None) -> int:
        type = stored or self._word_type(buffer)
        if stored is None and self.texels is not None and self._is_texel(buffer):
            return self.texels.load(buffer.binding, 1, type, word)
        version = -1 if buffer.binding in _READ_ONLY else self._version
        pointer = self._pointer(buffer, word, stored)
        return self.values.cached(
            (Op.LOAD, version, pointer), lambda: self.values.body.result(Op.LOAD, type, pointer)
        )

    def _is_texel(self, buffer: Buffer) -> bool:
        """Whether it is read a texture's way: what no lane of the dispatch writes. Operands whose
        alignment is known overlap nothing that is written."""
        if buffer.is_written:
            return False
        return buffer.binding in _READ_ONLY or buffer.alignment % 4 == 0

    def _load_from_quad(self, buffer: Buffer, word: Linear, guard: int | None) -> int | None:
        """A word out of the four that are loaded with it at once; None where it isn't known
        which of them it is. Where `guard` is false, of four that exist."""
        place = word.constant % QUAD
        whole = self._quad(buffer, word - Linear((), place), guard)
        if whole is None:
            return None
        type_id = self._word_type(buffer)
        return self.values.pure(Op.COMPOSITE_EXTRACT, type_id, whole, literals=(place,))

    def load_quad(self, buffer: Buffer, indices: list[Linear]) -> int | None:
        """Four neighbouring f32, or f16 as f32, the first at `indices`; None where they are not
        loaded at once."""
        if buffer not in self._in_quads:
            return None
        if buffer.dtype is DType.F16:
            words = self._narrow_quad(buffer, self._place(buffer, indices))
            return None if words is None else self._widened_quad(words)
        if self._word_type(buffer) != self.asm.f32:
            return None
        return self._quad(buffer, self._word(buffer, indices))

    def _quad(self, buffer: Buffer, start: Linear, guard: int | None = None) -> int | None:
        number, asm = self._quad_number(start, guard), self.asm
        if number is None:
            return None
        quad = asm.vector(self._word_type(buffer), QUAD)
        if self.texels is not None and self._is_texel(buffer):
            return self.texels.load(buffer.binding, QUAD, quad, number)
        home = self._home(buffer)
        if home not in self._quads:
            block = asm.block(asm.runtime_array(quad, stride=4 * QUAD), is_written=False)
            self._quads[home] = asm.resource(
                StorageClass.STORAGE_BUFFER, block, self._binding(home)
            )
        return self._load_four(self._quads[home], quad, number)

    def starts_quad(self, buffer: Buffer, indices: list[Linear]) -> bool:
        """Whether four neighbours that begin at `indices` may be stored at once: words, at a
        multiple of four."""
        is_whole = buffer.is_written and buffer.dtype.bytes == 4 and buffer.strides == (1,)
        return is_whole and self.values.multiple_of(self._word(buffer, indices)) % QUAD == 0

    def store_quad(self, buffer: Buffer, indices: list[Linear], parts: list[int]) -> None:
        """Stores four neighbours of which `starts_quad` holds."""
        asm, pure = self.asm, self.values.pure
        number = self._quad_number(self._word(buffer, indices), None)
        assert number is not None
        type = self._word_type(buffer)
        if buffer.dtype is DType.F32 and type == asm.u32:
            parts = [self.as_u32(part) for part in parts]
        quad = asm.vector(type, QUAD)
        value = pure(Op.COMPOSITE_CONSTRUCT, quad, *parts)
        variable = self._variable(buffer, quad, 4 * QUAD)
        pointer = asm.pointer(StorageClass.STORAGE_BUFFER, quad)
        place = pure(Op.ACCESS_CHAIN, pointer, variable, self.values.u32(0), number)
        self.values.body.emit(Op.STORE, place, value)
        self.changed()

    def _quad_number(self, start: Linear, guard: int | None) -> int | None:
        """Which four elements of a class begin at `start`; None where they don't at a multiple of
        four. Where `guard` is false, some that exist."""
        values, u32 = self.values, self.asm.u32
        if values.multiple_of(start) % QUAD:
            return None
        shift = values.u32(QUAD.bit_length() - 1)
        number = values.pure(Op.SHIFT_RIGHT_LOGICAL, u32, values.id_of(start), shift)
        return number if guard is None else values.select(u32, guard, number, values.u32(0))

    def _load_four(self, storage: int, type: int, number: int) -> int:
        """Four elements of what no lane writes, as one of `type`."""
        values, pointer = self.values, self.asm.pointer(StorageClass.STORAGE_BUFFER, type)
        place = values.pure(Op.ACCESS_CHAIN, pointer, storage, values.u32(0), number)
        return values.cached((Op.LOAD, -1, place), lambda: values.body.result(Op.LOAD, type, place))

    def _widened_quad(self, words: int) -> int:
        """The f32 vector of the four f16 numbers in two words."""
        u32, quad = self.asm.u32, self.asm.vector(self.asm.f32, QUAD)
        halves = (
            self.elements.unpack_halves(
                self.values.pure(Op.COMPOSITE_EXTRACT, u32, words, literals=(number,))
            )
            for number in range(2)
        )
        return self.values.pure(Op.COMPOSITE_CONSTRUCT, quad, *halves)

    def _load_from_narrow_quad(
        self, buffer: Buffer, place: Linear, guard: int | None, elements: Elements
    ) -> int | None:
        """An element out of four of less than a word that are loaded together; else None."""
        lane = place.constant % QUAD
        words = self._narrow_quad(buffer, place - Linear((), lane), guard)
        if words is None:
            return None
        if buffer.dtype.bytes == 1:
            return elements.from_bits(words, buffer.dtype, self.values.u32(8 * lane))
        word = self.values.pure(Op.COMPOSITE_EXTRACT, self.asm.u32, words, literals=(lane // 2,))
        if buffer.dtype is DType.F16:
            return elements.half_of(word, lane % 2)
        return elements.from_bits(word, buffer.dtype, self.values.u32(16 * (lane % 2)))

    def _narrow_quad(self, buffer: Buffer, start: Linear, guard: int | None = None) -> int | None:
        """Four neighbours of less than a word, from `start` on: a word of bytes, two words else.
        None where they don't begin at a multiple of four."""
        number, asm = self._quad_number(start, guard), self.asm
        if number is None:
            return None
        type = asm.u32 if buffer.dtype.bytes == 1 else asm.vector(asm.u32, 2)
        storage = self._variable(buffer, type, QUAD * buffer.dtype.bytes)
        return self._load_four(storage, type, number)

    def _store_word(self, buffer: Buffer, word: Linear, value: int) -> None:
        self.values.body.emit(Op.STORE, self._pointer(buffer, self.values.id_of(word)), value)

    def _bit_shift(self, byte: int) -> int:
        """The bit at which the element of byte address `byte` starts in its word."""
        lane = self.values.pure(Op.BITWISE_AND, self.asm.u32, byte, self.values.u32(3))
        return self.values.pure(Op.SHIFT_LEFT_LOGICAL, self.asm.u32, lane, self.values.u32(3))

    def _store_narrow(self, buffer: Buffer, indices: list[Linear], value: int) -> None:
        """Stores the element where storage is written in its width; else flips its bits that
        change, atomically.

        Neighbours in the word belong to other lanes, which may store them at the same time: each
        looks at and flips no bits but its own, so that their order does not matter.
        """
        stored = self.elements.stored_type(buffer.dtype)
        if stored is not None:
            place = self.values.id_of(self._place(buffer, indices))
            element = self.elements.to_stored(value, buffer.dtype)
            self.values.body.emit(Op.STORE, self._pointer(buffer, place, stored), element)
            return
        byte = self._byte(buffer, indices)
        shift = self._bit_shift(byte)
        u32, pure = self.asm.u32, self.values.pure
        word = pure(Op.SHIFT_RIGHT_LOGICAL, u32, byte, self.values.u32(2))
        pointer = self._pointer(buffer, word)
        mask = self.values.u32((1 << buffer.dtype.bits) - 1)
        bits = self.elements.to_bits(value, buffer.dtype)
        # in Vulkan's memory model the whole device is a feature of its own
        reach = Scope.QUEUE_FAMILY if self.has_matrices else Scope.DEVICE
        scope, relaxed = self.values.u32(reach), self.values.u32(MemorySemantics.RELAXED)
        load = self.values.body.result(Op.ATOMIC_LOAD, u32, pointer, scope, relaxed)
        old = self.values.define(load)
        before = pure(Op.SHIFT_RIGHT_LOGICAL, u32, old, shift)
        changed = pure(Op.BITWISE_AND, u32, pure(Op.BITWISE_XOR, u32, before, bits), mask)
        flips = pure(Op.SHIFT_LEFT_LOGICAL, u32, changed, shift)
        self.values.body.result(Op.ATOMIC_XOR, u32, pointer, scope, relaxed, flips)

    # Elements in words

    def _from_word(self, word: int, buffer: Buffer) -> int:
        if buffer.dtype is DType.F32 and self._word_type(buffer) == self.asm.u32:
            return self.values.pure(Op.BITCAST, self.asm.f32, word)
        return word

    def as_u32(self, value: int) -> int:
        return self.values.pure(Op.BITCAST, self.asm.u32, value)

    # Pointers

    def pointer_to(self, source: Buffer | Scratch, indices: list[Linear]) -> tuple[int, int]:
        """(pointer to an element, or to the vec4 that begins there; version of the memory)."""
        if isinstance(source, Scratch):
            position = self._position(source, self.places[source], indices)
            if source in self._vectors:
                return self._quad_pointer(source, position), self._version
            return self._scratch_pointer(source, position), self._version
        stored = self.elements.stored_type(source.dtype)
        if stored is None and source.dtype.bytes < 4:
            raise InternalError(f"kernel {self.kernel.name}: a matrix of parts of words")
        version = -1 if source.binding in _READ_ONLY else self._version
        if stored is None:
            place = self._word(source, indices)
        else:
            place = self._place(source, indices)
        return self._pointer(source, self.values.id_of(place), stored), version

    def elements_together(self, source: Buffer | Scratch) -> int:
        """How many elements a pointer of `pointer_to` is to."""
        return QUAD if source in self._vectors else 1


def _has_words(buffer: Buffer) -> bool:
    """Whether a buffer's bytes can be read four words at a time: it is aligned, and a multiple of
    that.
    """
    words = 4 * QUAD
    if buffer.binding is BufferClass.CONSTANTS:
        return True
    return buffer.alignment % words == 0 and modulo(buffer.shape[0], words) == 0
