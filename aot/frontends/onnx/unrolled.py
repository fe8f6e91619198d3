"""Unrolls a loop with a known number of iterations, each imported separately."""

from __future__ import annotations

import numpy as np

from aot.frontends.onnx.loop_forms import HOW_TO_KEEP_SIZE, LoopForm, truth
from aot.frontends.onnx.scopes import Held
from aot.frontends.onnx.table import UnsupportedNodeError
from aot.ir.graph import ConstantData, Value
from aot.ir.rewriter import insert_constant

MAX_UNROLLED_OPS = 10_000


class NotUnrollableError(Exception):
    """The reason why a loop cannot be unrolled."""


class Unrolled:
    """A loop unrolled into its iterations, each imported separately."""

    def __init__(self, form: LoopForm) -> None:
        self.form = form
        self.node = form.node
        self.carried: list[Held] = list(form.initial)
        self.rows: list[list[Value]] = [[] for _ in range(form.row_count)]

    def results(self) -> list[Held]:
        form, trips = self.form, self.form.trips
        if form.condition is not None or form.trip_count is not None:
            raise NotUnrollableError("how often it runs is known only when the model runs")
        if form.is_open:
            raise NotUnrollableError("whether it goes on is known only when the model runs")
        if trips is not None and not isinstance(trips, int):
            raise NotUnrollableError(
                f"it runs {trips} times, which must be a number for its runs to be compiled one by "
                "one (--input-shape)"
            )
        number = 0
        goes_on: bool | None = True
        while goes_on and (trips is None or number < trips):
            goes_on = self._run(number)
            if goes_on is None:
                raise NotUnrollableError("whether it goes on is known only when the model runs")
            number += 1
        return [*self.carried, *(self._stacked(n) for n in range(form.row_count))]

    def _run(self, number: int) -> bool | None:
        """Imports iteration `number`; returns whether another one follows, None if unknown."""
        form, node = self.form, self.node
        if len(node.rewriter.block) > MAX_UNROLLED_OPS:
            raise UnsupportedNodeError(
                f"a carried value changes its shape from iteration to iteration, and {number} "
                f"unrolled iterations make more than {MAX_UNROLLED_OPS} ops; {HOW_TO_KEEP_SIZE}"
            )
        index = insert_constant(node.rewriter, ConstantData(np.array(number, np.int64)), node.label)
        given = {**form.arguments(node.rewriter, index), **form.named(self.carried)}
        made = form.importer.subgraph(form.body, given, form.outer, node.rewriter)
        values = [v for v in made.values if v is not None]
        if made.lacks or len(values) < len(made.values):
            first = next(name for name in node.outputs if name)
            form.outer.unsupported.extend((first, why) for why in made.lacks)
            raise UnsupportedNodeError("")
        carried = values[form.has_condition :]
        self.carried = carried[: len(form.initial)]
        for rows, value in zip(self.rows, carried[len(form.initial) :], strict=True):
            rows.append(self._tensor(value))
        return truth(form.importer, self._tensor(values[0])) if form.has_condition else True

    def _tensor(self, value: Held) -> Value:
        if not isinstance(value, Value):
            raise UnsupportedNodeError("its row or its condition is a sequence of tensors")
        return value

    def _stacked(self, number: int) -> Value:
        """The rows of scan output `number` from all iterations, stacked along a new first dim."""
        node, rows = self.node, self.rows[number]
        if not rows:
            raise UnsupportedNodeError(
                f"it never runs, so that its output {len(self.form.initial) + number} has no shape"
            )
        types = {row.type for row in rows}
        if len(types) > 1:
            first, second = list(dict.fromkeys(row.type for row in rows))[:2]
            name = self.form.body.output[
                self.form.has_condition + len(self.form.initial) + number
            ].name
            raise node.error(f"rows of {name!r} are {first} and {second}, expected one shape")
        wide = [node.reshape(row, (1, *row.type.dims)) for row in rows]
        return wide[0] if len(wide) == 1 else node.emit("concat", *wide, axis=0)
