"""Inputs, outputs, plans and memory: what a caller of the runtime can do right and wrong."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from aot.runtime import tensors
from tests.support.runtime_api import (
    CountingAllocator,
    Failed,
    Module,
    Program,
    call,
    failure,
    opened,
    run_failure,
)
from tests.support.runtime_modules import (
    ARENA,
    Assembler,
    arena_module,
    dim,
    fbs,
    module,
    scale_module,
    tensor,
)


def rows(n: int, value: float = 1.0) -> np.ndarray:
    """An input of scale_module."""
    return np.full((n, 3), value, np.float32)


# ---- right ----


def test_a_run() -> None:
    with opened(scale_module(3.0).to_bytes()) as program:
        x = np.arange(192, dtype=np.float32).reshape(64, 3)
        for n in (1, 2, 11, 64):
            np.testing.assert_array_equal(program(x[:n])[0], 3 * x[:n])


def test_outputs_in_the_callers_memory() -> None:
    with opened(scale_module().to_bytes(), caller_outputs=True) as program:
        program.set_input(0, rows(5))
        y = np.zeros((5, 3), np.float32)
        program.set_output(0, y)
        program.run()
        np.testing.assert_array_equal(y, rows(5, 2))
        larger = np.zeros((7, 3), np.float32)  # capacity may exceed what is needed
        program.set_output(0, larger)
        program.run()
        np.testing.assert_array_equal(larger[:5], rows(5, 2))
        np.testing.assert_array_equal(larger[5:], 0)


def test_the_programs_own_outputs_again_after_the_callers() -> None:
    with opened(scale_module().to_bytes()) as program:
        y = np.zeros((5, 3), np.float32)
        program.set_output(0, y)
        program.set_input(0, rows(5))
        program.run()
        program.set_output(0, None)
        assert program(rows(5, 4))[0][0, 0] == 8
        assert y[0, 0] == 2


def test_memory_that_is_too_small_is_not_given() -> None:
    """An output of the run before, which was larger, in the memory of one that was smaller."""
    with opened(scale_module().to_bytes()) as program:

        def given() -> tuple[int | None, int]:
            tensor = tensors.CTensor()
            call("aot_program_get_output", program.handle, 0, out=tensor)
            return tensor.data, tensor.bytes

        assert program(rows(2))[0][0, 0] == 2
        y = np.zeros((5, 3), np.float32)
        program.set_output(0, y)
        program.set_input(0, rows(5))
        program.run()
        assert given() == (y.ctypes.data, 60)
        program.set_output(0, None)
        assert given() == (None, 60)
        program.set_output(0, y[:3])
        assert given() == (None, 60)
        program.set_output(0, None)
        program.prepare()
        assert given()[0] is not None
        program.run()
        np.testing.assert_array_equal(program.output(0), rows(5, 2))


def test_offsets_between_inputs_wrap_around() -> None:
    """The second of two inputs lies before the first in memory, and so for the outputs."""
    asm = Assembler()
    asm.block()
    in0, in1, out0, out1 = (asm.register() for _ in range(4))
    one, count, bits = asm.register(1), asm.register(4), asm.register(0x40000000)
    asm.emit("RETURN")
    asm.execute()
    asm.emit("DISPATCH", 0, one, one, one, in1, out0, count, bits)
    asm.emit("DISPATCH", 0, one, one, one, in0, out1, count, bits)
    asm.emit("RETURN")
    program_table = asm.program(inputOffsetRegisters=[in0, in1], outputOffsetRegisters=[out0, out1])
    pair = [tensor("a", "f32", 4), tensor("b", "f32", 4)]
    file = module(program_table, pair, pair, kernels=("scale",)).to_bytes()
    memory = np.arange(8, dtype=np.float32)
    results = np.zeros(8, np.float32)
    for first, second in ((slice(0, 4), slice(4, 8)), (slice(4, 8), slice(0, 4))):
        with opened(file) as program:
            program.set_output(0, results[first])
            program.set_output(1, results[second])
            program(memory[first], memory[second])
            np.testing.assert_array_equal(results[first], 2 * memory[second])
            np.testing.assert_array_equal(results[second], 2 * memory[first])


def test_arena_buffers_grow_with_the_shape() -> None:
    with opened(arena_module().to_bytes()) as program:
        x = np.linspace(0, 1, 1000, dtype=np.float32)
        constants = np.arange(1000, dtype=np.float32)
        sizes = []
        for n in (1, 1000, 0, 500):
            np.testing.assert_array_equal(program(x[:n])[0], 2 * (x[:n] + constants[:n]))
            sizes.append(program.info().arena_bytes)
        # 100 fixed bytes end at 128 after alignment; then two buffers of 4 N, each aligned to 64.
        assert sizes == [128 + 64 + 4, 128 + 4032 + 4000, 128 + 4032 + 4000, 128 + 4032 + 4000]


# Sizes and lifetimes of four buffers that greedy placing puts into 5 units; these offsets need 4.
BUFFERS = ((1, 3, 4, 0), (3, 4, 4, 1), (3, 2, 2, 0), (1, 2, 3, 3))


def bounded_module(bound: int | None) -> bytes:
    """Four arena buffers of `N` to `3 * N` units of 64 bytes; y holds the offset of each."""
    asm = Assembler()
    asm.block()
    n, y = asm.register(), asm.register()
    asm.emit("INPUT_DIM", n, 0, 0)
    offsets = [asm.register() for _ in BUFFERS]
    for number, (units, *_) in enumerate(BUFFERS):
        asm.emit("BUFFER", number, asm.binary("MUL", n, asm.register(64 * units)))
    asm.emit("RETURN")
    asm.execute()
    one = asm.register(1)
    for number, offset in enumerate(offsets):
        place = asm.binary("ADD", y, asm.register(8 * number))
        asm.emit("DISPATCH", 0, one, one, one, place, offset)
    asm.emit("RETURN")
    buffers = [
        fbs.ArenaBufferT(first, last, register, 64, 64 * unit)
        for (_, first, last, unit), register in zip(BUFFERS, offsets, strict=True)
    ]
    program = asm.program(
        inputOffsetRegisters=[asm.register()],
        outputOffsetRegisters=[y],
        buffers=buffers,
        arenaBoundBytes=bound or 0,
    )
    inputs, outputs = [tensor("x", "u8", dim("N"))], [tensor("y", "i64", 4)]
    return module(program, inputs, outputs, kernels=("widths",)).to_bytes()


def test_the_arena_stays_within_its_bound() -> None:
    with opened(bounded_module(None)) as program:
        assert program(np.zeros(1, np.uint8))[0].tolist() == [192, 0, 0, 256]
        info = program.info()
        assert (info.arena_bytes, info.arena_bound_bytes) == (5 * 64, (1 << 64) - 1)
    with opened(bounded_module(4 * 64)) as program:
        assert program(np.zeros(1, np.uint8))[0].tolist() == [0, 64, 0, 192]
        info = program.info()
        assert (info.arena_bytes, info.arena_bound_bytes) == (4 * 64, 4 * 64)
        # sizes that the bound is not for: a file that lies must not make kernels write elsewhere
        with pytest.raises(Failed, match="bounds: arena buffer 1 of 384 bytes is above its bound"):
            program(np.zeros(2, np.uint8))
        assert program(np.zeros(0, np.uint8))[0].tolist() == [0, 0, 0, 0]


def test_a_fixed_arena_is_its_own_bound() -> None:
    with opened(scale_module().to_bytes()) as program:
        assert program.info().arena_bound_bytes == program.info().arena_bytes


# ---- plans ----


def test_plans_are_kept_for_shapes_seen_before() -> None:
    with opened(scale_module().to_bytes(), plan_count=2) as program:
        counts = []
        for n in (1, 1, 2, 1, 2, 3, 2, 1, 3):
            np.testing.assert_array_equal(program(rows(n))[0], rows(n, 2))
            counts.append(program.info().prepare_count)
        # 3 takes the place of 1, used longest ago; 1 that of 3; 3 that of 2.
        assert counts == [1, 1, 2, 2, 2, 3, 3, 4, 5]


def test_by_default_four_plans_are_kept() -> None:
    with opened(scale_module().to_bytes()) as program:
        for n in (1, 2, 3, 4) * 3:
            program(rows(n))
        assert program.info().prepare_count == 4


def test_a_failed_prepare_leaves_no_plan() -> None:
    asm = Assembler()
    asm.block()
    n = asm.register()
    asm.emit("INPUT_DIM", n, 0, 0)
    asm.emit("OUTPUT_DIM", 0, 0, asm.binary("MUL", n, asm.register(2)))
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    inputs, outputs = [tensor("x", "u8", dim("N"))], [tensor("y", "u8", dim("2*N", 2, 8))]
    with opened(module(asm.program(), inputs, outputs).to_bytes(), plan_count=1) as program:
        for n_rows in (5, 5, 0):
            program.set_shape(0, "u8", n_rows)
            found = failure(program.prepare)
            assert found.status == "shape"
            assert found.message == (
                f'output "y": axis 0 has extent {2 * n_rows}, outside what the module declares'
            )
            assert failure(lambda: program.output(0)).status == "not_ready"
        program.set_shape(0, "u8", 4)
        program.prepare()
        assert program.output_shape(0) == (8,)


# ---- wrong ----


@pytest.mark.parametrize(
    ("array", "status", "message"),
    [
        (np.zeros((2, 3), np.float64), "dtype", 'input "x": expected dtype f32, found f64'),
        (np.zeros((2, 4), np.float32), "shape", 'input "x": expected shape [N, 3], found [2, 4]'),
        (np.zeros(3, np.float32), "shape", 'input "x": expected shape [N, 3], found [3]'),
        (np.zeros((), np.float32), "shape", 'input "x": expected shape [N, 3], found a scalar'),
        (
            np.zeros((0, 3), np.float32),
            "shape",
            'input "x": expected shape [N, 3], found [0, 3]: '
            "axis 0, N, must be at least 1 and at most 64",
        ),
        (
            np.zeros((65, 3), np.float32),
            "shape",
            'input "x": expected shape [N, 3], found [65, 3]: '
            "axis 0, N, must be at least 1 and at most 64",
        ),
    ],
)
def test_a_wrong_input_is_refused_and_changes_nothing(
    array: np.ndarray, status: str, message: str
) -> None:
    with opened(scale_module().to_bytes()) as program:
        program.set_input(0, rows(2))
        found = failure(lambda: program.set_input(0, array))
        assert (found.status, found.message) == (status, message)
        program.run()
        np.testing.assert_array_equal(program.output(0), rows(2, 2))


def test_extents_that_overflow() -> None:
    with opened(arena_module().to_bytes()) as program:
        found = failure(lambda: program.set_shape(0, "f32", 1 << 62))
        assert found.status == "shape"
    asm = Assembler()
    asm.block()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    huge = [tensor("x", "f64", dim("N"), dim("M"))]
    with opened(module(asm.program(), huge).to_bytes()) as program:
        found = failure(lambda: program.set_shape(0, "f64", 1 << 40, 1 << 40))
        assert found.message.endswith("it does not fit the address space")
        assert failure(lambda: program.set_shape(0, "f64", -1, 0)).status == "shape"


def test_inputs_that_are_not_set_are_named() -> None:
    asm = Assembler()
    asm.block()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    inputs = [tensor("fixed", "f32", 2), tensor("open", "f32", dim("N"))]
    with opened(module(asm.program(), inputs).to_bytes()) as program:
        found = failure(program.run)
        assert (found.status, found.message) == (
            "not_ready",
            'inputs not set: "fixed", "open"',
        )
        # The fixed one has its shape from the start.
        assert failure(program.prepare).message == 'inputs without a shape: "open"'
        program.set_shape(1, "f32", 3)
        program.prepare()
        program.set_input(0, np.zeros(2, np.float32))
        assert failure(program.run).message == 'inputs not set: "open"'


def test_static_shapes_can_be_prepared_before_inputs_are_set() -> None:
    asm = Assembler()
    asm.block()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    shape = [tensor("x", "f32", 2, 3)]
    with opened(module(asm.program(), shape, [tensor("y", "f16", 4)]).to_bytes()) as program:
        assert failure(lambda: program.output(0)).message == (
            'output "y" has no shape before prepare or run'
        )
        program.prepare()
        assert program.output_shape(0) == (4,)


def test_indexes_out_of_range() -> None:
    with opened(scale_module().to_bytes()) as program:
        assert failure(lambda: program.set_input(1, rows(1))).message == "there is no input 1"
        found = failure(lambda: program.set_output(3, rows(1)))
        assert (found.status, found.message) == ("argument", "there is no output 3")


def test_output_memory_that_does_not_do() -> None:
    with opened(scale_module().to_bytes(), caller_outputs=True) as program:
        x = rows(5)
        program.set_input(0, x)
        found = failure(program.run)
        assert (found.status, found.message) == ("not_ready", 'output "y" has no memory')
        program.set_output(0, rows(5), capacity=59)
        found = failure(program.run)
        assert (found.status, found.message) == (
            "capacity",
            'output "y" needs 60 bytes, its memory has 59',
        )
        program.set_output(0, x)
        found = failure(program.run)
        assert (found.status, found.message) == (
            "argument",
            'output "y" overlaps input "x" in memory',
        )
        raw = np.zeros(100, np.uint8)
        odd = raw[1 + -raw.ctypes.data % 4 :][:60]
        found = failure(lambda: program.set_output(0, odd))
        assert found.message == 'output "y": its memory is not aligned to 4 bytes'
        found = failure(lambda: program.set_input(0, odd.view(np.float32).reshape(5, 3)))
        assert found.message == 'input "x": its memory is not aligned to 4 bytes'


def test_outputs_may_not_overlap() -> None:
    asm = Assembler()
    asm.block()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    outputs = [tensor("a", "u8", 4), tensor("b", "u8", 4)]
    with opened(module(asm.program(), [], outputs).to_bytes()) as program:
        memory = np.zeros(8, np.uint8)
        program.set_output(0, memory[:4])
        program.set_output(1, memory[4:])
        program.run()
        program.set_output(1, memory[3:7])
        assert failure(program.run).message == 'output "b" overlaps output "a" in memory'


def own_memory(program: Program, index: int, count: int, offset: int = 0) -> np.ndarray:
    """`count` floats of an output's own memory, from float `offset` on."""
    found = tensors.CTensor()
    call("aot_program_get_output", program.handle, index, out=found)
    return np.ctypeslib.as_array(
        ctypes.cast(found.data + 4 * offset, ctypes.POINTER(ctypes.c_float)), (count,)
    )


