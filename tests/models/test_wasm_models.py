"""Real models for WebAssembly, packaged and run under Node, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.tools.agreement import compare
from tests.support import models
from tests.support.models import feeds, model_path, reference, runs
from tests.support.node import (
    Call,
    Outcome,
    make_package,
    relaxed_flags,
    require_node,
    require_toolchain,
    run_calls,
)

pytestmark = pytest.mark.models

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-4  # of each output's largest magnitude


def check(outcome: Outcome, wanted: Mapping[str, Array], where: str) -> None:
    assert not outcome.message, f"{where}: {outcome.message}"
    assert set(outcome.outputs) == set(wanted)
    for name, array in wanted.items():
        found = compare(name, outcome.outputs[name], array)
        assert found.error <= TOLERANCE, f"{where}: {found}"


def run_packaged(model: aot.CompiledModule, folder: Path, calls: Sequence[Call]) -> list[Outcome]:
    require_node()
    require_toolchain()
    model.save(folder / "model.aotm")
    return run_calls(make_package(folder / "model.aotm", folder / "package"), calls)


@pytest.mark.parametrize(
    "name", ["ppocr_cls", "squeezenet_rw", "magika", "minilm_l3", "silero_vad_16k_if"]
)
def test_a_model_agrees_with_onnxruntime_at_all_shapes(name: str, tmp_path: Path) -> None:
    """With every dim open that the model leaves open, and back to the first shapes at last."""
    compiled = models.compiled(name, targets=["wasm32"])
    names = [*runs(name), "1"]
    outcomes = run_packaged(compiled, tmp_path, [Call(feeds(name, run)) for run in names])
    for run, outcome in zip(names, outcomes, strict=True):
        check(outcome, reference(name, run), f"{name}, run {run}")


def test_a_package_of_both_runs_what_the_engine_has(tmp_path: Path) -> None:
    """Relaxed SIMD where there is, else the other variant; weights are in the file once."""
    name = "ppocr_cls"
    both = aot.compile(model_path(name), targets=["wasm32", "wasm32-relaxed"])
    assert [v.target for v in both.image.variants] == ["wasm32-relaxed", "wasm32"]
    call, flags = Call(feeds(name)), relaxed_flags()
    (outcome,) = run_packaged(both, tmp_path, [call])
    assert outcome.target == ("wasm32-relaxed" if flags == () else "wasm32")
    check(outcome, reference(name), outcome.target)
    if flags is not None:
        (outcome,) = run_calls(tmp_path / "package" / "model.mjs", [call], flags=flags)
        assert outcome.target == "wasm32-relaxed"
        check(outcome, reference(name), outcome.target)
    alone = models.compiled(name, targets=["wasm32"])
    code = len(both.image.variants[0].code)
    assert len(both.to_bytes()) < len(alone.to_bytes()) + 2 * code


def test_a_voice_detector_keeps_its_memory(tmp_path: Path) -> None:
    """Twelve frames of a recording; the state is the model's own."""
    name = "silero_vad_16k"
    compiled = aot.compile(model_path(name), targets=["wasm32"], states={"state": "stateN"})
    frames = [
        {k: v for k, v in feeds(name, str(frame + 1)).items() if k != "state"}
        for frame in range(12)
    ]
    outcomes = run_packaged(compiled, tmp_path, [Call(frame) for frame in frames])
    session = ort_session(name)
    state = np.zeros((2, 1, 128), np.float32)
    for number, (frame, outcome) in enumerate(zip(frames, outcomes, strict=True)):
        output, state = session.run(["output", "stateN"], {**frame, "state": state})
        check(outcome, {"output": output}, f"frame {number}")


def ort_session(name: str) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(model_path(name)), providers=["CPUExecutionProvider"])
