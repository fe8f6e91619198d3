"""Operators of ai.onnx.ml mean what ONNX Runtime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import aot
from aot.errors import CompileError
from aot.frontends.onnx import import_onnx
from aot.ir.graph import Module
from tests.support.onnx_models import Array, assert_same, graph_model, ort_run, our_run, tensor_info

_RNG = np.random.default_rng(31)
ML = "ai.onnx.ml"


def _f(*shape: int) -> Array:
    return np.asarray(_RNG.uniform(-2, 2, shape), np.float32)


X = _f(9, 6)
HOLES = np.where(_RNG.random((9, 6)) < 0.3, np.nan, X).astype(np.float32)


def _model(op: str, inputs: list[Array], outputs: int, opset: int, **attrs: Any) -> Any:
    names = [f"x{n}" for n in range(len(inputs))]
    results = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(op, names, results, name="the node", domain=ML, **attrs)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, inputs, strict=True)
    ]
    model = graph_model([node], infos, results)
    model.opset_import[1].version = opset
    return model


def _trees(
    count: int, depth: int, targets: int, modes: list[str], *, has_nan: bool = False
) -> tuple[dict[str, list[Any]], list[tuple[int, int, int, float]]]:
    """Attributes of the nodes of random trees, and (tree, leaf, target, weight) of their leaves."""
    found: dict[str, list[Any]] = {
        f"nodes_{name}": []
        for name in [
            "treeids",
            "nodeids",
            "featureids",
            "values",
            "modes",
            "truenodeids",
            "falsenodeids",
            "missing_value_tracks_true",
        ]
    }
    weights: list[tuple[int, int, int, float]] = []

    def add(tree: int, number: int, level: int) -> int:
        is_leaf = level == depth or (level > 1 and _RNG.random() < 0.2)
        at = len(found["nodes_nodeids"])
        split = float(np.float32(np.round(_RNG.uniform(-2, 2), 1)))
        for name, value in (
            ("treeids", tree),
            ("nodeids", number),
            ("featureids", 0 if is_leaf else int(_RNG.integers(6))),
            ("values", 0.0 if is_leaf else split),
            ("modes", "LEAF" if is_leaf else modes[int(_RNG.integers(len(modes)))]),
            ("truenodeids", 0),
            ("falsenodeids", 0),
            ("missing_value_tracks_true", int(has_nan and _RNG.random() < 0.5)),
        ):
            found[f"nodes_{name}"].append(value)
        if is_leaf:
            for target in range(targets):
                weights.append((tree, number, target, float(np.float32(_RNG.uniform(0, 1)))))
            return number + 1
        found["nodes_truenodeids"][at] = number + 1
        after = add(tree, number + 1, level + 1)
        found["nodes_falsenodeids"][at] = after
        return add(tree, after, level + 1)

    for tree in range(count):
        add(tree, 0, 0)
    return found, weights


def _ensemble(kind: str, weights: list[tuple[int, int, int, float]]) -> dict[str, list[Any]]:
    trees, leaves, targets, values = (list(column) for column in zip(*weights, strict=True))
    return {
        f"{kind}_treeids": trees,
        f"{kind}_nodeids": leaves,
        f"{kind}_ids": targets,
        f"{kind}_weights": values,
    }


def _regressor(
    modes: list[str], *, targets: int = 1, has_nan: bool = False, **attrs: Any
) -> tuple[Any, list[Array]]:
    nodes, weights = _trees(7, 5, targets, modes, has_nan=has_nan)
    x = HOLES if has_nan else np.round(X, 1)
    leaves = _ensemble("target", weights)
    model = _model(
        "TreeEnsembleRegressor", [x], 1, 3, n_targets=targets, **nodes, **leaves, **attrs
    )
    return model, [x]


def _classifier(classes: int, columns: int, *, lowest: float = 0.0, **attrs: Any) -> Any:
    nodes, weights = _trees(5, 4, columns, ["BRANCH_LEQ"])
    weights = [(t, n, c, w + lowest) for t, n, c, w in weights]
    labels = list(range(3, 3 + classes))
    leaves = _ensemble("class", weights)
    model = _model(
        "TreeEnsembleClassifier", [X], 2, 3, classlabels_int64s=labels, **nodes, **leaves, **attrs
    )
    return model, [X]


def _case(op: str, inputs: list[Array], opset: int = 1, outputs: int = 1, **attrs: Any) -> Any:
    return _model(op, inputs, outputs, opset, **attrs), inputs


def _numbers(*shape: int) -> list[float]:
    return [float(v) for v in _f(*shape).reshape(-1)]


_SVC = {
    "vectors_per_class": [3, 2, 4],
    "support_vectors": _numbers(9, 6),
    "coefficients": _numbers(2, 9),
    "rho": _numbers(3),
    "classlabels_ints": [5, 6, 9],
}
_LEQ = ["BRANCH_LEQ"]
CASES = {
    "trees": _regressor(_LEQ),
    "trees of less": _regressor(["BRANCH_LT"]),
    "trees of more": _regressor(["BRANCH_GT"]),
    "trees of at least": _regressor(["BRANCH_GTE"]),
    "trees of equality": _regressor(["BRANCH_EQ", "BRANCH_LEQ"]),
    "trees of inequality": _regressor(["BRANCH_NEQ", "BRANCH_LT"]),
    "trees of targets": _regressor(_LEQ, targets=3, base_values=[1.0, 2.0, 3.0]),
    "trees with holes": _regressor(_LEQ, has_nan=True),
    "trees of less with holes": _regressor(["BRANCH_LT"], has_nan=True),
    "least of trees": _regressor(_LEQ, aggregate_function="MIN"),
    "most of trees": _regressor(_LEQ, aggregate_function="MAX"),
    "mean of trees": _regressor(_LEQ, aggregate_function="AVERAGE", base_values=[0.5]),
    "trees, logistic": _regressor(_LEQ, targets=3, post_transform="LOGISTIC"),
    "classes": _classifier(3, 3),
    "classes, softmax": _classifier(3, 3, post_transform="SOFTMAX"),
    "classes, base": _classifier(3, 3, base_values=[0.1, 0.9, 0.2]),
    "one of two classes": _classifier(2, 1),
    "one of two classes, logistic": _classifier(2, 1, lowest=-0.5, post_transform="LOGISTIC"),
    "one of two classes, base": _classifier(2, 1, lowest=-0.5, base_values=[0.3]),
    "scaler": _case("Scaler", [X], scale=_numbers(6), offset=_numbers(6)),
    "scaler of one": _case("Scaler", [X], scale=[2.0], offset=[0.5]),
    "largest": _case("Normalizer", [X], norm="MAX"),
    "first norm": _case("Normalizer", [X], norm="L1"),
    "second norm": _case("Normalizer", [X], norm="L2"),
    "columns": _case("ArrayFeatureExtractor", [X, np.array([4, 0, 4])]),
    "binarizer": _case("Binarizer", [X], threshold=0.3),
    "vectorizer": _case("FeatureVectorizer", [X, _f(9, 2)], inputdimensions=[6, 2]),
    "imputer": _case(
        "Imputer", [HOLES], imputed_value_floats=_numbers(6), replaced_value_float=float("nan")
    ),
    "imputer of integers": _case(
        "Imputer",
        [_RNG.integers(0, 3, (4, 5))],
        imputed_value_int64s=[7],
        replaced_value_int64=1,
    ),
    "one hot": _case("OneHotEncoder", [_RNG.integers(0, 9, (7, 3))], cats_int64s=[1, 4, 8]),
    "labels": _case(
        "LabelEncoder",
        [_RNG.integers(0, 9, (7, 3))],
        opset=2,
        keys_int64s=[7, 1, 4, 3],
        values_int64s=[10, 20, -3, 5],
        default_int64=42,
    ),
    "keys that are equal": _case(
        "LabelEncoder",
        [_RNG.integers(0, 5, (7, 3))],
        opset=2,
        keys_int64s=[3, 1, 3, 1],
        values_int64s=[10, 20, -3, 5],
    ),
    "labels of numbers": _case(
        "LabelEncoder",
        [np.array([0.5, 2.0, 0.25, -1.0], np.float32)],
        opset=2,
        keys_floats=[2.0, 0.75, 0.5],
        values_floats=[1.5, 2.5, 3.5],
        default_float=-7.0,
    ),
    "labels to numbers": _case(
        "LabelEncoder",
        [_RNG.integers(0, 4, 9)],
        opset=2,
        keys_int64s=[2],
        values_floats=[0.25],
        default_float=-1.0,
    ),
    "linear": _case(
        "LinearRegressor", [X], coefficients=_numbers(12), intercepts=[0.1, 0.2], targets=2
    ),
    "linear classes": _case(
        "LinearClassifier",
        [X],
        outputs=2,
        coefficients=_numbers(18),
        intercepts=_numbers(3),
        classlabels_ints=[4, 2, 7],
        post_transform="SOFTMAX",
    ),
    **{
        f"support vectors, {kind}": _case(
            "SVMRegressor",
            [X],
            kernel_type=kind,
            kernel_params=[0.2, 0.3, 3.0],
            n_supports=5,
            support_vectors=_numbers(5, 6),
            coefficients=_numbers(5),
            rho=[0.4],
        )
        for kind in ("LINEAR", "POLY", "RBF", "SIGMOID")
    },
    "powers of support vectors": _case(
        "SVMRegressor",
        [np.abs(X)],
        kernel_type="POLY",
        kernel_params=[0.2, 0.3, 1.5],
        n_supports=5,
        support_vectors=[abs(v) for v in _numbers(5, 6)],
        coefficients=_numbers(5),
        rho=[0.4],
    ),
    "one class of support vectors": _case(
        "SVMRegressor",
        [X],
        kernel_type="RBF",
        kernel_params=[0.2, 0.0, 3.0],
        n_supports=5,
        support_vectors=_numbers(5, 6),
        coefficients=_numbers(5),
        rho=[0.1],
        one_class=1,
    ),
    **{
        f"two classes of support vectors, {post}": _case(
            "SVMClassifier",
            [X],
            outputs=2,
            kernel_type="RBF",
            kernel_params=[0.2, 0.0, 3.0],
            vectors_per_class=[3, 2],
            support_vectors=_numbers(5, 6),
            coefficients=_numbers(1, 5),
            rho=[0.05],
            classlabels_ints=[5, 6],
            post_transform=post,
        )
        for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
    },
    "a vector": _case("Scaler", [X[0]], scale=_numbers(6), offset=_numbers(6)),
    "vectorizer of vectors": _case("FeatureVectorizer", [X[0], _f(2)], inputdimensions=[6, 2]),
    "columns of a vector": _case("ArrayFeatureExtractor", [X[0], np.array([[4, 0, 4]])]),
    "labels by tensors": _case(
        "LabelEncoder",
        [np.array([[0.5, 2.0], [7.0, np.nan]], np.float32)],
        opset=4,
        keys_tensor=numpy_helper.from_array(np.array([2.0, np.nan, 0.5], np.float32)),
        values_tensor=numpy_helper.from_array(np.array([4, 5, 6], np.int64)),
        default_tensor=numpy_helper.from_array(np.array([-1], np.int64)),
    ),
    "the first classes": _case(
        "LinearClassifier",
        [X],
        outputs=2,
        coefficients=_numbers(18),
        intercepts=_numbers(3),
        classlabels_ints=[0, 1, 2],
        post_transform="SOFTMAX_ZERO",
    ),
    "two linear classes": _case(
        "LinearClassifier",
        [X],
        outputs=2,
        coefficients=_numbers(6),
        intercepts=[0.1],
        classlabels_ints=[4, 2],
    ),
    "two linear classes, logistic": _case(
        "LinearClassifier",
        [X],
        outputs=2,
        coefficients=_numbers(6),
        intercepts=[0.1],
        classlabels_ints=[4, 2],
        post_transform="LOGISTIC",
    ),
    "probit": _case(
        "LinearClassifier",
        [X],
        outputs=2,
        coefficients=_numbers(18),
        intercepts=_numbers(3),
        classlabels_ints=[0, 1, 2],
        post_transform="PROBIT",
    ),
    "two classes' shares of support vectors": _case(
        "SVMClassifier",
        [X],
        outputs=2,
        kernel_type="RBF",
        kernel_params=[0.2, 0.0, 3.0],
        vectors_per_class=[3, 2],
        support_vectors=_numbers(5, 6),
        coefficients=_numbers(1, 5),
        rho=[0.05],
        prob_a=[-1.7],
        prob_b=[0.1],
        classlabels_ints=[5, 6],
    ),
    "shares of pairs of classes": _case(
        "SVMClassifier",
        [X],
        outputs=2,
        kernel_type="RBF",
        kernel_params=[0.2, 0.0, 3.0],
        prob_a=[-1.5, -2.5, -0.7],
        prob_b=[0.1, -0.2, 0.3],
        **_SVC,
    ),
    "pairs of classes": _case(
        "SVMClassifier", [X], outputs=2, kernel_type="RBF", kernel_params=[0.2, 0.0, 3.0], **_SVC
    ),
}


def _feeds(inputs: list[Array]) -> dict[str, Array]:
    return {f"x{n}": x for n, x in enumerate(inputs)}


@pytest.mark.parametrize("name", CASES)
def test_against_onnxruntime(name: str) -> None:
    model, inputs = CASES[name]
    feeds = _feeds(inputs)
    assert_same(our_run(import_onnx(model).main, feeds), ort_run(model, feeds))


def test_compiled() -> None:
    """All cases as entry points of one module."""
    module = Module()
    for number, (model, _) in enumerate(CASES.values()):
        function = import_onnx(model).main
        function.name = f"f{number}"
        module.add(function)
    data = aot.compile(module, targets=["host"]).to_bytes()
    for number, (model, inputs) in enumerate(CASES.values()):
        with aot.load(data, entry=f"f{number}") as program:
            found = list(program(_feeds(inputs)).values())
        assert_same(found, ort_run(model, _feeds(inputs)))


def test_a_map_is_a_tensor() -> None:
    """A program gives no maps: ZipMap's output is the probabilities, a column a class."""
    model, inputs = _case("ZipMap", [X], classlabels_int64s=[3, 4, 5, 6, 7, 8])
    (found,) = our_run(import_onnx(model).main, _feeds(inputs))
    np.testing.assert_array_equal(found, X)


