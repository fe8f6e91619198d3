"""The reference models end to end: imported, compiled, loaded, run, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from tests.support.models import compiled, feeds, model_path, reference, runs
from tests.support.paths import MODULES_VARIABLE

MODELS = ("ppocr_cls", "squeezenet_rw", "silero_vad_16k", "minilm_l3")
TOLERANCE = 1e-4  # of each output's largest magnitude

pytestmark = pytest.mark.models


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
    with aot.load(compiled(name)) as program:  # with every dim open that the model leaves open
        for run in [*runs(name), "1"]:  # back to the first shapes: the plan that was kept
            check(program, name, run)


@pytest.mark.parametrize("name", ["ppocr_cls", "minilm_l3"])
def test_bound_module_has_a_fixed_arena(name: str) -> None:
    shapes = {k: v.shape for k, v in feeds(name).items()}
    module = compiled(name, input_shapes=shapes)
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


def test_a_model_is_compiled_once_for_all_who_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tests' cache holds is the module itself; other options are another module."""
    monkeypatch.setenv(MODULES_VARIABLE, str(tmp_path))
    compile_model, calls = aot.compile, []

    def counted(model: Any, **options: Any) -> aot.CompiledModule:
        calls.append(options)
        return compile_model(model, **options)

    monkeypatch.setattr(aot, "compile", counted)
    name = "oww_mycroft_lstm"
    made, found = compiled(name), compiled(name)
    assert (found.image, found.stats) == (made.image, made.stats)
    assert found.to_bytes() == made.to_bytes() == compile_model(model_path(name)).to_bytes()
    other = compiled(name, disable=["fusion"])
    assert other.to_bytes() != made.to_bytes()
    assert calls == [{}, {"disable": ["fusion"]}]
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".pickle", ".pickle"]
