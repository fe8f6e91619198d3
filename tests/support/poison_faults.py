"""What a runtime that poisons memory finds of kernels that are broken on purpose: a script that
prints, for each of FAULTS and of SOUND, what is found."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from tests.support.poison import Plan, fault, poison_library
from tests.support.runtime_modules import (
    Assembler,
    ModuleFile,
    arena_module,
    dim,
    module,
    scale_module,
    tensor,
)

SCRATCH, BYTES = 128, 256  # of the kernel's scratch, and of the arena
READ, WRITE = 0, 2
OF_SCRATCH, OF_ARENA = 0, 1
ZONE = 4096


def strays(*kinds_and_places: tuple[int, int]) -> tuple[ModuleFile, list[int]]:
    """A module that runs the kernel `stray` for each, whose outputs are y0, y1..., and the words of
    its dispatches."""
    asm = Assembler()
    asm.block()
    one = asm.register(1)
    numbers = [(asm.register(kind), asm.register(place)) for kind, place in kinds_and_places]
    offsets = [asm.register() for _ in numbers]
    asm.emit("RETURN")
    asm.execute()
    words = []
    for (kind, place), offset in zip(numbers, offsets, strict=True):
        words.append(len(asm.words))
        asm.emit("DISPATCH", 0, one, one, one, offset, kind, place)
    asm.emit("RETURN")
    program = asm.program(outputOffsetRegisters=offsets, arenaBytes=BYTES)
    outputs = [tensor(f"y{n}", "u32", 1) for n in range(len(numbers))]
    kernels = ("stray",)
    return module(program, [], outputs, kernels=kernels, scratch_bytes=SCRATCH), words


def found(
    *kinds_and_places: tuple[int, int],
    buffers: tuple[tuple[int, int, int, int], ...] | None = None,
    threads: int = 1,
) -> str:
    """What is found of a program with these buffers: offset, bytes, first and last dispatch."""
    file, words = strays(*kinds_and_places)
    plan = None
    if buffers is not None:
        plan = Plan([(word, n) for n, word in enumerate(words)], buffers)
    return fault(file.to_bytes(), None, plan, [{}, {}], threads=threads)


def unwritten_output() -> str:
    asm = Assembler()
    asm.block()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    file = module(asm.program(), [], [tensor("y", "u32", 4)])
    return fault(file.to_bytes(), None, None, [{}])


def dynamic(read: int) -> str:
    """Writes a byte of an arena and reads it in the next dispatch; its two buffers have sizes that
    only a run knows: 64 bytes for both dispatches, and as many behind them for the first."""
    asm = Assembler()
    asm.block()
    one, size, n = asm.register(1), asm.register(64), asm.register()
    asm.emit("INPUT_DIM", n, 0, 0)
    asm.emit("BUFFER", 0, asm.binary("MUL", n, size))
    asm.emit("BUFFER", 1, asm.binary("MUL", n, size))
    kind, place = asm.register(READ | OF_ARENA), asm.register(read)
    first, second, offset = (asm.register() for _ in range(3))
    writes = asm.register(WRITE | OF_ARENA)
    asm.emit("RETURN")
    asm.execute()
    words = [len(asm.words)]
    asm.emit("DISPATCH", 0, one, one, one, offset, writes, place)
    words.append(len(asm.words))
    asm.emit("DISPATCH", 0, one, one, one, offset, kind, place)
    asm.emit("RETURN")
    program = asm.program(
        outputOffsetRegisters=[offset],
        buffers=[_buffer(0, 1, first), _buffer(0, 0, second)],
    )
    rows = dim("N", 1, 4)
    file = module(program, [tensor("x", "u8", rows)], [tensor("y", "u32", 1)], kernels=("stray",))
    plan = Plan([(word, n) for n, word in enumerate(words)])
    return fault(file.to_bytes(), None, plan, [{"x": np.zeros(1, np.uint8)}])


def _buffer(first: int, last: int, register: int) -> object:
    from aot.link import module_fbs as fbs

    return fbs.ArenaBufferT(first, last, register, 64)


WHOLE = ((0, BYTES, 0, 9),)
FAULTS: dict[str, Callable[[], str]] = {
    "scratch that nobody wrote": lambda: found((READ | OF_SCRATCH, 5)),
    "scratch that the dispatch before wrote": lambda: found(
        (WRITE | OF_SCRATCH, 5), (READ | OF_SCRATCH, 5)
    ),
    "the first byte behind scratch": lambda: found((WRITE | OF_SCRATCH, SCRATCH)),
    "the last byte of the zone behind scratch": lambda: found(
        (WRITE | OF_SCRATCH, SCRATCH + ZONE - 1)
    ),
    "before scratch": lambda: found((WRITE | OF_SCRATCH, (1 << 64) - 1)),
    "behind scratch, one of several threads": lambda: found(
        (WRITE | OF_SCRATCH, SCRATCH), threads=3
    ),
    "arena that nobody wrote": lambda: found((READ | OF_ARENA, 7)),
    "behind the arena": lambda: found((WRITE | OF_ARENA, BYTES)),
    "before the arena": lambda: found((WRITE | OF_ARENA, (1 << 64) - ZONE)),
    "a gap between buffers": lambda: found(
        (WRITE | OF_ARENA, 100), buffers=((0, 100, 0, 0), (128, 64, 0, 0))
    ),
    "a buffer that is dead": lambda: found(
        *((WRITE | OF_ARENA, 9), (READ | OF_ARENA, 9)),
        buffers=((0, 64, 0, 0), (64, 64, 0, 1)),
    ),
    "a buffer that is dead, of a size that a run gives": lambda: dynamic(64),
    "an output that nobody wrote": unwritten_output,
}
SOUND: dict[str, Callable[[], str]] = {
    "scratch's last byte is written": lambda: found((WRITE | OF_SCRATCH, SCRATCH - 1)),
    "the arena's last byte is written": lambda: found((WRITE | OF_ARENA, BYTES - 1)),
    "a buffer that is live": lambda: found(
        *((WRITE | OF_ARENA, 9), (READ | OF_ARENA, 9)), buffers=((0, 64, 0, 1),)
    ),
    "buffers that touch": lambda: found(
        *((WRITE | OF_ARENA, 63), (WRITE | OF_ARENA, 64), (READ | OF_ARENA, 63)),
        buffers=((64, 64, 1, 1), (0, 64, 0, 2)),
    ),
    "a live buffer of a size that a run gives": lambda: dynamic(63),
    "no plan knows of a dead buffer": lambda: found((WRITE | OF_ARENA, 9), (READ | OF_ARENA, 9)),
    "scale": lambda: fault(
        scale_module().to_bytes(), None, None, [{"x": np.ones((n, 3), np.float32)} for n in (1, 9)]
    ),
    "arena": lambda: fault(
        arena_module().to_bytes(), None, None, [{"x": np.ones(n, np.float32)} for n in (5, 0, 99)]
    ),
}


if __name__ == "__main__":
    library = poison_library()
    assert library is not None
    os.environ["AOT_RUNTIME_LIBRARY"] = str(library)
    print(json.dumps({name: find() for name, find in (FAULTS | SOUND).items()}))
