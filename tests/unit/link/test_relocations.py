"""Relocations of jumps: the distance is in the instruction, and nothing else of it is changed.

The encodings are read back as the instruction sets' manuals say where the bits are.
"""

from __future__ import annotations

import struct

import pytest

from aot.errors import InternalError
from aot.link.relocations import AARCH64, RISCV

BEQ, JAL = 0x00B50063, 0x000000EF  # beq a0, a1, .; jal ra, .
AUIPC, JALR = 0x00000097, 0x000080E7  # auipc ra, 0; jalr ra, 0(ra)
NUMBERS = {kind.name: kind for kind in (*RISCV.values(), *AARCH64.values())}


def applied(name: str, words: tuple[int, ...], distance: int) -> list[int]:
    """The words of an instruction that lies in the middle of an image."""
    image = bytearray(1 << 16)
    place = 1 << 15
    struct.pack_into(f"<{len(words)}I", image, place, *words)
    NUMBERS[name].apply(image, place, place + distance)
    found = list(struct.unpack_from(f"<{len(words)}I", image, place))
    struct.pack_into(f"<{len(words)}I", image, place, *[0] * len(words))
    assert not any(image)  # nothing beside it
    return found


def signed(value: int, bits: int) -> int:
    return value - (value >> (bits - 1) << bits)


def bits(word: int, high: int, low: int) -> int:
    return word >> low & (1 << (high - low + 1)) - 1


@pytest.mark.parametrize("distance", [0, 2, 30, 32, 2048, 4094, -2, -32, -2050, -4096])
def test_branches_of_riscv(distance: int) -> None:
    (word,) = applied("R_RISCV_BRANCH", (BEQ,), distance)
    parts = bits(word, 31, 31) << 12 | bits(word, 7, 7) << 11
    parts |= bits(word, 30, 25) << 5 | bits(word, 11, 8) << 1
    assert signed(parts, 13) == distance
    assert word & 0x01FFF07F == BEQ


@pytest.mark.parametrize("distance", [0, 2, 2046, 2048, 4096, 1048574, -2, -4096, -1048576])
def test_jumps_of_riscv(distance: int) -> None:
    (word,) = applied("R_RISCV_JAL", (JAL,), distance)
    parts = bits(word, 31, 31) << 20 | bits(word, 19, 12) << 12
    parts |= bits(word, 20, 20) << 11 | bits(word, 30, 21) << 1
    assert signed(parts, 21) == distance
    assert word & 0xFFF == JAL


@pytest.mark.parametrize("distance", [0, 4, 2047, 2048, -2049, 0x12345678, -0x12345678])
def test_calls_of_riscv(distance: int) -> None:
    for name in ("R_RISCV_CALL", "R_RISCV_CALL_PLT"):
        high, low = applied(name, (AUIPC, JALR), distance)
        found = signed(bits(high, 31, 12), 20) * 4096 + signed(bits(low, 31, 20), 12)
        assert found == distance
        assert (high & 0xFFF, low & 0xFFFFF) == (AUIPC, JALR)


@pytest.mark.parametrize("distance", [0, 1, 3, 4, 1048575, -1, -1048576])
def test_adr_of_aarch64(distance: int) -> None:
    adr = 0x10000003  # adr x3, .
    (word,) = applied("R_AARCH64_ADR_PREL_LO21", (adr,), distance)
    assert signed(bits(word, 23, 5) << 2 | bits(word, 30, 29), 21) == distance
    assert word & 0x9F00001F == adr


@pytest.mark.parametrize(
    ("name", "words", "distance", "limits"),
    [
        ("R_RISCV_BRANCH", (BEQ,), 4096, "13 bits in steps of 2"),
        ("R_RISCV_BRANCH", (BEQ,), 3, "13 bits in steps of 2"),
        ("R_RISCV_JAL", (JAL,), 1048576, "21 bits in steps of 2"),
        ("R_AARCH64_ADR_PREL_LO21", (0x10000003,), 1048576, "21 bits in steps of 1"),
    ],
)
def test_what_is_too_far_is_refused(
    name: str, words: tuple[int, ...], distance: int, limits: str
) -> None:
    with pytest.raises(InternalError) as caught:
        applied(name, words, distance)
    assert str(caught.value) == f"distance {distance} does not fit into {limits}"
