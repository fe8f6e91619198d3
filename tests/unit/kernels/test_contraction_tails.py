"""Contractions over a number of rows that only the device knows: whole tiles, and every rest."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import aot

ROWS = range(35)  # more than two of the highest tile, and none

MATMUL = """
func @main(%x: f32[N, 24], %w: f32[24, COLUMNS]) -> ("y") {
  %1 = matmul(%x, %w) : f32[N, COLUMNS]
  %2 = relu(%1) : f32[N, COLUMNS]
  return(%2)
}
"""
CONV = """
func @main(%x: f32[1, 8, 3, W], %w: f32[COLUMNS, 8, 3, 3]) -> ("y") {
  %1 = conv(%x, %w) {strides = [1, 1], dilations = [1, 1], pads = [1, 1, 1, 1]} : SHAPE
  return(%1)
}
"""


@cache
def weights(columns: int, *others: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    random = np.random.default_rng(columns)
    return random.integers(-3, 4, (columns, *others)).astype(np.float32)


@pytest.mark.parametrize("columns", [16, 32, 48, 64, 72])
def test_matmul(columns: int) -> None:
    w = weights(columns, 24).T
    text = MATMUL.replace("COLUMNS", str(columns))
    with aot.load(aot.compile(text.encode(), input_values={"w": w})) as program:
        for n in ROWS:
            x = np.random.default_rng(n).integers(-3, 4, (n, 24)).astype(np.float32)
            np.testing.assert_array_equal(program({"x": x})["y"], np.maximum(x @ w, 0), str(n))


@pytest.mark.parametrize("columns", [16, 32, 64])
def test_conv_with_pads(columns: int) -> None:
    w = weights(columns, 8, 3, 3)
    text = CONV.replace("SHAPE", f"f32[1, {columns}, 3, W]").replace("COLUMNS", str(columns))
    with aot.load(aot.compile(text.encode(), input_values={"w": w})) as program:
        for n in ROWS[1:]:
            x = np.random.default_rng(n).integers(-3, 4, (1, 8, 3, n)).astype(np.float32)
            framed = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
            wanted = sum(
                np.einsum("nchw,oc->nohw", framed[:, :, i : i + 3, j : j + n], w[:, :, i, j])
                for i in range(3)
                for j in range(3)
            )
            np.testing.assert_array_equal(program({"x": x})["y"], wanted, str(n))


GROUPED = """
func @main(%a: f32[1, 4, 3, 5], %w: f32[COLUMNS, 2, 1, 1], %v: f32[COLUMNS, N, 1, 1]) -> ("y") {
  %1 = transpose(%a) {perm = [0, 2, 3, 1]} : f32[1, 3, 5, 4]
  %2 = transpose(%1) {perm = [0, 3, 1, 2]} : f32[1, 4, 3, 5]
  %3 = conv(%2, %w) {strides = [1, 1], dilations = [1, 1], pads = [0, 0, 0, 0], group = 2} : SHAPE
  %4 = conv(%3, %v) {strides = [1, 1], dilations = [1, 1], pads = [0, 0, 0, 0], group = 2} : SHAPE
  %5 = add(%4, %3) : SHAPE
  return(%5)
}
"""


@pytest.mark.parametrize("storage", ["fp32", "fp16"])
@pytest.mark.parametrize("share", [1, 3, 7, 8, 9, 15, 16, 17, 20, 31, 34, 47])
def test_columns_of_groups(share: int, storage: str) -> None:
    """A tile past the last column begins earlier; what is computed again is stored once."""
    columns = 2 * share
    w, v = weights(columns, 2, 1, 1), weights(columns, share, 1, 1)
    text = GROUPED.replace("SHAPE", f"f32[1, {columns}, 3, 5]")
    text = text.replace("COLUMNS", str(columns)).replace(" N,", f" {share},")
    made = aot.compile(text.encode(), input_values={"w": w, "v": v}, storage=storage)
    with aot.load(made) as program:
        a = np.random.default_rng(share).integers(-1, 2, (1, 4, 3, 5)).astype(np.float32)
        first = np.einsum("ngchw,goc->ngohw", a.reshape(1, 2, 2, 3, 5), w.reshape(2, share, 2))
        second = np.einsum("ngchw,goc->ngohw", first, v.reshape(2, share, share))
        wanted = (first + second).reshape(1, columns, 3, 5)
        np.testing.assert_array_equal(program({"a": a})["y"], wanted)
