"""The corpus of stored modules: this build opens them, runs them, and finds what is stored of their
results. A stored file never changes; what the format gets is a file more.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from aot.link import module_fbs as fbs
from aot.link.flatbuffer import read_structure
from aot.link.module import module_bytes
from aot.link.module_schema import FIELDS
from aot.link.reader import IDENTIFIER, read_module
from aot.runtime import tensors
from tests.support.runtime_api import Module, Program, call, failure, library
from tests.support.runtime_modules import structure_bytes_of
from tests.support.stored_modules import CORPUS, FOLDER, read_runs

SUMS = FOLDER / "SHA256SUMS"
RUN = [name for name in CORPUS if read_runs(name)]
# What no file of the corpus has, and why.
ABSENT_FIELDS = {
    "Module.requires": "names what this version does not know",
    "Variant.requires": "names what this version does not know",
    "Module.version": "0, its default",
}
ABSENT_OPCODES = {
    "TO_HOST": "a GPU's with a host",
    "TO_DEVICE": "a GPU's with a host",
    "BESIDE": "a GPU's",
}


def stored(name: str) -> bytes:
    """A file of the corpus."""
    return (FOLDER / f"{name}.aotm").read_bytes()


def structure_of(data: bytes) -> fbs.ModuleT:
    """The structure of a file."""
    return read_structure(data[64 : 64 + structure_bytes_of(data)], IDENTIFIER)


@pytest.mark.parametrize("name", CORPUS)
def test_it_opens(name: str) -> None:
    module = Module(stored(name))
    call("aot_module_verify_segments", module.handle)
    image = read_module(stored(name))
    assert library().aot_module_variant_count(module.handle) == len(image.variants)
    module.close()
    assert module_bytes(image)  # it can be written, with what this version has beside


def run_all(program: Program, name: str) -> None:
    """Runs what is stored, in order, and compares."""
    count = library().aot_program_input_count(program.handle)
    find = library().aot_program_input_info
    taken = [tensors.tensor_info(find(program.handle, i).contents) for i in range(count)]
    find = library().aot_program_output_info
    count = library().aot_program_output_count(program.handle)
    given = [tensors.tensor_info(find(program.handle, i).contents).name for i in range(count)]
    for feeds, expected in read_runs(name):
        results = dict(zip(given, program(*(feeds[i.name].copy() for i in taken)), strict=True))
        assert set(results) == set(expected)
        tolerance = 2e-3 if name == "half-storage" else 1e-5
        for key, array in expected.items():
            assert results[key].dtype == array.dtype
            np.testing.assert_allclose(results[key], array, rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the code is for x86-64")
@pytest.mark.parametrize("name", RUN)
def test_it_runs(name: str) -> None:
    module = Module(stored(name))
    program = Program(module)
    module.close()
    run_all(program, name)
    program.close()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the code is for x86-64")
def test_each_variant_and_entry_point() -> None:
    for target in (b"x86-64-v2", b"x86-64-v3"):
        module = Module(stored("two-variants"))
        program = Program(module, target=target)
        run_all(program, "two-variants")
        program.close()
        module.close()
    module = Module(stored("several-entries"))
    first, second = (Program(module, entry=name) for name in (b"first", b"second"))
    run_all(first, "several-entries")
    ((feeds, expected),) = read_runs("several-entries")
    found = second(feeds["x"])[0]  # relu where the other is tanh, of the same sums
    np.testing.assert_allclose(np.tanh(found), np.maximum(expected["y"], 0), rtol=1e-5, atol=1e-6)
    first.close()
    second.close()
    module.close()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the code is for x86-64")
def test_a_check_of_a_stored_module_fails_with_its_message() -> None:
    module = Module(stored("instructions"))
    program = Program(module)
    found = failure(lambda: program(np.arange(6)))
    assert (found.status, found.message) == ("check", "6 rows are too many")
    program.close()
    module.close()


def test_stored_files_have_not_changed() -> None:
    lines = [line.split("  ") for line in SUMS.read_text().splitlines()]
    sums = {name: digest for digest, name in lines}
    assert set(sums) == {f"{name}{end}" for name in CORPUS for end in (".aotm", ".npz")}
    for name, digest in sums.items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name
    assert {path.name for path in FOLDER.iterdir()} == {*sums, SUMS.name}


def _tables(table: Any) -> Iterator[Any]:
    yield table
    for field in FIELDS[type(table).__name__.removesuffix("T")]:
        value = getattr(table, field.name)
        for each in value if isinstance(value, list) else [value]:
            if type(each).__name__.removesuffix("T") in FIELDS:
                yield from _tables(each)


def _opcodes(program: fbs.ProgramT) -> set[int]:
    found, word = set(), 0
    while word < len(program.code):
        found.add(program.code[word] & 0xFF)
        word += program.code[word] >> 8
    return found


def test_every_field_and_instruction_is_in_a_stored_module() -> None:
    """A new one needs a new file."""
    fields: set[str] = set()
    opcodes: set[int] = set()
    for name in CORPUS:
        root = structure_of(stored(name))
        for table in _tables(root):
            kind = type(table).__name__.removesuffix("T")
            for field in FIELDS[kind]:
                if getattr(table, field.name) not in (None, field.default):
                    fields.add(f"{kind}.{field.name}")
            if kind == "Program":
                opcodes |= _opcodes(table)
    vocabulary = {
        "Vocabulary",
        "ChatRole",
        "PrefixState",
    }  # a structure of its own, tested where it is read
    known = {f"{kind}.{f.name}" for kind in FIELDS if kind not in vocabulary for f in FIELDS[kind]}
    assert known - fields == set(ABSENT_FIELDS)
    names = {value: name for name, value in vars(fbs.Opcode).items() if isinstance(value, int)}
    assert {names[code] for code in set(names) - opcodes} == set(ABSENT_OPCODES)
