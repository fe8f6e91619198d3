"""Contractions whose weights a CPU's cache does not hold: all rows pass some columns at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aot
from aot.target import selection as targets

X86 = "x86-64-v3"
MATMUL = """
func @main(%x: f32[ROWS, 24], %w: f32[24, COLUMNS]) -> ("y") {
  %1 = matmul(%x, %w) : f32[ROWS, COLUMNS]
  return(%1)
}
"""
BATCHED = """
func @main(%x: f32[2, N, 24], %w: f32[2, 24, 100]) -> ("y") {
  %1 = matmul(%x, %w) : f32[2, N, 100]
  return(%1)
}
"""
INTEGERS = """
func @main(%x: u8[N, 24], %w: i8[24, 200]) -> ("y") {
  %1 = matmul_integer(%x, %w) : i32[N, 200]
  return(%1)
}
"""
CONV = """
func @main(%x: f32[1, 8, SIZE], %w: f32[90, 8, WINDOW]) -> ("y") {
  %1 = conv(%x, %w) {strides = [1, 1], dilations = [1, 1], pads = [PADS]} : f32[1, 90, SIZE]
  return(%1)
}
"""


SHARED = """
func @main(%x: f32[7, 48], %v: f32[96, 112], %w: f32[48, 96]) -> ("y") {
  %1 = matmul(%x, %w) : f32[7, 96]
  %2 = matmul(%1, %v) : f32[7, 112]
  return(%2)
}
"""


@pytest.fixture(params=[1024, 16384])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """One whose second-level cache holds no tile of weights, or a few."""
    text = (targets.directory() / f"{X86}.toml").read_text()
    usual = f"l2_bytes = {targets.load(X86).l2_bytes}"
    assert usual in text
    path = tmp_path / "small.toml"
    path.write_text(text.replace(usual, f"l2_bytes = {request.param}"))
    return str(path)


def numbers(seed: int, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


@pytest.mark.parametrize("rows", ["N", "13"])
@pytest.mark.parametrize("columns", [16, 100, 133])
def test_matmul(rows: str, columns: int, target: str) -> None:
    text = MATMUL.replace("ROWS", rows).replace("COLUMNS", str(columns))
    w = numbers(columns, 24, columns)
    module = aot.compile(text.encode(), input_values={"w": w}, targets=[target])
    with aot.load(module) as program:
        for n in (0, 1, 5, 13) if rows == "N" else (13,):
            x = numbers(n, n, 24)
            np.testing.assert_array_equal(program({"x": x})["y"], x @ w, str(n))


def test_batches_have_weights_of_their_own(target: str) -> None:
    w = numbers(1, 2, 24, 100)
    module = aot.compile(BATCHED.encode(), input_values={"w": w}, targets=[target])
    with aot.load(module) as program:
        for n in (1, 17):
            x = numbers(n, 2, n, 24)
            np.testing.assert_array_equal(program({"x": x})["y"], x @ w)


def test_extents_that_are_parameters(target: str) -> None:
    """One kernel for two products; how many columns rows pass at a time the program says."""
    v, w = numbers(5, 96, 112), numbers(6, 48, 96)
    module = aot.compile(
        SHARED.encode(),
        input_values={"v": v, "w": w},
        targets=[target],
        optimize="size",
        disable=("join-regions",),
    )
    found = module.stats["variants"][0]["executables"]["despecialised"]
    assert (found["met"], found["kept"]) == (2, 1)
    with aot.load(module) as program:
        x = numbers(7, 7, 48)
        np.testing.assert_array_equal(program({"x": x})["y"], x @ w @ v)


def test_integers(target: str) -> None:
    """Rows come into scratch once for some tiles, which one workgroup does."""
    random = np.random.default_rng(4)
    w = random.integers(-128, 128, (24, 200)).astype(np.int8)
    module = aot.compile(INTEGERS.encode(), input_values={"w": w}, targets=[target])
    with aot.load(module) as program:
        for n in (1, 14):
            x = random.integers(0, 256, (n, 24)).astype(np.uint8)
            wanted = x.astype(np.int32) @ w.astype(np.int32)
            np.testing.assert_array_equal(program({"x": x})["y"], wanted)


@pytest.mark.parametrize("sizes", [(5, 1), (7, 3)])
def test_convolution(sizes: tuple[int, int], target: str) -> None:
    extent, kernel = sizes
    pads = ", ".join([str(kernel // 2)] * 4)
    text = CONV.replace("SIZE", f"{extent}, {extent}").replace("WINDOW", f"{kernel}, {kernel}")
    text = text.replace("PADS", pads)
    w, x = numbers(2, 90, 8, kernel, kernel), numbers(3, 1, 8, extent, extent)
    module = aot.compile(text.encode(), input_values={"w": w}, targets=[target], winograd=False)
    framed = np.pad(x, ((0, 0), (0, 0), (kernel // 2,) * 2, (kernel // 2,) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(framed, (kernel, kernel), (2, 3))
    with aot.load(module) as program:
        wanted = np.einsum("nchwij,ocij->nohw", windows, w)
        np.testing.assert_array_equal(program({"x": x})["y"], wanted)
