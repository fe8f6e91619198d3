"""The twin of an executable whose `spread` ops repeat nothing, which is how most runs are.

A kernel of open dims that may broadcast has both versions: loops of the twin read memory as it
stands, those of the executable find each element by a minimum. Builds no loops.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.ir.clone import clone_block, clone_function
from aot.ir.compare import map_attr_dims
from aot.ir.dims import Dim, DimExpr, maximum, substitute, symbol, symbols
from aot.ir.equalities import difference
from aot.ir.graph import Function
from aot.ir.types import TensorType
from aot.ops.movement import SPREAD


def equal_twin(function: Function) -> tuple[Function, Dim] | None:
    """(the executable for dims that are all equal where they meet, a dim that is 0 if they are and
    positive if not); None if it has no open dims that repeat."""
    wider: dict[str, Dim] = {}
    rooms: list[Dim] = []
    for op in function.walk():
        x = op.operands[0] if op.record is SPREAD else None
        if x is None:
            continue
        shape = op.result.type.dims
        for dim, wanted in zip(x.type.dims, shape[len(shape) - x.type.rank :], strict=True):
            if dim in (1, wanted):
                continue
            if not isinstance(dim, DimExpr) or dim != symbol(name := min(symbols(dim))):
                return None
            if wider.setdefault(name, wanted) != wanted or name in symbols(wanted):
                return None
            rooms += (difference(wanted, dim), difference(dim, wanted))  # 0 and 1 may meet, too
    if not rooms or any(symbols(dim) & wider.keys() for dim in wider.values()):
        return None
    made = _with_dims(function, lambda dim: substitute(dim, wider))
    # proofs need it of products, which follows from the factors
    spans = zip(made.inputs, function.inputs, strict=True)
    rooms += (difference(a.type.element_count, b.type.element_count) for a, b in spans)
    return made, maximum(0, *(room for room in rooms if room != 0))


def _with_dims(function: Function, map_dim: Callable[[Dim], Dim]) -> Function:
    """A copy of an executable with other dims."""

    def map_type(type: TensorType) -> TensorType:
        layout = type.layout and type.layout.map_dims(map_dim)
        return TensorType(type.dtype, tuple(map(map_dim, type.dims)), layout)

    made = clone_function(function)
    made.block = clone_block(
        function.block, {}, made, map_type, lambda attr: map_attr_dims(attr, map_dim)
    )
    made.block.owner = made
    return made
