"""Where each value of a program lives: which of the four buffers, and whose memory.

A view lives where its operand lives. Changes nothing and places nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aot.errors import InternalError
from aot.ir.core import Function, Value
from aot.ops.structure import CONSTANT

CONSTANTS, ARENA, INPUTS, OUTPUTS = range(4)  # BufferClass of module.fbs


@dataclass(frozen=True)
class Home:
    """Attributes:
    root: the value whose memory this is: a constant, an input, or a dispatch's result.
    binding: the buffer class.
    output: which output of the function the memory is, for OUTPUTS.
    """

    root: Value
    binding: int
    output: int = -1


class Homes:
    """The homes of a function's top-level values, found on demand."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._claimed: dict[Value, int] = {}
        for number, value in enumerate(function.results):
            root = root_of(value)
            is_computed = root.op is not None and root.op.record is not CONSTANT
            if is_computed and root not in self._claimed:
                self._claimed[root] = number

    def of(self, value: Value) -> Home:
        """The home of `value`."""
        root = root_of(value)
        if root in self._claimed:
            return Home(root, OUTPUTS, self._claimed[root])
        if root.op is None:
            return Home(root, INPUTS)
        if root.op.record is CONSTANT:
            return Home(root, CONSTANTS)
        return Home(root, ARENA)

    def bindings(self, values: Sequence[Value]) -> tuple[int, ...]:
        """Buffer classes of `values`."""
        return tuple(self.of(v).binding for v in values)


def root_of(value: Value) -> Value:
    """The value whose bytes `value` is: follows views to what they look at."""
    while value.op is not None and value.op.record.view_of is not None:
        source = value.op.operands[value.op.record.view_of]
        if source is None:
            raise InternalError(f"{value.op} is a view of an absent operand")
        value = source
    return value
