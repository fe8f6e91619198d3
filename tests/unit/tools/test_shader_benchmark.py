"""`aotc bench --shaders`: the levels of deduplication, and that the figures add up."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import aot
from aot.builder import Builder
from aot.cli.main import cli
from aot.errors import RuntimeFailure
from aot.ir.text.printer import print_module
from aot.link.reader import read_module
from aot.runtime import vulkan_facts
from aot.tools.bench import shaders
from aot.tools.bench.shaders import bench_shaders, levels_of, shader_figures, without_sharing
from tests.support.models import model_path
from tests.support.runtime_build import build
from tests.support.vulkan_running import validate
from tests.support.vulkan_runtime import info_of, running_on

pytestmark = pytest.mark.vulkan


def chain() -> Any:
    """Three products of equal matrices, twice as many of others."""
    b = Builder()
    x = b.input("x", "f32[4, 32]")
    square = b.constant(np.eye(32, dtype=np.float32))
    wide = b.constant(np.ones((32, 64), np.float32))
    for _ in range(3):
        x = b.op("softmax", b.op("matmul", x, square), axis=1)
    b.output("y", b.op("matmul", x, wide))
    return b.module()


def compiled(*, despecialise: bool = True) -> aot.CompiledModule:
    disable = ("fusion",) if despecialise else ("fusion", "despecialise")
    return aot.compile(chain(), targets=["vulkan-1.1"], disable=disable)


def test_without_sharing_each_dispatch_has_a_shader(tmp_path: Path) -> None:
    module = compiled(despecialise=False)
    section = module.stats["variants"][0]
    dispatches = section["dispatches"]
    assert section["executables"]["emitted"]["kept"] < dispatches
    exploded = without_sharing(module.to_bytes())
    shaders = [e.spirv for e in read_module(exploded).variants[0].executables]
    assert len(set(shaders)) == len(shaders) == dispatches
    for spirv in shaders:
        assert spirv is not None
        validate(spirv)
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    with (
        running_on("lavapipe", tmp_path),
        aot.load(exploded, "vulkan") as program,
        aot.load(module, "vulkan") as other,
    ):
        assert info_of(program).pipeline_count == dispatches
        assert np.array_equal(program({"x": x})["y"], other({"x": x})["y"])


def test_a_process_measures_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the fresh processes do, in this one."""
    path, inputs = tmp_path / "m.aotm", tmp_path / "inputs.npz"
    module = compiled()
    module.save(path)
    np.savez(inputs, **{"0": np.ones((4, 32), np.float32)})
    with running_on("lavapipe", tmp_path):
        monkeypatch.delenv("VK_INSTANCE_LAYERS", raising=False)
        assert shaders._main([str(path), str(inputs)]) == 0
    found = json.loads(capsys.readouterr().out)
    (variant,) = read_module(module.to_bytes()).variants
    names = {e.name for e in variant.executables}
    assert {p["name"] for p in found["pipelines"]} == names
    assert found["dispatches"] == module.stats["variants"][0]["dispatches"] > len(names)
    assert (found["target"], found["is_software"]) == ("vulkan-1.1", True)
    assert found["first_dispatch_ms"] == sum(p["first_dispatch_ms"] for p in found["pipelines"])
    assert shaders._main([str(tmp_path / "none.aotm"), str(inputs)]) == 1
    assert str(tmp_path / "none.aotm") in capsys.readouterr().err


def test_the_model_of_a_module_is_compiled_at_a_lower_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, bytes | None] = {}

    def figures(full: bytes, structural: bytes | None, **how: Any) -> dict[str, Any]:
        given.update(full=full, structural=structural)
        return {}

    monkeypatch.setattr(shaders, "shader_figures", figures)
    path, model = tmp_path / "m.aotm", tmp_path / "m.ir"
    model.write_text(print_module(chain()))
    aot.compile(model, targets=["vulkan-1.1"]).save(path)
    bench_shaders(path, model, input_values={})
    assert given["full"] == path.read_bytes()
    wanted = aot.compile(model, targets=["vulkan-1.1"], disable=["despecialise"]).to_bytes()
    assert given["structural"] == wanted


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        shaders._run(tmp_path / "none.aotm", tmp_path / "none.npz", "serial", None)
    assert str(caught.value).startswith("measuring shaders failed: FileNotFoundError: ")


