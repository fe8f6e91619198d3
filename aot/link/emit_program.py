"""From a function of dispatches to its program: registers, instructions, arena and constants.

Owns where every value's bytes are at run time. Requires a function whose ops are constants, views,
dispatches and a return; asks nothing of kernels but the length of their parameter block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aot.analysis.storage import ARENA, INPUTS, OUTPUTS, Home, Homes
from aot.errors import CompileError, InternalError
from aot.ir import dims
from aot.ir.core import ConstantData, Function, FunctionRef, Op, Value
from aot.ir.dims import Atom, Dim, DimExpr, Extremum, FloorDiv, Interval, Symbol
from aot.link import arena
from aot.link.image import ArenaBuffer, DimInfo, EntryPointImage, ProgramImage, TensorInfo
from aot.link.program import encode, encode_constant
from aot.link.rodata import RodataPool


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
        arena_bytes: of the fixed part, or of all buffers where sizes are static.
        lower_bound_bytes: largest sum of live buffers, 0 where sizes are symbolic.
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


@dataclass
class _Emitter:
    """Registers and words; `prepare` ends before `execute` begins."""

    words: list[int] = field(default_factory=list)
    registers: int = 0
    constants: dict[int, int] = field(default_factory=dict)
    known: dict[Dim | Atom, int] = field(default_factory=dict)

    def register(self) -> int:
        self.registers += 1
        return self.registers - 1

    def emit(self, name: str, *operands: int) -> None:
        self.words += encode(name, *operands)

    def constant(self, value: int) -> int:
        if value not in self.constants:
            self.constants[value] = self.register()
            self.words += encode_constant(self.constants[value], value)
        return self.constants[value]

    def binary(self, name: str, a: int, b: int) -> int:
        made = self.register()
        self.emit(name, made, a, b)
        return made

    def dim(self, dim: Dim) -> int:
        """The register that holds `dim`; equal dims are computed once."""
        if isinstance(dim, int):
            return self.constant(dim)
        if dim not in self.known:
            total: int | None = self.constant(dim.constant) if dim.constant else None
            for monomial, coefficient in dim.terms:
                term: int | None = None if coefficient == 1 else self.constant(coefficient)
                for atom in monomial:
                    value = self.atom(atom)
                    term = value if term is None else self.binary("MUL", term, value)
                assert term is not None
                total = term if total is None else self.binary("ADD", total, term)
            assert total is not None
            self.known[dim] = total
        return self.known[dim]

    def atom(self, atom: Atom) -> int:
        if atom not in self.known:
            if isinstance(atom, Symbol):
                raise InternalError(f"no input gives dim {atom}")
            if isinstance(atom, FloorDiv):
                made = self.binary("FLOORDIV", self.dim(atom.numerator), self.dim(atom.denominator))
            else:
                made = self._extremum(atom)
            self.known[atom] = made
        return self.known[atom]

    def _extremum(self, atom: Extremum) -> int:
        made = self.dim(atom.args[0])
        for arg in atom.args[1:]:
            made = self.binary("MAX" if atom.is_max else "MIN", made, self.dim(arg))
        return made


def emit_program(
    function: Function,
    executables: Mapping[str, Entry],
    rodata: RodataPool,
    known_bounds: Mapping[str, Interval] | None = None,
) -> EmittedProgram:
    """The program of an entry point.

    Raises:
        CompileError: an input's dims can't be solved for their symbols.
    """
    return _Program(function, executables, rodata, known_bounds or {}).emit()


class _Program:
    def __init__(
        self,
        function: Function,
        executables: Mapping[str, Entry],
        rodata: RodataPool,
        known_bounds: Mapping[str, Interval],
    ) -> None:
        self.function = function
        self.executables = executables
        self.rodata = rodata
        self.known_bounds = known_bounds
        self.homes = Homes(function)
        self.out = _Emitter()
        self.messages: list[str] = []
        self.dispatches = [op for op in function.block if op.record.name == "dispatch"]
        self.copies = [(n, v) for n, v in enumerate(function.results) if not self._is_claimed(n, v)]
        self.arena: dict[Value, _ArenaValue] = {}
        self.offsets: dict[Value, int] = {}
        self.arena_bytes = self.lower_bound = 0
        self.buffers: list[ArenaBuffer] = []

    def _is_claimed(self, number: int, value: Value) -> bool:
        home = self.homes.of(value)
        return home.binding == OUTPUTS and home.output == number

    def emit(self) -> EmittedProgram:
        out, function = self.out, self.function
        self._inputs()
        self._assumptions()
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
        for name, operands in execute:
            out.emit(name, *operands)
        out.emit("RETURN")
        program = ProgramImage(
            register_count=out.registers,
            code=tuple(out.words),
            blocks=(0, execute_at),
            execute_block=1,
            messages=tuple(self.messages),
            buffers=tuple(self.buffers),
            arena_bytes=self.arena_bytes,
            input_offset_registers=input_offsets,
            output_offset_registers=output_offsets,
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
            name, value.type.dtype, tuple(DimInfo.of(d, self.known_bounds) for d in value.type.dims)
        )

    def _inputs(self) -> None:
        """Symbols come from the inputs that are just that symbol; the rest is checked."""
        out = self.out
        rest: list[tuple[Value, int, int, DimExpr]] = []
        for number, value in enumerate(self.function.inputs):
            for axis, dim in enumerate(value.type.dims):
                if isinstance(dim, int):
                    continue
                made = out.register()
                out.emit("INPUT_DIM", made, number, axis)
                name = _only_symbol(dim)
                if name is not None and Symbol(name) not in out.known:
                    out.known[Symbol(name)] = made
                    continue
                rest.append((value, axis, made, dim))
        for value, axis, made, dim in rest:
            missing = [s for s in sorted(dims.symbols(dim)) if Symbol(s) not in out.known]
            if missing:
                raise CompileError(
                    f"input {value.name!r}: dim {axis} is {dim}, and no input has {missing[0]} "
                    f"itself as a dim; bind it with --input-shape"
                )
            self._check(
                out.binary("EQ", made, out.dim(dim)),
                f"input {value.name!r}: dim {axis} must be {dim}",
            )

    def _check(self, condition: int, message: str) -> None:
        if message not in self.messages:
            self.messages.append(message)
        self.out.emit("CHECK", condition, self.messages.index(message))

    def _assumptions(self) -> None:
        out = self.out
        for a in self.function.assumptions:
            self._check(
                out.binary("EQ", out.dim(a.left), out.dim(a.right)),
                f"shapes disagree: {a.left} must equal {a.right} ({a.reason})",
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
                if taken is not None and taken.size == result.type.bytes:
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
        if home.binding != ARENA or last[home.root] != at:
            return None
        others = [v for n, v in enumerate(op.operands) if n != tie and v is not None]
        if any(self.homes.of(v).root is home.root for v in others):
            return None
        found = self.arena[home.root]
        return found if found.last == at else None

    def _place(self) -> None:
        """Offsets: fixed where all sizes are, else left to the runtime."""
        out = self.out
        unique = list({id(a): a for a in self.arena.values()}.values())
        sizes = [a.size for a in unique]
        by_buffer: dict[int, int] = {}
        if all(isinstance(s, int) for s in sizes):
            requests = [
                arena.ArenaRequest(s, a.first, a.last)
                for s, a in zip(sizes, unique, strict=True)
                if isinstance(s, int)
            ]
            made = arena.plan(requests)
            self.arena_bytes, self.lower_bound = made.total_bytes, made.lower_bound_bytes
            for a, offset in zip(unique, made.offsets, strict=True):
                by_buffer[id(a)] = out.constant(offset)
        else:
            for number, a in enumerate(unique):
                register = out.register()
                by_buffer[id(a)] = register
                self.buffers.append(ArenaBuffer(a.first, a.last, register))
                out.emit("BUFFER", number, out.dim(a.size))
        for value, a in self.arena.items():
            self.offsets[value] = by_buffer[id(a)]

    def _offset(
        self, home: Home, input_offsets: Sequence[int], output_offsets: Sequence[int]
    ) -> int:
        if home.binding == INPUTS:
            return input_offsets[home.root.index]
        if home.binding == OUTPUTS:
            return output_offsets[home.output]
        return self.offsets[home.root]

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


def _only_symbol(dim: DimExpr) -> str | None:
    names = dims.symbols(dim)
    if len(names) == 1 and dim == dims.symbol(next(iter(names))):
        return next(iter(names))
    return None
