"""What a module has, listed without a program of it (aot/contents.h), and what a later format adds:
features by name, flags of the header, fields behind those that are known.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xxhash

from aot.errors import CompileError
from aot.link.image import Device
from aot.link.reader import read_module
from aot.runtime import tensors
from tests.support.module_rules import whole_module
from tests.support.runtime_api import Failed, Module, call, failure, library, opened
from tests.support.runtime_modules import (
    HEADER,
    HEADER_BYTES,
    ModuleFile,
    fbs,
    scale_module,
    stamp,
    structure_bytes_of,
    with_structure,
)

X = np.ones((2, 3), np.float32)
NEWER = "sparse-tables"


class VariantInfo(tensors.Sized):
    """aot_variant_info_t."""

    _fields_ = (
        ("target", ctypes.c_char_p),
        ("device", ctypes.c_char_p),
        ("arch", ctypes.c_char_p),
        ("host", ctypes.c_char_p),
        ("features", ctypes.POINTER(ctypes.c_char_p)),
        ("feature_count", ctypes.c_uint32),
        ("limit_count", ctypes.c_uint32),
        ("entry_count", ctypes.c_uint32),
        ("executable_count", ctypes.c_uint32),
        ("code_bytes", ctypes.c_uint64),
        ("unknown_feature", ctypes.c_char_p),
    )


class EntryInfo(tensors.Sized):
    """aot_entry_info_t."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("input_count", ctypes.c_uint32),
        ("output_count", ctypes.c_uint32),
        ("state_count", ctypes.c_uint32),
        ("state_bytes", ctypes.c_uint64),
        ("arena_bound_bytes", ctypes.c_uint64),
    )


def text(name: str, *arguments: Any) -> str | None:
    """What a function returns that gives a text, or None."""
    function = getattr(library(), name)
    function.restype = ctypes.c_char_p
    found = function(*arguments)
    return None if found is None else found.decode()


def infos(module: Module, kind: str, variant: int, entry: int) -> list[tensors.TensorInfo]:
    """Inputs, outputs or states."""
    function = getattr(library(), f"aot_module_{kind}_info")
    function.restype = ctypes.POINTER(tensors.CTensorInfo)
    function.argtypes = (ctypes.c_void_p, *[ctypes.c_size_t] * 3)
    found = []
    while pointer := function(module.handle, variant, entry, len(found)):
        found.append(tensors.tensor_info(pointer.contents))
    return found


def variant_of(module: Module, index: int) -> VariantInfo:
    """aot_module_get_variant."""
    info = VariantInfo()
    call("aot_module_get_variant", module.handle, ctypes.c_size_t(index), out=info)
    return info


def entry_of(module: Module, variant: int, index: int) -> EntryInfo:
    """aot_module_get_entry."""
    info = EntryInfo()
    numbers = (ctypes.c_size_t(variant), ctypes.c_size_t(index))
    call("aot_module_get_entry", module.handle, *numbers, out=info)
    return info


def test_the_contents_are_those_that_python_reads() -> None:
    data = whole_module()
    image = read_module(data)
    module = Module(data)
    assert library().aot_module_variant_count(module.handle) == len(image.variants)
    for v, variant in enumerate(image.variants):
        info = variant_of(module, v)
        assert (info.target.decode(), info.device.decode()) == (
            variant.target,
            variant.device.name.lower(),
        )
        # This build has no driver for GPUs, and does not read what the host of one is.
        assert (info.arch != b"") == (variant.device is Device.CPU)
        assert info.unknown_feature == b""
        assert info.feature_count == len(variant.features)
        assert [f.decode() for f in info.features[: info.feature_count]] == list(variant.features)
        shaders = sum(len(s) for e in variant.executables for s in e.shaders)
        assert info.code_bytes == len(variant.code) + shaders
        assert info.executable_count == len(variant.executables)
        limits = []
        for number in range(info.limit_count):
            name, value = ctypes.c_char_p(), ctypes.c_uint64()
            numbers = (ctypes.c_size_t(v), ctypes.c_size_t(number))
            error_and_name = (None, ctypes.byref(name), ctypes.byref(value))
            assert library().aot_module_get_limit(module.handle, *numbers, *error_and_name) == 0
            limits.append(((name.value or b"").decode(), value.value))
        assert tuple(limits) == variant.limits
        assert info.entry_count == len(variant.entry_points)
        for e, entry in enumerate(variant.entry_points):
            found = entry_of(module, v, e)
            assert found.name.decode() == entry.name
            for kind in ("input", "output", "state"):
                expected = getattr(entry, f"{kind}s")
                assert getattr(found, f"{kind}_count") == len(expected)
                listed = infos(module, kind, v, e)
                assert [i.name for i in listed] == [i.name for i in expected]
                assert [len(i.dims) for i in listed] == [len(i.dims) for i in expected]
            assert found.state_bytes == entry.program.state_bytes
    module.close()


def test_the_signature_is_that_of_a_program() -> None:
    data = scale_module().to_bytes()
    with opened(data) as program:
        for kind in ("input", "output"):
            function = getattr(library(), f"aot_program_{kind}_info")
            own = tensors.tensor_info(function(program.handle, 0).contents)
            assert infos(program.module, kind, 0, 0) == [own]


def test_metadata() -> None:
    module = Module(whole_module())
    count = library().aot_module_metadata_count
    count.restype = ctypes.c_size_t
    keys = [
        text("aot_module_metadata_key", module.handle, ctypes.c_size_t(n))
        for n in range(count(module.handle))
    ]
    assert keys == ["author", "licence"]
    values = [text("aot_module_metadata_value", module.handle, ctypes.c_size_t(n)) for n in (0, 1)]
    assert values == ["nobody", ""]
    assert text("aot_module_find_metadata", module.handle, b"author") == "nobody"
    assert text("aot_module_find_metadata", module.handle, b"licence") == ""
    assert text("aot_module_find_metadata", module.handle, b"year") is None
    assert text("aot_module_metadata_key", module.handle, ctypes.c_size_t(2)) is None
    module.close()


