"""The interpreter of kernel IR: memory, loops, and the promises that it checks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aot.errors import InternalError
from aot.ir.dims import symbol
from aot.kernels.ir.interpreter import run
from aot.kernels.ir.nodes import Barrier, BufferClass, For, Kernel, KernelBuilder, Space, Stmt
from aot.kernels.ir.verifier import verify
from tests.support.hard_kernels import HARD_KERNELS, HardKernel, class_buffers
from tests.support.kernel_terms import (
    F32,
    INDEX,
    add,
    f32,
    grid,
    ix,
    lane,
    let,
    load,
    mul,
    op,
    parallel,
    serial,
    store,
    vector,
    when,
)

Array = np.ndarray[Any, Any]
N = symbol("N")


def builder(size: Any = 8) -> tuple[KernelBuilder, Any, Any]:
    """A kernel under construction with an input `x` and an output `y` of `size` f32."""
    b = KernelBuilder("test")
    x = b.buffer("x", F32, BufferClass.INPUTS, (size,), (1,))
    y = b.buffer("y", F32, BufferClass.OUTPUTS, (size,), (1,), is_written=True)
    b.dim_param("N")
    return b, x, y


def execute(kernel: Kernel, x: Array, size: int | None = None, **options: Any) -> Array:
    verify(kernel)
    y = np.zeros(size or len(x), np.float32)
    run(kernel, {"x": x.astype(np.float32), "y": y}, {"N": len(x)}, **options)
    return y


def fails(kernel: Kernel, message: str, x: Array | None = None) -> None:
    verify(kernel)
    with pytest.raises(InternalError) as caught:
        execute(kernel, np.arange(8) if x is None else x, check_races=True)
    assert str(caught.value) == f"kernel test: {message}"


def test_symbolic_grid_and_guards_never_touch_memory() -> None:
    b, x, y = builder(N)
    g, v = b.var("g"), b.var("v")
    i = add(mul(g, 4), v)
    inside = op("lt", i, ix(N))
    kernel = b.build(
        grid(
            [(g, (N + 3) // 4, 0)],
            [
                vector(
                    v,
                    4,
                    [
                        store(
                            y, i, value=add(load(x, i, guard=inside, other=7), f32(1)), guard=inside
                        )
                    ],
                )
            ],
        )
    )
    for size in (1, 3, 4, 9):
        values = np.arange(size, dtype=np.float32)
        assert np.array_equal(execute(kernel, values, check_races=True), values + 1)


def test_no_iterations() -> None:
    b, x, y = builder(N)
    g = b.var("g")
    kernel = b.build(grid([(g, N - 8, 0)], [store(y, g, value=load(x, g))]))
    assert np.array_equal(execute(kernel, np.ones(8)), np.zeros(8))


def test_out_of_bounds_is_named() -> None:
    b, x, y = builder()
    i = b.var("i")
    fails(
        b.build((serial(i, 9, [store(y, ix(0), value=load(x, i))]),)),
        "index 8 of dim 0 of x is outside 0..7",
    )


def test_store_out_of_bounds_is_named() -> None:
    b, x, y = builder()
    i = b.var("i")
    fails(
        b.build((vector(i, 8, [store(y, add(i, -1), value=load(x, i))]),)),
        "index -1 of dim 0 of y is outside 0..7",
    )


def test_class_buffer_too_small() -> None:
    b, x, y = builder()
    i = b.var("i")
    kernel = b.build((vector(i, 8, [store(y, i, value=load(x, i))]),))
    arrays = {"inputs": np.zeros(40, np.uint8), "outputs": np.zeros(32, np.uint8)}
    with pytest.raises(
        InternalError, match="an element of x at byte 40 is outside its INPUTS buffer of 40 bytes"
    ):
        run(kernel, arrays, {"x_offset": 12, "y_offset": 0, "N": 8})
    with pytest.raises(InternalError, match="offset 2 of buffer x is not aligned to 4"):
        run(kernel, arrays, {"x_offset": 2, "y_offset": 0, "N": 8})
    with pytest.raises(InternalError, match="parameter y_offset has no value"):
        run(kernel, arrays, {"x_offset": 0, "N": 8})
    with pytest.raises(InternalError, match="buffer x needs 'inputs', which was not given"):
        run(kernel, {"outputs": arrays["outputs"]}, {"x_offset": 0, "y_offset": 0, "N": 8})


def test_aliasing_shows() -> None:
    b = KernelBuilder("shift")
    source = b.buffer("source", F32, BufferClass.ARENA, (4,), (1,))
    target = b.buffer("target", F32, BufferClass.ARENA, (4,), (1,), is_written=True)
    i = b.var("i")
    kernel = b.build((serial(i, 4, [store(target, i, value=load(source, i))]),))
    arena = np.array([1, 2, 3, 4, 5], np.float32)
    run(kernel, {"arena": arena.view(np.uint8)}, {"source_offset": 0, "target_offset": 4})
    assert np.array_equal(arena, [1, 1, 1, 1, 1])


def test_aliasing_across_iterations_is_a_race() -> None:
    b = KernelBuilder("shift")
    source = b.buffer("source", F32, BufferClass.ARENA, (4,), (1,))
    target = b.buffer("target", F32, BufferClass.ARENA, (4,), (1,), is_written=True)
    i = b.var("i")
    kernel = b.build((parallel(i, 4, [store(target, i, value=load(source, i))]),))

    def shifted(offset: int) -> None:
        run(
            kernel,
            {"arena": np.zeros(32, np.uint8)},
            {"source_offset": 0, "target_offset": offset},
            check_races=True,
        )

    shifted(0)
    shifted(16)
    with pytest.raises(
        InternalError,
        match="iterations 0 and 1 of parallel loop i are not independent: both touch source",
    ):
        shifted(4)


def test_undefined_scratch() -> None:
    b, _, y = builder()
    s = b.scratch("s", F32, (2,))
    fails(
        b.build((store(s, ix(0), value=f32(1)), store(y, ix(0), value=load(s, ix(1))))),
        "s is read where nothing was stored",
    )


def test_scratch_does_not_survive_a_workgroup() -> None:
    b, _, y = builder()
    s = b.scratch("s", F32, ())
    g = b.var("g")
    body: list[Stmt] = [when(op("eq", g, 0), [store(s, value=f32(1))]), store(y, g, value=load(s))]
    fails(b.build(grid([(g, 8, 0)], body)), "s is read where nothing was stored")


def test_vector_iterations_share_register_scratch() -> None:
    b, x, y = builder()
    s = b.scratch("s", F32, ())
    v = b.var("v")
    fails(
        b.build((vector(v, 8, [store(s, value=load(x, v)), store(y, v, value=load(s))]),)),
        "iterations 0 and 7 of vector loop v are not independent: both touch s",
    )


def test_parallel_iterations_have_scratch_to_themselves() -> None:
    b, x, y = builder()
    s = b.scratch("s", F32, ())
    i = b.var("i")
    body = parallel(i, 8, [store(s, value=load(x, i)), store(y, i, value=load(s))])
    kernel = b.build((body,))
    assert np.array_equal(execute(kernel, np.arange(8), check_races=True), np.arange(8))
    fails(
        replace(kernel, body=(body, store(y, ix(0), value=load(s)))),
        "s is read where nothing was stored",
    )


def test_parallel_iterations_carry_nothing() -> None:
    b, x, y = builder()
    s = b.scratch("s", F32, ())
    i = b.var("i")
    body = (
        store(s, value=f32(0)),
        parallel(i, 8, [store(s, value=add(load(s), load(x, i))), store(y, i, value=load(s))]),
    )
    fails(b.build(body), "iterations 0 and 7 of parallel loop i are not independent: both touch s")


def test_workgroups_may_not_meet() -> None:
    b, x, y = builder()
    g = b.var("g")
    fails(
        b.build(grid([(g, 8, 0)], [store(y, op("floordiv", g, 2), value=load(x, g))])),
        "iterations 0 and 1 of workgroup loop g are not independent: both touch y",
    )


def test_lanes_keep_registers() -> None:
    b, x, y = builder()
    s = b.scratch("s", F32, ())
    v, w = b.var("v"), b.var("w")
    kernel = b.build(
        (
            lane(v, 8, [store(s, value=load(x, v))]),
            lane(w, 8, [store(y, w, value=mul(load(s), f32(2)))]),
        )
    )
    assert np.array_equal(execute(kernel, np.arange(8), check_races=True), np.arange(8) * 2)


def test_uniform_registers_reach_lanes_of_two_axes() -> None:
    b, x, y = builder()
    s, t = b.scratch("s", F32, ()), b.scratch("t", F32, ())
    v, w, p = (b.var(name) for name in "vwp")
    kernel = b.build(
        (
            store(s, value=load(x, ix(3))),
            lane(v, 2, [store(t, value=load(x, v))]),
            lane(w, 4, [lane(p, 2, [store(y, add(mul(p, 4), w), value=add(load(s), load(t)))])], 1),
        )
    )
    verify(kernel)
    expected = np.repeat(np.arange(2), 4) + 3
    assert np.array_equal(execute(kernel, np.arange(8), check_races=True), expected)


def test_lanes_see_each_other_only_after_a_barrier() -> None:
    b, x, y = builder()
    s = b.scratch("s", F32, (8,), Space.WORKGROUP)
    v, w = b.var("v"), b.var("w")
    first = lane(v, 8, [store(s, v, value=load(x, v))])
    reverse = lane(w, 8, [store(y, w, value=load(s, add(mul(w, -1), 7)))])
    kernel = b.build((first, Barrier(), reverse))
    assert np.array_equal(execute(kernel, np.arange(8), check_races=True), np.arange(8)[::-1])
    fails(
        replace(kernel, body=(first, reverse)),
        "lanes 0 and 7 of a workgroup race: both touch s with no barrier between (-1: all lanes)",
    )


def test_barriers_do_not_order_buffers() -> None:
    b = KernelBuilder("test")
    x = b.buffer("x", F32, BufferClass.INPUTS, (8,), (1,))
    y = b.buffer("y", F32, BufferClass.OUTPUTS, (8,), (1,), is_written=True)
    v, w = b.var("v"), b.var("w")
    again = load(y, add(mul(w, -1), 7))
    fails(
        b.build(
            (
                lane(v, 8, [store(y, v, value=load(x, v))]),
                Barrier(),
                lane(w, 8, [store(y, w, value=again)]),
            )
        ),
        "lanes 0 and 7 of a workgroup race: both touch y with no barrier between (-1: all lanes)",
    )


def test_lets_are_scoped_and_conditions_differ_by_iteration() -> None:
    b, x, y = builder()
    v, t = b.var("v"), b.var("t", F32)
    kernel = b.build(
        (
            vector(
                v,
                8,
                [
                    let(t, mul(load(x, v), f32(3))),
                    when(
                        op("lt", v, 3),
                        [store(y, v, value=t)],
                        [when(op("ge", v, 6), [store(y, v, value=f32(-1))])],
                    ),
                ],
            ),
        )
    )
    assert np.array_equal(
        execute(kernel, np.arange(8), check_races=True), [0, 3, 6, 0, 0, 0, -1, -1]
    )


def _without_barrier(body: tuple[Stmt, ...], number: int) -> tuple[tuple[Stmt, ...], int]:
    """`body` less its barrier `number`; also how many were met."""
    result: list[Stmt] = []
    met = 0
    for stmt in body:
        if isinstance(stmt, For):
            inner, count = _without_barrier(stmt.body, number - met)
            stmt = replace(stmt, body=inner)
            met += count
        elif isinstance(stmt, Barrier):
            met += 1
            if met - 1 == number:
                continue
        result.append(stmt)
    return tuple(result), met


BARRIERS = [
    pytest.param(case, number, id=f"{case.name}-{number}")
    for case in HARD_KERNELS
    for number in range(_without_barrier(case.kernel.body, -1)[1])
]


@pytest.mark.parametrize(("case", "number"), BARRIERS)
def test_every_barrier_of_the_hard_kernels_is_needed(case: HardKernel, number: int) -> None:
    body, _ = _without_barrier(case.kernel.body, number)
    arrays, params, _ = class_buffers(case)
    with pytest.raises(InternalError, match="of a workgroup race"):
        run(replace(case.kernel, body=body), arrays, params, check_races=True)


def test_index_scratch_and_bool_memory() -> None:
    from tests.support.kernel_terms import BOOL

    b = KernelBuilder("argmax")
    x = b.buffer("x", F32, BufferClass.INPUTS, (8,), (1,))
    y = b.buffer("y", BOOL, BufferClass.OUTPUTS, (8,), (1,), is_written=True)
    best = b.scratch("best", INDEX, ())
    i, v = b.var("i"), b.var("v")
    kernel = b.build(
        (
            store(best, value=ix(0)),
            serial(i, 8, [when(op("gt", load(x, i), load(x, load(best))), [store(best, value=i)])]),
            vector(v, 8, [store(y, v, value=op("eq", v, load(best)))]),
        )
    )
    verify(kernel)
    values = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.float32)
    outputs = np.full(8, 0xA5, np.uint8)
    run(kernel, {"x": values, "y": outputs}, {})
    assert outputs.tolist() == [0, 0, 0, 0, 0, 1, 0, 0]
