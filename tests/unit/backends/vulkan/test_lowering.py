"""What lowering makes for vulkan-1.1 runs on every software driver: ops' samples, small graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.errors import InternalError
from aot.ir.builder import Builder
from aot.ir.record import REGISTRY
from aot.ir.types import DType
from aot.kernels.ir.nodes import Kernel
from tests.support import lowering_checks, vulkan_device, vulkan_running
from tests.support.lowering_graphs import GRAPHS
from tests.support.vulkan_kernels import Array

pytestmark = pytest.mark.vulkan

_WIDE = (DType.I64, DType.U64, DType.F64)


@pytest.fixture(params=vulkan_device.DRIVERS)
def engine(request: pytest.FixtureRequest) -> lowering_checks.Engine:
    """Runs kernels on a driver."""
    name = str(request.param)

    def run(kernel: Kernel, buffers: dict[str, Array], params: dict[str, Any]) -> None:
        results = vulkan_running.run_on(name, kernel, buffers, params)
        for buffer, array in results.items():
            buffers[buffer][...] = array.reshape(buffers[buffer].shape)

    return run


@pytest.mark.parametrize(("name", "number"), lowering_checks.SAMPLES)
def test_every_sample_of_every_op(name: str, number: int, engine: lowering_checks.Engine) -> None:
    """Right, or refused: only 64-bit arithmetic may be, which legalisation removes before."""
    try:
        lowering_checks.check_sample(name, number, "vulkan-1.1", engine)
    except InternalError as error:
        operands = REGISTRY[name].samples[number].operands
        assert any(t is not None and t.dtype in _WIDE for t in operands)
        assert "legalisation should have removed" in str(error)


@pytest.mark.parametrize("graph", sorted(GRAPHS))
def test_small_graphs(graph: str, engine: lowering_checks.Engine) -> None:
    make, shapes = GRAPHS[graph]
    b = Builder()
    dispatches = make(b)
    rng = np.random.RandomState(5)
    inputs = [rng.randn(*shape).astype(np.float32) for shape in shapes]
    lowering_checks.check(b.function(), inputs, "vulkan-1.1", dispatches, engine=engine)
