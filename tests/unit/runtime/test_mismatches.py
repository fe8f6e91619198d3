"""What is advised where an array does not fit an input: each advice, carried out, makes it fit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot.runtime.mismatches import advice
from aot.runtime.tensors import TensorInfo


def info(dtype: str, *dims: int | str) -> TensorInfo:
    bounds = tuple((d, d) if isinstance(d, int) else (1, 64) for d in dims)
    return TensorInfo("x", dtype, dims, bounds)


PICTURE = info("f32", 1, 3, 24, 32)
SCALED = ", with its values scaled as in the model's training"


@pytest.mark.parametrize(
    ("wanted", "array", "said"),
    [
        (PICTURE, np.zeros((1, 24, 32, 3), np.float32), "array.transpose(0, 3, 1, 2)"),
        (PICTURE, np.zeros((3, 24, 32), np.float32), "array[np.newaxis]"),
        (PICTURE, np.zeros((1, 3, 24, 32), np.uint8), "array.astype(np.float32)" + SCALED),
        (
            PICTURE,
            np.zeros((1, 24, 32, 3), np.uint8),
            "array.transpose(0, 3, 1, 2).astype(np.float32)" + SCALED,
        ),
        (PICTURE, np.zeros((1, 3, 24, 32)), "array.astype(np.float32)"),
        (info("f32", 1, 24, 32, 3), np.zeros((1, 3, 24, 32), "f4"), "array.transpose(0, 2, 3, 1)"),
        (info("f32", "N", 8), np.zeros(8, np.float32), "array[np.newaxis]"),
        (info("f32", 8), np.zeros((1, 8), np.float32), "array[0]"),
        (info("f32", 4, 8), np.zeros((8, 4), np.float32), "array.T"),
        (info("i64", "N"), np.zeros(3, np.int32), "array.astype(np.int64)"),
        (info("bool", "N"), np.zeros(3, np.int32), "array.astype(np.bool)"),
        (info("bf16", "N"), np.zeros(3, np.float32), "array.astype(ml_dtypes.bfloat16)"),
    ],
)
def test_advice(wanted: TensorInfo, array: np.ndarray, said: str) -> None:
    assert advice(wanted, array) == f": give {said}"
    made = eval(said.removesuffix(SCALED), {"np": np, "ml_dtypes": ml_dtypes, "array": array})
    assert made.dtype == wanted.numpy_dtype
    assert len(made.shape) == len(wanted.dims)
    assert all(d in (e, "N") for d, e in zip(wanted.dims, made.shape, strict=True))


@pytest.mark.parametrize(
    ("wanted", "array"),
    [
        (PICTURE, np.zeros((1, 4, 24, 32), np.float32)),
        (PICTURE, np.zeros((1, 32, 24, 4), np.uint8)),
        (PICTURE, np.zeros((), np.float32)),
        (info("f32", "N", 8), np.zeros((65, 8), np.float32)),
        (info("f32", 4, 8), np.zeros((4, 9), np.float32)),
        (info("f32", 4), np.zeros(4, np.float32)),
    ],
)
def test_nothing_is_advised_where_no_single_change_fits(
    wanted: TensorInfo, array: np.ndarray
) -> None:
    assert advice(wanted, array) == ""
