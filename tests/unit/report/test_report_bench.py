"""`aotc bench --report`: what was measured as a page shows it, of given figures and real ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot import report
from aot.builder import Builder
from aot.cli.main import main
from aot.link.image import ModuleImage
from aot.link.module import module_bytes
from aot.link.reader import read_module
from aot.report import drawings
from aot.runtime import loader
from aot.runtime.runner import RUNNER_VARIABLE
from tests.support.report_pages import Page
from tests.support.runtime_api import library_path
from tests.support.runtime_build import build_tool
from tests.support.vulkan_runtime import running_on

PHASES = ("exec", "open", "verify", "map", "inputs", "prepare", "first_run")


@pytest.fixture
def use_built_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Library and tool of this checkout."""
    tool = build_tool()
    if tool is None:
        pytest.skip("gcc is not installed")
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(library_path()))
    monkeypatch.setenv(RUNNER_VARIABLE, str(tool))


def compiled(*targets: str) -> aot.CompiledModule:
    b = Builder()
    x = b.input("x", "f32[N, 32]")
    draw = np.random.default_rng(0)
    for n, width in enumerate((64, 10)):
        matrix = draw.standard_normal((int(x.type.dims[1]), width)).astype(np.float32)
        product = b.op("matmul", x, b.constant(matrix), origin=f"layer{n}")
        x = b.op("softmax", product, axis=1)
    b.output("y", x)
    return aot.compile(b.module(), targets=targets or ("host",))


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("modules") / "net.aotm"
    compiled().save(path)
    return path


def page_of(module: Path, facts: dict[str, Any]) -> Page:
    page = Page(report.bench_page(module, facts))
    page.check_alone()
    return page


# ---- of figures that are given ----


def launch(**others: Any) -> dict[str, Any]:
    return {
        "node": "layer0",
        "executable": "e0",
        "word": 5,
        "kind": "dispatch",
        "grid": [1, 2, 1],
        "threads": 2,
        "count": 1,
        "median_ms": 0.75,
        "min_ms": 0.5,
        "share": 0.75,
        "flops": 3_000_000,
        "bytes": 30_000,
        "gflops": 4.0,
        "gbs": 0.04,
        "of_peak": 0.02,
        "dtype": "f32",
        **others,
    }


def steady(**others: Any) -> dict[str, Any]:
    times = {"min": 0.9, "median": 1.0, "mean": 1.1, "p90": 1.5, "p99": 2.0, "max": 2.5}
    rows = [launch(), launch(node="layer1", executable="e1", median_ms=0.25, share=0.25)]
    return {
        **{f"{name}_ms": value for name, value in times.items()},
        "target": "x86-64-v3",
        "device": "cpu",
        "entry": "main",
        "threads": 2,
        "runs": 33,
        "code_mapping": "mapped",
        "arena_bytes": 4096,
        "peak_rss_kb": 9000,
        "gflops": 4.5,
        "gbs": 0.05,
        "of_peak": 0.0225,
        "flops": 4_500_000,
        "bytes": 50_000,
        "machine": {"peaks_gops": {"f32": 100.0}, "memory_gbs": 20.0, "vector_bytes": 32},
        "dispatches": rows,
        **others,
    }


def cold(*states: str, **others: Any) -> dict[str, Any]:
    phases = {name: 1.0 + n for n, name in enumerate(PHASES)}
    series = {"rounds": 7, "phases_ms": phases, "total_ms": 28.0, "peak_rss_kb": 8000}
    return {"cold": {**dict.fromkeys(states, series), "left_in_cache_bytes": 0, **others}}


def level(pipelines: int, total: float, first_dispatch: float = 1.0) -> dict[str, Any]:
    run = {"create_ms": 0.75 * total, "first_run_ms": 0.25 * total, "second_run_ms": 0.1 * total}
    run |= {"total_ms": total, "first_dispatch_ms": first_dispatch}
    pipeline = {"words": 900, "create_ms": 2.0, "first_dispatch_ms": first_dispatch}
    pipeline |= {"cached_create_ms": 0.1, "cached_first_dispatch_ms": 0.0}
    return {
        "pipelines": pipelines,
        "dispatches": 9,
        "words": 900 * pipelines,
        "cold": {"serial": run, "batch": {**run, "total_ms": total / 2}, "parallel": run},
        "cached": {**run, "total_ms": total / 4},
        "by_pipeline": [{"name": f"e{n}", **pipeline} for n in range(pipelines)],
    }


