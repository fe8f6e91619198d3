"""Applications as they were written for each interface of the runtime, with the headers of then:
they build, and run with the runtime of now.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.control_modules import counting_module, endless_module
from tests.support.paths import SUPPORT
from tests.support.runtime_build import RUNTIME, SANITIZE, build, library_sources
from tests.support.runtime_modules import scale_module

STORED = sorted((SUPPORT / "applications").glob("interface_*"))
TSAN = ["-fsanitize=thread", "-g", "-O1"]
HIDDEN = ["-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-soname,libaot_runtime_stored.so"]


def build_runtime(flags: list[str]) -> Path | None:
    """The runtime of now as applications get it."""
    return build(
        "libaot_runtime_stored.so", library_sources(), [*flags, *HIDDEN], libraries=["-pthread"]
    )


def build_application(folder: Path, library: Path, flags: list[str]) -> Path | None:
    """The stored application, which sees no header but its own."""
    command = ["-iquote", str(folder / "include"), *flags]
    source = folder / "application.c"
    return build(
        f"application-{folder.name}", [source], command, libraries=[str(library), "-pthread"]
    )


@pytest.mark.parametrize("flags", [["-O2"], SANITIZE, TSAN], ids=["plain", "asan", "tsan"])
@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_it_runs_with_the_runtime_of_now(folder: Path, flags: list[str], tmp_path: Path) -> None:
    library = build_runtime(flags)
    program = None if library is None else build_application(folder, library, flags)
    if library is None or program is None:
        pytest.skip("gcc is not installed")
    modules = {
        "scale": scale_module(),
        "counts": counting_module(),
        "endless": endless_module("fills"),
    }
    for name, file in modules.items():
        (tmp_path / name).write_bytes(file.to_bytes())
    result = subprocess.run(
        [program, *(tmp_path / name for name in modules)],
        env={"LD_LIBRARY_PATH": str(library.parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "ok\n", "")


def test_the_interface_of_now_is_stored() -> None:
    header = (RUNTIME / "include" / "aot" / "aot.h").read_text()
    number = re.search(r"#define AOT_INTERFACE (\d+)u", header)
    assert number is not None
    assert f"interface_{number[1]}" in [folder.name for folder in STORED]


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_the_application_is_compiled_with_the_stored_headers(folder: Path) -> None:
    """An application that took other headers would test nothing."""
    source = folder / "application.c"
    command = ["gcc", "-std=c11", "-M", "-iquote", str(folder / "include"), str(source)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("gcc is not installed")
    found = {word for word in result.stdout.split() if "/aot/" in word and word.endswith(".h")}
    assert found
    assert all(str(folder) in path for path in found)
