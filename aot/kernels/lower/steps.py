"""How long a lane is at a kernel: the iterations of loops that it goes through, one after another.

Counts; what is too long is its caller's to say.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from aot.ir import dims
from aot.ir.dims import Dim
from aot.kernels.ir.nodes import For, If, Kernel, LoopKind, Stmt

# What lanes, or instructions without a loop, do.
_SPREAD = (LoopKind.WORKGROUP, LoopKind.LANE)


def lane_iterations(kernel: Kernel, unrolled: Container[For] = ()) -> Dim:
    """The most iterations of any lane, as a dim over the kernel's parameters.

    A loop counts one more than its extent, for the time that its condition ends it. Both sides of
    a condition count: lanes that a driver runs together go through both where they differ.

    Args:
        unrolled: loops that are written out, and no loops in the shader.
    """
    return _iterations(kernel.body, unrolled)


def _iterations(body: Sequence[Stmt], unrolled: Container[For]) -> Dim:
    total: Dim = 0
    for stmt in body:
        if isinstance(stmt, If):
            both = _iterations(stmt.then, unrolled), _iterations(stmt.otherwise, unrolled)
            total = dims.add(total, dims.add(*both))
        elif isinstance(stmt, For):
            inner = _iterations(stmt.body, unrolled)
            if stmt.kind not in _SPREAD:
                inner = _repeated(stmt, inner, is_loop=stmt not in unrolled)
            total = dims.add(total, inner)
    return total


def _repeated(loop: For, inner: Dim, *, is_loop: bool) -> Dim:
    low, _ = dims.bounds(loop.extent, {})
    extent = loop.extent if low is not None and low >= 0 else dims.maximum(0, loop.extent)
    if not is_loop:
        return dims.multiply(extent, inner)
    return dims.add(dims.multiply(extent, dims.add(inner, 1)), 1)
