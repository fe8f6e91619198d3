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
from aot.backends.cpu.compile import compile_kernel, emit_assembly
from aot.errors import InternalError
from aot.ir import expr
from aot.ir.expr import Dot, Load
from aot.ir.graph import Function, Module
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY, Sample, call_of
from aot.ir.types import DType, Layout, TensorType, to_physical
from aot.kernels.ir import scalar
from aot.kernels.ir.nodes import Kernel
from aot.kernels.ir.text import to_text
from aot.kernels.lower.lowering import lower
from aot.link.code_image import link_image
from aot.target.model import Target
from tests.support import cpu_running
from tests.support.half_contractions import device
from tests.support.half_regions import executable, half_function
from tests.support.lowering import run_executable
from tests.support.lowering_checks import Engine, on_interpreter
from tests.support.qemu import require_runner, run_on

U8, I8, I16 = DType.U8, DType.I8, DType.I16
CHANNELS_LAST = Layout(order=(0, 2, 3, 1))
CONV = REGISTRY["conv_integer"]

INTERPRETED = ("x86-64-v3", "x86-64-v4+avx512vnni", "aarch64-linux-dotprod+i8mm", "thumbv7em")
EMULATED = (
    "aarch64-generic",
    "aarch64-linux-dotprod",
    "aarch64-linux-dotprod+i8mm",
    "armv7-neon",
    "thumbv7em",
    "riscv64-v",
)