@pytest.mark.parametrize(("rows", "offset"), [(2, 0), (1, 0), (1, 3), (1, 5), (7, 0)])
def test_own_output_memory_is_no_input(rows: int, offset: int) -> None:
    """h -> h': refused whatever part of it, and also where shapes grow, when it would be freed."""
    with opened(scale_module().to_bytes()) as program:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        (y,) = program(x)
        own = own_memory(program, 0, 3 * rows, offset).reshape(rows, 3)
        message = (
            'its memory is the program\'s own, of output "y"; copy it, or give that output memory '
            "by set_output"
        )
        found = failure(lambda: program.set_input(0, own))
        assert (found.status, found.message) == ("argument", f'input "x": {message}')
        found = failure(lambda: program.set_output(0, own))
        assert (found.status, found.message) == ("argument", f'output "y": {message}')
        # Both stay as they were.
        program.run()
        np.testing.assert_array_equal(program.output(0), y)
        np.testing.assert_array_equal(program(program.output(0))[0], 2 * y)


def test_a_loop_over_two_buffers() -> None:
    """What the interface has for h -> h'."""
    with opened(scale_module().to_bytes()) as program:
        memory = [np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)]
        for step in range(4):
            program.set_input(0, memory[step % 2])
            program.set_output(0, memory[1 - step % 2])
            program.run()
        np.testing.assert_array_equal(memory[0], np.full((2, 3), 16, np.float32))


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
def test_own_memory_of_one_output_is_not_for_another(first: int, second: int) -> None:
    asm = Assembler()
    asm.block()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    outputs = [tensor("a", "f32", 4), tensor("b", "f32", 4)]
    with opened(module(asm.program(), [], outputs).to_bytes()) as program:
        program.run()
        own = own_memory(program, second, 4)
        found = failure(lambda: program.set_output(first, own))
        names = {0: "a", 1: "b"}
        problem = f'its memory is the program\'s own, of output "{names[second]}"; '
        assert found.message.startswith(f'output "{names[first]}": {problem}')


