"""Pooling over windows of the spatial dims of x [N, C, spatial...].

Pooling over whole planes is reduce_mean or reduce_max; importers map it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian
from typing import Any

import numpy as np

from aot.ir import expr as e
from aot.ir.dims import Dim
from aot.ir.record import (
    FLOATS,
    NUMBERS,
    Attribute,
    Call,
    Compute,
    Constraint,
    Kind,
    Operand,
    OpRecord,
    Sample,
    register,
)
from aot.ir.types import Array, DType, TensorType
from aot.ops.contraction import (
    WINDOW_TEXT,
    has_window_attributes,
    inside,
    sum_dtype,
    take_taps,
    window_extent,
    window_position,
)
from aot.ops.elementwise import result_indices

F32 = DType.F32
WINDOW_ATTRIBUTES = (
    Attribute("kernel", "ints", doc="taps along each spatial dim"),
    Attribute("strides", "ints", doc="one a spatial dim"),
    Attribute("dilations", "ints", doc="one a spatial dim"),
    Attribute("pads", "dims", doc="begins, then ends, of the spatial dims"),
    Attribute("ceil_mode", "bool", False, "a last window may run over the end"),
)


def _kernel_fits(call: Call) -> bool:
    kernel = call.ints("kernel")
    return len(kernel) == call.operand(0).rank - 2 and min(kernel) >= 1


def _pads_are_small(call: Call) -> bool:
    kernel, dilations, pads = call.ints("kernel"), call.ints("dilations"), call.dims("pads")
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)] * 2
    return all(not isinstance(p, int) or p < s for p, s in zip(pads, spans, strict=True))


CONSTRAINTS = (
    Constraint("x has rank 3, 4 or 5", lambda call: call.operand(0).rank in (3, 4, 5)),
    Constraint("kernel has one positive number a spatial dim", _kernel_fits),
    Constraint(WINDOW_TEXT, has_window_attributes),
    Constraint("pads are smaller than the kernel's span", _pads_are_small),
)


def _extent(call: Call, d: int) -> Dim:
    x, pads = call.operand(0), call.dims("pads")
    return window_extent(
        x.dims[2 + d],
        call.ints("kernel")[d],
        call.ints("strides")[d],
        call.ints("dilations")[d],
        pads[d],
        pads[x.rank - 2 + d],
        ceil_mode=bool(call.attrs["ceil_mode"]),
    )


def pool_type(call: Call) -> Sequence[TensorType]:
    x = call.operand(0)
    spatial = [_extent(call, d) for d in range(x.rank - 2)]
    for d, extent in enumerate(spatial):
        if isinstance(extent, int) and extent < 1:
            raise call.error(
                f"the kernel of {call.ints('kernel')[d]} does not fit into spatial "
                f"dim {d}, which is {x.dims[2 + d]}"
            )
    return [TensorType(x.dtype, (*x.dims[:2], *spatial))]


def window(
    call: Call, other: float | int, indices: tuple[e.Var, ...] = ()
) -> tuple[tuple[e.Var, ...], e.Load, tuple[tuple[e.Var, Dim], ...]]:
    """(result indices, guarded load of a tap's element, tap variables with extents) of a window."""
    x, pads = call.operand(0), call.dims("pads")
    spatial = x.rank - 2
    indices = indices or result_indices(x.rank)
    taps = tuple(e.Var(f"k{d}") for d in range(spatial))
    positions, conditions = [], []
    for d in range(spatial):
        position = window_position(
            indices[2 + d], taps[d], call.ints("strides")[d], call.ints("dilations")[d], pads[d]
        )
        positions.append(position)
        if pads[d] != 0 or pads[spatial + d] != 0 or call.attrs["ceil_mode"]:
            conditions.extend(inside(position, x.dims[2 + d]))
    guard = e.all_of(conditions)
    load = e.Load(
        0,
        (*indices[:2], *positions),
        x.dtype,
        guard,
        None if guard is None else e.const(other, x.dtype),
    )
    return indices, load, tuple(zip(taps, call.ints("kernel"), strict=True))


def padded_input(call: Call, x: Array, fill: float | int, dtype: np.dtype[Any]) -> Array:
    """x padded, with room for windows that pass the end."""
    spatial = x.ndim - 2
    borders = [(0, 0), (0, 0)]
    for d in range(spatial):
        begin, end = int(call.dims("pads")[d]), int(call.dims("pads")[spatial + d])
        over = (
            (int(_extent_of(call, x, d)) - 1) * call.ints("strides")[d]
            + (call.ints("kernel")[d] - 1) * call.ints("dilations")[d]
            + 1
        )
        borders.append((begin, max(end, over - begin - x.shape[2 + d])))
    return np.pad(x.astype(dtype), borders, constant_values=fill)


def _extent_of(call: Call, x: Array, d: int) -> Dim:
    pads = call.dims("pads")
    return window_extent(
        x.shape[2 + d],
        call.ints("kernel")[d],
        call.ints("strides")[d],
        call.ints("dilations")[d],
        pads[d],
        pads[x.ndim - 2 + d],
        ceil_mode=bool(call.attrs["ceil_mode"]),
    )


def taps_of(call: Call, x: Array, padded: Array) -> list[Array]:
    """For each tap, the elements that all windows read there, in the taps' order."""
    extents = [int(_extent_of(call, x, d)) for d in range(x.ndim - 2)]
    return [
        take_taps(padded, tap, extents, call.ints("strides"), call.ints("dilations"))
        for tap in cartesian(*(range(k) for k in call.ints("kernel")))
    ]


def lowest(dtype: DType) -> float | int:
    """The smallest value of `dtype`, which any other beats in a maximum."""
    return float("-inf") if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def _max_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    x: Array = inputs[0]
    padded = padded_input(call, x, lowest(DType.of(x)), x.dtype)
    taps = taps_of(call, x, padded)
    result = taps[0].copy()
    for tap in taps[1:]:
        np.maximum(result, tap, out=result)
    return [result]


def _max_compute(call: Call) -> Sequence[Compute]:
    dtype = call.operand(0).dtype
    indices, load, taps = window(call, lowest(dtype))
    return [Compute(indices, e.Reduce("max", taps, load, dtype))]


def _sample(
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...] = (),
    dtype: DType = F32,
    **more: bool,
) -> Sample:
    return Sample(
        (TensorType(dtype, x),),
        {
            "kernel": kernel,
            "strides": strides,
            "pads": pads,
            "dilations": dilations or (1,) * len(kernel),
            **more,
        },
    )


