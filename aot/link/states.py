"""The memory of a program's state variables, and their lengths.

What is appended to stands in one place: a run writes behind what earlier ones left. Any other
variable has two halves, and a run makes in one what the next one finds there. Either way nothing
that a run can read is overwritten before it has ended well, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from aot.analysis.control import nested_operands
from aot.analysis.dispatches import is_dispatch
from aot.analysis.memory.storage import ARENA, BufferAssignment
from aot.analysis.memory.views import canonical
from aot.base.records import dataclass
from aot.errors import CompileError, InternalError
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Function, Value
from aot.ir.states import StateVariable, state_variables
from aot.ir.types import TensorType
from aot.link.image import Growth
from aot.link.rodata import ALIGNMENT

_MOST_STRIDE_BYTES = (1 << 32) - 1


@dataclass(frozen=True)
class Length:
    """A scalar that the runtime keeps between runs: the length of growing variables.

    Attributes:
        names: the variables, which grow alike.
        symbol, following: the extent before the run, and before the next one.
    """

    names: tuple[str, ...]
    symbol: DimExpr
    following: Dim


@dataclass(frozen=True)
class Kept:
    """The memory of a state variable.

    Attributes:
        root: the value that its memory is the buffer_slice of.
        offset: of its memory in the arena, or of its first half.
        other: of the second half; None where there is one place only.
        made: the root that a run makes in the half that the next one reads; None where it is
            `copied` there at the end, or where there is one place only.
    """

    variable: StateVariable
    root: Value
    offset: int
    other: int | None = None
    made: Value | None = None
    copied: Value | None = None


@dataclass(frozen=True)
class States:
    """The state variables of a program and their memory.

    Attributes:
        bytes: at the start of the arena.
        growths: of the variables that grow in one place, which come last.
        slides: of those whose rows leave at their start, with what leaves at the end of a run.
    """

    kept: tuple[Kept, ...]
    lengths: tuple[Length, ...]
    bytes: int
    growths: tuple[Growth, ...] = ()
    slides: tuple[tuple[StateVariable, Growth], ...] = ()

    @property
    def has_halves(self) -> bool:
        """Whether any state alternates between two halves of memory, of which a scalar names the
        current one."""
        return any(k.other is not None for k in self.kept)

    @property
    def count(self) -> int:
        """The number of scalars kept between runs: the lengths, and one for the current half if
        there are halves.
        """
        return len(self.lengths) + self.has_halves

    @property
    def roots(self) -> set[Value]:
        """Root values whose memory is that of a state."""
        return {v for k in self.kept for v in (k.root, k.made) if v is not None}


def states_of(function: Function, assignment: BufferAssignment) -> States:
    """Places the state variables of a function.

    Raises:
        CompileError: one has an extent that is symbolic and doesn't grow.
    """
    assigned = _assigned(function, assignment)
    kept: list[Kept] = []
    taken: set[Value] = set()
    variables = state_variables(function)
    appended = {
        variable.name
        for variable in variables
        if variable.axis is not None
        and (
            variable.name not in assigned
            or _is_in_place(assignment, variable.name, assigned[variable.name])
        )
    }
    end = 0
    for variable in sorted(variables, key=lambda v: v.name in appended):
        size = variable.type.bytes
        if not isinstance(size, int):
            raise CompileError(
                f"state {variable.name!r} is {variable.type}: only the dim that grows can be "
                f"symbolic; bind the others with --input-shape"
            )
        root, present = assignment.states[variable.name], assigned.get(variable.name)
        stride = -(-size // ALIGNMENT) * ALIGNMENT
        if present is None or _is_in_place(assignment, variable.name, present):
            kept.append(Kept(variable, root, end))
            end += stride
            continue
        state = assignment.assigned[variable.name].operands[0]
        assert state is not None
        _check_layout(variable, state.type, present.type)
        made = _made(function, assignment, present)
        if made is None or made in taken:
            _check_copy(variable, present.type)
            kept.append(Kept(variable, root, end, end + stride, None, present))
        else:
            taken.add(made)
            kept.append(Kept(variable, root, end, end + stride, made))
        end += 2 * stride
    lengths = _lengths(kept)
    growths, slides = [], []
    for item in kept:
        if item.variable.name in appended:
            growths.append(_growth(item, lengths))
        if item.variable.leaving != 0:
            if item.variable.name not in appended:
                raise InternalError(
                    f"state {item.variable.name!r} has a window and is not in place"
                )
            slides.append((item.variable, growths[-1]))
    return States(tuple(kept), lengths, end, tuple(growths), tuple(slides))


def _growth(kept: Kept, lengths: Sequence[Length]) -> Growth:
    variable = kept.variable
    assert variable.axis is not None
    outer, inner = variable.dims[: variable.axis], variable.dims[variable.axis + 1 :]
    blocks, row = (prod(TensorType(variable.dtype, part).shape) for part in (outer, inner))
    row_bytes = row * variable.dtype.bytes
    if blocks == 0 or row_bytes == 0:
        blocks, row_bytes = 0, 1
    stride_bytes = variable.capacity * row_bytes
    if stride_bytes > _MOST_STRIDE_BYTES:
        raise CompileError(
            f"state {variable.name!r}: {variable.capacity} rows of {row_bytes} bytes are "
            f"{stride_bytes} in one piece, at most {_MOST_STRIDE_BYTES} expected"
        )
    scalar = next(n for n, length in enumerate(lengths) if variable.name in length.names)
    return Growth(kept.offset, blocks, stride_bytes, row_bytes, scalar, variable.window)


def _is_in_place(assignment: BufferAssignment, name: str, present: Value) -> bool:
    """Whether the value assigned to a variable is the variable's own memory, in the same layout."""
    buffer_slice, state = assignment.of(present), assignment.assigned[name].operands[0]
    is_there = buffer_slice.root is assignment.states[name] and buffer_slice.offset_bytes == 0
    return is_there and state is not None and _has_same_layout(present.type, state.type)


