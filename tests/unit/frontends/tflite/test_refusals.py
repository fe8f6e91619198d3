"""What is wrong in a TFLite file, or not supported, in one line that names the operator."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

from aot.errors import CompileError, UnsupportedError
from aot.frontends.tflite import import_tflite
from tests.support import litert
from tests.support.tflite_models import NUMBERS, Builder, signature, table

I32, F32 = np.int32, np.float32


def refused(model: bytes) -> list[str]:
    """The error that a model gives: one line, or what it lists."""
    with pytest.raises((CompileError, UnsupportedError)) as caught:
        import_tflite(model)
    lines = str(caught.value).splitlines()
    if isinstance(caught.value, UnsupportedError):
        assert lines.pop(0) == f"model: not supported in this model ({len(lines)}):"
        return [line.removeprefix("  ") for line in lines]
    (line,) = lines
    return [line.removeprefix("model: ")]


def one_op(
    name: str,
    operands: Sequence[Any],
    *,
    options: str | None = None,
    fields: dict[str, Any] | None = None,
    custom: bytes | None = None,
    result: Any = (2, 3),
    dtype: Any = F32,
    results: int = 1,
) -> bytes:
    """A model of one operator: tuples are the shapes of inputs, with -1 for open extents, arrays
    are constants, None is what is left out."""
    b, inputs, numbers = Builder(), [], []
    for given in operands:
        if isinstance(given, tuple):
            shape, kind = (
                (given[0], given[1]) if given and isinstance(given[0], tuple) else (given, F32)
            )
            extents = [4 if e < 0 else e for e in shape]
            inputs.append(b.tensor(extents, kind, signature=shape, name=f"x{len(inputs)}"))
            numbers.append(inputs[-1])
        else:
            numbers.append(-1 if given is None else b.constant(np.asarray(given)))
    ys = [b.tensor(result, dtype, name="y" if i == 0 else f"y{i}") for i in range(results)]
    b.op(name, numbers, ys, options, custom, **(fields or {}))
    return b.model(inputs, ys)


def i32(*numbers: Any) -> Any:
    return np.array(numbers, I32)


def packed(**options: Any) -> bytes:
    return bytes(flexbuffers.Dumps(options))


DETECTION = {
    "max_detections": 3,
    "max_classes_per_detection": 1,
    "nms_score_threshold": 0.4,
    "nms_iou_threshold": 0.5,
    "num_classes": 2,
    **dict.fromkeys(("y_scale", "x_scale", "h_scale", "w_scale"), 1.0),
}
DETECTED = [(1, 5, 4), (1, 5, 3), np.zeros((5, 4), F32)]
MATRIX = {
    "left_rotation_idx": 0,
    "right_rotation_idx": 1,
    "output_height": 2,
    "output_width": 2,
    "scale_x": 1.0,
    "scale_y": 1.0,
    "target_rotation_radians": 0.0,
    "subset_idxs": [0, 1],
}
WEIGHT = np.zeros((3, 3, 3, 4), F32)


def without(options: dict[str, Any], *names: str, **others: Any) -> bytes:
    return packed(**{k: v for k, v in options.items() if k not in names}, **others)


# name, operands, the rest of `one_op`, what is said behind the operator's name
CASES: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("RESHAPE", [(2, 3), i32(-1, -1)], {}, "its shape [-1, -1] leaves several extents open"),
    (
        "RESHAPE",
        [(0, 3), i32(0, -1)],
        {},
        "its shape [0, -1] leaves open how many nothings there are",
    ),
    ("TRANSPOSE", [(2, 3), i32(0, 0)], {}, "its order [0, 0] is none of 2 dims"),
    ("SLICE", [(2, 3), i32(0), i32(1)], {}, "x has rank 2, but begins has 1 elements"),
    ("STRIDED_SLICE", [(2,), i32(0, 0), i32(1, 1), i32(1, 1)], {}, "it has 2 items for 1 dims"),
    ("STRIDED_SLICE", [(2,), i32(0), i32(1), i32(0)], {}, "a step is 0"),
    ("PAD", [(2, 3), i32([1, 1])], {}, "x has rank 2, but there are 2 paddings"),
    (
        "PADV2",
        [(2, 3), i32([1, 1], [0, 0]), ()],
        {},
        "a padding value that is computed is not supported",
    ),
    (
        "MIRROR_PAD",
        [(-1, 3), i32([1, 1], [0, 0])],
        {"options": "MirrorPadOptions", "fields": {"mode": 1}},
        "paddings that depend on the input's shape",
    ),
    (
        "MIRROR_PAD",
        [(2, 3), i32([0, 5], [0, 0])],
        {"options": "MirrorPadOptions", "fields": {"mode": 1}},
        "dim 0 of 2 is padded by 0 and 5",
    ),
    ("DEPTH_TO_SPACE", [(2, 3)], {}, "x is f32[2, 3] and its block 0"),
    ("SPACE_TO_DEPTH", [(1, 2, 2, 3)], {}, "x is f32[1, 2, 2, 3] and its block 0"),
    (
        "SPACE_TO_BATCH_ND",
        [(2, 3), i32(2), i32([0, 0], [0, 0])],
        {},
        "x is f32[2, 3], its blocks [2] and its paddings [0, 0, 0, 0]",
    ),
    (
        "BATCH_TO_SPACE_ND",
        [(2, 3), i32(2, 2), i32([0, 0], [0, 0])],
        {},
        "x is f32[2, 3], its blocks [2, 2] and its crops [0, 0, 0, 0]",
    ),
    ("TILE", [(2, 3), i32(2)], {}, "x is f32[2, 3], but there are 1 multiples"),
    (
        "BROADCAST_ARGS",
        [i32(2, 3), i32(4)],
        {"dtype": I32},
        "shapes [2, 3] and [4] do not broadcast",
    ),
    ("RANGE", [F32(0), F32(3), F32(0)], {}, "its step is 0"),
    (
        "RANGE",
        [((), I32), I32(3), I32(1)],
        {"dtype": I32},
        "a range that depends on shapes starts at 0 and counts by 1",
    ),
    (
        "GATHER",
        [(2, 3), i32([0], [1])],
        {"options": "GatherOptions", "fields": {"batch_dims": 1}},
        "axis 0 is one of 1 batch dims",
    ),
    ("GATHER_ND", [(2, 3), I32(0)], {}, "its indices have no dims"),
    ("SEGMENT_SUM", [(2, 3), ((2,), I32)], {}, "segments that are computed are not supported"),
    (
        "UNSORTED_SEGMENT_SUM",
        [(2, 3), i32(0, 1), ((), I32)],
        {},
        "a number of segments that is computed is not supported",
    ),
    ("REVERSE_SEQUENCE", [(2, 3), i32(1, 1)], {}, "sequences and batches are one dim"),
    ("FULLY_CONNECTED", [(2, 3), np.zeros(3, F32)], {}, "its operands are f32[2, 3] and f32[3]"),
    (
        "FULLY_CONNECTED",
        [(2, 3), np.zeros((4, 2), F32)],
        {"options": "FullyConnectedOptions", "fields": {"keep_num_dims": True}},
        "x is f32[2, 3], but its weights have 2 columns",
    ),
    (
        "FULLY_CONNECTED",
        [(2, 3), np.zeros((4, 3), F32)],
        {"options": "FullyConnectedOptions", "fields": {"weights_format": 1}},
        "shuffled weights are not supported",
    ),
    (
        "BATCH_MATMUL",
        [(3,), (3, 2)],
        {},
        "its operands are f32[3] and f32[3, 2], expected matrices",
    ),
    ("SOFTMAX", [()], {}, "its operand has no dims"),
    ("L2_NORMALIZATION", [()], {}, "its operand has no dims"),
    ("LOCAL_RESPONSE_NORMALIZATION", [()], {}, "its operand has no dims"),
    (
        "FAKE_QUANT",
        [(2, 3)],
        {"options": "FakeQuantOptions", "fields": {"min": 1.0, "max": 0.0, "num_bits": 8}},
        "its range is 1.0 to 0.0",
    ),
    ("BITCAST", [(2, 3)], {"dtype": np.int16}, "f32 as i16, of another size, is not supported"),
    (
        "ADD",
        [(2, 3), (2, 3)],
        {"options": "AddOptions", "fields": {"fused_activation_function": 5}},
        "a fused activation SIGN_BIT is not supported",
    ),
    (
        "ADD",
        [(2, 3), (2, 3)],
        {"options": "AddOptions", "fields": {"fused_activation_function": 9}},
        "fused_activation_function 9 is not known",
    ),
    ("ADD", [(2, 3), None], {}, "operand 1 is missing"),
    (
        "DEPTHWISE_CONV_2D",
        [(1, 8, 8, 4), WEIGHT],
        {},
        "its filters are f32[3, 3, 3, 4], expected an extent of 1 in front",
    ),
    (
        "DEPTHWISE_CONV_2D",
        [(1, 8, 8, 3), WEIGHT[:1]],
        {},
        "x has 3 channels, but there are 4 filters",
    ),
    (
        "CONV_2D",
        [(1, 8, 8, -1), WEIGHT],
        {},
        "channels that depend on the input's shape are not supported",
    ),
    ("CONV_2D", [(1, 8, 8, 6), WEIGHT], {}, "x has 6 channels, its filters 4"),
    (
        "TRANSPOSE_CONV",
        [i32(1, 8, 8), WEIGHT, (1, 4, 4, 4)],
        {},
        "its output shape has 3 extents, expected 4",
    ),
    (
        "AVERAGE_POOL_2D",
        [(1, 8, 8, 3)],
        {"options": "Pool2DOptions", "fields": {"stride_h": 1, "stride_w": 1}},
        "its windows are [0, 0], expected positive extents",
    ),
    (
        "CONV_2D",
        [(1, 8, 8, 4), WEIGHT],
        {"options": "Conv2DOptions", "fields": {"stride_w": 1}},
        "stride is [0, 1], expected positive numbers",
    ),
    (
        "SVDF",
        [(2, 3), np.zeros((3, 3), F32), np.zeros((3, 4), F32), None, (2, 12)],
        {"options": "SVDFOptions", "fields": {"rank": 2}},
        "its weights are f32[3, 4] and its rank 2",
    ),
    (
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        [(4, 2, 5), *[None] * 38, (4, 2, 5)],
        {"results": 2},
        "an auxiliary input is not supported",
    ),
    (
        "NON_MAX_SUPPRESSION_V5",
        [(5, 4), (5,), I32(3), F32(0.5), F32(0.1), F32(0.2)],
        {"results": 3},
        "soft suppression (soft_nms_sigma) is not supported",
    ),
    (
        "Convolution2DTransposeBias",
        [(1, 4, 4, 4), WEIGHT],
        {"custom": b"\0"},
        "its options are missing",
    ),
    (
        "Convolution2DTransposeBias",
        [(1, 4, 4, 4), WEIGHT],
        {"custom": struct.pack("<3i", 3, 1, 2)},
        "its options are padding 3 and strides 2, 1",
    ),
    ("MaxPoolingWithArgmax2D", [(1, 4, 4, 4)], {"custom": b"\0"}, "its options are missing"),
    (
        "MaxPoolingWithArgmax2D",
        [(1, 4, 4, 4)],
        {"custom": struct.pack("<5i", 1, 2, 2, 0, 2)},
        "its options are [1, 2, 2, 0, 2]",
    ),
    (
        "TFLite_Detection_PostProcess",
        DETECTED,
        {"custom": without(DETECTION, "num_classes"), "results": 4},
        "option 'num_classes' is missing or wrong",
    ),
    (
        "TFLite_Detection_PostProcess",
        DETECTED,
        {"custom": without(DETECTION, "y_scale", y_scale=0.0), "results": 4},
        "option 'y_scale' is 0.0",
    ),
    (
        "TFLite_Detection_PostProcess",
        DETECTED,
        {"custom": without(DETECTION, "num_classes", num_classes=9), "results": 4},
        "a box has 3 scores, expected one for each of 9 classes",
    ),
    (
        "TFLite_Detection_PostProcess",
        DETECTED,
        {
            "custom": without(DETECTION, "max_classes_per_detection", max_classes_per_detection=2),
            "results": 4,
        },
        "several classes of a box (max_classes_per_detection)",
    ),
    (
        "Landmarks2TransformMatrix",
        [(4, 3)],
        {"custom": packed(**MATRIX)},
        "the first version of this operator is not supported",
    ),
    (
        "Landmarks2TransformMatrix",
        [(1, 4, 3)],
        {"custom": without(MATRIX, "subset_idxs")},
        "option 'subset_idxs' is missing",
    ),
    (
        "Landmarks2TransformMatrix",
        [(1, 4, 3)],
        {"custom": without(MATRIX, "scale_x")},
        "option 'scale_x' is missing",
    ),
    (
        "Landmarks2TransformMatrix",
        [(1, 4, 3)],
        {"custom": without(MATRIX, "subset_idxs", subset_idxs=[0, 4])},
        "an option names a landmark of 4",
    ),
    (
        "Landmarks2TransformMatrix",
        [(1, 4, 3)],
        {"custom": without(MATRIX, "output_width", output_width=0)},
        "the crop has extents 2 and 0",
    ),
    (
        "TransformLandmarks",
        [(4, 3), (1, 4, 4)],
        {"custom": b""},
        "the first version of this operator is not supported",
    ),
    (
        "TransformTensorBilinear",
        [(4, 5, 3), (1, 4, 4)],
        {"custom": packed(output_height=2, output_width=2)},
        "it cuts [2, 2] out of f32[4, 5, 3]",
    ),
    (
        "TransformTensorBilinear",
        [(1, -1, 5, 3), (1, 4, 4)],
        {"custom": packed(output_height=2, output_width=2)},
        "an image whose extents depend on the input's shape",
    ),
    (
        "TransformTensorBilinear",
        [(1, 4, 5, 3), (1, 4, 4)],
        {"custom": b"\xff\xff\xff"},
        "its options are damaged",
    ),
    (
        "TransformTensorBilinear",
        [(1, 4, 5, 3), (1, 4, 4)],
        {"custom": bytes(flexbuffers.Dumps([1]))},
        "its options are no map",
    ),
]


@pytest.mark.parametrize(
    ("name", "operands", "how", "message"), CASES, ids=[f"{c[0]}-{c[3]}" for c in CASES]
)
def test_an_operator_is_refused(
    name: str, operands: list[Any], how: dict[str, Any], message: str
) -> None:
    kind = "custom operator " if "custom" in how else ""
    line = f"{name} (operator 0, 'y'): {message}"
    assert refused(one_op(name, operands, **how)) in ([line], [kind + line])


def test_a_weight_of_an_lstm_is_missing() -> None:
    """Each gate has two: only the input gate's may be left out, both of them."""
    weights: list[Any] = [np.zeros((6, 5), F32)] * 4 + [np.zeros((6, 6), F32)] * 4
    rest: list[Any] = [None] * 3 + [np.zeros(6, F32)] * 4 + [None, None, (2, 6), (2, 6)]
    how: dict[str, Any] = {"options": "LSTMOptions", "result": (2, 6)}
    how["fields"] = {"fused_activation_function": 4}
    weights[7] = None
    (line,) = refused(one_op("LSTM", [(2, 5), *weights, *rest], **how))
    assert line == "LSTM (operator 0, 'y'): a weight is missing"
    how["fields"] = {"fused_activation_function": 5}
    (line,) = refused(one_op("LSTM", [(2, 5), *weights, *rest], **how))
    assert line == "LSTM (operator 0, 'y'): activation SIGN_BIT is not supported"


