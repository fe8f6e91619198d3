"""Detectors with NonMaxSuppression inside: what they find against ONNX Runtime, none included."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import aot
from tests.support import models
from tests.support.onnx_models import Array, ort_run

MOST, OVERLAP = 20, 0.45


def with_suppression(path: str, least: float) -> onnx.ModelProto:
    """YOLOv8, whose boxes are centres and sizes, behind which the best of each class are chosen:
    boxes f32[n, 4], their scores f32[n] and classes i64[n]."""
    model = onnx.load(path)
    graph = model.graph
    (output,) = graph.output
    make = helper.make_node

    def constant(name: str, value: Array) -> str:
        graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    zero, one, two, three, four, last = (
        constant(f"at {n}", np.array([n], np.int64)) for n in (0, 1, 2, 3, 4, 1 << 30)
    )
    limits = [
        constant("most", np.array([MOST], np.int64)),
        constant("overlap", np.array([OVERLAP], np.float32)),
        constant("least", np.array([least], np.float32)),
    ]
    graph.node.extend(
        [
            make("Slice", [output.name, zero, four, one], ["columns"]),
            make("Slice", [output.name, four, last, one], ["all_scores"]),
            make("Transpose", ["columns"], ["all_boxes"], perm=[0, 2, 1]),
            make(
                "NonMaxSuppression",
                ["all_boxes", "all_scores", *limits],
                ["selected"],
                "suppression",
                center_point_box=1,
            ),
            make("Slice", ["selected", two, three, one], ["box_column"]),
            make("Squeeze", ["box_column", one], ["box"]),
            make("Slice", ["selected", one, two, one], ["class_column"]),
            make("Squeeze", ["class_column", one], ["classes"]),
            make("Squeeze", ["all_boxes", zero], ["rows"]),
            make("Gather", ["rows", "box"], ["boxes"]),
            make("GatherND", ["all_scores", "selected"], ["scores"]),
        ]
    )
    del graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=n) for n in ("boxes", "scores", "classes"))
    return model


def images() -> Iterator[Array]:
    """Noise, and patterns with some noise, of which the model finds a few things to be there."""
    rng = np.random.default_rng(2)
    rows, columns = np.mgrid[0:320, 0:320] / 320
    for number, scale in enumerate((0, 0.5, 1, 0.3, 0.2, 0.1)):
        image = rng.random((1, 3, 320, 320)) * scale
        if number > 2:
            image += 0.5 * (np.sin(columns * (3 + number)) * np.cos(rows * 2 * number) > 0.2)
        yield image.astype(np.float32)


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
