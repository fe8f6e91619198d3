"""Kernels written by hand that serve several lengths compute what kernels for one length do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.errors import UnsupportedError
from aot.ir.graph import Module
from tests.support.cross import require_runtime, run_module
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

TARGET = "x86-64-v2"
LENGTHS = (20, 33, 64, 97)


def attention(lengths: Sequence[int]) -> Module:
    """Queries of each length to keys of another."""
    b = Builder()
    for n, (queries, keys) in enumerate(zip(lengths, reversed(lengths), strict=True)):
        q = b.input(f"q{n}", f"f32[2, 4, {queries}, 16]")
        k, v = (b.input(f"{name}{n}", f"f32[2, 4, {keys}, 16]") for name in "kv")
        b.output(f"y{n}", b.op("attention", q, k, v, scale=0.25))
    return b.module()


def scan(lengths: Sequence[int]) -> Module:
    b = Builder()
    for n, length in enumerate(lengths):
        b.output(f"y{n}", b.op("scan", b.input(f"x{n}", f"f32[{n + 3}, {length}]"), axis=1))
    return b.module()


def top_k(lengths: Sequence[int]) -> Module:
    b = Builder()
    for n, length in enumerate(lengths):
        x = b.input(f"x{n}", f"f32[5, {length}]")
        values, places = b.op("top_k", x, axis=1, k=length // 2, largest=True)
        b.output(f"y{n}", values)
        b.output(f"i{n}", places)
    return b.module()


def lstm(lengths: Sequence[int]) -> Module:
    b = Builder()
    draw = np.random.default_rng(4)
    w, r = (b.constant(draw.standard_normal((1, 64, k)).astype(np.float32) / 4) for k in (24, 16))
    for n, length in enumerate(lengths):
        x = b.input(f"x{n}", f"f32[{length}, {n + 2}, 24]")
        made = b.op("lstm", x, w, r, None, None, None, None, None, hidden_size=16)
        b.output(f"y{n}", made[0])
    return b.module()


def scatter(lengths: Sequence[int]) -> Module:
    b = Builder()
    for n, length in enumerate(lengths):
        x, u = b.input(f"x{n}", f"f32[6, {length}]"), b.input(f"u{n}", f"f32[6, {length // 2}]")
        i = b.input(f"i{n}", f"i64[6, {length // 2}]")
        b.output(f"y{n}", b.op("scatter_elements", x, i, u, axis=1))
    return b.module()


GRAPHS: dict[str, Callable[[Sequence[int]], Module]] = {
    f.__name__: f for f in (attention, scan, top_k, lstm, scatter)
}


def given(program: aot.Program) -> dict[str, Any]:
    draw = np.random.default_rng(8)
    return {
        i.name: draw.integers(-9, 9, i.dims)
        if i.dtype == "i64"
        else draw.standard_normal(i.dims).astype(np.float32)
        for i in program.inputs
    }


@pytest.mark.parametrize("name", GRAPHS)
def test_four_lengths_have_one_kernel(name: str) -> None:
    module = GRAPHS[name](LENGTHS)
    shared = aot.compile(module, targets=[TARGET], optimize="size")
    apart = aot.compile(GRAPHS[name](LENGTHS), targets=[TARGET], disable=["despecialise"])
    kept = [len(m.image.variants[0].executables) for m in (shared, apart)]
    parts = 2 if name == "lstm" else 1  # its products with the input are a dispatch of their own
    assert kept == [parts, 4 * parts]
    with aot.load(shared) as one, aot.load(apart) as other:
        arrays = given(one)
        expected, found = other(arrays), one(arrays)
    for key, array in expected.items():
        np.testing.assert_allclose(found[key], array, rtol=2e-6, atol=2e-6)


def check_on_a_gpu(
    shared: aot.CompiledModule, apart: aot.CompiledModule, driver: str, folder: Path
) -> None:
    """A driver gives for `shared` what the CPU does for `apart`."""
    with aot.load(apart) as program:
        arrays = given(program)
        expected = program(arrays)
    with running_on(driver, folder), aot.load(shared, "vulkan") as program:
        found = program(arrays)
    for key, array in expected.items():
        np.testing.assert_allclose(found[key], array, rtol=3e-6, atol=3e-6)


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("name", GRAPHS)
def test_four_lengths_have_one_pipeline_on_a_gpu(name: str, driver: str, tmp_path: Path) -> None:
    """Casts of positions, and an LSTM's products with its input, are a kernel more."""
    shared = aot.compile(GRAPHS[name](LENGTHS), targets=["vulkan-1.1"], optimize="size")
    parts = 1 if name in ("attention", "scan") else 2
    assert len(shared.image.variants[0].executables) == parts
    apart = aot.compile(GRAPHS[name](LENGTHS), targets=[TARGET], disable=["despecialise"])
    check_on_a_gpu(shared, apart, driver, tmp_path)


