"""The reference models end to end: imported, compiled, loaded, run, against ONNX Runtime."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import aot
from tests.support.models import feeds, model_path, reference, runs

MODELS = ("ppocr_cls", "squeezenet_rw", "silero_vad_16k", "minilm_l3")
TOLERANCE = 1e-4  # of each output's largest magnitude

pytestmark = pytest.mark.models


@cache
def compiled(name: str) -> aot.CompiledModule:
    """Compiled once, with every dim that the model leaves open left open."""
    return aot.compile(model_path(name))


def check(program: aot.Program, name: str, run: str) -> None:
    outputs = program(feeds(name, run))
    for output, wanted in reference(name, run).items():
        found = outputs[output]
        assert found.shape == wanted.shape
        assert found.dtype == wanted.dtype
        scale = max(float(np.abs(wanted).max()), 1e-30)
        assert float(np.abs(found - wanted).max()) / scale <= TOLERANCE, (output, run)


@pytest.mark.parametrize("name", MODELS)
def test_one_file_agrees_with_onnxruntime_at_all_shapes(name: str) -> None:
    with aot.load(compiled(name)) as program:
        for run in [*runs(name), "1"]:  # back to the first shapes: the plan that was kept
            check(program, name, run)


@pytest.mark.parametrize("name", ["ppocr_cls", "minilm_l3"])
def test_bound_module_has_a_fixed_arena(name: str) -> None:
    shapes = {k: v.shape for k, v in feeds(name).items()}
    module = aot.compile(model_path(name), input_shapes=shapes)
    (variant,) = module.stats["variants"]
    assert 0 < variant["arena_lower_bound_bytes"] <= variant["arena_bytes"]
    with aot.load(module) as program:
        check(program, name, "1")


def test_a_wrong_shape_names_the_input_and_what_is_expected() -> None:
    wrong = {"x": np.zeros((1, 4, 48, 192), np.float32)}
    with (
        aot.load(compiled("ppocr_cls")) as program,
        pytest.raises(aot.RuntimeFailure, match=r'input "x".*\[1, 4, 48, 192\]'),
    ):
        program(wrong)