def shaders(is_software: bool = True, **levels: Any) -> dict[str, Any]:
    facts = {"device": "llvmpipe", "target": "vulkan-1.1", "is_software": is_software}
    return {**facts, "levels": levels}


def test_runs(module: Path) -> None:
    page = page_of(module, {"steady": steady()})
    shown = page.figures
    for name in ("min", "median", "mean", "p90", "p99", "max"):
        assert shown[f"steady.{name}"][0] == steady()[f"{name}_ms"]
    assert shown["gflops"] == (4.5, "4.5 Gop/s") and "2.2 % of the threads' peak" in page.text
    assert [row[1] for row in page.rows("launches")] == ["layer0", "layer1"]
    assert page.rows("launches")[0][3:5] == ["750 µs", "75.0 %"]
    circles = [a for tag, a in page.tags if tag == "circle"]
    assert len(circles) == 2 and "200 Gop/s" in page.text  # of two threads
    area = [float(a["r"] or 0) - 3 for a in circles]
    assert (area[0] / area[1]) ** 2 == pytest.approx(3, rel=0.02)


def test_runs_without_amounts(module: Path) -> None:
    """Of a stripped module, of a GPU, and without a profile."""
    nothing = {"flops": None, "bytes": None, "gflops": None, "gbs": None, "of_peak": None}
    row = launch(**nothing, node="", kind="copy")
    del row["grid"]
    page = page_of(module, {"steady": steady(**nothing, machine=None, dispatches=[row])})
    assert "gflops" not in page.figures and not [t for t, _ in page.tags if t == "circle"]
    assert len(page.rows("launches")) == 1
    plain = steady()
    for key in ("gflops", "gbs", "machine", "dispatches", "of_peak"):
        del plain[key]
    assert page_of(module, {"steady": plain}).rows("launches") == []


def test_a_point_stands_below_the_roof_where_its_figures_do() -> None:
    points = [drawings.Point(10.0, 50.0, 1.0, "a"), drawings.Point(0.0, 1.0, 0.0, "no arithmetic")]
    page = Page(str(drawings.roofline(points, 100.0, 20.0)))
    (circle,) = [a for tag, a in page.tags if tag == "circle"]
    (roof,) = [a for tag, a in page.tags if tag == "polyline"]
    corners = [tuple(map(float, c.split(","))) for c in str(roof["points"]).split()]
    assert float(circle["cy"] or 0) > min(y for _, y in corners)  # y goes down
    assert corners == sorted(corners)
    assert drawings.roofline(points[1:], 100.0, 20.0) is None


def test_cold_starts(module: Path) -> None:
    page = page_of(module, {"cold": cold("warm", "dropped")})
    assert page.figures["cold.file in the page cache"][0] == 28.0
    assert all(phase in page.text for phase in PHASES)
    assert "not dropped" not in page.text
    parts = [a for tag, a in page.tags if tag == "i" and "exec" in (a.get("title") or "")]
    assert [a["style"] for a in parts] == [f"width:{100 / 28:.2f}%"] * 2
    page = page_of(module, {"cold": cold("warm", not_dropped="not known how on this system")})
    assert "not dropped: not known how" in page.text


def test_threads_and_engines(module: Path) -> None:
    against = {"median_ms": {"aotc": 1.0, "onnxruntime": 2.0}, "ratio": {"onnxruntime": 0.5}}
    against["round_medians_ms"] = {"aotc": [0.9, 1.0, 1.2], "onnxruntime": [2.0, 2.0, 2.0]}  # type: ignore[dict-item]
    page = page_of(module, {"against": against, "threads": {1: 4.0, 2: 2.5}})
    assert page.figures["threads.2 threads"][0] == 2.5 and "1.60 × one thread" in page.text  # noqa: RUF001
    assert page.figures["engines.onnxruntime"][0] == 2.0 and "aotc takes 0.50 of it" in page.text


