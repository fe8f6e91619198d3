"""Contractions: convolution and matrix product, sums of products of two operands.

The references sum in float64 and round once: exact calls in a fixed order without BLAS, others
with whatever numpy does fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian
from typing import Any

import numpy as np

from aot.ir import dims
from aot.ir import expr as e
from aot.ir.contraction import ContractionDims, Factor, Window
from aot.ir.dims import Dim
from aot.ir.record import (
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
from aot.ops import layout_rules
from aot.ops.elementwise import broadcast_dims, result_indices

F32 = DType.F32


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which references accumulate; integers wrap in their own."""
    return np.dtype(np.float64) if dtype.kind == "f" else dtype


def window_extent(
    size: Dim,
    kernel: Dim,
    stride: int,
    dilation: int,
    begin: Dim,
    end: Dim,
    *,
    ceil_mode: bool = False,
) -> Dim:
    """The number of windows of `kernel` taps along a dim of `size` with padding `begin` and `end`.

    With `ceil_mode` a last window may run over the end, but must not start there.
    """
    span = dims.add(dims.multiply(dims.add(kernel, -1), dilation), 1)
    room = dims.add(dims.add(size, dims.add(begin, end)), dims.multiply(span, -1))
    if not ceil_mode:
        return dims.add(dims.floor_divide(room, stride), 1)
    rounded_up = dims.add(dims.floor_divide(dims.add(room, stride - 1), stride), 1)
    starts_inside = dims.floor_divide(dims.add(dims.add(size, begin), stride - 1), stride)
    return dims.minimum(rounded_up, starts_inside)


def window_position(out: e.Expr, tap: e.Expr, stride: int, dilation: int, begin: Dim) -> e.Expr:
    """`out * stride + tap * dilation - begin`: the position that a window's tap reads, possibly out
    of bounds."""
    position = e.add(e.mul(out, e.index(stride)), e.mul(tap, e.index(dilation)))
    return e.sub(position, e.index(begin))


def inside(position: e.Expr, size: Dim) -> list[e.Expr]:
    """The two conditions of `position` being in [0, size)."""
    return [e.binary("ge", position, e.index(0)), e.binary("lt", position, e.index(size))]


def may_be_positions(values: Sequence[Dim]) -> bool:
    """Whether no dim in `values` is certainly negative."""
    highs = [dims.bounds(value, {})[1] for value in values]
    return all(high is None or high >= 0 for high in highs)


def has_window_attributes(call: Call) -> bool:
    """Whether strides, dilations and pads have one item (pads two) per spatial dim, within
    range."""
    spatial = call.operand(0).rank - 2
    strides, dilations = call.ints("strides"), call.ints("dilations")
    pads = call.dims("pads")
    return (
        len(strides) == len(dilations) == spatial
        and len(pads) == 2 * spatial
        and min(strides) >= 1
        and min(dilations) >= 1
        and may_be_positions(pads)
    )


WINDOW_TEXT = (
    "strides and dilations have one positive number a spatial dim, pads two that are "
    "not negative, all begins before all ends"
)


# of contractions of floats
OF_BF16 = Attribute(
    "of_bf16",
    "bool",
    False,
    "the model's operands are bf16, to which a target that multiplies these may round the left one",
)
HALF_SUMS = Attribute(
    "half_sums",
    "bool",
    False,
    "products are rounded to f16 and added up in it, some hundred at a time, whose sums are added "
    "up in f32: for targets that multiply twice as many f16 at a time",
)
_HALF_SUMS_ARE_OF_F16 = Constraint(
    "half_sums is for operands of f16",
    lambda call: not call.attrs.get("half_sums") or call.operand(0).dtype is DType.F16,
)


def _is_in_integers(call: Call) -> bool:
    """Whether operands of 8 and 16 bits, possibly of different dtypes, are summed in i32."""
    return call.record.sums_in is DType.I32


def _accumulator(call: Call) -> DType:
    """The dtype in which sums are accumulated."""
    dtype = call.operand(0).dtype
    return dtype if call.attrs.get("half_sums") else call.record.sums_in or dtype.accumulator


