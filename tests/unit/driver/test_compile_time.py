"""What a compile costs, counted: work that is done once, work that is not done, and what is loaded.

Counts, not seconds: how long things take is for benchmarks to say.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding as llvmlite
import numpy as np
import pytest

import aot
from aot.backends.cpu import codegen, llvm
from aot.backends.cpu import compile as cpu
from aot.builder import Builder
from aot.ir.graph import ConstantData
from aot.ir.text.printer import print_module
from aot.target.selection import load
from tests.support.models import model_path
from tests.support.paths import ROOT


@pytest.fixture
def model(tmp_path: Path) -> Path:
    b = Builder()
    x = b.input("x", "f32[N, 8]")
    b.output("y", b.op("softmax", b.op("tanh", x), axis=1))
    b.output("z", b.op("reduce_sum", b.op("sigmoid", x), axes=(0,)))
    path = tmp_path / "model.ir"
    path.write_text(print_module(b.module()))
    return path


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each step of making code is taken in this process."""
    found: Counter[str] = Counter()

    def watch(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def counted(*args: object, **options: object) -> object:
            found[name] += 1
            return real(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    llvm._machine.cache_clear()
    watch(llvmlite, "parse_assembly")
    watch(llvmlite.Target, "create_target_machine")
    watch(llvmlite.TargetMachine, "emit_object")
    watch(cpu, "to_llvm")
    watch(codegen, "fingerprint")
    yield found
    llvm._machine.cache_clear()


TARGETS = ["x86-64-v3", "aarch64-generic"]


def test_each_step_is_taken_once_an_executable(
    tmp_path: Path, model: Path, counts: Counter[str]
) -> None:
    module = aot.compile(
        model, targets=TARGETS, cache_dir=tmp_path / "c", jobs=1, disable=["fusion"]
    )
    number = sum(v["llvm_calls"] for v in module.stats["variants"])
    assert number == sum(v["executables"]["emitted"]["met"] for v in module.stats["variants"]) > 2
    assert counts == {
        "fingerprint": number,
        "to_llvm": number,
        "parse_assembly": number,
        "emit_object": number,
        "create_target_machine": len(TARGETS),
    }


def test_a_second_compile_takes_none(tmp_path: Path, model: Path, counts: Counter[str]) -> None:
    options = {"targets": TARGETS, "cache_dir": tmp_path / "c", "jobs": 1}
    aot.compile(model, **options)  # type: ignore[arg-type]
    counts.clear()
    module = aot.compile(model, **options)  # type: ignore[arg-type]
    number = sum(v["cache"]["hits"] for v in module.stats["variants"])
    assert counts == {"fingerprint": number}
    assert [v["llvm_calls"] for v in module.stats["variants"]] == [0, 0]


def test_another_model_with_the_same_executables_takes_none(
    tmp_path: Path, model: Path, counts: Counter[str]
) -> None:
    """What is kept is known by what it computes, not by the model or its names."""
    aot.compile(model, targets=["x86-64-v3"], cache_dir=tmp_path / "c", jobs=1)
    counts.clear()
    other = tmp_path / "other.ir"
    text = model.read_text().replace("@main", "@network").replace('"y"', '"other"')
    other.write_text(text)
    again = aot.compile(other, targets=["x86-64-v3"], cache_dir=tmp_path / "c", jobs=1)
    assert again.stats["variants"][0]["llvm_calls"] == 0
    assert set(counts) == {"fingerprint"}


@pytest.mark.models
@pytest.mark.parametrize("name", ["silero_vad_16k", "magika"])
def test_a_second_compile_of_a_model_loads_no_llvm(tmp_path: Path, name: str) -> None:
    script = (
        "import sys, aot\n"
        "module = aot.compile(sys.argv[1], targets=['x86-64-v3', 'armv7-neon'])\n"
        "calls = [v['llvm_calls'] for v in module.stats['variants']]\n"
        "import hashlib\n"
        "print(calls, 'llvmlite' in sys.modules, hashlib.sha256(module.to_bytes()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "AOT_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", script, str(model_path(name))]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
        for _ in range(2)
    )
    assert not first.startswith("[0")
    assert second.startswith("[0, 0] False ")
    assert first.split()[-1] == second.split()[-1]


_STARTS = """
import sys, aot
from aot.backends.cpu import workers
starts = []
class Counted(workers.Workers):
    def start(self):
        starts.append("aot.frontends.text" in sys.modules)
        return super().start()
from aot.backends.cpu import codegen
codegen.Workers = Counted
module = aot.compile(sys.argv[1], targets=sys.argv[2:], jobs=2)
print(starts, [v["llvm_calls"] > 0 for v in module.stats["variants"]], "llvmlite" in sys.modules)
"""


def test_a_process_for_llvm_starts_before_a_new_model_is_read(tmp_path: Path, model: Path) -> None:
    """And none for a model that was compiled so before; LLVM is loaded beside, never here."""

    def compiled(*targets: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "AOT_CACHE_DIR": str(tmp_path / "c")}
        command = [sys.executable, "-c", _STARTS, str(model), *targets]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment
        ).stdout.strip()

    assert compiled("x86-64-v3") == "[False] [True] False"
    assert compiled("x86-64-v3") == "[] [False] False"
    assert compiled("aarch64-generic") == "[False] [True] False"
    assert compiled("vulkan-1.1") == "[] [False] False"
    model.write_text(model.read_text().replace("tanh", "exp"))
    assert compiled("x86-64-v3") == "[False] [True] False"


def test_llvm_runs_none_of_the_passes_that_are_left_out() -> None:
    """Their names are LLVM's: one that it does not know would leave nothing out."""
    text = (
        "define i64 @kernel(i64 %n) {\nentry:\n  br label %loop\nloop:\n"
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]\n"
        "  %next = add nuw nsw i64 %i, 1\n"
        "  %more = icmp slt i64 %next, %n\n"
        "  br i1 %more, label %loop, label %done\ndone:\n"
        "  %r = mul i64 %next, 8\n  ret i64 %r\n}\n"
    )
    machine = cpu.machine_of(load("x86-64-v3"))
    with llvm.optimise(f'target triple = "{machine.triple}"\n{text}', machine, "kernel") as module:
        shown = str(module)
    assert "mul i64" in shown, "instcombine makes a shift of it"
    assert "icmp slt" in shown, "indvars makes it a comparison for equality"


