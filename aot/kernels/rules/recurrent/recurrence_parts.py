"""Records that the loops of a recurrent layer share: terms of the gates' sums, their registers, and
the position of a step."""

from __future__ import annotations

from collections.abc import Callable

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.expr import Expr, Load
from aot.ir.graph import Value
from aot.kernels.ir.nodes import Scratch, Stmt

Add = Callable[[Expr, Expr, Expr, "At"], Stmt]
"""What is done of a row of sums, a panel, and a lane, of a sequence at a step."""


@dataclass(frozen=True)
class Term:
    """A term of the gates' sums: `scalar(k) * weight[gate, k]`, summed over k."""

    weight: Value
    extent: dims.Dim
    scalar: Callable[[Expr, At], Expr]


@dataclass(frozen=True)
class Rows:
    """The registers that hold the gates' sums of some units: rows of `acc` from `first`.

    Attributes:
        apart: how many rows further those over the state are; 0 where they are in the same sums.
    """

    acc: Scratch
    first: int
    apart: int
    lane: Expr | None = None

    def input(self, gate: int) -> Expr:
        assert self.lane is not None
        return Load(self.acc, (expr.index(self.first + gate), self.lane), self.acc.dtype)

    def around(self, gate: int) -> Expr:
        return self.input(gate + self.apart)


@dataclass(frozen=True)
class At:
    """The position of a step: direction, sequence and time.

    Attributes:
        t: the step's place in x and y.
        is_there: whether the sequence is so long; None where all are.
        slot: the sequence's number among those of a workgroup.
    """

    d: Expr
    b: Expr
    t: Expr
    is_there: Expr | None
    slot: Expr
