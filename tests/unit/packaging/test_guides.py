"""The C of the guides compiles as it stands there, against the headers that a package has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import aot
from aot.packaging import package
from tests.support.example_files import MODELS
from tests.support.examples import Example, examples_of
from tests.support.paths import ROOT

PAGES = sorted((ROOT / "docs" / "guide").glob("*.md"))
HERE = Path(__file__).relative_to(ROOT).as_posix()
EXAMPLES = [e for page in PAGES for e in examples_of(page) if e.what == HERE]
FLAGS = ("-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-xc")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static library of `model.onnx`, the model of the guides."""
    folder = tmp_path_factory.mktemp("library")
    aot.compile(MODELS["model.onnx"](), targets=["thumbv7em"], jobs=1).save(folder / "model.aotm")
    package(folder / "model.aotm", "static-library", folder / "out")
    return folder / "out"


def checked(code: str, library: Path) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    folders = ("include", "packaging", "packaging/aot")
    includes = [f"-I{ROOT / 'runtime' / folder}" for folder in folders]
    command = [compiler, *FLAGS, *includes, f"-I{library}", "-"]
    return subprocess.run(command, input=code, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.page.stem)
def test_the_c_of_a_guide_compiles(example: Example, library: Path) -> None:
    done = checked(example.code, library)
    assert example.language == "c" and done.returncode == 0, done.stderr


def test_a_name_that_is_not_there_is_found(library: Path) -> None:
    wrong = '#include "aot/aot.h"\nint f(aot_program_t *p) { return aot_program_go(p); }\n'
    assert "aot_program_go" in checked(wrong, library).stderr
