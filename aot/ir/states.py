"""The state variables of a function, read from its ops: types, and how their lengths change.

What the interpreter keeps between runs and what a program declares is one reading. Changes nothing,
and knows no model: the pass bind-state is what makes states.
"""

from __future__ import annotations

from dataclasses import dataclass

from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Function, Op
from aot.ir.types import DType, Layout, TensorType


@dataclass(frozen=True)
class StateVariable:
    """Memory that is kept between runs, all zero at first.

    Attributes:
        dims: of all of its memory: a growing one has its capacity along `axis`.
        layout: of a fixed state; a growing one is dense at its capacity.
        axis: the dim that grows; None for a fixed one.
        length: a growing one's extent along `axis` before a run, a symbol that only it gives;
            None for a fixed one.
        next_length: the same after the run; `length` if the function never assigns it.
    """

    name: str
    dtype: DType
    dims: tuple[Dim, ...]
    layout: Layout | None = None
    axis: int | None = None
    length: DimExpr | None = None
    next_length: Dim | None = None

    @property
    def capacity(self) -> int:
        """The largest extent along `axis`; 0 for a fixed one."""
        dim = 0 if self.axis is None else self.dims[self.axis]
        assert isinstance(dim, int)
        return dim

    @property
    def type(self) -> TensorType:
        """The type of all of its memory."""
        return TensorType(self.dtype, self.dims, self.layout)

    def full_message(self, needed: int | str) -> str:
        """What a user reads where a run would need more than there is."""
        return (
            f'state "{self.name}" holds at most {self.capacity} of {needed} along dim '
            f"{self.axis}; reset the program"
        )


def state_variables(function: Function) -> list[StateVariable]:
    """The function's state variables, in the order in which their first ops stand."""
    ops: dict[str, list[Op]] = {}
    for op in function.walk():
        if op.record.is_state:
            ops.setdefault(str(op.attrs["variable"]), []).append(op)
    return [_variable(name, found) for name, found in ops.items()]


def _variable(name: str, ops: list[Op]) -> StateVariable:
    types = [op.result.type for op in ops]
    attrs = ops[0].attrs
    capacity, axis, length = attrs["capacity"], attrs["axis"], attrs["length"]
    assert isinstance(capacity, int) and isinstance(axis, int)
    if not isinstance(length, DimExpr):
        return StateVariable(name, types[0].dtype, types[0].dims, types[0].layout)
    assigned = [op.result.type.dims[axis] for op in ops if _is_assigned(op)]
    dims = tuple(capacity if d == axis else dim for d, dim in enumerate(types[0].dims))
    return StateVariable(
        name, types[0].dtype, dims, None, axis, length, assigned[-1] if assigned else length
    )


def _is_assigned(op: Op) -> bool:
    return any(number in user.record.writes for user, number in op.result.uses)
