"""Contractions of integers whose weights lie in groups, run against the graph interpreter.

Sizes, layouts and dtypes are swept; the operands are extremes as well as random numbers. Engines
run the kernels: an interpreter, machine code, or a driver.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aot.analysis.cost.plan import weight_layouts
from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY, Sample, call_of
from aot.ir.types import DType, Layout, TensorType, to_physical
from aot.target.model import Target
from tests.support.half_regions import executable, half_function
from tests.support.lowering import run_executable
from tests.support.lowering_checks import Engine

U8, I8, I16 = DType.U8, DType.I8, DType.I16
CHANNELS_LAST = Layout(order=(0, 2, 3, 1))
CONV = REGISTRY["conv_integer"]


def conv(
    left: DType,
    channels: int,
    filters: int,
    kernel: int = 3,
    stride: int = 1,
    pad_value: int = 0,
    layout: Layout | None = CHANNELS_LAST,
    dilation: int = 1,
    group: int = 1,
    max_weight: int = 128,
    is_padded: bool = True,
    size: tuple[int, int] = (6, 7),
    batch: int = 2,
) -> tuple[str, Sample]:
    """Height and width are the size; the layout is the image's."""
    pad = dilation * (kernel // 2) if is_padded else 0
    types = (
        TensorType(left, (batch, channels, *size), layout),
        TensorType(I8, (filters, channels // group, kernel, kernel)),
        TensorType(DType.I32, (filters,)),
    )
    attrs = {
        "strides": (stride, stride),
        "dilations": (dilation, dilation),
        "pads": (pad, pad, pad, pad),
        "group": group,
        "pad_value": pad_value,
        "max_weight": max_weight,
    }
    return "conv_integer", Sample(types, attrs)


def matmul(
    left: DType, rows: int, depth: int, columns: int, max_weight: int = 128
) -> tuple[str, Sample]:
    types = TensorType(left, (rows, depth)), TensorType(I8, (depth, columns))
    return "matmul_integer", Sample(types, {"max_weight": max_weight})


CASES: dict[str, tuple[str, Sample]] = {
    "three-channels": conv(U8, 3, 20, pad_value=113),
    "four-channels": conv(I8, 4, 5, pad_value=-128),
    "uneven": conv(U8, 37, 33, pad_value=255),
    "dense": conv(U8, 19, 16, pad_value=7, layout=None),
    "pointwise": conv(I8, 70, 40, kernel=1),
    "in-place": conv(U8, 72, 40, kernel=1),
    "in-place-strided": conv(U8, 24, 100, kernel=1, stride=2),
    "in-place-windows": conv(U8, 4, 20, stride=2, is_padded=False),
    "in-place-dilated": conv(U8, 8, 33, dilation=2, is_padded=False),
    "strided": conv(U8, 16, 100, kernel=1, stride=2),
    "dilated": conv(U8, 8, 17, stride=2, dilation=2, pad_value=1),
    "wide": conv(I16, 9, 18, pad_value=-300),
    "groups": conv(U8, 15, 51, group=3, pad_value=9),
    "groups-strided": conv(I8, 36, 32, kernel=1, stride=2, group=4),
    "groups-of-words": conv(I8, 8, 34, group=2, pad_value=-128),
    "groups-dilated": conv(U8, 70, 22, dilation=2, group=2, pad_value=255),
    "groups-wide": conv(I16, 22, 40, kernel=1, group=2, pad_value=-300),
    "row": matmul(U8, 1, 300, 33),
    "rows": matmul(I8, 17, 519, 16),
    "columns": matmul(U8, 5, 5, 200),
    "short": matmul(I16, 29, 3, 48),
    "narrow": conv(U8, 37, 33, pad_value=255, max_weight=64),
    "narrow-signed": conv(I8, 37, 33, pad_value=-128, max_weight=127),
    "narrow-groups": conv(U8, 15, 51, group=3, pad_value=9, max_weight=64),
    "narrow-groups-signed": conv(I8, 36, 32, stride=2, group=4, max_weight=127),
    "narrow-rows": matmul(U8, 17, 519, 40, max_weight=64),
    "narrow-rows-signed": matmul(I8, 17, 519, 40, max_weight=127),
    "narrow-columns": matmul(U8, 5, 5, 40, max_weight=64),
    "narrow-columns-signed": matmul(I8, 5, 6, 40, max_weight=127),
    "not-narrow": matmul(U8, 9, 64, 40, max_weight=65),
}
EXTREMES = ("random", "least", "most", "extremes")


def made(case: tuple[str, Sample], target: Target) -> tuple[Function, Sample]:
    """The case as an executable whose weights lie as the plan for a target asks, and its types."""
    op, sample = case
    record = REGISTRY[op]
    plain = half_function(record, sample, is_half=False)
    (call,) = [call_of(o) for o in plain.walk() if o.record is record]
    layouts = weight_layouts(call, target)
    types = list(sample.operands)
    for number, layout in layouts.items():
        type_ = types[number]
        assert type_ is not None
        assert len(layout.splits) == (1 if sample.attrs.get("group", 1) != 1 else 2)
        types[number] = TensorType(type_.dtype, type_.dims, layout)
    packed = Sample(tuple(types), sample.attrs)
    return executable(half_function(record, packed, is_half=False)), packed


def numbers(type_: TensorType, how: str, rng: np.random.Generator, largest: int) -> Any:
    """Numbers of a dtype that are no further from 0 than the largest one."""
    info = np.iinfo(type_.dtype.numpy)
    least, most = max(info.min, -largest), min(info.max, largest)
    if type_.dtype is DType.I32:
        return rng.integers(-1000, 1000, type_.shape).astype(np.int32)
    if how == "least":
        return np.full(type_.shape, least, type_.dtype.numpy)
    if how == "most":
        return np.full(type_.shape, most, type_.dtype.numpy)
    if how == "extremes":
        return rng.choice([least, most], type_.shape).astype(type_.dtype.numpy)
    return rng.integers(least, most + 1, type_.shape).astype(type_.dtype.numpy)


def check(case: tuple[str, Sample], how: str, target: Target, engine: Engine) -> None:
    function, sample = made(case, target)
    op, _ = case
    types = [t for t in sample.operands if t is not None]
    rng = np.random.default_rng(5)
    largest = int(sample.attrs.get("max_weight", 128))
    arrays = [numbers(t, how, rng, largest if n == 1 else 1 << 16) for n, t in enumerate(types)]
    expected = run(half_function(REGISTRY[op], case[1], is_half=False), arrays)
    physical = [to_physical(a, t) for a, t in zip(arrays, types, strict=True)]
    aligned = (16,) * len(physical) if target.has_workgroups else ()
    (found,) = run_executable(function, target, physical, [], engine, aligned)
    np.testing.assert_array_equal(found, expected[0])
