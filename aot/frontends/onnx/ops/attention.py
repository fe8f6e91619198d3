"""Imports ONNX's Attention, by the `attention` op where it suffices.

What it does not say (a cap on scores, lengths by batch, scores as an output) is imported by ONNX's
definition.
"""

from __future__ import annotations

from aot.frontends.lib.attention import attention, head_depth, merged_heads, split_heads
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir.graph import Value

Q, K, V, MASK, PAST_KEY, PAST_VALUE, LENGTHS = range(7)
SHORT_MASKS = 24  # since this opset a mask may end before the keys do


def _heads(node: Node, operand: int, count: int) -> Value:
    """An operand reshaped to [batch, heads, length, depth]."""
    x = node.input(operand)
    if x.type.rank == 4:
        return x
    if x.type.rank != 3 or count < 1:
        raise node.error(
            f"operand {operand} has rank {x.type.rank} and {count} heads, expected rank 4, or 3 "
            f"and the heads as an attribute"
        )
    return split_heads(node, x, count, f"operand {operand}")


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
def import_attention(node: Node) -> list[Value]:
    _refuse_what_we_lack(node)
    q = _heads(node, Q, node.int_attr("q_num_heads", 0))
    groups = node.int_attr("kv_num_heads", 0)
    k = _joined(node, PAST_KEY, _heads(node, K, groups))
    v = _joined(node, PAST_VALUE, _heads(node, V, groups))
    scale = node.float_attr("scale", head_depth(q) ** -0.5)
    before = node.optional(PAST_KEY)
    ahead = 0 if node.int_attr("is_causal", 0) else node.int_attr("right_window_size", -1)
    node.ignore("right_window_size")
    behind = node.int_attr("left_window_size", -1)
    y = attention(
        node,
        q,
        k,
        v,
        _mask(node, k),
        scale=scale,
        past=0 if before is None else before.type.dims[-2],
        ahead=ahead if ahead >= 0 else None,
        behind=behind if behind >= 0 else None,
    )
    return [merged_heads(node, y) if node.input(Q).type.rank == 3 else y, k, v]
