"""Small modules that have every field of the file format: what the module fuzzer starts from.

    python tests/support/module_seeds.py FOLDER

Written by hand (runtime_modules.py) and compiled from small ONNX graphs: static and dynamic shapes,
state, branches, loops, texels, hosts, several variants, WebAssembly, with and without notes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import aot
from tests.support.module_rules import whole_module
from tests.support.runtime_modules import (
    ARENA,
    CONSTANTS,
    DTYPES,
    INPUTS,
    KERNEL_PARAMS,
    OUTPUTS,
    Assembler,
    Code,
    ModuleFile,
    Variant,
    dim,
    entry,
    fbs,
    host_machine,
    tensor,
)

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
# "return" all over: harmless wherever it is entered, with any parameters.
RETURN = {"x86_64": b"\xc3", "aarch64": b"\xc0\x03\x5f\xd6"}
info = helper.make_tensor_value_info
node = helper.make_node


def weights(*shape: int) -> np.ndarray:
    """Ascending, around zero."""
    return (np.arange(np.prod(shape), dtype=np.float32).reshape(shape) - 3) / 8


def model(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], **constants: Any
) -> bytes:
    """A graph with its constants by name."""
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    opset = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=8)
    return bytes(made.SerializeToString())


def static() -> bytes:
    """Two layers of fixed shape."""
    nodes = [node("Gemm", ["x", "w", "b"], ["h"]), node("Relu", ["h"], ["r"])]
    nodes.append(node("Gemm", ["r", "w2"], ["y"]))
    shapes = {"w": weights(8, 16), "b": weights(16), "w2": weights(16, 4)}
    return model(nodes, [info("x", F32, [2, 8])], [info("y", F32, [2, 4])], **shapes)


def dynamic() -> bytes:
    """Arena buffers whose size is known when shapes are."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("ReduceMean", ["r"], ["m"], axes=[2, 3], keepdims=0),
        node("Shape", ["x"], ["s"]),
        node("Softmax", ["m"], ["y"]),
    ]
    outputs = [info("y", F32, ["N", 4]), info("s", I64, [4])]
    return model(nodes, [info("x", F32, ["N", 3, "H", "W"])], outputs, w=weights(4, 3, 3, 3))


def state() -> bytes:
    """A recurrence."""
    nodes = [node("Add", ["x", "h"], ["h2"]), node("Tanh", ["h2"], ["y"])]
    names = ("x", "h", "y", "h2")
    tensors = [info(name, F32, [1, 8]) for name in names]
    return model(nodes, tensors[:2], tensors[2:])


def growing() -> bytes:
    """A cache."""
    nodes = [
        node("Concat", ["past", "x"], ["present"], axis=1),
        node("ReduceSum", ["present", "axes"], ["y"], keepdims=0),
    ]
    inputs = [info("x", F32, [1, 1, 8]), info("past", F32, [1, "P", 8])]
    outputs = [info("y", F32, [1, 8]), info("present", F32, [1, "P1", 8])]
    return model(nodes, inputs, outputs, axes=np.array([1], np.int64))


def branch() -> bytes:
    """An If."""

    def body(kind: str) -> Any:
        return helper.make_graph([node(kind, ["x"], [kind])], kind, [], [info(kind, F32, [2, 4])])

    choose = node("If", ["c"], ["y"], then_branch=body("Relu"), else_branch=body("Neg"))
    inputs = [info("c", TensorProto.BOOL, []), info("x", F32, [2, 4])]
    return model([choose], inputs, [info("y", F32, [2, 4])])


def loop() -> bytes:
    """A Loop that ends by a count or by what it computed."""
    names = [info("i", I64, []), info("c", TensorProto.BOOL, []), info("acc", F32, [4])]
    nodes = [
        node("Add", ["acc", "x"], ["acc2"]),
        node("ReduceSum", ["acc2"], ["sum"], keepdims=0),
        node("Less", ["sum", "limit"], ["c2"]),
    ]
    results = [info("c2", TensorProto.BOOL, []), info("acc2", F32, [4])]
    body = helper.make_graph(nodes, "b", names, results)
    repeat = node("Loop", ["n", "", "zero"], ["y"], body=body)
    constants = {"zero": np.zeros(4, np.float32), "limit": np.float32(50)}
    inputs = [info("n", I64, []), info("x", F32, [4])]
    return model([repeat], inputs, [info("y", F32, [4])], **constants)


def doubles() -> bytes:
    """What a GPU may lack."""
    nodes = [
        node("Cast", ["x"], ["d"], to=TensorProto.DOUBLE),
        node("Add", ["d", "d"], ["d2"]),
        node("Cast", ["d2"], ["f"], to=F32),
        node("TopK", ["f", "k"], ["v", "i"], axis=1),
        node("Relu", ["v"], ["y"]),
    ]
    outputs = [info("y", F32, ["N", 4]), info("i", I64, ["N", 4])]
    return model(nodes, [info("x", F32, ["N", 16])], outputs, k=np.array([4], np.int64))


