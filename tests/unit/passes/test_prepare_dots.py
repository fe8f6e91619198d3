"""prepare-dots: other signs and whole groups of channels give the same sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.ir.builder import Builder
from aot.ir.dims import Dim
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.ir.types import DType, TensorType
from aot.ir.verifier import verify
from aot.passes.base import PassContext
from aot.passes.quantise.prepare_dots import PREPARE_DOTS
from tests.support.kernel_backends import device

U8, I8, I16 = DType.U8, DType.I8, DType.I16


def conv(left: DType, channels: int, *, bias: bool, pad_value: int = 0, group: int = 1) -> Module:
    rng = np.random.default_rng(channels)
    b = Builder()
    x = b.input("x", TensorType(left, (1, channels * group, 5, 6)))
    weights = rng.integers(-128, 128, (4 * group, channels, 3, 2)).astype(np.int8)
    operands: list[Any] = [x, b.constant(weights)]
    if bias:
        operands.append(b.constant(rng.integers(-9999, 9999, 4 * group).astype(np.int32)))
    attrs: dict[str, Any] = {
        "strides": (2, 1),
        "dilations": (1, 1),
        "pads": (1, 0, 1, 1),
        "group": group,
        "pad_value": pad_value,
    }
    b.output("y", b.op("conv_integer", *operands, **attrs))
    return b.module()


def matmul(left: DType, dims: tuple[Dim, ...], *batch: int) -> Module:
    rng = np.random.default_rng(3)
    b = Builder()
    x = b.input("x", TensorType(left, dims))
    weights = rng.integers(-128, 128, (*batch, dims[-1], 7)).astype(np.int8)
    b.output("y", b.op("matmul_integer", x, b.constant(weights)))
    return b.module()


def prepared(module: Module, target: str) -> list[str]:
    """Types of the left sides of the module's contractions, after the pass."""
    PREPARE_DOTS.run(module, PassContext(target=device(target)))
    verify(module)
    (function,) = module.entry_points
    return [
        str(op.operands[0].type)  # type: ignore[union-attr]
        for op in function.walk()
        if op.name.endswith("_integer")
    ]


def check(made: Module, other: Module, target: str, expected: str) -> None:
    (function,), (plain,) = other.entry_points, made.entry_points
    assert prepared(other, target) == [expected]
    rng = np.random.default_rng(0)
    for how in ("random", "least", "most"):
        type_ = plain.inputs[0].type
        info = np.iinfo(type_.dtype.numpy)
        shape = type_.shape
        x = {
            "random": rng.integers(info.min, info.max + 1, shape),
            "least": np.full(shape, info.min),
            "most": np.full(shape, info.max),
        }[how].astype(type_.dtype.numpy)
        np.testing.assert_array_equal(run(function, [x])[0], run(plain, [x])[0])