def test_trees_in_a_circle_are_refused() -> None:
    model, _ = _regressor(_LEQ)
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "nodes_falsenodeids":
            attribute.ints[0] = 0
        if attribute.name == "nodes_truenodeids":
            attribute.ints[1] = 0
            attribute.ints[0] = 1
    with pytest.raises(CompileError) as error:
        import_onnx(model)
    assert str(error.value) == (
        "model: TreeEnsembleRegressor (node 'the node'): the nodes of a tree follow one another in "
        "a circle"
    )


def test_random_tensors_are_the_same_in_every_run() -> None:
    def drawn(op: str, **attrs: Any) -> Array:
        node = helper.make_node(op, [], ["y"], name="the node", shape=[1000], **attrs)
        (found,) = our_run(import_onnx(graph_model([node], [], ["y"])).main, {})
        return found

    numbers = drawn("RandomNormal", seed=1.0, mean=3.0, scale=2.0)
    np.testing.assert_array_equal(numbers, drawn("RandomNormal", seed=1.0, mean=3.0, scale=2.0))
    assert not np.array_equal(numbers, drawn("RandomNormal", seed=2.0, mean=3.0, scale=2.0))
    assert abs(numbers.mean() - 3) < 0.3 and abs(numbers.std() - 2) < 0.3
    uniform = drawn("RandomUniform", low=-1.0, high=3.0)
    assert uniform.min() >= -1 and uniform.max() < 3 and abs(uniform.mean() - 1) < 0.2