@pytest.mark.slow
def test_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_on("lavapipe", tmp_path):
        monkeypatch.delenv("VK_INSTANCE_LAYERS", raising=False)
        facts = shader_figures(
            compiled().to_bytes(),
            compiled(despecialise=False).to_bytes(),
            inputs={},
            shapes={},
            rounds=1,
        )
    assert list(facts["levels"]) == ["none", "structural", "despecialised"]
    assert facts["is_software"]
    counts = [level["pipelines"] for level in facts["levels"].values()]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == facts["levels"]["none"]["dispatches"] > counts[1]
    for level in facts["levels"].values():
        assert level["words"] == sum(p["words"] for p in level["by_pipeline"])
        assert len(level["by_pipeline"]) == level["pipelines"]
        assert set(level["cold"]) == {"serial", "batch", "parallel"}
        assert all(cold["total_ms"] > 0 for cold in level["cold"].values())
        assert all(p["create_ms"] > 0 for p in level["by_pipeline"])
        # lavapipe compiles at the first dispatch
        assert level["cold"]["serial"]["first_dispatch_ms"] > 0


@pytest.mark.slow
@pytest.mark.models
def test_what_drivers_compile_of_a_model_halves() -> None:
    """By words, which a driver's time grows with at least; how long it takes is for benchmarks."""
    path = model_path("resnet50_rw")
    full, structural = (
        aot.compile(path, targets=["vulkan-1.1"], disable=d).to_bytes()
        for d in ([], ["despecialise"])
    )
    words = []
    for level in levels_of(full, structural):
        (variant,) = read_module(level.module).variants
        shaders = {e.spirv for e in variant.executables if e.spirv is not None}
        words.append(sum(len(spirv) // 4 for spirv in shaders))
    none, shared, despecialised = words
    assert none > shared > despecialised
    assert 2 * despecialised <= none


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.aotm"
    compiled().save(path)
    with running_on("lavapipe", tmp_path):
        monkeypatch.delenv("VK_INSTANCE_LAYERS", raising=False)
        done = CliRunner().invoke(cli, ["bench", str(path), "--shaders", "--json", "--rounds", "1"])
    assert done.exit_code == 0, done.output
    assert list(json.loads(done.output)["levels"]) == ["as compiled"]


STRUCTS = {
    "aot_launch_t": vulkan_facts.Launch,
    "aot_vulkan_info_t": vulkan_facts.Info,
    "aot_vulkan_pipeline_t": vulkan_facts.Pipeline,
}


def test_structures_are_those_of_the_headers(tmp_path: Path) -> None:
    """Each field where C has it, none left out; a wrong one would read or write beside it."""
    lines = []
    for name, made in STRUCTS.items():
        lines.append(f'printf("%zu\\n", sizeof({name}));')
        for field in made._fields_:
            member = f"offsetof({name}, {field[0]}), sizeof((({name} *)0)->{field[0]})"
            lines.append(f'printf("%zu %zu\\n", {member});')
    source = tmp_path / "structures.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <aot/aot.h>\n"
        f"#include <aot/vulkan.h>\nint main(void) {{ {' '.join(lines)} return 0; }}\n"
    )
    program = build("structures", [source], [])
    if program is None:
        pytest.skip("gcc is not installed")
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    wanted = []
    for made in STRUCTS.values():
        wanted.append(str(ctypes.sizeof(made)))
        places = [getattr(made, field[0]) for field in made._fields_]
        wanted += [f"{place.offset} {place.size}" for place in places]
    assert said.splitlines() == wanted


def test_a_module_without_shaders(tmp_path: Path) -> None:
    path = tmp_path / "m.aotm"
    aot.compile(chain()).save(path)
    with pytest.raises(RuntimeFailure, match="has no variant for vulkan"):
        bench_shaders(path, None, input_values={}, inputs={}, shapes={})