def plain() -> tuple[Builder, int, int]:
    """y = x + w of two elements, to be spoilt; gives the numbers of x and y."""
    b = Builder()
    x, y = b.tensor((2,), name="x"), b.tensor((2,), name="y")
    b.op("ADD", [x, b.constant(np.ones(2, F32), name="w")], [y], "AddOptions")
    return b, x, y


def spoilt(**fields: Any) -> Callable[[Builder], None]:
    """Other fields of tensor 2, the weight."""
    return lambda b: b.tensors[2].update(fields)


def _quantised(**fields: Any) -> Callable[[Builder], None]:
    return spoilt(quantization=table("QuantizationParameters", **fields))


def _without_maker(b: Builder) -> None:
    b.operators.clear()


def _behind(offset: int, size: int) -> Callable[[Builder], None]:
    def change(b: Builder) -> None:
        assert b.file is not None
        b.file.buffers[1] = table("Buffer", offset=offset, size=size)

    return change


WEIGHT_NAME = "tensor 2 'w'"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (spoilt(shape=[-1]), f"{WEIGHT_NAME} is a constant of the shape [-1]"),
        (spoilt(buffer=7), f"{WEIGHT_NAME} has buffer 7 of 2"),
        (_behind(1 << 20, 8), f"{WEIGHT_NAME} has its elements outside of the file"),
        (_quantised(scale=[1, -1]), f"{WEIGHT_NAME} has scales or zero points that are none"),
        (
            _quantised(scale=[1, 1, 1]),
            f"{WEIGHT_NAME} of shape [2] has 3 scales along dim 0",
        ),
        (_without_maker, "output 'y': nothing makes tensor 1 'y'"),
        (
            lambda b: b.tensors[0].update(shape=[1 << 30] * 3),
            "input 'x' is f32[1073741824, 1073741824, 1073741824]: that is "
            "more than fits into memory",
        ),
        (
            lambda b: b.tensors[0].update(type=NUMBERS["TensorType"]["STRING"]),
            "input 'x': tensor 0 'x' has elements of STRING",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tensor_is_refused(change: Callable[[Builder], None], message: str) -> None:
    b, x, y = plain()
    change(b)
    assert refused(b.model([x], [y])) == [message]


def test_weights_behind_the_tables() -> None:
    """Where files of more than 2 GB keep them."""
    w = np.array([3, 4], F32)
    size = 0
    for _ in range(2):  # the first time to know where they begin
        b, x, y = plain()
        _behind(size or 1 << 20, w.nbytes)(b)
        model = b.model([x], [y])
        size = len(model)
    found = litert.interpreted(model + w.tobytes(), {"x": np.array([1, 1], F32)})
    assert found["y"].tolist() == [4, 5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"subgraph_index": 4}, "signature 'one' has graph 4"),
        (
            {"outputs": [table("TensorMap", name="y", tensor_index=9)]},
            "signature 'one': 'y' is tensor 9 of 3",
        ),
        ({"signature_key": "two"}, "two signatures are called 'two'"),
    ],
)
def test_a_signature_is_refused(change: dict[str, Any], message: str) -> None:
    b, x, y = plain()
    b.graph([x], [y])
    assert b.file is not None
    made = [signature(key, 0, {"x": x}, {"y": y}) for key in ("one", "two")]
    assert refused(b.file.model([{**made[0], **change}, made[1]])) == [message]


