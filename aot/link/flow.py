"""Emits the execute part of a program: dispatches in order, `if` and `loop`.

A branch makes its results where the op has them. A loop keeps the places of what it carries in two
registers: a run reads at one, makes at the other, and swaps them. Registers of places inside such
memory are computed anew where it changes its place. Owns no memory: lifetimes and states say which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Union

from aot.analysis.dispatches import dims_of_dispatch, executable_of, is_dispatch, where
from aot.analysis.memory.storage import (
    ARENA,
    INPUTS,
    OUTPUTS,
    BufferAssignment,
    BufferSlice,
    Carried,
    carried_count,
    carried_values,
    is_choice,
    is_loop,
    root_of,
    yielded,
)
from aot.analysis.needs import needs_of
from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir import dims
from aot.ir.builtin import EXTENT
from aot.ir.dims import Dim
from aot.ir.graph import Block, Op, Value
from aot.ir.loops import most_runs, too_many_runs
from aot.ir.record import Need
from aot.link.emitter import Emitter, ExecutePart, Header, Label
from aot.link.host_copies import HostCopies, Memory
from aot.link.image import Growth
from aot.link.lifetimes import Buffer, Lifetimes, is_counter, is_made, known_scalar
from aot.link.overlap import STATES, Overlaps
from aot.link.reader import DTYPE_CODES
from aot.link.shape_part import ShapePart
from aot.link.states import States, is_contiguous


@dataclass(frozen=True)
class Entry:
    """An executable as programs call it: its number, and whether the CPU runs it for a GPU.

    Attributes:
        number: index in the variant's executables.
        grid: workgroups along x, y, z as dims over `dim_names`.
        dim_names: the executable's dim parameters.
        scratch_bytes: memory that a CPU worker needs beside its buffers; 0 on a GPU.
        is_cpu_fallback: whether the CPU beside a GPU runs it.
        iterations: of loops that a lane of a GPU makes at most, as a dim over `dim_names`.
        most_iterations: how many the GPU lets it make; None where that is no matter.
        root: the name of its heaviest op, for messages.
        needs: what must hold of the dim parameters.
    """

    number: int
    grid: tuple[Dim, Dim, Dim]
    dim_names: tuple[str, ...]
    scratch_bytes: int = 0
    is_cpu_fallback: bool = False
    iterations: Dim = 0
    most_iterations: int | None = None
    root: str = ""
    needs: tuple[Need, ...] = ()


Pair = tuple[int, Union[int, None]]  # where this run's value is, and the next one's


@dataclass
class Places:
    """Registers that hold the byte offsets of values' memory.

    Attributes:
        inputs, outputs: of the function's.
        offsets: of other roots; those of control flow are added as it is emitted.
        buffers: of the arena's buffers.
    """

    inputs: Sequence[int]
    outputs: Sequence[int]
    offsets: dict[Value, int]
    buffers: Mapping[Buffer, int]


class Flow:
    """Emits the control blocks of a program.

    Args:
        is_overlapping: whether dispatches may run at the same time, which the program says then.

    Attributes:
        code: the execute part.
        top: what it begins with.
    """

    def __init__(
        self,
        executables: Mapping[str, Entry],
        assignment: BufferAssignment,
        lifetimes: Lifetimes,
        places: Places,
        shapes: ShapePart,
        out: Emitter,
        *,
        is_overlapping: bool = False,
    ) -> None:
        self.executables = executables
        self.assignment = assignment
        self.lifetimes = lifetimes
        self.places = places
        self.shapes = shapes
        self.out = out
        self.code = ExecutePart()
        self.top = self.code.header()
        self._headers: dict[Value, Header] = {}  # of roots that change their places
        # registers of offsets within roots that are known in `execute` only, by start and distance
        self._inside: dict[tuple[Header, int, int], int] = {}
        self._counters: dict[Value, int] = {}  # registers of loops' counters
        self._rows: dict[Value, int] = {}  # of what a loop stacks: the row of this run
        self._spare: int | None = None
        self._half: int | None = None  # which halves of state variables are read
        self._host: HostCopies | None = None
        if any(entry.is_cpu_fallback for entry in executables.values()):
            self._host = HostCopies(
                assignment, self._memory_of, self.offset, out.dim, self.code.emit
            )
        self._overlaps: Overlaps | None = None
        if is_overlapping:
            self._overlaps = Overlaps(assignment, self._kept_or_memory_of, self._fixed_start)

    # State variables.

    def _memory_of(self, buffer_slice: BufferSlice) -> Memory | None:
        """The buffer or output that a slice is in, if no other value uses its memory while the
        slice is live; else None.
        """
        if buffer_slice.binding == OUTPUTS:
            return buffer_slice.output
        buffer = self.lifetimes.buffers.get(buffer_slice.root)
        if buffer is None or buffer_slice.root in self._headers:
            return None
        is_own = self.places.offsets[buffer_slice.root] == self.places.buffers[buffer]
        return buffer if buffer_slice.binding == ARENA and is_own else None

    def _kept_or_memory_of(self, buffer_slice: BufferSlice) -> Memory | str | None:
        is_kept = buffer_slice.binding == ARENA and buffer_slice.root in self.lifetimes.elsewhere
        return STATES if is_kept else self._memory_of(buffer_slice)

    def _fixed_start(self, buffer_slice: BufferSlice) -> int | None:
        return self.out.constant_in(self.offset(buffer_slice))

    def begin_states(self, states: States) -> None:
        """Emits registers for the current and the next memory of each state, at the program's
        start.
        """
        out, offsets = self.out, self.places.offsets
        half = self._half = out.register() if states.has_halves else None
        if half is not None:
            self.top.emit("STATE", half, len(states.lengths))
        for name in dict.fromkeys(str(length.symbol) for length in states.lengths):
            if name in out.given:
                self.code.header(out.given[name])
        for kept in states.kept:
            first = out.constant(kept.offset)
            offsets[kept.root] = first
            if kept.other is not None and half is not None:
                second = out.constant(kept.other)
                offsets[kept.root] = out.register()
                self.top.emit("SELECT", offsets[kept.root], half, second, first)
                if kept.made is not None:
                    offsets[kept.made] = out.register()
                    self.top.emit("SELECT", offsets[kept.made], half, first, second)

    def end_states(self, states: States) -> None:
        """Emits the copies of states at the program's end, and stores the scalars that the next run
        reads.
        """
        out = self.out
        for number, length in enumerate(states.lengths):
            if length.following != length.symbol:
                self.code.emit("SET_STATE", number, out.dim(length.following))
        self._slide(states)
        if self._half is None:
            return
        for kept in states.kept:
            if kept.copied is not None and kept.other is not None:
                target = out.register()
                first, second = out.constant(kept.offset), out.constant(kept.other)
                self.code.emit("SELECT", target, self._half, first, second)
                self._copy(ARENA, target, kept.copied)
        following = out.register()
        self.code.emit("EQ", following, self._half, out.constant(0))
        self.code.emit("SET_STATE", len(states.lengths), following)

    def _slide(self, states: States) -> None:
        """Emits the moves of the remaining rows to the start of each block, for states that drop
        their oldest rows. They run at the end of a successful run.
        """
        out, code = self.out, self.code
        alike: dict[tuple[Dim, Dim], list[Growth]] = {}
        for variable, growth in states.slides:
            assert variable.kept_length is not None
            alike.setdefault((variable.leaving, variable.kept_length), []).append(growth)
        for (leaving, staying), growths in alike.items():
            moves, after = Label(), Label()
            code.emit("BRANCH", out.dim(leaving), moves, after)
            code.place(moves)
            for growth in growths:
                skipped = out.binary(
                    "MUL", out.dim(leaving), out.constant(growth.row_bytes), code.emit
                )
                moved = out.binary(
                    "MUL", out.dim(staying), out.constant(growth.row_bytes), code.emit
                )
                for block in range(growth.blocks):
                    start = out.constant(growth.offset + block * growth.stride_bytes)
                    source = out.binary("ADD", start, skipped, code.emit)
                    code.emit("COPY", ARENA, start, ARENA, source, moved)
            code.place(after)

    # Places.

    def offset(self, buffer_slice: BufferSlice) -> int:
        """The register with the byte offset of a slice."""
        start = self._start(buffer_slice)
        if buffer_slice.offset_bytes == 0:
            return start
        fixed = self.out.constant_in(start)
        if fixed is not None and isinstance(buffer_slice.offset_bytes, int):
            return self.out.constant(fixed + buffer_slice.offset_bytes)
        header = self.code.later(
            self._headers.get(buffer_slice.root, self.top),
            self.out.header_of(buffer_slice.offset_bytes),
        )
        key = (header, start, self.out.dim(buffer_slice.offset_bytes))
        if key not in self._inside:
            self._inside[key] = self.out.register()
            header.emit("ADD", self._inside[key], start, key[2])
        return self._inside[key]

    def _start(self, buffer_slice: BufferSlice) -> int:
        known = self.places.offsets.get(buffer_slice.root)
        if known is not None:
            return known
        if buffer_slice.binding == INPUTS:
            return self.places.inputs[buffer_slice.root.index]
        if buffer_slice.binding == OUTPUTS:
            return self.places.outputs[buffer_slice.output]
        raise InternalError(f"nothing says where {buffer_slice.root} is")

    def copy(self, result: Value, value: Value) -> None:
        """Emits a copy of a value to the memory of `result`, unless both are the same."""
        buffer_slice = self.assignment.of(result)
        if buffer_slice != self.assignment.of(value):
            if self._host is not None:
                self._host.device_writes(result)
            self._copy(buffer_slice.binding, self.offset(buffer_slice), value)

    def declare_outputs(self, results: Sequence[Value]) -> None:
        """Emits the extents of data-dependent outputs, once they are known."""
        for number, value in enumerate(results):
            for axis, dim in enumerate(value.type.dims):
                if self.out.header_of(dim) is not None:
                    self.code.emit("OUTPUT_DIM", number, axis, self.out.dim(dim))

    def copy_to_output(self, number: int, value: Value) -> None:
        """Copies a value to an output of the function."""
        self._copy(OUTPUTS, self.places.outputs[number], value)

    def _copy(self, binding: int, start: int, value: Value) -> None:
        if not is_contiguous(value.type):
            raise InternalError(f"{value}: what has gaps must be copied by a dispatch")
        buffer_slice, size = self.assignment.of(value), self.out.dim(value.type.bytes)
        if self._host is not None:
            self._host.device_reads(value)
        self.code.emit(
            "COPY", binding, start, buffer_slice.binding, self.offset(buffer_slice), size
        )

    # Ops.

    def block(self, block: Block) -> None:
        """Emits the ops of a control block, except its terminator."""
        for op in block:
            if is_dispatch(op):
                self._launch(op)
            elif is_choice(op) or is_loop(op):
                if self._host is not None:
                    self._host.border(self.lifetimes.position(op))
                (self._if if is_choice(op) else self._loop)(op)
            elif op.record is EXTENT and op.operands[0] is not None:
                self.shapes.give(op, self._scalar(op.operands[0]), self.code)
            else:
                self._check_needs(op, op.name, needs_of(op), {})
        if block is self.lifetimes.function.block and self._host is not None:
            self._host.border(self.lifetimes.end)

    def _launch(self, op: Op) -> None:
        host, is_cpu_fallback = self._host, self.executables[executable_of(op)].is_cpu_fallback
        if host is not None:
            before = host.before_host if is_cpu_fallback else host.before_device
            before(op, self.lifetimes.position(op))
        dispatch = self._dispatch(op)
        if self._overlaps is not None and self._joins(self._overlaps, op, is_cpu_fallback):
            self.code.emit("BESIDE")
        self.code.emit("DISPATCH", *dispatch)
        if host is not None and is_cpu_fallback:
            host.after_host(op)

    def _joins(self, overlaps: Overlaps, op: Op, is_cpu_fallback: bool) -> bool:
        """Whether a dispatch may run at the same time as those before it."""
        if is_cpu_fallback or not self.code.is_after_dispatch:
            overlaps.clear()
        if is_cpu_fallback:
            return False
        return overlaps.joins(op)

    def _dispatch(self, op: Op) -> tuple[int, ...]:
        entry = self.executables[executable_of(op)]
        env = dims_of_dispatch(op, entry.dim_names)
        if entry.most_iterations is not None:
            iterations = dims.substitute(entry.iterations, env)
            is_known = op.parent is self.lifetimes.function.block
            is_known = is_known and self.out.header_of(iterations) is None
            emit = self.out.emit if is_known else self.code.emit
            what = f"{entry.root} ({where(op.origin, executable_of(op))})"
            self.shapes.check_iterations(what, iterations, entry.most_iterations, emit)
        self._check_needs(op, entry.root, entry.needs, env)
        given = self.out.header_of(*env.values())
        if given is not None and not given.is_placed:
            raise InternalError(f"{op} has extents that no value has given yet")
        grid = [self.out.dim(dims.substitute(g, env)) for g in entry.grid]
        buffers = [*(v for v in op.operands if v is not None), *op.results]
        params = [self.offset(self.assignment.of(v)) for v in buffers]
        params += [self.out.dim(env[n]) for n in entry.dim_names]
        return (entry.number, *grid, *params)

    def _check_needs(
        self, op: Op, name: str, needs: Iterable[Need], given: Mapping[str, Dim]
    ) -> None:
        """Emits the checks of an op's conditions on extents, except those that an earlier check
        always covers.
        """
        is_always = op.parent is self.lifetimes.function.block
        for need in needs:
            self.shapes.check_need(
                op.origin or name, need, given, emit=self.code.emit, is_always=is_always
            )

    def _if(self, op: Op) -> None:
        condition = op.operands[0]
        assert condition is not None
        labels, after = [Label() for _ in op.blocks], Label()
        self.code.emit("BRANCH", self._scalar(condition), *labels)
        for label, block in zip(labels, op.blocks, strict=True):
            self.code.place(label)
            self._inner_block(block)
            for result, value in zip(op.results, yielded(op, block), strict=True):
                if result.uses:
                    self.copy(result, value)
            self.code.emit("JUMP", after)
        self.code.place(after)

    def _inner_block(self, block: Block) -> None:
        self.shapes.check_extents(block, self.code.emit)
        self.block(block)
        if self._host is not None:
            self._host.border(self.lifetimes.end_of(block))

    def _scalar(self, value: Value) -> int:
        """The register that holds a scalar on which control flow depends; emits a load if the
        scalar is in memory."""
        known = known_scalar(value)
        if known is not None:
            return self.out.constant(known)
        if is_counter(value):
            return self._counters[root_of(value)[0]]
        buffer_slice, found = self.assignment.of(value), self.out.register()
        if self._host is not None:
            self._host.device_reads(value)
        dtype = DTYPE_CODES[value.type.dtype]
        self.code.emit("LOAD", found, buffer_slice.binding, self.offset(buffer_slice), dtype)
        return found

    def _loop(self, op: Op) -> None:
        (block,) = op.blocks
        out, code = self.out, self.code
        limit = self._limit(op)
        going = self._condition(op, block)
        carried = [c for c in carried_values(op) if not self.assignment.is_invariant(c.argument)]
        registers = [self._enter(c) for c in carried]
        self._clear_rows(op, going is not None)
        counter = self._counters[block.args[0]] = out.register()
        head, inner, after = Label(), Label(), Label()
        code.emit("MOVE", counter, out.constant(0))
        code.place(head)
        test = self._test(counter, limit, going)
        if test is not None:
            code.emit("BRANCH", test, inner, after)
        code.place(inner)
        self._check_end(op, counter)
        self._begin_run(op, carried, registers, counter)
        self._inner_block(block)
        self._end_run(op, carried, registers, going)
        code.emit("ADD", counter, counter, out.constant(1))
        code.emit("JUMP", head)
        code.place(after)
        header = code.header()
        for c, (current, _) in zip(carried, registers, strict=True):
            self.places.offsets[c.result] = current
            self._headers[c.result] = header

    def _check_end(self, op: Op, counter: int) -> None:
        """Emits a check that stops a loop after its greatest number of iterations, if it has
        one."""
        count = op.operands[0]
        most = most_runs(op, None if count is None else known_scalar(count))
        if most is not None:
            self.shapes.check_less(counter, most, too_many_runs(op), self.code.emit)

    def _limit(self, op: Op) -> int | None:
        """The register with the greatest number of iterations of a loop; None if there is no
        limit."""
        trips, count = op.dim("trips"), op.operands[0]
        limits = [] if trips == -1 else [self.out.dim(trips)]
        if count is not None:
            limits.append(self._scalar(count))
        if len(limits) < 2:
            return limits[0] if limits else None
        found = self.out.register()
        self.code.emit("MIN", found, *limits)
        return found

    def _condition(self, op: Op, block: Block) -> int | None:
        """A register that tells whether the loop continues; None if the loop never ends early."""
        first, following = op.operands[1], block.terminator.operands[0]
        assert following is not None
        if (first is None or known_scalar(first) == 1) and known_scalar(following) == 1:
            return None
        found = self.out.register()
        self.code.emit("MOVE", found, self._scalar(first) if first else self.out.constant(1))
        return found

    def _test(self, counter: int, limit: int | None, going: int | None) -> int | None:
        if limit is None:
            return going
        test = self.out.register()
        self.code.emit("LT", test, counter, limit)
        if going is not None:
            self.code.emit("AND", test, test, going)
        return test

    def _enter(self, carried: Carried) -> Pair:
        """Emits the initial copy of a loop-carried value; returns the registers with the offsets of
        its current and its next memory.
        """
        buffers, pair = self.places.buffers, self.lifetimes.carried[carried.argument]
        place, current = buffers[pair.current], self.out.register()
        if not pair.is_taken:
            self._copy(ARENA, place, carried.operand)
        self.code.emit("MOVE", current, place)
        if pair.following is None:
            return current, None
        following = self.out.register()
        self.code.emit("MOVE", following, buffers[pair.following])
        return current, following

    def _clear_rows(self, op: Op, may_end: bool) -> None:
        """Emits the zero fill of a loop's stacked results, whose rows of skipped iterations stay
        readable."""
        trips, count = op.attrs["trips"], op.operands[0]
        if not may_end and (count is None or trips == known_scalar(count)):
            return
        for result, _ in _stacked(op):
            buffer_slice, size = self.assignment.of(result), self.out.dim(result.type.bytes)
            self.code.emit("FILL", buffer_slice.binding, self.offset(buffer_slice), size, 0)

    def _begin_run(
        self, op: Op, carried: Sequence[Carried], registers: Sequence[Pair], counter: int
    ) -> None:
        """Emits the start of an iteration: stores its counter, and sets the offsets of carried
        values and of stacked rows.
        """
        (block,), header, offsets = op.blocks, self.code.header(), self.places.offsets
        index = block.args[0]
        self._headers[index] = header
        if index in offsets:
            dtype = DTYPE_CODES[index.type.dtype]
            header.emit("STORE", ARENA, offsets[index], counter, dtype)
        for c, (current, following) in zip(carried, registers, strict=True):
            offsets[c.argument], self._headers[c.argument] = current, header
            if is_made(self.assignment, c):
                root, _ = root_of(c.following)
                offsets[root] = current if following is None else following
                self._headers[root] = header
        for result, value in _stacked(op):
            start, distance = self.out.register(), self.out.register()
            header.emit("MUL", distance, counter, self.out.dim(value.type.bytes))
            header.emit("ADD", start, self.offset(self.assignment.of(result)), distance)
            self._rows[result] = start
            root = self.assignment.of(value).root
            if self.assignment.rows.get(root) is result:
                offsets[root], self._headers[root] = start, header

    def _end_run(
        self,
        op: Op,
        carried: Sequence[Carried],
        registers: Sequence[Pair],
        going: int | None,
    ) -> None:
        """Emits the end of an iteration: copies of values that were not computed in place, and the
        swap of current and next memory."""
        code, assignment = self.code, self.assignment
        condition = op.blocks[0].terminator.operands[0]
        if going is not None and condition is not None:
            code.emit("MOVE", going, self._scalar(condition))
        for c, (_, following) in zip(carried, registers, strict=True):
            if following is not None and not is_made(assignment, c):
                self._copy(ARENA, following, c.following)
        for result, value in _stacked(op):
            if assignment.rows.get(assignment.of(value).root) is not result:
                self._copy(assignment.of(result).binding, self._rows[result], value)
        for current, following in registers:
            if following is not None:
                self._spare = self.out.register() if self._spare is None else self._spare
                code.emit("MOVE", self._spare, current)
                code.emit("MOVE", current, following)
                code.emit("MOVE", following, self._spare)


def _stacked(loop: Op) -> list[tuple[Value, Value]]:
    """(result, yielded value) of each stacked result of a loop that is used."""
    count = carried_count(loop)
    values = yielded(loop, loop.blocks[0])
    rows = zip(loop.results[count:], values[count:], strict=True)
    return [(result, value) for result, value in rows if result.uses]
