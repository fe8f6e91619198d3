"""Attention: heads, windows and masks, brought to what our op says."""

from __future__ import annotations

from aot.frontends.lib.builder import GraphBuilder, UnsupportedNodeError
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Attr, Value
from aot.ir.types import DType

MAX_DEPTH = 1024  # of which a GPU's shared memory holds a key and a value


def split_heads(b: GraphBuilder, x: Value, count: int, what: str) -> Value:
    """x [batch, length, count * depth] as [batch, count, length, depth].

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
    """x [batch, heads, length, depth] as [batch, length, heads * depth]."""
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
    """Which keys are not further behind a query than its window reaches: [queries, keys]."""
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
) -> Value:
    """softmax(scale * q k^T + mask) v of q, k and v [batch, heads, length, depth], in q's dtype.

    Args:
        mask: booleans, true where a key is read, or numbers that are added to the scores; it
            broadcasts to [batch, heads, queries, keys].
        scale: 1 / sqrt(depth) if None.
        past: keys before that of the first query.
        ahead: how many keys past its own a query reads, 0 where attention is causal; all if None.
        behind: how many keys before its own a query reads; all if None.
    """
    head_depth(v)
    depth = head_depth(q)
    bias = keep = None
    if mask is not None:
        is_choice = mask.type.dtype is DType.BOOL
        bias, keep = (None, mask) if is_choice else (b.cast(mask, q.type.dtype), None)
    attrs: dict[str, Attr] = {"scale": depth**-0.5 if scale is None else scale}
    if ahead is not None:
        attrs["offset"] = dims.add(past, ahead)
    if behind is not None:
        near = _is_near(b, q, k, past, behind)
        keep = near if keep is None else b.emit("and", keep, near)
    operands = [q, b.cast(k, q.type.dtype), b.cast(v, q.type.dtype), bias, keep]
    while operands[-1] is None:
        operands.pop()
    return b.emit("attention", *operands, **attrs)
