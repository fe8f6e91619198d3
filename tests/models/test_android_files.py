"""The Android sample's files: what stands between the models, Gradle's, resources, names, style."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from tests.support.android_project import (
    ANDROID,
    KOTLIN,
    MAIN,
    NATIVE,
    PACKAGE,
    SAMPLE,
    compile_kotlin,
    java_home,
    prepare,
    require,
    resource_names,
)
from tests.support.runtime_build import build

sys.path.insert(0, str(SAMPLE.parent / "02-read-text"))
import reading

# ---- what stands between the models ----


class Box(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("top", "left", "bottom", "right")]


class Page(ctypes.Structure):
    _fields_ = [
        ("width", ctypes.c_int32),
        ("height", ctypes.c_int32),
        ("pixels", ctypes.POINTER(ctypes.c_float)),
    ]


@pytest.fixture(scope="module")
def steps() -> ctypes.CDLL:
    """page.c as a library."""
    flags = ["-O2", "-fPIC", "-shared"]
    path = build("libpage.so", [NATIVE / "page.c"], flags, libraries=["-lm"])
    if path is None:
        pytest.skip("gcc is not installed")
    library = ctypes.CDLL(str(path))
    library.page_find_boxes.restype = library.page_resize.restype = ctypes.c_bool
    library.page_from_argb.restype = ctypes.c_bool
    return library


def pointer(array: np.ndarray) -> ctypes.Array:  # type: ignore[type-arg]
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))  # type: ignore[return-value]


def test_boxes_are_those_of_sample_02(steps: ctypes.CDLL) -> None:
    rng = np.random.default_rng(5)
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    most = 0
    for height, width, size in ((32, 32, 4), (96, 160, 4), (320, 320, 4), (64, 32, 8)):
        blocks = rng.random((height // size, width // size)) ** 2
        map_ = np.kron(blocks, np.ones((size, size))).astype(np.float32)
        boxes, count = ctypes.POINTER(Box)(), ctypes.c_size_t()
        assert steps.page_find_boxes(
            pointer(map_), width, height, ctypes.byref(boxes), ctypes.byref(count)
        )
        found = [
            (boxes[i].top, boxes[i].left, boxes[i].bottom, boxes[i].right)
            for i in range(count.value)
        ]
        libc.free(boxes)
        assert sorted(found) == sorted(reading.boxes_of(map_))
        assert [box[:2] for box in found] == sorted(box[:2] for box in found)
        most = max(most, len(found))
    assert most > 100  # so that room was made more than once


def test_sizes_change_as_in_sample_02(steps: ctypes.CDLL) -> None:
    rng = np.random.default_rng(6)
    whole = (rng.random((41, 57)) * 255).astype(np.float32)
    own = Page(57, 41, pointer(whole))
    for top, left, bottom, right, height, width in (
        (0, 0, 41, 57, 48, 90), (3, 5, 20, 50, 48, 48), (7, 9, 8, 10, 48, 60),
        (0, 0, 41, 57, 9, 11),
    ):  # fmt: skip
        resized = Page()
        box = Box(top, left, bottom, right)
        assert steps.page_resize(ctypes.byref(own), box, width, height, ctypes.byref(resized))
        found = np.ctypeslib.as_array(resized.pixels, (height, width)).copy()
        steps.page_destroy(ctypes.byref(resized))
        wanted = reading.resized(whole[top:bottom, left:right], height, width)
        np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_what_models_get_is_that_of_sample_02(steps: ctypes.CDLL) -> None:
    grey = (np.random.default_rng(7).random((5, 9)) * 255).astype(np.float32)
    own = Page(9, 5, pointer(grey))
    found = np.empty((1, 3, 8, 7), np.float32)
    steps.page_to_input(ctypes.byref(own), 7, 8, pointer(found))
    white = np.full((8, 7), 255, np.float32)
    white[:5] = grey[:, :7]
    np.testing.assert_allclose(found, reading.to_input(white), atol=1e-6)
    turned = grey.copy()
    steps.page_turn(ctypes.byref(Page(9, 5, pointer(turned))))
    np.testing.assert_array_equal(turned, grey[::-1, ::-1])


def test_colours_are_grey_by_their_light(steps: ctypes.CDLL) -> None:
    colours = np.array([0xFFFFFFFF, 0xFF000000, 0xFFFF0000, 0xFF00FF00, 0xFF0000FF, 0, 0x80000000])
    argb = colours.astype(np.uint32)
    made = Page()
    assert steps.page_from_argb(pointer(argb), len(argb), 1, ctypes.byref(made))
    found = np.ctypeslib.as_array(made.pixels, (len(argb),)).copy()
    steps.page_destroy(ctypes.byref(made))
    np.testing.assert_allclose(found, [255, 0, 76.245, 149.685, 29.07, 255, 127], atol=1e-3)


# ---- the project's files ----


def test_gradle_s_files_are_kotlin(tmp_path: Path) -> None:
    """As far as their syntax goes: Gradle, which gives the names a meaning, is not here."""
    scripts = [*SAMPLE.glob("*.gradle.kts"), SAMPLE / "app/build.gradle.kts"]
    assert len(scripts) == 3
    given = []
    for script in scripts:
        given.append(tmp_path / f"{script.parent.name.replace('-', '_')}_{script.name}")
        given[-1].write_text(script.read_text(encoding="utf-8"), encoding="utf-8")
    broken = tmp_path / "broken.gradle.kts"
    text = (SAMPLE / "app/build.gradle.kts").read_text(encoding="utf-8")
    broken.write_text(text.replace("minSdk = 24", "minSdk = = 24"), encoding="utf-8")
    result = compile_kotlin([*given, broken], tmp_path / "scripts.jar")
    errors = re.findall(r"^.*/(\S+):\d+:\d+: error: (.*)$", result.stderr, re.M)
    wrong = {name for name, error in errors if error.startswith("syntax error")}
    assert wrong == {broken.name}, result.stderr
    # all were read: no name of Gradle's is known
    assert {name for name, _ in errors} == {path.name for path in (*given, broken)}


def test_resources_that_are_named_are_there() -> None:
    names = resource_names()
    used = set()
    for path in KOTLIN.glob("*.kt"):
        used |= set(re.findall(r"\bR\.(\w+)\.(\w+)", path.read_text(encoding="utf-8")))
    for path in [MAIN / "AndroidManifest.xml", *MAIN.glob("res/*/*.xml")]:
        for element in ElementTree.parse(path).getroot().iter():
            for value in element.attrib.values():
                used |= set(re.findall(r"^@(\w+)/(\w+)$", value))
    assert len(used) > 8
    assert {(kind, name) for kind, name in used if name not in names[kind]} == set()


def test_the_manifest_s_names_are_classes() -> None:
    root = ElementTree.parse(MAIN / "AndroidManifest.xml").getroot()
    build_file = (SAMPLE / "app/build.gradle.kts").read_text(encoding="utf-8")
    assert f'namespace = "{PACKAGE}"' in build_file
    activities = [e.attrib[f"{ANDROID}name"] for e in root.iter("activity")]
    assert activities
    for name in activities:
        text = (KOTLIN / f"{name.removeprefix('.')}.kt").read_text(encoding="utf-8")
        assert f"class {name.removeprefix('.')} : Activity()" in text
        assert f"package {PACKAGE}\n" in text
    # what has an intent filter must say whether others may start it
    assert all(e.get(f"{ANDROID}exported") for e in root.iter("activity"))


def test_names_agree_between_the_files() -> None:
    """The assets' names, the library's, and that what prepare.py writes is not checked in."""
    activity = (KOTLIN / "MainActivity.kt").read_text(encoding="utf-8")
    assert f'MODULE = "{prepare.MODULE}"' in activity and '"characters.txt"' in activity
    build_file = (SAMPLE / "app/build.gradle.kts").read_text(encoding="utf-8")
    assert f'noCompress += "{prepare.MODULE.rpartition(".")[2]}"' in build_file
    cmake = (NATIVE / "CMakeLists.txt").read_text(encoding="utf-8")
    assert "add_library(text_reader SHARED" in cmake
    assert 'System.loadLibrary("text_reader")' in (KOTLIN / "TextReader.kt").read_text()
    ignored = (SAMPLE / ".gitignore").read_text().split()
    assert {"app/src/main/assets/", "app/src/main/cpp/package/"} <= set(ignored)
    for path in ("src/main/assets", "src/main/cpp/package"):
        assert f'"{path}"' in build_file


def test_devices_have_the_runtime_s_numbers() -> None:
    header = (SAMPLE.parent.parent / "runtime/include/aot/aot.h").read_text()
    numbers = dict(re.findall(r"AOT_DEVICE_(ANY|CPU|VULKAN) = (\d)", header))
    kotlin = (KOTLIN / "TextReader.kt").read_text()
    (names,) = re.findall(r"enum class Device \{ (.*) \}", kotlin)
    order = [name.replace("FIRST_THAT_FITS", "ANY") for name in names.split(", ")]
    assert [numbers[name] for name in order] == ["0", "1", "2"]
    strings = ElementTree.parse(MAIN / "res/values/strings.xml").getroot()
    (array,) = strings.iter("string-array")
    assert len(array) == len(order)


def test_c_is_formatted_and_clean() -> None:
    require("clang-format", "clang")
    files = sorted([*NATIVE.glob("*.c"), *NATIVE.glob("*.h")])
    result = subprocess.run(
        ["clang-format", "--dry-run", "--Werror", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    includes = [f"-I{SAMPLE.parent.parent / 'runtime/include'}", f"-I{java_home() / 'include'}"]
    for source in NATIVE.glob("*.c"):
        command = [
            *("clang", "--analyze", "-Xclang", "-analyzer-werror", "-std=c11", *includes),
            *("-Xclang", "-analyzer-inline-max-stack-depth", "-Xclang", "12"),
            *(f"-isystem{java_home() / 'include' / 'linux'}", str(source), "-o", os.devnull),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
