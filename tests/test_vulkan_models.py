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
from aot.ir.core import ConstantData, FunctionRef, Module, Op, Value
from aot.ir.dims import DimExpr, evaluate
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


def outputs_of(name: str, driver: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The model's outputs by name; every dispatch on the driver, views and constants in numpy."""
    function = outlined(name).main
    arrays = [inputs[v.name] for v in function.inputs]
    dims = bind_symbols(function, [tuple(a.shape) for a in arrays])
    values: dict[Value, Array] = dict(zip(function.inputs, arrays, strict=True))
    for op in function.block:
        if op.name == "constant":
            data = op.attrs["value"]
            assert isinstance(data, ConstantData)
            values[op.result] = data.array  # as it lies in memory: weights are packed
        elif op.name == "dispatch":
            values.update(zip(op.results, dispatched(name, driver, op, values, dims), strict=True))
        elif op.record.kind is Kind.VIEW:
            source = op.operands[0]
            assert source is not None
            values[op.result] = values[source].reshape(shape_of(op.result, dims))
        else:
            assert op.name == "return", f"{op.name} is no dispatch"
    return dict(zip(function.result_names, (values[v] for v in function.results), strict=True))


def shape_of(value: Value, dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(d, dims) for d in value.type.dims)


def dispatched(
    name: str, driver: str, op: Op, values: Mapping[Value, Array], dims: Mapping[str, int]
) -> list[Array]:
    """The results of one dispatch."""
    symbol, sizes = op.attrs["executable"], op.attrs["dims"]
    assert isinstance(symbol, FunctionRef)
    assert isinstance(sizes, tuple)
    kernel, shader = executable(name, symbol.name)
    names = outlined(name).functions[symbol.name].dim_names
    params: dict[str, float] = {
        n: evaluate(size, dims)
        for n, size in zip(names, sizes, strict=True)
        if isinstance(size, int | DimExpr)
    }
    operands = [v for v in op.operands if v is not None]
    count = len(operands)
    arrays = {
        b.name: values[v].reshape(-1) for b, v in zip(kernel.buffers[:count], operands, strict=True)
    }
    made = vulkan_running.run_on(driver, kernel, arrays, params, shader=shader)
    return [
        made[b.name].reshape(shape_of(v, dims))
        for b, v in zip(kernel.buffers[count:], op.results, strict=True)
    ]


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
    """Drivers' compile time grows worse than linearly beyond some 2,600 words."""
    for symbol, function in outlined(name).functions.items():
        if function.kind == "executable":
            assert len(executable(name, symbol)[1].words) // 4 <= 2600, symbol
