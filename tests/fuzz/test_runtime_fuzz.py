"""Damaged modules under sanitizers: a status or a safe run, never a crash (tests/fuzz_load.c)."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.support.runtime_api import failure, opened
from tests.support.runtime_build import RUNTIME, SANITIZE, build, library_sources
from tests.support.runtime_modules import (
    ARENA,
    CONSTANTS,
    DTYPES,
    HEADER_BYTES,
    INPUTS,
    KERNEL_PARAMS,
    OUTPUTS,
    Assembler,
    Code,
    ModuleFile,
    Variant,
    dim,
    entry,
    fbs,
    host_machine,
    structure_bytes_of,
    tensor,
)

# "return" all over: harmless wherever it is entered, with any parameters.
RETURN = {"x86_64": b"\xc3", "aarch64": b"\xc0\x03\x5f\xd6"}


@cache
def fuzzer() -> Path:
    """The fuzz binary with sanitizers; skips the test where they are missing."""
    sources = [RUNTIME / "tests" / "fuzz_load.c", *library_sources()]
    for compiler in ("clang", "gcc"):
        try:
            binary = build("aot-fuzz-load", sources, SANITIZE, compiler)
        except RuntimeError as error:
            if "asan" not in str(error) and "sanitize" not in str(error):
                raise
            binary = None
        if binary is not None:
            return binary
    pytest.skip("no compiler with sanitizers is installed")


def harmless_code() -> Code:
    """An image of returns."""
    code = RETURN[host_machine()]
    return Code(code * (256 // len(code)), dict.fromkeys(KERNEL_PARAMS, 0))


def busy_module() -> bytes:
    """Every instruction, table and vector of the format in a few kilobytes."""
    asm = Assembler()
    asm.block()
    n, m = asm.register(), asm.register()
    asm.emit("INPUT_DIM", n, 0, 0)
    asm.emit("INPUT_DIM", m, 1, 1)
    total = asm.register(0)
    for name in ("ADD", "SUB", "MUL", "MIN", "MAX", "EQ", "NE", "LT", "LE", "AND", "OR"):
        asm.emit("ADD", total, total, asm.binary(name, n, m))
    one, four, zero, eight = (asm.register(value) for value in (1, 4, 0, 8))
    quotient = asm.binary("FLOORDIV", total, four)
    rest = asm.binary("FLOORMOD", quotient, four)
    chosen = asm.register()
    asm.emit("SELECT", chosen, rest, n, m)
    asm.emit("NOP")
    asm.emit("MOVE", chosen, n)
    asm.emit("CHECK", asm.binary("LE", n, asm.register(64)), 0)
    asm.emit("OUTPUT_DIM", 0, 0, n)
    size = asm.binary("MUL", n, four)
    asm.emit("BUFFER", 0, size)
    asm.emit("BUFFER", 1, asm.binary("ADD", size, eight))
    asm.emit("BRANCH", rest, 1, 2)
    asm.block()
    asm.emit("JUMP", 2)
    asm.block()
    asm.emit("RETURN")
    asm.execute()  # block 3
    in0, in1, out0, out1, first, second = (asm.register() for _ in range(6))
    index, condition = asm.register(), asm.register()
    asm.emit("FILL", ARENA, second, size, 0x01020304)
    asm.emit("COPY", ARENA, first, INPUTS, in0, size)
    asm.emit("COPY", OUTPUTS, out0, ARENA, first, size)
    asm.emit("COPY", OUTPUTS, out1, CONSTANTS, zero, eight)
    asm.emit("LOAD", condition, INPUTS, in1, DTYPES["i32"])
    asm.emit("LOAD", condition, CONSTANTS, four, DTYPES["i16"])
    asm.emit("DISPATCH", 0, n, one, one, in0, out0, n, four)
    asm.emit("JUMP", 4)
    asm.block()  # 4
    asm.emit("LT", condition, index, n)
    asm.emit("BRANCH", condition, 5, 6)
    asm.block()
    asm.emit("ADD", index, index, one)
    asm.emit("DISPATCH", 1, one, one, one, first, second, zero)
    asm.emit("JUMP", 4)
    asm.block()
    asm.emit("RETURN")
    program = asm.program(
        messages=["n is too large", "unused"],
        inputOffsetRegisters=[in0, in1],
        outputOffsetRegisters=[out0, out1],
        arenaBytes=200,
        buffers=[fbs.ArenaBufferT(0, 2, first, 64), fbs.ArenaBufferT(1, 2, second, 32)],
    )
    inputs = [tensor("x", "f32", dim("N", 1, 100)), tensor("k", "i32", 2, dim("M", 0, 9))]
    outputs = [tensor("y", "f32", dim("N", 1, 100)), tensor("c", "u32", 2)]
    empty = Assembler()
    empty.block()
    empty.emit("RETURN")
    empty.execute()
    empty.emit("RETURN")
    variant = Variant(
        [entry(program, inputs, outputs), entry(empty.program(), name="second")],
        kernels=("scale", "stash"),
        scratch_bytes=512,
        code=harmless_code(),
    )
    gpu = Variant([entry(empty.program())], device=fbs.Device.VULKAN, features=("f", "g"))
    rodata = np.arange(64, dtype=np.uint8).tobytes()
    return ModuleFile([gpu, variant], rodata, parts=[(0, 16), (16, 48)], page=4096).to_bytes()


def kept_module() -> bytes:
    """State, branches and nested loops: a cache of x's rows, and a loop whose runs go to and fro
    between two places; all in the arena."""
    asm = Assembler()
    asm.block()
    past, n, four, one = asm.register(), asm.register(), asm.register(4), asm.register(1)
    zero, most, place = asm.register(0), asm.register(24), asm.register(128)
    asm.emit("STATE", past, 0)
    asm.emit("INPUT_DIM", n, 0, 0)
    total = asm.binary("ADD", past, n)
    asm.emit("CHECK", asm.binary("LE", total, most), 0, total)
    asm.emit("OUTPUT_DIM", 0, 0, total)
    start, size = asm.binary("MUL", past, four), asm.binary("MUL", n, four)
    all_bytes = asm.binary("MUL", total, four)
    asm.emit("BUFFER", 0, all_bytes)
    asm.emit("BUFFER", 1, all_bytes)
    in0, in1, out, first, second = (asm.register() for _ in range(5))
    asm.emit("RETURN")
    asm.execute()  # block 1
    half, here, there, limit, counter, test, spare, going = (asm.register() for _ in range(8))
    asm.emit("STATE", half, 1)
    asm.emit("COPY", ARENA, start, INPUTS, in0, size)
    asm.emit("LOAD", limit, INPUTS, in1, DTYPES["i64"])
    asm.emit("LOAD", going, INPUTS, in1, DTYPES["bool"])
    asm.emit("BRANCH", going, 2, 3)
    asm.block()
    asm.emit("COPY", ARENA, first, ARENA, zero, all_bytes)
    asm.emit("JUMP", 4)
    asm.block()
    asm.emit("FILL", ARENA, first, all_bytes, 0x3F800000)
    asm.emit("JUMP", 4)
    asm.block()  # 4
    asm.emit("MOVE", here, first)
    asm.emit("MOVE", there, second)
    asm.emit("MOVE", counter, zero)
    asm.emit("JUMP", 5)
    asm.block()  # 5
    asm.emit("LT", test, counter, limit)
    asm.emit("BRANCH", test, 6, 7)
    asm.block()
    asm.emit("STORE", ARENA, place, counter, DTYPES["i64"])
    asm.emit("DISPATCH", 0, n, one, one, here, there, n, four)
    asm.emit("COPY", ARENA, there, ARENA, here, all_bytes)
    for to, source in ((spare, here), (here, there), (there, spare)):
        asm.emit("MOVE", to, source)
    asm.emit("ADD", counter, counter, one)
    asm.emit("JUMP", 5)
    asm.block()  # 7
    asm.emit("COPY", OUTPUTS, out, ARENA, here, all_bytes)
    asm.emit("SET_STATE", 0, total)
    asm.emit("EQ", half, half, zero)
    asm.emit("SET_STATE", 1, half)
    asm.emit("RETURN")
    program = asm.program(
        messages=["a cache of 24 rows has no room for {0}"],
        inputOffsetRegisters=[in0, in1],
        outputOffsetRegisters=[out],
        arenaBytes=192,
        stateBytes=96,
        stateCount=2,
        stateKeyCount=1,
        buffers=[
            fbs.ArenaBufferT(0, 9, first, 64, 192),
            fbs.ArenaBufferT(0, 9, second, 64, 192 + 128),
        ],
        arenaBoundBytes=192 + 2 * 128,
    )
    made = entry(
        program,
        [tensor("x", "f32", dim("N", 0, 30)), tensor("k", "i64")],
        [tensor("y", "f32", dim("P + N", 0, 60))],
    )
    made.states = [tensor("cache", "f32", dim("P", 0, 24))]
    variant = Variant([made], kernels=("scale",), scratch_bytes=64, code=harmless_code())
    return ModuleFile([variant], page=4096).to_bytes()


def run_fuzzer(path: Path, *arguments: object) -> dict[str, int]:
    """How often each status came up."""
    result = subprocess.run(
        [fuzzer(), path, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        env={"ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=1"},
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    lines = (line.split() for line in result.stdout.splitlines())
    return {name: int(count) for name, count in lines}


@pytest.fixture
def module_path(tmp_path: Path) -> Path:
    """The busy module as a file."""
    path = tmp_path / "busy.aotm"
    path.write_bytes(busy_module())
    return path


@pytest.fixture
def kept_path(tmp_path: Path) -> Path:
    """The module with state and control flow as a file."""
    path = tmp_path / "kept.aotm"
    path.write_bytes(kept_module())
    return path


def test_the_undamaged_module_runs(module_path: Path) -> None:
    assert run_fuzzer(module_path, "restamp", 0, 1) == {}
    # A flip in what no checksum covers, the padding before the code, changes nothing.
    file = module_path.read_bytes()
    padding = HEADER_BYTES + structure_bytes_of(file) + 1
    result = subprocess.run(
        [fuzzer(), module_path, "flip", "1", "1", str(padding), str(padding + 1)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "ok 1\n"), result.stderr


def test_every_truncation_is_noticed(module_path: Path) -> None:
    size = module_path.stat().st_size
    counts = run_fuzzer(module_path, "truncate")
    assert counts == {"truncated": size}


def test_random_flips_are_noticed(module_path: Path) -> None:
    file = module_path.read_bytes()
    end = HEADER_BYTES + structure_bytes_of(file)
    code = len(file) - len(harmless_code().image)
    counts = run_fuzzer(module_path, "flip", 10_000, 1, 0, end, code, len(file))
    assert sum(counts.values()) == 10_000
    assert counts["checksum"] > 9000
    assert set(counts) <= {"checksum", "not_a_module", "version"}


def test_random_flips_with_right_checksums_never_crash(module_path: Path) -> None:
    counts = run_fuzzer(module_path, "restamp", 10_000, 2)
    assert sum(counts.values()) == 10_000
    # The fuzzer gets past the door, and far: all of these come from behind the checksums.
    for status in ("ok", "malformed", "unsupported", "check", "bounds", "budget", "checksum"):
        assert counts.get(status, 0) > 0, counts


def test_damaged_state_and_control_flow_never_crash(kept_path: Path) -> None:
    """Undamaged it runs; damaged, arenas grow with what is kept in them, and plans go stale."""
    with opened(kept_path) as program:
        for count in range(1, 7):
            (y,) = program(np.full(4, count, np.float32), np.array(3, np.int64))
            assert y.tolist() == [float(c) for c in range(1, count + 1) for _ in range(4)]
        found = failure(lambda: program(np.zeros(1, np.float32), np.array(3, np.int64)))
        assert found.message == "a cache of 24 rows has no room for 25"
    counts = run_fuzzer(kept_path, "restamp", 10_000, 3)
    assert sum(counts.values()) == 10_000
    for status in ("ok", "malformed", "check", "bounds", "budget"):
        assert counts.get(status, 0) > 0, counts
