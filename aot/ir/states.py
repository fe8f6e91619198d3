"""The state variables of a function, derived from its ops: types, and how their lengths change.

What the interpreter keeps between runs and what a program declares is one reading. Changes nothing,
and knows no model: the pass bind-state is what makes states.
"""

from __future__ import annotations

from aot.base.records import dataclass
from aot.ir import dims as extents
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Function, Op
from aot.ir.types import DType, Layout, TensorType

SLIDE_ROWS = 128  # a window's rows move by a multiple of so many
REWIND_ROWS = 64  # stay before a window at least, so that a program can be rewound by as many


@dataclass(frozen=True)
class StateVariable:
    """Memory that is kept between runs, initially zero.

    Attributes:
        dims: of all of its memory: a growing one has its capacity along `axis`.
        layout: of a fixed state; a growing one is dense at its capacity.
        axis: the dim that grows; None for a fixed one.
        length: a growing one's extent along `axis` before a run, a symbol that only it gives;
            None for a fixed one.
        next_length: the same after the run; `length` if the function never assigns it.
        window: of a growing one of which the last rows count only: so many, which a run reads, and
            REWIND_ROWS more at least stay when earlier ones leave it after a run. 0 where all stay.
    """

    name: str
    dtype: DType
    dims: tuple[Dim, ...]
    layout: Layout | None = None
    axis: int | None = None
    length: DimExpr | None = None
    next_length: Dim | None = None
    window: int = 0

    @property
    def capacity(self) -> int:
        """The largest extent along `axis`; 0 for a fixed state."""
        return 0 if self.axis is None else int(self.dims[self.axis])

    @property
    def type(self) -> TensorType:
        """The type of the state's whole memory."""
        return TensorType(self.dtype, self.dims, self.layout)

    @property
    def leaving(self) -> Dim:
        """The number of rows dropped at the state's start after a run: a multiple of SLIDE_ROWS, so
        that the other rows are moved only once in that many rows.
        """
        if not self.window or self.next_length is None:
            return 0
        spare = extents.maximum(extents.add(self.next_length, -self.window - REWIND_ROWS), 0)
        return extents.multiply(extents.floor_divide(spare, SLIDE_ROWS), SLIDE_ROWS)

    @property
    def kept_length(self) -> Dim | None:
        """The extent at the start of the next run: `next_length` minus the dropped rows."""
        if self.next_length is None:
            return None
        return extents.add(self.next_length, extents.multiply(self.leaving, -1))

    def full_message(self, needed: int | str) -> str:
        """The error message of a run that would exceed the state's capacity."""
        return (
            f'state "{self.name}" holds at most {self.capacity} of {needed} along dim '
            f"{self.axis}; reset the program"
        )


def state_variables(function: Function) -> list[StateVariable]:
    """The function's state variables, in the order of their first ops."""
    ops: dict[str, list[Op]] = {}
    for op in function.walk():
        if op.record.is_state:
            ops.setdefault(str(op.attrs["variable"]), []).append(op)
    return [_variable(name, found) for name, found in ops.items()]


def _variable(name: str, ops: list[Op]) -> StateVariable:
    types = [op.result.type for op in ops]
    length = ops[0].attrs["length"]
    capacity, axis, window = (ops[0].int(name) for name in ("capacity", "axis", "window"))
    if not isinstance(length, DimExpr):
        return StateVariable(name, types[0].dtype, types[0].dims, types[0].layout)
    assigned = [op.result.type.dims[axis] for op in ops if _is_assigned(op)]
    dims = tuple(capacity if d == axis else dim for d, dim in enumerate(types[0].dims))
    following = assigned[-1] if assigned else length
    return StateVariable(name, types[0].dtype, dims, None, axis, length, following, window)


def _is_assigned(op: Op) -> bool:
    return any(number in user.record.writes for user, number in op.result.uses)
