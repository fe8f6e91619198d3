"""Determinants, boxes and n-grams: what is wrong with a node, exactly; and what the ops promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import aot
from aot.errors import CompileError, UnsupportedError
from aot.frontends.onnx import import_onnx
from aot.ir.record import count_shape_rules
from tests.support.onnx_models import Array, Case, compare, graph_model, our_run, tensor_info
from tests.support.onnx_rare_cases import N_GRAMS


def f(*shape: int) -> Array:
    return np.ones(shape, np.float32)


BOXES = [f(1, 2, 5, 5), f(3, 4), np.zeros(3, np.int64)]


def linear(tokens: int = 2, **attrs: Any) -> Case:
    """Two key heads of three elements, four query heads."""
    inputs = [f(1, tokens, 12), f(1, tokens, 6), f(1, tokens, 10)]
    given = {"kv_num_heads": 2, "q_num_heads": 4, "update_rule": "linear", **attrs}
    return Case("LinearAttention", inputs, given, opset=27, outputs=2)


def n_grams(**attrs: Any) -> Case:
    """The first case with other attributes."""
    case = N_GRAMS[0]
    return Case(case.op, case.inputs, {**case.attrs, **attrs})


WRONG = [
    (Case("Det", [f(3)]), "x has rank 1, expected 2 or more"),
    (Case("Det", [f(2, 3)]), "the matrices are 2 x 3, expected square ones"),
    (
        Case("RoiAlign", BOXES, {"mode": "median", "sampling_ratio": 1}),
        "attribute 'mode' is 'median', expected 'avg' or 'max'",
    ),
    (
        Case("RoiAlign", BOXES, {"output_height": 0, "sampling_ratio": 1}),
        "output_height, output_width and sampling_ratio are 0, 1 and 1; expected positive ones, or "
        "sampling_ratio 0",
    ),
    (
        Case("RoiAlign", BOXES, {"coordinate_transformation_mode": "corners"}),
        "attribute 'coordinate_transformation_mode' is 'corners', expected 'half_pixel' or "
        "'output_half_pixel'",
    ),
    (
        Case("RoiAlign", [BOXES[0], 1e6 * np.array([[0, 0, 1, 2]], np.float32), BOXES[2][:1]],
             constant=[1]),
        "a box is 2000000.0 pixels long, expected at most 4096 a bin",
    ),
    (
        linear(update_rule="quadratic"),
        "attribute 'update_rule' is 'quadratic', expected one of linear, gated, delta, gated_delta",
    ),
    (linear(update_rule="gated"), "operand 4 (decay) is missing, which 'gated' needs"),
    (linear(update_rule="delta"), "operand 5 (beta) is missing, which 'delta' needs"),
    (
        linear(q_num_heads=3),
        "q_num_heads is 3, expected a positive multiple of kv_num_heads, 2",
    ),
    (linear(q_num_heads=2), "a query has 6 elements, expected 3 as a key has"),
    (n_grams(mode="IDF2"), "attribute 'mode' is 'IDF2', expected one of TF, IDF, TFIDF"),
    (n_grams(max_skip_count=-1), "attribute 'max_skip_count' is negative"),
    (
        n_grams(min_gram_length=4),
        "min_gram_length, max_gram_length or ngram_indexes is out of range",
    ),
    (
        n_grams(ngram_counts=[0, 10, 4]),
        "ngram_counts [0, 10, 4] are no places in a pool of 13",
    ),
    (n_grams(ngram_indexes=[0, 1]), "the pool has more n-grams than ngram_indexes, 2"),
    (n_grams(weights=[1.0, 2.0]), "attribute 'weights' has 2 numbers, expected 8"),
    (n_grams(ngram_indexes=[0, 1, 2, 3, 4, 5, 6, 1 << 25]),
     "the result's rows would have 33554433 elements, expected at most 16777216"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "text"), WRONG, ids=lambda v: str(v)[:50])
def test_what_is_wrong_is_said(case: Case, text: str) -> None:
    with pytest.raises(CompileError) as caught:
        import_onnx(case.model())
    assert str(caught.value) == f"model: {case.op} (node 'the node'): {text}"


def test_one_column_has_one_inverse_weight() -> None:
    case = n_grams(mode="IDF", weights=[1.0] * 8, ngram_indexes=[0, 1, 1, 3, 4, 5, 6, 7])
    with pytest.raises(UnsupportedError, match="several weights of one column in mode IDF"):
        import_onnx(case.model())


@pytest.mark.parametrize("tokens", [5, 65])  # written out, and a loop over them
def test_linear_attention_is_a_masked_product(tokens: int) -> None:
    """Without decay the sum over tokens is (Q K^T, lower triangle) V."""
    rng = np.random.default_rng(7)
    q, k, v = (rng.normal(size=(1, tokens, n)).astype(np.float32) for n in (12, 6, 10))
    case = Case("LinearAttention", [q, k, v], linear().attrs, opset=27, outputs=2)
    output, state = our_run(import_onnx(case.model()).main, case.feeds())
    queries = q.reshape(tokens, 4, 3).transpose(1, 0, 2) / np.sqrt(3)
    keys, values = (np.repeat(x.reshape(tokens, 2, -1).transpose(1, 0, 2), 2, 0) for x in (k, v))
    wanted = np.tril(queries @ keys.transpose(0, 2, 1)) @ values
    np.testing.assert_allclose(output, wanted.transpose(1, 0, 2).reshape(1, tokens, 20), atol=1e-4)
    np.testing.assert_allclose(state[0], (keys.transpose(0, 2, 1) @ values)[::2], atol=1e-4)


@pytest.mark.parametrize("count", [40, "boxes"])
def test_all_boxes_of_a_class_are_no_number_beyond_a_gpus(count: int | str) -> None:
    """Exporters write the largest i64 for "all", which no integer of 32 bits is."""
    most = numpy_helper.from_array(np.array([np.iinfo(np.int64).max]), "most")
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["y"])
    inputs = [tensor_info("boxes", [1, count, 4]), tensor_info("scores", [1, 2, count])]
    model = graph_model([node], inputs, ["y"], [most])
    shapes = {"boxes": (1, "boxes:..90", 4)} if count == "boxes" else {}
    aot.compile(model, targets=["vulkan-1.1"], input_shapes=shapes)


def test_tokens_of_unknown_length_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="the number of tokens in a row depends on"):
        import_onnx(N_GRAMS[0].model(symbolic=True))


def test_the_batch_of_matrices_may_be_unknown() -> None:
    case = Case("Det", [np.random.default_rng(5).normal(size=(6, 3, 3)).astype(np.float32)])
    bound = import_onnx(case.model()).main
    model = case.model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "B"
    unbound = import_onnx(model).main
    assert [str(d) for d in unbound.results[0].type.dims] == ["B"]
    np.testing.assert_array_equal(
        our_run(unbound, case.feeds())[0], our_run(bound, case.feeds())[0]
    )


def test_ops_of_a_determinant_grow_with_its_rows_only() -> None:
    def rules(rows: int) -> int:
        with count_shape_rules() as counted:
            import_onnx(Case("Det", [f(rows, rows)]).model())
        return counted.calls

    assert rules(32) - rules(16) == rules(48) - rules(32)


def test_a_wide_matrix_has_numpys_determinant() -> None:
    rng = np.random.default_rng(6)
    x = (np.eye(40) + 0.1 * rng.normal(size=(2, 40, 40))).astype(np.float32)
    case = Case("Det", [x])
    (found,) = our_run(import_onnx(case.model()).main, case.feeds())
    np.testing.assert_allclose(found, np.linalg.det(x.astype(np.float64)), rtol=1e-4)


def _resize(
    x: Array, sizes: list[int], coordinates: str, mode: str, shape: Sequence[int | str]
) -> onnx.ModelProto:
    node = helper.make_node(
        *("Resize", ["x", "roi", "", "sizes"], ["y"]),
        mode=mode,
        coordinate_transformation_mode=coordinates,
        extrapolation_value=7.0,
    )
    known = [numpy_helper.from_array(np.array(sizes, np.int64), "sizes")]
    infos = [tensor_info("x", shape), tensor_info("roi", [2 * x.ndim])]
    return graph_model([node], infos, ["y"], known, opset=18)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("sizes", [[1, 2, 5, 4], [1, 2, 1, 9]])
@pytest.mark.parametrize(
    "roi", [[0.1, 0.2, 0.7, 1.0], [-0.3, 0.2, 1.4, 0.9], [0.9, 0.8, 0.1, 0.1], [-9, 2, 1e9, 5]]
)
def test_a_region_that_is_an_input_is_cropped(
    mode: str, sizes: list[int], roi: list[float]
) -> None:
    x = np.random.default_rng(3).standard_normal((1, 2, 7, 6)).astype(np.float32)
    edges = np.array([0, 0, *roi[:2], 1, 1, *roi[2:]], np.float32)
    for shape in (x.shape, ("N", "C", "H", "W")):
        model = _resize(x, sizes, "tf_crop_and_resize", mode, shape)
        compare(model, {"x": x, "roi": edges})


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("shape", [(1, 1, 4, 4), ("N", "C", "H", "W")])
def test_one_element_of_pytorchs_half_pixels_is_the_first(
    mode: str, shape: Sequence[int | str]
) -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    model = _resize(x, [1, 1, 1, 5], "pytorch_half_pixel", mode, shape)
    compare(model, {"x": x, "roi": np.zeros(8, np.float32)})
