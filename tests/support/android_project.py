"""Builds and runs what of the Android sample needs no Android: its reader, library and Kotlin.

    reader = build_reader()                     its C core and a main(), for this machine
    run_reader([reader], place, picture)        what it picked and the lines it read
    compile_kotlin(sources, jar)                Kotlin against our stand-ins for Android's classes

Owns no test. Must not write into the checkout.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cross import CROSS_TARGETS
from tests.support.paths import ROOT, SUPPORT
from tests.support.runtime_build import RUNTIME, build, build_folder, library_sources

SAMPLE = ROOT / "samples" / "04-android"
MAIN = SAMPLE / "app" / "src" / "main"
NATIVE = MAIN / "cpp"
PACKAGE = "com.example.readtext"
ANDROID = "{http://schemas.android.com/apk/res/android}"  # of its attributes
KOTLIN = MAIN / "kotlin" / Path(*PACKAGE.split("."))
_FOLDERS = [f"-I{NATIVE}"]


@dataclass(frozen=True)
class Picture:
    """Colours as Android has them, u32[H, W] of 0xAARRGGBB, and the file that holds them."""

    argb: NDArray[np.uint32]
    path: Path


@dataclass(frozen=True)
class Place:
    """Where a module lies in a file; length 0 is up to the file's end."""

    path: Path
    offset: int = 0
    length: int = 0


@dataclass(frozen=True)
class Found:
    """What the reader printed: what it picked, and top, left, bottom, right, text, turned."""

    device: str
    target: str
    code: str
    skipped: str
    lines: tuple[tuple[int, int, int, int, str, bool], ...]


def save_picture(page: NDArray[np.float32], path: Path) -> Picture:
    """A grey page, f32[H, W] in 0..255, in whole levels."""
    grey = np.rint(page).astype(np.uint32)
    argb = (0xFF << 24) | (grey << 16) | (grey << 8) | grey
    path.write_bytes(argb.astype("<u4").tobytes())
    return Picture(argb, path)


def require(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def load_prepare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prepare", SAMPLE / "prepare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prepare = load_prepare()


def resource_names() -> dict[str, list[str]]:
    """What the app's resources are called, by type."""
    names: dict[str, list[str]] = {
        "layout": [],
        "drawable": [],
        "id": [],
        "string": [],
        "array": [],
    }
    for path in sorted(MAIN.glob("res/*/*.xml")):
        root = ElementTree.parse(path).getroot()
        if path.parent.name == "values":
            for entry in root:
                names[entry.tag.removeprefix("string-")].append(entry.attrib["name"])
        else:
            names[path.parent.name].append(path.stem)
        found = (e.get(f"{ANDROID}id", "") for e in root.iter())
        names["id"] += [text.removeprefix("@+id/") for text in found if text.startswith("@+id/")]
    return names


# ---- the C core ----


def reader_sources() -> list[Path]:
    return [NATIVE / "page.c", NATIVE / "reader.c", SUPPORT / "android_reader.c"]


def build_reader(*flags: str, compiler: str = "gcc", has_vulkan: bool = False) -> Path:
    """The reader with the runtime and a main() that does what the app does."""
    sources = [*reader_sources(), *library_sources()]
    more = list(flags)
    if has_vulkan:
        sources += sorted(RUNTIME.glob("drivers/vulkan/*.c"))
        more += ["-DAOT_VULKAN=1"]
    libraries = ["-pthread", "-lm", "-ldl"]
    reader = build("android-reader", sources, [*_FOLDERS, *more], compiler, libraries)
    if reader is None:
        pytest.skip(f"{compiler} is not installed")
    return reader


def build_cross_reader(arch: str) -> Path:
    """The same, static, for a key of CROSS_TARGETS."""
    cross = CROSS_TARGETS[arch]
    require(cross.compiler, cross.emulator)
    return build_reader("-O2", "-static", *cross.flags, compiler=cross.compiler)


def reader_arguments(
    place: Place, picture: Picture, characters: Path, device: int, threads: int, times: int
) -> list[str]:
    """What android_reader.c wants."""
    height, width = picture.argb.shape
    parts = (place.path, place.offset, place.length, characters, picture.path)
    return [str(p) for p in (*parts, width, height, device, threads, times)]


def run_reader(
    command: Sequence[str | Path], arguments: Sequence[str], environment: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **(environment or {})}
    line = [*map(str, command), *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, env=given, timeout=600)


def found_by(result: subprocess.CompletedProcess[str]) -> Found:
    """What a run printed that must have gone well."""
    assert result.returncode == 0, result.stderr
    first, *rest = result.stdout.splitlines()
    device, target, code, skipped = first.split("|")
    lines = []
    for line in rest:
        top, left, bottom, right, turned, text = line.split(" ", 5)
        lines.append((int(top), int(left), int(bottom), int(right), text, turned == "1"))
    return Found(device, target, code, skipped, tuple(lines))


# ---- Java and Kotlin ----


def java_home() -> Path:
    require("javac")
    return Path(str(shutil.which("javac"))).resolve().parent.parent


def kotlin_compiler() -> Path:
    """kotlinc of the path, or of $KOTLIN_HOME."""
    home = os.environ.get("KOTLIN_HOME")
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "aotc/kotlin"
    folders = [Path(home) / "bin"] if home else [default / "bin"]
    found = shutil.which("kotlinc", path=os.pathsep.join(map(str, folders)))
    found = found or shutil.which("kotlinc")
    if found is None:
        pytest.skip("kotlinc is not installed: .ci/kotlin.sh brings it")
    require("java")
    return Path(found).resolve()


def compile_kotlin(
    sources: Sequence[Path], jar: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    command = [kotlin_compiler(), *options, *sources, "-d", jar]
    return subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, check=False, timeout=600
    )


def build_jar(name: str, sources: Sequence[Path]) -> Path:
    """Compiled sources, a warning being an error; kept by what they are, as `build` keeps C's."""
    compiler = kotlin_compiler()
    digest = hashlib.sha256(str(compiler).encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    jar = build_folder() / digest.hexdigest()[:20] / name
    if not jar.exists():
        jar.parent.mkdir(parents=True, exist_ok=True)
        partial = jar.with_name(f"{os.getpid()}.{name}")
        result = compile_kotlin(sources, partial, "-Werror")
        assert result.returncode == 0, result.stderr
        partial.replace(jar)
    return jar


def kotlin_library() -> Path:
    """The standard library that compiled Kotlin needs to run."""
    return kotlin_compiler().parent.parent / "lib" / "kotlin-stdlib.jar"
