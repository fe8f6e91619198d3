"""Opening module files: where they come from, what is wrong with them, which variant is chosen."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from aot.runtime import loader
from tests.support.runtime_api import (
    Module,
    Program,
    aligned,
    call,
    failure,
    library,
    open_failure,
    opened,
)
from tests.support.runtime_modules import (
    HEADER,
    HEADER_BYTES,
    Assembler,
    ModuleFile,
    Variant,
    arena_module,
    entry,
    fbs,
    host_machine,
    scale_module,
    segments,
    structure_bytes_of,
    tensor,
    with_structure,
)

X = np.ones((2, 3), np.float32)
MAPPED, COPIED = 1, 2


# ---- where a module comes from ----


def test_a_path_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "module.aotm"
    path.write_bytes(scale_module().to_bytes())
    with opened(path) as program:
        np.testing.assert_array_equal(program(X)[0], 2 * X)
        assert program.info().code_mapping == MAPPED
        again = Program(program.module)  # two programs of one module share the pages
        assert again.info().code_mapping == MAPPED
        program.close()
        np.testing.assert_array_equal(again(X)[0], 2 * X)
        again.close()


def test_code_that_is_not_on_a_page_is_copied(tmp_path: Path) -> None:
    path = tmp_path / "module.aotm"
    path.write_bytes(replace(scale_module(), page=64).to_bytes())
    with opened(path) as program:
        np.testing.assert_array_equal(program(X)[0], 2 * X)
        assert program.info().code_mapping == COPIED


def test_copied_files_may_change_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "module.aotm"
    path.write_bytes(scale_module().to_bytes())
    with opened(path, copy=True) as program:
        path.write_bytes(b"")
        np.testing.assert_array_equal(program(X)[0], 2 * X)
        assert program.info().code_mapping == COPIED


def test_memory_is_borrowed_or_copied() -> None:
    file = scale_module().to_bytes()
    for copy in (False, True):
        with opened(file, copy=copy) as program:
            if copy:
                program.module.memory[:] = 0
            np.testing.assert_array_equal(program(X)[0], 2 * X)
            assert program.info().code_mapping == COPIED


def test_memory_that_is_not_aligned() -> None:
    data = aligned(b"?" + scale_module().to_bytes())[1:]
    pointer = ctypes.cast(data.ctypes.data, ctypes.c_char_p)
    handle = ctypes.c_void_p()
    arguments = ("aot_module_open_memory", pointer, len(data))
    found = failure(lambda: call(*arguments, None, out=handle))
    assert (found.status, found.message) == (
        "argument",
        "the module's memory is not aligned to 64 bytes; align it or set copy",
    )
    call(*arguments, ctypes.byref(loader._ModuleOptions(copy=True)), out=handle)
    library().aot_module_close(handle)


def fd_program(path: Path, offset: int, length: int) -> Program:
    """A program of a module inside a file; the descriptor is closed before it is made."""
    opening = Module.__new__(Module)
    opening.handle = ctypes.c_void_p()
    fd = os.open(path, os.O_RDONLY)
    try:
        sizes = (ctypes.c_uint64(offset), ctypes.c_uint64(length))
        call("aot_module_open_fd", fd, *sizes, None, out=opening.handle)
    finally:
        os.close(fd)
    return Program(opening)


@pytest.mark.parametrize(
    ("offset", "mapping"), [(0, MAPPED), (16384, MAPPED), (64, COPIED), (10, COPIED)]
)
@pytest.mark.parametrize("tail", [0, 1000])
def test_a_module_inside_another_file(tmp_path: Path, offset: int, mapping: int, tail: int) -> None:
    path = tmp_path / "package.apk"
    file = arena_module().to_bytes()
    path.write_bytes(b"z" * offset + file + b"z" * tail)
    for length in (len(file), len(file) + tail, 0):
        program = fd_program(path, offset, length)
        x = np.ones(5, np.float32)
        np.testing.assert_array_equal(program(x)[0], 2 * (x + np.arange(5, dtype=np.float32)))
        assert program.info().code_mapping == mapping
        program.close()
        program.module.close()


def write_with_hole(path: Path, file: bytes, hole: int) -> None:
    """A module whose segments lie `hole` bytes further on, behind bytes that no disk holds."""

    def move(root: fbs.ModuleT) -> None:
        for segment in segments(root):
            segment.offset += hole

    moved = with_structure(file, move)
    magic, version, file_bytes, *others = HEADER.unpack_from(moved)
    head = HEADER.pack(magic, version, file_bytes + hole, *others)
    end = HEADER_BYTES + structure_bytes_of(moved)
    with path.open("wb") as out:
        out.write(head + struct.pack("<Q", xxhash.xxh64_intdigest(head)))
        out.write(moved[HEADER_BYTES:end])
        out.seek(end + hole)
        out.write(moved[end:])


@pytest.mark.parametrize("gibibytes", [1, 2, 4, 9])
def test_modules_larger_than_32_bits_address(tmp_path: Path, gibibytes: int) -> None:
    path = tmp_path / "module.aotm"
    write_with_hole(path, arena_module().to_bytes(), gibibytes << 30)
    assert path.stat().st_size > gibibytes << 30
    x = np.ones(5, np.float32)
    with opened(path) as program:
        np.testing.assert_array_equal(program(x)[0], 2 * (x + np.arange(5, dtype=np.float32)))
        assert program.info().code_mapping == MAPPED
    os.truncate(path, path.stat().st_size - 1)
    assert open_failure(path).status == "truncated"


def test_a_part_that_the_file_does_not_have(tmp_path: Path) -> None:
    path = tmp_path / "module.aotm"
    path.write_bytes(scale_module().to_bytes())
    size = path.stat().st_size
    found = failure(lambda: fd_program(path, 64, size))
    assert found.status == "truncated"
    expected = f"truncated: {size} bytes at offset 64 of a file of {size} bytes"
    assert found.message == expected
    assert failure(lambda: fd_program(path, size, 0)).status == "truncated"
    assert failure(lambda: fd_program(path, 0, size - 1)).status == "truncated"


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    found = open_failure(tmp_path / "none.aotm")
    assert found.status == "io"
    place = tmp_path / "none.aotm"
    assert found.message == f"cannot open {place}: no such file or directory (errno 2)"
    found = open_failure(tmp_path)
    assert (found.status, found.message) == (
        "io",
        f"{tmp_path}: is a directory, expected a regular file",
    )
    empty = tmp_path / "empty.aotm"
    empty.touch()
    found = open_failure(empty)
    assert (found.status, found.message) == (
        "truncated",
        f"{empty}: not a module: only 0 bytes",
    )


def test_why_a_path_leads_to_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
        for name, why in (
            ("file/m.aotm", "a part of the path is not a directory (errno 20)"),
            ("m" * 300, "the name is too long (errno 36)"),
            ("socket", "is a socket, expected a regular file (errno 6)"),
        ):
            found = open_failure(tmp_path / name)
            assert (found.status, found.message) == ("io", f"cannot open {tmp_path / name}: {why}")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert open_failure(loop).message == f"cannot open {loop}: system error (errno 40)"
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    os.close(fd)
    sizes = (ctypes.c_uint64(0), ctypes.c_uint64(0))
    handle = ctypes.c_void_p()
    found = failure(lambda: call("aot_module_open_fd", fd, *sizes, None, out=handle))
    assert found.status == "io" and "bad file descriptor (errno 9)" in found.message


# ---- header and checksums ----


@given(st.binary(max_size=200), st.integers(0, (1 << 64) - 1))
def test_xxh64(data: bytes, seed: int) -> None:
    expected = xxhash.xxh64_intdigest(data, seed=seed)
    assert library().aot_xxh64(data, len(data), seed) == expected


def with_header(file: bytes, at: int, layout: str, value: int) -> bytes:
    """The file with a field of its header changed and the header's checksum right."""
    head = bytearray(file[:56])
    struct.pack_into(layout, head, at, value)
    return bytes(head) + struct.pack("<Q", xxhash.xxh64_intdigest(bytes(head))) + file[64:]


