"""Products with weights of few bits: every size, block and dtype against exact arithmetic.

The kernels run in the kernel interpreter, in machine code here, under QEMU and on Vulkan drivers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from aot.backends.cpu.compile import emit_assembly
from aot.ir.graph import Function
from aot.ir.record import REGISTRY, Sample
from aot.ir.types import DType, TensorType
from aot.kernels.ir.nodes import Barrier, walk
from aot.kernels.lowering import lower
from aot.ops.blocked import Blocks, Codes, pack_codes, unpack_codes
from aot.target.model import Target
from tests.support import cpu_running, kernel_backends
from tests.support.half_regions import executable, half_function
from tests.support.kernel_backends import device
from tests.support.lowering import run_executable
from tests.support.lowering_checks import Engine, on_interpreter

Array = np.ndarray[Any, Any]
TOLERANCE = 3e-7  # of the sum of the products' sizes; a sum of n floats errs by n / 2**24 at most


@dataclass(frozen=True)
class Case:
    """A product of [rows, k] and [k, columns]."""

    rows: int
    k: int
    columns: int
    block: int
    bits: int = 4
    has_zeros: bool = False
    scale: type = np.float32
    has_minimums: bool = False
    has_bytes: bool = False  # on the left, with a scale for each block

    @property
    def blocks(self) -> Blocks:
        return Blocks(self.k, self.block, self.bits)

    def codes(self) -> Codes:
        rng = np.random.default_rng(self.k + self.columns)
        top = 1 << self.bits
        numbers = rng.integers(0, top, (self.columns, self.k)).astype(np.uint8)
        scales = rng.uniform(0.01, 0.1, (self.columns, self.blocks.count)).astype(self.scale)
        zeros: Array | int = top // 2
        if self.has_zeros:
            zeros = rng.integers(0, top, scales.shape).astype(np.uint8)
        if self.has_minimums:
            minimums = rng.uniform(-0.1, 0.1, scales.shape).astype(self.scale)
            return Codes(numbers, scales, 0, self.blocks, minimums)
        return Codes(numbers, scales, zeros, self.blocks)

    def weights(self) -> Array:
        """[k, columns] in f64, straight from the definition."""
        made, spread = self.codes(), np.arange(self.k) // self.block
        zeros = made.zeros if isinstance(made.zeros, int) else made.zeros[:, spread].astype(int)
        found = (made.codes.astype(int) - zeros) * made.scales.astype(float)[:, spread]
        if made.minimums is not None:
            found += made.minimums.astype(float)[:, spread]
        return found.T

    def left(self) -> list[Array]:
        rng = np.random.default_rng(self.rows)
        if not self.has_bytes:
            return [rng.standard_normal((self.rows, self.k)).astype(np.float32)]
        numbers = rng.integers(-128, 128, (self.rows, self.k)).astype(np.int8)
        scales = rng.uniform(0.01, 0.1, (self.rows, self.blocks.count)).astype(np.float32)
        return [numbers, scales]

    def activations(self) -> Array:
        """[rows, k] in f64."""
        numbers, *scales = (a.astype(float) for a in self.left())
        spread = np.arange(self.k) // self.block
        return numbers * scales[0][:, spread] if scales else numbers

    def function(self) -> tuple[Function, list[Array]]:
        """The product as an executable, and its operands."""
        made = self.codes()
        numbers, *scales = self.left()
        operands: list[Array | None] = [numbers, *made.operands()]
        if scales:
            operands += [*[None] * (4 - len(operands)), *scales]
        types = [a if a is None else TensorType(DType.of(a), a.shape) for a in operands]
        arrays = [a for a in operands if a is not None]
        sample = Sample(tuple(types), made.attrs())
        record = REGISTRY["matmul_blocked"]
        return executable(half_function(record, sample, is_half=False)), arrays


CASES: dict[str, Case] = {
    "row": Case(1, 96, 40, 32),
    "odd-row": Case(1, 70, 19, 32, has_zeros=True),
    "two-rows": Case(2, 48, 100, 16, bits=8, has_zeros=True),
    "rows": Case(13, 128, 33, 32),
    "many-rows": Case(131, 300, 17, 128, scale=np.float16),
    "many-columns": Case(34, 32, 340, 32),
    "half": Case(7, 64, 20, 32, bits=8, has_zeros=True, scale=np.float16),
    "per-channel": Case(9, 531, 48, 531, bits=8),
    "long-block": Case(5, 1100, 20, 512, has_zeros=True),
    "odd-block": Case(7, 41, 16, 5, bits=2, has_zeros=True),
    "odd-long-block": Case(3, 700, 16, 300),
    "least-row": Case(1, 70, 40, 32, has_minimums=True),
    "least": Case(9, 96, 33, 32, has_minimums=True, scale=np.float16),
    "least-bytes": Case(5, 300, 18, 300, bits=8, has_minimums=True),
    "two-bits": Case(4, 77, 65, 16, bits=2),
    "one-column": Case(6, 32, 1, 16, bits=8, scale=np.float16),
}
CASES |= {
    f"bytes-{name}": replace(CASES[name], has_bytes=True) for name in CASES if "odd-" not in name
}
CASES["bytes-odd-row"] = replace(CASES["odd-row"], has_bytes=True)
CASES["bytes-odd-block"] = replace(CASES["odd-block"], has_bytes=True)
ELSEWHERE = (
    *("odd-row", "odd-block", "least"),
    *("bytes-odd-row", "bytes-half", "bytes-two-bits", "bytes-least-bytes"),
)
INTERPRETED = (
    "x86-64-v3",
    "x86-64-v4+avx512vnni",
    "aarch64-generic",
    "aarch64-linux-dotprod",
    "thumbv7em",
    "vulkan-1.1",
)
EMULATED = (
    "aarch64-generic",
    "aarch64-linux-dotprod",
    "aarch64-linux-dotprod+i8mm",
    "armv7-neon",
    "thumbv7em",
    "riscv64-v",
)


def check(case: Case, target: Target, engine: Engine) -> None:
    function, arrays = case.function()
    (found,) = run_executable(function, target, arrays, [], engine)
    left, weights = case.activations(), case.weights()
    size = np.abs(left) @ np.abs(weights)
    assert np.all(np.abs(found - left @ weights) <= TOLERANCE * size)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [1, 3, 4, 16, 32, 100])
def test_codes_come_back(block: int, bits: int) -> None:
    for k, columns in ((1, 1), (33, 17), (96, 50)):
        blocks = Blocks(k, block, bits)
        codes = np.random.default_rng(k).integers(0, 1 << bits, (columns, k)).astype(np.uint8)
        words = pack_codes(codes, blocks)
        assert words.shape == (-(-columns // 16), blocks.words, 16)
        np.testing.assert_array_equal(unpack_codes(words, blocks, columns), codes)


@pytest.mark.parametrize("target", INTERPRETED)
@pytest.mark.parametrize("name", ["odd-row", "rows", "odd-block", "bytes-odd-row", "bytes-rows"])
def test_products_in_the_kernel_interpreter(name: str, target: str) -> None:
    """Of many rows no more than two blocks and panels: the interpreter takes its time."""
    case = CASES[name]
    if name.endswith("rows"):
        case = replace(case, k=min(case.k, 2 * case.block), columns=min(case.columns, 17))
    check(case, device(target), on_interpreter)


@pytest.mark.parametrize("columns", [96, 288])
def test_workgroups_do_not_pass_the_last_column(columns: int) -> None:
    """Three vectors of columns a tile, which do not divide what a workgroup has elsewhere."""
    check(Case(9, 32, columns, 32), device("x86-64-v4"), on_interpreter)


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v4", "aarch64-generic"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("columns", [5, 33, 127])
def test_a_panel_of_one_word_a_column(columns: int, rows: int, target: str) -> None:
    """Its address is the column itself, and its last tile is no part of the one before."""
    for k in (1, 5, 8):
        check(Case(rows, k, columns, 8), device(target), on_interpreter)


@pytest.mark.parametrize("target", cpu_running.native_targets(strongest=True))
@pytest.mark.parametrize("name", CASES)
def test_products_in_machine_code(name: str, target: str) -> None:
    check(CASES[name], device(target), kernel_backends.on_cpu(target))


@pytest.mark.qemu
@pytest.mark.parametrize("target", EMULATED)
def test_products_elsewhere(target: str) -> None:
    machine = device(target)
    engine = kernel_backends.on_qemu(machine)
    for name in ELSEWHERE:
        check(CASES[name], machine, engine)


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", ["lavapipe", "swiftshader"])
@pytest.mark.parametrize(
    "name", ["row", "odd-row", "rows", "odd-block", "per-channel", "bytes-rows"]
)
def test_products_on_gpus(name: str, driver: str) -> None:
    check(CASES[name], device("vulkan-1.1"), kernel_backends.on_driver(driver))


STAGED = {
    "whole": Case(40, 96, 32, 32),
    "odd": Case(19, 70, 33, 32, has_zeros=True),
    "half": Case(33, 64, 40, 16, bits=8, scale=np.float16),
    "least": Case(20, 96, 33, 32, has_minimums=True),
    "two-bits": Case(36, 77, 20, 16, bits=2),
    "bytes": Case(24, 96, 36, 32, has_bytes=True),
}


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(on_interpreter, id="interpreter"),
        *(
            pytest.param(b.engine, id=name, marks=pytest.mark.vulkan)
            for name, b in kernel_backends.DRIVEN.items()
        ),
    ],
)
@pytest.mark.parametrize("name", STAGED)
def test_codes_are_decoded_once_for_a_tile_in_shared_memory(name: str, engine: Engine) -> None:
    target = device("vulkan-1.1")
    assert target.gpu is not None
    target = replace(target, gpu=replace(target.gpu, staged_terms=16))
    function, _ = STAGED[name].function()
    kernel = lower(function, target)
    assert any(isinstance(stmt, Barrier) for stmt in walk(kernel.body))
    check(STAGED[name], target, engine)


@pytest.mark.parametrize(
    ("target", "name", "instruction"),
    [
        ("x86-64-v2", "bytes-rows", r"\bpmaddubsw\b"),
        ("x86-64-v3", "bytes-rows", r"\bvpmaddubsw\b.*%ymm"),
        ("x86-64-v3", "bytes-per-channel", r"\bvpmaddwd\b.*%ymm"),
        ("x86-64-v3", "bytes-row", r"\bprefetcht1\b"),
        ("x86-64-v4", "bytes-rows", r"\bvpmaddubsw\b.*%zmm"),
        ("x86-64-v4+avx512vnni", "bytes-rows", r"\bvpdpbusd\b.*%zmm"),
        ("x86-64-v4+avx512vnni", "bytes-per-channel", r"\bvpdpbusd\b.*%zmm"),
        ("aarch64-linux-dotprod", "bytes-rows", r"\bsdot\b"),
        ("aarch64-linux-dotprod", "bytes-per-channel", r"\bsdot\b"),
        ("wasm32", "bytes-rows", r"i32x4\.dot_i16x8_s"),
    ],
)
def test_instructions_for_dot_products_are_used(target: str, name: str, instruction: str) -> None:
    machine = device(target)
    function, _ = CASES[name].function()
    assert re.search(instruction, emit_assembly(lower(function, machine), machine))


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", ["bytes-rows", "bytes-least"])
def test_sums_of_rows_stay_in_registers(name: str, bits: int, target: str) -> None:
    """No sum of products is added to memory."""
    machine = device(target)
    function, _ = replace(CASES[name], bits=bits).function()
    text = emit_assembly(lower(function, machine), machine)
    assert re.search(r"\bv?padd[wd]\b", text)
    assert not re.search(r"\bv?padd[wd]\b.*\(%[re]sp\)", text)


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v4-vnni"])
@pytest.mark.parametrize("bits", [4, 8])
def test_wide_registers_hold_the_sums_of_all_blocks(bits: int, target: str) -> None:
    """No sums go through memory from block to block: a few vectors wait there at most."""
    machine = device(target)
    function, _ = Case(24, 256, 64, 32, bits, scale=np.float16, has_bytes=True).function()
    text = emit_assembly(lower(function, machine), machine)
    assert re.search(r"\bvpdpbusd\b|\bvpmadd", text)
    assert len(re.findall(r"\bvmov\w+\s+%zmm\d+, \d*\(%rsp\)", text)) <= 4


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_sums_of_extremes_are_exact(bits: int) -> None:
    """Sums in 16 bits on the way hold what the largest codes and activations give."""
    top = (1 << bits) - 1
    for block in (16, 32, 128):
        case = Case(3, 256, 16, block, bits, has_bytes=True)
        made = Codes(
            np.full((16, 256), top, np.uint8),
            np.ones((16, case.blocks.count), np.float32),
            0,
            case.blocks,
        )
        arrays = [np.full((3, 256), -128, np.int8), *made.operands()]
        scales = np.ones((3, case.blocks.count), np.float32)
        types = [TensorType(DType.of(a), a.shape) for a in arrays]
        sample = Sample((*types, None, TensorType(DType.F32, scales.shape)), made.attrs())
        record = REGISTRY["matmul_blocked"]
        function = executable(half_function(record, sample, is_half=False))
        for target in cpu_running.native_targets(strongest=True):
            engine = kernel_backends.on_cpu(target)
            (found,) = run_executable(function, device(target), [*arrays, scales], [], engine)
            np.testing.assert_array_equal(found, np.full((3, 16), -128.0 * top * 256))
