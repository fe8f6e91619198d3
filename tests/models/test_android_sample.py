"""The Android sample as far as it goes without Android: its reader on this machine's CPU, on Arm's
under QEMU and on Vulkan, its library in Java, its Kotlin compiled, its files checked."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.support import vulkan_runtime
from tests.support.android_project import (
    KOTLIN,
    NATIVE,
    PACKAGE,
    SAMPLE,
    Found,
    Picture,
    Place,
    build_cross_reader,
    build_jar,
    build_reader,
    found_by,
    java_home,
    kotlin_library,
    prepare,
    reader_arguments,
    require,
    resource_names,
    run_reader,
    save_picture,
)
from tests.support.android_stubs import write_resources, write_stubs
from tests.support.models import model_path
from tests.support.package_models import HOST_TARGET
from tests.support.paths import SUPPORT
from tests.support.runtime_api import library_path
from tests.support.runtime_build import SANITIZE

sys.path.insert(0, str(SAMPLE.parent / "02-read-text"))
import page
import reading

import aot
from aot.runtime import loader

LINES = ["EXIT 24", "TICKET 42"]
CPU, VULKAN = 1, 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What prepare.py makes for the app: assets and the package of sources."""
    for name in ("det", "cls", "rec"):
        model_path(f"ppocr_{name}")
    folder = tmp_path_factory.mktemp("android")
    prepare.prepare(folder, prepare.TARGETS)
    return folder


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Picture:
    path = tmp_path_factory.mktemp("picture") / "page.bin"
    return save_picture(page.draw_page(LINES), path)


@pytest.fixture(scope="module")
def expected(made: Path, picture: Picture) -> tuple[reading.Line, ...]:
    """What sample 02 reads on the same picture with the same module."""
    characters = (made / "assets/characters.txt").read_text(encoding="utf-8").split("\n")
    path = made / "assets" / prepare.MODULE
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(loader.LIBRARY_VARIABLE, str(library_path()))
        programs = [aot.load(path, "cpu", entry=name) for name in ("det", "cls", "rec")]
    models = [lambda x, p=p: next(iter(p({"x": x}).values())) for p in programs]
    grey = (picture.argb & 0xFF).astype(np.float32)
    found = reading.read_page(grey, *models, characters)
    for program in programs:
        program.close()
    assert [line.text for line in found] == LINES
    assert [line.is_turned for line in found] == [False, True]
    return tuple(found)


