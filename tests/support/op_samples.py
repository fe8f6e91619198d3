"""Arrays for the op table's samples, and a slow evaluator of what a record says it computes.

The evaluator runs `Compute` expressions over all result elements at once and reductions one
step at a time; it shares nothing with kernels but the meaning of single nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import pytest

from aot.ir import expr as e
from aot.ir.dims import evaluate
from aot.ir.record import Call, OpRecord, Sample
from aot.ir.types import Array, DType, TensorType
from aot.kernels.ir import scalar

_REDUCERS = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
}


@contextmanager
def naming(what: str) -> Iterator[None]:
    """An error in it says what it is about."""
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise


def by_op(cases: Sequence[Any]) -> dict[str, list[tuple[str, OpRecord, Sample]]]:
    """Of each op its cases, which are parameters of pytest: (id, record, sample)."""
    found: dict[str, list[tuple[str, OpRecord, Sample]]] = {}
    for case in cases:
        record, sample = case.values
        found.setdefault(record.name, []).append((case.id, record, sample))
    return found


def each_sample(cases: Sequence[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test of `record` and `sample`, parameters of pytest, as one test an op, which runs it on
    all that the op has: thousands of tests cost more than what they test."""
    samples = by_op(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        def run(op: str) -> None:
            for name, record, sample in samples[op]:
                with naming(name):
                    test(record, sample)

        for fact in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(run, fact, getattr(test, fact))
        made: Callable[..., None] = pytest.mark.parametrize("op", samples)(run)
        return made

    return decorate


def draw(type: TensorType, low: float, high: float, rng: np.random.Generator) -> Array:
    """Random elements of `type` in [low, high]."""
    if type.dtype is DType.BOOL:
        return np.asarray(rng.integers(0, 2, type.shape), bool)
    if type.dtype.is_float:
        return np.asarray(rng.uniform(low, high, type.shape), type.dtype.numpy)
    if not type.dtype.is_signed:
        low = max(low, 0)
    return np.asarray(rng.integers(int(low), int(high) + 1, type.shape), type.dtype.numpy)


def draw_all(sample: Sample, seed: int = 0) -> list[Array | None]:
    """Operand arrays of a sample; None where an operand is absent."""
    rng = np.random.default_rng(seed)
    return [None if t is None else draw(t, sample.low, sample.high, rng) for t in sample.operands]


# a load, the indices that it reads at, and where it reads at all
Watch = Callable[[e.Load, list[Array], Array], None]


def evaluate_compute(
    call: Call,
    inputs: list[Any],
    symbols: Mapping[str, int] | None = None,
    watch: Watch | None = None,
) -> list[Array]:
    """The results of a call by its record's `compute`; `symbols` are the values of its dims'.

    Args:
        watch: is told of every load.

    Raises:
        IndexError: an unguarded load is outside its operand.
    """
    assert call.record.compute is not None
    results = []
    for compute, type in zip(call.record.compute(call), call.result_types, strict=True):
        shape = tuple(evaluate(d, symbols or {}) for d in type.dims)
        grid = np.indices(shape) if shape else []
        variables = {v: np.asarray(g) for v, g in zip(compute.indices, grid, strict=True)}
        value = np.asarray(
            _Scope(inputs, variables, None, symbols or {}, watch).value(compute.value)
        )
        assert value.dtype == type.dtype.numpy
        results.append(np.array(np.broadcast_to(value, shape)))
    return results


class _Scope:
    """Values of nodes under given loop variables; what needs fewer variables is found outside."""

    def __init__(
        self,
        inputs: list[Any],
        variables: dict[e.Var, Array],
        outer: _Scope | None,
        symbols: Mapping[str, int],
        watch: Watch | None = None,
    ) -> None:
        self.inputs = inputs
        self.watch = watch
        self.symbols = symbols
        self.variables = variables
        self.outer = outer
        self.memo: dict[e.Expr, Array] = {}

    def value(self, node: e.Expr) -> Array:
        if self.outer is not None and not (e.free_vars(node) & self.variables.keys()):
            return self.outer.value(node)
        if node not in self.memo:
            self.memo[node] = self._compute(node)
        return self.memo[node]

    def _compute(self, node: e.Expr) -> Array:
        match node:
            case e.Var():
                return self.variables[node]
            case e.Size():
                return np.asarray(evaluate(node.dim, self.symbols))
            case e.Load():
                return self._load(node)
            case e.Reduce():
                return self._reduce(node)
        args = [self.value(child) for child in e.children(node)]
        computed = scalar.apply(node, args)
        assert computed is not None, node
        return computed

    def _load(self, node: e.Load) -> Array:
        source = self.inputs[node.source]
        assert source.dtype == node.dtype.numpy
        at = (
            list(np.broadcast_arrays(*(self.value(i) for i in node.indices)))
            if (node.indices)
            else []
        )
        guard = np.asarray(True) if node.guard is None else self.value(node.guard)
        shape = np.broadcast_shapes(guard.shape, *(a.shape for a in at))
        guard = np.broadcast_to(guard, shape)
        at = [np.broadcast_to(a, shape) for a in at]
        if self.watch is not None:
            self.watch(node, at, guard)
        for position, extent in zip(at, source.shape, strict=True):
            if np.any(guard & ((position < 0) | (position >= extent))):
                raise IndexError(f"load of operand {node.source} outside {source.shape}")
        if source.size == 0:
            taken = np.zeros(shape, source.dtype)
        else:
            taken = np.asarray(source[tuple(np.where(guard, a, 0) for a in at)])
        if node.guard is None:
            return taken
        assert node.other is not None and node.other.dtype is node.dtype
        return np.asarray(np.where(guard, taken, self.value(node.other)))

    def _reduce(self, node: e.Reduce) -> Array:
        extents = [evaluate(extent, self.symbols) for _, extent in node.axes]
        total: Array | None = None
        for at in product(*(range(n) for n in extents)):
            bound = {v: np.asarray(i) for (v, _), i in zip(node.axes, at, strict=True)}
            value = _Scope(self.inputs, bound, self, self.symbols, self.watch).value(node.body)
            total = value if total is None else np.asarray(_REDUCERS[node.op](total, value))
        if total is None:
            identity = _REDUCERS[node.op].identity
            assert identity is not None
            total = np.asarray(identity, node.dtype.numpy)
        return np.asarray(total, node.dtype.numpy)
