"""How many bytes of code kernels take beside the estimate that despecialising goes by.

    python benchmarks/code_size.py [--target NAME]... [MODEL...]           prints how far it is off
    python benchmarks/code_size.py --fit [--target NAME]... [MODEL...]     fits the estimate anew

Takes the executables of the reference models at the shapes of their first run, with kernels of
their own and with those that they share where all that may merge does, and compiles each. Prints
the bytes over the estimate, by kind of loop: how much one tenth of the executables is below, half
of them and nine tenths. `--fit` prints the bytes of each part of a kernel as lines of
`aot/analysis/cost/code_bytes.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from aot.analysis.cost.code_bytes import FITTED
from aot.analysis.cost.code_size import (
    CodeModel,
    StageCode,
    Steps,
    executable_bytes,
    fit_name,
    fit_of,
)
from aot.analysis.cost.tile_costs import DynamicLoops, KernelModel, Tile, loops_of
from aot.analysis.stages import heaviest, plans_of, stages_of
from aot.backends.cpu.backend import CpuBackend
from aot.backends.cpu.object_cache import ObjectCache
from aot.ir.graph import Function, Module
from aot.ir.record import call_of
from aot.kernels.lowering import lower
from aot.options import CompileOptions, no_progress
from aot.passes.fusion.outline import record_schedule
from aot.passes.specialise.despecialise import BOUNDS, despecialise
from aot.target import selection as targets
from aot.target.model import Target
from benchmarks.despecialise import dispatches, outlined
from tests.support.models import MODELS

# one of each fit; others of the same architecture and vectors go by the same
TARGETS = (
    *("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64-generic", "armv7-neon"),
    *("riscv64-v", "riscv64", "wasm32", "thumbv7em"),
)
# bytes that an executable costs beside its code, for all that may merge to do so
WHATEVER = 1e9
ROUNDS = 20  # of fits by weights from the last one
FEWEST = 0.05  # bytes of a part that is left out

Parts = Mapping[str, int]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sample:
    """The code of one executable.

    Attributes:
        forms: the form of each stage's loops, with the parts of its code.
        bytes: those compiled.
        estimate: those estimated.
    """

    forms: tuple[tuple[str, Parts], ...]
    bytes: int
    estimate: float


def samples(name: str, machine: Target) -> Iterator[Sample]:
    """Those of a model: its executables, then those that several of them share."""
    module = outlined(name, machine.name)
    own = module.executables
    for function in own:
        record_schedule(function, machine)
    yield from _measured(own, module, machine)
    despecialise(module, machine, BOUNDS["size"], WHATEVER)
    shared = [f for f in module.executables if f not in own]
    yield from _measured(shared, module, machine)


def _measured(functions: Sequence[Function], module: Module, machine: Target) -> Iterator[Sample]:
    values = {made: dims for _, made, dims in dispatches(module)}
    found = []
    for function in functions:
        plans = plans_of(function, machine)
        stages: list[tuple[StageCode, Steps, Tile, DynamicLoops]] = []
        for stage, made in zip(stages_of(function.block, function.results), plans, strict=True):
            call = call_of(heaviest(stage.ops))
            loops, dynamic = loops_of(call, made, values.get(function, {}))
            code = StageCode(
                CodeModel.of(stage.ops, call), KernelModel.of(made, machine, call), loops
            )
            stages.append((code, Steps.of(call, made), (made.rows, made.columns), dynamic))
        found.append(stages)
    kernels = [lower(f, machine) for f in functions]
    with CpuBackend(CompileOptions(), ObjectCache(None)) as backend:
        sizes = backend.compile(kernels, machine, no_progress).emitted.sizes
    fit = fit_of(machine)
    for stages, size in zip(found, sizes, strict=True):
        forms = tuple((c.form, c.parts(step, tile, what)) for c, step, tile, what in stages)
        each = [c.bytes(fit, step, tile, what) for c, step, tile, what in stages]
        estimate = executable_bytes(fit, each)
        yield Sample(forms, size, estimate)


def fitted(given: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Bytes by form and part, of executables of one stage; what several take of what theirs do
    alone, as the part "several" of the form "stages"."""
    by_form: dict[str, list[Sample]] = defaultdict(list)
    for sample in given:
        if len(sample.forms) == 1:
            by_form[sample.forms[0][0]].append(sample)
    found = {form: _fit(one) for form, one in sorted(by_form.items())}
    shares = [
        s.bytes / sum(_bytes(found[form], parts) for form, parts in s.forms)
        for s in given
        if len(s.forms) > 1 and all(form in found for form, _ in s.forms)
    ]
    found["stages"] = {"several": float(np.median(shares)) if shares else 1.0}
    return found


