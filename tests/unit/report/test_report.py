"""`aotc compile --report`: what the page says beside the statistics; it can't be broken."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot import report
from aot.api import CompiledModule
from aot.builder import Builder
from aot.cli.main import main
from aot.errors import CompileError
from aot.ir.graph import Module
from aot.ir.text.printer import print_module
from aot.ir.types import DType
from aot.link import files
from aot.report import contents, drawings
from aot.report.numbers import amount, milliseconds, readable, short, size
from tests.support.control_models import greedy_decode
from tests.support.models import model_path
from tests.support.paths import ROOT
from tests.support.report_pages import Page

TARGETS = ["x86-64-v3", "vulkan-1.1"]
DRAW = np.random.default_rng(4)


def weights(*shape: int) -> Any:
    return DRAW.standard_normal(shape).astype(np.float32)


def layers(x: str = "f32[256, 64]") -> Module:
    """Products of equal and of other shapes, then a sum over both dims."""
    b = Builder()
    made = b.input("x", x)
    for n, width in enumerate((64, 64, 64, 128, 32)):
        matrix = b.constant(weights(int(made.type.dims[1]), width))
        product = b.op("matmul", made, matrix, origin=f"layer{n}")
        made = b.op("softmax", b.op("tanh", product), axis=1, origin=f"norm{n}")
    b.output("y", made)
    return b.module()


def page_of(module: CompiledModule, title: str = "m.aotm") -> Page:
    assert module.details is not None
    text = report.compile_page(module.to_bytes(), module.stats, module.details, title)
    page = Page(text)
    page.check_alone()
    return page


def compiled(model: Any, **options: Any) -> CompiledModule:
    return aot.compile(model, **{"targets": TARGETS, "details": True, **options})


def check_figures(page: Page, module: CompiledModule) -> None:
    """Every figure of the statistics that the page has is the same there."""
    shown = {key: value for key, (value, _) in page.figures.items()}
    assert shown["file_bytes"] == len(module.to_bytes())
    assert sum(v for k, v in shown.items() if k.startswith("parts.")) == len(module.to_bytes())
    assert shown.get("parts.weights", 0) == len(module.image.rodata)
    for key, value in module.stats["rodata"].items():
        assert shown[f"rodata.{key}"] == value
    for number, section in enumerate(module.stats["variants"]):
        where = f"variants.{number}"
        assert shown[f"{where}.dispatches"] == section["dispatches"]
        assert shown[f"{where}.executables"] == section["executables"]["emitted"]["kept"]
        assert shown[f"{where}.code_bytes"] == section["code_bytes"]
        saved = section["storage"].get("constant_bytes_saved")
        assert shown.get(f"{where}.storage.constant_bytes_saved") == saved
        if section["llvm_calls"] or section["cache"]["hits"]:
            calls, hits = section["llvm_calls"], section["cache"]["hits"]
            assert f"LLVM compiled {calls} of the executables; the cache had {hits}." in page.text
        for level, counts in section["executables"].items():
            for key in ("met", "kept", "bytes_saved"):
                assert shown.get(f"{where}.executables.{level}.{key}") == counts[key]
            seconds = shown.get(f"{where}.executables.{level}.seconds_saved")
            known = counts["seconds_saved"]
            assert seconds == (None if known is None else pytest.approx(1e3 * known))
        for stage, seconds in section["seconds"].items():
            assert shown[f"{where}.seconds.{stage}"] == pytest.approx(1e3 * seconds)


def rows_of(page: Page, module: CompiledModule, kind: str) -> list[list[list[str]]]:
    """The rows of a table by variant."""
    found, rows = [], page.rows(kind)
    for number, variant in enumerate(module.image.variants):
        is_code = kind == "executables"
        count = (
            len(variant.executables) if is_code else module.stats["variants"][number]["dispatches"]
        )
        found.append(rows[:count])
        rows = rows[count:]
    assert rows == []
    return found


# ---- what it says ----


def test_figures_are_those_of_the_statistics() -> None:
    module = compiled(layers())
    page = page_of(module)
    check_figures(page, module)
    shown = page.figures
    for number, section in enumerate(module.stats["variants"]):
        assert shown[f"variants.{number}.arena_bytes"][0] == section["arena_bytes"]
        (entry,) = module.image.variants[number].entry_points
        assert shown[f"variants.{number}.flops"][0] == sum(n.flops for n in entry.launches)
    assert page.text.count("256 × 64") == 2  # noqa: RUF001 - an input's dims, by variant


def test_dispatches_say_what_became_of_the_nodes() -> None:
    module = compiled(layers())
    page = page_of(module)
    for variant, rows in zip(
        module.image.variants, rows_of(page, module, "dispatches"), strict=True
    ):
        names = {e.name for e in variant.executables}
        assert [row[0] for row in rows] == [str(n) for n in range(len(rows))]
        assert all(row[2] in names for row in rows)
        first = rows[0]
        assert "layer0" in first[1] and "matmul" in first[1]
        assert "apart because" in rows[-1][1]  # the sums don't fit behind what they read
        shares = [float(row[5].removesuffix(" %")) for row in rows]
        assert sum(shares) == pytest.approx(100, abs=len(rows) * 0.06)


def test_executables_say_how_often_they_are_used() -> None:
    module = compiled(layers())
    page = page_of(module)
    for variant, rows in zip(
        module.image.variants, rows_of(page, module, "executables"), strict=True
    ):
        uses = {row[0]: int(row[3].split()[0]) for row in rows}
        assert set(uses) == {e.name for e in variant.executables}
        (entry,) = variant.entry_points
        assert sum(uses.values()) == len(entry.launches)
    gpu = rows_of(page, module, "executables")[1]
    words = {row[0]: int(row[1].removesuffix(" words").replace(",", "")) for row in gpu}
    for executable in module.image.variants[1].executables:
        assert executable.spirv is not None
        assert words[executable.name] == len(executable.spirv) // 4


def test_missed_merges_and_why_regions_end_are_folded_away() -> None:
    module = compiled(layers(), disable=["despecialise"])
    page = page_of(module)
    misses = [m for v in module.stats["variants"] for m in v["missed_merges"]]
    assert misses
    for miss in misses:
        assert miss["rule"] in page.text and miss["first"] in page.text
    assert module.details is not None
    for variant in module.details.variants:
        for dispatch in variant.entries[0].dispatches:
            assert dispatch.region is not None
            for read in dispatch.region["reads"]:
                assert all(reason in page.text for reason in read["why"])


def boxes(page: Page) -> list[dict[str, float]]:
    keys = ("x", "y", "width", "height")
    return [
        {k: float(a[k] or "nan") for k in keys}
        for tag, a in page.tags
        if tag == "rect" and "class" in a
    ]


def test_the_arena_is_drawn_as_it_was_planned() -> None:
    module = compiled(layers(), targets=["x86-64-v3"])
    page = page_of(module)
    assert module.details is not None
    (entry,) = module.details.variants[0].entries
    assert entry.buffers is not None
    planned = [b for b in entry.buffers if b.size_bytes]
    scratch = [n for n in entry.scratch.values() if n]
    drawn = boxes(page)
    assert len(drawn) == len(planned) + len(scratch) > 2
    for one in planned:
        assert f"{one.size_bytes:,} bytes at {one.offset:,}" in page.text
        assert all(f"dispatch {n}" in page.text for n in one.makers[:1])
    for n, a in enumerate(drawn):  # what lives at one time lies apart
        for b in drawn[:n]:
            is_beside = a["x"] + a["width"] <= b["x"] + 0.2 or b["x"] + b["width"] <= a["x"] + 0.2
            is_above = a["y"] + a["height"] <= b["y"] + 0.6 or b["y"] + b["height"] <= a["y"] + 0.6
            assert is_beside or is_above
    assert "lower bound" in page.text


def test_open_dims() -> None:
    module = compiled(layers("f32[N, 64]"))
    page = page_of(module)
    check_figures(page, module)
    assert "any N" in page.text and "known at run time only" in page.text
    assert boxes(page) == []
    bounded = page_of(compiled(layers("f32[N, 64]"), input_shapes={"x": ("8<=N<=512", 64)}))
    assert "8 ≤ N ≤ 512" in bounded.text
    assert boxes(bounded)


def test_states_loops_and_branches() -> None:
    module = compiled(greedy_decode("Where"))
    page = page_of(module)
    check_figures(page, module)
    assert "in loop" in " ".join(row[1] for row in page.rows("dispatches"))
    assert module.details is not None
    for variant, image in zip(module.details.variants, module.image.variants, strict=True):
        (entry,) = variant.entries
        assert len(entry.dispatches) == len(image.entry_points[0].launches)
        for dispatch, launch in zip(entry.dispatches, image.entry_points[0].launches, strict=True):
            assert dispatch.region is not None
            nodes = {op["node"] for op in dispatch.region["ops"]}
            assert launch.origin in nodes

    b = Builder()
    past, x = b.input("past", "f32[1, 8]"), b.input("x", "f32[1, 8]")
    b.output("y", b.op("matmul", b.op("add", past, x), b.constant(weights(8, 8))))
    b.output("present", b.op("tanh", b.op("add", past, x)))
    kept = page_of(compiled(b.module(), states={"past": "present"}))
    assert "state" in " ".join(cell for row in kept.rows("") for cell in row[:1])
    assert any(a.get("class") == "state" for tag, a in kept.tags if tag == "rect")


@pytest.mark.parametrize(
    "options",
    [
        {"strip": True},
        {"disable": ["fusion"]},
        {"storage": "fp16"},
        {"disable": ["share-constants"]},
        {"entry_name": "net"},
        {"targets": ["thumbv7em"]},
    ],
    ids=str,
)
def test_with_options(options: Mapping[str, Any]) -> None:
    module = compiled(layers(), **options)
    page = page_of(module, "")
    check_figures(page, module)
    rows = rows_of(page, module, "dispatches")
    assert all(row[4] for of in rows for row in of if row[2].startswith("e"))
    assert options.get("entry_name", "main") in page.text


def test_what_a_gpu_cannot_run_is_the_hosts() -> None:
    b = Builder()
    x = b.op("cast", b.input("x", "f32[8, 8]"), to=DType.F64)
    y = b.op("cast", b.op("matmul", x, x, origin="doubles"), to=DType.F32)
    b.output("y", b.op("matmul", y, b.constant(weights(8, 8))))
    module = compiled(b.module(), targets=["vulkan-1.1", "x86-64-v3"])
    page = page_of(module)
    check_figures(page, module)
    hosted = module.stats["variants"][0]["cpu_fallback"]
    assert page.figures["variants.0.cpu_fallback.dispatches"][0] == hosted["dispatches"] > 0
    assert "on the host" in " ".join(row[2] for row in page.rows("dispatches"))
    assert f"on the host: {hosted['because'][0]['why']}" in page.text


def test_of_very_large_models_the_first_and_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("MOST_ROWS", 2), ("MOST_EXECUTABLES", 1), ("MOST_CONSTANTS", 3)):
        monkeypatch.setattr(contents, name, most)
    monkeypatch.setattr(drawings, "MOST_BOXES", 2)
    module = compiled(layers(), targets=["x86-64-v3"], disable=["fusion"])
    page = page_of(module)
    check_figures(page, module)
    assert len(page.rows("dispatches")) == 2 and len(page.rows("executables")) == 1
    left = module.stats["variants"][0]["dispatches"] - 2
    assert f"{left} dispatches more are not shown" in page.text
    assert "and 2 smaller ones" in page.text and len(boxes(page)) == 2


def test_nothing_to_do() -> None:
    b = Builder()
    b.output("y", b.input("x", "f32[4]"))
    module = compiled(b.module())
    check_figures(page_of(module), module)


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppocr_cls", "minilm_l3", "silero_vad_16k_if"])
def test_models(name: str) -> None:
    """Regions are those of the dispatches; the page is as small as a page should be."""
    module = compiled(model_path(name))
    page = page_of(module)
    check_figures(page, module)
    assert len(page.source) < 600_000
    assert module.details is not None
    for variant, image in zip(module.details.variants, module.image.variants, strict=True):
        for entry, known in zip(variant.entries, image.entry_points, strict=True):
            for dispatch, launch in zip(entry.dispatches, known.launches, strict=True):
                assert dispatch.region is not None
                nodes = {op["node"] for op in dispatch.region["ops"]}
                nodes |= {root["node"] for root in dispatch.region["roots"]}
                assert not launch.origin or launch.origin in nodes


# ---- that it can't be broken ----


def timeless(module: CompiledModule) -> str:
    """The page with all seconds made one."""
    stats = json.loads(json.dumps(module.stats))
    for section in stats["variants"]:
        section["seconds"] = dict.fromkeys(section["seconds"], 1.0)
        for level in section["executables"].values():
            level["seconds_saved"] = 0.5
    assert module.details is not None
    for variant in module.details.variants:
        variant.passes = tuple(replace(run, seconds=0.25) for run in variant.passes)
    return report.compile_page(module.to_bytes(), stats, module.details, "m")


def test_the_same_compile_gives_the_same_page() -> None:
    """Without a cache: the page says what was found in it."""
    pages = {timeless(compiled(layers(), cache=False)) for _ in range(2)}
    assert len(pages) == 1


def test_asking_changes_nothing() -> None:
    model = layers("f32[N, 64]")
    plain, asked = aot.compile(model, targets=TARGETS), compiled(model)
    assert plain.to_bytes() == asked.to_bytes()
    for a, b in zip(plain.stats["variants"], asked.stats["variants"], strict=True):
        same = {k for k in a if k not in ("seconds", "executables", "cache", "llvm_calls")}
        assert {k: a[k] for k in same} == {k: b[k] for k in same}
    assert plain.details is None


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style></svg><b>",
    "{{ 7 * 7 }} {% include 'page.html' %}",
    "a\x00b\x1b[31m\u202e\ud800",
    "&amp; ]]> -->",
    "n" * 5000,
)


@pytest.mark.parametrize("name", HOSTILE, ids=lambda n: repr(n)[:20])
def test_names_are_text(name: str) -> None:
    b = Builder()
    x = b.input("x", "f32[64, 64]")
    first = b.op("softmax", b.op("matmul", x, b.constant(weights(64, 64))), axis=1, origin=name)
    b.output("y", b.op("matmul", first, b.constant(weights(64, 512)), origin=name))
    module = compiled(b.module())
    page = page_of(module, name)
    check_figures(page, module)
    assert short(readable(name)) in page.text
    report_bytes = page.source.encode("utf-8", errors="replace")
    assert b"\x00" not in report_bytes and b"\x1b" not in report_bytes
    assert len(page.source) < 300_000


def test_names_of_inputs_are_text() -> None:
    b = Builder()
    for n, name in enumerate(HOSTILE[:4]):
        b.output(f"{name}{n}", b.op("tanh", b.input(name, "f32[8]")))
    page = page_of(compiled(b.module()))
    assert all(name in page.text for name in HOSTILE[:4])


# ---- the command ----


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.ir"
    path.write_text(print_module(layers()))
    return path


def test_the_command(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page, stats = (tmp_path / n for n in ("m.aotm", "m.html", "m.json"))
    arguments = ["compile", str(model), "-o", str(out), "--report", str(page)]
    assert main([*arguments, "--stats", str(stats), "--target", "x86-64-v3"]) == 0
    assert capsys.readouterr().out == ""
    shown = Page(page.read_text(encoding="utf-8"))
    known = json.loads(stats.read_text())
    figures = shown.figures
    assert figures["variants.0.dispatches"][0] == known["variants"][0]["dispatches"]
    assert figures["file_bytes"][0] == out.stat().st_size
    command = f"aotc {' '.join([*arguments, '--stats', str(stats), '--target', 'x86-64-v3'])}"
    assert command == known["run"]["command"] and shown.source.count(command) == 1
    assert "m.aotm" in shown.text and str(tmp_path) not in shown.source.replace(command, "")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("absent/r.html", "cannot write {}: its folder is not there"),
        ("", "cannot write {}: is a directory"),
        ("/dev/full", "cannot write {}: no space left on device"),
    ],
)
def test_where_the_page_cannot_be(
    tmp_path: Path, model: Path, where: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / where)
    if path.startswith("/dev") and not Path(path).exists():
        pytest.skip(f"there is no {path}")
    out = tmp_path / "m.aotm"
    assert main(["compile", str(model), "-o", str(out), "--report", path]) == 1
    assert capsys.readouterr().err == f"aotc: error: {message.format(path)}\n"
    assert sorted(os.listdir(tmp_path)) in (["m.aotm", "model.ir"], ["model.ir"])


def test_a_disk_that_fills_leaves_the_old_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.html"
    path.write_text("old")

    def fill(handle: int, data: bytes) -> None:
        os.write(handle, data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "_write_all", fill)
    with pytest.raises(CompileError, match=f"cannot write {path}: no space left on device"):
        compiled(layers()).save_report(path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["r.html"]


def test_the_page_replaces_none_of_the_other_files(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = model.read_bytes()
    out = tmp_path / "m.aotm"
    for victim in (model, out):
        assert main(["compile", str(model), "-o", str(out), "--report", str(victim)]) == 2
        assert f"the report would be written over {victim}" in capsys.readouterr().err
    assert model.read_bytes() == before and not out.exists()


def test_a_report_needs_details(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="compile the model with details=True"):
        aot.compile(layers()).save_report(tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_without_a_report_nothing_of_it_is_loaded(tmp_path: Path, model: Path) -> None:
    script = (
        "import sys\nfrom aot.cli.main import main\nassert main(sys.argv[1:]) == 0\n"
        "print(*sorted(m for m in sys.modules if m.startswith(('jinja2', 'aot.report', "
        "'aot.tools.explain_fusion'))))"
    )
    command = [sys.executable, "-c", script, "compile", str(model), "-o", str(tmp_path / "o.aotm")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == []


# ---- numbers ----


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (size(0), "0 B"),
        (size(999), "999 B"),
        (size(1000), "1.00 kB"),
        (size(999_600), "1.00 MB"),
        (size(12_345_678), "12.3 MB"),
        (amount(53), "53"),
        (amount(1.5e9, "FLOP"), "1.50 GFLOP"),
        (milliseconds(0), "0 ms"),
        (milliseconds(0.0123), "12.3 µs"),
        (milliseconds(12.345), "12.3 ms"),
        (milliseconds(99.96), "100 ms"),
        (milliseconds(61_234), "61.2 s"),
        (milliseconds(2e-5), "20 ns"),
    ],
)
def test_numbers(made: Any, text: str) -> None:
    assert made.text == text
