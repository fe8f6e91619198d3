"""The samples and the README's examples run, as a user would run them, and give right answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from models import model_path

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_01 = ROOT / "samples" / "01-text-orientation"
README = (ROOT / "README.md").read_text(encoding="utf-8")

sys.path.insert(0, str(SAMPLE_01))
import drawing  # noqa: E402


@pytest.fixture
def user_environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which `aotc` and `python` are this checkout's and this Python's."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, command in (("aotc", "-m aot.cli"), ("python", "")):
        script = tools / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        script.chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}


def block(name: str) -> str:
    """The README's code block of that name."""
    match = re.search(rf"<!-- command: {name} -->\n```\w+\n(.*?)\n```", README, re.DOTALL)
    assert match is not None, name
    return match[1]


@pytest.mark.models
def test_sample_01_tells_which_is_upside_down(
    tmp_path: Path, user_environment: dict[str, str]
) -> None:
    model_path("ppocr_cls")  # fetched before, so that a failure to fetch says so
    result = subprocess.run(
        [sys.executable, SAMPLE_01 / "run.py"],
        capture_output=True, text=True, cwd=tmp_path, env=user_environment, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert re.search(r"^as drawn: upright \((9\d|100)%, [\d.]+ ms\)$", result.stdout, re.M)
    assert re.search(r"^turned: upside down \((9\d|100)%, [\d.]+ ms\)$", result.stdout, re.M)
    assert "both at once, batch 2: upright, upside down\n" in result.stdout
    assert re.search(
        r"^text-orientation\.aotm: [\d,]+ bytes for [\w-]+: \d+ kernels", result.stdout, re.M
    )
    assert re.search(r"compiled in [\d.]+ s, loaded in [\d.]+ ms \(code mapped\)", result.stdout)
    assert "/home" not in result.stdout


@pytest.mark.models
@pytest.mark.parametrize("text", ["Read me", "HELLO", "AOTC 2025", "FRAGILE", "QUICK FOX", "EGGS"])
def test_the_drawing_reads_in_both_directions(text: str) -> None:
    """The picture is right by another engine's word, not only by ours."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model_path("ppocr_cls")))
    upright = drawing.draw_line(text)
    both = np.stack([upright, upright[::-1, ::-1]])
    x = np.repeat(((both / 255 - 0.5) / 0.5)[:, None], 3, axis=1).astype(np.float32)
    (scores,) = session.run(None, {"x": x})
    assert list(scores.argmax(axis=1)) == [0, 1]
    assert scores.max(axis=1).min() > 0.7


def test_the_drawing_fills_the_model_s_input() -> None:
    picture = drawing.draw_line("W" * drawing.MAX_LETTERS)
    assert picture.shape == (48, 192)
    assert picture.dtype == np.float32
    assert picture.min() < 100
    assert (picture[0] == 255).all() and (picture[:, 0] == 255).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0 characters, expected 1 to 10"),
        ("W" * 11, "11 characters, expected 1 to 10"),
        ("a~b#", "the font has no '#', '~'"),
    ],
)
def test_text_that_cannot_be_drawn_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drawing.draw_line(text)


@pytest.mark.models
def test_the_readme_s_commands_run(tmp_path: Path, user_environment: dict[str, str]) -> None:
    script = block("example").replace("samples/", f"{ROOT}/samples/")
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True, text=True, cwd=tmp_path, env=user_environment, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "input  x: f32[N, 3, 48, 192]" in result.stdout
    assert "4x2" in result.stdout
    assert "agrees with reference within 0.0001" in result.stdout


def test_the_readme_s_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python"), "README.md", "exec"), {})


def test_the_readme_s_two_commands_are_one_line_each() -> None:
    for name in ("sample", "tests"):
        assert block(name).count("\n") == 0
    assert block("sample").endswith(str(SAMPLE_01.relative_to(ROOT) / "run.py"))


def test_the_readme_s_tables_are_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate_tables.py", "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
