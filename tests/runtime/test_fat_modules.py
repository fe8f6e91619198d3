"""Several levels of a CPU in one file: the best that runs is taken, and constants are stored once.

CPUs are QEMU's models. What they are asked is what decides on a device: cpuid and the system's
words, by `runtime/drivers/cpu/cpu_features.c`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.errors import CompileError
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.link.reader import read_module
from aot.packaging import PackageOptions
from aot.packaging.executable import ExecutableOptions
from aot.target import host_cpu
from aot.target import selection as targets
from aot.tools.inspection import format_inspection
from tests.support.cross import CROSS_TARGETS, require_runtime, run_emulated
from tests.support.models import compiled, model_path

X86 = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
AARCH64 = ("aarch64-generic", "aarch64-linux-dotprod")
# the worst order for one who thinks that it decides
FAT = (*X86, *AARCH64, "riscv64", "riscv64-v", "armv7-neon", "vulkan-1.1")
SHAPE = (1, 6, 10, 10)


@cache
def small_module() -> Module:
    """A convolution with a softmax behind it: packed weights, vectors, and lanes left over."""
    rng = np.random.RandomState(5)
    b = Builder()
    x = b.input("x", "f32[1, 6, 10, 10]")
    w = b.constant(rng.uniform(-1, 1, (40, 6, 3, 3)).astype(np.float32))
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    b.output("y", b.op("softmax", b.op("conv", x, w, None, **attrs), axis=1))
    return b.module()


@cache
def fat() -> bytes:
    return aot.compile(small_module(), targets=FAT).to_bytes()


def input_array() -> np.ndarray[Any, Any]:
    return np.random.RandomState(3).uniform(-1, 1, SHAPE).astype(np.float32)


def expected() -> np.ndarray[Any, Any]:
    (function,) = small_module().entry_points
    (array,) = run(function, [input_array()])
    return array


# ---- the order ----


def names_of(wanted: list[str]) -> list[str]:
    return [t.name for t in targets.load_together(wanted)]


@pytest.mark.parametrize("typed", list(itertools.permutations(X86)))
def test_the_best_level_comes_first_however_typed(typed: tuple[str, ...]) -> None:
    assert names_of(list(typed)) == ["x86-64-v4", "x86-64-v3", "x86-64-v2"]


def test_what_is_not_better_stays_where_it_was() -> None:
    # a GPU before the levels it was typed before, and behind those that it was typed behind
    assert names_of(["vulkan-1.1", *X86]) == ["vulkan-1.1", *reversed(X86)]
    assert names_of([*X86, "vulkan-1.1"]) == [*reversed(X86), "vulkan-1.1"]
    # levels of one architecture say nothing of another
    assert names_of(["aarch64-generic", "x86-64-v2", "riscv64"]) == [
        "aarch64-generic",
        "x86-64-v2",
        "riscv64",
    ]
    # one instruction set, two ways to use it: the first that was asked for
    for pair in (["x86-64-v3", "x86-64-v3-128"], ["x86-64-v3-128", "x86-64-v3"]):
        assert names_of(pair) == pair
        assert names_of(["x86-64-v2", *pair]) == [*pair, "x86-64-v2"]


def test_a_level_between_others_moves_no_further_than_it_must() -> None:
    assert names_of(["x86-64-v2", "vulkan-1.1", "x86-64-v4"]) == [
        "vulkan-1.1",
        "x86-64-v4",
        "x86-64-v2",
    ]


def test_one_target_in_two_words_counts_once(tmp_path: Path) -> None:
    host = targets.host().name
    assert names_of(["host", host]) == [host]
    copy = tmp_path / f"{host}.toml"
    text = (targets.directory() / copy.name).read_text()
    copy.write_text(text)
    assert names_of([str(copy), host]) == [host]
    copy.write_text(text.replace("l2_bytes = ", "l2_bytes = 1"))
    with pytest.raises(CompileError) as caught:
        names_of([str(copy), host])
    assert str(caught.value) == (
        f"targets {copy} and {host} are both called {host} and are not the same: rename one's file"
    )


def test_unlike_panels(tmp_path: Path) -> None:
    own = tmp_path / "wide.toml"
    text = (targets.directory() / "x86-64-v4.toml").read_text()
    own.write_text(text + "panel = 32\n")
    with pytest.raises(CompileError, match=r"targets x86-64-v2, wide have panels of \[16, 32\]"):
        names_of(["x86-64-v2", str(own)])


def test_the_file_has_that_order() -> None:
    image = read_module(fat())
    assert [v.target for v in image.variants] == [
        "x86-64-v4",
        "x86-64-v3",
        "x86-64-v2",
        "aarch64-linux-dotprod",
        "aarch64-generic",
        "riscv64-v",
        "riscv64",
        "armv7-neon",
        "vulkan-1.1",
    ]
    assert len(image.rodata) < 1.1 * 40 * 6 * 9 * 4 * 48 / 40  # one copy, its panels padded to 48


def test_inspect_says_what_each_level_needs() -> None:
    facts = aot.inspect(fat())
    needs = {v["target"]: v["features"] for v in facts["variants"]}
    for name, features in needs.items():
        assert features == list(targets.load(name).features), name
    text = format_inspection(facts)
    assert "variant x86-64-v2 (cpu, x86_64)\n  needs: popcnt sse3 sse4.1 sse4.2 ssse3\n" in text
    gpu = text.partition("variant vulkan-1.1 (vulkan, none)\n  needs: ")[2].partition("\n")[0]
    assert re.search(r"\bmaxComputeWorkGroupInvocations of \d+", gpu)  # what its shaders ask for


# ---- what is picked ----


def test_here_the_best_level_runs() -> None:
    known = host_cpu.features()
    if host_cpu.machine() != "x86_64":
        pytest.skip("this machine has no levels of x86-64")
    best = next(n for n in reversed(X86) if known.issuperset(targets.load(n).features))
    with aot.load(fat(), "cpu") as program:
        assert program.target == best
        skipped = program.skipped
        np.testing.assert_allclose(program({"x": input_array()})["y"], expected(), rtol=1e-5)
    for name in X86[X86.index(best) + 1 :]:
        assert f"{name}: needs the CPU feature" in skipped
    for name in X86[: X86.index(best)]:  # a level below, by its name
        with aot.load(fat(), target=name) as program:
            assert program.target == name
            np.testing.assert_allclose(program({"x": input_array()})["y"], expected(), rtol=1e-5)


# QEMU emulates no AVX-512: what has it otherwise is a level 3 there
PICKS = [
    ("x86_64", "Nehalem", "x86-64-v2"),
    ("x86_64", "SandyBridge", "x86-64-v2"),  # AVX, but not AVX2
    ("x86_64", "Haswell", "x86-64-v3"),
    ("x86_64", "Skylake-Server", "x86-64-v3"),
    ("x86_64", "EPYC", "x86-64-v3"),
    ("x86_64", "Haswell,fma=off", "x86-64-v2"),
    ("x86_64", "Haswell,xsave=off", "x86-64-v2"),  # the system doesn't keep the wide registers
    ("aarch64", "cortex-a53", "aarch64-generic"),
    ("aarch64", "cortex-a72", "aarch64-generic"),
    ("aarch64", "cortex-a76", "aarch64-linux-dotprod"),
    ("aarch64", "max", "aarch64-linux-dotprod"),
    ("riscv64", "rv64", "riscv64"),
    ("riscv64", "rv64,v=true,vlen=128", "riscv64-v"),
    ("riscv64", "rv64,v=true,vlen=256", "riscv64-v"),
    ("arm", "cortex-a7", "armv7-neon"),
]


def run_fat(arch: str, cpu: str, folder: Path) -> subprocess.CompletedProcess[str]:
    tool = require_runtime(arch)
    (folder / "fat.aotm").write_bytes(fat())
    np.save(folder / "x.npy", input_array())
    command = [tool, folder / "fat.aotm", "--json", "--output", folder, "--runs", "0"]
    return run_emulated(arch, [*command, "--input", f"x={folder}/x.npy"], cpu=cpu)


@pytest.mark.qemu
@pytest.mark.parametrize(("arch", "cpu", "wanted"), PICKS)
def test_the_best_level_that_a_cpu_has(arch: str, cpu: str, wanted: str, tmp_path: Path) -> None:
    result = run_fat(arch, cpu, tmp_path)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["target"] == wanted
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected(), rtol=1e-5, atol=1e-7)
    # those before it in the file, and no others, with what this CPU lacks
    refused = [part.partition(": ") for part in report["skipped"].split("; ") if part]
    order = [v.target for v in read_module(fat()).variants]
    assert [name for name, _, _ in refused] == order[: order.index(wanted)]
    for name, _, why in refused:
        same = targets.load(name).arch == targets.load(wanted).arch
        assert why.startswith("needs the CPU feature" if same else "made for "), (name, why)


@pytest.mark.qemu
def test_no_level_for_this_cpu(tmp_path: Path) -> None:
    """A CPU from before level 2: each level says all that it lacks."""
    result = run_fat("x86_64", "qemu64,sse3=off", tmp_path)
    assert result.returncode == 1
    v2 = "popcnt, sse3, sse4.1, sse4.2, ssse3"
    v3 = f"{v2}, avx, avx2, bmi, bmi2, f16c, fma, lzcnt, movbe"
    v4 = f"{v3}, avx512f, avx512bw, avx512cd, avx512dq, avx512vl"
    reasons = [
        f"x86-64-v4: needs the CPU features {v4}",
        f"x86-64-v3: needs the CPU features {v3}",
        f"x86-64-v2: needs the CPU features {v2}",
        *(f"{name}: made for aarch64" for name in reversed(AARCH64)),
    ]
    wanted = f"no variant runs on this machine: {'; '.join(reasons)}; riscv64-v: made for riscv64"
    assert wanted in result.stderr


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("arch", "cpu", "level", "lacks"),
    [
        ("x86_64", "Haswell,f16c=off", "x86-64-v3", "f16c"),
        ("aarch64", "cortex-a53", "aarch64-linux-dotprod", "fullfp16, dotprod"),
        ("riscv64", "rv64", "riscv64-v", "v, zvl128b"),
    ],
)
def test_a_level_that_is_asked_for_is_refused(
    arch: str, cpu: str, level: str, lacks: str, tmp_path: Path
) -> None:
    tool = require_runtime(arch)
    path = tmp_path / "fat.aotm"
    path.write_bytes(fat())
    result = run_emulated(arch, [tool, path, "--random", "--target", level], cpu=cpu)
    assert result.returncode == 1
    more = "s" if "," in lacks else ""
    assert result.stderr.splitlines()[-1] == (  # QEMU warns of what it can't emulate
        f"aot-run: {path}: no variant runs on this machine: {level}: needs the CPU feature{more} "
        f"{lacks}"
    )


# ---- packages ----


@pytest.fixture
def fat_file(tmp_path: Path) -> Path:
    path = tmp_path / "fat.aotm"
    path.write_bytes(fat())
    return path


@pytest.mark.qemu
def test_a_program_has_all_levels_of_its_cpu(fat_file: Path, tmp_path: Path) -> None:
    cross = CROSS_TARGETS["x86_64"]
    require_runtime("x86_64")
    compiler = ExecutableOptions(compiler=f"{cross.compiler} -static")
    with pytest.raises(CompileError, match="an executable is for one CPU architecture, the module"):
        aot.package(fat_file, "executable", tmp_path / "all", PackageOptions(executable=compiler))
    options = PackageOptions(targets=X86, executable=compiler)
    made = aot.package(fat_file, "executable", tmp_path / "program", options)
    program = made.folder / "fat"
    for cpu, wanted in (("Nehalem", "x86-64-v2"), ("Haswell", "x86-64-v3")):
        result = run_emulated("x86_64", [program, "--random", "--json"], cpu=cpu)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout.splitlines()[-1])["target"] == wanted


def test_a_library_has_one_level(fat_file: Path, tmp_path: Path) -> None:
    """A board's CPU is known, and nothing on it chooses."""
    with pytest.raises(CompileError) as caught:
        aot.package(fat_file, "static-library", tmp_path, PackageOptions(targets=AARCH64))
    assert str(caught.value) == (
        "a static library holds one variant, the module has aarch64-linux-dotprod, "
        "aarch64-generic: choose with --target"
    )
    options = PackageOptions(targets=["armv7-neon"])
    made = aot.package(fat_file, "static-library", tmp_path / "one", options)
    assert {"libfat.a", "fat.h"} <= set(made.files)