def _has_same_layout(one: TensorType, other: TensorType) -> bool:
    return canonical(one).layout == canonical(other).layout


def _assigned(function: Function, assignment: BufferAssignment) -> dict[str, Value]:
    """The value of each state variable after a run, by name."""
    found: dict[str, Value] = {}
    names = {op: name for name, op in assignment.assigned.items()}
    for op in function.block:
        if op in names:
            present = op.operands[1]
            assert present is not None
            found[names[op]] = _as_written(assignment, found, present)
        elif found and (is_dispatch(op) or op.blocks):
            for value in nested_operands(op):
                if _as_written(assignment, found, value) is not value:
                    raise InternalError(f"{op} reads a state variable behind its assign")
    return found


def _as_written(assignment: BufferAssignment, written: Mapping[str, Value], value: Value) -> Value:
    """The value that reads of `value` give after variables are written: the assigned value if it
    aliases a variable.
    """
    buffer_slice = assignment.of(value)
    for name, present in written.items():
        if assignment.states[name] is buffer_slice.root and not _is_in_place(
            assignment, name, present
        ):
            if buffer_slice.offset_bytes != 0 or present.type != value.type:
                raise InternalError(f"{value} is a part of a state variable that is assigned")
            return present
    return value


def at_the_end(function: Function, assignment: BufferAssignment) -> list[Value]:
    """The function's results at its end, where reads of assigned state variables give the assigned
    values."""
    written = _assigned(function, assignment)
    return [_as_written(assignment, written, v) for v in function.results]


def _made(function: Function, assignment: BufferAssignment, present: Value) -> Value | None:
    """The root of an assigned value if the function's top block can compute it anywhere in the
    arena; else None."""
    buffer_slice = assignment.of(present)
    root = buffer_slice.root
    is_whole = buffer_slice.offset_bytes == 0 and root.type.bytes == present.type.bytes
    if buffer_slice.binding != ARENA or not is_whole or root.op is None:
        return None
    is_other = root in assignment.states.values()
    is_top = root.op.parent is function.block
    return root if is_top and not is_other and assignment.is_made(root) else None


def _check_layout(variable: StateVariable, state: TensorType, present: TensorType) -> None:
    if not _has_same_layout(present, state):
        raise InternalError(
            f"state {variable.name!r} is {state} and {present} is assigned to it: another "
            "layout must be copied by a dispatch"
        )


def _check_copy(variable: StateVariable, present: TensorType) -> None:
    if not is_contiguous(present):
        raise InternalError(
            f"state {variable.name!r}: {present} is assigned to it, which has gaps and is not made "
            f"by the function: it must be copied by a dispatch"
        )


def is_contiguous(type: TensorType) -> bool:
    """Whether a value's elements have no gaps between them, so that its bytes can be copied as a
    block."""
    layout = canonical(type).layout
    return layout is None or not layout.strides


def _lengths(kept: list[Kept]) -> tuple[Length, ...]:
    found: dict[tuple[Dim, Dim], list[str]] = {}
    for item in kept:
        length, following = item.variable.length, item.variable.kept_length
        if length is not None and following is not None:
            found.setdefault((length, following), []).append(item.variable.name)
    return tuple(
        Length(tuple(names), length, following)
        for (length, following), names in found.items()
        if isinstance(length, DimExpr)
    )
