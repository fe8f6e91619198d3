"""Tiles of matrices on GPUs: how many matrices a subgroup has, and where there is no such tile."""

from __future__ import annotations

import pytest

from aot.analysis.cost.gpu_matrices import matrix_tile
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
        ((49, 512, 1), (32, 32)),
        ((9, 9, 1), (32, 32)),
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
    tile = matrix_tile(gpu.matrices[0], gpu, gpu.lanes, *extents)
    assert (None if tile is None else (tile.rows, tile.columns)) == expected


def test_subgroups_stand_in_a_square_or_two() -> None:
    gpu = targets.load("lavapipe-matrix").gpu
    assert gpu is not None
    for lanes, grid in ((8, (1, 1)), (16, (1, 2)), (32, (2, 2)), (64, (2, 4))):
        tile = matrix_tile(gpu.matrices[0], gpu, lanes, 512, 512, 1)
        assert tile is not None
        assert (tile.along, tile.across) == grid
