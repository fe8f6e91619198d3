"""The runtime where the system refuses one of its calls, or kills the process at it, and where the
clock jumps: a program goes on without what it can do without, else says in a status what failed,
and no state file is lost.

Calls are refused by a filter of the kernel's (refused_calls.c), the same one each time that it is
called. Futexes are left out: the C library ends a process that is refused them.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.control_lowering import compiled
from tests.support.control_sources import CACHE
from tests.support.paths import SUPPORT
from tests.support.runtime_build import build, library_sources

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")

STAGES = ("open", "create", "run", "save", "load")
NO_WRITE = r"cannot write \S+/state: {} \(errno {}\)"
NO_CODE = r".*this system does not let code be loaded: permission denied \(errno 1\); link .*"
# The call, the error, and of the first stage that fails its name and message.
TABLE: list[tuple[str, int, str, str]] = [
    ("none", 0, "", ""),
    ("open", errno.EMFILE, "open", r"cannot open \S+: too many open files \(errno 24\)"),
    ("stat", errno.EIO, "open", r".*: input/output error \(errno 5\)"),
    ("pread", errno.EIO, "load", r"cannot read 48 bytes at offset 0: input/output error .*"),
    ("mmap", errno.ENOMEM, "create", r"out of memory: \d+ bytes for code"),
    ("exec", errno.EPERM, "create", NO_CODE),
    ("mprotect", errno.EPERM, "create", NO_CODE),
    ("munmap", errno.EINVAL, "", ""),
    ("madvise", errno.EINVAL, "", ""),
    ("clone", errno.EAGAIN, "create", r".*the system starts no more threads \(errno 11\)"),
    ("sigmask", errno.EPERM, "", ""),
    ("affinity", errno.EPERM, "", ""),
    ("getpid", errno.EPERM, "", ""),
    ("close", errno.EIO, "save", NO_WRITE.format("input/output error", 5)),
    ("write", errno.ENOSPC, "save", NO_WRITE.format("no space left on the device", 28)),
    ("lseek", errno.EIO, "save", NO_WRITE.format("input/output error", 5)),
    ("fsync", errno.EIO, "save", NO_WRITE.format("input/output error", 5)),
    ("rename", errno.EACCES, "save", NO_WRITE.format("permission denied", 13)),
    ("unlink", errno.EACCES, "", ""),
    ("clock", 0, "", ""),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("refused")
    (found / "m.aotm").write_bytes(compiled(CACHE).to_bytes())
    return found


def go_through(folder: Path, call: str, code: int) -> tuple[int, dict[str, str]]:
    """How the process ended, and what each stage came to that it reached."""
    sources = [SUPPORT / "refused_calls.c", *library_sources()]
    flags = ["-O1", "-g", "-Wl,--wrap=clock_gettime"]
    binary = build("refused-calls", sources, flags, libraries=["-lpthread"])
    if binary is None:
        pytest.skip("gcc is not installed")
    files = [folder / name for name in ("m.aotm", "state", "said")]
    command = [str(word) for word in (binary, *files, call, code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 77:
        pytest.skip("this system lets no process filter its calls")
    lines = files[2].read_bytes().rstrip(b"\0").decode().splitlines()
    return done.returncode, dict(line.split(": ", 1) for line in lines)


@pytest.mark.parametrize(("call", "code", "stage", "message"), TABLE, ids=[t[0] for t in TABLE])
def test_a_call_that_is_refused(
    folder: Path, call: str, code: int, stage: str, message: str
) -> None:
    assert go_through(folder, "none", 0)[1] == dict.fromkeys(STAGES, "ok")
    before = (folder / "state").read_bytes()
    status, found = go_through(folder, call, code)
    assert status == 0, (status, found)
    failed = [name for name, text in found.items() if text != "ok"]
    assert failed == ([stage] if stage else []), found
    assert re.fullmatch(message, found[stage]) if stage else list(found) == list(STAGES)
    if stage == "save":
        assert (folder / "state").read_bytes() == before
        assert found["load"] == "ok"
    assert go_through(folder, "none", 0)[1] == dict.fromkeys(STAGES, "ok")
    assert sorted(os.listdir(folder)) == ["m.aotm", "said", "state"]


@pytest.mark.parametrize("call", ["unlink", "write", "lseek", "fsync", "close", "rename"])
def test_a_process_that_is_killed_at_a_call(folder: Path, call: str) -> None:
    """A kill -9 at a call keeps the earlier state. The next save removes the temporary file."""
    assert go_through(folder, "none", 0)[1] == dict.fromkeys(STAGES, "ok")
    before = (folder / "state").read_bytes()
    assert go_through(folder, call, 0)[0] == -signal.SIGSYS
    assert (folder / "state").read_bytes() == before
    assert set(os.listdir(folder)) <= {"m.aotm", "said", "state", "state.aot-save"}
    assert go_through(folder, "none", 0)[1] == dict.fromkeys(STAGES, "ok")
    assert sorted(os.listdir(folder)) == ["m.aotm", "said", "state"]
