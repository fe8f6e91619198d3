"""What the instructions of a program do: arithmetic, memory, control flow, checks."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aot.runtime import tensors
from tests.support.runtime_api import Failed, call, opened, run_failure, run_once
from tests.support.runtime_modules import (
    ARENA,
    CONSTANTS,
    DTYPES,
    INPUTS,
    OUTPUTS,
    Assembler,
    dim,
    entry,
    fbs,
    module,
    tensor,
)

I64 = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.sampled_from([0, 1, -1, -(1 << 63), (1 << 63) - 1, 1 << 31, -(1 << 31)]),
    st.integers(-20, 20),
)


Body = Callable[[Assembler, int, int], list[int]]


def reporting(
    body: Body,
    inputs: list[fbs.TensorT],
    count: int,
    rodata: bytes = b"",
    prepare: Callable[[Assembler], None] | None = None,
    **fields: object,
) -> bytes:
    """A module whose output y, i64[count], holds the registers that `body` returns.

    `body` is called in the execute part with the assembler and the registers of the first input's
    and the output's offsets.
    """
    asm = Assembler()
    asm.block()
    offset_in, offset_out, one = asm.register(), asm.register(), asm.register(1)
    if prepare is not None:
        prepare(asm)
    asm.emit("RETURN")
    asm.execute()
    results = body(asm, offset_in, offset_out)
    assert len(results) == count
    for index, result in enumerate(results):
        place = asm.binary("ADD", offset_out, asm.register(8 * index))
        asm.emit("DISPATCH", 0, one, one, one, place, result)
    asm.emit("RETURN")
    program = asm.program(
        inputOffsetRegisters=[offset_in] + [asm.register() for _ in inputs[1:]] if inputs else None,
        outputOffsetRegisters=[offset_out],
        **fields,
    )
    outputs = [tensor("y", "i64", count)]
    return module(program, inputs, outputs, kernels=("widths",), rodata=rodata).to_bytes()


def load_at(asm: Assembler, base: int, distance: int, dtype: str = "i64") -> int:
    """A register that gets an element of the inputs."""
    result = asm.register()
    place = asm.binary("ADD", base, asm.register(distance))
    asm.emit("LOAD", result, INPUTS, place, DTYPES[dtype])
    return result


BINARY: dict[str, Callable[[int, int], int]] = {
    "ADD": lambda a, b: a + b,
    "SUB": lambda a, b: a - b,
    "MUL": lambda a, b: a * b,
    "FLOORDIV": lambda a, b: a // b,
    "FLOORMOD": lambda a, b: a % b,
    "MIN": min,
    "MAX": max,
    "EQ": lambda a, b: int(a == b),
    "NE": lambda a, b: int(a != b),
    "LT": lambda a, b: int(a < b),
    "LE": lambda a, b: int(a <= b),
    "AND": lambda a, b: int(bool(a) and bool(b)),
    "OR": lambda a, b: int(bool(a) or bool(b)),
}


def fits(value: int) -> bool:
    """Whether it is a 64-bit signed integer."""
    return -(1 << 63) <= value < 1 << 63


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    def body(asm: Assembler, offset: int, _: int) -> list[int]:
        return [asm.binary(name, load_at(asm, offset, 0), load_at(asm, offset, 8))]

    file = reporting(body, [tensor("x", "i64", 2)], 1)
    with opened(file) as program:

        @settings(max_examples=100, deadline=None, database=None)
        @given(I64, I64)
        @example(-(1 << 63), -1)
        @example(7, 0)
        @example(-7, 2)
        @example(7, -2)
        def check(a: int, b: int) -> None:
            x = np.array([a, b], np.int64)
            if name in ("FLOORDIV", "FLOORMOD") and b == 0:
                expected = f"{name.lower()} of {a} and 0 divides by zero, word "
            elif name == "FLOORMOD" and (a, b) == (-(1 << 63), -1):
                # The remainder would fit, the quotient doesn't: one rule for both.
                expected = f"floormod of {a} and -1 overflows, word "
            elif not fits(BINARY[name](a, b)):
                expected = f"{name.lower()} of {a} and {b} overflows, word "
            else:
                assert program(x)[0].tolist() == [BINARY[name](a, b)]
                return
            with pytest.raises(Failed) as caught:
                program(x)
            assert caught.value.status == "arithmetic"
            assert caught.value.message.startswith(expected)

        check()


def test_constants_moves_and_selects() -> None:
    values = [0, 1, -1, (1 << 63) - 1, -(1 << 63), 0x123456789ABCDEF0 - (1 << 60)]

    def body(asm: Assembler, *_: int) -> list[int]:
        registers = [asm.register(value) for value in values]
        moved = asm.register()
        asm.emit("MOVE", moved, registers[3])
        asm.emit("NOP")
        yes, no = asm.register(), asm.register()
        asm.emit("SELECT", yes, registers[2], registers[3], registers[4])
        asm.emit("SELECT", no, registers[0], registers[3], registers[4])
        return [*registers, moved, yes, no]

    expected = [*values, values[3], values[3], values[4]]
    assert run_once(reporting(body, [], len(expected)))[0].tolist() == expected


@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool"])
def test_load_widens_by_dtype(dtype: str) -> None:
    numpy = np.dtype(np.bool_) if dtype == "bool" else np.dtype(f"{dtype[0]}{int(dtype[1:]) // 8}")
    if dtype == "bool":
        values = np.array([False, True])
    else:
        limits = np.iinfo(numpy)
        values = np.array([limits.min, min(limits.max, (1 << 63) - 1)], numpy)

    def body(asm: Assembler, offset: int, _: int) -> list[int]:
        return [load_at(asm, offset, i * numpy.itemsize, dtype) for i in range(2)]

    file = reporting(body, [tensor("x", dtype, 2)], 2)
    assert run_once(file, values)[0].tolist() == [int(v) for v in values]


def test_load_of_a_large_u64_overflows() -> None:
    file = reporting(
        lambda asm, offset, _: [load_at(asm, offset, 0, "u64")], [tensor("x", "u64", 1)], 1
    )
    found = run_failure(file, np.array([1 << 63], np.uint64))
    assert found.status == "arithmetic"
    assert found.message.startswith("a loaded u64 overflows")


def load_constant(
    buffer_class: int, offset: int, dtype: str = "i32", arena_bytes: int = 0
) -> bytes:
    """Reports what stands at a fixed offset of a class; rodata is 8 bytes, the input 12."""

    def body(asm: Assembler, offset_in: int, offset_out: int) -> list[int]:
        place = asm.register(offset)
        if buffer_class in (INPUTS, OUTPUTS):
            base = offset_in if buffer_class == INPUTS else offset_out
            place = asm.binary("ADD", base, place)
        result = asm.register()
        asm.emit("LOAD", result, buffer_class, place, DTYPES[dtype])
        return [result]

    rodata = np.array([-7, 8], np.int32).tobytes()
    return reporting(body, [tensor("x", "i32", 3)], 1, rodata, arenaBytes=arena_bytes)


X3 = np.array([1, 2, 3], np.int32)


def test_load_of_constants() -> None:
    assert run_once(load_constant(CONSTANTS, 0), X3)[0].tolist() == [-7]
    assert run_once(load_constant(CONSTANTS, 4), X3)[0].tolist() == [8]


@pytest.mark.parametrize(
    ("buffer_class", "offset", "where"),
    [
        (CONSTANTS, 5, "constants"),
        (CONSTANTS, -1, "constants"),
        (CONSTANTS, 1 << 62, "constants"),
        (ARENA, 61, "the arena"),
        (ARENA, -4, "the arena"),
        (INPUTS, 9, "any input"),
        (INPUTS, -1, "any input"),
        (INPUTS, -(1 << 63), "any input"),
        (OUTPUTS, 5, "any output"),
        (OUTPUTS, 8, "any output"),
    ],
)
def test_load_stays_inside(buffer_class: int, offset: int, where: str) -> None:
    found = run_failure(load_constant(buffer_class, offset, arena_bytes=64), X3)
    assert found.status == "bounds"
    assert f"are not in {where}, word " in found.message
    assert found.message.startswith("4 bytes at offset ")


def movement(
    emit: Callable[[Assembler, int, int], None], count: int = 4, **fields: object
) -> bytes:
    """y, u32[count], from x, u32[4]: `emit` gets the assembler and both offsets' registers."""
    asm = Assembler()
    asm.block()
    offset_in, offset_out = asm.register(), asm.register()
    asm.emit("RETURN")
    asm.execute()
    emit(asm, offset_in, offset_out)
    asm.emit("RETURN")
    program = asm.program(
        inputOffsetRegisters=[offset_in], outputOffsetRegisters=[offset_out], **fields
    )
    rodata = np.arange(100, 104, dtype=np.uint32).tobytes()
    inputs, outputs = [tensor("x", "u32", 4)], [tensor("y", "u32", count)]
    return module(program, inputs, outputs, rodata=rodata).to_bytes()


