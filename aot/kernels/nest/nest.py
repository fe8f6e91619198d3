"""Building blocks of all schedules: axes, axis merging, the grid, vector and lane loops.

Owns no schedule. Statements come out in kernel IR for a CPU (VECTOR loops) or a GPU (LANE loops).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.assumed_extents import GRAIN_WORK
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Cast, Const, Expr, Fma, Load, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    Buffer,
    For,
    If,
    KernelBuilder,
    Let,
    LoopKind,
    Scratch,
    Stmt,
    Store,
)
from aot.kernels.nest.index_math import simplifier
from aot.target.model import Target

Values = dict[Var, Expr]
"""Index variables and what they are."""

# elements that a CPU workgroup should have at least, so that calling it costs nothing beside them
GRAIN = 4096


@dataclass(frozen=True)
class Axis:
    """A loop to be built: its index variable and extent."""

    var: Var
    extent: Dim

    @property
    def count(self) -> int:
        """The axis's extent, which must be a known number."""
        return int(self.extent)


@dataclass(frozen=True)
class Kept:
    """A value that a pass over a row computes for each element and stores for later passes.

    Attributes:
        value: the element, as the pass computes it.
        scratch: where it is stored.
        place: its place there, by the variables of the pass.
    """

    value: Expr
    scratch: Scratch
    place: Expr


@dataclass(frozen=True)
class Output:
    """A result of a loop nest as schedules see it: `buffer[address] = value` over all `axes`.

    Attributes:
        others: further results of the same loops, each stored at the same address of its buffer.
    """

    buffer: Buffer
    address: Expr
    value: Expr
    axes: tuple[Axis, ...]
    others: tuple[tuple[Buffer, Expr], ...] = ()

    @property
    def values(self) -> tuple[Expr, ...]:
        """All values that are stored for each element, the main result first."""
        return (self.value, *(value for _, value in self.others))

    def rewritten(
        self, rewrite: Callable[[Expr], Expr], axes: Sequence[Axis] | None = None
    ) -> Output:
        """The output with each expression rewritten, and with other axes if some are given."""
        others = tuple((buffer, rewrite(value)) for buffer, value in self.others)
        kept = self.axes if axes is None else tuple(axes)
        return Output(self.buffer, rewrite(self.address), rewrite(self.value), kept, others)

    def stores(
        self,
        nest: Nest,
        place: Mapping[Var, Expr],
        done: Callable[[Expr], Expr | None] = lambda _: None,
    ) -> list[Stmt]:
        """Statements that compute and store one element.

        Several values are all computed before any is stored, so that each operand element is
        loaded once, whatever memory the results have.

        Args:
            place: the indices of the element.
            done: what stands for a reduction, by its expression; None for everything else.
        """
        memo: dict[Expr, Expr] = {}
        address = expr.substitute(self.address, place)
        reduced = [expr.transform(value, done, memo) for value in self.values]
        memo = {}
        values = [expr.substitute(value, place, memo) for value in reduced]
        stmts: list[Stmt] = []
        if self.others:
            values = [_held(nest, value, stmts) for value in values]
        buffers = (self.buffer, *(buffer for buffer, _ in self.others))
        return [
            *stmts,
            *(Store(b, (address,), value) for b, value in zip(buffers, values, strict=True)),
        ]


def _held(nest: Nest, value: Expr, into: list[Stmt]) -> Expr:
    """Binds `value` to a variable. If it is a cast to a storage-only dtype, its operand is bound
    instead."""
    if value.dtype.is_storage_only:
        return replace(value, a=_held(nest, value.a, into)) if isinstance(value, Cast) else value
    return nest.let(value, into, "v")


