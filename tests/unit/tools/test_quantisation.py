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
from aot.tools.calibration import InputSpec, samples_in, samples_of
from aot.tools.pictures import Pictures, pictures_of
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
    assert main([*arguments, "--skip-below", "1000"]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("  in floats: ")]
    assert sorted(line.removeprefix("  in floats: ").split(", ")) == ["first", "last", "second"]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["samples"] == 6 and told["outputs"]["y"] > 20


SPEC = InputSpec("x", np.dtype(np.float32), (None, 3), "steps")
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
    with pytest.raises(
        CompileError, match=r"no \.npz or \.npy file and no picture is in this folder"
    ):
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


def spec(name: str, *dims: int | None, first: str = "") -> InputSpec:
    return InputSpec(name, np.dtype(np.float32), dims, first)


@pytest.mark.parametrize(
    ("specs", "shapes", "samples"),
    [
        # pictures of a batch that is 1, or open, whatever it is called
        ([spec("x", 1, 3, 4)], [(32, 3, 4)], [(1, 3, 4)] * 32),
        ([spec("x", None, 3, 4)], [(32, 3, 4)], [(1, 3, 4)] * 32),
        ([spec("x", None, 3, 4, first="N")], [(2, 1, 3, 4)], [(1, 3, 4)] * 2),
        # a batch of all inputs, one of which has nothing else
        (
            [spec("x", None, 5, first="n"), spec("y", None, first="n")],
            [(3, 5), (3,)],
            [(1, 5)] * 3,
        ),
        # steps of one sample
        ([spec("x", None, 5, first="seq_len")], [(3, 5)], [(3, 5)]),
        ([spec("x", None, 5, first="T")], [(3, 5)], [(3, 5)]),
        ([spec("x", None, 5, first="n"), spec("y", None)], [(3, 5), (3,)], [(3, 5)]),
        ([spec("x", 4, 5)], [(4, 5)], [(4, 5)]),
    ],
    ids=str,
)
def test_an_array_of_several_samples(
    specs: list[InputSpec], shapes: list[tuple[int, ...]], samples: list[tuple[int, ...]]
) -> None:
    arrays = {
        s.name: np.arange(np.prod(dims), dtype=np.float32).reshape(dims)
        for s, dims in zip(specs, shapes, strict=True)
    }
    found = samples_in([arrays], specs)
    assert [sample["x"].shape for sample in found] == samples
    together = np.concatenate([sample["x"].reshape(-1) for sample in found])
    np.testing.assert_array_equal(together, arrays["x"].reshape(-1))


def test_pictures_in_one_array_count(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=data_of(32)[:, 0])
    made = quantize(model(tmp_path), tmp_path / "q.onnx", tmp_path / "data.npz")
    assert made.samples == 32


def data_of(count: int) -> Any:
    return np.random.default_rng(1).standard_normal((count, *DIMS)).astype(np.float32)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_folder_of_pictures(tmp_path: Path, layout: str) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)
    image.fromarray(pixels).save(tmp_path / "b.PNG")
    image.fromarray(pixels[..., 0]).save(tmp_path / "a.bmp")
    how = Pictures((10.0, 20.0, 30.0), (0.5,), layout)
    dims = (1, 3, 6, 5) if layout == "nchw" else (None, 6, 5, 3)
    grey, colours = samples_of(tmp_path, [InputSpec("x", np.dtype(np.float32), dims)], how)
    wanted = (pixels.astype(np.float32) - [10, 20, 30]) * 0.5
    grey_wanted = (pixels[..., :1].astype(np.float32) - [10, 20, 30]) * 0.5
    for found, expected in ((colours, wanted), (grey, grey_wanted)):
        order = (2, 0, 1) if layout == "nchw" else (0, 1, 2)
        np.testing.assert_array_equal(found["x"], expected.transpose(order)[None])
        assert found["x"].dtype == np.float32
    # resized, and of one channel
    small = (1, 1, 3, 4) if layout == "nchw" else (1, 3, 4, 1)
    how = Pictures((0.0,), (1.0,), layout)
    found, _ = samples_of(tmp_path, [InputSpec("x", np.dtype(np.float32), small)], how)
    assert found["x"].shape == small


