"""Detectors with NonMaxSuppression inside: what they find against ONNX Runtime, none included."""

from __future__ import annotations

import numpy as np
import pytest

import aot
from tests.support import models
from tests.support.detection_models import images, with_suppression
from tests.support.onnx_models import ort_run


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
