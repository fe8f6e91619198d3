"""How long a lane is at a kernel: the iterations of loops that it goes through, one after another.

Counts; what is too long is its caller's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.ir.dims import Dim
from aot.kernels.ir.nodes import For, If, Kernel, LoopKind, Stmt

# What lanes, or instructions without a loop, do.
_SPREAD = (LoopKind.WORKGROUP, LoopKind.LANE, LoopKind.UNROLLED)


def lane_steps(kernel: Kernel, extent_of: Callable[[Dim], int]) -> int:
    """The most iterations of any lane, with `extent_of` for dims over the kernel's parameters."""
    return _steps(kernel.body, extent_of)


def _steps(body: Sequence[Stmt], extent_of: Callable[[Dim], int]) -> int:
    total = 0
    for stmt in body:
        if isinstance(stmt, If):
            total += max(_steps(stmt.then, extent_of), _steps(stmt.otherwise, extent_of))
        elif isinstance(stmt, For):
            inner = _steps(stmt.body, extent_of)
            is_spread = stmt.kind in _SPREAD
            total += inner if is_spread else max(0, extent_of(stmt.extent)) * (1 + inner)
    return total