@pytest.mark.parametrize("count", [1000, "n"])
def test_random_tensors_have_their_distributions(count: int | str) -> None:
    """Whether their shape is known or not; the option decides them, and the node's name."""
    names = ["normal", "other", "uniform"]
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["normal"], name="a", mean=3.0, scale=2.0),
        helper.make_node("RandomNormalLike", ["x"], ["other"], name="b", dtype=TensorProto.DOUBLE),
        helper.make_node("RandomUniformLike", ["x"], ["uniform"], name="c", low=-1.0, high=3.0),
    ]
    model = graph_model(nodes, [tensor_info("x", [3, count])], names)
    feeds = {"x": np.zeros((3, 1000), np.float32)}

    def drawn(seed: int) -> list[Array]:
        return our_run(import_onnx(model, random_seed=seed).main, feeds)

    normal, other, uniform = found = drawn(0)
    for again, another, array in zip(drawn(0), drawn(1), found, strict=True):
        np.testing.assert_array_equal(array, again)
        assert not np.isclose(array, another).any(axis=1).all()
        assert len(np.unique(array)) > 2990
    assert other.dtype == np.float64
    standard = (normal - 3) / 2
    for array in (standard, other):
        assert abs(array.mean()) < 0.06 and abs(array.std() - 1) < 0.06
        assert abs((np.abs(array) < 1).mean() - 0.683) < 0.03
    assert abs(np.corrcoef(standard.ravel(), other.ravel())[0, 1]) < 0.06
    assert abs(np.corrcoef(uniform[0], uniform[1])[0, 1]) < 0.1
    counts, _ = np.histogram(uniform, 8, (-1, 3))
    assert counts.sum() == 3000 and (abs(counts - 375) < 75).all()
