"""Quantised models in integers: exact where nothing is rounded, else as near as is promised."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import aot
from aot.builder import Builder
from aot.cli.text import compile_summary
from aot.frontends.onnx import import_onnx
from aot.ir.clone import clone_module
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.ir.record import OpRecord
from aot.ir.types import DType
from aot.ops.quantization import DEQUANTIZE, QUANTIZE
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES
from aot.passes.quantise.quantise_contractions import IN_INTEGERS, multiply_adds_of
from tests.support import onnx_quantized_cases
from tests.support.onnx_models import Case, our_run
from tests.support.quantised_graphs import QuantisedGraph, differences


def passed(module: Module, *disable: str) -> tuple[Module, PassContext]:
    """The module after the passes of a model."""
    copy, context = clone_module(module), PassContext(CompileOptions(disable=disable))
    run_passes(copy, MODEL_PASSES, context)
    return copy, context


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs_compute_their_definition(seed: int) -> None:
    graph = QuantisedGraph(seed)
    inputs = graph.inputs()
    module, _ = passed(graph.module)
    found = run(module.main, inputs)
    problem, near = differences(graph.module.main, inputs, found)
    assert not problem
    assert near <= 3


def test_a_step_of_difference_is_seen() -> None:
    graph = QuantisedGraph(1)
    inputs = graph.inputs()
    found = [a.copy() for a in run(graph.module.main, inputs)]
    assert differences(graph.module.main, inputs, found) == ("", 0)
    last = found[-1].reshape(-1)
    last[0] += 1 if last[0] == np.iinfo(last.dtype).min else -1
    assert differences(graph.module.main, inputs, found)[0]


@pytest.mark.parametrize("dtype", ["u8", "i8", "u16", "i16"])
def test_what_is_dequantised_and_quantised_alike_is_what_it_was(dtype: str) -> None:
    """Every number of the dtype, at scales across the range in which the pass relies on it."""
    info = np.iinfo(DType(dtype).numpy)
    x = np.arange(info.min, info.max + 1).astype(info.dtype)
    rng = np.random.default_rng(5)
    scales = [2.0**-100, 2.0**100, 0.1, 1 / 3, *np.exp(rng.uniform(-40, 40, 20))]
    for scale, zero in itertools.product(scales, (info.min, 0, 7, info.max)):
        parameters = np.float32(scale), np.asarray(zero, info.dtype)
        (y,) = _run_record(DEQUANTIZE, x, *parameters)
        (back,) = _run_record(QUANTIZE, y, *parameters, to=dtype)
        np.testing.assert_array_equal(back, x)


def _run_record(record: OpRecord, *arrays: Any, **attrs: Any) -> list[Any]:
    b = Builder()
    values = [b.constant(np.asarray(a)) for a in arrays]
    b.output("y", b.op(record.name, *values, **attrs))
    return run(b.module().main, {})


def _product(*, is_float: bool = False) -> Builder:
    """Two products of bytes, of which one has both sides as inputs; a third of floats."""
    b, scale = Builder(), np.float32(0.5)
    x = b.op("dequantize", b.input("x", "u8[2, 30]"), scale)
    weights = np.arange(-60, 60).reshape(30, 4).astype(np.int8)
    b.output("constant", b.op("matmul", x, b.op("dequantize", weights, scale)))
    v = b.op("dequantize", b.input("v", "u8[30, 1]"), scale)
    b.output("varies", b.op("matmul", x, v))
    if is_float:
        b.output("float", b.op("matmul", b.input("f", "f32[2, 30]"), v))
    return b


def test_multiply_adds_are_counted_by_reason() -> None:
    _, context = passed(_product(is_float=True).module())
    assert multiply_adds_of(context) == {
        IN_INTEGERS: 240,
        "both operands vary": 60,
        "an operand is a float": 60,
    }
    _, context = passed(_product().module(), "integer-contractions")
    assert multiply_adds_of(context) == {
        "--disable integer-contractions": 240,
        "both operands vary": 60,
    }


@pytest.mark.parametrize("kernel", [(2, 2), (3, 2), (4, 1)])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_transposed_convolutions_with_a_scale_a_channel_are_of_integers(
    dtype: type, kernel: tuple[int, int]
) -> None:
    """Their weights are laid out anew, padded for strides that do not divide the kernel."""
    rng = np.random.default_rng(3)
    weights = rng.integers(0, 100, (5, 6, *kernel)).astype(dtype)
    scales = rng.uniform(0.01, 0.1, 6).astype(np.float32)
    module = import_onnx(transposed_convolution(weights, scales, np.arange(6).astype(dtype)))
    made, context = passed(module)
    assert set(multiply_adds_of(context)) == {IN_INTEGERS}
    x = rng.integers(0, 256, (1, 5, 4, 3)).astype(np.uint8)
    (found,), (expected,) = (run(m.main, [x]) for m in (made, module))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def transposed_convolution(weights: Any, scales: Any, zeros: Any) -> bytes:
    """ConvTranspose of dequantised bytes and weights, which have a scale for each filter."""
    constants = {
        "w": weights,
        "ws": scales,
        "wz": zeros,
        "xs": np.float32(0.02),
        "xz": np.uint8(7),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=1),
        helper.make_node("ConvTranspose", ["xd", "wd"], ["y"], strides=[2, 2]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 5, 4, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString())


def test_a_model_of_floats_has_no_such_count() -> None:
    b = Builder()
    b.output("y", b.op("matmul", b.input("x", "f32[2, 3]"), np.ones((3, 2), np.float32)))
    module = b.module()
    _, context = passed(module)
    assert multiply_adds_of(context) == {}
    assert "quantised" not in compile_summary(aot.compile(module).stats, "y.aotm", 1, 1)


def test_the_summary_says_what_is_in_integers() -> None:
    stats = aot.compile(_product().module()).stats
    assert compile_summary(stats, "y.aotm", 1, 1).splitlines()[2] == (
        "  quantised: 80.0 % of 300 multiply-adds in integers; in floats, as both operands vary "
        "(20.0 %)"
    )


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_weights_stay_bytes_in_the_file(dtype: type) -> None:
    b = Builder()
    weights = np.random.default_rng(0).integers(0, 120, (256, 256)).astype(dtype)
    scaled = b.op("dequantize", weights, np.full(256, 0.1, np.float32), np.full(256, 3, dtype))
    x = b.op("dequantize", b.input("x", "u8[4, 256]"), np.float32(0.5), np.uint8(9))
    b.output("y", b.op("quantize", b.op("matmul", x, scaled), np.float32(9), to="u8"))
    (stats,) = [aot.compile(b.module()).stats["rodata"]]
    assert 1 << 16 <= stats["bytes_kept"] < (1 << 16) + 4096


@pytest.mark.parametrize("group", [1, 2, 40])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_filters_of_floats_stay_bytes_in_the_file(dtype: type, group: int) -> None:
    """A scale for each filter, which is then a factor of what the filter gives; filters are stored
    with their channels last, as TFLite has them."""
    b, rng = Builder(), np.random.default_rng(0)
    stored = rng.integers(0, 120, (40, 3, 3, 40 // group)).astype(dtype)
    scales = rng.uniform(0.01, 0.1, (40, 1, 1, 1)).astype(np.float32)
    weights = b.op("dequantize", stored, scales, np.full((40, 1, 1, 1), 3, dtype))
    weights = b.op("transpose", weights, perm=(0, 3, 1, 2))
    bias = rng.standard_normal(40).astype(np.float32)
    attrs = {"strides": (2, 1), "pads": (1, 0, 1, 0), "dilations": (1, 1), "group": group}
    b.output("y", b.op("conv", b.input("x", "f32[2, 40, 9, 5]"), weights, bias, **attrs))
    module = b.module()
    made = aot.compile(module)
    assert made.stats["rodata"]["bytes_kept"] < 1.4 * stored.size + 2048  # columns are padded
    x = rng.standard_normal((2, 40, 9, 5)).astype(np.float32)
    (expected,) = run(module.main, [x])
    found = aot.load(made)(x=x)["y"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_filters_with_a_scale_for_each_channel_are_floats() -> None:
    """Which is no factor of what a filter gives."""
    for scale, zero in ((np.full((1, 40, 1, 1), 0.5), 0), (np.full((40, 1, 1, 1), 0.5), 128)):
        scale[..., 0, 0] += np.arange(40).reshape(scale.shape[:2])
        b = Builder()
        stored = np.arange(64000, dtype=np.int64).reshape(40, 40, 5, 8).astype(np.uint8)
        zeros = np.full(scale.shape, zero, np.uint8)
        weights = b.op("dequantize", stored, scale.astype(np.float32), zeros)
        attrs = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}
        b.output("y", b.op("conv", b.input("x", "f32[1, 40, 5, 9]"), weights, **attrs))
        made, _ = passed(b.module())
        (conv,) = [op for op in made.main.walk() if op.name == "conv"]
        is_kept = zero == 128  # which makes 0 to 255 numbers of 8 bits with a sign
        assert (conv.operands[1].op.name == "cast") == is_kept


def _with_constants(case: Case) -> Case:
    """The case with all operands but the first, and what stands for its tensor, as constants."""
    held = tuple(n for n, a in enumerate(case.inputs) if a is not None and n > 0)
    if case.op == "QLinearConcat":
        held = tuple(n for n in held if n not in (2, 5))
    return dataclasses.replace(case, constant=held)


@pytest.mark.parametrize("is_constant", [False, True], ids=["inputs", "constants"])
@pytest.mark.parametrize("case", onnx_quantized_cases.CASES, ids=str)
def test_nodes_compute_what_they_did(case: Case, is_constant: bool) -> None:
    """Integers to the bit; what is rounded, by one step at most."""
    case = _with_constants(case) if is_constant else case
    module = import_onnx(case.model())
    made, context = passed(module)
    found, expected = (our_run(m.main, case.feeds()) for m in (made, module))
    for ours, theirs in zip(found, expected, strict=True):
        if theirs.dtype == np.int32:
            np.testing.assert_array_equal(ours, theirs)
        elif theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
        else:
            off = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
            assert off.max(initial=0) <= 1
            assert (off > 0).sum() <= off.size // 50
    products = ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "QGemm")
    if case.op in (*products, "MatMulIntegerToFloat", "DynamicQuantizeMatMul"):
        assert set(multiply_adds_of(context)) == {IN_INTEGERS}


def _dynamic_convolution(weights: Any, zero: Any, image: tuple[int, ...], **attrs: Any) -> bytes:
    """What `quantize_dynamic` makes of a convolution."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "start"]),
        helper.make_node("ConvInteger", ["q", "w", "start", "zero"], ["y"], **attrs),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(zero, "zero")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((1, 1), {}),
        ((1, 1), {"strides": [2, 1]}),
        ((1, 1), {"pads": [0, 1, 0, 0]}),
        ((3, 3), {"pads": [1, 1, 1, 1]}),
        ((3, 2), {"pads": [2, 0, 1, 1], "dilations": [2, 1], "strides": [1, 2]}),
        ((3, 3), {"pads": [1, 1, 1, 1], "group": 2}),
        ((5,), {"pads": [2, 2]}),
    ],
    ids=str,
)
@pytest.mark.parametrize("zero", [np.int8(0), np.uint8(128), np.uint8(121), np.uint8(255)])
def test_dynamically_quantised_convolutions_multiply_bytes(
    kernel: tuple[int, ...], attrs: dict[str, Any], zero: Any
) -> None:
    """The padded image is made of bytes, whose padding is their zero point, so that nothing reads
    it in 16 bits; sums are ONNX Runtime's to the bit."""
    rng = np.random.default_rng(5)
    group = attrs.get("group", 1)
    info, image = np.iinfo(zero.dtype), (2, 8, *(11, 9)[: len(kernel)])
    shape = (6, 8 // group, *kernel)
    weights = rng.integers(info.min, info.max, shape, zero.dtype, endpoint=True)
    model = _dynamic_convolution(weights, np.asarray(zero), image, **attrs)
    module = import_onnx(model)
    made, context = passed(module)
    assert set(multiply_adds_of(context)) == {IN_INTEGERS}
    (conv,) = [op for op in made.main.walk() if op.name == "conv_integer"]
    assert conv.operands[0].type.dtype is DType.U8
    x = rng.standard_normal(image).astype(np.float32)
    session = onnxruntime.InferenceSession(model)
    (expected,) = session.run(None, {"x": x})
    (found,) = run(made.main, [x])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(aot.load(aot.compile(module))(x=x)["y"], expected)


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize(("name", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_weights_of_recurrent_layers_stay_bytes_in_the_file(
    name: str, gates: int, *, is_signed: bool
) -> None:
    """Those with one scale; of open steps and sequences, against ONNX Runtime in floats."""
    rng = np.random.default_rng(2)
    features, hidden, directions = 96, 64, 2
    zero = np.int8(0) if is_signed else np.uint8(128)
    info = np.iinfo(zero.dtype)
    arrays: dict[str, Any] = {"scale": np.float32(0.002), "zero": zero}
    for which, columns in (("w", features), ("r", hidden)):
        shape = (directions, gates * hidden, columns)
        arrays[which] = rng.integers(info.min, info.max, shape, zero.dtype, endpoint=True)
    arrays["b"] = rng.uniform(-1, 1, (directions, 2 * gates * hidden)).astype(np.float32)
    made = [
        helper.make_node("DequantizeLinear", [which, "scale", "zero"], [f"{which}f"])
        for which in "wr"
    ]
    how = {"hidden_size": hidden, "direction": "bidirectional"}
    made.append(helper.make_node(name, ["x", "wf", "rf", "b"], ["y", "last"], **how))
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", "N", features])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "last")],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    data = bytes(model.SerializeToString())
    compiled = aot.compile(import_onnx(data))
    assert compiled.stats["rodata"]["bytes_kept"] < 1.1 * (arrays["w"].size + arrays["r"].size)
    session = onnxruntime.InferenceSession(data)
    program = aot.load(compiled)
    for steps, sequences in ((5, 1), (3, 2), (1, 5)):
        x = rng.standard_normal((steps, sequences, features)).astype(np.float32)
        expected = session.run(None, {"x": x})
        found = program(x=x)
        for array, name_of in zip(expected, ("y", "last"), strict=True):
            np.testing.assert_allclose(found[name_of], array, rtol=0, atol=2e-5)
