"""What the CPU backend's code looks like: registers, instructions, symbols, and equal bytes."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from aot.backends.cpu.compile import compile_kernel, emit_assembly, emit_llvm
from aot.backends.cpu.scratch import scratch_bytes
from aot.errors import InternalError
from aot.ir.dims import symbol
from aot.ir.expr import Binary, Load
from aot.ir.types import DType
from aot.kernels.ir.nodes import BufferClass, Kernel, KernelBuilder, Space
from aot.kernels.lowering import lower
from aot.link.code_image import link_image
from aot.target import selection as targets
from tests.support.cpu_case import Case
from tests.support.cpu_cases import access_cases, tail
from tests.support.cpu_linked import check_image
from tests.support.cpu_operators import operator_cases
from tests.support.cpu_running import native_targets, target_of
from tests.support.cpu_tiles import chain, matmul_tile, tile
from tests.support.executables import Conv
from tests.support.kernel_terms import (
    F32,
    add,
    call,
    f32,
    ix,
    lane,
    load,
    op,
    serial,
    store,
    vector,
)
from tests.support.paths import ROOT
from tests.support.qemu import EMULATED_TARGETS
from tests.support.quantising_cases import quantising
from tests.support.table_cases import byte_table

CPU_TARGETS = [n for n in targets.names() if targets.load(n).is_cpu]


def inner_loop(assembly: str, instruction: str) -> list[str]:
    """The instructions of the loop that holds the most of `instruction`."""
    lines = [line.strip() for line in assembly.splitlines()]
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    best: list[str] = []
    for i, line in enumerate(lines):
        for start in (labels[w] for w in re.findall(r"\.LBB\d+_\d+", line) if w in labels):
            body = [x for x in lines[start : i + 1] if not x.startswith(".")]
            if start < i and sum(instruction in x for x in body) > sum(
                instruction in x for x in best
            ):
                best = body
    return best


def innermost_loops(assembly: str) -> list[list[str]]:
    """The instructions of each loop that has no label but its own."""
    found: list[list[str]] = []
    label, body = "", []
    for line in (x.strip() for x in assembly.splitlines()):
        if line.endswith(":"):
            label, body = line[:-1], []
        elif label and not line.startswith("."):
            body.append(line)
            if label in re.findall(r"\.LBB\d+_\d+", line):
                found.append(body)
    return found


# Tiles that leave registers for a row of B and a broadcast of A.
@pytest.mark.parametrize(
    ("target", "height", "width", "instruction", "per_step"),
    [
        ("x86-64-v4", 12, 32, "vfmadd231ps", 24),
        ("x86-64-v4", 14, 32, "vfmadd231ps", 28),
        ("x86-64-v3", 6, 16, "vfmadd231ps", 12),
        ("x86-64-v3-128", 2, 16, "vfmadd231ps", 8),
        ("x86-64-v2", 2, 16, "mulps", 8),
        ("aarch64-generic", 6, 16, "fmla", 24),
        ("armv7-neon", 2, 16, "vmla.f32", 8),
        ("riscv64", 1, 16, "fmadd.s", 16),
        ("riscv64-v", 6, 16, "vfmacc.vf", 6),
        ("thumbv7em", 1, 16, "vfma.f32", 16),
    ],
)
def test_tile_stays_in_registers(
    target: str, height: int, width: int, instruction: str, per_step: int
) -> None:
    loop = inner_loop(emit_assembly(matmul_tile(height, width, 16), target_of(target)), instruction)
    assert sum(instruction in line for line in loop) == per_step
    assert not [line for line in loop if re.search(r"%[re]sp|\bsp\b", line)]
    # The products, loads of both sides, and little else.
    assert len(loop) <= 3 * per_step + 8


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("channels", "outputs"), [(16, 16), (24, 48), (40, 40), (96, 24)])
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64-generic"])
def test_border_takes_no_registers(target: str, channels: int, outputs: int, stride: int) -> None:
    """The guards of tiles at an open image's border once had registers of the other tiles' sums."""
    function = Conv((channels, outputs, 28, 28), 3, stride, 1, opened="HW").function()
    code = emit_assembly(lower(function, targets.load(target)), target_of(target))
    instruction = "fmla" if target.startswith("aarch64") else "vfmadd231ps"
    loops = innermost_loops(code)
    counts = [sum(instruction in line for line in x) for x in loops]
    # a tile inside the border may do three steps in a turn
    assert sum(3 * count >= max(counts) for count in counts) > 1
    tiles = [x for x, count in zip(loops, counts, strict=True) if count == max(counts)]
    spilled = re.compile(r"\(%rsp\).*mm\d|mm\d.*\(%rsp\)|\bq\d+,.*\bsp\b")
    assert not [line for line in min(tiles, key=len) if spilled.search(line)]


def relu_kernel() -> Kernel:
    b = KernelBuilder("relu")
    x = b.buffer("x", F32, BufferClass.INPUTS, (64,), (1,))
    y = b.buffer("y", F32, BufferClass.OUTPUTS, (64,), (1,), is_written=True)
    v = b.var("v")
    return b.build((vector(v, 64, [store(y, v, value=op("max", load(x, v), 0.0))]),))


def test_relu_is_one_instruction_a_vector() -> None:
    code = emit_assembly(relu_kernel(), target_of("x86-64-v4"))
    assert code.count("vmaxps") == 4
    assert "cmp" not in code


def test_a_vector_of_bytes_is_looked_up_at_once() -> None:
    code = emit_assembly(byte_table(64, 256).make(), target_of("x86-64-v4-vnni"))
    assert len(re.findall(r"vperm[it]2b", code)) == 2
    assert "vpextrb" not in code and "vpinsrb" not in code


def test_numbers_are_rounded_as_they_become_integers() -> None:
    code = emit_assembly(quantising(DType.U8, 7, 16).make(), target_of("x86-64-v4"))
    assert "vrndscaleps" not in code
    assert code.count("vcvtps2dq") == 1
    assert code.count("vmaxps") == code.count("vminps") == 1


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "x86-64-v2"])
def test_quantised_numbers_fill_a_register_of_bytes(target: str) -> None:
    """One addition a vector of words, one permutation and one store: no byte by itself."""
    lanes = target_of(target).vector_bytes
    case = quantising(DType.U8, 7, lanes, is_centred=False)
    code = emit_assembly(case.make(), target_of(target))
    found = [len(re.findall(name, code)) for name in ("packssdw", "packuswb", "paddsw")]
    assert found == [2, 1, 2]
    assert not re.search("pmovdb|pmovusdb|pextr|pinsr|maxps", code)


# Where kernels run, by test_kernels.py and test_qemu.py beside this and by test_wasm_kernels.py,
# they are linked too: all of them, but for what these leave out.
_RUN = {*native_targets(), *EMULATED_TARGETS, "wasm32"} - {"riscv64-v"}


# Code for these has instructions that code for one of the others has, and its system.
_ALIKE = {
    "aarch64-android",
    "aarch64-android-dotprod",
    "aarch64-linux-i8mm",
    "x86-64-v3-128",
    "x86-64-v3-vnni",
    "x86-64-v4-vnni",
}


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(name, marks=pytest.mark.sweep) if name in _ALIKE else name
        for name in CPU_TARGETS
        if name not in _RUN
    ],
)
def test_every_kernel_links_with_nothing_undefined(target: str) -> None:
    record = target_of(target)
    cases = [c for c in [*access_cases(), *operator_cases(record, ["vector"])] if c.runs_on(record)]
    objects = [compile_kernel(case.make(), record) for case in cases]
    check_image(link_image(objects, record), record, len(cases))


@pytest.mark.parametrize("target", ["aarch64-generic", "aarch64-android"])
@pytest.mark.parametrize("case", [chain(16), tile(4, 16, 8, 16)], ids=lambda c: c.name)
def test_platform_register_is_left_alone(case: Case, target: str) -> None:
    assert not re.search(r"\b[xw]18\b", emit_assembly(case.make(), target_of(target)))


def test_no_fused_product_where_the_target_has_none() -> None:
    assert "fma" not in emit_assembly(matmul_tile(2, 16, 16), target_of("x86-64-v2"))


def test_whole_vectors_need_no_mask() -> None:
    """Without mask registers a guarded loop has a body for whole vectors, free of branches."""
    code = emit_assembly(tail(16, 64, F32).make(), target_of("x86-64-v3"))
    assert code.count("vmaskmov") == 0
    assert code.count("vaddps") == 2


_DIGESTS = """
import hashlib, sys
sys.path[:0] = sys.argv[1:]
from tests.support.cpu_digest import digest
for target in ("x86-64-v4", "x86-64-v2", "thumbv7em"):
    print(target, digest(target))
