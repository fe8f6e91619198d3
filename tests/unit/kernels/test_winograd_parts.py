"""Winograd's transforms as kernels of their own on a GPU: what comes out, and how much is stored
for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from aot.analysis.stages import planned
from aot.ir.dims import Dim, evaluate, product, symbol
from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run
from aot.ir.schedule import Schedule
from aot.ir.text.parser import parse_module
from aot.ir.types import DType, Layout, TensorType
from aot.kernels.ir.nodes import For, LoopKind, Store, walk
from aot.kernels.lowering import lower
from aot.ops.winograd_parts import MATRICES, WINOGRAD_INPUTS, tiles_along
from aot.target import selection as targets
from tests.support.kernel_backends import DRIVEN, INTERPRETED, KernelBackend
from tests.support.lowering import run_executable, to_memory

BACKENDS = [
    INTERPRETED["vulkan-1.1"],
    *(pytest.param(b, marks=pytest.mark.vulkan) for b in DRIVEN.values()),
]
N, H, W = symbol("n"), symbol("h"), symbol("w")
LAST = Layout(order=(0, 2, 3, 1))
INPUTS = """
executable @e0{dims}(%0: {stored}) -> ("r0") bindings [1, 1] {{
  %1 = cast(%0) {{to = f32}} : {x}
  %2 = winograd_inputs(%1) {{pads = {pads}, outputs = {outputs}}} : {made}
  %3 = cast(%2) {{to = {dtype}}} : {result}
  return(%3)
}}
"""
OUTPUTS = """
executable @e0{dims}(%0: {stored}, %1: f32[{channels}], %2: {made}) -> ("r0")
    bindings [1, 0, 1, 1] {{
  %3 = cast(%0) {{to = f32}} : {sums}
  %4 = winograd_outputs(%3, %1) {{images = {images}, height = {height}, width = {width},
      outputs = {outputs}}} : {made}
  %5 = {op}(%4) : {made}
  %6 = add(%5, %2) : {made}
  return(%6)
}}
"""


def executable(text: str) -> Function:
    (function,) = parse_module(text).executables
    return function


def inputs(
    outputs: int,
    size: tuple[Dim, Dim],
    *pads: int,
    channels: int = 20,
    images: Dim = 1,
    layout: Layout | None = LAST,
    dtype: DType = DType.F32,
) -> Function:
    x = TensorType(DType.F32, (images, channels, *size), layout)
    attrs = {"pads": pads, "outputs": outputs}
    (made,) = WINOGRAD_INPUTS.call([x], attrs, "").result_types
    return executable(
        INPUTS.format(
            dims=_dims(x.dims),
            stored=replace(x, dtype=dtype),
            x=x,
            pads=list(pads),
            outputs=outputs,
            made=made,
            dtype=dtype,
            result=replace(made, dtype=dtype),
        )
    )


def outputs_of(
    outputs: int,
    size: tuple[int, int],
    *,
    channels: int = 20,
    images: Dim = 1,
    layout: Layout | None = LAST,
    op: str = "relu",
    dtype: DType = DType.F32,
) -> Function:
    made = TensorType(DType.F32, (images, channels, *size), layout)
    tiles = product([images, *(tiles_along(n, outputs) for n in size)])
    sums = TensorType(DType.F32, (MATRICES[outputs].points, tiles, channels))
    return executable(
        OUTPUTS.format(
            dims=_dims(made.dims),
            stored=replace(sums, dtype=dtype),
            sums=sums,
            channels=channels,
            images=images,
            height=size[0],
            width=size[1],
            outputs=outputs,
            op=op,
            made=made,
        )
    )


def _dims(extents: Sequence[Dim]) -> str:
    names = [str(n) for n in extents if not isinstance(n, int)]
    return f"[{', '.join(names)}]" if names else ""


SWEPT = [
    *(inputs(n, size, 1, 1, 1, 1) for n in (2, 4) for size in ((3, 3), (4, 9), (8, 7), (5, 13))),
    *(inputs(n, (6, 11), *pads) for n in (2, 4) for pads in ((0, 0, 0, 0), (2, 0, 1, 3))),
    inputs(2, (5, 6), 1, 1, 1, 1, channels=1),
    inputs(4, (5, 6), 1, 1, 1, 1, channels=131, images=2),
    inputs(4, (5, 6), 1, 1, 1, 1, images=3, layout=None),
    inputs(2, (9, 5), 1, 1, 1, 1, images=2, dtype=DType.F16),
    *(outputs_of(n, size) for n in (2, 4) for size in ((1, 1), (1, 6), (3, 5), (8, 8), (9, 14))),
    outputs_of(2, (5, 6), channels=1),
    outputs_of(4, (5, 6), channels=131, images=2),
    outputs_of(4, (7, 6), images=3, layout=None),
    outputs_of(4, (7, 6), images=2, op="gelu"),
    outputs_of(2, (7, 6), images=2, op="gelu"),
    outputs_of(2, (9, 5), images=2, dtype=DType.F16),
]


def check(function: Function, backend: KernelBackend, dims: dict[str, int]) -> None:
    rng = np.random.default_rng(3)
    types = [value.type for value in function.inputs]
    shapes = [[dims.get(str(n), n) for n in t.dims] for t in types]
    if dims:  # of tiles, that are found from others
        shapes = [[n if isinstance(n, int) else evaluate(n, dims) for n in s] for s in shapes]
    arrays = [
        rng.standard_normal(shape).astype(t.dtype.numpy)  # type: ignore[arg-type]
        for shape, t in zip(shapes, types, strict=True)
    ]
    (wanted,) = run(function, arrays)
    laid = [to_memory(a, t, dims) for a, t in zip(arrays, types, strict=True)]
    sizes = [dims[name] for name in function.dim_names]
    alignments = [16] * len(function.bindings)
    (found,) = run_executable(
        function, targets.load(backend.target), laid, sizes, backend.engine, alignments
    )
    wide = wanted.astype(np.float64)
    most = 2**-10 if function.results[0].type.dtype.bytes == 2 else 2e-6
    np.testing.assert_allclose(found.astype(np.float64), wide, atol=most * np.abs(wide).max())


@pytest.mark.parametrize("function", SWEPT)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_transforms_of_any_size(function: Function, backend: KernelBackend) -> None:
    (made,) = planned(function, targets.load(backend.target))
    assert made.schedule is Schedule.TRANSFORM
    check(function, backend, {})


@pytest.mark.parametrize("dims", [{"n": 1, "h": 3, "w": 9}, {"n": 2, "h": 8, "w": 5}], ids=str)
@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_extents_may_be_open(backend: KernelBackend, outputs: int, dims: dict[str, int]) -> None:
    check(inputs(outputs, (H, W), 1, 1, 1, 1, images=N), backend, dims)
    check(outputs_of(outputs, (5, 7), images=N), backend, {"n": dims["n"]})


@pytest.mark.parametrize("outputs", [2, 4])
def test_a_lane_loads_and_stores_an_element_once(outputs: int) -> None:
    target, side = targets.load("vulkan-1.1"), outputs + 2
    kernel = lower(inputs(outputs, (8, 8), 1, 1, 1, 1, channels=64), target, [16, 16])
    stored = [s for s in walk(kernel.body) if isinstance(s, Store)]
    assert len(stored) == side * side
    kernel = lower(outputs_of(outputs, (8, 8), channels=64), target, [16] * 4)
    stored = [s for s in walk(kernel.body) if isinstance(s, Store)]
    assert len(stored) == outputs * outputs
    loops = Counter(s.kind for s in walk(kernel.body) if isinstance(s, For))
    assert loops == {LoopKind.WORKGROUP: 1, LoopKind.LANE: 1}
