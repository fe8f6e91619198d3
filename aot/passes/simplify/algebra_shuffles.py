"""Rules of algebra for channel shuffles: permutations of channels are moved into constants.

Owns the equations that take a permutation of channels past a depthwise convolution, and into the
weights of one that sums over all channels. A grouped convolution loads through what is left.
"""

from __future__ import annotations

from aot.base.records import dataclass
from aot.ir.graph import Op, Value
from aot.ir.rewriter import Rewriter
from aot.ops import contraction, elementwise, movement
from aot.passes.simplify.algebra_terms import emit, is_along, sole, will_fold
from aot.passes.simplify.bounds import REORDERS
from aot.passes.simplify.rewriting import Rule, make


@dataclass(frozen=True)
class _Shuffle:
    """A channel shuffle: `reshape(transpose(reshape(x, [N, factors..., spatial...]), 0, order...,
    ...), dims of x)`.

    Attributes:
        x: what is shuffled.
        factors: extents that the channels are split into.
        order: where each dim of the split channels comes from, by its number among them.
    """

    x: Value
    factors: tuple[int, ...]
    order: tuple[int, ...]

    def apply(self, op: Op, rewriter: Rewriter, value: Value, *, dim: int = 1) -> Value:
        """`value` with dim `dim` shuffled."""
        return _permuted(op, rewriter, value, dim, self.factors, self.order)

    def undo(self, op: Op, rewriter: Rewriter, value: Value, *, dim: int) -> Value:
        """`value` with dim `dim` unshuffled: the inverse of `apply`."""
        factors = tuple(self.factors[n] for n in self.order)
        inverse = tuple(self.order.index(n) for n in range(len(self.order)))
        return _permuted(op, rewriter, value, dim, factors, inverse)


def _permuted(
    op: Op,
    rewriter: Rewriter,
    value: Value,
    dim: int,
    factors: tuple[int, ...],
    order: tuple[int, ...],
) -> Value:
    extents, count = value.type.dims, len(factors)
    split = (*extents[:dim], *factors, *extents[dim + 1 :])
    perm = (*range(dim), *(dim + n for n in order), *range(dim + count, len(split)))
    apart = emit(op, rewriter, movement.RESHAPE, value, shape=split)
    moved = emit(op, rewriter, movement.TRANSPOSE, apart, perm=perm)
    return emit(op, rewriter, movement.RESHAPE, moved, shape=extents)


def _shuffle_of(value: Value | None) -> _Shuffle | None:
    """The shuffle that makes `value`, if it has a single user; else None."""
    joined = sole(value, movement.RESHAPE)
    moved = sole(joined.operands[0], movement.TRANSPOSE) if joined is not None else None
    apart = sole(moved.operands[0], movement.RESHAPE) if moved is not None else None
    x = apart.operands[0] if apart is not None else None
    if joined is None or moved is None or apart is None or x is None:
        return None
    if x.type != joined.result.type or x.type.rank < 3:
        return None
    dims, split = x.type.dims, apart.result.type.dims
    count = len(split) - len(dims) + 1
    factors, perm = split[1 : 1 + count], moved.attrs["perm"]
    assert isinstance(perm, tuple)
    order = tuple(p - 1 for p in perm[1 : 1 + count] if isinstance(p, int))
    if (
        count < 2
        or (split[0], *split[1 + count :]) != (dims[0], *dims[2:])
        or sorted(order) != list(range(count))
        or perm != (0, *(n + 1 for n in order), *range(1 + count, len(split)))
    ):
        return None
    known = tuple(f for f in factors if isinstance(f, int))
    return _Shuffle(x, known, order) if len(known) == count else None


def _will_take_scale(op: Op) -> bool:
    """Whether a scale or shift follows that other rules will merge into the weights first; the
    result is matched again."""
    users = op.result.users
    return (
        len(users) == 1
        and users[0].record in (elementwise.MUL, elementwise.ADD)
        and users[0].operands[0] is op.result
        and is_along(users[0].operands[1], op.result.type.rank, 1)
    )


def _past_depthwise(op: Op, rewriter: Rewriter) -> Value | None:
    x, weight, *biases = op.operands
    if x is None or weight is None or not will_fold(weight) or _will_take_scale(op):
        return None
    channels = x.type.dims[1]
    if not op.attrs["group"] == channels == weight.type.dims[0] or weight.type.dims[1] != 1:
        return None
    if not all(bias is None or will_fold(bias) for bias in biases):
        return None
    shuffle = _shuffle_of(x)
    if shuffle is None:
        return None
    weight = shuffle.undo(op, rewriter, weight, dim=0)
    biases = [b if b is None else shuffle.undo(op, rewriter, b, dim=0) for b in biases]
    made = make(op, rewriter, op.record, shuffle.x, weight, *biases, **op.attrs)
    return None if made is None else shuffle.apply(op, rewriter, made)


def _into_weights(op: Op, rewriter: Rewriter) -> Value | None:
    x, weight, *bias = op.operands
    if weight is None or op.attrs["group"] != 1 or not will_fold(weight):
        return None
    shuffle = _shuffle_of(x)
    if shuffle is None:
        return None
    weight = shuffle.undo(op, rewriter, weight, dim=1)
    return make(op, rewriter, op.record, shuffle.x, weight, *bias, **op.attrs)


RULES: tuple[Rule, ...] = (
    Rule(
        contraction.CONV,
        "conv(p(x), w, b) -> p(conv(x, p'(w), p'(b))), depthwise, p a permutation of channels and "
        "p' its inverse",
        _past_depthwise,
    ),
    Rule(
        contraction.CONV,
        "conv(p(x), w, b) -> conv(x, p'(w), b), of one group, p' along the channels of w",
        _into_weights,
        REORDERS,
    ),
)
