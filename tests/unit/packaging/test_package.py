"""Packages of sources and programs: built and run from a fresh directory, as their READMEs say."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from aot.cli.main import cli
from aot.errors import CompileError
from aot.link.image import Arch
from aot.packaging import PackageOptions, package
from aot.packaging.executable import ExecutableOptions
from aot.packaging.names import identifier, identifiers
from aot.packaging.runtime_sources import runtime_sources
from aot.packaging.toolchain import find_toolchain
from aot.runtime import loader
from tests.support.cross import CROSS_TARGETS, run_emulated
from tests.support.package_models import (
    HOST_TARGET,
    error_of,
    expected,
    failing,
    run,
    save_module,
    steps,
)
from tests.support.runtime_api import library_path

TOLERANCE = 1e-6


@pytest.fixture(autouse=True)
def use_built_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of this checkout, not an installed one."""
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(library_path()))


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module for this machine and for the emulated ones."""
    targets = list(dict.fromkeys([HOST_TARGET, "aarch64-generic", "armv7-neon", "vulkan-1.1"]))
    return save_module(tmp_path_factory.mktemp("modules") / "small.aotm", targets)


def require(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


# ---- sources ----


def make_source(module: Path, folder: Path) -> Path:
    package(module, "source", folder / "pkg", PackageOptions(targets=()))
    return folder / "pkg"


def cmake_build(source: Path, build: Path, *options: str) -> Path:
    require("cmake", "ninja")
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", *options)
    run("cmake", "--build", build)
    return build / "example"


def check_example(module: Path, folder: Path, *command: str | Path) -> None:
    """Whether the built example gives on the first step what aot.load does."""
    x = steps()[0]
    (folder / "x.bin").write_bytes(x.tobytes())
    (folder / "out").mkdir(exist_ok=True)
    shape = "x".join(map(str, x.shape))
    printed = run(*command, "--save", folder / "out", f"{folder / 'x.bin'}:{shape}")
    assert printed.startswith("the sum: f32[2, 4] ")
    found = np.frombuffer((folder / "out" / "0.bin").read_bytes(), np.float32).reshape(2, 4)
    np.testing.assert_allclose(found, expected(module)[0], atol=TOLERANCE)


def test_sources_build_and_run_here(module: Path, tmp_path: Path) -> None:
    source = make_source(module, tmp_path)
    warnings = "-DCMAKE_C_FLAGS=-Wall -Wextra -Wconversion -Wshadow -Werror"
    example = cmake_build(source, tmp_path / "build", warnings)
    check_example(module, tmp_path, example)
    check_example(module, tmp_path, example, "--threads", "2")
    # an open shape that is not given is said so, and not guessed
    result = failing(example)
    assert "x: its shape is open" in result


def test_sources_without_threads_vulkan_and_embedding(module: Path, tmp_path: Path) -> None:
    source = make_source(module, tmp_path)
    options = ("-DAOT_THREADS=OFF", "-DAOT_VULKAN=OFF", "-DAOT_EMBED=OFF")
    example = cmake_build(source, tmp_path / "build", *options)
    check_example(module, tmp_path, example, "--module", source / "small.aotm")


@pytest.mark.qemu
@pytest.mark.parametrize("arch", ["aarch64", "arm"])
def test_sources_build_for_another_cpu(module: Path, tmp_path: Path, arch: str) -> None:
    cross = CROSS_TARGETS[arch]
    require(cross.compiler, cross.emulator)
    source = make_source(module, tmp_path)
    toolchain = tmp_path / "toolchain.cmake"
    toolchain.write_text(
        "set(CMAKE_SYSTEM_NAME Linux)\n"
        f"set(CMAKE_SYSTEM_PROCESSOR {arch})\n"
        f"set(CMAKE_C_COMPILER {cross.compiler})\n"
        f'set(CMAKE_C_FLAGS_INIT "{" ".join(cross.flags)}")\n'
    )
    options = (f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", "-DCMAKE_EXE_LINKER_FLAGS=-static")
    example = cmake_build(source, tmp_path / "build", *options, "-DAOT_VULKAN=OFF")
    check_example(module, tmp_path, cross.emulator, "-cpu", cross.cpu, example)


def test_sources_as_a_part_of_a_project_without_an_os(module: Path, tmp_path: Path) -> None:
    """As Zephyr has it: a target with the compiler's flags, no system, no own example."""
    require("cmake", "ninja", "arm-none-eabi-gcc")
    make_source(module, tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\n"
        "project(app LANGUAGES C)\n"
        "add_library(zephyr_interface INTERFACE)\n"
        "target_compile_options(zephyr_interface INTERFACE\n"
        "  -mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16 -Wall -Wextra -Werror)\n"
        "add_subdirectory(pkg)\n"
    )
    options = ("-DCMAKE_SYSTEM_NAME=Generic", "-DCMAKE_C_COMPILER=arm-none-eabi-gcc")
    checks = "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY"
    build = tmp_path / "build"
    run("cmake", "-S", tmp_path, "-B", build, "-G", "Ninja", *options, checks)
    run("cmake", "--build", build)
    undefined = run("arm-none-eabi-nm", "-u", build / "pkg" / "libaot_model.a")
    system = {"mmap", "mprotect", "open", "pthread_create", "getauxval", "clock_gettime", "sysconf"}
    assert not system & set(undefined.split())
    assert (build / "pkg" / "libaot_model.a").is_file() and not (build / "pkg" / "example").exists()


