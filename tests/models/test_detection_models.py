"""Detectors with NonMaxSuppression inside: what they find against ONNX Runtime, none included."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import aot
from tests.support import models
from tests.support.detection_models import (
    behind,
    images,
    last_layers,
    unmatched,
    with_suppression,
    with_unit_outputs,
)
from tests.support.onnx_models import graph_model, ort_run, tensor_info


@pytest.mark.parametrize("least", [0.005, 0.05])
def test_yolo_with_suppression_inside(least: float) -> None:
    model = with_suppression(str(models.model_path("yolov8n_320")), least)
    name = model.graph.input[0].name
    compiled = aot.compile(model, input_shapes={name: (1, 3, 320, 320)})
    counts = set()
    with aot.load(compiled) as program:
        for image in images():
            wanted = ort_run(model, {name: image})
            counts.add(len(wanted[1]))
            for a, b in zip(program({name: image}).values(), wanted, strict=True):
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
    assert counts == {0} if least > 0.01 else len(counts) > 3


# what benchmarks/detectors.py compares with


def untrained() -> onnx.ModelProto:
    """Scores of positions, which are chosen from."""
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        make("Relu", ["a"], ["b"]),
        make("Conv", ["b", "v"], ["logits"]),
        make("Softmax", ["logits"], ["scores"], axis=1),
        make("Shape", ["a"], ["shape"]),
        make("NonZero", ["scores"], ["chosen"]),
    ]
    model = graph_model(nodes, [tensor_info("x", [1, 3, 6, 6])], ["scores", "chosen", "shape"])
    rng = np.random.default_rng(1)
    for name, shape in (("w", (8, 3, 3, 3)), ("v", (4, 8, 1, 1))):
        weight = (rng.standard_normal(shape) * 1e-5).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


def test_scores_of_scaled_layers_depend_on_the_image() -> None:
    x = np.random.default_rng(2).random((1, 3, 6, 6), np.float32)
    before = ort_run(untrained(), {"x": x})[0]
    model = with_unit_outputs(untrained(), [{"x": x}])
    after = ort_run(model, {"x": x})[0]
    assert np.ptp(before) < 1e-6 < 0.5 < np.ptp(after)
    assert last_layers(model.graph) == ["scores"]
    assert last_layers(model.graph, ("Conv",)) == ["logits"]
    logits = np.random.default_rng(3).standard_normal((1, 4, 6, 6)).astype(np.float32)
    scores, chosen, shape = ort_run(behind(model, ["logits"]), {"x": x, "logits": logits})
    np.testing.assert_allclose(scores, np.exp(logits) / np.exp(logits).sum(1), rtol=1e-5)
    assert (chosen.shape, shape.tolist()) == ((4, 144), [1, 8, 6, 6])


def test_detections_are_compared_as_sets() -> None:
    rows = np.array([[0.0, 10, 0.5], [3, 4, 0.25], [0, 10, 0.5]])
    assert not len(unmatched(rows, rows[::-1] + 1e-5, 1e-3))
    assert unmatched(rows, rows[1:], 1e-3).tolist() == [[0, 10, 0.5]]
    assert unmatched(rows, rows * [1, 1, 1.01], 1e-3).tolist() == rows.tolist()
    assert unmatched(rows, rows[:0], 1e-3).tolist() == rows.tolist()
