"""Opening module files: where they come from, what is wrong with them, which variant is chosen."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from runtime_api import (
    CountingAllocator,
    Module,
    Program,
    aligned,
    call,
    failure,
    library,
    open_failure,
    opened,
    run_once,
)
from runtime_modules import (
    HEADER_BYTES,
    Assembler,
    ModuleFile,
    Variant,
    arena_module,
    entry,
    fbs,
    host_machine,
    pack,
    scale_module,
    stamp,
    structure_bytes_of,
    tensor,
)

from aot import loader

X = np.ones((2, 3), np.float32)
MAPPED, COPIED = 1, 2


def with_structure(file: bytes, change: Callable[[fbs.ModuleT], None]) -> bytes:
    """The file with its structure changed, in place when it keeps its size, and stamped anew."""
    size = structure_bytes_of(file)
    root = fbs.ModuleT.InitFromPackedBuf(file[HEADER_BYTES : HEADER_BYTES + size])
    change(root)
    structure = pack(root)
    rest = file[HEADER_BYTES + max(size, len(structure)) :]
    body = structure.ljust(size, b"\0")
    return stamp(file[:HEADER_BYTES] + body + rest, len(structure))


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
        f"{tmp_path}: is a directory, a module must be a regular file",
    )
    empty = tmp_path / "empty.aotm"
    empty.touch()
    found = open_failure(empty)
    assert (found.status, found.message) == (
        "truncated",
        f"{empty}: not a module: only 0 bytes",
    )


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
    assert found.message == "the module has no variants"


def _host_code() -> object:
    from runtime_modules import compile_kernels

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
    library().aot_cpu_has_feature.restype = ctypes.c_bool
    found = {name: library().aot_cpu_has_feature(name.encode()) for name in names}
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


# ---- structures that checksums don't save ----


def set_path(path: str, value: object) -> Callable[[fbs.ModuleT], None]:
    """Sets a field such as `variants.0.code.offset`."""

    def change(root: fbs.ModuleT) -> None:
        target: object = root
        *steps, last = path.split(".")
        for step in steps:
            target = target[int(step)] if step.isdigit() else getattr(target, step)
        assert hasattr(target, last)
        setattr(target, last, value)

    return change


ENTRY = "variants.0.entryPoints.0"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("variants.0.code.offset", 1 << 60, "code image: 282 bytes at offset 1152921504606846976"),
        ("variants.0.code.offset", 64, "code image: 282 bytes at offset 64 lie outside"),
        ("variants.0.code.length", (1 << 64) - 1, "code image: 18446744073709551615 bytes"),
        ("variants.0.code.alignment", 3, "is not aligned to 3, or that is no power of two"),
        ("variants.0.code.alignment", 1 << 20, "is not aligned to 1048576, or that"),
        ("variants.0.code", None, 'executable "scale": code offset 0 is outside the image'),
        ("variants.0.executables.0.codeOffset", 282, "code offset 282 is outside the image"),
        ("variants.0.executables.0.paramWords", 5, "the parameter count is not the executable's"),
        ("variants.0.wordBytes", 7, 'variant "test": parameter words of 7 bytes, 4 or 8 expected'),
        ("variants.0.arch", 8, "an enum has a value that this version doesn't know"),
        ("variants.0.device", 2, "an enum has a value that this version doesn't know"),
        ("variants.0.target", None, "Variant at byte "),
        ("variants.0.executables", None, "a required field is missing"),
        ("rodata", None, "a required field is missing"),
        ("rodata.offset", 1 << 40, "rodata: 0 bytes at offset 1099511627776 lie outside"),
        (f"{ENTRY}.inputs.0.dtype", 12, "an enum has a value"),
        (f"{ENTRY}.inputs.0.dims.0.extent", -2, 'tensor "x": the extent or bounds of axis 0'),
        (f"{ENTRY}.inputs.0.dims.0.min", -1, 'tensor "x": the extent or bounds of axis 0'),
        (f"{ENTRY}.inputs.0.dims.0.min", 65, 'tensor "x": the extent or bounds of axis 0'),
        (f"{ENTRY}.outputs.0.dims.0.max", -2, 'tensor "y": the extent or bounds of axis 0'),
        (f"{ENTRY}.program.registerCount", 3, "no such register"),
        (f"{ENTRY}.program.registerCount", 1 << 31, "more registers than the program can name"),
        (f"{ENTRY}.program.executeBlock", 0, "there must be a block of the prepare part"),
        (f"{ENTRY}.program.executeBlock", 2, "there must be a block of the prepare part"),
        (f"{ENTRY}.program.blocks", [0, 1], "word 0: the instruction crosses its block"),
        (f"{ENTRY}.program.blocks", [0, 0], "blocks are not in ascending order"),
        (f"{ENTRY}.program.blocks", [1, 40], "blocks are not in ascending order"),
        (f"{ENTRY}.program.blocks", [0, 1 << 30], "blocks are not in ascending order"),
        (f"{ENTRY}.program.code", [], "blocks are not in ascending order"),
        (f"{ENTRY}.program.inputOffsetRegisters", [1, 2], "2 offset registers for 1 inputs"),
        (f"{ENTRY}.program.inputOffsetRegisters", [99], "no such offset register"),
        (f"{ENTRY}.program.outputOffsetRegisters", [99], "no such offset register"),
    ],
)
def test_malformed_structures(path: str, value: object, message: str) -> None:
    # Pages of 64 KiB leave room for a structure that grows.
    file = replace(scale_module(), page=1 << 16).to_bytes()
    found = open_failure(with_structure(file, set_path(path, value)))
    assert found.status == "malformed"
    assert message in found.message


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("alignment", 3, "arena buffer 0: its alignment or lifetime is not valid"),
        ("alignment", 128, "arena buffer 0: its alignment or lifetime is not valid"),
        ("first", 3, "arena buffer 0: its alignment or lifetime is not valid"),
        ("offsetRegister", 1000, "no such register for a buffer's offset"),
    ],
)
def test_malformed_arena_buffers(field: str, value: int, message: str) -> None:
    file = replace(arena_module(), page=1 << 16).to_bytes()
    change = set_path(f"{ENTRY}.program.buffers.0.{field}", value)
    found = open_failure(with_structure(file, change))
    assert found.status == "malformed"
    assert message in found.message


def test_rodata_must_be_aligned() -> None:
    def change(root: fbs.ModuleT) -> None:
        root.rodata.offset += 4
        root.rodata.alignment = 4
        root.rodata.length -= 4

    found = open_failure(with_structure(arena_module().to_bytes(), change))
    assert found.message == "rodata is not aligned to 64 bytes"


def test_shared_tables_do_not_multiply() -> None:
    """A few kilobytes that would unfold to millions of tensors are refused, and quickly."""
    file = replace(scale_module(), page=1 << 16).to_bytes()
    size = structure_bytes_of(file)
    import flatbuffers

    root = fbs.ModuleT.InitFromPackedBuf(file[HEADER_BYTES : HEADER_BYTES + size])
    builder = flatbuffers.Builder(1024)
    variant = root.variants[0].Pack(builder)
    fbs.ModuleStartVariantsVector(builder, 2000)
    for _ in range(2000):
        builder.PrependUOffsetTRelative(variant)
    variants = builder.EndVector()
    rodata = root.rodata.Pack(builder)
    fbs.ModuleStart(builder)
    fbs.ModuleAddVariants(builder, variants)
    fbs.ModuleAddRodata(builder, rodata)
    builder.Finish(fbs.ModuleEnd(builder), file_identifier=b"AOTM")
    structure = bytes(builder.Output())
    rest = file[HEADER_BYTES + len(structure) :]
    allocator = CountingAllocator()
    found = open_failure(
        stamp(file[:HEADER_BYTES] + structure + rest, len(structure)), allocator=allocator
    )
    assert found.status == "malformed"
    assert "shared too often" in found.message
    assert not allocator.live


@pytest.mark.parametrize(
    ("prepare", "execute", "message"),
    [
        ([(99,)], [], "word 0: no such instruction"),
        ([("ADD", 0, 1)], [], "word 0: the instruction is too short"),
        ([("MOVE", 0, 1, 2)], [], "word 0: the instruction is too long"),
        ([("MOVE", 0, 3)], [], "word 2: no such register"),
        ([("MOVE", 1 << 31, 0)], [], "word 1: no such register"),
        ([("INPUT_DIM", 0, 1, 0)], [], "word 2: no such input"),
        ([("INPUT_DIM", 0, 0, 1)], [], "word 3: no such axis"),
        ([("OUTPUT_DIM", 1, 0, 0)], [], "word 1: no such output"),
        ([("OUTPUT_DIM", 0, 1, 0)], [], "word 2: no such axis"),
        ([("CHECK", 0, 1)], [], "word 2: no such message"),
        ([("BUFFER", 1, 0)], [], "word 1: no such arena buffer"),
        ([("JUMP", 9)], [], "word 1: no such block in this part"),
        ([("JUMP", 1)], [], "word 1: no such block in this part"),
        ([], [("JUMP", 0)], "word 2: no such block in this part"),
        ([], [("BRANCH", 0, 1, 0)], "word 4: no such block in this part"),
        ([], [("OUTPUT_DIM", 0, 0, 0)], "word 1: the instruction is not allowed in this part"),
        ([], [("BUFFER", 0, 0)], "word 1: the instruction is not allowed in this part"),
        ([("LOAD", 0, 0, 0, 6)], [], "word 0: the instruction is not allowed in this part"),
        ([("COPY", 1, 0, 1, 0, 0)], [], "word 0: the instruction is not allowed in this part"),
        ([("FILL", 1, 0, 0, 0)], [], "word 0: the instruction is not allowed in this part"),
        ([("DISPATCH", 0, 0, 0, 0, 0)], [], "word 0: the instruction is not allowed in this part"),
        ([], [("LOAD", 0, 4, 0, 6)], "word 3: no such buffer class"),
        ([], [("LOAD", 0, 0, 0, 0)], "word 5: not an integer dtype"),
        ([], [("LOAD", 0, 0, 0, 1)], "word 5: not an integer dtype"),
        ([], [("LOAD", 0, 0, 0, 2)], "word 5: not an integer dtype"),
        ([], [("LOAD", 0, 0, 0, 12)], "word 5: not an integer dtype"),
        ([], [("COPY", 0, 0, 1, 0, 0)], "word 2: this buffer class can't be written"),
        ([], [("COPY", 2, 0, 1, 0, 0)], "word 2: this buffer class can't be written"),
        ([], [("FILL", 2, 0, 0, 0)], "word 2: this buffer class can't be written"),
        ([], [("FILL", 9, 0, 0, 0)], "word 2: this buffer class can't be written"),
        ([], [("DISPATCH", 1, 0, 0, 0, 0)], "word 2: no such executable"),
        ([], [("DISPATCH", 0, 0, 0, 0)], "word 1: the parameter count is not the executable's"),
        ([], [("DISPATCH", 0, 0, 0, 0, 9)], "word 6: no such register"),
        ([("RETURN",), ("NOP",)], [], "word 1: an instruction follows the end of its block"),
    ],
)
def test_malformed_programs(
    prepare: list[tuple[object, ...]], execute: list[tuple[object, ...]], message: str
) -> None:
    asm = Assembler()
    asm._registers = 3

    def emit(instructions: list[tuple[object, ...]]) -> None:
        for name, *operands in instructions:
            if isinstance(name, str):
                asm.emit(name, *operands)  # type: ignore[arg-type]
            else:
                asm.words.append(int(name) | 1 << 8)  # type: ignore[call-overload]
        if not instructions or instructions[-1][0] not in ("RETURN", "JUMP", "BRANCH"):
            asm.emit("RETURN")

    asm.block()
    emit(prepare)
    asm.execute()
    emit(execute)
    program = asm.program(messages=["m"], buffers=[fbs.ArenaBufferT(0, 0, 0, 64)])
    variant = Variant(
        [entry(program, [tensor("x", "u8", 2)], [tensor("y", "u8", 2)])], kernels=("trace",)
    )
    found = open_failure(ModuleFile([variant]).to_bytes())
    assert found.status == "malformed"
    assert found.message == f'program of entry point "main", {message}'


def test_a_block_without_an_end() -> None:
    asm = Assembler()
    asm.block()
    asm.emit("NOP")
    asm.execute()
    asm.emit("RETURN")
    file = ModuleFile([Variant([entry(asm.program())])]).to_bytes()
    found = open_failure(file)
    assert found.message == 'program of entry point "main", word 0: the block has no terminator'


def test_a_long_message_is_cut_off() -> None:
    asm = Assembler()
    asm.block()
    asm.emit("CHECK", asm.register(), 0)
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    file = ModuleFile([Variant([entry(asm.program(messages=["m" * 2000]))])]).to_bytes()
    found = failure(lambda: run_once(file))
    assert found.status == "check"
    assert found.message == "m" * 507
