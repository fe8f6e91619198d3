"""Access analysis: the operand elements that an op's result elements read, derived from its
record's `compute`.

Owns the one evaluation of `compute` for those who ask how operands are read: reads name variables
by number, so that what two askers hold can be compared. Kernels evaluate `compute` themselves,
because the variables of a loop nest must be its own. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import lru_cache

from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Load, Reduce, Var
from aot.ir.graph import Op
from aot.ir.record import Call, Compute, call_of
from aot.ir.types import DType


@dataclass(frozen=True)
class Subscript:
    """An index as an affine function of the iteration variables: `constant + sum(steps[n] *
    variable n)`.

    Attributes:
        steps: one a variable; None where the index depends on it, and not linearly.
        constant: what the index is where all variables are 0; None where it is not affine.
        has_data: whether the index follows from elements of an operand.
    """

    steps: tuple[Dim | None, ...]
    constant: Dim | None
    has_data: bool = False

    @property
    def is_affine(self) -> bool:
        return self.constant is not None

    @property
    def variable(self) -> int | None:
        """The number of the variable that the index equals; None for any other index."""
        used = [n for n, step in enumerate(self.steps) if step != 0]
        if self.constant != 0 or len(used) != 1 or self.steps[used[0]] != 1:
            return None
        return used[0]

    @property
    def is_constant(self) -> bool:
        """Whether the index is a constant."""
        return self.is_affine and all(step == 0 for step in self.steps)

    def depends_on(self, variable: int) -> bool:
        return self.steps[variable] != 0


@dataclass(frozen=True)
class Read:
    """One load of an operand: the element read at each point of the iteration space.

    Attributes:
        operand: its number.
        subscripts: the element's indices, one a dim of the operand.
        conditions: nothing is read where one of them is negative (pads, windows over the border,
            parts of a concat). One that is not affine stands for a condition that only depends on
            the same variables.
        axes: the reduction variables that the load is evaluated for, outer ones first.
    """

    operand: int
    subscripts: tuple[Subscript, ...]
    conditions: tuple[Subscript, ...] = ()
    axes: tuple[int, ...] = ()

    @property
    def is_affine(self) -> bool:
        """Whether all indices are affine; the conditions need not be."""
        return all(s.is_affine for s in self.subscripts)

    def is_linear_in(self, variable: int) -> bool:
        """Whether each index is `step * variable` plus terms without the variable."""
        return all(s.steps[variable] is not None for s in self.subscripts)


@dataclass(frozen=True)
class Reduction:
    """A reduction inside an op's expression.

    Attributes:
        dims: the result dims that what is reduced depends on.
        axes: the variables that it reduces over.
    """

    dims: tuple[int, ...]
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Accesses:
    """How the elements of one result read the operands.

    Attributes:
        rank: of the result. Variables 0 to rank - 1 are its indices, the others reduction axes.
        extents: of the variables, in their order.
        reads: every load.
        reductions: every reduction.
        element: the read whose value, made wider from f16 to f32 perhaps, each result element is;
            None where elements are computed.
        is_widened: whether `element` is made wider.
    """

    rank: int
    extents: tuple[Dim, ...]
    reads: tuple[Read, ...]
    reductions: tuple[Reduction, ...] = ()
    element: Read | None = None
    is_widened: bool = False

    def of(self, operand: int) -> Iterator[Read]:
        """The reads of one operand."""
        return (read for read in self.reads if read.operand == operand)


def accesses_of(op: Op) -> tuple[Accesses, ...]:
    """The accesses of an op with `compute`: how each result reads the operands."""
    return accesses_of_call(call_of(op))


def accesses_of_call(call: Call) -> tuple[Accesses, ...]:
    """The accesses of a call: for each result, which operand elements its elements read.

    Raises:
        InternalError: the record has no `compute`.
    """
    if call.record.compute is None:
        raise InternalError(f"{call.record.name} has no compute, so that its reads are not known")
    # attributes such as 1, 1.0 and True are equal and mean different things
    attrs = tuple((name, type(value), value) for name, value in sorted(call.attrs.items()))
    key = (call.record.name, call.record.compute, call.operands, attrs, call.result_types)
    return _known(_Signature(key, call))


@dataclass(frozen=True)
class _Signature:
    """A cache key of everything that a call's `compute` can depend on."""

    key: tuple[object, ...]
    call: Call = field(compare=False)


@lru_cache(maxsize=1 << 13)
def _known(signature: _Signature) -> tuple[Accesses, ...]:
    call = signature.call
    assert call.record.compute is not None
    computes = call.record.compute(call)
    return tuple(
        _Reader(compute, type.dims).accesses()
        for compute, type in zip(computes, call.result_types, strict=True)
    )


@dataclass(frozen=True)
class _Linear:
    """An index expression in linear form, over the variables that occur in it."""

    steps: Mapping[Var, Dim | None]
    constant: Dim | None
    has_data: bool = False


