"""The module file: round trip, layout, checks on both sides, and writing whole or not at all."""

from __future__ import annotations

import itertools
import os
import random
import re
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash

from aot.errors import CompileError, InternalError, one_line
from aot.ir.dims import symbol
from aot.link.module import (
    Arch,
    DimInfo,
    ExecutableImage,
    HostImage,
    ModuleImage,
    module_bytes,
    read_module,
    write_module,
)
from aot.link.program import (
    SIGNATURES,
    Opcode,
    constant_value,
    decode,
    encode,
    encode_constant,
)
from aot.link.rodata import Pieces
from tests.support.module_images import small_image, small_program
from tests.support.paths import ROOT

SCHEMA = ROOT / "runtime" / "module.fbs"


def test_round_trip() -> None:
    image = small_image()
    data = module_bytes(image)
    assert read_module(data) == replace(
        image, variants=(image.variants[0], replace(image.variants[1], page_bytes=4096))
    )
    assert module_bytes(image) == data


def test_header_and_segments_lie_where_abi_h_says() -> None:
    image = small_image()
    data = module_bytes(image)
    magic, version, size, offset, length, checksum, r0, r1, own = struct.unpack_from("<4sI7Q", data)
    assert (magic, version, size, offset, r0, r1) == (b"AOTM", 0, len(data), 64, 0, 0)
    assert checksum == xxhash.xxh64_intdigest(data[64 : 64 + length])
    assert own == xxhash.xxh64_intdigest(data[:56])
    code = image.variants[0].code
    assert data.find(code) == 16384  # page aligned, and last: only the file's end shares its page
    assert data.endswith(code)
    assert data.find(image.rodata) % 64 == 0
    spirv = image.variants[1].executables[0].spirv
    assert spirv is not None
    assert data.count(spirv) == 1  # equal shaders are one segment


def _of_executable(number: int, **change: Any) -> Callable[[ModuleImage], ModuleImage]:
    def damaged(image: ModuleImage) -> ModuleImage:
        variants = list(image.variants)
        first, *rest = variants[number].executables
        variants[number] = replace(variants[number], executables=(replace(first, **change), *rest))
        return replace(image, variants=tuple(variants))

    return damaged


def _of_variant(number: int, **change: Any) -> Callable[[ModuleImage], ModuleImage]:
    def damaged(image: ModuleImage) -> ModuleImage:
        variants = list(image.variants)
        variants[number] = replace(variants[number], **change)
        return replace(image, variants=tuple(variants))

    return damaged


HOST = HostImage("x86-64-v3", Arch.X86_64, 8)
CPU, GPU = "variant 'x86-64-v3'", "variant 'vulkan11'"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda image: replace(image, variants=()), "module has no variant"),
        (
            lambda image: replace(
                image, rodata_segments=(replace(image.rodata_segments[0], offset=1 << 30),)
            ),
            "rodata segment ",
        ),
        (_of_executable(1, spirv=b""), f"{GPU}, executable 'add': no SPIR-V, or not whole words"),
        (
            _of_executable(1, texel_spirv=b"abc"),
            f"{GPU}, executable 'add': SPIR-V of texels is not whole words",
        ),
        (
            _of_executable(0, spirv=b"abcd"),
            f"{CPU}, executable 'add': SPIR-V in a CPU variant",
        ),
        (_of_variant(0, host=HOST), f"{CPU}: on Device.CPU with a host of "),
        (
            _of_variant(1, host=replace(HOST, word_bytes=2)),
            f"{GPU}: on Device.VULKAN with a host of Arch.X86_64, whose "
            "parameter words have 2 bytes",
        ),
    ],
)
def test_an_image_that_no_runtime_takes_is_not_written(
    damage: Callable[[ModuleImage], ModuleImage], message: str
) -> None:
    with pytest.raises(InternalError) as caught:
        module_bytes(damage(small_image()))
    assert str(caught.value).startswith(message)


