"""The reference interpreter as an engine to compare with; it runs the importer's graph in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from aot.errors import CompileError
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import Disturbance, run
from aot.options import CompileOptions
from aot.tools.string_numbers import StringNumbers

Arrays = Mapping[str, NDArray[Any]]


def read(model: Path) -> Module:
    """The graphs of a model file, with all symbols unbound."""
    from aot.driver.pipeline import read_model

    return read_model(model, CompileOptions())


def open_reference(
    model: Path, module: Module | None = None, disturbance: Disturbance | None = None
) -> Callable[[Arrays], dict[str, NDArray[Any]]]:
    """Opens a model's first entry point in the reference interpreter; returns a function from
    inputs to outputs by name.

    Args:
        module: the model, where it was read before.
        disturbance: changes what ops read and give.

    Raises:
        CompileError: the model can't be read; or later lacks an input.
    """
    module = read(model) if module is None else module
    function = module.entry_points[0]

    def call(inputs: Arrays) -> dict[str, NDArray[Any]]:
        feeds = []
        strings = StringNumbers(function)
        arrays = strings.taken(inputs)
        for value in function.inputs:
            if value.name not in inputs:
                raise CompileError(f"{model} has an input {value.name!r} that the module has not")
            feeds.append(arrays[value.name].astype(value.type.dtype.numpy, copy=False))
        return strings.given(run(function, feeds, module=module, disturbance=disturbance))

    return call