class _Reader:
    """Finds the reads of one result's `compute`."""

    def __init__(self, compute: Compute, extents: tuple[Dim, ...]) -> None:
        self.value = compute.value
        self.rank = len(compute.indices)
        self.numbers: dict[Var, int] = {v: n for n, v in enumerate(compute.indices)}
        self.extents = list(extents)
        self.linear: dict[Expr, _Linear] = {}

    def accesses(self) -> Accesses:
        loads, reduces = self._walk()
        reads = {load: self._read(load, around) for load, around in loads.items()}
        value, is_widened = self.value, False
        if isinstance(value, expr.Cast) and value.a.dtype.is_loaded_as(value.dtype):
            value, is_widened = value.a, True
        element = reads.get(value) if isinstance(value, Load) else None
        return Accesses(
            self.rank,
            tuple(self.extents),
            tuple(reads.values()),
            tuple(map(self._reduction, reduces)),
            element,
            is_widened and element is not None,
        )

    def _walk(self) -> tuple[dict[Load, tuple[Reduce, ...]], list[Reduce]]:
        """Loads with the reductions around them, and all reductions, whose axes get numbers."""
        loads: dict[Load, tuple[Reduce, ...]] = {}
        reduces: list[Reduce] = []
        seen: set[Expr] = set()
        stack: list[tuple[Expr, tuple[Reduce, ...]]] = [(self.value, ())]
        while stack:
            node, around = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if isinstance(node, Load):
                loads[node] = around
            elif isinstance(node, Reduce):
                reduces.append(node)
                around = (*around, node)
                for var, extent in node.axes:
                    if var not in self.numbers:
                        self.numbers[var] = len(self.extents)
                        self.extents.append(extent)
            stack.extend((child, around) for child in reversed(expr.children(node)))
        return loads, reduces

    def _read(self, load: Load, around: tuple[Reduce, ...]) -> Read:
        return Read(
            load.source,
            tuple(map(self._subscript, load.indices)),
            () if load.guard is None else tuple(self._conditions(load.guard)),
            tuple(self.numbers[v] for reduce in around for v, _ in reduce.axes),
        )

    def _reduction(self, reduce: Reduce) -> Reduction:
        inside = {self.numbers[v] for v in expr.free_vars(reduce)}
        return Reduction(
            tuple(n for n in range(self.rank) if n in inside),
            tuple(self.numbers[v] for v, _ in reduce.axes),
        )

    def _conditions(self, guard: Expr) -> Iterator[Subscript]:
        """Expressions that must all be non-negative for `guard` to hold."""
        if isinstance(guard, expr.Binary) and guard.op == "and":
            yield from self._conditions(guard.a)
            yield from self._conditions(guard.b)
            return
        if isinstance(guard, expr.Binary) and guard.op in _AT_LEAST:
            large, small = (guard.a, guard.b) if guard.op in ("ge", "gt") else (guard.b, guard.a)
            if large.dtype is DType.INDEX:
                spare = expr.index(_AT_LEAST[guard.op])
                yield self._subscript(expr.sub(expr.sub(large, small), spare))
                return
        yield self._subscript(guard)

    def _subscript(self, e: Expr) -> Subscript:
        found = self._linear(e)
        steps: list[Dim | None] = [0] * len(self.extents)
        for var, step in found.steps.items():
            steps[self.numbers[var]] = step
        return Subscript(tuple(steps), found.constant, found.has_data)

    def _linear(self, e: Expr) -> _Linear:
        if e not in self.linear:
            self.linear[e] = self._analyse(e)
        return self.linear[e]

    def _analyse(self, e: Expr) -> _Linear:
        known = expr.dim_of(e)
        if known is not None:
            return _Linear({}, known)
        if isinstance(e, Var):
            return _Linear({e: 1}, 0)
        if isinstance(e, expr.Binary) and e.dtype is DType.INDEX:
            if e.op in ("add", "sub"):
                return _sum(self._linear(e.a), self._linear(e.b), 1 if e.op == "add" else -1)
            for a, b in ((e.a, e.b), (e.b, e.a)):
                scale = expr.dim_of(b)
                if e.op == "mul" and scale is not None:
                    return _sum(_Linear({}, 0), self._linear(a), scale)
        parts = [self._linear(child) for child in expr.children(e)]
        used = dict.fromkeys((v for part in parts for v in part.steps), None)
        has_data = isinstance(e, Load) or any(part.has_data for part in parts)
        return _Linear(used, None, has_data)


# what is to be spare where one number is to be larger than another
_AT_LEAST = {"ge": 0, "le": 0, "gt": 1, "lt": 1}


def _sum(a: _Linear, b: _Linear, scale: Dim) -> _Linear:
    """`a + b * scale`."""
    steps = dict(a.steps)
    for var, step in b.steps.items():
        steps[var] = _add(steps.get(var, 0), step, scale)
    return _Linear(steps, _add(a.constant, b.constant, scale), a.has_data or b.has_data)


def _add(a: Dim | None, b: Dim | None, scale: Dim) -> Dim | None:
    return None if a is None or b is None else dims.add(a, dims.multiply(b, scale))
