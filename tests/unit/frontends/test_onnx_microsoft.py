"""ONNX Runtime's own ops of decoders and of its optimiser mean what ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import helper

import aot
from aot.errors import UnsupportedError
from aot.frontends.onnx import import_onnx
from aot.ir.graph import Module
from tests.support import onnx_microsoft_cases
from tests.support.onnx_models import (
    Array,
    Case,
    assert_same,
    compare,
    graph_model,
    ort_run,
    our_run,
    tensor_info,
)


@pytest.mark.parametrize("case", onnx_microsoft_cases.CASES, ids=str)
def test_against_onnxruntime(case: Case) -> None:
    compare(case.model(), case.feeds())


@pytest.mark.parametrize(
    "case",
    [case for case in onnx_microsoft_cases.NORMS if case.op.startswith("Skip")],
    ids=str,
)
def test_the_sum_of_a_skip_is_an_output(case: Case) -> None:
    model = case.model()
    node = model.graph.node[0]
    outputs = ["y", "", "", "sum"]
    node = helper.make_node(case.op, list(node.input), outputs, domain=case.domain)
    compare(graph_model([node], model.graph.input, ["y", "sum"]), case.feeds())


def test_a_model_for_one_machine_is_refused() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="c", domain="com.microsoft.nchwc")
    inputs = [tensor_info("x", [1, 8, 4, 4]), tensor_info("w", [8, 8, 1, 1])]
    with pytest.raises(UnsupportedError) as error:
        import_onnx(graph_model([node], inputs, ["y"]))
    assert list(error.value.items) == [
        "com.microsoft.nchwc.Conv (node 'c'): this ONNX file was written by ONNX Runtime's "
        "optimiser for one machine; give the model that it was made from"
    ]


def test_compiled() -> None:
    """All cases as entry points of one module."""
    module = Module()
    for number, case in enumerate(onnx_microsoft_cases.CASES):
        function = import_onnx(case.model()).main
        function.name = f"f{number}"
        module.add(function)
    data = aot.compile(module, targets=["host"]).to_bytes()
    for number, case in enumerate(onnx_microsoft_cases.CASES):
        with aot.load(data, entry=f"f{number}") as program:
            found = list(program(case.feeds()).values())
        assert_same(found, ort_run(case.model(), case.feeds()))


# What ONNX Runtime has for other devices alone: against what its documents say, in ONNX's own ops.


def random(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def found(op: str, operands: Sequence[Array | None], **attrs: object) -> Array:
    case = Case(op, operands, attrs, domain="com.microsoft")
    (y,) = our_run(import_onnx(case.model()).main, case.feeds())
    return y


def convolved(x: Array, w: Array, bias: Array, **attrs: object) -> Array:
    """ONNX's Conv, channels last in x and y."""
    case = Case("Conv", [np.moveaxis(x, -1, 1), w, bias], attrs)
    return np.moveaxis(ort_run(case.model(), case.feeds())[0], 1, -1)


def test_biases_and_the_split_gelu() -> None:
    x, bias = random(2, 5, 8), random(8)
    left, right = np.split(x + bias, 2, axis=-1)
    gelu = ort_run(*_alone("Gelu", right))[0]
    np.testing.assert_allclose(found("BiasSplitGelu", [x, bias]), left * gelu, rtol=1e-5, atol=1e-6)
    skip = random(2, 5, 8)[::-1].copy()
    np.testing.assert_array_equal(found("BiasAdd", [x, bias, skip]), x + bias + skip)


def _alone(op: str, x: Array) -> tuple[onnx.ModelProto, dict[str, Array]]:
    case = Case(op, [x], opset=20)
    return case.model(), case.feeds()


