"""Reads the instructions of SPIR-V modules."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from aot.backends.vulkan.spirv import Op


def instructions(module: bytes) -> Iterator[tuple[Op, list[int]]]:
    """Opcode and operands of every instruction after the header."""
    words = struct.unpack(f"<{len(module) // 4}I", module)
    at = 5
    while at < len(words):
        count = words[at] >> 16
        yield Op(words[at] & 0xFFFF), list(words[at + 1 : at + count])
        at += count


def opcodes(module: bytes) -> list[Op]:
    return [op for op, _ in instructions(module)]
