"""Detectors with NonMaxSuppression inside, and images and thresholds to run them on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.support.onnx_models import Array

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


def with_threshold_as_input(model: onnx.ModelProto, least: float) -> onnx.ModelProto:
    """The model with an input `threshold` f32[1] in the place of each float constant that is
    `least` and that a NonMaxSuppression or a comparison of scores has."""
    graph = model.graph
    arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            arrays[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    found = 0
    for node in graph.node:
        if node.op_type not in ("NonMaxSuppression", "Greater"):
            continue
        for number, name in enumerate(node.input):
            array = arrays.get(name)
            if array is not None and array.dtype == np.float32 and np.isclose(array, least).all():
                node.input[number] = "threshold"
                found += 1
    assert found, f"no comparison with {least}"
    graph.input.append(helper.make_tensor_value_info("threshold", onnx.TensorProto.FLOAT, [1]))
    return model


def image(number: int, size: int) -> Array:
    """Noise, or a pattern with some noise, in which a detector sees a few things: f32[3, S, S]."""
    rng = np.random.default_rng(number)
    rows, columns = np.mgrid[0:size, 0:size] / size
    found = rng.random((3, size, size)) * rng.choice([0, 0.1, 0.3, 1])
    if number % 3:
        waves = rng.uniform(2, 20, 2)
        found += 0.5 * (np.sin(columns * waves[0]) * np.cos(rows * waves[1]) > 0.2)
    return found.astype(np.float32)


def images() -> Iterator[Array]:
    """Noise, and patterns with some noise, of which the model finds a few things to be there."""
    rng = np.random.default_rng(2)
    rows, columns = np.mgrid[0:320, 0:320] / 320
    for number, scale in enumerate((0, 0.5, 1, 0.3, 0.2, 0.1)):
        found = rng.random((1, 3, 320, 320)) * scale
        if number > 2:
            found += 0.5 * (np.sin(columns * (3 + number)) * np.cos(rows * 2 * number) > 0.2)
        yield found.astype(np.float32)
