"""Attention in any format: converts heads, windows and masks to the operands of the `attention`
op."""

from __future__ import annotations

from aot.frontends.lib.builder import GraphBuilder, UnsupportedNodeError
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Attr, Value
from aot.ir.types import DType

MAX_DEPTH = 1024  # of which a GPU's shared memory holds a key and a value


def split_heads(b: GraphBuilder, x: Value, count: int, what: str) -> Value:
    """Splits x [batch, length, count * depth] into [batch, count, length, depth].

    Raises:
        UnsupportedNodeError: the last extent is not known, or no multiple of `count`; the message
            names x by `what`.
    """
    batch, length, width = x.type.dims
    if not isinstance(width, int) or width % count:
        raise UnsupportedNodeError(f"{what} has {width} columns for {count} heads")
    split = b.reshape(x, (batch, length, count, width // count))
    return b.emit("transpose", split, perm=(0, 2, 1, 3))


def merged_heads(b: GraphBuilder, x: Value) -> Value:
    """Merges x [batch, heads, length, depth] into [batch, length, heads * depth]."""
    batch, heads, length, depth = x.type.dims
    x = b.emit("transpose", x, perm=(0, 2, 1, 3))
    return b.reshape(x, (batch, length, dims.multiply(heads, depth)))


def head_depth(x: Value) -> int:
    """The last extent of x [batch, heads, length, depth].

    Raises:
        UnsupportedNodeError: it is not known, or more than attention supports.
    """
    depth = x.type.dims[-1]
    if not isinstance(depth, int) or depth > MAX_DEPTH:
        raise UnsupportedNodeError(f"the depth of heads is {depth}, expected {MAX_DEPTH} at most")
    return depth


def _is_near(b: GraphBuilder, q: Value, k: Value, past: Dim, behind: int) -> Value:
    """The sliding-window mask [queries, keys]: whether a key is at most `behind` positions before
    the query."""
    queries, keys = q.type.dims[-2], k.type.dims[-2]
    ends = b.emit("range", size=keys, start=behind, step=1, dtype=DType.I64)
    places = b.emit("range", size=queries, start=past, step=1, dtype=DType.I64)
    return b.emit("less_equal", b.reshape(places, (queries, 1)), ends)


def attention(
    b: GraphBuilder,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    *,
    scale: float | None = None,
    past: Dim = 0,
    ahead: int | None = None,
    behind: int | None = None,
    softcap: float = 0.0,
) -> Value:
    """softmax(scale * q k^T + mask) v of q, k and v [batch, heads, length, depth], in q's dtype.

    Args:
        mask: booleans, true where a key is read, or numbers that are added to the scores; it
            broadcasts to [batch, heads, queries, keys].
        scale: 1 / sqrt(depth) if None.
        past: keys before that of the first query.
        ahead: how many keys past its own a query reads, 0 where attention is causal; all if None.
        behind: how many keys before its own a query reads; all if None.
        softcap: c, where a scaled score s becomes c tanh(s / c); none if 0.
    """
    head_depth(v)
    depth = head_depth(q)
    bias = keep = None
    if mask is not None:
        is_choice = mask.type.dtype is DType.BOOL
        bias, keep = (None, mask) if is_choice else (b.cast(mask, q.type.dtype), None)
    attrs: dict[str, Attr] = {"scale": depth**-0.5 if scale is None else scale}
    if softcap:
        attrs["softcap"] = softcap
    if ahead is not None:
        attrs["offset"] = dims.add(past, ahead)
    if behind is not None:
        near = _is_near(b, q, k, past, behind)
        keep = near if keep is None else b.emit("and", keep, near)
    operands = [q, b.cast(k, q.type.dtype), b.cast(v, q.type.dtype), bias, keep]
    while operands[-1] is None:
        operands.pop()
    return b.emit("attention", *operands, **attrs)


def attention_by_parts(
    b: GraphBuilder,
    q: Value,
    k: Value,
    v: Value,
    *,
    scale: float,
    cap: float = 0.0,
    bias: Value | None = None,
    keep: Value | None = None,
    sink: Value | None = None,
) -> Value:
    """Attention with a cap, masks or sinks that the `attention` op lacks, by smaller ops; scores
    are stored, in f32 at least.

    Args:
        cap: scores are cap * tanh(score / cap) before anything is added; 0 for no cap.
        bias, keep: broadcast to [batch, heads, queries, keys].
        sink: a score more for each head [heads] (or one for all, of rank 0), which takes a part of
            the weights and has no value.
    """
    heads, groups = q.type.dims[1], k.type.dims[1]
    dtype = q.type.dtype
    q, k, v = (b.cast(x, DType.F32) if dtype.bits < 32 else x for x in (q, k, v))
    wide = q.type.dtype
    if groups != heads:
        shared = dims.floor_divide(heads, groups)
        k = _repeated_heads(b, k, shared)
        v = _repeated_heads(b, v, shared)
    q = b.emit("mul", q, scale)
    scores = b.emit("matmul", q, b.emit("transpose", k, perm=(0, 1, 3, 2)))
    if cap:
        tanh = b.emit("tanh", b.emit("mul", scores, 1 / cap))
        scores = b.emit("mul", tanh, cap)
    if bias is not None:
        scores = b.emit("add", scores, b.cast(bias, wide))
    if keep is not None:
        scores = b.emit("where", keep, scores, -3e38)
    if sink is None:
        weights = b.emit("softmax", scores, axis=3)
    else:
        extra = b.cast(sink, wide)
        extra = b.reshape(extra, (*extra.type.dims, 1, 1)) if extra.type.rank else extra
        top = b.emit("reduce_max", scores, axes=(3,), keepdims=True)
        top = b.emit("maximum", top, extra)
        powers = b.emit("exp", b.emit("sub", scores, top))
        total = b.emit("reduce_sum", powers, axes=(3,), keepdims=True)
        total = b.emit("add", total, b.emit("exp", b.emit("sub", extra, top)))
        weights = b.emit("div", powers, total)
    return b.cast(b.emit("matmul", weights, v), dtype)


def _repeated_heads(b: GraphBuilder, x: Value, count: Dim) -> Value:
    """Repeats each group of x [batch, groups, length, depth] `count` times: [batch, heads, ...]."""
    batch, groups, length, depth = x.type.dims
    x = b.reshape(x, (batch, groups, 1, length, depth))
    x = b.emit("broadcast_to", x, shape=(batch, groups, count, length, depth))
    return b.reshape(x, (batch, dims.multiply(groups, count), length, depth))
