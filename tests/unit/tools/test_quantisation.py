"""`aotc quantize`: the model that comes out, what is told of it, and data that does not fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import aot
from aot.cli.main import main
from aot.errors import CompileError
from aot.tools.calibration import InputSpec, samples_of
from aot.tools.quantisation import quantize

DIMS = (1, 3, 12, 12)


def model(folder: Path, opset: int = 13) -> Path:
    rng = np.random.default_rng(0)
    node = onnx.helper.make_node

    def weight(name: str, *dims: int) -> onnx.TensorProto:
        array = rng.standard_normal(dims).astype(np.float32) / np.sqrt(np.prod(dims[1:]))
        return onnx.numpy_helper.from_array(array.astype(np.float32), name)

    graph = onnx.helper.make_graph(
        [
            node("Conv", ["x", "w0", "b0"], ["c0"], name="first", pads=[1] * 4),
            node("Relu", ["c0"], ["r0"], name="relu"),
            node("Conv", ["r0", "w1"], ["c1"], name="second", strides=[2, 2]),
            node("GlobalAveragePool", ["c1"], ["p"], name="pool"),
            node("Flatten", ["p"], ["f"], name="flat"),
            node("Gemm", ["f", "w2", "b2"], ["y"], name="last"),
        ],
        "small",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, DIMS)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 5])],
        [
            weight("w0", 8, 3, 3, 3),
            weight("b0", 8),
            weight("w1", 16, 8, 3, 3),
            weight("w2", 16, 5),
            weight("b2", 5),
        ],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    made.ir_version = 8
    path = folder / "small.onnx"
    onnx.save(made, path)
    return path


def data(folder: Path, count: int = 6) -> Path:
    path = folder / "data.npz"
    samples = np.random.default_rng(1).standard_normal((count, *DIMS)).astype(np.float32)
    np.savez(path, x=samples)
    return path


def names_of(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_a_model_runs_in_integers(tmp_path: Path) -> None:
    made = quantize(model(tmp_path), tmp_path / "q.onnx", data(tmp_path))
    assert made.samples == 6 and not made.skipped
    assert made.path.stat().st_size == made.quantised_bytes
    assert "QuantizeLinear" in names_of(made.path)
    assert set(made.multiply_adds) == {"in integers"}
    assert [layer.snr_db for layer in made.layers] == sorted(e.snr_db for e in made.layers)
    assert {layer.name for layer in made.layers} == {"first", "second", "last"}
    assert 20 < made.outputs["y"] < 60
    assert all(20 < layer.snr_db < 60 for layer in made.layers)
    # what is told is what a compile of the file gives
    x = np.load(tmp_path / "data.npz")["x"]
    with aot.load(aot.compile(made.path)) as ours, aot.load(aot.compile(model(tmp_path))) as plain:
        pairs = [(plain({"x": s})["y"], ours({"x": s})["y"]) for s in x[:4]]
    signal = sum(np.square(a, dtype=np.float64).sum() for a, _ in pairs)
    noise = sum(np.square(a.astype(np.float64) - b).sum() for a, b in pairs)
    assert made.outputs["y"] == pytest.approx(10 * np.log10(signal / noise), abs=0.01)


def test_steps_may_be_found_by_each_run(tmp_path: Path) -> None:
    made = quantize(model(tmp_path), tmp_path / "q.onnx", data(tmp_path), activations="dynamic")
    assert "DynamicQuantizeLinear" in names_of(made.path)
    assert made.outputs["y"] > 20


def test_a_model_of_an_old_opset(tmp_path: Path) -> None:
    made = quantize(model(tmp_path, opset=9), tmp_path / "q.onnx", data(tmp_path))
    assert made.outputs["y"] > 20
    (opset,) = [o.version for o in onnx.load(made.path).opset_import if not o.domain]
    assert opset == 13


def test_layers_stay_in_floats(tmp_path: Path) -> None:
    made = quantize(model(tmp_path), tmp_path / "q.onnx", data(tmp_path), skip=["second"])
    assert made.skipped == ("second",)
    assert made.multiply_adds["in integers"] < sum(made.multiply_adds.values())
    made = quantize(model(tmp_path), tmp_path / "q.onnx", data(tmp_path), skip_below=100.0)
    assert set(made.skipped) == {"first", "second", "last"}
    assert "in integers" not in made.multiply_adds


def test_the_command_tells_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = model(tmp_path), tmp_path / "q.onnx"
    arguments = ["quantize", str(path), "--calibrate", str(data(tmp_path)), "-o", str(out)]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "calibrated on 6 samples" in text
    assert "100.0 % of multiply-adds in integers" in text
    assert "layers with the largest errors:" in text
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["samples"] == 6 and told["outputs"]["y"] > 20


SPEC = InputSpec("x", np.dtype(np.float32), (None, 3))
ONE, SEVERAL = np.ones((2, 3), np.float32), np.ones((4, 2, 3), np.float32)


@pytest.mark.parametrize(
    ("arrays", "count"), [({"x": ONE}, 1), ({"x": SEVERAL}, 4), ({"x": ONE, "other": ONE}, 1)]
)
def test_samples_of_a_file(tmp_path: Path, arrays: Mapping[str, Any], count: int) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    found = samples_of(tmp_path / "a.npz", [SPEC])
    assert [sample["x"].shape for sample in found] == [(2, 3)] * count


def test_samples_of_a_folder(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", ONE)
    np.savez(tmp_path / "a.npz", x=2 * SEVERAL)
    (tmp_path / "readme.txt").write_text("nothing")
    found = samples_of(tmp_path, [SPEC])
    assert [float(sample["x"].max()) for sample in found] == [2.0] * 4 + [1.0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": ONE}, "no array for input 'x'; it has y"),
        ({"x": ONE.astype(np.float64)}, "input 'x' is float64, expected float32"),
        (
            {"x": np.ones((2, 4), np.float32)},
            "input 'x' has shape [2, 4], expected float32[?, 3] or one dim more in front, "
            "for several samples",
        ),
        ({"x": np.full((2, 3), np.nan, np.float32)}, "input 'x' has NaN or infinite elements"),
    ],
)
def test_data_that_does_not_fit(tmp_path: Path, arrays: Mapping[str, Any], message: str) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    with pytest.raises(CompileError) as caught:
        samples_of(path, [SPEC])
    assert str(caught.value) == f"{path}: {message}"


def test_data_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="no such file or folder"):
        samples_of(tmp_path / "none", [SPEC])
    (tmp_path / "empty").mkdir()
    with pytest.raises(CompileError, match=r"no \.npz or \.npy file is in this folder"):
        samples_of(tmp_path / "empty", [SPEC])
    (tmp_path / "bad.npz").write_bytes(b"PK\3\4 nothing")
    with pytest.raises(CompileError, match=r"bad\.npz is not a \.npz file of numbers"):
        samples_of(tmp_path / "bad.npz", [SPEC])
    two = InputSpec("z", np.dtype(np.float32), (3,))
    np.save(tmp_path / "one.npy", ONE)
    with pytest.raises(CompileError, match="one array, but the model has inputs x, z"):
        samples_of(tmp_path / "one.npy", [SPEC, two])


def test_nothing_is_written_where_it_fails(tmp_path: Path) -> None:
    path, out = model(tmp_path), tmp_path / "q.onnx"
    with pytest.raises(CompileError, match="no node is called 'third'"):
        quantize(path, out, data(tmp_path), skip=["third"])
    with pytest.raises(CompileError, match="no such file"):
        quantize(tmp_path / "none.onnx", out, data(tmp_path))
    (tmp_path / "bad.onnx").write_bytes(path.read_bytes()[:200])
    with pytest.raises(CompileError):
        quantize(tmp_path / "bad.onnx", out, data(tmp_path))
    assert not list(tmp_path.glob("q.onnx*"))
