"""The samples and the README's examples run, as a user would run them, and give right answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.link.image import ModuleImage
from aot.link.notes import decode_notes
from tests.support.models import model_path
from tests.support.paths import ROOT

SAMPLE_01 = ROOT / "samples" / "01-text-orientation"
SAMPLE_02 = ROOT / "samples" / "02-read-text"
README = (ROOT / "README.md").read_text(encoding="utf-8")

sys.path.insert(0, str(SAMPLE_01))
import drawing  # noqa: E402

sys.path.insert(0, str(SAMPLE_02))
import page  # noqa: E402
import reading  # noqa: E402


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
    assert re.search(
        r"compiled in [\d.]+ s; opened in [\d.]+ ms \(code mapped\), the first time, with the "
        r"runtime's library, in [\d.]+ ms\n",
        result.stdout,
    )
    assert "/home" not in result.stdout


@pytest.mark.models
def test_sample_02_reads_the_page(tmp_path: Path, user_environment: dict[str, str]) -> None:
    for name in ("det", "cls", "rec"):
        model_path(f"ppocr_{name}")
    result = subprocess.run(
        [sys.executable, SAMPLE_02 / "run.py"],
        capture_output=True, text=True, cwd=tmp_path, env=user_environment, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    read = re.findall(r"^  (.+)  \(at \d+, \d+(, on its head)?\)$", result.stdout, re.M)
    assert [line for line, _ in read] == ["COMPILED ONCE", "READ 3 TIMES", "FROM ONE FILE"]
    assert [bool(turned) for _, turned in read] == [False, True, False]
    assert "/home" not in result.stdout


@pytest.fixture(scope="module")
def ocr() -> dict[str, aot.CompiledModule]:
    """The models of sample 02, each alone."""
    shapes = {"det": (1, 3, "32*h", "32*w"), "cls": ("N", 3, 48, 192), "rec": (1, 3, 48, "W")}
    return {
        name: aot.compile(model_path(f"ppocr_{name}"), input_shapes={"x": shape})
        for name, shape in shapes.items()
    }


@pytest.mark.models
def test_one_file_reads_pages_of_any_size(
    ocr: dict[str, aot.CompiledModule], tmp_path: Path
) -> None:
    import onnx

    (found,) = onnx.load(model_path("ppocr_rec")).metadata_props
    characters = ["", *found.value.split("\n"), " "]
    aot.merge(ocr).save(tmp_path / "ocr.aotm")
    with ExitStack() as stack:
        programs = [stack.enter_context(aot.load(tmp_path / "ocr.aotm", entry=n)) for n in ocr]
        models = [lambda x, p=p: next(iter(p({"x": x}).values())) for p in programs]
        for lines in (["EXIT 24"], ["TICKET 42", "PLATFORM 9", "DEPARTS 10-15", "SEAT 7"]):
            read = reading.read_page(page.draw_page(lines), *models, characters)
            assert [line.text for line in read] == lines
            assert [line.is_turned for line in read] == [n == 1 for n in range(len(lines))]
        assert programs[0].prepare_count == 2


@pytest.mark.models
def test_sample_02_s_file_is_smaller_by_all_shared_code(
    ocr: dict[str, aot.CompiledModule], tmp_path: Path
) -> None:
    """By exactly what its ledger names: code, constants of code and weights that are equal."""
    merged = aot.merge(ocr)
    merged.save(tmp_path / "ocr.aotm")
    ledger = aot.inspect(tmp_path / "ocr.aotm", verify=True, dedup=True)["dedup"]
    (merge,) = ledger["merges"]
    assert [model["entry_points"] for model in ledger["models"]] == [["det"], ["cls"], ["rec"]]

    images = [module.image for module in ocr.values()]
    (counts,) = merge["variants"]
    saved = {k: counts[k]["met"] - counts[k]["kept"] for k in ("functions", "constants", "padding")}
    code = sum(len(image.variants[0].code) for image in images)
    assert code - len(merged.image.variants[0].code) == sum(saved.values())
    # every function and every constant of code that is equal to another is there once
    (variant,) = decode_notes(merged.image.notes).variants
    assert variant.parts is not None
    functions, constants = parts_of(merged.image)
    assert len(set(functions)) == len(functions) == counts["functions"]["count_kept"]
    assert len(set(constants)) == len(constants)
    assert set(constants) == {c for image in images for c in parts_of(image)[1]}
    assert saved["constants"] > 0

    rodata = merge["rodata"]
    data = sum(s.length for image in images for s in image.rodata_segments)
    assert rodata["bytes_met"] == data
    assert rodata["bytes_kept"] == sum(s.length for s in merged.image.rodata_segments)
    sizes = sum(len(module.to_bytes()) for module in ocr.values())
    assert len(merged.to_bytes()) < sizes


def parts_of(image: ModuleImage) -> tuple[list[tuple[Any, ...]], list[bytes]]:
    """An image's functions, each with what it refers to, and the constants of its code."""
    code = image.variants[0].code
    parts = decode_notes(image.notes).variants[0].parts
    assert parts is not None
    constants = [code[p.offset : p.offset + p.length] for p in parts.constants]
    functions = []
    for part in parts.functions:
        body = bytearray(code[part.offset : part.offset + part.length])
        for r in part.references:
            body[r.place : r.place + 4] = bytes(4)
        targets = [(r.place, r.offset, constants[r.target]) for r in part.references]
        functions.append((bytes(body), tuple(targets)))
    return functions, constants


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


