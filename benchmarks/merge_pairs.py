"""What a merge of two layers by chance costs: the merged kernel over the two that it replaces.

    chrt -r 10 python benchmarks/merge_pairs.py --pairs 200
    python benchmarks/merge_pairs.py --pairs 200 --instructions aarch64-linux-dotprod

Each pair is a model of two layers of one kind with different extents, compiled with and without
despecialising. Of a pair that merges, the line has the ratio of the two times on this machine, in
turn and by the time that the one thread ran, or the ratio of instructions under QEMU. Behind the
lines: how many merged, the mean and the worst of them.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnx

import aot
from aot.passes.specialise.despecialise import BOUNDS
from aot.target import selection
from benchmarks.kernels.synthetic import Conv, Graph
from benchmarks.qemu_instructions import count_dispatches

CHANNELS = (8, 16, 24, 32, 48, 64, 96, 128)
SIZES = (7, 14, 17, 28, 33, 56)
WIDTHS = (48, 64, 96, 128, 160, 256, 384)
ROWS = (4, 12, 33, 64)
# seconds of a round of one module, and rounds
LEAST, ROUNDS = 0.01, 9

Layers = Callable[[random.Random], Graph]


def _images(rng: random.Random) -> tuple[Graph, int, int]:
    channels, size = rng.choice(CHANNELS), rng.choice(SIZES)
    return Graph((1, channels, size, size)), channels, size


def convolutions(rng: random.Random) -> Graph:
    """Two convolutions, of which the second may have a stride and other channels."""
    g, channels, _ = _images(rng)
    kernel = rng.choice((1, 3, 5))
    for stride in (1, rng.choice((1, 2))):
        outputs = rng.choice(CHANNELS)
        Conv(channels, outputs, kernel, stride).add(g).op("Relu")
        channels = outputs
    return g


def groups(rng: random.Random) -> Graph:
    """Two depthwise or grouped convolutions behind a 1x1 convolution each."""
    g, channels, _ = _images(rng)
    kernel, member = rng.choice((3, 5)), rng.choice((1, 1, 4, 8))
    for stride in (1, rng.choice((1, 2))):
        outputs = rng.choice(CHANNELS)
        Conv(channels, outputs, 1).add(g)
        Conv(outputs, outputs, kernel, stride, outputs // member).add(g).op("Relu")
        channels = outputs
    return g


def pools(rng: random.Random) -> Graph:
    """Two pools of one window on either side of a convolution."""
    g, channels, _ = _images(rng)
    kind, window = rng.choice(("MaxPool", "AveragePool")), rng.choice((2, 3))
    shape = {"kernel_shape": [window] * 2, "strides": [rng.choice((1, 2))] * 2}
    g.op(kind, **shape, pads=[window // 2] * 4)
    Conv(channels, rng.choice(CHANNELS), 1).add(g)
    return g.op(kind, **shape, pads=[window // 2] * 4)


def products(rng: random.Random) -> Graph:
    """Two dense layers with an activation."""
    width = rng.choice(WIDTHS)
    g = Graph((1, rng.choice(ROWS), width))
    for _ in range(2):
        outputs = rng.choice(WIDTHS)
        g.op("MatMul", g.weight(width, outputs)).op("Add", g.weight(outputs)).op("Tanh")
        width = outputs
    return g


def norms(rng: random.Random) -> Graph:
    """Two normalisations, or two rows of softmax, between dense layers."""
    width = rng.choice(WIDTHS)
    g = Graph((1, rng.choice(ROWS), width))
    is_norm = rng.random() < 0.5
    for _ in range(2):
        outputs = rng.choice(WIDTHS)
        g.op("MatMul", g.weight(width, outputs))
        if is_norm:
            g.op("LayerNormalization", g.weight(outputs), g.weight(outputs), axis=-1)
        else:
            g.op("Softmax", axis=-1)
        width = outputs
    return g


def movements(rng: random.Random) -> Graph:
    """Two transposes, or two resizes, around a convolution."""
    g, channels, size = _images(rng)
    outputs = rng.choice(CHANNELS)
    if rng.random() < 0.5:
        g.op("Transpose", perm=[0, 2, 3, 1]).op("Relu")
        g.op("MatMul", g.weight(channels, outputs)).op("Transpose", perm=[0, 3, 1, 2])
        return g.op("Sigmoid")
    scales = g.constant(np.array([1, 1, 2, 2], np.float32))
    mode = rng.choice(("nearest", "linear"))
    g.op("Resize", "", scales, mode=mode)
    Conv(channels, outputs, 1, 2 if size > SIZES[2] else 1).add(g)
    return g.op("Resize", "", scales, mode=mode)


KINDS: tuple[Layers, ...] = (convolutions, groups, pools, products, norms, movements)


def seconds_of(programs: list[Any], inputs: dict[str, Any]) -> list[float]:
    """The median seconds of a run of each program, all in turn in each round."""

    def seconds(program: Any, times: int) -> float:
        start = time.thread_time()
        for _ in range(times):
            program(inputs)
        return (time.thread_time() - start) / times

    times = [max(1, math.ceil(LEAST / max(seconds(p, 3), 1e-7))) for p in programs]
    rounds = [[seconds(p, n) for p, n in zip(programs, times, strict=True)] for _ in range(ROUNDS)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def pair(seed: int, target: str, optimize: str, *, counts: bool) -> float | None:
    """The ratio of the merged pair's time, or instructions, to that of the two kernels; None where
    nothing merges."""
    rng = random.Random(seed)
    make = KINDS[seed % len(KINDS)]
    model = make(rng).model()
    made = [
        aot.compile(model, targets=[target], optimize=optimize, disable=without)
        for without in (("despecialise",), ())
    ]
    apart, kept = (m.stats["variants"][0]["executables"]["despecialised"]["kept"] for m in made)
    if apart == kept:
        return None
    inputs = _inputs(model)
    if counts:
        arch = selection.load(target).arch
        without, merged = (sum(count_dispatches(m.to_bytes(), arch, inputs)[1]) for m in made)
    else:
        without, merged = seconds_of([aot.load(m, device="cpu") for m in made], inputs)
    return merged / without


def _inputs(model: bytes) -> dict[str, Any]:
    (value,) = onnx.load_from_string(model).graph.input
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return {value.name: np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first pair's seed")
    parser.add_argument("--instructions", metavar="TARGET", help="count these under QEMU")
    parser.add_argument("--optimize", choices=list(BOUNDS), default="balanced")
    arguments = parser.parse_args()
    target, counts = arguments.instructions or "host", bool(arguments.instructions)
    ratios: dict[int, float] = {}
    for seed in range(arguments.first, arguments.first + arguments.pairs):
        ratio = pair(seed, target, arguments.optimize, counts=counts)
        if ratio is not None:
            ratios[seed] = ratio
            print(f"{seed:5} {KINDS[seed % len(KINDS)].__name__:13} {ratio:6.3f}", flush=True)
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
        worst = max(ratios, key=ratios.__getitem__)
        over = sum(ratio > 1.05 for ratio in ratios.values())
        print(
            f"{len(ratios)} of {arguments.pairs} merged: mean {mean:.3f}, worst {ratios[worst]:.3f}"
            f" (seed {worst}), {over} above 1.05"
        )


if __name__ == "__main__":
    main()
