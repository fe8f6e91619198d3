"""`aotc report compare`: which figures are paired, what is noise, and what is said or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aot.builder import Builder
from aot.cli.main import main
from aot.driver.provenance import provenance
from aot.errors import CompileError
from aot.ir.text.printer import print_module
from aot.tools.comparison import BEYOND, EXACT, UNKNOWN, WITHIN, Change, compare


def model(path: Path, width: int = 8) -> Path:
    b = Builder()
    x = b.input("x", f"f32[4, {width}]")
    b.output("y", b.op("softmax", b.op("tanh", x), axis=1))
    path.write_text(print_module(b.module()))
    return path


def runs(*, median: float, least: float, p90: float, **more: Any) -> dict[str, Any]:
    """What `aotc bench --json` writes, as far as it is compared."""
    run = provenance("bench", ["bench", "m.aotm"], signature=["x: f32[4]"], shapes={}, threads=1)
    facts = {
        "module": "m.aotm",
        "median_ms": median,
        "min_ms": least,
        "p90_ms": p90,
        **dict.fromkeys(("arena_bytes", "scratch_bytes", "code_bytes", "peak_rss_kb"), 100),
        "phases_ms": {"open": 0.5},
        "run": run,
    }
    return {**facts, **more}


def compared(tmp_path: Path, one: Mapping[str, Any], other: Mapping[str, Any]) -> Any:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, facts in zip(paths, (one, other)):
        path.write_text(json.dumps(facts))
    return compare(*paths)


def changes(tmp_path: Path, one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Change]:
    return {c.name: c for c in compared(tmp_path, one, other).changes}


def test_two_compiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = model(tmp_path / "m.ir")
    files = []
    for name, options in (("a", []), ("b", ["--disable", "fusion"])):
        files.append(str(tmp_path / f"{name}.json"))
        out = str(tmp_path / f"{name}.aotm")
        command = ["compile", str(path), "-o", out, "--target", "x86-64-v3", "--stats", files[-1]]
        assert main([*command, *options]) == 0
    known = [json.loads(Path(f).read_text()) for f in files]
    assert known[0]["run"]["module"]["bytes"] == (tmp_path / "a.aotm").stat().st_size
    assert main(["report", "compare", *files, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    found = {row["name"]: row for row in facts["changes"]}
    dispatches = found["x86-64-v3.dispatches"]
    assert [dispatches["before"], dispatches["after"]] == [1, 2]
    assert dispatches["ratio"] == 2 and dispatches["verdict"] == EXACT
    for key in ("kernels", "passes"):
        assert found[f"x86-64-v3.seconds.{key}"]["verdict"] == UNKNOWN
    (remark,) = facts["remarks"]
    assert remark.startswith("by other commands: aotc compile ")
    assert remark.endswith("--disable fusion")
    assert main(["report", "compare", files[0], files[0]]) == 0
    assert capsys.readouterr().out.startswith("nothing differs: ")
    assert main(["report", "compare", *files, "--top", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 + 1


def test_times_are_beyond_the_noise_where_their_intervals_are_apart(tmp_path: Path) -> None:
    slow, fast, near = (
        runs(median=2.0, least=1.8, p90=2.4),
        runs(median=1.0, least=0.9, p90=1.7),
        runs(median=1.9, least=1.7, p90=1.9),
    )
    assert changes(tmp_path, slow, fast)["median_ms"].verdict == BEYOND
    assert changes(tmp_path, fast, slow)["median_ms"].ratio == 2
    assert changes(tmp_path, slow, near)["median_ms"].verdict == WITHIN
    assert changes(tmp_path, slow, fast)["phases_ms.open"].verdict == UNKNOWN
    assert changes(tmp_path, slow, fast)["arena_bytes"].verdict == EXACT


def test_dispatches_are_paired_by_node(tmp_path: Path) -> None:
    def rows(*times: tuple[str, float]) -> list[dict[str, Any]]:
        return [
            {"node": n, "kind": "dispatch", "median_ms": t, "min_ms": t - 0.1} for n, t in times
        ]

    times = {"median": 1.0, "least": 1.0, "p90": 1.0}
    one = runs(**times, dispatches=rows(("conv", 1.0), ("relu", 0.5), ("conv", 2.0)))
    other = runs(**times, dispatches=rows(("conv", 1.1), ("conv", 3.0), ("pool", 1.0)))
    found = changes(tmp_path, one, other)
    assert found["dispatch conv"].verdict == WITHIN
    assert found["dispatch conv (2)"].verdict == BEYOND
    assert (found["dispatch relu"].before, found["dispatch relu"].after) == (0.5, None)
    assert found["dispatch pool"].verdict == UNKNOWN


def test_rounds_of_engines_and_cold_starts(tmp_path: Path) -> None:
    def engines(ours: list[float]) -> dict[str, Any]:
        facts = runs(median=1, least=1, p90=1)
        facts["round_medians_ms"] = {"aotc": ours, "onnxruntime": [2.0, 2.2]}
        facts["median_ms"] = {"aotc": ours[0], "onnxruntime": 2.1}
        return {**facts, "ratio": {"onnxruntime": ours[0] / 2.1}}

    found = changes(tmp_path, engines([1.0, 1.1]), engines([1.2, 1.3]))
    assert found["aotc.median_ms"].verdict == BEYOND
    assert found["ratio to onnxruntime"].verdict == WITHIN  # the other engine varies, too

    def cold(total: float, least: float) -> dict[str, Any]:
        of = {"total_ms": total, "min_total_ms": least, "phases_ms": {"open": 1}, "peak_rss_kb": 9}
        return {"module": "m", "cold": {"warm": of}, "run": runs(median=1, least=1, p90=1)["run"]}

    assert changes(tmp_path, cold(2.0, 1.9), cold(2.5, 2.4))["warm.total_ms"].verdict == BEYOND
    assert changes(tmp_path, cold(2.0, 1.5), cold(2.4, 2.0))["warm.total_ms"].verdict == WITHIN


def test_what_else_differs_is_said(tmp_path: Path) -> None:
    one, other = (runs(median=1, least=1, p90=1) for _ in range(2))
    other["run"] |= {"signature": ["z: f32[5]"], "cpu": "another", "aotc": "9.9", "threads": 4}
    other["run"]["versions"] = {**one["run"]["versions"], "numpy": "0.1"}
    said = compared(tmp_path, one, other).remarks
    assert said[0] == f"of other versions: aotc {one['run']['aotc']} and 9.9"
    assert said[1] == "of different models, by their inputs and outputs: x: f32[4]; z: f32[5]"
    assert said[2] == "with other threads: 1 and 4"
    assert said[3].startswith("on other processors: ") and said[3].endswith("; times tell nothing")
    assert said[4].startswith("with other versions of numpy: ") and len(said) == 5


def test_compiles_of_different_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, width in (("one", 8), ("two", 16)):
        path = model(tmp_path / f"{name}.ir", width)
        files.append(str(tmp_path / f"{name}.json"))
        out = str(tmp_path / "m.aotm")
        assert main(["compile", str(path), "-o", out, "--stats", files[-1]]) == 0
    assert main(["report", "compare", *files]) == 0
    assert "note: of different models: one.ir and two.ir\n" in capsys.readouterr().out


GOOD = {"variants": [], "rodata": {}}
RUN = provenance("compile")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no report: it is no JSON"),
        ("[" * 100_000, "is no report: it is no JSON"),
        ("[1]", "is no report: 'aotc compile --stats FILE' and 'aotc bench --json' write them"),
        (json.dumps(GOOD), "is a report of an older version, which does not say what it is of"),
        (
            json.dumps({**GOOD, "run": {"format": 2, "kind": "compile", "aotc": "3.0"}}),
            "is a report of format 2, of aotc 3.0: this version reads format 1",
        ),
        (
            json.dumps({**GOOD, "run": {"format": 1, "kind": "cooking"}}),
            "is a report of kind 'cooking', which is not known",
        ),
        (
            json.dumps({"variants": [{}], "run": {"format": 1, "kind": "compile"}}),
            "are damaged: a figure is missing or of another type ('target')",
        ),
        (
            json.dumps({**GOOD, "run": {"format": 1, "kind": "compile"}}),
            "are damaged: a figure is missing or of another type ('aotc')",
        ),
        (
            json.dumps({**GOOD, "rodata": {"a": 1e999}, "run": provenance("compile")}),
            "are damaged: a figure is missing or of another type (rodata.a is inf)",
        ),
        (
            f'{{"variants": [], "rodata": {{"a": 1{"0" * 400}}}, "run": {json.dumps(RUN)}}}',
            "are damaged: a figure is missing or of another type (int too large",
        ),
        (
            json.dumps({**GOOD, "run": {**RUN, "versions": 3}}),
            "are damaged: a figure is missing or of another type ('int' object is not iterable)",
        ),
        (
            json.dumps(runs(median=1, least=1, p90=1)),
            "of a benchmark: they have no figure in common",
        ),
    ],
)
def test_bad_reports(tmp_path: Path, text: str, message: str) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps({**GOOD, "run": provenance("compile")}))
    bad.write_text(text)
    with pytest.raises(CompileError) as raised:
        compare(good, bad)
    assert message in str(raised.value) and "bad.json" in str(raised.value)


def test_a_figure_that_is_no_number(tmp_path: Path) -> None:
    good, bad = runs(median=1, least=1, p90=1), runs(median=1, least=1, p90=1)
    bad["median_ms"] = "1"
    with pytest.raises(CompileError, match=r"must be real number, not str\)$"):
        compared(tmp_path, good, bad)


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "none.json")
    assert main(["report", "compare", path, path]) == 1
    assert (
        capsys.readouterr().err == f"aotc: error: cannot read {path}: no such file or directory\n"
    )
