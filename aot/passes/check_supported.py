"""check-supported: refuses what no program can run yet, all of it at once.

Requires: nothing.
Ensures: every op of the module is one that later passes and the runtime know what to do with.
Never: changes anything.
"""

from __future__ import annotations

from aot.errors import UnsupportedError
from aot.ir.core import Module, Op
from aot.passes.base import Pass, PassContext


def run(module: Module, context: PassContext) -> None:
    found = [
        _line(op)
        for function in module.functions.values()
        for op in function.walk()
        if op.record.unsupported
    ]
    if found:
        raise UnsupportedError("these can't be compiled yet:", list(dict.fromkeys(found)))


def _line(op: Op) -> str:
    where = f" (node {op.origin!r})" if op.origin else ""
    return f"{op.name}{where}: {op.record.unsupported}"


CHECK_SUPPORTED = Pass("check-supported", run, __doc__)
