"""Collects a kernel's accesses to the memory that it writes, each with the loops and conditions
around it.

Owns the order in which a kernel's statements run, and copies of an access: the same statement in
other iterations of some of its loops. Proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property

from aot.base.records import dataclass
from aot.ir import expr
from aot.ir.dims import Interval
from aot.ir.expr import Expr, Load, Select, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    Buffer,
    Combine,
    For,
    If,
    Kernel,
    Let,
    LoopKind,
    MatrixDot,
    MatrixProduct,
    MatrixStore,
    MatrixZero,
    Scratch,
    Space,
    Stmt,
    Store,
    expressions_of,
)
from aot.kernels.proof.extents import Extents
from aot.kernels.proof.inequalities import FEW_STEPS, MOST_STEPS, Inequalities
from aot.kernels.proof.polynomials import Monomial, Polynomial, combined, constant, known_value
from aot.kernels.proof.values import Memory, Values

MOST_ALTERNATIVES = 4  # ways in which the selects of an access may be decided
OF_QUESTION = 8000  # steps of the proofs of one question
OF_KERNEL = 100_000  # of all questions about a kernel

Condition = tuple[Expr, bool]


@dataclass(frozen=True, eq=False)
class Frame:
    """A statement on the path from the kernel's body to an access: one around it, or the access's
    own.

    Attributes:
        at: its position in the body that it stands in.
        branch: of an If, whether the access is where the condition holds.
        var: of a loop, its variable; another one wherever the loop stands.
        body: the statements that it stands among.
    """

    stmt: Stmt
    at: int
    body: tuple[Stmt, ...]
    branch: bool = True
    var: Var | None = None

    @property
    def key(self) -> tuple[int, bool]:
        return self.at, self.branch

    @property
    def loop(self) -> For | None:
        return self.stmt if isinstance(self.stmt, For) else None


@dataclass(frozen=True, eq=False)
class Access:
    """A store, or a load from memory that the kernel also writes.

    Attributes:
        indices: in terms of loop variables, dims, constant memory and `opaque` values.
        path: the statements around it, outermost first, and its own.
        conditions: what holds where it is made.
        depths: how many loops are around the statement that loads each value out of memory that
            the kernel writes.
        parts: elements along the last dim.
    """

    memory: Memory
    indices: tuple[Expr, ...]
    is_write: bool
    path: tuple[Frame, ...]
    conditions: tuple[Condition, ...]
    depths: Mapping[Var, int]
    parts: int = 1
    is_guarded: bool = False

    @cached_property
    def loops(self) -> tuple[Frame, ...]:
        return tuple(frame for frame in self.path if frame.var is not None)

    @cached_property
    def where(self) -> tuple[tuple[int, bool], ...]:
        """The access's position in the tree: the keys of the frames around it."""
        return tuple(frame.key for frame in self.path[:-1])

    @cached_property
    def opaque(self) -> dict[Var, int]:
        """The values in the access's indices and conditions that were loaded from written memory,
        with their `depths`."""
        roots = (*self.indices, *(e for e, _ in self.conditions))
        found: set[Var] = set().union(*map(expr.free_vars, roots)) if self.depths else set()
        return {var: depth for var, depth in self.depths.items() if var in found}

    def lane(self, axis: int) -> Var | None:
        """The variable of the LANE loop over `axis` around the access; None if there is none."""
        for frame in self.loops:
            loop = frame.loop
            if loop is not None and loop.kind is LoopKind.LANE and loop.axis == axis:
                return frame.var
        return None

    def __str__(self) -> str:
        return f"{'store to' if self.is_write else 'load of'} {self.memory.name}"


def alternatives(access: Access) -> list[Access]:
    """Variants of an access without selects in its indices: one for each combination of their
    outcomes."""
    left = [access]
    found: list[Access] = []
    while left:
        taken = left.pop(0)
        selects = (e for index in taken.indices for e in expr.nodes(index))
        first = next((e for e in selects if isinstance(e, Select)), None)
        if first is None or len(left) + len(found) >= MOST_ALTERNATIVES:
            found.append(taken)
            continue
        for sign, value in ((True, first.a), (False, first.b)):
            memo: dict[Expr, Expr] = {first: value}
            indices = tuple(expr.transform(i, lambda _: None, memo) for i in taken.indices)
            held = tuple((expr.transform(e, lambda _: None, memo), s) for e, s in taken.conditions)
            conditions = (*held, (first.condition, sign))
            left.append(replace(taken, indices=indices, conditions=conditions))
    return found


