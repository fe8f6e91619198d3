"""The runtime under tools that see what ASan does not: Valgrind with a module's own code, and the
memory sanitizer on the fuzzers, whose seeds reach every part that reads bytes from outside."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import fuzzers
from tests.support.control_lowering import compiled
from tests.support.control_sources import CACHE
from tests.support.paths import SUPPORT
from tests.support.runtime_build import SANITIZE, build, library_sources

MSAN = [flag.replace("address,undefined", "memory") for flag in SANITIZE]
# The sanitizer knows one of the names that the C library has for a call.
ENGINE = ["-fsanitize=fuzzer", "-Wl,--defsym=fstat64=fstat"]
BROKEN = """
#include <stdlib.h>
int main(void) { volatile int *own = malloc(8); return own[1] == 7 ? 3 : 0; }
"""


def under_valgrind(*words: object) -> subprocess.CompletedProcess[str]:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    options = ["--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=all"]
    command = ["valgrind", *options, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_valgrind_finds_nothing(tmp_path: Path) -> None:
    """A program with a state and threads, from opening to closing, its kernels among it."""
    sources = [SUPPORT / "refused_calls.c", *library_sources()]
    flags = ["-O1", "-g", "-Wl,--wrap=clock_gettime"]
    program = build("refused-calls", sources, flags, libraries=["-lpthread"])
    if program is None:
        pytest.skip("gcc is not installed")
    module, said = tmp_path / "m.aotm", tmp_path / "said"
    module.write_bytes(compiled(CACHE, target="x86-64-v2").to_bytes())
    found = under_valgrind(program, module, tmp_path / "s", said, "clock", 0)
    assert (found.returncode, found.stderr) == (0, "")
    assert said.read_bytes().count(b": ok") == 5


def test_valgrind_sees_what_is_wrong(tmp_path: Path) -> None:
    source = tmp_path / "broken.c"
    source.write_text(BROKEN)
    program = build("broken", [source], ["-O0", "-g", "-w"])
    assert program is not None and under_valgrind(program).returncode == 9


@pytest.mark.gate
@pytest.mark.parametrize("name", ["module", "state-mixed", "text", "template", "chat", "cache"])
def test_the_memory_sanitizer_finds_nothing(name: str, tmp_path: Path) -> None:
    """Every seed, and every allocation that fails on the way of some."""
    compiler = ["clang", "-Wno-unused-command-line-argument"]
    flags = [*MSAN, "-fsanitize=fuzzer-no-link"]
    try:
        program = fuzzers.build_fuzzer(name, compiler, flags, ENGINE)
    except FileNotFoundError:
        pytest.skip("clang is not installed")
    fuzzer = fuzzers.FUZZERS[name]
    seeds = fuzzers.write_inputs(name, tmp_path / "seeds")
    module = tmp_path / "m.aotm"
    module.write_bytes(fuzzer.module() if fuzzer.module is not None else b"")
    options = ["-seed=1", "-runs=3000", f"-max_len={fuzzer.most_bytes}"]
    done = subprocess.run(
        [program, *options, f"-artifact_prefix={tmp_path}/", seeds],
        env={"AOT_FUZZ_MODULE": str(module)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done 3000 runs" in done.stderr
