"""The sha256 of the kernels that lowering makes, without machine code or shaders.

    python benchmarks/kernel_digests.py > before
    ... a change that must not show in kernels ...
    python benchmarks/kernel_digests.py | diff before -

A line is where kernels come from, a target, how many they are and the digest of their fingerprints,
which are all that a backend sees of them. They come from the samples of all ops for all targets, at
other extents by chance for some of them and for CPUs with tiny caches, from the single-op models of
benchmarks/kernels/synthetic.py and from the reference models. `--tests` adds what the tests of
kernels lower, which are run for that and take longer.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "samples")]

import model_zoo

import aot.ops  # noqa: F401 (registers the ops)
from aot.errors import AotError
from aot.ir.record import REGISTRY
from aot.kernels import lowering
from aot.target import selection as targets
from aot.target.model import Target
from benchmarks.kernels import synthetic
from benchmarks.kernels.dispatches import Source, outlined
from tests.support.lowered_digests import FILE, digest
from tests.support.random_kernels import changed_sample, kernels_of
from tests.support.tiny_target import tiny

MODEL_TARGETS = ("x86-64-v3", "aarch64-generic", "wasm32", "vulkan-1.1")
SYNTHETIC_TARGETS = ("x86-64-v3", "vulkan-1.1")
SIZES = (33, 128)  # of single-op models
# at other extents by chance, so many of each sample
CHANGED_TARGETS = ("x86-64-v3", "x86-64-v4", "aarch64-linux-dotprod", "armv7-neon", "riscv64-v")
CHANGED_GPUS = ("vulkan-1.1", "nvidia-matrix", "mali-valhall-fp16")
OTHER_EXTENTS = 2
TESTS, PLUGIN = "tests/unit/kernels", "tests.support.lowered_digests"


def of_samples(op: str, target: Target) -> list[str]:
    """The lines of an op's samples for a target."""
    record, lines = REGISTRY[op], []
    is_changed = target.name not in targets.names() or target.name in CHANGED_TARGETS + CHANGED_GPUS
    for number, sample in enumerate(record.samples):
        rng = random.Random(zlib.crc32(f"{op} {number}".encode()))
        samples = [sample, *(changed_sample(rng, sample) for _ in range(OTHER_EXTENTS))]
        for form, each in enumerate(samples if is_changed else samples[:1]):
            if each is not None:
                kernels = (made.kernel for made in kernels_of(record, each, target))
                lines.append(f"sample {op} {number}.{form} {target.name} {digest(kernels)}")
    return lines


def of_source(source: Source, target: Target) -> list[str]:
    """The line of a model for a target."""
    try:
        module = outlined(source, target)
        found = digest(lowering.lower(f, target) for f in module.executables)
    except AotError as error:
        found = f"refused: {str(error).splitlines()[0]}"
    return [f"model {source.name} {target.name} {found}"]


def of_model(name: str, target: Target) -> list[str]:
    """The line of a reference model for a target."""
    shapes: Mapping[str, Sequence[int]] = {
        key: array.shape for key, array in model_zoo.feeds(name).items()
    }
    return of_source(Source(name, model_zoo.fetch(name), shapes), target)


def of_tests() -> list[str]:
    """The lines of what the kernels' tests lower, one a test."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lines"
        file.touch()
        command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, TESTS]
        env = {**os.environ, FILE: str(file), "PYTHONPATH": f"{ROOT}:{ROOT / 'samples'}"}
        subprocess.run(command, cwd=ROOT, env=env, check=False, stdout=sys.stderr)
        return sorted(file.read_text().splitlines())


def _work(with_models: bool) -> Iterator[tuple[Any, Any, Target]]:
    machines = [targets.load(name) for name in targets.names()]
    machines += [targets.load(tiny(name)) for name in CHANGED_TARGETS]
    if with_models:
        yield from ((of_model, n, targets.load(t)) for n in model_zoo.MODELS for t in MODEL_TARGETS)
    for source in synthetic.sources(SIZES, synthetic.QUICK_BATCHES):
        yield from ((of_source, source, targets.load(name)) for name in SYNTHETIC_TARGETS)
    yield from ((of_samples, op, target) for op in REGISTRY for target in machines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tests", action="store_true", help="and what the kernels' tests lower")
    parser.add_argument("--no-models", action="store_true", help="without the reference models")
    parser.add_argument("--jobs", type=int, default=None, help="processes; one a processor")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        waiting = [pool.submit(f, of, t) for f, of, t in _work(not arguments.no_models)]
        for future in waiting:
            for line in future.result():
                print(line, flush=True)
    if arguments.tests:
        print("\n".join(of_tests()), flush=True)


if __name__ == "__main__":
    main()
