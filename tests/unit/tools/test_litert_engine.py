"""LiteRT as the engine that TFLite files are compared with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aot
from aot.errors import CompileError
from aot.tools.litert_engine import usual_engine
from tests.support.generated_models import Graph
from tests.support.onnx_models import tensor_info
from tests.support.tflite_nets import mobilenet


def test_tflite_files_are_compared_with_litert(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert")
    path = tmp_path / "net.tflite"
    path.write_bytes(mobilenet())
    result = aot.verify(aot.compile(path, targets=["host"]), path)
    assert result.engine == "litert" and result.agrees
    assert aot.verify(aot.compile(path, targets=["host"]), path, against="reference").agrees
    assert usual_engine(path, has_states=True) == "reference"


def test_a_model_of_another_format(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    graph = Graph(np.random.RandomState(0))
    graph.named(graph.op("Relu", "x"), "y")
    path.write_bytes(graph.model([tensor_info("x", [2])], ["y"]).SerializeToString())
    assert usual_engine(path, has_states=False) == "reference"
    with pytest.raises(CompileError) as caught:
        aot.verify(aot.compile(path, targets=["host"]), path, against="litert")
    assert str(caught.value) == (
        f"litert cannot run {path}: it is an ONNX model, expected a TFLite model"
    )
