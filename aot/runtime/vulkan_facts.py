"""The Vulkan driver's facts about a program, through its C interface.

Owns the structures of `aot/vulkan.h` and of `options.profile` as Python sees them; `loader` has the
others. Measures and runs nothing.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref
from typing import Any

from aot.runtime.tensors import Sized

SOFTWARE = 4  # VK_PHYSICAL_DEVICE_TYPE_CPU


class Launch(ctypes.Structure):
    """The C struct aot_launch_t."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("word", ctypes.c_uint32),
        ("executable", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("bytes", ctypes.c_uint64),
        ("start_ns", ctypes.c_uint64),
        ("duration_ns", ctypes.c_uint64),
        ("threads", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
    )


class Pipeline(Sized):
    """The C struct aot_vulkan_pipeline_t."""

    _fields_ = (
        ("executable", ctypes.c_char_p),
        ("words", ctypes.c_uint32),
        ("create_ns", ctypes.c_uint64),
    )


class Info(Sized):
    """The C struct aot_vulkan_info_t."""

    _fields_ = (
        ("device_name", ctypes.c_char_p),
        ("cache_path", ctypes.c_char_p),
        ("api_version", ctypes.c_uint32),
        ("driver_version", ctypes.c_uint32),
        ("vendor", ctypes.c_uint32),
        ("device_type", ctypes.c_uint32),
        ("cache", ctypes.c_int),
        ("cache_was_written", ctypes.c_bool),
        ("is_unified", ctypes.c_bool),
        ("has_timestamps", ctypes.c_bool),
        ("reads_texels", ctypes.c_bool),
        ("pipeline_count", ctypes.c_uint32),
        ("recording_count", ctypes.c_uint32),
        ("submit_count", ctypes.c_uint32),
        ("instance_ns", ctypes.c_uint64),
        ("pipelines_ns", ctypes.c_uint64),
        ("upload_ns", ctypes.c_uint64),
        ("device_bytes", ctypes.c_uint64),
        ("sharing_count", ctypes.c_uint32),
    )


Profile = ctypes.CFUNCTYPE(None, ctypes.c_void_p, POINTER(Launch))


def declare(library: ctypes.CDLL) -> None:
    """Gives the functions that `info_of` and `pipelines_of` call their signatures."""
    library.aot_vulkan_get_info.restype = ctypes.c_bool
    library.aot_vulkan_get_info.argtypes = (ctypes.c_void_p, POINTER(Info))
    library.aot_vulkan_get_pipeline.restype = ctypes.c_bool
    library.aot_vulkan_get_pipeline.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, POINTER(Pipeline)),
    )


def info_of(library: ctypes.CDLL, program: Any) -> Info | None:
    """The driver's info on a program; None if it does not run on Vulkan."""
    info = Info()
    return info if library.aot_vulkan_get_info(program, byref(info)) else None


def pipelines_of(library: ctypes.CDLL, program: Any) -> list[Pipeline]:
    """The program's distinct pipelines."""
    found: list[Pipeline] = []
    while library.aot_vulkan_get_pipeline(program, len(found), byref(pipeline := Pipeline())):
        found.append(pipeline)
    return found
