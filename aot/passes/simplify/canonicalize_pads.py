"""Padding that stands before a convolution, as the convolution's own: rules of canonicalize."""

from __future__ import annotations

from aot.ir.graph import Attr, Op, Value
from aot.ir.rewriter import Rewriter
from aot.ops import movement
from aot.passes.simplify.rewriting import definer, make


def pad_inside(op: Op, rewriter: Rewriter) -> Value | None:
    """Zeros around the image, which a transpose may stand behind, as pads of the convolution,
    where each window has some of the image."""
    swap = definer(op.operands[0], movement.TRANSPOSE)
    padded = definer(op.operands[0] if swap is None else swap.operands[0], movement.PAD)
    if padded is None or padded.attrs["mode"] != "constant" or padded.attrs["value"] != 0:
        return None
    rank, weight = op.result.type.rank, op.operands[1]
    order = tuple(range(rank)) if swap is None else _ints(swap.attrs["perm"])
    outer, own, steps = (
        _ints(a) for a in (padded.attrs["pads"], op.attrs["pads"], op.attrs["dilations"])
    )
    kernel = None if weight is None else _ints(weight.type.dims[2:])
    if order is None or outer is None or own is None or steps is None or kernel is None:
        return None
    begins, ends = ([outer[start + d] for d in order] for start in (0, rank))
    pads = [a + b for a, b in zip(own, (*begins[2:], *ends[2:]), strict=True)]
    most = [(k - 1) * d for k, d in zip(kernel, steps, strict=True)] * 2
    if any((*begins[:2], *ends[:2])) or any(p > m for p, m in zip(pads, most, strict=True)):
        return None
    x = padded.operands[0]
    if swap is not None:
        if len(swap.result.users) > 1 or len(padded.result.users) > 1:
            return None  # the transpose would be there twice
        x = rewriter.create(movement.TRANSPOSE, [x], {"perm": order}, swap.origin).result
    return make(op, rewriter, op.record, x, *op.operands[1:], **{**op.attrs, "pads": tuple(pads)})


def _ints(value: Attr) -> tuple[int, ...] | None:
    """A tuple of numbers; None where some are symbols."""
    if not isinstance(value, tuple) or not all(isinstance(n, int) for n in value):
        return None
    return tuple(n for n in value if isinstance(n, int))