# ---- constants: most of what a model's file is ----


def test_weights_are_not_copied_where_nobody_can_change_them() -> None:
    data = bytes(range(16))
    whole = np.frombuffer(data, np.float32)
    assert ConstantData(whole).array is whole
    row = whole.reshape(2, 2)
    assert ConstantData(row).array is row
    constant = ConstantData(np.arange(4.0))
    assert ConstantData(constant.array).array is constant.array


def test_weights_are_copied_where_somebody_can() -> None:
    mine = np.arange(6.0, dtype=np.float32)
    shown = mine[:]
    shown.flags.writeable = False
    for array in (mine, shown, mine[::2], mine.reshape(2, 3).T):
        before = array.copy()
        constant = ConstantData(array)
        mine[:] = -1
        assert np.array_equal(constant.array, before) and not constant.array.flags.writeable
        mine[:] = np.arange(6)


def test_weights_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from aot.ir import graph as core

    calls: list[int] = []
    real = core.xxhash.xxh3_64

    def counted() -> Any:
        calls.append(1)
        return real()

    monkeypatch.setattr(core.xxhash, "xxh3_64", counted)
    constant, equal = ConstantData(np.arange(4.0)), ConstantData(np.arange(4.0))
    assert len({constant: 1, equal: 2}) == 1 and constant == equal
    assert hash(constant) == hash(constant)
    assert len(calls) == 2


def test_zeros_of_two_signs_and_types_are_told_apart() -> None:
    plus, minus = (ConstantData(np.array([v], np.float32)) for v in (0.0, -0.0))
    assert plus != minus
    assert plus != ConstantData(np.zeros(1, np.int32))
    nan = np.array([np.nan], np.float32)
    assert ConstantData(nan) == ConstantData(nan.copy())


# ---- what is loaded ----


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], {"numpy", "onnx", "llvmlite", "rich", "flatbuffers", "google"}),
        (["compile", "--help"], {"numpy", "onnx", "llvmlite", "rich", "google"}),
        (["cache"], {"numpy", "onnx", "llvmlite", "rich", "google"}),
        (["targets"], {"onnx", "llvmlite", "rich", "google"}),
        (["targets", "thumbv7em"], {"onnx", "llvmlite", "rich", "google"}),
        (["compile", "model.ir", "-o", "o.aotm", "--target", "vulkan-1.1"], {"onnx", "llvmlite"}),
    ],
)
def test_a_command_loads_what_it_needs(model: Path, arguments: list[str], absent: set[str]) -> None:
    script = (
        "import sys\nfrom aot.cli.main import main\nassert main(sys.argv[1:]) == 0\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules}), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=model.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert absent & set(result.stderr.split()) == set()


LOADER = ("contents", "fast_calls", "loader", "protocols", "tensors")


def test_loading_a_module_imports_nothing_of_the_compiler(model: Path) -> None:
    aot.compile(model, jobs=1).save(model.with_suffix(".aotm"))
    script = (
        "import sys, aot\naot.load(sys.argv[1])\n"
        "print(*sorted(m for m in sys.modules if m.startswith('aot.')))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(model.with_suffix(".aotm"))],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    loader = ["aot.runtime", *(f"aot.runtime.{name}" for name in LOADER)]
    base = ["aot.base", "aot.base.records"]
    assert result.stdout.split() == ["aot.api", *base, "aot.errors", *loader, "aot.version"]


def test_a_compile_loads_no_other_command(model: Path) -> None:
    script = (
        "import sys\nfrom aot.cli.main import main\nassert main(sys.argv[1:]) == 0\n"
        "print(*sorted(m for m in sys.modules if m.startswith('aot.')))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script, "compile", "model.ir", "-o", "o", "--target", "x86-64-v3"],
        capture_output=True,
        text=True,
        check=True,
        cwd=model.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout.split()
    assert {m for m in shown if m.startswith("aot.cli")} == {
        *("aot.cli", "aot.cli.main", "aot.cli.commands", "aot.cli.compile", "aot.cli.text")
    }
    others = ("runtime", "tools", "packaging", "report")
    assert not {f"aot.{name}" for name in others} & set(shown)


def test_the_command_as_a_process_flushes_and_tells_its_status(tmp_path: Path) -> None:
    """It ends without taking its memory apart; nothing else may be lost by that."""
    run = [sys.executable, "-m", "aot.cli"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = tmp_path / "shown"
    with shown.open("w") as stream:
        result = subprocess.run(
            [*run, "targets", "--json"], stdout=stream, check=False, env=environment
        )
    assert result.returncode == 0 and shown.read_text().rstrip().endswith("]")
    result = subprocess.run(
        [*run, "inspect", "absent"], capture_output=True, check=False, env=environment
    )
    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr.startswith(b"aotc: error: ")
    assert gc.get_threshold()[0] < 200_000, "only a process of its own is set up so"