@pytest.fixture(scope="module")
def asset(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The module in an app's file as Android's tools store it: as it is, at a multiple of 4."""
    path = tmp_path_factory.mktemp("apk") / "app.apk"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("AndroidManifest.xml", b"\3\0\10\0" * 9)
        info = zipfile.ZipInfo(f"assets/{prepare.MODULE}")
        start = archive.fp.tell() + 30 + len(info.filename)
        info.extra = struct.pack("<HH", 0xD935, (-start) % 4) + bytes((-start) % 4)
        archive.writestr(info, (made / "assets" / prepare.MODULE).read_bytes())
        archive.writestr("classes.dex", b"dex\n035\0")
    with zipfile.ZipFile(path) as archive:
        found = archive.getinfo(f"assets/{prepare.MODULE}")
        offset = found.header_offset + 30 + len(found.filename) + len(info.extra)
    assert offset % 4 == 0 and offset % 64 != 0
    return Place(path, offset, found.file_size)


def read(
    command: list[str | Path],
    place: Place,
    picture: Picture,
    made: Path,
    *,
    device: int = CPU,
    threads: int = 1,
    times: int = 1,
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    characters = made / "assets/characters.txt"
    arguments = reader_arguments(place, picture, characters, device, threads, times)
    return run_reader(command, arguments, environment)


def check_lines(found: Found, expected: tuple[reading.Line, ...]) -> None:
    """The same text at the same places."""
    wanted = tuple((e.top, e.left, e.bottom, e.right, e.text, e.is_turned) for e in expected)
    assert found.lines == wanted


# ---- the reader ----


@pytest.mark.models
def test_it_reads_from_an_asset_what_sample_02_does(
    made: Path, asset: Place, picture: Picture, expected: tuple[reading.Line, ...]
) -> None:
    reader = build_reader("-O2")
    found = found_by(read([reader], asset, picture, made, threads=2, times=2))
    check_lines(found, expected)
    assert (found.device, found.target, found.code) == ("cpu", HOST_TARGET, "copied")
    assert found.skipped == "aarch64-android-dotprod: made for aarch64; " + (
        "aarch64-android: made for aarch64"
    )
    # where the module is aligned nothing is copied
    whole = Place(made / "assets" / prepare.MODULE)
    assert found_by(read([reader], whole, picture, made)).code == "mapped"


@pytest.mark.models
def test_code_that_may_not_be_mapped_is_copied_and_none_at_all_is_said(
    made: Path, asset: Place, picture: Picture, expected: tuple[reading.Line, ...]
) -> None:
    """As a system's policy may have it: mprotect fails for files, for other memory, for both."""
    reader = build_reader("-O2")
    whole = Place(made / "assets" / prepare.MODULE)
    for denied, place, code in (
        ("map", whole, "copied"),
        ("anonymous", whole, "mapped"),
        ("map", asset, "copied"),
    ):
        found = found_by(read([reader], place, picture, made, environment={"DENY": denied}))
        assert found.code == code
        check_lines(found, expected)
    for denied, place in (("map anonymous", whole), ("anonymous", asset)):
        result = read([reader], place, picture, made, environment={"DENY": denied})
        assert result.returncode == 1
        assert result.stderr == (
            "open: unsupported: no variant runs on this machine: aarch64-android-dotprod: made for "
            f"aarch64; aarch64-android: made for aarch64; {HOST_TARGET}: this system does not let "
            "code be loaded: permission denied (errno 13); link the module into the program (aotc "
            "package --format executable or static-library)\n"
        )


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("cpu", "target"), [("cortex-a53", "aarch64-android"), ("max", "aarch64-android-dotprod")]
)
def test_it_reads_on_a_phone_s_cpu(
    made: Path, asset: Place, tmp_path: Path, cpu: str, target: str
) -> None:
    """A small page, which this machine reads the same way."""
    small = save_picture(page.draw_page(["EXIT"], turned=0), tmp_path / "small")
    here = found_by(read([build_reader("-O2")], asset, small, made))
    assert [line[4:] for line in here.lines] == [("EXIT", True)]
    reader = build_cross_reader("aarch64")
    found = found_by(read(["qemu-aarch64", "-cpu", cpu, reader], asset, small, made))
    assert found.lines == here.lines
    assert (found.device, found.target) == ("cpu", target)


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.vulkan
@pytest.mark.parametrize("driver", ["lavapipe"])
def test_it_reads_on_vulkan(
    made: Path,
    asset: Place,
    picture: Picture,
    expected: tuple[reading.Line, ...],
    driver: str,
    tmp_path: Path,
) -> None:
    reader = build_reader("-O2", has_vulkan=True)
    cache = tmp_path / "shaders"
    environment = {**vulkan_runtime.environment(driver, tmp_path), "CACHE": str(cache)}
    given = {"device": VULKAN, "environment": environment}
    found = found_by(read([reader], asset, picture, made, **given))
    check_lines(found, expected)
    assert (found.device, found.target) == ("vulkan", "vulkan-android-2022")
    assert list(cache.glob("pipelines/vulkan-*.cache"))


