"""Non-maximum suppression: drops boxes that overlap one with a better score.

Its kernel is in aot/kernels/rules/lines/suppression.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.ir.dims import ceil_divide, multiply
from aot.ir.record import (
    Attribute,
    Call,
    Constraint,
    Kind,
    Need,
    Operand,
    OpRecord,
    Sample,
    register,
)
from aot.ir.types import Array, DType, TensorType
from aot.ops.arg import DTYPE, DTYPE_FITS, position_dtype
from aot.ops.indexing import needs_of_i32

F32, I32, I64 = DType.F32, DType.I32, DType.I64
BOXES, SCORES, MOST, OVERLAP, LEAST = range(5)  # operands
CHOSEN, COUNTS, HEAP, HEAP_SCORES, KEPT = range(5)  # results
ROOM = 64  # boxes that are compared at a time: there is room for a multiple of them
CORNERS = 5  # of a box that was chosen: its least and largest y and x, and its area


def _is_scalar(call: Call) -> bool:
    numbers = [n for n in (MOST, OVERLAP, LEAST) if call.has(n)]
    return all(call.operand(n).dims == () for n in numbers)


def _fit(call: Call) -> bool:
    boxes, scores = call.operand(BOXES), call.operand(SCORES)
    if boxes.rank != 3 or scores.rank != 3:
        return False
    reason = "non_max_suppression: boxes and scores are of the same boxes of the same images"
    pairs = ((boxes.dims[0], scores.dims[0]), (boxes.dims[1], scores.dims[2]))
    return all(call.equal(a, b, reason) for a, b in ((boxes.dims[2], 4), *pairs))


def _types(call: Call) -> Sequence[TensorType]:
    images, classes, count = call.operand(SCORES).dims
    rows = (images, classes)
    return [
        TensorType(position_dtype(call), (*rows, call.dim("limit"))),
        TensorType(position_dtype(call), rows),
        TensorType(I32, (*rows, count)),
        TensorType(F32, (*rows, count)),
        TensorType(F32, (*rows, CORNERS, multiply(ceil_divide(call.dim("limit"), ROOM), ROOM))),
    ]


def _needs(call: Call) -> Sequence[Need]:
    """The conditions of the heap, which keeps box positions in i32."""
    return needs_of_i32(call, call.operand(BOXES).dims[1:2])


def _corners(boxes: Array, is_centered: bool) -> Array:
    """Least and greatest y, least and greatest x, and area of each of boxes[N, 4]."""
    if is_centered:
        x, y, width, height = boxes.T
        half = np.float32(0.5)
        sides = [y - height * half, y + height * half, x - width * half, x + width * half]
    else:
        sides = [f(boxes[:, d], boxes[:, d + 2]) for d in (0, 1) for f in (np.minimum, np.maximum)]
    area = (sides[1] - sides[0]) * (sides[3] - sides[2])
    return np.stack([*sides, area]).astype(np.float32)


def _overlaps(box: Array, others: Array, threshold: np.float32) -> bool:
    """Whether a box, given by its corners, overlaps one of others[5, n] by more than the threshold
    (intersection over union)."""
    sides = [np.minimum(box[d], others[d]) - np.maximum(box[d - 1], others[d - 1]) for d in (1, 3)]
    both = sides[0] * sides[1]
    union = box[4] + others[4] - both
    is_real = (sides[0] > 0) & (sides[1] > 0) & (both > 0) & (box[4] > 0) & (others[4] > 0)
    with np.errstate(all="ignore"):
        return bool((is_real & (union > 0) & (both / union > threshold)).any())


def _row(
    call: Call, boxes: Array, scores: Array, most: int, threshold: np.float32, least: Array | None
) -> list[int]:
    """Indices of the chosen boxes of one image and class."""
    corners = _corners(boxes, bool(call.attrs["centered"]))
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > least]
    kept: list[int] = []
    for candidate in order:
        if len(kept) >= most:
            break
        if not _overlaps(corners[:, candidate], corners[:, kept], threshold):
            kept.append(int(candidate))
    return kept


def _reference(call: Call, inputs: Sequence[Any]) -> Sequence[Array]:
    boxes, scores, most, overlap = inputs[:4]
    least = inputs[LEAST] if len(inputs) > LEAST else None
    chosen, counts, *heap, kept = (np.zeros(t.shape, t.dtype.numpy) for t in call.result_types)
    limit = chosen.shape[-1]
    for image, number in np.ndindex(*counts.shape):
        row = scores[image, number]
        found = _row(call, boxes[image], row, min(int(most), limit), np.float32(overlap), least)
        chosen[image, number, : len(found)] = found
        corners = _corners(boxes[image], bool(call.attrs["centered"]))
        kept[image, number, :, : len(found)] = corners[:, found]
        counts[image, number] = len(found)
    return [chosen, counts, *heap, kept]


def _sample(boxes: tuple[int, ...], classes: int, limit: int, **attrs: Any) -> Sample:
    scores = (boxes[0], classes, boxes[1])
    scalars = (TensorType(I64, ()), TensorType(F32, ()), TensorType(F32, ()))
    operands = (TensorType(F32, boxes), TensorType(F32, scores), *scalars)
    return Sample(operands, {"limit": limit, "dtype": I32, **attrs}, low=0, high=1)


NON_MAX_SUPPRESSION = register(
    OpRecord(
        name="non_max_suppression",
        summary="The boxes with the best scores of each image and class, without those that "
        "overlap an earlier one by more than `overlap` of their union, and without scores "
        "that are not above `least`: at most `most` positions, best first, then zeros; "
        "and their number. The other results are work memory: zeros, and the least and "
        "largest y and x and the areas of the chosen boxes.",
        operands=(
            Operand("boxes", frozenset({F32})),
            Operand("scores", frozenset({F32})),
            Operand("most", frozenset({I32, I64}), clamps=True),
            Operand("overlap", frozenset({F32})),
            Operand("least", frozenset({F32}), "optional"),
        ),
        attributes=(
            Attribute("limit", "dim", doc="how many positions there is room for"),
            Attribute("centered", "bool", False, "boxes are x, y, width, height; or two corners"),
            DTYPE,
        ),
        constraints=(
            DTYPE_FITS,
            Constraint("most, overlap and least are scalars", _is_scalar),
            Constraint("boxes are [images, n, 4] and scores [images, classes, n]", _fit),
        ),
        infer=_types,
        needs=_needs,
        reference=_reference,
        kind=Kind.SORT,
        room=(HEAP, HEAP_SCORES, KEPT),
        samples=(
            _sample((1, 6, 4), 2, 3),
            _sample((2, 9, 4), 1, 9, centered=True),
            _sample((1, 5, 4), 1, 3, dtype=I64),
        ),
    )
)
