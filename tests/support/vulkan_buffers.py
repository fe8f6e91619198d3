"""Buffers of an application's own Vulkan device for the runtime: aot/vulkan_buffers.h as Python
sees it, and the application (vulkan_application.c).
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER
from functools import cache
from typing import Any

import numpy as np
import pytest

from aot.runtime.loader import _Error
from aot.runtime.tensors import CODES, CTensor, Sized
from tests.support import vulkan_runtime
from tests.support.paths import RUNTIME, SUPPORT
from tests.support.runtime_build import build


class Buffer(Sized):
    """The C struct aot_vulkan_buffer_t."""

    _fields_ = (
        ("buffer", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
    )


class OwnDevice(Sized):
    """The C struct aot_vulkan_device_t."""

    _fields_ = (
        ("instance", ctypes.c_void_p),
        ("physical_device", ctypes.c_void_p),
        ("device", ctypes.c_void_p),
        ("queue", ctypes.c_void_p),
        ("queue_family", ctypes.c_uint32),
        ("get_instance_proc_addr", ctypes.c_void_p),
        ("lock", ctypes.c_void_p),
        ("unlock", ctypes.c_void_p),
        ("user", ctypes.c_void_p),
    )


class VulkanOptions(Sized):
    """The C struct aot_vulkan_options_t."""

    _fields_ = (
        *((name, ctypes.c_char_p) for name in ("device", "library", "cache_dir")),
        ("no_cache", ctypes.c_bool),
        ("creation", ctypes.c_int),
        ("memory", ctypes.c_int),
        ("no_timestamps", ctypes.c_bool),
        ("no_overlap", ctypes.c_bool),
        ("texels", ctypes.c_int),
        ("timeout_ms", ctypes.c_uint32),
        ("own_device", POINTER(OwnDevice)),
        ("hardware_buffers", ctypes.c_bool),
        ("log", ctypes.c_void_p),
        ("log_user", ctypes.c_void_p),
    )


_PROGRAM, _ERROR = ctypes.c_void_p, POINTER(_Error)
SIGNATURES = {
    "aot_vulkan_set_input_buffer": (POINTER(CTensor), POINTER(Buffer)),
    "aot_vulkan_set_output_buffer": (POINTER(Buffer),),
    "aot_vulkan_set_input_hardware_buffer": (POINTER(CTensor), ctypes.c_void_p, ctypes.c_uint64),
    "aot_vulkan_set_output_hardware_buffer": (ctypes.c_void_p, ctypes.c_uint64),
}


def declare() -> None:
    """Gives the calls of aot/vulkan_buffers.h their signatures."""
    for name, arguments in SIGNATURES.items():
        function = getattr(vulkan_runtime.library(), name)
        function.restype = ctypes.c_int
        function.argtypes = (_PROGRAM, ctypes.c_size_t, *arguments, _ERROR)


def shape_of(array: np.ndarray) -> tuple[CTensor, Any]:
    """A tensor without data, and what it borrows."""
    dims = (ctypes.c_int64 * array.ndim)(*array.shape)
    code = CODES[array.dtype]
    return CTensor(dtype=code, rank=array.ndim, dims=dims), dims


@cache
def application_library() -> ctypes.CDLL:
    """The application, built; skips the test where there is no compiler."""
    folder = RUNTIME / "drivers" / "vulkan"
    source = SUPPORT / "vulkan_application.c"
    path = build(
        "libapplication.so",
        [source],
        [f"-I{folder}", "-O1", "-fPIC", "-shared"],
        libraries=["-ldl"],
    )
    if path is None:
        pytest.skip("gcc is not installed")
    library = ctypes.CDLL(str(path))
    for name in ("open", "buffer", "memory"):
        getattr(library, f"application_{name}").restype = ctypes.c_void_p
    library.application_handle.restype = ctypes.c_uint64
    return library


class Application:
    """An application with a device and a queue of its own.

    Args:
        library: of Vulkan, through which the runtime uses the device; None for the system's.
    """

    def __init__(self, library: ctypes.CDLL | None = None) -> None:
        self.native = application_library()
        self._handle = ctypes.c_void_p(self.native.application_open())
        if not self._handle:
            pytest.skip("Vulkan has no device")
        own = ctypes.cast(self._handle, POINTER(OwnDevice)).contents
        self.device = OwnDevice.from_buffer_copy(own)
        if library is not None:
            function = ctypes.cast(library.vkGetInstanceProcAddr, ctypes.c_void_p)
            self.device.get_instance_proc_addr = function
        self._buffers: list[ctypes.c_void_p] = []

    def buffer(self, size: int) -> tuple[int, np.ndarray]:
        """A buffer, and its bytes where the application sees them."""
        made = ctypes.c_void_p(self.native.application_buffer(self._handle, ctypes.c_uint64(size)))
        assert made
        self._buffers.append(made)
        memory = (ctypes.c_uint8 * size).from_address(self.native.application_memory(made))
        array = np.ctypeslib.as_array(memory)
        array[:] = 0xEE
        return self.native.application_handle(made), array

    def locks(self) -> int:
        """How often the runtime has asked for the queue."""
        return int(self.native.application_locks(self._handle))

    def options(self, **fields: Any) -> VulkanOptions:
        """Options of a program on the device."""
        return VulkanOptions(own_device=ctypes.pointer(self.device), **fields)

    def close(self) -> None:
        for buffer in self._buffers:
            self.native.application_release(self._handle, buffer)
        self.native.application_close(self._handle)
