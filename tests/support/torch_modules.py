"""Modules of PyTorch for tests, and the comparison with torch itself.

Nothing here imports torch before it is called: pytest imports tests in every worker, and torch
takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aot.frontends.torch import exported_module, import_torch
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run

Functions = Mapping[str, Callable[..., Any]]


def module_of(functions: Functions, arguments: int) -> Any:
    """A module that gives what functions of its inputs do, by name."""
    import torch

    names = [f"x{n}" for n in range(arguments)]

    class Several(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            raise NotImplementedError

    listed = ", ".join(names)
    space: dict[str, Any] = {"functions": dict(functions)}
    source = (
        f"def forward(self, {listed}):\n    return {{k: f({listed}) for k, f in functions.items()}}"
    )
    exec(source, space)
    return type("Several", (Several,), {"forward": space["forward"]})()


def imported(
    module: Any, args: Sequence[Any], dynamic_shapes: Any = None, kwargs: Any = None
) -> Module:
    """Our IR of a module."""
    return import_torch(exported_module(module, tuple(args), kwargs, dynamic_shapes))


def interpreted(module: Module, args: Sequence[Any]) -> dict[str, Any]:
    """What the interpreter makes of tensors, by names of results."""
    function = module.main
    feeds = [a.detach().numpy() for a in args]
    return dict(zip(function.result_names, run(function, feeds, module=module), strict=True))


def check(
    functions: Functions,
    args: Sequence[Any],
    dynamic_shapes: Any = None,
    others: Sequence[Sequence[Any]] = (),
    tolerance: float = 2e-6,
) -> None:
    """That the importer's module computes what torch does, on the arguments that it was exported
    with and on others, which fit its open dims."""
    import torch
    from torch.utils import _pytree as pytree

    module = module_of(functions, len(args))
    ours = imported(module, args, dynamic_shapes)
    for given in (args, *others):
        found = interpreted(ours, given)
        with torch.no_grad():
            expected = module(*given)
        paths, _ = pytree.tree_flatten_with_path(expected)
        assert len(paths) == len(found)
        for (path, wanted), (name, result) in zip(paths, found.items(), strict=True):
            assert_close(result, wanted, tolerance, f"{pytree.keystr(path)} ({name})")


def assert_close(result: Any, wanted: Any, tolerance: float, what: str) -> None:
    """That an array is what a tensor is: type, shape, and elements up to a part of the largest."""
    expected = np.asarray(wanted.detach().numpy() if hasattr(wanted, "detach") else wanted)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape), what
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(result, expected, err_msg=what)
        return
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(result[~finite], expected[~finite], err_msg=what)
    largest = float(np.max(np.abs(expected[finite]), initial=0)) or 1.0
    limit = tolerance * largest * (1000 if expected.dtype == np.float16 else 1)
    np.testing.assert_allclose(result[finite], expected[finite], rtol=0, atol=limit, err_msg=what)