def collapse(
    axes: Sequence[Axis], address: Expr, values: Iterable[Expr]
) -> tuple[tuple[Axis, ...], dict[Var, Expr]]:
    """Merges neighbouring axes that every access walks as one: (merged axes, values of the old
    variables).

    Axes (i, j) become one of extent `Ei * Ej` where each address is linear in both with
    `coefficient(i) == coefficient(j) * Ej` and neither variable is used otherwise. Returns the
    axes left and what to substitute for the variables that went: i -> 0, j -> the merged one.
    """
    roots = list(values)

    def hidden(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        return replace(e, indices=(expr.index(0),) * len(e.indices), guard=None, other=None)

    # what is loaded to be an address, as of a table's entry, has an address that is asked itself
    memo: dict[Expr, Expr] = {}
    addresses = [
        expr.transform(e, hidden, memo)
        for e in (address, *(load.indices[0] for root in roots for load in expr.loads(root)))
    ]
    used_as_value = set[Var]()
    for root in roots:
        used_as_value |= _value_vars(root)
    left = list(axes)
    gone: dict[Var, Expr] = {}
    position = len(left) - 2
    while position >= 0:
        outer, inner = left[position], left[position + 1]
        fits = not {outer.var, inner.var} & used_as_value
        for where in addresses if fits else ():
            a, b = expr.coefficient(where, outer.var), expr.coefficient(where, inner.var)
            if a is None or b is None or a != dims.multiply(b, inner.extent):
                fits = False
                break
        if fits:
            left[position : position + 2] = [
                Axis(inner.var, dims.multiply(outer.extent, inner.extent))
            ]
            gone[outer.var] = expr.index(0)
        position -= 1
    return tuple(left), gone


def split_axis(output: Output, number: int, size: Dim) -> Output:
    """The output with axis `number` split into groups of `size`, which must divide its extent."""
    axis = output.axes[number]
    group = Axis(Var(f"{axis.var.name}g"), dims.floor_divide(axis.extent, size))
    member = Axis(Var(f"{axis.var.name}m"), size)
    found = group_of_axis(output, number, size, group.var, member, [group])
    axes = (*output.axes[:number], group, member, *output.axes[number + 1 :])
    return found.rewritten(lambda e: e, axes)


def group_of_axis(
    output: Output,
    number: int,
    size: Dim,
    group: Expr,
    member: Axis,
    known: Sequence[Axis] = (),
) -> Output:
    """The output restricted to one group of axis `number`: axis `member` replaces it, and each
    group has `size` members.

    Args:
        known: axes of the group's number.
    """
    axis = output.axes[number]
    whole = expr.add(expr.mul(group, expr.index(size)), member.var)

    def rewrite(e: Expr) -> Expr | None:
        if isinstance(e, Binary) and e.a is axis.var and expr.dim_of(e.b) == size:
            if e.op == "floordiv":
                return group
            if e.op == "floormod":
                return member.var
        return whole if e is axis.var else None

    memo: dict[Expr, Expr] = {}
    extents = {a.var: a.extent for a in (*output.axes, *known, member)}
    simple = simplifier(output.values, extents)
    axes = (*output.axes[:number], member, *output.axes[number + 1 :])
    return output.rewritten(lambda e: simple(expr.transform(e, rewrite, memo)), axes)


def without_division(output: Output) -> Output:
    """The output with each axis split that an expression divides into whole groups, so that
    addresses are linear again. Reshapes that move elements cause such divisions."""
    for e in (node for value in output.values for node in expr.nodes(value)):
        if not isinstance(e, Binary) or e.op not in ("floordiv", "floormod"):
            continue
        for number, axis in enumerate(output.axes):
            size = expr.dim_of(e.b)
            if e.a is axis.var and size is not None and dims.modulo(axis.extent, size) == 0:
                return without_division(split_axis(output, number, size))
    return output


def _value_vars(e: Expr) -> set[Var]:
    """Variables that `e` uses outside of load addresses."""
    found: set[Var] = set()
    seen: set[Expr] = set()
    stack = [e]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Var):
            found.add(node)
        elif isinstance(node, Load):
            stack.extend(x for x in (node.guard, node.other) if x is not None)
            stack.extend(load for x in node.indices for load in expr.loads(x))
        else:
            stack.extend(expr.children(node))
    return found


_IDENTITY = {
    "sum": 0,
    "prod": 1,
    "max": float("-inf"),
    "min": float("inf"),
    "greatest": float("-inf"),
    "least": float("inf"),
    "and": True,
    "or": False,
}
COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}


def identity(op: str, dtype: DType) -> Const:
    """The neutral element of the reduction `op`."""
    value = _IDENTITY[op]
    if dtype.is_integer and op in ("max", "min"):
        info = np.iinfo(dtype.numpy)
        value = int(info.min if op == "max" else info.max)
    return expr.const(value, dtype)