def _bytes(fit: Mapping[str, float], parts: Parts) -> float:
    return sum(fit.get(name, 0.0) * count for name, count in parts.items())


def _fit(given: Sequence[Sample]) -> dict[str, float]:
    """The bytes of each part, none negative, with the least relative errors: squares over the
    product of what is so and what is estimated, so that none is favoured of low and high."""
    names = sorted({name for s in given for name, count in s.forms[0][1].items() if count})
    counts = np.array([[s.forms[0][1].get(n, 0) for n in names] for s in given], np.float64)
    sizes = np.array([s.bytes for s in given], np.float64)
    estimate, solved = sizes, np.zeros(len(names))
    for _ in range(ROUNDS):
        weights = 1 / np.sqrt(sizes * np.maximum(estimate, sizes / 4))
        solved = _least_squares(counts * weights[:, None], sizes * weights)
        estimate = counts @ solved
    pairs = zip(names, solved, strict=True)
    return {name: round(float(x), 1) for name, x in pairs if x > FEWEST}


def _least_squares(a: Array, b: Array) -> Array:
    """The x of the least |a x - b| that is not negative, by descent along one axis at a time."""
    gram, given = a.T @ a, a.T @ b
    x = np.zeros(len(given))
    for _ in range(3000):
        for i in range(len(x)):
            if gram[i, i]:
                x[i] = max(0.0, x[i] + (given[i] - gram[i] @ x) / gram[i, i])
    return x


def error_lines(given: Sequence[Sample]) -> Iterator[str]:
    """Bytes over the estimate by form, and of all."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for sample in given:
        form = sample.forms[0][0] if len(sample.forms) == 1 else "several stages"
        for row in (form, "all"):
            ratios[row].append(sample.bytes / max(sample.estimate, 1.0))
    for row, values in sorted(ratios.items(), key=lambda item: (item[0] == "all", item[0])):
        low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
        yield f"  {row:16} {len(values):5} executables  {low:5.2f}  {middle:5.2f}  {high:5.2f}"


def table_lines(fit: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """A fit as the lines of a Python dict."""
    for form, parts in fit.items():
        yield f'        "{form}": {{'
        yield from (f'            "{name}": {value},' for name, value in parts.items())
        yield "        },"


def distinct(given: Iterable[Sample]) -> list[Sample]:
    """Those that differ in more than extents."""
    kept = {
        (tuple((form, tuple(sorted(Counter(p).items()))) for form, p in s.forms), s.bytes): s
        for s in given
    }
    return list(kept.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--target", action="append", help="one, instead of one of each fit")
    parser.add_argument("--fit", action="store_true", help="print the bytes of each part anew")
    arguments = parser.parse_args()
    for name in arguments.target or TARGETS:
        machine = targets.load(name)
        given = distinct(s for model in arguments.models for s in samples(model, machine))
        is_new = "" if fit_name(machine) in FITTED else ", by another's"
        lines = [f"{name}: {fit_name(machine)}{is_new}", *error_lines(given)]
        if arguments.fit:
            lines += [f'    "{fit_name(machine)}": {{', *table_lines(fitted(given)), "    },"]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
