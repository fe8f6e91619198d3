"""Emits loads and stores, with guards and masks, for scalars and vector loops.

Owns how an access of a Buffer or Scratch becomes LLVM loads and stores. A guarded load without a
mask register reads zeros from the image instead of branching; a guarded store branches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from aot.backends.cpu import byte_tables
from aot.backends.cpu.addresses import INVARIANT, Addresses, from_memory, to_memory
from aot.backends.cpu.assembler import (
    PTR,
    Assembler,
    Type,
    Value,
    first_lanes,
    integer,
    poison,
    real,
)
from aot.backends.cpu.gathered import are_near, load_picked, load_places, store_places
from aot.backends.cpu.lanes import Address, Laned, Lanes, is_uniform
from aot.backends.cpu.scopes import Scopes
from aot.backends.cpu.scratch import ScratchPlan
from aot.backends.cpu.traits import Traits
from aot.errors import InternalError
from aot.ir.expr import Cast, Expr
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, BufferClass, Kernel, Scratch
from aot.target.model import CACHE_LINE

# steps between lanes up to which all that is between is loaded, and the lanes' are picked from it,
# on any target
MOST_PICKED = 4
# Worker scratch and buffers never overlap.
_BUFFER_SCOPE = ", !alias.scope !3, !noalias !5"
_SCRATCH_SCOPE = ", !alias.scope !5, !noalias !3"
METADATA = (
    "!0 = !{}",
    '!1 = !{!"memory"}',
    '!2 = !{!"buffers", !1}',
    "!3 = !{!2}",
    '!4 = !{!"scratch", !1}',
    "!5 = !{!4}",
    "!6 = !{i32 1}",
)
# Lines that are stored past the caches, by stores that begin one.
_PAST_CACHES = ", !nontemporal !6"


class Memory:
    """Accesses to one kernel's memory; `evaluate` gives the value of an index expression."""

    def __init__(
        self,
        kernel: Kernel,
        lanes: Lanes,
        scopes: Scopes,
        plan: ScratchPlan,
        evaluate: Callable[[Expr], Laned],
    ) -> None:
        self.kernel = kernel
        self.lanes = lanes
        self.asm: Assembler = lanes.asm
        self.traits: Traits = lanes.traits
        self.plan = plan
        self.evaluate = evaluate
        self.has_streams = False
        self.addresses = Addresses(kernel, lanes, scopes, plan, evaluate)
        self.zeros_bytes = 0
        self.opaque_masks: dict[int, Value] = {}

    def zeros(self, bytes_: int) -> Value:
        """The address of at least `bytes_` zero bytes in the image, which guarded loads read."""
        self.zeros_bytes = max(self.zeros_bytes, bytes_)
        return Value("@zeros", PTR)

    def opaque_mask(self, lanes: int) -> Value:
        """A mask of all lanes that LLVM cannot recognise as constant."""
        if lanes not in self.opaque_masks:
            here, self.asm.current = self.asm.current, self.asm.entry
            bits = self.asm.emit(Type("i64"), "load volatile i64, ptr @ones, align 8")
            narrow = self.asm.cast("trunc", bits, f"i{lanes}")
            self.opaque_masks[lanes] = self.asm.bitcast_to(narrow, Type("i1", lanes))
            self.asm.current = here
        return self.opaque_masks[lanes]

    # Loads.

    def load(
        self,
        memory: Buffer | Scratch,
        indices: tuple[Expr, ...],
        dtype: DType,
        guard: Value | None,
        other: Laned | None,
        mask: Value | None,
    ) -> Laned:
        """Loads an element. Lanes where `guard` fails give `other` (default 0); lanes outside
        `mask` read nothing and have any value.

        A word of packed elements may begin at any element."""
        if guard is not None and guard.number == 0:
            return self.zero(dtype) if other is None else other
        if guard is None and self.is_table(memory, indices):
            (index,) = indices
            assert isinstance(index, Cast)
            numbers = self.evaluate(index.a)
            if isinstance(numbers, Value) and numbers.type.lanes:
                metadata = self.metadata(memory, is_load=True)
                return byte_tables.lookup(self.asm, self.addresses.base(memory), numbers, metadata)
        address = self.addresses.of(memory, indices)
        if dtype is not memory.dtype:
            address = self._of_words(address, dtype)
        type_ = Type(self.traits.memory_element(dtype))
        size = self.traits.bytes_of(dtype)
        metadata = self.metadata(memory, is_load=True)
        if address.is_uniform:
            align = self.traits.bytes_of(memory.dtype)
            loaded = self._load_uniform(address.pointer, type_, size, align, metadata, guard, mask)
        elif guard is None and mask is None and self._are_near(address):
            loaded = load_places(self.asm, address.pointer, address.places, type_, size, metadata)
        elif address.is_unit:
            fallback = self._fallback(other, dtype)
            loaded = self._load_unit(address, type_, size, metadata, guard, mask, fallback)
        else:
            loaded = self._load_gather(
                address, type_, size, metadata, self.lanes.mask_and(guard, mask)
            )
        result = from_memory(self.asm, loaded, dtype)
        if guard is not None and guard.number is None:
            result = self._choose(guard, result, other, dtype)
        if dtype is DType.INDEX and result.type.lanes:
            return self.lanes.per_lane(lambda i: self.asm.extract(result, i))
        return result

    def _are_near(self, address: Address) -> bool:
        """Whether the lanes' positions are known and few vectors cover them."""
        is_known = bool(address.places) and self.traits.target.arch == "x86_64"
        return is_known and are_near(address.places)

    def is_table(self, memory: Buffer | Scratch, indices: tuple[Expr, ...]) -> bool:
        """Whether a load indexes a whole table of 256 bytes by an 8-bit number, on a target that
        looks up vectors of bytes at once. Any index is in bounds, so that inactive lanes may load
        too.
        """
        if not self.traits.target.looks_up_bytes or not isinstance(memory, Buffer):
            return False
        is_whole = memory.shape == (byte_tables.ENTRIES,) and memory.strides == (1,)
        (index, *others) = indices
        is_number = isinstance(index, Cast) and index.a.dtype is DType.U8
        return is_whole and is_number and not others and memory.dtype.bytes == 1

    def _of_words(self, address: Address, dtype: DType) -> Address:
        """The address of packed words, in units of words; vectors must be aligned to words."""
        if address.is_uniform:
            return address
        if address.places and not any(n % dtype.parts for n in address.places):
            return replace(address, places=tuple(n // dtype.parts for n in address.places))
        step = address.step.number if address.step is not None else None
        if step is None or step % dtype.parts:
            raise InternalError(
                f"kernel {self.kernel.name}: lanes read words of {dtype} that overlap"
            )
        return Address(address.pointer, self.lanes.constant(step // dtype.parts))

    def _choose(self, guard: Value, result: Value, other: Laned | None, dtype: DType) -> Value:
        """`other` where the guard does not hold, else `result`; guarded loads give 0 there
        already."""
        # A uniform load under a lane's guard was made for any lane, so it is not 0 in all.
        is_for_any = bool(guard.type.lanes) and not result.type.lanes
        if not is_for_any and (other is None or (isinstance(other, Value) and _is_zero(other))):
            return result
        otherwise = self.zero(dtype) if other is None else other
        if guard.type.lanes or result.type.lanes or not is_uniform(otherwise):
            return self.asm.select(
                self.lanes.vector(guard) if guard.type.lanes else guard,
                self.lanes.vector(result),
                self.lanes.vector(otherwise),
            )
        assert isinstance(otherwise, Value)
        return self.asm.select(guard, result, otherwise)

    def zero(self, dtype: DType) -> Value:
        type_ = Type(self.traits.element(dtype))
        return real(0.0, type_) if type_.is_float else integer(0, type_)

    def _fallback(self, other: Laned | None, dtype: DType) -> Value:
        """The value of a masked load in inactive lanes, in its form in memory."""
        if other is None or dtype is DType.INDEX or not is_uniform(other):
            other = self.zero(dtype)
        assert isinstance(other, Value)
        value = to_memory(self.asm, other, dtype)
        return self.asm.splat(value, self.lanes.count)

    def metadata(self, memory: Buffer | Scratch, *, is_load: bool) -> str:
        if isinstance(memory, Buffer):
            if memory.binding in (BufferClass.CONSTANTS, BufferClass.INPUTS) and is_load:
                return INVARIANT + _BUFFER_SCOPE
            return _BUFFER_SCOPE
        return _SCRATCH_SCOPE if self.plan.slots[memory].offset is not None else ""

    def _load_uniform(
        self,
        pointer: Value,
        type_: Type,
        size: int,
        align: int,
        metadata: str,
        guard: Value | None,
        mask: Value | None,
    ) -> Value:
        condition = self.lanes.mask_and(guard, mask)
        if condition is not None and condition.number != 1:
            pointer = self.asm.select(self.lanes.any(condition), pointer, self.zeros(size))
        return self.asm.load(type_, pointer, align, metadata)

    def _load_unit(
        self,
        address: Address,
        type_: Type,
        size: int,
        metadata: str,
        guard: Value | None,
        mask: Value | None,
        fallback: Value,
    ) -> Value:
        vector = Type(type_.element, self.lanes.count)
        condition = self.lanes.mask_and(guard, mask)
        if condition is None or condition.number == 1:
            return self.asm.load(vector, address.pointer, size, metadata)
        if not condition.type.lanes:
            safe = self.zeros(size * vector.lanes)
            pointer = self.asm.select(condition, address.pointer, safe)
            return self.asm.load(vector, pointer, size, metadata)
        if self.traits.has_masked(size):
            return self._masked_load(vector, address.pointer, size, condition, fallback)
        full, partial, done = (self.asm.block(h) for h in ("full", "partial", "done"))
        self.asm.branch(self.lanes.all(condition), full, partial)
        self.asm.enter(full)
        whole = self.asm.load(vector, address.pointer, size, metadata)
        self.asm.jump(done)
        self.asm.enter(partial)
        if self.traits.target.has("avx2") and size >= 4:
            part = self._masked_load(vector, address.pointer, size, condition, fallback)
        else:
            part = self._load_by_lane(vector, address.pointer, size, condition, fallback)
        last = self.asm.current
        self.asm.jump(done)
        self.asm.enter(done)
        return self.asm.phi(vector, [(whole, full), (part, last)])

    def _masked_load(
        self, vector: Type, pointer: Value, size: int, mask: Value, fallback: Value
    ) -> Value:
        name = f"llvm.masked.load.{vector.mangled}.p0"
        self.asm.declarations[name] = f"declare {vector} @{name}(ptr, {mask.type}, {vector})"
        return self.asm.emit(
            vector, f"call {vector} @{name}(ptr align {size} {pointer.ref}, {mask}, {fallback})"
        )

    def _load_by_lane(
        self, vector: Type, pointer: Value, size: int, mask: Value, fallback: Value
    ) -> Value:
        """Loads through memory, lane by lane in a loop: rare, so that small code matters more."""
        element = Type(vector.element)
        slot = self.asm.alloca(element, vector.lanes, 64)
        self.asm.store(fallback, slot, size)

        def move(offset: Value) -> None:
            value = self.asm.load(element, self.asm.offset(pointer, offset), size)
            self.asm.store(value, self.asm.offset(slot, offset), size)

        self._for_lanes(mask, size, move)
        return self.asm.load(vector, slot, size)

    def _for_lanes(self, mask: Value, size: int, body: Callable[[Value], None]) -> None:
        """Runs `body` with the byte offset of each lane that is set."""
        asm = self.asm
        bits = asm.cast("zext", self.lanes.bits(mask), "i64" if mask.type.lanes > 32 else "i32")
        head, step, taken, done = (asm.block(h) for h in ("lanes", "next", "lane", "done"))
        before = asm.current
        asm.jump(head)
        asm.enter(head)
        position = len(head.lines)
        lane = Value(asm.fresh("lane"), bits.type)
        asm.emit_void("")
        bit = asm.op("and", asm.op("lshr", bits, lane), integer(1, bits.type))
        asm.branch(asm.icmp("ne", bit, integer(0, bits.type)), taken, step)
        asm.enter(taken)
        index = self.lanes.index
        wide = asm.cast("trunc" if bits.type.bits > index.bits else "zext", lane, index.element)
        body(asm.op("mul", wide, self.lanes.constant(size)))
        asm.jump(step)
        asm.enter(step)
        following = asm.op("add", lane, integer(1, bits.type))
        head.lines[position] = (
            f"{lane.ref} = phi {bits.type} [ 0, %{before.label} ], "
            f"[ {following.ref}, %{step.label} ]"
        )
        asm.branch(asm.icmp("eq", following, integer(mask.type.lanes, bits.type)), done, head)
        asm.enter(done)

    def _load_gather(
        self, address: Address, type_: Type, size: int, metadata: str, condition: Value | None
    ) -> Value:
        if condition is not None and condition.number == 1:
            condition = None
        step = None if address.step is None else address.step.number
        used = None if condition is None else self.lanes.first_of.get(condition)
        is_known = condition is None or (used is not None and self.traits.has_masked(size))
        if is_known and step is not None and step != 1 and abs(step) <= self._most_picked(size):
            vector = Type(type_.element, self.lanes.count)

            def load(pointer: Value, vector: Type, count: int) -> Value:
                if count == vector.lanes:
                    return self.asm.load(vector, pointer, size, metadata)
                mask = first_lanes(count, vector.lanes)
                return self._masked_load(vector, pointer, size, mask, poison(vector))

            return load_picked(
                self.asm,
                address.pointer,
                vector,
                size,
                step,
                load,
                before=address.before,
                used=used,
            )
        values = []
        for lane in range(self.lanes.count):
            pointer = self.lane_pointer(address, lane, size)
            if condition is not None:
                bit = self.asm.extract(condition, lane) if condition.type.lanes else condition
                pointer = self.asm.select(bit, pointer, self.zeros(size))
            values.append(self.asm.load(type_, pointer, size, metadata))
        return self.asm.gather(values)

    def _most_picked(self, size: int) -> int:
        """The largest step between lanes at which elements in between are loaded too: a quarter of
        the lanes where one instruction selects from two vectors."""
        if not self.traits.target.picks_lanes(size):
            return MOST_PICKED
        return max(2 * MOST_PICKED, self.lanes.count // 4)

    def lane_pointer(self, address: Address, lane: int, size: int) -> Value:
        """The address of a lane's element of `size` bytes."""
        if address.pointers:
            return address.pointers[lane]
        assert address.step is not None
        distance = self.asm.op("mul", address.step, self.lanes.constant(lane * size))
        return self.asm.offset(address.pointer, distance)

    def line(self, memory: Buffer | Scratch, indices: tuple[Expr, ...], type_: Type) -> Value:
        """Loads a vector of contiguous elements, all of them in bounds."""
        pointer = self.addresses.of(memory, indices).pointer
        metadata = self.metadata(memory, is_load=True)
        return self.asm.load(type_, pointer, self.traits.bytes_of(memory.dtype), metadata)

    def store_line(self, memory: Scratch, indices: tuple[Expr, ...], value: Value) -> None:
        """Stores a vector of contiguous elements."""
        pointer = self.addresses.of(memory, indices).pointer
        metadata = self.metadata(memory, is_load=False)
        self.asm.store(value, pointer, self.traits.bytes_of(memory.dtype), metadata)

    def prefetch(self, memory: Buffer, index: Expr) -> None:
        """Prefetches the element at `index`; no target faults on an invalid address."""
        pointer = self.addresses.of(memory, (index,)).pointer
        name = "llvm.prefetch.p0"
        self.asm.declarations[name] = f"declare void @{name}(ptr, i32, i32, i32)"
        is_written = int(memory.is_written)
        self.asm.emit_void(f"call void @{name}({pointer}, i32 {is_written}, i32 2, i32 1)")

    # Stores.

    def store(
        self,
        memory: Buffer | Scratch,
        indices: tuple[Expr, ...],
        value: Laned,
        guard: Value | None,
        mask: Value | None,
    ) -> None:
        """Stores the element of each lane where `guard` and `mask` hold."""
        address = self.addresses.of(memory, indices)
        condition = self.lanes.mask_and(guard, mask)
        if condition is not None and condition.number == 1:
            condition = None
        if condition is not None and condition.number == 0:
            return
        size = self.traits.bytes_of(memory.dtype)
        metadata = self.metadata(memory, is_load=False)
        if address.is_uniform:
            if not is_uniform(value):
                raise InternalError(
                    f"kernel {self.kernel.name}: the lanes of a vector loop store "
                    f"different values to one element of {memory.name}"
                )
            assert isinstance(value, Value)
            scalar = to_memory(self.asm, value, memory.dtype)
            if condition is not None:
                condition = self.lanes.any(condition)
            self._when(condition, lambda: self.asm.store(scalar, address.pointer, size, metadata))
            return
        vector = to_memory(self.asm, self.lanes.vector(value), memory.dtype)
        if condition is not None and not condition.type.lanes:
            uniform = condition
            self._when(
                uniform, lambda: self._store_lanes(memory, address, vector, size, metadata, None)
            )
        else:
            self._store_lanes(memory, address, vector, size, metadata, condition)

    def _store_lanes(
        self,
        memory: Buffer | Scratch,
        address: Address,
        vector: Value,
        size: int,
        metadata: str,
        mask: Value | None,
    ) -> None:
        if mask is None and self._are_near(address):
            store_places(self.asm, address.pointer, address.places, vector, size, metadata)
            return
        if not address.is_unit:
            for lane in range(self.lanes.count):
                pointer = self.lane_pointer(address, lane, size)
                scalar = self.asm.extract(vector, lane)
                bit = None if mask is None else self.asm.extract(mask, lane)
                self._when(
                    bit,
                    lambda s=scalar, p=pointer: (  # type: ignore[misc]
                        self.asm.store(s, p, size, metadata)
                    ),
                )
            return
        if mask is None and isinstance(memory, Buffer) and self._is_streamed(memory, vector):
            self._stream(vector, address.pointer, size, metadata)
        elif mask is None:
            self.asm.store(vector, address.pointer, size, metadata)
        elif self.traits.has_masked(size):
            self._masked_store(vector, address.pointer, size, mask)
        else:
            full, partial, done = (self.asm.block(h) for h in ("full", "partial", "done"))
            self.asm.branch(self.lanes.all(mask), full, partial)
            self.asm.enter(full)
            self.asm.store(vector, address.pointer, size, metadata)
            self.asm.jump(done)
            self.asm.enter(partial)
            self._store_by_lane(vector, address.pointer, size, mask)
            self.asm.jump(done)
            self.asm.enter(done)

    def _is_streamed(self, memory: Buffer, vector: Value) -> bool:
        """Whether a vector is stored past the caches: whole cache lines of a streamed buffer."""
        is_line = vector.type.bits * vector.type.lanes % (8 * CACHE_LINE) == 0
        return memory.is_streamed and is_line and self.traits.target.streams_lines

    def _stream(self, vector: Value, pointer: Value, size: int, metadata: str) -> None:
        """Stores vectors past the caches if they are aligned to cache lines, which is checked at
        run time."""
        self.has_streams = True
        place = self.asm.cast("ptrtoint", pointer, "i64")
        rest = self.asm.op("and", place, integer(CACHE_LINE - 1, place.type))
        begins = self.asm.icmp("eq", rest, integer(0, place.type))
        past, through, done = (self.asm.block(h) for h in ("past", "through", "done"))
        self.asm.branch(begins, past, through)
        self.asm.enter(past)
        self.asm.store(vector, pointer, CACHE_LINE, metadata + _PAST_CACHES)
        self.asm.jump(done)
        self.asm.enter(through)
        self.asm.store(vector, pointer, size, metadata)
        self.asm.jump(done)
        self.asm.enter(done)

    def fence(self) -> None:
        """Emits a fence that orders stores past the caches before the thread's later stores."""
        if self.has_streams:
            name = "llvm.x86.sse.sfence"
            self.asm.declarations[name] = f"declare void @{name}()"
            self.asm.emit_void(f"call void @{name}()")

    def _masked_store(self, vector: Value, pointer: Value, size: int, mask: Value) -> None:
        if self.traits.target.arch == "x86_64" and not vector.type.is_float:
            # LLVM 22 stores too many bytes where a truncated vector goes through a constant mask
            # of a single lane (a tensor of one element, say): the mask must not look constant.
            mask = self.asm.op("and", mask, self.opaque_mask(vector.type.lanes))
        name = f"llvm.masked.store.{vector.type.mangled}.p0"
        self.asm.declarations[name] = f"declare void @{name}({vector.type}, ptr, {mask.type})"
        self.asm.emit_void(f"call void @{name}({vector}, ptr align {size} {pointer.ref}, {mask})")

    def _store_by_lane(self, vector: Value, pointer: Value, size: int, mask: Value) -> None:
        if self.traits.target.has("avx2") and size >= 4:
            self._masked_store(vector, pointer, size, mask)
            return
        element = Type(vector.type.element)
        slot = self.asm.alloca(element, vector.type.lanes, 64)
        self.asm.store(vector, slot, size)

        def move(offset: Value) -> None:
            value = self.asm.load(element, self.asm.offset(slot, offset), size)
            self.asm.store(value, self.asm.offset(pointer, offset), size)

        self._for_lanes(mask, size, move)

    def _when(self, condition: Value | None, body: Callable[[], None]) -> None:
        """Runs `body` if the scalar condition holds."""
        if condition is None or condition.number == 1:
            body()
            return
        if condition.number == 0:
            return
        taken, done = self.asm.block("when"), self.asm.block("done")
        self.asm.branch(condition, taken, done)
        self.asm.enter(taken)
        body()
        self.asm.jump(done)
        self.asm.enter(done)


def _is_zero(value: Value) -> bool:
    return value.number == 0 or value.ref in ("0x0000000000000000", "0xH0000")
