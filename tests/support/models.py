"""The reference models for tests: samples/model_zoo.py, compiled once a run, and what ONNX Runtime
answers to it."""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import aot
from aot.backends import sources
from tests.support.paths import MODULES_VARIABLE, ROOT

sys.path.insert(0, str(ROOT / "samples"))

import model_zoo
from model_zoo import MODELS

__all__ = [
    "MODELS",
    "SMALL_MODELS",
    "TOLERANCE",
    "TOLERANCES",
    "all_runs",
    "compiled",
    "feeds",
    "model_path",
    "model_zoo",
    "reference",
    "runs",
]

# what tests of single stages use; tests/models/test_model_set.py takes all
SMALL_MODELS = ("ppocr_cls", "squeezenet_rw", "silero_vad_16k", "minilm_l3")
# of each output's largest magnitude; a quantised model rounds where the engines' sums differ
TOLERANCE = 1e-4
TOLERANCES = {"smart_turn_qdq": 2e-2}

Array = np.ndarray[Any, Any]


@functools.cache
def model_path(name: str) -> Path:
    """The model's file; tests that need it have the mark `models`, so that they can be left out."""
    return model_zoo.fetch(name)


def compiled(name: str, **options: Any) -> aot.CompiledModule:
    """The model, compiled with these options of `aot.compile`: once a run of tests, whoever asks.

    For modules that several tests ask for: each takes its weights on the disk. Its statistics are
    those of the compile that made it.
    """
    key = (sources.digest("."), model_path(name), sorted(options.items()))
    file = f"{name}-{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.pickle"
    path = Path(os.environ[MODULES_VARIABLE], file)
    if path.exists():
        with path.open("rb") as stream:
            found = pickle.load(stream)
        assert isinstance(found, aot.CompiledModule)
        return found
    made = aot.compile(model_path(name), **options)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as stream:
        pickle.dump(made, stream, pickle.HIGHEST_PROTOCOL)
    Path(stream.name).replace(path)
    return made


def runs(name: str) -> list[str]:
    """Names of the runs that a model has inputs for: "1", and "alt" for other shapes."""
    return ["1", "alt"] if MODELS[name].other_shapes else ["1"]


def all_runs(name: str) -> list[str]:
    """As `runs`, with three seeds."""
    return ["1", "2", "3", *runs(name)[1:]]


def feeds(name: str, run: str = "1") -> dict[str, Array]:
    """Inputs by name."""
    if run == "alt":
        return model_zoo.feeds(name, 1, MODELS[name].other_shapes)
    return model_zoo.feeds(name, int(run))


@functools.cache
def reference(name: str, run: str = "1") -> Mapping[str, Array]:
    """ONNX Runtime's outputs by name, of the graph as it is, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        str(model_path(name)), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds(name, run)), strict=True))
