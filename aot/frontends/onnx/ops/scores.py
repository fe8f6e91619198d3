"""The classifiers of ai.onnx.ml: labels and transformed scores."""

from __future__ import annotations

from enum import Enum

import numpy as np

from aot.frontends.onnx.table import Node, UnsupportedNodeError
from aot.ir.graph import Value
from aot.ir.types import Array, DType

ML = "ai.onnx.ml"  # the domain


class Scores(Enum):
    """How a binary classifier derives one class's score from the other's."""

    SHARES = "1 - score"
    OPPOSITES = "-score"


def labels_of(node: Node, integers: str) -> Array:
    """The labels of the classes; for strings, their table indices."""
    strings = node.strs_attr("classlabels_strings")
    found = np.array(node.ints_attr(integers, ()), np.int64)
    if strings and not found.size:
        found = node.strings.numbers(strings)
    if not found.size:
        raise node.error(f"attributes {integers!r} and 'classlabels_strings' are missing")
    return found


def label_of(node: Node, chosen: Value, labels: Array) -> Value:
    """The labels [batch] of classes chosen by index."""
    if np.array_equal(labels, np.arange(len(labels))):
        found = node.cast(chosen, DType.I64)
    else:
        found = node.emit("gather", node.constant(labels), chosen, axis=0)
    return node.string(found) if node.strs_attr("classlabels_strings") else found


def transformed(node: Node, scores: Value, post: str) -> Value:
    """Scores [batch, classes] after the node's `post_transform`."""
    if post in ("NONE", ""):
        return scores
    if post == "LOGISTIC":
        return node.emit("sigmoid", scores)
    if post == "SOFTMAX":
        return node.emit("softmax", scores, axis=1)
    if post == "SOFTMAX_ZERO":  # where a score of zero stays
        zero = node.scalar(0, scores.type.dtype)
        top = node.emit("reduce_max", scores, axes=(1,), keepdims=True)
        power = node.emit("exp", node.emit("sub", scores, top))
        # what is about zero is only scaled down, and has no part in the sum
        near = node.scalar(1e-7, scores.type.dtype)
        is_zero = node.emit("less_equal", node.emit("abs", scores), near)
        kept = node.emit("where", is_zero, zero, power)
        total = node.emit("reduce_sum", kept, axes=(1,), keepdims=True)
        scale = node.emit("exp", node.emit("neg", top))
        power = node.emit("where", is_zero, node.emit("mul", scores, scale), power)
        return node.emit("div", power, total)
    if post == "PROBIT":
        return _probit(node, scores)
    raise UnsupportedNodeError(f"attribute 'post_transform' is {post!r}, which is not supported")


def _probit(node: Node, share: Value) -> Value:
    """The quantile of the normal distribution, as ONNX Runtime computes it: by S. Winitzki's
    approximation of erf's inverse, "A handy approximation for the error function" (2008)."""

    def number(value: float) -> Value:
        return node.scalar(value, share.type.dtype)

    x = node.emit("sub", node.emit("mul", share, number(2.0)), number(1.0))
    rest = node.emit("mul", node.emit("sub", number(1.0), x), node.emit("add", number(1.0), x))
    log = node.emit("log", rest)
    half = node.emit("add", number(2.0 / (np.pi * 0.147)), node.emit("mul", number(0.5), log))
    square = node.emit(
        "sub", node.emit("mul", half, half), node.emit("mul", log, number(1 / 0.147))
    )
    size = node.emit("sqrt", node.emit("sub", node.emit("sqrt", square), half))
    signed = node.emit("where", node.emit("less", x, number(0.0)), node.emit("neg", size), size)
    # where the share is 0 or 1
    is_bound = node.emit("equal", rest, number(0.0))
    found = node.emit("mul", signed, number(1.41421356))
    return node.emit("where", is_bound, number(0.0), found)


def of_one_score(node: Node, score: Value, post: str, kind: Scores) -> Value:
    """The scores of two classes [batch, 2], given the second one's [batch, 1]."""
    if post == "PROBIT":
        raise UnsupportedNodeError("attribute 'post_transform' is 'PROBIT' for one score")
    if kind is Scores.SHARES:
        other = node.emit("sub", node.scalar(1, score.type.dtype), score)
    else:
        other = node.emit("neg", score)
    both = node.emit("concat", other, score, axis=1)
    if kind is Scores.OPPOSITES and post == "LOGISTIC":
        return node.emit("sigmoid", both)
    return both
