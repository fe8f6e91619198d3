"""Asynchronous runs (aot/async.h): completions, failures, misuse, and forks."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.runtime import loader
from tests.support.runtime_api import (
    CountingAllocator,
    Failed,
    Program,
    call,
    failure,
    library,
    opened,
)
from tests.support.runtime_build import RUNTIME, SANITIZE, build, library_sources
from tests.support.runtime_modules import scale_module

DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(loader._Error))
X = np.arange(6, dtype=np.float32).reshape(2, 3)
TSAN = ["-fsanitize=thread", "-g", "-O1"]


class Async:
    """An aot_async_t; keeps what C calls."""

    def __init__(self, program: Program) -> None:
        self.handle = ctypes.c_void_p()
        call("aot_async_create", program.handle, out=self.handle)
        self._alive: list[Any] = []

    def run(self, done: Callable[[str, str], None] | None = None) -> None:
        def called(_: Any, error: Any) -> None:
            name = library().aot_status_name(error.contents.status).decode()
            assert done is not None
            done(name, error.contents.message.decode())

        function = DONE(called) if done is not None else DONE()
        self._alive.append(function)
        call("aot_async_run", self.handle, function, None)

    def wait(self) -> None:
        call("aot_async_wait", self.handle)

    @property
    def is_running(self) -> bool:
        library().aot_async_is_running.restype = ctypes.c_bool
        return bool(library().aot_async_is_running(self.handle))

    def destroy(self) -> int:
        return int(library().aot_async_destroy(self.handle))


@contextmanager
def asynchronous(allocator: CountingAllocator | None = None) -> Iterator[tuple[Program, Async]]:
    with opened(scale_module().to_bytes(), allocator) as program:
        running = Async(program)
        try:
            yield program, running
        finally:
            assert running.destroy() == 0


def test_a_run_ends_with_its_completion() -> None:
    allocator = CountingAllocator()
    with asynchronous(allocator) as (program, running):
        assert not running.is_running
        program.set_input(0, X)
        seen: list[tuple[str, str]] = []
        for count in range(1, 4):
            running.run(lambda name, message: seen.append((name, message)))
            running.wait()
            assert not running.is_running
            assert seen == [("ok", "")] * count
            np.testing.assert_array_equal(program.output(0), 2 * X)
        running.run()
        running.wait()
        running.wait()  # again: the same
    assert not allocator.live and not allocator.errors


def test_one_run_at_a_time() -> None:
    began, may_end = threading.Event(), threading.Event()

    def done(_: str, __: str) -> None:
        began.set()
        assert may_end.wait(60)

    with asynchronous() as (program, running):
        program.set_input(0, X)
        running.run(done)
        assert began.wait(60)
        assert running.is_running
        found = failure(running.run)
        assert (found.status, found.message) == ("busy", "a run is under way")
        may_end.set()
        running.wait()
        running.run()


def test_a_completion_begins_the_next_run_and_waits_for_nothing() -> None:
    found: list[str] = []
    with asynchronous() as (program, running):
        program.set_input(0, X)

        def done(name: str, _: str) -> None:
            found.append(name)
            found.append(failure(running.wait).message)
            found.append(library().aot_status_name(running.destroy()).decode())
            if len(found) < 15:
                running.run(done)

        running.run(done)
        running.wait()
    assert found == ["ok", "the run's completion waits for itself", "busy"] * 5


def test_destroying_ends_a_chain_of_runs() -> None:
    """Each of which would begin the next one without end."""
    said: list[tuple[str, str]] = []
    with opened(scale_module().to_bytes()) as program:
        program.set_input(0, X)
        running = Async(program)

        def done(_: str, __: str) -> None:
            try:
                running.run(done)
            except Failed as failed:
                said.append((failed.status, failed.message))

        running.run(done)
        assert running.destroy() == 0
    assert said == [("busy", "no run begins while the runs are being destroyed")]


def test_failures_are_told_to_both() -> None:
    with asynchronous() as (program, running):
        found = failure(running.wait)
        assert (found.status, found.message) == ("not_ready", "no run was begun")
        seen: list[tuple[str, str]] = []
        running.run(lambda *told: seen.append(told))
        found = failure(running.wait)
        assert (found.status, found.message) == ("not_ready", 'inputs not set: "x"')
        assert seen == [(found.status, found.message)]
        program.set_input(0, X)
        call("aot_program_set_cancelled", program.handle, True)
        running.run()
        assert failure(running.wait).status == "cancelled"
        call("aot_program_set_cancelled", program.handle, False)
        running.run()
        running.wait()


def test_null_and_memory_that_fails() -> None:
    assert library().aot_async_destroy(None) == 0
    assert not library().aot_async_is_running(None)
    allocator = CountingAllocator()
    with opened(scale_module().to_bytes(), allocator) as program:
        allocator.fail_at = allocator.calls
        found = failure(lambda: Async(program))
        assert found.status == "memory"
        allocator.fail_at = None
        assert Async(program).destroy() == 0
    assert not allocator.live


def test_the_child_of_a_fork_has_no_thread() -> None:
    with asynchronous() as (program, running):
        program.set_input(0, X)
        running.run()
        running.wait()
        child = os.fork()
        if child == 0:
            found = failure(running.run)
            said = "its thread is not in the child of a fork: make it there"
            is_right = (found.status, found.message) == ("unsupported", said)
            os._exit(0 if is_right and running.destroy() == 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        running.run()
        running.wait()


@pytest.mark.parametrize("flags", [TSAN, SANITIZE], ids=["tsan", "asan"])
def test_sanitizers_find_nothing(flags: list[str], tmp_path: Path) -> None:
    """runtime/tests/test_async.c."""
    sources = [*library_sources(), RUNTIME / "tests/test_async.c"]
    program = build("test-async", sources, [*flags, "-pthread"], libraries=["-lm", "-pthread"])
    if program is None:
        pytest.skip("gcc is not installed")
    path = tmp_path / "m.aotm"
    path.write_bytes(scale_module().to_bytes())
    result = subprocess.run(
        [program, path], capture_output=True, text=True, timeout=120, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "ok\n", "")
