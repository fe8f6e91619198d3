"""The sha256 of what the compiler makes of every reference model, for one target of each kind.

    python benchmarks/module_digests.py > before
    ... a change that must not show in what is compiled ...
    python benchmarks/module_digests.py | diff before -

A line is a model, a target and the digest of the module file at the shapes of the model's first
run, or the error's first line where the model is refused.  Nothing is cached, so that a digest
tells of the code that is there. With --strip modules do without the notes for tools, which name ops
and passes: what is left is code, programs and weights.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "samples")]

import model_zoo

TARGETS = ("x86-64-v3", "aarch64-generic", "wasm32", "vulkan-1.1")


def digest(name: str, target: str, strip: bool) -> str:
    """A model's module for a target: its sha256, or why there is none."""
    import aot

    shapes: Mapping[str, tuple[int, ...]] = {
        key: array.shape for key, array in model_zoo.feeds(name, 1).items()
    }
    path = model_zoo.fetch(name)
    try:
        module = aot.compile(
            path, targets=[target], input_shapes=shapes, cache=False, jobs=1, strip=strip
        )
    except aot.AotError as error:
        return f"refused: {str(error).splitlines()[0]}"
    return hashlib.sha256(module.to_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="*", default=list(model_zoo.MODELS))
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--strip", action="store_true", help="without notes for tools")
    parser.add_argument("--jobs", type=int, default=None, help="processes; one a processor")
    arguments = parser.parse_args()
    cases = [(name, target) for name in arguments.models for target in arguments.targets]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        found = pool.map(digest, *zip(*cases, strict=True), [arguments.strip] * len(cases))
        for (name, target), text in zip(cases, found, strict=True):
            print(f"{name} {target} {text}", flush=True)


if __name__ == "__main__":
    main()
