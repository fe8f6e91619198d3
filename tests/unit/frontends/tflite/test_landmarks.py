"""MediaPipe's custom operators, which LiteRT has none of, against their definitions in numpy."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

from aot.errors import CompileError
from aot.frontends.tflite import import_tflite
from tests.support import litert
from tests.support.tflite_models import Array, Builder

RANDOM = np.random.RandomState(4)


def ran(
    name: str, options: bytes, shapes: dict[str, Any], *results: Any
) -> tuple[Any, list[Array]]:
    """The inputs and the results of a model of one custom operator."""
    b = Builder()
    inputs = {k: RANDOM.uniform(0, 1, s).astype(np.float32) for k, s in shapes.items()}
    operands = [b.tensor(shape, name=key) for key, shape in shapes.items()]
    outputs = [b.tensor(shape) for shape in results]
    b.op(name, operands, outputs, custom=options)
    found = litert.interpreted(b.model(operands, outputs), inputs)
    return inputs, list(found.values())


def test_transform_matrix() -> None:
    chosen = [3, 1, 4, 5]
    options = {
        "left_rotation_idx": 3,
        "right_rotation_idx": 5,
        "target_rotation_radians": 0.3,
        "output_height": 8,
        "output_width": 16,
        "scale_x": 1.5,
        "scale_y": 1.25,
        "subset_idxs": chosen,
    }
    packed = bytes(flexbuffers.Dumps(options))
    inputs, (found,) = ran("Landmarks2TransformMatrix", packed, {"x": (1, 6, 3)}, (1, 4, 4))
    points = inputs["x"][0, :, :2].astype(np.float64)
    left, right = points[3], points[5]
    turn = 0.3 - math.atan2(right[1] - left[1], right[0] - left[0])

    def turned(angle: float) -> Array:
        c, s = math.cos(angle), math.sin(angle)
        return np.array([[c, -s], [s, c]])

    box = points[chosen] @ turned(turn).T
    low, high = box.min(0), box.max(0)
    wanted = np.eye(4)
    wanted[:2, :2] = turned(-turn) @ np.diag((high - low) * [1.5, 1.25] / [16, 8])
    wanted[:2, 3] = turned(-turn) @ ((low + high) / 2) + wanted[:2, :2] @ [-8, -4]
    np.testing.assert_allclose(found[0], wanted, atol=1e-5)


@pytest.mark.parametrize("dims", [2, 3])
def test_transform_landmarks(dims: int) -> None:
    shapes = {"x": (1, 7, dims), "m": (1, 4, 4)}
    inputs, (found,) = ran("TransformLandmarks", b"", shapes, (1, 7, dims))
    points, matrix = inputs["x"][0], inputs["m"][0]
    wanted = points.copy()
    wanted[:, :2] = points[:, :2] @ matrix[:2, :2].T + matrix[:2, 3]
    np.testing.assert_allclose(found[0], wanted, atol=1e-5)


def test_transform_tensor() -> None:
    packed = bytes(flexbuffers.Dumps({"output_height": 5, "output_width": 6}))
    b = Builder()
    matrix = np.eye(4, dtype=np.float32)
    matrix[:2, :2], matrix[:2, 3] = [[0.9, -0.4], [0.3, 1.1]], [0.73, -0.57]
    x, m = b.tensor((1, 4, 7, 3), name="x"), b.constant(matrix.reshape(1, 4, 4))
    y = b.tensor((1, 5, 6, 3))
    b.op("TransformTensorBilinear", [x, m], [y], custom=packed)
    image = RANDOM.uniform(0, 1, (1, 4, 7, 3)).astype(np.float32)
    (found,) = litert.interpreted(b.model([x], [y]), {"x": image}).values()
    wanted = np.zeros((5, 6, 3))
    for i, j in np.ndindex(5, 6):
        px, py = matrix[:2, :2] @ [j + 0.5, i + 0.5] + matrix[:2, 3] - 0.5
        if not (0 <= px <= 6 and 0 <= py <= 3):
            continue
        left, top = math.floor(px), math.floor(py)
        for row, column in np.ndindex(2, 2):
            weight = (1 - abs(py - top - row)) * (1 - abs(px - left - column))
            if weight > 0:
                wanted[i, j] += weight * image[0, min(top + row, 3), min(left + column, 6)]
    assert np.count_nonzero(wanted[..., 0]) in range(5, 30)
    np.testing.assert_allclose(found[0], wanted, atol=1e-5)


@pytest.mark.parametrize("padding", [1, 2])
def test_pooling_with_places_and_back(padding: int) -> None:
    """Each window's largest element, where in the window it is, and all of them put back."""
    packed = struct.pack("<5i", padding, 2, 2, 2, 2) + bytes(20)
    inputs, (y, at) = ran(
        "MaxPoolingWithArgmax2D", packed, {"x": (2, 4, 6, 3)}, *[(2, 2, 3, 3)] * 2
    )
    windows = (
        inputs["x"].reshape(2, 2, 2, 3, 2, 3).transpose(0, 1, 3, 5, 2, 4).reshape(2, 2, 3, 3, 4)
    )
    np.testing.assert_array_equal(y, windows.max(-1))
    np.testing.assert_array_equal(at, windows.argmax(-1))
    b = Builder()
    operands = [b.tensor(y.shape, name="y"), b.tensor(at.shape, name="at")]
    out = b.tensor((2, 4, 6, 3))
    b.op("MaxUnpooling2D", operands, [out], custom=packed)
    (found,) = litert.interpreted(b.model(operands, [out]), {"y": y, "at": at}).values()
    is_one = inputs["x"] == np.repeat(np.repeat(y, 2, 1), 2, 2)
    np.testing.assert_array_equal(found, np.where(is_one, inputs["x"], 0))


