"""The table of PyTorch ops, and `Node`, an entry's view of a node.

An op more is one entry more: a function from a Node and the op's arguments, in the order of its
schema, to values. Arguments are values, dims, numbers, texts, lists of these, or None. An op that
has an entry is kept whole when torch decomposes a graph. Knows torch by the names of its ops only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Union

import numpy as np

from aot.analysis.dim_values import DimValues
from aot.base.records import dataclass
from aot.errors import CompileError
from aot.frontends.lib.builder import (
    UnsupportedNodeError as UnsupportedNodeError,  # noqa: PLC0414 - entries import it from here
)
from aot.frontends.lib.builder import number_dtype
from aot.frontends.lib.place import Place
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Value
from aot.ir.rewriter import Rewriter
from aot.ir.types import DType, TensorType


@dataclass(frozen=True)
class Complex:
    """A complex tensor, as two real tensors with equal dims."""

    real: Value
    imaginary: Value


Number = Union[int, float, bool]
Operand = Union[Value, DimExpr, int, float, bool]  # a tensor, or a number beside one
Results = Union[Operand, Complex, Sequence[Union[Operand, None]]]
Build = Callable[..., Results]

TABLE: dict[str, Build] = {}
COMPLEX: dict[str, Build] = {}  # the same of ops that take or make complex tensors


_B = TypeVar("_B", bound=Build)


def torch_op(*names: str) -> Callable[[_B], _B]:
    """Registers the entry of ops, each named as torch prints it: `aten.add.Tensor`."""

    def register(build: _B) -> _B:
        for name in names:
            if name in TABLE:
                raise ValueError(f"there are two entries for {name}")
            TABLE[name] = build
        return build

    return register


def complex_op(*names: str) -> Callable[[_B], _B]:
    """Registers the entry of ops in which an operand or the result is complex."""

    def register(build: _B) -> _B:
        COMPLEX.update(dict.fromkeys(names, build))
        return build

    return register


def is_kept(name: str) -> bool:
    """Whether an op has an entry, so that it need not be decomposed."""
    return name in TABLE or name in COMPLEX


def supported_ops() -> list[str]:
    """The ops that can be imported as they are, sorted."""
    return sorted({*TABLE, *COMPLEX})


@dataclass
class Node(Place):
    """One node of an exported graph as its entry sees it; a GraphBuilder of `aot.frontends.lib` at
    its place.

    Attributes:
        op: as torch prints it.
        types: of the node's results, as torch has found them; None for those that are no tensors,
            or that have an element type or a dim that we don't have.
        wanted: the numbers of the results that something reads.
        seed: what decides random tensors, with the node's name.
    """

    op: str
    label: str
    types: Sequence[TensorType | None]
    wanted: frozenset[int]
    rewriter: Rewriter
    values: DimValues
    seed: int = 0

    @property
    def type(self) -> TensorType:
        """The type of the first result."""
        found = self.types[0] if self.types else None
        if found is None:
            raise UnsupportedNodeError("the type of its result is not supported")
        return found

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dims of the first result."""
        return self.type.dims

    @property
    def dtype(self) -> DType:
        """The element type of the first result."""
        return self.type.dtype

    def __call__(self, op: str, *operands: Operand | None, **attrs: Any) -> Value:
        """The result of an op on values and numbers, including extents."""
        dtype = number_dtype(operands)
        taken = (self.value(v, dtype) if isinstance(v, DimExpr) else v for v in operands)
        return self.emit(op, *taken, **attrs)

    def value(self, operand: Operand, dtype: DType | None = None) -> Value:
        """An operand as a tensor, cast to `dtype` unless that is None."""
        if isinstance(operand, Value):
            return operand if dtype is None else self.cast(operand, dtype)
        if isinstance(operand, DimExpr):
            made = self.reshape(self.emit("dim_values", dims=(operand,)), ())
            return made if dtype is None else self.cast(made, dtype)
        return self.scalar(operand, dtype or default_dtype(operand))

    def broadcast(self, x: Value, shape: Sequence[Dim]) -> Value:
        """`x` broadcast to `shape`; `x` itself if it has these dims."""
        return (
            x if x.type.dims == tuple(shape) else self.emit("broadcast_to", x, shape=tuple(shape))
        )

    def wants(self, index: int) -> bool:
        """Whether a result is used."""
        return index in self.wanted

    def error(self, message: str) -> CompileError:
        """An error in the user's model at this node."""
        return CompileError(f"{self.op} (node {self.label!r}): {message}")


def default_dtype(number: Number) -> DType:
    """The dtype of the tensor that a Python number becomes."""
    if isinstance(number, bool):
        return DType.BOOL
    return DType.I64 if isinstance(number, int) else DType.F32


_FLOAT, _INTEGER, _BOOL = 2, 1, 0


def _category(dtype: DType) -> int:
    return _FLOAT if dtype.is_float else _INTEGER if dtype.is_integer else _BOOL


def _wider(a: DType, b: DType) -> DType:
    """As torch.promote_types: floats win over integers, whatever their widths."""
    if _category(a) != _category(b):
        return a if _category(a) > _category(b) else b
    return DType.of(np.promote_types(a.numpy, b.numpy))


def promoted(*operands: Operand) -> DType:
    """As torch.result_type: tensors with dims take precedence over those without, which take
    precedence over numbers; an operand of lower precedence counts only if its category (bool,
    integer, float) is higher.
    """
    found: DType | None = None
    by_weight: list[list[DType]] = [[], [], []]
    for operand in operands:
        if isinstance(operand, Value):
            by_weight[0 if operand.type.rank else 1].append(operand.type.dtype)
        else:
            by_weight[2].append(
                DType.I64 if isinstance(operand, DimExpr) else default_dtype(operand)
            )
    for dtypes in by_weight:
        own: DType | None = None
        for dtype in dtypes:
            own = dtype if own is None else _wider(own, dtype)
        if own is not None and (found is None or _category(own) > _category(found)):
            found = own
    assert found is not None
    return found
