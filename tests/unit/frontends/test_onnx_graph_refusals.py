"""Loops, branches, sequences and functions of ONNX models that are wrong, in ONNX's text form: what
is said of each, exactly. And splits along inner axes, which are right."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import parser

from aot.errors import CompileError, UnsupportedError
from aot.frontends.onnx import import_onnx
from tests.support.onnx_models import assert_same, ort_run, our_run

HEAD = '<ir_version: 8, opset_import: ["" : 17, "own" : 1]>\n'
INPUTS = "float[5, 4] x, float[N, 4] v, int64 n, bool c"


def model(
    body: str, inputs: str = INPUTS, outputs: str = "y", functions: str = ""
) -> onnx.ModelProto:
    """A graph in the text form; its nodes are called by what they give."""
    made = parser.parse_model(f"{HEAD}g ({inputs}) => (y) {{\n{body}\n}}\n{functions}")
    for node in made.graph.node:
        node.name = node.output[0]
    return made


def refused(made: onnx.ModelProto) -> list[str]:
    with pytest.raises((CompileError, UnsupportedError)) as caught:
        import_onnx(made)
    if isinstance(caught.value, UnsupportedError):
        return list(caught.value.items)
    return [str(caught.value).removeprefix("model: ")]


SEQUENCES = {
    "at of none": (
        "s = SequenceEmpty () \n y = SequenceAt (s, n)",
        "SequenceAt (node 'y'): an empty sequence has no tensor",
    ),
    "joined of none": (
        "s = SequenceEmpty () \n y = ConcatFromSequence <axis = 0> (s)",
        "ConcatFromSequence (node 'y'): an empty sequence has no tensor to join",
    ),
    "parts of nothing": (
        "z = Constant <value_int = 0> () \n s = SplitToSequence (x, z) \ny = SequenceAt (s, n)",
        "SplitToSequence (node 's'): split is 0, expected a positive number",
    ),
    "maps of unlike lengths": (
        "s = SequenceConstruct (x, x) \n t = SequenceConstruct (x) \n"
        "m = SequenceMap <body = b (float[5, 4] p, float[5, 4] q) => (float[5, 4] r)"
        " { r = Add (p, q) }> (s, t) \n y = ConcatFromSequence <axis = 0> (m)",
        "SequenceMap (node 'm'): operand 1 has 1 tensors, expected 2",
    ),
    "a map's body": (
        "s = SequenceConstruct (x, x) \n"
        "m = SequenceMap <body = b (float[5, 4] p, float[5, 4] q) => (float[5, 4] r)"
        " { r = Add (p, q) }> (s) \n y = ConcatFromSequence <axis = 0> (m)",
        "SequenceMap (node 'm'): its body has 2 inputs, expected 1",
    ),
    "a map of what is not supported": (
        "s = SequenceConstruct (x, x) \n"
        "m = SequenceMap <body = b (float[5, 4] p) => (float[5, 4] r)"
        " { r = MaxRoiPool (p) }> (s) \n y = ConcatFromSequence <axis = 0> (m)",
        "MaxRoiPool (node 'MaxRoiPool:r'): there is no importer for this op",
    ),
}
CONTROL = {
    "a condition of two": (
        "d = Concat <axis = 0> (k, k) \n y = If (d) <then_branch = t () => (float[5, 4] a)"
        " { a = Neg (x) }, else_branch = e () => (float[5, 4] b) { b = Abs (x) }>",
        "If (node 'y'): the condition has 2 elements, expected 1",
    ),
    "a branch with inputs": (
        "y = If (c) <then_branch = t (float[5, 4] p) => (float[5, 4] a) { a = Neg (p) },"
        " else_branch = e () => (float[5, 4] b) { b = Abs (x) }>",
        "If (node 'y'): its branch has inputs, which a branch never has",
    ),
    "lists that are empty": (
        "s = If (c) <then_branch = t () => (seq(float[5, 4]) a) { a = SequenceEmpty () },"
        " else_branch = e () => (seq(float[5, 4]) b) { b = SequenceEmpty () }>\n"
        "y = ConcatFromSequence <axis = 0> (s)",
        "If (node 's'): both of its branches give an empty sequence",
    ),
    "a loop's inputs": (
        "y = Loop (n, , x) <body = b (int64 i, bool g) => (bool h, float[5, 4] a)"
        " { h = Identity (g) a = Neg (x) }>",
        "Loop (node 'y'): its body has 2 inputs, expected 3: the run, the condition, and what is "
        "carried",
    ),
    "a loop's outputs": (
        "y = Loop (n, , x) <body = b (int64 i, bool g, float[5, 4] p) => (bool h)"
        " { h = Identity (g) }>",
        "Loop (node 'y'): its body gives 1 outputs, expected the condition and 1 more",
    ),
    "a trip count of two": (
        "m = Constant <value_ints = [2, 3]> ()\n"
        "y = Loop (m, , x) <body = b (int64 i, bool g, float[5, 4] p) => (bool h, float[5, 4] a)"
        " { h = Identity (g) a = Neg (p) }>",
        "Loop (node 'y'): operand 0 (trip count) has 2 elements, expected 1",
    ),
    "a scan's body": (
        "y = Scan (x) <num_scan_inputs = 1, body = b (float[4] p, float[4] q) => (float[4] r)"
        " { r = Add (p, q) }>",
        "Scan (node 'y'): its body has 2 inputs and 1 outputs; the node has 1 operands, 0 of them "
        "carried, and 1 outputs",
    ),
    "a scan of unlike lengths": (
        "w = Concat <axis = 0> (x, x)\n"
        "y = Scan (x, w) <num_scan_inputs = 2, body = b (float[4] p, float[4] q) => (float[4] r)"
        " { r = Add (p, q) }>",
        "Scan (node 'y'): what it scans has 5 and 10 rows, expected as many",
    ),
    "a scan of nothing": (
        "z = Constant <value_ints = [0]> ()\n w = Slice (x, z, z, z)\n"
        "y = Scan (w) <num_scan_inputs = 1, body = b (float[4] p) => (float[4] r)"
        " { r = Neg (p) }>",
        "Scan (node 'y'): its scanned inputs have no rows",
    ),
}
MODELS = {**SEQUENCES, **CONTROL}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_refused(name: str) -> None:
    body, message = MODELS[name]
    assert refused(model(body, INPUTS + ", bool[1] k")) == [message]


FUNCTION = '<domain: "own", opset_import: ["" : 17, "own" : 1]>\n'


def function(name: str, body: str) -> str:
    return f"{FUNCTION}{name} (a) => (b) {{ b = {body} }}\n"


def chain(n: int) -> str:
    """Ten calls of function n - 1, one after the other."""
    names = ["a", *(f"c{k}" for k in range(9)), "b"]
    return " ".join(f"{to} = own.f{n - 1} ({of})" for of, to in pairwise(names))


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (
            function("f", "own.f (a)"),
            "the model's functions call each other in a circle: own.f",
        ),
        (
            "".join(function(f"f{n}", f"own.f{(n + 1) % 7} (a)") for n in range(7))
            + function("f", "own.f0 (a)"),
            "the model's functions call each other in a circle: own.f0, own.f1, own.f2, own.f3, "
            "own.f4, ...",
        ),
        (
            function("f", "Neg (a)") + function("f", "Abs (a)"),
            "the model has two functions own.f",
        ),
        (
            function("f0", "Neg (a)")
            + "".join(f"{FUNCTION}f{n} (a) => (b) {{ {chain(n)} }}\n" for n in range(1, 8))
            + function("f", "own.f7 (a)"),
            "the model's functions make more than 1000000 nodes",
        ),
    ],
)
def test_functions_that_cannot_be_inlined(functions: str, message: str) -> None:
    assert refused(model("y = own.f (x)", functions=functions)) == [message]


def test_a_function_that_a_branch_calls_is_inlined() -> None:
    body = (
        "y = If (c) <then_branch = t () => (float[5, 4] a) { a = own.f (x) },"
        " else_branch = e () => (float[5, 4] b) { b = Abs (x) }>"
    )
    made = import_onnx(model(body, functions=function("f", "Neg (a)"))).main
    x = np.arange(20, dtype=np.float32).reshape(5, 4) - 7
    for chosen, wanted in ((True, -x), (False, np.abs(x))):
        feeds = {"x": x, "v": x, "n": np.array(0), "c": np.array(chosen)}
        assert our_run(made, feeds)[0].tolist() == wanted.tolist()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("split", ["", "one", "two", "sizes"])
def test_parts_along_any_axis(axis: int, split: str) -> None:
    """Of an extent that is not known when the model is imported."""
    dims = ["2", "3", "4"]
    dims[axis] = "N"
    inputs = f"float[{', '.join(dims)}] x, int64[2] sizes, int64 two, int64 at"
    one = "one = Constant <value_int = 1> ()\n" if split == "one" else ""
    keeps = ", keepdims = 0" if not split else ""
    operands = f"x, {split}" if split else "x"
    body = f"{one}s = SplitToSequence <axis = {axis}{keeps}> ({operands})\ny = SequenceAt (s, at)"
    made = model(body, inputs)
    main = import_onnx(made).main
    x = np.random.default_rng(axis).standard_normal([5 if n == axis else 2 + n for n in range(3)])
    feeds = {"x": x.astype(np.float32), "sizes": np.array([1, 4]), "two": np.array(2)}
    for at in (0, 1, -1):
        given = {**feeds, "at": np.array(at)}
        wanted = ort_run(made, {i.name: given[i.name] for i in made.graph.input})
        assert_same(our_run(main, given), wanted)


def test_a_sequence_of_tensors_of_unlike_ranks_is_refused() -> None:
    body = "z = ReduceSum <keepdims = 0> (x)\ns = SequenceConstruct (x, z)\ny = SequenceAt (s, n)"
    assert refused(model(body)) == [
        "SequenceAt (node 'y'): its sequence has tensors f32[5, 4] and f32[], and data decide its "
        "length or a position in it; make that known at compile time, or give all tensors one rank"
    ]


def test_a_carried_input_without_a_name() -> None:
    """What a body carries is known by its name."""
    made = model(
        "y = Loop <body = b (int64 i, bool p, float[5, 4] q) => (bool r, float[5, 4] s)"
        " { r = Identity (p) \n s = Relu (q) }> (n, c, x)"
    )
    made.graph.node[0].attribute[0].g.input[2].name = ""
    assert refused(made) == ["Loop (node 'y'): an input of its body, which is carried, has no name"]
