"""What the Vulkan backend emits: decisions, the ABI's fields, limits and their messages."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from aot.backends.vulkan.emit import compile_kernel
from aot.backends.vulkan.placement import place
from aot.backends.vulkan.shader import Shader
from aot.backends.vulkan.spirv import Op
from aot.errors import InternalError
from aot.ir.dims import Dim, symbol
from aot.ir.expr import Expr, Param, add, binary, index, mul
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    BufferClass,
    For,
    If,
    Kernel,
    KernelBuilder,
    LoopKind,
    Space,
    Stmt,
    Store,
)
from aot.target import selection as targets
from tests.support import vulkan_running
from tests.support.paths import ROOT
from tests.support.spirv_reader import instructions, opcodes
from tests.support.vulkan_case import F32, I32, dense, f32, load, spread
from tests.support.vulkan_case import tensor as make_tensor
from tests.support.vulkan_kernels import CASES, elementwise, many_params

INPUTS, OUTPUTS = BufferClass.INPUTS, BufferClass.OUTPUTS


def compiled(kernel: Kernel) -> Shader:
    return vulkan_running.build(kernel)


def mapped(count: int, lanes: int, make: Callable[[Expr, Expr], Expr]) -> Kernel:
    """y[i] = make(i, x[i]) where i < count."""
    b = KernelBuilder("mapped")
    x, y = make_tensor(b, "x", F32, INPUTS, count), make_tensor(b, "y", F32, OUTPUTS, count)
    return b.build(
        spread(
            b,
            count,
            lanes,
            lambda i, inside: (
                Store(y, (i,), make(i, load(x, i, guard=inside, other=f32(0))), inside),
            ),
        )
    )


def copied(extent: Dim, at: Callable[[Expr], Expr]) -> Kernel:
    """y[i] = x[at(i)], a lane each."""
    b = KernelBuilder("copied")
    for name in ("n", "m"):
        b.dim_param(name)
    x = b.buffer("x", F32, INPUTS, (symbol("n"),), (1,))
    y = b.buffer("y", F32, OUTPUTS, (symbol("n"),), (1,), is_written=True)
    group, lane = b.var("group"), b.var("lane")
    i = add(mul(group, index(64)), lane)
    return b.build(
        (
            For(
                group,
                extent,
                LoopKind.WORKGROUP,
                (For(lane, 64, LoopKind.LANE, (Store(y, (i,), load(x, at(i))),)),),
            ),
        )
    )


def test_shader_says_what_a_driver_must_know() -> None:
    shader = compiled(elementwise().kernel)
    assert shader.workgroup_size == (64, 1, 1)
    assert shader.bindings == (BufferClass.CONSTANTS, INPUTS, OUTPUTS)
    assert (shader.param_words, shader.push_constant_bytes, shader.param_buffer_bytes) == (5, 20, 0)
    assert shader.capabilities == ("Shader",)
    assert shader.texels == ()
    assert shader.texel is not None
    assert shader.texel.texels == ((BufferClass.CONSTANTS, 1), (INPUTS, 1))
    assert (shader.features, shader.entry_point, shader.shared_bytes) == ((), "main", 0)


def test_parameters_beyond_the_push_constants_come_in_a_buffer() -> None:
    kernel = many_params().kernel
    shader = compiled(kernel)
    assert (shader.param_words, shader.push_constant_bytes) == (42, 4)
    assert shader.param_buffer_bytes == 16384
    assert "Binding 4" in vulkan_running.disassemble(shader.words)


def test_the_limit_of_push_constants_is_the_targets() -> None:
    target = vulkan_running.vulkan_target()
    assert target.vulkan is not None
    for limit, expected in ((20, 0), (16, 16384)):
        limits = dataclasses.replace(target.vulkan, max_push_constant_bytes=limit)
        shader = compile_kernel(elementwise().kernel, dataclasses.replace(target, vulkan=limits))
        vulkan_running.validate(shader.words)
        assert shader.param_buffer_bytes == expected


def test_read_only_classes_are_decorated() -> None:
    text = vulkan_running.disassemble(compiled(elementwise().kernel).words)
    assert text.count("NonWritable") == 1  # constants and inputs share a block type


def test_guards_vanish_where_extents_divide() -> None:
    def found(kernel: Kernel) -> list[Op]:
        return opcodes(compiled(kernel).words)

    divided = found(mapped(128, 64, lambda i, v: v))
    assert Op.BRANCH_CONDITIONAL not in divided
    assert Op.SELECT not in divided
    assert Op.BRANCH_CONDITIONAL in found(mapped(127, 64, lambda i, v: v))


def test_a_guard_is_not_tested_again_under_itself() -> None:
    assert Op.SELECT not in opcodes(compiled(mapped(127, 64, lambda i, v: v)).words)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (lambda i: binary("floordiv", i, index(64)), set()),
        (lambda i: binary("floormod", i, index(64)), set()),
        (lambda i: binary("floordiv", i, index(8)), {Op.SHIFT_RIGHT_ARITHMETIC}),
        (lambda i: binary("floormod", i, index(8)), set()),
        (lambda i: binary("floordiv", i, index(7)), {Op.U_DIV}),
        (lambda i: binary("floordiv", i, index(symbol("m"))), {Op.U_DIV}),
        (lambda i: binary("floordiv", add(i, index(-9)), index(7)), {Op.U_DIV}),
        (lambda i: binary("floordiv", mul(i, index(-1)), index(7)), {Op.S_DIV}),
        (lambda i: binary("floordiv", add(i, index(-9)), index(8)), {Op.SHIFT_RIGHT_ARITHMETIC}),
    ],
)
def test_division_costs_what_it_must(at: Callable[[Expr], Expr], expected: set[Op]) -> None:
    divisions = {Op.U_DIV, Op.S_DIV, Op.SHIFT_RIGHT_ARITHMETIC}
    assert set(opcodes(compiled(copied(symbol("n"), at)).words)) & divisions == expected


def test_index_arithmetic_leaves_loops() -> None:
    b = KernelBuilder("rows")
    x = make_tensor(b, "x", F32, INPUTS, 64, 100)
    y = make_tensor(b, "y", F32, OUTPUTS, 64)
    total = b.scratch("total", F32, ())
    lane, k = b.var("lane"), b.var("k")
    shader = compiled(
        b.build(
            (
                For(
                    lane,
                    64,
                    LoopKind.LANE,
                    (
                        Store(total, (), f32(0)),
                        For(
                            k,
                            100,
                            LoopKind.SERIAL,
                            (Store(total, (), add(load(total), load(x, lane, k))),),
                        ),
                        Store(y, (lane,), load(total)),
                    ),
                ),
            )
        )
    )
    found = opcodes(shader.words)
    start = found.index(Op.LOOP_MERGE)
    loop = found[start : found.index(Op.BRANCH, start)]
    assert Op.I_MUL in found
    assert Op.I_MUL not in loop
    # In the loop: the address and the counter.
    assert loop.count(Op.I_ADD) == 2
    assert Op.VARIABLE not in found[found.index(Op.FUNCTION) :]


@pytest.mark.parametrize(
    ("kind", "extent", "is_indexed", "is_unrolled"),
    [
        (LoopKind.UNROLLED, 40, False, True),
        (LoopKind.VECTOR, 4, False, True),
        (LoopKind.VECTOR, 5, False, False),
        (LoopKind.VECTOR, 40, True, True),
        (LoopKind.VECTOR, 1000, True, False),
        (LoopKind.SERIAL, 4, False, False),
        (LoopKind.PARALLEL, 4, False, False),
        (LoopKind.SERIAL, 1, False, True),
    ],
)
def test_which_loops_are_unrolled(
    kind: LoopKind, extent: int, is_indexed: bool, is_unrolled: bool
) -> None:
    b = KernelBuilder("loops")
    y = make_tensor(b, "y", F32, OUTPUTS, extent)
    kept = b.scratch("kept", F32, (extent,))
    i = b.var("i")
    inner: tuple[Stmt, ...] = (Store(y, (i,), f32(1)),)
    if is_indexed:
        inner = (Store(kept, (i,), f32(1)), Store(y, (i,), load(kept, i)))
    kernel = b.build((For(i, extent, kind, inner),))
    gpu = vulkan_running.vulkan_target().gpu
    assert gpu is not None
    placement = place(kernel, gpu)
    assert bool(placement.unrolled) == is_unrolled
    assert placement.scratch[kept].is_promoted == (is_unrolled or not is_indexed)
    compiled(kernel)


def test_lane_dims_of_registers_are_dropped() -> None:
    b = KernelBuilder("dropped")
    y = make_tensor(b, "y", F32, OUTPUTS, 8, 3)
    kept = b.scratch("kept", F32, (8, 3))
    mixed = b.scratch("mixed", F32, (8, 8))
    first, second, r, q = b.var("first"), b.var("second"), b.var("r"), b.var("q")
    kernel = b.build(
        (
            For(
                first,
                8,
                LoopKind.LANE,
                (
                    For(
                        r,
                        3,
                        LoopKind.UNROLLED,
                        (Store(kept, (first, r), f32(1)), Store(mixed, (first, r), f32(2))),
                    ),
                ),
            ),
            For(
                second,
                8,
                LoopKind.LANE,
                (
                    For(
                        q,
                        3,
                        LoopKind.UNROLLED,
                        (
                            Store(
                                y, (second, q), add(load(kept, second, q), load(mixed, second, q))
                            ),
                        ),
                    ),
                ),
            ),
        )
    )
    gpu = vulkan_running.vulkan_target().gpu
    assert gpu is not None
    placement = place(kernel, gpu)
    assert placement.scratch[kept].kept == (1,)
    assert placement.elements(kept) == 3
    assert compiled(kernel).workgroup_size == (8, 1, 1)


def lanes_kernel(*extents: int) -> Kernel:
    b = KernelBuilder("lanes")
    y = make_tensor(b, "y", F32, OUTPUTS, *extents)
    variables = [b.var(f"l{axis}") for axis in range(len(extents))]
    body: tuple[Stmt, ...] = (Store(y, tuple(variables), f32(0)),)
    for axis, extent in enumerate(extents):
        body = (For(variables[axis], extent, LoopKind.LANE, body, axis),)
    return b.build(body)


def grid_kernel(counts: tuple[int, int, int]) -> Kernel:
    b = KernelBuilder("grid")
    y = make_tensor(b, "y", F32, OUTPUTS, *counts)
    variables = [b.var(f"g{axis}") for axis in range(3)]
    body: tuple[Stmt, ...] = (Store(y, tuple(variables), f32(0)),)
    for axis, count in enumerate(counts):
        body = (For(variables[axis], count, LoopKind.WORKGROUP, body, axis),)
    return b.build(body)


def uneven_lanes() -> Kernel:
    b = KernelBuilder("uneven")
    y = make_tensor(b, "y", F32, OUTPUTS, 8)
    return b.build(
        tuple(
            For(v, e, LoopKind.LANE, (Store(y, (v,), f32(0)),))
            for v, e in ((b.var("a"), 8), (b.var("b"), 4))
        )
    )


def large_scratch() -> Kernel:
    b = KernelBuilder("large")
    y = make_tensor(b, "y", F32, OUTPUTS, 64)
    shared = b.scratch("shared", F32, (64, 65), Space.WORKGROUP)
    lane = b.var("lane")
    return b.build(
        (
            For(
                lane,
                64,
                LoopKind.LANE,
                (Store(shared, (lane, index(0)), f32(1)), Store(y, (lane,), load(shared, lane, 0))),
            ),
        )
    )


def stores_to_inputs() -> Kernel:
    b = KernelBuilder("inputs")
    x = b.buffer("x", F32, INPUTS, (4,), dense(4), is_written=True)
    lane = b.var("lane")
    return b.build((For(lane, 4, LoopKind.LANE, (Store(x, (lane,), f32(0)),)),))


def unknown_param() -> Kernel:
    b = KernelBuilder("unknown")
    y = make_tensor(b, "y", I32, OUTPUTS, 4)
    lane = b.var("lane")
    return b.build((For(lane, 4, LoopKind.LANE, (Store(y, (lane,), Param("s", I32)),)),))


def wide_scratch() -> Kernel:
    b = KernelBuilder("wide")
    y = make_tensor(b, "y", DType.I64, OUTPUTS, 4)
    kept = b.scratch("kept", DType.I64, ())
    lane = b.var("lane")
    return b.build(
        (
            For(
                lane,
                4,
                LoopKind.LANE,
                (If(binary("lt", lane, index(2)), (Store(y, (lane,), load(kept)),)),),
            ),
        )
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: lanes_kernel(64, 4),
            "kernel lanes: a workgroup of 256 lanes, more than the target's",
        ),
        (
            lambda: lanes_kernel(1, 1, 65),
            "kernel lanes: 65 lanes on axis 2, more than the target's 64",
        ),
        (lambda: grid_kernel((70000, 1, 2)), "kernel grid: 70000 workgroups on axis 0, more than"),
        (lambda: grid_kernel((2, 70000, 1)), "kernel grid: 70000 workgroups on axis 1, more than"),
        (uneven_lanes, "kernel uneven: lane loops on axis 0 have extents"),
        (
            large_scratch,
            "kernel large: workgroup scratch takes 16640 bytes, more than the target's",
        ),
        (stores_to_inputs, "kernel inputs: store to x, which is inputs"),
        (unknown_param, "kernel unknown: no parameter s"),
        (wide_scratch, "kernel wide: scratch kept is i64, which legalisation should have removed"),
    ],
)
def test_what_breaks_a_promise_is_refused(make: Callable[[], Kernel], message: str) -> None:
    with pytest.raises(InternalError, match=message):
        compile_kernel(make(), vulkan_running.vulkan_target())


def test_a_cpu_target_is_refused() -> None:
    with pytest.raises(InternalError, match="target x86-64-v2 is not a vulkan target"):
        compile_kernel(elementwise().kernel, targets.load("x86-64-v2"))


def test_float_arithmetic_is_kept_apart() -> None:
    """Contraction or reassociation would break the compensated sums of our polynomials."""
    module = compiled(CASES["softmax"]().kernel).words
    decorated = {ops[0] for op, ops in instructions(module) if op is Op.DECORATE and ops[1] == 42}
    arithmetic = {
        ops[1]
        for op, ops in instructions(module)
        if op in (Op.F_ADD, Op.F_SUB, Op.F_MUL, Op.F_DIV) or (op is Op.EXT_INST and ops[3] == 50)
    }
    assert arithmetic
    assert decorated == arithmetic


HASHES = """
import hashlib
from tests.support import vulkan_kernels, vulkan_running
from aot.backends.vulkan.emit import compile_kernel
for name, make in vulkan_kernels.CASES.items():
    words = compile_kernel(make().kernel, vulkan_running.vulkan_target()).words
    print(name, hashlib.sha256(words).hexdigest())
"""


def test_same_words_whatever_the_hash_seed() -> None:
    found = set()
    for seed in ("1", "2"):
        environment = os.environ | {
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": str(ROOT),
        }
        done = subprocess.run(
            [sys.executable, "-c", HASHES],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        found.add(done.stdout)
    assert len(found) == 1
    assert len(found.pop().splitlines()) == len(CASES)
