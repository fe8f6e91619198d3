"""Every example of the documents runs as it stands there, or its page says why it does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aot.runtime.loader import LIBRARY_VARIABLE
from aot.runtime.runner import RUNNER_VARIABLE
from tests.support import vulkan_runtime
from tests.support.example_files import write_files
from tests.support.examples import KINDS, PAGES, Example, examples_of
from tests.support.models import model_path
from tests.support.paths import ROOT
from tests.support.runtime_api import library_path
from tests.support.runtime_build import build_tool

EXAMPLES = [example for page in PAGES for example in examples_of(page)]
# What a page's own words say that is printed
SAID = {
    "docs/start.md-onnx": r"agrees with onnxruntime",
    "docs/start.md-tflite": r"agrees with litert",
    "docs/start.md-gguf": r"Paris",
    "docs/guide/language-model.md-chat": r"Paris",
    "docs/use/generation.md-shell": r"Paris",
    "docs/use/dedup.md-fusion": r"dispatch",
    "docs/use/quantised.md-compile": r"agrees with onnxruntime",
    "docs/use/storage.md-fp16": r"agrees with onnxruntime",
}
# Models that come as packages, by the names of the pages
FETCHED = {
    "SmolLM2.gguf": "smollm2_135m",
    "SmolLM2-135M-Instruct.Q4_1.gguf": "smollm2_135m",
}


def of_kind(kind: str) -> list[Example]:
    return [e for e in EXAMPLES if e.kind == kind]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_each_example_is_run_or_says_why_not(page: Path) -> None:
    for example in examples_of(page):
        assert example.kind in KINDS, f"an example without a marker: {example.code[:200]}"
        if example.kind == "tested":
            assert (ROOT / example.what).is_file(), example.what
        elif example.kind == "not run":
            assert len(example.what) > 10, f"no reason: {example.what}"


def test_names_of_examples_are_their_own() -> None:
    names = [e.name for kind in ("run", "run slowly") for e in of_kind(kind)]
    assert len(names) == len(set(names)) and set(SAID) <= set(names)


def test_an_example_without_a_marker_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n```sh\naotc one\n```\n\ntext\n\n    aotc two\n    more\n\n<!-- run: x -->\n"
        "```python\nthree\n```\n\n<!-- not run: a reason -->\n\n    pip install four\n\n"
        "    no command\n\n```\nplain\n```\n"
    )
    found = [(e.kind, e.what, e.language, e.code) for e in examples_of(page)]
    assert found == [
        ("", "", "sh", "aotc one\n"),
        ("", "", "sh", "aotc two\nmore\n"),
        ("run", "x", "python", "three\n"),
        ("not run", "a reason", "sh", "pip install four\n"),
    ]


def environment(example: Example, folder: Path) -> dict[str, str]:
    """What a user has once all is installed: `aotc`, `python`, `aot-run`, and pip with nothing to
    do; a GPU in software where an example is about one."""
    variables, tool = {LIBRARY_VARIABLE: str(library_path())}, build_tool()
    if re.search(r"--shaders|--device vulkan", example.code):
        variables, tool = vulkan_runtime.environment("lavapipe", folder), vulkan_runtime.tool_path()
        variables.pop("VK_INSTANCE_LAYERS", None)
    if tool is None:
        pytest.skip("gcc is not installed")
    tools = folder / "tools"
    tools.mkdir()
    scripts = {
        "aotc": f'exec "{sys.executable}" -m aot.cli "$@"',
        "python": f'exec "{sys.executable}" "$@"',
        "aot-run": f'exec "{tool}" "$@"',
        "pip": "exit 0",
    }
    for name, line in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{line}\n")
        (tools / name).chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    variables |= {RUNNER_VARIABLE: str(tool), "PATH": path, "PYTHONPATH": str(ROOT)}
    return {**os.environ, **variables}


def run_example(example: Example, given: Path) -> str:
    folder = given / "here"
    folder.mkdir()
    (folder / "samples").symlink_to(ROOT / "samples")
    write_files(folder, example.code)
    for name, known in FETCHED.items():
        if name in example.code:
            (folder / name).symlink_to(model_path(known))
    for name in re.findall(r"model_zoo.py (\w+)", example.code):
        model_path(name)  # fetched before, so that a failure to fetch says so
    if example.language == "python":
        command = [sys.executable, "-c", example.code]
    else:
        assert example.language == "sh", example.name
        command = ["bash", "-euo", "pipefail", "-c", example.code]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(example, given),
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert re.search(SAID.get(example.name, ""), done.stdout), done.stdout[-1000:]
    return done.stdout


@pytest.mark.parametrize("example", of_kind("run"), ids=lambda e: e.name)
def test_examples_run(example: Example, tmp_path: Path) -> None:
    run_example(example, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("example", of_kind("run slowly"), ids=lambda e: e.name)
def test_slow_examples_run(example: Example, tmp_path: Path) -> None:
    run_example(example, tmp_path)
