"""Random inputs for a program, for tensors that the user does not give.

Owns the choice of extents for symbolic dims and of ranges for random values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aot.errors import CompileError
from aot.runtime.tensors import TensorInfo

UNNAMED = "?"  # a symbolic dim of which the module says no more
UNKNOWN = "?"  # a string that a model does not name


def make_inputs(
    tensors: Sequence[TensorInfo],
    given: Mapping[str, ArrayLike],
    shapes: Mapping[str, Sequence[int]],
    seed: int = 0,
) -> dict[str, NDArray[Any]]:
    """An array for each of `tensors`: the given one, or a random one.

    Random floats are normal, random integers and bools are 0 or 1 (they are often indices or
    masks), random strings those that the model names, or another. A symbolic extent must be in
    `shapes`, or stand there for another input under the same name, except the first axis, which is
    as small as its bound lets it be and at least 1. The same seed gives the same arrays.

    Raises:
        CompileError: a name is unknown, a shape does not fit, or an extent is not known.
    """
    names = [t.name for t in tensors]
    for name in (*given, *shapes):
        if name not in names:
            raise CompileError(
                f"no input is called {name!r}: inputs are {', '.join(names) or 'none'}"
            )
    arrays: dict[str, NDArray[Any]] = {}
    known = _known_extents(tensors, given, shapes)
    for number, tensor in enumerate(tensors):
        if tensor.name in given:
            arrays[tensor.name] = _given(tensor, given[tensor.name])
        else:
            shape = _shape(tensor, shapes.get(tensor.name), known)
            generator = np.random.Generator(np.random.PCG64([seed, number]))
            if tensor.strings is not None:
                texts = np.array([*tensor.strings, UNKNOWN], object)
                arrays[tensor.name] = texts[generator.integers(0, len(texts), shape)]
                continue
            arrays[tensor.name] = _random(generator, shape, tensor.numpy_dtype)
    return arrays


def _given(tensor: TensorInfo, value: ArrayLike) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value  # of the wrong dtype or shape, the runtime says so
    try:
        array = np.asarray(value, tensor.numpy_dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise CompileError(f"input {tensor.name!r} of {tensor.dtype}: {error}") from error
    if array.ndim == 0 and all(isinstance(d, int) for d in tensor.dims):
        return np.full(tensor.dims, array, tensor.numpy_dtype)  # type: ignore[arg-type]
    return array


def _known_extents(
    tensors: Sequence[TensorInfo],
    given: Mapping[str, ArrayLike],
    shapes: Mapping[str, Sequence[int]],
) -> dict[str, int]:
    """Dim text -> extent, from the inputs whose shape the user chose."""
    known: dict[str, int] = {}
    for tensor in tensors:
        value = given.get(tensor.name)
        shape = value.shape if isinstance(value, np.ndarray) else shapes.get(tensor.name, ())
        if len(shape) == len(tensor.dims):
            for dim, extent in zip(tensor.dims, shape, strict=True):
                if isinstance(dim, str) and dim != UNNAMED:
                    known.setdefault(dim, extent)
    return known


def _shape(
    tensor: TensorInfo, given: Sequence[int] | None, known: Mapping[str, int]
) -> tuple[int, ...]:
    if given is not None:
        if len(given) != len(tensor.dims):
            raise CompileError(
                f"input {tensor} has {len(tensor.dims)} dims, its shape {len(given)}"
            )
        for axis, (extent, dim) in enumerate(zip(given, tensor.dims, strict=True)):
            if isinstance(dim, int) and dim != extent:
                raise CompileError(f"input {tensor}: axis {axis} is {dim}, its shape says {extent}")
        return tuple(given)
    shape = []
    for axis, dim in enumerate(tensor.dims):
        if isinstance(dim, int):
            shape.append(dim)
        elif dim in known:
            shape.append(known[dim])
        elif axis == 0:
            shape.append(first_extent(tensor))
        else:
            raise CompileError(
                f"input {tensor}: axis {axis} is open: give a shape with --shape {tensor.name}=..."
            )
    return tuple(shape)


def first_extent(tensor: TensorInfo) -> int:
    """The extent of an open first axis that nobody gives: as small as its bound lets it be."""
    return max(tensor.bounds[0][0], 1)


def _random(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    if dtype.kind not in "iub":  # bfloat16 is of no kind that numpy knows
        return generator.standard_normal(shape).astype(dtype)
    return generator.integers(0, 2, shape).astype(dtype)
