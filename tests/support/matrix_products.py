"""Contractions of f16 that subgroups of a GPU multiply as matrices, and who runs their kernels.

Weights lie in panels, as the plan has them. Where AOT_MATRIX_VULKAN is a command that runs a
program beside a driver with such matrices, shaders run there too (docs/internals/vulkan.md).
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY, Sample
from aot.ir.types import DType, Layout, TensorType, to_physical
from aot.kernels.ir.nodes import Kernel, holds_matrices
from aot.kernels.lowering import lower
from aot.target import selection as targets
from aot.target.model import Target
from tests.support import vulkan_running, vulkan_server
from tests.support.half_regions import executable, half_function, half_inputs
from tests.support.lowering import run_executable
from tests.support.lowering_checks import Engine, on_interpreter

F32 = DType.F32
CHANNELS_LAST = Layout(order=(0, 2, 3, 1))
TARGETS = ("lavapipe-matrix", "nvidia-matrix")


def conv(
    channels: int,
    filters: int,
    size: tuple[int, int],
    taps: int = 3,
    stride: int = 1,
    dilation: int = 1,
    batch: int = 1,
    layout: Layout | None = CHANNELS_LAST,
) -> tuple[str, Sample]:
    """One with zeros around an image of the layout."""
    pad = dilation * (taps // 2)
    panels = Layout(splits=((0, 16),), order=(0, 2, 3, 1, 4))
    types = (
        TensorType(F32, (batch, channels, *size), layout),
        TensorType(F32, (filters, channels, taps, taps), panels),
        TensorType(F32, (filters,)),
    )
    attrs = {
        "strides": (stride, stride),
        "dilations": (dilation, dilation),
        "pads": (pad,) * 4,
        "group": 1,
    }
    return "conv", Sample(types, attrs)


def product(
    rows: int, terms: int, columns: int, batch: int | None = None, *, is_packed: bool = True
) -> tuple[str, Sample]:
    """Without panels both sides have the batch."""
    panels = Layout(splits=((1, 16),), order=(1, 0, 2)) if is_packed else None
    left = (rows, terms) if batch is None else (batch, rows, terms)
    right = (terms, columns) if batch is None or is_packed else (batch, terms, columns)
    return "matmul", Sample((TensorType(F32, left), TensorType(F32, right, panels)))


CASES: dict[str, tuple[str, Sample]] = {
    "product": product(64, 64, 64),
    "product-wide": product(40, 32, 200),
    "product-of-few-rows": product(9, 96, 48),
    "product-odd": product(67, 48, 37),
    "products": product(21, 64, 33, batch=3),
    "product-of-rows": product(35, 48, 52, is_packed=False),
    "products-of-both": product(33, 32, 72, batch=2, is_packed=False),
    "conv-one-panel": conv(32, 16, (5, 6)),
    "conv": conv(32, 20, (5, 9), batch=2),
    "conv-of-points": conv(64, 40, (7, 7), taps=1),
    "conv-strided": conv(32, 48, (13, 10), stride=2),
    "conv-dilated": conv(16, 17, (9, 8), dilation=2),
    "conv-of-planes": conv(32, 20, (6, 7), layout=None),
    "conv-of-five-taps": conv(16, 64, (11, 12), taps=5),
}


def made(case: tuple[str, Sample]) -> Function:
    op, sample = case
    return executable(half_function(REGISTRY[op], sample))


def kernel_of(case: tuple[str, Sample], target: Target) -> Kernel:
    function = made(case)
    return lower(function, target, [16] * len(function.bindings))


def kept_busy(name: str, tiles: int = 0) -> Target:
    """A target that so many workgroups keep busy, be they small."""
    target = targets.load(name)
    assert target.gpu is not None
    return replace(target, gpu=replace(target.gpu, busy_lanes=tiles * target.gpu.lanes))


def least_tiles(case: tuple[str, Sample], name: str) -> Target:
    """A target that only the case's smallest tiles keep busy."""
    found = (kept_busy(name, tiles) for tiles in range(64, 0, -1))
    return next(target for target in found if holds_matrices(kernel_of(case, target)))


def check(case: tuple[str, Sample], target: Target, engine: Engine) -> None:
    """Runs it against the graph interpreter."""
    op, sample = case
    inputs = half_inputs(sample)
    (wanted,) = run(half_function(REGISTRY[op], sample), inputs)
    types = [t for t in sample.operands if t is not None]
    laid = [to_physical(a, t) for a, t in zip(inputs, types, strict=True)]
    function = made(case)
    alignments = [16] * len(function.bindings)
    (got,) = run_executable(function, target, laid, [], engine, alignments)
    wide = wanted.astype(np.float64)
    error = np.abs(got.astype(np.float64) - wide)
    assert (error <= 2**-10 * np.abs(wide) + 1e-5 * np.abs(wide).max()).all()


def on_command(kernel: Kernel, buffers: dict[str, Any], params: dict[str, Any]) -> None:
    """A shader for lavapipe-matrix, on the driver of AOT_MATRIX_VULKAN."""
    shader = vulkan_running.build(kernel, targets.load("lavapipe-matrix"))
    found = vulkan_running.run_on(
        vulkan_server.COMMAND, kernel, buffers, params, shader=replace(shader, texel=None)
    )
    for name, array in found.items():
        buffers[name][...] = array.reshape(buffers[name].shape)


WAYS: list[tuple[str, Engine]] = [(target, on_interpreter) for target in TARGETS]
if os.environ.get("AOT_MATRIX_VULKAN"):
    WAYS.append(("lavapipe-matrix", on_command))