X4 = np.array([1, 2, 3, 4], np.uint32)


def test_copies_through_every_class() -> None:
    def emit(asm: Assembler, offset_in: int, offset_out: int) -> None:
        eight, zero, arena = asm.register(8), asm.register(0), asm.register(64)
        asm.emit("COPY", ARENA, arena, INPUTS, offset_in, eight)
        asm.emit("COPY", OUTPUTS, offset_out, ARENA, arena, eight)
        half = asm.binary("ADD", offset_out, eight)
        asm.emit("COPY", OUTPUTS, half, CONSTANTS, zero, eight)
        asm.emit("COPY", OUTPUTS, half, OUTPUTS, offset_out, asm.register(4))

    assert run_once(movement(emit, arenaBytes=128), X4)[0].tolist() == [1, 2, 1, 101]


def test_copy_within_one_buffer_may_overlap() -> None:
    def emit(asm: Assembler, offset_in: int, offset_out: int) -> None:
        asm.emit("COPY", OUTPUTS, offset_out, INPUTS, offset_in, asm.register(16))
        next_place = asm.binary("ADD", offset_out, asm.register(4))
        asm.emit("COPY", OUTPUTS, next_place, OUTPUTS, offset_out, asm.register(12))

    assert run_once(movement(emit), X4)[0].tolist() == [1, 1, 2, 3]


