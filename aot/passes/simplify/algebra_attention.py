"""Rules of algebra that recognise attention in the forms in which exporters write it.

Scales stand before or after the product, on queries, keys or both; masks are added or chosen; keys
come transposed; heads are repeated for grouped queries.
"""

from __future__ import annotations

from dataclasses import replace

from aot.base.records import dataclass
from aot.ir.dims import Dim
from aot.ir.graph import Op, Value, is_kept
from aot.ir.rewriter import Rewriter
from aot.ops import contraction, elementwise, movement, reduction
from aot.ops.attention import ATTENTION, FLOATS, K, Q, V
from aot.passes.simplify import canonicalize
from aot.passes.simplify.algebra_terms import (
    MAX_STEPS,
    emit,
    number_factor,
    number_of,
    reshaped,
    sole,
    will_fold,
)
from aot.passes.simplify.bounds import REORDERS, replaces
from aot.passes.simplify.rewriting import Rule, definer, make

# Beyond that many numbers a head, tiles of keys and values leave the nearest cache, and matrix
# products of their own are as good.
MAX_DEPTH = 128


@dataclass(frozen=True)
class _Scores:
    """Attention scores: `where(keep, scale * (q @ keys) + biases, fill)`; if `is_flipped`, keep is
    negated.

    Attributes:
        lead: dims before queries and keys as the masks have them, where heads and batch may be two
            dims that are one in the products; None if there is no mask.
    """

    q: Value
    keys: Value
    scale: float = 1.0
    biases: tuple[Value, ...] = ()
    keep: Value | None = None
    is_flipped: bool = False
    fill: float = float("-inf")
    lead: tuple[Dim, ...] | None = None

    def fits_mask(self, op: Op) -> bool:
        """Whether a mask that `op` applies has the same leading dims as earlier masks."""
        return self.keep is None and self.lead in (None, op.result.type.dims[:-2])


def _scores_of(value: Value | None, depth: int = MAX_STEPS) -> _Scores | None:
    """`value` matched as attention scores, if its intermediate values have no other users; else
    None."""
    if value is None or depth == 0:
        return None
    for record, step in _STEPS:
        op = sole(value, record)
        if op is not None:
            found = step(op, depth - 1)
            if found is not None:
                return found
    return None


def _product(op: Op, _: int) -> _Scores | None:
    q, keys = op.operands
    return None if q is None or keys is None else _Scores(q, keys)


def _has_dims(value: Value | None, op: Op) -> bool:
    return value is not None and value.type.dims == op.result.type.dims


def _scaled(op: Op, depth: int) -> _Scores | None:
    scaled = number_factor(op)
    if scaled is None or not _has_dims(scaled[0], op):
        return None
    found = _scores_of(scaled[0], depth)
    if found is None or found.lead is not None:
        return None
    return replace(found, scale=found.scale * scaled[1])


def _biased(op: Op, depth: int) -> _Scores | None:
    for inner, bias in (op.operands, op.operands[::-1]):
        found = _scores_of(inner, depth) if _has_dims(inner, op) else None
        if found is not None and found.fits_mask(op) and bias is not None:
            lead = op.result.type.dims[:-2]
            return replace(found, biases=(*found.biases, bias), lead=lead)
    return None


def _chosen(op: Op, depth: int) -> _Scores | None:
    condition, then, other = op.operands
    for inner, constant, is_flipped in ((then, other, False), (other, then, True)):
        number = number_of(constant)
        found = _scores_of(inner, depth) if number is not None and _has_dims(inner, op) else None
        if found is not None and number is not None and found.fits_mask(op):
            made = replace(found, keep=condition, is_flipped=is_flipped, fill=number)
            return replace(made, lead=op.result.type.dims[:-2])
    return None


def _widened(op: Op, depth: int) -> _Scores | None:
    """The scores under a widening cast, as the kernel accumulates in f32 for any operand dtype."""
    inner = op.operands[0]
    if inner is None or not is_kept(inner.type.dtype, op.result.type.dtype):
        return None
    return _scores_of(inner, depth)


