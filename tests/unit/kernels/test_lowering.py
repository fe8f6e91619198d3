"""Lowering: every op's samples, and small fused graphs, on the kernel interpreter.

The oracle is the graph interpreter. Kernels are verified, and run with race checks on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aot.analysis.memory.views import is_view
from aot.backends.cpu import emit_assembly
from aot.ir.builder import Builder
from aot.ir.graph import Function, Module
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY
from aot.kernels.ir import interpreter
from aot.kernels.ir.text import to_text
from aot.passes.fusion.fuse import fuse
from aot.passes.fusion.outline import outline
from aot.passes.fusion.tie_operands import tie_operands
from aot.target import selection as targets
from tests.support import attention_graphs
from tests.support.lowering import (
    run_executable,
    sample_array,
    sample_function,
    to_memory,
    view_array,
)

Array = np.ndarray[Any, Any]
TARGETS = ("x86-64-v4", "x86-64-v2", "vulkan-1.1")

SAMPLES = [
    pytest.param(name, number, id=f"{name}-{number}")
    for name, record in sorted(REGISTRY.items())
    if record.compute is not None or record.kind.has_own_kernel
    for number, sample in enumerate(record.samples)
    if "layout" not in sample.attrs
]


Engine = Callable[[Any, Any, Any], None]
"""Runs a kernel on buffers, which it changes in place, with parameters."""


def on_interpreter(kernel: Any, buffers: Any, params: Any) -> None:
    interpreter.run(kernel, buffers, params, check_races=True)


def check(
    function: Function,
    inputs: list[Array],
    target: str,
    dispatches: int,
    tolerance: float = 2e-6,
    engine: Engine = on_interpreter,
    after_fuse: Callable[[Function], None] = lambda _: None,
) -> None:
    """Runs the function's executables one after the other against the graph interpreter."""
    want = run(function, inputs)
    module = Module([function])
    fuse(function)
    after_fuse(function)
    tie_operands(function)
    outline(module)
    values = dict(zip(function.inputs, inputs, strict=True))
    found = 0
    symbols = _symbols(function, inputs)
    for op in function.block:
        if op.name == "constant":
            values[op.result] = op.attrs["value"].logical  # type: ignore[union-attr]
        elif is_view(op):
            values[op.result] = view_array(op, values[op.operands[0]], symbols)  # type: ignore[index]
        elif op.name == "dispatch":
            found += 1
            executable = module.functions[op.attrs["executable"].name]  # type: ignore[union-attr]
            from aot.ir.dims import evaluate

            dims = [evaluate(d, symbols) for d in op.attrs["dims"]]  # type: ignore[union-attr, arg-type]
            operands = [to_memory(values[v], v.type, symbols) for v in op.operands]  # type: ignore[index, union-attr]
            made = run_executable(executable, targets.load(target), operands, dims, engine)
            values.update(zip(op.results, made, strict=True))
    for value, expected in zip(function.results, want, strict=True):
        scale = max(float(np.abs(expected.astype(np.float64)).max(initial=0)), 1e-30)
        error = np.abs(values[value].astype(np.float64) - expected.astype(np.float64))
        assert values[value].shape == expected.shape
        assert float(error.max(initial=0)) <= tolerance * scale
    assert found == dispatches


def _symbols(function: Function, inputs: list[Array]) -> dict[str, int]:
    from aot.ir.interpreter.interpreter import bind_symbols

    return dict(bind_symbols(function, [tuple(a.shape) for a in inputs]))


def check_sample(name: str, number: int, target: str, engine: Engine = on_interpreter) -> None:
    """Runs a sample of an op as a function of its own."""
    record = REGISTRY[name]
    sample = record.samples[number]
    rng = np.random.RandomState(1)
    inputs = [sample_array(t, sample, rng) for t in sample.operands if t is not None]
    function = sample_function(record, sample)
    dispatches = sum(1 for op in function.block if op.record is record and not is_view(op))
    check(function, inputs, target, dispatches, engine=engine)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "number"), SAMPLES)
def test_every_sample_of_every_op_lowers(name: str, number: int, target: str) -> None:
    check_sample(name, number, target)


