"""The CPU fallback's criterion: ops of dtypes that a GPU target has no arithmetic or loads for.

A Vulkan variant runs them on its host, the CPU target that it is compiled with. A pure function of
op and target; whether there is a host is the caller's to know.
"""

from __future__ import annotations

from aot.ir.graph import Op
from aot.ir.record import Kind
from aot.target.model import Target

# What moves 64-bit integers moves words, and what computes elements of them computes pairs.
_IN_WORDS = frozenset({Kind.STRUCTURE, Kind.VIEW, Kind.MOVEMENT, Kind.SHAPE, Kind.ELEMENTWISE})


def why_on_cpu(op: Op, target: Target | None) -> str:
    """Why `target` cannot run a kernel of `op`; "" if it can."""
    if target is None or not target.has_cpu_fallback:
        return ""
    dtypes = {t.dtype for t in (*op.operand_types, *(v.type for v in op.results)) if t is not None}
    wide = [d for d in dtypes if d.narrows_to is not None and not target.computes(d)]
    if not wide:
        return ""
    # a float by itself needs the host, wherever it only goes
    dtype = max(wide, key=lambda d: (d.is_float, str(d)))
    if dtype.is_integer and op.record.kind in _IN_WORDS:
        return ""
    return f"{dtype}, which {target.name} does not compute"