@pytest.mark.parametrize("pattern", [0, 0x07070707, 0x04030201, 0xFFFFFFFF])
@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 16])
def test_fill(pattern: int, size: int) -> None:
    def emit(asm: Assembler, _: int, offset_out: int) -> None:
        asm.emit("FILL", OUTPUTS, offset_out, asm.register(16), 0xEEEEEEEE)
        asm.emit("FILL", OUTPUTS, offset_out, asm.register(size), pattern)

    expected = np.full(16, 0xEE, np.uint8)
    expected[:size] = np.frombuffer(pattern.to_bytes(4, "little") * 4, np.uint8)[:size]
    assert run_once(movement(emit), X4)[0].tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", [17, -1, 1 << 62])
def test_movement_stays_inside(size: int) -> None:
    def copy(asm: Assembler, offset_in: int, offset_out: int) -> None:
        asm.emit("COPY", OUTPUTS, offset_out, INPUTS, offset_in, asm.register(size))

    def fill(asm: Assembler, _: int, offset_out: int) -> None:
        asm.emit("FILL", OUTPUTS, offset_out, asm.register(size), 0)

    def copy_from(asm: Assembler, _: int, offset_out: int) -> None:
        zero = asm.register(8)
        asm.emit("COPY", OUTPUTS, offset_out, CONSTANTS, zero, asm.register(min(size, 16)))

    for emit, where in ((copy, "any output"), (fill, "any output"), (copy_from, "constants")):
        found = run_failure(movement(emit), X4)
        assert found.status == "bounds"
        if emit is not copy_from or size > 0:
            assert f"are not in {where}" in found.message


