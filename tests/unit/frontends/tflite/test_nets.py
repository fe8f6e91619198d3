"""Whole TFLite models, compiled and run: weights of each kind, tensors in their order."""

from __future__ import annotations

import numpy as np
import pytest

import aot
from aot.frontends.registry import TFLITE, find
from tests.support import litert
from tests.support.tflite_nets import Net, mobilenet, picture


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


def test_files_are_known_by_their_contents() -> None:
    assert find(mobilenet()) is TFLITE