def few_and_many_queries(lengths: Sequence[int]) -> Module:
    """On a GPU each of few queries has several rows of lanes, each of many has one."""
    b = Builder()
    for n, length in enumerate(lengths):
        q = b.input(f"q{n}", f"f32[2, 2, {(2, 7, 64, 100)[n]}, 16]")
        k, v = (b.input(f"{name}{n}", f"f32[2, 2, {length}, 16]") for name in "kv")
        b.output(f"y{n}", b.op("attention", q, k, v, scale=0.25))
    return b.module()


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_attentions_of_few_and_of_many_queries_on_a_gpu(driver: str, tmp_path: Path) -> None:
    shared = aot.compile(few_and_many_queries(LENGTHS), targets=["vulkan-1.1"], optimize="size")
    assert len(shared.image.variants[0].executables) == 2
    apart = aot.compile(few_and_many_queries(LENGTHS), targets=[TARGET])
    check_on_a_gpu(shared, apart, driver, tmp_path)


@pytest.mark.vulkan
def test_attentions_on_a_gpu_share_a_kernel_where_time_counts_too() -> None:
    """Where each query has one row of lanes, a kernel of an unknown number of them knows it."""
    module = aot.compile(attention(LENGTHS), targets=["vulkan-1.1"])
    assert len(module.image.variants[0].executables) == 1


@pytest.mark.vulkan
def test_what_is_too_long_for_a_gpu_leaves_the_others_there(tmp_path: Path) -> None:
    """The host has the one dispatch whose lanes may not go so far, and the GPU those of its
    executable that may; without a host the one is refused by name."""
    lengths = (*LENGTHS, 70_000)
    targets = ["vulkan-1.1", TARGET]
    module = aot.compile(scan(lengths), targets=targets, optimize="size")
    fallback = module.stats["variants"][0]["cpu_fallback"]
    assert (fallback["executables"], fallback["dispatches"]) == (1, 1)
    assert len(module.image.variants[0].executables) == 2
    with pytest.raises(UnsupportedError) as caught:
        aot.compile(scan(lengths), targets=targets[:1], optimize="size")
    assert str(caught.value) == (
        "target vulkan-1.1 can't run these; add a --target for the CPU, which then runs them in "
        "the same program:\n  scan (executable e1): a lane would go through 70,001 iterations, and "
        "may through 65,535"
    )
    with aot.load(module, "cpu") as program:
        arrays = given(program)
        expected = program(arrays)
    with running_on("lavapipe", tmp_path), aot.load(module, "vulkan") as program:
        found = program(arrays)
    for key, array in expected.items():
        np.testing.assert_allclose(found[key], array, rtol=2e-5, atol=2e-4)


def test_attentions_of_other_depths_have_kernels_of_their_own() -> None:
    b = Builder()
    for n, depth in enumerate((16, 24)):
        q, k, v = (b.input(f"{name}{n}", f"f32[1, 2, 64, {depth}]") for name in "qkv")
        b.output(f"y{n}", b.op("attention", q, k, v, scale=0.25))
    module = aot.compile(b.module(), targets=[TARGET], optimize="size")
    assert len(module.image.variants[0].executables) == 2


def equal_layers(count: int) -> Module:
    """Dense layers of one shape: the first reads the input, the last writes the output."""
    b = Builder()
    draw = np.random.default_rng(6)
    x = b.input("x", "f32[512, 64]")
    for _ in range(count):
        weights = b.constant(draw.standard_normal((64, 64)).astype(np.float32) / 8)
        x = b.op("relu", b.op("matmul", x, weights))
    b.output("y", x)
    return b.module()


@pytest.mark.parametrize("optimize", ["speed", "balanced", "size"])
def test_equal_layers_have_one_kernel_the_first_and_the_last_included(optimize: str) -> None:
    module = aot.compile(equal_layers(10), targets=[TARGET], optimize=optimize)
    assert len(module.image.variants[0].executables) == 1
    apart = aot.compile(equal_layers(10), targets=[TARGET], disable=["despecialise"])
    with aot.load(module) as one, aot.load(apart) as other:
        arrays = given(one)
        np.testing.assert_array_equal(one(arrays)["y"], other(arrays)["y"])


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("arch", "target"),
    [("aarch64", "aarch64-generic"), ("arm", "armv7-neon"), ("riscv64", "riscv64")],
)
def test_classes_of_buffers_on_other_cpus(arch: str, target: str, tmp_path: Path) -> None:
    require_runtime(arch)
    module = aot.compile(equal_layers(3), targets=[target])
    assert len(module.image.variants[0].executables) == 1
    apart = aot.compile(equal_layers(3), targets=[TARGET], disable=["despecialise"])
    with aot.load(apart) as program:
        arrays = given(program)
        expected = program(arrays)["y"]
    outputs, _ = run_module(arch, tmp_path, module.to_bytes(), arrays)
    np.testing.assert_allclose(outputs["y"], expected, rtol=1e-5, atol=1e-5)
