"""Estimates the cost of recomputing a value in each pass over a row, compared with storing it once.

Prices are of one element, in loads of neighbours, on a CPU: a pure function of ops and target that
fusion asks. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.analysis.accesses import Accesses, accesses_of
from aot.base.records import dataclass
from aot.ir.dims import product
from aot.ir.expr import TRANSCENDENTAL_OPS, Binary, Expr, Unary
from aot.ir.graph import Op
from aot.ir.record import Kind
from aot.target.model import Target

# Of storing an element in memory, in loads: a line that is written is read before. Of an op without
# an instruction, and of a division or a root.
STORE, POLYNOMIAL, SLOW = 2, 20, 4
_SLOW_OPS = ("div", "sqrt", "floordiv", "floormod")


@dataclass(frozen=True)
class Prices:
    """The costs of an operand's element, if recomputed in its user or stored by a dispatch of its
    own.

    Attributes:
        passes: how often the user's loops read an element.
        inline: cost of computing it in the user: in each pass, or in the first of those that share
            scratch.
        apart: cost of a dispatch that stores it, and of loading it in each pass.
    """

    passes: int
    inline: int
    apart: int

    def __str__(self) -> str:
        return (
            f"in {self.passes} passes over a row an element costs {self.inline} computed there, "
            f"{self.apart} stored and loaded"
        )


def operation_cost(e: Expr) -> int:
    """The cost of an operation without its operands, in loads of contiguous elements or vector
    instructions.
    """
    if not isinstance(e, (Unary, Binary)):
        return 1
    if e.op in TRANSCENDENTAL_OPS:
        return POLYNOMIAL
    return SLOW if e.op in _SLOW_OPS else 1


def is_kept(cost: int, again: int) -> bool:
    """Whether storing a row's value in scratch pays: computing it costs `cost`, and `again` later
    passes read it.
    """
    return cost * again > 1 + again


def recompute_prices(
    producer: Sequence[Op], inputs: int, user: Op, operand: int, target: Target
) -> Prices:
    """The costs of computing a reduction's operand in the reduction's loads, or separately.

    Args:
        producer: the ops that compute the operand.
        inputs: values as large as it that they read.
        operand: its number in `user`.
    """
    elementwise = [op for op in producer if op.record.kind is Kind.ELEMENTWISE]
    cost = inputs + sum(1 if op.record.is_cheap else POLYNOMIAL for op in elementwise)
    found = accesses_of(user)[0]
    passes = len({read.axes for read in found.of(operand)})
    again = passes - 1
    is_stored = is_kept(cost, again) and _may_keep(found, user, target)
    inline = cost + 1 + again if is_stored else cost * passes
    return Prices(passes, inline, cost + STORE + passes)


def _may_keep(found: Accesses, user: Op, target: Target) -> bool:
    """Whether scratch can hold a row of the user's reductions."""
    rows = {product([found.extents[v] for v in r.axes]) for r in found.reductions}
    bytes = max(user.result.type.dtype.bytes, 4)
    return all(isinstance(n, int) and n * bytes <= target.scratch_bytes for n in rows)
