"""Checks, independently of the emitter, that all memory that a program accesses is inside live
buffers.

Steps through the words of a program with dims in its registers and proves, whatever the open
extents are, that each operand of a dispatch, and all that is loaded, stored, copied, filled or
handed over, begins at a multiple of its element and ends inside its buffer, which is alive, and
that the buffers and the scratch of a moment share nothing. It takes the emitter's word for where
buffers are, what class a value is of and which register holds which symbol, not for an offset, a
size, a grid or a dim. What is surely outside is an error; what is not proved of a dispatch is a
`ProofWarning`, as no run checks it. The runtime checks the bytes of the other instructions
(`resolve` in runtime/src/interpreter.c): what is undecided there is left to it, and counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

from aot.analysis.control import control_ops
from aot.analysis.dispatches import (
    dims_of_dispatch,
    executable_of,
    extents_of_dispatch,
    is_dispatch,
)
from aot.analysis.memory.storage import ARENA, CONSTANTS, INPUTS, OUTPUTS, BufferAssignment
from aot.base.records import dataclass
from aot.errors import InternalError, ProofWarning
from aot.ir import dims
from aot.ir.dims import Dim, Extremum
from aot.ir.graph import Function, Value
from aot.link.flow import Entry
from aot.link.image import EntryPointImage
from aot.link.nonnegative import replaced
from aot.link.program import Instruction
from aot.link.program_steps import Steps
from aot.link.reader import DTYPES
from aot.link.regions import Alive, Region
from aot.link.rodata import ADDRESSES, RodataPool

CLASSES = {CONSTANTS: "constants", ARENA: "arena", INPUTS: "input", OUTPUTS: "output"}
ARENA_ALIGNMENT = 64
MOST_CASES = 2  # of extrema in one size, one after the other
# By instruction, each piece of memory that it touches: the operands that are its class, its offset
# and its size, or the dtype of its one element where that is negative.
TOUCHED = {
    "LOAD": ((1, 2, -3),),
    "STORE": ((0, 1, -3),),
    "COPY": ((0, 1, 4), (2, 3, 4)),
    "FILL": ((0, 1, 2),),
    "TO_HOST": ((0, 1, 2),),
    "TO_DEVICE": ((0, 1, 2),),
}


@dataclass(frozen=True)
class Claims:
    """The emitter's statements about a program, which the check relies on.

    Attributes:
        assignment: of the function's values to buffer classes, as executables have them.
        regions: buffers of the arena where all is as large as it can be; none where nothing says
            how large that is.
        kept: offset and bytes of each place of a state variable.
        symbols: for each symbol of the function's dims the register that holds it.
        positions: of the dispatches, in the order of the text.
        scratch: bytes that lie at the program's `scratch_offset`, by position.
    """

    assignment: BufferAssignment
    regions: Sequence[Region]
    kept: Sequence[tuple[int, int]]
    symbols: Mapping[str, int]
    positions: Sequence[int]
    scratch: Mapping[int, int]


@dataclass(frozen=True)
class Piece:
    """A range of memory that an instruction accesses."""

    what: str
    binding: int
    offset: Dim
    size_bytes: Dim
    element_bytes: int
    value: Value | None = None  # of a dispatch


@dataclass(frozen=True)
class Buffer:
    """A buffer that may contain a piece: where it begins, and the alignment of its start in
    memory."""

    name: str
    start: Dim
    size_bytes: Dim
    alignment: int


def check_placement(
    entry: EntryPointImage,
    function: Function,
    executables: Mapping[str, Entry],
    rodata: RodataPool,
    claims: Claims,
) -> int:
    """Checks the program of a function; returns the number of accesses that only the runtime can
    check.

    Raises:
        InternalError: the first piece that is not in its buffer, with the instruction, the buffer
            and both sizes; or what else contradicts the claims.
    """
    return _Check(entry, function, executables, rodata, claims).run()


class _Check:
    def __init__(
        self,
        entry: EntryPointImage,
        function: Function,
        executables: Mapping[str, Entry],
        rodata: RodataPool,
        claims: Claims,
    ) -> None:
        self.entry, self.program, self.function = entry, entry.program, function
        self.executables, self.rodata, self.claims = executables, rodata, claims
        self.dispatches = [op for op in control_ops(function) if is_dispatch(op)]
        self.steps = Steps(entry, function, claims.symbols)
        self.reached = 0  # dispatches so far
        self.left = 0
        self._sizes: dict[Value, Dim] = {}
        kept = [Region(*place, 0, 1 << 62) for place in claims.kept]
        self.alive = Alive([*claims.regions, *kept])

    def run(self) -> int:
        self._check_ends()
        self.steps.run(self._visit)
        if self.reached != len(self.dispatches):
            raise InternalError(f"{self.reached} of {len(self.dispatches)} dispatches are emitted")
        return self.left

    def _check_ends(self) -> None:
        program, scratch = self.program, self.program.scratch_offset
        arena = program.arena_bound_bytes if program.buffers else program.arena_bytes
        ends = [("buffer", r.offset, r.size_bytes, arena or 0) for r in self.claims.regions]
        ends += [("state", *place, program.state_bytes) for place in self.claims.kept]
        if scratch is not None:
            sizes = self.claims.scratch.values()
            ends += [("scratch", scratch, size, program.arena_bytes) for size in sizes]
        for what, offset, size, most in ends:
            if offset < 0 or offset % ARENA_ALIGNMENT or offset + size > most:
                raise InternalError(
                    f"{what} of {size} bytes at offset {offset} is not in the {most} bytes that "
                    "the arena has for it"
                )

    def _visit(self, step: Instruction) -> None:
        if step.name == "DISPATCH":
            self._dispatch(step)
        elif step.name == "SET_STATE":
            number, register = step.operands
            is_length = number in self.steps.lengths
            if is_length and not self.steps.is_nonnegative(self.steps.one(register)):
                raise InternalError(f"word {step.at}: SET_STATE of a length that may be negative")
        for binding, offset, size in TOUCHED.get(step.name, ()):
            element = DTYPES[step.operands[-size]].bytes if size < 0 else 1
            of_size: Dim = element if size < 0 else self.steps.one(step.operands[size])
            for at in self.steps.read(step.operands[offset]):
                piece = Piece(step.name, step.operands[binding], at, of_size, element)
                self._check(step, piece, is_checked_in_a_run=True)

    def _dispatch(self, step: Instruction) -> None:
        if self.reached == len(self.dispatches):
            raise InternalError(f"word {step.at}: DISPATCH that the function doesn't have")
        op = self.dispatches[self.reached]
        self.alive.go_to(self.claims.positions[self.reached])
        self.reached += 1
        name, number, grid = executable_of(op), step.operands[0], step.operands[1:4]
        entry, values = self.executables[name], [*filter(None, op.operands), *op.results]
        offsets, given = step.operands[4:][: len(values)], step.operands[4:][len(values) :]
        if number != entry.number or len(given) != len(entry.dim_names):
            raise InternalError(f"word {step.at}: DISPATCH {number}, expected {name}")
        env = dims_of_dispatch(op, entry.dim_names)
        wanted = [dims.substitute(g, env) for g in entry.grid] + [env[n] for n in entry.dim_names]
        for register, dim in zip((*grid, *given), wanted, strict=True):
            self._check_equal(step, name, self.steps.one(register), dim)
        extents = extents_of_dispatch(op)
        for given_name, dim in env.items():
            if dim in extents and not self.steps.is_nonnegative(dim):
                _warn(
                    f"word {step.at}: DISPATCH of {name} has an extent that may be negative: "
                    f"{given_name} = {dim}"
                )
        self._check_scratch(step, name, entry.scratch_bytes)
        bindings = self.claims.assignment.bindings(values)
        for value, binding, register in zip(values, bindings, offsets, strict=True):
            size = self._bytes_of(value)
            for at in self.steps.read(register):
                piece = Piece(
                    f"DISPATCH of {name}", binding, at, size, value.type.dtype.bytes, value
                )
                self._check(step, piece, is_checked_in_a_run=False)

    def _bytes_of(self, value: Value) -> Dim:
        if value not in self._sizes:
            self._sizes[value] = self.steps.one_of_equal(value.type.bytes)
        return self._sizes[value]

    def _check_equal(self, step: Instruction, name: str, found: Dim, wanted: Dim) -> None:
        if str(found) != str(wanted):  # which each has been asked for, or will be
            rest = dims.add(found, dims.multiply(wanted, -1))
            if not all(self.steps.is_nonnegative(dims.multiply(rest, sign)) for sign in (1, -1)):
                raise InternalError(
                    f"word {step.at}: DISPATCH of {name} has {found} in its grid or dims, expected "
                    f"{wanted}"
                )

    def _check_scratch(self, step: Instruction, name: str, needed: int) -> None:
        offset = self.program.scratch_offset
        if offset is None or not needed:
            return
        claimed = self.claims.scratch.get(self.alive.position, 0)
        met = self.alive.met(offset, needed)
        if claimed < needed or met is not None:
            raise InternalError(
                f"word {step.at}: DISPATCH of {name} has {needed} bytes of scratch at {offset}, "
                f"{claimed} are set aside" + (f", and {met} lives there" if met else "")
            )

    # Pieces of memory.

    def _check(self, step: Instruction, piece: Piece, *, is_checked_in_a_run: bool) -> None:
        if isinstance(piece.size_bytes, int) and piece.size_bytes <= 0:
            return
        found = list(self._buffers(piece, is_exact=not is_checked_in_a_run))
        if any(self._is_inside(piece, buffer) for buffer in found):
            return
        is_open = not all(self._is_outside(piece, buffer) for buffer in found)
        if is_open:
            self.left += 1
            if is_checked_in_a_run:
                return
        what = f"{piece.what}, {piece.value}" if piece.value is not None else piece.what
        where = f"word {step.at}: {what}: {piece.size_bytes} bytes at offset {piece.offset}"
        buffers = [f"{b.name} of {b.size_bytes} bytes at {b.start}" for b in found]
        message = f"{where}, in steps of {piece.element_bytes}, are not in " + (
            " or ".join(buffers) or f"any buffer of the {CLASSES[piece.binding]} class there"
        )
        if not is_open:
            raise InternalError(message)
        _warn(message)

    def _is_inside(self, piece: Piece, buffer: Buffer) -> bool:
        element, is_start = piece.element_bytes, piece.offset is buffer.start
        begin = 0 if is_start else _less(piece.offset, buffer.start)
        if buffer.alignment % element or dims.modulo(begin, element) != 0:
            return False
        if begin == 0 and piece.size_bytes is buffer.size_bytes:
            return True
        rest = _less(buffer.size_bytes, dims.add(begin, piece.size_bytes))
        return self._is_between(begin, rest, piece.size_bytes)

    def _is_between(self, begin: Dim, rest: Dim, size: Dim, *given: Dim) -> bool:
        """Whether a range of bytes is empty or inside a buffer: `begin` is the distance from the
        buffer's start to the range, `rest` that from the range to the buffer's end. Considers each
        argument of extrema in `size` separately.
        """

        def holds(dim: Dim) -> bool:
            return self.steps.is_nonnegative(dim, *given)

        if (holds(begin) and holds(rest)) or holds(dims.multiply(size, -1)):
            return True
        extrema = [a for a in dims.atoms(size) if isinstance(a, Extremum)]
        return len(given) < MOST_CASES and any(
            all(
                self._is_between(
                    *(replaced(d, atom, arg) for d in (begin, rest, size)),
                    *given,
                    *(
                        _less(*((arg, b) if atom.is_max else (b, arg)))
                        for b in atom.args
                        if b != arg
                    ),
                )
                for arg in atom.args
            )
            for atom in extrema
        )

    def _is_outside(self, piece: Piece, buffer: Buffer) -> bool:
        begin = _less(piece.offset, buffer.start)
        behind = _less(dims.add(begin, piece.size_bytes), buffer.size_bytes)
        return any(self.steps.is_nonnegative(dims.add(d, -1)) for d in (behind, -1 * begin))

    def _buffers(self, piece: Piece, *, is_exact: bool) -> Iterator[Buffer]:
        """The buffers that a piece may be in, from the address from which its offset is
        computed."""
        base: str | None = str(piece.offset)
        if base not in self.steps.places:
            base = next(iter(dims.symbols(piece.offset) & self.steps.places.keys()), None)
        if base is not None:
            kind, number, start = self.steps.places[base]
            if kind == CLASSES[piece.binding]:
                tensors = self.function.inputs if kind == "input" else self.function.results
                dtype = tensors[number].type.dtype
                size = self.steps.tensor_bytes(kind, number)
                yield Buffer(f"{kind} {number}", start, size, dtype.bytes)
            elif kind == "buffer" and piece.binding == ARENA:
                placed, (first, last) = self.program.buffers[number], self._now(is_exact=is_exact)
                if placed.first <= last and first <= placed.last:
                    size = self.steps.sizes.get(number, 0)
                    yield Buffer(f"arena buffer {number}", start, size, placed.alignment)
            return
        fixed = piece.offset if isinstance(piece.offset, int) else piece.offset.constant
        if piece.binding == CONSTANTS and fixed >= ADDRESSES:
            data, distance = self.rodata.bytes_at(fixed)
            yield Buffer("constant", fixed - distance, len(data), ARENA_ALIGNMENT)
        elif piece.binding == ARENA:
            regions = [*(self.alive.at(fixed) if is_exact else self.alive.ever(*self._now()))]
            if not is_exact:
                near = [r for r in regions if r.offset <= fixed < r.offset + r.size_bytes]
                # what fails to be proved takes longest, so others are tried after the likely one
                others = [r for r in regions if r not in near]
                regions = near if isinstance(piece.offset, int) else near + others
            for region in regions:
                yield Buffer("buffer", region.offset, region.size_bytes, ARENA_ALIGNMENT)

    def _now(self, *, is_exact: bool = False) -> tuple[int, int]:
        """The first and the last position that the current instruction may have."""
        positions, n = self.claims.positions, self.reached
        if is_exact:
            return self.alive.position, self.alive.position
        return positions[n - 1] if n else 0, positions[n] if n < len(positions) else 1 << 62


def _warn(message: str) -> None:
    warnings.warn(f"{message}, as far as is known; please report this", ProofWarning, stacklevel=2)


def _less(a: Dim, b: Dim) -> Dim:
    return dims.add(a, dims.multiply(b, -1))
