"""Graphs of the yolov3 kind, of any size: residual blocks, views, activations and sums in place.

`python tests/support/alias_scale.py` prints what analysing and fusing them costs by their size,
with a database that is updated and with one that is built anew after each change; and what the
database itself costs.
"""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aot.analysis.alias.database import AliasDb
from aot.analysis.alias.facts import AliasFacts
from aot.builder import Builder
from aot.ir.builtin import YIELD
from aot.ir.graph import Block, Function, Module, Op
from aot.ir.record import Kind
from aot.ir.rewriter import Rewriter
from aot.ops.structure import REGION
from aot.options import CompileOptions
from aot.passes.base import PassContext
from aot.passes.fusion.fuse import FUSE
from aot.passes.fusion.join_regions import JOIN_REGIONS
from aot.passes.fusion.tie_operands import TIE_OPERANDS
from aot.passes.memory.alias_concat import ALIAS_CONCAT
from aot.passes.memory.insert_copies import INSERT_COPIES
from aot.target.selection import load

Graph = Callable[[int], Function]

STAGE = 8  # residual blocks that are summed into one memory
CHANNELS, SIDE = 32, 26  # of what a detector's convolutions make


def residual_graph(count: int, stage: int = STAGE) -> Function:
    """A function of about `count` ops. `stage` 0 sums everything into one memory."""
    b = Builder()
    w = b.input("w", "f32[1, 8]")
    x = b.op("mul", b.input("x", "f32[1, 8]"), w)
    made = blocks = 0
    while made < count:
        y = b.op("add", b.op("mul", x, w), w)
        y = b.op("assign", y, b.op("relu", y))
        flat = b.op("reshape", b.op("reshape", y, shape=(8, 1)), shape=(1, 8))
        z = b.op("add", b.op("mul", flat, w), w)
        x = b.op("assign", x, b.op("add", x, z))
        made, blocks = made + 10, blocks + 1
        if stage and blocks % stage == 0:
            x, made = b.op("mul", x, w), made + 1
    b.output("y", x)
    return b.module().main


