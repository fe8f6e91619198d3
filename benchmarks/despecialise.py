"""What sharing executables costs: steady latency with despecialising over that without.

    python benchmarks/despecialise.py MODEL...                   whole models, by the runtime
    python benchmarks/despecialise.py --executables MODEL...     each executable by itself

Medians of rounds in which both have their turn, in one process, of the time that its one thread
ran: what other processes take of the machine is left out. `--optimize` says
how much may be spent; `--executables` prints the estimate that the pass went by beside each ratio.
Models are those of samples/model_zoo.py, at the shapes of their first run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import aot
from aot.analysis.cost.tile_costs import KernelModel, cost, loops_of
from aot.analysis.stages import heaviest, plans_of, stages_of
from aot.driver.pipeline import read_model
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Function, FunctionRef, Module, Op
from aot.ir.record import call_of
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.passes.specialise.despecialise import BOUNDS, DESPECIALISE, despecialise
from aot.target import selection as targets
from aot.target.model import Target
from tests.support.dispatch_timing import Timed, clock_timed
from tests.support.models import MODELS, feeds, model_path

LEAST = 0.02  # seconds of a round of one model


def model_ratio(name: str, target: str, optimize: str, rounds: int) -> str:
    """A line: milliseconds without and with, their ratio, executables of each."""
    given = feeds(name)
    made = [
        aot.compile(
            model_path(name),
            targets=[target],
            input_shapes={key: array.shape for key, array in given.items()},
            optimize=optimize,
            disable=() if on else ("despecialise",),
        )
        for on in (False, True)
    ]
    kept = [m.stats["variants"][0]["executables"]["despecialised"]["kept"] for m in made]
    programs = [aot.load(m, device="cpu") for m in made]

    def seconds(program: Any, times: int) -> float:
        start = time.thread_time()
        for _ in range(times):
            program(given)
        return (time.thread_time() - start) / times

    times = [max(1, int(LEAST / max(seconds(p, 3), 1e-6))) for p in programs]
    found: list[list[float]] = [[], []]
    for _ in range(rounds):
        for number, program in enumerate(programs):
            found[number].append(seconds(program, times[number]))
    own, shared = (statistics.median(f) * 1e3 for f in found)
    least = min(found[1]) / min(found[0])
    return (
        f"{name:18} {own:9.3f} {shared:9.3f} ms  ratio {shared / own:6.3f}  "
        f"of the least {least:6.3f}  executables {kept[0]:3} -> {kept[1]:3}"
    )


def outlined(name: str, target: str) -> Module:
    """The module as the pass gets it."""
    shapes = {key: array.shape for key, array in feeds(name).items()}
    options = CompileOptions(targets=(target,), input_shapes=shapes)
    module = read_model(str(model_path(name)), options)
    options = CompileOptions(targets=(target,))
    run_passes(module, MODEL_PASSES, PassContext(options))
    before = TARGET_PASSES[: TARGET_PASSES.index(DESPECIALISE)]
    run_passes(module, before, PassContext(options, targets.load(target)))
    return module


def dispatches(module: Module) -> Iterator[tuple[Op, Function, Mapping[str, Dim]]]:
    """Every dispatch, its executable, and the values of that one's dims."""
    for function in module.entry_points:
        for op in function.walk():
            callee = op.attrs.get("executable")
            if not isinstance(callee, FunctionRef):
                continue
            made = module.functions[callee.name]
            given = op.attrs.get("dims", ())
            assert isinstance(given, tuple)
            known = [d for d in given if isinstance(d, (int, DimExpr))]
            yield op, made, dict(zip(made.dim_names, known, strict=True))


def estimate(function: Function, values: Mapping[str, Dim], machine: Target) -> float:
    """What a dispatch of an executable costs, by what the pass reckons with."""
    stages = stages_of(function.block, function.results)
    total = 0.0
    for stage, made in zip(stages, plans_of(function, machine), strict=True):
        loops, dynamic = loops_of(call_of(heaviest(stage.ops)), made, values)
        total += cost(KernelModel.of(made, machine), loops, (made.rows, made.columns), dynamic)
    return total


def executable_ratios(name: str, target: str, optimize: str, rounds: int) -> Iterator[str]:
    """Lines: each executable that merged, alone and as part of the shared one."""
    module, machine = outlined(name, target), targets.load(target)
    before = list(dispatches(module))
    despecialise(module, machine, BOUNDS[optimize])
    parts: dict[str, dict[Function, tuple[Any, Any, int]]] = defaultdict(dict)
    for (_, own, dims), (_, shared, given) in zip(before, dispatches(module), strict=True):
        if own is not shared:
            count = parts[shared.name].get(own, (None, None, 0))[2]
            parts[shared.name][own] = (dims, (shared, given), count + 1)
    totals = [0.0, 0.0]
    for part, members in parts.items():
        yield f"{name} {part}: {', '.join(op.name for op in next(iter(members)).block)}"
        for own, (dims, (shared, given), count) in members.items():
            alone, together = clock_timed(
                [Timed(own, dims, machine), Timed(shared, given, machine)], rounds, min
            )
            totals[0] += alone * count
            totals[1] += together * count
            told = estimate(shared, given, machine) / estimate(own, dims, machine)
            yield (
                f"  {count:3} x {alone * 1e6:9.1f} -> {together * 1e6:9.1f} us"
                f"  {together / alone:6.3f}  estimate {told:6.3f}"
                f"  {' '.join(f'{k}={v}' for k, v in given.items())}"
            )
    if totals[0]:
        ratio = totals[1] / totals[0]
        yield f"{name}: {totals[0] * 1e6:.0f} -> {totals[1] * 1e6:.0f} us, {ratio:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--executables", action="store_true", help="time each by itself")
    parser.add_argument("--target", default="host")
    parser.add_argument("--optimize", choices=list(BOUNDS), default="balanced")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    settings = (arguments.target, arguments.optimize, arguments.rounds)
    for name in arguments.models:
        lines = (
            executable_ratios(name, *settings)
            if arguments.executables
            else [model_ratio(name, *settings)]
        )
        for line in lines:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
