"""How often the statements of a kernel run, and about how long the interpreter takes for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aot.ir import expr
from aot.ir.expr import Binary, Expr, Var
from aot.kernels.ir.nodes import For, If, LoopKind, Stmt, walk

COMPARISONS: dict[str, Callable[[int, int], bool]] = {"le": int.__le__, "lt": int.__lt__}


STATEMENT = 500  # elements that are computed while a statement is looked at


def steps(
    body: Sequence[Stmt],
    of: Callable[[Stmt], int] = lambda _: 1,
    values: Mapping[Var, Expr] | None = None,
) -> int:
    """The sum of `of` over all statements that run, but for loops, where all extents are known; of
    a choice that more than the numbers of loops decide, those of both sides."""
    total = 0
    known = values or {}
    for stmt in body:
        if isinstance(stmt, For):
            assert isinstance(stmt.extent, int)
            if any(isinstance(s, If) for s in walk(stmt.body)):
                numbers = ({**known, stmt.var: expr.index(n)} for n in range(stmt.extent))
                total += sum(steps(stmt.body, of, each) for each in numbers)
            else:
                total += stmt.extent * steps(stmt.body, of, known)
        elif isinstance(stmt, If):
            holds = _holds(stmt.condition, known)
            total += of(stmt)
            total += steps(stmt.then, of, known) if holds in (True, None) else 0
            total += steps(stmt.otherwise, of, known) if holds in (False, None) else 0
        else:
            total += of(stmt)
    return total


def _holds(condition: Expr, values: Mapping[Var, Expr]) -> bool | None:
    if not isinstance(condition, Binary) or condition.op not in COMPARISONS:
        return None
    a, b = (expr.dim_of(expr.substitute(e, values)) for e in (condition.a, condition.b))
    if not isinstance(a, int) or not isinstance(b, int):
        return None
    return COMPARISONS[condition.op](a, b)


def cost(body: Sequence[Stmt], together: int = 1) -> int:
    """About how long the interpreter takes for a body, in elements that it computes; open extents
    count as 8."""
    total = 0
    for stmt in body:
        if isinstance(stmt, For):
            extent = stmt.extent if isinstance(stmt.extent, int) else 8
            if stmt.kind in (LoopKind.VECTOR, LoopKind.LANE, LoopKind.WORKGROUP):
                total += cost(stmt.body, together * extent)
            else:
                total += extent * cost(stmt.body, together)
        elif isinstance(stmt, If):
            total += STATEMENT + cost((*stmt.then, *stmt.otherwise), together)
        else:
            total += STATEMENT + together
    return total
