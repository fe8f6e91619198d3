"""Vectorises data-dependent indices, as in gathers: with integers of 32 or 64 bits, vectors compute
an index that differs per lane. Otherwise its arithmetic is done lane by lane, with a branch for
each condition.

Owns which parts of an index and of a condition become integers of 32 or 64 bits, which vectors
compute with; the last step, to the index, is what each lane does. Loads under such a condition load
the first element where it fails, which is there, and choose afterwards.
"""

from __future__ import annotations

from dataclasses import replace

from aot.ir import expr
from aot.ir.expr import Binary, Cast, Const, Expr, Load, Select, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer
from aot.kernels.nest.nest import Nest

# elements up to which a number of 32 bits names each
_MOST_ELEMENTS = 1 << 31


def vector_places(nest: Nest, along: Var) -> _Places | None:
    """A rewriter that vectorises data-dependent indices for lanes along a variable; None on targets
    without vectors."""
    if nest.is_gpu or nest.lanes == 1:
        return None
    return _Places(along, has_wide=nest.target.has("avx512dq"))


class _Places:
    """Rewrites expressions so that vectors compute indices that differ per lane, as integers of 32
    or 64 bits.

    Attributes:
        along: the variable that is another one in each lane.
        has_wide: whether vectors compare and choose numbers of 64 bits.
    """

    def __init__(self, along: Var, *, has_wide: bool) -> None:
        self.along, self.has_wide = along, has_wide
        self._done: dict[Expr, Expr] = {}

    def __call__(self, e: Expr) -> Expr:
        if e not in self._done:
            self._done[e] = self._rewritten(e)
        return self._done[e]

    def number(self, e: Expr) -> Expr | None:
        """An element index as a 32-bit integer expression; None where it must be computed lane by
        lane."""
        if not self._varies(e) or not self._may_narrow(e):
            return None
        return self._narrow(e)

    def _rewritten(self, e: Expr) -> Expr:
        match e:
            case Load(source=Buffer() as source, indices=(index,)):
                return self._load(e, source, index)
            case Binary(op=op) if op in expr.COMPARE_OPS and e.a.dtype is DType.INDEX:
                dtype = self._joint(e.a, e.b)
                if dtype is not None and (self._varies(e.a) or self._varies(e.b)):
                    return expr.binary(op, self._as(e.a, dtype), self._as(e.b, dtype))
        return expr.rebuild(e, self)

    def _load(self, e: Load, source: Buffer, index: Expr) -> Expr:
        size = source.shape[0]
        is_small = isinstance(size, int) and 0 < size < _MOST_ELEMENTS
        # what numbers of few bits name as they are: a vector of bytes may be looked up at once
        is_plain = isinstance(index, Cast) and e.guard is None
        if is_plain or not is_small or not self._varies(index) or not self._may_narrow(index):
            return expr.rebuild(e, self)
        place = self._narrow(index)
        if e.guard is None:
            return replace(e, indices=(expr.cast(place, DType.INDEX),))
        guard = self(e.guard)
        assert e.other is not None
        safe = expr.select(guard, place, expr.const(0, DType.I32))
        found = Load(source, (expr.cast(safe, DType.INDEX),), e.dtype)
        return expr.select(guard, found, self(e.other))

    def _varies(self, e: Expr) -> bool:
        """Whether an index depends on data that differ between lanes."""
        return any(self.along in expr.free_vars(load) for load in expr.loads(e))

    def _dtype(self, e: Expr) -> DType | None:
        """The narrowest vector integer type that holds a valid index; None where no type does."""
        wide = DType.I64 if self.has_wide else None
        if not expr.loads(e):
            return DType.I32
        match e:
            case Cast(a=a) if a.dtype.is_integer and a.dtype is not DType.INDEX:
                return DType.I32 if a.dtype.bits < 32 or a.dtype is DType.I32 else wide
            case Binary(op="min" | "max", a=a, b=b):
                return self._joint(a, b)
            case Binary(op="add" | "sub", a=a, b=b):
                return wide if self._joint(a, b) is not None else None
            case Select(condition=Binary(a=x, b=y) as asked, a=a, b=b):
                if asked.op not in expr.COMPARE_OPS or x.dtype is not DType.INDEX:
                    return None
                found = self._joint(x, y), self._joint(a, b)
                return None if None in found else max(found, key=lambda d: d.bits if d else 0)
        return None

    def _joint(self, a: Expr, b: Expr) -> DType | None:
        found = self._dtype(a), self._dtype(b)
        return None if None in found else max(found, key=lambda d: d.bits if d else 0)

    def _as(self, e: Expr, dtype: DType) -> Expr:
        """The index `e` as an integer of type `dtype`."""
        if not expr.loads(e):
            return expr.cast(e, dtype)
        match e:
            case Cast(a=a):
                return expr.cast(self(a), dtype)
            case Binary(op=op, a=a, b=b):
                return expr.binary(op, self._as(a, dtype), self._as(b, dtype))
            case Select(condition=Binary(op=op, a=x, b=y), a=a, b=b):
                asked = expr.binary(op, self._as(x, dtype), self._as(y, dtype))
                return expr.select(asked, self._as(a, dtype), self._as(b, dtype))
        raise AssertionError(e)

    def _may_narrow(self, e: Expr) -> bool:
        match e:
            case Binary(op="add" | "sub", a=a, b=b):
                return self._may_narrow(a) and self._may_narrow(b)
            case Binary(op="mul", a=a, b=b):
                return self._may_narrow(a) and isinstance(b, Const)
        return self._dtype(e) is not None

    def _narrow(self, e: Expr) -> Expr:
        """An element index as a 32-bit integer. Intermediate sums and products may wrap, as the
        final value is in range."""
        match e:
            case Binary(op="add" | "sub" | "mul", a=a, b=b) if expr.loads(e):
                return expr.binary(e.op, self._narrow(a), self._narrow(b))
        dtype = self._dtype(e)
        assert dtype is not None
        return expr.cast(self._as(e, dtype), DType.I32)