def common_frames(a: Access, b: Access) -> int:
    """The number of outermost statements that two accesses share."""
    count = 0
    for left, right in zip(a.path[:-1], b.path[:-1], strict=False):
        if left.key != right.key or left.stmt is not right.stmt:
            break
        count += 1
    return count


def loops_among(frames: tuple[Frame, ...]) -> int:
    return sum(frame.var is not None for frame in frames)


def private_axes(kernel: Kernel, memory: Memory) -> tuple[int, ...]:
    """Lane axes along which each lane has a private copy of a scratch."""
    if not isinstance(memory, Scratch) or memory.space is Space.WORKGROUP:
        return ()
    axes = (1, 2) if memory.space is Space.MATRIX else (0, 1, 2)
    return tuple(axis for axis in axes if kernel.workgroup_size[axis] > 1)


# Collecting


def accesses_of(kernel: Kernel) -> list[Access]:
    """All stores, and loads of memory that is stored to, in program order."""
    return list(_Collector(kernel).body(kernel.body, (), (), {}))


class _Collector:
    """Collects the accesses of a kernel in one pass over its statements."""

    def __init__(self, kernel: Kernel) -> None:
        written = [b for b in kernel.buffers if b.is_written]
        self.is_written = {b for b in kernel.buffers if b.is_written}
        # memory that another buffer may lie over
        self.is_open = {
            b
            for b in kernel.buffers
            if not b.is_written and b.alignment == 1 and any(_meet(b, w) for w in written)
        }
        self.opaque: dict[Var, int] = {}

    def body(
        self,
        body: tuple[Stmt, ...],
        path: tuple[Frame, ...],
        conditions: tuple[Condition, ...],
        names: Mapping[Var, Expr],
    ) -> Iterator[Access]:
        names = dict(names)
        for at, stmt in enumerate(body):
            frame = Frame(stmt, at, body)
            match stmt:
                case For():
                    frame = replace(frame, var=Var(stmt.var.name, DType.INDEX))
                    assert frame.var is not None
                    inner = {**names, stmt.var: frame.var}
                    yield from self.body(stmt.body, (*path, frame), conditions, inner)
                case If():
                    rewrite = _Rewrite(self, names, path)
                    yield from self.loads(stmt, (*path, frame), conditions, rewrite)
                    condition = rewrite(stmt.condition)
                    for sign, part in ((True, stmt.then), (False, stmt.otherwise)):
                        held = (*conditions, (condition, sign))
                        inside = (*path, replace(frame, branch=sign))
                        yield from self.body(part, inside, held, names)
                case Let() | Store():
                    rewrite = _Rewrite(self, names, path)
                    yield from self.loads(stmt, (*path, frame), conditions, rewrite)
                    if isinstance(stmt, Let):
                        names[stmt.var] = self.named(stmt, rewrite, path)
                    else:
                        yield self.store(stmt, (*path, frame), conditions, rewrite)
                case Combine():
                    lane = replace(frame, var=Var(stmt.lane.name, DType.INDEX))
                    lanes = For(stmt.lane, stmt.extent, LoopKind.LANE, (stmt,))
                    lane = replace(lane, stmt=lanes)
                    assert lane.var is not None
                    inside = (*path, lane)
                    rewrite = _Rewrite(self, {**names, stmt.lane: lane.var}, inside)
                    own = Frame(stmt, 0, lanes.body)
                    yield from self.loads(stmt, (*inside, own), conditions, rewrite)
                    names[stmt.result] = self.unknown(stmt.result, path)
                case MatrixDot():
                    inside = (*path, frame)
                    yield from self.body(stmt.meaning(), inside, conditions, names)
                case MatrixZero() | MatrixProduct() | MatrixStore():
                    inside = (*path, frame)
                    yield from self.body((stmt.meaning(),), inside, conditions, names)

    def store(
        self,
        stmt: Store,
        path: tuple[Frame, ...],
        conditions: tuple[Condition, ...],
        rewrite: _Rewrite,
    ) -> Access:
        held = conditions if stmt.guard is None else (*conditions, (rewrite(stmt.guard), True))
        indices = tuple(map(rewrite, stmt.indices))
        is_guarded = stmt.guard is not None
        return Access(stmt.target, indices, True, path, held, self.opaque, 1, is_guarded)

    def loads(
        self,
        stmt: Stmt,
        path: tuple[Frame, ...],
        conditions: tuple[Condition, ...],
        rewrite: _Rewrite,
    ) -> Iterator[Access]:
        """The loads that a statement itself makes."""
        seen: set[Expr] = set()
        for root in expressions_of(stmt):
            for e in expr.nodes(root) if root not in seen else ():
                if not isinstance(e, Load) or e in seen or not self.is_changed(e.source):
                    continue
                seen.add(e)
                held = conditions if e.guard is None else (*conditions, (rewrite(e.guard), True))
                parts = max(1, e.dtype.parts // e.source.dtype.parts)
                indices = tuple(map(rewrite, e.indices))
                yield Access(
                    *(e.source, indices, False, path, held, self.opaque, parts),
                    is_guarded=e.guard is not None,
                )

    def is_changed(self, memory: Memory) -> bool:
        return isinstance(memory, Scratch) or memory in self.is_written

    def is_constant(self, memory: Memory) -> bool:
        return not self.is_changed(memory) and memory not in self.is_open

    def named(self, stmt: Let, rewrite: _Rewrite, path: tuple[Frame, ...]) -> Expr:
        dtype = stmt.var.dtype
        is_kept = dtype is DType.INDEX or dtype is DType.BOOL or dtype.is_integer
        return rewrite(stmt.value) if is_kept else self.unknown(stmt.var, path)

    def unknown(self, e: Expr, path: tuple[Frame, ...]) -> Var:
        """A variable for a value loaded from written memory, in the current iteration."""
        made = Var(e.name if isinstance(e, Var) else "value", e.dtype)
        self.opaque[made] = loops_among(path)
        return made


def _meet(a: Buffer, b: Buffer) -> bool:
    return a.binding is b.binding or a.class_param is not None or b.class_param is not None


class _Rewrite:
    """Rewrites the expressions of one statement: expands named values, and replaces loads of
    written memory by variables."""

    def __init__(
        self, collector: _Collector, names: Mapping[Var, Expr], path: tuple[Frame, ...]
    ) -> None:
        self.collector = collector
        self.names = names
        self.path = path
        self.memo: dict[Expr, Expr] = {}

    def __call__(self, e: Expr) -> Expr:
        return expr.transform(e, self._fresh, self.memo)

    def _fresh(self, e: Expr) -> Expr | None:
        if isinstance(e, Var):
            return self.names.get(e)
        if isinstance(e, Load) and not self.collector.is_constant(e.source):
            return self.collector.unknown(e, self.path)
        return None


# Copies


class Copies(Values):
    """Expression values in which any variable can be bound to a polynomial."""

    def stands_for(self, var: Var, p: Polynomial) -> None:
        self._vars[var] = p

    def key(self, e: Expr) -> object:
        """A key that is equal for expressions with equal values."""
        return self._key(e)


class Comparisons(Inequalities):
    """Inequality proofs with a budget of steps per question and one for the whole kernel.

    Attributes:
        spent: steps of the questions before this one.
    """

    spent = 0

    def begin(self) -> bool:
        """Starts a question's budget; False where the kernel's is spent."""
        self.spent += max(self.steps - (MOST_STEPS - OF_QUESTION), 0)
        self.steps = MOST_STEPS - OF_QUESTION
        return self.spent < OF_KERNEL

    def proves_quickly(self, goal: Polynomial) -> bool:
        """Whether intervals, or a few facts, prove a goal."""
        low = self.low(goal)
        if low is not None and low >= 0:
            return True
        self._is_thorough = False
        self._left = FEW_STEPS
        is_proved = not self.is_exhausted and self._by_few_facts(goal)
        self.steps += FEW_STEPS - self._left
        return is_proved

    def is_of_dims(self, monomial: Monomial) -> bool:
        """Whether a monomial consists of dims only."""
        return all(self._is_last[number] for number in monomial)

    def without_wraps(self, p: Polynomial) -> Polynomial:
        """`p` with each variable replaced by its unwrapped value, where it is proved not to
        wrap."""
        return self._without_wraps(p)


@dataclass(eq=False)
class Scene:
    """The variables and facts in which a kernel's accesses are compared with each other.

    Attributes:
        literals: conditions that are no inequalities, by whether they hold here.
    """

    kernel: Kernel
    known: Mapping[str, Interval]
    index_bits: int
    space: Comparisons = field(default_factory=Comparisons)
    literals: dict[object, bool] = field(default_factory=dict)
    _copies: dict[tuple[Var, object], Var] = field(default_factory=dict)
    _named: set[Var] = field(default_factory=set)
    _made: dict[tuple[Access, int, object], Copy] = field(default_factory=dict)

    @cached_property
    def values(self) -> Copies:
        extents = Extents(self.space, self.known, {})
        return Copies(self.kernel, self.space, extents, self.index_bits)

    def copy(self, access: Access, shared: int = 1 << 30, role: object = None) -> Copy:
        """A copy of an access, in some iteration of its loops.

        All copies are in the same iteration of the first `shared` loops. Copies of one `role` are
        in the same iteration of the others too."""
        shared = min(shared, len(access.loops))
        key = access, shared, role if shared < len(access.loops) else None
        if key not in self._made:
            self._made[key] = self._copied(access, shared, role)
        return self._made[key]

    def _copied(self, access: Access, shared: int, role: object) -> Copy:
        variables: list[Var] = []
        fresh: dict[Var, Expr] = {}
        for depth, frame in enumerate(access.loops):
            assert frame.var is not None and frame.loop is not None
            var = frame.var
            if depth >= shared:
                var = self._copies.setdefault((var, role), Var(var.name, DType.INDEX))
                fresh[frame.var] = var
            self.values.bind(var, self.values.dim(frame.loop.extent))
            variables.append(var)
        for value, depth in access.opaque.items():
            var = value
            if depth > shared:
                var = self._copies.setdefault((value, role), Var(value.name, value.dtype))
                fresh[value] = var
            self._name(var)
        return Copy(access, tuple(variables), fresh)

    def _name(self, var: Var) -> None:
        if var not in self._named:
            self._named.add(var)
            self.values.name(var)

    def with_loops(self, access: Access, shared: int, of: Mapping[int, Polynomial]) -> Copy:
        """A copy of an access in the iteration whose loop indices, by loop depth, are the
        polynomials `of`."""
        variables: list[Var] = []
        fresh: dict[Var, Expr] = {}
        places: list[object] = []
        for depth, frame in enumerate(access.loops):
            assert frame.var is not None
            var = frame.var
            if depth in of:
                var = Var(var.name, DType.INDEX)
                fresh[frame.var] = var
                self.values.stands_for(var, of[depth])
            variables.append(var)
            places.append(frozenset(self.values.form(var).items()))
        for value, depth in access.opaque.items():
            if depth > shared:  # the same for all statements of that iteration
                var = Var(value.name, value.dtype)
                var = self._copies.setdefault((value, tuple(places[:depth])), var)
                self._name(var)
                fresh[value] = var
        return Copy(access, tuple(variables), fresh)

    def variable(self, name: str, extent: Polynomial) -> Polynomial:
        """A new variable in 0..extent-1, with the facts of that range assumed."""
        made = self.values.bind(Var(name, DType.INDEX), extent)
        self.between(made, extent)
        return made

    def between(self, p: Polynomial, extent: Polynomial) -> None:
        last = combined(extent, constant(-1))
        if known_value(extent) is None:
            self.space.assume(combined(last, p, -1), last)


@dataclass(frozen=True, eq=False)
class Copy:
    """An access in one iteration of its loops, with its own copies of the variables.

    Attributes:
        variables: of its loops.
        fresh: what stands for variables of the access.
    """

    access: Access
    variables: tuple[Var, ...]
    fresh: Mapping[Var, Expr]
    memo: dict[Expr, Expr] = field(default_factory=dict)

    def __call__(self, e: Expr) -> Expr:
        return expr.substitute(e, self.fresh, self.memo) if self.fresh else e

    @cached_property
    def indices(self) -> tuple[Expr, ...]:
        return tuple(map(self, self.access.indices))

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        return tuple((self(e), sign) for e, sign in self.access.conditions)
