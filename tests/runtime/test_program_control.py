"""What a host controls of a program: its end by another thread or a deadline, its memory, whose
threads run it, its calls from inside callbacks, and how long its module lives.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from aot.runtime import tensors
from aot.runtime.vulkan_facts import Profile
from tests.support.control_modules import GROUPS, counting_module, endless_module
from tests.support.runtime_api import (
    CountingAllocator,
    Failed,
    Module,
    Program,
    call,
    failure,
    library,
    opened,
)
from tests.support.runtime_modules import arena_module, scale_module

TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32)
PARALLEL_FOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, TASK, ctypes.c_void_p)
X = np.ones((2, 3), np.float32)
HOUR_NS = 3600 * 10**9


def set_cancelled(program: Program, is_cancelled: bool) -> None:
    """aot_program_set_cancelled."""
    call("aot_program_set_cancelled", program.handle, is_cancelled)


def set_deadline(program: Program, time_ns: int) -> None:
    """aot_program_set_deadline."""
    call("aot_program_set_deadline", program.handle, ctypes.c_uint64(time_ns))


def now_ns() -> int:
    """aot_runtime_now_ns."""
    function = library().aot_runtime_now_ns
    function.restype = ctypes.c_uint64
    return int(function())


# ---- cancelling and deadlines ----


@pytest.mark.parametrize("part", ["prepare", "execute", "fills"])
def test_another_thread_ends_what_would_never_end(part: str) -> None:
    with opened(endless_module(part).to_bytes()) as program:
        timer = threading.Timer(0.05, lambda: set_cancelled(program, True))
        timer.start()
        found = failure(program.run)
        timer.join()
        assert found.status == "cancelled"
        assert found.message.startswith("cancelled at word ")


@pytest.mark.parametrize("part", ["prepare", "execute", "fills"])
def test_a_deadline_ends_what_would_never_end(part: str) -> None:
    with opened(endless_module(part).to_bytes()) as program:
        set_deadline(program, now_ns() + 10**7)
        found = failure(program.run)
        assert found.status == "deadline"
        assert found.message.startswith("the deadline has passed at word ")


def test_a_cancelled_program_runs_again() -> None:
    with opened(scale_module().to_bytes()) as program:
        program.set_input(0, X)
        set_cancelled(program, True)
        assert failure(program.run).status == "cancelled"
        assert failure(program.run).status == "cancelled"  # until it is taken back
        set_cancelled(program, False)
        program.run()
        np.testing.assert_array_equal(program.output(0), 2 * X)
        set_deadline(program, 1)
        assert failure(program.run).status == "deadline"
        set_deadline(program, now_ns() + HOUR_NS)
        program.run()
        set_deadline(program, 0)
        program.run()
        np.testing.assert_array_equal(program.output(0), 2 * X)


# ---- memory ----


def test_the_memory_of_a_program_is_told_and_limited() -> None:
    file = arena_module().to_bytes()
    allocator = CountingAllocator()
    with opened(file, allocator) as program:
        before = sum(size for size, _, _ in allocator.live.values())
        program(np.zeros(1000, np.float32))
        after = sum(size for size, _, _ in allocator.live.values())
        info = program.info()
        assert info.memory_bytes - (after - before) > 0
        assert info.most_memory_bytes >= info.memory_bytes
        needed = info.most_memory_bytes
    with opened(file, memory_limit=needed) as program:
        program(np.zeros(1000, np.float32))
        assert program.info().memory_bytes <= needed
    with opened(file, memory_limit=needed - 1) as program:
        found = failure(lambda: program(np.zeros(1000, np.float32)))
        assert found.status == "memory"
        assert found.message.startswith(f"the memory limit of {needed - 1} bytes: ")
        x = np.arange(10, dtype=np.float32)
        np.testing.assert_array_equal(program(x)[0], 4 * x)  # it can be used as before


def test_a_program_that_does_not_fit_its_limit_is_not_made() -> None:
    allocator = CountingAllocator()
    handle = Module(scale_module().to_bytes(), allocator)
    before = len(allocator.live)
    fresh = Program(handle)
    needed = int(fresh.info().most_memory_bytes)
    fresh.close()
    for limit in (1, 1000, needed - 1):
        found = failure(lambda limit=limit: Program(handle, memory_limit=limit))  # type: ignore[misc]
        assert found.status == "memory"
        assert found.message.startswith(f"the memory limit of {limit} bytes: ")
        assert len(allocator.live) == before
    handle.close()
    assert not allocator.live
    assert not allocator.errors


# ---- the host's threads ----


def one_after_the_other(count: int, task: Callable[[int], None]) -> None:
    """Every task on the calling thread, the last one first."""
    for index in reversed(range(count)):
        task(index)


def on_a_pool(count: int, task: Callable[[int], None]) -> None:
    """Every task on another thread."""
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(task, index) for index in range(count)]:
            future.result()


@pytest.mark.parametrize("host", [one_after_the_other, on_a_pool])
def test_every_workgroup_runs_once_on_threads_of_the_host(host: Callable[..., None]) -> None:
    counts: list[int] = []

    @PARALLEL_FOR
    def parallel_for(user: int, count: int, task: Callable[..., None], context: int) -> None:
        assert user == 7
        counts.append(count)
        host(count, lambda index: task(context, index))

    options = {
        "threads": 3,
        "parallel_for": ctypes.cast(parallel_for, ctypes.c_void_p),
        "parallel_for_user": 7,
    }
    with opened(counting_module().to_bytes(), **options) as program:
        assert program.info().threads == 3
        for _ in range(40):
            program.run()
            np.testing.assert_array_equal(program.output(0), np.full(GROUPS, 3, np.uint32))
    assert counts, "no dispatch was shared"
    assert all(1 <= count <= 3 for count in counts)


def test_a_host_that_returns_early_fails_the_run() -> None:
    @PARALLEL_FOR
    def parallel_for(_user: int, _count: int, _task: Callable[..., None], _context: int) -> None:
        return

    options = {"threads": 2, "parallel_for": ctypes.cast(parallel_for, ctypes.c_void_p)}
    with opened(counting_module().to_bytes(), **options) as program:
        with pytest.raises(Failed) as caught:
            for _ in range(40):
                program.run()
        assert caught.value.status == "argument"
        assert caught.value.message == "parallel_for has returned before its 2 tasks have ended"


def test_one_thread_asks_no_host() -> None:
    @PARALLEL_FOR
    def parallel_for(_user: int, _count: int, _task: Callable[..., None], _context: int) -> None:
        raise AssertionError

    options = {"threads": 1, "parallel_for": ctypes.cast(parallel_for, ctypes.c_void_p)}
    with opened(counting_module().to_bytes(), **options) as program:
        for _ in range(20):
            program.run()
        np.testing.assert_array_equal(program.output(0), np.full(GROUPS, 3, np.uint32))


# ---- calls from inside callbacks ----


def test_calls_from_inside_a_callback_give_a_status() -> None:
    statuses: dict[str, str] = {}
    others: list[np.ndarray] = []
    with opened(scale_module().to_bytes()) as other:

        def attempt(name: str, *arguments: object, out: object = None) -> None:
            try:
                call(name, *arguments, out=out)
                statuses[name] = "ok"
            except Failed as failed:
                statuses[name] = failed.status

        @Profile
        def profile(_user: int, _launch: object) -> None:
            handle = program.handle
            tensor_in = ctypes.byref(tensors.to_tensor(X))
            attempt("aot_program_set_input", handle, 0, tensor_in)
            attempt("aot_program_set_output", handle, 0, None, 0)
            attempt("aot_program_set_deadline", handle, ctypes.c_uint64(1))
            for name in ("prepare", "run", "reset"):
                attempt(f"aot_program_{name}", handle)
            attempt("aot_program_rewind", handle, ctypes.c_uint64(0))
            attempt("aot_program_save_state", handle, b"/nonexistent")
            attempt("aot_program_load_state", handle, b"/nonexistent")
            attempt("aot_program_get_output", handle, 0, out=tensors.CTensor())
            destroyed = library().aot_program_destroy(handle)
            statuses["aot_program_destroy"] = library().aot_status_name(destroyed).decode()
            others.append(other(X)[0])
            assert program.info().prepare_count == 1

        options = {"profile": ctypes.cast(profile, ctypes.c_void_p)}
        with opened(scale_module(3.0).to_bytes(), **options) as program:
            np.testing.assert_array_equal(program(X)[0], 3 * X)
    assert len(statuses) == 11
    assert set(statuses.values()) == {"busy"}
    np.testing.assert_array_equal(others[0], 2 * X)


# ---- how long a module lives ----


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("is_file", [False, True])
def test_programs_outlive_their_module(
    order: tuple[int, ...], is_file: bool, tmp_path: Path
) -> None:
    path = tmp_path / "m.aotm"
    data = scale_module().to_bytes()
    path.write_bytes(data)
    allocator = CountingAllocator()
    handle = Module(path if is_file else data, allocator)
    programs = [Program(handle), Program(handle)]
    for closed in order:
        (handle, *programs)[closed].close()
        for program in programs:
            if program.handle:
                np.testing.assert_array_equal(program(X)[0], 2 * X)
                assert program.info().target == b"test"
    assert not allocator.live
    assert not allocator.errors
