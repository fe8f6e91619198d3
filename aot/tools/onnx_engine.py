"""ONNX Runtime as an engine to compare with, and helpers for other uses of it.

Imports no engine until one is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.errors import CompileError
from aot.tools.engine_errors import cannot_run

Arrays = Mapping[str, NDArray[Any]]

_NUMPY = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(string)": "object",
}


def numpy_name(onnx_type: str) -> str:
    """numpy's name of the element type that ONNX Runtime calls tensor(float), for example."""
    return _NUMPY.get(onnx_type, onnx_type.removeprefix("tensor(").removesuffix(")"))


def open_onnxruntime(model: Path) -> Callable[[Arrays], dict[str, NDArray[Any]]]:
    """Opens a model in ONNX Runtime without its optimisations, which fuse ops and change rounding;
    returns a function from inputs to outputs by name.

    Raises:
        CompileError: it is not installed, or can't read the model; or later can't run it.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise CompileError("onnxruntime is not installed: pip install onnxruntime") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        names = [o.name for o in session.get_outputs()]
        types = {i.name: i.type for i in session.get_inputs()}
    except Exception as error:  # its exceptions have no common base of their own
        raise cannot_run("onnxruntime", model, error) from error

    def run(inputs: Arrays) -> dict[str, NDArray[Any]]:
        # a compiled-in value may come as a plain number
        feeds = {n: a.astype(numpy_name(types[n])) for n, a in inputs.items() if n in types}
        try:
            return dict(zip(names, map(np.asarray, session.run(names, feeds)), strict=True))
        except Exception as error:
            raise cannot_run("onnxruntime", model, error) from error

    return run


_DRAWING = (
    *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"),
    *("Bernoulli", "Multinomial"),
)


def draws_numbers(model: Path) -> str:
    """The first op of an ONNX model that draws random numbers, which differ between engines; "" if
    there is none, or the file cannot be read."""
    import onnx

    try:
        proto = onnx.load_model(str(model), load_external_data=False)
    except Exception:  # whoever reads it next says why
        return ""
    pending = [proto.graph, *proto.functions]
    while pending:
        for node in pending.pop().node:
            if node.op_type in _DRAWING:
                return str(node.op_type)
            for attribute in node.attribute:
                pending += [attribute.g, *attribute.graphs]
    return ""
