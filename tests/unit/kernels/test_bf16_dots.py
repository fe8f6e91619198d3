"""Contractions of bf16: sums in f32 within bounds of the definition, by dot products and matrices.

The definition is the sum of the products in float64. A sum of n terms may be rounded at each step,
in any order; numbers below the normal ones may count as 0 (VDPBF16PS, BFDOT).
"""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot.analysis.cost.plan import weight_layouts
from aot.backends.cpu.compile import emit_assembly
from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY, Sample, call_of
from aot.ir.types import DType, Layout, TensorType, to_physical
from aot.kernels.ir.nodes import Kernel, MatrixDot, walk
from aot.kernels.lowering import lower
from aot.target.model import Target
from tests.support import cpu_running
from tests.support.half_contractions import device
from tests.support.half_regions import executable, half_function
from tests.support.kernel_backends import on_qemu
from tests.support.lowering import run_executable
from tests.support.lowering_checks import Engine, on_interpreter

BF16, F32 = DType.BF16, DType.F32
CHANNELS_LAST = Layout(order=(0, 2, 3, 1))
X86, ARM = "x86-64-v4-bf16", "aarch64-linux-i8mm"
EPSILON, TINY = 2.0**-23, 2.0**-126


def conv(
    channels: int, filters: int, kernel: int = 3, stride: int = 1, group: int = 1
) -> tuple[str, Sample]:
    pad = kernel // 2
    types = (
        TensorType(BF16, (2, channels, 6, 7), CHANNELS_LAST),
        TensorType(BF16, (filters, channels // group, kernel, kernel)),
        TensorType(F32, (filters,)),
    )
    attrs = {"strides": (stride,) * 2, "dilations": (1, 1), "pads": (pad,) * 4, "group": group}
    return "conv_bf16", Sample(types, attrs)


def matmul(rows: int, depth: int, columns: int) -> tuple[str, Sample]:
    return "matmul_bf16", Sample(
        (TensorType(BF16, (rows, depth)), TensorType(BF16, (depth, columns)))
    )


CASES = {
    "three-channels": conv(3, 20),
    "odd-channels": conv(19, 33),
    "even-channels": conv(24, 40, 1),
    "strided": conv(10, 17, 3, 2),
    "groups": conv(12, 34, 3, 1, 2),
    "row": matmul(1, 300, 33),
    "rows": matmul(17, 129, 48),
    "short": matmul(29, 2, 20),
    "wide": matmul(26, 64, 112),
}


def made(case: tuple[str, Sample], target: Target) -> tuple[Function, Sample]:
    op, sample = case
    record = REGISTRY[op]
    plain = half_function(record, sample, is_half=False)
    (call,) = [call_of(o) for o in plain.walk() if o.record is record]
    types = list(sample.operands)
    for number, layout in weight_layouts(call, target).items():
        type_ = types[number]
        assert type_ is not None
        types[number] = TensorType(type_.dtype, type_.dims, layout)
    packed = Sample(tuple(types), sample.attrs)
    return executable(half_function(record, packed, is_half=False)), packed


def operands(sample: Sample, rng: np.random.Generator) -> list[Any]:
    types = [t for t in sample.operands if t is not None]
    return [rng.standard_normal(t.shape).astype(t.dtype.numpy) for t in types]


def reference(case: tuple[str, Sample], arrays: list[Any]) -> Any:
    (result,) = run(half_function(REGISTRY[case[0]], case[1], is_half=False), arrays)
    return result.astype(np.float64)


def result(
    case: tuple[str, Sample], arrays: list[Any], target: Target, engine: Engine
) -> np.ndarray[Any, Any]:
    function, sample = made(case, target)
    types = [t for t in sample.operands if t is not None]
    physical = [to_physical(a, t) for a, t in zip(arrays, types, strict=True)]
    (found,) = run_executable(function, target, physical, [], engine)
    return found


def check(case: tuple[str, Sample], target: Target, engine: Engine) -> None:
    arrays = operands(case[1], np.random.default_rng(2))
    expected = reference(case, arrays)
    sizes = reference(case, [np.abs(a) for a in arrays])
    shape = arrays[1].shape
    terms = shape[0] if case[0] == "matmul_bf16" else int(np.prod(shape[1:]))
    found = result(case, arrays, target, engine)
    assert (np.abs(found - expected) <= EPSILON * (terms + 2) * sizes).all()


def on_cpu(target: Target) -> Engine:
    def run_kernel(kernel: Kernel, buffers: dict[str, Any], params: dict[str, Any]) -> None:
        cpu_running.run(kernel, buffers, params, target)

    return run_kernel


@pytest.mark.parametrize("target", cpu_running.native_targets(strongest=True))
@pytest.mark.parametrize("name", CASES)
def test_sums_are_near_the_definition_in_machine_code(name: str, target: str) -> None:
    """Whether the target has the instruction or not."""
    check(CASES[name], device(target), on_cpu(device(target)))


@pytest.mark.qemu
@pytest.mark.parametrize("name", CASES)
def test_sums_are_near_the_definition_on_arm(name: str) -> None:
    check(CASES[name], device(ARM), on_qemu(device(ARM)))


@pytest.mark.parametrize("target", [X86, ARM])
@pytest.mark.parametrize("name", ["odd-channels", "row", "rows"])
def test_sums_are_near_the_definition_in_the_kernel_interpreter(name: str, target: str) -> None:
    check(CASES[name], device(target), on_interpreter)


def engines() -> list[Any]:
    natives = [t for t in cpu_running.native_targets(strongest=True) if device(t).sums_bf16]
    made = [pytest.param(t, False, id=t) for t in natives]
    return [*made, pytest.param(ARM, True, id=ARM, marks=pytest.mark.qemu)]


@pytest.mark.parametrize(("name", "is_emulated"), engines())
@pytest.mark.parametrize("rows", [1, 4])
def test_numbers_that_are_not_finite_or_not_normal(name: str, is_emulated: bool, rows: int) -> None:
    target = device(name)
    engine = on_qemu(target) if is_emulated else on_cpu(target)
    case = matmul(rows, 4, 16)
    bf16 = ml_dtypes.bfloat16
    left, right = np.ones((rows, 4), bf16), np.ones((4, 16), bf16)
    right[0, 0], right[1, 1], right[2, 2] = np.inf, -np.inf, np.nan
    right[0, 3], right[1, 3] = np.inf, -np.inf
    # a number below the normal ones, times one that makes it large
    left[:, 3], right[:, 4] = 2.0**100, 0
    right[3, :] = 2.0**-130
    found = result(case, [left, right], target, engine)
    assert (found[:, 0] == np.inf).all()
    assert (found[:, 1] == -np.inf).all()
    assert np.isnan(found[:, 2:4]).all()
    assert np.isin(found[:, 4], [0, 2.0**-30]).all()
    assert np.isin(found[:, 5:], [3, np.float32(3 + 2.0**-30)]).all()


@pytest.mark.parametrize(
    ("target", "name", "instruction"),
    [
        (X86, "rows", r"\bvdpbf16ps\b.*%zmm"),
        (X86, "odd-channels", r"\bvdpbf16ps\b.*%zmm"),
        (ARM, "row", r"\bbfdot\b"),
        (ARM, "rows", r"\bbfmmla\b"),
        (ARM, "groups", r"\bbfmmla\b"),
    ],
)
def test_instructions_for_bf16_are_used(target: str, name: str, instruction: str) -> None:
    machine = device(target)
    function, _ = made(CASES[name], machine)
    assert re.search(instruction, emit_assembly(lower(function, machine), machine))


def test_matrices_are_for_targets_that_multiply_them() -> None:
    for name, is_there in ((ARM, True), (X86, False), ("aarch64-linux-dotprod", False)):
        function, _ = made(CASES["rows"], device(name))
        kernel = lower(function, device(name))
        assert any(isinstance(stmt, MatrixDot) for stmt in walk(kernel.body)) is is_there
