"""Calls by the extension of CPython: what it takes, what it leaves to ctypes, and its results."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import aot
from aot.builder import Builder
from aot.runtime import fast_calls, loader
from aot.runtime.loader import Program
from tests.support.onnx_models import graph_model, tensor_info

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.array([1, 2, 3], np.int32)


@pytest.fixture
def program() -> Iterator[Program]:
    """x and y of N rows: x + 1, and y * 2."""
    b = Builder()
    x, y = b.input("x", "f32[N, 3]"), b.input("y", "i32[3]")
    b.output("more", b.op("add", x, b.constant(np.float32(1))))
    b.output("twice", b.op("mul", y, b.constant(np.int32(2))))
    with aot.load(aot.compile(b.module(), targets=["host"], jobs=1).to_bytes()) as made:
        yield made


def _warm(program: Program) -> Any:
    """The program's fast call, after two runs of the same shapes."""
    for _ in range(2):
        program({"x": X, "y": Y})
    found = program._fast
    if found is None:
        pytest.skip("the extension is not built")
    return found


def test_the_extension_is_built_where_its_headers_are() -> None:
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        pytest.skip("there are no headers of Python")
    if loader.LIBRARY_VARIABLE in os.environ:
        pytest.skip("the runtime is another one")
    assert fast_calls._extension(loader.find_library().parent) is not None


def test_a_call_of_the_shapes_before_is_one_step(program: Program) -> None:
    fast = _warm(program)
    x, y = X * 3, Y + 1
    found = fast.run({"x": x, "y": y})
    assert list(found) == ["more", "twice"]
    np.testing.assert_array_equal(found["more"], x + 1)
    np.testing.assert_array_equal(found["twice"], y * 2)
    more, twice = program.run([x, y])
    assert (more.dtype.name, twice.dtype.name) == ("float32", "int32")
    assert not np.shares_memory(more, program.run([x, y])[0])
    np.testing.assert_array_equal(more, x + 1)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X[:1], Y),
        (X.tolist(), Y),
        (np.asfortranarray(X), Y),
        (X.astype(">f4"), Y),
        (np.frombuffer(b"\0" + X.tobytes(), np.float32, offset=1).reshape(2, 3), Y),
        (X, [1, 2, 3]),
        (np.zeros((0, 3), np.float32), Y),
        (X.view(np.matrix), Y),
    ],
    ids=["shape", "list", "strided", "order", "unaligned", "numbers", "empty", "subclass"],
)
def test_other_arrays_are_left_to_ctypes(program: Program, x: Any, y: Any) -> None:
    fast = _warm(program)
    assert fast.run([x, y]) is None
    found = program(x=x, y=y)
    np.testing.assert_array_equal(found["more"], np.asarray(x, np.float32) + 1)
    np.testing.assert_array_equal(found["twice"], np.asarray(y, np.int32) * 2)


@pytest.mark.parametrize("given", [{}, {"x": X}, {"x": X, "z": Y}, [X], (X, Y), None])
def test_other_names_and_counts_are_left_to_ctypes(program: Program, given: Any) -> None:
    assert _warm(program).run(given) is None


def test_read_only_arrays_are_taken(program: Program) -> None:
    fast, x = _warm(program), X.copy()
    x.flags.writeable = False
    np.testing.assert_array_equal(fast.run([x, Y])[0], x + 1)


def test_errors_are_the_runtimes(program: Program) -> None:
    _warm(program)
    with pytest.raises(aot.RuntimeFailure, match='input "x"'):
        program({"x": X.astype(np.float64), "y": Y})
    with pytest.raises(aot.RuntimeFailure, match="missing"):
        program({"x": X})
    program._library.aot_program_set_cancelled(program._program, True, program._out_error)
    with pytest.raises(aot.RuntimeFailure) as failure:
        program({"x": X, "y": Y})
    assert failure.value.status == "cancelled"
    program._library.aot_program_set_cancelled(program._program, False, program._out_error)
    np.testing.assert_array_equal(program({"x": X, "y": Y})["more"], X + 1)
    program.close()
    with pytest.raises(aot.RuntimeFailure, match="closed"):
        program({"x": X, "y": Y})


def test_numbers_are_no_strings_after_calls_either() -> None:
    nodes = [
        helper.make_node(
            *("LabelEncoder", ["s"], ["y"]),
            domain="ai.onnx.ml",
            keys_strings=["a", "b"],
            values_int64s=[10, 20],
            default_int64=-1,
        )
    ]
    model = graph_model(nodes, [tensor_info("s", [2], TensorProto.STRING)], ["y"])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    next(each for each in model.opset_import if each.domain == "ai.onnx.ml").version = 3
    with aot.load(aot.compile(model, targets=["host"], jobs=1).to_bytes()) as program:
        for _ in range(3):
            found = program({"s": np.array(["b", "z"], object)})
        np.testing.assert_array_equal(found["y"], [20, -1])
        with pytest.raises(aot.RuntimeFailure, match="expected strings, found int"):
            program({"s": np.array([0, 9], np.int64)})


def test_results_without_memory_are_left_to_ctypes() -> None:
    """Which says so, and names the output."""
    script = """
import resource
import numpy as np
import aot
from aot.builder import Builder

b = Builder()
b.output("y", b.op("add", b.input("x", "f32[N]"), b.constant(np.float32(1))))
with aot.load(aot.compile(b.module(), targets=["host"], jobs=1).to_bytes()) as program:
    x = np.zeros(32 << 20, np.float32)
    for _ in range(3):
        program({"x": x})
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + (50 << 20), most))
    try:
        program({"x": x})
    except aot.RuntimeFailure as failure:
        print(failure.status, failure)
"""
    arguments = [sys.executable, "-c", script]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    expected = "memory output 'y': no memory for float32[33554432]\n"
    assert (done.stdout, done.returncode) == (expected, 0), done.stderr


def test_threads_take_turns(program: Program) -> None:
    _warm(program)
    wrong: list[NDArray[Any]] = []

    def calls(number: int) -> None:
        x = np.full((2, 3), number, np.float32)
        for _ in range(300):
            found = program({"x": x, "y": Y})["more"]
            if not (found == number + 1).all():
                wrong.append(found)

    threads = [threading.Thread(target=calls, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_call_keeps_no_array(program: Program) -> None:
    _warm(program)
    x, y = X.copy(), Y.copy()
    before = sys.getrefcount(x), sys.getrefcount(y)
    for _ in range(50):
        program({"x": x, "y": y})
        program({"x": x, "y": y.tolist()})
    assert (sys.getrefcount(x), sys.getrefcount(y)) == before
    x.resize((4, 3), refcheck=False)  # of a view that is held, numpy would refuse it
