"""Applications that find the installed runtime: by CMake's find_package, and by pkg-config."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aot.runtime.loader import LIBRARY_VARIABLE

APPLICATION = r"""
#include <aot/aot.h>
#include <stdio.h>

int main(void) {
  aot_error_t error = {0};
  aot_module_t *module = NULL;
  const aot_status_t status = aot_module_open_path("none.aotm", NULL, &error, &module);
  printf("%s %s\n", aot_runtime_version(), aot_status_name(status));
  aot_module_close(module);
  return 0;
}
"""
PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(app C)
find_package(aot_runtime 0.1 REQUIRED)
add_executable(app app.c)
target_link_libraries(app PRIVATE aot::runtime)
add_executable(app_shared app.c)
target_link_libraries(app_shared PRIVATE aot::runtime_shared)
"""
SAID = "0.1.0 io\n"


def ran(*command: object, folder: Path, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != LIBRARY_VARIABLE} | variables
    result = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def where(option: str) -> str:
    folder = ran(sys.executable, "-m", "aot.runtime", f"--{option}", folder=Path.cwd()).strip()
    assert Path(folder).is_dir()
    return folder


@pytest.fixture
def application(tmp_path: Path) -> Path:
    (tmp_path / "app.c").write_text(APPLICATION)
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    return tmp_path


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_cmake_finds_the_runtime(application: Path) -> None:
    found = f"-Daot_runtime_DIR={where('cmakedir')}"
    ran("cmake", "-S", ".", "-B", "build", found, folder=application)
    ran("cmake", "--build", "build", folder=application)
    for name in ("app", "app_shared"):
        assert ran(application / "build" / name, folder=application) == SAID


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not installed")
def test_pkg_config_finds_the_runtime(application: Path) -> None:
    path = {"PKG_CONFIG_PATH": where("pkgconfigdir")}
    flags = ran("pkg-config", "--cflags", "--libs", "aot_runtime", folder=application, **path)
    ran("gcc", "-std=c11", "app.c", *flags.split(), "-o", "app", folder=application)
    folder = where("libdir")
    assert ran("./app", folder=application, LD_LIBRARY_PATH=folder) == SAID
    assert ran("pkg-config", "--modversion", "aot_runtime", folder=application, **path) == "0.1.0\n"
    assert (Path(where("includedir")) / "aot" / "aot.h").is_file()


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """As in a checkout whose library was built by hand."""
    library = tmp_path / "libaot_runtime.so"
    library.write_bytes(b"")
    command = [sys.executable, "-m", "aot.runtime", "--cmakedir"]
    for given, said in (
        (library, f"{tmp_path}/cmake is missing: install the package (pip install aotc)\n"),
        (tmp_path / "none", f"the runtime library is not there: {tmp_path}/none; "),
    ):
        environment = {**os.environ, LIBRARY_VARIABLE: str(given)}
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 1
        assert result.stderr.startswith(said)
