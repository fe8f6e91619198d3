"""Which ops a GPU's target can't run: those of a dtype that it has no arithmetic or no loads for.

A Vulkan variant runs them on its host, the CPU target that it is compiled with. A pure function of
op and target; whether there is a host is the caller's to know.
"""

from __future__ import annotations

from aot.ir.graph import Op
from aot.ir.record import Kind
from aot.ir.types import DType
from aot.ops.elementwise import CAST
from aot.target.model import Target

# What only moves 64-bit integers moves words.
_MOVES = frozenset({Kind.STRUCTURE, Kind.VIEW, Kind.MOVEMENT, Kind.SHAPE})


def why_on_cpu(op: Op, target: Target | None) -> str:
    """Why a kernel of `op` can't run on `target`; "" where it can."""
    if target is None or not target.has_cpu_fallback:
        return ""
    dtypes = {t.dtype for t in (*op.operand_types, *(v.type for v in op.results)) if t is not None}
    wide = [d for d in dtypes if d.narrows_to is not None and not target.computes(d)]
    if not wide:
        return ""
    # a float by itself needs the host, wherever it only goes
    dtype = max(wide, key=lambda d: (d.is_float, str(d)))
    if dtype.is_integer and (op.record.kind in _MOVES or _is_narrow_cast(op, dtypes)):
        return ""
    return f"{dtype}, which {target.name} does not compute"


def _is_narrow_cast(op: Op, dtypes: set[DType]) -> bool:
    """Whether the op is a cast between integers, which takes a word or adds one."""
    return op.record is CAST and not any(d.is_float for d in dtypes)
