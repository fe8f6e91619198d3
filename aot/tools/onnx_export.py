"""Exports PyTorch modules to ONNX with PyTorch's exporter, for tools that read ONNX."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aot.errors import CompileError
from aot.ir.types import Array
from aot.tools.engine_errors import first_line

OPSET = 17
BATCH = "batch"  # the name of the first dim of each input, which stays open


def is_module(model: object) -> bool:
    """Whether a model is a PyTorch module; does not import torch."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(model).__mro__}
    return "torch.nn.modules.module.Module" in names


def export(module: Any, sample: Mapping[str, Array], path: Path) -> None:
    """Writes a module in eval mode as an ONNX file with a dynamic batch.

    Args:
        module: a `torch.nn.Module`; its mode is as before afterwards.
        sample: an array for each parameter of its `forward`, by name; others keep their defaults.
        path: the file to write.

    Raises:
        CompileError: a name is of no parameter, or PyTorch cannot export the module.
    """
    import torch

    known = list(inspect.signature(module.forward).parameters)
    unknown = [name for name in sample if name not in known]
    if unknown:
        raise CompileError(
            f"the module has no input {unknown[0]!r}; its forward takes {', '.join(known)}"
        )
    names = [name for name in known if name in sample]

    class Called(torch.nn.Module):  # type: ignore[misc]
        """The module without its default arguments, which tracing would turn into inputs."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *given: Any) -> Any:
            return self.module(**dict(zip(names, given, strict=True)))

    before = module.training
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                Called().eval(),
                tuple(torch.from_numpy(sample[name].copy()) for name in names),
                str(path),
                input_names=names,
                dynamic_axes={name: {0: BATCH} for name in names if sample[name].ndim > 1},
                opset_version=OPSET,
                dynamo=False,
            )
    except Exception as error:
        raise CompileError(f"PyTorch cannot export the module: {first_line(error)}") from None
    finally:
        module.train(before)
