"""Windows, movements and shapes of nodes that are wrong: each message, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from aot.errors import CompileError
from aot.frontends.onnx import import_onnx
from tests.support.onnx_models import Array, Case


def f(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def i(*values: int) -> Array:
    return np.array(values, np.int64)


WRONG = [
    (
        Case("Conv", [f(1, 2, 5, 5), f(3, 2, 3, 3)], {"strides": [2]}),
        "attribute 'strides' is [2], expected one number for each of 2 spatial dims",
    ),
    (
        Case("Conv", [f(1, 2, 5, 5), f(3, 2, 3, 3)], {"dilations": [1, 0]}),
        "attribute 'dilations' is [1, 0], expected numbers of at least 1",
    ),
    (
        Case("Conv", [f(1, 2, 5, 5), f(3, 2, 3, 3)], {"pads": [1, 1]}),
        "attribute 'pads' is [1, 1], expected two numbers for each of 2 spatial dims",
    ),
    (
        Case("Conv", [f(1, 2, 5, 5), f(3, 2, 3, 3)], {"auto_pad": "SAME"}),
        "attribute 'auto_pad' is 'SAME', expected NOTSET, VALID, SAME_UPPER or SAME_LOWER",
    ),
    (
        Case("Conv", [f(1, 2, 5, 5), f(3, 2, 3, 3)], {"kernel_shape": [3, 2]}),
        "attribute 'kernel_shape' is [3, 2], but the weight has dims (3, 2, 3, 3)",
    ),
    (Case("Gemm", [f(2, 3, 4), f(4, 2)]), "operands have rank 3 and 2, expected 2"),
    (
        Case("MaxPool", [f(1, 2, 5, 5)], {"kernel_shape": [3]}),
        "attribute 'kernel_shape' is [3], but x has rank 4",
    ),
    (
        Case("DepthToSpace", [f(1, 6, 2, 2)], {"blocksize": 2}),
        "x has 6 channels, not a multiple of 4",
    ),
    (Case("DepthToSpace", [f(1, 4, 2)], {"blocksize": 2}), "x has rank 3, expected 4"),
    (
        Case("SpaceToDepth", [f(1, 1, 3, 4)], {"blocksize": 2}),
        "attribute 'blocksize' is 2, which does not divide x",
    ),
    (Case("SpaceToDepth", [f(1, 4, 2)], {"blocksize": 2}), "x has rank 3, expected 4"),
    (
        Case("ConvTranspose", [f(1, 2, 5, 5), f(2, 3, 3, 3)], {"output_padding": [1]}),
        "attribute 'output_padding' is [1], expected 2 numbers",
    ),
    (
        Case("ConvTranspose", [f(1, 2, 5, 5), f(2, 3, 3, 3)], {"auto_pad": "SAME"}),
        "attribute 'auto_pad' is 'SAME', expected NOTSET, VALID, SAME_UPPER or SAME_LOWER",
    ),
    (
        Case("ConvTranspose", [f(1, 2, 5, 5), f(2, 3, 3, 3)], {"pads": [1, 1]}),
        "attributes 'pads' [1, 1] and 'output_shape' [] do not fit 2 spatial dims",
    ),
    (
        Case("ConvTranspose", [f(1, 2, 1, 1), f(2, 3, 2, 2)], {"pads": [1, 1, 1, 1]}),
        "pads [1, 1, 1, 1] leave nothing of the result, which has dims [0, 0]",
    ),
    (
        Case("ConvTranspose", [f(1, 2, 5, 5), f(2, 3, 3, 3)], {"kernel_shape": [2, 3]}),
        "attribute 'kernel_shape' is [2, 3], but the weight has dims (2, 3, 3, 3)",
    ),
    (
        Case("ConvTranspose", [f(1, 3, 5, 5), f(3, 3, 3, 3)], {"group": 2}),
        "attribute 'group' is 2, which does not divide 3 channels",
    ),
    (
        Case("Col2Im", [f(1, 4, 4), i(3, 3), i(2)], opset=18, constant=[1, 2]),
        "x has rank 3, image_shape 2 and block_shape 1 numbers; "
        "expected rank 3, and one to three numbers each",
    ),
    (
        Case("Col2Im", [f(1, 4, 4), i(3, 3), i(2, 2)], {"pads": [1, 1]}, opset=18, constant=[1, 2]),
        "pads are [1, 1], block_shape [2, 2], strides [1, 1] and dilations [1, 1]; "
        "expected two pads a dim, and the others at least 1",
    ),
    (
        Case("LpPool", [f(1, 2, 5, 5)], {"kernel_shape": [3]}, opset=18),
        "attribute 'kernel_shape' is [3], but x has rank 4",
    ),
    (
        Case("LpPool", [f(1, 2, 5, 5)], {"kernel_shape": [3, 3], "p": 0}, opset=18),
        "attribute 'p' is 0, expected more than 0",
    ),
    (
        Case("LpPool", [f(1, 2, 5)], {"kernel_shape": [2], "p": -1}, opset=18),
        "attribute 'p' is -1, expected more than 0",
    ),
    (Case("LRN", [f(4)], {"size": 3}), "x has rank 1 and size is 3, expected at least 2 and 1"),
    (Case("LRN", [f(1, 4)], {"size": 0}), "x has rank 2 and size is 0, expected at least 2 and 1"),
    (
        Case("GridSample", [f(1, 1, 3, 3), f(1, 2, 2, 2)], {"mode": "area"}, opset=20),
        "attribute 'mode' is 'area', expected nearest, linear or cubic",
    ),
    (
        Case("DeformConv", [f(1, 2, 4, 4), f(3, 2, 3, 3), f(1, 4, 2, 2)], opset=19),
        "offset has dims (1, 4, 2, 2), which do not fit 2 channels, 9 taps and offset_group 1",
    ),
    (
        Case("DeformConv", [f(1, 2, 4, 4), f(3, 2, 3, 3), f(1, 18, 2)], opset=19),
        "x has rank 4 and offset 3, expected 4",
    ),
    (
        Case(
            "MaxUnpool",
            [f(1, 1, 2, 2), np.ones((1, 1, 2, 2), np.int64), i(1, 1, 4)],
            {"kernel_shape": [2, 2], "strides": [2, 2]},
            constant=[2],
        ),
        "output_shape has 3 numbers, expected 4",
    ),
    (
        Case(
            "MaxUnpool",
            [f(1, 1, 2, 2), np.ones((1, 1, 2, 2), np.int64), i(1, 1, 3, 4)],
            {"kernel_shape": [2, 2], "strides": [2, 2]},
            constant=[2],
        ),
        "output_shape [1, 1, 3, 4] is smaller than [1, 1, 4, 4]",
    ),
    (
        Case("ConstantOfShape", [i(2)], {"value": numpy_helper.from_array(f(2))}, constant=[0]),
        "attribute 'value' has 2 elements, expected 1",
    ),
    (Case("Range", [i(0)[0], i(4)[0], i(0)[0]], constant=[0, 1, 2]), "delta is 0"),
    (
        Case("Range", [np.float32(np.nan), np.float32(2), np.float32(1)], constant=[0, 1, 2]),
        "there is no range from nan to 2.0 in steps of 1.0",
    ),
    (
        Case("Reshape", [f(2, 3), i(2, 3, 0)], constant=[1]),
        "shape [2, 3, 0] keeps a dim that x, of rank 2, does not have",
    ),
    (Case("Reshape", [f(2, 3), i(-1, -1)], constant=[1]), "shape [-1, -1] has more than one -1"),
    (Case("Reshape", [f(2, 3), i(2, -3)], constant=[1]), "shape [2, -3] has a negative dim"),
    (Case("Squeeze", [f(2, 3), i(1)], constant=[1]), "axis 1 has extent 3, expected 1"),
    (Case("Tile", [f(2, 3), i(2)], constant=[1]), "repeats has 1 numbers, but x has rank 2"),
    (
        Case("Slice", [f(2, 3), i(0, 0), i(1)], constant=[1, 2]),
        "starts, ends, axes and steps differ in length",
    ),
    (Case("Slice", [f(2, 3), i(0), i(1), i(0), i(0)], constant=[1, 2, 3, 4]), "a step is 0"),
    (
        Case("Slice", [f(2, 3)], {"starts": [0, 0], "ends": [1]}, opset=9),
        "starts, ends, axes and steps differ in length",
    ),
    (Case("Split", [f(5, 2), i(2, 3)], constant=[1], outputs=3), "has 3 outputs, but 2 sizes"),
    (
        Case("Split", [f(6, 2)], {"num_outputs": 3}, opset=18, outputs=2),
        "has 2 outputs, but attribute 'num_outputs' is 3",
    ),
    (
        Case("Pad", [f(2, 3), i(1, 1)], constant=[1]),
        "pads has 2 numbers, expected two for each of 2 dims",
    ),
    (
        Case("Pad", [f(2, 3), i(-3, 0, 0, 0)], constant=[1]),
        "pads take more from dim 0 than it has: 2",
    ),
    (
        Case("Pad", [f(2, 3), i(1, 1), None, i(0, 1)], opset=18, constant=[1, 3]),
        "pads has 2 numbers, expected two for each of 2 axes",
    ),
]


@pytest.mark.parametrize(("case", "message"), WRONG, ids=lambda v: str(v)[:40])
def test_what_is_wrong_is_said(case: Case, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        import_onnx(case.model())
    assert str(caught.value) == f"model: {case.op} (node 'the node'): {message}"
