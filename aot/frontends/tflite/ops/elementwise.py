"""TFLite's elementwise operators."""

from __future__ import annotations

from collections.abc import Callable

from aot.frontends.lib import activations, functions, quotients
from aot.frontends.tflite.table import Node, UnsupportedNodeError, tflite_op
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import DType

F32, I32 = DType.F32, DType.I32


def _binary(op: str) -> Callable[[Node], Value]:
    def build(n: Node) -> Value:
        return n.activated(n.emit(op, n.real(0), n.real(1)))

    return build


for _name, _op in {
    "ADD": "add",
    "SUB": "sub",
    "MUL": "mul",
    "DIV": "div",
    "MAXIMUM": "maximum",
    "MINIMUM": "minimum",
}.items():
    tflite_op(_name)(_binary(_op))


def _compared(
    op: str, *, is_swapped: bool = False, is_negated: bool = False
) -> Callable[[Node], Value]:
    def build(n: Node) -> Value:
        a, b = n.real(0), n.real(1)
        found = n.emit(op, *((b, a) if is_swapped else (a, b)))
        return n.emit("not", found) if is_negated else found

    return build


tflite_op("EQUAL")(_compared("equal"))
tflite_op("NOT_EQUAL")(_compared("equal", is_negated=True))
tflite_op("LESS")(_compared("less"))
tflite_op("GREATER")(_compared("less", is_swapped=True))
tflite_op("LESS_EQUAL")(_compared("less_equal"))
tflite_op("GREATER_EQUAL")(_compared("less_equal", is_swapped=True))


def _plain(op: str, count: int = 1) -> Callable[[Node], Value]:
    """An entry that emits `op` on the dequantised values of the first `count` operands."""
    return lambda n: n.emit(op, *(n.real(i) for i in range(count)))


for _name, _op in {
    "ABS": "abs",
    "CEIL": "ceil",
    "COS": "cos",
    "EXP": "exp",
    "FLOOR": "floor",
    "HARD_SWISH": "hard_swish",
    "LOG": "log",
    "LOGICAL_NOT": "not",
    "LOGISTIC": "sigmoid",
    "NEG": "neg",
    "RELU": "relu",
    "ROUND": "round",
    "SIN": "sin",
    "SQRT": "sqrt",
    "TANH": "tanh",
}.items():
    tflite_op(_name)(_plain(_op))
for _name, _op in {
    "BITWISE_XOR": "bit_xor",
    "LOGICAL_AND": "and",
    "LOGICAL_OR": "or",
    "RIGHT_SHIFT": "shift_right",
}.items():
    tflite_op(_name)(_plain(_op, 2))


def _clamp(low: float, high: float) -> Callable[[Node], Value]:
    return lambda n: n("minimum", n("maximum", n.real(0), low), high)


tflite_op("RELU6")(_clamp(0, 6))
tflite_op("RELU_N1_TO_1")(_clamp(-1, 1))
tflite_op("RELU_0_TO_1")(_clamp(0, 1))


@tflite_op("ADD_N")
def add_n(n: Node) -> Value:
    total = n.real(0)
    for number in range(1, n.count):
        total = n.emit("add", total, n.real(number))
    return total


@tflite_op("SQUARE")
def square(n: Node) -> Value:
    x = n.real(0)
    return n.emit("mul", x, x)


@tflite_op("SQUARED_DIFFERENCE")
def squared_difference(n: Node) -> Value:
    d = n.emit("sub", n.real(0), n.real(1))
    return n.emit("mul", d, d)


@tflite_op("RSQRT")
def rsqrt(n: Node) -> Value:
    x = n.real(0)
    return n("div", n.scalar(1.0, x.type.dtype), n("sqrt", x))


@tflite_op("SIGN")
def sign(n: Node) -> Value:
    return activations.sign(n, n.real(0))


@tflite_op("POW")
def power(n: Node) -> Value:
    x, y = n.real(0), n.real(1)
    if x.type.dtype.is_float:
        return n.emit("pow", x, y)
    return activations.integer_power(n, x, y)


@tflite_op("FLOOR_DIV")
def floor_div(n: Node) -> Value:
    return quotients.floor_quotient(n, n.real(0), n.real(1))


@tflite_op("FLOOR_MOD")
def floor_mod(n: Node) -> Value:
    return quotients.remainder(n, n.real(0), n.real(1), is_truncated=False)


@tflite_op("ATAN2")
def atan2(n: Node) -> Value:
    return functions.atan2(n, n.real(0), n.real(1))


@tflite_op("ELU")
def elu(n: Node) -> Value:
    return activations.elu(n, n.real(0), 1.0)


@tflite_op("LEAKY_RELU")
def leaky_relu(n: Node) -> Value:
    return activations.leaky_relu(n, n.real(0), float(n.option("alpha", 0.0)))


@tflite_op("PRELU")
def prelu(n: Node) -> Value:
    return activations.prelu(n, n.real(0), n.real(1))


