"""Depth-to-space and space-to-depth."""

from __future__ import annotations

from aot.frontends.lib.builder import GraphBuilder
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value


def depth_to_space(b: GraphBuilder, x: Value, size: int, *, is_block_first: bool) -> Value:
    """x [N, C, H, W] as [N, C / size², H * size, W * size].

    Args:
        is_block_first: channels count first over the block, then over the result's channels.
    """
    n, c, h, w = x.type.dims
    inner = dims.floor_divide(c, size * size)
    whole = dims.multiply(inner, size * size)
    if isinstance(c, int) and whole != c:
        raise b.error(f"x has {c} channels, not a multiple of {size * size}")
    split: tuple[Dim, ...]
    if is_block_first:
        split, perm = (n, size, size, inner, h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, perm = (n, inner, size, size, h, w), (0, 1, 4, 2, 5, 3)
    moved = b.emit("transpose", b.reshape(x, split), perm=perm)
    return b.reshape(moved, (n, inner, dims.multiply(h, size), dims.multiply(w, size)))


def space_to_depth(b: GraphBuilder, x: Value, size: int) -> Value:
    """x [N, C, H, W] as [N, size² * C, H / size, W / size]: channels count first over the block."""
    n, c, h, w = x.type.dims
    rows, columns = dims.floor_divide(h, size), dims.floor_divide(w, size)
    split = b.reshape(x, (n, c, rows, size, columns, size))
    moved = b.emit("transpose", split, perm=(0, 3, 5, 1, 2, 4))
    return b.reshape(moved, (n, dims.multiply(c, size * size), rows, columns))
