"""Evaluates a kernel's indices and conditions numerically over its loops: steps, ranges, lanes.

Open extents are taken at given values. Where data decide, the answer is None.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

from aot.ir import dims
from aot.ir.assumed_extents import MEASURED
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Const, Expr, Size, Var, children
from aot.kernels.ir.nodes import Buffer, Scratch

_INTEGER_OPS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "floormod": operator.mod,
    "min": min,
    "max": max,
}
_DIVISIONS = ("floordiv", "floormod")


class Indices:
    """Evaluates indices over the loops around them, with given numbers for dynamic extents.

    Attributes:
        named: what a `Let` names, for all that are open or were.
        extents: turns of the loop of each index.
    """

    def __init__(self, symbols: Mapping[str, int]) -> None:
        self.symbols = symbols
        self.named: dict[Var, Expr] = {}
        self.extents: dict[Var, int] = {}
        self._steps: dict[tuple[Expr, Var], float | None] = {}

    def number(self, dim: Dim) -> int:
        """The value of a dim, at least 0; symbols without a given number get the one that
        executables are measured at."""
        if isinstance(dim, int):
            return max(dim, 0)
        known = {**dict.fromkeys(dims.symbols(dim), MEASURED), **self.symbols}
        try:
            return max(dims.evaluate(dim, known), 0)
        except ZeroDivisionError:
            return 0

    def address_step(
        self, memory: Buffer | Scratch, indices: Sequence[Expr], var: Var
    ) -> float | None:
        """Elements between the accesses of consecutive iterations of a loop; None where data
        decides."""
        if isinstance(memory, Buffer):
            strides = [self.number(s) for s in memory.strides]
        else:
            strides = [1]
            for extent in reversed(memory.shape[1:]):
                strides.insert(0, strides[0] * extent)
        total = 0.0
        for index, stride in zip(indices, strides, strict=False):
            step = self.step(index, var)
            if step is None:
                return None
            total += step * stride
        return total

    def step(self, e: Expr, var: Var) -> float | None:
        """The slope of an index in a loop's variable; None where it is no constant."""
        if e is var:
            return 1.0
        key = e, var
        if key not in self._steps:
            self._steps[key] = self._step(e, var)
        return self._steps[key]

    def _step(self, e: Expr, var: Var) -> float | None:
        if isinstance(e, Var):
            return self.step(self.named[e], var) if e in self.named else 0.0
        steps = [self.step(c, var) for c in children(e)]
        if isinstance(e, Binary) and e.op in ("add", "sub", "mul"):
            a, b = steps
            if a is None or b is None:
                return None
            if e.op != "mul":
                return a + b if e.op == "add" else a - b
            for step, other in ((a, e.b), (b, e.a)):
                if isinstance(other, Const | Size):
                    return step * self._constant(other)
        return 0.0 if all(step == 0 for step in steps) else None

    def _constant(self, e: Const | Size) -> float:
        return float(e.value) if isinstance(e, Const) else self.number(e.dim)

    def ends(self, e: Expr) -> tuple[float, float] | None:
        """The least and the largest value of an index; None where it depends on data."""
        match e:
            case Const() | Size():
                return self._constant(e), self._constant(e)
            case Var() if e in self.named:
                return self.ends(self.named[e])
            case Var() if e in self.extents:
                return 0.0, max(0.0, self.extents[e] - 1.0)
            case Binary() if e.op in ("add", "sub", "mul"):
                a, b = self.ends(e.a), self.ends(e.b)
                if a is None or b is None:
                    return None
                every = [_INTEGER_OPS[e.op](x, y) for x in a for y in b]  # type: ignore[arg-type]
                return min(every), max(every)
        return None

    def share(self, condition: Expr) -> float | None:
        """The fraction of iterations in which a comparison of indices holds; None where it depends
        on data."""
        if not isinstance(condition, Binary) or condition.op not in ("lt", "le", "gt", "ge"):
            return None
        a, b = condition.a, condition.b
        low, high = map(self.ends, (a, b) if condition.op in ("lt", "le") else (b, a))
        if low is None or high is None:
            return None
        least, most = low[0] - high[1], low[1] - high[0]
        below = (0 if condition.op in ("lt", "gt") else 1) - least
        return min(1.0, max(0.0, below / (most - least + 1)))

    def lanes(self, e: Expr, var: Var) -> list[int] | None:
        """The index of each lane of a vector loop, relative to the first lane, with all other loops
        at their first iteration; None where it depends on data."""
        count = self.extents[var]
        match e:
            case Const() | Size():
                return [int(self._constant(e))] * count
            case Var() if e is var:
                return list(range(count))
            case Var():
                return self.lanes(self.named[e], var) if e in self.named else [0] * count
            case Binary() if e.op in _INTEGER_OPS:
                a, b = self.lanes(e.a, var), self.lanes(e.b, var)
                if a is None or b is None or (e.op in _DIVISIONS and 0 in b):
                    return None
                return list(map(_INTEGER_OPS[e.op], a, b))
        return None
