"""Every kernel of some models by itself, its time over the least that the machine allows.

    python -m benchmarks.kernels --quick                      before a change to kernels lands
    python -m benchmarks.kernels --json before.json           all, some minutes
    python -m benchmarks.kernels --quick --compare before.json
    python -m benchmarks.kernels --models FOLDER --no-synthetic

Models are those of samples/model_zoo.py, or with --models the ONNX files given and in folders
given, at the shapes of NAME.0.npz beside NAME.onnx if that is there. What is timed, and what bounds
are: benchmarks/kernels/README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "samples")]

import model_zoo

from aot.backends.cpu.object_cache import ObjectCache
from aot.errors import AotError
from aot.target import selection
from aot.target.model import Target
from benchmarks.kernels import synthetic
from benchmarks.kernels.dispatches import Dispatch, Source, dispatches_of_source
from benchmarks.kernels.machine import Machine, Peaks
from benchmarks.kernels.table import comparison, kinds_table, shares, worst_table
from benchmarks.kernels.timing import Prepared, Result, Settings, batches, time_batch

QUICK_MODELS = ("squeezenet_rw", "ppocr_rec", "minilm_l3")
QUICK = Settings(rounds=4, least=1e-4)


def zoo_sources(names: Sequence[str]) -> Iterator[Source]:
    for name in names:
        shapes = {key: array.shape for key, array in model_zoo.feeds(name).items()}
        yield Source(name, model_zoo.fetch(name), shapes)


def file_sources(paths: Sequence[Path]) -> Iterator[Source]:
    for path in paths:
        files = sorted(path.rglob("*.onnx")) if path.is_dir() else [path]
        for file in files:
            beside = file.with_name(f"{file.stem}.0.npz")
            shapes: dict[str, tuple[int, ...]] = {}
            if beside.exists():
                with np.load(beside) as arrays:
                    shapes = {name: arrays[name].shape for name in arrays.files}
            yield Source(file.stem, file, shapes)


def collect(sources: Iterator[Source], target: Target, cache: ObjectCache) -> list[Dispatch]:
    """Dispatches of all models, equal ones once; a model that cannot be compiled is named."""
    found: dict[str, Dispatch] = {}
    for source in sources:
        try:
            made = dispatches_of_source(source, target, cache)
        except AotError as error:
            note(f"{source.name} is left out: {str(error).splitlines()[0]}")
            continue
        for dispatch in made:
            known = found.get(dispatch.text)
            count = dispatch.count + (0 if known is None else known.count)
            found[dispatch.text] = replace(known or dispatch, count=count)
    return list(found.values())


def measure(
    dispatches: Sequence[Dispatch], target: Target, cache: ObjectCache, settings: Settings
) -> tuple[list[Result], Peaks | None]:
    """Times of all; of several with one kernel and one set of extents the first is timed."""
    machine = Machine(target)
    counts: dict[str, int] = {}

    def prepared() -> Iterator[Prepared]:
        for dispatch in dispatches:
            try:
                one = Prepared(dispatch, target, cache)
            except (AotError, MemoryError) as error:
                note(f"{dispatch.model} {dispatch.node}: {str(error).splitlines()[0]}")
                continue
            counts[one.key] = counts.get(one.key, 0) + dispatch.count
            if counts[one.key] == dispatch.count:
                yield one

    results: list[Result] = []
    peaks: Peaks | None = None
    start = time.monotonic()
    for batch in batches(prepared()):
        found, now = time_batch(batch, machine, settings)
        results += found
        peaks = now if peaks is None else peaks.best(now)
        note(f"{len(results)} dispatches, {time.monotonic() - start:.0f} s", end="\r")
    return [replace(r, count=counts[r.key]) for r in results], peaks


def note(text: str, end: str = "\n") -> None:
    print(text, file=sys.stderr, end=end, flush=True)


def peaks_text(peaks: Peaks, lanes: int) -> str:
    reads = ", ".join(f"{size >> 10} KB {speed / 1e9:.0f}" for size, speed in peaks.reads)
    return (
        f"this machine: {2 * peaks.operations / 1e9:.1f} GFLOP/s in vectors of {lanes} floats, "
        f"{peaks.divisions / 1e9:.1f} G divisions/s, an addition {peaks.latency * 1e9:.2f} ns, a "
        f"launch {peaks.launch * 1e9:.0f} ns; GB/s up to {reads}"
    )


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="a part of the set, in about a minute")
    add("--models", nargs="+", type=Path, help="ONNX files and folders, instead of the zoo")
    add("--zoo", nargs="*", default=None, help="reference models, by name; all by default")
    add("--no-synthetic", action="store_true", help="models only")
    add("--only", default="", help="cases and models whose names have this in them")
    add("--every", type=int, default=1, help="of all dispatches every so manyth: a sample")
    add("--target", default="host", help="a target that runs here")
    add("--worst", type=int, default=10, help="how many of the worst dispatches are shown")
    add("--json", type=Path, help="a file for the measurements")
    add("--compare", type=Path, help="a file of an earlier run: says what got worse")
    return parser.parse_args(arguments)


def sources_of(arguments: argparse.Namespace) -> Iterator[Source]:
    """The models that the arguments ask for."""

    def every() -> Iterator[Source]:
        if not arguments.no_synthetic:
            quick = (synthetic.QUICK_SIZES, synthetic.QUICK_BATCHES)
            yield from synthetic.sources(*(quick if arguments.quick else ()))
        if arguments.models is not None:
            yield from file_sources(arguments.models)
        if arguments.zoo is not None or arguments.models is None:
            usual = QUICK_MODELS if arguments.quick else tuple(model_zoo.MODELS)
            yield from zoo_sources(arguments.zoo or usual)

    return (source for source in every() if arguments.only in source.name)


def saved(results: Sequence[Result], peaks: Peaks) -> dict[str, Any]:
    """What a file holds."""
    return {"peaks": asdict(peaks), "dispatches": [asdict(r) for r in results]}


def loaded(path: Path) -> list[Result]:
    return [Result(**fields) for fields in json.loads(path.read_text())["dispatches"]]


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse_arguments(arguments)
    target = selection.load(given.target)
    cache = ObjectCache.at()
    dispatches = collect(sources_of(given), target, cache)
    note(f"{len(dispatches)} different dispatches")
    dispatches = dispatches[:: given.every]
    settings = QUICK if given.quick else Settings()
    results, peaks = measure(dispatches, target, cache, settings)
    cache.close()
    if peaks is None:
        note("there is nothing to measure")
        return 1
    note("")
    if given.json:
        given.json.write_text(json.dumps(saved(results, peaks), indent=1))
    print(peaks_text(peaks, max(1, target.vector_bytes // 4)))
    print(f"\n{kinds_table(results)}\n{shares(results)}")
    print(f"\nthe worst:\n{worst_table(results, given.worst)}")
    if given.compare:
        print(f"\n{comparison(loaded(given.compare), results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
