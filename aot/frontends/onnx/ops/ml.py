"""Operators of ai.onnx.ml other than trees: features, linear models and support vector machines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from aot.frontends.onnx.ops.pair_shares import pair_shares
from aot.frontends.onnx.ops.scores import (
    ML,
    Scores,
    label_of,
    labels_of,
    of_one_score,
    transformed,
)
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir import dims
from aot.ir.graph import Value
from aot.ir.types import Array, DType

F32, I32, I64 = DType.F32, DType.I32, DType.I64


def _floats(node: Node, name: str) -> Array:
    return np.array(node.floats_attr(name, ()), np.float32)


def _matrix(node: Node) -> Value:
    """The first operand as f32[batch, features]; a vector is one row."""
    x = node.cast(node.input(0), F32)
    if x.type.rank == 1:
        x = node.reshape(x, (1, *x.type.dims))
    if x.type.rank != 2:
        raise node.error(f"X has rank {x.type.rank}, expected 1 or 2")
    return x


# features


@onnx_op("Scaler", domain=ML)
def scaler(node: Node) -> Value:
    """Scaler: (x - offset) * scale, each a single number or one per feature."""
    x = node.cast(node.input(0), F32)
    for op, name in (("sub", "offset"), ("mul", "scale")):
        found = _floats(node, name)
        if found.size:
            x = node.emit(op, x, node.constant(found if found.size > 1 else found.reshape(())))
    return x


@onnx_op("Normalizer", domain=ML)
def normalizer(node: Node) -> Value:
    """Normalizer: divides rows by their largest element (MAX), or by a norm of order 1 or 2; rows
    of zeros stay."""
    x, kind = node.cast(node.input(0), F32), node.str_attr("norm", "MAX")
    axis = x.type.rank - 1
    if kind == "MAX":
        size = node.emit("reduce_max", x, axes=(axis,), keepdims=True)
    elif kind == "L1":
        size = node.emit("reduce_sum", node.emit("abs", x), axes=(axis,), keepdims=True)
    elif kind == "L2":
        total = node.emit("reduce_sum", node.emit("mul", x, x), axes=(axis,), keepdims=True)
        size = node.emit("sqrt", total)
    else:
        raise node.error(f"attribute 'norm' is {kind!r}, expected 'MAX', 'L1' or 'L2'")
    is_zero = node.emit("equal", size, node.scalar(0, F32))
    return node.emit("div", x, node.emit("where", is_zero, node.scalar(1, F32), size))


@onnx_op("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(node: Node) -> Value:
    """ArrayFeatureExtractor: selects columns of the last dim by index."""
    x, y = node.input(0), node.input(1)
    count = y.type.element_count
    indices = node.reshape(y, (count,))
    if x.type.rank == 1:
        return node.reshape(node.emit("gather", x, indices, axis=0), (1, count))
    return node.emit("gather", x, indices, axis=x.type.rank - 1)


@onnx_op("Binarizer", domain=ML)
def binarizer(node: Node) -> Value:
    x = node.input(0)
    limit = node.scalar(node.float_attr("threshold", 0.0), x.type.dtype)
    return node.cast(node.emit("less", limit, x), x.type.dtype)


@onnx_op("FeatureVectorizer", domain=ML)
def feature_vectorizer(node: Node) -> Value:
    """FeatureVectorizer: concatenates the columns of all operands."""
    widths = node.ints_attr("inputdimensions", ())
    parts = []
    for number in range(len(node.inputs)):
        x = node.cast(node.input(number), F32)
        if x.type.rank == 1:
            x = node.reshape(x, (1, *x.type.dims))
        rest = dims.product(x.type.dims[1:])
        x = node.reshape(x, (x.type.dims[0], rest))
        if number < len(widths) and isinstance(rest, int) and rest != widths[number]:
            raise node.error(f"operand {number} has {rest} columns, expected {widths[number]}")
        parts.append(x)
    return parts[0] if len(parts) == 1 else node.emit("concat", *parts, axis=1)


@onnx_op("Imputer", domain=ML)
def imputer(node: Node) -> Value:
    x = node.input(0)
    dtype = x.type.dtype
    if dtype.is_float:
        node.ignore("replaced_value_int64", "imputed_value_int64s")
        new = np.array(node.floats_attr("imputed_value_floats"))
        old: float = node.float_attr("replaced_value_float", 0.0)
    else:
        node.ignore("replaced_value_float", "imputed_value_floats")
        new = np.array(node.ints_attr("imputed_value_int64s"))
        old = node.int_attr("replaced_value_int64", 0)
    if np.isnan(old):
        is_missing = node.emit("is_nan", x)
    else:
        is_missing = node.emit("equal", x, node.scalar(old, dtype))
    values = node.constant((new if new.size > 1 else new.reshape(())).astype(dtype.numpy))
    return node.emit("where", is_missing, values, x)


@onnx_op("ZipMap", domain=ML)
def zip_map(node: Node) -> Value:
    """ZipMap: the probabilities themselves, one column per class, as a program returns tensors, not
    maps."""
    node.ignore("classlabels_int64s", "classlabels_strings")
    return node.input(0)


# linear models


def _linear(node: Node, x: Value, rows: int) -> Value:
    """x times the coefficients [rows, features] plus intercepts: [batch, rows]."""
    coefficients, intercepts = _floats(node, "coefficients"), _floats(node, "intercepts")
    if not rows or coefficients.size % rows:
        raise node.error(f"{coefficients.size} coefficients for {rows} scores")
    weights = coefficients.reshape(rows, -1).T
    if isinstance(x.type.dims[1], int) and x.type.dims[1] != weights.shape[0]:
        raise node.error(f"X has {x.type.dims[1]} features, expected {weights.shape[0]}")
    scores = node.emit("matmul", x, node.constant(np.ascontiguousarray(weights)))
    return node.emit("add", scores, node.constant(intercepts)) if intercepts.size else scores


@onnx_op("LinearRegressor", domain=ML)
def linear_regressor(node: Node) -> Value:
    scores = _linear(node, _matrix(node), node.int_attr("targets", 1))
    return transformed(node, scores, node.str_attr("post_transform", "NONE"))


@onnx_op("LinearClassifier", domain=ML)
def linear_classifier(node: Node) -> Sequence[Value]:
    node.ignore("multi_class")
    labels = labels_of(node, "classlabels_ints")
    post = node.str_attr("post_transform", "NONE")
    intercepts = node.floats_attr("intercepts", ())
    rows = len(intercepts) or len(labels)
    scores = _linear(node, _matrix(node), rows)
    batch = scores.type.dims[:1]
    if rows == 1 and len(labels) == 2:
        chosen = node.emit("less", node.scalar(0, F32), scores)
        label = label_of(node, node.cast(node.reshape(chosen, batch), I32), labels)
        return [label, of_one_score(node, transformed(node, scores, post), "NONE", Scores.SHARES)]
    best = node.reshape(node.emit("arg_max", scores, axis=1), batch)
    return [label_of(node, best, labels), transformed(node, scores, post)]


# support vectors


def _kernel(node: Node, x: Value, vectors: Array) -> Value:
    """The kernel function of each row of x and each vector [count, features]: [batch, count]."""
    kind = node.str_attr("kernel_type", "LINEAR")
    gamma, start, degree, *_ = [*node.floats_attr("kernel_params", ()), 0.0, 0.0, 0.0]
    product = node.emit("matmul", x, node.constant(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return product

    def number(value: float) -> Value:
        return node.scalar(value, F32)

    if kind == "RBF":
        squares = node.emit("reduce_sum", node.emit("mul", x, x), axes=(1,), keepdims=True)
        norms = node.constant((vectors.astype(np.float64) ** 2).sum(1).astype(np.float32))
        doubled = node.emit("mul", product, number(2.0))
        distance = node.emit("sub", node.emit("add", squares, norms), doubled)
        distance = node.emit("maximum", distance, number(0.0))
        return node.emit("exp", node.emit("mul", distance, number(-gamma)))
    line = node.emit("add", node.emit("mul", product, number(gamma)), number(start))
    if kind == "SIGMOID":
        return node.emit("tanh", line)
    if kind == "POLY":
        if degree == int(degree) and 1 <= degree <= 16:
            power = line
            for _ in range(int(degree) - 1):
                power = node.emit("mul", power, line)
            return power
        return node.emit("pow", line, number(degree))
    raise node.error(f"attribute 'kernel_type' is {kind!r}")


def _vectors(node: Node, count: int) -> Array:
    found = _floats(node, "support_vectors")
    if count < 1 or found.size % count:
        raise node.error(f"{found.size} numbers of {count} support vectors")
    return found.reshape(count, -1)


@onnx_op("SVMRegressor", domain=ML)
def svm_regressor(node: Node) -> Value:
    x, count = _matrix(node), node.int_attr("n_supports", 0)
    coefficients, rho = _floats(node, "coefficients"), _floats(node, "rho")
    vectors = _vectors(node, count) if count else coefficients.reshape(1, -1)
    values = _kernel(node, x, vectors)
    if count:
        values = node.emit("matmul", values, node.constant(coefficients.reshape(count, 1)))
    total = node.emit("add", values, node.scalar(float(rho[0]) if rho.size else 0.0, F32))
    if node.int_attr("one_class", 0):
        positive = node.emit("less", node.scalar(0, F32), total)
        return node.emit("where", positive, node.scalar(1, F32), node.scalar(-1, F32))
    return transformed(node, total, node.str_attr("post_transform", "NONE"))


@onnx_op("SVMClassifier", domain=ML)
def svm_classifier(node: Node) -> Sequence[Value]:
    """SVMClassifier: one decision per pair of classes; the class that wins most of its pairs, the
    first of equal ones."""
    labels = labels_of(node, "classlabels_ints")
    of_class = node.ints_attr("vectors_per_class", ())
    if not of_class:
        raise UnsupportedNodeError("classifiers without vectors_per_class are not supported")
    x, rho = _matrix(node), _floats(node, "rho")
    post, classes, count = node.str_attr("post_transform", "NONE"), len(of_class), sum(of_class)
    coefficients = _floats(node, "coefficients").reshape(classes - 1, count)
    values = _kernel(node, x, _vectors(node, count))
    starts = np.concatenate([[0], np.cumsum(of_class)])
    pairs = list(combinations(range(classes), 2))
    weights = np.zeros((count, len(pairs)), np.float32)
    for number, (i, j) in enumerate(pairs):
        first, second = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        weights[first, number] = coefficients[j - 1, first]
        weights[second, number] = coefficients[i, second]
    decisions = node.emit("matmul", values, node.constant(weights))
    decisions = node.emit("add", decisions, node.constant(rho[: len(pairs)]))
    batch = decisions.type.dims[:1]
    wins = node.cast(node.emit("less", node.scalar(0, F32), decisions), F32)
    votes = np.zeros((len(pairs), classes), np.float32)
    base = np.zeros(classes, np.float32)
    for number, (i, j) in enumerate(pairs):
        votes[number, i], votes[number, j] = 1, -1
        base[j] += 1
    counted = node.emit("matmul", wins, node.constant(votes))
    counted = node.emit("add", counted, node.constant(base))
    best = node.reshape(node.emit("arg_max", counted, axis=1), batch)
    label = label_of(node, best, labels)
    if node.has("prob_a"):
        return [label, transformed(node, pair_shares(node, decisions, classes), post)]
    if classes == 2:
        kind = Scores.OPPOSITES if post in ("NONE", "LOGISTIC") else Scores.SHARES
        return [label, of_one_score(node, decisions, post, kind)]
    return [label, transformed(node, decisions, post)]
