"""`--arithmetic fp16`: which ops are in f16, on which targets, and what is said of it.

Golden texts of the pass are in tests/golden/passes/narrow-arithmetic; kernels in test_half_sums.py.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.cli.text import compile_summary
from aot.driver.pipeline import read_model
from aot.errors import CompileError
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.ir.types import DType
from aot.ir.verifier import verify
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target.selection import load
from tests.support.cross import require_runtime, run_module

TARGET = "aarch64-linux-dotprod"
SAME: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1)}


def network(image: int = 28) -> Module:
    """A block with an expansion, a depthwise convolution, a sum with what came in, and a head."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return b.constant((rng.normal(size=shape) / 5).astype(np.float32))

    b = Builder()
    x = b.input("x", f"f32[1, 3, {image}, {image}]")
    y = b.op("conv", x, weights(32, 3, 3, 3), weights(32), group=1, pads=(1,) * 4, **SAME)
    first = b.op("hard_swish", y)
    y = b.op("conv", first, weights(64, 32, 1, 1), weights(64), group=1, pads=(0,) * 4, **SAME)
    y = b.op("relu", y)
    y = b.op("conv", y, weights(64, 1, 5, 5), weights(64), group=64, pads=(2,) * 4, **SAME)
    y = b.op("mul", y, b.op("sigmoid", y))
    y = b.op("conv", y, weights(32, 64, 1, 1), weights(32), group=1, pads=(0,) * 4, **SAME)
    y = b.op("reduce_mean", b.op("add", y, first), axes=(2, 3), keepdims=False)
    y = b.op("matmul", y, weights(32, 24))
    b.output("y", b.op("softmax", b.op("add", y, weights(24)), axis=1))
    return b.module()


def narrowed(module: Module, **options: Any) -> tuple[Module, PassContext]:
    """The module after all passes."""
    wanted = CompileOptions(targets=(TARGET,), arithmetic="fp16", **options)
    made = read_model(module, wanted)
    context = PassContext(wanted, load(TARGET))
    run_passes(made, (*MODEL_PASSES, *TARGET_PASSES), context)
    verify(made)
    return made, context


def ops_of(module: Module) -> dict[str, set[DType]]:
    """The dtypes of what each kind of op makes in the executables."""
    found: dict[str, set[DType]] = {}
    for function in module.executables:
        for op in function.walk():
            for value in op.results:
                found.setdefault(op.name, set()).add(value.type.dtype)
    return found


def test_products_and_what_is_between_them_are_in_f16() -> None:
    module, _ = narrowed(network())
    found = ops_of(module)
    for name in ("conv", "matmul", "hard_swish", "relu", "mul", "reduce_mean"):
        assert found[name] == {DType.F16}, name
    for name in ("sigmoid", "softmax"):
        assert found[name] == {DType.F32}, name
    made = [op for function in module.executables for op in function.walk()]
    products = [op for op in made if op.name in ("conv", "matmul")]
    assert all(op.attrs["half_sums"] for op in products)


def test_what_dispatches_hand_on_is_stored_in_f16() -> None:
    module, _ = narrowed(network())
    images = [
        v.type.dtype
        for op in module.main.block
        for v in op.results
        if op.name == "dispatch" and v.type.rank == 4
    ]
    assert len(images) >= 4 and set(images) == {DType.F16}


def test_a_convolution_that_winograd_makes_cheaper_stays_in_f32() -> None:
    """It computes a quarter of the products: more than f16 saves."""
    b = Builder()
    x = b.input("x", "f32[1, 128, 64, 64]")
    w = b.constant(np.ones((128, 128, 3, 3), np.float32) / 8)
    b.output("y", b.op("relu", b.op("conv", x, w, group=1, pads=(1,) * 4, **SAME)))
    for has_winograd in (True, False):
        module, _ = narrowed(b.module(), winograd=has_winograd)
        is_there = any(
            op.attrs.get("algorithm") == "winograd"
            for function in module.executables
            for op in function.walk()
        )
        expected = DType.F32 if is_there else DType.F16
        assert ops_of(module)["conv"] == {expected}
        assert not is_there or has_winograd


def test_the_summary_says_how_much_is_in_f16() -> None:
    data = aot.compile(network(), targets=[TARGET], arithmetic="fp16")
    (variant,) = data.stats["variants"]
    counts = variant["arithmetic"]
    assert counts["multiply_adds_in_f16"] == counts["multiply_adds"] > 0
    text = compile_summary(data.stats, "m.aotm", 0, 0)
    assert f"100.0 % of {counts['multiply_adds']:,} multiply-adds in f16" in text
    assert "arithmetic" not in aot.compile(network(), targets=[TARGET]).stats["variants"][0]


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (["x86-64-v3"], "x86-64-v3"),
        ([TARGET, "x86-64-v2", "aarch64-generic"], "x86-64-v2, aarch64-generic"),
        (["adreno-fp16"], "adreno-fp16"),
    ],
)
def test_targets_without_fast_f16_are_refused(wanted: list[str], named: str) -> None:
    expected = (
        f"arithmetic fp16: target {named} has no vectors of float16 to multiply; "
        "storage fp16 stores them on every target"
    )
    with pytest.raises(CompileError, match=f"^{re.escape(expected)}$"):
        aot.compile(network(), targets=wanted, arithmetic="fp16")


@pytest.mark.qemu
@pytest.mark.parametrize("image", [28, 13])
def test_a_network_is_off_by_roundings_only(image: int, tmp_path: Any) -> None:
    require_runtime("aarch64")
    module = network(image)
    x = np.random.default_rng(1).normal(size=(1, 3, image, image)).astype(np.float32)
    file = aot.compile(module, targets=[TARGET], arithmetic="fp16").to_bytes()
    found, _ = run_module("aarch64", tmp_path, file, {"x": x})
    (wanted,) = run(module.main, {"x": x})
    error = np.abs(found["y"] - wanted).max() / np.abs(wanted).max()
    assert 0 < error < 1e-2


@pytest.mark.qemu
def test_extents_that_only_the_device_knows(tmp_path: Any) -> None:
    """Rows, and what is summed, are open: pieces of the sum are counted on the device."""
    require_runtime("aarch64")
    b = Builder()
    x, w = b.input("x", "f32[R, K]"), b.input("w", "f32[K, 24]")
    b.output("y", b.op("matmul", x, w))
    file = aot.compile(b.module(), targets=[TARGET], arithmetic="fp16").to_bytes()
    rng = np.random.default_rng(2)
    for rows, depth in ((1, 1), (7, 256), (30, 700)):
        given = rng.normal(size=(rows, depth)), rng.normal(size=(depth, 24))
        inputs = {k: v.astype(np.float32) for k, v in zip("xw", given, strict=True)}
        found, _ = run_module("aarch64", tmp_path, file, inputs)
        wanted = given[0] @ given[1]
        assert np.abs(found["y"] - wanted).max() <= 6e-3 * np.abs(wanted).max() + 1e-3
