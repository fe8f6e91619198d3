"""Tracks which expressions have a value at the current position, and how long a value stays valid.

Owns the memo that makes a shared expression be computed once: a value is kept as far out as its
variables and the control flow allow. Emits nothing.
"""

from __future__ import annotations

from dataclasses import field

from aot.backends.cpu.assembler import Value
from aot.backends.cpu.lanes import Laned
from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir.dims import Interval
from aot.ir.expr import TRANSCENDENTAL_OPS, Binary, Const, Expr, Load, Size, Unary, Var, children
from aot.ir.types import DType


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties of an expression that decide where its value stays valid.

    Attributes:
        variables: loop and Let variables in it.
        has_load: it reads memory, so it holds for one statement only.
        needs_expansion: an operator in it has no instruction.
        is_nonnegative: an INDEX expression that is surely not negative.
    """

    variables: frozenset[Var]
    has_load: bool
    needs_expansion: bool
    is_nonnegative: bool


@dataclass(slots=True)
class _Scope:
    is_region: bool
    keys: list[Expr] = field(default_factory=list)
    variables: set[Var] = field(default_factory=set)


class Scopes:
    """A stack of scopes over one table of expression values.

    A region is code that need not run (a loop's body, a branch): what it computes is unknown after
    it. A scope that is no region is straight-line code, such as one copy of an unrolled loop.
    """

    def __init__(self) -> None:
        self.known: dict[Expr, Laned] = {}
        self.stack: list[_Scope] = [_Scope(is_region=True)]
        self.depths: dict[Var, int] = {}
        self.nonnegative: set[Var] = set()
        self.ranges: dict[Expr, Interval] = {}
        self._facts: dict[Expr, Facts] = {}

    def open(self, *, is_region: bool) -> None:
        self.stack.append(_Scope(is_region))

    def close(self) -> None:
        for key in self.stack.pop().keys:
            del self.known[key]

    def bind(
        self, var: Var, value: Laned, *, is_nonnegative: bool = False, last: int | None = None
    ) -> None:
        """Binds `var` to a value until the innermost scope closes; `last` is its largest value."""
        if var in self.known:
            raise InternalError(f"variable {var.name} is bound twice")
        if is_nonnegative:
            self.nonnegative.add(var)
            self.ranges[var] = (0, last)
        scope = self.stack[-1]
        scope.variables.add(var)
        scope.keys.append(var)
        is_number = isinstance(value, Value) and value.number is not None
        self.depths[var] = 0 if is_number else len(self.stack)
        self.known[var] = value

    def assume(self, e: Expr, value: Laned) -> None:
        """Sets the value of `e` until the innermost scope closes."""
        if e not in self.known:
            self.stack[-1].keys.append(e)
            self.known[e] = value

    def put(self, e: Expr, value: Laned) -> None:
        """Stores the computed value of `e` in the outermost scope in which it stays valid."""
        facts = self.facts(e)
        level = len(self.stack) - 1
        if not facts.has_load:
            while not self.stack[level].is_region and not (
                self.stack[level].variables & facts.variables
            ):
                level -= 1
        self.stack[level].keys.append(e)
        self.known[e] = value

    def depth(self, e: Expr) -> int:
        """The nesting depth at which the innermost variable of `e` without a constant value is
        bound; loads are deepest."""
        if isinstance(e, Var):
            return self.depths.get(e, 0)
        facts = self.facts(e)
        if facts.has_load:
            return len(self.stack) + 1
        return max((self.depths.get(v, 0) for v in facts.variables), default=0)

    def facts(self, root: Expr) -> Facts:
        """The properties of `root`; each node is visited once per kernel."""
        found = self._facts.get(root)
        if found is not None:
            return found
        stack = [root]
        while stack:
            e = stack[-1]
            if e in self._facts:
                stack.pop()
                continue
            below = children(e)
            missing = [c for c in below if c not in self._facts]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            self._facts[e] = self._combine(e, [self._facts[c] for c in below])
        return self._facts[root]

    def _combine(self, e: Expr, parts: list[Facts]) -> Facts:
        has_load = isinstance(e, Load)
        needs_expansion = isinstance(e, Unary | Binary) and e.op in TRANSCENDENTAL_OPS
        for part in parts:
            has_load = has_load or part.has_load
            needs_expansion = needs_expansion or part.needs_expansion
        return Facts(
            variables=frozenset({e}) if isinstance(e, Var) else _union(parts),
            has_load=has_load,
            needs_expansion=needs_expansion,
            is_nonnegative=self._is_nonnegative(e, parts),
        )

    def _is_nonnegative(self, e: Expr, parts: list[Facts]) -> bool:
        if e.dtype is not DType.INDEX:
            return False
        match e:
            case Const():
                return int(e.value) >= 0
            case Var():
                return e in self.nonnegative
            case Size():
                from aot.ir.dims import bounds

                low, _ = bounds(e.dim, {})
                return low is not None and low >= 0
            case Binary() if e.op in ("add", "mul", "min", "div", "floordiv", "floormod"):
                return all(p.is_nonnegative for p in parts)
            case Binary() if e.op == "max":
                return any(p.is_nonnegative for p in parts)
        return False


def _union(parts: list[Facts]) -> frozenset[Var]:
    if len(parts) == 1:
        return parts[0].variables
    distinct = {p.variables for p in parts if p.variables}
    if not distinct:
        return frozenset()
    return distinct.pop() if len(distinct) == 1 else frozenset().union(*distinct)
