"""Floats as integers of 64 bits: saturated, and 0 where they are no number."""

from __future__ import annotations

import numpy as np
import pytest

from aot.builder import Builder
from aot.ir.graph import Module
from aot.ir.types import DType, TensorType
from aot.passes.fusion.fuse import fuse
from aot.passes.fusion.outline import outline
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import run_executable

LEAST, MOST = -(2**63), 2**63 - 1


def wanted(value: float) -> int:
    if np.isnan(value):
        return 0
    return MOST if value >= 2.0**63 else max(LEAST, int(value)) if value > LEAST else LEAST


@pytest.mark.parametrize("target", native_targets())
@pytest.mark.parametrize("source", [DType.F32, DType.F64])
def test_floats_beyond_all_integers(source: DType, target: str) -> None:
    below = float(np.nextafter(source.numpy.type(2.0**63), source.numpy.type(0)))
    edges = [0.0, -0.0, 1.5, -1.5, np.nan, np.inf, -np.inf, 2.0**63, -(2.0**63), below, -below]
    edges += [2.0**64, -(2.0**64), 1e30, -1e30, 2.0**31, -(2.0**31) - 512, 0.999, -0.999]
    values = np.resize(np.array(edges, source.numpy), 77)
    b = Builder()
    x = b.input("x", TensorType(source, (77,)))
    b.output("y", b.op("cast", x, to=DType.I64))
    function = b.function()
    module = Module([function])
    fuse(function)
    outline(module)
    (executable,) = module.executables
    (found,) = run_executable(executable, targets.load(target), [values], [], on_cpu(target))
    assert found.tolist() == [wanted(float(v)) for v in values]
