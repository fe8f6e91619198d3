"""States in files and shorter than they were: what comes back, and what is refused."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.errors import RuntimeFailure
from aot.runtime import loader
from aot.runtime.loader import Program
from tests.support.control_lowering import assert_equal, compiled, program
from tests.support.control_sources import CACHE, MIXED, SUM
from tests.support.runtime_api import library_path
from tests.support.runtime_build import build

F = np.float32
W = np.array([2, 3], F)


def step(n: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(-1, 1, (2, n, 3)).astype(F)


def rows(*values: float) -> np.ndarray[Any, Any]:
    return np.array([[[v, -v] for v in values]], F).reshape(1, len(values), 2)


@pytest.mark.parametrize("before", [(), (1,), (2, 3), (2, 1, 3)])
def test_what_is_loaded_is_what_was_saved(tmp_path: Path, before: tuple[int, ...]) -> None:
    """In a program that has run as in a new one, of files that are replaced."""
    path = tmp_path / "prompt.state"
    data = compiled(MIXED).to_bytes()
    with aot.load(data) as first, aot.load(data) as fresh, aot.load(data) as other:
        path.write_bytes(b"what was there")
        for number, n in enumerate(before):
            first.run([step(n, number)])
        first.save_state(path)
        expected = first.run([step(1, 9)])
        for loaded in (fresh, other):
            if loaded is other:
                other.run([step(4, 5)])
            loaded.load_state(path)
            assert loaded.state_length == sum(before)
            assert_equal(loaded.run([step(1, 9)]), expected)
        first.load_state(path)
        assert_equal(first.run([step(1, 9)]), expected)
    assert os.listdir(tmp_path) == ["prompt.state"]


def test_a_file_has_what_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with program(CACHE) as loaded:
        sizes = []
        for _ in range(4):
            loaded.save_state(path)
            sizes.append(path.stat().st_size)
            loaded.run([rows(1), W])
    assert sizes == [48 + 8 + 8 * n for n in range(4)]


def test_a_state_is_shorter_after_a_rewind() -> None:
    with program(CACHE) as loaded:
        loaded.run([rows(1, 2, 3), W])
        loaded.run([rows(4), W])
        assert (loaded.state_length, loaded.state_capacity) == (4, 6)
        loaded.rewind(4)
        loaded.rewind(2)
        assert loaded.state_length == 2
        (found, _) = loaded.run([rows(7), W])
        assert (found / -W).tolist() == rows(1, 2, 7).tolist()
        assert loaded.prepare_count == 2  # for three rows and for one
        loaded.rewind(0)
        assert loaded.run([rows(5), W])[0].shape == (1, 1, 2)


def test_what_cannot_be_rewound_says_so() -> None:
    with program(CACHE) as loaded:
        loaded.run([rows(1, 2), W])
        for length, message in (
            (3, "cannot rewind to 3: the state has length 2"),
            (-1, "cannot rewind to -1"),
        ):
            with pytest.raises(RuntimeFailure) as caught:
                loaded.rewind(length)
            assert (str(caught.value), caught.value.status) == (message, "argument")
        assert loaded.state_length == 2
    for source, kept in (
        (SUM, "a state that does not grow; reset it"),
        (MIXED, "a state that does not grow; reset it"),
        ('func @main(%x: f32[3]) -> ("y") { %y = neg(%x) : f32[3] return(%y) }', "no state"),
    ):
        with program(source) as loaded:
            with pytest.raises(RuntimeFailure) as caught:
                loaded.rewind(0)
            assert str(caught.value) == f'cannot rewind: entry point "main" keeps {kept}'


@contextmanager
def saved(tmp_path: Path) -> Iterator[tuple[Program, Path, Callable[[], None]]]:
    """A program of length 3, its file, and a check that its state is as it was."""
    path = tmp_path / "s"
    with aot.load(compiled(MIXED).to_bytes()) as loaded:
        loaded.run([step(3)])
        loaded.save_state(path)
        expected = loaded.run([step(1, 1)])
        loaded.load_state(path)

        def check() -> None:
            assert loaded.state_length == 3
            assert_equal(loaded.run([step(1, 1)]), expected)
            loaded.load_state(path)

        yield loaded, path, check


@pytest.mark.parametrize(
    ("damage", "status", "message"),
    [
        (lambda b: b"", "malformed", "is not a state file"),
        (lambda b: b"AOTM" + b[4:], "malformed", "is not a state file"),
        (lambda b: b[:40], "malformed", "is not a state file"),
        (
            lambda b: b[:4] + b"\x02" + b[5:],
            "version",
            ": a state file of version 2, this runtime reads version 1",
        ),
        (lambda b: b[:9] + b"?" + b[10:], "checksum", ": the header's checksum is wrong"),
        (lambda b: b[:-1], "truncated", ": 263 bytes, its header says 264"),
        (lambda b: b + b"!", "truncated", ": 265 bytes, its header says 264"),
        (lambda b: b[:-2] + b"??", "checksum", ": the state's checksum is wrong"),
        (lambda b: b[:48] + b"\x02" + b[49:], "malformed", ": no run leaves such a state"),
        (lambda b: b[:55] + b"\xff" + b[56:], "malformed", ": no run leaves such a state"),
    ],
)
def test_a_damaged_file_leaves_the_state(
    tmp_path: Path, damage: Callable[[bytes], bytes], status: str, message: str
) -> None:
    bad = tmp_path / "bad"
    with saved(tmp_path) as (loaded, path, check):
        bad.write_bytes(damage(path.read_bytes()))
        with pytest.raises(RuntimeFailure) as caught:
            loaded.load_state(bad)
        join = "" if message.startswith(":") else " "
        assert (str(caught.value), caught.value.status) == (f"{bad}{join}{message}", status)
        check()


def test_every_byte_counts(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    with saved(tmp_path) as (loaded, path, check):
        data = path.read_bytes()
        for index in range(len(data)):
            bad.write_bytes(data[:index] + bytes([data[index] ^ 0x41]) + data[index + 1 :])
            with pytest.raises(RuntimeFailure):
                loaded.load_state(bad)
        check()


def test_the_state_of_another_module_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    with saved(tmp_path) as (loaded, path, check), program(CACHE) as other:
        other.save_state(bad)
        with pytest.raises(RuntimeFailure, match=f"^{bad}: the state of another module$"):
            loaded.load_state(bad)
        check()
        with pytest.raises(RuntimeFailure, match=f"^{path}: the state of another module$"):
            other.load_state(path)
        assert other.state_length == 0


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with saved(tmp_path) as (loaded, _, check):
        missing = tmp_path / "no" / "where"
        for call in (loaded.load_state, loaded.save_state):
            with pytest.raises(RuntimeFailure) as caught:
                call(missing)
            assert caught.value.status == "io"
            verb = "open" if call == loaded.load_state else "write"
            message = f"cannot {verb} {missing}: no such file or directory (errno 2)"
            assert str(caught.value) == message
        with pytest.raises(RuntimeFailure, match=f"^cannot write {tmp_path}: is a directory"):
            loaded.save_state(tmp_path)
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        with pytest.raises(RuntimeFailure, match=f"^cannot write {pipe}: not a regular file$"):
            loaded.save_state(pipe)
        assert pipe.is_fifo()
        check()
    assert sorted(os.listdir(tmp_path)) == ["pipe", "s"]
    with pytest.raises(RuntimeFailure, match="the program is closed"):
        loaded.save_state(tmp_path / "s")


def test_a_file_is_its_owner_s_and_no_link_is_followed(tmp_path: Path) -> None:
    """Whatever stands where it is written: a link to a file of somebody, or what a save left that
    was killed."""
    path, beside = tmp_path / "s", tmp_path / "s.aot-save"
    other = tmp_path / "other"
    before = os.umask(0)
    try:
        with program(CACHE) as loaded:
            loaded.run([rows(1, 2), W])
            for stands in ("nothing", "a link", "a link to nothing", "a file"):
                other.write_text("not ours")
                if "link" in stands:
                    beside.symlink_to(other if stands == "a link" else tmp_path / "missing")
                elif stands == "a file":
                    beside.write_bytes(b"half a state")
                loaded.save_state(path)
                assert stat.filemode(path.lstat().st_mode) == "-rw-------"
                assert other.read_text() == "not ours"
                assert sorted(os.listdir(tmp_path)) == ["other", "s"]
            path.unlink()
            path.symlink_to(other)
            loaded.save_state(path)
            assert not path.is_symlink() and other.read_text() == "not ours"
            loaded.load_state(path)
    finally:
        os.umask(before)


# A program of its own that saves a state to the path that it is given, or loads one.
SAVES = """
import resource, signal, sys
import aot
program = aot.load(sys.argv[1])
if sys.argv[3] == "load":
    program.load_state(sys.argv[2])
