"""Emits the program of a function of dispatches: registers, instructions, arena and constants.

Owns where every value's bytes are at run time. Requires a function whose ops are constants, views,
dispatches, control flow, states and a return; asks nothing of kernels but the length of their
parameter block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from aot.analysis.control import control_ops
from aot.analysis.dispatches import executable_of
from aot.analysis.memory.storage import OUTPUTS, BufferAssignment
from aot.base.records import dataclass
from aot.errors import CompileError
from aot.ir import dims
from aot.ir.bounds import add_bound, bounds_of
from aot.ir.dims import Dim, Symbol
from aot.ir.graph import ConstantData, Function, Op, Value
from aot.ir.states import StateVariable
from aot.link import arena
from aot.link.emitter import Emitter
from aot.link.flow import Entry, Flow, Places
from aot.link.image import ArenaBuffer, DimInfo, EntryPointImage, ProgramImage, TensorInfo
from aot.link.lengths import lengths_of
from aot.link.lifetimes import Buffer, Lifetimes
from aot.link.placement_check import Claims, check_placement
from aot.link.regions import Region
from aot.link.rodata import RodataPool
from aot.link.shape_part import emit_shape_part
from aot.link.states import at_the_end, states_of

__all__ = ["EmittedProgram", "Entry", "emit_program"]


@dataclass(frozen=True)
class PlacedBuffer:
    """A buffer of an arena plan that is made for the largest shapes.

    Attributes:
        makers: dispatches that write to it, in the order of the text.
        first, last: positions of the execute part at which it is needed, both included.
    """

    makers: tuple[Op, ...]
    first: int
    last: int
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class EmittedProgram:
    """A program and its figures for the compile's summary.

    Attributes:
        dispatches: launches, copies and fills that stand in it; of one inference, where there is
            no control flow.
        arena_bytes: the most that state and all buffers take, 0 where the shapes' bounds don't say.
        lower_bound_bytes: state, and the largest sum of live buffers at these sizes.
        buffers: where they lie at these sizes; None where the shapes' bounds don't say.
        positions: of the dispatches, in the order of the text.
        scratch: bytes that lie at the program's `scratch_offset`, by position.
    """

    entry_point: EntryPointImage
    dispatches: int
    arena_bytes: int
    lower_bound_bytes: int
    buffers: tuple[PlacedBuffer, ...] | None = None
    positions: tuple[int, ...] = ()
    scratch: Mapping[int, int] = field(default_factory=dict)


def emit_program(
    function: Function,
    executables: Mapping[str, Entry],
    rodata: RodataPool,
    *,
    is_overlapping: bool = False,
) -> EmittedProgram:
    """Emits the program of an entry point. With `is_overlapping` the program marks dispatches that
    may run at the same time.

    Raises:
        CompileError: an input's dims can't be solved for their symbols, or a state variable has a
            symbolic dim that doesn't grow.
    """
    return _Program(function, executables, rodata, is_overlapping).emit()


class _Program:
    def __init__(
        self,
        function: Function,
        executables: Mapping[str, Entry],
        rodata: RodataPool,
        is_overlapping: bool,
    ) -> None:
        self.function = function
        self.executables = executables
        self.rodata = rodata
        self.is_overlapping = is_overlapping
        self.assignment = BufferAssignment(function)
        self.states = states_of(function, self.assignment)
        self.bounds = bounds_of(function.assumptions)
        self.lengths = lengths_of(function, self.states)
        self.largest = self.lengths.largest
        for variable in (k.variable for k in self.states.kept):
            for dim in (variable.length, variable.next_length):
                if dim is not None:
                    add_bound(self.bounds, dims.minimum(dim, variable.capacity), dim)
        self.out = Emitter()
        results = at_the_end(function, self.assignment)
        self.copies = [(n, v) for n, v in enumerate(results) if not self._is_claimed(n, v)]
        kept = [k.copied for k in self.states.kept if k.copied is not None]
        self.lifetimes = Lifetimes(
            *(function, self.assignment, self.states.roots),
            *([*(v for _, v in self.copies), *kept], self.largest),
        )
        self.offsets: dict[Value, int] = {}
        self.buffers: list[ArenaBuffer] = []
        self.arena_bytes = self.lower_bound = 0
        self.scratch_offset: int | None = None
        self.scratch: dict[int, int] = {}
        self.placed: tuple[PlacedBuffer, ...] | None = None

    def _is_claimed(self, number: int, value: Value) -> bool:
        buffer_slice = self.assignment.of(value)
        return buffer_slice.binding == OUTPUTS and buffer_slice.output == number

    def emit(self) -> EmittedProgram:
        out, function = self.out, self.function
        shapes = emit_shape_part(function, out, self.states, self.lengths.of_a_run, self.bounds)
        input_offsets = tuple(out.register() for _ in function.inputs)
        output_offsets = tuple(out.register() for _ in function.results)
        self._outputs()
        self._constants()
        registers = self._place()
        places = Places(input_offsets, output_offsets, self.offsets, registers)
        flow = Flow(
            *(self.executables, self.assignment, self.lifetimes, places, shapes, out),
            is_overlapping=self.is_overlapping,
        )
        flow.begin_states(self.states)
        flow.block(function.block)
        for number, value in self.copies:
            flow.copy_to_output(number, value)
        flow.end_states(self.states)
        flow.declare_outputs(function.results)
        flow.code.emit("RETURN")
        out.emit("RETURN")
        blocks = flow.code.finish(out)
        fixed = self.states.bytes if self.buffers else self.arena_bytes
        program = ProgramImage(
            register_count=out.registers,
            code=tuple(out.words),
            blocks=(0, *blocks),
            execute_block=1,
            messages=tuple(shapes.messages),
            buffers=tuple(self.buffers),
            arena_bytes=fixed,
            input_offset_registers=input_offsets,
            output_offset_registers=output_offsets,
            arena_bound_bytes=(self.arena_bytes or None) if self.buffers else None,
            state_bytes=self.states.bytes,
            state_count=self.states.count,
            state_key_count=0 if self.lengths.of_a_run else len(self.states.lengths),
            scratch_offset=self.scratch_offset,
            growths=self.states.growths,
            updates=_updates(function),
        )
        names = function.result_names
        entry = EntryPointImage(
            function.name,
            tuple(self._info(v.name, v) for v in function.inputs),
            tuple(self._info(n, v) for n, v in zip(names, function.results, strict=True)),
            program,
            tuple(_state_info(k.variable) for k in self.states.kept),
        )
        count = flow.code.count("DISPATCH", "COPY", "FILL")
        positions = tuple(at for _, at in self.lifetimes.dispatches())
        check_placement(entry, function, self.executables, self.rodata, self._claims(positions))
        return EmittedProgram(
            *(entry, count, self.arena_bytes, self.lower_bound),
            *(self.placed, positions, self.scratch),
        )

    def _claims(self, positions: tuple[int, ...]) -> Claims:
        placed = self.placed if self.placed is not None else ()
        kept = [
            (offset, k.variable.type.bytes)
            for k in self.states.kept
            for offset in (k.offset, k.other)
            if offset is not None
        ]
        return Claims(
            self.assignment,
            [Region(b.offset, b.size_bytes, b.first, b.last) for b in placed],
            [(offset, size) for offset, size in kept if isinstance(size, int)],
            {atom.name: r for atom, r in self.out.known.items() if isinstance(atom, Symbol)},
            positions,
            self.scratch,
        )

    def _info(self, name: str, value: Value) -> TensorInfo:
        strings = self.function.strings
        table = strings.table if strings is not None and name in strings.names else None
        dims = tuple(map(self._dim_info, value.type.dims))
        return TensorInfo(name, value.type.dtype, dims, table)

    def _dim_info(self, dim: Dim) -> DimInfo:
        found = DimInfo.of(dim, self.bounds)
        if found.maximum is not None or not self.largest.is_given(dim):
            return found
        return replace(found, maximum=dims.bounds(self._most(dim), self.bounds)[1])

    def _most(self, dim: Dim) -> Dim:
        """The dim of an output that `prepare` reports: an upper bound if the dim is data-dependent.

        Raises:
            CompileError: nothing says how large it can be.
        """
        found = self.largest.largest(dim)
        if found is None:
            raise CompileError(f"an output has dim {dim}: nothing says how large it can be")
        return found

    def _outputs(self) -> None:
        out = self.out
        for number, value in enumerate(self.function.results):
            for axis, dim in enumerate(value.type.dims):
                out.emit("OUTPUT_DIM", number, axis, out.dim(self._most(dim)))

    def _constants(self) -> None:
        """Assigns an address to each constant that is read, in program order."""
        for op in control_ops(self.function):
            data = op.attrs.get("value")
            if isinstance(data, ConstantData) and op.result in self.lifetimes.last:
                self.offsets[op.result] = self.out.constant(self.rodata.add(data.bytes))

    def _place(self) -> dict[Buffer, int]:
        """The register of each buffer's offset. Offsets are fixed if all sizes are, else the
        runtime computes them; if all sizes are bounded, a plan for the largest sizes gives the
        arena's upper bound."""
        out, begin = self.out, self.states.bytes
        unique = self.lifetimes.all_buffers()
        largest = [dims.bounds(b.size, self.bounds)[1] for b in unique]
        requests = [
            arena.ArenaRequest(size, b.first, b.last)
            for size, b in zip(largest, unique, strict=True)
            if size is not None
        ]
        is_bounded = len(requests) == len(unique)
        is_fixed = all(isinstance(b.size, int) for b in unique)
        scratch = self._scratch() if is_fixed else {}
        made = arena.plan(requests if is_bounded else [], scratch)
        if is_fixed:
            made, offset = self._beside_scratch(requests, made, max(scratch.values(), default=0))
            self.scratch_offset, self.scratch = begin + offset, scratch
        if is_bounded:
            self.placed = self._placed(unique, requests, made)
            self.arena_bytes = begin + made.total_bytes
            self.lower_bound = begin + made.lower_bound_bytes
        registers: dict[Buffer, int] = {}
        if is_fixed:
            for b, offset in zip(unique, made.offsets, strict=True):
                registers[b] = out.constant(begin + offset)
        else:
            offsets = made.offsets if is_bounded else [0] * len(unique)
            for number, (b, offset) in enumerate(zip(unique, offsets, strict=True)):
                registers[b] = register = out.register()
                self.buffers.append(
                    ArenaBuffer(b.first, b.last, register, bound_offset=begin + offset)
                )
                out.emit("BUFFER", number, out.dim(self._size(b)))
        for value, b in self.lifetimes.buffers.items():
            self.offsets[value] = registers[b]
        return registers

    def _placed(
        self,
        unique: Sequence[Buffer],
        requests: Sequence[arena.ArenaRequest],
        made: arena.ArenaPlan,
    ) -> tuple[PlacedBuffer, ...]:
        makers: dict[Buffer, dict[Op, None]] = {b: {} for b in unique}
        for op, _ in self.lifetimes.dispatches():
            for result in op.results:
                buffer = self.lifetimes.buffers.get(self.assignment.of(result).root)
                if buffer is not None:
                    makers[buffer][op] = None
        begin = self.states.bytes
        return tuple(
            PlacedBuffer(tuple(makers[b]), b.first, b.last, begin + offset, request.size_bytes)
            for b, request, offset in zip(unique, requests, made.offsets, strict=True)
        )

    @staticmethod
    def _beside_scratch(
        requests: Sequence[arena.ArenaRequest], made: arena.ArenaPlan, size: int
    ) -> tuple[arena.ArenaPlan, int]:
        """The smaller arena plan, with the offset of scratch: scratch is at the start of the arena
        or at its end."""
        if made.total_bytes <= made.lower_bound_bytes or not size:
            return made, 0
        other = arena.plan(requests)
        end = -(-other.total_bytes // arena.ALIGNMENT) * arena.ALIGNMENT
        if end + size >= made.total_bytes:
            return made, 0
        return replace(other, total_bytes=end + size), end

    def _scratch(self) -> dict[int, int]:
        """Scratch bytes per worker, by the positions of dispatches with scratch."""
        needs: dict[int, int] = {}
        for op, position in self.lifetimes.dispatches():
            scratch = self.executables[executable_of(op)].scratch_bytes
            if scratch:
                needs[position] = scratch
        return needs

    def _size(self, buffer: Buffer) -> Dim:
        """The size of a buffer in bytes. It is clamped to 0 for a buffer of a branch that cannot
        run for some shapes of inputs.
        """
        low, _ = dims.bounds(buffer.size, self.bounds)
        is_there = not buffer.is_nested or (low is not None and low >= 0)
        return buffer.size if is_there else dims.maximum(buffer.size, 0)


def _state_info(variable: StateVariable) -> TensorInfo:
    found = [DimInfo.of(dim) for dim in variable.dims]
    if variable.axis is not None:
        text = str(variable.length)
        found[variable.axis] = DimInfo(None, 0, variable.capacity, text)
    return TensorInfo(variable.name, variable.dtype, tuple(found))


def _updates(function: Function) -> tuple[int, ...]:
    """For each output 1 + the number of the input that receives its value after a run, or 0; an
    empty tuple if all are 0."""
    if not function.updates:
        return ()
    numbers = {v.name: number for number, v in enumerate(function.inputs, 1)}
    updates = function.updates
    return tuple(numbers[updates[n]] if n in updates else 0 for n in function.result_names)
