"""Control flow, variables and signatures of TFLite files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

import aot
from aot.errors import UnsupportedError
from aot.frontends.tflite import import_tflite
from tests.support import litert
from tests.support.tflite_models import Builder, File, signature


def branches() -> bytes:
    """y = x + w, or x * w with less of it where x's first element is not positive."""
    file = File()
    main = Builder(file=file)
    x = main.tensor((4,), name="x")
    condition, y = main.tensor((), np.bool_), main.tensor((4,), name="y")
    first = main.tensor(())
    zero, one = (main.constant(np.array([n], np.int32)) for n in (0, 1))
    main.op(
        "STRIDED_SLICE", [x, zero, one, one], [first], "StridedSliceOptions", shrink_axis_mask=1
    )
    main.op("GREATER", [first, main.constant(np.float32(0))], [condition], "GreaterOptions")
    how = {"then_subgraph_index": 1, "else_subgraph_index": 2}
    main.op("IF", [condition, x], [y], "IfOptions", **how)
    main.graph([x], [y])
    for name, options in (("ADD", "AddOptions"), ("MUL", "MulOptions")):
        inner = Builder(file=file)
        a, b = inner.tensor((4,)), inner.tensor((4,))
        inner.op(name, [a, inner.constant(np.arange(4, dtype=np.float32))], [b], options)
        inner.graph([a], [b], name)
    return file.model()


@pytest.mark.parametrize("sign", [-1, 1])
def test_if(sign: int) -> None:
    model, x = branches(), np.array([sign, 2, 3, 4], np.float32)
    litert.check(model, {"x": x})
    wanted = litert.expected(model, {"x": x})["y"]
    program = aot.load(aot.compile(model, targets=["host"]))
    np.testing.assert_array_equal(program(x=x)["y"], wanted)


def loop() -> bytes:
    """Doubles x while its first element is below 100, and counts."""
    file = File()
    main = Builder(file=file)
    x, y, count = main.tensor((3,), name="x"), main.tensor((3,)), main.tensor((), np.int32)
    start = main.constant(np.int32(0))
    how = {"cond_subgraph_index": 1, "body_subgraph_index": 2}
    main.op("WHILE", [x, start], [y, count], "WhileOptions", **how)
    main.graph([x], [y, count])
    inner = Builder(file=file)
    a, n = inner.tensor((3,)), inner.tensor((), np.int32)
    first, less = inner.tensor(()), inner.tensor((), np.bool_)
    zero, one = (inner.constant(np.array([k], np.int32)) for k in (0, 1))
    inner.op(
        "STRIDED_SLICE", [a, zero, one, one], [first], "StridedSliceOptions", shrink_axis_mask=1
    )
    inner.op("LESS", [first, inner.constant(np.float32(100))], [less], "LessOptions")
    inner.graph([a, n], [less], "condition")
    body = Builder(file=file)
    a, n = body.tensor((3,)), body.tensor((), np.int32)
    b, m = body.tensor((3,)), body.tensor((), np.int32)
    body.op("ADD", [a, a], [b], "AddOptions")
    body.op("ADD", [n, body.constant(np.int32(1))], [m], "AddOptions")
    body.graph([a, n], [b, m], "body")
    return file.model()


@pytest.mark.parametrize("first", [1.5, 200.0])
def test_while(first: float) -> None:
    litert.check(loop(), {"x": np.array([first, 2, 3], np.float32)})


def test_composites_are_their_graphs() -> None:
    """What is called by a name is defined beside it."""
    file = File()
    main = Builder(file=file)
    x, y = main.tensor((3,), name="x"), main.tensor((3,), name="y")
    attributes = np.frombuffer(bytes(flexbuffers.Dumps({})), np.uint8)
    how = {"name": "test.twice", "composite_attributes": attributes}
    how["decomposition_subgraph_index"] = 1
    main.op("STABLEHLO_COMPOSITE", [x], [y], "StableHLOCompositeOptions", **how)
    main.graph([x], [y])
    inner = Builder(file=file)
    a, b = inner.tensor((3,)), inner.tensor((3,))
    inner.op("ADD", [a, a], [b], "AddOptions")
    inner.graph([a], [b], "twice")
    litert.check(file.model(), {"x": np.array([1, 2, 3], np.float32)})


def counter(*, is_set: bool) -> bytes:
    """A variable to which each call adds x, from 3 on or from 0; y is its new value."""
    file = File()
    main = Builder(file=file)
    x, handle = main.tensor((2,), name="x"), main.tensor((), np.int32)
    main.tensors[handle]["type"] = 13  # RESOURCE
    old, new, y = main.tensor((2,)), main.tensor((2,)), main.tensor((2,), name="y")
    if is_set:
        main.op("CALL_ONCE", [], [], "CallOnceOptions", init_subgraph_index=1)
    main.op("VAR_HANDLE", [], [handle], "VarHandleOptions", shared_name="total")
    main.op("READ_VARIABLE", [handle], [old], "ReadVariableOptions")
    main.op("ADD", [old, x], [new], "AddOptions")
    main.op("ASSIGN_VARIABLE", [handle, new], [], "AssignVariableOptions")
    main.op("READ_VARIABLE", [handle], [y], "ReadVariableOptions")
    main.graph([x], [y])
    first = Builder(file=file)
    handle = first.tensor((), np.int32)
    first.tensors[handle]["type"] = 13
    value = first.constant(np.array([3, 4], np.float32))
    first.op("VAR_HANDLE", [], [handle], "VarHandleOptions", shared_name="total")
    first.op("ASSIGN_VARIABLE", [handle, value], [], "AssignVariableOptions")
    first.graph([], [], "first")
    return file.model()


