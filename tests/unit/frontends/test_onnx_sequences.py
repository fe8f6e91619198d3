"""ONNX's sequences and optionals whose lengths and positions shapes decide, as ONNX Runtime has
them. Those of which data decide are tested in test_onnx_stacks.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import aot
from aot.errors import CompileError, UnsupportedError
from aot.frontends.onnx import import_onnx
from tests.support.control_models import I64, Body, always, loop_inputs
from tests.support.generated_models import Graph
from tests.support.onnx_models import assert_same, ort_run, our_run, tensor_info

X = tensor_info("x", [5, 4])
FEEDS = {"x": np.arange(20, dtype=np.float32).reshape(5, 4)}


def built(make: Callable[[Graph], str], *inputs: onnx.ValueInfoProto) -> onnx.ModelProto:
    """A model of what `make` adds to a graph whose input is x: f32[5, 4]."""
    g = Graph(np.random.RandomState(50))
    g.named(make(g), "y")
    return g.model([X, *inputs], ["y"])


def three(g: Graph) -> str:
    """A sequence of x, -x and |x|."""
    found: str = g.op("SequenceConstruct", "x", g.op("Neg", "x"), g.op("Abs", "x"))
    return found


def parts(g: Graph, *split: str, axis: int = 0, **attrs: int) -> str:
    found: str = g.op("SplitToSequence", "x", *split, axis=axis, **attrs)
    return found


def at(g: Graph, values: str, position: int) -> str:
    found: str = g.op("SequenceAt", values, g.constant(position))
    return found


def joined(g: Graph, values: str, axis: int = 0, **attrs: int) -> str:
    found: str = g.op("ConcatFromSequence", values, axis=axis, **attrs)
    return found


def mapped(g: Graph) -> str:
    """Each part of x, plus all of another tensor."""
    b = Body("b_")
    body = b.graph(
        [tensor_info("part", [1, 4]), tensor_info("whole", [5, 4])], [b.op("Add", "part", "whole")]
    )
    body.output[0].CopyFrom(tensor_info(body.output[0].name, [5, 4]))
    return joined(g, g.op("SequenceMap", parts(g), g.op("Neg", "x"), body=body))


def appended_in_a_loop(g: Graph) -> str:
    """A list that each run of a loop makes longer by one, as exporters write an append."""
    b = Body("b_")
    row = b.op("Mul", "x", b.op("Cast", "i", to=TensorProto.FLOAT))
    body = b.graph(
        loop_inputs(onnx.ValueInfoProto(name="rows")),
        [always(b), b.op("SequenceInsert", "rows", row)],
    )
    rows = g.op("Loop", g.constant(3), "", g.op("SequenceEmpty"), body=body)
    return joined(g, rows, new_axis=1)


def in_a_branch(g: Graph) -> str:
    """A list that the branch makes which a shape chooses."""
    then, other = Body("t_"), Body("e_")
    branches = {
        "then_branch": then.graph([], [then.op("SequenceConstruct", "x", "x")]),
        "else_branch": other.graph([], [other.op("SequenceConstruct", "x")]),
    }
    length = g.op("Gather", g.op("Shape", "x"), g.constant(0), axis=0)
    made = g.op("If", g.op("Greater", length, g.constant(3)), **branches)
    return joined(g, made, axis=1)


MODELS: dict[str, Callable[[Graph], str]] = {
    "the first": lambda g: at(g, three(g), 0),
    "the last, from the end": lambda g: at(g, three(g), -1),
    "how many": lambda g: g.op("SequenceLength", three(g)),
    "inserted at the end": lambda g: joined(g, g.op("SequenceInsert", three(g), "x")),
    "inserted in front": lambda g: joined(
        g, g.op("SequenceInsert", three(g), g.op("Exp", "x"), g.constant(0))
    ),
    "inserted from the end": lambda g: joined(
        g, g.op("SequenceInsert", three(g), g.op("Exp", "x"), g.constant(-1))
    ),
    "without the last": lambda g: joined(g, g.op("SequenceErase", three(g))),
    "without the second": lambda g: joined(g, g.op("SequenceErase", three(g), g.constant(1))),
    "of an empty one": lambda g: joined(g, g.op("SequenceInsert", g.op("SequenceEmpty"), "x")),
    "rows": lambda g: at(g, parts(g), 3),
    "rows without their dim": lambda g: at(g, parts(g, keepdims=0), 3),
    "columns, joined as rows": lambda g: joined(g, parts(g, axis=1), axis=0),
    "parts of two, the last smaller": lambda g: at(g, parts(g, g.constant(2)), 2),
    "parts of given sizes": lambda g: at(g, parts(g, g.constant([1, 3, 1])), 1),
    "along a new axis": lambda g: joined(g, three(g), axis=-1, new_axis=1),
    "a map": mapped,
    "appended in a loop": appended_in_a_loop,
    "chosen by a shape": in_a_branch,
    "passed on": lambda g: joined(g, g.op("Identity", three(g))),
    "an optional": lambda g: joined(g, g.op("OptionalGetElement", g.op("Optional", three(g)))),
    "an optional of a tensor": lambda g: g.op("OptionalGetElement", g.op("Optional", "x")),
    "whether it is there": lambda g: g.op("OptionalHasElement", g.op("Optional", three(g))),
}


@pytest.mark.parametrize("name", MODELS)
def test_sequences_of_known_lengths(name: str) -> None:
    model = built(MODELS[name])
    function = import_onnx(model).main
    expected = ort_run(model, FEEDS)
    assert_same(our_run(function, FEEDS), expected)
    with aot.load(aot.compile(model)) as program:
        assert_same([program(FEEDS)["y"]], expected)


def test_an_optional_without_an_element() -> None:
    none = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [5, 4]))
    model = built(lambda g: g.op("OptionalHasElement", g.op("Optional", type=none)))
    assert our_run(import_onnx(model).main, FEEDS)[0].tolist() is False


REFUSED: dict[str, tuple[Callable[[Graph], str], str]] = {
    "an output": (
        three,
        "output 'y' is a sequence, and a program gives tensors; give each tensor of it "
        "(SequenceAt), or all joined (ConcatFromSequence)",
    ),
    "a tensor's place": (
        lambda g: g.op("Neg", three(g)),
        "Neg (node 'neg_3_0'): operand 0 is a sequence of tensors, expected a tensor",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(built(make, tensor_info("n", [], I64)))
    assert caught.value.items == (message,)


WRONG: dict[str, tuple[Callable[[Graph], str], str]] = {
    "outside": (
        lambda g: at(g, three(g), 3),
        "SequenceAt (node 'sequenceat_3_0'): position 3 is outside of a sequence of 3 tensors",
    ),
    "a tensor": (
        lambda g: g.op("SequenceLength", "x"),
        "SequenceLength (node 'sequencelength_0_0'): operand 0 (input_sequence) is f32, expected "
        "a sequence of tensors",
    ),
    "sizes": (
        lambda g: at(g, parts(g, g.constant([1, 3])), 0),
        "SplitToSequence (node 'splittosequence_0_0'): sizes [1, 3] do not add up to 5",
    ),
    "nothing to erase": (
        lambda g: joined(g, g.op("SequenceErase", g.op("SequenceEmpty"))),
        "SequenceErase (node 'sequenceerase_1_0'): an empty sequence has nothing to erase",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(CompileError) as caught:
        import_onnx(built(make))
    assert message in str(caught.value)
