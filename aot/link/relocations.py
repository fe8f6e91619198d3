"""The relocations that code without external symbols can have, applied within one image.

Owns, per instruction set, which ELF relocation types are known and how each patches its place. All
are relative to the place, so an image works at any address its alignment allows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from aot.base.records import dataclass
from aot.errors import InternalError
from aot.link.wasm import MACHINE, padded

# Patches the bytes at an offset of the image with the distance or page of a target offset.
Apply = Callable[[bytearray, int, int], None]
Addend = Callable[[bytes, int], int]


@dataclass(frozen=True)
class Kind:
    """A type of relocation.

    Attributes:
        apply: writes it; gets image, place and target (symbol and addend), as offsets.
        addend: reads the addend from the place, for formats that keep it there.
        is_paired: the symbol is the place of another relocation whose target is meant.
    """

    name: str
    apply: Apply
    addend: Addend | None = None
    is_paired: bool = False


def _word(image: bytes | bytearray, at: int) -> int:
    return int(struct.unpack_from("<I", image, at)[0])


def _put(image: bytearray, at: int, value: int) -> None:
    struct.pack_into("<I", image, at, value & 0xFFFFFFFF)


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - ((value >> (bits - 1)) << bits)


def _check(value: int, bits: int, step: int = 1) -> int:
    """Returns `value` if it is a multiple of `step` and fits into `bits` signed bits; raises
    otherwise."""
    if value % step or not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise InternalError(f"distance {value} does not fit into {bits} bits in steps of {step}")
    return value


def _pc32(image: bytearray, place: int, target: int) -> None:
    _put(image, place, _check(target - place, 32))


# x86-64 -------------------------------------------------------------------------------------------

X86_64 = {2: Kind("R_X86_64_PC32", _pc32), 4: Kind("R_X86_64_PLT32", _pc32)}


# AArch64 ------------------------------------------------------------------------------------------


def _a64_field(bits: int, shift: int, step: int) -> Apply:
    """Patches a distance, counted in instruction words, into `bits` bits at `shift`."""

    def apply(image: bytearray, place: int, target: int) -> None:
        value = _check(target - place, bits + 2, step) // step
        mask = (1 << bits) - 1
        _put(image, place, _word(image, place) & ~(mask << shift) | (value & mask) << shift)

    return apply


def _a64_page(image: bytearray, place: int, target: int) -> None:
    pages = _check((target >> 12) - (place >> 12), 21)
    _a64_adr_bits(image, place, pages)


def _a64_adr(image: bytearray, place: int, target: int) -> None:
    _a64_adr_bits(image, place, _check(target - place, 21))


def _a64_adr_bits(image: bytearray, place: int, value: int) -> None:
    word = _word(image, place) & ~(3 << 29 | 0x7FFFF << 5)
    _put(image, place, word | (value & 3) << 29 | (value >> 2 & 0x7FFFF) << 5)


def _a64_low12(step: int) -> Apply:
    """Patches the offset within a page, counted in units of the access size."""

    def apply(image: bytearray, place: int, target: int) -> None:
        low = target & 0xFFF
        if low % step:
            raise InternalError(f"offset {low} is not a multiple of the access's {step} bytes")
        _put(image, place, _word(image, place) & ~(0xFFF << 10) | (low // step) << 10)

    return apply


AARCH64 = {
    261: Kind("R_AARCH64_PREL32", _pc32),
    273: Kind("R_AARCH64_LD_PREL_LO19", _a64_field(19, 5, 4)),
    274: Kind("R_AARCH64_ADR_PREL_LO21", _a64_adr),
    275: Kind("R_AARCH64_ADR_PREL_PG_HI21", _a64_page),
    277: Kind("R_AARCH64_ADD_ABS_LO12_NC", _a64_low12(1)),
    278: Kind("R_AARCH64_LDST8_ABS_LO12_NC", _a64_low12(1)),
    279: Kind("R_AARCH64_TSTBR14", _a64_field(14, 5, 4)),
    280: Kind("R_AARCH64_CONDBR19", _a64_field(19, 5, 4)),
    282: Kind("R_AARCH64_JUMP26", _a64_field(26, 0, 4)),
    283: Kind("R_AARCH64_CALL26", _a64_field(26, 0, 4)),
    284: Kind("R_AARCH64_LDST16_ABS_LO12_NC", _a64_low12(2)),
    285: Kind("R_AARCH64_LDST32_ABS_LO12_NC", _a64_low12(4)),
    286: Kind("R_AARCH64_LDST64_ABS_LO12_NC", _a64_low12(8)),
    299: Kind("R_AARCH64_LDST128_ABS_LO12_NC", _a64_low12(16)),
}


# Arm and Thumb ------------------------------------------------------------------------------------


def _arm_word_addend(image: bytes, at: int) -> int:
    return _signed(_word(image, at), 32)


def _arm_branch(image: bytearray, place: int, target: int) -> None:
    value = _check(target - place, 26, 4) >> 2
    _put(image, place, _word(image, place) & 0xFF000000 | value & 0xFFFFFF)


def _arm_branch_addend(image: bytes, at: int) -> int:
    return _signed(_word(image, at), 24) << 2


def _arm_move(shift: int) -> Apply:
    def apply(image: bytearray, place: int, target: int) -> None:
        value = (target - place) >> shift & 0xFFFF
        word = _word(image, place) & ~0xF0FFF
        _put(image, place, word | (value >> 12) << 16 | value & 0xFFF)

    return apply


def _arm_move_addend(image: bytes, at: int) -> int:
    word = _word(image, at)
    return _signed((word >> 4 & 0xF000) | word & 0xFFF, 16)


def _halves(image: bytes | bytearray, at: int) -> tuple[int, int]:
    first, second = struct.unpack_from("<HH", image, at)
    return int(first), int(second)


def _thumb_branch(image: bytearray, place: int, target: int) -> None:
    # Bit 0 of the target says that it is Thumb code, as all of it is.
    value = _check((target & ~1) - place, 25, 2)
    sign = value >> 24 & 1
    first, second = _halves(image, place)
    j1, j2 = (~(value >> 23) ^ sign) & 1, (~(value >> 22) ^ sign) & 1
    first = first & 0xF800 | sign << 10 | value >> 12 & 0x3FF
    second = second & 0xD000 | j1 << 13 | j2 << 11 | value >> 1 & 0x7FF
    struct.pack_into("<HH", image, place, first, second)


def _thumb_branch_addend(image: bytes, at: int) -> int:
    first, second = _halves(image, at)
    sign = first >> 10 & 1
    i1, i2 = ~(second >> 13 ^ sign) & 1, ~(second >> 11 ^ sign) & 1
    return _signed(
        sign << 24 | i1 << 23 | i2 << 22 | (first & 0x3FF) << 12 | (second & 0x7FF) << 1, 25
    )


def _thumb_move(shift: int) -> Apply:
    def apply(image: bytearray, place: int, target: int) -> None:
        value = (target - place) >> shift & 0xFFFF
        first, second = _halves(image, place)
        first = first & 0xFBF0 | value >> 12 | (value >> 11 & 1) << 10
        second = second & 0x8F00 | (value >> 8 & 7) << 12 | value & 0xFF
        struct.pack_into("<HH", image, place, first, second)

    return apply


def _thumb_move_addend(image: bytes, at: int) -> int:
    first, second = _halves(image, at)
    return _signed(
        (first & 0xF) << 12 | (first >> 10 & 1) << 11 | (second >> 12 & 7) << 8 | second & 0xFF, 16
    )


ARM = {
    3: Kind("R_ARM_REL32", _pc32, _arm_word_addend),
    10: Kind("R_ARM_THM_CALL", _thumb_branch, _thumb_branch_addend),
    28: Kind("R_ARM_CALL", _arm_branch, _arm_branch_addend),
    29: Kind("R_ARM_JUMP24", _arm_branch, _arm_branch_addend),
    30: Kind("R_ARM_THM_JUMP24", _thumb_branch, _thumb_branch_addend),
    45: Kind("R_ARM_MOVW_PREL_NC", _arm_move(0), _arm_move_addend),
    46: Kind("R_ARM_MOVT_PREL", _arm_move(16), _arm_move_addend),
    49: Kind("R_ARM_THM_MOVW_PREL_NC", _thumb_move(0), _thumb_move_addend),
    50: Kind("R_ARM_THM_MOVT_PREL", _thumb_move(16), _thumb_move_addend),
}


# RISC-V -------------------------------------------------------------------------------------------


def _riscv_high20(image: bytearray, place: int, target: int) -> None:
    distance = _check(target - place, 32)
    high = (distance + 0x800) >> 12 & 0xFFFFF
    _put(image, place, _word(image, place) & 0xFFF | high << 12)


def _riscv_low12_i(image: bytearray, place: int, distance: int) -> None:
    _put(image, place, _word(image, place) & 0xFFFFF | (distance & 0xFFF) << 20)


def _riscv_low12_s(image: bytearray, place: int, distance: int) -> None:
    word = _word(image, place) & ~(0xFE000000 | 0xF80)
    _put(image, place, word | (distance >> 5 & 0x7F) << 25 | (distance & 0x1F) << 7)


def _riscv_call(image: bytearray, place: int, target: int) -> None:
    _riscv_high20(image, place, target)
    _riscv_low12_i(image, place + 4, target - place)


def _riscv_branch(image: bytearray, place: int, target: int) -> None:
    v = _check(target - place, 13, 2)
    word = _word(image, place) & ~0xFE000F80
    _put(
        image,
        place,
        word
        | (v >> 12 & 1) << 31
        | (v >> 5 & 0x3F) << 25
        | (v >> 1 & 0xF) << 8
        | (v >> 11 & 1) << 7,
    )


def _riscv_jump(image: bytearray, place: int, target: int) -> None:
    v = _check(target - place, 21, 2)
    word = _word(image, place) & 0xFFF
    _put(
        image,
        place,
        word
        | (v >> 20 & 1) << 31
        | (v >> 1 & 0x3FF) << 21
        | (v >> 11 & 1) << 20
        | (v >> 12 & 0xFF) << 12,
    )


RISCV = {
    16: Kind("R_RISCV_BRANCH", _riscv_branch),
    17: Kind("R_RISCV_JAL", _riscv_jump),
    18: Kind("R_RISCV_CALL", _riscv_call),
    19: Kind("R_RISCV_CALL_PLT", _riscv_call),
    23: Kind("R_RISCV_PCREL_HI20", _riscv_high20),
    24: Kind("R_RISCV_PCREL_LO12_I", _riscv_low12_i, is_paired=True),
    25: Kind("R_RISCV_PCREL_LO12_S", _riscv_low12_s, is_paired=True),
}

# WebAssembly --------------------------------------------------------------------------------------


def _wasm_offset(image: bytearray, place: int, target: int) -> None:
    image[place : place + 5] = padded(_check(target, 32))


# Distances are from the image's start, which code gets from a global.
WASM32 = {11: Kind("R_WASM_MEMORY_ADDR_REL_SLEB", _wasm_offset)}

# By the machine that `elf` names.
KINDS: dict[str, dict[int, Kind]] = {
    "x86_64": X86_64,
    "aarch64": AARCH64,
    "arm": ARM,
    "riscv": RISCV,
    MACHINE: WASM32,
}
