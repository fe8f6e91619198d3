"""Contractions of integers whose weights lie in groups: sums by dot products, exact everywhere.

Sizes, layouts and dtypes are swept against the graph interpreter: in the kernel interpreter, in
machine code here, and under QEMU; the operands are extremes as well as random numbers.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from aot.analysis.cost.plan import weight_layouts
from aot.backends.cpu.compile import emit_assembly
from aot.errors import InternalError
from aot.ir import expr
from aot.ir.expr import Dot, Load
from aot.ir.graph import Module
from aot.ir.record import REGISTRY, Sample, call_of
from aot.ir.rewriter import Rewriter
from aot.ir.text.parser import parse_module
from aot.ir.types import DType, TensorType, to_physical
from aot.kernels.ir import scalar
from aot.kernels.ir.nodes import Kernel
from aot.kernels.ir.text import to_text
from aot.kernels.lowering import lower
from aot.target.model import Target
from tests.support import cpu_running
from tests.support.asked_lines import asked_lines
from tests.support.dot_products import (
    CASES,
    CONV,
    EXTREMES,
    I8,
    check,
    conv,
    made,
    matmul,
)
from tests.support.half_contractions import device
from tests.support.half_regions import executable, half_function
from tests.support.kernel_backends import on_qemu
from tests.support.lowering import run_executable
from tests.support.lowering_checks import Engine, on_interpreter

INTERPRETED = (
    *("x86-64-v3", "x86-64-v4+avx512vnni", "aarch64-linux-dotprod+i8mm", "thumbv7em"),
    "riscv64-v",
    "vulkan-1.3",
)
EMULATED = (
    "aarch64-generic",
    "aarch64-linux-dotprod",
    "aarch64-linux-dotprod+i8mm",
    "armv7-neon",
    "thumbv7em",
    "riscv64-v",
)


def few_rows(op: str, sample: Sample) -> Sample:
    """The sample on one image of three rows, as wide as it was."""
    image = sample.operands[0]
    assert image is not None
    if op != "conv_integer":
        return sample
    few = TensorType(image.dtype, (1, image.dims[1], 3, image.dims[3]), image.layout)
    return Sample((few, *sample.operands[1:]), sample.attrs)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        (name, target)
        for name in ("four-channels", "strided", "groups", "groups-of-words", "columns")
        for target in INTERPRETED
        if (name, target) != ("groups", "thumbv7em")  # loops of scalars, which take seconds
    ],
)
def test_sums_are_exact_in_the_kernel_interpreter(name: str, target: str) -> None:
    op, sample = CASES[name]
    check((op, few_rows(op, sample)), "random", device(target), on_interpreter)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("narrow-columns", "x86-64-v3"),
        ("narrow-columns-signed", "aarch64-generic"),
        ("columns", "aarch64-generic"),
    ],
)
def test_narrow_sums_are_exact_in_the_kernel_interpreter(name: str, target: str) -> None:
    check(CASES[name], "extremes", device(target), on_interpreter)


@pytest.mark.parametrize(
    ("target", "rows", "columns"),
    [("x86-64-v3", 9, 8), ("x86-64-v4", 13, 16), ("x86-64-v4+avx512vnni", 13, 16)],
)
def test_rows_that_are_left_of_an_open_number(target: str, rows: int, columns: int) -> None:
    """Lower tiles do them, the last of which goes past what scratch has."""
    machine = device(target)
    text = """
    executable @e0[d0](%0: u8[d0, 18], %1: i8[18, COLUMNS]) -> ("r0") bindings [2, 2, 3] {
      %2 = matmul_integer(%0, %1) : i32[d0, COLUMNS]
      return(%2)
    }
    """
    (function,) = parse_module(text.replace("COLUMNS", str(columns))).executables
    weights = function.inputs[1]
    (layout,) = weight_layouts(call_of(next(iter(function.block))), machine).values()
    type_ = TensorType(I8, weights.type.dims, layout)
    Rewriter(function).set_type(weights, type_)
    random = np.random.default_rng(rows)
    left = random.integers(0, 256, (rows, 18)).astype(np.uint8)
    right = random.integers(-128, 128, (18, columns)).astype(np.int8)
    memory = [left.reshape(-1), to_physical(right, type_).reshape(-1)]
    (found,) = run_executable(function, machine, memory, [rows], on_interpreter)
    np.testing.assert_array_equal(found, left.astype(np.int32) @ right.astype(np.int32))


def on_cpu(target: Target) -> Engine:
    def run_kernel(kernel: Kernel, buffers: dict[str, Any], params: dict[str, Any]) -> None:
        cpu_running.run(kernel, buffers, params, target)

    return run_kernel


@pytest.mark.parametrize("target", cpu_running.native_targets(strongest=True))
@pytest.mark.parametrize("how", EXTREMES)
@pytest.mark.parametrize("name", CASES)
def test_sums_are_exact_in_machine_code(name: str, how: str, target: str) -> None:
    check(CASES[name], how, device(target), on_cpu(device(target)))


@pytest.mark.qemu
@pytest.mark.parametrize("target", EMULATED)
@pytest.mark.parametrize("how", EXTREMES)
def test_sums_are_exact_elsewhere(how: str, target: str) -> None:
    """The most telling cases; random sums also of the others, half of them on each target."""
    machine = device(target)
    engine = on_qemu(machine)
    few = "three-channels", "pointwise", "columns", "short", "narrow-signed", "narrow-rows"
    others = [name for name in CASES if name not in few][EMULATED.index(target) % 2 :: 2]
    for name in (*few, *others) if how == "random" else few:
        check(CASES[name], how, machine, engine)


@pytest.mark.parametrize(
    ("target", "name", "instruction"),
    [
        ("x86-64-v2", "uneven", r"\bpmaddwd\b"),
        ("x86-64-v3", "uneven", r"\bvpmaddwd\b.*%ymm"),
        ("x86-64-v4", "uneven", r"\bvpmaddwd\b.*%zmm"),
        ("x86-64-v4+avx512vnni", "uneven", r"\bvpdpbusd\b.*%zmm"),
        ("x86-64-v4+avx512vnni", "pointwise", r"\bvpmaddwd\b.*%zmm"),  # both sides are signed
        ("x86-64-v3+avxvnni", "uneven", r"\bvpdpbusd\b.*%ymm"),
        ("aarch64-linux-dotprod", "pointwise", r"\bsdot\b"),
        ("aarch64-linux-dotprod", "groups-strided", r"\bsdot\b"),
        ("aarch64-linux-dotprod+i8mm", "row", r"\bsudot\b"),
        ("x86-64-v2", "narrow", r"\bpmaddubsw\b"),
        ("x86-64-v3", "narrow", r"\bvpmaddubsw\b.*%ymm"),
        ("x86-64-v4", "narrow-rows", r"\bvpmaddubsw\b.*%zmm"),
        ("aarch64-generic", "pointwise", r"\bsmull\b"),
        ("aarch64-generic", "narrow-signed", r"\bsmlal\b"),
        ("armv7-neon", "narrow-rows-signed", r"\bvmlal\.s8\b"),
        ("riscv64-v", "uneven", r"e32, m[24]\b"),
        ("riscv64-v", "groups", r"\bvmacc\.vx\b"),
        ("wasm32", "uneven", r"i32x4\.dot_i16x8_s"),
        ("thumbv7em", "uneven", r"\bsmlad\b"),
        ("thumbv7em", "rows", r"\bsxtb16\b.*ror #8"),
    ],
)
def test_instructions_for_dot_products_are_used(target: str, name: str, instruction: str) -> None:
    machine = device(target)
    function, _ = made(CASES[name], machine)
    assert re.search(instruction, emit_assembly(lower(function, machine), machine))


@pytest.mark.parametrize(
    ("target", "name", "instruction"),
    [
        ("x86-64-v3", "uneven", r"\bvpmaddubsw\b"),
        ("x86-64-v3", "not-narrow", r"\bvpmaddubsw\b"),
        ("x86-64-v3", "narrow-signed", r"\bvpmaddubsw\b"),
        ("aarch64-generic", "pointwise", r"\bsmlal\b"),
    ],
)
def test_sums_in_16_bits_are_not_used_where_they_may_wrap(
    target: str, name: str, instruction: str
) -> None:
    machine = device(target)
    function, _ = made(CASES[name], machine)
    assert not re.search(instruction, emit_assembly(lower(function, machine), machine))


def test_the_kernel_interpreter_sees_products_that_are_not_narrow() -> None:
    words = [Load(0, (expr.index(n),), DType.I8X4) for n in range(2)]
    dot = Dot(*words, expr.const(0, DType.I32), is_narrow=True)
    apply = scalar.operation(dot)
    assert apply is not None
    word = np.asarray(0x80000080, np.uint32)
    with pytest.raises(InternalError, match="do not fit 16 bits in pairs"):
        apply(word, word, np.asarray(0, np.int32))
    assert apply(word, np.asarray(0x81000081, np.uint32), np.asarray(0, np.int32)) == 2 * 128 * 127


@pytest.mark.parametrize(
    ("target", "name", "dot"),
    [
        ("aarch64-linux-dotprod", "pointwise", "sdot"),
        ("aarch64-linux-dotprod+i8mm", "row", "sudot"),
    ],
)
def test_dot_products_take_lanes_of_the_rows(target: str, name: str, dot: str) -> None:
    """One load brings four words of a row, and no instruction repeats a word for all columns."""
    machine = device(target)
    function, _ = made(CASES[name], machine)
    text = emit_assembly(lower(function, machine), machine)
    assert re.search(rf"\b{dot}\b.*\.4b\[3\]", text)
    loop = max(re.split(r"^\.LBB", text, flags=re.M), key=lambda part: part.count(f"\t{dot}\t"))
    assert not re.search(r"\bdup\b|\bld1r\b", loop.partition("b.ne")[0])


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4+avx512vnni", "aarch64-generic"])
@pytest.mark.parametrize(
    ("name", "is_one_run"),
    [("four-channels", True), ("dilated", False), ("groups-of-words", False), ("uneven", False)],
)
def test_taps_that_lie_side_by_side_are_read_at_once(
    name: str, is_one_run: bool, target: str
) -> None:
    """Where all of them are inside: each tap has a condition of its own else."""
    machine = device(target)
    function, _ = made(CASES[name], machine)
    copies = re.findall(r"(?:bytes|staged)\[.*\] = .*in\[.*", to_text(lower(function, machine)))
    assert any("where" not in line for line in copies) == is_one_run


@pytest.mark.parametrize("target", ["x86-64-v4-vnni", "x86-64-v4-bf16"])
def test_products_of_a_depthwise_window_are_added_as_they_are_made(target: str) -> None:
    machine = device(target)
    op, sample = conv(DType.U8, 64, 64, group=64)
    function = executable(half_function(REGISTRY[op], sample, is_half=False))
    code = emit_assembly(lower(function, machine), machine)
    assert "vpdpwssd" in code and "vpmaddwd" not in code


def test_channels_that_fill_no_vector_are_copied_in_two() -> None:
    machine = device("x86-64-v4+avx512vnni")
    function, _ = made(conv(DType.U8, 26, 32), machine)
    copies = re.findall(r"staged\[.*\] = in\[", to_text(lower(function, machine)))
    assert len(copies) == 2


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("in-place")])
def test_rows_are_read_in_place(name: str) -> None:
    machine = device("x86-64-v4+avx512vnni")
    function, _ = made(CASES[name], machine)
    assert "scratch staged" not in to_text(lower(function, machine))


@pytest.mark.parametrize(("rows", "is_in_place"), [(400, True), (40_000, False)])
def test_rows_that_no_cache_holds_are_brought_nearer(rows: int, is_in_place: bool) -> None:
    machine = device("x86-64-v4+avx512vnni")
    function, _ = made(matmul(DType.U8, rows, 32, 16), machine)
    assert ("scratch staged" not in to_text(lower(function, machine))) == is_in_place


@pytest.mark.parametrize(("filters", "has_all"), [(64, True), (40, False)])
def test_sums_begin_with_the_bias_where_all_columns_have_one(filters: int, has_all: bool) -> None:
    machine = device("x86-64-v4+avx512vnni")
    function, _ = made(conv(DType.U8, 72, filters, kernel=1), machine)
    text = to_text(lower(function, machine))
    assert bool(re.search(r"acc\[.*\] = in_2\[", text)) == has_all


# more weights than a quarter of the second-level cache, and fewer; more rows than a tile has
@pytest.mark.parametrize(("rows", "depth", "columns"), [(77, 516, 640), (60, 640, 192)])
def test_weights_are_asked_for_while_others_are_multiplied(
    rows: int, depth: int, columns: int
) -> None:
    machine = device("x86-64-v4+avx512vnni")
    function, _ = made(matmul(DType.U8, rows, depth, columns), machine)
    kernel = lower(function, machine)
    lines = sorted(asked_lines(kernel.body, 64))
    per_tile = depth * 64 // 64
    # all behind the tiles that come first, and hardly any twice
    assert lines[0] % per_tile == 0 and lines[0] * 64 >= 1 << 16
    assert set(range(lines[0], columns * depth // 64)) <= set(lines)
    assert len(lines) < 1.3 * len(set(lines)) + per_tile


def test_sums_are_exact_where_weights_are_asked_for() -> None:
    (*_, target) = cpu_running.native_targets(strongest=True)
    check(matmul(DType.U8, 77, 516, 192), "random", device(target), on_cpu(device(target)))


def test_weights_lie_alike_for_all_targets() -> None:
    module = Module([half_function(CONV, CASES["uneven"][1], is_half=False)])
    (call,) = [call_of(o) for f in module.functions.values() for o in f.walk() if o.record is CONV]
    names = ("x86-64-v4", "aarch64-generic", "wasm32", "vulkan-1.1", "thumbv7em")
    assert len({str(weight_layouts(call, device(name))) for name in names}) == 1