def _folded(op: Op, depth: int) -> _Scores | None:
    """The scores under a reshape between separate and merged head and batch dims: products may have
    them merged while masks have them apart.
    """
    inner = op.operands[0]
    if inner is None or inner.type.dims[-2:] != op.result.type.dims[-2:]:
        return None
    return _scores_of(inner, depth)


_STEPS = (
    (contraction.MATMUL, _product),
    (elementwise.MUL, _scaled),
    (elementwise.DIV, _scaled),
    (elementwise.ADD, _biased),
    (elementwise.WHERE, _chosen),
    (elementwise.CAST, _widened),
    (movement.RESHAPE, _folded),
)


def _without_scale(value: Value) -> tuple[Value, float]:
    """(value without constant factors, their product), where the factors have no other use."""
    scale = 1.0
    while (op := sole(value, elementwise.MUL) or sole(value, elementwise.DIV)) is not None:
        found = number_factor(op)
        if found is None or found[0].type.dims != value.type.dims:
            break
        value, scale = found[0], scale * found[1]
    return value, scale


def _swapped(op: Op, rewriter: Rewriter, value: Value) -> Value:
    """`value` with its last two dims swapped; an inverse transpose before it cancels."""
    rank = value.type.rank
    inner = definer(value, movement.TRANSPOSE)
    if inner is not None:
        perm = inner.attrs["perm"]
        assert isinstance(perm, tuple)
        order = (*perm[:-2], perm[-1], perm[-2])
        if order == tuple(range(rank)):
            assert inner.operands[0] is not None
            return inner.operands[0]
        return emit(op, rewriter, movement.TRANSPOSE, inner.operands[0], perm=order)
    merged = definer(value, movement.RESHAPE)
    source = merged.operands[0] if merged is not None else None
    turned = definer(source, movement.TRANSPOSE)
    # heads and batch are one dim while keys are transposed
    if source is not None and turned is not None and source.type.dims[-2:] == value.type.dims[-2:]:
        back = _swapped(op, rewriter, source)
        shape = (*value.type.dims[:-2], value.type.dims[-1], value.type.dims[-2])
        return reshaped(op, rewriter, back, shape)
    order = (*range(rank - 2), rank - 1, rank - 2)
    return emit(op, rewriter, movement.TRANSPOSE, value, perm=order)


def _softmax_of(weights: Value, v: Value) -> Op | None:
    """The softmax that `weights` are, through a cast to the dtype of `v`, and a replacement of NaN
    by 0 for queries without keys, which the op does anyway; None if there is none."""
    folded = sole(weights, movement.RESHAPE)
    inner = folded.operands[0] if folded is not None else None
    if inner is not None and inner.type.dims[-2:] == weights.type.dims[-2:]:
        weights = inner
    rounded = sole(weights, elementwise.CAST)
    wide = rounded.operands[0] if rounded is not None else None
    if wide is not None and is_kept(v.type.dtype, wide.type.dtype):
        weights = wide
    safe = sole(weights, elementwise.WHERE)
    if safe is not None:
        is_nan, zero, inner = safe.operands
        check = sole(is_nan, elementwise.IS_NAN)
        if check is None or check.operands[0] is not inner or number_of(zero) != 0:
            return None
        softmax = definer(inner, reduction.SOFTMAX)
        if softmax is None or set(softmax.result.users) != {check, safe}:
            return None
    else:
        softmax = sole(weights, reduction.SOFTMAX)
    if softmax is None or softmax.attrs["axis"] != softmax.result.type.rank - 1:
        return None
    return softmax


