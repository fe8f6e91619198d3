"""Contractions of quantised operands as integer contractions: decides which can be, and rewrites
them.

`sum((x - z_x) * (w - z_w)) = sum(x * w') - z_x * sum(w')` with w' = w - z_w. Where z_x is known,
its term is a constant that joins the bias, and a padded tap reads z_x, so that the equation holds
at borders; else the term is computed beside, and the image is padded before it is quantised, as 0
becomes z_x. Weights are i8 wherever they fit: where w' does not, `w' = s + c` with s in i8 and one
number c, and c times the sum of x is computed beside, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from aot.base.records import dataclass
from aot.ir.dims import Dim
from aot.ir.graph import Attr, Op, Value
from aot.ir.record import call_of
from aot.ir.rewriter import Rewriter
from aot.ir.types import Array, DType
from aot.ops.contraction import CONV, MATMUL
from aot.ops.elementwise import ADD, MUL, SUB
from aot.ops.integer_contraction import CONV_INTEGER, MATMUL_INTEGER
from aot.ops.movement import PAD, RESHAPE
from aot.ops.quantization import QUANTIZE
from aot.ops.reduction import REDUCE_SUM
from aot.passes.quantise import computed_columns
from aot.passes.quantise.factors import (
    F32,
    I8,
    I16,
    I32,
    LIMIT,
    Stored,
    add_number,
    cast,
    constant,
    is_one_number,
    known,
    stored_of,
)
from aot.passes.simplify.rewriting import definer

_TOO_WIDE = "an operand less its zero point has more than 16 bits"
# two quantised scales are one where they differ by the roundings of their factors
SCALE_TOLERANCE = 2.0**-21


@dataclass(frozen=True)
class Plan:
    """How a quantised contraction is computed in integers.

    Attributes:
        x, w: its factors.
        bias: i32 addends one a column that are part of the sum; a constant array, or a value.
        late_bias: a float bias that is added after scaling.
        has_padding: whether x holds the padding of a convolution, which then has none.
    """

    op: Op
    x: Stored
    w: Stored
    bias: Array | Value | None = None
    late_bias: Value | None = None
    has_padding: bool = False

    @property
    def is_conv(self) -> bool:
        return self.op.record is CONV

    @property
    def pads(self) -> tuple[Dim, ...]:
        """The convolution's padding that is not yet part of x."""
        pads = call_of(self.op).ints("pads")
        return (0,) * len(pads) if self.has_padding else pads

    @property
    def is_padded(self) -> bool:
        return self.is_conv and any(pad != 0 for pad in self.pads)


def plan_of(op: Op) -> Plan | str:
    """The integer plan of a `conv` or `matmul`, or the reason why it stays in floats."""
    x, w = stored_of(op.operands[0]), stored_of(op.operands[1])
    if x is None or w is None:
        return "no operand is quantised" if x is None and w is None else "an operand is a float"
    if (x.scale is None) != (w.scale is None):
        return "an operand is a float"
    if not _fits_columns(op, x, w):
        return "a scale or zero point varies along what is summed"
    if x.scale is None:
        return _plan_of_integers(op, x, w)
    if w.numbers is None:
        reason = computed_columns.reason_against(op, x, w)
        return Plan(op, x, w) if reason is None else reason
    if x.numbers is not None:
        return "the constant operand is on the left"
    bias, late = _split_bias(op, x, w)
    if _sum_bound(op, x, w.numbers) + _largest(bias) >= LIMIT:
        return "sums may exceed 32 bits"
    if _narrowest(w) is None:
        return _TOO_WIDE
    return Plan(op, x, w, bias, late)


def _plan_of_integers(op: Op, x: Stored, w: Stored) -> Plan | str:
    """The plan of a contraction whose operands are integers, or the reason why there is none. Sums
    in i32 wrap as the op's own do, so that no bound is needed.
    """
    if op.result.type.dtype is not I32:
        return "an operand is a float"
    for factor in (x, w):
        if _narrowest(factor) is None:
            return _TOO_WIDE
    bias = op.operands[2] if len(op.operands) > 2 else None
    return Plan(op, x, w, bias)


def _narrowest(factor: Stored) -> DType | None:
    """The narrowest dtype that holds a factor minus its zero point; None if none does."""
    if factor.numbers is None:
        is_plain = factor.zero_point is None or factor.zero == 0
        if is_plain:
            return factor.values.type.dtype
        return I16 if factor.values.type.dtype.bits != 16 else None
    low, high = factor.numbers.min(initial=0), factor.numbers.max(initial=0)
    for dtype in (I8, DType.U8, I16, DType.U16):
        info = np.iinfo(dtype.numpy)
        if info.min <= low and high <= info.max:
            return dtype
    return None


