"""One Python-only runtime in one fresh process, with the command line and JSON line of aot-run.

  worker.py RUNTIME ARTIFACT --input NAME=FILE.npy ... [--output DIR] --warmup N --runs N
            --min-ms MS --threads N [--json]

RUNTIME is ncnn, ncnn_vk or mnn. The JSON line has two keys more, floor_ns and floor_rss_kb: the
clock and
the peak RSS once the interpreter, numpy and the inputs are there but nothing of the runtime is;
report.py subtracts them.  Runs in the runtime's environment; must not import from its siblings.
"""

import time

START_NS = time.monotonic_ns()

import argparse
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]
Run = Callable[[], object]
Fetch = Callable[[Any], Tensors]


def load_ncnn(
    artifact: str, inputs: Tensors, threads: int, *, vulkan: bool = False
) -> tuple[Run, Fetch]:
    import ncnn

    def to_mat(array: np.ndarray) -> ncnn.Mat:
        if array.dtype == np.int64:
            array = array.astype(np.int32)
        has_unit_batch = array.ndim > 1 and array.shape[0] == 1
        return ncnn.Mat(np.ascontiguousarray(array[0] if has_unit_batch else array)).clone()

    net = ncnn.Net()
    net.opt.use_vulkan_compute = vulkan
    net.opt.num_threads = threads
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.opt.use_bf16_storage = False
    if net.load_param(f"{artifact}.ncnn.param") or net.load_model(f"{artifact}.ncnn.bin"):
        raise RuntimeError("ncnn cannot load this model")
    mats = dict(zip(net.input_names(), map(to_mat, inputs.values()), strict=True))
    names = net.output_names()

    def run() -> list[ncnn.Mat]:
        extractor = net.create_extractor()
        extractor.set_light_mode(True)
        for name, mat in mats.items():
            extractor.input(name, mat)
        results = [extractor.extract(name) for name in names]
        if any(status for status, _ in results):
            raise RuntimeError("ncnn cannot run this model")
        return [mat for _, mat in results]

    return run, lambda mats: {str(i): np.array(mat) for i, mat in enumerate(mats)}


def load_mnn(artifact: str, inputs: Tensors, threads: int) -> tuple[Run, Fetch]:
    import MNN

    interpreter = MNN.Interpreter(artifact)
    session = interpreter.createSession(
        {"numThread": threads, "backend": "CPU", "precision": "normal"}
    )
    layout = MNN.Tensor_DimensionType_Caffe
    targets = interpreter.getSessionInputAll(session)
    for name, array in inputs.items():
        if array.dtype == np.int64:
            array = array.astype(np.int32)
        is_int = array.dtype == np.int32
        halide = MNN.Halide_Type_Int if is_int else MNN.Halide_Type_Float
        targets[name].copyFrom(MNN.Tensor(array.shape, halide, array, layout))

    def run() -> object:
        interpreter.runSession(session)
        return interpreter.getSessionOutputAll(session)

    def fetch(tensors: dict) -> Tensors:
        outputs = {}
        for name, tensor in tensors.items():
            shape = tensor.getShape()
            halide = tensor.getDataType()
            is_int = halide == MNN.Halide_Type_Int
            zeros = np.zeros(shape, np.int32 if is_int else np.float32)
            host = MNN.Tensor(shape, halide, zeros, layout)
            tensor.copyToHostTensor(host)
            outputs[name] = np.array(host.getNumpyData()).reshape(shape).copy()
        return outputs

    return run, fetch


def load_ort(artifact: str, inputs: Tensors, threads: int) -> tuple[Run, Fetch]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(artifact, options, ["CPUExecutionProvider"])
    return lambda: session.run(None, inputs), lambda found: {str(i): x for i, x in enumerate(found)}


LOADERS = {
    "ncnn": load_ncnn,
    "ncnn_vk": partial(load_ncnn, vulkan=True),
    "mnn": load_mnn,
    "ort": load_ort,
}


def steady_ms(run: Run, warmup: int, runs: int, min_ms: float) -> list[float]:
    """Sorted times; the same stopping rule as worker_measure in native/worker.h."""
    for _ in range(warmup):
        run()
    times: list[float] = []
    begin, spent = time.perf_counter(), 0.0
    while len(times) < runs or (runs and spent < min_ms):
        t = time.perf_counter()
        run()
        end = time.perf_counter()
        times.append(1e3 * (end - t))
        spent = 1e3 * (end - begin)
        if len(times) >= 3 and spent > 4 * min_ms > 0:
            break
    return sorted(times)


def peak_rss_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runtime", choices=LOADERS)
    parser.add_argument("artifact")
    parser.add_argument("--input", action="append", default=[])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--warmup", type=int, default=0)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--min-ms", type=float, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    inputs = {k: np.load(path) for k, path in (item.split("=", 1) for item in args.input)}
    floor_rss_kb = peak_rss_kb()
    opened_ns = time.monotonic_ns()
    run, fetch = LOADERS[args.runtime](args.artifact, inputs, args.threads)
    prepared_ns = time.monotonic_ns()
    result = run()
    first_result_ns = time.monotonic_ns()

    if args.output:
        for name, tensor in fetch(result).items():
            np.save(args.output / f"{name.replace('/', '_')}.npy", tensor)
    times = steady_ms(run, args.warmup, args.runs, args.min_ms) or [0.0]
    report = {
        "floor_ns": opened_ns,
        "floor_rss_kb": floor_rss_kb,
        "first_result_ns": first_result_ns,
        "phases_ms": {
            "open": (opened_ns - START_NS) / 1e6,
            "prepare": (prepared_ns - opened_ns) / 1e6,
            "first_run": (first_result_ns - prepared_ns) / 1e6,
        },
        "runs": len(times),
        "median_ms": times[len(times) // 2],
        "min_ms": times[0],
        "p90_ms": times[len(times) * 9 // 10],
        "peak_rss_kb": peak_rss_kb(),
    }
    print(json.dumps(report), flush=True)
    os._exit(0)  # tear-down is not measured


if __name__ == "__main__":
    main()