@pytest.mark.parametrize(("padding", "side"), [(1, 8), (2, 9)])
def test_transposed_convolution_with_bias(padding: int, side: int) -> None:
    """As TFLite's TRANSPOSE_CONV, but with the shape of the result computed."""
    b = Builder()
    x = b.tensor((1, 4, 4, 2), name="x")
    w = b.constant(RANDOM.uniform(-1, 1, (3, 3, 3, 2)).astype(np.float32))
    bias = b.constant(np.array([1, 2, 3], np.float32))
    y, z = b.tensor((1, side, side, 3)), b.tensor((1, side, side, 3))
    b.op("Convolution2DTransposeBias", [x, w, bias], [y], custom=struct.pack("<3i", padding, 2, 2))
    shape = b.constant(np.array([1, side, side, 3], np.int32))
    how = {"padding": padding - 1, "stride_h": 2, "stride_w": 2}
    b.op("TRANSPOSE_CONV", [shape, w, x], [z], "TransposeConvOptions", **how)
    image = RANDOM.uniform(-1, 1, (1, 4, 4, 2)).astype(np.float32)
    ours, plain = litert.interpreted(b.model([x], [y, z]), {"x": image}).values()
    np.testing.assert_allclose(ours, plain + np.array([1, 2, 3]), atol=1e-5)


@pytest.mark.parametrize("options", [b"", b"\xff" * 30, bytes(flexbuffers.Dumps([1, 2]))])
def test_options_that_are_damaged(options: bytes) -> None:
    b = Builder()
    x, y = b.tensor((1, 6, 3), name="x"), b.tensor((1, 4, 4), name="y")
    b.op("Landmarks2TransformMatrix", [x], [y], custom=options)
    with pytest.raises(CompileError) as caught:
        import_tflite(b.model([x], [y]))
    assert str(caught.value) in (
        "model: Landmarks2TransformMatrix (operator 0, 'y'): its options are damaged",
        "model: Landmarks2TransformMatrix (operator 0, 'y'): its options are no map",
    )
