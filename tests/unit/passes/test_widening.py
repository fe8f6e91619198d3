"""What only widens a result is left to the one dispatch that reads it, which reads fewer bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

import aot
from aot.builder import Builder
from aot.ir.graph import Module, Value
from aot.ir.interpreter.interpreter import run
from aot.tools.explain_fusion import explain_fusion

ROWS, COLUMNS = 16, 48


def residual(*, has_other_user: bool = False) -> Module:
    """Two quantised products of one input, and their sum."""
    b = Builder()
    random = np.random.default_rng(0)
    x = b.input("x", f"u8[{ROWS}, 64]")

    def number(value: float) -> Value:
        return b.constant(np.asarray(value, np.float32))

    def zero() -> Value:
        return b.constant(128, "u8")

    wide = b.op("dequantize", x, number(0.5), zero())

    def product() -> Value:
        array = random.integers(-4, 5, (64, COLUMNS)).astype(np.int8)
        weights = b.op("dequantize", b.constant(array), number(0.25), b.constant(0, "i8"))
        made = b.op("matmul", wide, weights)
        narrow = b.op("quantize", made, number(4.0), zero(), to="u8")
        return b.op("dequantize", narrow, number(4.0), zero())

    first, second = product(), product()
    if has_other_user:
        b.output("second", second)
    total = b.op("relu", b.op("add", first, second))
    b.output("sum", b.op("quantize", total, number(4.0), zero(), to="u8"))
    return b.module()


def stored_bytes(module: Module) -> list[int]:
    disabled = ("join-regions", "merge-siblings")
    found = explain_fusion(module, targets=("x86-64-v3",), disable=disabled)
    regions: list[dict[str, Any]] = found["variants"][0]["entry_points"][0]["regions"]
    return [region["bytes_out"] for region in regions]


def test_the_reader_widens() -> None:
    assert stored_bytes(residual()) == [ROWS * COLUMNS, ROWS * COLUMNS]


def test_what_is_a_result_too_stays_wide() -> None:
    assert 4 * ROWS * COLUMNS in stored_bytes(residual(has_other_user=True))


def test_values() -> None:
    module = residual()
    x = np.random.default_rng(1).integers(0, 256, (ROWS, 64)).astype(np.uint8)
    expected = run(module.main, {"x": x})
    with aot.load(aot.compile(module, targets=["host"])) as program:
        found = list(program({"x": x}).values())
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