def test_outputs_with_one_name_are_numbered() -> None:
    b, x, y = plain()
    z = b.tensor((2,), name="y")
    b.op("NEG", [x], [z], "NegOptions")
    module = import_tflite(b.model([x], [y, z]))
    assert module.main.result_names == ["y", "y_1"]


def test_constants_without_elements() -> None:
    b = Builder()
    x, y = b.tensor((2, 3), name="x"), b.tensor((2, 3), name="y")
    b.op("CONCATENATION", [x, b.tensor((0, 3))], [y], "ConcatenationOptions")
    given = np.arange(6, dtype=F32).reshape(2, 3)
    assert litert.interpreted(b.model([x], [y]), {"x": given})["y"].tolist() == given.tolist()


@pytest.mark.parametrize("dtype", [F32, np.int8])
def test_joined_and_clamped(dtype: Any) -> None:
    """An activation that LiteRT's concatenation lacks, which the format has."""
    how: dict[str, Any] = {} if dtype is F32 else {"scale": 0.5, "zero": 4}
    b = Builder()
    x, y = b.tensor((1, 3), dtype, name="x", **how), b.tensor((1, 6), dtype, name="y", **how)
    fields = {"axis": 1, "fused_activation_function": 3}
    b.op("CONCATENATION", [x, x], [y], "ConcatenationOptions", **fields)
    found = litert.interpreted(b.model([x], [y]), {"x": np.array([[-8, 5, 100]], dtype)})["y"]
    clamped = [0, 5, 6] if dtype is F32 else [4, 5, 16]  # 6 / 0.5 + 4
    assert found.tolist() == [clamped * 2]