def test_dim_info_keeps_bounds() -> None:
    n = symbol("N")
    assert DimInfo.of(3) == DimInfo(extent=3)
    assert DimInfo.of(2 * n, {"N": (1, 4)}) == DimInfo(None, 2, 8, "2*N")
    assert DimInfo.of(n - 1) == DimInfo(None, 0, None, "N - 1")
    assert str(DimInfo.of(n // 2)) == "N//2"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"register_count": 3}, "an offset register is not below 3"),
        ({"execute_block": 0}, "execute starts at block 0"),
        ({"blocks": (0, 1)}, "word 0: the instruction crosses its block"),
        ({"blocks": (1, 2)}, "word 1: blocks are not in ascending order from word 0"),
        ({"buffers": ()}, "word 17: no such arena buffer"),
        ({"code": (0xFF | 1 << 8,), "blocks": (0, 0)}, "word 0: blocks are not in ascending order"),
        ({"code": (0xFF | 1 << 8, 27 | 1 << 8), "blocks": (0, 1)}, "word 0: no such instruction"),
        ({"input_offset_registers": (1, 2)}, "2 offset registers for 1"),
    ],
)
def test_a_bad_program_is_never_written(change: dict[str, object], message: str) -> None:
    image = small_image()
    variant = image.variants[0]
    entry = variant.entry_points[0]
    bad = replace(entry, program=replace(entry.program, **change))
    with pytest.raises(InternalError, match=message):
        module_bytes(replace(image, variants=(replace(variant, entry_points=(bad,)),)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"word_bytes": 2}, "parameter words of 2 bytes"),
        ({"page_bytes": 1000}, "pages of 1000 bytes"),
        ({"arch": Arch.NONE}, "device Device.CPU with arch Arch.NONE"),
        ({"code": b""}, "code offset 1 is outside the image"),
        (
            {"executables": (ExecutableImage("add", 3),)},
            "the parameter count is not the executable's",
        ),
        ({"executables": ()}, "no such executable"),
        ({"entry_points": ()}, "entry points .* are none or not distinct"),
    ],
)
def test_a_bad_variant_is_never_written(change: dict[str, object], message: str) -> None:
    image = small_image()
    bad = replace(image.variants[0], **change)
    with pytest.raises(InternalError, match=f"variant 'x86-64-v3'.*{message}"):
        module_bytes(replace(image, variants=(bad,)))


def test_every_truncation_is_reported() -> None:
    data = module_bytes(small_image())
    cuts = [*range(0, 3000), *range(3000, len(data), 997), len(data) - 1]
    for length in cuts:
        with pytest.raises(CompileError, match=r"^module: (truncated|not a module)"):
            read_module(data[:length])


def test_flips_are_found() -> None:
    data = module_bytes(small_image())
    generator = random.Random(1)
    structure_end = 64 + struct.unpack_from("<Q", data, 24)[0]
    code = data.find(small_image().variants[0].code)
    rodata = data.find(small_image().rodata)
    places = [*range(structure_end), *range(code, len(data)), *range(rodata, rodata + 70)]
    for at in places:
        damaged = bytearray(data)
        damaged[at] ^= 1 << generator.randrange(8)
        with pytest.raises(CompileError, match="^module: "):
            read_module(bytes(damaged))


def test_flips_behind_right_checksums_give_one_kind_of_error() -> None:
    """What the checksum would find is let through: the reader itself must hold."""
    data = module_bytes(small_image())
    length = struct.unpack_from("<Q", data, 24)[0]
    generator = random.Random(2)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(data)
        damaged[64 + generator.randrange(length)] ^= 1 << generator.randrange(8)
        struct.pack_into("<Q", damaged, 32, xxhash.xxh64_intdigest(damaged[64 : 64 + length]))
        struct.pack_into("<Q", damaged, 56, xxhash.xxh64_intdigest(damaged[:56]))
        try:
            read_module(bytes(damaged))
        except CompileError:
            refused += 1
    assert refused > 500


def test_rodata_is_verified_on_request_only() -> None:
    image = small_image()
    data = bytearray(module_bytes(image))
    data[data.find(image.rodata) + 3] ^= 1
    with pytest.raises(CompileError, match="the checksum of rodata segment 0 is wrong"):
        read_module(bytes(data))
    assert read_module(bytes(data), verify_rodata=False).variants[0] == image.variants[0]


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x07" * 100)
    with pytest.raises(CompileError, match="model.onnx: not a module: it does not start with"):
        read_module(path)
    with pytest.raises(CompileError, match=r"cannot read .*absent\.aotm: no such file"):
        read_module(tmp_path / "absent.aotm")


