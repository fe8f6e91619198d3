"""Lowering rules, by name: each turns one kind of loop nest, or one op as a whole, into loops.

Owns the form alone. `table.py` has the rules, and the order in which they are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aot.base.records import dataclass
from aot.ir.graph import Function, Op, Value
from aot.ir.record import Kind, OpRecord
from aot.ir.schedule import Schedule, StageSchedule
from aot.kernels.ir.nodes import Buffer
from aot.kernels.match.work import Build, Loops, Work
from aot.kernels.nest.inline import stored
from aot.kernels.nest.nest import Nest


@dataclass(frozen=True)
class Rule:
    """A named way to build the loops of a nest, with the schedule classes that it serves.

    Attributes:
        name: printed in an executable's text and reports, such as "windows/pools".
        classes: the plan's schedule classes that the rule may serve.
        match: the builder of a nest's loops; None where the rule does not apply.
    """

    name: str
    classes: frozenset[Schedule]
    match: Callable[[Work], Build | None]


@dataclass(frozen=True)
class OpWork:
    """An executable around an op that is lowered as a whole, as no scalar expression computes it.

    Attributes:
        nest: what it is built from, for a target.
        function: the executable: the op, and what is done with its results.
        buffers: of the op's operands.
        outputs: of the executable's results.
        plan: the class and the tiles that are recorded of it.
    """

    nest: Nest
    function: Function
    op: Op
    buffers: Mapping[Value, Buffer]
    outputs: Sequence[Buffer]
    plan: StageSchedule

    @property
    def results(self) -> list[Buffer | None]:
        """The stored buffer of each of the op's results; None for a result that nothing reads."""
        pairs = zip(self.function.results, self.outputs, strict=True)
        by_value = {stored(value): buffer for value, buffer in pairs}
        return [by_value.get(v) for v in self.op.results]


@dataclass(frozen=True)
class OpRule:
    """A named way to build the loops of an op that is lowered as a whole.

    Attributes:
        name: as that of a `Rule`.
        kind: of the ops that it builds.
        build: their loops.
        record: the one op that it builds, where it is not for all of the kind.
    """

    name: str
    kind: Kind
    build: Callable[[OpWork], Loops]
    record: OpRecord | None = None
