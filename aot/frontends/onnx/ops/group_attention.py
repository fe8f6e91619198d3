"""Imports ONNX Runtime's GroupQueryAttention and RotaryEmbedding, as decoders use them.

Keys and values of the past come as one tensor, whose rows may have different lengths: what a row
has behind its length counts as not there, and its new keys are put there. Where all rows are as
long as the tensor the new keys simply follow, and a state grows by them.
"""

from __future__ import annotations

from itertools import pairwise

from aot.base.records import dataclass
from aot.frontends.lib import rotary
from aot.frontends.lib.attention import (
    attention,
    attention_by_parts,
    head_depth,
    merged_heads,
    split_heads,
)
from aot.frontends.lib.extents import check_equal, given_dims
from aot.frontends.lib.normalization import rms_norm
from aot.frontends.onnx.microsoft import MICROSOFT
from aot.frontends.onnx.ops.attention_microsoft import heads_attr, part, refuse_operands
from aot.frontends.onnx.table import Node, UnsupportedNodeError, onnx_op
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import DType

I64 = DType.I64


def _query_key_value(node: Node) -> list[Value]:
    """(q, k, v): q [batch, heads, length, depth]; k and v with as many heads as there are
    groups."""
    heads, groups = heads_attr(node), heads_attr(node, "kv_num_heads")
    if heads % groups:
        raise node.error(f"{heads} heads are no multiple of {groups} groups")
    query = node.input(0)
    if query.type.rank != 3:
        raise node.error(f"query has rank {query.type.rank}, expected 3")
    if node.optional(1) is not None:
        return [
            split_heads(node, node.input(number), count, name)
            for number, count, name in (
                (0, heads, "query"),
                (1, groups, "key"),
                (2, groups, "value"),
            )
        ]
    width = query.type.dims[2]
    if not isinstance(width, int) or width % (heads + 2 * groups):
        raise node.error(f"query has {width} columns for {heads} heads and 2 x {groups} groups")
    packed = split_heads(node, query, heads + 2 * groups, "query")
    ends = (0, heads, heads + groups, heads + 2 * groups)
    return [part(node, packed, 1, a, b) for a, b in pairwise(ends)]


@dataclass
class _Rows:
    """The positions of keys in each batch row.

    Attributes:
        past: the extent of the past.
        keys: the extent of the present.
        lengths: of each row's past, i64[batch, 1]; None where all are `past`.
    """

    past: Dim
    keys: Dim
    lengths: Value | None

    def positions(self, node: Node, count: Dim) -> Value:
        """Positions of the new keys: i64[count], or [batch, count] where rows differ."""
        if self.lengths is None:
            return rotary.positions_from(node, self.past, count)
        steps = node.emit("range", size=count, start=0, step=1, dtype=I64)
        return node.emit("add", self.lengths, steps)


def _rows(node: Node, batch: Dim, fresh: Dim) -> _Rows:
    """The key positions of a GroupQueryAttention, from its past and `seqlens`.

    Raises:
        UnsupportedNodeError: the number of keys is not known, nor is it the past and the new keys.
    """
    before = node.optional(3)
    past: Dim = 0 if before is None else before.type.dims[2]
    joined = dims.add(past, fresh)
    given = given_dims(node, node.input(6))
    total: Dim = joined if given is None else given.reshape(-1)[0]
    is_room = isinstance(past, int) and past > 0 and total != joined
    if past == 0:
        # ONNX Runtime takes each row's keys to begin at 0: what pads them is behind them
        if total != fresh:
            check_equal(node, total, fresh, "total_sequence_length without a past")
        return _Rows(0, fresh, None)
    if not is_room and total != joined:
        check_equal(node, total, joined, "total_sequence_length is past and new keys")
    if batch == 1 and not is_room:
        return _Rows(past, joined, None)
    last = node.cast(node.reshape(node.input(5), (batch, 1)), I64)
    step = node.cast(node.emit("dim_values", dims=(dims.add(1, dims.multiply(fresh, -1)),)), I64)
    lengths = node.emit("add", last, node.reshape(step, ()))
    # a first run has no past, whatever the shorter rows of the batch say
    lengths = node.emit("maximum", lengths, node.scalar(0, I64))
    return _Rows(past, dims.maximum(past, total) if is_room else joined, lengths)


def _joined(node: Node, rows: _Rows, operand: int, fresh: Value) -> Value:
    """The past in an operand, with the new keys or values appended after each row's end."""
    before = node.optional(operand)
    if before is None or rows.past == 0:
        return fresh
    both = node.emit("concat", before, fresh, axis=2)
    if rows.lengths is None:
        return both
    batch, count = fresh.type.dims[0], fresh.type.dims[2]
    places = node.emit("range", size=rows.keys, start=0, step=1, dtype=I64)
    behind = node.emit("sub", places, rows.lengths)
    length = node.reshape(node.emit("dim_values", dims=(count,)), ())
    start = node.reshape(node.emit("dim_values", dims=(rows.past,)), ())
    is_new = node.emit(
        "and",
        node.emit("less_equal", node.scalar(0, I64), behind),
        node.emit("less", behind, length),
    )
    source = node.emit("where", is_new, node.emit("add", behind, start), places)
    columns = (batch, 1, rows.keys, 1)
    shape = (batch, both.type.dims[1], rows.keys, both.type.dims[3])
    source = node.emit("broadcast_to", node.reshape(source, columns), shape=shape)
    found = node.emit("gather_elements", both, source, axis=2)
    is_there = node.reshape(node.emit("less", behind, length), columns)
    return node.emit("where", is_there, found, node.scalar(0, found.type.dtype))


