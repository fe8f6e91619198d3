"""One op as a region that reads and writes f16, as narrow-storage leaves it: for kernels' tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from aot.ir.builder import Builder
from aot.ir.builtin import YIELD
from aot.ir.graph import Block, Function, Module, Op, Value
from aot.ir.record import OpRecord, Sample
from aot.ir.rewriter import Rewriter
from aot.ir.types import DType, TensorType
from aot.ops.elementwise import CAST
from aot.ops.structure import REGION
from aot.passes.fusion.outline import outline
from aot.passes.fusion.tie_operands import tie_operands
from aot.passes.quantise.narrow_storage import reads_back
from tests.support.lowering import sample_array

Array = np.ndarray[Any, Any]


def half(type: TensorType) -> TensorType:
    return TensorType(DType.F16, type.dims, type.layout) if type.dtype is DType.F32 else type


def half_function(record: OpRecord, sample: Sample, *, is_half: bool = True) -> Function:
    """A function of one region: f32 operands of the op are f16 outside, and so are its results
    where a kernel can make them; with `is_half` false they are as they are."""
    b = Builder()
    inputs = [
        None if type is None else b.input(f"x{number}", half(type) if is_half else type)
        for number, type in enumerate(sample.operands)
    ]
    given = [v for v in inputs if v is not None]
    block = Block([v.type for v in given])
    wide = dict(zip(given, block.args, strict=True))
    function = b.function()
    into = Rewriter(function, block)
    operands: list[Value | None] = []
    for value, type in zip(inputs, sample.operands, strict=True):
        operands.append(None if value is None else _as(into, wide[value], type.dtype))  # type: ignore[union-attr]
    made = into.create(record, operands, dict(sample.attrs))
    results = made.results
    if is_half and not reads_back(made):
        results = [_as(into, v, half(v.type).dtype) for v in made.results]
    into.insert(Op(YIELD, results, {}, []))
    region = Op(REGION, given, {"ties": ()}, [v.type for v in results], [block])
    end = function.block.terminator
    Rewriter(function).at(end).insert(region)
    rewriter = Rewriter(function)
    rewriter.insert(Op(end.record, region.results, {}, []))
    rewriter.erase(end)
    function.result_names = [f"y{n}" for n in range(len(results))]
    return function


def _as(into: Rewriter, value: Value, dtype: DType) -> Value:
    if value.type.dtype is dtype:
        return value
    attrs = {"to": dtype, "clamps": dtype is DType.F16}
    return into.create(CAST, [value], attrs).result


def half_inputs(sample: Sample, seed: int = 1) -> list[Array]:
    """Arrays for the function's inputs."""
    rng = np.random.RandomState(seed)
    arrays = [sample_array(t, sample, rng) for t in sample.operands if t is not None]
    with np.errstate(over="ignore"):
        return [a.astype(np.float16) if a.dtype == np.float32 else a for a in arrays]


def executable(function: Function) -> Function:
    """The function's region as an executable."""
    module = Module([function])
    tie_operands(function)
    outline(module)
    (made,) = module.executables
    return made


def check_half(found: list[Array], expected: list[Array]) -> None:
    """One unit of f16 is what two roundings may differ by."""
    for got, wanted in zip(found, expected, strict=True):
        assert got.dtype == wanted.dtype
        a, b = got.astype(np.float64), wanted.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0, np.abs(a - b))
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=0))
        allowed = 2e-6 * scale + (2**-10 * np.abs(b) if wanted.dtype == np.float16 else 0)
        assert (error <= allowed).all(), float(error.max())