def test_shaders(module: Path) -> None:
    facts = shaders(none=level(9, 90.0), structural=level(6, 60.0), despecialised=level(3, 30.0))
    page = page_of(module, {"shaders": facts})
    shown = page.figures
    for name, found in facts["levels"].items():
        assert shown[f"shaders.{name}.pipelines"][0] == found["pipelines"]
        assert shown[f"shaders.{name}.words"][0] == found["words"]
        assert shown[f"shaders.{name}.cold, serial"][0] == found["cold"]["serial"]["total_ms"]
        assert shown[f"shaders.{name}.cached, serial"][0] == found["cached"]["total_ms"]
    assert "3.00 × as fast for despecialised as for none" in page.text  # noqa: RUF001
    assert "a driver in software" in page.text
    equal = page_of(module, {"shaders": shaders(none=level(3, 49.0), despecialised=level(3, 30.0))})
    assert "none and despecialised have shaders of the same sizes" in equal.text
    assert "as fast for" not in equal.text
    alone = page_of(module, {"shaders": shaders(False, **{"as compiled": level(3, 30.0, 0.0)})})
    assert "as fast for" not in alone.text and "in software" not in alone.text


def test_a_module_without_notes_or_of_several_models(tmp_path: Path) -> None:
    image = read_module(compiled("x86-64-v3", "vulkan-1.1").to_bytes())
    bare = tmp_path / "bare.aotm"
    bare.write_bytes(module_bytes(ModuleImage(image.variants, image.rodata, image.rodata_segments)))
    page = page_of(bare, {"cold": cold("warm")})
    assert page.figures["variants.0.executables"][0] == len(image.variants[0].executables)
    one, two = tmp_path / "one.aotm", tmp_path / "two.aotm"
    compiled("x86-64-v3").save(one)
    compiled("x86-64-v3").save(two)
    both = tmp_path / "both.aotm"
    aot.merge([one, two]).save(both)
    page = page_of(both, {"cold": cold("warm")})
    assert "Entry point one" in page.text and "Entry point two" in page.text


# ---- of the command ----


@pytest.mark.slow
def test_the_command(
    use_built_runtime: None, tmp_path: Path, module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.html"
    arguments = ["bench", str(module), "--shape", "x=6x32", "--device", "cpu", "--threads", "2"]
    arguments += ["--runs", "3", "--seconds", "0.01", "--rounds", "2", "--report", str(path)]
    assert main([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    page = Page(path.read_text(encoding="utf-8"))
    page.check_alone()
    assert page.figures["steady.median"][0] == facts["median_ms"]
    assert page.figures["launches.0"][0] == facts["dispatches"][0]["median_ms"]
    assert page.figures["threads.2 threads"][0] > 0
    assert page.figures["cold.file in the page cache"][0] > 0
    assert "layer0" in page.text and "net.aotm" in page.text


@pytest.mark.slow
def test_against_and_cold(
    use_built_runtime: None, tmp_path: Path, module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.html"
    arguments = ["bench", str(module), "--shape", "x=6x32", "--report", str(path)]
    assert main([*arguments, "--cold", "--rounds", "2"]) == 0
    page = Page(path.read_text(encoding="utf-8"))
    assert "steady.median" not in page.figures
    assert page.figures["cold.file in the page cache"][0] > 0


@pytest.mark.vulkan
@pytest.mark.slow
def test_shaders_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, path = tmp_path / "m.aotm", tmp_path / "r.html"
    compiled("vulkan-1.1").save(module)
    with running_on("lavapipe", tmp_path):
        monkeypatch.delenv("VK_INSTANCE_LAYERS", raising=False)
        arguments = ["--shaders", "--rounds", "1", "--shape", "x=6x32", "--report", str(path)]
        assert main(["bench", str(module), *arguments]) == 0
    page = Page(path.read_text(encoding="utf-8"))
    page.check_alone()
    pipelines = page.figures["shaders.as compiled.pipelines"][0]
    assert pipelines == page.figures["variants.0.executables"][0] > 0


@pytest.mark.parametrize("report_path", ["absent/r.html", "net.aotm"])
def test_nothing_is_measured_for_a_page_that_cannot_be(
    module: Path, report_path: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv(RUNNER_VARIABLE, os.devnull)  # would be another error
    before = module.read_bytes()
    assert main(["bench", str(module), "--report", str(module.parent / report_path)]) in (1, 2)
    said = capsys.readouterr().err
    assert (said.startswith("aotc: error: ") and "report" in said) or "cannot write" in said
    assert module.read_bytes() == before