@pytest.mark.models
def test_it_leaks_nothing_and_stays_inside(
    made: Path, asset: Place, picture: Picture, expected: tuple[reading.Line, ...], tmp_path: Path
) -> None:
    reader = build_reader(*SANITIZE)
    check_lines(found_by(read([reader], asset, picture, made, threads=2, times=2)), expected)
    # what fails halfway leaves nothing behind
    short = tmp_path / "characters.txt"
    short.write_text("a\nb")
    arguments = reader_arguments(asset, picture, short, CPU, 1, 1)
    result = run_reader([reader], arguments, None)
    assert result.returncode == 1
    assert result.stderr == (
        "open: argument: 2 characters are given, the recogniser has 6625 classes\n"
    )
    result = read([reader], Place(asset.path), picture, made)
    assert result.stderr == 'open: not_a_module: not a module: it does not start with "AOTM"\n'
    result = read([reader], Place(asset.path, asset.offset, 999), picture, made)
    assert result.stderr.startswith("open: truncated: truncated: 999 of ")


@pytest.mark.models
def test_pictures_of_any_size(made: Path, picture: Picture, tmp_path: Path) -> None:
    reader = build_reader(*SANITIZE)
    place = Place(made / "assets" / prepare.MODULE)
    # larger than what the detector takes, and of odd sides: found all the same, at its own places
    large = np.full((167, 1407), 255, np.float32)
    drawn = page.draw_page(["EXIT 24"], turned=-1)
    large[20 : 20 + drawn.shape[0], 1011 : 1011 + drawn.shape[1]] = drawn
    (line,) = found_by(read([reader], place, save_picture(large, tmp_path / "large"), made)).lines
    assert line[4:] == ("EXIT 24", False)
    assert 20 <= line[0] < line[2] <= 20 + drawn.shape[0] and 1000 <= line[1] < line[3] <= 1407
    # nothing on it
    for shape in ((1, 1), (40, 33)):
        empty = save_picture(np.full(shape, 255, np.float32), tmp_path / "empty")
        assert found_by(read([reader], place, empty, made)).lines == ()
    none = Picture(np.zeros((0, 5), np.uint32), tmp_path / "none")
    none.path.write_bytes(b"")
    result = read([reader], place, none, made)
    assert result.stderr == "read: argument: a picture has 1 to 16384 pixels a side\n"


# ---- the library ----


def build_library(made: Path, folder: Path, *options: str) -> Path:
    require("cmake", "ninja")
    command = [
        *("cmake", "-S", str(NATIVE), "-B", str(folder), "-G", "Ninja"),
        f"-DTEXT_READER_PACKAGE={made / 'cpp/package'}",
        "-DCMAKE_C_FLAGS=-Werror -Wconversion -Wshadow",
        *options,
    ]
    environment = {**os.environ, "JAVA_HOME": str(java_home())}
    for line in (command, ["cmake", "--build", str(folder)]):
        result = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
        assert result.returncode == 0, result.stdout + result.stderr
    return folder / "libtext_reader.so"


def exported(library: Path) -> set[str]:
    result = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    return {line.split()[-1] for line in result.stdout.splitlines()}


def declared() -> set[str]:
    """What Kotlin's external functions are called in C."""
    found = set()
    for path in KOTLIN.glob("*.kt"):
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"object (\w+) \{(.*?)\n\}", text, re.DOTALL):
            names = re.findall(r"external fun (\w+)\(", match[2])
            found |= {f"Java_{PACKAGE.replace('.', '_')}_{match[1]}_{name}" for name in names}
    return found


@pytest.mark.models
def test_the_library_has_what_kotlin_declares_and_nothing_else(made: Path, tmp_path: Path) -> None:
    library = build_library(made, tmp_path / "here")
    assert len(declared()) == 6
    assert exported(library) == declared()