def test_sources_are_all_there() -> None:
    """Every file of the runtime that its own build takes is in some list of ours."""
    sources = runtime_sources()
    cmake = (sources.root / "CMakeLists.txt").read_text()
    found = [*sources.common, *sources.posix, *sources.threads, *sources.vulkan]
    found += [name for name in (*sources.text, *sources.tool) if name.endswith(".c")]
    folders = ("src/", "drivers/", "state/", "text/", "cores/", "extras/", "tools/")
    words = cmake.replace(")", " ").split()
    wanted = {w for w in words if w.startswith(folders) and w.endswith(".c")}
    assert wanted == set(found)


# ---- programs ----


def test_no_variant_for_vulkan_is_lost_without_a_word(
    module: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ("package", module, "--format", "executable", "-o", tmp_path / "out", "--cc")
    kept = ("--target", HOST_TARGET, "--target", "vulkan-1.1")
    assert error_of(*base, "gcc -static", *kept, capsys=capsys) == (
        "a statically linked program can't open Vulkan's library, and the module has variants for "
        "it (vulkan-1.1): name a C compiler that links dynamically (--cc), or leave them out "
        "(--drop vulkan)"
    )
    assert error_of(*base, "gcc", *kept, "--drop", "cpu", capsys=capsys).startswith(
        "an executable needs a variant for a CPU"
    )
    options = PackageOptions(kept[1::2], "r", ExecutableOptions("gcc -static"), drop=["vulkan"])
    assert list(package(module, "executable", tmp_path / "pkg", options).files) == ["r"]


def make_program(module: Path, folder: Path, compiler: str | None, target: str) -> Path:
    options = PackageOptions((target,), "runner", ExecutableOptions(compiler))
    made = package(module, "executable", folder / "pkg", options)
    assert list(made.files) == ["runner"]
    return made.folder / "runner"


def check_program(module: Path, folder: Path, program: Path, arch: str | None) -> None:
    x = steps()[0]
    np.save(folder / "x.npy", x)
    arguments = [program, "--input", f"x={folder / 'x.npy'}", "--runs", "0", "--json"]
    if arch is None:
        printed = run(*arguments, "--output", folder)
    else:
        result = run_emulated(arch, [*arguments, "--output", folder])
        assert result.returncode == 0, result.stderr
        printed = result.stdout
    facts = json.loads(printed.splitlines()[-1])
    assert facts["code_mapping"] == "mapped"  # it runs where the linker has put it
    np.testing.assert_allclose(np.load(folder / "0.npy"), expected(module)[0], atol=TOLERANCE)


def test_a_program_runs_here(module: Path, tmp_path: Path) -> None:
    program = make_program(module, tmp_path, "gcc", HOST_TARGET)
    again = make_program(module, tmp_path / "again", "gcc", HOST_TARGET)
    assert program.read_bytes() == again.read_bytes()
    moved = tmp_path / "elsewhere"
    program.rename(moved)
    check_program(module, tmp_path, moved, None)
    assert "PROGRAM [options]" in run(moved, "--help")
    assert "median" in run(moved, "--random", "--shape", "x=3x8", "--bench", "3")
    assert "no such option" in failing(moved, "other.aotm")


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("arch", "target"), [("aarch64", "aarch64-generic"), ("arm", "armv7-neon")]
)
def test_a_program_for_another_cpu(module: Path, tmp_path: Path, arch: str, target: str) -> None:
    cross = CROSS_TARGETS[arch]
    require(cross.compiler, cross.emulator)
    command = " ".join([cross.compiler, "-static", *cross.flags])
    check_program(module, tmp_path, make_program(module, tmp_path, command, target), arch)


