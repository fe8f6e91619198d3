"""From a function of dispatches to its program: registers, instructions, arena and constants.

Owns where every value's bytes are at run time. Requires a function whose ops are constants, views,
dispatches and a return; asks nothing of kernels but the length of their parameter block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aot.analysis.storage import ARENA, INPUTS, OUTPUTS, Home, Homes
from aot.ir import dims
from aot.ir.bounds import bounds_of
from aot.ir.core import ConstantData, Function, FunctionRef, Op, Value
from aot.ir.dims import Dim, DimExpr
from aot.link import arena
from aot.link.emitter import Emitter
from aot.link.image import ArenaBuffer, DimInfo, EntryPointImage, ProgramImage, TensorInfo
from aot.link.rodata import RodataPool
from aot.link.shape_part import emit_shape_part


@dataclass(frozen=True)
class Entry:
    """A unique executable as the program calls it.

    Attributes:
        number: index in the variant's executables.
        grid: workgroups along x, y, z as dims over `dim_names`.
        dim_names: the executable's dim parameters.
    """

    number: int
    grid: tuple[Dim, Dim, Dim]
    dim_names: tuple[str, ...]


@dataclass(frozen=True)
class EmittedProgram:
    """A program and what the summary tells of it.

    Attributes:
        dispatches: launches, copies and fills of one inference.
        arena_bytes: the most that all buffers take, 0 where the shapes' bounds don't say.
        lower_bound_bytes: largest sum of live buffers at these sizes.
    """

    entry_point: EntryPointImage
    dispatches: int
    arena_bytes: int
    lower_bound_bytes: int


@dataclass
class _ArenaValue:
    """A root value in the arena, or several that were tied into one buffer."""

    size: Dim
    first: int
    last: int


def emit_program(
    function: Function,
    executables: Mapping[str, Entry],
    rodata: RodataPool,
) -> EmittedProgram:
    """The program of an entry point.

    Raises:
        CompileError: an input's dims can't be solved for their symbols.
    """
    return _Program(function, executables, rodata).emit()


class _Program:
    def __init__(
        self,
        function: Function,
        executables: Mapping[str, Entry],
        rodata: RodataPool,
    ) -> None:
        self.function = function
        self.executables = executables
        self.rodata = rodata
        self.bounds = bounds_of(function.assumptions)
        self.homes = Homes(function)
        self.out = Emitter()
        self.dispatches = [op for op in function.block if op.record.name == "dispatch"]
        self.copies = [(n, v) for n, v in enumerate(function.results) if not self._is_claimed(n, v)]
        self.arena: dict[Value, _ArenaValue] = {}
        self.offsets: dict[Value, int] = {}
        # registers of offsets within roots that are known in `execute` only, by start and distance
        self.inside: dict[tuple[int, int], int] = {}
        self.arena_bytes = self.lower_bound = 0
        self.buffers: list[ArenaBuffer] = []

    def _is_claimed(self, number: int, value: Value) -> bool:
        home = self.homes.of(value)
        return home.binding == OUTPUTS and home.output == number

    def emit(self) -> EmittedProgram:
        out, function = self.out, self.function
        messages = emit_shape_part(function, out)
        input_offsets = tuple(out.register() for _ in function.inputs)
        output_offsets = tuple(out.register() for _ in function.results)
        self._outputs()
        self._constants()
        self._find_arena()
        self._place()
        execute: list[tuple[str, tuple[int, ...]]] = []
        for op in self.dispatches:
            execute.append(("DISPATCH", self._dispatch(op, input_offsets, output_offsets)))
        for number, value in self.copies:
            execute.append(("COPY", self._copy(number, value, input_offsets, output_offsets)))
        out.emit("RETURN")
        execute_at = len(out.words)
        for (start, distance), register in self.inside.items():
            out.emit("ADD", register, start, distance)
        for name, operands in execute:
            out.emit(name, *operands)
        out.emit("RETURN")
        program = ProgramImage(
            register_count=out.registers,
            code=tuple(out.words),
            blocks=(0, execute_at),
            execute_block=1,
            messages=messages,
            buffers=tuple(self.buffers),
            arena_bytes=0 if self.buffers else self.arena_bytes,
            input_offset_registers=input_offsets,
            output_offset_registers=output_offsets,
            arena_bound_bytes=(self.arena_bytes or None) if self.buffers else None,
        )
        names = function.result_names
        entry = EntryPointImage(
            function.name,
            tuple(self._info(v.name, v) for v in function.inputs),
            tuple(self._info(n, v) for n, v in zip(names, function.results, strict=True)),
            program,
        )
        return EmittedProgram(entry, len(execute), self.arena_bytes, self.lower_bound)

    def _info(self, name: str, value: Value) -> TensorInfo:
        return TensorInfo(
            name, value.type.dtype, tuple(DimInfo.of(d, self.bounds) for d in value.type.dims)
        )

    def _outputs(self) -> None:
        out = self.out
        for number, value in enumerate(self.function.results):
            for axis, dim in enumerate(value.type.dims):
                out.emit("OUTPUT_DIM", number, axis, out.dim(dim))

    def _constants(self) -> None:
        """Constants that something reads, in the order of the program."""
        used = {
            self.homes.of(v).root for op in self.dispatches for v in op.operands if v is not None
        }
        used |= {self.homes.of(v).root for _, v in self.copies}
        for op in self.function.block:
            data = op.attrs.get("value")
            if isinstance(data, ConstantData) and op.result in used:
                self.offsets[op.result] = self.out.constant(self.rodata.add(data.bytes))

    def _find_arena(self) -> None:
        """Lifetimes of arena values, in dispatch numbers; ties merge where the operand dies."""
        last: dict[Value, int] = {}
        for at, op in enumerate(self.dispatches):
            for value in op.operands:
                if value is not None:
                    last[self.homes.of(value).root] = at
        for at, (_, value) in enumerate(self.copies, len(self.dispatches)):
            last[self.homes.of(value).root] = at
        for at, op in enumerate(self.dispatches):
            ties = op.attrs.get("ties") or (-1,) * len(op.results)
            assert isinstance(ties, tuple)
            for result, tie in zip(op.results, ties, strict=True):
                if self.homes.of(result).binding != ARENA:
                    continue
                end = last.get(result, at)
                taken = self._tied(op, tie, at, last)
                root = self.homes.of(result).root
                if root is not result:  # a part of what is assembled: made when the first part is
                    end = last.get(root, at)
                    known = self.arena.setdefault(root, _ArenaValue(root.type.bytes, at, end))
                    known.last = max(known.last, at)
                elif taken is not None and taken.size == result.type.bytes:
                    taken.last = end
                    self.arena[result] = taken
                else:
                    self.arena[result] = _ArenaValue(result.type.bytes, at, end)

    def _tied(self, op: Op, tie: object, at: int, last: Mapping[Value, int]) -> _ArenaValue | None:
        """The buffer that a result may take over: its tied operand's, if that dies here."""
        if not isinstance(tie, int) or tie < 0:
            return None
        operand = op.operands[tie]
        if operand is None:
            return None
        home = self.homes.of(operand)
        if home.binding != ARENA or last[home.root] != at or home.offset_bytes != 0:
            return None
        others = [v for n, v in enumerate(op.operands) if n != tie and v is not None]
        if any(self.homes.of(v).root is home.root for v in others):
            return None
        found = self.arena[home.root]
        return found if found.last == at else None

    def _place(self) -> None:
        """Offsets: fixed where all sizes are, else left to the runtime. Where all are bounded, a
        plan for the largest sizes says what the arena takes at most."""
        out = self.out
        unique = list({id(a): a for a in self.arena.values()}.values())
        largest = [dims.bounds(a.size, self.bounds)[1] for a in unique]
        requests = [
            arena.ArenaRequest(size, a.first, a.last)
            for size, a in zip(largest, unique, strict=True)
            if size is not None
        ]
        is_bounded = len(requests) == len(unique)
        made = arena.plan(requests if is_bounded else [])
        self.arena_bytes, self.lower_bound = made.total_bytes, made.lower_bound_bytes
        by_buffer: dict[int, int] = {}
        if all(isinstance(a.size, int) for a in unique):
            for a, offset in zip(unique, made.offsets, strict=True):
                by_buffer[id(a)] = out.constant(offset)
        else:
            offsets = made.offsets if is_bounded else [0] * len(unique)
            for number, (a, offset) in enumerate(zip(unique, offsets, strict=True)):
                register = out.register()
                by_buffer[id(a)] = register
                self.buffers.append(ArenaBuffer(a.first, a.last, register, bound_offset=offset))
                out.emit("BUFFER", number, out.dim(a.size))
        for value, a in self.arena.items():
            self.offsets[value] = by_buffer[id(a)]

    def _offset(
        self, home: Home, input_offsets: Sequence[int], output_offsets: Sequence[int]
    ) -> int:
        if home.binding == INPUTS:
            start = input_offsets[home.root.index]
        elif home.binding == OUTPUTS:
            start = output_offsets[home.output]
        else:
            start = self.offsets[home.root]
        if home.offset_bytes == 0:
            return start
        fixed = self.out.constant_in(start)
        if fixed is not None and isinstance(home.offset_bytes, int):
            return self.out.constant(fixed + home.offset_bytes)
        key = (start, self.out.dim(home.offset_bytes))
        if key not in self.inside:
            self.inside[key] = self.out.register()
        return self.inside[key]

    def _dispatch(
        self, op: Op, input_offsets: Sequence[int], output_offsets: Sequence[int]
    ) -> tuple[int, ...]:
        name = op.attrs["executable"]
        assert isinstance(name, FunctionRef)
        entry = self.executables[name.name]
        values = op.attrs.get("dims", ())
        assert isinstance(values, tuple)
        env = {
            n: d
            for n, d in zip(entry.dim_names, values, strict=True)
            if isinstance(d, (int, DimExpr))
        }
        grid = [self.out.dim(dims.substitute(g, env)) for g in entry.grid]
        buffers = [*(v for v in op.operands if v is not None), *op.results]
        params = [self._offset(self.homes.of(v), input_offsets, output_offsets) for v in buffers]
        params += [self.out.dim(env[n]) for n in entry.dim_names]
        return (entry.number, *grid, *params)

    def _copy(
        self, number: int, value: Value, input_offsets: Sequence[int], output_offsets: Sequence[int]
    ) -> tuple[int, ...]:
        home = self.homes.of(value)
        source = self._offset(home, input_offsets, output_offsets)
        size = self.out.dim(value.type.bytes)
        return (OUTPUTS, output_offsets[number], home.binding, source, size)
