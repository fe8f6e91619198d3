"""Explains fusion: `aotc inspect MODEL --fusion`.

Runs the passes up to those that form regions, and asks these why each region ends where it does;
then the others, and proves the kernels that come of them. Decides nothing; a module file does not
hold what is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aot.analysis.cost.candidates import Run, runs_of
from aot.analysis.memory.alignment import buffer_alignments
from aot.api import ungrouped
from aot.backends.registry import Backends
from aot.driver.cpu_fallback import hosts_of
from aot.driver.kernels import Kernels
from aot.driver.pipeline import prepared
from aot.driver.proofs import Proofs
from aot.ir import dims
from aot.ir.assumed_extents import MEASURED
from aot.ir.clone import clone_module
from aot.ir.graph import Function, Module
from aot.kernels.alternatives import alternatives
from aot.kernels.ir.nodes import Kernel
from aot.kernels.lowering import root_of
from aot.kernels.price.cycles import cycles_of
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.fusion.region_report import regions_of
from aot.passes.fusion.remarks import FusionRemarks
from aot.passes.order import FORMED, MODEL_PASSES, TARGET_PASSES
from aot.target import selection as targets
from aot.target.model import Target


def explain_fusion(model: Any, **keywords: Any) -> dict[str, Any]:
    """The dispatch regions of a model by target: their ops, their bytes, and why each region ends
    where it does.

    Args:
        model: as `aot.compile` takes it.
        keywords: options as `aot.compile` takes them.

    Raises:
        CompileError, UnsupportedError: as `aot.compile`.
    """
    module, options = prepared(model, CompileOptions(**ungrouped(keywords)))
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
            remarks=FusionRemarks(),
            host=host if target.has_cpu_fallback else None,
        )
        run_passes(copy, TARGET_PASSES[:FORMED], made)
        functions = [
            {"entry_point": f.name, "regions": regions_of(f, made)} for f in copy.entry_points
        ]
        run_passes(copy, TARGET_PASSES[FORMED:], made)
        variants.append({"target": target.name, "entry_points": functions} | _kernels(copy, made))
    return {"variants": variants}


def _kernels(module: Module, context: PassContext) -> dict[str, Any]:
    """The kernels of a module after its passes: the rules that emit them, and how they are proved
    to stay inside their memory."""
    assert context.target is not None
    with Backends(context.options) as backends:
        unrolled = backends.of(context.target).unrolled
        kernels = Kernels.of(module, context.target, context.host, unrolled)
        proofs = Proofs(module, backends.cache)
        for function, kernel in zip(module.executables, kernels.made, strict=True):
            proofs.prove(function, kernel, kernels.fallback.runner_of(function))
    runs = runs_of(module)
    alignments = buffer_alignments(module) if context.target.has_workgroups else {}
    built = [
        {
            "executable": function.name,
            "op": root_of(function).name,
            "node": next((run.op.origin for run in runs.get(function.name, ())), ""),
            "dispatches": sum(run.count for run in runs.get(function.name, ())),
            "schedule": [str(stage) for stage in function.schedule],
        }
        | _prices(
            function,
            kernel,
            kernels.fallback.runner_of(function),
            runs.get(function.name, ()),
            alignments.get(function.name, ()),
        )
        for function, kernel in zip(module.executables, kernels.made, strict=True)
    ]
    return {"kernels": built, "proofs": proofs.section()}


def _prices(
    function: Function,
    kernel: Kernel,
    target: Target,
    runs: Sequence[Run],
    alignments: Sequence[int],
) -> dict[str, Any]:
    """The estimated cost of a kernel's first dispatch, with the chosen lowering rule and with the
    best other rule."""
    values = runs[0].values.items() if runs else ()
    extents = {name: dims.estimate(dim, MEASURED) or 0 for name, dim in values}
    others = alternatives(function, target, extents, alignments)
    other = min(others, key=lambda a: a.cycles, default=None)
    second = {"rule": other.rule, "cycles": round(other.cycles)} if other else None
    return {"cycles": round(cycles_of(kernel, target, extents)), "next_best": second}


def proofs_line(section: Mapping[str, Any]) -> str:
    """A line with the number of proved kernels, by method of proof."""
    by = [f"{count} by {way}" for way, count in section["by"].items() if count]
    return f"{section['kernels']} kernels proved to stay inside their memory: {', '.join(by)}"


def format_fusion(facts: Mapping[str, Any]) -> str:
    """The text that `aotc inspect --fusion` prints."""
    lines: list[str] = []
    for variant in facts["variants"]:
        if variant["proofs"]["kernels"]:
            lines += ["", f"{variant['target']}: {proofs_line(variant['proofs'])}"]
        kernels = variant["kernels"]
        lines += ["", f"{len(kernels)} kernels for {variant['target']}, and how they are built"]
        lines += [
            "   (estimates from their loops, of which two in three are right within a factor of 2)"
        ]
        lines += [line for kernel in kernels for line in _kernel_lines(kernel)]
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


def _kernel_lines(kernel: Mapping[str, Any]) -> Iterator[str]:
    times = f", {kernel['dispatches']} times" if kernel["dispatches"] != 1 else ""
    yield f"   {kernel['executable']}: {_name(kernel)}{times}"
    yield f"      {', '.join(kernel['schedule'])}"
    second = kernel["next_best"]
    other = f'; next best by "{second["rule"]}", {second["cycles"]:,}' if second else ""
    yield f"      an estimated {kernel['cycles']:,} cycles{other}"


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
    for text in region["weighed"]:
        yield f"   takes in {text}"
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
