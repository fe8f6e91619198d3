"""Graphs whose values lie in memory in an order that is not theirs; ops' samples do so in
tests/unit/kernels/test_op_samples.py.

The oracle is the graph interpreter, to which layouts mean nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.backends.cpu.compile import compile_kernel
from aot.ir import expr
from aot.ir.builder import Builder
from aot.ir.dims import Dim, symbol
from aot.ir.graph import Function, Module, Value
from aot.ir.types import DType, TensorType
from aot.kernels.ir.nodes import Buffer, For, Kernel, LoopKind, Store, walk
from aot.kernels.lowering import lower
from aot.link.code_image import link_image
from aot.passes.base import PassContext
from aot.passes.fusion.fuse import fuse
from aot.passes.fusion.outline import outline
from aot.passes.layout.pack import pack
from aot.passes.simplify.dce import DCE
from aot.passes.simplify.fold_constants import FOLD_CONSTANTS
from aot.target import selection as targets
from tests.support import cpu_running, lowering_checks, qemu
from tests.support.laid_out import relay

Array = np.ndarray[Any, Any]
TARGETS = ("x86-64-v4", "vulkan-1.1")


def conv(b: Builder, x: Value, filters: int, kernel: int, stride: int = 1, group: int = 1) -> Value:
    """A convolution that keeps the extents, with a bias."""
    rng = np.random.RandomState(filters)
    channels = x.type.dims[1]
    assert isinstance(channels, int)
    weights = rng.randn(filters, channels // group, kernel, kernel).astype(np.float32)
    made = b.op(
        "conv",
        x,
        b.constant(weights),
        b.constant(rng.randn(filters).astype(np.float32)),
        strides=(stride, stride),
        dilations=(1, 1),
        pads=(kernel // 2,) * 4,
        group=group,
    )
    assert isinstance(made, Value)
    return made


def residual(b: Builder, x: Value) -> Any:
    return b.op("relu", b.op("add", conv(b, x, 20, 3), x))


def depthwise(b: Builder, x: Value) -> Any:
    return b.op("hard_swish", conv(b, x, 20, 3, 2, 20))


def grouped(b: Builder, x: Value) -> Any:
    return b.op("relu", conv(b, x, 72, 1, group=2))


def pooled(b: Builder, x: Value) -> Any:
    return b.op("max_pool", x, kernel=(3, 3), strides=(2, 2), dilations=(1, 1), pads=(1, 1, 1, 1))


def averaged(b: Builder, x: Value) -> Any:
    return b.op(
        "average_pool", x, kernel=(2, 3), strides=(1, 2), dilations=(1, 1), pads=(0, 1, 0, 1)
    )


def mean_of_planes(b: Builder, x: Value) -> Any:
    return b.op("reduce_mean", x, axes=(2, 3), keepdims=True)


def scaled(b: Builder, x: Value) -> Any:
    return b.op("mul", x, b.constant(np.random.RandomState(2).randn(1, 20, 1, 1).astype("f4")))


GRAPHS = {g.__name__: g for g in (residual, depthwise, grouped, pooled, averaged, scaled)}
SHAPES: dict[str, tuple[Dim, ...]] = {
    "static": (1, 20, 4, 6),
    "open": (symbol("N"), 20, symbol("H"), symbol("W")),
}


def graph(name: str, shape: str, target: str) -> Function:
    """A graph whose values lie channels last and whose weights are packed for that."""
    b = Builder()
    x = b.input("x", TensorType(DType.F32, SHAPES[shape]))
    b.output("y", GRAPHS[name](b, x))
    function = b.function()
    relay(function, "channels_last")
    pack(function, targets.load(target))
    for step in (FOLD_CONSTANTS, DCE):
        step.run(Module([function]), PassContext())
    return function


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str, shape: str, target: str) -> None:
    x = np.random.RandomState(3).uniform(-2, 2, (1, 20, 4, 6)).astype(np.float32)
    lowering_checks.check(graph(name, shape, target), [x], target, 1)


@pytest.mark.qemu
@pytest.mark.parametrize("target", ["aarch64-generic", "armv7-neon", "riscv64", "riscv64-v"])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_on_other_cpus(name: str, target: str) -> None:
    device = targets.load(target)

    def engine(kernel: Kernel, buffers: dict[str, Array], params: dict[str, Any]) -> None:
        job = cpu_running.make_job(kernel, buffers, params, device)
        qemu.run_on(device.arch, link_image([compile_kernel(kernel, device)], device), [job])
        cpu_running.store_results(job, buffers)

    x = np.random.RandomState(3).uniform(-2, 2, (1, 20, 4, 6)).astype(np.float32)
    lowering_checks.check(graph(name, "static", target), [x], target, 1, engine=engine)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((0, 4), (1,)), ((2, 0, 5, 5), (2, 3)), ((1, 8, 0, 3), (3,)), ((3, 0), (1,))],
)
def test_reductions_of_nothing(shape: tuple[int, ...], axes: tuple[int, ...], target: str) -> None:
    b = Builder()
    x = b.input("x", TensorType(DType.F32, shape))
    b.output("y", b.op("reduce_sum", x, axes=axes, keepdims=False))
    function = b.function()
    relay(function, "channels_last")
    lowering_checks.check(function, [np.zeros(shape, np.float32)], target, 1)


@pytest.mark.parametrize("name", GRAPHS)
def test_lanes_walk_memory_in_step(name: str) -> None:
    """No lane of a channels-last kernel gathers or scatters."""
    module = Module([graph(name, "static", "x86-64-v4")])
    fuse(module.main)
    outline(module)
    (executable,) = module.executables
    kernel = lower(executable, targets.load("x86-64-v4"))
    loops = [s for s in walk(kernel.body) if isinstance(s, For) and s.kind is LoopKind.VECTOR]
    assert loops
    for loop in loops:
        stores = [s for s in walk(loop.body) if isinstance(s, Store)]
        places = [(s.target, s.indices) for s in stores]
        for store in stores:
            for value in (store.value, *store.indices):
                places += [(load.source, load.indices) for load in expr.loads(value)]
        for memory, indices in places:
            if isinstance(memory, Buffer):
                step = expr.coefficient(indices[0], loop.var)
                assert step is not None
                assert step in (0, 1)


@pytest.mark.parametrize("target", ["x86-64-v3", "vulkan-1.1"])
def test_weights_that_are_stored_as_bytes_are_packed(target: str) -> None:
    """Of a recurrence and of a convolution, before they are scaled."""
    random = np.random.default_rng(7)
    b = Builder()

    def weights(*shape: int) -> Value:
        codes = b.constant(random.integers(-9, 10, shape).astype(np.int8))
        scale = b.constant(np.full((shape[0], *[1] * (len(shape) - 1)), 0.0625, np.float32))
        found = b.op("mul", b.op("cast", codes, to=DType.F32), scale)
        assert isinstance(found, Value)
        return found

    x = b.input("x", TensorType(DType.F32, (5, 2, 24)))
    operands = (x, weights(1, 64, 24), weights(1, 64, 16), None, None, None, None, None)
    b.output("h", b.op("lstm", *operands, hidden_size=16)[0])
    image = b.input("image", TensorType(DType.F32, (1, 24, 4, 4)))
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
    b.output("y", b.op("conv", image, weights(20, 24, 3, 3), **window))
    function = b.function()
    pack(function, targets.load(target))
    for step in (FOLD_CONSTANTS, DCE):
        step.run(Module([function]), PassContext())
    found = {op.name: op for op in function.walk() if op.name in ("lstm", "conv")}
    read = [*found["lstm"].operands[1:3], found["conv"].operands[1]]
    assert all(v is not None and v.type.layout is not None for v in read)
    inputs = [
        random.normal(size=(5, 2, 24)).astype(np.float32),
        random.normal(size=(1, 24, 4, 4)).astype(np.float32),
    ]
    lowering_checks.check(function, inputs, target, 2)
