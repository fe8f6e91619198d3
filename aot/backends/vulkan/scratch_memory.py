"""Scratch of a shader: registers, a lane's own memory and that which a workgroup shares.

Owns where an element of scratch is, and what of memory may have changed since a load. Class buffers
are memory.py's.
"""

from __future__ import annotations

from math import prod

from aot.backends.vulkan.elements import WIDE, Elements
from aot.backends.vulkan.placement import Placement, ScratchPlace
from aot.backends.vulkan.spirv import MemoryOperands, Op, Scope, StorageClass
from aot.backends.vulkan.values import Linear, Values
from aot.errors import InternalError
from aot.ir.schedule import QUAD
from aot.ir.types import DType
from aot.kernels.ir.nodes import Kernel, Scratch, Space


class ScratchMemory:
    """Loads and stores of scratch; keeps track of what may have changed since a load."""

    def __init__(
        self,
        kernel: Kernel,
        placement: Placement,
        values: Values,
        elements: Elements,
        *,
        has_matrices: bool,
    ) -> None:
        self.kernel = kernel
        self.has_matrices = has_matrices
        self.elements = elements
        self.values = values
        self.asm = values.asm
        self.places = placement.scratch
        self._vectors = placement.vectors
        self._scratch: dict[Scratch, int] = {}
        self._version = 0
        # The SSA values of promoted scratch, by scratch and element.
        self.registers: dict[tuple[Scratch, int], int] = {}

    def changed(self) -> None:
        """Forgets loaded values: control flow or a barrier may have changed what they read."""
        self._version += 1

    def _safe(self, word: Linear, guard: int | None) -> int:
        """A place; one that exists where `guard` is false."""
        index = self.values.id_of(word)
        if guard is None:
            return index
        return self.values.select(self.asm.u32, guard, index, self.values.u32(0))

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
        position = self._position(scratch, place, indices)
        if guard is None and (four := self._shared_quad(scratch, position)) is not None:
            lane = (position.constant % QUAD,)
            return self.values.pure(Op.COMPOSITE_EXTRACT, self._slot(scratch), four, literals=lane)
        if guard is not None:
            position = self.values.atom(self._safe(position, guard))
        pointer = self._scratch_pointer(scratch, position)
        operands = self._operands_of(scratch, MemoryOperands.MAKE_POINTER_VISIBLE)
        loaded = self.values.cached(
            (Op.LOAD, self._version, pointer),
            lambda: self.values.body.result(Op.LOAD, self._slot(scratch), pointer, *operands),
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
            value = self.elements.to_bits(value, DType.BOOL)
        position = self._position(scratch, place, indices)
        pointer = self._scratch_pointer(scratch, position)
        operands = self._operands_of(scratch, MemoryOperands.MAKE_POINTER_AVAILABLE)
        self.values.body.emit(Op.STORE, pointer, value, *operands)
        self.changed()

    def _operands_of(self, scratch: Scratch, wanted: MemoryOperands) -> tuple[int, ...]:
        return self.shared_operands(wanted) if scratch.space is Space.WORKGROUP else ()

    def shared_operands(self, wanted: MemoryOperands) -> tuple[int, ...]:
        """The SPIR-V memory operands of an access to shared scratch: with cooperative matrices the
        module uses Vulkan's memory model, in which accesses are private to a lane unless marked;
        else none.
        """
        if not self.has_matrices:
            return ()
        bits = wanted | MemoryOperands.NON_PRIVATE_POINTER
        return int(bits), self.values.u32(Scope.WORKGROUP)

    def _register(self, scratch: Scratch, element: int) -> int:
        """The vector that an element of promoted scratch is in."""
        return self.registers.get((scratch, element // QUAD), self.zero(scratch))

    def are_neighbours(self, scratch: Scratch, places: list[list[Linear]]) -> bool:
        """Whether elements are a four of shared scratch that is kept in such."""
        if scratch not in self._vectors or scratch.space is not Space.WORKGROUP:
            return False
        first, *others = (self._position(scratch, self.places[scratch], at) for at in places)
        follow = all(p == first + Linear((), n) for n, p in enumerate(others, 1))
        return follow and self.values.multiple_of(first) % QUAD == 0

    def _shared_quad(self, scratch: Scratch, position: Linear) -> int | None:
        """The four of shared scratch that an element is in; None where they are not kept so, or it
        is not known which of them it is."""
        if scratch not in self._vectors or scratch.space is not Space.WORKGROUP:
            return None
        start = position - Linear((), position.constant % QUAD)
        if self.values.multiple_of(start) % QUAD:
            return None
        pointer, type = self._quad_pointer(scratch, start), self.register_type(scratch)
        operands = self._operands_of(scratch, MemoryOperands.MAKE_POINTER_VISIBLE)
        return self.values.cached(
            (Op.LOAD, self._version, pointer),
            lambda: self.values.body.result(Op.LOAD, type, pointer, *operands),
        )

    def _quad_pointer(self, scratch: Scratch, start: Linear) -> int:
        """To the four that begins at an element of shared scratch."""
        values = self.values
        number = values.id_of(values.floor_divide(start, Linear((), QUAD)))
        pointer = self.asm.pointer(StorageClass.WORKGROUP, self.register_type(scratch))
        return values.pure(Op.ACCESS_CHAIN, pointer, self._scratch_variable(scratch), number)

    def store_shared_quad(self, scratch: Scratch, indices: list[Linear], parts: list[int]) -> None:
        """Stores four elements of which `are_neighbours` holds, the first at `indices`."""
        start = self._position(scratch, self.places[scratch], indices)
        value = self.values.pure(Op.COMPOSITE_CONSTRUCT, self.register_type(scratch), *parts)
        operands = self._operands_of(scratch, MemoryOperands.MAKE_POINTER_AVAILABLE)
        self.values.body.emit(Op.STORE, self._quad_pointer(scratch, start), value, *operands)
        self.changed()

    def load_vector(self, scratch: Scratch, indices: list[Linear]) -> int | None:
        """Loads a vec4 of promoted scratch, or of shared scratch stored as vec4s, that begins at
        `indices`. None where the scratch is stored by element.
        """
        if scratch.space is Space.WORKGROUP:
            return self._shared_quad(
                scratch, self._position(scratch, self.places[scratch], indices)
            )
        element = self._first_of_vector(scratch, indices)
        if element is None or not self.places[scratch].is_promoted:
            return None
        return self._register(scratch, element)

    def store_vector(self, scratch: Scratch, indices: list[Linear], value: int) -> None:
        element = self._first_of_vector(scratch, indices)
        if element is None:
            raise InternalError(f"kernel {self.kernel.name}: a vector outside {scratch.name}")
        if self.places[scratch].is_promoted:
            self.registers[scratch, element // QUAD] = value
            return
        variable, number = self._scratch_variable(scratch), self.values.u32(element // QUAD)
        pointer = self.asm.pointer(StorageClass.FUNCTION, self.register_type(scratch))
        place = self.values.pure(Op.ACCESS_CHAIN, pointer, variable, number)
        self.values.body.emit(Op.STORE, place, value)
        self.changed()

    def _first_of_vector(self, scratch: Scratch, indices: list[Linear]) -> int | None:
        if scratch not in self._vectors:
            return None
        element = self._element(scratch, self.places[scratch], indices)
        return None if element is None or element % QUAD else element

    def register_type(self, scratch: Scratch) -> int:
        """The type of a promoted element's value, or of the vector that it is in."""
        if scratch in self._vectors:
            return self.asm.vector(self._slot(scratch), QUAD)
        return self.asm.boolean if scratch.dtype is DType.BOOL else self._slot(scratch)

    def _slot(self, scratch: Scratch) -> int:
        """The type of an element in memory; a bool is kept as a word."""
        if scratch.dtype in WIDE:
            raise InternalError(
                f"kernel {self.kernel.name}: scratch {scratch.name} is "
                f"{scratch.dtype}, which legalisation should have removed"
            )
        is_bool = scratch.dtype is DType.BOOL
        return self.asm.u32 if is_bool else self.elements.value_type(scratch.dtype)

    def zero(self, scratch: Scratch) -> int:
        """The initial value of a scratch element."""
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

    def _scratch_pointer(self, scratch: Scratch, position: Linear) -> int:
        """A pointer to an element of scratch; to a component where it is stored as vec4s."""
        values, four = self.values, Linear((), QUAD)
        is_shared = scratch.space is Space.WORKGROUP
        storage = StorageClass.WORKGROUP if is_shared else StorageClass.FUNCTION
        pointer = self.asm.pointer(storage, self._slot(scratch))
        variable = self._scratch_variable(scratch)
        if scratch not in self._vectors:
            return values.pure(Op.ACCESS_CHAIN, pointer, variable, values.id_of(position))
        vector = values.id_of(values.floor_divide(position, four))
        component = values.id_of(values.floor_modulo(position, four))
        return values.pure(Op.ACCESS_CHAIN, pointer, variable, vector, component)

    def _scratch_variable(self, scratch: Scratch) -> int:
        if scratch not in self._scratch:
            count = max(1, prod(self.places[scratch].shape(scratch)))
            each = QUAD if scratch in self._vectors else 1
            words = self.asm.array(self._element_type(scratch), count // each)
            is_shared = scratch.space is Space.WORKGROUP
            self._scratch[scratch] = (
                self.asm.variable(StorageClass.WORKGROUP, words)
                if is_shared
                else self.values.body.variable(words)
            )
        return self._scratch[scratch]

    def _element_type(self, scratch: Scratch) -> int:
        """The SPIR-V type of an element of scratch in memory."""
        return self.register_type(scratch) if scratch in self._vectors else self._slot(scratch)
