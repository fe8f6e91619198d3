"""The files that the examples of documents name: small models, and data, which are made here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

import aot

IMAGE = "float[1, 3, 32, 32]"


def _weights(name: str, *shape: int, dtype: type = np.float32) -> onnx.TensorProto:
    """The same random weights wherever they are asked for."""
    draw = np.random.default_rng(len(name) + sum(shape))
    return numpy_helper.from_array((draw.standard_normal(shape) / 4).astype(dtype), name)


def _model(text: str, *weights: onnx.TensorProto, opset: int = 17) -> onnx.ModelProto:
    made = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> main {text}')
    made.graph.initializer.extend(weights)
    onnx.checker.check_model(made)
    return made


def convolutions(shape: str = IMAGE, result: str = "float[N, 8]") -> onnx.ModelProto:
    """Two convolutions with ReLU, and the mean of each channel."""
    body = """
      a = Conv <pads = [1, 1, 1, 1]> (x, w1)
      b = Relu (a)
      c = Conv <pads = [1, 1, 1, 1]> (b, w2)
      d = Relu (c)
      y = ReduceMean <axes = [2, 3], keepdims = 0> (d)
    """
    weights = _weights("w1", 8, 3, 3, 3), _weights("w2", 8, 8, 3, 3)
    return _model(f"({shape} x) => ({result} y) {{ {body} }}", *weights)


def detection() -> onnx.ModelProto:
    """A map of an image of any size, as a text detector makes."""
    body = "a = Conv <pads = [1, 1, 1, 1]> (x, w1) y = Sigmoid (a)"
    text = f"(float[1, 3, H, W] x) => (float[1, 8, H, W] y) {{ {body} }}"
    return _model(text, _weights("w1", 8, 3, 3, 3))


def recurrent() -> onnx.ModelProto:
    """A step of a recurrent network. Its state is a pair of rows; the first is the new one."""
    body = """
      first = Gather <axis = 0> (state, zero)
      joined = Concat <axis = 1> (input, first)
      hidden = MatMul (joined, w)
      next = Tanh (hidden)
      row = Unsqueeze (next, axes)
      rest = Slice (state, from, to)
      stateN = Concat <axis = 0> (row, rest)
      output = ReduceMean <axes = [1], keepdims = 1> (next)
    """
    inputs, outputs = "float[1, 64] input, float[2, B, 128] state", "float[1, 1] output"
    text = f"({inputs}) => ({outputs}, float[2, B, 128] stateN)"
    numbers = {"zero": 0, "axes": [0], "from": [0], "to": [1]}
    constants = [numpy_helper.from_array(np.array(v), n) for n, v in numbers.items()]
    return _model(f"{text} {{ {body} }}", _weights("w", 192, 128), *constants)


def attention() -> onnx.ModelProto:
    """One head's past, which grows by what a call adds."""
    body = "present = Concat <axis = 2> (past, new) y = ReduceMean <axes = [2]> (present)"
    inputs = "float[1, 8, P, 64] past, float[1, 8, 1, 64] new"
    text = f"({inputs}) => (float[1, 8, 1, 64] y, float[1, 8, T, 64] present)"
    return _model(f"{text} {{ {body} }}")


def until_large() -> onnx.ModelProto:
    """A Loop that only its condition ends, with a row for each iteration."""
    body = """
      [decode] last, rows = Loop (, yes, x) <body = each
        (int64 i, bool go, float[4] v) => (bool more, float[4] w, float[4] row) {
          w = Add (v, v)
          row = Identity (w)
          most = ReduceMax <keepdims = 0> (w)
          more = Less (most, limit)
        }>
    """
    constants = [
        numpy_helper.from_array(np.array(True), "yes"),
        numpy_helper.from_array(np.float32(100), "limit"),
    ]
    return _model(f"(float[4] x) => (float[4] last, float[R, 4] rows) {{ {body} }}", *constants)


def halves() -> onnx.ModelProto:
    """A product in float16."""
    text = "(float16[4, 64] x) => (float16[4, 32] y) { a = MatMul (x, w) y = Relu (a) }"
    return _model(text, _weights("w", 64, 32, dtype=np.float16))


def quantised() -> onnx.ModelProto:
    """A product of 8-bit integers between QuantizeLinear and DequantizeLinear."""
    body = """
      q = QuantizeLinear (x, scale, zero)
      a = DequantizeLinear (q, scale, zero)
      b = DequantizeLinear (w, scale, zero)
      c = MatMul (a, b)
      r = QuantizeLinear (c, scale, zero)
      y = DequantizeLinear (r, scale, zero)
    """
    draw = np.random.default_rng(5).integers(-9, 9, (64, 32)).astype(np.int8)
    constants = [
        numpy_helper.from_array(draw, "w"),
        numpy_helper.from_array(np.float32(0.0625), "scale"),
        numpy_helper.from_array(np.int8(0), "zero"),
    ]
    return _model(f"(float[4, 64] x) => (float[4, 32] y) {{ {body} }}", *constants)


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "model.onnx": convolutions,
    "det.onnx": detection,
    "cls.onnx": lambda: convolutions("float[N, 3, 48, 192]"),
    "rec.onnx": lambda: convolutions("float[1, 3, 48, W]"),
    "vad.onnx": recurrent,
    "llm.onnx": attention,
    "decoder.onnx": until_large,
    "half.onnx": halves,
    "int8.onnx": quantised,
    "model.qdq.onnx": quantised,
}


def write_data(folder: Path) -> None:
    """Calibration data of `model.onnx`: arrays in `data`, pictures in `photos`."""
    draw = np.random.default_rng(6)
    (folder / "data").mkdir()
    samples = draw.standard_normal((4, 3, 32, 32)).astype(np.float32)
    np.savez(folder / "data" / "samples.npz", x=samples)
    (folder / "photos").mkdir()
    for number in range(3):
        pixels = draw.integers(0, 256, (32 * 32 * 3,)).astype(np.uint8).tobytes()
        (folder / "photos" / f"{number}.ppm").write_bytes(b"P6 32 32 255\n" + pixels)


def write_files(folder: Path, text: str) -> None:
    """Writes what an example's text names and does not make: models, modules and data."""
    for name, make in MODELS.items():
        if name in text:
            (folder / name).write_bytes(make().SerializeToString())
    made = set(re.findall(r"-o (\S+\.aotm)", text))
    for name in sorted(set(re.findall(r"\b(\w+\.aotm)\b", text)) - made):
        make = MODELS[f"{name.removesuffix('.aotm')}.onnx"]
        aot.compile(make(), jobs=1).save(folder / name)
    if "--calibrate" in text:
        write_data(folder)
