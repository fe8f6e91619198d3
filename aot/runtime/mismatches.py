"""Advice where an array does not fit an input: what the caller most likely wants to do to it.

Guesses from shapes and dtypes only, and says nothing where no single change fits. The error itself
is the runtime's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.runtime.tensors import TensorInfo

_CHANNELS_LAST_TO_FIRST = {3: (2, 0, 1), 4: (0, 3, 1, 2), 5: (0, 4, 1, 2, 3)}
_CHANNELS_FIRST_TO_LAST = {3: (1, 2, 0), 4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
_SCALED = ", with its values scaled as in the model's training"


def advice(info: TensorInfo, array: NDArray[np.generic]) -> str:
    """What makes an array that the program refused fit its input, as numpy spells it, after a
    colon; empty where nothing is known."""
    if info.strings is not None:
        return ""
    expected = info.numpy_dtype
    expression = "array"
    if not _fits(info, array.shape):
        change = _change_of_shape(info, array.shape)
        if change is None:
            return ""
        expression += change
    if array.dtype != expected:
        expression += f".astype({_spelled(expected)})"
    if expression == "array":
        return ""
    is_picture = array.dtype.kind in "ui" and expected.kind == "f" and array.ndim >= 3
    return f": give {expression}" + (_SCALED if is_picture else "")


def _spelled(dtype: np.dtype[Any]) -> str:
    """A dtype as Python spells it: numpy has no bfloat16."""
    package = dtype.type.__module__
    return f"{'np' if package == 'numpy' else package}.{dtype.name}"


def _fits(info: TensorInfo, shape: tuple[int, ...]) -> bool:
    """Whether the fixed extents and the bounds of the others hold."""
    if len(shape) != len(info.dims):
        return False
    for dim, (low, high), extent in zip(info.dims, info.bounds, shape, strict=True):
        if isinstance(dim, int):
            if dim != extent:
                return False
        elif extent < low or (high is not None and extent > high):
            return False
    return True


def _change_of_shape(info: TensorInfo, shape: tuple[int, ...]) -> str | None:
    """The one change of an array's shape that makes it fit."""
    rank = len(info.dims)
    if len(shape) == rank - 1 and _fits(info, (1, *shape)):
        return "[np.newaxis]"
    if len(shape) == rank + 1 and shape[0] == 1 and _fits(info, shape[1:]):
        return "[0]"
    if len(shape) != rank:
        return None
    for orders in (_CHANNELS_LAST_TO_FIRST, _CHANNELS_FIRST_TO_LAST):
        order = orders.get(rank)
        if order is not None and _fits(info, tuple(shape[axis] for axis in order)):
            return f".transpose{order}"
    return ".T" if rank == 2 and _fits(info, shape[::-1]) else None
