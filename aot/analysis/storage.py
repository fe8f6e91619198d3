"""Where each value of a program lives: which of the four buffers, whose memory, and where in it.

A view lives where its operand lives; a part of an assembled value lives in that value's memory.
Changes nothing and places nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aot.analysis.views import is_view, map_of, view_offset
from aot.errors import InternalError
from aot.ir.core import Function, Op, Value
from aot.ir.dims import Dim, add, multiply
from aot.ops.selection import ASSEMBLE
from aot.ops.structure import CONSTANT

CONSTANTS, ARENA, INPUTS, OUTPUTS = range(4)  # BufferClass of module.fbs


@dataclass(frozen=True)
class Home:
    """Attributes:
    root: the value whose memory this is: a constant, an input, a dispatch's result, or what such
        results are assembled to.
    binding: the buffer class.
    output: which output of the function the memory is, for OUTPUTS.
    offset_bytes: where in the root's memory the value begins.
    """

    root: Value
    binding: int
    output: int = -1
    offset_bytes: Dim = 0


class Homes:
    """The homes of a function's top-level values, found on demand."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._places: dict[Value, tuple[Value, Dim]] = {}
        self._claimed: dict[Value, int] = {}
        for op in function.block:
            if op.record is ASSEMBLE:
                self._place_parts(op)
        for number, value in enumerate(function.results):
            root, offset = self._find(value)
            is_computed = root.op is not None and root.op.record is not CONSTANT
            if is_computed and offset == 0 and root.type.bytes == value.type.bytes:
                self._claimed.setdefault(root, number)

    def _place_parts(self, op: Op) -> None:
        for value, offset in zip(op.operands, part_offsets(op), strict=True):
            assert value is not None
            root, inner = root_of(value)
            if inner != 0 or root in self._places or root.op is None:
                raise InternalError(f"{op}: a part of it has no memory that could be in it")
            self._places[root] = op.result, multiply(offset, value.type.dtype.bytes)

    def _find(self, value: Value) -> tuple[Value, Dim]:
        root, offset = root_of(value)
        while root in self._places:
            root, more = self._places[root]
            offset = add(offset, more)
        return root, offset

    def of(self, value: Value) -> Home:
        """The home of `value`."""
        root, offset = self._find(value)
        if root in self._claimed:
            return Home(root, OUTPUTS, self._claimed[root], offset)
        if root.op is None:
            return Home(root, INPUTS, -1, offset)
        if root.op.record is CONSTANT:
            return Home(root, CONSTANTS, -1, offset)
        return Home(root, ARENA, -1, offset)

    def bindings(self, values: Sequence[Value]) -> tuple[int, ...]:
        """Buffer classes of `values`."""
        return tuple(self.of(v).binding for v in values)


def part_offsets(op: Op) -> list[Dim]:
    """Elements before each part of an assembled value, in its memory."""
    axis, type = op.attrs["axis"], op.result.type
    assert isinstance(axis, int)
    step = type.strides[axis]
    found: list[Dim] = []
    total: Dim = 0
    for value in op.operands:
        assert value is not None
        found.append(multiply(total, step))
        total = add(total, value.type.dims[axis])
    return found


def root_of(value: Value) -> tuple[Value, Dim]:
    """The value whose bytes `value` is, and the byte that it begins at: follows views to what they
    look at."""
    offset: Dim = 0
    while value.op is not None and is_view(value.op):
        map, source = map_of(value.op), value.op.operands[value.op.record.view_of or 0]
        if source is None:
            raise InternalError(f"{value.op} is a view of an absent operand")
        if map is not None:
            begin = view_offset(map, source.type)
            offset = add(offset, multiply(begin, source.type.dtype.bytes))
        value = source
    return value, offset
