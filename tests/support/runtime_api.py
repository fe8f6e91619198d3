"""The runtime's C interface for tests, as thin as ctypes allows, with an allocator that counts.

Functions that fail raise `Failed` with the status's name and the message. Must add no checks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.runtime import loader, tensors
from tests.support.runtime_build import build_library

ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class Failed(Exception):
    """A status other than ok."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


@cache
def library_path() -> Path:
    """The runtime with its internals visible; skips the test where there is no compiler."""
    path = build_library()
    if path is None:
        pytest.skip("gcc is not installed")
    return path


@cache
def library() -> ctypes.CDLL:
    """The loaded library."""
    lib = ctypes.CDLL(str(library_path()))
    for name, (result, *arguments) in loader._SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.aot_xxh64.restype = ctypes.c_uint64
    lib.aot_xxh64.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64)
    lib.aot_module_variant_target.restype = ctypes.c_char_p
    lib.aot_module_producer.restype = ctypes.c_char_p
    return lib


def call(name: str, *arguments: Any, out: Any = None) -> None:
    """Calls a fallible function; the error and `out` are added.

    Raises:
        Failed: with the status's name and the message.
    """
    error = loader._Error()
    outs = () if out is None else (ctypes.byref(out),)
    status = getattr(library(), name)(*arguments, ctypes.byref(error), *outs)
    if status != 0:
        assert error.status == status
        assert error.message, "a failure without a message"
        text = library().aot_status_name(status).decode()
        raise Failed(text, error.message.decode())


