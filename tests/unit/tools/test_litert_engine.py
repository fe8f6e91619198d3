"""LiteRT as the engine that TFLite files are compared with."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import aot
from aot.errors import CompileError
from aot.tools.litert_engine import open_litert
from aot.tools.oracles import usual
from tests.support.generated_models import Graph
from tests.support.onnx_models import tensor_info
from tests.support.tflite_models import Builder, File, signature
from tests.support.tflite_nets import mobilenet


def test_tflite_files_are_compared_with_litert(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert")
    path = tmp_path / "net.tflite"
    path.write_bytes(mobilenet())
    result = aot.verify(aot.compile(path, targets=["host"]), path)
    assert result.engine == "litert" and result.agrees
    assert aot.verify(aot.compile(path, targets=["host"]), path, against="reference").agrees
    assert usual(path).oracle.name == "litert"


def test_a_model_of_another_format(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    graph = Graph(np.random.RandomState(0))
    graph.named(graph.op("Relu", "x"), "y")
    path.write_bytes(graph.model([tensor_info("x", [2])], ["y"]).SerializeToString())
    assert usual(path).oracle.name == "onnxruntime"
    with pytest.raises(CompileError) as caught:
        aot.verify(aot.compile(path, targets=["host"]), path, against="litert")
    assert str(caught.value) == (
        f"litert cannot run {path}: it is an ONNX model, expected a TFLite model"
    )


def doubled(*names: str, is_open: bool = False) -> bytes:
    """y = x + x, with an entry point of each name."""
    file, found = File(), []
    for number, name in enumerate(names or ("main",)):
        b = Builder(file=file)
        how = {"signature": (-1, 2)} if is_open else {}
        x, y = b.tensor((1, 2), name="x", **how), b.tensor((1, 2), name="y", **how)  # type: ignore[arg-type]
        b.op("ADD", [x, x], [y], "AddOptions")
        b.graph([x], [y], name)
        found.append(signature(name, number, {"given": x}, {"made": y}))
    return file.model(found if names else ())


def test_results_have_the_names_of_the_signature(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert")
    path = tmp_path / "m.tflite"
    path.write_bytes(doubled("only"))
    x = np.array([[1, 2]], np.float32)
    found = open_litert(path)({"given": x})
    assert {name: array.tolist() for name, array in found.items()} == {"made": [[2, 4]]}
    path.write_bytes(doubled("one", "two"))
    with pytest.raises(CompileError) as caught:
        open_litert(path)({"given": x})
    assert str(caught.value) == (
        f"litert cannot run {path}: it has the entry points one, two; compare with the reference"
    )


def test_open_dims_are_those_of_the_inputs(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert")
    path = tmp_path / "m.tflite"
    path.write_bytes(doubled(is_open=True))
    found = open_litert(path)({"x": np.ones((3, 2), np.float32)})
    assert found["y"].tolist() == [[2, 2]] * 3


def test_without_litert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    path = tmp_path / "m.tflite"
    path.write_bytes(doubled())
    with pytest.raises(CompileError) as caught:
        open_litert(path)({})
    assert str(caught.value) == "litert is not installed: pip install ai-edge-litert"