def test_wrong_headers() -> None:
    file = scale_module().to_bytes()
    cases = [
        (b"XOTM" + file[4:], "not_a_module", 'not a module: it does not start with "AOTM"'),
        (file[:63], "truncated", "truncated: 63 bytes of a 64-byte header"),
        (file[:-1], "truncated", f"truncated: {len(file) - 1} of {len(file)} bytes"),
        (
            with_header(file, 4, "<I", 7),
            "version",
            "the module has format version 7, this runtime reads version 0",
        ),
        (file[:8] + b"!" + file[9:], "checksum", "the file header's checksum is wrong"),
        (
            with_header(file, 24, "<Q", len(file)),
            "malformed",
            "the file header places the structure outside",
        ),
        (
            with_header(file, 16, "<Q", 128),
            "malformed",
            "the file header places the structure outside",
        ),
        (with_header(file, 32, "<Q", 0), "checksum", "the structure's checksum is wrong"),
        (file[:100] + bytes([file[100] ^ 1]) + file[101:], "checksum", "the structure's checksum"),
    ]
    for data, status, message in cases:
        found = open_failure(data)
        assert (found.status, found.message[: len(message)]) == (status, message)


def test_another_version_of_the_structure() -> None:
    found = open_failure(replace(scale_module(), version=3).to_bytes())
    assert (found.status, found.message) == (
        "version",
        "the structure has version 3, this runtime reads version 0",
    )