@pytest.mark.parametrize("rank", [1, 3])
def test_products_of_any_rank(rank: int) -> None:
    """Dims that are kept: a row, or rows of rows."""
    shape = (2, 2, 3)[3 - rank :]
    b = Builder()
    x, y = b.tensor(shape, name="x"), b.tensor((*shape[:-1], 4), name="y")
    w = np.arange(12, dtype=F32).reshape(4, 3)
    how = {"keep_num_dims": True}
    b.op("FULLY_CONNECTED", [x, b.constant(w), -1], [y], "FullyConnectedOptions", **how)
    given = np.arange(np.prod(shape), dtype=F32).reshape(shape)
    found = litert.interpreted(b.model([x], [y]), {"x": given})["y"]
    np.testing.assert_array_equal(found, given @ w.T)


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        import_tflite(tmp_path)
    assert str(caught.value) == f"{tmp_path}: cannot be read: is a directory"


@pytest.mark.parametrize("name", ["EXP", "ADD", "DIV", "GREATER_EQUAL"])
def test_a_result_that_is_not_there(name: str) -> None:
    """Of an operator on a variable, which may change it."""
    b = Builder()
    x, y = b.tensor((2, 3)), b.tensor((2, 3))
    kept = b.tensor((2, 3), is_variable=True)
    b.op("ABS", [x], [y])
    b.op(name, [kept, x], [])
    assert refused(b.model([x], [y]))[0].endswith(": result 0 is missing")


def test_a_number_that_a_type_has_not() -> None:
    model = one_op("RELU_N1_TO_1", [((2, 3), np.uint8)], dtype=np.uint8)
    assert refused(model) == ["RELU_N1_TO_1 (operator 0, 'y'): -1 is no number of u8"]
