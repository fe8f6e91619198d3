"""Models that are wrong or malicious, a function each, and what must be said of each.

A function writes the model (and what lies beside it) into a folder of its own and returns the
model's path; its entry in `KINDS` has the pattern that the one error's whole text must match.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_models import graph_model, tensor_info

Writer = Callable[[Path], Path]
KINDS: dict[str, tuple[Writer, str]] = {}

make = helper.make_node


def kind(message: str) -> Callable[[Writer], Writer]:
    """Registers a kind by its function's name; `message` is a pattern for all of the error."""

    def register(write: Writer) -> Writer:
        KINDS[write.__name__] = (write, message)
        return write

    return register


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def simple(
    folder: Path,
    *nodes: onnx.NodeProto,
    opset: int = 17,
    initializers: list[onnx.TensorProto] | None = None,
    shape: list[int | str | None] | None = None,
) -> Path:
    """Nodes from "x" to "y"."""
    infos = [tensor_info("x", shape if shape is not None else [2, 3])]
    return saved(graph_model(list(nodes), infos, ["y"], initializers or [], opset), folder)


def ints(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def with_tensor(folder: Path, tensor: onnx.TensorProto) -> Path:
    return saved(graph_model([make("Identity", ["w"], ["y"])], [], ["y"], [tensor]), folder)


def external(folder: Path, location: str, elements: int = 2, **entries: str) -> Path:
    tensor = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[elements], data_location=TensorProto.EXTERNAL
    )
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return with_tensor(folder, tensor)


# the file


@kind("is a Git LFS pointer, which cannot be compiled: fetch the file: git lfs pull")
def text_file(folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    return path


@kind("is not an ONNX model: the protobuf is broken")
def truncated_file(folder: Path) -> Path:
    path = simple(folder, make("Relu", ["x"], ["y"]))
    path.write_bytes(path.read_bytes()[:-4])
    return path


@kind("is not an ONNX model: the protobuf is broken")
def field_longer_than_the_file(folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(b"\x08\x08\x3a\xff\xff\xff\xff\x07" + bytes(2000))  # a graph of 2 GB
    return path


@kind("is not an ONNX model: a name in it is not UTF-8")
def name_that_is_no_text(folder: Path) -> Path:
    path = simple(folder, make("Relu", ["x"], ["y"], name="abcdef"))
    path.write_bytes(path.read_bytes().replace(b"abcdef", b"ab\xff\xfeef"))
    return path


@kind("is not an ONNX model: the protobuf is broken")
def branches_nested_too_deep(folder: Path) -> Path:
    graph = helper.make_graph(
        [make("Relu", ["x"], ["y"])], "g", [], [onnx.ValueInfoProto(name="y")]
    )
    data = graph.SerializeToString()
    for _ in range(3000):  # graph { node { attribute { g { ... } } } }, by hand: helpers recurse
        for field in (b"\x32", b"\x2a", b"\x0a"):
            data = field + _varint(len(data)) + data
    path = folder / "model.onnx"
    path.write_bytes(b"\x08\x08\x42\x04\x0a\x00\x10\x11\x3a" + _varint(len(data)) + data)
    return path


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


# names and order


@kind("nodes depend on each other in a circle: 'one', 'two'")
def cycle(folder: Path) -> Path:
    return simple(
        folder, make("Add", ["x", "y"], ["a"], name="one"), make("Relu", ["a"], ["y"], name="two")
    )


@kind("nodes depend on each other in a circle: 'one'")
def node_that_reads_itself(folder: Path) -> Path:
    return simple(folder, make("Add", ["x", "y"], ["y"], name="one"))


@kind(r"Relu \(node 'r'\): operand 'nothing' is no input, initializer or other node's output")
def dangling_name(folder: Path) -> Path:
    return simple(folder, make("Relu", ["nothing"], ["y"], name="r"))


@kind(r"Neg \(node 'n'\): output 'y': another input, initializer or node has that name already")
def name_made_twice(folder: Path) -> Path:
    return simple(folder, make("Relu", ["x"], ["y"]), make("Neg", ["x"], ["y"], name="n"))


@kind("initializer 'w': another input, initializer or node has that name already")
def two_initializers_of_one_name(folder: Path) -> Path:
    return simple(
        folder,
        make("Add", ["x", "w"], ["y"]),
        initializers=[numpy_helper.from_array(np.zeros(3, np.float32), "w")] * 2,
    )


@kind("input 'x': another input, initializer or node has that name already")
def two_inputs_of_one_name(folder: Path) -> Path:
    infos = [tensor_info("x", [2]), tensor_info("x", [3])]
    return saved(graph_model([make("Relu", ["x"], ["y"])], infos, ["y"]), folder)


# tensors


@kind(r"initializer 'w' has dims \[4611686018427387904, 16\]: that is more than fits into memory")
def element_count_beyond_64_bits(folder: Path) -> Path:
    return with_tensor(
        folder, TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 62, 16], raw_data=b"")
    )


