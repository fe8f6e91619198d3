"""Loops over four neighbours at a time that become vector instructions.

A register tile's sums are the case: `acc[r, u] = fma(a, w[.. + u], acc[r, u])` for u in an unrolled
loop. As vectors they are a quarter of the instructions, and of the phis around each loop. Owns
which loops and scratch those are, and their evaluation; what has no vector form is left to the
scalar one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aot.backends.vulkan.expressions import Expressions
from aot.backends.vulkan.memory import Memory
from aot.backends.vulkan.placement import QUAD, Placement, SumLoop
from aot.backends.vulkan.spirv import Glsl, Op
from aot.backends.vulkan.values import Linear, Values
from aot.ir.expr import Const, Expr, Fma, Load, Var, free_vars
from aot.ir.types import DType
from aot.kernels.ir import Buffer, For, Scratch


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
        """Emits the loop's iterations; False, and nothing stored, where they have no such form."""
        found = self.sums.get(loop)
        if found is None:
            return False
        stores = list(self._stores(loop, found))
        if any(value is None for _, value in stores):
            return False
        for indices, value in stores:
            assert value is not None
            self.memory.store_vector(found.target, indices, value)
        return True

    def _stores(self, loop: For, found: SumLoop) -> Iterator[tuple[list[Linear], int | None]]:
        assert isinstance(loop.extent, int)
        for first in range(0, loop.extent, QUAD):
            self.expressions.start_statement()
            self.expressions.environment[loop.var] = Linear((), first)
            value = self._vector(found.value, loop.var)
            yield [self.expressions.index(i) for i in found.indices], value
        self.expressions.start_statement()

    def _vector(self, e: Expr, var: Var) -> int | None:
        """Four neighbours of `e` along `var`, which stands for the first."""
        if isinstance(e, Const) or var not in free_vars(e):
            scalar = self.expressions.scalar(e)
            if self.values.bits(scalar) == 0:
                return self.values.asm.null(self.type)
            return self.values.pure(Op.COMPOSITE_CONSTRUCT, self.type, *(scalar,) * QUAD)
        if isinstance(e, Fma):
            parts = [self._vector(x, var) for x in (e.a, e.b, e.c)]
            known = [p for p in parts if p is not None]
            return None if len(known) < 3 else self.values.glsl(Glsl.FMA, self.type, *known)
        if not isinstance(e, Load) or e.dtype is not DType.F32 or e.guard is not None:
            return None
        indices = [self.expressions.index(i) for i in e.indices]
        if isinstance(e.source, Scratch):
            return self.memory.load_vector(e.source, indices)
        assert isinstance(e.source, Buffer)
        return self.memory.load_quad(e.source, indices)
