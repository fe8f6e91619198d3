"""Inputs and outputs with strides (aot/strides.h), against numpy's views of larger arrays."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from aot.runtime import tensors
from tests.support.runtime_api import (
    CountingAllocator,
    Program,
    call,
    failure,
    opened,
)
from tests.support.runtime_modules import (
    INPUTS,
    OUTPUTS,
    Assembler,
    dim,
    module,
    scale_module,
    tensor,
)

DTYPES = ("u8", "f16", "f32", "i64")


def copy_module(dtype: str, rank: int, *, updates: bool = False) -> bytes:
    """y = x, of open extents; with `updates`, x is what y is after a run."""
    asm = Assembler()
    asm.block()
    size = asm.register(np.dtype(tensors.NUMPY[dtype]).itemsize)
    for axis in range(rank):
        extent = asm.register()
        asm.emit("INPUT_DIM", extent, 0, axis)
        asm.emit("OUTPUT_DIM", 0, axis, extent)
        size = asm.binary("MUL", size, extent)
    offset_in, offset_out = asm.register(), asm.register()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("COPY", OUTPUTS, offset_out, INPUTS, offset_in, size)
    asm.emit("RETURN")
    more = {"updates": [1]} if updates else {}
    program = asm.program(
        inputOffsetRegisters=[offset_in], outputOffsetRegisters=[offset_out], **more
    )
    dims = [dim(f"N{axis}", 0, 100) for axis in range(rank)]
    return module(program, [tensor("x", dtype, *dims)], [tensor("y", dtype, *dims)]).to_bytes()


def set_strided(
    program: Program, side: str, view: np.ndarray, whole: np.ndarray | None = None, **fields: int
) -> None:
    """aot_program_set_input_strided or its twin, of a view of numpy's."""
    base = view if whole is None else whole
    dims = (ctypes.c_int64 * max(view.ndim, 1))(*view.shape)
    strides = (ctypes.c_int64 * max(view.ndim, 1))(*view.strides)
    start = view.ctypes.data
    given = tensors.CTensor(
        dtype=tensors.CODES[view.dtype],
        rank=view.ndim,
        dims=ctypes.cast(dims, ctypes.POINTER(ctypes.c_int64)),
        data=start,
        bytes=base.ctypes.data + base.nbytes - start,
    )
    for name, value in fields.items():
        setattr(given, name, value)
    program._alive[side, 0] = (view, base)
    call(f"aot_program_set_{side}_strided", program.handle, 0, ctypes.byref(given), strides)