@pytest.mark.parametrize(
    ("left", "target", "channels", "expected"),
    [
        (U8, "aarch64-linux-dotprod", 8, "i8[1, 8, 5, 6]"),
        (U8, "aarch64-linux-dotprod", 3, "i8[1, 4, 7, 7]"),
        (I8, "aarch64-linux-dotprod", 8, "i8[1, 8, 5, 6]"),
        (U8, "aarch64-linux-dotprod+i8mm", 8, "u8[1, 8, 5, 6]"),
        (I8, "x86-64-v4+avx512vnni", 9, "u8[1, 12, 7, 7]"),
        (U8, "x86-64-v4+avx512vnni", 8, "u8[1, 8, 5, 6]"),
        (I8, "x86-64-v3", 8, "i8[1, 8, 5, 6]"),
        (U8, "x86-64-v3", 17, "u8[1, 17, 5, 6]"),
        (I16, "aarch64-linux-dotprod", 5, "i16[1, 8, 7, 7]"),
        (U8, "vulkan-1.1", 3, "u8[1, 3, 5, 6]"),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions(left: DType, target: str, channels: int, expected: str, bias: bool) -> None:
    value = -7 if left.is_signed else 200
    made = [conv(left, channels, bias=bias, pad_value=value) for _ in range(2)]
    check(made[0], made[1], target, expected)


def whole(size: int, channels: int, filters: int, group: int = 1) -> Module:
    rng = np.random.default_rng(channels)
    b = Builder()
    x = b.input("x", TensorType(U8, (1, channels * group, size, size)))
    weights = rng.integers(-128, 128, (filters * group, channels, 3, 3)).astype(np.int8)
    bias = rng.integers(-9999, 9999, filters * group).astype(np.int32)
    attrs: dict[str, Any] = {
        "strides": (1, 1),
        "dilations": (1, 1),
        "pads": (1, 1, 1, 1),
        "group": group,
        "pad_value": 131,
    }
    b.output("y", b.op("conv_integer", x, b.constant(weights), b.constant(bias), **attrs))
    return b.module()


@pytest.mark.parametrize(
    ("target", "size", "channels", "filters", "group", "expected"),
    [
        ("lavapipe-matrix", 9, 32, 24, 1, I8),
        ("nvidia-matrix", 60, 32, 64, 1, I8),
        ("nvidia-matrix", 9, 32, 24, 1, U8),  # so few tiles keep too few lanes busy
        ("nvidia-matrix", 60, 48, 64, 1, U8),  # no multiple of a matrix's terms
        ("nvidia-matrix", 60, 32, 4, 1, U8),  # a tile would be idle for the most part
        ("nvidia-matrix", 60, 32, 64, 2, U8),
        ("nvidia", 40, 32, 64, 1, U8),
    ],
)
def test_matrices_of_signed_bytes(
    target: str, size: int, channels: int, filters: int, group: int, expected: DType
) -> None:
    made = [whole(size, channels, filters, group) for _ in range(2)]
    check(*made, target, f"{expected}[1, {channels * group}, {size}, {size}]")


@pytest.mark.parametrize("target", ["lavapipe-matrix", "nvidia-matrix", "vulkan-1.1"])
def test_products_of_matrices(target: str) -> None:
    made = []
    for _ in range(2):
        b = Builder()
        x = b.input("x", TensorType(U8, (3, 999, 64)))
        weights = np.random.default_rng(6).integers(-128, 128, (64, 96)).astype(np.int8)
        b.output("y", b.op("matmul_integer", x, b.constant(weights)))
        made.append(b.module())
    check(*made, target, f"{U8 if target == 'vulkan-1.1' else I8}[3, 999, 64]")


def test_convolutions_in_groups_get_no_channels_but_the_other_sign() -> None:
    made = [conv(U8, 3, bias=True, pad_value=200, group=2) for _ in range(2)]
    check(made[0], made[1], "aarch64-linux-dotprod", "i8[1, 6, 5, 6]")


@pytest.mark.parametrize(
    ("left", "target", "largest", "expected"),
    [
        (U8, "x86-64-v3", 64, (U8, 64)),
        (U8, "x86-64-v3", 65, (U8, 128)),
        (I8, "x86-64-v3", 64, (U8, 64)),
        (I8, "x86-64-v3", 65, (I8, 128)),
        (U8, "x86-64-v4+avx512vnni", 64, (U8, 128)),
        (U8, "aarch64-generic", 127, (I8, 127)),
        (I8, "aarch64-generic", 128, (I8, 128)),
        (U8, "armv7-neon", 3, (I8, 127)),
        (U8, "aarch64-linux-dotprod", 64, (I8, 128)),
        (I16, "aarch64-generic", 64, (I16, 128)),
        (U8, "wasm32", 64, (U8, 128)),
    ],
)
def test_kernels_rely_on_weights_that_are_small_enough(
    left: DType, target: str, largest: int, expected: tuple[DType, int]
) -> None:
    weights = np.zeros((24, 5), np.int8)
    weights[3, 2] = -largest
    made = []
    for _ in range(2):
        b = Builder()
        x = b.input("x", TensorType(left, (3, 24)))
        b.output("y", b.op("matmul_integer", x, b.constant(weights)))
        made.append(b.module())
    dtype, most = expected
    check(made[0], made[1], target, f"{dtype.value}[3, 24]")
    (op,) = [op for op in made[1].entry_points[0].walk() if op.name == "matmul_integer"]
    assert op.attrs["max_weight"] == most


def test_a_depthwise_convolution_stays_as_it_is() -> None:
    made = [conv(U8, 1, bias=True, group=6) for _ in range(2)]
    check(made[0], made[1], "aarch64-linux-dotprod", "u8[1, 6, 5, 6]")


@pytest.mark.parametrize(
    ("dims", "batch"), [((3, 9), ()), ((2, 3, 9), ()), ((2, 3, 9), (2,)), ((2, 1, 3, 9), (5,))]
)
def test_products(dims: tuple[int, ...], batch: tuple[int, ...]) -> None:
    made = [matmul(U8, dims, *batch) for _ in range(2)]
    text = f"i8[{', '.join(map(str, dims))}]"
    check(made[0], made[1], "aarch64-linux-dotprod", text)
