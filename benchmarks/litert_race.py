"""TFLite files beside LiteRT: size, agreement, and CPU time of one thread, interleaved.

    npm pack @mediapipe/hands && tar xzf mediapipe-hands-*.tgz
    python benchmarks/litert_race.py package/*.tflite

LiteRT runs as ai-edge-litert has it by default, with XNNPACK; inputs are random, from 0 to 1. The
least time of each is told: what disturbs a run makes it longer.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import aot

LEAST_RUNS = 5


def race(path: Path, seconds: float) -> str:
    """A line about one model."""
    compiled = aot.compile(path, targets=["host"])
    module, dispatches = compiled.to_bytes(), compiled.stats["variants"][0]["dispatches"]
    text = f"{path.name:40} {len(module) / path.stat().st_size:5.3f} {dispatches:4}"
    interpreter = opened(path)
    if interpreter is None:
        return f"{text}  LiteRT does not run it"
    rng = np.random.default_rng(0)
    taken = interpreter.get_input_details()
    feeds = {d["name"]: rng.random(d["shape"]).astype(d["dtype"]) for d in taken}
    with aot.load(module) as program:
        values = [feeds[info.name] for info in program.inputs]

        def theirs() -> dict[str, Any]:
            for d in taken:
                interpreter.set_tensor(d["index"], feeds[d["name"]])
            interpreter.invoke()
            given = interpreter.get_output_details()
            return {d["name"]: interpreter.get_tensor(d["index"]) for d in given}

        found, wanted = program(feeds), theirs()
        apart = max(difference(found[name], wanted[name]) for name in found)
        ours_ms, theirs_ms = least_times([lambda: program.run(values), theirs], seconds)
    times = f"{ours_ms:8.3f} {theirs_ms:8.3f} {ours_ms / theirs_ms:5.2f}"
    return f"{text} {apart:8.1e} {times}"


def opened(path: Path) -> Any:
    """LiteRT's interpreter; None where it lacks an operator."""
    from ai_edge_litert.interpreter import Interpreter

    try:
        made = Interpreter(model_content=path.read_bytes(), num_threads=1)
        made.allocate_tensors()
    except (RuntimeError, ValueError):
        return None
    return made


def difference(found: Any, wanted: Any) -> float:
    """The largest difference, over the largest magnitude."""
    largest = float(np.abs(wanted).max(initial=0)) or 1.0
    return float(np.abs(found.astype(np.float64) - wanted).max(initial=0)) / largest


def least_times(calls: list[Callable[[], object]], seconds: float) -> list[float]:
    """The least milliseconds of CPU time of each, by turns."""
    best = [float("inf")] * len(calls)
    end, runs = time.monotonic() + seconds, 0
    while time.monotonic() < end or runs < LEAST_RUNS:
        for number, call in enumerate(calls):
            start = time.thread_time()
            call()
            best[number] = min(best[number], time.thread_time() - start)
        runs += 1
    return [1e3 * b for b in best]


def main() -> None:
    parser = argparse.ArgumentParser(description="TFLite files beside LiteRT.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each file")
    options = parser.parse_args()
    print("file, bytes over the file's, dispatches, difference, ms, LiteRT's ms, ratio")
    for path in options.files:
        print(race(path, options.seconds), flush=True)


if __name__ == "__main__":
    main()
