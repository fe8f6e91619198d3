"""ONNX models with weights of few bits, which stay in their bits; products are ONNX Runtime's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import aot
from aot.cli.text import compile_summary
from aot.errors import CompileError, UnsupportedError
from aot.frontends.onnx import import_onnx
from aot.ir.clone import clone_module
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES
from tests.support.blocked_models import Dequantized, NBits
from tests.support.onnx_models import ort_run

Array = np.ndarray[Any, Any]
BLOCKED = REGISTRY["matmul_blocked"]

NBITS = {
    "plain": NBits(5, 64, 40),
    "row": NBits(1, 128, 33, zeros="packed"),
    "uneven": NBits(3, 70, 19, zeros="packed", has_bias=True),
    "bytes": NBits(3, 96, 17, bits=8, block=64),
    "bytes-zeros": NBits(2, 96, 17, bits=8, zeros="packed"),
    "two-bits": NBits(2, 64, 16, bits=2),
    "whole-zeros": NBits(2, 64, 16, zeros="whole"),
    "float-zeros": NBits(3, 70, 19, zeros="float", has_bias=True),
    "half": NBits(4, 96, 17, dtype=np.float16),
    "block-16": NBits(4, 48, 5, block=16, zeros="packed"),
    "block-256": NBits(4, 300, 5, block=256),
    "batch": NBits(3, 64, 24, batch=(2, 2)),
    "in-order": NBits(3, 64, 24, order=np.arange(64) // 32),
    "out-of-order": NBits(3, 64, 24, order=(np.arange(64) * 7 % 64) // 32),
}
DEQUANTIZED = {
    f"{kind}-{op}{'-turned' * turned}-{block}{'-zeros' * zeros}": Dequantized(
        3, k, 19, block, kind, op, turned, zeros
    )
    for kind, op, turned, k, block, zeros in (
        ("int4", "MatMul", False, 64, 16, False),
        ("int4", "MatMul", True, 64, 32, True),
        ("uint4", "MatMul", False, 70, 32, True),
        ("uint4", "Gemm", True, 33, 11, False),
        ("int8", "Gemm", False, 64, 32, True),
        ("int8", "MatMul", False, 35, 0, False),
        ("uint8", "Gemm", True, 48, 16, True),
        ("uint8", "MatMul", True, 40, 0, True),
    )
}


def passed(model: onnx.ModelProto, *disable: str) -> Module:
    """The model after the passes of a model."""
    module = clone_module(import_onnx(model))
    run_passes(module, MODEL_PASSES, PassContext(CompileOptions(disable=disable)))
    return module


def names_of(module: Module) -> set[str]:
    return {op.name for op in module.main.walk()}


def assert_close(found: Array, expected: Array) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    size = float(np.abs(expected.astype(np.float64)).max())
    tolerance = 2e-3 if found.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * size)


@pytest.mark.parametrize("name", NBITS)
def test_products_of_matmul_nbits(name: str) -> None:
    case = NBITS[name]
    (expected,) = ort_run(case.model(), {"a": case.left()})
    module = passed(case.model())
    assert "matmul_blocked" in names_of(module)
    (found,) = run(module.main, [case.left()])
    assert_close(found, expected)


@pytest.mark.parametrize("name", DEQUANTIZED)
def test_products_with_dequantised_weights(name: str) -> None:
    case = DEQUANTIZED[name]
    (expected,) = ort_run(case.model(), {"a": case.left()})
    module = passed(case.model())
    assert "matmul_blocked" in names_of(module)
    (found,) = run(module.main, [case.left()])
    assert_close(found, expected)


@pytest.mark.parametrize("case", [NBITS["uneven"], DEQUANTIZED["int4-MatMul-turned-32-zeros"]])
def test_weights_become_floats_where_that_is_asked_for(case: NBits | Dequantized) -> None:
    (expected,) = ort_run(case.model(), {"a": case.left()})
    module = passed(case.model(), "blocked-weights")
    assert "matmul_blocked" not in names_of(module)
    (found,) = run(module.main, [case.left()])
    assert_close(found, expected)


@pytest.mark.parametrize(
    "case",
    [
        NBits(1, 512, 256, zeros="packed"),
        NBits(1, 512, 256, bits=8, block=128),
        NBits(1, 512, 256, dtype=np.float16),
        Dequantized(1, 512, 256, 32, "uint4", has_zeros=True),
        Dequantized(1, 512, 256, 0, "int8"),
    ],
)
def test_the_file_has_no_more_bytes_of_weights_than_the_model(case: NBits | Dequantized) -> None:
    model = case.model()
    stored = sum(
        len(t.raw_data) or helper.tensor_dtype_to_np_dtype(t.data_type).itemsize * len(t.int32_data)
        for t in onnx.load_from_string(model.SerializeToString()).graph.initializer
    )
    compiled = aot.compile(model)
    assert compiled.stats["rodata"]["bytes_kept"] <= 1.02 * stored
    assert "only the weights are quantised, in" in compile_summary(compiled.stats, "y.aotm", 1, 1)


@pytest.mark.parametrize("rows", [1, 2, 3, 17, 130])
@pytest.mark.parametrize("name", ["uneven", "half", "bytes", "float-zeros"])
def test_rows_may_be_as_many_as_there_are(name: str, rows: int) -> None:
    case = replace(NBITS[name], rows="m")
    program = aot.load(aot.compile(case.model()))
    left = case.left(rows)
    (found,) = program.run([left])
    (expected,) = ort_run(case.model(), {"a": left})
    assert_close(np.asarray(found), expected)


@pytest.mark.parametrize("rows", [1, 3, 19])
@pytest.mark.parametrize(
    "name", ["plain", "uneven", "bytes-zeros", "two-bits", "half", "float-zeros"]
)
def test_activations_are_rounded_where_the_model_permits_it(name: str, rows: int) -> None:
    """By 1 / 254 of the largest of their block at most; ONNX Runtime does the same."""
    exact = replace(NBITS[name], rows="m")
    left = exact.left(rows)
    left[1:2] = 0  # the quotient of which is no number
    (expected,) = ort_run(exact.model(), {"a": left})
    compiled = aot.compile(replace(exact, attrs={"accuracy_level": 4}).model())
    assert "100.0 % of" in compile_summary(compiled.stats, "y.aotm", 1, 1)
    (found,) = aot.load(compiled).run([left])
    blocks = np.array_split(np.abs(left.astype(float)), range(exact.block, exact.k, exact.block), 1)
    spread = [np.broadcast_to(b.max(axis=1, keepdims=True), b.shape) for b in blocks]
    bound = np.concatenate(spread, axis=1) / 254 @ np.abs(exact.weights())
    slack = 2e-3 if exact.dtype == np.float16 else 1e-5
    off = np.abs(np.asarray(found).astype(float) - expected.astype(float))
    assert np.all(off <= 1.01 * bound + slack * np.abs(expected.astype(float)).max())
    assert off[1:2].max(initial=0) <= slack * np.abs(expected.astype(float)).max()
    assert off.max() > 0


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize(
    ("activations", "share"),
    [("f32", "0.0 % of"), ("int8", "100.0 % of")],
)
def test_an_option_decides_about_activations(activations: str, share: str, level: int) -> None:
    case = replace(NBITS["plain"], attrs={"accuracy_level": level} if level else {})
    compiled = aot.compile(case.model(), activations=activations)
    assert f"quantised: {share}" in compile_summary(compiled.stats, "y.aotm", 1, 1)
    (found,) = aot.load(compiled).run([case.left()])
    (expected,) = ort_run(NBITS["plain"].model(), {"a": case.left()})
    difference = np.abs(np.asarray(found) - expected).max() / np.abs(expected).max()
    assert difference < 1e-5 if activations == "f32" else 1e-5 < difference < 2e-2


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [("UINT4", 0, 15), ("INT4", -8, 7), ("UINT2", 0, 3), ("INT2", -2, 1)],
)
@pytest.mark.parametrize("is_raw", [False, True])
def test_constants_of_less_than_a_byte(kind: str, low: int, high: int, is_raw: bool) -> None:
    if not hasattr(TensorProto, kind):
        pytest.skip("this onnx has no such type")
    numbers = np.random.default_rng(0).integers(low, high + 1, (3, 5))
    tensor = helper.make_tensor(
        "q", getattr(TensorProto, kind), (3, 5), numbers.reshape(-1).tolist()
    )
    if is_raw:
        raw = np.array(tensor.int32_data, np.int64).astype(np.uint8).tobytes()
        tensor = TensorProto(name="q", data_type=tensor.data_type, dims=(3, 5), raw_data=raw)
    from aot.frontends.onnx.tensors import tensor_array

    np.testing.assert_array_equal(tensor_array(tensor, "initializer 'q'", None), numbers)


def test_a_constant_of_less_than_a_byte_has_all_its_bytes() -> None:
    from aot.frontends.onnx.tensors import tensor_array

    tensor = TensorProto(name="q", data_type=TensorProto.INT4, dims=(3, 5), raw_data=b"1234567")
    with pytest.raises(CompileError) as error:
        tensor_array(tensor, "initializer 'q'", None)
    assert str(error.value) == "initializer 'q' has 7 bytes, but int4 of dims [3, 5] takes 8"


PLAIN = NBITS["plain"]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (replace(PLAIN, attrs={"bits": 3}), "attribute 'bits' is 3, expected 2, 4 or 8"),
        (
            replace(PLAIN, attrs={"block_size": 24}),
            "attribute 'block_size' is 24, expected a power of two of 16 or more",
        ),
        (replace(PLAIN, attrs={"N": 0}), "attribute 'N' is 0, expected 1 or more"),
        (
            replace(PLAIN, attrs={"K": 96}),
            "A has rows of 64 elements, but attribute 'K' is 96",
        ),
        (
            replace(PLAIN, arrays={"scales": np.ones((40, 3), np.float32)}),
            "scales has shape [40, 3], expected [40, 2] by the node's attributes",
        ),
        (
            replace(PLAIN, arrays={"B": np.ones((40, 2, 8), np.uint8)}),
            "B has shape [40, 2, 8], expected [40, 2, 16] by the node's attributes",
        ),
        (
            replace(PLAIN, arrays={"zero_points": np.ones((40, 3), np.uint8)}),
            "zero_points has shape [40, 3], expected [40, 1] by the node's attributes",
        ),
        (
            replace(PLAIN, arrays={"scales": np.full((40, 2), np.nan, np.float32)}),
            "scales has NaN or infinite elements",
        ),
    ],
)
def test_a_wrong_node_is_named(case: NBits, message: str) -> None:
    with pytest.raises(CompileError) as error:
        import_onnx(case.model())
    assert str(error.value) == f"model: MatMulNBits (node 'the node'): {message}"


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (
            replace(PLAIN, order=np.arange(64) // 40),
            "blocks of different sizes (g_idx) are not supported",
        ),
        (
            replace(PLAIN, attrs={"weight_prepacked": 1}),
            "weights that ONNX Runtime has packed are not supported",
        ),
    ],
)
def test_what_is_not_supported_is_said(case: NBits, reason: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        import_onnx(case.model())
    assert f"com.microsoft.MatMulNBits (node 'the node'): {reason}" in str(error.value)