def test_too_many_plans() -> None:
    opening = Module(scale_module().to_bytes())
    found = failure(lambda: Program(opening, plan_count=17))
    assert found.message == "plan_count is 17, at most 16 expected"
    opening.close()


# ---- memory ----


def buffer_module(size_factor: int) -> bytes:
    """An arena buffer of size_factor * N bytes, behind 64 fixed ones that are filled."""
    asm = Assembler()
    asm.block()
    n, offset = asm.register(), asm.register()
    asm.emit("INPUT_DIM", n, 0, 0)
    asm.emit("BUFFER", 0, asm.binary("MUL", n, asm.register(size_factor)))
    asm.emit("RETURN")
    asm.execute()
    asm.emit("FILL", ARENA, asm.register(0), asm.register(64), 1)
    asm.emit("RETURN")
    program = asm.program(arenaBytes=64, buffers=[fbs.ArenaBufferT(0, 0, offset, 64)])
    return module(program, [tensor("x", "u8", dim("N"))]).to_bytes()


def test_an_arena_that_cannot_be() -> None:
    with opened(buffer_module(1 << 40)) as program:
        program.set_shape(0, "u8", 1 << 20)
        found = failure(program.prepare)
        assert (found.status, found.message) == (
            "memory",
            f"out of memory: {(1 << 60) + 64} bytes for the arena",
        )
        program.set_shape(0, "u8", 1 << 22)
        assert failure(program.prepare).message == ("out of memory: the arena does not fit 62 bits")
        # A plan that fits is as good as before.
        assert program(np.zeros(0, np.uint8)) == []
        assert program.info().arena_bytes == 64
    with opened(buffer_module(-1)) as program:
        found = failure(lambda: program(np.zeros(5, np.uint8)))
        assert (found.status, found.message[:27]) == ("bounds", "arena buffer 0 of -5 bytes,")


