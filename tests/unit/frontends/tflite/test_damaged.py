"""TFLite files that are cut or changed: one clear error, or another model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aot.errors import CompileError, UnsupportedError
from aot.frontends.tflite import import_tflite
from tests.support.tflite_models import Builder
from tests.support.tflite_nets import mobilenet


def small() -> bytes:
    """Two operators, one of them with quantised weights."""
    b = Builder()
    x = b.tensor((1, 4, 4, 2), name="x")
    w = b.constant(np.ones((3, 3, 3, 2), np.int8), scale=np.full(3, 0.1))
    f, y = b.tensor((3, 3, 3, 2)), b.tensor((1, 4, 4, 3), name="y")
    b.op("DEQUANTIZE", [w], [f], "DequantizeOptions")
    bias = b.constant(np.zeros(3, np.float32))
    b.op("CONV_2D", [x, f, bias], [y], "Conv2DOptions", stride_h=1, stride_w=1)
    return b.model([x], [y])


def imports(data: bytes) -> None:
    """Reads a file, of which any error is the user's."""
    try:
        import_tflite(data)
    except (CompileError, UnsupportedError) as error:
        assert str(error).startswith("model: ")
        assert "\n" not in str(error) or isinstance(error, UnsupportedError)


def test_every_length() -> None:
    data = small()
    for length in range(8, len(data)):
        imports(data[:length])


def test_a_file_that_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "cut.tflite"
    path.write_bytes(small()[:64])
    with pytest.raises(CompileError) as caught:
        import_tflite(path)
    assert str(caught.value).startswith(f"{path}: the file is damaged at byte ")


def test_every_byte() -> None:
    data = small()
    for place in range(len(data)):
        for value in (0, 0x7F, 0xFF):
            imports(data[:place] + bytes([value]) + data[place + 1 :])


@pytest.mark.parametrize("seed", range(60))
def test_many_bytes(seed: int) -> None:
    random = np.random.RandomState(seed)
    data = bytearray(mobilenet())
    # behind the weights, where the tables are, and anywhere
    for place in random.randint(0, len(data), random.randint(1, 12)):
        data[place] = random.randint(256)
    words = np.frombuffer(bytes(data[: len(data) // 4 * 4]), np.int32).copy()
    for place in random.randint(0, 400, 3):
        words[place] = random.choice([0, -1, 1 << 30, -(1 << 31), 17])
    imports(words.tobytes())


def test_sizes_that_do_not_fit() -> None:
    b = Builder()
    x, y = b.tensor((3,)), b.tensor((3,))
    w = b.constant(np.ones(3, np.float32), name="w")
    b.tensors[w]["shape"] = [4]
    b.op("ADD", [x, w], [y], "AddOptions")
    with pytest.raises(CompileError) as caught:
        import_tflite(b.model([x], [y]))
    assert str(caught.value) == "model: tensor 2 'w' of 4 elements of FLOAT32 has 12 bytes"
