"""Strings that are compared, moved and looked up are what ONNX Runtime gives; all else that ONNX
does with them is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import aot
from aot.errors import CompileError, InternalError, RuntimeFailure, UnsupportedError
from aot.frontends.onnx import import_onnx
from aot.ir.graph import Strings
from aot.ir.interpreter.interpreter import run
from aot.ir.text.parser import parse_module
from aot.ir.text.printer import print_module
from aot.ir.verifier import verify
from aot.tools.string_numbers import StringNumbers
from tests.support.onnx_models import Array, graph_model, ort_run, tensor_info

ML = "ai.onnx.ml"
TEXT, FLOAT, INT = TensorProto.STRING, TensorProto.FLOAT, TensorProto.INT64
WORDS = np.array([["red", "blue", "mauve"], ["", "grün", "red"]], object)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, int],
    outputs: dict[str, int],
    ml: int = 3,
    **options: Any,
) -> onnx.ModelProto:
    infos = [tensor_info(name, ["N", 3], kind) for name, kind in inputs.items()]
    model = graph_model(nodes, infos, list(outputs), **options)
    for value, kind in zip(model.graph.output, outputs.values(), strict=True):
        value.type.tensor_type.elem_type = kind
    for opset in model.opset_import:
        opset.version = ml if opset.domain == ML else opset.version
    return model


def _check(model: onnx.ModelProto, feeds: dict[str, Array]) -> None:
    expected = ort_run(model, feeds)
    function = import_onnx(model).main
    strings = StringNumbers(function)
    taken = strings.taken(feeds)
    interpreted = strings.given(run(function, {v.name: taken[v.name] for v in function.inputs}))
    with aot.load(aot.compile(model, targets=["host"]).to_bytes()) as program:
        found = program(feeds)
    for ours in (interpreted, found):
        for result, wanted in zip(ours.values(), expected, strict=True):
            assert result.dtype == wanted.dtype
            np.testing.assert_array_equal(result, wanted)


def _ml(op: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, ["x"], ["y"], name="the node", domain=ML, **attrs)


KEYS = ["red", "grün", "red", "black"]
TENSOR = helper.make_tensor("t", TEXT, [2], [b"red", b"blue"])


@pytest.mark.parametrize(
    ("node", "kind", "opset"),
    [
        (_ml("LabelEncoder", keys_strings=KEYS, values_int64s=[1, 2, 3, 4]), INT, 2),
        (
            _ml("LabelEncoder", keys_strings=KEYS, values_int64s=[1, 2, 3, 4], default_int64=9),
            INT,
            2,
        ),
        (_ml("LabelEncoder", keys_strings=KEYS, values_floats=[0.5, 2, 3, 4]), FLOAT, 2),
        (_ml("LabelEncoder", keys_strings=KEYS, values_strings=["a", "b", "red", ""]), TEXT, 2),
        (
            _ml(
                *["LabelEncoder"],
                keys_tensor=TENSOR,
                values_int64s=[4, 5],
                default_tensor=helper.make_tensor("d", INT, [1], [7]),
            ),
            INT,
            4,
        ),
        (
            _ml("LabelEncoder", keys_strings=["red"], values_strings=["a"], default_string="mauve"),
            TEXT,
            2,
        ),
        (_ml("LabelEncoder", classes_strings=["blue", "grün"]), INT, 1),
        (_ml("OneHotEncoder", cats_strings=["blue", "red", "black"]), FLOAT, 1),
        (_ml("CategoryMapper", cats_strings=["blue", "red"], cats_int64s=[4, 2]), INT, 1),
    ],
)
def test_strings_are_looked_up(node: onnx.NodeProto, kind: int, opset: int) -> None:
    model = _model([node], {"x": TEXT}, {"y": kind}, ml=opset)
    _check(model, {"x": WORDS})


@pytest.mark.parametrize(
    ("node", "opset"),
    [
        (_ml("LabelEncoder", keys_int64s=[3, 1, 2], values_strings=["a", "b", "c"]), 3),
        (_ml("LabelEncoder", keys_int64s=[3], values_strings=["a"], default_string="?"), 3),
        (_ml("LabelEncoder", classes_strings=["a", "b"], default_string="?"), 1),
        (_ml("CategoryMapper", cats_strings=["a", "b"], cats_int64s=[3, 2]), 3),
    ],
)
def test_numbers_become_strings(node: onnx.NodeProto, opset: int) -> None:
    model = _model([node], {"x": INT}, {"y": TEXT}, ml=opset)
    _check(model, {"x": np.array([[1, 2, 3], [4, 3, -1]])})


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX"])
@pytest.mark.parametrize("classes", [["no", "yes"], ["x", "z", "y"]])
def test_labels_of_classes_are_strings(post: str, classes: list[str]) -> None:
    rng = np.random.default_rng(1)
    count = len(classes)
    node = helper.make_node(
        *("LinearClassifier", ["x"], ["label", "scores"]),
        domain=ML,
        coefficients=rng.standard_normal(3 * count).tolist(),
        intercepts=rng.standard_normal(count).tolist(),
        classlabels_strings=classes,
        post_transform=post,
    )
    model = _model([node], {"x": FLOAT}, {"label": TEXT, "scores": FLOAT})
    data = rng.standard_normal((9, 3)).astype(np.float32)
    with aot.load(aot.compile(model, targets=["host"]).to_bytes()) as program:
        found = program(data)
        assert program.outputs[0].strings == tuple(classes)
        assert str(program.outputs[0]) == "label: string[N]"
        assert program.outputs[1].strings is None
    expected = ort_run(model, {"x": data})
    np.testing.assert_array_equal(found["label"], expected[0])
    np.testing.assert_allclose(found["scores"], expected[1], rtol=1e-5, atol=1e-6)


def test_strings_that_the_model_does_not_name_are_compared_and_moved() -> None:
    nodes = [
        helper.make_node("Equal", ["a", "b"], ["same"]),
        helper.make_node("Where", ["same", "a", "other"], ["chosen"]),
        helper.make_node("Concat", ["chosen", "b"], ["both"], axis=1),
        helper.make_node("Transpose", ["both"], ["y"]),
        helper.make_node("Constant", [], ["other"], value_string="others"),
    ]
    model = _model(nodes, {"a": TEXT, "b": TEXT}, {"y": TEXT, "same": TensorProto.BOOL}, opset=21)
    other = np.array([["red", "x", "mauve"], ["", "y", "others"]], object)
    _check(model, {"a": WORDS, "b": other})


@pytest.mark.parametrize("case", ["NONE", "LOWER", "UPPER"])
@pytest.mark.parametrize("is_exact", [0, 1])
def test_known_strings_are_normalised(case: str, is_exact: int) -> None:
    attrs = {"case_change_action": case, "is_case_sensitive": is_exact, "stopwords": ["Red"]}
    attrs["locale"] = "C"
    nodes = [
        helper.make_node("Constant", [], ["c"], value_strings=["Red", "red", "Blue"]),
        helper.make_node("StringNormalizer", ["c"], ["n"], **attrs),
        helper.make_node("Shape", ["n"], ["y"]),
    ]
    model = _model(nodes, {}, {"n": TEXT, "y": INT})
    _check(model, {})


def test_ngrams_of_strings_are_counted() -> None:
    node = helper.make_node(
        *("TfIdfVectorizer", ["x"], ["y"]),
        mode="TF",
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=0,
        ngram_counts=[0, 2],
        ngram_indexes=[0, 1, 2],
        pool_strings=["red", "blue", "red", "blue"],
    )
    _check(_model([node], {"x": TEXT}, {"y": FLOAT}), {"x": WORDS})


def test_a_branch_that_data_choose_gives_strings() -> None:
    branches = {
        name: helper.make_graph(
            [helper.make_node("Constant", [], [name], value_strings=["a", text])],
            *(name, [], [helper.make_tensor_value_info(name, TEXT, [2])]),
        )
        for name, text in (("then_branch", "yes"), ("else_branch", "no"))
    }
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Less", ["most", "limit"], ["c"]),
        helper.make_node("Constant", [], ["limit"], value_float=1.0),
        helper.make_node("If", ["c"], ["y"], **branches),
    ]
    model = _model(nodes, {"x": FLOAT}, {"y": TEXT})
    for value in (0, 2):
        _check(model, {"x": np.full((1, 3), value, np.float32)})


def test_lists_and_bytes_are_strings_too_and_numbers_are_not() -> None:
    node = _ml("LabelEncoder", keys_strings=["red", "blue"], values_int64s=[4, 5])
    data = aot.compile(_model([node], {"x": TEXT}, {"y": INT}), targets=["host"]).to_bytes()
    with aot.load(data) as program:
        assert program([["red", "", "blue"]])["y"].tolist() == [[4, -1, 5]]
        assert program(np.array([["red", "", "blue"]]))["y"].tolist() == [[4, -1, 5]]
        assert program(np.array([[b"red", b"", b"blue"]]))["y"].tolist() == [[4, -1, 5]]
        with pytest.raises(RuntimeFailure, match='input "x": expected strings, found int'):
            program(np.zeros((1, 3), np.int64))


def test_a_string_input_can_be_given_when_compiled() -> None:
    node = _ml("LabelEncoder", keys_strings=["red", "blue"], values_int64s=[4, 5])
    model = _model([node], {"x": TEXT}, {"y": INT})
    function = import_onnx(model, input_values={"x": WORDS}).main
    assert not function.inputs
    np.testing.assert_array_equal(run(function, {})[0], [[4, 5, -1], [-1, -1, 4]])
    with pytest.raises(CompileError, match="input 'x' is of strings, but the value given"):
        import_onnx(model, input_values={"x": np.zeros((2, 3))})


def test_a_model_of_strings_is_verified(tmp_path: Path) -> None:
    node = _ml("LabelEncoder", keys_strings=["red", "blue"], values_strings=["a", "b"])
    path = tmp_path / "m.onnx"
    onnx.save(_model([node], {"x": TEXT}, {"y": TEXT}), path)
    compiled = aot.compile(path, targets=["host"])
    compiled.save(tmp_path / "m.aotm")
    for engine in ("onnxruntime", "reference"):
        found = aot.verify(tmp_path / "m.aotm", path, against=engine)
        assert found.agrees
        assert found.outputs[0].dtype == "string"
    wrong = onnx.load(path)
    wrong.graph.node[0].attribute[1].strings[0] = b"z"
    onnx.save(wrong, path)
    found = aot.verify(tmp_path / "m.aotm", path, inputs={"x": WORDS}, against="onnxruntime")
    assert found.outputs[0].problem == "2 of 6 strings differ"


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (helper.make_node("StringConcat", ["x", "x"], ["y"]), "programs only compare, move"),
        (helper.make_node("RegexFullMatch", ["x"], ["y"], pattern="a"), "programs only compare"),
        (
            helper.make_node("StringSplit", ["x"], ["y", "n"], delimiter=","),
            "programs only compare, move and look up strings; compute this before the model",
        ),
        (helper.make_node("Cast", ["x"], ["y"], to=FLOAT), "operand 0 is of strings: programs"),
        (helper.make_node("Unique", ["x"], ["y"]), "operand 0 is of strings: programs"),
        (
            helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action="LOWER"),
            "operand 0 (X) is not known at compile time: programs only",
        ),
    ],
)
def test_what_computes_strings_is_refused(node: onnx.NodeProto, reason: str) -> None:
    model = _model([node], {"x": TEXT}, {"y": TEXT}, opset=21)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(UnsupportedError) as error:
        import_onnx(model)
    assert reason in str(error.value)


def test_keys_are_of_the_input_type() -> None:
    model = _model(
        [_ml("LabelEncoder", keys_int64s=[1], values_int64s=[2])], {"x": TEXT}, {"y": INT}
    )
    with pytest.raises(CompileError, match="the keys are not strings, but X is"):
        import_onnx(model)


def test_the_text_of_a_function_has_its_strings() -> None:
    node = _ml("LabelEncoder", keys_strings=["red", 'a"b'], values_strings=["", "ü"])
    module = import_onnx(_model([node], {"x": TEXT}, {"y": TEXT}))
    text = print_module(module)
    assert parse_module(text).main.strings == module.main.strings
    assert print_module(parse_module(text)) == text
    module.main.strings = Strings(("a", "a"), ("x",))
    with pytest.raises(InternalError, match="the table of strings has one twice"):
        verify(module)
    module.main.strings = Strings(("a",), ("z",))
    with pytest.raises(InternalError, match="the strings of 'z' are no input or result of i64"):
        verify(module)
