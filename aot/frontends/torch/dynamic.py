"""Dynamic dims as users specify them: torch's own objects, or names and bounds as text."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from aot.errors import CompileError
from aot.frontends.torch.containers import parts
from aot.ir.bounds import WantedDim, linear, parse_wanted


class OpenDims:
    """The dims that a user declares as dynamic.

    A name, with or without bounds, is torch's Dim.DYNAMIC, so that torch finds out what the module
    needs of it; a multiple of a name is a torch.export.Dim.

    Attributes:
        shapes: as torch.export.export takes them.
    """

    def __init__(self, shapes: Any) -> None:
        self._units: dict[tuple[str, int, int | None], Any] = {}
        self.shapes = self._converted(shapes)

    def _converted(self, given: Any) -> Any:
        if isinstance(given, str):
            return self._dim(given)
        if isinstance(given, Mapping):
            return {key: self._converted(value) for key, value in given.items()}
        if isinstance(given, (list, tuple)):
            return type(given)(self._converted(value) for value in given)
        return given

    def _dim(self, text: str) -> Any:
        """torch's Dim for a text such as `batch`, `H:32..960` or `32*h`."""
        wanted = _wanted(text)
        if wanted.dim is None or isinstance(wanted.dim, int):
            return wanted.dim
        found = linear(wanted.dim)
        if found is None:
            raise CompileError(
                f"dynamic_shapes: {text!r} is none of a name, a multiple of one, and one with "
                "bounds, as in 32*h and H:32..960"
            )
        name, factor, rest = found
        low, high = wanted.low, wanted.high
        if (factor, rest) == (1, 0):
            hint = torch.export.Dim.DYNAMIC
            return hint if (low, high) == (0, None) else hint(min=low or None, max=high)
        key = (
            name,
            max(-(-(low - rest) // factor), 0),
            None if high is None else (high - rest) // factor,
        )
        if key not in self._units:
            self._units[key] = torch.export.Dim(name, min=key[1], max=key[2])
        dim = self._units[key] if factor == 1 else factor * self._units[key]
        return dim if rest == 0 else dim + rest


def _wanted(text: str) -> WantedDim:
    try:
        return parse_wanted(text)
    except ValueError as error:
        raise CompileError(f"dynamic_shapes: {error}") from None


def _name_of(dim: Any) -> str | None:
    """The name that the user gave a dim; for a multiple, that of its unit."""
    if isinstance(dim, str):
        wanted = _wanted(dim).dim
        found = None if wanted is None else linear(wanted)
        return None if found is None else found[0]
    name = getattr(getattr(dim, "root", dim), "__name__", None)
    return name if isinstance(name, str) and name.isidentifier() else None


def dim_names(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any
) -> dict[tuple[int, int], str]:
    """The name of each dynamic dim, by (number of the tensor among all leaves of the arguments,
    axis). For a multiple of a dim, the name of that dim.
    """
    if not shapes:
        return {}
    numbers = {id(leaf): n for n, leaf in enumerate(pytree.tree_leaves((tuple(args), kwargs)))}
    found: dict[tuple[int, int], str] = {}
    _collect(bound_arguments(module, args, kwargs, shapes), shapes, numbers, found)
    return found


def bound_arguments(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any
) -> dict[str, Any] | list[Any]:
    """The arguments of a call, by name or by position, as in `shapes`."""
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    return list(bound.values()) if isinstance(shapes, (list, tuple)) else dict(bound)


def _collect(
    given: Any, shapes: Any, numbers: Mapping[int, int], found: dict[tuple[int, int], str]
) -> None:
    if isinstance(given, torch.Tensor):
        axes = shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes or ())
        for axis, dim in axes:
            name = _name_of(dim)
            if name is not None and id(given) in numbers:
                found.setdefault((numbers[id(given)], axis), name)
        return
    held = parts(given)
    given = given if held is None else list(held.values())
    if isinstance(given, Mapping) and isinstance(shapes, Mapping):
        for key, inner in shapes.items():
            if key in given:
                _collect(given[key], inner, numbers, found)
    elif isinstance(given, (list, tuple)) and isinstance(shapes, (list, tuple)):
        for one, inner in zip(given, shapes, strict=False):
            _collect(one, inner, numbers, found)
