"""Constants above the bytes that folding computes: what only moves them is done all the same."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aot.builder import Builder
from aot.ir.types import DType, Layout, TensorType, to_logical, to_physical
from aot.passes.layout.pack import pack
from aot.passes.simplify import fold_constants
from aot.target import selection as targets


def test_large_weights_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were once packed by the device, at every run."""
    monkeypatch.setattr(fold_constants, "LIMIT_BYTES", 1024)
    weight = np.random.default_rng(1).normal(size=(40, 20)).astype(np.float32)
    b = Builder()
    x = b.input("x", "f32[3, 20]")
    b.output("y", b.op("matmul", x, b.op("transpose", weight, perm=[1, 0])))
    b.output("z", b.op("exp", weight))
    function = b.function()
    fold_constants.fold(function, 1 << 20)
    pack(function, targets.load("x86-64-v3"))
    fold_constants.fold(function, 1 << 20)
    names = [op.name for op in function.block]
    assert names.count("pack") == names.count("transpose") == 0
    assert names.count("exp") == 1  # which computes more than the limit
    packed = next(op for op in function.block if op.name == "matmul").operands[1]
    assert packed is not None and packed.op is not None
    assert np.array_equal(packed.op.attrs["value"].logical, weight.T)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("count", "users", "is_wide"),
    [(256, 1, True), (257, 1, False), (257, 2, True), (1024, 2, True), (1025, 2, False)],
)
def test_halves_that_loads_widen_are_stored_as_they_are(
    count: int, users: int, is_wide: bool
) -> None:
    """But for a few, and for those that a dispatch would widen, as several ops read them."""
    half = np.random.default_rng(1).normal(size=count).astype(np.float16)
    b = Builder()
    x, wide = b.input("x", f"f32[{count}]"), b.op("cast", half, to=DType.F32)
    for number, op in enumerate(("add", "mul")[:users]):
        b.output(f"y{number}", b.op(op, x, wide))
    function = b.function()
    fold_constants.fold(function, 1 << 20)
    assert ("cast" in [op.name for op in function.block]) is not is_wide


def test_panels_by_their_definition() -> None:
    """Whatever dim is split and in whatever order: split, padded, and then ordered."""
    rng = np.random.default_rng(2)
    for shape in ((37, 5), (32, 3, 2), (5, 33), (3,)):
        array = rng.normal(size=shape).astype(np.float32)
        orders = list(itertools.permutations(range(len(shape) + 1)))
        for dim, order, factor in itertools.product(range(len(shape)), ((), *orders), (4, 16)):
            type = TensorType(DType.F32, shape, Layout(splits=((dim, factor),), order=order))
            found = to_physical(array, type)
            rest = [(0, -n % factor if d == dim else 0) for d, n in enumerate(shape)]
            padded = np.pad(array, rest)
            split = padded.reshape((*shape[:dim], -1, factor, *shape[dim + 1 :]))
            wanted = np.moveaxis(split, dim + 1, -1)
            assert np.array_equal(found, wanted.transpose(order) if order else wanted)
            assert found.flags.c_contiguous
            assert np.array_equal(to_logical(found, type), array)