def _keep(node: Node, rows: _Rows, queries: Dim, window: int) -> Value | None:
    """The mask of keys visible to a query, where rows differ in length, or attention is done by
    parts; else None."""
    positions = rows.positions(node, queries)
    shape = (queries, 1) if rows.lengths is None else (positions.type.dims[0], 1, queries, 1)
    positions = node.reshape(positions, shape)
    places = node.emit("range", size=rows.keys, start=0, step=1, dtype=I64)
    keep = node.emit("less_equal", places, positions)
    if window > 0:
        ends = node.emit("add", places, node.scalar(window, I64))
        keep = node.emit("and", keep, node.emit("less", positions, ends))
    return keep


def _refuse_what_we_lack(node: Node) -> None:
    refuse_operands(node, k_scale=12, v_scale=13, query_seqlens=16)
    node.refuse_output(3, "output_qk")
    node.ignore("qk_output", "kv_cache_bit_width", "k_norm_epsilon", "q_norm_epsilon")
    for name in ("k_quant_type", "v_quant_type"):
        if node.str_attr(name, "NONE") not in ("NONE", ""):
            raise UnsupportedNodeError(f"attribute {name!r}: a quantised cache is not supported")
    if node.int_attr("sliding_window_cache", 0):
        raise UnsupportedNodeError("attribute 'sliding_window_cache' is not supported")
    if not node.int_attr("causal", 1):
        raise UnsupportedNodeError("attribute 'causal' is 0, which is not supported")


def _normed(node: Node, x: Value, operand: int) -> Value:
    epsilon = node.float_attr("qk_norm_epsilon", 1e-6)
    if node.optional(operand) is None:
        return x
    return rms_norm(node, x, node.input(operand), 3, epsilon)


def _turned(node: Node, rows: _Rows, q: Value, k: Value) -> tuple[Value, Value]:
    """q and k rotated by their positions, if the node asks for it."""
    is_interleaved = bool(node.int_attr("rotary_interleaved", 0))
    if not node.int_attr("do_rotary", 0):
        return q, k
    given = node.optional(9)
    positions = rows.positions(node, q.type.dims[2]) if given is None else given
    cos, sin = (rotary.rows_of(node, node.input(n), positions) for n in (7, 8))
    turned = [rotary.rotated(node, x, cos, sin, is_interleaved=is_interleaved) for x in (q, k)]
    return turned[0], turned[1]


@onnx_op("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(node: Node) -> list[Value]:
    _refuse_what_we_lack(node)
    q, k, v = _query_key_value(node)
    q, k = _normed(node, q, 14), _normed(node, k, 15)
    batch, _, fresh, _ = q.type.dims
    rows = _rows(node, batch, fresh)
    q, k = _turned(node, rows, q, k)
    k, v = _joined(node, rows, 3, k), _joined(node, rows, 4, v)
    scale = node.float_attr("scale", 0.0) or head_depth(q) ** -0.5
    window, cap = node.int_attr("local_window_size", -1), node.float_attr("softcap", 0.0)
    bias, sink = node.optional(10), node.optional(11)
    if sink is None and node.int_attr("smooth_softmax", 0) == 1:
        sink = node.scalar(0.0, q.type.dtype)
    if cap or sink is not None or (rows.lengths is not None and bias is not None):
        keep = _keep(node, rows, fresh, window)
        y = attention_by_parts(node, q, k, v, scale=scale, cap=cap, bias=bias, keep=keep, sink=sink)
    elif rows.lengths is not None:
        y = attention(node, q, k, v, _keep(node, rows, fresh, window), scale=scale)
    else:
        behind = window - 1 if window > 0 else None
        y = attention(node, q, k, v, bias, scale=scale, past=rows.past, ahead=0, behind=behind)
    return [merged_heads(node, y), k, v]


@onnx_op("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(node: Node) -> Value:
    """Imports RotaryEmbedding, with positions [batch, length] per element, or [1] for the first
    element.
    """
    if node.float_attr("scale", 1.0) != 1:
        raise UnsupportedNodeError("attribute 'scale' is not 1, which is not supported")
    node.ignore("is_packed_batching", "rotary_embedding_dim")
    x, positions, cache = node.input(0), node.input(1), node.input(2)
    pairs = cache.type.dims[-1]
    heads = node.int_attr("num_heads", 0)
    is_flat = x.type.rank == 3
    if is_flat:
        width = x.type.dims[2]
        if not isinstance(width, int) or not isinstance(pairs, int):
            raise UnsupportedNodeError("heads whose depth is not known")
        x = split_heads(node, x, heads or width // (2 * pairs), "input")
    elif x.type.rank != 4:
        raise node.error(f"input has rank {x.type.rank}, expected 3 or 4")
    if positions.type.rank == 1:
        steps = node.emit("range", size=x.type.dims[2], start=0, step=1, dtype=I64)
        positions = node.emit("add", node.reshape(positions, ()), steps)
    elif positions.type.rank != 2:
        raise node.error(f"position_ids has rank {positions.type.rank}, expected 1 or 2")
    cos, sin = (rotary.rows_of(node, node.input(number), positions) for number in (2, 3))
    is_interleaved = bool(node.int_attr("interleaved", 0))
    turned = rotary.rotated(node, x, cos, sin, is_interleaved=is_interleaved)
    return merged_heads(node, turned) if is_flat else turned