def test_pictures_of_which_too_little_is_known(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "a.png"
    image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(path)
    x = InputSpec("x", np.dtype(np.float32), (1, 3, 4, 4))
    with pytest.raises(CompileError, match="how a picture becomes numbers is not given: mean and"):
        samples_of(path, [x])
    assert pictures_of(None, None, None) is None
    with pytest.raises(CompileError, match="pictures need a scale, too: mean and scale"):
        pictures_of((0.0,), None, "nchw")
    with pytest.raises(CompileError, match="mean has 2 numbers, expected 1 or 3"):
        pictures_of((0.0, 1.0), (1.0,), "nchw")
    with pytest.raises(CompileError, match="layout is chw, expected nchw or nhwc"):
        pictures_of((0.0,), (1.0,), "chw")
    how = Pictures((0.0,), (1.0,), "nhwc")
    with pytest.raises(CompileError, match="has 4 channels in layout nhwc, expected 1 or 3"):
        samples_of(path, [x], how)
    with pytest.raises(CompileError, match="a picture is one input of float32, the model has x"):
        samples_of(path, [x, x], how)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(CompileError, match=r"a\.png is no picture that Pillow reads"):
        samples_of(path, [x], Pictures((0.0,), (1.0,), "nchw"))


def test_the_command_reads_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(5):
        pixels = rng.integers(0, 256, (20, 16, 3), np.uint8)
        image.fromarray(pixels).save(folder / f"{number}.jpg")
    given = ["quantize", str(model(tmp_path)), "--calibrate", str(folder)]
    given += ["-o", str(tmp_path / "q.onnx"), "--mean", "124,116,104", "--scale", "0.017"]
    assert main(given) == 1
    assert "pictures need a layout, too" in capsys.readouterr().err
    assert main([*given, "--layout", "nchw"]) == 0
    assert "calibrated on 5 samples" in capsys.readouterr().out


def test_a_module_of_pytorch(tmp_path: Path) -> None:
    """Its result is the module's, up to what the report says."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 5)
            self.dropout = torch.nn.Dropout(0.5)

        def forward(self, image: Any, shift: Any = 0.0) -> Any:
            features = torch.relu(self.conv(image)).mean((2, 3))
            return self.last(self.dropout(features)) + shift

    torch.manual_seed(0)
    net, images = Net(), data_of(8)[:, 0]
    made = aot.quantize(net, tmp_path / "q.onnx", [{"image": images}])
    assert made.samples == 8 and net.training
    net.eval()
    with aot.load(aot.compile(made.path)) as program:
        (found,) = program({"image": images[:2]}).values()
    wanted = net(torch.from_numpy(images[:2])).detach().numpy()
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()
    with pytest.raises(CompileError, match="no input 'x'; its forward takes image, shift"):
        aot.quantize(net, tmp_path / "r.onnx", [{"x": images}])
    with pytest.raises(CompileError, match="the inputs of a module are not known"):
        aot.quantize(net, tmp_path / "r.onnx", tmp_path)
    with pytest.raises(CompileError, match="the calibration data has no samples"):
        aot.quantize(net, tmp_path / "r.onnx", [])
    assert not (tmp_path / "r.onnx").exists()


def test_a_layer_with_a_large_error_stays_in_floats(tmp_path: Path) -> None:
    """Of weights with one step for all, of which one is a thousand times the others."""
    path = model(tmp_path)
    changed = onnx.load(path)
    (tensor,) = [t for t in changed.graph.initializer if t.name == "w1"]
    weights = onnx.numpy_helper.to_array(tensor).copy()
    weights[0, 0, 0, 0] = 3000 * np.abs(weights).max()
    weights[0, 0, 0, 1] = -weights[0, 0, 0, 0]
    tensor.CopyFrom(onnx.numpy_helper.from_array(weights, "w1"))
    onnx.save(changed, path)
    given = path, tmp_path / "q.onnx", data(tmp_path)
    every = quantize(*given, per_channel=False, skip_below=-np.inf)
    assert not every.skipped
    usual = quantize(*given, per_channel=False)
    assert set(usual.skipped) == {layer.name for layer in every.layers if layer.snr_db < 10}