MAX_POOL = register(
    OpRecord(
        name="max_pool",
        summary="Largest element of each window; padding never wins.",
        operands=(Operand("x", NUMBERS),),
        attributes=WINDOW_ATTRIBUTES,
        constraints=CONSTRAINTS,
        infer=pool_type,
        reference=_max_reference,
        compute=_max_compute,
        kind=Kind.REDUCTION,
        is_approximate=False,
        samples=(
            _sample((1, 3, 9, 7), (3, 3), (2, 2), (1, 1, 1, 1)),
            _sample((2, 5, 8, 8), (2, 2), (2, 2), (0, 0, 0, 0)),
            _sample((1, 2, 7, 10), (3, 2), (2, 3), (0, 0, 0, 0), ceil_mode=True),
            _sample((1, 2, 11), (3,), (1,), (2, 1), (2,)),
            _sample((1, 2, 4, 5, 6), (2, 3, 2), (1, 2, 2), (0, 1, 0, 1, 1, 0)),
            _sample((1, 2, 5, 5), (3, 3), (1, 1), (1, 1, 1, 1), dtype=DType.I32),
        ),
    )
)


def _taps_in_range(position: e.Expr, kernel: int, dilation: int, low: Dim, high: Dim) -> e.Expr:
    """The number of positions `position + t * dilation`, 0 <= t < kernel, in [low, high)."""
    step = e.index(dilation)

    def taps_below(bound: Dim) -> e.Expr:
        # smallest t with position + t*dilation >= bound, which is a ceiling division
        up = e.add(e.sub(e.index(bound), position), e.index(dilation - 1))
        at_least = e.binary("max", e.binary("floordiv", up, step), e.index(0))
        return e.binary("min", at_least, e.index(kernel))

    return e.sub(taps_below(high), taps_below(low))


