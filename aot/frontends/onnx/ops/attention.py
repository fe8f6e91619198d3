"""ONNX's Attention, as our op where that says it.

What it does not say (a cap on scores, lengths by batch, scores as an output) is imported by ONNX's
definition.
"""

from __future__ import annotations

from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Attr, Value
from aot.ir.types import DType

Q, K, V, MASK, PAST_KEY, PAST_VALUE, LENGTHS = range(7)
MAX_DEPTH = 1024  # of which a GPU's shared memory holds a key and a value
SHORT_MASKS = 24  # since this opset a mask may end before the keys do


def _heads(node: Node, operand: int, count: int) -> Value:
    """An operand as [batch, heads, length, depth]."""
    x = node.input(operand)
    if x.type.rank == 4:
        return x
    if x.type.rank != 3 or count < 1:
        raise node.error(
            f"operand {operand} has rank {x.type.rank} and {count} heads, expected rank 4, or 3 "
            f"and the heads as an attribute"
        )
    batch, length, width = x.type.dims
    if not isinstance(width, int) or width % count:
        raise UnsupportedNodeError(f"operand {operand} has {width} columns for {count} heads")
    split = node.reshape(x, (batch, length, count, width // count))
    return node.emit("transpose", split, perm=(0, 2, 1, 3))


def _depth(x: Value) -> int:
    depth = x.type.dims[-1]
    if not isinstance(depth, int) or depth > MAX_DEPTH:
        raise UnsupportedNodeError(f"the depth of heads is {depth}, expected {MAX_DEPTH} at most")
    return depth


def _joined(node: Node, past: int, fresh: Value) -> Value:
    before = node.optional(past)
    return fresh if before is None else node.emit("concat", before, fresh, axis=2)


def _refuse_what_we_lack(node: Node) -> None:
    if node.optional(LENGTHS) is not None:
        raise UnsupportedNodeError("operand 6 (nonpad_kv_seqlen) is not supported")
    if node.float_attr("softcap", 0.0) != 0:
        raise UnsupportedNodeError("attribute 'softcap' is not supported")
    node.refuse_output(3, "qk_matmul_output")
    # sums and powers are in f32 at least
    node.ignore("softmax_precision", "qk_matmul_output_mode")


def _near(node: Node, q: Value, k: Value, past: Dim, behind: int) -> Value:
    """Which keys are not further behind a query than its window reaches: [queries, keys]."""
    queries, keys = q.type.dims[-2], k.type.dims[-2]
    ends = node.emit("range", size=keys, start=behind, step=1, dtype=DType.I64)
    places = node.emit("range", size=queries, start=past, step=1, dtype=DType.I64)
    return node.emit("less_equal", node.reshape(places, (queries, 1)), ends)


def _mask(node: Node, k: Value) -> Value | None:
    mask = node.optional(MASK)
    if mask is None:
        return None
    if mask.type.rank == 0:
        raise node.error("operand 3 (attn_mask) has rank 0, expected 1 or more")
    extent, keys = mask.type.dims[-1], k.type.dims[-2]
    if node.opset >= SHORT_MASKS and extent not in (1, keys):
        raise UnsupportedNodeError(f"operand 3 (attn_mask) has {extent} columns for {keys} keys")
    return mask


@onnx_op("Attention", since=23)
def attention(node: Node) -> list[Value]:
    _refuse_what_we_lack(node)
    q = _heads(node, Q, node.int_attr("q_num_heads", 0))
    groups = node.int_attr("kv_num_heads", 0)
    k = _joined(node, PAST_KEY, _heads(node, K, groups))
    v = _joined(node, PAST_VALUE, _heads(node, V, groups))
    _depth(v)
    scale = node.float_attr("scale", _depth(q) ** -0.5)
    mask = _mask(node, k)
    bias = keep = None
    if mask is not None:
        is_choice = mask.type.dtype is DType.BOOL
        bias, keep = (None, mask) if is_choice else (node.cast(mask, q.type.dtype), None)
    attrs: dict[str, Attr] = {"scale": scale}
    before = node.optional(PAST_KEY)
    past = 0 if before is None else before.type.dims[-2]
    ahead = 0 if node.int_attr("is_causal", 0) else node.int_attr("right_window_size", -1)
    node.ignore("right_window_size")
    if ahead >= 0:
        attrs["offset"] = dims.add(past, ahead)
    behind = node.int_attr("left_window_size", -1)
    if behind >= 0:
        near = _near(node, q, k, past, behind)
        keep = near if keep is None else node.emit("and", keep, near)
    operands = [q, node.cast(k, q.type.dtype), node.cast(v, q.type.dtype), bias, keep]
    while operands[-1] is None:
        operands.pop()
    y = node.emit("attention", *operands, **attrs)
    if node.input(Q).type.rank == 3:
        batch, heads, length, depth = y.type.dims
        y = node.emit("transpose", y, perm=(0, 2, 1, 3))
        y = node.reshape(y, (batch, length, heads * depth))
    return [y, k, v]
