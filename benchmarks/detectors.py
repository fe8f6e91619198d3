"""Detectors beside ONNX Runtime, on many images and thresholds: what they find, on which device.

    python benchmarks/detectors.py yolov8n_320
    python benchmarks/detectors.py ssdlite320.onnx --threshold 0.001 --device lavapipe --inputs 20

The model is YOLOv8 of the reference models with NonMaxSuppression behind it, or a file. The
constant that scores are compared with (--threshold) becomes an input, so that runs range from
nothing found to as much as there is room for. Prints a line for each input that differs, and what
was found in all.

Detections are compared as sets. Where two boxes overlap and their scores are equal but for
rounding, rounding says which one is suppressed. So where results differ, ONNX Runtime computes them
again from the program's own results of the last layers: these must be near, and what was chosen of
them the same. A detector with random weights gives all boxes one score; with --untrained its layers
are scaled as batch normalisation would, so that scores depend on what is in the image.
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
import onnx

DEVICES = ("cpu", "lavapipe", "swiftshader")
SIZE = 320
# How near the last layers' results are, of the largest. On a black image, which the layers were not
# scaled for, ONNX Runtime's own differ by 0.02 with and without its optimisations.
LAYERS = 5e-2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model", help="yolov8n_320, or an ONNX file of a detector")
    parser.add_argument("--threshold", type=float, default=0.005, help="the constant in the model")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--no-host", action="store_true", help="without a CPU beside the GPU")
    parser.add_argument(
        "--untrained", action="store_true", help="with weights that tell boxes apart"
    )
    parser.add_argument("--inputs", type=int, default=50)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument(
        "--max", action="append", default=[], metavar="NODE=N", help="what no rule bounds"
    )
    arguments = parser.parse_args()
    if arguments.device != "cpu":
        from tests.support.vulkan_device import manifests

        driver = str(manifests()[arguments.device])
        os.environ.update(VK_DRIVER_FILES=driver, VK_ICD_FILENAMES=driver)
    return check(arguments)


def check(arguments: argparse.Namespace) -> int:
    import model_zoo
    import onnxruntime

    import aot
    from tests.support.detection_models import (
        behind,
        last_layers,
        with_suppression,
        with_threshold_as_input,
        with_unit_outputs,
    )

    is_known = arguments.model in model_zoo.MODELS
    if is_known:
        model = with_suppression(str(model_zoo.fetch(arguments.model)), arguments.threshold)
    else:
        model = onnx.load(arguments.model)
    if arguments.untrained:
        model = with_unit_outputs(model, [picture(model, n) for n in range(1, 6)])
    model = with_threshold_as_input(model, arguments.threshold)
    name = model.graph.input[0].name
    results, layers = len(model.graph.output), last_layers(model.graph)
    smooth = len(last_layers(model.graph, is_chosen=False))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    rest = behind(model, layers)
    model.graph.output.extend(onnx.ValueInfoProto(name=layer) for layer in layers)
    sessions = [onnxruntime.InferenceSession(m.SerializeToString(), options) for m in (model, rest)]
    targets = ["host"] if arguments.device == "cpu" else ["vulkan-1.1", "host"]
    begin = time.perf_counter()
    compiled = aot.compile(
        model,
        targets=targets[:1] if arguments.no_host else targets,
        input_shapes={name: picture(model, 0)[name].shape},
        max_extents={
            node: int(most) for node, _, most in (m.rpartition("=") for m in arguments.max)
        },
    )
    print(f"compiled in {time.perf_counter() - begin:.1f} s", flush=True)
    device = "cpu" if arguments.device == "cpu" else "vulkan"
    counts, wrong, close, seconds = [], 0, 0, 0.0
    with aot.load(compiled, device=device) as program:
        for number in range(arguments.inputs):
            least = threshold(number, arguments.threshold)
            feed = {**picture(model, number), "threshold": least}
            wanted = sessions[0].run(None, feed)
            begin = time.perf_counter()
            found = list(program(feed).values())
            seconds += time.perf_counter() - begin
            counts.append(len(wanted[results - 1]))
            problem = difference(found[:results], wanted[:results], arguments.tolerance)
            if problem:
                close += 1
                made = dict(zip(layers, found[results:], strict=True))
                again = sessions[1].run(None, {**feed, **made})
                problem = difference(found[:results], again, arguments.tolerance) or far(
                    found[results : results + smooth],
                    wanted[results : results + smooth],
                    LAYERS,
                )
            if problem:
                wrong += 1
                print(f"input {number}, threshold {least[0]:.3g}: {problem}", flush=True)
    print(
        f"{arguments.model} on {arguments.device}: {len(counts) - wrong} of {len(counts)} inputs "
        f"as ONNX Runtime, {close - wrong} of them as from the same layers; {min(counts)} to "
        f"{max(counts)} found, nothing {counts.count(0)} times; {seconds / len(counts):.2f} s a run"
    )
    return 1 if wrong else 0


def picture(model: onnx.ModelProto, number: int) -> dict[str, np.ndarray]:
    """What a model is fed: an image as large as it asks for, in a batch of one."""
    from tests.support.detection_models import image

    given = model.graph.input[0]
    size = given.type.tensor_type.shape.dim[-1].dim_value or SIZE
    return {given.name: image(number, size)[None]}


def threshold(number: int, least: float) -> np.ndarray:
    """Above all scores, below most, or somewhere between."""
    rng = np.random.default_rng(1000 + number)
    drawn = least * 10 ** rng.uniform(-1, 1.5)
    value = {0: 2.0, 1: least / 10}.get(number % 10, drawn)
    return np.array([value], np.float32)


def difference(found: list, wanted: list, tolerance: float) -> str:
    """Where detections differ, in a line; empty where they agree."""
    from tests.support.detection_models import detections, unmatched

    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if a.shape[1:] != b.shape[1:] or len(a) != len(found[-1]):
            return f"output {number} is {a.shape}, expected {b.shape}"
    mine, theirs = detections(found), detections(wanted)
    missing = len(unmatched(theirs, mine, tolerance))
    more = len(unmatched(mine, theirs, tolerance))
    if not missing and not more:
        return ""
    return f"of {len(theirs)} detections {missing} are missing; {more} are others"


def far(found: list, wanted: list, tolerance: float) -> str:
    """Which layer's results differ by more than rounding; empty where none do."""
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        gap = np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)
        if not gap <= tolerance:
            return f"results of last layer {number} differ by {gap:.2g} of the largest"
    return ""


if __name__ == "__main__":
    sys.exit(main())
