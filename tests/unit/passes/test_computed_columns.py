"""Products of two quantised operands that are computed as the model runs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.ir.graph import Module, Value
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES
from aot.passes.quantise.computed_columns import LEAST_ROWS
from aot.passes.quantise.quantise_contractions import IN_INTEGERS, multiply_adds_of

X_SCALE, W_SCALE = np.float32(0.02), np.float32(0.03)
ZEROS = {"u8": (0, 128, 77, 255), "i8": (0, -128, 5, 127)}
# dtypes of both sides, and whether the right one comes transposed, as keys do
KINDS = list(itertools.product(("u8", "i8"), ("u8", "i8"), (False, True)))
CASES = [("host", *kind) for kind in KINDS]
CASES += [("x86-64-v3", *KINDS[1]), ("x86-64-v2", *KINDS[6]), ("x86-64-v3", *KINDS[4])]


def product(
    x: str, w: str, zeros: tuple[int, int] = (0, 0), *, is_transposed: bool = False
) -> tuple[Builder, Value]:
    """A product, in floats, of dequantised inputs of types `x` and `w`."""
    b = Builder()
    types = {"x": x, "w": w}
    left, right = (
        b.op("dequantize", b.input(name, type), scale, b.constant(zero, type.split("[")[0]))
        for (name, type), scale, zero in zip(types.items(), (X_SCALE, W_SCALE), zeros, strict=True)
    )
    if is_transposed:
        right = b.op("transpose", right, perm=(0, 2, 1))
    return b, b.op("matmul", left, right)


def module_of(*args: Any, **kinds: Any) -> Module:
    b, y = product(*args, **kinds)
    b.output("y", y)
    return b.module()


def reasons(module: Module) -> set[str]:
    context = PassContext(CompileOptions())
    run_passes(module, MODEL_PASSES, context)
    return set(multiply_adds_of(context))


def check(module: Module, shapes: Any, zeros: tuple[int, int], target: str) -> None:
    """Fails unless the module computes its product exactly, up to the rounding of one f32."""
    rng = np.random.default_rng(7)
    is_transposed = shapes[0][-1] == shapes[1][-1] and shapes[0][-1] != shapes[1][-2]
    with aot.load(aot.compile(module, targets=[target])) as program:
        inputs = {}
        for value, shape in zip(module.main.inputs, shapes, strict=True):
            info = np.iinfo(value.type.dtype.numpy)
            inputs[value.name] = rng.integers(info.min, info.max + 1, shape).astype(info.dtype)
            # sums at their largest, too
            inputs[value.name][0] = info.max
        (found,) = program(inputs).values()
    x, w = (array.astype(np.float64) for array in inputs.values())
    x, w = x - zeros[0], w - zeros[1]
    expected = x @ (w.transpose(0, 2, 1) if is_transposed else w)
    expected *= np.float64(X_SCALE) * np.float64(W_SCALE)
    np.testing.assert_allclose(found, expected, rtol=3e-7, atol=1e-12)


@pytest.mark.parametrize("target,x,w,is_transposed", CASES)
def test_sums_are_exact(target: str, x: str, w: str, is_transposed: bool) -> None:
    """Extents that fill no word and no panel, and zero points at both ends."""
    number = KINDS.index((x, w, is_transposed))
    zeros = ZEROS[x][number % 4], ZEROS[w][(number // 2 + 1) % 4]
    shapes = (2, 25, 13), (2, 19, 13) if is_transposed else (2, 13, 19)
    types = f"{x}[2, 25, 13]", f"{w}[{', '.join(map(str, shapes[1]))}]"
    module = module_of(*types, zeros, is_transposed=is_transposed)
    check(module, shapes, zeros, target)
    assert reasons(module_of(*types, zeros, is_transposed=is_transposed)) == {IN_INTEGERS}


@pytest.mark.parametrize("rows", ["N", "40"])
def test_columns_are_counted_as_the_model_runs(rows: str) -> None:
    zeros = 100, 111
    module = module_of(f"u8[3, {rows}, 64]", "u8[3, N, 64]", zeros, is_transposed=True)
    for columns in (1, 7, 65):
        count = columns if rows == "N" else int(rows)
        check(module, ((3, count, 64), (3, columns, 64)), zeros, "host")


@pytest.mark.parametrize(
    "x,w,expected",
    [
        (f"u8[2, {LEAST_ROWS}, 8]", "u8[2, 8, 9]", IN_INTEGERS),
        (f"u8[2, {LEAST_ROWS - 1}, 8]", "u8[2, 8, 9]", "both operands vary"),
        ("u8[2, 30, K]", "u8[2, K, 9]", "both operands vary"),
        ("u8[2, M, 8]", "u8[2, 8, N]", "both operands vary"),
        ("u8[2, 30, 2]", "u8[2, 2, 9]", "both operands vary"),
        ("u16[2, 30, 8]", "u8[2, 8, 9]", "both operands vary"),
        ("u8[1, 30, 34000]", "u8[1, 34000, 9]", "sums may exceed 32 bits"),
    ],
)
def test_which_products_are_of_integers(x: str, w: str, expected: str) -> None:
    assert reasons(module_of(x, w)) == {expected}


@pytest.mark.parametrize("is_quantised", [False, True])
def test_attention_in_floats_stays_one_kernel(is_quantised: bool) -> None:
    """Where weights of keys are quantised before they mix values, both products are integers."""
    b, y = product("u8[2, 30, 8]", "u8[2, 30, 8]", is_transposed=True)
    scores = b.op("mul", y, np.float32(0.25))
    weights = b.op("softmax", scores, axis=2)
    values = b.op("dequantize", b.input("v", "u8[2, 30, 8]"), W_SCALE)
    if is_quantised:
        scale = np.float32(1 / 255)
        weights = b.op("quantize", weights, scale, b.constant(0, "u8"), to="u8")
        weights = b.op("dequantize", weights, scale)
    b.output("y", b.op("matmul", weights, values))
    module = b.module()
    found = reasons(module)
    names = {op.name for op in module.main.walk()}
    assert ("attention" in names) is not is_quantised
    if is_quantised:
        assert found == {IN_INTEGERS}
    else:
        assert found == {"its attention is computed in floats", "an operand is a float"}


def test_weights_from_the_left_are_of_integers() -> None:
    """As in mixers of tokens, with a scale for each row."""
    rng = np.random.default_rng(3)
    stored = rng.integers(-128, 128, (33, 20)).astype(np.int8)
    scales = rng.uniform(0.01, 0.1, (33, 1)).astype(np.float32)
    b = Builder()
    x = b.op("dequantize", b.input("x", "u8[2, 20, 18]"), X_SCALE, b.constant(93, "u8"))
    b.output("y", b.op("matmul", b.op("dequantize", stored, scales), x))
    module = b.module()
    inputs = rng.integers(0, 256, (2, 20, 18)).astype(np.uint8)
    with aot.load(aot.compile(module)) as program:
        (found,) = program({"x": inputs}).values()
    expected = (stored * scales.astype(np.float64)) @ (inputs.astype(np.float64) - 93)
    np.testing.assert_allclose(found, expected * np.float64(X_SCALE), rtol=3e-7, atol=1e-12)
    assert reasons(module) == {IN_INTEGERS}
