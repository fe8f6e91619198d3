"""`--disable`: each name changes something of a model, and no result."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aot
from aot.builder import Builder
from aot.driver.pipeline import MODEL_PASSES, TARGET_PASSES
from aot.ir.dim_parser import parse
from aot.ir.graph import Module, Value
from aot.ir.interpreter.interpreter import run
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.switches import DISABLEABLE, FEATURES, PASSES
from tests.support.fused_graphs import FusedGraph
from tests.support.graphs import random_inputs
from tests.support.random_graphs import difference

TARGET = "x86-64-v2"


def model() -> Module:
    """Something for each name."""
    rng = np.random.default_rng(0)
    b = Builder()

    def weights(*dims: int) -> np.ndarray:
        return rng.standard_normal(dims).astype(np.float32)

    def conv(x: Value, outputs: int, inputs: int, size: int) -> Value:
        pads = (size // 2,) * 4
        weight = b.constant(weights(outputs, inputs, size, size))
        made: Value = b.op("conv", x, weight, strides=(1, 1), dilations=(1, 1), pads=pads, group=1)
        return made

    x = b.input("x", "f32[1, 16, 12, 12]")
    # a transpose there and back, a scale for the weights, siblings, and parts of a concat
    last = b.op("relu", b.op("transpose", x, perm=(0, 2, 3, 1)))
    first = b.op("transpose", last, perm=(0, 3, 1, 2))
    scaled = b.op("mul", first, b.constant(np.float32(3)))
    parts = [b.op("tanh", conv(scaled, 16, 16, 3)) for _ in range(2)]
    b.output("parts", conv(b.op("concat", *parts, axis=1), 8, 32, 1))
    # positions that two dispatches read
    here = b.op("range", size=parse("T"))
    hidden = b.op("less", b.op("reshape", here, shape=(parse("T"), 1)), here)
    scores, zero = b.input("scores", "f32[T, T]"), b.constant(np.float32(0))
    masked = b.op("where", hidden, zero, scores)
    b.output("masked", b.op("matmul", masked, b.op("where", hidden, scores, zero)))
    # the same twice; a scale of weights
    same = [b.op("sigmoid", b.op("reduce_mean", x, axes=(2, 3))) for _ in range(2)]
    gate = b.op(
        "matmul", b.op("reshape", b.op("add", *same), shape=(1, 16)), b.constant(weights(16, 4))
    )
    b.output("gate", b.op("mul", gate, b.constant(weights(4))))
    # siblings, and dispatches of other extents
    rows = b.input("rows", "f32[6, 24]")
    heads = [b.op("matmul", rows, b.constant(weights(24, n))) for n in (24, 24)]
    b.output("heads", b.op("add", *heads))
    # a constant that is the head of another
    table = weights(64, 24)
    for name, part in (("table", table), ("head", table[:32])):
        b.output(name, b.op("gather", b.constant(part), b.input(f"{name}_at", "i64[2]"), axis=0))
    # bytes times bytes
    small, scale = b.input("small", "u8[6, 24]"), b.constant(np.float32(0.1))
    bytes_ = b.constant(rng.integers(-128, 128, (24, 8), np.int8))
    product = b.op("matmul", b.op("dequantize", small, scale), b.op("dequantize", bytes_, scale))
    b.output("quantised", b.op("quantize", product, scale, to="u8"))
    gate = b.op("sigmoid", b.op("dequantize", small, scale))
    b.output("looked_up", b.op("quantize", gate, scale, to="u8"))
    b.output("few_bits", b.op("matmul", rows, b.op("dequantize", bytes_, scale)))
    # a layer of several steps
    steps = b.input("steps", "f32[3, 1, 4]")
    layer = b.op("rnn", steps, weights(1, 6, 4), weights(1, 6, 6), hidden_size=6)
    b.output("layer", layer[0])
    for n in (5, 7):
        b.output(f"long{n}", b.op("softmax", b.input(f"x{n}", f"f32[128, {n * 80}]"), axis=1))
    return b.module()


@lru_cache
def made(*disable: str) -> aot.CompiledModule:
    return aot.compile(model(), targets=[TARGET], disable=disable, optimize="size")


def test_what_is_listed_exists() -> None:
    names = {step.name for step in (*MODEL_PASSES, *TARGET_PASSES)}
    assert set(PASSES) <= names
    assert not set(PASSES) & set(FEATURES)
    assert set(DISABLEABLE) == {*PASSES, *FEATURES}


@pytest.mark.parametrize("name", DISABLEABLE)
def test_a_name_changes_something_and_no_result(name: str) -> None:
    with_, without = made(), made(name)
    calls = [m.stats["variants"][0]["shape_rule_calls"] for m in (with_, without)]
    if name == "lazy-shapes":
        assert with_.to_bytes() == without.to_bytes() and calls[0] < calls[1]
    elif name == "proofs":
        proved = [m.stats["variants"][0]["proofs"]["kernels"] for m in (with_, without)]
        assert with_.to_bytes() == without.to_bytes() and proved[0] > proved[1] == 0
    else:
        assert with_.to_bytes() != without.to_bytes()
    check(model(), without)


def test_all_at_once() -> None:
    check(model(), made(*DISABLEABLE))


def check(module: Module, compiled: aot.CompiledModule) -> None:
    main = module.main
    inputs = random_inputs(main)
    expected = run(main, inputs)
    with aot.load(compiled) as program:
        found = list(program(inputs).values())
    assert not difference(main, inputs, expected, found)


def test_a_disabled_pass_does_not_run() -> None:
    module, context = model(), PassContext(CompileOptions(disable=("cse", "algebra")))
    run_passes(module, MODEL_PASSES, context)
    ran = [step.name for step in context.runs]
    assert ran == [s.name for s in MODEL_PASSES if s.name not in ("cse", "algebra")]


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sets(st.sampled_from(sorted(DISABLEABLE)), min_size=1))
def test_random_graphs_without_some(data: st.DataObject, names: set[str]) -> None:
    graph = FusedGraph(lambda below: data.draw(st.integers(0, below - 1)), 10)
    check(graph.module, aot.compile(graph.module, targets=["host"], disable=sorted(names)))
