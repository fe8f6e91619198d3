"""What layout propagation asks and is told: operands behind index maps, and how an op runs on them.

Owns the types; the rules, by family, are in aot/ops/layout_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union

from aot.ir.dims import Dim
from aot.ir.graph import Attr
from aot.ir.index_map import IndexMap
from aot.ir.types import TensorType

if TYPE_CHECKING:
    from aot.ir.record import Call

IDENTITY = IndexMap()


@dataclass(frozen=True)
class MappedOperand:
    """How an operand will be had: its element i is `source[map(i)]`.

    Attributes:
        type: the source's, whose dtype and layout may differ from the operand's too.
        map: from the source to the operand.
        is_constant: moving its elements costs nothing at run time.
    """

    type: TensorType
    map: IndexMap = IDENTITY
    is_constant: bool = False

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The operand's."""
        return self.map.result_dims(self.type.dims)

    @property
    def rank(self) -> int:
        return len(self.dims)


@dataclass(frozen=True)
class Propagated:
    """How an op runs on the sources of its operands.

    Attributes:
        operands: the map that each operand's source goes through first; absent operands have the
            identity.
        results: the map through which each old result is seen in the new one.
        attrs: attributes that change.
        is_gone: the op is not needed: its result is operand 0's source seen through `results[0]`.
        moves: the results are elements of the operands, whatever their dtype.
    """

    operands: tuple[IndexMap, ...]
    results: tuple[IndexMap, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    is_gone: bool = False
    moves: bool = False


Operands = Sequence[Union[MappedOperand, None]]
LayoutRule = Callable[["Call", Operands], Union[Propagated, None]]
