"""AHardwareBuffers as inputs and outputs, by a stand-in of Android's part of Vulkan over lavapipe
(vulkan_android.c): runs, whom the memory belongs to, and each misuse that the header names.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from ctypes import byref
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import aot
from tests.support import runtime_api
from tests.support.growing_graph import growing_graph, growing_reference, rows
from tests.support.paths import RUNTIME, SUPPORT
from tests.support.runtime_build import build
from tests.support.vulkan_buffers import VulkanOptions, declare, shape_of
from tests.support.vulkan_runtime import running_on

pytestmark = pytest.mark.vulkan

BLOB, RGBA, GPU_DATA = 0x21, 1, 1 << 24
DRIVER = RUNTIME / "drivers" / "vulkan"
SIZE = 8192


@pytest.fixture(params=["unified", "staged"])
def android(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ctypes.CDLL]:
    """The stand-in, which the driver takes for the system's libraries."""
    flags = ["-O1", "-fPIC", "-shared", f"-I{DRIVER}", "-Wl,-soname,libnativewindow.so"]
    source = SUPPORT / "vulkan_android.c"
    path = build("libnativewindow.so", [source], flags, libraries=["-ldl"])
    if path is None:
        pytest.skip("gcc is not installed")
    library = ctypes.CDLL(str(path))
    library.mock_buffer.restype = library.mock_bytes.restype = ctypes.c_void_p
    library.mock_buffer.argtypes = (ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64)
    for name in ("bytes", "references", "release"):
        getattr(library, f"mock_{name}").argtypes = (ctypes.c_void_p,)
    monkeypatch.setenv("AOT_VULKAN_LIBRARY", str(path))
    monkeypatch.setenv("AOT_VULKAN_MEMORY", request.param)
    with running_on("lavapipe", tmp_path):
        declare()
        yield library
    library.mock_hide(0)
    library.mock_types(2**32 - 1)


class HardwareBuffer:
    """A buffer, with its bytes."""

    def __init__(
        self, library: ctypes.CDLL, size: int = SIZE, form: int = BLOB, usage: int = GPU_DATA
    ) -> None:
        self.library = library
        self.handle = library.mock_buffer(size, form, usage)
        memory = (ctypes.c_uint8 * size).from_address(library.mock_bytes(self.handle))
        self.bytes = np.ctypeslib.as_array(memory)
        self.bytes[:] = 0xEE

    def references(self) -> int:
        return int(self.library.mock_references(self.handle))

    def release(self) -> None:
        self.library.mock_release(self.handle)


def make_program(device: int = 2, *, hardware_buffers: bool = True) -> runtime_api.Program:
    targets = ["vulkan-1.1", "host"]
    module = runtime_api.Module(aot.compile(growing_graph(), targets=targets).to_bytes())
    options = VulkanOptions(hardware_buffers=hardware_buffers)
    address = ctypes.cast(ctypes.pointer(options), ctypes.c_void_p).value
    try:
        return runtime_api.Program(module, device=device, vulkan=address)
    finally:
        module.close()


def set_input(
    program: runtime_api.Program, array: np.ndarray, buffer: HardwareBuffer | None, offset: int = 0
) -> None:
    tensor, _ = shape_of(array)
    handle = None if buffer is None else buffer.handle
    name = "aot_vulkan_set_input_hardware_buffer"
    runtime_api.call(name, program.handle, 0, byref(tensor), handle, offset)


def set_output(
    program: runtime_api.Program, buffer: HardwareBuffer | None, offset: int = 0
) -> None:
    handle = None if buffer is None else buffer.handle
    name = "aot_vulkan_set_output_hardware_buffer"
    runtime_api.call(name, program.handle, 0, handle, offset)


def put(buffer: HardwareBuffer, offset: int, array: np.ndarray) -> None:
    buffer.bytes[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)


def test_runs_in_hardware_buffers(android: ctypes.CDLL) -> None:
    program = make_program()
    source, result = HardwareBuffer(android), HardwareBuffer(android)
    for count, begin, end in ((9, 0, 0), (30, 64, 128), (9, 64, 128)):
        x = rows(count)
        put(source, begin, x)
        set_input(program, x, source, begin)
        set_output(program, result, end)
        handed = android.mock_handed(1), android.mock_handed(0)
        program.run()
        expected = growing_reference(x)
        found = result.bytes[end : end + expected.nbytes].copy().view(np.float32)
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-6)
        # Both are taken from who else uses them, and given back.
        assert android.mock_handed(1) == handed[0] + 2
        assert android.mock_handed(0) == handed[1] + 2
    put(source, 64, rows(9) * 2)  # another picture in the same buffer
    program.run()
    expected = growing_reference(rows(9) * 2)
    found = result.bytes[128 : 128 + expected.nbytes].copy().view(np.float32)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-6)
    program.close()
    source.release()
    result.release()


