"""Products of bf16: which ops are, on which targets, and what is said of it.

Kernels are in tests/unit/kernels/test_bf16_dots.py.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.cli.text import compile_summary
from aot.driver.pipeline import read_model
from aot.errors import CompileError
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.ir.types import DType
from aot.ir.verifier import verify
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target.selection import load

X86, ARM = "x86-64-v4-bf16", "aarch64-linux-i8mm"
BF16 = ml_dtypes.bfloat16
SAME: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1)}


def weights(b: Builder, *shape: int, is_exact: bool = False) -> Any:
    array = (np.random.default_rng(len(shape)).normal(size=shape) / 5).astype(np.float32)
    return b.constant(array.astype(BF16).astype(np.float32) if is_exact else array)


def network(*, of_bf16: bool = False, is_exact: bool = False) -> Module:
    """Two pointwise convolutions with a depthwise one between, and a head of a few columns."""
    b = Builder()
    given = {"of_bf16": of_bf16}

    def known(*shape: int) -> Any:
        return weights(b, *shape, is_exact=is_exact)

    x = b.input("x", "f32[1, 24, 12, 12]")
    y = b.op("conv", x, known(32, 24, 1, 1), known(32), group=1, pads=(0,) * 4, **SAME, **given)
    y = b.op("relu", y)
    y = b.op("conv", y, known(32, 1, 3, 3), known(32), group=32, pads=(1,) * 4, **SAME, **given)
    y = b.op("conv", y, known(48, 32, 1, 1), known(48), group=1, pads=(0,) * 4, **SAME, **given)
    y = b.op("reduce_mean", b.op("relu", y), axes=(2, 3), keepdims=False)
    b.output("y", b.op("matmul", y, known(48, 1), **given))
    return b.module()


def compiled(module: Module, target: str, **options: Any) -> tuple[list[str], PassContext]:
    """The contractions that are left after all passes."""
    wanted = CompileOptions(targets=(target,), **options)
    made = read_model(module, wanted)
    context = PassContext(wanted, load(target))
    run_passes(made, (*MODEL_PASSES, *TARGET_PASSES), context)
    verify(made)
    ops = [op.name for function in made.executables for op in function.walk()]
    return sorted(n for n in ops if n.startswith(("conv", "matmul"))), context


@pytest.mark.parametrize("target", [X86, ARM])
def test_products_are_of_bf16_where_it_is_asked_for(target: str) -> None:
    found, context = compiled(network(), target, arithmetic="bf16")
    # the depthwise one and the one of one column stay
    assert found == ["conv", "conv_bf16", "conv_bf16", "matmul"]
    counts = context.statistics["bf16-products"]
    assert counts["multiply_adds_in_bf16"] == 144 * (24 * 32 + 32 * 48)
    assert counts["multiply_adds"] == counts["multiply_adds_in_bf16"] + 144 * 32 * 9 + 48


@pytest.mark.parametrize("target", [X86, ARM, "x86-64-v4-vnni"])
def test_a_model_of_f32_is_never_rounded_without_the_option(target: str) -> None:
    found, context = compiled(network(is_exact=True), target)
    assert found == ["conv", "conv", "conv", "matmul"]
    assert "bf16-products" not in context.statistics


def test_products_of_a_model_of_bf16_are_where_the_target_has_them() -> None:
    model = network(of_bf16=True, is_exact=True)
    for target, count in ((X86, 2), (ARM, 2), ("x86-64-v4-vnni", 0), ("aarch64-linux-dotprod", 0)):
        found, _ = compiled(model, target)
        assert found.count("conv_bf16") == count, target


def test_weights_that_are_not_of_bf16_are_not_rounded() -> None:
    found, _ = compiled(network(of_bf16=True), X86)
    assert "conv_bf16" not in found


def test_targets_without_the_instruction_are_refused() -> None:
    message = "arithmetic bf16: target x86-64-v3, wasm32 has no instruction that sums products of "
    with pytest.raises(CompileError, match=f"^{message}bfloat16$"):
        aot.compile(network(), targets=("x86-64-v3", X86, "wasm32"), arithmetic="bf16")


def test_the_summary_says_how_much_is_in_bf16() -> None:
    module = aot.compile(network(), targets=(X86,), arithmetic="bf16")
    summary = compile_summary(module.stats, "m.aotm", 1, 1.0)
    assert "88.9 % of 373,296 multiply-adds in bf16" in summary


@pytest.mark.parametrize("arithmetic", ["fp32", "bf16"])
def test_results_are_near_those_in_f32(arithmetic: str) -> None:
    x = np.random.default_rng(4).normal(size=(1, 24, 12, 12)).astype(np.float32)
    module = network()
    (expected,) = run(module.entry_points[0], [x])
    compiled = aot.compile(module, targets=(X86,), arithmetic=arithmetic)
    if "avx512bf16" not in _features():  # the machine that these are for is another one
        with pytest.raises(aot.RuntimeFailure):
            aot.load(compiled)
        return
    with aot.load(compiled) as program:
        (found,) = program(x=x).values()
    scale = np.abs(expected).max()
    error = np.abs(np.asarray(found) - expected).max() / scale
    assert error < (2**-6 if arithmetic == "bf16" else 1e-5)
    assert (error > 1e-5) == (arithmetic == "bf16")


def _features() -> frozenset[str]:
    from aot.target import host_cpu

    return host_cpu.features()


def test_an_onnx_model_of_bf16_is_computed_as_it_says() -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    rng = np.random.default_rng(6)
    first, second = (rng.normal(size=(64, 64)).astype(BF16) for _ in range(2))
    constants = [
        helper.make_tensor(name, TensorProto.BFLOAT16, w.shape, w.tobytes(), raw=True)
        for name, w in (("w0", first), ("w1", second))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.BFLOAT16, (8, 64)) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert onnx.checker.check_model(model) is None
    found, _ = compiled(read_model(model, CompileOptions(targets=(X86,))), X86)
    assert found == ["matmul_bf16", "matmul_bf16"]
    assert DType.BF16.numpy == BF16
