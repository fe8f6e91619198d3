"""Scaled dot-product attention as one op: scores, softmax, and the weighted sum of values.

The kernel keeps running maxima and sums instead of scores, so that nothing of queries times keys
is ever stored; it is written by hand in aot/kernels/rules/attention/attention.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.ir.dims import Dim, add, floor_divide, modulo, multiply, product
from aot.ir.record import (
    BOOL,
    Attribute,
    Call,
    Constraint,
    Kind,
    Operand,
    OpRecord,
    Sample,
    register,
)
from aot.ir.types import Array, DType, TensorType
from aot.ops.contraction import add_products

F32 = DType.F32
FLOATS = frozenset({F32, DType.F16})
Q, K, V, BIAS, KEEP = range(5)


def score_dims(call: Call) -> tuple[Dim, ...]:
    """The dims of attention's scores: [..., heads, queries, keys]."""
    return (*call.operand(Q).dims[:-1], call.operand(K).dims[-2])


def heads_a_group(call: Call) -> Dim:
    """The number of consecutive query heads that share one key and value head."""
    ours, theirs = call.operand(Q).dims[-3], call.operand(K).dims[-3]
    if ours == theirs:
        return 1
    return ours if theirs == 1 else floor_divide(ours, theirs)


def _ranks_agree(call: Call) -> bool:
    return call.operand(Q).rank == call.operand(K).rank == call.operand(V).rank >= 3


def _keys_fit(call: Call) -> bool:
    q, k, v = (call.operand(n) for n in (Q, K, V))
    same = [(q.dims[-1], k.dims[-1]), *zip(k.dims[:-1], v.dims[:-1], strict=True)]
    same += zip(q.dims[:-3], k.dims[:-3], strict=True)
    return all(call.equal(a, b, "attention: dims of q, k and v agree") for a, b in same)


def _heads_fit(call: Call) -> bool:
    ours, theirs = call.operand(Q).dims[-3], call.operand(K).dims[-3]
    if ours == theirs or theirs == 1:
        return True
    return theirs != 0 and call.equal(
        modulo(ours, theirs), 0, "attention: heads of q are a multiple of those of k"
    )


def _broadcasts(number: int) -> Constraint:
    name = ("bias", "keep")[number - BIAS]

    def holds(call: Call) -> bool:
        if not call.has(number):
            return True
        found, wanted = call.operand(number).dims, score_dims(call)
        return len(found) <= len(wanted) and all(
            a == 1 or call.equal(a, b, f"attention: {name} broadcasts to the scores")
            for a, b in zip(reversed(found), reversed(wanted), strict=False)
        )

    return Constraint(f"{name} broadcasts to [..., heads, queries, keys]", holds)


def _type(call: Call) -> Sequence[TensorType]:
    q, v = call.operand(Q), call.operand(V)
    return [TensorType(q.dtype, (*q.dims[:-1], v.dims[-1]))]


def _scores(call: Call, q: Array, k: Array, bias: Array | None, keep: Array | None) -> Array:
    scores = np.zeros((*q.shape[:-1], k.shape[-2]))
    add_products(scores, q, np.swapaxes(k, -1, -2), call.is_exact)
    scores *= call.float("scale")
    cap = call.float("softcap")
    if cap:
        scores = cap * np.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias
    if keep is not None:
        scores = np.where(keep, scores, call.float("fill"))
    if call.attrs["offset"] is not None:
        offset = call.int("offset")
        query, key = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])
        scores = np.where(key <= query + offset, scores, -np.inf)
    return scores


def _reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    *_, bias, keep = operands = [*inputs, None, None][:5]
    q, k, v = (x.astype(np.float64) for x in operands[:3])
    group = q.shape[-3] // max(k.shape[-3], 1)
    k, v = np.repeat(k, group, -3), np.repeat(v, group, -3)
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    if k.shape[-2] == 0:
        return [out.astype(inputs[0].dtype)]
    with np.errstate(all="ignore"):
        scores = _scores(call, q, k, bias, keep)
        largest = scores.max(-1, keepdims=True)
        weights = np.exp(scores - np.where(largest == -np.inf, 0, largest))
        add_products(out, weights, v, call.is_exact)
        total = np.add.accumulate(weights, -1)[..., -1:]
        out = np.where(total == 0, 0, out / total)
    return [out.astype(inputs[0].dtype)]


def _flops(call: Call) -> Dim:
    """Arithmetic operations of attention: two products, and for each score a scaling and 5
    operations of a softmax (max, subtract, exp, sum, divide)."""
    q, v = call.operand(Q), call.operand(V)
    scores = product([*q.dims[:-1], v.dims[-2]])
    depths = add(q.dims[-1], v.dims[-1])
    return multiply(scores, add(multiply(2, depths), 6))


def _sample(
    q: tuple[int, ...],
    k: tuple[int, ...],
    v: tuple[int, ...],
    bias: tuple[int, ...] | None = None,
    keep: tuple[int, ...] | None = None,
    **attrs: Any,
) -> Sample:
    types = (
        *(TensorType(F32, shape) for shape in (q, k, v)),
        None if bias is None else TensorType(F32, bias),
        None if keep is None else TensorType(DType.BOOL, keep),
    )
    return Sample(types, {"scale": 0.375, **attrs})


ATTENTION = register(
    OpRecord(
        name="attention",
        summary="softmax(q @ k^T * scale + bias) @ v over the last two dims; where keep does not "
        "hold a score is fill, and a query that sees no key gives 0.",
        operands=(
            Operand("q", FLOATS),
            Operand("k", FLOATS, same_as="q"),
            Operand("v", FLOATS, same_as="q"),
            Operand("bias", FLOATS, "optional", same_as="q"),
            Operand("keep", BOOL, "optional"),
        ),
        attributes=(
            Attribute("scale", "float", 1.0),
            Attribute("fill", "float", float("-inf")),
            Attribute("softcap", "float", 0.0, "c: a scaled score s is c tanh(s / c); 0 is none"),
            Attribute("offset", "dim", None, "query i sees keys up to i + offset; all if absent"),
        ),
        constraints=(
            Constraint("q, k and v have one rank, 3 or more", _ranks_agree),
            Constraint(
                "q [..., heads, queries, d], k [..., groups, keys, d] and v [..., groups, keys, e]",
                _keys_fit,
            ),
            Constraint("heads of q are a multiple of those of k", _heads_fit),
            _broadcasts(BIAS),
            _broadcasts(KEEP),
        ),
        infer=_type,
        reference=_reference,
        flops=_flops,
        kind=Kind.ATTENTION,
        samples=(
            _sample((1, 2, 5, 4), (1, 2, 7, 4), (1, 2, 7, 3)),
            _sample((2, 3, 8, 16), (2, 3, 8, 16), (2, 3, 8, 16), (2, 1, 1, 8)),
            _sample((1, 4, 3, 8), (1, 2, 70, 8), (1, 2, 70, 5), (70,), (3, 70), fill=-3.0),
            _sample((2, 37, 6), (2, 9, 6), (2, 9, 33), (1, 37, 9), offset=-2),
            _sample((1, 3, 1, 20), (1, 1, 66, 20), (1, 1, 66, 20), None, (1, 1, 1, 66)),
            _sample((1, 2, 3, 2), (1, 2, 0, 2), (1, 2, 0, 2)),
            _sample((4, 3, 8), (2, 9, 8), (2, 9, 8), (9,), offset=6, softcap=0.75),
        ),
    )
)
