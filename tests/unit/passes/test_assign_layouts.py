"""Layout assignment against every assignment tried: nothing is cheaper by the plan's costs."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from aot.analysis.cost.layout_costs import LayoutCosts, copy_cost
from aot.analysis.memory.views import canonical, map_of, memory_order, view_type
from aot.ir.builder import Builder
from aot.ir.builtin import CONSTANT, PENDING
from aot.ir.clone import clone_function
from aot.ir.graph import Function, Module, Value
from aot.ir.record import call_of
from aot.ir.types import DType, Layout, TensorType
from aot.ir.verifier import verify
from aot.passes.base import PassContext
from aot.passes.layout.assign_layouts import assign_layouts
from aot.passes.layout.resolve_shapes import RESOLVE_SHAPES
from aot.target import selection as targets

TARGET = targets.load("x86-64-v3")
Types = dict[Value, TensorType]


def conv(b: Builder, x: Any, filters: int, kernel: int = 3, group: int = 1) -> Any:
    weights = np.ones((filters, x.type.dims[1] // group, kernel, kernel), np.float32)
    attrs: dict[str, Any] = {
        "strides": (1, 1),
        "dilations": (1, 1),
        "pads": (kernel // 2,) * 4,
        "group": group,
    }
    return b.op("conv", x, b.constant(weights), **attrs)


def pool(b: Builder, x: Any) -> Any:
    attrs: dict[str, Any] = {"strides": (2, 2), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    return b.op("max_pool", x, kernel=(3, 3), **attrs)


def chain(b: Builder, x: Any) -> Any:
    return conv(b, b.op("relu", conv(b, pool(b, conv(b, x, 16)), 16)), 4)


def residual(b: Builder, x: Any) -> Any:
    left = conv(b, x, 16)
    return b.op("reduce_mean", b.op("add", conv(b, left, 16), left), axes=(2, 3), keepdims=True)


def flat(b: Builder, x: Any) -> Any:
    y = b.op("relu", conv(b, conv(b, x, 16), 16))
    return b.op("relu", b.op("reshape", y, shape=(1, 16, 144)))


def bordered(b: Builder, x: Any) -> Any:
    y = b.op("transpose", conv(b, b.op("transpose", x, perm=(0, 3, 1, 2)), 16), perm=(0, 2, 3, 1))
    return b.op("relu", y)


def short(b: Builder, x: Any) -> Any:
    return conv(b, b.op("exp", x), 2, 1)


GRAPHS = {g.__name__: g for g in (chain, residual, flat, bordered, short)}


def graph(name: str) -> Function:
    b = Builder()
    x = b.input(
        "x", TensorType(DType.F32, (1, 12, 12, 8) if name == "bordered" else (1, 8, 12, 12))
    )
    b.output("y", GRAPHS[name](b, x))
    return b.function()


def product_of(b: Builder, x: Any, columns: int) -> Any:
    return b.op("matmul", x, b.constant(np.ones((x.type.dims[-1], columns), np.float32)))


def tokens(b: Builder, x: Any) -> Any:
    """A window between products of tokens, as in transformers that mix neighbours."""
    wide = b.op("transpose", b.op("relu", product_of(b, x, 24)), perm=(0, 2, 1))
    y = conv(b, b.op("reshape", wide, shape=(1, 24, 12, 12)), 24, group=24)
    lines = b.op("transpose", b.op("reshape", y, shape=(1, 24, 144)), perm=(0, 2, 1))
    return product_of(b, b.op("relu", lines), 8)


def normed(b: Builder, x: Any) -> Any:
    """A normalisation of channels between windows."""
    last = b.op("transpose", conv(b, x, 24), perm=(0, 2, 3, 1))
    scales = [b.constant(np.ones(24, np.float32)) for _ in range(2)]
    normal = b.op("layer_norm", last, *scales, axis=3, epsilon=1e-5)
    return conv(b, b.op("transpose", normal, perm=(0, 3, 1, 2)), 8)


@pytest.mark.parametrize(
    ("make", "dims"), [(tokens, (1, 144, 8)), (normed, (1, 8, 12, 12))], ids=["tokens", "normed"]
)
def test_channels_are_neighbours_throughout(make: Any, dims: tuple[int, ...]) -> None:
    """Nothing is stored or read across channels, though transposes name them otherwise."""
    b = Builder()
    x = b.input("x", TensorType(DType.F32, dims))
    b.output("y", make(b, x))
    function = b.function()
    types = assigned(function)
    for op in function.block:
        if (
            op.name in ("matmul", "layer_norm", "conv", "relu")
            and op.result not in function.results
        ):
            inner = memory_order(types[op.result])[-1]
            assert inner == (1 if op.name == "conv" else op.result.type.rank - 1), op
        if op.name in ("transpose", "reshape"):
            source = op.operands[0]
            assert source is not None
            wanted = view_type(map_of(op), types[source])  # type: ignore[arg-type]
            assert wanted is not None and canonical(wanted) == canonical(types[op.result]), op


def channels_last(type: TensorType) -> TensorType:
    layout = Layout(order=(0, *range(2, type.rank), 1))
    return canonical(TensorType(type.dtype, type.dims, layout))


def cost(function: Function, types: Types) -> float:
    """What the function costs where values lie as `types` say."""
    total = 0.0
    for op in function.block:
        given = [types.get(v, v.type) for v in op.operands if v is not None]
        if op.record.is_terminator:
            total += sum(copy_cost(t, TARGET) for t in given if t.layout is not None)
            continue
        asked = LayoutCosts(call_of(op), TARGET)
        results = [types.get(v, v.type) for v in op.results]
        total += sum(asked.result(n, t) for n, t in enumerate(results))
        for number, value in enumerate(op.operands):
            if value is not None and (value.op is None or value.op.record is not CONSTANT):
                total += asked.operand(number, given[number], results[0])
    return total


def choices(function: Function) -> list[tuple[Value, list[TensorType]]]:
    values = [v for op in function.block if op.record is not CONSTANT for v in op.results]
    found = []
    for value in values:
        other = channels_last(value.type)
        if other != value.type:
            found.append((value, [value.type, other]))
    return found


def assigned(function: Function) -> Types:
    """The types that the pass gives, carried through, by the values of `function`."""
    made = clone_function(function)
    changed = assign_layouts(made, TARGET)
    assert changed > 0 or all(op.record is not PENDING for op in made.walk())
    module = Module([made])
    RESOLVE_SHAPES.run(module, PassContext())
    verify(module)
    ours = [v for op in function.block for v in op.results]
    theirs = [v for op in made.block for v in op.results]
    assert [v.type.dims for v in ours] == [v.type.dims for v in theirs], "an op was added"
    return {a: b.type for a, b in zip(ours, theirs, strict=True)}


@pytest.mark.parametrize("name", GRAPHS)
def test_nothing_is_cheaper(name: str) -> None:
    function = graph(name)
    free = choices(function)
    every = [
        dict(zip((value for value, _ in free), picked, strict=True))
        for picked in product(*(types for _, types in free))
    ]
    best = min(cost(function, types) for types in every)
    assert cost(function, assigned(function)) <= best * 1.001
    assert len(every) >= 4


def test_most_of_a_net_has_channels_last() -> None:
    types = assigned(graph("chain"))
    laid = [t for t in types.values() if t.layout is not None and not t.layout.splits]
    assert len(laid) >= 4


def test_bytes_for_a_pointwise_convolution_are_written_with_channels_last() -> None:
    """Though what they are made of is an input in planes: its words lie along channels."""
    b = Builder()
    x = b.input("x", TensorType(DType.F32, (1, 64, 32, 32)))
    scale, zero = b.constant(np.float32(0.1)), b.constant(np.uint8(7))
    stored = b.op("quantize", x, scale, zero, to="u8")
    weights = b.constant(np.ones((64, 64, 1, 1), np.int8))
    attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4}
    b.output("y", b.op("conv_integer", stored, weights, None, group=1, **attrs))
    function = b.function()
    (made,) = [op for op in function.block if op.name == "quantize"]
    assert memory_order(assigned(function)[made.result])[-1] == 1
