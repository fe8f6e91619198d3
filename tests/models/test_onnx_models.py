"""The reference models through the importer and the reference interpreter, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from aot.frontends.onnx import import_onnx
from aot.ir.interpreter.interpreter import run
from aot.ir.verifier import verify
from tests.support.models import SMALL_MODELS, feeds, model_path, reference, runs

pytestmark = pytest.mark.models
RUNS = [(name, which) for name in SMALL_MODELS for which in runs(name)]
TOLERANCE = 1e-4  # of each output's largest magnitude


def _check(name: str, which: str, **options: object) -> None:
    module = import_onnx(model_path(name), **options)  # type: ignore[arg-type]
    verify(module)
    function = module.main
    inputs = feeds(name, which)
    results = run(function, {v.name: inputs[v.name] for v in function.inputs})
    expected = reference(name, which)
    assert function.result_names == list(expected)
    for output, array in zip(function.result_names, results, strict=True):
        wanted = expected[output]
        assert array.shape == wanted.shape
        assert array.dtype == wanted.dtype
        largest = float(np.max(np.abs(wanted)))
        assert float(np.max(np.abs(array - wanted))) <= TOLERANCE * largest


@pytest.mark.parametrize(("name", "which"), RUNS)
def test_model_as_it_is(name: str, which: str) -> None:
    _check(name, which)


@pytest.mark.parametrize(("name", "which"), RUNS)
def test_model_with_bound_shapes(name: str, which: str) -> None:
    shapes = {key: array.shape for key, array in feeds(name, which).items()}
    function = import_onnx(model_path(name), input_shapes=shapes).main
    assert all(result.type.is_static for result in function.results)
    assert not function.assumptions
    _check(name, which, input_shapes=shapes)


def test_model_with_a_bound_input() -> None:
    mask = feeds("minilm_l3")["attention_mask"]
    function = import_onnx(model_path("minilm_l3"), input_values={"attention_mask": mask}).main
    assert [f"{v.name}: {v.type}" for v in function.inputs] == ["input_ids: i64[1, 64]"]
    _check("minilm_l3", "1", input_values={"attention_mask": mask})


def test_symbols_are_named_as_in_the_model() -> None:
    def types(name: str) -> list[str]:
        return [f"{v.name}: {v.type}" for v in import_onnx(model_path(name)).main.inputs]

    assert types("minilm_l3") == [
        "input_ids: i64[batch_size, sequence_length]",
        "attention_mask: i64[batch_size, sequence_length]",
    ]
    assert types("ppocr_cls") == ["x: f32[x_d0, 3, x_d2, x_d3]"]


def test_results_depend_on_the_symbols_they_should() -> None:
    function = import_onnx(model_path("minilm_l3")).main
    assert {
        n: str(v.type) for n, v in zip(function.result_names, function.results, strict=True)
    } == {
        "output": "i64[batch_size, sequence_length]",
        "463": "i64[batch_size, sequence_length]",
        "onnx::Shape_422": "f32[batch_size, sequence_length, 384]",
        "461": "f32[batch_size, 384]",
    }
    (ppocr,) = import_onnx(model_path("ppocr_cls")).main.results
    assert str(ppocr.type) == "f32[x_d0, 2]"
