"""Builds the C runtime and its tools for tests, straight with a compiler.

Outputs are kept in a folder of their own, keyed by a hash of sources and flags, so that each is
built once whatever the number of test processes. Must not write into the checkout.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.paths import RUNTIME

WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
SANITIZE = [
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-g",
    "-O1",
]
FUZZ = [*SANITIZE, "-fsanitize=fuzzer"]
# What counts the lines that run (runtime_coverage.py), in a file that is mapped: a process that is
# killed, or may open no file any more, has counted too.
COUNT_LINES = [
    "-fprofile-instr-generate",
    "-fcoverage-mapping",
    "-Wno-unknown-warning-option",
    "-Wno-unused-command-line-argument",
    "-mllvm",
    "-runtime-counter-relocation",
]


def library_sources() -> list[Path]:
    """The C files of the library, in a fixed order."""
    folders = ("src", "drivers/cpu", "cores", "extras", "state", "text")
    return sorted(path for folder in folders for path in RUNTIME.glob(f"{folder}/*.c"))


def build_folder() -> Path:
    """Where builds are kept: $AOT_TEST_BUILD_DIR, or a folder of this user's in the temp folder."""
    default = Path(tempfile.gettempdir()) / f"aot-test-builds-{os.getuid()}"
    folder = Path(os.environ.get("AOT_TEST_BUILD_DIR") or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def build(
    name: str,
    sources: Sequence[Path],
    flags: Sequence[str],
    compiler: str | Sequence[str] = "gcc",
    libraries: Sequence[str] = (),
) -> Path | None:
    """Compiles and links `sources` to a file called `name`; None where the compiler is missing.

    A compiler may be several words, such as ("zig", "cc"). `libraries` come last. With
    $AOT_TEST_COVERAGE what is built for this machine counts the lines that run, by clang; but for
    builds for systems without threads.

    Raises:
        RuntimeError: the compiler's own message.
    """
    words = [compiler] if isinstance(compiler, str) else list(compiler)
    is_own = words[0] in ("gcc", "clang") and "-DAOT_THREADS=0" not in flags
    if is_own and os.environ.get("AOT_TEST_COVERAGE"):
        words, flags = ["clang", *words[1:]], [*flags, *COUNT_LINES]
    program = shutil.which(words[0])
    if program is None:
        return None
    includes = [f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'src'}"]
    command = [program, *words[1:], *WARNINGS, *includes, *flags, *map(str, sources), *libraries]
    digest = hashlib.sha256("\0".join(command).encode())
    beside = [header for source in sources for header in source.parent.glob("*.h")]
    headers = [*RUNTIME.glob("**/*.h"), *beside, *sources]
    for path in sorted(set(headers)):
        digest.update(path.read_bytes())
    output = build_folder() / digest.hexdigest()[:20] / name
    if not output.exists():
        output.parent.mkdir(parents=True, exist_ok=True)
        # Another process may build the same: each links to a name of its own, the last rename wins.
        partial = output.with_name(f"{name}.{os.getpid()}")
        result = subprocess.run(
            [*command, "-o", str(partial)], capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            raise RuntimeError(f"{words[0]} failed:\n{result.stderr}")
        partial.replace(output)
    return output


def build_library() -> Path | None:
    """The runtime as a shared library with every symbol visible, internals too."""
    flags = ["-O1", "-g", "-fPIC", "-shared", "-fvisibility=default"]
    return build("libaot_runtime.so", library_sources(), flags)


def tool_sources() -> list[Path]:
    """The library and aot-run."""
    return [*library_sources(), *sorted(RUNTIME.glob("tools/*.c"))]


def build_tool() -> Path | None:
    """aot-run for this machine."""
    return build("aot-run", tool_sources(), ["-O1", "-g", "-DAOT_TEXT=1", "-DAOT_STATE=1"])