def test_nothing_is_copied_across_two_inputs() -> None:
    asm = Assembler()
    asm.block()
    first, second, out = asm.register(), asm.register(), asm.register()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("COPY", OUTPUTS, out, INPUTS, second, asm.register(8))
    asm.emit("COPY", OUTPUTS, out, INPUTS, first, asm.register(16))
    asm.emit("RETURN")
    program = asm.program(inputOffsetRegisters=[first, second], outputOffsetRegisters=[out])
    inputs = [tensor("a", "u32", 2), tensor("b", "u32", 2)]
    file = module(program, inputs, [tensor("y", "u32", 4)]).to_bytes()
    both = np.arange(4, dtype=np.uint32)  # adjacent in memory, yet two tensors
    assert run_failure(file, both[:2], both[2:]).status == "bounds"


def trace_module(grid: tuple[int, int, int], prepare_only: bool = False) -> bytes:
    """The output is the list of workgroups that ran, its length first."""
    asm = Assembler()
    asm.block()
    out = asm.register()
    x, y, z = (asm.register(extent) for extent in grid)
    asm.emit("RETURN")
    asm.execute()
    asm.emit("FILL", OUTPUTS, out, asm.register(4), 0)
    asm.emit("DISPATCH", 0, x, y, z, out)
    asm.emit("RETURN")
    program = asm.program(outputOffsetRegisters=[out])
    return module(program, [], [tensor("y", "u32", 100)], kernels=("trace",)).to_bytes()


def test_workgroups_run_in_order() -> None:
    found = run_once(trace_module((3, 2, 2)))[0]
    expected = [z << 16 | y << 8 | x for z in range(2) for y in range(2) for x in range(3)]
    assert found[: 1 + found[0]].tolist() == [12, *expected]


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 5), ((1 << 32) - 1, (1 << 32) - 1, 0)])
def test_an_empty_grid_runs_nothing(grid: tuple[int, int, int]) -> None:
    assert run_once(trace_module(grid))[0][0] == 0


@pytest.mark.parametrize("grid", [(-1, 1, 1), (1, 1 << 32, 1), ((1 << 32) - 1,) * 3])
def test_an_impossible_grid(grid: tuple[int, int, int]) -> None:
    found = run_failure(trace_module(grid))
    assert found.status == "bounds"
    x, y, z = grid
    assert f'executable "trace": a grid of {x} x {y} x {z} workgroups' in found.message


def test_scratch_is_aligned_and_large_enough() -> None:
    asm = Assembler()
    asm.block()
    one, out, size = asm.register(1), asm.register(), asm.register(100_000)
    asm.emit("RETURN")
    asm.execute()
    asm.emit("DISPATCH", 0, one, one, one, out, size)
    asm.emit("RETURN")
    program = asm.program(outputOffsetRegisters=[out])
    outputs = [tensor("y", "u32", 1)]
    file = module(program, [], outputs, kernels=("scratch",), scratch_bytes=100_000).to_bytes()
    with opened(file) as opened_program:
        assert opened_program()[0].tolist() == [0]
        assert opened_program.info().scratch_bytes == 100_000


def loop_module() -> bytes:
    """Sums 0..n-1 in a loop of the execute part; n is loaded; branches on n < 0 to report -1."""
    asm = Assembler()
    asm.block()
    offset_in, offset_out, one = asm.register(), asm.register(), asm.register(1)
    index, total, zero = asm.register(0), asm.register(0), asm.register(0)
    count, condition, size = asm.register(), asm.register(), asm.register(8)
    asm.emit("RETURN")
    asm.execute()  # block 1
    asm.emit("LOAD", count, INPUTS, offset_in, DTYPES["i64"])
    asm.emit("LT", condition, count, zero)
    asm.emit("BRANCH", condition, 4, 2)
    asm.block()  # 2: the loop's condition
    asm.emit("LT", condition, index, count)
    asm.emit("BRANCH", condition, 3, 5)
    asm.block()  # 3: its body
    asm.emit("ADD", total, total, index)
    asm.emit("ADD", index, index, one)
    asm.emit("JUMP", 2)
    asm.block()  # 4
    asm.emit("FILL", OUTPUTS, offset_out, size, 0xFFFFFFFF)
    asm.emit("RETURN")
    asm.block()  # 5
    asm.emit("DISPATCH", 0, one, one, one, offset_out, total)
    asm.emit("RETURN")
    program = asm.program(inputOffsetRegisters=[offset_in], outputOffsetRegisters=[offset_out])
    inputs, outputs = [tensor("n", "i64")], [tensor("y", "i64")]
    return module(program, inputs, outputs, kernels=("widths",)).to_bytes()


