"""The reference models, dispatch by dispatch, on the software drivers, against ONNX Runtime.

What the module's program does on a CPU (dims, views, order) is done here in Python: the C driver
for Vulkan has tests of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
import vulkan_device
import vulkan_running
from models import SMALL_MODELS, feeds, model_path, reference
from vulkan_kernels import Array

from aot.backends.vulkan import Shader
from aot.ir.core import Function, Module, Op, Value
from aot.ir.dims import evaluate
from aot.ir.interpreter import bind_symbols
from aot.kernels.ir import Kernel
from aot.kernels.lower import lower
from aot.ops.record import Kind
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.pipeline import MODEL_PASSES, TARGET_PASSES, read_model

pytestmark = [pytest.mark.vulkan, pytest.mark.models, pytest.mark.slow]

TOLERANCE = 1e-4  # of each output's largest magnitude


@cache
def outlined(name: str) -> Module:
    """The model after all passes for vulkan-1.1, every dim that it leaves open left open."""
    options = CompileOptions()
    module = read_model(str(model_path(name)), options)
    run_passes(module, MODEL_PASSES, PassContext(options))
    run_passes(module, TARGET_PASSES, PassContext(options, vulkan_running.vulkan_target()))
    return module


@cache
def executable(name: str, symbol: str) -> tuple[Kernel, Shader]:
    kernel = lower(outlined(name).functions[symbol], vulkan_running.vulkan_target())
    return kernel, vulkan_running.build(kernel)


class Run:
    """One inference: the values so far."""

    def __init__(self, name: str, driver: str, inputs: Mapping[str, Array]) -> None:
        self.name = name
        self.driver = driver
        self.module = outlined(name)
        self.function = next(f for f in self.module.functions.values() if not f.is_executable)
        arrays = [inputs[v.name] for v in self.function.inputs]
        self.dims = bind_symbols(self.function, [tuple(a.shape) for a in arrays])
        self.values: dict[Value, Array] = dict(zip(self.function.inputs, arrays, strict=True))
