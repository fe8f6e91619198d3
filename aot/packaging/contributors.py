"""Names the largest users of a board's memory, by nodes of the model, for messages about limits.

Reads the notes that a module keeps for tools; without them it says what is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aot.base.records import dataclass
from aot.link.image import Device
from aot.link.program import constant_value, decode
from aot.packaging.files import PackageInput

if TYPE_CHECKING:
    from aot.packaging.header import HeaderEntry

_COUNT = 5


@dataclass(frozen=True)
class _Dispatch:
    """A dispatch of an entry point: its node, the bytes it accesses, and its constants."""

    origin: str
    bytes: int
    constants: tuple[int, ...]  # offsets


def flash_contributors(given: PackageInput, program_bytes: int) -> list[str]:
    """Text lines with the sizes of the largest constants and their nodes, of code and of
    programs."""
    variant = given.image.variants[_cpu_index(given)]
    readers: dict[int, str] = {}
    for number in range(len(variant.entry_points)):
        for dispatch in _dispatches(given, number):
            for offset in dispatch.constants:
                readers.setdefault(offset, dispatch.origin)
    largest = sorted(given.image.rodata_segments, key=lambda s: -s.length)[:_COUNT]
    named = [
        f"weights of {readers[s.offset]} {s.length}"
        if s.offset in readers
        else f"weights at offset {s.offset} {s.length}"
        for s in largest
    ]
    return [*named, f"code {len(variant.code)}", f"programs {program_bytes}"]


def arena_contributors(given: PackageInput, entries: list[HeaderEntry]) -> list[str]:
    """Text lines with the sizes of the arena's parts, and the nodes that access most of it."""
    number, entry = max(enumerate(entries), key=lambda e: e[1].program.memory_bytes)
    program = entry.program
    lengths = {s.offset: s.length for s in given.image.rodata_segments}
    sizes = [
        (max(d.bytes - sum(lengths.get(offset, 0) for offset in d.constants), 0), d.origin)
        for d in _dispatches(given, number)
    ]
    largest = sorted(sizes, key=lambda s: -s[0])[:_COUNT]
    return [
        f"{program.arena_bytes} for the tensors that are needed at one time",
        f"{program.scratch_bytes} for scratch",
        f"{program.loader_bytes} for the loader",
        *(f"{origin} alone reads and writes {size}" for size, origin in largest if origin and size),
    ]


def _cpu_index(given: PackageInput) -> int:
    return next(i for i, v in enumerate(given.image.variants) if v.device is Device.CPU)


def _dispatches(given: PackageInput, number: int) -> Iterator[_Dispatch]:
    """The dispatches of entry point `number`; none if the notes lack them."""
    index = _cpu_index(given)
    if not given.notes or not given.notes[index].launches:
        return
    notes = given.notes[index]
    launches = iter(notes.launches[number])
    words = set(notes.address_words[number])
    held: dict[int, int] = {}  # registers that hold a constant's offset
    for instruction in decode(given.image.variants[index].entry_points[number].program.code):
        if instruction.name == "CONST":
            register, low, high = instruction.operands
            held.pop(register, None)
            if instruction.at in words:
                held[register] = constant_value(low, high)
        elif instruction.name == "DISPATCH":
            launch = next(launches, None)
            if launch is None:
                return
            offsets = tuple({held[r]: None for r in instruction.operands[4:] if r in held})
            size = launch.bytes if isinstance(launch.bytes, int) else 0
            yield _Dispatch(launch.origin, size, offsets)
