"""A module's file that changes while it is open: what was verified stays what runs, as far as
aot.h says.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from aot.link.flatbuffer import read_structure
from aot.link.reader import IDENTIFIER
from tests.support.runtime_api import Module, Program, failure, opened
from tests.support.runtime_build import build, build_tool
from tests.support.runtime_modules import fbs, scale_module, segments, structure_bytes_of

X = np.ones((2, 3), np.float32)
MAPPED, COPIED = 1, 2
RETURN = b"\xc3" * 64  # of x86-64

FORBIDDING = """
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
int mprotect(void *address, size_t bytes, int protection) {
  if ((protection & PROT_EXEC) != 0) {
    errno = EACCES;
    return -1;
  }
  return ((int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "mprotect"))(address, bytes, protection);
}
"""


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Changes a file in place."""
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def code_of(data: bytes) -> fbs.SegmentT:
    """The code of the only variant."""
    root = read_structure(data[64 : 64 + structure_bytes_of(data)], IDENTIFIER)
    assert root.variants[0].code in list(segments(root))
    return root.variants[0].code


def test_the_structure_is_what_was_verified(tmp_path: Path) -> None:
    """Names, programs and shapes: all bytes of the header and the structure change."""
    path = tmp_path / "m.aotm"
    data = scale_module().to_bytes()
    path.write_bytes(data)
    with opened(path) as program:
        assert program.info().code_mapping == MAPPED
        program(X)
        overwrite(path, 0, b"\xff" * (64 + structure_bytes_of(data)))
        np.testing.assert_array_equal(program(X)[0], 2 * X)
        for rows in (1, 5, 64):  # new plans, by the program's prepare part
            x = np.ones((rows, 3), np.float32)
            np.testing.assert_array_equal(program(x)[0], 2 * x)
        again = Program(program.module)
        np.testing.assert_array_equal(again(X)[0], 2 * X)
        assert again.info().target == b"test"
        again.close()
    assert failure(lambda: Module(path)).status == "not_a_module"


def test_copied_code_is_what_was_verified(tmp_path: Path) -> None:
    path = tmp_path / "m.aotm"
    data = scale_module().to_bytes()
    path.write_bytes(data)
    code = code_of(data)
    module = Module(path, copy_code=True)
    program = Program(module)
    assert program.info().code_mapping == COPIED
    overwrite(path, code.offset, RETURN)
    np.testing.assert_array_equal(program(X)[0], 2 * X)
    # A program that is made now is refused: its copy is what is compared with the checksum.
    found = failure(lambda: Program(module))
    assert found.status == "checksum"
    assert found.message.startswith("the checksum of the code of variant test is wrong")
    program.close()
    module.close()


@pytest.mark.parametrize("copy", [False, True])
def test_mapped_code_that_changed_before_a_program_is_made_is_refused(
    copy: bool, tmp_path: Path
) -> None:
    path = tmp_path / "m.aotm"
    data = scale_module().to_bytes()
    path.write_bytes(data)
    module = Module(path, copy=copy)
    overwrite(path, code_of(data).offset, RETURN)
    if copy:  # all of the file is what it was
        program = Program(module)
        np.testing.assert_array_equal(program(X)[0], 2 * X)
        program.close()
    else:
        assert failure(lambda: Program(module)).status == "checksum"
    module.close()


def test_a_file_that_is_replaced_by_another_name_changes_nothing(tmp_path: Path) -> None:
    path, other = tmp_path / "m.aotm", tmp_path / "m.aotm.new"
    path.write_bytes(scale_module(2.0).to_bytes())
    other.write_bytes(scale_module(5.0).to_bytes())
    with opened(path) as program:
        other.replace(path)
        np.testing.assert_array_equal(program(X)[0], 2 * X)
        with opened(path) as new:
            np.testing.assert_array_equal(new(X)[0], 5 * X)


def test_a_system_without_executable_memory_says_what_to_do(tmp_path: Path) -> None:
    source = tmp_path / "forbidding.c"
    source.write_text(FORBIDDING)
    flags = ["-O1", "-fPIC", "-shared", "-Wno-pedantic"]
    library, tool = build("forbidding.so", [source], flags, libraries=["-ldl"]), build_tool()
    if library is None or tool is None:
        pytest.skip("gcc is not installed")
    path = tmp_path / "m.aotm"
    path.write_bytes(scale_module().to_bytes())
    result = subprocess.run(
        [tool, path, "--random", "--shape", "x=2x3"],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    expected = (
        "this system does not let code be loaded: permission denied (errno 13); link the module "
        "into the program (aotc package --format executable or static-library)"
    )
    assert expected in result.stderr