def test_whom_a_buffer_belongs_to(android: ctypes.CDLL) -> None:
    """The program has it until another takes its place; one that failed to is not kept."""
    program = make_program()
    first, second, third = (HardwareBuffer(android) for _ in range(3))
    x = rows(9)
    set_input(program, x, first)
    assert (first.references(), second.references()) == (1, 0)
    set_input(program, x, second)
    assert (first.references(), second.references()) == (0, 1)
    set_output(program, third, 4096)
    assert third.references() == 1
    found = runtime_api.failure(partial(set_input, program, x, first, SIZE - 4))
    assert found.status == "capacity" and first.references() == 0
    put(second, 0, x)
    program.run()
    expected = growing_reference(x)
    result = third.bytes[4096 : 4096 + expected.nbytes].copy().view(np.float32)
    np.testing.assert_allclose(result.reshape(expected.shape), expected, atol=1e-6)
    program.set_input(0, x)  # of the host again
    program.set_output(0, None)
    program.run()
    np.testing.assert_allclose(program.output(0), expected, atol=1e-6)
    program.close()
    for buffer in (first, second, third):
        assert buffer.references() == 0
        buffer.release()


@pytest.mark.parametrize("android", ["unified"], indirect=True)
def test_the_child_of_a_fork_leaves_them_alone(android: ctypes.CDLL) -> None:
    program = make_program()
    first, second = HardwareBuffer(android), HardwareBuffer(android)
    x = rows(9)
    set_input(program, x, first)
    set_output(program, first, 4096)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        calls = partial(set_input, program, x, second), partial(set_output, program, second)
        found = [runtime_api.failure(call).status for call in calls]
        os._exit(int((found, first.references()) != (["device", "device"], 2)))
    assert os.waitpid(child, 0)[1] == 0
    program.close()
    first.release()
    second.release()


@pytest.mark.parametrize("android", ["unified"], indirect=True)
def test_misuse_gives_a_status(android: ctypes.CDLL) -> None:
    program = make_program()
    x = rows(9)
    good = HardwareBuffer(android)
    others = {
        "AHARDWAREBUFFER_FORMAT_BLOB expected": HardwareBuffer(android, form=RGBA),
        "AHARDWAREBUFFER_USAGE_GPU_DATA_BUFFER": HardwareBuffer(android, usage=3),
        "is NULL": None,
    }
    for message, other in others.items():
        for call in (partial(set_input, program, x, other), partial(set_output, program, other)):
            found = runtime_api.failure(call)
            assert found.status == "argument" and message in found.message
    assert runtime_api.failure(partial(set_output, program, good, SIZE + 1)).status == "argument"
    assert runtime_api.failure(partial(set_input, program, x, good, SIZE)).status == "capacity"
    android.mock_types(0)  # no memory for it
    assert runtime_api.failure(partial(set_input, program, x, good)).status == "unsupported"
    assert good.references() == 0
    program.close()
    for without in (make_program(1), make_program(2, hardware_buffers=False)):
        found = runtime_api.failure(partial(set_input, without, x, good))
        assert found.status == "unsupported"
        assert runtime_api.failure(partial(set_output, without, good)).status == "unsupported"
        without.close()
    for buffer in (good, *others.values()):
        if buffer is not None:
            buffer.release()


@pytest.mark.parametrize("android", ["unified"], indirect=True)
def test_a_device_without_the_extensions(android: ctypes.CDLL) -> None:
    android.mock_hide(1)
    found = runtime_api.failure(make_program)
    assert found.status == "unsupported"
    assert "VK_ANDROID_external_memory_android_hardware_buffer" in found.message
    program = make_program(0)  # the CPU does it
    assert program.info().device == b"cpu"
    program.close()


def test_the_part_for_android_compiles() -> None:
    """With a header that has the NDK's declarations in place of the driver's own."""
    flags = ["-D__ANDROID__", "-DAOT_VULKAN=1", f"-I{SUPPORT / 'ndk'}", "-c"]
    if build("imports.o", [DRIVER / "imports.c"], flags) is None:
        pytest.skip("gcc is not installed")
