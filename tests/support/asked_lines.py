"""Which cache lines of its weights a kernel asks for before it loads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aot.ir import expr
from aot.ir.expr import Expr, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import For, If, Let, Prefetch, Stmt, walk


def asked_lines(
    body: tuple[Stmt, ...], elements: int, values: Mapping[Var, Expr] | None = None
) -> Iterator[int]:
    """The numbers of the lines, of so many elements each, as often as they are asked for; all
    extents are known, and branches are taken."""
    values = values or {}
    for stmt in body:
        if isinstance(stmt, For) and isinstance(stmt.extent, int):
            if any(isinstance(s, Prefetch) for s in walk(stmt.body)):
                for k in range(stmt.extent):
                    here = {**values, stmt.var: expr.index(k)}
                    yield from asked_lines(stmt.body, elements, here)
        elif isinstance(stmt, If):
            yield from asked_lines(stmt.then, elements, values)
        elif isinstance(stmt, Let) and stmt.var.dtype is DType.INDEX:
            values = {**values, stmt.var: expr.substitute(stmt.value, values)}
        elif isinstance(stmt, Prefetch):
            place = expr.dim_of(expr.substitute(stmt.index, values))
            assert isinstance(place, int) and place % elements == 0
            yield place // elements
