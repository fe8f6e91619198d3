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
    dims = _open_axes(module, args, kwargs, shapes)
    names = {place: _name_of(dim) for place, dim in dims.items()}
    return {place: name for place, name in names.items() if name is not None}


def _open_axes(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any
) -> dict[tuple[int, int], Any]:
    """The dim that the user gave, by (number of the tensor among all leaves of the arguments,
    axis)."""
    if not shapes:
        return {}
    numbers = {id(leaf): n for n, leaf in enumerate(pytree.tree_leaves((tuple(args), kwargs)))}
    found: dict[tuple[int, int], Any] = {}
    _collect(bound_arguments(module, args, kwargs, shapes), shapes, numbers, found)
    return found


def distinct_tensors(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with a tensor object in each place that is in no other, by which
    places are told apart: a tensor that is passed twice is a view of itself the second time."""
    leaves, tree = pytree.tree_flatten((tuple(args), dict(kwargs)))
    seen: set[int] = set()
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            leaves[number] = leaf.detach() if id(leaf) in seen else leaf
            seen.add(id(leaf))
    new_args, new_kwargs = pytree.tree_unflatten(leaves, tree)
    return new_args, new_kwargs


def grown_examples(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any
) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
    """(arguments, keyword arguments, whether any differs): tensors whose open extents are 0 or 1
    are repeated to 2, or to the extent where the name of a dim is 2.

    torch.export makes such extents constants, whatever `dynamic_shapes` says. Dims of one name grow
    together. Those that may not be 2 stay.
    """
    leaves, tree = pytree.tree_flatten((tuple(args), dict(kwargs)))
    known: dict[Any, list[tuple[int, int, int]]] = {}
    for (number, axis), dim in _open_axes(module, args, kwargs, shapes).items():
        extents = _first_extents(dim)
        if extents is not None and axis < leaves[number].dim():
            is_small = leaves[number].shape[axis] in extents[:2]
            key = _name_of(dim) or (number, axis)
            known.setdefault(key, []).append((number, axis, extents[2] if is_small else 0))
    grown = False
    for places in known.values():
        for number, axis, extent in places if all(p[2] for p in places) else ():
            leaves[number] = _repeated(leaves[number], axis, extent)
            grown = True
    new_args, new_kwargs = pytree.tree_unflatten(leaves, tree)
    return new_args, new_kwargs, grown


def _first_extents(dim: Any) -> tuple[int, int, int] | None:
    """The extents of an open dim for 0, 1 and 2 of its unit; None where it is not open, or may not
    be 2."""
    if isinstance(dim, str):
        wanted = _wanted(dim)
        found = None if wanted.dim is None else linear(wanted.dim)
        if found is None:
            return None
        _, factor, rest = found
        extents = (rest, factor + rest, 2 * factor + rest)
        low, high = wanted.low, wanted.high
    elif dim is None or isinstance(dim, int) or _is_hint(dim, "AUTO") or _is_hint(dim, "STATIC"):
        return None
    else:
        fn = getattr(dim, "fn", None)  # of a multiple
        extents = (0, 1, 2) if fn is None else (fn(0), fn(1), fn(2))
        low, high = getattr(dim, "min", None) or 0, getattr(dim, "max", None)
    return extents if low <= extents[2] and (high is None or extents[2] <= high) else None


def _is_hint(dim: Any, name: str) -> bool:
    """Whether a dim is torch's hint of this name."""
    kind = getattr(dim, "type", None)
    return getattr(kind, "name", None) == name


def _repeated(tensor: torch.Tensor, axis: int, extent: int) -> torch.Tensor:
    """The tensor with its elements along an axis repeated up to an extent, or zeros where it has
    none."""
    have = tensor.shape[axis]
    if have == 0:
        return tensor.new_zeros((*tensor.shape[:axis], extent, *tensor.shape[axis + 1 :]))
    return torch.cat([tensor] * -(-extent // have), axis).narrow(axis, 0, extent).detach()


def bound_arguments(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any
) -> dict[str, Any] | list[Any]:
    """The arguments of a call, by name or by position, as in `shapes`."""
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    return list(bound.values()) if isinstance(shapes, (list, tuple)) else dict(bound)


def _collect(
    given: Any, shapes: Any, numbers: Mapping[int, int], found: dict[tuple[int, int], Any]
) -> None:
    if isinstance(given, torch.Tensor):
        axes = shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes or ())
        for axis, dim in axes:
            if id(given) in numbers:
                found.setdefault((numbers[id(given)], axis), dim)
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