@kind("initializer 'w' has 2000 bytes, but f32 of dims .* takes 2147483648")
def two_gigabytes_claimed_in_two_kilobytes(folder: Path) -> Path:
    return with_tensor(
        folder,
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 29], raw_data=bytes(2000)),
    )


@kind(r"initializer 'w' has dims \[-2, -3\]: a dim is negative")
def negative_dims(folder: Path) -> Path:
    return with_tensor(
        folder,
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-2, -3], raw_data=bytes(24)),
    )


@kind("initializer 'w' has its contents twice: in raw_data and in float_data")
def raw_and_typed_data(folder: Path) -> Path:
    return with_tensor(
        folder,
        TensorProto(
            name="w", data_type=TensorProto.FLOAT, dims=[1], raw_data=bytes(4), float_data=[1.0]
        ),
    )


@kind("initializer 'w' has 3 elements, but its dims .* make 4")
def fewer_elements_than_dims_say(folder: Path) -> Path:
    return with_tensor(
        folder, TensorProto(name="w", data_type=TensorProto.INT32, dims=[4], int32_data=[1, 2, 3])
    )


@kind(
    r"not supported in this model \(1\):\n  initializer 'w': element type type number 999 is not "
    "supported"
)
def unknown_element_type(folder: Path) -> Path:
    return with_tensor(folder, TensorProto(name="w", data_type=999, dims=[1], raw_data=bytes(4)))


@kind(r"not supported in this model \(1\):\n  input 'x': element type undefined is not supported")
def input_without_element_type(folder: Path) -> Path:
    return saved(
        graph_model([make("Relu", ["x"], ["y"])], [tensor_info("x", [2], 0)], ["y"]), folder
    )


@kind("initializer 'w' has 100000 dims, expected at most 32")
def rank_beyond_all_reason(folder: Path) -> Path:
    return with_tensor(
        folder,
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1] * 100_000, raw_data=bytes(4)),
    )


# data beside the model


@kind(
    "initializer 'w' has its data in 'weights.bin', which can't be read: No such file or directory"
)
def missing_external_data(folder: Path) -> Path:
    return external(folder, "weights.bin")


@kind(r"initializer 'w' has its data in '\.\./secret', outside the model's folder")
def external_data_above_the_folder(folder: Path) -> Path:
    (folder.parent / "secret").write_bytes(bytes(8))
    return external(folder, "../secret")


@kind("initializer 'w' has its data in '/etc/passwd', outside the model's folder")
def external_data_at_an_absolute_path(folder: Path) -> Path:
    return external(folder, "/etc/passwd")


@kind("initializer 'w' has its data in 'link', outside the model's folder")
def external_data_behind_a_link(folder: Path) -> Path:
    (folder / "link").symlink_to("/etc/passwd")
    return external(folder, "link")


@kind("initializer 'w' has its data in 'pipe', which can't be read: is a pipe, not a file")
def external_data_in_a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return external(folder, "pipe", elements=0)


