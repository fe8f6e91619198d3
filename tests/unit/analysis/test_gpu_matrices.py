"""Tiles of matrices on GPUs: how many matrices a subgroup has, and where there is no such tile."""

from __future__ import annotations

import pytest

from aot.analysis.cost.gpu_matrices import MatrixExtents, matrix_tile
from aot.ir import dims
from aot.ir.dims import Dim, symbol
from aot.target import selection as targets

N = symbol("n")


@pytest.mark.parametrize(
    ("extents", "expected"),
    [
        ((4096, 4096, 1), (64, 128)),
        ((1024, 1024, 1), (64, 128)),  # 128 workgroups of 128 lanes
        ((1024, 512, 1), (64, 64)),
        ((1024, 512, 2), (64, 128)),
        ((3136, 64, 1), (32, 32)),
        ((512, 200, 2), (32, 32)),  # of a wider tile's columns a third would be none
        ((49, 512, 1), None),  # 32 workgroups, and terms that can't be shared
        ((9, 9, 1), None),
        ((8, 512, 1), None),
        ((512, 8, 1), None),
        ((N, 512, 1), (64, 64)),
        ((512, N, 1), (64, 64)),
    ],
)
def test_a_tile_leaves_lanes_enough(
    extents: tuple[Dim, Dim, Dim], expected: tuple[int, int] | None
) -> None:
    gpu = targets.load("nvidia-matrix").gpu
    assert gpu is not None
    tile = matrix_tile(gpu.matrices[0], gpu, gpu.lanes, MatrixExtents(*extents, 48))
    assert (None if tile is None else (tile.rows, tile.columns)) == expected


def test_few_results_of_unknown_extents_have_the_least_tile() -> None:
    gpu = targets.load("nvidia-matrix").gpu
    assert gpu is not None
    tile = matrix_tile(gpu.matrices[0], gpu, gpu.lanes, MatrixExtents(N, N, 1, N, are_few=True))
    assert tile is not None
    assert (tile.rows, tile.columns, tile.shares) == (32, 32, 1)
    tile = matrix_tile(
        gpu.matrices[0], gpu, gpu.lanes, MatrixExtents(N, N, 1, dims.multiply(64, N), are_few=True)
    )
    assert tile is not None
    assert (tile.rows, tile.columns, tile.shares) == (16, 16, 4)


@pytest.mark.parametrize(
    ("rows", "channels", "shares"),
    [(49, 512, 4), (49, 64, 4), (784, 512, 1), (4096, 512, 1)],
)
def test_subgroups_share_long_sums_of_few_results(rows: int, channels: int, shares: int) -> None:
    gpu = targets.load("nvidia-matrix").gpu
    assert gpu is not None
    extents = MatrixExtents(rows, 512, 1, channels)
    tile = matrix_tile(gpu.matrices[0], gpu, gpu.lanes, extents)
    assert tile is not None
    assert tile.shares == shares
    assert tile.subgroups == 4


def test_subgroups_stand_in_a_square_or_two() -> None:
    gpu = targets.load("lavapipe-matrix").gpu
    assert gpu is not None
    for lanes, grid in ((8, (1, 1)), (16, (1, 2)), (32, (2, 2)), (64, (2, 4))):
        tile = matrix_tile(gpu.matrices[0], gpu, lanes, MatrixExtents(512, 512, 1, 48))
        assert tile is not None
        assert (tile.along, tile.across) == grid
