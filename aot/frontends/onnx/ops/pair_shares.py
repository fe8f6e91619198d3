"""Class probabilities from decisions between pairs of classes, by libsvm's pairwise coupling.

T.-F. Wu, C.-J. Lin and R. C. Weng, "Probability estimates for multi-class classification by
pairwise coupling" (2004), second approach: the shares p that minimise p'Qp, found by cyclic steps
that stop near the minimum. The same steps are made here, so that they stop where libsvm's do.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np

from aot.frontends.onnx.blocks import insert_op
from aot.frontends.onnx.table import Node, UnsupportedNodeError
from aot.ir.builtin import YIELD
from aot.ir.graph import Block, Value
from aot.ir.rewriter import Rewriter
from aot.ir.types import DType, TensorType

LEAST = 1e-7  # a pair's smallest share
MAX_CLASSES = 64  # a step for each is ops of its own
MAX_ROUNDS = 100
F32 = DType.F32


def _pairwise(node: Node, decisions: Value, classes: int) -> list[list[Value | None]]:
    """The probability of class i against j, by [i][j]: f32[batch, 1] each; None for i = j."""
    pairs = list(combinations(range(classes), 2))
    slopes, starts = (
        np.array(node.floats_attr(name, ()), np.float32) for name in ("prob_a", "prob_b")
    )
    if len(slopes) != len(pairs) or len(starts) != len(pairs):
        raise node.error(
            f"{len(slopes)} prob_a and {len(starts)} prob_b for {len(pairs)} pairs of classes"
        )
    line = node.emit("mul", decisions, node.constant(slopes))
    line = node.emit("neg", node.emit("add", line, node.constant(starts)))
    share = node.emit("maximum", node.emit("sigmoid", line), node.scalar(LEAST, F32))
    share = node.emit("minimum", share, node.scalar(1 - LEAST, F32))
    rest = node.emit("sub", node.scalar(1, F32), share)
    found: list[list[Value | None]] = [[None] * classes for _ in range(classes)]
    batch = decisions.type.dims[0]
    for number, (i, j) in enumerate(pairs):
        ends = {"starts": (0, number), "stops": (batch, number + 1), "steps": (1, 1)}
        found[i][j] = node.emit("slice", share, **ends)
        found[j][i] = node.emit("slice", rest, **ends)
    return found


def _quadratic(node: Node, shares: list[list[Value | None]]) -> list[Value]:
    """The rows of Q, the matrix of libsvm's quadratic form: f32[batch, classes] each."""
    rows = []
    for t in range(len(shares)):
        columns: list[Value] = []
        for j in range(len(shares)):
            if j == t:
                squares = [node.emit("mul", r[t], r[t]) for r in shares if r[t] is not None]
                total = squares[0]
                for square in squares[1:]:
                    total = node.emit("add", total, square)
                columns.append(total)
            else:
                columns.append(node.emit("neg", node.emit("mul", shares[j][t], shares[t][j])))
        rows.append(node.emit("concat", *columns, axis=1))
    return rows


def pair_shares(node: Node, decisions: Value, classes: int) -> Value:
    """Probabilities f32[batch, classes] from decisions f32[batch, pairs].

    Raises:
        UnsupportedNodeError: there are more than MAX_CLASSES classes.
    """
    if classes > MAX_CLASSES:
        raise UnsupportedNodeError(f"probabilities of more than {MAX_CLASSES} classes")
    shares = _pairwise(node, decisions, classes)
    rows = _quadratic(node, shares)
    shape = (decisions.type.dims[0], classes)
    first = node.emit("broadcast_to", node.scalar(1 / classes, F32), shape=shape)
    block = Block([TensorType(DType.I64, ()), first.type])
    inside = replace(node, rewriter=Rewriter(node.rewriter.function, block))
    further, found = _round(inside, rows, block.args[1])
    inside.rewriter.create(YIELD, [further, found], {}, node.label)
    trips = max(MAX_ROUNDS, classes)
    operands = [None, node.scalar(True, DType.BOOL), first]
    return insert_op(node, "loop", operands, [block], {"trips": trips}).results[0]


def _round(node: Node, rows: list[Value], p: Value) -> tuple[Value, Value]:
    """(whether a row of `p` was not at its minimum yet, `p` after a step for each class)."""
    classes = len(rows)
    batch = p.type.dims[0]

    def summed(x: Value) -> Value:
        return node.emit("reduce_sum", x, axes=(1,), keepdims=True)

    def column(x: Value, t: int) -> Value:
        return node.emit("slice", x, starts=(0, t), stops=(batch, t + 1), steps=(1, 1))

    one = node.scalar(1, F32)
    slopes = node.emit("concat", *[summed(node.emit("mul", q, p)) for q in rows], axis=1)
    size = summed(node.emit("mul", p, slopes))
    errors = node.emit("abs", node.emit("sub", slopes, size))
    error = node.emit("reduce_max", errors, axes=(1,), keepdims=True)
    is_moving = node.emit("less_equal", node.scalar(0.005 / classes, F32), error)
    old = p
    for t, q in enumerate(rows):
        own, slope = column(q, t), column(slopes, t)
        step = node.emit("div", node.emit("sub", size, slope), own)
        scale = node.emit("add", one, step)
        only = node.constant(np.eye(classes, dtype=np.float32)[t])
        p = node.emit("div", node.emit("add", p, node.emit("mul", step, only)), scale)
        change = node.emit("add", node.emit("mul", step, own), node.emit("add", slope, slope))
        size = node.emit("add", size, node.emit("mul", step, change))
        size = node.emit("div", size, node.emit("mul", scale, scale))
        slopes = node.emit("div", node.emit("add", slopes, node.emit("mul", step, q)), scale)
    further = node.emit("reduce_max", node.cast(is_moving, F32), axes=(0, 1), keepdims=False)
    found = node.emit("where", is_moving, p, old)
    return node.emit("less", node.scalar(0, F32), further), found
