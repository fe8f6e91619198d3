"""What lowering makes of small graphs for vulkan-1.1 runs on every software driver.

Ops' samples do so in tests/runtime/test_vulkan_samples.py, by the runtime's own driver.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.ir.builder import Builder
from aot.kernels.ir.nodes import Kernel
from tests.support import lowering_checks, vulkan_device, vulkan_running
from tests.support.lowering_graphs import GRAPHS
from tests.support.vulkan_case import Array

pytestmark = pytest.mark.vulkan


@pytest.fixture(params=vulkan_device.DRIVERS)
def engine(request: pytest.FixtureRequest) -> lowering_checks.Engine:
    """Runs kernels on a driver."""
    name = str(request.param)

    def run(kernel: Kernel, buffers: dict[str, Array], params: dict[str, Any]) -> None:
        results = vulkan_running.run_on(name, kernel, buffers, params)
        for buffer, array in results.items():
            buffers[buffer][...] = array.reshape(buffers[buffer].shape)

    return run


@pytest.mark.parametrize("graph", sorted(GRAPHS))
def test_small_graphs(graph: str, engine: lowering_checks.Engine) -> None:
    make, shapes = GRAPHS[graph]
    b = Builder()
    dispatches = make(b)
    rng = np.random.RandomState(5)
    inputs = [rng.randn(*shape).astype(np.float32) for shape in shapes]
    lowering_checks.check(b.function(), inputs, "vulkan-1.1", dispatches, engine=engine)
