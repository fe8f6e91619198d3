"""Canonicalize's rules for padding of convolutions."""

from __future__ import annotations

from aot.ir.graph import Attr, Op, Value
from aot.ir.rewriter import Rewriter
from aot.ops import movement
from aot.passes.simplify.rewriting import definer, make


def pad_inside(op: Op, rewriter: Rewriter) -> Value | None:
    """Moves a `pad` by zeros, perhaps before a transpose, into the pads of the convolution after
    it, as long as each window overlaps the image.
    """
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


def without_far_taps(op: Op, rewriter: Rewriter) -> Value | None:
    """Removes the first and last taps of a convolution that only ever read padding, as in dilated
    convolutions of small images.
    """
    x, weight = op.operands[0], op.operands[1]
    assert x is not None and weight is not None
    shape = _ints(weight.type.dims)
    strides, dilations, pads = (_ints(op.attrs[a]) for a in ("strides", "dilations", "pads"))
    if shape is None or strides is None or dilations is None or pads is None:
        return None
    spatial = len(strides)
    starts, stops, own = [0] * len(shape), list(shape), list(pads)
    for d, (step, apart) in enumerate(zip(strides, dilations, strict=True)):
        size, windows = x.type.dims[2 + d], op.result.type.dims[2 + d]
        if not isinstance(size, int) or not isinstance(windows, int):
            continue
        places = [k * apart - pads[d] for k in range(shape[2 + d])]
        used = [k for k, at in enumerate(places) if _meets(size, windows, step, at)]
        if not used:
            continue
        left_out = len(places) - 1 - used[-1]
        begin, end = pads[d] - used[0] * apart, pads[spatial + d] - left_out * apart
        if begin >= 0 and end >= 0:
            starts[2 + d], stops[2 + d] = used[0], used[-1] + 1
            own[d], own[spatial + d] = begin, end
    if own == list(pads):
        return None
    part = {"starts": tuple(starts), "stops": tuple(stops), "steps": (1,) * len(shape)}
    near = rewriter.create(movement.SLICE, [weight], part, op.origin).result
    return make(
        op, rewriter, op.record, x, near, *op.operands[2:], **{**op.attrs, "pads": tuple(own)}
    )


def _meets(size: int, windows: int, step: int, place: int) -> bool:
    """Whether a tap, at `place` for the first of `windows` windows that are `step` apart, is inside
    the image for any window."""
    first = max(0, -(place // step))
    return first < windows and place + first * step < size


def _ints(value: Attr) -> tuple[int, ...] | None:
    """The tuple, if all its elements are numbers; None where some are symbols."""
    if not isinstance(value, tuple) or not all(isinstance(n, int) for n in value):
        return None
    return tuple(n for n in value if isinstance(n, int))