@pytest.mark.parametrize("group", [1, 2])
def test_convolutions_with_channels_last(group: int) -> None:
    x, w, bias = random(2, 6, 5, 4), random(6, 4 // group, 3, 3), random(6)
    attrs = {"group": group, "pads": [1, 0, 1, 2], "strides": [2, 1]}
    wanted = convolved(x, w, bias, **attrs)
    last = np.moveaxis(w, 1, -1).copy()
    np.testing.assert_allclose(found("NhwcConv", [x, last, bias], **attrs), wanted, atol=2e-5)
    more = random(*wanted.shape)
    y = found("NhwcFusedConv", [x, w, bias, more], activation="Relu", **attrs)
    np.testing.assert_allclose(y, np.maximum(wanted + more, 0), atol=2e-5)


def test_weights_of_an_lstm_in_8_bits() -> None:
    """A scale for all, for each direction, or for each column: ONNX's layer on what they mean."""
    random_ = np.random.default_rng(6)
    x, hidden, inputs = random(4, 2, 5), 3, 5
    shapes: list[tuple[int, ...]] = [(1,), (2,), (2, 4 * hidden)]
    for shape in shapes:
        w, r = (
            random_.integers(-99, 99, (2, n, 4 * hidden)).astype(np.int8) for n in (inputs, hidden)
        )
        scales = [random_.uniform(0.003, 0.01, shape).astype(np.float32) for _ in range(2)]
        zeros = [random_.integers(-9, 9, shape).astype(np.int8) for _ in range(2)]
        bias = random_.standard_normal((2, 8 * hidden)).astype(np.float32)
        attrs = {"hidden_size": hidden, "direction": "bidirectional"}
        given = [w, r, bias, None, None, None, None, scales[0], zeros[0], scales[1], zeros[1]]
        case = Case("DynamicQuantizeLSTM", [x, *given], attrs, domain="com.microsoft", outputs=3)
        ours = our_run(import_onnx(case.model()).main, case.feeds())
        floats = []
        for codes, scale, zero in zip((w, r), scales, zeros, strict=True):
            shaped = (-1, 1, 1) if len(shape) == 1 else (2, 1, -1)
            floats.append((codes - zero.reshape(shaped).astype(np.float32)) * scale.reshape(shaped))
        whole = [x, *(f.transpose(0, 2, 1).astype(np.float32) for f in floats), bias]
        plain = Case("LSTM", whole, attrs, opset=14, outputs=3)
        assert_same(ours, ort_run(plain.model(), plain.feeds()))


def test_queries_keys_and_values_in_one_operand() -> None:
    """[batch, length, heads, parts, depth] is each part by itself."""
    q, k, v, bias = random(2, 5, 12), random(2, 5, 12) * 0.5, random(2, 5, 12) + 1, random(36)
    apart = [a.reshape(2, 5, 3, 4) for a in (q, k, v)]
    wanted = found("MultiHeadAttention", [q, k, v, bias], num_heads=3)
    qkv, kv = np.stack(apart, axis=3), np.stack(apart[1:], axis=3)
    for operands in ([qkv, None, None, bias], [q, kv, None, bias]):
        y = found("MultiHeadAttention", operands, num_heads=3)
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


def test_lengths_with_starts_of_packed_rows() -> None:
    """Lengths, and then where each row's queries and keys begin: the lengths alone mask."""
    q, lengths = random(2, 5, 12), np.array([3, 5], np.int32)
    wanted = found("MultiHeadAttention", [q, q, q, None, lengths], num_heads=3)
    mask = np.array([3, 5, 0, 3, 8, 0, 3, 8], np.int32)
    y = found("MultiHeadAttention", [q, q, q, None, mask], num_heads=3)
    np.testing.assert_array_equal(y, wanted)


def test_heads_of_a_group_that_are_normalised() -> None:
    """Each head of q and k over the root of its mean square, times a weight."""
    weights, (q, k, v) = (
        [random(16), random(16)[::-1].copy()],
        [random(1, 5, n) for n in (64, 32, 32)],
    )
    rest = [v, None, None, np.array([4], np.int32), np.array(5, np.int32), *[None] * 7]
    how: dict[str, object] = {"num_heads": 4, "kv_num_heads": 2}

    def normed(x: Array, weight: Array) -> Array:
        apart = x.reshape(1, 5, -1, 16)
        size = np.sqrt(np.square(apart).mean(-1, keepdims=True) + 1e-6)
        return np.asarray(apart / size * weight, np.float32).reshape(x.shape)

    def run(*operands: Array | None) -> Array:
        case = Case("GroupQueryAttention", operands, how, domain="com.microsoft", outputs=3)
        return our_run(import_onnx(case.model()).main, case.feeds())[0]

    wanted = run(normed(q, weights[0]), normed(k, weights[1]), *rest[:5])
    np.testing.assert_allclose(run(q, k, *rest, *weights), wanted, rtol=1e-4, atol=1e-5)