class CountingAllocator:
    """Counts, can fail at the n-th call, and knows when something is released wrongly."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.calls = 0
        self.fail_at = fail_at
        self.live: dict[int, tuple[int, int, Any]] = {}
        self.errors: list[str] = []
        self._functions = (ALLOCATE(self._allocate), RELEASE(self._release))

    def _allocate(self, user: int, size: int, alignment: int) -> int | None:
        self.calls += 1
        if self.calls - 1 == self.fail_at:
            return None
        if size == 0 or alignment & (alignment - 1):
            self.errors.append(f"{size} bytes aligned to {alignment} asked for")
        block = (ctypes.c_uint8 * (size + alignment))()
        address = -(-ctypes.addressof(block) // alignment) * alignment
        ctypes.memset(address, 0xA5, size)
        self.live[address] = (size, alignment, block)
        return address

    def _release(self, user: int, address: int, size: int, alignment: int) -> None:
        found = self.live.pop(address, None)
        if found is None or found[:2] != (size, alignment):
            self.errors.append(f"released {size} bytes aligned to {alignment}: {found}")

    def hooks(self) -> loader._Allocator:
        """For module options; keep `self` alive meanwhile."""
        allocate, release = (ctypes.cast(f, ctypes.c_void_p) for f in self._functions)
        return loader._Allocator(None, allocate, release)


def aligned(data: bytes) -> np.ndarray:
    """The bytes at an address divisible by 64."""
    buffer = np.empty(len(data) + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    view = buffer[start : start + len(data)]
    view[:] = np.frombuffer(data, np.uint8)
    return view


class Module:
    """An open module."""

    def __init__(
        self,
        source: bytes | Path,
        allocator: CountingAllocator | None = None,
        copy: bool = False,
        copy_code: bool = False,
    ) -> None:
        self.handle = ctypes.c_void_p()
        self.allocator = allocator
        options = loader._ModuleOptions(copy=copy, copy_code=copy_code)
        if allocator is not None:
            options.allocator = allocator.hooks()
        if isinstance(source, Path):
            arguments: tuple[Any, ...] = (str(source).encode(),)
            name = "aot_module_open_path"
        else:
            self.memory = aligned(source)
            pointer = ctypes.cast(self.memory.ctypes.data, ctypes.c_char_p)
            arguments = (pointer, len(source))
            name = "aot_module_open_memory"
        call(name, *arguments, ctypes.byref(options), out=self.handle)

    def close(self) -> None:
        """Closes it; twice is fine."""
        library().aot_module_close(self.handle)
        self.handle = ctypes.c_void_p()


class Program:
    """A program; options are the fields of aot_program_options_t."""

    def __init__(self, module: Module, **options: Any) -> None:
        self.module = module
        self.handle = ctypes.c_void_p()
        self._alive: dict[tuple[str, int], Any] = {}
        table = loader._ProgramOptions(**options)
        call("aot_program_create", module.handle, ctypes.byref(table), out=self.handle)

    def close(self) -> None:
        """Destroys it; twice is fine."""
        library().aot_program_destroy(self.handle)
        self.handle = ctypes.c_void_p()

    def set_input(self, index: int, array: np.ndarray) -> None:
        """An input's shape and memory."""
        self._alive["input", index] = array
        call("aot_program_set_input", self.handle, index, ctypes.byref(tensors.to_tensor(array)))

    def set_shape(self, index: int, dtype: str, *dims: int) -> None:
        """An input's shape alone."""
        tensor = tensors.to_tensor(np.empty(0, tensors.NUMPY[dtype]))
        extents = (ctypes.c_int64 * max(len(dims), 1))(*dims)
        tensor.rank, tensor.dims = len(dims), extents
        tensor.data, tensor.bytes = None, 1
        call("aot_program_set_input", self.handle, index, ctypes.byref(tensor))

    def set_output(self, index: int, array: np.ndarray | None, capacity: int | None = None) -> None:
        """An output's memory."""
        self._alive["output", index] = array
        address = None if array is None else array.ctypes.data
        size = 0 if array is None else array.nbytes if capacity is None else capacity
        call("aot_program_set_output", self.handle, index, address, size)

    def prepare(self) -> None:
        """Makes the plan."""
        call("aot_program_prepare", self.handle)

    def run(self) -> None:
        """Runs."""
        call("aot_program_run", self.handle)

    def reset(self) -> None:
        """Forgets the state."""
        call("aot_program_reset", self.handle)

    def output(self, index: int) -> np.ndarray:
        """A copy of an output."""
        tensor = tensors.CTensor()
        call("aot_program_get_output", self.handle, index, out=tensor)
        shape = tuple(tensor.dims[: tensor.rank])
        dtype = tensors.NUMPY[tensors.DTYPES[tensor.dtype]]
        result = np.empty(shape, dtype)
        assert result.nbytes == tensor.bytes
        if tensor.bytes:
            ctypes.memmove(result.ctypes.data, tensor.data, tensor.bytes)
        return result

    def output_shape(self, index: int) -> tuple[int, ...]:
        """An output's dims, after prepare."""
        tensor = tensors.CTensor()
        call("aot_program_get_output", self.handle, index, out=tensor)
        return tuple(tensor.dims[: tensor.rank])

    def info(self) -> loader._ProgramInfo:
        """aot_program_info_t."""
        info = loader._ProgramInfo()
        call("aot_program_get_info", self.handle, out=info)
        return info

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """Sets the inputs, runs, and gives copies of the outputs."""
        for index, array in enumerate(inputs):
            self.set_input(index, array)
        self.run()
        count = library().aot_program_output_count(self.handle)
        return [self.output(index) for index in range(count)]


@contextmanager
def opened(
    source: bytes | Path,
    allocator: CountingAllocator | None = None,
    *,
    copy: bool = False,
    **options: Any,
) -> Iterator[Program]:
    """A program of a module, both closed at the end."""
    module = Module(source, allocator, copy)
    try:
        program = Program(module, **options)
        try:
            yield program
        finally:
            program.close()
    finally:
        module.close()


def failure(function: Callable[[], object]) -> Failed:
    """What `function` fails with; it must fail."""
    with pytest.raises(Failed) as caught:
        function()
    return caught.value


def open_failure(source: bytes | Path, **options: Any) -> Failed:
    """What opening a module and making a program of it fails with."""

    def attempt() -> None:
        with opened(source, **options):
            pass

    return failure(attempt)


def run_failure(source: bytes, *inputs: np.ndarray, **options: Any) -> Failed:
    """What a run fails with; opening must not fail."""
    with opened(source, **options) as program:
        return failure(lambda: program(*inputs))


def run_once(source: bytes | Path, *inputs: np.ndarray, **options: Any) -> list[np.ndarray]:
    """The outputs of one run."""
    with opened(source, **options) as program:
        return program(*inputs)


def names(items: Sequence[bytes]) -> list[str]:
    """Decoded."""
    return [item.decode() for item in items]
