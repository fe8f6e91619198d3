"""What is wrong with the graphs, branches, loops and variables of a TFLite file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from aot.errors import AotError, CompileError, UnsupportedError
from aot.frontends.tflite import import_tflite
from tests.support import litert
from tests.support.tflite_models import NUMBERS, Builder, File, table

F32 = np.float32
RESOURCE = NUMBERS["TensorType"]["RESOURCE"]


def refused(model: bytes) -> list[str]:
    """The error that a model gives: one line, or what it lists."""
    with pytest.raises((CompileError, UnsupportedError)) as caught:
        import_tflite(model)
    first, *rest = str(caught.value).splitlines()
    return [line.removeprefix("  ") for line in rest] or [first.removeprefix("model: ")]


def graph(file: File, *shapes: Sequence[int], adds: bool = True, count: int | None = None) -> None:
    """One more graph of a file: x + x of its first input, then the other inputs as they are."""
    b = Builder(file=file)
    inputs = [b.tensor(shape) for shape in shapes]
    outputs = list(inputs)
    if adds and inputs:
        outputs[0] = b.tensor(shapes[0])
        b.op("ADD", [inputs[0], inputs[0]], [outputs[0]], "AddOptions")
    b.graph(inputs, outputs[:count], f"graph {len(file.graphs)}")


def truth(
    file: File, shape: Sequence[int], result: Sequence[int] = (), dtype: Any = np.bool_
) -> None:
    """A condition: an input of a shape, and constant truths."""
    b = Builder(file=file)
    x, y = b.tensor(shape), b.tensor(result, dtype)
    b.op("CAST", [b.constant(np.zeros(result, np.int32))], [y], "CastOptions")
    b.graph([x], [y], "condition")


def branching(
    then: Callable[[File], None],
    otherwise: Callable[[File], None] = lambda file: graph(file, (2,)),
    known: bool | None = None,
    operands: int = 1,
    **numbers: int,
) -> bytes:
    """y = if c then the first graph of x, or else the second one."""
    file = File()
    b = Builder(file=file)
    x, y = b.tensor((2,), name="x"), b.tensor((2,), name="y")
    c = b.tensor((), np.bool_, name="c") if known is None else b.constant(np.array(known))
    how = {"then_subgraph_index": 1, "else_subgraph_index": 2, **numbers}
    b.op("IF", [c, *[x] * operands], [y], "IfOptions", **how)
    b.graph([x] if known is not None else [x, c], [y])
    then(file)
    otherwise(file)
    return file.model()


def mystery(file: File) -> None:
    """A graph with an operator that nobody knows."""
    b = Builder(file=file)
    x, y = b.tensor((2,)), b.tensor((2,), name="z")
    b.op("Mystery", [x], [y], custom=b"")
    b.graph([x], [y], "mystery")


def itself(file: File) -> None:
    """A graph that calls itself."""
    b = Builder(file=file)
    x, y = b.tensor((2,)), b.tensor((2,))
    how = {"name": "again", "decomposition_subgraph_index": 1}
    b.op("STABLEHLO_COMPOSITE", [x], [y], "StableHLOCompositeOptions", **how)
    b.graph([x], [y], "ring")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (branching(lambda f: graph(f, (2,)), then_subgraph_index=7), "there is no graph 7"),
        (branching(itself), "graph 'ring' is in itself"),
        (
            branching(lambda f: graph(f, (2,)), operands=2),
            "graph 'graph 1' has 1 inputs, but is given 2",
        ),
        (
            branching(lambda f: graph(f, (2,)), lambda f: graph(f, (2,), count=0)),
            "IF (operator 0, 'y'): its branches give tensors of different shapes",
        ),
        (
            branching(mystery),
            "custom operator Mystery (operator 0, 'z'): there is no importer for it",
        ),
    ],
)
def test_a_branch_is_refused(model: bytes, message: str) -> None:
    assert refused(model) == [message]


@pytest.mark.parametrize("known", [False, True])
def test_a_branch_that_the_file_decides_is_its_graph(known: bool) -> None:
    def other(file: File) -> None:
        graph(file, (2,), adds=False)

    model = branching(lambda f: graph(f, (2,)), other, known=known)
    litert.check(model, {"x": np.array([1, 2], F32)})


def looping(condition: Callable[[File], None], body: Callable[[File], None]) -> bytes:
    """y = x, as long as the condition holds, through the body."""
    file = File()
    b = Builder(file=file)
    x, y = b.tensor((2,), name="x"), b.tensor((2,), name="y")
    how = {"cond_subgraph_index": 1, "body_subgraph_index": 2}
    b.op("WHILE", [x], [y], "WhileOptions", **how)
    b.graph([x], [y])
    condition(file)
    body(file)
    return file.model()


def reshaping(file: File) -> None:
    """A graph that gives another shape than it takes."""
    b = Builder(file=file)
    x, y = b.tensor((2,)), b.tensor((1, 2))
    b.op("RESHAPE", [x, b.constant(np.array([1, 2], np.int32))], [y], "ReshapeOptions")
    b.graph([x], [y], "body")


@pytest.mark.parametrize(
    ("condition", "body", "message"),
    [
        (
            {"result": (2,)},
            lambda f: graph(f, (2,)),
            "its condition is bool[2], expected one truth",
        ),
        (
            {"dtype": np.int32},
            lambda f: graph(f, (2,)),
            "its condition is i32[], expected one truth",
        ),
        ({}, reshaping, "value 0 that it carries is f32[2] at first and f32[1, 2] later"),
        ({}, lambda f: graph(f, (2,), count=0), "its body gives 0 values, expected 1"),
    ],
)
def test_a_loop_is_refused(
    condition: dict[str, Any], body: Callable[[File], None], message: str
) -> None:
    model = looping(lambda f: truth(f, (2,), **condition), body)
    assert refused(model) == [f"WHILE (operator 0, 'y'): {message}"]


def test_a_condition_of_one_element() -> None:
    """Its truth has a dim."""
    model = looping(lambda f: truth(f, (2,), (1,)), lambda f: graph(f, (2,)))
    litert.check(model, {"x": np.array([1, 2], F32)})


class Held(Builder):
    """A graph with variables."""

    def handle(self, name: str = "total") -> int:
        """The handle of a variable."""
        found = self.tensor((), np.int32, name=name)
        self.tensors[found]["type"] = RESOURCE
        self.op("VAR_HANDLE", [], [found], "VarHandleOptions", shared_name=name)
        return found

    def read(self, handle: int, shape: Sequence[int] = (2,), **how: Any) -> int:
        """What a variable holds."""
        found = self.tensor(shape, **how)
        self.op("READ_VARIABLE", [handle], [found], "ReadVariableOptions")
        return found

    def assign(self, handle: int, value: int) -> None:
        """Gives a variable a value."""
        self.op("ASSIGN_VARIABLE", [handle, value], [], "AssignVariableOptions")


def _read_of_a_tensor(m: Held, x: int) -> int:
    return m.read(x)


def _without_a_shape(m: Held, x: int) -> int:
    return m.read(m.handle(), signature=(-1,))


def _of_another_shape(m: Held, x: int) -> int:
    handle = m.handle()
    before = m.read(handle, (3,))
    m.assign(handle, x)
    return before


def _as_an_output(m: Held, x: int) -> int:
    return m.handle()


def _in_a_branch(m: Held, x: int) -> int:
    c, y = m.constant(np.array([True, True])), m.tensor((2,))
    m.op("IF", [c, m.handle()], [y], "IfOptions", then_subgraph_index=0, else_subgraph_index=0)
    return y


def _missing(m: Held, x: int) -> int:
    y = m.tensor((2,))
    operands = [m.constant(np.array([True, True])), m.tensor((2,))]
    m.op("IF", operands, [y], "IfOptions", then_subgraph_index=0, else_subgraph_index=0)
    return y


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (_read_of_a_tensor, "READ_VARIABLE (operator 0, 't1'): its operand is no variable"),
        (_without_a_shape, "READ_VARIABLE (operator 1, 't2'): variable 'total' has no shape"),
        (
            _of_another_shape,
            "ASSIGN_VARIABLE (operator 2, 'ASSIGN_VARIABLE_2'): variable 'total' is f32[3] and is "
            "assigned f32[2]",
        ),
        (_as_an_output, "output 'total' is a variable, and no tensor"),
        (
            _in_a_branch,
            "IF (operator 1, 't2'): variables in branches and loops are not supported",
        ),
        (_missing, "IF (operator 0, 't1'): an operand is missing"),
    ],
)
def test_a_variable_is_refused(build: Callable[[Held, int], int], message: str) -> None:
    m = Held()
    x = m.tensor((2,), name="x")
    assert refused(m.model([x], [build(m, x)])) == [message]


def _once(computes: bool) -> bytes:
    """Variables that a graph sets before the first run: `set`, and `kept`, which it only reads."""
    file = File()
    m = Held(file=file)
    x, y = m.tensor((2,), name="x"), m.tensor((2,), name="y")
    kept = m.handle("kept")
    before = m.read(kept)
    m.op("CALL_ONCE", [], [], "CallOnceOptions", init_subgraph_index=1)
    m.op("ADD", [m.read(m.handle("set")), before], [y], "AddOptions")
    m.assign(kept, x)
    m.graph([x], [y])
    first = Held(file=file)
    value = first.constant(np.array([3, 4], F32))
    if computes:
        made = first.tensor((2,))
        first.op("NEG", [value], [made], "NegOptions")
        value = made
    first.assign(first.handle("set"), value)
    first.graph([], [], "first")
    return file.model()


def test_variables_that_are_set_once() -> None:
    x = np.array([1, 10], F32)
    found = litert.interpreted(_once(computes=False), {"x": x}, 2)
    assert found["y"].tolist() == [4, 14]
    assert refused(_once(computes=True)) == [
        "CALL_ONCE (operator 2, 'CALL_ONCE_2'): the first value of 'set' is computed"
    ]


def test_a_variable_that_is_only_assigned_is_a_state() -> None:
    m = Held()
    x, y = m.tensor((2,), name="x"), m.tensor((2,), name="y")
    m.assign(m.handle(), x)
    m.op("NEG", [x], [y], "NegOptions")
    module = import_tflite(m.model([x], [y]))
    assert list(module.states) == ["total"]


def test_sparse_weights_of_a_file() -> None:
    """The rows of a matrix, by the places of what they hold."""
    w = np.array([[0, 5, 0], [0, 0, 0], [7, 0, 8]], F32)
    levels = [
        table("DimensionMetadata", format=0, dense_size=3),
        table(
            "DimensionMetadata",
            format=1,
            array_segments_type=1,
            array_segments=table("Int32Vector", values=[0, 1, 1, 3]),
            array_indices_type=3,
            array_indices=table("Uint8Vector", values=[1, 0, 2]),
        ),
    ]
    b = Builder()
    x, dense, y = b.tensor((2, 3), name="x"), b.tensor((3, 3)), b.tensor((2, 3), name="y")
    sparsity = table("SparsityParameters", traversal_order=[0, 1], dim_metadata=levels)
    stored = b.constant(np.array([5, 7, 8], F32), sparsity=sparsity)
    b.tensors[stored]["shape"] = [3, 3]
    b.op("DENSIFY", [stored], [dense], "DensifyOptions")
    b.op("FULLY_CONNECTED", [x, dense, -1], [y], "FullyConnectedOptions")
    given = np.arange(6, dtype=F32).reshape(2, 3)
    model = b.model([x], [y])
    litert.check(model, {"x": given})
    np.testing.assert_array_equal(litert.interpreted(model, {"x": given})["y"], given @ w.T)


def test_weights_in_other_files_are_refused() -> None:
    b = Builder()
    x, y = b.tensor((2,)), b.tensor((2,))
    b.op("NEG", [x], [y], "NegOptions")
    assert b.file is not None
    b.graph([x], [y])
    b.file.more["external_buffers"] = [table("ExternalBuffer", id=1)]
    assert refused(b.file.model()) == [
        "its weights are in other files, which is not supported",
    ]


def _complex_model(*operators: tuple[str, type], length: int = 8) -> bytes:
    """RFFT2D of x [1, 8], and what is done with it; each with its result's element type."""
    b = Builder()
    x = b.tensor((1, 8), name="x")
    lengths = b.constant(np.array([1, length], np.int32))
    last = -1
    for number, (name, dtype) in enumerate(operators):
        operands = [x, lengths] if name == "RFFT2D" else [last]
        last = b.tensor((1, 5), dtype, name=f"y{number}")
        b.op(name, operands, [last])
    return b.model([x], [last])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            _complex_model(("RFFT2D", np.complex64)),
            "output 'y0': it is of complex numbers; give its REAL and IMAG parts",
        ),
        (
            _complex_model(("RFFT2D", np.complex64), ("NEG", np.complex64), ("REAL", np.float32)),
            "NEG (operator 1, 'y1'): it is not supported of complex numbers",
        ),
        (
            _complex_model(("RFFT2D", np.float32)),
            "RFFT2D (operator 0, 'y0'): tensor 2 'y0' has elements of FLOAT32",
        ),
        (
            _complex_model(("RFFT2D", np.complex64), ("REAL", np.complex64), ("REAL", np.float32)),
            "REAL (operator 1, 'y1'): tensor 3 'y1' has elements of COMPLEX64",
        ),
        (
            _complex_model(("RFFT2D", np.complex64), ("REAL", np.float32), length=0),
            "RFFT2D (operator 0, 'y0'): x is f32[1, 8] and the lengths are [1, 0], expected two of "
            "an image",
        ),
    ],
)
def test_complex_numbers_are_refused(model: bytes, message: str) -> None:
    with pytest.raises(AotError) as caught:
        import_tflite(model)
    assert str(caught.value).removeprefix("model: ").splitlines()[-1].strip() == message