def test_a_flip_in_the_code_is_found_before_it_runs() -> None:
    module_file = scale_module()
    file = bytearray(module_file.to_bytes())
    file[-1] ^= 0x10
    found = open_failure(bytes(file))
    assert found.status == "checksum"
    assert found.message.startswith("the checksum of the code of variant test is wrong (")
    opening = Module(bytes(file))  # the module itself opens
    assert failure(lambda: call("aot_module_verify_segments", opening.handle)).status == "checksum"
    call("aot_module_verify_rodata", opening.handle)
    opening.close()


def test_rodata_is_verified_on_request() -> None:
    module_file = replace(arena_module(), parts=[(0, 64), (64, 1000), (1088, 2912)])
    file = bytearray(module_file.to_bytes())
    at = file.index(np.arange(1000, dtype=np.float32).tobytes())
    opening = Module(bytes(file))
    call("aot_module_verify_rodata", opening.handle)
    call("aot_module_verify_segments", opening.handle)
    opening.close()
    for flipped, where in ((70, "part 1"), (1064, "pool"), (1088, "part 2"), (3999, "part 2")):
        damaged = bytearray(file)
        damaged[at + flipped] ^= 1
        with opened(bytes(damaged)) as program:
            program(np.ones(1000, np.float32))  # wrong numbers perhaps, never a crash
            handle = program.module.handle
            for name in ("aot_module_verify_rodata", "aot_module_verify_segments"):
                found = failure(lambda name=name, handle=handle: call(name, handle))
                assert found.status == "checksum"
                assert f"the checksum of rodata {where} is wrong (" in found.message


# ---- variants and entry points ----


def two_variants(first: Variant) -> ModuleFile:
    """A module whose second variant runs here."""
    module_file = scale_module(target="second")
    return replace(module_file, variants=[first, *module_file.variants])


def test_the_first_variant_that_runs_is_chosen() -> None:
    best = scale_module(4.0, target="first").variants[0]
    with opened(two_variants(best).to_bytes()) as program:
        assert program.info().target == b"first"
        assert program.info().variant == 0
        np.testing.assert_array_equal(program(X)[0], 4 * X)


@pytest.mark.parametrize("missing", ["avx1024", "", "AVX2"])
def test_a_variant_whose_features_are_missing_is_passed_over(missing: str) -> None:
    best = scale_module(target="first", features=(missing,)).variants[0]
    with opened(two_variants(best).to_bytes()) as program:
        assert program.info().target == b"second"
        assert program.info().variant == 1
    found = open_failure(two_variants(best).to_bytes(), target=b"first")
    assert (found.status, found.message) == (
        "unsupported",
        f"no variant runs on this machine: first: needs the CPU feature {missing}",
    )


def other_machine() -> str:
    """A machine that this one is not."""
    return "riscv64"