@pytest.mark.parametrize("terms", [1, 3, 4, 5, 8, 11, "K"])
@pytest.mark.parametrize("rows", [1, 5, 7, "N"])
def test_rows_multiplied_by_lanes(rows: int | str, terms: int | str) -> None:
    """Where a vector is multiplied by a lane of another, sums take the rows' scalars in vectors;
    what is left of them, and of the rows, is there as well."""
    rng = np.random.RandomState(3)
    sizes = {"N": 13, "K": 10}
    n, k = (sizes.get(str(size), size) for size in (rows, terms))
    b = Builder()
    x, w = b.input("x", f"f32[{rows}, {terms}]"), b.input("w", f"f32[{terms}, 16]")
    b.output("y", b.op("matmul", x, w))
    inputs = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((n, k), (k, 16))]
    seen: list[Any] = []

    def engine(kernel: Any, buffers: Any, params: Any) -> None:
        seen.append(kernel)
        on_interpreter(kernel, buffers, params)

    check(b.function(), inputs, "aarch64-generic", 1, engine=engine)
    has_lines = not isinstance(terms, int) or terms >= 4
    assert ("scratch lines" in to_text(seen[0])) == has_lines
    code = emit_assembly(seen[0], targets.load("aarch64-generic"))
    assert has_lines == bool(re.search(r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[3\]", code))


def _hard_swish(b: Builder, x: Any) -> Any:
    three, six, zero = (b.constant(np.float32(v)) for v in (3, 6, 0))
    inner = b.op("minimum", b.op("maximum", b.op("add", x, three), zero), six)
    return b.op("div", b.op("mul", x, inner), six)


def conv_hard_swish(b: Builder, n: Any = 2, w: Any = 9) -> int:
    x = b.input("x", f"f32[{n}, 5, 7, {w}]")
    weights = b.constant(np.random.RandomState(0).randn(20, 5, 3, 3).astype(np.float32))
    bias = b.constant(np.random.RandomState(1).randn(20).astype(np.float32))
    y = b.op("conv", x, weights, bias, strides=(2, 1), dilations=(1, 1), pads=(1, 1, 1, 1), group=1)
    b.output("y", _hard_swish(b, y))
    return 1


def depthwise(b: Builder) -> int:
    x = b.input("x", "f32[1, 6, 11, 13]")
    weights = b.constant(np.random.RandomState(0).randn(6, 1, 3, 3).astype(np.float32))
    y = b.op("conv", x, weights, strides=(1, 2), dilations=(1, 1), pads=(1, 1, 1, 1), group=6)
    b.output("y", b.op("relu", y))
    return 1


def softmax_of_scaled_sum(b: Builder) -> int:
    x, mask = b.input("x", "f32[N, 4, S, S]"), b.input("mask", "f32[N, 1, 1, S]")
    scaled = b.op("div", x, b.constant(np.float32(5.5)))
    b.output("y", b.op("softmax", b.op("add", scaled, mask), axis=3))
    return 1


def attention_scores(b: Builder) -> int:
    q, k = b.input("q", "f32[2, 5, 3, 8]"), b.input("k", "f32[2, 6, 3, 8]")
    left = b.op("transpose", q, perm=(0, 2, 1, 3))
    right = b.op("transpose", k, perm=(0, 2, 3, 1))
    b.output("y", b.op("matmul", left, right))
    return 2  # the right side would be gathered in lanes: it is transposed once instead


def residual_in_place(b: Builder) -> int:
    x = b.input("x", "f32[1, 8, 5, 7]")
    first = b.op("exp", x)
    weights = b.constant(np.random.RandomState(0).randn(8, 8, 1, 1).astype(np.float32))
    y = b.op("conv", x, weights, strides=(1, 1), dilations=(1, 1), pads=(0, 0, 0, 0), group=1)
    b.output("y", b.op("relu", b.op("add", y, first)))
    return 2


def squeeze_and_excite(b: Builder) -> int:
    x = b.input("x", "f32[N, 6, H, W]")
    y = b.op("relu", x)
    mean = b.op("reduce_mean", y, axes=(2, 3), keepdims=True)
    b.output("y", b.op("mul", y, b.op("sigmoid", mean)))
    return 3


def reshape_between(b: Builder) -> int:
    x = b.input("x", "f32[N, 12]")
    y = b.op("reshape", b.op("relu", x), shape=("N", 3, 4))
    b.output("y", b.op("transpose", y, perm=(0, 2, 1)))
    return 2


GRAPHS: dict[str, tuple[Callable[[Builder], int], list[tuple[int, ...]]]] = {
    "conv_hard_swish": (conv_hard_swish, [(2, 5, 7, 9)]),
    "conv_symbolic": (lambda b: conv_hard_swish(b, "N", "W"), [(3, 5, 7, 14)]),
    "depthwise": (depthwise, [(1, 6, 11, 13)]),
    "softmax": (softmax_of_scaled_sum, [(2, 4, 19, 19), (2, 1, 1, 19)]),
    "attention_scores": (attention_scores, [(2, 5, 3, 8), (2, 6, 3, 8)]),
    "residual_in_place": (residual_in_place, [(1, 8, 5, 7)]),
    "squeeze_and_excite": (squeeze_and_excite, [(2, 6, 5, 9)]),
    "reshape_between": (reshape_between, [(5, 12)]),
    **attention_graphs.GRAPHS,
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GRAPHS)
def test_fused_graphs(name: str, target: str) -> None:
    make, shapes = GRAPHS[name]
    b = Builder()
    dispatches = make(b)
    rng = np.random.RandomState(3)
    inputs = [rng.uniform(-2, 2, s).astype(np.float32) for s in shapes]
    check(b.function(), inputs, target, dispatches)
