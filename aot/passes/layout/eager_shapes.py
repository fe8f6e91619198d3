"""Eager propagation of shape changes (`--disable lazy-shapes`), for comparison: users are updated
at once.

After each pending change every user's shape rule runs, in program order, and so on from the users
whose results change. What becomes of the ops is decided as a sweep does it, and carried out by
resolve-shapes, so that the programs are the same; only when and how often rules run differs.
"""

from __future__ import annotations

import heapq

from aot.ir.builtin import PENDING
from aot.ir.graph import Function, Listener, Module, Op, Value
from aot.ir.mapped_operand import MappedOperand
from aot.passes.layout.shape_sweep import Decision, Sweep


class EagerShapes(Listener):
    """Propagates each change in a function at once; `finish` returns what a sweep would have
    decided."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._start()

    def _start(self) -> None:
        self._sweep = Sweep(self.function)
        self._inputs: dict[Op, list[MappedOperand | None]] = {}
        self._order: dict[Op, float] = {}

    def op_created(self, op: Op) -> None:
        if self._order:
            before = self._order.get(op.prev, -1.0) if op.prev is not None else -1.0
            after = self._order.get(op.next, before + 1) if op.next is not None else before + 1
            self._order[op] = (before + after) / 2
            if op.record is not PENDING and self._sweep.concerns(op):
                self._decide(op)  # who made it has asked its rule

    def op_erased(self, op: Op) -> None:
        self._sweep.decisions.pop(op, None)
        self._inputs.pop(op, None)
        for value in op.results:
            self._sweep.changed.pop(value, None)

    def pending_made(self, value: Value) -> None:
        """Updates the users of a changed value, and theirs, in program order."""
        if not self._order:
            self._order = {op: float(n) for n, op in enumerate(self.function.walk())}
        assert value.op is not None
        queue: list[tuple[float, int, Op]] = []
        queued: dict[Op, None] = {}
        self._enqueue(value.op, queue, queued)
        while queue:
            op = heapq.heappop(queue)[-1]
            del queued[op]
            if self._ask_rule(op):
                for result in op.results:
                    for user in result.users:
                        self._enqueue(user, queue, queued)

    def _enqueue(self, op: Op, queue: list[tuple[float, int, Op]], queued: dict[Op, None]) -> None:
        if op not in queued:
            queued[op] = None
            heapq.heappush(queue, (self._order.get(op, 0.0), len(self._inputs) + len(queue), op))

    def _ask_rule(self, op: Op) -> bool:
        """Applies the op's shape rule once; returns whether its users must be updated too."""
        self._sweep.has_asked = False
        is_news = self._decide(op)
        is_ruled = op.record.results_from == "rule" and not op.record.is_terminator
        if is_ruled and not self._sweep.has_asked and op.record is not PENDING:
            op.record.call(op.operand_types, op.attrs, op.origin)
        return is_news

    def _decide(self, op: Op) -> bool:
        self._inputs[op] = self._sweep.operands(op)
        return self._sweep.take(op, self._sweep.decide(op))

    def finish(self) -> Sweep:
        """A sweep over the current function that reuses what is known; resets the follower."""
        made = _Remembering(self.function, self._sweep.decisions, self._inputs)
        made.run()
        self._start()
        return made


class _Remembering(Sweep):
    """A sweep that reuses an op's earlier decision while its mapped operands are unchanged."""

    def __init__(
        self,
        function: Function,
        known: dict[Op, Decision],
        inputs: dict[Op, list[MappedOperand | None]],
    ) -> None:
        super().__init__(function)
        self.known = known
        self.inputs = inputs

    def decide(self, op: Op) -> Decision:
        if op in self.known and self.inputs.get(op) == self.operands(op):
            return self.known[op]
        return super().decide(op)


def follow_eagerly(module: Module) -> None:
    """Makes changes in every function of a module propagate at once."""
    for function in module.functions.values():
        function.listeners.append(EagerShapes(function))


def following(function: Function) -> EagerShapes | None:
    """The eager follower of a function; None if its changes propagate lazily."""
    return next((x for x in function.listeners if isinstance(x, EagerShapes)), None)