"""


def test_same_bytes_in_any_process() -> None:
    found = set()
    for seed in ("0", "1234"):
        result = subprocess.run(
            [sys.executable, "-c", _DIGESTS, str(ROOT)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        found.add(result.stdout)
    assert len(found) == 1


def test_dump_is_text_of_one_function() -> None:
    text = emit_llvm(relu_kernel(), target_of("x86-64-v3"))
    assert text.count("define ") == 1
    assert 'target triple = "x86_64-unknown-linux-gnu"' in text
    assert "fcmp ogt <8 x float>" in text
    assert "alloca" not in emit_llvm(
        matmul_tile(2, 16, 16), target_of("x86-64-v3"), is_optimised=True
    )


# What is refused ----------------------------------------------------------------------------------


def test_stack_is_bounded() -> None:
    b = KernelBuilder("big")
    small = b.scratch("small", F32, (10,))
    huge = b.scratch("huge", F32, (100, 100))
    kernel = b.build((store(small, 0, value=f32(0)), store(huge, 0, 0, value=f32(0))))
    with pytest.raises(
        InternalError,
        match=r"kernel big: scratch huge takes the stack to 40040 "
        r"bytes, target x86-64-v3 allows 16384",
    ):
        compile_kernel(kernel, target_of("x86-64-v3"))


def test_lanes_must_agree_on_one_element() -> None:
    b = KernelBuilder("clash")
    x = b.buffer("x", F32, BufferClass.INPUTS, (16,), (1,))
    y = b.buffer("y", F32, BufferClass.OUTPUTS, (1,), (1,), is_written=True)
    v = b.var("v")
    kernel = b.build((vector(v, 16, [store(y, 0, value=load(x, v))]),))
    with pytest.raises(
        InternalError,
        match="kernel clash: the lanes of a vector loop store different values to one element of y",
    ):
        compile_kernel(kernel, target_of("x86-64-v3"))


def test_other_rules() -> None:
    target = target_of("x86-64-v3")
    b = KernelBuilder("wrong")
    x = b.buffer("x", F32, BufferClass.ARENA, (4, 4), (4, 1), is_written=True)
    i = b.var("i")
    for stmt, message in (
        (store(x, 0, value=f32(0)), "x has 2 dims, accessed with 1 indices"),
        (store(x, 0, 0, value=ix(0)), "store of index to x of f32"),
        (store(x, 0, 0, value=Load(x, (ix(0), ix(0)), DType.I32)), "load of x as i32"),
        (store(x, 0, i, value=f32(0)), "variable i is used outside its scope"),
        (store(x, 0, ix(symbol("n")), value=f32(0)), "dim symbol n is not a parameter"),
        (store(x, 0, 0, value=Binary("and", f32(0), f32(0), F32)), "and of f32"),
        (store(x, 0, 0, value=call("bitnot", f32(0))), "bitnot of f32"),
        (vector(i, symbol("x_offset"), []), "vector loop over i has extent x_offset"),
    ):
        with pytest.raises(InternalError, match=message):
            compile_kernel(b.build((stmt,)), target)


def test_a_gpu_has_no_cpu_code() -> None:
    with pytest.raises(InternalError, match=r"target vulkan-1\.1 is not a cpu"):
        compile_kernel(relu_kernel(), target_of("vulkan-1.1"))


def test_casts_that_would_call_a_library_are_refused() -> None:
    b = KernelBuilder("wide")
    x = b.buffer("x", DType.F64, BufferClass.INPUTS, (4,), (1,))
    y = b.buffer("y", F32, BufferClass.OUTPUTS, (4,), (1,), is_written=True)
    from aot.ir.expr import cast

    kernel = b.build((store(y, 0, value=cast(load(x, 0), F32)),))
    with pytest.raises(InternalError, match="a cast with f64 reached code generation for thumb"):
        compile_kernel(kernel, target_of("thumbv7em"))


# Scratch ------------------------------------------------------------------------------------------


def test_scratch_bytes() -> None:
    b = KernelBuilder("scratched")
    first = b.scratch("first", F32, (5,), Space.WORKGROUP)
    second = b.scratch("second", DType.U8, (65,), Space.WORKGROUP)
    kept = b.scratch("kept", F32, (4,))
    local = b.scratch("local", F32, (4,))
    uniform = b.scratch("uniform", F32, (1,))
    lx, ly, k = b.var("lx"), b.var("ly"), b.var("k")
    body = (
        store(uniform, 0, value=f32(1)),
        lane(
            lx,
            8,
            [
                store(kept, 0, value=f32(0)),
                store(local, 0, value=f32(0)),
                store(first, 0, value=load(local, 0), guard=op("eq", lx, 0)),
                store(
                    second,
                    0,
                    value=Binary("add", load(second, 0), load(second, 0), DType.U8),
                    guard=op("eq", lx, 0),
                ),
            ],
        ),
        serial(k, 2, [lane(ly, 8, [store(kept, 0, value=add(load(kept, 0), load(uniform, 0)))])]),
    )
    kernel = b.build(body)
    # first 20 -> 64, second 65 -> 128, kept 16 bytes for each of 8 lanes; local and uniform are
    # not carried from one LANE loop to another.
    assert scratch_bytes(kernel, target_of("x86-64-v3")) == 64 + 128 + 8 * 16