def conv(
    left: DType,
    channels: int,
    filters: int,
    kernel: int = 3,
    stride: int = 1,
    pad_value: int = 0,
    layout: Layout | None = CHANNELS_LAST,
    dilation: int = 1,
    group: int = 1,
    max_weight: int = 128,
) -> tuple[str, Sample]:
    pad = dilation * (kernel // 2)
    types = (
        TensorType(left, (2, channels, 6, 7), layout),
        TensorType(I8, (filters, channels // group, kernel, kernel)),
        TensorType(DType.I32, (filters,)),
    )
    attrs = {
        "strides": (stride, stride),
        "dilations": (dilation, dilation),
        "pads": (pad, pad, pad, pad),
        "group": group,
        "pad_value": pad_value,
        "max_weight": max_weight,
    }
    return "conv_integer", Sample(types, attrs)


def matmul(
    left: DType, rows: int, depth: int, columns: int, max_weight: int = 128
) -> tuple[str, Sample]:
    types = TensorType(left, (rows, depth)), TensorType(I8, (depth, columns))
    return "matmul_integer", Sample(types, {"max_weight": max_weight})


CASES: dict[str, tuple[str, Sample]] = {
    "three-channels": conv(U8, 3, 20, pad_value=113),
    "four-channels": conv(I8, 4, 5, pad_value=-128),
    "uneven": conv(U8, 37, 33, pad_value=255),
    "dense": conv(U8, 19, 16, pad_value=7, layout=None),
    "pointwise": conv(I8, 70, 40, kernel=1),
    "strided": conv(U8, 16, 100, kernel=1, stride=2),
    "dilated": conv(U8, 8, 17, stride=2, dilation=2, pad_value=1),
    "wide": conv(I16, 9, 18, pad_value=-300),
    "groups": conv(U8, 15, 51, group=3, pad_value=9),
    "groups-strided": conv(I8, 36, 32, kernel=1, stride=2, group=4),
    "groups-of-words": conv(I8, 8, 34, group=2, pad_value=-128),
    "groups-dilated": conv(U8, 70, 22, dilation=2, group=2, pad_value=255),
    "groups-wide": conv(I16, 22, 40, kernel=1, group=2, pad_value=-300),
    "row": matmul(U8, 1, 300, 33),
    "rows": matmul(I8, 17, 519, 16),
    "columns": matmul(U8, 5, 5, 200),
    "short": matmul(I16, 29, 3, 48),
    "narrow": conv(U8, 37, 33, pad_value=255, max_weight=64),
    "narrow-signed": conv(I8, 37, 33, pad_value=-128, max_weight=127),
    "narrow-groups": conv(U8, 15, 51, group=3, pad_value=9, max_weight=64),
    "narrow-groups-signed": conv(I8, 36, 32, stride=2, group=4, max_weight=127),
    "narrow-rows": matmul(U8, 17, 519, 40, max_weight=64),
    "narrow-rows-signed": matmul(I8, 17, 519, 40, max_weight=127),
    "narrow-columns": matmul(U8, 5, 5, 40, max_weight=64),
    "narrow-columns-signed": matmul(I8, 5, 6, 40, max_weight=127),
    "not-narrow": matmul(U8, 9, 64, 40, max_weight=65),
}
EXTREMES = ("random", "least", "most", "extremes")


def made(case: tuple[str, Sample], target: Target) -> tuple[Function, Sample]:
    """The case as an executable whose weights lie as the plan for a target asks, and its types."""
    op, sample = case
    record = REGISTRY[op]
    plain = half_function(record, sample, is_half=False)
    (call,) = [call_of(o) for o in plain.walk() if o.record is record]
    layouts = weight_layouts(call, target)
    types = list(sample.operands)
    for number, layout in layouts.items():
        type_ = types[number]
        assert type_ is not None
        assert len(layout.splits) == (1 if sample.attrs.get("group", 1) != 1 else 2)
        types[number] = TensorType(type_.dtype, type_.dims, layout)
    packed = Sample(tuple(types), sample.attrs)
    return executable(half_function(record, packed, is_half=False)), packed


def numbers(type_: TensorType, how: str, rng: np.random.Generator, largest: int) -> Any:
    """Numbers of a dtype that are no further from 0 than the largest one."""
    info = np.iinfo(type_.dtype.numpy)
    least, most = max(info.min, -largest), min(info.max, largest)
    if type_.dtype is DType.I32:
        return rng.integers(-1000, 1000, type_.shape).astype(np.int32)
    if how == "least":
        return np.full(type_.shape, least, type_.dtype.numpy)
    if how == "most":
        return np.full(type_.shape, most, type_.dtype.numpy)
    if how == "extremes":
        return rng.choice([least, most], type_.shape).astype(type_.dtype.numpy)
    return rng.integers(least, most + 1, type_.shape).astype(type_.dtype.numpy)


def few_rows(op: str, sample: Sample) -> Sample:
    """The sample on one image of three rows, as wide as it was."""
    image = sample.operands[0]
    assert image is not None
    if op != "conv_integer":
        return sample
    few = TensorType(image.dtype, (1, image.dims[1], 3, image.dims[3]), image.layout)
    return Sample((few, *sample.operands[1:]), sample.attrs)


def check(case: tuple[str, Sample], how: str, target: Target, engine: Engine) -> None:
    function, sample = made(case, target)
    op, _ = case
    types = [t for t in sample.operands if t is not None]
    rng = np.random.default_rng(5)
    largest = int(sample.attrs.get("max_weight", 128))
    arrays = [numbers(t, how, rng, largest if n == 1 else 1 << 16) for n, t in enumerate(types)]
    expected = run(half_function(REGISTRY[op], case[1], is_half=False), arrays)
    physical = [to_physical(a, t) for a, t in zip(arrays, types, strict=True)]
    (found,) = run_executable(function, target, physical, [], engine)
    np.testing.assert_array_equal(found, expected[0])


@pytest.mark.parametrize("target", INTERPRETED)
@pytest.mark.parametrize(
    "name", ["four-channels", "strided", "groups", "groups-of-words", "columns"]
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


def on_cpu(target: Target) -> Engine:
    def run_kernel(kernel: Kernel, buffers: dict[str, Any], params: dict[str, Any]) -> None:
        cpu_running.run(kernel, buffers, params, target)

    return run_kernel


@pytest.mark.parametrize("target", cpu_running.native_targets())
@pytest.mark.parametrize("how", EXTREMES)
@pytest.mark.parametrize("name", CASES)
def test_sums_are_exact_in_machine_code(name: str, how: str, target: str) -> None:
    check(CASES[name], how, device(target), on_cpu(device(target)))


@pytest.mark.qemu
@pytest.mark.parametrize("target", EMULATED)
@pytest.mark.parametrize("how", EXTREMES)
def test_sums_are_exact_elsewhere(how: str, target: str) -> None:
    machine = device(target)
    require_runner(machine.arch)

    def run_kernel(kernel: Kernel, buffers: dict[str, Any], params: dict[str, Any]) -> None:
        job = cpu_running.make_job(kernel, buffers, params, machine)
        run_on(machine.arch, link_image([compile_kernel(kernel, machine)], machine), [job])
        cpu_running.store_results(job, buffers)

    few = "three-channels", "pointwise", "columns", "short", "narrow-signed", "narrow-rows"
    for name in CASES if how == "random" else few:
        check(CASES[name], how, machine, run_kernel)


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
        ("aarch64-linux-dotprod+i8mm", "uneven", r"\bsudot\b"),
        ("x86-64-v2", "narrow", r"\bpmaddubsw\b"),
        ("x86-64-v3", "narrow", r"\bvpmaddubsw\b.*%ymm"),
        ("x86-64-v4", "narrow-rows", r"\bvpmaddubsw\b.*%zmm"),
        ("aarch64-generic", "pointwise", r"\bsmull\b"),
        ("aarch64-generic", "narrow-signed", r"\bsmlal\b"),
        ("armv7-neon", "narrow-rows-signed", r"\bvmlal\.s8\b"),
        ("wasm32", "uneven", r"i32x4\.dot_i16x8_s"),
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
        ("aarch64-linux-dotprod+i8mm", "uneven", "sudot"),
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


def test_weights_lie_alike_for_all_targets() -> None:
    module = Module([half_function(CONV, CASES["uneven"][1], is_half=False)])
    (call,) = [call_of(o) for f in module.functions.values() for o in f.walk() if o.record is CONV]
    names = ("x86-64-v4", "aarch64-generic", "wasm32", "vulkan-1.1", "thumbv7em")
    assert len({str(weight_layouts(call, device(name))) for name in names}) == 1