def test_after_a_failed_reservation_smaller_plans_run() -> None:
    allocator = CountingAllocator()
    with opened(arena_module().to_bytes(), allocator) as program:
        small = np.ones(3, np.float32)
        expected = program(small)[0]
        allocator.fail_at = allocator.calls + 1  # the plan's memory, then the arena
        found = failure(lambda: program(np.ones(900, np.float32)))
        assert found.status == "memory"
        assert found.message.endswith("for the arena")
        np.testing.assert_array_equal(program(small)[0], expected)
    assert allocator.errors == []
    assert not allocator.live


@pytest.mark.parametrize("file", [scale_module, arena_module])
def test_a_run_at_planned_shapes_allocates_nothing(file: object) -> None:
    allocator = CountingAllocator()
    source = file().to_bytes()  # type: ignore[operator]
    with opened(source, allocator) as program:
        shapes = [(n, 3) if file is scale_module else (n,) for n in (5, 64, 1, 17)]
        arrays = [np.ones(shape, np.float32) for shape in shapes]
        for array in arrays:
            program(array)
        before = allocator.calls
        for array in arrays * 5:
            program(array)
        assert allocator.calls == before
        y = np.zeros(shapes[0], np.float32)
        program.set_output(0, y)
        program(arrays[0])
        assert allocator.calls == before
    assert allocator.errors == []
    assert not allocator.live


