"""Registers dataclasses in a module's arguments and results with torch's pytree.

torch.export takes containers that torch.utils._pytree knows. Owns which dataclasses become such,
and what they hold; the trees themselves are torch's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree


def parts(value: Any) -> dict[str, Any] | None:
    """A dataclass's values by field, as in torch's trees: without fields that are None or that its
    constructor lacks. None for other values.
    """
    if not is_dataclass(value) or isinstance(value, type):
        return None
    held = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    return {name: one for name, one in held.items() if one is not None}


def register(value: Any) -> None:
    """Registers the dataclasses in `value` with torch, for the rest of the process. Those already
    known are unchanged, and one without tensors remains a constant."""
    kind, held = type(value), parts(value)
    if held is None and isinstance(value, (list, tuple)):
        held = {str(place): one for place, one in enumerate(value)}
    if held is None and isinstance(value, Mapping):
        held = dict(value)
    for one in (held or {}).values():
        register(one)
    if held is None or not is_dataclass(kind) or kind in pytree.SUPPORTED_NODES:
        return
    if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(held)):
        name = f"{kind.__module__}.{kind.__qualname__}"
        torch.export.register_dataclass(kind, serialized_type_name=name)


@contextmanager
def registering_results(module: Any) -> Iterator[None]:
    """A context that registers the dataclasses that a module returns while it is traced."""

    def see(_: Any, __: Any, result: Any) -> None:
        register(result)

    hook = module.register_forward_hook(see)
    try:
        yield
    finally:
        hook.remove()


def in_places(given: Any, shapes: Any) -> Any:
    """`shapes` in the form that torch expects: where `given` has a dataclass, a dict becomes a list
    in field order.
    """
    held = parts(given)
    if held is not None and isinstance(shapes, Mapping):
        return [in_places(one, shapes.get(name)) for name, one in held.items()]
    if held is not None and isinstance(shapes, (list, tuple)) and len(held) == len(shapes):
        return [in_places(one, own) for one, own in zip(held.values(), shapes, strict=True)]
    if isinstance(given, Mapping) and isinstance(shapes, Mapping):
        return {k: in_places(given[k], own) if k in given else own for k, own in shapes.items()}
    is_row = isinstance(given, (list, tuple)) and isinstance(shapes, (list, tuple))
    if is_row and len(given) == len(shapes):
        return type(shapes)(in_places(one, own) for one, own in zip(given, shapes, strict=True))
    return shapes
