"""Executables that lowering makes, run one after the other against the graph interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot.analysis.memory.views import is_view
from aot.ir.dims import evaluate
from aot.ir.graph import Function, Module
from aot.ir.interpreter.interpreter import run
from aot.ir.record import OpRecord, Sample
from aot.kernels.ir import interpreter
from aot.passes.fusion.fuse import fuse
from aot.passes.fusion.outline import outline
from aot.passes.fusion.tie_operands import tie_operands
from aot.target import selection as targets
from tests.support.lowering import (
    run_executable,
    sample_array,
    sample_function,
    to_memory,
    view_array,
)

Array = np.ndarray[Any, Any]

TARGETS = ("x86-64-v4", "x86-64-v2", "vulkan-1.1")

Change = Callable[[Function], None]
Engine = Callable[[Any, Any, Any], None]
"""Runs a kernel on buffers, which it changes in place, with parameters."""


def on_interpreter(kernel: Any, buffers: Any, params: Any) -> None:
    interpreter.run(kernel, buffers, params, check_races=True)


def check(
    function: Function,
    inputs: list[Array],
    target: str,
    dispatches: int,
    tolerance: float = 2e-6,
    engine: Engine = on_interpreter,
    after_fuse: Callable[[Function], None] = lambda _: None,
) -> None:
    """Runs the function's executables one after the other against the graph interpreter."""
    runs = outlined_runs(function, inputs, dispatches, after_fuse)
    runs.check(target, engine, tolerance)


@dataclass(frozen=True)
class Runs:
    """A function of dispatches, what it is given and what it must give, for any backend."""

    module: Module
    inputs: list[Array]
    wanted: list[Array]

    def check(self, target: str, engine: Engine, tolerance: float = 2e-6) -> None:
        """Runs its executables one after the other."""
        (function,) = self.module.entry_points
        machine = targets.load(target)
        values = dict(zip(function.inputs, self.inputs, strict=True))
        symbols = _symbols(function, self.inputs)
        for op in function.block:
            if op.name == "constant":
                values[op.result] = op.attrs["value"].logical  # type: ignore[union-attr]
            elif is_view(op):
                values[op.result] = view_array(op, values[op.operands[0]], symbols)  # type: ignore[index]
            elif op.name == "dispatch":
                executable = self.module.functions[op.attrs["executable"].name]  # type: ignore[union-attr]
                dims = [evaluate(d, symbols) for d in op.attrs["dims"]]  # type: ignore[union-attr, arg-type]
                operands = [to_memory(values[v], v.type, symbols) for v in op.operands]  # type: ignore[index, union-attr]
                made = run_executable(executable, machine, operands, dims, engine)
                values.update(zip(op.results, made, strict=True))
        for value, expected in zip(function.results, self.wanted, strict=True):
            scale = max(float(np.abs(expected.astype(np.float64)).max(initial=0)), 1e-30)
            error = np.abs(values[value].astype(np.float64) - expected.astype(np.float64))
            assert values[value].shape == expected.shape
            assert float(error.max(initial=0)) <= tolerance * scale


def outlined_runs(
    function: Function,
    inputs: list[Array],
    dispatches: int,
    after_fuse: Callable[[Function], None] = lambda _: None,
) -> Runs:
    """The function, fused and outlined to so many dispatches, with its results by the graph
    interpreter."""
    wanted = run(function, inputs)
    module = Module([function])
    fuse(function)
    after_fuse(function)
    tie_operands(function)
    outline(module)
    assert sum(op.name == "dispatch" for op in function.block) == dispatches
    return Runs(module, inputs, wanted)


def _symbols(function: Function, inputs: list[Array]) -> dict[str, int]:
    from aot.ir.interpreter.interpreter import bind_symbols

    return dict(bind_symbols(function, [tuple(a.shape) for a in inputs]))


def sample_runs(record: OpRecord, sample: Sample, change: Change = lambda _: None) -> Runs:
    """A sample of an op as a function of its own, which `change` may change before it is fused."""
    rng = np.random.RandomState(1)
    inputs = [sample_array(t, sample, rng) for t in sample.operands if t is not None]
    function = sample_function(record, sample)
    change(function)
    dispatches = sum(1 for op in function.block if op.record is record and not is_view(op))
    return outlined_runs(function, inputs, dispatches)
