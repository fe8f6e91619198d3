"""ONNX's Fourier transforms beside numpy's: axes, lengths, sides, inverses, known and open."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import aot
from aot.frontends.onnx import import_onnx
from tests.support.onnx_models import graph_model, our_run, tensor_info

Array = np.ndarray[Any, Any]
# parts of a number, inverse, onesided
KINDS = [(1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0), (2, 1, 0), (2, 1, 1)]
# products, factors, a prime number, twice one; each is one of their kinds
LENGTHS = [2100, 4096, 2503, 4106]


def transform(
    shape: tuple[int | str, ...],
    dtype: type,
    axis: int,
    kind: tuple[int, int, int],
    length: int | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A DFT of x [*shape, parts]."""
    parts, inverse, onesided = kind
    constants = {} if length is None else {"n": length}
    attributes = {"inverse": inverse, "onesided": onesided}
    names = ["x", "" if length is None else "n"]
    if opset < 20:
        attributes["axis"] = axis
    else:
        constants["axis"] = axis
        names.append("axis")
    node = helper.make_node("DFT", names, ["y"], name="dft", **attributes)
    init = [numpy_helper.from_array(np.array(v), k) for k, v in constants.items()]
    elements = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return graph_model([node], [tensor_info("x", (*shape, parts), elements)], ["y"], init, opset)


def expected(x: Array, axis: int, kind: tuple[int, int, int], length: int | None) -> Array:
    """What numpy computes, in double precision."""
    parts, inverse, onesided = kind
    wide = x.astype(np.float64)
    numbers = wide[..., 0] + 1j * wide[..., 1] if parts == 2 else wide[..., 0]
    if inverse and onesided:
        return np.asarray(np.fft.irfft(numbers, length, axis=axis)[..., None])
    call = np.fft.ifft if inverse else np.fft.rfft if onesided else np.fft.fft
    made = call(numbers, length, axis=axis)
    return np.stack([made.real, made.imag], -1)


def assert_close(found: Array, wanted: Array, x: Array) -> None:
    assert found.shape == wanted.shape and found.dtype == x.dtype
    tolerance = 1e-6 if x.dtype == np.float32 else 4e-15
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opset", [17, 20])
def test_transforms_over_any_axis(dtype: type, kind: tuple[int, int, int], opset: int) -> None:
    rng = np.random.default_rng(1)
    for axis in (0, 1, 2, -2):
        for length in (None, 6, 9):
            x = rng.normal(size=(3, 4, 7, kind[0])).astype(dtype)
            wanted = expected(x, axis if axis >= 0 else 2, kind, length)
            for shape in ((3, 4, 7), ("A", "B", "C")):
                function = import_onnx(transform(shape, dtype, axis, kind, length, opset)).main
                (found,) = our_run(function, {"x": x})
                assert_close(found, wanted, x)


@pytest.mark.parametrize("kind", KINDS)
def test_an_open_length_is_compiled(kind: tuple[int, int, int]) -> None:
    with aot.load(aot.compile(transform(("B", "L"), np.float32, 1, kind))) as program:
        for length in (2, 3, 8, 31, 400):
            x = np.random.default_rng(length).normal(size=(2, length, kind[0])).astype(np.float32)
            (found,) = program({"x": x}).values()
            assert_close(found, expected(x, 1, kind, None), x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", LENGTHS)
def test_long_transforms(dtype: type, length: int) -> None:
    for kind in KINDS[1:]:
        for wanted_length in (None, length - 7):
            x = np.random.default_rng(2).normal(size=(1, length, 2, kind[0])).astype(dtype)
            function = import_onnx(transform((1, length, 2), dtype, 1, kind, wanted_length)).main
            (found,) = our_run(function, {"x": x})
            assert_close(found, expected(x, 1, kind, wanted_length), x)


def test_a_long_transform_is_compiled() -> None:
    x = np.random.default_rng(2).normal(size=(2, 4099, 1)).astype(np.float32)
    with aot.load(aot.compile(transform(("B", 4099), np.float32, 1, (1, 0, 1)))) as program:
        (found,) = program({"x": x}).values()
    assert_close(found, expected(x, 1, (1, 0, 1), None), x)


def frames(length: int | str, window: int | str | None, **attributes: int) -> onnx.ModelProto:
    """An STFT of x [B, length] in steps of 3."""
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"], name="stft", **attributes)
    inputs = [tensor_info("x", ["B", length])]
    if window is None:
        node.input.pop()
    else:
        inputs.append(tensor_info("window", [window]))
    return graph_model([node], inputs, ["y"], [numpy_helper.from_array(np.array(3), "step")])


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("window", [8, "W"])
def test_frames_of_signals_without_parts(window: int | str, onesided: int) -> None:
    """As torch.stft is exported."""
    model = frames("L", window, onesided=onesided)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(3)
    with aot.load(aot.compile(model)) as program:
        for length in (8, 9, 10, 11, 64):
            x = rng.normal(size=(2, length)).astype(np.float32)
            feeds = {"x": x, "window": rng.normal(size=8).astype(np.float32)}
            (wanted,) = session.run(None, feeds)
            (found,) = program(feeds).values()
            assert_close(found, wanted, x)
        with pytest.raises(aot.RuntimeFailure, match="stft: there is nothing left of its input"):
            program({**feeds, "x": np.ones((2, 4), np.float32)})


def test_one_frame_of_all() -> None:
    with aot.load(aot.compile(frames("L", None))) as program:
        for length in (1, 2, 9):
            x = np.random.default_rng(length).normal(size=(2, length)).astype(np.float32)
            (found,) = program({"x": x}).values()
            assert_close(found, expected(x[:, None, :, None], 2, (1, 0, 1), None), x)


def test_long_frames() -> None:
    model = frames(5000, 2500)
    rng = np.random.default_rng(3)
    x, window = (rng.normal(size=s).astype(np.float32) for s in ((1, 5000), (2500,)))
    (found,) = our_run(import_onnx(model).main, {"x": x, "window": window})
    rows = np.lib.stride_tricks.sliding_window_view(x, 2500, axis=1)[:, ::3] * window
    assert_close(found[:, :40], expected(rows[:, :40, :, None], 2, (1, 0, 1), None), x)
