"""Reductions by subgroup operations, where a target has them, on drivers whose subgroups differ.

Against the interpreter, NaN and infinity included; what is declared; that shaders are valid and
shorter than with a tree over shared memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.errors import CompileError
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.kernels.ir import interpreter
from aot.kernels.ir.nodes import Combine, walk
from aot.kernels.ir.text import to_text
from aot.kernels.ir.verifier import verify
from aot.kernels.lowering import lower
from aot.link.image import VariantImage
from aot.link.reader import read_module
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target.selection import load as load_target
from aot.target.toml import parse
from tests.support.paths import ROOT
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_running import validate
from tests.support.vulkan_runtime import running_on

pytestmark = pytest.mark.vulkan

REDUCTIONS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")
DTYPES = ("f32", "i32", "u32")


def reduced(name: str, dtype: str, rows: int | str, columns: int | str) -> Module:
    b = Builder()
    b.output("y", b.op(name, b.input("x", f"{dtype}[{rows}, {columns}]"), axes=[1], keepdims=True))
    return b.module()


def variant_of(module: Module, target: str) -> VariantImage:
    (variant,) = read_module(aot.compile(module, targets=[target]).to_bytes()).variants
    return variant


def numbers(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    r = np.random.default_rng(sum(shape))
    if dtype == "f32":
        return r.uniform(0.9, 1.1, shape).astype(np.float32) * r.choice([-1, 1], shape).astype("f4")
    low = 0 if dtype == "u32" else -5
    return r.integers(low, 6, shape).astype({"i32": np.int32, "u32": np.uint32}[dtype])


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, dtype: str, driver: str, tmp_path: Path) -> None:
    module = reduced(name, dtype, "M", "N")
    data = aot.compile(module, targets=["lavapipe"]).to_bytes()
    with running_on(driver, tmp_path), aot.load(data, "vulkan") as program:
        for shape in ((3, 100), (1, 1), (5, 64), (2, 4000), (3, 65)):
            x = numbers(dtype, shape)
            (wanted,) = run(module.main, [x], module=module)
            (found,) = program.run([x])
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


SPECIAL = (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("name", ["reduce_max", "reduce_min"])
def test_extremes_of_special_numbers(name: str, driver: str, tmp_path: Path) -> None:
    module = reduced(name, "f32", 3, 70)
    data = aot.compile(module, targets=["lavapipe"]).to_bytes()
    x = np.random.default_rng(1).standard_normal((3, 70)).astype(np.float32)
    with running_on(driver, tmp_path), aot.load(data, "vulkan") as program:
        for number, place in zip(SPECIAL, (0, 3, 17, 35, 36, 63, 64, 69), strict=True):
            given = x.copy()
            given[1, place] = number
            (wanted,) = run(module.main, [given], module=module)
            np.testing.assert_array_equal(program.run([given])[0], wanted)
        for sign in (1, -1):
            given = sign * np.abs(x) - sign * 2e38
            (wanted,) = run(module.main, [given], module=module)
            np.testing.assert_array_equal(program.run([given])[0], wanted)


def normalised() -> Module:
    """A softmax, and a norm over the same rows."""
    b = Builder()
    x = b.input("x", "f32[N, 200]")
    soft = b.op("softmax", x, axis=1)
    mean = b.op("reduce_mean", x, axes=[1], keepdims=True)
    centred = b.op("sub", x, mean)
    spread = b.op("reduce_mean", b.op("mul", centred, centred), axes=[1], keepdims=True)
    scale = b.op("sqrt", b.op("add", spread, b.constant(1e-5, "f32")))
    b.output("y", b.op("add", soft, b.op("div", centred, scale)))
    return b.module()


@pytest.mark.parametrize("driver", DRIVERS)
def test_softmax_and_norm(driver: str, tmp_path: Path) -> None:
    module = normalised()
    data = aot.compile(module, targets=["lavapipe"]).to_bytes()
    with running_on(driver, tmp_path), aot.load(data, "vulkan") as program:
        for rows in (4, 1, 33):
            x = np.random.default_rng(rows).standard_normal((rows, 200)).astype(np.float32)
            (wanted,) = run(module.main, [x], module=module)
            np.testing.assert_allclose(program.run([x])[0], wanted, atol=1e-5)


def test_what_is_declared() -> None:
    needs = variant_of(normalised(), "lavapipe")
    assert needs.features == ("subgroupArithmetic", "subgroupBasic")
    assert variant_of(normalised(), "vulkan-1.1").features == ()
    b = Builder()
    b.output("y", b.op("tanh", b.input("x", "f32[5]")))
    assert variant_of(b.module(), "lavapipe").features == ()


def words(variant: VariantImage) -> int:
    return sum(len(e.spirv or b"") // 4 for e in variant.executables)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_shaders_are_shorter(name: str, tmp_path: Path) -> None:
    plain = (ROOT / "targets" / "lavapipe.toml").read_text()
    without = "\n".join(line for line in plain.splitlines() if "subgroup_operations" not in line)
    path = tmp_path / "plain.toml"
    path.write_text(without)
    module = reduced(name, "f32", 8, 4096)
    for executable in variant_of(module, "lavapipe").executables:
        validate(executable.spirv or b"")
    assert words(variant_of(module, "lavapipe")) < 0.85 * words(variant_of(module, str(path)))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_kernels_mean_the_same_to_the_interpreter(name: str) -> None:
    target = load_target("lavapipe")
    module = reduced(name, "f32", 3, 300)
    run_passes(module, (*MODEL_PASSES, *TARGET_PASSES), PassContext(CompileOptions(), target))
    (function,) = module.executables
    kernel = lower(function, target)
    (combine,) = [s for s in walk(kernel.body) if isinstance(s, Combine)]
    verify(kernel)
    assert f"combine {combine.result.name}: f32 = {combine.op} of " in to_text(kernel)
    x = numbers("f32", (3, 300))
    y = np.zeros(3, np.float32)
    interpreter.run(kernel, {"in": x.reshape(-1), "out": y}, {}, check_races=True)
    combined = {"reduce_sum": np.sum, "reduce_prod": np.prod}
    combined |= {"reduce_max": np.max, "reduce_min": np.min}
    np.testing.assert_allclose(y, combined[name](x, axis=1), rtol=1e-4, atol=1e-4)


def test_a_target_file_names_what_there_is() -> None:
    text = (ROOT / "targets" / "lavapipe.toml").read_text()
    wrong = text.replace('"arithmetic"', '"arithmetics"')
    with pytest.raises(CompileError) as caught:
        parse(wrong, "mine.toml", "mine")
    assert "expected a list of basic, arithmetic" in str(caught.value)
