"""What became one dispatch and what did not: `aotc inspect MODEL --fusion`.

Runs the passes up to those that form regions, and asks these why each region ends where it does.
Decides nothing; a module file does not hold what is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aot.analysis.control import control_ops
from aot.analysis.memory.storage import root_of
from aot.driver.cpu_fallback import hosts_of
from aot.driver.pipeline import FORMED, MODEL_PASSES, TARGET_PASSES, prepared
from aot.ir import dims
from aot.ir.builtin import CONSTANT
from aot.ir.clone import clone_module
from aot.ir.dims import Dim
from aot.ir.graph import Function, Op, Value
from aot.ops.structure import REGION
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.fusion.join_regions import explainer
from aot.passes.fusion.journal import FusionJournal
from aot.target import selection as targets


def explain_fusion(source: Any, options: CompileOptions) -> dict[str, Any]:
    """The dispatch regions of a model for each target, ready for JSON.

    Args:
        source: as `aot.driver.pipeline.compile_module` takes it.

    Raises:
        CompileError, UnsupportedError: the model or the options are at fault.
    """
    module, options = prepared(source, options)
    context = PassContext(options)
    run_passes(module, MODEL_PASSES, context)
    variants = []
    wanted = targets.load_together(options.targets)
    host = next(iter(hosts_of(wanted)), None)
    for target in wanted:
        copy = clone_module(module)
        made = PassContext(
            *(options, target),
            runs=list(context.runs),
            journal=FusionJournal(),
            host=None if target.is_cpu else host,
        )
        run_passes(copy, TARGET_PASSES[:FORMED], made)
        functions = [
            {"entry_point": f.name, "regions": regions_of(f, made)} for f in copy.entry_points
        ]
        variants.append({"target": target.name, "entry_points": functions})
    return {"variants": variants}


def regions_of(function: Function, context: PassContext) -> list[dict[str, Any]]:
    """The regions of a function that passes with a journal have formed."""
    return _Report(function, context).regions()


class _Report:
    """The regions of a function, in the order of the text."""

    def __init__(self, function: Function, context: PassContext) -> None:
        journal = context.journal
        assert context.target is not None and journal is not None
        self.function = function
        self.journal = journal
        self.is_joining = context.options.fusion
        self.why_not_joined = explainer(function, context.target)
        ops = [op for op in control_ops(function) if op.record is REGION]
        self.numbers = {op: n for n, op in enumerate(ops)}

    def regions(self) -> list[dict[str, Any]]:
        return [self.region(op, number) for op, number in self.numbers.items()]

    def region(self, region: Op, number: int) -> dict[str, Any]:
        groups = self.journal.groups.get(region, ())
        inner = [op for op in region.blocks[0] if not op.record.is_terminator]
        roots = [self.journal.roots[n] for n in groups]
        operands = list(dict.fromkeys(v for v in region.operands if v is not None))
        return {
            "number": number,
            "roots": [{"op": name, "node": node} for name, node in roots],
            "ops": [{"op": op.name, "node": op.origin} for op in inner],
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
        """Where a value comes from, and why its region is not this one."""
        producer = root_of(value)[0].op
        assert producer is not None
        reasons = []
        if value.op is not producer and value.op is not None:
            reasons.append(f"{value.op.name} shows what is in memory")
        reasons += self.journal.reasons(producer, region)
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
    """Of all elements, without what lies between them."""
    total: Dim = 0
    for value in values:
        size = dims.multiply(value.type.element_count, value.type.dtype.bytes)
        total = dims.add(total, size)
    return total


def _plain(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else str(dim)


def format_fusion(facts: Mapping[str, Any]) -> str:
    """The text that `aotc inspect --fusion` prints."""
    lines: list[str] = []
    for variant in facts["variants"]:
        for function in variant["entry_points"]:
            regions = function["regions"]
            lines += [
                "",
                f"{len(regions)} dispatch regions of {function['entry_point']} for "
                f"{variant['target']}",
            ]
            for region in regions:
                lines += ["", *_region_lines(region)]
    return "\n".join(lines[1:])


def _region_lines(region: Mapping[str, Any]) -> Iterator[str]:
    constants = region["bytes_constant"]
    sizes = f"{_size(region['bytes_in'])} in, {_size(region['bytes_out'])} out"
    if constants != 0:
        sizes += f", {_size(constants)} of constants"
    roots = ", ".join(_name(root) for root in region["roots"])
    yield f"{region['number']}: {roots}"
    yield f"   {sizes}"
    if len(region["ops"]) > 1:
        yield f"   ops: {', '.join(_name(op) for op in region['ops'])}"
    reads = Counter((r["type"], r["region"], tuple(r["why"])) for r in region["reads"])
    for (type, source, why), count in reads.items():
        times = f"{count} times " if count > 1 else ""
        yield f"   reads {times}{type} of {source}, apart because"
        for reason in why:
            yield f"     - {reason}"


def _name(op: Mapping[str, str]) -> str:
    return f"{op['op']} {op['node']}" if op["node"] else op["op"]


def _size(count: int | str) -> str:
    return f"{count:,} bytes" if isinstance(count, int) else f"{count} bytes"
