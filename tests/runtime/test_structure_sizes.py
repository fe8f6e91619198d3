"""Structures that callers make: those of earlier headers, which are shorter, of later ones, which
are longer, and such as were never filled.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from aot.runtime import loader, tensors
from tests.support.runtime_api import Module, call, failure, library, opened
from tests.support.runtime_modules import scale_module
from tests.support.sized import NO_SIZES, WORD, longer

X = np.ones((2, 3), np.float32)


def module_options(structure: Any) -> None:
    """Opens a module with these options."""
    out = ctypes.c_void_p()
    data = scale_module().to_bytes()
    with_pointer = ctypes.cast(structure, ctypes.POINTER(loader._ModuleOptions))
    call("aot_module_open_memory", data, len(data), with_pointer, out=out)
    library().aot_module_close(out)


def program_options(structure: Any) -> None:
    """Makes a program with these options."""
    out = ctypes.c_void_p()
    module = Module(scale_module().to_bytes())
    try:
        pointer = ctypes.cast(structure, ctypes.POINTER(loader._ProgramOptions))
        call("aot_program_create", module.handle, pointer, out=out)
        library().aot_program_destroy(out)
    finally:
        module.close()


def cores(structure: Any) -> None:
    """Makes a program on these cores."""
    out = ctypes.c_void_p()
    module = Module(scale_module().to_bytes())
    try:
        pointer = ctypes.cast(structure, ctypes.POINTER(loader.Cores))
        call("aot_cores_create_program", pointer, module.handle, None, out=out)
        library().aot_program_destroy(out)
    finally:
        module.close()


def given_tensor(structure: Any) -> None:
    """Runs on this tensor."""
    with opened(scale_module().to_bytes()) as program:
        pointer = ctypes.cast(structure, ctypes.POINTER(tensors.CTensor))
        call("aot_program_set_input", program.handle, 0, pointer)
        program.run()
        np.testing.assert_array_equal(program.output(0), 2 * X)


TAKEN = {
    "aot_module_options_t": (module_options, lambda: loader._ModuleOptions(copy=True)),
    "aot_program_options_t": (program_options, loader._ProgramOptions),
    "aot_cores_t": (cores, lambda: loader.Cores(threads=1)),
    "aot_tensor_t": (given_tensor, lambda: tensors.to_tensor(X)),
}


@pytest.mark.parametrize("name", TAKEN)
def test_structures_of_callers(name: str) -> None:
    use, make = TAKEN[name]
    structure = make()
    size = ctypes.sizeof(structure)
    use(ctypes.byref(structure))
    use(longer(structure, bytes(40)))
    found = failure(lambda: use(longer(structure, bytes(9) + b"\1" + bytes(6))))
    assert found.status == "argument"
    expected = f"the {name} has a field at byte {size + 9}, which runtime 0.0.0 does not know"
    assert found.message == expected
    for none in NO_SIZES:
        structure.size = none
        found = failure(lambda: use(ctypes.byref(structure)))
        assert found.status == "argument"
        cut = structure.size
        assert found.message == f"the {name} has size {cut}, sizeof({name}) expected"


def test_shorter_options_have_defaults_behind() -> None:
    options = loader._ModuleOptions(copy=False)
    options.allocator.allocate = 1  # a pointer to nothing, which must not be read
    options.allocator.release = 1
    options.size = WORD
    aligned = Module(scale_module().to_bytes())
    out = ctypes.c_void_p()
    pointer = ctypes.cast(aligned.memory.ctypes.data, ctypes.c_char_p)
    call("aot_module_open_memory", pointer, len(aligned.memory), ctypes.byref(options), out=out)
    library().aot_module_close(out)
    aligned.close()


def test_structures_that_are_filled() -> None:
    with opened(scale_module().to_bytes()) as program:
        program(X)
        whole = program.info()
        size = ctypes.sizeof(whole)
        # A shorter one is filled as far as it goes, and not a byte further.
        short = ctypes.create_string_buffer(b"\xff" * size, size)
        room = loader._ProgramInfo.variant.offset
        ctypes.c_size_t.from_buffer(short).value = room
        pointer = ctypes.cast(short, ctypes.POINTER(loader._ProgramInfo))
        error = loader._Error()
        get = library().aot_program_get_info
        assert get(program.handle, ctypes.byref(error), pointer) == 0
        assert short.raw[WORD:room] == bytes(whole)[WORD:room]
        assert short.raw[room:] == b"\xff" * (size - room)
        # Of a longer one the rest is zero.
        long = ctypes.create_string_buffer(b"\xff" * (size + 24), size + 24)
        ctypes.c_size_t.from_buffer(long).value = size + 24
        pointer = ctypes.cast(long, ctypes.POINTER(loader._ProgramInfo))
        assert get(program.handle, ctypes.byref(error), pointer) == 0
        assert long.raw[WORD:size] == bytes(whole)[WORD:]
        assert long.raw[size:] == bytes(24)
        for none in NO_SIZES:
            ctypes.c_size_t.from_buffer(long).value = none
            assert get(program.handle, ctypes.byref(error), pointer) != 0
            assert error.message.startswith(b"the aot_program_info_t has size ")
            result = tensors.CTensor()
            result.size = none
            found = failure(
                lambda r=result: call("aot_program_get_output", program.handle, 0, out=r)
            )  # type: ignore[misc]
            assert found.status == "argument"
