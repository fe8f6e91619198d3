"""Linked kernels for WebAssembly agree with the interpreter, bit by bit, when Node runs them.

The same cases as under QEMU. Without fused multiply-add: that what is computed is what the
interpreter computes is also what makes the error bounds of `test_math` hold here.
"""

from __future__ import annotations

import pytest

from aot.backends.cpu.compile import emit_assembly
from tests.support.cpu_case import Case
from tests.support.cpu_cases import access_cases
from tests.support.cpu_linked import check_hard_kernels, check_linked
from tests.support.cpu_operators import operator_cases
from tests.support.cpu_running import target_of
from tests.support.cpu_tiles import matmul_tile
from tests.support.hard_kernels import HARD_KERNELS
from tests.support.node import require_node, run_image

TARGET = "wasm32"


def check_cases(cases: list[Case]) -> None:
    require_node()
    check_linked(cases, target_of(TARGET), run_image)


def test_access() -> None:
    check_cases([c for c in access_cases() if c.runs_on(target_of(TARGET))])


@pytest.mark.parametrize("style", ["scalar", "vector"])
def test_operators(style: str) -> None:
    check_cases(operator_cases(target_of(TARGET), [style]))


def test_hard_kernels() -> None:
    require_node()
    check_hard_kernels(HARD_KERNELS, target_of(TARGET), run_image)


def test_a_product_is_one_instruction_where_engines_have_it() -> None:
    plain, relaxed = (
        emit_assembly(matmul_tile(2, 16, 16), target_of(name))
        for name in (TARGET, f"{TARGET}-relaxed")
    )
    assert "relaxed" not in plain and "f32x4.mul" in plain
    assert relaxed.count("f32x4.relaxed_madd") == plain.count("f32x4.mul")
    assert "f32x4.mul" not in relaxed