if importlib.util.find_spec("ziglang") is not None:

    def test_without_a_name_the_compiler_is_zig() -> None:
        found = find_toolchain(Arch.AARCH64, False, None)
        assert found.command == (
            *(sys.executable, "-m", "ziglang", "cc"),
            *("-target", "aarch64-linux-musl"),
        )
        assert found.is_static and not found.libraries

    @pytest.mark.sweep  # it compiles the whole C library first, for every virtual environment anew
    @pytest.mark.qemu
    def test_a_program_by_zig(module: Path, tmp_path: Path) -> None:
        program = make_program(module, tmp_path, None, "aarch64-generic")
        check_program(module, tmp_path, program, "aarch64")

    @pytest.mark.slow
    def test_sources_link_for_apple(tmp_path: Path) -> None:
        """What can be seen of it from here: Mach-O, the module page aligned in the text segment."""
        module = save_module(tmp_path / "small.aotm", ["aarch64-apple"])
        source = make_source(module, tmp_path)
        zig = (sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-macos", "-std=c11")
        definitions = [
            *("-D_DARWIN_C_SOURCE=1", "-DAOT_EMBED=1", '-DAOT_VERSION="0"'),
            *('-DAOT_MODULE_FILE="small.aotm"', "-DAOT_MODULE_ALIGNMENT=16384"),
        ]
        files = [*source.glob("src/*.c"), *source.glob("drivers/cpu/*.c"), "packaging/embedded.c"]
        folders = ("-Iinclude", "-Isrc", "-Ipackaging")
        run(*zig, *definitions, *folders, "main.c", *files, "-o", "program", cwd=source)
        assert (source / "program").read_bytes()[:4] == b"\xcf\xfa\xed\xfe"
        library = package(module, "static-library", source / "lib")
        (library.folder / "main.c").write_text(
            '#include "small.h"\nint main(void) { return small_reset(0) != 2; }\n'
        )
        run(*zig, "main.c", "aot_static.c", "libsmall.a", "-o", "program", cwd=library.folder)


# ---- what is refused ----


def test_what_is_missing_is_one_line(
    module: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    base = ("package", module, "--format", "executable", "-o", tmp_path / "out")
    arm = (*base, "--target", "aarch64-generic")
    assert error_of(*arm, capsys=capsys) == (
        "no C compiler for aarch64: pip install 'aotc[toolchain]', set ANDROID_NDK_HOME for "
        "Android, or name one with --cc"
    )
    assert error_of(*base, capsys=capsys).startswith(
        f"an executable is for one CPU architecture, the module has {HOST_TARGET}, "
    )
    assert error_of(*arm, "--cc", "nogcc -O3", capsys=capsys) == (
        "the C compiler 'nogcc -O3' of --cc is not there"
    )
    assert error_of(*arm, "--cc", "gcc -Dint=", capsys=capsys).startswith(
        "the C compiler gcc failed: "
    )
    assert error_of(*base, "--target", "nope", capsys=capsys).startswith(
        f"{module} has no variant 'nope', it has {HOST_TARGET}, "
    )
    assert not (tmp_path / "out").exists()
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    source = ("package", module, "--format", "source", "-o", blocked)
    assert error_of(*source, capsys=capsys) == f"cannot write {blocked}: file exists"


def test_boards_have_no_programs() -> None:
    with pytest.raises(CompileError, match="take --format static-library, or name a C compiler"):
        find_toolchain(Arch.THUMB, is_android=False, named=None)


def test_the_ndk_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stand-in for the NDK's clang gets its target, and everything else that gcc gets."""
    require("aarch64-linux-gnu-gcc", "qemu-aarch64")
    found = tmp_path / "ndk/toolchains/llvm/prebuilt/linux-x86_64/bin/clang"
    found.parent.mkdir(parents=True)
    found.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --target=aarch64-linux-android24 ] || exit 9\n'
        'shift; exec aarch64-linux-gnu-gcc -static "$@"\n'
    )
    found.chmod(0o755)
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path / "ndk"))
    module = save_module(tmp_path / "m.aotm", ["aarch64-android"])
    program = make_program(module, tmp_path, None, "aarch64-android")
    result = run_emulated("aarch64", [program, "--random", "--shape", "x=3x8"])
    assert result.returncode == 0, result.stderr
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    with pytest.raises(CompileError, match="which has no toolchains/llvm"):
        make_program(module, tmp_path, None, "aarch64-android")


def test_wrong_usage(module: Path) -> None:
    base = ["package", str(module), "-o", "x", "--format"]
    for options, text in (
        (["source", "--cc", "gcc"], "--cc goes with --format executable and wasm only"),
        (["source", "--max-flash", "1"], "go with --format static-library only"),
        (["apk"], "'apk' is not one of 'source', 'executable', 'static-library', 'wasm'"),
    ):
        result = CliRunner().invoke(cli, [*base, *options])
        assert result.exit_code == 2
        assert text in result.output.replace("\n", " ")


def test_a_package_says_what_it_is(module: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        cli, ["package", str(module), "--format", "source", "-o", str(tmp_path), "--json"]
    )
    facts = json.loads(result.output)
    assert facts["folder"] == str(tmp_path)
    assert facts["files"]["small.aotm"] == facts["module_bytes"]
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()} == set(
        facts["files"]
    )
    readme = (tmp_path / "README.md").read_text()
    assert "@" not in readme and "x: f32[N<=6, 8]" in readme


def test_names() -> None:
    assert identifier("onnx::Flatten_0") == "onnx_flatten_0"
    assert identifier("13") == "m_13"
    assert identifier("int") == "m_int"
    assert identifier("…") == "model"
    assert identifiers(["a b", "a_b", "A.B", "c"]) == ["a_b", "a_b_2", "a_b_3", "c"]
    assert identifiers(["x", "x_dims"]) == ["x", "x_dims_2"]
    assert identifiers(["x_dims", "x"]) == ["x_dims", "x_2"]
