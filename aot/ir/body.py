"""How an op runs its blocks: block arguments, yielded values, and the number of iterations.

The one description that verifier, builder, interpreter and alias analysis follow, so that none of
them knows an op with blocks by its name. Owns no op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aot.base.records import dataclass
from aot.ir.dims import DimExpr
from aot.ir.graph import Op, Value
from aot.ir.types import TensorType

if TYPE_CHECKING:
    from aot.ir.record import Call


@dataclass(frozen=True)
class Body:
    """A description of how an op runs its blocks.

    A block's arguments are `given`, then one an operand from number `first` on (the *carried*
    ones). It yields `steering`, then what the op's results are.

    Attributes:
        kind: "once": the one block runs once. "choice": the first of two blocks runs where
            operand 0 is true, else the second. "loop": the one block runs any number of times,
            zero included; its carried results are the next run's arguments, and after the last run
            the op's results; what it yields beyond them is stacked along a dim of its own.
        is_isolated: the blocks see their arguments and nothing else.
        first: the first operand that becomes an argument.
        given: types of arguments that the op itself makes.
        steering: types of yielded values that only the op sees.
        stack_dim: the attribute with the extent of what is stacked.
    """

    kind: str
    is_isolated: bool = False
    first: int = 0
    given: tuple[TensorType, ...] = ()
    steering: tuple[TensorType, ...] = ()
    stack_dim: str = ""

    @property
    def block_count(self) -> int:
        return 2 if self.kind == "choice" else 1

    @property
    def is_loop(self) -> bool:
        return self.kind == "loop"

    def argument_types(self, call: Call) -> tuple[TensorType, ...]:
        """The types that each block's arguments must have."""
        carried = [t for t in call.operands[self.first :] if t is not None]
        return (*self.given, *carried)

    def result_types(self, call: Call, yielded: Sequence[TensorType]) -> list[TensorType]:
        """The op's result types, given the types that one block yields.

        Raises:
            CompileError: it does not yield what the op needs.
        """
        count = len(self.steering)
        if tuple(yielded[:count]) != self.steering:
            wanted = ", ".join(map(str, self.steering))
            found = ", ".join(map(str, yielded[:count])) or "nothing"
            raise call.error(f"the block must yield {wanted} first, it yields {found}")
        results = list(yielded[count:])
        if not self.is_loop:
            return results
        carried = call.operands[self.first :]
        if len(results) < len(carried):
            raise call.error(
                f"the block must yield {len(carried)} carried values, it yields {len(results)}"
            )
        return [t if n < len(carried) else self._stacked(call, t) for n, t in enumerate(results)]

    def _stacked(self, call: Call, type: TensorType) -> TensorType:
        extent = call.attrs[self.stack_dim]
        if not isinstance(extent, (int, DimExpr)) or extent == -1:
            raise call.error(f"values are stacked, which needs attribute {self.stack_dim}")
        if type.layout is not None:
            raise call.error(f"a stacked value must be dense, found {type}")
        return TensorType(type.dtype, (extent, *type.dims))

    def entering(self, op: Op, number: int) -> list[Value] | None:
        """The values of which argument `number` of a block of `op` is one; None if the op itself
        computes it."""
        carried = number - len(self.given)
        if carried < 0:
            return None
        found = [op.operands[self.first + carried]]
        if self.is_loop:
            found += self._yielded(op, len(self.steering) + carried)
        return [v for v in found if v is not None]

    def leaving(self, op: Op, number: int) -> list[Value] | None:
        """The values of which result `number` of `op` is one when its blocks have run; None if the
        op itself computes it."""
        carried = self.first + number
        found: list[Value | None] = []
        if self.is_loop:
            if carried >= len(op.operands):
                return None
            found.append(op.operands[carried])  # where it runs zero times
        found += self._yielded(op, len(self.steering) + number)
        return [v for v in found if v is not None]

    @staticmethod
    def _yielded(op: Op, number: int) -> list[Value | None]:
        """The values that the blocks yield at position `number`; unfinished blocks are skipped."""
        ends = [b.last for b in op.blocks if b.last is not None and b.last.record.is_terminator]
        return [end.operands[number] for end in ends if number < len(end.operands)]