# ---- writing ----


def test_write_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "m.aotm"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_module(small_image(), path)
    assert path.read_bytes() == module_bytes(small_image())
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["m.aotm"]


def test_a_new_file_gets_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_module(small_image(), tmp_path / "m.aotm")
    finally:
        os.umask(before)
    assert (tmp_path / "m.aotm").stat().st_mode & 0o777 == 0o640


def test_a_link_keeps_pointing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real.aotm")
    write_module(small_image(), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real.aotm").is_file()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no/such/folder/m.aotm", "no such file or directory"),
        (".", "is a directory"),
        ("a\0b", "embedded null byte"),
        ("x" * 300, "file name too long"),
    ],
)
def test_unwritable_paths_give_one_line(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(CompileError) as caught:
        write_module(small_image(), f"{tmp_path}/{name}")
    assert str(caught.value) == one_line(f"cannot write {tmp_path}/{name}: {reason}")
    assert os.listdir(tmp_path) == []


def test_a_full_device_is_reported() -> None:
    with pytest.raises(CompileError, match="cannot write /dev/full: no space left on device"):
        write_module(small_image(), "/dev/full")


def test_a_device_is_written_and_not_replaced() -> None:
    write_module(small_image(), "/dev/null")
    assert not Path("/dev/null").is_file()


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """The kernel itself stops the write, through a limit on file sizes."""
    path = tmp_path / "m.aotm"
    path.write_bytes(b"old")
    script = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from aot.errors import CompileError\n"
        "from aot.link.module import write_module\n"
        "from tests.support.module_images import small_image\n"
        "try:\n    write_module(small_image(), sys.argv[1])\n"
        "except CompileError as error:\n    print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-B", "-c", script, path, ROOT],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"cannot write {path}: file too large\n"
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["m.aotm"]


# ---- instructions ----


def test_signatures_are_the_schema_s() -> None:
    text = SCHEMA.read_text(encoding="utf-8").split("enum Opcode")[1].split("}")[0]
    found = re.findall(r"^  ([A-Z_]+) = (\d+), *// *(.*)$", text, re.M)
    assert [(name, int(value)) for name, value, _ in found] == [(o.name, o.value) for o in Opcode]
    known = {word for signature in SIGNATURES.values() for word in signature.split()}
    for name, _, comment in found:
        words = comment.split("  ")[0].split()
        operands = list(itertools.takewhile(known.__contains__, words))
        assert " ".join(operands) == SIGNATURES[name], name


def test_decode_inverts_encode() -> None:
    code = small_program().code
    instructions = list(decode(code))
    assert [i.name for i in instructions[:3]] == ["INPUT_DIM", "OUTPUT_DIM", "CONST"]
    assert tuple(w for i in instructions for w in encode(i.name, *i.operands)) == code


@pytest.mark.parametrize("value", [0, 1, -1, 1 << 62, -(1 << 63), (1 << 63) - 1, 1 << 32])
def test_constants_are_signed_64_bit(value: int) -> None:
    (instruction,) = decode(encode_constant(7, value))
    assert instruction.operands[0] == 7
    assert constant_value(*instruction.operands[1:]) == value


def test_bad_operands_are_refused() -> None:
    with pytest.raises(InternalError, match="ADD takes 3 operands, got 2"):
        encode("ADD", 1, 2)
    with pytest.raises(InternalError, match="operand -1 of MOVE does not fit 32 bits"):
        encode("MOVE", 0, -1)
    with pytest.raises(InternalError, match="constant 9223372036854775808 does not fit 64 bits"):
        encode_constant(0, 1 << 63)
    with pytest.raises(InternalError, match="no instruction is called 'HALT'"):
        encode("HALT")


def test_a_large_file_is_read_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.aotm"
    image = small_image()
    write_module(image, path)
    monkeypatch.setattr("aot.link.reader.JOINED_BYTES", 0)
    found = read_module(path)
    assert isinstance(found.rodata, Pieces)
    assert found == image
    damaged = bytearray(path.read_bytes())
    damaged[path.read_bytes().index(b"weights")] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CompileError, match="the checksum of rodata segment 0 is wrong"):
        read_module(path)
