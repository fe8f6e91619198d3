"""How the lines of the runtime are counted that run (tests/support/runtime_coverage.py)."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support import runtime_coverage
from tests.support.runtime_build import RUNTIME, build

SOURCE = """#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "aot/aot.h"

int main(void) {
  if (fork() == 0) {
    (void)aot_status_name(AOT_ERROR_MEMORY);
    (void)raise(SIGKILL);
  }
  int status = 0;
  (void)wait(&status);
  return WTERMSIG(status);
}
"""


@pytest.mark.skipif(
    shutil.which("clang") is None or shutil.which("llvm-cov") is None, reason="needs LLVM's tools"
)
def test_what_a_killed_child_ran_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in runtime_coverage.variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "main.c").write_text(SOURCE)
    status = RUNTIME / "src" / "status.c"
    program = build("counts", [tmp_path / "main.c", status], ["-O1"], "gcc")
    assert program is not None
    for _ in range(2):
        assert subprocess.run([program], check=False).returncode == signal.SIGKILL
    found = runtime_coverage.lines_of(tmp_path)
    assert list(found) == ["src/status.c"]
    counts = found["src/status.c"]
    text = status.read_text().splitlines()
    (ran,) = (n for n, line in enumerate(text, 1) if line.startswith("const char *aot_status_name"))
    (not_run,) = (n for n, line in enumerate(text, 1) if line.startswith("size_t aot_dtype_bytes"))
    assert counts[ran] == 2 and counts[not_run] == 0
    assert not any(text[n - 1].startswith("#") for n in counts)
    assert f"{not_run:5} {text[not_run - 1]}" in runtime_coverage.missing(found, "src/status.c")


def test_the_table_says_what_is_too_low() -> None:
    found = {
        "src/a.c": {n: int(n > 1) for n in range(1, 21)},
        "text/b.c": {n: int(n > 3) for n in range(1, 21)},
    }
    assert runtime_coverage.table(found).splitlines()[2:] == [
        "| `src/a.c` | 20 | 19 | 95.0% |",
        "| `text/b.c` | 20 | 17 | 85.0% |",
        "| all | 40 | 36 | 90.0% |",
    ]
    assert runtime_coverage.low(found) == ["text/b.c: 85.0%", "all: 90.0%"]
    assert runtime_coverage.low({"src/a.c": found["src/a.c"]}) == []
