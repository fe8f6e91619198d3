"""Einsum by reductions, products and transposes: two operands at a time, from the left.

A label that no later operand and not the result has is summed as soon as it can be; of the labels
of a pair, those in both and needed later are batches, those in both and needed no more are
contracted, which is a matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.base.records import dataclass
from aot.frontends.lib.builder import GraphBuilder, UnsupportedNodeError
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Value


@dataclass(frozen=True)
class _Term:
    """A value whose dims have distinct labels: letters, and "0", "1", ... under an ellipsis."""

    value: Value
    labels: tuple[str, ...]

    def extent(self, label: str) -> Dim:
        return self.value.type.dims[self.labels.index(label)]


def einsum(b: GraphBuilder, equation: str, operands: Sequence[Value]) -> Value:
    """numpy's einsum of `equation`: letters, an ellipsis in each term, an arrow or none.

    Raises:
        CompileError: the equation does not fit the operands.
        UnsupportedNodeError: a diagonal of dims that are not known at compile time.
    """
    sources, target = _parsed(b, equation.replace(" ", ""), operands)
    terms = [_diagonal(b, value, labels) for value, labels in zip(operands, sources, strict=True)]
    terms = _without_ones(b, terms)
    result = terms[0]
    for number, term in enumerate(terms[1:], 1):
        later = {label for t in terms[number + 1 :] for label in t.labels} | set(target)
        result = _product(
            b,
            _summed(b, result, later | set(term.labels)),
            _summed(b, term, later | set(result.labels)),
            later,
        )
    return _ordered(b, _summed(b, result, set(target)), target)


def _parsed(
    b: GraphBuilder, equation: str, operands: Sequence[Value]
) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Labels of each operand and of the result, with ellipses written out."""
    left, arrow, right = equation.partition("->")
    texts = left.split(",")
    if len(texts) != len(operands):
        raise b.error(
            f"equation {equation!r} has {len(texts)} terms, but there are {len(operands)} operands"
        )
    spare = [v.type.rank - len(t.replace("...", "")) for t, v in zip(texts, operands, strict=True)]
    for text, value, count in zip(texts, operands, spare, strict=True):
        if count < 0 or (count > 0 and "..." not in text):
            raise b.error(f"term {text!r} does not fit an operand of rank {value.type.rank}")
    most = max(spare)

    def labels(text: str, count: int) -> tuple[str, ...]:
        before, dots, after = text.partition("...")
        if not all(c.isalpha() for c in before + after):
            raise b.error(
                f"equation {equation!r} has something else than letters and one ellipsis a term"
            )
        # ellipses are aligned at their last dim, as in broadcasting
        return (*before, *(map(str, range(most - count, most)) if dots else ()), *after)

    sources = [labels(t, n) for t, n in zip(texts, spare, strict=True)]
    if arrow:
        target = labels(right, most)
    else:
        letters = [c for source in sources for c in source if c.isalpha()]
        once = sorted(c for c in set(letters) if letters.count(c) == 1)
        target = (*map(str, range(most)), *once)
    known = {label for source in sources for label in source}
    if len(set(target)) != len(target) or not set(target) <= known:
        raise b.error(f"equation {equation!r} has a result with labels twice or unknown ones")
    return sources, target


def _diagonal(b: GraphBuilder, value: Value, labels: Sequence[str]) -> _Term:
    """The value with distinct labels: takes the diagonal of dims with equal labels."""
    names = list(labels)
    while len(set(names)) < len(names):
        label = next(c for c in names if names.count(c) > 1)
        first, second = [d for d, c in enumerate(names) if c == label][:2]
        n, m = value.type.dims[first], value.type.dims[second]
        if n != m:
            raise b.error(f"label {label!r} has extents {n} and {m}")
        rest = [d for d in range(len(names)) if d not in (first, second)]
        moved = b.emit("transpose", value, perm=(*rest, first, second))
        square = dims.multiply(n, n)
        flat = b.reshape(moved, (*moved.type.dims[:-2], square))
        if not isinstance(n, int):
            raise UnsupportedNodeError(
                "the diagonal of dims that depend on the input's shape is not supported"
            )
        value = b.emit(
            "slice",
            flat,
            starts=(0,) * flat.type.rank,
            stops=flat.type.dims,
            steps=(*[1] * (flat.type.rank - 1), n + 1),
        )
        names = [*(names[d] for d in rest), label]
    return _Term(value, tuple(names))


def _without_ones(b: GraphBuilder, terms: Sequence[_Term]) -> list[_Term]:
    """The terms without broadcast labels: those with extent 1 where another term has a larger
    one."""
    result = []
    for term in terms:
        gone = [
            label
            for label in term.labels
            if term.extent(label) == 1
            and any(label in other.labels and other.extent(label) != 1 for other in terms)
        ]
        kept = tuple(c for c in term.labels if c not in gone)
        result.append(_Term(b.reshape(term.value, [term.extent(c) for c in kept]), kept))
    return result


def _summed(b: GraphBuilder, term: _Term, needed: set[str]) -> _Term:
    axes = tuple(d for d, c in enumerate(term.labels) if c not in needed)
    if not axes:
        return term
    return _Term(
        b.emit("reduce_sum", term.value, axes=axes, keepdims=False),
        tuple(c for c in term.labels if c in needed),
    )


def _ordered(b: GraphBuilder, term: _Term, labels: Sequence[str]) -> Value:
    perm = tuple(term.labels.index(c) for c in labels)
    if perm == tuple(range(len(perm))):
        return term.value
    return b.emit("transpose", term.value, perm=perm)


def _product(b: GraphBuilder, left: _Term, right: _Term, needed: set[str]) -> _Term:
    shared = [c for c in left.labels if c in right.labels]
    batch = [c for c in shared if c in needed]
    inner = [c for c in shared if c not in needed]
    rows = [c for c in left.labels if c not in shared]
    columns = [c for c in right.labels if c not in shared]
    labels = (*batch, *rows, *columns)
    ends = [right.extent(c) for c in columns]
    if not inner:
        x = _ordered(b, left, [*batch, *rows])
        y = _ordered(b, right, [*batch, *columns])
        x = b.reshape(x, [*x.type.dims, *[1] * len(columns)])
        y = b.reshape(y, [*y.type.dims[: len(batch)], *[1] * len(rows), *ends])
        return _Term(b.emit("mul", x, y), labels)

    def flat(term: _Term, *groups: Sequence[str]) -> Value:
        """A term with batch dims kept, and each group of labels merged into one dim."""
        value = _ordered(b, term, [*batch, *(c for group in groups for c in group)])
        return b.reshape(
            value,
            [
                *(term.extent(c) for c in batch),
                *(dims.product([term.extent(c) for c in group]) for group in groups),
            ],
        )

    made = b.emit("matmul", flat(left, rows, inner), flat(right, inner, columns))
    shape = [*made.type.dims[: len(batch)], *(left.extent(c) for c in rows), *ends]
    return _Term(b.reshape(made, shape), labels)
