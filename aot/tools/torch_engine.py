"""PyTorch as an engine to compare with, for files of torch.export.save."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.errors import CompileError
from aot.frontends import registry
from aot.tools.engine_errors import cannot_run

Arrays = Mapping[str, NDArray[Any]]


def open_torch(model: Path) -> Callable[[Arrays], dict[str, NDArray[Any]]]:
    """Opens an exported program in PyTorch; returns a function from inputs to outputs by name. The
    file is read as data and runs no code, as in a compile; updated inputs and buffers keep their
    values between calls.

    Raises:
        CompileError: torch is not installed, or can't read the program; or later can't run it.
    """
    exported, _, calling = registry.opened(model)
    import torch
    from torch.utils import _pytree as pytree

    from aot.frontends.torch.calling import Named
    from aot.frontends.torch.program import array_of, tensor_of

    module = exported.program.module()

    def run(inputs: Arrays) -> dict[str, NDArray[Any]]:
        for leaf in calling.inputs:
            if isinstance(leaf, Named) and leaf.name not in inputs:
                raise CompileError(f"{model} has an input {leaf.name!r} that the module has not")
        given = {
            leaf.name: tensor_of(inputs[leaf.name])
            for leaf in calling.inputs
            if isinstance(leaf, Named)
        }
        leaves = [given[x.name] if isinstance(x, Named) else x.value for x in calling.inputs]
        args, kwargs = pytree.tree_unflatten(leaves, calling.in_spec)
        try:
            with torch.no_grad():
                made = pytree.tree_leaves(module(*args, **kwargs))
        except Exception as error:  # torch's own have no common base
            raise cannot_run("torch", model, error) from error
        return {
            leaf.name: np.array(array_of(torch.as_tensor(value)))
            for leaf, value in zip(calling.outputs, made, strict=True)
            if isinstance(leaf, Named)
        }

    return run
