"""Compares a module's speed with other inference engines, which run alternately; reports ratios of
medians.

Owns which engines there are and how each runs an ONNX model as it would be deployed. Times of two
runs of this, or of two machines, must not be compared.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aot.errors import CompileError
from aot.frontends import registry
from aot.tools.bench.benchmark import Case, prepared_command, round_median, shapes_of
from aot.tools.engine_errors import cannot_run, check_format
from aot.tools.onnx_engine import numpy_name

Arrays = Mapping[str, NDArray[Any]]
Opened = Callable[[], object]  # runs once

WARMUP = 3


def compare(
    case: Case,
    model: str | os.PathLike[str],
    engines: Sequence[str],
    *,
    input_values: Mapping[str, ArrayLike] | None = None,
    rounds: int = 5,
    runs: int = 10,
    seconds: float = 0.5,
) -> dict[str, Any]:
    """Times a module and other engines alternately on the same inputs.

    Args:
        model: the ONNX file that the module was compiled from.
        engines: of `ENGINES`.
        input_values: what the module was compiled with; the engines get it as inputs.
        rounds: how often each has its turn; ours is a fresh process each time.
        runs: at least so many a turn are timed, after three that are not.
        seconds: and for at least so long.

    Raises:
        CompileError: an engine is unknown, not installed, or does not run the model.
        RuntimeFailure: `aot-run` is not there or failed.
    """
    unknown = [name for name in engines if name not in ENGINES]
    if unknown:
        raise CompileError(f"no engine is called {unknown[0]!r}: {', '.join(ENGINES)}")
    if not Path(model).is_file():
        raise CompileError(f"cannot read {os.fspath(model)}: no such file")
    for name in engines:
        check_onnx(name, model)
    values = {name: np.asarray(value) for name, value in (input_values or {}).items()}
    with prepared_command(case) as (command, arrays):
        turns: dict[str, Callable[[], float]] = {
            "aotc": lambda: round_median(command, runs=runs, seconds=seconds)
        }
        for name in engines:
            run = _open(name, Path(model), {**arrays, **values}, case.threads)
            turns[name] = _timed(run, runs, seconds)
        medians: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(rounds):
            for name, turn in turns.items():
                medians[name].append(turn())
    found = {name: statistics.median(of_rounds) for name, of_rounds in medians.items()}
    return {
        "module": os.fspath(case.module),
        "model": os.fspath(model),
        "shapes": shapes_of(arrays),
        "threads": case.threads,
        "rounds": rounds,
        "median_ms": found,
        "round_medians_ms": medians,
        "ratio": {name: found["aotc"] / found[name] for name in engines},
        "is_noise": {name: _overlap(medians["aotc"], medians[name]) for name in engines},
    }


def _overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether some round of one is as fast as some round of the other, both ways."""
    return max(min(a), min(b)) <= min(max(a), max(b))


def check_onnx(engine: str, model: str | os.PathLike[str]) -> None:
    """Raises a CompileError unless `model` is an ONNX file, as other engines read no other
    format."""
    check_format(engine, model, registry.ONNX)


def installed() -> tuple[str, ...]:
    """The names of the installed engines."""
    from importlib.util import find_spec

    return tuple(name for name in ENGINES if find_spec(name) is not None)


def _timed(run: Opened, runs: int, seconds: float) -> Callable[[], float]:
    def turn() -> float:
        for _ in range(WARMUP):
            run()
        samples: list[float] = []
        begin = time.perf_counter()
        while len(samples) < runs or time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            run()
            samples.append(1e3 * (time.perf_counter() - start))
        return statistics.median(samples)

    return turn


def _open(name: str, model: Path, inputs: Arrays, threads: int) -> Opened:
    try:
        run = ENGINES[name](model, inputs, threads)
        run()
    except ImportError as error:
        raise CompileError(f"{name} is not installed: pip install {name}") from error
    except Exception as error:  # engines' exceptions have no common base
        raise cannot_run(name, model, error) from error
    return run


def _open_onnxruntime(model: Path, inputs: Arrays, threads: int) -> Opened:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    types = {i.name: i.type for i in session.get_inputs()}
    feeds = {n: a.astype(numpy_name(types[n]), copy=False) for n, a in inputs.items() if n in types}
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, np.asarray(array, order="C"))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding)


def _open_openvino(model: Path, inputs: Arrays, threads: int) -> Opened:
    import openvino

    core = openvino.Core()
    graph = core.read_model(str(model))
    known = {name for port in graph.inputs for name in port.get_names()}
    feeds = {name: np.asarray(a, order="C") for name, a in inputs.items() if name in known}
    graph.reshape({name: list(array.shape) for name, array in feeds.items()})
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = core.compile_model(graph, "CPU", settings).create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
    run: Opened = request.infer
    return run


# Those that take ONNX files as they are.
ENGINES: dict[str, Callable[[Path, Arrays, int], Opened]] = {
    "onnxruntime": _open_onnxruntime,
    "openvino": _open_openvino,
}
