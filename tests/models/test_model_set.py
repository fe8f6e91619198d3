"""All models of the development set: compiled once each, run at every shape they are meant for.

ONNX Runtime, on the graph as it is, is the oracle. One test a model, so that a failure names it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import aot
from aot.tools.agreement import compare
from tests.support.models import (
    MODELS,
    TOLERANCE,
    TOLERANCES,
    all_runs,
    compiled,
    feeds,
    model_path,
    reference,
    runs,
)

pytestmark = [pytest.mark.models, pytest.mark.slow]


def check(name: str, module: aot.CompiledModule, wanted_runs: Sequence[str]) -> None:
    tolerance = TOLERANCES.get(name, TOLERANCE)
    with aot.load(module) as program:
        for run in wanted_runs:
            outputs = program(feeds(name, run))
            for output, wanted in reference(name, run).items():
                agreement = compare(output, outputs[output], wanted)
                assert agreement.error <= tolerance, (name, run, agreement)


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_onnxruntime(name: str) -> None:
    # back to the first shapes: the plan that was kept
    check(name, compiled(name), [*all_runs(name), "1"])


# each op by itself is what samples of ops test too: models of every kind do, all with -m sweep
UNFUSED = ("ppocr_cls", "silero_vad_16k_if", "minilm_l3", "smart_turn_qdq", "oww_mel")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in UNFUSED else [pytest.mark.sweep]) for n in MODELS]
)
def test_agrees_without_fusion(name: str) -> None:
    check(name, aot.compile(model_path(name), disable=["fusion"]), runs(name))