def harmless_code() -> Code:
    """An image of returns."""
    code = RETURN[host_machine()]
    return Code(code * (256 // len(code)), dict.fromkeys(KERNEL_PARAMS, 0))


def busy_module() -> bytes:
    """Every instruction, table and vector of the format in a few kilobytes."""
    asm = Assembler()
    asm.block()
    n, m = asm.register(), asm.register()
    asm.emit("INPUT_DIM", n, 0, 0)
    asm.emit("INPUT_DIM", m, 1, 1)
    total = asm.register(0)
    for name in ("ADD", "SUB", "MUL", "MIN", "MAX", "EQ", "NE", "LT", "LE", "AND", "OR"):
        asm.emit("ADD", total, total, asm.binary(name, n, m))
    one, four, zero, eight = (asm.register(value) for value in (1, 4, 0, 8))
    quotient = asm.binary("FLOORDIV", total, four)
    rest = asm.binary("FLOORMOD", quotient, four)
    chosen = asm.register()
    asm.emit("SELECT", chosen, rest, n, m)
    asm.emit("NOP")
    asm.emit("MOVE", chosen, n)
    asm.emit("CHECK", asm.binary("LE", n, asm.register(64)), 0)
    asm.emit("OUTPUT_DIM", 0, 0, n)
    size = asm.binary("MUL", n, four)
    asm.emit("BUFFER", 0, size)
    asm.emit("BUFFER", 1, asm.binary("ADD", size, eight))
    asm.emit("BRANCH", rest, 1, 2)
    asm.block()
    asm.emit("JUMP", 2)
    asm.block()
    asm.emit("RETURN")
    asm.execute()  # block 3
    in0, in1, out0, out1, first, second = (asm.register() for _ in range(6))
    index, condition = asm.register(), asm.register()
    asm.emit("FILL", ARENA, second, size, 0x01020304)
    asm.emit("COPY", ARENA, first, INPUTS, in0, size)
    asm.emit("COPY", OUTPUTS, out0, ARENA, first, size)
    asm.emit("COPY", OUTPUTS, out1, CONSTANTS, zero, eight)
    asm.emit("LOAD", condition, INPUTS, in1, DTYPES["i32"])
    asm.emit("LOAD", condition, CONSTANTS, four, DTYPES["i16"])
    asm.emit("DISPATCH", 0, n, one, one, in0, out0, n, four)
    asm.emit("JUMP", 4)
    asm.block()  # 4
    asm.emit("LT", condition, index, n)
    asm.emit("BRANCH", condition, 5, 6)
    asm.block()
    asm.emit("ADD", index, index, one)
    asm.emit("DISPATCH", 1, one, one, one, first, second, zero)
    asm.emit("JUMP", 4)
    asm.block()
    asm.emit("RETURN")
    program = asm.program(
        messages=["n is too large", "unused"],
        inputOffsetRegisters=[in0, in1],
        outputOffsetRegisters=[out0, out1],
        arenaBytes=200,
        buffers=[fbs.ArenaBufferT(0, 2, first, 64), fbs.ArenaBufferT(1, 2, second, 32)],
    )
    inputs = [tensor("x", "f32", dim("N", 1, 100)), tensor("k", "i32", 2, dim("M", 0, 9))]
    outputs = [tensor("y", "f32", dim("N", 1, 100)), tensor("c", "u32", 2)]
    empty = Assembler()
    empty.block()
    empty.emit("RETURN")
    empty.execute()
    empty.emit("RETURN")
    variant = Variant(
        [entry(program, inputs, outputs), entry(empty.program(), name="second")],
        kernels=("scale", "stash"),
        scratch_bytes=512,
        code=harmless_code(),
    )
    gpu = Variant([entry(empty.program())], device=fbs.Device.VULKAN, features=("f", "g"))
    rodata = np.arange(64, dtype=np.uint8).tobytes()
    return ModuleFile([gpu, variant], rodata, parts=[(0, 16), (16, 48)], page=4096).to_bytes()


def kept_module() -> bytes:
    """State, branches and nested loops: a cache of x's rows, and a loop whose runs go to and fro
    between two places; all in the arena."""
    asm = Assembler()
    asm.block()
    past, n, four, one = asm.register(), asm.register(), asm.register(4), asm.register(1)
    zero, most, place = asm.register(0), asm.register(24), asm.register(128)
    asm.emit("STATE", past, 0)
    asm.emit("INPUT_DIM", n, 0, 0)
    total = asm.binary("ADD", past, n)
    asm.emit("CHECK", asm.binary("LE", total, most), 0, total)
    asm.emit("OUTPUT_DIM", 0, 0, total)
    start, size = asm.binary("MUL", past, four), asm.binary("MUL", n, four)
    all_bytes = asm.binary("MUL", total, four)
    asm.emit("BUFFER", 0, all_bytes)
    asm.emit("BUFFER", 1, all_bytes)
    in0, in1, out, first, second = (asm.register() for _ in range(5))
    asm.emit("RETURN")
    asm.execute()  # block 1
    half, here, there, limit, counter, test, spare, going = (asm.register() for _ in range(8))
    asm.emit("STATE", half, 1)
    asm.emit("COPY", ARENA, start, INPUTS, in0, size)
    asm.emit("LOAD", limit, INPUTS, in1, DTYPES["i64"])
    asm.emit("LOAD", going, INPUTS, in1, DTYPES["bool"])
    asm.emit("BRANCH", going, 2, 3)
    asm.block()
    asm.emit("COPY", ARENA, first, ARENA, zero, all_bytes)
    asm.emit("JUMP", 4)
    asm.block()
    asm.emit("FILL", ARENA, first, all_bytes, 0x3F800000)
    asm.emit("JUMP", 4)
    asm.block()  # 4
    asm.emit("MOVE", here, first)
    asm.emit("MOVE", there, second)
    asm.emit("MOVE", counter, zero)
    asm.emit("JUMP", 5)
    asm.block()  # 5
    asm.emit("LT", test, counter, limit)
    asm.emit("BRANCH", test, 6, 7)
    asm.block()
    asm.emit("STORE", ARENA, place, counter, DTYPES["i64"])
    asm.emit("DISPATCH", 0, n, one, one, here, there, n, four)
    asm.emit("COPY", ARENA, there, ARENA, here, all_bytes)
    for to, source in ((spare, here), (here, there), (there, spare)):
        asm.emit("MOVE", to, source)
    asm.emit("ADD", counter, counter, one)
    asm.emit("JUMP", 5)
    asm.block()  # 7
    asm.emit("COPY", OUTPUTS, out, ARENA, here, all_bytes)
    asm.emit("SET_STATE", 0, total)
    asm.emit("EQ", half, half, zero)
    asm.emit("SET_STATE", 1, half)
    asm.emit("RETURN")
    program = asm.program(
        messages=["a cache of 24 rows has no room for {0}"],
        inputOffsetRegisters=[in0, in1],
        outputOffsetRegisters=[out],
        arenaBytes=192,
        stateBytes=96,
        stateCount=2,
        stateKeyCount=1,
        buffers=[
            fbs.ArenaBufferT(0, 9, first, 64, 192),
            fbs.ArenaBufferT(0, 9, second, 64, 192 + 128),
        ],
        arenaBoundBytes=192 + 2 * 128,
    )
    made = entry(
        program,
        [tensor("x", "f32", dim("N", 0, 30)), tensor("k", "i64")],
        [tensor("y", "f32", dim("P + N", 0, 60))],
    )
    made.states = [tensor("cache", "f32", dim("P", 0, 24))]
    variant = Variant([made], kernels=("scale",), scratch_bytes=64, code=harmless_code())
    return ModuleFile([variant], page=4096).to_bytes()


GRAPHS: dict[str, tuple[Callable[[], bytes], dict[str, Any]]] = {
    "static": (static, {}),
    "dynamic": (dynamic, {}),
    "state": (state, {"states": {"h": "h2"}}),
    "growing": (growing, {"states": {"past": ("present", 32)}}),
    "branch": (branch, {}),
    "loop": (loop, {}),
    "doubles": (doubles, {}),
}
# How each is compiled, and what only some are.
TARGETS = {"cpu": ["host"], "gpu": ["vulkan-1.1"]}
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "bounded": ("dynamic", {"input_shapes": {"x": ["N<=4", 3, "H<=16", "W<=16"]}}),
    "stripped": ("dynamic", {"storage": "fp16", "strip": True}),
    "fat": ("static", {"targets": ["host", "x86-64-v2", "vulkan-1.1"]}),
    "wasm": ("static", {"targets": ["wasm32"]}),
    "hosted": ("doubles", {"targets": ["vulkan-1.1", "host"]}),
}


def write_seeds(folder: Path) -> list[Path]:
    """Writes all of them to a folder that is there."""
    files = {"whole": whole_module(), "busy": busy_module(), "kept": kept_module()}
    for name, (graph, options) in GRAPHS.items():
        for label, targets in TARGETS.items():
            files[f"{name}-{label}"] = aot.compile(graph(), targets=targets, **options).to_bytes()
    for name, (graph, options) in MORE.items():
        files[name] = aot.compile(GRAPHS[graph][0](), **options).to_bytes()
    for name, data in files.items():
        (folder / f"{name}.aotm").write_bytes(data)
    return [folder / f"{name}.aotm" for name in files]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_seeds(target)
