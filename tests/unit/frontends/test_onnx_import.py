"""The importer around the ops: names, inputs, symbols, order; and what is said of wrong models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aot
from aot.errors import CompileError, UnsupportedError
from aot.frontends.onnx import import_onnx
from aot.ir.graph import Function
from tests.support.onnx_models import assert_same, compare, graph_model, our_run, tensor_info


def relu_model(shape: list[int | str | None] | None = None) -> onnx.ModelProto:
    return graph_model(
        [helper.make_node("Relu", ["x"], ["y"], name="r")],
        [tensor_info("x", shape if shape is not None else [2, 3])],
        ["y"],
    )


def input_types(function: Function) -> dict[str, str]:
    return {v.name: str(v.type) for v in function.inputs}


def message(model: object, **options: object) -> str:
    with pytest.raises(CompileError) as caught:
        import_onnx(model, **options)  # type: ignore[arg-type]
    return str(caught.value)


# names, order, what is kept


def test_names_and_origins() -> None:
    nodes = [
        helper.make_node("Relu", ["in:0"], ["a/b"], name="first"),
        helper.make_node("Neg", ["a/b"], ["out:0"]),
    ]
    function = import_onnx(graph_model(nodes, [tensor_info("in:0", [2])], ["out:0", "a/b"])).main
    assert list(input_types(function)) == ["in:0"]
    assert function.result_names == ["out:0", "a/b"]
    assert [(op.name, op.origin) for op in function.block] == [
        ("relu", "first"),
        ("neg", "Neg:out:0"),
        ("return", ""),
    ]


def test_nodes_in_any_order() -> None:
    nodes = [
        helper.make_node("Neg", ["b"], ["y"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Abs", ["x"], ["a"]),
    ]
    function = import_onnx(graph_model(nodes, [tensor_info("x", [2])], ["y"])).main
    assert [op.name for op in function.block] == ["abs", "relu", "neg", "return"]


def test_result_that_is_an_input_or_an_initializer() -> None:
    w = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    model = graph_model(nodes, [tensor_info("x", [2])], ["y", "w"], [w])
    function = import_onnx(model).main
    assert function.results[0] is function.inputs[0]
    x = np.array([5, 6], np.float32)
    assert_same(our_run(function, {"x": x}), [x, np.array([1, 2], np.float32)])


@pytest.mark.parametrize(
    ("listed", "kept"),
    [
        (["y", "y"], ["y"]),
        (["y", "x", "y", "w", "x", "w"], ["y", "x", "w"]),
    ],
)
def test_an_output_that_is_listed_again_is_one(listed: list[str], kept: list[str]) -> None:
    """ONNX Runtime runs such models; by name, as our programs give them, outputs are there once."""
    w = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    model = graph_model(nodes, [tensor_info("x", [2])], listed, [w])
    x = np.array([5, 6], np.float32)
    values = {"x": x, "y": -x, "w": np.array([1, 2], np.float32)}
    with aot.load(aot.compile(model)) as program:
        found = program({"x": x})
    assert list(found) == kept
    assert_same(list(found.values()), [values[name] for name in kept])


def test_inputs_that_are_listed_again_or_have_no_name() -> None:
    def refused(*names: str) -> str:
        infos = [tensor_info(name, [2]) for name in names]
        return message(graph_model([helper.make_node("Neg", ["x"], ["y"])], infos, ["y"]))

    again = "another input, initializer or node has that name already"
    assert refused("x", "x") == f"model: input 'x': {again}"
    assert refused("x", "") == "model: input 1 has no name"
    w = numpy_helper.from_array(np.ones(2, np.float32), "w")
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    twice = graph_model(nodes, [tensor_info("x", [2])], ["y"], [w, w])
    assert message(twice) == f"model: initializer 'w': {again}"


def test_initializer_that_is_also_an_input_is_no_input() -> None:
    w = numpy_helper.from_array(np.ones(3, np.float32), "w")
    model = graph_model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [tensor_info("x", [2, 3]), tensor_info("w", [3])],
        ["y"],
        [w],
    )
    assert input_types(import_onnx(model).main) == {"x": "f32[2, 3]"}


def test_what_no_output_needs_is_not_asked_for() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("NonZero", ["x"], ["unused"])]
    function = import_onnx(graph_model(nodes, [tensor_info("x", [2])], ["y"])).main
    assert [op.name for op in function.block] == ["relu", "return"]


def test_unused_optional_outputs() -> None:
    nodes = [
        helper.make_node("Dropout", ["x"], ["y", "mask"]),
        helper.make_node("MaxPool", ["y"], ["z", ""], kernel_shape=[2]),
    ]
    compare(
        graph_model(nodes, [tensor_info("x", [1, 2, 5])], ["z"]),
        {"x": np.arange(10, dtype=np.float32).reshape(1, 2, 5)},
    )


def test_functions_of_the_model_are_inlined() -> None:
    body = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    model = graph_model(
        [helper.make_node("Twice", ["x"], ["y"], domain="own")], [tensor_info("x", [2])], ["y"]
    )
    model.functions.append(body)
    model.opset_import.append(helper.make_opsetid("own", 1))
    compare(model, {"x": np.array([1, -2], np.float32)})


def test_constants_in_all_forms() -> None:
    def node(name: str, **attrs: object) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [name], **attrs)

    tensor = numpy_helper.from_array(np.array([[True, False]]), "t")
    nodes = [
        node("a", value=tensor),
        node("b", value_int=3),
        node("c", value_ints=[1, 2]),
        node("d", value_float=0.5),
        node("e", value_floats=[0.5, 1.5]),
    ]
    compare(graph_model(nodes, [], list("abcde")), {})


@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        "float16",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool",
    ],
)
@pytest.mark.parametrize("is_raw", [False, True])
def test_initializers_of_every_dtype(dtype: str, is_raw: bool) -> None:
    array = np.array([[0, 1, 2], [3, 100, 1]]).astype(dtype)
    if is_raw:
        tensor = numpy_helper.from_array(array, "w")
    else:
        elem = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = helper.make_tensor("w", elem, array.shape, array.reshape(-1).tolist())
        assert not tensor.HasField("raw_data")
    compare(graph_model([helper.make_node("Identity", ["w"], ["y"])], [], ["y"], [tensor]), {})


# input shapes and values


def test_dims_that_are_no_names_become_symbols_of_their_own() -> None:
    shape = ["N", "?", "?", -1, 0, "H*2", None, "None", 7]
    model = relu_model()
    del model.graph.input[0].type.tensor_type.shape.dim[:]
    for item in shape:
        dim = model.graph.input[0].type.tensor_type.shape.dim.add()
        if isinstance(item, str):
            dim.dim_param = item
        elif item is not None:
            dim.dim_value = item
    assert input_types(import_onnx(model).main) == {
        "x": "f32[N, x_d1, x_d2, x_d3, x_d4, x_d5, x_d6, x_d7, 7]"
    }


def test_own_symbols_are_identifiers_and_new() -> None:
    model = graph_model(
        [helper.make_node("Add", ["0:a", "b"], ["y"])],
        [tensor_info("0:a", [None]), tensor_info("b", ["_0_a_d0", 1])],
        ["y"],
    )
    assert input_types(import_onnx(model).main) == {"0:a": "f32[_0_a_d0_]", "b": "f32[_0_a_d0, 1]"}


def test_binding_by_shape() -> None:
    model = graph_model(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [tensor_info("a", ["N", 4, "H", None]), tensor_info("b", ["N", 4, 1, 1])],
        ["y"],
    )
    function = import_onnx(model, input_shapes={"a": (3, None, "Height", 8)}).main
    assert input_types(function) == {"a": "f32[3, 4, Height, 8]", "b": "f32[3, 4, 1, 1]"}
    assert str(function.results[0].type) == "f32[3, 4, Height, 8]"


def test_shape_for_an_input_without_one() -> None:
    model = relu_model()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert input_types(import_onnx(model, input_shapes={"x": (2, "N")}).main) == {"x": "f32[2, N]"}
    assert message(model) == (
        "model: input 'x' has no shape in the model: give one with --input-shape x=..."
    )


def test_binding_by_value() -> None:
    model = graph_model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [tensor_info("x", ["N", 6]), tensor_info("shape", ["K"], TensorProto.INT64)],
        ["y"],
    )
    function = import_onnx(model, input_values={"shape": [0, 2, -1]}).main
    assert input_types(function) == {"x": "f32[N, 6]"}
    assert str(function.results[0].type) == "f32[N, 2, 3]"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"input_shapes": {"z": (1, 2)}},
            "input_shapes: the model has no input 'z'; its inputs are 'x'",
        ),
        (
            {"input_shapes": {"x": (1, 2)}},
            "input 'x' has rank 3 in the model, but the shape given for it has 2 dims",
        ),
        (
            {"input_shapes": {"x": (1, 1, -3)}},
            "input 'x': -3 is no dim, expected one that is not negative",
        ),
        (
            {"input_shapes": {"x": (1, 1, "a b")}},
            "shape of input 'x': expected the end, found 'b' in dim 'a b'",
        ),
        (
            {"input_shapes": {"x": (1, 1, "4<=?<=5")}},
            "input 'x': dim 2 is 3, the bounds given for it are 4<=?<=5",
        ),
        ({"input_shapes": {"x": (1, 2, 3)}}, "input 'x': dim N is 2 here and 1 in another place"),
        (
            {"input_values": {"x": np.zeros((2, 2, 4))}},
            "input 'x' is f32[N, N, 3], but the value given for it has shape (2, 2, 4)",
        ),
        (
            {"input_values": {"x": np.array("text")}},
            "input 'x' is f32, but the value given for it is <U4",
        ),
    ],
)
def test_wrong_bindings(options: dict[str, object], expected: str) -> None:
    assert message(relu_model(["N", "N", 3]), **options) == f"model: {expected}"


# wrong files


def test_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none.onnx"
    assert message(path) == f"{path}: can't be read: No such file or directory"
    assert message(tmp_path) == f"{tmp_path}: can't be read: is a directory"


def test_broken_protobuf(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(relu_model().SerializeToString()[:-5] + b"\xff" * 9)
    assert message(path) == f"{path}: is not an ONNX model: the protobuf is broken"
    assert message(b"") == "model: is not an ONNX model: it has no graph or no IR version"


def test_name_that_is_no_text() -> None:
    data = relu_model().SerializeToString().replace(b"Relu", b"Re\xffu")
    assert message(data) == "model: is not an ONNX model: a name in it is not UTF-8"


def test_every_truncation_is_refused_or_imported() -> None:
    data = relu_model().SerializeToString()
    for length in range(len(data)):
        try:
            import_onnx(data[:length])
        except (CompileError, UnsupportedError) as error:
            assert str(error).startswith("model: ")


def test_random_flips_are_refused_or_imported() -> None:
    w = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Concat", ["a", "a"], ["b"], axis=1),
        helper.make_node("Softmax", ["b"], ["y"], axis=-1),
    ]
    data = graph_model(nodes, [tensor_info("x", ["N", 4])], ["y"], [w]).SerializeToString()
    rng = np.random.default_rng(3)
    for _ in range(1500):
        broken = bytearray(data)
        for position in rng.integers(0, len(data), int(rng.integers(1, 4))):
            broken[position] ^= 1 << int(rng.integers(8))
        try:
            import_onnx(bytes(broken))
        except (CompileError, UnsupportedError) as error:
            assert str(error).startswith("model: ")


def test_opsets() -> None:
    model = relu_model()
    model.opset_import[0].version = 9999
    assert message(model).startswith(
        "model: the model uses opset 9999, which is not known; expected 1 to "
    )
    del model.opset_import[:]
    assert message(model) == "model: the model imports no opset"


# wrong graphs


def _nodes_message(*nodes: onnx.NodeProto, outputs: list[str] | None = None) -> str:
    infos = [tensor_info("x", [2, 3]), tensor_info("k", [3], TensorProto.INT64)]
    return message(graph_model(list(nodes), infos, outputs or ["y"]))


def test_dangling_and_doubled_names() -> None:
    make = helper.make_node
    assert _nodes_message(make("Relu", ["nothing"], ["y"], name="r")) == (
        "model: Relu (node 'r'): operand 'nothing' is no input, initializer or other node's output"
    )
    assert _nodes_message(make("Relu", ["x"], ["y"]), outputs=["z"]) == (
        "model: output 'z' is made by no node"
    )
    assert _nodes_message(make("Relu", ["x"], ["y"]), make("Neg", ["x"], ["y"], name="n")) == (
        "model: Neg (node 'n'): output 'y': another input, initializer or node has that name "
        "already"
    )
    assert _nodes_message(make("Relu", ["k"], ["x"])) == (
        "model: Relu (node 'Relu:x'): output 'x': another input, initializer or node has that name "
        "already"
    )


def test_circle() -> None:
    assert _nodes_message(
        helper.make_node("Add", ["x", "b"], ["a"], name="one"),
        helper.make_node("Relu", ["a"], ["b"], name="two"),
        helper.make_node("Relu", ["b"], ["y"], name="after"),
    ) == ("model: nodes depend on each other in a circle: 'one', 'two', 'after'")


def test_nodes_that_onnx_does_not_allow() -> None:
    make = helper.make_node
    assert _nodes_message(make("Nonsense", ["x"], ["y"], name="n")) == (
        "model: there is no op Nonsense in opset 17 (node 'n')"
    )
    assert _nodes_message(make("Add", ["x", "k"], ["y"], name="n")) == (
        "model: Add (node 'n'): operand 1 (B) is i64, expected f32 as the operands before it"
    )
    assert _nodes_message(make("Not", ["x"], ["y"], name="n")) == (
        "model: Not (node 'n'): operand 0 (X) is f32, expected one of bool"
    )
    assert _nodes_message(make("Relu", ["x", "x"], ["y"], name="n")) == (
        "model: Relu (node 'n'): has 2 operands, expected 1"
    )
    assert _nodes_message(make("Add", ["", "x"], ["y"], name="n")) == (
        "model: Add (node 'n'): operand 0 (A) is missing"
    )
    assert _nodes_message(make("Concat", ["x"], ["y"], name="n")) == (
        "model: Concat (node 'n'): attribute 'axis' is missing"
    )
    assert _nodes_message(make("Relu", ["x"], ["y"], name="n", alpha=1.0)) == (
        "model: Relu (node 'n'): has no attribute 'alpha' in opset 17"
    )
    assert _nodes_message(make("Concat", ["x"], ["y"], name="n", axis=0.5)) == (
        "model: Concat (node 'n'): attribute 'axis' is of type FLOAT, expected INT"
    )
    assert _nodes_message(make("Concat", ["x"], ["y"], name="n", axis=2)) == (
        "model: Concat (node 'n'): axis 2 is outside a tensor of rank 2"
    )


def test_rules_of_our_ops_name_the_node() -> None:
    assert _nodes_message(helper.make_node("MatMul", ["x", "x"], ["y"], name="n")) == (
        "model: matmul (node 'n'): constraint 2: a has as many columns as b has rows; found "
        "operands (f32[2, 3], f32[2, 3])"
    )


# initializers


def test_initializer_whose_contents_do_not_fit() -> None:
    def with_tensor(tensor: onnx.TensorProto) -> onnx.ModelProto:
        return graph_model([helper.make_node("Identity", ["w"], ["y"])], [], ["y"], [tensor])

    short = numpy_helper.from_array(np.zeros(3, np.float32), "w")
    short.dims[0] = 1 << 40
    assert message(with_tensor(short)) == (
        "model: initializer 'w' has 12 bytes, but f32 of dims [1099511627776] takes 4398046511104"
    )
    typed = helper.make_tensor("w", TensorProto.INT32, [3], [1, 2, 3])
    typed.dims[0] = 4
    assert message(with_tensor(typed)) == (
        "model: initializer 'w' has 3 elements, but its dims [4] make 4"
    )
    negative = helper.make_tensor("w", TensorProto.INT32, [1], [1])
    negative.dims[0] = -1
    assert message(with_tensor(negative)) == (
        "model: initializer 'w' has dims [-1]: a dim is negative"
    )


def _external(location: str, **entries: str) -> onnx.ModelProto:
    tensor = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL
    )
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return graph_model([helper.make_node("Identity", ["w"], ["y"])], [], ["y"], [tensor])


def test_external_data(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 4 + np.array([3, 4], "<f4").tobytes())
    path = tmp_path / "m.onnx"

    def save(model: onnx.ModelProto) -> Path:
        path.write_bytes(model.SerializeToString())
        return path

    function = import_onnx(save(_external("w.bin", offset="4", length="8"))).main
    assert_same(our_run(function, {}), [np.array([3, 4], np.float32)])
    assert message(save(_external("w.bin", offset="8"))) == (
        f"{path}: initializer 'w' is at bytes 8 to 16 of 'w.bin', which has 12"
    )
    assert message(save(_external("w.bin", length="4"))) == (
        f"{path}: initializer 'w' has 4 bytes in 'w.bin', but its dims [2] take 8"
    )
    assert message(save(_external("other.bin"))) == (
        f"{path}: initializer 'w' has its data in 'other.bin', which can't be read: "
        "No such file or directory"
    )
    for outside in ("../w.bin", "/etc/passwd"):
        assert message(save(_external(outside))) == (
            f"{path}: initializer 'w' has its data in {outside!r}, outside the model's folder"
        )
    assert message(_external("w.bin")) == (
        "model: initializer 'w' has its data in 'w.bin': give the model as a path, so that the "
        "file can be found beside it"
    )


def test_external_data_behind_a_link_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\0" * 8)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "w.bin").symlink_to(tmp_path / "secret")
    (folder / "m.onnx").write_bytes(_external("w.bin").SerializeToString())
    assert message(folder / "m.onnx").endswith("outside the model's folder")


# what is not supported


def test_everything_unsupported_is_listed_at_once() -> None:
    make = helper.make_node
    then = helper.make_graph([make("Identity", ["x"], ["t"])], "then", [], [tensor_info("t", [2])])
    other_type = make("Cast", ["x"], ["t"], to=TensorProto.INT32)
    otherwise = helper.make_graph([other_type], "else", [], [tensor_info("t", [2])])
    nodes = [
        make("Multinomial", ["x"], ["a"], name="first"),
        make("Relu", ["x"], ["b"], name="fine"),
        make("MaxRoiPool", ["b"], ["c"], name="behind nothing"),
        make("Cast", ["a"], ["e"], name="fine, but behind", to=TensorProto.FLOAT),
        make("Multinomial", ["e"], ["f"], name="behind"),
        make("If", ["cond"], ["g"], then_branch=then, else_branch=otherwise),
        make("Custom", ["b"], ["h"], domain="com.me", name="custom"),
        make(
            "LSTM",
            ["s", "w", "r"],
            ["i"],
            name="variety",
            hidden_size=4,
            activations=["Swish", "Tanh", "Tanh"],
        ),
    ]
    infos = [
        tensor_info("x", [2]),
        tensor_info("cond", [], TensorProto.BOOL),
        tensor_info("s", [3, 2, 5]),
        tensor_info("w", [1, 16, 5]),
        tensor_info("r", [1, 16, 4]),
        tensor_info("z", [2], TensorProto.COMPLEX64),
    ]
    nodes.append(make("Identity", ["z"], ["j"]))
    model = graph_model(nodes, infos, list("cfghij"))
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(model)
    assert (
        str(caught.value)
        == """\