def test_variables_are_states() -> None:
    model, x = counter(is_set=True), np.array([1, 10], np.float32)
    program = aot.load(aot.compile(model, targets=["host"]))
    found = [program(x=x)["y"].tolist() for _ in range(3)]
    assert found == [[4, 14], [5, 24], [6, 34]]
    assert found[2] == litert.expected(model, {"x": x}, calls=3)["y"].tolist()
    program.reset()
    assert program(x=x)["y"].tolist() == [4, 14]


def test_variables_that_nothing_sets_begin_as_zeros() -> None:
    program = aot.load(aot.compile(counter(is_set=False), targets=["host"]))
    assert program(x=np.array([1, 10], np.float32))["y"].tolist() == [1, 10]


def signatures() -> bytes:
    """Two entry points on one weight."""
    file = File()
    numbers: list[Any] = []
    for number, (key, op) in enumerate((("encode", "MUL"), ("decode", "DIV"))):
        b = Builder(file=file)
        x, y = b.tensor((2,)), b.tensor((2,))
        b.op(op, [x, b.constant(np.array([2, 4], np.float32))], [y], f"{op.title()}Options")
        b.graph([x], [y], key)
        numbers.append(signature(key, number, {"given": x}, {"made": y}))
    return file.model(numbers)


def test_signatures_are_entry_points() -> None:
    compiled = aot.compile(signatures(), targets=["host"])
    x = np.array([3, 5], np.float32)
    for name, wanted in (("encode", [6, 20]), ("decode", [1.5, 1.25])):
        program = aot.load(compiled, entry=name)
        assert program(given=x)["made"].tolist() == wanted


def sharing(*, assigns: bool) -> bytes:
    """Two entry points with one variable, which the first one may assign."""
    file, found = File(), []
    for number, key in enumerate(("set", "get")):
        b = Builder(file=file)
        x, handle, y = b.tensor((2,)), b.tensor((), np.int32), b.tensor((2,))
        b.tensors[handle]["type"] = 13
        b.op("VAR_HANDLE", [], [handle], "VarHandleOptions", shared_name="held")
        old = b.tensor((2,))
        b.op("READ_VARIABLE", [handle], [old], "ReadVariableOptions")
        b.op("ADD", [x, old], [y], "AddOptions")
        if assigns and number == 0:
            b.op("ASSIGN_VARIABLE", [handle, x], [], "AssignVariableOptions")
        b.graph([x], [y], key)
        found.append(signature(key, number, {"x": x}, {"y": y}))
    return file.model(found)


def test_a_variable_that_signatures_share_is_refused() -> None:
    """Each entry point would keep one of its own."""
    import_tflite(sharing(assigns=False))
    with pytest.raises(UnsupportedError) as caught:
        import_tflite(sharing(assigns=True))
    assert str(caught.value).splitlines() == [
        "model: not supported in this model (1):",
        "  variable 'held' is one of the signatures set, get, and set assigns it: each entry point "
        "keeps its own states",
    ]


def test_open_dims_are_symbols() -> None:
    b = Builder()
    x = b.tensor((1, 4), signature=(-1, 4), name="x")
    y = b.tensor((1, 3), signature=(-1, 3), name="y")
    operands = [x, b.constant(np.ones((3, 4), np.float32)), b.constant(np.ones(3, np.float32))]
    b.op("FULLY_CONNECTED", operands, [y], "FullyConnectedOptions")
    program = aot.load(aot.compile(b.model([x], [y]), targets=["host"]))
    for rows in (1, 5):
        assert program(x=np.ones((rows, 4), np.float32))["y"].tolist() == [[5.0] * 3] * rows


def test_the_declared_rank_says_which_open_dims_squeeze_drops() -> None:
    x1 = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    for dims, fitting, other in (((-1, 4), 2, 1), ((4,), 1, 2)):
        b = Builder()
        x = b.tensor((1, 1, 4), signature=(-1, 1, 4), name="x")
        y = b.tensor([abs(d) for d in dims], signature=dims, name="y")
        b.op("SQUEEZE", [x], [y], "SqueezeOptions")
        program = aot.load(aot.compile(b.model([x], [y]), targets=["host"]))
        given = np.repeat(x1, fitting, axis=0)
        np.testing.assert_array_equal(program(x=given)["y"], np.squeeze(given))
        with pytest.raises(aot.RuntimeFailure, match="Squeeze without axes"):
            program(x=np.repeat(x1, other, axis=0))


def test_all_that_is_not_supported_is_listed_at_once() -> None:
    b = Builder()
    x, y, z, w = (b.tensor((2,), name=name) for name in ("x", "y", "z", "w"))
    b.op("Mystery", [x], [y], custom=b"\0")
    b.op("FlexErf", [x], [z], custom=b"")
    b.op("HASHTABLE_SIZE", [x], [w])
    with pytest.raises(UnsupportedError) as caught:
        import_tflite(b.model([x], [y, z, w]))
    assert str(caught.value).splitlines() == [
        "model: not supported in this model (3):",
        "  custom operator Mystery (operator 0, 'y'): there is no importer for it",
        "  custom operator FlexErf (operator 1, 'z'): there is no importer for it",
        "  HASHTABLE_SIZE (operator 2, 'w'): there is no importer for it",
    ]
