"""The runtime as other systems' compilers and headers see it, with every warning an error.

Apple's by Zig's clang, which brings the headers; Android's NDK cannot be had from pip, so that what
differs there is compiled as it would be and run here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

import aot
from aot.builder import Builder
from tests.support.paths import SUPPORT
from tests.support.runtime_build import (
    RUNTIME,
    WARNINGS,
    build,
    build_tool,
    library_sources,
    tool_sources,
)
from tests.support.runtime_modules import scale_module

VULKAN = sorted(RUNTIME.glob("drivers/vulkan/*.c"))
LIBRARY = [*library_sources(), *VULKAN]


def sources_of_a_system() -> list[Path]:
    """Library and tool, less what stands in for a system."""
    found = [*LIBRARY, *sorted(RUNTIME.glob("tools/*.c"))]
    return [path for path in found if "no_os" not in path.name]


@pytest.mark.parametrize(
    ("wrapped", "words", "expected"),
    [
        (True, ["read"], "ok"),
        # Who starts a program with rights of its own does not choose which drivers it loads.
        (True, ["environment", "AOT_VULKAN_LIBRARY"], "(unset)"),
        (False, ["environment", "AOT_VULKAN_LIBRARY"], "given"),
    ],
    ids=["pieces of 2 GiB at most", "a privileged process", "any other"],
)
def test_calls_that_differ_elsewhere(wrapped: bool, words: list[str], expected: str) -> None:
    sources = [SUPPORT / "wrapped_calls.c", RUNTIME / "drivers" / "vulkan" / "system_posix.c"]
    sources += [RUNTIME / "src" / f"{name}.c" for name in ("os_posix", "alloc", "status")]
    calls = ("pread", "pread64", "getauxval")
    flags = [f"-Wl,--wrap={name}" for name in calls] if wrapped else []
    if not wrapped:
        flags = ["-Wl,--defsym=__real_getauxval=getauxval"]
    binary = build("wrapped-calls", sources, ["-O1", *flags], libraries=["-lpthread", "-ldl"])
    if binary is None:
        pytest.skip("gcc is not installed")
    environment = os.environ | {"AOT_VULKAN_LIBRARY": "given"}
    command = [binary, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{expected}\n")


def test_cold_starts_where_posix_spawn_is_not(tmp_path: Path) -> None:
    """Android before API level 28."""
    flags = ["-O1", "-D__ANDROID__", "-D__ANDROID_API__=24"]
    tool = build("aot-run", tool_sources(), flags)
    if tool is None:
        pytest.skip("gcc is not installed")
    path = tmp_path / "module.aotm"
    path.write_bytes(scale_module().to_bytes())
    command = [tool, path, "--random", "--shape", "x=2x3", "--cold", "3", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["cold"]["warm"]["rounds"] == 3
    path.write_bytes(path.read_bytes()[:100])
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and "a process that was started failed" in result.stderr


def test_a_system_that_saves_no_vectors_of_avx(tmp_path: Path) -> None:
    """Code of AVX2 is not taken there, and the next level is."""
    tool = build_tool()
    if tool is None or platform.machine() != "x86_64" or shutil.which("qemu-x86_64") is None:
        pytest.skip("no gcc, or no qemu-x86_64 that emulates this CPU")
    b = Builder()
    b.output("y", b.op("relu", b.input("x", "f32[4, 8]")))
    path = tmp_path / "module.aotm"
    aot.compile(b.module(), targets=["x86-64-v3", "x86-64-v2"]).save(path)
    command = ["qemu-x86_64", "-cpu", "Nehalem", tool, path, "--random", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["target"] == "x86-64-v2"
    assert report["skipped"].startswith("x86-64-v3: needs the CPU features avx, avx2, ")


_zig = importlib.util.find_spec("ziglang")

if _zig is not None and _zig.origin is not None:
    ZIG = Path(_zig.origin).with_name("zig")

    @pytest.mark.slow
    def test_macs() -> None:
        """Compiled and linked: nothing is asked for that the system's library lacks."""
        compiler = (str(ZIG), "cc", "-target", "aarch64-macos")
        flags = ["-O0", "-DAOT_VULKAN=1"]
        tool = build("aot-run-macos", sources_of_a_system(), flags, compiler)
        assert tool is not None and tool.read_bytes()[:4] == b"\xcf\xfa\xed\xfe"

    @pytest.mark.slow
    def test_iphones(tmp_path: Path) -> None:
        """The library; the headers are those of Macs, which Apple's systems share."""
        headers = ZIG.parent / "lib" / "libc" / "include" / "any-darwin-any"
        includes = [f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'src'}", "-isystem", str(headers)]
        files = [str(path) for path in LIBRARY if "no_os" not in path.name]
        command = [str(ZIG), "cc", "-target", "aarch64-ios", "-O0", "-DAOT_VULKAN=1", "-c"]
        command += [*WARNINGS, *includes]
        result = subprocess.run(
            [*command, *files], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert result.returncode == 0, result.stderr
