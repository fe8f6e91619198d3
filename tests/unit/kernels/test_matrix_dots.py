"""Products of matrices of bytes: what the statement means, and tiles that are made of it.

Contractions of random shapes are run under QEMU and in the kernel interpreter against the graph
interpreter; so is the statement by itself, for each pair of dtypes.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aot.analysis.stages import schedule_of
from aot.ir.types import DType, TensorType
from aot.kernels.ir import interpreter
from aot.kernels.ir.nodes import (
    BufferClass,
    Kernel,
    KernelBuilder,
    MatrixDot,
    Stmt,
    walk,
)
from aot.kernels.ir.text import to_text
from aot.kernels.ir.verifier import verify
from tests.support.dot_products import CASES, conv, matmul
from tests.support.executables import LAST, PLANES, Executable, numbers
from tests.support.kernel_backends import device, on_qemu
from tests.support.kernel_terms import ix, load, store, vector
from tests.support.lowering_checks import Engine, on_interpreter

TARGET = "aarch64-linux-i8mm"
I8, U8, I32 = DType.I8, DType.U8, DType.I32
WORDS = {I8: DType.I8X4, U8: DType.U8X4}


def on_arm() -> Engine:
    """Machine code under QEMU."""
    return on_qemu(device(TARGET))


# The statement


def statement(left: DType, right: DType) -> Kernel:
    """Twice the products of a matrix of two rows and four columns, in order of the sums."""
    b = KernelBuilder("products")
    rows = b.buffer("rows", left, BufferClass.INPUTS, (16,), (1,))
    columns = b.buffer("columns", right, BufferClass.INPUTS, (2, 16), (16, 1))
    y = b.buffer("y", I32, BufferClass.OUTPUTS, (8,), (1,), is_written=True)
    sums = b.scratch("sums", I32, (1, 8))

    def words(source: Any, *at: int) -> Any:
        return replace(load(source, *map(ix, at)), dtype=WORDS[source.dtype])

    product = MatrixDot(
        sums, (ix(0),), words(rows, 0), (words(columns, 0, 0), words(columns, 1, 0))
    )
    first, last = b.var("v"), b.var("w")
    zeros: Stmt = vector(first, 8, [store(sums, ix(0), first, value=ix_of(0))])
    result: Stmt = vector(last, 8, [store(y, last, value=load(sums, ix(0), last))])
    return b.build((zeros, product, product, result))


def ix_of(value: int) -> Any:
    from aot.ir import expr

    return expr.const(value, I32)


PAIRS = ((I8, I8), (U8, I8), (U8, U8))


@pytest.mark.qemu
@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("how", ["random", "extremes"])
def test_the_statement_adds_products_of_rows_and_columns(
    left: DType, right: DType, how: str
) -> None:
    kernel = statement(left, right)
    verify(kernel)
    rng = np.random.default_rng(3)
    rows = numbers(TensorType(left, (2, 8)), how, rng, 255)
    columns = numbers(TensorType(right, (2, 4, 4)), how, rng, 255)
    # eight terms of each column, whose halves lie apart
    wide = columns.astype(np.int64).transpose(1, 0, 2).reshape(4, 8)
    products = rows.astype(np.int64) @ wide.T
    expected = 2 * products.reshape(2, 2, 2).transpose(1, 0, 2).reshape(8)
    for engine in (on_interpreter, on_arm()):
        buffers = {"rows": rows.reshape(-1), "columns": columns.reshape(-1)}
        buffers["y"] = np.zeros(8, np.int32)
        engine(kernel, buffers, {p.name: 0 for p in kernel.params})
        np.testing.assert_array_equal(buffers["y"], expected)


# Tiles


def has_matrices(kernel: Kernel) -> bool:
    return any(isinstance(stmt, MatrixDot) for stmt in walk(kernel.body))


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        *(("pointwise", True), ("uneven", True), ("rows", True), ("three-channels", True)),
        *(("strided", True), ("columns", True), ("dilated", True)),
        *(("groups", True), ("groups-of-words", True), ("narrow-columns", True)),
        # a row alone, numbers of 16 bits
        *(("row", False), ("wide", False)),
    ],
)
def test_tiles_of_several_rows_are_products_of_matrices(name: str, is_there: bool) -> None:
    assert has_matrices(CASES[name].lowered(TARGET)) is is_there


@pytest.mark.parametrize(
    ("name", "instruction"), [("pointwise", "smmla"), ("uneven", "usmmla"), ("rows", "smmla")]
)
def test_instructions_for_matrices_are_used(name: str, instruction: str) -> None:
    """Two columns are brought side by side once for all rows of a step."""
    text = CASES[name].assembly(TARGET)
    loop = max(re.split(r"^\.LBB", text, flags=re.M), key=lambda part: part.count("mmla\t"))
    found = re.findall(rf"^\t{instruction}\t", loop, flags=re.M)
    orders = re.findall(r"^\tzip[12]\t", loop.partition("b.ne")[0], flags=re.M)
    assert len(found) >= 4 * len(orders) // 2
    assert not re.search(r"^\t(?:st|ins|mov\tv)", loop.partition("b.ne")[0], flags=re.M)


def test_a_target_without_them_keeps_dot_products() -> None:
    for name in ("aarch64-linux-dotprod", "aarch64-generic", "x86-64-v4-vnni", "vulkan-1.3"):
        assert not has_matrices(CASES["uneven"].lowered(name))


def random_case(rng: np.random.Generator) -> Executable:
    """A convolution or a product whose rows, columns and terms divide by nothing."""
    left = "u8" if rng.integers(2) else "i8"
    if rng.integers(2):
        rows, depth, columns = (int(rng.integers(low, 50)) for low in (2, 3, 1))
        return matmul(left, rows, depth, columns)
    channels, filters = int(rng.integers(3, 30)), int(rng.integers(4, 40))
    group = int(rng.choice([1, 1, 2]))
    channels, filters = group * channels, group * filters
    kernel, stride, dilation = int(rng.choice([1, 3])), *map(int, rng.integers(1, 3, 2))
    pad_value = int(rng.integers(0, 128))
    layout = LAST if rng.integers(4) else PLANES
    return conv(left, channels, filters, kernel, stride, pad_value, layout, dilation, group)


@pytest.mark.qemu
@pytest.mark.parametrize("seed", range(6))
def test_random_contractions_are_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(6):
        random_case(rng).check(TARGET, on_arm(), "random")


@pytest.mark.parametrize("seed", range(2))
def test_random_contractions_are_exact_in_the_kernel_interpreter(seed: int) -> None:
    case = random_case(np.random.default_rng(100 + seed))
    case.check(TARGET, on_interpreter, "extremes")


@pytest.mark.qemu
@pytest.mark.parametrize("depth", [12, 40])
def test_rows_that_only_the_device_counts(depth: int) -> None:
    for count in (1, 2, 3, 11, 12, 13, 26):
        case = replace(matmul("u8", count, depth, 20), opened="M")
        assert has_matrices(case.lowered(TARGET))
        case.check(TARGET, on_arm(), "random")


def test_tiles_have_rows_in_pairs() -> None:
    for name in ("pointwise", "uneven", "rows"):
        assert schedule_of(CASES[name].function(), device(TARGET))[0].rows % 2 == 0


def test_text_names_what_is_multiplied() -> None:
    text = to_text(statement(U8, I8))
    assert (
        "sums[0, :] += matrix_dot(u8x4(rows[0]), i8x4(columns[0, 0]), i8x4(columns[1, 0]))" in text
    )


def test_the_interpreter_wraps_as_sums_do() -> None:
    kernel = statement(U8, U8)
    rows, columns = np.full(16, 255, np.uint8), np.full(32, 255, np.uint8)
    y = np.zeros(8, np.int32)
    interpreter.run(
        kernel,
        {"rows": rows, "columns": columns, "y": y},
        {p.name: 0 for p in kernel.params},
        check_races=True,
    )
    assert (y == 2 * 8 * 255 * 255).all()
