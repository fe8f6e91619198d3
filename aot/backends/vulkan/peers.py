"""Values that are the same in neighbouring lanes, computed by one of them for all.

The rows of a register tile are the case: `for r: a = left[first + r]`, where lanes that differ in
their columns only have equal rows. Peers, a few neighbouring lanes of a subgroup, compute a row
each, and each takes the others' by a shuffle: a load or two where there were as many as rows. Owns
which loops those are, and the shuffles; assumes subgroups of a multiple of MOST_PEERS lanes.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import gcd

from aot.backends.vulkan.assembler import FunctionBody
from aot.backends.vulkan.spirv import BuiltIn, Capability, Op, Scope
from aot.backends.vulkan.values import Linear, Values
from aot.ir.expr import Binary, Const, Expr, Load, Var, children, free_vars, loads
from aot.ir.types import DType
from aot.kernels.ir.nodes import For, If, Kernel, Let, LoopKind, Scratch, Stmt, walk

MOST_PEERS = 8


def peers_of(kernel: Kernel, unrolled: Container[For]) -> dict[For, int]:
    """The unrolled loops that begin with a value to be shared, and by how many lanes each."""
    return _Finder(kernel, unrolled).found


class _Finder:
    """A walk over a kernel that finds loads that neighbouring lanes can share."""

    def __init__(self, kernel: Kernel, unrolled: Container[For]) -> None:
        self.found: dict[For, int] = {}
        self.unrolled = unrolled
        lanes = [s for s in walk(kernel.body) if isinstance(s, For) and s.kind is LoopKind.LANE]
        self.lanes = {loop.var for loop in lanes}
        self._alike: dict[Expr, int] = {}
        self._lets: dict[Var, Expr] = {}
        if all(loop.axis == 0 for loop in lanes):
            self._body(kernel.body, MOST_PEERS)

    def _body(self, body: tuple[Stmt, ...], most: int) -> None:
        """Finds loops within `body`, which at least groups of `most` lanes come to together."""
        for stmt in body:
            match stmt:
                case Let():
                    self._lets[stmt.var] = stmt.value
                case If():
                    inside = min(most, self._branching(stmt.condition))
                    self._body(stmt.then, inside)
                    self._body(stmt.otherwise, inside)
                case For():
                    self._body(stmt.body, most)
                    if stmt in self.unrolled and most > 1:
                        self._loop(stmt, most)

    def _loop(self, loop: For, most: int) -> None:
        first = loop.body[0]
        if not isinstance(first, Let) or not isinstance(loop.extent, int) or loop.extent < 2:
            return
        is_word = first.var.dtype is DType.F32 or first.var.dtype.is_packed
        if not is_word or not any(_is_by(load, loop.var) for load in loads(first.value)):
            return
        count = min(most, self._alike_lanes(first.value), 1 << (loop.extent - 1).bit_length())
        if count > 1:
            self.found[loop] = count

    def _branching(self, condition: Expr) -> int:
        """How many neighbouring lanes surely take the same branch."""
        if isinstance(condition, Binary) and condition.op == "lt":
            a, b = condition.a, condition.b
            if isinstance(a, Var) and a in self.lanes and isinstance(b, Const):
                return gcd(int(b.value), MOST_PEERS)
        return self._alike_lanes(condition)

    def _alike_lanes(self, e: Expr) -> int:
        """How many neighbouring lanes surely have the same value of `e`: a power of two."""
        known = self._alike.get(e)
        if known is None:
            if isinstance(e, Var) and e in self._lets:
                known = self._alike_lanes(self._lets[e])
            elif isinstance(e, Var):
                known = 1 if e in self.lanes else MOST_PEERS
            elif isinstance(e, Binary) and e.op == "floordiv" and e.a in self.lanes:
                known = gcd(int(e.b.value), MOST_PEERS) if isinstance(e.b, Const) else 1
            elif isinstance(e, Load) and isinstance(e.source, Scratch):
                known = 1
            else:
                known = min(map(self._alike_lanes, children(e)), default=MOST_PEERS)
            self._alike[e] = known
        return known


def _is_by(load: Load, var: Var) -> bool:
    """Whether it loads something else for each value of `var`."""
    return any(var in free_vars(index) for index in load.indices)


class Peers:
    """Emits the exchange of values among neighbouring lanes."""

    def __init__(self, loops: Mapping[For, int], values: Values, body: FunctionBody) -> None:
        self.loops = loops
        self.values = values
        self.body = body

    def own(self, first: int, count: int, end: int) -> Linear:
        """The number that the lane computes for its peers, of `count` from `first` on: there are
        none from `end` on."""
        values = self.values
        rest = values.pure(Op.BITWISE_AND, values.asm.u32, self._lane(), values.u32(count - 1))
        values.remember(rest, (0, count - 1))
        last = Linear((), min(count, end - first) - 1)
        return values.extremum(values.atom(rest), last, is_max=False) + Linear((), first)

    def take(self, value: int, type: int, number: int, count: int) -> int:
        """The value of `value` in the lane that is number `number` of `count` peers."""
        values, asm = self.values, self.values.asm
        asm.capability(Capability.GROUP_NON_UNIFORM_SHUFFLE)
        start = values.pure(Op.BITWISE_AND, asm.u32, self._lane(), values.u32(-count))
        lane = values.pure(Op.BITWISE_OR, asm.u32, start, values.u32(number))
        scope = values.u32(Scope.SUBGROUP)
        return values.define(
            self.body.result(Op.GROUP_NON_UNIFORM_SHUFFLE, type, scope, value, lane)
        )

    def _lane(self) -> int:
        """The lane's number in its subgroup."""
        asm = self.values.asm
        asm.capability(Capability.GROUP_NON_UNIFORM)
        builtin = asm.builtin(BuiltIn.SUBGROUP_LOCAL_INVOCATION_ID)
        return self.values.pure(Op.LOAD, asm.u32, builtin)
