"""Loops over four neighbours at a time that become vector instructions.

A register tile's sums are the case: `acc[r, u] = fma(a, w[.. + u], acc[r, u])` for u in an unrolled
loop. As vectors they are a quarter of the instructions, and of the phis around each loop. Stores of
neighbours in a buffer are one as well. Owns which loops and scratch those are, and their
evaluation; what does not lie side by side is put together one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aot.backends.vulkan.expressions import Expressions
from aot.backends.vulkan.memory import Memory
from aot.backends.vulkan.placement import Placement, SumLoop
from aot.backends.vulkan.spirv import Glsl, Op
from aot.backends.vulkan.values import Linear, Values
from aot.ir.expr import (
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Var,
    coefficient,
    free_vars,
    index,
    loads,
)
from aot.ir.schedule import QUAD
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, For, Scratch, Space, Store


class Vectors:
    """Emits the loops that `Placement.sums` names."""

    def __init__(
        self, placement: Placement, values: Values, memory: Memory, expressions: Expressions
    ) -> None:
        self.sums: Mapping[For, SumLoop] = placement.sums
        self.values = values
        self.memory = memory
        self.expressions = expressions
        self.type = values.asm.vector(values.asm.f32, QUAD)

    def emit(self, loop: For) -> bool:
        """Emits the loop with vec4 instructions; returns False, with nothing stored, where it can't
        be.
        """
        found = self.sums.get(loop)
        if found is None:
            return self._store_neighbours(loop)
        for indices, value in list(self._stores(loop, found)):
            self.memory.store_vector(found.target, indices, value)
        return True

    def _store_neighbours(self, loop: For) -> bool:
        """Stores to neighbours in a buffer, four at once, where the loop does just that."""
        (stmt, *others) = loop.body
        if others or not isinstance(stmt, Store):
            return False
        if isinstance(stmt.target, Scratch):
            return self._store_shared(loop, stmt, stmt.target)
        target = stmt.target
        assert isinstance(target, Buffer)
        if loop.count % QUAD or stmt.guard is not None or len(stmt.indices) != 1:
            return False
        is_read = any(load.source is target for load in loads(stmt.value))
        if is_read or coefficient(stmt.indices[0], loop.var) != 1:
            return False
        for first in range(0, loop.count, QUAD):
            self._start(loop.var, first)
            if not self.memory.starts_quad(target, [self.expressions.index(stmt.indices[0])]):
                return False
        for first in range(0, loop.count, QUAD):
            parts: list[int] = []
            for number in range(first, first + QUAD):
                self._start(loop.var, number)
                part = self.expressions.stored(stmt.value)
                assert isinstance(part, int)
                parts.append(part)
            self._start(loop.var, first)
            indices = [self.expressions.index(i) for i in stmt.indices]
            self.memory.store_quad(target, indices, parts)
        self.expressions.start_statement()
        return True

    def _store_shared(self, loop: For, stmt: Store, target: Scratch) -> bool:
        """Stores a four of shared scratch at once, where the loop does just that."""
        if (
            loop.extent != QUAD
            or stmt.guard is not None
            or any(load.source is target for load in loads(stmt.value))
        ):
            return False
        if not self.memory.are_neighbours(target, self._places(stmt.indices, loop.var, 0)):
            return False
        parts: list[int] = []
        for number in range(QUAD):
            self._start(loop.var, number)
            parts.append(self.expressions.scalar(stmt.value))
        self._start(loop.var, 0)
        indices = [self.expressions.index(i) for i in stmt.indices]
        self.memory.store_shared_quad(target, indices, parts)
        self.expressions.start_statement()
        return True

    def _places(self, indices: tuple[Expr, ...], var: Var, first: int) -> list[list[Linear]]:
        """The indices of four elements, whose numbers along `var` begin at `first`."""
        found: list[list[Linear]] = []
        for number in range(first, first + QUAD):
            self._start(var, number)
            found.append([self.expressions.index(i) for i in indices])
        self._start(var, first)
        return found

    def _stores(self, loop: For, found: SumLoop) -> Iterator[tuple[list[Linear], int]]:
        for first in range(0, loop.count, QUAD):
            self._start(loop.var, first)
            value = self._vector(found.value, loop.var, first)
            yield [self.expressions.index(i) for i in found.indices], value
        self.expressions.start_statement()

    def _start(self, var: Var, number: int) -> None:
        """Sets `var` to a constant."""
        self.expressions.start_statement()
        self.expressions.environment[var] = Linear((), number)

    def _vector(self, e: Expr, var: Var, first: int) -> int:
        """Four neighbours of `e` along `var`, which is the number `first` now."""
        if isinstance(e, Const) or var not in free_vars(e):
            scalar = self.expressions.scalar(e)
            if self.values.bits(scalar) == 0:
                return self.values.asm.null(self.type)
            return self.values.pure(Op.COMPOSITE_CONSTRUCT, self.type, *(scalar,) * QUAD)
        if isinstance(e, Fma):
            parts = [self._vector(x, var, first) for x in (e.a, e.b, e.c)]
            return self.values.glsl(Glsl.FMA, self.type, *parts)
        loaded = self._neighbours(e, var, first)
        return self._gathered(e, var, first) if loaded is None else loaded

    def _neighbours(self, e: Expr, var: Var, first: int) -> int | None:
        """Loads four elements that are contiguous in memory at once, from number `first` on; None
        where `e` is no such load.
        """
        if isinstance(e, Cast) and e.a.dtype.is_float and e.a.dtype.is_loaded_as(e.dtype):
            e = e.a  # four of them come out as f32
        elif e.dtype is not DType.F32:
            return None
        if not isinstance(e, Load) or e.guard is not None:
            return None
        source = e.source
        if isinstance(source, Scratch) and source.space is Space.WORKGROUP:
            places = self._places(e.indices, var, first)
            are_four = self.memory.are_neighbours(source, places)
            return self.memory.load_vector(source, places[0]) if are_four else None
        indices = [self.expressions.index(i) for i in e.indices]
        *outer, last = self._kept_indices(e)
        if coefficient(last, var) != 1 or any(var in free_vars(i) for i in outer):
            return None
        if isinstance(source, Scratch):
            return self.memory.load_vector(source, indices)
        assert isinstance(source, Buffer)
        return self.memory.load_quad(source, indices)

    def _kept_indices(self, e: Load) -> list[Expr]:
        """A load's indices along the dims that its memory has; at least one."""
        if not isinstance(e.source, Scratch):
            return list(e.indices)
        kept = [e.indices[d] for d in self.memory.places[e.source].kept]
        return kept or [index(0)]

    def _gathered(self, e: Expr, var: Var, first: int) -> int:
        """Four values of `e`, one by one."""
        scalars = []
        for number in range(first, first + QUAD):
            self._start(var, number)
            scalars.append(self.expressions.scalar(e))
        self._start(var, first)
        return self.values.pure(Op.COMPOSITE_CONSTRUCT, self.type, *scalars)