def _fits_columns(op: Op, x: Stored, w: Stored) -> bool:
    """Whether scales and zero points vary only along rows and columns."""
    if op.record is CONV:
        if not (is_one_number(x.scale) and is_one_number(x.zero_point)):
            return False
        return w.scale is None or _is_along(w.scale, op.operands[1], (0,))
    rank = op.result.type.rank
    return all(
        value is None or value.type.element_count == 1 or _extent_of(value, dim) == 1
        for value, dim in ((x.scale, -1), (x.zero_point, -1), (w.scale, -2))
    ) and all(v is None or v.type.rank <= rank for v in (x.scale, x.zero_point, w.scale))


def _extent_of(value: Value, dim: int) -> object:
    """A value's extent along a dim counted from the back; 1 if its rank is lower."""
    dims = value.type.dims
    return dims[dim] if len(dims) >= -dim else 1


def _is_along(value: Value, tensor: Value | None, axes: Sequence[int]) -> bool:
    if tensor is None:
        return False
    first = tensor.type.rank - value.type.rank
    return all(extent == 1 or first + d in axes for d, extent in enumerate(value.type.dims))


def _summed_axes(op: Op, array: Array) -> tuple[int, ...]:
    """The axes of the weights over which the contraction sums."""
    return tuple(range(1, array.ndim)) if op.record is CONV else (array.ndim - 2,)


def _sum_bound(op: Op, x: Stored, numbers: Array) -> int:
    sums = np.abs(numbers).sum(axis=_summed_axes(op, numbers))
    return int(sums.max(initial=0)) * x.largest


def _largest(bias: Array | Value | None) -> int:
    return int(np.abs(bias).max(initial=0)) if isinstance(bias, np.ndarray) else 0


def _split_bias(op: Op, x: Stored, w: Stored) -> tuple[Array | None, Value | None]:
    """(integer bias, float bias) of a convolution; the integer one if the bias is stored in the
    scale of the sums."""
    bias = op.operands[2] if len(op.operands) > 2 else None
    if bias is None:
        return None, None
    found = bias_in(bias, known(x.scale), known(w.scale), len(bias.type.dims))
    return (None, bias) if found is None else (found, None)


def bias_in(
    bias: Value | None, x_scale: Array | None, w_scale: Array | None, rank: int
) -> Array | None:
    """The integers of a dequantised bias whose scale is the product of the two operands' scales;
    None otherwise."""
    stored = stored_of(bias)
    if stored is None or stored.numbers is None or stored.scale is None:
        return None
    scale = known(stored.scale)
    if scale is None or x_scale is None or w_scale is None:
        return None
    product = x_scale.astype(np.float64).reshape(-1) * w_scale.astype(np.float64).reshape(-1)
    wide, wanted = (
        np.broadcast_arrays(scale.astype(np.float64).reshape(-1), product)
        if (scale.size == product.size or 1 in (scale.size, product.size))
        else (np.zeros(1), np.ones(1))
    )
    if not bool((np.abs(wide - wanted) <= SCALE_TOLERANCE * wanted).all()):
        return None
    return stored.numbers if np.abs(stored.numbers).max(initial=0) < LIMIT else None


# making it


def integer_sum(plan: Plan, rewriter: Rewriter) -> Value:
    """The i32 result of the plan's contraction, bias and zero points included."""
    if plan.is_padded and plan.x.zero is None:
        plan = _padded_before(plan, rewriter)
    op, x, w = plan.op, plan.x, plan.w
    if w.numbers is None and not plan.is_conv and computed_columns.fits(op, x, w):
        return computed_columns.integer_sum(op, rewriter, x, w)
    if w.numbers is None:
        left, right = _centred(op, rewriter, x), _centred(op, rewriter, w)
        return _contract(plan, rewriter, left, right, 0, plan.bias)
    split = _split_weights(plan, w.numbers)
    if split is None:
        narrow = _narrowest(w)
        assert narrow is not None
        split = w.numbers.astype(narrow.numpy), 0
    weights, rest = split
    left, zero = x.values, x.zero
    if (zero is None and plan.is_padded) or x.numbers is not None:
        left, zero = _centred(op, rewriter, x), 0
    axes = _summed_axes(op, weights)
    sums = weights.sum(axis=axes, dtype=np.int64)
    sums = sums + rest * int(np.prod([weights.shape[axis] for axis in axes]))
    bias = plan.bias
    if zero:
        bias = _added(
            op, rewriter, bias, -zero * (sums if plan.is_conv else _by_column(plan, sums))
        )
    total = _contract(plan, rewriter, left, constant(op, rewriter, weights), zero or 0, bias)
    if zero is None and x.zero_point is not None:
        term = _zero_term(plan, rewriter, sums)
        total = rewriter.create(SUB, [total, term], {}, op.origin).result
    if rest:
        total = _with_rest(plan, rewriter, total, (left, zero or 0), (weights, rest))
    return total


