"""Instructions per multiply-add on machines that aren't here: bounds, so that a regression is seen.

The counts are the same on any machine; `python benchmarks/qemu_instructions.py MODEL` shows them by
dispatch. With vectors of four lanes nothing is below 0.25, but for Winograd's convolutions.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.ir.graph import Module
from aot.ir.text.printer import print_module
from aot.options import CompileOptions
from aot.target import selection as targets
from benchmarks.qemu_instructions import Counts, count_dispatches, count_model, plugin_for
from tests.support.cross import CROSS_TARGETS, run_emulated
from tests.support.fused_graphs import FusedGraph
from tests.support.models import feeds, model_path

pytestmark = pytest.mark.qemu


def require(arch: str) -> None:
    cross = CROSS_TARGETS[arch]
    for program in ("gcc", cross.compiler, cross.emulator):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def count(module: Module, folder: Path, target: str, **inputs: Any) -> Counts:
    path = folder / "model.ir"
    path.write_text(print_module(module))
    return count_model(path, CompileOptions(targets=(target,)), inputs)


def linear() -> Module:
    """Two products with something between them that has none."""
    b = Builder()
    x = b.input("x", "f32[N, 24]")
    weights = np.linspace(-1, 1, 24 * 32, dtype=np.float32).reshape(24, 32)
    y = b.op("softmax", b.op("matmul", x, b.constant(weights)), axis=1)
    b.output("y", b.op("matmul", y, b.constant(weights.T.copy())))
    return b.module()


MOST_OF_UNFUSED = 1.03  # what fusion may cost a graph that it does nothing for


def check_fusion(seed: int, target: str) -> None:
    """A random graph's instructions with fusion, beside those of its ops one by one."""
    arch = targets.load(target).arch
    require(arch)
    rng = np.random.default_rng(seed)
    graph = FusedGraph(lambda below: int(rng.integers(below)), 14)
    counts = []
    for disable in ((), ("fusion",)):
        file = aot.compile(graph.module, targets=[target], disable=disable).to_bytes()
        counts.append(sum(count_dispatches(file, arch, graph.inputs(seed))[1]))
    assert counts[0] <= MOST_OF_UNFUSED * counts[1]


@pytest.mark.parametrize(
    ("seed", "target"), [(5, "x86-64-v3"), (6, "aarch64-generic"), (35, "x86-64-v2")]
)
def test_fusion_costs_no_instructions(seed: int, target: str) -> None:
    check_fusion(seed, target)


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64-generic"])
@pytest.mark.parametrize("seed", range(60))
def test_fusion_costs_no_instructions_on_many_graphs(seed: int, target: str) -> None:
    check_fusion(seed, target)


@pytest.mark.parametrize("target", ["aarch64-generic", "x86-64-v2"])
def test_counts_of_one_inference(target: str, tmp_path: Path) -> None:
    require("aarch64" if target.startswith("aarch64") else "x86_64")
    x = np.ones((40, 24), np.float32)
    counts = count(linear(), tmp_path, target, x=x)
    assert counts == count(linear(), tmp_path, target, x=x)  # nothing else is counted
    products = [row.multiply_adds for row in counts.rows]
    assert [n for n in products if n] == [40 * 24 * 32] * 2
    assert all(row.instructions > 0 for row in counts.rows)
    twice = count(linear(), tmp_path, target, x=np.ones((80, 24), np.float32))
    assert twice.multiply_adds == 2 * counts.multiply_adds
    assert 1.5 < twice.instructions / counts.instructions < 2.1


def test_products_of_steps_and_scores(tmp_path: Path) -> None:
    require("aarch64")
    b = Builder()
    x = b.input("x", "f32[6, 1, 5]")
    w, r = (b.constant(np.full((1, 12, n), 0.1, np.float32)) for n in (5, 3))
    made = b.op("lstm", x, w, r, *[None] * 5, hidden_size=3)
    b.output("y", made[0] if isinstance(made, tuple) else made)
    counts = count(b.module(), tmp_path, "aarch64-generic", x=np.ones((6, 1, 5), np.float32))
    assert counts.multiply_adds == 6 * 12 * 8


# target -> at most so many instructions a multiply-add of bytes, with weights that any two products
# of fit 16 bits together, and with others
INTEGER_BOUNDS = {"aarch64-generic": (0.345, 0.40), "armv7-neon": (0.48, 0.63)}


@pytest.mark.parametrize("target", INTEGER_BOUNDS)
def test_products_of_bytes_without_dot_product(target: str, tmp_path: Path) -> None:
    require("aarch64" if target.startswith("aarch64") else "arm")
    rng = np.random.default_rng(1)
    found = []
    for least in (-127, -128):
        b = Builder()
        weights = rng.integers(least, 128, (320, 208)).astype(np.int8)
        x = b.input("x", "u8[77, 320]")
        b.output("y", b.op("matmul_integer", x, b.constant(weights)))
        rows = rng.integers(0, 256, (77, 320)).astype(np.uint8)
        found.append(count(b.module(), tmp_path, target, x=rows).per_multiply_add)
    assert found[0] < found[1], found
    assert all(n <= most for n, most in zip(found, INTEGER_BOUNDS[target], strict=True)), found


def test_a_plugin_that_is_misused_says_so(tmp_path: Path) -> None:
    require("aarch64")
    plugin = plugin_for(CROSS_TARGETS["aarch64"].emulator)
    for arguments, reason in (
        ("", "missing: out=FILE"),
        (",out=/nowhere/counts", "cannot be written: /nowhere/counts"),
        (f",out={tmp_path}/counts,size=4", "unknown argument, or one too many: size=4"),
    ):
        result = run_emulated("aarch64", ["none"], options=["-plugin", f"{plugin}{arguments}"])
        assert result.returncode and f"qemu_counts: {reason}" in result.stderr


# name -> multiply-adds, and at most so many instructions for each on aarch64-generic: as it is by
# default, and with filters that are stored transformed
BOUNDS = {
    "yolov8n_320": (1_012_627_200, {"balanced": 0.219, "speed": 0.214}),
    "squeezenet_rw": (349_151_936, {"balanced": 0.239, "speed": 0.224}),
    "oww_embed": (41_955_840, {"balanced": 0.366, "speed": 0.35}),
    "minilm_l3": (349_618_176, {"balanced": 0.318, "speed": 0.318}),
    "magika": (366_717_952, {"balanced": 0.315, "speed": 0.315}),
    "shufflenet_rw": (124_664_528, {"balanced": 0.416, "speed": 0.408}),
}


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.parametrize("optimize", ["balanced", "speed"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("yolov8n_320", marks=pytest.mark.sweep),
        "squeezenet_rw",
        "shufflenet_rw",
        "oww_embed",
        pytest.param("minilm_l3", marks=pytest.mark.sweep),
        "magika",
    ],
)
def test_instructions_per_multiply_add(name: str, optimize: str, record_property: Any) -> None:
    require("aarch64")
    inputs = feeds(name)
    shapes = {key: array.shape for key, array in inputs.items()}
    options = CompileOptions(targets=("aarch64-generic",), input_shapes=shapes, optimize=optimize)
    counts = count_model(model_path(name), options, inputs)
    wanted, bounds = BOUNDS[name]
    most = bounds[optimize]
    found = counts.per_multiply_add
    text = f"{name} on aarch64-generic: {found:.4f} instructions a multiply-add, at most {most}"
    record_property("figure", text)
    assert counts.multiply_adds == wanted
    assert found <= most, text
