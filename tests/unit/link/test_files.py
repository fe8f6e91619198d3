"""Files that are written whole: where a process is killed on the way, the disk is full, the home
cannot be written, or several write at once."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aot
from aot.errors import CacheWarning, CompileError
from aot.link.files import write_atomically
from tests.support.module_seeds import static

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.utime", "os.chmod")


def in_a_child(work: Callable[[], object]) -> int:
    """How a process of its own ends that does this."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(number: int, folder: Path, work: Callable[[], object]) -> bool:
    """Whether a process was killed when it was about to change something in `folder` for the nth
    time, as kill -9 does."""
    events = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal events
        if event not in EVENTS or not str(arguments[0]).startswith(str(folder)):
            return
        if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
            return
        events += 1
        if events > number:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched() -> None:
        sys.addaudithook(watch)
        work()

    status = in_a_child(watched)
    assert status in (0, -signal.SIGKILL)
    return status != 0


def test_a_compile_that_is_killed_anywhere(tmp_path: Path) -> None:
    """The file is the one before or the new one, the next compile is as any other, and it leaves
    nothing that is not its own."""
    out, model = tmp_path / "out", static()
    out.mkdir()
    target = out / "m.aotm"
    expected = aot.compile(model, targets=["host"], cache=False).to_bytes()

    def compiled(cache: Path) -> None:
        aot.compile(model, targets=["host"], cache_dir=cache).save(target)

    number = 0
    while True:
        cache = tmp_path / f"cache-{number}"
        target.write_bytes(b"before")
        if not killed_at(number, tmp_path, lambda: compiled(cache)):  # noqa: B023
            break
        assert target.read_bytes() in (b"before", expected)
        compiled(cache)
        assert target.read_bytes() == expected
        assert os.listdir(out) == ["m.aotm"]
        number += 1
    assert number > 8


def test_a_write_that_is_killed_within_is_removed_by_the_next(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        os.kill(os.getpid(), signal.SIGKILL)

    target = tmp_path / "m [a].aotm"
    others = [tmp_path / ".n.0123456789ab.tmp", tmp_path / ".m [a].aotm.notes.tmp"]
    for path in (target, *others):
        path.write_bytes(b"mine")
    for _ in range(3):
        assert in_a_child(lambda: write_atomically(target, chunks())) == -signal.SIGKILL
        assert target.read_bytes() == b"mine"
        assert len(os.listdir(tmp_path)) == 4
    write_atomically(target, [b"whole"])
    assert target.read_bytes() == b"whole"
    assert sorted(tmp_path.iterdir()) == sorted([target, *others])


def test_writers_at_once_leave_each_other_s_files(tmp_path: Path) -> None:
    """What is being written is locked, so that it is not taken for left over."""
    target = tmp_path / "m.aotm"
    texts = [bytes([65 + n]) * 10_000 for n in range(6)]
    wrong: list[BaseException] = []

    def write(text: bytes) -> None:
        try:
            for _ in range(40):
                write_atomically(target, [text[:5000], text[5000:]])
                assert target.read_bytes() in texts
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and os.listdir(tmp_path) == ["m.aotm"]


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"^cannot write /dev/full: no space left on device$"):
        write_atomically("/dev/full", [b"x"])
    target = tmp_path / "m.aotm"
    target.write_bytes(b"before")

    def write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises(CompileError, match=r"m.aotm: file too large$"):
            write_atomically(target, [b"x" * 999, b"yyy"])

    assert in_a_child(write) == 0
    assert target.read_bytes() == b"before" and os.listdir(tmp_path) == ["m.aotm"]


def test_a_home_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    model = static()
    expected = aot.compile(model, targets=["host"]).to_bytes()
    for name in ("AOT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/proc/self")
    with pytest.warns(CacheWarning, match=r"^compiled code is not cached: cannot write /proc/self"):
        assert aot.compile(model, targets=["host"]).to_bytes() == expected
