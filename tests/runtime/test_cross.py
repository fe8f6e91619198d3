"""The runtime on other CPUs, under QEMU: kernels by a cross gcc, loaded and run by aot-run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.cross import require_runtime, run_emulated, run_module
from tests.support.runtime_modules import (
    arena_module,
    compile_kernels,
    module,
    scale_module,
    tensor,
    widths_program,
)

# The arch of the runtime, and the instruction set of the kernels.
MACHINES = [("aarch64", "aarch64"), ("arm", "arm"), ("arm", "thumb"), ("riscv64", "riscv64")]

pytestmark = pytest.mark.qemu


@pytest.mark.parametrize(("arch", "machine"), MACHINES)
def test_kernels_run(arch: str, machine: str, tmp_path: Path) -> None:
    require_runtime(arch)
    assert compile_kernels(machine) is not None
    x = np.arange(33, dtype=np.float32).reshape(11, 3)
    for number, options in enumerate(([], ["--copy"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        file = scale_module(2.5, machine).to_bytes()
        outputs, report = run_module(arch, folder, file, {"x": x}, *options)
        np.testing.assert_array_equal(outputs["y"], x * np.float32(2.5))
        assert report["code_mapping"] == ("copied" if options else "mapped")


@pytest.mark.parametrize(("arch", "machine"), MACHINES)
def test_arena_and_constants(arch: str, machine: str, tmp_path: Path) -> None:
    require_runtime(arch)
    x = np.linspace(-3, 3, 77, dtype=np.float32)
    outputs, _ = run_module(arch, tmp_path, arena_module(machine).to_bytes(), {"x": x})
    np.testing.assert_array_equal(outputs["y"], 2 * (x + np.arange(77, dtype=np.float32)))


@pytest.mark.parametrize(("arch", "machine"), MACHINES)
def test_parameter_words_have_the_pointers_width(arch: str, machine: str, tmp_path: Path) -> None:
    require_runtime(arch)
    value = -(1 << 33) - 5
    file = module(
        widths_program(value), [], [tensor("y", "i64", 1)], kernels=("widths",), machine=machine
    ).to_bytes()
    outputs, _ = run_module(arch, tmp_path, file, {})
    # 32-bit words take the low half, which the kernel widens again.
    assert outputs["y"][0] == (-5 if arch == "arm" else value)


def test_a_missing_feature_is_named(tmp_path: Path) -> None:
    tool = require_runtime("aarch64")
    module_file = scale_module(machine="aarch64")
    variant = replace(module_file.variants[0], features=("neon", "sve"), target="with-sve")
    path = tmp_path / "module.aotm"
    path.write_bytes(replace(module_file, variants=[variant]).to_bytes())
    command = [tool, path, "--random", "--shape", "x=2x3"]
    result = run_emulated("aarch64", command, cpu="cortex-a53")
    assert result.returncode == 1
    expected = "no variant runs on this machine: with-sve: needs the CPU feature sve"
    assert result.stderr.strip() == f"aot-run: {path}: {expected}"
    assert run_emulated("aarch64", command, cpu="max").returncode == 0


@pytest.mark.parametrize(
    ("arch", "machine", "features", "cpu", "poorer_cpu", "lacks"),
    [
        ("arm", "arm", ("neon", "vfp3"), "cortex-a7", "cortex-r5f", "neon"),
        ("riscv64", "riscv64", ("m", "a", "f", "d", "c", "v"), "rv64,v=true", "rv64", "v"),
        (
            "aarch64",
            "aarch64",
            ("neon", "dotprod", "fullfp16"),
            "max",
            "cortex-a53",
            "dotprod, fullfp16",
        ),
    ],
)
def test_cpu_features_come_from_the_system(
    arch: str,
    machine: str,
    features: tuple[str, ...],
    cpu: str,
    poorer_cpu: str,
    lacks: str,
    tmp_path: Path,
) -> None:
    tool = require_runtime(arch)
    module_file = scale_module(machine=machine, features=features)
    path = tmp_path / "module.aotm"
    path.write_bytes(module_file.to_bytes())
    command = [tool, path, "--random", "--shape", "x=2x3"]
    good = run_emulated(arch, command, cpu=cpu)
    assert good.returncode == 0, good.stderr
    poor = run_emulated(arch, command, cpu=poorer_cpu)
    assert poor.returncode == 1
    more = "s" if "," in lacks else ""
    assert f"needs the CPU feature{more} {lacks}" in poor.stderr
