"""The report on dispatch regions: what each contains, and why it ends where it does.

Uses the remarks of the passes that formed the regions, and their predicates. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aot.analysis.control import control_ops
from aot.analysis.memory.storage import root_of
from aot.ir import dims
from aot.ir.builtin import CONSTANT
from aot.ir.dims import Dim
from aot.ir.graph import Function, Op, Value
from aot.ops.structure import REGION
from aot.passes.base import PassContext
from aot.passes.fusion.join_regions import explainer


def regions_of(function: Function, context: PassContext) -> list[dict[str, Any]]:
    """One dict per region of a function whose regions were formed with `context.remarks` set."""
    return _Report(function, context).regions()


class _Report:
    """Reports a function's regions, in the order of its text."""

    def __init__(self, function: Function, context: PassContext) -> None:
        remarks = context.remarks
        assert context.target is not None and remarks is not None
        self.function = function
        self.remarks = remarks
        self.is_joining = all(map(context.options.is_enabled, ("fusion", "join-regions")))
        self.why_not_joined = explainer(function, context.target)
        ops = [op for op in control_ops(function) if op.record is REGION]
        self.numbers = {op: n for n, op in enumerate(ops)}

    def regions(self) -> list[dict[str, Any]]:
        return [self.region(op, number) for op, number in self.numbers.items()]

    def region(self, region: Op, number: int) -> dict[str, Any]:
        groups = self.remarks.groups.get(region, ())
        inner = [op for op in region.blocks[0] if not op.record.is_terminator]
        roots = [self.remarks.roots[n] for n in groups]
        operands = list(dict.fromkeys(v for v in region.operands if v is not None))
        return {
            "number": number,
            "roots": [{"op": name, "node": node} for name, node in roots],
            "ops": [{"op": op.name, "node": op.origin} for op in inner],
            "weighed": [text for n in groups for text in self.remarks.weighed.get(n, ())],
            "bytes_in": _plain(_bytes(v for v in operands if not _is_constant(v))),
            "bytes_constant": _plain(_bytes(v for v in operands if _is_constant(v))),
            "bytes_out": _plain(_bytes(region.results)),
            "reads": [
                self.read(region, value)
                for value in operands
                if root_of(value)[0].op in self.numbers
            ],
        }

    def read(self, region: Op, value: Value) -> dict[str, Any]:
        """A value that a region reads: its producer, and why that is in another region."""
        producer = root_of(value)[0].op
        assert producer is not None
        reasons = []
        if value.op is not producer and value.op is not None:
            reasons.append(f"{value.op.name} is a view of memory")
        reasons += self.remarks.reasons(producer, region)
        if not self.is_joining:
            reasons.append("fusion is off")
        elif producer.parent is not region.parent:
            reasons.append("they are in different blocks of control flow")
        else:
            reasons.append(f"as stages: {self.why_not_joined(producer, region)}")
        return {
            "region": self.numbers[producer],
            "type": str(value.type),
            "bytes": _plain(_bytes([value])),
            "why": list(dict.fromkeys(reasons)),
        }


def _is_constant(value: Value) -> bool:
    root = root_of(value)[0]
    return root.op is not None and root.op.record is CONSTANT


def _bytes(values: Iterable[Value]) -> Dim:
    """The bytes of all elements of some values, without gaps in memory."""
    total: Dim = 0
    for value in values:
        total = dims.add(total, value.type.dtype.storage_bytes(value.type.element_count))
    return total


def _plain(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else str(dim)
