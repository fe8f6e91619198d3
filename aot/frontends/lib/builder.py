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
    """A valid node that needs something unsupported; the text is the reason."""


Operand = Value | float | None
"""Of an op: absent, a value, or a number, which becomes a constant of `number_dtype`."""


class GraphBuilder(Protocol):
    """Creates ops for one node of a model, with the node's name as their origin.

    Attributes:
        values: what is known of integer values at compile time.
    """

    values: DimValues

    def emit(self, op: str, *operands: Operand, **attrs: Attr) -> Value:
        """The only result of a new op."""

    def emit_all(self, op: str, *operands: Operand, **attrs: Attr) -> list[Value]:
        """The results of a new op; numbers among the operands take the dtype of its values.

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
        """An error in the user's model at this node, which its text names."""


def number_dtype(operands: Iterable[object]) -> DType:
    """The dtype for plain numbers among an op's operands: that of the first value that is not bool;
    bool if there is none."""
    dtypes = (v.type.dtype for v in operands if isinstance(v, Value))
    return next((dtype for dtype in dtypes if dtype is not DType.BOOL), DType.BOOL)


def static_extents(extents: Sequence[Dim], what: str) -> tuple[int, ...]:
    """The extents as ints; an error if one is symbolic.

    Raises:
        UnsupportedNodeError: one of them is not known at compile time.
    """
    found = tuple(n for n in extents if isinstance(n, int))
    if len(found) != len(extents):
        raise UnsupportedNodeError(f"{what} that depends on the input's shape is not supported")
    return found
