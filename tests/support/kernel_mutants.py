"""Kernels with one thing wrong: what a proof of what they access must refuse.

Owns the changes and says of each what it is; whether a changed kernel leaves its memory, reads what
nobody wrote or has lanes that meet is for the interpreter to find. What is changed is rebuilt, what
isn't is shared with the original.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from itertools import pairwise
from typing import Any

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.dims import Dim, DimExpr, Extremum
from aot.ir.expr import Binary, Const, Expr, Load, Select, Size
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    Barrier,
    Buffer,
    Combine,
    For,
    If,
    Kernel,
    Let,
    LoopKind,
    Matrix,
    MatrixDot,
    MatrixProduct,
    MatrixStore,
    MatrixZero,
    Prefetch,
    Scratch,
    Stmt,
    Store,
    expressions_of,
    walk,
)

Memory = Buffer | Scratch
Change = tuple[str, Callable[[], Kernel]]
"""What is changed, and what makes the changed kernel."""

_WEAKER = {"lt": "le", "gt": "ge"}


def mutants(
    kernel: Kernel,
    rng: random.Random,
    of: Callable[[Kernel], Iterator[Change]] | None = None,
) -> Iterator[tuple[str, Kernel]]:
    """Each change of a kernel, in random order; kinds of changes take turns.

    Args:
        of: which changes; by default those of bounds.
    """
    by_kind: dict[str, list[Change]] = {}
    for change in (of or changes)(kernel):
        by_kind.setdefault(change[0], []).append(change)
    turns = list(by_kind.values())
    for kind in turns:
        rng.shuffle(kind)
    rng.shuffle(turns)
    while turns:
        for kind in turns:
            name, make = kind.pop()
            yield name, make()
        turns = [kind for kind in turns if kind]


def changes(kernel: Kernel) -> Iterator[Change]:
    """All changes that are known of a kernel."""
    yield from _of_memories(kernel)
    yield from _of_loops(kernel)
    yield from _of_statements(kernel)
    yield from _of_order(kernel)
    yield from _of_indices(kernel)
    yield from _of_conditions(kernel)


def order_changes(kernel: Kernel) -> Iterator[Change]:
    """Changes by which elements are not written, or written by others too."""
    yield from _of_stores(kernel)
    yield from _of_barriers(kernel)
    yield from _of_shorter_loops(kernel)
    yield from _of_strides(kernel)
    yield from _of_order(kernel)
    yield from _of_conditions(kernel)
    yield from _of_kinds(kernel)


@dataclass(frozen=True)
class Rewrite:
    """What stands in the place of parts of a kernel, wherever they are.

    Attributes:
        statements: what each of these becomes, before what is in it is looked at.
    """

    memories: Mapping[Memory, Memory] = field(default_factory=dict)
    expressions: Mapping[Expr, Expr] = field(default_factory=dict)
    statements: Mapping[Stmt, tuple[Stmt, ...]] = field(default_factory=dict)
    _expressions: dict[Expr, Expr] = field(default_factory=dict)
    _statements: dict[Stmt, tuple[Stmt, ...]] = field(default_factory=dict)

    def kernel(self, kernel: Kernel) -> Kernel:
        return replace(
            kernel,
            buffers=tuple(map(self._memory, kernel.buffers)),
            scratch=tuple(map(self._memory, kernel.scratch)),
            body=self._body(kernel.body),
        )

    def _memory(self, memory: Any) -> Any:
        return self.memories.get(memory, memory)

    def _expr(self, e: Any) -> Any:
        """`e` rewritten; None as it is, and of several each."""
        if e is None:
            return None
        if isinstance(e, tuple):
            return tuple(map(self._expr, e))
        if e not in self._expressions:
            made = self.expressions.get(e)
            if made is None:
                made = expr.rebuild(e, self._expr)
                if isinstance(made, Load) and made.source in self.memories:
                    made = replace(made, source=self.memories[made.source])
            self._expressions[e] = made
        return self._expressions[e]

    def _body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(made for stmt in body for made in self._stmts(stmt))

    def _stmts(self, stmt: Stmt) -> tuple[Stmt, ...]:
        if stmt not in self._statements:
            before = self.statements.get(stmt, (stmt,))
            self._statements[stmt] = tuple(map(self._stmt, before))
        return self._statements[stmt]

    def _stmt(self, stmt: Stmt) -> Stmt:
        fields: dict[str, Any]
        match stmt:
            case For():
                fields = {"body": self._body(stmt.body)}
            case If():
                fields = {
                    "condition": self._expr(stmt.condition),
                    "then": self._body(stmt.then),
                    "otherwise": self._body(stmt.otherwise),
                }
            case Let():
                fields = {"value": self._expr(stmt.value)}
            case Combine():
                fields = {"value": self._expr(stmt.value), "shared": self._memory(stmt.shared)}
            case Store():
                fields = {
                    "target": self._memory(stmt.target),
                    "indices": self._expr(stmt.indices),
                    "value": self._expr(stmt.value),
                    "guard": self._expr(stmt.guard),
                }
            case Prefetch():
                fields = {"source": self._memory(stmt.source), "index": self._expr(stmt.index)}
            case MatrixDot():
                fields = {
                    "line": self._expr(stmt.line),
                    "rows": self._expr(stmt.rows),
                    "columns": self._expr(stmt.columns),
                }
            case MatrixZero():
                fields = {"place": self._expr(stmt.place)}
            case MatrixProduct():
                fields = {
                    "place": self._expr(stmt.place),
                    "left": self._matrix(stmt.left),
                    "right": self._matrix(stmt.right),
                }
            case MatrixStore():
                fields = {"place": self._expr(stmt.place), "target": self._matrix(stmt.target)}
            case _:
                fields = {}
        if isinstance(stmt, (MatrixDot, MatrixZero, MatrixProduct, MatrixStore)):
            fields["sums"] = self._memory(stmt.sums)
        is_same = all(fresh == getattr(stmt, name) for name, fresh in fields.items())
        return stmt if is_same else replace(stmt, **fields)  # so that what is shared stays so

    def _matrix(self, matrix: Matrix) -> Matrix:
        source, indices = self._memory(matrix.source), self._expr(matrix.indices)
        if source is matrix.source and indices == matrix.indices:
            return matrix
        return replace(matrix, source=source, indices=indices)


# Memories and loops


def _of_memories(kernel: Kernel) -> Iterator[Change]:
    for memory in (*kernel.buffers, *kernel.scratch):
        kind = "buffer" if isinstance(memory, Buffer) else "scratch"
        for dim, extent in enumerate(memory.shape):
            if extent in (0, 1):
                continue
            what = "an element" if dim == len(memory.shape) - 1 else "a row"
            shape = _with(memory.shape, dim, dims.add(extent, -1))
            yield f"{kind} smaller by {what}", _in_place(kernel, memory, shape)
        for dim in range(1, len(memory.shape)):
            swapped = list(memory.shape)
            swapped[dim - 1 : dim + 1] = swapped[dim], swapped[dim - 1]
            if memory.shape[dim - 1] != memory.shape[dim]:
                yield f"extents of a {kind} swapped", _in_place(kernel, memory, tuple(swapped))


def _in_place(kernel: Kernel, memory: Memory, shape: tuple[Any, ...]) -> Callable[[], Kernel]:
    """The kernel with a memory of another shape."""
    return lambda: Rewrite(memories={memory: replace(memory, shape=shape)}).kernel(kernel)


def _of_loops(kernel: Kernel) -> Iterator[Change]:
    loops = [s for s in dict.fromkeys(walk(kernel.body)) if isinstance(s, For)]
    for loop in loops:
        longer = dims.add(loop.extent, 1)
        yield "loop longer", _with_extents(kernel, loops, loop, longer)
        twice = dims.multiply(loop.extent, 2)
        yield "loop twice as long", _with_extents(kernel, loops, loop, twice)
        if isinstance(loop.extent, DimExpr):
            for extent in _without_clamps(loop.extent):
                yield "clamp of a loop dropped", _with_extents(kernel, loops, loop, extent)
    for outer in loops:
        inner = next((s for s in outer.body if isinstance(s, For)), None)
        is_free = inner is not None and LoopKind.LANE not in (outer.kind, inner.kind)
        if inner is not None and is_free and outer.extent != inner.extent:
            swapped = {
                outer: (_with_part(replace(outer, extent=inner.extent), inner, outer.extent),)
            }
            yield "extents of loops swapped", _by_statements(kernel, swapped)
    for stmt in dict.fromkeys(walk(kernel.body)):
        if isinstance(stmt, Combine):
            longer_combine: Stmt = replace(stmt, extent=stmt.extent + 1)
            yield "loop longer", _by_statements(kernel, {stmt: (longer_combine,)})
        if isinstance(stmt, MatrixProduct):
            more: Stmt = replace(stmt, terms=stmt.terms + 1)
            yield "loop longer", _by_statements(kernel, {stmt: (more,)})


def _with_part(outer: For, inner: For, extent: Dim) -> For:
    """`outer` with an extent of a loop in it."""
    body = tuple(replace(inner, extent=extent) if s is inner else s for s in outer.body)
    return replace(outer, body=body)


def _with_extents(kernel: Kernel, loops: list[For], loop: For, extent: Dim) -> Callable[[], Kernel]:
    """The kernel with another extent of a loop, and of all other lanes along its axis."""
    changed = {loop: (replace(loop, extent=extent),)}
    if loop.kind is LoopKind.LANE:
        same = (s for s in loops if s.kind is LoopKind.LANE and s.axis == loop.axis)
        changed = {s: (replace(s, extent=extent),) for s in same}
    return _by_statements(kernel, changed)


def _without_clamps(extent: DimExpr) -> Iterator[Dim]:
    """A dim with each argument of an extremum in its place."""
    for monomial, coefficient in extent.terms:
        if len(monomial) == 1 and isinstance(monomial[0], Extremum):
            atom = monomial[0]
            term = dims.minimum(*atom.args) if not atom.is_max else dims.maximum(*atom.args)
            rest = dims.add(extent, dims.multiply(term, -coefficient))
            for arg in atom.args:
                yield dims.add(rest, dims.multiply(arg, coefficient))


# Statements


def _of_statements(kernel: Kernel) -> Iterator[Change]:
    for stmt in dict.fromkeys(walk(kernel.body)):
        match stmt:
            case Store() if stmt.guard is not None:
                bare: Stmt = replace(stmt, guard=None)
                yield "guard of a store dropped", _by_statements(kernel, {stmt: (bare,)})
            case If():
                yield "condition dropped", _by_statements(kernel, {stmt: stmt.then})
                other: Stmt = replace(stmt, then=stmt.otherwise, otherwise=stmt.then)
                if stmt.otherwise:
                    yield "branches swapped", _by_statements(kernel, {stmt: (other,)})
            case Let() if stmt.value.dtype is DType.INDEX:
                for by in (-1, 1):
                    value = expr.add(stmt.value, expr.index(by))
                    late: Stmt = replace(stmt, value=value)
                    yield "named index shifted", _by_statements(kernel, {stmt: (late,)})
            case MatrixProduct():
                for side in ("left", "right"):
                    matrix = getattr(stmt, side)
                    wider: Stmt = replace(stmt, **{side: replace(matrix, step=matrix.step + 1)})
                    yield "stride changed", _by_statements(kernel, {stmt: (wider,)})
            case MatrixStore():
                target = replace(stmt.target, step=stmt.target.step + 1)
                yield (
                    "stride changed",
                    _by_statements(kernel, {stmt: (replace(stmt, target=target),)}),
                )


def _of_order(kernel: Kernel) -> Iterator[Change]:
    """Statements that change places, or are done twice; but for what others need the name of."""
    bodies: list[tuple[Stmt | None, tuple[Stmt, ...]]] = [(None, kernel.body)]
    for stmt in dict.fromkeys(walk(kernel.body)):
        if isinstance(stmt, For):
            bodies.append((stmt, stmt.body))
        elif isinstance(stmt, If):
            bodies.append((stmt, stmt.then))
    for outer, body in bodies:
        for at, stmt in enumerate(body):
            if isinstance(stmt, (For, Store, If)):
                repeated = (*body[: at + 1], *body[at:])
                yield "statement repeated", partial(_with_body, kernel, outer, repeated)
                after = body[at + 1 : at + 2]
                if isinstance(next(iter(after), None), (For, Store, If)):
                    turned = (*body[:at], *after, stmt, *body[at + 2 :])
                    yield "statements swapped", partial(_with_body, kernel, outer, turned)


def _with_body(kernel: Kernel, outer: Stmt | None, body: tuple[Stmt, ...]) -> Kernel:
    if outer is None:
        return replace(kernel, body=body)
    field_name = "body" if isinstance(outer, For) else "then"
    return Rewrite(statements={outer: (replace(outer, **{field_name: body}),)}).kernel(kernel)


def _by_statements(
    kernel: Kernel, changed: Mapping[Stmt, tuple[Stmt, ...]]
) -> Callable[[], Kernel]:
    return lambda: Rewrite(statements=changed).kernel(kernel)


# What is written, and when


def _of_stores(kernel: Kernel) -> Iterator[Change]:
    for stmt in dict.fromkeys(walk(kernel.body)):
        if isinstance(stmt, (Store, MatrixStore, MatrixZero)):
            yield "store dropped", _by_statements(kernel, {stmt: ()})
        if isinstance(stmt, If):
            yield "statements under a condition dropped", _by_statements(kernel, {stmt: ()})
            if stmt.otherwise:
                bare: Stmt = replace(stmt, otherwise=())
                yield "other branch dropped", _by_statements(kernel, {stmt: (bare,)})


def _of_barriers(kernel: Kernel) -> Iterator[Change]:
    for stmt in dict.fromkeys(walk(kernel.body)):
        if isinstance(stmt, Barrier):
            yield "barrier dropped", _by_statements(kernel, {stmt: ()})
            if stmt.orders_buffers:
                less: Stmt = Barrier()
                yield "barrier of buffers weakened", _by_statements(kernel, {stmt: (less,)})


def _of_shorter_loops(kernel: Kernel) -> Iterator[Change]:
    loops = [s for s in dict.fromkeys(walk(kernel.body)) if isinstance(s, For)]
    for loop in loops:
        if loop.extent not in (0, 1):
            shorter = dims.add(loop.extent, -1)
            yield "loop shorter", _with_extents(kernel, loops, loop, shorter)


def _of_strides(kernel: Kernel) -> Iterator[Change]:
    """Factors of indices halved or one more or less, and terms left out, of one use each."""
    for e in _nodes(kernel):
        if not isinstance(e, Binary) or e.dtype is not DType.INDEX:
            continue
        if e.op == "mul" and isinstance(e.b, Const):
            for value in (e.b.value // 2, e.b.value - 1, e.b.value + 1):
                factor = expr.index(int(value))
                yield "stride halved or changed", _by(kernel, e, expr.mul(e.a, factor))
        if e.op == "add":
            for side in (e.a, e.b):
                yield "term of an index dropped", _by(kernel, e, side)
        if e.op in ("floordiv", "floormod"):
            yield "division dropped", _by(kernel, e, e.a)
            other = expr.binary("floormod" if e.op == "floordiv" else "floordiv", e.a, e.b)
            yield "quotient and remainder swapped", _by(kernel, e, other)
        if e.op in ("min", "max"):
            for side in (e.a, e.b):
                yield "clamp dropped", _by(kernel, e, side)


def _of_kinds(kernel: Kernel) -> Iterator[Change]:
    """Loops in order whose iterations then run side by side."""
    for stmt in dict.fromkeys(walk(kernel.body)):
        if isinstance(stmt, For) and stmt.kind in (LoopKind.SERIAL, LoopKind.UNROLLED):
            inside = [s for s in walk(stmt.body) if isinstance(s, (For, Barrier))]
            kinds = {s.kind for s in inside if isinstance(s, For)}
            is_free = not any(isinstance(s, Barrier) for s in inside)
            if is_free and LoopKind.LANE not in kinds and isinstance(stmt.extent, int):
                together: Stmt = replace(stmt, kind=LoopKind.VECTOR)
                yield "loop in order made a vector", _by_statements(kernel, {stmt: (together,)})


# Expressions


def _of_indices(kernel: Kernel) -> Iterator[Change]:
    """What indices, and integers that may become ones, are made of."""
    factors: list[Expr] = []
    for e in _nodes(kernel):
        if not (e.dtype is DType.INDEX or e.dtype.is_integer):
            continue
        match e:
            case Const() | Size():
                kind = "index" if e.dtype is DType.INDEX else "integer"
                for by in (-1, 1):
                    yield f"constant of an {kind} changed", _by(kernel, e, _plus(e, by))
            case Binary(op="mul"):
                for side in (e.a, e.b):
                    if isinstance(side, (Const, Size)):
                        factors.append(side)
                        for by in (-1, 1):
                            yield "stride changed", _by(kernel, side, _plus(side, by))
            case Binary(op="min" | "max"):
                for side in (e.a, e.b):
                    yield "clamp dropped", _by(kernel, e, side)
            case Binary(op="floordiv" | "floormod") if isinstance(e.b, (Const, Size)):
                for by in (-1, 1):
                    yield "divisor changed", _by(kernel, e.b, _plus(e.b, by))
                yield "division dropped", _by(kernel, e, e.a)
            case Select():
                for side in (e.a, e.b):
                    yield "choice dropped", _by(kernel, e, side)
    for a, b in pairwise(factors):
        if a.dtype is b.dtype and _number(a) != _number(b):
            swapped = partial(Rewrite(expressions={a: b, b: a}).kernel, kernel)
            yield "strides swapped", swapped


def _of_conditions(kernel: Kernel) -> Iterator[Change]:
    for e in _nodes(kernel):
        if isinstance(e, Load) and e.guard is not None:
            yield "guard of a load dropped", _by(kernel, e, replace(e, guard=None, other=None))
        if not isinstance(e, Binary) or e.dtype is not DType.BOOL:
            continue
        if e.op in ("and", "or"):
            for side in (e.a, e.b):
                yield f"part of an {e.op} dropped", _by(kernel, e, side)
        elif e.op in expr.COMPARE_OPS and (e.a.dtype is DType.INDEX or e.a.dtype.is_integer):
            if e.op in _WEAKER:
                weaker = expr.binary(_WEAKER[e.op], e.a, e.b)
                yield "comparison weakened", _by(kernel, e, weaker)
            if e.op in ("eq", "ne"):
                yield "comparison weakened", _by(kernel, e, expr.const(True, DType.BOOL))
            for by in (-1, 1):
                moved = expr.binary(e.op, e.a, expr.add(e.b, expr.const(by, e.b.dtype)))
                yield "comparison moved", _by(kernel, e, moved)


def _by(kernel: Kernel, old: Expr, new: Expr) -> Callable[[], Kernel]:
    """The kernel with an expression in the place of another, wherever that stands."""
    return lambda: Rewrite(expressions={old: new}).kernel(kernel)


def _plus(e: Expr, by: int) -> Expr:
    """A literal or a dim with a number added."""
    if isinstance(e, Const):
        return expr.const(e.value + by, e.dtype)
    assert isinstance(e, Size)
    return expr.index(dims.add(e.dim, by))


def _number(e: Expr) -> object:
    return e.value if isinstance(e, Const) else expr.dim_of(e)


def _nodes(kernel: Kernel) -> list[Expr]:
    """Every node of every expression, once."""
    found: dict[Expr, None] = {}
    for stmt in walk(kernel.body):
        for root in expressions(stmt):
            if root not in found:
                found.update(dict.fromkeys(expr.nodes(root)))
    return list(found)


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """What a statement itself evaluates, matrix statements too."""
    match stmt:
        case MatrixDot():
            return (*stmt.line, stmt.rows, *stmt.columns)
        case MatrixZero():
            return stmt.place
        case MatrixProduct():
            return (*stmt.place, *stmt.left.indices, *stmt.right.indices)
        case MatrixStore():
            return (*stmt.place, *stmt.target.indices)
    return expressions_of(stmt)


def _with(shape: tuple[Any, ...], dim: int, extent: Dim) -> tuple[Any, ...]:
    return (*shape[:dim], extent, *shape[dim + 1 :])
