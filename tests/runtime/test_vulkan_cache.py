"""The pipeline cache's file: written once, used, and replaced when it is damaged or another's.

The software drivers keep nothing in it but their own header: what is tested is the file.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import aot
from tests.support.growing_graph import growing_graph
from tests.support.paths import ROOT
from tests.support.pipeline_cache_file import HEADER, LAYOUT, header_of
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import (
    CACHE_STATES,
    environment,
    info_of,
    library,
    running_on,
    tool_path,
)

pytestmark = pytest.mark.vulkan


@cache
def module_bytes() -> bytes:
    return aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes()


@pytest.fixture(params=DRIVERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Where the driver's file is."""
    with running_on(request.param, tmp_path):
        yield tmp_path / "cache" / "pipelines"


def load_once() -> tuple[str, bool, str]:
    """How a program found the cache, whether it wrote it, and where."""
    with aot.load(module_bytes(), "vulkan") as program:
        info = info_of(program)
        return CACHE_STATES[info.cache], bool(info.cache_was_written), info.cache_path.decode()


def the_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_the_file_is_written_once_and_used(folder: Path) -> None:
    assert load_once()[:2] == ("none", True)
    path = the_file(folder)
    data = path.read_bytes()
    assert path.stat().st_mode & 0o077 == 0
    assert LAYOUT.unpack_from(data)[0].to_bytes(4, "little") == b"AOTC"
    assert data[:HEADER] == header_of(data, data[HEADER:])
    assert load_once() == ("used", False, str(path))
    assert load_once() == ("used", False, str(path))
    assert path.read_bytes() == data


def test_damaged_files_are_ignored_and_replaced(folder: Path) -> None:
    load_once()
    path = the_file(folder)
    data = path.read_bytes()
    damaged = [data[:n] for n in (0, 1, HEADER - 1, HEADER, len(data) - 1)]
    damaged += [data + b"\0", b"text " * 100]
    for place in (0, 5, 9, 13, 17, 21, 30, 41, 49, 57, HEADER, len(data) - 1):
        flipped = bytearray(data)
        flipped[place] ^= 0x10
        damaged.append(bytes(flipped))
    for wrong in damaged:
        path.write_bytes(wrong)
        assert load_once() == ("ignored", True, str(path))
        assert load_once() == ("used", False, str(path))
        assert path.read_bytes() == data


def test_what_others_may_have_written_is_ignored_and_replaced(folder: Path, tmp_path: Path) -> None:
    """A driver takes what is in it for code."""
    load_once()
    path = the_file(folder)
    data = path.read_bytes()
    for mode in (0o620, 0o602):
        path.chmod(mode)
        assert load_once() == ("ignored", True, str(path))
        assert path.stat().st_mode & 0o777 == 0o600 and path.read_bytes() == data
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert load_once() == ("ignored", True, str(path))
    assert not path.is_symlink() and path.read_bytes() == data
    path.unlink()
    os.mkfifo(path)
    assert load_once() == ("ignored", True, str(path))
    assert load_once() == ("used", False, str(path))


def test_files_of_other_drivers_are_ignored(folder: Path) -> None:
    """Right in themselves: copied from another device, or left by a driver of the same version."""
    load_once()
    path = the_file(folder)
    data = path.read_bytes()
    body = data[HEADER:]
    for changes in (
        {"vendor": 0x10DE},
        {"device": 77},
        {"driver": 0xFFFFFFFF},
        {"pointer": 4},
        {"uuid": bytes(16)},
        {"version": 2},
    ):
        path.write_bytes(header_of(data, body, **changes) + body)
        assert load_once() == ("ignored", True, str(path))
        assert path.read_bytes() == data


def test_a_file_that_is_too_large_is_ignored(folder: Path) -> None:
    load_once()
    path = the_file(folder)
    size = path.stat().st_size
    with path.open("r+b") as stream:
        stream.truncate((64 << 20) + 65)
    assert load_once() == ("ignored", True, str(path))
    assert path.stat().st_size == size


def replace_file(path: Path, data: bytes) -> bool:
    """aot_vk_replace_file."""
    function = library().aot_vk_replace_file
    function.restype = ctypes.c_bool
    sizes = ctypes.c_size_t
    function.argtypes = (ctypes.c_char_p, ctypes.c_char_p, sizes, ctypes.c_char_p, sizes)
    return bool(function(os.fsencode(path), data[:4], 4, data[4:], len(data) - 4))


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_write_for_which_the_disk_has_no_room(tmp_path: Path, is_killed: bool) -> None:
    """The earlier file stays. What a process leaves that is killed at it, the next one removes."""
    path = tmp_path / "pipelines" / "file"
    assert replace_file(path, b"before")
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if is_killed else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        os._exit(1 if replace_file(path, b"more than there is room for") else 0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == (-signal.SIGXFSZ if is_killed else 0)
    assert path.read_bytes() == b"before"
    assert len(os.listdir(path.parent)) == (2 if is_killed else 1)
    assert replace_file(path, b"behind")
    assert path.read_bytes() == b"behind"
    assert os.listdir(path.parent) == ["file"]


def test_no_cache_where_it_is_off_or_cannot_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("AOT_PIPELINE_CACHE", "0")
        assert load_once() == ("off", False, "")
    assert not folder.exists()
    with monkeypatch.context() as patch:
        for name in ("AOT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
            patch.delenv(name, raising=False)
        assert load_once() == ("off", False, "")
    monkeypatch.setenv("AOT_CACHE_DIR", "/dev/null")
    state, is_written, path = load_once()
    assert (state, is_written) == ("none", False)
    assert path.startswith("/dev/null/pipelines/vulkan-")


def test_the_user_s_cache_folder_is_the_default(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AOT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert load_once()[2].startswith(str(tmp_path / "xdg" / "aotc" / "pipelines"))
    at_home = str(tmp_path / "home" / ".cache" / "aotc" / "pipelines")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for relative in ("xdg", "./xdg", ""):  # as the specification says
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert load_once()[2].startswith(at_home)
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert load_once()[2].startswith(at_home)
    monkeypatch.setenv("HOME", "home")
    assert load_once() == ("off", False, "")


LOADER = """
import sys
import aot
for _ in range(6):
    with aot.load(sys.argv[1], "vulkan") as program:
        assert program.device == "vulkan"
"""


def test_processes_share_the_file(tmp_path: Path) -> None:
    """Four at once, each finding the file whole or not at all."""
    module = tmp_path / "m.aotm"
    module.write_bytes(module_bytes())
    variables = {**environment("lavapipe", tmp_path), "PATH": "/usr/bin:/bin"}
    variables |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", LOADER, str(module)]
    processes = [
        subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    with running_on("lavapipe", tmp_path):
        assert load_once()[:2] == ("used", False)
        the_file(tmp_path / "cache" / "pipelines")  # no temporary files are left


def test_warm_fills_the_cache_and_stops(tmp_path: Path) -> None:
    module = tmp_path / "m.aotm"
    module.write_bytes(module_bytes())
    command = [str(tool_path()), str(module), "--warm", "--device", "vulkan"]
    with running_on("lavapipe", tmp_path):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("vulkan-1.1 on vulkan, made in ")
        assert load_once()[:2] == ("used", False)
