"""The commands of a stranger's first hour: each is right, or says what to do in one line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aot.cli.main import main

# (command, exit status, pattern of what it prints): in this order, in one folder
COMMANDS = [
    ("--help", 0, r"Every day:\n  compile +Compile "),
    ("compile net.onnx", 2, r"aotc: error: missing option '-o' / '--output'\n"),
    (
        "compile net.onnx -o net.aotm --target andriod",
        1,
        r"aotc: error: unknown target 'andriod': did you mean android or ",
    ),
    (
        "compile net.onnx -o net.aotm --input-shape image=1x4x8x8",
        1,
        r"aotc: error: net\.onnx: conv \(node 'first'\): constraint 4: x has group times as many "
        r"channels as w; found operands \(f32\[1, 4, 8, 8\], f32\[4, 3, 3, 3\], none\)\n"
        r"  input 'image': dim 1 is 3 in the model, 4 was given\n",
    ),
    (
        "compile net.onnx -o net.aotm --input-shape picture=1x3x8x8",
        1,
        r"aotc: error: net\.onnx: input_shapes: the model has no input 'picture'; its inputs are "
        r"'image'\n",
    ),
    ("compile net.onnx -o net.aotm", 0, r""),
    (
        "run net.onnx",
        1,
        r"aotc: error: net\.onnx: is an ONNX model, not a module file: compile it first: "
        r"aotc compile net\.onnx -o net\.aotm\n",
    ),
    ("run net.aotm", 0, r"output +dtype +shape .*\nlogits +float32  1x5 .*"),
    (
        "run net.aotm --input image=last.npy",
        1,
        r'aotc: error: input "image": expected shape \[1, 3, 8, 8\], found \[1, 8, 8, 3\]: give '
        r"array\.transpose\(0, 3, 1, 2\)\n",
    ),
    ("run net.aotm --input image=first.npy", 0, r"logits +float32  1x5"),
    ("verify net.onnx", 0, r"agrees with onnxruntime \S+ within 0\.0001"),
    ("bench net.aotm --runs 2 --seconds 0", 0, r"runs: median [\d.]+ ms, .*\n(.*\n)+.*  head\n"),
    ("inspect net.aotm", 0, r"entry point main\n    input  image: f32\[1, 3, 8, 8\]\n"),
    ("compile net.onnx -o phone.aotm --target android", 0, r""),
    (
        "run phone.aotm",
        1,
        r"aotc: error: no variant runs on this machine: aarch64-android: made for aarch64\n",
    ),
    ("package net.aotm --format source -o third_party/net", 0, r"third_party/net: \d+ files\n"),
]


def test_the_commands_of_the_first_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 3, 3, 3), np.float32)
    v = rng.standard_normal((4 * 6 * 6, 5), np.float32)
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Flatten", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "v"], ["logits"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(v, "v")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), "net.onnx")
    first = rng.standard_normal((1, 3, 8, 8), np.float32)
    np.save("first.npy", first)
    np.save("last.npy", first.transpose(0, 2, 3, 1))
    for command, status, pattern in COMMANDS:
        found = main(shlex.split(command))
        printed = "".join(capsys.readouterr())
        assert found == status, f"{command}: {printed}"
        assert re.search(pattern, printed), f"{command}: {printed}"
        assert "Traceback" not in printed
        assert "internal error" not in printed
        if status != 0:
            assert printed.startswith("aotc: error: "), printed
