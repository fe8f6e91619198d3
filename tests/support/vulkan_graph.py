"""Runs a whole function as SPIR-V: the passes of vulkan-1.1, then each dispatch on a driver.

What stays outside dispatches (constants, views) is numpy here, as it is the program's work on a
device. Never looks at what an op computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aot.ir.clone import clone_function
from aot.ir.dims import evaluate
from aot.ir.graph import Function, FunctionRef, Module, Op
from aot.ir.interpreter.interpreter import bind_symbols, run
from aot.ir.record import Call
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from tests.support import vulkan_running
from tests.support.lowering import run_executable, to_memory

Array = np.ndarray[Any, Any]


def run_on_driver(
    driver: str,
    function: Function,
    feeds: Mapping[str, Array],
    options: CompileOptions = CompileOptions(targets=("vulkan-1.1",)),  # noqa: B008
) -> list[Array]:
    """The function's results; inputs by name."""
    module = Module([clone_function(function)])
    context = PassContext(options, vulkan_running.vulkan_target())
    run_passes(module, (*MODEL_PASSES, *TARGET_PASSES), context)
    (entry,) = module.entry_points
    arrays = [np.asarray(feeds[v.name]) for v in entry.inputs]
    symbols = bind_symbols(entry, [a.shape for a in arrays])
    values: dict[Any, Array] = dict(zip(entry.inputs, arrays, strict=True))
    for op in entry.block:
        if op.record.is_terminator:
            break
        operands = [None if v is None else values[v] for v in op.operands]
        made = (
            _dispatch(driver, module, op, operands, symbols)
            if op.name == "dispatch"
            else _outside(op, operands, symbols)
        )
        values.update(zip(op.results, made, strict=True))
    return [values[v] for v in entry.results]


def _dispatch(
    driver: str, module: Module, op: Op, operands: list[Any], symbols: Mapping[str, int]
) -> list[Array]:
    reference, given = op.attrs["executable"], op.attrs["dims"]
    assert isinstance(reference, FunctionRef)
    assert isinstance(given, tuple)
    dims = [evaluate(d, symbols) for d in given]  # type: ignore[arg-type]

    def engine(kernel: Any, buffers: dict[str, Array], params: dict[str, Any]) -> None:
        for name, array in vulkan_running.run_on(driver, kernel, buffers, params).items():
            buffers[name][...] = array.reshape(buffers[name].shape)

    executable = module.functions[reference.name]
    inner = dict(zip(executable.dim_names, dims, strict=True))
    if any(
        evaluate(d, inner) == 0
        for v in (*executable.inputs, *executable.results)
        for d in v.type.dims
    ):
        # this harness has no empty buffers; the runtime binds a word that is never read
        return run(executable, operands, symbols=inner, module=module)
    inputs = [to_memory(a, v.type, inner) for a, v in zip(operands, executable.inputs, strict=True)]
    return run_executable(executable, vulkan_running.vulkan_target(), inputs, dims, engine)


def _outside(op: Op, operands: list[Any], symbols: Mapping[str, int]) -> list[Array]:
    from aot.ir.compare import map_dims

    assert op.record.reference is not None

    def concrete(type: Any) -> Any:
        dims = () if type is None else tuple(evaluate(d, symbols) for d in type.dims)
        return None if type is None else type.with_dims(dims)

    call = Call(
        op.record,
        tuple(concrete(t) for t in op.operand_types),
        map_dims(op.attrs, lambda d: evaluate(d, symbols)),
        op.origin,
        result_types=tuple(concrete(v.type) for v in op.results),
    )
    return [np.asarray(a) for a in op.record.reference(call, operands)]
