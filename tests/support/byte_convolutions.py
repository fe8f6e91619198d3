"""Convolutions of bytes that give bytes again, as executables, beside the graph interpreter.

Layouts of image and result are given; weights lie as the plan for a target asks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aot.analysis.cost.plan import weight_layouts
from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY, Sample, call_of
from aot.ir.text.parser import parse_module
from aot.ir.types import DType, Layout, TensorType, to_physical
from aot.kernels.ir.nodes import Kernel
from tests.support import cpu_running, dot_products
from tests.support.dot_products import CHANNELS_LAST, numbers
from tests.support.half_contractions import device
from tests.support.half_regions import half_function
from tests.support.lowering import run_executable
from tests.support.lowering_checks import Engine

CONV = REGISTRY["conv_integer"]
LAST = "{order=0:2:3:1}"

Size = tuple[int, int, int]


def conv(
    size: Size,
    group: int,
    filters: int,
    kernel: int = 3,
    stride: int = 1,
    dilation: int = 1,
    *,
    is_padded: bool = True,
    layout: Layout | None = CHANNELS_LAST,
    batch: int = 2,
) -> Sample:
    """Channels, height and width are the size; the layout is the image's."""
    channels, *plane = size
    _, sample = dot_products.conv(
        DType.U8,
        channels,
        filters,
        kernel,
        stride,
        113,
        layout,
        dilation,
        group,
        is_padded=is_padded,
        size=(plane[0], plane[1]),
        batch=batch,
    )
    return sample


def made(sample: Sample, target: str, last: str = LAST) -> tuple[Function, Sample]:
    """A convolution that gives bytes, channels `last` or not, whose weights lie as the plan for a
    target asks, as an executable; and its types."""
    plain = half_function(CONV, sample, is_half=False)
    (call,) = [call_of(o) for o in plain.walk() if o.record is CONV]
    types = [t for t in sample.operands if t is not None]
    for number, layout in weight_layouts(call, device(target)).items():
        types[number] = TensorType(types[number].dtype, types[number].dims, layout)
    if sample.attrs["group"] == types[0].dims[1]:
        types[1] = TensorType(types[1].dtype, types[1].dims, Layout(order=(2, 3, 1, 0)))
    result = call.result_types[0]
    filters = result.dims[1]
    dims = ", ".join(map(str, result.dims))
    operands = ", ".join(f"%{number}: {type_}" for number, type_ in enumerate(types))
    attrs = ", ".join(
        f"{key} = {list(value) if isinstance(value, tuple) else value}"
        for key, value in sample.attrs.items()
    )
    text = f"""executable @e({operands}, %3: f32[{filters}, 1, 1], %4: u8[]) -> ("y")
      bindings [1, 0, 0, 0, 0, 1] {{
      %5 = conv_integer(%0, %1, %2) {{{attrs}}} : i32[{dims}]{last}
      %6 = cast(%5) {{to = f32}} : f32[{dims}]{last}
      %7 = mul(%6, %3) : f32[{dims}]{last}
      %8 = quantize(%7, _, %4) {{to = u8}} : u8[{dims}]{last}
      return(%8)
    }}"""
    (function,) = parse_module(text).functions.values()
    return function, Sample(tuple(types), sample.attrs)


def check(sample: Sample, how: str, target: str, engine: Engine, last: str = LAST) -> None:
    function, packed = made(sample, target, last)
    rng = np.random.default_rng(5)
    types = [t for t in packed.operands if t is not None]
    arrays = [numbers(t, how, rng, 1 << 16) for t in types]
    (sums,) = run(half_function(CONV, sample, is_half=False), arrays)
    spread = 100 / max(1, int(np.abs(sums).max()))
    scales = (spread * rng.uniform(0.5, 1.5, (sums.shape[1], 1, 1))).astype(np.float32)
    expected = np.clip(np.rint(sums.astype(np.float32) * scales) + 120, 0, 255).astype(np.uint8)
    physical = [to_physical(a, t) for a, t in zip(arrays, types, strict=True)]
    operands = [*physical, scales, np.array(120, np.uint8)]
    (found,) = run_executable(function, device(target), operands, [], engine, ())
    np.testing.assert_array_equal(found, expected)


def on_cpu(target: str) -> Engine:
    def run_kernel(kernel: Kernel, buffers: dict[str, Any], params: dict[str, Any]) -> None:
        cpu_running.run(kernel, buffers, params, device(target))

    return run_kernel