def test_a_page_has_its_lines_where_they_belong() -> None:
    upright, turned = page.draw_page(["EXIT"], turned=-1), page.draw_page(["EXIT"], turned=0)
    assert upright.shape == turned.shape == (128, 256)
    assert upright.dtype == np.float32 and upright.min() < 100 and upright.max() == 255
    ink = (slice(32, 83), slice(32, 140))
    np.testing.assert_array_equal(upright[ink], turned[ink][::-1, ::-1])
    assert (upright != turned).any()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "there is no line to draw"),
        (["A", ""], "there is no text to draw"),
        (["W" * 25], "'W{25}' has 25 characters, expected 1 to 24"),
        (["a~b#"], "the font has no '#', '~'"),
    ],
)
def test_a_page_that_cannot_be_drawn_is_refused(lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        page.draw_page(lines)


def test_boxes_are_areas_that_touch_and_grow() -> None:
    chances = np.zeros((64, 96), np.float32)
    chances[10:20, 10:50] = 0.9
    chances[20:30, 50:60] = 0.9  # touches the first at a corner alone
    chances[40:44, 5:9] = 0.9  # too few pixels
    chances[50:60, 60:90] = 0.4  # not sure enough
    more = [round(10 * wide * 1.6 / (2 * (10 + wide))) for wide in (40, 10)]
    assert sorted(reading.boxes_of(chances)) == [
        (10 - more[0], 10 - more[0], 20 + more[0], 50 + more[0]),
        (20 - more[1], 50 - more[1], 30 + more[1], 60 + more[1]),
    ]


def test_letters_are_spelled_once_a_run() -> None:
    steps = np.eye(4, dtype=np.float32)[[0, 1, 1, 0, 1, 2, 2, 0, 0, 3]]
    assert reading.spelled(steps, ["", "a", "b", " "]) == "aab "
    assert reading.spelled(np.eye(4, dtype=np.float32)[[0, 0]], ["", "a", "b", "c"]) == ""


def test_resizing_keeps_what_is_even_and_goes_halfway() -> None:
    even = np.full((7, 9), 3, np.float32)
    np.testing.assert_allclose(reading.resized(even, 48, 20), 3)
    ramp = np.arange(4, dtype=np.float32)[None].repeat(2, axis=0)
    np.testing.assert_array_equal(reading.resized(ramp, 2, 4), ramp)
    np.testing.assert_allclose(
        reading.resized(ramp, 2, 8)[0], [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3]
    )


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
    assert re.search(r"agrees with onnxruntime \S+ within 0.0001", result.stdout)


def test_the_readme_s_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python"), "README.md", "exec"), {})


def test_the_readme_s_two_commands_are_one_line_each() -> None:
    for name in ("sample", "tests"):
        assert block(name).count("\n") == 0
    assert block("sample").endswith(str(SAMPLE_01.relative_to(ROOT) / "run.py"))