def test_prepare_allocates_what_the_first_run_needs() -> None:
    allocator = CountingAllocator()
    with opened(arena_module().to_bytes(), allocator) as program:
        program.set_input(0, np.ones(100, np.float32))
        program.prepare()
        before = allocator.calls
        program.run()
        assert allocator.calls == before
        program.set_input(0, np.ones(200, np.float32))
        program.run()
        assert allocator.calls > before


def test_an_allocation_may_fail_at_any_call(tmp_path: Path) -> None:
    path = tmp_path / "module.aotm"
    path.write_bytes(arena_module().to_bytes())
    x = np.ones(100, np.float32)

    def attempt(allocator: CountingAllocator, copy: bool) -> np.ndarray:
        with opened(path, allocator, copy=copy) as program:
            program(x)
            return program(x[:50])[0]

    for copy in (False, True):
        counter = CountingAllocator()
        expected = attempt(counter, copy)
        assert counter.calls > 5
        for n in range(counter.calls):
            allocator = CountingAllocator(fail_at=n)
            with pytest.raises(Failed) as caught:
                attempt(allocator, copy)
            assert caught.value.status == "memory"
            assert "out of memory: " in caught.value.message
            assert allocator.errors == []
            assert not allocator.live, f"leaked after failing at call {n}"
        np.testing.assert_array_equal(attempt(CountingAllocator(counter.calls), copy), expected)


