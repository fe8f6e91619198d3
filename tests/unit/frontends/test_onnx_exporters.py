"""Habits of exporters: models that are odd but right, and must give what ONNX Runtime gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aot
from aot.frontends.onnx import import_onnx
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES
from tests.support.onnx_models import assert_same, compare, graph_model, our_run, tensor_info

Array = np.ndarray[Any, Any]
make = helper.make_node
X = np.random.RandomState(0).randn(2, 3).astype(np.float32)


def floats(name: str, *shape: int) -> onnx.TensorProto:
    array = np.random.RandomState(len(name)).randn(*shape).astype(np.float32)
    return numpy_helper.from_array(array, name)


def compiled_run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    with aot.load(aot.compile(model)) as program:
        return program(feeds)


def ops_after_passes(model: onnx.ModelProto) -> list[str]:
    module = import_onnx(model)
    run_passes(module, MODEL_PASSES, PassContext())
    return [op.name for op in module.main.block if op.name not in ("constant", "return")]


# what a model declares and does not mean


def test_declared_output_shapes_are_not_believed() -> None:
    model = graph_model([make("Relu", ["x"], ["y"])], [tensor_info("x", [2, 3])], ["y"])
    model.graph.output[0].CopyFrom(tensor_info("y", [7, 1, 9], TensorProto.INT64))
    model.graph.value_info.append(tensor_info("y", [1]))
    (result,) = import_onnx(model).main.results
    assert str(result.type) == "f32[2, 3]"
    np.testing.assert_array_equal(compiled_run(model, {"x": X})["y"], np.maximum(X, 0))


@pytest.mark.parametrize("dim", [-1, 0, None, "H/2", "batch size", "unk__12", "-1", ""])
def test_dims_that_are_no_number_and_no_name(dim: int | str | None) -> None:
    info = tensor_info("x", [None, 3])
    if isinstance(dim, int):
        info.type.tensor_type.shape.dim[0].dim_value = dim
    elif dim is not None:
        info.type.tensor_type.shape.dim[0].dim_param = dim
    model = graph_model([make("Relu", ["x"], ["y"])], [info], ["y"])
    with aot.load(aot.compile(model)) as program:
        for rows in (1, 2, 5):
            x = np.random.RandomState(rows).randn(rows, 3).astype(np.float32)
            np.testing.assert_array_equal(program({"x": x})["y"], np.maximum(x, 0))


def test_one_dim_name_in_several_inputs_is_one_extent() -> None:
    model = graph_model(
        [make("Concat", ["a", "b"], ["y"], axis=0)],
        [tensor_info("a", ["N", "M"]), tensor_info("b", ["N", "M"])],
        ["y"],
    )
    (result,) = import_onnx(model).main.results
    assert str(result.type) == "f32[2*N, M]"
    with aot.load(aot.compile(model)) as program:
        assert program({"a": X, "b": X})["y"].shape == (4, 3)
        with pytest.raises(aot.RuntimeFailure):
            program({"a": X, "b": X[:1]})


def test_names_of_graph_and_nodes_may_be_missing() -> None:
    model = graph_model(
        [make("Relu", ["x"], ["a"]), make("Neg", ["a"], ["y"])], [tensor_info("x", [2, 3])], ["y"]
    )
    model.graph.ClearField("name")
    function = import_onnx(model).main
    assert [op.origin for op in function.block] == ["Relu:a", "Neg:y", ""]


def test_every_node_of_one_name() -> None:
    nodes = [make("Relu", ["x"], ["a"], name="n"), make("Neg", ["a"], ["y"], name="n")]
    model = graph_model(nodes, [tensor_info("x", [2, 3])], ["y"])
    np.testing.assert_array_equal(compiled_run(model, {"x": X})["y"], -np.maximum(X, 0))


@pytest.mark.parametrize("version", [3, 4, 7, 10])
def test_ir_versions(version: int) -> None:
    """Up to version 3 every initializer is an input too."""
    w = floats("w", 3)
    infos = [tensor_info("x", [2, 3])] + ([tensor_info("w", [3])] if version == 3 else [])
    model = graph_model([make("Add", ["x", "w"], ["y"])], infos, ["y"], [w], opset=8)
    model.ir_version = version
    function = compare(model, {"x": X})
    assert [v.name for v in function.inputs] == ["x"]


def test_opsets_of_domains_that_nothing_uses() -> None:
    model = graph_model([make("Relu", ["x"], ["y"])], [tensor_info("x", [2, 3])], ["y"])
    for domain, version in (("ai.onnx.ml", 3), ("com.microsoft", 1), ("org.pytorch.aten", 1)):
        model.opset_import.append(helper.make_opsetid(domain, version))
    compare(model, {"x": X})


def test_default_domain_by_its_long_name() -> None:
    model = graph_model(
        [make("Relu", ["x"], ["y"], domain="ai.onnx")], [tensor_info("x", [2, 3])], ["y"]
    )
    model.opset_import[0].domain = "ai.onnx"
    assert_same(our_run(import_onnx(model).main, {"x": X}), [np.maximum(X, 0)])


# where weights lie


def test_weights_in_constant_nodes_behind_their_readers() -> None:
    w = floats("w", 3, 4)
    nodes = [make("MatMul", ["x", "w"], ["y"]), make("Constant", [], ["w"], value=w)]
    model = graph_model(nodes, [tensor_info("x", [2, 3])], ["y"])
    found = our_run(import_onnx(model).main, {"x": X})[0]
    np.testing.assert_allclose(found, X @ numpy_helper.to_array(w), rtol=1e-5)


@pytest.mark.parametrize("is_split", [False, True])
def test_external_data(tmp_path: Path, is_split: bool) -> None:
    model = graph_model(
        [make("MatMul", ["x", "w"], ["a"]), make("Add", ["a", "b"], ["y"])],
        [tensor_info("x", [2, 3])],
        ["y"],
        [floats("w", 3, 4), floats("b", 4)],
    )
    expected = our_run(import_onnx(model).main, {"x": X})
    path = tmp_path / "model.onnx"
    onnx.save_model(
        model,
        path,
        save_as_external_data=True,
        size_threshold=0,
        all_tensors_to_one_file=not is_split,
        location=None if is_split else "data",
    )
    assert len(list(tmp_path.iterdir())) == (3 if is_split else 2)
    assert_same(our_run(import_onnx(path).main, {"x": X}), expected)


def test_external_data_in_a_folder_below_and_through_a_link_beside(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w").write_bytes(np.array([1, 2, 3], np.float32).tobytes())
    (tmp_path / "link").symlink_to("weights")
    for location in ("weights/w", "./weights/../weights/w", "link/w"):
        tensor = TensorProto(
            name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL
        )
        tensor.external_data.add(key="location", value=location)
        path = tmp_path / "model.onnx"
        model = graph_model(
            [make("Add", ["x", "w"], ["y"])], [tensor_info("x", [2, 3])], ["y"], [tensor]
        )
        path.write_bytes(model.SerializeToString())
        found = our_run(import_onnx(path).main, {"x": X})
        assert_same(found, [X + np.array([1, 2, 3], np.float32)])


def test_an_empty_raw_data_beside_typed_data_and_files() -> None:
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 2, 3])
    tensor.raw_data = b""
    model = graph_model(
        [make("Add", ["x", "w"], ["y"])], [tensor_info("x", [2, 3])], ["y"], [tensor]
    )
    assert_same(our_run(import_onnx(model).main, {"x": X}), [X + np.array([1, 2, 3], np.float32)])


def test_empty_initializers() -> None:
    empty = numpy_helper.from_array(np.zeros((0, 3), np.float32), "w")
    model = graph_model(
        [make("Concat", ["x", "w"], ["y"], axis=0)], [tensor_info("x", [2, 3])], ["y"], [empty]
    )
    compare(model, {"x": X})
    np.testing.assert_array_equal(compiled_run(model, {"x": X})["y"], X)


# inputs and outputs


def test_input_of_rank_0() -> None:
    model = graph_model(
        [make("Mul", ["x", "s"], ["y"]), make("Neg", ["s"], ["z"])],
        [tensor_info("x", [2, 3]), tensor_info("s", [])],
        ["y", "z"],
    )
    feeds = {"x": X, "s": np.float32(3)}
    found = compiled_run(model, feeds)
    np.testing.assert_array_equal(found["y"], X * np.float32(3))
    assert found["z"].shape == ()
    assert found["z"] == -3


def test_input_that_is_an_output_and_initializer_that_is_one() -> None:
    model = graph_model(
        [make("Relu", ["x"], ["y"])],
        [tensor_info("x", ["N", 3])],
        ["x", "y", "w"],
        [floats("w", 3)],
    )
    found = compiled_run(model, {"x": X})
    np.testing.assert_array_equal(found["x"], X)
    np.testing.assert_array_equal(found["y"], np.maximum(X, 0))
    np.testing.assert_array_equal(found["w"], numpy_helper.to_array(model.graph.initializer[0]))


def test_one_value_under_several_output_names() -> None:
    nodes = [
        make("Relu", ["x"], ["a"]),
        make("Identity", ["a"], ["b"]),
        make("Identity", ["x"], ["c"]),
    ]
    model = graph_model(nodes, [tensor_info("x", [2, 3])], ["a", "b", "c"])
    found = compiled_run(model, {"x": X})
    for name, wanted in (("a", np.maximum(X, 0)), ("b", np.maximum(X, 0)), ("c", X)):
        np.testing.assert_array_equal(found[name], wanted)


def test_input_that_nothing_reads_is_still_an_input() -> None:
    model = graph_model(
        [make("Relu", ["x"], ["y"])],
        [tensor_info("x", [2, 3]), tensor_info("unused", ["K"])],
        ["y"],
    )
    found = compiled_run(model, {"x": X, "unused": np.zeros(5, np.float32)})
    np.testing.assert_array_equal(found["y"], np.maximum(X, 0))


def test_output_without_a_type() -> None:
    model = graph_model([make("Relu", ["x"], ["y"])], [tensor_info("x", [2, 3])], ["y"])
    assert not model.graph.output[0].HasField("type")
    assert list(compiled_run(model, {"x": X})) == ["y"]


def test_names_that_are_no_identifiers() -> None:
    names = ["input:0", "a b/ü", "x.1\n"]
    nodes = [make("Relu", [names[0]], [names[1]]), make("Neg", [names[1]], [names[2]])]
    model = graph_model(nodes, [tensor_info(names[0], [2, 3])], names[1:])
    found = compiled_run(model, {names[0]: X})
    np.testing.assert_array_equal(found[names[2]], -np.maximum(X, 0))


# nodes that do nothing


def test_hundreds_of_casts_and_transposes_that_do_nothing() -> None:
    nodes, last = [], "x"
    for n in range(200):
        nodes += [
            make("Cast", [last], [f"c{n}"], to=TensorProto.FLOAT),
            make("Transpose", [f"c{n}"], [f"t{n}"], perm=[1, 0]),
            make("Identity", [f"t{n}"], [f"i{n}"]),
            make("Transpose", [f"i{n}"], [f"u{n}"], perm=[1, 0]),
        ]
        last = f"u{n}"
    nodes.append(make("Relu", [last], ["y"]))
    model = graph_model(nodes, [tensor_info("x", ["N", 3])], ["y"])
    compare(model, {"x": X})
    assert ops_after_passes(model) == ["relu"]


def test_channels_last_export() -> None:
    """As TensorFlow's exporters write it: transposes around every convolution."""
    nodes, last, channels = [], "x", 3
    initializers = []
    for n in range(4):
        initializers += [floats(f"w{n}", 4, channels, 3, 3), floats(f"b{n}", 4)]
        channels = 4
        nodes += [
            make("Transpose", [last], [f"in{n}"], perm=[0, 3, 1, 2]),
            make("Conv", [f"in{n}", f"w{n}", f"b{n}"], [f"c{n}"], pads=[1, 1, 1, 1]),
            make("Transpose", [f"c{n}"], [f"out{n}"], perm=[0, 2, 3, 1]),
            make("Relu", [f"out{n}"], [f"r{n}"]),
        ]
        last = f"r{n}"
    nodes.append(make("ReduceMean", [last], ["y"], axes=[1, 2], keepdims=0))
    model = graph_model(nodes, [tensor_info("x", ["N", 8, 9, 3])], ["y"], initializers)
    x = np.random.RandomState(2).randn(2, 8, 9, 3).astype(np.float32)
    function = compare(model, {"x": x})
    wanted = our_run(function, {"x": x})[0]
    np.testing.assert_allclose(compiled_run(model, {"x": x})["y"], wanted, rtol=2e-5, atol=1e-5)