def _is_fit(scores: _Scores, v: Value) -> bool:
    """Whether the attention kernel supports these heads and is faster."""
    q, keys = scores.q.type, scores.keys.type
    if not q.rank == keys.rank == v.type.rank >= 3 or q.dtype not in FLOATS:
        return False
    if not q.dims[:-2] == keys.dims[:-2] == v.type.dims[:-2] or keys.dims[-1] != v.type.dims[-2]:
        return False
    depths = (q.dims[-1], v.type.dims[-1])
    if not all(isinstance(n, int) and n <= MAX_DEPTH for n in depths):
        return False
    if any(bias.type.dtype is not q.dtype for bias in scores.biases):
        return False
    # products with weights are better off with panels
    return not will_fold(scores.keys) and not will_fold(v)


def _attention(op: Op, rewriter: Rewriter) -> Value | None:
    weights, v = op.operands
    assert weights is not None and v is not None
    softmax = _softmax_of(weights, v)
    if softmax is None:
        return None
    scores = _scores_of(softmax.operands[0])
    if scores is None or not _is_fit(scores, v):
        return None
    q, q_scale = _without_scale(scores.q)
    keys, k_scale = _without_scale(scores.keys)
    k = _swapped(op, rewriter, keys)
    lead = op.result.type.dims[:-2] if scores.lead is None else scores.lead
    q, k, v = (reshaped(op, rewriter, x, (*lead, *x.type.dims[-2:])) for x in (q, k, v))
    bias = scores.biases[0] if scores.biases else None
    for other in scores.biases[1:]:
        bias = emit(op, rewriter, elementwise.ADD, bias, other)
    keep = scores.keep
    if scores.is_flipped:
        keep = emit(op, rewriter, elementwise.NOT, keep)
    masks = [bias] if keep is None else [bias, keep]
    if masks == [None]:
        masks = []
    scale = scores.scale * q_scale * k_scale
    attrs = {"scale": scale, "fill": scores.fill}
    if lead == op.result.type.dims[:-2]:
        return make(op, rewriter, ATTENTION, q, k, v, *masks, **attrs)
    made = emit(op, rewriter, ATTENTION, q, k, v, *masks, **attrs)
    return make(op, rewriter, movement.RESHAPE, made, shape=op.result.type.dims)


def _one_of_each_group(op: Op, rewriter: Rewriter, value: Value | None) -> Value | None:
    """x [..., groups, keys, d], where `value` repeats each group of x for several heads; None
    otherwise."""
    merged = definer(value, movement.RESHAPE)
    repeated = definer(merged.operands[0], movement.BROADCAST_TO) if merged is not None else None
    source = repeated.operands[0] if repeated is not None else None
    if value is None or repeated is None or source is None:
        return None
    given, wide = source.type.dims, repeated.result.type.dims
    if len(given) != len(wide) or len(wide) != value.type.rank + 1 or given[-3] != 1:
        return None
    if (*given[:-3], *given[-2:]) != (*wide[:-3], *wide[-2:]):
        return None
    if (*wide[:-4], *wide[-2:]) != (*value.type.dims[:-3], *value.type.dims[-2:]):
        return None
    return reshaped(op, rewriter, source, (*given[:-3], *given[-2:]))


def _grouped(op: Op, rewriter: Rewriter) -> Value | None:
    k = _one_of_each_group(op, rewriter, op.operands[K])
    v = _one_of_each_group(op, rewriter, op.operands[V])
    if k is None or v is None or k.type.dims[:-1] != v.type.dims[:-1]:
        return None
    return make(op, rewriter, ATTENTION, op.operands[Q], k, v, *op.operands[3:], **op.attrs)


RULES: tuple[Rule, ...] = (
    Rule(
        contraction.MATMUL,
        "softmax(q @ k^T * scale + bias) @ v -> attention(q, k, v, bias)",
        _attention,
        replaces(4),
    ),
    Rule(
        ATTENTION,
        "attention(q, k, v), heads of k and v repeated -> attention(q, k, v), heads in groups",
        _grouped,
        REORDERS,
    ),
    # what becomes of heads and batch after it is one step again
    *(rule for rule in canonicalize.RULES if rule.record is movement.RESHAPE),
)
