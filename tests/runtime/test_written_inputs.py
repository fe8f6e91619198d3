"""Inputs that a model writes: the caller's memory holds what it should after a run that ends well,
and nothing else does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.errors import RuntimeFailure
from aot.tools.inspection import format_inspection
from tests.support.runtime_api import Failed, opened
from tests.support.vulkan_runtime import running_on

F = np.float32


def compiled(*targets: str) -> aot.CompiledModule:
    """Adds rows to `x` in a loop of `n` runs, and gives what it was and is."""
    b = Builder()
    x, row, n = b.input("x", "f32[3, 4]"), b.input("row", "f32[1, 4]"), b.input("n", "i64[]")
    b.output("before", b.op("neg", x))

    def body(number: object) -> list[object]:
        b.op("write_slice", x, b.op("add", row, row), b.constant([1, 0], "i64"))
        b.op("assign", x, b.op("add", x, row))
        return [b.constant(True)]

    b.op("loop", n, None, blocks=[b.block(["i64[]"], body)])
    b.output("after", b.op("relu", x))
    return aot.compile(b.module(), targets=list(targets))


def wanted(x: np.ndarray, row: np.ndarray, n: int) -> np.ndarray:
    x = x.copy()
    for _ in range(n):
        x[1:2] = 2 * row
        x += row
    return x


def arrays() -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(12, dtype=F).reshape(3, 4) - 5
    return x, np.array([[1, 2, 3, 4]], F)


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_is_written(n: int, order: str) -> None:
    with aot.load(compiled("host")) as program:
        x, row = arrays()
        given = np.array(x, order=order)  # type: ignore[call-overload]
        found = program(x=given, row=row, n=np.int64(n))
        assert program.updates == {"x.next": "x"}
        np.testing.assert_array_equal(found["before"], -x)
        np.testing.assert_array_equal(given, wanted(x, row, n))
        np.testing.assert_array_equal(found["x.next"], given)
        np.testing.assert_array_equal(found["after"], np.maximum(given, 0))
        np.testing.assert_array_equal(row, arrays()[1])


def test_inspect_says_which_inputs_are_written() -> None:
    facts = aot.inspect(compiled("x86-64-v3").to_bytes())
    (entry,) = facts["variants"][0]["entry_points"]
    (result,) = entry["updates"]
    assert entry["updates"] == {result: "x"}
    lines = format_inspection(facts).splitlines()
    written = [line.strip() for line in lines if "written" in line]
    assert written == [f"output {result}: f32[3, 4], written to input x"]
    assert "    output before: f32[3, 4]" in lines


def test_what_cannot_be_written_is_refused() -> None:
    with aot.load(compiled("host")) as program:
        x, row = arrays()
        x.flags.writeable = False
        message = (
            'input "x": the model writes it: give a numpy array that can be written, found {}$'
        )
        for given, what in ((x, "a read-only one"), (x.tolist(), "list")):
            with pytest.raises(RuntimeFailure, match=message.format(what)):
                program(x=given, row=row, n=np.int64(1))


def test_a_written_input_overlaps_no_other() -> None:
    with opened(compiled("host").to_bytes()) as program:
        memory = np.zeros((4, 4), F)
        with pytest.raises(Failed) as caught:
            program(memory[:3], memory[2:3], np.array(1))
        assert caught.value.status == "argument"
        assert caught.value.message == (
            'input "x", which the program writes, overlaps input "row" in memory'
        )
        assert not memory.any()
        program(memory[:3], memory[3:], np.array(1))


@pytest.mark.vulkan
def test_a_gpu_writes_inputs(tmp_path: Path) -> None:
    module = compiled("vulkan-1.1").to_bytes()
    with (
        running_on("lavapipe", tmp_path),
        opened(module, device=2) as program,
    ):
        for n in (0, 2):
            x, row = arrays()
            given = x.copy()
            program(given, row, np.array(n))
            np.testing.assert_array_equal(given, wanted(x, row, n))


@pytest.mark.parametrize("columns", [7, 16, 37, 45])
def test_what_takes_the_memory_of_an_operand_is_made_once(columns: int) -> None:
    """Elements that a table names, by a factor whose memory the result takes."""
    b = Builder()
    x, s = b.input("x", "f32[4, 70]"), b.input("s", f"f32[4, {columns}]")
    factor = b.op("scan", s, axis=1, combine="sum")
    places = np.arange(columns) * 70 // columns
    y = b.op("mul", b.op("gather", x, b.constant(places), axis=1), factor)
    b.output("z", b.op("scan", y, axis=1, combine="sum"))
    draw = np.random.default_rng(2)
    given = {"x": draw.integers(-9, 9, (4, 70)), "s": draw.integers(-9, 9, (4, columns))}
    wanted = np.cumsum(given["x"][:, places] * np.cumsum(given["s"], axis=1), axis=1)
    with aot.load(aot.compile(b.module())) as program:
        found = program({name: array.astype(F) for name, array in given.items()})
    np.testing.assert_array_equal(found["z"], wanted.astype(F))