@kind("initializer 'w' is at bytes 0 to 2147483648 of 'weights.bin', which has 2000")
def external_data_shorter_than_claimed(folder: Path) -> Path:
    (folder / "weights.bin").write_bytes(bytes(2000))
    return external(folder, "weights.bin", elements=1 << 29)


@kind("initializer 'w' is at bytes -8 to 0 of 'weights.bin', which has 8")
def external_data_before_the_file(folder: Path) -> Path:
    (folder / "weights.bin").write_bytes(bytes(8))
    return external(folder, "weights.bin", offset="-8")


@kind(r"initializer 'w' has its data in 'a\\x00b', which is no name of a file")
def external_data_with_a_nul_in_its_name(folder: Path) -> Path:
    return external(folder, "a\0b")


# sizes


@kind("input 'x' is .*: that is more than fits into memory")
def input_of_absurd_dims(folder: Path) -> Path:
    return simple(folder, make("Relu", ["x"], ["y"]), shape=[1 << 40, 1 << 40])


@kind(r"\S+ \(node 'c'\): result 0 would be .*: that is more than fits into memory")
def constant_of_absurd_shape(folder: Path) -> Path:
    return simple(
        folder,
        make("ConstantOfShape", ["s"], ["c"], name="c"),
        make("Add", ["x", "c"], ["y"]),
        initializers=[ints("s", 1 << 40, 1 << 40, 2, 3)],
    )


@kind(r"\S+ \(node '.*'\): result 0 would be .*: that is more than fits into memory")
def expand_to_absurd_shape(folder: Path) -> Path:
    return simple(
        folder, make("Expand", ["x", "s"], ["y"]), initializers=[ints("s", 1 << 40, 1 << 40, 2, 3)]
    )


@kind(r"\S+ \(node '.*'\): result 0 would be .*: that is more than fits into memory")
def concat_of_itself_sixty_times(folder: Path) -> Path:
    names = ["w", *(f"t{n}" for n in range(60))]
    nodes = [make("Concat", [a, a], [b], axis=0) for a, b in itertools.pairwise(names)]
    return simple(
        folder,
        *nodes,
        make("ReduceMax", [names[-1]], ["m"], keepdims=0),
        make("Add", ["x", "m"], ["y"]),
        initializers=[numpy_helper.from_array(np.ones(1, np.float32), "w")],
    )


@kind(r"\S+ \(node '.*'\): result 0 would be .*: that is more than fits into memory")
def range_of_a_trillion(folder: Path) -> Path:
    return simple(
        folder,
        make("Range", ["a", "b", "c"], ["r"]),
        make("Cast", ["r"], ["f"], to=TensorProto.FLOAT),
        make("ReduceMax", ["f"], ["m"], keepdims=0),
        make("Add", ["x", "m"], ["y"]),
        initializers=[
            numpy_helper.from_array(np.array(v, np.int64), n)
            for n, v in (("a", 0), ("b", 10**15), ("c", 1))
        ],
    )


@kind(
    r"not supported in this model \(1\):\n"
    r"  Reshape \(node 'r'\): operand 1 \(shape\) is not known at compile time"
)
def reshape_to_a_hundred_thousand_dims(folder: Path) -> Path:
    return simple(
        folder,
        make("Reshape", ["x", "s"], ["y"], name="r"),
        initializers=[ints("s", *[1] * 100_000, 6)],
    )


@kind(r"(Transpose|transpose) \(node 't'\): .*")
def transpose_by_a_million_axes(folder: Path) -> Path:
    return simple(folder, make("Transpose", ["x"], ["y"], name="t", perm=[0] * 1_000_000))


# attributes


def _conv(folder: Path, **attrs: object) -> Path:
    w = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    return simple(
        folder,
        make("Conv", ["x", "w"], ["y"], name="c", **attrs),
        initializers=[w],
        shape=[1, 3, 8, 8],
    )


@kind(r"(Conv|conv) \(node 'c'\): .*")
def convolution_of_no_groups(folder: Path) -> Path:
    return _conv(folder, group=0)


