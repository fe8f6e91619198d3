"""Compares a compiled PyTorch module with the module itself.

Imports torch when it is called; owns how the two are run alike, and no measure of agreement.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.api import CompiledModule, load
from aot.errors import CompileError
from aot.frontends import registry
from aot.options import DeviceName

Results = dict[str, NDArray[Any]]


def run_both(
    compiled: CompiledModule,
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    steps: int | None,
    usual_steps: int,
    device: DeviceName,
    target: str | None,
) -> tuple[str, Results, list[tuple[Results, Results]]]:
    """(target that ran, input arrays, results of program and module for each step). It runs `steps`
    steps, by default `usual_steps` if the program has state.

    Raises:
        CompileError: what was compiled is no module of PyTorch, or came from a file.
    """
    from aot.frontends.torch.calling import Named

    calling: Any = compiled.calling
    if calling is None:
        raise CompileError(
            "a module of PyTorch is compared with what aot.compile made of it in this process"
        )
    found: list[tuple[Results, Results]] = []
    with load(compiled, device, target=target) as program:
        run = _runner(module, keeps_state=bool(program.states))
        for _ in range(steps or (usual_steps if program.states else 1)):
            ours, theirs = copy.deepcopy((tuple(args), dict(kwargs))), (args, kwargs)
            arrays, _ = calling.bind(*ours)
            results = program(*ours[0], **ours[1])
            expected = run(*copy.deepcopy(theirs))
            pairs = zip(calling.outputs, _leaves(results), _leaves(expected), strict=True)
            both = [(n, _array(a), _array(b)) for n, a, b in pairs if isinstance(n, Named)]
            found.append(
                ({n.name: a for n, a, _ in both}, {n.name: b for n, _, b in both}),
            )
        return program.target, {n: np.array(a) for n, a in arrays.items()}, found


def _runner(module: Any, keeps_state: bool) -> Callable[[Any, Any], Any]:
    """The module as a function of arguments, in eval mode; the module's own buffers do not
    change."""
    import torch

    if not registry.is_torch_module(module):
        module = module.module()  # of an exported program: a copy
    elif keeps_state:
        module = copy.deepcopy(module)

    def run(args: Any, kwargs: Any) -> Any:
        from aot.frontends.torch.exporting import in_eval_mode

        with torch.no_grad():
            if not registry.is_torch_module(module) or type(module).__name__ == "GraphModule":
                return module(*args, **kwargs)
            with in_eval_mode(module):
                return module(*args, **kwargs)

    return run


def _leaves(tree: Any) -> list[Any]:
    from torch.utils import _pytree as pytree

    return list(pytree.tree_leaves(tree))


def _array(value: Any) -> NDArray[Any]:
    # a copy: a module may give a buffer that its next step writes
    from aot.frontends.torch.program import array_of

    return np.array(array_of(value) if hasattr(value, "detach") else value)
