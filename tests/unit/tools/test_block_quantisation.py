"""`aotc quantize` with weights by blocks: products become MatMulNBits, and little is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from aot.cli.main import main
from aot.errors import CompileError
from aot.tools.block_quantisation import encoded
from aot.tools.quantisation import quantize


def model(folder: Path) -> Path:
    """Products with weights in either order, with and without a bias; one of few rows."""
    rng = np.random.default_rng(0)
    node = onnx.helper.make_node

    def weight(name: str, *dims: int) -> onnx.TensorProto:
        array = rng.standard_normal(dims) / np.sqrt(dims[0])
        return onnx.numpy_helper.from_array(array.astype(np.float32), name)

    graph = onnx.helper.make_graph(
        [
            node("MatMul", ["x", "w0"], ["m0"], name="first"),
            node("Relu", ["m0"], ["r0"], name="relu"),
            node("Gemm", ["r0", "w1", "b1"], ["m1"], name="second", transB=1),
            node("MatMul", ["m1", "w2"], ["m2"], name="third"),
            node("MatMul", ["m2", "w3"], ["y"], name="short"),
        ],
        "small",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (4, 128))],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (4, 7))],
        [
            weight("w0", 128, 96),
            weight("w1", 48, 96),
            weight("b1", 48),
            weight("w2", 48, 12),
            weight("w3", 12, 7),
        ],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    made.ir_version = 8
    path = folder / "small.onnx"
    onnx.save(made, path)
    return path


def data(folder: Path) -> Path:
    path = folder / "data.npz"
    np.savez(path, x=np.random.default_rng(1).standard_normal((6, 4, 128)).astype(np.float32))
    return path


def nodes_of(path: Path) -> dict[str, Any]:
    return {node.name: node for node in onnx.load(path).graph.node}


@pytest.mark.parametrize("block", [16, 32, 128])
@pytest.mark.parametrize(("bits", "least"), [(4, 18.0), (8, 40.0)])
def test_codes_stand_for_the_weights(bits: int, least: float, block: int) -> None:
    weights = np.random.default_rng(0).standard_normal((300, 9)).astype(np.float32)
    weights[:block, 3] = 0
    codes, scales = encoded(weights, block, bits)
    blocks = -(-300 // block)
    assert codes.shape == (9, blocks, block * bits // 8) and scales.shape == (9, blocks)
    numbers = codes
    if bits == 4:
        numbers = np.stack([codes & 15, codes >> 4], axis=-1).reshape(9, blocks, block)
    found = (numbers.astype(float) - (1 << (bits - 1))) * scales[..., None]
    found = found.reshape(9, -1)[:, :300].T
    noise = np.square(found - weights).sum()
    assert 10 * np.log10(np.square(weights, dtype=np.float64).sum() / noise) > least
    assert not found[:block, 3].any()


@pytest.mark.parametrize(
    ("weights", "activations", "least"),
    [("int4", "none", 14), ("int4", "int8", 14), ("int8", "none", 35)],
)
def test_products_have_weights_by_blocks(
    tmp_path: Path, weights: str, activations: str, least: float
) -> None:
    made = quantize(
        model(tmp_path),
        tmp_path / "q.onnx",
        data(tmp_path),
        weights=weights,
        activations=activations,
    )
    nodes = nodes_of(made.path)
    products = [nodes[name] for name in ("first", "second", "third")]
    assert {node.op_type for node in products} == {"MatMulNBits"}
    assert nodes["short"].op_type == "MatMul"
    levels = {a.i for node in products for a in node.attribute if a.name == "accuracy_level"}
    assert levels == ({4} if activations == "int8" else set())
    assert made.outputs["y"] > least
    assert {layer.name for layer in made.layers} == {"first", "second", "third", "short"}
    assert made.quantised_bytes < made.float_bytes * (0.35 if weights == "int4" else 0.5)
    reasons = set(made.multiply_adds)
    bits = 4 if weights == "int4" else 8
    expected = (
        "in integers"
        if activations == "int8"
        else f"only the weights are quantised, in {bits} bits"
    )
    assert expected in reasons


def test_a_product_stays_in_floats(tmp_path: Path) -> None:
    made = quantize(
        model(tmp_path), tmp_path / "q.onnx", data(tmp_path), weights="int4", skip=["second"]
    )
    assert nodes_of(made.path)["second"].op_type == "Gemm"
    made = quantize(
        model(tmp_path), tmp_path / "q.onnx", data(tmp_path), weights="int4", skip_below=15.0
    )
    assert made.outputs["y"] > 15 or made.skipped


def test_the_command_takes_weights_by_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(model(tmp_path)), "--calibrate", str(data(tmp_path)), "--weights", "int4"]
    output = tmp_path / "q.onnx"
    assert main(["quantize", *arguments, "--block-size", "16", "-o", str(output)]) == 0
    assert "signal to noise" in capsys.readouterr().out
    sizes = {
        a.i
        for node in onnx.load(output).graph.node
        for a in node.attribute
        if a.name == "block_size"
    }
    assert sizes == {16}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weights": "int4", "activations": "dynamic"},
            "weights by blocks have steps of their own: neither dynamic nor per tensor",
        ),
        (
            {"activations": "none", "per_channel": False},
            "weights by blocks have steps of their own: neither dynamic nor per tensor",
        ),
        (
            {"weights": "int4", "block_size": 24},
            "block size is 24, expected a power of two of 16 or more",
        ),
        (
            {"weights": "int4", "block_size": 256},
            "small.onnx: no MatMul or Gemm has constant weights of at least 256 rows, which could "
            "be quantised by blocks",
        ),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError) as error:
        quantize(model(tmp_path), tmp_path / "q.onnx", data(tmp_path), **options)
    assert str(error.value).removeprefix(f"{tmp_path}/") == message
    assert not (tmp_path / "q.onnx").exists()
