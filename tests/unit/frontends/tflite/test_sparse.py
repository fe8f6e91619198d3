"""Sparse constants: by whatever order, blocks and rows they are stored, they come back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aot.errors import CompileError
from aot.frontends.tflite.sparse import dense

DENSE, COMPRESSED = 0, 1


def stored(
    array: np.ndarray, order: Sequence[int], formats: Sequence[int], blocks: dict[int, int]
) -> tuple[SimpleNamespace, bytes]:
    """A constant by TACO's format: level by level, the coordinates that hold something.

    Args:
        order: dims in the order of traversal; those from the rank on are of blocks.
        formats: of each level, in that order.
        blocks: extents of blocks by their dims.
    """
    rank, sizes = array.ndim, list(blocks.values())
    shape = [n // blocks.get(d, 1) for d, n in enumerate(array.shape)]
    split = array.reshape([n for d in range(rank) for n in (shape[d], blocks.get(d, 1))])
    inner = [2 * d + 1 for d in blocks]
    rest = [2 * d + 1 for d in range(rank) if d not in blocks]
    by_level = split.transpose([*range(0, 2 * rank, 2), *inner, *rest])
    by_level = by_level.reshape([*shape, *sizes]).transpose(order)
    prefixes: list[tuple[int, ...]] = [()]
    levels = []
    for level, (dim, format) in enumerate(zip(order, formats, strict=True)):
        extent = by_level.shape[level]
        facts = {"format": format, "dense_size": extent if dim >= rank or format == DENSE else 0}
        if format == DENSE:
            prefixes = [(*p, n) for p, n in product(prefixes, range(extent))]
        else:
            found = [[n for n in range(extent) if np.any(by_level[(*p, n)])] for p in prefixes]
            ends = np.cumsum([0, *map(len, found)]).tolist()
            facts["array_segments"] = SimpleNamespace(values=ends)
            facts["array_indices"] = SimpleNamespace(values=[n for row in found for n in row])
            prefixes = [(*p, n) for p, row in zip(prefixes, found, strict=True) for n in row]
        levels.append((dim, SimpleNamespace(**facts)))
    sparsity = SimpleNamespace(
        traversal_order=list(order),
        block_map=list(blocks),
        dim_metadata=[table for _, table in levels],
    )
    values = np.array([by_level[p] for p in prefixes], array.dtype)
    return sparsity, values.tobytes()


def sparse_array(*shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < 0.3, rng.standard_normal(shape), 0).astype(np.float32)


def read(sparsity: Any, data: bytes, dims: Sequence[int]) -> np.ndarray:
    return dense(sparsity, memoryview(data), np.dtype(np.float32), dims, "tensor 3 ('w')")


@pytest.mark.parametrize(
    ("shape", "order", "formats", "blocks"),
    [
        ((5, 7), (0, 1), (DENSE, COMPRESSED), {}),
        ((5, 7), (1, 0), (DENSE, COMPRESSED), {}),
        ((5, 7), (0, 1), (COMPRESSED, COMPRESSED), {}),
        ((5, 7), (0, 1), (DENSE, DENSE), {}),
        ((8, 6), (0, 1, 2), (DENSE, COMPRESSED, DENSE), {1: 2}),
        ((8, 6), (0, 1, 2, 3), (DENSE, COMPRESSED, DENSE, DENSE), {0: 4, 1: 3}),
        ((4, 3, 2, 6), (0, 1, 2, 3), (DENSE, DENSE, DENSE, COMPRESSED), {}),
        ((4, 3, 2, 8), (0, 1, 2, 3, 4), (DENSE, DENSE, DENSE, COMPRESSED, DENSE), {3: 4}),
        ((9,), (0,), (COMPRESSED,), {}),
    ],
)
def test_what_was_stored_comes_back(
    shape: tuple[int, ...], order: Sequence[int], formats: Sequence[int], blocks: dict[int, int]
) -> None:
    for array in (sparse_array(*shape), np.zeros(shape, np.float32)):
        np.testing.assert_array_equal(read(*stored(array, order, formats, blocks), shape), array)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"traversal_order": [0]}, "is sparse in a way that its shape does not have"),
        ({"traversal_order": [0, 0]}, "is sparse in a way that its shape does not have"),
        ({"traversal_order": None}, "is sparse in a way that its shape does not have"),
        ({"block_map": [2]}, "is sparse in a way that its shape does not have"),
        ({"array_segments": [0, 1]}, "has rows of sparse elements that cannot be"),
        ({"array_segments": [0, 9, 3, 4, 5, 6]}, "has rows of sparse elements that cannot be"),
        ({"array_indices": [-1]}, "has rows of sparse elements that cannot be"),
        ({"array_indices": None}, "has rows of sparse elements that cannot be"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    array = sparse_array(5, 7)
    sparsity, data = stored(array, (0, 1), (DENSE, COMPRESSED), {})
    for name, value in change.items():
        if hasattr(sparsity, name):
            setattr(sparsity, name, value)
        else:
            given = None if value is None else SimpleNamespace(values=value)
            setattr(sparsity.dim_metadata[1], name, given)
    with pytest.raises(CompileError) as caught:
        read(sparsity, data, array.shape)
    assert str(caught.value) == f"tensor 3 ('w') {message}"


def test_extents_that_do_not_fit_are_refused() -> None:
    array = sparse_array(8, 6)
    sparsity, data = stored(array, (0, 1, 2), (DENSE, COMPRESSED, DENSE), {1: 2})
    for size, dims, message in (
        (4, (8, 6), "tensor 3 ('w'): dim 1 of 6 has blocks of 4"),
        (0, (8, 6), "tensor 3 ('w'): dim 1 of 6 has blocks of 0"),
        (2, (1 << 20, 1 << 20), "tensor 3 ('w') is sparse in a way that its shape does not have"),
    ):
        sparsity.dim_metadata[2].dense_size = size
        with pytest.raises(CompileError) as caught:
            read(sparsity, data, dims)
        assert str(caught.value) == message
    sparsity.dim_metadata[2].dense_size = 2
    with pytest.raises(CompileError, match=r"^tensor 3 \('w'\) has \d+ values, expected \d+$"):
        read(sparsity, data[:-4], (8, 6))
