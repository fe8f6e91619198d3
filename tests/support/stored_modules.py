"""The corpus of stored modules: small files, one of each feature of the format, that every later
build opens, runs and compares.

    python -m tests.support.stored_modules           # writes those that are not there yet

A stored file never changes: what reads it must go on reading it. Beside each is NAME.npz with the
runs: inputs, and what ONNX Runtime, or arithmetic that is written here, says of the results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx.parser

import aot
from aot.backends.vulkan import backend
from aot.link import module_fbs as fbs
from aot.link.module import module_bytes
from aot.link.reader import read_module
from aot.link.vocabulary import encode_vocabulary
from tests.support.module_rules import whole_module
from tests.support.paths import GOLDEN
from tests.support.runtime_modules import (
    ARENA,
    CONSTANTS,
    INPUTS,
    OUTPUTS,
    Assembler,
    dim,
    module,
    tensor,
)
from tests.support.vocabularies import byte_vocabulary

FOLDER = GOLDEN / "modules"
HEAD = '<ir_version: 9, opset_import: ["" : 19]>\n'
Arrays = dict[str, np.ndarray]
Runs = list[tuple[Arrays, Arrays]]  # of each run, in order: inputs and results


@dataclass(frozen=True)
class Stored:
    """A module of the corpus before it is stored.

    Attributes:
        model: an ONNX graph in text, or what makes the file.
        feeds: makes the inputs of each run.
        options: of the compile.
        results: computes the results of each run; None for ONNX Runtime.
        entries: the entry points, where the runs are not of the only one.
    """

    model: str | Callable[[], bytes]
    feeds: list[Arrays]
    options: Mapping[str, Any] = field(default_factory=dict)
    results: Callable[[list[Arrays]], list[Arrays]] | None = None


def _numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _grown(feeds: list[Arrays]) -> list[Arrays]:
    """The sum over all rows so far, of a state that grows."""
    rows = np.concatenate([feed["x"] for feed in feeds])
    counts = np.cumsum([len(feed["x"]) for feed in feeds])
    return [{"y": rows[:count].sum(0, keepdims=True)} for count in counts]


def _instructions() -> bytes:
    """Every instruction of a CPU's program; y and z tell what became of x."""
    asm = Assembler()
    asm.block()
    n, five, minus, zero = asm.register(), asm.register(5), asm.register(-3), asm.register(0)
    one, rows = asm.register(1), asm.register()
    asm.emit("NOP")
    asm.emit("INPUT_DIM", n, 0, 0)
    asm.emit("MOVE", rows, n)
    asm.emit("OUTPUT_DIM", 0, 0, rows)
    asm.emit("CHECK", asm.binary("LE", n, five), 0, n)
    found = [asm.binary(name, five, minus) for name in ("ADD", "SUB", "MUL", "FLOORDIV")]
    found += [asm.binary(name, five, minus) for name in ("FLOORMOD", "MIN", "MAX", "EQ", "NE")]
    found += [asm.binary(name, five, zero) for name in ("LT", "AND", "OR")]
    chosen = asm.register()
    asm.emit("SELECT", chosen, found[-1], five, minus)
    found.append(chosen)
    size = asm.binary("MUL", n, asm.register(8))
    asm.emit("BUFFER", 0, size)
    room, x, y, z = (asm.register() for _ in range(4))
    asm.emit("JUMP", 1)
    asm.block()
    asm.emit("RETURN")
    start = asm.execute()
    asm.emit("FILL", ARENA, room, size, 0x01010101)
    asm.emit("COPY", ARENA, room, INPUTS, x, size)
    asm.emit("COPY", OUTPUTS, y, ARENA, room, size)
    runs, constant = asm.register(), asm.register()
    asm.emit("STATE", runs, 0)
    asm.emit("SET_STATE", 0, asm.binary("ADD", runs, one))
    asm.emit("LOAD", constant, CONSTANTS, zero, fbs.DType.I64)
    found += [runs, constant]
    for number, register in enumerate(found):
        place = asm.binary("ADD", z, asm.register(8 * number))
        if number % 2:
            asm.emit("STORE", OUTPUTS, place, register, fbs.DType.I64)
        else:
            asm.emit("DISPATCH", 0, one, one, one, place, register)
    asm.emit("BRANCH", one, start + 1, start + 2)
    asm.block()
    asm.emit("RETURN")
    asm.block()
    asm.emit("RETURN")
    program = asm.program(
        inputOffsetRegisters=[x],
        outputOffsetRegisters=[y, z],
        messages=["{0} rows are too many"],
        buffers=[fbs.ArenaBufferT(0, 1, room, 64)],
        stateCount=1,
    )
    rows_of = dim("N", 0, 100)
    return module(
        program,
        [tensor("x", "i64", rows_of)],
        [tensor("y", "i64", rows_of), tensor("z", "i64", len(found))],
        kernels=("widths",),
        rodata=np.array([1234567890123], np.int64).tobytes(),
    ).to_bytes()


