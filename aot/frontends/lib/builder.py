"""The `GraphBuilder` protocol: the methods that shared decompositions call on an importer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from aot.analysis.dim_values import DimValues
from aot.errors import CompileError
from aot.ir.dims import Dim
from aot.ir.graph import Attr, Value
from aot.ir.types import Array, DType


class UnsupportedNodeError(Exception):
    """The node is right, but we don't have what it needs; the text is the reason."""


Operand = Value | float | None
"""Of an op: absent, a value, or a number, which becomes a constant of `number_dtype`."""


class GraphBuilder(Protocol):
    """Makes ops in the place of one node of a model, with its name as their origin.

    Attributes:
        values: what is known of integer values at compile time.
    """

    values: DimValues

    def emit(self, op: str, *operands: Operand, **attrs: Attr) -> Value:
        """The only result of a new op."""

    def emit_all(self, op: str, *operands: Operand, **attrs: Attr) -> list[Value]:
        """The results of a new op, whose numbers have the type that its values have.

        Raises:
            UnsupportedNodeError: our op does not take an element type that the model's does.
        """

    def constant(self, array: Array) -> Value:
        """A constant with the elements of `array`."""

    def scalar(self, value: float | int | bool, dtype: DType) -> Value:
        """A constant of rank 0."""

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        """`x` under other dims; itself where they are the same."""

    def cast(self, x: Value, dtype: DType) -> Value:
        """`x` with elements of another type; itself where it is the same."""

    def check_computed(self, elements: int, what: str) -> None:
        """Raises a CompileError if a table of `elements` elements is too large to compute at
        import.
        """

    def error(self, message: str) -> CompileError:
        """The user's model is wrong in this node, which the error names."""


def number_dtype(operands: Iterable[object]) -> DType:
    """The element type of the numbers among an op's operands: that of the first value that is no
    truth; bool where there is none."""
    dtypes = (v.type.dtype for v in operands if isinstance(v, Value))
    return next((dtype for dtype in dtypes if dtype is not DType.BOOL), DType.BOOL)


def static_extents(extents: Sequence[Dim], what: str) -> tuple[int, ...]:
    """The extents as ints.

    Raises:
        UnsupportedNodeError: one of them is not known at compile time.
    """
    found = tuple(n for n in extents if isinstance(n, int))
    if len(found) != len(extents):
        raise UnsupportedNodeError(f"{what} that depends on the input's shape is not supported")
    return found