def _split_weights(plan: Plan, numbers: Array) -> tuple[Array, int] | None:
    """(weights shifted into i8, shift); None where the shift costs more than integers save."""
    low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    if low >= -128 and high <= 127:
        return numbers.astype(np.int8), 0
    is_grouped = plan.is_conv and plan.op.attrs["group"] != 1
    if is_grouped or high - low > 255:
        return None
    rest = high - 127
    return (numbers - rest).astype(np.int8), rest


def _padded_before(plan: Plan, rewriter: Rewriter) -> Plan:
    """The plan with padding moved before the image's quantisation, where 0 becomes the zero point;
    the unchanged plan if the image is not quantised here."""
    op, x = plan.op, plan.x
    made = definer(x.values, QUANTIZE)
    if made is None or not all(is_one_number(v) for v in made.operands[1:]):
        return plan
    source, scale, zero_point = [*made.operands, None][:3]
    assert source is not None
    if _before_reshape(zero_point) is not _before_reshape(x.zero_point):
        return plan
    half = len(plan.pads) // 2
    around = (0, 0, *plan.pads[:half], 0, 0, *plan.pads[half:])
    padded = rewriter.create(PAD, [source], {"pads": around}, op.origin).result
    operands = [padded, scale, zero_point][: len(made.operands)]
    values = rewriter.create(QUANTIZE, operands, made.attrs, made.origin).result
    return replace(plan, x=replace(x, values=values), has_padding=True)


def _before_reshape(value: Value | None) -> Value | None:
    """A value before a reshape, if one made it."""
    reshape = definer(value, RESHAPE)
    return value if reshape is None else reshape.operands[0]


def _centred(op: Op, rewriter: Rewriter, factor: Stored) -> Value:
    """A factor minus its zero point, in the fewest bits."""
    dtype = _narrowest(factor)
    assert dtype is not None
    if factor.numbers is not None:
        return constant(op, rewriter, factor.numbers.astype(dtype.numpy))
    values = cast(op, rewriter, factor.values, dtype)
    if factor.zero_point is None or factor.zero == 0:
        return values
    zero = cast(op, rewriter, factor.zero_point, dtype)
    return rewriter.create(SUB, [values, zero], {}, op.origin).result


def _contract(
    plan: Plan,
    rewriter: Rewriter,
    left: Value,
    right: Value,
    pad_value: int,
    bias: Array | Value | None,
) -> Value:
    op = plan.op
    if not plan.is_conv:
        total = rewriter.create(MATMUL_INTEGER, [left, right], {}, op.origin).result
        if isinstance(bias, np.ndarray) and bias.any():
            total = add_number(op, rewriter, total, bias)
        return total
    if isinstance(bias, np.ndarray):
        bias = constant(op, rewriter, bias.astype(np.int32)) if bias.any() else None
    attrs: dict[str, Attr] = {name: op.attrs[name] for name in ("strides", "dilations", "group")}
    attrs |= {"pads": plan.pads, "pad_value": pad_value}
    return rewriter.create(CONV_INTEGER, [left, right, bias], attrs, op.origin).result


def _added(op: Op, rewriter: Rewriter, bias: Array | Value | None, addend: Array) -> Array | Value:
    if bias is None or isinstance(bias, np.ndarray):
        return addend if bias is None else bias + addend
    return add_number(op, rewriter, bias, addend)


def _by_column(plan: Plan, array: Array) -> Array:
    """Per-column numbers in a shape that broadcasts to the result."""
    if not plan.is_conv:
        return array[..., None, :]
    return array.reshape(-1, *[1] * (plan.op.result.type.rank - 2))


def _zero_term(plan: Plan, rewriter: Rewriter, sums: Array) -> Value:
    """A runtime zero point times the columns' sums."""
    op, zero = plan.op, plan.x.zero_point
    assert zero is not None
    wide = cast(op, rewriter, zero, I32)
    if zero.type.element_count == 1:
        wide = rewriter.create(RESHAPE, [wide], {"shape": ()}, op.origin).result
    column = constant(op, rewriter, _by_column(plan, sums).astype(np.int32))
    return rewriter.create(MUL, [column, wide], {}, op.origin).result