def _instruction_results(feeds: list[Arrays]) -> list[Arrays]:
    first = [5 - 3, 5 + 3, -15, 5 // -3, 5 % -3, -3, 5, 0, 1, 0, 0, 1, 5]
    return [
        {"y": feed["x"], "z": np.array([*first, run, 1234567890123])}
        for run, feed in enumerate(feeds)
    ]


def _updating() -> bytes:
    """x is what y is after a run: twice what it was."""
    asm = Assembler()
    asm.block()
    x, y, count, one = asm.register(), asm.register(), asm.register(16), asm.register(1)
    two = asm.register(int(np.float32(2).view(np.uint32)))
    asm.emit("RETURN")
    asm.execute()
    asm.emit("DISPATCH", 0, one, one, one, x, y, count, two)
    asm.emit("RETURN")
    program = asm.program(inputOffsetRegisters=[x], outputOffsetRegisters=[y], updates=[1])
    numbers = [tensor(name, "f32", 16) for name in "xy"]
    return module(program, numbers[:1], numbers[1:], kernels=("scale",)).to_bytes()


def _windows() -> bytes:
    """Dense layers with a binding of its own for each operand on a GPU, as in models whose weights
    are larger than a device binds at once."""
    with patch.multiple(backend, WINDOW_BYTES=64, MOST_WINDOW_OPERAND_BYTES=1 << 16):
        return aot.compile(_parsed(DENSE), targets=["vulkan-1.1", "x86-64-v2"]).to_bytes()


def _with_more() -> bytes:
    """A vocabulary and metadata."""
    image = read_module(aot.compile(_parsed(DENSE), targets=TARGETS, strip=True).to_bytes())
    more = {"author": "nobody", "license": "Apache-2.0", "labels": "a\nb"}
    return module_bytes(
        replace(image, vocabulary=encode_vocabulary(byte_vocabulary()), metadata=more)
    )


def _several() -> bytes:
    """Two entry points that share a weight."""
    models = {"first": _parsed(DENSE), "second": _parsed(DENSE.replace("Tanh", "Relu"))}
    return aot.compile(models, targets=TARGETS, strip=True).to_bytes()


TARGETS = ["x86-64-v2"]
DENSE = """agraph (float[2, 4] x) => (float[2, 3] y)
<float[4, 3] w = {1, 2, 3, 4, -5, 6, 7, 8, -9, 0, 1, 2}> { h = MatMul(x, w) y = Tanh(h) }"""
CORPUS = {
    "dense": Stored(DENSE, [{"x": _numbers(2, 4)}]),
    "open-extents": Stored(
        "agraph (float[N, 6] x) => (float[N, 6] y, float[] z)"
        "{ h = Exp(x) y = Softmax<axis=1>(h) z = ReduceSum<keepdims=0>(h) }",
        [{"x": _numbers(n, 6, seed=n)} for n in (1, 7, 2)],
    ),
    "convolution": Stored(
        "agraph (float[1, 3, 8, 8] x) => (float[1, 3, 4, 4] y)"
        "<float[3, 1, 3, 3] w = {" + ", ".join(str(i % 5 - 2) for i in range(27)) + "}>"
        "{ h = Conv<group=3, pads=[1,1,1,1]>(x, w)"
        " y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(h) }",
        [{"x": _numbers(1, 3, 8, 8)}],
    ),
    "data-decide-extents": Stored(
        "agraph (float[N] x) => (int64[1, M] y) { y = NonZero(x) }",
        [{"x": np.array(row, np.float32)} for row in ([0, 2, 0, 3], [0, 0], [1, 1, 1])],
        {"input_shapes": {"x": ("N<=16",)}},
    ),
    "loop": Stored(
        "agraph (int64 n, float[3] x) => (float[3] y) {"
        " keep = Constant<value: tensor = bool {1}>()"
        " y = Loop(n, keep, x) <body = b (int64 i, bool go, float[3] a)"
        " => (bool on, float[3] c) { on = Identity(go) c = Add(a, a) }> }",
        [{"n": np.array(n), "x": _numbers(3)} for n in (0, 1, 5)],
    ),
    "condition": Stored(
        "agraph (bool t, float[3] x) => (float[3] y) {"
        " y = If(t) <then_branch = a () => (float[3] p) { p = Neg(x) },"
        " else_branch = b () => (float[3] q) { q = Abs(x) }> }",
        [{"t": np.array(t), "x": _numbers(3)} for t in (True, False)],
    ),
    "element-types": Stored(
        "agraph (int64[4] a, double[4] b, bool[4] c, uint8[4] d, int32[4] e, float16[4] f)"
        " => (int64[4] u, double[4] v, bool[4] w, uint8[4] x, int32[4] y, float16[4] z)"
        "{ u = Add(a, a) v = Exp(b) w = Not(c) x = Max(d, d) y = Mul(e, e) z = Neg(f) }",
        [
            {
                "a": np.array([1, -(2**40), 3, 4]),
                "b": np.array([0.0, 1.0, -2.0, 3.5]),
                "c": np.array([True, False, True, True]),
                "d": np.array([0, 1, 200, 255], np.uint8),
                "e": np.array([-7, 0, 7, 1000], np.int32),
                "f": np.array([0, 1, -2, 3.5], np.float16),
            }
        ],
    ),
    "half-storage": Stored(DENSE, [{"x": _numbers(2, 4)}], {"storage": "fp16"}),
    "quantised": Stored(
        "agraph (uint8[2, 4] x) => (int32[2, 3] y) <int8[4, 3] w = {1, 2, 3, 4, -5, 6, 7, 8, -9,"
        " 0, 1, 2}> { y = MatMulInteger(x, w) }",
        [{"x": np.arange(8, dtype=np.uint8).reshape(2, 4)}],
    ),
    "state": Stored(
        "agraph (float[P, 3] past, float[T, 3] x) => (float[1, 3] y, float[Q, 3] present)"
        "<int64[1] axes = {0}>"
        "{ present = Concat<axis=0>(past, x) y = ReduceSum<keepdims=1>(present, axes) }",
        [{"x": _numbers(n, 3, seed=n)} for n in (2, 1, 3)],
        {"states": {"past": ("present", 16)}, "input_shapes": {"x": ("T<=4", 3)}},
        _grown,
    ),
    "two-states": Stored(
        "agraph (float[P, 3] past, float[R, 3] other, float[T, 3] x)"
        " => (float[1, 3] y, float[Q, 3] present, float[S, 3] after) <int64[1] axes = {0}>"
        "{ present = Concat<axis=0>(past, x) double = Add(x, x)"
        " after = Concat<axis=0>(other, double) both = Sub(after, present)"
        " y = ReduceSum<keepdims=1>(both, axes) }",
        [{"x": _numbers(n, 3, seed=n)} for n in (2, 1, 3)],
        {
            "states": {"past": ("present", 16), "other": ("after", 16)},
            "input_shapes": {"x": ("T<=4", 3)},
        },
        _grown,
    ),
    "strings": Stored(
        'agraph (string[3] x) => (bool[3] y) <string[1] red = {"red"}> { y = Equal(x, red) }',
        [{"x": np.array([0, -1, 0])}],  # numbers of the module's strings
        {},
        lambda feeds: [{"y": feed["x"] == 0} for feed in feeds],
    ),
    "two-variants": Stored(DENSE, [{"x": _numbers(2, 4)}], {"targets": ["x86-64-v3", "x86-64-v2"]}),
    "gpu-and-cpu": Stored(
        DENSE, [{"x": _numbers(2, 4)}], {"targets": ["vulkan-1.1", "x86-64-v2"], "strip": False}
    ),
    "gpu-windows": Stored(_windows, [{"x": _numbers(2, 4)}]),
    "several-entries": Stored(_several, [{"x": _numbers(2, 4)}], {}, None),
    "vocabulary-and-metadata": Stored(_with_more, [{"x": _numbers(2, 4)}]),
    "instructions": Stored(
        _instructions,
        [{"x": np.arange(n)} for n in (3, 0, 5)],
        {},
        _instruction_results,
    ),
    "updates": Stored(
        _updating,
        [{"x": np.arange(16, dtype=np.float32)}],
        {},
        lambda feeds: [{"y": 2 * feed["x"]} for feed in feeds],
    ),
    "every-field": Stored(whole_module, [], {}),
}


def _parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


def _make(case: Stored) -> tuple[bytes, Runs]:
    if callable(case.model):
        data, oracle = case.model(), DENSE
    else:
        options = {"targets": TARGETS, "strip": True, **case.options}
        data, oracle = aot.compile(_parsed(case.model), **options).to_bytes(), case.model
    if case.results is not None:
        return data, list(zip(case.feeds, case.results(case.feeds), strict=True))
    import onnxruntime

    session = onnxruntime.InferenceSession(_parsed(oracle).SerializeToString())
    names = [output.name for output in session.get_outputs()]
    results = [dict(zip(names, session.run(None, feed), strict=True)) for feed in case.feeds]
    return data, list(zip(case.feeds, results, strict=True))


def read_runs(name: str) -> Runs:
    """What is stored of a module's runs."""
    runs: dict[int, tuple[Arrays, Arrays]] = {}
    with np.load(FOLDER / f"{name}.npz") as stored:
        for key in stored.files:
            number, side, tensor_name = key.split("/", 2)
            runs.setdefault(int(number), ({}, {}))[side == "out"][tensor_name] = stored[key]
    return [runs[number] for number in sorted(runs)]


def _write(name: str) -> None:
    data, runs = _make(CORPUS[name])
    arrays = {}
    for number, (feeds, results) in enumerate(runs):
        arrays |= {f"{number}/in/{key}": array for key, array in feeds.items()}
        arrays |= {f"{number}/out/{key}": array for key, array in results.items()}
    (FOLDER / f"{name}.aotm").write_bytes(data)
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)


if __name__ == "__main__":
    for name in CORPUS:
        if not (FOLDER / f"{name}.aotm").exists():
            sys.stdout.write(f"{name}\n")
            _write(name)
