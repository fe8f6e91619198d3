"""Decomposes ops that ONNX Runtime's optimiser has fused; our own passes fuse them again.

Activations with a bias, norms of sums, embeddings, and products or convolutions with what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aot.frontends.lib import activations, normalization
from aot.frontends.lib.matrix import matrix_product
from aot.frontends.onnx.microsoft import MICROSOFT
from aot.frontends.onnx.ops.nn import convolution, gemm
from aot.frontends.onnx.ops.recurrent import lstm
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir import dims
from aot.ir.graph import Value
from aot.ir.types import DType

# activations


@onnx_op("Gelu", domain=MICROSOFT)
def gelu(node: Node) -> Value:
    return node.emit("gelu", node.input(0))


@onnx_op("BiasGelu", domain=MICROSOFT)
def bias_gelu(node: Node) -> Value:
    return node.emit("gelu", node.emit("add", node.input(0), node.input(1)))


@onnx_op("FastGelu", domain=MICROSOFT)
def fast_gelu(node: Node) -> Value:
    bias = node.optional(1)
    x = node.input(0) if bias is None else node.emit("add", node.input(0), bias)
    return activations.tanh_gelu(node, x)


@onnx_op("QuickGelu", domain=MICROSOFT)
def quick_gelu(node: Node) -> Value:
    return activations.swish(node, node.input(0), node.float_attr("alpha", 1.702))


@onnx_op("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(node: Node) -> Value:
    """BiasSplitGelu: the first half of the last dim times the Gelu of the second half."""
    x = node.emit("add", node.input(0), node.input(1))
    *outer, width = x.type.dims
    half = dims.floor_divide(width, 2)
    zeros, ones = (0,) * len(outer), (1,) * x.type.rank
    left = node.emit("slice", x, starts=(*zeros, 0), stops=(*outer, half), steps=ones)
    right = node.emit("slice", x, starts=(*zeros, half), stops=(*outer, width), steps=ones)
    return node.emit("mul", left, node.emit("gelu", right))


@onnx_op("BiasAdd", domain=MICROSOFT)
def bias_add(node: Node) -> Value:
    return node.emit("add", node.emit("add", node.input(0), node.input(1)), node.input(2))


# products and convolutions


def _swapped(node: Node, x: Value) -> Value:
    rank = x.type.rank
    if rank < 2:
        return x
    return node.emit("transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))


def _batch_last(node: Node, x: Value) -> Value:
    """x with its first dim moved before the last one."""
    rank = x.type.rank
    return node.emit("transpose", x, perm=(*range(1, rank - 1), 0, rank - 1))


@onnx_op("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(node: Node) -> Value:
    operands = []
    for number, name in enumerate("AB"):
        x = node.input(number)
        if node.int_attr(f"transBatch{name}", 0):
            if x.type.rank < 3:
                raise node.error(
                    f"attribute 'transBatch{name}' of an operand of rank {x.type.rank}"
                )
            x = _batch_last(node, x)
        operands.append(_swapped(node, x) if node.int_attr(f"trans{name}", 0) else x)
    product = matrix_product(node, operands[0], operands[1])
    alpha = node.float_attr("alpha", 1.0)
    return (
        product if alpha == 1 else node.emit("mul", product, node.scalar(alpha, product.type.dtype))
    )


def _clip(node: Node, x: Value, low: float, high: float) -> Value:
    x = node.emit("maximum", x, node.scalar(low, x.type.dtype))
    return node.emit("minimum", x, node.scalar(high, x.type.dtype))


# By the name in lower case: what makes it of a node, a value, and two parameters (None: as usual).
_Activation = Callable[[Node, Value, "float | None", "float | None"], Value]


def _or(value: float | None, usual: float) -> float:
    return usual if value is None else value


_ACTIVATIONS: dict[str, _Activation] = {
    "relu": lambda node, x, a, b: node.emit("relu", x),
    "tanh": lambda node, x, a, b: node.emit("tanh", x),
    "sigmoid": lambda node, x, a, b: node.emit("sigmoid", x),
    "leakyrelu": lambda node, x, a, b: activations.leaky_relu(node, x, _or(a, 0.01)),
    "thresholdedrelu": lambda node, x, a, b: activations.thresholded_relu(node, x, _or(a, 1.0)),
    "hardsigmoid": lambda node, x, a, b: activations.hard_sigmoid(
        node, x, _or(a, 0.2), _or(b, 0.5)
    ),
    "hardswish": lambda node, x, a, b: node.emit("hard_swish", x),
    "elu": lambda node, x, a, b: activations.elu(node, x, _or(a, 1.0)),
    "softplus": lambda node, x, a, b: activations.softplus(node, x),
    "softsign": lambda node, x, a, b: activations.softsign(node, x),
    "gelu": lambda node, x, a, b: node.emit("gelu", x),
    "clip": lambda node, x, a, b: _clip(node, x, _or(a, -3.4028234e38), _or(b, 3.4028234e38)),
}


def _activated(node: Node, x: Value, parameters: Sequence[float]) -> Value:
    """x after the activation that the node names, with its parameters."""
    name = node.str_attr("activation", "")
    if not name:
        return x
    build = _ACTIVATIONS.get(name.lower())
    if build is None:
        raise UnsupportedNodeError(f"activation {name!r} is not supported")
    first, second, *_ = [*parameters, None, None]
    return build(node, x, first, second)


@onnx_op("FusedGemm", domain=MICROSOFT)
def fused_gemm(node: Node) -> Value:
    result = gemm(node)
    assert isinstance(result, Value)
    node.ignore("activation_alpha", "activation_beta", "activation_gamma")
    given = [
        node.float_attr(name) for name in ("activation_alpha", "activation_beta") if node.has(name)
    ]
    return _activated(node, result, given)


@onnx_op("FusedConv", domain=MICROSOFT)
def fused_conv(node: Node) -> Value:
    result = convolution(node, node.input(0), node.input(1), node.optional(2))
    summed = node.optional(3)
    if summed is not None:
        result = node.emit("add", result, summed)
    return _activated(node, result, node.floats_attr("activation_params", ()))


def _channels_second(node: Node, x: Value) -> Value:
    rank = x.type.rank
    return node.emit("transpose", x, perm=(0, rank - 1, *range(1, rank - 1)))


def _channels_last(node: Node, x: Value) -> Value:
    rank = x.type.rank
    return node.emit("transpose", x, perm=(0, *range(2, rank), 1))


@onnx_op("NhwcConv", "NhwcFusedConv", domain=MICROSOFT)
def nhwc_conv(node: Node) -> Value:
    """Convolutions with channels last in x and y; NhwcConv has them last in the weights too."""
    x, w = _channels_second(node, node.input(0)), node.input(1)
    if node.op_type == "NhwcConv":
        w = _channels_second(node, w)
    result = convolution(node, x, w, node.optional(2))
    if node.optional(3) is not None:
        result = node.emit("add", result, _channels_second(node, node.input(3)))
    if node.op_type == "NhwcFusedConv":
        result = _activated(node, result, node.floats_attr("activation_params", ()))
    return _channels_last(node, result)


# norms and embeddings


def _normalised(node: Node, x: Value, number: int) -> Value:
    """The layer norm of x over its last dim; operands from `number` are scale and bias."""
    epsilon = node.float_attr("epsilon", 1e-12)
    axis = x.type.rank - 1
    return node.emit(
        "layer_norm", x, node.input(number), node.optional(number + 1), axis=axis, epsilon=epsilon
    )


def _skipped(node: Node, bias: int) -> Value:
    """The sum of the first two operands and the bias that is operand `bias`."""
    x, skip = node.input(0), node.input(1)
    for number, what in ((1, "mean"), (2, "inv_std_var")):
        node.refuse_output(number, what)
    total = node.emit("add", x, skip)
    more = node.optional(bias)
    return total if more is None else node.emit("add", total, more)


@onnx_op("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(node: Node) -> Sequence[Value | None]:
    total = _skipped(node, 4)
    return [_normalised(node, total, 2), None, None, total]


@onnx_op("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(node: Node) -> Sequence[Value | None]:
    total = _skipped(node, 3)
    epsilon = node.float_attr("epsilon", 1e-12)
    scaled = normalization.rms_norm(node, total, node.input(2), total.type.rank - 1, epsilon)
    return [scaled, None, None, total]


@onnx_op("SimplifiedLayerNormalization")
def simplified_layer_normalization(node: Node) -> Value:
    """SimplifiedLayerNormalization: RMS normalisation, which ONNX Runtime registers in ONNX's own
    domain."""
    node.ignore("stash_type")
    node.refuse_output(1, "inv_std_var")
    x = node.input(0)
    axis = node.axis_attr(x.type.rank, -1)
    return normalization.rms_norm(node, x, node.input(1), axis, node.float_attr("epsilon", 1e-5))


def _counted(node: Node, like: Value, mask: Value | None) -> Value:
    """The number of ones in each row of a mask, i32[batch]; zeros without a mask."""
    if mask is None:
        zero = node.scalar(0, DType.I32)
        return node.emit("broadcast_to", zero, shape=like.type.dims[:1])
    ones = node.cast(node.emit("equal", mask, node.scalar(1, mask.type.dtype)), DType.I32)
    return node.emit("reduce_sum", ones, axes=(1,), keepdims=False)


@onnx_op("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(node: Node) -> Sequence[Value | None]:
    ids = node.input(0)
    if ids.type.rank != 2:
        raise node.error(f"input_ids has rank {ids.type.rank}, expected 2")
    node.ignore("mask_index_type")
    total = node.emit("gather", node.input(2), ids, axis=0)
    positions = node.optional(8)
    if positions is None:
        positions = node.emit("range", size=ids.type.dims[1], start=0, step=1, dtype=DType.I64)
    total = node.emit("add", total, node.emit("gather", node.input(3), positions, axis=0))
    segments, table = node.optional(1), node.optional(4)
    if segments is not None and table is not None:
        total = node.emit("add", total, node.emit("gather", table, segments, axis=0))
    mask = _counted(node, ids, node.optional(7)) if node.wants(1) else None
    return [_normalised(node, total, 5), mask, total]


@onnx_op("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(node: Node) -> Sequence[Value]:
    """DynamicQuantizeLSTM: an LSTM with 8-bit weights W [directions, inputs, 4 * hidden] and R,
    transposed compared with LSTM's; x and h are not quantised."""
    inputs = [*node.inputs[:8], *[None] * (8 - len(node.inputs[:8]))]
    for number, scale in ((1, 8), (2, 10)):
        inputs[number] = _dequantized(node, node.input(number), scale)
    made = lstm(replace(node, inputs=inputs, opset=14))
    assert not isinstance(made, Value)
    return [value for value in made if value is not None]


def _dequantized(node: Node, weight: Value, number: int) -> Value:
    """A weight [directions, inputs, columns] as floats [directions, columns, inputs]; its scale and
    zero point, operands from `number`, are per tensor, per direction or per column."""

    def shaped(value: Value) -> Value:
        if value.type.element_count == 1:
            return node.reshape(value, ())
        if value.type.rank == 1:
            return node.reshape(value, (*value.type.dims, 1, 1))
        directions, columns = value.type.dims
        return node.reshape(value, (directions, 1, columns))

    scale, zero = shaped(node.input(number)), shaped(node.input(number + 1))
    floats = node.emit("dequantize", weight, scale, zero)
    return node.emit("transpose", floats, perm=(0, 2, 1))