def _with_rest(
    plan: Plan,
    rewriter: Rewriter,
    total: Value,
    left: tuple[Value, int],
    weights: tuple[Array, int],
) -> Value:
    """`total` plus `rest` times the sums of the left side's rows. The zero point's share of it is
    already in the columns' sums."""
    op, (values, pad_value), (array, rest) = plan.op, left, weights
    wide = cast(op, rewriter, values, I32)
    axis = 1 if plan.is_conv else values.type.rank - 1
    attrs: dict[str, Attr] = {"axes": (axis,), "keepdims": True}
    sums = rewriter.create(REDUCE_SUM, [wide], attrs, op.origin).result
    if plan.is_conv:
        sums = _window_sums(plan, rewriter, sums, array.shape, pad_value)
    factor = constant(op, rewriter, np.asarray(rest, np.int32))
    term = rewriter.create(MUL, [sums, factor], {}, op.origin).result
    return rewriter.create(ADD, [total, term], {}, op.origin).result


def _window_sums(
    plan: Plan, rewriter: Rewriter, sums: Value, shape: tuple[int, ...], pad_value: int
) -> Value:
    """The windowed sums of a convolution over per-channel `sums`.

    Args:
        shape: of the weights.
        pad_value: what a padded tap reads of each channel.
    """
    op, pads = plan.op, plan.pads
    is_point = all(n == 1 for n in (*shape[2:], *call_of(op).ints("strides")))
    if is_point and not plan.is_padded:
        return sums
    if plan.is_padded and pad_value:
        half = len(pads) // 2
        around = (0, 0, *pads[:half], 0, 0, *pads[half:])
        given: dict[str, Attr] = {"pads": around, "value": float(pad_value * shape[1])}
        sums = rewriter.create(PAD, [sums], given, op.origin).result
        pads = (0,) * len(pads)
    ones = constant(op, rewriter, np.ones((1, 1, *shape[2:]), np.int32))
    attrs: dict[str, Attr] = {name: op.attrs[name] for name in ("strides", "dilations")}
    attrs |= {"pads": pads, "group": 1}
    return rewriter.create(CONV, [sums, ones], attrs, op.origin).result


def scaled(plan: Plan, rewriter: Rewriter, total: Value) -> Value:
    """Integer sums times their scales, as floats."""
    op, x_scale, w_scale = plan.op, plan.x.scale, plan.w.scale
    if x_scale is None or w_scale is None:
        return total
    left, right = known(x_scale), known(w_scale)
    if plan.is_conv:
        rank = op.result.type.rank - 1
        shape = (-1, *[1] * (rank - 1)) if w_scale.type.element_count != 1 else ()
    if left is not None and right is not None:
        if plan.is_conv:
            left, right = left.reshape(()), right.reshape(shape)
        product = left.astype(np.float64) * right.astype(np.float64)
        factor = constant(op, rewriter, product.astype(np.float32))
    else:
        factor = _scale_product(plan, rewriter, x_scale, w_scale)
    wide = cast(op, rewriter, total, F32)
    result = rewriter.create(MUL, [wide, factor], {}, op.origin).result
    result = cast(op, rewriter, result, op.result.type.dtype)
    if plan.late_bias is not None:
        dims = (plan.late_bias.type.dims[0], *[1] * (op.result.type.rank - 2))
        bias = rewriter.create(RESHAPE, [plan.late_bias], {"shape": dims}, op.origin).result
        result = rewriter.create(ADD, [result, bias], {}, op.origin).result
    return result


def _scale_product(plan: Plan, rewriter: Rewriter, x_scale: Value, w_scale: Value) -> Value:
    """The product of two scales of which one is known only at run time."""
    op = plan.op
    left, right = cast(op, rewriter, x_scale, F32), cast(op, rewriter, w_scale, F32)
    if plan.is_conv:
        left = rewriter.create(RESHAPE, [left], {"shape": ()}, op.origin).result
        if w_scale.type.element_count != 1:
            dims = (op.result.type.dims[1], *[1] * (op.result.type.rank - 2))
            right = rewriter.create(RESHAPE, [right], {"shape": dims}, op.origin).result
        else:
            right = rewriter.create(RESHAPE, [right], {"shape": ()}, op.origin).result
    return rewriter.create(MUL, [right, left], {}, op.origin).result


def as_integers(op: Op, rewriter: Rewriter) -> Value | None:
    """Rewrites a `conv` or `matmul` of quantised operands to integer arithmetic; None if it
    stays."""
    plan = plan_of(op)
    if isinstance(plan, str):
        return None
    result = scaled(plan, rewriter, integer_sum(plan, rewriter))
    return result if result.type == op.result.type else None


RECORDS = (CONV, MATMUL)
