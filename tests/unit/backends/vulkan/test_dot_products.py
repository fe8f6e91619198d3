"""Sums of products of bytes in shaders, by instructions and part by part: exact on every driver.

The cases are those of the CPU's tests, on which words of both sides are read at any alignment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.backends.vulkan.emit import compile_kernel
from aot.ir.expr import Const, Dot, Expr, Load, add, binary, const, index, mul
from aot.ir.types import DType
from aot.kernels.ir.nodes import Kernel, KernelBuilder, Stmt, Store
from aot.kernels.ir.text import to_text
from aot.kernels.rules.products.dots import WORDS
from aot.target.model import Target
from aot.target.selection import load
from tests.support import vulkan_device, vulkan_running
from tests.support.dot_products import CASES, EXTREMES, conv, matmul
from tests.support.lowering_checks import Engine
from tests.support.vulkan_case import I32, INPUTS, OUTPUTS, spread, tensor

pytestmark = pytest.mark.vulkan

TARGETS = ("vulkan-1.1", "vulkan-1.3")
U8, I8 = DType.U8, DType.I8
FEATURE = "shaderIntegerDotProduct"
IN_WORDS = (
    *("four-channels", "strided", "dilated", "groups-of-words", "row", "not-narrow"),
    *("in-place", "in-place-strided", "in-place-windows", "in-place-dilated"),
)
MORE = {
    "tall": matmul("i8", 70, 32, 65),
    "padded": conv("u8", 32, 24, pad_value=255),
    "few-columns": matmul("u8", 33, 16, 3),
}


def on_driver(driver: str, target: Target) -> Engine:
    def run(kernel: Kernel, buffers: dict[str, Any], params: dict[str, Any]) -> None:
        shader = vulkan_running.build(kernel, target)
        found = vulkan_running.run_on(driver, kernel, buffers, params, shader=shader)
        for name, array in found.items():
            buffers[name][...] = array.reshape(buffers[name].shape)

    return run


def kernel_of(name: str, target: Target, alignment: int = 16) -> Kernel:
    return {**CASES, **MORE}[name].lowered(target, alignment)


@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_sums_are_exact(name: str, target: str, driver: str) -> None:
    machine = load(target)
    for how in EXTREMES if name in IN_WORDS else EXTREMES[:1]:
        engine = on_driver(driver, machine)
        {**CASES, **MORE}[name].check(machine, engine, how, alignment=16)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_words_are_multiplied_where_both_sides_have_them(name: str, target: str) -> None:
    machine = load(target)
    kernel = kernel_of(name, machine)
    shader = compile_kernel(kernel, machine)
    is_in_words = name in IN_WORDS or name in MORE
    assert ("dot(" in to_text(kernel)) == is_in_words
    assert (FEATURE in shader.features) == (is_in_words and target == "vulkan-1.3")
    assert "Int8" not in shader.capabilities


def test_bytes_at_any_place_are_multiplied_one_by_one() -> None:
    machine = load("vulkan-1.3")
    kernel = kernel_of("strided", machine, alignment=1)
    assert "dot(" not in to_text(kernel)
    assert FEATURE not in compile_kernel(kernel, machine).features


@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("left", "right"), [(I8, I8), (I8, U8), (U8, I8), (U8, U8)])
def test_words_at_any_byte(left: DType, right: DType, target: str, driver: str) -> None:
    """A word whose place is not known to be whole is put together of bytes; a guard that fails
    gives another one; sums wrap."""
    count, step, offset = 70, 5, 3
    b = KernelBuilder("any_byte")
    x = tensor(b, "x", left, INPUTS, step * count + offset)
    w = tensor(b, "w", right, INPUTS, 4 * count)
    y = tensor(b, "y", I32, OUTPUTS, count)

    def body(i: Expr, is_there: Expr) -> tuple[Stmt, ...]:
        at = add(mul(i, index(step)), index(offset))
        guard = binary("lt", i, index(count - 9))
        a = Load(x, (at,), WORDS[left], guard, Const(WORDS[left], 0x01020304))
        c = Load(w, (mul(i, index(4)),), WORDS[right], is_there, Const(WORDS[right], 0))
        return (Store(y, (i,), Dot(a, c, const((1 << 31) - 9, I32)), is_there),)

    rng = np.random.default_rng(3)
    xs = rng.integers(-128, 128, step * count + offset).astype(left.numpy)
    ws = rng.integers(-128, 128, 4 * count).astype(right.numpy)
    rows = np.stack([xs[step * i + offset :][:4] for i in range(count - 1)] + [[0] * 4])
    rows[count - 9 :] = [4, 3, 2, 1]
    sums = (rows.astype(np.int64) * ws.reshape(count, 4)).sum(1) + (1 << 31) - 9
    kernel, machine = b.build(spread(b, count, 32, body)), load(target)
    shader = vulkan_running.build(kernel, machine)
    arrays = {"x": xs, "w": ws}
    found = vulkan_running.run_on(driver, kernel, arrays, shader=shader)
    np.testing.assert_array_equal(found["y"], sums.astype(np.int32))
    assert (FEATURE in shader.features) == (target == "vulkan-1.3")