def test_merged_files_keep_their_levels(fat_file: Path, tmp_path: Path) -> None:
    """Compiled for the same targets in another order: still the best first."""
    other = tmp_path / "other.aotm"
    other.write_bytes(aot.compile(small_module(), targets=[*reversed(FAT)]).to_bytes())
    merged = aot.merge([fat_file, other])
    levels = [v.target for v in merged.image.variants if v.target in X86]
    assert levels == ["x86-64-v4", "x86-64-v3", "x86-64-v2"]
    assert len(merged.image.rodata) == len(read_module(fat()).rodata)


# ---- a model as it would be shipped ----

WHOLE = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64-generic", "vulkan-1.1")

# In a folder, at an hour and under names that nothing may depend on.
_ANOTHER_DAY = """
import datetime, sys, time
clock, passed = time.time, 400 * 24 * 3600.0
time.time = lambda: clock() + passed
time.time_ns = lambda: int(1e9 * time.time())
class Later(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().fromtimestamp(time.time(), tz)
datetime.datetime = Later
import aot
model, out, *wanted = sys.argv[1:]
aot.compile(model, targets=wanted, cache=False).save(out)
"""


@pytest.mark.models
@pytest.mark.slow
def test_weights_once_and_the_same_on_another_day(tmp_path: Path) -> None:
    model = model_path("squeezenet_rw")
    whole = aot.compile(model, targets=WHOLE).to_bytes()
    # of the levels, this one has the least code
    single = compiled("squeezenet_rw", targets=["x86-64-v3"])
    assert len(whole) <= 1.1 * len(single.to_bytes())
    assert len(read_module(whole).rodata) <= 1.01 * len(single.image.rodata)
    folder = tmp_path / "another folder"
    folder.mkdir()
    copy = folder / "renamed.onnx"
    shutil.copyfile(model, copy)
    os.utime(copy, (1e9, 1e9))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "TZ": "Asia/Tokyo",
        "PYTHONPATH": str(Path(aot.__file__).parents[1]),
    }
    command = [sys.executable, "-c", _ANOTHER_DAY, copy.name, "out.aotm", *reversed(WHOLE[:3])]
    subprocess.run([*command, *WHOLE[3:]], cwd=folder, env=environment, check=True)
    there = hashlib.sha256((folder / "out.aotm").read_bytes()).hexdigest()
    assert there == hashlib.sha256(whole).hexdigest()
