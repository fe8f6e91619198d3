"""What a program keeps between runs: scalars, memory at the arena's start, plans made for both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.runtime import tensors
from tests.support.runtime_api import (
    CountingAllocator,
    Failed,
    library,
    open_failure,
    opened,
    run_failure,
)
from tests.support.runtime_modules import (
    ARENA,
    CONSTANTS,
    DTYPES,
    INPUTS,
    OUTPUTS,
    Assembler,
    ModuleFile,
    Variant,
    dim,
    entry,
    fbs,
    module,
    tensor,
)

MESSAGES = ["told to fail"]


def counting_module(**fields: object) -> bytes:
    """y[0] = the run's number; y[1] = what x was in the run before; x[1] != 0 fails at the end."""
    asm = Assembler()
    asm.block()
    zero, one, eight = asm.register(0), asm.register(1), asm.register(8)
    offset_in, offset_out = asm.register(), asm.register()
    asm.emit("RETURN")
    asm.execute()
    number = asm.register()
    asm.emit("STATE", number, 0)
    asm.emit("SET_STATE", 0, asm.binary("ADD", number, one))
    asm.emit("STATE", number, 0)  # as it was when the run began
    asm.emit("STORE", OUTPUTS, offset_out, number, DTYPES["i64"])
    place = asm.binary("ADD", offset_out, eight)
    half = asm.register()
    asm.emit("STATE", half, 1)
    now = asm.binary("MUL", half, eight)
    other = asm.binary("SUB", eight, now)
    asm.emit("COPY", OUTPUTS, place, ARENA, now, eight)
    asm.emit("COPY", ARENA, other, INPUTS, offset_in, eight)
    asm.emit("SET_STATE", 1, asm.binary("SUB", one, half))
    fails = asm.register()
    asm.emit("LOAD", fails, INPUTS, asm.binary("ADD", offset_in, eight), DTYPES["i64"])
    asm.emit("CHECK", asm.binary("EQ", fails, zero), 0)
    asm.emit("RETURN")
    program = asm.program(
        inputOffsetRegisters=[offset_in],
        outputOffsetRegisters=[offset_out],
        messages=MESSAGES,
        arenaBytes=64,
        stateBytes=16,
        stateCount=2,
        **fields,
    )
    return module(program, [tensor("x", "i64", 2)], [tensor("y", "i64", 2)]).to_bytes()


def x(value: int, fails: int = 0) -> np.ndarray[Any, Any]:
    return np.array([value, fails], np.int64)


def test_state_is_zero_at_first_kept_and_reset() -> None:
    allocator = CountingAllocator()  # its memory is not zero
    with opened(counting_module(), allocator) as program:
        assert [program(x(v))[0].tolist() for v in (7, 8, 9)] == [[0, 0], [1, 7], [2, 8]]
        program.reset()
        assert [program(x(v))[0].tolist() for v in (5, 6)] == [[0, 0], [1, 5]]
        program.reset()
        program.reset()
        assert program(x(1))[0].tolist() == [0, 0]
    assert not allocator.errors


def test_a_run_that_fails_sets_nothing() -> None:
    with opened(counting_module()) as program:
        assert program(x(7))[0].tolist() == [0, 0]
        for _ in range(2):
            with pytest.raises(Failed, match="told to fail"):
                program(x(8, fails=1))
        assert program(x(9))[0].tolist() == [1, 7]
        assert program(x(0))[0].tolist() == [2, 9]


def test_a_reset_right_after_a_failure() -> None:
    with opened(counting_module()) as program:
        program(x(7))
        program.reset()
        with pytest.raises(Failed, match="told to fail"):
            program(x(8, fails=1))
        assert program(x(9))[0].tolist() == [0, 0]


def test_a_work_budget_holds_for_each_run() -> None:
    with opened(counting_module(), work_budget=10_000) as program:
        for n in range(20):
            assert program(x(n))[0][0] == n


def growing_module(extra: int = 0) -> bytes:
    """Appends x[n] to memory of 8 elements: y[P + n]; prepare reads the length P."""
    asm = Assembler()
    asm.block()
    past, n, four = asm.register(), asm.register(), asm.register(4)
    zero, most = asm.register(0), asm.register(8)
    asm.emit("STATE", past, 0)
    asm.emit("INPUT_DIM", n, 0, 0)
    total = asm.binary("ADD", past, n)
    asm.emit("CHECK", asm.binary("LE", total, most), 0, total)
    asm.emit("OUTPUT_DIM", 0, 0, total)
    start, size = asm.binary("MUL", past, four), asm.binary("MUL", n, four)
    all_bytes = asm.binary("MUL", total, four)
    asm.emit("BUFFER", 0, asm.binary("MUL", all_bytes, asm.register(1 + extra)))
    offset_in, offset_out, buffer = asm.register(), asm.register(), asm.register()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("COPY", ARENA, start, INPUTS, offset_in, size)
    asm.emit("COPY", ARENA, buffer, ARENA, zero, all_bytes)
    asm.emit("COPY", OUTPUTS, offset_out, ARENA, buffer, all_bytes)
    asm.emit("SET_STATE", 0, total)
    asm.emit("RETURN")
    program = asm.program(
        inputOffsetRegisters=[offset_in],
        outputOffsetRegisters=[offset_out],
        messages=["8 of {0}"],
        arenaBytes=32,
        stateBytes=32,
        stateCount=1,
        stateKeyCount=1,
        buffers=[fbs.ArenaBufferT(0, 1, buffer, 64)],
    )
    inputs = [tensor("x", "f32", dim("n", 0))]
    return module(program, inputs, [tensor("y", "f32", dim("P + n", 0))]).to_bytes()