@tflite_op("GELU")
def gelu(n: Node) -> Value:
    x = n.real(0)
    return activations.tanh_gelu(n, x) if n.option("approximate", False) else n.emit("gelu", x)


def _last_axis(n: Node, x: Value) -> int:
    if x.type.rank == 0:
        raise n.error("its operand has no dims")
    return x.type.rank - 1


@tflite_op("SOFTMAX")
def softmax(n: Node) -> Value:
    x = n.real(0)
    beta = float(n.option("beta", 1.0))
    scaled = x if beta == 1 else n("mul", x, beta)
    return n.emit("softmax", scaled, axis=_last_axis(n, x))


@tflite_op("LOG_SOFTMAX")
def log_softmax(n: Node) -> Value:
    x = n.real(0)
    return n.emit("log_softmax", x, axis=_last_axis(n, x))


@tflite_op("SELECT", "SELECT_V2")
def select(n: Node) -> Value:
    """SELECT: its condition may also be one-dimensional and select whole rows."""
    condition = n.input(0)
    a, b = (n.real(i) if n.is_quantised else n.input(i) for i in (1, 2))
    if n.op == "SELECT" and condition.type.rank == 1 and a.type.rank > 1:
        condition = n.reshape(condition, (*condition.type.dims, *[1] * (a.type.rank - 1)))
    return n.emit("where", condition, a, b)


@tflite_op("CAST")
def cast(n: Node) -> Value:
    """CAST: converts stored numbers; quantisation is ignored."""
    x, dtype = n.input(0), n.output().dtype
    if dtype is DType.BOOL:
        return n.emit("not", n("equal", x, 0))
    return n.cast(x, dtype)


@tflite_op("DEQUANTIZE", "DENSIFY")
def dequantize(n: Node) -> Value:
    return n.real(0) if n.op == "DEQUANTIZE" else n.input(0)


@tflite_op("QUANTIZE")
def quantize(n: Node) -> Value:
    return n.real(0)


@tflite_op("FAKE_QUANT")
def fake_quant(n: Node) -> Value:
    """FAKE_QUANT: numbers after quantising and dequantising; the range is shifted so that it
    contains 0 exactly."""
    low, high = float(n.option("min", 0.0)), float(n.option("max", 0.0))
    steps = 2 ** int(n.option("num_bits", 8)) - 1
    first = 1 if n.option("narrow_range", False) else 0
    if not low < high or steps <= first:
        raise n.error(f"its range is {low} to {high}")
    scale = (high - low) / (steps - first)
    zero = min(max(round(first - low / scale), first), steps)
    x = n("minimum", n("maximum", n.real(0), (first - zero) * scale), (steps - zero) * scale)
    least = (first - zero) * scale
    steps_up = n("floor", n("add", n("mul", n("sub", x, least), 1 / scale), 0.5))
    return n("add", n("mul", steps_up, scale), least)


@tflite_op("L2_NORMALIZATION")
def l2_normalization(n: Node) -> Value:
    """L2_NORMALIZATION: x divided by the root of the sum of its squares along the last dim, at
    least 1e-6."""
    x = n.real(0)
    total = n.emit("reduce_sum", n("mul", x, x), axes=(_last_axis(n, x),), keepdims=True)
    return n.activated(n("div", x, n("maximum", n("sqrt", total), 1e-6)))


@tflite_op("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(n: Node) -> Value:
    """LOCAL_RESPONSE_NORMALIZATION: x / (bias + alpha * sum of squares of neighbouring channels) ^
    beta."""
    x = n.real(0)
    radius = int(n.option("radius", 0))
    channels = x.type.dims[_last_axis(n, x)]
    squares = n("mul", x, x)
    flat: tuple[Dim, ...] = (1, 1, n_rows(x), channels)
    mean = n.emit(
        "average_pool",
        n.reshape(squares, flat),
        kernel=(1, 2 * radius + 1),
        strides=(1, 1),
        dilations=(1, 1),
        pads=(0, radius, 0, radius),
        count_include_pad=True,
    )
    total = n("mul", n.reshape(mean, x.type.dims), float(2 * radius + 1))
    line = n("add", n("mul", total, float(n.option("alpha", 0.0))), float(n.option("bias", 0.0)))
    return n("div", x, n("pow", line, float(n.option("beta", 0.0))))


def n_rows(x: Value) -> Dim:
    """The number of vectors along the last dim."""
    from aot.ir import dims

    return dims.product(x.type.dims[:-1])


@tflite_op("BITCAST")
def bitcast(n: Node) -> Value:
    x, dtype = n.input(0), n.output().dtype
    if dtype.bits != x.type.dtype.bits:
        raise UnsupportedNodeError(f"{x.type.dtype} as {dtype}, of another size, is not supported")
    return n.emit("bitcast", x, to=dtype)


@tflite_op("ZEROS_LIKE")
def zeros_like(n: Node) -> Value:
    x = n.input(0)
    zero = n.scalar(0, x.type.dtype)
    return n.emit("broadcast_to", zero, shape=x.type.dims) if x.type.rank else zero