model: not supported in this model (7):
  input 'z': element type complex64 is not supported
  Multinomial (node 'first'): there is no importer for this op
  MaxRoiPool (node 'behind nothing'): there is no importer for this op
  Multinomial (node 'behind'): there is no importer for this op
  If (node 'If:g'): its condition is known only when the model runs, and its branches' results \
differ in type: f32[2] and i32[2]; give the inputs that it depends on a value (input_values, \
--input-value), or let both branches give results of one element type and rank
  com.me.Custom (node 'custom'): domain 'com.me' is not known
  LSTM (node 'variety'): activation swish is not supported"""
    )


def test_op_that_is_known_at_later_opsets_only() -> None:
    model = graph_model(
        [helper.make_node("Add", ["x", "x"], ["y"], name="n")],
        [tensor_info("x", [2])],
        ["y"],
        opset=6,
    )
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(model)
    assert caught.value.items == ("Add (node 'n'): there is no importer for this op at opset 6",)


def test_long_chains() -> None:
    count = 3000
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    one = numpy_helper.from_array(np.array([1], np.int64), "one")
    for n in range(count):
        nodes.append(helper.make_node("Add", [f"s{n}", "one"], [f"s{n + 1}"]))
    nodes.append(helper.make_node("ConstantOfShape", [f"s{count}"], ["y"]))
    function = import_onnx(graph_model(nodes, [tensor_info("x", ["N"])], ["y"], [one])).main
    assert str(function.results[0].type) == f"f32[N + {count}]"
