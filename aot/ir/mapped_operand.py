"""Types of layout propagation: operands behind index maps, and how an op runs on their sources.

Owns the types; the rules, by family, are in aot/ops/layout_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Union

from aot.base.records import dataclass
from aot.ir.dims import Dim
from aot.ir.graph import Attr
from aot.ir.index_map import IndexMap
from aot.ir.types import TensorType

if TYPE_CHECKING:
    from aot.ir.record import Call

IDENTITY = IndexMap()


@dataclass(frozen=True)
class MappedOperand:
    """An operand as an index map of its source: its element i is `source[map(i)]`.

    Attributes:
        type: of the source; its dtype and layout may differ from the operand's too.
        map: from the source to the operand.
        is_constant: whether it is a constant, whose elements are moved at no cost at run time.
    """

    type: TensorType
    map: IndexMap = IDENTITY
    is_constant: bool = False

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dims of the operand."""
        return self.map.result_dims(self.type.dims)

    @property
    def rank(self) -> int:
        return len(self.dims)


@dataclass(frozen=True)
class Propagated:
    """How an op runs on the sources of its operands.

    Attributes:
        operands: the map to apply to the source of each operand before the op reads it; the
            identity for absent operands.
        results: the map from each new result to the old one.
        attrs: attributes that change.
        is_removed: whether the op is removed, because its result is `results[0]` of operand 0's
            source.
        moves: whether the results are elements of the operands, whatever their dtype.
    """

    operands: tuple[IndexMap, ...]
    results: tuple[IndexMap, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    is_removed: bool = False
    moves: bool = False


Operands = Sequence[Union[MappedOperand, None]]
LayoutRule = Callable[["Call", Operands], Union[Propagated, None]]