def combine(op: str, a: Expr, b: Expr) -> Expr:
    """A reduction's accumulator `a` combined with a term `b`.

    Of an extremum the term stands first: x86 asks the first operand whether it is NaN, which a
    term can be asked before it is known what it is compared with. The greatest and the least are
    of numbers: an instruction on all machines, where NaN may be left out.
    """
    if op in ("greatest", "least"):
        return expr.select(expr.binary("gt" if op == "greatest" else "lt", b, a), b, a)
    return expr.binary(op, b, a) if op in ("max", "min") else expr.binary(COMBINE[op], a, b)


def combined(op: str, total: Expr, term: Expr) -> Expr:
    """`total op term`; a sum of products is a fused multiply-add."""
    if op == "sum" and isinstance(term, Binary) and term.op == "mul" and term.dtype.is_float:
        return Fma(term.a, term.b, total, term.dtype)
    return combine(op, total, term)


@dataclass
class Nest:
    """A kernel under construction on a target.

    Attributes:
        lanes: extent of VECTOR loops (CPU) or LANE loops (GPU).
        is_long: extents that only the device knows count as too long for a lane.
    """

    builder: KernelBuilder
    target: Target
    lanes: int
    is_long: bool = False

    @property
    def is_gpu(self) -> bool:
        return self.target.has_workgroups

    def is_too_long(self, *nests: Sequence[Dim]) -> bool:
        """Whether one lane of a GPU would run more iterations of these loops than the target
        allows; `is_long` where an extent is not known.
        """
        limits = self.target.gpu
        total = 0
        for extents in nests:
            inner = 0
            for extent in reversed(extents):
                if not isinstance(extent, int):
                    return limits is not None and self.is_long
                inner = extent * (1 + inner) + 1
            total += inner
        return limits is not None and total > limits.max_lane_iterations

    def spread(self, extent: int, body: Callable[[Expr], Sequence[Stmt]], name: str = "l") -> Stmt:
        """A loop over `extent` lanes around `body`: LANE on a GPU, VECTOR on a CPU."""
        var = self.builder.var(name)
        kind = LoopKind.LANE if self.is_gpu else LoopKind.VECTOR
        return For(var, extent, kind, tuple(body(var)))

    def serial(
        self, extent: Dim, body: Callable[[Expr], Sequence[Stmt]], name: str = "i"
    ) -> list[Stmt]:
        """A serial loop around `body`; nothing for extent 0, no loop for extent 1."""
        if extent == 0:
            return []
        if extent == 1:
            return list(body(expr.index(0)))
        var = self.builder.var(name)
        return [For(var, extent, LoopKind.SERIAL, tuple(body(var)))]

    def vectors(
        self, extent: Dim, body: Callable[[Expr], Sequence[Stmt]], name: str = "o"
    ) -> list[Stmt]:
        """A CPU's loop over `extent` elements: whole vectors, then a scalar tail."""
        full = dims.floor_divide(extent, self.lanes)
        size = expr.index(self.lanes)
        stmts = self.serial(
            full,
            lambda o: [
                self.spread(self.lanes, lambda lane: body(expr.add(expr.mul(o, size), lane)))
            ],
            name,
        )
        done = expr.index(dims.multiply(full, self.lanes))
        tail = dims.modulo(extent, self.lanes)
        return stmts + self.serial(tail, lambda t: body(expr.add(done, t)), "t")

    def unrolled(
        self, extent: int, body: Callable[[Expr], Sequence[Stmt]], name: str = "u"
    ) -> list[Stmt]:
        """A loop whose variable becomes a constant."""
        if extent == 1:
            return list(body(expr.index(0)))
        var = self.builder.var(name)
        return [For(var, extent, LoopKind.UNROLLED, tuple(body(var)))]

    def let(self, value: Expr, into: list[Stmt], name: str = "t") -> Expr:
        """Binds a value to a variable, unless it is a leaf."""
        if isinstance(value, (expr.Var, expr.Const, expr.Size, expr.Param)):
            return value
        var = self.builder.var(name, value.dtype)
        into.append(Let(var, value))
        return var

    def grid(
        self,
        axes: Sequence[Axis],
        body: Callable[[dict[Var, Expr]], Sequence[Stmt]],
        work: Dim,
        *,
        first: int = 0,
    ) -> tuple[Stmt, ...]:
        """The grid: loops over `axes` (outermost first) around `body`, which does about `work`
        elements.

        On a CPU the innermost axes stay inside a workgroup until it has GRAIN elements; the rest
        is the grid's axis `first`, taken apart by division. Where only the device knows how many
        that are, a workgroup has several indices of the next axis. On a GPU everything is the grid.
        """
        inside: list[Axis] = []
        outside = list(axes)
        several = 1
        while outside and not self.is_gpu:
            several = _several(work, outside[-1].extent)
            if several:
                break
            inside.insert(0, outside.pop())
            work = dims.multiply(work, inside[0].extent)
        values: dict[Var, Expr] = {}
        stmts: list[Stmt] = []
        if not outside:
            return tuple(self.inside(inside, values, body))
        whole = self.builder.var("g")
        blocked = outside[-1]
        blocks = dims.ceil_divide(blocked.extent, several)
        outside[-1] = Axis(blocked.var, blocks)
        self.decode(whole, outside, values, stmts)
        if several > 1:
            # as many in each, so that a block of few does not ask for those that it has not
            size = dims.ceil_divide(blocked.extent, blocks)
            stmts += self._block(blocked, size, values, lambda: self.inside(inside, values, body))
        else:
            stmts += self.inside(inside, values, body)
        total = dims.product([a.extent for a in outside])
        return (For(whole, total, LoopKind.WORKGROUP, tuple(stmts), axis=first),)

    def _block(
        self, axis: Axis, size: Dim, values: dict[Var, Expr], body: Callable[[], list[Stmt]]
    ) -> list[Stmt]:
        """One workgroup's share of `axis`: up to `size` indices of the block whose number is in
        `values`."""
        start = expr.mul(values[axis.var], expr.index(size))

        def one(n: Expr) -> list[Stmt]:
            values[axis.var] = expr.add(start, n)
            inside = body()
            if dims.modulo(axis.extent, size) == 0:
                return inside
            is_there = expr.binary("lt", values[axis.var], expr.index(axis.extent))
            return [If(is_there, tuple(inside))]

        return self.serial(size, one, f"{axis.var.name}b")

    def decode(
        self, whole: Expr, axes: Sequence[Axis], values: dict[Var, Expr], into: list[Stmt]
    ) -> None:
        """Decodes a flat index into indices of `axes`, the last one fastest."""
        rest = whole
        for position in range(len(axes) - 1, -1, -1):
            axis = axes[position]
            if position == 0:
                values[axis.var] = rest
                return
            size = expr.index(axis.extent)
            values[axis.var] = self.let(expr.binary("floormod", rest, size), into, axis.var.name)
            rest = self.let(expr.binary("floordiv", rest, size), into, "q")

    def inside(
        self,
        axes: Sequence[Axis],
        values: dict[Var, Expr],
        body: Callable[[dict[Var, Expr]], Sequence[Stmt]],
    ) -> list[Stmt]:
        if not axes:
            return list(body(values))
        axis, rest = axes[0], axes[1:]
        return self.serial(
            axis.extent, lambda i: self.inside(rest, {**values, axis.var: i}, body), axis.var.name
        )

    def keep(
        self, kept: Sequence[Kept], body: Expr, place: Mapping[Var, Expr]
    ) -> tuple[list[Stmt], Expr]:
        """(stores, body) for one element: stores the values to keep, and replaces them in `body` by
        variables."""
        stmts: list[Stmt] = []
        memo: dict[Expr, Expr] = {}
        known: dict[Expr, Expr] = {}
        for each in kept:
            known[each.value] = self.let(expr.substitute(each.value, place, memo), stmts, "k")
            stmts.append(
                Store(each.scratch, (expr.substitute(each.place, place),), known[each.value])
            )
        return stmts, expr.substitute(expr.transform(body, known.get), place)


def _several(work: Dim, extent: Dim) -> int:
    """How many indices of an axis a CPU workgroup takes, at `work` elements each: enough to reach
    GRAIN elements. 0 means all.

    What only the device knows counts as little, so that a workgroup is seldom too small; where
    `work` is known the axis is taken whole, be it ever so long.
    """
    least = dims.estimate(work, GRAIN_WORK)
    if least is None or (isinstance(work, int) and work < GRAIN):
        return 0
    several = -(-GRAIN // max(least, 1))
    return 0 if isinstance(extent, int) and extent <= several and several > 1 else several
