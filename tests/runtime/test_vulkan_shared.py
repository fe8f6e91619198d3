"""What programs of one module share on a GPU: the device and the constants, which are uploaded once
and released with the last program, whatever fails and whatever number of threads makes them.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

import aot
from aot.runtime import vulkan_facts
from tests.support import runtime_api, vulkan_runtime
from tests.support.growing_graph import growing_graph, growing_reference, rows
from tests.support.vulkan_faults import shim_path
from tests.support.vulkan_runtime import running_on

pytestmark = pytest.mark.vulkan

OUT_OF_DEVICE_MEMORY, DEVICE_LOST = -2, -4
THREADS = 8


@pytest.fixture(params=["unified", "staged"])
def faults(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ctypes.CDLL]:
    """A loader that counts calls, and lets some fail."""
    shim = ctypes.CDLL(str(shim_path()))
    monkeypatch.setenv("AOT_VULKAN_LIBRARY", str(shim_path()))
    monkeypatch.setenv("AOT_VULKAN_MEMORY", request.param)
    with running_on("lavapipe", tmp_path):
        shim.faults_set(b"", 0, 0)
        yield shim
    shim.faults_set(b"", 0, 0)


@cache
def module_bytes() -> bytes:
    return aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes()


def check_run(program: runtime_api.Program, count: int) -> None:
    """Runs the program on so many rows."""
    x = rows(count)
    np.testing.assert_allclose(program(x)[0], growing_reference(x), atol=1e-6)


def info_of(program: runtime_api.Program) -> vulkan_facts.Info:
    info = vulkan_facts.info_of(vulkan_runtime.library(), program.handle)
    assert info is not None
    return info


def test_constants_are_uploaded_once(faults: ctypes.CDLL) -> None:
    module = runtime_api.Module(module_bytes())
    first = runtime_api.Program(module, device=2)
    made = {name: faults.faults_calls(name) for name in (b"vkCreateBuffer", b"vkQueueSubmit")}
    second = runtime_api.Program(module, device=2)
    # The second one has an arena of its own, and nothing else before it runs.
    assert faults.faults_calls(b"vkCreateInstance") == faults.faults_calls(b"vkCreateDevice") == 1
    assert faults.faults_calls(b"vkCreateBuffer") - made[b"vkCreateBuffer"] == 1
    assert faults.faults_calls(b"vkQueueSubmit") == made[b"vkQueueSubmit"]
    assert info_of(first).upload_ns > 0 and info_of(second).upload_ns == 0
    assert info_of(first).sharing_count == info_of(second).sharing_count == 2
    check_run(first, 9)
    check_run(second, 30)
    first.close()
    assert info_of(second).sharing_count == 1
    module.close()  # the programs keep it
    check_run(second, 9)
    second.close()


def test_the_last_program_releases_them(faults: ctypes.CDLL) -> None:
    allocator = runtime_api.CountingAllocator()
    module = runtime_api.Module(module_bytes(), allocator=allocator)
    for times in (1, 2):
        programs = [runtime_api.Program(module, device=2) for _ in range(3)]
        assert faults.faults_calls(b"vkCreateDevice") == times
        for program in programs:
            check_run(program, 9)
            program.close()
    module.close()
    assert allocator.errors == [] and allocator.live == {}


def test_other_options_have_a_device_of_their_own(
    faults: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = runtime_api.Module(module_bytes())
    programs = [runtime_api.Program(module, device=2)]
    for name, value in (("AOT_VULKAN_DEVICE", "llvmpipe"), ("AOT_VULKAN_TEXELS", "off")):
        monkeypatch.setenv(name, value)
        programs.append(runtime_api.Program(module, device=2))
    assert faults.faults_calls(b"vkCreateDevice") == 3
    for program in programs:
        assert info_of(program).sharing_count == 1
        check_run(program, 9)
        program.close()
    module.close()


def in_threads(work: Callable[[int], None]) -> None:
    """Calls work(number) on some threads at once."""
    failures: list[BaseException] = []
    begin = threading.Barrier(THREADS)

    def run(number: int) -> None:
        try:
            begin.wait()
            work(number)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_threads_make_run_and_end_programs(faults: ctypes.CDLL) -> None:
    """The validation layer looks for two threads at one queue."""
    module = runtime_api.Module(module_bytes())
    programs: dict[int, runtime_api.Program] = {}
    before = faults.faults_calls(b"vkCreateDevice")

    def make(number: int) -> None:
        programs[number] = runtime_api.Program(module, device=2)

    in_threads(make)
    assert faults.faults_calls(b"vkCreateDevice") == before + 1
    assert sum(info_of(program).upload_ns > 0 for program in programs.values()) == 1
    assert info_of(programs[0]).sharing_count == THREADS

    def run(number: int) -> None:
        for count in (9, 30, number + 1):
            check_run(programs[number], count)
        programs[number].close()

    in_threads(run)

    def all_of_it(number: int) -> None:
        for _ in range(2):
            make(number)
            check_run(programs[number], number + 1)
            programs[number].close()

    in_threads(all_of_it)
    module.close()


@pytest.mark.parametrize("name", [b"vkCreateDevice", b"vkAllocateMemory", b"vkBindBufferMemory"])
def test_what_one_could_not_do_the_next_one_does(faults: ctypes.CDLL, name: bytes) -> None:
    module = runtime_api.Module(module_bytes())
    faults.faults_set(name, 0, OUT_OF_DEVICE_MEMORY)
    found = runtime_api.failure(partial(runtime_api.Program, module, device=2))
    assert "out of device memory" in found.message
    program = runtime_api.Program(module, device=2)
    assert info_of(program).upload_ns > 0 and info_of(program).sharing_count == 1
    check_run(program, 9)
    program.close()
    module.close()


@pytest.mark.parametrize("faults", ["staged"], indirect=True)
def test_an_upload_that_failed_is_done_by_the_next_one(faults: ctypes.CDLL) -> None:
    module = runtime_api.Module(module_bytes())
    faults.faults_set(b"vkQueueSubmit", 0, OUT_OF_DEVICE_MEMORY)
    found = runtime_api.failure(partial(runtime_api.Program, module, device=2))
    assert "vkQueueSubmit" in found.message
    program = runtime_api.Program(module, device=2)
    check_run(program, 9)
    program.close()
    module.close()


def test_a_lost_device_is_not_given_to_others(faults: ctypes.CDLL) -> None:
    module = runtime_api.Module(module_bytes())
    first, second = (runtime_api.Program(module, device=2) for _ in range(2))
    check_run(first, 9)
    check_run(second, 9)
    faults.faults_set(b"vkWaitForFences", 0, DEVICE_LOST)
    check_run(first, 9)  # on another device
    assert faults.faults_calls(b"vkCreateDevice") == 1
    assert info_of(first).sharing_count == 1
    third = runtime_api.Program(module, device=2)
    assert faults.faults_calls(b"vkCreateDevice") == 1
    assert info_of(third).sharing_count == info_of(first).sharing_count == 2
    check_run(second, 30)  # nothing was said of it there
    for program in (first, second, third):
        check_run(program, 9)
        program.close()
    module.close()