@kind(r"(Conv|conv) \(node 'c'\): .*")
def convolution_of_stride_zero(folder: Path) -> Path:
    return _conv(folder, strides=[0, 0])


@kind(r"(Conv|conv) \(node 'c'\): .*")
def convolution_of_negative_dilation(folder: Path) -> Path:
    return _conv(folder, dilations=[-1, -1])


@kind(r"(Conv|conv) \(node 'c'\): .*")
def convolution_that_pads_away_its_input(folder: Path) -> Path:
    return _conv(folder, pads=[-9, -9, -9, -9])


@kind(r"(MaxPool|max_pool) \(node 'p'\): .*")
def pooling_of_an_empty_window(folder: Path) -> Path:
    return simple(
        folder, make("MaxPool", ["x"], ["y"], name="p", kernel_shape=[0, 0]), shape=[1, 3, 8, 8]
    )


@kind(r"(Pad|pad) \(node 'p'\): .*")
def pads_below_the_extent(folder: Path) -> Path:
    return simple(
        folder, make("Pad", ["x", "p"], ["y"], name="p"), initializers=[ints("p", -5, -5, -5, -5)]
    )


@kind(r"(Split|slice|Slice) \(node 's'\): .*")
def split_into_two_billion(folder: Path) -> Path:
    return simple(
        folder, make("Split", ["x"], ["y"], name="s", axis=0, num_outputs=(1 << 31) - 1), opset=18
    )


@kind(r"(Slice|slice) \(node 's'\): .*step.*")
def slice_of_step_zero(folder: Path) -> Path:
    return simple(
        folder,
        make("Slice", ["x", "a", "b", "c", "d"], ["y"], name="s"),
        initializers=[ints("a", 0), ints("b", 2), ints("c", 0), ints("d", 0)],
    )


@kind(r"(Range|range) \(node 'r'\): .*")
def range_of_step_zero(folder: Path) -> Path:
    return simple(
        folder,
        make("Range", ["a", "b", "c"], ["r"], name="r"),
        make("Cast", ["r"], ["f"], to=TensorProto.FLOAT),
        make("ReduceMax", ["f"], ["m"], keepdims=0),
        make("Add", ["x", "m"], ["y"]),
        initializers=[
            numpy_helper.from_array(np.array(v, np.int64), n)
            for n, v in (("a", 0), ("b", 5), ("c", 0))
        ],
    )


@kind(r"Reshape \(node 'r'\): .*")
def reshape_with_two_unknowns(folder: Path) -> Path:
    return simple(
        folder, make("Reshape", ["x", "s"], ["y"], name="r"), initializers=[ints("s", -1, -1)]
    )


# functions of the model


def _functions(folder: Path, *functions: onnx.FunctionProto, call: str) -> Path:
    model = graph_model([make(call, ["x"], ["y"], domain="own")], [tensor_info("x", [2])], ["y"])
    model.functions.extend(functions)
    model.opset_import.append(helper.make_opsetid("own", 1))
    return saved(model, folder)


def _function(name: str, *calls: str) -> onnx.FunctionProto:
    names = ["a", *(f"t{n}" for n in range(len(calls) - 1)), "b"]
    nodes = [
        make(call, [i], [o], domain="own" if call != "Relu" else "")
        for call, i, o in zip(calls, names, names[1:], strict=False)
    ]
    return helper.make_function(
        "own",
        name,
        ["a"],
        ["b"],
        nodes,
        [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)],
    )


@kind("the model's functions call each other in a circle: own.F")
def function_that_calls_itself(folder: Path) -> Path:
    return _functions(folder, _function("F", "F"), call="F")


@kind("the model's functions call each other in a circle: own.F, own.G")
def functions_that_call_each_other(folder: Path) -> Path:
    return _functions(folder, _function("F", "G"), _function("G", "F"), call="F")


