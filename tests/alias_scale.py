"""Graphs of the yolov3 kind, of any size: residual blocks, views, activations and sums in place.

`python tests/alias_scale.py` prints what the alias database costs on them, and what rewriting every
op costs with a database that is updated and with one that is built anew each time.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from aot.analysis.alias import AliasBuilder, AliasDb
from aot.builder import Builder
from aot.ir.core import Block, Function, Op, Rewriter
from aot.ops.record import Kind
from aot.ops.structure import REGION, YIELD

STAGE = 8  # residual blocks that are summed into one memory


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
            known = AliasBuilder(function).freeze()
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
    AliasBuilder(function).freeze()
    megabytes = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    function.listeners.clear()
    start = time.process_time()
    db = AliasBuilder(function).freeze()
    built = time.process_time()
    rewrite_all(function, db)
    return built - start, megabytes, time.process_time() - built


def main() -> None:
    sizes = [1000, 10000, 100000]
    for stage in (STAGE, 0):
        print(f"memories of {f'{stage} blocks' if stage else 'all blocks'}")
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


if __name__ == "__main__":
    main()
