"""PyTorch itself as an engine to compare with, for files of torch.export.save."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.errors import CompileError
from aot.frontends import registry
from aot.tools.onnx_engine import first_line

Arrays = Mapping[str, NDArray[Any]]


def run_torch(model: Path, inputs: Arrays) -> dict[str, NDArray[Any]]:
    """What torch computes of a program, by the names of its outputs. Inputs that the program writes
    are written.

    Raises:
        CompileError: torch is not installed, or does not run the program.
    """
    found = registry.find(model)
    if found is not registry.TORCH:
        raise CompileError(
            f"torch cannot run {model}: it is {found.name}, expected a PyTorch program"
        )
    exported, calling = registry.opened(model)
    import torch
    from torch.utils import _pytree as pytree

    from aot.frontends.torch.calling import Named
    from aot.frontends.torch.program import array_of, tensor_of

    for leaf in calling.inputs:
        if isinstance(leaf, Named) and leaf.name not in inputs:
            raise CompileError(f"{model} has an input {leaf.name!r} that the module has not")
    given = {name: tensor_of(array) for name, array in inputs.items()}
    leaves = [given[x.name] if isinstance(x, Named) else x.value for x in calling.inputs]
    args, kwargs = pytree.tree_unflatten(leaves, calling.in_spec)
    try:
        with torch.no_grad():
            made = pytree.tree_leaves(exported.program.module()(*args, **kwargs))
    except Exception as error:  # torch's own have no common base
        raise CompileError(f"torch cannot run {model}: {first_line(error)}") from error
    return {
        leaf.name: np.array(array_of(torch.as_tensor(value)))
        for leaf, value in zip(calling.outputs, made, strict=True)
        if isinstance(leaf, Named)
    }