def test_outputs_outside_the_address_space() -> None:
    asm = Assembler()
    asm.block()
    n = asm.register()
    asm.emit("INPUT_DIM", n, 0, 0)
    for axis in range(3):
        asm.emit("OUTPUT_DIM", 0, axis, n)
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    outputs = [tensor("y", "f32", dim("N"), dim("N"), dim("N"))]
    file = module(asm.program(), [tensor("x", "u8", dim("N"))], outputs).to_bytes()
    found = run_failure(file, np.zeros(1 << 21, np.uint8))
    assert (found.status, found.message) == (
        "memory",
        'output "y" does not fit the address space',
    )


@pytest.mark.parametrize("character", ["é", "€", "\U0001f600"])
def test_messages_end_at_a_whole_character(character: str) -> None:
    """Whatever is left of the room of a message, and of a shape in it; what fits is kept."""
    most = 507
    with opened(scale_module().to_bytes()) as program:
        for shift in range(4):
            name = ("a" * shift + character * 400).encode()
            found = failure(
                lambda name=name: call(
                    "aot_program_find_input", program.handle, name, out=ctypes.c_size_t()
                )
            )
            text = found.message.encode()
            assert most - len(character.encode()) < len(text) <= most
            assert text.endswith(character.encode())
    for shift in range(4):
        declared = tensor("x", "f32", dim("a" * shift + character * 100), dim("M", 3, 3))
        asm = Assembler()
        asm.block()
        asm.emit("RETURN")
        asm.execute()
        asm.emit("RETURN")
        with opened(module(asm.program(), [declared], []).to_bytes()) as program:
            wrong = failure(lambda program=program: program.set_input(0, rows(1)[0]))
            shape = wrong.message.partition("expected shape ")[2].partition(", found [3]")[0]
            assert 200 - len(character.encode()) < len(shape.encode()) <= 200
    for shift in range(4):
        symbol = "a" * shift + character * 100
        asm = Assembler()
        asm.block()
        asm.emit("RETURN")
        asm.execute()
        asm.emit("RETURN")
        declared = tensor("x", "f32", dim(symbol, 5, 9))
        with opened(module(asm.program(), [declared], []).to_bytes()) as program:
            wrong = failure(lambda program=program: program.set_input(0, rows(1)[0]))
            shown = wrong.message.partition("axis 0, ")[2].partition(", must be")[0]
            assert 80 - len(character.encode()) < len(shown.encode()) <= 80
            assert symbol.startswith(shown)
        asm = Assembler()
        asm.block()
        asm.emit("RETURN")
        asm.execute()
        asm.emit("CHECK", asm.register(0), 0, asm.register(7))
        asm.emit("RETURN")
        message = f"{{0}}{'a' * shift}{character * 400}{{0}}"
        file = module(asm.program(messages=[message]), [], []).to_bytes()
        with opened(file) as program:
            wrong = failure(program.run)
            assert most - len(character.encode()) < len(wrong.message.encode()) <= most
            assert wrong.message.endswith(character)