def _result_dtype(call: Call) -> DType:
    return call.record.sums_in or call.operand(0).dtype


def _pad_value(call: Call) -> int:
    """The value of padding elements."""
    return call.int("pad_value") if "pad_value" in call.attrs else 0


def _max_weight(call: Call) -> int | None:
    """The largest magnitude of integer weights, if known."""
    return call.int("max_weight") if "max_weight" in call.attrs else None


def _reference_sum_dtype(call: Call, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The numpy dtype in which the reference sums: `sum_dtype`, or float64 for 16-bit products,
    which is also exact and faster.
    """
    return np.dtype(np.float64) if call.record.sums_in is not None else sum_dtype(dtype)


def _rounded(call: Call, sums: Array) -> Array:
    """The sums in the result's dtype, where integers wrap."""
    if _is_in_integers(call):
        sums = sums.astype(np.int64)
    return sums.astype(_result_dtype(call).numpy)


def _conv_channels_match(call: Call) -> bool:
    x, w = call.operand(0), call.operand(1)
    return call.equal(
        x.dims[1],
        dims.multiply(w.dims[1], call.dim("group")),
        "conv: input channels are the weight's times group",
    )


def _conv_group_divides(call: Call) -> bool:
    group, filters = call.dim("group"), call.operand(1).dims[0]
    return may_be_positions([dims.add(group, -1)]) and (
        group == 1
        or call.equal(dims.modulo(filters, group), 0, "conv: group divides the number of filters")
    )


def bias_fits(call: Call, name: str = "conv") -> bool:
    """Whether the bias of the convolution, whose op is called `name`, is absent or has one number
    for each filter."""
    if not call.has(2):
        return True
    bias, filters = call.operand(2), call.operand(1).dims[0]
    return bias.rank == 1 and call.equal(bias.dims[0], filters, f"{name}: one bias a filter")


def conv_type(call: Call) -> Sequence[TensorType]:
    x, w = call.operand(0), call.operand(1)
    spatial = x.rank - 2
    pads = call.dims("pads")
    result: list[Dim] = [x.dims[0], w.dims[0]]
    for d in range(spatial):
        extent = window_extent(
            x.dims[2 + d],
            w.dims[2 + d],
            call.ints("strides")[d],
            call.ints("dilations")[d],
            pads[d],
            pads[spatial + d],
        )
        if isinstance(extent, int) and extent < 1:
            raise call.error(
                f"the kernel of {w.dims[2 + d]} does not fit into spatial dim {d}, "
                f"which is {x.dims[2 + d]} with padding {pads[d]} + "
                f"{pads[spatial + d]}"
            )
        result.append(extent)
    return [TensorType(_result_dtype(call), tuple(result))]


def conv_compute(call: Call) -> Sequence[Compute]:
    x, w = call.operand(0), call.operand(1)
    spatial, group, pads = x.rank - 2, call.dim("group"), call.dims("pads")
    indices = result_indices(x.rank)
    batch, filter = indices[0], indices[1]
    channel = e.Var("c")
    taps = tuple(e.Var(f"k{d}") for d in range(spatial))
    channel_of_x: e.Expr = channel
    if group != 1:
        filters_a_group = e.index(dims.floor_divide(w.dims[0], group))
        group_number = e.binary("floordiv", filter, filters_a_group)
        channel_of_x = e.add(e.mul(group_number, e.index(w.dims[1])), channel)
    positions, conditions = [], []
    for d in range(spatial):
        position = window_position(
            indices[2 + d], taps[d], call.ints("strides")[d], call.ints("dilations")[d], pads[d]
        )
        positions.append(position)
        if pads[d] != 0 or pads[spatial + d] != 0:
            conditions.extend(inside(position, x.dims[2 + d]))
    guard = e.all_of(conditions)
    wide = _accumulator(call)
    loaded = e.Load(
        0,
        (batch, channel_of_x, *positions),
        x.dtype,
        guard,
        None if guard is None else e.const(_pad_value(call), x.dtype),
    )
    weight = e.Load(1, (filter, channel, *taps), w.dtype)
    axes = ((channel, conv_dims(call).channels), *zip(taps, w.dims[2:], strict=True))
    total: e.Expr = e.Reduce("sum", axes, e.mul(e.cast(loaded, wide), e.cast(weight, wide)), wide)
    if call.has(2):
        total = e.add(total, e.cast(e.Load(2, (filter,), call.operand(2).dtype), wide))
    return [Compute(indices, e.cast(total, _result_dtype(call)))]


def conv_dims(call: Call) -> ContractionDims:
    x, w, pads = call.operand(0), call.operand(1), call.dims("pads")
    spatial = range(x.rank - 2)
    steps = zip(call.ints("strides"), call.ints("dilations"), strict=True)
    return ContractionDims(
        left=Factor(0, x, batch=(), own=(0, *(2 + d for d in spatial)), summed=1),
        right=Factor(1, w, batch=(), own=(0,), summed=1, taps=tuple(2 + d for d in spatial)),
        result=call.result_types[0],
        rows=(0, *(2 + d for d in spatial)),
        column=1,
        accumulator=_accumulator(call),
        groups=call.dim("group"),
        windows=tuple(
            Window(2 + d, 2 + d, w.dims[2 + d], stride, dilation, pads[d], pads[len(spatial) + d])
            for d, (stride, dilation) in zip(spatial, steps, strict=True)
        ),
        bias=2,
        pad_value=_pad_value(call),
        max_weight=_max_weight(call),
    )


def conv_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    x, w = inputs[0], inputs[1]
    bias = inputs[2] if len(inputs) > 2 else None
    spatial, group = x.ndim - 2, call.int("group")
    wide = _reference_sum_dtype(call, x.dtype)
    pads = [int(p) for p in call.dims("pads")]
    strides, dilations = call.ints("strides"), call.ints("dilations")
    borders = [(0, 0), (0, 0), *zip(pads[:spatial], pads[spatial:], strict=True)]
    padded = np.pad(x.astype(wide), borders, constant_values=_pad_value(call))
    extents = [
        int(
            window_extent(
                x.shape[2 + d], w.shape[2 + d], strides[d], dilations[d], pads[d], pads[spatial + d]
            )
        )
        for d in range(spatial)
    ]
    batch, filters = x.shape[0], w.shape[0]
    grouped = padded.reshape(batch, group, w.shape[1], *padded.shape[2:])
    weights = w.astype(wide).reshape(group, filters // group, *w.shape[1:])
    windows = int(np.prod(extents))
    out = np.zeros((batch, group, filters // group, windows), wide)
    for tap in cartesian(*(range(k) for k in w.shape[2:])):
        taken = take_taps(grouped, tap, extents, strides, dilations)
        weight = weights[(slice(None), slice(None), slice(None), *tap)]
        add_products(out, weight, taken.reshape(batch, group, w.shape[1], windows), call.is_exact)
    out = out.reshape(batch, filters, *extents)
    if bias is not None:
        out = out + bias.astype(wide).reshape(filters, *[1] * spatial)
    return [_rounded(call, out)]


def take_taps(
    padded: Array,
    tap: Sequence[int],
    extents: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Array:
    """The elements that windows at `extents` positions over the last dims of `padded` read at one
    tap."""
    chosen = tuple(
        slice(t * dilation, t * dilation + (n - 1) * stride + 1, stride)
        for t, n, stride, dilation in zip(tap, extents, strides, dilations, strict=True)
    )
    return np.asarray(padded[(slice(None),) * (padded.ndim - len(chosen)) + chosen])


def add_products(out: Array, a: Array, b: Array, is_exact: bool) -> None:
    """`out += a @ b` for a [..., M, K] and b [..., K, N]; with `is_exact`, one k after another."""
    if is_exact or a.shape[-1] == 1:
        for k in range(a.shape[-1]):
            out += a[..., :, k, None] * b[..., None, k, :]
    else:
        out += np.matmul(a, b)


def _conv_sample(
    x: tuple[int, ...],
    w: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    *,
    dilations: tuple[int, ...] = (),
    group: int = 1,
    bias: bool = False,
    dtype: DType = F32,
) -> Sample:
    types = [TensorType(dtype, x), TensorType(dtype, w)]
    if bias:
        types.append(TensorType(dtype, w[:1]))
    return Sample(
        tuple(types),
        {
            "strides": strides,
            "pads": pads,
            "group": group,
            "dilations": dilations or (1,) * len(strides),
        },
        constant_operands=(1, 2)[: len(types) - 1],
    )


WINDOW_ATTRIBUTES = (
    Attribute("strides", "ints", doc="one a spatial dim"),
    Attribute("dilations", "ints", doc="one a spatial dim"),
    Attribute("pads", "dims", doc="elements at the begins, then at the ends, of spatial dims"),
    Attribute("group", "dim", 1, "channels are split into so many independent groups"),
)
CONV_CONSTRAINTS = (
    Constraint(
        "x and w have one rank, 3, 4 or 5",
        lambda call: call.operand(0).rank == call.operand(1).rank in (3, 4, 5),
    ),
    Constraint(WINDOW_TEXT, has_window_attributes),
    Constraint("group is positive and divides the number of filters", _conv_group_divides),
    Constraint("x has group times as many channels as w", _conv_channels_match),
    Constraint("bias is one number a filter", bias_fits),
)

CONV = register(
    OpRecord(
        name="conv",
        summary="Convolution (cross-correlation) of x [N, C, spatial...], w [O, C/group, k...].",
        operands=(
            Operand("x", NUMBERS),
            Operand("w", NUMBERS, same_as="x"),
            Operand("bias", NUMBERS, "optional", same_as="x"),
        ),
        attributes=(
            *WINDOW_ATTRIBUTES,
            Attribute(
                "algorithm",
                "str",
                "direct",
                "direct or winograd: how a target that can computes the same, roundings apart",
            ),
            HALF_SUMS,
            OF_BF16,
        ),
        constraints=(
            *CONV_CONSTRAINTS,
            Constraint(
                "algorithm is direct or winograd",
                lambda call: call.attrs["algorithm"] in ("direct", "winograd"),
            ),
            _HALF_SUMS_ARE_OF_F16,
        ),
        infer=conv_type,
        reference=conv_reference,
        compute=conv_compute,
        contraction=conv_dims,
        kind=Kind.CONTRACTION,
        samples=(
            _conv_sample((1, 3, 9, 7), (5, 3, 3, 3), (1, 1), (1, 1, 1, 1), bias=True),
            _conv_sample((2, 6, 8, 11), (4, 3, 3, 2), (2, 1), (1, 0, 0, 1), group=2),
            _conv_sample((1, 7, 10, 5), (7, 1, 3, 3), (2, 2), (1, 1, 1, 1), group=7, bias=True),
            _conv_sample((1, 4, 5, 6), (17, 4, 1, 1), (1, 1), (0, 0, 0, 0), bias=True),
            _conv_sample((1, 2, 11, 9), (3, 2, 3, 3), (1, 2), (2, 2, 3, 1), dilations=(2, 3)),
            _conv_sample((2, 3, 13), (4, 3, 5), (3,), (2, 1)),
            _conv_sample((1, 2, 4, 5, 3), (3, 2, 2, 3, 1), (1, 2, 1), (0, 1, 0, 1, 1, 0)),
            _conv_sample((1, 2, 5, 5), (3, 2, 3, 3), (1, 1), (1, 1, 1, 1), dtype=DType.I32),
        ),
    )
)


def _matmul_inner(call: Call) -> bool:
    return call.equal(
        call.operand(0).dims[-1], call.operand(1).dims[-2], "matmul: columns of a are rows of b"
    )


def matmul_type(call: Call) -> Sequence[TensorType]:
    a, b = call.operand(0), call.operand(1)
    batch = broadcast_dims(call, [a.dims[:-2], b.dims[:-2]])
    return [TensorType(_result_dtype(call), (*batch, a.dims[-2], b.dims[-1]))]


def matmul_compute(call: Call) -> Sequence[Compute]:
    a, b = call.operand(0), call.operand(1)
    (result,) = call.result_types
    indices = result_indices(result.rank)
    batch, row, column = indices[:-2], indices[-2], indices[-1]
    k = e.Var("k")

    def at(type: TensorType) -> tuple[e.Expr, ...]:
        tail = batch[len(batch) - (type.rank - 2) :]
        return tuple(
            e.index(0) if extent == 1 else i for extent, i in zip(type.dims[:-2], tail, strict=True)
        )

    wide = _accumulator(call)
    left = e.cast(e.Load(0, (*at(a), row, k), a.dtype), wide)
    right = e.cast(e.Load(1, (*at(b), k, column), b.dtype), wide)
    total = e.Reduce("sum", ((k, matmul_dims(call).k),), e.mul(left, right), wide)
    return [Compute(indices, e.cast(total, _result_dtype(call)))]


def matmul_dims(call: Call) -> ContractionDims:
    """The roles of a matmul's dims; batch dims count as rows if all share one right side."""
    (a, b), (result,) = (call.operand(0), call.operand(1)), call.result_types
    outer_a, outer_b = tuple(range(a.rank - 2)), tuple(range(b.rank - 2))
    row = a.rank - 2
    is_one = not outer_b
    return ContractionDims(
        left=Factor(
            0,
            a,
            batch=() if is_one else outer_a,
            own=(*outer_a, row) if is_one else (row,),
            summed=a.rank - 1,
        ),
        right=Factor(1, b, batch=outer_b, own=(b.rank - 1,), summed=b.rank - 2),
        result=result,
        rows=tuple(range(result.rank - 1)) if is_one else (result.rank - 2,),
        column=result.rank - 1,
        accumulator=_accumulator(call),
        max_weight=_max_weight(call),
    )


def matmul_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    a, b = inputs
    wide = _reference_sum_dtype(call, a.dtype)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = np.zeros((*batch, a.shape[-2], b.shape[-1]), wide)
    with np.errstate(all="ignore"):
        add_products(out, a.astype(wide), b.astype(wide), call.is_exact)
        return [_rounded(call, out)]


def _matmul_sample(
    a: tuple[int, ...], b: tuple[int, ...], dtype: DType = F32, constant: bool = False
) -> Sample:
    return Sample(
        (TensorType(dtype, a), TensorType(dtype, b)), constant_operands=(1,) if constant else ()
    )


MATMUL_CONSTRAINTS = (
    Constraint(
        "a and b have at least two dims",
        lambda call: min(call.operand(0).rank, call.operand(1).rank) >= 2,
    ),
    Constraint("a has as many columns as b has rows", _matmul_inner),
)

MATMUL = register(
    OpRecord(
        name="matmul",
        summary="Matrix product of the last two dims; dims before them broadcast.",
        operands=(Operand("a", NUMBERS), Operand("b", NUMBERS, same_as="a")),
        attributes=(HALF_SUMS, OF_BF16),
        constraints=(*MATMUL_CONSTRAINTS, _HALF_SUMS_ARE_OF_F16),
        infer=matmul_type,
        reference=matmul_reference,
        compute=matmul_compute,
        contraction=matmul_dims,
        kind=Kind.CONTRACTION,
        propagate=layout_rules.matmul,
        samples=(
            _matmul_sample((5, 7), (7, 3)),
            _matmul_sample((1, 33), (33, 19), constant=True),
            _matmul_sample((2, 3, 4, 5), (2, 3, 5, 6)),
            _matmul_sample((2, 1, 4, 5), (3, 5, 2)),
            _matmul_sample((2, 4, 5), (5, 17), constant=True),
            _matmul_sample((3, 5), (5, 2), DType.I32),
            _matmul_sample((5, 33), (33, 19), DType.I32, constant=True),
        ),
    )
)