def _average_count(call: Call, indices: Sequence[e.Var]) -> e.Expr:
    """The number of elements that a window averages, as an INDEX expression."""
    x, pads, kernel = call.operand(0), call.dims("pads"), call.ints("kernel")
    spatial, counts_pads = x.rank - 2, bool(call.attrs["count_include_pad"])
    total = e.index(1)
    for d in range(spatial):
        begin, end = pads[d], pads[spatial + d]
        never_outside = not call.attrs["ceil_mode"] and (counts_pads or (begin == 0 and end == 0))
        if never_outside:
            total = e.mul(total, e.index(kernel[d]))
            continue
        start = window_position(indices[2 + d], e.index(0), call.ints("strides")[d], 1, begin)
        low: Dim = -begin if counts_pads else 0
        high = x.dims[2 + d] + end if counts_pads else x.dims[2 + d]
        total = e.mul(total, _taps_in_range(start, kernel[d], call.ints("dilations")[d], low, high))
    return e.binary("max", total, e.index(1))


def _average_compute(call: Call) -> Sequence[Compute]:
    dtype = call.operand(0).dtype
    wide = dtype.accumulator
    indices, load, taps = window(call, 0)
    total = e.Reduce("sum", taps, e.cast(load, wide), wide)
    value = e.binary("div", total, e.cast(_average_count(call, indices), wide))
    return [Compute(indices, e.cast(value, dtype))]


def _average_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    x: Array = inputs[0]
    spatial, wide = x.ndim - 2, sum_dtype(x.dtype)
    counted = np.ones((1, 1, *x.shape[2:]), wide)
    frame = padded_input(call, x, 0, wide)
    pads = [int(p) for p in call.dims("pads")]
    borders = [(0, 0), (0, 0)]
    for d in range(spatial):
        borders.append((pads[d], frame.shape[2 + d] - pads[d] - x.shape[2 + d]))
    if call.attrs["count_include_pad"]:
        real = [(0, 0), (0, 0), *zip(pads[:spatial], pads[spatial:], strict=True)]
        counted = np.pad(counted, real, constant_values=1)
        borders = [
            (0, total - real)
            for total, real in zip((1, 1, *frame.shape[2:]), counted.shape, strict=True)
        ]
    total = _in_order_sum(taps_of(call, x, frame))
    count = _in_order_sum(taps_of(call, x, np.pad(counted, borders)))
    return [(total / np.maximum(count, 1)).astype(x.dtype)]


def _in_order_sum(arrays: Sequence[Array]) -> Array:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total


AVERAGE_POOL = register(
    OpRecord(
        name="average_pool",
        summary="Mean of each window; padding counts as zeros, or not at all.",
        operands=(Operand("x", FLOATS),),
        attributes=(
            *WINDOW_ATTRIBUTES,
            Attribute("count_include_pad", "bool", False, "pads are averaged as zeros"),
        ),
        constraints=CONSTRAINTS,
        infer=pool_type,
        reference=_average_reference,
        compute=_average_compute,
        kind=Kind.REDUCTION,
        samples=(
            _sample((1, 3, 9, 7), (3, 3), (2, 2), (1, 1, 1, 1)),
            _sample((1, 3, 9, 7), (3, 3), (2, 1), (1, 0, 1, 2), count_include_pad=True),
            _sample((2, 5, 8, 8), (2, 2), (2, 2), (0, 0, 0, 0)),
            _sample((1, 2, 7, 10), (3, 2), (2, 3), (1, 0, 0, 0), ceil_mode=True),
            _sample(
                (1, 2, 7, 10), (3, 2), (2, 3), (1, 0, 1, 0), ceil_mode=True, count_include_pad=True
            ),
            _sample((1, 2, 11), (3,), (1,), (2, 1), (2,)),
            _sample((1, 2, 4, 5, 6), (2, 3, 2), (1, 2, 2), (0, 1, 0, 1, 1, 0)),
        ),
    )
)