def yolo_graph(count: int, stage: int = STAGE) -> Function:
    """A function of about `count` ops as detectors have them: residual blocks of convolutions that
    are summed in place, parts that go their own ways and are put together, views of all that.
    `stage` 0 sums everything into one memory."""
    b = Builder()
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
    n, side = CHANNELS, SIDE
    shape = (1, n, side, side)
    w = b.constant(np.full((n, n, 1, 1), 0.1, np.float32))
    half = b.constant(np.full((n // 2, n // 2, 1, 1), 0.1, np.float32))
    x = b.op("conv", b.input("x", f"f32[1, {n}, {side}, {side}]"), w, **window)
    made = blocks = 0
    while made < count:
        y = b.op("sigmoid", b.op("conv", x, w, **window))
        parts = [
            b.op(
                "slice",
                y,
                starts=(0, first, 0, 0),
                stops=(1, first + n // 2, side, side),
                steps=(1, 1, 1, 1),
            )
            for first in (0, n // 2)
        ]
        one = b.op("relu", b.op("conv", parts[0], half, **window))
        z = b.op("concat", one, b.op("neg", parts[1]), axis=1)
        z = b.op("assign", z, b.op("relu", z))
        rows = b.op("reshape", z, shape=(n, side * side))
        rows = b.op("add", rows, b.op("reduce_mean", rows, axes=(1,)))
        z = b.op("reshape", rows, shape=shape)
        x = b.op("assign", x, b.op("add", x, z))
        made, blocks = made + 16, blocks + 1
        if stage and blocks % stage == 0:
            x, made = b.op("conv", x, w, **window), made + 1
    b.output("y", x)
    return b.module().main


def rewrite_all(function: Function, db: AliasDb | None) -> int:
    """Puts every computing op into a region of its own, asking what a fuser asks before it does;
    says how many. Without `db` a fresh one is built for each op."""
    count = 0
    for op in list(function.block):
        if op.record.kind is Kind.STRUCTURE or op.record.view_of is not None:
            continue
        known = db
        if known is None:
            function.listeners.clear()
            known = AliasDb.build(function)
        known.has_writers(op)
        inputs = list(dict.fromkeys(v for v in op.operands if v is not None))
        block = Block([v.type for v in inputs])
        args = dict(zip(inputs, block.args, strict=True))
        into = Rewriter(function, block)
        operands = [None if v is None else args[v] for v in op.operands]
        inner = into.insert(Op(op.record, operands, op.attrs, [v.type for v in op.results]))
        into.insert(Op(YIELD, inner.results, {}, []))
        region = Op(REGION, inputs, {}, [v.type for v in op.results], [block])
        Rewriter(function).at(op).insert(region)
        Rewriter(function).replace_op(op, region.results)
        count += 1
    return count


def _exponent(sizes: list[int], costs: list[float]) -> float:
    """Slope of the logarithms, by least squares."""
    x, y = np.log(sizes), np.log(costs)
    return float(np.polyfit(x, y, 1)[0])


def _measure(size: int, stage: int) -> tuple[float, float, float]:
    """Seconds to build, megabytes, and seconds to rewrite all with updates."""
    function = residual_graph(size, stage)
    tracemalloc.start()
    assert AliasDb.build(function).facts
    megabytes = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    function.listeners.clear()
    start = time.process_time()
    db = AliasDb.build(function)
    assert db.facts
    built = time.process_time()
    rewrite_all(function, db)
    return built - start, megabytes, time.process_time() - built


class RebuiltDb(AliasDb):
    """A database that every change makes start anew, as they were before they were updated."""

    def _touch(self) -> None:
        super()._touch()
        self._facts = AliasFacts(self.function)
        self._is_solved = False


PASSES = (ALIAS_CONCAT, INSERT_COPIES, FUSE, JOIN_REGIONS, TIE_OPERANDS)


def analyse_and_fuse(function: Function, *, is_rebuilt: bool = False) -> dict[str, float]:
    """Seconds of the analysis and of each pass that asks it, up to regions that are final."""
    module, found = Module([function]), {}
    context = PassContext(CompileOptions(), load("x86-64-v3"))
    gc.collect()
    gc.disable()  # which looks at all objects that there are, ever so often
    start = time.process_time()
    if is_rebuilt:
        function.listeners.append(RebuiltDb(AliasFacts(function)))
    assert AliasDb.of(function).facts
    found["alias"] = time.process_time() - start
    for step in PASSES:
        start = time.process_time()
        step.run(module, context)
        found[step.name] = time.process_time() - start
    gc.enable()
    return found | {"all": sum(found.values())}


def _report(graph: Graph, sizes: list[int], *, is_rebuilt: bool = False) -> None:
    runs = [analyse_and_fuse(graph(size), is_rebuilt=is_rebuilt) for size in sizes]
    print(f"{'':14}" + "".join(f"{size:9}" for size in sizes) + "  exponent")
    for name in runs[0]:
        costs = [run[name] for run in runs]
        texts = "".join(f"{cost:9.3f}" for cost in costs)
        print(f"{name:14}{texts} {_exponent(sizes, [max(c, 1e-4) for c in costs]):9.2f}")


def _report_database(sizes: list[int]) -> None:
    for stage in (STAGE, 0):
        print(f"\nthe database, memories of {f'{stage} blocks' if stage else 'all blocks'}")
        found = [_measure(size, stage) for size in sizes]
        for size, (build, megabytes, update) in zip(sizes, found, strict=True):
            print(
                f"  {size:7} ops: build {build:7.3f} s, {megabytes:6.1f} MB, update {update:7.3f} s"
            )
        for name, costs in zip(
            ("build", "memory", "update"), zip(*found, strict=True), strict=True
        ):
            print(f"  {name} exponent {_exponent(sizes, list(costs)):.2f}")
    for size in (1000, 2000):
        start = time.process_time()
        rewrite_all(residual_graph(size), None)
        print(f"  {size:7} ops, database rebuilt each time: {time.process_time() - start:7.3f} s")


def main() -> None:
    sizes = [1000, 10000, 100000]
    for name, graph in (("residual blocks", residual_graph), ("a detector", yolo_graph)):
        print(f"\n{name}: seconds by ops, analysis and fusion")
        _report(graph, sizes)
        print(f"{name}: the same, the database rebuilt instead of updated")
        _report(graph, [500, 1000, 2000, 4000], is_rebuilt=True)
    _report_database(sizes)


if __name__ == "__main__":
    main()
