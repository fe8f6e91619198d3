"""What fusion saves on the reference models: a table in docs/use/fusion.md.

    python benchmarks/fusion.py            prints the table
    python benchmarks/fusion.py --write    writes docs/use/fusion.md as well

Every model is compiled twice at the shapes of its first run, with fusion and with `--disable
fusion`. Runs of both alternate on one thread, and the least processor time of each counts, so that
their ratio holds on a machine that does other work as well; all else in the table is the same on
any machine.
"""

from __future__ import annotations

import time
from typing import Any

import model_table

TARGET = "x86-64-v3"
PAGE = model_table.ROOT / "docs" / "use" / "fusion.md"
RUNS = 20

HEAD = f"""# What fusion saves

Written by `python benchmarks/fusion.py --write`: each of the models that
`python samples/model_zoo.py` lists, at the shapes of its first run, for `{TARGET}`. A pair is the
figure with `--disable fusion` and the one with fusion, which `aotc inspect MODEL --fusion` explains
region by region.

* *ops*: of the graph that fusion is given
* *dispatches*: launches of one inference; where a model has branches or loops, each once
* *MB moved*: what dispatches read and write at least, each value once a dispatch
* *ms*: processor time of one inference on one thread, the least of {RUNS} runs that alternate; the
  ratio is of this one run of the script

| model | ops | dispatches | MB moved | ms | time fused |
|---|---|---|---|---|---|
"""


def static_facts(name: str, shapes: dict[str, Any], disable: tuple[str, ...]) -> tuple[int, ...]:
    """Ops that compute, dispatches and bytes moved, as the passes leave a model."""
    import model_zoo

    from aot.analysis.control import control_ops
    from aot.analysis.dispatches import is_dispatch
    from aot.analysis.launches import launches_of
    from aot.driver.pipeline import prepared
    from aot.options import CompileOptions
    from aot.passes.base import PassContext, run_passes
    from aot.passes.order import MODEL_PASSES, TARGET_PASSES
    from aot.target import selection

    options = CompileOptions(targets=(TARGET,), input_shapes=shapes, disable=disable)
    module, left = prepared(model_zoo.fetch(name), options)
    run_passes(module, MODEL_PASSES, PassContext(left))
    ops = sum(op.record.compute is not None for op in control_ops(module.main))
    run_passes(module, TARGET_PASSES, PassContext(left, selection.load(TARGET)))
    dispatches = sum(map(is_dispatch, control_ops(module.main)))
    moved = [launch.bytes for launch in launches_of(module.main, module)]
    return ops, dispatches, sum(n for n in moved if isinstance(n, int))


def least_ms(programs: list[Any], feeds: dict[str, Any]) -> list[float]:
    """Processor time of a run of each program, by turns."""
    least = [float("inf")] * len(programs)
    for program in programs:
        program(feeds)
    for _ in range(RUNS):
        for number, program in enumerate(programs):
            start = time.thread_time()
            program(feeds)
            least[number] = min(least[number], (time.thread_time() - start) * 1e3)
    return least


def row(name: str) -> str:
    """A model's line of the table."""
    import model_zoo

    import aot

    feeds = model_zoo.feeds(name, 1)
    shapes = {key: array.shape for key, array in feeds.items()}
    facts, programs = [], []
    for disable in (("fusion",), ()):
        facts.append(static_facts(name, shapes, disable))
        made = aot.compile(
            model_zoo.fetch(name), targets=[TARGET], input_shapes=shapes, disable=disable
        )
        programs.append(aot.load(made, device="cpu"))
    apart, fused = least_ms(programs, feeds)
    for program in programs:
        program.close()
    (ops, *_), _ = facts
    cells = [
        name,
        str(ops),
        f"{facts[0][1]} -> {facts[1][1]}",
        f"{facts[0][2] / 1e6:.2f} -> {facts[1][2] / 1e6:.2f}",
        f"{apart:.2f} -> {fused:.2f}",
        f"{fused / apart:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    model_table.main(__doc__.split("\n", 1)[0], PAGE, HEAD, row)
