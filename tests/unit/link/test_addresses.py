"""Constants' addresses in programs: found, moved, and copies of splats turned into fills."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aot
from aot.analysis.memory.storage import ARENA, CONSTANTS, OUTPUTS
from aot.link.addresses import address_words, addresses, fill_from_splats, move_constants
from aot.link.image import ProgramImage
from aot.link.notes import decode_notes
from aot.link.program import Instruction, constant_value, decode, encode, encode_constant
from aot.link.rodata import ADDRESSES, RodataPool


def program(*parts: tuple[int, ...]) -> ProgramImage:
    return ProgramImage(16, tuple(w for part in parts for w in part), (0,), 1)


def shown(made: ProgramImage) -> list[str]:
    return [f"{i.name} {' '.join(map(str, i.operands))}".strip() for i in decode(made.code)]


def constants(made: ProgramImage) -> dict[int, int]:
    """What each register is set to."""
    found = [i for i in decode(made.code) if i.name == "CONST"]
    return {i.operands[0]: constant_value(i.operands[1], i.operands[2]) for i in found}


def test_addresses_are_told_from_all_other_numbers() -> None:
    made = program(
        encode_constant(0, ADDRESSES - 1),
        encode_constant(1, ADDRESSES),
        encode_constant(2, -1),
        encode_constant(3, ADDRESSES + 100),
    )
    assert address_words(made) == (4, 12)
    assert list(addresses(made)) == [ADDRESSES, ADDRESSES + 100]
    moved = move_constants(made, (4, 12), lambda address: address - ADDRESSES + 7)
    assert constants(moved) == {0: ADDRESSES - 1, 1: 7, 2: -1, 3: 107}
    assert address_words(moved) == ()


@pytest.mark.parametrize("at", [-1, 1, 4, 5, 100])
def test_only_a_const_is_moved(at: int) -> None:
    made = program(encode_constant(0, 1), encode("RETURN"))
    with pytest.raises(ValueError, match=f"word {at} is not a CONST|opcode|length"):
        move_constants(made, (at,), lambda value: value)


def copying(data: bytes, distance: int, *more: tuple[int, ...]) -> tuple[ProgramImage, RodataPool]:
    """r0 = a constant, r1 = where to, r2 = how much; copies r0 to an output, then `more`."""
    pool = RodataPool()
    address = pool.add(data)
    made = program(
        encode_constant(0, address + distance),
        encode_constant(1, 0),
        encode_constant(2, 8),
        encode("COPY", OUTPUTS, 1, CONSTANTS, 0, 2),
        *more,
        encode("RETURN"),
    )
    return fill_from_splats(made, pool), pool


PATTERN = 0x04030201
SPLAT = b"\x01\x02\x03\x04" * 5


@pytest.mark.parametrize(
    ("data", "distance", "pattern"),
    [
        (bytes(400), 0, 0),
        (SPLAT, 0, PATTERN),
        (SPLAT, 8, PATTERN),
        (SPLAT, 5, 0x01040302),  # it begins inside the pattern
        (SPLAT[:18], 0, PATTERN),  # and may end inside it
        (b"\x07" * 9, 0, 0x07070707),
        (b"ab" + SPLAT, 2, PATTERN),  # what stands before is not copied
    ],
)
def test_a_copy_of_a_splat_is_a_fill(data: bytes, distance: int, pattern: int) -> None:
    made, pool = copying(data, distance)
    assert shown(made)[3:] == [f"FILL {OUTPUTS} 1 2 {pattern}", "NOP", "RETURN"]
    assert list(addresses(made)) == []  # nothing reads the constant any more
    placed = pool.place(addresses(made))
    assert (placed.data, placed.bytes.filled) == (b"", len(data))


@pytest.mark.parametrize("data", [SPLAT + b"\x09", b"\x01" + bytes(99), b"\x01\x02\x03"])
def test_a_copy_of_anything_else_stays(data: bytes) -> None:
    made, pool = copying(data, 0)
    assert shown(made)[3:] == [f"COPY {OUTPUTS} 1 {CONSTANTS} 0 2", "RETURN"]
    assert pool.place(addresses(made)).data == data


def test_a_splat_that_something_else_reads_is_stored() -> None:
    """A dispatch, or an instruction that computes with the address."""
    for more in (
        encode("DISPATCH", 0, 1, 1, 1, 0),
        encode("ADD", 5, 0, 2),
        encode("COPY", ARENA, 1, CONSTANTS, 5, 2),
    ):
        made, pool = copying(SPLAT, 0, encode("MOVE", 5, 0), more)
        assert f"FILL {OUTPUTS} 1 2 {PATTERN}" in shown(made)
        assert pool.place(addresses(made)).data == SPLAT


def test_a_register_that_is_set_twice_is_no_splat() -> None:
    made, _ = copying(SPLAT, 0, encode_constant(0, 5))
    assert shown(made)[3] == f"COPY {OUTPUTS} 1 {CONSTANTS} 0 2"


def test_no_word_changes_its_place() -> None:
    splat, _ = copying(SPLAT, 0)
    other, _ = copying(SPLAT + b"\x09", 0)
    assert len(splat.code) == len(other.code)
    assert splat.code[-1:] == other.code[-1:] == encode("RETURN")


# Through the compiler and the runtime ----------------------------------------------------------


def instructions(module: aot.CompiledModule) -> list[Instruction]:
    return list(decode(module.image.variants[0].entry_points[0].program.code))


def constant_outputs(**arrays: Any) -> aot.CompiledModule:
    b = aot.builder.Builder()
    x = b.input("x", "f32[N]")
    b.output("y", b.op("relu", x))
    for name, array in arrays.items():
        b.output(name, b.constant(array))
    return aot.compile(b.module())


def test_outputs_that_are_constants() -> None:
    given = {
        "zeros": np.zeros((40, 50), np.float32),
        "sevens": np.full(33, 7, np.int16),
        "bytes": np.full(13, 200, np.uint8),
        "doubles": np.full(5, 1.5, np.float64),  # eight bytes are no pattern
        "ramp": np.arange(100, dtype=np.int32),
    }
    module = constant_outputs(**given)
    names = [i.name for i in instructions(module)]
    assert (names.count("FILL"), names.count("COPY")) == (3, 2)
    with aot.load(module) as program:
        results = program({"x": np.ones(3, np.float32)})
    for name, array in given.items():
        assert results[name].dtype == array.dtype
        np.testing.assert_array_equal(results[name], array)
    rodata = module.stats["rodata"]
    filled = sum(given[name].nbytes for name in ("zeros", "sevens", "bytes"))
    assert rodata["bytes_filled"] == filled
    assert len(module.image.rodata) == 40 + 24 + 400  # doubles, a gap, the ramp


def test_the_notes_say_where_offsets_stand() -> None:
    weights = np.random.default_rng(1).standard_normal((2, 16, 16)).astype(np.float32)
    b = aot.builder.Builder()
    x = b.input("x", "f32[N, 16]")
    for each in weights:
        x = b.op("relu", b.op("matmul", x, b.constant(each)))
    b.output("y", x)
    module = aot.compile(b.module())
    (entry,) = module.image.variants[0].entry_points
    ((words,),) = [v.address_words for v in decode_notes(module.image.notes).variants]
    by_word = {i.at: i for i in decode(entry.program.code)}
    offsets = [constant_value(*by_word[at].operands[1:]) for at in words]
    assert sorted(offsets) == [s.offset for s in module.image.rodata_segments]
