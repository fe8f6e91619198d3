"""Contractions of f16 that subgroups of a GPU multiply as matrices, and who runs their kernels.

Weights lie in panels, as the plan has them. Where AOT_MATRIX_VULKAN is a command that runs a
program beside a driver with such matrices, shaders run there too (docs/internals/vulkan.md).
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from aot.kernels.ir.nodes import Kernel, holds_matrices
from aot.target import selection as targets
from aot.target.model import Target
from tests.support import vulkan_running, vulkan_server
from tests.support.executables import LAST, PANELS, PLANES, Conv, Executable, Product
from tests.support.lowering_checks import Engine, on_interpreter

TARGETS = ("lavapipe-matrix", "nvidia-matrix")


def conv(
    channels: int, filters: int, size: tuple[int, int], taps: int = 3, stride: int = 1, **more: Any
) -> Conv:
    """One with zeros around an image of channels last."""
    known: dict[str, Any] = {"left": LAST, "images": 1, "stored": "f16", "is_image": True, **more}
    pad = known.get("apart", 1) * (taps // 2)
    return Conv((channels, filters, *size), taps, stride, pad, **known)


def product(*sizes: int, batch: tuple[int, ...] = (), right: str = PANELS) -> Product:
    rows, terms, columns = sizes
    return Product((rows, terms, columns), right, batch, stored="f16")


CASES: dict[str, Conv | Product] = {
    "product": product(64, 64, 64),
    "product-wide": product(40, 32, 200),
    "product-of-few-rows": product(9, 96, 48),
    "product-odd": product(67, 48, 37),
    "products": product(21, 64, 33, batch=(3,)),
    "product-of-rows": product(35, 48, 52, right=""),
    "products-of-both": product(33, 32, 72, batch=(2,), right=""),
    "conv-one-panel": conv(32, 16, (5, 6)),
    "conv": conv(32, 20, (5, 9), images=2),
    "conv-of-points": conv(64, 40, (7, 7), taps=1),
    "conv-strided": conv(32, 48, (13, 10), stride=2),
    "conv-dilated": conv(16, 17, (9, 8), apart=2),
    "conv-of-planes": conv(32, 20, (6, 7), left=PLANES),
    "conv-of-five-taps": conv(16, 64, (11, 12), taps=5),
}


def kept_busy(name: str, tiles: int = 0) -> Target:
    """A target that so many workgroups keep busy, be they small."""
    target = targets.load(name)
    assert target.gpu is not None
    return replace(target, gpu=replace(target.gpu, busy_lanes=tiles * target.gpu.lanes))


def least_tiles(case: Executable, name: str) -> Target:
    """A target that only the case's smallest tiles keep busy."""
    found = (kept_busy(name, tiles) for tiles in range(64, 0, -1))
    return next(target for target in found if holds_matrices(case.lowered(target, 16)))


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
