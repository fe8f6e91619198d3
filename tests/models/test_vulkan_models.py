"""The reference models, dispatch by dispatch, on the software drivers, against ONNX Runtime.

What the module's program does on a CPU (dims, views, order) is done here in Python: the C driver
for Vulkan has tests of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest

from aot.analysis.memory.alignment import operand_alignments
from aot.analysis.memory.storage import BufferAssignment
from aot.analysis.memory.views import is_view
from aot.backends.vulkan.shader import Shader
from aot.driver.pipeline import read_model
from aot.ir.dims import DimExpr, evaluate
from aot.ir.graph import ConstantData, Function, FunctionRef, Module, Op, Value
from aot.ir.interpreter.interpreter import bind_symbols
from aot.kernels.ir.nodes import Kernel
from aot.kernels.lower.lowering import lower
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from tests.support import vulkan_device, vulkan_running
from tests.support.lowering import element_numbers
from tests.support.models import SMALL_MODELS, feeds, model_path, reference
from tests.support.vulkan_kernels import Array

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
    module = outlined(name)
    known = operand_alignments(module).get(symbol, ())
    kernel = lower(module.functions[symbol], vulkan_running.vulkan_target(), known)
    return kernel, vulkan_running.build(kernel)


class Memory:
    """What lies where while a program runs: a flat array for each value that has memory."""

    def __init__(self, function: Function, inputs: Mapping[str, Array]) -> None:
        self.assignment = BufferAssignment(function)
        arrays = [inputs[v.name] for v in function.inputs]
        self.dims = bind_symbols(function, [tuple(a.shape) for a in arrays])
        self.arrays: dict[Value, Array] = {
            v: np.ascontiguousarray(a).reshape(-1)
            for v, a in zip(function.inputs, arrays, strict=True)
        }
        for op in function.block:
            data = op.attrs.get("value")
            if isinstance(data, ConstantData):
                self.arrays[op.result] = data.array.reshape(-1)  # packed, as it lies in memory

    def span(self, value: Value) -> Array:
        """The memory from a value's first element to its last."""
        buffer_slice, type = self.assignment.of(value), value.type
        if buffer_slice.root not in self.arrays:
            count = (
                evaluate(buffer_slice.root.type.bytes, self.dims)
                // buffer_slice.root.type.dtype.bytes
            )
            self.arrays[buffer_slice.root] = np.full(count, 77, buffer_slice.root.type.dtype.numpy)
        size = type.dtype.bytes
        begin = evaluate(buffer_slice.offset_bytes, self.dims) // size
        return self.arrays[buffer_slice.root][
            begin : begin + evaluate(type.bytes, self.dims) // size
        ]

    def store(self, value: Value, span: Array) -> None:
        """Writes the elements of a value; what lies between them is others'."""
        numbers = element_numbers(value.type, self.dims)
        self.span(value)[numbers] = span[numbers]

    def logical(self, value: Value) -> Array:
        """A value's elements by their indices."""
        return self.span(value)[element_numbers(value.type, self.dims)]


def outputs_of(name: str, driver: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The model's outputs by name; every dispatch on the driver, the memory in numpy."""
    function = outlined(name).main
    memory = Memory(function, inputs)
    for op in function.block:
        if op.name == "dispatch":
            run_dispatch(name, driver, op, memory)
        else:
            assert op.name in ("constant", "return", "concat_alias") or is_view(op), op.name
    return {
        n: memory.logical(v) for n, v in zip(function.result_names, function.results, strict=True)
    }


def run_dispatch(name: str, driver: str, op: Op, memory: Memory) -> None:
    symbol, sizes = op.attrs["executable"], op.attrs["dims"]
    assert isinstance(symbol, FunctionRef)
    assert isinstance(sizes, tuple)
    kernel, shader = executable(name, symbol.name)
    names = outlined(name).functions[symbol.name].dim_names
    params: dict[str, float] = {
        n: evaluate(size, memory.dims)
        for n, size in zip(names, sizes, strict=True)
        if isinstance(size, int | DimExpr)
    }
    operands = [v for v in op.operands if v is not None]
    count = len(operands)
    arrays = {b.name: memory.span(v) for b, v in zip(kernel.buffers[:count], operands, strict=True)}
    made = vulkan_running.run_on(driver, kernel, arrays, params, shader=shader)
    for buffer, value in zip(kernel.buffers[count:], op.results, strict=True):
        memory.store(value, made[buffer.name])


@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_model_agrees_with_onnxruntime(name: str, driver: str) -> None:
    actual = outputs_of(name, driver, feeds(name))
    for output, wanted in reference(name).items():
        assert actual[output].shape == wanted.shape
        assert actual[output].dtype == wanted.dtype
        scale = max(float(np.abs(wanted).max()), 1e-30)
        assert float(np.abs(actual[output] - wanted).max()) / scale <= TOLERANCE, output


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_shaders_stay_small(name: str) -> None:
    """Drivers' compile time grows worse than linearly beyond some 2,600 words; a tile whose rows
    are loaded as vectors is longer, and compiles no slower, because loads are what takes time."""
    for symbol, function in outlined(name).functions.items():
        if function.kind == "executable":
            assert len(executable(name, symbol)[1].words) // 4 <= 3000, symbol
