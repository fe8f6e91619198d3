"""Rotary position embeddings: rotates pairs of a head's elements by angles that depend on the
position."""

from __future__ import annotations

from aot.frontends.lib.builder import GraphBuilder, UnsupportedNodeError
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import Array, DType


def positions_from(b: GraphBuilder, start: Dim, count: Dim) -> Value:
    """start, start + 1, ...: i64[count]."""
    return b.emit("range", size=count, start=start, step=1, dtype=DType.I64)


def angles(
    b: GraphBuilder, positions: Value, frequencies: Array, factor: float = 1.0
) -> tuple[Value, Value]:
    """Cosines and sines f32[..., pairs] of positions [...], times a factor.

    Args:
        frequencies: f32[pairs], radians a position.
    """
    column = b.reshape(b.cast(positions, DType.F32), (*positions.type.dims, 1))
    turned = b.emit("mul", column, b.constant(frequencies.reshape(1, -1)))
    found = [b.emit(op, turned) for op in ("cos", "sin")]
    if factor != 1:
        found = [b.emit("mul", x, b.scalar(factor, DType.F32)) for x in found]
    return found[0], found[1]


def _part(b: GraphBuilder, x: Value, start: int, stop: int, step: int = 1) -> Value:
    """Every step-th element of the last dim from start to stop."""
    dims_before = x.type.dims[:-1]
    return b.emit(
        "slice",
        x,
        starts=(*(0 for _ in dims_before), start),
        stops=(*dims_before, stop),
        steps=(*(1 for _ in dims_before), step),
    )


def rotated(
    b: GraphBuilder, x: Value, cos: Value, sin: Value, *, is_interleaved: bool = False
) -> Value:
    """x [..., depth] with its first 2 * n elements rotated in pairs, where n is the last extent of
    cos and sin.

    Args:
        cos, sin: of the angles, broadcasting to [..., n]; computed with in x's dtype.
        is_interleaved: pairs are neighbours; else the second of each lies n elements behind.

    Raises:
        UnsupportedNodeError: an extent is not known, or there are more pairs than elements.
    """
    depth, pairs = x.type.dims[-1], cos.type.dims[-1]
    if not isinstance(depth, int) or not isinstance(pairs, int) or 2 * pairs > depth:
        raise UnsupportedNodeError(f"{pairs} angles for heads of {depth} elements")
    cos, sin = b.cast(cos, x.type.dtype), b.cast(sin, x.type.dtype)
    width = 2 * pairs
    if is_interleaved:
        first, second = _part(b, x, 0, width, 2), _part(b, x, 1, width, 2)
    else:
        first, second = _part(b, x, 0, pairs), _part(b, x, pairs, width)
    real = b.emit("sub", b.emit("mul", first, cos), b.emit("mul", second, sin))
    imaginary = b.emit("add", b.emit("mul", second, cos), b.emit("mul", first, sin))
    if is_interleaved:
        columns = (*first.type.dims, 1)
        real, imaginary = b.reshape(real, columns), b.reshape(imaginary, columns)
    parts = [b.emit("concat", real, imaginary, axis=real.type.rank - 1)]
    parts[0] = b.reshape(parts[0], (*x.type.dims[:-1], width))
    if width < depth:
        parts.append(_part(b, x, width, depth))
    return parts[0] if len(parts) == 1 else b.emit("concat", *parts, axis=x.type.rank - 1)


def rows_of(b: GraphBuilder, cache: Value, positions: Value) -> Value:
    """Rows of a cache [most, n] at positions [length] or [batch, length], shaped [length, n] or
    [batch, 1, length, n] to broadcast with heads [batch, heads, length, n]."""
    rows = b.emit("gather", cache, positions, axis=0)
    if positions.type.rank == 1:
        return rows
    batch, length, pairs = rows.type.dims
    return b.reshape(rows, (batch, 1, length, pairs))