def test_no_variant_at_all() -> None:
    code = scale_module().variants[0]
    foreign = scale_module(target="a", machine=other_machine(), code=_host_code()).variants[0]
    gpu = replace(code, target="c", device=fbs.Device.VULKAN, kernels=())
    lacking = replace(code, target="b", features=("nothing-like-it",))
    file = ModuleFile([foreign, lacking]).to_bytes()
    found = open_failure(file)
    assert (found.status, found.message) == (
        "unsupported",
        "no variant runs on this machine: a: made for riscv64; "
        "b: needs the CPU feature nothing-like-it",
    )
    found = open_failure(file, target=b"zz")
    assert (found.status, found.message) == (
        "not_found",
        "no variant for any device and target zz, the module has a (cpu), b (cpu)",
    )
    found = open_failure(file, device=2)
    assert found.message == "no variant for vulkan, the module has a (cpu), b (cpu)"
    empty = fbs.ProgramT(registerCount=0, code=[283, 283], blocks=[0, 1], executeBlock=1)
    file = ModuleFile([replace(gpu, entries=[entry(empty)])]).to_bytes()
    found = open_failure(file)
    assert found.message == "no variant runs on this machine: c: this runtime has no vulkan driver"
    found = open_failure(ModuleFile([]).to_bytes())
    assert found.message == 'module "runtime tests": Module.variants must not be empty'


def _host_code() -> object:
    from tests.support.runtime_modules import compile_kernels

    return compile_kernels(host_machine())


def test_variants_can_be_listed_and_checked() -> None:
    best = scale_module(target="first", features=("not-there",)).variants[0]
    opening = Module(two_variants(best).to_bytes())
    assert library().aot_module_variant_count(opening.handle) == 2
    assert library().aot_module_producer(opening.handle) == b"runtime tests"
    found = [library().aot_module_variant_target(opening.handle, i) for i in range(3)]
    assert found == [b"first", b"second", None]
    size = ctypes.c_size_t
    call("aot_module_check_variant", opening.handle, size(1))
    problem = failure(lambda: call("aot_module_check_variant", opening.handle, size(0)))
    assert problem.message == "needs the CPU feature not-there"
    problem = failure(lambda: call("aot_module_check_variant", opening.handle, size(2)))
    assert problem.message == "there is no variant 2"
    opening.close()


@pytest.mark.skipif(host_machine() != "x86_64", reason="the names are those of x86")
def test_cpu_features_agree_with_the_kernels_list() -> None:
    flags = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            flags = set(line.split(":")[1].split())
    # LLVM's name, and the kernel's where it differs.
    names = {
        **{name: name for name in ("avx", "avx2", "fma", "f16c", "bmi2", "sse2", "ssse3", "adx")},
        **{f"avx512{x}": f"avx512{x}" for x in ("f", "bw", "dq", "vl", "cd", "ifma")},
        **{f"avx512{x}": f"avx512_{x}" for x in ("vnni", "bf16", "vbmi2", "bitalg", "fp16")},
        **{name: name for name in ("avx512vbmi", "popcnt", "gfni", "cx16", "movbe", "sse4a")},
        "sse4.1": "sse4_1",
        "sse4.2": "sse4_2",
        "pclmul": "pclmulqdq",
        "lzcnt": "abm",
        "sse3": "pni",
        "rdrnd": "rdrand",
        "bmi": "bmi1",
        "sha": "sha_ni",
        "avxvnni": "avx_vnni",
    }
    cpu = (ctypes.c_uint32 * 8)()
    library().aot_cpu_describe(cpu)
    library().aot_cpu_has_feature.restype = ctypes.c_bool
    found = {name: library().aot_cpu_has_feature(cpu, name.encode()) for name in names}
    assert found == {name: kernel in flags for name, kernel in names.items()}
    assert any(found.values())


def test_entry_points_by_name() -> None:
    module_file = scale_module()
    variant = module_file.variants[0]
    first = variant.entries[0]
    asm = Assembler()
    asm.block()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    second = entry(asm.program(), [], [tensor("z", "u8", 5)], name="second")
    file = replace(module_file, variants=[replace(variant, entries=[first, second])]).to_bytes()
    with opened(file) as program:
        assert program.info().entry == b"main"
    with opened(file, entry=b"second") as program:
        assert program.info().entry == b"second"
        assert program()[0].shape == (5,)
    found = open_failure(file, entry=b"third")
    assert (found.status, found.message) == (
        "not_found",
        'no entry point "third", variant "test" has "main", "second"',
    )
