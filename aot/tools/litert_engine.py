"""LiteRT, the runtime for TFLite files, as an engine to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.errors import CompileError
from aot.tools.engine_errors import cannot_run

Arrays = Mapping[str, NDArray[Any]]


def open_litert(model: Path) -> Callable[[Arrays], dict[str, NDArray[Any]]]:
    """Opens a TFLite model in LiteRT; returns a function from inputs to outputs, by the names of
    its only signature, or of tensors if it has none. Variables keep their values between calls.

    Raises:
        CompileError: LiteRT is not installed, or can't read the model; or later can't run it.
    """
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise CompileError("litert is not installed: pip install ai-edge-litert") from error
    try:
        interpreter = Interpreter(str(model), num_threads=1)
    except (RuntimeError, ValueError) as error:
        raise cannot_run("litert", model, error) from error

    def run(inputs: Arrays) -> dict[str, NDArray[Any]]:
        try:
            return _results(interpreter, inputs)
        except (RuntimeError, ValueError) as error:
            raise cannot_run("litert", model, error) from error

    return run


def _results(interpreter: Any, inputs: Arrays) -> dict[str, NDArray[Any]]:
    signatures = interpreter.get_signature_list()
    if len(signatures) > 1:
        names = ", ".join(signatures)
        raise ValueError(f"it has the entry points {names}; compare with the reference")
    if signatures:
        runner = interpreter.get_signature_runner(next(iter(signatures)))
        wanted = runner.get_input_details()
        made = runner(**{name: inputs[name] for name in wanted})
        return {name: np.asarray(made[name]) for name in runner.get_output_details()}
    return run_graph(interpreter, inputs)


def run_graph(interpreter: Any, inputs: Arrays, calls: int = 1) -> dict[str, NDArray[Any]]:
    """The outputs of a model's first graph in LiteRT after `calls` runs on the same inputs, by
    tensor name.
    """
    details = interpreter.get_input_details()
    for d in details:
        if tuple(d["shape"]) != inputs[d["name"]].shape:
            interpreter.resize_tensor_input(d["index"], inputs[d["name"]].shape)
    interpreter.allocate_tensors()
    for _ in range(calls):
        for d in details:
            interpreter.set_tensor(d["index"], inputs[d["name"]])
        interpreter.invoke()
    return {
        d["name"]: np.array(interpreter.get_tensor(d["index"]))
        for d in interpreter.get_output_details()
    }