def test_what_is_not_there() -> None:
    module = Module(scale_module().to_bytes())
    assert failure(lambda: variant_of(module, 1)).message == "there is no variant 1"
    assert failure(lambda: entry_of(module, 1, 0)).message == "there is no variant 1"
    assert failure(lambda: entry_of(module, 0, 7)).message == "there is no entry point 7"
    assert infos(module, "state", 0, 0) == []
    assert infos(module, "input", 3, 0) == []
    module.close()


# ---- what a later format adds ----


def of_later_version(file: ModuleFile, **fields: list[str]) -> bytes:
    """The module with what it, or each of its variants, requires."""

    def change(root: fbs.ModuleT) -> None:
        root.requires = fields.get("module")
        for variant in root.variants:
            variant.requires = fields.get("variant")

    return with_structure(file.to_bytes(), change)


def test_a_module_of_a_later_version_is_refused_by_the_feature() -> None:
    data = of_later_version(scale_module(), module=[NEWER, "another"])
    found = failure(lambda: Module(data))
    assert found.status == "version"
    assert found.message == f'the module needs "{NEWER}", which runtime 0.0.0 does not know'
    with pytest.raises(CompileError, match=f'the module needs "{NEWER}", which this aotc'):
        read_module(data)


def test_what_a_later_version_put_behind_the_feature_is_not_read() -> None:
    """An instruction, a device or an enum that is not known: the feature's name is what is said."""

    def change(root: fbs.ModuleT) -> None:
        root.requires = [NEWER]
        root.variants[0].device = 200
        root.variants[0].entryPoints[0].program.code[0] = 250 | 1 << 8

    data = with_structure(scale_module().to_bytes(), change)
    assert failure(lambda: Module(data)).status == "version"


def test_a_variant_of_a_later_version_is_passed_over() -> None:
    """The one behind it runs; the program and the list say why not the first."""
    file = scale_module()
    known = file.variants[0]
    both = replace(file, variants=[replace(known, target="later"), known])

    def change(root: fbs.ModuleT) -> None:
        first = root.variants[0]
        first.requires = [NEWER]
        first.device, first.arch, first.wordBytes = 77, 99, 3
        first.entryPoints[0].program.code[0] = 250 | 1 << 8

    data = with_structure(both.to_bytes(), change)
    why = f'it needs "{NEWER}", which runtime 0.0.0 does not know'
    with opened(data) as program:
        np.testing.assert_array_equal(program(X)[0], 2 * X)
        assert program.info().variant == 1
        assert program.info().skipped.decode() == f"later: {why}"
        info = variant_of(program.module, 0)
        assert (info.target, info.device) == (b"later", b"")
        assert (info.entry_count, info.executable_count, info.code_bytes) == (0, 0, 0)
        assert info.unknown_feature == NEWER.encode()
        call("aot_module_verify_segments", program.module.handle)
        with pytest.raises(Failed, match="does not know") as caught:
            call("aot_module_check_variant", program.module.handle, ctypes.c_size_t(0))
        assert caught.value.status == "unsupported"
    with pytest.raises(CompileError, match=f'the variant needs "{NEWER}", which this aotc'):
        read_module(data)


def test_a_module_of_nothing_but_later_variants_says_so() -> None:
    data = of_later_version(scale_module(), variant=[NEWER])
    with pytest.raises(Failed) as caught, opened(data):
        pass
    assert caught.value.status == "unsupported"
    assert f'test: it needs "{NEWER}"' in caught.value.message


@pytest.mark.parametrize("place", [40, 48])
def test_flags_of_the_header_that_are_not_known(place: int) -> None:
    data = bytearray(scale_module().to_bytes())
    struct.pack_into("<Q", data, place, 1 << 40)
    struct.pack_into("<Q", data, HEADER.size, xxhash.xxh64_intdigest(bytes(data[: HEADER.size])))
    found = failure(lambda: Module(bytes(data)))
    assert found.status == "version"
    expected = "the file header has the flags 10000000000, which"
    assert found.message == f"{expected} runtime 0.0.0 does not know"
    with pytest.raises(CompileError, match=expected):
        read_module(bytes(data))


def test_fields_behind_those_that_are_known_are_ignored() -> None:
    """A table may have fields of a later version that nobody has to understand."""

    def change(root: fbs.ModuleT) -> None:
        root.producer = "tests" + "x" * 200  # room for a vtable, which names one field more

    with_room = with_structure(scale_module().to_bytes(), change)
    structure = bytearray(with_room[64 : 64 + structure_bytes_of(with_room)])
    root = struct.unpack_from("<I", structure, 0)[0]
    at = structure.index(b"x" * 200)
    at += at % 2
    old = root - struct.unpack_from("<i", structure, root)[0]
    own_length = struct.unpack_from("<H", structure, old)[0]
    longer = bytes(structure[old : old + own_length]).ljust(4 + 2 * 11, b"\0")
    longer = struct.pack("<H", len(longer) + 2) + longer[2:] + struct.pack("<H", 4)
    structure[at : at + len(longer)] = longer
    struct.pack_into("<i", structure, root, root - at)
    body = with_room[:HEADER_BYTES] + bytes(structure) + with_room[HEADER_BYTES + len(structure) :]
    with opened(stamp(body, len(structure))) as program:
        np.testing.assert_array_equal(program(X)[0], 2 * X)
