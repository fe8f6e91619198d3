"""Converts TFLite's sparse constants to dense ones.

The format is TACO's (Kjolstad et al., OOPSLA 2017): dims in an order of traversal, blocks behind
them, each stored whole or as compressed rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.errors import CompileError
from aot.frontends.tflite.flatbuffer import Table
from aot.ir.types import Array

MOST_ELEMENTS = 1 << 28  # of one constant, which a short file could ask for


def dense(
    sparsity: Table, stored: memoryview, dtype: Any, dims: Sequence[int], label: str
) -> Array:
    """The elements of a sparse constant of shape `dims`.

    Raises:
        CompileError: its description does not fit its shape or its bytes.
    """
    order = _ints(sparsity.traversal_order)
    blocks = _ints(sparsity.block_map)
    metadata = sparsity.dim_metadata
    rank = len(dims)
    is_sound = (
        len(order) == len(metadata) == rank + len(blocks)
        and sorted(order) == list(range(len(order)))
        and all(0 <= d < rank for d in blocks)
        and len(set(blocks)) == len(blocks)
        and math.prod(dims) <= MOST_ELEMENTS
        and len(stored) % dtype.itemsize == 0
    )
    if not is_sound:
        raise CompileError(f"{label} is sparse in a way that its shape does not have")
    values = np.frombuffer(stored, dtype)
    block_sizes = [int(m.dense_size) for m in metadata[rank:]]
    sizes = list(dims)
    for d, size in zip(blocks, block_sizes, strict=True):
        if size < 1 or sizes[d] % size:
            raise CompileError(f"{label}: dim {d} of {sizes[d]} has blocks of {size}")
        sizes[d] //= size
    extents = [*sizes, *block_sizes]
    places = _places(metadata, [extents[d] for d in order], label)
    if places.shape[1] != values.size:
        raise CompileError(f"{label} has {values.size} values, expected {places.shape[1]}")
    of_dim = {d: places[number] for number, d in enumerate(order)}
    for number, d in enumerate(blocks):
        of_dim[d] = of_dim[d] * block_sizes[number] + of_dim[rank + number]
    made = np.zeros(dims, dtype)
    made[tuple(of_dim[d] for d in range(rank))] = values
    return made


def _places(metadata: Sequence[Table], extents: Sequence[int], label: str) -> Array:
    """The coordinates of the stored values, in traversal order: [dims, values]."""
    places = np.zeros((0, 1), np.int64)
    for table, extent in zip(metadata, extents, strict=True):
        count = places.shape[1]
        if table.format == 0:
            if count * extent > MOST_ELEMENTS:
                raise CompileError(f"{label} has too many elements")
            inner: Array = np.tile(np.arange(extent), count)
            outer = np.repeat(places, extent, axis=1)
        else:
            segments = _ints(_values(table.array_segments))
            inner = np.asarray(_ints(_values(table.array_indices)), np.int64)
            lengths: Array = np.diff(np.asarray(segments, np.int64))
            is_sound = (
                len(segments) == count + 1
                and segments[0] == 0
                and segments[-1] == inner.size
                and (lengths >= 0).all()
                and (inner >= 0).all()
                and (inner < extent).all()
            )
            if not is_sound:
                raise CompileError(f"{label} has rows of sparse elements that cannot be")
            outer = np.repeat(places, lengths, axis=1)
        places = np.concatenate([outer, inner[None]])
    return places


def _values(table: Table | None) -> Array | None:
    return None if table is None else table.values


def _ints(found: Any) -> list[int]:
    return [] if found is None else [int(n) for n in found]
