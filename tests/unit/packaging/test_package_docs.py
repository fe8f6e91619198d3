"""The commands of docs/use/packaging.md and of a source package's README, as they stand there.

Each runs in a fresh folder. What is not here has a stand-in that does the same: Debian's compiler
for the NDK's clang, QEMU for the device behind adb.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aot
from aot.builder import Builder
from tests.support.paths import ROOT

DOCS = (ROOT / "docs" / "use" / "packaging.md").read_text(encoding="utf-8")
ANDROID_CLANG = """#!/bin/sh
case $1 in --target=*) [ "$1" = --target=aarch64-linux-android24 ] || exit 9; shift;; esac
exec aarch64-linux-gnu-gcc -static "$@"
"""
# What the NDK's own sets, as far as a package sees it
ANDROID_TOOLCHAIN = """
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ANDROID_ABI ANDROID_PLATFORM)
if(NOT ANDROID_ABI STREQUAL arm64-v8a OR NOT ANDROID_PLATFORM STREQUAL android-24)
  message(FATAL_ERROR "${ANDROID_ABI} ${ANDROID_PLATFORM}")
endif()
set(CMAKE_SYSTEM_NAME Android)
set(CMAKE_SYSTEM_VERSION 1)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
get_filename_component(root ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
set(CMAKE_C_COMPILER ${root}/toolchains/llvm/prebuilt/linux-x86_64/bin/clang)
"""
ADB = """#!/bin/sh
set -e
case $1 in
push) mkdir -p "$DEVICE/$3" && cp -p "$2" "$DEVICE/$3";;
shell) shift; program=$DEVICE$1; shift; exec qemu-aarch64 -cpu max "$program" "$@";;
esac
"""
# Newlib wants a system's calls, which a board's own project has.
BOARD_GCC = """#!/bin/sh
exec "$AOT_TEST_GCC" "$@" --specs=nosys.specs -Wl,--no-warnings
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with model.aotm, in which `aotc`, adb and an NDK are found."""
    b = Builder()
    weights = np.random.default_rng(7).standard_normal((8, 4)).astype(np.float32)
    b.output("y", b.op("tanh", b.op("matmul", b.input("x", "f32[3, 8]"), b.constant(weights))))
    module = aot.compile(b.module(), targets=["host", "aarch64-android", "thumbv7em"])
    module.save(tmp_path / "model.aotm")
    ndk = tmp_path / "ndk"
    scripts = {
        tmp_path / "bin/aotc": f'#!/bin/sh\nexec "{sys.executable}" -m aot.cli "$@"\n',
        tmp_path / "bin/adb": ADB,
        tmp_path / "bin/pip": "#!/bin/sh\nexit 0\n",  # all of it is installed
        ndk / "toolchains/llvm/prebuilt/linux-x86_64/bin/clang": ANDROID_CLANG,
        ndk / "build/cmake/android.toolchain.cmake": ANDROID_TOOLCHAIN,
    }
    for path, text in scripts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("DEVICE", str(tmp_path / "device"))
    monkeypatch.setenv("ANDROID_NDK_HOME", str(ndk))
    monkeypatch.setenv("CMAKE_GENERATOR", "Ninja")
    return tmp_path


def require(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def section(text: str, title: str) -> str:
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return str(found)


def commands(text: str) -> str:
    """The first block of commands."""
    found = re.search(r"(?:^    .*\n)+", text, re.M)
    assert found is not None
    return re.sub(r"^    ", "", found[0], flags=re.M)


def run_script(script: str, folder: Path) -> str:
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True, text=True, cwd=folder, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout


def test_a_source_package_is_made_built_and_run(folder: Path) -> None:
    require("cmake", "ninja")
    script = commands(section(DOCS, "source"))
    assert script.count("\n") == 3
    assert run_script(script, folder).endswith("\ny: f32[3, 4] 0 0 0 0\n")


@pytest.mark.qemu
def test_the_package_s_own_readme(folder: Path) -> None:
    require("cmake", "ninja", "aarch64-linux-gnu-gcc", "qemu-aarch64")
    run_script("aotc package model.aotm --format source -o pkg", folder)
    readme = (folder / "pkg/README.md").read_text(encoding="utf-8")
    printed = run_script(commands(section(readme, "Plain CMake")), folder / "pkg")
    assert printed.endswith("\ny: f32[3, 4] 0 0 0 0\n")
    run_script(commands(section(readme, "Android")), folder / "pkg")
    example = run_script("qemu-aarch64 pkg/build-android/example", folder)
    assert example == "y: f32[3, 4] 0 0 0 0\n"


@pytest.mark.qemu
def test_a_program_is_made_copied_and_run(folder: Path) -> None:
    require("aarch64-linux-gnu-gcc", "qemu-aarch64")
    script = commands(section(DOCS, "executable"))
    assert "\nadb push " in script and "&& adb shell " in script
    printed = run_script(script, folder)
    assert "output y: f32[3, 4]" in printed and "20 runs: median" in printed


def test_a_static_library_is_made_and_linked(folder: Path) -> None:
    gcc = shutil.which("arm-none-eabi-gcc")
    if gcc is None:
        pytest.skip("arm-none-eabi-gcc is not installed")
    text = section(DOCS, "static-library")
    wrapper = folder / "bin/arm-none-eabi-gcc"
    wrapper.write_text(BOARD_GCC.replace("$AOT_TEST_GCC", gcc))
    wrapper.chmod(0o755)
    (code,) = re.findall(r"```c\n(.*?)```", text, re.S)
    include, *rest = code.strip().splitlines()
    body = "\n".join(rest).replace("...", "return 1;")
    arena, calls = body.split("\n\n", 1)
    (folder / "app.c").write_text(
        f"{include}\n{arena}\nstatic float samples[MODEL_INPUT_X_ELEMENTS];\n"
        "static float scores[MODEL_OUTPUT_Y_ELEMENTS];\n"
        f"int main(void) {{\n{calls}\nreturn 0;\n}}\n"
    )
    script = commands(text)
    assert script.rstrip().endswith(" ...")
    run_script(script.replace(" ...", " -o app.elf -Wall -Werror"), folder)
    assert (folder / "app.elf").read_bytes()[:4] == b"\x7fELF"
