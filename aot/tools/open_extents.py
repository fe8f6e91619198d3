"""Infers extents of inputs from the other inputs, for example the `past + T` columns of a mask.

Owns what is known of open dims before a call; the extents themselves are of `aot.runtime.inputs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from aot.ir.dim_parser import parse
from aot.ir.dims import substitute
from aot.runtime.inputs import first_extent
from aot.runtime.tensors import TensorInfo

Shapes = Mapping[str, Sequence[int]]


def with_followers(
    inputs: Sequence[TensorInfo],
    given: Mapping[str, ArrayLike],
    shapes: Shapes,
    states: Sequence[TensorInfo] = (),
    kept: Shapes | None = None,
) -> dict[str, Sequence[int]]:
    """`shapes` with the shapes of further inputs, if all their extents follow from the given shapes
    and arrays, from default batch extents, and from states.

    Args:
        given: input name -> array.
        shapes: input name -> extents.
        states: what the program keeps.
        kept: the shapes that these have before the call; without it nothing is kept along dims that
            grow.
    """
    known: dict[str, int] = {}
    for state in states:
        _learn(known, state, (kept or {}).get(state.name, [0] * len(state.dims)))
    for tensor in inputs:
        value = given.get(tensor.name)
        shape = value.shape if isinstance(value, np.ndarray) else shapes.get(tensor.name, ())
        _learn(known, tensor, shape)
    open_inputs = [t for t in inputs if t.name not in given and t.name not in shapes]
    for tensor in open_inputs:
        if tensor.dims and isinstance(tensor.dims[0], str):
            known.setdefault(tensor.dims[0], first_extent(tensor))
    found = dict(shapes)
    for tensor in open_inputs:
        extents = [_extent(dim, known) for dim in tensor.dims]
        numbers = [extent for extent in extents if extent is not None]
        if len(numbers) == len(extents):
            found[tensor.name] = numbers
    return found


def _extent(dim: int | str, known: Mapping[str, int]) -> int | None:
    """The value of a dim, given symbols; None if it is not determined."""
    try:
        extent = substitute(parse(str(dim)), known)
    except (ValueError, ZeroDivisionError):
        return None
    return extent if isinstance(extent, int) else None


def _learn(known: dict[str, int], tensor: TensorInfo, shape: Sequence[int]) -> None:
    """Records the values of the tensor's symbolic dims that a shape implies."""
    if len(shape) == len(tensor.dims):
        for dim, extent in zip(tensor.dims, shape, strict=True):
            if isinstance(dim, str):
                known.setdefault(dim, int(extent))