@pytest.mark.models
@pytest.mark.qemu
def test_the_library_for_android_has_large_pages(made: Path, tmp_path: Path) -> None:
    """By a toolchain file that says what the NDK's does, with Debian's compiler for clang."""
    require("aarch64-linux-gnu-gcc")
    headers = java_home() / "include"
    toolchain = tmp_path / "android.toolchain.cmake"
    toolchain.write_text(
        "set(CMAKE_SYSTEM_NAME Android)\n"
        "set(CMAKE_SYSTEM_VERSION 1)\n"  # as the NDK's: CMake's own support stays out of it
        "set(CMAKE_SYSTEM_PROCESSOR aarch64)\n"
        "set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)\n"
        f"include_directories(SYSTEM {headers} {headers / 'linux'})\n"
    )
    library = build_library(made, tmp_path / "arm64", f"-DCMAKE_TOOLCHAIN_FILE={toolchain}")
    data = library.read_bytes()
    assert struct.unpack_from("<H", data, 18) == (183,)  # EM_AARCH64
    offset, size, count = (
        struct.unpack_from("<Q14xHH", data, 32)[0],
        *struct.unpack_from("<HH", data, 54),
    )
    headers_ = [struct.unpack_from("<IIQQQQQQ", data, offset + i * size) for i in range(count)]
    alignments = {header[7] for header in headers_ if header[0] == 1}  # PT_LOAD
    assert alignments and min(alignments) >= 16384


# ---- Kotlin ----


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of the app's Kotlin, and a main() for Java; a warning is an error."""
    folder = tmp_path_factory.mktemp("app")
    stubs = [*write_stubs(folder), write_resources(folder / "R.java", PACKAGE, resource_names())]
    sources = [*sorted(KOTLIN.glob("*.kt")), SUPPORT / "android_reader.kt"]
    return build_jar("app.jar", [*sources, *stubs])


def test_the_app_s_kotlin_compiles(app: Path) -> None:
    """Against stand-ins for Android's classes, whose names and types are those of the SDK."""
    with zipfile.ZipFile(app) as jar:
        folder = PACKAGE.replace(".", "/")
        assert {f"{folder}/{n}.class" for n in ("MainActivity", "TextReader")} <= set(
            jar.namelist()
        )


@pytest.mark.models
def test_kotlin_reads_through_java_s_interface(
    made: Path, asset: Place, picture: Picture, app: Path, tmp_path: Path
) -> None:
    library = build_library(made, tmp_path / "build")
    height, width = picture.argb.shape
    files = (asset.path, asset.offset, asset.length, made / "assets/characters.txt", picture.path)
    command = [
        *("java", "-Xcheck:jni", "--add-opens", "java.base/java.io=ALL-UNNAMED"),
        f"-Djava.library.path={library.parent}",
        *("-cp", f"{app}{os.pathsep}{kotlin_library()}", "Android_readerKt"),
        *map(str, (*files, width, height, tmp_path)),
    ]
    environment = {**os.environ, "VK_DRIVER_FILES": "/dev/null", "VK_ICD_FILENAMES": "/dev/null"}
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "WARNING in native method" not in result.stdout + result.stderr
    parts = dict(part.split("\n", 1) for part in result.stdout.removeprefix("== ").split("\n== "))
    report = (
        r"EXIT 24\nTICKET 42  \(on its head\)\n\n"
        rf"runs on cpu: {HOST_TARGET}, code copied\n"
        r"not taken: [^\n]*aarch64-android-dotprod: made for [^\n]*\n"
    )
    times = r"loaded: [\d.]+ ms\nfirst result: [\d.]+ ms"
    steady = r"each one more, median: [\d.]+ ms"
    twice = f"{report}{times}\n{report}{times}\n{steady}"
    assert re.fullmatch(twice, parts["a reading"].strip())
    assert parts["one that is not wanted any more"].strip() == "steady: false"
    failed = r"another device failed: device lost \(device\)\n"
    assert re.fullmatch(f"{report}{failed}{times}", parts["one whose GPU fails"].strip())
    assert parts["errors"].splitlines() == [
        'no module: IOException: not a module: it does not start with "AOTM" (not_a_module)',
        "characters: IllegalArgumentException: 1 characters are given, the recogniser has 6625 "
        "classes (argument)",
        "size: IllegalArgumentException: there are not width * height pixels (argument)",
        "picked cpu",
        "closed: IllegalStateException: the reader is closed",
    ]