def test_loops_and_branches_in_execute() -> None:
    with opened(loop_module()) as program:
        # The second run of a value shows that a run starts from prepare's registers.
        for n in (0, 1, 10, 10, 1000, -5, 10):
            found = program(np.array(n, np.int64))[0]
            assert int(found) == (-1 if n < 0 else n * (n - 1) // 2)
        assert program.info().prepare_count == 1


def test_the_work_budget_ends_a_loop() -> None:
    with opened(loop_module(), work_budget=1000) as program:
        assert int(program(np.array(100, np.int64))[0]) == 4950
        with pytest.raises(Failed) as caught:
            program(np.array(1 << 40, np.int64))
        assert caught.value.status == "budget"
        assert caught.value.message.startswith("the work budget of 1000 is used up at word ")
        assert int(program(np.array(3, np.int64))[0]) == 3


def test_the_work_budget_counts_workgroups_and_bytes() -> None:
    assert run_once(trace_module((9, 1, 1)), work_budget=20)[0][0] == 9
    assert run_failure(trace_module((90, 1, 1)), work_budget=20).status == "budget"

    def emit(asm: Assembler, *_: int) -> None:
        asm.emit("FILL", ARENA, asm.register(0), asm.register(6400), 0)

    assert run_failure(movement(emit, arenaBytes=6400), X4, work_budget=50).status == "budget"
    run_once(movement(emit, arenaBytes=6400), X4, work_budget=150)


def test_the_work_budget_counts_buffers_that_are_placed() -> None:
    """Each may meet all before it."""
    count = 6000
    asm = Assembler()
    asm.block()
    size, offset = asm.register(64), asm.register()
    for number in range(count):
        asm.emit("BUFFER", number, size)
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    program = asm.program(buffers=[fbs.ArenaBufferT(0, 0, offset, 64)] * count)
    found = run_failure(module(program, [], []).to_bytes(), work_budget=5 * count)
    assert found.status == "budget"
    assert re.fullmatch(
        "the work budget is used up: arena buffer [0-9]+ of 6000 to be placed", found.message
    )


def shape_loop_module() -> bytes:
    """Output dims: the sum of 0..N-1 by a loop of the prepare part, and N if N > 3 else 7."""
    asm = Assembler()
    asm.block()
    n, i, total, condition = (asm.register() for _ in range(4))
    one, three = asm.register(1), asm.register(3)
    asm.emit("INPUT_DIM", n, 0, 0)
    asm.emit("JUMP", 1)
    asm.block()
    asm.emit("LT", condition, i, n)
    asm.emit("BRANCH", condition, 2, 3)
    asm.block()
    asm.emit("ADD", total, total, i)
    asm.emit("ADD", i, i, one)
    asm.emit("JUMP", 1)
    asm.block()
    asm.emit("OUTPUT_DIM", 0, 0, total)
    asm.emit("LT", condition, three, n)
    asm.emit("BRANCH", condition, 4, 5)
    asm.block()
    asm.emit("OUTPUT_DIM", 0, 1, n)
    asm.emit("RETURN")
    asm.block()
    asm.emit("OUTPUT_DIM", 0, 1, asm.register(7))
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    outputs = [tensor("y", "u8", dim("S"), dim("N|7"))]
    return module(asm.program(), [tensor("x", "u8", dim("N"))], outputs).to_bytes()


def test_shapes_are_computed_by_blocks() -> None:
    with opened(shape_loop_module()) as program:
        for n in (0, 2, 3, 4, 9):
            program.set_shape(0, "u8", n)
            program.prepare()
            expected = (n * (n - 1) // 2, n if n > 3 else 7)
            assert program.output_shape(0) == expected


def check_module(in_prepare: bool) -> bytes:
    """CHECKs that N is even, in either part."""
    asm = Assembler()

    def check() -> None:
        n = asm.register()
        asm.emit("INPUT_DIM", n, 0, 0)
        rest = asm.binary("FLOORMOD", n, asm.register(2))
        asm.emit("CHECK", asm.binary("EQ", rest, asm.register(0)), 1)

    asm.block()
    if in_prepare:
        check()
    asm.emit("RETURN")
    asm.execute()
    if not in_prepare:
        check()
    asm.emit("RETURN")
    messages = ["not this one", 'Reshape "r1": N must be even']
    program = asm.program(messages=messages)
    return module(program, [tensor("x", "u8", dim("N"))]).to_bytes()


@pytest.mark.parametrize("in_prepare", [True, False])
def test_a_check_gives_its_message(in_prepare: bool) -> None:
    with opened(check_module(in_prepare)) as program:
        program(np.zeros(4, np.uint8))
        with pytest.raises(Failed) as caught:
            program(np.zeros(5, np.uint8))
        assert caught.value.status == "check"
        assert caught.value.message == 'Reshape "r1": N must be even'
        program(np.zeros(4, np.uint8))
        program(np.zeros(6, np.uint8))


def test_a_checks_message_holds_values() -> None:
    asm = Assembler()
    asm.block()
    n, zero = asm.register(), asm.register(0)
    asm.emit("INPUT_DIM", n, 0, 0)
    twice = asm.binary("MUL", n, asm.register(-2))
    asm.emit("CHECK", asm.binary("EQ", n, zero), 0, n, twice)
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    text = "N is {0}, twice {1}{0}: {{0}} }} {2} { {x} {"
    file = module(asm.program(messages=[text]), [tensor("x", "u8", dim("N"))]).to_bytes()
    with opened(file) as program:
        with pytest.raises(Failed) as caught:
            program(np.zeros(5, np.uint8))
        assert caught.value.message == "N is 5, twice -105: {0} } {2} { {x} {"
        program(np.zeros(0, np.uint8))


def test_arithmetic_in_prepare_is_checked() -> None:
    asm = Assembler()
    asm.block()
    n = asm.register()
    asm.emit("INPUT_DIM", n, 0, 0)
    asm.emit("MUL", n, n, asm.register(1 << 62))
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    file = module(asm.program(), [tensor("x", "u8", dim("N"))]).to_bytes()
    with opened(file) as program:
        program.set_shape(0, "u8", 1)
        program.prepare()
        program.set_shape(0, "u8", 2)
        with pytest.raises(Failed, match=f"arithmetic: mul of 2 and {1 << 62} overflows"):
            program.prepare()


def test_an_entry_point_without_anything() -> None:
    asm = Assembler()
    asm.block()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    assert run_once(module(asm.program()).to_bytes()) == []
    assert entry(asm.program()).name == "main"


# extents that a run gives


def of_so_many(extent: int) -> bytes:
    """A module with output y, i64[n], of which there are 4 at most and `extent` in a run."""
    asm = Assembler()
    asm.block()
    asm.emit("OUTPUT_DIM", 0, 0, asm.register(4))
    given = asm.register(extent)
    asm.emit("RETURN")
    asm.execute()
    asm.emit("OUTPUT_DIM", 0, 0, given)
    asm.emit("RETURN")
    return module(asm.program(), [], [tensor("y", "i64", dim("n", 0, 4))]).to_bytes()


@pytest.mark.parametrize("extent", [0, 3, 4])
def test_a_run_gives_an_extent(extent: int) -> None:
    with opened(of_so_many(extent)) as program:
        program.prepare()
        assert program.output_shape(0) == (4,)
        program.run()
        assert program.output_shape(0) == (extent,)
        assert program.output(0).shape == (extent,)
        program.prepare()
        assert program.output_shape(0) == (4,)


@pytest.mark.parametrize("extent", [5, -1, 1 << 62, -(1 << 63)])
def test_an_output_of_an_extent_that_has_no_memory_has_no_data(extent: int) -> None:
    with opened(of_so_many(extent)) as program:
        program.run()
        result = tensors.CTensor()
        call("aot_program_get_output", program.handle, 0, out=result)
        assert not result.data
