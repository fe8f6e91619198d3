"""PyTorch's elementwise ops: arithmetic, functions, comparisons, selections, casts.

Operands are brought to one element type as torch does: numbers beside a tensor take its type.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from aot.frontends.lib import activations, functions, quotients
from aot.frontends.torch.table import (
    Node,
    Number,
    Operand,
    UnsupportedNodeError,
    promoted,
    torch_op,
)
from aot.ir.graph import Value
from aot.ir.types import DType

# of any element type; the result's is the operand's
_SAME = {
    "abs": "abs",
    "ceil": "ceil",
    "floor": "floor",
    "neg": "neg",
    "relu": "relu",
    "round": "round",
    "trunc": "trunc",
    "fix": "trunc",
}
_WHOLE = {"ceil", "floor", "round", "trunc", "fix"}  # which integers are already
# floats in, floats out
_FLOAT = {
    "cos": "cos",
    "erf": "erf",
    "erfc": "erfc",
    "exp": "exp",
    "expm1": "expm1",
    "log": "log",
    "log1p": "log1p",
    "sigmoid": "sigmoid",
    "sin": "sin",
    "sqrt": "sqrt",
    "tanh": "tanh",
    "atan": "atan",
}
_COMPOSED: dict[str, Callable[[Node, Value], Value]] = {
    "acos": functions.acos,
    "acosh": functions.acosh,
    "asin": functions.asin,
    "asinh": functions.asinh,
    "atanh": functions.atanh,
    "cosh": functions.cosh,
    "sinh": functions.sinh,
    "exp2": functions.exp2,
    "log2": lambda n, x: n("mul", n("log", x), 1 / math.log(2)),
    "log10": lambda n, x: n("mul", n("log", x), 1 / math.log(10)),
    "reciprocal": lambda n, x: n("div", n.scalar(1, x.type.dtype), x),
    "rsqrt": lambda n, x: n("div", n.scalar(1, x.type.dtype), n("sqrt", x)),
    "tan": functions.tan,
}


def _same(name: str, op: str) -> Callable[[Node, Value], Value]:
    def build(n: Node, x: Value) -> Value:
        if name in _WHOLE and not x.type.dtype.is_float:
            return x
        if name == "abs" and not (x.type.dtype.is_float or x.type.dtype.is_signed):
            return x
        return n.emit(op, x)

    return build


def _float(op: str) -> Callable[[Node, Value], Value]:
    return lambda n, x: n.emit(op, n.cast(x, n.dtype))


def _composed(build: Callable[[Node, Value], Value]) -> Callable[[Node, Value], Value]:
    return lambda n, x: build(n, n.cast(x, n.dtype))


for _name, _op in _SAME.items():
    torch_op(f"aten.{_name}.default")(_same(_name, _op))
for _name, _op in _FLOAT.items():
    torch_op(f"aten.{_name}.default")(_float(_op))
for _name, _build in _COMPOSED.items():
    torch_op(f"aten.{_name}.default")(_composed(_build))


@torch_op("aten.sign.default", "aten.sgn.default")
def sign(n: Node, x: Value) -> Value:
    # torch says 0 of NaN
    return x if x.type.dtype is DType.BOOL else activations.sign(n, x, keeps_nan=False)


@torch_op("aten.round.decimals")
def round_decimals(n: Node, x: Value, decimals: int) -> Value:
    if not x.type.dtype.is_float:
        raise UnsupportedNodeError("rounding of integers is not supported")
    scale = 10.0 ** abs(decimals)
    up, down = ("mul", "div") if decimals >= 0 else ("div", "mul")
    return n(down, n("round", n(up, x, scale)), scale)


@torch_op("aten.square.default")
def square(n: Node, x: Value) -> Value:
    x = n.cast(x, n.dtype)  # truths give integers
    return n("mul", x, x)


# arithmetic of two


def _logical(op: str) -> str | None:
    """The logical op that an arithmetic op amounts to on bools; None if there is none."""
    return {"add": "or", "mul": "and", "maximum": "or", "minimum": "and"}.get(op)


def _arithmetic(n: Node, op: str, a: Operand, b: Operand) -> Value:
    dtype = n.dtype
    if dtype is DType.BOOL and (logical := _logical(op)) is not None:
        op = logical
    return n.emit(op, n.value(a, dtype), n.value(b, dtype))


def _scaled(n: Node, x: Operand, alpha: Number) -> Operand:
    """x times a constant factor."""
    if alpha == 1:
        return x
    return n.emit("mul", n.value(x, n.dtype), n.value(alpha, n.dtype))


@torch_op("aten.add.Tensor", "aten.add.Scalar")
def add(n: Node, a: Operand, b: Operand, alpha: Number) -> Value:
    return _arithmetic(n, "add", a, _scaled(n, b, alpha))


@torch_op("aten.sub.Tensor", "aten.sub.Scalar")
def sub(n: Node, a: Operand, b: Operand, alpha: Number) -> Value:
    return _arithmetic(n, "sub", a, _scaled(n, b, alpha))


@torch_op("aten.rsub.Tensor", "aten.rsub.Scalar")
def reversed_sub(n: Node, a: Operand, b: Operand, alpha: Number) -> Value:
    return _arithmetic(n, "sub", b, _scaled(n, a, alpha))


_BINARY = {
    ("aten.mul.Tensor", "aten.mul.Scalar"): "mul",
    ("aten.maximum.default",): "maximum",
    ("aten.minimum.default",): "minimum",
}


def _binary(op: str) -> Callable[[Node, Operand, Operand], Value]:
    return lambda n, a, b: _arithmetic(n, op, a, b)


for _names, _op in _BINARY.items():
    torch_op(*_names)(_binary(_op))


def _number_wins(op: str) -> Callable[[Node, Operand, Operand], Value]:
    """An entry for an extremum of two numbers that ignores NaN: the other operand wins."""

    def build(n: Node, a: Operand, b: Operand) -> Value:
        x, y = n.value(a, n.dtype), n.value(b, n.dtype)
        found = _arithmetic(n, op, x, y)
        if not n.dtype.is_float:
            return found
        return n("where", n.emit("is_nan", x), y, n("where", n.emit("is_nan", y), x, found))

    return build


torch_op("aten.fmax.default")(_number_wins("maximum"))
torch_op("aten.fmin.default")(_number_wins("minimum"))


@torch_op("aten.div.Tensor", "aten.div.Scalar")
def divide(n: Node, a: Operand, b: Operand) -> Value:
    return n.emit("div", n.value(a, n.dtype), n.value(b, n.dtype))


@torch_op("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def divide_by_mode(n: Node, a: Operand, b: Operand, mode: str | None) -> Value:
    if mode == "floor":
        return floor_divide(n, a, b)
    x, y = n.value(a, n.dtype), n.value(b, n.dtype)
    quotient = n.emit("div", x, y)
    return n.emit("trunc", quotient) if mode == "trunc" and n.dtype.is_float else quotient


@torch_op("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(n: Node, a: Operand, b: Operand) -> Value:
    is_number = isinstance(b, int | float) and n.dtype.is_float
    # torch computes with a number before it is rounded to halves
    divisor = n.value(b, n.dtype.accumulator) if is_number else _rounded(n, b)
    return quotients.floor_quotient(n, _rounded(n, a), divisor)


def _rounded(n: Node, operand: Operand) -> Value:
    """An operand in the result's dtype, as torch rounds even numbers before it computes remainders:
    otherwise results would differ."""
    is_number = isinstance(operand, int | float)
    if is_number and n.dtype.is_storage_only:
        return n.constant(np.array(operand, n.dtype.numpy))
    return n.value(operand, n.dtype)


def _remainder(is_truncated: bool) -> Callable[[Node, Operand, Operand], Value]:
    def build(n: Node, a: Operand, b: Operand) -> Value:
        x, y = _rounded(n, a), _rounded(n, b)
        return quotients.remainder(n, x, y, is_truncated=is_truncated)

    return build


torch_op("aten.fmod.Tensor", "aten.fmod.Scalar")(_remainder(is_truncated=True))
torch_op("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")(
    _remainder(is_truncated=False)
)


@torch_op("aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", "aten.pow.Scalar")
def power(n: Node, a: Operand, b: Operand) -> Value:
    if n.dtype.is_float:
        base = n.value(a, n.dtype)
        if isinstance(b, float) and abs(b) == 0.5:  # a root, unlike a power at -0 and -infinity
            root = n.emit("sqrt", base)
            return root if b > 0 else n("div", n.scalar(1, n.dtype), root)
        return n.emit("pow", base, n.value(b, n.dtype))
    return activations.integer_power(n, n.value(a, n.dtype), n.value(b, n.dtype))


@torch_op("aten.atan2.default")
def arc_tangent_of_quotient(n: Node, y: Value, x: Value) -> Value:
    return functions.atan2(n, n.cast(y, n.dtype), n.cast(x, n.dtype))


@torch_op("aten.hypot.default")
def hypotenuse(n: Node, x: Value, y: Value) -> Value:
    return functions.hypot(n, n.cast(x, n.dtype), n.cast(y, n.dtype))


@torch_op("aten.addcmul.default")
def add_product(n: Node, x: Value, a: Value, b: Value, value: Number) -> Value:
    return _arithmetic(n, "add", x, _scaled(n, _arithmetic(n, "mul", a, b), value))


@torch_op("aten.addcdiv.default")
def add_quotient(n: Node, x: Value, a: Value, b: Value, value: Number) -> Value:
    return _arithmetic(n, "add", x, _scaled(n, _arithmetic(n, "div", a, b), value))


# comparisons and truths

_COMPARISONS = {
    "eq": ("equal", False, False),
    "ne": ("equal", False, True),
    "lt": ("less", False, False),
    "le": ("less_equal", False, False),
    "gt": ("less", True, False),
    "ge": ("less_equal", True, False),
}


def _comparison(op: str, is_swapped: bool, is_negated: bool) -> Callable[..., Value]:
    def build(n: Node, a: Operand, b: Operand) -> Value:
        dtype = promoted(a, b)
        if dtype is DType.BOOL and op != "equal":
            dtype = DType.U8
        x, y = n.value(a, dtype), n.value(b, dtype)
        found = n.emit(op, y, x) if is_swapped else n.emit(op, x, y)
        return n.emit("not", found) if is_negated else found

    return build


for _name, _how in _COMPARISONS.items():
    torch_op(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_comparison(*_how))


def truth(n: Node, x: Value) -> Value:
    """Bools of which elements of x differ from 0."""
    if x.type.dtype is DType.BOOL:
        return x
    return n.emit("not", n("equal", x, 0))


@torch_op("aten.logical_not.default")
def logical_not(n: Node, x: Value) -> Value:
    return n.emit("not", truth(n, x))


for _name in ("and", "or", "xor"):
    torch_op(f"aten.logical_{_name}.default")(
        lambda n, a, b, op=_name: n.emit(op, truth(n, a), truth(n, b))
    )


def _bitwise(name: str) -> Callable[[Node, Operand, Operand], Value]:
    def build(n: Node, a: Operand, b: Operand) -> Value:
        op = name if n.dtype is DType.BOOL else f"bit_{name}"
        return n.emit(op, n.value(a, n.dtype), n.value(b, n.dtype))

    return build


for _name in ("and", "or", "xor"):
    torch_op(
        f"aten.bitwise_{_name}.Tensor",
        f"aten.bitwise_{_name}.Scalar",
        f"aten.bitwise_{_name}.Scalar_Tensor",
    )(_bitwise(_name))


@torch_op("aten.bitwise_not.default")
def bitwise_not(n: Node, x: Value) -> Value:
    return n.emit("not" if x.type.dtype is DType.BOOL else "bit_not", x)


def _shift(op: str) -> Callable[[Node, Operand, Operand], Value]:
    return lambda n, a, b: n.emit(op, n.value(a, n.dtype), n.value(b, n.dtype))


for _name, _op in {"left": "shift_left", "right": "shift_right"}.items():
    torch_op(
        f"aten.bitwise_{_name}_shift.Tensor",
        f"aten.bitwise_{_name}_shift.Tensor_Scalar",
        f"aten.__{_name[0]}shift__.Scalar",
        f"aten.__{_name[0]}shift__.Tensor",
    )(_shift(_op))


@torch_op("aten.isnan.default")
def is_nan(n: Node, x: Value) -> Value:
    if x.type.dtype.is_float:
        return n.emit("is_nan", x)
    return n.emit("not", n.emit("equal", x, x))


@torch_op("aten.isinf.default")
def is_infinite(n: Node, x: Value) -> Value:
    if not x.type.dtype.is_float:
        return n.emit("not", n.emit("equal", x, x))
    return n("equal", n("abs", x), math.inf)


@torch_op("aten.isfinite.default")
def is_finite(n: Node, x: Value) -> Value:
    if not x.type.dtype.is_float:
        return n.emit("equal", x, x)
    return n("less", n("abs", x), math.inf)


@torch_op("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def where(n: Node, condition: Value, a: Operand, b: Operand) -> Value:
    return n.emit("where", truth(n, condition), n.value(a, n.dtype), n.value(b, n.dtype))


@torch_op("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(n: Node, x: Value, mask: Value, value: Operand) -> Value:
    return n.emit("where", truth(n, mask), n.value(value, n.dtype), n.value(x, n.dtype))


@torch_op("aten.clamp.default", "aten.clamp.Tensor", "aten.hardtanh.default")
def clamp(n: Node, x: Value, low: Operand | None = None, high: Operand | None = None) -> Value:
    found = n.value(x, n.dtype)
    if low is not None and low != -math.inf:
        found = _arithmetic(n, "maximum", found, low)
    if high is not None and high != math.inf:
        found = _arithmetic(n, "minimum", found, high)
    return found


@torch_op("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(n: Node, x: Value, low: Operand) -> Value:
    return clamp(n, x, low)


@torch_op("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(n: Node, x: Value, high: Operand) -> Value:
    return clamp(n, x, None, high)


# activations


@torch_op("aten.gelu.default")
def gelu(n: Node, x: Value, approximate: str) -> Value:
    return n.emit("gelu", x) if approximate == "none" else activations.tanh_gelu(n, x)


@torch_op("aten.silu.default")
def silu(n: Node, x: Value) -> Value:
    return activations.swish(n, x)


@torch_op("aten.mish.default")
def mish(n: Node, x: Value) -> Value:
    return n.emit("mish", x)


@torch_op("aten.hardswish.default")
def hard_swish(n: Node, x: Value) -> Value:
    return n.emit("hard_swish", x)


@torch_op("aten.hardsigmoid.default")
def hard_sigmoid(n: Node, x: Value) -> Value:
    return activations.sixths(n, x)


@torch_op("aten.relu6.default")
def relu6(n: Node, x: Value) -> Value:
    return clamp(n, x, 0, 6)


@torch_op("aten.leaky_relu.default")
def leaky_relu(n: Node, x: Value, slope: Number) -> Value:
    return activations.leaky_relu(n, x, slope)


@torch_op("aten.elu.default")
def elu(n: Node, x: Value, alpha: Number, scale: Number, steepness: Number) -> Value:
    made = activations.elu(n, x, alpha, steepness)
    return (
        made
        if scale == 1
        else n.emit("where", n("less", x, 0), n("mul", made, scale), n("mul", x, scale))
    )


@torch_op("aten.celu.default")
def celu(n: Node, x: Value, alpha: Number) -> Value:
    return activations.celu(n, x, alpha)


@torch_op("aten.softplus.default")
def softplus(n: Node, x: Value, beta: Number, threshold: Number) -> Value:
    """softplus: log(1 + exp(beta x)) / beta; x itself where that rounds to x."""
    inner = x if beta == 1 else n("mul", x, beta)
    made = activations.softplus(n, inner)
    made = made if beta == 1 else n("div", made, beta)
    return n("where", n("less", n.scalar(threshold, x.type.dtype), inner), x, made)


@torch_op("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(n: Node, x: Value) -> list[Value]:
    made = activations.log_sigmoid(n, x)
    return [made, n.emit("exp", n("neg", n("abs", x)))]


@torch_op("aten.prelu.default", "aten._prelu_kernel.default")
def prelu(n: Node, x: Value, slope: Value) -> Value:
    if slope.type.rank == 1 and x.type.rank > 1:
        slope = n.reshape(slope, (1, *slope.type.dims, *[1] * (x.type.rank - 2)))
    return activations.prelu(n, x, slope)


@torch_op("aten.threshold.default")
def threshold(n: Node, x: Value, limit: Number, value: Number) -> Value:
    small = n("less_equal", x, n.value(limit, x.type.dtype))  # which NaN is not
    return n("where", small, n.value(value, x.type.dtype), x)


# copies and casts


@torch_op(
    "aten.alias.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.detach.default",
    "aten.lift_fresh_copy.default",
)
def same(n: Node, x: Value) -> Value:
    return x


@torch_op("aten.dropout.default", "aten.alpha_dropout.default", "aten.feature_dropout.default")
def dropout(n: Node, x: Value, p: Number, is_training: bool) -> Value:
    if is_training:
        raise UnsupportedNodeError("training mode is not supported")
    return x


@torch_op("aten._to_copy.default")
def to_copy(n: Node, x: Value, dtype: DType | None) -> Value:
    return cast(n, x, n.dtype)


@torch_op("aten.copy.default")
def copy(n: Node, x: Value, source: Value) -> Value:
    return n.broadcast(n.cast(source, n.dtype), n.dims)


@torch_op("prims.convert_element_type.default")
def convert(n: Node, x: Value, dtype: DType) -> Value:
    return cast(n, x, dtype)


def cast(n: Node, x: Value, dtype: DType) -> Value:
    """x converted as torch does: to bool, numbers other than 0 are true."""
    return truth(n, x) if dtype is DType.BOOL else n.cast(x, dtype)