def floats(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


@pytest.mark.parametrize("extra", [0, 1000])
def test_plans_are_for_lengths_and_the_arena_grows_with_the_state_in_it(extra: int) -> None:
    allocator = CountingAllocator()
    with opened(growing_module(extra), allocator) as program:
        assert program(floats(1))[0].tolist() == [1]
        assert program(floats(2))[0].tolist() == [1, 2]
        assert program(floats(3, 4, 5))[0].tolist() == [1, 2, 3, 4, 5]
        assert program.output_shape(0) == (5,)  # of the run that was, until the next prepare
        program.prepare()
        assert program.output_shape(0) == (8,)
        assert program(floats(6, 7, 8))[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
        with pytest.raises(Failed, match="8 of 9"):
            program(floats(9))
        assert program(floats())[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
        program.reset()
        count = program.info().prepare_count
        assert program(floats(1))[0].tolist() == [1]
        assert program.info().prepare_count == count + 1  # the oldest plans had to go
        program.reset()
        assert program(floats(2))[0].tolist() == [2]
        assert program.info().prepare_count == count + 1
    assert not allocator.errors
    assert not allocator.live


@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool"])
@pytest.mark.parametrize("value", [1, -2, 0x0123456789ABCDEF])
def test_store_writes_the_low_bytes(dtype: str, value: int) -> None:
    asm = Assembler()
    asm.block()
    offset, word = asm.register(), asm.register(value)
    asm.emit("RETURN")
    asm.execute()
    asm.emit("FILL", OUTPUTS, offset, asm.register(16), 0xEEEEEEEE)
    place = asm.binary("ADD", offset, asm.register(3))
    asm.emit("STORE", OUTPUTS, place, word, DTYPES[dtype])
    asm.emit("RETURN")
    file = module(
        asm.program(outputOffsetRegisters=[offset]), [], [tensor("y", "u8", 16)]
    ).to_bytes()
    size = tensors.NUMPY[dtype].itemsize
    expected = bytearray(b"\xee" * 16)
    expected[3 : 3 + size] = (value & ((1 << 64) - 1)).to_bytes(8, "little")[:size]
    with opened(file) as program:
        assert program()[0].tobytes() == bytes(expected)


@pytest.mark.parametrize("place", [-1, 57, 64, 1 << 62])
def test_store_stays_inside(place: int) -> None:
    asm = Assembler()
    asm.block()
    at = asm.register(place)
    asm.emit("RETURN")
    asm.execute()
    asm.emit("STORE", ARENA, at, at, DTYPES["i64"])
    asm.emit("RETURN")
    found = run_failure(module(asm.program(arenaBytes=64)).to_bytes())
    assert found.status == "bounds"
    assert found.message.startswith(f"8 bytes at offset {place} are not in the arena, word ")


@pytest.mark.parametrize(
    ("prepare", "execute", "message"),
    [
        ((), ("STATE", 0, 3), "word 3: no such state scalar in this part"),
        (("STATE", 0, 1), (), "word 2: no such state scalar in this part"),
        (("SET_STATE", 0, 0), (), "word 0: the instruction is not allowed in this part"),
        ((), ("SET_STATE", 3, 0), "word 2: no such state scalar in this part"),
        ((), ("SET_STATE", 0, 9), "word 3: no such register"),
        (("STORE", ARENA, 0, 0, 6), (), "word 0: the instruction is not allowed in this part"),
        ((), ("STORE", CONSTANTS, 0, 0, 6), "word 2: this buffer class can't be written"),
        ((), ("STORE", INPUTS, 0, 0, 6), "word 2: this buffer class can't be written"),
        ((), ("STORE", ARENA, 0, 0, 0), "word 5: not an integer dtype"),
    ],
)
def test_malformed_states(prepare: tuple[Any, ...], execute: tuple[Any, ...], message: str) -> None:
    asm = Assembler()
    asm._registers = 3
    asm.block()
    if prepare:
        asm.emit(*prepare)
    asm.emit("RETURN")
    asm.execute()
    if execute:
        asm.emit(*execute)
    asm.emit("RETURN")
    given = {"arenaBytes": 64, "stateBytes": 64, "stateCount": 2, "stateKeyCount": 1}
    found = open_failure(ModuleFile([Variant([entry(asm.program(**given))])]).to_bytes())
    assert found.status == "malformed"
    assert found.message.startswith(f'program of entry point "main", {message}')


def test_states_are_listed() -> None:
    asm = Assembler()
    asm.block()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    made = entry(asm.program())
    made.states = [tensor("h", "f16", 2), tensor("cache", "i8", dim("P", 0, 12), 3)]
    with opened(ModuleFile([Variant([made])]).to_bytes()) as program:
        assert library().aot_program_state_count(program.handle) == 2
        info = library().aot_program_state_info(program.handle, 1).contents
        found = tensors.tensor_info(info)
        assert (str(found), found.bounds) == ("cache: i8[P, 3]", ((0, 12), (3, 3)))
        assert not library().aot_program_state_info(program.handle, 2)
