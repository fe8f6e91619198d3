"""Detectors beside ONNX Runtime, on many images and thresholds: what they find, on which device.

    python benchmarks/detectors.py yolov8n_320
    python benchmarks/detectors.py ssdlite320.onnx --threshold 0.001 --device lavapipe --inputs 20

The model is YOLOv8 of the reference models with NonMaxSuppression behind it, or a file. The
constant that scores are compared with (--threshold) becomes an input, so that runs range from
nothing found to as much as there is room for. Prints a line for each input that differs, and what
was found in all.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "samples")]

import numpy as np

DEVICES = ("cpu", "lavapipe", "swiftshader")
SIZE = 320


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model", help="yolov8n_320, or an ONNX file of a detector")
    parser.add_argument("--threshold", type=float, default=0.005, help="the constant in the model")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--no-host", action="store_true", help="without a CPU beside the GPU")
    parser.add_argument("--inputs", type=int, default=50)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    arguments = parser.parse_args()
    if arguments.device != "cpu":
        from tests.support.vulkan_device import manifests

        driver = str(manifests()[arguments.device])
        os.environ.update(VK_DRIVER_FILES=driver, VK_ICD_FILENAMES=driver)
    return check(arguments)


def check(arguments: argparse.Namespace) -> int:
    import model_zoo
    import onnx
    import onnxruntime

    import aot
    from tests.support.detection_models import image, with_suppression, with_threshold_as_input

    is_known = arguments.model in model_zoo.MODELS
    if is_known:
        model = with_suppression(str(model_zoo.fetch(arguments.model)), arguments.threshold)
    else:
        model = onnx.load(arguments.model)
    model = with_threshold_as_input(model, arguments.threshold)
    name = model.graph.input[0].name
    targets = ["host"] if arguments.device == "cpu" else ["vulkan-1.1", "host"]
    begin = time.perf_counter()
    compiled = aot.compile(
        model,
        targets=targets[:1] if arguments.no_host else targets,
        input_shapes={name: (1, 3, SIZE, SIZE)},
    )
    print(f"compiled in {time.perf_counter() - begin:.1f} s", flush=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    device = "cpu" if arguments.device == "cpu" else "vulkan"
    counts, wrong, seconds = [], 0, 0.0
    with aot.load(compiled, device=device) as program:
        for number in range(arguments.inputs):
            picture = image(number, SIZE)[None]
            least = threshold(number, arguments.threshold)
            feed = {name: picture, "threshold": least}
            wanted = session.run(None, feed)
            begin = time.perf_counter()
            found = list(program(feed).values())
            seconds += time.perf_counter() - begin
            counts.append(len(wanted[-1]))
            problem = difference(found, wanted, arguments.tolerance)
            if problem:
                wrong += 1
                print(f"input {number}, threshold {least[0]:.3g}: {problem}", flush=True)
    print(
        f"{arguments.model} on {arguments.device}: {len(counts) - wrong} of {len(counts)} inputs "
        f"as ONNX Runtime; {min(counts)} to {max(counts)} found, nothing {counts.count(0)} times; "
        f"{seconds / len(counts):.2f} s a run"
    )
    return 1 if wrong else 0


def threshold(number: int, least: float) -> np.ndarray:
    """Above all scores, below most, or somewhere between."""
    rng = np.random.default_rng(1000 + number)
    drawn = least * 10 ** rng.uniform(-1, 1.5)
    value = {0: 2.0, 1: least / 10}.get(number % 10, drawn)
    return np.array([value], np.float32)


def difference(found: list, wanted: list, tolerance: float) -> str:
    """Where results differ, in a line; empty where they agree."""
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if a.shape != b.shape:
            return f"output {number} is {a.shape}, expected {b.shape}"
    if not len(wanted[-1]):
        return ""
    mine, theirs = (
        np.concatenate([a.reshape(len(a), -1).astype(np.float64) for a in arrays], axis=1)
        for arrays in (found, wanted)
    )
    alone = 0
    is_free = np.ones(len(mine), bool)
    for row in theirs:  # scores that are equal but for rounding have no order
        gaps = np.abs(mine - row) / (1 + np.abs(row))
        near = np.where(is_free, gaps.max(axis=1), np.inf)
        is_free[near.argmin()] &= near.min() > tolerance
        alone += near.min() > tolerance
    return f"{alone} of {len(theirs)} detections are others" if alone else ""


if __name__ == "__main__":
    sys.exit(main())