def test_shape_arithmetic_around_a_reshape() -> None:
    """As PyTorch writes `x.view(x.shape[0], -1)`: shape, gather, unsqueeze, concat."""
    nodes = [
        make("Shape", ["x"], ["s"]),
        make("Gather", ["s", "zero"], ["n"], axis=0),
        make("Unsqueeze", ["n", "axes"], ["n1"]),
        make("Concat", ["n1", "minus"], ["to"], axis=0),
        make("Reshape", ["x", "to"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.array(v), n)
        for n, v in (("zero", 0), ("axes", [0]), ("minus", [-1]))
    ]
    model = graph_model(nodes, [tensor_info("x", ["N", 3, 4])], ["y"], constants)
    compare(model, {"x": np.ones((5, 3, 4), np.float32)})
    assert ops_after_passes(model) == ["reshape"]


def test_a_range_of_floats_over_an_extent() -> None:
    """As detectors make their grids: arange(shape[-1]) in float."""
    nodes = [
        make("Shape", ["x"], ["s"]),
        make("Gather", ["s", "one"], ["w"], axis=0),
        make("Cast", ["w"], ["limit"], to=TensorProto.FLOAT),
        make("Range", ["start", "limit", "step"], ["r"]),
        make("Add", ["x", "r"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.array(v, d), n)
        for n, v, d in (("one", 1, np.int64), ("start", 0, np.float32), ("step", 1, np.float32))
    ]
    model = graph_model(nodes, [tensor_info("x", ["N", "W"])], ["y"], constants)
    compare(model, {"x": X})
    np.testing.assert_array_equal(
        compiled_run(model, {"x": X})["y"], X + np.arange(3, dtype=np.float32)
    )


def test_nodes_and_inputs_that_no_output_needs() -> None:
    nodes = [
        make("Relu", ["x"], ["y"]),
        make("NonZero", ["x"], ["dead"]),
        make("Conv", ["x", "x"], ["deader"]),
    ]
    model = graph_model(nodes, [tensor_info("x", [2, 3])], ["y"])
    assert ops_after_passes(model) == ["relu"]


# functions of the model


def _calls_function() -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    inner = helper.make_function(
        "own",
        "Scale",
        ["a"],
        ["b"],
        [make("Constant", [], ["k"], value_float=2.0), make("Mul", ["a", "k"], ["b"])],
        opsets,
    )
    leaky = make("LeakyRelu", ["c"], ["b"])
    leaky.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    outer = helper.make_function(
        "own",
        "Act",
        ["a"],
        ["b"],
        [make("Scale", ["a"], ["c"], domain="own"), leaky],
        opsets,
        ["slope"],
    )
    nodes = [
        make("Act", ["x"], ["m"], domain="own", slope=0.25),
        make("Act", ["m"], ["y"], domain="own", slope=0.5),
    ]
    model = graph_model(nodes, [tensor_info("x", [2, 3])], ["y"])
    model.functions.extend([outer, inner])
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


def test_functions_that_call_functions_and_take_attributes() -> None:
    model = _calls_function()
    model.ir_version = 8
    compare(model, {"x": X})


def test_overloads_of_a_function() -> None:
    opsets = [helper.make_opsetid("", 17)]
    functions = [
        helper.make_function("own", "F", ["a"], ["b"], [make(op, ["a"], ["b"])], opsets)
        for op in ("Neg", "Relu")
    ]
    nodes = [make("F", ["x"], ["m"], domain="own"), make("F", ["m"], ["y"], domain="own")]
    for function, node, overload in zip(functions, nodes, ("first", "second"), strict=True):
        function.overload = node.overload = overload
    model = graph_model(nodes, [tensor_info("x", [2, 3])], ["y"])
    model.functions.extend(functions)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.ir_version = 10
    assert_same(our_run(import_onnx(model).main, {"x": X}), [np.maximum(-X, 0)])


def _of_another_opset(op: str, **attrs: Any) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17)]
    body = [make("Relu", ["a"], ["r"]), make(op, ["r"], ["b"], **attrs)]
    model = graph_model(
        [make("F", ["x"], ["y"], domain="own")], [tensor_info("x", [2, 3])], ["y"], opset=18
    )
    model.functions.append(helper.make_function("own", "F", ["a"], ["b"], body, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


def test_a_function_of_another_opset_whose_ops_mean_the_same() -> None:
    compare(_of_another_opset("Softmax", axis=1), {"x": X})


def test_a_function_of_another_opset_whose_ops_changed_is_refused() -> None:
    with pytest.raises(aot.UnsupportedError) as error:
        import_onnx(_of_another_opset("ReduceMax", axes=[1]))
    assert error.value.items == (
        "function own.F is of opset 17 and the model of 18, where ReduceMax means something else; "
        "convert the function",
    )


# types that are no tensors


def test_input_that_is_an_optional_says_so() -> None:
    info = onnx.ValueInfoProto(name="x")
    info.type.optional_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    model = graph_model([make("Identity", ["x"], ["y"])], [info], ["y"])
    with pytest.raises(aot.UnsupportedError, match="input 'x': is an optional type, not a tensor"):
        import_onnx(model)
