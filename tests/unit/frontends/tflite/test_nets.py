"""Whole TFLite models, compiled and run: weights of each kind, tensors in their order."""

from __future__ import annotations

import numpy as np
import pytest

import aot
from aot.frontends.registry import TFLITE, find
from tests.support import litert
from tests.support.tflite_models import Builder
from tests.support.tflite_nets import Net, mobilenet, picture, quantised_net


@pytest.mark.parametrize("is_half", [False, True], ids=["f32", "f16"])
def test_a_net_agrees_with_litert(is_half: bool) -> None:
    model, image = mobilenet(is_half=is_half), picture()
    wanted = litert.expected(model, {"image": image})["scores"]
    program = aot.load(aot.compile(model, targets=["host"]))
    np.testing.assert_allclose(program(image=image)["scores"], wanted, rtol=0, atol=1e-6)


def test_weights_in_half_stay_so() -> None:
    """The file has them as they are in the model, whatever order the kernel reads them in."""

    def file_bytes(*, is_half: bool) -> int:
        net = Net(is_half=is_half)
        x = net.tensor((1, 8, 8, 64))
        y = net.conv(net.conv(x, 64, 3), 96, 1)
        return len(aot.compile(net.model([x], [y]), targets=["x86-64-v3"]).to_bytes())

    weights = 64 * 64 * 9 + 64 * 96
    assert file_bytes(is_half=False) - file_bytes(is_half=True) > 2 * weights - 4096


@pytest.mark.parametrize("is_wide", [False, True], ids=["i8", "i16"])
def test_a_quantised_net_agrees_with_litert(is_wide: bool) -> None:
    """Each layer is off by a step at most, and the next ones see it."""
    model, dtype = quantised_net(is_wide=is_wide), np.int16 if is_wide else np.int8
    info, random = np.iinfo(dtype), np.random.RandomState(3)
    image = random.randint(info.min, info.max + 1, (1, 32, 32, 3)).astype(dtype)
    wanted = litert.expected(model, {"image": image})["scores"].astype(np.int64)
    compiled = aot.compile(model, targets=["host"])
    found = aot.load(compiled)(image=image)["scores"]
    assert found.dtype == dtype and wanted.std() > 5
    assert np.abs(found - wanted).max() <= 2
    assert set(compiled.stats["variants"][0]["multiply_adds"]) == {"in integers"}


def test_images_of_any_size() -> None:
    """Paddings, windows and means follow the input, by one program."""
    net = Net()
    image = net.tensor((1, 32, 32, 3), name="image", signature=(-1, -1, -1, 3))
    x = net.depthwise(net.conv(image, 8, 3, 2), 2)
    mean = net.tensor((1, 8))
    net.op("MEAN", [x, net.constant(np.array([1, 2], np.int32))], [mean], "ReducerOptions")
    model = net.model([image], [mean, x])
    program = aot.load(aot.compile(model, targets=["host"]))
    for shape in ((1, 32, 32, 3), (3, 17, 40, 3), (2, 9, 16, 3)):
        given = np.random.RandomState(1).standard_normal(shape).astype(np.float32)
        found = program(image=given)
        for name, wanted in litert.expected(model, {"image": given}).items():
            np.testing.assert_allclose(found[name], wanted, rtol=0, atol=2e-6)


def test_weights_of_8_bits_beside_floats() -> None:
    """Dynamic-range models: LiteRT rounds activations to 8 bits, we don't."""
    b, random = Builder(), np.random.RandomState(0)
    x, y = b.tensor((4, 256), name="x"), b.tensor((4, 512), name="y")
    codes = random.randint(-127, 128, (512, 256)).astype(np.int8)
    operands = [x, b.constant(codes, scale=0.01), b.constant(np.zeros(512, np.float32))]
    b.op("FULLY_CONNECTED", operands, [y], "FullyConnectedOptions")
    model = b.model([x], [y])
    compiled = aot.compile(model, targets=["host"])
    assert len(compiled.to_bytes()) < 1.1 * len(model)
    given = random.standard_normal((4, 256)).astype(np.float32)
    found = aot.load(compiled)(x=given)["y"]
    exact = given.astype(np.float64) @ (codes.astype(np.float64) * np.float32(0.01)).T
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-4)
    theirs = litert.expected(model, {"x": given})["y"]
    assert np.abs(found - exact).max() < 0.01 * np.abs(theirs - exact).max()


def test_files_are_known_by_their_contents() -> None:
    assert find(mobilenet()) is TFLITE
