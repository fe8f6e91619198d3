"""What a compile tells of itself never fails it: each part of that, broken in turn."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.cli.main import main
from aot.driver import ledger, pipeline, variant
from aot.errors import AdviceWarning, CompileError, InternalError, RuntimeFailure, advice
from aot.ir.graph import Module
from aot.ir.text.printer import print_module
from aot.passes.fusion import fuse
from aot.report import details

# what is broken: where it is called, by what name, and what the warning says is missing
BROKEN = {
    "missed merges": (variant, "missed_merges", "the list of missed merges"),
    "launches": (variant, "launches_of", "what each dispatch computes and moves"),
    "ledger": (pipeline, "model_ledger", "the ledger of deduplication"),
    "savings": (ledger, "_own_bytes", "how many bytes deduplication saved"),
    "remarks": (fuse, "_add_remarks", "why regions end"),
    "regions": (details, "regions_of", "why regions end"),
    "dispatches": (details, "_entry", "what a report says of dispatches and buffers"),
}


def broken(*_: Any, **__: Any) -> Any:
    """Fails as a list without elements does."""
    return list[Any]()[0]


def model() -> Module:
    """Two products that differ in extents, a softmax, and a value that two dispatches read."""
    b = Builder()
    x = b.input("x", "f32[N, 64]")
    for columns in (64, 96, 64):
        x = b.op("matmul", x, b.constant(np.ones((int(str(x.type.dims[1])), columns), np.float32)))
        x = b.op("softmax", x, axis=1)
    b.output("y", x)
    return b.module()


def compiled(**options: Any) -> aot.CompiledModule:
    return aot.compile(model(), targets=["host"], details=True, **options)


@pytest.fixture
def as_a_user() -> Iterator[None]:
    """Without the filter by which the tests make of such a warning an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", AdviceWarning)
        yield


@pytest.mark.parametrize("case", BROKEN)
def test_leaves_a_warning_and_the_same_module(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, subject = BROKEN[case]
    whole = compiled(strip=True).to_bytes()
    monkeypatch.setattr(module, name, broken)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        made = compiled()
        stripped = compiled(strip=True).to_bytes()
    messages = {str(w.message) for w in found if w.category is AdviceWarning}
    line = broken.__code__.co_firstlineno + 2
    assert messages == {
        f"{subject} is left out: IndexError: list index out of range (test_advice.py:{line})"
    }
    assert stripped == whole
    x = np.ones((2, 64), np.float32)
    wanted = aot.load(whole)({"x": x})["y"]
    assert (aot.load(made)({"x": x})["y"] == wanted).all()


@pytest.mark.parametrize("case", BROKEN)
def test_is_an_error_in_the_tests(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, _ = BROKEN[case]
    monkeypatch.setattr(module, name, broken)
    with pytest.raises((AdviceWarning, InternalError), match="list index out of range"):
        compiled()


@pytest.mark.usefixtures("as_a_user")
def test_a_module_without_a_ledger_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pipeline, "model_ledger", broken)
    with pytest.warns(AdviceWarning, match="the ledger of deduplication is left out"):
        made = compiled()
    path = tmp_path / "model.aotm"
    made.save(path)
    with pytest.raises(CompileError) as error:
        aot.inspect(path, dedup=True)
    assert str(error.value) == (
        f"{path} has no ledger of deduplication: the compile that wrote it warned that it could "
        "not be made"
    )
    merged = aot.merge([path])
    assert "models" in aot.inspect(merged.to_bytes(), dedup=True)["dedup"]


def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    source = tmp_path / "model.ir"
    source.write_text(print_module(model()))

    def run(*options: str) -> tuple[int, str]:
        status = main(["compile", str(source), "-o", str(tmp_path / "model.aotm"), *options])
        return status, capsys.readouterr().err

    return run


@pytest.mark.usefixtures("as_a_user")
def test_the_command_says_what_is_missing_and_what_to_send(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(variant, "missed_merges", broken)
    monkeypatch.setattr(aot.CompiledModule, "save_report", broken)
    report, stats = tmp_path / "model.html", tmp_path / "stats.json"
    status, said = command(tmp_path, capsys)("--report", str(report), "--stats", str(stats))
    assert status == 0
    lines = said.splitlines()
    assert len(lines) == 2
    for line, subject in zip(lines, ("the list of missed merges", "the report"), strict=True):
        head, repro = line.split(" please report it with ")
        assert head == (
            f"aotc: warning: {subject} is left out: IndexError: list index out of range "
            f"(test_advice.py:{broken.__code__.co_firstlineno + 2}); the module is complete, and "
            "this is a bug of aotc,"
        )
        assert "IndexError: list index out of range" in Path(repro).read_text()
        Path(repro).unlink()
    assert not report.exists()
    assert json.loads(stats.read_text())["variants"]
    aot.load(tmp_path / "model.aotm")


@pytest.mark.usefixtures("as_a_user")
def test_a_report_that_cannot_be_written_is_the_users_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    status, said = command(tmp_path, capsys)("--report", str(folder))
    assert status == 1
    assert said.startswith(f"aotc: error: cannot write {folder}")


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("error", [CompileError("no folder"), KeyboardInterrupt()])
def test_what_is_no_bug_of_ours_passes(error: BaseException) -> None:
    with pytest.raises(type(error)), advice("a file", writes=True):
        raise error
    with pytest.warns(AdviceWarning), advice("a note"):
        raise CompileError("found while making a note")


@pytest.mark.usefixtures("as_a_user")
def test_a_failure_without_a_message() -> None:
    missing = pytest.warns(AdviceWarning, match="^a note is left out: RuntimeFailure: no message")
    with missing, advice("a note"):
        raise RuntimeFailure("")