@kind("the model's functions make more than 1000000 nodes")
def functions_that_grow_tenfold_each(folder: Path) -> Path:
    chain = [
        _function("F0", "Relu"),
        *(_function(f"F{n}", *[f"F{n - 1}"] * 10) for n in range(1, 13)),
    ]
    return _functions(folder, *chain, call="F12")


@kind("the model has two functions own.F")
def two_functions_of_one_name(folder: Path) -> Path:
    return _functions(folder, _function("F", "Relu"), _function("F", "Relu", "Relu"), call="F")


# expressions of extents


def _extents(folder: Path, steps: list[onnx.NodeProto], last: str, *numbers: int) -> Path:
    """Shape's result "s0" of x, of a symbolic dim, goes through steps to be an extent."""
    nodes = [make("Shape", ["x"], ["s0"]), *steps, make("Expand", ["one", last], ["y"], name="e")]
    named = [ints(f"k{number}", number) for number in numbers]
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    return simple(folder, *nodes, initializers=[one, *named], shape=["n"])


_EXTENT = r"Expand \(node 'e'\): an extent would be an expression"
_ADVICE = r": give the extents of the model's inputs as numbers \(--input-shape, input_shapes\)"


@kind(rf"{_EXTENT} of more than 64 factors{_ADVICE}")
def extents_that_are_squared(folder: Path) -> Path:
    steps = [make("Mul", [f"s{n}"] * 2, [f"s{n + 1}"], name=f"m{n}") for n in range(40)]
    return _extents(folder, steps, "s40")


@kind(rf"{_EXTENT} with numbers of more than 4096 bits" + _ADVICE)
def extents_of_long_numbers(folder: Path) -> Path:
    big = (1 << 62) - 57
    steps = [make("Mul", [f"s{n}", f"k{big}"], [f"s{n + 1}"], name=f"m{n}") for n in range(400)]
    return _extents(folder, steps, "s400", big)


@kind(rf"{_EXTENT} of more than 96 divisions in one another" + _ADVICE)
def extents_that_are_divided_in_a_chain(folder: Path) -> Path:
    steps = []
    for n in range(2000):
        steps.append(make("Div", [f"s{n}", "k2"], [f"q{n}"], name=f"d{n}"))
        steps.append(make("Add", [f"q{n}", "s0"], [f"s{n + 1}"], name=f"a{n}"))
    return _extents(folder, steps, "s2000", 2)


@kind(rf"{_EXTENT} of more than 131072 characters" + _ADVICE)
def extents_that_double_their_text(folder: Path) -> Path:
    steps = []
    for n in range(300):
        steps.append(make("Max", [f"s{n}", "k9"], [f"m{n}"], name=f"max{n}"))
        steps.append(make("Mul", [f"m{n}", "k3"], [f"t{n}"], name=f"mul{n}"))
        steps.append(make("Div", [f"t{n}", "k2"], [f"s{n + 1}"], name=f"div{n}"))
    return _extents(folder, steps, "s300", 2, 3, 9)


@kind("initializer 'w' has an external offset or length that is no number")
def external_length_with_underscores(folder: Path) -> Path:
    (folder / "w.bin").write_bytes(bytes(8))
    return external(folder, "w.bin", length="0_8")


# many at once


@kind(
    r"not supported in this model \(3\):\n"
    r"  input 'z': element type complex64 is not supported\n"
    r"  ImageDecoder \(node 'a'\): .*\n"
    r"  RegexFullMatch \(node 'b'\): .*"
)
def all_that_is_unsupported_at_once(folder: Path) -> Path:
    infos = [
        tensor_info("z", [2], TensorProto.COMPLEX64),
        tensor_info("x", [5], TensorProto.UINT8),
        tensor_info("k", [5], TensorProto.STRING),
    ]
    nodes = [
        make("ImageDecoder", ["x"], ["y"], name="a"),
        make("RegexFullMatch", ["k"], ["v"], name="b", pattern="a+"),
        make("Identity", ["z"], ["w"], name="c"),
    ]
    return saved(graph_model(nodes, infos, ["y", "v", "w"], opset=20), folder)