if sys.argv[3] == "killed":
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
program.save_state(sys.argv[2])
"""


def save(path: Path, how: str, **environment: str) -> subprocess.CompletedProcess[str]:
    module = path.with_name("m.aotm")
    module.write_bytes(compiled(CACHE).to_bytes())
    return subprocess.run(
        [sys.executable, "-c", SAVES, module, path, how],
        env=os.environ | {loader.LIBRARY_VARIABLE: str(library_path())} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_pipe_is_no_state_and_no_writer_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "s")
    last = save(tmp_path / "s", "load").stderr.splitlines()[-1]
    assert last.endswith("not a regular file, expected a regular file")


def test_saves_that_are_killed_leave_one_file(tmp_path: Path) -> None:
    """Here as they write the 51st byte. The next one removes it."""
    path = tmp_path / "s"
    for _ in range(3):
        assert save(path, "killed").returncode == -signal.SIGXFSZ
        assert sorted(os.listdir(tmp_path)) == ["m.aotm", "s.aot-save"]
    assert save(path, "whole").returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["m.aotm", "s"]


def test_a_save_that_another_overtakes_says_so(tmp_path: Path) -> None:
    """The other one's file is not taken for its own, nor removed."""
    source = tmp_path / "fsync.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\nint fsync(int fd);\nint fsync(int fd) {\n"
        '  return rename(getenv("OTHER"), getenv("BESIDE")) + 0 * fd;\n}\n'
    )
    shim = build("fsync.so", [source], ["-shared", "-fPIC"])
    assert shim is not None
    path, other, beside = (tmp_path / name for name in ("s", "other", "s.aot-save"))
    other.write_text("of another save")
    found = save(path, "whole", LD_PRELOAD=str(shim), OTHER=str(other), BESIDE=str(beside))
    last = found.stderr.splitlines()[-1]
    assert last.endswith(f"cannot write {path}: another save of it began")
    assert beside.read_text() == "of another save" and not path.exists()