def views(dtype: str) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Names, views, and the arrays that hold them."""
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 100, (6, 7, 8, 5)).astype(tensors.NUMPY[dtype])
    return places(whole)


def places(whole: np.ndarray) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """The same views of an array of that shape."""
    part = whole[1:4, 2:6, ::2, 1:3]
    found = [("rows", whole[1:4], whole), ("part", part, whole)]
    for order in itertools.permutations(range(4)):
        found.append((f"axes {order}", part.transpose(order), whole))
    return [
        *found,
        ("empty", whole[:0, :2], whole),
        ("one", whole[2:3, 3:4, 4:5, 1:2], whole),
        ("column", whole[:, 3, 2, 1], whole),
        ("scalar", whole[1, 2, 3, 4:5].reshape(()), whole),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_are_gathered(dtype: str) -> None:
    for name, view, whole in views(dtype):
        with opened(copy_module(dtype, view.ndim)) as program:
            set_strided(program, "input", view, whole)
            program.run()
            np.testing.assert_array_equal(program.output(0), view, err_msg=name)


def test_a_broadcast_is_a_stride_of_zero() -> None:
    row = np.arange(5, dtype=np.float32)
    view = np.broadcast_to(row, (3, 5))
    with opened(copy_module("f32", 2)) as program:
        set_strided(program, "input", view, row)
        program.run()
        np.testing.assert_array_equal(program.output(0), view)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("caller_outputs", [False, True])
def test_views_are_scattered_and_nothing_else_is_written(dtype: str, caller_outputs: bool) -> None:
    for name, view, _ in views(dtype):
        x = view.copy(order="C")
        whole = np.full((6, 7, 8, 5), 77, x.dtype)
        place = next(v for n, v, _ in places(whole) if n == name)
        expected = np.full_like(whole, 77)
        next(v for n, v, _ in places(expected) if n == name)[...] = x
        with opened(copy_module(dtype, view.ndim), caller_outputs=caller_outputs) as program:
            program.set_input(0, x)
            set_strided(program, "output", place, whole)
            program.run()
            np.testing.assert_array_equal(whole, expected, err_msg=name)
            np.testing.assert_array_equal(program.output(0), x)


def test_a_run_of_fewer_rows_fills_a_part_of_the_room() -> None:
    room = np.full((8, 6), -1.0, np.float32)
    with opened(copy_module("f32", 2)) as program:
        set_strided(program, "output", room[:, :3], room)
        for rows in (2, 8, 5):
            room[...] = -1
            x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
            program.set_input(0, x)
            program.run()
            np.testing.assert_array_equal(room[:rows, :3], x)
            assert (room[rows:] == -1).all()
            assert (room[:, 3:] == -1).all()
        program.set_input(0, np.zeros((9, 3), np.float32))
        found = failure(program.run)
        assert found.status == "capacity"
        assert found.message == ('output "y" has extent 9 along axis 0, its memory has room for 8')


def test_a_smaller_view_takes_the_place_of_a_larger_one() -> None:
    whole = np.arange(40, dtype=np.float32)
    with opened(copy_module("f32", 1)) as program:
        for count in (9, 4, 0, 16, 3):
            view = whole[::2][:count]
            set_strided(program, "input", view, whole)
            program.run()
            np.testing.assert_array_equal(program.output(0), view)


def test_dense_memory_takes_the_place_of_strided_memory() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    room = np.full((4, 6), -1.0, np.float32)
    with opened(copy_module("f32", 2)) as program:
        set_strided(program, "input", room[:, ::2], room)
        set_strided(program, "output", room[:, :3], room)
        program.set_input(0, x)
        dense = np.zeros((4, 3), np.float32)
        program.set_output(0, dense)
        program.run()
        np.testing.assert_array_equal(dense, x)
        assert (room == -1).all()
        program.set_output(0, None)
        program.run()
        np.testing.assert_array_equal(program.output(0), x)
        set_strided(program, "output", room[:, :3], room)
        program.run()
        np.testing.assert_array_equal(room[:, :3], x)


def test_runs_at_planned_shapes_allocate_nothing() -> None:
    allocator = CountingAllocator()
    whole = np.arange(48, dtype=np.float32).reshape(8, 6)
    room = np.zeros((8, 6), np.float32)
    with opened(copy_module("f32", 2), allocator) as program:
        set_strided(program, "input", whole[:, :3], whole)
        set_strided(program, "output", room[:, :3], room)
        program.run()
        calls = allocator.calls
        for _ in range(3):
            whole += 1
            program.run()
            np.testing.assert_array_equal(room[:, :3], whole[:, :3])
        assert allocator.calls == calls
    assert not allocator.live
    assert not allocator.errors


def test_memory_that_fails_leaves_everything_as_it_was() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    whole = np.zeros((100, 64), np.float32)
    for fail_at in range(1, 4):
        allocator = CountingAllocator()
        with opened(copy_module("f32", 2), allocator) as program:
            program.set_input(0, x)
            program.run()
            allocator.fail_at = allocator.calls + fail_at
            try:
                set_strided(program, "input", whole[:, :50], whole)
            except Exception as error:
                assert getattr(error, "status", "") == "memory"
                allocator.fail_at = None
                program.run()
                np.testing.assert_array_equal(program.output(0), x)
        assert not allocator.live
        assert not allocator.errors


WRONG = (
    ({}, (-4, 4), "argument", "stride -4 along axis 0, expected 0 or a multiple of 4 bytes"),
    ({}, (12, 3), "argument", "stride 3 along axis 1, expected 0 or a multiple of 4 bytes"),
    ({"bytes": 43}, (12, 4), "capacity", "its memory has 43 bytes, its strides go beyond them"),
    ({}, (2**62, 4), "capacity", "its strides go beyond them"),
    ({"rank": 1}, (12, 4), "shape", "rank 1, expected 2"),
    ({"dtype": 3}, (12, 4), "dtype", "dtype f32 expected"),
    ({"data": None}, (12, 4), "argument", "strides, dims or data is NULL"),
    ({"data": 2}, (12, 4), "argument", "its memory is not aligned to 4 bytes"),
    ({"size": 0}, (12, 4), "argument", "the aot_tensor_t has size 0"),
)


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize(("fields", "strides", "status", "message"), WRONG)
def test_misuse(
    side: str, fields: dict[str, int], strides: tuple[int, int], status: str, message: str
) -> None:
    x = np.zeros((4, 3), np.float32)
    view = np.lib.stride_tricks.as_strided(x, (4, 3), strides)
    with opened(copy_module("f32", 2)) as program:
        found = failure(lambda: set_strided(program, side, view, x, **fields))
        assert found.status == status
        assert message in found.message


def test_misuse_of_one_side() -> None:
    x = np.zeros((4, 3), np.float32)
    with opened(copy_module("f32", 2)) as program:
        for strides in ((4, 4), (0, 4), (8, 4)):
            view = np.lib.stride_tricks.as_strided(x, (4, 3), strides)
            found = failure(lambda v=view: set_strided(program, "output", v, x))  # type: ignore[misc]
            assert found.message == 'output "y": two elements have the same place'
        big = np.zeros((101, 3), np.float32)
        found = failure(lambda: set_strided(program, "input", big))
        assert found.status == "shape"
        program.set_input(0, x)
        program.run()
        held = program.output(0)
        owned = tensors.CTensor()
        call("aot_program_get_output", program.handle, 0, out=owned)
        found = failure(lambda: set_strided(program, "input", x, x, data=owned.data))
        assert "its memory is the program's own" in found.message
        np.testing.assert_array_equal(held, x)
    with opened(copy_module("f32", 2, updates=True)) as program:
        found = failure(lambda: set_strided(program, "input", x))
        assert found.message == 'input "x" is written by the program: it must be dense'


def test_a_failed_run_writes_nothing() -> None:
    room = np.full((2, 6), -1.0, np.float32)
    with opened(scale_module().to_bytes()) as program:
        program.set_input(0, np.ones((2, 3), np.float32))
        set_strided(program, "output", room[:, :3], room)
        call("aot_program_set_cancelled", program.handle, True)
        assert failure(program.run).status == "cancelled"
        assert (room == -1).all()
        call("aot_program_set_cancelled", program.handle, False)
        program.run()
        assert (room[:, :3] == 2).all()
        assert (room[:, 3:] == -1).all()
