"""ONNX nodes that are wrong, or have what is not supported: what is said of each, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from aot.errors import CompileError, UnsupportedError
from aot.frontends.onnx import import_onnx
from tests.support.onnx_models import Array, Case

MS, ML = "com.microsoft", "ai.onnx.ml"
SIZES = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")


def f(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def i(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def i8(*shape: int) -> Array:
    return np.ones(shape, np.int8)


def number(value: Any) -> Array:
    return np.asarray(value)


def mel(**changes: Any) -> list[Array]:
    usual = dict(zip(SIZES, (8, 64, 8000, 20.0, 4000.0), strict=True)) | changes
    return [number(np.float32(v) if isinstance(v, float) else v) for v in usual.values()]


def tree(**changes: Any) -> dict[str, Any]:
    """A tree of one test and two leaves, or a wrong one."""
    return {
        "n_targets": 1,
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
        **changes,
    }


def resize(**attrs: Any) -> Case:
    operands = [f(1, 1, 2, 2), attrs.pop("roi", None), np.ones(4, np.float32)]
    return Case("Resize", operands, attrs, 18, constant=[1, 2])


def linear(*shapes: tuple[int, ...], **attrs: Any) -> Case:
    usual = {"q_num_heads": 2, "kv_num_heads": 2}
    return Case("LinearAttention", [f(*s) for s in shapes], {**usual, **attrs}, 27, outputs=2)


def heads(op: str, operands: list[Array | None], **attrs: Any) -> Case:
    counts = {"GroupQueryAttention": {"num_heads": 4, "kv_num_heads": 2}, "RotaryEmbedding": {}}
    outputs = {"GroupQueryAttention": 3}.get(op, 1)
    usual = counts.get(op, {"num_heads": 2})
    return Case(op, operands, {**usual, **attrs}, domain=MS, outputs=outputs)


LENGTHS = [np.array([2], np.int32), np.array(3, np.int32)]
GROUPED: list[Array | None] = [f(1, 3, 16), f(1, 3, 8), f(1, 3, 8), None, None, *LENGTHS]
QGEMM = [i8(2, 3), number(np.float32(1)), number(np.int8(0))]
SVM = {
    "kernel_type": "LINEAR",
    "kernel_params": [0.0, 0.0, 3.0],
    "coefficients": [1.0, 2.0],
    "support_vectors": [1.0] * 4,
    "n_supports": 2,
    "rho": [0.0],
}
CLASSES = {
    "vectors_per_class": [1, 1],
    "classlabels_ints": [3, 4],
    **{k: v for k, v in SVM.items() if k != "n_supports"},
}


def ml(op: str, x: Array, outputs: int = 1, **attrs: Any) -> Case:
    return Case(op, [x], attrs, domain=ML, outputs=outputs)


CASES: list[tuple[Case, str]] = [
    # of ONNX
    (
        Case("BitShift", [np.ones(2, np.uint8)] * 2, {"direction": "UP"}),
        "attribute 'direction' is 'UP', expected LEFT or RIGHT",
    ),
    (
        Case("Gelu", [f(2)], {"approximate": "sin"}, 20),
        "attribute 'approximate' is 'sin', expected 'none' or 'tanh'",
    ),
    (Case("GatherND", [f(2), number(0)]), "operand 1 has rank 0, expected at least 1"),
    (Case("EyeLike", [f(2)]), "x has rank 1, expected 2"),
    (
        Case("EyeLike", [f(2, 2)], {"dtype": TensorProto.STRING}),
        "element type string is not supported",
    ),
    (Case("Trilu", [f(2)]), "x has rank 1, expected at least 2"),
    (
        Case("ReverseSequence", [f(2, 3), i(1, 1)], {"time_axis": 1}),
        "time_axis and batch_axis are both 1",
    ),
    (
        Case("Compress", [f(2), np.array([0, 0, 1], bool)], {"axis": 0}, constant=[1]),
        "condition chooses element 2 of 2",
    ),
    (
        Case("TensorScatter", [f(2, 3), f(2, 3)], {"axis": 0}, 24),
        "axis is 0 and operands have rank 2 and 2",
    ),
    (
        Case("TensorScatter", [f(2, 3, 4), f(2, 1, 4)], {"mode": "around"}, 24),
        "attribute 'mode' is 'around', expected linear or circular",
    ),
    (Case("Det", [f(2, 3)]), "the matrices are 2 x 3, expected square ones"),
    (
        Case("DFT", [f(1, 4, 3)], {"axis": 1}),
        "axis is 1, and the last dim, of real and imaginary parts, is 3",
    ),
    (Case("DFT", [f(1, 4, 1), number(0)], {"axis": 1}, constant=[1]), "dft_length is 0"),
    (
        Case("STFT", [f(1, 8, 3), number(2)], constant=[1]),
        "the signal has dims (1, 8, 3), expected [batch, length] or [batch, length, 1 or 2]",
    ),
    (
        Case("DFT", [f(1, 4, 2)], {"axis": 1, "onesided": 1}),
        "onesided takes real numbers, and the last dim, of real and imaginary parts, is 2",
    ),
    (
        Case("STFT", [f(1, 8), number(2), f(4), number(6)], constant=[1, 3]),
        "frame_length is 6, and the window has 4 elements",
    ),
    (
        Case("STFT", [f(1, 8, 1), number(2), f(2, 2)], constant=[1]),
        "the window has rank 2, expected 1",
    ),
    (
        Case("STFT", [f(1, 8, 1), number(0), f(4)], constant=[1]),
        "frame_step is 0 and frame_length 4, expected at least 1",
    ),
    (
        Case("MelWeightMatrix", mel(), {"output_datatype": TensorProto.STRING}, constant=range(5)),
        "element type string is not supported",
    ),
    (
        Case("MelWeightMatrix", mel(dft_length=0), constant=range(5)),
        "num_mel_bins is 8, dft_length 0 and sample_rate 8000",
    ),
    (
        Case("MelWeightMatrix", mel(lower_edge_hertz=5000.0), constant=range(5)),
        "edges are 5000.0 and 4000.0 Hz",
    ),
    (
        Case("MelWeightMatrix", mel(upper_edge_hertz=90000.0), constant=range(5)),
        "edges 20.0 and 90000.0 Hz are outside the spectrum",
    ),
    (Case("Conv", [f(1, 2), f(2, 2)]), "a convolution of rank 2 is not supported"),
    (Case("ConvTranspose", [f(1, 2), f(2, 2)]), "a convolution of rank 2 is not supported"),
    (
        Case("DeformConv", [f(1, 2, 4), f(2, 2, 3), f(1, 3, 2)], opset=19),
        "a deformable convolution of rank 3 is not supported",
    ),
    (
        Case("MaxUnpool", [f(1, 1, 2, 2), np.zeros((1, 1, 2, 2), np.int64)], {"kernel_shape": [2]}),
        "attribute 'kernel_shape' is [2], but x has rank 4",
    ),
    (
        Case("Dropout", [f(2), number(np.float32(0.5)), number(np.array(True))], constant=[1, 2]),
        "training mode is not supported",
    ),
    (Case("Dropout", [f(2)], {"is_test": 0}, 6), "training mode is not supported"),
    (
        Case("NonMaxSuppression", [f(4, 4), f(1, 1, 4), i(3)], constant=[2]),
        "boxes are f32[4, 4] and scores f32[1, 1, 4], expected 3 dims each",
    ),
    (
        Case("NonMaxSuppression", [f(1, 4, 4), f(1, 1, 4), i(-3)], constant=[2]),
        "operand 2 (max_output_boxes_per_class) is -3, expected 0 or more",
    ),
    (
        Case(
            "QuantizeLinear",
            [f(2), number(np.float32(1))],
            {"output_dtype": TensorProto.STRING},
            21,
        ),
        "element type string is not supported",
    ),
    (
        Case("RandomNormal", [], {"shape": [2], "dtype": TensorProto.STRING}),
        "element type string is not supported",
    ),
    (
        Case("BitCast", [f(2)], {"to": TensorProto.STRING}, 26),
        "element type string is not supported",
    ),
    (Case("Constant", []), "has no value"),
    (
        Case("Reshape", [f(2, 3), i(4, -1)], constant=[1]),
        "x of dims (2, 3) does not fit shape [4, -1]",
    ),
    (
        Case("Slice", [f(4), i(0, 1), i(1)], constant=[1, 2]),
        "starts, ends, axes and steps differ in length",
    ),
    (
        Case("Split", [f(2)], {"num_outputs": 4}, 18, outputs=4),
        "axis 0 of extent 2 can't be split into 4 parts",
    ),
    (Case("ReduceSum", [f(2, 2), i(0), i(0)]), "has 3 operands, expected 1 to 2"),
    (Case("Abs", [f(2), f(2)]), "has 2 operands, expected 1"),
    (Case("Abs", [f(2)], outputs=2), "has 2 outputs, expected at most 1"),
    (
        Case("Einsum", [f(2, 3)], {"equation": "ij,jk->ik"}),
        "equation 'ij,jk->ik' has 2 terms, but there are 1 operands",
    ),
    (Case("Einsum", [f(2, 3)], {"equation": "i->i"}), "term 'i' does not fit an operand of rank 2"),
    (
        Case("Einsum", [f(2, 3)], {"equation": "i1->i"}),
        "equation 'i1->i' has something else than letters and one ellipsis a term",
    ),
    (Case("Einsum", [f(2, 3)], {"equation": "ii->i"}), "label 'i' has extents 2 and 3"),
    (Case("MatMul", [f(2, 3), number(np.float32(1))]), "operands have at least one dim"),
    (Case("ReduceSum", [f(2, 3), i(1, 1)], constant=[1]), "axes [1, 1] name a dim twice"),
    (resize(mode="quartic"), "attribute 'mode' is 'quartic', expected nearest, linear or cubic"),
    (
        resize(nearest_mode="up"),
        "attribute 'nearest_mode' is 'up', expected one of round_prefer_floor, round_prefer_ceil, "
        "floor, ceil",
    ),
    (
        resize(coordinate_transformation_mode="tf_half_pixel_for_nn"),
        "tf_half_pixel_for_nn is not supported",
    ),
    (
        resize(coordinate_transformation_mode="corners"),
        "attribute 'coordinate_transformation_mode' is 'corners', expected one of half_pixel, "
        "half_pixel_symmetric, pytorch_half_pixel, align_corners, asymmetric, "
        "tf_crop_and_resize",
    ),
    (resize(antialias=1), "antialias needs mode linear or cubic"),
    (
        resize(coordinate_transformation_mode="tf_crop_and_resize", roi=f(2)),
        "roi has 2 numbers, expected two for each of 4 axes",
    ),
    (
        Case("Resize", [f(2, 2), None, f(1)], {}, 18, constant=[2]),
        "scales has 1 numbers, expected 2",
    ),
    (
        Case("Resize", [f(2, 2), None, -f(2)], {}, 18, constant=[2]),
        "scales [-1.0, -1.0] are not positive",
    ),
    (
        Case(
            "Resize",
            [f(2, 2), None, None, i(2, 2)],
            {"keep_aspect_ratio_policy": "both"},
            18,
            constant=[3],
        ),
        "attribute 'keep_aspect_ratio_policy' is 'both', expected stretch, not_larger or "
        "not_smaller",
    ),
    (
        linear((1, 2), (1, 2, 4), (1, 2, 4)),
        "query, key and value have 3 dims each: [B, T, heads * vector]",
    ),
    (linear((1, 2, 5), (1, 2, 4), (1, 2, 4)), "query has last extent 5, which is not 2 heads"),
    (
        Case(
            "TfIdfVectorizer",
            [np.zeros((1, 2, 3), np.int32)],
            {
                "mode": "TF",
                "max_gram_length": 1,
                "min_gram_length": 1,
                "max_skip_count": 0,
                "ngram_counts": [0],
                "ngram_indexes": [0],
                "pool_int64s": [4],
            },
        ),
        "the tokens have rank 3, expected 0, 1 or 2",
    ),
    (
        Case("Attention", [f(1, 2, 4)] * 3, opset=23),
        "operand 0 has rank 3 and 0 heads, expected rank 4, or 3 and the heads as an attribute",
    ),
    (
        Case("Attention", [*[f(1, 1, 2, 4)] * 3, number(np.float32(0))], opset=23),
        "operand 3 (attn_mask) has rank 0, expected 1 or more",
    ),
    # of ONNX Runtime
    (
        heads("MultiHeadAttention", [f(2, 4), f(1, 2, 4), f(1, 2, 4)]),
        "query has rank 2, expected 3 or 4",
    ),
    (
        heads("MultiHeadAttention", [f(1, 2, 4)] * 3, num_heads=0),
        "attribute 'num_heads' is 0, expected 1 or more",
    ),
    (heads("MultiHeadAttention", [f(1, 2, 4)] * 2), "operand 2 is missing"),
    (
        heads("MultiHeadAttention", [f(1, 2, 4)]),
        "operand 1 (key) is missing, and the query is not packed",
    ),
    (
        heads("MultiHeadAttention", [f(1, 2, 2, 2, 2)]),
        "operand 0 has extent 2 at dim 3, expected 3",
    ),
    (
        heads("MultiHeadAttention", [*[f(1, 2, 4)] * 3, None, np.ones((1, 1, 1, 1, 2), np.int32)]),
        "operand 4 has rank 5, expected 1 to 4",
    ),
    (
        heads("MultiHeadAttention", [*[f(2, 2, 4)] * 3, None, np.ones(3, np.int32)]),
        "operand 4 has 3 elements for a batch of 2, expected as many, twice as many, or three "
        "times as many and 2",
    ),
    (
        heads("MultiHeadAttention", [*[f(1, 2, 4)] * 3, *[None] * 5, np.ones(1, np.int32)]),
        "operand 8 (past_sequence_length) is not supported",
    ),
    (heads("Attention", [f(2, 4), f(4, 12), f(12)]), "input has rank 2, expected 3"),
    (
        heads("Attention", [f(1, 2, 4), f(4, 13), f(13)]),
        "the weights have 13 columns, expected a multiple of 3",
    ),
    (
        heads("Attention", [f(1, 2, 4), f(4, 12), f(12)], qkv_hidden_sizes=[4, 4, 2]),
        "attribute 'qkv_hidden_sizes' is [4, 4, 2], but the weights have 12 columns",
    ),
    (
        heads("Attention", [f(1, 2, 4), f(4, 12), f(12)], do_rotary=1),
        "attribute 'do_rotary' is not supported here",
    ),
    (
        heads("Attention", [f(1, 2, 4), f(4, 12), f(12)], past_present_share_buffer=1),
        "attribute 'past_present_share_buffer' is not supported",
    ),
    (heads("GroupQueryAttention", GROUPED, num_heads=3), "3 heads are no multiple of 2 groups"),
    (heads("GroupQueryAttention", [f(1, 1, 3, 16), *GROUPED[1:]]), "query has rank 4, expected 3"),
    (
        heads("GroupQueryAttention", [f(1, 3, 18), None, None, *GROUPED[3:]]),
        "query has 18 columns for 4 heads and 2 x 2 groups",
    ),
    (
        heads("GroupQueryAttention", GROUPED, k_quant_type="PER_TENSOR"),
        "attribute 'k_quant_type': a quantised cache is not supported",
    ),
    (
        heads("GroupQueryAttention", GROUPED, sliding_window_cache=1),
        "attribute 'sliding_window_cache' is not supported",
    ),
    (
        heads("GroupQueryAttention", GROUPED, causal=0),
        "attribute 'causal' is 0, which is not supported",
    ),
    (
        heads(
            "RotaryEmbedding", [f(1, 2, 8), np.zeros((1, 2), np.int64), f(4, 4), f(4, 4)], scale=2.0
        ),
        "attribute 'scale' is not 1, which is not supported",
    ),
    (
        heads("RotaryEmbedding", [f(2, 8), np.zeros((1, 2), np.int64), f(4, 4), f(4, 4)]),
        "input has rank 2, expected 3 or 4",
    ),
    (
        heads("RotaryEmbedding", [f(1, 2, 8), np.zeros((1, 1, 2), np.int64), f(4, 4), f(4, 4)]),
        "position_ids has rank 3, expected 1 or 2",
    ),
    (
        Case(
            "EmbedLayerNormalization",
            [np.zeros(3, np.int32), None, f(4, 2), f(4, 2), None, f(2), f(2)],
            domain=MS,
            outputs=2,
        ),
        "input_ids has rank 1, expected 2",
    ),
    (
        Case("FusedMatMul", [f(2, 3), f(3, 2)], {"transBatchA": 1}, domain=MS),
        "attribute 'transBatchA' of an operand of rank 2",
    ),
    (
        Case("FusedConv", [f(1, 2, 4), f(2, 2, 3)], {"activation": "Sine"}, domain=MS),
        "activation 'Sine' is not supported",
    ),
    (
        Case(
            "QGemm",
            [
                i8(2, 1, 3),
                *QGEMM[1:],
                i8(3, 2),
                *QGEMM[1:],
                None,
                number(np.float32(1)),
                number(np.int8(0)),
            ],
            domain=MS,
        ),
        "operands have rank 3 and 2, expected 2",
    ),
    (
        Case("QGemm", [*QGEMM, i8(3, 2), *QGEMM[1:], None, number(np.float32(1))], domain=MS),
        "a scale of y without a zero point of 8 bits is not supported",
    ),
    (
        Case(
            "GatherBlockQuantized",
            [np.ones((4, 16), np.uint8), i(0), f(4, 1)],
            {"bits": 3},
            domain=MS,
            constant=[0, 2],
        ),
        "attribute 'bits' is 3, expected 4 or 8",
    ),
    (
        Case(
            "GatherBlockQuantized",
            [np.ones((4, 16), np.uint8), i(0), f(4, 1)],
            {"quantize_axis": 0},
            domain=MS,
            constant=[0, 2],
        ),
        "blocks along axis 0 and rows along axis 0 of a tensor of rank 2; blocks along the "
        "last one are supported",
    ),
    (
        Case(
            "GatherBlockQuantized",
            [np.ones((4, 16), np.uint8), i(0), f(4, 1)],
            {"block_size": 24},
            domain=MS,
            constant=[0, 2],
        ),
        "attribute 'block_size' is 24, expected a power of two of 16 or more",
    ),
    (
        Case(
            "GatherBlockQuantized",
            [np.ones((4, 16), np.uint8), i(0), f(4, 3)],
            {"block_size": 16},
            domain=MS,
            constant=[0, 2],
        ),
        "scales has 3 blocks a row, expected 2",
    ),
    (
        Case(
            "MatMulNBits",
            [f(1, 32), np.ones((2, 1, 16), np.uint8), f(2)],
            {"K": 32, "N": 2, "block_size": 32},
            domain=MS,
        ),
        "operand 1 (B) is not known at compile time",
    ),
    (
        Case(
            "MatMulNBits",
            [f(1, 32), np.ones((2, 1, 16), np.uint8), f(2), np.ones(2, np.int32)],
            {"K": 32, "N": 2, "block_size": 32},
            domain=MS,
            constant=[1, 2, 3],
        ),
        "zero points of int32 are not supported",
    ),
    # of ONNX ML
    (
        ml("Normalizer", f(2, 3), norm="L3"),
        "attribute 'norm' is 'L3', expected 'MAX', 'L1' or 'L2'",
    ),
    (ml("LinearRegressor", f(1, 2, 3), coefficients=[1.0]), "X has rank 3, expected 1 or 2"),
    (
        ml("LinearRegressor", f(2, 3), coefficients=[1.0] * 3, targets=2),
        "3 coefficients for 2 scores",
    ),
    (ml("LinearRegressor", f(2, 3), coefficients=[1.0] * 4), "X has 3 features, expected 4"),
    (
        ml("LinearRegressor", f(2, 3), coefficients=[1.0] * 3, post_transform="TANH"),
        "attribute 'post_transform' is 'TANH', which is not supported",
    ),
    (
        ml("LinearClassifier", f(2, 3), 2, coefficients=[1.0] * 3),
        "attributes 'classlabels_ints' and 'classlabels_strings' are missing",
    ),
    (ml("FeatureVectorizer", f(2, 3), inputdimensions=[4]), "operand 0 has 3 columns, expected 4"),
    (
        ml("OneHotEncoder", i(1, 2), cats_strings=["a"]),
        "attribute 'cats_int64s' is missing",
    ),
    (ml("LabelEncoder", i(1, 2), keys_int64s=[1, 2]), "attributes 'values_*' are missing"),
    (
        ml("LabelEncoder", i(1, 2), keys_int64s=[1, 2], values_int64s=[1]),
        "2 keys and 1 values, expected as many, and some",
    ),
    (
        ml("SVMRegressor", f(1, 2), **{**SVM, "kernel_type": "SINE"}),
        "attribute 'kernel_type' is 'SINE'",
    ),
    (ml("SVMRegressor", f(1, 2), **{**SVM, "n_supports": 3}), "4 numbers of 3 support vectors"),
    (
        ml("SVMClassifier", f(1, 2), 2, **CLASSES, prob_a=[1.0, 2.0], prob_b=[1.0]),
        "2 prob_a and 1 prob_b for 1 pairs of classes",
    ),
    (
        ml(
            "SVMClassifier",
            f(1, 2),
            2,
            **{k: v for k, v in CLASSES.items() if k != "vectors_per_class"},
        ),
        "classifiers without vectors_per_class are not supported",
    ),
    (ml("TreeEnsembleRegressor", f(1, 2, 3), **tree()), "X has rank 3, expected 2"),
    (
        ml("TreeEnsembleRegressor", f(1, 2), **tree(nodes_featureids=[2, 0, 0])),
        "a node looks at feature 2, but X has 2",
    ),
    (
        ml("TreeEnsembleRegressor", f(1, 2), **tree(nodes_values=[0.5])),
        "the attributes of nodes have [1, 3] elements, expected equal",
    ),
    (
        ml("TreeEnsembleRegressor", f(1, 2), **tree(nodes_modes=["BRANCH_IN", "LEAF", "LEAF"])),
        "attribute 'nodes_modes' has 'BRANCH_IN', which is not known",
    ),
    (
        ml("TreeEnsembleRegressor", f(1, 2), **tree(nodes_falsenodeids=[7, 0, 0])),
        "tree 0 has no node 7",
    ),
    (
        ml("TreeEnsembleRegressor", f(1, 2), **tree(target_ids=[0])),
        "the attributes target_* have different numbers of elements",
    ),
    (
        ml("TreeEnsembleRegressor", f(1, 2), **tree(target_ids=[0, 1])),
        "a weight is of node 2 of tree 0 and target 1",
    ),
    (
        ml("TreeEnsembleRegressor", f(1, 2), **tree(aggregate_function="MEDIAN")),
        "attribute 'aggregate_function' is 'MEDIAN'",
    ),
]


def _model(case: Case) -> onnx.ModelProto:
    model = case.model()
    for opset in model.opset_import:
        if opset.domain == ML:
            opset.version = 3
    return model


@pytest.mark.parametrize(("case", "message"), CASES, ids=[f"{c}: {m}" for c, m in CASES])
def test_a_node_is_refused(case: Case, message: str) -> None:
    with pytest.raises((CompileError, UnsupportedError)) as caught:
        import_onnx(_model(case))
    domain = f"{case.domain}." if case.domain else ""
    if isinstance(caught.value, UnsupportedError):
        assert list(caught.value.items) == [f"{domain}{case.op} (node 'the node'): {message}"]
    else:
        assert str(caught.value) == f"model: {case.op} (node 'the node'): {message}"
